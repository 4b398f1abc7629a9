"""Functions of a model, at random: with attributes handed on to nodes, to branches and to other functions."""

from __future__ import annotations

import random
from collections.abc import Sequence

import onnx
from onnx import helper

DOMAIN = "test.scopes"


def defined(r: random.Random, functions: Sequence[onnx.FunctionProto]) -> onnx.FunctionProto:
    """A function of a float tensor to one of its shape; it may call `functions`, its attribute handed on."""
    name = f"f{len(functions)}"
    # the same names in every function, and those of inputs outside
    nodes, last = [], "x0"
    for k in range(r.randint(1, 4)):
        out, kind = f"v{k}", r.choice(["act", "call", "constant", "branch", "plain"])
        if kind == "act":
            node = helper.make_node(r.choice(["LeakyRelu", "Elu", "ThresholdedRelu"]), [last], [out])
            node.attribute.append(_handed("alpha"))
            nodes.append(node)
        elif kind == "call" and functions:
            node = helper.make_node(r.choice(functions).name, [last], [out], domain=DOMAIN)
            if r.random() < 0.7:
                node.attribute.append(_handed("alpha"))
            nodes.append(node)
        elif kind == "constant":
            node = helper.make_node("Constant", [], [f"c{k}"])
            node.attribute.append(_handed("value_float", "alpha"))
            nodes += [node, helper.make_node("Mul", [last, f"c{k}"], [out])]
        elif kind == "branch":
            inner = helper.make_node("LeakyRelu", [last], ["b"])
            inner.attribute.append(_handed("alpha"))
            y = helper.make_tensor_value_info("b", 1, None)
            one = helper.make_graph([inner], "one", [], [y])
            two = helper.make_graph([helper.make_node("Neg", ["x0"], ["b"])], "two", [], [y])
            nodes += [
                helper.make_node("ReduceSum", [last], [f"t{k}"], keepdims=0),
                helper.make_node("Cast", [f"t{k}"], [f"g{k}"], to=onnx.TensorProto.BOOL),
                helper.make_node("If", [f"g{k}"], [out], then_branch=one, else_branch=two),
            ]
        else:
            nodes.append(helper.make_node(r.choice(["Sin", "Neg", "Identity"]), [last], [out]))
        last = out
    default = helper.make_attribute("alpha", r.choice([0.1, 0.75]))
    return helper.make_function(
        DOMAIN,
        name,
        ["x0"],
        [last],
        nodes,
        [helper.make_opsetid("", 18), helper.make_opsetid(DOMAIN, 1)],
        attributes=[],
        attribute_protos=[default],
    )


def _handed(name: str, source: str | None = None) -> onnx.AttributeProto:
    return onnx.AttributeProto(name=name, ref_attr_name=source or name, type=onnx.AttributeProto.FLOAT)
