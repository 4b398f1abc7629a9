"""Reductions of tensors of any layout: generated kernels, and whole models, against the operators'
definitions."""

from __future__ import annotations

import itertools
from typing import Any
from unittest import mock

import ml_dtypes
import numpy as np
import pytest

native = pytest.importorskip("native")

from draws import draws  # noqa: E402
from graphs import info, model  # noqa: E402
from hypothesis import given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from onnx import TensorProto, helper, numpy_helper  # noqa: E402

import orthrus  # noqa: E402
from orthrus.codegen.kernels import reduce  # noqa: E402
from orthrus.codegen.machines.detect import host  # noqa: E402
from orthrus.codegen.machines.machine import AVX2, NEON, RVV256, SSE2, Machine  # noqa: E402
from orthrus.codegen.object import build  # noqa: E402
from orthrus.codegen.write.expr import BYTES, Expr  # noqa: E402
from orthrus.lowering.native import Native  # noqa: E402
from orthrus.ops.define import find  # noqa: E402

DTYPES = {"float32": np.dtype(np.float32), "float16": np.dtype(np.float16), "float64": np.dtype(np.float64),
          "bfloat16": np.dtype(ml_dtypes.bfloat16), "int32": np.dtype(np.int32), "int64": np.dtype(np.int64),
          "uint8": np.dtype(np.uint8)}
KINDS = {"sum": "ReduceSum", "max": "ReduceMax", "min": "ReduceMin", "prod": "ReduceProd"}
MACHINES = (host(), AVX2, SSE2)


def numbers(rng: np.random.Generator, shape: tuple[int, ...], dtype: str, ties: bool = False) -> np.ndarray:
    if "int" in dtype or dtype == "bool":
        return rng.integers(0 if dtype[0] in "ub" else -5, 6 if dtype != "bool" else 2, shape).astype(dtype)
    x = rng.integers(-3, 4, shape) if ties else rng.normal(size=shape)
    return x.astype(DTYPES[dtype])


def laid(x: np.ndarray, order: tuple[int, ...], pad: int) -> np.ndarray:
    """`x` with its axes in memory in `order`, the last one padded by `pad`, ending where memory ends."""
    lying = [x.shape[a] for a in order]
    block = np.ones((*lying[:-1], lying[-1] + pad), x.dtype)
    block[..., :lying[-1]] = x.transpose(order)
    return native.guarded(block)[..., :lying[-1]].transpose(np.argsort(order))


def steps(x: np.ndarray, gone: tuple[int, ...] = ()) -> tuple[int, ...]:
    return tuple(0 if a in gone else s // x.itemsize for a, s in enumerate(x.strides))


@st.composite
def cases(draw: st.DrawFn) -> tuple:
    rank = draw(st.integers(1, 4))
    shape = draw(st.lists(st.integers(1, 6), min_size=rank, max_size=rank))
    shape[draw(st.integers(0, rank - 1))] = draw(st.sampled_from((1, 15, 16, 40, 64, 129, 700)))
    axes = tuple(sorted(draw(st.sets(st.integers(0, rank - 1), min_size=1, max_size=rank))))
    order = tuple(draw(st.permutations(range(rank))))
    return tuple(shape), axes, order, draw(st.integers(0, 2)), draw(st.integers(0, 1 << 30))


@draws(120)
@given(cases(), st.sampled_from((*KINDS, "arg max", "arg min", "arg max last", "arg min last")),
       st.sampled_from(tuple(DTYPES)), st.sampled_from(MACHINES), st.booleans())
def test_any_layout(case: tuple, kind: str, dtype: str, machine: Machine, nan: bool) -> None:
    shape, axes, order, pad, seed = case
    rng = np.random.default_rng(seed)
    arg = kind.startswith("arg")
    axes = axes[:1] if arg else axes
    work = "float32" if dtype in ("float16", "bfloat16") else dtype
    x = numbers(rng, shape, dtype, arg)
    if nan and "float" in dtype:
        x[tuple(rng.integers(0, d) for d in shape)] = np.nan
    x = laid(x, order, pad)
    short = tuple(1 if a in axes else d for a, d in enumerate(shape))
    out = "int64" if arg else dtype
    y = laid(np.zeros(short, DTYPES[out]), order, pad and pad + 1)
    walk = reduce.plan(machine, shape, axes, [steps(x), steps(y, axes)], 1, BYTES[work])
    if walk is None:
        assert pad and order[-1] in [a for a, d in enumerate(shape) if d == 1]
        return
    spec = reduce.reduce_axes(form=walk.form, kind=kind, reads=((dtype, walk.units[0]),),
                              tree=Expr.leaf(0, dtype).cast(work), operands=(), out=out, after=None)
    native.run(spec, *walk.cells([x, y]), items=walk.items, machine=machine, splits=(walk.items // 2,))
    if arg:
        found = find("", "ArgMax" if "max" in kind else "ArgMin", 13).bind(
            {"axis": axes[0], "select_last_index": int("last" in kind)})(x)
        np.testing.assert_array_equal(y, found)
        return
    want = find("", KINDS[kind], 18).bind({})(x if "int" in dtype else x.astype(np.float64),
                                             np.array(axes)).astype(np.float64)
    tolerance = {"float64": 1e-12, "float32": 3e-6, "float16": 2e-3, "bfloat16": 2e-2}.get(dtype, 0)
    scale = 1 if kind != "sum" else np.abs(x.astype(np.float64)).sum(axes, keepdims=True)
    np.testing.assert_array_equal(np.isnan(y.astype(np.float64)), np.isnan(want))
    away = np.nan_to_num(np.abs(y.astype(np.float64) - want))
    assert (away <= tolerance * np.nan_to_num(np.maximum(scale, np.abs(want)))).all()


@draws(80)
@given(cases(), st.sampled_from(("sum", "max", "min")),
       st.sampled_from(("float32", "float64", "float16", "int32", "int64")), st.sampled_from(MACHINES))
def test_chains_of_any_layout(case: tuple, kind: str, dtype: str, machine: Machine) -> None:
    """Exponentials of what lies below a number that each result has."""
    shape, axes, order, pad, seed = case
    rng = np.random.default_rng(seed)
    work = "float64" if dtype in ("float64", "int32", "int64") else "float32"
    x = laid((rng.normal(size=shape) * 4).astype(dtype), order, pad)
    short = tuple(1 if a in axes else d for a, d in enumerate(shape))
    top = laid((rng.normal(size=short) * 2).astype(work), order, pad)
    y = laid(np.zeros(short, work), order, pad and pad + 1)
    walk = reduce.plan(machine, shape, axes, [steps(x), steps(top, axes), steps(y, axes)], 2, BYTES[work])
    if walk is None:
        return
    below = Expr("sub", (Expr.leaf(0, dtype).cast(work), Expr.leaf(1, work)), work)
    spec = reduce.reduce_axes(form=walk.form, kind=kind, reads=(
        (dtype, walk.units[0]), (work, walk.units[1])), tree=Expr("exp", (below,), work), operands=(),
        out=work, after=None)
    native.run(spec, *walk.cells([x, top, y]), items=walk.items, machine=machine, splits=(walk.items // 2,))
    every = np.exp(x.astype(np.float64) - top)
    want = {"sum": every.sum, "max": every.max, "min": every.min}[kind](axes, keepdims=True)
    np.testing.assert_allclose(y, want, rtol=1e-12 if work == "float64" else 2e-6)


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("along", (False, True))
def test_long_sums_are_as_accurate_as_pairwise(machine: Machine, along: bool) -> None:
    rng = np.random.default_rng(0)
    x = rng.random((1 << 20, 1) if along else (1 << 14, 32), np.float32) + np.float32(0.5)
    y = np.zeros((1, x.shape[1]), np.float32)
    walk = reduce.plan(machine, x.shape, (0,), [steps(x), steps(y, (0,))], 1, 4)
    spec = reduce.reduce_axes(form=walk.form, kind="sum", reads=(("float32", 1),), operands=(),
                              tree=Expr.leaf(0, "float32"), out="float32", after=None)
    native.run(spec, *walk.cells([x, y]), items=walk.items, machine=machine)
    exact = x.sum(0, dtype=np.float64)
    assert np.max(np.abs(y[0] - exact) / exact) < 3e-7
    x[5, 0] = np.inf
    native.run(spec, *walk.cells([x, y]), items=walk.items, machine=machine)
    assert y[0, 0] == np.inf


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("kind", (*KINDS, "arg max", "arg min last"))
@pytest.mark.parametrize("dtype", ("float32", "float64", "float16", "int32", "int64"))
def test_runs_of_few_elements_are_folded_as_lanes_are(machine: Machine, kind: str, dtype: str) -> None:
    """The very bits of one run at a time that a vector holds, however many there are, beside an operand that
    all have and one that each has."""
    for few, rows in itertools.product(range(2, reduce.FEW + 1), (1, 5, 16, 45)):
        found, one = (_few_folded(machine, kind, dtype, few, rows, beside) for beside in (True, False))
        if few <= machine.lanes(BYTES["float32" if dtype == "float16" else dtype]):
            np.testing.assert_array_equal(found.view(np.uint8), one.view(np.uint8))
        np.testing.assert_allclose(found, one, *((1e-5, 1e-4) if dtype != "float64" else (1e-13, 1e-12)))


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("kind", (*KINDS, "arg max", "arg min last"))
@pytest.mark.parametrize("dtype", ("float32", "float64", "float16", "int32", "int64"))
def test_short_runs_are_folded_as_lanes_are(machine: Machine, kind: str, dtype: str) -> None:
    """The very bits of one run at a time, where that has one chain too, for runs of any rest of vectors."""
    lanes = machine.lanes(BYTES["float32" if dtype == "float16" else dtype])
    lengths = {reduce.FEW + 1, *(lanes * n + rest for n in (1, 2, 3, reduce.SHORT) for rest in (-1, 0, 1))}
    for length, rows in itertools.product(sorted(lengths - set(range(reduce.FEW + 1))), (3, 16, 45)):
        found, one = (_few_folded(machine, kind, dtype, length, rows, beside) for beside in (True, False))
        if length < 4 * lanes:
            np.testing.assert_array_equal(found.view(np.uint8), one.view(np.uint8))
        if "prod" not in kind:
            np.testing.assert_allclose(found, one, *((1e-5, 1e-4) if dtype != "float64" else (1e-13, 1e-12)))


def _few_folded(machine: Machine, kind: str, dtype: str, few: int, rows: int, beside: bool) -> np.ndarray:
    """Runs of `few` elements folded: many at a time, or one where their results do not lie `beside` each
    other."""
    rng = np.random.default_rng(few)
    arg, work = kind.startswith("arg"), "float32" if dtype == "float16" else dtype
    out = "int64" if arg else work
    x = native.guarded(numbers(rng, (3, rows, 2, few), dtype, arg))
    x[0, 0, 0] = 0 if dtype.startswith("int") else (-0.0, np.nan)[rows % 2]
    both = numbers(rng, (3, rows, 2, few), work)[:, :1, :1]
    each = numbers(rng, (3, rows, 2, 1), out)
    operand = native.guarded(each) if beside else np.repeat(each, 2, 3)[..., :1]
    y = native.guarded(np.zeros_like(each)) if beside else np.zeros((*each.shape[:3], 2), out)[..., :1]
    end = steps(y, (3,))
    walk = reduce.plan(machine, x.shape, (3,), [steps(x), steps(np.broadcast_to(both, x.shape)), end, end], 2,
                       BYTES[work])
    lanes = machine.lanes(BYTES[work])
    assert walk is not None and walk.form.few == (few if beside and few <= reduce.FEW else 0)
    assert walk.form.abreast == (beside and not walk.form.few and few <= reduce.SHORT * lanes
                                 and 2 * rows >= lanes)
    tree = Expr("add", (Expr.leaf(0, dtype).cast(work), Expr.leaf(1, work)), work)
    after = Expr("add", (Expr.leaf(0, out), Expr.leaf(1, out)), out)
    spec = reduce.reduce_axes(form=walk.form, kind=kind, tree=tree, out=out, after=after,
                              operands=((out, walk.units[2]),),
                              reads=((dtype, walk.units[0]), (work, walk.units[1])))
    native.run(spec, *walk.cells([x, both, operand, y]), items=walk.items, machine=machine,
               splits=(walk.items // 2,))
    return np.ascontiguousarray(y)


@pytest.mark.parametrize("machine", (NEON, RVV256))
@pytest.mark.parametrize("across,few,abreast", ((False, 0, False), (True, 0, False), (True, 3, False),
                                                (False, 0, True)))
@pytest.mark.parametrize("kind,dtype", (("sum", "float32"), ("max", "uint8"), ("arg min", "float64")))
def test_other_machines_assemble(machine: Machine, across: bool, few: int, abreast: bool, kind: str,
                                 dtype: str) -> None:
    if abreast and BYTES[dtype] < 4:
        dtype = "int32"
    form = reduce.ReduceForm(2, 1, across, 2 if across and not few else 1, across, few, abreast)
    out = "int64" if "arg" in kind else dtype
    spec = reduce.reduce_axes(form=form, kind=kind, reads=((dtype, 1),), tree=Expr.leaf(0, dtype),
                              operands=((out, int(form.laned)),), out=out,
                              after=Expr("add", (Expr.leaf(0, out), Expr.leaf(1, out)), out))
    assert build.assemble(spec.text(machine), machine)


def session(nodes: list[Any], arrays: dict[str, np.ndarray], constants: dict[str, np.ndarray],
            outputs: list[str], version: int = 18) -> orthrus.InferenceSession:
    """A session of a model with these nodes, whose inputs have the arrays' types and shapes, generated for
    one of `MACHINES`."""
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
                     for n, a in arrays.items()],
        [helper.make_tensor_value_info(n, TensorProto.UNDEFINED, None) for n in outputs],
        [numpy_helper.from_array(a, n) for n, a in constants.items()])
    for value in graph.output:
        value.ClearField("type")
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", version)], ir_version=9)
    target = MACHINES[sum(map(sum, (a.shape for a in arrays.values()))) % len(MACHINES)]
    with mock.patch.object(orthrus.codegen.machines.detect, "host", lambda: target):
        return orthrus.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])


OPS = ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2",
       "ReduceLogSum", "ReduceLogSumExp", "ReduceSumSquare", "ArgMax", "ArgMin", "GlobalAveragePool")


@draws(40)
@given(cases(), st.sampled_from(OPS), st.sampled_from(("float32", "float16", "int32", "int64", "float64")),
       st.booleans(), st.booleans())
def test_models(case: tuple, name: str, dtype: str, keepdims: bool, around: bool) -> None:
    shape, axes, order, _, seed = case
    rng = np.random.default_rng(seed)
    if name == "GlobalAveragePool":
        shape = (*shape, 2, 3)[:4] if len(shape) > 1 else (2, *shape, 3)
        order, dtype = (0, *range(2, len(shape)), 1), "float32"
    x = numbers(rng, shape, dtype)
    x = np.abs(x) + x.dtype.type(1) if name == "ReduceLogSum" else x
    attrs: dict[str, Any] = {"keepdims": int(keepdims)}
    constants = {"axes": np.array(axes, np.int64)}
    inputs = ["t", "axes"]
    if name.startswith("Arg") or name == "GlobalAveragePool":
        attrs = {"axis": axes[0], "keepdims": int(keepdims)} if name.startswith("Arg") else {}
        constants, inputs = {}, ["t"]
    given_ = x.transpose(order).copy()
    nodes = [helper.make_node("Transpose", ["x"], ["t0"], perm=[int(i) for i in np.argsort(order)]),
             helper.make_node("Neg" if around else "Identity", ["t0"], ["t"]),
             helper.make_node(name, inputs, ["r"], **attrs),
             helper.make_node("Abs" if around else "Identity", ["r"], ["y"])]
    made = session(nodes, {"x": given_}, constants, ["y"])
    x = -x if around else x
    want = find("", name, 18).bind(attrs)(x, *constants.values())
    want = np.abs(want) if around else want
    with mock.patch.object(Native, "interpret", side_effect=AssertionError("not lowered")):
        (y,) = made.run(None, {"x": given_})
    assert y.dtype == want.dtype and y.shape == want.shape
    tolerance = {"float16": 2e-3, "float32": 1e-5, "float64": 1e-12}.get(dtype, 0)
    scale = np.abs(x.astype(np.float64)).sum() if "Mean" in name or "Sum" in name or "Pool" in name else 1
    np.testing.assert_allclose(y.astype(np.float64), want.astype(np.float64), tolerance, tolerance * scale)


@pytest.mark.parametrize("shape,axes", (((1 << 19,), (0,)), ((300, 1001), (0, 1)), ((3, 70000), (1,)),
                                        ((70001, 3), (0,)), ((1, 129, 57, 64), (1, 2))))
@pytest.mark.parametrize("name", ("ReduceSum", "ReduceMax", "ReduceMean"))
def test_large_inputs_go_in_pieces(shape: tuple[int, ...], axes: tuple[int, ...], name: str) -> None:
    x = np.random.default_rng(1).random(shape, np.float32)
    nodes = [helper.make_node(name, ["x", "axes"], ["y"], keepdims=0)]
    made = session(nodes, {"x": x}, {"axes": np.array(axes, np.int64)}, ["y"])
    want = find("", name, 18).bind({"keepdims": 0})(x.astype(np.float64), np.array(axes))
    np.testing.assert_allclose(made.run(None, {"x": x})[0], want, 4e-7)


def test_booleans_and_no_axes() -> None:
    x = np.array([[True, False], [True, True]])
    for name, want in (("ReduceMax", [True, True]), ("ReduceMin", [True, False])):
        nodes = [helper.make_node(name, ["x", "axes"], ["y"], keepdims=0)]
        made = session(nodes, {"x": x}, {"axes": np.array([0], np.int64)}, ["y"], 20)
        np.testing.assert_array_equal(made.run(None, {"x": x})[0], want)
    y = np.ones((2, 3), np.float32)
    nodes = [helper.make_node("ReduceSum", ["x"], ["y"], noop_with_empty_axes=1)]
    np.testing.assert_array_equal(session(nodes, {"x": y}, {}, ["y"]).run(None, {"x": y})[0], y)
    nodes = [helper.make_node("ReduceSum", ["x"], ["y"], axes=[-1], keepdims=0)]
    np.testing.assert_array_equal(session(nodes, {"x": y}, {}, ["y"], 11).run(None, {"x": y})[0], [3, 3])


@pytest.mark.parametrize("dtype", ("uint32", "uint64", "int32", "int64"))
@pytest.mark.parametrize("n", (2, 3, 9, 70))
def test_means_of_integers_are_divided_after_every_lane_is_in(dtype: str, n: int) -> None:
    """One row's sum lies in one lane when it is divided: a pattern that LLVM 22 gets wrong in a vector."""
    x = np.random.default_rng(n).integers(0, 1000, (6, n)).astype(dtype)
    nodes = [helper.make_node("ReduceMean", ["x", "axes"], ["y"], keepdims=0)]
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    made = model(nodes, [info("x", kind, x.shape)], [info("y", kind, (6,))], {"axes": np.array([1])}, 18)
    (y,) = orthrus.InferenceSession(made.SerializeToString()).run(None, {"x": x})
    np.testing.assert_array_equal(y, x.sum(1) // n)


FOLLOWS = {"Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Div": np.floor_divide, "Max": np.maximum,
           "Min": np.minimum, "Less": np.less}


@pytest.mark.parametrize("follow", FOLLOWS)
@pytest.mark.parametrize("dtype", ("uint32", "int32", "uint64", "int64"))
def test_what_follows_a_row_of_integers_has_every_lane(dtype: str, follow: str) -> None:
    """Whatever is computed in the same kernel, of rows that differ from lane to lane."""
    folds = {"ReduceSum": np.sum, "ReduceProd": np.prod, "ReduceMax": np.max, "ReduceMin": np.min}
    for n, (name, fold) in itertools.product((1, 7, 8, 9), folds.items()):
        x = np.random.default_rng(n).integers(1, 3 if name == "ReduceProd" else 6, n).astype(dtype)
        other = np.array([4], dtype)
        nodes = [helper.make_node(name, ["x"], ["s"]), helper.make_node(follow, ["s", "b"], ["y"])]
        (y,) = session(nodes, {"x": x, "b": other}, {}, ["y"]).run(None, {"x": x, "b": other})
        with np.errstate(over="ignore"):
            want = FOLLOWS[follow](fold(x).astype(dtype), other)
        np.testing.assert_array_equal(y, want, f"{name} of {n}, {follow}, {dtype}")


@pytest.mark.parametrize("name", ("ReduceSum", "ReduceMean", "ReduceMin", "ReduceLogSumExp"))
@pytest.mark.parametrize("shape", [(1,), (2, 1, 1, 1), (1, 3, 1, 1), (2,), (2, 3, 1, 1), (3, 1, 2)])
def test_operands_that_broadcast_along_what_is_folded(name: str, shape: tuple[int, ...]) -> None:
    """Rules lower them: `fallback="error"` says where one fails."""
    rng = np.random.default_rng(0)
    x, other = (rng.normal(size=s).astype(np.float32) for s in ((2, 3, 4, 2), shape))
    nodes = [helper.make_node("Sub", ["x", "b"], ["d"]), helper.make_node(name, ["d"], ["y"])]
    kinds = [info(n, TensorProto.FLOAT, s) for n, s in (("x", x.shape), ("b", shape))]
    made = model(nodes, kinds, [info("y", TensorProto.FLOAT, (1, 1, 1, 1))], {}, 18).SerializeToString()
    results = []
    for use in "10":
        provider = ("CPUExecutionProvider", {"use_codegen": use})
        it = orthrus.InferenceSession(made, providers=[provider], fallback="error")
        results += it.run(None, {"x": x, "b": other})
    np.testing.assert_allclose(*results, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ("ReduceL2", "ReduceLogSum", "ReduceLogSumExp"))
@pytest.mark.parametrize("dtype", ("int32", "uint32", "int64", "uint64"))
def test_roots_and_logarithms_of_integers(name: str, dtype: str) -> None:
    """As float64: sums of nothing but zeros, negative ones, and those that an integer could not hold, too."""
    rng, least = np.random.default_rng(0), np.iinfo(dtype).min
    most = min(np.iinfo(dtype).max, 1 << 40)
    for shape, axes in (((7,), [0]), ((2, 3, 17), [1]), ((3, 5, 20), [2]), ((40, 33), [0, 1])):
        for low, high in ((0, 1), (max(least, -9), 10), (max(least, -most), most), (max(least, -9), 0)):
            x = rng.integers(low, max(high, low + 1), shape).astype(dtype)
            nodes = [helper.make_node(name, ["x", "a"], ["y"])]
            made = session(nodes, {"x": x}, {"a": np.array(axes)}, ["y"])
            (y,) = made.run(None, {"x": x})
            with np.errstate(all="ignore"):
                want = find("", name, 18).bind({"keepdims": 1})(x, np.array(axes))
            np.testing.assert_array_equal(y, want)
            assert not any(part.numpy for part in made.explain().parts)
