"""`orthrus estimate`: how long a model would take on a SpacemiT chip or a GPU, from the code made for it.

In: a model, a target and a number of cores. Out: an `Estimate`: milliseconds for each node and for all, and
what each waits for. Nothing runs, no board, GPU or emulator is needed; what figures rest on, and what they
leave out, is at `providers.spacemit.cycles` and `cycles_walk`, and at `providers.gpu.estimate`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from ...records import dataclass
from .arguments import JsonOption, ModelArgument, console, option_of, print_json, waiting

TargetOption = Annotated[str, option_of(
    "--target", "-t", metavar="NAME", help="The chip: spacemit-k1 (the default), spacemit-k3, "
                                           "spacemit-k3-x100, or a GPU's generation: gfx942, gfx1100, "
                                           "sm_90, ...")]
CoresOption = Annotated[int, option_of(
    "--cores", "-c", min=1, help="Cores that work on a run, 1 by default.")]
DimensionOption = Annotated[list[str] | None, option_of(
    "--dim", metavar="NAME=SIZE", help="Size of a named dimension; what stays open gets a likely one. Repeat "
                                       "for more.")]
VaryOption = Annotated[bool, option_of(
    "--vary", help="Also say what comes out under other assumptions.")]
MostOption = Annotated[int, option_of(
    "--most", min=0, help="So many nodes at most in the table, the slowest; 30 by default, 0 for all.")]

WIDE = 160
"""Columns of tables that go to a file or a pipe."""


@dataclass(frozen=True)
class NodeTime:
    """A node, or those that a kernel computes with it, in all its steps. `cycles` of the core that takes
    longest; `bound`: what its longest step waits for, see `providers.spacemit.estimate.StepTime`; `fused`:
    all nodes; `near`, `far`: bytes from L2 and from DRAM."""

    node: str
    op_type: str
    kernel: str
    milliseconds: float
    cycles: float
    bound: str
    instructions: int
    near: float
    far: float
    fused: tuple[str, ...]


@dataclass(frozen=True)
class Estimate:
    """A model on `cores` cores of `target`. `milliseconds`: of a whole run; `host`: those of it that are
    steps of numpy, which are no more than a guess. `varied`: milliseconds under other assumptions."""

    model: str
    target: str
    chip: str
    cores: int
    milliseconds: float
    host: float
    nodes: tuple[NodeTime, ...]
    varied: Mapping[str, float]

    def plain(self) -> dict[str, Any]:
        """Everything as plain data, for JSON."""
        return asdict(self)


class Planned:
    """A model lowered for a target, for `cores` cores, not run. `model`: a path, bytes, a ModelProto or a
    session made from one of these. Raises what loading raises, and InvalidArgument for an unknown target."""

    def __init__(self, model: Any, target: str, cores: int = 1,
                 dimensions: Mapping[str, int] | None = None) -> None:
        from ...api.session import Session
        from ...providers.spacemit.cycles import chip
        from ...providers.spacemit.estimate import Planner, Rest
        from ...run.config import Config
        from ...run.engine import Engine

        self.target, self.cores, self.chip = target, cores, chip(target)
        if cores > self.chip.cores:
            raise ValueError(f"{self.chip.name} has {self.chip.cores} cores for this, not {cores}")
        planner, rest = Planner(target, cores), Rest(target, cores)
        source = model._sess._source if isinstance(model, Session) else model
        self.name = Path(source).stem if isinstance(source, str | Path) else ""
        engine = Engine(str(source) if isinstance(source, Path) else source, Config(
            providers=[planner, rest], intra_op_threads=cores, free_dims=dict(dimensions or {})))
        self.graph = engine.graph
        self.natives = [*planner.made, *rest.made]
        self.alone = [part.nodes[0] for part in engine.placement.parts if not part.fused]

    def estimate(self, cores: int | None = None, variation: str = "") -> Estimate:
        """The times on `cores` cores, at most those it was planned for, under the usual assumptions or under
        one of `cycles.VARIATIONS`."""
        from ...profiling.cost import head_of
        from ...providers.spacemit.cycles import varied
        from ...providers.spacemit.estimate import estimator, host_time

        count = self.cores if cores is None else cores
        chip = varied(self.chip, variation) if variation else self.chip
        found: dict[Any, list[Any]] = {}
        steps = estimator(self.target)
        for native in self.natives:
            for plan in native.lowered():
                times = steps.times(plan, chip, count)
                for work, time in zip(plan.works(native.part), times, strict=True):
                    entry = found.setdefault(head_of(work), [work, []])
                    entry[1].append(time)
        nodes = [_node(head, work, times) for head, (work, times) in found.items()]
        interpreted = [n for native in self.natives if not any(native.plans.values())
                       for n in native.part.nodes]
        for node in (*self.alone, *interpreted):
            spent = host_time()
            nodes.append(NodeTime(node.label, node.op_type, f"reference {node.op_type}", spent,
                                  spent * 1e6 * chip.core.clock, "host", 0, 0.0, 0.0, (node.label,)))
        return Estimate(self.name, self.target, chip.name, count, sum(n.milliseconds for n in nodes),
                        sum(n.milliseconds for n in nodes if n.bound == "host"), tuple(nodes), {})


def estimate(model: Any, target: str = "spacemit-k1", cores: int = 1,
             dimensions: Mapping[str, int] | None = None, vary: bool = False) -> Estimate:
    """How long a run of `model` would take; see `Planned`. `dimensions`: sizes of named dimensions. `vary`:
    also under each of `cycles.VARIATIONS`, which SpacemiT's chips have."""
    from dataclasses import replace

    from ...providers.spacemit.cycles import VARIATIONS

    if target.startswith(("gfx", "sm_")):
        return _on_gpu(model, target, dimensions or {})

    planned = Planned(model, target, cores, dimensions)
    made = planned.estimate()
    if not vary:
        return made
    return replace(made, varied={name: planned.estimate(variation=name).milliseconds for name in VARIATIONS})


def _on_gpu(model: Any, target: str, dimensions: Mapping[str, int]) -> Estimate:
    """A run on the target's chip, in one graph."""
    from ...api.session import Session
    from ...load import load
    from ...optimize import optimize
    from ...partition import partition
    from ...providers.gpu import estimate as gpu
    from ...run.dimensions import fix_dimensions

    chosen = gpu.named(target)
    source = model._sess._source if isinstance(model, Session) else model
    graph = load(str(source) if isinstance(source, Path) else source)
    fix_dimensions(graph, dict(dimensions), {})
    planner = gpu.Planner(chosen)
    optimize(graph, planner.level)
    parts = [part for part in partition(graph, [planner]).parts if part.fused]
    times = [time for part in parts for time in gpu.estimated(part, chosen)]
    taken = {node for part in parts for node in part.nodes}
    times += [gpu.on_host(node) for node in graph.nodes if node not in taken]
    nodes = tuple(NodeTime(t.node.label, t.node.op_type, t.kernel, t.milliseconds, t.cycles, t.bound,
                           t.instructions, t.near, t.far, (t.node.label,)) for t in times)
    name = Path(source).stem if isinstance(source, str | Path) else ""
    return Estimate(name, target, gpu.CHIPS[target][0], 1, sum(n.milliseconds for n in nodes),
                    sum(n.milliseconds for n in nodes if n.bound == "host"), nodes, {})


def _node(head: Any, work: Any, times: list[Any]) -> NodeTime:
    longest = max(times, key=lambda t: t.milliseconds)
    return NodeTime(head.label, head.op_type, " + ".join(dict.fromkeys(t.kernel for t in times)),
                    sum(t.milliseconds for t in times), sum(t.cycles for t in times), longest.bound,
                    sum(t.instructions for t in times), sum(t.near for t in times),
                    sum(t.far for t in times), tuple(n.label for n in work.nodes))


def command(model: ModelArgument, target: TargetOption = "spacemit-k1", cores: CoresOption = 1,
            dim: DimensionOption = None, vary: VaryOption = False, most: MostOption = 30,
            as_json: JsonOption = False) -> None:
    """Estimate how long a model takes on a SpacemiT chip or a GPU, from the code generated for it; nothing
    runs."""
    sizes: dict[str, int] = {}
    for text in dim or ():
        name, _, size = text.partition("=")
        if not size.isdigit():
            raise typer.BadParameter(f"--dim {text}: expected NAME=SIZE")
        sizes[name] = int(size)
    with waiting("following the code"):
        made = estimate(model, target, cores, sizes, vary)
    if as_json:
        print_json(made.plain())
        return
    out = console()
    if not out.is_terminal:
        out.width = WIDE
    for each in rendered(made, most):
        out.print(each)


def rendered(made: Estimate, most: int) -> list[Any]:
    """The estimate as a summary and tables for a terminal."""
    from rich.text import Text

    from ...providers.spacemit.cycles import VARIATIONS
    from .display import size_text, table

    by = {bound: sum(n.milliseconds for n in made.nodes if n.bound == bound)
          for bound in dict.fromkeys(n.bound for n in made.nodes)}
    bounds = ", ".join(f"{bound} {ms:.2f}" for bound, ms in sorted(by.items(), key=lambda kv: -kv[1]))
    cores = "" if made.target.startswith(("gfx", "sm_")) else "1 core of " if made.cores == 1 else (
        f"{made.cores} cores of ")
    summary = Text(f"{made.model or 'the model'} on {cores}{made.chip}: about {made.milliseconds:.2f} "
                   f"ms, an estimate\nms by what is waited for: {bounds}\n")
    shown = sorted(made.nodes, key=lambda n: -n.milliseconds)[:most or None]
    rows = [(f"{n.milliseconds:.3f}", f"{100 * n.milliseconds / made.milliseconds:.1f}", n.bound,
             f"{n.cycles / 1e6:.2f}", f"{n.instructions / 1e6:.2f}", size_text(round(n.near)),
             size_text(round(n.far)), n.op_type, n.kernel, n.node) for n in shown]
    parts: list[Any] = [summary, table("", ("ms", "%", "bound", "Mcycles", "Minstr", "L2", "DRAM", "operator",
                                            "kernel", "node"), rows, right=(0, 1, 3, 4, 5, 6))]
    if len(shown) < len(made.nodes):
        parts.append(Text(f"and {len(made.nodes) - len(shown)} more nodes; --most 0 lists them"))
    if made.varied:
        parts.append(table("\nUnder other assumptions", ("ms", "assumed"),
                           [(f"{ms:.2f}", VARIATIONS[name]) for name, ms in made.varied.items()], right=(0,)))
    return parts
