"""Replicas: batches cut and joined, requests in order, processes that are killed or hang, and what they leave
behind."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper
from skips import needs

import orthrus as ort
from orthrus import errors
from orthrus.demo import MODEL, samples
from orthrus.distributed import Replicas
from orthrus.distributed.rows import cut

pytestmark = needs("Linux")
IMAGES, _ = samples()
WANT = ort.InferenceSession(MODEL).run(None, {"image": IMAGES})


@pytest.fixture(scope="module")
def two() -> Iterator[Replicas]:
    with Replicas(Path(MODEL).read_bytes(), devices=2, time_limit=60) as replicas:
        yield replicas


def right(got: list[Any], first: int, last: int) -> None:
    np.testing.assert_array_equal(got[0], WANT[0][first:last])
    np.testing.assert_allclose(got[1], WANT[1][first:last], rtol=1e-4, atol=1e-6)


def model(nodes: list[Any], inputs: list[Any], outputs: list[Any]) -> bytes:
    graph = helper.make_graph(nodes, "g", inputs, outputs)
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8
    ).SerializeToString()


def test_rows_are_cut_by_speed() -> None:
    for count in (0, 1, 2, 7, 64, 1000):
        for speeds in ([1.0], [1.0, 1.0], [3.0, 1.0, 0.5], [1e-9, 5.0]):
            parts = cut(count, speeds)
            assert [p.start for p in parts[1:]] == [p.stop for p in parts[:-1]]
            assert parts[0].start == 0 and parts[-1].stop == count
            assert all(
                abs((p.stop - p.start) - count * s / sum(speeds)) <= 1
                for p, s in zip(parts, speeds, strict=True)
            )


def test_batches_of_every_size(two: Replicas) -> None:
    for count in (1, 2, 3, 5, 64, 64, 63, len(IMAGES), len(IMAGES), 2):
        right(two.run(None, {"image": IMAGES[:count]}), 0, count)
    [label] = two.run(["label"], {"image": IMAGES[3:40]})
    np.testing.assert_array_equal(label, WANT[0][3:40])
    assert all(r.rows_per_second for r in two.replicas) and "by speed" in two.explain()


def test_results_are_the_callers(two: Replicas) -> None:
    kept = [two.run(None, {"image": IMAGES[i : i + 40]}) for i in range(8)]
    for i, got in enumerate(kept):
        right(got, i, i + 40)
        got[1][...] = 0
    right(two.run(None, {"image": IMAGES[:40]}), 0, 40)
    del kept, got
    gc.collect()
    made = two._pool.made
    for _ in range(20):
        two.run(None, {"image": IMAGES[:40]})
    assert two._pool.made <= made + 2, "blocks are used again"


def test_a_model_in_memory_is_not_copied_by_each_process() -> None:
    """Its bytes lie in memory that all of them map; what a process has of its own is what its session made of
    the weights."""
    table = np.arange(1 << 24, dtype=np.float32).reshape(-1, 64)
    names = [helper.make_tensor_value_info(n, t, s) for n, t, s in (
        ("i", TensorProto.INT64, ["N"]), ("y", TensorProto.FLOAT, ["N", 64]))]
    held = helper.make_tensor("t", TensorProto.FLOAT, table.shape, table.tobytes(), raw=True)
    node = helper.make_node("Gather", ["t", "i"], ["y"])
    graph = helper.make_graph([node], "g", names[:1], names[1:], [held])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)],
                             ir_version=8).SerializeToString()
    with Replicas(MODEL, devices=1) as small, Replicas(made, devices=2) as replicas:
        asked = np.array([5, 0, len(table) - 1, 7])
        np.testing.assert_array_equal(replicas.run(None, {"i": asked})[0], table[asked])
        own = [private(each.pid) for each in (*small.replicas, *replicas.replicas)]
        assert max(own[1:]) < own[0] + table.nbytes * 1.5, own


def private(pid: int | None) -> int:
    """Bytes of a process that no other one has."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith("Private_"))


def test_numbers_of_numpy_are_fed_as_arrays() -> None:
    x, c = (helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in (("x", ["N", 2]), ("c", [])))
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 2])
    made = model([helper.make_node("Mul", ["x", "c"], ["y"])], [c, x], [y])
    fed = np.arange(8, dtype=np.float32).reshape(4, 2)
    with Replicas(made, devices=1) as replicas:
        np.testing.assert_array_equal(replicas.run(None, {"c": np.float32(3), "x": fed})[0], 3 * fed)


def test_many_requests_in_order(two: Replicas) -> None:
    asked = []

    def feeds() -> Iterator[dict[str, Any]]:
        for i in range(60):
            asked.append(i)
            yield {"image": IMAGES[i : i + 1 + i % 3]}

    for i, got in enumerate(two.map(None, feeds())):
        right(got, i, i + 1 + i % 3)
        assert len(asked) <= i + 2 + 4 * len(two.replicas), "no more than a few are taken ahead"
    assert len(asked) == 60
    futures = [two.submit(None, {"image": IMAGES[i : i + 2]}) for i in range(20)]
    for i, future in enumerate(futures):
        right(future.result(), i, i + 2)


def test_threads_side_by_side(two: Replicas) -> None:
    wrong: list[Exception] = []

    def ask(i: int) -> None:
        try:
            for k in range(10):
                right(two.run(None, {"image": IMAGES[i + k : i + k + 30]}), i + k, i + k + 30)
        except Exception as error:
            wrong.append(error)

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_errors_are_the_sessions(two: Replicas) -> None:
    with pytest.raises(ValueError, match="did you mean image"):
        two.run(None, {"imagee": IMAGES})
    with pytest.raises(errors.InvalidArgument) as caught:
        two.run(None, {"image": IMAGES[:, :, :3]})
    with pytest.raises(errors.InvalidArgument) as plain:
        ort.InferenceSession(MODEL).run(None, {"image": IMAGES[:, :, :3]})
    assert str(caught.value).split("found")[0] == str(plain.value).split("found")[0]
    assert "on replica" in caught.value.__notes__[0]
    with pytest.raises(errors.InvalidArgument, match="Invalid output name"):
        two.run(["nothing"], {"image": IMAGES})
    right(two.run(None, {"image": IMAGES[:9]}), 0, 9)
    with pytest.raises(errors.NoSuchFile):
        Replicas("there/is/none.onnx", devices=1)


def test_a_killed_process_loses_nothing(two: Replicas) -> None:
    before = sum(r.restarts for r in two.replicas)
    for replica in two.replicas:
        if replica.pid is not None:
            os.kill(replica.pid, signal.SIGKILL)
        right(two.run(None, {"image": IMAGES[:50]}), 0, 50)
    assert sum(r.restarts for r in two.replicas) > before


def test_a_process_that_hangs_is_replaced(two: Replicas) -> None:
    two.time_limit = 1.0
    pid = two.replicas[0].pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    right(two.run(None, {"image": IMAGES[:50]}), 0, 50)
    two.time_limit = 60
    assert two.replicas[0].pid != pid


@pytest.mark.slow
def test_values_that_are_no_numbers() -> None:
    text = helper.make_tensor_value_info("t", TensorProto.STRING, ["N"])
    half = helper.make_tensor_value_info("h", TensorProto.BFLOAT16, ["N", 2])
    outs = [
        helper.make_tensor_value_info("u", TensorProto.STRING, ["N"]),
        helper.make_tensor_value_info("k", TensorProto.BFLOAT16, ["N", 2]),
    ]
    made = model(
        [helper.make_node("Identity", ["t"], ["u"]), helper.make_node("Neg", ["h"], ["k"])],
        [text, half],
        outs,
    )
    import ml_dtypes

    feeds = {
        "t": np.array(["a", "ß", ""], object),
        "h": np.arange(6).reshape(3, 2).astype(ml_dtypes.bfloat16),
    }
    with Replicas(made, devices=2) as replicas:
        for _ in range(2):
            words, numbers = replicas.run(None, feeds)
            assert words.tolist() == ["a", "ß", ""]
            np.testing.assert_array_equal(numbers, -feeds["h"])


def test_what_is_not_cut_is_run_whole() -> None:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 3])
    total = helper.make_tensor_value_info("s", TensorProto.FLOAT, [1, 3])
    summed = model([helper.make_node("ReduceSum", ["x", "a"], ["s"])], [x], [total])
    import onnx

    proto = onnx.load_from_string(summed)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.array([0], np.int64), "a"))
    fed = np.arange(12, dtype=np.float32).reshape(4, 3)
    with Replicas(proto.SerializeToString(), devices=2) as replicas:
        assert "the output s has no row" in replicas.explain()
        np.testing.assert_array_equal(replicas.run(None, {"x": fed})[0], fed.sum(0, keepdims=True))
    with Replicas(proto.SerializeToString(), devices=2, batch_inputs=["x"]) as replicas:
        with pytest.raises(errors.Fail, match="no row for each item"):
            replicas.run(None, {"x": fed})


def test_a_system_that_hands_no_files_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("socket.send_fds")
    with pytest.raises(errors.Fail, match="which this system does not know"):
        Replicas(MODEL, devices=1)


@pytest.mark.parametrize("closed", [True, False])
def test_nothing_is_left_behind(closed: bool) -> None:
    replicas = Replicas(MODEL, devices=1)
    pid = replicas.replicas[0].pid
    right(replicas.run(None, {"image": IMAGES[:4]}), 0, 4)
    if not closed:
        del replicas
        gc.collect()
        assert not Path(f"/proc/{pid}").exists()
        return
    replicas.close()
    replicas.close()
    assert pid is not None and not Path(f"/proc/{pid}").exists()
    with pytest.raises(errors.Fail, match="have been closed"):
        replicas.run(None, {"image": IMAGES[:4]})


@pytest.mark.slow
def test_processes_end_with_their_parent() -> None:
    program = (
        "import os\nfrom orthrus.distributed import Replicas\nfrom orthrus.demo import MODEL\n"
        "r = Replicas(MODEL, devices=1)\nprint(r.replicas[0].pid, flush=True)\nos._exit(0)\n"
    )
    said = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True
    )
    left = Path(f"/proc/{said.stdout.strip()}")
    for _ in range(1200):
        if not left.exists():
            break
        time.sleep(0.05)
    assert not left.exists()
