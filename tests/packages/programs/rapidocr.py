# /// script
# dependencies = ["rapidocr"]
# ///
"""Three drawn lines found and read, by the models in the wheel."""

import numpy as np
from PIL import Image, ImageDraw, ImageFont
from rapidocr import RapidOCR

font = ImageFont.load_default(32)
image = Image.new("RGB", (480, 200), "white")
for row, text in enumerate(("Hello World 2026", "The quick brown fox", "12345 + 67890")):
    ImageDraw.Draw(image).text((20, 20 + 60 * row), text, "black", font)
found = RapidOCR()(np.array(image))
results = {"boxes": np.array(found.boxes), "texts": list(found.txts), "scores": np.array(found.scores)}
