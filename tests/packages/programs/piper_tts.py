# /// script
# dependencies = ["piper-tts"]
# ///
"""Vowels of Arabic and Hebrew by the two models in the wheel, and speech by a voice with drawn weights."""

import json

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from piper import PiperVoice
from piper.hebrew import NakdimonDiacritizer
from piper.tashkeel import TashkeelDiacritizer

arabic, hebrew = TashkeelDiacritizer(), NakdimonDiacritizer()
texts = [arabic(text) for text in (
    "مرحبا بالعالم", "ذهب الولد الى المدرسة في الصباح", "بسم الله الرحمن الرحيم")]
texts += [hebrew(text) for text in ("שלום עולם", "הילד הלך לבית הספר בבוקר")]

draw = np.random.default_rng(0)
held = [numpy_helper.from_array(value, name) for name, value in (
    ("sounds", draw.standard_normal((256, 128)).astype(np.float32)), ("shape", np.array([0, 1, 1, -1])),
    ("first", np.array([1])))]
nodes = [helper.make_node("Gather", ["sounds", "input"], ["each"]),
         helper.make_node("Gather", ["scales", "first"], ["speed"]),
         helper.make_node("Mul", ["each", "speed"], ["fast"]),
         helper.make_node("Sin", ["fast"], ["wave"]),
         helper.make_node("Reshape", ["wave", "shape"], ["output"])]
inputs = [helper.make_tensor_value_info("input", TensorProto.INT64, ["batch", "sounds"]),
          helper.make_tensor_value_info("input_lengths", TensorProto.INT64, ["batch"]),
          helper.make_tensor_value_info("scales", TensorProto.FLOAT, [3])]
output = helper.make_tensor_value_info("output", TensorProto.FLOAT, ["batch", 1, 1, "time"])
onnx.save(helper.make_model(helper.make_graph(nodes, "voice", inputs, [output], held),
                            opset_imports=[helper.make_opsetid("", 17)], ir_version=9), "voice.onnx")
letters = "_^$ !'(),-.:;?abcdefghijklmnopqrstuvwxyz"
with open("voice.onnx.json", "w") as file:
    json.dump({"num_symbols": 256, "num_speakers": 1, "audio": {"sample_rate": 16000},
               "espeak": {"voice": "en-us"}, "phoneme_type": "text",
               "phoneme_id_map": {each: [place] for place, each in enumerate(letters)},
               "inference": {"noise_scale": 0.6, "length_scale": 1.1, "noise_w": 0.8}}, file)
voice = PiperVoice.load("voice.onnx")
spoken = [chunk.audio_float_array for chunk in voice.synthesize("hello world, here i am.")]
results = {"texts": texts, "spoken": np.concatenate(spoken)}
