"""Programs that others built for onnxruntime, unchanged: with this library they give the results of their
own, and theirs is not loaded."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import dropin
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from skips import MODELS, NODE_MODULES, RECORDINGS, needs

import orthrus

pytestmark = [pytest.mark.slow, needs("generated code", "Linux", "C compiler")]
CLIENTS = Path(__file__).parent / "clients"
DIGITS = Path(str(orthrus.__file__)).parent / "demo" / "digits.onnx"


def _results(command: Sequence[str | os.PathLike[str]], **changed: str) -> tuple[list[Any], str]:
    done = subprocess.run(command, env=dropin.surroundings(**changed), capture_output=True, text=True,
                          timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1]), done.stderr


def _compare(command: Sequence[str | os.PathLike[str]], *, as_it_is: Sequence[str] = (),
             in_place: Sequence[str] = (), **changed: str) -> None:
    """The program with its own library and with this one; before its words stand those of what runs it."""
    expected, theirs = _results([*as_it_is, *command], **changed)
    capi = [sys.executable, "-m", "orthrus", "capi"]
    made, ours = _results([*capi, "run", "--", *in_place, *command], **changed)
    assert len(made) == len(expected) > 0
    for (shape, data), (other, values) in zip(made, expected, strict=True):
        assert shape == other
        np.testing.assert_allclose(data, values, rtol=1e-4, atol=1e-5)
    told = subprocess.run([*capi, "--json", "path"], env=dropin.surroundings(**changed), capture_output=True,
                          text=True, timeout=300, check=True)
    library = json.loads(told.stdout)["library"]
    assert library not in theirs
    assert {line for line in ours.splitlines() if "libonnxruntime" in line} == {library}


@needs("onnxruntime-node")
def test_node(tmp_path: Path) -> None:
    _compare(["node", CLIENTS / "node_client.js", DIGITS], NODE_PATH=str(NODE_MODULES))


@needs("sherpa-onnx", "models", "recordings")
def test_sherpa() -> None:
    sound = sorted(RECORDINGS.glob("Front_*.wav"))[0]
    _compare([sys.executable, CLIENTS / "sherpa_client.py", MODELS / "silero_vad" / "model.onnx", sound])


WORDS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "hello", "world", "the", "dog", "has", "two", "heads")


def _hub(folder: Path) -> None:
    """A hub's folder with one small model, "me/tiny": its tokenizer, its configuration, its network."""
    place = folder / "hub" / "models--me--tiny"
    snapshot = place / "snapshots" / "first"
    for each in (snapshot, place / "refs"):
        each.mkdir(parents=True)
    (place / "refs" / "main").write_text("first")
    special = [{"id": i, "content": word, "single_word": False, "lstrip": False, "rstrip": False,
                "normalized": False, "special": True} for i, word in enumerate(WORDS[:5])]
    written: dict[str, dict[str, Any]] = {
        "tokenizer": {"version": "1.0", "truncation": None, "padding": None, "added_tokens": special,
                      "normalizer": {"type": "Lowercase"}, "pre_tokenizer": {"type": "Whitespace"},
                      "post_processor": None, "decoder": None,
                      "model": {"type": "WordLevel", "vocab": {word: i for i, word in enumerate(WORDS)},
                                "unk_token": "[UNK]"}},
        "config": {"architectures": ["BertModel"], "model_type": "bert", "hidden_size": 32,
                   "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32,
                   "vocab_size": 12, "max_position_embeddings": 64, "pad_token_id": 0, "type_vocab_size": 2,
                   "hidden_act": "gelu", "layer_norm_eps": 1e-12, "attention_probs_dropout_prob": 0.1,
                   "hidden_dropout_prob": 0.1, "initializer_range": 0.02},
        "tokenizer_config": {"model_max_length": 64, "pad_token": "[PAD]"}, "special_tokens_map": {}}
    for name, content in written.items():
        (snapshot / f"{name}.json").write_text(json.dumps(content))
    rng, make = np.random.default_rng(0), helper.make_node
    nodes = [make("Gather", ["table", "input_ids"], ["e"]), make("MatMul", ["e", "w"], ["m"]),
             make("Tanh", ["m"], ["t"]), make("Cast", ["attention_mask"], ["f"], to=TensorProto.FLOAT),
             make("Unsqueeze", ["f", "axis"], ["u"]), make("Mul", ["t", "u"], ["last_hidden_state"])]
    inputs = [helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "sequence"])
              for name in ("input_ids", "attention_mask", "token_type_ids")]
    output = helper.make_tensor_value_info("last_hidden_state", TensorProto.FLOAT, ["batch", "sequence", 32])
    weights = {"table": rng.standard_normal((12, 32), np.float32),
               "w": rng.standard_normal((32, 32), np.float32), "axis": np.array([2])}
    graph = helper.make_graph(nodes, "tiny", inputs, [output],
                              [onnx.numpy_helper.from_array(array, name) for name, array in weights.items()])
    onnx.save(helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)]),
              snapshot / "model.onnx")


@needs("embed-anything")
def test_embed_anything(tmp_path: Path) -> None:
    """Its Rust names the file of Python's onnxruntime, so that it is run as `orthrus exec` runs programs."""
    _hub(tmp_path)
    python = [sys.executable]
    _compare([CLIENTS / "embed_client.py", tmp_path, "me/tiny"], as_it_is=python,
             in_place=[*python, "-m", "orthrus", "exec"])
