# /// script
# dependencies = ["faster-whisper"]
# ///
"""Stretches of speech, by the detector in the wheel."""

import numpy as np
from faster_whisper.vad import VadOptions, get_speech_timestamps, get_vad_model

draw = np.random.default_rng(0)
time = np.arange(6 * 31 * 512) / 16000
voice = sum(np.sin(2 * np.pi * 120 * k * time) / k for k in range(1, 20)) * (np.sin(2 * np.pi * 3 * time) > 0)
sound = (0.2 * voice + 0.01 * draw.standard_normal(len(time))).astype(np.float32)
found = get_speech_timestamps(sound, VadOptions(threshold=0.3))
results = {"chance": get_vad_model()(sound),
           "found": np.array([[each["start"], each["end"]] for each in found]).reshape(-1, 2)}
