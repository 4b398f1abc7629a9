"""Tree ensembles of ai.onnx.ml: rows of features in; aggregated targets, or labels and scores, out.

The attributes become one `Forest` of flat arrays when the node is bound, and every row walks every tree at
once, a level per step. A forest is acyclic and complete by construction, so that a walk always ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...errors import InvalidArgument
from ...ir import ElementType, TensorType, Type, Value
from ...limits import bounded
from ...records import dataclass
from ..define import define
from .encoders import ML
from .linear import (
    TRANSFORMS,
    labels_of,
    rows_of,
    rows_type,
    transformed,
    transformed_targets,
    two_columns,
)

_MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ", "BRANCH_MEMBER")
_COMPARE = (np.less_equal, np.less, np.greater_equal, np.greater, np.equal, np.not_equal)
_MEMBER = 6
_AGGREGATES = ("AVERAGE", "SUM", "MIN", "MAX")
_CHUNK = 1 << 19


@dataclass(frozen=True)
class Forest:
    """Branch nodes and leaves of all trees. A child or root `i >= 0` is a branch, `~i` the leaf number `i`.

    Leaf `i` adds `weight[k]` to target `target[k]` for k from `start[i]` to `start[i + 1]`. `mode` indexes
    `_MODES`. `sets` are the sorted (node, value) pairs of the set membership nodes.
    """

    roots: np.ndarray
    feature: np.ndarray
    threshold: np.ndarray
    mode: np.ndarray
    yes: np.ndarray
    no: np.ndarray
    missing: np.ndarray
    start: np.ndarray
    target: np.ndarray
    weight: np.ndarray
    targets: int
    sets: tuple[np.ndarray, np.ndarray] | None = None

    def leaves(self, x: np.ndarray) -> np.ndarray:
        """The number of the leaf each row of `x` ends in, [rows, trees]. Raises InvalidArgument for too
        few features."""
        if self.feature.size and self.feature.max() >= x.shape[1]:
            raise InvalidArgument(f"a tree reads feature {self.feature.max()}",
                                  found=f"{x.shape[1]} features",
                                  expected=f"at least {self.feature.max() + 1}")
        at = np.tile(self.roots, len(x))
        active = np.flatnonzero(at >= 0)
        single = int(self.mode[0]) if self.mode.size and (self.mode == self.mode[0]).all() else None
        any_missing = bool(self.missing.any())
        trees = max(len(self.roots), 1)
        while active.size:
            node = at[active]
            value = x[active // trees, self.feature[node]]
            taken = self._decide(value, node, single)
            if any_missing:
                taken |= np.isnan(value) & self.missing[node]
            step = np.where(taken, self.yes[node], self.no[node])
            at[active] = step
            active = active[step >= 0]
        return (~at).reshape(len(x), len(self.roots))

    def _decide(self, value: np.ndarray, node: np.ndarray, single: int | None) -> np.ndarray:
        if single is not None and single != _MEMBER:
            return _COMPARE[single](value, self.threshold[node])
        taken = np.zeros(value.shape, bool)
        mode = self.mode[node]
        for kind in range(len(_MODES)) if single is None else (single,):
            here = np.flatnonzero(mode == kind)
            if here.size and kind != _MEMBER:
                taken[here] = _COMPARE[kind](value[here], self.threshold[node[here]])
            elif here.size and self.sets is not None:
                taken[here] = _is_member(self.sets, node[here], value[here])
        return taken

    def scores(self, x: np.ndarray, aggregate: str) -> tuple[np.ndarray, np.ndarray]:
        """The aggregate over all trees [rows, targets], float64, and which targets any leaf spoke to."""
        bounded((len(x), self.targets), np.dtype(np.float64))
        y = np.full((len(x), self.targets), {"MIN": np.inf, "MAX": -np.inf}.get(aggregate, 0.0))
        spoken = np.zeros(y.shape, bool)
        rows = max(_CHUNK // max(len(self.roots), 1), 1)
        for first in range(0, len(x), rows):
            leaf = self.leaves(x[first:first + rows])
            self._add(leaf, aggregate, y[first:first + rows], spoken[first:first + rows])
        if aggregate == "AVERAGE" and len(self.roots):
            y /= len(self.roots)
        y[~spoken] = 0
        return y, spoken

    def _add(self, leaf: np.ndarray, aggregate: str, y: np.ndarray, spoken: np.ndarray) -> None:
        counts = np.diff(self.start)
        if self.targets == 1 and aggregate in ("SUM", "AVERAGE") and (counts == 1).all():
            y[:, 0] = self.weight[self.start[leaf]].sum(1)
            spoken[:] = leaf.shape[1] > 0
            return
        flat = leaf.reshape(-1)
        many = counts[flat]
        ends = np.cumsum(many)
        total = int(ends[-1]) if ends.size else 0
        entry = np.repeat(self.start[flat] - (ends - many), many) + np.arange(total)
        row = np.repeat(np.arange(len(leaf)).repeat(leaf.shape[1]), many)
        cell = row * self.targets + self.target[entry]
        spoken.reshape(-1)[cell] = True
        if aggregate in ("SUM", "AVERAGE"):
            y += np.bincount(cell, self.weight[entry], y.size).reshape(y.shape)
        else:
            (np.minimum if aggregate == "MIN" else np.maximum).at(y.reshape(-1), cell, self.weight[entry])


def _distinct(values: np.ndarray) -> np.ndarray:
    """Each value once, in order. `np.unique` alone would import numpy's masked arrays first."""
    return np.unique(values, return_counts=True)[0]


def _is_member(sets: tuple[np.ndarray, np.ndarray], node: np.ndarray, value: np.ndarray) -> np.ndarray:
    """Whether `value` is in the set of its node; NaN is in none."""
    nodes, values = sets
    if not nodes.size:
        return np.zeros(node.shape, bool)
    spread = _distinct(values)
    keys = nodes * len(spread) + np.searchsorted(spread, values)
    place = np.minimum(np.searchsorted(spread, value), len(spread) - 1)
    wanted = node * len(spread) + place
    found = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return (keys[found] == wanted) & (spread[place] == value)


def _acyclic(roots: np.ndarray, yes: np.ndarray, no: np.ndarray) -> bool:
    """Whether every walk over the branches ends in a leaf."""
    children = np.concatenate((yes, no))
    parents = np.bincount(children[children >= 0], minlength=len(yes))
    if (parents <= 1).all():
        return not parents[roots[roots >= 0]].any()
    ready = np.flatnonzero(parents == 0)
    done = 0
    while ready.size:
        done += ready.size
        below = np.concatenate((yes[ready], no[ready]))
        below = below[below >= 0]
        np.subtract.at(parents, below, 1)
        below = _distinct(below)
        ready = below[parents[below] == 0]
    return done == len(yes)


def _floats(values: Any, tensor: np.ndarray | None, count: int, name: str) -> np.ndarray:
    """An attribute given as a list of floats or as a tensor, as an array of `count` numbers."""
    given = np.asarray([] if values is None else values, np.float32) if tensor is None else tensor.reshape(-1)
    if given.size != count:
        raise ValueError(f"{name} has {given.size} entries, expected {count}")
    return given


def _ints(values: Any, count: int, name: str) -> np.ndarray:
    given = np.asarray([] if values is None else values, np.int64)
    if given.size != count:
        raise ValueError(f"{name} has {given.size} entries, expected {count}")
    return given


class _Places:
    """Where a (tree, node) pair stands in the list of nodes."""

    def __init__(self, trees: np.ndarray, nodes: np.ndarray) -> None:
        self.trees, self.nodes = _distinct(trees), _distinct(nodes)
        keys = np.searchsorted(self.trees, trees) * len(self.nodes) + np.searchsorted(self.nodes, nodes)
        self.order = np.argsort(keys, kind="stable")
        self.keys = keys[self.order]
        if (again := np.flatnonzero(self.keys[1:] == self.keys[:-1])).size:
            i = self.order[again[0] + 1]
            raise ValueError(f"Node {nodes[i]} in tree {trees[i]} is already there.")

    def __call__(self, trees: np.ndarray, nodes: np.ndarray, name: str) -> np.ndarray:
        """The places of the pairs. Raises ValueError for a pair that is not there."""
        if not trees.size:
            return np.zeros(0, np.int64)
        last = len(self.keys) - 1
        if last < 0:
            raise ValueError(f"{name} names node {nodes[0]} of tree {trees[0]}, which has no nodes")
        tree = np.minimum(np.searchsorted(self.trees, trees), len(self.trees) - 1)
        node = np.minimum(np.searchsorted(self.nodes, nodes), len(self.nodes) - 1)
        wanted = tree * len(self.nodes) + node
        at = np.minimum(np.searchsorted(self.keys, wanted), last)
        wrong = (self.trees[tree] != trees) | (self.nodes[node] != nodes) | (self.keys[at] != wanted)
        if wrong.any():
            i = int(np.flatnonzero(wrong)[0])
            raise ValueError(f"{name} names node {nodes[i]} of tree {trees[i]}, which does not exist")
        return self.order[at]


def _grown(nodes: dict[str, Any], entries: Sequence[Any], targets: int) -> Forest:
    """A forest from the attributes of the node-list form: `nodes` by name without its prefix, and of the
    leaves' weights the trees, nodes, targets and weights."""
    modes = list(nodes["modes"] or ())
    count = len(modes)
    trees = _ints(nodes["treeids"], count, "nodes_treeids")
    ids = _ints(nodes["nodeids"], count, "nodes_nodeids")
    if unknown := set(modes) - {*_MODES[:_MEMBER], "LEAF"}:
        raise ValueError(f"unknown node mode {min(unknown)!r}")
    code = {mode: i for i, mode in enumerate(_MODES)}
    mode = np.array([code.get(m, -1) for m in modes], np.int64)
    branch = np.flatnonzero(mode >= 0)
    number = np.full(count, -1)
    number[branch] = np.arange(len(branch))
    leaf = np.flatnonzero(mode < 0)
    number[leaf] = ~np.arange(len(leaf))
    places = _Places(trees, ids)
    yes, no = (number[places(trees[branch], _ints(nodes[key], count, f"nodes_{key}")[branch], f"nodes_{key}")]
               for key in ("truenodeids", "falsenodeids"))
    feature = _ints(nodes["featureids"], count, "nodes_featureids")[branch]
    if feature.size and feature.min() < 0:
        raise ValueError(f"nodes_featureids holds {feature.min()}, expected feature numbers")
    missing = nodes["missing_value_tracks_true"]
    flags = np.zeros(count, bool) if missing is None or not len(missing) else (
        _ints(missing, count, "nodes_missing_value_tracks_true") != 0)
    threshold = _floats(nodes["values"], nodes["values_as_tensor"], count, "nodes_values")[branch]
    roots = number[_root_places(trees, number, yes, no)]
    if not _acyclic(roots, yes, no):
        raise ValueError("the nodes of a tree form a cycle")
    entry_trees, entry_nodes, entry_targets, weights, tensor = entries
    size = len(entry_targets) if entry_targets is not None else 0
    owner = number[places(_ints(entry_trees, size, "treeids"), _ints(entry_nodes, size, "nodeids"),
                          "a leaf's weight")]
    return Forest(roots, feature, threshold, mode[branch], yes, no, flags[branch],
                  *_filled(owner, _ints(entry_targets, size, "ids"),
                           _floats(weights, tensor, size, "weights"), len(leaf), targets), targets)


def _root_places(trees: np.ndarray, number: np.ndarray, yes: np.ndarray, no: np.ndarray) -> np.ndarray:
    """Where each tree's root stands: its first node that is nobody's child."""
    children = np.concatenate((yes, no))
    child = np.zeros(len(trees), bool)
    child[np.isin(number, children)] = True
    free = np.flatnonzero(~child)
    _, first = np.unique(trees[free], return_index=True)
    if len(first) != len(_distinct(trees)):
        raise ValueError("the nodes of a tree form a cycle: none of them is its root")
    return np.sort(free[first])


def _filled(owner: np.ndarray, target: np.ndarray, weight: np.ndarray, leaves: int, targets: int
            ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The weights by leaf: starts, targets and weights; those of branches, which are never reached, are
    left out."""
    kept = np.flatnonzero(owner < 0)
    leaf = ~owner[kept]
    order = kept[np.argsort(leaf, kind="stable")]
    if order.size and not 0 <= target[order].min() <= target[order].max() < targets:
        raise ValueError(f"a leaf adds to target {target[order].max()}, expected 0 to {targets - 1}")
    start = np.concatenate(([0], np.cumsum(np.bincount(leaf, minlength=leaves))))
    return start, target[order], weight[order].astype(np.float64)


def _base(values: Any, tensor: np.ndarray | None) -> np.ndarray:
    given = tensor if tensor is not None else np.asarray([] if values is None else values, np.float32)
    return given.reshape(-1).astype(np.float64)


def _checked(value: str, known: Sequence[str], name: str) -> str:
    if value not in known:
        raise ValueError(f"{name} is {value!r}, expected one of {', '.join(known)}")
    return value


@define(domain=ML, prepared=("forest", "base"))
def TreeEnsembleRegressor(x, *, aggregate_function: str = "SUM", post_transform: str = "NONE", forest, base):
    """The aggregate of the weights of the leaves a row ends in, plus the base values, float32"""
    y, spoken = forest.scores(rows_of(x), aggregate_function)
    if base.size:
        y = np.where(spoken | (y.shape[1] == 1), y + base, 0)
    return transformed_targets(y, post_transform).astype(np.float32)


@TreeEnsembleRegressor.prepare_with
def _regressor(*, nodes_treeids: list[int] | None = None, nodes_nodeids: list[int] | None = None,
               nodes_featureids: list[int] | None = None, nodes_modes: list[str] | None = None,
               nodes_values: list[float] | None = None, nodes_values_as_tensor: np.ndarray | None = None,
               nodes_truenodeids: list[int] | None = None, nodes_falsenodeids: list[int] | None = None,
               nodes_missing_value_tracks_true: list[int] | None = None,
               target_treeids: list[int] | None = None,
               target_nodeids: list[int] | None = None, target_ids: list[int] | None = None,
               target_weights: list[float] | None = None, target_weights_as_tensor: np.ndarray | None = None,
               base_values: list[float] | None = None, base_values_as_tensor: np.ndarray | None = None,
               n_targets: int = 1, aggregate_function: str, post_transform: str) -> dict[str, Any]:
    _checked(aggregate_function, _AGGREGATES, "aggregate_function")
    _checked(post_transform, TRANSFORMS, "post_transform")
    base = _base(base_values, base_values_as_tensor)
    if n_targets < 1 or base.size not in (0, 1, n_targets):
        raise ValueError(f"{base.size} base_values do not fit {n_targets} targets")
    nodes = _node_lists(locals())
    entries = (target_treeids, target_nodeids, target_ids, target_weights, target_weights_as_tensor)
    return {"forest": _grown(nodes, entries, n_targets), "base": base}


@TreeEnsembleRegressor.infer_with
def _regressor_type(x: Value, *, n_targets: int, **_: Any) -> list[Type]:
    return [rows_type(x, n_targets)]


def _node_lists(attributes: dict[str, Any]) -> dict[str, Any]:
    return {k.removeprefix("nodes_"): v for k, v in attributes.items() if k.startswith("nodes_")}


@define(domain=ML, prepared=("forest", "base", "labels", "only", "positive"))
def TreeEnsembleClassifier(x, *, post_transform: str = "NONE", forest, base, labels, only, positive):
    """The class with the highest sum of leaf weights, and all sums, float32"""
    y, spoken = forest.scores(rows_of(x), "SUM")
    if len(labels) > 2:
        if base.size:
            y, spoken = y + base, np.ones(y.shape, bool)
        chosen = np.where(spoken, y, -np.inf).argmax(1)
        return labels[chosen], transformed(y, post_transform).astype(np.float32)
    if len(labels) < 2:
        return np.repeat(labels, len(y)), transformed_targets(y + base if base.size else y, post_transform
                                                              ).astype(np.float32)
    return _two_classes(y, spoken, post_transform, base, labels, only, positive)


def _two_classes(y: np.ndarray, spoken: np.ndarray, transform: str, base: np.ndarray, labels: np.ndarray,
                 only: int | None, positive: bool) -> tuple[np.ndarray, np.ndarray]:
    """Labels and scores of a binary model, by onnxruntime's rules where a model gives weights for one class
    only.

    `only`: the one class all weights are for, None if for both; `positive`: none is negative. A row in which
    no leaf spoke to the second class has a single score, of the second class; its complement stands for the
    first.
    """
    first, second = y[:, 0], y[:, 1]
    paired = spoken[:, 1]
    if base.size == 2:
        joined = base[1] + first
        scores = np.where(paired[:, None], np.stack((np.where(spoken[:, 0], -joined, 0), joined), 1),
                          np.stack((first + base[0], np.zeros(len(y))), 1))
        lead = np.where(paired, joined, scores[:, 0])
        paired = np.ones(len(y), bool)
    else:
        if base.size:
            first = np.where(spoken[:, 0] | ~paired, first + base[0], 0)
        lead = np.where(paired, second, first)
        scores = np.stack((first, second), 1)
    bound = 0.5 if positive else 0.0
    shown = transformed(scores, transform)
    if not paired.all():
        shown = np.where(paired[:, None], shown, two_columns(first, transform, only is None or not positive))
    if only is not None:
        return labels[(lead > bound).astype(np.intp)], shown.astype(np.float32)
    pair = np.where(paired[:, None], scores, np.stack((-first, first), 1))
    return labels[pair.argmax(1)], shown.astype(np.float32)


@TreeEnsembleClassifier.prepare_with
def _classifier(*, nodes_treeids: list[int] | None = None, nodes_nodeids: list[int] | None = None,
                nodes_featureids: list[int] | None = None, nodes_modes: list[str] | None = None,
                nodes_values: list[float] | None = None, nodes_values_as_tensor: np.ndarray | None = None,
                nodes_truenodeids: list[int] | None = None, nodes_falsenodeids: list[int] | None = None,
                nodes_missing_value_tracks_true: list[int] | None = None,
                class_treeids: list[int] | None = None,
                class_nodeids: list[int] | None = None, class_ids: list[int] | None = None,
                class_weights: list[float] | None = None, class_weights_as_tensor: np.ndarray | None = None,
                base_values: list[float] | None = None, base_values_as_tensor: np.ndarray | None = None,
                classlabels_strings: list[str] | None = None, classlabels_int64s: list[int] | None = None,
                post_transform: str) -> dict[str, Any]:
    _checked(post_transform, TRANSFORMS, "post_transform")
    nodes = _node_lists(locals())
    labels = labels_of(classlabels_strings, classlabels_int64s)
    base = _base(base_values, base_values_as_tensor)
    if not labels.size or base.size not in (0, 1, len(labels)):
        raise ValueError(f"{base.size} base_values do not fit {labels.size} class labels")
    entries = (class_treeids, class_nodeids, class_ids, class_weights, class_weights_as_tensor)
    forest = _grown(nodes, entries, len(labels))
    named = _distinct(np.asarray([] if class_ids is None else class_ids, np.int64))
    return {"forest": forest, "base": base, "labels": labels, "only": int(named[0]) if named.size == 1
            else None,
            "positive": bool((forest.weight >= 0).all())}


@TreeEnsembleClassifier.infer_with
def _classifier_type(x: Value, *, classlabels_strings: list[str] | None = None,
                     classlabels_int64s: list[int] | None = None, **_: Any) -> list[Type]:
    labels = labels_of(classlabels_strings, classlabels_int64s)
    scores = rows_type(x, labels.size)
    elem = ElementType.STRING if labels.dtype == object else ElementType.INT64
    return [TensorType(elem, (scores.shape or (None,))[:1]), scores]


@define(domain=ML, since=5, prepared=("forest",))
def TreeEnsemble(x, *, aggregate_function: int = 1, post_transform: int = 0, forest):
    """The aggregate of the weights of the leaves a row ends in, in the type of x"""
    y, _ = forest.scores(rows_of(x), _AGGREGATES[aggregate_function])
    return transformed_targets(y, TRANSFORMS[post_transform]).astype(x.dtype)


@TreeEnsemble.prepare_with
def _ensemble(*, tree_roots: list[int], nodes_featureids: list[int], nodes_splits: np.ndarray,
              nodes_modes: np.ndarray,
              nodes_truenodeids: list[int], nodes_falsenodeids: list[int], nodes_trueleafs: list[int],
              nodes_falseleafs: list[int], leaf_targetids: list[int], leaf_weights: np.ndarray,
              nodes_missing_value_tracks_true: list[int] | None = None,
              membership_values: np.ndarray | None = None,
              n_targets: int = 1, aggregate_function: int, post_transform: int) -> dict[str, Any]:
    mode = np.asarray(nodes_modes).reshape(-1).astype(np.int64)
    count, leaves = mode.size, np.size(leaf_targetids)
    if count and not 0 <= mode.min() <= mode.max() <= _MEMBER:
        raise ValueError(f"nodes_modes holds {mode.max()}, expected 0 to {_MEMBER}")
    if not 0 <= aggregate_function < 4 or not 0 <= post_transform < 5 or n_targets < 1:
        raise ValueError(f"aggregate_function {aggregate_function}, post_transform {post_transform} or"
                         " n_targets"
                         f" {n_targets} is none that ONNX knows")
    yes = _children(nodes_truenodeids, nodes_trueleafs, count, leaves, "true")
    no = _children(nodes_falsenodeids, nodes_falseleafs, count, leaves, "false")
    roots = np.asarray(tree_roots, np.int64)
    if roots.size and not 0 <= roots.min() <= roots.max() < count:
        raise ValueError(f"tree_roots {roots.tolist()} are not all numbers of the {count} nodes")
    if not _acyclic(roots, yes, no):
        raise ValueError("the nodes of a tree form a cycle")
    feature = _ints(nodes_featureids, count, "nodes_featureids")
    if feature.size and feature.min() < 0:
        raise ValueError(f"nodes_featureids holds {feature.min()}, expected feature numbers")
    missing = nodes_missing_value_tracks_true
    flags = np.zeros(count, bool) if missing is None or not len(missing) else (
        _ints(missing, count, "nodes_missing_value_tracks_true") != 0)
    filled = _filled(~np.arange(leaves), _ints(leaf_targetids, leaves, "leaf_targetids"),
                     _floats(None, leaf_weights, leaves, "leaf_weights"), leaves, n_targets)
    threshold = _floats(None, nodes_splits, count, "nodes_splits")
    sets = _membership(np.flatnonzero(mode == _MEMBER), membership_values)
    return {"forest": Forest(roots, feature, threshold, mode, yes, no, flags, *filled, n_targets, sets)}


def _children(ids: list[int], leaf_flags: list[int], nodes: int, leaves: int, name: str) -> np.ndarray:
    """Children as a forest numbers them. Raises ValueError for a number that is neither a node's nor a
    leaf's."""
    child = _ints(ids, nodes, f"nodes_{name}nodeids")
    is_leaf = _ints(leaf_flags, nodes, f"nodes_{name}leafs") != 0
    wrong = (child < 0) | (child >= np.where(is_leaf, leaves, nodes))
    if wrong.any():
        raise ValueError(f"nodes_{name}nodeids names {child[wrong][0]}, which is no node or leaf")
    return np.where(is_leaf, ~child, child)


def _membership(nodes: np.ndarray, values: np.ndarray | None) -> tuple[np.ndarray, np.ndarray] | None:
    """The sorted (node, value) pairs of the sets, which NaN ends one after the other."""
    if not nodes.size:
        return None
    flat = np.asarray([] if values is None else values).reshape(-1)
    ends = np.isnan(flat)
    which = np.cumsum(ends) - ends
    if which.size and which[~ends].size and which[~ends].max() >= len(nodes):
        raise ValueError(f"membership_values holds more sets than the {len(nodes)} nodes that test"
                         " membership")
    owner, members = nodes[which[~ends]], flat[~ends]
    order = np.lexsort((members, owner))
    return owner[order], members[order]
