"""A model of one node, run by onnxruntime and Orthrus in turns in one process, one thread each."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper

import orthrus

MS, ML = "com.microsoft", "ai.onnx.ml"
OPSETS = {"": 22, MS: 1, ML: 3}

Case = tuple[onnx.NodeProto, dict[str, Any], dict[str, np.ndarray]]
"""A node, what it is fed and what its model holds."""


@dataclass(frozen=True)
class Measured:
    """Fastest runs in seconds, the largest difference of results, operators that run by their definition."""

    theirs: float
    ours: float
    apart: float
    how: str

    @property
    def ratio(self) -> float:
        """Above 1: faster than onnxruntime."""
        return self.theirs / self.ours


def model(case: Case, opset: int = OPSETS[""]) -> bytes:
    """The case's node as a model."""
    node, fed, held = case
    inputs = [helper.make_tensor_value_info(k, _element(v), v.shape) for k, v in fed.items()]
    outputs = [onnx.ValueInfoProto(name=name) for name in node.output if name]
    graph = helper.make_graph(
        [node], "g", inputs, outputs, [numpy_helper.from_array(np.asarray(v), k) for k, v in held.items()]
    )
    opsets = [helper.make_opsetid(*each) for each in (OPSETS | {"": opset}).items()]
    return bytes(helper.make_model(graph, ir_version=10, opset_imports=opsets).SerializeToString())


def _element(array: np.ndarray) -> int:
    return (
        onnx.TensorProto.STRING if array.dtype.kind in "OU" else helper.np_dtype_to_tensor_dtype(array.dtype)
    )


def _runs(runtime: Any, made: bytes) -> Any:
    options = runtime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    return runtime.InferenceSession(made, options, providers=["CPUExecutionProvider"])


LONG = 1e-4
"""Seconds from which a run is measured in processor time, which others on the machine do not lengthen; its
clock takes a microsecond to read."""


def _turn(run: Callable[[], Any], seconds: float, clock: Callable[[], float]) -> float:
    """The fastest of the runs that fit into `seconds`, one at least."""
    best, end = float("inf"), time.perf_counter() + seconds
    while True:
        start = clock()
        run()
        best = min(best, clock() - start)
        if time.perf_counter() >= end:
            return best


def measured(case: Case, seconds: float, rounds: int = 8, opset: int = OPSETS[""]) -> Measured | None:
    """What a case takes; None where onnxruntime has no kernel for it."""
    made, feeds = model(case, opset), case[1]
    try:
        theirs = _runs(onnxruntime, made)
        wanted = theirs.run(None, feeds)
    except Exception:
        return None
    ours = _runs(orthrus, made)
    got = ours.run(None, feeds)
    runs = [partial(session.run, None, feeds) for session in (theirs, ours)]
    once = [_turn(run, 0, time.perf_counter) for run in runs]
    clock = time.process_time if min(once) > LONG else time.perf_counter
    best = [float("inf")] * 2
    for _ in range(rounds):
        for i, run in enumerate(runs):
            best[i] = min(best[i], _turn(run, seconds / 2 / rounds, clock))
    return Measured(*best, max(map(_apart, wanted, got)), ", ".join(sorted(set(_by_definition(ours)))))


def _apart(wanted: Any, got: Any) -> float:
    """The largest difference of two results; infinite where they are not alike in kind."""
    if not isinstance(wanted, np.ndarray) or wanted.dtype.kind in "OU":
        return 0.0 if np.array_equal(wanted, got) else float("inf")
    if wanted.shape != got.shape or wanted.dtype != got.dtype:
        return float("inf")
    with np.errstate(all="ignore"):
        differ = np.abs(wanted.astype(np.float64) - got.astype(np.float64))
    return float(np.nan_to_num(differ, nan=0.0).max(initial=0))


def _by_definition(session: Any) -> Iterator[str]:
    for step in session._sess._engine.program.calls:
        plans = getattr(step.kernel.run, "plans", None)
        if plans is None:
            yield step.kernel.name
            continue
        for plan in plans.values():
            for each in plan.steps if plan is not None else ():
                if each.spec is None:
                    yield each.node.op_type
