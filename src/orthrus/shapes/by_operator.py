"""Rules of shapes by operator.

In: a node. Out: the rule that says its outputs' shapes. The invariant: a rule computes alike with numbers and
with expressions.
"""

from __future__ import annotations

from collections.abc import Callable

from ..ir import OWN, Node
from .contrib import CONTRIB
from .facts import Facts, Shapes, elementwise
from .rules import ML, RULES

_BY_DOMAIN = {"": RULES, "ai.onnx.ml": ML, "com.microsoft": CONTRIB,
              OWN: {"SoftmaxAttention": RULES["Attention"]}}


def rule_of(node: Node) -> Callable[[Facts], Shapes] | None:
    """The rule for the shapes of `node`'s outputs, None where its definition or ONNX says them."""
    rule = _BY_DOMAIN.get(node.domain, {}).get(node.op_type)
    return elementwise if rule is None and node.op is not None and node.op.broadcasts else rule
