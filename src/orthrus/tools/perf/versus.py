"""Two engines on one model in turns, each in a process of its own.

In: two `Settings` with the same budget. Out: the runs of both in blocks that alternate (first, second;
second, first; ...), so that a machine that drifts costs both the same. While one runs, the other's threads
sleep: a pause lies between two turns. Each block begins with a run that is not counted, as the other side has
had the caches meanwhile. All of it is done in several launches of both processes: one and the same program is
a little faster or slower each time it is started, and only that says how sure a ratio is.
"""

from __future__ import annotations

import multiprocessing
import signal
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from typing import Any

import numpy as np

from ...records import dataclass
from ..shapes.open_dimensions import Shapes
from .latency import Paired, paired
from .memory import peak_bytes
from .run import Bench, RunBlock
from .settings import Settings

BLOCKS = 4
"""Blocks of each side and launch, where the budget allows so many."""
Share = tuple[int | None, float | None]
"""What a block may use: runs, or seconds."""
PAUSE = 0.05
"""Seconds between two turns: threads that spin go to sleep."""


@dataclass
class Opened:
    """A side before its first block: seconds to create the session and of the first runs, outputs, labels of
    the shape groups, remarks on the inputs, shapes that had to be found, nodes per provider; or `error`."""

    error: str = ""
    creation: float = 0.0
    first: list[float] = field(default_factory=list)
    outputs: list[Any] = field(default_factory=list)
    labels: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    found: Shapes = field(default_factory=dict)
    placement: dict[str, int] = field(default_factory=dict)


@dataclass
class Side:
    """One engine's part of a comparison: how it opened, and its blocks, per launch; peak bytes of all
    launches."""

    settings: Settings
    launches: list[Opened] = field(default_factory=list)
    blocks: list[list[RunBlock]] = field(default_factory=list)
    peak: int = 0

    @property
    def whole(self) -> RunBlock:
        """All blocks as one."""
        whole = RunBlock()
        for blocks in self.blocks:
            for block in blocks:
                whole.extend(block)
        return whole

    @property
    def creation(self) -> float:
        """Median seconds of creating the session."""
        return statistics.median(each.creation for each in self.launches)

    @property
    def first(self) -> list[float]:
        """Median seconds of the first run, per shape group."""
        return [statistics.median(runs) for runs in zip(*(each.first for each in self.launches), strict=True)]

    @property
    def medians(self) -> list[list[float]]:
        """The median of each block, per launch."""
        return [[statistics.median(block.times) for block in blocks] for blocks in self.blocks]


@dataclass
class Comparison:
    """Both sides, how their times compare, and the largest difference of their outputs, relative to the
    largest output of the first; None where outputs are not arrays of numbers."""

    first: Side
    second: Side
    paired: Paired
    difference: float | None


class _Process:
    """A side's process and the pipe to it."""

    def __init__(self, settings: Settings) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, far = context.Pipe()
        self.process = context.Process(target=_serve, args=(far, settings), daemon=True)
        self.process.start()
        far.close()
        self.name = settings.engine

    def ask(self, *question: Any) -> Any:
        """Send a question, if any, and wait for the answer. Raises RuntimeError where there is none,
        ValueError where the side cannot be opened or run."""
        try:
            if question:
                self.pipe.send(question)
            answer = self.pipe.recv()
        except (EOFError, OSError):
            self.process.join(1)
            code = self.process.exitcode
            raise RuntimeError(f"the process of {self.name} died with exit code {code}") from None
        if isinstance(answer, Opened) and answer.error:
            raise ValueError(f"{self.name}: {answer.error}")
        return answer

    def end(self) -> None:
        """Let the process go."""
        self.pipe.close()
        self.process.join(5)
        if self.process.is_alive():
            self.process.kill()


def _serve(pipe: Any, settings: Settings) -> None:
    """One side: opens, says so, then runs the blocks it is asked for until the pipe is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    bench: Bench | None = None
    try:
        bench = Bench(settings)
        bench.feed()
        first, outputs = bench.first()
        explain = getattr(bench.session, "explain", None)
        pipe.send(Opened(creation=bench.creation, first=first, outputs=outputs, labels=bench.labels,
                         remarks=bench.remarks, found=bench.found,
                         placement=explain().providers if explain else {}))
        while True:
            runs, seconds = pipe.recv()
            bench.first()
            block = bench.block(runs, seconds)
            pipe.send((block, peak_bytes()))
    except (EOFError, BrokenPipeError):
        return
    except Exception as error:
        from ..cli.display import error_text

        hint = bench.hint() if bench is not None else ""
        pipe.send(Opened(error=error_text(error).plain + (f"\n{hint}" if hint else "")))


def compare(first: Settings, second: Settings, launches: int,
            tick: Callable[[float], None] | None = None) -> Comparison:
    """Run both in turns until each has used its budget, in `launches` launches. `tick(share done)` is called
    between turns. Raises ValueError where a side cannot be opened or run, RuntimeError where it dies."""
    sides = (Side(first), Side(second))
    shares = _shares(first, launches)
    for i, mine in enumerate(shares):
        order = (0, 1) if i % 2 == 0 else (1, 0)
        processes: dict[int, _Process] = {}

        def told(done: float, before: int = i) -> None:
            if tick is not None:
                tick((before + done) / len(shares))

        try:
            for which in order:
                processes[which] = _Process(sides[which].settings)
                opened = processes[which].ask()
                sides[which].launches.append(opened)
                if opened.found:
                    for side in sides:
                        side.settings = replace(side.settings, shapes=(opened.found,))
                sides[which].blocks.append([])
            _take_turns(sides, processes, order, mine, told)
        finally:
            for process in processes.values():
                process.end()
    return Comparison(*sides, paired(sides[0].medians, sides[1].medians),
                      difference(sides[0].launches[0].outputs, sides[1].launches[0].outputs))


def _take_turns(sides: Sequence[Side], processes: Mapping[int, _Process], order: tuple[int, int],
                shares: Sequence[Share], tick: Callable[[float], None]) -> None:
    """The blocks of one launch. Where the budget is time and one run takes longer than a share of it, the
    launch ends early."""
    budget = sum(seconds or 0.0 for _, seconds in shares)
    for j, share in enumerate(shares):
        for which in order if j % 2 == 0 else order[::-1]:
            time.sleep(PAUSE)
            block, peak = processes[which].ask(*share)
            sides[which].blocks[-1].append(block)
            sides[which].peak = max(sides[which].peak, peak)
        tick((j + 1) / len(shares))
        if budget and min(sum(sum(b.times) for b in side.blocks[-1]) for side in sides) >= budget:
            break


def _shares(settings: Settings, launches: int) -> list[list[Share]]:
    """The budget of each block of each launch."""
    if settings.runs is None:
        assert settings.seconds is not None
        return [[(None, settings.seconds / (launches * BLOCKS))] * BLOCKS] * launches
    launches = min(launches, settings.runs)
    blocks = min(BLOCKS, settings.runs // launches)
    each, more = divmod(settings.runs, launches * blocks)
    return [[(each + (i * blocks + j < more), None) for j in range(blocks)] for i in range(launches)]


def difference(wanted: Sequence[Any], got: Sequence[Any]) -> float | None:
    """The largest difference of two lists of arrays, relative to the largest value of the first's array; inf
    for other shapes or counts, None where nothing can be compared."""
    if len(wanted) != len(got):
        return float("inf")
    worst: float | None = None
    for a, b in zip(wanted, got, strict=True):
        if not isinstance(a, np.ndarray) or not isinstance(b, np.ndarray) or a.dtype.kind not in "fiub":
            continue
        if a.shape != b.shape:
            return float("inf")
        x, y = a.astype(np.float64), b.astype(np.float64)
        same = (x == y) | (np.isnan(x) & np.isnan(y))
        with np.errstate(invalid="ignore"):
            gap = np.where(same, 0.0, np.abs(x - y))
        scale = float(np.abs(x[np.isfinite(x)]).max(initial=0.0)) or 1.0
        here = float(gap.max(initial=0.0)) / scale
        worst = max(worst or 0.0, here if here == here else float("inf"))
    return worst
