"""Texts that numbers of generated code pick: one call of generated code, with the results of the long way."""

from typing import Any

import numpy as np
import onnx
import pytest
from graphs import info, model
from onnx import TensorProto, helper
from skips import needs

import orthrus as ort
from orthrus.errors import InvalidArgument
from orthrus.run.config import Config
from orthrus.run.engine import Engine

pytestmark = needs("door")

LABELS = np.array(["no", "yes", "", "é", "no"], object)


def picking(outputs: tuple[str, ...] = ("text", "score"), dims: Any = ("n",)) -> onnx.ModelProto:
    """score = x + x; text = LABELS[number], number = score as a whole number."""
    nodes = [helper.make_node("Add", ["x", "x"], ["score"]),
             helper.make_node("Cast", ["score"], ["number"], to=TensorProto.INT64),
             helper.make_node("Gather", ["labels", "number"], ["text"])]
    kinds = {"text": TensorProto.STRING, "score": TensorProto.FLOAT, "number": TensorProto.INT64}
    return model(nodes, [info("x", shape=dims)], [info(name, kinds[name], None) for name in outputs],
                 {"labels": LABELS})


def engine(proto: onnx.ModelProto, **more: Any) -> Engine:
    return Engine(proto.SerializeToString(), Config(**more))


@pytest.mark.parametrize("threads", (1, 2))
@pytest.mark.parametrize("outputs", (("text", "score"), ("score", "text")))
def test_results_are_those_of_the_long_way(outputs: tuple[str, ...], threads: int) -> None:
    proto = picking(outputs)
    quick, long = (engine(proto, intra_op_threads=threads) for _ in range(2))
    assert quick.fast is not None
    long.short, rng, served = None, np.random.default_rng(3), 0
    for n in (3, 3, 3, 0, 0, 0, 1, 3000, 3000, 3000, 2, 2, 2):
        x = (rng.integers(-5, 5, n) / 2).astype(np.float32)
        made = quick.fast.run(None, {"x": x})
        served += made is not None
        got = quick.run(None, {"x": x}) if made is None else made
        for a, b in zip(got, long.run(None, {"x": x}), strict=True):
            assert a.dtype == b.dtype and a.shape == b.shape and a.tolist() == b.tolist()
            assert a.flags.c_contiguous and a.flags.writeable and not np.shares_memory(a, x)
        got[outputs.index("text")][...] = "changed"
    assert served >= 4 and LABELS.tolist() == ["no", "yes", "", "é", "no"]


def test_a_single_number_picks_an_array_of_no_dimension() -> None:
    made = engine(picking(dims=()))
    for _ in range(3):
        text, _ = made.run(None, {"x": np.float32(1.5)})
        assert isinstance(text, np.ndarray) and text.shape == () and text[()] == "é"
    (text, _) = made.fast.run(None, {"x": np.array(1.5, np.float32)})  # type: ignore[union-attr, misc]
    assert isinstance(text, np.ndarray) and text.dtype == object and text.shape == ()


@pytest.mark.parametrize("bad", (5, -6))
def test_a_number_without_a_text_is_the_same_error(bad: int) -> None:
    made, said = engine(picking()), []
    fed = {"x": np.array([1, bad], np.float32) / 2}
    for _ in range(2):
        with pytest.raises(InvalidArgument, match=f"idx={bad} must be within") as caught:
            made.run(None, fed)
        said.append(str(caught.value))
        for _ in range(3):
            assert made.run(None, {"x": np.array([1, 4], np.float32) / 2})[0].tolist() == ["yes", "no"]
        assert made.fast is not None and made.fast.run(None, fed) is None
    assert said[0] == said[1]


def test_chosen_outputs() -> None:
    made = ort.InferenceSession(picking().SerializeToString())
    x = np.array([0, 1.5], np.float32)
    for _ in range(3):
        assert [a.tolist() for a in made.run(["score", "text"], {"x": x})] == [[0, 3], ["no", "é"]]
        assert made.run(["text"], {"x": x})[0].tolist() == ["no", "é"]
        assert made.run(["score"], {"x": x})[0].tolist() == [0, 3]


def test_numbers_that_are_results_too_go_the_ordinary_way() -> None:
    made = engine(picking(("text", "number", "score")))
    assert made.fast is None
    for _ in range(3):
        text, number, score = made.run(None, {"x": np.array([1, -0.5], np.float32)})
        assert (text.tolist(), number.tolist(), score.tolist()) == (["", "no"], [2, -1], [2, -1])


@pytest.mark.parametrize("level", (0, 99))
@pytest.mark.parametrize("maker", (
    helper.make_node("RandomNormal", [], ["made"], shape=[1, 4], seed=1.0),
    helper.make_node("Constant", [], ["made"], value_floats=[1.0, 2.0]),
    helper.make_node("Add", ["labels", "labels"], ["made"]),
    helper.make_node("Gather", ["labels", "picks"], ["made"]),
    helper.make_node("NonZero", ["sum"], ["made"]),
    helper.make_node("CDist", ["sum", "labels"], ["made"], domain="com.microsoft"),
), ids=lambda each: each.op_type)
def test_steps_behind_the_first_that_pick_no_text(maker: onnx.NodeProto, level: int) -> None:
    nodes = [helper.make_node("Add", ["x", "x"], ["sum"]), maker,
             helper.make_node("Shape", ["made"], ["dims"]), helper.make_node("Size", ["dims"], ["rank"]),
             helper.make_node("CastLike", ["rank", "x"], ["like"]),
             helper.make_node("Add", ["sum", "like"], ["y"])]
    given = {"labels": np.eye(2, dtype=np.float32), "picks": np.array([1])}
    proto = model(nodes, [info("x", shape=("n", 2))], [info("y", shape=("n", 2))], given,
                  domains={"com.microsoft": 1})
    made, x = engine(proto, level=level), np.float32([[1, 2], [3, 4]])
    rank = 1 if maker.op_type == "Constant" else 2
    for _ in range(3):
        np.testing.assert_array_equal(made.run(None, {"x": x})[0], x + x + rank)
