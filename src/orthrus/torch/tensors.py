"""Tensors as arrays and back, over the same memory.

In: a tensor on the host. Out: an array of the matching type whose memory is the tensor's, or that of a
contiguous copy; and the other way. An array keeps its tensor's memory alive, a tensor its array's.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import torch

from ..errors import InvalidArgument

_CARRIERS = {torch.bfloat16: (torch.int16, ml_dtypes.bfloat16),
             torch.float8_e4m3fn: (torch.uint8, ml_dtypes.float8_e4m3fn),
             torch.float8_e4m3fnuz: (torch.uint8, ml_dtypes.float8_e4m3fnuz),
             torch.float8_e5m2: (torch.uint8, ml_dtypes.float8_e5m2),
             torch.float8_e5m2fnuz: (torch.uint8, ml_dtypes.float8_e5m2fnuz),
             torch.float8_e8m0fnu: (torch.uint8, ml_dtypes.float8_e8m0fnu)}
"""Types that numpy lacks: the integers torch and numpy both have of that size, and numpy's extension type."""
_TENSOR_OF = {np.dtype(kind): (carrier, dtype) for dtype, (carrier, kind) in _CARRIERS.items()}


def array_of(tensor: Any, name: str = "tensor") -> np.ndarray:
    """`tensor` as an array over its memory, or over a contiguous copy of it.

    Raises InvalidArgument for no tensor, for one that is not dense in the host's memory, and for one that
    requires a gradient while gradients are recorded, which would be lost.
    """
    try:
        if tensor.is_contiguous() and tensor.dtype not in _CARRIERS:
            return tensor.numpy()
    except (AttributeError, RuntimeError, TypeError):
        _check(tensor, name)
    _check(tensor, name)
    plain = tensor.detach().resolve_conj().resolve_neg().contiguous()
    if plain.dtype in _CARRIERS:
        carrier, kind = _CARRIERS[plain.dtype]
        return plain.view(carrier).numpy().view(kind)
    return plain.numpy()


def _check(tensor: Any, name: str) -> None:
    if not isinstance(tensor, torch.Tensor):
        raise InvalidArgument(f"the argument {name} is no tensor", found=type(tensor).__name__,
                              expected="a torch.Tensor, as in the example inputs",
                              cure="pass torch.as_tensor(value)")
    if tensor.device.type != "cpu" or tensor.layout is not torch.strided or tensor.is_quantized:
        raise InvalidArgument(f"the tensor {name} does not lie densely in the host's memory",
                              found=f"{tensor.dtype} on {tensor.device}, {tensor.layout}",
                              expected="a dense tensor on the device cpu",
                              cure="pass tensor.cpu().to_dense()")
    if tensor.requires_grad and torch.is_grad_enabled():
        raise InvalidArgument(f"the tensor {name} requires a gradient, and none comes from here",
                              found="requires_grad=True while gradients are recorded",
                              cure="call under torch.no_grad(), or pass tensor.detach()")


def tensor_of(array: np.ndarray) -> Any:
    """`array`, which is contiguous and writable, as a tensor over its memory."""
    carried = _TENSOR_OF.get(array.dtype)
    if carried is None:
        return torch.from_numpy(array)
    carrier, dtype = carried
    return torch.from_numpy(array.view(np.int16 if carrier is torch.int16 else np.uint8)).view(dtype)

