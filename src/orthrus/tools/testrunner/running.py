"""Running tests: a session for each model, its data sets through it, and what came of them.

In: `Case`s and `Settings`. Out: a `Report`, results in the order of the cases. Models, and runs of one model,
go at the same time on threads of this process; no failure of one test ends another.
"""

from __future__ import annotations

import contextlib
import threading
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import field, replace
from typing import Any

from ...processors import usable
from ...records import dataclass
from .cases import Case, configured
from .data import DataFolder, DataSet, Signature, read, signature, write_values
from .matching import Tolerance, Tolerances, compare
from .report import Outcome, Report, Result

_MISMATCHES = {"type": Outcome.TYPE_MISMATCH, "shape": Outcome.SHAPE_MISMATCH,
               "value": Outcome.RESULT_DIFFERS}


@dataclass(frozen=True)
class Settings:
    """How tests are run. `exact`: a tolerance that goes before the models' own; `models`, `runs`: how many at
    once, 0 for one per core; `at_once`: runs of all models together, 0 for no bound; `inference`: keep the
    results beside the inputs, compare nothing; `options`: the sessions', None for the default ones."""

    provider: str = "CPUExecutionProvider"
    provider_options: Mapping[str, str] = field(default_factory=dict)
    options: Any = None
    tolerances: Tolerances = Tolerances()
    exact: Tolerance | None = None
    models: int = 0
    runs: int = 0
    repeats: int = 1
    at_once: int = 0
    inference: bool = False


@dataclass(frozen=True)
class _Common:
    """What all models share: a bound on runs at once, whom to tell of them, and a sign to begin no more."""

    bound: Any
    ran: Callable[[int], object]
    over: threading.Event


def run_tests(cases: Sequence[Case], settings: Settings,
              seen: Callable[[list[Result]], object] = lambda _: None,
              ran: Callable[[int], object] = lambda _: None) -> Report:
    """Run every case that is not to be skipped. `seen` is told of each model's results as they come, on the
    caller's thread; `ran`, how many runs are done with, on any."""
    start = time.perf_counter()
    report = Report(skipped=[(c.name, c.model, c.skip) for c in cases if c.skip])
    chosen = [c for c in cases if not c.skip]
    report.models = len(chosen)
    bound = threading.BoundedSemaphore(settings.at_once) if settings.at_once else contextlib.nullcontext()
    common = _Common(bound, ran, threading.Event())
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Specified provider '.*' is not in available")
        with ThreadPoolExecutor(settings.models or len(usable()), "orthrus-test") as pool:
            waiting = [pool.submit(_run_case, case, settings, common) for case in chosen]
            try:
                for done in as_completed(waiting):
                    seen(done.result())
            except BaseException:
                common.over.set()
                pool.shutdown(cancel_futures=True)
                raise
    report.results = [result for done in waiting for result in done.result()]
    report.seconds = time.perf_counter() - start
    return report


def _run_case(case: Case, settings: Settings, common: _Common) -> list[Result]:
    from ...errors import ALL

    empty = [Result(case.name, case.model, place.name, place.folder, Outcome.SUCCESS)
             for place in case.places]

    def lost(kind: Outcome, text: str) -> list[Result]:
        common.ran(len(empty) * settings.repeats)
        return [replace(r, outcome=kind, text=text) for r in empty]

    try:
        declared = signature(case.model)
    except Exception as error:
        return lost(Outcome.LOAD_MODEL_FAILED, _text(error))
    operator = declared.operators[0] if len(declared.operators) == 1 else ""
    empty = [replace(r, operator=operator, opset=declared.opset) for r in empty]
    try:
        tolerance = settings.exact or configured(case, settings.tolerances.of(case.name))
    except (OSError, ValueError) as error:
        return lost(Outcome.UNKNOWN_ERROR, _text(error))
    try:
        session = _session(case, settings)
    except Exception as error:
        kind = Outcome.NOT_SUPPORT if isinstance(error, ALL) else Outcome.LOAD_MODEL_FAILED
        return lost(kind, f"Model {case.name} failed to load:{_text(error)}")
    trials = [_Trial(place, declared, session, tolerance, settings) for place in case.places]
    try:
        _run_trials(trials, settings, common)
    finally:
        session.close()
    return [replace(r, outcome=t.outcome, seconds=t.seconds, text=t.text)
            for r, t in zip(empty, trials, strict=True)]


def _session(case: Case, settings: Settings) -> Any:
    import orthrus as ort

    return ort.InferenceSession(case.model, settings.options, enable_fallback=0,
                                providers=[(settings.provider, dict(settings.provider_options))])


def _run_trials(trials: Sequence[_Trial], settings: Settings, common: _Common) -> None:
    def run(trial: _Trial) -> None:
        with common.bound:
            if not common.over.is_set():
                trial.run()
        common.ran(1)

    runs = [trial for trial in trials for _ in range(settings.repeats)]
    with ThreadPoolExecutor(min(settings.runs or len(usable()), len(runs)), "orthrus-test-run") as pool:
        for done in [pool.submit(run, trial) for trial in runs]:
            done.result()


class _Trial:
    """One data set under test: read when its first run begins and let go after its last; a run that fails
    stands for all."""

    def __init__(self, place: DataFolder, declared: Signature, session: Any, tolerance: Tolerance,
                 settings: Settings) -> None:
        self.outcome, self.text, self.seconds = Outcome.SUCCESS, "", 0.0
        self._place, self._declared, self._session = place, declared, session
        self._tolerance, self._inference = tolerance, settings.inference
        self._left = settings.repeats
        self._data: DataSet | None = None
        self._lock = threading.Lock()

    def run(self) -> None:
        try:
            outcome, text, seconds = self._attempt()
        except Exception as error:
            outcome, text, seconds = Outcome.UNKNOWN_ERROR, _text(error), 0.0
        with self._lock:
            self.seconds += seconds
            if self.outcome is Outcome.SUCCESS:
                self.outcome, self.text = outcome, text
            self._left -= 1
            if not self._left:
                self._data = None

    def _attempt(self) -> tuple[Outcome, str, float]:
        from ...errors import NotImplemented as NoKernel

        with self._lock:
            data = self._data = self._data or read(self._place, self._declared)
        names = [output.name for output in self._session.get_outputs()]
        if not self._inference and not data.outputs and names:
            return Outcome.UNKNOWN_ERROR, f"there are no expected outputs in {data.path}", 0.0
        start = time.perf_counter()
        try:
            values = self._session.run(names, data.inputs)
        except Exception as error:
            kind = Outcome.NOT_SUPPORT if isinstance(error, NoKernel) else Outcome.WITH_EXCEPTION
            return kind, _text(error), time.perf_counter() - start
        seconds = time.perf_counter() - start
        found = dict(zip(names, values, strict=True))
        if self._inference:
            with self._lock:
                write_values(self._place.folder, f"{self._place.prefix}actual_output_", found.items(),
                             self._declared.outputs)
            return Outcome.SUCCESS, "", seconds
        for name, wanted in data.outputs.items():
            differs = compare(wanted, found[name], self._tolerance)
            if differs is not None:
                return _MISMATCHES[differs.kind], f"{name}: {differs.text}", seconds
        return Outcome.SUCCESS, "", seconds


def _text(error: Exception) -> str:
    """An error's message; its class as well where it is none of this runtime's."""
    from ...errors import ALL

    own = isinstance(error, (*ALL, ValueError, OSError))
    return str(error) if own else f"{type(error).__name__}: {error}"
