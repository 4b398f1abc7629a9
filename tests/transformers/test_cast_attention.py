"""Attention of diffusion transformers: keys that come in turned, and casts to float32 around the softmax.
What is fused is nowhere further from the exact result than the parts were."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import orthrus as ort
from orthrus.load import load
from orthrus.optimize import optimize
from orthrus.transformers import optimizer

HALF, FLOAT = TensorProto.FLOAT16, TensorProto.FLOAT
BATCH, HEADS, LENGTH, SIZE = 2, 4, 5, 8
TURN, MERGE = [0, 1, 3, 2], [0, 2, 1, 3]
PLAIN: Any = [("CPUExecutionProvider", {"use_codegen": "0"})]


@dataclass
class Form:
    """One way to write it. `cast`: the scores become float32 before the scale ("scores"), after it
    ("scaled"), queries and keys before their product ("both"), the weights alone, there and back ("weights"),
    weights and values of float32 become halves ("values"), or nothing does. `keys`: "turned" here, as they
    come in ("given"), or before their cast ("early")."""

    cast: str = ""
    kind: int = HALF
    keys: str = "turned"
    scale: float = 0.3
    divides: bool = False
    mask: bool = False
    merged: bool = True
    key_heads: int = HEADS
    size: Any = SIZE
    opset: int = 17
    varies: bool = False

    def model(self, *shown: str) -> onnx.ModelProto:
        """The values named in `shown` are outputs, too."""
        nodes, weights, wide = [], {}, self.kind

        def put(kind: str, out: str, *inputs: str, **attributes: Any) -> str:
            nodes.append(helper.make_node(kind, inputs, [out], out, **attributes))
            return out

        def cast(out: str, value: str, to: int) -> str:
            return put("Cast", out, value, to=to)

        q, kt, v = "q", "k", "v"
        if self.keys == "early":
            kt = put("Transpose", "kt", kt, perm=TURN)
        if self.cast == "both":
            q, kt, wide = cast("q32", q, FLOAT), cast("k32", kt, FLOAT), FLOAT
        if self.keys == "turned":
            kt = put("Transpose", "kt", kt, perm=TURN)
        x = put("MatMul", "product", q, kt)
        if self.cast == "scores":
            x, wide = cast("product32", x, FLOAT), FLOAT
        number = np.asarray(1 / self.scale if self.divides else self.scale)
        weights["by"] = number.astype(helper.tensor_dtype_to_np_dtype(wide))
        x = put("Div" if self.divides else "Mul", "scaled", x, "by")
        if self.cast == "scaled":
            x, wide = cast("scaled32", x, FLOAT), FLOAT
        x = put("Add", "masked", x, "m") if self.mask else x
        masked = wide
        if self.cast == "masked":
            x, wide = cast("masked32", x, FLOAT), FLOAT
        x = put("Softmax", "weights", x, axis=-1)
        if self.cast == "weights":
            x, wide = cast("weights32", x, FLOAT), FLOAT
        result = HALF if self.cast == "values" else self.kind
        if self.cast == "values":
            v = cast("v16", v, HALF)
        if result != wide:
            x = cast("weights16", x, result)
        x = put("MatMul", "mixed", x, v)
        if self.merged:
            weights["side"] = np.array([0, 0, -1])
            x = put("Reshape", "flat", put("Transpose", "moved", x, perm=MERGE), "side")
        put("Relu", "y", x)
        sizes: list[Any] = ["b", HEADS, "s"] if self.varies else [BATCH, HEADS, LENGTH]
        sizes.append(self.size)
        of_keys = [sizes[0], self.key_heads, *sizes[2:]]
        turned = [of_keys[i] for i in TURN]
        shapes = {"q": sizes, "k": turned if self.keys == "given" else of_keys, "v": of_keys}
        inputs = [helper.make_tensor_value_info(n, self.kind, s) for n, s in shapes.items()]
        if self.mask:
            inputs.append(helper.make_tensor_value_info("m", masked, [sizes[0], 1, sizes[2], sizes[2]]))
        kinds = {"weights": self.kind if self.cast == "weights" else FLOAT}
        outputs = [helper.make_tensor_value_info(n, kinds.get(n, result), None) for n in ("y", *shown)]
        graph = helper.make_graph(nodes, "form", inputs, outputs,
                                  [numpy_helper.from_array(a, n) for n, a in weights.items()])
        return helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", self.opset)])

    def feeds(self, seed: int = 0) -> dict[str, np.ndarray]:
        rng = np.random.default_rng(seed)
        shapes = {"q": (BATCH, HEADS, LENGTH, SIZE), "k": (BATCH, self.key_heads, LENGTH, SIZE),
                  "v": (BATCH, self.key_heads, LENGTH, SIZE)}
        made = {n: rng.standard_normal(s).astype(helper.tensor_dtype_to_np_dtype(self.kind))
                for n, s in shapes.items()}
        if self.keys == "given":
            made["k"] = np.ascontiguousarray(made["k"].transpose(TURN))
        if self.mask:
            wide = np.float16 if self.kind == HALF and self.cast in ("", "masked") else np.float32
            made["m"] = rng.standard_normal((BATCH, 1, LENGTH, LENGTH)).astype(wide)
        return made

    def exact(self, given: dict[str, np.ndarray]) -> np.ndarray:
        q, k, v = (given[n].astype(np.float64) for n in "qkv")
        scores = q @ (k if self.keys == "given" else k.transpose(TURN)) * self.scale + given.get("m", 0.0)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        y = weights / weights.sum(-1, keepdims=True) @ v
        y = y.transpose(MERGE).reshape(BATCH, LENGTH, -1) if self.merged else y
        return np.asarray(np.maximum(y, 0))


def fused(form: Form, *shown: str, model_type: str = "mmdit", level: int = 0) -> Any:
    return optimizer.optimize_model(form.model(*shown), model_type, opt_level=level)


def operators(made: Any) -> Counter[str]:
    return Counter(node.op_type for node in made.model.graph.node)


def run(model: onnx.ModelProto, given: dict[str, np.ndarray], runtime: Any = ort,
        providers: Any = ("CPUExecutionProvider",)) -> list[np.ndarray]:
    session = runtime.InferenceSession(model.SerializeToString(), providers=list(providers))
    found: list[np.ndarray] = session.run(None, given)
    return found


def no_further(form: Form, made: Any, runtime: Any = ort) -> None:
    """What was fused is as close to the exact result as the definitions of the parts, of any feeds."""
    for seed in range(4):
        given = form.feeds(seed)
        exact, parts = form.exact(given), run(form.model(), given, ort, PLAIN)[0]
        worst = np.abs(parts - exact).max()
        for providers in (["CPUExecutionProvider"], PLAIN)[:2 if runtime is ort else 1]:
            [y] = run(made.model, given, runtime, providers)
            assert y.dtype == parts.dtype
            assert np.abs(y - exact).max() <= worst + (1e-3 if y.dtype == np.float16 else 1e-5)


FORMS = {
    "turned keys come in": Form(kind=FLOAT, keys="given"),
    "of sizes nobody knows": Form(kind=FLOAT, keys="given", varies=True),
    "with a mask": Form(kind=FLOAT, keys="given", mask=True),
    "halves": Form(keys="given"),
    "cast before the scale": Form("scores"),
    "turned and cast": Form("scores", keys="given", varies=True),
    "cast before a division": Form("scores", divides=True),
    "cast before a scale that halves cannot hold": Form("scores", scale=1000.0),
    "turned and a large scale": Form("scores", keys="given", scale=100.0),
    "cast after the scale": Form("scaled"),
    "turned and cast after the scale": Form("scaled", keys="given"),
    "queries and keys cast": Form("both"),
    "keys turned, then cast": Form("both", keys="early"),
    "cast after the mask": Form("masked", mask=True),
    "weights there and back": Form("weights"),
    "values cast": Form("values", kind=FLOAT),
    "values cast, turned keys": Form("values", kind=FLOAT, keys="given", scale=100.0),
    "values cast, with a mask": Form("values", kind=FLOAT, mask=True),
    "an opset with Attention": Form("scores", opset=23, scale=100.0),
    "an opset of long ago": Form("scores", opset=13),
}


@pytest.mark.parametrize("level", [0, 1])
@pytest.mark.parametrize("name", FORMS)
def test_every_form_is_one_node(name: str, level: int) -> None:
    form = FORMS[name]
    made = fused(form, level=level)
    found = operators(made)
    assert found["MultiHeadAttention"] == 1 and not {"Softmax", "MatMul", "Mul", "Div"} & set(found)
    assert found["Cast"] == (1 if form.cast == "values" else 0), "a result of halves stays one"
    [node] = made.get_nodes_by_op_type("MultiHeadAttention")
    given = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    assert given["num_heads"] == HEADS
    assert given["scale"] == pytest.approx(form.scale, rel=1e-3)
    no_further(form, made)


@pytest.mark.parametrize("name", FORMS)
def test_onnxruntime_computes_the_same(name: str) -> None:
    no_further(FORMS[name], fused(FORMS[name]), pytest.importorskip("onnxruntime"))


@pytest.mark.parametrize("model_type", ["bert", "unet", "clip", "gpt2", "sam2"])
def test_other_types_fuse_them_too(model_type: str) -> None:
    for form in (Form(kind=FLOAT, keys="given"), Form("scores")):
        made = fused(form, model_type=model_type)
        assert operators(made)["MultiHeadAttention"] == 1
        no_further(form, made)


SPARED = {
    "a mask of float32 on halves": Form("scores", mask=True),
    "queries and keys cast, a mask of float32": Form("both", mask=True),
    "heads that queries share": Form("scores", key_heads=1),
    "a negative scale": Form("scores", scale=-0.3),
    "turned keys whose heads are not merged": Form(kind=FLOAT, keys="given", merged=False),
}


@pytest.mark.parametrize("name", SPARED)
def test_what_has_no_such_form_stays(name: str) -> None:
    form = SPARED[name]
    made = fused(form)
    assert operators(made)["Softmax"] == 1 and operators(made)["MatMul"] == 2
    no_further(form, made)


@pytest.mark.parametrize("shown", ["weights", "weights16", "mixed", "moved", "flat"])
@pytest.mark.parametrize("cast", ["scores", "values"])
def test_what_else_is_an_output_keeps_its_type(cast: str, shown: str) -> None:
    form = Form(cast, kind=HALF if cast == "scores" else FLOAT)
    made, given = fused(form, shown), form.feeds()
    inside = shown in ("weights", "weights16")
    assert operators(made)["MultiHeadAttention"] == (0 if inside else 1)
    for a, b in zip(run(made.model, given), run(form.model(shown), given), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_allclose(a.astype(np.float64), b.astype(np.float64), atol=4e-3)


@pytest.mark.parametrize("name", ["cast before the scale", "turned keys come in", "values cast"])
def test_sessions_leave_them(name: str) -> None:
    """Whose Attention rounds its scores as halves, and need not turn keys."""
    graph = load(FORMS[name].model().SerializeToString())
    optimize(graph, level=2)
    assert not {"Attention", "SoftmaxAttention"} & {node.op_type for node in graph.nodes}


def test_what_is_written_out_again_keeps_its_softmax_in_float32() -> None:
    """Heads of a size that nobody knows, which no form of com.microsoft's takes."""
    form = Form("masked", mask=True, size="d", merged=False)
    made = fused(form)
    known = onnx.shape_inference.infer_shapes(made.model)
    [softmax] = made.get_nodes_by_op_type("Softmax")
    kinds = {v.name: v.type.tensor_type.elem_type for v in known.graph.value_info}
    assert kinds[softmax.input[0]] == FLOAT
    no_further(form, made)


@pytest.mark.parametrize("model_type", ["mmdit", "sam2"])
def test_types_that_count_no_packed_attention_have_none(model_type: str) -> None:
    """Their statistics count MultiHeadAttention, as onnxruntime's do."""
    rng = np.random.default_rng(0)
    form = Form(kind=FLOAT)
    model, width = form.model(), HEADS * SIZE
    for name in "qkv":
        weights = rng.standard_normal((width, width)).astype(np.float32) / width
        model.graph.initializer.append(numpy_helper.from_array(weights, f"{name}w"))
        for node in reversed([helper.make_node("MatMul", ["x", f"{name}w"], [f"{name}0"]),
                              helper.make_node("Reshape", [f"{name}0", "by_head"], [f"{name}1"]),
                              helper.make_node("Transpose", [f"{name}1"], [name], perm=MERGE)]):
            model.graph.node.insert(0, node)
    model.graph.initializer.append(numpy_helper.from_array(np.array([0, 0, HEADS, SIZE]), "by_head"))
    del model.graph.input[:]
    model.graph.input.append(helper.make_tensor_value_info("x", FLOAT, [BATCH, LENGTH, width]))
    made = optimizer.optimize_model(model, model_type, opt_level=0)
    assert made.get_fused_operator_statistics()["MultiHeadAttention"] == 1
    assert operators(made) == {"MatMul": 3, "MultiHeadAttention": 1, "Relu": 1}
    given = {"x": rng.standard_normal((BATCH, LENGTH, width)).astype(np.float32)}
    np.testing.assert_allclose(run(made.model, given)[0], run(model, given)[0], atol=1e-5)
