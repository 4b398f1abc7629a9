# /// script
# dependencies = ["captcha-whisperer"]
# ///
"""Drawn words read by the network in the wheel, a batch of them too."""

import io

import numpy as np
from captcha_whisperer import CaptchaRecognizer, recognize
from PIL import Image, ImageDraw, ImageFont


def picture(text):
    image = Image.new("RGB", (160, 60), "white")
    ImageDraw.Draw(image).text((10, 10), text, "black", ImageFont.load_default(32))
    return image


def packed(image):
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


words = ("a4x9", "8n3k", "hello", "QW12", "77777")
texts = [str(recognize(packed(picture(word)))) for word in words]
batch = CaptchaRecognizer(threads=2).recognize_arrays([np.array(picture(word)) for word in words])
results = {"texts": texts, "batch": [each["text"] for each in batch],
           "sure": np.array([each["confidence"] for each in batch])}
