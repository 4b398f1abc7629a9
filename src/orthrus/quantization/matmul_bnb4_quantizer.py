"""MatMul on constant weights of 4 bits from a table of floats, FP4 or NF4, in onnxruntime's names.

In: a model. Out: the same model with MatMulBnb4. The invariant: a node that is left out, or has no constant
weight, is as it was.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import GraphProto, ModelProto, NodeProto

from .onnx_model import ONNXModel
from .quant_utils import ms_domain, onnx_domain
from .refused import InvalidValue
from .weights.blockwise import BLOCK_SIZES, FLOATS
from .weights.command import written
from .weights.nodes import QUANTIZED, add_tensor, each_node, float_tensor, matrix, rewrite

__all__ = ["MatMulBnb4Quantizer", "main", "parse_args"]

logger = logging.getLogger(__name__)
_PIECE = 1 << 17
_FP4 = (0.0026041700039058924, 0.0859375, 0.2083333283662796, 0.2916666567325592, 0.4166666865348816,
        0.5833330154418945, 0.8333333134651184)
_FP4_CODES = np.array([0, 1, 6, 7, 4, 5, 2, 3], np.uint8)
_NF4 = (-0.8480964303016663, -0.6106328964233398, -0.4599952697753906, -0.33967941999435425,
        -0.23460739850997925, -0.13791173696517944, -0.045525018125772476, 0.03979014977812767,
        0.1202552542090416, 0.2035212516784668, 0.2920137643814087, 0.3893125355243683, 0.5016633868217468,
        0.6427869200706482, 0.8614783883094788)
"""The values above which the next code is the nearer one; FP4's are magnitudes, whose codes follow."""


class MatMulBnb4Quantizer:
    """MatMul nodes on FP4 or NF4 weights; `process` does it, and the result is in `model`.

    `model`: a ModelProto, which `process` changes, or a path. `quant_type`: FP4 or NF4. `block_size`: values
    of the flattened transposed weight that share a scale. Raises: InvalidValue for other types and blocks.
    """

    FP4 = 0
    NF4 = 1

    def __init__(self, model: ModelProto | str | Path, quant_type: int, block_size: int,
                 nodes_to_exclude: Iterable[str] | None = None) -> None:
        if quant_type not in (self.FP4, self.NF4):
            raise InvalidValue("there is no such 4-bit float", found=quant_type,
                               expected="0 (FP4) or 1 (NF4)")
        if block_size not in BLOCK_SIZES:
            raise InvalidValue("weights cannot be quantized in blocks of this size", found=block_size,
                               expected=f"one of {', '.join(map(str, BLOCK_SIZES))}")
        self.model = ONNXModel(onnx.load(os.fspath(model)) if isinstance(model, str | Path) else model)
        self.quant_type = quant_type
        self.block_size = block_size
        self.nodes_to_exclude = set(nodes_to_exclude or ())

    def bnb4_block_quant(self, fpweight: Any) -> tuple[np.ndarray, np.ndarray]:
        """(bytes, scales) of a weight (K, N): two codes in a byte, the first one highest, of the flattened
        transpose; its blocks' largest magnitudes in the weight's type. Raises: InvalidValue for no matrix of
        floats."""
        weight = np.asarray(fpweight)
        if weight.ndim != 2 or weight.dtype.name not in FLOATS.values():
            raise InvalidValue("no weight of a MatMul", found=f"{weight.dtype.name} {weight.shape}",
                               expected="a matrix of float, float16 or bfloat16")
        flat = weight.T.reshape(-1)
        blocks = -(-flat.size // self.block_size)
        scales = np.empty(blocks, weight.dtype)
        codes = np.tile(self._codes(np.zeros(1, np.float32)), flat.size + flat.size % 2)
        step = max(1, _PIECE // self.block_size)
        for first in range(0, blocks, step):
            held = slice(first * self.block_size, (first + step) * self.block_size)
            piece = flat[held].astype(np.float32)
            values = np.pad(piece, (0, -piece.size % self.block_size)).reshape(-1, self.block_size)
            largest = np.abs(values).max(1, keepdims=True)
            scales[first:first + step] = largest[:, 0]
            factor = np.divide(np.float32(1), largest, out=np.zeros_like(largest), where=largest > 0)
            codes[held.start:held.start + piece.size] = (
                self._codes(values * factor).reshape(-1)[:piece.size])
        return codes[::2] << np.uint8(4) | codes[1::2], scales

    def _codes(self, values: np.ndarray) -> np.ndarray:
        """The nearest codes of values from -1 to 1."""
        if self.quant_type == self.FP4:
            return _FP4_CODES[_above(np.abs(values), _FP4)] | (values < 0).view(np.uint8) << np.uint8(3)
        return _above(values, _NF4)

    def process(self) -> None:
        """Quantize `model` in place. Raises: InvalidValue for weights that cannot be quantized, and for a
        model that has none but was quantized before; it is as it was then."""
        nodes = list(each_node(self.model.graph()))
        if not sum(self._chosen(node) and matrix(node, path) is not None for node, path in nodes):
            done = next((node for node, _ in nodes if node.op_type in QUANTIZED), None)
            if done is not None:
                raise InvalidValue("the model is quantized already", node=done.name or done.op_type,
                                   found=done.op_type, expected="MatMul with a constant float weight",
                                   cure="quantize the float model")
            logger.warning("no MatMul has a constant weight that can be quantized")
        rewrite(self.model.graph(), self._visit)
        self.model.clean_initializers()
        self.model.set_opset_import(ms_domain, 1)

    def _chosen(self, node: NodeProto) -> bool:
        return (node.op_type == "MatMul" and node.domain in ("", onnx_domain)
                and node.name not in self.nodes_to_exclude)

    def _visit(self, node: NodeProto, path: list[GraphProto]) -> list[NodeProto]:
        weight = matrix(node, path) if self._chosen(node) else None
        if weight is None:
            return [node]
        codes, scales = self.bnb4_block_quant(weight.values)
        tensors = (float_tensor(codes, f"{weight.name}_Bnb4"), float_tensor(scales, f"{weight.name}_absmax"))
        inputs = [node.input[0], *(add_tensor(weight.graph, tensor) for tensor in tensors)]
        rows, columns = weight.values.shape
        return [onnx.helper.make_node("MatMulBnb4", inputs, [node.output[0]],
                                      node.name and f"{node.name}_Bnb4", domain=ms_domain, K=rows, N=columns,
                                      block_size=self.block_size, quant_type=self.quant_type)]


def _above(values: np.ndarray, limits: Sequence[float]) -> np.ndarray:
    """How many of the limits each value is above."""
    count = np.zeros(values.shape, np.uint8)
    for limit in limits:
        count += values > np.float32(limit)
    return count


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line's values."""
    parser = argparse.ArgumentParser(
        prog="python -m orthrus.quantization.matmul_bnb4_quantizer",
        description="Quantize the constant weights of MatMul to floats of 4 bits, in blocks.")
    add = parser.add_argument
    add("--input_model", required=True, help="the model to read")
    add("--output_model", required=True, help="where to write it; weights go to a file beside it")
    add("--quant_type", type=int, default=1, choices=[MatMulBnb4Quantizer.FP4, MatMulBnb4Quantizer.NF4],
        help="0: FP4, 1: NF4 (default: 1)")
    add("--block_size", type=int, default=64, help="values that share a scale (default: 64)")
    add("-v", "--verbose", action="store_true", help="log what is done")
    add("--nodes_to_exclude", nargs="+", default=[], metavar="NODE", help="nodes that stay as they are")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """The command line. Returns the exit code: 1 where the model, an option or a file is at fault."""
    args = parse_args(argv)
    return written(args, logger, lambda: MatMulBnb4Quantizer(
        args.input_model, args.quant_type, args.block_size, args.nodes_to_exclude))


if __name__ == "__main__":
    sys.exit(main())
