"""optimize_model: what is fused, that nothing changes, and that every switch does what it says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from encoders import HEADS, HIDDEN, STYLES, Encoder, feeds
from onnx import TensorProto, helper

import orthrus as ort
from orthrus.errors import Fail, InvalidGraph
from orthrus.quantization.refused import InvalidValue
from orthrus.transformers import forms, optimizer
from orthrus.transformers.fusion_options import AttentionMaskFormat, FusionOptions
from orthrus.transformers.model.bert import BertOnnxModel

PLAIN: Any = [("CPUExecutionProvider", {"use_codegen": "0"})]
FUSED = {"EmbedLayerNormalization": 1, "Attention": 2, "SkipLayerNormalization": 4}


def run(model: onnx.ModelProto, given: dict[str, np.ndarray], runtime: Any = ort) -> np.ndarray:
    providers = PLAIN if runtime is ort else ["CPUExecutionProvider"]
    session = runtime.InferenceSession(model.SerializeToString(), providers=providers)
    kinds = {v.name: helper.tensor_dtype_to_np_dtype(v.type.tensor_type.elem_type) for v in model.graph.input}
    return session.run(None, {name: given[name].astype(kind) for name, kind in kinds.items()})[0]


def fused(model: Any, model_type: str = "bert", **options: Any) -> BertOnnxModel:
    made = optimizer.optimize_model(model, model_type, **options)
    assert isinstance(made, BertOnnxModel)
    return made


def counts(made: BertOnnxModel) -> dict[str, int]:
    return {name: count for name, count in made.get_fused_operator_statistics().items() if count}


def same(model: onnx.ModelProto, made: BertOnnxModel, runtime: Any = ort, **shape: Any) -> None:
    given = feeds(model, **shape)
    np.testing.assert_allclose(run(made.model, given, runtime), run(model, given, runtime), atol=1e-4)


@pytest.mark.parametrize("opset", [11, 14, 18])
@pytest.mark.parametrize("style", STYLES)
def test_every_exporters_encoder_is_fused_whole(style: str, opset: int) -> None:
    model = Encoder(style, opset, integer=TensorProto.INT32 if opset == 18 else TensorProto.INT64).model()
    made = fused(model, "bert_tf" if style == "tf" else "bert")
    assert counts(made) == {**FUSED, "BiasGelu": 2}
    assert made.is_fully_optimized()
    assert {o.domain: o.version for o in made.model.opset_import} == {"": opset, "com.microsoft": 1}
    for shape in ({}, {"batch": 1, "length": 1}, {"batch": 3, "length": 7, "left": True}):
        same(model, made, **shape)


@pytest.mark.parametrize("mask", ["flags", "pairs", "scores", ""])
@pytest.mark.parametrize("style", STYLES)
def test_every_mask_has_a_form_that_onnxruntime_runs(style: str, mask: str) -> None:
    theirs = pytest.importorskip("onnxruntime")
    model = Encoder(style, 14, mask=mask).model()
    made = fused(model)
    assert counts(made)["Attention"] == 2
    places = {(bool(n.input[3]) if len(n.input) > 3 else False, len(n.input) > 5)
              for n in made.get_nodes_by_op_type("Attention")}
    assert places == {{"flags": (True, False), "": (False, False)}.get(mask, (False, True))}
    for runtime in (ort, theirs):
        same(model, made, runtime)
        same(model, made, runtime, left=True, length=1, batch=1)


@pytest.mark.parametrize(("gelu", "expected"), [("tanh", "FastGelu"), ("quick", "QuickGelu"),
                                              ("megatron", "BiasGelu")])
def test_other_gelus_have_their_operators(gelu: str, expected: str) -> None:
    model = Encoder(gelu=gelu, segments=False).model()
    made = fused(model)
    assert made.get_operator_statistics()[expected] == 2
    same(model, made)


SWITCHES = {
    "enable_attention": "Attention", "enable_skip_layer_norm": "SkipLayerNormalization",
    "enable_embed_layer_norm": "EmbedLayerNormalization", "enable_bias_gelu": "BiasGelu",
    "enable_gelu": "BiasGelu", "enable_layer_norm": "SkipLayerNormalization",
}


@pytest.mark.parametrize("switch", SWITCHES)
def test_a_switch_turned_off_leaves_its_operator_out(switch: str) -> None:
    model = Encoder().model()
    options = FusionOptions("bert")
    setattr(options, switch, False)
    made = fused(model, optimization_options=options)
    assert SWITCHES[switch] not in counts(made)
    assert {o.domain: o.version for o in made.model.opset_import}[""] == 14
    same(model, made)


def test_switches_turned_on() -> None:
    model = Encoder().model()
    options = FusionOptions("bert")
    options.enable_gelu_approximation = options.use_multi_head_attention = True
    made = fused(model, optimization_options=options)
    assert counts(made) == {"EmbedLayerNormalization": 1, "MultiHeadAttention": 2, "FastGelu": 2,
                            "SkipLayerNormalization": 4}
    assert all(n.input[3] for n in made.get_nodes_by_op_type("MultiHeadAttention"))
    given = feeds(model)
    np.testing.assert_allclose(run(made.model, given), run(model, given), atol=0.02)


def test_a_product_takes_its_gelu() -> None:
    model = Encoder(gelu="tanh").model()
    options = FusionOptions("bert")
    options.enable_gemm_fast_gelu = True
    made = fused(model, optimization_options=options)
    assert counts(made)["GemmFastGelu"] == 2
    same(model, made)


def test_the_mask_counts_keys_only_where_that_is_asked_for() -> None:
    """A count is wrong for texts that are padded before their beginning."""
    model = Encoder().model()
    options = FusionOptions("bert")
    assert options.attention_mask_format == AttentionMaskFormat.MaskIndexEnd
    same(model, fused(model, optimization_options=options), left=True)
    options.use_raw_attention_mask(False)
    counted = fused(model, optimization_options=options)
    assert counted.get_operator_statistics()["ReduceSum"] == 1
    same(model, counted)
    options.disable_attention_mask()
    unmasked = fused(model, optimization_options=options)
    assert not any(len(n.input) > 3 and n.input[3] for n in unmasked.get_nodes_by_op_type("Attention"))


def test_positions_of_fixed_sizes_are_folded_and_fused() -> None:
    model = Encoder().model()
    for value in model.graph.input:
        for dim, size in zip(value.type.tensor_type.shape.dim, (2, 5), strict=True):
            dim.dim_value = size
    made = fused(model)
    assert counts(made) == {**FUSED, "BiasGelu": 2}
    same(model, made)


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("level", [0, 1])
def test_a_network_before_its_training_is_fused_as_after_it(style: str, level: int) -> None:
    """Biases are zeros and scales ones then; they stay, in the places of trained ones."""
    trained = Encoder(style, 17, layers=1).model()
    fresh = onnx.ModelProto()
    fresh.CopyFrom(trained)
    for tensor in fresh.graph.initializer:
        if tensor.data_type == TensorProto.FLOAT and len(tensor.dims) == 1:
            scale = any(n.op_type in ("Mul", "LayerNormalization") and tensor.name == n.input[1]
                        for n in fresh.graph.node)
            array = np.full(tensor.dims[0], scale, np.float32)
            tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))
    made, after = fused(fresh, opt_level=level), fused(trained, opt_level=level)
    assert [(n.name, list(n.input)) for n in made.model.graph.node] == \
        [(n.name, list(n.input)) for n in after.model.graph.node]
    assert counts(made).get("BiasGelu", 0) == (style != "tf" or level == 0), "tf's sums are Gemm's at level 1"
    same(fresh, made)


def test_equal_weights_stay_constants_of_their_own() -> None:
    """As before training: products by equal weights are three, and a scale is no bias that equals it."""
    model = Encoder(layers=1).model()
    for tensor in model.graph.initializer:
        if tensor.data_type == TensorProto.FLOAT and len(tensor.dims) > 0:
            tensor.CopyFrom(onnx.numpy_helper.from_array(np.ones(tensor.dims, np.float32), tensor.name))
    made = fused(model)
    assert counts(made) == {"EmbedLayerNormalization": 1, "Attention": 1, "SkipLayerNormalization": 2,
                            "BiasGelu": 1}
    for node in made.get_nodes_by_op_type("SkipLayerNormalization"):
        assert len(set(node.input)) == len(node.input)


def embeddings(*last: Any) -> onnx.ModelProto:
    """Rows of three tables, the sum of the first two and what `last` makes of it and of the third."""
    tables = [onnx.numpy_helper.from_array(np.random.default_rng(i).normal(size=(rows, 8)).astype(np.float32),
                                           f"table_{i}") for i, rows in enumerate((20, 10, 2))]
    nodes = [*(helper.make_node("Gather", [f"table_{i}", ids], [f"rows_{i}"])
               for i, ids in enumerate(("words", "words", "kinds"))),
             helper.make_node("Add", ["rows_0", "rows_1"], ["two"]), *last,
             helper.make_node("Relu", ["normalized"], ["out"])]
    weights = [onnx.numpy_helper.from_array(np.linspace(1, 2, 8, dtype=np.float32), name) for name in "gb"]
    graph = helper.make_graph(
        nodes, "embeddings", [helper.make_tensor_value_info(name, TensorProto.INT32, [None, None])
                              for name in ("words", "kinds")],
        [helper.make_tensor_value_info("out", TensorProto.FLOAT, None),
         helper.make_tensor_value_info("three", TensorProto.FLOAT, None)], [*tables, *weights])
    return helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17),
                                                                 helper.make_opsetid("com.microsoft", 1)])


@pytest.mark.parametrize("last", [
    [helper.make_node("SkipLayerNormalization", ["two", "rows_2", "g", "b"], ["normalized", "", "", "three"],
                      domain="com.microsoft", epsilon=0.25)],
    [helper.make_node("Add", ["two", "rows_2"], ["three"]),
     helper.make_node("LayerNormalization", ["three", "g", "b"], ["normalized"], epsilon=0.25)]],
    ids=["SkipLayerNormalization", "LayerNormalization"])
def test_embeddings_whose_sum_is_read_too(last: list[onnx.NodeProto]) -> None:
    model = embeddings(*last)
    made = fused(model, "gpt2")
    (node,) = made.get_nodes_by_op_type("EmbedLayerNormalization")
    assert node.output == ["EmbedLayerNormalization_0_output", "EmbedLayerNormalization_0_dummy_mask_index",
                           "three"]
    given = {name: np.array([[1, 0, 1], [0, 1, 1]], np.int32) for name in ("words", "kinds")}
    for a, b in zip(*(ort.InferenceSession(m.SerializeToString(), providers=PLAIN).run(None, given)
                      for m in (made.model, model)), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)


def numbered(shape: tuple[int, ...], words: tuple[int | None, ...] = (2, 5), folded: bool = False,
             ids: Any = None) -> onnx.ModelProto:
    """Rows of words and of constant positions (0, 1, 2 ... where no `ids` are given), normalized; `folded`:
    the positions' rows are a constant."""
    rng = np.random.default_rng(8)
    places = np.resize(np.arange(np.prod(shape)) if ids is None else ids, shape)
    table = rng.normal(size=(20, 8)).astype(np.float32)
    tensors = {"words": rng.normal(size=(30, 8)).astype(np.float32), "table": table, "places": places,
               "g": np.linspace(1, 2, 8, dtype=np.float32), "b": np.linspace(-1, 1, 8, dtype=np.float32)}
    if folded:
        tensors["rows"] = table[places]
    nodes = [helper.make_node("Gather", ["words", "ids"], ["word_rows"]),
             *([] if folded else [helper.make_node("Gather", ["table", "places"], ["rows"])]),
             helper.make_node("Add", ["word_rows", "rows"], ["sum"]),
             helper.make_node("LayerNormalization", ["sum", "g", "b"], ["out"])]
    graph = helper.make_graph(
        nodes, "numbered", [helper.make_tensor_value_info("ids", TensorProto.INT32, words)],
        [helper.make_tensor_value_info("out", TensorProto.FLOAT, None)],
        [onnx.numpy_helper.from_array(value, name) for name, value in tensors.items()])
    return helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])


@pytest.mark.parametrize("folded", [False, True], ids=["ids", "rows"])
@pytest.mark.parametrize(("shape", "words", "ids", "count"), [
    ((1, 5), (2, 5), None, 1), ((1, 5), (2, 5), np.arange(2, 7), 1), ((1, 5), (None, 5), np.arange(2, 7), 1),
    ((2, 5), (2, 5), np.arange(5), 1), ((2, 5), (2, 5), np.arange(2, 7), 1), ((2, 5), (2, 5), None, 1),
    ((2, 5), (2, 5), [3, 1, 4, 1, 5, 9, 2, 6, 5, 3], 1), ((1, 5), (1, 5), None, 1),
    ((1, 5), (1, 5), np.arange(2, 7), 1), ((2, 5), (1, 5), np.arange(5), 0), ((2, 5), (None, 5), None, 0),
    ((1, 5), (2, 1), np.arange(5), 0), ((1, 5), (2, None), np.arange(5), 0)])
def test_constant_positions(shape: tuple[int, ...], words: tuple[int | None, ...], ids: Any, count: int,
                            folded: bool) -> None:
    """Of one text or of all, from any number on; where their sizes may differ from the words', they stay."""
    model = numbered(shape, words, folded, ids)
    made = fused(model)
    assert len(made.get_nodes_by_op_type("EmbedLayerNormalization")) == count
    size = [w or s for w, s in zip(words, shape, strict=True)]
    given = {"ids": np.random.default_rng(9).integers(30, size=size)}
    np.testing.assert_allclose(run(made.model, given), run(model, given), atol=1e-5)


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("biased", ["x", "skip"])
@pytest.mark.parametrize("skip", [(2, 3, 8), (1, 3, 8)])
@pytest.mark.parametrize("joined", [False, True])
def test_the_bias_of_a_term_of_one_text_or_of_all(joined: bool, skip: tuple[int, ...], biased: str,
                                                  swapped: bool) -> None:
    """What is added to every text is the second term, whichever of them has the bias."""
    terms = [f"{name}_biased" if name == biased else name for name in ("x", "skip")]
    nodes = [helper.make_node("Add", [biased, "bias"], [f"{biased}_biased"])]
    if joined:
        nodes.append(helper.make_node("SkipLayerNormalization", [*terms, "g", "b"], ["out"],
                                      domain="com.microsoft"))
    else:
        nodes += [helper.make_node("Add", terms[::-1] if swapped else terms, ["sum"]),
                  helper.make_node("LayerNormalization", ["sum", "g", "b"], ["out"])]
    shapes = {"x": (2, 3, 8), "skip": skip}
    graph = helper.make_graph(
        nodes, "terms", [helper.make_tensor_value_info(k, TensorProto.FLOAT, (None if joined else v[0], 3, 8))
                         for k, v in shapes.items()],
        [helper.make_tensor_value_info("out", TensorProto.FLOAT, None)],
        [onnx.numpy_helper.from_array(np.linspace(-1, i, 8, dtype=np.float32), name)
         for i, name in enumerate(("bias", "g", "b"))])
    model = helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17),
                                                                  helper.make_opsetid("com.microsoft", 1)])
    made = fused(model)
    [node] = made.model.graph.node
    assert (node.op_type, len(node.input)) == ("SkipLayerNormalization", 5)
    if skip[0] == 2 and not joined:
        assert node.input[0] == biased, "of terms of one shape, the one with the bias is first"
    given = {k: np.random.default_rng(i).normal(size=v) for i, (k, v) in enumerate(shapes.items())}
    np.testing.assert_allclose(run(made.model, given), run(model, given), atol=1e-5)


@pytest.mark.parametrize("model_type", optimizer.MODEL_TYPES)
def test_padding_stays_masked_unless_somebody_says_no(model_type: str) -> None:
    """Of types whose default in onnxruntime is no mask, too."""
    model = Encoder(layers=1).model()
    made = fused(model, model_type)
    same(model, made)
    options = FusionOptions(model_type)
    options.disable_attention_mask()
    for it, masked in ((made, True), (fused(model, model_type, optimization_options=options), False)):
        [node] = it.get_nodes_by_op_type("Attention") + it.get_nodes_by_op_type("MultiHeadAttention")
        place = 3 if node.op_type == "Attention" else 4
        assert (len(node.input) > place and bool(node.input[place])) is masked


@pytest.mark.parametrize(("heads", "qk", "v"), [(2, 4, 4), (2, 3, 3), (1, 4, 4), (2, 4, 3), (2, 2, 5)])
def test_heads_that_were_pruned(heads: int, qk: int, v: int) -> None:
    """Widths are told where queries and values differ; by an Attention that names none, others are meant."""
    theirs = pytest.importorskip("onnxruntime")
    rng = np.random.default_rng(heads * qk * v)
    parts, nodes = (("q", qk, [0, 2, 1, 3]), ("k", qk, [0, 2, 3, 1]), ("v", v, [0, 2, 1, 3])), []
    given = {"whole": np.array([0, 0, heads * v]), "by": np.float32(qk ** 0.5)}
    for name, size, perm in parts:
        given |= {f"{name}w": rng.standard_normal((8, heads * size), np.float32),
                  f"{name}b": rng.standard_normal(heads * size, np.float32),
                  f"{name}s": np.array([0, 0, heads, size])}
        nodes += [helper.make_node("MatMul", ["x", f"{name}w"], [f"{name}0"]),
                  helper.make_node("Add", [f"{name}0", f"{name}b"], [f"{name}1"]),
                  helper.make_node("Reshape", [f"{name}1", f"{name}s"], [f"{name}2"]),
                  helper.make_node("Transpose", [f"{name}2"], [f"{name}3"], perm=perm)]
    nodes += [helper.make_node("MatMul", ["q3", "k3"], ["scores"]),
              helper.make_node("Div", ["scores", "by"], ["scaled"]),
              helper.make_node("Softmax", ["scaled"], ["weights"], axis=-1),
              helper.make_node("MatMul", ["weights", "v3"], ["mixed"]),
              helper.make_node("Transpose", ["mixed"], ["turned"], perm=[0, 2, 1, 3]),
              helper.make_node("Reshape", ["turned", "whole"], ["out"])]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
            for name, shape in (("x", (2, 5, 8)), ("out", None))]
    graph = helper.make_graph(nodes, "pruned", ends[:1], ends[1:],
                              [onnx.numpy_helper.from_array(array, name) for name, array in given.items()])
    model = helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])
    made = fused(model)
    [node] = made.model.graph.node
    sizes = {a.name: list(a.ints) for a in node.attribute}.get("qkv_hidden_sizes")
    assert node.op_type == "Attention" and sizes == (None if qk == v else [heads * qk, heads * qk, heads * v])
    x = {"x": rng.standard_normal((2, 5, 8))}
    for runtime in (ort, theirs):
        np.testing.assert_allclose(run(made.model, x, runtime), run(model, x, theirs), atol=1e-5)


@pytest.mark.parametrize("kind", ["Softmax", "Add", "MatMul", "Transpose", "Erf", "Reshape"])
def test_what_is_an_output_too_stays(kind: str) -> None:
    """Values inside a fusion that the model gives out, too."""
    model = Encoder(layers=1).model()
    names = [n.output[0] for n in model.graph.node if n.op_type == kind and n.output[0] != "out"]
    model.graph.output.extend(helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in names)
    made = fused(model)
    assert [v.name for v in made.model.graph.output] == ["out", *names]
    given = feeds(model)
    for a, b in zip(*(ort.InferenceSession(m.SerializeToString(), providers=PLAIN).run(None, given)
                      for m in (made.model, model)), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-4)


def test_flags_of_what_is_padding_are_inverted() -> None:
    """The mask is computed from the ids: the word 0 is padding."""
    encoder = Encoder(mask="")
    pad = encoder.axes("Unsqueeze", encoder.op("Equal", "input_ids", np.int64(0)), [1, 2])
    encoder.mask_of = lambda: encoder.op("Where", pad, float(np.finfo(np.float32).min), 0.0)  # type: ignore
    encoder.mask = "ids"
    model = encoder.model()
    made = fused(model)
    assert all(n.input[3] for n in made.get_nodes_by_op_type("Attention"))
    given = feeds(model, length=9)
    given["input_ids"][0, 4:] = 0
    np.testing.assert_allclose(run(made.model, given), run(model, given), atol=1e-4)


def test_the_model_tells_its_heads(caplog: pytest.LogCaptureFixture) -> None:
    model = Encoder().model()
    assert counts(fused(model, num_heads=HEADS, hidden_size=HIDDEN))["Attention"] == 2
    assert not caplog.records
    made = fused(model, num_heads=1, hidden_size=HIDDEN)
    assert {n.attribute[0].i for n in made.get_nodes_by_op_type("Attention")} == {HEADS}
    assert "2 heads, not 1 as given" in caplog.text
    with pytest.raises(InvalidValue, match="no multiple"):
        fused(model, num_heads=3, hidden_size=HIDDEN)


def test_names_metadata_and_the_given_model_stay() -> None:
    model = Encoder(layers=1).model()
    before = model.SerializeToString()
    made = fused(model).model
    assert model.SerializeToString() == before
    assert [v.name for v in made.graph.input] == [v.name for v in model.graph.input]
    assert [v.name for v in made.graph.output] == ["out"]
    assert made.producer_name == "pytorch"
    assert [(p.key, p.value) for p in made.metadata_props] == [("author", "tests")]
    kept = {t.name for t in made.graph.initializer} & {t.name for t in model.graph.initializer}
    assert kept, "weights that no fusion packed keep their names"


def test_initializers_among_the_inputs_are_constants() -> None:
    model = Encoder(layers=1).model()
    model.ir_version = 3
    model.graph.input.extend(helper.make_tensor_value_info(t.name, t.data_type, t.dims)
                             for t in model.graph.initializer)
    made = fused(model)
    assert counts(made)["Attention"] == 1
    assert {v.name for v in made.model.graph.input} == {"input_ids", "token_type_ids", "attention_mask"}


def test_double_precision_is_left_as_it_is() -> None:
    x = helper.make_tensor_value_info("x", TensorProto.DOUBLE, [2, 4])
    nodes = [helper.make_node("Sigmoid", ["x"], ["s"]), helper.make_node("Mul", ["x", "s"], ["y"])]
    y = helper.make_tensor_value_info("y", TensorProto.DOUBLE, [2, 4])
    model = helper.make_model(helper.make_graph(nodes, "g", [x], [y]), ir_version=8,
                              opset_imports=[helper.make_opsetid("", 13)])
    assert fused(model).get_operator_statistics() == {"Sigmoid": 1, "Mul": 1}


def test_unknown_types_and_levels() -> None:
    model = Encoder(layers=1).model()
    for optimize in (optimizer.optimize_model, optimizer.optimize_by_fusion):
        assert optimize(model, "whisper-of-a-model").model == model
    with pytest.raises(InvalidValue, match="level"):
        optimizer.optimize_model(model, opt_level=7)


@pytest.mark.parametrize("broken", ["type", "rank", "element type of an output"])
def test_an_invalid_model_is_left_as_it_is_by_what_only_fuses(broken: str, caplog: Any) -> None:
    """onnxruntime's own tests of rotary positions have such models; what also optimizes refuses them."""
    model = Encoder(layers=1).model()
    if broken == "element type of an output":
        model.graph.output[0].type.tensor_type.elem_type = TensorProto.INT64
    else:
        kind, read = ("Unsqueeze", ["out", "one"]) if broken == "type" else ("Gather", ["one", "input_ids"])
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.float32(1), "one"))
        model.graph.node.append(helper.make_node(kind, read, ["more"], "wrong"))
    model.graph.node[0].doc_string = "stays"
    made = optimizer.optimize_model(model, opt_level=0)
    assert made.model == model
    assert "is invalid and left as it is" in caplog.text
    with pytest.raises((Fail, InvalidGraph)):
        optimizer.optimize_model(model, opt_level=1)


@pytest.mark.parametrize("model_type", optimizer.MODEL_TYPES)
def test_every_model_type_fuses_an_encoder(model_type: str) -> None:
    model = Encoder(layers=1).model()
    options = FusionOptions(model_type)
    options.use_raw_attention_mask()
    made = fused(model, model_type, optimization_options=options)
    found = made.get_operator_statistics()
    assert found.get("Attention", 0) + found.get("MultiHeadAttention", 0) == 1
    same(model, made)


def test_one_fusion_after_another_gives_what_all_give_at_once() -> None:
    model = Encoder().model()
    made = BertOnnxModel(onnx.ModelProto.FromString(model.SerializeToString()))
    for fuse in (made.fuse_gelu, made.fuse_layer_norm, made.fuse_attention,
                 lambda: made.fuse_embed_layer(False), made.fuse_skip_layer_norm,
                 made.fuse_add_bias_skip_layer_norm, lambda: made.fuse_bias_gelu(False), made.postprocess):
        fuse()
    assert counts(made) == counts(fused(model))
    same(model, made)


def test_ids_become_int32_and_axes_get_names() -> None:
    model = Encoder().model()
    made = fused(model)
    made.use_dynamic_axes("b", "s")
    made.change_graph_inputs_to_int32()
    inputs = {v.name: v.type.tensor_type for v in made.model.graph.input}
    assert {k.elem_type for k in inputs.values()} == {TensorProto.INT32}
    assert [d.dim_param for d in inputs["input_ids"].shape.dim] == ["b", "s"]
    assert "Cast" not in made.get_operator_statistics()
    same(model, made)


def test_packing_puts_the_padding_aside() -> None:
    options = FusionOptions("bert")
    options.use_raw_attention_mask(False)
    made = fused(Encoder().model(), optimization_options=options)
    made.convert_to_packing_mode()
    found = made.get_operator_statistics()
    assert (found["PackedAttention"], found["RemovePadding"], found["RestorePadding"]) == (2, 1, 1)
    assert "Attention" not in found
    assert made.nodes()[-1].output[0] == "out"


def test_the_command(tmp_path: Path) -> None:
    model = Encoder(layers=1).model()
    onnx.save(model, tmp_path / "in.onnx")
    optimizer.main(["--input", str(tmp_path / "in.onnx"), "--output", str(tmp_path / "out.onnx"),
                    "--model_type", "BERT", "--input_int32", "--use_external_data_format",
                    "--opt_level", "1"])
    found = optimizer.get_fusion_statistics(tmp_path / "out.onnx")
    assert (found["Attention"], found["EmbedLayerNormalization"]) == (1, 1)
    given = {k: v.astype(np.int32) for k, v in feeds(model).items()}
    session = ort.InferenceSession(str(tmp_path / "out.onnx"), providers=PLAIN)
    np.testing.assert_allclose(session.run(None, given)[0], run(model, given), atol=1e-4)


@pytest.mark.slow
def test_the_command_line_runs_as_a_module(tmp_path: Path) -> None:
    onnx.save(Encoder(layers=1).model(), tmp_path / "in.onnx")
    subprocess.run([sys.executable, "-m", "orthrus.transformers.optimizer", "--input", tmp_path / "in.onnx",
                    "--output", tmp_path / "out.onnx", "--float16"], check=True)
    assert BertOnnxModel(onnx.load(tmp_path / "out.onnx")).use_float16()


def test_the_runtimes_own_optimizations(tmp_path: Path) -> None:
    model = Encoder(layers=1).model()
    path = optimizer.optimize_by_onnxruntime(model, optimized_model_path=str(tmp_path / "o.onnx"))
    given = feeds(model)
    np.testing.assert_allclose(run(onnx.load(path), given), run(model, given), atol=1e-4)
    alone = optimizer.optimize_model(model, only_onnxruntime=True)
    assert "EmbedLayerNormalization" not in alone.get_operator_statistics()


def test_what_is_fused_twice_stays_the_same() -> None:
    once = fused(Encoder().model())
    again = fused(once.model)
    assert again.get_operator_statistics() == once.get_operator_statistics()


def test_a_journal_says_what_was_declined_and_why() -> None:
    model = Encoder(layers=1).model()
    options = FusionOptions("bert")
    options.use_multi_head_attention = True
    _, journal = forms.optimized(model, options=options)
    by_name = {entry.name: entry for entry in journal if entry.count or entry.declined}
    assert "MultiHeadAttention is asked for" in by_name["fuse_packed_attention"].declined[0]
    assert by_name["fuse_multi_head_attention"].count == 1


def shared_heads(masked: bool) -> onnx.ModelProto:
    """Four query heads that share two key heads, as torch's script exporter writes it."""
    shape = ["b", 4, "s", 8]
    nodes = [node for name in "kv" for node in (
        helper.make_node("Unsqueeze", [name, "two"], [f"{name}0"]),
        helper.make_node("Expand", [f"{name}0", "wide"], [f"{name}1"]),
        helper.make_node("Reshape", [f"{name}1", "whole"], [f"{name}2"]))]
    nodes += [helper.make_node("Transpose", ["k2"], ["kt"], perm=[0, 1, 3, 2]),
              helper.make_node("MatMul", ["q", "kt"], ["raw"]),
              helper.make_node("Mul", ["raw", "scale"], ["scaled"]),
              helper.make_node("Add", ["scaled", "m"], ["sum"]),
              helper.make_node("Softmax", ["sum" if masked else "scaled"], ["p"], axis=-1),
              helper.make_node("MatMul", ["p", "v2"], ["y"])]
    if not masked:
        nodes = [n for n in nodes if n.op_type != "Add"]
    inputs = [helper.make_tensor_value_info("q", TensorProto.FLOAT, shape),
              *(helper.make_tensor_value_info(n, TensorProto.FLOAT, ["b", 2, "s", 8]) for n in "kv")]
    inputs += [helper.make_tensor_value_info("m", TensorProto.FLOAT, ["b", 1, "s", "s"])] if masked else []
    weights = {"two": np.array([2]), "wide": np.array([1, 1, 2, 1, 1]), "whole": np.array([0, 4, -1, 8]),
               "scale": np.float32(0.3)}
    graph = helper.make_graph(nodes, "g", inputs, [helper.make_tensor_value_info("y", 1, shape)],
                              [onnx.numpy_helper.from_array(np.asarray(v), k) for k, v in weights.items()])
    return helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 14)])


@pytest.mark.parametrize("masked", [True, False])
def test_an_attention_without_a_form_stays_what_older_opsets_have(masked: bool) -> None:
    model = shared_heads(masked)
    made = fused(model)
    assert made.get_opset_version() == 14
    assert not any(n.op_type == "Attention" and not n.domain for n in made.nodes())
    rng = np.random.default_rng(0)
    given = {v.name: rng.standard_normal([{"b": 2, "s": 5}.get(d.dim_param, d.dim_value)
                                          for d in v.type.tensor_type.shape.dim]).astype(np.float32)
             for v in model.graph.input}
    np.testing.assert_allclose(run(made.model, given), run(model, given), atol=1e-5)
