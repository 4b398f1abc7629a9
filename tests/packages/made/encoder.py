"""A small encoder of texts with drawn weights, in the files that packages for embeddings look for.

In: a folder. Out: in it `model.onnx`, which takes what BERT takes and gives a vector of `SIZE` per token, and
tokenizer, vocabulary and settings beside it. Needs onnx, numpy and tokenizers alone.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from tokenizers import Tokenizer
from tokenizers.models import WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer
from tokenizers.processors import TemplateProcessing

SIZE = 32
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = ["the", "a", "cat", "dog", "sat", "ran", "on", "mat", "and", "far", "away", ".", "##s"]


def network() -> onnx.ModelProto:
    """Words, kinds of sentences, one turn of attention, a feed-forward layer."""
    draw = np.random.default_rng(0)
    held, nodes = [], []

    def weight(name: str, *shape: int, scale: float = 0.3) -> str:
        held.append(numpy_helper.from_array((scale * draw.standard_normal(shape)).astype(np.float32), name))
        return name

    def node(kind: str, inputs: list[str], output: str, **attributes: object) -> str:
        nodes.append(helper.make_node(kind, inputs, [output], name=output, **attributes))
        return output

    for name, value in (("axes", np.array([1])), ("one", np.float32(1)), ("low", np.float32(-1e4)),
                        ("gain", np.ones(SIZE, np.float32)), ("shift", np.zeros(SIZE, np.float32)),
                        ("root", np.float32(SIZE**-0.5))):
        held.append(numpy_helper.from_array(np.asarray(value), name))
    node("Gather", [weight("words", len(SPECIAL) + len(WORDS), SIZE, scale=1.0), "input_ids"], "word")
    node("Gather", [weight("kinds", 2, SIZE), "token_type_ids"], "kind")
    node("LayerNormalization", [node("Add", ["word", "kind"], "sum"), "gain", "shift"], "x")
    for name in "qkv":
        node("MatMul", ["x", weight(f"w{name}", SIZE, SIZE)], name)
    node("MatMul", ["q", node("Transpose", ["k"], "kt", perm=[0, 2, 1])], "scores")
    node("Mul", ["scores", "root"], "scaled")
    node("Unsqueeze", [node("Cast", ["attention_mask"], "seen", to=TensorProto.FLOAT), "axes"], "wide")
    node("Mul", [node("Sub", ["one", "wide"], "hidden"), "low"], "bias")
    node("Softmax", [node("Add", ["scaled", "bias"], "masked")], "chances")
    node("Add", ["x", node("MatMul", ["chances", "v"], "mixed")], "y")
    node("Gelu", [node("MatMul", ["y", weight("up", SIZE, 4 * SIZE)], "raised")], "bent")
    node("Add", ["y", node("MatMul", ["bent", weight("down", 4 * SIZE, SIZE)], "lowered")], "z")
    node("LayerNormalization", ["z", "gain", "shift"], "last_hidden_state")
    inputs = [helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "length"])
              for name in ("input_ids", "attention_mask", "token_type_ids")]
    output = helper.make_tensor_value_info("last_hidden_state", TensorProto.FLOAT, ["batch", "length", SIZE])
    model = helper.make_model(helper.make_graph(nodes, "encoder", inputs, [output], held),
                              opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    onnx.checker.check_model(model)
    return model


def make(folder: Path) -> Path:
    """All files of the encoder, in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    onnx.save(network(), folder / "model.onnx")
    words = {word: number for number, word in enumerate(SPECIAL + WORDS)}
    tokenizer = Tokenizer(WordPiece(words, unk_token="[UNK]"))
    tokenizer.normalizer = BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = BertPreTokenizer()
    tokenizer.post_processor = TemplateProcessing(single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1",
                                                  special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "vocab.txt").write_text("\n".join(words))
    settings = {"config.json": {"pad_token_id": 0, "model_type": "bert"},
                "special_tokens_map.json": {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]",
                                            "sep_token": "[SEP]", "mask_token": "[MASK]"},
                "tokenizer_config.json": {"model_max_length": 128, "pad_token": "[PAD]",
                                          "unk_token": "[UNK]"}}
    for name, value in settings.items():
        (folder / name).write_text(json.dumps(value))
    return folder
