"""The scalar part of a kernel's assembly as functions: what a RISC-V instruction does to a register.

In: instructions as `riscv_cost` reads them, and the text's constants. Out: `CycleCode`, instructions in a row
with the effect of each. Effects are Python functions of the two operands' values, so that what a loop counts
and where it leads can be followed; what comes out of vectors or floats counts as 0.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator, Sequence

from ...codegen.machines.machine import Machine
from ...codegen.object.build import assemble
from ...codegen.object.riscv_cost import BRANCH, CONFIGURATION, BasicBlock, Instruction, loops
from ...records import dataclass
from .cycles_timing import base_of, register

NOTHING, COMPUTE, LOAD, STORE, JUMP, BRANCHES, SET, VECTOR, DONE = range(9)
"""What an instruction is to a walk. `NOTHING` changes no register that counts."""

Effect = Callable[[int, int], int]
_MASK = (1 << 64) - 1


def signed(x: int, bits: int = 64) -> int:
    """The low bits of x as a signed number."""
    x &= (1 << bits) - 1
    return x - (1 << bits) if x >> (bits - 1) else x


def _divided(a: int, b: int) -> int:
    if b == 0:
        return -1
    q = abs(a) // abs(b)
    return q if (a < 0) == (b < 0) else -q


def _rest(a: int, b: int) -> int:
    return a if b == 0 else a - b * _divided(a, b)


def _unsigned(a: int) -> int:
    return a & _MASK


def _shifted(by: int, mask: int) -> Effect:
    return lambda a, b: ((a & mask) << by) + b


def _as_word(effect: Effect) -> Effect:
    return lambda a, b: signed(effect(a, b), 32)


_WORDS: dict[str, Effect] = {
    "addw": operator.add, "subw": operator.sub, "mulw": operator.mul, "divw": _divided, "remw": _rest,
    "sllw": lambda a, b: a << (b & 31), "sraw": lambda a, b: signed(a, 32) >> (b & 31),
    "srlw": lambda a, b: (a & 0xFFFFFFFF) >> (b & 31)}
LINEAR: dict[str, Effect] = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "sll": lambda a, b: a << (b & 63),
    "mv": lambda a, _: a, "neg": lambda a, _: -a, "not": lambda a, _: ~a, "li": lambda a, _: a,
    "lui": lambda a, _: signed(a << 12, 32), "sext.w": lambda a, _: signed(a, 32),
    "zext.w": lambda a, _: a & 0xFFFFFFFF, "add.uw": lambda a, b: (a & 0xFFFFFFFF) + b,
    "zext.b": lambda a, _: a & 0xFF, "zext.h": lambda a, _: a & 0xFFFF,
    "sext.b": lambda a, _: signed(a, 8), "sext.h": lambda a, _: signed(a, 16),
    "slli.uw": lambda a, b: (a & 0xFFFFFFFF) << b,
    **{f"sh{i}add": _shifted(i, -1) for i in (1, 2, 3)},
    **{f"sh{i}add.uw": _shifted(i, 0xFFFFFFFF) for i in (1, 2, 3)},
    **{name: _as_word(effect) for name, effect in _WORDS.items()}}
"""Instructions whose result moves evenly while their operands do, as far as loops use them."""
BENT: dict[str, Effect] = {
    "div": _divided, "rem": _rest, "divu": lambda a, b: _divided(_unsigned(a), _unsigned(b)),
    "remu": lambda a, b: _rest(_unsigned(a), _unsigned(b)),
    "mulh": lambda a, b: (a * b) >> 64, "mulhu": lambda a, b: (_unsigned(a) * _unsigned(b)) >> 64,
    "srl": lambda a, b: _unsigned(a) >> (b & 63), "sra": lambda a, b: a >> (b & 63),
    "and": operator.and_, "or": operator.or_, "xor": operator.xor, "andn": lambda a, b: a & ~b,
    "orn": lambda a, b: a | ~b, "xnor": lambda a, b: ~(a ^ b), "min": min, "max": max,
    "minu": lambda a, b: min(a, b, key=_unsigned), "maxu": lambda a, b: max(a, b, key=_unsigned),
    "slt": lambda a, b: int(a < b), "sltu": lambda a, b: int(_unsigned(a) < _unsigned(b)),
    "seqz": lambda a, _: int(a == 0), "snez": lambda a, _: int(a != 0), "sgtz": lambda a, _: int(a > 0),
    "sltz": lambda a, _: int(a < 0), "czero.eqz": lambda a, b: a if b else 0,
    "czero.nez": lambda a, b: 0 if b else a, "bext": lambda a, b: a >> (b & 63) & 1,
    "bclr": lambda a, b: a & ~(1 << (b & 63)), "bset": lambda a, b: a | 1 << (b & 63),
    "rol": lambda a, b: _unsigned(a) << (b & 63) | _unsigned(a) >> (64 - (b & 63)),
    "ctz": lambda a, _: (a & -a).bit_length() - 1 if a else 64,
    "clz": lambda a, _: 64 - _unsigned(a).bit_length(), "cpop": lambda a, _: _unsigned(a).bit_count()}
"""Instructions that bend: a loop may only be followed in strides while these keep their course."""
TESTS: dict[str, Callable[[int, int], bool]] = {
    "eq": operator.eq, "ne": operator.ne, "lt": operator.lt, "ge": operator.ge, "gt": operator.gt,
    "le": operator.le, "ltu": lambda a, b: _unsigned(a) < _unsigned(b),
    "geu": lambda a, b: _unsigned(a) >= _unsigned(b), "gtu": lambda a, b: _unsigned(a) > _unsigned(b),
    "leu": lambda a, b: _unsigned(a) <= _unsigned(b)}
_IMMEDIATE = {"addi": "add", "addiw": "addw", "slli": "sll", "srli": "srl", "srai": "sra", "andi": "and",
              "ori": "or", "xori": "xor", "slti": "slt", "sltiu": "sltu", "slliw": "sllw", "srliw": "srlw",
              "sraiw": "sraw", "bexti": "bext", "bclri": "bclr", "bseti": "bset", "subi": "sub",
              "negw": "neg", "rori": "ror"}


@dataclass(frozen=True, slots=True)
class Op:
    """One instruction. `kind`: see above; `to`: the register it writes, or -1; `a`, `b`: its operands'
    registers, -1 where it is the number in `x`, `y`; `effect`: of `COMPUTE`, `test`: of a branch; `bent`:
    whether `effect` is one of `BENT`; `target`: the number of the instruction it may lead to."""

    text: Instruction
    kind: int
    to: int = -1
    a: int = -1
    b: int = -1
    x: int = 0
    y: int = 0
    effect: Effect | None = None
    test: Callable[[int, int], bool] | None = None
    bent: bool = False
    target: int = -1
    type: tuple[int, float] = (0, 0.0)


@dataclass(frozen=True)
class CycleCode:
    """A kernel: its instructions in a row, the first ones of its blocks, and by the first instruction of each
    loop the first ones of the blocks in it. `numbers`: constants by address."""

    ops: tuple[Op, ...]
    starts: frozenset[int]
    loops: dict[int, frozenset[int]]
    machine: Machine
    numbers: dict[int, int]

    def constant(self, where: int) -> int:
        """The number that the code keeps at an address; 0 where that is not known."""
        return self.numbers.get(where, 0)


def read(text: str, machine: Machine) -> CycleCode:
    """The code of a kernel, given as LLVM assembly."""
    made = str(assemble(text, machine, listing=True))
    blocks = loops(made, machine)
    at: dict[str, int] = {}
    count = 0
    for block in blocks:
        at[block.label] = count
        count += len(block.instructions)
    constants = _constants(made)
    pool = {label: (1 << 52) + 4096 * i for i, label in enumerate(constants)}
    ops = [_op(i, machine, at, pool) for block in blocks for i in block.instructions]
    filled = {b.label: at[b.label] for b in blocks}
    inside = {at[head]: frozenset(filled[label] for label in body) for head, body in _bodies(blocks).items()}
    numbers = {pool[label] + 8 * i: x for label, row in constants.items() for i, x in enumerate(row)}
    return CycleCode(tuple(ops), frozenset(filled.values()), inside, machine, numbers)


def _bodies(blocks: Sequence[BasicBlock]) -> dict[str, set[str]]:
    """By the label of its first block, the blocks of each loop."""
    ways = {b.label: b.successors for b in blocks}
    before: dict[str, list[str]] = {label: [] for label in ways}
    for label, targets in ways.items():
        for target in targets:
            before[target].append(label)
    back: dict[str, list[str]] = {}
    done: set[str] = set()
    path: dict[str, Iterator[str]] = {}
    for entry in (b.label for b in blocks if b.entry):
        path[entry] = iter(ways[entry])
        while path:
            label = next(reversed(path))
            for target in path[label]:
                if target in path:
                    back.setdefault(target, []).append(label)
                elif target not in done:
                    path[target] = iter(ways[target])
                    break
            else:
                done.add(label)
                del path[label]
    bodies: dict[str, set[str]] = {}
    for head, sources in back.items():
        body = bodies[head] = {head}
        todo = list(sources)
        while todo:
            label = todo.pop()
            if label not in body:
                body.add(label)
                todo.extend(before[label])
    return bodies


def _constants(text: str) -> dict[str, list[int]]:
    """Per label of data its 8-byte numbers."""
    found: dict[str, list[int]] = {}
    label = ""
    for line in text.splitlines():
        line = line.partition("#")[0].strip()
        if re.fullmatch(r"[\w.$]+:", line):
            label = line[:-1]
        elif line.startswith(".quad") and label:
            value = line.split(None, 1)[1]
            if re.fullmatch(r"-?\d+|0x[\da-fA-F]+", value):
                found.setdefault(label, []).append(signed(int(value, 0)))
    return found


def _operand(name: str) -> tuple[int, int]:
    """(register, number) of an operand: -1 in the place of the register for a number."""
    found = register(name)
    if found is not None:
        return (found, 0) if found < 32 else (-1, 0)
    try:
        return -1, int(name, 0)
    except ValueError:
        return -1, 0


def _address(operands: Sequence[str]) -> tuple[int, int] | None:
    """The register and the offset of the memory that is named, None where none is."""
    return next((found for o in operands if (found := base_of(o)) is not None), None)


def _op(i: Instruction, machine: Machine, at: dict[str, int], pool: dict[str, int]) -> Op:
    op, operands = i.op, i.operands
    if i.kind == BRANCH:
        return _branch(i, at)
    if i.kind == CONFIGURATION:
        a, x = _operand(operands[1])
        group = operands[3]
        size = 1 / int(group[2:]) if group.startswith("mf") else float(group[1:])
        return Op(i, SET, register(operands[0]) or 0, a, x=x, type=(int(operands[2][1:]), size))
    if op.startswith(("v", "sf.", "smt.")):
        base = _address(operands)
        own = _operand(operands[0])[0] if operands else -1
        stride = _operand(operands[2]) if base is not None and len(operands) > 2 else (-1, 0)
        return Op(i, VECTOR, own, base[0] if base else -1, stride[0], base[1] if base else 0)
    to = register(operands[0]) if operands else None
    base = _address(operands)
    if base is not None:
        stores = op in ("sb", "sh", "sw", "sd", "fsh", "fsw", "fsd")
        own = to if to is not None and to < 32 else -1
        return Op(i, STORE if stores else LOAD, own, base[0], x=base[1])
    if op == "csrr":
        return Op(i, COMPUTE, to or -1, x=machine.vector if operands[1] == "vlenb" else 0,
                  effect=LINEAR["li"])
    if op == "auipc":
        label = re.search(r"\(([\w.$]+)\)", operands[1])
        return Op(i, COMPUTE, to or -1, x=pool.get(label[1], 1 << 51) if label else 1 << 51,
                  effect=LINEAR["li"])
    if to is None or not 0 < to < 32:
        return Op(i, NOTHING)
    name = _IMMEDIATE.get(op, op)
    effect = LINEAR.get(name) or BENT.get(name)
    if effect is None:
        return Op(i, COMPUTE, to, effect=lambda _a, _b: 0)
    a, x = _operand(operands[1])
    b, y = _operand(operands[2]) if len(operands) > 2 else (-1, 0)
    return Op(i, COMPUTE, to, a, b, x, y, effect, bent=name in BENT)


def _branch(i: Instruction, at: dict[str, int]) -> Op:
    if i.op in ("j", "tail"):
        return Op(i, JUMP, target=at[i.operands[-1]])
    if i.op in ("ret", "jr"):
        return Op(i, DONE)
    name = i.op[1:]
    against_zero = name.endswith("z")
    test = TESTS[name.removesuffix("z")]
    a, x = _operand(i.operands[0])
    b, y = (-1, 0) if against_zero else _operand(i.operands[1])
    return Op(i, BRANCHES, a=a, b=b, x=x, y=y, test=test, target=at[i.operands[-1]])
