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
from .weights.float4 import in_float4
from .weights.nodes import QUANTIZED, add_tensor, each_node, float_tensor, matrix, rewrite

__all__ = ["MatMulBnb4Quantizer", "main", "parse_args"]

logger = logging.getLogger(__name__)


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
        return in_float4(weight.T.reshape(-1), self.block_size, nf4=self.quant_type == self.NF4)

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
