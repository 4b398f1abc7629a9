"""Every operator's samples with one of their sizes nothing, one, or one more: each in a session of its own
where sizes are known, and all in turn in one where they are names, names that say which are alike, or
unknown. What the definition computes comes out, by rules that lower a node or decline it, not by such as fall
over, and a constant that is kept is what it would be if it were made again."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx
import pytest
from first_samples import FIRST, wrong
from oracle import Case

import orthrus as ort
from orthrus import knobs
from orthrus.errors import ALL
from orthrus.testing.samples import Sample

pytestmark = pytest.mark.slow


def resized(sample: Sample) -> Iterator[Sample]:
    """The sample with every dimension of some size of another."""
    arrays = [a for a in sample.inputs if a is not None]
    for size in sorted({d for a in arrays for d in a.shape if d}):
        for to in sorted({0, 1, size + 1} - {size}):
            yield sample.changed(_known=[], inputs=tuple(
                a if a is None or not a.size else
                np.resize(a, [to if d == size else d for d in a.shape]).astype(a.dtype)
                for a in sample.inputs))


def declared(sample: Sample, how: str) -> bytes:
    """The sample's model, its inputs declared with sizes, names, names that say which are alike, or without a
    shape."""
    model = sample.changed(open_shapes=how == "named").model()
    for value in model.graph.input:
        if how == "unknown":
            value.type.tensor_type.ClearField("shape")
        for dim in value.type.tensor_type.shape.dim if how == "alike" else ():
            dim.dim_param = f"n{dim.dim_value}"
    return bytes(onnx.ModelProto.SerializeToString(model))


def tried(session: ort.InferenceSession, sample: Sample, how: str) -> None:
    try:
        wanted = sample.reference()
    except Exception:
        return
    try:
        got = session.run(None, sample.feeds)
    except ALL as error:
        assert "rules that lower" not in str(error), (str(sample), how)
        return
    found = wrong(sample.kind, got, wanted)
    assert not found, (str(sample), how, found)


def opened(sample: Sample, how: str) -> ort.InferenceSession | None:
    try:
        return ort.InferenceSession(declared(sample, how), fallback="error",
                                    providers=["CPUExecutionProvider"])
    except ALL as error:
        assert "rules that lower" not in str(error), (str(sample), how)
        return None


@pytest.mark.parametrize("kind", FIRST)
def test_other_sizes(kind: str) -> None:
    for sample in FIRST[kind].values():
        for each in (sample, *resized(sample)):
            if (session := opened(each, "known")) is not None:
                tried(session, each, "known")
        for how in ("named", "alike", "unknown"):
            with knobs.setting(CHECK=2 if how == "unknown" else 0):  # looks at constants again
                if (session := opened(sample, how)) is not None:
                    for each in (sample, *resized(sample), sample):
                        tried(session, each, how)


@pytest.mark.parametrize("check", [0, 2])
def test_the_rank_changes(check: int) -> None:
    """Of scales that two nodes share, and that each shapes and shifts for itself."""
    rng = np.random.default_rng(0)
    weights = {name: (rng.random(3) + 0.5).astype(np.float32) for name in "sbmv"}
    nodes = [onnx.helper.make_node("BatchNormalization", ["x", *"sbmv"], [y], epsilon=e)
             for y, e in (("y", 1e-5), ("z", 1.0))]
    graph = onnx.helper.make_graph(nodes, "g", [onnx.helper.make_tensor_value_info("x", 1, None)],
                                   [onnx.helper.make_tensor_value_info(y, 1, None) for y in "yz"],
                                   [onnx.numpy_helper.from_array(a, name) for name, a in weights.items()])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 15)], ir_version=8)
    with knobs.setting(CHECK=check):
        session = ort.InferenceSession(model.SerializeToString(), fallback="error")
        for shape in ((2, 3, 4, 5), (2, 3, 4), (2, 3), (1, 3, 3, 3, 3), (3, 3, 3), (2, 3, 4, 5)):
            x = rng.standard_normal(shape).astype(np.float32)
            s, b, m, v = (weights[name].reshape(1, -1, *(1,) * (len(shape) - 2)) for name in "sbmv")
            for got, epsilon in zip(session.run(None, {"x": x}), (1e-5, 1.0), strict=True):
                np.testing.assert_allclose(got, (x - m) / np.sqrt(v + epsilon) * s + b, 1e-5, 1e-5)


@pytest.mark.parametrize("shape", [(2, 2, 3), (2, 1, 3), (4, 3), (2, 3, 1)])
def test_features_apart(shape: tuple[int, ...]) -> None:
    """A normalization of each feature by itself declines kernels that have a number for each channel."""
    rng = np.random.default_rng(0)
    x, *rest = (rng.random(s).astype(np.float32) + 0.5 for s in (shape, *[shape[1:]] * 4))
    case = Case("BatchNormalization", [x, *rest], {"spatial": 0}, opset=7, held=frozenset(range(1, 5)))
    session = ort.InferenceSession(case.model().SerializeToString(), fallback="error")
    scale, bias, mean, variance = rest
    wanted = (x - mean) / np.sqrt(variance + 1e-5) * scale + bias
    np.testing.assert_allclose(session.run(None, case.feeds)[0], wanted, 1e-5, 1e-5)
