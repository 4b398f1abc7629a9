"""One-node models, run by Orthrus and by onnxruntime, and the comparison of what they give."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx import helper, numpy_helper

import orthrus
from orthrus.codegen.machines import detect
from orthrus.ir import HALF, element_of

_SILENT = 4
_PRODUCTS = ("MatMul", "Conv", "Gemm", "Attention", "LSTM", "GRU")
_HOST = detect.found()
SATURATES = _HOST is not None and _HOST.arch == "x86_64" and not (
    _HOST.has("avx512vnni") or _HOST.has("avxvnni"))
"""Whether onnxruntime's sums of products of uint8 and int8 saturate at 16 bits: on x86-64 without VNNI."""


@dataclasses.dataclass
class Case:
    """One application of an operator; `open_shapes` declares its inputs with names for dimensions.

    `expected` holds what the outputs have to be where onnxruntime is not to be asked; `rtol` and `atol` are
    the bounds for float32, scaled for other types; `slack` is that for integers; `held` are the inputs that
    the model holds as constants.
    """

    op: str
    inputs: Sequence[np.ndarray | None]
    attrs: dict[str, Any] = dataclasses.field(default_factory=dict)
    opset: int = 21
    outputs: int = 1
    domain: str = ""
    expected: list[Any] | None = None
    rtol: float = 2e-5
    atol: float = 2e-6
    slack: int = 0
    open_shapes: bool = False
    held: frozenset[int] = frozenset()

    def __str__(self) -> str:
        given = ", ".join("_" if a is None else f"{a.dtype}{list(a.shape)}" for a in self.inputs)
        held = f", held {sorted(self.held)}" if self.held else ""
        return f"{self.domain}::{self.op}-{self.opset}({given}, {self.attrs}{held})"

    def model(self) -> onnx.ModelProto:
        names = [f"i{k}" if a is not None else "" for k, a in enumerate(self.inputs)]
        infos = [
            helper.make_tensor_value_info(n, int(element_of(a.dtype)), self._declared(n, a))
            for k, (n, a) in enumerate(zip(names, self.inputs, strict=True))
            if a is not None and k not in self.held
        ]
        kept = [
            numpy_helper.from_array(np.asarray(self.inputs[k]), names[k])
            for k in sorted(self.held)
            if names[k]
        ]
        made = [f"o{k}" for k in range(self.outputs)]
        node = helper.make_node(self.op, names, made, domain=self.domain, **self.attrs)
        ends = [helper.make_empty_tensor_value_info(n) for n in made]
        graph = helper.make_graph([node], "g", infos, ends, kept)
        imports = [helper.make_opsetid("", self.opset)]
        if self.domain:
            imports.append(helper.make_opsetid(self.domain, 1))
        model = helper.make_model(graph, opset_imports=imports)
        model.ir_version = 10 if self.opset < 24 else 13
        return model

    def _declared(self, name: str, a: np.ndarray) -> Any:
        return [f"{name}_{k}" for k in range(a.ndim)] if self.open_shapes else a.shape

    @property
    def saturates(self) -> bool:
        """Whether onnxruntime's result is not the operator's on the machine at hand."""
        return SATURATES and any(name in self.op for name in _PRODUCTS) and any(
            a is not None and a.dtype == np.int8 for a in self.inputs)

    @property
    def feeds(self) -> dict[str, np.ndarray]:
        return {f"i{k}": a for k, a in enumerate(self.inputs) if a is not None and k not in self.held}


def session(engine: Any, model: onnx.ModelProto | bytes, level: str = "ORT_ENABLE_ALL") -> Any:
    """A session of either engine on the CPU that writes nothing."""
    options = engine.SessionOptions()
    options.graph_optimization_level = getattr(engine.GraphOptimizationLevel, level)
    options.log_severity_level = _SILENT
    options.intra_op_num_threads = 1
    data = model if isinstance(model, bytes) else model.SerializeToString()
    return engine.InferenceSession(data, options, providers=["CPUExecutionProvider"])


def peer_results(
    peer: Any, model: onnx.ModelProto | bytes, feeds: dict[str, np.ndarray], level: str = "ORT_DISABLE_ALL"
) -> list[Any] | Exception:
    """What onnxruntime gives, or the error that says it does not run this."""
    try:
        return session(peer, model, level).run(None, feeds)
    except Exception as error:
        return error


def difference(got: Any, expected: Any, rtol: float, atol: float, slack: int = 0) -> str | None:
    """In words, how two results differ; None where they agree."""
    if isinstance(expected, list) or isinstance(got, list):
        if type(got) is not type(expected) or len(got) != len(expected):
            return f"{type(got)} and {type(expected)}"
        return next(
            (d for a, b in zip(got, expected, strict=True) if (d := difference(a, b, rtol, atol, slack))),
            None,
        )
    if got is None or expected is None:
        return None if got is expected else f"{got} and {expected}"
    if got.dtype != expected.dtype or got.shape != expected.shape:
        return f"{got.dtype}{list(got.shape)} and {expected.dtype}{list(expected.shape)}"
    if got.dtype == object or got.dtype.kind in "iub" or got.dtype.name in ("int4", "uint4", "int2", "uint2"):
        wrong = got != expected
        if slack:
            wrong = np.abs(got.astype(np.int64) - expected.astype(np.int64)) > slack
    else:
        wide = np.complex128 if got.dtype.kind == "c" else np.float64
        a, b = got.astype(wide), expected.astype(wide)
        if got.dtype == np.float64:
            rtol, atol = rtol * 1e-6, atol * 1e-6
        elif got.dtype in HALF:
            rtol = 4 * float(ml_dtypes.finfo(got.dtype).eps)
            atol = max(atol, rtol / 8)
        with np.errstate(all="ignore"):
            wrong = ~((np.abs(a - b) <= atol + rtol * np.abs(b)) | (a == b) | (np.isnan(a) & np.isnan(b)))
    if not np.any(wrong):
        return None
    at = tuple(int(i) for i in np.argwhere(wrong)[0]) if np.ndim(wrong) else ()
    return (
        f"{int(np.sum(wrong))} of {wrong.size} differ, first at {at}: {got[at]!r}, expected {expected[at]!r}"
    )


def differences(
    got: Sequence[Any], expected: Sequence[Any], rtol: float, atol: float, slack: int = 0
) -> str | None:
    """The first difference between two lists of outputs."""
    if len(got) != len(expected):
        return f"{len(got)} and {len(expected)} outputs"
    for k, (a, b) in enumerate(zip(got, expected, strict=True)):
        if (found := difference(a, b, rtol, atol, slack)) is not None:
            return f"output {k}: {found}"
    return None


def check(case: Case, peer: Any = None) -> str | None:
    """Run a case; None where the results agree or onnxruntime does not run it, else what differs."""
    model = case.model()
    expected: Any = case.expected
    if expected is None and peer is not None and not case.saturates:
        expected = peer_results(peer, model, case.feeds)
        if isinstance(expected, Exception):
            expected = None
    try:
        it = session(orthrus, model)
        got = it.run(None, case.feeds)
    except Exception as error:
        return f"{case}: {error}" if expected is not None else _foreign(case, error)
    for declared, value in zip(it.get_outputs(), got, strict=True):
        if isinstance(value, np.ndarray) and (wrong := _undeclared(declared, value)):
            return f"{case}: {wrong}"
    if expected is None:
        return None
    found = differences(got, expected, case.rtol, case.atol, case.slack)
    return f"{case}: {found}" if found else None


def _foreign(case: Case, error: Exception) -> str | None:
    """An error that is none of the documented ones is a defect whatever the peer does."""
    return None if type(error).__module__ == "orthrus.errors" else f"{case}: {type(error).__name__}: {error}"


def _undeclared(declared: Any, value: np.ndarray) -> str | None:
    if declared.type != f"tensor({element_of(value.dtype).text})":
        return f"declared {declared.type}, computed {value.dtype}"
    shape = declared.shape
    if shape and (
        len(shape) != value.ndim
        or any(isinstance(d, int) and d != n for d, n in zip(shape, value.shape, strict=True))
    ):
        return f"declared {shape}, computed {list(value.shape)}"
    return None
