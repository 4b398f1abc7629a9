"""Calibration tables in the forms that TensorRT and people read.

In: ranges by tensor. Out: `calibration.json`, `calibration.flatbuffers` and `calibration.cache` in a folder;
and back. The last two hold a number for each tensor, the higher end of its range.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np

from ..CalTableFlatBuffers import KeyValue, TrtTable
from ..CalTableFlatBuffers.binary import Builder
from ..refused import InvalidType, InvalidValue
from .data import TensorData, TensorsData, write_json, write_whole

_NAME = "calibration"


def write_calibration_table(calibration_cache: Any, dir: str | os.PathLike[str] = ".") -> None:
    """Write the three files of `calibration_cache`, `TensorsData` or a dict of `TensorData` by tensor, into
    the folder `dir`. Raises TypeError for other values, ValueError for ranges by channel, which tables do not
    hold."""
    rows = {name: _limit(name, calibration_cache[name]) for name in sorted(calibration_cache.keys())}
    folder = Path(dir)
    write_json(calibration_cache, folder / f"{_NAME}.json")
    write_whole(_packed(rows), folder / f"{_NAME}.flatbuffers")
    text = "".join(f"{name} {limit}\n" for name, limit in rows.items())
    write_whole(text.encode("utf-8"), folder / f"{_NAME}.cache")


def read_calibration_table(path: str | os.PathLike[str]) -> Any:
    """What a file of `write_calibration_table` says: of JSON what was given to it, of the other two forms a
    dict of numbers by tensor. Raises ValueError for another file."""
    source = Path(path)
    content = source.read_bytes()
    try:
        if source.suffix == ".json":
            found = json.loads(content)
            return TensorsData.from_dict(found) if "calibration_method" in found else {
                name: TensorData.from_dict(data) for name, data in found.items()}
        if source.suffix == ".flatbuffers":
            return dict(_rows(content))
        rows = (line.rpartition(" ") for line in content.decode("utf-8").splitlines())
        return {name: float(limit) for name, _, limit in rows}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidValue(f"{source} cannot be read as a calibration table: {error}",
                           expected="a .json, .flatbuffers or .cache file of write_calibration_table"
                           ) from error


def _limit(name: str, data: Any) -> str:
    if not isinstance(data, TensorData):
        raise InvalidType(f"what is known of {name} is no TensorData", found=type(data).__name__,
                          cure="give what compute_data() returns")
    given = data.to_dict()
    ends = [np.asarray(given.get(side, 0)) for side in ("highest", "lowest")]
    if any(end.size != 1 for end in ends):
        raise InvalidValue(f"{name} has a range by channel", node=name, expected="a range for the tensor",
                           cure="calibrate with per_channel=False")
    return str(max(float(end.item()) for end in ends))


def _packed(rows: dict[str, str]) -> bytes:
    builder, places = Builder(), []
    for name, limit in rows.items():
        key, value = builder.CreateString(name), builder.CreateString(limit)
        KeyValue.Start(builder)
        KeyValue.AddKey(builder, key)
        KeyValue.AddValue(builder, value)
        places.append(KeyValue.End(builder))
    TrtTable.StartDictVector(builder, len(places))
    for place in places:
        builder.PrependUOffsetTRelative(place)
    vector = builder.EndVector()
    TrtTable.Start(builder)
    TrtTable.AddDict(builder, vector)
    builder.Finish(TrtTable.End(builder))
    return builder.Output()


def _rows(content: bytes) -> Any:
    table = TrtTable.TrtTable.GetRootAs(content)
    for j in range(table.DictLength()):
        row = table.Dict(j)
        assert row is not None
        yield (row.Key() or b"").decode("utf-8"), float(row.Value() or b"0")
