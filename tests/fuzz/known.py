"""Differences that are known, each a case with its reason: a finding is no failure where one of its graph's
nodes is such a case, by its operator, attributes and what arrives at it.

`DIFFERS`: from onnxruntime, where the definitions and generated code agree. `EDGES`: of generated code from
the definitions, in what becomes of infinities and NaN.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx

from fuzz import judge
from fuzz.applications import value
from fuzz.small import Feeds, Subject
from orthrus.ir import HALF
from orthrus.ops.nn.attention import Attention


@dataclass(frozen=True)
class Applied:
    """A node and what arrives at it, None for what is left out or no array."""

    node: onnx.NodeProto
    inputs: Sequence[np.ndarray | None]

    @property
    def attrs(self) -> dict[str, Any]:
        return {a.name: value(a) for a in self.node.attribute}

    @property
    def first(self) -> np.ndarray:
        assert self.inputs and self.inputs[0] is not None
        return self.inputs[0]


@dataclass(frozen=True)
class Known:
    """A case of an operator: where `when` holds."""

    op: str
    when: Callable[[Applied], bool]
    reason: str
    domain: str = ""


# cases


def _real(a: np.ndarray | None) -> bool:
    return a is not None and (a.dtype.kind == "f" or a.dtype in HALF)


def _whole(at: Applied) -> bool:
    return at.first.dtype.kind in "iu"


def _nan(at: Applied) -> bool:
    return _real(at.first) and bool(np.isnan(at.first.astype(np.float64)).any())


def _infinite(at: Applied) -> bool:
    return _real(at.first) and bool(np.isinf(at.first.astype(np.float64)).any())


def _odd(at: Applied) -> bool:
    """Infinities or NaN among what arrives."""
    return any(a is not None and _real(a) and not np.isfinite(a.astype(np.float64)).all() for a in at.inputs)


def _grouped(at: Applied) -> bool:
    return at.attrs.get("group", 1) > 1 and _odd(at)


def _odd_bounds(at: Applied) -> bool:
    return any(a is not None and _nan(Applied(at.node, [a])) for a in at.inputs[1:])


def _nothing(at: Applied) -> bool:
    return not at.first.size


def _no_axis(at: Applied) -> bool:
    return len(at.inputs) > 1 and at.inputs[1] is not None and not at.inputs[1].size


def _odd_weights(at: Applied) -> bool:
    return _odd(Applied(at.node, at.inputs[1:2]))


def _scores(at: Applied) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of ONNX's Attention: the scores, what is added to them, and which keys are not looked at, by a window
    or because the mask ends before them."""
    given = [*at.inputs, *[None] * (7 - len(at.inputs))]
    none = [x if x is None or i not in (0, 1, 4) else np.zeros_like(x) for i, x in enumerate(given)]
    shown = {**at.attrs, "softmax_precision": None, "n_outputs": 4}
    with np.errstate(all="ignore"):
        scores = Attention(*given, **{**shown, "qk_matmul_output_mode": 1})[3]
        added = Attention(*none, **{**shown, "qk_matmul_output_mode": 2})[3]
        window = Attention(*none[:3], None, *none[4:], **{**shown, "qk_matmul_output_mode": 2})[3]
    past = window == -np.inf
    mask = given[3]
    if mask is not None and mask.ndim:
        past[..., mask.shape[-1] :] = True
    return scores, added, past


def _unseen(at: Applied) -> bool:
    scores, _, past = _scores(at)
    values = [at.inputs[i] for i in (2, 5) if i < len(at.inputs)]
    fine = all(x is None or np.isfinite(x.astype(np.float64)).all() for x in values)
    return bool(past.any() and not (fine and np.isfinite(scores.astype(np.float64))[past].all()))


def _closed(at: Applied) -> bool:
    scores, added, _ = _scores(at)
    return bool(((added == -np.inf).all(-1) & np.isnan(scores).any(-1)).any())


def _low(at: Applied) -> bool:
    scores, added, _ = _scores(at)
    closed = added == -np.inf
    with np.errstate(all="ignore"):
        return bool((~closed.all(-1) & (closed | (scores + added == -np.inf)).all(-1)).any())


def _vanishes(at: Applied) -> bool:
    """Queries or keys of which a scale may make 0, and infinities that meet them."""
    past = 6 if at.node.domain else 4
    keys = [np.abs(x).ravel() for i, x in enumerate(at.inputs) if i in (1, past) and x is not None]
    sides = np.abs(at.first).ravel(), np.concatenate(keys or [np.abs(at.first).ravel()])
    return any(
        ((one > 0) & (one < 8 * _tiny(one))).any() and np.isinf(other.astype(np.float64)).any()
        for one, other in (sides, sides[::-1])
    )


def _one_way(at: Applied) -> bool:
    return bool(at.attrs.get("unidirectional")) and _odd(at)


def _by_order(at: Applied) -> bool:
    """Whether there is a product that is 0 or infinite in one order and not in another."""
    if not _real(at.first) or not at.first.size:
        return False
    size = np.abs(at.first)
    known = at.inputs[1] if len(at.inputs) > 1 else None
    axes = at.attrs.get("axes") if known is None else known.tolist()
    if not axes:
        if at.attrs.get("noop_with_empty_axes"):
            return False
        axes = range(size.ndim)
    over = tuple(int(a) for a in axes)
    with np.errstate(all="ignore"):
        least = np.where(size < 1, size, size.dtype.type(1)).prod(over)
        most = np.where(size > 1, size, size.dtype.type(1)).prod(over)
    vanishes = (least < _tiny(size)) & ~(size == 0).any(over)
    overflows = np.isinf(most) & ~np.isinf(size).any(over)
    return bool(((vanishes & (most > 1)) | (overflows & (least < 1))).any())


def _tiny(a: np.ndarray) -> Any:
    import ml_dtypes

    return ml_dtypes.finfo(a.dtype).tiny


_BETWEEN = "small groups are one product with zeros between them: what is not finite reaches its neighbours"
_POOLS = ("MaxPool", "GlobalMaxPool")
_REDUCTIONS = ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2",
               "ReduceSumSquare", "ReduceLogSum", "ReduceLogSumExp")
_MARGIN = "some kernels have the weights meet the zeros of a margin, some skip these"
_SCALED = "which operand is scaled says whether it is 0 when it meets an infinity"
DIFFERS = (
    Known("Clip", _infinite, "onnxruntime clamps infinities to the type's range where a bound is absent"),
    Known("Clip", _odd_bounds, "onnxruntime takes a bound that is NaN for none"),
    Known("Mod", _whole, "onnxruntime computes 64-bit fmod through double"),
    Known("Shrink", _whole, "onnxruntime computes integers through float"),
    Known("ReduceProd", _whole, "onnxruntime loses the high bits of integer products"),
    Known("ReduceLogSumExp", _whole, "onnxruntime truncates between the steps"),
    Known("ReduceLogSum", _whole, "onnxruntime truncates between the steps"),
    Known("ReduceL2", _whole, "onnxruntime truncates between the steps"),
    Known("ReduceMax", _nan, "onnxruntime does not pass NaN on"),
    Known("ReduceMin", _nan, "onnxruntime does not pass NaN on"),
    Known("Pow", _whole, "onnxruntime computes integer powers through double"),
    Known("Round", lambda at: at.first.dtype == np.float16, "onnxruntime rounds through another type"),
    Known("MatMulInteger", lambda at: at.first.shape[-1:] == (0,),
          "onnxruntime leaves the result of an inner dimension of 0 uninitialized"),
    Known("Hardmax", _nan, "onnxruntime takes NaN for no largest element"),
    Known("ArgMax", _nan, "onnxruntime takes NaN for no largest element"),
    Known("ArgMin", _nan, "onnxruntime takes NaN for no smallest element"),
    Known("TopK", _nan, "onnxruntime orders NaN otherwise"),
    *(Known(op, _odd, "onnxruntime passes over NaN, and -inf is the lowest number") for op in _POOLS),
    *(Known(op, _odd, "onnxruntime's activations give numbers for NaN") for op in ("RNN", "GRU", "LSTM")),
    *(Known(op, _nothing, "onnxruntime's result of no elements keeps its shape") for op in _REDUCTIONS),
    Known("Squeeze", _no_axis, "onnxruntime squeezes every axis, against its own declaration and ONNX's"),
)
EDGES = (
    Known("Attention", _unseen, "keys that a window excludes, or a mask that ends before them, are not read"),
    Known("Attention", _closed, "a row that a mask closes is 0, whatever its scores are"),
    Known("Attention", _low, "a row is 0 also where its open scores are all -inf"),
    Known("Attention", _vanishes, _SCALED),
    Known("Attention", _one_way, "keys that are to come are not read", "com.microsoft"),
    Known("MultiHeadAttention", _vanishes, _SCALED, "com.microsoft"),
    Known("MultiHeadAttention", _one_way, "keys that are to come are not read", "com.microsoft"),
    Known("Conv", _grouped, _BETWEEN),
    Known("FusedConv", _grouped, _BETWEEN, "com.microsoft"),
    Known("ConvTranspose", _grouped, _BETWEEN),
    Known("Conv", _odd_weights, _MARGIN),
    Known("FusedConv", _odd_weights, _MARGIN, "com.microsoft"),
    Known("ConvTranspose", _odd_weights, _MARGIN),
    Known("ReduceProd", _by_order, "whether a product underflows before it meets an infinity is its order's"),
)


def excused(found: judge.Finding, subject: Subject) -> str | None:
    """The reason why a finding is no failure, if there is one."""
    table = {"differs": DIFFERS, "edge": EDGES}.get(found.kind, ())
    kinds = {(node.domain, node.op_type) for node in subject.model.graph.node}
    cases = [case for case in table if (case.domain, case.op) in kinds]
    reasons = (
        case.reason
        for feeds in (subject.feeds if cases else ())
        for at in applied(subject.model, feeds)
        for case in cases
        if (case.domain, case.op) == (at.node.domain, at.node.op_type) and case.when(at)
    )
    return next(reasons, None)


def applied(model: onnx.ModelProto, feeds: Feeds) -> list[Applied]:
    """The nodes of a graph with what the definitions bring to each; nothing where they refuse the graph."""
    shown = onnx.ModelProto()
    shown.CopyFrom(model)
    names = [name for node in model.graph.node for name in node.output if name]
    del shown.graph.output[:]
    shown.graph.output.extend(onnx.helper.make_empty_tensor_value_info(name) for name in names)
    made = judge.Oracle(shown, None).definitions(feeds)
    if isinstance(made, Exception):
        return []
    held = {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer}
    values = {**held, **feeds, **dict(zip(names, made, strict=True))}
    return [
        Applied(node, [a if isinstance(a := values.get(name), np.ndarray) else None for name in node.input])
        for node in model.graph.node
    ]
