"""Which nodes the provider takes: the operators SpacemiT lists for its own, with the types and under the
conditions it states (its documentation of 2026-07), one line each.

An operator that the optimizer made of listed ones counts as listed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ...ir import OWN, No, Node, Value
from ...records import dataclass
from ..base import schema_of

Condition = Callable[[Node], No | None]

F = frozenset({"float32", "float16"})
B7 = frozenset({"float32", "float16", "int32", "uint32", "int8", "uint8", "bool"})
BYTES = frozenset({"int8", "uint8"})


@dataclass(frozen=True)
class Claim:
    """Types that the first input, and whatever has the same type variable, may have; those of the first
    output where they are another variable's; and conditions."""

    types: frozenset[str]
    results: frozenset[str] | None = None
    conditions: tuple[Condition, ...] = ()


def _kernel_shape(node: Node) -> No | None:
    return None if "kernel_shape" in node.attrs else No("its kernel_shape is not given")


def _rank_up_to(most: int) -> Condition:
    def condition(node: Node) -> No | None:
        rank = len(node.attrs.get("kernel_shape") or ())
        return None if rank <= most else No(f"a kernel of {rank} dimensions; {most} at most")
    return condition


def _dequantized(value: Value) -> bool:
    """Whether it comes from a DequantizeLinear of constants."""
    node = value.node
    return node is not None and node.op_type == "DequantizeLinear" and all(
        v is None or v.const is not None for v in node.inputs)


def _constant_weights(node: Node) -> No | None:
    w = node.inputs[1]
    if w is not None and (w.const is not None or _dequantized(w)):
        return None
    return No(f"its weights %{w.name if w else ''} are neither constant nor dequantized constants")


def _constants_from(first: int) -> Condition:
    def condition(node: Node) -> No | None:
        for v in node.inputs[first:]:
            if v is not None and v.const is None:
                return No(f"its input %{v.name} is no constant")
        return None
    return condition


def _attribute(name: str, *allowed: object) -> Condition:
    def condition(node: Node) -> No | None:
        value = node.attribute(name)
        return None if value is None or value in allowed else No(
            f"{name} is {value}; only {' and '.join(map(str, allowed))} are taken")
    return condition


def _no_padding_unless_counted(node: Node) -> No | None:
    if node.attrs.get("count_include_pad") == 1:
        return None
    automatic = node.attribute("auto_pad") in ("SAME_UPPER", "SAME_LOWER")
    if automatic or any(node.attrs.get("pads") or ()):
        return No("padding that does not count")
    return None


def _slice_since(node: Node) -> No | None:
    return None if node.version >= 10 else No("before version 10 its ends are attributes")


_CONV = (_kernel_shape, _constant_weights)
_POOL = (_rank_up_to(2),)
_REST = (_constants_from(1),)

CLAIMS: dict[str, Claim] = {
    "Conv": Claim(F, None, (*_CONV, _rank_up_to(3))),
    "ConvTranspose": Claim(F, None, (*_CONV, _rank_up_to(2))),
    "Gemm": Claim(F, None, (_attribute("transA", 0), _attribute("alpha", 1.0),
                            _attribute("beta", 1.0))),
    "MatMul": Claim(F),
    "com.microsoft::DynamicQuantizeMatMul": Claim(frozenset({"float32"})),
    "MatMulInteger": Claim(BYTES, frozenset({"int32"})),
    "DynamicQuantizeLinear": Claim(frozenset({"float32"}), BYTES),
    "QuantizeLinear": Claim(frozenset({"float32"}), BYTES),
    "DequantizeLinear": Claim(BYTES | {"int32"}, frozenset({"float32"})),
    "AveragePool": Claim(F, None, (*_POOL, _no_padding_unless_counted)),
    **dict.fromkeys(("GlobalAveragePool", "MaxPool", "GlobalMaxPool"), Claim(F, None, _POOL)),
    **dict.fromkeys(("ReduceMean", "ReduceMax", "ReduceSum"), Claim(F, None, _REST)),
    **dict.fromkeys(("ArgMax", "ArgMin"), Claim(F | {"int8"}, frozenset({"int64"}))),
    **dict.fromkeys(("Add", "Sub", "Sum", "Mul", "Div", "Pow", "Sqrt", "Abs", "Neg", "Log", "Reciprocal",
                     "Sin", "Cos", "Tan", "Sinh", "Cosh", "Floor", "Ceil"), Claim(F)),
    **dict.fromkeys(("Sigmoid", "Swish", "HardSigmoid", "HardSwish", "Tanh", "LeakyRelu", "Clip", "Relu",
                     "PRelu", "Elu", "Gelu", "Celu", "Selu", "Softplus", "Softsign", "Erf", "Softmax",
                     "LogSoftmax"), Claim(F)),
    "Cast": Claim(B7, B7),
    **dict.fromkeys(("Concat", "Flatten", "Gather", "GatherND", "ScatterND"), Claim(B7)),
    "Where": Claim(frozenset({"bool"}), B7),
    "Split": Claim(B7, None, _REST),
    "Transpose": Claim(F | {"int8"}),
    **dict.fromkeys(("Unsqueeze", "Squeeze", "Reshape", "Tile"), Claim(B7, None, _REST)),
    "Slice": Claim(B7, None, (_slice_since, *_REST)),
    "Resize": Claim(F | {"int8"}, None, (
        _attribute("coordinate_transformation_mode", "asymmetric", "half_pixel"),
        _attribute("mode", "nearest", "linear"))),
    "Pad": Claim(F | {"int32", "int8", "uint8"}, None, _REST),
    "GridSample": Claim(F, None, (
        _attribute("mode", "bilinear", "linear", "nearest"),
        _attribute("padding_mode", "zeros", "border"))),
    **dict.fromkeys(("LayerNormalization", "InstanceNormalization", "BatchNormalization", "RMSNormalization",
                     "GroupNormalization"), Claim(F)),
    **dict.fromkeys(("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"),
                    Claim(B7, frozenset({"uint8", "bool"}))),
    **dict.fromkeys(("RotaryEmbedding", "Attention", f"{OWN}::SoftmaxAttention"), Claim(F)),
    "spacemit_functions::YoloDecode": Claim(F),
    **dict.fromkeys(("com.microsoft::FusedMatMul", "com.microsoft::SkipLayerNormalization",
                     "com.microsoft::SkipSimplifiedLayerNormalization"), Claim(F)),
}


def refusal(node: Node) -> No | None:
    """Why the provider leaves `node`, None where it may take it."""
    claim = CLAIMS.get(node.kind)
    if claim is None:
        return No(f"{node.kind} is not among the operators it takes")
    for value, allowed in _typed(node, claim):
        kind = value.elem.numpy.name if value.elem is not None else "unknown"
        if kind not in allowed:
            return No(f"%{value.name} is {kind}; it takes {', '.join(sorted(allowed))} there")
    return next((why for condition in claim.conditions if (why := condition(node)) is not None), None)


def _typed(node: Node, claim: Claim) -> Iterator[tuple[Value, frozenset[str]]]:
    """The values that the claim says something about, and the types they may have."""
    schema = schema_of(node)
    first, out = node.inputs[0], node.outputs[0]
    variable = schema.inputs[0].variable if schema is not None else ""
    for i, value in enumerate(node.inputs):
        formal = schema.input_at(i) if schema is not None else None
        if value is not None and (value is first or (formal is not None and formal.variable == variable)):
            yield value, claim.types
    if claim.results is not None and out is not None:
        yield out, claim.results
