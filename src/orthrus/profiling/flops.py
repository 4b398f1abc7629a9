"""How many arithmetic operations a node is, from its attributes and the concrete types of what it reads.

A multiply-add counts as two, a function such as exp as one, a comparison as one, a conversion as none. What
counts is what the operator's definition says, not what a kernel does: a Winograd convolution or a skipped
zero makes fewer. Operators of which nothing is known count as none.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from math import prod
from typing import Any

from ..codegen.write.trace import trace
from ..ir import OWN, No, Node, TensorType, Type, Value, type_of
from ..shapes.products import parsed_equation

Shape = tuple[int, ...]
Count = Callable[["Given"], int]


class Unknown(Exception):
    """A shape that a count needs is not known."""


class Given:
    """A node with the concrete types of its inputs and outputs."""

    def __init__(self, node: Node, types: Mapping[Value, Type]) -> None:
        self.node, self.types = node, types
        self.attrs = node.attributes

    def kind(self, value: Value | None) -> TensorType:
        """Raises Unknown where `value` is absent, or no tensor of concrete shape."""
        if value is None:
            raise Unknown
        found = self.types.get(value) or (type_of(value.const) if value.const is not None else value.type)
        if (not isinstance(found, TensorType) or found.shape is None or found.elem is None
                or not all(isinstance(d, int) for d in found.shape)):
            raise Unknown
        return found

    def has(self, i: int) -> bool:
        return i < len(self.node.inputs) and self.node.inputs[i] is not None

    def x(self, i: int = 0) -> Shape:
        """The shape of input `i`. Raises Unknown."""
        if not self.has(i):
            raise Unknown
        return self.kind(self.node.inputs[i]).shape  # type: ignore[return-value]

    def y(self, i: int = 0) -> Shape:
        """The shape of output `i`. Raises Unknown."""
        return self.kind(self.node.outputs[i] if i < len(self.node.outputs) else None).shape  # type: ignore[return-value]

    def const(self, i: int) -> Any:
        """The array of input `i`. Raises Unknown where it is no constant."""
        value = self.node.inputs[i] if self.has(i) else None
        if value is None or value.const is None:
            raise Unknown
        return value.const


def flops(node: Node, types: Mapping[Value, Type]) -> int | None:
    """The operations of `node`; None where a shape they depend on is not known."""
    try:
        given = Given(node, types)
        known = _COUNTS.get((node.domain, node.op_type))
        if known is None and node.domain == _MS:
            known = _COUNTS.get(("", node.op_type))
        if known is not None:
            return known(given)
        if node.op is not None and node.op.broadcasts:
            return _per_element(given) * prod(given.y())
        return 0
    except (Unknown, KeyError, IndexError, TypeError, ValueError):
        return None


def _per_element(given: Given) -> int:
    """The operations of an elementwise body; 1 where it cannot be looked into."""
    node = given.node
    dtypes = tuple(None if v is None else given.kind(v).elem.numpy.name for v in node.inputs)  # type: ignore[union-attr]
    constants = {i: v.const.reshape(()) for i, v in enumerate(node.inputs)
                 if v is not None and getattr(v.const, "size", 0) == 1}
    tree = trace(node.op, node.attrs, dtypes, constants)
    return 1 if isinstance(tree, No) else _operations(tree)


_FREE = frozenset({"leaf", "const", "cast"})


@functools.lru_cache(1024)
def _operations(tree: Any) -> int:
    """Different operations of a tree: what it has twice is computed once."""
    seen = {tree}
    stack = [tree]
    while stack:
        for arg in stack.pop().args:
            if arg not in seen:
                seen.add(arg)
                stack.append(arg)
    return sum(each.op not in _FREE for each in seen)


def _matmul(g: Given) -> int:
    a = g.x(0)
    depth = a[-2] if g.attrs.get("transA") and len(a) > 1 else a[-1]
    if g.attrs.get("transBatchA") and len(a) > 2:
        depth = a[0] if g.attrs.get("transA") else a[-1]
    return 2 * depth * prod(g.y()) + (prod(g.y()) if g.attrs.get("alpha") not in (None, 1) else 0)


def _product(second: int, bias: int | None = None, per_output: int = 0) -> Count:
    """A matrix product whose second factor is input `second`, with a bias and more per output element."""
    def count(g: Given) -> int:
        size = prod(g.y())
        extra = per_output + (1 if bias is not None and g.has(bias) else 0)
        g.x(second)
        return (2 * g.x(0)[-1] + extra) * size
    return count


def _gemm(g: Given) -> int:
    a, size = g.x(0), prod(g.y())
    depth = a[0] if g.attrs.get("transA") else a[1]
    scaled = int(g.attrs["alpha"] != 1)
    third = (1 + int(g.attrs["beta"] != 1)) if g.has(2) and g.node.op_type != "QGemm" else 0
    return (2 * depth + scaled + third) * size


def _conv(weights: int = 1, bias: int | None = 2, per_output: int = 0) -> Count:
    """A convolution: weights (M, C / group, kernel...)."""
    def count(g: Given) -> int:
        w, size = g.x(weights), prod(g.y())
        return (2 * prod(w[1:]) + (1 if bias is not None and g.has(bias) else 0) + per_output) * size
    return count


def _conv_transpose(g: Given) -> int:
    w = g.x(1)
    return 2 * prod(g.x(0)) * prod(w[1:]) + (prod(g.y()) if g.has(2) else 0)


def _deform_conv(g: Given) -> int:
    w = g.x(1)
    taps = prod(g.y()) // g.y()[1] * g.attrs["offset_group"] * prod(w[2:])
    return (2 * prod(w[1:]) + int(g.has(3))) * prod(g.y()) + 8 * taps * (g.x(0)[1] // g.attrs["offset_group"])


def _einsum(g: Given) -> int:
    terms, output = parsed_equation(g.attrs["equation"])
    sizes: dict[str, int] = {}
    for i, term in enumerate(terms):
        shape = g.x(i)
        named = len(term.replace("...", ""))
        spread = len(shape) - named
        head, dots, tail = term.partition("...")
        for letter, d in zip(head, shape, strict=False):
            sizes[letter] = max(sizes.get(letter, 1), d)
        for letter, d in zip(reversed(tail), reversed(shape), strict=False):
            sizes[letter] = max(sizes.get(letter, 1), d)
        if dots:
            for j in range(spread):
                name = f"...{spread - j}"
                sizes[name] = max(sizes.get(name, 1), shape[len(head) + j])
    total = prod(sizes.values())
    summed = total != prod(g.y())
    return total * (len(terms) - 1 + int(summed))


def _attention_of(batch: int, heads: int, queries: int, keys: int, size: int, value_size: int) -> int:
    """Scores, scaling and softmax over them, and the weighted sum."""
    scores = batch * heads * queries * keys
    return scores * (2 * size + 1 + _SOFTMAX + 2 * value_size)


def _attention(g: Given) -> int:
    """ONNX's Attention: (B, heads, S, D), or (B, S, heads * D) with the number of heads as attributes."""
    q, k, v = g.x(0), g.x(1), g.x(2)
    if len(q) == 3:
        heads, kv_heads = g.attrs["q_num_heads"], g.attrs["kv_num_heads"]
        q, k, v = ((s[0], h, s[1], s[2] // h) for s, h in ((q, heads), (k, kv_heads), (v, kv_heads)))
    past = g.x(4)[2] if g.has(4) else 0
    return _attention_of(q[0], q[1], q[2], k[2] + past, q[3], v[3])


def _multi_head(g: Given) -> int:
    """(B, S, hidden) for queries; keys and values so, or (B, heads, S, D), or packed with the queries."""
    heads, q = g.attrs["num_heads"], g.x(0)
    if not g.has(1):
        return _attention_of(q[0], heads, q[1], q[1], q[-1], q[-1])
    if len(q) != 3:
        raise Unknown
    k = g.x(1)
    if not g.has(2):
        size = q[2] // heads
        return _attention_of(q[0], heads, q[1], k[1], size, size)
    v = g.x(2)
    past = g.x(6)[2] if g.has(6) else 0
    keys, value_size = (k[1], v[2] // heads) if len(k) == 3 else (k[2], v[3])
    return _attention_of(q[0], heads, q[1], keys + past, q[2] // heads, value_size)


def _group_query(g: Given) -> int:
    heads, kv_heads, q = g.attrs["num_heads"], g.attrs["kv_num_heads"], g.x(0)
    packed = not g.has(1)
    size = q[2] // (heads + 2 * kv_heads) if packed else q[2] // heads
    keys = max(g.y(1)[2] if len(g.node.outputs) > 1 and g.node.outputs[1] is not None else 0, q[1])
    rotary = 3 * q[0] * q[1] * (heads + kv_heads) * size if g.attrs.get("do_rotary") else 0
    return _attention_of(q[0], heads, q[1], keys, size, size) + rotary


def _packed_attention(g: Given) -> int:
    """com.microsoft's Attention: the projection to queries, keys and values, and the attention."""
    batch, length, hidden = g.x(0)
    heads, wide = g.attrs["num_heads"], g.x(1)[1]
    sizes = g.attrs.get("qkv_hidden_sizes") or [wide // 3] * 3
    past = g.x(4)[3] if g.node.op_type == "Attention" and g.has(4) else 0
    projected = batch * length * wide
    return projected * (2 * hidden + int(g.has(2))) + _attention_of(
        batch, heads, length, length + past, sizes[0] // heads, sizes[2] // heads)


def _recurrent(gates: int, pointwise: int) -> Count:
    """W (directions, gates * H, I), R (directions, gates * H, H); `pointwise`: operations per hidden element
    and step: activations, and what joins the gates."""
    def count(g: Given) -> int:
        x, r = g.x(0), g.x(2)
        directions, hidden = r[0], r[2]
        per = gates * (2 * x[2] + 2 * hidden + 1 + (2 if g.has(3) else 0)) + pointwise
        if g.node.op_type == "LSTM" and g.has(7):
            per += 6
        return directions * x[0] * x[1] * hidden * per
    return count


_SOFTMAX = 5


def _each(operations: int, output: bool = False) -> Count:
    """So many for each element of the first input, or of the first output."""
    return lambda g: operations * prod(g.y() if output else g.x())


def _normalized(operations: int, *optional: int) -> Count:
    """So many per element, and one more for each of the `optional` inputs that is there."""
    return lambda g: (operations + sum(g.has(i) for i in optional)) * prod(g.x())


def _embedded(g: Given) -> int:
    return (_LAYER_NORM + 2 + int(g.has(4))) * prod(g.y())


def _reduced(operations: int, at_end: int = 0) -> Count:
    return lambda g: operations * prod(g.x()) + at_end * prod(g.y())


def _pooled(per_tap: int, at_end: int = 0) -> Count:
    def count(g: Given) -> int:
        return (per_tap * prod(g.attrs["kernel_shape"]) + at_end) * prod(g.y())
    return count


def _resized(g: Given) -> int:
    changed = sum(a != b for a, b in zip(g.x(), g.y(), strict=True))
    taps = {"linear": 2, "cubic": 4}.get(g.attrs["mode"], 0)
    return 2 * taps ** changed * prod(g.y()) if taps else 0


def _variadic(g: Given) -> int:
    """Sum, Mean, Max, Min: one operation per operand but the first, a division for the mean."""
    return (len(g.node.inputs) - 1 + int(g.node.op_type == "Mean")) * prod(g.y())


def _n_bits(g: Given) -> int:
    """Weights unpacked and scaled, and the product."""
    k, n = g.attrs["K"], g.attrs["N"]
    return 2 * k * prod(g.y()) + 2 * k * n + (prod(g.y()) if g.has(5) else 0)


def _linear(g: Given) -> int:
    """ai.onnx.ml's linear models: a row of coefficients for each target."""
    return prod(g.x()) * 2 * (len(g.attrs["coefficients"]) // g.x()[-1])


def _nothing(g: Given) -> int:
    return 0


_LAYER_NORM = 7
"""Mean, difference, square, its mean, division by the root, scale, and shift."""

_MS = "com.microsoft"
_COUNTS: dict[tuple[str, str], Count] = {
    ("", "MatMul"): _matmul, (_MS, "FusedMatMul"): _matmul, (_MS, "TransposeMatMul"): _matmul,
    (_MS, "GemmFastGelu"): _matmul,
    ("", "MatMulInteger"): _product(1), ("", "QLinearMatMul"): _product(3, None, 3),
    (_MS, "MatMulIntegerToFloat"): _product(1, 6, 2), (_MS, "DynamicQuantizeMatMul"): _product(1, 4, 2),
    (_MS, "MatMulInteger16"): _product(1), (_MS, "MatMulNBits"): _n_bits, (_MS, "MatMulBnb4"): _n_bits,
    ("", "Gemm"): _gemm, (_MS, "FusedGemm"): _gemm, (_MS, "QGemm"): _gemm,
    ("", "Conv"): _conv(), (_MS, "FusedConv"): _conv(), (_MS, "NhwcConv"): _conv(),
    ("", "ConvInteger"): _conv(1, None), ("", "QLinearConv"): _conv(3, 8, 3),
    (_MS, "QLinearConv"): _conv(3, 8, 3),
    ("", "ConvTranspose"): _conv_transpose, ("", "DeformConv"): _deform_conv, ("", "Einsum"): _einsum,
    ("", "Attention"): _attention, (OWN, "SoftmaxAttention"): _attention,
    (_MS, "Attention"): _packed_attention,
    (_MS, "QAttention"): _packed_attention, (_MS, "MultiHeadAttention"): _multi_head,
    (_MS, "GroupQueryAttention"): _group_query,
    ("", "LSTM"): _recurrent(4, 9), (_MS, "DynamicQuantizeLSTM"): _recurrent(4, 9),
    ("", "GRU"): _recurrent(3, 7), ("", "RNN"): _recurrent(1, 1),
    ("", "Softmax"): _each(_SOFTMAX), ("", "LogSoftmax"): _each(_SOFTMAX), (_MS, "BiasSoftmax"): _each(6),
    ("", "LayerNormalization"): _normalized(_LAYER_NORM - 1, 2),
    ("", "SimplifiedLayerNormalization"): _each(4), (_MS, "SimplifiedLayerNormalization"): _each(4),
    ("", "RMSNormalization"): _each(4),
    (_MS, "SkipLayerNormalization"): _normalized(_LAYER_NORM, 3, 4),
    (_MS, "SkipSimplifiedLayerNormalization"): _normalized(5, 3),
    (_MS, "EmbedLayerNormalization"): _embedded,
    ("", "InstanceNormalization"): _each(_LAYER_NORM), ("", "GroupNormalization"): _each(_LAYER_NORM),
    (_MS, "GroupNorm"): _each(_LAYER_NORM), ("", "MeanVarianceNormalization"): _each(5),
    ("", "BatchNormalization"): _each(2), ("", "LpNormalization"): _each(3), ("", "LRN"): _each(6),
    ("", "RotaryEmbedding"): _each(3), (_MS, "RotaryEmbedding"): _each(3),
    **{("", name): _reduced(1) for name in ("ReduceSum", "ReduceMax", "ReduceMin", "ReduceProd", "ArgMax",
                                            "ArgMin", "CumSum", "TopK", "GlobalMaxPool", "NonZero")},
    ("", "ReduceMean"): _reduced(1, 1), ("", "GlobalAveragePool"): _reduced(1, 1),
    ("", "ReduceL1"): _reduced(2), ("", "ReduceSumSquare"): _reduced(2), ("", "ReduceL2"): _reduced(2, 1),
    ("", "ReduceLogSum"): _reduced(1, 1), ("", "ReduceLogSumExp"): _reduced(4, 2),
    ("", "MaxPool"): _pooled(1), ("", "AveragePool"): _pooled(1, 1), ("", "LpPool"): _pooled(2, 1),
    ("", "Resize"): _resized, ("", "Upsample"): _resized,
    ("ai.onnx.ml", "Scaler"): _each(2), ("ai.onnx.ml", "Normalizer"): _each(3),
    ("ai.onnx.ml", "LinearClassifier"): _linear, ("ai.onnx.ml", "LinearRegressor"): _linear,
    ("", "QuantizeLinear"): _each(3), ("", "DequantizeLinear"): _each(2),
    ("", "DynamicQuantizeLinear"): _each(5),
    **{("", name): _variadic for name in ("Sum", "Mean", "Max", "Min")},
    **{("", name): _nothing for name in ("Identity", "Cast", "CastLike", "Dropout")},
}
