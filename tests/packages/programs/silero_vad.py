# /// script
# dependencies = ["torch==2.13.*", "packaging"]
# [tool.pip]
# alone = ["silero-vad"]
# ///
"""Chances of speech in drawn sounds, 8 and 16 kHz, and the stretches found."""

import sys
import types

import numpy as np

# It reads and writes sound files by torchaudio, which nothing here needs.
sys.modules["torchaudio"] = types.ModuleType("torchaudio")

import torch  # noqa: E402
from silero_vad import get_speech_timestamps, load_silero_vad  # noqa: E402

draw = np.random.default_rng(0)
model = load_silero_vad(onnx=True)
results = {}
for rate in (8000, 16000):
    time = np.arange(4 * rate) / rate
    voice = sum(np.sin(2 * np.pi * 120 * k * time) / k for k in range(1, 20))
    voice *= (np.sin(2 * np.pi * 3 * time) > 0)
    sound = torch.from_numpy((0.2 * voice + 0.01 * draw.standard_normal(len(time))).astype(np.float32))
    model.reset_states()
    results[f"chance{rate}"] = model.audio_forward(sound, sr=rate).numpy()
    found = get_speech_timestamps(sound, model, sampling_rate=rate, threshold=0.1)
    results[f"found{rate}"] = np.array([[each["start"], each["end"]] for each in found]).reshape(-1, 2)
