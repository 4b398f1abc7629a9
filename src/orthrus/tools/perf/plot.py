"""Distributions of run times as a picture: a histogram, and below it the share of runs that took no longer.

In: seconds by name. Out: a file in a format matplotlib writes. The time axis ends where nearly all runs have
ended; how many lie beyond is written on it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .latency import PERCENTILES, summarize

COLOURS = ("#0072b2", "#d55e00")
BEYOND = 0.999
"""Share of the runs that the time axis shows."""
BINS = 80
WIDE = 4.0
"""From which ratio of its ends on the time axis is logarithmic."""


def figure_class() -> Any:
    """matplotlib's Figure, which draws without a display. Raises ImportError where it is not installed."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("plots are drawn by matplotlib: pip install 'orthrus-runtime[plot]'") from error
    return Figure


def check(path: Path) -> None:
    """Raises what `plot` would raise for `path`: ImportError without matplotlib, ValueError for a format it
    does not write, OSError for a folder that is not there."""
    kinds = figure_class()().canvas.get_supported_filetypes()
    if path.suffix[1:].lower() not in kinds:
        raise ValueError(f"{path}: a plot's name ends in one of .{', .'.join(sorted(kinds))}")
    if not path.absolute().parent.is_dir():
        raise FileNotFoundError(f"{path}: there is no folder {path.absolute().parent}")


def plot(path: Path, times: Mapping[str, Sequence[float] | np.ndarray], title: str) -> None:
    """Draw the times of one or two engines, in seconds, into `path`. Raises as `check`, ValueError for no
    times."""
    check(path)
    unit, factor = _unit(min(float(np.median(each)) for each in times.values()))
    spans = {name: factor * np.sort(np.asarray(each, np.float64)) for name, each in times.items()}
    least = min(float(span[0]) for span in spans.values())
    most = max(float(np.quantile(span, BEYOND)) for span in spans.values())
    most = max(most, least * 1.01)
    wide = most > WIDE * least
    bins = min(BINS, max(10, *(len(span) // 5 for span in spans.values()), 10))
    edges = np.geomspace(least, most, bins + 1) if wide else np.linspace(least, most, bins + 1)
    figure = figure_class()(figsize=(9, 6.5), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True)
    for (name, span), colour in zip(spans.items(), COLOURS, strict=False):
        told = summarize(span)
        beyond = int((span > most).sum())
        label = f"{name}: {told.runs:,} runs" + (f", {beyond:,} beyond the axis" if beyond else "")
        weights = np.full(len(span), 100 / len(span))
        above.hist(span, edges, weights=weights, color=colour, alpha=0.55, label=label)
        above.axvline(told.median, color=colour, linestyle="--", linewidth=1)
        marks = "   ".join(f"{mark} {at:.4g}" for mark, at in told.percentiles.items())
        below.step(span, weights.cumsum(), where="post", color=colour, label=f"{marks} {unit}")
        for mark, at in told.percentiles.items():
            below.plot([at], [100 * PERCENTILES[mark]], "o", color=colour, markersize=4)
    margin = (most / least) ** 0.03 if wide else 0.03 * (most - least)
    limits = (least / margin, most * margin) if wide else (least - margin, most + margin)
    above.set(title=title, ylabel="runs, %", xscale="log" if wide else "linear", xlim=limits)
    below.set(xlabel=f"latency, {unit}", ylabel="runs that took no longer, %", ylim=(0, 101.5))
    for mark in ("P50", "P90", "P99"):
        below.axhline(100 * PERCENTILES[mark], color="grey", linewidth=0.6, linestyle=":")
    above.legend(loc="upper right", fontsize="small")
    below.legend(loc="lower right", fontsize="small")
    for axes in (above, below):
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    if wide:
        below.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        below.xaxis.set_minor_formatter(lambda value, _: f"{value:g}" if most < 30 * least else "")
    figure.savefig(path, dpi=150)


def _unit(median: float) -> tuple[str, float]:
    """The unit in which a time of `median` seconds reads well, and how many of it a second has."""
    return ("s", 1.0) if median >= 1 else ("ms", 1e3) if median >= 1e-4 else ("us", 1e6)
