"""Attention kernels against numpy in float64 and against the definitions, over shapes, layouts, masks and
limits."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from draws import draws
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

import native
import orthrus
from orthrus.codegen.kernels.attention import plan as planning
from orthrus.codegen.kernels.attention.few import append_rows
from orthrus.codegen.kernels.attention.parts import AttentionForm, Empty
from orthrus.codegen.kernels.attention.plan import arguments, plan
from orthrus.codegen.kernels.attention.rotary import turn
from orthrus.codegen.machines.detect import host
from orthrus.codegen.machines.machine import AVX2, NEON, RVV256, SSE2
from orthrus.codegen.object.build import assemble
from orthrus.lowering.lower import Lowering
from orthrus.ops.nn.attention import rotate

FAR = 1 << 40


def strides(x: np.ndarray) -> tuple[int, ...]:
    """Of a view (batch, heads, positions, size): the first three, in elements."""
    assert x.shape[3] <= 1 or x.strides[3] == x.itemsize
    return tuple(s // x.itemsize for s in x.strides[:3])


def laid(rng: np.random.Generator, batch: int, heads: int, length: int, size: int, packed: bool,
         dtype: Any = np.float32) -> np.ndarray:
    """Numbers as (batch, heads, length, size), the memory being (batch, length, heads, size) where
    `packed`."""
    if packed:
        return native.guarded(rng.standard_normal((batch, length, heads, size)).astype(dtype)).transpose(0, 2,
                                                                                                         1, 3)
    return native.guarded(rng.standard_normal((batch, heads, length, size)).astype(dtype))


def expected(q: np.ndarray, k: np.ndarray, v: np.ndarray, scale: float, bias: np.ndarray | None = None,
             seen: np.ndarray | None = None, cap: float = 0.0, sink: np.ndarray | None = None) -> np.ndarray:
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat(group, 1), v.repeat(group, 1)
    s = q @ k.swapaxes(2, 3) * scale
    if cap:
        s = cap * np.tanh(s / cap)
    if bias is not None:
        s = s + bias
    if seen is not None:
        s = np.where(seen, s, -np.inf)
    top = s.max(-1, keepdims=True)
    if sink is not None:
        top = np.maximum(top, sink[None, :, None, None])
    top = np.where(np.isfinite(top), top, 0)
    e = np.exp(s - top)
    total = e.sum(-1, keepdims=True)
    if sink is not None:
        total = total + np.exp(sink[None, :, None, None] - top)
    return e / np.where(total == 0, 1, total) @ v


def attend(q: np.ndarray, k: np.ndarray, v: np.ndarray, *, scale: float = 0.3, mask: np.ndarray | None = None,
           window: tuple[int, int, int] | None = None, ends: np.ndarray | None = None, ends_add: int = 0,
           trailing: bool = False, cap: float = 0.0, sink: np.ndarray | None = None, packed_out: bool = True,
           machine: Any = None, threads: int = 1, splits: bool = False,
           past: tuple[np.ndarray, np.ndarray] | None = None, keep: np.ndarray | None = None,
           empty: Empty = "zero") -> Any:
    """Run the planned kernel; `past` are earlier keys and values, and then the caches come back too."""
    batch, heads, length, size = q.shape
    kv_heads, value_size = k.shape[1], v.shape[3]
    held = past[0].shape[2] if past else 0
    total = k.shape[2] + held
    form = AttentionForm(q.dtype.name, size, value_size,
                None if mask is None else mask.strides[3] // mask.itemsize if total > 1 else 0,
                window is not None or ends is not None, "" if ends is None else ends.dtype.name, trailing,
                cap != 0, sink is not None, keep is not None, empty)
    made = plan(machine or host(), form, batch, heads, kv_heads, length, total, threads, past is not None)
    out = np.full((batch, length, heads, value_size) if packed_out else (batch, heads, length, value_size), 7,
                  q.dtype)
    out = native.guarded(out)
    view = out.transpose(0, 2, 1, 3) if packed_out else out
    cache, present = None, []
    if past is not None:
        present = [native.guarded(np.zeros((batch, kv_heads, total, n), q.dtype)) for n in (size, value_size)]
        cache = ([*past, *present], [strides(x) for x in (*past, *present)], held)
    given_ = [0 if x is None else x for x in (mask, ends, sink, keep)]
    args = arguments(made, [q, k, v, out, *given_],
                     [*(strides(x) for x in (q, k, v, view)),
                      *((0, 0, 0) if x is None else strides_of(x) for x in (mask, keep))],
                     kv_heads, heads // kv_heads, length, total, window or (0, FAR, FAR), ends_add, scale,
                     cap, cache)
    native.run(made.spec, *args, items=made.items, scratch=made.scratch, machine=machine,
               splits=tuple(range(1, made.items)) if splits else ())
    return (view, *present) if past is not None else view


def strides_of(mask: np.ndarray) -> tuple[int, ...]:
    return tuple(s // mask.itemsize for s in mask.strides[:3])


def limits(batch: int, length: int, total: int, shift: Any, left: int, right: int,
           ends: Any = None) -> np.ndarray:
    at = np.broadcast_to(np.asarray(shift), (batch,))[:, None, None, None] + np.arange(length)[:, None]
    keys = np.arange(total)
    seen = (keys >= at - left) & (keys <= at + right)
    return seen if ends is None else seen & (keys < np.asarray(ends)[:, None, None, None])


@draws(150)
@given(data=st.data())
def test_random_forms(data: Any) -> None:
    draw = data.draw
    rng = np.random.default_rng(draw(st.integers(0, 1 << 30)))
    batch, kv_heads, group = draw(st.integers(1, 3)), draw(st.integers(1,
                                                                       3)), draw(st.sampled_from((1, 1, 2,
                                                                                                  3)))
    length, total = draw(st.sampled_from((1, 2, 5, 14, 29, 61))), draw(st.sampled_from((1, 3, 16, 33, 64,
                                                                                        150)))
    size, value_size = draw(st.sampled_from(((64, 64), (8, 8), (80, 33), (5, 100), (32, 32))))
    heads = kv_heads * group
    q = laid(rng, batch, heads, length, size, draw(st.booleans()))
    k = laid(rng, batch, kv_heads, total, size, draw(st.booleans()))
    v = laid(rng, batch, kv_heads, total, value_size, draw(st.booleans()))
    mask, window, cap, sink, seen = None, None, 0.0, None, None
    kind = draw(st.sampled_from(("plain", "mask", "causal", "window", "cap", "sink")))
    if kind == "mask":
        full = [batch, heads, length, total]
        shape = [1 if draw(st.booleans()) else n for n in full]
        values = rng.standard_normal(shape).astype(np.float32)
        values[rng.random(shape) < 0.3] = draw(st.sampled_from((-np.inf, np.finfo(np.float32).min, -20.0)))
        mask = np.broadcast_to(native.guarded(values), full)
    elif kind in ("causal", "window"):
        window = (total - length, FAR, 0) if kind == "causal" else (2, 7, 3)
        seen = limits(batch, length, total, *window)
    elif kind == "cap":
        cap = 2.0
    elif kind == "sink":
        sink = rng.standard_normal(heads).astype(np.float32)
    y = attend(q, k, v, mask=mask, window=window, cap=cap, sink=sink, packed_out=draw(st.booleans()),
               threads=draw(st.integers(1, 3)), splits=draw(st.booleans()))
    with np.errstate(over="ignore"):
        want = expected(q, k, v, 0.3, None if mask is None else mask.astype(np.float64), seen, cap, sink)
    np.testing.assert_allclose(y, want, rtol=2e-5, atol=4e-6)


@pytest.mark.parametrize("length, total", [(20, 2500), (3, 2500)])
def test_blocks_of_keys(length: int, total: int) -> None:
    """The softmax runs on over blocks; causal rows skip what they do not see."""
    rng = np.random.default_rng(0)
    q, k, v = laid(rng, 1, 2, length, 64, True), laid(rng, 1, 2, total, 64, True), laid(rng, 1, 2, total, 64,
                                                                                        False)
    q = q * 5
    q = np.ascontiguousarray(q)
    np.testing.assert_allclose(attend(q, k, v), expected(q, k, v, 0.3), rtol=2e-5, atol=2e-5)
    for shift in (0, 1000, total - length):
        seen = limits(1, length, total, shift, 1200, 0)
        np.testing.assert_allclose(attend(q, k, v, window=(shift, 1200, 0)),
                                   expected(q, k, v, 0.3, seen=seen),
                                   rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("length", [1, 18])
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_lengths_of_keys(length: int, dtype: Any) -> None:
    rng = np.random.default_rng(1)
    q, k, v = (laid(rng, 3, 2, n, 16, False) for n in (length, 70, 70))
    ends = np.array([70, 33, 0], dtype)
    y = attend(q, k, v, ends=ends, window=(0, FAR, FAR))
    np.testing.assert_allclose(y, expected(q, k, v, 0.3, seen=limits(3, length, 70, 0, FAR, FAR, ends)),
                               rtol=2e-5,
                               atol=1e-6)
    y = attend(q, k, v, ends=ends - 1, ends_add=1, trailing=True, window=(0, 9, 0))
    np.testing.assert_allclose(y, expected(q, k, v, 0.3, seen=limits(3, length, 70, ends - length, 9, 0,
                                                                     ends)),
                               rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("held, new", [(0, 1), (5, 1), (100, 1), (64, 3)])
@pytest.mark.parametrize("value_size", [64, 24])
def test_growing_cache(held: int, new: int, value_size: int) -> None:
    rng = np.random.default_rng(2)
    q, k = laid(rng, 2, 4, new, 64, True), laid(rng, 2, 2, new, 64, True)
    v, past = laid(rng, 2, 2, new, value_size, True), tuple(laid(rng, 2, 2, held, n, False)
                                                            for n in (64, value_size))
    y, keys, values = attend(q, k, v, past=past, window=(held, FAR, 0))
    np.testing.assert_array_equal(keys, np.concatenate((past[0], k), 2))
    np.testing.assert_array_equal(values, np.concatenate((past[1], v), 2))
    np.testing.assert_allclose(y, expected(q, keys, values, 0.3, seen=limits(2, new, held + new, held, FAR,
                                                                             0)),
                               rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_appended_rows(dtype: Any) -> None:
    rng = np.random.default_rng(3)
    past, new = laid(rng, 2, 3, 9, 20, False, dtype), laid(rng, 2, 3, 2, 20, True, dtype)
    out = native.guarded(np.full((2, 3, 12, 20), 7, dtype))
    ends = np.array([9, 4], np.int32)
    spec = append_rows(dtype=np.dtype(dtype).name, size=20, ends_type="int32", zeroed=True)
    status = np.zeros(1, np.int64)
    args = [past, new, out, ends, status, 3, 9, 2, 12, -1, *strides(past), *strides(new), *strides(out)]
    native.run(spec, *args, items=6)
    want = np.zeros_like(out)
    want[:, :, :9] = past
    for b, at in enumerate(ends - 1):
        want[b, :, at:at + 2] = new[b]
    np.testing.assert_array_equal(out, want)
    assert not status[0]
    ends[1] = 12
    native.run(spec, *args, items=6)
    assert status[0] == 1


@pytest.mark.parametrize("length", [1, 17])
def test_half_precision(length: int) -> None:
    rng = np.random.default_rng(4)
    q, k, v = (laid(rng, 2, 2, n, 40, True, np.float16) for n in (length, 50, 50))
    for machine in (None, AVX2):
        np.testing.assert_allclose(attend(q, k, v, machine=machine), expected(q, k, v, 0.3), rtol=2e-3,
                                   atol=2e-3)


@pytest.mark.parametrize("length", [1, 17])
def test_rows_without_keys_and_rare_numbers(length: int) -> None:
    """A row that sees nothing is zero; NaN stays in its row; a mask of the lowest number alone weighs
    evenly."""
    rng = np.random.default_rng(5)
    q, k, v = (laid(rng, 1, 2, n, 16, False) for n in (length, 40, 40))
    mask = np.zeros((1, 1, length, 40), np.float32)
    mask[0, 0, 0] = -np.inf
    y = attend(q, k, v, mask=np.broadcast_to(mask, (1, 2, length, 40)))
    assert not y[:, :, 0].any()
    mask[0, 0, 0] = np.finfo(np.float32).min
    y = attend(q, k, v, mask=np.broadcast_to(mask, (1, 2, length, 40)))
    np.testing.assert_allclose(y[:, :, 0], v.mean(2), atol=1e-6)
    q[0, 0, 0, 3] = np.nan
    y = attend(q, k, v)
    assert np.isnan(y[0, 0, 0]).all() and not np.isnan(y[0, 1]).any() and not np.isnan(y[0, 0, 1:]).any()


@pytest.mark.parametrize("machine", [AVX2, SSE2])
@pytest.mark.parametrize("length", [1, 23])
def test_other_x86(machine: Any, length: int) -> None:
    rng = np.random.default_rng(6)
    q, k, v = laid(rng, 1, 2, length, 24, True), laid(rng, 1, 1, 77, 24, True), laid(rng, 1, 1, 77, 12, False)
    np.testing.assert_allclose(attend(q, k, v, machine=machine), expected(q, k, v, 0.3), rtol=2e-5, atol=1e-6)
    seen = limits(1, length, 77, 30, 9, 0)
    np.testing.assert_allclose(attend(q, k, v, machine=machine, window=(30, 9, 0)),
                               expected(q, k, v, 0.3, seen=seen), rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("machine", [NEON, RVV256])
def test_assembles_elsewhere(machine: Any) -> None:
    for length in (1, 20):
        made = plan(machine, AttentionForm("float32", 64, 64, 1), 1, 2, 2, length, 90)
        assert assemble(made.spec.text(machine), machine)


def test_division_covers_every_tile() -> None:
    for heads, tiles, threads, most in [(1, 1, 8, 1), (12, 10, 2, 99), (1, 108, 4, 30), (3, 7, 16, 2)]:
        chunks = planning._chunks(heads, tiles, threads, most)
        assert -(-tiles // chunks) <= most and chunks <= tiles
    assert math.log2(planning.block_of(AVX2, 128)).is_integer()


@pytest.mark.parametrize("most", [3, 14])
def test_tiles_cover_every_query(most: int) -> None:
    """Each kernel beyond the first tile is the same, and no tile leaves the queries."""
    for length in range(1, 300):
        tiles, rows, tall = planning._tiling(most, length)
        assert rows == (length if length <= most else most)
        done = set[int]()
        for t in range(tiles):
            height = rows if t < tall else rows - 1
            start = min(t * rows - max(t - tall, 0), length - height)
            assert start >= 0
            done.update(range(start, start + height))
        assert done == set(range(length))


def test_a_new_length_needs_no_new_kernel() -> None:
    form = AttentionForm("float32", 64, 64, 1)
    specs = {plan(AVX2, form, 1, 12, 12, length, length).spec for length in range(15, 600)}
    assert len(specs) == 1


@pytest.mark.parametrize("machine", [None, AVX2, SSE2])
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("size, half", [(64, 32), (80, 40), (24, 5), (10, 5)])
def test_rotary(size: int, half: int, interleaved: bool, machine: Any) -> None:
    rng = np.random.default_rng(7)
    x = laid(rng, 2, 3, 4, size, True)
    cos, sin = (native.guarded(rng.standard_normal((9, half)).astype(np.float32)) for _ in range(2))
    at = np.array([[0, 8, 3, 3], [1, 2, 5, 4]], np.int64)
    out, status = native.guarded(np.zeros((2, 3, 4, size), np.float32)), np.zeros(1, np.int64)
    spec = turn(dtype="float32", size=size, half=half, interleaved=interleaved, positions_type="int64")
    args = [x, cos, sin, at, status, out, 0, half, 4, 1, 0, 0, 9, 3, 4, *strides(x), *strides(out)]
    native.run(spec, *args, items=8, machine=machine)
    want = rotate(x.transpose(0, 2, 1, 3), cos[at], sin[at], interleaved).transpose(0, 2, 1, 3)
    np.testing.assert_allclose(out, want, rtol=1e-6, atol=1e-6)
    assert not status[0]
    at[1, 1] = 9
    native.run(spec, *args, items=8, machine=machine)
    assert status[0] == 1


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def forms(length: int) -> dict[str, tuple[str, dict[str, Any], dict[str, Any], int]]:
    """By name: the operator, its attributes, its inputs ("_" stands for an absent one; a tuple is a constant)
    and how many outputs are asked for."""
    three = {n: normal(2, length, 48) for n in ("q", "k", "v")}
    past = {n: normal(2, 3, 9, 16) for n in ("pk", "pv")}
    mask = np.random.default_rng(0).random((2, 1, length, length)) > 0.4
    turn_by = {"c": normal(50, 8), "s": normal(50, 8)}
    heads, ms = {"q_num_heads": 3, "kv_num_heads": 3}, "com.microsoft::"
    padding = (np.arange(2 * length + 18).reshape(2, length + 9) % 4 > 0).astype(np.int32)
    found: dict[str, tuple[str, dict[str, Any], dict[str, Any], int]] = {
        "plain": ("Attention", heads, three, 1),
        "boolean mask": ("Attention", heads, {**three, "m": mask}, 1),
        "causal": ("Attention", {**heads, "is_causal": 1}, three, 1),
        "short mask, shared heads": ("Attention", {"q_num_heads": 6, "kv_num_heads": 3, "softcap": 2.0},
                                     {"q": normal(2, length, 96), "k": normal(2, 30, 48),
                                      "v": normal(2, 30, 48), "m": normal(length, 20)}, 1),
        "past": ("Attention", {**heads, "is_causal": 1}, {**three, "_": None, **past}, 3),
        "lengths": ("Attention", {**heads, "is_causal": 1}, {**three, "_": None, "_2": None, "_3": None,
                                                             "n": np.array([length, 1])}, 1),
        "by head": ("Attention", {}, {"q": normal(2, 4, length, 16), "k": normal(2, 2, 30, 16),
                                      "v": normal(2, 2, 30, 8)}, 1),
        "everything": (ms + "MultiHeadAttention", {"num_heads": 3},
                       {**three, "b": normal(144), "p": padding, "a": normal(1, 3, length, length + 9),
                        **past}, 3),
        "key counts": (ms + "MultiHeadAttention", {"num_heads": 3},
                       {**three, "_": None, "p": np.array([length, 1], np.int32)}, 1),
        "a square mask": (ms + "MultiHeadAttention", {"num_heads": 3}, {
            **three, "_": None, "p": (normal(2, 1, 25, 25) > 0).astype(np.int32)}, 1),
        "unidirectional": (ms + "MultiHeadAttention", {"num_heads": 3, "unidirectional": 1}, three, 1),
        "turned": ("RotaryEmbedding", {"num_heads": 3}, {
            "x": three["q"], **turn_by, "p": np.arange(2 * length).reshape(2, length) % 40}, 1),
        "turned in pairs": ("RotaryEmbedding", {"interleaved": 1}, {
            "x": normal(2, 3, length, 16), "c": normal(2, length, 8), "s": normal(2, length, 9)[..., :8]}, 1),
        "turned from": (ms + "RotaryEmbedding", {}, {"x": three["q"], "p": np.array([3]), **turn_by}, 1)}
    for name, total in (("first pass", length), ("next pass", length + 7)):
        ends = np.array([total - 1, total - 1 if total == length else total - 3], np.int32)
        found[name] = (ms + "GroupQueryAttention",
                       {"num_heads": 6, "kv_num_heads": 3, "do_rotary": 1, "local_window_size": 5},
                       {"q": normal(2, length, 96), **{n: three[n] for n in "kv"}, "pk": normal(2, 3, 40, 16),
                        "pv": normal(2, 3, 40, 16), "n": ends, "t": (np.array([total], np.int32),),
                        **turn_by}, 3)
    return found


@pytest.mark.parametrize("length", [1, 3, 20])
@pytest.mark.parametrize("name", list(forms(1)))
def test_operators(name: str, length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A session with kernels gives what one without gives, and runs no node on numpy."""
    kind, attrs, given_, outputs = forms(length)[name]
    domain, _, op_type = kind.rpartition("::")
    present = {n: x for n, x in given_.items() if x is not None}
    feed = {n: x for n, x in present.items() if not isinstance(x, tuple)}
    names = [f"y{i}" for i in range(outputs)]
    node = helper.make_node(op_type, [n if given_[n] is not None else "" for n in given_], names,
                            domain=domain,
                            **attrs)
    graph = helper.make_graph(
        [node], "g", [helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
                      for n, x in feed.items()],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in names],
        [numpy_helper.from_array(x[0], n) for n, x in present.items() if isinstance(x, tuple)])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 24),
                                                         helper.make_opsetid("com.microsoft", 1)])
    monkeypatch.setattr(Lowering, "_by_reference", lambda *_: pytest.fail("a node was left to numpy"))
    results = []
    for use in ("0", "1"):
        session = orthrus.InferenceSession(model.SerializeToString(),
                                           providers=[("CPUExecutionProvider", {"use_codegen": use})])
        results.append(session.run(None, feed))
    for want, found in zip(*results, strict=True):
        np.testing.assert_allclose(found, want, rtol=2e-5, atol=1e-5)
