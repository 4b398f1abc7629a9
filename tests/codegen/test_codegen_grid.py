"""GridSample in whole models: modes, paddings, types, coordinates far outside and none at all."""

from __future__ import annotations

from unittest import mock

import numpy as np
import pytest

pytest.importorskip("native")

from draws import draws
from graphs import info, model
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper
from test_codegen_reduce import MACHINES

import orthrus as ort
from orthrus import errors
from orthrus.codegen.machines import detect

TYPES = {"float32": TensorProto.FLOAT, "float16": TensorProto.FLOAT16}


@draws(80)
@given(st.integers(1, 3), st.sampled_from((1, 2, 3, 5, 16, 33)), st.tuples(*[st.integers(1, 9)] * 4),
       st.sampled_from(("linear", "nearest", "cubic")), st.sampled_from(("zeros", "border", "reflection")),
       st.booleans(),
       st.sampled_from(("float32", "float16")), st.booleans(), st.booleans(), st.integers(0, 999))
def test_sampling(images: int, channels: int, sizes: tuple[int, ...], mode: str, padding: str, align: bool,
                  dtype: str, odd: bool, last: bool, seed: int) -> None:
    """With a chain behind it; from an image in C order, and from one that lies channels-last."""
    rng, (height, width, down, across) = np.random.default_rng(seed), sizes
    x = rng.standard_normal((images, channels, height, width)).astype(dtype)
    places = rng.uniform(-1.4, 1.4, (images, down, across, 2)).astype(np.float32)
    if odd:
        rare = [np.nan, np.inf, -np.inf, 1e20, -1, 1]
        places.reshape(-1)[rng.integers(0, places.size, 3)] = rng.choice(rare, 3)
        x.reshape(-1)[rng.integers(0, x.size, 2)] = rng.choice([np.nan, np.inf], 2)
    elem = TYPES[dtype]
    nodes = [helper.make_node("Transpose", ["x"], ["t"], perm=[0, 3, 1, 2])] if last else []
    nodes += [helper.make_node("GridSample", ["t" if last else "x", "g"], ["s"], name="sampled", mode=mode,
                               padding_mode=padding, align_corners=int(align)),
              helper.make_node("Relu", ["s"], ["y"])]
    x = np.ascontiguousarray(x.transpose(0, 2, 3, 1)) if last else x
    made = model(nodes, [info("x", elem, x.shape), info("g", shape=places.shape)],
                 [info("y", elem, (images, channels, down, across))]).SerializeToString()
    with mock.patch.object(detect, "host", lambda: MACHINES[seed % len(MACHINES)]):
        s = ort.InferenceSession(made, providers=["CPUExecutionProvider"])
    assert "generated for" in str(s.explain()["sampled"])
    plain = ort.InferenceSession(made, providers=[("CPUExecutionProvider", {"use_codegen": "0"})])
    (got,), (expected,) = (each.run(None, {"x": x, "g": places}) for each in (s, plain))
    if mode == "nearest":
        np.testing.assert_array_equal(got, expected)
    else:
        np.testing.assert_allclose(got, expected, *((1e-4, 1e-5) if dtype == "float32" else (2e-3, 2e-3)))


@draws(60)
@given(st.integers(1, 2), st.sampled_from((1, 2, 3)), st.sampled_from((1, 2, 4)), st.integers(1, 5),
       st.lists(st.tuples(*[st.integers(1, 3)] * 3, *[st.integers(0, 2)] * 2, st.integers(0, 6)), min_size=2,
                max_size=2), st.booleans(), st.booleans(), st.booleans(), st.booleans(), st.integers(0, 999))
def test_deformed(images: int, group: int, own: int, rows: int, axes: list[tuple[int, ...]], biased: bool,
                  masked: bool, known: bool, last: bool, seed: int) -> None:
    """(kernel, step, spread, margins, more) of each axis; offsets far outside and none at all."""
    rng = np.random.default_rng(seed)
    kernel, steps, spreads, begins, ends, mores = (list(v) for v in zip(*axes, strict=True))
    size = [max(1, (k - 1) * d + 1 - b - e) + m for k, d, b, e, m in zip(
        kernel, spreads, begins, ends, mores, strict=True)]
    out = [(n + b + e - (k - 1) * d - 1) // s + 1 for n, k, s, d, b, e in zip(
        size, kernel, steps, spreads, begins, ends, strict=True)]
    c, taps = group * own * int(rng.integers(1, 3)), kernel[0] * kernel[1]
    feeds = {"x": rng.standard_normal((images, c, *size)), "w": rng.standard_normal(
        (group * rows, c // group, *kernel)), "o": 2 * rng.standard_normal((images, own * taps * 2, *out))}
    feeds["o"].reshape(-1)[rng.integers(0, feeds["o"].size, 2)] = rng.choice([np.nan, 1e20, -1e20, 0, -1], 2)
    names = ["x", "w", "o", "", ""]
    if biased:
        feeds["b"], names[3] = rng.standard_normal(group * rows), "b"
    if masked:
        feeds["m"], names[4] = rng.uniform(size=(images, own * taps, *out)), "m"
    feeds = {name: array.astype(np.float32) for name, array in feeds.items()}
    nodes = [helper.make_node("DeformConv", ["t" if last else "x", *names[1:]], ["s"], name="moved",
                              kernel_shape=kernel, strides=steps, dilations=spreads, pads=[*begins, *ends],
                              group=group, offset_group=own), helper.make_node("Relu", ["s"], ["y"])]
    if last:
        nodes.insert(0, helper.make_node("Transpose", ["x"], ["t"], perm=[0, 3, 1, 2]))
        feeds["x"] = np.ascontiguousarray(feeds["x"].transpose(0, 2, 3, 1))
    held = {"w": feeds.pop("w")} if known else {}
    made = model(nodes, [info(name, shape=array.shape) for name, array in feeds.items()],
                 [info("y", shape=(images, group * rows, *out))], held).SerializeToString()
    with mock.patch.object(detect, "host", lambda: MACHINES[seed % len(MACHINES)]):
        s = ort.InferenceSession(made, providers=["CPUExecutionProvider"])
    assert "generated for" in str(s.explain()["moved"])
    plain = ort.InferenceSession(made, providers=[("CPUExecutionProvider", {"use_codegen": "0"})])
    (got,), (expected,) = (each.run(None, feeds) for each in (s, plain))
    np.testing.assert_allclose(got, expected, 1e-4, 1e-4)


@draws(120)
@given(st.integers(1, 3), st.sampled_from((1, 2, 3, 5, 16, 70)), st.tuples(*[st.integers(1, 9)] * 2),
       st.tuples(*[st.integers(1, 5)] * 2), st.integers(1, 6), st.sampled_from(("avg", "max", "bins")),
       st.sampled_from((0, 0, 1, 2, 3)), st.sampled_from((0.25, 1.0, 3.0)), st.booleans(),
       st.sampled_from(("float32", "float16")), st.sampled_from(("plain", "whole", "odd")), st.booleans(),
       st.integers(0, 999))
def test_regions(images: int, channels: int, size: tuple[int, int], bins: tuple[int, int], count: int,
                 mode: str, ratio: int, scale: float, half: bool, dtype: str, kind: str, last: bool,
                 seed: int) -> None:
    """Regions within and outside of the map, of no size and of negative ones, far away and nowhere; of an
    image that there is not, or where pooling has none, the definition speaks."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((images, channels, *size)).astype(dtype)
    regions = rng.uniform(-4, 12, (count, 4)).astype(dtype)
    behind = rng.random(count) < 0.8
    regions[behind, 2:] = regions[behind, :2] + abs(regions[behind, 2:])
    if kind == "whole":
        regions = np.round(regions)
    if kind == "odd":
        rare = [1e4, -1e4, 0] + [np.inf, -np.inf, np.nan] * (mode != "bins")
        regions.reshape(-1)[rng.integers(0, regions.size, 3)] = rng.choice(rare, 3)
        if mode != "avg":
            x.reshape(-1)[rng.integers(0, x.size, 2)] = rng.choice([np.nan, np.inf], 2)
    named, elem = rng.integers(0, images, count), TYPES[dtype]
    nodes = [helper.make_node("Transpose", ["x"], ["t"], perm=[0, 3, 1, 2])] if last else []
    feeds = {"x": np.ascontiguousarray(x.transpose(0, 2, 3, 1)) if last else x, "r": regions}
    if mode == "bins":
        feeds["r"] = np.concatenate([named[:, None].astype(dtype), regions], 1)
        nodes.append(helper.make_node("MaxRoiPool", ["t" if last else "x", "r"], ["s"], name="sampled",
                                      pooled_shape=bins, spatial_scale=scale))
    else:
        feeds["i"] = named
        nodes.append(helper.make_node(
            "RoiAlign", ["t" if last else "x", "r", "i"], ["s"], name="sampled", mode=mode,
            output_height=bins[0], output_width=bins[1], sampling_ratio=ratio, spatial_scale=scale,
            coordinate_transformation_mode="half_pixel" if half else "output_half_pixel"))
    nodes.append(helper.make_node("Relu", ["s"], ["y"]))
    made = model(nodes, [info("x", elem, feeds["x"].shape), info("r", elem, feeds["r"].shape),
                         *([info("i", TensorProto.INT64, (count,))] if "i" in feeds else [])],
                 [info("y", elem, (count, channels, *bins))]).SerializeToString()
    with mock.patch.object(detect, "host", lambda: MACHINES[seed % len(MACHINES)]):
        s = ort.InferenceSession(made, providers=["CPUExecutionProvider"])
    assert "generated for" in str(s.explain()["sampled"])
    plain = ort.InferenceSession(made, providers=[("CPUExecutionProvider", {"use_codegen": "0"})])
    (got,), (expected,) = (each.run(None, feeds) for each in (s, plain))
    if mode == "bins":
        np.testing.assert_array_equal(got, expected)
    else:
        np.testing.assert_allclose(got, expected, *((1e-4, 1e-5) if dtype == "float32" else (2e-3, 2e-3)))
    name, at = ("r", (count - 1, 0)) if mode == "bins" else ("i", count - 1)
    feeds[name][at] = images + 1
    with pytest.raises(errors.Fail, match="image"):
        s.run(None, feeds)
