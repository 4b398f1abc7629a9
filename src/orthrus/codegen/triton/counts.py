"""How much work a compiled kernel is: its instructions and bytes, by kind, for each of its programs.

In: a kernel's assembly as the compiler gives it, AMD's or PTX, its text and the values of its arguments. Out:
a `Tally` of one warp of one program. Instructions in loops count as often as the loops turn, which the text
says: ranges there are computed from arguments. Nothing runs.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ...records import dataclass
from .targets import CUDA, Target
from .tiles import chip
from .write import RARE

_SIZES = {
    "byte": 1, "ubyte": 1, "sbyte": 1, "short": 2, "ushort": 2, "sshort": 2, "dword": 4, "dwordx2": 8,
    "dwordx3": 12, "dwordx4": 16, "u8": 1, "i8": 1, "u16": 2, "i16": 2, "b8": 1, "b16": 2, "b32": 4, "b64": 8,
    "b96": 12, "b128": 16, "u32": 4, "u64": 8, "f16": 2, "f32": 4, "f64": 8}
"""Bytes of a lane, by the last words of AMD's instructions on memory."""

_SLOW = re.compile(r"v_(exp|log|rcp|rsq|sqrt|sin|cos)_|^(ex2|lg2|rcp|rsqrt|sqrt|sin|cos|tanh)\.")
_NAME = re.compile(r"(?:v|s|ds|global|buffer|flat|scratch)_\w+|[a-z]\w*(?:\.[\w:]+)*")
_BLOCKS = re.compile(r"_(\d+)b_")
_FREE = ("mov", "cvta", "ret", "ld.param", "st.param", "bar", "cp.async.commit", "cp.async.wait",
         "wgmma.fence", "wgmma.commit", "wgmma.wait", "fence", "bra", "mbarrier")
"""Instructions of PTX that the processor does not carry out, or not in the stream of the others."""

_TRANSCENDENTAL = 4
"""What a slow function counts, in plain instructions."""


_PROGRAMS = "number of programs"
_MOSTLY = 0.1
"""Share of a loop's instructions that multiply and add from which on it is one of products, where nothing
goes to a matrix unit: such a loop's first and last turns are written out beside it."""


@dataclass(frozen=True)
class Tally:
    """Work of one warp of a program. `vector`: instructions of all lanes; `scalar`: AMD's of none; `doubles`:
    those of the first that are of float64; `dots`: those that multiply and add; `matrix`: cycles that all
    matrix units of a multiprocessor would take for its products; `shared`, `near`: bytes in shared memory and
    in memory; `rounds`: how often it waits for memory."""

    vector: float = 0
    scalar: float = 0
    doubles: float = 0
    dots: float = 0
    matrix: float = 0
    shared: float = 0
    near: float = 0
    rounds: float = 0

    @property
    def instructions(self) -> float:
        """All of them."""
        return self.vector + self.scalar

    def plus(self, other: Tally, times: float) -> Tally:
        """This and so many of another."""
        return Tally(*(a + times * b for a, b in zip(vars(self).values(), vars(other).values(), strict=True)))


def tally(assembly: str, text: str, arguments: Mapping[str, Any], programs: int, target: Target) -> Tally:
    """The work of a kernel of this `text`, of so many programs with these integers as arguments. Turns of a
    loop that the compiler has put before and behind it are not counted twice."""
    loops, lines = _parsed(assembly)
    turns = _turns(loops, list(trips(text, {**arguments, _PROGRAMS: programs})))
    work = {header: _work([words for owner, words in lines if owner == header], target)
            for header in ("", *loops)}
    total = work[""]
    for header in loops:
        times = math.prod(turns[each] for each in _around(loops, header))
        if work[header].matrix or work[header].dots > _MOSTLY * work[header].vector:
            times = max(0, times - round(work[""].dots / work[header].dots))
        total = total.plus(work[header], times)
    return total


def _work(lines: Sequence[Sequence[str]], target: Target) -> Tally:
    """Of instructions one behind the other; what is read before a barrier or a turn is waited for once."""
    total, read = Tally(), _ptx if target.api == CUDA else _gcn
    for words in lines:
        total = total.plus(read(words, target), 1)
    return replace(total, rounds=int(total.near > 0))


def _around(loops: Mapping[str, str], header: str) -> Iterator[str]:
    while header:
        yield header
        header = loops[header]


def _turns(loops: Mapping[str, str], known: Sequence[tuple[int, float]]) -> dict[str, float]:
    """How often each loop turns: as those of the text in the same order, of which the compiler may have
    written out inner and short ones."""
    left = list(known)
    while len(left) > len(loops):
        left.remove(min(left, key=lambda each: (-each[0], each[1])))
    left += [(1, 1.0)] * (len(loops) - len(left))
    return {header: turns for header, (_, turns) in zip(loops, left, strict=True)}


def _parsed(assembly: str) -> tuple[dict[str, str], list[tuple[str, list[str]]]]:
    """The loops in order, each with the one around it, and each instruction with the loop that it is in; ""
    for none."""
    loops: dict[str, str] = {}
    lines: list[tuple[str, list[str]]] = []
    owner, label, begun = "", "", False
    for line in assembly.splitlines():
        code, mark, note = line.partition(";") if "//" not in line else line.partition("//")
        found = re.match(r"\s*\$?\.?L?_*(BB\d+_\d+):", line) or re.match(r"\s*(?:;|//)\s*%(bb\.\d+):", line)
        if found:
            owner, label, begun = "", found[1], True
        if begun and (mark or found):
            if inside := re.search(r"in Loop: Header=(BB\d+_\d+)", note):
                owner = inside[1]
            if parent := re.search(r"Parent Loop (BB\d+_\d+)", note):
                owner = parent[1]
            if re.search(r"Loop Header: Depth", note):
                loops[label] = owner if owner in loops else ""
                owner = label
        words = re.sub(r"@!?%\w+\s+", "", code).split()
        if found or not words or not _NAME.fullmatch(words[0].rstrip(";")):
            continue
        begun = begun and bool(note) and not code.strip()
        lines.append((owner, words))
    for header, _ in lines:
        if header:
            loops.setdefault(header, "")
    return loops, lines


def _gcn(words: Sequence[str], target: Target) -> Tally:
    name = words[0]
    if name.startswith(("v_mfma", "v_wmma", "v_smfmac")):
        m, n, k = map(int, _shape(name))
        blocks = int(found[1]) if (found := _BLOCKS.search(name)) else 1
        return Tally(vector=1, dots=1, matrix=m * n * k * blocks / _rate(name.rpartition("x")[2], target))
    kind, _, rest = name.partition("_")
    if kind == "ds":
        wide = _SIZES.get(rest.split("_")[-1], 4) * (2 if "2" in rest.split("_")[0] else 1)
        return Tally(vector=1, shared=wide * target.warp)
    if kind in ("global", "buffer", "flat", "scratch"):
        sizes = [_SIZES[part] for part in rest.split("_") if part in _SIZES]
        return Tally(vector=1, near=(sizes[-1] if sizes else 4) * target.warp)
    if kind == "v":
        cost = _TRANSCENDENTAL if _SLOW.match(name) else 1
        dots = 1 if re.match(r"v_(pk_|dual_)?(fma|dot)", name) else 0
        return Tally(vector=cost, doubles=cost if "_f64" in name else 0, dots=dots)
    return Tally(scalar=1) if kind == "s" and name not in ("s_endpgm", "s_waitcnt", "s_nop") else Tally()


def _ptx(words: Sequence[str], target: Target) -> Tally:
    name = words[0].rstrip(";")
    if name.startswith(("mma.", "wgmma.mma")):
        m, n, k = map(int, _shape(name))
        warps = 4 if name.startswith("wgmma") else 1
        return Tally(vector=1, dots=1, matrix=m * n * k / warps / _rate(name, target))
    if name.startswith("ldmatrix"):
        matrices = next((part[1:] for part in name.split(".") if part in ("x2", "x4")), "1")
        return Tally(vector=1, shared=128 * int(matrices))
    if name.startswith("cp.async") and "shared.global" in name:
        size = int(re.findall(r"\b0x[0-9a-f]+\b", " ".join(words))[0], 0) * target.warp
        return Tally(vector=1, near=size, shared=size)
    if name.startswith(_FREE):
        return Tally()
    if name.startswith(("ld.", "st.", "atom.", "red.")):
        parts = name.split(".")
        bits = next((int(p[1:]) for p in reversed(parts) if p[:1] in "bfsu" and p[1:].isdigit()), 32)
        wide = bits // 8 * int(next((p[1:] for p in parts if p in ("v2", "v4", "v8")), 1)) * target.warp
        return Tally(vector=1, shared=wide) if "shared" in parts else Tally(vector=1, near=wide)
    cost = _TRANSCENDENTAL if _SLOW.match(name) else 1
    return Tally(vector=cost, doubles=cost if name.endswith(".f64") else 0, dots=int(name.startswith("fma.")))


def _rate(name: str, target: Target) -> int:
    """Products that a multiprocessor adds up in a cycle, of the types that an instruction is named after."""
    have = chip(target)
    for types, rate in ((("tf32", "xf32"), have.half // 2), (("f16",), have.half),
                        (("i8", "u8", "s8", "fp8", "bf8", "e4m3", "e5m2"), 2 * have.half),
                        (("f64",), have.exact)):
        if any(each in name for each in types):
            return rate
    return 2 * have.single


def _shape(name: str) -> tuple[str, ...]:
    found = re.search(r"m(\d+)n(\d+)k(\d+)", name) or re.search(r"_(\d+)x(\d+)x(\d+)", name)
    assert found is not None, name
    return found.groups()


def trips(text: str, arguments: Mapping[str, Any]) -> Iterator[tuple[int, float]]:
    """The loops of a kernel's text in order: how deep each lies, and how often it turns in the first program,
    1 where that depends on what was loaded, 0 in what is done rarely."""
    body = ast.parse(text).body[0]
    assert isinstance(body, ast.FunctionDef)
    yield from _walked(body.body, dict(arguments), 1)


def _walked(body: Sequence[ast.stmt], known: dict[str, Any], depth: int) -> Iterator[tuple[int, float]]:
    for each in body:
        if isinstance(each, ast.Assign):
            _assign(each, known)
        elif isinstance(each, ast.AugAssign) and isinstance(each.target, ast.Name):
            known.pop(each.target.id, None)
        elif isinstance(each, ast.For):
            yield depth, _range(each.iter, known)
            yield from _walked(each.body, known, depth + 1)
        elif isinstance(each, ast.While):
            yield depth, 1.0
            yield from _walked(each.body, known, depth + 1)
        elif isinstance(each, ast.If):
            inside = _walked([*each.body, *each.orelse], known, depth)
            rare = isinstance(each.test, ast.Name) and each.test.id == RARE
            yield from ((deep, 0.0) for deep, _ in inside) if rare else inside


def _assign(it: ast.Assign, known: dict[str, Any]) -> None:
    target, = it.targets
    if isinstance(target, ast.Tuple) and isinstance(it.value, ast.Tuple):
        values = [_value(v, known) for v in it.value.elts]
        pairs = zip(target.elts, values, strict=True)
    else:
        pairs = zip([target], [_value(it.value, known)], strict=True)
    for name, value in pairs:
        if isinstance(name, ast.Name):
            known[name.id] = value


def _range(it: ast.expr, known: Mapping[str, Any]) -> float:
    if not isinstance(it, ast.Call) or not it.args:
        return 1.0
    values = [v for each in it.args if (v := _value(each, known)) is not None]
    if len(values) < len(it.args) or values[2:] == [0]:
        return 1.0
    return float(len(range(*values)))


_COMPUTED = {ast.Add: lambda a, b: a + b, ast.Sub: lambda a, b: a - b, ast.Mult: lambda a, b: a * b,
             ast.FloorDiv: lambda a, b: a // b if b else None, ast.Mod: lambda a, b: a % b if b else None}


def _value(it: ast.expr, known: Mapping[str, Any]) -> int | None:
    """An integer that is the same in all lanes of the first program; None for anything else."""
    if isinstance(it, ast.Constant):
        return it.value if isinstance(it.value, int) else None
    if isinstance(it, ast.Name):
        value = known.get(it.id)
        return value if isinstance(value, int) else None
    if isinstance(it, ast.BinOp) and type(it.op) in _COMPUTED:
        left, right = _value(it.left, known), _value(it.right, known)
        return None if left is None or right is None else _COMPUTED[type(it.op)](left, right)
    if isinstance(it, ast.Call):
        name = it.func.attr if isinstance(it.func, ast.Attribute) else ""
        values = [_value(each, known) for each in it.args]
        if name == "program_id":
            return 0
        if name == "num_programs":
            return known.get(_PROGRAMS)
        if name == "to" and isinstance(it.func, ast.Attribute):
            return _value(it.func.value, known)
        if name in ("cdiv", "minimum", "maximum") and len(values) == 2 and None not in values:
            a, b = values
            assert a is not None and b is not None
            return {"cdiv": -(-a // b) if b else None, "minimum": min(a, b), "maximum": max(a, b)}[name]
    return None
