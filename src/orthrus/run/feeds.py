"""The door of a run: every fed value is checked against its declared input, and brought into the form kernels
take. Arrays leave it in C order and aligned, so that no result depends on how a caller's array lies."""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from ..errors import InvalidArgument
from ..ir import (
    ElementType,
    MapType,
    OptionalType,
    SequenceType,
    SparseArray,
    SparseTensorType,
    TensorType,
    Type,
    Value,
    element_of,
    type_of,
)
from ..kernels import DeviceArray
from ..shown import meant

CONFIG_CURE = "feed an array as session.get_inputs() describes it"


def entry(value: Value, most: int) -> Callable[[Any], Any]:
    """The check for one input: a function from what was fed to what the kernels get. `most`: bytes that a
    tensor may have.

    An input declared as a scalar takes any shape, as in onnxruntime, which cannot
    tell it from one of unknown rank.
    """
    kind = value.type
    if isinstance(kind, TensorType) and kind.elem is not None:
        return _tensor_entry(value.name, kind, most)
    return lambda given: admit(value.name, given, kind)


def _tensor_entry(name: str, kind: TensorType, most: int) -> Callable[[Any], Any]:
    assert kind.elem is not None
    dtype = kind.elem.numpy
    rank = len(kind.shape) if kind.shape else None
    fixed = [(i, d) for i, d in enumerate(kind.shape or ()) if isinstance(d, int)]
    ndarray, is_text = np.ndarray, kind.elem is ElementType.STRING

    def check(given: Any) -> Any:
        # an unpickled array has a dtype object of its own
        plain = type(given) is ndarray
        if ((plain or type(given) is DeviceArray) and (given.dtype is dtype or given.dtype == dtype)
                and (plain or not is_text) and (rank is None or given.ndim == rank) and given.nbytes <= most):
            shape = given.shape
            for i, d in fixed:
                if shape[i] != d:
                    raise _wrong_dims(name, shape, kind)
            if is_text:
                words = given.tolist() if given.ndim == 1 else given.ravel().tolist()
                try:
                    # no text begins there, which is told without a look at it once it is one
                    "".startswith(tuple(words), 1)
                except TypeError:
                    return _strings(name, given)
                return given
            return laid(given) if plain else given
        if isinstance(given, ndarray | DeviceArray) and given.nbytes > most:
            raise InvalidArgument(
                f"The tensor fed as input {name} is over the limit", found=f"{given.nbytes} bytes",
                expected=f"at most {most} bytes per tensor", cure="raise Limits.max_tensor_bytes")
        return admit(name, given, kind)
    return check


def taken(given: Any) -> Any:
    """What a run that comes later has of `given`, whatever becomes of the caller's lists and dicts: these are
    copied, and so are arrays that are read elsewhere than where they lie. The memory of other arrays stays
    the caller's."""
    if isinstance(given, np.ndarray):
        return given.copy() if given.dtype == object else laid(given)
    if isinstance(given, list | tuple):
        return [taken(v) for v in given]
    return {k: taken(v) for k, v in given.items()} if isinstance(given, dict) else given


def admit(name: str, given: Any, kind: Type | None) -> Any:
    """`given` as a run-time value of type `kind`. Raises InvalidArgument where it is none,
    RuntimeError for a foreign object."""
    if kind is None:
        return given
    if isinstance(kind, OptionalType):
        return None if given is None else admit(name, given, kind.elem)
    if given is None:
        raise _unexpected(name, given, kind, "feed a value; only an optional may be None")
    if isinstance(kind, TensorType):
        return _admit_tensor(name, given, kind)
    if isinstance(kind, SequenceType):
        if not isinstance(given, list | tuple):
            raise _unexpected(name, given, kind, "feed a list with one entry per element of the sequence",
                              raised=Misfit)
        try:
            return [admit(f"{name}[{i}]", v, kind.elem) for i, v in enumerate(given)]
        except InvalidArgument as error:
            raise Misfit(error.text, node=error.node, found=error.found, expected=error.expected,
                         cure=error.cure) from error
    if isinstance(kind, MapType):
        return _admit_map(name, given, kind)
    if not isinstance(given, SparseArray):
        raise _unexpected(name, given, kind, "feed an orthrus.SparseTensor")
    return _admit_sparse(name, given, kind)


class Misfit(InvalidArgument, RuntimeError):
    """What does not fit where onnxruntime raises a bare RuntimeError, at least for some of it."""


def _unexpected(name: str, given: Any, kind: Type, cure: str, found: str | None = None,
                raised: type[InvalidArgument] = InvalidArgument) -> InvalidArgument:
    return raised(f"Unexpected input data type. Actual: ({_actual(given)}) , expected: ({kind})",
                  node=f"input {name}", found=found, expected=str(kind), cure=cure)


def _admit_map(name: str, given: Any, kind: MapType) -> dict[Any, Any]:
    """Keys as int or str, numbers as numpy scalars of the declared type. Raises InvalidArgument for a dict
    with keys of another kind, Misfit for what is none, an empty one, and a single key or value."""
    if not isinstance(given, dict):
        raise _unexpected(name, given, kind, "feed a dict", raised=Misfit)
    if not given:
        raise Misfit(f"Size of dictionary is empty, unable to run the prediction for input '{name}'.",
                     node=f"input {name}", expected=str(kind), cure="feed one key at least")
    if isinstance(next(iter(given)), str) != (kind.key is ElementType.STRING):
        raise _unexpected(name, given, kind, f"feed keys of {kind.key.text}")
    elem = kind.value.elem if isinstance(kind.value, TensorType) else None
    made = {}
    for key, value in given.items():
        what, one = "key", key
        try:
            scalar = _scalar(key, kind.key)
            what, one = "value", value
            made[scalar] = (_scalar(value, elem) if elem is not None else
                            admit(f"{name}[{key!r}]", value, kind.value))
        except (TypeError, ValueError, OverflowError) as error:
            c_type = "int64_t" if kind.key is ElementType.INT64 else "string"
            raise Misfit(
                f"Unexpected {what} type  {type(one)}, it cannot be linked to C type {c_type} for input "
                f"'{name}'.", node=f"input {name}", found=f"{value!r} for the key {key!r}: {error}",
                expected=str(kind), cure="feed keys and values of the declared types") from error
    return made


def _scalar(given: Any, elem: ElementType) -> Any:
    """A key or a value of a map. Raises TypeError, ValueError or OverflowError where it is none."""
    if elem is ElementType.STRING:
        if not isinstance(given, str):
            raise TypeError(f"{type(given).__name__} is no str")
        return str(given)
    if isinstance(given, str | bytes | complex | np.complexfloating) or not elem.floating and isinstance(
            given, float | np.floating):
        raise TypeError(f"{type(given).__name__} is no {elem.text}")
    with np.errstate(over="ignore"):
        return elem.numpy.type(float(given) if elem.floating else operator.index(given))


def _admit_sparse(name: str, given: SparseArray, kind: SparseTensorType) -> SparseArray:
    fits = element_of(given.values.dtype) is kind.elem and (kind.shape is None or (
        len(kind.shape) == len(given.shape) and all(
            d == n for d, n in zip(kind.shape, given.shape, strict=True) if isinstance(d, int))))
    if not fits:
        raise _unexpected(name, given, kind, "feed the declared type and shape")
    return given


def _actual(given: Any) -> str:
    if isinstance(given, np.ndarray | np.generic | list | dict | SparseArray):
        with contextlib.suppress(TypeError, ValueError):
            return str(type_of(given))
    return type(given).__name__


def lacking(missing: Sequence[str], feeds: Iterable[str]) -> ValueError:
    """What a feed without some inputs is told; an input that was misspelt is named."""
    given = list(feeds)
    asked = [f"{name!r}: {question}" for name in given
             if isinstance(name, str) and (question := meant(name, missing))]
    return ValueError(f"Required inputs ({list(missing)}) are missing from input feed ({given})."
                      + "".join(f"\n  {each}" for each in asked))


def _as_array(name: str, given: Any, kind: TensorType) -> np.ndarray:
    """What was fed as an array of numpy's own class in this machine's byte order."""
    assert kind.elem is not None
    if isinstance(given, str | bytes | dict) or callable(given):
        raise RuntimeError("Input must be a list of dictionaries or a single numpy array for input "
                           f"'{name}'.")
    if isinstance(given, list | tuple):
        try:
            given = _array(given, kind.elem)
        except (TypeError, ValueError, OverflowError) as error:
            raise Misfit(f"Could not create tensor from given input list: that fed as input {name} is no "
                         f"array of {kind}: {error}", cure=CONFIG_CURE) from error
    if not isinstance(given, np.ndarray):
        if isinstance(given, np.generic) or not hasattr(given, "__array__"):
            if isinstance(given, np.generic):
                given = np.asarray(given)
            else:
                raise RuntimeError(f"Unable to handle object of type {type(given)}")
        else:
            given = np.asarray(given)
    if isinstance(given, np.ma.MaskedArray):
        raise InvalidArgument(f"a masked array was fed as input {name}", cure="feed array.filled(value)")
    if type(given) is not np.ndarray:
        given = given.view(np.ndarray)
    if not given.dtype.isnative:
        given = given.astype(given.dtype.newbyteorder("="))
    return given


def _admit_tensor(name: str, given: Any, kind: TensorType) -> Any:
    assert kind.elem is not None
    dtype = kind.elem.numpy
    placed = _placed(name, given)
    given = _as_array(name, given, kind) if placed is None else placed
    try:
        text = given.dtype.type is np.void and not given.dtype.names and kind.elem is ElementType.STRING
        actual = kind.elem if text else element_of(given.dtype)
    except TypeError as error:
        raise RuntimeError(f"Numpy_type {given.dtype.num} can't be converted to MLDataType.") from error
    if actual is not kind.elem:
        raise InvalidArgument(
            f"Unexpected input data type. Actual: (tensor({actual.text})) , expected: "
            f"(tensor({kind.elem.text}))",
            node=f"input {name}", found=f"{given.dtype}{list(given.shape)}", expected=str(dtype),
            cure=f"feed {name} as array.astype({dtype.name!r})")
    if kind.shape:
        if given.ndim != len(kind.shape):
            raise InvalidArgument(
                f"Invalid rank for input: {name} Got: {given.ndim} Expected: {len(kind.shape)} Please fix "
                "either the inputs/outputs or the model.", found=list(given.shape),
                expected=_dims(kind.shape), cure=CONFIG_CURE)
        if any(isinstance(d, int) and d != g for d, g in zip(kind.shape, given.shape, strict=True)):
            raise _wrong_dims(name, given.shape, kind)
    if isinstance(given, DeviceArray):
        return given
    if kind.elem is ElementType.STRING:
        return _strings(name, given)
    return laid(given if given.dtype is dtype else given.view(dtype))


def _placed(name: str, given: Any) -> Any:
    """An array over the memory of an OrtValue of a device, or of another package's tensor that numpy does not
    read by itself; None for anything else. Raises InvalidArgument for one that cannot be taken."""
    if isinstance(given, np.ndarray):
        return None
    if hasattr(given, "__device_array__"):
        return given.__device_array__()
    if not hasattr(given, "__dlpack__") and not hasattr(given, "__cuda_array_interface__"):
        return None
    from ..kernels import dlpack
    from ..providers import device_of

    if hasattr(given, "__dlpack_device__") and given.__dlpack_device__()[0] in dlpack.ON_HOST:
        with contextlib.suppress(TypeError, RuntimeError):
            return np.asarray(given)
    try:
        return dlpack.taken(given, lambda vendor, index: device_of(1, vendor, index))
    except (InvalidArgument, BufferError, TypeError, ValueError, RuntimeError) as error:
        raise InvalidArgument(f"the tensor fed as input {name} cannot be taken: {error}",
                              found=type(given).__name__, cure=CONFIG_CURE) from error


def laid(given: np.ndarray) -> np.ndarray:
    """`given` itself in C order and aligned, else a copy that is."""
    flags = given.flags
    return given if flags.c_contiguous and flags.aligned else given.copy()


def _array(given: Sequence[Any], elem: ElementType) -> np.ndarray:
    """A list as an array. Raises TypeError, ValueError or OverflowError for elements of another kind."""
    made = np.asarray(given, elem.numpy)
    if elem.bits < 8 and not elem.floating:
        wide = np.asarray(given)
        if wide.dtype.kind in "iu" and not np.array_equal(made.astype(np.int64), wide):
            raise OverflowError(f"an integer is out of bounds for {elem.text}")
    return made


def _strings(name: str, given: np.ndarray) -> np.ndarray:
    if given.dtype.type in (np.bytes_, np.void):
        try:
            given = np.vectorize(lambda text: bytes(text).decode(), otypes=[object])(given)
        except UnicodeDecodeError as error:
            raise InvalidArgument(f"the bytes fed as input {name} are no text: {error}",
                                  node=f"input {name}", expected="UTF-8",
                                  cure="feed an array of str") from error
    if given.dtype != object:
        return given.astype(object)
    kinds = set(map(type, given.ravel().tolist()))
    if all(issubclass(kind, str) for kind in kinds):
        return given
    return np.vectorize(lambda item: item if isinstance(item, str) else str(item), otypes=[object])(given)


def _dims(shape: Sequence[Any]) -> str:
    return "[" + ", ".join("?" if d is None else str(d) for d in shape) + "]"


def _wrong_dims(name: str, shape: Sequence[int], kind: TensorType) -> InvalidArgument:
    assert kind.shape is not None
    wrong = "".join(f"\n index: {i} Got: {g} Expected: {d}"
                    for i, (d, g) in enumerate(zip(kind.shape, shape, strict=True))
                    if isinstance(d, int) and d != g)
    return InvalidArgument(f"Got invalid dimensions for input: {name} for the following indices{wrong}\n "
                           "Please fix either the inputs/outputs or the model.", found=list(shape),
                           expected=_dims(kind.shape),
                           cure="feed the declared shape, or free the dimension in the model")
