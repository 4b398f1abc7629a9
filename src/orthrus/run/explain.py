"""Why each node runs where it does, and what the compiled parts are made of: to ask, to print, to write as
JSON.

In: a placement, a program and the journal of the passes. Out: `Explanation`. Making one costs about as much
as listing the nodes; what parts hold is looked up when it is first asked for, and tells of the plans there
are by then. An explanation outlives its session, and keeps the session's kernels until it goes itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, field
from typing import Any

from ..ir import Graph, Node
from ..kernels import Contents, KernelUse, Packed, Part, PlanReport, Span, short_name
from ..partition import Placement, Refusal
from ..plan import Arena, Program
from ..providers.base import Remark
from ..records import cached_property, dataclass
from ..shown import html_table

CPU = "CPUExecutionProvider"


@dataclass(frozen=True)
class NodeReport:
    """One node: where it runs, with which kernel, in which fused part, and who declined it and why.

    `remark`: why its provider generates no code for it, "" where it does or never would; `harmless`: nothing
    is lost by that."""

    node: str
    op_type: str
    domain: str
    version: int
    provider: str
    kernel: str
    part: str
    refusals: tuple[Refusal, ...]
    depth: int
    remark: str = ""
    harmless: bool = False

    @property
    def short_part(self) -> str:
        """`cpu 3` for the part, "" where there is none."""
        return short_name(self.provider, self.part)

    @property
    def kind(self) -> str:
        return f"{self.domain}::{self.op_type}" if self.domain else self.op_type

    def __str__(self) -> str:
        inside = f" in {self.short_part}" if self.part else ""
        indent = "  " * self.depth
        why = "".join(f"\n{indent}    not {refusal}" for refusal in self.refusals)
        why += f"\n{indent}    not generated: {self.remark}" if self.remark else ""
        where = f"{self.provider}, {self.kernel}{inside}"
        return f"{indent}{self.node} ({self.kind}-{self.version}) -> {where}{why}"


@dataclass(frozen=True)
class PartReport:
    """One compiled part. `plans` has what is known of it for each tuple of input shapes so far, the newest
    last; the other properties are those of the newest that was compiled. `silent`: its provider does not say
    what is in its kernels."""

    name: str
    provider: str
    nodes: tuple[str, ...]
    kernel: str
    plans: tuple[PlanReport, ...] = ()
    constants: tuple[Packed, ...] = ()
    threads: int = 1
    silent: bool = False

    @property
    def short(self) -> str:
        """`cpu 3` for the name."""
        return short_name(self.provider, self.name)

    @property
    def plan(self) -> PlanReport | None:
        """The newest plan, one that runs by definitions only where there is no other."""
        compiled = [plan for plan in self.plans if not plan.interpreted] or self.plans
        return compiled[-1] if compiled else None

    @property
    def state(self) -> str:
        """Why there are no steps to show, "" where there are."""
        if self.plan is None:
            return f"a kernel of {self.provider}" if self.silent else "compiled at the first run"
        return "its nodes run by their definitions" if self.plan.interpreted else ""

    @property
    def kernels(self) -> tuple[KernelUse, ...]:
        """The kernels, how many steps call each, over how many work items in all."""
        return self.plan.kernels if self.plan else ()

    @property
    def arena(self) -> int:
        """Bytes of intermediate results, and of what threads need for themselves, in one run."""
        return self.plan.arena + self.plan.scratch * self.threads if self.plan else 0

    @property
    def places(self) -> tuple[Span, ...]:
        """What lies where in the arena."""
        return self.plan.places if self.plan else ()

    @property
    def packed(self) -> int:
        """Bytes of constants in the form that kernels read, those not counted that are read where they
        were."""
        return sum(c.bytes for c in self.constants if c.how != "as it is")

    @property
    def numpy(self) -> dict[str, str]:
        """Nodes of this part that run on numpy by the newest plan, and why."""
        plan = self.plan
        if plan is None:
            return {}
        guess = " (for guessed shapes)" if plan.guessed else ""
        if plan.interpreted:
            return dict.fromkeys(self.nodes, f"its part does not compile: {plan.interpreted}{guess}")
        return {node: reason + guess for node, reason in plan.numpy.items()}

    def __str__(self) -> str:
        plan = self.plan
        title = f"part {self.short} ({self.name}): {len(self.nodes)} nodes"
        if plan is None:
            return f"{title}, {self.state}"
        if plan.interpreted:
            return f"{title}, run by their definitions: {plan.interpreted}"
        used = ", ".join(f"{use.name} {use.count}" for use in plan.kernels)
        return (f"{title} in {len(plan.steps)} steps ({used}), "
                f"{self.arena} bytes of arena, {self.packed} of packed constants")


@dataclass(frozen=True)
class Declined:
    """A pass that matched at `node` and left it as it was, and why."""

    name: str
    node: str
    reason: str

    def __str__(self) -> str:
        return f"{self.name} at {self.node}: {self.reason}"


@dataclass(frozen=True)
class Memory:
    """Bytes a session takes: `weights` as the model gave them, `packed` as kernels read them, `arena` for the
    intermediate results of one run, with what threads need for themselves. `places` has every value's place
    in its part's arena."""

    weights: int
    packed: int
    arena: int
    places: tuple[Span, ...]


@dataclass(frozen=True)
class Explanation:
    """Every node's report in running order, bodies of control flow after their node; the passes that were
    tried, with their counts; `skipped`: those that were not, and why. `absent`: the providers that were asked
    for and cannot work here, and why."""

    nodes: tuple[NodeReport, ...]
    passes: tuple[Any, ...]
    timings: dict[str, float]
    skipped: dict[str, str] = field(default_factory=dict)
    weights: int = 0
    outside: tuple[Span, ...] = ()
    outside_bytes: int = 0
    absent: dict[str, str] = field(default_factory=dict)
    _sources: tuple[tuple[PartReport, Callable[[], Contents | None] | None], ...] = field(
        default=(), repr=False)

    def __iter__(self) -> Iterator[NodeReport]:
        return iter(self.nodes)

    def __len__(self) -> int:
        return len(self.nodes)

    def __getitem__(self, name: str) -> NodeReport:
        """The report of the node called `name`. Raises KeyError with the names there are."""
        for report in self.nodes:
            if report.node == name:
                return report
        raise KeyError(f"no node {name!r}; there are {', '.join(r.node for r in self.nodes)}")

    @property
    def providers(self) -> dict[str, int]:
        """How many nodes each provider runs."""
        counts: dict[str, int] = {}
        for report in self.nodes:
            counts[report.provider] = counts.get(report.provider, 0) + 1
        return counts

    @cached_property
    def parts(self) -> tuple[PartReport, ...]:
        """The compiled parts, as they are when this is first asked for."""
        made = []
        for part, describe in self._sources:
            described = describe() if describe is not None else None
            found = described or Contents((), ())
            made.append(PartReport(part.name, part.provider, part.nodes, part.kernel, found.plans,
                                   found.constants, found.threads, described is None))
        return tuple(made)

    @property
    def memory(self) -> Memory:
        """What the session's weights and one run take."""
        places = [place for part in self.parts for place in part.places]
        return Memory(self.weights, sum(part.packed for part in self.parts),
                      self.outside_bytes + sum(part.arena for part in self.parts),
                      (*self.outside, *places))

    @property
    def declined(self) -> tuple[Declined, ...]:
        """Where passes matched and declined: of each pass up to 20 different reasons."""
        found = []
        for entry in self.passes:
            for line in entry.declined:
                node, _, reason = line.partition("): ")
                found.append(Declined(entry.name, node.rpartition(" (")[0], reason or line))
        return tuple(found)

    @property
    def numpy(self) -> dict[str, str]:
        """The nodes of the CPU provider that run on numpy although generated code would be faster, and why;
        by the newest plan of each part."""
        found = {n.node: n.remark for n in self.nodes if n.remark and not n.harmless}
        for part in self.parts:
            found.update(part.numpy)
        return found

    @property
    def fallen(self) -> dict[str, str]:
        """The nodes that run on the CPU provider after another one had been asked, and what that said."""
        return {n.node: "; ".join(map(str, n.refusals)) for n in self.nodes
                if n.provider == CPU and n.refusals and not n.kernel.startswith("control ")}

    def __str__(self) -> str:
        placed = ", ".join(f"{count} on {name}" for name, count in self.providers.items())
        fired = ", ".join(f"{e.name} {e.count}" for e in self.passes if e.count) or "none"
        spent = ", ".join(f"{name} {1e3 * seconds:.1f} ms" for name, seconds in self.timings.items())
        absent = [f"without {name}: {reason}" for name, reason in self.absent.items()]
        return "\n".join([f"{len(self.nodes)} nodes: {placed}", *absent, f"passes: {fired}", f"time: {spent}",
                          *map(str, self.nodes), *map(str, self.parts)])

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {str(self).partition(chr(10))[0]}>"

    def _repr_html_(self) -> str:
        rows = [(n.node, f"{n.kind}-{n.version}", n.provider, n.kernel, n.short_part,
                 "; ".join([*map(str, n.refusals), n.remark])) for n in self.nodes]
        return html_table(("node", "operator", "provider", "kernel", "part", "why"), rows)

    def plain(self) -> dict[str, Any]:
        """All of it as plain data, for JSON."""
        parts = []
        for part in self.parts:
            plans = [{**asdict(plan), "kernels": [asdict(use) for use in plan.kernels]}
                     for plan in part.plans]
            parts.append({"name": part.name, "short": part.short, "provider": part.provider,
                          "nodes": list(part.nodes),
                          "threads": part.threads, "arena": part.arena, "packed": part.packed,
                          "kernels": [asdict(use) for use in part.kernels],
                          "constants": [asdict(c) for c in part.constants], "plans": plans})
        memory = self.memory
        return {
            "nodes": [{**asdict(n), "refusals": [asdict(r) for r in n.refusals]} for n in self.nodes],
            "providers": self.providers,
            "absent": self.absent,
            "passes": {e.name: e.count for e in self.passes if e.count},
            "passes_tried": [{"name": e.name, "level": e.level, "count": e.count, "seconds": e.seconds}
                             for e in self.passes],
            "declined": [asdict(d) for d in self.declined],
            "skipped": self.skipped,
            "parts": parts,
            "numpy": self.numpy,
            "memory": {"weights": memory.weights, "packed": memory.packed, "arena": memory.arena,
                       "places": [asdict(place) for place in memory.places]},
            "seconds": self.timings,
        }


def explain(placement: Placement, program: Program, passes: Sequence[Any], timings: Mapping[str, float],
            skipped: Mapping[str, str] | None = None, arena: Arena | None = None) -> Explanation:
    """The report of a compiled graph. `arena`: that of the steps outside of compiled parts."""
    weights = {id(x): x.nbytes for x in program.template if hasattr(x, "nbytes")}
    nodes: list[NodeReport] = []
    sources: list[tuple[PartReport, Callable[[], Contents | None] | None]] = []
    _reports(placement, program, 0, nodes, sources)
    for part in placement.parts:
        weights.update((id(v.const), v.const.nbytes) for node in part.nodes for v in node.inputs
                       if v is not None and hasattr(v.const, "nbytes"))
    return Explanation(tuple(nodes), tuple(passes), dict(timings), dict(skipped or {}), sum(weights.values()),
                       tuple(_places(program, arena)), arena.size if arena is not None else 0,
                       _sources=tuple(sources))


def _places(program: Program, arena: Arena | None) -> Iterator[Span]:
    if arena is None:
        return
    names = {slot: value.name for value, slot in program.slots.items()}
    for p in arena.places:
        size = p.dtype.itemsize
        for d in p.shape:
            size *= d
        yield Span("", names[arena.code[p.step][4].writes[0]], p.offset, size, p.step, p.end)


def _reports(placement: Placement, program: Program, depth: int, nodes: list[NodeReport],
             sources: list[tuple[PartReport, Callable[[], Contents | None] | None]]) -> None:
    inner: dict[Graph, Program] = {}
    for step in program.calls:
        inner.update((body.graph, body) for body in step.bodies)
        part, kernel = step.part, step.kernel
        if part.fused:
            labels = tuple(node.label for node in part.nodes)
            sources.append((PartReport(part.name, part.provider, labels, kernel.name), kernel.describe))
        for node in part.nodes:
            nodes.append(_report(node, part, kernel.name, placement, depth))
            for body in node.bodies():
                if body in inner:
                    _reports(placement.bodies[body], inner[body], depth + 1, nodes, sources)


def _report(node: Node, part: Part, kernel: str, placement: Placement, depth: int) -> NodeReport:
    remark = placement.remarks.get(node, Remark("", True))
    if kernel.startswith("generated"):
        remark = Remark("", True)
    elif remark.harmless and remark.reason and kernel.startswith("reference "):
        from ..lowering.claims import REGISTERED

        if remark.reason == REGISTERED:
            remark = Remark(f"the kernel that is registered for {node.kind} is not for it", False)
    return NodeReport(node.label, node.op_type, node.domain, node.version, part.provider, kernel, part.name,
                      tuple(placement.refusals.get(node, ())), depth, remark.reason, remark.harmless)
