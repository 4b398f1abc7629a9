"""Attention and rotary positions: every operator's inputs as queries, keys and values by head, a mask to add,
and which keys each query sees."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...codegen.kernels.attention import plan as planning
from ...codegen.kernels.attention import rotary
from ...codegen.kernels.attention.few import append_rows
from ...codegen.kernels.attention.parts import AttentionForm, Empty
from ...codegen.write.expr import Expr
from ...ir import OWN, No, Node, Value
from ...processors import usable
from ...records import dataclass
from ..lower import BOTH, Lowering, Out, lowers, varied
from ..tensor import Tensor, c_strides, joint_shape
from .rows import FLOATS, alive

F = "float32"
MS = "com.microsoft::"
UNLIMITED = 1 << 40
FILTER = -10000.0


@dataclass(eq=False)
class Heads:
    """One attention: q (B, H, S, D), k and v (B, G, T, D) and what else decides its result."""

    q: Tensor
    k: Tensor
    v: Tensor
    scale: float
    mask: Tensor | None = None
    past: tuple[Tensor, Tensor] | None = None
    window: tuple[int, int, int] | None = None
    ends: Tensor | None = None
    ends_add: int = 0
    trailing: bool = False
    cap: float = 0.0
    sink: Tensor | None = None
    keep: Tensor | None = None
    empty: Empty = "zero"
    rounded: bool = False


def inputs_of(node: Node, count: int) -> list[Value | None]:
    return [*node.inputs, *[None] * (count - len(node.inputs))]


def by_head(t: Tensor, heads: int) -> Tensor | No:
    """(B, S, H * D) as (B, H, S, D)."""
    if t.rank == 4:
        return t
    if t.rank != 3 or heads < 1 or t.shape[2] % heads:
        return No("its heads do not divide")
    size = t.shape[2] // heads
    return t.view((t.shape[0], heads, t.shape[1], size), (t.strides[0], size * t.strides[2], *t.strides[1:]))


@varied
def close(lo: Lowering, t: Tensor) -> Tensor:
    """`t`, or a copy of it, with its last axis contiguous."""
    return t if t.strides[-1] == 1 or t.shape[-1] == 1 else lo.copied(t, c_strides(t.shape))


def computed(lo: Lowering, shape: Sequence[int], tree: Expr, operands: Sequence[Tensor]) -> Tensor:
    """A float32 tensor of an elementwise tree over operands that broadcast to `shape`."""
    out = lo.new(shape, F)
    lo.store(out, tree, list(operands))
    return out


def steps(t: Tensor) -> tuple[int, int, int]:
    return t.strides[0], t.strides[1], t.strides[2]


@varied
def refusal(lo: Lowering, a: Heads) -> No | None:
    """Why no kernel does it, if so."""
    (batch, heads, _, size), kinds = a.q.shape, {t.dtype for t in (a.q, a.k, a.v, *(a.past or ()))}
    if a.k.rank != 4 or a.v.rank != 4 or a.k.shape[:3] != a.v.shape[:3] or a.k.shape[0] != batch or (
            a.k.shape[3] != size or not a.k.shape[1] or heads % a.k.shape[1]):
        return No("its shapes do not fit")
    if a.past is not None and any(
            old.rank != 4 or (*old.shape[:2], old.shape[3]) != (*new.shape[:2], new.shape[3])
            or old.shape[2] != a.past[0].shape[2] for old, new in zip(a.past, (a.k, a.v), strict=True)):
        return No("a past that does not fit")
    if len(kinds) > 1 or a.q.dtype not in FLOATS:
        return No(f"no attention kernel over {', '.join(sorted(kinds))}")
    if 0 in (*a.q.shape, a.v.shape[3], a.k.shape[2]) or (a.mask is not None and 0 in a.mask.shape):
        return No("an empty dimension")
    return None


def over_scores(t: Tensor, shape: Sequence[int]) -> Tensor | No:
    """A mask for scores (B, H, S, T), with four axes of which each is 1 or theirs."""
    if t.rank > 4 or not t.rank:
        return No("a mask of another rank")
    t = of_rank_4(t)
    return t if all(m in (1, n) for m, n in zip(t.shape, shape, strict=True)) else No(
        "a mask that does not broadcast to the scores")


@varied
def attended(lo: Lowering, a: Heads, out: Tensor, present: tuple[Tensor, Tensor] | None) -> None:
    """Append the steps that write `out` (B, H, S, V), and `present` if there is a past."""
    batch, heads, length, size = a.q.shape
    kv_heads, total = a.k.shape[1], a.k.shape[2]
    q, k, v = (close(lo, t) for t in (a.q, a.k, a.v))
    cache = None
    if a.past is not None:
        assert present is not None
        past, held = [close(lo, t) for t in a.past], a.past[0].shape[2]
        total += held
        if planning.is_few(length, grown=True) and (a.mask is None or a.mask.shape[3] == total):
            cache = ([*past, *map(Out, present)], [steps(t) for t in (*past, *present)], held)
        else:
            for old, new, t in zip(past, (k, v), present, strict=True):
                appended(lo, old, new, t, held)
            k, v = present
    mask, mask_steps, mask_step = a.mask, (0, 0, 0), None
    if mask is not None:
        total = min(total, mask.shape[3])
        mask = mask.expand((batch, heads, length, total))
        if mask.strides[3] not in (0, 1):
            mask = lo.copied(mask, c_strides(mask.shape))
        mask_steps, mask_step = steps(mask), mask.strides[3]
    keep, keep_steps = a.keep, (0, 0, 0)
    if keep is not None:
        keep = keep.expand((batch, heads, length, total))
        if keep.strides[3] != 1:
            keep = lo.copied(keep, c_strides(keep.shape))
        keep_steps = steps(keep)
    form = AttentionForm(
        q.dtype, size, v.shape[3], mask_step, a.window is not None, "" if a.ends is None else a.ends.dtype,
        a.trailing, bool(a.cap), a.sink is not None, keep is not None, a.empty,
        a.rounded and mask is not None)
    made = planning.plan(lo.machine, form, batch, heads, kv_heads, length, total,
                          len(usable()),
                          cache is not None)
    args = planning.arguments(
        made, [q, k, v, Out(out), mask or 0, a.ends or 0, a.sink or 0, keep or 0],
        [*(steps(t) for t in (q, k, v, out)), mask_steps, keep_steps], kv_heads, heads // kv_heads, length,
        total, a.window or (0, UNLIMITED, UNLIMITED), a.ends_add, a.scale, a.cap, cache)
    lo.step(made.spec, args, made.items, 1, made.scratch)


@varied
def grown(lo: Lowering, a: Heads, old: Sequence[Tensor], made: Sequence[Tensor], total: int,
          before: tuple[Tensor | None, int], zeroed: bool, angles: tuple[Tensor, Tensor] | None,
          interleaved: bool, out: Tensor) -> bool:
    """Append the step that writes `out` and `made`, the cache that `old` becomes with the new rows `a.k` and
    `a.v` from row `before` on, which is for each batch entry and for all. `total`: rows of it that are looked
    at; `angles`: by which queries and new keys are turned. False where no kernel does it all."""
    return False


@varied
def appended(lo: Lowering, old: Tensor, new: Tensor, out: Tensor, first: int, ends: Tensor | None = None,
             zeroed: bool = False) -> None:
    """Append the step that writes a cache: `old`, zeros behind it where `zeroed`, and `new` from row `first`
    (plus `ends`) on."""
    spec = append_rows(dtype=new.dtype, size=new.shape[3], ends_type="" if ends is None else ends.dtype,
                       zeroed=zeroed)
    lo.step(spec, [old, new, Out(out), 0 if ends is None else ends, Out(lo.status), new.shape[1],
                   old.shape[2],
                   new.shape[2], out.shape[2], first, *steps(old), *steps(new), *steps(out)],
            new.shape[0] * new.shape[1])


def result(lo: Lowering, value: Value | None, shape: Sequence[int], dtype: str) -> Tensor:
    """Memory for a result in C order: the caller's own where it is one of the part's outputs. Once asked for,
    it has to be written."""
    if value is None or value not in lo.finals or value in lo.outputs:
        return lo.new(shape, dtype)
    made = lo.outputs[value] = lo.output(dtype, shape)
    return made


def mixed(lo: Lowering, node: Node, a: Heads, flat: bool, present: bool) -> Any:
    """The operator's results: mixed values, (B, S, H * V) where `flat`, and the keys and values so far. Heads
    lie as those that put them side by side next read them, unless they are reshaped before."""
    refused = refusal(lo, a)
    if refused is not None:
        return refused
    batch, heads, length, _ = a.q.shape
    size = a.v.shape[3]
    outputs = [*node.outputs, None, None]
    reshaped = outputs[0] is not None and any(use.op_type == "Reshape" for use in outputs[0].uses)
    if flat or (outputs[0] not in lo.finals and not reshaped):
        y = result(lo, outputs[0], (batch, length, heads * size), a.q.dtype)
        view = y.view((batch, heads, length, size), (y.strides[0], size, heads * size, 1))
        y = y if flat else view
    else:
        y = view = result(lo, outputs[0], (batch, heads, length, size), a.q.dtype)
    caches = None
    if a.past is not None:
        total = a.past[0].shape[2] + a.k.shape[2]
        made = [result(lo, value, (*t.shape[:2], total, t.shape[3]), t.dtype)
                for value, t in zip(outputs[1:3], (a.k, a.v), strict=True)]
        caches = made[0], made[1]
    attended(lo, a, view, caches)
    if not present:
        return (y,)
    return (y, *(caches or (a.k, a.v)))


@varied
def plain_mask(lo: Lowering, t: Tensor) -> Tensor:
    """A mask as kernels read it."""
    return float_mask(lo, t)


def float_mask(lo: Lowering, t: Tensor) -> Tensor:
    """A mask as numbers to add: booleans exclude where they are false."""
    if t.dtype == F:
        return t
    leaf = Expr.leaf(0, t.dtype)
    tree = leaf.cast(F)
    if t.dtype == "bool":
        tree = Expr("where", (leaf, Expr.const(0.0, F), Expr.const(-math.inf, F)), F)
    return computed(lo, t.shape, tree, [t])


def of_rank_4(t: Tensor) -> Tensor:
    return t.view((*(1,) * (4 - t.rank), *t.shape), (*(0,) * (4 - t.rank), *t.strides))


def by_heads(lo: Lowering, node: Node, scale: float | None) -> tuple[Heads, bool] | No:
    """Queries, keys and values by head with those before them, as the inputs of ONNX's attention lie, and
    whether the heads lie side by side."""
    at = node.attributes
    vq, vk, vv, _, v_past_k, v_past_v = inputs_of(node, 6)[:6]
    assert vq is not None and vk is not None and vv is not None
    given = [lo.tensor(v) for v in (vq, vk, vv)]
    kv = at.get("kv_num_heads") or 0
    parts = [by_head(t, n) for t, n in zip(given, (at.get("q_num_heads") or 0, kv, kv), strict=True)]
    for part in parts:
        if isinstance(part, No):
            return part
    q, k, v = (p for p in parts if isinstance(p, Tensor))
    past = None
    if v_past_k is not None and v_past_v is not None:
        past = lo.tensor(v_past_k), lo.tensor(v_past_v)
    elif v_past_k is not None or v_past_v is not None:
        return No("half a past")
    return Heads(q, k, v, 1 / math.sqrt(q.shape[3] or 1) if scale is None else scale, past=past,
                 rounded=True), given[0].rank == 3


@lowers("Attention", types=FLOATS, sets=BOTH)
def attend(lo: Lowering, node: Node) -> Any:
    """ONNX's attention."""
    at = node.attributes
    _, _, _, v_mask, _, _, v_lengths = inputs_of(node, 7)
    if alive(lo, node, 3):
        return No("its scores are read")
    if at.get("softmax_precision") not in (None, 1, 10, 16):
        return No("a softmax in double precision")
    made = by_heads(lo, node, at.get("scale"))
    if isinstance(made, No):
        return made
    a, flat = made
    a.cap = max(0.0, at.get("softcap") or 0.0)
    held = a.past[0].shape[2] if a.past else 0
    total = a.k.shape[2] + held
    if a.scale < 0:
        return No("a negative scale")
    if v_lengths is not None:
        a.ends, a.trailing = lo.tensor(v_lengths), a.past is None
        if a.ends.shape != a.q.shape[:1]:
            return No("its lengths do not fit")
        a.ends = lo.contiguous(a.ends)
    left, right = at["left_window_size"], at["right_window_size"]
    left = left if left >= 0 else UNLIMITED
    right = min([UNLIMITED, *([right] if right >= 0 else []), *([0] if at.get("is_causal") else [])])
    cut = right < UNLIMITED and (a.trailing or held + right < total - 1)
    if a.ends is not None or left < UNLIMITED or cut:
        a.window = (held, left, right)
    if v_mask is not None:
        t = lo.tensor(v_mask)
        last = t.shape[-1] if t.rank else 0
        mask = over_scores(plain_mask(lo, t), (*a.q.shape[:3], last))
        if isinstance(mask, No):
            return mask
        if last > total:
            return No("a mask for more keys than there are")
        a.mask = mask
    elif a.window is None:
        a.empty = "nan"
    return mixed(lo, node, a, flat, alive(lo, node, 1) or alive(lo, node, 2))


@lowers(f"{OWN}::SoftmaxAttention", types=FLOATS, sets=BOTH)
def attend_softmax(lo: Lowering, node: Node) -> Any:
    """An attention that exporters wrote in parts: every score counts as Softmax counts it."""
    at = node.attributes
    if at.get("softmax_precision") not in (None, 1, 10, 16):
        return No("a softmax in double precision")
    made = by_heads(lo, node, at["scale"])
    if isinstance(made, No):
        return made
    a, flat = made
    if a.scale < 0:
        return No("a negative scale")
    a.empty = "guarded" if at["guarded"] else "nan"
    total = a.k.shape[2] + (a.past[0].shape[2] if a.past else 0)
    given = inputs_of(node, 7)
    if given[3] is not None:
        bias = over_scores(plain_mask(lo, lo.tensor(given[3])), (*a.q.shape[:3], total))
        if isinstance(bias, No):
            return bias
        a.mask = bias.expand((*bias.shape[:3], total))
    if given[6] is not None:
        keep = over_scores(lo.tensor(given[6]), (*a.q.shape[:3], total))
        if isinstance(keep, No):
            return keep
        a.keep = keep
    return mixed(lo, node, a, flat, alive(lo, node, 1) or alive(lo, node, 2))


def padding_bias(lo: Lowering, t: Tensor, batch: int, length: int, total: int, value: float) -> Tensor | No:
    """com.microsoft's mask as numbers to add, four axes. It gives counts of keys, these and starts, or 0 and
    1 per key."""
    leaf = Expr.leaf(0, t.dtype)
    tensors, kept = [t], Expr("gt", (leaf, Expr.const(0, t.dtype)), "bool")
    if t.rank == 1 and t.shape[0] in (batch, 2 * batch, 3 * batch + 2):
        keys = lo.counted(0, total, dtype=t.dtype)
        leaf, step = Expr.leaf(1, t.dtype), t.strides[0]
        tensors = [keys.view((1, 1, 1, total), (0, 0, 0, 1)), t.view((batch, 1, 1, 1), (step, 0, 0, 0))]
        kept = Expr("lt", (Expr.leaf(0, t.dtype), leaf), "bool")
        if t.shape[0] == 2 * batch:
            tensors.append(t.view((batch, 1, 1, 1), (step, 0, 0, 0), batch * step))
            start = Expr("minimum", (Expr.leaf(2, t.dtype), Expr.const(total, t.dtype)), t.dtype)
            kept = Expr("and", (kept, Expr("ge", (Expr.leaf(0, t.dtype), start), "bool")), "bool")
    elif t.rank == 2 and t.shape == (batch, total):
        tensors = [t.view((batch, 1, 1, total), (t.strides[0], 0, 0, t.strides[1]))]
    elif t.rank == 3 and t.shape == (batch, length, total):
        tensors = [t.view((batch, 1, length, total), (t.strides[0], 0, *t.strides[1:]))]
    elif t.rank == 4 and min(t.shape[2:]) >= total:
        tensors = [t.slice(2, total - length, length).slice(3, 0, total)]
    else:
        return No("a mask of another form")
    shape = joint_shape(*(x.shape for x in tensors))
    return computed(lo, shape, Expr("where", (kept, Expr.const(0.0, F), Expr.const(value, F)), F), tensors)


def both_biases(lo: Lowering, first: Tensor | None, second: Tensor | None) -> Tensor | None:
    """Two masks added, not below the lowest number."""
    if first is None or second is None:
        return first or second
    shape = joint_shape(first.shape, second.shape)
    total = Expr("add", (Expr.leaf(0, F), Expr.leaf(1, F)), F)
    tree = Expr("maximum", (total, Expr.const(float(np.finfo(np.float32).min), F)), F)
    return computed(lo, shape, tree, [first.expand(shape), second.expand(shape)])


@lowers(MS + "MultiHeadAttention", types=FLOATS, sets=BOTH)
def attend_separate(lo: Lowering, node: Node) -> Any:
    """com.microsoft's attention over projected queries, keys and values."""
    at = node.attributes
    vq, vk, vv, v_bias, v_mask, v_added, v_past_k, v_past_v, *rest = inputs_of(node, 10)
    if alive(lo, node, 3) or any(v is not None for v in rest):
        return No("its scores are read or its cache is shared")
    if (v_past_k is None) != (v_past_v is None):
        return No("half a past")
    heads = at["num_heads"]
    assert vq is not None
    q = lo.tensor(vq)
    if q.rank == 5:
        parts: list[Tensor | No] = [_taken(q, i) for i in range(3)]
    elif vk is None:
        return No("it has no keys")
    else:
        k = lo.tensor(vk)
        if k.rank == 5:
            parts = [by_head(q, heads), _taken(k, 0), _taken(k, 1)]
        elif vv is None:
            return No("it has no values")
        else:
            parts = [by_head(t, heads) for t in (q, k, lo.tensor(vv))]
    for part in parts:
        if isinstance(part, No):
            return part
    split = [p for p in parts if isinstance(p, Tensor)]
    if any(t.dtype != q.dtype for t in split):
        return No("several types")
    if v_bias is not None:
        bias = lo.contiguous(lo.tensor(v_bias))
        widths = [t.shape[1] * t.shape[3] for t in split]
        if bias.shape != (sum(widths),) or q.dtype != F or bias.dtype != F or (vk is not None and len(
                lo.shape(vk)) == 4):
            return No("a bias that does not fit")
        start = 0
        for i, t in enumerate(split):
            part_of = bias.view((1, t.shape[1], 1, t.shape[3]), (0, t.shape[3], 0, 1), start).expand(t.shape)
            split[i] = computed(lo, t.shape, Expr("add", (Expr.leaf(0, F), Expr.leaf(1, F)), F), [t, part_of])
            start += widths[i]
    q, k, v = split
    past = None if v_past_k is None or v_past_v is None else (lo.tensor(v_past_k), lo.tensor(v_past_v))
    batch, _, length, size = q.shape
    held = past[0].shape[2] if past else 0
    total = held + k.shape[2]
    mask = added_bias(lo, v_mask, v_added, batch, length, total, at.get("mask_filter_value") or FILTER)
    if isinstance(mask, No):
        return mask
    causal = at.get("unidirectional") and held < total - 1
    a = Heads(q, k, v, at.get("scale") or 1 / math.sqrt(size or 1), mask, past,
              (held, UNLIMITED, 0) if causal else None)
    return mixed(lo, node, a, True, alive(lo, node, 1) or alive(lo, node, 2))


def _taken(t: Tensor, index: int) -> Tensor:
    """(B, S, H, n, D) at one of n, as (B, H, S, D)."""
    b, s, h, n, d = t.strides
    return t.view((t.shape[0], t.shape[2], t.shape[1], t.shape[4]), (b, h, s, d), index * n)


def added_bias(lo: Lowering, v_mask: Value | None, v_bias: Value | None, batch: int, length: int, total: int,
               value: float) -> Tensor | No | None:
    """com.microsoft's mask and bias as one tensor to add."""
    bias = None
    if v_bias is not None:
        t = lo.tensor(v_bias)
        if t.rank != 4 or t.shape[3] != total or t.shape[2] not in (1, length):
            return No("a bias of another form")
        bias = float_mask(lo, t)
    if v_mask is None:
        return bias
    padding = padding_bias(lo, lo.tensor(v_mask), batch, length, total, value)
    return padding if isinstance(padding, No) else both_biases(lo, padding, bias)


@varied
def turned(lo: Lowering, x: Tensor, caches: tuple[Tensor, Tensor], positions: Tensor | None,
           lying: tuple[int, int, int], first: int, interleaved: bool, out: Tensor | None = None) -> Tensor:
    """`x` (B, H, S, D) turned; `lying`: how positions go by batch entry, by position, and on their own."""
    batch, heads, length, size = x.shape
    made = out or lo.new(x.shape, x.dtype)
    cos = caches[0]
    per_batch, row = (0, cos.strides[0]) if cos.rank == 2 else (cos.strides[0], cos.strides[1])
    spec = rotary.turn(dtype=x.dtype, size=size, half=cos.shape[-1], interleaved=interleaved,
                       positions_type="" if positions is None else positions.dtype)
    lo.step(spec, [x, *caches, 0 if positions is None else positions, Out(lo.status), Out(made), per_batch,
                   row,
                   *lying, first, cos.shape[-2], heads, length, *steps(x), *steps(made)],
            batch * length, max(1, 8192 // max(heads * size, 1)))
    return made


@lowers("RotaryEmbedding", MS + "RotaryEmbedding", types=FLOATS, sets=BOTH)
def turn(lo: Lowering, node: Node) -> Any:
    """Rotary positions of both domains."""
    at = node.attributes
    if node.domain:
        vx, v_at, v_cos, v_sin = inputs_of(node, 4)
    else:
        vx, v_cos, v_sin, v_at = inputs_of(node, 4)
    assert vx is not None and v_cos is not None and v_sin is not None
    given, heads = lo.tensor(vx), at.get("num_heads") or 0
    caches = lo.contiguous(lo.tensor(v_cos)), lo.contiguous(lo.tensor(v_sin))
    cos, sin = caches
    if cos.shape != sin.shape or cos.dtype != given.dtype or sin.dtype != given.dtype or 0 in given.shape:
        return No("caches of another shape or type")
    dim = at.get("rotary_embedding_dim") or 0
    if node.domain and given.rank == 3 and not (dim and heads):
        heads = given.shape[-1] // max(2 * cos.shape[-1], 1)
    x = by_head(given, heads)
    if isinstance(x, No):
        return x
    batch, _, length, size = x.shape
    dim = dim or (2 * cos.shape[-1] if node.domain else size)
    if dim != 2 * cos.shape[-1] or dim > size or not dim:
        return No("caches of another width")
    positions, lying = None, (0, 0, 1)
    if v_at is not None:
        positions = lo.contiguous(lo.tensor(v_at))
        if cos.rank != 2:
            return No("caches of another rank")
        if positions.shape == (batch, length):
            lying = (length, 1, 0)
        elif not node.domain or positions.size != 1 or positions.rank > 1:
            return No("positions of another shape")
    elif cos.shape[:-1] != (batch, length):
        return No("caches of another shape")
    y = result(lo, node.outputs[0], given.shape, given.dtype)
    target = by_head(y, heads)
    assert isinstance(target, Tensor)
    turned(lo, close(lo, x), caches, positions, lying, 0, bool(at.get("interleaved")), target)
    return y
