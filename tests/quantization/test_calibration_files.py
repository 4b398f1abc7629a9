"""Files of calibration: ranges as JSON, and the tables that TensorRT reads, as onnxruntime writes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from orthrus.errors import InvalidArgument
from orthrus.quantization.calibrate import (
    CalibrationMethod,
    TensorData,
    TensorsData,
    load_tensors_data,
    save_tensors_data,
)
from orthrus.quantization.calibration.table import read_calibration_table, write_calibration_table
from orthrus.quantization.CalTableFlatBuffers import TrtTable

NAMES = ["x", "näher", "a/b.1", "with a space", "x" * 40]


def ranges(count: int = 5, kind: Any = TensorsData, method: Any = CalibrationMethod.MinMax) -> Any:
    rng = np.random.default_rng(count)
    return kind(method, {name: (np.array([-rng.random()], np.float32), np.float32(rng.random()))
                         for name in NAMES[:count]})


def histograms() -> TensorsData:
    edges = np.linspace(-1, 1, 5, dtype=np.float32)
    return TensorsData(CalibrationMethod.Entropy, {
        "t": (np.float16(-0.3), np.float16(0.7), np.arange(4), edges),
        "d": TensorData(avg=np.array(0.1, np.float32), std=np.array(2, np.float32), hist=np.arange(4),
                        hist_edges=edges, lowest=edges.min(), highest=edges.max())})


def peer() -> Any:
    return pytest.importorskip("onnxruntime.quantization.calibrate")


def agree(found: Any, expected: Any) -> None:
    assert found.calibration_method.name == expected.calibration_method.name
    assert list(found.keys()) == list(expected.keys())
    for name, data in expected.items():
        other = found[name].to_dict()
        for key, value in data.to_dict().items():
            np.testing.assert_array_equal(other[key], value)
            if isinstance(value, np.ndarray):
                assert other[key].dtype == value.dtype


@pytest.mark.parametrize("given", [ranges(), histograms(), ranges(0)])
def test_what_is_saved_is_loaded(given: TensorsData, tmp_path: Path) -> None:
    path = tmp_path / "new folder" / "ranges.json"
    save_tensors_data(given, path, smooth_quant=True)
    agree(load_tensors_data(path), given)
    assert [each.name for each in path.parent.iterdir()] == ["ranges.json"]


def test_files_of_either_side_are_read_by_the_other(tmp_path: Path) -> None:
    it = peer()
    save_tensors_data(ranges(), tmp_path / "ours.json")
    it.save_tensors_data(ranges(5, it.TensorsData, it.CalibrationMethod.MinMax), tmp_path / "theirs.json")
    assert (tmp_path / "ours.json").read_bytes() == (tmp_path / "theirs.json").read_bytes()
    agree(it.load_tensors_data(tmp_path / "ours.json"), ranges())
    agree(load_tensors_data(tmp_path / "theirs.json"), ranges())


@pytest.mark.parametrize("count", range(6))
def test_tables_are_theirs_byte_for_byte(count: int, tmp_path: Path) -> None:
    it = peer()
    from onnxruntime.quantization.quant_utils import write_calibration_table as theirs

    for folder in ("ours", "theirs"):
        (tmp_path / folder).mkdir()
    write_calibration_table(ranges(count), tmp_path / "ours")
    theirs(ranges(count, it.TensorsData, it.CalibrationMethod.MinMax), str(tmp_path / "theirs"))
    written = sorted(each.name for each in (tmp_path / "ours").iterdir())
    assert written == ["calibration.cache", "calibration.flatbuffers", "calibration.json"]
    for name in written:
        assert (tmp_path / "ours" / name).read_bytes() == (tmp_path / "theirs" / name).read_bytes(), name


def test_tables_are_read_back(tmp_path: Path) -> None:
    given = ranges()
    write_calibration_table(given, tmp_path)
    agree(read_calibration_table(tmp_path / "calibration.json"), given)
    highest = {name: float(data.highest) for name, data in given.items()}
    assert read_calibration_table(tmp_path / "calibration.flatbuffers") == highest
    assert read_calibration_table(tmp_path / "calibration.cache") == highest
    write_calibration_table(dict(given.items()), tmp_path)
    assert list(read_calibration_table(tmp_path / "calibration.json")) == NAMES


def test_the_reading_classes_of_the_binary_form() -> None:
    table = TrtTable.TrtTable.GetRootAsTrtTable(bytes([8, 0, 0, 0, 4, 0, 4, 0, 4, 0, 0, 0]))
    assert table.DictIsNone() and table.DictLength() == 0 and table.Dict(0) is None


def test_damaged_tables_are_refused(tmp_path: Path) -> None:
    """However a byte is changed, or the end cut off: what comes is a table or an error of the kind."""
    write_calibration_table(ranges(2), tmp_path)
    path = tmp_path / "calibration.flatbuffers"
    content, rng = path.read_bytes(), np.random.default_rng(0)
    refused = 0
    for _ in range(300):
        damaged = bytearray(content[:rng.integers(1, len(content) + 1)])
        damaged[rng.integers(len(damaged))] ^= 1 << rng.integers(8)
        path.write_bytes(damaged)
        try:
            read_calibration_table(path)
        except InvalidArgument:
            refused += 1
    assert refused > 100
    path.with_suffix(".json").write_text("[]")
    with pytest.raises(ValueError, match="cannot be read as a calibration table"):
        read_calibration_table(path.with_suffix(".json"))


def test_ranges_by_channel_and_other_values_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    wide = TensorData(lowest=np.zeros(3, np.float32), highest=np.ones(3, np.float32))
    for given, kind in (({"x": wide}, ValueError), ({"x": (0, 1)}, TypeError)):
        with pytest.raises(kind, match="x"):
            write_calibration_table(given, tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("content", ["{}", "[1]", "{", '{"data": {"x": {"lowest": "a"}}}'])
def test_other_files_are_no_ranges(content: str, tmp_path: Path) -> None:
    path = tmp_path / "ranges.json"
    path.write_text(content)
    with pytest.raises(ValueError, match="cannot be read as ranges"):
        load_tensors_data(path)
    with pytest.raises(FileNotFoundError, match="not found"):
        load_tensors_data(tmp_path / "nowhere.json")
    with pytest.raises(ValueError, match="not a file"):
        load_tensors_data(tmp_path)


@pytest.mark.parametrize("given, kind, what", [
    ({"least": 1}, ValueError, "Unexpected value"), ({"lowest": 1.0}, ValueError, "Unexpected type"),
    ({"lowest": np.float64(1)}, ValueError, "Unexpected dtype")])
def test_tensor_data_takes_what_it_names(given: dict[str, Any], kind: type[Exception], what: str) -> None:
    with pytest.raises(kind, match=what):
        TensorData(**given)
    with pytest.raises(AttributeError, match="'lowest' and/or 'highest' missing"):
        TensorData(avg=np.float32(1)).range_value  # noqa: B018
    for data in ({1: (0, 1)}, {"x": (0, 1, 2)}, {"x": 3}):
        with pytest.raises(TypeError):
            TensorsData(CalibrationMethod.MinMax, data)  # type: ignore[arg-type]
    it = ranges()
    with pytest.raises(RuntimeError, match="existing"):
        it["new"] = it["x"]
    assert "x" in it and list(it) == NAMES
