"""orthrus.generate against networks computed anew for every token, over the ways a model keeps its past."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import GraphProto, ModelProto, TensorProto, helper, numpy_helper
from search_models import SIZE, gpt2_decoder, weights

import orthrus
from orthrus.errors import InvalidArgument
from orthrus.generation import Decoder, generate, stream
from orthrus.generation.choose import chooser

V = 12
W = weights(0, V)
ROWS = [[1, 2, 3], [4, 5], [6, 7, 8, 9, 1]]


def made(graph: GraphProto) -> ModelProto:
    return helper.make_model(graph, ir_version=10, opset_imports=[
        helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)])


def growing() -> ModelProto:
    return made(gpt2_decoder(W, V))


def renamed() -> ModelProto:
    """Keys and values apart, and with the names that transformers models are exported with."""
    graph = gpt2_decoder(W, V)
    node, past, present = helper.make_node, graph.input.pop(), graph.output.pop()
    names = [f"past_key_values.0.{part}" for part in ("key", "value")]
    for i, name in enumerate(names):
        graph.input.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, ["B", 1, "P", SIZE]))
        graph.node.insert(0, node("Unsqueeze", [name, "axis0"], [f"part_{i}"]))
    graph.node.insert(2, node("Concat", ["part_0", "part_1"], [past.name], axis=0))
    graph.node.append(node("Split", [present.name], ["first", "second"], axis=0, num_outputs=2))
    for i, (part, found) in enumerate(zip(("key", "value"), ("first", "second"), strict=True)):
        graph.node.append(node("Squeeze", [found, "axis0"], [f"present.0.{part}"]))
        graph.output.append(helper.make_tensor_value_info(f"present.0.{part}", TensorProto.FLOAT,
                                                          ["B", 1, "T", SIZE]))
        assert names[i].endswith(part)
    return made(graph)


def merged() -> ModelProto:
    """A model of both steps: the past counts only where use_cache_branch says so."""
    graph = gpt2_decoder(W, V)
    for node in graph.node:
        node.input[:] = ["used" if name == "past_0" else name for name in node.input]

    def branch(name: str, node: onnx.NodeProto) -> GraphProto:
        return helper.make_graph([node], name, [], [helper.make_tensor_value_info(
            node.output[0], TensorProto.FLOAT, [2, None, 1, None, SIZE])])
    graph.node.insert(0, helper.make_node(
        "If", ["flag"], ["used"],
        then_branch=branch("cached", helper.make_node("Identity", ["past_0"], ["a"])),
        else_branch=branch("first", helper.make_node("Slice", ["past_0", "zero", "zero", "three"], ["b"]))))
    graph.node.insert(0, helper.make_node("Squeeze", ["use_cache_branch"], ["flag"]))
    graph.initializer.extend(numpy_helper.from_array(np.array([n]), name)
                             for name, n in (("zero", 0), ("three", 3)))
    graph.input.append(helper.make_tensor_value_info("use_cache_branch", TensorProto.BOOL, [1]))
    return made(graph)


def static(length: int = 16) -> ModelProto:
    """A cache of fixed size that tokens are written into at cache_position, one prompt at a time."""
    graph = gpt2_decoder(W, V)
    node = helper.make_node
    for i, it in enumerate(graph.node):
        if it.op_type == "Concat" and it.output[0] == "present_0":
            places = [node("Reshape", ["cache_position", "column"], ["rows_at"]),
                      node("Shape", ["new_0"], ["new_shape"]),
                      node("Expand", ["rows_at", "new_shape"], ["at"]),
                      node("ScatterElements", ["past_0", "at", "new_0"], ["present_0"], axis=3)]
            del graph.node[i]
            for extra in reversed(places):
                graph.node.insert(i, extra)
            break
    graph.initializer.append(numpy_helper.from_array(np.array([1, 1, 1, -1, 1]), "column"))
    graph.input.append(helper.make_tensor_value_info("cache_position", TensorProto.INT64, ["L"]))
    for value in (graph.input[3], graph.output[1]):
        value.type.tensor_type.shape.dim[3].dim_value = length
    graph.input[2].type.tensor_type.shape.dim[1].dim_value = length
    return made(graph)


def shared(length: int | str = "past") -> ModelProto:
    """GroupQueryAttention, which finds out from the mask how many tokens its cache holds."""
    node, info = helper.make_node, helper.make_tensor_value_info
    parts = [node("Gather", ["embedding", "input_ids"], ["x"]), node("MatMul", ["x", "mix_0"], ["v"]),
             node("ReduceSum", ["attention_mask", "axis1"], ["counts"], keepdims=0),
             node("Sub", ["counts", "one"], ["ends64"]),
             node("Cast", ["ends64"], ["ends"], to=TensorProto.INT32),
             node("Shape", ["attention_mask"], ["size"], start=1, end=2),
             node("Squeeze", ["size"], ["total64"]),
             node("Cast", ["total64"], ["total"], to=TensorProto.INT32),
             node("GroupQueryAttention", ["x", "x", "v", "past_key_values.0.key", "past_key_values.0.value",
                                          "ends", "total"], ["c", "present.0.key", "present.0.value"],
                  domain="com.microsoft", num_heads=1, kv_num_heads=1, scale=1.0),
             node("Add", ["c", "x"], ["y"]), node("MatMul", ["y", "head"], ["logits"])]
    constants = {k: v for k, v in W.items() if k != "positions"}
    constants |= {"one": np.array(1), "axis1": np.array([1])}
    cache = ["B", 1, length, SIZE]
    return made(helper.make_graph(
        parts, "shared", [info("input_ids", TensorProto.INT64, ["B", "L"]),
                          info("attention_mask", TensorProto.INT64, ["B", "T"]),
                          *(info(f"past_key_values.0.{part}", TensorProto.FLOAT, cache)
                            for part in ("key", "value"))],
        [info("logits", TensorProto.FLOAT, ["B", "L", V]),
         *(info(f"present.0.{p}", TensorProto.FLOAT, cache) for p in ("key", "value"))],
        [numpy_helper.from_array(v, k) for k, v in constants.items()]))


def without_cache() -> ModelProto:
    """Logits of a sum over all tokens."""
    node, info = helper.make_node, helper.make_tensor_value_info
    return made(helper.make_graph(
        [node("Gather", ["embedding", "input_ids"], ["x"]), node("Cast", ["attention_mask"], ["m"], to=1),
         node("Unsqueeze", ["m", "last"], ["mask"]), node("Mul", ["x", "mask"], ["kept"]),
         node("CumSum", ["kept", "axis"], ["sums"]), node("MatMul", ["sums", "head"], ["logits"])], "sums",
        [info("input_ids", TensorProto.INT64, ["B", "L"]),
         info("attention_mask", TensorProto.INT64, ["B", "L"])],
        [info("logits", TensorProto.FLOAT, ["B", "L", V])],
        [numpy_helper.from_array(v, k) for k, v in {"embedding": W["embedding"], "head": W["head"],
                                                    "last": np.array([2]), "axis": np.array(1)}.items()]))


def attended(tokens: list[int], positions: bool = True) -> np.ndarray:
    """The logits of `gpt2_decoder` after `tokens`."""
    x = W["embedding"][tokens].astype(np.float64)
    if positions:
        x = x + W["positions"][:len(x)]
    scores = x[-1] @ x.T
    share = np.exp(scores - scores.max())
    return (share / share.sum() @ (x @ W["mix_0"]) + x[-1]) @ W["head"]


def summed(tokens: list[int]) -> np.ndarray:
    return W["embedding"][tokens].astype(np.float64).sum(0) @ W["head"]


def greedy(logits: Any, row: list[int], count: int, stop: int = -1) -> list[int]:
    written = list(row)
    while len(written) < len(row) + count and (written == row or written[-1] != stop):
        written.append(int(logits(written).argmax()))
    return written[len(row):]


@pytest.mark.parametrize("model", [growing, renamed, merged])
@pytest.mark.parametrize("stop", [None, 5, [3, 8]])
def test_greedy_over_rows_of_several_lengths(model: Any, stop: Any) -> None:
    found = generate(model(), ROWS, max_new_tokens=9, stop=stop)
    for row, got in zip(ROWS, found.tokens, strict=True):
        whole = greedy(attended, row, 9)
        ends = [i for i, token in enumerate(whole) if token in np.atleast_1d(-1 if stop is None else stop)]
        assert got == whole[:ends[0] + 1 if ends else 9]
    assert 0 < found.run_seconds <= found.seconds
    assert found.tokens_per_second > 0


def test_without_a_cache_everything_is_computed_anew() -> None:
    assert generate(without_cache(), ROWS, max_new_tokens=6).tokens == [greedy(summed, r, 6) for r in ROWS]


def test_a_cache_of_fixed_size_is_found_in_the_model_and_not_outgrown() -> None:
    decoder = Decoder(static(8))
    assert decoder.room == 8
    assert generate(decoder, ROWS[0], max_new_tokens=5).tokens == [greedy(attended, ROWS[0], 5)]
    rows = [[2], [7]]
    assert generate(decoder, rows, max_new_tokens=5).tokens == [greedy(attended, row, 5) for row in rows]
    with pytest.raises(InvalidArgument, match="the cache is full"):
        generate(decoder, ROWS[0], max_new_tokens=9)


@pytest.mark.parametrize("options", [{}, {"cache_length": 20}, {"cache_length": 20, "in_place": True}])
def test_group_query_attention_with_a_cache_that_grows_or_is_shared(options: dict[str, Any]) -> None:
    rows = [[1, 2, 3], [9, 8, 7]]
    decoder = Decoder(shared(), **options)
    for _ in range(2):
        assert generate(decoder, rows, max_new_tokens=7).tokens == [
            greedy(lambda t: attended(t, False), row, 7) for row in rows]
    if "in_place" in options:
        held = decoder._cache["past_key_values.0.key"]
        decoder.step(np.array([1, 2]))
        assert decoder._cache["past_key_values.0.key"] is held


def test_a_session_of_onnxruntime_gives_the_same() -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    for model, options in ((renamed(), {}), (shared(), {"cache_length": 20, "in_place": True})):
        rows = [[1, 2, 3], [9, 8, 7]]
        session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
        ours, theirs = (generate(it, rows, max_new_tokens=8, **options) for it in (model, session))
        assert ours.tokens == theirs.tokens


@pytest.mark.parametrize("stop", [None, 3])
def test_beams_that_hold_everything_find_the_best_sequence(stop: int | None) -> None:
    w = {k: v[:, :4] if k == "head" else v[:4] if k == "embedding" else v for k, v in W.items()}
    model, steps, totals = made(gpt2_decoder(w, 4)), 3, {}
    for tail in itertools.product(range(4), repeat=steps):
        cut = tail[:tail.index(stop) + 1] if stop in tail else tail
        total = 0.0
        for i, token in enumerate(cut):
            row = attended([1, *cut[:i]])[:4]
            total += row[token] - np.log(np.exp(row - row.max()).sum()) - row.max()
        totals[cut] = total / len(cut) ** 0.7
    best = max(totals, key=totals.__getitem__)
    found = generate(model, [[1], [1]], beams=16, length_penalty=0.7, max_new_tokens=steps, stop=stop)
    assert found.tokens == [list(best)] * 2
    np.testing.assert_allclose(found.scores, totals[best], rtol=1e-5)


def test_beams_beat_or_equal_greedy_and_take_the_cache_with_them() -> None:
    for model in (growing(), renamed(), without_cache()):
        logits = summed if not any("past" in v.name for v in model.graph.input) else attended

        def worth(row: list[int], tail: list[int], logits: Any = logits) -> float:
            total = 0.0
            for i, token in enumerate(tail):
                x = logits([*row, *tail[:i]])
                total += x[token] - x.max() - np.log(np.exp(x - x.max()).sum())
            return total / len(tail)
        found = generate(model, ROWS, beams=4, max_new_tokens=6)
        for row, tail, score in zip(ROWS, found.tokens, found.scores, strict=True):
            assert score == pytest.approx(worth(row, tail), rel=1e-4)
            assert score >= worth(row, greedy(logits, row, 6)) - 1e-4


def test_draws_follow_temperature_top_k_top_p_and_the_seed() -> None:
    rng = np.random.default_rng(1)
    row = rng.standard_normal(30).astype(np.float32)
    order = np.argsort(-row)
    for temperature, k, p in ((1.0, 0, 1.0), (0.5, 0, 1.0), (2.0, 5, 1.0), (1.0, 0, 0.4), (1.5, 8, 0.7)):
        share = np.exp(row[order] / temperature)
        share[k or 30:] = 0
        share /= share.sum()
        share[1:][np.cumsum(share)[:-1] >= p] = 0
        share /= share.sum()
        tokens = chooser(temperature, k, p, 0)(np.tile(row, (6000, 1)))
        assert np.abs(np.bincount(tokens, minlength=30)[order] / 6000 - share).max() < 0.03
        assert (np.bincount(tokens, minlength=30)[order][share == 0] == 0).all()
    drawn = [generate(growing(), ROWS, temperature=1.0, seed=seed, max_new_tokens=12).tokens
             for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]


class Letters:
    """A tokenizer: a token a letter, 11 the end; a token of 10 is half a character."""

    eos_token_id = 11

    def encode(self, text: str) -> list[int]:
        return ["abcdefghij".index(letter) for letter in text]

    def decode(self, tokens: list[int]) -> str:
        text = "".join("abcdefghij½·"[token] for token in tokens).replace("½½", "é")
        return text[:-1] + "\ufffd" if text.endswith("½") else text


def test_text_comes_and_goes_through_a_tokenizer() -> None:
    found = generate(growing(), ["abc", "de"], tokenizer=Letters(), max_new_tokens=20)
    expected = [greedy(attended, row, 20, 11) for row in ([0, 1, 2], [3, 4])]
    assert found.tokens == expected
    assert found.texts == [Letters().decode(r[:-1] if r[-1] == 11 else r) for r in expected]
    told = list(stream(growing(), ["abc", "de"], tokenizer=Letters(), max_new_tokens=20))
    for row in range(2):
        assert [t.id for t in told if t.row == row] == expected[row]
        assert "".join(t.text for t in told if t.row == row) == found.texts[row].rstrip("\ufffd")


def test_tokens_stream_as_they_come() -> None:
    decoder = Decoder(growing())
    tokens = stream(decoder, ROWS[0], max_new_tokens=1000)
    first = next(tokens)
    assert (first.row, first.text) == (0, "")
    assert decoder._written == len(ROWS[0])
    assert list(stream(decoder, ROWS[0], max_new_tokens=0)) == []


def test_an_encoder_and_its_decoder() -> None:
    """Logits that depend on the encoder's states, on its mask, and on the tokens so far."""
    node, info, const = helper.make_node, helper.make_tensor_value_info, numpy_helper.from_array
    encoder = made(helper.make_graph(
        [node("Gather", ["e", "input_ids"], ["last_hidden_state"])], "encoder",
        [info(n, TensorProto.INT64, ["B", "E"]) for n in ("input_ids", "attention_mask")],
        [info("last_hidden_state", TensorProto.FLOAT, ["B", "E", SIZE])], [const(W["embedding"], "e")]))
    decoder = made(helper.make_graph(
        [node("Gather", ["e", "input_ids"], ["x"]), node("CumSum", ["x", "one"], ["own"]),
         node("Cast", ["encoder_attention_mask"], ["m"], to=1), node("Unsqueeze", ["m", "two"], ["mask"]),
         node("Mul", ["encoder_hidden_states", "mask"], ["kept"]),
         node("ReduceSum", ["kept", "ones"], ["source"]), node("Add", ["own", "source"], ["all"]),
         node("MatMul", ["all", "head"], ["logits"])], "decoder",
        [info("input_ids", TensorProto.INT64, ["B", "L"]),
         info("encoder_attention_mask", TensorProto.INT64, ["B", "E"]),
         info("encoder_hidden_states", TensorProto.FLOAT, ["B", "E", SIZE])],
        [info("logits", TensorProto.FLOAT, ["B", "L", V])],
        [const(W["embedding"], "e"), const(W["head"], "head"), const(np.array(1), "one"),
         const(np.array([1]), "ones"), const(np.array([2]), "two")]))
    found = generate(decoder, ROWS, encoder=encoder, start=0, max_new_tokens=5)
    assert found.tokens == [greedy(lambda t, r=row: summed([*r, *t]), [0], 5) for row in ROWS]
    with pytest.raises(InvalidArgument, match="what an encoder makes"):
        Decoder(decoder)
    with pytest.raises(InvalidArgument, match="a token of its own"):
        generate(decoder, ROWS, encoder=encoder)


def plain(*names: str) -> ModelProto:
    info = helper.make_tensor_value_info
    return made(helper.make_graph([helper.make_node("Identity", [names[0]], ["y"])], "plain",
                                  [info(n, TensorProto.FLOAT, ["B", 3, 4, 4]) for n in names],
                                  [info("y", TensorProto.FLOAT, ["B", 3, 4, 4])]))


def test_what_is_no_decoder_says_what_was_looked_for() -> None:
    with pytest.raises(InvalidArgument, match="input_ids or inputs_embeds") as error:
        generate(plain("image"), [[1]])
    assert "inputs image" in str(error.value)
    assert "past_key_values" in str(error.value)


@pytest.mark.parametrize(("prompts", "options", "message"), [
    ("text", {}, "there is no tokenizer"), ([[]], {}, "no tokens"), ([1], {"temperature": -1}, "temperature"),
    ([1], {"top_p": 0}, "top_p"), ([1], {"beams": 0}, "beams"),
    ([1], {"seed": -1}, "seed is out of range"),
    ([1], {"beams": 2, "temperature": 1}, "beams"),
])
def test_arguments_that_do_not_fit(prompts: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        orthrus.generate(growing(), prompts, **options)


def test_rows_of_several_lengths_need_a_mask() -> None:
    model = without_cache()
    del model.graph.input[1]
    model.graph.node[3].CopyFrom(helper.make_node("Identity", ["x"], ["kept"]))
    for _ in range(2):
        del model.graph.node[1]
    assert generate(model, [[1, 2], [3, 4]], max_new_tokens=3).tokens == [
        greedy(summed, row, 3) for row in ([1, 2], [3, 4])]
    with pytest.raises(InvalidArgument, match="no attention_mask"):
        generate(model, ROWS)


def test_a_model_that_takes_padding_for_tokens_is_found_out() -> None:
    """GroupQueryAttention counts from the left, whatever the mask says."""
    model = shared()
    add = next(node for node in model.graph.node if node.op_type == "Add")
    add.CopyFrom(helper.make_node("Identity", ["c"], ["y"]))
    for node in model.graph.node:
        for attribute in node.attribute:
            # every token in reach counts the same
            attribute.f = 1e-6 if attribute.name == "scale" else attribute.f
    with pytest.raises(InvalidArgument, match="takes padding for tokens"):
        generate(model, ROWS, max_new_tokens=3)
    assert generate(model, [[1, 2], [3, 4]], max_new_tokens=3).tokens
