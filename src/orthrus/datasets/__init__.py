"""Three small models to try things on, as `onnxruntime.datasets` has them.

`sigmoid.onnx` takes `x`, float32 [3, 4, 5], and gives `y` of the same shape; `mul_1.onnx` takes `X`, float32
[3, 2], and gives `Y`, its product with 1 to 6; `logreg_iris.onnx` takes `float_input`, the lengths and widths
of three petals in centimetres, float32 [3, 2], and gives `label`, int64 [3], and `probabilities`, a dict by
label for each. `examples/make_datasets.py` made them.
"""

import os


def get_example(name: str) -> str:
    """The path of the model called `name`, as `"sigmoid.onnx"`. FileNotFoundError where there is none."""
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), name)
    if not os.path.exists(path):
        raise FileNotFoundError(f"Unable to find example {name!r}")
    return path
