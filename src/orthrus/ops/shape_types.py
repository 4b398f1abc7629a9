"""Types by the rules of shapes.

In: a node and its inputs. Out: the types of its outputs; a dimension is a number, the name of an input's or
unknown. The invariant: they are what ONNX's schema inference says, or more, for less time; what is unusual is
left to it: it answers then, or says what is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from ..ir import OWN, ElementType, Node, TensorType, Type, Value, element_of
from ..shapes import elements
from ..shapes.axes import places
from ..shapes.by_operator import rule_of
from ..shapes.elements import Elements
from ..shapes.expression import Dim, Expr, named
from ..shapes.facts import Facts, Shapes, is_one
from .contents import known, small
from .schema import Schema

Values = Sequence[Value | None]
_INDEX = (ElementType.INT64, ElementType.INT32)
_UNREAD = frozenset({"Cast", "Concat", "Conv", "Gather", "Gemm", "Identity", "MatMul", "Transpose"})
"""Frequent operators that have no sizes or axes among their inputs."""
_SEEN_AT_LEAST = frozenset({"GRU", "Gemm", "LSTM", "NonZero", "RNN"})
"""Operators of which ONNX says or asks more where nothing is known of the first input."""
_RECURRENT = frozenset({"GRU", "LSTM", "RNN"})
"""Operators whose first input has three dimensions, which are all that has to be known of it."""
_UNKNOWN = "\0"
"""What names begin with that stand for dimensions without one."""


class _Names:
    """What the rules ask: a dimension is told by its name, or not at all."""

    int_max = (1 << 31) - 1
    long_enough = False
    is_one = staticmethod(is_one)

    def __init__(self, inputs: Values) -> None:
        self.inputs = inputs

    def wider(self, dims: Sequence[Dim]) -> Dim | None:
        return self.same([d for d in dims if d != 1] or [1])

    def same(self, dims: Sequence[Dim]) -> Dim | None:
        kinds = set(dims)
        fixed = [d for d in kinds if isinstance(d, int)]
        if len(fixed) > 1:
            raise ValueError(f"Incompatible dimensions: {' and '.join(map(str, fixed))}")
        return fixed[0] if fixed else kinds.pop() if len(kinds) == 1 else None

    def unknown(self, node: Node, index: int) -> Elements | None:
        value = self.inputs[index] if index < len(self.inputs) else None
        return elements.full(value.shape, None) if value is not None and small(value) else None


def by_shape(node: Node, inputs: Values) -> list[Type | None] | None:
    """The types of `node`'s outputs; None where ONNX has to be asked. Raises ValueError, or what else a rule
    raises, where the node contradicts itself and ONNX cannot be asked."""
    kind = node.domain, node.op_type
    alone = node.domain == _MS or node.op_type in UNASKED
    if node.op is None or kind not in ELEMENTS or (
            node.version < 11 and not alone and _from_the_back(node)):
        return None
    try:
        told = ELEMENTS[kind](node, inputs)
        elems = told if isinstance(told, tuple) else (told,) * len(node.outputs)
        try:
            shapes = _ruled(node, inputs) if None not in elems else []
        except LookupError:
            shapes = []
        if shapes or alone or (None not in elems and _blind(node, inputs)):
            return [TensorType(elem, None if shape is None else tuple(map(_told, shape)))
                    for elem, shape in zip(elems, shapes or [None] * len(elems), strict=False)]
    except (ValueError, TypeError, ArithmeticError):
        if alone:
            raise
    return None


def by_variable(node: Node, inputs: Values, schema: Schema) -> list[Type | None]:
    """What holds where ONNX cannot be asked, since the one installed is an older release, whose inference
    refuses what is right and ends processes by a signal: element types by the schema's type variables, shapes
    by the rules as far as they go."""
    bound: dict[str, ElementType | None] = {}
    for i, value in enumerate(inputs):
        formal = schema.input_at(i)
        if formal is not None and formal.homogeneous and value is not None:
            bound.setdefault(formal.variable, value.elem)
    shapes: Shapes = []
    if node.op is not None and rule_of(node) is not None and not (node.version < 11 and _from_the_back(node)):
        with suppress(LookupError, ValueError, TypeError, ArithmeticError):
            shapes = _ruled(node, inputs)
    found: list[Type | None] = []
    for i in range(len(node.outputs)):
        output = schema.output_at(i)
        elem = None
        if output is not None and output.homogeneous:
            [only] = output.types if len(output.types) == 1 else [""]
            elem = bound.get(output.variable) or _ALONE.get(only)
        shape = shapes[i] if i < len(shapes) else None
        found.append(None if elem is None else
                     TensorType(elem, None if shape is None else tuple(map(_told, shape))))
    return found


_ALONE = {f"tensor({elem.text})": elem for elem in ElementType}


def _from_the_back(node: Node) -> bool:
    """Whether axes are counted from the back, which old versions do not know."""
    axis = node.attrs.get("axis")
    return any(a < 0 for a in (*node.attrs.get("axes", ()), *(() if axis is None else (axis,))))


def _ruled(node: Node, inputs: Values) -> Shapes:
    rule = rule_of(node)
    assert rule is not None
    read = () if node.op_type in _UNREAD else range(len(inputs) > 1 and node.op_type != "Range", len(inputs))
    return rule(Facts(node, [_dims(node, i, v) for i, v in enumerate(inputs)],
                      [known(v) if i in read and v is not None and v.elem in _INDEX else None
                       for i, v in enumerate(inputs)],
                      _Names(inputs)))


def _dims(node: Node, i: int, value: Value | None) -> list[Dim] | None:
    shape = value.type.shape if value is not None and type(value.type) is TensorType else None
    if shape is None and (i or node.op_type not in _RECURRENT):
        return None
    return [d if type(d) is int else named(d if isinstance(d, str) else f"{_UNKNOWN}{i} {axis}")
            for axis, d in enumerate((None,) * 3 if shape is None else shape)]


def _told(dim: Dim | None) -> int | str | None:
    if isinstance(dim, int):
        if dim < 0:
            raise ValueError(f"a dimension of {dim}")
        return dim
    symbol = dim.symbol if isinstance(dim, Expr) else None
    return None if symbol is None or symbol.name.startswith(_UNKNOWN) else symbol.name


def _nth(i: int) -> Callable[[Node, Values], Any]:
    """The element type of an input."""
    def elem(node: Node, inputs: Values) -> Any:
        value = inputs[i] if i < len(inputs) else None
        return None if value is None else value.elem
    return elem


_first = _nth(0)


def _cast(node: Node, inputs: Values) -> Any:
    return ElementType(node.attrs["to"])


def _filled(node: Node, inputs: Values) -> Any:
    value = node.attrs.get("value")
    return ElementType.FLOAT if value is None else element_of(value.dtype)


def _quantized(node: Node, inputs: Values) -> Any:
    return _nth(2)(node, inputs) or ElementType(node.attrs.get("output_dtype") or ElementType.UINT8)


def _dequantized(node: Node, inputs: Values) -> Any:
    told = node.attrs.get("output_dtype")
    return ElementType(told) if told else _nth(1)(node, inputs)


def _stash(node: Node) -> ElementType:
    return ElementType(node.attribute("stash_type"))


def _group_query(node: Node, inputs: Values) -> Any:
    """Caches may be quantized."""
    own, past = _first(node, inputs), inputs[3] if len(inputs) > 3 else None
    quantized = node.attribute("k_quant_type") != "NONE"
    cache = past.elem if past is not None else None if quantized else own
    return own, cache, cache, own


def _normalized(node: Node, inputs: Values) -> Any:
    """With one output, and a number for each channel where these are known."""
    dims = [v.type.shape if v is not None and type(v.type) is TensorType else None for v in inputs]
    x = dims[0] if dims else None
    counts = {d for each in (x and x[1:2], *dims[1:]) for d in each or () if isinstance(d, int)}
    plain = len(node.outputs) == 1 and len(dims) == 5 and x is not None and len(x) > 1 and all(
        each is not None and len(each) == 1 for each in dims[1:])
    return _first(node, inputs) if plain and len(counts) < 2 else None


def _sizes(inputs: Values, i: int = 0) -> tuple[int | str | None, ...] | None:
    value = inputs[i] if i < len(inputs) else None
    return value.type.shape if value is not None and type(value.type) is TensorType else None


def _blind(node: Node, inputs: Values) -> bool:
    """Whether nothing follows from the first input, since its rank is not known."""
    x = inputs[0] if inputs else None
    return x is not None and type(x.type) is TensorType and x.type.shape is None and (
        node.op_type not in _SEEN_AT_LEAST)


def _parted(node: Node, inputs: Values) -> Any:
    """Into as many parts as there are outputs, all told, that fill a known size."""
    x, count = _sizes(inputs), len(node.outputs)
    size: Any = None if x is None else x[places([node.attribute("axis")], len(x))[0]]
    if not isinstance(size, int):
        return None
    told = known(inputs[1]) if len(inputs) > 1 and inputs[1] is not None else node.attrs.get("split")
    if told is None and len(inputs) < 2:
        even = size % count == 0 if node.version < 18 else node.attrs.get("num_outputs") == count <= size
        return _first(node, inputs) if even and size else None
    parts = [] if told is None else list(np.ravel(told))
    whole = len(parts) == count and all(isinstance(n, int | np.integer) and n >= 0 for n in parts)
    return _first(node, inputs) if whole and sum(parts) == size else None


def _best(node: Node, inputs: Values) -> Any:
    """Of no more than there are, along an axis that there is."""
    x, k = _sizes(inputs), known(inputs[1]) if len(inputs) > 1 and inputs[1] is not None else None
    length = None if x is None else x[places([node.attribute("axis")], len(x))[0]]
    if k is None or k.size != 1 or not isinstance(length, int):
        return None
    return (_first(node, inputs), ElementType.INT64) if 0 <= k.item() <= length else None


def _numbered(node: Node, inputs: Values) -> Any:
    """From one whole number to another, by steps that are not known to be 0."""
    if len(inputs) != 3 or _first(node, inputs) not in _INDEX or any(
            _sizes(inputs, i) != () for i in range(3)):
        return None
    step = known(inputs[2]) if inputs[2] is not None else None
    return None if step is not None and step.item() == 0 else _first(node, inputs)


def _one_hot(node: Node, inputs: Values) -> Any:
    x = _sizes(inputs)
    if not x or _sizes(inputs, 2) != (2,) or _sizes(inputs, 1) not in ((), (1,)):
        return None
    places([node.attribute("axis")], len(x) + 1)
    return _nth(2)(node, inputs)


def _blocks(node: Node, inputs: Values) -> Any:
    """Of images whose sizes blocks divide."""
    x, size = _sizes(inputs), node.attrs.get("blocksize", 0)
    if x is None or len(x) != 4 or size < 1:
        return None
    by = (size * size, 1, 1) if node.op_type == "DepthToSpace" else (1, size, size)
    return None if any(isinstance(d, int) and d % n for d, n in zip(x[1:], by, strict=True)) else (
        _first(node, inputs))


def _padded(node: Node, inputs: Values) -> Any:
    """Along all axes."""
    return _first(node, inputs) if len(inputs) < 4 or inputs[3] is None else None


UNASKED = frozenset({
    "Attention", "AveragePool", "ConvTranspose", "Expand", "GroupNormalization", "LayerNormalization",
    "LpPool", "MaxPool", "MeanVarianceNormalization", "STFT", "SimplifiedLayerNormalization"})
"""ONNX operators whose schema inference cannot be asked: some have none; that of pools goes by another rule
than a run. LayerNormalization's reads out of bounds in onnx 1.23, Expand's counts to whatever length its
shape input is declared with, ConvTranspose's adds the output padding to what auto_pad has fixed already,
STFT's takes an absent `onesided` for 0, and Attention's says 0 where it cannot tell."""

_MS = "com.microsoft"
ELEMENTS: dict[tuple[str, str], Callable[[Node, Values], Any]] = {
    **{("", name): _first for name in (
        *UNASKED, "Concat", "Conv", "Flatten", "GRU", "Gather", "Gemm", "GlobalAveragePool", "GlobalMaxPool",
        "Identity", "LSTM", "LogSoftmax", "MatMul", "RNN",
        "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin",
        "ReduceProd", "ReduceSum", "ReduceSumSquare", "Reshape", "Slice", "Softmax", "Squeeze", "Transpose",
        "Unsqueeze", "CumSum", "GatherElements", "Hardmax", "InstanceNormalization", "LRN",
        "LpNormalization", "RMSNormalization", "ScatterElements", "ScatterND", "Tile")},
    ("", "Split"): _parted, ("", "TopK"): _best, ("", "Range"): _numbered, ("", "OneHot"): _one_hot,
    ("", "Trilu"): lambda node, inputs: _first(node, inputs) if len(_sizes(inputs) or ()) > 1 else None,
    ("", "DepthToSpace"): _blocks, ("", "SpaceToDepth"): _blocks,
    ("", "Dropout"): lambda node, inputs: (_first(node, inputs), ElementType.BOOL),
    ("ai.onnx.ml", "ArrayFeatureExtractor"): _first,
    ("", "Cast"): _cast, ("", "ConstantOfShape"): _filled, ("", "DequantizeLinear"): _dequantized,
    ("", "MatMulInteger"): lambda node, inputs: ElementType.INT32, ("", "QuantizeLinear"): _quantized,
    **{("", name): lambda node, inputs: ElementType.INT64 for name in (
        "ArgMax", "ArgMin", "NonMaxSuppression", "NonZero", "Shape", "Size")},
    ("", "BatchNormalization"): _normalized, ("", "Pad"): _padded,
    ("", "DynamicQuantizeLinear"): lambda node, inputs: (
        ElementType.UINT8, ElementType.FLOAT, ElementType.UINT8),
    **{(_MS, name): _first for name in (
        "Attention", "ExpandDims", "FusedConv", "FusedGemm", "FusedMatMul", "GemmFastGelu",
        "MaxpoolWithMask", "MultiHeadAttention", "NhwcConv", "Pad", "Range", "RotaryEmbedding",
        "TransposeMatMul", "UnfoldTensor")},
    (OWN, "SoftmaxAttention"): _first, (_MS, "GroupQueryAttention"): _group_query,
    (_MS, "QAttention"): _nth(2), (_MS, "GatherBlockQuantized"): _nth(2),
    ("", "LayerNormalization"): lambda node, inputs: (_first(node, inputs), *[_stash(node)] * 2),
    ("", "Attention"): lambda node, inputs: tuple(_nth(i)(node, inputs) for i in (0, 1, 2, 0)),
    ("", "MaxPool"): lambda node, inputs: (_first(node, inputs), ElementType.INT64),
    ("", "SimplifiedLayerNormalization"): lambda node, inputs: (_nth(1)(node, inputs), _stash(node)),
}
"""The element types of the outputs, or the one of them all, by domain and name."""
