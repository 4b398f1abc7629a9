"""numpy's warnings never reach a user: whatever numbers come in, making a session and running it say nothing,
whichever executor runs it."""

from __future__ import annotations

import ast
import contextlib
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from test_ops import NEWEST, one_node, types_of

import orthrus as ort
from orthrus import knobs
from orthrus.ir import HALF
from orthrus.ops import find
from orthrus.ops.schema import newest_opset

SOURCE = Path(ort.__file__).parent
BY_DEFINITIONS = [("CPUExecutionProvider", {"use_codegen": "0"})]
WARNING_ALWAYS = {"mean", "var", "std", "average", "median", "percentile", "quantile", "cov", "corrcoef",
                  "nanmean", "nanvar", "nanstd", "nanmedian", "nanmin", "nanmax"}
"""Functions of numpy that warn of empty arrays or NaN whatever `np.errstate` says."""

Arrays = list[np.ndarray | None]
Feeds = dict[str, np.ndarray]


def spoiled(a: np.ndarray | None) -> np.ndarray | None:
    """The array with what overflows, is no number, or divides by zero in front."""
    if a is None or not a.size or not (a.dtype.kind == "f" or a.dtype in HALF):
        return a
    with np.errstate(all="ignore"):
        most = float(ml_dtypes.finfo(a.dtype).max)
        odd = np.array([np.inf, -np.inf, np.nan, 0, -1, most, -most]).astype(a.dtype)
    a = a.copy()
    a.reshape(-1)[:len(odd)] = odd[:a.size]
    return a


def emptied(arrays: Arrays) -> Arrays:
    """The arrays, those shaped as the first is without elements."""
    first = arrays[0]
    return [a if a is None or first is None or a.shape != first.shape or not a.ndim else a[..., :0]
            for a in arrays]


def cases(types: set[str] | None = None) -> Iterator[tuple[str, onnx.ModelProto, Feeds]]:
    """The first and the last sample of every operator in each of `types`, as it is, spoiled, and empty."""
    for domain, name in NEWEST:
        op = find(domain, name, 1 << 20)
        for dtype in types_of(domain, name):
            if types is not None and dtype.name not in types:
                continue
            try:
                samples = list(op.samples(np.random.default_rng(0), dtype))
            except (TypeError, ValueError):
                continue
            for arrays, attrs in samples[:1] + samples[1:][-1:]:
                given = [None if a is None else np.asarray(a) for a in arrays]
                for form in (given, list(map(spoiled, given)), emptied(given)):
                    yield (f"{name} of {dtype}", one_node(name, form, attrs, newest_opset(domain)),
                           {f"i{k}": a for k, a in enumerate(form) if a is not None})


def said(work: Callable[[], Any]) -> list[str]:
    """The warnings of `work`, which may fail: some arrays are what an operator refuses."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with contextlib.suppress(Exception):
            work()
    return [f"{w.category.__name__}: {w.message} ({w.filename}:{w.lineno})" for w in caught]


def run(session: ort.InferenceSession, feeds: Feeds) -> None:
    session.run(None, feeds)


def run_async(session: ort.InferenceSession, feeds: Feeds) -> None:
    done = threading.Event()
    session.run_async(None, feeds, lambda *_: done.set(), None)
    assert done.wait(60)


def run_bound(session: ort.InferenceSession, feeds: Feeds) -> None:
    binding = session.io_binding()
    for name, a in feeds.items():
        binding.bind_cpu_input(name, a)
    binding.bind_output("y")
    session.run_with_iobinding(binding)


def run_profiled(session: ort.InferenceSession, feeds: Feeds) -> None:
    with session.profile():
        session.run(None, feeds)


def run_checked(session: ort.InferenceSession, feeds: Feeds) -> None:
    with knobs.setting(CHECK=2):
        session.run(None, feeds)


def parallel() -> ort.SessionOptions:
    options = ort.SessionOptions()
    options.execution_mode = ort.ExecutionMode.ORT_PARALLEL
    return options


@pytest.mark.parametrize("way, options, providers, types", [
    pytest.param(run, None, BY_DEFINITIONS, {"float32", "int8"}, id="definitions"),
    pytest.param(run, None, None, {"float32"}, id="generated code", marks=pytest.mark.slow),
    pytest.param(run, None, BY_DEFINITIONS, None, id="definitions of every type", marks=pytest.mark.slow),
    pytest.param(run, None, None, {"float16", "int8"}, id="generated code of narrow types",
                 marks=pytest.mark.slow),
    pytest.param(run, parallel(), BY_DEFINITIONS, {"float32"}, id="parallel", marks=pytest.mark.slow),
    *(pytest.param(way, None, BY_DEFINITIONS, {"float32"}, id=way.__name__, marks=pytest.mark.slow)
      for way in (run_async, run_bound, run_profiled, run_checked))])
def test_runs_say_nothing(way: Callable[..., None], options: Any, providers: Any, types: Any) -> None:
    for what, model, feeds in cases(types):
        data = model.SerializeToString()
        assert said(lambda data=data, feeds=feeds: way(
            ort.InferenceSession(data, options, providers), feeds)) == [], what


@pytest.mark.slow
def test_folding_constants_says_nothing() -> None:
    for what, model, feeds in cases():
        model.graph.initializer.extend(numpy_helper.from_array(a, name) for name, a in feeds.items())
        del model.graph.input[:]
        data = model.SerializeToString()
        assert said(lambda data=data: ort.InferenceSession(data)) == [], what


def test_definitions_call_nothing_that_warns_by_itself() -> None:
    found = []
    for path in sorted((SOURCE / "ops").glob("*.py")):
        for call in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(call, ast.Call) and getattr(call.func, "attr", None) in WARNING_ALWAYS:
                found.append(f"{path.name}:{call.lineno} {ast.unparse(call.func)}")
    assert found == []
