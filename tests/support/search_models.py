"""Small networks in the conventions that generation operators have for their subgraphs, with random weights.

Every one has a cache of past keys and values, and its logits depend on all of the cache, on the mask and on
the positions: a cache put in the wrong order, a mask that is too short or a position off by one shows.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from graphs import OPSET
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

INT, FLOAT = TensorProto.INT32, TensorProto.FLOAT
SIZE = 8


def weights(seed: int, vocab: int, layers: int = 1) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    made = {"embedding": rng.standard_normal((vocab, SIZE)), "positions": rng.standard_normal((64, SIZE)) / 2,
            "head": rng.standard_normal((SIZE, vocab)) / 2}
    for i in range(layers):
        made[f"mix_{i}"] = rng.standard_normal((SIZE, SIZE))
    return {k: v.astype(np.float32) for k, v in made.items()}


def _constants(values: dict[str, np.ndarray]) -> list[TensorProto]:
    return [numpy_helper.from_array(v, k) for k, v in values.items()]


def _attended(query: str, key: str, value: str, mask: str, out: str) -> list[NodeProto]:
    """Attention over all that `mask` [B, S] leaves; every name is [B, 1, T or S, SIZE]."""
    node = helper.make_node
    return [node("Transpose", [key], [f"{out}_t"], perm=[0, 1, 3, 2]),
            node("MatMul", [query, f"{out}_t"], [f"{out}_s"]),
            node("Cast", [mask], [f"{out}_f"], to=FLOAT),
            node("Sub", [f"{out}_f", "one"], [f"{out}_m"]), node("Mul", [f"{out}_m", "large"], [f"{out}_b"]),
            node("Unsqueeze", [f"{out}_b", "axes12"], [f"{out}_u"]),
            node("Add", [f"{out}_s", f"{out}_u"], [f"{out}_a"]),
            node("Softmax", [f"{out}_a"], [f"{out}_p"], axis=-1), node("MatMul", [f"{out}_p", value], [out])]


NUMBERS = {"one": np.array(1, np.float32), "large": np.array(1e4, np.float32), "axes12": np.array([1, 2]),
           "axis1": np.array([1]), "axis0": np.array([0]), "two": np.array(2, np.float32)}


def gpt2_decoder(w: dict[str, np.ndarray], vocab: int, name: str = "decoder") -> GraphProto:
    """Inputs input_ids, position_ids, attention_mask, past_i [2, B, 1, P, SIZE]; outputs logits, present_i.
    """
    layers = sum(k.startswith("mix_") for k in w)
    node, info = helper.make_node, helper.make_tensor_value_info
    nodes = [node("Gather", ["embedding", "input_ids"], ["tokens"]),
             node("Gather", ["positions", "position_ids"], ["places"]),
             node("Add", ["tokens", "places"], ["hidden"]), node("Unsqueeze", ["hidden", "axis1"], ["x_0"])]
    for i in range(layers):
        nodes += [node("MatMul", [f"x_{i}", f"mix_{i}"], [f"v_{i}"]),
                  node("Unsqueeze", [f"x_{i}", "axis0"], [f"ku_{i}"]),
                  node("Unsqueeze", [f"v_{i}", "axis0"], [f"vu_{i}"]),
                  node("Concat", [f"ku_{i}", f"vu_{i}"], [f"new_{i}"], axis=0),
                  node("Concat", [f"past_{i}", f"new_{i}"], [f"present_{i}"], axis=3),
                  node("Split", [f"present_{i}"], [f"ks_{i}", f"vs_{i}"], axis=0, num_outputs=2),
                  node("Squeeze", [f"ks_{i}", "axis0"], [f"k_{i}"]),
                  node("Squeeze", [f"vs_{i}", "axis0"], [f"w_{i}"]),
                  *_attended(f"x_{i}", f"k_{i}", f"w_{i}", "attention_mask", f"c_{i}"),
                  node("Add", [f"c_{i}", f"x_{i}"], [f"x_{i + 1}"])]
    nodes += [node("Squeeze", [f"x_{layers}", "axis1"], ["last"]),
              node("MatMul", ["last", "head"], ["logits"])]
    cache = ["B", 1, "P", SIZE], ["B", 1, "T", SIZE]
    return helper.make_graph(
        nodes, name,
        [info("input_ids", INT, ["B", "L"]), info("position_ids", INT, ["B", "L"]),
         info("attention_mask", INT, ["B", "T"]),
         *(info(f"past_{i}", FLOAT, [2, *cache[0]]) for i in range(layers))],
        [info("logits", FLOAT, ["B", "L", vocab]),
         *(info(f"present_{i}", FLOAT, [2, *cache[1]]) for i in range(layers))],
        _constants({**w, **NUMBERS}))


def _cache_of(kind: str, layers: int, past: str, length: str) -> list[ValueInfoProto]:
    return [helper.make_tensor_value_info(f"{past}_{part}_{kind}_{i}", FLOAT, ["B", 1, length, SIZE])
            for i in range(layers) for part in ("key", "value")]


def _decoder_layers(layers: int) -> list[NodeProto]:
    """From x_0 [B, 1, L, SIZE] to x_<layers>: attention over the own cache, then over the encoder's."""
    node, nodes = helper.make_node, list[NodeProto]()
    for i in range(layers):
        nodes += [node("MatMul", [f"x_{i}", f"mix_{i}"], [f"v_{i}"]),
                  node("Concat", [f"past_key_self_{i}", f"x_{i}"], [f"present_key_self_{i}"], axis=2),
                  node("Concat", [f"past_value_self_{i}", f"v_{i}"], [f"present_value_self_{i}"], axis=2),
                  node("Transpose", [f"present_key_self_{i}"], [f"kt_{i}"], perm=[0, 1, 3, 2]),
                  node("MatMul", [f"x_{i}", f"kt_{i}"], [f"s_{i}"]), node("Softmax", [f"s_{i}"], [f"p_{i}"]),
                  node("MatMul", [f"p_{i}", f"present_value_self_{i}"], [f"own_{i}"]),
                  *_attended(f"x_{i}", f"past_key_cross_{i}", f"past_value_cross_{i}",
                             "encoder_attention_mask", f"cross_{i}"),
                  node("Add", [f"own_{i}", f"cross_{i}"], [f"x_{i + 1}"])]
    return [*nodes, node("Squeeze", [f"x_{layers}", "axis1"], ["last"]),
            node("MatMul", ["last", "head"], ["logits"])]


def _embedded(layers: int) -> list[NodeProto]:
    """input_ids [B, L] behind a cache of P tokens, as x_0 [B, 1, L, SIZE]."""
    node = helper.make_node
    return [node("Gather", ["embedding", "input_ids"], ["tokens"]),
            node("Shape", ["past_key_self_0"], ["place"], start=2, end=3),
            node("Shape", ["input_ids"], ["count"], start=1, end=2), node("Add", ["place", "count"], ["end"]),
            node("Squeeze", ["place"], ["from"]), node("Squeeze", ["end"], ["to"]),
            node("Range", ["from", "to", "step"], ["at"]), node("Gather", ["positions", "at"], ["places"]),
            node("Add", ["tokens", "places"], ["hidden"]), node("Unsqueeze", ["hidden", "axis1"], ["x_0"])]


MORE = {**NUMBERS, "step": np.array(1), "nothing_rest": np.array([1, 0, SIZE])}
ZERO = helper.make_tensor("zero", FLOAT, [1], [0])


def decoder(w: dict[str, np.ndarray], vocab: int, masked: bool = True, one: bool = True
            ) -> GraphProto:
    """Inputs input_ids, encoder_attention_mask, past_key_self_i, past_value_self_i, past_key_cross_i,
    past_value_cross_i; outputs logits, present_key_self_i, present_value_self_i. `masked`: else all of the
    encoder counts and there is no mask. `one`: the type of input_ids says that it is one token at a time."""
    layers, info = sum(k.startswith("mix_") for k in w), helper.make_tensor_value_info
    whole = [] if masked else [
        helper.make_node("Shape", ["past_key_cross_0"], ["all_s"], start=2, end=3),
        helper.make_node("Expand", ["one", "all_s"], ["all_e"]),
        helper.make_node("Unsqueeze", ["all_e", "axis0"], ["encoder_attention_mask"])]
    given = [info("encoder_attention_mask", INT, ["B", "E"])] if masked else []
    return helper.make_graph(
        [*whole, *_embedded(layers), *_decoder_layers(layers)], "decoder",
        [info("input_ids", INT, ["B", 1 if one else "L"]), *given, *_cache_of("self", layers, "past", "P"),
         *_cache_of("cross", layers, "past", "E")],
        [info("logits", FLOAT, ["B", "L", vocab]), *_cache_of("self", layers, "present", "T")],
        _constants({**w, **MORE}))


def _cross(layers: int) -> list[NodeProto]:
    """From encoder_hidden_states [B, E, SIZE] to the keys and values that decoders take."""
    node, nodes = helper.make_node, [helper.make_node("Unsqueeze", ["encoder_hidden_states", "axis1"], ["e"])]
    for i in range(layers):
        nodes += [node("Mul", ["e", "two"], [f"present_key_cross_{i}"]),
                  node("MatMul", ["e", f"mix_{i}"], [f"present_value_cross_{i}"])]
    return nodes


def encoder(w: dict[str, np.ndarray], vocab: int, first: bool = False, sound: bool = False) -> GraphProto:
    """Inputs encoder_input_ids, encoder_attention_mask; outputs present_key_cross_i, present_value_cross_i.
    `first`: it makes the decoder's first step, on decoder_input_ids, too, and gives logits,
    encoder_hidden_states, present_key_self_i and present_value_self_i before these. `sound`: it takes
    features [B, SIZE, E] and no mask."""
    layers, info, node = sum(k.startswith("mix_") for k in w), helper.make_tensor_value_info, helper.make_node
    nodes = [node("Transpose", ["encoder_input_ids"], ["encoder_hidden_states"], perm=[0, 2, 1])] if sound \
        else [node("Gather", ["embedding", "encoder_input_ids"], ["encoder_hidden_states"])]
    nodes += _cross(layers)
    inputs = [info("encoder_input_ids", FLOAT, ["B", SIZE, "E"])] if sound else [
        info("encoder_input_ids", INT, ["B", "E"]), info("encoder_attention_mask", INT, ["B", "E"])]
    outputs = _cache_of("cross", layers, "present", "E")
    if first:
        step = decoder(w, vocab, masked=not sound)
        names = {"input_ids": "decoder_input_ids"} | {
            v.name: v.name.replace("past_", "present_" if "cross" in v.name else "none_") for v in step.input
            if v.name.startswith("past_")}
        for made in step.node:
            made.input[:] = [names.get(name, name) for name in made.input]
        nothing = [node("ConstantOfShape", ["nothing_shape"], [v.name.replace("past_", "none_")], value=ZERO)
                   for v in step.input if "past_" in v.name and "_self_" in v.name]
        nodes += [node("Shape", ["decoder_input_ids"], ["rows"], start=0, end=1),
                  node("Concat", ["rows", "nothing_rest"], ["nothing_shape"], axis=0), *nothing, *step.node]
        inputs.append(info("decoder_input_ids", INT, ["B", "L"]))
        outputs = [info("logits", FLOAT, ["B", "L", vocab]),
                   info("encoder_hidden_states", FLOAT, ["B", "E", SIZE]),
                   *_cache_of("self", layers, "present", "L"), *outputs]
    return helper.make_graph(nodes, "encoder", inputs, outputs, _constants({**w, **MORE}))


def model(node: NodeProto, inputs: list[ValueInfoProto], outputs: list[str]) -> ModelProto:
    """A model of one node of com.microsoft."""
    graph = helper.make_graph([node], "generation", inputs,
                              [helper.make_empty_tensor_value_info(name) for name in outputs])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET),
                                                   helper.make_opsetid("com.microsoft", 1)], ir_version=10)
    return made


ORDER = {
    "GreedySearch": ("input_ids", "max_length", "min_length", "repetition_penalty", "vocab_mask",
                     "prefix_vocab_mask", "attention_mask"),
    "Sampling": ("input_ids", "max_length", "min_length", "repetition_penalty", "vocab_mask",
                 "prefix_vocab_mask", "attention_mask", "presence_mask", "seed"),
    "BeamSearch": ("input_ids", "max_length", "min_length", "num_beams", "num_return_sequences",
                   "length_penalty", "repetition_penalty", "vocab_mask", "prefix_vocab_mask",
                   "attention_mask", "decoder_input_ids", "logits_processor"),
    "WhisperBeamSearch": ("input_ids", "max_length", "min_length", "num_beams", "num_return_sequences",
                          "length_penalty", "repetition_penalty", "vocab_mask", "prefix_vocab_mask",
                          "attention_mask", "decoder_input_ids", "logits_processor", "cross_qk_layer_head",
                          "extra_decoding_ids", "temperature"),
}
"""The inputs of each operator."""


def search(op: str, feeds: dict[str, np.ndarray], outputs: list[str], **attributes: Any) -> ModelProto:
    """A model of operator `op` with the inputs that `feeds` has; `outputs` are named in their order, "" for
    one that is left out."""
    names = [name if name in feeds else "" for name in ORDER[op]]
    inputs = [helper.make_tensor_value_info(k, helper.np_dtype_to_tensor_dtype(v.dtype), [None] * v.ndim)
              for k, v in feeds.items()]
    node = helper.make_node(op, names, outputs, domain="com.microsoft", **attributes)
    return model(node, inputs, [name for name in outputs if name])
