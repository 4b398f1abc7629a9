"""Products of two computed inputs in a dynamically quantized model, with less than float32: the option
SPACEMIT_EP_DENSE_ACCURACY_LEVEL.

In: a part. Out: the part with other nodes in the place of each such MatMul and Attention, which reads and
makes the same values.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ...ir import OWN, ElementType, Graph, Node, TensorType, Value
from ...kernels import Part
from ...ops import find

QUANTIZED, HALF, FULL = 0, 1, 2
"""The levels."""

_DYNAMIC = frozenset({"DynamicQuantizeLinear", "DynamicQuantizeMatMul", "MatMulInteger"})
_ATTENTIONS = frozenset({"Attention", f"{OWN}::SoftmaxAttention"})
_ONLINE = frozenset({"MatMul", "com.microsoft::FusedMatMul"}) | _ATTENTIONS
_F = ElementType.FLOAT


def dynamically_quantized(graph: Graph) -> bool:
    """Whether a model is quantized by the ranges of its tensors at run time."""
    return any(node.op_type in _DYNAMIC for node in graph.nodes)


def lowered(part: Part, level: int) -> Part:
    """`part` with its products of computed inputs at `level`."""
    return replace(part, nodes=[new for node in part.nodes for new in _at(node, level)])


def _at(node: Node, level: int) -> Iterator[Node]:
    given = [v for v in node.inputs[:3] if v is not None]
    if node.kind not in _ONLINE or any(v.const is not None or v.elem is not _F for v in given):
        yield node
    elif level == QUANTIZED and node.kind not in _ATTENTIONS and not (
            node.attrs.get("transBatchA") or node.attrs.get("transBatchB")):
        yield from _quantized(node)
    else:
        yield from _half(node)


def _half(node: Node) -> Iterator[Node]:
    """In float16, summed in float32."""
    inputs: list[Value | None] = []
    for v in node.inputs:
        if v is None or v.elem is not _F:
            inputs.append(v)
            continue
        half = _like(v, ElementType.FLOAT16, "half")
        yield _made(node, "Cast", [v], [half], to=ElementType.FLOAT16.value)
        inputs.append(half)
    outputs = [None if v is None else _like(v, ElementType.FLOAT16, "half") for v in node.outputs]
    yield _made(node, node.op_type, inputs, outputs, **node.attrs)
    for v, made in zip(node.outputs, outputs, strict=True):
        if v is not None:
            yield _made(node, "Cast", [made], [v], to=_F.value)


def _quantized(node: Node) -> Iterator[Node]:
    """Both inputs as uint8 by their own ranges, summed in int32."""
    codes: list[Value] = []
    scales: list[Value] = []
    zeros: list[Value] = []
    for v in node.inputs:
        assert v is not None
        code = _like(v, ElementType.UINT8, "codes")
        scale = Value(f"{v.name}.scale", TensorType(_F, ()))
        zero = Value(f"{v.name}.zero", TensorType(ElementType.UINT8, ()))
        yield _made(node, "DynamicQuantizeLinear", [v], [code, scale, zero])
        if node.attrs.get("transB" if codes else "transA"):
            assert v.shape is not None
            axes = [*range(len(v.shape) - 2), len(v.shape) - 1, len(v.shape) - 2]
            turned = Value(f"{v.name}.turned", TensorType(ElementType.UINT8, tuple(v.shape[a] for a in axes)))
            yield _made(node, "Transpose", [code], [turned], perm=axes)
            code = turned
        codes.append(code)
        scales.append(scale)
        zeros.append(zero)
    sums = _like(node.output, ElementType.INT32, "sums")
    yield _made(node, "MatMulInteger", [*codes, *zeros], [sums])
    real = _like(node.output, _F, "sums as floats")
    yield _made(node, "Cast", [sums], [real], to=_F.value)
    scale = Value(f"{node.output.name}.scale", TensorType(_F, ()))
    yield _made(node, "Mul", scales, [scale])
    alpha = node.attribute("alpha")
    product = node.output if alpha in (None, 1) else _like(node.output, _F, "product")
    yield _made(node, "Mul", [real, scale], [product])
    if product is not node.output:
        factor = Value(f"{node.output.name}.alpha", TensorType(_F, ()), None, np.float32(alpha).reshape(()))
        yield _made(node, "Mul", [product, factor], [node.output])


def _like(v: Value, elem: ElementType, what: str) -> Value:
    return Value(f"{v.name}.{what}", TensorType(elem, v.shape))


def _made(node: Node, op_type: str, inputs: Sequence[Value | None], outputs: Sequence[Value | None],
          **attrs: Any) -> Node:
    """A node in the place of `node`, under its name, which its values do not know."""
    same = op_type == node.op_type
    domain, version = (node.domain, node.version) if same else ("", 13)
    op = node.op if same else find(domain, op_type, version)
    made = Node(op_type, domain, version, op, (), attrs, node.name, node.index)
    made.inputs, made.outputs = list(inputs), list(outputs)
    return made
