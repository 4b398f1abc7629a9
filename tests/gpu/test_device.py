"""A GPU over a driver that does nothing before it must: what was not ordered comes out wrong."""

import contextlib
import gc
import os
import pickle
import struct
import threading
from collections.abc import Iterator

import numpy as np
import pytest
from lazy_driver import LazyDriver

from orthrus.errors import EPFail, InvalidArgument
from orthrus.kernels import DeviceArray, copied
from orthrus.kernels.device import HOST, fill
from orthrus.providers.gpu.device import GpuDevice, shared
from orthrus.providers.gpu.driver import DriverError
from orthrus.providers.gpu.memory import Direct

X = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
LARGE = np.random.default_rng(0).integers(0, 256, (9 << 20) + 5, np.uint8)


def view(address: int, count: int) -> np.ndarray:
    import ctypes

    return np.ctypeslib.as_array((ctypes.c_float * count).from_address(address))


def double(arguments: bytes) -> None:
    """y = 2 x"""
    to, source, count = struct.unpack("<QQi", arguments)
    view(to, count)[...] = 2 * view(source, count)


def faulty(arguments: bytes) -> None:
    raise ArithmeticError


@pytest.fixture
def driver() -> Iterator[LazyDriver]:
    made = LazyDriver()
    made.kernels.update(double=double, faulty=faulty)
    yield made
    gc.collect()
    assert not made.memory, "device memory was not given back"


@pytest.fixture(params=[False, True], ids=["one stream", "copies apart"])
def device(driver: LazyDriver, request: pytest.FixtureRequest) -> GpuDevice:
    return GpuDevice(driver, copies_apart=request.param)


def doubled(device: GpuDevice, x: DeviceArray, y: DeviceArray | None = None) -> DeviceArray:
    y = device.array(x.shape, x.dtype) if y is None else y
    device.launch(device.function(b"double", "double"), 1, 32, 0,
                  struct.pack("<QQi", y.handle, x.handle, x.size))
    return y


@pytest.mark.parametrize("x", [X, X[:0], X[:, ::2], np.array(3.0), LARGE,
                               np.array([True, False]), X.astype(np.float16)], ids=str)
def test_arrays_come_back_as_they_went(device: GpuDevice, x: np.ndarray) -> None:
    source = x.copy()
    there = copied(source, device)
    source[...] = 0
    np.testing.assert_array_equal(copied(there, HOST), x)
    del there


def test_copies_and_kernels_keep_their_order(device: GpuDevice) -> None:
    x = copied(X, device)
    y = doubled(device, doubled(device, x))
    fill(x, X + 1)
    z = doubled(device, x)
    np.testing.assert_array_equal(copied(y, HOST), 4 * X)
    fill(y, X - 1)
    np.testing.assert_array_equal(copied(z, HOST), 2 * X + 2)
    np.testing.assert_array_equal(copied(doubled(device, y), HOST), 2 * X - 2)


def test_staging_is_not_written_over_before_it_was_read(device: GpuDevice) -> None:
    arrays = [copied(np.full(100, i, np.float32), device) for i in range(100)]
    for i, array in enumerate(arrays):
        np.testing.assert_array_equal(copied(array, HOST), np.full(100, i, np.float32))


def test_devices_copy_to_each_other(driver: LazyDriver) -> None:
    one, two = GpuDevice(driver, 0), GpuDevice(driver, 1)
    x = doubled(one, copied(X, one))
    there = two.array(X.shape, X.dtype)
    fill(there, x)
    fill(x, X)
    outs = driver.counts["wait_for"]
    np.testing.assert_array_equal(copied(doubled(two, there), HOST), 4 * X)
    assert driver.counts["wait_for"] == outs + 1, "it went by way of the host"


def test_a_stream_of_the_callers_is_waited_for_and_waits(driver: LazyDriver) -> None:
    device = GpuDevice(driver)
    theirs = driver.create_stream(0)
    x, y, seen = copied(X, device), device.array(X.shape, X.dtype), np.zeros_like(X)
    device.rejoin(theirs)
    driver.fill(0, x.handle, 0, x.nbytes, theirs)
    device.join(theirs)
    doubled(device, x, y)
    device.rejoin(theirs)
    driver.copy(0, seen.ctypes.data, y.handle, y.nbytes, theirs)
    driver.synchronize(0, theirs)
    np.testing.assert_array_equal(seen, 0 * X)


def test_a_graph_does_what_was_asked_for_each_time(device: GpuDevice, driver: LazyDriver) -> None:
    x, y = copied(X, device), device.array(X.shape, X.dtype)
    function = device.function(b"double", "double")
    arguments = struct.pack("<QQi", y.handle, x.handle, x.size)

    def work(stream: int) -> None:
        device.launch(function, 1, 32, 0, arguments, stream)
        device.move(x.handle, y.handle, y.nbytes, stream)
    graph = device.captured(work)
    np.testing.assert_array_equal(copied(x, HOST), X)
    graph.launch()
    graph.launch()
    np.testing.assert_array_equal(copied(x, HOST), 4 * X)
    del graph
    assert not driver.graphs

    def failing(stream: int) -> None:
        raise ValueError("no")
    with pytest.raises(ValueError, match="no"):
        device.captured(failing)
    assert not driver.graphs


def test_code_is_loaded_once(device: GpuDevice, driver: LazyDriver) -> None:
    found = {device.function(bytes([*b"double"]), "double", n) for n in (0, 0, 1, 0)}
    assert len(found) == 2 and driver.counts["load"] == 1
    with pytest.raises(EPFail, match="no binary for this GPU"):
        device.function(b"something else", "double")


def test_memory_has_an_end(driver: LazyDriver) -> None:
    device = GpuDevice(driver)
    with pytest.raises(MemoryError, match="gpu:0.*out of memory"):
        device.array((1 << 27,), np.float32)
    small = GpuDevice(driver, memory=Direct(driver, 0, 1000))
    kept = small.array((200,), np.float32)
    with pytest.raises(MemoryError, match="gpu_mem_limit"):
        small.array((200,), np.float32)
    del kept
    small.array((200,), np.float32)


def test_a_kernel_that_faults_is_an_error_from_then_on(device: GpuDevice, driver: LazyDriver) -> None:
    x = copied(X, device)
    device.launch(device.function(b"faulty", ""), 1, 32, 0, b"")
    with pytest.raises(EPFail, match="launch failure") as error:
        copied(x, HOST)
    assert "end this process" in str(error.value)
    assert "launch failure" in str(pickle.loads(pickle.dumps(error.value)))
    for refused in (lambda: copied(X, device), lambda: copied(x, HOST), device.synchronize,
                    lambda: doubled(device, x)):
        with pytest.raises(EPFail):
            refused()
    driver.memory.clear()


def test_an_index_there_is_no_device_of(driver: LazyDriver) -> None:
    for index in (-1, 2):
        with pytest.raises(InvalidArgument, match=rf"Invalid device ID: {index}, must be between 0 \(incl"):
            GpuDevice(driver, index)


def test_sessions_share_a_device(driver: LazyDriver) -> None:
    assert shared(driver, 0) is shared(driver, 0)
    assert shared(driver, 0) is not shared(driver, 1)
    assert shared(driver, 0) is not shared(driver, 0, "limited")


def test_threads_share_a_device(device: GpuDevice) -> None:
    wrong: list[int] = []

    def work(seed: int) -> None:
        x = np.random.default_rng(seed).standard_normal(1000).astype(np.float32)
        for _ in range(20):
            with contextlib.suppress(AssertionError):
                np.testing.assert_array_equal(copied(doubled(device, copied(x, device)), HOST), 2 * x)
                continue
            wrong.append(seed)
    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.needs("POSIX")
def test_a_forked_process_is_told(driver: LazyDriver) -> None:
    device = GpuDevice(driver)
    there = copied(X, device)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            copied(there, HOST)
        except EPFail as error:
            os.write(writing, str(error).encode())
        del there
        os._exit(0)
    os.waitpid(child, 0)
    assert b"spawn" in os.read(reading, 4096)
    np.testing.assert_array_equal(copied(there, HOST), X)


def test_every_call_of_a_driver_may_be_refused(driver: LazyDriver) -> None:
    device = GpuDevice(driver)
    x = copied(X, device)
    driver.lost = True
    with pytest.raises(DriverError):
        driver.allocate(0, 1)
    for verb in (lambda: device.allocate(8), lambda: device.clear(x.handle, 8), lambda: device.join(0),
                 lambda: device.move(x.handle, x.handle, 8), device.synchronize,
                 lambda: device.function(b"double", "double"), lambda: fill(x, X)):
        with pytest.raises(EPFail):
            verb()
    driver.memory.clear()
