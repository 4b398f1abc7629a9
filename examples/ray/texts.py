"""A parquet of texts through a model that takes texts, on two nodes.

    python examples/ray/texts.py TEXTS.parquet OUT.parquet [--kill]

`TEXTS.parquet` has the columns `id` and `text`; without it, one of 600 sentences is written first. The model
counts words and says whether any of them is praise. `OUT.parquet` gets a row for each text: `id`, `words` and
`praise`. `--kill` takes one of the two nodes away in the middle.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import ray
from onnx import TensorProto, helper
from two_nodes import two_nodes, write

from orthrus.distributed.ray import predict

WORDS = ("good", "bad", "slow", "fast", "great", "plain")


def model() -> bytes:
    """`text`, [N] -> `words`, int64 [N], and `praise`, bool [N]."""
    nodes = [helper.make_node("StringSplit", ["text"], ["split", "words"]),
             helper.make_node("RegexFullMatch", ["text"], ["praise"], pattern=r".*\b(good|great)\b.*")]
    graph = helper.make_graph(
        nodes, "praise", [helper.make_tensor_value_info("text", TensorProto.STRING, ["N"])],
        [helper.make_tensor_value_info("words", TensorProto.INT64, ["N"]),
         helper.make_tensor_value_info("praise", TensorProto.BOOL, ["N"])])
    made = helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 20)])
    return made.SerializeToString()


def compose(path: Path) -> None:
    """600 texts of one to seven words."""
    rng = np.random.default_rng(0)
    texts = [" ".join(rng.choice(WORDS, rng.integers(1, 8))) for _ in range(600)]
    pq.write_table(pa.table({"id": range(len(texts)), "text": texts}), path, row_group_size=50)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("texts", type=Path)
    parser.add_argument("out")
    parser.add_argument("--kill", action="store_true")
    asked = parser.parse_args()
    if not asked.texts.exists():
        compose(asked.texts)
    with two_nodes() as (cluster, second):
        texts = ray.data.read_parquet(str(asked.texts)).repartition(12)
        found = predict(texts, model(), batch_size=16, concurrency=(1, 2))
        print(write(found, asked.out, cluster, second, asked.kill), "rows")


if __name__ == "__main__":
    main()
