# /// script
# dependencies = ["skl2onnx", "onnxmltools", "lightgbm"]
# ///
"""Learners of scikit-learn and LightGBM, converted: classes, chances and values."""

import numpy as np
import onnxruntime
from lightgbm import LGBMClassifier
from onnxmltools.convert.lightgbm.operator_converters.LightGbm import convert_lightgbm
from skl2onnx import to_onnx, update_registered_converter
from skl2onnx.common.shape_calculator import calculate_linear_classifier_output_shapes as classes_and_chances
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PolynomialFeatures, StandardScaler
from sklearn.svm import SVC

update_registered_converter(LGBMClassifier, "LGBM", classes_and_chances, convert_lightgbm,
                            options={"zipmap": [True, False, "columns"], "nocl": [True, False]})
draw = np.random.default_rng(0)
x = draw.standard_normal((120, 4)).astype(np.float32)
y = (x[:, 0] > 0).astype(np.int64) + (x[:, 1] > 0.3)
results = {}
for learner in (make_pipeline(StandardScaler(), PolynomialFeatures(), GaussianNB()),
                SVC(probability=True, random_state=0),
                KNeighborsClassifier(), LGBMClassifier(n_estimators=6, verbose=-1),
                GaussianProcessRegressor()):
    model = to_onnx(learner.fit(x, y), x[:1], target_opset={"": 18, "ai.onnx.ml": 3})
    session = onnxruntime.InferenceSession(model.SerializeToString())
    values = session.run(None, {session.get_inputs()[0].name: x})
    for out, value in zip(session.get_outputs(), values, strict=True):
        if isinstance(value, list):
            value = np.array([[row[key] for key in sorted(row)] for row in value])
        results[f"{type(learner).__name__}.{out.name}"] = value
