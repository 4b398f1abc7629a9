"""`orthrus explain`: where each node runs and why, what compiled parts hold, and what the passes did.

In: a model. Out: tables, or JSON that has all of them. With a strict option, exit code 1 where a node does
not run as it was asked to, with the reason of each.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .arguments import (
    ImportOption,
    JsonOption,
    LevelOption,
    ModelArgument,
    NodesOption,
    ProviderOption,
    SettingOption,
    TrustOption,
    console,
    option_of,
    print_json,
    say,
    session_of,
    waiting,
)

if TYPE_CHECKING:
    from rich.table import Table

    from ...run.explain import Explanation, PartReport

PartsOption = Annotated[bool, option_of(
    "--parts", help="List each compiled part: its kernels with steps and work items, and its steps with the "
                    "nodes each works for, for every tuple of input shapes that there is a plan for.")]
MemoryOption = Annotated[bool, option_of(
    "--memory", help="List what takes memory: weights, packed constants, and each value's place in its "
                     "part's arena, with the first and the last step that need it.")]
PassesOption = Annotated[bool, option_of(
    "--passes", help="List what the passes did and how long they took, where they matched and declined and "
                     "why, and which were left out.")]
StrictOption = Annotated[bool, option_of(
    "--strict", help="End with exit code 1 where a node fell to the CPU provider although another one was "
                     "asked for, or where one asked for cannot work here; say why.")]
GeneratedOption = Annotated[bool, option_of(
    "--strict-generated", help="End with exit code 1 where a node of the CPU provider runs on numpy instead "
                               "of generated code; say why. Views and control flow do not count.")]
RunShapeOption = Annotated[list[str] | None, option_of(
    "--shape", metavar="NAME=1,3,224,224",
    help="Run once on generated inputs, this one of this shape, so that parts are shown as compiled for "
         "these shapes; open dimensions are guessed otherwise. Repeat for more inputs.")]
SHOWN = 12
WIDE = 160
"""Columns of tables that go to a file or a pipe."""


def command(
    model: ModelArgument, provider: ProviderOption = None, option: SettingOption = None,
    modules: ImportOption = None, level: LevelOption = "all",
    trust: TrustOption = "", shape: RunShapeOption = None,
    nodes: NodesOption = False, parts: PartsOption = False, memory: MemoryOption = False,
    passes: PassesOption = False, strict: StrictOption = False, strict_generated: GeneratedOption = False,
    as_json: JsonOption = False,
) -> None:
    """Show where each node of a model runs and why, what compiled parts hold, what the passes did, and what
    each stage took."""
    from .display import placement

    session = session_of(model, provider, option, modules, level, 0, trust=trust)
    if shape:
        _run_once(session, model, shape)
    report = session.explain()
    if as_json:
        print_json(report.plain())
    else:
        out = console()
        if not out.is_terminal and not os.environ.get("COLUMNS"):
            out.width = WIDE
        if not (parts or memory or passes) or nodes:
            out.print(placement(report, nodes))
        for asked, tables in ((parts, part_tables), (memory, memory_tables), (passes, pass_tables)):
            if asked:
                out.print(*tables(report), sep="\n")
    check(session, report, provider, strict, strict_generated)


def _run_once(session: Any, model: Path, shape: Sequence[str]) -> None:
    from . import feeds

    with waiting("running once"):
        fed, _ = feeds.fed(model, session.get_inputs(), [], shape, 0, lambda feed: session.run(None, feed))
    say(fed.note)


def check(session: Any, report: Explanation, asked: Sequence[str] | None, strict: bool, generated: bool
          ) -> None:
    """End the command with exit code 1 and the reasons where the placement is not what was asked for."""
    from rich.text import Text

    from .display import reasons_text

    said = []
    if strict and (missing := unusable(session, asked)):
        said.append(reasons_text("asked for, and cannot work here", missing))
    if strict and report.fallen:
        said.append(reasons_text(f"{len(report.fallen)} of {len(report)} nodes fell to the CPU provider",
                                 report.fallen))
    if generated and report.numpy:
        said.append(reasons_text(f"{len(report.numpy)} of {len(report)} nodes run on numpy", report.numpy))
    if said and any("(for guessed shapes)" in text for text in said):
        said.append("What is said of guessed shapes may be otherwise for yours: --shape NAME=1,3,224,224")
    if said:
        console(stderr=True).print(Text("\n".join(said), style="red"))
        raise typer.Exit(1)


def unusable(session: Any, asked: Sequence[str] | None) -> dict[str, str]:
    """The providers that were asked for and are not in the session, and why."""
    from ...providers import known
    from ..asked import full_name

    classes = known()
    names = [full_name(name, list(classes)) for name in asked or ()]
    found = {}
    for name in names:
        if name not in session.get_providers():
            why = classes[name].probe()
            found[name] = why.reason if why is not None else "it was left out"
    return found


def part_tables(report: Explanation) -> list[Any]:
    """Per compiled part and plan the kernels, and the steps with their nodes."""
    from rich.text import Text

    from .display import size_text, table

    found: list[Any] = []
    for part in report.parts:
        found.append(Text(f"{part.name}\n{len(part.nodes)} nodes, {part.threads} threads, "
                          f"{size_text(part.packed)} of packed constants", style="bold"))
        if not part.plans:
            found.append(Text(f"{part.state}\n"))
        for plan in part.plans:
            shapes = ", ".join(f"{name} {kind}" for name, kind in _first(plan.inputs))
            found.append(Text(f"\nfor {shapes or 'no inputs'}" + (" (guessed)" if plan.guessed else "")))
            if plan.interpreted:
                found.append(Text(f"run by the nodes' definitions: {plan.interpreted}\n"))
                continue
            free = f"; {len(plan.known)} nodes follow from shapes alone" if plan.known else ""
            found.append(Text(f"{len(plan.steps)} steps, {size_text(plan.arena)} of arena, "
                              f"{size_text(plan.scratch)} for each thread, made in "
                              f"{1e3 * plan.seconds:.1f} ms{free}\n"))
            found.append(table("", ("kernel", "steps", "items"),
                               [(use.name, use.count, f"{use.items:,}") for use in plan.kernels],
                               right=(1, 2)))
            found += [Text(), _steps(plan.steps), Text()]
    return found or [Text("no compiled parts")]


def _first(pairs: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    more = [("", f"and {len(pairs) - SHOWN} more")] if len(pairs) > SHOWN else []
    return [*pairs[:SHOWN], *more]


def _steps(steps: Sequence[Any]) -> Table:
    from .display import table

    rows = [(i, (step.file or step.kernel) + (" (edited)" if step.edited else ""),
             f"{step.items:,}" if step.file else "",
             joined(step.nodes) + (f"  (numpy: {step.reason})" if step.reason else ""))
            for i, step in enumerate(steps)]
    return table("", ("step", "kernel", "items", "nodes"), rows, right=(0, 2))


def joined(nodes: Sequence[str]) -> str:
    """Names in a row; what one shares with the first, up to a slash, is written once."""
    first = nodes[0] if nodes else ""
    shared = [max(os.path.commonprefix([first, name]).rfind("/"), 0) for name in nodes]
    return " + ".join(name if not i or at < 4 else f"..{name[at:]}"
                      for i, (name, at) in enumerate(zip(nodes, shared, strict=True)))


def memory_tables(report: Explanation) -> list[Any]:
    """What takes memory: the sums, the largest packed constants, and the arenas."""
    from .display import size_text, table

    memory = report.memory
    found: list[Any] = [table("Memory", ("", "bytes", ""), [
        (name, f"{count:,}", size_text(count)) for name, count in (
            ("weights, as the model has them", memory.weights), ("constants, as kernels read them",
                                                                 memory.packed),
            ("arena of one run", memory.arena))], right=(1, 2))]
    packed = [c for part in report.parts for c in part.constants if c.how != "as it is"]
    if packed:
        rows: list[tuple[Any, ...]] = [(c.value or "(table)", c.how, size_text(c.bytes))
                                       for c in sorted(packed, key=lambda c: -c.bytes)[:SHOWN]]
        if len(packed) > SHOWN:
            rest = sum(c.bytes for c in packed) - sum(
                c.bytes for c in sorted(packed, key=lambda c: -c.bytes)[:SHOWN])
            rows.append((f"and {len(packed) - SHOWN} more", "", size_text(rest)))
        found.append(table("\nPacked constants", ("value", "as", "size"), rows, right=(2,)))
    for part in report.parts:
        if part.places:
            found.append(_arena(part))
    if report.outside:
        found.append(table("\nArena outside of compiled parts", ("value", "offset", "bytes", "steps"),
                           [_place(p) for p in report.outside], right=(1, 2)))
    return found


def _arena(part: PartReport) -> Table:
    from .display import size_text, table

    live: dict[int, int] = {}
    for place in part.places:
        for step in range(place.first, place.last + 1):
            live[step] = live.get(step, 0) + place.bytes
    most = max(live.values(), default=0)
    title = f"\nArena of {part.name}: {size_text(part.plan.arena if part.plan else 0)}, of which at most " \
            f"{size_text(most)} are needed at once"
    return table(title, ("value", "offset", "bytes", "steps"), [_place(p) for p in part.places], right=(1, 2))


def _place(place: Any) -> tuple[Any, ...]:
    return place.value, f"{place.offset:,}", f"{place.bytes:,}", f"{place.first} to {place.last}"


def pass_tables(report: Explanation) -> list[Any]:
    """Every pass that was tried, where passes declined, and which were left out."""
    from rich.text import Text

    from ...optimize import LEVELS
    from .display import table

    busy = [p for p in report.passes if p.count]
    idle = [p for p in report.passes if not p.count]
    rows = [(p.name, LEVELS[p.level], p.count, f"{1e3 * p.seconds:.2f}") for p in busy]
    rows.append((f"{len(idle)} more", "", 0, f"{1e3 * sum(p.seconds for p in idle):.2f}"))
    found: list[Any] = [table("Passes", ("pass", "level", "times", "ms"), rows, right=(2, 3))]
    if idle:
        found.append(Text(f"\nWithout effect: {', '.join(p.name for p in idle)}"))
    if report.declined:
        found.append(table("\nMatched and declined", ("pass", "reason", "at, for example"),
                           [(d.name, d.reason, d.node) for d in report.declined]))
    else:
        found.append(Text("\nno pass matched and declined"))
    if report.skipped:
        found.append(table("\nLeft out", ("pass", "why"), list(report.skipped.items())))
    return found
