"""Random forests of complete regression trees: this runtime against onnxruntime, session to session.

    python -m benchmarks.trees --trees 500 --depth 8 --rows 1,100,1000 --threads 1,2

The ensemble is drawn from a seed and written as one ai.onnx.ml node. The engines take turns; given are the
least milliseconds of all runs, the ratio (above 1: faster than onnxruntime) and the largest difference of the
outputs.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper


def ensemble(trees: int, depth: int, features: int, seed: int = 0) -> onnx.ModelProto:
    """A TreeEnsembleRegressor of complete trees with random tests and leaves: x [n, features] to y [n, 1]."""
    rng = np.random.default_rng(seed)
    inner, count = 2 ** depth - 1, 2 ** (depth + 1) - 1
    ids, owner = np.tile(np.arange(count), trees), np.repeat(np.arange(trees), count)
    leaf = ids >= inner
    total = int(leaf.sum())
    node = helper.make_node(
        "TreeEnsembleRegressor", ["x"], ["y"], domain="ai.onnx.ml", n_targets=1,
        nodes_treeids=owner.tolist(), nodes_nodeids=ids.tolist(),
        nodes_featureids=np.where(leaf, 0, rng.integers(0, features, ids.size)).tolist(),
        nodes_modes=["LEAF" if at_end else "BRANCH_LEQ" for at_end in leaf],
        nodes_values=np.where(leaf, 0, rng.normal(size=ids.size) * .7).astype(np.float32).tolist(),
        nodes_truenodeids=np.where(leaf, 0, 2 * ids + 1).tolist(),
        nodes_falsenodeids=np.where(leaf, 0, 2 * ids + 2).tolist(),
        target_treeids=owner[leaf].tolist(), target_nodeids=ids[leaf].tolist(), target_ids=[0] * total,
        target_weights=(rng.normal(size=total) * .1).astype(np.float32).tolist())
    graph = helper.make_graph(
        [node], "trees", [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", features])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 1])])
    return helper.make_model(graph, ir_version=9, opset_imports=[
        helper.make_opsetid("", 18), helper.make_opsetid("ai.onnx.ml", 3)])


def opened(runtime: Any, model: bytes, threads: int) -> Callable[[np.ndarray], np.ndarray]:
    """`model` as a function of its features on `runtime`, a module with onnxruntime's API."""
    options = runtime.SessionOptions()
    options.intra_op_num_threads = threads
    session = runtime.InferenceSession(model, options, providers=["CPUExecutionProvider"])

    def run(x: np.ndarray) -> np.ndarray:
        (y,) = session.run(None, {"x": x})
        return np.asarray(y)
    return run


def fastest(engines: list[Callable[[np.ndarray], np.ndarray]], x: np.ndarray, seconds: float) -> list[float]:
    """The least milliseconds of each, several runs at a time in turns for about so long."""
    best = [np.inf] * len(engines)
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for i, run in enumerate(engines):
            for _ in range(5):
                start = time.perf_counter()
                run(x)
                best[i] = min(best[i], (time.perf_counter() - start) * 1e3)
    return best


def main() -> None:
    import onnxruntime

    import orthrus

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    for name, default in (("trees", 500), ("depth", 8), ("features", 32)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--rows", default="1,100,1000")
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--seconds", type=float, default=2, help="of timing per line")
    given = parser.parse_args()
    model = ensemble(given.trees, given.depth, given.features).SerializeToString()
    for threads in map(int, given.threads.split(",")):
        engines = [opened(runtime, model, threads) for runtime in (onnxruntime, orthrus)]
        for rows in map(int, given.rows.split(",")):
            x = np.random.default_rng(rows).normal(size=(rows, given.features)).astype(np.float32)
            peer, ours = (run(x) for run in engines)
            theirs, mine = fastest(engines, x, given.seconds)
            print(f"{rows:6} rows, {threads} threads: onnxruntime {theirs:8.3f} ms, orthrus {mine:8.3f} ms, "
                  f"ratio {theirs / mine:5.1f}, difference {np.abs(peer - ours).max():.1e}")


if __name__ == "__main__":
    main()
