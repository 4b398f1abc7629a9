"""The loop: a prompt in, token after token out.

In: a decoder and prompts, as text with a tokenizer or as tokens. Out: tokens as they come (`stream`) or all
of them (`generate`). A row ends with a token of `stop`, which is its last, or after `max_new_tokens`.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..errors import InvalidArgument
from ..records import dataclass
from .beams import Beams
from .choose import chooser
from .decoder import Decoder


class Token(NamedTuple):
    """A token of row `row`; `text`: what it adds to the row's text, "" without a tokenizer."""

    row: int
    id: int
    text: str


@dataclass(frozen=True)
class Generated:
    """What was generated for each prompt: `tokens`, without the prompt's; `texts`, without a tokenizer empty;
    `scores`, with beams the score of each sequence. `seconds`: the time taken, `run_seconds` of it in the
    session."""

    tokens: list[list[int]]
    texts: list[str]
    scores: list[float]
    seconds: float
    run_seconds: float

    @property
    def tokens_per_second(self) -> float:
        return sum(map(len, self.tokens)) / self.seconds if self.seconds else 0.0


def generate(model: Any, prompts: Any, *, tokenizer: Any = None, max_new_tokens: int = 64,
             stop: int | Iterable[int] | None = None, temperature: float = 0.0, top_k: int = 0,
             top_p: float = 1.0, seed: int | None = None, beams: int = 1, length_penalty: float = 1.0,
             start: int | None = None, **decoder: Any) -> Generated:
    """Tokens after one prompt or several.

    `model`: a `Decoder`, or what makes one, with its keyword arguments in `decoder`. `prompts`: a text,
    tokens, or a sequence of either; rows may have different lengths. `tokenizer`: anything with `encode` and
    `decode`. `stop`: tokens that end a row; by default the tokenizer's end. `temperature`, `top_k`, `top_p`,
    `seed`: see `chooser`. `beams`: how many sequences are followed, instead of drawing one. `start`: what an
    encoder-decoder's answer begins with. Raises InvalidArgument for a model that is no decoder and for a
    value that does not fit.
    """
    began = time.perf_counter()
    ready = _decoder(model, decoder)
    before, ended = ready.seconds, _stop(stop, tokenizer)
    rows = _rows(prompts, tokenizer)
    if beams < 1 or (beams > 1 and temperature):
        raise InvalidArgument("beams does not fit", found=f"beams {beams}, temperature {temperature}",
                              expected="1 or more, and a temperature of 0 for more than one")
    scores: list[float] = []
    if beams == 1:
        tokens: list[list[int]] = [[] for _ in rows]
        choose = chooser(temperature, top_k, top_p, seed)
        for step in _steps(ready, rows, max_new_tokens, ended, choose, start):
            for row, token in step:
                tokens[row].append(token)
    else:
        found = _search(ready, rows, max_new_tokens, Beams(len(rows), beams, ended, length_penalty), start)
        scores, tokens = [score for score, _ in found], [row for _, row in found]
    texts = [] if tokenizer is None else [_text(tokenizer, row, ended) for row in tokens]
    return Generated(tokens, texts, scores, time.perf_counter() - began, ready.seconds - before)


def stream(model: Any, prompts: Any, *, tokenizer: Any = None, max_new_tokens: int = 64,
           stop: int | Iterable[int] | None = None, temperature: float = 0.0, top_k: int = 0,
           top_p: float = 1.0, seed: int | None = None, start: int | None = None, **decoder: Any
           ) -> Iterator[Token]:
    """The tokens of `generate` as they come, those of a step in the order of their rows. What is wrong with
    an argument is raised at once."""
    ready, ended, rows = _decoder(model, decoder), _stop(stop, tokenizer), _rows(prompts, tokenizer)
    steps = _steps(ready, rows, max_new_tokens, ended, chooser(temperature, top_k, top_p, seed), start)
    return _told(steps, tokenizer, len(rows), ended)


def _told(steps: Iterator[list[tuple[int, int]]], tokenizer: Any, rows: int, stop: frozenset[int]
          ) -> Iterator[Token]:
    """Each token with the text that it adds; a character that is not whole yet comes with a later token."""
    tokens: list[list[int]] = [[] for _ in range(rows)]
    told = [""] * rows
    for step in steps:
        for row, token in step:
            tokens[row].append(token)
            added = ""
            if tokenizer is not None:
                text = _text(tokenizer, tokens[row], stop)
                if not text.endswith("\ufffd"):
                    added, told[row] = text[len(told[row]):], text
            yield Token(row, token, added)


def _text(tokenizer: Any, tokens: list[int], stop: frozenset[int]) -> str:
    return str(tokenizer.decode(tokens[:-1] if tokens and tokens[-1] in stop else tokens))


def _decoder(model: Any, options: dict[str, Any]) -> Decoder:
    if not isinstance(model, Decoder):
        return Decoder(model, **options)
    if options:
        raise InvalidArgument("these are for a decoder that is yet to be made", found=", ".join(options),
                              cure="give them to Decoder")
    return model


def _stop(stop: int | Iterable[int] | None, tokenizer: Any) -> frozenset[int]:
    if stop is None:
        stop = getattr(tokenizer, "eos_token_id", None)
    return frozenset(() if stop is None else (stop,) if isinstance(stop, int) else map(int, stop))


def _rows(prompts: Any, tokenizer: Any) -> list[list[int]]:
    """The tokens of each prompt. Raises InvalidArgument for text without a tokenizer and for an empty one."""
    one = isinstance(prompts, str) or (len(prompts) > 0 and isinstance(prompts[0], int | np.integer))
    rows: list[list[int]] = []
    for prompt in [prompts] if one else prompts:
        if isinstance(prompt, str):
            if tokenizer is None:
                raise InvalidArgument("a prompt is text and there is no tokenizer", found=prompt[:40],
                                      cure="give tokenizer=, with encode and decode, or tokens")
            prompt = tokenizer.encode(prompt)
        rows.append([int(token) for token in getattr(prompt, "ids", prompt)])
    if not rows or not all(rows):
        raise InvalidArgument("a prompt has no tokens", found=f"{len(rows)} prompts",
                              cure="begin with the model's own first token")
    return rows


def _padded(rows: Sequence[Sequence[int]]) -> tuple[np.ndarray, np.ndarray]:
    """Tokens [rows, length] with padding on the left, and the mask that says where."""
    length = max(map(len, rows))
    tokens, mask = (np.zeros((len(rows), length), np.int64) for _ in range(2))
    for i, row in enumerate(rows):
        tokens[i, length - len(row):], mask[i, length - len(row):] = row, 1
    return tokens, mask


def _first(decoder: Decoder, rows: list[list[int]], start: int | None) -> np.ndarray:
    """The logits after the prompts."""
    tokens, mask = _padded(rows)
    if decoder.encoder is not None:
        if start is None:
            raise InvalidArgument("an encoder-decoder's answer begins with a token of its own",
                                  cure="give start=, the model's decoder_start_token_id")
        decoder.encode(tokens, mask)
        tokens, mask = np.full((len(rows), 1), start), np.ones((len(rows), 1), np.int64)
    return decoder.start(tokens, mask)


def _steps(decoder: Decoder, rows: list[list[int]], count: int, stop: frozenset[int], choose: Any,
           start: int | None) -> Iterator[list[tuple[int, int]]]:
    """What each step writes: row and token of those that have not ended."""
    if count < 1:
        return
    going, logits = np.ones(len(rows), bool), _first(decoder, rows, start)
    for left in reversed(range(count)):
        tokens = choose(logits)
        written = [(row, int(tokens[row])) for row in np.flatnonzero(going).tolist()]
        yield written
        for row, token in written:
            going[row] = token not in stop
        if not left or not going.any():
            return
        logits = decoder.step(tokens)


def _search(decoder: Decoder, rows: list[list[int]], count: int, beams: Beams, start: int | None
            ) -> list[tuple[float, list[int]]]:
    """The best sequence of each row and its score."""
    logits = np.repeat(_first(decoder, rows, start), beams.width, 0)
    decoder.repeat(beams.width)
    for at in range(count):
        tokens, come = beams.step(logits)
        if beams.done.all() or at == count - 1:
            break
        logits = decoder.step(tokens, None if (come == np.arange(len(come))).all() else come)
    return beams.best()
