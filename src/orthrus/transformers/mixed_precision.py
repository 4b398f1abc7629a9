"""Which nodes have to stay float32 for a model's results to stay right, found by measuring.

In: a float32 model, feeds, and what is still right. Out: the model in float16 or bfloat16 but for those
nodes. The invariant: what comes out was run on all the feeds and was right.

A round compares every value of the narrow model with the float one's, and keeps the nodes wide at which the
error grows most, twice as many each time; once the results are right, those that need not stay are let go.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from onnx import ModelProto

from ..quantization.refused import InvalidValue
from .float16 import convert_float_to_bfloat16, convert_float_to_float16, opened

__all__ = ["auto_convert_mixed_precision", "convert_float_to_mixed_precision", "nodes_that_stay_float"]

logger = logging.getLogger(__name__)
Feeds = Mapping[str, Any]
Right = Callable[[list[Any], list[Any]], bool]
"""(the float model's outputs, the narrow one's) for one feed -> whether the latter are still right."""


def convert_float_to_mixed_precision(model: ModelProto | str | os.PathLike[str],
                                     feeds: Feeds | Sequence[Feeds], tolerance: float = 0.01,
                                     validate_fn: Right | None = None,
                                     keep_io_types: bool | Sequence[str] = True,
                                     op_block_list: Iterable[str] | None = None,
                                     node_block_list: Iterable[str] = (), bfloat16: bool = False,
                                     providers: Sequence[Any] | None = None) -> ModelProto:
    """A copy of the model in float16 (or bfloat16) with as few nodes in float32 as its results need.

    `feeds`: one or more, in the float model's types. `tolerance`: how far an output may be from the float
    model's, at most, relative to the largest magnitude in it; of one of integers, which share may differ.
    `validate_fn(expected, got)`: what is right instead. `op_block_list`, `node_block_list`: what stays
    float32 anyway; for these and `keep_io_types` see `convert_float_to_float16`. Raises: InvalidValue without
    feeds, and where not even the model with all nodes in float32 is right.
    """
    search = _Search(model, feeds, tolerance, validate_fn, keep_io_types, op_block_list, node_block_list,
                     bfloat16, providers)
    return search.converted(search.run())


def nodes_that_stay_float(model: ModelProto | str | os.PathLike[str], feeds: Feeds | Sequence[Feeds],
                          tolerance: float = 0.01, **given: Any) -> list[str]:
    """The names of the nodes that `convert_float_to_mixed_precision` finds, in the model's order; a node
    without a name is called by its operator and its place. Takes the same parameters."""
    search = _Search(model, feeds, tolerance, **given)
    stay = search.run()
    return [name for name in search.names if name in stay]


def auto_convert_mixed_precision(model: ModelProto, feed_dict: Feeds, validate_fn: Right | None = None,
                                 rtol: float | None = None, atol: float | None = None,
                                 keep_io_types: bool = False) -> ModelProto:
    """As `convert_float_to_mixed_precision`, with onnxconverter-common's parameters: outputs are right where
    `validate_fn` says so, and all their values are within `rtol` and `atol` where one of these is given.
    Raises: InvalidValue where nothing says what is right."""
    if validate_fn is None and rtol is None and atol is None:
        raise InvalidValue("nothing says which results are right", expected="validate_fn, rtol or atol")

    def right(expected: list[Any], got: list[Any]) -> bool:
        close = {"rtol": 1e-5 if rtol is None else rtol, "atol": 1e-8 if atol is None else atol}
        near = rtol is None and atol is None or all(
            np.allclose(a, b, equal_nan=True, **close) for a, b in zip(expected, got, strict=True))
        return near and (validate_fn is None or validate_fn(expected, got))

    return convert_float_to_mixed_precision(model, feed_dict, validate_fn=right, keep_io_types=keep_io_types)


def _within(tolerance: float) -> Right:
    def right(expected: list[Any], got: list[Any]) -> bool:
        return all(_distance(a, b) <= tolerance for a, b in zip(expected, got, strict=True))
    return right


def _distance(expected: Any, got: Any) -> float:
    """How far an output is from what it should be, relative to its largest magnitude or number."""
    if not isinstance(expected, np.ndarray) or expected.dtype.kind not in "fV":
        differ = np.asarray(np.asarray(expected) != np.asarray(got))
        return float(differ.mean()) if differ.size else 0.0
    with np.errstate(invalid="ignore"):
        exact, narrow = expected.astype(np.float64), got.astype(np.float64)
        if not (np.isfinite(exact) == np.isfinite(narrow)).all():
            return np.inf
        finite = np.isfinite(exact)
        largest = np.abs(exact[finite]).max(initial=0.0)
        apart = np.abs(exact[finite] - narrow[finite]).max(initial=0.0)
    return float(apart / largest) if largest else float(apart)


class _Search:
    """The search for one model; see `convert_float_to_mixed_precision`."""

    def __init__(self, model: Any, feeds: Feeds | Sequence[Feeds], tolerance: float,
                 validate_fn: Right | None = None, keep_io_types: bool | Sequence[str] = True,
                 op_block_list: Iterable[str] | None = None, node_block_list: Iterable[str] = (),
                 bfloat16: bool = False, providers: Sequence[Any] | None = None) -> None:
        self.feeds = [feeds] if isinstance(feeds, Mapping) else list(feeds)
        if not self.feeds:
            raise InvalidValue("there are no feeds to measure with", expected="at least one")
        self.model, self.right, self.bfloat16 = ModelProto(), validate_fn or _within(tolerance), bfloat16
        self.model.CopyFrom(opened(model))
        self.given: dict[str, Any] = {
            "keep_io_types": keep_io_types,
            "op_block_list": None if op_block_list is None else list(op_block_list)}
        self.always, self.providers = set(node_block_list), list(providers or ["CPUExecutionProvider"])
        self.names = self._named()
        session = _session(self.model, self.providers)
        self.expected = [session.run(None, dict(feed)) for feed in self.feeds]
        self.inputs = {i.name: i.type for i in session.get_inputs()}

    def _named(self) -> list[str]:
        """Give every node of the graph a name of its own; the names."""
        taken = {node.name for node in self.model.graph.node}
        seen = set[str]()
        for index, node in enumerate(self.model.graph.node):
            if not node.name or node.name in seen:
                node.name = f"{node.op_type}_{index}"
                while node.name in taken:
                    node.name += "_"
            seen.add(node.name)
            taken.add(node.name)
        return [node.name for node in self.model.graph.node]

    def converted(self, stay: set[str]) -> ModelProto:
        """The model with all but some nodes narrow."""
        copy = ModelProto()
        copy.CopyFrom(self.model)
        convert: Any = convert_float_to_bfloat16 if self.bfloat16 else convert_float_to_float16
        made: ModelProto = convert(copy, node_block_list=self.always | stay, **self.given)
        return made

    def run(self) -> set[str]:
        """The nodes that have to stay float32, besides those that do anyway."""
        stay, count = set[str](), 1
        while not self._right(stay):
            if len(stay) == len(self.names):
                raise InvalidValue("the model's results are not right with all nodes in float32 either",
                                   cure="ask for less, or let the inputs and outputs be float32")
            worst = [name for name in self._ranked(stay) if name not in stay]
            stay.update(worst[:count])
            count *= 2
        stay = self._trimmed(stay)
        logger.info("%d of %d nodes stay float32: %s", len(stay), len(self.names), ", ".join(sorted(stay)))
        return stay

    def _right(self, stay: set[str]) -> bool:
        session = _session(self.converted(stay), self.providers)
        for feed, expected in zip(self.feeds, self.expected, strict=True):
            if not self.right(expected, session.run(None, self._fed(session, feed))):
                return False
        return True

    def _trimmed(self, stay: set[str]) -> set[str]:
        """What is left of the nodes when all that need not stay are let go, halves of them first."""
        size = len(stay)
        while size := size // 2:
            for start in range(0, len(names := [n for n in self.names if n in stay]), size):
                fewer = stay.difference(names[start:start + size])
                if fewer != stay and self._right(fewer):
                    stay = fewer
        return stay

    def _ranked(self, stay: set[str]) -> list[str]:
        """The nodes by how much the error grows at them on the first feed, the worst first."""
        errors = self._errors(self.converted(stay))
        growth = dict[str, float]()
        for node in self.model.graph.node:
            before = max((errors.get(name, 0.0) for name in node.input), default=0.0)
            after = max((errors.get(name, 0.0) for name in node.output), default=0.0)
            growth[node.name] = 0.0 if np.isinf(before) else after - before
        return sorted(growth, key=lambda name: -growth[name])

    def _errors(self, narrow: ModelProto) -> dict[str, float]:
        """How far each value of the graph is from what it should be."""
        names = [name for node in self.model.graph.node for name in node.output if name]
        exact = dict[str, np.ndarray]()
        errors = dict[str, float]()
        session = _session(self.model, self.providers, names)
        with session.watch(lambda name, array: exact.setdefault(name, np.array(array))):
            session.run(None, dict(self.feeds[0]))
        session = _session(narrow, self.providers, names)

        def compare(name: str, array: Any) -> None:
            if name in exact and exact[name].dtype.kind == "f":
                errors[name] = _distance(exact[name], np.asarray(array))

        with session.watch(compare):
            session.run(None, self._fed(session, self.feeds[0]))
        return errors

    def _fed(self, session: Any, feed: Feeds) -> dict[str, Any]:
        """The feed in the types that a session's inputs have."""
        given = dict(feed)
        for arg in session.get_inputs():
            if arg.name in given and arg.type != self.inputs.get(arg.name):
                given[arg.name] = _cast(given[arg.name], arg.type)
        return given


def _cast(value: Any, kind: str) -> np.ndarray:
    import ml_dtypes

    return np.asarray(value).astype({"tensor(float16)": np.float16}.get(kind, ml_dtypes.bfloat16))


def _session(model: ModelProto, providers: Sequence[Any], watched: Sequence[str] | None = None) -> Any:
    """A session, without optimization where it is to be watched."""
    from .. import GraphOptimizationLevel, InferenceSession, SessionOptions

    options = SessionOptions()
    if watched is not None:
        options.graph_optimization_level = GraphOptimizationLevel.ORT_DISABLE_ALL
        options.add_session_config_entry("orthrus.watch", json.dumps(list(watched)))
    return InferenceSession(model, options, providers=list(providers))
