"""RISC-V's vector instructions that LLVM only knows for vectors whose length is left open.

In: vectors of a known length that fill whole registers of the machine written for. Out: the same, or what an
intrinsic makes of them. Between the two kinds no instruction is needed.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..machines.machine import Machine
from .emit import F16, F32, I16, I32, I64, Function, V, elem_of, lanes_of, vec

_SHORT = {F16: "f16", F32: "f32"}
_AS_SET, _REST_OPEN = 7, 3
"""Round as the machine is set to; lanes beyond the length may hold anything."""


def parts_of(ty: str, machine: Machine) -> int:
    """The elements of an open-ended vector per 64 bits of a register, for a vector of type `ty`. Raises
    ValueError where that is no whole number."""
    parts, rest = divmod(64 * lanes_of(ty), 8 * machine.vector)
    if rest or not parts:
        raise ValueError(f"{ty} fills no registers of {machine.vector} bytes")
    return parts


def _names(f: Function, ty: str) -> tuple[str, str]:
    """The open-ended type for a type, and its short name."""
    parts, elem = parts_of(ty, f.machine), elem_of(ty)  # type: ignore[attr-defined]
    return f"<vscale x {parts} x {elem}>", f"nxv{parts}{_SHORT.get(elem, elem)}"


def _fixed_name(ty: str) -> str:
    return f"v{lanes_of(ty)}{_SHORT.get(elem_of(ty), elem_of(ty))}"


def _opened(f: Function, x: V) -> V:
    ty, short = _names(f, x.ty)
    name = f"vector.insert.{short}.{_fixed_name(x.ty)}"
    f.module.declared[name] = f"declare {ty} @llvm.{name}({ty}, {x.ty}, i64)"
    return f.emit(ty, f"call {ty} @llvm.{name}({ty} poison, {x}, i64 0)")


def call(f: Function, name: str, c: V, args: Sequence[V], *numbers: int) -> V:
    """`llvm.riscv.<name>` of `c` and `args`, then `numbers`: of the type of `c`. Types are appended to the
    name; a number among `args` stays one."""
    given = [_opened(f, x) if x.lanes > 1 else x for x in (c, *args)]
    suffix = ".".join(_names(f, x.ty)[1] if x.lanes > 1 else _SHORT.get(x.elem, x.elem)
                      for x in (c, *args))
    made = f.intrinsic(f"riscv.{name}.{suffix}.i64", _names(f, c.ty)[0], *given,
                       *(f.const(I64, n) for n in numbers))
    inverse = f"vector.extract.{_fixed_name(c.ty)}.{_names(f, c.ty)[1]}"
    f.module.declared[inverse] = f"declare {c.ty} @llvm.{inverse}({made.ty}, i64)"
    return f.emit(c.ty, f"call {c.ty} @llvm.{inverse}({made}, i64 0)")


def multiply_halves(f: Function, c: V, a: V, b: V) -> V:
    """c + a b, rounded once: `c` of float32, `b` and `a`, or the number `a`, of float16."""
    if c.ty != vec(F32, b.lanes) or b.elem != F16 or a.elem != F16:
        raise ValueError(f"no product of {a.ty} and {b.ty} is added to {c.ty}")
    return call(f, "vfwmacc", c, [a, b], _AS_SET, c.lanes, _REST_OPEN)


def multiply_shorts(f: Function, c: V, a: V, b: V) -> V:
    """c + a b: `c` of int32, `a` and `b` of int16."""
    if c.ty != vec(I32, b.lanes) or not a.elem == b.elem == I16:
        raise ValueError(f"no product of {a.ty} and {b.ty} is added to {c.ty}")
    return call(f, "vwmacc", c, [a, b], c.lanes, _REST_OPEN)
