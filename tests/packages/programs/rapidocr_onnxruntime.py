# /// script
# dependencies = ["rapidocr-onnxruntime"]
# ///
"""Text found and read in a drawn picture: detection, direction and recognition by the models in the wheel."""

import numpy as np
from PIL import Image, ImageDraw, ImageFont
from rapidocr_onnxruntime import RapidOCR

image = Image.new("RGB", (480, 200), "white")
for row, text in enumerate(("Hello World 2026", "The quick brown fox", "12345 + 67890")):
    ImageDraw.Draw(image).text((20, 20 + 60 * row), text, "black", ImageFont.load_default(32))

found, _ = RapidOCR()(np.array(image))
results = {"boxes": [each[0] for each in found], "texts": [each[1] for each in found],
           "scores": [float(each[2]) for each in found]}
