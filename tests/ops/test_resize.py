"""Resize and Upsample at random: every mode, coordinate mode and version, by scales and by sizes.

Each model is compared with onnxruntime, or with ONNX's reference where onnxruntime does not run it or goes
its own way, and the inferred shape with the computed one.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import orthrus as ort
from orthrus.ops import find
from orthrus.tools.symbolic_shape_infer import SymbolicShapeInference

CASES = 400
COORDINATES = {"half_pixel": 11, "asymmetric": 11, "align_corners": 11, "pytorch_half_pixel": 11,
               "tf_crop_and_resize": 11, "half_pixel_symmetric": 19}
NEAREST = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
SCALES = (0.3, 1 / 3, 0.5, 0.6, 0.7, 0.8, 1.1, 1.3, 1.5, 2, 2.2, 2.6, 3)
F = np.float32


@dataclass
class Case:
    """One node: `axes` are those resized, as non-negative numbers."""

    op: str
    opset: int
    shape: list[int]
    axes: list[int]
    attrs: dict[str, Any] = field(default_factory=dict)
    given: dict[str, np.ndarray] = field(default_factory=dict)

    def model(self, attrs: dict[str, Any] | None = None, shape: list[Any] | None = None) -> onnx.ModelProto:
        order = ("scales",) if self.opset < 11 else ("roi", "scales", "sizes")
        given = dict(self.given)
        if self.opset in (11, 12):
            given = {"roi": np.zeros(0, F), "scales": np.zeros(0, F), **given}
        names = ["x", *(n if n in given else "" for n in order)]
        while not names[-1]:
            names.pop()
        graph = helper.make_graph(
            [helper.make_node(self.op, names, ["y"], "it", **{**self.attrs, **(attrs or {})})], "g",
            [helper.make_tensor_value_info("x", 1, shape or self.shape)],
            [helper.make_empty_tensor_value_info("y")],
            [numpy_helper.from_array(v, k) for k, v in given.items()])
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=8)

    def __str__(self) -> str:
        given = {k: v.tolist() for k, v in self.given.items()}
        return f"{self.op}-{self.opset} of {self.shape} {self.attrs} {given}"

    @property
    def keeps_a_length(self) -> bool:
        """Whether a resized axis keeps its length: onnxruntime then takes its elements as they are, whatever
        scale or box say."""
        lengths = [self.shape[a] for a in self.axes]
        if "sizes" in self.given:
            return any(n in self.given["sizes"] for n in lengths) and "roi" in self.given
        chosen = self.given.get("scales", np.array(self.attrs.get("scales", ()), F))
        scales = chosen if len(chosen) == len(self.axes) else chosen[self.axes]
        return any(int(F(n) * s) == n for n, s in zip(lengths, scales, strict=True) if s != 1)

    @property
    def fractional_corners(self) -> bool:
        """Whether corners are aligned by a length that is no whole number: from version 19 on the standard's
        data keep the fraction, onnxruntime does not."""
        return (self.opset >= 19 and "scales" in self.given
                and self.attrs.get("coordinate_transformation_mode") == "align_corners")


def drawn(seed: int) -> Case:
    rng = np.random.default_rng(seed)

    def one(values: Any) -> Any:
        return values[int(rng.integers(len(values)))]
    rank = one((1, 2, 3, 4, 4, 4, 5))
    opset = one((7, 9, 10, 11, 13, 17, 18, 19, 20, 22))
    shape = [int(rng.integers(1, 8)) for _ in range(rank)]
    count = min(rank, one((1, 2, 2, 3)))
    axes = list(range(rank - count, rank))
    if one((0, 0, 1)):
        axes = sorted(int(a) for a in rng.choice(rank, count, replace=False))
    case = Case("Resize" if opset >= 10 else "Upsample", opset, shape, axes)
    listed = opset >= 18 and one((False, True))

    def told(values: list[Any], rest: list[Any], dtype: Any) -> np.ndarray:
        """A value per axis named, or per axis of the tensor."""
        full = [values[axes.index(i)] if i in axes else rest[i] for i in range(rank)]
        return np.array(values if listed else full, dtype)
    scales = [one((*SCALES, float(rng.uniform(0.2, 4)))) for _ in axes]
    if opset < 10:
        scales = [max(s, 1.0) for s in scales]
    vector = told(scales, [1.0] * rank, F)
    mode = one(("nearest", "linear") if opset < 11 else ("nearest", "linear", "cubic"))
    case.attrs["mode"] = mode
    if opset == 7:
        case.attrs["scales"] = vector.tolist()
    if opset < 11:
        case.given = {} if opset == 7 else {"scales": vector}
        return case
    coordinates = one([c for c, since in COORDINATES.items() if since <= opset])
    case.attrs["coordinate_transformation_mode"] = coordinates
    if listed:
        case.attrs["axes"] = [a - rank if one((False, True)) else a for a in axes]
    if mode == "nearest":
        case.attrs["nearest_mode"] = one(NEAREST)
    else:
        case.attrs["exclude_outside"] = one((0, 0, 1))
        if opset >= 18:
            case.attrs["antialias"] = one((0, 0, 1))
    if mode == "cubic":
        case.attrs["cubic_coeff_a"] = one((-0.75, -0.5))
    if coordinates == "tf_crop_and_resize":
        case.attrs["extrapolation_value"] = 7.5
        start = told([one((0, 0.1, 0.25, -0.1, 0.5)) for _ in axes], [0] * rank, F)
        end = told([one((1, 0.9, 0.75, 1.2, 0.6)) for _ in axes], [1] * rank, F)
        case.given["roi"] = np.concatenate([start, end])
    if one((False, True)):
        case.given["scales"] = vector
    else:
        case.given["sizes"] = told([int(rng.integers(1, 12)) for _ in axes], shape, np.int64)
        if listed and one((False, True)):
            case.attrs["keep_aspect_ratio_policy"] = one(("not_larger", "not_smaller"))
    return case


def by_onnxruntime(case: Case, x: np.ndarray) -> np.ndarray | None:
    """None where it refuses. Its policies want axes that count from the front."""
    peer = pytest.importorskip("onnxruntime")
    options = peer.SessionOptions()
    options.log_severity_level = 4
    model = case.model({"axes": case.axes} if "axes" in case.attrs else None)
    try:
        return peer.InferenceSession(model.SerializeToString(), options).run(None, {"x": x})[0]
    except Exception:
        return None


def by_reference(case: Case, x: np.ndarray) -> np.ndarray | None:
    """None where ONNX's reference has no answer, or another formula than the text."""
    coordinates = case.attrs.get("coordinate_transformation_mode")
    whole = coordinates == "align_corners" and case.opset < 19 and "scales" in case.given
    if case.opset < 11 or coordinates in ("pytorch_half_pixel", "tf_crop_and_resize") or whole \
            or case.attrs.get("antialias") or "keep_aspect_ratio_policy" in case.attrs:
        return None
    from onnx.reference import ReferenceEvaluator

    model = case.model({"axes": case.axes} if "axes" in case.attrs else None)
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            return np.asarray(ReferenceEvaluator(model).run(None, {"x": x})[0])
        except (RuntimeError, ValueError, IndexError, TypeError):
            return None


def ran(case: Case, x: np.ndarray) -> tuple[np.ndarray, list[Any]]:
    """The result, and the shape inferred from the model."""
    session = ort.InferenceSession(case.model().SerializeToString())
    return session.run(None, {"x": x})[0], session.get_outputs()[0].shape


@pytest.mark.parametrize("part", range(4))
def test_random_models_agree_with_onnxruntime_and_the_reference(part: int) -> None:
    compared = {"onnxruntime": 0, "the reference": 0}
    for seed in range(part, CASES, 4):
        case = drawn(seed)
        x = np.random.default_rng(seed).normal(size=case.shape).astype(F)
        y, inferred = ran(case, x)
        assert inferred == list(y.shape), f"{case}: inferred {inferred}, computed {list(y.shape)}"
        expected, peer = None, "onnxruntime"
        if not case.keeps_a_length and not case.fractional_corners:
            expected = by_onnxruntime(case, x)
        if expected is None:
            expected, peer = by_reference(case, x), "the reference"
        if expected is not None and expected.shape == y.shape:
            compared[peer] += 1
            np.testing.assert_allclose(y, expected, 1e-3, 1e-4, err_msg=f"{case} against {peer}")
        else:
            assert expected is None or peer == "the reference", f"{case}: {peer} gives {expected.shape}"
    assert min(compared.values()) > CASES // 40, compared


@pytest.mark.slow
def test_inferred_names_are_exact() -> None:
    """What shape inference says of a dimension that is a name holds for every number in its place."""
    for seed in range(CASES):
        case = drawn(seed)
        names = [f"n{i}" for i in range(len(case.shape))]
        model = SymbolicShapeInference.infer_shapes(case.model(shape=names), auto_merge=True)
        shape = model.graph.output[0].type.tensor_type.shape.dim
        x = np.zeros(case.shape, F)
        y, _ = ran(case, x)
        at: dict[str, Any] = {"floor": np.floor, **dict(zip(names, map(float, case.shape), strict=True))}
        for dim, n in zip(shape, y.shape, strict=True):
            known = dim.dim_value or (dim.dim_param and all(p in at for p in _names(dim.dim_param)))
            if known:
                assert eval(str(dim.dim_value or dim.dim_param), {}, at) == n, f"{case}: {dim}, computed {n}"


def _names(text: str) -> list[str]:
    import ast

    return [node.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)]


@pytest.mark.parametrize("opset", [10, 11, 19])
def test_lengths_are_the_products_in_float32(opset: int) -> None:
    """5 times the float32 next to 2.6 is below 13, and rounds to it."""
    case = Case("Resize", opset, [1, 1, 5, 4], [2, 3], {"mode": "nearest"},
                {"scales": np.array([1, 1, 2.6, 2.6], F)})
    y, inferred = ran(case, np.zeros(case.shape, F))
    assert inferred == [1, 1, 13, 10] == list(y.shape)


def test_a_box_does_not_change_the_length() -> None:
    case = Case("Resize", 13, [1, 1, 8, 8], [2, 3], {"coordinate_transformation_mode": "tf_crop_and_resize"},
                {"roi": np.array([0, 0, 0.25, 0.25, 1, 1, 0.75, 0.75], F),
                 "scales": np.array([1, 1, 1.5, 0.5], F)})
    y, inferred = ran(case, np.zeros(case.shape, F))
    assert inferred == [1, 1, 12, 4] == list(y.shape)


@pytest.mark.parametrize("opset", [11, 13, 17, 18])
def test_corners_are_aligned_by_whole_lengths(opset: int) -> None:
    case = Case("Resize", opset, [1, 1, 1, 5], [3],
                {"mode": "linear", "coordinate_transformation_mode": "align_corners"},
                {"scales": np.array([1, 1, 1, 1.5], F)})
    y, _ = ran(case, np.arange(5, dtype=F).reshape(case.shape))
    np.testing.assert_allclose(y.ravel(), np.linspace(0, 4, 7), rtol=1e-6)


@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize("scale", [0.3, 0.5, 0.7, 0.75, 1.3, 2.5])
def test_the_oldest_form_runs_as_defined(mode: str, scale: float) -> None:
    """Where it shrinks, version 10 takes the next element and not the one before."""
    case = Case("Resize", 10, [1, 1, 7, 9], [2, 3], {"mode": mode}, {"scales": np.array([1, 1, scale, 1], F)})
    x = np.random.default_rng(0).normal(size=case.shape).astype(F)
    defined = find("", "Resize", 10)
    assert defined is not None
    y, _ = ran(case, x)
    np.testing.assert_allclose(y, defined.bind({"mode": mode})(x, case.given["scales"]), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", ["uint8", "int32"])
@pytest.mark.parametrize("mode", ["linear", "cubic"])
def test_antialiased_integers_are_rounded_as_in_onnxruntime(mode: str, dtype: str) -> None:
    """After each axis, the last one first; without antialiasing they are cut."""
    peer = pytest.importorskip("onnxruntime")
    rng, off, count = np.random.default_rng(3), 0, 0
    for shape, sizes in (((1, 2, 8, 8), (4, 4)), ((2, 1, 9, 12), (4, 7)), ((1, 3, 5, 20), (10, 6)),
                         ((1, 1, 12, 6), (3, 11)), ((1, 1, 7, 5), (14, 9))):
        x, lengths = rng.integers(0, 256, shape).astype(dtype), np.array([*shape[:2], *sizes])
        elem = helper.np_dtype_to_tensor_dtype(x.dtype)
        graph = helper.make_graph(
            [helper.make_node("Resize", ["x", "", "", "sizes"], ["y"], mode=mode, antialias=1)], "g",
            [helper.make_tensor_value_info("x", elem, shape)],
            [helper.make_tensor_value_info("y", elem, None)], [numpy_helper.from_array(lengths, "sizes")])
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)],
                                  ir_version=8).SerializeToString()
        (want,) = peer.InferenceSession(model, providers=["CPUExecutionProvider"]).run(None, {"x": x})
        defined = find("", "Resize", 18)
        assert defined is not None
        for got in (ort.InferenceSession(model).run(None, {"x": x})[0],
                    defined.bind({"mode": mode, "antialias": 1})(x, None, None, lengths)):
            apart = np.abs(got.astype(int) - want.astype(int))
            assert got.dtype == want.dtype and apart.max() <= 1
            off, count = off + int(apart.sum()), count + apart.size
    assert off <= count // 100, f"{off} of {count} differ"


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_what_keeps_its_length_stays(mode: str) -> None:
    """Whichever way coordinates go, by sizes that are constants and by such as are fed."""
    x = np.random.default_rng(5).normal(size=(1, 2, 3, 4)).astype(F)
    for coordinates in (*(c for c in COORDINATES if c != "tf_crop_and_resize"), "tf_half_pixel_for_nn"):
        opset = max(11, COORDINATES.get(coordinates, 11))
        attrs = {"mode": mode, "coordinate_transformation_mode": coordinates, "nearest_mode": "ceil"}
        for lengths in ([1, 2, 3, 4], [1, 2, 3, 7]):
            case = Case("Resize", opset, [*x.shape], [3], attrs, {"sizes": np.array(lengths)})
            held, fed = case.model(), case.model()
            sizes = next(t for t in fed.graph.initializer if t.name == "sizes")
            fed.graph.initializer.remove(sizes)
            fed.graph.input.append(helper.make_tensor_value_info("sizes", TensorProto.INT64, [4]))
            for value in (*held.graph.output, *fed.graph.output):
                value.type.tensor_type.ClearField("shape")
            (y,), (z,) = (ort.InferenceSession(m.SerializeToString()).run(None, {"x": x, **feeds})
                          for m, feeds in ((held, {}), (fed, case.given)))
            np.testing.assert_allclose(z, y, rtol=1e-5, atol=1e-6)
            assert lengths != [*x.shape] or np.array_equal(y, x)
