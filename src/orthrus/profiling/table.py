"""A profile as text: a row per node, the slowest first, what lies between them, and what the columns mean.

In: a `Profile`. Out: text, or rich's table and lines. Names from a model are printed as they are, never as
markup.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..records import dataclass
from ..shown import shown
from .cost import FREE, MOVES

if TYPE_CHECKING:
    from rich.console import Group

    from .collect import NodeProfile, Profile

WIDTH = 132
"""Columns of a table that is made as text."""
_PART = 20
"""Columns that the name of a part has at most."""


@dataclass(frozen=True)
class Column:
    """A column's name, how narrow and how wide it may be, and on which side its cells stand."""

    name: str
    least: int
    most: int | None = None
    right: bool = True


def table(profile: Profile, most: int | None = None) -> str:
    """The table and its notes as plain text."""
    columns, rows = cells(profile, most, WIDTH)
    sizes = [column.most or max([column.least, len(column.name), *(len(row[place]) for row in rows)])
             for place, column in enumerate(columns)]

    def line(row: Sequence[str]) -> str:
        cut = [head(shown(cell), size) for cell, size in zip(row, sizes, strict=True)]
        return "  ".join(cell.rjust(size) if column.right else cell.ljust(size)
                         for cell, size, column in zip(cut, sizes, columns, strict=True)).rstrip()

    return "\n".join([line([column.name for column in columns]), *map(line, rows), "",
                      *map(shown, notes(profile, _sorted(profile)))]) + "\n"


def rendered(profile: Profile, most: int | None, width: int) -> Group:
    """The same as what rich prints, for `width` columns."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    columns, rows = cells(profile, most, width)
    made = Table(header_style="bold", box=None, pad_edge=False)
    for column in columns:
        made.add_column(column.name, justify="right" if column.right else "left", no_wrap=True,
                        overflow="ellipsis", width=column.most, min_width=column.least)
    for row in rows:
        made.add_row(*map(Text, row))
    return Group(made, Text(""), *map(Text, notes(profile, _sorted(profile))))


def _sorted(profile: Profile) -> list[NodeProfile]:
    return sorted(profile.nodes, key=lambda n: -n.seconds)


def cells(profile: Profile, most: int | None, width: int) -> tuple[list[Column], list[list[str]]]:
    """The columns and the rows of at most `most` nodes, for a table of `width` columns of text."""
    nodes = _sorted(profile)
    told = nodes if most is None else nodes[:most]
    repeated = any(n.calls != profile.runs for n in nodes)
    several = len({n.part for n in nodes}) > 1
    widest = min(_PART, max((len(n.short_part) for n in nodes), default=0))
    numbers = {**({"part": widest} if several else {}), **({"calls": 6} if repeated else {}),
               "ms": 8, "of run": 6, "GFLOP/s": 7, "GB/s": 6, "of peak": 7, "bound": 7}
    room = max(40, width - sum(numbers.values()) - 2 * len(numbers) - 4)
    texts = [room * 45 // 100, room * 23 // 100, room * 32 // 100]
    columns = [Column(name, size, size, False)
               for name, size in zip(("node", "operator", "kernel"), texts, strict=True)]
    columns += [Column(name, size, right=name not in ("bound", "part")) for name, size in numbers.items()]
    total = profile.seconds or 1.0
    rows = []

    def add(*cells: str) -> None:
        rows.append([*cells, *[""] * (len(columns) - len(cells))])

    def rest(seconds: float) -> list[str]:
        return [""] * (several + repeated) + [f"{1e3 * seconds:.3f}", f"{seconds / total:.1%}"]
    for node, name in zip(told, brief([(n.node, n.op_type) for n in told]), strict=True):
        calls = [tail(node.short_part, widest)] * several + [_calls(node, profile.runs)] * repeated
        indent = "  " * node.depth
        add(indent + tail(name, texts[0] - len(indent)), operators(node), tail(node.kernel, texts[2]),
            *calls, f"{1e3 * node.seconds:.3f}", f"{node.seconds / total:.1%}", rate(node.flop, node.seconds),
            rate(node.bytes, node.seconds), percent(node.share), node.bound)
    if hidden := nodes[len(told):]:
        add(f"{len(hidden)} more nodes", "", "", *rest(sum(n.seconds for n in hidden)))
    add("between nodes", "", "", *rest(profile.between_seconds))
    return columns, rows


def notes(profile: Profile, nodes: Sequence[NodeProfile]) -> list[str]:
    """Lines below the table: the whole run, the machine's peak, and what may surprise in the columns."""
    machine = profile.peak
    runs = f"{profile.runs} run{'s' if profile.runs != 1 else ''}"
    uneven = profile.runs > 1 and profile.fastest_seconds < 0.7 * profile.seconds
    lines = [f"{runs}, {1e3 * profile.seconds:.3f} ms each, step by step"
             + (f", the fastest {1e3 * profile.fastest_seconds:.3f} ms" if uneven else "")
             + (f"; {1e3 * profile.native_seconds:.3f} ms where steps are not timed"
                if profile.native_seconds is not None else "")
             + (f"; {1e3 * profile.preparing_seconds:.1f} ms of preparing and noting left out"
                if profile.preparing_seconds > max(1e-3, 0.05 * profile.runs * profile.seconds) else "")]
    matrix = f" ({machine.matrix / 1e9:.0f} by the matrix unit)" if machine.matrix else ""
    lines.append(f"peak of {machine.threads} thread{'s' if machine.threads != 1 else ''}: "
                 f"{machine.flops / 1e9:.0f} GFLOP/s of float32 multiply-adds{matrix}, "
                 f"{machine.bandwidth / 1e9:.1f} GB/s")
    if not machine.alone:
        lines.append("other work took the processor while the peak was measured: it is higher than that")
    lines.append("between nodes: checking feeds, memory for results, handing them out")
    over = [n for n in nodes if n.share is not None and n.share > 1]
    kernels = {kernel for n in over if n.bound == "compute" for kernel in n.kernel.split(" + ")}
    if "tiles" in kernels:
        lines.append("over 100 % of peak, tiles: the matrix unit computes float32 products from halves of "
                     "bfloat16, faster than the multiply-adds that count as 100 %")
    if any("winograd" in kernel for kernel in kernels):
        lines.append("over 100 % of peak, winograd: the kernel needs fewer operations than the convolution "
                     "is counted with")
    if any(n.bound == "compute" and not {"tiles"} & set(n.kernel.split(" + "))
           and "winograd" not in n.kernel for n in over):
        lines.append("over 100 % of peak, compute: narrow types and functions of fewer instructions than "
                     "operations are faster than float32 multiply-adds")
    if any(n.bound == "memory" for n in over):
        lines.append("over 100 % of peak, memory: tensors that are still in a cache are read faster than "
                     "memory")
    return lines


def operators(node: NodeProfile) -> str:
    """`Conv+Relu`: the operators of a row, repeated ones once with their number, without those that only look
    at memory another way."""
    counts: dict[str, int] = {}
    for op in node.fused_ops or (node.op_type,):
        if op == node.op_type or op not in FREE | MOVES:
            counts[op] = counts.get(op, 0) + 1
    parts = [op if count == 1 else f"{count} {op}" for op, count in counts.items()]
    if len(parts) > 3:
        rest = sum(counts.values()) - counts[node.op_type]
        parts = [parts[list(counts).index(node.op_type)], f"{rest} more"]
    return "+".join(parts)


def brief(nodes: Sequence[tuple[str, str]]) -> list[str]:
    """Names of nodes without what tells nothing: the folders that all of them are in, a last part that is the
    operator, and last parts that half of them share; no two become one."""
    paths = [tuple(name.split("/")) for name, _ in nodes]
    common = 0
    while len(paths) > 1 and all(len(p) > common + 1 and p[common] == paths[0][common] for p in paths):
        common += 1
    paths = [path[common:] for path in paths]
    operators = [op for _, op in nodes]
    paths = _apart([p[:-1] if p[-1] == op else p for p, op in zip(paths, operators, strict=True)], paths)
    end, count = Counter(path[-1] for path in paths).most_common(1)[0] if paths else ("", 0)
    if 2 * count >= max(4, len(paths)):
        paths = _apart([p[:-1] if p[-1] == end else p for p in paths], paths)
    return ["/".join(path) for path in paths]


def _apart(shorter: list[tuple[str, ...]], paths: list[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Each of `shorter` that is not empty and no other one, else what it was."""
    counts = Counter(shorter)
    return [new if new and counts[new] == 1 else old for new, old in zip(shorter, paths, strict=True)]


def head(text: str, most: int) -> str:
    """The beginning of `text`."""
    return text if len(text) <= most else text[:most - 1] + "…"


def tail(text: str, most: int) -> str:
    """The end of `text`, where names differ."""
    return text if len(text) <= most else "…" + text[1 - most:]


def rate(count: int, seconds: float) -> str:
    """So many per second, in units of 1e9; empty where nothing is counted."""
    if not count or seconds <= 0:
        return ""
    found = count / seconds / 1e9
    return f"{found:.0f}" if found >= 100 else f"{found:.1f}" if found >= 1 else f"{found:.2f}"


def percent(share: float | None) -> str:
    return "" if share is None else f"{share:.0%}"


def _calls(node: NodeProfile, runs: int) -> str:
    each = node.calls / max(1, runs)
    return f"{each:.0f}" if each == round(each) else f"{each:.1f}"
