"""The inner loops of kernels for RISC-V, counted: a table of Markdown, and a page in which it is brought up
to date.

In: a page with lines `<!-- kernels -->` and `<!-- end -->`. Out: the page with the table between them.
`python -m benchmarks.riscv_kernels docs/spacemit_kernels.md` rewrites the page; a test holds it to what this
gives. Nothing is run, so the table is the same on every machine.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from orthrus.codegen.kernels import gemm
from orthrus.codegen.kernels.conv import depthwise, direct
from orthrus.codegen.kernels.conv.geometry import Geometry
from orthrus.codegen.kernels.int8 import depthwise as int8_depthwise
from orthrus.codegen.kernels.int8 import products as int8
from orthrus.codegen.machines.machine import SPACEMIT_K1, SPACEMIT_K3, SPACEMIT_K3_X100, Machine, rvv
from orthrus.codegen.object import riscv_cost
from orthrus.codegen.write.expr import Expr
from orthrus.codegen.write.spec import Spec

MACHINES = {"256 (K1)": SPACEMIT_K1, "1024 (K3)": SPACEMIT_K3}
_PLACE = re.compile(r"(<!-- kernels -->\n).*?(<!-- end -->)", re.S)
_HEAD = ("kernel", "types", "vectors", "multiply-adds", "products", "other vector", "loads and stores",
         "scalar", "configuration", "spills", "instructions a register")
_SUM = Expr.leaf(0, "int32")


def _geometry(groups: int, channels: int, kernel: int) -> Geometry:
    """A convolution of 256 channels over 56 x 56 pixels that keeps the size."""
    window, pads = (1, kernel, kernel), (0, kernel // 2, kernel // 2)
    return Geometry(1, groups, channels, channels, (1, 56, 56), window, (1, 1, 1), (1, 1, 1), pads,
                         (1, 56, 56))


def _gemm(machine: Machine, dtype: str) -> Spec:
    return gemm.plan(machine, 196, 512, 512, 1, "panels", 512, a_type=dtype, b_type=dtype).spec(None, [])


def _conv(kernel: int) -> Callable[[Machine, str], Spec]:
    return lambda machine, dtype: direct.plan(_geometry(1, 256, kernel), machine, kernel == 1, dtype=dtype
                                            ).spec(None, [])


def _depthwise(machine: Machine, dtype: str) -> Spec:
    return depthwise.spec(_geometry(256, 1, 3), machine, None, [], dtype=dtype)


def _int8(machine: Machine, _: str) -> Spec:
    how = int8.packing(machine, 512, 512, False)
    return int8.plan(machine, how, 1, 196, 512, 1, 512, 512, True, True).spec(None, [])


def _int8_depthwise(machine: Machine, _: str) -> Spec:
    return int8_depthwise.int8_depthwise(signed=True, kernel=(3, 3), tail=False, tree=_SUM, operands=())


FLOATS: dict[str, Callable[[Machine, str], Spec]] = {
    "matrix product": _gemm, "convolution 3x3": _conv(3), "convolution 1x1": _conv(1),
    "depthwise 3x3": _depthwise}
BYTES: dict[str, Callable[[Machine, str], Spec]] = {
    "matrix product and convolution": _int8, "depthwise 3x3": _int8_depthwise}


def kernels() -> Iterator[tuple[str, str, str, Machine, Spec]]:
    """Name, types, vector length, machine and kernel of every row."""
    for label, machine in MACHINES.items():
        for dtype in ("float32", "float16"):
            for name, make in FLOATS.items():
                yield name, dtype, label, machine, make(machine, dtype)
        plain = rvv(8 * machine.vector) if machine.vector > SPACEMIT_K3_X100.vector else SPACEMIT_K3_X100
        for name, make in BYTES.items():
            yield name, "int8", label, plain, make(plain, "")
        yield "matrix product and convolution", "int8, `vmadot`", label, machine, _int8(machine, "")


def busiest(spec: Spec, machine: Machine) -> riscv_cost.Loop:
    """The innermost loop that does most multiply-adds; the one of fewest blocks, where several do as many."""
    found = riscv_cost.innermost(riscv_cost.loops(spec.text(machine), machine))
    return max(found, key=lambda loop: (riscv_cost.count(loop.instructions).multiply_adds, -len(loop.blocks)))


def registers(loop: riscv_cost.Loop, machine: Machine) -> float:
    """Registers of sums that a turn of the loop adds products to; for the matrix instruction, how many of
    those there are."""
    matrix = sum(i.op.startswith(("sf.vqmacc", "smt.vmadot")) for i in loop.instructions)
    return matrix or riscv_cost.count(loop.instructions).multiply_adds * 4 / machine.vector


def table() -> str:
    """The table."""
    rows = [f"| {' | '.join(_HEAD)} |", "|---|---|---|" + "--:|" * (len(_HEAD) - 3)]
    for name, types, label, machine, spec in kernels():
        loop = busiest(spec, machine)
        n = riscv_cost.count(loop.instructions)
        products = sum(i.products > 0 for i in loop.instructions)
        cells = (name, types, label, n.multiply_adds, products, n.vector - products, n.memory,
                 n.scalar + n.branch, n.configuration, n.spills,
                 f"{n.total / registers(loop, machine):.2f}")
        rows.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(rows) + "\n"


def filled(page: str, table: str) -> str:
    """`page` with `table` in its place."""
    return _PLACE.sub(lambda found: f"{found[1]}{table}{found[2]}", page)


def renewed(page: str) -> str:
    """`page` with the table as the kernels are."""
    return filled(page, table())


def rewrite(paths: Sequence[str], renewed: Callable[[str], str]) -> None:
    """Bring pages up to date."""
    for path in map(Path, paths):
        path.write_text(renewed(path.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    rewrite(sys.argv[1:], renewed)
