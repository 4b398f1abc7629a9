"""Finds speech in a recording with sherpa-onnx; results to stdout, the libraries in use to stderr."""

import json
import sys
import wave

import numpy as np
import sherpa_onnx

config = sherpa_onnx.VadModelConfig()
config.silero_vad.model, config.sample_rate, config.num_threads = sys.argv[1], 16000, 1
detector = sherpa_onnx.VoiceActivityDetector(config, buffer_size_in_seconds=30)
with wave.open(sys.argv[2]) as file:
    step = file.getframerate() // 16000
    sound = np.frombuffer(file.readframes(file.getnframes()), np.int16)[::file.getnchannels() * step] / 32768
flags = []
for at in range(0, len(sound) - 512, 512):
    detector.accept_waveform(sound[at:at + 512].astype(np.float32))
    flags.append(float(detector.is_speech_detected()))
detector.flush()
found = []
while not detector.empty():
    found += [detector.front.start, len(detector.front.samples)]
    detector.pop()
print(json.dumps([[[len(flags)], flags], [[len(found)], found]]))
with open("/proc/self/maps") as maps:
    print("\n".join({line.split()[-1] for line in maps if "libonnxruntime.so" in line}), file=sys.stderr)
