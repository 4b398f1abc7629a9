"""Diffusion networks in com.microsoft's forms: group normalization with swish and the sum before it,
convolutions with the channels last, gated Gelu, and sums of three."""

from __future__ import annotations

from ...ir import No
from ...optimize.pattern import rule
from ...optimize.rules.facts import array, rank
from ...optimize.rules.rotary import part_of

_LAST, _FIRST = [0, 2, 3, 1], [0, 3, 1, 2]
_NORM, _SKIP = "com.microsoft::GroupNorm", "com.microsoft::SkipGroupNorm"


@rule(lambda op, x, s, b: op.GroupNormalization(x, op.constant(s), op.constant(b)))
def fuse_group_norm(op, x, s, b, root):
    """GroupNormalization of images"""
    if rank(x) != 4 or root.version < 21:
        return No("it is no image, or scale and bias are those of groups")
    given = {"groups": root.attribute("num_groups"), "epsilon": root.attribute("epsilon"), "activation": 0}
    if not op.settings.option("group_norm_channels_last"):
        return op(_NORM)(x, s, b, **given, channels_last=0)
    return op.Transpose(op(_NORM)(op.Transpose(x, perm=_LAST), s, b, **given, channels_last=1), perm=_FIRST)


@rule(lambda op, x, s, b: [op.Swish(op(_NORM)(x, s, b, activation=0), alpha=1.0),
                           op.Swish(op.Transpose(op(_NORM)(x, s, b, activation=0)), alpha=1.0)])
def fuse_group_norm_swish(op, x, s, b, root):
    """Swish after GroupNorm"""
    moved = op.maker(root.inputs[0], "Transpose")
    made = (moved or root).inputs[0].node
    y = op.again(made, x, s, b, activation=1)
    return y if moved is None else op.again(moved, y)


@rule(lambda op, x, y, t, s, b: op(_NORM)(op.Transpose(op.keep(op.Add(x, y), t), perm=_LAST), s, b))
def fuse_skip_group_norm(op, x, y, t, s, b, root):
    """The sum before GroupNorm, which others may read too"""
    if t.shape is None or None in t.shape:
        return No("the shape is not known")
    by_channel = (*t.shape[:2], 1, 1)
    for a, skip in ((x, y), (y, x)):
        if a.shape == t.shape and skip.shape in (t.shape, by_channel):
            break
    else:
        return No("the terms are not of one shape, or one number for each channel")
    made, total = op(_SKIP)(op.Transpose(a, perm=_LAST), s, b, op.Transpose(skip, perm=_LAST), outputs=2,
                            **root.attrs)
    return {root.output: made, t: op.Transpose(total, perm=_FIRST)}


@rule(lambda op, x, w, b=None: op.Conv(x, op.constant(w), b))
def fuse_nhwc_conv(op, x, w, b, root):
    """A convolution of images"""
    if rank(x) != 4 or root.attribute("group") != 1 or (b is not None and array(b) is None):
        return No("it is no image, or falls into groups")
    y = op("com.microsoft::NhwcConv")(
        op.Transpose(x, perm=_LAST), op.constant(array(w).transpose(_LAST).copy(), name="weight"), b,
        **root.attrs)
    return op.Transpose(y, perm=_FIRST)


@rule(lambda op, a, g: op.Mul(a, op.Gelu(g, approximate="none")))
def fuse_bias_split_gelu(op, a, g):
    """The first half of x + a bias, times the Gelu of the second half"""
    left, right = part_of(a), part_of(g)
    total = op.maker(left.x, "Add", alone=False) if left is not None and right is not None else None
    if total is None or right.x is not left.x or left.x.graph_outputs:
        return No("it is no sum of which the second half gates the first")
    half = left.x.shape[-1] // 2
    if [left[1:], right[1:]] != [(0, half, 1), (half, 2 * half, 1)]:
        return No("it is no sum of which the second half gates the first")
    for x, b in (total.inputs, total.inputs[::-1]):
        if array(b) is not None and rank(b) == 1 and x.shape == total.output.shape:
            return op("com.microsoft::BiasSplitGelu")(x, b)
    return No("the addend is no constant vector along the last axis")


@rule(lambda op, x, b, y: op.Add(op.Add(op.MatMul(x, ...), op.constant(b)), y))
def fuse_bias_add(op, x, b, y, root):
    """A projection, its bias, and what was before it"""
    inner = next((op.maker(v, "Add") for v in root.inputs if v is not y), None)
    product = next((v for v in inner.inputs if v is not b), None) if inner is not None else None
    if product is None or rank(b) != 1 or rank(product) != 3 or product.shape != y.shape or None in y.shape:
        return No("it is no projection of rank 3 with a bias and another term of its shape")
    return op("com.microsoft::BiasAdd")(product, b, y)


@rule(lambda op, x, s, b: op.GroupNormalization(x, op.constant(s), op.constant(b)))
def expand_group_normalization(op, x, s, b, root):
    """InstanceNormalization of groups side by side, where the model's opset has none by channel"""
    if op.settings.opset >= 21 or root.version < 21 or rank(x) is None:
        return None
    groups, kind = root.attribute("num_groups"), array(s).dtype
    flat = op.Reshape(x, op.ints([0, groups, -1]))
    y = op.InstanceNormalization(flat, op.constant(array(s)[:groups] * 0 + kind.type(1)),
                                 op.constant(array(s)[:groups] * 0), epsilon=root.attribute("epsilon"))
    by_channel = (-1, *(1,) * (rank(x) - 2))
    y = op.Reshape(y, op.Shape(x))
    return op.Add(op.Mul(y, op.constant(array(s).reshape(by_channel))),
                  op.constant(array(b).reshape(by_channel)))


GROUPS = (fuse_group_norm, fuse_group_norm_swish)
SKIPS = (fuse_skip_group_norm,)
LEFT = (expand_group_normalization,)
