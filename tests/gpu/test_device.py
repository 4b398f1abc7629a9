"""A GPU over a driver that does nothing before it must: what was not ordered comes out wrong."""

import contextlib
import ctypes
import os
import pickle
import struct
import threading
from collections.abc import Iterator

import numpy as np
import pytest
from lazy_driver import LazyDriver

from orthrus.errors import DeviceReset, EPFail, Fail, InvalidArgument
from orthrus.kernels import HOST, DeviceArray, Lanes, copied, fill, running, working
from orthrus.providers.gpu import options
from orthrus.providers.gpu.device import GpuDevice, shared
from orthrus.providers.gpu.memory import allocator, run_over

X = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
LARGE = np.random.default_rng(0).integers(0, 256, (9 << 20) + 5, np.uint8)


def view(address: int, count: int) -> np.ndarray:
    return np.ctypeslib.as_array((ctypes.c_float * count).from_address(address))


def double(arguments: bytes) -> None:
    """y = 2 x"""
    to, source, count = struct.unpack("<QQi", arguments)
    view(to, count)[...] = 2 * view(source, count)


def faulty(arguments: bytes) -> None:
    raise ArithmeticError


@pytest.fixture
def driver() -> LazyDriver:
    made = LazyDriver()
    made.kernels.update(double=double, faulty=faulty)
    return made


@pytest.fixture(params=["of the process", "of a session", "copies on the same stream"])
def device(driver: LazyDriver, request: pytest.FixtureRequest) -> Iterator[GpuDevice]:
    """A device, as work outside of sessions uses it, or as a session does."""
    made = GpuDevice(driver)
    if request.param == "of the process":
        yield made
        return
    with contextlib.suppress(DeviceReset), running([Lanes(made, together="same" in request.param)]):
        yield made


def launched(device: GpuDevice, x: DeviceArray, y: DeviceArray) -> None:
    stream = working(device)
    x.memory.reading(stream)
    y.memory.writing(stream)
    device.launch(device.function(b"double", "double"), 1, 32, 0,
                  struct.pack("<QQi", y.handle, x.handle, x.size))


def doubled(device: GpuDevice, x: DeviceArray) -> DeviceArray:
    y = device.array(x.shape, x.dtype)
    launched(device, x, y)
    return y


@pytest.mark.parametrize("x", [X, X[:0], X[:, ::2], np.array(3.0), LARGE, np.array([True, False]),
                               X.astype(np.float16)], ids=str)
def test_arrays_come_back_as_they_went(device: GpuDevice, x: np.ndarray) -> None:
    source = x.copy()
    there = copied(source, device)
    source[...] = 0
    np.testing.assert_array_equal(copied(there, HOST), x)


def test_copies_and_kernels_keep_their_order(device: GpuDevice) -> None:
    x = copied(X, device)
    y = doubled(device, doubled(device, x))
    fill(x, X + 1)
    z = doubled(device, x)
    np.testing.assert_array_equal(copied(y, HOST), 4 * X)
    fill(y, X - 1)
    np.testing.assert_array_equal(copied(z, HOST), 2 * X + 2)
    np.testing.assert_array_equal(copied(doubled(device, y), HOST), 2 * X - 2)


def test_memory_is_not_written_over_before_it_was_read(device: GpuDevice) -> None:
    arrays = [doubled(device, copied(np.full(100, i, np.float32), device)) for i in range(100)]
    for i, array in enumerate(arrays):
        np.testing.assert_array_equal(copied(array, HOST), np.full(100, 2 * i, np.float32))


def test_devices_copy_to_each_other(driver: LazyDriver) -> None:
    one, two = GpuDevice(driver, 0), GpuDevice(driver, 1)
    x = doubled(one, copied(X, one))
    there = two.array(X.shape, X.dtype)
    copies = driver.counts["copy"]
    fill(there, x)
    assert driver.counts["copy"] == copies + 1, "it went by way of the host"
    fill(x, X)
    np.testing.assert_array_equal(copied(doubled(two, there), HOST), 4 * X)


def test_a_stream_of_the_callers_computes(driver: LazyDriver) -> None:
    device = GpuDevice(driver)
    theirs, seen = driver.create_stream(0), np.zeros_like(X)
    with running([Lanes(device, stream=theirs)], synchronize=False):
        assert device.stream == theirs
        x, y = copied(X, device), device.array(X.shape, X.dtype)
        x.memory.writing(working(device))
        driver.fill(0, x.handle, 0, x.nbytes, theirs)
        launched(device, x, y)
    driver.copy(0, seen.ctypes.data, y.handle, y.nbytes, theirs)
    driver.synchronize(0, theirs)
    np.testing.assert_array_equal(seen, 0 * X)


def test_a_graph_does_what_was_asked_for_each_time(device: GpuDevice, driver: LazyDriver) -> None:
    x = copied(X, device)
    y = doubled(device, x)
    function = device.function(b"double", "double")
    arguments = struct.pack("<QQi", x.handle, x.handle, x.size)
    x.memory.writing(working(device))
    device.begin_capture()
    device.launch(function, 1, 32, 0, arguments)
    device.launch(function, 1, 32, 0, arguments)
    graph = device.end_capture()
    np.testing.assert_array_equal(copied(x, HOST), X)
    device.replay(graph)
    device.replay(graph)
    np.testing.assert_array_equal(copied(y, HOST), 2 * X)
    device.synchronize(device.stream)
    np.testing.assert_array_equal(view(x.handle, X.size), 16 * X.ravel())
    device.destroy_graph(graph)
    device.begin_capture()
    device.launch(function, 1, 32, 0, arguments)
    device.drop_capture()
    assert not driver.graphs
    device.synchronize(device.stream)
    np.testing.assert_array_equal(view(x.handle, X.size), 16 * X.ravel())


def test_code_is_loaded_once(device: GpuDevice, driver: LazyDriver) -> None:
    found = {device.function(bytes([*b"double"]), "double", n) for n in (0, 0, 1, 0)}
    assert len(found) == 2 and driver.counts["load"] == 1
    with pytest.raises(EPFail, match="no binary for this GPU"):
        device.function(b"something else", "double")


def settings(**given: str) -> dict[str, object]:
    return {name: option.read(given[name]) if name in given else option.default
            for name, option in options.ROCM.items()}


def test_memory_has_an_end(driver: LazyDriver) -> None:
    device = GpuDevice(driver)
    with pytest.raises(MemoryError, match="gpu:0.*the device has no more"):
        device.array((1 << 27,), np.float32)
    limited = settings(gpu_mem_limit="1100", arena_extend_strategy="kSameAsRequested")
    with running([Lanes(device, allocator(device, limited))]):
        kept = device.array((200,), np.float32)
        with pytest.raises(MemoryError, match="gpu_mem_limit is 1100 bytes"):
            device.array((200,), np.float32)
        del kept
        device.array((200,), np.float32)


def test_memory_of_the_programs_own(driver: LazyDriver) -> None:
    held, emptied = dict[int, object](), list[int]()

    def allocate(size: int) -> int:
        room = ctypes.create_string_buffer(size + 256)
        address = -(-ctypes.addressof(room) // 256) * 256
        held[address] = room
        return address if size < 1 << 20 else 0
    functions = (ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_size_t)(allocate),
                 ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda address: held.pop(address) and None),
                 ctypes.CFUNCTYPE(None)(lambda: emptied.append(1)))
    names = ("gpu_external_alloc", "gpu_external_free", "gpu_external_empty_cache")
    given = settings(**{name: str(ctypes.cast(function, ctypes.c_void_p).value)
                        for name, function in zip(names, functions, strict=True)})
    device = GpuDevice(driver)
    with running([Lanes(device, allocator(device, given))]):
        x = copied(X, device)
        assert x.handle in held and not driver.memory
        np.testing.assert_array_equal(copied(doubled(device, x), HOST), 2 * X)
        with pytest.raises(MemoryError, match="gpu_external_alloc"):
            device.array((1 << 20,), np.float32)
        del x
    run_over(given)
    assert not held or all(room is not None for room in held.values())
    assert emptied == [1]
    with pytest.raises(InvalidArgument, match="gpu_external_free=0"):
        allocator(device, {**given, "gpu_external_free": 0})


def test_a_kernel_that_faults_is_an_error_from_then_on(device: GpuDevice, driver: LazyDriver) -> None:
    x = copied(X, device)
    launch = device.function(b"faulty", "")
    device.launch(launch, 1, 32, 0, b"")
    with pytest.raises(DeviceReset, match="launch failure") as error:
        working(device).synchronize()
    assert "start the process anew" in str(error.value)
    assert "launch failure" in str(pickle.loads(pickle.dumps(error.value)))
    for refused in (lambda: copied(X, device), lambda: copied(x, HOST), working(device).synchronize):
        with pytest.raises(DeviceReset):
            refused()
    with pytest.raises(DeviceReset):
        device.launch(launch, 1, 32, 0, b"")


def test_an_index_there_is_no_device_of(driver: LazyDriver) -> None:
    for index in (-1, 2):
        with pytest.raises(InvalidArgument, match=rf"Invalid device ID: {index}, must be between 0 \(incl"):
            GpuDevice(driver, index)


def test_sessions_share_a_device(driver: LazyDriver) -> None:
    assert shared(driver, 0) is shared(driver, 0)
    assert shared(driver, 0) is not shared(driver, 1)


def test_threads_share_a_device(driver: LazyDriver) -> None:
    device, wrong = GpuDevice(driver), list[object]()
    lanes = Lanes(device)

    def work(seed: int) -> None:
        x = np.random.default_rng(seed).standard_normal(1000).astype(np.float32)
        try:
            for i in range(20):
                with running([lanes] if i % 2 else []):
                    there = doubled(device, copied(x, device))
                    np.testing.assert_array_equal(copied(there, HOST), 2 * x)
        except BaseException as error:
            wrong.append(error)
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
        for use in (lambda: copied(there, HOST), lambda: copied(X, device)):
            try:
                use()
            except Fail as error:
                os.write(writing, str(error).encode())
        del there
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reading, 9999).count(b"spawn") == 2
    np.testing.assert_array_equal(copied(there, HOST), X)
