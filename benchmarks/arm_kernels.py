"""The inner loops of kernels for AArch64, counted: a table of Markdown, and a page in which it is brought up
to date.

In: a page with lines `<!-- kernels -->` and `<!-- end -->`. Out: the page with the table between them.
`python -m benchmarks.arm_kernels docs/machines.md` rewrites the page; a test holds it to what this gives.
Nothing is run, so the table is the same on every machine.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace

from benchmarks.riscv_kernels import BYTES, FLOATS, filled, rewrite
from orthrus.codegen.machines.machine import NEON, Machine
from orthrus.codegen.object.build import assemble
from orthrus.codegen.write.spec import Spec

DOTPROD = replace(NEON, features=("dotprod", "neon"))
_HEAD = ("kernel", "types", "multiply-adds", "products", "other vector", "loads and stores", "scalar",
         "spills", "instructions a multiply-add", "ideal")
_PRODUCT = re.compile(r"(fml[as]|ml[as]|[su]ml[as]l2?|[su]dot)$")
_LANES = re.compile(r"v\d+\.(\d+)[bhsd]")
_MEMORY = re.compile(r"(ld|st)")
_BRANCH = re.compile(r"(b(\.\w+)?|cbn?z|tbn?z)$")

Row = tuple[str, str]
"""An instruction and its operands."""


def kernels() -> Iterator[tuple[str, str, Machine, Spec]]:
    """Name, types, machine and kernel of every row."""
    for name, make in FLOATS.items():
        yield name, "float32", NEON, make(NEON, "float32")
    for types, machine in (("int8", NEON), ("int8, `sdot`", DOTPROD)):
        for name, make in BYTES.items():
            yield name, types, machine, make(machine, "")


def loops(text: str) -> list[list[Row]]:
    """The instructions of each loop that holds no other: what lies between a label and a branch to it."""
    rows: list[Row] = []
    at: dict[str, int] = {}
    spans: list[tuple[int, int]] = []
    for line in text.splitlines():
        line = line.partition("//")[0].strip()
        if line.endswith(":"):
            at[line[:-1]] = len(rows)
        elif line and not line.startswith("."):
            op, _, rest = line.partition("\t")
            rows.append((op, rest))
            target = rest.rpartition(",")[2].strip()
            if _BRANCH.match(op) and target in at:
                spans.append((at[target], len(rows)))
    return [rows[a:b] for a, b in spans if not any((a, b) != (c, d) and a <= c and d <= b for c, d in spans)]


def products(op: str, operands: str) -> int:
    """Multiply-adds that an instruction does: one for each lane of its result, four of `sdot`."""
    lanes = _LANES.match(operands)
    return int(lanes[1]) * (4 if op.endswith("dot") else 1) if lanes and _PRODUCT.match(op) else 0


def busiest(spec: Spec, machine: Machine) -> Sequence[Row]:
    """The innermost loop that does most multiply-adds; the shortest, where several do as many."""
    found = loops(str(assemble(spec.text(machine), machine, listing=True)))
    return max(found, key=lambda rows: (sum(products(*row) for row in rows), -len(rows)))


def counted(rows: Sequence[Row]) -> tuple[int, int, int, int, int, int]:
    """Multiply-adds, the instructions that do them, other vector ones, loads and stores, scalar ones; and of
    the loads and stores those that save or bring back vectors."""
    done = [products(*row) for row in rows]
    memory = [rest for op, rest in rows if _MEMORY.match(op)]
    vector = [op for op, rest in rows if re.search(r"\bv\d+\.", rest) and not _MEMORY.match(op)]
    multiplying = sum(count > 0 for count in done)
    spills = sum(bool(re.match(r"q\d+.*\[sp", rest)) for rest in memory)
    return (sum(done), multiplying, len(vector) - multiplying, len(memory),
            len(rows) - len(vector) - len(memory), spills)


def table() -> str:
    """The table."""
    made = [f"| {' | '.join(_HEAD)} |", "|---|---|" + "--:|" * (len(_HEAD) - 2)]
    for name, types, machine, spec in kernels():
        rows = busiest(spec, machine)
        counts = counted(rows)
        ideal = counts[1] / counts[0]
        cells = (name, types, *counts, f"{len(rows) / counts[0]:.3f}", f"{ideal:.3f}")
        made.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(made) + "\n"


def renewed(page: str) -> str:
    """`page` with the table as the kernels are."""
    return filled(page, table())


if __name__ == "__main__":
    rewrite(sys.argv[1:], renewed)
