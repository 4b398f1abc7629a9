"""Networks as exporters write them: as much is fused as onnxruntime's transformer optimizer fuses, results
stay, and either side's output runs on the other."""

from __future__ import annotations

import collections

import exported
import numpy as np
import pytest

import orthrus
from orthrus.load import load
from orthrus.optimize import optimize
from orthrus.transformers import forms

COUNTED = ("bert.script", "gpt2_past.dynamo", "llama_gqa_past.dynamo", "mistral.dynamo",
           "t5_decoder_past.script", "gptj.dynamo", "unet.dynamo", "vae_encoder.script", "sd3.script",
           "swin.dynamo")
"""Networks of the default suite, chosen so that every form is in one of them."""
RUN = ("llama_gqa_past.dynamo", "t5_decoder_past.script", "gptj.dynamo")
"""Those of them that are run by default too."""
TOLERANCE = 1e-4
KINDS = {
    "attention": ("Attention", "MultiHeadAttention", "GroupQueryAttention"),
    "embedding": ("EmbedLayerNormalization",),
    "normalization": ("LayerNormalization", "SkipLayerNormalization", "EmbedLayerNormalization",
                      "SimplifiedLayerNormalization", "SkipSimplifiedLayerNormalization"),
    "normalized sum": ("SkipLayerNormalization", "SkipSimplifiedLayerNormalization", "SkipGroupNorm",
                       "EmbedLayerNormalization"),
    "Gelu": ("Gelu", "BiasGelu", "FastGelu", "QuickGelu", "BiasSplitGelu"),
    "Gelu of a sum": ("BiasGelu", "BiasSplitGelu"),
    "rotary": ("RotaryEmbedding",),
    "group normalization": ("GroupNorm", "SkipGroupNorm"),
    "sum of three": ("BiasAdd",),
    "convolution": ("NhwcConv",),
}
ATTENTIONS = {"t5_decoder": 4, "t5_decoder_past": 4, "bart_decoder": 4, "bart_decoder_past": 4,
              "whisper_decoder": 4, "whisper_decoder_past": 4, "swin": 4, "sam_mask_decoder": 7,
              "sam2_mask_decoder": 7, "unet": 8, "vae_encoder": 1, "vae_decoder": 1}
"""Attentions of a network; the others have 2."""


def slow_but(lean, names):
    return [name if name in lean else pytest.param(name, marks=pytest.mark.slow) for name in names]


def attentions(name):
    """How many attentions of a network are fused."""
    return ATTENTIONS.get(name.split(".")[0], 2)


def counted(counts, kinds):
    return sum(counts.get(kind, 0) for kind in kinds)


def written(name):
    kind = exported.theirs()[name]["model_type"]
    return forms.optimized(exported.model(name).SerializeToString(), kind)[0]


def answers(engine, model, name, options=None):
    session = engine.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    given = exported.feeds(name)
    kinds = {"tensor(int32)": np.int32, "tensor(int64)": np.int64, "tensor(float)": np.float32}
    feeds = {i.name: given[i.name].astype(kinds[i.type]) for i in session.get_inputs()}
    return session.run(None, feeds)


def plain(name):
    """The answers of the network as it was exported."""
    options = orthrus.SessionOptions()
    options.graph_optimization_level = orthrus.GraphOptimizationLevel.ORT_DISABLE_ALL
    return answers(orthrus, exported.model(name), name, options)


def assert_close(found, expected):
    assert len(found) == len(expected)
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=TOLERANCE, atol=TOLERANCE)


@pytest.mark.parametrize("name", slow_but(COUNTED, exported.names()))
def test_forms_are_as_many_as_theirs(name):
    theirs, ours = exported.theirs()[name], written(name)
    counts = collections.Counter(node.op_type for node in ours.graph.node)
    assert counted(counts, KINDS["attention"]) >= attentions(name)
    for kind, operators in KINDS.items():
        assert counted(counts, operators) >= counted(theirs.get("counts", {}), operators), kind


@pytest.mark.parametrize("name", slow_but(RUN, exported.names()))
def test_our_forms_run_here(name):
    assert_close(answers(orthrus, written(name), name), plain(name))


@pytest.mark.parametrize("name", slow_but(RUN, exported.names()))
def test_onnxruntime_runs_our_forms(name):
    ort = pytest.importorskip("onnxruntime")
    if exported.theirs()[name]["model_type"] in ("unet", "vae"):
        pytest.skip("onnxruntime does not run it")
    ort.set_default_logger_severity(4)
    assert_close(answers(ort, written(name), name), plain(name))


@pytest.mark.slow
@pytest.mark.parametrize("name", exported.names())
def test_their_forms_run_here(name, tmp_path):
    pytest.importorskip("onnxruntime")
    from onnxruntime.transformers import optimizer

    told = exported.theirs()[name]
    if "error" in told:
        pytest.skip("onnxruntime's own tool is wrong")
    heads, width = (0, 0) if told["model_type"] in ("unet", "vae", "swin", "sam2") else (4, 64)
    (tmp_path / "m.onnx").write_bytes(exported.model(name).SerializeToString())
    made = optimizer.optimize_model(str(tmp_path / "m.onnx"), told["model_type"], heads, width, opt_level=0)
    assert_close(answers(orthrus, made.model, name), plain(name))
    assert_names_alike(made.model.graph.node, written(name).graph.node)


def assert_names_alike(theirs, ours):
    """Where both wrote an operator at the same places, its nodes have the same names."""
    for kind in forms.WRITTEN:
        expected, found = ([node for node in nodes if node.op_type == kind] for nodes in (theirs, ours))
        if [(n.input, n.output[0]) for n in expected] == [(n.input, n.output[0]) for n in found]:
            assert [n.name for n in expected] == [n.name for n in found]


@pytest.mark.parametrize("name", slow_but(COUNTED, exported.names()))
def test_sessions_find_every_attention(name):
    graph = load(exported.model(name).SerializeToString())
    optimize(graph, level=2)
    counts = collections.Counter(node.op_type for node in graph.nodes)
    assert counts["Attention"] + counts["SoftmaxAttention"] == attentions(name)
    if name.split("_")[0].split(".")[0] in ("gptj", "phi", "llama", "mistral", "qwen2", "flux"):
        assert counts["RotaryEmbedding"] == 4
    if exported.theirs()[name]["model_type"] in ("unet", "vae"):
        assert counts["InstanceNormalization"] == 0 and counts["GroupNormalization"] >= 10
