"""TensorRT's calibration table: written and read as onnxruntime does it."""

from __future__ import annotations

import importlib
from pathlib import Path

import numpy as np
import pytest

flatbuffers = pytest.importorskip("flatbuffers")


def written(package: str, count: int, folder: Path) -> bytes:
    """The table of some tensors, by a package's tools."""
    folder.mkdir()
    kind = importlib.import_module(f"{package}.quantization.calibrate").TensorData
    data = {f"t{i}": kind(lowest=np.float32(-i), highest=np.float32(i * 2.5)) for i in range(count)}
    importlib.import_module(f"{package}.quantization.quant_utils").write_calibration_table(data, str(folder))
    return (folder / "calibration.flatbuffers").read_bytes()


@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_table_is_written_and_read_as_theirs(count: int, tmp_path: Path) -> None:
    raw = written("orthrus", count, tmp_path / "ours")
    packages = ["orthrus"]
    if importlib.util.find_spec("onnxruntime"):
        packages.append("onnxruntime")
        assert raw == written("onnxruntime", count, tmp_path / "theirs")
    for package in packages:
        tables = importlib.import_module(f"{package}.quantization.CalTableFlatBuffers.TrtTable")
        table = tables.TrtTable.GetRootAsTrtTable(raw)
        assert table.DictLength() == count
        rows = {(row := table.Dict(i)).Key(): float(row.Value()) for i in range(count)}
        assert rows == {f"t{i}".encode(): i * 2.5 for i in range(count)}


def test_what_was_not_written_is_none() -> None:
    from orthrus.quantization.CalTableFlatBuffers import KeyValue, TrtTable

    builder = flatbuffers.Builder()
    TrtTable.Start(builder)
    builder.Finish(TrtTable.End(builder))
    table = TrtTable.TrtTable.GetRootAs(builder.Output())
    assert table.DictIsNone() and table.DictLength() == 0 and table.Dict(0) is None
    builder = flatbuffers.Builder()
    KeyValue.Start(builder)
    builder.Finish(KeyValue.End(builder))
    row = KeyValue.KeyValue.GetRootAsKeyValue(builder.Output())
    assert row.Key() is None and row.Value() is None
