"""What follows an export: the file optimized for its type of network, and with fewer bits.

In: a model file. Out: another; the first stays. Weights that lie apart, lie apart again.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from typing import Any

from ..measure.benchmark_helper import Precision
from . import exporting

BLOCK = 32
"""Weights that share a scale, of 4 bits."""


def optimize(path: str, output: str, model_type: str, num_heads: int, hidden_size: int,
             half: bool = False, external: bool = False, options: Any = None, use_gpu: bool = False,
             **more: Any) -> Any:
    """Write the model as the optimizer for its type makes it; with `half` of half floats, `more` being what
    `convert_float_to_float16` takes. Answers the optimizer's model."""
    from ..optimizer import optimize_model

    model = optimize_model(path, model_type, num_heads=num_heads, hidden_size=hidden_size,
                           optimization_options=options, use_gpu=use_gpu, opt_level=0)
    if half:
        model.convert_float_to_float16(**{"keep_io_types": True, **more})
    os.makedirs(os.path.dirname(os.path.abspath(output)), exist_ok=True)
    model.save_model_to_file(output, external)
    return model


def convert(path: str, output: str, precision: Precision, external: bool = False,
            io_block_list: Sequence[str] | bool = True, op_block_list: Sequence[str] | None = None,
            node_block_list: Sequence[str] | None = None, block_size: int = BLOCK, symmetric: bool = True,
            accuracy_level: int | None = None, **more: Any) -> None:
    """Write the model with half floats, 8-bit or 4-bit weights; as it is for FLOAT32. `io_block_list`: the
    inputs and outputs that stay float32, all of them with True. Other arguments are those of
    `convert_float_to_float16` and of `MatMulNBitsQuantizer`."""
    import onnx

    folder = os.path.dirname(os.path.abspath(output))
    os.makedirs(folder, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".convert-") as beside:
        file = os.path.join(beside, "model.onnx")
        if precision is Precision.FLOAT16:
            from ..float16 import convert_float_to_float16

            keep = io_block_list if isinstance(io_block_list, bool) else list(io_block_list)
            made = convert_float_to_float16(onnx.load(path), keep_io_types=keep,
                                            op_block_list=op_block_list, node_block_list=node_block_list,
                                            **more)
            onnx.save_model(made, file, save_as_external_data=external, location="model.onnx.data")
        elif precision is Precision.INT8:
            from ...quantization import quantize_dynamic

            quantize_dynamic(path, file, use_external_data_format=external,
                             extra_options={"DefaultTensorType": 1})
        elif precision is Precision.INT4:
            from ...quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

            quantizer = MatMulNBitsQuantizer(onnx.load(path), block_size=block_size, is_symmetric=symmetric,
                                             accuracy_level=accuracy_level)
            quantizer.process()
            quantizer.model.save_model_to_file(file, external)
        else:
            file = path
        exporting.save(file, output, external)
