"""What one `session.run` costs beside the work: models so small that nothing else is left.

    python -m benchmarks.call_overhead [--engines orthrus,onnxruntime] [--nodes 1,10,100]

A model is a chain of Add nodes over [1, 4] floats. Given are microseconds per run, the lower quartile of many
batches in processes that take turns.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engines", default="orthrus,onnxruntime")
    parser.add_argument("--nodes", default="1,10,100")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
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
