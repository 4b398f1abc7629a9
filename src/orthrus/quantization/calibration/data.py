"""Ranges and histograms of tensors by name, and their file.

In: what calibration found of each tensor. Out: `TensorData` by name, and a JSON file that says the same. The
invariant: what was saved and loaded is what was saved, types included.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import ItemsView, Iterator, KeysView, ValuesView
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np

from ..refused import InvalidType, InvalidValue

_KIND = "CLS"
_ARRAY = "numpy.array"


class CalibrationMethod(Enum):
    """What a tensor's range is computed from."""

    MinMax = 0
    Entropy = 1
    Percentile = 2
    Distribution = 3


class TensorData:
    """What is known of one tensor, as attributes: `lowest`, `highest`, `avg`, `std` and `hist_edges` are
    numpy values of float32 or float16, `hist` counts by bin, `bins` edges or a number of bins. Raises
    ValueError for other names and types."""

    _allowed = frozenset({"avg", "std", "lowest", "highest", "hist", "hist_edges", "bins"})
    _floats = frozenset({"avg", "std", "lowest", "highest", "hist_edges"})

    def __init__(self, **kwargs: Any) -> None:
        self._attrs = list(kwargs)
        for name, value in kwargs.items():
            if name not in self._allowed:
                raise InvalidValue(f"Unexpected value {name!r} not in {self._allowed}.")
            dtype = getattr(value, "dtype", None)
            if name in self._floats and dtype is None:
                raise InvalidValue(f"Unexpected type {type(value)} for k={name!r}",
                                   cure="give a numpy array or a numpy number")
            if name in self._floats and dtype not in (np.float16, np.float32):
                raise InvalidValue(f"Unexpected dtype {dtype} for k={name!r}", expected="float16 or float32")
            setattr(self, name, value)

    @property
    def range_value(self) -> tuple[Any, Any]:
        """(lowest, highest). Raises AttributeError where one is missing."""
        return self._both("lowest", "highest")

    @property
    def avg_std(self) -> tuple[Any, Any]:
        """(average, standard deviation). Raises AttributeError where one is missing."""
        return self._both("avg", "std")

    def _both(self, first: str, second: str) -> tuple[Any, Any]:
        if not (hasattr(self, first) and hasattr(self, second)):
            raise AttributeError(f"Attributes {first!r} and/or {second!r} missing in {self._attrs}.")
        return getattr(self, first), getattr(self, second)

    def to_dict(self) -> dict[str, Any]:
        """The attributes given, and the name of the class as `CLS`."""
        return {**{name: getattr(self, name) for name in self._attrs}, _KIND: type(self).__name__}

    @classmethod
    def from_dict(cls, d: dict[str, Any]) -> TensorData:
        """What `to_dict` was called on, from its result or from that as JSON."""
        return cls(**{name: cls._read(name, value) for name, value in d.items() if name != _KIND})

    @classmethod
    def _read(cls, name: str, value: Any) -> Any:
        if isinstance(value, dict) and value.get(_KIND) == _ARRAY:
            return np.array(value["data"], dtype=np.dtype(value["dtype"]))
        if name in cls._floats and isinstance(value, int | float):
            return np.array(value, np.float32)
        return value


class TensorsData:
    """`TensorData` by the tensor's name, and the method by which it was found. A tuple stands for (lowest,
    highest), where the method is MinMax, or for (lowest, highest, hist, bins). Raises TypeError for anything
    else."""

    def __init__(self, calibration_method: CalibrationMethod, data: dict[str, Any]) -> None:
        self.calibration_method = calibration_method
        self.data = {name: self._of(name, value) for name, value in data.items()}

    def _of(self, name: str, value: Any) -> TensorData:
        if not isinstance(name, str):
            raise InvalidType(f"Keys must be strings not {type(name)}.")
        if isinstance(value, tuple):
            if len(value) == 2 and self.calibration_method == CalibrationMethod.MinMax:
                return TensorData(lowest=value[0], highest=value[1])
            if len(value) == 4:
                return TensorData(lowest=value[0], highest=value[1], hist=value[2], bins=value[3])
            raise InvalidType(f"Unexpected tuple for {name!r}, it has {len(value)} elements: {value}.")
        if not isinstance(value, TensorData):
            raise InvalidType(f"Values must be TensorData not {type(value)}.")
        return value

    def __iter__(self) -> Iterator[str]:
        return iter(self.data)

    def __contains__(self, key: object) -> bool:
        return key in self.data

    def __getitem__(self, key: str) -> TensorData:
        return self.data[key]

    def __setitem__(self, key: str, value: TensorData) -> None:
        if key not in self.data:
            raise RuntimeError(f"Only an existing tensor can be modified, {key!r} is not.")
        self.data[key] = value

    def keys(self) -> KeysView[str]:
        return self.data.keys()

    def values(self) -> ValuesView[TensorData]:
        return self.data.values()

    def items(self) -> ItemsView[str, TensorData]:
        return self.data.items()

    def to_dict(self) -> dict[str, Any]:
        """Method and data, and the name of the class as `CLS`."""
        return {_KIND: type(self).__name__, "data": self.data, "calibration_method": self.calibration_method}

    @classmethod
    def from_dict(cls, d: dict[str, Any]) -> TensorsData:
        """What `to_dict` was called on, from its result or from that as JSON."""
        method = d["calibration_method"]
        if isinstance(method, dict):
            method = CalibrationMethod[method["value"].rpartition(".")[2]]
        return cls(method, {name: value if isinstance(value, TensorData) else TensorData.from_dict(value)
                            for name, value in d["data"].items()})


class CalibrationCacheEncoder(json.JSONEncoder):
    """JSON of `TensorData`, `TensorsData`, their method, and numpy's arrays and numbers."""

    def default(self, obj: Any) -> Any:
        if isinstance(obj, TensorData | TensorsData):
            return obj.to_dict()
        if isinstance(obj, np.ndarray):
            return {"data": obj.tolist(), "dtype": str(obj.dtype), _KIND: _ARRAY}
        if isinstance(obj, CalibrationMethod):
            return {_KIND: type(obj).__name__, "value": str(obj)}
        if isinstance(obj, np.integer | np.floating):
            return obj.item()
        return super().default(obj)


def save_tensors_data(tensors_data: TensorsData, path: str | os.PathLike[str], *,
                      smooth_quant: bool = False) -> None:
    """Write a JSON file, whole or not at all; folders are made. `smooth_quant`: whether the ranges are those
    of a model whose weights were smoothed, which the file notes."""
    write_json({**tensors_data.to_dict(), "smooth_quant": smooth_quant}, path)


def write_json(content: Any, path: str | os.PathLike[str]) -> None:
    """Write `content` as JSON, whole or not at all."""
    write_whole(json.dumps(content, cls=CalibrationCacheEncoder).encode("utf-8"), path)


def write_whole(content: bytes, path: str | os.PathLike[str]) -> None:
    """Write `content`, whole or not at all; folders are made."""
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, written = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}_")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        os.replace(written, target)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(written)
        raise


def load_tensors_data(path: str | os.PathLike[str]) -> TensorsData:
    """What `save_tensors_data` wrote. Raises FileNotFoundError where there is nothing, ValueError for what is
    no such file."""
    source = Path(path)
    if not source.exists():
        raise FileNotFoundError(f"Calibration cache not found: {source}")
    if not source.is_file():
        raise InvalidValue(f"Calibration cache path is not a file: {source}")
    try:
        return TensorsData.from_dict(json.loads(source.read_text(encoding="utf-8")))
    except (KeyError, TypeError, AttributeError, json.JSONDecodeError) as error:
        raise InvalidValue(f"{source} cannot be read as ranges of tensors: {type(error).__name__}: {error}",
                           expected="a file of save_tensors_data", cure="calibrate again") from error
