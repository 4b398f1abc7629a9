"""Quantizing, its inverse, conversions to integers and their quotients, against their definitions bit for
bit: 8 and 16 bits, one scale, one by axis or by block, known or computed, on each machine."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from ml_dtypes import bfloat16
from onnx import helper
from test_int8_models import MACHINES, codes, definition, model, on, run

import orthrus

TYPES = (np.int8, np.uint8, np.int16, np.uint16)
EXTREMES = np.array([0, -0.0, np.nan, np.inf, -np.inf, 3.4e38, -3.4e38, 1e-45, 0.5, 1.5, 2.5, -0.5, -1.5,
                     127.5, 255.5, 32767.5, 65535.5, 2.0 ** 31, -2.0 ** 31, 2.0 ** 31 - 128, 2.0 ** 63,
                     -2.0 ** 63,
                     2.0 ** 64, 2.0 ** 32, 1e19, -1e19], np.float32)
FORMS: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ((3, 50), (), {}), ((3, 50), (3,), {"axis": 0}), ((2, 5, 7), (5,), {"axis": -2}), ((9,), (9,), {}),
    ((4, 50), (4, 4), {"axis": 1, "block_size": 16}), ((7, 33), (3, 33), {"axis": 0, "block_size": 3}),
    ((2, 8, 5), (2, 2, 5), {"axis": -2, "block_size": 4}), ((2, 5), (2, 1), {"axis": 1, "block_size": 16}),
    ((0, 4), (0, 2), {"axis": 1, "block_size": 2}), ((0, 4), (), {}),
]


def machines() -> Any:
    return pytest.mark.parametrize("target", MACHINES, ids=lambda m: f"{8 * m.vector}-{len(m.features)}")


def session(made: Any) -> orthrus.InferenceSession:
    return orthrus.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])


def spread(rng: np.random.Generator, shape: tuple[int, ...], dtype: Any = np.float32) -> np.ndarray:
    """Floats, some of them extreme."""
    x = (rng.standard_normal(shape) * 300).astype(np.float32)
    with np.errstate(over="ignore"):
        return np.where(rng.random(shape) < 0.3, rng.choice(EXTREMES, shape), x).astype(dtype)


@machines()
@pytest.mark.parametrize("form", range(len(FORMS)))
@pytest.mark.parametrize("known", [True, False])
def test_quantize_and_back(target: Any, form: int, known: bool) -> None:
    shape, parts, attrs = FORMS[form]
    rng = np.random.default_rng(form)
    for i, dtype in enumerate(TYPES):
        scale, zero = (rng.random(parts) + 0.01).astype(np.float32), codes(rng, dtype, *parts)
        given = {"s": np.asarray(scale)} | ({"z": np.asarray(zero)} if i != 1 else {})
        for kind, x in (("QuantizeLinear", spread(rng, shape)),
                        ("DequantizeLinear", codes(rng, dtype, *shape))):
            feeds, held = ({"x": x}, given) if known else ({"x": x, **given}, {})
            node = helper.make_node(kind, ["x", *given], ["y"], **attrs)
            result = np.float32 if kind[0] == "D" else dtype
            with on(target):
                made = model([node], feeds, held, {"y": result})
                got = run(made, feeds, None)[0] if x.size else session(made).run(None, feeds)[0]
            with np.errstate(all="ignore"):
                wanted = definition(kind, x, *given.values(), **attrs)
            assert got.dtype == wanted.dtype
            np.testing.assert_array_equal(got, wanted)


@machines()
@pytest.mark.parametrize("source", [np.float32, np.float64, np.float16])
def test_conversions_of_extremes(target: Any, source: Any) -> None:
    rng = np.random.default_rng(1)
    x = spread(rng, (3, 71), source)
    for to in (*TYPES, np.int32, np.uint32, np.int64, np.uint64):
        elem = helper.np_dtype_to_tensor_dtype(np.dtype(to))
        node = helper.make_node("Cast", ["x"], ["y"], to=elem)
        with on(target):
            got = run(model([node], {"x": x}, {}, {"y": to}), {"x": x}, "")[0]
        np.testing.assert_array_equal(got, definition("Cast", x, to=elem))


@machines()
@pytest.mark.parametrize("form", range(len(FORMS)))
@pytest.mark.parametrize("since", [21, 23])
def test_the_type_of_a_scale_divides(target: Any, form: int, since: int) -> None:
    """From opset 23 on the scale's type is that of the division, as in onnxruntime 1.32; before, float32."""
    shape, parts, attrs = FORMS[form]
    rng = np.random.default_rng(form)
    mixed = [(np.float32, np.float16), (np.float16, np.float32)] if since > 21 else []
    for x_type, scale_type in [(np.float16, np.float16), (bfloat16, bfloat16), *mixed]:
        x = spread(rng, shape, x_type)
        scale = np.asarray((rng.random(parts) + 0.1).astype(scale_type))
        for dtype in TYPES:
            zero = np.asarray(codes(rng, dtype, *parts))
            made = model([helper.make_node("QuantizeLinear", ["x", "s", "z"], ["y"], **attrs)], {"x": x},
                         {"s": scale, "z": zero}, {"y": dtype})
            made.opset_import[0].version = since
            with on(target):
                got = run(made, {"x": x}, None)[0] if x.size else session(made).run(None, {"x": x})[0]
            work = scale_type if since > 21 else np.float32
            size = attrs.get("block_size", 0)
            by, low = (np.repeat(p, size, attrs["axis"])[tuple(map(slice, shape))] if size else p.reshape(
                (-1, *(1,) * (len(shape) - 1 - attrs.get("axis", 0) % len(shape))) if parts else ())
                for p in (scale, zero))
            with np.errstate(all="ignore"):
                real = np.rint((x.astype(work) / by.astype(work)).astype(np.float64)) + low
            info = np.iinfo(dtype)
            wanted = np.fmin(np.fmax(real, info.min), info.max).astype(dtype)
            np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_half_precision(dtype: Any) -> None:
    """What is dequantized is computed in float32 and rounded once."""
    rng = np.random.default_rng(2)
    x = codes(rng, np.int16, 4, 33)
    held = {"s": np.asarray(0.25, np.float16), "z": np.asarray(-7, np.int16)}
    node = helper.make_node("DequantizeLinear", ["x", "s", "z"], ["y"],
                            **({"output_dtype": 1} if dtype == np.float32 else {}))
    made = model([node], {"x": x}, held, {"y": dtype})
    made.opset_import[0].version = 23
    got = run(made, {"x": x}, "", "ORT_DISABLE_ALL")
    with np.errstate(over="ignore"):
        real = ((x.astype(np.float32) + 7) * np.float32(0.25)).astype(dtype)
    np.testing.assert_array_equal(got[0], real)


@machines()
@pytest.mark.parametrize("dtype", [*TYPES, np.int32, np.uint32, np.int64, np.uint64])
def test_integer_quotients(target: Any, dtype: Any) -> None:
    """All extremes by each other; a divisor of 0 is the definition's error, in whatever place it stands."""
    rng = np.random.default_rng(3)
    info = np.iinfo(dtype)
    ends = np.array([info.min, info.min + 1, info.max, info.max - 1, 1, 2, 3, info.max // 2], dtype)
    a = np.concatenate([np.repeat(ends, len(ends)), codes(rng, dtype, 300), np.array([0, 7], dtype)])
    b = np.concatenate([np.tile(ends, len(ends)), codes(rng, dtype, 300), np.array([5, info.max], dtype)])
    b[b == 0] = 1 if info.min == 0 else -1
    for kind, attrs in (("Div", {}), ("Mod", {}), ("Mod", {"fmod": 1})):
        node = helper.make_node(kind, ["a", "b"], ["y"], **attrs)
        feeds = {"a": a, "b": b}
        with on(target):
            got = run(model([node], feeds, {}, {"y": dtype}), feeds, "none_zero")[0]
        np.testing.assert_array_equal(got, definition(kind, a, b, **attrs))


@pytest.mark.parametrize("place", [0, 63, 4096, 5000])
def test_a_divisor_of_zero_is_found(place: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    b = np.ones(5001, np.int8)
    b[place] = 0
    feeds = {"a": np.ones(5001, np.int8), "b": b}
    made = session(model([helper.make_node("Div", ["a", "b"], ["y"])], feeds, {}, {"y": np.int8}))
    with pytest.raises(Exception, match="zero"):
        made.run(None, feeds)
