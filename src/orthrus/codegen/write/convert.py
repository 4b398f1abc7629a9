"""Conversions between element types of vectors, with the meaning of the operator Cast: floats to integers
saturate at 32 or 64 bits, NaN gives 0, narrower integers keep the low bits; floats round to nearest even.

Types are numpy's names. float16 and bfloat16 are converted with integer instructions where the machine has no
others, so that a kernel never calls out.
"""

from __future__ import annotations

from .emit import BF16, BYTES, F16, F32, F64, I1, I8, I16, I32, I64, Function, V, elem_of, vec

LLVM = {"float32": F32, "float64": F64, "float16": F16, "bfloat16": BF16, "bool": I1, "int8": I8, "uint8": I8,
        "int16": I16, "uint16": I16, "int32": I32, "uint32": I32, "int64": I64, "uint64": I64}
"""numpy's name of a type to LLVM's."""

_HALF = ("float16", "bfloat16")
_FLOATS = ("float32", "float64", *_HALF)


def has(f: Function, feature: str, arch: str = "x86_64") -> bool:
    """Whether the machine written for is of that kind and has the feature; not where none is known."""
    machine = getattr(f, "machine", None)
    return machine is not None and machine.arch == arch and machine.has(feature)


def converts(f: Function) -> bool:
    """Whether the machine has instructions between float16 and float32."""
    return has(f, "f16c") or has(f, "neon", "aarch64") or has(f, "zvfh", "riscv64")


def convert(f: Function, x: V, source: str, target: str) -> V:
    """`x`, whose elements are of type `source`, as elements of type `target`."""
    if source == target:
        return x
    if source in _HALF:
        return convert(f, widened(f, x), "float32", target)
    if target == "bool":
        return x.ne(0)
    if target in _HALF:
        if source == "float64" and target == "float16":
            return narrowed(f, _to_odd(f, x), F16)
        if target == "bfloat16" and source in ("int32", "uint32", "int64", "uint64"):
            x, source = convert(f, x, source, "float64"), "float64"
        return narrowed(f, convert(f, x, source, "float32"), LLVM[target])
    if source in _FLOATS and target not in _FLOATS:
        return to_integer(f, x, target)
    return f.cast(x, LLVM[target], source.startswith("u"))


def to_integer(f: Function, x: V, target: str) -> V:
    """float32 or float64 to an integer type, rounded to zero."""
    if target == "uint64":
        return f.select(x < 0, _saturated(f, x, I64, "si"), _saturated(f, x, I64, "ui"))
    wide = I64 if target in ("int64", "uint32") else I32
    return f.cast(_saturated(f, x, wide, "si"), LLVM[target])


def _saturated(f: Function, x: V, elem: str, sign: str) -> V:
    if x.lanes > 1 and has(f, "sse2"):
        return _held(f, x, elem, sign)
    source = {F32: "f32", F64: "f64"}[elem_of(x.ty)]
    lanes = f"v{x.lanes}" if x.lanes > 1 else ""
    return f.intrinsic(f"fpto{sign}.sat.{lanes}{elem}.{lanes}{source}", vec(elem, x.lanes), x)


def _held(f: Function, x: V, elem: str, sign: str) -> V:
    """The same, where the machine does not saturate: x held in range, and the greatest integer beyond."""
    bits = 8 * BYTES[elem] - (sign == "si")
    digits = 24 if x.elem == F32 else 53
    most = float(2 ** bits - 2 ** max(bits - digits, 0))
    least = -2.0 ** bits if sign == "si" else 0.0
    inside = f.fast_max(f.fast_min(x, most), least)
    whole = f.cast(f.select(x.eq(x), inside, f.zero(x.ty)), elem, unsigned=sign == "ui")
    greatest = f.const(whole.ty, 2 ** bits - 1 if sign == "si" else -1)
    return f.select(x > most, greatest, whole) if bits > digits else whole


def _to_odd(f: Function, x: V) -> V:
    """float64 to float32, where inexact to the neighbour with an odd last bit: so it may be rounded again."""
    y = f.cast(x, F32)
    back = f.cast(y, F64)
    bits = f.bitcast(y, vec(I32, x.lanes))
    beyond = f.unary("fabs", back) > f.unary("fabs", x)
    odd = f.select(beyond, bits - 1, bits) | 1
    inexact = (back < x) | (back > x)
    return f.bitcast(f.select(inexact, odd, bits), y.ty)


def widened(f: Function, x: V) -> V:
    """float16 or bfloat16 to float32."""
    bits, wide = vec(I16, x.lanes), vec(F32, x.lanes)
    if x.elem == BF16:
        return f.bitcast(f.cast(f.bitcast(x, bits), I32, unsigned=True) << 16, wide)
    if converts(f):
        return f.cast(x, F32)
    half = f.cast(f.bitcast(x, bits), I32, unsigned=True)
    scaled = f.bitcast((half & 0x7FFF) << 13, wide) * 2.0 ** 112
    special = f.select(scaled >= 65536.0, f.const(half.ty, 0x7F800000), 0)
    return f.bitcast(f.bitcast(scaled, half.ty) | special | ((half & 0x8000) << 16), wide)


def narrowed(f: Function, x: V, elem: str) -> V:
    """float32 to float16 or bfloat16."""
    if elem == F16 and converts(f):
        return f.cast(x, F16)
    bits = f.bitcast(x, vec(I32, x.lanes))
    if elem == BF16:
        rounded = (bits + ((bits.lshr(16) & 1) + 0x7FFF)).lshr(16)
        quiet = bits.lshr(16) | 0x40
        return f.bitcast(f.cast(f.select(x.ne(x), quiet, rounded), I16), vec(BF16, x.lanes))
    sign, size = bits.lshr(16) & 0x8000, bits & 0x7FFFFFFF
    normal = (size + ((size.lshr(13) & 1) - 0x37FFF001)).lshr(13)
    tiny = f.bitcast(f.bitcast(size, x.ty) + 0.5, bits.ty) - 0x3F000000
    special = f.select(size > 0x7F800000, f.const(bits.ty, 0x7E00), 0x7C00)
    finite = f.select(size < 0x38800000, tiny, normal)
    half = f.select(size >= 0x477FF000, special, finite) | sign
    return f.bitcast(f.cast(half, I16), vec(F16, x.lanes))
