"""Which nodes are taken, and why the others are not: a table of operators, each with what it needs.

In: a node. Out: None, or `No` with a reason. The answer depends on the node, its types and its constants, and
for a node that only moves elements on whether a neighbour computes with them; never on what was asked before.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ...ir import OWN, ElementType, No, Node, Value
from ...ops.nn.rnn import DEFAULTS
from .rules.elementwise import ARITHMETIC, COMPARISONS, UNARY, function
from .rules.move import FREE
from .rules.reduce import REDUCTIONS

Check = Callable[[Node], "No | None"]
E = ElementType
REAL = (E.FLOAT, E.BFLOAT16)
BYTES = (E.UINT8, E.INT8)


def _constant(value: Value | None) -> bool:
    return value is None or isinstance(value.const, np.ndarray)


def _constants(*indices: int) -> Check:
    """These inputs have to be constant, where they are given."""
    def check(node: Node) -> No | None:
        for i in indices:
            if i < len(node.inputs) and not _constant(node.inputs[i]):
                value = node.inputs[i]
                return No(f"its input %{value.name if value else i} decides the result's shape or meaning, "
                          "and is no constant")
        return None
    return check


def _first_output(node: Node) -> No | None:
    if any(v is not None and not v.dead for v in node.outputs[1:]):
        return No(f"another output than {node.op_type}'s first is read")
    return None


def _rank(least: int, most: int) -> Check:
    def check(node: Node) -> No | None:
        shape = None if node.inputs[0] is None else node.inputs[0].shape
        if shape is not None and not least <= len(shape) <= most:
            return No(f"its input has rank {len(shape)}; oneDNN takes {least} to {most}")
        return None
    return check


def _each(*checks: Check) -> Check:
    """The first refusal of these, which is false, as every `No` is."""
    def check(node: Node) -> No | None:
        return next((no for each in checks if (no := each(node)) is not None), None)
    return check


def _unary(node: Node) -> No | None:
    found = function(node)
    return found if isinstance(found, No) else None


def _at_least_one(node: Node) -> No | None:
    return None if node.inputs and all(v is not None for v in node.inputs) else No("an input is absent")


def _clip(node: Node) -> No | None:
    return No("no ONNX form without its bounds") if not node.inputs else _unary(node)


def _dropout(node: Node) -> No | None:
    training = node.inputs[2] if len(node.inputs) > 2 else None
    if training is not None and (not isinstance(training.const, np.ndarray) or training.const.any()):
        return No("it may be in training mode")
    return _first_output(node)


def _batch(node: Node) -> No | None:
    if node.attributes.get("training_mode"):
        return No("training mode")
    if any(v is not None and v.elem is not E.FLOAT for v in node.inputs[1:]):
        return No("its statistics are not float32")
    return _first_output(node)


def _layer(node: Node) -> No | None:
    if any(v is not None and v.elem is not E.FLOAT for v in node.inputs):
        return No("not all of its inputs are float32")
    return _first_output(node)


def _skip(node: Node) -> No | None:
    if any(v is not None and not v.dead for v in node.outputs[1:3]):
        return No("its mean or deviation is read")
    if any(v is not None and v.elem is not E.FLOAT for v in node.inputs):
        return No("not all of its inputs are float32")
    return None


def _lrn(node: Node) -> No | None:
    if node.attributes["size"] % 2 == 0:
        return No("an even size")
    return _rank(3, 5)(node)


def _softmax(node: Node) -> No | None:
    x = node.inputs[0]
    return No("a scalar") if x is not None and x.shape == () else None


def _resize(node: Node) -> No | None:
    if node.version < 11:
        return No("where it shrinks, it takes the next element")
    attrs = node.attributes
    if attrs["mode"] not in ("nearest", "linear"):
        return No(f"mode {attrs['mode']}")
    if attrs.get("antialias") or attrs.get("axes") or attrs.get("exclude_outside") \
            or attrs.get("keep_aspect_ratio_policy") not in (None, "stretch"):
        return No("antialias, axes, exclude_outside and keep_aspect_ratio_policy are not oneDNN's")
    mode = attrs["coordinate_transformation_mode"]
    if attrs["mode"] == "linear" and mode != "half_pixel":
        return No(f"linear with {mode}; oneDNN's is half_pixel")
    if mode not in ("half_pixel", "asymmetric", "align_corners"):
        return No(f"coordinate_transformation_mode {mode}")
    return _each(_constants(1, 2, 3), _rank(3, 5))(node)


def _recurrent(functions: tuple[str, ...]) -> Check:
    def check(node: Node) -> No | None:
        attrs, inputs = node.attributes, [*node.inputs, *(None,) * 8]
        sides = 2 if attrs["direction"] == "bidirectional" else 1
        given = attrs.get("activations")
        if given and [g.lower() for g in given] != [f.lower() for f in functions] * sides:
            return No(f"activations {given}; oneDNN's are {list(functions)}")
        for name in ("clip", "layout", "input_forget"):
            if attrs.get(name):
                return No(f"{name} is given")
        if inputs[4] is not None:
            return No("sequence_lens is given")
        if inputs[7] is not None:
            return No("peepholes are given")
        return _constants(1, 2, 3)(node)
    return check


def _attention(node: Node) -> No | None:
    assert node.op is not None
    for name in ("is_causal", "softcap", "left_window_size", "right_window_size", "softmax_precision",
                 "qk_matmul_output_mode", "guarded"):
        if node.attribute(name) != node.op.defaults.get(name):
            return No(f"{name} is {node.attribute(name)}")
    if any(v is not None for v in node.inputs[4:]):
        return No("past keys, past values, lengths or scores that do not count are given")
    if len(node.inputs) > 3 and node.inputs[3] is not None and node.inputs[3].elem is not E.FLOAT:
        return No("the mask is no float32 tensor")
    return _first_output(node)


def _integer_matmul(node: Node) -> No | None:
    b = node.inputs[1]
    if b is not None and b.elem is E.UINT8 and not _constant(b):
        return No("B is uint8 and no constant; oneDNN's weights are int8")
    return _constants(3)(node)


def _qlinear(node: Node) -> No | None:
    """Scales and zero points of both sides and the result are constants, the weights int8 around zero."""
    if any(not _constant(v) for i, v in enumerate(node.inputs) if i not in (0, 3)):
        return No("a scale, a zero point or its bias is no constant")
    weights, zero = node.inputs[3], node.inputs[5]
    if weights is None or weights.elem is not E.INT8:
        return No("its weights are not int8")
    if zero is None or not isinstance(zero.const, np.ndarray) or zero.const.any():
        return No("a zero point of its weights that is not 0")
    for i in (1, 2, 6, 7):
        value = node.inputs[i]
        if value is None or not isinstance(value.const, np.ndarray) or value.const.size != 1:
            return No("a scale for each row")
    scales = [v.const for v in (node.inputs[1], node.inputs[4], node.inputs[6]) if v is not None]
    if any(s.dtype != np.float32 or not (s > 0).all() or not np.isfinite(s).all() for s in scales):
        return No("a scale that is not positive, or not float32")
    out = node.output.elem
    return None if out in BYTES else No(f"its result is {out.text if out else 'of unknown type'}")


def _dequantize(node: Node) -> No | None:
    attrs = node.attributes
    scale, zero = node.inputs[1], node.inputs[2] if len(node.inputs) > 2 else None
    if not _constant(scale) or not _constant(zero):
        return No("its scale or zero point is no constant")
    if attrs.get("block_size") or (scale is not None and scale.elem is not E.FLOAT):
        return No("scales by block, or not float32")
    assert scale is not None and isinstance(scale.const, np.ndarray)
    if (scale.const <= 0).any() or not np.isfinite(scale.const).all():
        return No("a scale that is not positive")
    x = node.inputs[0]
    if scale.const.size != 1 and not (x is not None and _constant(x)):
        return No("a scale for each index of an axis, of what is no constant")
    if attrs.get("output_dtype") not in (None, 0, E.FLOAT):
        return No("its result is not float32")
    return None


def _quantize(node: Node) -> No | None:
    attrs = node.attributes
    out = node.output.elem
    if out not in BYTES:
        return No(f"its result is {out.text if out else 'of unknown type'}; oneDNN's are uint8 and int8")
    scale = node.inputs[1]
    if attrs.get("precision") not in (None, 0, E.FLOAT) or (scale is not None and scale.elem is not E.FLOAT):
        return No("it divides in another precision than float32")
    if scale is None or not isinstance(scale.const, np.ndarray) or scale.const.size != 1:
        return No("its scale is no constant number")
    if len(node.inputs) > 2 and not _constant(node.inputs[2]):
        return No("its zero point is no constant")
    number = float(scale.const.item())
    return None if 0 < number < np.inf else No("a scale that is not positive")


def _generated(node: Node) -> No | None:
    from .generated import missing

    return missing()


def _reshape(node: Node) -> No | None:
    """A computed shape is looked at in each run, where it comes from outside the part, as all int64 does."""
    shape = node.inputs[1] if len(node.inputs) > 1 else None
    if shape is not None and shape.const is None and shape.elem is not E.INT64:
        return No("the type of its shape is not known")
    return None


def _cast(node: Node) -> No | None:
    x, to = node.inputs[0], ElementType(node.attrs["to"])
    known = x.elem if x is not None else None
    if known is E.INT32 and to is E.FLOAT and x is not None and x.node is not None \
            and x.node.op_type == "MatMulInteger":
        return None
    if {known, to} == {E.FLOAT, E.BFLOAT16}:
        return None
    return No(f"from {known.text if known else 'an unknown type'} to {to.text}")


def _slice(node: Node) -> No | None:
    if node.version >= 10 and (no := _constants(1, 2, 3, 4)(node)) is not None:
        return no
    steps = node.inputs[4] if len(node.inputs) > 4 else None
    if steps is not None and (np.asarray(steps.const) != 1).any():
        return No("a step that is not one")
    return None


def _always(node: Node) -> No | None:
    return None


CLAIMS: dict[str, tuple[tuple[ElementType, ...], Check]] = {
    **dict.fromkeys(UNARY, (REAL, _unary)),
    **dict.fromkeys(ARITHMETIC, (REAL, _at_least_one)),
    **dict.fromkeys(COMPARISONS, ((E.FLOAT,), _always)),
    **{kind: ((E.FLOAT,), _constants(1)) for kind in REDUCTIONS},
    "Clip": (REAL, _clip),
    "PRelu": ((E.FLOAT,), _always),
    "Conv": (REAL, _rank(3, 5)),
    "ConvTranspose": ((E.FLOAT,), _rank(3, 5)),
    "MatMul": (REAL, _always),
    "com.microsoft::FusedMatMul": (REAL, _always),
    "Gemm": (REAL, _always),
    "MatMulInteger": (BYTES, _integer_matmul),
    "QLinearMatMul": (BYTES, _qlinear),
    "QLinearConv": (BYTES, _each(_qlinear, _rank(3, 5))),
    "MaxPool": (REAL, _each(_first_output, _rank(3, 5))),
    "AveragePool": (REAL, _each(_first_output, _rank(3, 5))),
    "GlobalMaxPool": (REAL, _rank(3, 5)),
    "GlobalAveragePool": (REAL, _rank(3, 5)),
    "BatchNormalization": ((E.FLOAT,), _batch),
    "LayerNormalization": ((E.FLOAT,), _layer),
    "com.microsoft::SkipLayerNormalization": ((E.FLOAT,), _skip),
    "LRN": ((E.FLOAT,), _lrn),
    "Softmax": (REAL, _softmax),
    "LogSoftmax": (REAL, _softmax),
    "Resize": ((E.FLOAT,), _resize),
    **{kind: ((E.FLOAT,), _recurrent(functions)) for kind, functions in DEFAULTS.items()},
    **dict.fromkeys(("Attention", f"{OWN}::SoftmaxAttention"), ((E.FLOAT,), _attention)),
    "Concat": ((*REAL, *BYTES), _at_least_one),
    "Cast": ((*REAL, E.INT32), _cast),
    "QuantizeLinear": ((E.FLOAT,), _quantize),
    "DynamicQuantizeLinear": ((E.FLOAT,), _generated),
    "DequantizeLinear": ((*BYTES, E.INT32), _dequantize),
    "Reshape": ((*REAL, *BYTES), _reshape),
    "Squeeze": ((*REAL, *BYTES), _constants(1)),
    "Unsqueeze": ((*REAL, *BYTES), _constants(1)),
    "Flatten": ((*REAL, *BYTES), _always),
    "Transpose": ((*REAL, *BYTES), _always),
    "Identity": ((*REAL, *BYTES), _always),
    "Dropout": (REAL, _dropout),
    "Slice": ((*REAL, *BYTES), _slice),
    "Split": ((*REAL, *BYTES), _constants(1)),
}
"""Per operator: the element types its first input may have, and what else it needs."""

LEFT: dict[str, str] = {
    "ReduceMax": "oneDNN's maximum of a row of minus infinities is the lowest finite number",
    "ReduceMin": "oneDNN's minimum of a row of infinities is the largest finite number",
    "Log": "oneDNN's logarithm is wrong by up to 4e-6, which is more than all of it for numbers near one",
    "Softplus": "oneDNN's result falls below zero for large negative numbers",
}
"""Operators that oneDNN has, and why they are left to others."""

LIGHT = FREE | {"Cast", "QuantizeLinear", "DequantizeLinear", "Concat"}
"""Operators that are worth a part only beside one that computes."""


def supported(node: Node, bfloat16: bool, integers: bool) -> No | None:
    """Whether oneDNN computes `node`. `bfloat16`, `integers`: whether this processor does these well."""
    entry = CLAIMS.get(node.kind)
    if entry is None:
        return No(LEFT.get(node.kind, f"{node.kind} is not among oneDNN's operators"))
    types, check = entry
    values = [v for v in (*node.inputs[:1], *node.outputs) if v is not None]
    if not node.inputs or node.inputs[0] is None:
        return No("its first input is absent")
    if any(v.elem is None for v in values):
        return No("the type of an input or output is not known")
    elem = values[0].elem
    if elem not in types:
        return No(f"{elem.text}: oneDNN's {node.op_type} takes {' and '.join(t.text for t in types)}")
    if elem is E.BFLOAT16 and not bfloat16:
        return No("this processor, or max_cpu_isa, has no bfloat16")
    if elem in BYTES and node.kind not in FREE and not integers:
        return No("without VNNI, oneDNN's sums of 8-bit products may saturate")
    if all(v.dead for v in node.outputs if v is not None):
        return No("nobody reads it")
    if node.inputs[0].const is not None and node.kind != "DequantizeLinear" and all(
            v is None or v.const is not None for v in node.inputs):
        return No("all of its inputs are constants")
    if elem is E.BFLOAT16 and any(v is not None and v.elem is not elem and v.elem in REAL
                                  for v in node.inputs) and node.kind != "Cast":
        return No("its inputs are of several types")
    return check(node)


def claim(node: Node, bfloat16: bool, integers: bool) -> No | None:
    """Whether `node` is taken: it is supported, and it computes, or a neighbour it is a view for does."""
    refusal = supported(node, bfloat16, integers)
    if refusal is not None or node.kind not in LIGHT:
        return refusal
    seen, stack = {node}, [node]
    while stack:
        at = stack.pop()
        near = [v.node for v in at.inputs if v is not None and v.node is not None]
        near += [reader for v in at.outputs if v is not None for reader in v.uses]
        for other in near:
            if other in seen or supported(other, bfloat16, integers) is not None:
                continue
            if other.kind not in LIGHT:
                return None
            seen.add(other)
            stack.append(other)
    return No("it only moves elements, and no neighbour computes with oneDNN")
