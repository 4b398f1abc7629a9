"""What enters code made for certain types, and what leaves code that somebody else wrote.

In: values from wherever a run has them: feeds, definitions, bodies of control flow, other providers, Python
operators. Out: numpy's own arrays in this machine's byte order, of exactly the declared element types. What
is of another type is an error that names the node which gave it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..errors import InvalidArgument
from ..ir import ElementType, Node, SequenceType, TensorType, Value, shape_text, type_of
from ..limits import reserve
from .device import DeviceArray
from .failure import failed

_READABLE = 0x101
"""numpy's flags of an array that is C-contiguous and aligned."""


class Gate:
    """`gate(given)`: what was given for `values`, each tensor whose element type is known as an array of
    that type. `dtypes`: the types in place of the declared ones; `ranked`: whether the ranks have to be the
    declared ones too, as code that looks at each array's shape before it runs does not need. Raises
    InvalidArgument."""

    def __init__(self, values: Sequence[Value], dtypes: Sequence[np.dtype[Any]] | None = None,
                 ranked: bool = False) -> None:
        self.values = list(values)
        known = [v.elem if isinstance(v.type, TensorType) else None for v in values]
        self.dtypes = [e and e.numpy for e in known] if dtypes is None else list(dtypes)
        self.ranks = [len(v.shape) if ranked and v.shape is not None else None for v in values]
        self.ranked = any(rank is not None for rank in self.ranks)

    def __call__(self, given: Sequence[Any]) -> Sequence[Any]:
        try:
            if [a.dtype for a in given] == self.dtypes and not self.ranked:
                return given
        except AttributeError:
            pass
        return [self._one(*row) for row in zip(self.values, self.dtypes, self.ranks, given, strict=False)]

    def _one(self, value: Value, dtype: np.dtype[Any] | None, rank: int | None, given: Any) -> Any:
        if dtype is None:
            return given
        array = plain(given)
        if not isinstance(array, np.ndarray) or array.dtype != dtype or rank not in (None, array.ndim):
            expected = shape_text(value.type) if value.elem is not None else str(dtype)
            raise _refusal(value, value.node, given, expected)
        return array


def readable(arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """`arrays`, as code reads them: in C order, each element where its type may lie; copies where they are
    not. Raises Fail where these are over the limits."""
    others = [a for a in arrays if a.flags.num & _READABLE != _READABLE]
    if not others:
        return list(arrays)
    reserve(sum(a.nbytes for a in others), "copies in C order")
    return [np.array(a, order="C") if any(a is other for other in others) else a for a in arrays]


def plain(value: Any) -> Any:
    """An array or a number as numpy's own kind of array in this machine's byte order, text as objects;
    anything else, masked arrays too, as it is."""
    if isinstance(value, np.ma.MaskedArray) or not isinstance(value, np.ndarray | np.generic | int | float):
        return value
    array = np.asarray(value)
    if array.dtype.kind in "SU":
        return (np.char.decode(array, "utf-8") if array.dtype.kind == "S" else array).astype(object)
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def vetted(run: Callable[..., Any], node: Node) -> Callable[..., Any]:
    """`run`, which computes `node` in somebody else's code, with results of the declared types. It raises
    InvalidArgument for others, and for too few of them."""
    outputs = node.outputs
    kinds = [v.type if v is not None else None for v in outputs]
    dtypes = [kind.elem.numpy if isinstance(kind, TensorType) and kind.elem not in (None, ElementType.STRING)
              else None for kind in kinds]

    def checked(*given: Any, **more: Any) -> Any:
        made = run(*given, **more)
        several = isinstance(made, tuple) or (isinstance(made, list) and len(outputs) > 1)
        results = tuple(made) if several else (made,)
        if [type(x) is np.ndarray and x.dtype for x in results] == dtypes:
            return results if several else made
        if len(results) < len(outputs):
            error = InvalidArgument("it gave too few outputs", found=len(results), expected=len(outputs))
            raise failed(node, error, given, node.name)
        checked = tuple(_declared(value, node, result)
                        for value, result in zip(outputs, results, strict=False))
        return checked if several else checked[0]
    return checked


def _declared(value: Value | None, node: Node, result: Any) -> Any:
    """A result of `node` as a value of its declared type."""
    made = plain(result)
    kind = value.type if value is not None else None
    if isinstance(kind, TensorType):
        fits = isinstance(made, np.ndarray | DeviceArray) and not isinstance(made, np.ma.MaskedArray) and (
            kind.elem is None or made.dtype == kind.elem.numpy) and (
            kind.elem is not ElementType.STRING or isinstance(made, DeviceArray)
            or all(isinstance(item, str) for item in made.flat))
    else:
        fits = not isinstance(kind, SequenceType) or isinstance(made, list)
    if not fits:
        assert value is not None
        raise _refusal(value, node, result, shape_text(kind))
    return made


def _refusal(value: Value, node: Node | None, given: Any, expected: str) -> Exception:
    """`given` for `value`, which `node` makes, or nobody in its graph."""
    error = InvalidArgument(
        f"it gave {value.name} another type than the model declares" if node is not None else
        f"{value.name}, an input of its graph, was given another type than it declares",
        node=node, found=_described(given), expected=expected,
        cure="give the declared type, or declare what is given")
    return failed(node, error, [], node.name) if node is not None else error


def _described(value: Any) -> str:
    if isinstance(value, np.ndarray):
        kind = "" if type(value) is np.ndarray else f"{type(value).__name__} of "
        return f"{kind}{value.dtype}{list(value.shape)}"
    try:
        return shape_text(type_of(value)) if value is not None else "None"
    except TypeError:
        return type(value).__name__
