"""Inputs for a model: read from .npy, .npz and .pb files, or generated from the declared types and shapes.

In: `name=file` or `file` as typed on a command line, and a session's inputs. Out: a feed for `session.run`.
Nothing here unpickles: an array file of objects is refused.
"""

from __future__ import annotations

import contextlib
import os
import stat
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from ...ir import (
    ElementType,
    MapType,
    OptionalType,
    SequenceType,
    TensorType,
    Type,
    likely_shapes,
    parse_type,
)
from ...records import dataclass
from ..shapes.known_values import Known, drawn, known_values
from ..shapes.open_dimensions import Shapes, accepted, told

Result = TypeVar("Result")
KINDS = (".npy", ".npz", ".pb")


def read_feeds(given: Sequence[str], inputs: Sequence[Any]) -> dict[str, Any]:
    """The inputs that the files hold: `name=file.npy`, `name=file.pb`, `file.npz` (one array per input),
    `file.pb` (named in the file, or the only input).

    Raises ValueError for a name the model does not have or a file that does not fit, OSError for one that is
    not there.
    """
    types = {arg.name: parse_type(arg.type) for arg in inputs}
    feeds: dict[str, Any] = {}
    for text in given:
        name, path = _split(text, types)
        for key, value in _read(Path(path), name, types).items():
            feeds[key] = restored(value, types[key])
    return feeds


def _split(text: str, types: dict[str, Type]) -> tuple[str | None, str]:
    """`name=file` in two, where the part before an equals sign is an input; input names may hold `=`
    themselves."""
    for name in sorted(types, key=len, reverse=True):
        if text.startswith(f"{name}="):
            return name, text[len(name) + 1:]
    name, equals, _ = text.partition("=")
    if equals and not Path(text).exists():
        raise ValueError(f"the model has no input {name!r}; its inputs are {', '.join(types) or 'none'}")
    return None, text


def _read(path: Path, name: str | None, types: dict[str, Type]) -> dict[str, Any]:
    if path.suffix not in KINDS:
        raise ValueError(f"{path}: an input file ends in {', '.join(KINDS)}")
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file")
    if path.suffix == ".pb":
        found, value = read_proto(path, types.get(name) if name else None)
        return {name or _checked(found or _only(path, types), path, types): value}
    try:
        loaded = np.load(path, allow_pickle=False)
    except (ValueError, EOFError, zipfile.BadZipFile) as error:
        raise ValueError(f"{path}: no readable numpy file ({error})") from None
    if isinstance(loaded, np.ndarray):
        return {name or _only(path, types): loaded}
    with loaded:
        try:
            arrays = {key: loaded[key] for key in loaded.files}
        except ValueError as error:
            raise ValueError(f"{path}: {error}; save strings as numpy text arrays") from None
    if name is not None:
        if len(arrays) != 1 and name not in arrays:
            raise ValueError(f"{path} holds {', '.join(arrays)}; none of them is {name!r}")
        return {name: arrays.get(name, next(iter(arrays.values())))}
    return {_checked(key, path, types): array for key, array in arrays.items()}


def _only(path: Path, types: dict[str, Type]) -> str:
    if len(types) != 1:
        raise ValueError(f"{path}: say which input it is, as NAME={path.name}; inputs are "
                         f"{', '.join(types) or 'none'}")
    return next(iter(types))


def _checked(name: str, path: Path, types: dict[str, Type]) -> str:
    if name not in types:
        raise ValueError(f"{path} holds {name!r}, which is no input; inputs are {', '.join(types) or 'none'}")
    return name


def content(path: Path) -> bytes:
    """What a regular file holds. Raises ValueError for a pipe, a device or a folder, whose reader might wait
    for ever, OSError for one that cannot be read."""
    with open(os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0)), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise ValueError(f"{path}: no regular file")
        return file.read()


def read_proto(path: Path, kind: Type | None) -> tuple[str, Any]:
    """Name and value of a TensorProto file, or of a SequenceProto, OptionalProto or MapProto where `kind`
    says so: an array, a list, None or a dict. Raises ValueError for a file that holds something else or
    points to other files."""
    import onnx
    from google.protobuf.message import DecodeError
    from onnx import numpy_helper

    proto: Any = onnx.TensorProto()
    read: Any = numpy_helper.to_array
    for of, made, reader in ((SequenceType, onnx.SequenceProto, numpy_helper.to_list),
                             (OptionalType, onnx.OptionalProto, numpy_helper.to_optional),
                             (MapType, onnx.MapProto, numpy_helper.to_dict)):
        if isinstance(kind, of):
            proto, read = made(), reader
    data = content(path)
    try:
        proto.ParseFromString(data)
        check_tensors(proto)
        return proto.name, read(proto)
    except (DecodeError, ValueError, TypeError, KeyError, AttributeError, OverflowError, IndexError) as error:
        raise ValueError(f"{path}: no ONNX {type(proto).__name__} ({error})") from None


def check_tensors(proto: Any) -> None:
    """Raise ValueError where a tensor within `proto` keeps its data in another file, has a negative
    dimension, or a name that is no text."""
    for field, value in proto.ListFields():
        if field.name == "external_data":
            raise ValueError("its data lies in another file, which is not followed")
        if field.name == "dims" and min(value) < 0:
            raise ValueError(f"a tensor of shape {list(value)}: no dimension is negative")
        if field.name == "name" and not isinstance(value, str):
            raise ValueError(f"the name {value!r} is not UTF-8")
        if field.type == field.TYPE_MESSAGE:
            for each in [value] if hasattr(value, "ListFields") else value:
                check_tensors(each)


def restored(value: Any, kind: Type) -> Any:
    """`value` with the declared element type where a file could only keep its bytes (bfloat16 and the
    like)."""
    if not isinstance(value, np.ndarray) or not isinstance(kind, TensorType) or kind.elem is None:
        return value
    same_size = value.dtype.kind == "V" and value.dtype.itemsize == kind.elem.numpy.itemsize
    return value.view(kind.elem.numpy) if same_size else value


@dataclass(frozen=True)
class Fed:
    """A feed: all `values`, those that were `made` here, and in a line which sizes had to be found."""

    values: dict[str, Any]
    made: dict[str, Any]
    note: str = ""


def fed(source: Any, inputs: Sequence[Any], files: Sequence[str], shapes: Sequence[str], seed: int,
        attempt: Callable[[dict[str, Any]], Result]) -> tuple[Fed, Result]:
    """Read inputs from `files`, generate the others, and run with them: the feed, and what `attempt` gave for
    it. `source`: the model, as `load` takes it; `shapes`: texts such as `x=1,3,8,8`.

    Where the model refuses the likely sizes of dimensions that are left open, others are tried. Raises what
    `read_feeds`, `parse_shapes` and `generated` raise, and what `attempt` raises for the likely sizes where
    none work.
    """
    given = read_feeds(files, inputs)
    sizes = parse_shapes(shapes, [arg.name for arg in inputs])
    fixed = {**{name: np.shape(value) for name, value in given.items()}, **sizes}
    open_ones = [arg for arg in inputs if arg.name not in given]
    guesses = [_guessed(inputs, fixed, rule) for rule in (likely_shapes, _ones)]
    known = known_to(source, open_ones)

    def feed(chosen: Shapes) -> dict[str, Any]:
        return generated(open_ones, {name: chosen[name] for name in chosen if name not in given}, seed, known)

    feed(guesses[0])
    with hinting([arg.name for arg in open_ones]):
        chosen, result = accepted(source, inputs, guesses,
                                  lambda shapes: attempt({**given, **feed(shapes)}), fixed)
    made = feed(chosen)
    return Fed({**given, **made}, made, told(inputs, guesses[0], chosen)), result


def known_to(source: Any, inputs: Sequence[Any]) -> Known:
    """The categories that a model knows for those of its inputs that may be looked up: texts and integers."""
    kinds = [parse_type(arg.type) for arg in inputs]
    looked_up = any(isinstance(kind, TensorType) and kind.elem is not None and (
        kind.elem is ElementType.STRING or kind.elem.numpy.kind in "iu") for kind in kinds)
    return known_values(source) if looked_up else {}


def generated(inputs: Sequence[Any], shapes: Shapes, seed: int, known: Known | None = None) -> dict[str, Any]:
    """A value for every input: floats drawn from a normal distribution, whole numbers 0 or 1, booleans, short
    texts; those that are `known` to the model in their place.

    `shapes` has the shape of some inputs; names of dimensions it settles hold for the others, and what is
    open then gets a likely size. Raises ValueError for an input whose type cannot be generated, or a shape
    that contradicts the model's.
    """
    rng = np.random.default_rng(seed)
    for arg in inputs:
        if arg.name in shapes:
            _fitting(arg, shapes[arg.name])
    whole = _guessed(inputs, shapes, likely_shapes)
    made = {arg.name: _generate(arg.name, parse_type(arg.type), whole[arg.name], rng) for arg in inputs}
    for name, categories in (known or {}).items():
        if isinstance(made.get(name), np.ndarray):
            made[name] = drawn(categories, made[name], rng)
    return made


def _guessed(inputs: Sequence[Any], fixed: Shapes, rule: Callable[..., list[tuple[int, ...]]]) -> Shapes:
    """A shape for every input: that in `fixed`, else the declared one with its open dimensions by `rule`."""
    settled = {d: size for arg in inputs if arg.name in fixed
               for d, size in zip(arg.shape or (), fixed[arg.name], strict=False) if isinstance(d, str)}
    declared = [[settled.get(d, d) for d in arg.shape or ()] for arg in inputs]
    guessed = rule(declared, any("past" in arg.name for arg in inputs))
    return {arg.name: fixed.get(arg.name, shape) for arg, shape in zip(inputs, guessed, strict=True)}


def _ones(shapes: Sequence[Sequence[Any]], cached: bool) -> list[tuple[int, ...]]:
    return [tuple(d if isinstance(d, int) and d >= 0 else 1 for d in shape) for shape in shapes]


@contextlib.contextmanager
def hinting(made: Iterable[str]) -> Iterator[None]:
    """What fails inside is told how inputs are given in the place of those that were `made`."""
    try:
        yield
    except Exception as error:
        if names := ", ".join(made):
            error.add_note(f"the values of {names} were generated: --shape NAME=1,2,3 gives a shape, --input "
                           "NAME=FILE an array")
        raise


def _fitting(arg: Any, given: tuple[int, ...]) -> None:
    """Raises ValueError where `given` does not fit the declared shape of an input."""
    declared = list(arg.shape or ())
    fits = len(given) == len(declared) and all(
        not isinstance(d, int) or d < 0 or d == g for d, g in zip(declared, given, strict=True))
    if declared and not fits:
        text = ",".join(map(str, given))
        raise ValueError(f"--shape {arg.name}={text} does not fit the declared {declared}")


def _generate(name: str, kind: Type, shape: tuple[int, ...], rng: np.random.Generator) -> Any:
    if isinstance(kind, OptionalType):
        return _generate(name, kind.elem, shape, rng)
    if isinstance(kind, SequenceType):
        return [_generate(name, kind.elem, shape, rng)]
    if not isinstance(kind, TensorType) or kind.elem is None:
        raise ValueError(f"input {name} is a {kind}, which cannot be generated; give --input {name}=FILE")
    dtype = kind.elem.numpy
    if kind.elem is ElementType.STRING:
        return rng.choice(np.array(["a", "bc"], object), shape)
    if kind.elem.floating or dtype.kind == "c":
        return np.asarray(rng.standard_normal(shape)).astype(dtype)
    return np.asarray(rng.integers(0, 2, shape)).astype(dtype)


def parse_shapes(given: Sequence[str], names: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """`name=1,3,224,224` as a mapping. Raises ValueError for another form or a name the model does not
    have."""
    shapes: dict[str, tuple[int, ...]] = {}
    for text in given:
        name, _, dims = text.rpartition("=")
        if name not in names:
            raise ValueError(f"--shape {text}: the model has no input {name!r}; its inputs are "
                             f"{', '.join(names) or 'none'}, each with a whole shape")
        try:
            shapes[name] = tuple(int(d) for d in dims.replace("x", ",").split(",") if d)
        except ValueError:
            raise ValueError(f"--shape {text}: expected NAME=1,3,224,224") from None
        if any(d < 0 for d in shapes[name]):
            raise ValueError(f"--shape {text}: a dimension is negative")
    return shapes
