"""Tensors of other packages, taken and given without a copy: DLPack capsules and `__cuda_array_interface__`.

In: capsules and objects with these protocols, or arrays of ours. Out: arrays over the same memory, or
capsules. Who made the memory is kept alive for as long as somebody looks at it, and streams are put in order
as the protocols ask for. Both forms of capsules are known: those of versions 0.x, and 1.x which say more.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from ..errors import InvalidArgument
from .device import HOST, Device, DeviceArray, Memory
from .lanes import working
from .streams import Stream
from .transfer import copied, finished

CPU, CUDA, CUDA_HOST, ROCM, ROCM_HOST, MANAGED = 1, 2, 3, 10, 11, 13
"""DLPack's numbers for kinds of memory."""
ON_HOST = (CPU, CUDA_HOST, ROCM_HOST)
VENDORS = {CUDA: 0x10de, MANAGED: 0x10de, ROCM: 0x1002}
"""The vendors of the devices that these numbers stand for, by onnxruntime's numbers."""

Find = Callable[[int, int], Device | None]
"""A device by its vendor and index."""

_ALWAYS = (0, 1, 2)
"""The streams that never end: the default ones, by CUDA's and HIP's numbers."""

_VERSION = (1, 1)
_RANK, _MOST = 64, 1 << 62
"""The most dimensions numpy has, and more elements than any memory."""

_READ_ONLY, _COPIED = 1, 2
_NAMES = (b"dltensor", b"dltensor_versioned")

_CODES = {np.dtype(np.bool_): (6, 8), **{np.dtype(t): (4, 16) for t in (ml_dtypes.bfloat16,)},
          **{np.dtype(f"i{n}"): (0, 8 * n) for n in (1, 2, 4, 8)},
          **{np.dtype(f"u{n}"): (1, 8 * n) for n in (1, 2, 4, 8)},
          **{np.dtype(f"f{n}"): (2, 8 * n) for n in (2, 4, 8)},
          **{np.dtype(f"c{n}"): (5, 8 * n) for n in (8, 16)},
          np.dtype(ml_dtypes.float8_e4m3fn): (10, 8), np.dtype(ml_dtypes.float8_e4m3fnuz): (11, 8),
          np.dtype(ml_dtypes.float8_e5m2): (12, 8), np.dtype(ml_dtypes.float8_e5m2fnuz): (13, 8),
          np.dtype(ml_dtypes.float8_e8m0fnu): (14, 8)}
_TYPES = {code: dtype for dtype, code in _CODES.items()}


class Tensor(ctypes.Structure):
    """A DLTensor."""

    _fields_ = [("data", ctypes.c_void_p), ("kind", ctypes.c_int32), ("index", ctypes.c_int32),
                ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8),
                ("lanes", ctypes.c_uint16), ("shape", ctypes.POINTER(ctypes.c_int64)),
                ("strides", ctypes.POINTER(ctypes.c_int64)), ("offset", ctypes.c_uint64)]


class _Plain(ctypes.Structure):
    """A managed tensor of versions 0.x."""

    _fields_ = [("tensor", Tensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]


class _Versioned(ctypes.Structure):
    """A managed tensor of versions 1.x."""

    _fields_ = [("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("context", ctypes.c_void_p),
                ("deleter", ctypes.c_void_p), ("flags", ctypes.c_uint64), ("tensor", Tensor)]


_FORMS: tuple[type[_Plain] | type[_Versioned], ...] = (_Plain, _Versioned)
_Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_Destructor = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)


def _api(name: str, result: Any, *arguments: Any) -> Any:
    return ctypes.PYFUNCTYPE(result, *arguments)((name, ctypes.pythonapi))


_new = _api("PyCapsule_New", ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
_valid = _api("PyCapsule_IsValid", ctypes.c_int, ctypes.py_object, ctypes.c_char_p)
_pointer = _api("PyCapsule_GetPointer", ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)
_rename = _api("PyCapsule_SetName", ctypes.c_int, ctypes.py_object, ctypes.c_char_p)
_dying_valid = _api("PyCapsule_IsValid", ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)
_dying_pointer = _api("PyCapsule_GetPointer", ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)

_given: dict[int, Any] = {}
"""What capsules given away look at, until their takers let go of it."""

_USED = (ctypes.c_char_p(b"used_dltensor"), ctypes.c_char_p(b"used_dltensor_versioned"))


def _drop(address: int) -> None:
    _given.pop(address, None)


def _drop_unused(capsule: int) -> None:
    """Nobody took what a capsule holds."""
    for name in _NAMES:
        if _dying_valid(capsule, name):
            _given.pop(_dying_pointer(capsule, name), None)


_let_go, _unused = _Deleter(_drop), _Destructor(_drop_unused)
# called by other packages, perhaps after this module is gone
for _function in (_let_go, _unused):
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(_function))


def placed(array: np.ndarray | DeviceArray) -> tuple[int, int]:
    """DLPack's number for the kind of memory an array lies in, and the device's index. Raises BufferError for
    a device that DLPack has no number for."""
    if not isinstance(array, DeviceArray):
        return CPU, 0
    device = array.device
    kind = next((k for k, vendor in VENDORS.items() if device.kind == 1 and vendor == device.vendor), None)
    if kind is None:
        raise BufferError(f"DLPack has no number for the device {device!r}")
    return kind, device.index


def given(array: np.ndarray | DeviceArray, stream: Any = None, version: tuple[int, int] | None = None,
          target: tuple[int, int] | None = None, copy: bool | None = None, owner: Any = None) -> Any:
    """A capsule over an array's memory, kept alive by it, as `__dlpack__(stream, max_version, dl_device,
    copy)` is to give it: what `stream` of the taker's is asked for from now on finds the elements, and
    anybody where it is None. Raises BufferError for what cannot be given so."""
    code = _CODES.get(array.dtype)
    if code is None:
        raise BufferError(f"DLPack has no type for {array.dtype}")
    kind, index = placed(array)
    if target is not None and tuple(target) != (kind, index):
        if tuple(target) != (CPU, 0) or copy is False:
            raise BufferError(f"the tensor lies on device {(kind, index)}, and {tuple(target)} was asked for")
        array, (kind, index), copy = copied(array, HOST), (CPU, 0), True
    elif copy:
        array = copied(array, array.device) if isinstance(array, DeviceArray) else array.copy()
    form = int(version is not None and version[0] >= 1)
    flags = _COPIED if copy else 0
    if isinstance(array, DeviceArray):
        _show(array, stream)
        address = array.handle
    else:
        address = array.ctypes.data
        if not array.flags.writeable:
            if not form:
                raise BufferError("a read-only tensor needs a taker of DLPack 1.0 or later")
            flags |= _READ_ONLY
    managed = _FORMS[form]()
    shape = (ctypes.c_int64 * max(1, array.ndim))(*array.shape)
    strides = (ctypes.c_int64 * max(1, array.ndim))(*_strides(array.shape))
    managed.tensor = Tensor(address, kind, index, array.ndim, *code, 1, shape, strides, 0)
    managed.deleter = ctypes.cast(_let_go, ctypes.c_void_p)
    if isinstance(managed, _Versioned):
        managed.major, managed.minor, managed.flags = *_VERSION, flags
    at = ctypes.addressof(managed)
    _given[at] = managed, shape, strides, array, owner
    return _new(at, _NAMES[form], ctypes.cast(_unused, ctypes.c_void_p))


def taken(data: Any, find: Find) -> np.ndarray | DeviceArray:
    """An array over the memory of a capsule, or of an object with `__dlpack__` or `__cuda_array_interface__`.
    `find` gives devices.

    Raises InvalidArgument for memory, a type or a layout that cannot be taken, and what the object raises.
    """
    if not hasattr(data, "__dlpack__"):
        if hasattr(data, "__cuda_array_interface__"):
            return _of_interface(data, find)
        return _of_capsule(data, find, None)
    kind, index = data.__dlpack_device__()
    if int(kind) in ON_HOST:
        return _of_capsule(_capsule_of(data), find, None)
    device = _device(int(kind), int(index), find)
    stream = working(device) if device.streams else None
    return _of_capsule(_capsule_of(data, stream=_number(stream)), find, stream)


def crosses(dtype: Any) -> bool:
    """Whether DLPack has a type for arrays of a numpy type."""
    return dtype in _CODES


def shown(tensor: Tensor, array: np.ndarray) -> Any:
    """Let `tensor` be over the memory of `array`, which is in C order, for as long as what is answered and
    `array` are there."""
    sizes = (ctypes.c_int64 * (2 * array.ndim + 1))(*array.shape, *_strides(array.shape))
    tensor.data, tensor.kind, tensor.index, tensor.ndim = array.ctypes.data, CPU, 0, array.ndim
    (tensor.code, tensor.bits), tensor.lanes, tensor.offset = _CODES[array.dtype], 1, 0
    tensor.shape = ctypes.cast(sizes, ctypes.POINTER(ctypes.c_int64))
    tensor.strides = ctypes.cast(ctypes.byref(sizes, 8 * array.ndim), ctypes.POINTER(ctypes.c_int64))
    return sizes


def adopted(address: int, keeper: Any) -> np.ndarray:
    """An array over a managed tensor of version 1 in the host's memory, which is given back with the array's
    last reference; copied at once where it cannot be given back. `keeper` stays until then. Raises
    InvalidArgument for memory, a type or a layout that cannot be taken."""
    ours = _Taken(_Versioned.from_address(address), address, keeper)
    ours.check()
    if ours.managed.tensor.kind not in ON_HOST:
        raise InvalidArgument("the tensor does not lie in the host's memory",
                              found=f"DLPack's device {ours.managed.tensor.kind}", expected=str(CPU))
    made = _array_of(ours, _nowhere, None)
    assert isinstance(made, np.ndarray)
    return made if ours.managed.deleter else made.copy()


def element_type(capsule: Any) -> np.dtype | None:
    """The type of the elements of a capsule, which stays as it is; None for one that numpy has no name for.
    Raises InvalidArgument for no capsule, or a used one."""
    tensor = _managed(capsule)[0].tensor
    return _TYPES.get((tensor.code, tensor.bits)) if tensor.lanes == 1 else None


def interface(array: DeviceArray) -> dict[str, Any]:
    """What `__cuda_array_interface__` says of a GPU's array, whose elements are there when this returns.
    Raises AttributeError for another device and for types it has no name for."""
    if array.device.kind != 1 or array.dtype.kind not in "biufc" or array.dtype.hasobject:
        raise AttributeError(f"an array of {array.dtype} on {array.device!r} has no __cuda_array_interface__")
    _show(array, None)
    return {"shape": array.shape, "typestr": array.dtype.str, "data": (array.handle, False), "strides": None,
            "version": 3}


def _number(stream: Stream | None) -> Any:
    return None if stream is None else stream.handle


def _show(array: DeviceArray, stream: Any) -> None:
    """Let a taker's `stream`, everybody where it is None, come after what makes the elements; -1: nobody."""
    device = array.device
    if not device.streams or stream == -1:
        return
    if stream is None:
        finished([array])
    else:
        theirs = Stream(device, stream, foreign=True)
        array.memory.reading(theirs)
        if stream not in _ALWAYS:
            theirs.mark = theirs.event()


def _capsule_of(data: Any, **more: Any) -> Any:
    try:
        return data.__dlpack__(max_version=_VERSION, **more)
    except TypeError:
        return data.__dlpack__(**more)


def _device(kind: int, index: int, find: Find) -> Device:
    device = find(VENDORS[kind], index) if kind in VENDORS else None
    if device is None:
        raise InvalidArgument("no provider here has the device of a tensor", found=f"DLPack's device "
                              f"{(kind, index)}", expected="memory of the host, or of a provider's device",
                              cure="copy the tensor to the host, or register the device's provider")
    return device


def _managed(capsule: Any) -> tuple[_Plain | _Versioned, int]:
    """What a capsule that nobody has taken holds, and which form it has. Raises InvalidArgument for no
    capsule, a used one, or one of a later version."""
    form = next((i for i, name in enumerate(_NAMES) if _valid(capsule, name)), None)
    if form is None:
        raise InvalidArgument("it is no DLPack capsule, or one that was used before",
                              found=type(capsule).__name__)
    managed = _FORMS[form].from_address(_pointer(capsule, _NAMES[form]))
    _check_version(managed)
    return managed, form


def _check_version(managed: _Plain | _Versioned) -> None:
    """Raises InvalidArgument for a later version."""
    if isinstance(managed, _Versioned) and managed.major != _VERSION[0]:
        raise InvalidArgument("DLPack has changed its layout", found=f"version {managed.major}",
                              expected=f"version {_VERSION[0]} or 0")


_keepers: dict[int, Any] = {}
"""What deleters of managed tensors need, by the tensors' addresses: it outlives them, whatever order the
garbage collector takes."""


class _Taken:
    """A managed tensor that is ours; given back with its last reference."""

    def __init__(self, managed: _Plain | _Versioned, address: int, keeper: Any = None) -> None:
        self.managed, self.address = managed, address
        if keeper is not None:
            _keepers[address] = keeper

    @classmethod
    def of_capsule(cls, capsule: Any) -> _Taken:
        """Raises as `_managed`, and as `check`."""
        managed, form = _managed(capsule)
        ours = cls(managed, ctypes.addressof(managed))
        _rename(capsule, _USED[form])
        ours.check()
        return ours

    def check(self) -> None:
        """Raises InvalidArgument for a later version, and for what is no tensor."""
        _check_version(self.managed)
        tensor = self.managed.tensor
        if not 0 <= tensor.ndim <= _RANK or (tensor.ndim and not tensor.shape):
            raise InvalidArgument("the tensor has no shape", found=f"{tensor.ndim} dimensions",
                                  expected=f"0 to {_RANK}, and their sizes")
        sizes = tensor.shape[:tensor.ndim] if tensor.ndim else []
        if any(size < 0 for size in sizes) or math.prod(sizes) >= _MOST:
            raise InvalidArgument("the tensor's shape cannot be", found=list(sizes))
        if not tensor.data and 0 not in sizes:
            raise InvalidArgument("the tensor has elements, and no memory", found="a null pointer",
                                  expected=f"memory for shape {list(sizes)}")

    @property
    def read_only(self) -> bool:
        return isinstance(self.managed, _Versioned) and bool(self.managed.flags & _READ_ONLY)

    def __del__(self) -> None:
        keeper = _keepers.pop(self.address, None)
        if self.managed.deleter:
            _Deleter(self.managed.deleter)(self.address)
        del keeper


class _Bytes:
    """Memory of the host that `owner` keeps alive, as numpy takes it."""

    def __init__(self, owner: Any, address: int, size: int) -> None:
        self.owner = owner
        self.__array_interface__ = {"data": (address, False), "shape": (size,), "typestr": "|u1",
                                    "version": 3}


def _of_capsule(capsule: Any, find: Find, stream: Stream | None) -> np.ndarray | DeviceArray:
    return _array_of(_Taken.of_capsule(capsule), find, stream)


def _nowhere(vendor: int, index: int) -> None:
    """No device."""


def _array_of(ours: _Taken, find: Find, stream: Stream | None) -> np.ndarray | DeviceArray:
    tensor = ours.managed.tensor
    dtype = _TYPES.get((tensor.code, tensor.bits)) if tensor.lanes == 1 else None
    if dtype is None:
        raise InvalidArgument("no element type here is like the tensor's", found=f"DLPack's type code "
                              f"{tensor.code} of {tensor.bits} bits, {tensor.lanes} lanes")
    shape = tuple(tensor.shape[:tensor.ndim]) if tensor.ndim else ()
    strides = tuple(tensor.strides[:tensor.ndim]) if tensor.ndim and tensor.strides else _strides(shape)
    address = (tensor.data or 0) + tensor.offset
    if tensor.kind not in ON_HOST:
        device = _device(tensor.kind, tensor.index, find)
        return _over(device, address, shape, strides, dtype, ours, stream)
    array = _on_host(ours, address, shape, strides, dtype)
    if ours.read_only:
        array.flags.writeable = False
    return array


def _on_host(owner: Any, address: int, shape: tuple[int, ...], strides: tuple[int, ...],
             dtype: np.dtype[Any]) -> np.ndarray:
    if 0 in shape:
        return np.empty(shape, dtype)
    if any(step < 0 for step in strides):
        raise InvalidArgument("the tensor's strides are negative", found=list(strides),
                              cure="give a contiguous tensor")
    size = (1 + sum((d - 1) * step for d, step in zip(shape, strides, strict=True))) * dtype.itemsize
    whole: Any = np.asarray(_Bytes(owner, address, size))
    return np.ndarray(shape, dtype, whole, strides=[step * dtype.itemsize for step in strides])


def _over(device: Device, address: int, shape: tuple[int, ...], strides: tuple[int, ...],
          dtype: np.dtype[Any], owner: Any, stream: Stream | None) -> DeviceArray:
    """An array over a device's memory, whose elements `stream` finds."""
    wrong = [i for i, (d, ours, theirs) in enumerate(zip(shape, _strides(shape), strides, strict=True))
             if d > 1 and ours != theirs]
    if wrong and 0 not in shape:
        raise InvalidArgument("a tensor of a device has to lie in C order", found=f"strides {list(strides)}",
                              expected=list(_strides(shape)), cure="give tensor.contiguous()")
    memory = Memory(device, 0, address, owner)
    if stream is not None:
        memory.written(stream.event())
    return DeviceArray(memory, shape, dtype)


def _of_interface(data: Any, find: Find) -> DeviceArray:
    """An array over what `__cuda_array_interface__` tells of; CuPy's, Numba's and torch's on either GPU."""
    told = data.__cuda_array_interface__
    index = int(getattr(getattr(data, "device", None), "id", 0) or 0)
    device = find(0, index)
    if device is None:
        device = _device(CUDA, index, find)
    dtype, shape = np.dtype(told["typestr"]), tuple(told["shape"])
    if told.get("mask") is not None or dtype not in _CODES:
        raise InvalidArgument("the array cannot be taken", found=f"{dtype}, mask {told.get('mask')}",
                              expected="numbers without a mask")
    strides = tuple(s // dtype.itemsize for s in told["strides"]) if told.get("strides") else _strides(shape)
    stream = None
    if device.streams and told.get("stream") is not None:
        stream = Stream(device, told["stream"], foreign=True)
    return _over(device, told["data"][0], shape, strides, dtype, data, stream)


def _strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(math.prod(shape[i + 1:]) for i in range(len(shape)))
