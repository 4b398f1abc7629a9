"""Mixtures of experts: tokens are sorted by the experts they go to, which are multiplied with these alone.

In: tokens, scores of experts, and constant matrices (experts, n, k), float32 or of few bits in blocks. Out:
the tokens' results. Everything between is float32.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ....codegen.kernels import experts, gemm
from ....codegen.kernels.few_bits.layout import Blocks, pack
from ....codegen.write.expr import Expr
from ....codegen.write.trace import traced
from ....ir import No, Node, Value, in_memory
from ....ops.contrib.experts import ACTIVATIONS, SWIGLU, CodedLayer
from ....records import dataclass
from ...elements import store
from ...lower import Lowering, Out, lowers
from ...tensor import Tensor
from ..attention import MS, inputs_of, result
from ..gather import gathered
from ..rows import FLOATS, F, Reads, softmax_rows_of

_MOST = 16
"""Experts of a token up to which a tree adds up their weights."""

_ROW = 128
"""The block of k that a scale for a whole row is repeated for."""


@dataclass(eq=False)
class Layer:
    """The matrices (experts, n, k) of all experts: `make(wide)` packs them in panels of so many columns;
    `how`: what they are packed as, None for float32; `key` tells them from others."""

    key: tuple[Any, ...]
    count: int
    n: int
    k: int
    how: Blocks | None
    make: Callable[[int], np.ndarray]
    bias: Tensor | None

    @property
    def filled(self) -> int:
        """Elements of a row of A."""
        return self.k if self.how is None else self.how.count(self.k) * self.how.block


def _paired(n: int, fusion: int) -> np.ndarray | None:
    """The rows of a matrix whose pairs lie next to each other, first of all pairs before second ones."""
    return np.concatenate((np.arange(0, n, 2), np.arange(1, n, 2))) if fusion == 1 else None


def _bias(lo: Lowering, value: Value | None, order: np.ndarray | None) -> Tensor | No | None:
    if value is None:
        return None
    known = lo.known(value) if lo.knows(value) else None
    if known is None:
        return No("kernels take constant experts")
    return lo.constant(("bias of experts", id(value), order is not None), lambda: np.ascontiguousarray(
        in_memory(known)[:, order if order is not None else slice(None)].astype(np.float32)))


def _plain(lo: Lowering, weights: Value, bias: Value | None, order: np.ndarray | None) -> Layer | No:
    """Matrices of float32."""
    known = lo.known(weights) if lo.knows(weights) else None
    if known is None or known.ndim != 3 or known.dtype != np.float32 or not known.size:
        return No("kernels take constant experts of float32")
    row = _bias(lo, bias, order)
    if isinstance(row, No):
        return row

    def make(_: int) -> np.ndarray:
        given = in_memory(known)
        return gemm.pack(lo.machine, (given if order is None else given[:, order]).transpose(0, 2, 1))
    count, n, k = known.shape
    return Layer((id(weights), order is not None), count, n, k, None, make, row)


def _coded(lo: Lowering, given: tuple[Value | None, ...], bits: int, block: int, bias: Value | None,
           order: np.ndarray | None) -> Layer | No:
    """Matrices of few bits; `given`: their codes, scales and zero points."""
    known = [lo.known(v) if v is not None and lo.knows(v) else None for v in given]
    if any(v is not None and a is None for v, a in zip(given, known, strict=True)):
        return No("kernels take constant experts")
    codes, scales, zeros = map(in_memory, known)
    try:
        layer = CodedLayer(codes, scales, zeros, bits, block)
    except ValueError as error:
        return No(str(error))
    count, n, k = layer.shape
    block = block or _ROW
    if block < 16 or block & (block - 1) or 0 in layer.shape or scales.dtype.name not in FLOATS:
        return No("kernels take blocks of a power of two from 16 on")
    how = Blocks(bits, block, scales.dtype.name, "codes" if zeros is not None else 1 << (bits - 1))
    row = _bias(lo, bias, order)
    if isinstance(row, No):
        return row
    rows = np.arange(n) if order is None else order

    def one(expert: int, wide: int) -> np.ndarray:
        whole = np.pad(codes[expert][rows], ((0, 0), (0, how.count(k) * block * bits // 8 - codes.shape[2])))
        by, low = (np.repeat(a, how.count(k) // a.shape[1], 1)[rows] for a in (
            scales[expert].reshape(n, -1), layer.zero(expert)))
        return pack(how, wide, whole, by, how.bytes(low) if zeros is not None else None)
    return Layer((*(id(v) for v in given), order is not None), count, n, k, how,
                 lambda wide: np.stack([one(expert, wide) for expert in range(count)]), row)


@lowers(MS + "MoE", types=(F,))
def mix_experts(lo: Lowering, node: Node) -> Tensor | No:
    """Weights are the softmax of all scores, perhaps over the sum of those chosen."""
    x, scores, *rest = inputs_of(node, 8)
    if node.attributes["swiglu_limit_after_activation"]:
        return No("a limit behind the activation")
    order = _interleaved(lo, node, rest[0])
    layers = [_plain(lo, w, b, order if not i else None)
              for i, (w, b) in enumerate(zip(rest[::2], rest[1::2], strict=True)) if w is not None]

    normal = bool(node.attributes["normalize_routing_weights"])
    return _mixed(lo, node, (x, scores), layers, lambda table: _softmax(lo, table), normal, None)


@lowers(MS + "QMoE", types=FLOATS)
def mix_coded_experts(lo: Lowering, node: Node) -> Tensor | No:
    """Weights are the softmax of the chosen scores, or given apart."""
    (x, scores, w1, s1, b1, w2, s2, b2, w3, s3, b3, z1, z2, z3, given, *rest) = inputs_of(node, 21)
    at = node.attributes
    if at["quant_type"] != "int" or at["swiglu_limit_after_activation"] or any(v is not None for v in rest):
        return No("weights that are no integers, or a limit behind the activation")
    order = _interleaved(lo, node, w1)
    made = [_coded(lo, (w, s, z), at[f"fc{i}_expert_weight_bits"] or at["expert_weight_bits"],
                   at["block_size"], b, order if i == 1 else None)
            for i, (w, s, z, b) in enumerate(((w1, s1, z1, b1), (w2, s2, z2, b2), (w3, s3, z3, b3)), 1)
            if w is not None]
    if given is not None and lo.shape(given) != lo.shape(scores):
        return No("its weights do not fit its scores")
    weigh = None if given is None else lambda _: _wide(lo, lo.tensor(given))
    normal = given is not None and bool(at["normalize_routing_weights"])
    after = None if given is not None else lambda chosen: _softmax(lo, chosen)
    return _mixed(lo, node, (x, scores), made, weigh, normal, after)


def _interleaved(lo: Lowering, node: Node, weights: Value | None) -> np.ndarray | None:
    """The order of the first matrix's rows in which gates come first, where they are pairs."""
    at = node.attributes
    shape = lo.shape(weights)
    paired = at["activation_type"] == "swiglu" and at["swiglu_fusion"] == 1 and len(shape) == 3
    return _paired(shape[1], 1) if paired else None


def _wide(lo: Lowering, t: Tensor) -> Tensor:
    """`t` as contiguous float32."""
    if t.dtype == F:
        return lo.contiguous(t)
    made = lo.new(t.shape, F)
    store(lo, made, Expr.leaf(0, t.dtype).cast(F), [t])
    return made


def _softmax(lo: Lowering, t: Tensor) -> Tensor | No:
    pending = softmax_rows_of(lo, Reads(Expr.leaf(0, F), [t]), (1,), F)
    if isinstance(pending, No):
        return pending
    made = lo.new(t.shape, F)
    pending.emit(lo, made, None, [])
    return made


def _mixed(lo: Lowering, node: Node, given: tuple[Value | None, Value | None], layers: list[Layer | No],
           weigh: Callable[[Tensor], Tensor | No] | None, normal: bool,
           after: Callable[[Tensor], Tensor | No] | None) -> Tensor | No:
    """The node's result. `weigh` makes of the scores what chosen ones count, the scores themselves where it
    is None; `normal`: over their sum; `after`: of the chosen."""
    refused = next((each for each in layers if isinstance(each, No)), None)
    if refused is not None:
        return refused
    at, (vx, v_scores) = node.attributes, given
    first, second, *third = [each for each in layers if isinstance(each, Layer)]
    shape, k = lo.shape(vx), at["k"]
    paired = at["activation_type"] == "swiglu" and at["swiglu_fusion"] > 0
    inner = first.n // 2 if paired else first.n
    if len(shape) not in (2, 3) or 0 in shape or len(lo.shape(v_scores)) != 2 or (
            lo.shape(v_scores)[0] * shape[-1] != int(np.prod(shape)) or first.k != shape[-1]
            or second.n != shape[-1] or second.k != inner or bool(third) != (
                at["activation_type"] == "swiglu" and not at["swiglu_fusion"])):
        return No("its tokens, scores or matrices do not fit")
    tokens, count = lo.shape(v_scores)
    if not 1 <= k <= min(count, _MOST) or any((t.n, t.k) != (inner, shape[-1]) for t in third):
        return No(f"more than {_MOST} experts of a token, or a third matrix that does not fit")
    if any(t.count != count or t.bias is not None and t.bias.shape != (count, t.n)
           for t in (first, second, *third)):
        return No("its experts are not one for each score, or a bias does not fit")
    scores = _wide(lo, lo.tensor(v_scores))
    numbers = scores if weigh is None else weigh(scores)
    if isinstance(numbers, No):
        return numbers
    chosen, weights = lo.new((tokens, k), "int64"), lo.new((tokens, k), F)
    lo.step(experts.choose_experts(), [scores, numbers, Out(chosen), Out(weights), count, k], tokens,
            max(1, gemm.SPLIT // (4 * k * count)))
    if normal or weigh is not None and after is None:
        weights = _normal(lo, weights, normal, at.get("expert_weight_bits") is not None)
    made = weights if after is None else after(weights)
    if isinstance(made, No):
        return made
    rows = tokens * k
    order, place, starts = (lo.new((n,), "int64") for n in (rows, rows, count + 1))
    lo.step(experts.sort_by_expert(), [chosen, Out(order), Out(place), Out(starts), rows, k, count], 1)
    x = lo.contiguous(lo.tensor(vx)).view((tokens, shape[-1]), (shape[-1], 1))
    a = _in_order(lo, x, order, first.filled)
    parts = [_product(lo, a, starts, count, layer) for layer in (first, *third)]
    y = _product(lo, _activated(lo, node, parts, inner, second.filled), starts, count, second)
    dtype = lo.dtype(vx) if vx is not None else F
    out = result(lo, node.outputs[0], shape, F) if dtype == F else lo.new(shape, F)
    lo.step(experts.weigh_rows(), [y, place, made, Out(out), shape[-1], k], tokens,
            max(1, gemm.SPLIT // (shape[-1] * k)))
    if dtype == F:
        return out
    narrow = result(lo, node.outputs[0], shape, dtype)
    store(lo, narrow, Expr.leaf(0, F).cast(dtype), [out])
    return narrow


def _normal(lo: Lowering, weights: Tensor, normal: bool, positive: bool) -> Tensor:
    """Weights of each token over their sum if `normal`, 0 where it is 0; none below 0 if `positive`."""
    leaf, k = Expr.leaf(0, F), weights.shape[1]
    zero = Expr.const(0.0, F)
    columns = [weights.slice(1, j, 1).expand(weights.shape) for j in range(k)] if normal else []
    tree = leaf
    if normal:
        total = Expr.leaf(1, F)
        for j in range(1, k):
            total = Expr("add", (total, Expr.leaf(j + 1, F)), F)
        none = Expr("eq", (total, zero), "bool")
        tree = Expr("where", (none, zero, Expr("div", (leaf, total), F)), F)
    if positive:
        tree = Expr("maximum", (tree, zero), F)
    made = lo.new(weights.shape, F)
    store(lo, made, tree, [weights, *columns])
    return made


def _in_order(lo: Lowering, x: Tensor, order: Tensor, wide: int) -> Tensor:
    """Rows of x (tokens, k), float32, in the order of their experts, filled up with zeros to `wide`."""
    tokens, k = x.shape
    if x.dtype != F or wide > k:
        full = lo.new((tokens, wide), F)
        store(lo, full.slice(1, 0, k), Expr.leaf(0, x.dtype).cast(F), [x])
        if wide > k:
            store(lo, full.slice(1, k, wide - k), Expr.const(0.0, F), [])
        x = full
    made = lo.new((order.shape[0], wide), F)
    gathered(lo, x, order, made, 0, 1, 1, False)
    return made


def _product(lo: Lowering, a: Tensor, starts: Tensor, count: int, layer: Layer) -> Tensor:
    """A's rows times their experts' matrices, (rows, n)."""
    cols, wide, panels = experts.divided(lo.machine, layer.n)
    packed = lo.constant(("experts", *layer.key, layer.how, wide), lambda: layer.make(wide))
    made = lo.new((a.shape[0], layer.n), F)
    spec = experts.expert_products(how=layer.how, cols=cols, tail=layer.n % wide != 0,
                                   biased=layer.bias is not None)
    items = count * panels
    lo.step(spec, [a, packed, 0 if layer.bias is None else layer.bias, Out(made), starts, layer.n, layer.k,
                   a.shape[1], panels, packed.size * packed.itemsize // count], items,
            gemm.grain(a.shape[0] * layer.n * layer.k, items))
    return made


def _activated(lo: Lowering, node: Node, parts: list[Tensor], inner: int, wide: int) -> Tensor:
    """What the second matrix is multiplied by, filled up with zeros."""
    at = node.attributes
    if at["activation_type"] == "swiglu":
        op, attrs = SWIGLU, {name: at.get(name) for name in SWIGLU.attributes}
        if len(parts) == 1:
            parts = [parts[0].slice(1, 0, inner), parts[0].slice(1, inner, inner)]
    else:
        op, attrs = ACTIVATIONS[at["activation_type"]]
    made = lo.new((parts[0].shape[0], wide), F)
    tree = Expr.leaf(0, F) if op.name == "Identity" else traced(op, attrs, [F] * len(parts))
    store(lo, made.slice(1, 0, inner), tree, parts)
    if wide > inner:
        store(lo, made.slice(1, inner, wide - inner), Expr.const(0.0, F), [])
    return made
