"""A session under measurement: opened, fed, and run in blocks.

In: `Settings`. Out: seconds, in the order in which runs ended, and what the process used meanwhile. Inputs
are made before the clock starts; the clock is read right before and right after a run.
"""

from __future__ import annotations

import importlib
import os
import random
import threading
import time
import warnings
from array import array
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import field
from pathlib import Path
from typing import Any

import numpy as np

from ...ir import ElementType, OptionalType, TensorType, likely_shapes, parse_type
from ...records import dataclass
from ..shapes.known_values import Known, drawn, known_values
from ..shapes.open_dimensions import Declared, Shapes, accepted, told
from .settings import Settings

TICK = 0.1
"""Seconds between two reports of progress."""
LARGEST = 5.0
"""Upper end of generated floats."""
DRAWN = (ElementType.FLOAT, ElementType.INT8, ElementType.UINT8)
"""Element types that a seed fills with random numbers."""

Tick = Callable[[int, float], None]


@dataclass
class RunBlock:
    """Runs in a row: seconds of each, the shape group of each (where there are several), seconds until a
    bound run was submitted (with -g), seconds of wall clock and of processor time."""

    times: array[float] = field(default_factory=lambda: array("d"))
    groups: array[int] = field(default_factory=lambda: array("i"))
    submissions: array[float] = field(default_factory=lambda: array("d"))
    wall: float = 0.0
    cpu: float = 0.0
    interrupted: bool = False

    def extend(self, other: RunBlock) -> None:
        """Take in the runs of a later block."""
        self.times.extend(other.times)
        self.groups.extend(other.groups)
        self.submissions.extend(other.submissions)
        self.wall += other.wall
        self.cpu += other.cpu
        self.interrupted |= other.interrupted

    @property
    def cpu_percent(self) -> int:
        """Processor time as a share of all cores, as a whole number."""
        return int(100 * self.cpu / (self.wall * (os.cpu_count() or 1))) if self.wall else 0


def engine_of(settings: Settings) -> Any:
    """The engine's module. Raises ImportError where there is none, ValueError for one without the API."""
    from ..asked import import_modules

    import_modules(settings.modules)
    runtime = importlib.import_module(settings.module)
    if not hasattr(runtime, "InferenceSession"):
        raise ValueError(f"{settings.module} has no InferenceSession: its API is not onnxruntime's")
    return runtime


def open_session(runtime: Any, settings: Settings) -> Any:
    """A session of an engine. Raises what making it raises, ValueError for a provider that the engine left
    out."""
    options = runtime.SessionOptions()
    options.graph_optimization_level = runtime.GraphOptimizationLevel(settings.level)
    options.intra_op_num_threads, options.inter_op_num_threads = settings.intra, settings.inter
    options.enable_cpu_mem_arena, options.enable_mem_pattern = settings.arena, settings.pattern
    if settings.parallel:
        options.execution_mode = runtime.ExecutionMode.ORT_PARALLEL
    if settings.optimized:
        options.optimized_model_filepath = settings.optimized
    if settings.profile:
        options.enable_profiling, options.profile_file_prefix = True, settings.profile
    if settings.verbose:
        options.log_severity_level = 0
    for key, value in settings.entries.items():
        options.add_session_config_entry(key, value)
    for name, size in settings.free.items():
        options.add_free_dimension_override_by_name(name, size)
    for name, size in settings.denoted.items():
        options.add_free_dimension_override_by_denotation(name, size)
    if settings.custom_ops:
        options.register_custom_ops_library(settings.custom_ops)
    source: str | bytes = settings.model
    if settings.in_memory:
        source = Path(settings.model).read_bytes()
        folder = "session.model_external_initializers_file_folder_path"
        if folder not in settings.entries:
            options.add_session_config_entry(folder, str(Path(settings.model).absolute().parent))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Specified provider '.*' is not in available")
        session = runtime.InferenceSession(source, options, providers=list(settings.providers),
                                           enable_fallback=0)
    left_out = [name for name, _ in settings.providers if name not in session.get_providers()]
    if left_out:
        raise ValueError(f"{settings.module} has no {', '.join(left_out)} here; it runs on "
                         f"{', '.join(session.get_providers())}")
    return session


def generated(inputs: Sequence[Any], shapes: Shapes, free: dict[str, int], seed: int,
              known: Known | None = None) -> tuple[dict[str, Any], list[str]]:
    """A tensor per input, and the names of those that a seed could not fill. `known`: texts that the model
    knows, taken in the place of empty ones.

    Dimensions that are not fixed are those of `shapes`, or of `free` by name, or 1. Zeros for a seed below 0.
    Raises ValueError for an input that is no tensor, or a shape that contradicts the declared one.
    """
    unknown = shapes.keys() - {arg.name for arg in inputs}
    if unknown:
        raise ValueError(f"--data_shape: the model has no input {', '.join(sorted(unknown))}; its inputs are "
                         f"{', '.join(arg.name for arg in inputs)}")
    feed: dict[str, Any] = {}
    plain: list[str] = []
    for arg in inputs:
        kind = parse_type(arg.type)
        kind = kind.elem if isinstance(kind, OptionalType) else kind
        if not isinstance(kind, TensorType) or kind.elem is None:
            raise ValueError(f"input {arg.name} is a {arg.type}, which -I cannot generate; put inputs into "
                             "test_data_set_0/input_N.pb beside the model")
        declared = [d if isinstance(d, int) and d >= 0 else None for d in arg.shape or ()]
        open_sizes = [free.get(d, 1) if isinstance(d, str) else 1 for d in arg.shape or ()]
        shape = shapes.get(arg.name) or tuple(o if d is None else d
                                              for d, o in zip(declared, open_sizes, strict=True))
        same_rank = len(shape) == len(declared)
        if declared and not (same_rank and all(d in (None, s) for d, s in zip(declared, shape, strict=True))):
            raise ValueError(f"--data_shape {arg.name}:{list(shape)} does not fit the declared {arg.shape}")
        made = _filled(kind.elem, shape, seed)
        texts = (known or {}).get(arg.name) if kind.elem is ElementType.STRING else None
        feed[arg.name] = drawn(texts, made, np.random.default_rng(max(seed, 0))) if texts else made
        if seed >= 0 and kind.elem not in DRAWN:
            plain.append(arg.name)
    return feed, plain


def _filled(elem: ElementType, shape: tuple[int, ...], seed: int) -> np.ndarray:
    if elem is ElementType.STRING:
        return np.full(shape, "", object)
    if seed < 0 or elem not in DRAWN:
        return np.zeros(shape, elem.numpy)
    rng = np.random.default_rng(seed)
    if elem is ElementType.FLOAT:
        return np.asarray(rng.uniform(0, LARGEST, shape)).astype(np.float32)
    return np.asarray(rng.integers(0, np.iinfo(elem.numpy).max, shape, endpoint=True)).astype(elem.numpy)


def _unknown_dimensions(settings: Settings) -> list[str]:
    """A remark on every free dimension that no input has."""
    if not settings.free:
        return []
    from ..cli.describe import describe

    there = {d for _, _, shape in describe(settings.model).inputs for d in shape or () if isinstance(d, str)}
    return [f"-f {name} has no effect: no input has a dimension of that name; there are "
            f"{', '.join(sorted(there)) or 'none'}" for name in settings.free if name not in there]


class Bench:
    """A session and its inputs, ready to be timed. `creation`: seconds it took to make the session. `labels`:
    the shape groups, where there are several. `remarks`: what a person should know of the inputs. `found`:
    after the first run, their shapes, where open dimensions cannot be 1."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        runtime = engine_of(settings)
        start = time.perf_counter()
        self.session = open_session(runtime, settings)
        self.creation = time.perf_counter() - start
        self.remarks: list[str] = []
        self.labels: list[str] = []
        self.feeds: list[dict[str, Any]] = []
        self.found: Shapes = {}
        self._generate = settings.generate
        self._guessed = False
        self._known: Known = {}
        self._drawn = random.Random(max(settings.seed, 0))

    def feed(self) -> None:
        """Make or read the inputs. Raises ValueError where there are none, or they cannot be made."""
        inputs, settings = self.session.get_inputs(), self.settings
        self.remarks += _unknown_dimensions(settings)
        if not self._generate:
            self.feeds = self._read()
        if self._generate:
            self._guessed = not settings.shapes
            if any("string" in arg.type for arg in inputs):
                self._known = known_values(settings.model)
            for shapes in settings.shapes or ({},):
                made, plain = generated(inputs, shapes, settings.free, settings.seed, self._known)
                self.feeds.append(made)
                self.remarks += [f"input {name}: this type is not filled with random numbers, it is zero"
                                 for name in plain if not len(self.feeds) > 1]
            if len(self.feeds) > 1:
                self.labels = [" ".join(f"{name} : [{','.join(map(str, shape))}]"
                                        for name, shape in shapes.items()) for shapes in settings.shapes]

    def _read(self) -> list[dict[str, Any]]:
        """The inputs beside the model; where there are none, they are to be generated."""
        from ..testrunner.data import data_sets

        found = [dict(each.inputs) for each in data_sets(Path(self.settings.model))]
        if not found:
            self._generate = True
            self.remarks.append(f"there is no test data for model {self.settings.model_name} in "
                                "test_data_set_0/input_0.pb beside it: inputs are generated, as with -I")
        return found

    def hint(self) -> str:
        """What to try where a run with generated inputs fails; empty where every size was given."""
        shapes = [f"{arg.name} {list(self.feeds[0][arg.name].shape)}" for arg in self.session.get_inputs()
                  if self.feeds and arg.name in self.feeds[0] and not all(isinstance(d, int) and d >= 0
                                                                         for d in arg.shape or ())]
        if not shapes or not self._generate or self.settings.shapes:
            return ""
        return (f"inputs were generated with 1 for open dimensions: {', '.join(shapes)}; set others with "
                "-f NAME:VALUE or --data_shape 'NAME:[...]'")

    def first(self) -> tuple[list[float], list[Any]]:
        """Run once per shape group: the seconds, and the outputs of the first. Data sets share one run."""
        if self._guessed:
            return self._settled()
        seconds, outputs = list[float](), list[Any]()
        for feed in self.feeds if self.labels else self.feeds[:1]:
            spent, got = self._timed(feed)
            seconds.append(spent)
            outputs = outputs or got
        return seconds, outputs

    def _timed(self, feed: dict[str, Any]) -> tuple[float, list[Any]]:
        start = time.perf_counter()
        got = self.session.run(None, feed)
        return time.perf_counter() - start, list(got)

    def _settled(self) -> tuple[list[float], list[Any]]:
        """The first run, with sizes found for open dimensions that cannot be 1."""
        free, seed = self.settings.free, self.settings.seed
        inputs = [Declared(a.name, a.type, [free.get(d, d) for d in a.shape or ()])
                  for a in self.session.get_inputs()]
        ones = {name: np.shape(value) for name, value in self.feeds[0].items()}
        likely = likely_shapes([a.shape for a in inputs], any("past" in a.name for a in inputs))
        guesses = [ones, {a.name: shape for a, shape in zip(inputs, likely, strict=True)}]
        found, (seconds, outputs) = accepted(
            self.settings.model, inputs, guesses,
            lambda shapes: self._timed(generated(inputs, shapes, {}, seed, self._known)[0]))
        self.feeds = [generated(inputs, found, {}, seed, self._known)[0]]
        self._guessed = False
        if note := told(inputs, ones, found):
            self.remarks.append(note)
            self.found = found
        return [seconds], outputs

    def block(self, runs: int | None, seconds: float | None, tick: Tick | None = None,
              told: Callable[[int, float], None] | None = None) -> RunBlock:
        """Run so many times, or until the times sum up to `seconds` (with concurrent runs: until they have
        passed), and at least once.

        `tick(runs done, seconds spent)` is called now and then, `told(run, seconds)` after every run. An
        interrupt from the keyboard ends the block.
        """
        turns = _Turns(runs, seconds, self.settings.concurrent)
        cpu, start = time.process_time(), time.perf_counter()
        if self.settings.concurrent == 1:
            done = self._work(turns, tick, told)
        else:
            done = self._together(turns, tick, told)
        done.wall, done.cpu = time.perf_counter() - start, time.process_time() - cpu
        return done

    def _work(self, turns: _Turns, tick: Tick | None, told: Callable[[int, float], None] | None) -> RunBlock:
        done, clock = RunBlock(), time.perf_counter
        calls = [self._call(feed) for feed in self.feeds]
        append, due, spent, several = done.times.append, clock() + TICK, 0.0, len(calls) > 1
        try:
            while (turn := turns.next(spent)) >= 0:
                which = 0
                if several:
                    which = turn % len(calls) if self.labels else self._drawn.randrange(len(calls))
                call = calls[which]
                start = clock()
                submitted = call()
                end = clock()
                append(end - start)
                spent += end - start
                if self.labels:
                    done.groups.append(which)
                if self.settings.binding:
                    done.submissions.append(submitted - start)
                if told is not None:
                    told(len(done.times), end - start)
                if tick is not None and end > due:
                    due = end + TICK
                    tick(turns.taken, spent)
        except KeyboardInterrupt:
            done.interrupted = turns.stopped = True
        return done

    def _together(self, turns: _Turns, tick: Tick | None, told: Callable[[int, float], None] | None
                  ) -> RunBlock:
        done, start = RunBlock(), time.perf_counter()
        with ThreadPoolExecutor(self.settings.concurrent) as pool:
            work = [pool.submit(self._work, turns, None, told) for _ in range(self.settings.concurrent)]
            try:
                while True:
                    left = wait(work, TICK, FIRST_EXCEPTION)
                    turns.stopped |= any(each.exception() for each in left.done)
                    if not left.not_done:
                        break
                    if tick is not None:
                        tick(turns.taken, time.perf_counter() - start)
            except KeyboardInterrupt:
                done.interrupted = turns.stopped = True
            for each in work:
                done.extend(each.result())
        return done

    def _call(self, feed: dict[str, Any]) -> Callable[[], Any]:
        """One run with `feed`; a bound one gives the time at which it was submitted."""
        session = self.session
        if not self.settings.binding:
            run = session.run
            return lambda: run(None, feed)
        binding = session.io_binding()
        for name, value in feed.items():
            binding.bind_cpu_input(name, value)
        for arg in session.get_outputs():
            binding.bind_output(arg.name)

        def bound() -> float:
            session.run_with_iobinding(binding)
            submitted = time.perf_counter()
            binding.synchronize_outputs()
            return submitted
        return bound


class _Turns:
    """Whose turn it is: numbers from 0 until the budget is used up, then -1."""

    def __init__(self, runs: int | None, seconds: float | None, concurrent: int) -> None:
        self.runs, self.seconds, self.concurrent = runs, seconds, concurrent
        self.start, self.taken, self.stopped = time.perf_counter(), 0, False
        self._lock = threading.Lock()

    def next(self, spent: float) -> int:
        with self._lock:
            turn = self.taken
            if self.stopped or (self.runs is not None and turn >= self.runs):
                return -1
            if self.seconds is not None and turn:
                used = spent if self.concurrent == 1 else time.perf_counter() - self.start
                if used >= self.seconds:
                    return -1
            self.taken += 1
            return turn
