"""Whole models run on purpose in hostile surroundings: what a run must not depend on is changed between runs.

`guarded` fills the memory of compiled parts, the blocks of plans and every array made by `np.empty` with one
byte before each run, and divides each step over a number of threads, item by item. `examine` runs a subject
that way: its results have to be right, and the same in every bit whatever the byte and the threads.

`PYTHONPATH=. python tests/support/guards.py conformance samples graphs models --machine sse2`
runs everything, not a choice.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import importlib.util
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from unittest import mock

import numpy as np
import onnx
from benchmarks.cases import KINDS, Case, cases, compare
from oracle import difference, differences

import orthrus as ort
from fuzz.graphs import apart, build
from orthrus import knobs
from orthrus.codegen.machines import detect
from orthrus.codegen.machines import machine as machines
from orthrus.codegen.object import library
from orthrus.codegen.runtime import threads as pools
from orthrus.lowering import instance
from orthrus.ops import find
from orthrus.ops.schema import newest_opset
from orthrus.run import fetch

MACHINES = {"avx2": machines.AVX2, "sse2": machines.SSE2}
NUMPY = ("CPUExecutionProvider", {"use_codegen": "0"})
MANY = 3
RUNS = ((0xFF, 1), (0x7F, 2), (0xFF, MANY))
"""Byte and threads of each run. All bits set are NaN and -1; 0x7F is close to the largest float, and a number
that no comparison drops."""


@dataclass
class Guard:
    """What is in force; `parts` counts entries of compiled parts, `divided` those on several threads."""

    byte: int = 0xFF
    threads: int = 1
    parts: int = 0
    divided: int = 0


@contextlib.contextmanager
def guarded(byte: int = 0xFF, threads: int = 1) -> Iterator[Guard]:
    """Sessions made and run within have poisoned memory and steps divided as far as they can be; a Guard's
    fields may be changed between runs."""
    guard = Guard(byte, threads)
    block_of = fetch.ArenaPlan.take

    def take(plan: Any) -> Any:
        """An instance of its own for this run: `instance.Instance` gets its block from `np.empty`."""
        guard.parts += 1
        guard.divided += guard.threads > 1
        plan.code = dataclasses.replace(plan.code, threads=guard.threads)
        plan.small = False
        plan.work[:, 1] = 1
        return instance.Instance(plan)

    def take_block(plan: Any) -> Any:
        slots, block = block_of(plan)
        block[...] = guard.byte
        return slots, block
    with contextlib.ExitStack() as stack:
        patch = functools.partial(mock.patch.object)
        stack.enter_context(patch(instance.Plan, "take", take))
        stack.enter_context(patch(instance.Plan, "give", lambda plan, instance: None))
        stack.enter_context(patch(fetch.ArenaPlan, "take", take_block))
        stack.enter_context(patch(np, "empty", _poisoned(guard, np.empty)))
        stack.enter_context(patch(np, "empty_like", _poisoned(guard, np.empty_like)))
        if library.available() is None:
            stack.enter_context(mock.patch.dict(pools._pools, {0: _pool()}))
        yield guard


def _poisoned(guard: Guard, make: Callable[..., Any]) -> Callable[..., Any]:
    def made(*args: Any, **keywords: Any) -> Any:
        array = make(*args, **keywords)
        if type(array) is np.ndarray and array.size and not array.dtype.hasobject:
            array.ravel("K").view(np.uint8)[...] = guard.byte
        return array
    return made


@functools.cache
def _pool() -> pools.Pool:
    return pools.Pool(MANY)


@contextlib.contextmanager
def on(machine: str) -> Iterator[None]:
    """Kernels for "avx2" or "sse2" in place of this processor's, with "numpy" none, as they are with "host".
    """
    with contextlib.ExitStack() as stack:
        if machine in MACHINES:
            stack.enter_context(mock.patch.object(detect, "host", lambda: MACHINES[machine]))
        elif machine == "numpy":
            stack.enter_context(knobs.setting(CODEGEN=0))
        yield


@dataclass(frozen=True)
class Subject:
    """A model with feeds; `judge` says what is wrong with the outputs for a feed, by its number."""

    name: str
    model: Any
    feeds: Sequence[dict[str, Any]]
    judge: Callable[[int, list[Any]], str | None]
    random: bool = False


def examine(subject: Subject, guard: Guard) -> list[str]:
    """What is wrong with a subject's results inside `guarded`; nothing where all is well."""
    faults = []
    try:
        guard.byte, guard.threads = RUNS[0]
        session = ort.InferenceSession(subject.model, providers=["CPUExecutionProvider"])
        for i, feeds in enumerate(subject.feeds):
            kept: Any = None
            for guard.byte, guard.threads in RUNS:
                got = session.run(None, feeds)
                where = f"{subject.name}, feed {i}, byte {guard.byte:#x}, threads {guard.threads}"
                if kept is None:
                    kept = got
                    if (wrong := subject.judge(i, got)) is not None:
                        faults.append(f"{where}: {wrong}")
                elif not subject.random and (at := _unlike(got, kept)) is not None:
                    found = difference(got[at], kept[at], 0, 0) or "in the bits of NaN or 0"
                    faults.append(f"{where}: output {at} is not that of the first run: {found}")
    except Exception as error:
        faults.append(f"{subject.name}: {type(error).__name__}: {' '.join(str(error).split())[:400]}")
    return faults


def _unlike(got: Sequence[Any], kept: Sequence[Any]) -> int | None:
    """The first output that is not the same in every bit."""
    return next((i for i, (a, b) in enumerate(zip(got, kept, strict=True)) if not _same(a, b)), None)


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(_same, a, b))
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(_same(a[k], b[k]) for k in a)
    if not isinstance(a, np.ndarray):
        return bool(a == b)
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    return bool((a == b).all()) if a.dtype.hasobject else a.tobytes() == b.tobytes()


@functools.cache
def conformance(chosen: bool = True, kinds: Sequence[str] = KINDS) -> list[Subject]:
    """ONNX's backend test data; `chosen`: of the node cases the first and the last of each operator."""
    found = cases(kinds)
    if chosen:
        groups: dict[Any, list[Case]] = {}
        for case in found:
            alone = case.kind == "node"
            groups.setdefault(case.model.graph.node[0].op_type if alone else case.name, []).append(case)
        ends = {id(case) for group in groups.values() for case in (group[0], group[-1])}
        found = [case for case in found if case.kind != "node_expanded" and id(case) in ends]
    return [_of_case(case) for case in found]


def _of_case(case: Case) -> Subject:
    def judge(i: int, got: list[Any]) -> str | None:
        try:
            compare(case.data[i][1], got, case.rtol, case.atol, values=not case.random)
        except AssertionError as error:
            return str(error)
        return None
    return Subject(case.name, case.model.SerializeToString(), case.feeds(), judge,
                   case.random or _draws(case.model))


def _draws(model: onnx.ModelProto) -> bool:
    found = [find(node.domain, node.op_type, 1 << 20) for node in model.graph.node]
    return any(op is not None and "rng" in op.runtime for op in found)


def samples(chosen: bool = True) -> Iterator[Subject]:
    """The operators' own samples; `chosen`: the first of each operator and type. What numpy makes of them is
    what has to come out."""
    from test_ops import cases as parameters
    from test_ops import one_node

    for name, dtype, index in (p.values for p in parameters()):
        if chosen and index:
            continue
        op = find("", name, 1 << 20)
        arrays, attrs = list(op.samples(np.random.default_rng(0), dtype))[index]
        arrays = [None if a is None else np.asarray(a) for a in arrays]
        model = one_node(name, arrays, attrs, newest_opset(""))
        feeds = {f"i{k}": a for k, a in enumerate(arrays) if a is not None}
        yield Subject(f"{name}-{dtype.name}-{index}", model.SerializeToString(), [feeds],
                      by_numpy(model.SerializeToString(), [feeds]), _draws(model))


def by_numpy(model: bytes, feeds: Sequence[dict[str, Any]], rtol: float = 2e-5, atol: float = 2e-6
             ) -> Callable[[int, list[Any]], str | None]:
    """A judge that asks a session without generated code."""
    @functools.cache
    def session() -> Any:
        return ort.InferenceSession(model, providers=[NUMPY])
    return lambda i, got: differences(got, session().run(None, feeds[i]), rtol, atol)


def graphs(chosen: bool = True) -> Iterator[Subject]:
    """Random graphs; what numpy makes of them is what has to come out."""
    for seed in range(60 if chosen else 600):
        model, feeds = build(seed)
        if not _draws(model):
            yield _of_graph(f"graph {seed}", model.SerializeToString(), feeds)


def _of_graph(name: str, data: bytes, feeds: dict[str, np.ndarray]) -> Subject:
    plain = functools.cache(lambda: ort.InferenceSession(data, providers=[NUMPY]))
    unit = 1e-4 if any(a.dtype == np.float32 for a in feeds.values()) else 1e-7
    return Subject(name, data, [feeds], lambda i, got: apart(got, plain().run(None, feeds), unit))


def trained() -> list[Subject]:
    """The small trained models with their cases and acceptance rules, those that are there."""
    from test_models import MODELS, NAMES

    found: list[Subject] = []
    if not NAMES:
        return found
    spec = importlib.util.spec_from_file_location("check", MODELS / "check.py")
    assert spec is not None and spec.loader is not None
    rules = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(rules)
    for name in NAMES:
        folder = MODELS / name
        if (folder / "model.onnx").exists():
            found.append(_of_trained(name, folder, rules))
    return found


def _of_trained(name: str, folder: Any, rules: Any) -> Subject:
    meta = json.loads((folder / "meta.json").read_text())
    stored = [np.load(folder / case["file"]) for case in meta["cases"]]
    names = [o.name for o in onnx.load(folder / "model.onnx", load_external_data=False).graph.output]

    def judge(i: int, got: list[Any]) -> str | None:
        rows = rules.check_case(meta, meta["cases"][i], stored[i], dict(zip(names, got, strict=True)))
        return "; ".join(str(row) for row in rows if not row[1]) or None
    return Subject(name, folder / "model.onnx", [rules.feeds_of(arrays) for arrays in stored], judge)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", nargs="+", choices=("conformance", "samples", "graphs", "models"))
    parser.add_argument("--machine", default="host", choices=("host", *MACHINES, "numpy"))
    parser.add_argument("--chosen", action="store_true", help="only what the tests choose")
    parser.add_argument("--part", default="0/1", help="i/n: every n-th subject from the i-th on")
    args = parser.parse_args()
    first, step = map(int, args.part.split("/"))
    made = {"conformance": lambda: conformance(args.chosen), "samples": lambda: samples(args.chosen),
            "graphs": lambda: graphs(args.chosen), "models": trained}
    for source in args.source:
        found, wrong = list(made[source]())[first::step], 0
        start = time.perf_counter()
        with on(args.machine), guarded() as guard:
            for subject in found:
                faults = examine(subject, guard)
                wrong += bool(faults)
                for fault in faults:
                    print(fault, flush=True)
        print(f"{source} on {args.machine}: {len(found)} subjects, {wrong} wrong, {guard.parts} entries of "
              f"compiled parts, {guard.divided} divided, {time.perf_counter() - start:.0f} s", flush=True)


if __name__ == "__main__":
    main()
