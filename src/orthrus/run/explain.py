"""Why each node runs where it does, as an object to ask and as text to read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ..ir import Graph, Node
from ..partition import Placement, Refusal
from ..plan import Program


@dataclass(frozen=True)
class NodeReport:
    """One node: where it runs, with which kernel, in which fused part, and who declined it and why."""

    node: str
    op_type: str
    domain: str
    version: int
    provider: str
    kernel: str
    part: str
    refusals: tuple[Refusal, ...]
    depth: int

    def __str__(self) -> str:
        kind = f"{self.domain}::{self.op_type}" if self.domain else self.op_type
        inside = f" in {self.part}" if self.part else ""
        indent = "  " * self.depth
        why = "".join(f"\n{indent}    not {refusal}" for refusal in self.refusals)
        return f"{indent}{self.node} ({kind}-{self.version}) -> {self.provider}, {self.kernel}{inside}{why}"


@dataclass(frozen=True)
class Explanation:
    """Every node's report in running order, bodies of control flow after their node, and the
    passes that changed the graph."""

    nodes: tuple[NodeReport, ...]
    passes: tuple[Any, ...]
    timings: dict[str, float]

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

    def __str__(self) -> str:
        placed = ", ".join(f"{count} on {name}" for name, count in self.providers.items())
        fired = ", ".join(f"{e.name} {e.count}" for e in self.passes if e.count) or "none"
        spent = ", ".join(f"{name} {1e3 * seconds:.1f} ms" for name, seconds in self.timings.items())
        return "\n".join([f"{len(self.nodes)} nodes: {placed}", f"passes: {fired}", f"time: {spent}",
                          *map(str, self.nodes)])


def explain(placement: Placement, program: Program, passes: Sequence[Any],
            timings: dict[str, float]) -> Explanation:
    """The report of a compiled graph."""
    return Explanation(tuple(_reports(placement, program, 0)), tuple(passes), dict(timings))


def _reports(placement: Placement, program: Program, depth: int) -> Iterator[NodeReport]:
    inner: dict[Graph, Program] = {}
    for step in program.steps:
        inner.update((body.graph, body) for body in step.control)
        for node in step.part.nodes:
            yield _report(node, step.part.provider, step.kernel.name, step.part.name, placement, depth)
            for body in node.bodies():
                if body in inner:
                    yield from _reports(placement.bodies[body], inner[body], depth + 1)


def _report(node: Node, provider: str, kernel: str, part: str, placement: Placement,
            depth: int) -> NodeReport:
    return NodeReport(node.label, node.op_type, node.domain, node.version, provider, kernel, part,
                      tuple(placement.refusals.get(node, ())), depth)
