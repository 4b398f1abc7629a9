"""Two nodes of Ray's on this machine, and a node that goes while rows are still coming.

In: a dataset. Out: its rows, each once, in a parquet file. On a real cluster `ray.init()` joins what runs.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.parquet as pq
import ray
from ray.cluster_utils import Cluster

NODE = {"num_cpus": 2, "object_store_memory": 200_000_000}


@contextlib.contextmanager
def two_nodes() -> Iterator[tuple[Cluster, object]]:
    """The cluster, joined, and its second node; all its processes end with it."""
    folder = tempfile.mkdtemp(prefix="ray", dir="/tmp")
    head = {**NODE, "include_dashboard": False, "temp_dir": folder}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    try:
        second = cluster.add_node(**NODE)
        ray.init(address=cluster.address, log_to_driver=False)
        cluster.wait_for_nodes()
        yield cluster, second
    finally:
        ray.shutdown()
        cluster.shutdown()
        shutil.rmtree(folder, ignore_errors=True)


def write(dataset: ray.data.Dataset, out: str, cluster: Cluster, second: object, kill: bool,
          batch: int = 16) -> int:
    """Write a dataset's rows as they come to the parquet file `out`; how many there are. With `kill` the
    second node goes behind the first batch, without a word to anybody: actors, blocks and finished rows that
    lay there are lost, and Ray makes them again."""
    rows, writer = 0, None
    for table in dataset.iter_batches(batch_size=batch, batch_format="pyarrow", prefetch_batches=0):
        if writer is None:
            writer = pq.ParquetWriter(out, table.schema)
            if kill:
                cluster.remove_node(second, allow_graceful=False)
        writer.write_table(pa.table(table))
        rows += len(table)
    if writer is not None:
        writer.close()
    return rows
