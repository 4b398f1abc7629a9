"""Models made ready for quantization: simpler, with shapes, valid, and computing what they did."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from graphs import info, model
from onnx import TensorProto, helper, numpy_helper
from small_networks import ids_of, images_of, network, transformer

import orthrus as ort
from orthrus.errors import NoSuchFile
from orthrus.quantization import preprocess, static_quantize_runner
from orthrus.quantization.quant_utils import model_has_pre_process_metadata
from orthrus.quantization.shape_inference import quant_pre_process


def run(given: Any, feeds: dict[str, Any]) -> list[Any]:
    plain = ort.InferenceSession(given, providers=[("CPUExecutionProvider", {"use_codegen": "0"})])
    return list(plain.run(None, feeds))


def unknown(made: onnx.ModelProto) -> set[str]:
    """What nodes make and no type is stated of."""
    stated = {each.name for each in (*made.graph.value_info, *made.graph.output)
              if each.type.tensor_type.HasField("shape")}
    return {name for node in made.graph.node for name in node.output if name} - stated


@pytest.mark.parametrize("given, feeds", [
    (network(), images_of(np.random.default_rng(0), 2, 32, 24)),
    (transformer(), ids_of(np.random.default_rng(0), 2, 7))], ids=["network", "transformer"])
@pytest.mark.parametrize("left_out", [(), ("optimization",), ("onnx_shape",), ("symbolic_shape",)], ids=str)
def test_prepared_models_are_valid_and_compute_the_same(given: bytes, feeds: dict[str, Any],
                                                        left_out: tuple[str, ...], tmp_path: Path) -> None:
    source = onnx.load_from_string(given)
    before = source.SerializeToString(deterministic=True)
    quant_pre_process(source, tmp_path / "m.onnx", **{f"skip_{step}": True for step in left_out})
    assert source.SerializeToString(deterministic=True) == before
    made = onnx.load(tmp_path / "m.onnx")
    onnx.checker.check_model(made, full_check=True)
    assert model_has_pre_process_metadata(made) and not model_has_pre_process_metadata(source)
    assert made.opset_import[0].version == source.opset_import[0].version
    for found, expected in zip(run(made, feeds), run(given, feeds), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    kinds = [node.op_type for node in made.graph.node]
    assert ("BatchNormalization" in kinds) == ("optimization" in left_out and b"BatchNormalization" in given)
    assert left_out or not unknown(made)
    assert [each.name for each in tmp_path.iterdir()] == ["m.onnx"]


def test_open_dimensions_have_names(tmp_path: Path) -> None:
    quant_pre_process(onnx.load_from_string(transformer()), str(tmp_path / "m.onnx"))
    shapes = {tuple(d.dim_param or d.dim_value for d in each.type.tensor_type.shape.dim)
              for each in onnx.load(tmp_path / "m.onnx").graph.value_info}
    assert ("batch", 4, "time", "time") in shapes


def test_weights_beside_the_model(tmp_path: Path) -> None:
    onnx.save(onnx.load_from_string(network()), tmp_path / "m.onnx", save_as_external_data=True,
              location="m.data", size_threshold=0)
    quant_pre_process(tmp_path / "m.onnx", tmp_path / "out" / "p.onnx", save_as_external_data=True,
                      all_tensors_to_one_file=True, external_data_location="weights.bin",
                      external_data_size_threshold=500)
    assert sorted(each.name for each in (tmp_path / "out").iterdir()) == ["p.onnx", "weights.bin"]
    feeds = images_of(np.random.default_rng(0), 1, 32, 32)
    for found, expected in zip(run(str(tmp_path / "out" / "p.onnx"), feeds), run(network(), feeds),
                               strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_what_cannot_be_prepared_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    target = tmp_path / "out.onnx"
    with pytest.raises(ValueError, match="input_model and output_model_path"):
        quant_pre_process(None, target)
    with pytest.raises(ValueError, match="input_model and output_model_path"):
        quant_pre_process(onnx.load_from_string(network()))
    with pytest.raises(NoSuchFile, match="nowhere"):
        quant_pre_process(tmp_path / "nowhere.onnx", target)
    with pytest.raises(TypeError, match="no such parameter"):
        quant_pre_process(tmp_path / "nowhere.onnx", target, skip_everything=True)
    strange = model([helper.make_node("Strange", ["x"], ["y"], domain="no.such"),
                     helper.make_node("Relu", ["y"], ["z"])], ["x"], [onnx.ValueInfoProto(name="z")],
                    domains={"no.such": 1})
    with pytest.raises(Exception, match="Incomplete symbolic shape inference"):
        quant_pre_process(strange, target)
    assert not list(tmp_path.iterdir())
    onnx.save(onnx.load_from_string(network()), tmp_path / "old.onnx")
    quant_pre_process(output_model_path=target, input_model_path=str(tmp_path / "old.onnx"))
    assert target.exists()


def test_a_model_that_cannot_be_optimized_goes_on_as_it_is(tmp_path: Path,
                                                           caplog: pytest.LogCaptureFixture) -> None:
    """An operator that nobody knows, whose type the model states."""
    strange = model([helper.make_node("Strange", ["x"], ["y"], domain="no.such")], ["x"], ["y"],
                    domains={"no.such": 1})
    quant_pre_process(strange, tmp_path / "m.onnx", guess_output_rank=True)
    assert "skip_optimization" in caplog.text
    assert onnx.load(tmp_path / "m.onnx").graph.node[0].op_type == "Strange"


def test_the_command_line_prepares(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    onnx.save(onnx.load_from_string(network()), tmp_path / "m.onnx")
    source, target = str(tmp_path / "m.onnx"), tmp_path / "p.onnx"
    assert preprocess.main(["--input", source, "--output", str(target), "--skip_optimization", "False"]) == 0
    kinds = {node.op_type for node in onnx.load(target).graph.node}
    assert "BatchNormalization" not in kinds
    assert preprocess.main(["--input", source, "--output", str(target), "--skip_optimization", "True"]) == 0
    assert "BatchNormalization" in {node.op_type for node in onnx.load(target).graph.node}
    skips = ["--skip_optimization", "--skip_onnx_shape", "--skip_symbolic_shape"]
    assert preprocess.main(["--input", source, "--output", str(target), *skips]) == 1
    assert preprocess.main(["--input", source + "x", "--output", str(target)]) == 1
    assert "nothing is to be done" in (err := capsys.readouterr().err) and "m.onnxx" in err


def test_modules_run_as_programs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for module in ("preprocess", "static_quantize_runner"):
        monkeypatch.setattr(sys, "argv", [module, "--help"])
        monkeypatch.delitem(sys.modules, f"orthrus.quantization.{module}")
        with pytest.raises(SystemExit) as end:
            runpy.run_module(f"orthrus.quantization.{module}", run_name="__main__")
        assert end.value.code == 0 and "usage: python -m" in capsys.readouterr().out


@pytest.fixture
def with_data(tmp_path: Path) -> Path:
    """A model with three data sets beside it."""
    weights = np.random.default_rng(0).standard_normal((3, 8)).astype(np.float32)
    made = model([helper.make_node("MatMul", ["x", "w"], ["y"], name="product"),
                  helper.make_node("Relu", ["y"], ["z"], name="relu")],
                 [info("x", shape=["n", 3])], [info("z", shape=["n", 8])], {"w": weights})
    onnx.save(made, tmp_path / "m.onnx")
    for i in (10, 2, 1):
        (tmp_path / f"test_data_set_{i}").mkdir()
        array = np.full((2, 3), i, np.float32)
        (tmp_path / f"test_data_set_{i}" / "input_0.pb").write_bytes(
            numpy_helper.from_array(array, "x").SerializeToString())
    return tmp_path / "m.onnx"


def test_data_sets_come_in_order(with_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = static_quantize_runner.OnnxModelCalibrationDataReader(with_data)
    assert [item["x"][0, 0] for item in reader] == [1, 2, 10] and reader.get_next() is None
    monkeypatch.chdir(with_data.parent)
    assert len(list(static_quantize_runner.OnnxModelCalibrationDataReader("m.onnx"))) == 3


@pytest.mark.parametrize("flags, kinds", [
    ([], {"QuantizeLinear", "DequantizeLinear", "MatMul"}),
    (["--quant_format", "qoperator", "--calibration_method", "entropy"],
     {"QuantizeLinear", "QLinearMatMul", "DequantizeLinear"}),
    (["--nodes_to_exclude", "product", "--per_channel", "--op_per_channel_axis", "MatMul", "1"], {"MatMul"})])
def test_the_runner_quantizes(with_data: Path, flags: list[str], kinds: set[str]) -> None:
    target = with_data.parent / "q.onnx"
    assert static_quantize_runner.main(["-i", str(with_data), "-o", str(target), *flags]) == 0
    made = onnx.load(target)
    assert kinds <= {node.op_type for node in made.graph.node}
    feeds = {"x": np.full((2, 3), 2, np.float32)}
    (found,), (expected,) = run(str(target), feeds), run(str(with_data), feeds)
    np.testing.assert_allclose(found, expected, atol=0.1 * np.abs(expected).max())


def test_the_runner_says_what_is_wrong(with_data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = str(with_data.parent / "q.onnx")
    overrides = with_data.parent / "overrides.json"
    for content, what in (("{", "cannot be read as overrides"), ("[1]", "cannot be read as overrides")):
        overrides.write_text(content)
        assert static_quantize_runner.main(["-i", str(with_data), "-o", target, "--tensor_quant_overrides",
                                            str(overrides)]) == 1
        assert what in capsys.readouterr().err
    overrides.write_text('{"x": [{"scale": 0.5, "zero_point": 3}]}')
    given = static_quantize_runner.get_tensor_quant_overrides(overrides)
    assert given["x"][0]["scale"].dtype == np.float32
    assert static_quantize_runner.main(["-i", str(with_data), "-o", target, "--op_per_channel_axis", "MatMul",
                                        "one"]) == 1
    assert "is no number" in capsys.readouterr().err
    for each in with_data.parent.glob("test_data_set_*/input_0.pb"):
        each.unlink()
    assert static_quantize_runner.main(["-i", str(with_data), "-o", target]) == 1
    for each in with_data.parent.glob("test_data_set_*"):
        each.rmdir()
    assert static_quantize_runner.main(["-i", str(with_data), "-o", target]) == 1
    assert "no calibration data" in capsys.readouterr().err
    assert not Path(target).exists()


def test_old_models_are_brought_to_a_version_that_can_be_quantized(tmp_path: Path) -> None:
    old = model([helper.make_node("Relu", ["x"], ["y"])], ["x"], ["y"], opset=9, ir_version=4)
    quant_pre_process(old, tmp_path / "m.onnx")
    made = onnx.load(tmp_path / "m.onnx")
    onnx.checker.check_model(made, full_check=True)
    assert made.opset_import[0].version == 11 and old.opset_import[0].version == 9
    assert made.graph.output[0].type.tensor_type.elem_type == TensorProto.FLOAT


@pytest.mark.parametrize("step", ["optimization", "onnx_shape", "symbolic_shape"])
def test_steps_are_left_out_by_true_and_false(step: str, capsys: pytest.CaptureFixture[str]) -> None:
    files = ["--input", "a.onnx", "--output", "b.onnx"]
    for text, given in ((["tRuE"], True), (["1"], True), ([], True), (["fAlSe"], False), (["0"], False)):
        assert getattr(preprocess.parse_arguments([*files, f"--skip_{step}", *text]), f"skip_{step}") is given
    with pytest.raises(SystemExit):
        preprocess.parse_arguments([*files, f"--skip_{step}", "invalid"])
    assert f"argument --skip_{step}: Expected true, false, 1, or 0" in capsys.readouterr().err
