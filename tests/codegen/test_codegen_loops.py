"""Elementwise loops over arrays of any layout, between pages nobody may touch, against numpy."""

from __future__ import annotations

import math

import numpy as np
import pytest

native = pytest.importorskip("native")

from draws import draws  # noqa: E402
from hypothesis import given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from orthrus.codegen.kernels import loops  # noqa: E402
from orthrus.codegen.machines.detect import host  # noqa: E402
from orthrus.codegen.machines.machine import AVX2, NEON, RVV256, SSE2, Machine  # noqa: E402
from orthrus.codegen.object import build  # noqa: E402
from orthrus.codegen.write.expr import Expr  # noqa: E402

MACHINES = (host(), AVX2, SSE2)
A, B = (Expr.leaf(i, "float32") for i in range(2))
SUM = Expr("add", (A, B), "float32")


def many(tree: Expr, times: int) -> Expr:
    """`tree` with its leaf 1 added so many times more: too long for some kernels."""
    for _ in range(times):
        tree = Expr("add", (tree, B), "float32")
    return tree


def of(op: str, dtype: str, out: str | None = None) -> Expr:
    return Expr(op, tuple(Expr.leaf(i, dtype) for i in range(2)), out or dtype)


CASES = {
    "sum": (SUM, ("float32", "float32"), lambda a, b: a + b),
    "long": (many(SUM, 20), ("float32", "float32"), lambda a, b: a + 21 * b),
    "less": (of("lt", "float32", "bool"), ("float32", "float32"), lambda a, b: a < b),
    "both": (of("and", "bool"), ("bool", "bool"), lambda a, b: a & b),
    "int64": (of("mul", "int64"), ("int64", "int64"), lambda a, b: a * b),
    "bytes": (of("maximum", "uint8"), ("uint8", "uint8"), np.maximum),
    "halves": (Expr("add", (Expr.leaf(0, "float16").cast("float32"), B), "float32").cast("float16"),
               ("float16", "float32"), lambda a, b: (a + b).astype(np.float16)),
    "choice": (Expr("where", (Expr.leaf(0, "bool"), Expr.leaf(1, "float64"), Expr.const(7.0, "float64")),
                    "float64"), ("bool", "float64"), lambda a, b: np.where(a, b, 7.0)),
    "copy": (A, ("float32",), lambda a: a),
    "number": (Expr.const(3.0, "float32"), (), lambda: np.float32(3)),
}


def laid(x: np.ndarray, order: tuple[int, ...], pad: int, back: tuple[bool, ...], before: bool) -> np.ndarray:
    """`x` with its axes in memory in `order`, the last padded, those of `back` from the end, beside a page
    that may not be touched."""
    turned = x.transpose(order)[tuple(slice(None, None, -1 if back[a] else 1) for a in order)]
    block = np.ones((*turned.shape[:-1], turned.shape[-1] + pad), x.dtype)
    edge = slice(0, turned.shape[-1]) if before else slice(pad, None)
    block[..., edge] = turned
    lying = native.guarded(block, before)[..., edge]
    return lying[tuple(slice(None, None, -1 if back[a] else 1) for a in order)].transpose(np.argsort(order))


def numbers(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    return rng.integers(0, 2 if dtype == "bool" else 50, shape).astype(dtype)


def steps(x: np.ndarray) -> tuple[int, ...]:
    return tuple(s // x.itemsize for s in x.strides)


def check(tree: Expr, out: np.ndarray, operands: list[np.ndarray], want: np.ndarray, machine: Machine,
          cuts: tuple[float, ...] = ()) -> loops.Spec:
    """Run the kernel for these arrays, divided at `cuts` (of its items), and compare; gives the kernel."""
    made = loops.nest(out.shape, [steps(a) for a in (out, *operands)])
    spec, cells, items, grain = loops.elementwise(made, tree, [a.dtype.name for a in operands])
    assert grain >= 1
    native.run(spec, out, *operands, *cells, items=items, machine=machine,
               splits=tuple(sorted(int(c * items) for c in cuts)))
    np.testing.assert_array_equal(out, np.broadcast_to(want, out.shape))
    return spec


@st.composite
def layouts(draw: st.DrawFn, rank: int) -> tuple:
    return (tuple(draw(st.permutations(range(rank)))) if draw(st.booleans()) else tuple(range(rank)),
            draw(st.integers(0, 2)), tuple(draw(st.booleans()) and draw(st.booleans()) for _ in range(rank)),
            draw(st.booleans()))


@draws(250)
@given(st.data(), st.sampled_from(tuple(CASES)), st.sampled_from(MACHINES),
       st.lists(st.floats(0, 1), max_size=2), st.integers(0, 1 << 30))
def test_any_layout(data: st.DataObject, case: str, machine: Machine, cuts: list[float], seed: int) -> None:
    tree, dtypes, numpy = CASES[case]
    rng = np.random.default_rng(seed)
    shape = data.draw(st.lists(st.integers(1, 5), min_size=0, max_size=5))
    for size in data.draw(st.lists(st.sampled_from((1, 2, 3, 4, 15, 16, 17, 33, 70)), max_size=2)):
        shape.insert(data.draw(st.integers(0, len(shape))), size)
    shape = shape[:5] if math.prod(shape[:5]) < 1 << 16 else shape[:3]
    operands = []
    for dtype in dtypes:
        own = tuple(1 if data.draw(st.integers(0, 3)) == 0 else d for d in shape)
        x = laid(numbers(rng, own, dtype), *data.draw(layouts(len(shape)))) if shape else (
            native.guarded(numbers(rng, (), dtype)))
        operands.append(np.broadcast_to(x, shape))
    order, pad, _, before = data.draw(layouts(len(shape)))
    plain = np.zeros(shape, tree.dtype)
    out = laid(plain, order, pad, (False,) * len(shape), before) if shape else native.guarded(plain)
    whole = out.base if out.base is not None else out
    room = np.array(whole, copy=True)
    check(tree, out, operands, numpy(*operands), machine, tuple(cuts))
    out[...] = 0
    np.testing.assert_array_equal(whole, room, "something beside the result was written")


WAYS = {
    "row": lambda x: native.guarded(x),
    "back": lambda x: native.guarded(x[:, ::-1], True)[:, ::-1],
    "pitch": lambda x: native.guarded(np.pad(x, ((0, 0), (3, 0))))[:, 3:],
    "plane": lambda x: native.guarded(x.T.copy()).T,
    "apart": lambda x: native.guarded(np.pad(x.T, ((0, 0), (5, 0))))[:, 5:].T,
    "each": lambda x: np.broadcast_to(native.guarded(x[:, :1].copy()), x.shape),
    "cycle": lambda x: np.broadcast_to(native.guarded(x[0].copy()), x.shape),
    "one": lambda x: np.broadcast_to(native.guarded(x[0, :1].copy()), x.shape),
}


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("few", (2, 3, 4))
@pytest.mark.parametrize("way", tuple(WAYS))
def test_short_rows(machine: Machine, few: int, way: str) -> None:
    rng = np.random.default_rng(few)
    for rows in (2, 15, 16, 17, 50, 1024, 1025, 2100):
        a, b = (rng.normal(size=(rows, few)).astype(np.float32) for _ in range(2))
        a, b = WAYS[way](a), native.guarded(np.pad(b.T, ((0, 0), (1, 0))))[:, 1:].T
        spec = check(SUM, native.guarded(np.zeros((rows, few), np.float32)), [a, b], a + b, machine, (0.5,))
        assert spec.template == ("loop" if few == 3 and way == "pitch" else "short_rows")
        if few != 3:
            check(SUM, native.guarded(np.zeros((rows, few + 3), np.float32))[:, 3:], [a, b], a + b, machine)


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("width", (1, 2, 3, 4, 5, 40))
def test_a_number_alone(machine: Machine, width: int) -> None:
    for dtype in ("float32", "bool", "float64", "uint8"):
        value = Expr.const(1 if dtype != "float32" else 3.5, dtype)
        for pad in (0, 3):
            room = native.guarded(np.zeros((50, width + pad), dtype))
            check(value, room[:, pad:], [], np.array(value.value, dtype), machine)
            assert not room[:, :pad].any()


def test_items_do_not_depend_on_each_other() -> None:
    """A long inner dimension under few outer ones is divided too, and every division gives the same."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(3, 20000)).astype(np.float32), rng.normal(size=(3, 1)).astype(np.float32)
    out = np.zeros((3, 20000), np.float32)
    wide = np.broadcast_to(y, x.shape)
    made = loops.nest(x.shape, [steps(a) for a in (out, x, wide)])
    _, _, items, _ = loops.elementwise(made, SUM, ["float32"] * 2)
    assert items >= 12
    for cuts in ((), (0.1,), (0.3, 0.7)):
        out[...] = 0
        check(SUM, out, [x, wide], x + y, host(), cuts)


@pytest.mark.parametrize("few", (1, 2, 3, 4, 40))
def test_nothing_is_no_item(few: int) -> None:
    """Of no rows, no columns or no planes, in every layout of the operands."""
    for shape in ((0, few), (2, 0, few), (0, 2, few), (few, 0)):
        x = np.zeros(shape, np.float32)
        for other in (x, x[:, ::-1], np.broadcast_to(np.zeros(shape[-1:], np.float32), shape)):
            made = loops.nest(shape, [steps(a) for a in (x, x, other)])
            _, _, items, grain = loops.elementwise(made, SUM, ["float32"] * 2)
            assert not items and grain >= 1


def test_small_work_is_not_divided() -> None:
    for shape in ((100, 80), (2000, 3), (8, 8, 8, 8)):
        x = np.zeros(shape, np.float32)
        spread = np.broadcast_to(np.zeros(shape[-1:], np.float32), shape)
        made = loops.nest(shape, [steps(a) for a in (x, x, spread)])
        _, _, items, grain = loops.elementwise(made, SUM, ["float32"] * 2)
        assert items <= grain


@pytest.mark.parametrize("machine", (NEON, RVV256))
@pytest.mark.parametrize("strides", (
    ((24, 8, 1), (24, 8, 1), (0, 8, 1)), ((900, 3, 1), (900, 1, 300), (0, 0, 1)),
    ((900, 1, 300), (900, 3, 1), (0, 0, 0))))
def test_other_machines_assemble(machine: Machine, strides: tuple[tuple[int, ...], ...]) -> None:
    shape = (5, 300, 3) if strides[0][0] == 900 else (5, 3, 8)
    spec, *_ = loops.elementwise(loops.nest(shape, strides), SUM, ["float32"] * 2)
    assert build.assemble(spec.text(machine), machine)


@pytest.mark.parametrize(("dtype", "op", "whole"), [("int8", "neg", "32 x i8"), ("int16", "neg", "16 x i16"),
                                                    ("float32", "tanh", "32 x float"),
                                                    ("float32", "sin", "16 x float"),
                                                    ("float64", "tanh", "8 x double")])
def test_vectors_are_as_wide_as_the_types(dtype: str, op: str, whole: str) -> None:
    """Whole registers of what a tree computes in; of float32 two, or four of chains, of float64 two: one
    vector's operations do not wait for each other while there are another's."""
    tree = Expr(op, (Expr.leaf(0, dtype),), dtype)
    text = loops.loop(tree=tree, dtypes=(dtype,), kinds=(1, 1), outer=0, middle=False, cut=True).text(AVX2)
    widest = max(int(line.split("<")[1].split()[0]) for line in text.splitlines() if " store <" in line)
    assert widest == int(whole.split()[0]) and f"store <{whole}>" in text
