"""GreedySearch, Sampling, BeamSearch and WhisperBeamSearch: against all sequences there are, in numpy, and
against onnxruntime over the space of their options."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from search_models import ORDER, SIZE, decoder, encoder, gpt2_decoder, search, weights

import orthrus
from orthrus.errors import Fail, InvalidArgument

V = 12
OUTPUTS = {"GreedySearch": 1, "Sampling": 1, "BeamSearch": 3, "WhisperBeamSearch": 2}


def run(runtime: Any, op: str, feeds: dict[str, np.ndarray], attributes: dict[str, Any],
        outputs: int = 1) -> list[np.ndarray]:
    given = {name: feeds[name] for name in ORDER[op] if name in feeds}
    model = search(op, given, ["sequences", "sequences_scores", "scores"][:outputs], **attributes)
    options = runtime.SessionOptions()
    options.log_severity_level = 4
    session = runtime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, given)


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def logits(w: dict[str, np.ndarray], tokens: list[int], pad: int) -> np.ndarray:
    """What the network of `gpt2_decoder` with one layer says after `tokens`, all of them computed anew."""
    at, mask = np.array(tokens), np.array(tokens) != pad
    x = (w["embedding"][at] + w["positions"][np.where(mask, np.cumsum(mask) - 1, 0)]).astype(np.float64)
    scores = x[-1] @ x.T + np.where(mask, 0, -1e4)
    share = np.exp(scores - scores.max())
    return (share / share.sum() @ (x @ w["mix_0"]) + x[-1]) @ w["head"]


def log_softmax(x: np.ndarray) -> np.ndarray:
    x = x - x.max()
    return x - np.log(np.exp(x).sum())


def test_greedy_takes_the_likeliest_token_each_time() -> None:
    w, pad = weights(0, V), 11
    prompts = [[1, 2, 3], [pad, 4, 5]]
    expected = [list(p) for p in prompts]
    for row in expected:
        while len(row) < 9:
            row.append(int(logits(w, row, pad).argmax()))
    got, = run(orthrus, "GreedySearch", {"input_ids": ints(*prompts), "max_length": ints(9)}, {
        "decoder": gpt2_decoder(w, V), "eos_token_id": -1, "pad_token_id": pad})
    assert got.tolist() == expected


def test_beams_that_hold_everything_find_the_best_of_all_sequences() -> None:
    vocab, steps = 4, 3
    w = weights(1, vocab)
    totals = {}
    for tail in itertools.product(range(vocab), repeat=steps):
        tokens, total = [1], 0.0
        for token in tail:
            total += log_softmax(logits(w, tokens, -1))[token]
            tokens.append(token)
        totals[tuple(tokens)] = total / len(tokens)
    best = sorted(totals, key=totals.__getitem__, reverse=True)[:5]
    got, worth, _ = run(orthrus, "BeamSearch", {
        "input_ids": ints([1]), "max_length": ints(1 + steps), "num_beams": ints(vocab ** (steps - 1)),
        "num_return_sequences": ints(5), "length_penalty": np.ones(1, np.float32)}, {
        "decoder": gpt2_decoder(w, vocab), "eos_token_id": -1, "pad_token_id": -1}, 3)
    assert [tuple(row) for row in got[0].tolist()] == best
    np.testing.assert_allclose(worth[0], [totals[b] for b in best], rtol=1e-4)


def drawn(op: str, rng: np.random.Generator, case: int) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Random inputs and attributes of an operator; every option comes up."""
    batch, start = int(rng.integers(1, 4)), int(rng.integers(1, 5))
    beams, prompt = int(rng.integers(1, 5)), int(rng.integers(1, 4))
    chosen: dict[str, Any] = {
        "input_ids": rng.integers(0, V, (batch, start)).astype(np.int32),
        "min_length": ints(rng.choice([0, 1, start + 2])), "num_beams": ints(beams),
        "num_return_sequences": ints(rng.integers(1, beams + 1)),
        "length_penalty": rng.choice([0, 0.5, 1, 2], 1).astype(np.float32),
        "repetition_penalty": rng.choice([0.7, 1, 1.3], 1).astype(np.float32),
        "vocab_mask": (rng.random(V) < 0.7).astype(np.int32),
        "prefix_vocab_mask": (rng.random((batch, V)) < 0.7).astype(np.int32),
        "attention_mask": (rng.random((batch, start)) < 0.7).astype(np.int32)}
    may_lack = ["vocab_mask", "prefix_vocab_mask", "attention_mask"]
    pad = int(rng.integers(0, V))
    w = weights(case, V, 1 + case % 2)
    attributes: dict[str, Any] = {"pad_token_id": pad, "eos_token_id": int(rng.choice([-1, pad, *range(V)])),
                                  "no_repeat_ngram_size": int(rng.integers(0, 4))}
    kind = {"BeamSearch": case % 2, "WhisperBeamSearch": 2}.get(op, 0)
    attributes["model_type"] = kind
    attributes["decoder"] = (gpt2_decoder(w, V) if kind == 0 else decoder(w, V, masked=kind == 1))
    if kind:
        start = 1
        attributes |= {"encoder": encoder(w, V, kind == 2 or case % 4 < 2, kind == 2),
                       "decoder_start_token_id": int(rng.integers(0, V))}
    elif case % 3 == 0:
        attributes["init_decoder"] = gpt2_decoder(w, V, "first")
    if op == "Sampling":
        chosen["seed"] = ints(rng.choice([0, 1, 12345, 2 ** 31 - 1]))
        may_lack.append("seed")
        attributes |= {"custom": case % 2, "temperature": float(rng.choice([0.5, 1, 2])),
                       "top_p": float(rng.choice([0, 0.3, 0.6, 0.9, 1])),
                       "min_tokens_to_keep": int(rng.choice([1, 3])),
                       "filter_value": float(rng.choice([-1e20, -20, -np.inf]))}
    elif op != "GreedySearch":
        attributes["early_stopping"] = int(rng.integers(0, 2))
    if kind == 2:
        chosen["input_ids"] = rng.standard_normal((batch, SIZE, 5)).astype(np.float32)
        chosen["decoder_input_ids"] = rng.integers(0, 6, (batch, prompt)).astype(np.int32)
        chosen["logits_processor"] = ints(1)
        chosen["temperature"] = rng.choice([0.5, 1, 3], 1).astype(np.float32)
        del chosen["attention_mask"]
        may_lack = ["vocab_mask", "prefix_vocab_mask", "decoder_input_ids", "logits_processor"]
        attributes |= {"decoder_start_token_id": 1, "translate_token_id": 3, "transcribe_token_id": 4,
                       "start_of_lm_token_id": 5, "no_timestamps_token_id": 6, "eos_token_id": 2,
                       "beginning_timestamp_token_id": 7}
        start = prompt
    chosen["max_length"] = ints(start + rng.integers(1, 8))
    if kind == 1:
        # For one step onnxruntime reads a first token that nobody set.
        chosen["max_length"] += 1
    return {k: v for k, v in chosen.items() if k not in may_lack or rng.random() < 0.4}, attributes


def written(sequences: np.ndarray, start: int, pad: int) -> int:
    """How many columns a greedy search wrote; what onnxruntime leaves behind them is not set."""
    width = sequences.shape[1]
    while width > start + 1 and (sequences[:, width - 1] == pad).all():
        width -= 1
    return width


@pytest.mark.parametrize("op", ORDER)
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow),
                                  pytest.param(2, marks=pytest.mark.thorough)])
def test_results_are_those_of_onnxruntime(op: str, seed: int) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")

    rng, compared = np.random.default_rng([seed, *op.encode()]), 0
    for case in range(14 if seed == 0 else 80):
        feeds, attributes = drawn(op, rng, case)
        try:
            expected = run(onnxruntime, op, feeds, attributes, OUTPUTS[op])
        except Exception as error:
            # Its own search fed a token that is none, or nothing, to the decoder.
            assert "out of data bounds" in str(error) or "feed size" in str(error)
            continue
        got = run(orthrus, op, feeds, attributes, OUTPUTS[op])
        if len(got) == 1:
            width = written(got[0], feeds["input_ids"].shape[1], attributes["pad_token_id"])
            expected, got = [expected[0][:, :width]], [got[0][:, :width]]
        assert got[0].tolist() == expected[0].tolist(), case
        for a, b in zip(got[1:2], expected[1:2], strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=2e-4, err_msg=str(case))
        for a, b in zip(got[2:], expected[2:], strict=True):
            made = (a != 0).any((1, 2, 3))
            np.testing.assert_allclose(a[made], b[made], rtol=1e-3, atol=1e-3, err_msg=str(case))
        compared += 1
    assert compared > 10


def test_draws_follow_the_distribution() -> None:
    w, rows = weights(3, V), 4000
    got, = run(orthrus, "Sampling", {"input_ids": np.full((rows, 1), 5, np.int32), "max_length": ints(2)}, {
        "decoder": gpt2_decoder(w, V), "eos_token_id": -1, "pad_token_id": 0, "temperature": 4.0,
        "top_p": 1.0})
    share = np.exp(log_softmax(logits(w, [5], 0) / 4))
    assert np.abs(np.bincount(got[:, 1], minlength=V) / rows - share).max() < 0.03


def test_tokens_that_are_present_are_drawn_less() -> None:
    w, rows, mask = weights(3, V), 400, np.arange(V) % 2
    got, = run(orthrus, "Sampling", {
        "input_ids": np.full((rows, 1), 5, np.int32), "max_length": ints(3),
        "presence_mask": np.broadcast_to(mask, (rows, V)).astype(np.int32)}, {
        "decoder": gpt2_decoder(w, V), "eos_token_id": -1, "pad_token_id": 0, "temperature": 4.0,
        "top_p": 1.0, "presence_penalty": 30.0})
    assert not mask[got[:, 1:]].any()


@pytest.mark.parametrize(("feeds", "attributes", "message"), [
    ({"max_length": ints(2)}, {}, "shall be greater than input sequence length"),
    ({"num_beams": ints(0)}, {}, "num_beams is out of range"),
    ({"num_return_sequences": ints(3)}, {}, "num_return_sequences is out of range"),
    ({"vocab_mask": ints(1, 1)}, {}, "vocab_mask has an unexpected shape"),
    ({"attention_mask": ints([1])}, {}, "attention_mask has to have the shape of input_ids"),
    ({"repetition_penalty": np.zeros(1, np.float32)}, {}, "repetition_penalty shall be greater than 0"),
    ({}, {"model_type": 1}, "needs the subgraph encoder"), ({}, {"model_type": 7}, "model_type is not known"),
    ({}, {"vocab_size": V + 1}, "vocab_size is more"),
])
def test_what_cannot_be_searched_says_why(feeds: dict[str, np.ndarray], attributes: dict[str, Any],
                                          message: str) -> None:
    good = {"input_ids": ints([1, 2]), "max_length": ints(5), "num_beams": ints(2),
            "num_return_sequences": ints(1)}
    with pytest.raises((InvalidArgument, Fail), match=message):
        run(orthrus, "BeamSearch", {**good, **feeds}, {
            "decoder": gpt2_decoder(weights(0, V), V), "eos_token_id": 3, "pad_token_id": 0, **attributes})


def test_a_subgraph_is_compiled_and_shares_what_lies_outside() -> None:
    """Its nodes are a part of generated code; weights may stand in the graph around it."""
    from onnx import helper

    w = weights(0, V)
    inner = gpt2_decoder(w, V)
    model = search("GreedySearch", {"input_ids": ints([1, 2]), "max_length": ints(6)}, ["sequences"],
                   decoder=inner, eos_token_id=-1, pad_token_id=0)
    apart = search("GreedySearch", {"input_ids": ints([1, 2]), "max_length": ints(6)}, ["sequences"],
                   eos_token_id=-1, pad_token_id=0)
    moved = [t for t in inner.initializer if t.name in w]
    apart.graph.initializer.extend(moved)
    for tensor in moved:
        inner.initializer.remove(tensor)
    apart.graph.node[0].attribute.append(helper.make_attribute("decoder", inner))
    feeds = {"input_ids": ints([1, 2]), "max_length": ints(6)}
    whole, shared = (orthrus.InferenceSession(m.SerializeToString()) for m in (model, apart))
    assert whole.run(None, feeds)[0].tolist() == shared.run(None, feeds)[0].tolist()


def test_a_cache_counts_among_what_a_run_may_hold() -> None:
    feeds = {"input_ids": np.ones((64, 1), np.int32), "max_length": ints(60)}
    model = search("GreedySearch", feeds, ["sequences"], decoder=gpt2_decoder(weights(0, V), V),
                   eos_token_id=-1, pad_token_id=0).SerializeToString()
    cache = 2 * 64 * 60 * SIZE * 4
    orthrus.InferenceSession(model, limits=orthrus.Limits(max_total_bytes=8 * cache)).run(None, feeds)
    with pytest.raises(Fail, match="more memory than it may"):
        orthrus.InferenceSession(model, limits=orthrus.Limits(max_total_bytes=cache)).run(None, feeds)
