"""Attention exporters took apart: softmax(q k' * scale + mask) v, with earlier keys and values, grouped
heads, and the movement that splits and merges the heads.

The target is ONNX's Attention where there is no mask, else SoftmaxAttention: of a row whose every key is
excluded, the one makes 0, the other NaN, as Softmax does. Both take tensors of rank 4 [batch, heads,
sequence, size], or of rank 3 with the heads side by side.
"""

from __future__ import annotations

import numpy as np

from ...ir import OWN, ElementType, No, Node, Value
from ...records import dataclass
from ..pattern import number, rule
from .facts import differ, ints, permutation, rank, told

_SOFTMAX = f"{OWN}::SoftmaxAttention"
_KINDS = ("Attention", _SOFTMAX)
_EXCLUDING, _ABSORBING = -1e4, -1e30
"""Up to which number a score in its place is one that does not count, and from which on it takes up whatever
is added to it."""
_SPLIT = [0, 2, 1, 3]
_HALVES = (ElementType.FLOAT16, ElementType.BFLOAT16)


@dataclass
class _Scores:
    """softmax's argument, followed up to the product: q k' * scale + the sum of the masks, the last first. A
    mask is an addend, or a Where that excludes. `late`: what was cast before the last of these steps."""

    product: Node
    scale: float
    masks: list[Value | Node]
    late: bool


@rule(lambda op, p, v: op.MatMul(p, v))
def fuse_attention(op, p, v, root):
    """softmax(q @ k' * scale + mask) @ v"""
    softmax, precision, guarded = _softmax(op, p)
    if softmax is None:
        return None
    if softmax.version < 13 or softmax.attribute("axis") not in (-1, (rank(softmax.output) or 0) - 1):
        return No("the softmax is not along the last axis")
    scores = _scores(op, softmax.inputs[0])
    if isinstance(scores, No):
        return scores
    elem, narrow, late, raised = root.output.elem, None, scores.late, False
    if scores.product.output.elem != elem:
        if precision is None or scores.product.output.elem != ElementType.FLOAT or elem not in _HALVES:
            return No("the softmax is cast back but not forth")
        whole, late = _before_cast(op, v, ElementType.FLOAT), True
        raised = whole is None
        if whole is not None:
            v, precision, narrow = whole, None, elem
    q, by_q = _unscaled(op, scores.product.inputs[0])
    kt, by_k = _unscaled(op, scores.product.inputs[1])
    scale, n = scores.scale * by_q * by_k, rank(q)
    if n not in (3, 4) or rank(kt) != n or rank(v) != n:
        return No("queries, keys and values are not of rank 3 or 4")
    below = _before_cast(op, kt, elem) if raised else None
    k = _transposed(op, kt if below is None else below, elem if raised and below is None else None)
    if raised:
        q = _before_cast(op, q, elem)
        if q is None or (k is not None and k.elem != elem):
            return No("the softmax is cast back but not forth")
    elif k is None and _wide(op) and n == 4 and _merges(root):
        k = op.Transpose(kt, perm=[0, 1, 3, 2])
    if k is None or not 0 < scale < np.inf:
        return No("the keys are not transposed, or the scale is not positive")
    if late and (reason := _needs_more(op, bool(scores.masks) and narrow is None, q, k, v)) is not None:
        return No(reason)
    if n == 4:
        k, v = _ungrouped(op, k, v)
    if (reason := _misfit(q, k, v)) is not None:
        return No(reason)
    masks = _masks(op, scores, n, k)
    if isinstance(masks, No):
        return masks
    heads = 1 if n == 3 else None
    same = {"scale": float(scale), "softmax_precision": precision, "q_num_heads": heads,
            "kv_num_heads": heads}
    bias, keep = masks
    if _loose(op) or (masks == (None, None) and not guarded):
        y = op.Attention(q, k, v, keep if bias is None else bias, **same)
        return y if narrow is None else op.Cast(y, to=int(narrow))
    return op(_SOFTMAX)(q, k, v, bias, None, None, keep, guarded=int(guarded) or None, **same)


@rule(lambda op, s: op.Reshape(op.MatMul(...), s), lambda op, s: op.Reshape(op.Attention(...), s),
      lambda op, s: op.Reshape(op(_SOFTMAX)(...), s))
def push_split_over_products(op, s, root):
    """matmul(a, b) [batch * heads, m, n], split into [batch, heads, m, n], is the product of what `a` and `b`
    were before their batch and heads were joined"""
    x, split = root.inputs[0], root.output.shape
    if rank(x) != 3 or split is None or len(split) != 4 or None in split[:2]:
        return None
    if None in x.shape[1:] or split[2:] != x.shape[1:]:
        return No("it is not known that the matrices stay as they are")
    made = _apart(op, x, split[:2])
    return No("batch and heads were not joined before") if made is None else made


def _apart(op, value, lead):
    """What `value` [batch * heads, m, n] is with batch and heads, the dimensions `lead`, apart; None where
    they never were."""
    node = op.maker(value, "Reshape", "Transpose", alone=False) or op.maker(
        value, "MatMul", "Softmax", "Mul", "Div", "Cast", *_KINDS)
    if node is None or rank(value) != 3:
        return None
    if node.op_type == "Reshape":
        x = node.inputs[0]
        kept = rank(x) == 4 and None not in x.shape and x.shape == (*lead, *value.shape[1:])
        return x if kept else None
    if node.op_type == "Transpose" and permutation(node) != [0, 2, 1]:
        return None
    if node.op_type == "Softmax" and (node.version < 13 or node.attribute("axis") not in (-1, 2)):
        return None
    if node.kind in _KINDS and (
        len(node.inputs) > 3 or len(node.outputs) > 1
        or {node.attribute("q_num_heads"), node.attribute("kv_num_heads")} != {1}
    ):
        return None
    parts = [v if number(v) is not None and v.const.ndim < 2 else _apart(op, v, lead) for v in node.inputs]
    if any(part is None for part in parts):
        return None
    if node.op_type == "Transpose":
        return op.Transpose(*parts, perm=[0, 1, 3, 2])
    if node.kind in _KINDS:
        return op.again(node, *parts, q_num_heads=None, kv_num_heads=None)
    return op.Softmax(*parts, axis=-1) if node.op_type == "Softmax" else op.again(node, *parts)


@rule(lambda op, a, b, axis: op.Shape(op.Concat(a, b, axis=axis)), shared=True)
def push_shape_over_joined_keys(op, a, b, axis, root):
    """The shape of earlier keys joined with new ones, from theirs: what the mask is computed from must not
    wait for the present."""
    joined = root.inputs[0]
    if not any(user.kind in _KINDS for user in joined.uses):
        return None
    n = rank(joined)
    if n is None or rank(b) != n:
        return No("the rank is not known")
    chosen = range(n)[root.attribute("start"):root.attrs.get("end")]
    along = [int(i == axis % n) for i in chosen]
    sizes = {"start": root.attrs.get("start"), "end": root.attrs.get("end")}
    return op.Add(op.Shape(a, **sizes), op.Mul(op.Shape(b, **sizes), op.ints(along)))


@rule(lambda op, q, k, v, pk, nk, pv, nv, a, b, m=None: op.Attention(
    q, op.keep(op.Concat(pk, nk, axis=a), k), op.keep(op.Concat(pv, nv, axis=b), v), m),
    lambda op, q, k, v, pk, nk, pv, nv, a, b, m=None, c=None: op(_SOFTMAX)(
    q, op.keep(op.Concat(pk, nk, axis=a), k), op.keep(op.Concat(pv, nv, axis=b), v), m, None, None, c))
def fuse_attention_past(op, q, k, v, pk, nk, pv, nv, a, b, m, c, root):
    """Earlier keys and values joined with new ones are the past; the joined ones, where somebody reads them,
    the present."""
    if (
        any(rank(x) != 4 for x in (q, pk, nk, pv, nv))
        or a not in (2, -2)
        or b not in (2, -2)
        or len(root.outputs) > 1
    ):
        return No("keys and values are not joined along the sequence")
    if pk.node is not None and pk.const is None:
        return No("the earlier keys are computed, not handed in")
    if (
        not any(user is not root for x in (k, v) for user in x.uses)
        and not k.graph_outputs
        and not v.graph_outputs
    ):
        return op(root.kind)(q, nk, nv, m, pk, pv, c, **root.attrs)
    y, present_k, present_v = op(root.kind)(q, nk, nv, m, pk, pv, c, outputs=3, **root.attrs)
    return {root.output: y, k: present_k, v: present_v}


def _loose(op):
    """Whether Attention may stand for parts that have other results where every key is excluded."""
    return op.settings is not None and op.settings.loose_masks


def _wide(op):
    """Whether Attention may stand for parts whose scores it has in float32, and turn keys for it."""
    return op.settings is not None and op.settings.wide_attention


def _needs_more(op, mixed, q, k, v):
    """Why an attention whose scores are wider than its result, or cast on the way to the softmax, is not
    joined; `mixed`: with a mask of the wider type."""
    if not _wide(op):
        return "its scores would be rounded where the parts have them in float32"
    if mixed:
        return "a mask is added in another type"
    if any(rank(x) != 4 or not isinstance(x.shape[3], int) for x in (q, k, v)) or q.shape[1] != k.shape[1]:
        return "the heads do not fit the form that has float32's scores"
    return None


def _merges(root):
    """Whether what a product makes goes on as [batch, sequence, heads, size]."""
    uses = list(root.output.uses)
    return len(uses) == 1 and uses[0].op_type == "Transpose" and permutation(uses[0]) == _SPLIT


def _softmax(op, p):
    """The Softmax behind `p`, the type it works in where casts surround it, and whether 0 stands for weights
    that are NaN."""
    precision = None
    cast = op.maker(p, "Cast")
    if cast is not None:
        p = cast.inputs[0]
        if p.elem != ElementType.FLOAT:
            return None, None, False
        precision = int(ElementType.FLOAT)
    guard = op.maker(p, "Where")
    if guard is not None and number(guard.inputs[1]) == 0:
        test, kept = op.maker(guard.inputs[0], "IsNaN"), guard.inputs[2]
        if test is None or test.inputs[0] is not kept or len(kept.uses) != 2 or kept.graph_outputs:
            return None, None, False
        return op.maker(kept, "Softmax", alone=False), precision, True
    return op.maker(p, "Softmax"), precision, False


def _scores(op, x):
    scale, masks, cast, late = 1.0, [], False, False
    while True:
        node = op.maker(x, "Add", "Mul", "Div", "Where", "MatMul", *(() if cast else ("Cast",)))
        if node is None:
            return No("the scores are no product, or are read elsewhere")
        if node.op_type == "MatMul":
            return _Scores(node, scale, masks, late)
        if node.op_type == "Cast":
            x, cast, late = node.inputs[0], True, scale != 1.0 or bool(masks)
        elif node.op_type in ("Mul", "Div"):
            x, factor = _factor(node)
            if x is None:
                return No("the scores are multiplied by something else than a number")
            scale *= factor
        elif scale != 1.0:
            return No("the mask is scaled")
        elif node.op_type == "Add":
            left = _leads(op, node.inputs[0])
            if left == _leads(op, node.inputs[1]):
                return No("it is not clear which addend is the mask")
            x, mask = node.inputs if left else node.inputs[::-1]
            masks.append(mask)
        else:
            masks.append(node)
            x = _kept(node)


def _kept(where):
    """What a Where lets through beside a number."""
    return where.inputs[2] if number(where.inputs[1]) is not None else where.inputs[1]


def _leads(op, value):
    """Whether `value` is a product: scaled, masked, or bare."""
    for _ in range(8):
        node = op.maker(value, "Mul", "Div", "Where", "MatMul", "Add")
        if node is None or node.op_type == "MatMul":
            return node is not None
        if node.op_type == "Add":
            return any(_leads_bare(op, v) for v in node.inputs)
        value = _kept(node) if node.op_type == "Where" else _factor(node)[0]
    return False


def _leads_bare(op, value):
    node = op.maker(value, "Mul", "Div")
    return op.maker(_factor(node)[0] if node is not None else value, "MatMul") is not None


def _factor(node):
    """The other input and the number a Mul or Div by a number multiplies it with; None without one."""
    a, b = node.inputs
    if (c := number(b)) and b.const.ndim <= (rank(a) or 0):
        return a, c if node.op_type == "Mul" else 1 / c
    if node.op_type == "Mul" and (c := number(a)) and a.const.ndim <= (rank(b) or 0):
        return b, c
    return None, 1.0


def _unscaled(op, value):
    """`value` before it was multiplied by a number, where nothing but movement came after that, and the
    number."""
    node = op.maker(value, "Mul", "Div", "Reshape", "Transpose")
    if node is None:
        return value, 1.0
    moves = node.op_type in ("Reshape", "Transpose")
    inner, factor = (node.inputs[0], 1.0) if moves else _factor(node)
    if inner is None:
        return value, 1.0
    inner, scale = _unscaled(op, inner)
    if scale == 1.0 and moves:
        return value, 1.0
    return op.again(node, inner, *node.inputs[1:]) if moves else inner, scale * factor


def _transposed(op, kt, elem=None):
    """`kt` with its last two axes exchanged, without a Transpose where one can be taken away; with `elem`, as
    it was of that type where it was cast before."""
    made = op.maker(kt, "Transpose", alone=False)
    perm = permutation(made) if made is not None else None
    if perm is None or len(perm) not in (3, 4):
        return None
    k = made.inputs[0] if elem is None else _before_cast(op, made.inputs[0], elem) or made.inputs[0]
    back = [*perm[:-2], perm[-1], perm[-2]]
    return k if back == sorted(back) else op.Transpose(k, perm=back)


def _before_cast(op, value, elem):
    """`value` as it was of the type `elem`; None where it was not cast from that."""
    cast = op.maker(value, "Cast", alone=False)
    return cast.inputs[0] if cast is not None and cast.inputs[0].elem == elem else None


def _ungrouped(op, k, v):
    """Keys and values before each head was repeated for the query heads that share it."""
    bare = [_unrepeated(op, value) for value in (k, v)]
    if None in bare or bare[0].shape[1] != bare[1].shape[1]:
        return k, v
    return bare


def _unrepeated(op, value):
    out = op.maker(value, "Reshape", alone=False)
    spread = op.maker(out.inputs[0], "Expand", "Tile") if out is not None else None
    apart = op.maker(spread.inputs[0], "Unsqueeze", "Reshape") if spread is not None else None
    if apart is None:
        return None
    x, wide, y = apart.inputs[0], apart.output.shape, value.shape
    if (
        rank(x) != 4
        or wide is None
        or len(wide) != 5
        or y is None
        or len(y) != 4
        or not isinstance(x.shape[1], int)
    ):
        return None
    if wide[2] != 1 or wide[1] != x.shape[1] or not isinstance(y[1], int) or y[1] % x.shape[1]:
        return None
    if wide[3:] != x.shape[2:] or x.shape[3] != y[3] or spread.output.shape is None:
        return None
    full = spread.output.shape
    if full[1] != x.shape[1] or full[2] != y[1] // x.shape[1]:
        return None
    repeats = ints(spread.inputs[1]) if spread.op_type == "Tile" else None
    if repeats is not None and any(r != 1 for i, r in enumerate(repeats) if i != 2):
        return None
    if (repeats is None and spread.op_type == "Tile") or any(
        a == 1 and b != 1 for a, b in zip(wide[3:], full[3:], strict=True)
    ):
        return None
    return x


def _misfit(q, k, v):
    a, b, c = q.shape, k.shape, v.shape
    if differ(a[0], b[0]) or differ(b[0], c[0]):
        return "the batches differ"
    known = len(a) == 3 or all(isinstance(s[1], int) for s in (a, b, c))
    if not known or (len(a) == 4 and (b[1] != c[1] or not b[1] or a[1] % b[1])):
        return "the heads do not fit"
    if differ(a[-1], b[-1]) or (isinstance(b[-2], int) and differ(b[-2], c[-2])):
        return "queries, keys and values do not fit"
    return None if q.elem is not None and q.elem.floating else "the element type is not known"


def _masks(op, scores, n, k):
    """The masks as SoftmaxAttention takes them: what is added, and which scores count at all; None for each
    that there is not. `k` holds the keys."""
    product, bias, keep = scores.product.output, None, None
    for at, it in reversed(list(enumerate(scores.masks))):
        mask = it.inputs[0] if isinstance(it, Node) else it
        if mask.shape is None or len(mask.shape) > n or product.shape is None:
            return No("the mask's rank is not known or too large")
        if any(_widens(m, s) for m, s in zip(mask.shape[-2::-1], product.shape[-2::-1], strict=False)):
            return No("the mask may widen the scores")
        if isinstance(it, Node):
            bias, keep = _excluded(op, it, bias, keep, at == 0)
            if isinstance(bias, No):
                return bias
        else:
            bias = mask if bias is None else op.Add(bias, mask)
    made = [None if mask is None else _fitted(op, mask, n, k, product) for mask in (bias, keep)]
    return next((it for it in made if isinstance(it, No)), tuple(made))


def _fitted(op, mask, n, k, product):
    """A mask with a dimension for the keys, and of a rank that says which of them are its own."""
    if not mask.shape or (mask.shape[-1] == 1 and product.shape[-1] != 1):
        return No("the mask is the same for all keys")
    if mask.shape[-1] is None or mask.shape[-1] != product.shape[-1]:
        if isinstance(mask.shape[-1], int):
            return No("the mask may widen the scores")
        # Attention takes the keys past a mask's end for excluded; a last dimension of 1 means all of them
        mask = op.Expand(mask, _length(op, k))
    if len(mask.shape) == 1:
        return op.Unsqueeze(mask, op.ints([0]))
    return op.Unsqueeze(mask, op.ints([1])) if n == 3 and len(mask.shape) == 3 else mask


def _widens(m, s):
    """Whether a mask's dimension `m` may be another than 1 where that of the scores, `s`, is not the same."""
    if m == 1 or (m == s and m is not None):
        return False
    if isinstance(s, int):
        return s == 1 or isinstance(m, int)
    return isinstance(m, int) or (told(m) and told(s))


def _length(op, k):
    """How many keys there are, as a vector of one. Joined keys are not read themselves: they become the
    present, which is made after the mask."""
    if isinstance(k.shape[-2], int):
        return op.ints([k.shape[-2]])
    joined = op.maker(k, "Concat", alone=False)
    parts = [k] if joined is None or joined.attrs["axis"] not in (-2, len(k.shape) - 2) else joined.inputs
    total = None
    for part in parts:
        length = op.Shape(part, start=len(k.shape) - 2, end=len(k.shape) - 1)
        total = length if total is None else op.Add(total, length)
    return total


def _excluded(op, where, bias, keep, last):
    """What is added, and which scores count, once a Where has put its number in the place of some scores.
    `last`: nothing is added to them afterwards."""
    condition, a, b = where.inputs
    kept_first = number(b) is not None
    instead = b if kept_first else a
    least = number(instead)
    if least is None:
        return No("a Where puts more than a number in the place of scores"), None
    if _loose(op):
        if least > _EXCLUDING:
            return No("the number a Where puts in the place of scores does not exclude them"), None
        least = max(min(least, _ABSORBING), float(np.finfo(instead.const.dtype).min))
    kept = condition if kept_first else op.Not(condition)
    if bias is not None or not last or least != -np.inf:
        was = op.constant(np.zeros((), instead.const.dtype)) if bias is None else bias
        fill = op.constant(np.full((), least, instead.const.dtype))
        bias = op.Where(condition, was, fill) if kept_first else op.Where(condition, fill, was)
    return bias, kept if keep is None else op.And(keep, kept)


def _splits(op, value):
    """The tensor of rank 3 whose last axis `value` [batch, heads, sequence, size] splits into heads, else
    None; what turns the heads by their positions turns them there."""
    turned = op.maker(value, "RotaryEmbedding")
    if turned is not None:
        flat, heads = _splits(op, turned.inputs[0]), value.shape[1]
        return None if flat is None else op.again(turned, flat, *turned.inputs[1:], num_heads=heads)
    node = op.maker(value, "Transpose", alone=False)
    if node is None or permutation(node) != _SPLIT:
        return None
    made = op.maker(node.inputs[0], "Reshape", alone=False)
    if made is None or rank(made.inputs[0]) != 3 or rank(made.output) != 4:
        return None
    x, y = made.inputs[0], made.output.shape
    if not all(isinstance(d, int) for d in (x.shape[2], *y[2:])) or x.shape[2] != y[2] * y[3]:
        return None
    return x if _leaves(made, 2) else None


def _leaves(reshape, axes):
    """Whether a Reshape leaves its first axes as they are."""
    target = ints(reshape.inputs[1])
    x, y = reshape.inputs[0].shape, reshape.output.shape
    if x is None or y is None:
        return False
    for i in range(axes):
        copied = target is not None and i < len(target) and target[i] == 0
        if (not copied or reshape.attrs.get("allowzero")) and (x[i] is None or x[i] != y[i]):
            return False
    return True


@rule(lambda op, s: op.Reshape(op.Transpose(op.either(
    op.Attention(...), op(_SOFTMAX)(...), op.Cast(op.Attention(...))), perm=_SPLIT), s), shared=True)
def fuse_attention_heads(op, root):
    """Splitting into heads before and merging them after is Attention's own affair."""
    moved = op.maker(root.inputs[0], "Transpose")
    cast = op.maker(moved.inputs[0], "Cast") if moved is not None else None
    made = op.maker((cast or moved).inputs[0], *_KINDS) if moved is not None else None
    if made is None:
        return No("the heads are read apart elsewhere")
    y = made.output
    q, k, v = made.inputs[:3]
    if rank(q) != 4 or rank(y) != 4 or len(made.outputs) > 3:
        return No("the heads are split already")
    flat = [_splits(op, value) for value in (q, k, v)]
    if any(x is None for x in flat):
        return No("the heads are not split from the last axis")
    if not all(isinstance(d, int) for d in (y.shape[1], y.shape[3])):
        return No("heads and head size are not known")
    merged, width, target = root.output.shape, y.shape[1] * y.shape[3], ints(root.inputs[1])
    whole = merged is not None and len(merged) == 3 and merged[2] == width and _leaves(root, 2)
    if not whole and (target is None or 0 in target):
        return No("the heads are not merged into the last axis")
    new = op.again(made, *flat, *made.inputs[3:], q_num_heads=q.shape[1], kv_num_heads=k.shape[1])
    first, rest = (new, ()) if len(made.outputs) == 1 else (new[0], new[1:])
    first = first if cast is None else op.again(cast, first)
    result = first if whole else op.again(root, first, root.inputs[1])
    return {
        root.output: result,
        **{a: b for a, b in zip(made.outputs[1:], rest, strict=True) if a is not None},
    }


EXTENDED = (push_split_over_products, fuse_attention, push_shape_over_joined_keys, fuse_attention_past,
            fuse_attention_heads)
