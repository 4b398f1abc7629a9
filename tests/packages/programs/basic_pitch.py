# /// script
# dependencies = ["librosa", "mir-eval", "pretty-midi", "resampy", "scipy", "soundfile", "setuptools<81"]
# [tool.pip]
# alone = ["basic-pitch"]
# [tool.results]
# atol = 1e-3
# ///
"""Notes in a drawn melody, by the model for onnxruntime in the wheel, which runs without TensorFlow.

In float32 its notes are off by 3.7e-4 with onnxruntime and 4.1e-4 here from what float64 gives.
"""

import numpy as np
import soundfile
from basic_pitch import FilenameSuffix, build_icassp_2022_model_path
from basic_pitch.inference import predict

rate = 22050
time = np.arange(rate // 2) / rate
melody = [np.exp(-3 * time) * sum(np.sin(2 * np.pi * k * 440 * 2 ** (step / 12) * time) / k**2
                                 for k in range(1, 6)) for step in (0, 4, 7, 12, 7, 4, 0, -5)]
soundfile.write("melody.wav", 0.3 * np.concatenate(melody), rate)
said, _, notes = predict("melody.wav", build_icassp_2022_model_path(FilenameSuffix.onnx))
results = {**said, "notes": np.array([each[:4] for each in notes], np.float64)}
