"""Fourier transforms: real signals [..., 1] or complex ones [..., 2] in, spectra of the same kind and type
out.

A transform is computed in the signal's own precision, half in float32, by numpy's FFT, whose error grows with
the logarithm of the length only.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ...limits import HARMLESS, bounded, reserve
from ..define import define


def _scalar(value: np.ndarray, name: str) -> int:
    if value.size != 1:
        raise ValueError(f"{name} has to be a scalar, found shape {value.shape}")
    return int(value.reshape(()))


def _is_complex(x: np.ndarray) -> bool:
    if x.ndim < 2 or x.shape[-1] not in (1, 2):
        raise ValueError(f"the last dimension of a signal is 1 (real) or 2 (complex), found shape {x.shape}")
    return x.shape[-1] == 2


def _joined(x: np.ndarray) -> np.ndarray:
    """A signal [..., 1 or 2] as a real or complex array without the last dimension."""
    if not _is_complex(x):
        return x[..., 0]
    return np.ascontiguousarray(x).view(np.complex128 if x.dtype == np.float64 else np.complex64)[..., 0]


def _parted(y: np.ndarray, dtype: Any) -> np.ndarray:
    """A complex array as [..., 2], a real one as [..., 1]."""
    wide = y[..., None]
    if y.dtype.kind == "c":
        wide = np.ascontiguousarray(wide).view(np.float64 if y.dtype == np.complex128 else np.float32)
    return wide.astype(dtype, copy=False)


def dft(x: np.ndarray, length: int | None, axis: int, inverse: int, onesided: int) -> np.ndarray:
    """The discrete Fourier transform of a signal [..., 1 or 2] along `axis`; see ONNX's DFT for the four
    variants."""
    if not -x.ndim <= axis < x.ndim or axis in (-1, x.ndim - 1):
        raise ValueError(f"axis {axis} is no signal dimension of a tensor of rank {x.ndim}")
    axis %= x.ndim
    signal = _joined(x)
    y: np.ndarray
    compact = bool(onesided and inverse)
    if compact and signal.dtype.kind != "c":
        raise ValueError("a one-sided inverse transform takes a complex signal, found a last dimension of 1")
    n = x.shape[axis] if length is None else length
    if length is None and compact:
        n = 2 * (n - 1)
    if n < 1:
        raise ValueError(f"the length of a Fourier transform has to be positive, found {n}")
    shape = (*x.shape[:axis], n, *x.shape[axis + 1:-1])
    if 3 * 16 * math.prod(shape) > HARMLESS:
        reserve(3 * 16 * math.prod(bounded(shape, np.dtype(np.complex128))))
    if compact:
        y = np.fft.irfft(signal, n, axis)
    elif onesided and signal.dtype.kind != "c":
        y = np.fft.rfft(signal, n, axis)
    else:
        y = (np.fft.ifft if inverse else np.fft.fft)(signal, n, axis)
        if onesided:
            y = y[(slice(None),) * axis + (slice(n // 2 + 1),)]
    return _parted(y, x.dtype)


@define(widen=True, since=20)
def DFT(x, dft_length=None, axis=None, *, inverse: int = 0, onesided: int = 0):
    """The discrete Fourier transform along `axis`"""
    return dft(x, None if dft_length is None else _scalar(dft_length, "dft_length"),
               -2 if axis is None else _scalar(axis, "axis"), inverse, onesided)


@define(widen=True)
def DFT_17(x, dft_length=None, *, axis: int = 1, inverse: int = 0, onesided: int = 0):
    """The discrete Fourier transform along `axis`"""
    return dft(x, None if dft_length is None else _scalar(dft_length, "dft_length"), axis, inverse, onesided)


@define(widen=True, since=17)
def STFT(signal, frame_step, window=None, frame_length=None, *, onesided: int = 1):
    """The Fourier transforms of the windows that slide over a signal, [batch, frames, bins, 2]"""
    x = _joined(signal if signal.ndim == 3 else signal[..., None])
    if x.ndim != 2:
        raise ValueError(f"STFT takes a signal [batch, length, 1 or 2], found shape {signal.shape}")
    step = _scalar(frame_step, "frame_step")
    size = _scalar(frame_length, "frame_length") if frame_length is not None else (
        x.shape[1] if window is None else window.size)
    if step < 1 or not 1 <= size <= x.shape[1]:
        raise ValueError(f"frame_step {step} and frame_length {size} do not fit a signal of length"
                         f" {x.shape[1]}")
    if window is not None and window.shape != (size,):
        raise ValueError(f"a window of shape {window.shape} does not fit frame_length {size}")
    if onesided and x.dtype.kind == "c":
        raise ValueError("a one-sided STFT takes a real signal, found a complex one")
    shape = bounded((x.shape[0], (x.shape[1] - size) // step + 1, size, 2), x.dtype)[:3]
    x = np.ascontiguousarray(x)
    frames = np.ndarray(shape, x.dtype, x.data, 0, (x.strides[0], step * x.itemsize, x.itemsize))
    if window is not None:
        frames = frames * window
    return _parted((np.fft.rfft if onesided else np.fft.fft)(frames, axis=-1), signal.dtype)
