"""Programs as people write them for onnxruntime's tools, run with this package under its name."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from orthrus.demo import MODEL, samples

ALIAS = """import sys
import orthrus, orthrus.quantization
sys.modules["onnxruntime"] = orthrus
sys.modules["onnxruntime.quantization"] = orthrus.quantization
"""
OURS = """
loaded = [name for name in sys.modules if name.startswith("onnxruntime")]
assert all(sys.modules[name].__name__.startswith("orthrus") for name in loaded), loaded
assert len(loaded) > 2
"""

IMAGES = """
import argparse, os, time
import numpy as np
import onnxruntime
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static


class FolderDataReader(CalibrationDataReader):
    def __init__(self, calibration_image_folder: str, model_path: str):
        self.enum_data = None
        session = onnxruntime.InferenceSession(model_path, None)
        (_, _, height, width) = session.get_inputs()[0].shape
        names = sorted(os.listdir(calibration_image_folder))
        self.nhwc_data_list = [np.load(os.path.join(calibration_image_folder, n)).reshape(1, 1, height, width)
                               for n in names]
        self.input_name = session.get_inputs()[0].name
        self.datasize = len(self.nhwc_data_list)

    def get_next(self):
        if self.enum_data is None:
            self.enum_data = iter([{self.input_name: nhwc_data} for nhwc_data in self.nhwc_data_list])
        return next(self.enum_data, None)

    def rewind(self):
        self.enum_data = None


def benchmark(model_path):
    session = onnxruntime.InferenceSession(model_path)
    input_name = session.get_inputs()[0].name
    input_data = np.zeros((1, 1, 8, 8), np.float32)
    start = time.perf_counter()
    for _ in range(3):
        session.run([], {input_name: input_data})
    return time.perf_counter() - start


def get_args(argv):
    parser = argparse.ArgumentParser()
    parser.add_argument("--input_model", required=True)
    parser.add_argument("--output_model", required=True)
    parser.add_argument("--calibrate_dataset", default="./test_images")
    parser.add_argument("--quant_format", default=QuantFormat.QDQ, type=QuantFormat.from_string,
                        choices=list(QuantFormat))
    parser.add_argument("--per_channel", default=False, type=bool)
    return parser.parse_args(argv)


import runpy
sys.argv = ["preprocess", "--input", "model.onnx", "--output", "prepared.onnx"]
try:
    runpy.run_module("onnxruntime.quantization.preprocess", run_name="__main__", alter_sys=True)
except SystemExit as end:
    assert not end.code
for quant_format in ("QDQ", "QOperator"):
    args = get_args(["--input_model", "prepared.onnx", "--output_model", f"{quant_format}.onnx",
                     "--calibrate_dataset", "images", "--quant_format", quant_format])
    reader = FolderDataReader(args.calibrate_dataset, args.input_model)
    quantize_static(args.input_model, args.output_model, reader, quant_format=args.quant_format,
                    per_channel=args.per_channel, weight_type=QuantType.QInt8)
    benchmark(args.input_model), benchmark(args.output_model)
"""

TEXT = """
import os
import numpy as np
import onnx
import onnxruntime as ort
from onnxruntime.quantization import quantize_dynamic, QuantType
from onnxruntime.quantization.quant_utils import QuantizationMode
import onnxruntime.quantization.quantize

quantize_dynamic("model.onnx", "dynamic.onnx", weight_type=QuantType.QInt8,
                 extra_options={"MatMulConstBOnly": True})
assert os.path.getsize("dynamic.onnx") < os.path.getsize("model.onnx") / 2
kinds = {node.op_type for node in onnx.load("dynamic.onnx").graph.node}
assert "MatMulInteger" in kinds and "DynamicQuantizeLinear" in kinds, kinds
options = ort.SessionOptions()
options.intra_op_num_threads = 1
options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
feed = {"tokens": np.random.default_rng(0).normal(size=(1, 8, 32)).astype(np.float32)}
a, b = (ort.InferenceSession(path, options, providers=["CPUExecutionProvider"]).run(None, feed)[0]
        for path in ("model.onnx", "dynamic.onnx"))
assert np.linalg.norm(a - b) < 0.05 * np.linalg.norm(a)
"""

PARTS = """
from pathlib import Path
import numpy as np
import onnx
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantizationMode, QuantType
from onnxruntime.quantization.calibrate import CalibrationMethod, create_calibrator
from onnxruntime.quantization.qdq_quantizer import QDQQuantizer
from onnxruntime.quantization.registry import IntegerOpsRegistry, QDQRegistry, QLinearOpsRegistry
from onnxruntime.quantization.quant_utils import load_model_with_shape_infer
from onnxruntime.capi.onnxruntime_pybind11_state import InvalidArgument


class Reader(CalibrationDataReader):
    def __init__(self):
        self.left = iter([{"tokens": np.random.default_rng(i).normal(size=(1, 8, 32)).astype(np.float32)}
                          for i in range(4)])

    def get_next(self):
        return next(self.left, None)


operators = sorted(set(QDQRegistry) & {"MatMul", "Add", "Relu"})
calibrator = create_calibrator(Path("model.onnx"), operators, augmented_model_path="augmented.onnx",
                               calibrate_method=CalibrationMethod.MinMax)
calibrator.collect_data(Reader())
ranges = calibrator.compute_data()
quantizer = QDQQuantizer(load_model_with_shape_infer(Path("model.onnx")), per_channel=False,
                         reduce_range=False, weight_qType=QuantType.QInt8,
                         activation_qType=QuantType.QUInt8, tensors_range=ranges, nodes_to_quantize=[],
                         nodes_to_exclude=[], op_types_to_quantize=operators,
                         extra_options={"ActivationSymmetric": False})
quantizer.quantize_model()
quantizer.model.save_model_to_file("parts.onnx", False)
assert "QuantizeLinear" in {node.op_type for node in onnx.load("parts.onnx").graph.node}
try:
    create_calibrator(Path("model.onnx"), calibrate_method=7)
except ValueError:
    pass
"""


def feed_forward() -> onnx.ModelProto:
    """Two products and a Relu between them, over rows of 32."""
    rng = np.random.default_rng(1)
    weights = [numpy_helper.from_array(rng.normal(0, 0.2, s).astype(np.float32), n)
               for n, s in (("up", (32, 128)), ("down", (128, 32)), ("bias", (128,)))]
    nodes = [helper.make_node("MatMul", ["tokens", "up"], ["a"], "n0"),
             helper.make_node("Add", ["a", "bias"], ["b"], "n1"),
             helper.make_node("Relu", ["b"], ["c"], "n2"),
             helper.make_node("MatMul", ["c", "down"], ["out"], "n3")]
    infos = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, "length", 32])
             for n in ("tokens", "out")]
    return helper.make_model(helper.make_graph(nodes, "g", infos[:1], infos[1:], weights),
                             opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def run(program: str, folder: Path) -> None:
    done = subprocess.run([sys.executable, "-c", program], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]


PACKAGES = ["orthrus", pytest.param("onnxruntime", marks=pytest.mark.slow)]
"""With onnxruntime itself the programs are held to be what runs there."""


def under(package: str, program: str) -> str:
    if package == "onnxruntime":
        pytest.importorskip("onnxruntime")
        return "import sys\n" + program
    return ALIAS + program + OURS


@pytest.mark.parametrize("package", PACKAGES)
def test_images(package: str, tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    images, labels = samples()
    for number, image in enumerate(images[:24]):
        np.save(tmp_path / "images" / f"{number:02}.npy", image)
    (tmp_path / "model.onnx").write_bytes(MODEL.read_bytes())
    run(under(package, IMAGES), tmp_path)
    session = importlib.import_module(package).InferenceSession
    for name in ("QDQ", "QOperator"):
        found = session(str(tmp_path / f"{name}.onnx")).run(["label"], {"image": images[100:]})[0]
        assert np.mean(found == labels[100:]) > 0.95, name


@pytest.mark.parametrize("package", PACKAGES)
@pytest.mark.parametrize("program", [TEXT, PARTS], ids=["text", "parts"])
def test_products(program: str, package: str, tmp_path: Path) -> None:
    onnx.save(feed_forward(), tmp_path / "model.onnx")
    run(under(package, program), tmp_path)
