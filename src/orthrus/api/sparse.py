"""Sparse tensors of the API: values with their places in coordinate, compressed-row or block form.

Inside a run a sparse tensor is an `ir.SparseArray`, always in coordinate form; `to_array` and `from_array`
convert.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .devices import CoreDevice, OrtDevice, core_device
from .enums import OrtSparseFormat


class SparseCooView:
    """The places of a tensor in coordinate form."""

    __slots__ = ("_indices",)

    def __init__(self, indices: np.ndarray) -> None:
        self._indices = indices

    def indices(self) -> np.ndarray:
        """int64: [n] positions in the flat tensor, or [n, 2] rows and columns, as they were given."""
        return self._indices


class SparseCsrView:
    """The places of a matrix in compressed-row form."""

    __slots__ = ("_inner", "_outer")

    def __init__(self, inner: np.ndarray, outer: np.ndarray) -> None:
        self._inner, self._outer = inner, outer

    def inner(self) -> np.ndarray:
        """int64 [n]: the column of each value."""
        return self._inner

    def outer(self) -> np.ndarray:
        """int64 [rows + 1]: where each row's values begin."""
        return self._outer


class SparseBlockSparseView:
    """The places of blocks."""

    __slots__ = ("_indices",)

    def __init__(self, indices: np.ndarray) -> None:
        self._indices = indices

    def indices(self) -> np.ndarray:
        """int32 [2, blocks]: row and column of each block, counted in blocks."""
        return self._indices


class CoreSparse:
    """A sparse tensor, whole: dense shape, values, format and the index arrays of that format."""

    _shape: tuple[int, ...]
    _values: np.ndarray
    _format: OrtSparseFormat
    _indices: tuple[np.ndarray, ...]
    __slots__ = ("_shape", "_values", "_format", "_indices")

    def __init__(self) -> None:
        raise TypeError("SparseTensor: No constructor defined!")

    @classmethod
    def _make(cls, shape: Any, values: np.ndarray, kind: OrtSparseFormat, *indices: np.ndarray) -> CoreSparse:
        from ..ir import element_of

        made = object.__new__(cls)
        made._shape = tuple(int(d) for d in shape)
        if any(d < 0 for d in made._shape):
            raise RuntimeError(f"the dense shape {list(made._shape)} has a negative dimension")
        try:
            element_of(values.dtype)
        except TypeError as error:
            raise RuntimeError(f"Unsupported values data type: {values.dtype.num}") from error
        made._values, *places = (_seen(each) for each in (values, *indices))
        made._format, made._indices = kind, tuple(places)
        return made

    @staticmethod
    def sparse_coo_from_numpy(dense_shape: Any, values: np.ndarray, indices: np.ndarray,
                              device: CoreDevice) -> CoreSparse:
        """Coordinates: `indices` int64 [n] flat, [n, 2], or 2n numbers in a row. Raises RuntimeError where
        they do not fit."""
        _on_host(device)
        values, places = np.asarray(values), np.asarray(indices, np.int64)
        shape = tuple(int(d) for d in dense_shape)
        if values.ndim != 1:
            raise RuntimeError(f"the values of a sparse tensor have one dimension, not {values.ndim}")
        if places.size not in (len(values), 2 * len(values)):
            raise RuntimeError(f"Index size: {places.size} must be equal to or twice the values size: "
                               f"{len(values)}")
        if places.size == 2 * len(values) and places.size:
            if len(shape) != 2:
                raise RuntimeError(f"pairs of indices need a matrix, the dense shape is {list(shape)}")
            places = places.reshape(-1, 2)
            high = np.asarray(shape)
        else:
            places, high = places.reshape(-1), np.asarray(int(np.prod(shape, dtype=object)))
        if places.size and ((places < 0) | (places >= high)).any():
            raise RuntimeError(f"an index lies outside the dense shape {list(shape)}")
        return CoreSparse._make(shape, values, OrtSparseFormat.ORT_SPARSE_COO, places)

    @staticmethod
    def sparse_csr_from_numpy(dense_shape: Any, values: np.ndarray, inner: np.ndarray, outer: np.ndarray,
                              device: CoreDevice) -> CoreSparse:
        """Compressed rows: `inner` int64 [n], `outer` int64 [rows + 1]. Raises RuntimeError where they do not
        fit."""
        _on_host(device)
        values, inner, outer = np.asarray(values), np.asarray(inner, np.int64), np.asarray(outer, np.int64)
        shape = tuple(int(d) for d in dense_shape)
        if len(shape) != 2:
            raise RuntimeError(f"a tensor in compressed rows is a matrix, the dense shape is {list(shape)}")
        if inner.shape != (len(values),) or (len(values) and len(outer) != shape[0] + 1):
            raise RuntimeError(f"Expecting {len(values)} inner and {shape[0] + 1} outer indices, got "
                               f"{len(inner)} and {len(outer)}")
        if len(values) and (outer[0] != 0 or outer[-1] != len(values) or (np.diff(outer) < 0).any()
                            or (inner < 0).any() or (inner >= shape[1]).any()):
            raise RuntimeError(f"the indices do not describe a matrix of shape {list(shape)}")
        return CoreSparse._make(shape, values, OrtSparseFormat.ORT_SPARSE_CSRC, inner, outer)

    @staticmethod
    def blocksparse_from_numpy(dense_shape: Any, values: np.ndarray, indices: np.ndarray, device: CoreDevice
                               ) -> CoreSparse:
        """Blocks: values [blocks, rows, columns], `indices` int32 [2, blocks]. Raises RuntimeError where they
        do not fit."""
        _on_host(device)
        values, places = np.asarray(values), np.asarray(indices, np.int32)
        shape = tuple(int(d) for d in dense_shape)
        if len(shape) != 2 or values.ndim != 3 or places.shape != (2, len(values)):
            raise RuntimeError(f"blocks need a matrix, values [blocks, rows, columns] and indices [2, "
                               "blocks]; found "
                               f"{list(shape)}, {list(values.shape)} and {list(places.shape)}")
        ends = (places + 1) * np.asarray(values.shape[1:]).reshape(2, 1)
        if (places < 0).any() or (ends > np.asarray(shape).reshape(2, 1)).any():
            raise RuntimeError(f"a block lies outside the dense shape {list(shape)}")
        return CoreSparse._make(shape, values, OrtSparseFormat.ORT_SPARSE_BLOCK_SPARSE, places)

    @classmethod
    def from_array(cls, array: Any) -> CoreSparse:
        """The API's form of an `ir.SparseArray`: pairs of indices for a matrix, flat ones for every other
        rank and where the model has those."""
        places = array.indices
        if places.ndim == 2 and (array.flat or len(array.shape) != 2):
            places = np.ravel_multi_index(tuple(places.T), array.shape).astype(np.int64) if len(places) else \
                np.empty(0, np.int64)
        return cls._make(array.shape, array.values, OrtSparseFormat.ORT_SPARSE_COO, places)

    def to_array(self) -> Any:
        """This tensor as an `ir.SparseArray`."""
        from ..ir import SparseArray

        values, places = self._values, self._indices[0]
        if self._format is OrtSparseFormat.ORT_SPARSE_CSRC:
            rows = np.repeat(np.arange(self._shape[0], dtype=np.int64), np.diff(self._indices[1]))
            places = np.stack([rows, self._indices[0]], -1)
        elif self._format is OrtSparseFormat.ORT_SPARSE_BLOCK_SPARSE:
            _, rows, columns = values.shape
            inside = np.stack(np.meshgrid(np.arange(rows), np.arange(columns), indexing="ij"), -1)
            corner = places.T.astype(np.int64) * (rows, columns)
            places, values = (corner[:, None, None] + inside).reshape(-1, 2), values.reshape(-1)
        elif places.ndim == 1:
            places = np.stack(np.unravel_index(places, self._shape), -1).astype(np.int64)
        order = np.lexsort(places.T[::-1])
        return SparseArray(values[order], places[order], self._shape)

    def values(self) -> np.ndarray:
        return self._values

    def dense_shape(self) -> list[int]:
        return list(self._shape)

    def data_type(self) -> str:
        from ..ir import element_of

        return f"sparse_tensor({element_of(self._values.dtype).text})"

    def device_name(self) -> str:
        return "cpu"

    @property
    def format(self) -> OrtSparseFormat:
        return self._format

    def get_coo_data(self) -> SparseCooView:
        """Raises RuntimeError for a tensor in another form."""
        self._expect(OrtSparseFormat.ORT_SPARSE_COO, "COO")
        return SparseCooView(self._indices[0])

    def get_csrc_data(self) -> SparseCsrView:
        """Raises RuntimeError for a tensor in another form."""
        self._expect(OrtSparseFormat.ORT_SPARSE_CSRC, "CSR(C)")
        return SparseCsrView(*self._indices)

    def get_blocksparse_data(self) -> SparseBlockSparseView:
        """Raises RuntimeError for a tensor in another form."""
        self._expect(OrtSparseFormat.ORT_SPARSE_BLOCK_SPARSE, "BlockSparse")
        return SparseBlockSparseView(self._indices[0])

    def _expect(self, kind: OrtSparseFormat, name: str) -> None:
        if self._format is not kind:
            raise RuntimeError(f"This sparse tensor does not contain {name} format")

    def to_cuda(self, device: CoreDevice) -> None:
        """Raises RuntimeError: tensors here live in host memory."""
        raise RuntimeError("Cuda is not available in this build")

    def __reduce__(self) -> Any:
        return _remade, (self._shape, self._values, self._format, *self._indices)


def _remade(*parts: Any) -> CoreSparse:
    return CoreSparse._make(*parts)


def _seen(array: np.ndarray) -> np.ndarray:
    """A view of `array` that nobody writes to; text as objects."""
    view = array.astype(object) if array.dtype.kind == "U" else array.view()
    view.flags.writeable = False
    return view


def _on_host(device: CoreDevice) -> None:
    if not core_device(device).host:
        raise RuntimeError("Cuda is not available in this build")


class SparseTensor:
    """A sparse tensor; made by the class methods, or got from a session."""

    def __init__(self, sparse_tensor: CoreSparse) -> None:
        """Raises ValueError for anything but the tensor of the capi module."""
        if not isinstance(sparse_tensor, CoreSparse):
            raise ValueError("`Provided object` needs to be of type "
                             "`orthrus.capi.onnxruntime_pybind11_state.SparseTensor`")
        self._tensor = sparse_tensor

    def _get_c_tensor(self) -> CoreSparse:
        return self._tensor

    @classmethod
    def sparse_coo_from_numpy(cls, dense_shape: np.ndarray, values: np.ndarray, coo_indices: np.ndarray,
                              ort_device: OrtDevice) -> SparseTensor:
        """From coordinates: `values` [n]; `coo_indices` int64, [n] positions in the flat tensor or [n, 2] for
        a matrix.

        Raises RuntimeError where the sizes do not fit or an index lies outside.
        """
        return cls(CoreSparse.sparse_coo_from_numpy(dense_shape, values, coo_indices,
                                                    core_device(ort_device)))

    @classmethod
    def sparse_csr_from_numpy(cls, dense_shape: np.ndarray, values: np.ndarray, inner_indices: np.ndarray,
                              outer_indices: np.ndarray, ort_device: OrtDevice) -> SparseTensor:
        """From compressed rows: `values` [n], columns `inner_indices` [n], row starts `outer_indices` [rows +
        1]."""
        return cls(CoreSparse.sparse_csr_from_numpy(dense_shape, values, inner_indices, outer_indices,
                                                    core_device(ort_device)))

    def values(self) -> np.ndarray:
        """The elements that are kept; how they lie is said by the view of the format."""
        return self._tensor.values()

    def as_coo_view(self) -> SparseCooView:
        """Raises RuntimeError where the format is another."""
        return self._tensor.get_coo_data()

    def as_csrc_view(self) -> SparseCsrView:
        """Raises RuntimeError where the format is another."""
        return self._tensor.get_csrc_data()

    def as_blocksparse_view(self) -> SparseBlockSparseView:
        """Raises RuntimeError where the format is another."""
        return self._tensor.get_blocksparse_data()

    def to_cuda(self, ort_device: OrtDevice) -> SparseTensor:
        """Raises RuntimeError: tensors here live in host memory."""
        self._tensor.to_cuda(core_device(ort_device))
        return self

    def format(self) -> OrtSparseFormat:
        """How the indices are kept: coordinates, compressed rows or blocks."""
        return self._tensor.format

    def dense_shape(self) -> list[int]:
        """The shape of the tensor with its zeros."""
        return self._tensor.dense_shape()

    def data_type(self) -> str:
        """Such as `sparse_tensor(float)`."""
        return self._tensor.data_type()

    def device_name(self) -> str:
        return self._tensor.device_name().lower()


