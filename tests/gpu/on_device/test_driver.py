"""The driver's verbs and the device's: memory, streams, events, graphs, what is refused."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from orthrus.codegen.triton import compile as compiling
from orthrus.codegen.triton.epilogue import Closing, Walk
from orthrus.codegen.triton.kernels.elementwise import elementwise
from orthrus.codegen.triton.targets import named
from orthrus.codegen.write.expr import Expr
from orthrus.errors import EPFail
from orthrus.kernels import HOST, Lanes, copied, fill, running, working
from orthrus.providers.gpu.device import GpuDevice

TREE = Expr("add", (Expr.leaf(1, "float32"), Expr.leaf(1, "float32")), "float32")


def doubled(device: GpuDevice) -> Any:
    """Adds an array to itself: a function (y, x, count) that asks the device for it."""
    target = named(device.target)
    assert target is not None
    spec = elementwise(closing=Closing(Walk((("11",),)), TREE, ("float32",)), block=256)
    code = compiling.code(spec, target, ("16", "16", ""))
    function = device.function(code.data, code.name, code.shared)

    def launch(y: Any, x: Any, count: int) -> None:
        device.launch(function, -(-count // 256), code.threads, code.shared,
                      code.packed([y.handle, x.handle, count]))
    return launch


def test_what_the_device_is(gpu: Any) -> None:
    device = gpu.own
    it = device.properties
    target = named(it.target)
    assert target is not None and target.warp == it.warp and it.processors > 0
    assert it.shared >= target.shared or it.shared >= 48 << 10, (it.shared, target.shared)
    free, total = device.driver.memory_info(device.index)
    assert 0 < free <= total and total >= it.memory * 0.9
    print(it, target, f"{free} of {total} bytes free")


@pytest.mark.parametrize("dtype", ("float32", "float16", "float64", "int8", "uint8", "int64", "bool"))
def test_arrays_go_there_and_back(gpu: Any, dtype: str) -> None:
    rng = np.random.default_rng(0)
    for shape in ((), (0,), (1,), (3, 5), (gpu.large,)):
        array = np.asarray(rng.standard_normal(shape) * 9).astype(dtype)
        there = copied(array, gpu.own)
        again = copied(there, gpu.own)
        np.testing.assert_array_equal(copied(again, HOST), array)


def test_memory_is_given_back(gpu: Any) -> None:
    device = gpu.own
    size = gpu.large * 4
    for _ in range(3):
        address = device.allocate(size)
        assert address % 256 == 0
        device.clear(address, size)
        out = np.ones(size, np.uint8)
        device.copy_out(address, out)
        device.synchronize(device.stream)
        assert not out.any()
        device.free(address)


def test_more_memory_than_there_is(gpu: Any) -> None:
    device = gpu.own
    _, total = device.driver.memory_info(device.index)
    with pytest.raises(MemoryError):
        device.allocate(4 * total)
    np.testing.assert_array_equal(copied(copied(np.arange(9), device), HOST), np.arange(9))


def test_pinned_memory(gpu: Any) -> None:
    device = gpu.own
    address = device.allocate_host(4096)
    assert address
    device.free_host(address)


def test_kernels_streams_and_events(gpu: Any) -> None:
    device, count = gpu.own, 1000
    launch = doubled(device)
    x = np.random.default_rng(0).standard_normal(count).astype(np.float32)
    given, y, z = copied(x, device), device.array((count,), np.float32), device.array((count,), np.float32)
    spent = device.timed(lambda: launch(y, given, count))
    assert spent > 0
    with running([Lanes(device)]):
        stream = working(device)
        z.memory.writing(stream)
        y.memory.reading(stream)
        event = device.record(stream.handle)
        device.wait(stream.handle, event)
        launch(z, y, count)
        device.synchronize(stream.handle)
        device.destroy_event(event)
    np.testing.assert_array_equal(copied(z, HOST), 4 * x)


def test_graphs(gpu: Any) -> None:
    device, count = gpu.own, 500
    launch = doubled(device)
    x = copied(np.ones(count, np.float32), device)
    y = device.array((count,), np.float32)
    launch(y, x, count)
    device.begin_capture()
    launch(y, x, count)
    launch(x, y, count)
    graph = device.end_capture()
    np.testing.assert_array_equal(copied(x, HOST), 1)
    for turn in (1, 2, 3):
        device.replay(graph)
        np.testing.assert_array_equal(copied(x, HOST), 4.0 ** turn)
    device.destroy_graph(graph)


def test_a_capture_that_is_dropped(gpu: Any) -> None:
    device = gpu.own
    device.begin_capture()
    device.drop_capture()
    np.testing.assert_array_equal(copied(copied(np.arange(5), device), HOST), np.arange(5))


def test_code_that_is_none(gpu: Any) -> None:
    with pytest.raises(EPFail, match="does not load"):
        gpu.own.function(b"no code" * 100, "nothing", 0)
    np.testing.assert_array_equal(copied(copied(np.arange(5), gpu.own), HOST), np.arange(5))


def test_threads(gpu: Any) -> None:
    device, failed = gpu.own, list[BaseException]()

    def work(seed: int) -> None:
        try:
            for turn in range(5):
                array = np.random.default_rng(seed + turn).standard_normal(999)
                there = copied(array, device)
                other = device.array(array.shape, array.dtype)
                fill(other, there)
                np.testing.assert_array_equal(copied(other, HOST), array)
        except BaseException as error:
            failed.append(error)
    threads = [threading.Thread(target=work, args=(10 * i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
