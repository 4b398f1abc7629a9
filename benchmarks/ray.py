"""Images through a model on two nodes of Ray's, against each of the nodes on its own.

    python -m benchmarks.ray [--model mobilenetv2] [--images 10000] [--batch 64] [--rounds 1]

Both nodes are this machine's, each with a core of its own for all that runs on it: a session of one thread,
tasks that make images, bytes of [3, 224, 224], and Ray's processes; the caller shares the second one's. In
turns each node computes half of the images alone, then both compute all. A rate is images over the time
from the first batch's start to the last one's end, sessions being there and warm. Given are the rates, that
of both over the sum of the two, and which part of that time sessions spent in batches; the rest they waited
for images. Every image is counted.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
import time
from typing import Any

import numpy as np

from orthrus.distributed.ray import OrthrusPredictor, put

from .zoo import build

SHAPE = (3, 224, 224)


class Timed(OrthrusPredictor):
    """A predictor which says of each row where and when it was computed."""

    def __init__(self, model: Any, batch: int) -> None:
        [self.core] = os.sched_getaffinity(0)
        super().__init__(model, inputs={"input": "image"}, outputs={"output": "scores"})
        self.rows.run({"image": np.zeros((batch, *SHAPE), np.uint8)})

    def __call__(self, batch: Any) -> dict[str, np.ndarray]:
        began = time.monotonic()
        made = super().__call__(batch)
        told = {"core": self.core, "began": began, "ended": time.monotonic()}
        kept = {"id": made["id"], "best": made["scores"].argmax(1)}
        return {**kept, **{name: np.full(len(made["id"]), value) for name, value in told.items()}}


def image(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    ids = batch["id"]
    return {"id": ids, "image": np.random.default_rng(ids).integers(0, 256, (len(ids), *SHAPE), np.uint8)}


def rate(model: Any, images: int, batch: int, seat: str, actors: int) -> tuple[float, float]:
    """Images a second, and which part of the time the sessions spent in batches."""
    import ray

    rows = ray.data.range(images, override_num_blocks=-(-images // batch)).map_batches(
        image, batch_size=None, num_cpus=0.5)
    found = rows.map_batches(
        Timed, fn_constructor_kwargs={"model": model, "batch": batch}, batch_size=batch,
        concurrency=actors, num_cpus=1, resources={seat: 1}, zero_copy_batch=True)
    parts = list(found.iter_batches(batch_size=None, batch_format="numpy"))
    whole = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    assert sorted(whole["id"]) == list(range(images)), "every image once"
    spans = np.unique(np.stack([whole["began"], whole["ended"]], 1), axis=0)
    seconds = whole["ended"].max() - whole["began"].min()
    return images / seconds, float((spans[:, 1] - spans[:, 0]).sum() / seconds / actors)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="mobilenetv2")
    parser.add_argument("--images", type=int, default=10_000)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=1)
    asked = parser.parse_args()

    import ray
    from ray.cluster_utils import Cluster

    folder = tempfile.mkdtemp(prefix="ray", dir="/tmp")
    own = sorted(os.sched_getaffinity(0))[:2]
    cluster = Cluster()
    try:
        for core in reversed(own):
            os.sched_setaffinity(0, {core})
            cluster.add_node(num_cpus=2, object_store_memory=500_000_000, include_dashboard=False,
                             resources={f"core{core}": 1, "seat": 1}, temp_dir=folder)
        ray.init(address=cluster.address, log_to_driver=False)
        cluster.wait_for_nodes()
        context = ray.data.DataContext.get_current()
        context.enable_progress_bars, context.wait_for_min_actors_s = False, 600
        model = put(build(asked.model).SerializeToString())
        for _ in range(asked.rounds):
            alone = [rate(model, asked.images // 2, asked.batch, f"core{core}", 1) for core in own]
            both, busy = rate(model, asked.images, asked.batch, "seat", 2)
            print(f"alone {alone[0][0]:.1f} and {alone[1][0]:.1f}, both {both:.1f} images a second: "
                  f"{both / sum(each for each, _ in alone):.3f} of the sum; in batches "
                  f"{alone[0][1]:.1%} and {alone[1][1]:.1%}, both {busy:.1%}", flush=True)
    finally:
        ray.shutdown()
        cluster.shutdown()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
