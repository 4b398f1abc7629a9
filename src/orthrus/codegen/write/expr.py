"""Elementwise expressions: what a loop computes per element, as a tree that can be a dictionary's key.

An expression's leaves are the elements of the loop's inputs (`Expr.leaf(i, dtype)`) and constants; its inner
nodes are named functions. Types are numpy's names. Half precision is stored and converted, never computed
with: a tree says so itself with `cast`.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from dataclasses import field
from typing import Any, ClassVar

import numpy as np

from ...records import dataclass
from . import arithmetic, trig, vmath
from .convert import LLVM, convert, has
from .emit import BYTES as BYTES_OF
from .emit import Function, V, vec

__all__ = ["BYTES", "LLVM", "OPS", "Expr", "emit"]

BYTES = {name: BYTES_OF[elem] for name, elem in LLVM.items()}
"""numpy's name of a type to bytes of storage."""

_WRITTEN = dict.fromkeys((
    "exp", "exp_nonpositive", "exp2", "expm1", "log", "log2", "log1p", "sigmoid", "tanh", "erf", "sinh",
    "cosh", "asinh", "acosh", "atanh", "pow", *trig.FUNCTIONS), 16)
"""Instructions of functions that are many."""


@dataclass(eq=False, slots=True)
class Expr:
    """`op` applied to `args`, of type `dtype`. `value`: a constant's number, or which input a leaf reads.
    Never changed. Equal are those that print the same, which 0.0 and -0.0 do not. What is asked often is
    found once: the hash, the numbers of operations and instructions, the leaves, each once, in order of
    appearance."""

    sizeless: ClassVar[bool] = True

    op: str
    args: tuple[Expr, ...]
    dtype: str
    value: Any = None
    hashed: int = field(init=False, repr=False)
    operations: int = field(init=False, repr=False)
    instructions: int = field(init=False, repr=False)
    """About how many the tree is written as."""
    _leaves: tuple[Expr, ...] | None = field(init=False, repr=False, default=None)

    def __post_init__(self) -> None:
        self.hashed = hash((self.op, self.args, self.dtype, self.value))
        here = self.op not in ("leaf", "const")
        self.operations = here + sum([a.operations for a in self.args])
        self.instructions = here * _WRITTEN.get(self.op, 1) + sum([a.instructions for a in self.args])

    def leaves(self) -> tuple[Expr, ...]:
        """Each leaf once, in order of first appearance."""
        if self._leaves is None:
            found: dict[Expr, None] = {}
            met, stack = set[int](), [self]
            while stack:
                it = stack.pop()
                if it._leaves is not None:
                    found.update(dict.fromkeys(it._leaves))
                elif it.op == "leaf":
                    found[it] = None
                elif id(it) not in met:
                    met.add(id(it))
                    stack.extend(reversed(it.args))
            self._leaves = tuple(found)
        return self._leaves

    def __hash__(self) -> int:
        return self.hashed

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return (isinstance(other, Expr) and self.hashed == other.hashed and self.op == other.op
                and self.dtype == other.dtype and self.args == other.args
                and (self.value is other.value or repr(self.value) == repr(other.value)))

    @staticmethod
    @functools.cache
    def leaf(index: int, dtype: str) -> Expr:
        return Expr("leaf", (), dtype, index)

    @staticmethod
    def const(value: Any, dtype: str) -> Expr:
        return Expr("const", (), dtype, value)

    def cast(self, dtype: str) -> Expr:
        return self if dtype == self.dtype else Expr("cast", (self,), dtype)

    def substitute(self, how: Callable[[Expr], Expr]) -> Expr:
        """The tree with every leaf replaced by `how(leaf)`, which is asked once for each."""
        before = self.leaves()
        after = tuple([how(leaf) for leaf in before])
        return self if all(map(operator.is_, before, after)) else _replaced(self, before, after)

    def size(self) -> int:
        """Operations in the tree."""
        return self.operations

    def __str__(self) -> str:
        if self.op == "leaf":
            return f"${self.value}"
        if self.op == "const":
            return f"{self.value}"
        return f"{self.op}:{self.dtype}({', '.join(map(str, self.args))})"


@functools.lru_cache(1 << 12)
def _replaced(tree: Expr, before: tuple[Expr, ...], after: tuple[Expr, ...]) -> Expr:
    """`tree` with the leaves `before` replaced by `after`."""
    known = dict(zip(before, after, strict=True))

    def walk(it: Expr) -> Expr:
        if it.op == "const":
            return it
        made = known.get(it)
        if made is None:
            args = tuple([walk(a) for a in it.args])
            same = all(map(operator.is_, args, it.args))
            made = known[it] = it if same else Expr(it.op, args, it.dtype, it.value)
        return made
    return walk(tree)


@functools.lru_cache(1 << 12)
def ordered(tree: Expr) -> Expr:
    """`tree` with the sides of every sum and product in one order, so that trees that differ in nothing else
    are one kernel: first what reads leaf 0, then the longer side; numbers come last."""
    args = tuple([ordered(a) for a in tree.args])
    if tree.op in ("add", "mul"):
        args = tuple(sorted(args, key=_side))
    same = all(map(operator.is_, args, tree.args))
    return tree if same else Expr(tree.op, args, tree.dtype, tree.value)


def _side(it: Expr) -> tuple[bool, bool, int]:
    return it.op == "const", all(leaf.value for leaf in it.leaves()), -it.operations


def emit(f: Function, expr: Expr, inputs: Sequence[V]) -> V:
    """Write `expr` over vectors: `inputs[i]` is what leaf i reads. All have the same number of lanes."""
    lanes = inputs[0].lanes if inputs else 1
    made: dict[Expr, V] = {}
    if has(f, "zvfh", "riscv64"):
        expr = in_halves(expr)

    def walk(it: Expr) -> V:
        if it not in made:
            if it.op == "leaf":
                made[it] = inputs[it.value]
            elif it.op == "const":
                made[it] = f.const(vec(LLVM[it.dtype], lanes), it.value)
            else:
                made[it] = OPS[it.op](f, it, *(walk(a) for a in it.args))
        return made[it]
    return walk(expr)


_AS_ROUNDED = ("add", "sub", "mul", "div", "sqrt", "reciprocal", "neg", "abs", "minimum", "maximum", "where",
               "lt", "le", "gt", "ge", "eq", "ne")
"""What gives the same in float16 as in float32 and then rounded: float32 has more than twice the digits."""


def in_halves(expr: Expr) -> Expr:
    """`expr` with operations in float16, where they are said in float32 between float16 operands and a result
    that is float16 again, or truth, and not a bit of it changes. Half precision is computed in float32
    elsewhere; this is for machines that have instructions for it."""
    known: dict[int, Expr] = {}

    def half(it: Expr) -> Expr | None:
        """A float32 expression as the float16 one it has been widened from."""
        if it.op == "cast" and it.args[0].dtype == "float16":
            return walk(it.args[0])
        if it.op != "const":
            return None
        with np.errstate(over="ignore"):
            same = it.value != it.value or float(np.float16(it.value)) == it.value
        return Expr("const", (), "float16", it.value) if same else None

    def narrowed(it: Expr, dtype: str) -> Expr | None:
        if it.op not in _AS_ROUNDED or not it.args or all(a.op == "const" for a in it.args):
            return None
        parts = [walk(a) if a.dtype == "bool" else half(a) if a.dtype == "float32" else None for a in it.args]
        given = tuple(a for a in parts if a is not None)
        return Expr(it.op, given, dtype, it.value) if len(given) == len(parts) else None

    def walk(it: Expr) -> Expr:
        if id(it) not in known:
            made = None
            if it.op == "cast" and it.dtype == "float16" and it.args[0].dtype == "float32":
                made = half(it.args[0]) or narrowed(it.args[0], "float16")
            elif it.dtype == "bool" and it.args and it.args[0].dtype == "float32":
                made = narrowed(it, "bool")
            if made is None:
                args = tuple([walk(a) for a in it.args])
                same = all(x is y for x, y in zip(args, it.args, strict=True))
                made = it if same else Expr(it.op, args, it.dtype, it.value)
            known[id(it)] = made
        return known[id(it)]
    return walk(expr)


def _cast(f: Function, it: Expr, x: V) -> V:
    return convert(f, x, it.args[0].dtype, it.dtype)


def _unsigned(it: Expr) -> bool:
    return it.args[0].dtype.startswith(("u", "bool"))


def _compare(how: str) -> Callable[..., V]:
    return lambda f, it, a, b: f.compare(how, a, b, _unsigned(it))


def _plain(write: Callable[..., V]) -> Callable[..., V]:
    return lambda f, it, *args: write(f, *args)


def _signed(write: Callable[..., V]) -> Callable[..., V]:
    return lambda f, it, *args: write(f, *args, unsigned=_unsigned(it))


def _unless_unsigned(write: Callable[[Function, V], V],
                     unsigned: Callable[[Function, V], V]) -> Callable[..., V]:
    return lambda f, it, x: (unsigned if _unsigned(it) else write)(f, x)


def _is_number(it: Expr) -> bool:
    return it.op == "const" and it.value == it.value


def _extreme(how: str) -> Callable[..., V]:
    """The lesser (`lt`) or the greater (`gt`); one instruction where one side is a number known now."""
    def write(f: Function, it: Expr, a: V, b: V) -> V:
        if not a.is_float:
            return f.select(f.compare(how, a, b, _unsigned(it)), a, b)
        if _is_number(it.args[0]) or _is_number(it.args[1]):
            number, other = (a, b) if _is_number(it.args[0]) else (b, a)
            return f.fast_min(number, other) if how == "lt" else f.fast_max(number, other)
        return f.minimum(a, b) if how == "lt" else f.maximum(a, b)
    return write


def _quantize(f: Function, it: Expr, x: V, low: V, high: V, zero: V) -> V:
    """x held between `low` (for NaN too) and `high`, rounded to nearest even, plus `zero`."""
    held = f.fast_max(f.fast_min(f.like(high, x), x), low)
    whole = f.intrinsic(f"lrint.v{x.lanes}i32.v{x.lanes}f32" if x.lanes > 1 else "lrint.i32.f32",
                        vec(LLVM["int32"], x.lanes), held)
    shift = it.args[3]
    total = whole if shift.op == "const" and not shift.value else whole + zero
    return f.cast(total, LLVM[it.dtype])


def _divided(it: Expr) -> Callable[..., V]:
    """LLVM makes a product of a division by a number it knows."""
    return arithmetic.quotient if it.args[1].op == "const" else arithmetic.by_floats


def _over(f: Function, it: Expr, x: V, by: V, inverse: V) -> V:
    """x / by, rounded once, where `inverse` is 1 / by and neither is beyond 2^±80 (Markstein's division)."""
    guess = x * inverse
    return f.fma(f.fma(-guess, by, x), inverse, guess)


OPS: dict[str, Callable[..., V]] = {
    "quantize": _quantize, "over": _over,
    "cast": _cast,
    "add": lambda f, it, a, b: a + b,
    "sub": lambda f, it, a, b: a - b,
    "mul": lambda f, it, a, b: a * b,
    "div": lambda f, it, a, b: a / b,
    "neg": lambda f, it, a: -a,
    "fma": lambda f, it, a, b, c: f.fma(a, b, c),
    "where": lambda f, it, c, a, b: f.select(c, a, b),
    "lt": _compare("lt"), "le": _compare("le"), "gt": _compare("gt"), "ge": _compare("ge"),
    "eq": _compare("eq"), "ne": _compare("ne"),
    "and": lambda f, it, a, b: a & b,
    "or": lambda f, it, a, b: a | b,
    "xor": lambda f, it, a, b: a ^ b,
    "not": lambda f, it, a: ~a,
    "minimum": _extreme("lt"), "maximum": _extreme("gt"),
    "abs": _unless_unsigned(vmath.abs, lambda f, x: x),
    "sign": _unless_unsigned(vmath.sign, lambda f, x: f.select(x.eq(0), x, 1)),
    "quotient": lambda f, it, a, b: _divided(it)(f, a, b, _unsigned(it)),
    "fmod": _signed(arithmetic.fmod), "remainder": _signed(arithmetic.remainder),
    "shift_left": _plain(arithmetic.shift_left), "shift_right": _signed(arithmetic.shift_right),
    "power": _plain(arithmetic.power), "next_up": _plain(arithmetic.next_up),
    **{name: _plain(getattr(module, name)) for module in (vmath, trig) for name in module.FUNCTIONS},
}
"""What each operation writes. Functions of `vmath` and `trig` go by their own names. Of integers, `quotient`
rounds to zero, and it, `fmod` and `remainder` do not trap; `cast` means what the operator Cast means."""
