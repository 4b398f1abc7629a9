# /// script
# dependencies = ["brainmaze-eeg-models"]
# ///
"""Chances of seizures and spindles found in drawn signals, by three of the models in the wheel."""

import numpy as np
from brainmaze_eeg_models.seizure import infer_seizure_probability, preprocess_input
from brainmaze_eeg_models.spindles import SpindleDetector

draw = np.random.default_rng(0)
rate = 256
time = np.arange(60 * rate) / rate
signal = np.cumsum(draw.standard_normal((2, len(time))), 1) * 0.3
signal -= signal.mean(1, keepdims=True)
signal[:, 20 * rate: 21 * rate] += 30 * np.sin(2 * np.pi * 13 * time[:rate])
spectra = preprocess_input(signal, rate)
results = {name: infer_seizure_probability(spectra, name) for name in ("modelA", "modelB")}
found = SpindleDetector("eeg", threads=2).detect(signal, rate)
results |= {"spindles": np.asarray(found.to_array(), np.float64),
            **SpindleDetector("ieeg").predict_windows(signal[:, : 30 * 250])}
