"""GPTQ: rows of a weight are rounded one after another, and what each errs is made up for by those behind it.

In: a weight (K, N) and the second moment (K, K) of what it is multiplied with. Out: `Blockwise`. The
invariant: on the data of that moment no output channel errs more than with plain rounding.

Frantar, Ashkboos, Hoefler and Alistarh, "GPTQ: Accurate Post-Training Quantization for Generative Pre-trained
Transformers", 2022.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx

from ...records import dataclass
from ..refused import Failed, InvalidValue
from ..weights.blockwise import Blockwise, quantized

_log = logging.getLogger(__name__)
_SHRINKS = np.linspace(1.0, 0.21, 80, dtype=np.float32)
_ERROR_NORM = 2.4
_ROOM = 1 << 30
"""Bytes of second moments that are gathered in one pass over the data."""


@dataclass(frozen=True)
class Settings:
    """How rows are rounded. `percdamp`: what is added to the moment's diagonal, of its mean; `blocksize`:
    rows after which those behind are corrected; `actorder`: rows that matter most first; `mse`: ranges
    narrowed to where they err least; `perchannel`: a range for each column."""

    percdamp: float = 0.01
    blocksize: int = 128
    actorder: bool = False
    mse: bool = False
    perchannel: bool = True


DEFAULTS = Settings()


class Moments:
    """The mean of x xᵀ over the rows x that were added, double."""

    def __init__(self, size: int) -> None:
        self.value, self.count = np.zeros((size, size)), 0

    def add(self, rows: np.ndarray) -> None:
        """`rows`: floats (..., K). Raises: InvalidValue where one is not finite."""
        rows = rows.reshape(-1, rows.shape[-1]).astype(np.float32, copy=False)
        if not np.isfinite(rows).all():
            raise InvalidValue("the calibration data give activations that are not finite",
                               cure="correct the data, or leave the node out by nodes_to_exclude")
        if len(rows):
            self.value *= self.count / (self.count + len(rows))
            self.count += len(rows)
            self.value += (rows.T @ rows) / self.count


def second_moments(model: onnx.ModelProto, watched: Mapping[str, int], feeds: Sequence[Mapping[str, Any]],
                   providers: Sequence[Any] | None = None) -> Iterator[dict[str, Moments]]:
    """The moments of the values `watched`, names with their last dimensions, over runs with all `feeds`.

    They come in parts that fit into _ROOM together, each from a pass of its own over the data; a run's values
    are added up as soon as they are computed, and are not held.
    """
    for names in _parts(watched):
        found = {name: Moments(watched[name]) for name in names}
        session = _session(model, names, providers)

        def see(name: str, array: Any, found: dict[str, Moments] = found) -> None:
            if name in found:
                found[name].add(np.asarray(array))

        with session.watch(see):
            for feed in feeds:
                session.run(None, dict(feed))
        for name in (name for name in names if not found[name].count):
            _log.warning("no run showed %s: the weights it is multiplied with get the nearest codes", name)
        yield found


def _parts(watched: Mapping[str, int]) -> Iterator[list[str]]:
    part, room = list[str](), 0
    for name, size in watched.items():
        if part and room + 8 * size * size > _ROOM:
            yield part
            part, room = [], 0
        part.append(name)
        room += 8 * size * size
    if part:
        yield part


def _session(model: onnx.ModelProto, names: Sequence[str], providers: Sequence[Any] | None) -> Any:
    """A session in which nothing is optimized away and that can be watched for the values `names`."""
    from ... import GraphOptimizationLevel, InferenceSession, SessionOptions

    options = SessionOptions()
    options.graph_optimization_level = GraphOptimizationLevel.ORT_DISABLE_ALL
    options.add_session_config_entry("orthrus.watch", json.dumps(list(names)))
    return InferenceSession(model, options, providers=list(providers or ["CPUExecutionProvider"]))


def optimally_rounded(weight: np.ndarray, moment: np.ndarray, bits: int, block_size: int, symmetric: bool,
                      settings: Settings = DEFAULTS) -> Blockwise:
    """The matrix (K, N) of finite floats, rounded with `moment` (K, K) in mind; each column is the better one
    of GPTQ's and of the nearest codes. Raises: Failed where the moment has no inverse."""
    made = _Rounding(weight, moment, bits, block_size, symmetric, settings).run()
    plain = quantized(weight, bits, block_size, symmetric)
    worse = _loss(weight, made, moment) > _loss(weight, plain, moment)
    if worse.any() and (plain.zero_points is None) == (made.zero_points is None):
        for mine, other in ((made.codes, plain.codes), (made.scales, plain.scales),
                            (made.zero_points, plain.zero_points)):
            if mine is not None and other is not None:
                mine[:, worse] = other[:, worse]
    return made


def _loss(weight: np.ndarray, made: Blockwise, moment: np.ndarray) -> np.ndarray:
    """The mean squared error of each column's products."""
    error = (weight.astype(np.float32) - made.dequantized()).astype(np.float64)
    loss: np.ndarray = np.einsum("kn,kn->n", error, moment @ error)
    return loss


class _Rounding:
    """One weight on its way: `left` is what the rows that are not rounded yet should be."""

    def __init__(self, weight: np.ndarray, moment: np.ndarray, bits: int, block_size: int, symmetric: bool,
                 settings: Settings) -> None:
        rows, columns = weight.shape
        blocks = -(-rows // block_size)
        self.left = weight.astype(np.float32)
        self.block_size, self.symmetric, self.settings = block_size, symmetric, settings
        self.bits, self.top = bits, np.float32((1 << bits) - 1)
        self.codes = np.zeros((blocks * block_size, columns), np.uint8)
        self.scales = np.empty((blocks, columns), weight.dtype)
        self.zeros = np.full((blocks, columns), 1 << (bits - 1), np.uint8)
        self.order = np.arange(rows)
        if settings.actorder:
            self.order = np.argsort(-np.diag(moment), kind="stable")
        self.factor = _factor(moment, self.order, settings.percdamp)

    def run(self) -> Blockwise:
        static = self.settings.actorder
        if static:
            for block in range(len(self.scales)):
                self._choose(block)
        step = -(-self.settings.blocksize // self.block_size) * self.block_size
        rows = len(self.order)
        for start in range(0, rows, step):
            stop = min(start + step, rows)
            chunk = self.order[start:stop]
            errors = self._round(chunk, self.factor[start:stop, start:stop], static)
            self.left[self.order[stop:]] -= self.factor[start:stop, stop:].T @ errors
        return Blockwise(self.codes, self.scales, None if self.symmetric else self.zeros, rows, self.bits,
                         self.block_size)

    def _round(self, chunk: np.ndarray, factor: np.ndarray, static: bool) -> np.ndarray:
        """Round the rows of `chunk`, each corrected by those before it; their errors for the rows behind."""
        left, errors = self.left[chunk], np.empty((len(chunk), self.left.shape[1]), np.float32)
        for i, row in enumerate(chunk):
            block = row // self.block_size
            if not static and row % self.block_size == 0:
                self.left[chunk[i:]] = left[i:]
                self._choose(block)
            scale, zero = self.scales[block].astype(np.float32), self.zeros[block].astype(np.float32)
            code = np.clip(np.rint(left[i] / scale) + zero, 0, self.top)
            self.codes[row] = code
            errors[i] = (left[i] - (code - zero) * scale) / factor[i, i]
            left[i + 1:] -= np.outer(factor[i, i + 1:], errors[i])
        return errors

    def _choose(self, block: int) -> None:
        """The block's scales and zero points for what its rows should be."""
        values = self.left[block * self.block_size:(block + 1) * self.block_size]
        if not self.settings.perchannel:
            values = values.reshape(-1, 1)
        low, high = np.minimum(values.min(0), 0), np.maximum(values.max(0), 0)
        if self.symmetric:
            high = np.maximum(-low, high)
            low = -high
        scale, zero = self._grid(low, high)
        if self.settings.mse:
            scale, zero = self._narrowed(values, low, high)
        self.scales[block], self.zeros[block] = scale, zero

    def _grid(self, low: np.ndarray, high: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        scale = ((high - low) / self.top).astype(self.scales.dtype).astype(np.float32)
        scale = np.where(scale > 0, scale, np.float32(1))
        if self.symmetric:
            return scale, np.full_like(scale, 1 << (self.bits - 1))
        return scale, np.clip(np.rint(-low / scale), 0, self.top)

    def _narrowed(self, values: np.ndarray, low: np.ndarray, high: np.ndarray
                  ) -> tuple[np.ndarray, np.ndarray]:
        """Of some shares of the range the one with the least error."""
        least = np.full(low.shape, np.inf, np.float32)
        best = self._grid(low, high)
        for share in _SHRINKS:
            scale, zero = self._grid(share * low, share * high)
            codes = np.clip(np.rint(values / scale) + zero, 0, self.top)
            error = (np.abs((codes - zero) * scale - values) ** np.float32(_ERROR_NORM)).sum(0)
            better = error < least
            least = np.where(better, error, least)
            best = np.where(better, scale, best[0]), np.where(better, zero, best[1])
        return best


def _factor(moment: np.ndarray, order: np.ndarray, percdamp: float) -> np.ndarray:
    """The upper Cholesky factor of the inverse of the moment, its rows in `order` and its diagonal raised."""
    moment = moment[np.ix_(order, order)]
    diagonal = np.arange(len(order))
    dead = moment[diagonal, diagonal] == 0
    moment[dead, dead] = 1
    moment[diagonal, diagonal] += percdamp * np.mean(moment[diagonal, diagonal])
    try:
        factor = np.linalg.cholesky(np.linalg.inv(moment)).T
    except np.linalg.LinAlgError as error:
        raise Failed("the second moment of the activations has no inverse", found=error,
                     cure="give more calibration data, or a larger percdamp") from error
    return np.ascontiguousarray(factor, np.float32)
