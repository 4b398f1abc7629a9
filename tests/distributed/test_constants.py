"""Constants that processes have in common: the same bytes lie once, whoever comes first, is killed or finds
no room."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from skips import needs

from orthrus.distributed import Replicas
from orthrus.distributed.blocks import Pool
from orthrus.distributed.constants import Constants

pytestmark = needs("Linux")


@pytest.fixture
def pool() -> Iterator[Pool]:
    made = Pool()
    yield made
    made.close()


def test_the_same_bytes_are_there_once(pool: Pool) -> None:
    one, other = Constants(pool.constants), Constants(pool.constants)
    rng = np.random.default_rng(0)
    arrays = [rng.integers(0, 256, 1 << size, np.uint8) for size in (15, 16, 19, 21, 22)]
    arrays += [arrays[2].view(kind) for kind in (np.float32, ml_dtypes.bfloat16, np.int64)]
    arrays += [arrays[3].view(np.float16).reshape(4, -1, 2), rng.standard_normal(33333)]
    for array in arrays:
        for found in (one.common(array), other.common(array.copy())):
            assert found.dtype == array.dtype and found.shape == array.shape and not found.flags.writeable
            assert found.tobytes() == array.tobytes() and found.ctypes.data % 4096 == 0
    size = os.fstat(pool.constants).st_size
    assert [one.common(array.copy()) is array for array in arrays] == [False] * len(arrays)
    assert os.fstat(pool.constants).st_size == size and len(one._known) == 6 == len(other._known)


def test_many_at_once(pool: Pool) -> None:
    """Threads of several descriptors put the same constants, in orders of their own."""
    arrays = [np.full(1 << 15, i, np.int32) for i in range(40)]
    wrong = list[int]()

    def put(seed: int) -> None:
        mine = Constants(os.open(f"/proc/self/fd/{pool.constants}", os.O_RDWR))
        for i in np.random.default_rng(seed).permutation(len(arrays)):
            if not (mine.common(arrays[i].copy()) == i).all():
                wrong.append(i)

    code = (f"import numpy as np; from orthrus.distributed.constants import Constants\n"
            f"mine = Constants({pool.constants})\n"
            f"for i in np.random.default_rng(9).permutation({len(arrays)}):\n"
            f"    assert (mine.common(np.full(1 << 15, i, np.int32)) == i).all()")
    child = subprocess.Popen([sys.executable, "-c", code], pass_fds=[pool.constants])
    threads = [threading.Thread(target=put, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert child.wait() == 0 and not wrong
    last = Constants(pool.constants)
    for i, array in enumerate(arrays):
        assert (last.common(array) == i).all()


def test_a_process_killed_while_it_writes(pool: Pool) -> None:
    """Its lock goes with it, and what it had not done is no constant."""
    code = (f"import os, numpy as np\nfrom orthrus.distributed.constants import Constants\n"
            f"mine = Constants({pool.constants})\n"
            f"mine.common(np.ones(1 << 16, np.uint8))\n"
            f"write = os.pwrite\n"
            f"os.pwrite = lambda file, data, at: write(file, data[:4096], at) and os.kill(os.getpid(), 9)\n"
            f"mine.common(np.full(1 << 16, 2, np.uint8))")
    ended = subprocess.run([sys.executable, "-c", code], pass_fds=[pool.constants], check=False)
    assert ended.returncode == -9
    mine = Constants(pool.constants)
    for i in (1, 2, 3):
        array = np.full(1 << 16, i, np.uint8)
        assert mine.common(array) is not array and (mine.common(array) == i).all()


def test_no_room(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Limits of the system and of the table: an array stays what it is."""
    mine = Constants(pool.constants)
    first = mine.common(np.zeros(1 << 16, np.uint8))

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    array = np.ones(1 << 16, np.uint8)
    assert mine.common(array) is array and not first.any()
    monkeypatch.undo()
    monkeypatch.setattr("orthrus.distributed.constants._ROWS", 1)
    assert mine.common(array) is array and mine.common(np.zeros(1 << 16, np.uint8)).ctypes.data


def mapped(process: subprocess.Popen[bytes] | None, number: int) -> bool:
    """Whether a process maps, to read, the file of this number; one that is being started does not."""
    if process is None:
        return False
    try:
        maps = Path(f"/proc/{process.pid}/maps").read_text().splitlines()
    except OSError:
        return False
    return any(f" {number} " in line and " r--s " in line for line in maps)


@pytest.mark.slow
@needs("generated code")
def test_packed_weights_lie_in_memory_once(tmp_path: Path) -> None:
    """Of a model with 16 MiB of weights two replicas have one copy, also of what is packed for other shapes,
    after one of them is killed, and where its session was kept."""
    rng = np.random.default_rng(3)
    weights = [(rng.standard_normal((1024, 1024)) / 32).astype(np.float32) for _ in range(4)]
    nodes, last = [], "x"
    for i in range(4):
        nodes += [helper.make_node("MatMul", [last, f"w{i}"], [f"m{i}"]),
                  helper.make_node("Tanh", [f"m{i}"], [f"t{i}"])]
        last = f"t{i}"
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, ("N", 1024))],
        [helper.make_tensor_value_info(last, TensorProto.FLOAT, ("N", 1024))],
        [numpy_helper.from_array(w, f"w{i}") for i, w in enumerate(weights)])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    (tmp_path / "model.onnx").write_bytes(model.SerializeToString())
    x = rng.standard_normal((64, 1024)).astype(np.float32)
    want = x
    for weight in weights:
        want = np.tanh(want.astype(np.float64) @ weight)
    for _ in range(3):
        with Replicas(str(tmp_path / "model.onnx"), devices=2) as replicas:
            for count in (64, 20, 64):
                [got] = replicas.run(None, {"x": x[:count]})
                np.testing.assert_allclose(got, want[:count], rtol=1e-4, atol=1e-4)
            replicas.replicas[0].engine.child.kill()
            [got] = replicas.run(None, {"x": x})
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
            there = os.fstat(replicas._pool.constants)
            for _ in range(6000):
                if all(mapped(each.engine.child, there.st_ino) for each in replicas.replicas):
                    break
                time.sleep(0.01)
                replicas.run(None, {"x": x})
            else:
                pytest.fail("a replica has weights of its own")
            assert 16 << 20 <= 512 * os.fstat(replicas._pool.constants).st_blocks <= 36 << 20
