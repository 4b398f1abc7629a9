"""NVIDIA's client, unmodified, against the server: both protocols, every type and extension."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from served import awake
from skips import needs

pytestmark = needs("server libraries")
PROTOCOLS = ("http", "grpc")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    from served import repository, serving

    with serving(repository(tmp_path_factory.mktemp("models")), slots=2) as running:
        yield running


def library(protocol: str) -> Any:
    import tritonclient.grpc
    import tritonclient.http

    return {"http": tritonclient.http, "grpc": tritonclient.grpc}[protocol]


def client_of(server: Any, protocol: str) -> Any:
    where = server.url.removeprefix("http://") if protocol == "http" else server.grpc_address
    return library(protocol).InferenceServerClient(where)


@pytest.fixture(params=PROTOCOLS)
def protocol(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def client(server: Any, protocol: str) -> Iterator[Any]:
    with client_of(server, protocol) as made:
        yield made


def plain(answer: Any) -> Any:
    """A protobuf message as HTTP's JSON has it."""
    if isinstance(answer, dict | list):
        return answer
    from google.protobuf.json_format import MessageToDict

    return MessageToDict(answer, preserving_proto_field_name=True)


def given(protocol: str, name: str, array: np.ndarray, kind: str, **how: Any) -> Any:
    made = library(protocol).InferInput(name, list(array.shape), kind)
    made.set_data_from_numpy(array, **how)
    return made


def refused(call: Any) -> Any:
    from tritonclient.utils import InferenceServerException

    with pytest.raises(InferenceServerException) as found:
        call()
    return found.value


def status(http: int, grpc: str) -> dict[str, str]:
    return {"http": str(http), "grpc": f"StatusCode.{grpc}"}


X = np.arange(8, dtype=np.float32).reshape(2, 4)


def test_health_and_metadata(client: Any, protocol: str) -> None:
    assert client.is_server_live() and client.is_server_ready()
    assert client.is_model_ready("add") and client.is_model_ready("add", "1")
    found = plain(client.get_server_metadata())
    assert found["name"] == "orthrus" and "binary_tensor_data" in found["extensions"]
    found = plain(client.get_model_metadata("add"))
    assert found["versions"] == ["1", "2"]
    [tensor] = found["inputs"]
    assert (tensor["name"], tensor["datatype"], list(map(int, tensor["shape"]))) == ("x", "FP32", [-1, 4])
    found = plain(client.get_model_config("joined"))
    found = found.get("config", found)
    assert found["max_batch_size"] == 8 and found["input"][0]["data_type"] == "TYPE_FP32"
    assert list(map(int, found["input"][0]["dims"])) == [4]


VALUES = {"BOOL": np.array([[True, False]]), "BYTES": np.array([["a", "süß"], ["", "\x00b"]], object),
          "FP16": np.array([[1.5, np.inf]], np.float16), "FP32": np.array([[-0.0, np.nan]], np.float32),
          "FP64": np.array([[1e300, -1]]), "BF16": np.array([[1.5, -2.0]], ml_dtypes.bfloat16)}
for _bits in (8, 16, 32, 64):
    for _name in (f"INT{_bits}", f"UINT{_bits}"):
        _about = np.iinfo(_name.lower())
        VALUES[_name] = np.array([[_about.min, _about.max, 1]], _name.lower())


def shown(array: np.ndarray) -> np.ndarray:
    """Texts, as which a client gives bytes back."""
    if array.dtype != object:
        return array
    texts = [each.decode() if isinstance(each, bytes) else each for each in array.flat]
    return np.array(texts, object).reshape(array.shape)


@pytest.mark.parametrize("kind", VALUES)
@pytest.mark.parametrize("empty", (False, True))
def test_every_type(client: Any, protocol: str, kind: str, empty: bool) -> None:
    array = VALUES[kind][:0] if empty else VALUES[kind]
    found = client.infer(f"same_{kind}", [given(protocol, "x", array, kind)]).as_numpy("y")
    np.testing.assert_array_equal(shown(found), array)


@pytest.mark.parametrize("kind", [kind for kind in VALUES if kind not in ("FP16", "BF16")])
def test_every_type_as_json(server: Any, kind: str) -> None:
    http = library("http")
    with client_of(server, "http") as client:
        asked = http.InferRequestedOutput("y", binary_data=False)
        found = client.infer(f"same_{kind}", [given("http", "x", VALUES[kind], kind, binary_data=False)],
                             outputs=[asked]).as_numpy("y")
    np.testing.assert_array_equal(shown(found), VALUES[kind])


def test_versions_names_and_ids(client: Any, protocol: str) -> None:
    x = [given(protocol, "x", X, "FP32")]
    for version, number in (("", 2), ("1", 1), ("2", 2)):
        answer = client.infer("add", x, model_version=version, request_id="seven")
        np.testing.assert_array_equal(answer.as_numpy("y"), X + number)
        response = plain(answer.get_response())
        assert (response["id"], response["model_version"]) == ("seven", str(number))


def test_chosen_outputs_in_their_order(client: Any, protocol: str) -> None:
    a, b = np.float32([1, 2]), np.float32([5, 7])
    feeds = [given(protocol, "b", b, "FP32"), given(protocol, "a", a, "FP32")]
    asked = [library(protocol).InferRequestedOutput(name) for name in ("d", "s")]
    answer = client.infer("two", feeds, outputs=asked)
    assert [each["name"] for each in plain(answer.get_response())["outputs"]] == ["d", "s"]
    np.testing.assert_array_equal(answer.as_numpy("d"), a - b)
    np.testing.assert_array_equal(answer.as_numpy("s"), a + b)
    assert client.infer("two", feeds, outputs=asked[:1]).as_numpy("s") is None


def test_classification(client: Any, protocol: str) -> None:
    asked = library(protocol).InferRequestedOutput("y", class_count=2)
    found = client.infer("add", [given(protocol, "x", X, "FP32")], outputs=[asked]).as_numpy("y")
    assert shown(found).tolist() == ["9.000000:7", "8.000000:6"]
    found = client.infer("joined", [given(protocol, "x", X, "FP32")], outputs=[asked]).as_numpy("y")
    assert shown(found).tolist() == [["4.000000:3", "3.000000:2"], ["8.000000:3", "7.000000:2"]]


@pytest.mark.parametrize("coding", ("gzip", "deflate"))
def test_compression(server: Any, coding: str) -> None:
    x = np.zeros((300, 4), np.float32)
    with client_of(server, "http") as client:
        answer = client.infer("add", [given("http", "x", x, "FP32")], request_compression_algorithm=coding,
                              response_compression_algorithm=coding)
        assert answer.as_numpy("y").tolist() == (x + 2).tolist()
    with client_of(server, "grpc") as client:
        answer = client.infer("add", [given("grpc", "x", x, "FP32")], compression_algorithm=coding)
        assert answer.as_numpy("y").tolist() == (x + 2).tolist()


def test_requests_side_by_side_are_joined(server: Any, client: Any, protocol: str) -> None:
    def rows() -> tuple[int, int]:
        [found] = plain(client.get_inference_statistics("joined"))["model_stats"]
        return int(found["inference_count"]), int(found.get("execution_count", 0))

    def one(i: int) -> None:
        x = np.full((1, 4), i, np.float32)
        with client_of(server, protocol) as own:
            answer = own.infer("joined", [given(protocol, "x", x, "FP32")])
        np.testing.assert_array_equal(answer.as_numpy("y"), x + 1)
    client.infer("joined", [given(protocol, "x", X, "FP32")])
    before = rows()
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(one, range(32)))
    count, runs = (now - was for now, was in zip(rows(), before, strict=True))
    assert count == 32 and runs < 32


def test_a_bad_request_of_a_batch_fails_alone(server: Any, protocol: str) -> None:
    def one(i: int) -> Any:
        with client_of(server, protocol) as own:
            feeds = [given(protocol, "x", np.int64([i]), "INT64")]
            if i == 99:
                return refused(lambda: own.infer("picks", feeds)).status()
            return own.infer("picks", feeds).as_numpy("y").tolist()
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(one, [0, 1, 2, 99, 4, 5, 6, 7]))
    assert found[:3] + found[4:] == [[float(i)] for i in (0, 1, 2, 4, 5, 6, 7)]
    assert found[3] in (*status(400, "INVALID_ARGUMENT").values(), *status(500, "INTERNAL").values())


def test_outputs_of_other_rows_are_not_mixed(server: Any, protocol: str) -> None:
    def one(i: int) -> Any:
        with client_of(server, protocol) as own:
            x = np.array([i, 0], np.float32)
            return own.infer("keeps", [given(protocol, "x", x, "FP32")]).as_numpy("y").tolist()
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(one, range(1, 9))) == [[float(i)] for i in range(1, 9)]


def test_asynchronous_calls(client: Any, protocol: str) -> None:
    feeds = [given(protocol, "x", X, "FP32")]
    if protocol == "http":
        answers = [client.async_infer("add", feeds).get_result() for _ in range(5)]
    else:
        done = queue.Queue[Any]()
        for _ in range(5):
            client.async_infer("add", feeds, lambda result, error: done.put((result, error)))
        found = [done.get(timeout=30) for _ in range(5)]
        assert not any(error for _, error in found)
        answers = [result for result, _ in found]
    for answer in answers:
        np.testing.assert_array_equal(answer.as_numpy("y"), X + 2)


def test_a_stream_goes_on_behind_an_error(server: Any) -> None:
    done = queue.Queue[Any]()
    with client_of(server, "grpc") as client:
        client.start_stream(lambda result, error: done.put((result, error)))
        for i in range(200):
            array = np.full((1, 4), i, np.float32)
            name = "nothing" if i == 7 else "add"
            client.async_stream_infer(name, [given("grpc", "x", array, "FP32")], request_id=str(i),
                                      enable_empty_final_response=i == 9)
        for i in range(200):
            result, error = done.get(timeout=30)
            if i == 7:
                assert result is None and "nothing" in str(error)
                continue
            response = result.get_response()
            assert response.id == str(i) and result.as_numpy("y")[0, 0] == i + 2
            assert response.parameters["triton_final_response"].bool_param == (i == 9)
        client.stop_stream()


@needs("Linux")
def test_shared_memory(server: Any, client: Any, protocol: str) -> None:
    import tritonclient.utils.shared_memory as shm

    kind = library(protocol)
    x, name = np.arange(40, dtype=np.float32).reshape(10, 4), f"orthrus_test_{protocol}"
    region = shm.create_shared_memory_region(name, f"/{name}", 2 * x.nbytes)
    try:
        shm.set_shared_memory_region(region, [x])
        client.register_system_shared_memory(name, f"/{name}", 2 * x.nbytes)
        assert name in str(client.get_system_shared_memory_status())
        feed, asked = kind.InferInput("x", [10, 4], "FP32"), kind.InferRequestedOutput("y")
        feed.set_shared_memory(name, x.nbytes)
        asked.set_shared_memory(name, x.nbytes, offset=x.nbytes)
        answer = client.infer("add", [feed], outputs=[asked])
        found = shm.get_contents_as_numpy(region, np.float32, [10, 4], x.nbytes)
        np.testing.assert_array_equal(found, x + 2)
        assert "shared_memory_region" in str(answer.get_output("y"))
        again = refused(lambda: client.register_system_shared_memory(name, f"/{name}", x.nbytes))
        assert "registered already" in str(again)
        asked.set_shared_memory(name, x.nbytes, offset=x.nbytes + 4)
        assert "reach beyond" in str(refused(lambda: client.infer("add", [feed], outputs=[asked])))
        with open(f"/dev/shm/{name}", "r+b") as file:
            file.truncate(8)
        assert "shorter" in str(refused(lambda: client.infer("add", [feed])))
        client.unregister_system_shared_memory(name)
        assert "registered" in str(refused(lambda: client.infer("add", [feed])))
    finally:
        client.unregister_system_shared_memory()
        shm.destroy_shared_memory_region(region)


@needs("Linux")
def test_an_output_beside_one_in_shared_memory(client: Any, protocol: str) -> None:
    import tritonclient.utils.shared_memory as shm

    kind, name = library(protocol), f"orthrus_beside_{protocol}"
    region = shm.create_shared_memory_region(name, f"/{name}", 8)
    try:
        client.register_system_shared_memory(name, f"/{name}", 8)
        asked = [kind.InferRequestedOutput("d"), kind.InferRequestedOutput("s")]
        asked[0].set_shared_memory(name, 8)
        a, b = np.float32([1, 2]), np.float32([5, 7])
        answer = client.infer("two", [given(protocol, "a", a, "FP32"), given(protocol, "b", b, "FP32")],
                              outputs=asked)
        np.testing.assert_array_equal(answer.as_numpy("s"), a + b)
        np.testing.assert_array_equal(shm.get_contents_as_numpy(region, np.float32, [2]), a - b)
    finally:
        client.unregister_system_shared_memory(name)
        shm.destroy_shared_memory_region(region)


@pytest.mark.parametrize("key", ("/../etc/passwd", "..", "/a/b", "", "/no_such_object", "/" + "x" * 300))
def test_shared_memory_keys_are_names(client: Any, protocol: str, key: str) -> None:
    assert refused(lambda: client.register_system_shared_memory("r", key, 4)).status() == status(
        400, "INVALID_ARGUMENT")[protocol]


def test_cuda_memory_is_refused(client: Any, protocol: str) -> None:
    error = refused(lambda: client.register_cuda_shared_memory("r", b"AAAA", 0, 4))
    assert error.status() == status(501, "UNIMPLEMENTED")[protocol] and "system shared memory" in str(error)


@pytest.mark.parametrize("name, feeds, http, grpc, says", [
    ("nothing", {"x": X}, 404, "NOT_FOUND", "nothing"),
    ("../add", {"x": X}, 404, "NOT_FOUND", ""),
    ("add", {}, 400, "INVALID_ARGUMENT", "needs the input 'x'"),
    ("add", {"z": X}, 400, "INVALID_ARGUMENT", "its inputs are x"),
    ("add", {"x": X.astype(np.int32)}, 400, "INVALID_ARGUMENT", "takes FP32"),
    ("fixed", {"x": X}, 400, "INVALID_ARGUMENT", "x"),
    ("broken", {"x": X}, 404, "NOT_FOUND", "broken"),
])
def test_mistakes_have_the_protocols_status(client: Any, protocol: str, name: str,
                                            feeds: dict[str, np.ndarray], http: int, grpc: str,
                                            says: str) -> None:
    kinds = {"float32": "FP32", "int32": "INT32"}
    made = [given(protocol, each, array, kinds[str(array.dtype)]) for each, array in feeds.items()]
    error = refused(lambda: client.infer(name, made))
    assert error.status() == status(http, grpc)[protocol] and says in str(error)


def test_a_version_that_is_not_there(client: Any, protocol: str) -> None:
    for version in ("3", "01", "-1", "x", "9" * 30):
        error = refused(lambda version=version: client.get_model_metadata("add", version))
        assert error.status() == status(404, "NOT_FOUND")[protocol]


@pytest.fixture
def asleep() -> Iterator[None]:
    """What asks the model that sleeps waits until the test lets it."""
    awake.clear()
    yield
    awake.set()


@pytest.mark.usefixtures("asleep")
def test_more_than_may_wait_is_refused(server: Any, protocol: str) -> None:
    outcomes, found = list[str](), threading.Lock()

    def one(_: int) -> None:
        from tritonclient.utils import InferenceServerException

        with client_of(server, protocol) as own:
            try:
                own.infer("sleeps", [given(protocol, "x", np.float32([1]), "FP32")])
                outcome = "answered"
            except InferenceServerException as error:
                outcome = error.status()
            with found:
                outcomes.append(outcome)
                if len(outcomes) == 1:
                    awake.set()
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(one, range(16)))
    assert set(outcomes) == {"answered", status(503, "RESOURCE_EXHAUSTED")[protocol]}


@pytest.mark.usefixtures("asleep")
def test_a_request_whose_time_is_over(server: Any, client: Any, protocol: str) -> None:
    feeds = [given(protocol, "x", np.float32([1]), "FP32")]

    def occupy(_: int) -> None:
        with client_of(server, protocol) as own:
            own.infer("sleeps", feeds)
    executor = server._running.operations.executor
    with ThreadPoolExecutor(2) as pool:
        busy = [pool.submit(occupy, i) for i in range(2)]
        while executor.inside < 2:
            assert not any(each.done() for each in busy)
        error = refused(lambda: client.infer("sleeps", feeds, timeout=50_000))
        awake.set()
        assert error.status() in (status(504, "DEADLINE_EXCEEDED")[protocol],
                                  status(503, "RESOURCE_EXHAUSTED")[protocol])
        assert all(each.result() is None for each in busy)


def test_models_come_and_go(server: Any, client: Any, protocol: str) -> None:
    from served import adds, put

    folder, name = server.options.models, f"new_{protocol}"
    assert refused(lambda: client.load_model(name)).status() == status(404, "NOT_FOUND")[protocol]
    put(folder, name, adds(5))
    index = plain(client.get_model_repository_index())
    rows = {row["name"]: row for row in (index if isinstance(index, list) else index["models"])}
    assert rows[name]["state"] == "UNAVAILABLE" and rows["add"]["state"] == "READY"
    assert rows["broken"]["reason"]
    client.load_model(name)
    feeds = [given(protocol, "x", X, "FP32")]
    np.testing.assert_array_equal(client.infer(name, feeds).as_numpy("y"), X + 5)
    put(folder, name, adds(6))
    client.load_model(name)
    np.testing.assert_array_equal(client.infer(name, feeds).as_numpy("y"), X + 6)
    put(folder, name, b"broken")
    assert refused(lambda: client.load_model(name)).status() == status(400, "INVALID_ARGUMENT")[protocol]
    np.testing.assert_array_equal(client.infer(name, feeds).as_numpy("y"), X + 6)
    client.unload_model(name)
    assert not client.is_model_ready(name)
    assert refused(lambda: client.infer(name, feeds)).status() == status(404, "NOT_FOUND")[protocol]


@pytest.mark.usefixtures("asleep")
def test_a_model_that_goes_answers_what_it_has(server: Any, client: Any, protocol: str) -> None:
    import shutil

    from served import put

    folder, name = server.options.models, f"leaving_{protocol}"
    put(folder, name, (folder / "sleeps" / "1" / "model.onnx").read_bytes())
    client.load_model(name)

    def one(_: int) -> float:
        with client_of(server, protocol) as own:
            answer = own.infer(name, [given(protocol, "x", np.float32([0.2]), "FP32")])
            return float(answer.as_numpy("y")[0])
    with ThreadPoolExecutor(6) as pool:
        asked = [pool.submit(one, i) for i in range(6)]
        executor = server._running.operations.executor
        while executor.inside < 6:
            assert not any(each.done() for each in asked)
        client.unload_model(name)
        assert refused(lambda: one(0)).status() == status(404, "NOT_FOUND")[protocol]
        awake.set()
        assert [each.result() for each in asked] == [np.float32(0.2)] * 6
    assert not executor._retired
    shutil.rmtree(folder / name)


def test_no_request_is_lost_while_a_model_is_loaded_anew(server: Any, client: Any, protocol: str) -> None:
    stop, wrong = threading.Event(), list[Any]()

    def ask() -> None:
        with client_of(server, protocol) as own:
            while not stop.is_set():
                try:
                    answer = own.infer("add", [given(protocol, "x", X, "FP32")])
                    np.testing.assert_array_equal(answer.as_numpy("y"), X + 2)
                except Exception as error:
                    wrong.append(error)
                    return
    threads = [threading.Thread(target=ask) for _ in range(3)]
    for each in threads:
        each.start()
    for _ in range(5):
        client.load_model("add")
    stop.set()
    for each in threads:
        each.join()
    assert not wrong


def test_trace_and_log_settings(client: Any, protocol: str) -> None:
    settings = plain(client.get_trace_settings())
    assert "trace_level" in str(settings)
    assert "--trace" in str(refused(lambda: client.update_trace_settings(settings={
        "trace_level": ["TIMESTAMPS"]})))
    assert "trace_file" in str(refused(lambda: client.update_trace_settings(settings={"trace_file": "/x"})))
    client.update_trace_settings(settings={"trace_rate": "5"})
    assert "5" in str(plain(client.get_trace_settings()))
    client.update_trace_settings(settings={"trace_rate": "1"})
    assert "log_verbose_level" in str(client.get_log_settings())
    assert "log_file" in str(refused(lambda: client.update_log_settings({"log_file": "/etc/passwd"})))
