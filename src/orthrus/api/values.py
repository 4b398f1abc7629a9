"""The values of the capi layer: one tensor, sequence, map, sparse tensor or nothing, and a vector of them.

A tensor is a C-contiguous array in host memory, shared with the caller where it came in that form, or an
array of a device. Types
without a numpy type of their own are `ml_dtypes` arrays, those of four bits with one element per byte.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .arguments import mismatch
from .devices import HOST, CoreDevice, OrtMemoryInfo, core_device, memory_of
from .sparse import CoreSparse

if TYPE_CHECKING:
    from ..kernels import DeviceArray

_NO_DEVICE = ("Can't allocate memory on the device using this package of OnnxRuntime. Please use the "
              "appropriate package of OnnxRuntime for your hardware to use this feature.")
_ONLY_TENSORS = "Only OrtValues that are Tensors are currently supported"


_PLAIN = frozenset(map(np.dtype, "?bBhHiIlLqQefd"))
"""Types of elements that every tensor can have as they are."""


def numpy_type(element_type: Any) -> np.dtype[Any]:
    """The numpy type of an ONNX element type given as its number, a numpy type, its name, or a Python type.

    Raises RuntimeError for anything else.
    """
    from ..ir import ElementType, element_of

    if isinstance(element_type, int | np.integer) and not isinstance(element_type, bool):
        try:
            return ElementType(int(element_type)).numpy
        except ValueError:
            raise RuntimeError(f"tensor type {element_type} is not supported") from None
    try:
        return element_of(np.dtype(element_type)).numpy
    except TypeError as error:
        raise RuntimeError(f"{element_type!r} is no element type: {error}") from error


def tensor(given: Any) -> np.ndarray:
    """`given` as a tensor's array: in native byte order and contiguous, strings as objects; shared where
    possible.

    Raises RuntimeError for anything but an array of an ONNX type.
    """
    if type(given) is np.ndarray and given.dtype in _PLAIN and (
            given.flags.c_contiguous and given.flags.aligned):
        return given.view()
    from ..ir import ElementType, element_of

    if not isinstance(given, np.ndarray) or isinstance(given, np.ma.MaskedArray):
        raise RuntimeError("Creation of OrtValues is currently only supported from non-string numpy arrays; "
                           f"found {type(given).__name__}")
    try:
        kind = element_of(given.dtype)
    except TypeError as error:
        raise RuntimeError(f"Numpy_type {given.dtype.num} can't be converted to MLDataType.") from error
    if kind is ElementType.STRING:
        if given.dtype != object:
            return given.astype(object)
        if not all(isinstance(item, str) for item in given.ravel()):
            raise RuntimeError("an array of objects has to hold strings only")
    array = given.view(np.ndarray)
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    if not (array.flags.c_contiguous and array.flags.aligned):
        array = np.array(array, order="C")
    return array


def over_memory(pointer: Any, dtype: np.dtype[Any], shape: Sequence[int]) -> np.ndarray:
    """An array over the memory at address `pointer`, which the caller keeps alive.

    Raises ValueError for a pointer that is 0 or negative, RuntimeError for a shape or type that memory cannot
    hold. How much memory there is cannot be known here.
    """
    import ctypes

    dims = dimensions(shape)
    if dtype.hasobject:
        raise RuntimeError("strings cannot be bound by address; bind the array or an OrtValue")
    size = int(np.prod(dims, dtype=object)) * dtype.itemsize
    address = operator.index(pointer)
    if size == 0:
        return np.empty(dims, dtype)
    if address <= 0 or address + size > 1 << (8 * ctypes.sizeof(ctypes.c_void_p)):
        raise ValueError(f"buffer_ptr is {address}, which is no address of {size} bytes; pass "
                         "array.ctypes.data or tensor.data_ptr()")
    memory = memoryview((ctypes.c_ubyte * size).from_address(address))
    return np.frombuffer(memory, np.uint8).view(dtype).reshape(dims)


def over_address(pointer: Any, element_type: Any, shape: Sequence[int], device: Any, owner: Any = None
                 ) -> np.ndarray | DeviceArray:
    """A tensor over the memory at address `pointer` of whichever device, which the caller or `owner` keeps
    alive. Raises as `over_memory`, and RuntimeError for a device that no provider has."""
    from ..kernels import DeviceArray, Memory

    dtype, core = numpy_type(element_type), core_device(device)
    if core.host:
        return over_memory(pointer, dtype, shape)
    memory = memory_of(core)
    if memory is None:
        raise RuntimeError("There's no data transfer registered for copying tensors from "
                           f"Device:[{core!r}] to Device:[{HOST!r}]")
    dims, address = dimensions(shape), operator.index(pointer)
    if dtype.hasobject or (address <= 0 and 0 not in dims):
        raise ValueError(f"buffer_ptr is {address}, of {dtype}, which is no address of a tensor on "
                         f"{memory!r}; pass tensor.data_ptr()")
    return DeviceArray(Memory(memory, 0, address, owner), dims, dtype)


def dimensions(shape: Sequence[int]) -> tuple[int, ...]:
    """`shape` as ints. Raises RuntimeError for a negative one, TypeError for no integer."""
    dims = tuple(operator.index(d) for d in shape)
    if any(d < 0 for d in dims):
        raise RuntimeError(f"shape.Size() must >=0; the shape is {list(dims)}")
    return dims


def _allocate(shape: Sequence[int], dtype: np.dtype[Any]) -> np.ndarray:
    """Zeroed memory, within the default limits. Raises MemoryError where it is too much."""
    from ..errors import Fail
    from ..limits import bounded

    dims = dimensions(shape)
    try:
        bounded(dims, dtype, "OrtValue")
    except Fail as error:
        raise MemoryError(str(error)) from None
    if dtype.hasobject:
        return np.full(dims, "", object)
    return np.zeros(dims, dtype)


def write(target: Any, source: Any) -> None:
    """Copy the elements of one tensor over those of another, of the same type and as many, wherever they lie.
    """
    from ..kernels import HOST, DeviceArray, copied, fill, finished

    if isinstance(target, DeviceArray):
        fill(target, source)
        finished([target])
    else:
        target[...] = (copied(source, HOST) if isinstance(source, DeviceArray) else source).reshape(
            target.shape)


class CoreValue:
    """One value. `_value` is an array, a CoreSparse, a list, a dict, or None; `_type` its declared type where
    known; `_owner` keeps alive what the memory belongs to."""

    _value: Any
    _type: Any
    _owner: Any
    __slots__ = ("_value", "_type", "_owner")

    def __init__(self) -> None:
        raise TypeError("OrtValue: No constructor defined!")

    @classmethod
    def _make(cls, value: Any, kind: Any = None, owner: Any = None) -> CoreValue:
        made = object.__new__(cls)
        made._value, made._type, made._owner = value, kind, owner
        return made

    @staticmethod
    def ortvalue_from_numpy(array: Any, device: CoreDevice) -> CoreValue:
        """Share `array`, or copy it where it is not contiguous, or to another device. Raises RuntimeError for
        no array, or a device that no provider has."""
        from ..kernels import HOST, copied

        memory = memory_of(device)
        if memory is None:
            raise RuntimeError(_NO_DEVICE)
        given = tensor(array)
        return CoreValue._make(given if memory is HOST else copied(given, memory))

    @staticmethod
    def ortvalue_from_numpy_with_onnx_type(data: np.ndarray, onnx_element_type: int) -> CoreValue:
        """Take the bytes of `data` as elements of an ONNX type of the same size; for a type of less than a
        byte, packed as in a model, the first of them. Raises RuntimeError where sizes differ."""
        from ..ir import ElementType
        from ..load.tensors import packed_bytes, unpack

        array = tensor(data)
        try:
            kind = ElementType(int(onnx_element_type))
        except ValueError:
            raise RuntimeError(f"Not a valid ONNX Tensor data type: {onnx_element_type}") from None
        if array.dtype == kind.numpy:
            return CoreValue._make(array)
        if array.dtype.itemsize != kind.numpy.itemsize or object in (array.dtype, kind.numpy):
            raise RuntimeError(f"Items size in the incoming array: {array.dtype.itemsize} specified by "
                               f"onnxtype: {kind.numpy.itemsize}")
        if kind.bits < 8:
            packed = array.view(np.uint8).reshape(-1)[:packed_bytes(array.size, kind)]
            return CoreValue._make(unpack(packed, kind, array.size).reshape(array.shape))
        return CoreValue._make(array.view(kind.numpy))

    @staticmethod
    def ortvalue_from_shape_and_type(shape: Sequence[int], element_type: Any,
                                     device: CoreDevice) -> CoreValue:
        """A tensor of zeros. Raises RuntimeError for a negative dimension, an unknown type or a device that
        no provider has, MemoryError where it is too large."""
        from ..kernels import HOST, copied

        memory = memory_of(device)
        if memory is None:
            name = core_device(device).name.upper()
            raise RuntimeError(f"Can't allocate memory on the {name} device using this package of "
                               "OnnxRuntime. Please use "
                               f"the {name} package of OnnxRuntime to use this feature.")
        zeros = _allocate(shape, numpy_type(element_type))
        return CoreValue._make(zeros if memory is HOST else copied(zeros, memory))

    ortvalue_from_shape_and_onnx_type = ortvalue_from_shape_and_type

    @staticmethod
    def ortvalue_from_shape_and_type_for_memory_info(shape: Sequence[int], element_type: Any,
                                                     info: OrtMemoryInfo) -> CoreValue:
        """As `ortvalue_from_shape_and_type`, in the memory of `info`: on its device, or pinned for that."""
        core = info._device
        if not core.device_type() or not core.host:
            return CoreValue.ortvalue_from_shape_and_type(shape, element_type, core)
        from ..kernels import pinned_zeros
        from ..providers import device_of

        device = device_of(core.device_type(), core.vendor_id(), core.device_id())
        if device is None:
            raise RuntimeError(f"No shared allocator found for: {info!r}")
        zeros = _allocate(shape, numpy_type(element_type))
        return CoreValue._make(pinned_zeros(zeros.shape, zeros.dtype, device))

    ortvalue_from_shape_and_onnx_type_for_memory_info = ortvalue_from_shape_and_type_for_memory_info

    @staticmethod
    def ort_value_from_sparse_tensor(sparse: CoreSparse) -> CoreValue:
        return CoreValue._make(sparse)

    @staticmethod
    def from_dlpack(data: Any, is_bool_tensor: bool = False) -> CoreValue:
        """Share a DLPack tensor: a capsule, or an object with `__dlpack__` or `__cuda_array_interface__`.
        `is_bool_tensor`: its bytes are truth values.

        Raises TypeError for an object that is no tensor, RuntimeError for memory that neither the host nor a
        provider's device has, or an element type that ONNX has none for.
        """
        from ..kernels import DeviceArray

        array = over_dlpack(data)
        if is_bool_tensor and array.dtype == np.uint8:
            array = (DeviceArray(array.memory, array.shape, np.dtype(np.bool_))
                     if isinstance(array, DeviceArray) else array.view(np.bool_))
        return CoreValue._make(array if isinstance(array, DeviceArray) else tensor(array))

    def to_dlpack(self) -> Any:
        """A capsule over this tensor's memory. Raises RuntimeError for a type DLPack has no code for."""
        return self.__dlpack__()

    def __dlpack__(self, stream: Any = None, max_version: tuple[int, int] | None = None,
                   dl_device: tuple[int, int] | None = None, copy: bool | None = None) -> Any:
        """As the array API says. Raises RuntimeError for what is no tensor, and for a type or a device that
        DLPack has no number for; BufferError for a copy that is not to be made."""
        from ..kernels.dlpack import given

        array = self._tensor()
        try:
            return given(array, stream, max_version, dl_device, copy)
        except BufferError as error:
            if dl_device is not None or copy is not None:
                raise
            raise RuntimeError(
                f"a tensor of {array.dtype} cannot be given away by DLPack: {error}") from error

    def __dlpack_device__(self) -> tuple[int, int]:
        from ..kernels.dlpack import CPU, placed

        return (CPU, 0) if self._placed is None else placed(self._placed)

    def _array(self, text: str = _ONLY_TENSORS) -> np.ndarray:
        if not isinstance(self._value, np.ndarray):
            raise RuntimeError(text)
        return self._value

    def _tensor(self) -> Any:
        """This tensor, on whichever device. Raises RuntimeError for anything else."""
        return self._array() if self._placed is None else self._placed

    @property
    def _placed(self) -> DeviceArray | None:
        """The tensor where it lies on another device than the host."""
        from ..kernels import DeviceArray

        return self._value if isinstance(self._value, DeviceArray) else None

    def numpy(self) -> np.ndarray:
        """An array over this tensor's memory, a copy of it where that is another device's. Raises
        RuntimeError for anything but a tensor."""
        if type(self._value) is np.ndarray:
            return self._value.view()
        from ..kernels import HOST, copied

        if self._placed is not None:
            made: np.ndarray = copied(self._placed, HOST)
            return made
        return self._array("Only OrtValues that are Tensors are convertible to Numpy objects").view()

    def data_ptr(self) -> int:
        """The address of the first element, another device's handle. Raises RuntimeError for strings and for
        anything but a tensor."""
        if self._placed is not None:
            return int(self._placed.handle)
        array = self._array()
        if array.dtype == object:
            raise RuntimeError("a tensor of strings has no address")
        return int(array.ctypes.data)

    def data_type(self) -> str:
        """Such as `tensor(float)` or `seq(tensor(int64))`."""
        from ..ir import type_of

        if isinstance(self._value, CoreSparse):
            return self._value.data_type()
        if self._placed is not None:
            return str(self._placed.type)
        if self._type is not None and not isinstance(self._value, np.ndarray):
            return str(self._type)
        return "" if self._value is None else str(type_of(self._value))

    def element_type(self) -> int:
        """The number of the element type, of a sequence's tensors for a sequence. Raises RuntimeError for
        maps, and for sequences of them."""
        from ..ir import OptionalType, SequenceType, TensorType, element_of, type_of

        if isinstance(self._value, CoreSparse):
            return int(element_of(self._value.values().dtype))
        if self._placed is not None:
            return int(element_of(self._placed.dtype))
        if isinstance(self._value, list):
            kind = type_of(self._value) if self._type is None else self._type
            kind = kind.elem if isinstance(kind, OptionalType) else kind
            if isinstance(kind, SequenceType) and isinstance(kind.elem, TensorType) and kind.elem.elem:
                return int(kind.elem.elem)
        return int(element_of(self._array("element_type() is only supported for tensors").dtype))

    def device_name(self) -> str:
        return "cpu" if self._placed is None else self._placed.device.name

    def shape(self) -> list[int]:
        """Raises RuntimeError for maps and sequences."""
        if isinstance(self._value, CoreSparse):
            return self._value.dense_shape()
        return list(self._tensor().shape)

    def tensor_size_in_bytes(self) -> int:
        """The bytes at `data_ptr()`. Raises RuntimeError for strings and for anything but a tensor."""
        array = self._tensor()
        if array.dtype == object:
            raise RuntimeError("a tensor of strings has no size in bytes")
        return int(array.nbytes)

    def has_value(self) -> bool:
        return self._value is not None

    def is_tensor(self) -> bool:
        return isinstance(self._value, np.ndarray) or self._placed is not None

    def is_sparse_tensor(self) -> bool:
        return isinstance(self._value, CoreSparse)

    def is_tensor_sequence(self) -> bool:
        return isinstance(self._value, list) and all(isinstance(v, np.ndarray) for v in self._value)

    def as_sparse_tensor(self) -> CoreSparse:
        """Raises RuntimeError for anything but a sparse tensor."""
        if not isinstance(self._value, CoreSparse):
            raise RuntimeError("This OrtValue does not contain SparseTensor. Check data_type() value.")
        return self._value

    def update_inplace(self, data: Any) -> None:
        """Write `data` (an array or an OrtValue) over this tensor's elements.

        Raises RuntimeError where the number of elements or their size differs, or where the memory is
        read-only.
        """
        array = self._tensor()
        source = data._tensor() if isinstance(data, CoreValue) else tensor(data)
        if source.size != array.size or source.dtype.itemsize != array.dtype.itemsize:
            raise RuntimeError("The input size of numpy arrays does not match the size of the OrtValue.")
        if self._placed is None and not array.flags.writeable:
            raise RuntimeError("the OrtValue shares read-only memory, which update_inplace cannot change; "
                               "make it from a copy of the array")
        if source.dtype != array.dtype and object not in (source.dtype, array.dtype) and (
                isinstance(source, np.ndarray)):
            source = source.view(array.dtype)
        write(array, source)

    def _given(self) -> Any:
        """What a run takes for this value."""
        return self._value.to_array() if isinstance(self._value, CoreSparse) else self._value

    @classmethod
    def _got(cls, value: Any, kind: Any = None) -> CoreValue:
        """What a run gave, as a value."""
        from ..ir import SparseArray

        if isinstance(value, SparseArray):
            value = CoreSparse.from_array(value)
        elif isinstance(value, np.ndarray) and not value.flags.c_contiguous:
            value = np.ascontiguousarray(value).reshape(value.shape)
        return cls._make(value, kind)

    def __reduce__(self) -> Any:
        return CoreValue._make, (self._value if self._placed is None else self.numpy(), self._type)


class OrtValueVector:
    """Values in a row, of the capi layer."""

    __slots__ = ("_items",)

    def __init__(self) -> None:
        self._items: list[CoreValue] = []

    @classmethod
    def _of(cls, values: Sequence[CoreValue]) -> OrtValueVector:
        vector = cls()
        vector._items = list(values)
        return vector

    def push_back(self, value: Any, is_bool_tensor: bool = False) -> None:
        """Append a value, or a DLPack capsule."""
        if not isinstance(value, CoreValue):
            value = CoreValue.from_dlpack(value, is_bool_tensor)
        self._items.append(value)

    def push_back_batch(self, torch_tensors: Sequence[Any], data_ptrs: Sequence[int],
                        element_types: Sequence[Any], shapes: Sequence[Sequence[int]],
                        devices: Sequence[Any]) -> None:
        """Append one value per tensor, over its memory; the tensors are kept alive. Raises as
        `over_memory`."""
        lists = (torch_tensors, data_ptrs, element_types, shapes, devices)
        if len({len(each) for each in lists}) > 1:
            raise RuntimeError("the lists must be of the same length")
        for keep, pointer, kind, shape, device in zip(*lists, strict=True):
            self._items.append(CoreValue._make(over_address(pointer, kind, shape, device, keep), owner=keep))

    def reserve(self, count: int) -> None:
        """Nothing: the vector grows as needed."""

    def shrink_to_fit(self) -> None:
        """Nothing: the vector holds no spare room."""

    def bool_tensor_indices(self) -> list[int]:
        return [i for i, v in enumerate(self._items) if v.is_tensor() and v._tensor().dtype == np.bool_]

    def element_type_at(self, idx: int) -> int:
        return self[idx].element_type()

    def dlpack_at(self, index: int) -> Any:
        return self[index].to_dlpack()

    def to_dlpacks(self, to_tensor: Any) -> list[Any]:
        """A capsule per value, put through `to_tensor` unless that is None."""
        capsules = [v.to_dlpack() for v in self._items]
        return capsules if to_tensor is None else [to_tensor(c) for c in capsules]

    def __getitem__(self, index: int) -> CoreValue:
        """Raises IndexError beyond the end, TypeError for a negative index."""
        if not isinstance(index, int) or index < 0:
            raise mismatch("__getitem__", "(self: OrtValueVector, arg0: int) -> OrtValue", self, index)
        if index >= len(self._items):
            raise IndexError(f"vector::_M_range_check: __n (which is {index}) >= this->size() (which is "
                             f"{len(self._items)})")
        return self._items[index]

    def __iter__(self) -> Iterator[CoreValue]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)


def is_dlpack_uint8_tensor(capsule: Any) -> bool:
    """Whether a DLPack capsule holds uint8, which may stand for truth values; the capsule can still be taken.
    False for a capsule that was used; raises TypeError for what is none."""
    from ..errors import InvalidArgument
    from ..kernels.dlpack import element_type

    if type(capsule).__name__ != "PyCapsule":
        raise mismatch("is_dlpack_uint8_tensor", "(arg0: CapsuleType) -> bool", capsule)
    try:
        return element_type(capsule) == np.uint8
    except InvalidArgument:
        return False


def over_dlpack(data: Any) -> Any:
    """An array, of the host or of a device, over another package's tensor. Raises TypeError for what is none,
    RuntimeError for one that cannot be taken."""
    from ..errors import InvalidArgument
    from ..kernels.dlpack import taken
    from ..providers import device_of

    if type(data).__name__ != "PyCapsule" and not hasattr(data, "__dlpack__") and not hasattr(
            data, "__cuda_array_interface__"):
        raise TypeError(f"from_dlpack expected a valid DLPack capsule named 'dltensor', not {type(data)}")
    try:
        return taken(data, lambda vendor, index: device_of(1, vendor, index))
    except (InvalidArgument, BufferError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise RuntimeError(f"the DLPack tensor cannot be taken: {getattr(error, 'args', [error])[0]}"
                           ) from error


def copy_core(src: Sequence[CoreValue], dst: Sequence[CoreValue], stream: Any = None) -> None:
    """Copy the elements of each tensor of `src` to that of `dst`. Raises InvalidArgument where they do not
    fit, RuntimeError where there is none or the lists differ in length."""
    from ..errors import InvalidArgument

    if len(src) != len(dst) or not src:
        raise RuntimeError(f"Invalid arguments provided to CopyTensors: {len(src)} and {len(dst)} tensors.")
    for source, target in zip(src, dst, strict=True):
        a, b = source._tensor(), target._tensor()
        if a.dtype != b.dtype or a.size != b.size:
            raise InvalidArgument("the tensors differ in type or size", found=f"{a.dtype}{list(a.shape)}",
                                  expected=f"{b.dtype}{list(b.shape)}")
        write(b, a)
