"""Test data beside a model: sets of inputs and expected outputs in ONNX's protobuf files, read and written.

In: a model's path. Out: a `DataSet` for each set, values under the model's own names. A set is a folder
beside the model with `input_0.pb`, `input_1.pb`, ... and `output_0.pb`, ... (`input0.pb` as well), or with
`inputs.pb` and `outputs.pb`, which hold several values each; or it is files beside the model itself that
begin with the model's name, `model_input_0.pb`, `model_output_0.pb`. Numbers have no gaps. The declared type
of a value says which message its file holds.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ...ir import ElementType, MapType, OptionalType, SequenceType, TensorType, Type, parse_type
from ...records import dataclass
from ..cli import feeds

SIDES = ("input", "output")


@dataclass(frozen=True)
class DataSet:
    """Inputs and expected outputs by name: arrays, lists (sequences), dicts (maps), None (empty
    optionals)."""

    path: Path
    inputs: dict[str, Any]
    outputs: dict[str, Any]


@dataclass(frozen=True)
class DataFolder:
    """Where a data set lies: the files of `folder` whose names begin with `prefix`."""

    folder: Path
    prefix: str = ""

    @property
    def name(self) -> str:
        return self.prefix.rstrip("_") or self.folder.name


@dataclass(frozen=True)
class Signature:
    """What a model file declares: types by name, None where it leaves one open, and which inputs have a value
    of their own; tensors' shapes, open dimensions as 1; the version of ONNX's operators, 0 where it imports
    none; the operators of the graph."""

    inputs: dict[str, Type | None]
    outputs: dict[str, Type | None]
    shapes: dict[str, tuple[int, ...]]
    weights: frozenset[str]
    opset: int
    operators: tuple[str, ...]


def signature(model: Path) -> Signature:
    """Read what a model declares. Raises NoSuchFile, InvalidProtobuf or Fail for a file that is no model."""
    from ...limits import DEFAULT
    from ...load.source import open_source

    found = open_source(str(model), DEFAULT, None).model
    graph = found.graph
    weights = {t.name for t in graph.initializer} | {t.values.name for t in graph.sparse_initializer}
    shapes = {v.name: tuple(d.dim_value if d.HasField("dim_value") and d.dim_value >= 0 else 1
                            for d in v.type.tensor_type.shape.dim) for v in graph.input}
    opset = max((o.version for o in found.opset_import if o.domain in ("", "ai.onnx")), default=0)
    return Signature({v.name: _type(v) for v in graph.input}, {v.name: _type(v) for v in graph.output},
                     shapes, frozenset(weights), opset, tuple(node.op_type for node in graph.node))


def _type(info: Any) -> Type | None:
    from ..cli.describe import type_text

    try:
        return parse_type(type_text(info.type))
    except (KeyError, ValueError):
        return None


def places(model: Path) -> list[DataFolder]:
    """The data sets of a model by name, unread: those in folders, and else those beside it.

    A folder counts where it holds a file such as `input_0.pb` or `outputs.pb`, or is called `test_data...`.
    """
    def number(folder: Path) -> list[Any]:
        return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", folder.name)]

    try:
        folders = [f for f in model.parent.iterdir() if f.is_dir() and not f.name.startswith(".")]
    except OSError:
        folders = []
    found = [DataFolder(f) for f in sorted(folders, key=number)
             if f.name.startswith("test_data") or any(f.glob("input*.pb")) or any(f.glob("output*.pb"))]
    beside = DataFolder(model.parent, f"{model.stem}_")
    if not found and any(any(model.parent.glob(f"{_literal(beside.prefix)}{side}*.pb")) for side in SIDES):
        return [beside]
    return found


def data_sets(model: Path | str) -> list[DataSet]:
    """Every data set of a model, read. Raises ValueError for a file that does not fit the model, OSError for
    one that cannot be read, and what `signature` raises."""
    declared = signature(Path(model))
    return [read(place, declared) for place in places(Path(model))]


def read(place: DataFolder, declared: Signature) -> DataSet:
    """One data set. A value goes by the name in its file where all names are the model's, else by its number.

    Where expected outputs lie beside the model without inputs, these are what ONNX's own test runner feeds:
    float tensors that rise from 0 to 1. Raises ValueError and OSError as `data_sets` does.
    """
    inputs = _read_side(place, "input", declared.inputs, declared.weights)
    outputs = _read_side(place, "output", declared.outputs, frozenset())
    if place.prefix and outputs and not inputs:
        inputs = {name: _rising(name, kind, declared.shapes[name])
                  for name, kind in declared.inputs.items() if name not in declared.weights}
    return DataSet(place.folder, inputs, outputs)


def _read_side(place: DataFolder, side: str, types: dict[str, Type | None],
               weights: frozenset[str]) -> dict[str, Any]:
    files = _numbered(place, side)
    together = place.folder / f"{place.prefix}{side}s.pb"
    if not files and together.is_file():
        from .ml_data import read_messages

        values = [(name, value, together) for name, value in read_messages(together)]
        names = _names(len(values), types, weights)
    else:
        names = _names(len(files), types, weights)
        kinds = [types[name] for name in names] + [None] * len(files)
        values = [(*feeds.read_proto(file, kind), file) for file, kind in zip(files, kinds, strict=False)]
    given = [name for name, *_ in values]
    if len(set(given)) == len(given) and all(name in types for name in given):
        names = given
    if len(values) > len(names):
        raise ValueError(f"{place.folder}: {len(values)} {side}s for a model that has "
                         f"{len(names)}: {', '.join(names) or 'none'}")
    made: dict[str, Any] = {}
    for name, (_, value, file) in zip(names, values, strict=False):
        kind = types[name]
        made[name] = value if kind is None else feeds.restored(_fitting(value, kind, name, file), kind)
    return made


def _names(count: int, types: dict[str, Type | None], weights: frozenset[str]) -> list[str]:
    """The names that `count` values go by: those of all inputs, or of all that have no value of their own."""
    return list(types) if count == len(types) else [name for name in types if name not in weights]


def _fitting(value: Any, kind: Type, name: str, file: Path) -> Any:
    form: type = {SequenceType: list, MapType: dict}.get(type(kind), np.ndarray)
    if not isinstance(kind, OptionalType) and not isinstance(value, form):
        raise ValueError(f"{file}: holds a {type(value).__name__} for {name}, which is a {kind}")
    return value


def _numbered(place: DataFolder, side: str) -> list[Path]:
    """The files of one side in order. Raises ValueError for a number that is none, or missing."""
    found: dict[int, Path] = {}
    pattern = re.compile(rf"{side}_?(\d+)\.pb")
    for file in place.folder.glob(f"{_literal(place.prefix)}{side}*.pb"):
        rest = file.name[len(place.prefix):]
        if rest == f"{side}s.pb":
            continue
        match = pattern.fullmatch(rest)
        if match is None or int(match[1]) in found:
            raise ValueError(f"illegal {side} file name:{file}; expected {side}_0.pb, {side}_1.pb, ...")
        found[int(match[1])] = file
    for i in range(len(found)):
        if i not in found:
            raise ValueError(f"illegal {side} file name:{found[max(found)]}; there is no "
                             f"{place.prefix}{side}_{i}.pb before it")
    return [found[i] for i in range(len(found))]


def _literal(text: str) -> str:
    """`text` as a pattern that matches nothing else."""
    return re.sub(r"([*?[])", r"[\1]", text)


def _rising(name: str, kind: Type | None, shape: tuple[int, ...]) -> np.ndarray:
    if not isinstance(kind, TensorType) or kind.elem is not ElementType.FLOAT:
        raise ValueError(f"there is no file for input {name}; only float tensors can do without")
    count = int(np.prod(shape))
    return (np.arange(count).reshape(shape) / max(count, 1)).astype(np.float32)


def write(folder: Path, inputs: Mapping[str, Any], outputs: Mapping[str, Any] | None = None,
          types: Mapping[str, Type | None] | None = None) -> None:
    """Write a data set: `input_0.pb`, ... and `output_0.pb`, ... in the order of the mappings.

    `types` says what is an optional; other values show what they are. Raises ValueError for a value that
    ONNX has no message for.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for side, values in zip(SIDES, (inputs, outputs or {}), strict=True):
        write_values(folder, f"{side}_", values.items(), types or {})


def write_values(folder: Path, prefix: str, values: Iterable[tuple[str, Any]],
                 types: Mapping[str, Type | None]) -> list[Path]:
    """Write `folder/<prefix>0.pb` and so on, one per value. Raises ValueError as `write` does."""
    files = []
    for i, (name, value) in enumerate(values):
        files.append(folder / f"{prefix}{i}.pb")
        try:
            message = _message(value, name, types.get(name))
        except (TypeError, ValueError, KeyError) as error:
            raise ValueError(f"{name} cannot be written as ONNX test data: {error}") from None
        files[-1].write_bytes(message.SerializeToString())
    return files


def _message(value: Any, name: str, kind: Type | None) -> Any:
    from onnx import numpy_helper

    if isinstance(kind, OptionalType) or value is None:
        return numpy_helper.from_optional(_plain(value), name)
    if isinstance(value, dict):
        return numpy_helper.from_dict(value, name)
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return numpy_helper.from_list(_plain(value), name)
    return numpy_helper.from_array(np.asarray(value), name)


def _plain(value: Any) -> Any:
    if isinstance(value, tuple | list):
        return [_plain(each) for each in value]
    return value if value is None or isinstance(value, dict) else np.asarray(value)
