"""A profile as one HTML page: two tables with bars that can be sorted and filtered, and nothing to load.

In: a `Profile`. Out: text. Everything that comes from a model is escaped; without scripts the tables are
still there, the slowest node first.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING

from .table import notes, operators, percent, rate

if TYPE_CHECKING:
    from .collect import NodeProfile, Profile

_STYLE = """
:root { color-scheme: light dark; --line: #d7dbe0; --bar: #7db4e6; --mem: #e2b05f; --soft: #68707a; }
@media (prefers-color-scheme: dark) { :root { --line: #3a4048; --bar: #2f6ea5; --mem: #9a6c1d;
  --soft: #9aa3ad; } }
body { font: 14px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 90rem; padding: 0 1rem; }
h1 { font-size: 1.3rem; margin: 0 0 .4rem; } h2 { font-size: 1.05rem; margin: 1.6rem 0 .4rem; }
p { margin: .15rem 0; color: var(--soft); } input { font: inherit; padding: .2rem .5rem; width: 22rem; }
table { border-collapse: collapse; width: 100%; }
th, td { padding: .18rem .6rem; text-align: left; border-bottom: 1px solid var(--line); }
th { cursor: pointer; position: sticky; top: 0; background: Canvas; user-select: none; white-space: nowrap; }
th[aria-sort]::after { content: " \\25BE"; } th[aria-sort=ascending]::after { content: " \\25B4"; }
.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
td:first-child, .k { overflow-wrap: anywhere; } .k { color: var(--soft); }
.bar { background: linear-gradient(var(--bar), var(--bar)) no-repeat left / calc(var(--w) * 1%) 100%; }
.bar.memory { background-image: linear-gradient(var(--mem), var(--mem)); }
tr.rest td { color: var(--soft); }
"""

_SCRIPT = """
for (const table of document.querySelectorAll("table")) {
  const body = table.tBodies[0];
  const key = (row, i) => {
    const cell = row.cells[i], value = cell.dataset.v;
    return value === undefined ? cell.textContent.toLowerCase() : Number(value);
  };
  [...table.tHead.rows[0].cells].forEach((head, i) => head.addEventListener("click", () => {
    const numbers = head.classList.contains("n");
    const before = head.getAttribute("aria-sort");
    const up = before === null ? !numbers : before === "descending";
    for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", up ? "ascending" : "descending");
    const rows = [...body.rows];
    rows.sort((a, b) => {
      const x = key(a, i), y = key(b, i);
      return (x < y ? -1 : x > y ? 1 : 0) * (up ? 1 : -1);
    });
    body.append(...rows);
  }));
}
document.querySelector("#filter").addEventListener("input", event => {
  const wanted = event.target.value.toLowerCase();
  for (const row of document.querySelector("#nodes").tBodies[0].rows)
    row.hidden = !row.textContent.toLowerCase().includes(wanted) && !row.title.toLowerCase().includes(wanted);
});
"""


def page(profile: Profile) -> str:
    """The page."""
    nodes = sorted(profile.nodes, key=lambda n: -n.seconds)
    total = profile.seconds or 1.0
    longest = max((n.seconds for n in nodes), default=total) or total
    rows = [_row(node, total, longest) for node in nodes]
    rows.append(_rest(profile.between_seconds, total, longest))
    title = escape(f"Profile of {profile.title}" if profile.title else "Profile")
    heads = ["node", "operators", "kernel", "+calls", "+ms", "+of run", "+GFLOP/s", "+GB/s", "+of peak",
             "bound"]
    return "\n".join([
        "<!DOCTYPE html>", '<html lang="en"><head><meta charset="utf-8"><title>' + title + '</title>',
        f"<style>{_STYLE}</style></head><body>", f"<h1>{title}</h1>",
        *(f"<p>{escape(line)}</p>" for line in notes(profile, nodes)),
        "<h2>Nodes</h2>",
        '<p><input id="filter" type="search" placeholder="filter by name, operator or kernel"></p>',
        _table("nodes", heads, rows, 4),
        "<h2>Operators</h2>",
        _table("operators", ["operator", "+rows", "+ms", "+of run", "+GFLOP/s", "+GB/s"],
               _by_operator(nodes, total), 2),
        f"<script>{_SCRIPT}</script>", "</body></html>", ""])


def _table(name: str, heads: Sequence[str], rows: Iterable[str], by: int) -> str:
    cells = "".join(f'<th{_class(h)}{_SORTED if i == by else ""}>{h.lstrip("+")}</th>'
                    for i, h in enumerate(heads))
    return (f'<table id="{name}"><thead><tr>{cells}</tr></thead><tbody>\n' + "\n".join(rows)
            + "\n</tbody></table>")


_SORTED = ' aria-sort="descending"'


def _class(head: str) -> str:
    return ' class="n"' if head.startswith("+") else ""


def _number(value: float, text: str, bar: float | None = None, kind: str = "") -> str:
    """A cell that is sorted by its value; `bar`: per cent of its width that are filled."""
    if bar is None:
        return f'<td class="n" data-v="{value!r}">{escape(text)}</td>'
    return (f'<td class="n bar {kind}" style="--w:{min(100.0, max(0.0, bar)):.1f}" data-v="{value!r}">'
            f'{escape(text)}</td>')


def _row(node: NodeProfile, total: float, longest: float) -> str:
    seconds = node.seconds or float("inf")
    told = [", ".join(node.fused), f"{' '.join(node.inputs)} → {' '.join(node.outputs)}",
            f"{node.flop:,} operations, {node.bytes:,} bytes",
            f"{node.provider}, {node.short_part} ({node.part})" if node.part else node.provider]
    return "".join([
        f'<tr title="{escape(chr(10).join(told))}">', f"<td>{escape(node.node)}</td>",
        f"<td>{escape(operators(node))}</td>", f'<td class="k">{escape(node.kernel)}</td>',
        _number(node.calls, f"{node.calls:,}"),
        _number(node.seconds, f"{1e3 * node.seconds:.3f}", 100 * node.seconds / longest),
        _number(node.seconds / total, f"{node.seconds / total:.1%}"),
        _number(node.flop / seconds, rate(node.flop, node.seconds)),
        _number(node.bytes / seconds, rate(node.bytes, node.seconds)),
        _number(node.share if node.share is not None else -1.0, percent(node.share),
                100 * (node.share or 0.0), node.bound),
        f"<td>{node.bound}</td></tr>"])


def _rest(seconds: float, total: float, longest: float) -> str:
    return "".join(['<tr class="rest"><td>between nodes</td><td></td><td></td>', _number(-1, ""),
                    _number(seconds, f"{1e3 * seconds:.3f}", 100 * seconds / longest),
                    _number(seconds / total, f"{seconds / total:.1%}"), _number(-1, ""), _number(-1, ""),
                    _number(-1, ""), "<td></td></tr>"])


def _by_operator(nodes: Sequence[NodeProfile], total: float) -> list[str]:
    sums: dict[str, list[float]] = {}
    for node in nodes:
        found = sums.setdefault(operators(node), [0, 0.0, 0, 0])
        for i, value in enumerate((1, node.seconds, node.flop, node.bytes)):
            found[i] += value
    longest = max((s[1] for s in sums.values()), default=total) or total
    rows = []
    for name, (count, seconds, flop, moved) in sorted(sums.items(), key=lambda item: -item[1][1]):
        spent = seconds or float("inf")
        rows.append("".join([
            f"<tr><td>{escape(name)}</td>", _number(count, f"{count:.0f}"),
            _number(seconds, f"{1e3 * seconds:.3f}", 100 * seconds / longest),
            _number(seconds / total, f"{seconds / total:.1%}"),
            _number(flop / spent, rate(int(flop), seconds)),
            _number(moved / spent, rate(int(moved), seconds)), "</tr>"]))
    return rows
