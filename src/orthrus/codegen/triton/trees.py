"""Expressions as Triton text: what a tree means on a CPU, it means on a GPU.

In: an `Expr`, and the variables that its leaves are. Out: assignments, and the variable of the result.
Quotients and roots are rounded as IEEE 754 says, functions are the vendors' accurate ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from ..write.expr import BYTES, Expr

TYPES = {name: f"tl.{name}" for name in BYTES} | {"bool": "tl.int1"}
"""numpy's name of a type to Triton's."""

Let = Callable[[str, str], str]
"""A value and a stem to the new variable that has it."""

_HALF = ("float16", "bfloat16")


def written(tree: Expr, values: Sequence[str], let: Callable[..., str]) -> str:
    """The variable that has the value of `tree`, whose leaf i is `values[i]`."""
    made: dict[Expr, str] = {}

    def walk(it: Expr) -> str:
        if it not in made:
            if it.op == "leaf":
                made[it] = values[it.value]
            elif it.op == "const":
                made[it] = let(constant(it.value, it.dtype))
            else:
                made[it] = let(_OPS[it.op](it, *[walk(a) for a in it.args]))
        return made[it]
    return walk(tree)


def constant(value: object, dtype: str) -> str:
    """A number of a type."""
    return f"tl.full((), {number(value)}, {TYPES[dtype]})"


def number(value: object) -> str:
    """A number as text that has all of its digits."""
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value}")'
    return repr(value)


def _signed(it: Expr) -> bool:
    return it.dtype.startswith("int")


def _real(it: Expr) -> bool:
    return "float" in it.dtype


def _is_unsigned(it: Expr) -> bool:
    return it.dtype.startswith("u") or it.dtype == "bool"


# conversions

_LEAST = {"int32": -2 ** 31, "int64": -2 ** 63}


def _cast(it: Expr, x: str) -> str:
    return cast(x, it.args[0].dtype, it.dtype)


def cast(x: str, source: str, target: str) -> str:
    """`x` of one type as another, with the meaning of the operator Cast: floats to integers saturate at 32 or
    64 bits, NaN gives 0, narrower integers keep the low bits."""
    if source == target:
        return x
    if source in _HALF and target != "float32":
        return cast(f"{x}.to(tl.float32)", "float32", target)
    if target == "bool":
        return f"({x} != 0)"
    if "float" in source and "float" not in target:
        if target == "uint64":
            below = _saturated(x, source, "int64")
            most = _bound(2.0 ** 64, source)
            above = (f"tl.where({x} >= {most}, tl.full((), {2 ** 64 - 1}, tl.uint64), "
                     f"tl.where({x} >= 0, tl.where({x} < {most}, {x}, 0), 0).to(tl.uint64))")
            return f"tl.where({x} < 0, ({below}).to(tl.uint64), {above})"
        wide = "int64" if target in ("int64", "uint32") else "int32"
        made = _saturated(x, source, wide)
        return made if wide == target else f"({made}).to({TYPES[target]})"
    if target == "bfloat16" and source == "float64":
        return f"{x}.to(tl.float32).to(tl.bfloat16)"
    if target == "bfloat16" and source in ("int32", "uint32", "int64", "uint64"):
        return f"{x}.to(tl.float64).to(tl.float32).to(tl.bfloat16)"
    return f"{x}.to({TYPES[target]})"


def _bound(value: float, dtype: str) -> str:
    return f"tl.full((), {value!r}, {TYPES[dtype]})"


def _saturated(x: str, source: str, target: str) -> str:
    least = _LEAST[target]
    low, high = _bound(float(least), source), _bound(-float(least), source)
    inside = f"tl.where(({x} > {low}) & ({x} < {high}), {x}, 0).to({TYPES[target]})"
    return (f"tl.where({x} >= {high}, tl.full((), {-least - 1}, {TYPES[target]}), "
            f"tl.where({x} <= {low}, tl.full((), {least}, {TYPES[target]}), {inside}))")


# operations

def _div(it: Expr, a: str, b: str) -> str:
    return f"tl.div_rn({a}, {b})" if it.dtype == "float32" else f"{a} / {b}"


def _root(it: Expr, x: str) -> str:
    return f"tl.sqrt_rn({x})" if it.dtype == "float32" else f"tl.sqrt({x})"


def _neg(it: Expr, x: str) -> str:
    if _real(it):
        return f"{x} * -1.0"
    return f"({x} ^ -1) + 1" if _signed(it) else f"(0 - {x}).to({TYPES[it.dtype]})"


def _extreme(how: str) -> Callable[..., str]:
    def write(it: Expr, a: str, b: str) -> str:
        unordered = f" | ({a} != {a})" if _real(it) else ""
        return f"tl.where(({a} {how} {b}){unordered}, {a}, {b})"
    return write


def _sign(it: Expr, x: str) -> str:
    if _is_unsigned(it):
        return f"tl.where({x} == 0, {x}, 1)"
    one, less = ("1.0", "-1.0") if _real(it) else ("1", "-1")
    return f"tl.where({x} > 0, {one}, tl.where({x} < 0, {less}, {x} + 0)).to({TYPES[it.dtype]})"


def _abs(it: Expr, x: str) -> str:
    return x if _is_unsigned(it) else f"tl.abs({x})"


def _typed(it: Expr, value: int) -> str:
    return f"tl.full((), {value}, {TYPES[it.dtype]})"


def _quotient(it: Expr, a: str, b: str) -> str:
    safe = f"tl.where({b} == 0, {_typed(it, 1)}, {b})"
    if _is_unsigned(it):
        return f"({a} // {safe}).to({TYPES[it.dtype]})"
    turned = f"(({a} ^ -1) + 1)"
    divisor = f"tl.where(({b} == 0) | ({b} == -1), {_typed(it, 1)}, {b})"
    return f"tl.where({b} == -1, {turned}, {a} // {divisor}).to({TYPES[it.dtype]})"


def _fmod(it: Expr, a: str, b: str) -> str:
    return f"libdevice.fmod({a}, {b})" if _real(it) else f"({a} - ({_quotient(it, a, b)}) * {b})"


def _remainder(it: Expr, a: str, b: str) -> str:
    rest = _fmod(it, a, b)
    if _is_unsigned(it):
        return rest
    if not _real(it):
        return f"tl.where((({rest}) != 0) & ((({rest}) < 0) ^ ({b} < 0)), ({rest}) + {b}, {rest})"
    return (f"tl.where(({rest}) == 0, libdevice.copysign({rest}, {b}), "
            f"tl.where((({rest}) < 0) ^ ({b} < 0), ({rest}) + {b}, {rest}))")


def _shift(how: str) -> Callable[..., str]:
    def write(it: Expr, x: str, by: str) -> str:
        width = 8 * BYTES[it.dtype]
        inside = f"({by} < {width})" if _is_unsigned(it.args[1]) else f"(({by} >= 0) & ({by} < {width}))"
        if how == ">>" and _signed(it):
            return f"({x} >> tl.where({inside}, {by}, {width - 1})).to({TYPES[it.dtype]})"
        return f"tl.where({inside}, {x} {how} tl.where({inside}, {by}, 0), 0).to({TYPES[it.dtype]})"
    return write


def _quantize(it: Expr, x: str, low: str, high: str, zero: str) -> str:
    held = f"tl.where({x} > {low}, tl.where({x} < {high}, {x}, {high}), {low})"
    return f"(libdevice.rint({held}).to(tl.int32) + {zero}).to({TYPES[it.dtype]})"


def _power(it: Expr, x: str, y: str) -> str:
    return f"_power({x}, {y}, {8 * BYTES[it.args[1].dtype]}).to({TYPES[it.dtype]})"


def _next_up(it: Expr, x: str) -> str:
    """The least float32 above a finite one; both zeros are one number."""
    raw = f"{x}.to(tl.int32, bitcast=True)"
    above = f"tl.where({raw} >= 0, {raw} + 1, tl.where({x} == 0, 1, {raw} - 1))"
    return f"({above}).to(tl.float32, bitcast=True)"


def _pow(it: Expr, x: str, y: str) -> str:
    if it.args[1].dtype == "float32":
        return f"libdevice.pow({x}, {y})"
    return f"libdevice.pow({x}.to(tl.float64), {y}).to(tl.float32)"


def _infix(how: str) -> Callable[..., str]:
    return lambda it, a, b: f"{a} {how} {b}"


def _named(name: str) -> Callable[..., str]:
    return lambda it, *args: f"libdevice.{name}({', '.join(args)})"


_OPS: dict[str, Callable[..., str]] = {
    "cast": _cast, "quantize": _quantize, "over": lambda it, x, by, _: _div(it, x, by),
    "add": _infix("+"), "sub": _infix("-"), "mul": _infix("*"), "div": _div, "neg": _neg,
    "fma": lambda it, a, b, c: f"tl.fma({a}, {b}, {c})",
    "where": lambda it, c, a, b: f"tl.where({c}, {a}, {b})",
    "lt": _infix("<"), "le": _infix("<="), "gt": _infix(">"), "ge": _infix(">="), "eq": _infix("=="),
    "ne": _infix("!="), "and": _infix("&"), "or": _infix("|"), "xor": _infix("^"),
    "not": lambda it, x: f"{x} == 0" if it.dtype == "bool" else f"~{x}",
    "minimum": _extreme("<"), "maximum": _extreme(">"), "abs": _abs, "sign": _sign,
    "quotient": _quotient, "fmod": _fmod, "remainder": _remainder,
    "shift_left": _shift("<<"), "shift_right": _shift(">>"), "power": _power, "pow": _pow,
    "next_up": _next_up,
    "sqrt": _root, "rsqrt": lambda it, x: _div(it, _typed(it, 1), _root(it, x)),
    "reciprocal": lambda it, x: _div(it, _typed(it, 1), x),
    "sigmoid": lambda it, x: _div(it, _typed(it, 1), f"(1 + libdevice.exp({x} * -1.0))"),
    "exp_nonpositive": _named("exp"),
    "isnan": lambda it, x: f"{x} != {x}",
    "isinf": lambda it, x: f'tl.abs({x}) == float("inf")',
    "isfinite": lambda it, x: f'tl.abs({x}) < float("inf")',
    **{name: _named(name) for name in (
        "floor", "ceil", "trunc", "rint", "round", "exp", "exp2", "expm1", "log", "log2", "log1p", "tanh",
        "erf", "sinh", "cosh", "asinh", "acosh", "atanh", "copysign", "sin", "cos", "tan", "asin",
        "acos", "atan")},
}
"""What each operation of `codegen.write.expr.OPS` is in Triton."""

SUPPORT = """
@triton.jit
def _power(x, y, bits: tl.constexpr):
    result = x * 0 + 1
    base = x
    left = y
    for _ in range(bits):
        result = tl.where((left & 1) != 0, result * base, result)
        base = base * base
        left = left >> 1
    return result


@triton.jit
def _sum(a, b):
    return a + b


@triton.jit
def _product(a, b):
    return a * b


@triton.jit
def _largest(a, b):
    return tl.where((a > b) | (a != a), a, b)


@triton.jit
def _least(a, b):
    return tl.where((a < b) | (a != a), a, b)


@triton.jit
def _first_best(a, i, b, j):
    other = (b > a) | ((b == a) & (j < i))
    return tl.where(other, b, a), tl.where(other, j, i)


@triton.jit
def _later_best(a, i, b, j):
    other = (b > a) | ((b == a) & (j > i))
    return tl.where(other, b, a), tl.where(other, j, i)
"""
"""Functions that the text of a kernel may call."""
