"""`orthrus.quantization.advise`: recipes tried on a model, with size, speed here and accuracy of each.

In: a float model, and data or none. Out: `Advice`, with a table, the recipe to take and its model's file. The
recipe proposed is never slower than the float model on this machine.
"""

from __future__ import annotations

import itertools
import math
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, field, replace
from pathlib import Path
from typing import Any

import onnx

from ...errors import ALL
from ...records import dataclass
from ...shown import shown
from ..calibrate import CalibrationDataReader
from ..opset import BY_CHANNEL, converted
from ..quant_utils import get_opset_version
from ..refused import InvalidValue
from .accuracy import MEASURES, Accuracy, Comparing, Score
from .errors_by_node import NodeError, errors_by_node
from .recipes import RECIPES, Job, Recipe, size_of
from .search import Memory, Tried, search

BLOCKS = 7
"""Pairs of blocks of runs that are timed, float and quantized in turns."""
GENERATED = 4
ENOUGH = 0.99
"""Agreement or cosine with float, or share of its score, that is enough where no target is given."""
WORST = 3
"""Nodes that are named as those from which most noise comes."""
NOTE = 160
"""Characters of an error that a table shows."""
COLUMNS = ("recipe", "size", "ms", "speedup", "SQNR dB", "cosine", "same class", "")
REFUSALS: tuple[type[Exception], ...] = (*ALL, ValueError, TypeError, NotImplementedError, RuntimeError)
"""What tools raise where they cannot do a model."""
_NO_DATA = "accuracy is that on random inputs, which says little of real ones: give data"
_NO_DOT = "this processor has no dot product of bytes: int8 products gain memory, hardly time"


@dataclass(frozen=True)
class Outcome:
    """What became of a recipe. `size`: bytes; `seconds`: median of a run; `speedup`: float's time over its
    own, between `low` and `high` in 95 of 100 cases; `left`: nodes left in float; `note`: why there are no
    figures."""

    recipe: str
    size: int = 0
    seconds: float = math.nan
    speedup: float = math.nan
    low: float = math.nan
    high: float = math.nan
    accuracy: Accuracy | None = None
    left: tuple[str, ...] = ()
    note: str = ""
    model: Path | None = None

    @property
    def faster(self) -> bool:
        """Whether it was shown to be faster than the float model here."""
        return (self.low if math.isfinite(self.low) else self.speedup) >= 1


@dataclass
class Advice:
    """What to do with a model. `float_model`: its own figures; `best`: the outcome proposed, None where none
    gains anything; `errors`: of the best, or else of the most accurate, by node; `steps`: of the search for
    nodes to leave in float; `notes`: what limits the figures."""

    float_model: Outcome
    outcomes: list[Outcome] = field(default_factory=list)
    best: Outcome | None = None
    measure: str = "cosine"
    errors: list[NodeError] = field(default_factory=list)
    steps: list[Tried] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    folder: Any = field(default=None, repr=False, compare=False)
    """What keeps the models' folder as long as the advice is there, where no folder was asked for."""

    def plain(self) -> dict[str, Any]:
        """For JSON; numbers that are infinite or none are texts."""
        return _plain(asdict(replace(self, folder=None)))

    def __str__(self) -> str:
        made = [row_of(each, self.best) for each in (self.float_model, *self.outcomes)]
        rows = [COLUMNS, *(tuple(map(shown, row)) for row in made)]
        widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
        lines = ["  ".join(text.ljust(width) if i in (0, 7) else text.rjust(width)
                           for i, (text, width) in enumerate(zip(row, widths, strict=True))).rstrip()
                 for row in rows]
        return "\n".join([*lines, "", self.verdict, *self.notes])

    @property
    def verdict(self) -> str:
        """What is proposed, in a sentence."""
        if self.best is None:
            return "no recipe is both faster than the float model here and accurate enough: keep it as it is"
        left = f", with {len(self.best.left)} nodes left in float" if self.best.left else ""
        return (f"take {self.best.recipe}{left}: {self.best.speedup:.2f} times as fast, "
                f"{self.best.size / self.float_model.size:.0%} of the size")

    def write_page(self, path: str | os.PathLike[str]) -> None:
        """Write one HTML file that shows the float model with each node's error in the quantized one."""
        from .page import page

        assert self.float_model.model is not None
        Path(path).write_text(page(self.float_model.model, self.errors), encoding="utf-8", errors="replace")


def row_of(outcome: Outcome, best: Outcome | None) -> tuple[str, ...]:
    """An outcome's cells: recipe, size, time, speedup, SQNR, cosine, agreement, note."""
    accuracy = outcome.accuracy
    left = f", {len(outcome.left)} nodes in float" if outcome.left else ""
    note = outcome.note or ("take this" if outcome is best else "" if outcome.faster else "not faster")
    if accuracy is None:
        return (outcome.recipe + left, "", "", "", "", "", "", note)
    same = "" if accuracy.agreement is None else f"{accuracy.agreement:.1%}"
    return (outcome.recipe + left, f"{outcome.size / 2**20:.2f} MiB", f"{1e3 * outcome.seconds:.3f}",
            f"{outcome.speedup:.2f}", f"{accuracy.sqnr:.1f}", f"{accuracy.cosine:.5f}", same, note)


def advise(
    model: str | os.PathLike[str], model_output: str | os.PathLike[str] | None = None, data: Any = None, *,
    evaluation: Iterable[Mapping[str, Any]] | None = None, score: Score | None = None,
    target_accuracy: float | None = None, measure: str | None = None, recipes: Sequence[str] = (),
    providers: Sequence[Any] | None = None, items: int = 64, folder: str | os.PathLike[str] | None = None,
    seconds: float = 1.0, tell: Callable[[str], None] = lambda _: None,
) -> Advice:
    """Quantize `model` in several ways, and say which is worth it here.

    `model_output`: a file for the model proposed; none is written where none is worth it. `data`: a
    `CalibrationDataReader`, or dicts of arrays by input name; every other item calibrates, the others are
    for accuracy, unless `evaluation` has items for that; `items`: at most of each. Without data inputs are
    random. `score`: a function of the outputs of all evaluated items, higher for better.

    Proposed is the fastest of those that are faster than float and accurate enough: `target_accuracy` in
    terms of `measure`, one of "sqnr" (dB), "cosine", "agreement" and "score", or 99 % of the float model's
    own. Where a target is given, nodes to leave in float are searched for until it is reached. `recipes`:
    names or their beginnings, all where empty. `folder`: keeps ranges, models and the search's steps, so that
    the same call goes on where an earlier one was broken off. `seconds`: of timing for each recipe. `tell`:
    is told what goes on.

    Raises InvalidValue for unknown recipes and measures, and for data of which nothing is left, and what
    loading and running the model raises.
    """
    if measure is not None and measure not in MEASURES:
        raise InvalidValue(f"accuracy is not measured in {measure!r}", expected=", ".join(MEASURES))
    chosen = [r for r in RECIPES if not recipes or any(r.name.startswith(name) for name in recipes)]
    if not chosen:
        raise InvalidValue("there are no such recipes", found=", ".join(recipes),
                           expected=", ".join(r.name for r in RECIPES))
    kept = tempfile.TemporaryDirectory(prefix="orthrus.quantize.") if folder is None else None
    place = Path(kept.name if kept is not None else folder or "")
    place.mkdir(parents=True, exist_ok=True)
    run = _Run(Path(model), place, data, evaluation, score, providers, items, seconds, tell)
    advice = run.advise(chosen, target_accuracy, measure, model_output)
    advice.folder = kept
    return advice


class _Run:
    """One call of `advise`."""

    def __init__(self, model: Path, folder: Path, data: Any, evaluation: Iterable[Mapping[str, Any]] | None,
                 score: Score | None, providers: Sequence[Any] | None, items: int, seconds: float,
                 tell: Callable[[str], None]) -> None:
        self.score, self.seconds, self.tell, self.providers = score, seconds, tell, providers
        given: list[Mapping[str, Any]] = []
        if data is not None:
            given += itertools.islice(_rows(data), 2 * items)
        if data is not None and not given:
            raise InvalidValue("the data has no item", cure="let it give dicts of arrays by input name")
        self.random = not given
        tell("preparing the model")
        prepared = _prepared(model, folder)
        self.float = self._session(prepared)
        if self.random:
            given += _generated(prepared, self.float)
        rows = list(itertools.islice(evaluation, items)) if evaluation is not None else []
        self.rows = rows or (given[1::2] if len(given) > 1 else given)
        calibration = [] if self.random else given if rows or len(given) == 1 else given[::2]
        self.job = Job(prepared, folder, calibration, providers)
        tell(f"running the float model on {len(self.rows)} items")
        self.trusted = [self.float.run(None, dict(row)) for row in self.rows]

    def advise(self, recipes: Sequence[Recipe], target: float | None, measure: str | None,
               output: str | os.PathLike[str] | None) -> Advice:
        """See the function."""
        own = self._compared(self.float)
        advice = Advice(Outcome("float", size_of(self.job.model), accuracy=own, model=self.job.model),
                        measure=measure or own.best_measure)
        for recipe in recipes:
            self.tell(recipe.name)
            advice.outcomes.append(self._tried(recipe))
        times = [each.seconds * each.speedup for each in advice.outcomes if each.seconds > 0]
        advice.float_model = self._float_timed(advice.float_model, times)
        if target is not None:
            self._searched(advice, recipes, target)
        if any(recipe.integer for recipe in recipes) and not _has_dot_product():
            advice.notes.append(_NO_DOT)
        advice.best = _best(advice, ENOUGH * own.of(advice.measure) if target is None else target)
        self._explained(advice)
        if advice.best is not None and advice.best.model is not None and output is not None:
            _copy_model(advice.best.model, Path(output))
        return advice

    def _session(self, path: Path) -> Any:
        from ... import InferenceSession

        return InferenceSession(os.fspath(path), providers=self.providers)

    def _compared(self, session: Any) -> Accuracy:
        comparing = Comparing(self.score)
        for row, trusted in zip(self.rows, self.trusted, strict=True):
            comparing.add(trusted, session.run(None, dict(row)))
        return comparing.result()

    def _tried(self, recipe: Recipe, left: Sequence[str] = ()) -> Outcome:
        """A recipe's model, compared and timed; why not, where it cannot be made or run."""
        if why := recipe.refused(self.job):
            return Outcome(recipe.name, note=why)
        try:
            path = self._made(recipe, left)
            session = self._session(path)
            accuracy = self._compared(session)
        except REFUSALS as error:
            return Outcome(recipe.name, left=tuple(left), note=shown(str(error).splitlines()[0])[:NOTE])
        seconds, ratio, low, high = self._raced(session)
        return Outcome(recipe.name, size_of(path), seconds, ratio, low, high, accuracy, tuple(left), "", path)

    def _made(self, recipe: Recipe, left: Sequence[str]) -> Path:
        name = recipe.name.replace(",", "").replace(" ", "-") + ("-partly" if left else "")
        path = self.job.folder / f"{name}.onnx"
        recipe.make(self.job, path, left)
        return path

    def _raced(self, session: Any) -> tuple[float, float, float, float]:
        """Seconds of a run, and float's time over it with its bounds: both in turns, on one item."""
        from ...tools.perf.latency import paired

        row = dict(self.rows[0])
        each = max(self._seconds_of(self.float, row, 1), 1e-7)
        count = max(1, int(self.seconds / 2 / BLOCKS / each))
        blocks = [[self._seconds_of(s, row, count) for s in (session, self.float)] for _ in range(BLOCKS)]
        found = paired([[ours for ours, _ in blocks]], [[theirs for _, theirs in blocks]])
        return statistics.median(ours for ours, _ in blocks), found.ratio, found.low, found.high

    def _seconds_of(self, session: Any, row: dict[str, Any], count: int) -> float:
        start = time.perf_counter()
        for _ in range(count):
            session.run(None, row)
        return (time.perf_counter() - start) / count

    def _float_timed(self, outcome: Outcome, times: Sequence[float]) -> Outcome:
        seconds = statistics.median(times) if times else self._seconds_of(self.float, dict(self.rows[0]), 1)
        return Outcome(outcome.recipe, outcome.size, seconds, 1.0, 1.0, 1.0, outcome.accuracy,
                       model=outcome.model)

    def _searched(self, advice: Advice, recipes: Sequence[Recipe], target: float) -> None:
        """Leave nodes in float in the most accurate recipe of those that are faster, until it is as accurate
        as asked for; nothing where one is already."""
        faster = [(o, r) for o, r in zip(advice.outcomes, recipes, strict=True)
                  if o.accuracy is not None and o.faster]
        if not faster or _best(advice, target) is not None:
            return
        start, recipe = max(faster, key=lambda pair: _accuracy(pair[0], advice.measure))

        def measured(left: Sequence[str]) -> float:
            return self._compared(self._session(self._made(recipe, left))).of(advice.measure)
        setting = f"{self.job.key} {recipe.name} {advice.measure} {len(self.rows)} items"
        memory = Memory(self.job.folder / "search.json", setting)
        advice.steps = search(self.job.heavy, target, measured, memory, lambda step: self.tell(
            f"{start.recipe}, {len(step.left)} of {len(self.job.heavy)} nodes in float: "
            f"{advice.measure} {step.accuracy:.5g}"))
        if advice.steps[-1].accuracy >= target:
            advice.outcomes.append(self._tried(recipe, advice.steps[-1].left))

    def _explained(self, advice: Advice) -> None:
        """Say where the error comes from, and what limits the figures."""
        shown_one = advice.best or max(
            (o for o in advice.outcomes if o.model is not None),
            key=lambda o: _accuracy(o, advice.measure), default=None)
        if shown_one is not None and shown_one.model is not None:
            self.tell("comparing node by node")
            advice.errors = errors_by_node(self.job.model, shown_one.model, self.rows[:2], self.providers)
        if self.random:
            advice.notes.append(_NO_DATA)
        worst = sorted((e for e in advice.errors if e.added), key=lambda e: -e.added)[:WORST]
        if worst:
            named = ", ".join(f"{e.node or e.value} ({e.op_type}, {e.added:.1%})" for e in worst)
            advice.notes.append(f"most noise comes from {shown(named)}")


def _best(advice: Advice, target: float) -> Outcome | None:
    """The fastest of those that are accurate enough and faster than float."""
    good = [o for o in advice.outcomes if o.faster and _accuracy(o, advice.measure) >= target]
    return max(good, key=lambda o: o.speedup, default=None)


def _accuracy(outcome: Outcome, measure: str) -> float:
    return -math.inf if outcome.accuracy is None else outcome.accuracy.of(measure)


def _rows(data: Any) -> Iterator[Mapping[str, Any]]:
    """The items of a reader, or of any iterable of dicts."""
    if isinstance(data, CalibrationDataReader) or not isinstance(data, Iterable):
        while (item := data.get_next()) is not None:
            yield dict(item)
        return
    yield from data


def _generated(model: Path, session: Any) -> list[dict[str, Any]]:
    from ...tools.cli.feeds import fed

    return [fed(os.fspath(model), session.get_inputs(), (), (), seed,
                lambda feed: session.run(None, feed))[0].values for seed in range(GENERATED)]


def _prepared(model: Path, folder: Path) -> Path:
    """The model with inferred shapes, a name for every node, and operators of a version that has scales by
    channel, in `folder`."""
    from ..shape_inference import quant_pre_process

    made = folder / "prepared.onnx"
    large = size_of(model) > 1 << 30
    try:
        quant_pre_process(os.fspath(model), os.fspath(made), save_as_external_data=large)
    except REFUSALS:
        quant_pre_process(os.fspath(model), os.fspath(made), skip_symbolic_shape=True, skip_optimization=True,
                          save_as_external_data=large)
    proto = onnx.load_model(os.fspath(made), load_external_data=False)
    if get_opset_version(proto) < BY_CHANNEL and not large:
        proto = converted(proto, BY_CHANNEL)
    seen: set[str] = set()
    for i, node in enumerate(proto.graph.node):
        if not node.name or node.name in seen:
            node.name = f"{node.op_type}_{i}"
        seen.add(node.name)
    onnx.save_model(proto, os.fspath(made))
    return made


def _copy_model(model: Path, output: Path) -> None:
    """The model's file under another name, its weights beside it where they have a file of their own."""
    proto = onnx.load_model(os.fspath(model), load_external_data=False)
    external = any(tensor.external_data for tensor in proto.graph.initializer)
    beside = output.with_name(output.name + ".part")
    if external:
        full = onnx.load_model(os.fspath(model))
        onnx.save_model(full, os.fspath(beside), save_as_external_data=True, location=output.name + ".data")
    else:
        shutil.copyfile(model, beside)
    os.replace(beside, output)


def _has_dot_product() -> bool:
    from ...codegen.machines.detect import host

    machine = host()
    return machine is not None and any(machine.has(each) for each in (
        "avx512vnni", "avxvnni", "amx-int8", "dotprod"))


def _plain(data: Any) -> Any:
    if isinstance(data, dict):
        return {key: _plain(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [_plain(value) for value in data]
    if isinstance(data, Path):
        return os.fspath(data)
    return str(data) if isinstance(data, float) and not math.isfinite(data) else data
