"""Behind Ray Serve on one node: requests that wait together share a run and not their errors, models by name,
tokens as they come, and a replica that dies."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from ray_cluster import cluster
from skips import lacking, needs

import orthrus
from orthrus.distributed.ray.columns import Rows, columns_of, objects
from orthrus.distributed.ray.serve import Served, application
from orthrus.errors import InvalidArgument, NotFound

if lacking("Ray") is None:
    import ray
    from ray import serve

TABLE = np.arange(10, 40, 10, dtype=np.float32)


def gather(table: np.ndarray = TABLE) -> bytes:
    """y = table[x], an error for an index that the table has not."""
    graph = helper.make_graph(
        [helper.make_node("Gather", ["table", "x"], ["y"])], "gather",
        [helper.make_tensor_value_info("x", TensorProto.INT64, ["N", "M"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", "M"])],
        [numpy_helper.from_array(table, "table")])
    made = helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 21)])
    return made.SerializeToString()


def decoder() -> bytes:
    """The token after t is t + 1 modulo 7."""
    rows = np.eye(7, dtype=np.float32)[(np.arange(7) + 1) % 7]
    graph = helper.make_graph(
        [helper.make_node("Gather", ["rows", "input_ids"], ["logits"])], "next",
        [helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["batch", "length"])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", "length", 7])],
        [numpy_helper.from_array(rows, "rows")])
    made = helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 21)])
    return made.SerializeToString()


def served(model: bytes) -> Served:
    session = orthrus.InferenceSession(model)
    return Served(session, Rows(session))


class TestWithoutACluster:
    def test_requests_of_all_sizes_and_shapes_get_their_own_rows(self) -> None:
        rng = np.random.default_rng(0)
        model = served(gather())
        for _ in range(50):
            asked = []
            for _ in range(rng.integers(1, 6)):
                count = int(rng.integers(0, 4))
                if rng.integers(2):
                    asked.append(rng.integers(0, 3, (count, int(rng.integers(1, 4)))))
                else:
                    asked.append(objects([rng.integers(0, 3, rng.integers(0, 4)) for _ in range(count)]))
            answers = model.answer([model.rows.fit({"x": x}) for x in asked])
            for x, answer in zip(asked, answers, strict=True):
                assert isinstance(answer, dict) and len(answer["y"]) == len(x)
                assert all(np.array_equal(TABLE[row], y) for row, y in zip(x, answer["y"], strict=True))

    @pytest.mark.parametrize("bad", [0, 2, 4])
    def test_a_request_that_fails_fails_alone(self, bad: int) -> None:
        model = served(gather())
        asked = [np.array([[1, 2]]) for _ in range(5)]
        asked[bad] = np.array([[1, 99]])
        answers = model.answer([model.rows.fit({"x": x}) for x in asked])
        assert [isinstance(answer, Exception) for answer in answers] == [at == bad for at in range(5)]
        assert all(answer["y"].tolist() == [[20, 30]] for at, answer in enumerate(answers) if at != bad)

    @pytest.mark.parametrize("value", [5, None, "abc", {"a": 1}, [{}], [[1, [2]]], ["1"], [1 << 80], [[1.5]]])
    def test_what_is_no_column_is_an_error_of_its_own(self, value: Any) -> None:
        with pytest.raises(InvalidArgument, match="'x'"):
            served(gather()).rows.fit(columns_of({"x": value}))


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("models")
    for at in range(3):
        (folder / f"m{at}.onnx").write_bytes(gather(TABLE + at))
    (folder / "next.onnx").write_bytes(decoder())
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with cluster(num_cpus=4):
        serve.start(http_options={"host": "127.0.0.1", "port": port})
        serve.run(application(folder, models_per_replica=2, batch_wait_timeout_s=0.05,
                              max_request_bytes=10_000), name="models", route_prefix="/")
        yield f"http://127.0.0.1:{port}/"
        serve.shutdown()


def handle(name: str, **options: Any) -> Any:
    return serve.get_app_handle("models").options(multiplexed_model_id=name, **options)


def post(address: str, body: Any, name: str = "m0", method: str = "POST") -> tuple[int, Any]:
    """Status and body of a request."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    asked = urllib.request.Request(address, content, {"serve_multiplexed_model_id": name}, method=method)
    try:
        with urllib.request.urlopen(asked, timeout=300) as found:
            return found.status, found.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


@needs("Ray")
@pytest.mark.slow
class TestServed:
    def test_requests_that_wait_together_share_runs(self, address: str) -> None:
        """Runs of five and no others; the request that is wrong is the only one to hear of it."""
        full = application(gather(), name="full", max_batch_size=5, batch_wait_timeout_s=3600)
        full = serve.run(full, name="full", route_prefix=None)
        asked = [[[at % 3, 1]] for at in range(20)]
        asked[7] = [[1, 99]]
        waiting = [full.predict.remote({"x": x}) for x in asked]
        for at, (x, response) in enumerate(zip(asked, waiting, strict=True)):
            if at == 7:
                with pytest.raises(Exception, match="99"):
                    response.result(timeout_s=300)
            else:
                assert np.array_equal(response.result(timeout_s=300)["y"], TABLE[x])
        with pytest.raises(Exception, match="there is no column 'x'") as wrong:
            full.predict.remote({"z": [1]}).result(timeout_s=300)
        assert isinstance(wrong.value, InvalidArgument)
        assert full.statistics.remote().result(timeout_s=300)["runs"] == 4
        with pytest.raises(NotFound, match="there is one model only"):
            full.options(multiplexed_model_id="m0").predict.remote({"x": [[0]]}).result(timeout_s=300)
        serve.delete("full")

    def test_more_models_than_a_replica_holds(self, address: str) -> None:
        for at in (0, 1, 2, 0, 2, 1):
            found = handle(f"m{at}").predict.remote({"x": [[0], [2]]}).result(timeout_s=300)
            assert found["y"].ravel().tolist() == [10 + at, 30 + at]
        for name in ("m9", "../models/m0", "", "m0.onnx"):
            with pytest.raises(NotFound, match="there is no model"):
                handle(name).predict.remote({"x": [[0]]}).result(timeout_s=300)

    def test_tokens_come_one_by_one(self, address: str) -> None:
        streaming = handle("next", stream=True)
        several = [streaming.stream.remote([start], max_new_tokens=5) for start in (3, 6)]
        assert [[token.id for token in tokens] for tokens in several] == [[4, 5, 6, 0, 1], [0, 1, 2, 3, 4]]
        with pytest.raises(Exception, match="tokens"):
            list(handle("m0", stream=True).stream.remote([3]))
        with pytest.raises(Exception, match="no tokenizer"):
            list(streaming.stream.remote("text"))

    def test_http(self, address: str) -> None:
        status, body = post(address, {"inputs": {"x": [[0, 1], [2]]}}, "m1")
        assert status == 200 and json.loads(body) == {"outputs": {"y": [[11, 21], [31]]}}
        status, body = post(address, {"prompt": [5], "max_new_tokens": 3}, "next")
        assert status == 200
        assert [json.loads(line)["id"] for line in body.splitlines()] == [6, 0, 1]

    @pytest.mark.parametrize("status, body, name", [
        (400, b"", "m0"), (400, b"{", "m0"), (400, b"[" * 5000, "m0"), (400, [], "m0"), (400, {}, "m0"),
        (400, {"inputs": 3}, "m0"), (400, {"inputs": {"x": 3}}, "m0"),
        (400, {"inputs": {"x": [[1.5]]}}, "m0"), (400, {"inputs": {}, "prompt": []}, "m0"),
        (400, {"prompt": []}, "next"), (400, {"prompt": {}}, "next"), (404, {"inputs": {"x": [[1]]}}, ""),
        (400, {"prompt": [1], "top_k": "x"}, "next"), (400, {"prompt": [1], "model": "x"}, "next"),
        (400, {"prompt": [1], "max_new_tokens": 5000}, "next"),
        (400, {"prompt": [1], "temperature": 1, "seed": -1}, "next"), (400, {"prompt": [1]}, "m0"),
        (404, {"inputs": {"x": [[1]]}}, "m9"), (413, b" " * 10_001, "m0")])
    def test_http_refuses(self, address: str, status: int, body: Any, name: str) -> None:
        found, text = post(address, body, name)
        assert found == status and json.loads(text)["error"]

    def test_http_takes_posts_only(self, address: str) -> None:
        assert post(address, b"", method="PUT")[0] == 405

    def test_a_replica_that_dies_is_made_again(self, address: str) -> None:
        """Serve's health is what is waited for; whoever was refused meanwhile asks again."""
        dead = handle("m0").statistics.remote().result(timeout_s=300)["pid"]
        os.kill(dead, signal.SIGKILL)
        for _ in range(1200):
            try:
                found = handle("m0").predict.remote({"x": [[2]]}).result(timeout_s=300)
                again = handle("m0").statistics.remote().result(timeout_s=300)["pid"]
                break
            except ray.exceptions.RayError:
                time.sleep(0.1)
        assert found["y"].tolist() == [[30]] and again != dead


@needs("Ray")
def test_a_model_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="no model"):
        application(tmp_path / "model.onnx")
