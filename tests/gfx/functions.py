"""The functions that AMD's pseudo-code calls, each on values of a lane."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from llvmlite import ir

if TYPE_CHECKING:
    from .semantics import Lane, Value

_MANTISSA = {16: 10, 32: 23, 64: 52}


def _integer(lane: Lane, like: Value, value: int) -> ir.Constant:
    return ir.Constant(ir.IntType(like.bits), value)


def _field(lane: Lane, x: Value) -> ir.Value:
    """The exponent's bits, where they stand."""
    bits = _MANTISSA[x.bits]
    mask = (1 << x.bits - 1 - bits) - 1
    return lane.b.and_(lane.b.lshr(lane.raw(x), _integer(lane, x, bits)), _integer(lane, x, mask))


def _made(x: ir.Value, kind: str, bits: int) -> Value:
    from .semantics import Value

    return Value(x, kind, bits)


def is_nan(lane: Lane, x: Value) -> Value:
    return _made(lane.b.fcmp_unordered("uno", x.ir, x.ir), "u", 1)


def _quiet_bit(lane: Lane, x: Value) -> ir.Value:
    mask = _integer(lane, x, 1 << _MANTISSA[x.bits] - 1)
    return lane.b.icmp_unsigned("!=", lane.b.and_(lane.raw(x), mask), _integer(lane, x, 0))


def is_quiet_nan(lane: Lane, x: Value) -> Value:
    return _made(lane.b.and_(is_nan(lane, x).ir, _quiet_bit(lane, x)), "u", 1)


def is_signal_nan(lane: Lane, x: Value) -> Value:
    return _made(lane.b.and_(is_nan(lane, x).ir, lane.b.not_(_quiet_bit(lane, x))), "u", 1)


def to_quiet_nan(lane: Lane, x: Value) -> Value:
    raw = lane.b.or_(lane.raw(x), _integer(lane, x, 1 << _MANTISSA[x.bits] - 1))
    return lane.viewed(_made(raw, "u", x.bits), "f", x.bits)


def sign(lane: Lane, x: Value) -> Value:
    return _made(lane.resized(lane.b.lshr(lane.raw(x), _integer(lane, x, x.bits - 1)), 1), "u", 1)


def exponent(lane: Lane, x: Value) -> Value:
    return _made(lane.resized(_field(lane, x), 32), "i", 32)


def mantissa(lane: Lane, x: Value) -> Value:
    """In [0.5, 1) with the sign of x; zeros as they are."""
    b, bits = lane.b, _MANTISSA[x.bits]
    kept = b.and_(lane.raw(x), _integer(lane, x, 1 << x.bits - 1 | (1 << bits) - 1))
    half = {16: 14, 32: 126, 64: 1022}[x.bits] << bits
    made = lane.viewed(_made(b.or_(kept, _integer(lane, x, half)), "u", x.bits), "f", x.bits)
    zero = b.fcmp_ordered("==", x.ir, ir.Constant(x.ir.type, 0.0))
    return _made(b.select(zero, x.ir, made.ir), "f", x.bits)


def absolute(lane: Lane, x: Value) -> Value:
    if x.kind == "f":
        raw = lane.b.and_(lane.raw(x), _integer(lane, x, (1 << x.bits - 1) - 1))
        return lane.viewed(_made(raw, "u", x.bits), "f", x.bits)
    negative = lane.b.icmp_signed("<", x.ir, _integer(lane, x, 0))
    return _made(lane.b.select(negative, lane.b.neg(x.ir), x.ir), x.kind, x.bits)


def fused(lane: Lane, x: Value, y: Value, z: Value) -> Value:
    bits = max(v.bits for v in (x, y, z))
    wide = 64 if bits == 16 else bits
    x, y, z = (lane.convert(v, "f", wide) for v in (x, y, z))
    made = lane.intrinsic(f"llvm.fma.f{wide}", x.ir.type, x.ir, y.ir, z.ir)
    return lane.convert(_made(made, "f", wide), "f", bits)


def _unary(name: str, through: int = 0) -> Callable[..., Value]:
    """An LLVM intrinsic of one float; `through` is the width it is computed in, where not its own."""

    def function(lane: Lane, x: Value) -> Value:
        wide = max(through, 32, x.bits)
        inner = lane.convert(x, "f", wide)
        made = lane.intrinsic(f"llvm.{name}.f{wide}", inner.ir.type, inner.ir)
        return lane.convert(_made(made, "f", wide), "f", x.bits)

    return function


def power(lane: Lane, x: Value, y: Value) -> Value:
    """Its base is always 2."""
    return lane.exp2(y)


def scaled(lane: Lane, x: Value, n: Value) -> Value:
    wide = lane.convert(x, "f", 64)
    whole = lane.convert(n, "i", 32)
    made = lane.intrinsic("llvm.ldexp.f64.i32", wide.ir.type, wide.ir, whole.ir)
    return lane.convert(_made(made, "f", 64), "f", x.bits)


def fraction(lane: Lane, x: Value) -> Value:
    return lane._float("-", x, _unary("floor")(lane, x))


def extended(lane: Lane, x: Value) -> Value:
    """Sign extended to 64 bits, for whatever is done with it."""
    return lane.convert(_made(lane.raw(x), "i", x.bits), "i", 64)


def extended_from(lane: Lane, x: Value, bits: Value) -> Value:
    """The lowest `bits` bits of x, sign extended; 0 where there are none."""
    b = lane.b
    count = lane.resized(lane.convert(bits, "u", 32).ir, x.bits)
    away = b.sub(_integer(lane, x, x.bits), count)
    none = b.icmp_unsigned("==", count, _integer(lane, x, 0))
    shift = b.select(none, _integer(lane, x, 0), away)
    made = b.ashr(b.shl(x.ir, shift), shift)
    return _made(b.select(none, _integer(lane, x, 0), made), "i", x.bits)


def is_even(lane: Lane, x: Value) -> Value:
    half = lane._float("*", x, lane.number(0.5, x.bits))
    whole = _unary("floor")(lane, half)
    return _made(lane.b.fcmp_ordered("==", half.ir, whole.ir), "u", 1)


def _conversion(kind: str, bits: int, source: str = "", width: int = 0) -> Callable[..., Value]:
    def function(lane: Lane, x: Value) -> Value:
        if source and (x.kind, x.bits) != (source, width):
            x = lane.viewed(x, source, width)
        return lane.convert(x, kind, bits)

    return function


def _zeros(name: str) -> Callable[..., Value]:
    """How many zeros stand before the first bit that is set, from below (cttz) or above (ctlz); -1 without
    one."""

    def function(lane: Lane, x: Value) -> Value:
        raw = lane.raw(x)
        made = lane.intrinsic(f"llvm.{name}.i{x.bits}", raw.type, raw, ir.Constant(ir.IntType(1), 0))
        none = lane.b.icmp_unsigned("==", raw, ir.Constant(raw.type, 0))
        position = lane.resized(made, 32)
        return _made(lane.b.select(none, ir.Constant(position.type, -1), position), "i", 32)

    return function


def _bits(name: str) -> Callable[..., Value]:
    def function(lane: Lane, x: Value) -> Value:
        return _made(lane.intrinsic(f"llvm.{name}.i{x.bits}", x.ir.type, lane.raw(x)), "u", x.bits)

    return function


def _saturating(name: str) -> Callable[..., Value]:
    def function(lane: Lane, x: Value, y: Value) -> Value:
        return _made(lane.intrinsic(f"llvm.{name}.sat.i{x.bits}", x.ir.type, x.ir, y.ir), x.kind, x.bits)

    return function


def _extreme(name: str) -> Callable[..., Value]:
    """The larger or smaller of two floats, the other where one is NaN; -0 counts as less than 0."""

    def function(lane: Lane, x: Value, y: Value) -> Value:
        b = lane.b
        x, y = lane._alike(x, y)
        wide = (lane.convert(x, "f", max(32, x.bits)), lane.convert(y, "f", max(32, y.bits)))
        better = b.fcmp_ordered(">" if name == "max" else "<", wide[0].ir, wide[1].ir)
        equal = b.fcmp_ordered("==", wide[0].ir, wide[1].ir)
        first = b.not_(sign(lane, x).ir) if name == "max" else sign(lane, x).ir
        mine = b.or_(b.or_(better, b.and_(equal, first)), is_nan(lane, y).ir)
        return _made(b.select(b.and_(mine, b.not_(is_nan(lane, x).ir)), x.ir, b.select(
            is_nan(lane, y).ir, x.ir, y.ir)), "f", x.bits)

    return function


def _address(lane: Lane, *rest: Value) -> Value:
    """Where an instruction reads or writes: its caller has added everything up."""
    return lane.held(lane.variables["ADDR"])


FUNCTIONS: dict[str, Callable[..., Value]] = {
    "isNAN": is_nan, "isQuietNAN": is_quiet_nan, "isSignalNAN": is_signal_nan,
    "cvtToQuietNAN": to_quiet_nan, "sign": sign, "exponent": exponent, "mantissa": mantissa,
    "abs": absolute, "fma": fused, "pow": power, "ldexp": scaled, "fract": fraction,
    "floor": _unary("floor"), "ceil": _unary("ceil"), "trunc": _unary("trunc"), "rint": _unary("rint"),
    "sqrt": _unary("sqrt", 64), "log2": _unary("log2", 64), "sin": _unary("sin", 64),
    "cos": _unary("cos", 64), "signext": extended, "signext_from_bit": extended_from, "isEven": is_even,
    **dict.fromkeys(("s_ff1_i32_b32", "s_ff1_i32_b64", "ctz"), _zeros("cttz")), "clz": _zeros("ctlz"),
    "reversed": _bits("bitreverse"), "ones": _bits("ctpop"),
    "add_sat_u": _saturating("uadd"), "add_sat_i": _saturating("sadd"),
    "sub_sat_u": _saturating("usub"), "sub_sat_i": _saturating("ssub"),
    "larger": _extreme("max"), "smaller": _extreme("min"),
    **{f"{a}_to_{b}": _conversion({"b": "bf"}.get(b[0], b[0]) if b[0] != "b" else "bf",
                                  int(b.lstrip("uifb")), a.rstrip("0123456789"), int(a.lstrip("uifb")))
       for a in ("f16", "f32", "f64", "bf16", "u32", "i32", "u16", "i16", "u8", "i8", "u4", "i4")
       for b in ("f16", "f32", "f64", "bf16", "u32", "i32", "u16", "i16", "u8", "i8") if a != b},
    **{f"Calc{name}Addr": _address
       for name in ("Ds", "Buffer", "Global", "Flat", "Scratch", "ScalarGlobal", "ScalarBuffer")},
}
