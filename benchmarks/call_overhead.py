"""What one `session.run` costs beside the work: models so small that nothing else is left.

    python -m benchmarks.call_overhead [--engines orthrus,onnxruntime] [--nodes 1,10,100]
    python -m benchmarks.call_overhead --forms

A model is a chain of Add nodes over [1, 4] floats. Given are microseconds per run, the lower quartile of many
batches in processes that take turns. `--forms`: by every way to call a session, of the model of ten nodes
with a second output, on one thread; the least of many batches in one process.
"""

from __future__ import annotations

import argparse
import importlib
import tempfile
import timeit
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from .compare import measure


def chain(length: int) -> onnx.ModelProto:
    """`length` Add nodes, each adding the input once more, so that nothing folds."""
    info = helper.make_tensor_value_info
    nodes = [helper.make_node("Add", [f"v{i}" if i else "x", "one" if i % 2 else "x"], [f"v{i + 1}"])
             for i in range(length)]
    graph = helper.make_graph(nodes, "chain", [info("x", TensorProto.FLOAT, [1, 4])],
                              [info(f"v{length}", TensorProto.FLOAT, [1, 4])],
                              [numpy_helper.from_array(np.ones(4, np.float32), "one")] if length > 1 else [])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 8
    return model


def forms(engine: Any, source: bytes) -> dict[str, Callable[[], object]]:
    """Ways to run a session of a package, by name."""
    options = engine.SessionOptions()
    options.intra_op_num_threads = 1
    session = engine.InferenceSession(source, options, providers=["CPUExecutionProvider"])
    x = np.ones((1, 4), np.float32)
    feed, names = {"x": x}, [each.name for each in session.get_outputs()]
    value = engine.OrtValue.ortvalue_from_numpy(x)
    plain, quiet = engine.RunOptions(), engine.RunOptions()
    quiet.log_severity_level, quiet.logid = 3, "a"
    free, bound, anew = (session.io_binding() for _ in range(3))
    for binding in (free, bound):
        binding.bind_ortvalue_input("x", value)
    for name in names:
        free.bind_output(name)
        anew.bind_output(name)
        bound.bind_ortvalue_output(name, engine.OrtValue.ortvalue_from_numpy(np.zeros_like(x)))
    strided, fixed = np.ones((1, 8), np.float32)[:, ::2], x.copy()
    fixed.flags.writeable = False
    return {
        "all outputs": lambda: session.run(None, feed),
        "all, by name": lambda: session.run(names, feed),
        "one, by name": lambda: session.run(names[1:], feed),
        "in another order": lambda: session.run(names[::-1], feed),
        "run options": lambda: session.run(None, feed, plain),
        "and a tag, a log level": lambda: session.run(None, feed, quiet),
        "a strided array": lambda: session.run(None, {"x": strided}),
        "a read-only array": lambda: session.run(None, {"x": fixed}),
        "a list": lambda: session.run(None, {"x": [[1.0, 1.0, 1.0, 1.0]]}),
        "an OrtValue": lambda: session.run(None, {"x": value}),
        "run_with_ort_values": lambda: session.run_with_ort_values(None, {"x": value}),
        "a binding": lambda: session.run_with_iobinding(free),
        "a binding, with run options": lambda: session.run_with_iobinding(free, plain),
        "a binding of outputs": lambda: session.run_with_iobinding(bound),
        "bound, run, copied": lambda: (anew.bind_cpu_input("x", x), session.run_with_iobinding(anew),
                                       anew.copy_outputs_to_cpu()),
        "an OrtValue made": lambda: engine.OrtValue.ortvalue_from_numpy(x),
        "an OrtValue's array": lambda: value.numpy(),
    }


def least(run: Callable[[], object], count: int = 500, rounds: int = 20) -> float:
    """Microseconds."""
    for _ in range(100):
        run()
    return min(timeit.repeat(run, number=count, repeat=rounds)) / count * 1e6


def compared(engines: Sequence[str]) -> None:
    made = chain(10)
    made.graph.output.append(helper.make_tensor_value_info("v5", TensorProto.FLOAT, [1, 4]))
    ways = [forms(importlib.import_module(engine), made.SerializeToString()) for engine in engines]
    for name in ways[0]:
        cells = "  ".join(f"{engine} {least(way[name]):8.2f} µs"
                          for engine, way in zip(engines, ways, strict=True))
        print(f"{name:28} {cells}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engines", default="orthrus,onnxruntime")
    parser.add_argument("--nodes", default="1,10,100")
    parser.add_argument("--forms", action="store_true")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    if args.forms:
        compared(args.engines.split(","))
        return
    engines, feed = args.engines.split(","), {"x": np.ones((1, 4), np.float32)}
    with tempfile.TemporaryDirectory() as folder:
        for length in map(int, args.nodes.split(",")):
            path = Path(folder) / f"{length}.onnx"
            onnx.save(chain(length), path)
            found = measure(engines, str(path), feed, 1, args.rounds, 0.3)
            cells = "  ".join(f"{e} {1e3 * f.quartile:8.2f} µs" if not f.error else f"{e} {f.error}"
                              for e, f in found.items())
            print(f"{length:4} nodes  {cells}", flush=True)


if __name__ == "__main__":
    main()
