"""Normalizations in com.microsoft's forms: with the residual sum before them, and the bias of that sum."""

from __future__ import annotations

from ...ir import No
from ...optimize.pattern import rule
from ...optimize.rules.facts import array, rank, same_type

_SKIP = "com.microsoft::SkipLayerNormalization"
_SKIP_RMS = "com.microsoft::SkipSimplifiedLayerNormalization"


@rule(lambda op, x, g: op.RMSNormalization(x, g))
def fuse_simplified_layer_normalization(op, x, g, root):
    """RMSNormalization under the name it had before ONNX had it"""
    return op.SimplifiedLayerNormalization(x, g, epsilon=root.attribute("epsilon"),
                                           axis=root.attribute("axis"),
                                           stash_type=root.attribute("stash_type"))


@rule(lambda op, x, b, y, g, t=None: [op(_SKIP)(op.Add(x, op.constant(b)), y, g, t),
                                      op(_SKIP)(y, op.Add(x, op.constant(b)), g, t)])
def fuse_bias_skip_layer_normalization(op, x, b, y, g, t, root):
    """A bias of one of the terms goes into the SkipLayerNormalization. That term stands first where it can;
    the other may be added to every text."""
    return _with_bias(op, x, b, y, (g, t), root)


@rule(lambda op, x, b, y, g: [op(_SKIP_RMS)(op.Add(x, op.constant(b)), y, g),
                              op(_SKIP_RMS)(y, op.Add(x, op.constant(b)), g)])
def fuse_bias_skip_rms_normalization(op, x, b, y, g, root):
    """The same for SkipSimplifiedLayerNormalization"""
    return _with_bias(op, x, b, y, (g,), root)


def _with_bias(op, x, b, y, weights, root):
    given = array(b)
    if given is None or given.ndim != 1 or rank(x) != rank(y) or x.shape[-1] != given.shape[0]:
        return No("the addend is no constant vector along the last axis")
    terms = (y, x) if root.inputs[0] is y and not same_type(x, y) else (x, y)
    made = op(root.kind)(*terms, *weights, b, epsilon=root.attribute("epsilon"), outputs=len(root.outputs))
    if len(root.outputs) == 1:
        return made
    return {old: new for old, new in zip(root.outputs, made, strict=True) if old is not None}
