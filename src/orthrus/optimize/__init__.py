"""Graph in, better graph out. `PASSES` is the whole order of optimization, and the four public levels are its
prefixes.

Every pass keeps what the graph computes, the names and order of its outputs, and its inputs. A pass can be
left out by name, is timed and journalled, and can be verified, dumped and bisected (see `knobs`).
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from .. import knobs
from ..ir import Graph, verify
from ..limits import Limits, current, using
from ..ops.infer import merged
from ..ops.schema import newest_opset
from ..records import dataclass
from . import cleanup, folding
from .dimensions import Dimensions
from .pattern import Listed, Rule
from .rewrite import Entry, Settings, Work, bodies_below
from .rules import upgrade
from .rules.index import LISTS

if TYPE_CHECKING:
    from .dump import Graphs

__all__ = ["PASSES", "Entry", "Pass", "Settings", "at", "optimize", "run_passes", "unused"]

log = logging.getLogger("orthrus")

_ROUNDS = 6


@dataclass(frozen=True)
class Pass:
    """A name, the level from which it runs, and a rule or a function that answers how much it changed.
    Neighbouring rules of one `row` share a walk."""

    level: int
    what: Rule | Callable[[Work], int]
    row: int

    @property
    def name(self) -> str:
        return self.what.name if isinstance(self.what, Rule) else self.what.__name__


_rows = itertools.count()


def at(level: int, *what: Rule | Callable[[Work], int]) -> list[Pass]:
    """A row of passes of one level."""
    row = next(_rows)
    return [Pass(level, it, row) for it in what]


def _of(lists: str) -> Iterator[Rule]:
    """The rules of lists, named by module and name."""
    for each in lists.split():
        module = each.partition(".")[0]
        yield from (Listed(name, f"{__name__}.rules.{module}", text) for name, text in LISTS[each])


PASSES: tuple[Pass, ...] = (
    *at(0, upgrade.upgrade_old_forms),
    *at(1, cleanup.drop_dead_nodes, folding.fold_shapes, folding.fold_constants, folding.fold_branches,
         cleanup.drop_identity, cleanup.merge_common_subexpressions),
    *at(1, *_of("movement.BASIC arithmetic.BASIC convolution.BASIC linear.BASIC")),
    *at(1, cleanup.drop_unused_initializers),
    *at(2, *_of("movement.EXTENDED diffusion.EXTENDED")),
    *at(2, *_of("activation.EXTENDED normalization.EXTENDED normalization.GROUPS")),
    *at(2, *_of("rotary.EXTENDED attention.EXTENDED")),
    *at(2, *_of("linear.EXTENDED normalization.LAST arithmetic.EXTENDED classical.EXTENDED")),
    *at(2, *_of("spelled.EXTENDED")),
    *at(3, *_of("movement.LAYOUT")),
)


def optimize(
    graph: Graph,
    level: int = 99,
    skip: Iterable[str] = frozenset(),
    *,
    limits: Limits | None = None,
    record: Callable[[str, Graph], None] | None = None,
) -> list[Entry]:
    """Improve `graph` in place with the passes up to `level` (0, 1 basic, 2 extended, 3 layout, 99 all) but
    those in `skip`; answer a journal with one entry per pass.

    `limits` bounds folded constants (the thread's limits where not given). `record` is called with a pass's
    name and the graph after each pass that changed it.
    """
    left_out = frozenset(skip)
    return run_passes(graph, [p for p in PASSES if p.level <= level and p.name not in left_out],
                      limits=limits, record=record)


def run_passes(graph: Graph, passes: Iterable[Pass], settings: Settings | None = None, *,
               limits: Limits | None = None, record: Callable[[str, Graph], None] | None = None
               ) -> list[Entry]:
    """Run `passes` on `graph` in place, level by level, each level until nothing changes; for the answer and
    the parameters see `optimize`. `settings`: what rules find as `op.settings`."""
    left_out = knobs.names(knobs.SKIP)
    chosen = [p for p in passes if p.name not in left_out]
    entries: dict[str, Entry] = {}
    for it in chosen:
        entries.setdefault(it.name, Entry(it.name, it.level))
    run = _Run(graph, limits or current(), entries, record, settings)
    declared = {(body, v.name): v.type for body in run.graphs for v in body.outputs}
    try:
        with using(run.limits):
            for stage in sorted({p.level for p in chosen}):
                run.settle([p for p in chosen if p.level <= stage])
    finally:
        run.dimensions.forget(run.graphs)
        for body in run.graphs:
            for value in body.outputs:
                value.type = merged(declared.get((body, value.name)), value.type)
    if knobs.DEBUG >= 3:
        for entry in entries.values():
            if entry.count or entry.declined:
                log.info("%s%s", entry, "".join("\n  declined at " + line for line in entry.declined))
    return list(entries.values())


LEVELS = {0: "disable", 1: "basic", 2: "extended", 3: "layout"}
"""The levels passes belong to, by number."""


def unused(level: int, skip: Iterable[str] = frozenset()) -> dict[str, str]:
    """The passes that `optimize` leaves out for this level and these names, and why."""
    named, switched = frozenset(skip), knobs.names(knobs.SKIP)
    found: dict[str, str] = {}
    for it in PASSES:
        why = ("left out by name" if it.name in named else "named in ORTHRUS_SKIP" if it.name in switched
               else f"belongs to the level {LEVELS[it.level]}" if it.level > level else "")
        found[it.name] = why and found.get(it.name, why)
    return {name: why for name, why in found.items() if why}


class _Run:
    """One call of `optimize`."""

    def __init__(self, graph: Graph, limits: Limits, entries: dict[str, Entry],
                 record: Callable[[str, Graph], None] | None, settings: Settings | None) -> None:
        self.graph, self.limits, self.entries, self.record = graph, limits, entries, record
        self.settings = settings
        self.left = [float("inf") if knobs.STOP.value < 0 else float(knobs.STOP.value)]
        self.graphs = [graph, *bodies_below(graph)]
        self.version = 0
        self.clean: dict[tuple[int, str], int] = {}
        folder = knobs.dump_folder("passes")
        self.dumped: Graphs | None = None
        if folder is not None:
            from .dump import Graphs

            self.dumped = Graphs(folder)
            self.dumped.write("loaded", graph)
        self.dimensions = Dimensions({**graph.info.opsets, "": newest_opset("") or 1}, self.graphs)

    def settle(self, passes: Sequence[Pass]) -> None:
        """Run `passes` in order, again and again, until none changes the graph."""
        for _ in range(_ROUNDS):
            before = self.version
            if len(passes) > 1:
                for graph in self.graphs:
                    self.dimensions.refine(graph)
            for group in _grouped(passes):
                self.apply(group)
            if self.version == before:
                return

    def apply(self, group: list[Pass]) -> None:
        """Run one pass, or a row of rules in one walk, on the graph and every body."""
        name, key = group[0].name, (group[0].row, group[0].name)
        if self.clean.get(key) == self.version:
            return
        counts = {p.name: self.entries[p.name].count for p in group}
        changed = False
        for graph in list(self.graphs):
            work = Work(graph, self.limits, self.left, self.entries, settings=self.settings)
            start = time.perf_counter()
            if isinstance(group[0].what, Rule):
                found = work.run_rules([p.what for p in group if isinstance(p.what, Rule)])
            else:
                found = group[0].what(work)
                self.entries[name].count += found
            work.finish()
            if not isinstance(group[0].what, Rule):
                self.entries[name].seconds += time.perf_counter() - start
            changed |= bool(found)
            if work.new_bodies or (found and len(self.graphs) > 1 and graph is self.graph):
                self.graphs = [self.graph, *bodies_below(self.graph)]
        if not changed:
            self.clean[key] = self.version
            return
        self.version += 1
        fired = [each for each, count in counts.items() if self.entries[each].count > count]
        self.after("+".join(fired))

    def after(self, name: str) -> None:
        if knobs.CHECK >= 1:
            verify(self.graph)
        if knobs.DEBUG >= 5:
            log.info("--- after %s\n%s", name, self.graph)
        if self.dumped is not None:
            self.dumped.write(name, self.graph)
        if self.record is not None:
            self.record(name, self.graph)


def _grouped(passes: Sequence[Pass]) -> list[list[Pass]]:
    groups: list[list[Pass]] = []
    for it in passes:
        last = groups[-1][-1] if groups else None
        if (
            last is not None
            and isinstance(it.what, Rule)
            and isinstance(last.what, Rule)
            and it.row == last.row
        ):
            groups[-1].append(it)
        else:
            groups.append([it])
    return groups
