"""Weights for CUDA's kernels: the bytes that onnxruntime's tool makes, which runs on a stand-in for torch."""

from __future__ import annotations

import types
from typing import Any

import numpy as np
import pytest

from orthrus.errors import InvalidArgument
from orthrus.quantization import CudaQuantizer

RNG = np.random.default_rng(5)


class Tensor(np.ndarray):
    """An array with the methods of torch's tensors that onnxruntime's tool calls."""

    def detach(self) -> Any:
        return self

    cpu = contiguous = detach

    def numpy(self) -> Any:
        return np.asarray(self)

    def to(self, kind: Any) -> Any:
        return self if isinstance(kind, str) else self.astype(kind)

    def dim(self) -> int:
        return self.ndim

    def unsqueeze(self, axis: int) -> Any:
        return np.expand_dims(self, axis)

    def permute(self, *axes: int) -> Any:
        return np.transpose(self, axes)

    def transpose(self, a: int, b: int) -> Any:
        return np.swapaxes(self, a, b)

    def abs(self) -> Any:
        return np.abs(self)

    def amax(self, dim: int, keepdim: bool) -> Any:
        return self.max(axis=dim, keepdims=keepdim)

    def view(self, *what: Any) -> Any:
        if isinstance(what[0], int | tuple):
            return self.reshape(*what)
        return np.ndarray.view(self.copy("C"), what[0])


def tensor(array: Any) -> Any:
    return np.ndarray.view(np.asarray(array), Tensor)


TORCH = types.SimpleNamespace(
    float32=np.float32, int8=np.int8, uint8=np.uint8, int16=np.int16, int64=np.int64, finfo=np.finfo,
    cuda=types.SimpleNamespace(is_available=lambda: False), device=lambda name: name, round=np.rint,
    clamp=lambda x, min=None, max=None: np.clip(x, min, max), abs=np.abs,
    max=lambda x, dim: (x.max(axis=dim),), as_tensor=tensor, from_numpy=tensor,
    cat=lambda parts, dim: tensor(np.concatenate(parts, dim)),
    zeros=lambda shape, dtype, device: tensor(np.zeros(shape, dtype)),
    empty=lambda shape, dtype, device: tensor(np.empty(shape, dtype)))


CALLS: dict[str, list[tuple[tuple[int, ...], tuple[Any, ...], dict[str, Any]]]] = {
    "qmoe_symmetric_per_channel_quantize": [((6, 10), (bits,), {"unsigned_full_range": full})
                                            for bits in (4, 8) for full in (True, False)],
    "qmoe_per_channel_quantize": [((32, 128), (bits, prepack, arch), {})
                                  for bits in (4, 8) for prepack in (True, False) for arch in (80, 90)],
    "matmulnbits_blockwise_quantize": [
        ((6, depth), (bits, 16), {"symmetric": symmetric, "return_zero_points": True,
                                  "flatten_qweight": depth == 48, "unsigned_full_range": depth == 48})
        for bits in (4, 8) for symmetric in (True, False) for depth in (48, 40)],
    "matmulnbits_prepacked_blockwise_quantize": [
        ((32, 128), (bits, 64, arch), {"symmetric": symmetric, "return_zero_points": symmetric})
        for bits in (4, 8) for symmetric in (True, False) for arch in (80, 90)],
    "qmoe_prepacked_blockwise_quantize": [((48, 192), (bits, 32, arch), {})
                                          for bits in (4, 8) for arch in (80, 90)],
    "symmetric_blockwise_quantize": [((2, 3, length), (bits, 8), {"unsigned_full_range": length == 20})
                                     for bits in (4, 8) for length in (16, 20)],
}


@pytest.mark.parametrize("name", CALLS)
def test_the_bytes_are_theirs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = pytest.importorskip("onnxruntime.quantization.cuda_quantizer")
    monkeypatch.setattr(theirs, "_get_torch", lambda: TORCH)
    for shape, given, more in CALLS[name]:
        weights = RNG.normal(size=shape).astype(np.float32)
        weights[0] = 0
        found = getattr(CudaQuantizer, name)(weights, *given, **more)
        expected = getattr(theirs.CudaQuantizer, name)(tensor(weights), *given, **more)
        assert len(found) == len(expected)
        for ours, peer in zip(found, expected, strict=True):
            assert ours.dtype == peer.dtype and ours.shape == peer.shape, (shape, given, more)
            np.testing.assert_array_equal(ours, peer, err_msg=str((shape, given, more)))


@pytest.mark.parametrize(("name", "shape", "given"), [
    ("qmoe_symmetric_per_channel_quantize", (4, 7), (4,)),
    ("qmoe_symmetric_per_channel_quantize", (4, 8), (2,)),
    ("qmoe_per_channel_quantize", (16, 64), (4, True, 75)),
    ("qmoe_per_channel_quantize", (16, 40), (4, True)),
    ("matmulnbits_blockwise_quantize", (4, 8), (4, 0)),
    ("matmulnbits_blockwise_quantize", (4, 8, 2), (4, 16)),
    ("matmulnbits_prepacked_blockwise_quantize", (16, 64), (4, 16)),
    ("matmulnbits_prepacked_blockwise_quantize", (16, 64), (4, 32, 90)),
    ("qmoe_prepacked_blockwise_quantize", (16, 70), (4, 32)), ("symmetric_blockwise_quantize", (4,), (3, 2))])
def test_what_the_kernels_do_not_have_is_a_typed_error(name: str, shape: Any, given: Any) -> None:
    with pytest.raises(ValueError) as error:
        getattr(CudaQuantizer, name)(np.zeros(shape, np.float32), *given)
    assert isinstance(error.value, InvalidArgument)
