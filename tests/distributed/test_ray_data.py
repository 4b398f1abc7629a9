"""Datasets through models on a cluster of two nodes: numpy, Arrow and pandas batches, errors that come back
as they are, one copy of the model, and a node that dies on the way."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper, save_model
from ray_cluster import NODE, cluster
from skips import lacking, needs

from orthrus.errors import InvalidArgument

pytestmark = [needs("Ray"), pytest.mark.thorough]
if lacking("Ray") is None:
    import pandas as pd
    import pyarrow as pa
    import ray

    from orthrus.distributed.ray import OrthrusPredictor, predict, put
    from orthrus.distributed.ray.columns import columns_of
    from orthrus.distributed.ray.predictor import session_of


def model(external: Path | None = None) -> Any:
    """y = x @ w, of 4 by 3."""
    w = numpy_helper.from_array(np.arange(12, dtype=np.float32).reshape(4, 3), "w")
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])], "product",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 3])], [w])
    made = helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 21)])
    if external is not None:
        save_model(made, external, save_as_external_data=True, location="weights", size_threshold=0)
    return made.SerializeToString()


@pytest.fixture(scope="module")
def nodes() -> Iterator[Any]:
    with cluster() as made:
        made.second = made.add_node(**NODE)
        made.wait_for_nodes()
        yield made


def expected(rows: int) -> np.ndarray:
    x, w = (np.arange(size * 4, dtype=np.float32) for size in (rows, 3))
    return x.reshape(rows, 4) @ w.reshape(4, 3)


def table(rows: int, blocks: int) -> Any:
    return ray.data.range(rows, override_num_blocks=blocks).map_batches(
        lambda batch: {"id": batch["id"], "x": batch["id"][:, None] * 4 + np.arange(4)})


@pytest.mark.parametrize("form", ["numpy", "pyarrow", "pandas"])
def test_every_row_once_in_every_form(nodes: Any, form: str) -> None:
    found = predict(table(50, 3), model(), batch_size=7, concurrency=2, batch_format=form).take_all()
    found.sort(key=lambda row: row["id"])
    assert [row["id"] for row in found] == list(range(50)) and set(found[0]) == {"id", "y"}
    np.testing.assert_array_equal(np.stack([row["y"] for row in found]), expected(50))


def test_columns_of_arrow_and_pandas() -> None:
    cells = [[1], [], [2, 3], [4]]
    for whole in (pa.table({"x": cells, "t": pa.array(["a", "b", "a", "c"]).dictionary_encode(),
                            "f": pa.FixedSizeListArray.from_arrays(pa.array(range(8)), 2),
                            "n": pa.array([1, None, 2, 3])}),
                  pd.DataFrame({"x": cells, "t": ["a", "b", "a", "c"]})):
        found = columns_of(whole)
        assert [list(cell) for cell in found["x"]] == cells and list(found["t"]) == ["a", "b", "a", "c"]
    found = columns_of(pa.concat_tables([pa.table({"n": [1, None], "f": [[1, 2]] * 2})] * 2))
    assert list(found["n"]) == [1, None] * 2 and np.stack(list(found["f"])).shape == (4, 2)
    assert len(columns_of(pa.table({"x": pa.array([], pa.int64())}))["x"]) == 0


def test_a_misfit_ends_the_work_and_names_column_and_row(nodes: Any) -> None:
    bad = ray.data.from_items([{"x": [1.0, 2.0, 3.0, 4.0]}, {"x": [1.0, 2.0]}])
    with pytest.raises(Exception) as wrong:
        predict(bad, model(), concurrency=1).take_all()
    assert "InvalidArgument" in str(wrong.value) and "column 'x', row 1 of the batch" in str(wrong.value)


def test_names_that_clash_and_columns_that_are_not_there() -> None:
    batch = {"x": np.ones((2, 4)), "y": np.ones(2)}
    with pytest.raises(InvalidArgument, match="'y' is there already"):
        OrthrusPredictor(model())(batch)
    with pytest.raises(InvalidArgument, match="no column 'z' to keep"):
        OrthrusPredictor(model(), keep=["z"])(batch)
    found = OrthrusPredictor(model(), outputs={"y": "out"}, keep="x")(batch)
    assert set(found) == {"x", "out"}
    with pytest.raises(InvalidArgument, match="no 'thread'"):
        OrthrusPredictor(model(), options={"thread": 1})


def test_external_data_goes_along(nodes: Any, tmp_path: Path) -> None:
    model(tmp_path / "model.onnx")
    reference = put(tmp_path / "model.onnx")
    (tmp_path / "weights").unlink()
    [row] = predict(table(1, 1), reference).take_all()
    np.testing.assert_array_equal(row["y"], expected(1)[0])


def test_the_model_is_read_in_the_store_and_threads_are_the_actors(nodes: Any) -> None:
    reference = put(model())

    @ray.remote(num_cpus=1)
    def look(held: list[Any]) -> tuple[bool, int]:
        session = session_of(held[0])
        owner = session._model_bytes.obj
        shared = owner.flags.writeable is False and owner.ctypes.data == ray.get(held[0]).ctypes.data
        return shared, session.get_session_options().intra_op_num_threads

    assert ray.get(look.remote([reference])) == (True, 1)


def test_a_node_dies_and_every_row_comes_once(nodes: Any) -> None:
    """The node that holds an actor and finished blocks goes; both are made again on the other."""
    def slowly(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        time.sleep(0.02)
        return batch

    work = predict(table(400, 40).map_batches(slowly, batch_size=10), model(), batch_size=10,
                   concurrency=(1, 2))
    got: list[Any] = []
    for row in work.iter_rows():
        got.append((row["id"], row["y"]))
        if len(got) == 40:
            nodes.remove_node(nodes.second, allow_graceful=False)
    got.sort(key=lambda row: row[0])
    assert [row for row, _ in got] == list(range(400))
    np.testing.assert_array_equal(np.stack([y for _, y in got]), expected(400))
