"""Products written as Einsum: those of attention are fused like others, any become what they were."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from encoders import Encoder, feeds
from graphs import info, model
from onnx import TensorProto, helper

import orthrus
from orthrus.transformers import optimizer

SIZES = dict(zip("abcdef", (2, 3, 4, 5, 6, 1), strict=True))


def answer(runtime: Any, given: onnx.ModelProto, values: dict[str, np.ndarray]) -> np.ndarray:
    session = runtime.InferenceSession(given.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {it.name: values[it.name] for it in given.graph.input})[0]


@pytest.mark.parametrize("mask", ["flags", "pairs", "scores", ""])
@pytest.mark.parametrize("opset", [13, 18])
def test_kerass_attention_is_fused(opset: int, mask: str) -> None:
    theirs = pytest.importorskip("onnxruntime")
    given = Encoder("einsum", opset, mask=mask).model()
    made = optimizer.optimize_model(given, "bert_tf")
    found = made.get_operator_statistics()
    assert (found["Attention"], found["SkipLayerNormalization"], "Einsum" in found) == (2, 4, False)
    for shape in ({}, {"batch": 1, "length": 1}, {"left": True}):
        values = feeds(given, **shape)
        for runtime in (orthrus, theirs):
            np.testing.assert_allclose(answer(runtime, made.model, values), answer(theirs, given, values),
                                       atol=1e-4)


@pytest.mark.parametrize("scaled", [None, 0.5, -3.0])
@pytest.mark.parametrize("weights", [False, True])
@pytest.mark.parametrize(("equation", "taken"), [
    ("abc,cde->abde", "weights"), ("abcd,cde->abe", "weights"), ("abcd,dce->abe", "weights"),
    ("abc,dc->abd", "weights"), ("abc,edc->abde", "weights"), ("abc,edc->abed", "weights"),
    ("aecd,abcd->acbe", "products"), ("acbe,aecd->abcd", "products"), ("abcd,abed->abce", "products"),
    ("abc,cd->bad", ""), ("abc,abc->ab", ""), ("abc,adc->bd", ""), ("abc,bd->abcd", ""), ("abc,cd->ab", ""),
    ("abf,fcd->abcd", "weights"), ("abcd,abde->", ""), ("abcd,acde->abe", ""), ("ab,bc", ""),
    ("abc,abd->dc", ""), ("abc,dabc->d", "weights"), ("abcd,aecd->abe", ""), ("...bc,cd->...bd", ""),
    ("aab,bc->ac", "")])
def test_other_products_stay_what_they_were(equation: str, taken: str, weights: bool, scaled: float | None
                                            ) -> None:
    theirs = pytest.importorskip("onnxruntime")
    rng = np.random.default_rng(len(equation))
    terms = equation.replace("...", "a").split("->")[0].split(",")
    x, y = (rng.standard_normal([SIZES[c] for c in term], np.float32) for term in terms)
    nodes, read = [], "x"
    if scaled is not None:
        nodes, read = [helper.make_node("Mul", ["x", "by"], ["scaled"])], "scaled"
    nodes.append(helper.make_node("Einsum", [read, "y"], ["out"], equation=equation))
    known = {"by": np.array(scaled or 0, np.float32), **({"y": y} if weights else {})}
    named = ["n" if size == 2 else size for size in x.shape]
    inputs = [info("x", TensorProto.FLOAT, named)]
    if not weights:
        inputs.append(info("y", TensorProto.FLOAT, ["n" if size == 2 else size for size in y.shape]))
    given = model(nodes, inputs, [info("out", TensorProto.FLOAT, None)], known, opset=14)
    made = optimizer.optimize_model(given)
    still = "Einsum" in made.get_operator_statistics()
    assert still is (taken != ("weights" if weights else "products"))
    values = {"x": x, "y": y}
    np.testing.assert_allclose(answer(orthrus, made.model, values), answer(theirs, given, values), rtol=1e-4,
                               atol=1e-5)
