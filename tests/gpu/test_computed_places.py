"""Elements at computed places, products by letters and of integers, and what is counted or sampled: as AMD
machine code, against the operators' definitions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from emulated_gpu import on_gpu
from gpu_kernels import ptx
from gpu_lowered import AMD, defined, lowered, ran
from gpu_models import by_turns, of_arrays
from onnx import helper

from orthrus.errors import Fail, InvalidArgument

pytestmark = [pytest.mark.needs("AMD tables", "Triton"), pytest.mark.slow]

NEAR = {"float32": 1e-5, "float16": 3e-3, "bfloat16": 2e-2, "float64": 1e-12}


def turned(op: str, inputs: Mapping[str, np.ndarray | None], outputs: int = 1, turn: str = "",
           constants: tuple[str, ...] = (), **attrs: Any) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """A model of one node, whose input `turn` lies the other way around in memory."""
    data, feeds = of_arrays(op, inputs, outputs, constants, **attrs)
    model = onnx.load_from_string(data)
    if turn:
        feeds = {**feeds, turn: np.ascontiguousarray(feeds[turn].T)}
        info = next(v for v in model.graph.input if v.name == turn)
        info.CopyFrom(helper.make_tensor_value_info(turn, info.type.tensor_type.elem_type, feeds[turn].shape))
        (node,) = model.graph.node
        node.input[list(node.input).index(turn)] = "turned"
        model.graph.node.insert(0, helper.make_node("Transpose", [turn], ["turned"]))
    return model, feeds


def check(op: str, inputs: Mapping[str, np.ndarray | None], outputs: int = 1, **named: Any) -> list[str]:
    """Equal to the definition; the kernels that ran."""
    model, feeds = turned(op, inputs, outputs, **named)
    (target,) = by_turns(op, named, [None if x is None else x.dtype.name for x in inputs.values()])
    got = ran(model, feeds, target)
    assert not got.why, got.why
    for a, b in zip(got.outputs, defined(model, feeds), strict=True):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        if a.dtype.kind in "iub":
            np.testing.assert_array_equal(a, b)
        else:
            near = NEAR[a.dtype.name]
            np.testing.assert_allclose(a.astype(np.float64), b.astype(np.float64), near, near)
    return got.kernels


RNG = np.random.default_rng(5)


def reals(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return RNG.standard_normal(shape).astype(dtype)


def longs(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int64)


def test_sequences_and_caches() -> None:
    check("ReverseSequence", {"x": reals(5, 3, 4), "n": longs(5, 0, 3)}, turn="x", time_axis=0, batch_axis=1)
    check("ReverseSequence", {"x": reals(3, 5) > 0, "n": longs(2, 5, 1)}, time_axis=1, batch_axis=0)
    check("TensorScatter", {"x": reals(2, 3, 6, 4), "u": reals(2, 3, 2, 4), "i": longs(4, 1)}, turn="u")
    check("TensorScatter", {"x": reals(2, 6, 4, dtype=np.float16), "u": reals(2, 3, 4, dtype=np.float16),
                            "i": longs(5, 11)}, axis=1, mode="circular")


def test_a_place_that_is_none_is_the_definitions_error() -> None:
    for op, inputs, attrs in (
            ("ReverseSequence", {"x": reals(5, 2), "n": longs(6, 1)}, {"time_axis": 0, "batch_axis": 1}),
            ("ReverseSequence", {"x": reals(5, 2), "n": longs(-1, 1)}, {"time_axis": 0, "batch_axis": 1}),
            ("TensorScatter", {"x": reals(2, 6, 4), "u": reals(2, 3, 4), "i": longs(4, 0)}, {"axis": 1}),
            ("NegativeLogLikelihoodLoss", {"x": reals(2, 3), "y": longs(-1, 0)}, {}),
            ("RoiAlign", {"x": reals(1, 1, 4, 4), "b": reals(1, 4), "i": longs(1)}, {})):
        data, feeds = of_arrays(op, inputs, **attrs)
        session = on_gpu(data, AMD[0], alone=True)
        with pytest.raises((Fail, InvalidArgument)):
            session.run(None, feeds)


def test_images_put_together() -> None:
    x = reals(2, 3, 8, 6)
    data, _ = of_arrays("MaxPool", {"x": x}, 2, kernel_shape=[2, 2], strides=[2, 2])
    best, places = defined(onnx.load_from_string(data), {"x": x})
    shape = {"kernel_shape": [2, 2], "strides": [2, 2], "opset": 22}
    check("MaxUnpool", {"x": best, "i": places}, turn="x", **shape)
    check("MaxUnpool", {"x": best, "i": places, "s": longs(2, 3, 9, 8)}, constants=("s",), **shape)
    check("Col2Im", {"x": reals(2, 18, 16), "s": longs(5, 6), "b": longs(2, 3)}, turn="x",
          constants=("s", "b"))
    check("Col2Im", {"x": reals(2, 18, 9, dtype=np.float16), "s": longs(5, 5), "b": longs(3, 3)},
          constants=("s", "b"), strides=[2, 2], pads=[1] * 4)


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
def test_losses(dtype: Any) -> None:
    labels, weights = RNG.integers(0, 5, (3, 4)), np.abs(reals(5)).astype(dtype)
    x = reals(3, 5, 4, dtype=dtype)
    check("NegativeLogLikelihoodLoss", {"x": x, "y": labels, "w": weights}, ignore_index=2)
    check("SoftmaxCrossEntropyLoss", {"x": x, "y": labels.astype(np.int32), "w": None}, 2, turn="x",
          reduction="none")


@pytest.mark.parametrize("kind, half, ratio", [("avg", "half_pixel", 0), ("max", "output_half_pixel", 2)])
def test_regions(kind: str, half: str, ratio: int) -> None:
    boxes = RNG.uniform(-3, 9, (6, 4)).astype(np.float32)
    boxes[:, 2:] = boxes[:, :2] + RNG.uniform(-1, 9, (6, 2))
    boxes[0], boxes[1, 2] = (0, 0, 1e9, 3), np.inf
    check("RoiAlign", {"x": reals(2, 3, 7, 8), "b": boxes, "i": longs(0, 1, 0, 1, 1, 0)}, turn="x",
          mode=kind, coordinate_transformation_mode=half, sampling_ratio=ratio, output_height=3,
          output_width=2, spatial_scale=0.7)


def test_grids_of_affine_maps() -> None:
    for corners in (0, 1):
        check("AffineGrid", {"t": reals(2, 2, 3), "s": longs(2, 3, 4, 5)}, constants=("s",), turn="t",
              align_corners=corners)
    check("AffineGrid", {"t": reals(2, 3, 4, dtype=np.float16), "s": longs(2, 3, 2, 4, 5)}, constants=("s",))


@pytest.mark.parametrize("equation, shapes", [
    ("nhwpqc->nchpwq", [(1, 2, 3, 2, 2, 4)]), ("bqhd,bkhd->bhqk", [(2, 5, 3, 8), (2, 6, 3, 8)]),
    ("...ij,...jk->...ik", [(2, 3, 4), (3, 2, 4, 5)]), ("ii", [(4, 4)]), ("i,j->ij", [(3,), (4,)]),
    ("abc,bd,de->ace", [(2, 3, 4), (3, 5), (5, 6)]), ("bij,jk->bk", [(2, 3, 4), (4, 5)]),
    ("bnm,bmd,d->nb", [(2, 3, 4), (2, 4, 5), (5,)]), ("ab,ab->b", [(3, 4), (1, 4)])])
def test_letters(equation: str, shapes: list[tuple[int, ...]]) -> None:
    check("Einsum", {f"x{i}": reals(*shape) for i, shape in enumerate(shapes)}, turn="x0", equation=equation)


@pytest.mark.parametrize("dtype", ["int32", "uint64"])
def test_products_of_integers_wrap_around(dtype: str) -> None:
    ends = np.iinfo(dtype)
    a, b = (RNG.integers(ends.min, ends.max, shape, dtype, True) for shape in ((2, 5, 7), (7, 40)))
    assert check("MatMul", {"a": a, "b": b}, turn="b") == ["integer_products"]


def test_the_best_of_wide_types() -> None:
    x = reals(3, 70, dtype=np.float64)
    x[0, 3], x[1, 5], x[2, 1], x[2, 2] = np.nan, -np.inf, -0.0, 0.0
    check("TopK", {"x": x, "k": longs(9)}, 2, constants=("k",), largest=0, axis=1)
    check("TopK", {"x": RNG.integers(-2 ** 63, 2 ** 63 - 1, (20, 3)) >> 61, "k": longs(20)}, 2,
          constants=("k",), turn="x", axis=0)


@pytest.mark.parametrize("dtype, how", [(np.float16, "max"), (ml_dtypes.bfloat16, "add")])
def test_halves_are_folded(dtype: Any, how: str) -> None:
    x, u = reals(4, 5, dtype=dtype), reals(3, 5, dtype=dtype)
    check("ScatterElements", {"x": x, "i": RNG.permuted(np.tile(np.arange(-2, 1), (5, 1)), axis=1).T, "u": u},
          axis=0, reduction=how)


def test_nvidia_is_given_them() -> None:
    boxes = {"x": reals(1, 2, 4, 4), "b": reals(2, 4), "i": longs(0, 0)}
    letters = {"x": reals(5, 6).astype(np.int64), "y": reals(6, 7).astype(np.int64)}
    for target, op, inputs, attrs in (
            ("sm_80", "RoiAlign", boxes, {}), ("sm_90", "Einsum", letters, {"equation": "ab,bc->ca"}),
            ("sm_90", "TopK", {"x": reals(9).astype(np.float64), "k": longs(3)}, {"constants": ("k",)})):
        model, feeds = turned(op, inputs, 2 if op == "TopK" else 1, **attrs)
        step = lowered(model, feeds, target).steps[0]
        args = [np.zeros(1) if hasattr(a, "buffer") else a for a in step.args]
        assert ".entry" in ptx(step.spec, target, *args)  # type: ignore[arg-type]
