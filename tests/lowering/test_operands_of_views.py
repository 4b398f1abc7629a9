"""However an operand lies that another node made, backwards or every second element, its operator gives what
it gives for one that is fed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

import orthrus as ort
from orthrus.testing.samples import Sample, samples

DRAWN = ("Bernoulli", "Dropout", "Multinomial", "RandomNormalLike", "RandomUniformLike")
OF_VECTORS = ["*Conv*", "Gemm", "*Norm*", "PRelu", "RNN", "GRU", "LSTM", "*Gelu", "*Linear*"]
LAYOUTS = ("backwards", "every second")


def laid(sample: Sample, layout: str, which: str) -> tuple[ModelProto, dict[str, np.ndarray]]:
    """The model of a sample with what `which` names computed as a view of what is fed, and the feeds."""
    model, feeds = sample.model(), dict(sample.feeds)
    array = feeds[which]
    entered = next(v for v in model.graph.input if v.name == which)
    constants = {"one_": np.array(1), "last_": np.array([-1]), "end_": np.array([np.iinfo(np.int64).min])}
    model.graph.initializer.extend(numpy_helper.from_array(v, n) for n, v in constants.items())
    for node in model.graph.node:
        node.input[:] = [f"{n}_viewed" if n == which else n for n in node.input]
    if layout == "backwards":
        feeds[which] = array[..., ::-1].copy()
        view = helper.make_node("Slice", [which, "last_", "end_", "last_", "last_"], [f"{which}_viewed"])
    else:
        feeds[which] = np.stack([np.ones_like(array), array], -1)
        view = helper.make_node("Gather", [which, "one_"], [f"{which}_viewed"], axis=-1)
        if entered.type.tensor_type.HasField("shape"):
            entered.type.tensor_type.shape.dim.add().dim_value = 2
    model.graph.node.insert(0, view)
    if all(each.domain for each in model.opset_import):
        model.opset_import.append(helper.make_opsetid("", 21))
    return model, feeds


def close(a: Any, b: Any) -> bool:
    if isinstance(a, list):
        return isinstance(b, list) and len(a) == len(b) and all(map(close, a, b))
    if not isinstance(a, np.ndarray) or a.dtype.kind not in "fiub":
        return True
    rough = {"float16": 1e-2}.get(a.dtype.name, 1e-4)
    slack = 1 if a.dtype in (np.int8, np.uint8) else rough
    return a.dtype == b.dtype and a.shape == b.shape and np.allclose(
        a.astype(np.float64), b.astype(np.float64), rough, slack, equal_nan=True)


def faults(chosen: list[Sample]) -> list[str]:
    found = []
    for sample in chosen:
        if sample.op in DRAWN:
            continue
        want = ort.InferenceSession(sample.model().SerializeToString()).run(None, sample.feeds)
        for which, array in sample.feeds.items():
            if array.ndim == 0 or array.dtype.kind not in "fiub" or array.dtype.name.startswith("float8"):
                continue
            for layout in LAYOUTS:
                model, feeds = laid(sample, layout, which)
                got = ort.InferenceSession(model.SerializeToString()).run(None, feeds)
                if not close(want, got):
                    found.append(f"{sample}: {which} {layout}")
    return found


def one_each(patterns: list[str]) -> list[Sample]:
    """Of each operator the first sample that has the most inputs."""
    best = dict[str, Sample]()
    for sample in samples(patterns, ["float"]):
        if sample.kind not in best or len(sample.feeds) > len(best[sample.kind].feeds):
            best[sample.kind] = sample
    return list(best.values())


def test_operators_of_vectors() -> None:
    assert not faults(one_each(OF_VECTORS))


@pytest.mark.parametrize("step", [pytest.param(23, marks=pytest.mark.slow),
                                  pytest.param(1, marks=pytest.mark.thorough)])
def test_every_sample(step: int) -> None:
    assert not faults(list(samples())[::step])


@pytest.mark.parametrize("op", ["NhwcMaxPool", "QLinearAveragePool"])
@pytest.mark.parametrize("channels", range(1, 6))
def test_pools_with_channels_behind(op: str, channels: int) -> None:
    """Of an image whose planes lie together, as of one whose channels do; no rule fails."""
    image = np.arange(2 * 9 * 7 * channels, dtype=np.uint8).reshape(2, 9, 7, channels)
    inputs, attrs = ["x"], dict[str, Any](kernel_shape=[4, 2], strides=[3, 1])
    if op == "QLinearAveragePool":
        inputs, attrs = ["x", "scale", "zero", "scale", "zero"], attrs | {"channels_last": 1}
    held = {"scale": np.float32(0.5), "zero": np.uint8(3)}
    got = []
    for turn in ((0, 1, 2, 3), (0, 3, 1, 2), (0, 3, 2, 1)):
        fed = np.ascontiguousarray(image.transpose(turn))
        nodes = [helper.make_node("Transpose", ["fed"], ["x"], perm=np.argsort(turn).tolist()),
                 helper.make_node(op, inputs, ["y"], domain="com.microsoft", **attrs)]
        graph = helper.make_graph(
            nodes, "g", [helper.make_tensor_value_info("fed", TensorProto.UINT8, fed.shape)],
            [helper.make_tensor_value_info("y", TensorProto.UINT8, None)],
            [numpy_helper.from_array(np.asarray(v), n) for n, v in held.items()])
        opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
        session = ort.InferenceSession(model.SerializeToString(), fallback="error")
        got += session.run(None, {"fed": fed})
    windows = np.lib.stride_tricks.sliding_window_view(image, (4, 2), (1, 2))[:, ::3]
    want = windows.max((-1, -2)) if op == "NhwcMaxPool" else np.rint(windows.mean((-1, -2)))
    for each in got:
        np.testing.assert_array_equal(each, want)
