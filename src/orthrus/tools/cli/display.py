"""How results look in a terminal: tables, the placement of a session, and a sign of life for what takes long.

In: plain data and a rich console. Out: printed text. Names from a model are never markup, and nothing in them
reaches the terminal that it would obey.
"""

from __future__ import annotations

import contextlib
import re
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from ...run.explain import Explanation
from ...shown import shown
from ...shown import size_text as size_text

PATIENCE = 1.0
"""Seconds before a waiting person is told what is going on."""
REASONS = 12
ERROR_LINES = 20
_CODE = re.compile(r"^\[ONNXRuntimeError\] : \d+ : \w+ : ")


class Harmless(Console):
    """A console whose text a terminal prints and does not obey; colours and the like are its own."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=shown(segment.text))


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]],
          right: Sequence[int] = ()) -> Table:
    """A table of plain cells; `right` names the columns that hold numbers."""
    made = Table(title=Text(title) if title else None, title_justify="left", header_style="bold", box=None,
                 pad_edge=False, show_header=any(columns))
    for i, column in enumerate(columns):
        made.add_column(column, justify="right" if i in right else "left", overflow="fold")
    for row in rows:
        made.add_row(*(cell if isinstance(cell, Text) else Text(shown(str(cell))) for cell in row))
    return made


def shape_text(shape: Sequence[Any] | None) -> str:
    """`[N, 3, ?]`, or `...` where the rank is not known."""
    return "..." if shape is None else "[" + ", ".join("?" if d is None else str(d) for d in shape) + "]"


def error_text(error: BaseException) -> Text:
    """An exception as at most one screen: its class and its message."""
    text = "\n".join((str(error) or type(error).__name__, *getattr(error, "__notes__", ())))
    name = type(error).__name__
    text = _CODE.sub("", text, 1)
    lines = (text if isinstance(error, ValueError | OSError) else f"{name}: {text}").splitlines()
    if len(lines) > ERROR_LINES:
        lines = [*lines[:ERROR_LINES], f"... {len(lines) - ERROR_LINES} more lines"]
    lines = [line if len(line) <= 400 else line[:397] + "..." for line in lines]
    return Text(shown("\n".join(lines)), style="red")


@contextlib.contextmanager
def patience(console: Console, text: str) -> Iterator[None]:
    """Show a spinner with `text` once the block has taken over a second, where someone is watching."""
    if not console.is_terminal:
        yield
        return
    status = console.status(Text(shown(text)))
    timer = threading.Timer(PATIENCE, status.start)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
        status.stop()


def placement(report: Explanation, nodes: bool) -> Group:
    """The placement of a session: per provider and kernel, the reasons of refusals and of numpy, compiled
    parts, passes and times; `nodes`: each one."""
    parts: list[Any] = [_summary(report)]
    parts += [_each(report)] if nodes else [_kernels(report)]
    parts += [each for each in (_refusals(report), _on_numpy(report)) if each is not None]
    if report.parts:
        parts.append(_parts(report))
    fired = [(p.name, p.count) for p in report.passes if p.count]
    if fired:
        parts.append(table("\nPasses that changed the graph", ("pass", "times"), fired, right=(1,)))
    parts.append(table("\nTime", ("stage", "ms"), [(k, f"{1e3 * v:.1f}") for k, v in report.timings.items()],
                       right=(1,)))
    return Group(*parts)


def _summary(report: Explanation) -> Text:
    placed = ", ".join(f"{count} on {name}" for name, count in report.providers.items())
    absent = "".join(f"without {name}: {reason}\n" for name, reason in report.absent.items())
    return Text(f"{len(report)} nodes after optimization: {placed or 'none'}\n{absent}")


def _kernels(report: Explanation) -> Table:
    counts = Counter((n.provider, n.kind, "generated" if n.kernel.startswith("generated for") else n.kernel)
                     for n in report.nodes)
    rows = [(*what, count) for what, count in counts.most_common()]
    return table("Placement", ("provider", "operator", "kernel", "nodes"), rows, right=(3,))


def _each(report: Explanation) -> Table:
    rows = [("  " * n.depth + n.node, f"{n.kind}-{n.version}", n.provider, n.kernel, n.short_part)
            for n in report.nodes]
    return table("Placement", ("node", "operator", "provider", "kernel", "part"), rows)


def _parts(report: Explanation) -> Table:
    """A line for each compiled part."""
    rows: list[tuple[Any, ...]] = []
    for part in report.parts:
        plan = part.plan
        if plan is None:
            rows.append((part.short, len(part.nodes), "", "", "", part.state))
            continue
        used = ", ".join(f"{use.name} {use.count}" for use in plan.kernels[:6])
        used += f" and {len(plan.kernels) - 6} more" if len(plan.kernels) > 6 else ""
        rows.append((part.short, len(part.nodes), len(plan.steps) or "", size_text(part.arena),
                     size_text(part.packed), used or part.state))
    return table("\nCompiled parts", ("part", "nodes", "steps", "arena", "packed", "steps by kernel"),
                 rows, right=(1, 2, 3, 4))


def _refusals(report: Explanation) -> Table | None:
    """Why providers that were asked first left nodes to a later one."""
    return _reasons("\nRefusals", "provider", [(r.provider, r.reason, n.node)
                                               for n in report.nodes for r in n.refusals])


def _on_numpy(report: Explanation) -> Table | None:
    """Why nodes of the CPU provider are not generated code."""
    kinds = {n.node: n.kind for n in report.nodes}
    return _reasons("\nOn numpy", "operator", [(kinds.get(node, ""), reason, node)
                                               for node, reason in report.numpy.items()])


def _reasons(title: str, owner: str, found: Sequence[tuple[str, str, str]]) -> Table | None:
    """The same reason of the same owner once, with a node that it is given for; None where there is none."""
    counts = Counter((who, reason) for who, reason, _ in found)
    example: dict[tuple[str, str], str] = {}
    for who, reason, node in found:
        example.setdefault((who, reason), node)
    if not counts:
        return None
    rows: list[tuple[Any, ...]] = [(*key, count, example[key]) for key, count in counts.most_common(REASONS)]
    if len(counts) > REASONS:
        rows.append(("", f"and {len(counts) - REASONS} more reasons; --json has them all", "", ""))
    return table(title, (owner, "reason", "nodes", "for example"), rows, right=(2,))


def reasons_text(title: str, reasons: Mapping[str, str]) -> str:
    """Why something is not as it was asked for: the same reason once, with the names it is given for."""
    owners: dict[str, list[str]] = {}
    for name, reason in reasons.items():
        owners.setdefault(reason, []).append(name)
    lines = [f"{title}:"]
    for reason, names in list(owners.items())[:REASONS]:
        more = f" and {len(names) - 5} more" if len(names) > 5 else ""
        lines.append(f"  {', '.join(names[:5])}{more}: {reason}")
    if len(owners) > REASONS:
        lines.append(f"  and {len(owners) - REASONS} more reasons; --json has them all")
    return "\n".join(lines)
