"""Elements by index, views put together, transposing copies and the k best: whole models against the
operators' definitions, kernels between pages nobody may touch."""

from __future__ import annotations

import re
from typing import Any
from unittest import mock

import numpy as np
import pytest

native = pytest.importorskip("native")

from draws import draws  # noqa: E402
from hypothesis import given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from onnx import helper  # noqa: E402
from test_codegen_reduce import laid, session, steps  # noqa: E402

from orthrus.codegen.kernels import gather, loops, pool, sample, top_k, transpose  # noqa: E402
from orthrus.codegen.machines.detect import host  # noqa: E402
from orthrus.codegen.machines.machine import AVX2, NEON, RVV256, SSE2, Machine  # noqa: E402
from orthrus.codegen.object import build  # noqa: E402
from orthrus.codegen.write.spec import Spec  # noqa: E402
from orthrus.errors import InvalidArgument  # noqa: E402
from orthrus.lowering.native import Native  # noqa: E402
from orthrus.ops.define import find  # noqa: E402

MACHINES = (host(), AVX2, SSE2)
DTYPES = ("float32", "int64", "uint8", "float16", "float64", "bool")


def numbers(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    return rng.integers(0, 2 if dtype == "bool" else 100, shape).astype(dtype)


def one(name: str, arrays: dict[str, np.ndarray], constants: dict[str, np.ndarray], attrs: dict[str, Any],
        order: list[str], version: int = 18, outputs: int = 1, turned: tuple[int, ...] | None = None,
        after: str | None = None) -> list[np.ndarray]:
    """The results of a model of one operator, and of its definition; `turned`: the first input comes in with
    its axes in that order; `after`: an operator behind the first result."""
    given_, nodes, inputs = dict(arrays), [], list(order)
    if turned is not None:
        given_[order[0]] = arrays[order[0]].transpose(turned).copy()
        back = [int(i) for i in np.argsort(turned)]
        nodes = [helper.make_node("Transpose", [order[0]], ["turned"], perm=back)]
        inputs[0] = "turned"
    outs = [f"y{i}" for i in range(outputs)]
    nodes.append(helper.make_node(name, inputs, outs, **attrs))
    if after:
        nodes.append(helper.make_node(after, ["y0"], ["z"]))
        outs = ["z", *outs[1:]]
    made = session(nodes, given_, constants, outs, version)
    with mock.patch.object(Native, "interpret", side_effect=AssertionError("not lowered")):
        found = made.run(None, given_)
    every = {**arrays, **constants, "": None}
    wanted = find("", name, version).bind(attrs, outputs)(*(every[n] for n in order))
    wanted = list(wanted) if isinstance(wanted, tuple) else [wanted]
    if after:
        wanted[0] = find("", after, version).bind({})(wanted[0])
    for y, want in zip(found, wanted, strict=True):
        assert y.dtype == want.dtype
        np.testing.assert_array_equal(y, want)
    return found


@st.composite
def tensors(draw: st.DrawFn, least: int = 1, long: tuple[int, ...] = (1, 3, 16, 40, 70)) -> tuple:
    rank = draw(st.integers(least, 4))
    shape = draw(st.lists(st.integers(1, 6), min_size=rank, max_size=rank))
    shape[draw(st.integers(0, rank - 1))] = draw(st.sampled_from(long))
    turned = tuple(draw(st.permutations(range(rank)))) if draw(st.booleans()) else None
    rng = np.random.default_rng(draw(st.integers(0, 1 << 30)))
    return numbers(rng, tuple(shape), draw(st.sampled_from(DTYPES))), turned, rng


def after(x: np.ndarray, wanted: bool) -> str | None:
    return "Neg" if wanted and x.dtype.kind in "fi" else None


@draws(40)
@given(tensors(), st.integers(-4, 3), st.lists(st.integers(1, 4), max_size=2), st.booleans(), st.booleans())
def test_gather(case: tuple, axis: int, own: list[int], small: bool, more: bool) -> None:
    x, turned, rng = case
    axis = (axis + 4) % x.ndim
    d = x.shape[axis]
    indices = np.asarray(rng.integers(-d, d, own), np.int32 if small else np.int64)
    one("Gather", {"x": x, "i": indices}, {}, {"axis": axis}, ["x", "i"], turned=turned, after=after(x, more))
    if x.ndim > 1:
        one("Gather", {"x": x}, {"i": indices}, {"axis": axis - x.ndim}, ["x", "i"], turned=turned)


@draws(40)
@given(tensors(), st.integers(0, 3), st.booleans())
def test_gather_elements(case: tuple, axis: int, small: bool) -> None:
    x, turned, rng = case
    axis %= x.ndim
    shape = [int(rng.integers(1, d + 1 + 3 * (a == axis))) for a, d in enumerate(x.shape)]
    d = x.shape[axis]
    indices = rng.integers(-d, d, shape).astype(np.int32 if small else np.int64)
    one("GatherElements", {"x": x, "i": indices}, {}, {"axis": axis}, ["x", "i"], turned=turned)


@draws(40)
@given(tensors(), st.integers(0, 2), st.integers(1, 3), st.integers(0, 2))
def test_gather_tuples(case: tuple, batch: int, parts: int, free: int) -> None:
    x, turned, rng = case
    batch = min(batch, x.ndim - 1)
    parts = min(parts, x.ndim - batch)
    lead = (*x.shape[:batch], *rng.integers(1, 4, free))
    limits = x.shape[batch:batch + parts]
    indices = np.stack([rng.integers(-d, d, lead) for d in limits], -1)
    if batch < indices.ndim:
        one("GatherND", {"x": x, "i": indices}, {}, {"batch_dims": batch}, ["x", "i"], turned=turned)


@draws(60)
@given(tensors(), st.integers(0, 3), st.sampled_from(("none", "add", "mul", "max", "min")), st.booleans())
def test_scatter_elements(case: tuple, axis: int, how: str, more: bool) -> None:
    x, turned, rng = case
    axis %= x.ndim
    shape = [int(rng.integers(1, d + 1)) for d in x.shape]
    d = x.shape[axis]
    indices, updates = rng.integers(-d, d, shape), numbers(rng, tuple(shape), x.dtype.name)
    one("ScatterElements", {"x": x, "i": indices, "u": updates}, {}, {"axis": axis, "reduction": how},
        ["x", "i", "u"], turned=turned, after=after(x, more))


@draws(40)
@given(tensors(), st.integers(1, 3), st.integers(0, 2), st.sampled_from(("none", "add", "mul", "max", "min")))
def test_scatter_rows(case: tuple, parts: int, free: int, how: str) -> None:
    x, turned, rng = case
    parts = min(parts, x.ndim)
    lead = tuple(rng.integers(1, 4, free))
    indices = np.stack([rng.integers(-d, d, lead) for d in x.shape[:parts]], -1)
    updates = numbers(rng, (*lead, *x.shape[parts:]), x.dtype.name)
    one("ScatterND", {"x": x, "i": indices, "u": updates}, {}, {"reduction": how}, ["x", "i", "u"],
        turned=turned)


@draws(40)
@given(tensors(2), st.permutations(range(4)), st.booleans(), st.booleans())
def test_reversed_sequences(case: tuple, axes: list[int], small: bool, more: bool) -> None:
    x, turned, rng = case
    time, batch = [a for a in axes if a < x.ndim][:2]
    if {time, batch} != {0, 1}:
        time, batch = 1, 0
    lengths = rng.integers(0, x.shape[time] + 1, x.shape[batch]).astype(np.int64)
    one("ReverseSequence", {"x": x, "n": lengths}, {}, {"time_axis": time, "batch_axis": batch}, ["x", "n"],
        turned=turned, after=after(x, more))


@draws(40)
@given(st.lists(st.integers(1, 7), min_size=3, max_size=5), st.integers(1, 3), st.booleans(), st.booleans(),
       st.sampled_from(("float32", "float16", "float64")), st.integers(0, 999))
def test_unpooled(shape: list[int], step: int, larger: bool, turned: bool, dtype: str, seed: int) -> None:
    """Indices that come twice too: the last one stays."""
    rng, rank = np.random.default_rng(seed), len(shape) - 2
    size = [*shape[:2], *((n - 1) * step + 2 for n in shape[2:])]
    target = {"s": np.array([*shape[:2], *(n + int(rng.integers(0, 3)) for n in size[2:])])} if larger else {}
    x, places = numbers(rng, tuple(shape), dtype), rng.integers(0, int(np.prod(size)), shape)
    one("MaxUnpool", {"x": x, "i": places}, target, {"kernel_shape": [2] * rank, "strides": [step] * rank},
        ["x", "i", *target], turned=(0, *range(2, rank + 2), 1) if turned else None)


@draws(60)
@given(st.integers(1, 2), st.integers(1, 5), st.lists(st.tuples(*[st.integers(1, 4)] * 3, *[
    st.integers(0, 2)] * 2, st.integers(0, 4)), min_size=1, max_size=3), st.booleans(),
       st.sampled_from(("float32", "float64", "int32", "uint8")), st.integers(0, 999))
def test_columns(images: int, channels: int, axes: list[tuple[int, ...]], turned: bool, dtype: str, seed: int
                 ) -> None:
    """(block, step, spread, margins, more) of each axis."""
    blocks, steps, spreads, begins, ends, mores = (list(v) for v in zip(*axes, strict=True))
    size = [max(1, (k - 1) * d + 1 - b - e) + m for k, d, b, e, m in zip(
        blocks, spreads, begins, ends, mores, strict=True)]
    places = [(n + b + e - (k - 1) * d - 1) // s + 1 for n, k, s, d, b, e in zip(
        size, blocks, steps, spreads, begins, ends, strict=True)]
    x = numbers(np.random.default_rng(seed), (images, channels * int(np.prod(blocks)), int(np.prod(places))),
                dtype)
    one("Col2Im", {"x": x}, {"n": np.array(size), "b": np.array(blocks)},
        {"strides": steps, "dilations": spreads, "pads": [*begins, *ends]}, ["x", "n", "b"],
        turned=(0, 2, 1) if turned else None)


@draws(40)
@given(tensors(2), st.integers(1, 3), st.booleans(), st.booleans(), st.booleans())
def test_written_caches(case: tuple, axis: int, circular: bool, small: bool, indexed: bool) -> None:
    x, turned, rng = case
    axis = 1 + axis % (x.ndim - 1)
    steps = int(rng.integers(1, x.shape[axis] + 1))
    last = x.shape[axis] if circular else x.shape[axis] - steps + 1
    u = numbers(rng, (*x.shape[:axis], steps, *x.shape[axis + 1:]), x.dtype.name)
    places = {"i": rng.integers(0, last, x.shape[0])} if indexed else {}
    one("TensorScatter", {"x": x, "u": u, **places}, {},
        {"axis": axis - x.ndim, "mode": "circular" if circular else "linear"}, ["x", "u", *places], 24,
        turned=turned)


@pytest.mark.parametrize("name,shape,updates", (
    ("Gather", (2,), None), ("GatherElements", (2, 5), None), ("GatherND", (2, 1), None),
    ("ScatterElements", (2, 5), (2, 5)), ("ScatterND", (2, 1), (2, 5))))
@pytest.mark.parametrize("bad", (3, -4, 1 << 40))
def test_indices_out_of_range_are_refused(name: str, shape: tuple[int, ...], updates: tuple[int, ...] | None,
                                          bad: int) -> None:
    x, indices = np.ones((3, 5), np.float32), np.zeros(shape, np.int64)
    indices.flat[1] = bad
    arrays = {"x": x, "i": indices}
    if updates:
        arrays["u"] = np.ones(updates, np.float32)
    made = session([helper.make_node(name, list(arrays), ["y"])], arrays, {}, ["y"])
    with pytest.raises(InvalidArgument, match="out of data bounds"):
        made.run(None, arrays)
    indices.flat[1] = 2
    made.run(None, arrays)


@pytest.mark.parametrize("name,shape,updates", (
    ("Gather", (0,), None), ("GatherElements", (0, 5), None), ("GatherND", (0, 1), None),
    ("ScatterElements", (0, 5), (0, 5)), ("ScatterND", (0, 1), (0, 5))))
def test_no_indices(name: str, shape: tuple[int, ...], updates: tuple[int, ...] | None) -> None:
    """No kernel takes them: the node alone is left to numpy, its part stays compiled."""
    arrays = {"x": np.ones((3, 5), np.float32), "i": np.zeros(shape, np.int64)}
    if updates:
        arrays["u"] = np.ones(updates, np.float32)
    one(name, arrays, {}, {}, list(arrays), after="Neg")


@draws(50)
@given(tensors(), st.sampled_from(("constant", "reflect", "edge", "wrap")), st.booleans(), st.booleans())
def test_pad(case: tuple, mode: str, given_value: bool, more: bool) -> None:
    x, turned, rng = case
    pads = np.array([rng.integers(-(d // 3), d + 3) if rng.random() < 0.6 else 0 for d in x.shape * 2])
    value = x.dtype.type(1)
    constants = {"p": pads, **({"v": np.array(value)} if given_value else {})}
    one("Pad", {"x": x}, constants, {"mode": mode}, ["x", *constants], 19, turned=turned,
        after=after(x, more))


@draws(30)
@given(tensors(), st.booleans())
def test_tile(case: tuple, more: bool) -> None:
    x, turned, rng = case
    one("Tile", {"x": x}, {"r": rng.integers(1, 4, x.ndim)}, {}, ["x", "r"], turned=turned,
        after=after(x, more))


@draws(30)
@given(tensors(2), st.integers(-8, 8), st.booleans(), st.booleans())
def test_trilu(case: tuple, k: int, upper: bool, plain: bool) -> None:
    x, turned, _ = case
    one("Trilu", {"x": x}, {} if plain else {"k": np.array(k)}, {"upper": int(upper)},
        ["x"] if plain else ["x", "k"], turned=turned, after=after(x, True))


@draws(30)
@given(st.lists(st.integers(1, 5), min_size=1, max_size=3), st.integers(1, 9), st.integers(-4, 3),
       st.sampled_from(("int64", "int32", "float32")), st.sampled_from(("float32", "int64", "bool")),
       st.booleans())
def test_one_hot(shape: list[int], depth: int, axis: int, dtype: str, out: str, old: bool) -> None:
    indices = np.asarray(np.random.default_rng(depth).integers(-depth - 2, depth + 2, shape), dtype)
    if dtype == "float32" and indices.size > 2:
        indices.flat[0], indices.flat[1], indices.flat[2] = np.nan, np.inf, 0.9
    axis = axis % (len(shape) + 1)
    one("OneHot", {"i": indices}, {"d": np.array(depth), "v": np.array([0, 1]).astype(out)}, {"axis": axis},
        ["i", "d", "v"], 10 if old else 18)


@draws(30)
@given(st.integers(1, 2), st.integers(1, 5), st.integers(1, 4), st.integers(1, 9), st.integers(1, 3),
       st.sampled_from(("DCR", "CRD")), st.booleans(), st.sampled_from(("float32", "uint8")))
def test_blocks(n: int, c: int, h: int, w: int, s: int, mode: str, last: bool, dtype: str) -> None:
    rng, turned = np.random.default_rng(c), (0, 2, 3, 1) if last else None
    one("DepthToSpace", {"x": numbers(rng, (n, c * s * s, h, w), dtype)}, {},
        {"blocksize": s, "mode": mode}, ["x"], turned=turned)
    one("SpaceToDepth", {"x": numbers(rng, (n, c, h * s, w * s), dtype)}, {}, {"blocksize": s}, ["x"],
        turned=turned, after=after(np.zeros(0, dtype), True))


@draws(40)
@given(tensors(), st.integers(0, 3), st.booleans(), st.booleans(), st.sampled_from(("CumSum", "CumProd")))
def test_running(case: tuple, axis: int, exclusive: bool, reverse: bool, name: str) -> None:
    x, turned, _ = case
    if x.dtype.kind in "fi":
        x = (x % 3).astype(x.dtype) if name == "CumProd" else x
        if x.dtype == np.float16 and name == "CumProd":
            x = x.clip(0, 1)
        one(name, {"x": x}, {"a": np.array(axis % x.ndim)},
            {"exclusive": int(exclusive), "reverse": int(reverse)}, ["x", "a"],
            26 if name == "CumProd" else 14, turned=turned)


@draws(80)
@given(st.lists(st.sampled_from((1, 2, 3, 4, 5, 7, 12, 16, 17, 33, 70, 130)), min_size=2, max_size=4),
       st.data(), st.sampled_from(("float32", "uint8", "int16", "float64")), st.sampled_from(MACHINES),
       st.integers(0, 1))
def test_transposing_copies(shape: list[int], data: st.DataObject, dtype: str, machine: Machine, pad: int
                            ) -> None:
    orders = [tuple(data.draw(st.permutations(range(len(shape))))) for _ in range(2)]
    x = np.random.default_rng(0).integers(0, 200, shape).astype(dtype)
    source, target = laid(x, orders[0], pad), laid(np.zeros(shape, dtype), orders[1], pad)
    made = transpose.plan(machine, loops.nest(shape, [steps(target), steps(source)]), x.itemsize)
    if made is None:
        return
    spec, cells, items, _ = made
    native.run(spec, target, source, *cells, items=items, machine=machine, splits=(items // 2,))
    np.testing.assert_array_equal(target, x)


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("size", (1, 2, 4, 8))
@pytest.mark.parametrize("few", (2, 3, 4, 5, 8, 11, 16))
def test_few_channels(machine: Machine, size: int, few: int) -> None:
    """Woven and parted; where a vector is shorter, turned in blocks."""
    x = np.random.default_rng(0).integers(0, 99, (2, few, 301)).astype(f"i{size}")
    for order in ((0, 1, 2), (0, 2, 1)):
        source = laid(x, order, 0)
        target = laid(np.zeros_like(x), (0, 1, 2) if order[1] == 2 else (0, 2, 1), 0)
        lying = loops.nest(x.shape, [steps(target), steps(source)])
        spec, cells, items, _ = transpose.plan(machine, lying, size)
        narrow = few <= max(4, min(16, machine.lanes(size)))
        assert (dict(spec.params)["way"] in ("weave", "part")) == narrow
        native.run(spec, target, source, *cells, items=items, machine=machine, splits=(1,))
        np.testing.assert_array_equal(target, x)


@pytest.mark.parametrize("machine", (NEON, RVV256))
def test_other_machines_assemble(machine: Machine) -> None:
    specs = [transpose.turned(way=way, size=size, outer=2, few=few, lanes=min(16, machine.lanes(size)),
                              line=8, ragged=False)
             for way, few in (("block", 0), ("weave", 3), ("part", 4)) for size in (1, 4)]
    specs += [gather.gather_rows(size=s, dtype="int32", outer=2, parts=2, dims=1, inner="unit")
              for s in (2, 4)]
    specs += [gather.pick_elements(size=s, dtype="int32", outer=2, unit=u) for s in (1, 4) for u in (0, 1)]
    specs += [gather.place_elements(element="float32", how="max", dtype="int64", outer=2),
              gather.scatter_rows(element="float32", how="add", dtype="int64", parts=2, single=False),
              top_k.best_of_rows(dtype="float16", outer=2, least=True, unit=True),
              *(top_k.best_of_short_rows(dtype="float16", outer=2, k=3, least=True, beside=b)
                for b in (False, True)),
              gather.running(dtype="float16", how="add", outer=2, exclusive=False, across=3)]
    for spec in specs:
        assert build.assemble(spec.text(machine), machine)


@pytest.mark.parametrize(("spec", "abreast"), [
    (gather.running(dtype="float32", how="add", outer=1, exclusive=False, across=3), 3),
    (pool.pool_windows(kind="max", taps=3, rank=2, lanes=8, dtype="float32", out="float32", operands=(),
                       after=None), sample.GROUP),
    (pool.pool_windows(kind="max", taps=3, rank=2, lanes=32, dtype="uint8", out="uint8", operands=(),
                       after=None), sample.GROUP)])
def test_whole_vectors_are_stored_whole(spec: Spec, abreast: int) -> None:
    """A masked store is some 40 operations on machines of AMD's, of bytes as many branches: it is left to
    the end of a row, and a single whole vector is stored as those side by side are."""
    text = spec.text(AVX2)
    assert text.count("call void @llvm.masked.store") == 1
    assert len(re.findall(r"^ *store <\d+ x ", text, re.MULTILINE)) == abreast + 1


@draws(60)
@given(tensors(long=(1, 5, 40, 129, 1000)), st.integers(0, 3), st.booleans(), st.booleans(),
       st.sampled_from(("ties", "normal", "nan")))
def test_top_k(case: tuple, axis: int, largest: bool, sort: bool, kind: str) -> None:
    x, turned, rng = case
    axis %= x.ndim
    if x.dtype.kind == "f":
        x = (rng.integers(-3, 3, x.shape) if kind == "ties" else rng.normal(size=x.shape)).astype(x.dtype)
        if kind == "nan":
            x[rng.random(x.shape) < 0.2] = np.nan
    if x.dtype != bool:
        k = int(rng.integers(1, x.shape[axis] + 1))
        one("TopK", {"x": x}, {"k": np.array([k])},
            {"axis": axis, "largest": int(largest), "sorted": int(sort)}, ["x", "k"], outputs=2,
            turned=turned)
