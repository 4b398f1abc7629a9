"""The elements of small tensors that shapes are computed with, as expressions.

In: a node and the elements of its inputs: numpy arrays of numbers, Expr, bool, or None where an element is
not known. Out: the elements of its first output, or None. numpy moves the elements, `expression` computes
with them. The invariant: a known element is what any run would compute.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from ..ir import ElementType, Node, Value
from .expression import (
    Expr,
    TooLarge,
    at_most,
    bounds,
    ceiling,
    floor,
    floor_div,
    fractional,
    greatest,
    least,
    natural,
    number,
    quotient,
    whole,
)
from .polynomial import ratio

LIMIT = 1024
_INT64 = 1 << 63
_WHOLE = frozenset({ElementType.INT32, ElementType.INT64, ElementType.UINT8, ElementType.INT8,
                    ElementType.INT16, ElementType.UINT16, ElementType.UINT32, ElementType.UINT64})
_FRACTIONS = frozenset({ElementType.FLOAT, ElementType.DOUBLE, ElementType.FLOAT16})
_EXACT = frozenset({ElementType.FLOAT, ElementType.DOUBLE})
"""What is taken to hold any dimension."""

Elements: TypeAlias = "np.ndarray[Any, np.dtype[Any]]"


def of_constant(array: Any) -> Elements | None:
    """A constant's elements; None for strings and for what is too large or not finite."""
    if not isinstance(array, np.ndarray) or array.size > LIMIT or array.dtype.kind not in "iufb":
        return None
    out = np.empty(array.shape, object)
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        return None
    out.ravel()[:] = [number(v) if array.dtype.kind == "f" else v for v in array.ravel().tolist()]
    return out


def full(shape: Sequence[int], value: Any) -> Elements:
    out = np.empty(tuple(shape), object)
    out.fill(value)
    return out


def follow(node: Node, given: Sequence[Elements | None], shapes: Sequence[Any], output: int = 0
           ) -> Elements | None:
    """The elements of one of `node`'s outputs. `shapes`: its inputs' dimensions as expressions, None where a
    rank is not known."""
    rule = _RULES.get(node.op_type) if not node.domain else None
    if rule is None:
        return None
    try:
        out = rule(node, given, shapes)
        out = out[output] if isinstance(out, list) else out if output == 0 else None
    except (TypeError, ValueError, IndexError, KeyError, ZeroDivisionError, AttributeError, OverflowError,
            TooLarge):
        return None
    if out is None or out.size > LIMIT:
        return None
    return out if all(map(_held, out.flat)) else _array(np.frompyfunc(_kept, 1, 1)(out))


def _held(value: Any) -> bool:
    """Whether a tensor can hold an element, as far as that is known, and it is written in its one way."""
    if type(value) is int:
        return -_INT64 <= value < _INT64
    return not fractional(value) or value.denominator != 1


def _kept(value: Any) -> Any:
    value = number(value) if fractional(value) else value
    return value if _held(value) else None


def follows(node: Node) -> bool:
    """Whether there is a rule for the elements of `node`'s output."""
    return not node.domain and node.op_type in _RULES


def ints(values: Elements | None) -> list[int] | None:
    """The elements as ints where every one is a known whole number."""
    if values is None:
        return None
    found = values.ravel().tolist()
    return found if all(type(v) is int for v in found) else None


def _array(value: Any) -> Elements:
    """A result of numpy's on objects, which is a bare element where the rank is 0."""
    if isinstance(value, np.ndarray):
        return value
    out = np.empty((), object)
    out[()] = value
    return out


def _known(values: Elements | None) -> Elements:
    if values is None:
        raise ValueError("the elements are not known")
    return values


def _shape(node: Node, given: Any, shapes: Any) -> Elements | None:
    if shapes[0] is None:
        return None
    return np.array([*shapes[0][slice(node.attrs.get("start"), node.attrs.get("end"))], None], object)[:-1]


def _size(node: Node, given: Any, shapes: Any) -> Elements | None:
    return None if shapes[0] is None else _array(math.prod(shapes[0]))


def _same(node: Node, given: Any, shapes: Any) -> Elements | None:
    return _known(given[0])


def _cast(node: Node, given: Any, shapes: Any) -> Elements | None:
    to, x = ElementType(node.attrs["to"]), _known(given[0])

    def convert(v: Any) -> Any:
        if v is None:
            return None
        if to == ElementType.BOOL:
            return v if isinstance(v, bool) else _not(_equal(v, 0))
        if isinstance(v, bool):
            return int(v)
        if to in _FRACTIONS:
            return number(to.numpy.type(float(v))) if not isinstance(v, Expr) else v if to in _EXACT else None
        if to in _WHOLE and not whole(v):
            return floor(v) if natural(v) else None
        return v if to in _WHOLE else None

    return _each(convert)(node, [x], shapes)


def _gather(node: Node, given: Any, shapes: Any) -> Elements | None:
    data, where = _known(given[0]), ints(given[1])
    if where is None:
        return None
    index = np.array(where, np.int64).reshape(given[1].shape)
    return _array(np.take(data, index, axis=node.attribute("axis")))


def _concat(node: Node, given: Any, shapes: Any) -> Elements | None:
    parts = []
    for part, shape in zip(given, shapes, strict=True):
        if part is None:
            if shape is None or len(shape) != 1 or not isinstance(length := shape[0], int) or length > LIMIT:
                return None
            part = full((length,), None)
        parts.append(part)
    return np.concatenate(parts, axis=node.attrs["axis"])


def _slice(node: Node, given: Any, shapes: Any) -> Elements | None:
    data = _known(given[0])
    if node.version < 10:
        starts, ends = node.attrs["starts"], node.attrs["ends"]
        axes, steps = node.attrs.get("axes"), None
    else:
        starts, ends, axes, steps = (_numbers(node, given, i) for i in range(1, 5))
        if starts is None or ends is None:
            return None
    index = [slice(None)] * data.ndim
    for i, axis in enumerate(axes or range(len(starts))):
        step, begin, end, size = steps[i] if steps else 1, starts[i], ends[i], data.shape[axis]
        index[axis] = slice(max(begin, -size) if step < 0 else begin,
                            None if step < 0 and end < -size else end, step)
    return _array(data[tuple(index)])


def _numbers(node: Node, given: Any, i: int) -> list[int] | None:
    """The elements of an input as ints, None where it is absent. Raises ValueError where one is not known."""
    if i >= len(node.inputs) or node.inputs[i] is None:
        return None
    found = ints(given[i])
    if found is None:
        raise ValueError("the elements are not known")
    return found


def _axes(node: Node, given: Any) -> list[int] | None:
    told = _numbers(node, given, 1)
    return node.attrs.get("axes") if told is None else told


def _squeeze(node: Node, given: Any, shapes: Any) -> Elements | None:
    data, axes = _known(given[0]), _axes(node, given)
    return np.squeeze(data, None if axes is None else tuple(axes))


def _unsqueeze(node: Node, given: Any, shapes: Any) -> Elements | None:
    return np.expand_dims(_known(given[0]), tuple(_axes(node, given) or ()))


def _reshape(node: Node, given: Any, shapes: Any) -> Elements | None:
    data = _known(given[0])
    to = ints(given[1]) if len(given) > 1 else node.attrs["shape"]
    if to is None:
        return None
    return data.reshape([data.shape[i] if d == 0 and not node.attrs.get("allowzero") else d
                         for i, d in enumerate(to)])


def _transpose(node: Node, given: Any, shapes: Any) -> Elements | None:
    return _known(given[0]).transpose(node.attrs.get("perm"))


def _expand(node: Node, given: Any, shapes: Any) -> Elements | None:
    data, to = _known(given[0]), ints(given[1])
    if to is None:
        return None
    shape = np.broadcast_shapes(data.shape, tuple(to))
    return np.broadcast_to(data, shape).copy() if math.prod(shape) <= LIMIT else None


def _tile(node: Node, given: Any, shapes: Any) -> Elements | None:
    data, times = _known(given[0]), ints(given[1])
    if times is None or data.size * math.prod(times) > LIMIT:
        return None
    return np.tile(data, times)


def _constant_of_shape(node: Node, given: Any, shapes: Any) -> Elements | None:
    shape = ints(given[0])
    if shape is None or math.prod(shape) > LIMIT:
        return None
    value = of_constant(np.asarray(node.attrs.get("value", np.zeros(1, np.float32))).reshape(-1)[:1])
    return None if value is None else full(shape, value[0])


def _range(node: Node, given: Any, shapes: Any) -> Elements | None:
    start, limit, step = (_known(g).item() for g in given[:3])
    span = limit - start
    if not isinstance(span, int) or not isinstance(step, int) or not step or abs(span) > LIMIT * abs(step):
        return None
    return np.array([start + step * i for i in range(max(0, -(-span // step)))] + [None], object)[:-1]


def _split(node: Node, given: Any, shapes: Any) -> list[Elements]:
    data, axis = _known(given[0]), node.attribute("axis")
    told, length, count = _numbers(node, given, 1), data.shape[axis], len(node.outputs)
    parts = node.attrs.get("split") or [-(-length // count)] * count if told is None else told
    return np.split(data, np.cumsum(parts)[:-1], axis)


def _each(function: Callable[..., Any]) -> Callable[..., Elements | None]:
    """A rule that computes element by element, broadcasting; an element of an unknown one is unknown."""
    def guarded(*values: Any) -> Any:
        try:
            return None if any(v is None for v in values) else function(*values)
        except (TooLarge, ZeroDivisionError):
            return None

    def rule(node: Node, given: Any, shapes: Any) -> Elements | None:
        arrays = [_known(g) for g in given]
        out = arrays[0]
        if len(arrays) == 1 or function not in _FOLDED:
            return _array(np.frompyfunc(guarded, len(arrays), 1)(*arrays))
        for other in arrays[1:]:
            out = _array(np.frompyfunc(guarded, 2, 1)(out, other))
        return out
    return rule


def _add(a: Any, b: Any) -> Any:
    return a + b


def _sub(a: Any, b: Any) -> Any:
    return a - b


def _mul(a: Any, b: Any) -> Any:
    return a * b


def _div(node: Node, given: Any, shapes: Any) -> Elements | None:
    out = node.output.elem

    def divide(a: Any, b: Any) -> Any:
        if out in _WHOLE:
            return floor_div(a, b) if natural(a) and natural(b) else _truncated(a, b)
        return quotient(a, b) if isinstance(b, Expr) else a * ratio(1, b)

    return _each(divide)(node, given, shapes)


def _truncated(a: Any, b: Any) -> Any:
    if isinstance(a, Expr) or isinstance(b, Expr):
        return quotient(a, b)
    q = abs(a) // abs(b)
    return q if (a < 0) == (b < 0) else -q


def _mod(node: Node, given: Any, shapes: Any) -> Elements | None:
    def rest(a: Any, b: Any) -> Any:
        if node.attrs.get("fmod") and not (natural(a) and natural(b)):
            return None
        return a - b * floor_div(a, b)
    return _each(rest)(node, given, shapes)


def _pow(a: Any, b: Any) -> Any:
    return math.prod([a] * b) if isinstance(b, int) and 0 <= b < 8 else None


def _abs(a: Any) -> Any:
    return a if natural(a) else -a if natural(-a) else None


def _equal(a: Any, b: Any) -> Any:
    if isinstance(a, bool) or isinstance(b, bool):
        return a == b
    if a == b:
        return True
    return False if not isinstance(a - b, Expr) or _less(a, b) or _less(b, a) else None


def _less(a: Any, b: Any) -> Any:
    if at_most(b, a):
        return False
    gap = b - a
    return True if not isinstance(gap, Expr) or bounds(gap)[0] > 0 or at_most(a + 1, b) else None


def _not(a: Any) -> Any:
    return None if a is None else not a


def _where(node: Node, given: Any, shapes: Any) -> Elements | None:
    def choose(c: Any, a: Any, b: Any) -> Any:
        if c is None:
            return a if a is not None and a == b else None
        return a if c else b
    return _array(np.frompyfunc(choose, 3, 1)(*(_known(g) for g in given)))


def _reduce(function: Callable[[list[Any]], Any]) -> Callable[..., Elements | None]:
    def rule(node: Node, given: Any, shapes: Any) -> Elements | None:
        data = _known(given[0])
        axes = _axes(node, given)
        if not axes and node.attrs.get("noop_with_empty_axes"):
            return data
        gone = sorted({a % data.ndim for a in axes}) if axes else list(range(data.ndim))
        kept = [i for i in range(data.ndim) if i not in gone]
        lines = data.transpose([*kept, *gone]).reshape([data.shape[i] for i in kept] + [-1])
        out = np.empty(lines.shape[:-1], object)
        for place in np.ndindex(*out.shape):
            line = list(lines[place])
            out[place] = None if None in line else function(line)
        return out.reshape([1 if i in gone else n for i, n in enumerate(data.shape)]
                           if node.attribute("keepdims") else out.shape)
    return rule


_FOLDED = {_add, _mul, least, greatest}
_RULES: dict[str, Callable[..., Elements | list[Elements] | None]] = {
    "Shape": _shape, "Size": _size, "Identity": _same, "Cast": _cast, "Gather": _gather, "Concat": _concat,
    "Slice": _slice, "Squeeze": _squeeze, "Unsqueeze": _unsqueeze, "Reshape": _reshape,
    "Transpose": _transpose, "Expand": _expand, "Tile": _tile, "ConstantOfShape": _constant_of_shape,
    "Range": _range, "Split": _split, "Where": _where, "Div": _div, "Mod": _mod, "Add": _each(_add),
    "Sub": _each(_sub), "Mul": _each(_mul), "Min": _each(least), "Max": _each(greatest), "Sum": _each(_add),
    "Pow": _each(_pow), "Neg": _each(lambda a: -a), "Abs": _each(_abs), "Floor": _each(floor),
    "Ceil": _each(ceiling), "Equal": _each(_equal), "Less": _each(_less),
    "Greater": _each(lambda a, b: _less(b, a)),
    "LessOrEqual": _each(lambda a, b: _not(_less(b, a))),
    "GreaterOrEqual": _each(lambda a, b: _not(_less(a, b))),
    "Not": _each(_not), "And": _each(lambda a, b: a and b), "Or": _each(lambda a, b: a or b),
    "ReduceProd": _reduce(math.prod),
    "ReduceSum": _reduce(sum), "ReduceMax": _reduce(lambda v: greatest(*v)),
    "ReduceMin": _reduce(lambda v: least(*v)),
}


def followed(value: Value) -> bool:
    """Whether a value's elements can decide shapes: numbers or flags, and few of them."""
    shape, elem = value.shape, value.elem
    if elem not in _WHOLE and elem not in _FRACTIONS and elem != ElementType.BOOL:
        return False
    return shape is not None and all(isinstance(d, int) for d in shape) and math.prod(shape) <= LIMIT
