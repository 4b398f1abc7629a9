"""Attributes and sizes at their corners, by class: switches that are neither 0 nor 1, axes counted from the
back, named twice or none, tensors without elements, sequences without a step. Against onnxruntime, and
generated code against the definitions.

Not asked of onnxruntime are reductions over no elements, whose shape there is not ONNX's, and Squeeze with no
axis in its tensor: it keeps every dimension by ONNX and by onnxruntime's own declaration of the result, but
not by what onnxruntime computes.
"""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from oracle import Case, check

from fuzz import judge

F32 = np.float32
SWITCH = (0, 1, 2, -1)
CAPS = (0.0, 2.0, -0.25)
REDUCTIONS = ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceL1", "ReduceL2", "ReduceSumSquare",
              "ReduceLogSumExp")


def sizes(r: random.Random, rank: int, empty: bool = True) -> tuple[int, ...]:
    return tuple(r.choice((0, 1, 2, 3) if empty else (1, 2, 3)) for _ in range(rank))


def numbers(r: random.Random, shape: tuple[int, ...], dtype: Any = F32) -> np.ndarray:
    return np.array([r.randint(1, 9) for _ in range(math.prod(shape))], dtype).reshape(shape)


def places(r: random.Random, rank: int, twice: bool) -> list[int]:
    """Axes from either end, some twice."""
    found = r.sample(range(rank), r.randint(0, rank))
    found += r.choices(found, k=1) if twice and found and r.random() < 0.4 else []
    return [a - rank * r.randint(0, 1) for a in found]


def ints(values: list[int]) -> np.ndarray:
    return np.array(values, np.int64)


def reduction(r: random.Random) -> Case:
    rank = r.randint(1, 4)
    x, axes = numbers(r, sizes(r, rank, False), r.choice((F32, np.int32, np.float64))), places(r, rank, True)
    attrs: dict[str, Any] = {"keepdims": r.choice(SWITCH)}
    if r.random() < 0.4:
        return Case(r.choice(REDUCTIONS[:-1]), [x], attrs | ({"axes": axes} if axes else {}), opset=12)
    attrs["noop_with_empty_axes"] = r.choice(SWITCH)
    given = [] if r.random() < 0.2 else [ints(axes)]
    op = "ReduceSum" if not axes and attrs["noop_with_empty_axes"] == 1 else r.choice(REDUCTIONS[:-1])
    return Case(op, [x, *given], attrs, opset=18, held=frozenset({1} if given and r.random() < 0.6 else ()))


def best(r: random.Random) -> Case:
    rank = r.randint(1, 4)
    attrs = {"axis": r.randrange(-rank, rank), "keepdims": r.choice(SWITCH), "select_last_index":
             r.choice((0, 1, 2))}
    return Case(r.choice(("ArgMax", "ArgMin")), [numbers(r, sizes(r, rank, False))], attrs, opset=13)


def squeezed(r: random.Random) -> Case:
    rank = r.randint(1, 4)
    op, shape = r.choice(("Squeeze", "Unsqueeze")), sizes(r, rank)
    if op == "Squeeze":
        axes = [a for a in places(r, rank, False) if shape[a] == 1 or r.random() < 0.1]
    else:
        axes = places(r, rank + 2, False)[:2]
        axes = axes if len(axes) == 2 else []
    return Case(op, [numbers(r, shape), ints(axes)], opset=13, held=frozenset(r.choice(((), (1,)))))


def joined(r: random.Random) -> Case:
    rank = r.randint(1, 4)
    axis, shape = r.randrange(-rank, rank), sizes(r, rank)
    parts = [numbers(r, (*shape[:axis % rank], r.choice((0, 0, 1, 2)), *shape[axis % rank + 1:]))
             for _ in range(r.randint(1, 4))]
    held = frozenset(k for k in range(len(parts)) if r.random() < 0.2)
    if any(x.shape[axis] for x in parts) and r.random() < 0.4:
        parts = [x if x.shape[axis] else x.reshape([r.choice((n, 2, 5)) if n else 0 for n in x.shape])
                 if 0 not in np.delete(x.shape, axis) else x for x in parts]
        return Case("Concat", parts, {"axis": axis}, open_shapes=True)
    return Case("Concat", parts, {"axis": axis}, held=held)


def sliced(r: random.Random) -> Case:
    """Bounds far out on either side, forwards and backwards."""
    rank = r.randint(1, 3)
    shape = sizes(r, rank)
    axes = r.sample(range(rank), r.randint(1, rank))
    steps = [r.choice((1, 2, -1, -1, -2, -3)) for _ in axes]
    starts, ends = ([r.choice((*range(-5, 6), -(1 << 40), 1 << 40)) for _ in axes] for _ in range(2))
    held = frozenset(range(1, 5)) if r.random() < 0.5 else frozenset(r.sample(range(1, 5), 2))
    return Case("Slice", [numbers(r, shape), ints(starts), ints(ends), ints(axes), ints(steps)], held=held)


def reshaped(r: random.Random) -> Case:
    shape = sizes(r, r.randint(1, 3))
    to = [r.choice((0, -1, 1, 2, *shape)) for _ in range(r.randint(1, 3))]
    allowzero = r.choice(SWITCH)
    if r.random() < 0.4:  # one axis that is found, beside some that are copied and others that are told
        at, allowzero = r.randrange(len(shape)), 0
        to = [-1 if i == at else 0 if n == 0 else r.choice((0, n)) for i, n in enumerate(shape)]
    return Case("Reshape", [numbers(r, shape), ints(to)], {"allowzero": allowzero},
                held=frozenset(r.choice(((), (1,)))))


def moved(r: random.Random) -> Case:
    """Other operators with an axis or a size, of tensors that may hold nothing."""
    rank = r.randint(1, 4)
    x, axis = numbers(r, sizes(r, rank)), r.randrange(-rank, rank)
    kind = r.choice(("Softmax", "LogSoftmax", "Hardmax", "Flatten", "Transpose", "Gather", "CumSum", "Expand",
                     "Tile", "Shape", "TopK"))
    if kind in ("Softmax", "LogSoftmax", "Hardmax", "Flatten"):
        return Case(kind, [x], {"axis": axis}, opset=13)
    if kind == "Transpose":
        return Case(kind, [x], {"perm": r.sample(range(rank), rank)})
    if kind == "Gather":
        n = x.shape[axis]
        index = np.array([r.randrange(-n, n) for _ in range(r.randint(0, 2) if n else 0)], np.int64)
        return Case(kind, [x, index], {"axis": axis})
    if kind == "CumSum":
        return Case(kind, [x, np.array(axis)], {"exclusive": r.randint(0, 1), "reverse": r.randint(0, 1)})
    if kind == "Shape":
        return Case(kind, [x], {"start": r.randint(-5, 5), "end": r.randint(-5, 5)})
    if kind == "TopK":
        x = x + np.arange(x.size, dtype=F32).reshape(x.shape) / 64
        return Case(kind, [x, ints([r.randint(0, x.shape[axis])])], {"axis": axis}, outputs=2)
    return Case(kind, [x, ints([r.choice((0, 1, 2)) if d == 1 or kind == "Tile" else d for d in x.shape])])


def switched(r: random.Random) -> Case:
    """Switches of attention and its like, and what is chosen in which order."""
    on, batch, length, heads = r.choice(SWITCH), r.randint(1, 2), r.randint(2, 3), r.randint(1, 2)
    kind = r.choice(("TopK", "Unique", "MurmurHash3", "RotaryEmbedding", "rotary", "Attention", "attention",
                     "MultiHeadAttention", "GroupQueryAttention"))
    if kind == "TopK":
        x = numbers(r, (3, 4)) + np.arange(12, dtype=F32).reshape(3, 4) / 64
        return Case(kind, [x, ints([2])], {"largest": on}, outputs=2)
    if kind == "Unique":
        return Case(kind, [numbers(r, (7,))], {"sorted": on})
    if kind == "MurmurHash3":
        return Case(kind, [numbers(r, (2, 3))], {"positive": on}, domain="com.microsoft")
    normal = np.random.default_rng(r.randrange(1 << 20)).normal
    angles = [f(np.arange(12.0).reshape(3, 4)).astype(F32) for f in (np.cos, np.sin)]
    x, three = normal(size=(batch, heads, length, 8)).astype(F32), (batch, length, heads * 8)
    if kind == "RotaryEmbedding":
        given = [np.stack([a[:length]] * batch) for a in angles]
        return Case(kind, [x, *given], {"interleaved": on}, opset=23)
    if kind == "rotary":
        return Case("RotaryEmbedding", [x.reshape(three), ints([0]), *angles],
                    {"interleaved": on, "num_heads": heads}, domain="com.microsoft")
    if kind == "Attention":
        return Case(kind, [x, x, x], {"is_causal": on, "softcap": r.choice(CAPS)}, opset=23)
    x = x.reshape(three)
    if kind == "attention":
        weights = [normal(size=s).astype(F32) for s in ((heads * 8, heads * 24), (heads * 24,))]
        return Case("Attention", [x, *weights], {"unidirectional": on, "num_heads": heads},
                    domain="com.microsoft")
    if kind == "MultiHeadAttention":
        return Case(kind, [x, x, x], {"unidirectional": on, "num_heads": heads}, domain="com.microsoft")
    total = [np.full(batch, length - 1, np.int32), np.array(length, np.int32)]
    return Case(kind, [x, x, x, None, None, *total, *angles], {
        "num_heads": heads, "kv_num_heads": heads, "do_rotary": r.choice(SWITCH), "rotary_interleaved": on,
        "smooth_softmax": r.choice(SWITCH), "softcap": r.choice(CAPS)}, domain="com.microsoft")


def parted(r: random.Random) -> Case:
    """Sequences of parts, each with the axis that was cut or without it: a scalar of 1 cuts as none does."""
    shape = sizes(r, r.randint(1, 3))
    axis = r.randrange(len(shape))
    attrs = {"axis": axis - len(shape) * r.randint(0, 1), "keepdims": r.choice(SWITCH)}
    kind = r.choice(("none", "one", "scalar", "lengths"))
    given = {"none": [], "one": [np.array(1)], "scalar": [np.array(r.randint(2, 4))],
             "lengths": [ints([1] * shape[axis])]}[kind]
    attrs |= {"keepdims": 1} if kind == "scalar" else {}
    return Case("SplitToSequence", [numbers(r, shape), *given], attrs,
                held=frozenset({1} if given and r.random() < 0.5 else ()))


def recurrent(r: random.Random) -> Case:
    """Sequences of any length from none on, each from a state of its own."""
    op, gates = r.choice((("RNN", 1), ("GRU", 3), ("LSTM", 4)))
    steps, batch, features, hidden = (r.randint(1, 3) for _ in range(4))
    direction = r.choice(("forward", "reverse", "bidirectional"))
    ways = 2 if direction == "bidirectional" else 1
    shapes = [(steps, batch, features), (ways, gates * hidden, features), (ways, gates * hidden, hidden),
              (ways, 2 * gates * hidden), *[(ways, batch, hidden)] * (2 if op == "LSTM" else 1)]
    inputs: list[Any] = [numbers(r, shape) * F32(0.1) for shape in shapes]
    inputs.insert(4, np.array([r.randint(0, steps) for _ in range(batch)], np.int32))
    return Case(op, inputs, {"hidden_size": hidden, "direction": direction}, opset=14,
                outputs=3 if op == "LSTM" else 2)


@pytest.mark.parametrize("keepdims", [0, 1])
def test_no_element_is_asked_for_where_the_result_has_none(keepdims: int) -> None:
    """Else there is none to be chosen, which is an error."""
    for shape in ((0, 3, 0), (2, 0, 0), (0, 0), (3, 0), (0,)):
        for axis in range(len(shape)):
            left = tuple(1 if i == axis else n for i, n in enumerate(shape) if keepdims or i != axis)
            x = numbers(random.Random(0), shape)
            said = check(Case("ArgMax", [x], {"axis": axis, "keepdims": keepdims},
                              expected=[np.zeros(left, np.int64)]))
            if 0 in left:
                assert said is None
            else:
                assert said is not None and "no element to choose" in said, said


def test_matrices_without_an_inverse() -> None:
    """Every other one of a batch is inverted."""
    x = np.array([[[1, 2], [2, 4]], [[2, 0], [0, 4]], [[0, 0], [0, 0]]], F32)
    wanted = np.full_like(x, np.nan)
    wanted[1] = [[0.5, 0], [0, 0.25]]
    for dtype in (F32, np.float16, np.float64):
        case = Case("Inverse", [x.astype(dtype)], domain="com.microsoft", expected=[wanted.astype(dtype)])
        assert (said := check(case)) is None, said


def ours(case: Case) -> bool:
    """Whether ONNX's meaning is another than onnxruntime's."""
    return case.op == "Squeeze" and case.inputs[1] is not None and not case.inputs[1].size


CLASSES: tuple[Callable[[random.Random], Case], ...] = (
    reduction, best, squeezed, joined, sliced, reshaped, moved, switched, parted, recurrent)
SEEDS = (range(24), pytest.param(range(24, 120), marks=pytest.mark.slow))


@pytest.mark.parametrize("seeds", SEEDS)
@pytest.mark.parametrize("of", CLASSES, ids=lambda of: of.__name__)
def test_as_onnxruntime(of: Callable[[random.Random], Case], seeds: range) -> None:
    peer = pytest.importorskip("onnxruntime")
    peer.set_default_logger_severity(4)
    made = [of(random.Random(seed)) for seed in seeds]
    found = [said for case in made if not ours(case) and (said := check(case, peer)) is not None]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("seeds", SEEDS)
@pytest.mark.parametrize("of", CLASSES, ids=lambda of: of.__name__)
def test_as_defined(of: Callable[[random.Random], Case], seeds: range) -> None:
    """Also where the sizes are not known before the feeds."""
    for seed in seeds:
        case = dataclasses.replace(of(random.Random(seed)), open_shapes=bool(seed % 2))
        oracle = judge.Oracle(case.model(), None)
        wanted = oracle.definitions(case.feeds)
        if not isinstance(wanted, Exception):
            case.expected = wanted
            assert (found := check(case)) is None, found
