"""GreedySearch, Sampling, BeamSearch and WhisperBeamSearch of com.microsoft.

In: prompts and how to search. Out: sequences of `max_length` tokens, padded, with the prompt in front,
without the token that ends them. A search that is done for all rows stops.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ....errors import InvalidArgument
from ....ir import ElementType, TensorType, Type, Value
from ....limits import bounded, current
from ...define import define
from ...tensor.movement import scalar
from ..fused import MS
from .decoders import Body, Decoder, EncoderDecoder, Gpt
from .draws import Draws, filtered
from .hypotheses import Beams
from .scores import Rule, apply, log_softmax, mask_rows, rules_of
from .timestamps import Timestamps

GPT2, T5, WHISPER = 0, 1, 2
_LONGEST, _MOST_BEAMS = 4096, 128
Choose = Callable[[np.ndarray], np.ndarray]
Rules = Callable[[int], list[Rule]]
"""The rules for a vocabulary of so many tokens."""


def _number(value: Any, default: float, name: str) -> float:
    """The only element of a tensor that may be left out. Raises InvalidArgument for another number of
    elements."""
    if value is None:
        return default
    if value.size != 1:
        raise InvalidArgument(f"{name} must have exactly one element", found=list(value.shape))
    return float(value.reshape(-1)[0])


def _count(value: Any, least: int, most: int, name: str) -> int:
    """An integer. Raises InvalidArgument where it is not within its limits."""
    number = scalar(value, name)
    if not least <= number <= most:
        raise InvalidArgument(f"{name} is out of range", found=number, expected=f"{least} to {most}")
    return number


def _length(max_length: Any, start: int) -> int:
    length = _count(max_length, 1, min(_LONGEST, current().max_loop_trips), "max_length")
    if length <= start:
        raise InvalidArgument(f"max_length ({length}) shall be greater than input sequence length ({start})",
                              cure="ask for a larger max_length: it counts the prompt's tokens too")
    return length


def _prompts(input_ids: np.ndarray) -> tuple[int, int]:
    if input_ids.ndim != 2 or 0 in input_ids.shape:
        raise InvalidArgument("input_ids shall have 2 dimensions and hold tokens",
                              found=list(input_ids.shape), expected="[batch, length]")
    batch, length = input_ids.shape
    return batch, length


def _rules(vocab: int, start: int, batch: int, beams: int, eos: int, min_length: Any, repetition_penalty: Any,
           vocab_mask: Any, prefix_vocab_mask: Any, **more: Any) -> list[Rule]:
    """The rules that a node's inputs and attributes give."""
    return rules_of(start, eos, repetition_penalty=_number(repetition_penalty, 1, "repetition_penalty"),
                    min_length=int(_number(min_length, 0, "min_length")),
                    vocab_mask=mask_rows(vocab_mask, (vocab,), "vocab_mask"),
                    prefix_vocab_mask=mask_rows(prefix_vocab_mask, (batch, vocab), "prefix_vocab_mask",
                                                beams), **more)


def _vocab(logits: np.ndarray, vocab_size: int) -> int:
    """How many of the logits are tokens: a product may be wider than the vocabulary."""
    if vocab_size <= 0:
        return logits.shape[1]
    if vocab_size > logits.shape[1]:
        raise InvalidArgument("vocab_size is more than the decoder's logits have", found=vocab_size,
                              expected=f"at most {logits.shape[1]}")
    return vocab_size


def _write(decoder: Decoder, prompts: np.ndarray, length: int, rules_for: Rules,
           choose: Choose, vocab_size: int, pad: int, eos: int) -> np.ndarray:
    """Tokens of the choice of `choose` after each prompt [batch, start]: [batch, length]."""
    batch, start = prompts.shape
    sequences = np.full(bounded((batch, length), np.int32), pad, np.int32)
    sequences[:, :start] = prompts
    logits = decoder.start(1)
    vocab = _vocab(logits, vocab_size)
    rules, ended = rules_for(vocab), np.zeros(batch, bool)
    for at in range(start, length):
        if at > start:
            logits = decoder.step(sequences[:, :at], None)
        scores = logits[:, :vocab].astype(np.float32)
        apply(rules, scores, sequences[:, :at])
        tokens = choose(scores)
        ended |= tokens == eos
        sequences[:, at] = np.where(ended, pad, tokens)
        if ended.all():
            break
    return sequences


def _only_gpt2(model_type: int, operator: str) -> None:
    if model_type != GPT2:
        raise InvalidArgument(f"{operator} takes decoders alone", found=f"model_type {model_type}",
                              expected="0 (gpt2)", cure="BeamSearch with num_beams 1 takes the others")


@define(domain=MS, types={"input_ids": ("int32",)})
def GreedySearch(input_ids, max_length, min_length=None, repetition_penalty=None, vocab_mask=None,
                 prefix_vocab_mask=None, attention_mask=None, *, decoder: Body,
                 init_decoder: Body = None, encoder: Body = None, decoder_start_token_id: int = -1,
                 eos_token_id: int, pad_token_id: int, model_type: int = 0, no_repeat_ngram_size: int = 0,
                 vocab_size: int = -1):
    """The most likely token after each prompt [batch, start], again and again: [batch, max_length]"""
    _only_gpt2(model_type, "GreedySearch")
    batch, start = _prompts(input_ids)
    length = _length(max_length, start)

    def rules(vocab: int) -> list[Rule]:
        return _rules(vocab, start, batch, 1, eos_token_id, min_length, repetition_penalty,
                      vocab_mask, prefix_vocab_mask, no_repeat_ngram_size=no_repeat_ngram_size)
    return _write(Gpt(decoder, init_decoder, input_ids, attention_mask, pad_token_id), input_ids, length,
                  rules, lambda scores: scores.argmax(1).astype(np.int32), vocab_size, pad_token_id,
                  eos_token_id)


@define(domain=MS, types={"input_ids": ("int32",)}, outputs=None)
def Sampling(input_ids, max_length, min_length=None, repetition_penalty=None, vocab_mask=None,
             prefix_vocab_mask=None, attention_mask=None, presence_mask=None, seed=None, *, decoder: Body,
             init_decoder: Body = None, encoder: Body = None, decoder_start_token_id: int = -1,
             eos_token_id: int, pad_token_id: int, model_type: int = 0, no_repeat_ngram_size: int = 0,
             vocab_size: int = -1, temperature: float = 1.0, top_p: float = 0.0, filter_value: float = -1e20,
             min_tokens_to_keep: int = 0, presence_penalty: float = 0.0, custom: int = 0, n_outputs: int):
    """A token drawn by its probability, among those that `top_p` leaves, again and again:
    [batch, max_length]; and the scores that each was drawn by. A seed gives the tokens that it gives in
    onnxruntime, but that its CPU kernel heeds a presence mask for the first token of the first row only"""
    _only_gpt2(model_type, "Sampling")
    batch, start = _prompts(input_ids)
    length = _length(max_length, start)
    draws = Draws(0 if seed is None else _count(seed, 0, (1 << 31) - 1, "seed"))
    kept = _Kept(length - start if n_outputs > 1 else 0)

    def rules(vocab: int) -> list[Rule]:
        return _rules(vocab, start, batch, 1, eos_token_id, min_length, repetition_penalty,
                      vocab_mask, prefix_vocab_mask, no_repeat_ngram_size=no_repeat_ngram_size,
                      temperature=temperature,
                      presence_mask=mask_rows(presence_mask, (batch, vocab), "presence_mask"),
                      presence_penalty=presence_penalty)

    def choose(scores: np.ndarray) -> np.ndarray:
        filtered(scores, top_p, min_tokens_to_keep, filter_value, bool(custom))
        kept.add(scores)
        return draws.tokens(scores)
    sequences = _write(Gpt(decoder, init_decoder, input_ids, attention_mask, pad_token_id), input_ids,
                       length, rules, choose, vocab_size, pad_token_id, eos_token_id)
    return (sequences, kept.all)[:n_outputs]


class _Kept:
    """The scores of each of `steps`, stacked; zeros for steps that are not made. Without steps, nothing."""

    def __init__(self, steps: int) -> None:
        self.steps, self.made = steps, 0
        self.all: np.ndarray | None = None

    def add(self, scores: np.ndarray) -> None:
        if not self.steps:
            return
        if self.all is None:
            self.all = np.zeros(bounded((self.steps, *scores.shape), np.float32), np.float32)
        self.all[self.made] = scores
        self.made += 1


def _beam_search(decoder: Decoder, prompts: np.ndarray, beams: Beams, length: int, returned: int,
                 rules_for: Rules, vocab_size: int, n_outputs: int) -> tuple[Any, ...]:
    """The sequences of the beams behind `prompts` [batch, start], their scores, and the summed scores of all
    tokens at each step."""
    batch, start = prompts.shape
    sequences = np.empty(bounded((len(beams.scores), length), np.int32), np.int32)
    sequences[:, :start] = np.repeat(prompts, beams.width, 0)
    logits = decoder.start(beams.width)
    vocab = _vocab(logits, vocab_size)
    rules, kept = rules_for(vocab), _Kept(length - start if n_outputs > 2 else 0)
    order: np.ndarray | None = None
    for at in range(start, length):
        if at > start:
            logits = decoder.step(sequences[:, :at], order)
        scores = log_softmax(logits[:, :vocab].astype(np.float32, copy=False))
        apply(rules, scores, sequences[:, :at])
        scores += beams.scores[:, None]
        kept.add(scores.reshape(batch, beams.width, vocab))
        tokens, come = beams.step(scores, sequences[:, :at])
        order = None if beams.width == 1 or (come == np.arange(len(come))).all() else come
        sequences[:, :at] = sequences[come, :at]
        sequences[:, at] = tokens
        reached = at + 1
        if beams.done:
            break
    best, worth = beams.best(sequences[:, :reached], returned, length)
    return best, worth, kept.all


def _beams(batch: int, num_beams: Any, num_return_sequences: Any, length_penalty: Any, early: int, pad: int,
           eos: int) -> tuple[Beams, int]:
    width = _count(num_beams, 1, _MOST_BEAMS, "num_beams")
    returned = _count(num_return_sequences, 1, width, "num_return_sequences")
    return Beams(batch, width, _number(length_penalty, 1, "length_penalty"), bool(early), pad, eos), returned


def _model(model_type: int, input_ids: np.ndarray, mask: Any, prompt: Any, decoder: Body, first: Body,
           encoder: Body, begin: int, pad: int) -> tuple[Decoder, np.ndarray]:
    """The decoder of a type of model, and what sequences begin with [batch, start]."""
    if model_type == GPT2:
        _prompts(input_ids)
        return Gpt(decoder, first, input_ids, mask, pad), input_ids
    if model_type not in (T5, WHISPER):
        raise InvalidArgument("model_type is not known", found=model_type,
                              expected="0 (gpt2), 1 (t5) or 2 (whisper)")
    rank = 3 if model_type == WHISPER else 2
    if input_ids.ndim != rank or 0 in input_ids.shape:
        raise InvalidArgument(f"input_ids of an encoder shall have {rank} dimensions",
                              found=list(input_ids.shape))
    if prompt is None or model_type == T5:
        prompt = np.full((len(input_ids), 1), begin, np.int32)
    if prompt.ndim != 2 or len(prompt) != len(input_ids) or not prompt.shape[1]:
        raise InvalidArgument("decoder_input_ids shall be [batch, length]", found=list(prompt.shape),
                              expected=f"[{len(input_ids)}, length]")
    return EncoderDecoder(encoder, decoder, input_ids, mask, prompt, pad), prompt


@define(domain=MS, outputs=None, types={"input_ids": ("int32", "float", "float16")})
def BeamSearch(input_ids, max_length, min_length=None, num_beams=None, num_return_sequences=None,
               length_penalty=None, repetition_penalty=None, vocab_mask=None, prefix_vocab_mask=None,
               attention_mask=None, decoder_input_ids=None, logits_processor=None, *, decoder: Body,
               init_decoder: Body = None, encoder: Body = None, decoder_start_token_id: int = -1,
               eos_token_id: int, pad_token_id: int, model_type: int = 0, no_repeat_ngram_size: int = 0,
               early_stopping: int = 0, vocab_size: int = -1, n_outputs: int):
    """The likeliest sequences [batch, num_return_sequences, max_length] that `num_beams` at a time find,
    their scores, and the scores of every token at each step"""
    model, prompts = _model(model_type, input_ids, attention_mask, decoder_input_ids, decoder, init_decoder,
                            encoder, decoder_start_token_id, pad_token_id)
    batch, start = prompts.shape
    length = _length(max_length, start)
    beams, returned = _beams(batch, num_beams, num_return_sequences, length_penalty, early_stopping,
                             pad_token_id, eos_token_id)

    def rules(vocab: int) -> list[Rule]:
        return _rules(vocab, start, batch, beams.width, eos_token_id, min_length, repetition_penalty,
                      vocab_mask, prefix_vocab_mask, no_repeat_ngram_size=no_repeat_ngram_size)
    return _beam_search(model, prompts, beams, length, returned, rules, vocab_size, n_outputs)[:n_outputs]


def _sequence_type(input_ids: Value, returned: int) -> list[Type]:
    batch = input_ids.shape[0] if input_ids.shape else None
    return [TensorType(ElementType.INT32, (batch, *(None,) * returned))]


@GreedySearch.infer_with
def _greedy_type(input_ids: Value, *_: Value, **__: Any) -> list[Type]:
    return _sequence_type(input_ids, 1)


@Sampling.infer_with
def _sampling_type(input_ids: Value, *_: Value, **__: Any) -> list[Type]:
    return [*_sequence_type(input_ids, 1), TensorType(ElementType.FLOAT, (None,) * 3)]


@BeamSearch.infer_with
def _beam_types(input_ids: Value, *_: Value, **__: Any) -> list[Type]:
    return [*_sequence_type(input_ids, 2), TensorType(ElementType.FLOAT, (None,) * 2),
            TensorType(ElementType.FLOAT, (None,) * 4)]


@define(domain=MS, outputs=None, types={"input_ids": ("int32", "float", "float16")})
def WhisperBeamSearch(input_ids, max_length, min_length=None, num_beams=None, num_return_sequences=None,
                      length_penalty=None, repetition_penalty=None, vocab_mask=None, prefix_vocab_mask=None,
                      attention_mask=None, decoder_input_ids=None, logits_processor=None,
                      cross_qk_layer_head=None, extra_decoding_ids=None, temperature=None, *, decoder: Body,
                      init_decoder: Body = None, encoder: Body = None, decoder_start_token_id: int = -1,
                      eos_token_id: int, pad_token_id: int, model_type: int = 2,
                      no_repeat_ngram_size: int = 0, early_stopping: int = 0, vocab_size: int = -1,
                      decoder_output_cross_qk: int = 0, translate_token_id: int = -1,
                      transcribe_token_id: int = -1, start_of_lm_token_id: int = -1,
                      no_speech_token_id: int = -1, no_timestamps_token_id: int = -1,
                      beginning_timestamp_token_id: int = -1, n_outputs: int):
    """BeamSearch over speech, `logits_processor` 1 with timestamps by Whisper's rule"""
    if n_outputs > 3 or extra_decoding_ids is not None:
        raise InvalidArgument("cross_qk, non_speech_probs and extra_decoding_ids are not supported",
                              cure="leave them out: on a CPU onnxruntime gives no values either")
    model, prompts = _model(model_type, input_ids, attention_mask, decoder_input_ids, decoder, init_decoder,
                            encoder, decoder_start_token_id, pad_token_id)
    batch, start = prompts.shape
    length = _length(max_length, start)
    beams, returned = _beams(batch, num_beams, num_return_sequences, length_penalty, early_stopping,
                             pad_token_id, eos_token_id)

    def rules(vocab: int) -> list[Rule]:
        made = _rules(vocab, start, batch, beams.width, eos_token_id, min_length, repetition_penalty,
                      vocab_mask, prefix_vocab_mask, no_repeat_ngram_size=no_repeat_ngram_size,
                      temperature=_number(temperature, 1, "temperature"))
        if logits_processor is not None and scalar(logits_processor, "logits_processor") == 1:
            made.append(Timestamps(_count(np.array(beginning_timestamp_token_id), 0, vocab - 1,
                                          "beginning_timestamp_token_id"), eos_token_id,
                                   (no_timestamps_token_id, start_of_lm_token_id),
                                   (decoder_start_token_id, translate_token_id, transcribe_token_id)))
        return made
    return _beam_search(model, prompts, beams, length, returned, rules, vocab_size, n_outputs)[:n_outputs]


WhisperBeamSearch.infer_with(_beam_types)
