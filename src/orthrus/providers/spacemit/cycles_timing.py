"""What an instruction keeps busy: a RISC-V instruction and the vector type it runs with in, its unit, the
cycles it takes there, when its result can be used, and the registers it reads and writes out.

Registers are numbers: x0 to x31 are 0 to 31, f 32 to 63, v 64 to 95. A vector instruction on a group touches
all registers of the group.
"""

from __future__ import annotations

import re

from ...codegen.object.riscv_cost import BRANCH, CONFIGURATION, MEMORY, Instruction
from ...records import dataclass
from .cycles import Core

ALU, LOADS, BRANCHES, NUMBERS, VECTORS, MOVER, MATRIX = range(7)
"""The units: integers, scalar loads and stores, branches, scalar floats, vector arithmetic, vector loads and
stores, matrices."""
UNITS = 7
TWICE = (ALU, LOADS)
"""Units there are two of."""

_ABI = {"zero": 0, "ra": 1, "sp": 2, "gp": 3, "tp": 4, "fp": 8,
        **{f"t{i}": 5 + i for i in range(3)}, **{f"t{i}": 25 + i for i in range(3, 7)},
        **{f"s{i}": 8 + i for i in range(2)}, **{f"s{i}": 16 + i for i in range(2, 12)},
        **{f"a{i}": 10 + i for i in range(8)},
        **{f"ft{i}": 32 + i for i in range(8)}, **{f"ft{i}": 52 + i for i in range(8, 12)},
        **{f"fs{i}": 40 + i for i in range(2)}, **{f"fs{i}": 48 + i for i in range(2, 12)},
        **{f"fa{i}": 42 + i for i in range(8)}, **{f"v{i}": 64 + i for i in range(32)}}
_WHOLE = re.compile(r"v(?:l|s)(\d)r|vmv(\d)r")
_LOAD = re.compile(r"v(l|s)(s|ux|ox|m|)(e|ei|)(\d*)(ff)?\.v$")
_SEGMENT = re.compile(r"v[ls](?:s|ux|ox|)seg(\d)e")
_LOADS = re.compile(r"(l[bhwd]u?|fl[hwd])$")
_STORES = re.compile(r"(s[bhwd]|fs[hwd])$")
_NARROWS = re.compile(r"vf?n(cvt|srl|sra|clip)")
_WIDENS = re.compile(r"vf?w(?!red)")
_COMPARES = re.compile(r"vmf?(s|eq|ne|lt|le|gt|ge)")
_MASKS = re.compile(r"vm(and|nand|or|nor|xor|xnor|andn|orn)\.m|vms[bio]f\.m|vmclr|vmset|vmnot")
_EXTENDS = re.compile(r"v[sz]ext\.vf(\d)")
_REDUCES = re.compile(r"vf?w?red")
_SLIDES = re.compile(r"vf?slide")
_MULTIPLIES = re.compile(r"vw?(mul|macc|madd|nmsac|nmsub|smul)(h|u|su|us|hu|hsu)?\.")
_FLOAT_PRODUCTS = re.compile(r"vfn?w?(mul|m(acc|sac|add|sub))\.")
_LOGIC = re.compile(r"v(and|or|xor|sll|srl|sra|not|merge|mv|fmerge|fmv|fsgnj|fneg|fabs|sadd|ssub)")
_DIVIDES = re.compile(r"vf?r?(div|rem|sqrt)")
_TO_NUMBER = re.compile(r"vf?mv\.[xf]\.s|vcpop|vfirst")
_ACCUMULATES = re.compile(r"vf?n?w?m(acc|sac|add|sub)|sf\.|smt\.|vslideup|vf?redusum")
_CALLS = {"mul": (3, 5), "mulw": (2, 3), "mulh": (3, 6), "mulhu": (3, 6), "mulhsu": (3, 6)}
_DIV, _DIV_WORD = (20, 20), (12, 12)


@dataclass(frozen=True, slots=True)
class Timing:
    """`unit` is busy for `busy` cycles, `latency` cycles after the start what is written can be used. `move`:
    bytes that a load or store touches, 0 for anything else; `store`: whether it writes them."""

    unit: int
    busy: float
    latency: float
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    move: int = 0
    store: bool = False


def register(name: str) -> int | None:
    """A register's number, None for what is none."""
    if name in _ABI:
        return _ABI[name]
    return int(name[1:]) + {"x": 0, "f": 32}[name[0]] if re.fullmatch(r"[xf]\d+", name) else None


def base_of(operand: str) -> tuple[int, int] | None:
    """The number of the register and the offset of `8(sp)`; None for another operand."""
    found = re.fullmatch(r"(-?\w*|%\w+\([^)]*\))\((\w+)\)", operand)
    if found is None:
        return None
    offset = found[1]
    return _ABI[found[2]], 0 if not offset or offset.startswith("%") else int(offset, 0)


def scalar(made: Instruction, core: Core) -> Timing:
    """An instruction on numbers, a branch, or one that sets the vector type."""
    op = made.op
    names = [register(o) for o in made.operands]
    memory = next((b for o in made.operands if (b := base_of(o)) is not None), None)
    numbers = [n for n in names if n is not None]
    if made.kind == BRANCH:
        return Timing(BRANCHES, 1, 1, tuple(numbers), ())
    if _STORES.match(op) and memory is not None:
        return Timing(LOADS, 1, 1, (*numbers, memory[0]), (), _size(op), True)
    if _LOADS.match(op) and memory is not None:
        return Timing(LOADS, 1, 4, (memory[0],), tuple(n for n in numbers[:1] if n), _size(op))
    writes = tuple(n for n in numbers[:1] if n) if names and names[0] is not None else ()
    reads = tuple(numbers[1:])
    if made.kind == CONFIGURATION:
        return Timing(ALU, 1, 1, reads, writes)
    if op.startswith("f") and not op.startswith("fence"):
        if op.startswith(("fdiv", "fsqrt")):
            return Timing(NUMBERS, 15, 15, reads, writes)
        return Timing(NUMBERS, 1, 5 if op.startswith(("fm", "fnm")) else 4, reads, writes)
    if op.startswith(("div", "rem")):
        busy, latency = _DIV_WORD if op.endswith("w") else _DIV
        return Timing(ALU, busy, latency, reads, writes)
    busy, latency = _CALLS.get(op, (1, 2 if op.startswith("sh") and "add" in op else 1))
    if core.window:
        busy = 1
    return Timing(ALU, busy, latency, reads, writes)


def _size(op: str) -> int:
    return {"b": 1, "h": 2, "w": 4, "d": 8}[op.removeprefix("f").rstrip("u")[-1]]


def vector(made: Instruction, core: Core, size: int, width: int, group: float, length: int,
           matrix: float) -> Timing:
    """A vector instruction on elements of `width` bits in groups of `group` registers of `size` bytes, of
    which `length` elements count. `matrix`: cycles from one matrix instruction to the next."""
    op = made.op
    if op.startswith(("sf.", "smt.")):
        own = [n for o in made.operands if (n := register(o)) is not None]
        pair = (own[0], own[0] + 1)
        return Timing(MATRIX, matrix, max(4.0, matrix + 3), (*pair, *own[1:]), pair)
    if made.kind == MEMORY and base_of(made.operands[1]) is not None:
        return _moved(made, core, size, width, group, length)
    if found := _WHOLE.match(op):
        whole = int(found[1] or found[2])
        first, second = (register(o) or 0 for o in made.operands[:2])
        busy = whole * size / core.datapath * core.slow
        return Timing(VECTORS, busy, max(core.latency[0], busy), _span(second, whole), _span(first, whole))
    wide, narrow = bool(_WIDENS.match(op)), bool(_NARROWS.match(op))
    masked = made.operands[-1] in ("v0.t", "v0")
    most = group * 2 if wide or narrow else group
    busy = max(1.0, most * size / core.datapath)
    latency = float(core.latency[0])
    twofold = width == 64 and core.datapath > 32 and op.startswith("vf") and not _LOGIC.match(op)
    if _MASKS.match(op):
        busy = 1.0
    elif _DIVIDES.match(op):
        busy = max(1.0, group) * size / 32 * (12 if width < 64 else 18)
        latency = busy
    elif _SLIDES.match(op):
        busy = max(1.0, group * core.slide)
    elif op.startswith("vrgather") and ".vv" in op:
        busy = max(1.0, core.gather * max(group, 0.5) ** 2)
    elif op.startswith(("vid", "viota")):
        busy = max(1.0, group * size / 16)
    elif _REDUCES.match(op):
        busy = max(2.0, 3.25 * group * size / core.datapath * (2 if op.startswith("vf") else 1))
        latency = busy + 4
    elif _COMPARES.match(op) or _LOGIC.match(op) or op.startswith("vrgather"):
        busy *= core.slow
    elif _MULTIPLIES.match(op):
        busy *= core.product if width == 32 else core.slow if masked else 1.0
        latency = float(core.latency[1])
    else:
        busy *= core.slow if masked else 1.0
        latency = float(core.latency[1] if _FLOAT_PRODUCTS.match(op) else core.latency[0])
    if twofold:
        busy *= 2
    if _TO_NUMBER.match(op):
        latency = 6.0
    reads, writes = _touched(made, group, wide, narrow)
    return Timing(VECTORS, busy, max(latency, busy), reads, writes)


def _moved(made: Instruction, core: Core, size: int, width: int, group: float, length: int) -> Timing:
    op = made.op
    address = [b[0] for o in made.operands if (b := base_of(o)) is not None]
    address += [n for o in made.operands[2:] if (n := register(o)) is not None]
    first = register(made.operands[0]) or 0
    store = op[1] == "s"
    if found := _WHOLE.match(op):
        whole = int(found[1])
        own, moved, busy = _span(first, whole), whole * size, whole * size / core.port + core.start
    else:
        kind = _LOAD.match(op)
        fields = int(found[1]) if (found := _SEGMENT.match(op)) else 1
        indexed = kind is not None and kind[2] in ("ux", "ox")
        bits = width if indexed or kind is None or not kind[4] else int(kind[4])
        if kind is not None and kind[2] == "m":
            bits = 1
        registers = max(1.0, group * bits / width) if bits > 1 else 1.0
        own = _span(first, int(registers) * fields)
        moved = max(1, length * bits // 8) * fields
        if indexed or fields > 1 or (kind is not None and kind[2] == "s"):
            busy = max(1.0, length * fields * core.strided)
        else:
            busy = max(1.0, group * bits / width * size / core.port + core.start)
        if made.operands[-1] == "v0.t":
            address.append(64)
            busy = max(busy * 2 - core.start, 2.8 if core.start else 1.0)
    latency = core.latency[2] + busy - 1
    return Timing(MOVER, busy, latency, (*address, *(own if store else ())), () if store else own, moved,
                  store)


def _touched(made: Instruction, group: float, wide: bool,
             narrow: bool) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The registers read and written: a group each, of twice the size for what is wider, one for masks."""
    op, operands = made.op, made.operands
    one = max(1, int(group))
    two = max(1, int(2 * group))
    sources = 1 if _TO_NUMBER.match(op) or _MASKS.match(op) else one
    numbers = [register(o) for o in operands]
    first = numbers[0]
    written = 1 if _COMPARES.match(op) or _MASKS.match(op) or _REDUCES.match(op) else two if wide else one
    writes = () if not first else _span(first, written) if first >= 64 else (first,)
    reads: list[int] = []
    extends = _EXTENDS.match(op)
    for i, n in enumerate(numbers[1:], 1):
        if n is None:
            if operands[i] == "v0.t":
                reads.append(64)
            continue
        if n < 64:
            reads.append(n)
        elif extends:
            reads.extend(_span(n, max(1, int(group / int(extends[1])))))
        elif i == 1 and (narrow or (wide and ".w" in op)):
            reads.extend(_span(n, two))
        elif _REDUCES.match(op) and i == 2:
            reads.append(n)
        else:
            reads.extend(_span(n, sources))
    if _ACCUMULATES.match(op) or operands[-1] == "v0.t":
        reads.extend(writes)
    return tuple(reads), writes


def _span(first: int, count: int) -> tuple[int, ...]:
    return tuple(range(first, min(first + count, 96)))
