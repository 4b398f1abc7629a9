"""Expressions in Triton, executed as AMD machine code: each operation over each type, against the same tree
as the CPU runs it, bit by bit; functions against numpy's in a wider type."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
import pytest
from gpu_kernels import AMD, run
from test_codegen_math import DTYPES, EXACT, SPECIAL, computed, ulps

from orthrus.codegen.triton.write import Writer, kernel
from orthrus.codegen.write.expr import LLVM, OPS, Expr

pytestmark = [pytest.mark.needs("AMD tables", "Triton"), pytest.mark.slow]

INTEGERS = tuple(d for d in LLVM if "int" in d)
REAL = ("float32", "float64")
BLOCK = 128
every_target = pytest.mark.parametrize("target", AMD)


@kernel
def trees_of(k: Writer, *, trees: tuple[Expr, ...], leaves: tuple[str, ...]) -> None:
    """Several trees over the same leaves."""
    outs = [k.pointer(f"out{i}", t.dtype) for i, t in enumerate(trees)]
    xs = [k.pointer(f"x{i}", d) for i, d in enumerate(leaves)]
    n = k.size("n")
    k.text(f"""
        i = tl.program_id(0) * {BLOCK} + tl.arange(0, {BLOCK})
        mask = i < {n}
    """)
    values = [k.load(x, "i", "mask") for x in xs]
    for out, tree in zip(outs, trees, strict=True):
        k.store(out, "i", k.tree(tree, values), "mask")


def on_gpu(target: str, trees: Sequence[Expr], arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    n = arrays[0].size
    outs = [np.zeros(n, DTYPES[t.dtype]) for t in trees]
    spec = trees_of(trees=tuple(trees), leaves=tuple(a.dtype.name for a in arrays))
    run(spec, target, *outs, *arrays, n, items=-(-n // BLOCK))
    return outs


def same(trees: Sequence[Expr], arrays: Sequence[np.ndarray], got: Sequence[np.ndarray],
         expected: Sequence[np.ndarray], signs: bool = True) -> None:
    """Every result bit by bit; NaN is NaN, and a quotient too small to be normal may be its neighbour.
    `signs`: of zeros too."""
    wrong = []
    for tree, mine, other in zip(trees, got, expected, strict=True):
        bad = (mine != other) & ~((mine != mine) & (other != other))
        if "float" in tree.dtype and signs:
            bad |= (mine == 0) & (other == 0) & (np.signbit(mine) != np.signbit(other))
        if tree.op in ("div", "reciprocal"):
            with np.errstate(all="ignore"):
                bad &= np.abs(mine - other) > np.finfo(tree.dtype).smallest_subnormal
        if bad.any():
            at = np.flatnonzero(bad)[:3]
            wrong.append(f"{tree} of {[a[at].tolist() for a in arrays]}: {mine[at]}, not {other[at]}")
    assert not wrong, "\n".join(wrong)


def edges(dtype: str) -> np.ndarray:
    """Numbers at the edges of a type, and ordinary ones."""
    if dtype == "bool":
        return np.array([False, True])
    if dtype in INTEGERS:
        info = np.iinfo(dtype)
        some = [info.min, info.min + 1, info.max, info.max - 1, info.max // 2 + 1, -1, -2, -7, -100, 0, 1, 2,
                3, 7, 8, 9, 15, 16, 31, 32, 33, 63, 64, 100]
        return np.array(sorted({v for v in some if info.min <= v <= info.max}), dtype)
    with np.errstate(over="ignore"):
        return np.array([*SPECIAL, 7.0, -7.0, 1 / 3, 5e-324, 1e300, 2.0 ** 53 + 2], DTYPES[dtype])


def crossed(*dtypes: str) -> list[np.ndarray]:
    return [np.ascontiguousarray(g).ravel() for g in np.meshgrid(*map(edges, dtypes), indexing="ij")]


def of(op: str, result: str, *leaves: str) -> Expr:
    return Expr(op, tuple(Expr.leaf(i, d) for i, d in enumerate(leaves)), result)


COMPARISONS = ("lt", "le", "gt", "ge", "eq", "ne")
OF_INTEGERS = ("add", "sub", "mul", "and", "or", "xor", "minimum", "maximum", "quotient", "fmod", "remainder",
               "shift_left", "shift_right", "power")
OF_REALS = ("add", "sub", "mul", "div", "minimum", "maximum", "copysign")
EXACTLY = ("neg", "abs", "sign", "floor", "ceil", "trunc", "rint", "round", "sqrt", "reciprocal")
CLOSELY = tuple(name for name in EXACT if name not in (*EXACTLY, "sign"))


def of_two(dtype: str) -> list[Expr]:
    if dtype == "bool":
        return [of(op, dtype, dtype, dtype) for op in (
            "and", "or", "xor", "eq", "ne", "minimum", "maximum")]
    whole = dtype in INTEGERS
    more = () if whole or dtype == "float64" else ("fmod", "remainder")
    return [*(of(op, dtype, dtype, dtype) for op in (*(OF_INTEGERS if whole else OF_REALS), *more)),
            *(of(op, "bool", dtype, dtype) for op in COMPARISONS)]


def of_one(dtype: str) -> list[Expr]:
    if dtype == "bool":
        return [of("not", dtype, dtype)]
    if dtype in INTEGERS:
        return [of(op, dtype, dtype) for op in ("neg", "abs", "sign", "not")]
    return [*(of(op, dtype, dtype) for op in EXACTLY),
            *(of(op, "bool", dtype) for op in ("isnan", "isinf", "isfinite"))]


def test_every_operation_is_tested() -> None:
    tested = {*COMPARISONS, *OF_INTEGERS, *OF_REALS, *EXACTLY, *CLOSELY, "not", "fmod", "remainder", "isnan",
              "isinf", "isfinite", "erf", "pow", "exp_nonpositive", "cast", "where", "fma", "quantize",
              "over", "next_up"}
    assert tested == set(OPS)


@every_target
@pytest.mark.parametrize("dtype", (*INTEGERS, *REAL, "bool"))
def test_operations(dtype: str, target: str) -> None:
    """Of two numbers, of one, and a choice."""
    a, b = crossed(dtype, dtype)
    two = of_two(dtype)
    c = a != b if dtype == "bool" else a > b
    leaf = [Expr.leaf(i, d) for i, d in enumerate((dtype, dtype, "bool"))]
    trees = [*two, *of_one(dtype), Expr("where", (leaf[2], leaf[0], leaf[1]), dtype)]
    same(trees, [a, b, c], on_gpu(target, trees, [a, b, c]),
         [computed(t, [a, b, c][:max(x.value for x in t.leaves()) + 1]) for t in trees])


@every_target
@pytest.mark.parametrize("source", LLVM)
def test_casts(source: str, target: str) -> None:
    """Between all types."""
    x = edges(source)
    if DTYPES[source].itemsize == 2:
        x = np.arange(1 << 16, dtype=np.uint16).view(DTYPES[source])[::7].copy()
    elif source in REAL:
        rng = np.random.default_rng(6)
        near = np.ldexp(1 + rng.integers(0, 1 << 12, 1024) / 4096, rng.integers(-26, 17, 1024))
        x = np.concatenate([x, near.astype(source), (near * (1 + 2.0 ** -40)).astype(source)])
    trees = [Expr.leaf(0, source).cast(to) for to in LLVM if to != source]
    same(trees, [x], on_gpu(target, trees, [x]), [computed(t, [x]) for t in trees])


EMULATED = 1e5
"""Up to where the emulator's 2 / pi, which is a float64, is enough to reduce a float64 by."""


@every_target
@pytest.mark.parametrize("dtype", REAL)
def test_functions(dtype: str, target: str) -> None:
    """Within a few units of the last place."""
    rng = np.random.default_rng(3)
    scale = 80 if dtype == "float32" else 600
    x = np.concatenate([edges(dtype), rng.normal(size=300).astype(dtype),
                        rng.uniform(-scale, scale, 100).astype(dtype)])
    names = [*CLOSELY, "erf"]
    got = on_gpu(target, [of(name, dtype, dtype) for name in names], [x])
    wide = np.float64 if dtype == "float32" else np.longdouble
    wrong = []
    for name, mine in zip(names, got, strict=True):
        with np.errstate(all="ignore"):
            exact = (np.array([math.erf(v) for v in x.tolist()], wide) if name == "erf" else
                     EXACT[name][0](x.astype(wide)))
            error = ulps(mine, exact)
        if target.startswith("gfx") and dtype == "float64" and name in ("sin", "cos", "tan"):
            error[np.abs(x) > EMULATED] = 0
        at = int(np.argmax(error))
        if error[at] > 4:
            wrong.append(f"{name} of {x[at]!r}: {mine[at]!r}, not {exact[at]!r}")
    assert not wrong, "\n".join(wrong)


@every_target
def test_powers(target: str) -> None:
    """Of float32, with exponents of both widths."""
    x, y = crossed("float32", "float32")
    x, y = np.concatenate([x, np.abs(x)]), np.concatenate([y, y / 7])
    got = on_gpu(target, [of("pow", "float32", "float32", "float32")], [x, y])
    got += on_gpu(target, [of("pow", "float32", "float32", "float64")], [x, y.astype(np.float64)])
    with np.errstate(all="ignore"):
        exact = np.power(x.astype(np.float64), y.astype(np.float64))
    for mine in got:
        error = ulps(mine, exact)
        at = int(np.argmax(error))
        assert error[at] <= 4, f"{x[at]!r} to the {y[at]!r}: {mine[at]!r}, not {exact[at]!r}"


@every_target
def test_fused(target: str) -> None:
    """What rounds once, and what quantizes."""
    rng = np.random.default_rng(5)
    a, b, c = (np.concatenate([rng.normal(size=500), rng.choice(SPECIAL[:18], 500)]).astype(np.float32)
               for _ in range(3))
    zero = rng.integers(-5, 9, a.size, np.int32)
    f = [Expr.leaf(i, "float32") for i in range(3)]
    below = Expr("neg", (Expr("abs", (f[0],), "float32"),), "float32")
    trees = [Expr("fma", tuple(f), "float32"), Expr("exp_nonpositive", (below,), "float32")]
    for dtype, low, high in (("int8", -128, 127), ("uint8", 0, 255), ("int16", -32768, 32767),
                             ("uint16", 0, 65535)):
        scaled = Expr("mul", (f[0], Expr.const(100.0, "float32")), "float32")
        shift = Expr.leaf(3, "int32")
        ends = [Expr("sub", (Expr.const(float(e), "float32"), shift.cast("float32")), "float32")
                for e in (low, high)]
        trees.append(Expr("quantize", (scaled, *ends, shift), dtype))
    arrays = [a, b, c, zero]
    got, expected = on_gpu(target, trees, arrays), [computed(t, arrays) for t in trees]
    close = ulps(got[1], expected[1].astype(np.float64)) <= 2
    assert (close | ((expected[1] == 0) & (got[1] < 1e-37))).all()
    for given in (trees, got, expected):
        del given[1]
    same(trees, arrays, got, expected)
    x, by = (rng.uniform(0.5, 300, 1000).astype(np.float32) for _ in range(2))
    over = of("over", "float32", "float32", "float32", "float32")
    np.testing.assert_array_equal(on_gpu(target, [over], [x, by, 1 / by])[0], x / by)


@every_target
def test_neighbours(target: str) -> None:
    """The least float32 above every kind of finite one, as numpy and the CPU have it."""
    bits = np.random.default_rng(8).integers(0, 1 << 32, 4000, np.uint32).view(np.float32)
    ends = np.float32([0.0, -0.0, 1e-45, -1e-45, 1.0, -1.0, 2.0, -2.0])
    info = np.finfo(np.float32)
    normal = np.float32([info.max, info.tiny, info.tiny - info.smallest_subnormal])
    x = np.concatenate([ends, normal, -normal, bits[np.isfinite(bits)]])
    tree = of("next_up", "float32", "float32")
    got = on_gpu(target, [tree], [x])
    same([tree], [x], got, [computed(tree, [x])])
    with np.errstate(over="ignore", under="ignore"):
        same([tree], [x], got, [np.nextafter(x, np.float32(np.inf))], signs=False)


@every_target
@pytest.mark.parametrize("dtype", ("int8", "uint8", "int32", "uint64", "float32", "float64", "bool"))
def test_constants(dtype: str, target: str) -> None:
    """Numbers inside a tree, NaN, infinities and the least integers among them."""
    x = edges(dtype)
    ops = ("xor", "ne") if dtype == "bool" else ("add", "maximum", "lt")
    trees = [Expr(op, (Expr.leaf(0, dtype), Expr.const(v.item(), dtype)), "bool" if op in ("lt", "ne") else
                  dtype) for op, v in itertools.product(ops, x)]
    same(trees, [x], on_gpu(target, trees, [x]), [computed(t, [x]) for t in trees], signs=False)
