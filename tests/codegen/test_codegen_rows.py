"""Softmax and normalizations of rows: generated kernels against numpy in float64, on views of any layout."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

native = pytest.importorskip("native")

from draws import draws  # noqa: E402
from hypothesis import given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from orthrus.codegen.kernels import norm, rows  # noqa: E402
from orthrus.codegen.kernels.softmax import hardmax_rows, softmax_rows  # noqa: E402
from orthrus.codegen.machines.detect import host  # noqa: E402
from orthrus.codegen.machines.machine import AVX2, NEON, RVV256, SSE2  # noqa: E402
from orthrus.codegen.object import build  # noqa: E402
from orthrus.codegen.write.expr import Expr  # noqa: E402

LEAF = Expr.leaf(0, "float32")
DTYPES = {"float32": np.dtype(np.float32), "float16": np.dtype(np.float16),
          "bfloat16": np.dtype(ml_dtypes.bfloat16), "float64": np.dtype(np.float64)}
TOLERANCE = {"float32": 3e-6, "float16": 2e-3, "bfloat16": 1.6e-2, "float64": 1e-13}
KINDS = ("softmax", "log", "largest", "layer", "rms", "deviation", "l1", "l2", "max")


def steps(array: np.ndarray) -> tuple[int, ...]:
    return tuple(s // array.itemsize if d > 1 else 0 for s, d in zip(array.strides, array.shape, strict=True))


def wide(array: np.ndarray) -> np.ndarray:
    return array.astype(np.float64)


def laid(rng: np.random.Generator, shape: tuple[int, ...], order: tuple[int, ...], pad: int, dtype: str,
         scale: float = 3) -> np.ndarray:
    """Random numbers whose axes lie in memory in `order`, the last one padded by `pad`; the padding is NaN
    and the array ends where memory ends."""
    lying = [shape[a] for a in order]
    block = np.full((*lying[:-1], lying[-1] + pad), np.nan, DTYPES[dtype])
    block[..., :lying[-1]] = rng.normal(size=lying) * scale
    block = native.guarded(block)[..., :lying[-1]]
    return block.transpose(np.argsort(order))


def softmax(x: np.ndarray, axes: tuple[int, ...], log: bool) -> np.ndarray:
    x = x - x.max(axes, keepdims=True)
    total = np.exp(x).sum(axes, keepdims=True)
    return x - np.log(total) if log else np.exp(x) / total


def largest(x: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
    """1 at the first largest element along the axes, in the order in which they lie."""
    where = [a - x.ndim for a in sorted(axes, key=lambda a: -x.strides[a])]
    lines = np.moveaxis(x, where, range(-len(axes), 0))
    flat = lines.reshape(*lines.shape[:-len(axes)], -1)
    found = np.zeros_like(flat)
    np.put_along_axis(found, flat.argmax(-1)[..., None], 1, -1)
    return np.moveaxis(found.reshape(lines.shape), range(-len(axes), 0), where)


def normalized(x: np.ndarray, axes: tuple[int, ...], kind: str, epsilon: float) -> np.ndarray:
    if kind in ("l1", "l2"):
        size = (np.abs(x) if kind == "l1" else x * x).sum(axes, keepdims=True)
        size = size if kind == "l1" else np.sqrt(size)
        return np.where(size == 0, 0, x / np.where(size == 0, 1, size))
    if kind == "max":
        size = x.max(axes, keepdims=True)
        return x / np.where(size == 0, 1, size)
    centred = x if kind == "rms" else x - x.mean(axes, keepdims=True)
    power = (centred * centred).mean(axes, keepdims=True)
    return centred / (np.sqrt(power) + epsilon if kind == "deviation" else np.sqrt(power + epsilon))


@st.composite
def cases(draw: st.DrawFn) -> tuple:
    rank = draw(st.integers(1, 4))
    shape = tuple(draw(st.lists(st.integers(1, 9), min_size=rank, max_size=rank)))
    long = draw(st.integers(0, rank - 1))
    length = draw(st.sampled_from((1, 15, 16, 40, 129, 300)))
    shape = (*shape[:long], length, *shape[long + 1:])
    axes = tuple(sorted(draw(st.sets(st.integers(0, rank - 1), min_size=1, max_size=2))))
    order = tuple(draw(st.permutations(range(rank)))) if draw(st.booleans()) else tuple(range(rank))
    return (shape, axes, order, draw(st.integers(0, 2)), draw(st.sampled_from(tuple(DTYPES))),
            draw(st.sampled_from((host(), AVX2, SSE2))), draw(st.booleans()), draw(st.integers(0, 1 << 30)))


@draws(60)
@given(cases(), st.sampled_from(KINDS))
def test_rows_of_any_layout(case: tuple, kind: str) -> None:
    shape, axes, order, pad, dtype, machine, hold, seed = case
    rng = np.random.default_rng(seed)
    x, y = laid(rng, shape, order, pad, dtype), laid(rng, shape, order, pad and pad + 1, dtype)
    computed = "float64" if dtype == "float64" else "float32"
    walk = rows.plan(machine, shape, axes, [steps(x), steps(y)], computed, hold)
    if walk is None or kind == "largest" and walk.form.segments:
        return
    tree = Expr.leaf(0, dtype).cast(computed)
    shared = {"form": walk.form, "tensors": rows.tensors_of([dtype, dtype], walk), "reads": 1, "tree": tree,
              "after": None}
    if kind in ("softmax", "log"):
        spec, more = softmax_rows(log=kind == "log", **shared), []
        want = softmax(wide(x), axes, kind == "log")
    elif kind == "largest":
        spec, more, want = hardmax_rows(**shared), [], largest(x, axes)
    else:
        spec, more = norm.norm_rows(kind=kind, **shared), [rows.number_cell(1e-5, computed)]
        want = normalized(wide(x), axes, kind, 1e-5)
        apart = np.abs(wide(x) - wide(x).mean(axes, keepdims=True))
        larger = np.abs(wide(x)).max(axes, keepdims=True) * np.abs(want)
        rounding = 2.0 ** -50 if dtype == "float64" else 2.0 ** -22
        rounded = rounding * np.divide(larger, apart, out=np.zeros_like(want), where=apart != 0)
    native.run(spec, *walk.cells([x, y]), *more, items=walk.items, scratch=walk.scratch, machine=machine,
               splits=(walk.items // 3,))
    close(y, want, dtype, 0 if kind in KINDS[:3] else rounded)


@pytest.mark.parametrize("machine", (host(), AVX2, SSE2), ids=("host", "avx2", "sse2"))
@pytest.mark.parametrize("hold", (True, False))
@pytest.mark.parametrize("dtype", ("float32", "float16", "float64"))
def test_several_places_of_few_rows(dtype: str, hold: bool, machine: object) -> None:
    """Fewer rows than half a vector's lanes, place after place."""
    rng, among = np.random.default_rng(0), set()
    for count in range(2, 9):
        for length in (1, 2, 7, 64, 1500):
            x, y = (laid(rng, (2, length, count), (0, 1, 2), 0, dtype) for _ in range(2))
            computed = "float64" if dtype == "float64" else "float32"
            walk = rows.plan(machine, x.shape, (1,), [steps(x), steps(y)], computed, hold)
            among.add(walk.form.among)
            tree = Expr.leaf(0, dtype).cast(computed)
            shared = {"form": walk.form, "tensors": rows.tensors_of([dtype, dtype], walk), "reads": 1,
                      "tree": tree, "after": None}
            for spec, more, want in (
                    (softmax_rows(log=False, **shared), [], softmax(wide(x), (1,), False)),
                    (hardmax_rows(**shared), [], largest(x, (1,))),
                    (norm.norm_rows(kind="l2", **shared), [rows.number_cell(0, computed)],
                     normalized(wide(x), (1,), "l2", 0))):
                native.run(spec, *walk.cells([x, y]), *more, items=walk.items, scratch=walk.scratch,
                           machine=machine)
                close(y, want, dtype)
    lanes = machine.lanes(8 if dtype == "float64" else 4)
    assert among == {0, *range(2, lanes // 2 + 1)}


def close(y: np.ndarray, want: np.ndarray, dtype: str, rounded: np.ndarray | float = 0) -> None:
    """`rounded`: what the rounding of a mean may add where values are close to each other."""
    most = TOLERANCE[dtype] * max(1, np.abs(want).max(initial=0)) / 2 + rounded
    assert np.isclose(wide(y), want, TOLERANCE[dtype], most, equal_nan=True).all(), (y, want)


@pytest.mark.parametrize("n", (7, 48, 333))
@pytest.mark.parametrize("hold", (True, False))
def test_softmax_with_scale_mask_and_chain(n: int, hold: bool) -> None:
    rng = np.random.default_rng(n)
    x = native.guarded(rng.normal(size=(2, 3, 5, n)).astype(np.float32))
    mask = native.guarded(np.where(rng.random((2, 1, 1, n)) < .3, -np.inf, 0).astype(np.float32))
    gate = native.guarded(rng.normal(size=(3, 1, 1)).astype(np.float32))
    y = native.guarded(np.zeros((2, 3, 5, n), np.float16))
    spread = [np.broadcast_to(a, x.shape) for a in (mask, gate)]
    walk = rows.plan(host(), x.shape, (3,), [steps(a) for a in (x, *spread, y)], hold=hold)
    assert walk is not None
    tree = Expr("fma", (LEAF, Expr.const(0.125, "float32"), Expr.leaf(1, "float32")), "float32")
    after = Expr("mul", (LEAF, Expr.leaf(1, "float32")), "float32").cast("float16")
    tensors = rows.tensors_of(["float32"] * 3 + ["float16"], walk)
    spec = softmax_rows(form=walk.form, tensors=tensors, reads=2, tree=tree, after=after, log=False)
    native.run(spec, *walk.cells([x, mask, gate, y]), items=walk.items, scratch=walk.scratch, splits=(7, 8))
    close(y, softmax(wide(x) * .125 + mask, (3,), False) * gate, "float16")


@pytest.mark.parametrize("n", (30, 768))
@pytest.mark.parametrize("kind", ("layer", "rms"))
def test_residual_norm_keeps_the_sum(n: int, kind: str) -> None:
    rng = np.random.default_rng(n)
    x, skip, y, kept = (native.guarded(rng.normal(size=(11, n)).astype(np.float32)) for _ in range(4))
    scale, bias, inner = (native.guarded(rng.normal(size=n).astype(np.float32)) for _ in range(3))
    means, factors = np.zeros(11, np.float32), np.zeros(11, np.float32)
    spread = [np.broadcast_to(a, x.shape) for a in (inner, scale, bias)]
    walk = rows.plan(host(), x.shape, (1,), [steps(a) for a in (x, skip, *spread, kept, y)])
    assert walk is not None
    leaves = [Expr.leaf(i, "float32") for i in range(3)]
    tree = Expr("add", (Expr("add", (leaves[0], leaves[1]), "float32"), leaves[2]), "float32")
    spec = norm.norm_rows(form=walk.form, tensors=rows.tensors_of(["float32"] * 7, walk), reads=3, tree=tree,
                          after=Expr("fma", tuple(leaves), "float32"), kind=kind, keeps=True, mean=True,
                          inverse=True)
    native.run(spec, *walk.cells([x, skip, inner, scale, bias, kept, y]), 1e-5, means, factors,
               items=walk.items, scratch=walk.scratch)
    total = wide(x) + skip + inner
    close(kept, total, "float32")
    close(y, normalized(total, (1,), kind, 1e-5) * scale + bias, "float32")
    mean = total.mean(1) if kind == "layer" else np.zeros(11)
    close(means, mean, "float32")
    close(factors, 1 / np.sqrt(((total - mean[:, None]) ** 2).mean(1) + 1e-5), "float32")


@pytest.mark.parametrize("hold", (True, False))
def test_infinite_and_masked_rows(hold: bool) -> None:
    x = np.zeros((5, 21), np.float32)
    x[1] = -np.inf
    x[2, 3] = np.nan
    x[3, 20] = np.inf
    x[4, ::2] = -np.inf
    y = np.zeros_like(x)
    walk = rows.plan(host(), x.shape, (1,), [steps(x), steps(y)], hold=hold)
    assert walk is not None
    shared = {"form": walk.form, "tensors": rows.tensors_of(["float32"] * 2, walk), "reads": 1, "tree": LEAF,
              "after": None}
    native.run(softmax_rows(log=False, **shared), *walk.cells([x, y]), items=5, scratch=walk.scratch)
    with np.errstate(invalid="ignore"):
        np.testing.assert_allclose(y, softmax(wide(x), (1,), False), rtol=1e-6)
    native.run(hardmax_rows(**shared), *walk.cells([x, y]), items=5, scratch=walk.scratch)
    np.testing.assert_array_equal(y, largest(x, (1,)))


@pytest.mark.parametrize("dtype", ("float16", "bfloat16"))
def test_halves_are_rounded_as_the_function_of_the_operator_says(dtype: str) -> None:
    from orthrus.ops import find

    rng = np.random.default_rng(1)
    for shape in ((7, 300), (3, 5), (40, 2)):
        x, y = laid(rng, shape, (0, 1), 0, dtype), laid(rng, shape, (0, 1), 0, dtype)
        walk = rows.plan(host(), shape, (1,), [steps(x), steps(y)])
        assert walk is not None
        spec = softmax_rows(form=walk.form, tensors=rows.tensors_of([dtype] * 2, walk), reads=1,
                            tree=Expr.leaf(0, dtype).cast("float32"), after=None, log=False, steps=dtype)
        native.run(spec, *walk.cells([x, y]), items=walk.items, scratch=walk.scratch)
        want = find("", "Softmax", 13)(x, axis=1).astype(x.dtype)
        differ = np.abs(y.view(np.int16).astype(int) - want.view(np.int16))
        assert differ.max() <= 1 and (differ > 0).mean() < 0.02


def test_large_mean_keeps_the_variance() -> None:
    rng = np.random.default_rng(1)
    x = (rng.normal(size=(3, 5000)) + 1000).astype(np.float32)
    for view in (x, np.ascontiguousarray(x.T).T):
        y = np.zeros_like(view)
        walk = rows.plan(host(), x.shape, (1,), [steps(view), steps(y)])
        assert walk is not None
        tensors = rows.tensors_of(["float32"] * 2, walk)
        spec = norm.norm_rows(form=walk.form, tensors=tensors, reads=1, tree=LEAF, after=None, kind="layer")
        native.run(spec, *walk.cells([view, y]), 1e-5, items=walk.items, scratch=walk.scratch)
        np.testing.assert_allclose(y, normalized(wide(x), (1,), "layer", 1e-5), atol=2e-4)


def test_plan_refuses_what_has_no_unit_stride() -> None:
    assert rows.plan(AVX2, (4, 6), (1,), [(12, 2), (12, 2)]) is None
    assert rows.plan(AVX2, (2, 3, 4, 5, 6), (4,), [(5000, 1100, 210, 40, 1)] * 2) is None


@pytest.mark.parametrize("machine", (NEON, RVV256))
@pytest.mark.parametrize("axes", ((1,), (2,), (1, 2)))
def test_other_machines_assemble(machine, axes: tuple[int, ...]) -> None:
    shape = (4, 50, 30)
    for dtype in DTYPES:
        computed = "float64" if dtype == "float64" else "float32"
        walk = rows.plan(machine, shape, axes, [(1600, 31, 1)] * 2, computed)
        assert walk is not None
        shared = {"form": walk.form, "tensors": rows.tensors_of([dtype] * 2, walk), "reads": 1,
                  "tree": Expr.leaf(0, dtype).cast(computed), "after": None}
        for spec in (softmax_rows(log=True, **shared), hardmax_rows(**shared),
                     norm.norm_rows(kind="layer", **shared)):
            assert build.assemble(spec.text(machine), machine)
