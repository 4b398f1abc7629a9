# /// script
# dependencies = ["librosa", "mir-eval", "pretty-midi", "resampy", "scipy", "soundfile", "setuptools<81"]
# [tool.pip]
# alone = ["basic-pitch"]
# ///
"""Notes in a drawn melody, by the model in the wheel; on Linux it would be TensorFlow's, which nothing here needs."""

import numpy as np
import soundfile
from basic_pitch import FilenameSuffix, build_icassp_2022_model_path
from basic_pitch.inference import predict

rate = 22050
time = np.arange(rate // 2) / rate
melody = [sum(np.sin(2 * np.pi * k * 440 * 2 ** (step / 12) * time) / k**2 for k in range(1, 6)) * np.exp(-3 * time)
          for step in (0, 4, 7, 12, 7, 4, 0, -5)]
soundfile.write("melody.wav", 0.3 * np.concatenate(melody), rate)
said, _, notes = predict("melody.wav", build_icassp_2022_model_path(FilenameSuffix.onnx))
results = {**said, "notes": np.array([each[:4] for each in notes], np.float64)}
