"""Histograms of tensors, counted array by array, and the ranges that follow from them.

In: arrays by the tensor's name. Out: (lowest, highest) and counts, or moments. The invariant: counts depend
on all arrays of one collection, but not on how these were divided into arrays.
"""

from __future__ import annotations

import logging
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ..refused import InvalidType, InvalidValue
from .counting import Counting
from .data import TensorData

log = logging.getLogger("orthrus")

Histogram = tuple[Any, ...]
"""Counts, edges, lowest and highest value; of signed values, the edges' magnitude behind these."""


def rel_entr(pk: np.ndarray, qk: np.ndarray) -> np.ndarray:
    """Relative entropy by element, as `scipy.special.rel_entr`: `pk * log(pk / qk)`, 0 where `pk` is 0 and
    `qk` is not negative, infinite elsewhere."""
    with np.errstate(divide="ignore", invalid="ignore"):
        found = np.asarray(pk * np.log(pk / qk), pk.dtype)
    found[(pk == 0) & (qk >= 0)] = 0
    found[(pk <= 0) | (qk <= 0)] = np.inf
    return found


def entropy(pk: np.ndarray, qk: np.ndarray, base: float | None = None, axis: int = 0) -> np.ndarray:
    """Relative entropy of two distributions, which need not add up to 1, along `axis`, in float32; as
    `scipy.stats.entropy`. Raises ValueError without `qk`, or for a base that is not positive."""
    if qk is None or (base is not None and base <= 0):
        raise InvalidValue("two distributions and a positive base are needed", found=f"base={base}")
    p = _normal(pk, axis)
    q = _normal(np.broadcast_arrays(p, np.asarray(qk).astype(np.float32))[1], axis)
    total = np.sum(rel_entr(p, q), axis=axis)
    if base is not None:
        total = total / np.log(base)
    made: np.ndarray = total.astype(p.dtype)
    return made


def _normal(counts: np.ndarray, axis: int) -> np.ndarray:
    """`counts` as float32 that add up to 1."""
    counts = np.asarray(counts).astype(np.float32)
    made: np.ndarray = counts / np.sum(counts, axis=axis, keepdims=True)
    return made


class Extent:
    """The lowest and the highest of some numbers, and their smallest magnitude where `magnitudes`; all 0
    before there were any."""

    def __init__(self, dtype: Any, magnitudes: bool = False) -> None:
        self.lowest = self.highest = self.nearest = np.array(0, dtype)
        self.magnitudes, self.empty = magnitudes, True

    @property
    def farthest(self) -> np.ndarray:
        """The largest magnitude."""
        return np.array(max(abs(self.lowest), abs(self.highest)), dtype=self.lowest.dtype)

    def add(self, array: np.ndarray) -> None:
        """Take further numbers into account, but for NaN."""
        if array.size:
            self.widen(np.nanmin(array), np.nanmax(array), array)

    def widen(self, lowest: Any, highest: Any, array: np.ndarray) -> None:
        """Take the numbers of `array` into account, which lie between these two, and hold them."""
        nearest = np.nanmin(np.absolute(array)) if self.magnitudes else lowest
        if self.empty:
            self.lowest, self.highest, self.nearest, self.empty = lowest, highest, nearest, False
            return
        self.lowest, self.highest = min(self.lowest, lowest), max(self.highest, highest)
        self.nearest = min(self.nearest, nearest)

    @classmethod
    def of(cls, arrays: Iterable[np.ndarray], magnitudes: bool = False) -> Extent:
        """That of all `arrays`, which are one at least and of one type."""
        made: Extent | None = None
        for array in arrays:
            made = made or cls(array.dtype, magnitudes)
            made.add(array)
        assert made is not None
        return made


class CalibrationDataCollector(ABC):
    """What arrays are given to, and what answers with ranges in the end."""

    @abstractmethod
    def collect(self, name_to_arr: Mapping[str, Any]) -> None:
        """Take an array, or a list of arrays, for each tensor."""

    @abstractmethod
    def compute_collection_result(self) -> dict[str, Any]:
        """What was found by now, by tensor."""


class HistogramCollector(CalibrationDataCollector):
    """Counts numbers by magnitude and sign, or by magnitude where `method` is "percentile" and `symmetric`.

    `method`: "entropy", "percentile" or "distribution". `num_bins`: of a tensor's first histogram, which
    grows with larger numbers. `num_quantized_bins`: of "entropy", what a histogram is compared with.
    `percentile`: of "percentile", the share in percent that stays inside. `scenario`: of "distribution",
    "same" or "p3" (the third root of the numbers).
    """

    def __init__(self, method: str, symmetric: bool, num_bins: int, num_quantized_bins: int,
                 percentile: float, scenario: str) -> None:
        self.histogram_dict: dict[str, Histogram] = {}
        self.method, self.symmetric = method, symmetric
        self.num_bins, self.num_quantized_bins = num_bins, num_quantized_bins
        self.percentile, self.scenario = percentile, scenario

    def get_histogram_dict(self) -> dict[str, Histogram]:
        """The histograms by tensor."""
        return self.histogram_dict

    @property
    def magnitudes(self) -> bool:
        """Whether signs are left out. Raises ValueError for a method there is not."""
        self._known(self.method)
        return self.method == "percentile" and self.symmetric

    def collect(self, name_to_arr: Mapping[str, Any]) -> None:
        if self.magnitudes:
            self.collect_absolute_value(name_to_arr)
        else:
            self.collect_value(name_to_arr)

    def collect_absolute_value(self, name_to_arr: Mapping[str, Any]) -> None:
        """Count magnitudes."""
        self._collect(name_to_arr, True)

    def collect_value(self, name_to_arr: Mapping[str, Any]) -> None:
        """Count numbers."""
        self._collect(name_to_arr, False)

    def _collect(self, name_to_arr: Mapping[str, Any], magnitudes: bool) -> None:
        for tensor, given in name_to_arr.items():
            arrays = _arrays(tensor, given)
            extent = Extent.of(arrays, magnitudes)
            counting = self.begin(tensor, extent)
            for array in arrays:
                counting.add(array)
            self.finish(tensor, extent, counting)

    def begin(self, tensor: str, extent: Extent) -> Counting:
        """What is to count the numbers of one collection, whose extent is known, and nothing yet. Of numbers
        so far apart that their type does not hold the distance only the extent is kept: it is the range.

        Raises ValueError where a number is infinite, which no histogram holds, and where the type has too few
        numbers for so many bins."""
        if not np.isfinite(extent.farthest):
            raise InvalidValue(f"tensor {tensor} has infinite values", node=tensor, expected="finite values",
                               found=f"between {extent.lowest} and {extent.highest}",
                               cure="calibrate with CalibrationMethod.MinMax, or leave its node out")
        old = self.histogram_dict.get(tensor)
        if extent.farthest > np.finfo(extent.farthest.dtype).max / 2 or (old and not len(old[0])):
            return Counting.none(extent.farthest)
        if extent.magnitudes:
            return self._by_magnitude(old, extent)
        if old is None:
            return Counting.uniform(self.num_bins, -extent.farthest, extent.farthest, extent.lowest.dtype)
        return _wider(old, extent.farthest, extent.lowest.dtype)

    def _by_magnitude(self, old: Histogram | None, extent: Extent) -> Counting:
        """Bins for magnitudes: what there is, with more of the same width where numbers are larger now."""
        dtype = extent.lowest.dtype
        if old is None:
            first, last = (0.0, 1.0) if extent.empty else (extent.nearest, extent.farthest)
            return Counting.uniform(self.num_bins, first, last, dtype, magnitudes=True)
        edges = old[1]
        if extent.farthest > edges[-1]:
            width = edges[1] - edges[0]
            edges = np.hstack((edges, np.arange(edges[-1] + width, extent.farthest + width, width)))
        return Counting(edges, dtype, magnitudes=True)

    def finish(self, tensor: str, extent: Extent, counting: Counting) -> None:
        """Add what was counted to the tensor's histogram."""
        old = self.histogram_dict.get(tensor)
        hist, edges = counting.counts, counting.edges
        lowest, highest = extent.lowest, extent.highest
        if old is not None:
            lowest, highest = min(old[2], lowest), max(old[3], highest)
            if len(hist):
                hist[counting.margin:counting.margin + len(old[0])] += old[0]
        if extent.magnitudes:
            self.histogram_dict[tensor] = hist, edges.astype(extent.lowest.dtype), lowest, highest
        else:
            self.histogram_dict[tensor] = hist, edges, lowest, highest, counting.reach

    def merge_histogram(self, old_histogram: Histogram, data_arr: np.ndarray, new_min: Any, new_max: Any,
                        new_threshold: Any) -> Histogram:
        """`old_histogram` with the numbers of `data_arr` counted too, which lie between `new_min` and
        `new_max`, and no farther from 0 than `new_threshold`."""
        counting = _wider(old_histogram, new_threshold, data_arr.dtype)
        counting.add(data_arr)
        hist, first = counting.counts, counting.margin
        hist[first:first + len(old_histogram[0])] += old_histogram[0]
        return (hist, counting.edges, min(old_histogram[2], new_min), max(old_histogram[3], new_max),
                counting.reach)

    def compute_collection_result(self) -> dict[str, Any]:
        """By tensor: (lowest, highest, counts, edges), or a `TensorData` of a distribution. Raises ValueError
        where nothing was collected, or an option cannot be."""
        if not self.histogram_dict:
            raise InvalidValue("Histogram has not been collected. Please run collect() first.")
        ways: dict[str, Callable[[], dict[str, Any]]] = {
            "entropy": self.compute_entropy, "percentile": self.compute_percentile,
            "distribution": self.compute_distribution}
        return ways[self._known(self.method)]()

    @staticmethod
    def _known(method: str) -> str:
        if method not in ("entropy", "percentile", "distribution"):
            raise InvalidValue("Only 'entropy', 'percentile' or 'distribution' methods are supported",
                               found=method)
        return method

    def compute_percentile(self) -> dict[str, tuple[Any, ...]]:
        """Ranges that hold `percentile` percent of the numbers, the rest cut on both sides alike."""
        if not 0 <= self.percentile <= 100:
            raise InvalidValue("Invalid percentile. Must be in range 0 <= percentile <= 100.",
                               found=self.percentile)
        return {tensor: self._shown(tensor, histogram, self._percentile(histogram))
                for tensor, histogram in self.histogram_dict.items()}

    def _percentile(self, histogram: Histogram) -> tuple[Any, Any]:
        hist, edges = histogram[:2]
        if not len(hist):
            return histogram[2:4]
        with np.errstate(invalid="ignore"):
            shares = np.cumsum(hist / hist.sum())
        if self.symmetric:
            limit = np.array(edges[np.searchsorted(shares, self.percentile / 100.0)], edges.dtype)
            return -limit, limit
        cut = (100.0 - self.percentile) / 200.0
        right, left = np.searchsorted(shares, 1.0 - cut), np.searchsorted(shares, cut)
        return np.array(edges[left], edges.dtype), np.array(edges[right], edges.dtype)

    def compute_entropy(self) -> dict[str, tuple[Any, ...]]:
        """Ranges whose quantized histogram differs least from the histogram."""
        return {tensor: self._shown(tensor, histogram, self._least_divergent(histogram,
                                                                             self.num_quantized_bins))
                for tensor, histogram in self.histogram_dict.items()}

    def compute_distribution(self) -> dict[str, TensorData]:
        """Average and standard deviation of the numbers, or of their third roots."""
        if self.num_bins < 512:
            raise InvalidValue("Invalid num_bins. Must be in range 512 <= num_bins.", found=self.num_bins)
        if self.scenario not in ("same", "p3"):
            raise InvalidValue("Invalid scenario. Must be in {'same', 'p3'}.", found=self.scenario)
        power = 1 if self.scenario == "same" else 1.0 / 3.0
        found = {}
        for tensor, (hist, edges, *_) in self.histogram_dict.items():
            if not len(hist):
                raise InvalidValue(f"tensor {tensor} has numbers too far apart for a distribution",
                                   node=tensor, cure="leave its node out by op_types_to_calibrate")
            average, deviation = self._avg_std(hist, edges, power)
            _plot(hist, edges)
            found[tensor] = TensorData(avg=average, std=deviation, hist=hist, hist_edges=edges,
                                       lowest=edges.min(), highest=edges.max())
        return found

    @staticmethod
    def _avg_std(hist: np.ndarray, hist_edges: np.ndarray, power: float = 1) -> tuple[Any, Any]:
        """Average and standard deviation of numbers that lie in the middles of their bins, raised to
        `power`, signs kept."""
        if power <= 0:
            raise InvalidValue(f"power={power} <= 0 is invalid.")
        centres, count = (hist_edges[:-1] + hist_edges[1:]) * 0.5, hist.sum()
        odd = int(power) == power and int(power) % 2 == 1
        if odd and power != 1:
            raised = centres ** power
            average = (hist * raised).sum() / count
            variance = (hist * (raised - average) ** 2).sum() / count
            return np.array(average, hist_edges.dtype), np.array(variance ** 0.5, hist_edges.dtype)
        if power != 1:
            with np.errstate(divide="ignore", invalid="ignore"):
                sign = np.abs(centres) / centres
            sign[~np.isfinite(sign)] = 1
            centres = np.abs(centres) ** power * sign
        average = (hist * centres).sum() / count
        variance = np.maximum((hist * centres ** 2).sum() / count - average ** 2, 0)
        return np.array(average, hist_edges.dtype), np.array(variance ** 0.5, hist_edges.dtype)

    def get_entropy_threshold(self, histogram: Histogram, num_quantized_bins: int) -> tuple[Any, Any]:
        """The range around 0 at whose ends a histogram may be cut, so that the rest, counted in so many bins,
        has the least relative entropy to it; within the numbers' own range. Raises ValueError where there are
        fewer bins."""
        return _inside(self._least_divergent(histogram, num_quantized_bins), histogram)

    def _least_divergent(self, histogram: Histogram, bins: int) -> tuple[Any, Any]:
        hist, edges = histogram[:2]
        if not len(hist):
            return histogram[2:4]
        middle, half = hist.size // 2, bins // 2
        if hist.size < bins:
            raise InvalidValue("a histogram has fewer bins than it is to be quantized to", found=hist.size,
                               expected=f"num_bins of {bins} or more", cure="raise num_bins")
        before = np.concatenate(([0], np.cumsum(hist)))
        divergences, ranges = [], []
        for reach in range(half, middle + 1):
            start, end = middle - reach, min(middle + reach + 1, hist.size)
            ranges.append((edges[start], edges[end]))
            divergences.append(_divergence(hist[start:end], before[start], before[-1] - before[end], bins,
                                           edges.dtype))
        return ranges[int(np.argmin(divergences))]

    @staticmethod
    def _shown(tensor: str, histogram: Histogram, found: tuple[Any, Any]) -> tuple[Any, ...]:
        """A range inside that of the numbers, and its histogram."""
        _plot(*histogram[:2])
        lowest, highest = _inside(found, histogram)
        log.debug("%s: between %s and %s", tensor, lowest, highest)
        return lowest, highest, *histogram[:2]


def _arrays(tensor: str, given: Any) -> Sequence[np.ndarray]:
    """What was given for a tensor as arrays. Raises ValueError for anything else, for arrays of several
    types, and for numbers of other types than float32 and float16."""
    arrays = given if isinstance(given, list | tuple) else [given]
    if not arrays or not all(isinstance(array, np.ndarray) for array in arrays):
        raise InvalidType(f"Unexpected type {type(given)} for tensor={tensor!r}",
                          expected="an array, or a list of arrays", cure="pass numpy arrays")
    dtypes = {array.dtype for array in arrays}
    if len(dtypes) > 1 or not dtypes <= {np.dtype(np.float32), np.dtype(np.float16)}:
        raise InvalidType(f"tensor {tensor!r} cannot be counted", expected="float32 or float16",
                          found=", ".join(sorted(map(str, dtypes))))
    return arrays


def _wider(old: Histogram, threshold: Any, dtype: Any) -> Counting:
    """The bins of a histogram, with more of the same width on both sides where numbers lie farther from 0
    now."""
    hist, edges, _, _, reach = old
    if threshold <= reach:
        return Counting.uniform(len(hist), -reach, reach, dtype, edges=edges)
    if reach == 0:
        return Counting.uniform(len(hist), -threshold, threshold, dtype)
    stride = 2 * reach / len(hist)
    margin = int((threshold - reach) // stride + 1)
    threshold = margin * stride + reach
    return Counting.uniform(len(hist) + 2 * margin, -threshold, threshold, dtype, margin=margin)


def _inside(found: tuple[Any, Any], histogram: Histogram) -> tuple[Any, Any]:
    """A range, no wider than that of the numbers."""
    lowest, highest = found
    return (histogram[2] if lowest < histogram[2] else lowest,
            histogram[3] if highest > histogram[3] else highest)


def _divergence(inside: np.ndarray, left: int, right: int, bins: int, dtype: Any) -> np.ndarray:
    """The relative entropy between counts, with what was cut off `left` and `right` in the outermost bins,
    and the same in so many bins; infinite where nothing was counted."""
    from ..quant_utils import smooth_distribution

    whole = inside.copy()
    whole[0] += left
    whole[-1] += right
    width = inside.size // bins
    grouped = inside[:width * bins].reshape(bins, width)
    totals, filled = grouped.sum(1), (whole[:width * bins].reshape(bins, width) != 0).sum(1)
    totals[-1] += inside[width * bins:].sum()
    coarse = np.zeros_like(whole)
    level = np.where(filled != 0, totals / np.maximum(filled, 1), 0).astype(coarse.dtype)
    coarse[:width * bins] = np.repeat(level, width)
    p, q = smooth_distribution(whole), smooth_distribution(coarse)
    return np.array(np.inf if p is None or q is None else entropy(p, q), dtype)


def _plot(hist: np.ndarray, edges: np.ndarray) -> None:
    """Draw a histogram where QUANTIZATION_DEBUG asks for it."""
    if os.environ.get("QUANTIZATION_DEBUG") == "1":
        from ..quant_utils import apply_plot

        apply_plot(hist, edges)
