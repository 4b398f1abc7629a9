"""Convolutions of bytes as AMD machine code: exact sums, whatever signs, zero points, groups and margins."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from emulated_gpu import compare
from gpu_lowered import AMD, defined, hinted, lowered, ran
from gpu_models import by_turns, model, node, of_arrays

from orthrus.codegen.triton import compile as compiling

pytestmark = pytest.mark.needs("AMD tables", "Triton")

ENDS = {"int8": (-128, 128), "uint8": (0, 256)}


def _bytes(rng: np.random.Generator, dtype: str, *shape: int) -> np.ndarray:
    return rng.integers(*ENDS[dtype], shape).astype(dtype)


def _points(rng: np.random.Generator, dtype: str, count: int) -> np.ndarray | None:
    """A zero point: none, 0, the middle, any, or one for each channel."""
    how = rng.integers(5 if count else 4)
    if how == 4:
        return _bytes(rng, dtype, count)
    middle = 128 if dtype == "uint8" else 0
    return (None, np.array(0, dtype), np.array(middle, dtype), _bytes(rng, dtype, 1)[0])[how]


def drawn(seed: int) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """Sums of bytes, whose factors and zero points are known or computed."""
    rng = np.random.default_rng(seed)

    def chosen(*of: Any) -> Any:
        return of[rng.integers(len(of))]
    first, second = chosen(*ENDS), chosen(*ENDS)
    groups = chosen(1, 1, 2, 4)
    cin = chosen(1, 3, 16, 40) if groups < 4 else chosen(1, 2)
    cout, kernel = chosen(1, 3, 17), chosen(1, 2, 3)
    given = {"x": _bytes(rng, first, chosen(1, 2), groups * cin, 6, 5),
             "w": _bytes(rng, second, groups * cout, cin, kernel, kernel),
             "x_zero": _points(rng, first, 0), "w_zero": _points(rng, second, groups * cout)}
    known = [name for name in chosen(("w", "x_zero", "w_zero"), ("w", "w_zero"), ("x_zero", "w_zero"), ())
             if given[name] is not None]
    pads = [1, 0, 1, 1] if kernel > 1 else [0] * 4
    made, feeds = of_arrays("ConvInteger", given, constants=known, opset=20, group=groups, pads=pads,
                            strides=[chosen(1, 2), 1])
    return onnx.load_from_string(made), feeds


@pytest.mark.slow
@pytest.mark.parametrize("seed", (1, 4, 7, 14, 16, 21))
def test_sums_are_exact(seed: int) -> None:
    made, feeds = drawn(seed)
    (target,) = by_turns(seed)
    got = ran(made, feeds, target, seed)
    assert not got.why
    np.testing.assert_array_equal(got.outputs[0], defined(made, feeds)[0])


def _quantized(kernel: int, groups: int = 1, signed: str = "int8") -> tuple[bytes, dict[str, np.ndarray]]:
    """Dequantized bytes, convolved, with a bias and Relu, and quantized again; as quantizers write it."""
    rng = np.random.default_rng(kernel + groups)
    scales = rng.uniform(0.01, 0.02, 8).astype(np.float32)
    held = {"xs": np.float32(0.02), "xz": np.uint8(110),
            "w": _bytes(rng, signed, 8, 8 // groups, kernel, kernel),
            "ws": scales, "wz": np.full(8, 0 if signed == "int8" else 128, signed),
            "b": rng.integers(-900, 900, 8).astype(np.int32), "bs": np.float32(0.02) * scales,
            "ys": np.float32(0.4), "yz": np.uint8(3)}
    nodes = [node("QuantizeLinear", "x xs xz", "q"), node("DequantizeLinear", "q xs xz", "xf"),
             node("DequantizeLinear", "w ws wz", "wf", axis=0),
             node("DequantizeLinear", "b bs", "bf", axis=0),
             node("Conv", "xf wf bf", "c", group=groups, pads=[kernel // 2] * 4), node("Relu", "c", "r"),
             node("QuantizeLinear", "r ys yz", "y")]
    made = model(nodes, {"x": (2, 8, 5, 6)}, ["y"], **{k: np.asarray(v) for k, v in held.items()})
    return made, {"x": rng.normal(0, 1.5, (2, 8, 5, 6)).astype(np.float32)}


@pytest.mark.slow
def test_quantized_layers_are_the_cpus() -> None:
    for kernel, groups, signed in ((3, 1, "int8"), (1, 1, "uint8"), (3, 8, "int8"), (3, 8, "uint8")):
        made, feeds = _quantized(kernel, groups, signed)
        compare(made, feeds, by_turns(kernel, groups, signed))
        steps = lowered(onnx.load_from_string(made), feeds, "gfx942").steps
        assert [getattr(step.spec, "template", "") for step in steps] == [
            "elementwise", "convolution" if groups == 1 else "depthwise"]


@pytest.mark.slow
def test_channels_may_lie_last() -> None:
    rng = np.random.default_rng(3)
    held = {"xs": np.float32(0.02), "xz": np.uint8(110), "w": _bytes(rng, "int8", 8, 6, 3, 3),
            "ws": rng.uniform(0.01, 0.02, 8).astype(np.float32), "wz": np.zeros(8, np.int8),
            "ys": np.float32(0.4), "yz": np.uint8(90), "b": rng.integers(-900, 900, 8).astype(np.int32)}
    made = model([node("com.microsoft::QLinearConv", "x xs xz w ws wz ys yz b", "y", channels_last=1,
                       pads=[1, 1, 0, 1])], {"x": (1, 5, 4, 6)}, ["y"], "uint8",
                 **{k: np.asarray(v) for k, v in held.items()})
    compare(made, {"x": _bytes(rng, "uint8", 1, 5, 4, 6)}, AMD[:1])


@pytest.mark.slow
def test_pools_and_joined_bytes_are_the_cpus() -> None:
    rng = np.random.default_rng(4)
    held = {"s": np.float32(0.02), "z": np.uint8(120), "ys": np.float32(0.03), "yz": np.uint8(100)}
    window = {"kernel_shape": [3, 2], "strides": [2, 1], "pads": [1, 0, 1, 1]}
    x = _bytes(rng, "uint8", 2, 6, 5, 3)
    for op, inputs, attrs in (
            ("NhwcMaxPool", {"x": x}, window),
            ("QLinearAveragePool", {"x": x, **held}, {**window, "count_include_pad": 1}),
            ("QLinearAveragePool", {"x": x, **held}, {**window, "channels_last": 1}),
            ("QLinearConcat", {"ys": held["ys"], "yz": held["yz"], "x": x, "s": held["s"], "z": held["z"],
                               "x2": x[:1], "s2": held["ys"], "z2": held["yz"]}, {"axis": 0})):
        known = [name for name in inputs if name[0] != "x"]
        made, feeds = of_arrays(f"com.microsoft::{op}", {name: np.asarray(v) for name, v in inputs.items()},
                                constants=known, **attrs)
        compare(made, feeds, by_turns(op, attrs))


@pytest.mark.slow
def test_matrix_units_multiply_bytes() -> None:
    rng = np.random.default_rng(0)
    made, feeds = of_arrays("ConvInteger", {
        "x": _bytes(rng, "uint8", 8, 128, 56, 56), "w": _bytes(rng, "int8", 128, 128, 3, 3),
        "z": np.uint8(3)}, constants=["w", "z"], opset=20, pads=[1] * 4)
    for target, form, word in (("gfx942", "amdgcn", "v_mfma_i32"), ("sm_80", "ptx", "mma.sync"),
                               ("sm_90", "ptx", "wgmma.mma_async")):
        lo = lowered(onnx.load_from_string(made), feeds, target)
        step = next(step for step in lo.steps if getattr(step.spec, "template", "") == "convolution")
        text = compiling.text_of(step.spec, lo.target, hinted(step, lo), form)  # type: ignore[arg-type]
        assert word in text, target
