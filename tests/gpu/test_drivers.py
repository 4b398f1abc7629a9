"""CUDA's and HIP's libraries by ctypes: every verb, and every way to fail, on doubles with C's functions."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import re
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from driver_double import CUDA_HEADER, HIP_HEADER, DriverDouble, declared

from orthrus.errors import DeviceReset, EPFail
from orthrus.ir import No
from orthrus.kernels import HOST, copied, working
from orthrus.providers.cuda import driver as cuda
from orthrus.providers.gpu import hip as rocm
from orthrus.providers.gpu.device import GpuDevice
from orthrus.providers.gpu.driver import DriverError, Properties
from orthrus.providers.gpu.library import _TYPES, Finding, LibraryDriver, opened

KINDS = {"CUDA": (cuda.CudaDriver, cuda.FUNCTIONS, CUDA_HEADER, cuda.CUDA),
         "HIP": (rocm.HipDriver, rocm.FUNCTIONS, HIP_HEADER, rocm.HIP)}
X = np.arange(6, dtype=np.float32)


@pytest.fixture(params=KINDS)
def api(request: pytest.FixtureRequest) -> str:
    return request.param


def finding(api: str, double: Any) -> Finding:
    kind, table, _, real = KINDS[api]

    def open_double(names: Any) -> Any:
        if isinstance(double, Exception):
            raise double
        return double
    return Finding(kind, table, real.names, real.least, real.install, open_double)


def made(api: str, **given: Any) -> DriverDouble:
    _, table, header, _ = KINDS[api]
    return DriverDouble(table, header, **given)


@pytest.fixture
def double(api: str) -> Iterator[DriverDouble]:
    found = made(api)
    yield found
    assert not found.wrong


@pytest.fixture
def driver(api: str, double: DriverDouble) -> LibraryDriver:
    return finding(api, double).made()


def test_functions_are_declared_as_in_the_vendors_headers(api: str) -> None:
    _, table, header, _ = KINDS[api]
    types = declared(header)
    assert {it.symbol for it in table.values()} == types.keys()
    for it in table.values():
        gives, *takes = types[it.symbol]
        ours = [_TYPES[letter] for letter in it.takes]
        assert [ctypes.sizeof(t) for t in ours] == [ctypes.sizeof(t) for t in takes], it.symbol
        assert ctypes.sizeof(it.gives) == ctypes.sizeof(gives), it.symbol


@pytest.mark.needs("AMD tables")
def test_functions_are_declared_as_tinygrad_generated_them(api: str) -> None:
    spec = importlib.util.find_spec("tinygrad")
    assert spec is not None and spec.origin
    text = (Path(spec.origin).parent / f"runtime/autogen/{api.lower()}.py").read_text()
    sizes = {"ctypes.c_ubyte": 1, **dict.fromkeys((
        "ctypes.c_uint32", "ctypes.c_int32", "CUdevice", "hipDevice_t", "CUdevice_attribute", "CUresult",
        "CUfunction_attribute", "CUstreamCaptureMode", "hipError_t"), 4)}
    unknown = []
    for it in KINDS[api][1].values():
        found = re.search(rf"@dll\.bind\(\w[^,\n]*?, (.*)\)\ndef {it.symbol}\(", text)
        if found is None:
            unknown.append(it.symbol)
            continue
        takes = re.findall(r"c\.POINTER\[.*?\]+|[\w.]+", found[1])
        assert [ctypes.sizeof(_TYPES[t]) for t in it.takes] == [sizes.get(t, 8) for t in takes], it.symbol
    assert len(unknown) <= 1, unknown


def test_devices_are_described(api: str, driver: LibraryDriver) -> None:
    assert driver.count() == 2
    expected = {"CUDA": Properties("Double 1", "sm_90", 1 << 34, 132, 232448, 32),
                "HIP": Properties("Double 1", "gfx942:sramecc+:xnack-", 1 << 34, 304, 65536, 64)}
    assert driver.properties(1) == expected[api]
    assert driver.memory_info(0) == ((1 << 34) - 5, 1 << 34)


def test_an_architecture_is_found_wherever_it_is_or_said_to_be_unknown() -> None:
    class Elsewhere(DriverDouble):
        at = 700

        def _device_properties(self, out: int, device: int) -> int:
            ctypes.memset(out, 0xFF, 1472)
            ctypes.memset(out + 1160, 0, 256)
            ctypes.memmove(out, b"gfx1100\0", 8)
            ctypes.memmove(out + self.at, self.architecture + b"\0", len(self.architecture) + 1)
            return 0

    double = Elsewhere(rocm.FUNCTIONS, HIP_HEADER, architecture=b"gfx90a")
    found = finding("HIP", double).made()
    assert found.properties(0).target == "gfx90a"
    double.architecture = b"navi"
    assert found.properties(0).target == "an unknown architecture"


def scaled(driver: LibraryDriver, index: int, shared: int = 0) -> np.ndarray:
    """2.5 x by a kernel on a device, by way of pinned memory."""
    stream, event = driver.create_stream(index), driver.create_event(index)
    x, y = driver.allocate(index, X.nbytes), driver.allocate(index, X.nbytes)
    host = driver.allocate_host(index, X.nbytes)
    assert x % 256 == y % 256 == 0
    ctypes.memmove(host, X.ctypes.data, X.nbytes)
    module = driver.load(index, b"code")
    function = driver.function(index, module, "scale", shared)
    driver.copy(index, x, host, X.nbytes, stream)
    driver.launch(index, function, 3, 128, shared, stream, struct.pack("<QQif", y, x, X.size, 2.5))
    driver.copy(index, host, y, X.nbytes, stream)
    driver.record(index, event, stream)
    driver.wait_for(index, event)
    assert driver.reached(index, event)
    got = np.frombuffer(ctypes.string_at(host, X.nbytes), np.float32).copy()
    driver.free(index, x)
    driver.free(index, y)
    driver.free_host(index, host)
    driver.destroy_event(index, event)
    driver.destroy_stream(index, stream)
    driver.unload(index, module)
    return got


def test_a_kernel_is_launched_with_its_arguments(driver: LibraryDriver, double: DriverDouble) -> None:
    for index in (1, 0):
        np.testing.assert_array_equal(scaled(driver, index), 2.5 * X)
    assert [(blocks, threads, shared) for blocks, threads, shared, *_ in double.launched] == [(3, 128, 0)] * 2
    assert {kind for kind, _ in double.live.values()} == {"function"}


def test_much_shared_memory_is_asked_for_first(api: str, driver: LibraryDriver, double: DriverDouble) -> None:
    scaled(driver, 0, 48 << 10)
    assert not double.attributes
    scaled(driver, 0, (48 << 10) + 1)
    assert list(double.attributes.values()) == ([(8, (48 << 10) + 1)] if api == "CUDA" else [])


def test_streams_wait_and_times_are_taken(driver: LibraryDriver, double: DriverDouble) -> None:
    one, two = driver.create_stream(0), driver.create_stream(0)
    event, other = driver.create_event(0, timed=True), driver.create_event(0, timed=True)
    driver.record(0, event, one)
    driver.wait(0, two, event)
    driver.record(0, other, two)
    assert driver.elapsed(0, event, other) == 1.5
    double.fail["cuEventQuery"] = double.fail["hipEventQuery"] = 600
    assert not driver.reached(0, event)
    at = driver.allocate(0, 8)
    driver.fill(0, at + 1, 0xAB, 3, two)
    driver.fill(0, at + 4, 0, 4, 0)
    driver.synchronize(0, two)
    assert ctypes.string_at(at + 1, 4) == b"\xab\xab\xab\0"


def test_graphs_are_recorded_and_launched(driver: LibraryDriver, double: DriverDouble) -> None:
    stream, at = driver.create_stream(1), driver.allocate(1, 4)
    driver.fill(1, at, 0, 4, stream)
    driver.begin_capture(1, stream)
    driver.fill(1, at, 7, 4, stream)
    graph = driver.end_capture(1, stream)
    assert ctypes.string_at(at, 4) == bytes(4)
    driver.launch_graph(1, graph, stream)
    assert ctypes.string_at(at, 4) == bytes([7] * 4)
    driver.destroy_graph(1, graph)
    assert not [kind for kind, _ in double.live.values() if kind in ("graph", "executable")]


def test_sizes_have_64_bits(driver: LibraryDriver) -> None:
    with pytest.raises(DriverError, match="OUT_OF_MEMORY") as error:
        driver.allocate(0, (1 << 35) + 8)
    assert error.value.out_of_memory and not error.value.lost


def test_the_threads_own_device_stays(api: str, driver: LibraryDriver, double: DriverDouble) -> None:
    double._make_current(1 if api == "HIP" else 0x7E0000000001)
    driver.allocate(0, 8)
    scaled(driver, 0)
    with pytest.raises(DriverError):
        driver.load(0, b"nonsense")
    assert double.on() == 1
    there: list[np.ndarray] = []
    thread = threading.Thread(target=lambda: there.append(scaled(driver, 1)))
    thread.start()
    thread.join()
    np.testing.assert_array_equal(there[0], 2.5 * X)


def test_what_the_library_says_of_an_image_is_told(driver: LibraryDriver) -> None:
    with pytest.raises(DriverError, match="NO_BINARY_FOR_GPU: this is no image") as error:
        driver.load(0, b"nonsense")
    assert error.value.code == 209 and not error.value.lost


def test_after_a_fault_everything_is_refused(driver: LibraryDriver) -> None:
    device = GpuDevice(driver)
    x = copied(X, device)
    np.testing.assert_array_equal(copied(x, HOST), X)
    device.launch(device.function(b"code", "fault"), 1, 32, 0, b"")
    with pytest.raises(DeviceReset, match="LAUNCH_FAILED"):
        working(device).synchronize()
    with pytest.raises(DriverError) as error:
        driver.allocate(0, 8)
    assert error.value.lost
    with pytest.raises(DeviceReset, match="start the process anew"):
        copied(X, device)


def test_every_function_that_fails_is_named(api: str, driver: LibraryDriver, double: DriverDouble) -> None:
    stream, event = driver.create_stream(0), driver.create_event(0)
    memory, host, module = driver.allocate(0, 8), driver.allocate_host(0, 8), driver.load(0, b"code")
    function = driver.function(0, module, "scale", 0)
    arguments = struct.pack("<QQif", memory, memory, 0, 1)
    driver.begin_capture(0, stream)
    graph = driver.end_capture(0, stream)
    calls = {
        "context": lambda: driver.synchronize(1, 0), "make_current": lambda: driver.synchronize(1, 0),
        "count": driver.count, "version": driver.version, "device_name": lambda: driver.properties(0),
        "device_memory": lambda: driver.properties(0), "attribute": lambda: driver.properties(0),
        "device_properties": lambda: driver.properties(0), "memory_info": lambda: driver.memory_info(0),
        "device": lambda: driver.properties(0),
        "allocate": lambda: driver.allocate(0, 8), "allocate_host": lambda: driver.allocate_host(0, 8),
        "free": lambda: driver.free(0, memory), "free_host": lambda: driver.free_host(0, host),
        "create_stream": lambda: driver.create_stream(0), "create_event": lambda: driver.create_event(0),
        "destroy_stream": lambda: driver.destroy_stream(0, stream),
        "destroy_event": lambda: driver.destroy_event(0, event),
        "synchronize": lambda: driver.synchronize(0, stream), "wait_for": lambda: driver.wait_for(0, event),
        "record": lambda: driver.record(0, event, stream), "wait": lambda: driver.wait(0, stream, event),
        "reached": lambda: driver.reached(0, event), "elapsed": lambda: driver.elapsed(0, event, event),
        "copy": lambda: driver.copy(0, memory, host, 8, stream),
        "fill": lambda: driver.fill(0, memory, 0, 8, stream), "load": lambda: driver.load(0, b"code"),
        "unload": lambda: driver.unload(0, module),
        "function": lambda: driver.function(0, module, "scale", 0),
        "set_attribute": lambda: driver.function(0, module, "scale", 1 << 16),
        "launch": lambda: driver.launch(0, function, 1, 32, 0, stream, arguments),
        "begin_capture": lambda: driver.begin_capture(0, stream),
        "end_capture": lambda: driver.end_capture(0, stream),
        "instantiate": lambda: (driver.begin_capture(0, stream), driver.end_capture(0, stream)),
        "destroy_recording": lambda: (driver.begin_capture(0, stream), driver.end_capture(0, stream)),
        "launch_graph": lambda: driver.launch_graph(0, graph, stream),
        "destroy_graph": lambda: driver.destroy_graph(0, graph)}
    table = KINDS[api][1]
    assert table.keys() <= calls.keys() | {"init", "current", "error_name"}
    for symbol, verb in [(table[verb].symbol, verb) for verb in calls if verb in table]:
        double.fail[symbol] = 801
        with pytest.raises(DriverError, match=rf"{symbol}: NOT_SUPPORTED \(801\)"):
            calls[verb]()
        assert symbol not in double.fail
        double.recording.clear()
    np.testing.assert_array_equal(scaled(driver, 0), 2.5 * X)


def reason(found: LibraryDriver | No) -> str:
    assert isinstance(found, No)
    return found.reason


def test_why_there_is_no_driver(api: str) -> None:
    table, install, old = KINDS[api][1], KINDS[api][3].install, {"CUDA": 11080, "HIP": 50731921}[api]
    lacking = table["instantiate"].symbol
    for double, message in (
            (OSError("libx.so.1: cannot open shared object file"), f"there is no {api} driver here"),
            (made(api, devices=0), "finds no device"),
            (made(api, version=old), r"is of version \d+, older than \w+ \d+\.0"),
            (made(api, without=(lacking,)), rf"lacks {lacking} \({api} {table['instantiate'].since}\)")):
        found = finding(api, double)
        assert re.search(message, reason(found.driver()))
        assert "no device" in message or install in reason(found.driver())
        with pytest.raises(EPFail, match=message):
            found.made()
    for symbol in (table["init"].symbol, table["count"].symbol):
        double = made(api)
        double.fail[symbol] = 100
        assert f"does not start: {symbol}: NO_DEVICE (100)" in reason(finding(api, double).driver())


def test_a_driver_is_looked_for_once(api: str) -> None:
    double = made(api)
    found = finding(api, double)
    assert found.driver() is found.driver() is found.made()
    assert double.calls[KINDS[api][1]["init"].symbol] == 1


@pytest.mark.needs("POSIX")
def test_a_forked_process_has_no_driver(api: str) -> None:
    found = finding(api, made(api))
    found.driver()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writing, reason(found.driver()).encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert f"was started in process {os.getpid()}" in os.read(reading, 4096).decode()


def test_a_library_that_is_not_there() -> None:
    with pytest.raises(OSError, match="libnothing.so.77"):
        opened(["libnothing.so.77", "libnothing.so"])
