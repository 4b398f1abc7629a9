"""Random small graphs that are valid for the feeds that come with them, and the check that every optimization
level of Orthrus, its saved models and onnxruntime agree on them.

`PYTHONPATH=tests python -m fuzz.graphs 1000 --start 5000` looks for graphs on which they do not.
"""

from __future__ import annotations

import argparse
import random
import tempfile
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper
from oracle import peer_results

import orthrus
from fuzz.patterns import STEPS
from fuzz.steps import Maker, Var, info

LEVELS = ("ORT_DISABLE_ALL", "ORT_ENABLE_BASIC", "ORT_ENABLE_EXTENDED", "ORT_ENABLE_ALL")
_SIZES = {"N": 2, "S": 3, "T": 1, "C": 4}
_OTHER_SIZES = {"N": 1, "S": 2, "T": 3, "C": 4}


def build(seed: int) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """A model of 5 to 25 steps and feeds for it."""
    r = random.Random(seed)
    g = Maker(r, r.choice([np.float32, np.float32, np.float64]))
    inputs, feeds = [], {}
    for i in range(r.randint(1, 3)):
        dims = [r.choice(["N", "S", "T", "C", 1, 2, 3, 4]) for _ in range(r.choice([1, 2, 2, 3, 3, 3, 4, 4]))]
        array = g.rng.normal(size=[_SIZES.get(d, d) for d in dims]).round(3).astype(g.dtype)
        feeds[f"x{i}"] = array
        inputs.append(info(f"x{i}", g.dtype, dims if r.random() < 0.9 else [None] * len(dims)))
        g.vars.append(Var(f"x{i}", array))
    if r.random() < 0.3:
        feeds["k"] = g.rng.integers(-5, 9, (2, 3)).astype(r.choice([np.int32, np.int64]))
        inputs.append(info("k", feeds["k"].dtype, ["N", 3]))
        g.vars.append(Var("k", feeds["k"]))
    for _ in range(r.randint(5, 25)):
        r.choice(STEPS)(g)
    made = [v for v in g.vars if v.name not in feeds]
    if not made:
        return build(seed + 1_000_003)
    read = {n for node in g.nodes for n in node.input}
    ends = [v for v in made if v.name not in read]
    chosen = {
        v.name: v
        for v in (*r.sample(ends, min(len(ends), 4)), *r.sample(made, min(len(made), r.randint(1, 3))))
    }
    outputs = [info(v.name, v.array.dtype, None) for v in chosen.values()]
    graph = helper.make_graph(
        g.nodes, "fuzz", inputs, outputs, [numpy_helper.from_array(v.array, v.name) for v in g.inits]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", g.opset)])
    model.ir_version = 10
    return model, feeds


def apart(got: Sequence[Any], expected: Sequence[Any], unit: float) -> str | None:
    """Where two results differ by more than `unit` of their largest value."""
    for k, (a, b) in enumerate(zip(got, expected, strict=True)):
        if a.dtype != b.dtype or a.shape != b.shape:
            return f"output {k}: {a.dtype}{list(a.shape)} and {b.dtype}{list(b.shape)}"
        if a.dtype.kind != "f":
            wrong = a != b
        else:
            with np.errstate(all="ignore"):
                top = float(np.nanmax(np.abs(b), initial=1.0))
                wrong = ~((np.abs(a - b) <= unit * top) | (a == b) | (np.isnan(a) & np.isnan(b)))
        if np.any(wrong):
            at = tuple(int(i) for i in np.argwhere(wrong)[0])
            count = f"{int(np.sum(wrong))} of {wrong.size}"
            return f"output {k}, {count}, first at {at}: {a[at]!r}, expected {b[at]!r}"
    return None


def opened(engine: Any, model: bytes | str, level: str, saved: str | None = None) -> Any:
    """A session at a level, of one thread."""
    options = engine.SessionOptions()
    options.graph_optimization_level = getattr(engine.GraphOptimizationLevel, level)
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    if saved:
        options.optimized_model_filepath = saved
    return engine.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def resized(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Other feeds, with other sizes where a dimension has a name."""
    rng = np.random.default_rng(len(feeds))
    out = {}
    for given in model.graph.input:
        dims = given.type.tensor_type.shape.dim
        shape = [_OTHER_SIZES.get(d.dim_param, n) for d, n in zip(dims, feeds[given.name].shape, strict=True)]
        out[given.name] = (rng.normal(size=shape) * 2).round(3).astype(feeds[given.name].dtype)
    return out


def _attempt(session: Any, feeds: dict[str, np.ndarray]) -> list[Any] | None:
    """A run of feeds that the graph may refuse."""
    try:
        return session.run(None, feeds)
    except Exception:
        return None


def findings(
    model: onnx.ModelProto, feeds: dict[str, np.ndarray], peer: Any = None, folder: str | None = None
) -> list[str]:
    """Everything that is wrong: levels that differ from each other or from onnxruntime, results that a later
    run overwrites, saved models that give something else. `folder` takes the saved models, if any."""
    raw, found = model.SerializeToString(), []
    theirs = peer_results(peer, model, feeds) if peer is not None else None
    expected = None if theirs is None or isinstance(theirs, Exception) else theirs
    others = resized(model, feeds)
    unit = 1e-7 if all(v.dtype != np.float32 for v in feeds.values()) else 1e-4
    first: list[Any] | None = None
    for level in LEVELS:
        saved = f"{folder}/{level}.onnx" if folder and level != LEVELS[0] else None
        try:
            session = opened(orthrus, raw, level, saved)
            for turn in range(3):
                got = session.run(None, feeds)
                kept = [a.copy() for a in got]
                expected = got if expected is None else expected
                if (wrong := apart(got, expected, unit)) is not None:
                    found.append(f"{level}, run {turn}: {wrong}")
                    break
                changed = _attempt(session, others)
                if level == LEVELS[0]:
                    first = changed
                elif first is not None and (
                    wrong := "an error" if changed is None else apart(changed, first, unit)
                ):
                    found.append(f"{level}, other sizes: {wrong}")
                    break
                if any(a.tobytes() != b.tobytes() for a, b in zip(got, kept, strict=True)):
                    found.append(f"{level}: a later run overwrites earlier results")
        except Exception as error:
            found.append(f"{level}: {type(error).__name__}: {error}")
            continue
        if level == LEVELS[-1]:
            found += _otherwise(raw, session, feeds, expected, unit)
        if saved:
            found += _reloaded(
                raw, saved, level, feeds, expected, peer if isinstance(theirs, list) else None, unit
            )
    return found


def _otherwise(
    raw: bytes, session: Any, feeds: dict[str, np.ndarray], expected: list[Any], unit: float
) -> list[str]:
    """What is wrong when outputs are fetched one by one, bound, in parallel, or without planned memory."""
    found = []
    names = [o.name for o in session.get_outputs()]
    alone = [session.run([name], feeds)[0] for name in names]
    if (wrong := apart(alone, expected, unit)) is not None:
        found.append(f"one by one: {wrong}")
    binding = session.io_binding()
    for name, array in feeds.items():
        binding.bind_cpu_input(name, array)
    for name in names:
        binding.bind_output(name)
    session.run_with_iobinding(binding)
    if (wrong := apart(binding.copy_outputs_to_cpu(), expected, unit)) is not None:
        found.append(f"bound: {wrong}")
    for name, settings in (
        ("parallel", {"execution_mode": orthrus.ExecutionMode.ORT_PARALLEL, "inter_op_num_threads": 3}),
        ("no planned memory", {"enable_mem_pattern": False, "enable_mem_reuse": False}),
    ):
        options = orthrus.SessionOptions()
        for key, value in settings.items():
            setattr(options, key, value)
        it = orthrus.InferenceSession(raw, options, providers=["CPUExecutionProvider"])
        for _ in range(2):
            if (wrong := apart(it.run(None, feeds), expected, unit)) is not None:
                found.append(f"{name}: {wrong}")
    return found


def _reloaded(
    raw: bytes, saved: str, level: str, feeds: dict[str, np.ndarray], expected: list[Any], peer: Any,
    unit: float,
) -> list[str]:
    """What is wrong with a saved model; what onnxruntime's own passes break of the model itself is not."""
    found = []
    model = onnx.load(saved)
    names = [n for node in model.graph.node for n in node.output if n]
    if len(names) != len(set(names)):
        found.append(f"{level}, saved: two values of one name")
    engines = [("orthrus", orthrus, "ORT_DISABLE_ALL")]
    if peer is not None and not model.functions:
        # onnxruntime takes no function of another opset than the model's
        engines += [("onnxruntime", peer, end) for end in (LEVELS[0], LEVELS[-1])]
    for name, engine, again in engines:
        if again != LEVELS[0]:
            own = _on(engine, raw, again, feeds)
            if isinstance(own, Exception):
                continue
            expected = own
        got = _on(engine, saved, again, feeds)
        if not isinstance(got, Exception):
            if (wrong := apart(got, expected, unit)) is not None:
                found.append(f"{level}, saved, {name}: {wrong}")
        elif name == "orthrus" or not any(s in str(got) for s in PEERS_OWN):
            found.append(f"{level}, saved, {name}: {str(got)[:600]}")
    return found


PEERS_OWN = ("NOT_IMPLEMENTED", "attention_helper", "Pad should be smaller than kernel")
"""What onnxruntime says of kernels it lacks, and of nodes that its passes make as its kernels refuse them: a
pooling that took in a wide Pad, whose pads are constant once shapes were folded."""


def _on(engine: Any, model: bytes | str, level: str, feeds: dict[str, np.ndarray]) -> Any:
    """The results of a model, or the error."""
    try:
        return opened(engine, model, level).run(None, feeds)
    except Exception as error:
        return error


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("count", type=int)
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--save", action="store_true", help="check saved models too")
    args = parser.parse_args()
    try:
        import onnxruntime as peer
    except ImportError:
        peer = None
    bad = 0
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(args.start, args.start + args.count):
            model, feeds = build(seed)
            found = findings(model, feeds, peer, folder if args.save else None)
            if found:
                bad += 1
                print(f"seed {seed}, {len(model.graph.node)} nodes:", *found[:4], sep="\n    ")
    print(f"{bad} of {args.count} graphs")


if __name__ == "__main__":
    main()
