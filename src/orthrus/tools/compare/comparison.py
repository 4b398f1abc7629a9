"""Two sides, one model: where they part, and whose fault it is.

In: a model, two sides, feeds. Out: a `Comparison`. Values in the middle of a model can only be seen as
outputs of it, which keeps them from being fused away; so the untouched model is compared first, then every
value, and where only the untouched model shows a fault it is hunted by cutting the model (`narrow`). A node
is at fault where it differs while both sides give it the same inputs (its own error); a difference without
such a node is roundings that grew on their way (amplified).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import ALL
from ...limits import DEFAULT
from ...records import dataclass
from .divergence import Divergence, Tolerance, measure
from .extract import Model
from .narrow import NOISE, Case, fused_case, node_case
from .sides import Kept, Side, settled, side, titled

BUDGET = 1 << 29
"""Bytes of values that a side keeps at a time."""
_UNKNOWN = 1 << 20
_ROUNDED = ("QuantizeLinear", "DynamicQuantizeLinear", "Resize", "Upsample", "AveragePool")
"""Operators whose whole numbers come from rounding, as those named QLinear do."""
_COARSE = ("DynamicQuantizeLSTM", "DynamicQuantizeMatMul", "QAttention")
"""Operators that quantize inside themselves: a rounding there is a step of their result."""
_STEP = 5e-2
_EPSILONS = 16
IN_PLACE = "only in its place"
"""The note of a node that is right by itself and wrong where it stands."""
Notify = Callable[[str], None]


@dataclass(frozen=True)
class ValueReport:
    """One value: the node that makes it, and how far the sides are apart there. `error` has gathered from the
    model's inputs on; `own` is what the node itself adds when side a's node is fed side b's inputs, None
    where that was not asked. `note`: why there is no number."""

    value: str
    node: str
    op_type: str
    index: int
    error: Divergence
    own: Divergence | None = None
    note: str = ""
    match: str = ""

    @property
    def fault(self) -> bool:
        """Whether the node itself differs beyond tolerance."""
        return self.own is not None and self.own.beyond


@dataclass
class Comparison:
    """`outputs`: of the untouched model; `values`: of every node, each value kept, in running order.
    `verdict`: "agree"; "amplified", the outputs differ but no node does by itself; "diverge", with `first`,
    the first node at fault, and `case`, the smallest part that shows it; both are None where nothing smaller
    than the model does."""

    a: str
    b: str
    verdict: str = "agree"
    first: ValueReport | None = None
    outputs: list[ValueReport] = field(default_factory=list)
    values: list[ValueReport] = field(default_factory=list)
    case: Case | None = None
    unmatched: list[str] = field(default_factory=list)
    files: list[str] = field(default_factory=list)

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        return {"a": self.a, "b": self.b, "verdict": self.verdict,
                "first": None if self.first is None else _plain(self.first),
                "outputs": [_plain(v) for v in self.outputs], "values": [_plain(v) for v in self.values],
                "case": None if self.case is None else self.case.plain(), "unmatched": self.unmatched,
                "files": self.files}


def _plain(report: ValueReport) -> dict[str, Any]:
    own = None if report.own is None else report.own.plain()
    return {**asdict(report), "error": report.error.plain(), "own": own}


def compare(
    model: str | os.PathLike[str] | bytes | Any, a: Any = "cpu", b: Any = "reference",
    feeds: Mapping[str, Any] | None = None, *, level: str = "all", tolerance: Tolerance | None = None,
    isolated: bool = False, save: str | os.PathLike[str] | None = None, seed: int = 0, budget: int = BUDGET,
    notify: Notify = lambda _: None, b_level: str | None = None,
) -> Comparison:
    """Run `model` on side `a` and side `b`, and say where `a` parts from `b`.

    `a`, `b`: see `sides.side`. `level`: of optimization; of side b `b_level`. `feeds`: generated from `seed`
    where None. `isolated`: every node's own error, not only those of nodes that differ. `save`: a folder for
    the smallest model that shows the difference, with its inputs and b's outputs. `budget`: bytes of values
    kept at a time. `notify` is told what goes on.

    Raises Fail, naming the side, where a side cannot run the model.
    """
    first, second = side(a, level=level, seed=seed), side(b, level=b_level or level, seed=seed)
    return _Run(model, first, second, feeds, tolerance, seed, budget, notify).compare(isolated, save)


class _Run:
    """One call of `compare`."""

    def __init__(self, model: Any, a: Side, b: Side, feeds: Mapping[str, Any] | None,
                 tolerance: Tolerance | None, seed: int, budget: int, notify: Notify) -> None:
        self.model = model if isinstance(model, Model) else Model(model)
        self.a, self.b = titled(a, b)
        self.feeds = dict(feeds) if feeds is not None else feeds_of(self.model, seed=seed)
        self.tolerance, self.budget, self.notify = tolerance or Tolerance(), budget, notify
        self.ours, self.theirs = (Kept(each, self.model, self.feeds) for each in (self.a, self.b))

    def compare(self, isolated: bool, save: str | os.PathLike[str] | None) -> Comparison:
        it, model = Comparison(self.a.title, self.b.title), self.model
        it.outputs = self.untouched()
        runs = list(batches(model, self.feeds, self.budget))
        for batch in runs:
            it.values += self._batch(batch, isolated, len(runs) == 1)
        self._own_errors(it.values, isolated)
        it.first = next((v for v in it.values if v.fault), None)
        if it.first is not None:
            it.verdict = "diverge"
            self.notify("cutting out the node")
            it.case = node_case(self.a, self.theirs, it.first.index, self._tolerance_of)
            if it.case is None:
                it.case = self._fused([it.first.value], {})
        elif odd := self._odd(it):
            self.notify("looking for what is faulty only when it is fused")
            it.case = self._fused(odd, {v.value: NOISE * v.error.excess for v in it.values})
            it.verdict = "diverge"
            if it.case is not None:
                it.first = next(v for v in it.values if v.node == it.case.nodes[-1])
        elif any(v.error.beyond and v.index not in model.random for v in it.outputs):
            it.verdict = "amplified"
        if save is not None and it.case is not None:
            it.files = [str(f) for f in it.case.save(Path(save), model.folder)]
        return it

    def _fused(self, values: Sequence[str], noise: Mapping[str, float]) -> Case | None:
        doubted = settled(self.a, self.model, self.feeds)
        return fused_case(doubted, self.theirs, values, noise, self._gathered, self.notify)

    def untouched(self) -> list[ValueReport]:
        """The outputs of the model as it is, fused as it may be."""
        made = []
        for each in (self.a, self.b):
            self.notify(f"running {each.title}")
            made.append(each.run(self.model.source, self.model.folder, self.feeds))
        return [self._report(name, measure(made[0][name], made[1][name], self._gathered(name)))
                for name in self.model.outputs]

    def _gathered(self, value: str) -> Tolerance:
        """What `value` is allowed for all that came before it: a double that comes from floats, as much as
        they are."""
        allowed = self._tolerance_of(value)
        if not self.model.narrow:
            return allowed
        return replace(allowed, doubles=allowed.of(np.dtype(np.float32), 1.0)[1])

    def _tolerance_of(self, value: str) -> Tolerance:
        """What `value` is allowed: whole numbers that come from rounding floats may be one apart."""
        i = self.model.maker.get(value, -1)
        kind = self.model.nodes[i].op_type if i >= 0 else ""
        if kind in _COARSE and self.tolerance == Tolerance():
            return Tolerance(scaled=_STEP)
        rounded = kind in _ROUNDED or kind.startswith("QLinear")
        return replace(self.tolerance, steps=max(1, self.tolerance.steps)) if rounded else self.tolerance

    def _report(self, value: str, error: Divergence, own: Divergence | None = None, note: str = ""
                ) -> ValueReport:
        i = self.model.maker.get(value, -1)
        label, kind = (self.model.labels[i], self.model.nodes[i].op_type) if i >= 0 else ("", "")
        return ValueReport(value, label, kind, i, error, own, note)

    def _batch(self, values: Sequence[str], isolated: bool, only: bool) -> list[ValueReport]:
        """A report for each of `values`, which are kept on both sides; side b's for good where these are
        all."""
        model = self.model
        nodes = sorted({model.maker[v] for v in values})
        reads = [name for name in model.border(nodes) if name not in self.feeds] if isolated else []
        self.notify(f"comparing {len(values)} values from {model.labels[nodes[0]]} on")
        theirs = self.theirs.values([*values, *reads])
        if only:
            self.theirs.known.update(theirs)
        ours = self.ours.values(values)
        errors = {v: measure(ours[v], theirs[v], self._gathered(v)) for v in values}
        del ours
        own = self._alone(nodes, theirs, self.a) if isolated else {}
        return [self._judged(v, errors[v], own.get(v)) for v in values]

    def _judged(self, value: str, error: Divergence, own: Divergence | str | None) -> ValueReport:
        if self.model.maker[value] in self.model.random:
            return self._report(value, Divergence(elements=error.elements), None, "random")
        if isinstance(own, str):
            return self._report(value, error, None, own)
        return self._report(value, error, own)

    def _own_errors(self, reports: list[ValueReport], known: bool) -> None:
        """Give every value that is too far apart its node's own error, unless that is `known`; where that is
        small, the error it makes in its place: from what side b's node gives for side a's inputs."""
        model = self.model
        doubtful = [r.value for r in reports if r.error.beyond and not r.note and not r.fault]
        at = {r.value: i for i, r in enumerate(reports)}
        for batch in batches(model, self.feeds, self.budget, doubtful):
            nodes = sorted({model.maker[v] for v in batch})
            self.notify(f"feeding {len(nodes)} nodes of {self.a.title} what {self.b.title} has")
            made = [name for i in nodes for name in model.nodes[i].output if name]
            reads = [n for i in nodes for n in model.reads[i] if not model.is_static(n)]
            alone = {} if known else self._alone(nodes, self.theirs.values([*made, *reads]), self.a)
            for value, own in alone.items():
                reports[at[value]] = self._judged(value, reports[at[value]].error, own)
            left = [i for i in nodes if not any(
                reports[at[n]].fault for n in model.nodes[i].output if n)]
            for value, own in self._alone(left, self.ours.values([*made, *reads]), self.b).items():
                if isinstance(own, Divergence) and own.beyond and not reports[at[value]].note:
                    reports[at[value]] = replace(reports[at[value]], own=own, note=IN_PLACE)

    def _alone(self, nodes: Sequence[int], values: Mapping[str, Any], runs: Side
               ) -> dict[str, Divergence | str]:
        """What `nodes`, each fed from one side's `values` and run on the other side, differ by from that;
        why not, where it fails."""
        model = self.model
        nodes = [i for i in nodes if i not in model.random]
        if not nodes:
            return {}
        given = {**values, **self.feeds}
        part, renamed = model.alone(nodes, given)
        try:
            made = runs.run(part, model.folder, given, list(renamed.values()))
        except Exception as error:
            if len(nodes) == 1:
                return dict.fromkeys(renamed, f"fails by itself: {str(error).splitlines()[0]}")
            half = len(nodes) // 2
            return {**self._alone(nodes[:half], values, runs), **self._alone(nodes[half:], values, runs)}
        found: dict[str, Divergence | str] = {}
        for i in nodes:
            floor = _EPSILONS * max((_rounding(given[n]) for n in model.reads[i] if n in given), default=0.0)
            for name in model.nodes[i].output:
                if name:
                    got, expected = made[renamed[name]], values[name]
                    if runs is self.b:
                        got, expected = expected, got
                    found[name] = measure(got, expected, self._tolerance_of(name),
                                          0.0 if self.tolerance != Tolerance() else floor)
        return found

    def _odd(self, it: Comparison) -> list[str]:
        """Outputs of the untouched model that are further apart than kept values explain."""
        kept = {v.value: v.error.excess for v in it.values}
        return [v.value for v in it.outputs
                if v.value in kept and v.error.excess > max(1.0, NOISE * kept[v.value])
                and v.index not in self.model.random]


def _rounding(value: Any) -> float:
    """One rounding of the largest element of a float array."""
    if not isinstance(value, np.ndarray) or value.dtype.kind != "f" or not value.size:
        return 0.0
    finite = value[np.isfinite(value)]
    return float(np.finfo(value.dtype).eps * np.abs(finite).max(initial=0))


def feeds_of(model: Model, files: Sequence[str] = (), shapes: Sequence[str] = (), seed: int = 0,
             notify: Notify = lambda _: None) -> dict[str, Any]:
    """Feeds for every input: from `files`, as `run --input` takes them, else drawn from the declared type
    with `shapes` such as "x=1,3,8,8". Sizes for dimensions that are open are tried on the CPU provider;
    `notify` is told where the likely ones were refused. Raises ValueError for what does not fit, OSError for
    a missing file."""
    from ...ops.infer import from_type_proto
    from ..cli.feeds import fed
    from ..shapes.open_dimensions import Declared

    arguments = []
    for name, info in model.inputs.items():
        kind = from_type_proto(info.type)
        arguments.append(Declared(name, str(kind), getattr(kind, "shape", None)))
    with contextlib.ExitStack() as stack:
        session: Any = None

        def run(feed: dict[str, Any]) -> None:
            nonlocal session
            if session is None:
                made = side("cpu", seed=seed).session(model.source, model.folder)
                session = stack.enter_context(contextlib.closing(made))
            session.run([], feed)

        still = all(isinstance(d, int) and d >= 0 for each in arguments for d in each.shape or ())
        try:
            found, _ = fed(model.source, arguments, files, shapes, seed, (lambda _: None) if still else run)
        except ALL:
            # the sides say what is wrong, each for itself
            found, _ = fed(model.source, arguments, files, shapes, seed, lambda _: None)
    if found.note:
        notify(found.note)
    return found.values


def batches(model: Model, feeds: Mapping[str, Any], budget: int, values: Sequence[str] | None = None
            ) -> Iterator[list[str]]:
    """`values`, by default all that nodes make, in runs whose bytes stay within `budget`, the outputs of one
    node together."""
    sizes = _sizes(model, feeds)
    batch: list[str] = []
    held = 0
    for value in model.values if values is None else values:
        size = sizes.get(value, _UNKNOWN)
        if batch and held + size > budget and model.maker[value] != model.maker[batch[-1]]:
            yield batch
            batch, held = [], 0
        batch.append(value)
        held += size
    if batch:
        yield batch


def _sizes(model: Model, feeds: Mapping[str, Any]) -> dict[str, int]:
    """Bytes of values whose shapes follow from the feeds'."""
    from ...ir import TensorType
    from ...load import load
    from ...run.dimensions import fix_dimensions

    graph = load(model.source, limits=DEFAULT, external_root=model.folder)
    try:
        names: dict[str, int] = {}
        for value in graph.inputs:
            shape, kind = getattr(feeds.get(value.name), "shape", None), value.type
            if isinstance(kind, TensorType) and shape is not None:
                names.update((d, n) for d, n in zip(kind.shape or (), shape, strict=False)
                             if isinstance(d, str))
                value.type = TensorType(kind.elem, tuple(shape))
        fix_dimensions(graph, names, {})
        return {v.name: int(np.prod(v.shape, dtype=np.int64)) * v.elem.numpy.itemsize
                for node in graph.nodes for v in node.outputs
                if v is not None and v.elem is not None and v.shape is not None
                and all(isinstance(d, int) for d in v.shape)}
    finally:
        graph.release()
