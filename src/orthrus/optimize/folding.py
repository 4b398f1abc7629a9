"""Passes that compute now what will not change: constant inputs, known shapes, known branches.

Folding runs an operator's own definition. What fails, takes too long or grows too large is left for run time,
where it meets its error or its memory budget; random operators and the dequantization of weights are never
folded.
"""

from __future__ import annotations

import dataclasses
import time
from functools import partial
from typing import Any

import numpy as np

from ..errors import ALL as ERRORS
from ..ir import Graph, LazyArray, Node, TensorType, Value, element_of, in_memory
from ..limits import using
from ..ops.contents import content
from ..ops.infer import merged
from ..ops.tensor.movement import VIEWS
from .rewrite import KEPT_BYTES, Work

_FAILURES: tuple[type[Exception], ...] = (
    *ERRORS, ArithmeticError, ValueError, TypeError, IndexError, KeyError, AttributeError, MemoryError,
    NotImplementedError)
_SECONDS = 5.0
_GROWTH = 4
_HEAVY = frozenset({
    "MatMul", "Gemm", "Conv", "ConvTranspose", "Einsum", "LSTM", "GRU", "RNN", "Attention", "Det",
    "ConvInteger", "MatMulInteger", "QLinearConv", "QLinearMatMul", "DeformConv", "NonMaxSuppression",
    "Unique", "TopK", "Resize", "RegexFullMatch", "StringSplit", "TfIdfVectorizer", "DFT", "STFT"})
_HEAVY_ELEMENTS = 1 << 18
_KEPT = frozenset({"DequantizeLinear"})
_VIEWS = VIEWS | {"Transpose"}
_QUICK = _VIEWS | {"Cast", "CastLike"}
"""What is computed anew for each look at it, as operators that broadcast are, where its input is stored."""


def fold_constants(work: Work) -> int:
    """Replace nodes whose inputs are all constant by their results."""
    count, start, journal = 0, time.monotonic(), work.entries["fold_constants"]
    limit = work.limits.max_fold_bytes
    with using(dataclasses.replace(work.limits, max_tensor_bytes=min(limit, work.limits.max_tensor_bytes))):
        for node in work.graph.nodes:
            if node in work.removed or not _foldable(node):
                continue
            if time.monotonic() - start > _SECONDS:
                work.decline("fold_constants", node, "folding has taken its time")
                break
            if work.left[0] <= 0:
                break
            arrays = _results(work, node)
            if arrays is None:
                continue
            freed = sum(_bytes(v.const) for v in set(node.inputs) if v is not None and len(v.uses) == 1)
            size = sum(map(_bytes, arrays))
            view = node.op_type in _VIEWS
            grown = 0 if view else size - freed
            if grown > 0 and (size > limit or journal.grown + grown > _GROWTH * limit):
                work.decline(
                    "fold_constants", node, f"its {size} bytes are over the budget for folded constants"
                )
                continue
            work.take()
            journal.grown += grown
            for value, array in zip(list(node.outputs), arrays, strict=False):
                if value is not None:
                    work.fold(value, array)
            work.remove(node)
            count += 1
    return count


def _foldable(node: Node) -> bool:
    op = node.op
    if (
        op is None
        or "rng" in op.runtime
        or (not node.domain and node.op_type in _KEPT)
        or node.has_bodies
    ):
        return False
    if not node.inputs and node.op_type != "Constant":
        return False
    for value in node.inputs:
        if value is not None and not isinstance(value.const, np.ndarray):
            return False
    if not any(v is not None for v in node.outputs):
        return False
    if node.op_type in _HEAVY:
        return sum(v.const.size for v in node.inputs if v is not None) <= _HEAVY_ELEMENTS
    return True


def _results(work: Work, node: Node) -> list[np.ndarray] | None:
    """What `node` computes, or None where it has to stay."""
    expected = sum(_type_bytes(v) for v in node.outputs if v is not None)
    if expected > _GROWTH * work.limits.max_fold_bytes and node.op_type not in _VIEWS:
        work.decline("fold_constants", node, f"its {expected} bytes are over the budget for folded constants")
        return None
    try:
        with np.errstate(all="ignore"):
            run = node.op.bind(node.attrs, len(node.outputs))
            inputs = [v.const if v is not None else None for v in node.inputs]
            result = run(*map(in_memory, inputs))
    except _FAILURES as error:
        work.decline("fold_constants", node, f"{type(error).__name__}: {str(error)[:200]}")
        return None
    given = result if isinstance(result, tuple) else (result,)
    arrays: list[np.ndarray] = []
    for value, array in zip(node.outputs, given, strict=False):
        if value is None:
            arrays.append(np.empty(0))
            continue
        if isinstance(array, np.generic):
            array = np.asarray(array)
        if not isinstance(array, np.ndarray):
            return None
        try:
            if value.elem is not None and element_of(array.dtype) != value.elem:
                work.decline("fold_constants", node, f"it gives {array.dtype}, typed {value.elem.text}")
                return None
        except TypeError:
            return None
        if array.nbytes >= KEPT_BYTES and (node.op_type in _QUICK or node.op.broadcasts):
            again = partial(_computed, run, len(arrays), inputs)
            array = LazyArray.computed(again, array, *(a for a in inputs if a is not None))
        arrays.append(array)
    return arrays if len(arrays) == len(node.outputs) else None


def _computed(run: Any, index: int, inputs: list[Any]) -> np.ndarray:
    """Result `index` of a node's definition on arrays, some of them stored."""
    with np.errstate(all="ignore"):
        result = run(*map(in_memory, inputs))
    return np.asarray(result[index] if isinstance(result, tuple) else result)


def _bytes(array: Any) -> int:
    return (
        0
        if not isinstance(array, np.ndarray)
        else 64 * array.size
        if array.dtype == object
        else int(array.nbytes)
    )


def _type_bytes(value: Value) -> int:
    shape = value.shape
    if shape is None or value.elem is None or not all(isinstance(d, int) for d in shape):
        return 0
    size = value.elem.numpy.itemsize
    for d in shape:
        size *= d
    return size


def fold_shapes(work: Work) -> int:
    """Constants for small integer tensors whose elements are known, one node for those that hold the same
    dimensions, and Reshapes told by copied dimensions."""
    count = 0
    seen: dict[Any, Value] = {}
    for node in work.graph.nodes:
        if node in work.removed or node.domain:
            continue
        if node.op_type == "Reshape" and _tell_reshape(work, node):
            count += 1
        if len(node.outputs) != 1 or (value := node.outputs[0]) is None or not node.inputs:
            continue
        if value.content is None:
            value.content = content(node, node.inputs)
        array = _known(value)
        if array is None:
            if value.content is not None and None not in value.content and len(value.shape or (0, 0)) < 2:
                key = (value.elem, value.shape == (), value.content)
                first = seen.setdefault(key, value)
                if first.node in work.removed:
                    first = seen[key] = value
                if first is not value and work.can_replace(value, first) and not value.dead and work.take():
                    work.replace(value, first)
                    work.remove(node)
                    count += 1
            continue
        if not work.take():
            break
        work.fold(value, array)
        work.remove(node)
        count += 1
    return count


def _known(value: Value) -> np.ndarray | None:
    """The tensor that `value.content` tells completely."""
    if (
        value.content is None
        or value.elem is None
        or value.shape is None
        or value.elem.numpy.kind not in "iu"
    ):
        return None
    if not all(isinstance(d, int) for d in value.content):
        return None
    shape = value.shape
    if len(shape) > 1 or len(value.content) != (1 if not shape else shape[0] if isinstance(shape[0], int) else
                                                len(value.content)):
        return None
    bounds = np.iinfo(value.elem.numpy)
    if not all(bounds.min <= d <= bounds.max for d in value.content):
        return None
    return np.array(value.content, value.elem.numpy).reshape(() if not shape else (len(value.content),))


def _tell_reshape(work: Work, node: Node) -> bool:
    """Give a Reshape to a computed shape a constant one: numbers, 0 for a dimension that stays, -1 as it
    was."""
    x, shape = node.inputs[:2]
    if x is None or shape is None or shape.const is not None or shape.content is None or x.shape is None:
        return False
    if shape.shape is None or len(shape.shape) != 1 or shape.shape[0] != len(shape.content):
        return False
    told: list[int] = []
    for i, d in enumerate(shape.content):
        if isinstance(d, int):
            if d == 0 and node.attribute("allowzero"):
                return False
            told.append(d)
        elif d is not None and i < len(x.shape) and x.shape[i] == d:
            told.append(0)
        else:
            return False
    if not work.take():
        return False
    maker = shape.node
    constant = work.constant(np.array(told, np.int64), shape.name)
    Graph.set_input(node, 1, constant)
    node.attrs.pop("allowzero", None)
    if maker is not None and maker in work.own and all(v is None or v.dead for v in maker.outputs):
        work.remove(maker)
    return True


def fold_branches(work: Work) -> int:
    """Put the branch an If always takes in the If's place."""
    graph = work.graph
    if not any(n.op_type == "If" and not n.domain for n in graph.nodes):
        return 0
    count, out = 0, list[Node]()
    for node in graph.nodes:
        branch = _taken(node)
        if branch is None or not _fits(work, node, branch) or not work.take():
            out.append(node)
            continue
        out += _inline(work, node, branch)
        count += 1
        work.new_bodies = True
    graph.nodes = out
    return count


def _taken(node: Node) -> Graph | None:
    if (
        node.op_type != "If"
        or node.domain
        or node.inputs[0] is None
        or not isinstance(node.inputs[0].const, np.ndarray)
        or node.inputs[0].const.size != 1
    ):
        return None
    taken = node.attrs["then_branch" if node.inputs[0].const.reshape(()) else "else_branch"]
    return taken if isinstance(taken, Graph) else None


def _fits(work: Work, node: Node, branch: Graph) -> bool:
    """Whether the branch's results can take the place of the If's, names of graph outputs included."""
    if len(branch.outputs) < len(node.outputs) or branch.inputs:
        return False
    own = set(branch.nodes)
    taken: set[Value] = set()
    for old, new in zip(node.outputs, branch.outputs, strict=False):
        if old is None or not old.graph_outputs:
            continue
        if new.node is None or new.node not in own or new in taken:
            work.decline(
                "fold_branches", node, f"%{old.name} is a graph output and the branch does not make it"
            )
            return False
        taken.add(new)
    return True


def _inline(work: Work, node: Node, branch: Graph) -> list[Node]:
    graph = work.graph
    for value in branch.initializers.values():
        if value.name in graph.initializers:
            value.name = graph.fresh(value.name)
        graph.add_initializer(value)
    results, nodes = branch.outputs, branch.nodes
    branch.set_outputs([])
    branch.nodes = []
    for inner in nodes:
        for body in inner.bodies():
            body.outer = graph
    node.attrs = {k: v for k, v in node.attrs.items() if v is not branch}
    work.own.update(nodes)
    for old, new in zip(list(node.outputs), results, strict=False):
        if old is not None:
            if new.type is None or (isinstance(new.type, TensorType) and new.type.shape is None):
                new.type = merged(new.type, old.type)
            work.replace(old, new)
    work.remove(node)
    return nodes
