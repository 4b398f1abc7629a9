"""PyTorch's functions as operators of com.microsoft, for the exporter by TorchScript.

In: `register()` before `torch.onnx.export(..., dynamo=False)`. Out: models in which an inverse of a matrix, a
gelu, a triangle before opset 14, a grid sampler before opset 16 and the functions `onnxruntime::UnfoldTensor`
and `onnxruntime::DynamicTimeWarping` are a node each. `unregister()` leaves the exporter as it was. Names are
those of `onnxruntime.tools.pytorch_export_contrib_ops`. Needs torch.
"""

from __future__ import annotations

from typing import Any

try:
    from torch.onnx import (
        register_custom_op_symbolic,
        symbolic_helper,
        symbolic_opset9,
        unregister_custom_op_symbolic,
    )
except ModuleNotFoundError as error:
    raise ModuleNotFoundError("This module is only useful in combination with PyTorch. Install it: "
                              "pip install orthrus-runtime[torch]", name=error.name) from error

_MODES = ("bilinear", "nearest", "bicubic")
_PADDINGS = ("zeros", "border", "reflection")


def _inverse(graph: Any, x: Any) -> Any:
    return graph.op("com.microsoft::Inverse", x).setType(x.type())


def _gelu(graph: Any, x: Any, approximate: str = "none") -> Any:
    if approximate != "none":
        return symbolic_opset9.gelu(graph, x, approximate)
    return graph.op("com.microsoft::Gelu", x).setType(x.type())


def _tril(graph: Any, x: Any, diagonal: Any) -> Any:
    return _triangle(graph, x, diagonal, upper=0)


def _triu(graph: Any, x: Any, diagonal: Any) -> Any:
    return _triangle(graph, x, diagonal, upper=1)


def _triangle(graph: Any, x: Any, diagonal: Any, upper: int) -> Any:
    return graph.op("com.microsoft::Trilu", x, diagonal, upper_i=upper).setType(x.type())


def _grid_sampler(graph: Any, x: Any, grid: Any, mode: int, padding: int, align_corners: bool) -> Any:
    return graph.op("com.microsoft::GridSample", x, grid, mode_s=_MODES[mode],
                    padding_mode_s=_PADDINGS[padding], align_corners_i=int(align_corners))


def _unfold(graph: Any, x: Any, dim: int, size: int, step: int) -> Any:
    made = graph.op("com.microsoft::UnfoldTensor", x, dim_i=dim, size_i=size, step_i=step)
    sizes = x.type().varyingSizes()
    if sizes is None:
        return made
    length = sizes[dim]
    sizes[dim] = None if length is None else (length - size) // step + 1
    return made.setType(x.type().with_sizes([*sizes, size]))


def _time_warping(graph: Any, x: Any) -> Any:
    return graph.op("com.microsoft::DynamicTimeWarping", x)


_FUNCTIONS = (
    ("aten::inverse", _inverse, ("v",), (1,)),
    ("aten::linalg_inv", _inverse, ("v",), (1,)),
    ("aten::gelu", _gelu, ("v", "s"), (1, 9, 20)),
    ("aten::tril", _tril, ("v", "v"), (1,)),
    ("aten::triu", _triu, ("v", "v"), (1,)),
    ("aten::grid_sampler", _grid_sampler, ("v", "v", "i", "i", "b"), (1,)),
    ("onnxruntime::UnfoldTensor", _unfold, ("v", "i", "i", "i"), (1,)),
    ("onnxruntime::DynamicTimeWarping", _time_warping, ("v",), (1,)),
)
"""Each function of torch, what writes it, the exporter's kinds of its arguments, and the opsets to register
it for, each of which holds up to the next that the exporter has a writer of its own for."""
_registered = set[tuple[str, int]]()


def register() -> None:
    """Have `torch.onnx.export(..., dynamo=False)` write operators of com.microsoft from here on."""
    for name, write, arguments, opsets in _FUNCTIONS:
        for opset in opsets:
            register_custom_op_symbolic(name, symbolic_helper.parse_args(*arguments)(write), opset)
            _registered.add((name, opset))


def unregister() -> None:
    """Undo `register()`; nothing happens where that was not called."""
    while _registered:
        unregister_custom_op_symbolic(*_registered.pop())
