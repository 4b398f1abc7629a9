"""Which optimization pass, kernel or definition changes a result.

In: a model, the settings that are doubted, and a side that is trusted. Out: a `Bisection` with a `Culprit`
for each thing that has to be left out before both agree. `compare` first cuts out the smallest part of the
model that shows the difference; on that part the rewrites of the optimizer and the nodes that run on kernels
are searched in halves.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, field, replace
from pathlib import Path
from typing import Any

from ... import knobs
from ...limits import DEFAULT
from ...records import dataclass
from .comparison import BUDGET, Comparison, Notify, ValueReport, compare, feeds_of
from .divergence import Tolerance, measure
from .extract import Model
from .narrow import NOISE, Case, least
from .sides import Side, kernels_of, side

LEVELS = {"disable": 0, "basic": 1, "extended": 2, "layout": 3, "all": 99}
MOST = 4
"""Culprits that are looked for."""
_PRUNED = 24
_NAMED = 4


@dataclass(frozen=True)
class Culprit:
    """What changes the result. `kind`: "pass", "kernel" or "definition". `name`: of the pass, of the kernels,
    of the operators. `nodes`: their names. `before`, `after`: what the rewrite took out and put in.
    `rewrite`, `rewrites`: its number, and how many there are, in `case`. `others`: nodes of the same operator
    that differ by themselves as well. `cure`: the switch that leaves it all out. `enough`: whether the whole
    model agrees with this and the culprits before left out."""

    kind: str
    name: str
    nodes: tuple[str, ...]
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    rewrite: int = 0
    rewrites: int = 0
    others: tuple[str, ...] = ()
    cure: str = ""
    enough: bool = False
    case: Case | None = None

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        found = asdict(replace(self, case=None))
        return {**found, "case": None if self.case is None else self.case.plain()}


@dataclass
class Bisection:
    """`verdict`: "agree"; "amplified", see `compare`; "found", with `culprits`; "unknown" where the sides
    differ and nothing that can be left out changes that."""

    candidate: str
    reference: str
    verdict: str = "agree"
    culprits: list[Culprit] = field(default_factory=list)
    outputs: list[ValueReport] = field(default_factory=list)
    files: list[str] = field(default_factory=list)

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        return {"candidate": self.candidate, "reference": self.reference, "verdict": self.verdict,
                "culprits": [c.plain() for c in self.culprits],
                "outputs": [{"output": v.value, **v.error.plain()} for v in self.outputs],
                "files": self.files}


def bisect(
    model: str | os.PathLike[str] | bytes | Any, feeds: Mapping[str, Any] | None = None, *,
    candidate: Any = "cpu", against: Any = "reference", level: str = "all",
    tolerance: Tolerance | None = None, save: str | os.PathLike[str] | None = None, seed: int = 0,
    budget: int = BUDGET, notify: Notify = lambda _: None,
) -> Bisection:
    """Name what makes `candidate` at `level` differ from `against`, the definitions in numpy without
    optimization, or onnxruntime. Arguments as in `compare`.

    Raises Fail, naming the side, where a side cannot run the model.
    """
    whole = model if isinstance(model, Model) else Model(model)
    fed = dict(feeds) if feeds is not None else feeds_of(whole, seed=seed)
    doubted = side(candidate, level=level, seed=seed)
    trusted = side(against, level=level if against == "onnxruntime" else "disable", seed=seed)
    it = Bisection(doubted.title, trusted.title)
    interpret: tuple[str, ...] = ()
    while len(it.culprits) < MOST:
        with knobs.setting(INTERPRET=_names(interpret)):
            found = compare(whole, doubted, trusted, fed, tolerance=tolerance, budget=budget, notify=notify)
        it.outputs = it.outputs or found.outputs
        if found.verdict != "diverge":
            if it.culprits:
                it.culprits[-1] = replace(it.culprits[-1], enough=True)
            else:
                it.verdict = found.verdict
            break
        search = _Search(whole, fed, doubted, trusted, tolerance or Tolerance(), interpret, notify)
        if found.case is not None:
            search = search.on(found.case)
        culprit = search.culprit()
        if culprit is None:
            it.verdict = it.verdict if it.culprits else "unknown"
            break
        it.verdict = "found"
        if culprit.kind == "kernel":
            culprit = _with_others(culprit, found)
        it.culprits.append(replace(culprit, case=found.case))
        if culprit.kind == "definition" or not culprit.cure:
            break
        if culprit.kind == "pass":
            doubted = replace(doubted, skip=(*doubted.skip, culprit.name))
        else:
            interpret = (*interpret, *culprit.nodes[-1:], *culprit.others)
    if save is not None:
        _save(it, Path(save), whole)
    return it


def _with_others(culprit: Culprit, found: Comparison) -> Culprit:
    """`culprit` with the nodes beside it that are at fault on their own."""
    kinds = {v.op_type for v in found.values if v.fault and v.node in culprit.nodes}
    others = dict.fromkeys(v.node for v in found.values if v.fault and v.op_type in kinds
                           and v.node not in culprit.nodes)
    named = [*culprit.nodes[-1:], *others] if len(others) < _NAMED else sorted(kinds)
    return replace(culprit, others=tuple(others), cure=f"ORTHRUS_INTERPRET={_names(named)}")


def _save(it: Bisection, folder: Path, whole: Model) -> None:
    """Each culprit's case, in folders 2, 3, ... below that of the first."""
    for n, culprit in enumerate(it.culprits, 1):
        if culprit.case is not None:
            files = culprit.case.save(folder if n == 1 else folder / str(n), whole.folder)
            it.files += [str(f) for f in files]


def _names(labels: Sequence[str]) -> str:
    """Labels for the switch INTERPRET, which commas divide."""
    return ",".join(label.replace(",", "?") for label in labels)


class _Search:
    """Looks for the culprit in one model, for one set of feeds."""

    def __init__(self, model: Model, feeds: Mapping[str, Any], doubted: Side, trusted: Side,
                 tolerance: Tolerance, interpret: tuple[str, ...], notify: Callable[[str], None]) -> None:
        self.model, self.feeds, self.doubted, self.trusted = model, feeds, doubted, trusted
        self.tolerance, self.interpret, self.notify = tolerance, interpret, notify
        self.expected: dict[str, Any] | None = None
        self.limits: dict[str, float] = {}

    def on(self, case: Case) -> _Search:
        """The same search in a part, whose outputs may be a quarter as far apart as they are at fault."""
        model = Model(case.model)
        model.folder = self.model.folder
        made = _Search(model, case.inputs, case.side, self.trusted, self.tolerance, self.interpret,
                       self.notify)
        made.expected = case.outputs
        made.limits = {name: max(1.0, error.excess / NOISE if math.isfinite(error.excess) else 1.0)
                       for name, error in case.errors.items() if error.beyond}
        return made

    def culprit(self) -> Culprit | None:
        """The culprit; None where nothing changes the result, or it does not show here."""
        if self.expected is None:
            self.expected = self.trusted.run(self.model.source, self.model.folder, self.feeds)
            self.limits = dict.fromkeys(self.expected, 1.0)
        if not self.differs():
            return None
        self.notify("running the definitions")
        if not self.trusted.peer or not self._differs(side("reference", seed=self.doubted.seed)):
            self.notify("running the optimized model on numpy")
            return self.rewrite() if self.differs(interpret="*") else self.kernel()
        nodes = [i for i in range(len(self.model.nodes)) if i not in self.model.static]
        return Culprit("definition", ", ".join(dict.fromkeys(self.model.nodes[i].op_type for i in nodes)),
                       tuple(self.model.labels[i] for i in nodes))

    def differs(self, stop: int = -1, skip: Sequence[str] = (), interpret: str | None = None) -> bool:
        """Whether the doubted side differs after `stop` rewrites, without the passes `skip`, with the nodes
        `interpret` on numpy."""
        names = _names(self.interpret) if interpret is None else interpret
        with knobs.setting(STOP=stop, INTERPRET=names):
            return self._differs(replace(self.doubted, skip=(*self.doubted.skip, *skip)))

    def _differs(self, it: Side) -> bool:
        assert self.expected is not None
        try:
            got = it.run(self.model.source, self.model.folder, self.feeds, list(self.expected))
        except Exception:
            return True
        return any(measure(got[name], self.expected[name], self.tolerance).excess > limit
                   for name, limit in self.limits.items())

    # passes

    def rewrite(self) -> Culprit | None:
        """The first rewrite with which the optimized model differs, on numpy."""
        total = sum(count for count, _ in self._optimized(-1)[0].values())
        if not self.differs(stop=total, interpret="*"):
            return self._by_name()
        low, high = 0, total
        if self.differs(stop=0, interpret="*"):
            return None
        while high - low > 1:
            middle = (low + high) // 2
            self.notify(f"with {middle} of {total} rewrites")
            low, high = (low, middle) if self.differs(stop=middle, interpret="*") else (middle, high)
        before, after = self._optimized(low), self._optimized(high)
        name = next((n for n, (count, _) in after[0].items() if count != before[0].get(n, (0, 0))[0]), "")
        gone = [text for text in before[1] if text not in after[1]]
        come = [text for text in after[1] if text not in before[1]]
        nodes = tuple(dict.fromkeys(before[1][text] for text in gone)) or tuple(
            dict.fromkeys(after[1][text] for text in come))
        return Culprit("pass", name, nodes, tuple(gone), tuple(come), high, total,
                       cure=f"ORTHRUS_SKIP={name}" if name else "")

    def _optimized(self, stop: int) -> tuple[dict[str, tuple[int, int]], dict[str, str]]:
        """After `stop` rewrites: (how often, level) by pass, and the nodes' labels by their text."""
        from ...load import load
        from ...optimize import optimize

        source = self.model.source
        graph = load(source, limits=DEFAULT, external_root=self.model.folder)
        try:
            with knobs.setting(STOP=stop):
                journal = optimize(graph, LEVELS[self.doubted.level], self.doubted.skip, limits=DEFAULT)
            return ({e.name: (e.count, e.level) for e in journal},
                    {repr(node): node.label for node in graph.walk()})
        finally:
            graph.release()

    def _by_name(self) -> Culprit | None:
        """The pass without which the model agrees, where its rewrites cannot be counted off."""
        for name, (count, _) in self._optimized(-1)[0].items():
            if count and not self.differs(skip=[name], interpret="*"):
                return Culprit("pass", name, (), cure=f"ORTHRUS_SKIP={name}")
        return None

    # kernels

    def kernel(self) -> Culprit | None:
        """The fewest neighbouring nodes that differ when only they run on kernels."""
        session = self.doubted.session(self.model.source, self.model.folder)
        try:
            labels = list(dict.fromkeys(r.node for r in session.explain() if r.node not in self.interpret))
        finally:
            session.close()

        def bad(chosen: Sequence[str]) -> bool:
            self.notify(f"with {len(chosen)} of {len(labels)} nodes on kernels")
            kept = set(chosen)
            return self.differs(interpret=_names([*self.interpret, *(n for n in labels if n not in kept)]))

        if not labels or not bad(labels):
            return None
        end = least(1, len(labels), lambda n: bad(labels[:n]))
        count = least(1, end, lambda n: bad(labels[end - n:end]))
        chosen = labels[end - count:end]
        if 1 < count <= _PRUNED:
            for name in chosen[:-1]:
                rest = [other for other in chosen if other != name]
                chosen = rest if bad(rest) else chosen
        others = [n for n in labels if n not in chosen]
        with knobs.setting(INTERPRET=_names([*self.interpret, *others])):
            names = kernels_of(self.doubted, self.model.source, self.model.folder, self.feeds)
        ran = [kernel for node, kernel in names if set(node.split(" + ")) & set(chosen)]
        return Culprit("kernel", ", ".join(dict.fromkeys(ran)), tuple(chosen), cure="ORTHRUS_INTERPRET")
