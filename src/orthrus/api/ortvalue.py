"""`OrtValue`: one tensor, sequence, map or sparse tensor, to be fed, bound, or got from a run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .devices import OrtDevice, OrtMemoryInfo
from .enums import OrtDeviceVendorId
from .sparse import SparseTensor
from .values import CoreValue, copy_core, tensor

if TYPE_CHECKING:
    from ..kernels import DeviceArray


class OrtValue:
    """A value of this runtime; made by the class methods, or got from a session."""

    def __init__(self, ortvalue: CoreValue, numpy_obj: np.ndarray | None = None, session: Any = None) -> None:
        """Wrap a value of the capi module. Raises ValueError for anything else."""
        if not isinstance(ortvalue, CoreValue):
            raise ValueError("`Provided ortvalue` needs to be of type "
                             "`orthrus.capi.onnxruntime_pybind11_state.OrtValue`")
        self._ortvalue = ortvalue
        self._numpy_obj = numpy_obj
        self._session = session

    def _get_c_value(self) -> CoreValue:
        return self._ortvalue

    @classmethod
    def ortvalue_from_numpy(cls, numpy_obj: np.ndarray, /, device_type: str = "cpu", device_id: int = 0,
                            vendor_id: int | OrtDeviceVendorId = -1) -> OrtValue:
        """A tensor over the array's memory; a copy where the array is not contiguous or not of this machine's
        byte order.

        Raises RuntimeError for anything but an array, and for a device whose memory the host does not have.
        """
        if device_type == "cpu" and not device_id and vendor_id == -1:
            return cls(CoreValue._make(tensor(numpy_obj)), numpy_obj)
        device = OrtDevice.make(device_type, device_id, vendor_id)._get_c_device()
        return cls(CoreValue.ortvalue_from_numpy(numpy_obj, device), numpy_obj if device_type.lower() == "cpu"
                   else None)

    @classmethod
    def ortvalue_from_numpy_with_onnx_type(cls, data: np.ndarray, /, onnx_element_type: int) -> OrtValue:
        """A tensor over the array's bytes, taken as an ONNX element type of the same size: uint16 as
        bfloat16, uint8 as float8. Raises RuntimeError where the sizes differ."""
        return cls(CoreValue.ortvalue_from_numpy_with_onnx_type(data, onnx_element_type), data)

    @classmethod
    def ortvalue_from_shape_and_type(cls, shape: Sequence[int], element_type: Any, device_type: str = "cpu",
                                     device_id: int = 0, vendor_id: int | OrtDeviceVendorId = -1,
                                     memory_info: OrtMemoryInfo | None = None) -> OrtValue:
        """A new tensor of zeros. `element_type` is a numpy type or the number of an ONNX type.

        Raises RuntimeError for a negative dimension, an unknown type or a device whose memory the host does
        not have, MemoryError for more memory than one tensor may take.
        """
        if memory_info is not None:
            return cls(CoreValue.ortvalue_from_shape_and_type_for_memory_info(shape, element_type,
                                                                              memory_info))
        device = OrtDevice.make(device_type, device_id, vendor_id)._get_c_device()
        return cls(CoreValue.ortvalue_from_shape_and_type(shape, element_type, device))

    @classmethod
    def ort_value_from_sparse_tensor(cls, sparse_tensor: SparseTensor) -> OrtValue:
        """A value that holds the sparse tensor."""
        return cls(CoreValue.ort_value_from_sparse_tensor(sparse_tensor._get_c_tensor()))

    @classmethod
    def from_dlpack(cls, data: Any, /) -> OrtValue:
        """A tensor over the memory of anything with `__dlpack__` or `__cuda_array_interface__`, such as a
        torch tensor, in the host's memory or that of a device of a provider's.

        Raises RuntimeError for other memory, or an element type that ONNX has none for.
        """
        return cls(CoreValue.from_dlpack(data))

    def as_sparse_tensor(self) -> SparseTensor:
        """Raises RuntimeError for anything but a sparse tensor."""
        return SparseTensor(self._ortvalue.as_sparse_tensor())

    def data_ptr(self) -> int:
        """The address of the first element."""
        return self._ortvalue.data_ptr()

    def device_name(self) -> str:
        """The kind of device whose memory the value is in, such as `cpu` or `cuda`."""
        return self._ortvalue.device_name().lower()

    def shape(self) -> Sequence[int]:
        """The sizes of the dimensions of a tensor, dense or sparse. Raises RuntimeError for anything else."""
        return self._ortvalue.shape()

    def data_type(self) -> str:
        """Such as `tensor(float)`."""
        return self._ortvalue.data_type()

    def element_type(self) -> int:
        """The number of the ONNX element type."""
        return self._ortvalue.element_type()

    def has_value(self) -> bool:
        """Whether there is anything; an optional may be empty."""
        return self._ortvalue.has_value()

    def is_tensor(self) -> bool:
        """Whether it is a dense tensor."""
        return self._ortvalue.is_tensor()

    def is_sparse_tensor(self) -> bool:
        """Whether it is a sparse tensor."""
        return self._ortvalue.is_sparse_tensor()

    def is_tensor_sequence(self) -> bool:
        """Whether it is a sequence of tensors."""
        return self._ortvalue.is_tensor_sequence()

    def tensor_size_in_bytes(self) -> int:
        """The bytes at `data_ptr()`; types of four bits take one byte per element."""
        return self._ortvalue.tensor_size_in_bytes()

    def numpy(self) -> np.ndarray:
        """An array over this tensor's memory; bfloat16, float8 and four-bit types as `ml_dtypes` arrays.

        Raises RuntimeError for anything but a tensor.
        """
        return self._ortvalue.numpy()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        array = self.numpy()
        if dtype is not None and np.dtype(dtype) != array.dtype:
            if copy is False:
                raise ValueError("Unable to avoid copy while creating an array as requested.")
            return array.astype(dtype)
        return array.copy() if copy else array

    def __device_array__(self) -> DeviceArray | None:
        """This tensor where it lies in the memory of a device other than the host."""
        return self._ortvalue._placed

    def __dlpack__(self, *, stream: Any = None, max_version: tuple[int, int] | None = None,
                   dl_device: tuple[int, int] | None = None, copy: bool | None = None) -> Any:
        """A DLPack capsule, as the array API says: of versions 1.x where `max_version` allows it."""
        return self._ortvalue.__dlpack__(stream, max_version, dl_device, copy)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._ortvalue.__dlpack_device__()

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """Where a GPU's tensor lies, for CuPy, Numba and others. Raises AttributeError for other tensors."""
        from ..kernels.dlpack import interface

        if (array := self._ortvalue._placed) is None:
            raise AttributeError("a tensor of the host has no __cuda_array_interface__")
        return interface(array)

    def update_inplace(self, data: Any) -> None:
        """Write the elements of an array or an OrtValue over this tensor's, in its memory.

        Raises TypeError for anything else, RuntimeError where the sizes differ.
        """
        if isinstance(data, OrtValue):
            self._ortvalue.update_inplace(data._ortvalue)
        elif isinstance(data, np.ndarray):
            self._ortvalue.update_inplace(data)
        else:
            raise TypeError("data must be a numpy.ndarray or an OrtValue.")

    def __reduce__(self) -> Any:
        return type(self), (self._ortvalue,)


def copy_tensors(src: Sequence[OrtValue], dst: Sequence[OrtValue], stream: Any = None) -> None:
    """Copy the elements of each tensor of `src` to the tensor of `dst` at its place.

    Raises InvalidArgument where types or sizes differ, RuntimeError where there is none or the lists differ.
    """
    copy_core([v._get_c_value() for v in src], [v._get_c_value() for v in dst], stream)
