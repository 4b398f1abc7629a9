# /// script
# dependencies = ["nudenet"]
# ///
"""What the detector in the wheel finds in drawn pictures, and all it says before anything is left out."""

import numpy as np
from nudenet import NudeDetector

draw = np.random.default_rng(0)
detector = NudeDetector()
picture = draw.integers(0, 256, (240, 320, 3), np.uint8)
[name] = [each.name for each in detector.onnx_session.get_inputs()]
feed = draw.random((1, 3, 320, 320), np.float32)
results = {"found": np.array([str(each) for each in detector.detect(picture)]),
           "all": detector.onnx_session.run(None, {name: feed})[0]}
