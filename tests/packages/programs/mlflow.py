# /// script
# dependencies = ["mlflow-skinny", "pandas", "skl2onnx"]
# ///
"""A model saved and loaded as mlflow's own kind of function."""

import mlflow.onnx
import numpy as np
from skl2onnx import to_onnx
from sklearn.linear_model import LinearRegression

draw = np.random.default_rng(0)
x = draw.standard_normal((50, 3)).astype(np.float32)
mlflow.onnx.save_model(to_onnx(LinearRegression().fit(x, x @ [1, 2, 3]), x), "saved")
found = mlflow.pyfunc.load_model("saved").predict(x)
results = dict(found)
