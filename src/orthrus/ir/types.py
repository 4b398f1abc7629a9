"""What a value is: element types, dimensions, and the five kinds of ONNX type.

Nothing here knows protobuf. An element type carries its ONNX number, its ONNX spelling and
its numpy type; types without a numpy type of their own use `ml_dtypes`, one element per byte
for those of four bits and fewer.
"""

from __future__ import annotations

import enum
from typing import Any, TypeAlias

import numpy as np

from ..records import dataclass

Dim: TypeAlias = "int | str | None"
Shape: TypeAlias = "tuple[Dim, ...] | None"


class ElementType(enum.IntEnum):
    """An ONNX element type; the value is its number in TensorProto.DataType."""

    FLOAT = 1
    UINT8 = 2
    INT8 = 3
    UINT16 = 4
    INT16 = 5
    INT32 = 6
    INT64 = 7
    STRING = 8
    BOOL = 9
    FLOAT16 = 10
    DOUBLE = 11
    UINT32 = 12
    UINT64 = 13
    COMPLEX64 = 14
    COMPLEX128 = 15
    BFLOAT16 = 16
    FLOAT8E4M3FN = 17
    FLOAT8E4M3FNUZ = 18
    FLOAT8E5M2 = 19
    FLOAT8E5M2FNUZ = 20
    UINT4 = 21
    INT4 = 22
    FLOAT4E2M1 = 23
    FLOAT8E8M0 = 24
    UINT2 = 25
    INT2 = 26
    FLOAT6E2M3 = 27
    FLOAT6E3M2 = 28

    @property
    def text(self) -> str:
        """ONNX's spelling, as in `tensor(float)`."""
        return self.name.lower()

    @property
    def numpy(self) -> np.dtype[Any]:
        """The numpy type of one element; strings are `object`."""
        found = _NUMPY.get(self)
        if found is None:
            _further()
            found = _NUMPY[self]
        return found

    @property
    def bits(self) -> int:
        """Bits one element takes in a model file."""
        return _BITS.get(self, self.numpy.itemsize * 8)

    @property
    def floating(self) -> bool:
        return self in _FLOATING

    @property
    def span(self) -> tuple[int, int]:
        """The least and the largest number of an integer type."""
        kept = self.bits - (not self.name.startswith("U"))
        return 0 if kept == self.bits else -1 << kept, (1 << kept) - 1


_NUMPY: dict[ElementType, np.dtype[Any]] = {
    ElementType.FLOAT: np.dtype(np.float32), ElementType.UINT8: np.dtype(np.uint8),
    ElementType.INT8: np.dtype(np.int8), ElementType.UINT16: np.dtype(np.uint16),
    ElementType.INT16: np.dtype(np.int16), ElementType.INT32: np.dtype(np.int32),
    ElementType.INT64: np.dtype(np.int64), ElementType.STRING: np.dtype(np.object_),
    ElementType.BOOL: np.dtype(np.bool_), ElementType.FLOAT16: np.dtype(np.float16),
    ElementType.DOUBLE: np.dtype(np.float64), ElementType.UINT32: np.dtype(np.uint32),
    ElementType.UINT64: np.dtype(np.uint64), ElementType.COMPLEX64: np.dtype(np.complex64),
    ElementType.COMPLEX128: np.dtype(np.complex128),
}
_FROM_NUMPY = {dtype: element for element, dtype in _NUMPY.items()}
_FURTHER = {
    ElementType.BFLOAT16: "bfloat16", ElementType.FLOAT8E4M3FN: "float8_e4m3fn",
    ElementType.FLOAT8E4M3FNUZ: "float8_e4m3fnuz", ElementType.FLOAT8E5M2: "float8_e5m2",
    ElementType.FLOAT8E5M2FNUZ: "float8_e5m2fnuz", ElementType.UINT4: "uint4", ElementType.INT4: "int4",
    ElementType.FLOAT4E2M1: "float4_e2m1fn", ElementType.FLOAT8E8M0: "float8_e8m0fnu",
    ElementType.UINT2: "uint2", ElementType.INT2: "int2", ElementType.FLOAT6E2M3: "float6_e2m3fn",
    ElementType.FLOAT6E3M2: "float6_e3m2fn",
}
"""The types that `ml_dtypes` has, which is imported when one of them is met."""

_BITS = {ElementType.UINT4: 4, ElementType.INT4: 4, ElementType.FLOAT4E2M1: 4, ElementType.UINT2: 2,
         ElementType.INT2: 2, ElementType.FLOAT6E2M3: 6, ElementType.FLOAT6E3M2: 6}
_FLOATING = frozenset(e for e in ElementType if "FLOAT" in e.name or e is ElementType.DOUBLE)
_FROM_TEXT = {e.text: e for e in ElementType}


def _further() -> None:
    """Add what `ml_dtypes` has to the tables."""
    import ml_dtypes

    found = {element: np.dtype(getattr(ml_dtypes, name)) for element, name in _FURTHER.items()}
    _FROM_NUMPY.update({dtype: element for element, dtype in found.items()})
    _NUMPY.update(found)


def element_of(dtype: Any) -> ElementType:
    """The element type of a numpy type; `<U` strings count as strings. Raises TypeError for any other."""
    dtype = np.dtype(dtype)
    found = _FROM_NUMPY.get(dtype)
    if found is None and dtype.kind not in "USTM" and ElementType.BFLOAT16 not in _NUMPY:
        _further()
        found = _FROM_NUMPY.get(dtype)
    if found is None and dtype.kind in "UST":
        return ElementType.STRING
    if found is None and (native := _FROM_NUMPY.get(dtype.newbyteorder("="))) is not None:
        return native
    if found is None:
        raise TypeError(f"numpy type {dtype} has no ONNX element type")
    return found


@dataclass(frozen=True, slots=True)
class TensorType:
    """A dense tensor. `elem` None: not known yet. `shape` None: rank not known; a
    dimension is an int, a name, or None."""

    elem: ElementType | None
    shape: Shape = None

    def __str__(self) -> str:
        return f"tensor({self.elem.text if self.elem else '?'})"


@dataclass(frozen=True, slots=True)
class SparseTensorType:
    """A sparse tensor; `shape` as of a dense one."""

    elem: ElementType
    shape: Shape = None

    def __str__(self) -> str:
        return f"sparse_tensor({self.elem.text})"


@dataclass(frozen=True, slots=True)
class SequenceType:
    """A list of values of one type."""

    elem: Type

    def __str__(self) -> str:
        return f"seq({self.elem})"


@dataclass(frozen=True, slots=True)
class OptionalType:
    """A value of a type, or none."""

    elem: Type

    def __str__(self) -> str:
        return f"optional({self.elem})"


@dataclass(frozen=True, slots=True)
class MapType:
    """Values of one type by keys, which are text or integers."""

    key: ElementType
    value: Type

    def __str__(self) -> str:
        return f"map({self.key.text},{self.value})"


Type: TypeAlias = TensorType | SparseTensorType | SequenceType | OptionalType | MapType


def shape_text(kind: Type | None) -> str:
    """`float[2, N, ?]`: the short form used in printed graphs and errors."""
    if isinstance(kind, TensorType | SparseTensorType):
        elem = kind.elem.text if kind.elem else "?"
        if kind.shape is None:
            return f"{elem}[...]"
        return f"{elem}[{', '.join('?' if d is None else str(d) for d in kind.shape)}]"
    return "?" if kind is None else str(kind)


def parse_type(text: str) -> Type:
    """The type ONNX spells `text`, such as `seq(tensor(float))`, without shapes."""
    kind, _, rest = text.removesuffix(")").partition("(")
    if kind == "tensor":
        return TensorType(_FROM_TEXT[rest])
    if kind == "sparse_tensor":
        return SparseTensorType(_FROM_TEXT[rest])
    if kind == "map":
        key, _, value = rest.partition(",")
        value = value.strip()
        return MapType(_FROM_TEXT[key.strip()],
                       parse_type(value) if "(" in value else TensorType(_FROM_TEXT[value]))
    if kind in ("seq", "optional"):
        return (SequenceType if kind == "seq" else OptionalType)(parse_type(rest))
    raise ValueError(f"{text!r} is no ONNX type")


def type_of(value: Any) -> Type:
    """The type of a run-time value: an array, a list, a dict, a SparseArray; an
    empty list counts as float tensors."""
    if isinstance(value, np.ndarray):
        return TensorType(element_of(value.dtype), value.shape)
    if isinstance(value, list):
        return SequenceType(type_of(value[0]) if value else TensorType(None))
    if isinstance(value, dict):
        key, item = next(iter(value.items()), (0, np.float32(0)))
        return MapType(ElementType.STRING if isinstance(key, str) else ElementType.INT64,
                       TensorType(element_of(np.asarray(item).dtype), ()))
    if isinstance(value, SparseArray):
        return SparseTensorType(element_of(value.values.dtype), value.shape)
    return TensorType(element_of(np.asarray(value).dtype), np.shape(value))


@dataclass(frozen=True, slots=True, eq=False)
class SparseArray:
    """A sparse tensor in coordinate form: `values` [n], `indices` [n, rank]
    int64, sorted, and the dense shape. `flat`: the model says its indices
    as positions in the flat tensor."""

    values: np.ndarray
    indices: np.ndarray
    shape: tuple[int, ...]
    flat: bool = False

    def dense(self) -> np.ndarray:
        out = np.zeros(self.shape, self.values.dtype)
        if self.values.dtype == object:
            out[...] = ""
        out[tuple(self.indices.T)] = self.values
        return out
