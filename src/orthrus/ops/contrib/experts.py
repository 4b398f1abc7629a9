"""Mixtures of experts of com.microsoft: tokens and scores of experts in, for each token what its best experts
make of it out.

An expert is two matrices [n, k] with an activation between them. Only tokens that are routed to an expert
meet it. Of equal scores the last is the best, and `use_sparse_mixer` changes nothing, as on onnxruntime's
CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...errors import Unfit
from ...ir import TensorType, Type, Value
from ...ir.types import ElementType
from ...limits import bounded
from ..define import Op, define, xp
from ..functions import sum_of
from ..nn.activation import Gelu, Relu, Sigmoid, Swish, softmax
from ..tensor.movement import Identity
from .fused import MS, like_first
from .quant import unpacked

HALF_FLOATS = ("float", "float16", "bfloat16")
ACTIVATIONS: dict[str, tuple[Op, dict[str, Any]]] = {
    "relu": (Relu, {}), "gelu": (Gelu, {"approximate": "tanh"}), "silu": (Swish, {"alpha": 1.0}),
    "identity": (Identity, {})}
"""By activation_type: an operator and its attributes."""

Matrix = Callable[[int], np.ndarray]
"""An expert's index to its matrix [n, k], float32."""


def chosen(scores: np.ndarray, k: int) -> np.ndarray:
    """The `k` best experts of each row, the best first."""
    if scores.ndim != 2:
        raise Unfit(f"scores of experts have rank 2, found shape {scores.shape}")
    if not 1 <= k <= scores.shape[1]:
        raise ValueError(f"k {k} of {scores.shape[-1:]} experts cannot be chosen by scores of shape"
                         f" {scores.shape}")
    return np.argsort(scores, axis=-1, kind="stable")[:, ::-1][:, :k]


def _opened(gate, linear, *, activation_alpha: float, activation_beta: float, swiglu_limit: float | None):
    """gate * sigmoid(alpha * gate) * (linear + beta), both held within the limit"""
    if swiglu_limit is not None:
        gate = xp.minimum(gate, swiglu_limit)
        linear = xp.maximum(xp.minimum(linear, swiglu_limit), -swiglu_limit)
    return gate * Sigmoid(activation_alpha * gate) * (linear + activation_beta)


SWIGLU = Op(_opened, result="same")


def _activated(first: np.ndarray, third: np.ndarray | None, kind: str, fusion: int, **attrs: Any
               ) -> np.ndarray:
    """What the second matrix is multiplied by."""
    if kind != "swiglu":
        op, own = ACTIVATIONS[kind]
        return np.asarray(op(first, **own))
    if third is not None:
        return np.asarray(SWIGLU(first, third, **attrs))
    halves = (first[:, ::2], first[:, 1::2]) if fusion == 1 else np.split(first, 2, axis=1)
    return np.asarray(SWIGLU(*halves, **attrs))


def check_layers(kind: str, fusion: int, late: int, second: bool, third: bool) -> None:
    """Raises ValueError where there is no such activation, or matrices do not fit it."""
    if late:
        raise ValueError("swiglu_limit_after_activation is not supported: the limit holds what goes into an"
                         " activation")
    if not second:
        raise ValueError("the input fc2_experts_weights is missing")
    if kind not in (*ACTIVATIONS, "swiglu") or fusion not in (0, 1, 2):
        raise ValueError(f"activation_type {kind!r} with swiglu_fusion {fusion}: expected swiglu and 0 to 2,"
                         f" or {', '.join(ACTIVATIONS)}")
    if third != (kind == "swiglu" and not fusion):
        raise ValueError("fc3 is for swiglu whose swiglu_fusion is 0, which cannot do without")


def _mixed(x: np.ndarray, experts: np.ndarray, weights: np.ndarray, layers: Sequence[Matrix | None],
           biases: Sequence[np.ndarray | None], activate: Callable[..., np.ndarray]) -> np.ndarray:
    """For each row of `x` the sum of what its `experts` make of it, times `weights`, float32."""
    tokens = x.reshape(-1, x.shape[-1]).astype(np.float32)
    if experts.shape[:1] != tokens.shape[:1]:
        raise ValueError(f"{len(experts)} rows of scores do not fit {len(tokens)} tokens")
    y = np.zeros(tokens.shape, np.float32)

    def product(rows: np.ndarray, layer: int, expert: int) -> np.ndarray | None:
        matrix, bias = layers[layer], biases[layer]
        if matrix is None:
            return None
        made = rows @ matrix(expert).T
        return made if bias is None else made + bias[expert].astype(np.float32)

    for expert in np.unique(experts):
        rows, slots = np.nonzero(experts == expert)
        inner = activate(product(tokens[rows], 0, expert), product(tokens[rows], 2, expert))
        y[rows] += product(inner, 1, expert) * weights[rows, slots, None]
    return y.reshape(x.shape)


def _check_sizes(x: np.ndarray, sizes: Sequence[tuple[int, ...] | None],
                 biases: Sequence[np.ndarray | None], count: int, paired: bool) -> None:
    """`sizes` (experts, n, k) of the matrices. Raises ValueError where something does not fit."""
    first, second, third = sizes
    assert first is not None and second is not None
    inner = first[1] // 2 if paired else first[1]
    wanted = ((count, first[1], x.shape[-1]), (count, x.shape[-1], inner), (count, inner, x.shape[-1]))
    for size, fits, bias in zip(sizes, wanted, biases, strict=True):
        if size is not None and (size != fits or (bias is not None and bias.shape != fits[:2])):
            raise Unfit(f"an expert's matrix or bias of {size} does not fit {fits}")
    if paired and first[1] % 2:
        raise ValueError(f"{first[1]} rows of fc1 are no pairs")


@define(domain=MS, types=dict.fromkeys(("input", "router_probs", "fc1_experts_weights", "fc1_experts_bias",
                                        "fc2_experts_weights", "fc2_experts_bias", "fc3_experts_weights",
                                        "fc3_experts_bias"), HALF_FLOATS))
def MoE(input, router_probs, fc1_experts_weights, fc1_experts_bias=None, fc2_experts_weights=None,
        fc2_experts_bias=None, fc3_experts_weights=None, fc3_experts_bias=None, *,
        activation_alpha: float = 1.0, activation_beta: float = 0.0, activation_type: str = "relu",
        k: int = 1, normalize_routing_weights: int = 0, swiglu_fusion: int = 0,
        swiglu_limit: float | None = None, swiglu_limit_after_activation: int = 0,
        use_sparse_mixer: int = 0):
    """The k best experts' results, weighed by the softmax of their scores, or that of the chosen ones'"""
    check_layers(activation_type, swiglu_fusion, swiglu_limit_after_activation,
                 fc2_experts_weights is not None, fc3_experts_weights is not None)
    best = chosen(router_probs.astype(np.float32), k)
    weights = np.take_along_axis(softmax(router_probs.astype(np.float32), -1), best, 1)
    if normalize_routing_weights:
        weights = weights / sum_of(weights, -1)
    matrices = fc1_experts_weights, fc2_experts_weights, fc3_experts_weights
    biases = fc1_experts_bias, fc2_experts_bias, fc3_experts_bias
    _check_sizes(input, [None if m is None else m.shape for m in matrices], biases, router_probs.shape[1],
                 activation_type == "swiglu" and swiglu_fusion > 0)

    def layer(m: np.ndarray | None) -> Matrix | None:
        return None if m is None else lambda expert: m[expert].astype(np.float32)
    return _mixed(input, best, weights, [layer(m) for m in matrices], biases,
                  lambda first, third: _activated(
                      first, third, activation_type, swiglu_fusion, activation_alpha=activation_alpha,
                      activation_beta=activation_beta, swiglu_limit=swiglu_limit)).astype(input.dtype)


MoE.infer_with(like_first)


def routing(scores: np.ndarray, given: np.ndarray | None, k: int, normalize: int
            ) -> tuple[np.ndarray, np.ndarray]:
    """QMoE's experts of each row and their weights: the softmax of the chosen scores; or what is `given` for
    them, over their sum if `normalize`, where one that is not above 0 counts for nothing."""
    best = chosen(scores, k)
    if given is None:
        return best, softmax(np.take_along_axis(scores, best, 1), -1)
    if given.shape != scores.shape:
        raise ValueError(f"router_weights have shape {given.shape}, expected {scores.shape}")
    weights = np.take_along_axis(given, best, 1)
    if normalize:
        total = sum_of(weights, -1)
        weights = np.divide(weights, total, out=np.zeros_like(weights), where=total != 0)
    return best, np.maximum(weights, 0)


@define(domain=MS, types={
    **dict.fromkeys(("input", "router_probs", "fc1_scales", "fc1_experts_bias", "fc2_scales",
                     "fc2_experts_bias", "fc3_scales", "fc3_experts_bias", "router_weights"), HALF_FLOATS),
    **dict.fromkeys(("fc1_experts_weights", "fc2_experts_weights", "fc3_experts_weights", "fc1_zero_points",
                     "fc2_zero_points", "fc3_zero_points"), ("uint8",))})
def QMoE(input, router_probs, fc1_experts_weights, fc1_scales=None, fc1_experts_bias=None,
         fc2_experts_weights=None, fc2_scales=None, fc2_experts_bias=None, fc3_experts_weights=None,
         fc3_scales=None, fc3_experts_bias=None, fc1_zero_points=None, fc2_zero_points=None,
         fc3_zero_points=None, router_weights=None, fc1_global_scale=None, fc2_global_scale=None,
         fc1_act_scale=None, fc2_act_scale=None, fc1_act_block_scale=None, fc2_act_block_scale=None, *,
         accuracy_level: int = 0, activation_alpha: float = 1.0,
         activation_beta: float = 0.0, activation_type: str = "relu", block_size: int = 0,
         expert_weight_bits: int = 4, fc1_expert_weight_bits: int | None = None,
         fc2_expert_weight_bits: int | None = None, fc3_expert_weight_bits: int | None = None, k: int = 1,
         normalize_routing_weights: int = 0, quant_type: str = "int", swiglu_fusion: int = 0,
         swiglu_limit: float | None = None, swiglu_limit_after_activation: int = 0,
         use_sparse_mixer: int = 0, weights_prepacked: int = -1):
    """The k best experts' results, weighed by the softmax of their scores or by router_weights; the
    matrices are of few bits, with a scale for each row or each block of it"""
    others = (fc1_global_scale, fc2_global_scale, fc1_act_scale, fc2_act_scale, fc1_act_block_scale,
              fc2_act_block_scale)
    if quant_type != "int" or any(x is not None for x in others):
        raise ValueError("QMoE takes integers as weights and no scales beside theirs, found quant_type"
                         f" {quant_type!r}")
    check_layers(activation_type, swiglu_fusion, swiglu_limit_after_activation,
                 fc2_experts_weights is not None, fc3_experts_weights is not None)
    wide = router_probs.astype(np.float32)
    best, weights = routing(wide, None if router_weights is None else router_weights.astype(np.float32), k,
                            normalize_routing_weights)
    layers = [None if codes is None else CodedLayer(codes, scales, zeros, bits or expert_weight_bits,
                                                    block_size)
              for codes, scales, zeros, bits in (
                  (fc1_experts_weights, fc1_scales, fc1_zero_points, fc1_expert_weight_bits),
                  (fc2_experts_weights, fc2_scales, fc2_zero_points, fc2_expert_weight_bits),
                  (fc3_experts_weights, fc3_scales, fc3_zero_points, fc3_expert_weight_bits))]
    biases = fc1_experts_bias, fc2_experts_bias, fc3_experts_bias
    _check_sizes(input, [None if s is None else s.shape for s in layers], biases, wide.shape[1],
                 activation_type == "swiglu" and swiglu_fusion > 0)
    return _mixed(input, best, weights, layers, biases,
                  lambda first, third: _activated(
                      first, third, activation_type, swiglu_fusion, activation_alpha=activation_alpha,
                      activation_beta=activation_beta, swiglu_limit=swiglu_limit)).astype(input.dtype)


QMoE.infer_with(like_first)


class CodedLayer:
    """The experts' matrices as codes [experts, n, bytes], with scales [experts, n] or [experts, n, blocks]
    and zero points in bytes; called with an expert's index, its matrix [n, k]."""

    def __init__(self, codes: np.ndarray, scales: np.ndarray | None, zeros: np.ndarray | None, bits: int,
                 block: int) -> None:
        if bits not in (2, 4, 8) or codes.ndim != 3 or scales is None or block < 0:
            raise ValueError(f"{bits} bits in blocks of {block}, weights of shape {codes.shape} and scales"
                             f" {None if scales is None else scales.shape}: expected 2, 4 or 8 bits, three"
                             " dimensions and scales")
        experts, n, size = codes.shape
        self.shape = experts, n, size * 8 // bits
        self.bits, self.block = bits, block or max(self.shape[2], 1)
        count = self.shape[2] // self.block
        bounded(self.shape[1:], np.dtype(np.float32))
        packed = (n, -(-count * bits // 8)) if block else (-(-n * bits // 8),)
        if self.shape[2] % self.block or scales.shape not in ((experts, n, count), *(
                () if block else ((experts, n),))) or (
                zeros is not None and (zeros.shape[:1] != (experts,) or zeros[0].size != np.prod(packed))):
            raise ValueError(f"scales {scales.shape} or zero points do not fit weights {self.shape} in blocks"
                             f" of {self.block}")
        self.codes, self.scales, self.zeros, self.packed = codes, scales, zeros, packed

    def zero(self, expert: int) -> np.ndarray:
        """The zero points of an expert's blocks, [n, blocks]."""
        n, count = self.shape[1], self.shape[2] // self.block
        if self.zeros is None:
            return np.full((n, count), 1 << (self.bits - 1), np.uint8)
        codes = unpacked(self.zeros[expert].reshape(self.packed), self.bits)
        return codes[:, :count] if codes.ndim == 2 else codes[:n, None]

    def __call__(self, expert: int) -> np.ndarray:
        n, k = self.shape[1:]
        codes = unpacked(self.codes[expert], self.bits).reshape(n, -1, self.block).astype(np.float32)
        scales = self.scales[expert].reshape(n, -1, 1).astype(np.float32)
        return ((codes - self.zero(expert)[..., None]) * scales).reshape(n, k)


@define(domain=MS, outputs=3, types={**dict.fromkeys(("logits", "projection_weight"), HALF_FLOATS),
                                     "expert_bias": ("float",)})
def MoEGroupRouter(logits, expert_bias, projection_weight=None, *, group_topk: int = 2, n_group: int = 1,
                   router_sentinel: float = -10000.0, top_k: int, topk_group: int = 1):
    """The logarithms of sigmoid(logits) at the top_k experts of the best groups, router_sentinel at the
    others [tokens, experts]; and the scores by which experts are chosen, and their weights"""
    wide = logits.astype(np.float32)
    if projection_weight is not None:
        if wide.ndim != 2 or projection_weight.ndim != 2 or wide.shape[1] != projection_weight.shape[1]:
            raise Unfit(f"projection_weight of shape {projection_weight.shape} does not fit tokens of shape"
                        f" {wide.shape}")
        wide = wide @ projection_weight.astype(np.float32).T
    if not wide.ndim or expert_bias.shape != wide.shape[-1:]:
        raise Unfit(f"expert_bias of shape {expert_bias.shape} does not fit logits of shape {wide.shape}")
    scores = Sigmoid(wide.reshape(-1, wide.shape[-1]))
    tokens, count = scores.shape
    if min(top_k, n_group, topk_group, group_topk) < 1 or n_group > count or count % n_group or (
            topk_group > n_group or top_k > count):
        raise ValueError(f"the best {top_k} of {count} experts cannot be in {topk_group} of {n_group} groups")
    biased = scores + expert_bias
    grouped = np.where(np.isnan(biased), -np.inf, biased).reshape(tokens, n_group, -1)
    best = np.sort(grouped, -1)[..., ::-1][..., :group_topk].sum(-1)
    groups = np.argsort(-best, -1, kind="stable")[:, :topk_group]
    open_ = np.zeros((tokens, n_group), bool)
    np.put_along_axis(open_, groups, True, 1)
    among = np.where(open_[..., None], grouped, -np.inf).reshape(tokens, count)
    experts = np.argsort(-among, -1, kind="stable")[:, :min(top_k, topk_group * (count // n_group))]
    y = np.full(scores.shape, router_sentinel, np.float32)
    np.put_along_axis(y, experts, np.log(np.maximum(np.take_along_axis(scores, experts, 1), 1e-20)), 1)
    return y.astype(logits.dtype), biased, scores


@MoEGroupRouter.infer_with
def _routed_types(logits: Value, expert_bias: Value, *_: Value | None, **__: Any) -> list[Type]:
    count = expert_bias.shape[0] if expert_bias.shape else None
    lead = logits.shape[0] if logits.shape is not None and len(logits.shape) == 2 else None
    return [TensorType(elem, (lead, count)) for elem in (logits.elem, ElementType.FLOAT, ElementType.FLOAT)]
