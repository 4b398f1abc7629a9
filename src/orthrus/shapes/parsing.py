"""Texts of dimensions -> expressions.

In: what `Expr` prints, and what sympy prints of the same arithmetic. Out: the expression. The invariant: a
text is read, never evaluated; whatever is no arithmetic on names and numbers is a ValueError.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

from .expression import ceiling, floor, floor_div, greatest, least, number, quotient
from .polynomial import ratio


def parse(text: str, names: Callable[[str], Any]) -> Any:
    """The expression `text` spells, with `names` for its names. Raises ValueError for anything else."""
    try:
        return _read(ast.parse(text.strip(), mode="eval").body, names)
    except (SyntaxError, RecursionError, ZeroDivisionError, MemoryError) as error:
        raise ValueError(f"{text!r} is no arithmetic on dimensions") from error


def _read(node: ast.expr, names: Callable[[str], Any]) -> Any:
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return number(Fraction(str(node.value)))
    if isinstance(node, ast.Name):
        return names(node.id)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_read(node.operand, names)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.args:
        inner = node.args[0]
        if node.func.id == "floor" and isinstance(inner, ast.BinOp) and isinstance(inner.op, ast.Div):
            return floor_div(_read(inner.left, names), _read(inner.right, names))
        args = [_read(a, names) for a in node.args]
        match node.func.id:
            case "floor":
                return floor(args[0])
            case "ceiling":
                return ceiling(args[0])
            case "Min" | "min":
                return least(*args)
            case "Max" | "max":
                return greatest(*args)
            case "Mod" if len(args) == 2:
                return args[0] - args[1] * floor_div(args[0], args[1])
    if isinstance(node, ast.BinOp):
        a, b = _read(node.left, names), _read(node.right, names)
        match node.op:
            case ast.Add():
                return a + b
            case ast.Sub():
                return a - b
            case ast.Mult():
                return a * b
            case ast.FloorDiv():
                return floor_div(a, b)
            case ast.Mod():
                return a - b * floor_div(a, b)
            case ast.Div() if isinstance(b, int | Fraction) and b:
                return a * ratio(1, b)
            case ast.Div() if (exact := quotient(a, b)) is not None:
                return exact
            case ast.Pow() if isinstance(b, int) and 0 <= b < 8:
                return math.prod([a] * b)
    raise ValueError("no arithmetic on dimensions")
