"""Losses: scores or log-probabilities [N, C, D...] and class labels [N, D...] in, losses or their sum out."""

from __future__ import annotations

import numpy as np

from ...errors import InvalidArgument
from ..define import op
from ..functions import sum_of


def _loss(log_prob: np.ndarray, labels: np.ndarray, weights: np.ndarray | None, ignore_index: int | None,
          reduction: str) -> np.ndarray:
    if log_prob.ndim < 2 or labels.shape != (log_prob.shape[0], *log_prob.shape[2:]):
        raise ValueError(f"the scores have shape {list(log_prob.shape)} and the labels {list(labels.shape)}, "
                         "expected [N, C, ...] and [N, ...]")
    if reduction not in ("none", "sum", "mean"):
        raise ValueError(f"reduction is {reduction!r}, expected none, sum or mean")
    classes = log_prob.shape[1]
    if weights is not None and weights.shape != (classes,):
        raise ValueError(f"the weights have shape {list(weights.shape)}, expected [{classes}]")
    kept = np.ones(labels.shape, bool) if ignore_index is None else labels != ignore_index
    chosen = np.where(kept, labels, 0)
    if kept.any() and not (chosen.min() >= 0 and chosen.max() < classes):
        bad = int(chosen.min() if chosen.min() < 0 else chosen.max())
        raise InvalidArgument(f"label {bad} is out of range", expected=f"0 to {classes - 1}")
    if not classes:
        picked = np.zeros(labels.shape, log_prob.dtype)
        scale = np.zeros(labels.shape, log_prob.dtype)
    else:
        picked = np.take_along_axis(log_prob, np.expand_dims(chosen, 1), axis=1).squeeze(1)
        scale = np.ones(labels.shape, log_prob.dtype) if weights is None else weights[chosen]
    scale = np.where(kept, scale, 0).astype(log_prob.dtype, copy=False)
    loss = np.where(kept, -picked * scale, 0).astype(log_prob.dtype, copy=False)
    if reduction == "none":
        return loss
    total = sum_of(loss, None, False)
    return total if reduction == "sum" else np.asarray(total / sum_of(scale, None, False))


@op(widen=True)
def NegativeLogLikelihoodLoss(input, target, weight=None, *, ignore_index: int | None = None,
                              reduction: str = "mean"):
    """-weight[target] * input[n, target], zero where target is `ignore_index`, then reduced."""
    return _loss(input, target, weight, ignore_index, reduction)


@op(widen=True)
def SoftmaxCrossEntropyLoss(scores, labels, weights=None, *, ignore_index: int | None = None,
                            reduction: str = "mean"):
    """The negative log-likelihood of log softmax over axis 1, which comes out as second result."""
    if scores.ndim < 2:
        raise ValueError(f"scores has shape {list(scores.shape)}, expected [N, C, ...]")
    shifted = scores - np.max(scores, axis=1, keepdims=True, initial=-np.inf)
    log_prob = shifted - np.log(sum_of(np.exp(shifted), 1))
    return _loss(log_prob, labels, weights, ignore_index, reduction), log_prob
