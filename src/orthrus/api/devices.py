"""Devices and memory, as the API names them. Tensors live in host memory, or in that of a device which a
registered provider has; memory on any other is refused with the reason.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from .arguments import mismatch
from .enums import (
    OrtAllocatorType,
    OrtDeviceMemoryType,
    OrtDeviceVendorId,
    OrtHardwareDeviceType,
    OrtMemoryInfoDeviceType,
    OrtMemType,
)

if TYPE_CHECKING:
    from ..kernels import Device

_CPU, _GPU, _FPGA, _NPU, _DML = 0, 1, 2, 3, 4
_TYPES = {"cpu": _CPU, "cuda": _GPU, "rocm": _GPU, "hip": _GPU, "gpu": _GPU,
          "webgpu": _GPU, "cann": _NPU, "npu": _NPU, "dml": _DML}
_VENDORS = {"cuda": OrtDeviceVendorId.NVIDIA, "rocm": OrtDeviceVendorId.AMD, "hip": OrtDeviceVendorId.AMD,
            "dml": OrtDeviceVendorId.MICROSOFT,
            "cann": OrtDeviceVendorId.HUAWEI}
_NAMES = {_CPU: "cpu", _GPU: "gpu", _FPGA: "fpga", _NPU: "npu", _DML: "dml"}


class CoreDevice:
    """A device as four numbers: type, memory type, vendor and id. With three, the vendor is 0."""

    __slots__ = ("_numbers",)

    def __init__(self, device_type: int, mem_type: int, vendor_or_id: int, device_id: int
                 | None = None) -> None:
        vendor, number = (0, vendor_or_id) if device_id is None else (vendor_or_id, device_id)
        if device_type == _DML:
            device_type, vendor = _GPU, OrtDeviceVendorId.MICROSOFT
        try:
            self._numbers = (int(device_type), int(mem_type), int(vendor), int(number))
        except (TypeError, ValueError):
            raise mismatch("__init__", "OrtDevice(arg0: int, arg1: int, arg2: int, arg3: int)",
                           device_type, mem_type, vendor_or_id, device_id) from None

    def device_type(self) -> int:
        return self._numbers[0]

    def mem_type(self) -> int:
        return self._numbers[1]

    def vendor_id(self) -> int:
        return self._numbers[2]

    def device_id(self) -> int:
        return self._numbers[3]

    @property
    def name(self) -> str:
        """`cpu`, or the name of another kind of device."""
        kind, _, vendor, _ = self._numbers
        if kind == _GPU and vendor == OrtDeviceVendorId.NVIDIA:
            return "cuda"
        return _NAMES.get(kind, f"device {kind}")

    @property
    def host(self) -> bool:
        """Whether the host reads and writes this memory."""
        return self._numbers[0] == _CPU or self._numbers[1] == OrtDeviceMemoryType.HOST_ACCESSIBLE

    @staticmethod
    def cpu() -> int:
        return _CPU

    @staticmethod
    def gpu() -> int:
        return _GPU

    @staticmethod
    def cuda() -> int:
        return _GPU

    @staticmethod
    def webgpu() -> int:
        return _GPU

    @staticmethod
    def fpga() -> int:
        return _FPGA

    @staticmethod
    def npu() -> int:
        return _NPU

    @staticmethod
    def cann() -> int:
        return _NPU

    @staticmethod
    def dml() -> int:
        return _DML

    @staticmethod
    def default_memory() -> int:
        return 0

    def __repr__(self) -> str:
        return f"OrtDevice({', '.join(map(str, self._numbers))})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CoreDevice) and self._numbers == other._numbers

    def __hash__(self) -> int:
        return hash(self._numbers)

    def __reduce__(self) -> Any:
        return CoreDevice, self._numbers


HOST = CoreDevice(_CPU, 0, 0, 0)


def get_ort_device_type(device_type: str) -> int:
    """The number of a device's kind. Raises Exception for a name that is none."""
    if device_type not in _TYPES:
        raise Exception("Unsupported device type: " + device_type)
    return _TYPES[device_type]


def get_vendor_id_for_device_type(device_type: str) -> int:
    """The vendor that a device's name implies, 0 where it implies none."""
    return int(_VENDORS.get(device_type, OrtDeviceVendorId.NONE))


class OrtDevice:
    """A device: made by `OrtDevice.make`."""

    def __init__(self, c_ort_device: CoreDevice) -> None:
        """Raises ValueError for anything but the device of the capi module."""
        if not isinstance(c_ort_device, CoreDevice):
            raise ValueError(
                "`Provided object` needs to be of type `orthrus.capi.onnxruntime_pybind11_state.OrtDevice`")
        self._ort_device = c_ort_device

    def _get_c_device(self) -> CoreDevice:
        return self._ort_device

    @staticmethod
    def make(ort_device_name: str, device_id: int, vendor_id: int | OrtDeviceVendorId = -1) -> OrtDevice:
        """The device of kind `cpu`, `cuda`, `rocm` or `hip`, `gpu`, `npu`, `cann`, `dml` or `webgpu` with
        number `device_id`. `cuda` is AMD's where there are only AMD's, as in torch.

        `vendor_id` -1: the one the name implies. Raises Exception for another name.
        """
        if vendor_id < 0:
            vendor_id = get_vendor_id_for_device_type(ort_device_name)
        return OrtDevice(CoreDevice(get_ort_device_type(ort_device_name), 0, int(vendor_id), device_id))

    def device_id(self) -> int:
        return self._ort_device.device_id()

    def device_type(self) -> int:
        return self._ort_device.device_type()

    def device_vendor_id(self) -> int:
        return self._ort_device.vendor_id()

    def device_mem_type(self) -> int:
        return self._ort_device.mem_type()


def core_device(device: Any) -> CoreDevice:
    """The inner device of either form."""
    return device._get_c_device() if isinstance(device, OrtDevice) else device


def memory_of(device: Any) -> Device | None:
    """The memory behind a device's numbers: the host's, or that of a provider's class that is known; else
    None."""
    from ..kernels import HOST
    from ..providers import device_of

    core = core_device(device)
    return HOST if core.host else device_of(core.device_type(), core.vendor_id(), core.device_id())


_MEMORY_NAMES = {"Cpu": _CPU, "Cuda": _GPU, "CudaPinned": _GPU, "Hip": _GPU, "HipPinned": _GPU,
                 "Cann": _NPU, "CannPinned": _NPU, "DML": _GPU,
                 "OpenVINO_CPU": _CPU, "OpenVINO_GPU": _GPU, "WebGPU_Buf": _GPU, "WebGPU_Buffer": _GPU}


class OrtMemoryInfo:
    """Where memory lies and how it is handed out."""

    __slots__ = ("_fields", "_device")

    def __init__(self, name: str, allocator_type: OrtAllocatorType, device_id: int,
                 mem_type: OrtMemType) -> None:
        """Raises RuntimeError for a name that stands for no known kind of memory; `create_v2` takes any."""
        if not isinstance(name,
                          str) or type(
            allocator_type) is not OrtAllocatorType or type(mem_type) is not OrtMemType:
            raise mismatch("__init__",
                           "OrtMemoryInfo(arg0: str, arg1: OrtAllocatorType, arg2: int, arg3: OrtMemType)",
                           name, allocator_type, device_id, mem_type)
        if name not in _MEMORY_NAMES:
            raise RuntimeError("Specified device is not supported. Try CreateMemoryInfo_V2.")
        pinned = OrtDeviceMemoryType.HOST_ACCESSIBLE if "Pinned" in name else OrtDeviceMemoryType.DEFAULT
        vendor = int(_VENDORS.get(name.removesuffix("Pinned").lower(), 0))
        self._fields = (name, allocator_type, int(device_id), mem_type, pinned, vendor)
        self._device = CoreDevice(_MEMORY_NAMES[name], int(pinned), vendor, int(device_id))

    @staticmethod
    def create_v2(name: str, device_type: OrtMemoryInfoDeviceType, vendor_id: int, device_id: int,
                  mem_type: OrtDeviceMemoryType, alignment: int,
                  allocator_type: OrtAllocatorType) -> OrtMemoryInfo:
        """Memory of a device named by kind and vendor."""
        info = OrtMemoryInfo("Cpu", allocator_type, device_id, OrtMemType.DEFAULT)
        info._fields = (name, allocator_type, int(device_id), OrtMemType.DEFAULT, mem_type, int(vendor_id))
        info._device = CoreDevice(int(device_type), int(mem_type), int(vendor_id), int(device_id))
        return info

    @property
    def name(self) -> str:
        return self._fields[0]

    @property
    def allocator_type(self) -> OrtAllocatorType:
        return self._fields[1]

    @property
    def device_id(self) -> int:
        return self._fields[2]

    @property
    def mem_type(self) -> OrtMemType:
        return self._fields[3]

    @property
    def device_mem_type(self) -> OrtDeviceMemoryType:
        return self._fields[4]

    @property
    def device_vendor_id(self) -> int:
        return self._fields[5]

    def __repr__(self) -> str:
        return f"<OrtMemoryInfo {self.name}:{self.device_id}>"


def memory_info(device: Device, arena: bool) -> OrtMemoryInfo:
    """The memory of a device, by onnxruntime's name. `arena`: host memory is an arena's."""
    if not device.kind:
        kind = OrtAllocatorType.ORT_ARENA_ALLOCATOR if arena else OrtAllocatorType.ORT_DEVICE_ALLOCATOR
        return OrtMemoryInfo("Cpu", kind, 0, OrtMemType.DEFAULT)
    name = {int(OrtDeviceVendorId.NVIDIA): "Cuda", int(OrtDeviceVendorId.AMD): "Hip"}.get(
        device.vendor, device.name)
    return OrtMemoryInfo.create_v2(
        name, OrtMemoryInfoDeviceType(device.kind), device.vendor, device.index,
        OrtDeviceMemoryType.DEFAULT, 0, OrtAllocatorType.ORT_DEVICE_ALLOCATOR)


_ARENA = ("max_mem", "arena_extend_strategy", "initial_chunk_size_bytes", "max_dead_bytes_per_chunk",
          "initial_growth_chunk_size_bytes", "max_power_of_two_extend_bytes")


class OrtArenaCfg:
    """How an allocator grows; kept for the API's sake, as memory here is planned per input shape."""

    max_mem: int
    arena_extend_strategy: int
    initial_chunk_size_bytes: int
    max_dead_bytes_per_chunk: int
    initial_growth_chunk_size_bytes: int
    max_power_of_two_extend_bytes: int
    __slots__ = _ARENA

    def __init__(self, *args: Any) -> None:
        """Takes four ints in the order above, or one dict of names. Raises RuntimeError for an unknown
        name."""
        given: dict[str, Any]
        if len(args) == 1 and isinstance(args[0], dict):
            given = {"max_mem": 0, **args[0]}
        elif len(args) == 4 and all(isinstance(a, int) for a in args):
            given = {"max_mem": args[0], **dict(zip(_ARENA[1:4], args[1:], strict=True))}
        else:
            raise mismatch("__init__", "OrtArenaCfg(arg0: int, arg1: int, arg2: int, arg3: int)\n    2. "
                           "OrtArenaCfg(arg0: dict)", *args)
        for name in _ARENA:
            setattr(self, name, -1)
        for name, value in given.items():
            if name not in _ARENA:
                raise RuntimeError(f"Invalid OrtArenaCfg option: {name}; known are {', '.join(_ARENA)}")
            setattr(self, name, int(value))


class OrtSyncStream:
    """A stream of a device; devices of this runtime have none, so no instance is ever made."""

    def __init__(self) -> None:
        raise TypeError("OrtSyncStream: No constructor defined!")

    def get_handle(self) -> int:
        raise RuntimeError("this stream has no handle")


class OrtHardwareDevice:
    """A device of the machine; listed by `get_ep_devices`."""

    _fields: tuple[OrtHardwareDeviceType, str, int, int]
    __slots__ = ("_fields",)

    def __init__(self) -> None:
        raise TypeError("OrtHardwareDevice: No constructor defined!")

    @classmethod
    def _make(cls, kind: OrtHardwareDeviceType, vendor: str, vendor_id: int,
              device_id: int) -> OrtHardwareDevice:
        device = object.__new__(cls)
        device._fields = (kind, vendor, vendor_id, device_id)
        return device

    @property
    def type(self) -> OrtHardwareDeviceType:
        return self._fields[0]

    @property
    def vendor(self) -> str:
        return self._fields[1]

    @property
    def vendor_id(self) -> int:
        return self._fields[2]

    @property
    def device_id(self) -> int:
        return self._fields[3]

    @property
    def metadata(self) -> dict[str, str]:
        return {}

    def __repr__(self) -> str:
        return f"<OrtHardwareDevice {self.type.name} {self.vendor}>"


class OrtEpDevice:
    """A provider together with a device it can use; listed by `get_ep_devices`."""

    _name: str
    _device: OrtHardwareDevice
    _vendor: str
    _version: str
    __slots__ = ("_name", "_device", "_vendor", "_version")

    def __init__(self) -> None:
        raise TypeError("OrtEpDevice: No constructor defined!")

    @classmethod
    def _make(cls, name: str, device: OrtHardwareDevice, vendor: str, version: str) -> OrtEpDevice:
        made = object.__new__(cls)
        made._name, made._device, made._vendor, made._version = name, device, vendor, version
        return made

    @property
    def ep_name(self) -> str:
        return self._name

    @property
    def ep_vendor(self) -> str:
        return self._vendor

    @property
    def ep_metadata(self) -> dict[str, str]:
        return {"version": self._version}

    @property
    def ep_options(self) -> dict[str, str]:
        return {}

    @property
    def device(self) -> OrtHardwareDevice:
        return self._device

    def memory_info(self, memory_type: OrtDeviceMemoryType) -> OrtMemoryInfo | None:
        """None: tensors of every provider here are handed over in host memory."""
        if type(memory_type) is not OrtDeviceMemoryType:
            raise mismatch("memory_info", "(self: OrtEpDevice, arg0: OrtDeviceMemoryType) -> OrtMemoryInfo",
                           memory_type)
        return None

    def create_sync_stream(self) -> OrtSyncStream:
        """Raises RuntimeError: there is no device memory to synchronize with."""
        raise RuntimeError("ep_device does not use DEFAULT memory of a non-CPU device.")

    def __repr__(self) -> str:
        return f"<OrtEpDevice {self._name} on {self._device.vendor} {self._device.type.name}>"


@functools.cache
def _processor() -> OrtHardwareDevice:
    vendor = ""
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as lines:
            vendor = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("vendor_id")),
                          "")
    except OSError:
        pass
    known = {"GenuineIntel": ("Intel", 0x8086), "AuthenticAMD": ("AMD", 0x1022)}
    return OrtHardwareDevice._make(OrtHardwareDeviceType.CPU, *known.get(vendor, (vendor, 0)), 0)


_KINDS = {
    OrtHardwareDeviceType.GPU: ("NvTensorRTRTX", "Tensorrt", "CUDA", "ROCM", "MIGraphX", "Dml", "WebGpu"),
    OrtHardwareDeviceType.NPU: ("SpaceMIT", "QNN", "VitisAI", "Rknpu", "CANN", "VSINPU"),
}


@functools.cache
def _hardware(name: str) -> OrtHardwareDevice:
    """What a provider that does not say it computes on."""
    stem = name.removesuffix("ExecutionProvider")
    for kind, names in _KINDS.items():
        if stem in names:
            return OrtHardwareDevice._make(kind, "", 0, 0)
    return _processor()


@functools.cache
def _ep_device(name: str, device: OrtHardwareDevice, vendor: str, version: str) -> OrtEpDevice:
    from .version import VERSION

    return OrtEpDevice._make(name, device, vendor or "Orthrus", version or VERSION)


@functools.cache
def _said(hardware: Any) -> OrtHardwareDevice:
    return OrtHardwareDevice._make(OrtHardwareDeviceType(hardware.kind), hardware.vendor,
                                   hardware.vendor_id, hardware.device_id)


def ep_devices(provider: Any) -> list[OrtEpDevice]:
    """A provider's class with each device it can use."""
    return [_ep_device(provider.name, device, *provider.maker)
            for device in [_said(each) for each in provider.hardware] or [_hardware(provider.name)]]


def get_ep_devices() -> list[OrtEpDevice]:
    """What each available provider computes on, by priority; those registered in Python are among them."""
    from ..providers import available, known

    names = available()
    classes = known(names)
    return [device for name in names for device in ep_devices(classes[name])]


def get_hardware_devices() -> list[OrtHardwareDevice]:
    """The devices that available providers use, each once."""
    return list(dict.fromkeys(entry.device for entry in get_ep_devices()))


def preferred_providers(policy: Any) -> list[str]:
    """The providers a selection policy chooses among the available ones, the CPU provider last."""
    from .enums import OrtExecutionProviderDevicePolicy as Policy

    wanted = {Policy.PREFER_NPU: OrtHardwareDeviceType.NPU, Policy.MAX_EFFICIENCY: OrtHardwareDeviceType.NPU,
              Policy.MIN_OVERALL_POWER: OrtHardwareDeviceType.NPU,
              Policy.PREFER_GPU: OrtHardwareDeviceType.GPU,
              Policy.MAX_PERFORMANCE: OrtHardwareDeviceType.GPU}.get(policy)
    chosen = [d.ep_name for d in get_ep_devices() if d.device.type is wanted]
    return [*dict.fromkeys(chosen), "CPUExecutionProvider"]
