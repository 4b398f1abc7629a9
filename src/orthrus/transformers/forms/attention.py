"""ONNX's Attention in com.microsoft's forms: Attention with packed weights where queries, keys and values are
projected from one input, with the earlier keys and values packed too where they are; else MultiHeadAttention;
and written out again where neither fits."""

from __future__ import annotations

import logging
import math

import numpy as np

from ...ir import ElementType, No, Value
from ...optimize.dimensions import PREFIX
from ...optimize.pattern import number, rule
from ...optimize.rules.facts import array, ints, permutation, rank
from ...records import dataclass
from ..fusion_options import AttentionMaskFormat
from .masks import Flag, meaning

log = logging.getLogger("orthrus")
_LOWEST = float(np.finfo(np.float32).min)
_EXCLUDES = -1000.0
HEADS = [0, 2, 1, 3]
_UNPACKED = frozenset({"mmdit", "sam2"})
"""Model types whose attentions are MultiHeadAttentions, also where one input is projected to all three."""


@rule(lambda op, q, k, v, m=None: op.Attention(q, k, v, m))
def fuse_packed_attention(op, q, k, v, m, root):
    """Queries, keys and values that one input is projected to, for each head"""
    made = _attention(op, q, k, v, m, root)
    if isinstance(made, No):
        return made
    return made[0] if rank(q) == 3 else _by_head(op, *made, root)


@rule(lambda op, q, k, v, pk, nk, pv, nv, a, b, m=None: op.Attention(
    q, op.keep(op.Concat(pk, nk, axis=a), k), op.keep(op.Concat(pv, nv, axis=b), v), m))
def fuse_packed_attention_past(op, q, k, v, pk, nk, pv, nv, a, b, m, root):
    """The same where the earlier keys and values are the halves of one tensor, and all of them another"""
    past = _half(op, pk, 0)
    if past is None or _half(op, pv, 1) is not past or {a, b} - {2, -2} or {k, v} & {nk, nv}:
        return No("the earlier keys and values are not handed in as one tensor")
    m, causal = _without_causality(m, pk.shape[2], k.shape[2])
    made = _attention(op, q, nk, nv, m, root, past, causal)
    if isinstance(made, No):
        return made
    (y, whole), heads = made
    found = {root.output: _by_head(op, y, heads, root)}
    present = _joined(k, v)
    return found if present is None else {**found, present: whole}


def _half(op, value, which):
    """The tensor [2, batch, heads, sequence, size] of which `value` is a half; None where it is none."""
    node = op.maker(value, "Squeeze", "Gather", alone=False)
    if node is None or ints(node.inputs[1]) != ([0] if node.op_type == "Squeeze" else [which]):
        return None
    whole = node.inputs[0]
    if node.op_type == "Squeeze":
        split = whole.node
        if split is None or split.kind != "Split" or split.attribute("axis") or \
                split.outputs[which] is not whole:
            return None
        whole = split.inputs[0]
    elif node.attribute("axis"):
        return None
    return whole if rank(whole) == 5 and whole.shape[0] == 2 and rank(value) == 4 else None


def _joined(k, v):
    """The output of the model that is keys and values put one behind the other; None where there is none."""
    for one in k.uses:
        for pair in one.output.uses if one.op_type == "Unsqueeze" and ints(one.inputs[1]) == [0] else ():
            other = pair.inputs[1].node if pair.op_type == "Concat" and len(pair.inputs) == 2 else None
            if (
                other is not None
                and other.op_type == "Unsqueeze"
                and other.inputs[0] is v
                and ints(other.inputs[1]) == [0]
                and pair.inputs[0] is one.output
                and pair.attribute("axis") in (0, -5)
                and not pair.output.uses
            ):
                return pair.output
    return None


def _without_causality(m, before, total):
    """A mask of scores without the part that excludes the keys behind each query, None where nothing else is
    masked; and whether there is such a part. `before` of `total` keys come before the queries."""
    while m is not None and m.node is not None and m.node.kind == "Expand":
        m = m.node.inputs[0]
    made = m.node if m is not None else None
    terms = () if made is None else made.inputs if made.kind == "Add" else (m,)
    for at, term in enumerate(terms):
        where = term.node
        if where is None or where.kind != "Where" or not _is_causal(where.inputs[0], before, total):
            continue
        kept, instead = number(where.inputs[1]), number(where.inputs[2])
        if instead is None or instead > _EXCLUDES or (kept != 0 and len(terms) > 1):
            continue
        return (terms[1 - at] if len(terms) > 1 else None if kept == 0 else where.inputs[1]), True
    return m, False


def _is_causal(condition, before, total):
    """Whether a condition [1, 1, queries, total] is a part of a constant lower triangle: a query's row is as
    far down in it as keys stand `before` it."""
    if condition.node is not None and condition.node.kind == "Cast":
        condition = condition.node.inputs[0]
    for axis, first in ((3, 0), (2, before)):
        node = condition.node
        if node is None or node.kind != "Slice" or len(node.inputs) < 4 or ints(node.inputs[3]) != [axis]:
            return False
        steps = node.inputs[4] if len(node.inputs) > 4 else None
        bounds = [_told(v) for v in node.inputs[1:3]]
        if bounds != [first, total] or (steps is not None and ints(steps) != [1]):
            return False
        condition = node.inputs[0]
    table = array(condition)
    return table is not None and table.ndim == 4 and table.shape[:2] == (1, 1) and \
        np.array_equal(table[0, 0] != 0, np.tri(*table.shape[2:], dtype=bool))


def _told(value):
    """What is known of an integer in a vector of one: itself, or the name of a dimension."""
    known = ints(value) or list(value.content or ())
    return known[0] if len(known) == 1 else None


def _attention(op, q, k, v, m, root, past=None, causal=False):
    """com.microsoft's Attention, and all keys and values behind it where some are there before, `past`; and
    the number of heads. `k` and `v` are the new ones."""
    heads = _heads(root)
    if isinstance(heads, No):
        return heads
    asked = op.settings
    if asked.option("use_multi_head_attention") or asked.model_type in _UNPACKED:
        return No("MultiHeadAttention is asked for")
    if asked.num_heads and asked.num_heads != heads:
        log.warning("%s has %d heads, not %d as given; it keeps its own", root.label, heads, asked.num_heads)
    packed = _split_once(op, q, k, v) or _packed(op, q, k, v)
    if isinstance(packed, No):
        return packed
    x, weights, bias, sizes = packed
    mask, bias_of_scores, given = masks(op, m, root, heads)
    if isinstance(mask, No):
        return mask
    if past is not None and bias_of_scores is not None:
        return No("Attention takes no earlier keys where a mask is added to the scores")
    made = op("com.microsoft::Attention")(
        x, weights, bias, mask, past, bias_of_scores, num_heads=heads, **given,
        unidirectional=1 if causal or root.attribute("is_causal") else None,
        qkv_hidden_sizes=None if sizes[0] == sizes[1] == sizes[2] else list(sizes),
        outputs=1 if past is None else 2)
    return made, heads


@rule(lambda op, q, k, v, m=None: op.Attention(q, k, v, m))
def fuse_multi_head_attention(op, q, k, v, m, root):
    """Any attention of as many key heads as query heads"""
    heads = _heads(root)
    if isinstance(heads, No):
        return heads
    mask, bias_of_scores, given = masks(op, m, root, heads)
    if isinstance(mask, No):
        return mask
    by_head = rank(q) == 4
    parts, bias = _apart(op, (q, k, v), bool(op.settings.option("disable_multi_head_attention_bias")))
    if rank(parts[0]) == 4:
        parts = (op.Reshape(op.Transpose(q, perm=HEADS), op.ints([0, 0, -1])), k, v)
    y = op("com.microsoft::MultiHeadAttention")(
        *parts, bias, mask, bias_of_scores, num_heads=heads, **given,
        unidirectional=1 if root.attribute("is_causal") else None)
    return _by_head(op, y, heads, root) if by_head else y


def _by_head(op, y, heads, root):
    """[batch, sequence, heads * size] as [batch, heads, sequence, size]"""
    return op.Transpose(op.Reshape(y, op.ints([0, 0, heads, root.output.shape[3]])), perm=HEADS)


def _heads(root):
    """How many heads an Attention without earlier keys has, as many of keys as of queries; No where it has
    another form."""
    found = heads_of(root)
    if isinstance(found, No):
        return found
    return found[0] if found[0] == found[1] else No("it has fewer key heads than query heads")


def heads_of(root, cached=False):
    """How many heads the queries and the keys of an Attention have that com.microsoft's forms take; No where
    they do not. With `cached`, it may have earlier keys and give all of them on."""
    q, k = root.inputs[:2]
    if len(root.inputs) > (6 if cached else 4) or len(root.outputs) > (3 if cached else 1):
        return No("it has earlier keys, or gives them on")
    if root.attribute("softcap") or root.attribute("qk_matmul_output_mode"):
        return No("its scores are capped or read")
    if rank(q) == 3:
        heads, keys = root.attribute("q_num_heads"), root.attribute("kv_num_heads")
    else:
        heads, keys = q.shape[1], k.shape[1]
    if not isinstance(heads, int) or not isinstance(keys, int) or not keys or heads % keys:
        return No("the numbers of heads are not known, or do not fit")
    size = q.shape[-1]
    if not isinstance(size, int) or (rank(q) == 4 and not isinstance(root.output.shape[3], int)):
        return No("the size of the heads is not known")
    return heads, keys


def _scale(root, heads):
    """The scale, where it is not what the operator takes anyway."""
    scale, q = root.attribute("scale"), root.inputs[0]
    size = q.shape[-1] // (heads if rank(q) == 3 else 1)
    usual = 1 / math.sqrt(size)
    return None if scale is None or abs(scale - usual) < 1e-6 * usual else float(scale)


def _made(op, value, *names):
    """The maker of `value`, if it is one of these operators and nothing else computes with its result."""
    node = op.maker(value, *names, alone=False)
    if node is None or value.graph_outputs:
        return None
    readers = sum(count for user, count in value.uses.items() if not _measures(user))
    return node if readers == 1 else None


def _measures(node, depth=4):
    """Whether only the shape of what a node makes is asked for."""
    if node.op_type == "Shape":
        return True
    moves = node.op_type in ("Reshape", "Transpose") and not node.output.graph_outputs
    return moves and depth > 0 and all(_measures(user, depth - 1) for user in node.output.uses)


def _into_heads(op, value):
    """The Reshape that splits an axis into the heads of `value` [batch, heads, sequence, size]; None where it
    comes from elsewhere."""
    turned = _made(op, value, "Transpose")
    if turned is None or permutation(turned) != HEADS:
        return None
    return _made(op, turned.inputs[0], "Reshape")


def _without_bias(op, value):
    """`value` before a constant vector along its last axis was added, and the vector; None for it where none
    was."""
    node = _made(op, value, "Add")
    if node is not None:
        for bias, x in (node.inputs, node.inputs[::-1]):
            if array(bias) is not None and rank(bias) == 1 and rank(x) in (2, 3) and \
                    bias.shape[0] == x.shape[-1]:
                return x, bias
    return value, None


@dataclass(frozen=True)
class _Projection:
    """x @ weights + bias (None: none); `shape`: to what the result was reshaped, where it was, to split it
    into heads."""

    x: Value
    weights: np.ndarray
    bias: Value | None
    shape: Value | None = None


def _projection(op, value):
    """What makes queries, keys or values, or None."""
    shape = None
    if rank(value) == 4:
        split = _into_heads(op, value)
        if split is None:
            return None
        value, shape = split.inputs
    value, bias = _without_bias(op, value)
    node = _made(op, value, "MatMul", "Gemm")
    if node is None or rank(node.inputs[0]) not in ((3,) if shape is None else (2, 3)):
        return None
    weights = array(node.inputs[1])
    if weights is None or weights.ndim != 2:
        return None
    if node.op_type == "Gemm":
        factors = [node.attribute(name) for name in ("alpha", "beta", "transA")]
        third = node.inputs[2] if len(node.inputs) > 2 else None
        if factors != [1.0, 1.0, 0] or (third is not None and (bias is not None or array(third) is None)):
            return None
        bias = bias if third is None else third
        weights = weights.T if node.attribute("transB") else weights
    if bias is not None and bias.shape != weights.shape[1:]:
        return None
    return _Projection(node.inputs[0], weights, bias, shape)


def _packed(op, q, k, v):
    """The input, the weights side by side, the bias and the three widths."""
    found = [_projection(op, value) for value in (q, k, v)]
    if any(f is None for f in found):
        return No("queries, keys and values are not projected by constant weights")
    if len({f.x for f in found}) > 1:
        return No("queries, keys and values have different inputs")
    sizes = [f.weights.shape[1] for f in found]
    if sizes[0] != sizes[1]:
        return No("queries and keys differ in width")
    x = found[0].x
    if found[0].shape is not None:
        if not isinstance(x.shape[-1], int):
            return No("the width of the input is not known")
        x = _unsplit(op, x, found[0].shape)
    biases = [np.zeros(f.weights.shape[1], f.weights.dtype) if f.bias is None else array(f.bias)
              for f in found]
    return (x, op.constant(np.concatenate([f.weights for f in found], 1), name="qkv_weight"),
            op.constant(np.concatenate(biases), name="qkv_bias"), sizes)


def _split_once(op, q, k, v):
    """The same of one projection that a Split divides into three equal parts; None where it is none."""
    if rank(q) == 4:
        split = [_into_heads(op, value) for value in (q, k, v)]
        if None in split or any(rank(node.inputs[0]) != 3 for node in split):
            return None
        q, k, v = (node.inputs[0] for node in split)
    made = q.node
    if made is None or made.op_type != "Split" or made.domain or list(made.outputs) != [q, k, v]:
        return None
    found = _projection(op, made.inputs[0])
    if found is None or made.attribute("axis") not in (-1, 2):
        return None
    width = found.weights.shape[1]
    if width % 3 or (len(made.inputs) > 1 and ints(made.inputs[1]) != [width // 3] * 3):
        return None
    bias = found.bias
    if bias is None:
        bias = op.constant(np.zeros(width, found.weights.dtype), name="qkv_bias")
    return found.x, op.constant(found.weights, name="qkv_weight"), bias, [width // 3] * 3


def _apart(op, values, biased):
    """Queries, keys and values side by side, before their bias unless they stay `biased`, and the bias of all
    three, None without one. Values that are not known to be split from the last axis stay as they are."""
    found = [_merged(op, value, biased) for value in values]
    if None in found or any(not isinstance(x.shape[-1], int) for x, _ in found):
        return values, None
    parts = tuple(x for x, _ in found)
    if not any(bias for _, bias in found):
        return parts, None
    joined = [np.zeros(x.shape[-1], x.elem.numpy) if b is None else array(b) for x, b in found]
    return parts, op.constant(np.concatenate(joined), name="qkv_bias")


def _merged(op, value, biased):
    """[batch, sequence, heads * size], and the bias that was added to it; None where the heads come from
    elsewhere."""
    split = None
    if rank(value) == 4:
        split = _into_heads(op, value)
        if split is None:
            return None
        value = split.inputs[0]
    x, bias = (value, None) if biased else _without_bias(op, value)
    if split is None:
        return x, bias
    size = split.output.shape[2:]
    if not all(isinstance(d, int) for d in size) or x.shape is None or x.shape[-1] != size[0] * size[1]:
        return None
    return _unsplit(op, x, split.inputs[1]), bias


def _unsplit(op, x, shape):
    """`x`, whose last axis is split by a Reshape to `shape` after it was projected, as [batch, sequence,
    width]."""
    leading = op.Slice(shape, op.ints([0]), op.ints([2]), op.ints([0]))
    return op.Reshape(x, op.Concat(leading, op.ints([x.shape[-1]]), axis=0))


def masks(op, m, root, heads):
    """The mask of padding [batch, keys] or [batch], what is added to the scores, and the attributes that go
    with them; No in the first place where the mask has no form."""
    given = {"scale": _scale(root, heads)}
    if m is None:
        return None, None, given
    fact = meaning(m)
    n = rank(m)
    if isinstance(fact, bool | int | float) and fact in (True, 0) and (fact is True or m.elem.floating):
        return None, None, given
    if isinstance(fact, Flag) and (fact.row, fact.column) == (-4, -1) and n == 4 and _covers(m, fact.source):
        lowest = _excluding(fact.zero, fact.one)
        inverted = lowest is None
        lowest = _excluding(fact.one, fact.zero) if inverted else lowest
        if lowest is not None:
            return _padding(op, fact.source, inverted), None, {**given, "mask_filter_value": lowest}
    bias = added(op, m, root)
    return (bias, None, given) if isinstance(bias, No) else (None, bias, given)


def _covers(m, source):
    """Whether nothing known speaks against a mask's keys being all columns of its flags."""
    keys, columns = (None if isinstance(d, str) and d.startswith(PREFIX) else d
                     for d in (m.shape[-1], source.shape[1]))
    return keys is None or columns is None or keys == columns


def _excluding(excluded, kept):
    """What a mask adds to the scores it excludes, where these two do exclude and keep; None where not."""
    if excluded is False and kept is True:
        return _LOWEST
    if isinstance(kept, bool) or kept != 0 or not excluded <= _EXCLUDES:
        return None
    return max(float(excluded), _LOWEST)


def _padding(op, source, inverted):
    """Flags as int32, or how many of each text are set; inverted ones mark what is padding."""
    wanted = op.settings.options.chosen_mask_format
    if wanted == AttentionMaskFormat.NoMask:
        return None
    if inverted:
        source = op.Not(source if source.elem == ElementType.BOOL else
                        op.Cast(source, to=int(ElementType.BOOL)))
    flags = source if source.elem == ElementType.INT32 else op.Cast(source, to=int(ElementType.INT32))
    return op.ReduceSum(flags, op.ints([1]), keepdims=0) if wanted == AttentionMaskFormat.MaskIndexEnd else \
        flags


def added(op, m, root):
    """A mask as [batch or 1, heads or 1, queries, keys] to be added to the scores."""
    n, q = rank(m), root.inputs[0]
    if n is None or n < 2 or m.elem is None:
        return No("the rank of the mask is not known")
    if m.elem == ElementType.BOOL:
        zero, lowest = (np.asarray(v, q.elem.numpy) for v in (0, np.finfo(np.float16).min
                        if q.elem == ElementType.FLOAT16 else _LOWEST))
        m = op.Where(m, op.constant(zero), op.constant(lowest))
    if n < 4:
        m = op.Unsqueeze(m, op.ints(range(4 - n)))
    queries = -2
    if m.shape[-2] != q.shape[queries] or m.shape[-2] is None:
        length = op.Slice(op.Shape(q), op.ints([rank(q) - 2]), op.ints([rank(q) - 1]), op.ints([0]))
        m = op.Expand(m, op.Concat(op.ints([1, 1]), length, op.ints([1]), axis=0))
    return m


@rule(lambda op, q, k, v, m=None: op.Attention(q, k, v, m))
def expand_attention(op, q, k, v, m, root):
    """softmax(q k' * scale + mask) v, where the model's opset has no Attention"""
    if op.settings.opset >= 23 or len(root.inputs) > 4 or len(root.outputs) > 1:
        return None
    if root.attribute("softcap") or root.attribute("is_causal") or root.attribute("qk_matmul_output_mode"):
        return No("it does more than add a mask")
    heads = [root.attribute(name) for name in ("q_num_heads", "kv_num_heads", "kv_num_heads")]
    flat = rank(q) == 3
    if flat:
        q, k, v = (op.Transpose(op.Reshape(x, op.ints([0, 0, n, -1])), perm=HEADS)
                   for x, n in zip((q, k, v), heads, strict=True))
    k, v = (repeated(op, x, q) for x in (k, v))
    if k is None or v is None:
        return No("the heads are not known")
    scale = root.attribute("scale")
    scale = 1 / math.sqrt(q.shape[3]) if scale is None else scale
    scores, precise = op.MatMul(q, op.Transpose(k, perm=[0, 1, 3, 2])), root.attribute("softmax_precision")
    inner = q.elem if precise is None else ElementType(precise)
    scores = op.Mul(scores if inner == q.elem else op.Cast(scores, to=int(inner)), float(scale))
    if m is not None:
        if m.elem == ElementType.BOOL:
            m = op.Where(m, *(op.constant(np.asarray(low, inner.numpy)) for low in (0, -np.inf)))
        scores = op.Add(scores, m if m.elem == inner else op.Cast(m, to=int(inner)))
    weights = op.Softmax(scores, axis=-1)
    y = op.MatMul(weights if inner == q.elem else op.Cast(weights, to=int(q.elem)), v)
    return op.Reshape(op.Transpose(y, perm=HEADS), op.ints([0, 0, -1])) if flat else y


def repeated(op, x, q):
    """Keys or values of fewer heads, each as often as query heads share it; None where that is not known."""
    n, heads = x.shape[1], q.shape[1]
    if n == heads and n is not None:
        return x
    if not isinstance(n, int) or not isinstance(heads, int) or not isinstance(x.shape[3], int):
        return None
    wide = op.Expand(op.Unsqueeze(x, op.ints([2])), op.ints([1, 1, heads // n, 1, 1]))
    return op.Reshape(wide, op.ints([0, heads, -1, x.shape[3]]))
