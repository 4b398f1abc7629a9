"""How results look in a terminal: tables, the placement of a session, and a sign of life for what takes long.

In: plain data and a rich console. Out: printed text. Names from a model are printed as they are, never as
markup.
"""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from ..run.explain import Explanation

PATIENCE = 1.0
"""Seconds before a waiting person is told what is going on."""
REASONS = 12
ERROR_LINES = 20


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]],
          right: Sequence[int] = ()) -> Table:
    """A table of plain cells; `right` names the columns that hold numbers."""
    made = Table(title=Text(title) if title else None, title_justify="left", header_style="bold", box=None,
                 pad_edge=False, show_header=any(columns))
    for i, column in enumerate(columns):
        made.add_column(column, justify="right" if i in right else "left", overflow="fold")
    for row in rows:
        made.add_row(*(cell if isinstance(cell, Text) else Text(str(cell)) for cell in row))
    return made


def shape_text(shape: Sequence[Any] | None) -> str:
    """`[N, 3, ?]`, or `...` where the rank is not known."""
    return "..." if shape is None else "[" + ", ".join("?" if d is None else str(d) for d in shape) + "]"


def size_text(count: int) -> str:
    """Bytes for people."""
    size = float(count)
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.2f} GiB"


def error_text(error: BaseException) -> Text:
    """An exception as at most one screen: its class and its message."""
    text = str(error) or type(error).__name__
    name = type(error).__name__
    lines = (text if isinstance(error, ValueError | OSError) else f"{name}: {text}").splitlines()
    if len(lines) > ERROR_LINES:
        lines = [*lines[:ERROR_LINES], f"... {len(lines) - ERROR_LINES} more lines"]
    lines = [line if len(line) <= 400 else line[:397] + "..." for line in lines]
    return Text("\n".join(lines), style="red")


@contextlib.contextmanager
def patience(console: Console, text: str) -> Iterator[None]:
    """Show a spinner with `text` once the block has taken over a second, where someone is watching."""
    if not console.is_terminal:
        yield
        return
    status = console.status(Text(text))
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
    """The placement of a session: per provider and kernel, the reasons of refusals, passes and times;
    `nodes`: each one."""
    parts: list[Any] = [_summary(report)]
    parts += [_each(report)] if nodes else [_kernels(report)]
    if (reasons := _reasons(report)) is not None:
        parts.append(reasons)
    fired = [(p.name, p.count) for p in report.passes if p.count]
    if fired:
        parts.append(table("\nPasses that changed the graph", ("pass", "times"), fired, right=(1,)))
    parts.append(table("\nTime", ("stage", "ms"), [(k, f"{1e3 * v:.1f}") for k, v in report.timings.items()],
                       right=(1,)))
    return Group(*parts)


def _summary(report: Explanation) -> Text:
    placed = ", ".join(f"{count} on {name}" for name, count in report.providers.items())
    return Text(f"{len(report)} nodes after optimization: {placed or 'none'}\n")


def _kernels(report: Explanation) -> Table:
    counts: Counter[tuple[str, str, str]] = Counter()
    for each in report.nodes:
        kind = f"{each.domain}::{each.op_type}" if each.domain else each.op_type
        counts[each.provider, kind, each.kernel] += 1
    rows = [(provider, kind, kernel, count) for (provider, kind, kernel), count in counts.most_common()]
    return table("Placement", ("provider", "operator", "kernel", "nodes"), rows, right=(3,))


def _each(report: Explanation) -> Table:
    rows = []
    for each in report.nodes:
        kind = f"{each.domain}::{each.op_type}" if each.domain else each.op_type
        rows.append(("  " * each.depth + each.node, f"{kind}-{each.version}", each.provider, each.kernel,
                     each.part))
    return table("Placement", ("node", "operator", "provider", "kernel", "part"), rows)


def _reasons(report: Explanation) -> Table | None:
    """Why providers that were asked first left nodes to a later one, the same reason once."""
    counts: Counter[tuple[str, str]] = Counter()
    example: dict[tuple[str, str], str] = {}
    for each in report.nodes:
        for refusal in each.refusals:
            key = (refusal.provider, refusal.reason)
            counts[key] += 1
            example.setdefault(key, each.node)
    if not counts:
        return None
    rows: list[tuple[Any, ...]] = [(provider, reason, count, example[provider, reason])
                                   for (provider, reason), count in counts.most_common(REASONS)]
    if len(counts) > REASONS:
        rows.append(("", f"and {len(counts) - REASONS} more reasons; --json has them all", "", ""))
    return table("\nRefusals", ("provider", "reason", "nodes", "for example"), rows, right=(2,))


def placement_data(report: Explanation) -> dict[str, Any]:
    """The same as plain data."""
    return {
        "nodes": [{"node": n.node, "op_type": n.op_type, "domain": n.domain, "version": n.version,
                   "provider": n.provider,
                   "kernel": n.kernel, "part": n.part, "depth": n.depth,
                   "refusals": [{"provider": r.provider, "reason": r.reason} for r in n.refusals]}
                  for n in report.nodes],
        "providers": report.providers,
        "passes": {p.name: p.count for p in report.passes if p.count},
        "seconds": report.timings,
    }
