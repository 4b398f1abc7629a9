"""Names for dimensions nobody named, while a graph is optimized, so that equal ones are known to be equal.

Every unknown dimension gets a name of its own; the same arithmetic on the same dimensions gets the same name.
So a Reshape to a shape computed from another tensor's shape is known to keep that tensor's dimensions.
`forget` takes the names away again: they mean nothing outside.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..ir import ElementType, Graph, Node, TensorType, Value
from ..ops import infer

PREFIX = "\N{MIDDLE DOT}"
_SAME_SHAPE = frozenset({
    "Softmax", "LogSoftmax", "Hardmax", "LayerNormalization", "RMSNormalization", "BatchNormalization",
    "InstanceNormalization", "GroupNormalization", "LpNormalization", "LRN", "Dropout", "Cast", "Identity",
    "Relu", "LeakyRelu", "Sigmoid", "Tanh", "Abs", "Neg", "Exp", "Log", "Sqrt", "Erf", "Elu", "Selu", "Celu",
    "Softplus", "Softsign", "HardSigmoid", "HardSwish", "Swish", "Gelu", "Mish", "Not", "Floor", "Ceil",
    "Round", "Sign", "Reciprocal", "ThresholdedRelu", "Sin", "Cos", "IsNaN", "IsInf", "Clip",
    "QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "CumSum", "Trilu", "CastLike",
    "RotaryEmbedding",
    "SkipLayerNormalization", "SkipSimplifiedLayerNormalization"})
_BROADCAST = frozenset({
    "Add", "Sub", "Mul", "Div", "Pow", "Max", "Min", "Sum", "Mean", "And", "Or", "Xor", "Equal", "Greater",
    "Less", "GreaterOrEqual", "LessOrEqual", "Where", "PRelu", "Mod", "BitShift"})
_FOLLOWED = frozenset({ElementType.BOOL, ElementType.INT64, ElementType.INT32})
_CONTENT_LIMIT = 64
_SIZE_LIMIT = 1 << 62

Dims = tuple[Any, ...]


class Dimensions:
    """The names given so far, over all graphs of one model."""

    def __init__(self, opsets: dict[str, int], graphs: Sequence[Graph]) -> None:
        self.opsets = opsets
        self.known = {d for graph in graphs for value in graph.inputs for d in value.shape or ()}
        self.names: dict[Any, str] = {}
        self.flags: dict[Value, Dims] = {}
        self.count = 0

    def name(self, *key: Any) -> str:
        """The name of a dimension that `key` determines."""
        if key not in self.names:
            self.count += 1
            self.names[key] = f"{PREFIX}{self.count}"
        return self.names[key]

    def invented(self, dim: Any) -> bool:
        """Whether no input has a dimension of this name: it is one of ours, or a tool's name for an unknown
        one."""
        return isinstance(dim, str) and dim not in self.known

    def forget(self, graphs: Sequence[Graph]) -> None:
        """Take invented names out of every type and content."""
        for graph in graphs:
            for value in graph.inputs:
                self._forget(value)
            for node in graph.nodes:
                for made in node.outputs:
                    if made is not None:
                        self._forget(made)

    def _forget(self, value: Value) -> None:
        self._forget_shape(value)
        if value.content is not None and any(map(self.invented, value.content)):
            left = tuple(None if self.invented(d) else d for d in value.content)
            value.content = left if any(d is not None for d in left) else None

    def _forget_shape(self, value: Value) -> None:
        kind = value.type
        if isinstance(kind, TensorType) and kind.shape is not None and any(map(self.invented, kind.shape)):
            value.type = TensorType(kind.elem, tuple(None if self.invented(d) else d for d in kind.shape))

    def _complete(self, value: Value) -> bool:
        if not isinstance(value.type, TensorType):
            return value.type is not None
        shape = value.shape
        return shape is not None and None not in shape and not any(map(self.invented, shape))

    def refine(self, graph: Graph) -> None:
        """Type what is not typed yet, in order, and name every dimension left unknown; call it again when
        more is known."""
        for value in graph.inputs:
            self._fill(value)
        for node in graph.nodes:
            if any(v is not None and not self._complete(v) for v in node.outputs):
                self._type(node)
            elif node.op_type in _CONTENTS and not node.domain and len(node.outputs) == 1:
                self._follow(node)

    def _type(self, node: Node) -> None:
        rule = _RULES.get(node.op_type) if node.domain in ("", "com.microsoft") else None
        shape = None
        for value in node.outputs:
            if value is not None:
                self._forget_shape(value)
        try:
            if rule is not None:
                shape = rule(self, node)
            elif not node.has_bodies:
                infer.annotate(node, self.opsets)
        except (
            TypeError,
            ValueError,
            IndexError,
            KeyError,
            AttributeError,
            ZeroDivisionError,
            infer.InferenceError,
        ):
            shape = None
        first = node.outputs[0] if node.outputs else None
        if shape is not None and first is not None and isinstance(first.type, TensorType):
            shapes = shape if isinstance(shape, list) else [shape]
            for value, dims in zip(node.outputs, shapes, strict=False):
                if value is not None and isinstance(value.type, TensorType) and value.elem is not None:
                    value.type = infer.merged(TensorType(value.elem, tuple(dims)), value.type)
        for value in node.outputs:
            if value is not None:
                self._fill(value)
        self._follow(node)

    def _fill(self, value: Value) -> None:
        shape = value.shape
        if isinstance(value.type, TensorType) and shape is not None and None in shape:
            dims = tuple(self.name(value, i) if d is None else d for i, d in enumerate(shape))
            value.type = TensorType(value.type.elem, dims)

    def _follow(self, node: Node) -> None:
        """What is known of a small integer tensor's elements."""
        value = node.outputs[0] if node.outputs else None
        if value is None or value.elem not in _FOLLOWED or node.domain:
            return
        if value.content is not None and None not in value.content \
                and not any(map(self.invented, value.content)):
            return
        found = infer.content(node, node.inputs)
        if (found is None or None in found) and (rule := _CONTENTS.get(node.op_type)) is not None:
            try:
                found = rule(self, node) or found
            except (TypeError, ValueError, IndexError, KeyError, AttributeError):
                return
        if found is None or len(found) > _CONTENT_LIMIT:
            return
        if value.elem == ElementType.BOOL:
            self.flags[value] = found
        elif value.elem in (ElementType.INT64, ElementType.INT32) and (
            value.content is None or None not in found
        ):
            value.content = found

    def elements(self, value: Value | None) -> Dims | None:
        if value is None:
            return None
        if value in self.flags:
            return self.flags[value]
        if (
            value.elem == ElementType.BOOL
            and isinstance(value.const, np.ndarray)
            and value.const.size <= _CONTENT_LIMIT
        ):
            return tuple(bool(v) for v in value.const.ravel())
        return infer.elements(value)

    def product(self, dims: Sequence[Any], over: Sequence[Any] = ()) -> Any:
        """The product of `dims` divided by that of `over`, which divides it."""
        names = [d for d in dims if isinstance(d, str)]
        number, divisor = 1, 1
        for d in dims:
            number *= d if isinstance(d, int) else 1
        for d in over:
            if isinstance(d, int):
                divisor *= d
            elif d in names:
                names.remove(d)
            else:
                return None
        if None in dims or not divisor or number % divisor or number > _SIZE_LIMIT:
            return None
        number //= divisor
        if not names:
            return number
        return names[0] if len(names) == 1 and number == 1 else self.name("product", number, *sorted(names))

    def sum(self, dims: Sequence[Any]) -> Any:
        if None in dims:
            return None
        names, number = [d for d in dims if isinstance(d, str)], sum(d for d in dims if isinstance(d, int))
        if not names:
            return number
        if len(names) == 1 and not number:
            return names[0]
        return self.name("sum", number, *sorted(names)) if number >= 0 else None

    def broadcast(self, *shapes: Dims) -> Dims:
        rank = max(map(len, shapes))
        return tuple(
            self._wider([s[len(s) - rank + i] for s in shapes if len(s) - rank + i >= 0]) for i in range(rank)
        )

    def _wider(self, dims: list[Any]) -> Any:
        kinds = set(dims) - {1}
        fixed = [d for d in kinds if isinstance(d, int)]
        if len(fixed) > 1 or None in kinds:
            return None
        if fixed or not kinds:
            return fixed[0] if fixed else 1
        return kinds.pop() if len(kinds) == 1 else self.name("wider", *sorted(kinds))


def _shape(value: Value | None) -> Dims:
    if value is None or value.shape is None:
        raise ValueError("the rank is not known")
    return tuple(value.shape)


def _first(names: Dimensions, node: Node) -> Dims:
    return _shape(node.inputs[0])


def _broadcast(names: Dimensions, node: Node) -> Dims:
    return names.broadcast(*(_shape(v) for v in node.inputs))


def _transpose(names: Dimensions, node: Node) -> Dims:
    shape, perm = _shape(node.inputs[0]), node.attrs.get("perm")
    return shape[::-1] if perm is None else tuple(shape[i] for i in perm)


def _matmul(names: Dimensions, node: Node) -> Dims:
    a, b = (_shape(v) for v in node.inputs[:2])
    if len(a) < 2 or len(b) < 2:
        raise ValueError("a vector")
    if node.attrs.get("transA"):
        a = (*a[:-2], a[-1], a[-2])
    if node.attrs.get("transB"):
        b = (*b[:-2], b[-1], b[-2])
    return (*(names.broadcast(a[:-2], b[:-2]) if len(a) + len(b) > 4 else ()), a[-2], b[-1])


def _gemm(names: Dimensions, node: Node) -> Dims:
    a, b = (_shape(v) for v in node.inputs[:2])
    return a[1 if node.attrs.get("transA") else 0], b[0 if node.attrs.get("transB") else 1]


def _reshape(names: Dimensions, node: Node) -> Dims | None:
    x, told = node.inputs[0].shape if node.inputs[0] is not None else None, names.elements(node.inputs[1])
    if told is None:
        return None
    out = list(told)
    for i, d in enumerate(out):
        if d == 0 and not node.attribute("allowzero"):
            out[i] = x[i] if x is not None else None
    if out.count(-1) == 1:
        rest = [d for d in out if d != -1]
        out[out.index(-1)] = names.product(x, rest) if x is not None and None not in (*rest, *x) else None
    return tuple(out)


def _expand(names: Dimensions, node: Node) -> Dims | None:
    told = names.elements(node.inputs[1])
    return None if told is None else names.broadcast(_shape(node.inputs[0]), told)


def _axes(node: Node) -> list[int] | None:
    value = node.inputs[1] if len(node.inputs) > 1 else None
    if value is not None and isinstance(value.const, np.ndarray):
        return [int(a) for a in value.const.ravel()]
    return None if value is not None else node.attrs.get("axes")


def _unsqueeze(names: Dimensions, node: Node) -> Dims:
    shape, axes = list(_shape(node.inputs[0])), _axes(node)
    if axes is None:
        raise ValueError("the axes are not known")
    rank = len(shape) + len(axes)
    places = sorted(a % rank for a in axes)
    for place in places:
        shape.insert(place, 1)
    return tuple(shape)


def _squeeze(names: Dimensions, node: Node) -> Dims:
    shape, axes = _shape(node.inputs[0]), _axes(node)
    if axes is None:
        raise ValueError("the axes are not known")
    gone = {a % len(shape) for a in axes}
    return tuple(d for i, d in enumerate(shape) if i not in gone)


def _flatten(names: Dimensions, node: Node) -> Dims:
    shape, axis = _shape(node.inputs[0]), node.attribute("axis")
    axis += len(shape) if axis < 0 else 0
    return names.product(shape[:axis]), names.product(shape[axis:])


def _gather(names: Dimensions, node: Node) -> Dims:
    x, i, axis = _shape(node.inputs[0]), _shape(node.inputs[1]), node.attribute("axis")
    axis %= len(x)
    return (*x[:axis], *i, *x[axis + 1:])


def _gather_elements(names: Dimensions, node: Node) -> Dims:
    return _shape(node.inputs[1])


def _concat(names: Dimensions, node: Node) -> Dims:
    shapes = [_shape(v) for v in node.inputs]
    axis = node.attrs["axis"] % len(shapes[0])
    out = []
    for i, dims in enumerate(zip(*shapes, strict=True)):
        fixed = [d for d in dims if isinstance(d, int)]
        out.append(names.sum(dims) if i == axis else fixed[0] if fixed else dims[0])
    return tuple(out)


def _split(names: Dimensions, node: Node) -> list[Dims]:
    shape, axis = _shape(node.inputs[0]), node.attribute("axis")
    axis %= len(shape)
    parts = names.elements(node.inputs[1]) if len(node.inputs) > 1 else None
    if parts is None:
        if len(node.inputs) > 1 or not isinstance(shape[axis], int) or shape[axis] % len(node.outputs):
            raise ValueError("the parts are not known")
        parts = (shape[axis] // len(node.outputs),) * len(node.outputs)
    return [(*shape[:axis], p, *shape[axis + 1:]) for p in parts]


def _slice(names: Dimensions, node: Node) -> Dims:
    shape = list(_shape(node.inputs[0]))
    starts, ends = names.elements(node.inputs[1]), names.elements(node.inputs[2])
    given = [names.elements(v) if v is not None else None for v in (*node.inputs[3:], None, None)]
    if starts is None or any(
        v is not None and g is None for v, g in zip(node.inputs[3:], given, strict=False)
    ):
        rank_only = [None] * len(shape)
        if given[0] is not None and node.inputs[3] is not None:
            rank_only = [None if i in {a % len(shape) for a in given[0]} else d for i, d in enumerate(shape)]
        return tuple(rank_only)
    axes = given[0] or tuple(range(len(starts)))
    steps = given[1] or (1,) * len(starts)
    ends = ends or (None,) * len(starts)
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        shape[axis] = _sliced(shape[axis], start, end, step)
    return tuple(shape)


def _sliced(dim: Any, start: Any, end: Any, step: Any) -> Any:
    if all(isinstance(v, int) for v in (dim, start, end, step)) and step:
        return len(range(*slice(start, end, step).indices(dim))) if step > 0 or end >= -dim - 1 else None
    if start == 0 and step == 1 and (end == dim or (isinstance(end, int) and end >= (1 << 31) - 1)):
        return dim
    return None


def _shape_of(names: Dimensions, node: Node) -> Dims:
    return (len(_shape(node.inputs[0])[slice(node.attrs.get("start"), node.attrs.get("end"))]),)


def _range(names: Dimensions, node: Node) -> Dims:
    start, end, step = (names.elements(v) for v in node.inputs)
    if start == (0,) and step == (1,) and end is not None and end[0] is not None:
        return (end[0] if isinstance(end[0], str) else max(end[0], 0),)
    raise ValueError("the length is not known")


def _constant_of_shape(names: Dimensions, node: Node) -> Dims | None:
    return names.elements(node.inputs[0])


def _attention(names: Dimensions, node: Node) -> list[Dims]:
    q, k, v = (_shape(x) for x in node.inputs[:3])
    past = node.inputs[4] if len(node.inputs) > 4 else None
    heads, shared = node.attrs.get("q_num_heads"), node.attrs.get("kv_num_heads")
    if len(q) == 3 and heads and shared:
        width = names.product([names.product([v[2]], [shared]), heads])
        y: Dims = (*q[:2], width)
        keys, values = ((x[0], shared, x[1], names.product([x[2]], [shared])) for x in (k, v))
    else:
        y, keys, values = (*q[:3], v[3]), k, v
    total = keys[2] if past is None else names.sum([_shape(past)[2], keys[2]])
    return [y, (*keys[:2], total, keys[3]), (*values[:2], total, values[3])]


_RULES: dict[str, Callable[[Dimensions, Node], Dims | list[Dims] | None]] = {
    **dict.fromkeys(_SAME_SHAPE, _first),
    **dict.fromkeys(_BROADCAST, _broadcast),
    "Transpose": _transpose,
    "MatMul": _matmul,
    "FusedMatMul": _matmul,
    "MatMulInteger": _matmul,
    "Gemm": _gemm,
    "Reshape": _reshape,
    "Expand": _expand,
    "Unsqueeze": _unsqueeze,
    "Squeeze": _squeeze,
    "Flatten": _flatten,
    "Gather": _gather,
    "GatherElements": _gather_elements,
    "Concat": _concat,
    "Split": _split,
    "Slice": _slice,
    "Shape": _shape_of,
    "Range": _range,
    "ConstantOfShape": _constant_of_shape,
    "Attention": _attention,
}


def _pairs(names: Dimensions, node: Node) -> list[tuple[Any, Any]] | None:
    a, b = (names.elements(v) for v in node.inputs[:2])
    if a is None or b is None or not a or not b:
        return None
    n = max(len(a), len(b))
    if len(a) not in (1, n) or len(b) not in (1, n):
        return None
    return list(zip(a * (n // len(a)), b * (n // len(b)), strict=True))


def _content_equal(names: Dimensions, node: Node) -> Dims | None:
    def equal(a: Any, b: Any) -> bool | None:
        if a is None or b is None:
            return None
        if a == b or (isinstance(a, int) and isinstance(b, int)):
            return bool(a == b)
        return False if (isinstance(a, int) and a < 0) or (isinstance(b, int) and b < 0) else None
    pairs = _pairs(names, node)
    return None if pairs is None else tuple(equal(a, b) for a, b in pairs)


def _content_where(names: Dimensions, node: Node) -> Dims | None:
    parts = [names.elements(v) for v in node.inputs]
    if any(p is None or not p for p in parts):
        return None
    n = max(map(len, parts))  # type: ignore[arg-type]
    if any(len(p) not in (1, n) for p in parts):  # type: ignore[arg-type]
        return None
    wide = [p * (n // len(p)) for p in parts]  # type: ignore[operator,arg-type]
    return tuple(
        (a if a == b else None) if c is None else a if c else b for c, a, b in zip(*wide, strict=True)
    )


def _content_filled(names: Dimensions, node: Node) -> Dims | None:
    told, value = names.elements(node.inputs[0]), node.attrs.get("value")
    if (
        told is None
        or len(told) > 1
        or not all(isinstance(d, int) and 0 <= d <= _CONTENT_LIMIT for d in told)
        or not isinstance(value, np.ndarray)
        or value.dtype.kind not in "iub"
    ):
        return None
    return (int(value.ravel()[0]),) * (told[0] if told else 1)


def _content_add(names: Dimensions, node: Node) -> Dims | None:
    pairs = _pairs(names, node)
    if pairs is None:
        return None
    return tuple(
        None
        if a is None or b is None or any(isinstance(d, int) and d < 0 for d in (a, b))
        else names.sum([a, b])
        for a, b in pairs
    )


def _content_mul(names: Dimensions, node: Node) -> Dims | None:
    pairs = _pairs(names, node)
    if pairs is None:
        return None
    return tuple(None if a is None or b is None or any(isinstance(d, int) and d <= 0 for d in (a, b))
                 else names.product([a, b]) for a, b in pairs)


_CONTENTS: dict[str, Callable[[Dimensions, Node], Dims | None]] = {
    "Equal": _content_equal,
    "Where": _content_where,
    "ConstantOfShape": _content_filled,
    "Add": _content_add,
    "Mul": _content_mul,
    **dict.fromkeys(
        (
            "Shape",
            "Gather",
            "Concat",
            "Slice",
            "Squeeze",
            "Unsqueeze",
            "Cast",
            "Reshape",
            "Sub",
            "Div",
            "Identity",
            "Size",
            "ReduceProd",
        ),
        lambda names, node: None,
    ),
}
