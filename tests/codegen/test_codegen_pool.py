"""Pooling, resizing and local response normalization on channels-last images, against the operators'
definitions."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

native = pytest.importorskip("native")

from draws import draws  # noqa: E402
from hypothesis import given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from onnx import TensorProto, helper, numpy_helper  # noqa: E402

from orthrus import InferenceSession  # noqa: E402
from orthrus.codegen.kernels import norm, pool, resize, sample  # noqa: E402
from orthrus.codegen.machines.detect import host  # noqa: E402
from orthrus.codegen.machines.machine import AVX2, NEON, RVV256, SSE2, Machine  # noqa: E402
from orthrus.codegen.object import build  # noqa: E402
from orthrus.codegen.write.expr import Expr  # noqa: E402
from orthrus.lowering.rules import pool as pool_rules  # noqa: E402
from orthrus.lowering.rules import resize as rules  # noqa: E402
from orthrus.lowering.tensor import Buffer, Tensor, c_strides  # noqa: E402
from orthrus.ops.define import find  # noqa: E402
from orthrus.ops.nn.geometry import Window, window  # noqa: E402

DTYPES = {"float32": np.dtype(np.float32), "float16": np.dtype(np.float16), "int8": np.dtype(np.int8),
          "bfloat16": np.dtype(ml_dtypes.bfloat16), "uint8": np.dtype(np.uint8),
          "float64": np.dtype(np.float64)}
TOLERANCE = {"float32": 2e-6, "float16": 2e-3, "bfloat16": 1.6e-2, "int8": 0, "uint8": 0,
             "float64": 1e-14}


def image(rng: np.random.Generator, shape: tuple[int, ...], pad: int, dtype: str) -> np.ndarray:
    """(N, C, ...) whose channels lie next to each other, pixels `pad` further apart, ending where memory
    ends."""
    block = np.zeros((shape[0], *shape[2:], shape[1] + pad), DTYPES[dtype])
    block[...] = rng.integers(-100 if dtype == "int8" else 0, 128, block.shape) if "int" in dtype else (
        rng.normal(size=block.shape) * 3)
    return np.moveaxis(native.guarded(block)[..., :shape[1]], -1, 1)


def walked(array: np.ndarray) -> list[int]:
    """Strides in elements along images and spatial axes."""
    return [array.strides[a] // array.itemsize for a in (0, *range(2, array.ndim))]


def framed(machine: Machine, x: np.ndarray, y: np.ndarray, tensors: list[np.ndarray]
           ) -> tuple[Any, int, dict]:
    lanes = sample.lanes_for(machine, x.dtype.name)
    cells, items, _ = sample.frame_cells((y.shape[0], *y.shape[2:]), y.shape[1], lanes, [y, *tensors],
                                         [walked(a) for a in (y, *tensors)])
    return cells, items, {"rank": y.ndim - 2, "lanes": lanes, "dtype": x.dtype.name, "out": y.dtype.name}


def tabled(win: Window) -> list[tuple[np.ndarray, np.ndarray]]:
    axes = zip(win.size, win.kernel, win.strides, win.dilations, win.begin, win.out, strict=True)
    return [pool.tables(*axis) for axis in axes]


def close(y: np.ndarray, want: np.ndarray, tolerance: float) -> None:
    y, want = y.astype(np.float64), want.astype(np.float64)
    np.testing.assert_allclose(y, want, rtol=tolerance, atol=tolerance * 8)


@st.composite
def pools(draw: st.DrawFn) -> tuple:
    rank = draw(st.integers(1, 3))
    size = [draw(st.integers(1, 9)) for _ in range(rank)]
    attrs: dict[str, Any] = {"kernel_shape": [draw(st.integers(1, 4)) for _ in range(rank)],
                             "strides": [draw(st.integers(1, 3)) for _ in range(rank)],
                             "dilations": [draw(st.integers(1, 2)) for _ in range(rank)],
                             "ceil_mode": draw(st.integers(0, 1))}
    most = [(k - 1) * d for k, d in zip(attrs["kernel_shape"], attrs["dilations"], strict=True)]
    attrs["pads"] = [draw(st.integers(0, m)) for m in (*most, *most)]
    channels = draw(st.sampled_from((1, 3, 16, 21, 70, 140)))
    return ((draw(st.integers(1, 2)), channels, *size), attrs, draw(st.integers(0, 2)),
            draw(st.sampled_from(tuple(DTYPES))), draw(st.sampled_from((host(), AVX2, SSE2))),
            draw(st.integers(0, 1 << 30)))


@draws(50)
@given(pools(), st.sampled_from(("max", "average", "padded", "l1", "l2")))
def test_pools(case: tuple, kind: str) -> None:
    shape, attrs, pad, dtype, machine, seed = case
    if "int" in dtype:
        kind = "max"
    try:
        win = window(shape[2:], attrs["kernel_shape"], attrs["strides"], attrs["dilations"], attrs["pads"],
                     "NOTSET", attrs["ceil_mode"])
    except ValueError:
        return
    rng = np.random.default_rng(seed)
    x = image(rng, shape, pad, dtype)
    y = image(rng, (*shape[:2], *win.out), pad, dtype)
    if kind == "max" and "int" not in dtype:
        x[tuple(rng.integers(0, d) for d in shape)] = np.nan
    name = {"max": "MaxPool", "l1": "LpPool", "l2": "LpPool"}.get(kind, "AveragePool")
    more = {"padded": {"count_include_pad": 1}, "l1": {"p": 1}, "l2": {"p": 2}}.get(kind, {})
    want = find("", name, 22).bind({**attrs, **more})(x)
    cells, items, shared = framed(machine, x, y, [])
    tables = tabled(win)
    steps = [d * s for d, s in zip(win.dilations, walked(x)[1:], strict=True)]
    sums = []
    if name == "AveragePool":
        sums = [pool.divisors(win, i, kind == "padded") for i in range(len(win.out))]
    spec = pool.pool_windows(operands=(), after=None, kind={"padded": "average"}.get(kind, kind),
                             taps=win.kernel[-1], **shared)
    native.run(spec, *cells, x, *walked(x), *steps, *(t[0] for t in tables), *(t[1] for t in tables), *sums,
               items=items, machine=machine, splits=(items // 2,))
    close(y, want, 0 if kind == "max" else TOLERANCE[dtype])


@draws(60)
@given(st.integers(0, 1 << 30), st.sampled_from(pool.PLANES), st.sampled_from((host(), AVX2, SSE2)),
       st.sampled_from(("max", "average", "padded", "l1", "l2")), st.integers(0, 2), st.data())
def test_pools_of_planes(seed: int, dtype: str, machine: Machine, kind: str, gap: int, data: st.DataObject
                         ) -> None:
    """Images whose rows lie together, with gaps between them, borders of any width, NaN and infinities."""
    rng = np.random.default_rng(seed)
    shape = (int(rng.integers(1, 3)), int(rng.integers(1, 4)), int(rng.integers(1, 12)),
             data.draw(st.sampled_from((1, 3, 8, 17, 40, 71))))
    attrs: dict[str, Any] = {
        "kernel_shape": [data.draw(st.integers(1, 10)), data.draw(st.integers(1, 6))],
        "strides": [data.draw(st.integers(1, 3)), data.draw(st.integers(1, pool.FARTHEST))],
        "dilations": [data.draw(st.integers(1, 2)) for _ in range(2)],
        "ceil_mode": data.draw(st.integers(0, 1))}
    most = [(k - 1) * d for k, d in zip(attrs["kernel_shape"], attrs["dilations"], strict=True)]
    attrs["pads"] = [data.draw(st.integers(0, m)) for m in (*most, *most)]
    try:
        win = window(shape[2:], attrs["kernel_shape"], attrs["strides"], attrs["dilations"], attrs["pads"],
                     "NOTSET", attrs["ceil_mode"])
    except ValueError:
        return
    block = (rng.normal(size=(*shape[:3], shape[3] + gap)) * 3).astype(DTYPES[dtype])
    for rare in (np.nan, np.inf, -np.inf):
        block[rng.random(block.shape) < 0.03] = rare
    x = native.guarded(block)[..., :shape[3]]
    y = native.guarded(np.zeros((*shape[:2], win.out[0], win.out[1] + gap), DTYPES[dtype]))[..., :win.out[1]]
    name = {"max": "MaxPool", "l1": "LpPool", "l2": "LpPool"}.get(kind, "AveragePool")
    more = {"padded": {"count_include_pad": 1}, "l1": {"p": 1}, "l2": {"p": 2}}.get(kind, {})
    with np.errstate(invalid="ignore"):
        want = find("", name, 22).bind({**attrs, **more})(x)
    tables = list(tabled(win)[0])
    if name == "AveragePool":
        tables += [pool.divisors(win, i, kind == "padded") for i in range(2)]
    numbers = shape[3], win.out[1], win.begin[1]
    taps = {"taps": win.kernel[1], "step": win.strides[1], "apart": win.dilations[1]}
    room = pool.planes_room(machine, dtype, *(numbers[i] for i in (1, 0, 2)), **taps)
    spec = pool.pool_planes(dtype=dtype, kind={"padded": "average"}.get(kind, kind), down=win.kernel[0],
                            **taps)
    by, to = ([s // a.itemsize for s in a.strides[:3]] for a in (x, y))
    items = int(np.prod(y.shape[:3]))
    native.run(spec, y, x, shape[1], win.out[0], *numbers, room, *by, by[2] * win.dilations[0], *to, *tables,
               items=items, scratch=room * max(4, x.itemsize), machine=machine, splits=(items // 2,))
    close(y, want, 0 if kind == "max" else TOLERANCE[dtype])


@pytest.mark.parametrize("kind", ["max", "average", "padded", "l1", "l2"])
@pytest.mark.parametrize("dtype", pool.PLANES[:2] + pool.PLANES[3:])
def test_volumes_of_few_channels(kind: str, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    came, plain = [], pool_rules._volumes
    monkeypatch.setattr(pool_rules, "_volumes", lambda *given: (came.append(1), plain(*given))[1])
    rng = np.random.default_rng(len(kind))
    name = {"max": "MaxPool", "l1": "LpPool", "l2": "LpPool"}.get(kind, "AveragePool")
    more = {"padded": {"count_include_pad": 1}, "l1": {"p": 1}, "l2": {"p": 2}}.get(kind, {})
    for case in range(25):
        shape = (int(rng.integers(1, 4)), int(rng.integers(1, 7)), *(int(d) for d in rng.integers(1, 22, 3)))
        attrs: dict[str, Any] = {
            "kernel_shape": [int(k) for k in rng.integers(1, 5, 3)], "ceil_mode": int(rng.integers(2)),
            "strides": [int(s) for s in rng.integers(1, 4, 3)],
            "dilations": [int(d) for d in rng.integers(1, 3, 3)], **more}
        attrs["pads"] = [int(rng.integers((k - 1) * d + 1)) for k, d in zip(
            attrs["kernel_shape"] * 2, attrs["dilations"] * 2, strict=True)]
        x = (rng.normal(size=shape) * 3).astype(dtype)
        for rare in (np.nan, np.inf, -np.inf):
            x[rng.random(shape) < 0.002] = rare
        try:
            with np.errstate(invalid="ignore"):
                want = find("", name, 22).bind(attrs)(x)
        except ValueError:
            continue
        elem = helper.np_dtype_to_tensor_dtype(x.dtype)
        nodes = [helper.make_node(name, ["x"], ["y"], **attrs), helper.make_node("Neg", ["y"], ["z"])]
        graph = helper.make_graph(
            nodes[:1 + case % 2], "g", [helper.make_tensor_value_info("x", elem, shape)],
            [helper.make_tensor_value_info("yz"[case % 2], elem, None)])
        made = helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 22)])
        [y] = InferenceSession(made.SerializeToString()).run(None, {"x": x})
        close(y, -want if case % 2 else want, 0 if kind == "max" else TOLERANCE[dtype])
    assert bool(came) == (kind == "max" or dtype != "float16")


@draws(60)
@given(pools(), st.booleans(), st.booleans(), st.booleans())
def test_places_of_maxima(case: tuple, column_major: bool, last: bool, more: bool) -> None:
    """Of equal numbers the first, of NaN too; windows of nothing but -inf, and of no element."""
    shape, attrs, _, dtype, _, seed = case
    dtype = "float32" if dtype == "bfloat16" else dtype
    attrs = {**attrs, "storage_order": int(column_major)}
    rng = np.random.default_rng(seed)
    x = rng.integers(0, 4, shape).astype(dtype)
    if "int" not in dtype:
        for rare in (np.nan, -np.inf, np.inf):
            x[rng.random(shape) < 0.2] = rare
    try:
        want = find("", "MaxPool", 22).bind(attrs, 2)(x)
    except ValueError:
        return
    order, back = (0, *range(2, x.ndim), 1), (0, x.ndim - 1, *range(1, x.ndim - 1))
    nodes = [helper.make_node("Transpose", ["x"], ["t"], perm=back)] if last else []
    nodes += [helper.make_node("MaxPool", ["t" if last else "x"], ["y", "i"], name="pool", **attrs)]
    nodes += [helper.make_node("Neg", ["i"], ["z"])] if more else []
    elem = helper.np_dtype_to_tensor_dtype(x.dtype)
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info(
        "x", elem, [x.shape[a] for a in order] if last else x.shape)], [
        helper.make_tensor_value_info("y", elem, None),
        helper.make_tensor_value_info("z" if more else "i", TensorProto.INT64, None)])
    made = helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 22)])
    session = InferenceSession(made.SerializeToString())
    assert "generated for" in str(session.explain()["pool"])
    y, places = session.run(None, {"x": np.ascontiguousarray(x.transpose(order)) if last else x})
    np.testing.assert_array_equal(y, want[0])
    np.testing.assert_array_equal(places, -want[1] if more else want[1])


@draws(40)
@given(st.integers(2, 3), st.sampled_from((1, 3, 17)),
       st.sampled_from(("float32", "float16", "uint8", "int8")),
       st.sampled_from(("NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID")), st.booleans(), st.integers(0, 9999))
def test_large_windows_axis_by_axis(rank: int, channels: int, dtype: str, auto_pad: str, ceil: bool,
                                    seed: int) -> None:
    rng = np.random.default_rng(seed)
    kernel = [int(k) for k in rng.integers(3, 8, rank)]
    attrs: dict[str, Any] = {"kernel_shape": kernel, "auto_pad": auto_pad, "ceil_mode": int(ceil),
                             "strides": [int(s) for s in rng.integers(1, 3, rank)]}
    if auto_pad == "NOTSET":
        attrs["dilations"] = [int(d) for d in rng.integers(1, 3, rank)]
        attrs["pads"] = [int(rng.integers(k)) for k in kernel * 2]
    shape = (int(rng.integers(1, 3)), channels, *(int(d) for d in rng.integers(13, 20, rank)))
    if dtype.startswith("float"):
        x = rng.choice([np.nan, np.inf, -np.inf, -0.0, 1e-40, *rng.normal(size=60)], shape).astype(dtype)
    else:
        x = rng.integers(*((-128, 128) if dtype == "int8" else (0, 256)), shape).astype(dtype)
    want = find("", "MaxPool", 22).bind(attrs)(x)
    graph = helper.make_graph(
        [helper.make_node("MaxPool", ["x"], ["y"], name="pool", **attrs)], "g",
        [helper.make_tensor_value_info("x", helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)],
        [helper.make_empty_tensor_value_info("y")])
    made = helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 22)])
    session = InferenceSession(made.SerializeToString())
    assert "generated for" in str(session.explain()["pool"])
    np.testing.assert_array_equal(session.run(None, {"x": x})[0], want)


@draws(40)
@given(st.tuples(st.integers(1, 2), st.sampled_from((1, 3, 17, 70)), st.integers(1, 6), st.integers(1, 6)),
       st.integers(1, 9), st.integers(1, 9), st.sampled_from(("nearest", "linear", "cubic")),
       st.sampled_from(("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel")), st.booleans(),
       st.sampled_from(("float32", "float16")), st.sampled_from((host(), AVX2, SSE2)), st.integers(0, 99))
def test_resizes(shape: tuple[int, ...], oh: int, ow: int, mode: str, coordinates: str, antialias: bool,
                 dtype: str, machine: Machine, seed: int) -> None:
    n, c, h, w = shape
    rng = np.random.default_rng(seed)
    attrs = {"mode": mode, "coordinate_transformation_mode": coordinates,
             "antialias": int(antialias and mode != "nearest")}
    x, y = image(rng, (n, c, h, w), 1, dtype), image(rng, (n, c, oh, ow), 2, dtype)
    want = find("", "Resize", 19).bind(attrs)(x, None, None, np.array([n, c, oh, ow]))
    axes = []
    for length, out in ((h, oh), (w, ow)):
        one = find("", "Resize", 19).bind({**attrs, "axes": [1]})
        axes.append(resize.table(lambda m, one=one, out=out: one(m, None, None, np.array([out])), length,
                                 mode == "nearest"))
    cells, items, shared = framed(machine, x, y, [])
    spec = resize.resize_taps(operands=(), after=None, taps=tuple(t[0].shape[1] for t in axes), **shared)
    native.run(spec, *cells, x, *walked(x), *(t[0] for t in axes),
               *(t[1] for t in axes if t[0].shape[1] > 1), items=items, machine=machine, splits=(items // 2,))
    close(y, want, TOLERANCE[dtype] if mode != "nearest" else 0)


@draws(60)
@given(st.sampled_from(((1, 3, 4, 4), (2, 17, 3, 5), (3, 5, 6), (2, 3, 4, 3, 5), (7, 9))), st.booleans(),
       st.sampled_from((0.5, 0.6, 1.0, 1.7, 2.0, 3.0)), st.sampled_from((0.3, 1.5, 2.0, 2.4)),
       st.sampled_from(("linear", "cubic")),
       st.sampled_from(("half_pixel", "asymmetric", "align_corners", "half_pixel_symmetric")),
       st.booleans(), st.booleans(), st.sampled_from(("float32", "float16")), st.integers(0, 99))
def test_resizes_infinities(shape: tuple[int, ...], last: bool, first: float, second: float, mode: str,
                            coordinates: str, antialias: bool, exclude: bool, dtype: str, seed: int) -> None:
    """What is not finite goes where it has weight, as in the definition, and nowhere else."""
    rng = np.random.default_rng(seed)
    x = (rng.normal(size=shape) * 3).astype(DTYPES[dtype])
    x[rng.random(shape) < 0.06] = rng.choice([np.inf, -np.inf, np.nan, -0.0])
    around = (1, 1) if len(shape) > 2 else ()
    scales = (*around, *(first, second, 1.5)[:len(shape) - len(around)])
    if last and len(shape) > 2:
        x, scales = np.moveaxis(x, 1, -1).copy(), (scales[0], *scales[2:], scales[1])
    attrs: dict[str, Any] = {"mode": mode, "coordinate_transformation_mode": coordinates,
                             "antialias": int(antialias), "exclude_outside": int(exclude and mode == "cubic")}
    numbers = np.array(scales, np.float32)
    with np.errstate(all="ignore"):
        want = find("", "Resize", 19).bind(attrs)(x, None, numbers)
    model = helper.make_model(helper.make_graph(
        [helper.make_node("Resize", ["x", "", "s"], ["y"], **attrs)], "g",
        [helper.make_tensor_value_info("x", helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)],
        [helper.make_empty_tensor_value_info("y")], [numpy_helper.from_array(numbers, "s")]),
        opset_imports=[helper.make_opsetid("", 19)], ir_version=9)
    got, = InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, {"x": x})
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    np.testing.assert_array_equal(np.isinf(got), np.isinf(want))
    finite = np.isfinite(want)
    close(got[finite], want[finite], 5 * TOLERANCE[dtype])


@draws(60)
@given(st.integers(1, 4), st.integers(1, 9), st.integers(1, 40), st.sampled_from((1, 2, 3, 4, 16, 19)),
       st.integers(1, 5), st.sampled_from(("float32", "float16", "bfloat16", "uint8", "int8")), st.booleans(),
       st.sampled_from((host(), AVX2, SSE2)), st.integers(0, 99))
def test_resizes_one_axis(outer: int, wide: int, length: int, together: int, taps: int, dtype: str,
                          along: bool, machine: Machine, seed: int) -> None:
    rng = np.random.default_rng(seed)
    together = 1 if along else together
    x = native.guarded(rng.integers(0, 100, (outer, wide, together)).astype(DTYPES[dtype]))
    y = native.guarded(np.zeros((outer, length, together), np.float32))
    places = rng.integers(0, wide, (length, taps)).astype(np.int32)
    weights = rng.standard_normal((length, taps)).astype(np.float32)
    want = np.zeros(y.shape, np.float32)
    for j in range(taps):
        want += x[:, places[:, j]].astype(np.float32) * weights[:, j, None]
    spec = resize.resize_axis(dtype=dtype, taps=taps, along=along)
    tables = [native.guarded(np.ascontiguousarray(t.T if along else t)) for t in (places, weights)]
    items = outer if along else outer * length
    native.run(spec, y, x, *tables, length, wide, *([] if along else [together]), items=items,
               machine=machine, splits=(items // 2,))
    np.testing.assert_array_equal(y, want)


@draws(60)
@given(st.data())
def test_interpolates_along_any_axes(data: Any) -> None:
    """Of arrays of any rank and of integers. At an edge, where several places are one, their weights are
    added up before, so that a number may be cut the other way once in a while."""
    shape = data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=5))
    axes = data.draw(st.lists(st.integers(0, len(shape) - 1), min_size=1, max_size=len(shape), unique=True))
    sizes = np.array([data.draw(st.integers(1, 20)) for _ in axes])
    dtype = data.draw(st.sampled_from(("uint8", "int8", "uint16", "int16", "float32", "float16", "bfloat16")))
    attrs = {"mode": data.draw(st.sampled_from(("linear", "cubic"))), "axes": axes,
             "coordinate_transformation_mode": data.draw(st.sampled_from((
                 "half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel", "half_pixel_symmetric"))),
             "antialias": data.draw(st.integers(0, 1))}
    kind = np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    x = np.random.default_rng(0).integers(-128 if dtype[0] == "i" else 0, 128, shape).astype(kind)
    elem = helper.np_dtype_to_tensor_dtype(kind)
    graph = helper.make_graph([helper.make_node("Resize", ["x", "", "", "sizes"], ["y"], **attrs)], "graph",
                              [helper.make_tensor_value_info("x", elem, shape)],
                              [helper.make_tensor_value_info("y", elem, None)],
                              [numpy_helper.from_array(sizes, "sizes")])
    session = InferenceSession(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)],
                                                 ir_version=9))
    want = find("", "Resize", 19).bind(attrs)(x, None, None, sizes)
    (got,) = session.run(None, {"x": x})
    assert got.dtype == want.dtype
    if "int" in dtype:
        off = np.abs(got.astype(int) - want.astype(int))
        assert off.max() <= 1 and off.sum() <= max(1, off.size // 200)
    else:
        close(got, want, 10 * TOLERANCE[dtype])


@draws(60)
@given(st.tuples(st.integers(1, 3), st.sampled_from((1, 2, 5, 9)),
                 st.sampled_from((1, 3, 8, 28, 31, 64, 140))),
       st.tuples(*[st.sampled_from((1, 2, 3, 20, 0.5, 1.5, 0.7, 1.3))] * 2), st.sampled_from((1, 2, 3, 80)),
       st.sampled_from(("floor", "ceil", "round_prefer_ceil")), st.sampled_from(("asymmetric", "half_pixel")),
       st.sampled_from(("float16", "uint8", "float32", "int64")), st.sampled_from((None, AVX2, SSE2)))
def test_nearest_rows(shape: tuple[int, ...], scales: tuple[float, ...], behind: int, rounding: str,
                      coordinates: str, dtype: str, machine: Machine | None) -> None:
    """With the axes that are resized last, and before `behind` others."""
    x = np.random.default_rng(0).integers(0, 100, (*shape, behind)).astype(dtype)
    factors = np.array([1, *scales, 1], np.float32)
    if 0 in [int(d * s) for d, s in zip(x.shape, factors, strict=True)]:
        return
    attrs = {"mode": "nearest", "nearest_mode": rounding, "coordinate_transformation_mode": coordinates}
    want = find("", "Resize", 19).bind(attrs)(x, None, factors)
    one = find("", "Resize", 19).bind({**attrs, "axes": [1]})
    places = [None if s == 1 else resize.table(lambda m, s=s: one(m, None, np.array([s], np.float32)), d,
                                               True)[0].reshape(-1)
              for s, d in zip(factors, x.shape, strict=True)]
    y, source = native.guarded(np.zeros_like(want)), native.guarded(x)
    made = [Tensor(dtype, a.shape, c_strides(a.shape), Buffer("arena", a.nbytes)) for a in (source, y)]
    rows = [*rules.rows(made[0], made[1], places)]
    spec, cells, tables, items, _ = resize.nearest(machine or host(), x.itemsize, *rows)
    native.run(spec, y, source, *cells, *tables, items=items, machine=machine, splits=(items // 2,))
    np.testing.assert_array_equal(y, want)


@pytest.mark.parametrize("scales", ([1, 1, 2, 2], [1, 1.2, 1, 1], [1.4, 1, 1, 2]))
def test_a_scale_that_keeps_a_size_counts(scales: list[float]) -> None:
    """1.2 times three channels are three others."""
    graph = helper.make_graph(
        [helper.make_node("Resize", ["x", "", "scales"], ["y"], mode="linear")], "graph",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 3, "H", "W"])],
        [helper.make_empty_tensor_value_info("y")],
        [numpy_helper.from_array(np.array(scales, np.float32), "scales")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)
    x = np.random.default_rng(1).standard_normal((2, 3, 6, 5)).astype(np.float32)
    (y,) = InferenceSession(model).run(None, {"x": x})
    want = find("", "Resize", 19).bind({"mode": "linear"})(x, None, np.array(scales, np.float32))
    np.testing.assert_allclose(y, want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("c", (3, 40, 96))
@pytest.mark.parametrize("size,beta", ((5, 0.75), (4, 0.5), (3, 0.6)))
def test_local_response(c: int, size: int, beta: float) -> None:
    rng = np.random.default_rng(c)
    x, y = image(rng, (2, c, 3, 5), 1, "float32"), image(rng, (2, c, 3, 5), 0, "float32")
    want = find("", "LRN", 13).bind({"size": size, "beta": beta, "alpha": 0.1, "bias": 1.5})(x)
    cells, items, shared = framed(host(), x, y, [])
    spec = norm.response_norm(operands=(), after=None, size=size, beta=beta, **shared)
    native.run(spec, *cells, x, *walked(x), 1.5, 0.1 / size, items=items, splits=(1,))
    np.testing.assert_allclose(y, want, rtol=5e-6)


def test_closing_tree() -> None:
    rng = np.random.default_rng(0)
    x, y, other = (image(rng, (2, 37, 4, 6), p, "float32") for p in (0, 1, 2))
    attrs = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}
    win = window((4, 6), [3, 3], None, None, [1] * 4)
    cells, items, shared = framed(host(), x, y, [other])
    tables = tabled(win)
    tree = Expr("add", (Expr.leaf(0, "float32"), Expr.leaf(1, "float32")), "float32")
    spec = pool.pool_windows(operands=(("float32", 1),), after=tree, kind="max", taps=3, **shared)
    native.run(spec, *cells, x, *walked(x), *walked(x)[1:], *(t[0] for t in tables), *(t[1] for t in tables),
               items=items)
    np.testing.assert_array_equal(y, find("", "MaxPool", 12).bind(attrs)(x) + other)


@pytest.mark.parametrize("machine", (NEON, RVV256))
@pytest.mark.parametrize("dtype", tuple(DTYPES))
def test_other_machines_assemble(machine: Machine, dtype: str) -> None:
    shared = {"rank": 2, "lanes": sample.lanes_for(machine, dtype), "dtype": dtype, "out": dtype,
              "operands": (), "after": None}
    specs = [pool.pool_windows(kind="max", taps=3, **shared)]
    if "int" not in dtype:
        specs.append(pool.pool_windows(kind="average", taps=2, **shared))
    if dtype != "float64":
        picks = resize.Picks((0, 0), 1).spread(machine.lanes(np.dtype(DTYPES[dtype]).itemsize))
        specs += [resize.resize_taps(taps=(1, 1), **shared), *(
            resize.resize_nearest(size=DTYPES[dtype].itemsize, way=way, picks=picks, copies=2,
                                  tables=(False, True)) for way in ("copy", "pick", "each"))]
        if "int" not in dtype:
            specs += [resize.resize_taps(taps=(2, 2), **shared),
                      norm.response_norm(size=5, beta=.75, **shared)]
    for spec in specs:
        assert build.assemble(spec.text(machine), machine)
