"""Numbers that a model learned, as operands of kernels: in code each would ask for a kernel of its own.

In: a kernel's tree and its operands. Out: the tree that reads such numbers, and the operands they
became. A number that anybody might write down stays in the code, the same for all models that have it.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from ..codegen.write.expr import Expr
from .tensor import Tensor

if TYPE_CHECKING:
    from .lower import Lowering

_MOST = 2
"""Numbers that become operands, of one tree: each takes a register or is read again for every vector."""
_SHORT = 12
"""Bits behind which the fraction of a number that was written down by hand in binary has nothing."""
_NAMED = frozenset(np.float32(n).item() for n in (
    1 / 6, 1 / 3, 0.5 ** 0.5, 2 ** 0.5, (2 / np.pi) ** 0.5, 0.044715, 1.702, 1.0507009873554805,
    1.6732632423543772))
"""What definitions of activations have in them."""


def with_numbers(lo: Lowering, tree: Expr, shape: tuple[int, ...], operands: list[Tensor], first: int
                 ) -> Expr:
    """`tree`, whose leaves from `first` on are `operands`, to which the numbers are added, of `shape`."""
    read: dict[float, Expr] = {}
    for number in list(dict.fromkeys(_numbers(tree)))[:_MOST]:
        held = lo.table(np.full, 1, number, "float32")
        read[number] = Expr.leaf(first + len(operands), "float32")
        operands.append(held.view(shape, (0,) * len(shape)))
    return _reading(tree, read) if read else tree


def _numbers(it: Expr) -> Iterator[float]:
    """The learned numbers, in order of appearance."""
    if it.op == "const" and it.dtype == "float32" and _learned(it.value):
        yield it.value
    for each in it.args:
        yield from _numbers(each)


def _reading(it: Expr, read: dict[float, Expr]) -> Expr:
    if it.op == "const":
        return read.get(it.value, it) if it.dtype == "float32" else it
    args = tuple([_reading(each, read) for each in it.args])
    same = all(map(operator.is_, args, it.args))
    return it if same else Expr(it.op, args, it.dtype, it.value)


def _learned(number: float) -> bool:
    """Whether nobody would write the number down."""
    value = np.float32(number)
    if not np.isfinite(value) or value.item() in _NAMED or -value.item() in _NAMED:
        return False
    short = int(value.view(np.int32)) & (1 << 23 - _SHORT) - 1 == 0
    return not short and float(f"{value:.3g}") != float(str(value))
