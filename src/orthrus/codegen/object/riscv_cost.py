"""What a RISC-V kernel costs as it stands: its assembly in blocks, loops, and instructions by class.

In: LLVM assembly of a kernel, or the machine's assembly of one, and the `Machine`. Out: blocks that know
where they lead, how deep in loops they lie, and with what vector length and element type each of their
vector instructions runs. Nothing is executed: what depends on data (how often a loop turns) is not here.

    for loop in innermost(loops(spec.text(machine), machine)):
        print(loop.label, count(loop.instructions))
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import field, replace

from ...records import dataclass
from ..machines.machine import Machine
from .build import assemble

SCALAR, VECTOR, MEMORY, CONFIGURATION, BRANCH = "scalar", "vector", "memory", "configuration", "branch"
"""The classes of instructions: what works on numbers; what computes with vectors, loads or stores them, sets
their length and type; and what leads elsewhere."""

_JUMPS = ("j", "jr", "ret", "tail")
_SETS = ("vsetvli", "vsetivli", "vsetvl")
_BRANCHES = re.compile(r"b(eq|ne|lt|ge|gt|le)(u|z)?$")
_MEMORY = re.compile(r"v[ls](e\d+(ff)?|m|se\d+|[uo]xei\d+|\dr(e\d+)?|(s|[uo]x)?seg\dei?\d+(ff)?)\.v$")
_PRODUCT = re.compile(r"(vf?n?w?m(acc|sac|add|sub)(u|su|us)?|vfn?w?m(acc|sac|add|sub))\.v")
_NUMBER = re.compile(r"fn?m(add|sub)\.[hsd]$")
_WHOLE = re.compile(r"v[ls]\dr")
_MOVE = re.compile(r"vmv(\dr)?\.v(\.v)?$")
_STORES = re.compile(r"(s[bhwd]|fs[hwd])$")
_MATRIX = ("sf.vqmacc", "smt.vmadot")


@dataclass(frozen=True, slots=True)
class Vector:
    """How a vector instruction runs: on how many elements (None where that is only known when it runs), of
    how many bits, in groups of how many registers (1/8 to 8)."""

    elements: int | None
    width: int
    group: float


@dataclass(frozen=True, slots=True)
class Instruction:
    """`vector`: of a vector instruction; `products`: multiply-adds that it does."""

    op: str
    operands: tuple[str, ...]
    vector: Vector | None = None
    products: int = 0

    @property
    def kind(self) -> str:
        """Its class."""
        if self.op in _JUMPS or _BRANCHES.match(self.op):
            return BRANCH
        if self.op in _SETS:
            return CONFIGURATION
        if self.op.startswith("v"):
            return MEMORY if _MEMORY.match(self.op) else VECTOR
        return VECTOR if self.op.startswith(_MATRIX) else SCALAR

    def __str__(self) -> str:
        return f"{self.op} {', '.join(self.operands)}".strip()


@dataclass(frozen=True, slots=True)
class BasicBlock:
    """Instructions that run one after the other. `depth`: how many loops it lies in; `loop`: the label of the
    innermost one's first block; `successors`: the labels of blocks that may follow; `entry`: a function
    begins here."""

    label: str
    instructions: tuple[Instruction, ...]
    depth: int
    successors: tuple[str, ...]
    loop: str | None = None
    entry: bool = False


@dataclass(frozen=True, slots=True)
class Loop:
    """A loop that holds no other; its label is its first block's."""

    label: str
    blocks: tuple[BasicBlock, ...]

    @property
    def instructions(self) -> list[Instruction]:
        """All of them; those on paths that exclude each other, too."""
        return [i for block in self.blocks for i in block.instructions]


@dataclass(frozen=True, slots=True)
class Counts:
    """Instructions by class. `spills`: those of `memory` that save or bring back whole registers; `moves`:
    those of `vector` that copy; `multiply_adds`: what all of them do."""

    scalar: int
    vector: int
    memory: int
    configuration: int
    branch: int
    spills: int
    moves: int
    multiply_adds: int

    @property
    def total(self) -> int:
        return self.scalar + self.vector + self.memory + self.configuration + self.branch


def count(instructions: Iterable[Instruction]) -> Counts:
    """How many instructions of each class."""
    every = list(instructions)
    kinds = [i.kind for i in every]
    return Counts(
        scalar=kinds.count(SCALAR), vector=kinds.count(VECTOR), memory=kinds.count(MEMORY),
        configuration=kinds.count(CONFIGURATION), branch=kinds.count(BRANCH),
        spills=sum(bool(_WHOLE.match(i.op)) for i in every),
        moves=sum(bool(_MOVE.match(i.op)) for i in every),
        multiply_adds=sum(i.products for i in every))


def innermost(blocks: Sequence[BasicBlock]) -> list[Loop]:
    """The loops that hold no other, in the order of the text."""
    inside = _loops({b.label: b.successors for b in blocks}, [b.label for b in blocks if b.entry])
    return [Loop(head, tuple(b for b in blocks if b.label in body)) for head, body in inside.items()
            if not any(other in body for other in inside if other != head)]


def loops(text: str, machine: Machine) -> list[BasicBlock]:
    """The blocks of a module, in order. `text`: LLVM assembly, which is compiled for `machine`, or what has
    been made of it. Raises ValueError for a machine that is no RISC-V one."""
    if machine.arch != "riscv64":
        raise ValueError(f"assembly of {machine.arch} cannot be read, of riscv64 alone")
    if re.search(r"^define ", text, re.MULTILINE):
        text = str(assemble(text, machine, listing=True))
    drafts = _split(_parsed(text))
    edges = {d.label: d.successors for d in drafts}
    bodies = _loops(edges, [d.label for d in drafts if d.entry])
    _run_vectors(drafts, machine)
    made = []
    for d in drafts:
        around = [h for h, body in bodies.items() if d.label in body]
        own = min(around, key=lambda h: len(bodies[h]), default=None)
        made.append(BasicBlock(d.label, tuple(d.done), len(around), d.successors, own, d.entry))
    return made


@dataclass(slots=True)
class _Draft:
    """A block before its vectors are known. `entry`: a function begins here."""

    label: str
    entry: bool
    rows: list[tuple[str, tuple[str, ...]]] = field(default_factory=list)
    successors: tuple[str, ...] = ()
    done: list[Instruction] = field(default_factory=list)


def _parsed(text: str) -> list[tuple[str, tuple[str, ...]]]:
    """(operation, operands) per instruction, (label:, ()) per label."""
    rows: list[tuple[str, tuple[str, ...]]] = []
    for line in text.splitlines():
        line = line.partition("#")[0].strip()
        if line.endswith(":"):
            rows.append((line, ()))
        elif line and not line.startswith("."):
            op, _, rest = line.partition("\t") if "\t" in line else line.partition(" ")
            rows.append((op, tuple(part.strip() for part in rest.split(",")) if rest.strip() else ()))
    return rows


def _leads(op: str, operands: Sequence[str]) -> str | None:
    return operands[-1] if operands and (op in ("j", "tail") or _BRANCHES.match(op)) else None


def _split(rows: Sequence[tuple[str, tuple[str, ...]]]) -> list[_Draft]:
    """Blocks that begin at functions and at what branches name, and end behind branches."""
    named = {target for op, operands in rows if (target := _leads(op, operands))}
    drafts: list[_Draft] = []
    follows = True
    for op, operands in rows:
        if op.endswith(":"):
            label = op[:-1]
            entry = not label.startswith(".L")
            if entry or label in named:
                drafts.append(_Draft(label, entry))
                follows = True
            continue
        if not drafts or not follows:
            drafts.append(_Draft(f"{drafts[-1].label if drafts else 'begin'}+", not drafts))
            follows = True
        drafts[-1].rows.append((op, operands))
        follows = not (op in _JUMPS or _BRANCHES.match(op))
    for i, d in enumerate(drafts):
        op, operands = d.rows[-1] if d.rows else ("", ())
        target = _leads(op, operands)
        after = drafts[i + 1].label if i + 1 < len(drafts) and not drafts[i + 1].entry else None
        ways = [target, after if op not in _JUMPS else None]
        d.successors = tuple(dict.fromkeys(w for w in ways if w is not None))
    known = {d.label for d in drafts}
    for d in drafts:
        d.successors = tuple(s for s in d.successors if s in known)
    return drafts


def _loops(edges: dict[str, tuple[str, ...]], entries: Sequence[str]) -> dict[str, set[str]]:
    """By the label of its first block, the blocks of each loop: those from which a block is reached that
    leads back to the first and can only be reached through it."""
    before: dict[str, list[str]] = {label: [] for label in edges}
    for label, ways in edges.items():
        for way in ways:
            before[way].append(label)
    over = {label: {label} if label in entries else set(edges) for label in edges}
    changed = True
    while changed:
        changed = False
        for label in edges:
            if label not in entries:
                parts = [over[b] for b in before[label]]
                now = {label} | (set.intersection(*parts) if parts else set())
                changed, over[label] = changed or now != over[label], now
    made: dict[str, set[str]] = {}
    for head in edges:
        todo = [b for b in before[head] if head in over[b]]
        if todo:
            made[head] = {head}
            while todo:
                label = todo.pop()
                if label not in made[head]:
                    made[head].add(label)
                    todo.extend(before[label])
    return made


@dataclass(frozen=True, slots=True)
class _State:
    """What is known between two instructions: vector length, bits of an element, registers of a group, and
    the registers that hold a number."""

    elements: int | None = None
    width: int | None = None
    group: float | None = None
    numbers: frozenset[tuple[str, int]] = frozenset()

    def met(self, other: _State) -> _State:
        """What is known on both ways."""
        return _State(self.elements if self.elements == other.elements else None,
                      self.width if self.width == other.width else None,
                      self.group if self.group == other.group else None, self.numbers & other.numbers)

    @property
    def vector(self) -> Vector | None:
        return None if self.width is None or self.group is None else Vector(
            self.elements, self.width, self.group)


def _run_vectors(drafts: Sequence[_Draft], machine: Machine) -> None:
    """Find out how every vector instruction runs, and write the instructions."""
    states = {d.label: _State() for d in drafts if d.entry}
    by = {d.label: d for d in drafts}
    todo = [d for d in drafts if d.entry]
    while todo:
        d = todo.pop()
        state, d.done = _through(d, states[d.label], machine)
        for way in d.successors:
            now = states[way].met(state) if way in states else state
            if way not in states or now != states[way]:
                states[way] = now
                todo.append(by[way])
    for d in drafts:
        if d.label not in states:
            d.done = _through(d, _State(), machine)[1]


def _through(d: _Draft, state: _State, machine: Machine) -> tuple[_State, list[Instruction]]:
    """The state behind a block that is entered in `state`, and its instructions."""
    done = []
    for op, operands in d.rows:
        if op in _SETS:
            state = _set(op, operands, state, machine)
        made = Instruction(op, operands)
        if made.kind in (VECTOR, MEMORY):
            made = Instruction(op, operands, state.vector, _products(op, state.vector, machine))
        elif _NUMBER.match(op):
            made = Instruction(op, operands, None, 1)
        done.append(made)
        if operands and made.kind in (SCALAR, CONFIGURATION) and not _STORES.match(op):
            kept = {(name, x) for name, x in state.numbers if name != operands[0]}
            if op == "li":
                kept.add((operands[0], int(operands[1], 0)))
            state = replace(state, numbers=frozenset(kept))
    return state, done


def _set(op: str, operands: Sequence[str], state: _State, machine: Machine) -> _State:
    """The state behind a `vset` instruction."""
    if op == "vsetvl" or len(operands) < 4:
        return _State(numbers=state.numbers)
    width, group = int(operands[2][1:]), operands[3]
    size = 1 / int(group[2:]) if group.startswith("mf") else float(group[1:])
    most = int(8 * machine.vector * size) // width
    if operands[:2] == ("zero", "zero"):
        elements = state.elements
    elif op == "vsetivli":
        elements = int(operands[1], 0)
    elif operands[1] == "zero":
        elements = most
    else:
        elements = dict(state.numbers).get(operands[1])
    return replace(state, elements=None if elements is None else min(elements, most), width=width, group=size)


def _products(op: str, vector: Vector | None, machine: Machine) -> int:
    if op.startswith(_MATRIX) and machine.matrix is not None:
        m, n, k = machine.matrix
        return m * n * k
    return vector.elements or 0 if vector is not None and _PRODUCT.match(op) else 0
