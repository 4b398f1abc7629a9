"""What a perf-test tells: the lines of onnxruntime_perf_test in its order, and the same as plain data.

In: a `Result`. Out: lines of text, rows for a result file, a dict for JSON. The lines are what programs read:
names, units and order are fixed, numbers have six significant digits.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import field
from pathlib import Path
from typing import Any

import numpy as np

from ...records import dataclass
from ...shown import tell
from ..cli.display import size_text
from .latency import Latency, Paired, summarize
from .run import RunBlock
from .settings import Settings
from .versus import Comparison, Side


@dataclass
class Result:
    """A finished measurement: seconds of creating the session and of the first runs, the runs, peak bytes of
    the process, labels of shape groups, nodes per provider; with --vs the comparison."""

    settings: Settings
    creation: float
    first: list[float]
    block: RunBlock
    peak: int
    labels: list[str] = field(default_factory=list)
    placement: dict[str, int] = field(default_factory=dict)
    comparison: Comparison | None = None
    profile: str = ""

    @property
    def latency(self) -> Latency:
        return summarize(self.block.times)


def opening(settings: Settings) -> Iterator[str]:
    """What is said before the session is made: a provider other than the CPU's and its options, and the
    threads asked for."""
    for name, options in settings.providers:
        if name != "CPUExecutionProvider":
            yield f"using {name}"
            yield from (f"setting {key} : {value}" for key, value in options.items())
    if settings.intra:
        yield f"Setting intra_op_num_threads to {settings.intra}"
    if settings.inter:
        yield f"Setting inter_op_num_threads to {settings.inter}"


def created(seconds: float) -> str:
    """How long the session took to make."""
    return f"Session creation time cost: {seconds:g} s"


def summary(result: Result) -> Iterator[str]:
    """From the first inference to the peak working set."""
    told, block = result.latency, result.block
    yield f"First inference time cost: {int(1e3 * result.first[0])} ms"
    yield f"Total inference time cost: {told.total:g} s"
    yield f"Total inference requests: {told.runs}"
    yield f"Average inference time cost total: {1e3 * told.mean:.6f} ms"
    if block.submissions:
        yield f"Average inference time cost submission: {1e3 * float(np.mean(block.submissions)):.6f} ms"
    yield f"Total inference run time: {block.wall:g} s"
    yield f"Number of inferences per second: {told.runs / block.wall:g} "
    yield f"Avg CPU usage: {block.cpu_percent} %"
    yield f"Peak working set size: {result.peak} bytes"


def usage(result: Result) -> Iterator[str]:
    """The three lines that open the statistics where there is no result file."""
    yield f"Avg CPU usage:{result.block.cpu_percent}"
    yield f"Peak working set size:{result.peak}"
    yield f"Runs:{len(result.block.times)}"


def statistics(result: Result) -> Iterator[str]:
    """Smallest and largest latency and the percentiles, in seconds; then each shape group, where there are
    several."""
    told = result.latency
    yield f"Min Latency: {told.minimum:g} s"
    yield f"Max Latency: {told.maximum:g} s"
    for name, seconds in told.percentiles.items():
        yield f"{name} Latency: {seconds:g} s"
    if not result.labels:
        return
    yield "Latency per shape group:"
    for number, (label, each) in enumerate(groups(result), 1):
        yield f"  {number}. {label}"
        if each is None:
            yield "      no run"
            continue
        for name, seconds in (("Median", each.median), ("Average", each.mean), ("Min", each.minimum),
                              ("Max", each.maximum)):
            yield f"      {name + ':':8} {1e3 * seconds:.6g} ms"


def groups(result: Result) -> Iterator[tuple[str, Latency | None]]:
    """Label and figures of each shape group; None for one that no run took."""
    times, which = np.asarray(result.block.times), np.asarray(result.block.groups)
    for i, label in enumerate(result.labels):
        mine = times[which == i]
        yield label, summarize(mine) if mine.size else None


def append(path: Path, result: Result, with_statistics: bool) -> bool:
    """Append a row per run to `path`, and the statistics if asked. False, said on stderr, where the file
    cannot be opened."""
    name = result.settings.model_name
    try:
        with path.open("a", encoding="utf-8") as file:
            for i, seconds in enumerate(result.block.times):
                file.write(f"{name},{seconds:g},{result.peak},{result.block.cpu_percent},{i}\n")
            if with_statistics:
                file.write("\n" + "".join(f"{line}\n" for line in statistics(result)))
    except OSError:
        tell(f"failed to open result file '{path}'. will dump stats to output.", err=True)
        return False
    return True


def comparison_table(found: Comparison) -> Any:
    """Both sides beside each other, a rich table."""
    from ..cli.display import table

    sides = (found.first, found.second)
    told = [summarize(side.whole.times) for side in sides]
    rows: list[tuple[str, ...]] = []

    def row(name: str, values: tuple[float, ...]) -> None:
        ratio = f"{values[1] / values[0]:.3f}" if values[0] else ""
        rows.append((name, *(f"{1e3 * seconds:.4g} ms" for seconds in values), ratio))

    row("session creation", tuple(side.creation for side in sides))
    row("first run", tuple(side.first[0] for side in sides))
    row("average", tuple(each.mean for each in told))
    row("fastest", tuple(each.minimum for each in told))
    for name in told[0].percentiles:
        row(name, tuple(each.percentiles[name] for each in told))
    peaks = [side.peak for side in sides]
    rows.append(("peak memory", *map(size_text, peaks), f"{peaks[1] / peaks[0]:.3f}" if peaks[0] else ""))
    rows.append(("runs", f"{told[0].runs:,}", f"{told[1].runs:,}", ""))
    return table("", ("", *(names(found)), "ratio"), rows, right=(1, 2, 3))


def names(found: Comparison) -> tuple[str, str]:
    """Both sides by engine and provider, told apart."""
    first, second = found.first.settings.engine, found.second.settings.engine
    return (first, second) if first != second else (f"{first} (first)", f"{second} (second)")


def verdict(found: Comparison) -> Iterator[str]:
    """Which is faster, how sure that is, and how far the outputs are apart."""
    first, second = names(found)
    p: Paired = found.paired
    if math.isnan(p.low):
        yield (f"{second} takes {p.ratio:.3f} times as long as {first}; {p.units} {p.unit} are too few to "
               "say how sure that is")
    else:
        sure = f"{100 * p.confidence:.0f} % interval {p.low:.3f} to {p.high:.3f}, {p.units} {p.unit}"
        if p.faster == "neither":
            yield f"no difference: {second} takes {p.ratio:.3f} times as long as {first} ({sure})"
        else:
            fast, slow = (first, second) if p.faster == "first" else (second, first)
            factor = p.ratio if p.faster == "first" else 1 / p.ratio
            yield f"{fast} is {factor:.3f} times as fast as {slow} (ratio {p.ratio:.3f}, {sure})"
    if found.difference == 0:
        yield "outputs are the same"
    elif found.difference is not None:
        yield (f"outputs differ by {found.difference:.2g} of the largest" if math.isfinite(found.difference)
               else "outputs differ: in their shapes, or where one is not finite")


def plain(result: Result) -> dict[str, Any]:
    """Everything for JSON: seconds, bytes and counts."""
    settings, block, told = result.settings, result.block, result.latency
    found: dict[str, Any] = {
        "model": settings.model, "model_name": settings.model_name, "engine": settings.module,
        "providers": dict(settings.providers), "placement": result.placement,
        "session_creation_seconds": result.creation, "first_inference_seconds": result.first,
        "requests": told.runs, "run_seconds": block.wall, "inferences_per_second": told.runs / block.wall,
        "cpu_percent": block.cpu_percent, "peak_bytes": result.peak, "interrupted": block.interrupted,
        "latency": told.plain(), "times": list(block.times)}
    if block.submissions:
        found["submission_mean_seconds"] = float(np.mean(block.submissions))
    if result.labels:
        found["groups"] = [{"shapes": label, "latency": each and each.plain()}
                           for label, each in groups(result)]
    if result.profile:
        found["profile"] = result.profile
    if result.comparison is not None:
        both = result.comparison
        gap = both.difference
        found["versus"] = {
            **both.paired.plain(), "difference": gap if gap is None or math.isfinite(gap) else "inf",
            "first": _side(both.first), "second": _side(both.second)}
    return found


def _side(side: Side) -> dict[str, Any]:
    return {"engine": side.settings.module, "providers": dict(side.settings.providers),
            "placement": side.launches[0].placement, "peak_bytes": side.peak,
            "session_creation_seconds": [each.creation for each in side.launches],
            "first_inference_seconds": [each.first for each in side.launches],
            "latency": summarize(side.whole.times).plain(),
            "blocks": [[list(block.times) for block in blocks] for blocks in side.blocks]}
