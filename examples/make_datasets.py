"""Make the models of `orthrus.datasets`.

In: scikit-learn's iris flowers (150 of three species). Out: `sigmoid.onnx`, `mul_1.onnx` and
`logreg_iris.onnx` in the package's folder of data sets, or in the folder given as the one argument.

    python examples/make_datasets.py [FOLDER]
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnx
from onnx import NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper
from sklearn.datasets import load_iris
from sklearn.linear_model import LogisticRegression

TARGET = Path(__file__).resolve().parent.parent / "src" / "orthrus" / "datasets"
PETAL = slice(2, 4)


def floats(name: str, *shape: int) -> ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)


def model(name: str, nodes: list[NodeProto], inputs: list[ValueInfoProto], outputs: list[ValueInfoProto],
          weights: list[TensorProto] | None = None, doc: str = "") -> onnx.ModelProto:
    """A checked model of these nodes, in versions of the format that runtimes of many years read."""
    graph = helper.make_graph(nodes, name, inputs, outputs, weights or [], doc_string=doc)
    made = helper.make_model(graph, ir_version=8, producer_name="make_datasets.py", opset_imports=[
        helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 1)])
    onnx.checker.check_model(made, full_check=True)
    return made


def sigmoid() -> onnx.ModelProto:
    return model("sigmoid", [helper.make_node("Sigmoid", ["x"], ["y"])],
                 [floats("x", 3, 4, 5)], [floats("y", 3, 4, 5)])


def product() -> onnx.ModelProto:
    weight = numpy_helper.from_array(np.arange(1, 7, dtype=np.float32).reshape(3, 2), "W")
    return model("mul_1", [helper.make_node("Mul", ["X", "W"], ["Y"], name="mul_1")],
                 [floats("X", 3, 2)], [floats("Y", 3, 2)], [weight])


def classifier() -> onnx.ModelProto:
    """A logistic regression of the species by length and width of a petal."""
    data, species = load_iris(return_X_y=True)
    trained = LogisticRegression(max_iter=1000).fit(data[:, PETAL], species)
    share = trained.score(data[:, PETAL], species)
    if share < 0.95:
        sys.exit(f"only {share:.1%} of the flowers are told apart: the training went wrong")
    labels = trained.classes_.tolist()
    nodes = [
        helper.make_node("LinearClassifier", ["float_input"], ["label", "scores"], domain="ai.onnx.ml",
                         coefficients=trained.coef_.ravel().tolist(), intercepts=trained.intercept_.tolist(),
                         classlabels_ints=labels, post_transform="SOFTMAX"),
        helper.make_node("ZipMap", ["scores"], ["probabilities"], domain="ai.onnx.ml",
                         classlabels_int64s=labels),
    ]
    by_label = helper.make_map_type_proto(TensorProto.INT64, helper.make_tensor_type_proto(
        TensorProto.FLOAT, []))
    outputs = [helper.make_tensor_value_info("label", TensorProto.INT64, [3]),
               helper.make_value_info("probabilities", helper.make_sequence_type_proto(by_label))]
    return model("logreg_iris", nodes, [floats("float_input", 3, 2)], outputs,
                 doc="Iris species by length and width of a petal, from scikit-learn's iris data.")


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else TARGET
    folder.mkdir(parents=True, exist_ok=True)
    for name, make in (("sigmoid", sigmoid), ("mul_1", product), ("logreg_iris", classifier)):
        onnx.save(make(), folder / f"{name}.onnx")


if __name__ == "__main__":
    main()
