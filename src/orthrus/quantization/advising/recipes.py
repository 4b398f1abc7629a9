"""Ways to quantize a model, by name.

In: a `Job`, which has the model's file and calibration data, and nodes to leave in float. Out: the file of a
quantized model. A recipe raises what its tool raises; one that cannot apply says why beforehand.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from ...records import cached_property, dataclass
from ..calibrate import CalibrationDataReader, CalibrationMethod
from ..quant_utils import MODEL_SIZE_THRESHOLD, QuantType
from ..quantize import quantize_dynamic, quantize_static
from .stored import in_bytes, in_float16

PRODUCTS = frozenset({"MatMul", "Gemm"})
DYNAMIC = PRODUCTS | {"LSTM", "Attention", "EmbedLayerNormalization", "Gather", "Conv"}
HEAVY = PRODUCTS | {"Conv", "ConvTranspose", "LSTM", "GRU", "Attention"}
"""Operators whose weights make a model large and slow; which of them stay in float is searched."""
_EXTERNAL = MODEL_SIZE_THRESHOLD // 2
_BLOCK = 32


@dataclass
class Job:
    """What recipes work on. `model`: the file, prepared; `folder`: for what is kept from one recipe to the
    next."""

    model: Path
    folder: Path
    calibration: Sequence[Mapping[str, Any]] = ()
    providers: Sequence[Any] | None = None
    size: int = field(init=False)

    def __post_init__(self) -> None:
        self.size = size_of(self.model)

    @cached_property
    def graph(self) -> Any:
        """The model's GraphProto, without its weights where they are in other files."""
        return onnx.load_model(os.fspath(self.model), load_external_data=False).graph

    @cached_property
    def key(self) -> str:
        """What the model's file and the data are, in a few letters: ranges of others are not these."""
        digest = hashlib.sha256(self.model.read_bytes())
        for row in self.calibration:
            for name, value in sorted(row.items()):
                digest.update(name.encode())
                digest.update(np.ascontiguousarray(value).tobytes())
        return digest.hexdigest()[:16]

    @property
    def external(self) -> bool:
        """Whether a copy's weights belong into a file of their own."""
        return self.size > _EXTERNAL

    @cached_property
    def heavy(self) -> list[str]:
        """Names of the nodes with weights of their own, in the model's order."""
        weights = {tensor.name for tensor in self.graph.initializer}
        weights |= {name for node in self.graph.node if node.op_type == "Constant" for name in node.output}
        return [node.name for node in self.graph.node
                if node.op_type in HEAVY and any(name in weights for name in node.input[1:])]

    @cached_property
    def kinds(self) -> frozenset[str]:
        """Operators of the nodes with weights of their own."""
        heavy = set(self.heavy)
        return frozenset(node.op_type for node in self.graph.node if node.name in heavy)

    def reader(self) -> CalibrationDataReader:
        """The calibration data from its start."""
        return _Rows(self.calibration)


class _Rows(CalibrationDataReader):
    def __init__(self, rows: Sequence[Mapping[str, Any]]) -> None:
        self._rows = iter(rows)

    def get_next(self) -> Any:
        row = next(self._rows, None)
        return None if row is None else dict(row)


@dataclass(frozen=True)
class Recipe:
    """`make(job, out, left)` writes the model `out`, in which the nodes named in `left` stay as they are.
    `kinds`: operators of which a model needs one; `bits`: of the weights; `integer`: whether products are of
    whole numbers, which a processor needs instructions for."""

    name: str
    make: Callable[[Job, Path, Sequence[str]], None]
    kinds: frozenset[str]
    calibrated: bool = False
    integer: bool = True

    def refused(self, job: Job) -> str:
        """Why it does nothing for this model, empty where it may do something."""
        if not self.kinds & job.kinds:
            if any(node.op_type == "DequantizeLinear" for node in job.graph.node):
                return "the model is quantized already"
            kind = next(iter(self.kinds)) if len(self.kinds) == 1 else "node that it is for"
            return f"no {kind} has weights of its own"
        return "" if job.calibration or not self.calibrated else "needs data"


def _dynamic(per_channel: bool) -> Callable[[Job, Path, Sequence[str]], None]:
    def make(job: Job, out: Path, left: Sequence[str]) -> None:
        quantize_dynamic(job.model, out, per_channel=per_channel, weight_type=QuantType.QInt8,
                         nodes_to_exclude=list(left), use_external_data_format=job.external)
    return make


def _static(method: CalibrationMethod, activation: QuantType = QuantType.QUInt8,
            kinds: Sequence[str] = ()) -> Callable[[Job, Path, Sequence[str]], None]:
    """`kinds`: the operators that are quantized, all where it is empty."""
    def make(job: Job, out: Path, left: Sequence[str]) -> None:
        ranges = f"ranges-{method.name.lower()}{'-products' * bool(kinds)}-{job.key}.json"
        quantize_static(
            job.model, out, job.reader(), per_channel=True, activation_type=activation,
            op_types_to_quantize=list(kinds), weight_type=QuantType.QInt8, nodes_to_exclude=list(left),
            calibrate_method=method, calibration_providers=job.providers,
            use_external_data_format=job.external, calibration_cache_path=job.folder / ranges)
    return make


def _weights(bits: int) -> Callable[[Job, Path, Sequence[str]], None]:
    def make(job: Job, out: Path, left: Sequence[str]) -> None:
        from ..matmul_nbits_quantizer import MatMulNBitsQuantizer

        quantizer = MatMulNBitsQuantizer(onnx.load(os.fspath(job.model)), block_size=_BLOCK, bits=bits,
                                         is_symmetric=bits == 8, accuracy_level=4,
                                         nodes_to_exclude=list(left))
        quantizer.process()
        quantizer.model.save_model_to_file(os.fspath(out), job.external)
    return make


def _half(job: Job, out: Path, left: Sequence[str]) -> None:
    from ...transformers.float16 import convert_float_to_float16

    made = convert_float_to_float16(onnx.load(os.fspath(job.model)), keep_io_types=True,
                                    node_block_list=list(left))
    onnx.save_model(made, os.fspath(out), save_as_external_data=job.external)


def _stored(how: Callable[[onnx.ModelProto, Sequence[str]], onnx.ModelProto]
            ) -> Callable[[Job, Path, Sequence[str]], None]:
    def make(job: Job, out: Path, left: Sequence[str]) -> None:
        onnx.save_model(how(onnx.load(os.fspath(job.model)), left), os.fspath(out),
                        save_as_external_data=job.external)
    return make


RECIPES = (
    Recipe("dynamic int8", _dynamic(False), DYNAMIC),
    Recipe("dynamic int8 by channel", _dynamic(True), DYNAMIC),
    *(Recipe(f"static int8 {method.name.lower()}", _static(method), HEAVY, True)
      for method in (CalibrationMethod.MinMax, CalibrationMethod.Entropy, CalibrationMethod.Percentile)),
    Recipe("static int8 of products", _static(CalibrationMethod.Percentile, kinds=sorted(HEAVY)), HEAVY,
           True),
    Recipe("static int8, activations int16", _static(CalibrationMethod.MinMax, QuantType.QUInt16), HEAVY,
           True, False),
    Recipe("weights 8 bits", _weights(8), frozenset({"MatMul"})),
    Recipe("weights 4 bits", _weights(4), frozenset({"MatMul"})),
    Recipe("float16", _half, HEAVY, False, False),
    Recipe("weights stored in 8 bits", _stored(in_bytes), HEAVY, False, False),
    Recipe("weights stored in float16", _stored(in_float16), HEAVY, False, False),
)


def size_of(model: Path) -> int:
    """Bytes of a model's file and of the files its weights are in."""
    graph = onnx.load_model(os.fspath(model), load_external_data=False).graph
    files = {entry.value for tensor in graph.initializer for entry in tensor.external_data
             if entry.key == "location"}
    return sum(path.stat().st_size for path in (model, *(model.parent / name for name in files)))
