"""Tiles that are fastest on the device at hand: measured there, and remembered.

In: a product of some sizes, and the tiles that a model of costs expects to be fastest. Out: one of them. They
run on memory and streams of their own before the plan that asks for one is made; a tile whose results are
others than those of the first, or that does not compile, is left out. Nothing is measured unless that was
asked for.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ...codegen.triton import compile as compiling
from ...codegen.triton.compile import CodeObject
from ...codegen.triton.kernels.products import Tile
from ...errors import EPFail, pass_on
from ...ir import Node, Value
from ...kernels import Device, DeviceArray, Memory
from ...locks import lock
from ...records import dataclass
from ..memory import plan
from ..tensor import Buffer, Tensor, extent, numpy_type
from .graphs import recorded
from .lower import GpuLowering
from .plan import ALIGN, Constants, GpuPlan, hints

if TYPE_CHECKING:
    from .part import GpuPart

log = logging.getLogger("orthrus")

Way = tuple[Tile, int]
"""A tile, and into how many parts k is cut."""

Results = dict[str, dict[str, int]]
"""What was found: an operator's signature to its parameters' to the number of a way."""

MOST = 16
"""Ways that are tried, at most."""

_GAIN = 0.98
"""Share of the time of the model's first way that another has to stay below."""

_ROUNDS = 3
"""How often the ways take turns; the shortest time of each counts."""

_LAUNCHES = 100
"""How often a way runs in a round, at most."""

_MILLISECONDS = 20.0
"""What a way is measured for where the options do not say."""

_PATTERN = 8191
"""Elements after which those of inputs repeat."""

_FAR = {"float64": 1e-9, "float32": 2e-3, "int32": 0.0}
"""What results may differ by, relative to the largest; others by 2e-2. Factors may be tf32."""


def number(way: Way) -> int:
    """A way as a number: its powers of two, four bits each. Its tiles have Tile's group."""
    tile, parts = way
    powers = [x.bit_length() - 1 for x in (tile.m, tile.n, tile.k, tile.warps, parts)]
    return sum(p << 4 * i for i, p in enumerate([*powers, tile.stages]))


@dataclass(frozen=True)
class Task:
    """What is to be computed: `operator` and `parameters` say what is the same for the same ways; `reads`:
    tensors; `out`: the result; `compute(lo, reads, out, way)` appends the steps."""

    operator: str
    parameters: str
    reads: Sequence[Tensor]
    out: Tensor
    compute: Callable[[GpuLowering, Sequence[Tensor], Tensor, Way], None]


class Tuner:
    """What was found on a device. `enabled`: whether plans go by it; `measures`: whether what is not known
    is measured, each way for `milliseconds`, 0 for some; `found` gets the results after something was."""

    def __init__(self, device: Device, enabled: bool, measures: bool = False, milliseconds: float = 0,
                 found: Callable[[Results], None] = lambda results: None) -> None:
        self.device, self.enabled, self.measures, self.found = device, enabled, enabled and measures, found
        self.milliseconds = milliseconds if milliseconds > 0 else _MILLISECONDS
        self.results: Results = {}
        self.parts = weakref.WeakSet["GpuPart"]()
        self._lock = lock()

    def load(self, results: Results) -> None:
        """Take what was found before; plans that were made without it are made anew."""
        with self._lock:
            for operator, ways in results.items():
                self.results.setdefault(operator, {}).update(ways)
        for part in list(self.parts):
            part.plans.clear()

    def best(self, lo: GpuLowering, task: Task, ways: Sequence[Way]) -> Way:
        """The way to take, of these, the one that is expected to be fastest first."""
        with self._lock:
            known = self.results.get(task.operator, {}).get(task.parameters)
            if known is not None:
                return next((way for way in ways if number(way) == known), ways[0])
            if not self.measures:
                return ways[0]
            try:
                chosen = self._measured(lo, task, ways[:MOST])
            except (MemoryError, EPFail) as error:
                log.warning("%s %s is not tuned: %s", task.operator, task.parameters, error)
                return ways[0]
            self.results.setdefault(task.operator, {})[task.parameters] = number(chosen)
            self.found(self.results)
        return chosen

    def _measured(self, lo: GpuLowering, task: Task, ways: Sequence[Way]) -> Way:
        trials = _Trials(self.device, lo, task, ways)
        trials.leave_out_the_wrong()
        times = trials.times(self.milliseconds)
        first, best = next(iter(times)), min(times, key=lambda way: times[way])
        if times[best] > _GAIN * times[first]:
            best = first
        log.debug("%s %s: %s", task.operator, task.parameters, ", ".join(
            f"{way[0]} in {way[1]} parts {time:.4f} ms" for way, time in times.items()))
        return best


class _Trial(GpuLowering):
    """Steps of a node, without a walk."""

    def __init__(self, lo: GpuLowering) -> None:
        super().__init__([lo.node], [], [], lo.target, {}, lo.reference, lo.settings)

    def _walk(self, nodes: Sequence[Node], outputs: Sequence[Value]) -> None:
        """Steps are appended by who asks for a trial."""


class _Trials:
    """Plans of one task, by their ways, over the same inputs and one result."""

    def __init__(self, device: Device, lo: GpuLowering, task: Task, ways: Sequence[Way]) -> None:
        self.device = device
        reads = [_stand_in(t, "input", i) for i, t in enumerate(task.reads)]
        out = _stand_in(task.out, "output", 0)
        self.inputs = [_filled(device, t) for t in reads]
        self.out = _room(device, out)
        lowered = {way: _lowered(lo, task, reads, out, way) for way in ways}
        self.plans = dict(self._plans(lowered, lo, len(reads)))
        self.arena = Memory(device, max(1, *(p.size for p in self.plans.values())))
        self.addresses = np.array([*(m.handle for m in self.inputs), self.out.handle], np.int64)

    def _plans(self, lowered: dict[Way, list[Any]], lo: GpuLowering, inputs: int
               ) -> Iterator[tuple[Way, GpuPlan]]:
        requests = {way: [(s.spec, lo.target, hints(s, lo.target)) for s in steps]
                    for way, steps in lowered.items()}
        sizes = {way: plan(steps, []) for way, steps in lowered.items()}
        for way, codes in _compiled(requests):
            yield way, GpuPlan(lowered[way], codes, inputs, [(self.out.shape, self.out.dtype)], sizes[way],
                               -1, self.device, Constants(self.device).address)

    def leave_out_the_wrong(self) -> None:
        """Forget the ways whose results are not those of the first."""
        wanted: np.ndarray | None = None
        for way, each in list(self.plans.items()):
            self.device.clear(self.out.handle, self.out.nbytes)
            self._run(each, 1)
            got = self._answer()
            if wanted is None:
                wanted = got
            elif not _same(got, wanted):
                log.warning("the tile %s in %d parts is left out: its results differ", *way)
                del self.plans[way]

    def times(self, milliseconds: float) -> dict[Way, float]:
        """Of one run of each way."""
        found = {way: self._timed(each, 1) for way, each in self.plans.items()}
        for _, (way, each) in itertools.product(range(_ROUNDS), self.plans.items()):
            count = max(1, min(_LAUNCHES, int(milliseconds / _ROUNDS / max(found[way], 1e-6))))
            found[way] = min(found[way], self._timed(each, count))
        return found

    def _timed(self, it: GpuPlan, count: int) -> float:
        """Milliseconds of a run, of so many: as a graph, where the device makes one, for the host asks for
        small kernels more slowly than they are done."""
        def run() -> None:
            self._run(it, count)
        try:
            run = recorded(self.device, run).replay
        except Exception as error:
            pass_on(error)
            log.debug("%s takes the times of tiles without graphs: %s", self.device, error)
        return self.device.timed(run) / count

    def _run(self, it: GpuPlan, count: int) -> None:
        packed = it.packed_for(self.arena.handle, self.addresses)
        for _ in range(count):
            for launch in it.launches:
                assert launch is not None
                self.device.launch(launch.function, launch.blocks, launch.threads, launch.shared,
                                   packed[launch.begin:launch.end])

    def _answer(self) -> np.ndarray:
        array = np.empty(self.out.shape, self.out.dtype)
        self.device.copy_out(self.out.handle, array)
        self.device.synchronize(self.device.stream)
        return array


def _lowered(lo: GpuLowering, task: Task, reads: Sequence[Tensor], out: Tensor, way: Way) -> list[Any]:
    trial = _Trial(lo)
    task.compute(trial, reads, out, way)
    return trial.steps


def _compiled(requests: dict[Way, list[Any]]) -> Iterator[tuple[Way, list[CodeObject]]]:
    """The code of each way that compiles, the first one at least; all at once where all do. Raises EPFail."""
    with_all = list(itertools.chain.from_iterable(requests.values()))
    with contextlib.suppress(EPFail):
        compiling.codes(with_all)
    for i, (way, each) in enumerate(requests.items()):
        try:
            yield way, compiling.codes(each)
        except EPFail as error:
            if i == 0:
                raise
            log.debug("a tile is left out: %s", error)


def _stand_in(t: Tensor, kind: str, index: int) -> Tensor:
    """A tensor in memory of its own that lies as `t` does."""
    low = -sum((d - 1) * s for d, s in zip(t.shape, t.strides, strict=True) if s < 0)
    start = low + (t.byte_offset - low * t.itemsize) % ALIGN // t.itemsize
    size = (start + extent(t.shape, [max(s, 0) for s in t.strides])) * t.itemsize
    return Tensor(t.dtype, t.shape, t.strides, Buffer(kind, size, index), start)


def _room(device: Device, t: Tensor) -> DeviceArray:
    """Memory for what a tensor lies in."""
    return device.array((-(-t.buffer.size // t.itemsize),), numpy_type(t.dtype))


def _filled(device: Device, t: Tensor) -> DeviceArray:
    """The same, with small numbers."""
    rng, made = np.random.default_rng(t.buffer.index), _room(device, t)
    few = rng.integers(0 if t.dtype.startswith("u") else -8, 8, _PATTERN) if "int" in t.dtype \
        else rng.standard_normal(_PATTERN)
    device.copy_in(np.resize(few.astype(made.dtype), made.shape), made.handle)
    device.synchronize(device.stream)
    return made


def _same(got: np.ndarray, wanted: np.ndarray) -> bool:
    a, b = got.astype(np.float64), wanted.astype(np.float64)
    return bool(np.abs(a - b).max() <= _FAR.get(got.dtype.name, 2e-2) * max(np.abs(b).max(), 1e-30))
