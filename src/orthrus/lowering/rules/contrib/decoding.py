"""com.microsoft's attention of decoders over caches: query heads that share key heads, one token, and blocks
of keys that blocks of queries see; rotary positions in three streams."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ....codegen.write.expr import Expr
from ....ir import No, Node, Value, in_memory
from ....ops.contrib.attention import stream_of_angle
from ....ops.contrib.decoding import block_mask
from ...lower import BOTH, Lowering, lowers
from ...tensor import Tensor, of_constant
from ..attention import (
    FILTER,
    MS,
    UNLIMITED,
    F,
    Heads,
    added_bias,
    appended,
    attended,
    by_head,
    close,
    computed,
    float_mask,
    grown,
    inputs_of,
    mixed,
    plain_mask,
    refusal,
    result,
    turned,
)
from ..gather import gathered
from ..rows import FLOATS, alive

_MASK = 1 << 24
"""Elements up to which a mask of blocks is laid out by query and key."""


def _flat_view(y: Tensor, heads: int) -> Tensor:
    """(B, S, H * V) by head."""
    made = by_head(y, heads)
    assert isinstance(made, Tensor)
    return made


@lowers(MS + "GroupQueryAttention", types=FLOATS, sets=BOTH)
def attend_grouped(lo: Lowering, node: Node) -> Any:
    """com.microsoft's causal attention with shared key heads, over a cache that takes up the new rows."""
    at = node.attributes
    (vq, vk, vv, v_past_k, v_past_v, v_ends, v_total, v_cos, v_sin, v_at, v_bias, v_sink,
     v_k_scale, v_v_scale, *rest) = inputs_of(node, 17)
    known = lo.known(v_total)
    if alive(lo, node,
              3) or any(v is not None for v in rest) or known is None or v_ends is None or vq is None:
        return No("a rare form, or its length is not known from shapes")
    if (v_past_k is None) != (v_past_v is None) or (vk is None) != (vv is None) or v_at is not None:
        return No("half a past, or positions")
    coded = at["k_quant_type"] != "NONE"
    scales = (v_k_scale, v_v_scale) if coded else (None, None)
    if at["sliding_window_cache"] or coded != (at["v_quant_type"] != "NONE") or coded and (
            None in scales or at["kv_cache_bit_width"] != 8 or lo.dtype(vq) != F):
        return No("a windowed cache, or one quantized otherwise than to 8 bits from float32")
    heads, shared, flat = at["num_heads"], at["kv_num_heads"], lo.tensor(vq)
    if flat.rank != 3 or min(heads, shared) < 1 or heads % shared:
        return No("its heads do not divide")
    if vk is not None and vv is not None:
        parts = [by_head(lo.tensor(v), n) for v, n in ((vq, heads), (vk, shared), (vv, shared))]
    else:
        size = flat.shape[2] // (heads + 2 * shared)
        starts = [0, heads * size, (heads + shared) * size]
        parts = [by_head(flat.slice(2, s, n * size), n)
                 for s, n in zip(starts, (heads, shared, shared), strict=True)]
        if size * (heads + 2 * shared) != flat.shape[2]:
            return No("its heads do not divide")
    if any(isinstance(p, No) for p in parts):
        return No("its heads do not divide")
    q, k, v = (p for p in parts if isinstance(p, Tensor))
    batch, _, length, size = q.shape
    if 0 in q.shape:
        return No("an empty dimension")
    total, ends = known.reshape(-1).tolist()[0], lo.contiguous(lo.tensor(v_ends))
    old = [lo.new((batch, shared, 0, t.shape[3]), "int8" if coded else t.dtype) for t in (k, v)]
    if v_past_k is not None and v_past_v is not None:
        old = [lo.tensor(v_past_k), lo.tensor(v_past_v)]
    window, causal = at["local_window_size"], at["causal"]
    first = length == total
    a = Heads(q, k, v, at.get("scale") or 1 / math.sqrt(size or 1), past=None if coded else (old[0], old[1]),
              window=(0, window - 1 if window >= 0 else UNLIMITED, 0 if causal else UNLIMITED),
              ends=None if first and causal else ends, ends_add=1, trailing=not first,
              cap=max(0.0, at.get("softcap") or 0.0))
    refused = refusal(lo, a)
    if refused is not None:
        return refused
    by = [_scale_of(lo, v, t) for v, t in zip(scales, (k, v), strict=True)]
    if coded and (None in by or any(
            o.dtype != "int8" or (*o.shape[:2], o.shape[3]) != (*t.shape[:2], t.shape[3])
            for o, t in zip(old, (k, v), strict=True))):
        return No("a quantized cache that does not fit its keys or scales")
    if math.prod(ends.shape) != batch or total < length:
        return No("its lengths do not fit")
    if v_bias is not None:
        t = lo.tensor(v_bias)
        if t.rank != 4 or t.shape[3] < total or t.shape[2] not in (1, length):
            return No("a bias of another form")
        a.mask = plain_mask(lo, t.slice(3, 0, total))
    if v_sink is not None:
        a.sink = lo.contiguous(float_mask(lo, lo.tensor(v_sink)))
    elif (at.get("smooth_softmax") or 0) > 0:
        a.sink = of_constant(np.zeros(heads, np.float32))
    before = (None, 0) if first else (ends, 1 - length)
    angles, interleaved = None, bool(at.get("rotary_interleaved"))
    if at.get("do_rotary"):
        found = _angles_of(lo, q, v_cos, v_sin)
        if isinstance(found, No):
            return found
        angles = found
    outputs = [*node.outputs, None, None, None]
    capacity = max(total, old[0].shape[2])
    made = [result(lo, value, (batch, shared, capacity, t.shape[3]), o.dtype)
            for value, t, o in zip(outputs[1:3], (k, v), old, strict=True)]
    y = result(lo, outputs[0], (batch, length, heads * v.shape[3]), q.dtype)
    view = y.view((batch, heads, length, v.shape[3]), (y.strides[0], v.shape[3], heads * v.shape[3], 1))
    if not coded and grown(lo, a, old, made, total, before, capacity > old[0].shape[2], angles, interleaved,
                           view):
        return (y, *made)
    if angles is not None:
        q, k = (turned(lo, close(lo, t), angles, before[0], (1, 0, 1), before[1], interleaved)
                for t in (q, k))
    for o, t, into, scale in zip(old, (k, v), made, by, strict=True):
        new = t if scale is None else _codes(lo, t, scale)
        appended(lo, close(lo, o), close(lo, new), into, before[1], before[0], capacity > o.shape[2])
    seen = [t.slice(2, 0, total) for t in made]
    a.k, a.v = (t if scale is None else _numbers(lo, t, scale) for t, scale in zip(seen, by, strict=True))
    a.q, a.past = q, None
    attended(lo, a, view, None)
    return (y, *made)


def _scale_of(lo: Lowering, value: Value | None, rows: Tensor) -> Tensor | None:
    """The scale of a cache's codes, for all or by head and feature, that broadcasts to its rows."""
    if value is None or lo.dtype(value) != F:
        return None
    t, (_, heads, _, size) = lo.contiguous(lo.tensor(value)), rows.shape
    if t.size == 1:
        return t.view((1, 1, 1, 1), (0, 0, 0, 0))
    return t.view((1, heads, 1, size), (0, size, 0, 1)) if t.size == heads * size else None


def _codes(lo: Lowering, rows: Tensor, scale: Tensor) -> Tensor:
    """Rows as int8, rounded half to even."""
    whole = Expr("rint", (Expr("div", (Expr.leaf(0, F), Expr.leaf(1, F)), F),), F)
    held = Expr("minimum", (Expr("maximum", (whole, Expr.const(-128.0, F)), F), Expr.const(127.0, F)), F)
    made = lo.new(rows.shape, "int8")
    lo.store(made, held.cast("int8"), [rows, scale])
    return made


def _numbers(lo: Lowering, codes: Tensor, scale: Tensor) -> Tensor:
    """What codes stand for."""
    return computed(lo, codes.shape, Expr("mul", (Expr.leaf(0, "int8").cast(F), Expr.leaf(1, F)), F),
                    [codes, scale])


@lowers(MS + "DecoderMaskedMultiHeadAttention", types=FLOATS, sets=BOTH)
def attend_one(lo: Lowering, node: Node) -> Any:
    """One token over another sequence, or over its own so far."""
    at = node.attributes
    vq, vk, vv, v_mask, v_added, v_past_k, v_past_v, v_length, _, v_beams, v_bias = inputs_of(node, 11)
    assert vq is not None
    if v_beams is not None or vk is None or vv is None or alive(lo, node, 3):
        return No("beams that share a cache, packed queries, or its scores are read")
    shape, heads = lo.shape(vq), at["num_heads"]
    if len(shape) != 3 or shape[1] != 1:
        return No("more than one token")
    parts = [by_head(lo.tensor(v), heads) for v in (vq, vk, vv)]
    if any(isinstance(p, No) or p.dtype != lo.dtype(vq) for p in parts):
        return No("its heads do not divide, or several types")
    q, k, v = (p for p in parts if isinstance(p, Tensor))
    cross = len(lo.shape(vk)) == 4
    if v_bias is not None:
        bias = lo.contiguous(lo.tensor(v_bias))
        widths = [t.shape[1] * t.shape[3] for t in (q, k, v)]
        if bias.shape != (sum(widths),) or q.dtype != F or bias.dtype != F:
            return No("a bias that does not fit")
        q, *own = (_shifted(lo, t, bias, start) for t, start in zip(
            (q,) if cross else (q, k, v), (0, widths[0], sum(widths[:2])), strict=False))
        k, v = own or (k, v)
    a = Heads(q, k, v, at.get("scale") or 1 / math.sqrt(q.shape[3] or 1))
    value = at.get("mask_filter_value") or FILTER
    past = None
    if not cross and v_past_k is not None and v_past_v is not None:
        past = lo.tensor(v_past_k), lo.tensor(v_past_v)
    if past is not None and at["past_present_share_buffer"]:
        return _attend_shared(lo, node, a, past, (v_mask, v_added, v_length), value)
    a.past = past
    total = k.shape[2] + (past[0].shape[2] if past else 0)
    mask = added_bias(lo, v_mask, v_added, q.shape[0], 1, total, value)
    if isinstance(mask, No):
        return mask
    a.mask = mask
    return mixed(lo, node, a, True, not cross and (alive(lo, node, 1) or alive(lo, node, 2)))


def _shifted(lo: Lowering, t: Tensor, bias: Tensor, start: int) -> Tensor:
    """Rows by head plus their part of a bias."""
    part = bias.view((1, t.shape[1], 1, t.shape[3]), (0, t.shape[3], 0, 1), start).expand(t.shape)
    return computed(lo, t.shape, Expr("add", (Expr.leaf(0, F), Expr.leaf(1, F)), F), [t, part])


def _attend_shared(lo: Lowering, node: Node, a: Heads, past: tuple[Tensor, Tensor],
                   more: tuple[Value | None, Value | None, Value | None], value: float) -> Any:
    """Over a cache with room for more, whose length is known when it runs, or now where there is a mask."""
    v_mask, v_added, v_length = more
    batch, heads, _, _ = a.q.shape
    capacity = past[0].shape[2]
    if v_length is None or lo.shape(v_length) not in ((), (1,)):
        return No("the length of its cache is missing")
    a.past = past
    refused = refusal(lo, a)
    if refused is not None:
        return refused
    held = lo.number(v_length)
    if held is not None and not 0 <= held < capacity or capacity < 1:
        return No("its cache is full")
    if held is None and (v_mask is not None or v_added is not None):
        return No("a mask over a cache whose length is not known from shapes")
    total = capacity if held is None else int(held) + 1
    mask = added_bias(lo, v_mask, v_added, batch, 1, total, value)
    if isinstance(mask, No):
        return mask
    length = lo.tensor(v_length)
    ends = lo.contiguous(length.view((batch,), (0,)))
    made = [result(lo, v, t.shape, t.dtype)
            for v, t in zip([*node.outputs, None, None][1:3], past, strict=True)]
    for old, new, into in zip(past, (a.k, a.v), made, strict=True):
        appended(lo, close(lo, old), close(lo, new), into, 0, ends)
    seen = made[0].slice(2, 0, total), made[1].slice(2, 0, total)
    a = Heads(a.q, *seen, a.scale, mask)
    if held is None:
        a.ends, a.ends_add, a.trailing, a.window = ends, 1, True, (0, UNLIMITED, 0)
    y = result(lo, node.outputs[0], (batch, 1, heads * a.v.shape[3]), a.q.dtype)
    attended(lo, a, _flat_view(y, heads), None)
    return (y, *made)


@lowers(MS + "SparseAttention", types=FLOATS, sets=BOTH)
def attend_blocks(lo: Lowering, node: Node) -> Any:
    """Blocks that are not seen are masked."""
    at = node.attributes
    vq, vk, vv, v_past_k, v_past_v, v_rows, v_columns, v_total, v_ends, v_cos, v_sin = inputs_of(node, 11)
    known = [lo.known(v) if v is not None and lo.knows(v) else None for v in (v_rows, v_columns, v_total)]
    if any(a is None for a in known) or None in (vq, v_past_k, v_past_v, v_ends) or (
            (vk is None) != (vv is None)):
        return No("its blocks or its length are not known from shapes")
    rows, columns, total_of = map(in_memory, known)
    heads, shared, block, flat = at["num_heads"], at["kv_num_heads"], at["sparse_block_size"], lo.tensor(vq)
    if flat.rank != 3 or min(heads, shared, block) < 1 or heads % shared or 0 in flat.shape:
        return No("its heads do not divide")
    if vk is not None:
        parts = [by_head(t, n) for t, n in ((flat, heads), (lo.tensor(vk), shared), (lo.tensor(vv), shared))]
    else:
        size = flat.shape[2] // (heads + 2 * shared)
        if size * (heads + 2 * shared) != flat.shape[2]:
            return No("its heads do not divide")
        parts = [by_head(flat.slice(2, s * size, n * size), n) for s, n in (
            (0, heads), (heads, shared), (heads + shared, shared))]
    if any(isinstance(p, No) for p in parts):
        return No("its heads do not divide")
    q, k, v = (p for p in parts if isinstance(p, Tensor))
    past = lo.tensor(v_past_k), lo.tensor(v_past_v)
    batch, _, length, size = q.shape
    total, capacity = int(total_of.reshape(-1)[0]), past[0].shape[2]
    try:
        seen = block_mask(rows, columns)
    except ValueError as error:
        return No(str(error))
    first = length == total
    ends = lo.contiguous(lo.tensor(v_ends))
    if not length <= total <= capacity or heads % max(len(seen), 1) or total > seen.shape[1] * block or (
            ends.size != batch or ends.rank != 1 or not (first or length == 1)):
        return No("its lengths do not fit, or several tokens behind a cache")
    a = Heads(q, k, v, at.get("scale") or 1 / math.sqrt(size), past=past)
    refused = refusal(lo, a)
    if refused is not None:
        return refused
    mask = _seen_blocks(lo, seen, block, batch, heads, length, total, ends)
    if isinstance(mask, No):
        return mask
    before = (None, 0) if first else (ends, -length)
    if at.get("do_rotary"):
        found = _rotated(lo, q, k, v_cos, v_sin, before, bool(at.get("rotary_interleaved")))
        if isinstance(found, No):
            return found
        q, k = found
    made = [result(lo, value, t.shape, t.dtype) for value, t in zip(
        [*node.outputs, None, None][1:3], past, strict=True)]
    for old, new, into in zip(past, (k, v), made, strict=True):
        appended(lo, close(lo, old), close(lo, new), into, before[1], before[0])
    a = Heads(q, made[0].slice(2, 0, total), made[1].slice(2, 0, total), a.scale, mask,
              window=(0, UNLIMITED, 0))
    if not first:
        a.ends, a.trailing = ends, True
    y = result(lo, node.outputs[0], (batch, length, heads * v.shape[3]), q.dtype)
    attended(lo, a, _flat_view(y, heads), None)
    return (y, *made)


def _angles_of(lo: Lowering, q: Tensor, v_cos: Value | None, v_sin: Value | None
               ) -> tuple[Tensor, Tensor] | No:
    """What queries and keys are turned by."""
    if v_cos is None or v_sin is None or lo.dtype(v_cos) != q.dtype or 2 * lo.shape(v_cos)[1] > q.shape[3]:
        return No("its rotary caches do not fit")
    return lo.contiguous(lo.tensor(v_cos)), lo.contiguous(lo.tensor(v_sin))


def _rotated(lo: Lowering, q: Tensor, k: Tensor, v_cos: Value | None, v_sin: Value | None,
             before: tuple[Tensor | None, int], interleaved: bool) -> tuple[Tensor, Tensor] | No:
    """Queries and keys turned by their positions, which begin at `before`: per batch entry, and for all."""
    caches = _angles_of(lo, q, v_cos, v_sin)
    if isinstance(caches, No):
        return caches
    q, k = (turned(lo, close(lo, t), caches, before[0], (1, 0, 1), before[1], interleaved) for t in (q, k))
    return q, k


def _seen_blocks(lo: Lowering, seen: np.ndarray, block: int, batch: int, heads: int, length: int,
                 total: int, ends: Tensor) -> Tensor | No:
    """What is added to the scores, (batch, heads, length, total): of a prompt's queries, or of one token of
    each batch entry, whose row is looked up by its place."""
    layouts, blocks = seen.shape[:2]
    if max(length, blocks) * total * max(layouts, 1) > _MASK:
        return No("a mask of blocks that is too large")
    by_row = np.where(np.repeat(seen, block, 2)[:, :, :total], np.float32(0), np.float32(-np.inf))
    key = ("blocks", seen.tobytes(), seen.shape, block, length, total)
    spread = heads // layouts
    if length > 1 or total == 1:
        table = lo.constant(key, lambda: np.repeat(by_row, block, 1)[:, :length])
        made = table.view((1, *table.shape), (0, *table.strides))
    else:
        table = lo.constant((*key, "rows"), lambda: by_row.swapaxes(0, 1))
        place = lo.new((batch,), "int32")
        at = Expr("sub", (Expr.leaf(0, "int32"), Expr.const(1, "int32")), "int32")
        lo.store(place, Expr("quotient", (at, Expr.const(block, "int32")), "int32"), [ends])
        made = lo.new((batch, layouts, 1, total), F)
        by_batch = made.view((batch, layouts, total), (layouts * total, total, 1))
        gathered(lo, table, place, by_batch, 0, 1, 1, False)
    if layouts == 1 or spread == 1:
        return made
    whole = lo.new((made.shape[0], heads, *made.shape[2:]), F)
    again = whole.view((made.shape[0], spread, *made.shape[1:]), (
        whole.strides[0], layouts * whole.strides[1], *whole.strides[1:]))
    source = made.view(again.shape, (made.strides[0], 0, *made.strides[1:]))
    lo.copy(source, again)
    return whole


@lowers(MS + "MRotaryEmbedding", types=FLOATS, sets=BOTH)
def turn_by_streams(lo: Lowering, node: Node) -> Any:
    """Rotary positions whose angles come from three places in the caches."""
    at, (vx, v_at, v_cos, v_sin) = node.attributes, node.inputs
    given, positions = lo.tensor(vx), lo.tensor(v_at)
    caches = lo.contiguous(lo.tensor(v_cos)), lo.contiguous(lo.tensor(v_sin))
    x = by_head(given, at["num_heads"])
    section, half = at["mrope_section"], caches[0].shape[-1]
    if isinstance(x, No) or 0 in given.shape or any(c.dtype != given.dtype or c.rank != 2 for c in caches):
        return No("its heads do not divide, or caches of another type")
    batch, _, length, size = x.shape
    if caches[0].shape != caches[1].shape or len(section) != 3 or min(section) < 0 or (
            sum(section) != half or at["rotary_embedding_dim"] not in (0, 2 * half) or 2 * half > size
            or at["mrope_layout"] not in (0, 1) or positions.shape != (3, batch, length)):
        return No("its caches, sections or positions do not fit")
    streams = stream_of_angle(section, at["mrope_layout"])
    picked = tuple(lo.new((batch * length, half), given.dtype) for _ in caches)
    for source, made in zip(caches, picked, strict=True):
        for stream in range(3):
            _angles(lo, source, positions, made, streams, stream)
    angles = tuple(t.view((batch, length, half), (length * half, half, 1)) for t in picked)
    y = result(lo, node.outputs[0], given.shape, given.dtype)
    target = by_head(y, at["num_heads"])
    assert isinstance(target, Tensor)
    turned(lo, close(lo, x), (angles[0], angles[1]), None, (0, 0, 1), 0, bool(at["interleaved"]), target)
    return y


def _angles(lo: Lowering, cache: Tensor, positions: Tensor, made: Tensor, streams: list[int], stream: int
            ) -> None:
    """The columns of a stream, evenly spaced but for those of the first one, which others write again."""
    mine = [i for i, s in enumerate(streams) if s == stream]
    if not mine:
        return
    step = mine[1] - mine[0] if len(mine) > 1 else 1
    first, count = mine[0], len(mine)
    if mine != list(range(first, first + step * count, step)):
        first, step, count = 0, 1, len(streams)
    rows = lo.contiguous(positions.view(positions.shape[1:], positions.strides[1:],
                                        stream * positions.strides[0]))
    gathered(lo, cache.slice(1, first, count, step), rows.view((rows.size,), (1,)),
             made.slice(1, first, count, step), 0, 1, 1, False)
