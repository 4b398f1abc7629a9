# /// script
# dependencies = ["ddddocr"]
# ///
"""A word read, and objects found, in drawn pictures."""

import io

import ddddocr
import numpy as np
from PIL import Image, ImageDraw, ImageFont


def picture(text):
    image = Image.new("RGB", (160, 60), "white")
    ImageDraw.Draw(image).text((10, 10), text, "black", ImageFont.load_default(32))
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


words = ("a4x9", "8n3k", "hello", "QW12")
reader, finder = ddddocr.DdddOcr(show_ad=False), ddddocr.DdddOcr(det=True, ocr=False, show_ad=False)
results = {"texts": [reader.classification(picture(word)) for word in words],
           **{word: np.array(finder.detection(picture(word))) for word in words}}
