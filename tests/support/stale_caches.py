"""Attention over caches with room behind their rows: what lies there is nobody's.

In: a form, a type of numbers, and what fills the room. Out: a model and its feeds.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gpu_models import numpy_type, of_arrays

MS = "com.microsoft::"
HEADS, SHARED, SIZE = 4, 2, 16

FORMS: dict[str, tuple[int, list[int], int, dict[str, Any]]] = {
    "one token": (1, [7, 5], 12, {}),
    "one token, long caches": (1, [3, 250, 40], 300, {"do_rotary": 1}),
    "sinks and a window": (1, [7, 12], 12, {"local_window_size": 4, "smooth_softmax": 1}),
    "three tokens": (3, [7, 12], 16, {}),
    "many tokens": (40, [50, 130], 131, {"do_rotary": 1}),
    "capped": (5, [6, 33, 64], 64, {"softcap": 5.0}),
}
"""New tokens, rows of each batch entry with them, capacity, attributes of GroupQueryAttention."""


def grouped(form: str, dtype: str, room: float) -> tuple[bytes, dict[str, np.ndarray]]:
    """GroupQueryAttention over caches behind whose rows all is `room`."""
    length, ends, capacity, attrs = FORMS[form]
    rng, batch = np.random.default_rng(len(form)), len(ends)

    def made(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape).astype(numpy_type(dtype))
    past = [made(batch, SHARED, capacity, SIZE) for _ in range(2)]
    for cache in past:
        for entry, end in enumerate(ends):
            cache[entry, :, end - length:] = room
    angles = [made(capacity, SIZE // 2) for _ in range(2)] if attrs.get("do_rotary") else [None, None]
    return of_arrays(MS + "GroupQueryAttention", {
        "q": made(batch, length, HEADS * SIZE), "k": made(batch, length, SHARED * SIZE),
        "v": made(batch, length, SHARED * SIZE), "pk": past[0], "pv": past[1],
        "ends": np.array(ends, np.int32) - 1, "total": np.array(max(ends), np.int32), "cos": angles[0],
        "sin": angles[1]}, 3, ("total",), num_heads=HEADS, kv_num_heads=SHARED, **attrs)


def one_token(room: float) -> tuple[bytes, dict[str, np.ndarray]]:
    """DecoderMaskedMultiHeadAttention over shared buffers of which 8 rows of 40 are taken."""
    rng = np.random.default_rng(5)
    shapes = {**dict.fromkeys("qkv", (2, 1, 32)), "m": None, "a": None,
              **dict.fromkeys(("pk", "pv"), (2, 4, 40, 8))}
    given: dict[str, Any] = {name: None if shape is None else rng.standard_normal(shape).astype(np.float32)
                             for name, shape in shapes.items()}
    for name in ("pk", "pv"):
        given[name][:, :, 7:] = room
    return of_arrays(MS + "DecoderMaskedMultiHeadAttention", {**given, "length": np.array([7], np.int32)}, 3,
                     num_heads=4, past_present_share_buffer=1)


def sparse(room: float) -> tuple[bytes, dict[str, np.ndarray]]:
    """SparseAttention, one token of two sequences of 9 and 25."""
    rng, seen = np.random.default_rng(6), np.array([[0, 1, 3]], np.int32)
    given = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in {
        "q": (2, 1, 64), **dict.fromkeys("kv", (2, 1, 32)),
        **dict.fromkeys(("pk", "pv"), (2, 2, 32, 16))}.items()}
    for name in ("pk", "pv"):
        given[name][0, :, 8:], given[name][1, :, 24:] = room, room
    return of_arrays(MS + "SparseAttention", {
        **given, "rows": seen, "columns": np.array([[0, 0, 1]], np.int32), "total": np.array([25], np.int32),
        "ends": np.array([9, 25], np.int32)}, 3, ("total", "rows", "columns"), num_heads=4, kv_num_heads=2,
        sparse_block_size=16)


CASES: dict[str, Any] = {
    **{f"grouped, {form}, {dtype}": (lambda room, f=form, d=dtype: grouped(f, d, room))
       for form in FORMS for dtype in ("float32", "float16")},
    "one token over its buffers": one_token, "blocks": sparse}
"""Models and feeds, by what fills the room."""
