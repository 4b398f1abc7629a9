"""Attention on GPUs: the steps that the rules of both kinds of machines write."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ....codegen.triton.kernels import attention as kernels
from ....codegen.triton.kernels import attention_cache
from ....codegen.triton.kernels.entering import Grown
from ....codegen.write.expr import Expr
from ....ir import No, Value
from ...rules import attention as shared
from ...rules import attention_contrib
from ...rules.attention import Heads
from ...tensor import Tensor
from .. import products
from ..elements import power, several
from ..lower import GpuLowering, Out, writes
from ..normal import factor

_TILE = 1 << 11
"""Elements of a tile of copied or turned rows."""


@writes(shared.close)
def close(lo: GpuLowering, t: Tensor) -> Tensor:
    """`t`: kernels read any strides."""
    return t


@writes(shared.plain_mask)
def plain_mask(lo: GpuLowering, t: Tensor) -> Tensor:
    """A mask as it is."""
    return t


@writes(shared.refusal)
def refusal(lo: GpuLowering, a: Heads) -> No | None:
    """Why no kernel does it, if so."""
    if max(a.q.shape[3], a.v.shape[3]) > kernels.MOST:
        return No(f"heads of more than {kernels.MOST} features")
    return shared.refusal.__wrapped__(lo, a)  # type: ignore[attr-defined]


def _near(*tensors: Tensor) -> tuple[bool, ...]:
    """Of each whether features lie side by side."""
    return tuple(t.strides[3] == 1 or t.shape[3] == 1 for t in tensors)


def _lying(tensors: Sequence[Tensor], near: Sequence[bool]) -> list[int]:
    return [s for t, side in zip(tensors, near, strict=True) for s in t.strides[:3 if side else 4]]


@writes(shared.attended)
def attended(lo: GpuLowering, a: Heads, out: Tensor, present: tuple[Tensor, Tensor] | None) -> None:
    """Append the steps that write `out` (B, H, S, V), and `present` if there is a past."""
    k, v = a.k, a.v
    if a.past is not None:
        assert present is not None
        held = a.past[0].shape[2]
        if grown(lo, a, a.past, present, held + k.shape[2], (None, held), False, None, False, out):
            return
        for old, new, t in zip(a.past, (k, v), present, strict=True):
            appended(lo, old, new, t, held)
        k, v = present
    made, near, mask, keep = _planned(lo, a, k, v, out, k.shape[2], None)
    _attend(lo, a, made, (a.q, k, v), [], out, k.shape[2], (mask, keep), [], _lying((a.q, k, v, out), near))


def _planned(lo: GpuLowering, a: Heads, k: Tensor, v: Tensor, out: Tensor, total: int, entering: Grown | None
             ) -> tuple[kernels.AttentionPlan, tuple[bool, ...], Tensor | None, Tensor | None]:
    """How it is divided, of which tensors features lie side by side, and what is added to scores, or keeps
    them."""
    (batch, heads, length, size), mask, kept = a.q.shape, a.mask, a.keep
    if mask is not None:
        total = min(total, mask.shape[3])
        mask = mask.expand((batch, heads, length, total))
    keep = None if kept is None else kept.expand((batch, heads, length, total))
    _, left, right = a.window if a.window is not None else (0, shared.UNLIMITED, shared.UNLIMITED)
    near = _near(a.q, k, v, out)
    form = kernels.AttentionForm(
        a.q.dtype, size, v.shape[3], near, "" if mask is None else mask.dtype,  # type: ignore[arg-type]
        None if mask is None or mask.strides[3] not in (0, 1) else mask.strides[3],
        left < shared.UNLIMITED, right < shared.UNLIMITED, "" if a.ends is None else a.ends.dtype, a.trailing,
        bool(a.cap), "" if a.sink is None else a.sink.dtype, products.precision(lo, shared.F),
        kept=keep is not None, empty=a.empty, rounded=a.rounded, grown=entering)
    return kernels.plan(lo.target, form, batch, heads, k.shape[1], length, total), near, mask, keep


def _attend(lo: GpuLowering, a: Heads, made: kernels.AttentionPlan, given: Sequence[Any],
            more: Sequence[Any], out: Tensor, total: int, masks: Sequence[Tensor | None],
            numbers: Sequence[Any], strides: Sequence[int]) -> None:
    """Append the step. `given`: what comes first, `more`: what comes behind the masks; `numbers`: behind
    those of every attention."""
    mask, keep = masks
    if mask is not None:
        total = min(total, mask.shape[3])
    first, left, right = a.window if a.window is not None else (0, shared.UNLIMITED, shared.UNLIMITED)
    others = [t for t in (mask, a.ends, a.sink, keep) if t is not None]
    plain = kernels.numbers(made, a.q.shape[1], a.k.shape[1], a.q.shape[2], total,
                            (first, min(left, total), min(right, total)), a.ends_add, a.scale, a.cap)
    of_mask = [s for t in masks if t is not None for s in t.strides]
    shares = [] if made.splits == 1 else [
        Out(lo.new((made.slots, a.v.shape[3]), shared.F)), Out(lo.new((made.slots, 2), shared.F)),
        Out(products.counted(lo, made.items // made.splits))]
    lo.step(made.spec, [*given, *others, *more, *shares, Out(out), *plain, *numbers, *strides, *of_mask],
            made.items)


@writes(shared.grown)
def grown(lo: GpuLowering, a: Heads, old: Sequence[Tensor], made: Sequence[Tensor], total: int,
          before: tuple[Tensor | None, int], zeroed: bool, angles: tuple[Tensor, Tensor] | None,
          interleaved: bool, out: Tensor) -> bool:
    """Of so few queries that all of a head are one tile: what attends writes the cache."""
    begins, first = before
    cos = None if angles is None else angles[0]
    rows = (*old, a.k, a.v)
    (k, v), length = made, a.q.shape[2]
    room = k.shape[2] if cos is None else min(k.shape[2], cos.shape[-2])
    entering = Grown(_near(*rows), "" if begins is None else begins.dtype,  # type: ignore[arg-type]
                     zeroed, 0 if cos is None else cos.shape[-1], interleaved,
                     begins is None and 0 <= first <= room - length)
    plan, near, mask, keep = _planned(lo, a, k, v, out, total, entering)
    if plan.tiles != 1 or a.k.shape[2] != length or 0 in old[0].shape:
        return False
    more = [*(t for t in (begins,) if t is not None), *([] if entering.sure else [Out(lo.status)]),
            *(angles or ())]
    numbers = [old[0].shape[2], k.shape[2], first, *([] if cos is None else [cos.shape[-2], cos.strides[0]])]
    strides = [*_lying((a.q, k, v, out), near), *_lying(rows, entering.near)]
    _attend(lo, a, plan, [a.q, Out(k), Out(v), *rows], more, out, total, (mask, keep), numbers, strides)
    return True


@writes(shared.appended)
def appended(lo: GpuLowering, old: Tensor, new: Tensor, out: Tensor, first: int, ends: Tensor | None = None,
             zeroed: bool = False) -> None:
    """Append the step that writes a cache; see the CPU's."""
    near, size = _near(old, new, out), new.shape[3]
    rows = max(1, min(power(out.shape[2]), _TILE // power(size)))
    sure = ends is None and 0 <= first <= out.shape[2] - new.shape[2]
    spec = attention_cache.append_rows(dtype=new.dtype, size=size, near=near, rows=rows, zeroed=zeroed,
                                       ends_type="" if ends is None else ends.dtype, sure=sure)
    lo.step(spec, [old, new, Out(out), *([] if ends is None else [ends]),
                   *([] if sure else [Out(lo.status)]), new.shape[1],
                   old.shape[2], new.shape[2], out.shape[2], first, *_lying((old, new, out), near)],
            new.shape[0] * new.shape[1] * -(-out.shape[2] // rows))


@writes(shared.turned)
def turned(lo: GpuLowering, x: Tensor, caches: tuple[Tensor, Tensor], positions: Tensor | None,
           lying: tuple[int, int, int], first: int, interleaved: bool, out: Tensor | None = None) -> Tensor:
    """`x` (B, H, S, D) turned; see the CPU's."""
    batch, heads, length, size = x.shape
    made = out or lo.new(x.shape, x.dtype)
    cos = caches[0]
    per_batch, row = (0, cos.strides[0]) if cos.rank == 2 else (cos.strides[0], cos.strides[1])
    near, units = _near(x, made), batch * heads * length
    rows = several(units, _TILE // power(size))
    sure = positions is None and 0 <= first < cos.shape[-2] - (length - 1) * lying[2]
    spec = attention_cache.turn(dtype=x.dtype, size=size, half=cos.shape[-1], near=near, rows=rows,
                                interleaved=interleaved, sure=sure,
                                positions_type="" if positions is None else positions.dtype)
    places = [*([] if positions is None else [positions]), *([] if sure else [Out(lo.status)])]
    lo.step(spec, [x, *caches, *places, Out(made), per_batch, row, *lying, first,
                   cos.shape[-2], heads, length, units, *_lying((x, made), near)], -(-units // rows))
    return made


@writes(attention_contrib.projected)
def projected(lo: GpuLowering, x: Value, weights: Value, bias: Value | None, shape: tuple[int, ...]
              ) -> Tensor | No:
    """x · weights + bias, of their type."""
    if lo.dtype(weights) != lo.dtype(x):
        return No("several types")
    operands, tree = [], None
    if bias is not None:
        if lo.shape(bias) != shape[2:]:
            return No("a bias that does not fit")
        operands = [lo.tensor(bias).expand(shape)]
        tree = Expr("add", (Expr.leaf(0, shared.F), Expr.leaf(1, lo.dtype(bias)).cast(shared.F)), shared.F)
    out = lo.new(shape, lo.dtype(x))
    products.write(lo, factor(lo, x), lo.tensor(weights), out, tree, operands)
    return out
