"""A cluster of Ray's on this machine, of its own address, gone with all its processes at the end."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from typing import Any

STORE = 200_000_000


@contextlib.contextmanager
def cluster(**head: Any) -> Iterator[Any]:
    """One node that takes two tasks, with a small store, joined; `cluster.add_node(**NODE)` adds more."""
    import ray
    from ray.cluster_utils import Cluster

    folder = tempfile.mkdtemp(prefix="ray", dir="/tmp")
    made = Cluster(initialize_head=True, head_node_args={
        "num_cpus": 2, "object_store_memory": STORE, "include_dashboard": False, "temp_dir": folder, **head})
    try:
        ray.init(address=made.address, namespace="orthrus-tests", log_to_driver=False)
        ray.data.DataContext.get_current().enable_progress_bars = False
        yield made
    finally:
        ray.shutdown()
        made.shutdown()
        shutil.rmtree(folder, ignore_errors=True)


NODE = {"num_cpus": 2, "object_store_memory": STORE}
