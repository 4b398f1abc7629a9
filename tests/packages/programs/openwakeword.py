# /// script
# dependencies = ["openwakeword==0.4.0", "requests"]
# ///
"""Chances of five words in a drawn sound, by the models in the wheel, with and without its voice detector.

0.4.0 is the last release whose wheel has the models.
"""

import numpy as np
from openwakeword.model import Model

draw = np.random.default_rng(0)
rate = 16000
time = np.arange(3 * rate) / rate
voice = sum(np.sin(2 * np.pi * k * (120 * time + 8 * np.sin(3 * time))) / k for k in range(1, 20))
sound = 4000 * voice * (np.sin(2 * np.pi * 3 * time) > 0) + 50 * draw.standard_normal(len(time))
sound = sound.astype(np.int16)
results = {}
for threshold in (0, 0.2):
    said = Model(vad_threshold=threshold).predict_clip(sound)
    results |= {f"{name} {threshold}": np.array([float(each[name]) for each in said]) for name in said[0]}
