"""The names that MatMul on weights of 4 bits had before there were other widths: a model goes in, the same
model on codes comes out. The invariant: nothing is done here that `matmul_nbits_quantizer` does not do."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

from onnx import ModelProto

from .matmul_nbits_quantizer import (
    DefaultWeightOnlyQuantConfig,
    DefaultWeightOnlyQuantizer,
    GPTQWeightOnlyQuantConfig,
    HQQWeightOnlyQuantConfig,
    HQQWeightOnlyQuantizer,
    MatMulNBitsQuantizer,
    RTNWeightOnlyQuantConfig,
    WeightOnlyQuantConfig,
    get_initializer,
    main,
    parse_args,
)
from .quant_utils import QuantFormat

__all__ = ["DefaultWeightOnlyQuantConfig", "DefaultWeightOnlyQuantizer", "GPTQWeightOnlyQuantConfig",
           "HQQWeightOnlyQuantConfig", "HQQWeightOnlyQuantizer", "MatMul4BitsQuantizer",
           "RTNWeightOnlyQuantConfig", "WeightOnlyQuantConfig", "get_initializer", "main", "parse_args"]


class MatMul4BitsQuantizer(MatMulNBitsQuantizer):
    """`MatMulNBitsQuantizer` with 4 bits, and without their parameter."""

    def __init__(self, model: ModelProto | str | Path, block_size: int = 128, is_symmetric: bool = False,
                 accuracy_level: int | None = None, nodes_to_exclude: Iterable[str] | None = None,
                 nodes_to_include: list[str] | None = None,
                 quant_format: QuantFormat = QuantFormat.QOperator,
                 op_types_to_quantize: tuple[str, ...] | None = None,
                 quant_axes: tuple[tuple[str, int], ...] | None = None,
                 algo_config: WeightOnlyQuantConfig | None = None) -> None:
        super().__init__(model, 4, block_size, is_symmetric, accuracy_level, nodes_to_exclude,
                         nodes_to_include, quant_format, op_types_to_quantize, quant_axes,
                         algo_config=algo_config)


if __name__ == "__main__":
    sys.exit(main())
