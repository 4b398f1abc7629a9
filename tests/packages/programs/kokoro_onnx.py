# /// script
# dependencies = ["kokoro-onnx", "onnx"]
# ///
"""Speech from phonemes and from words, by a voice with drawn weights that tells how long each phoneme is."""

import numpy as np
import onnx
from kokoro_onnx import Kokoro
from onnx import TensorProto, helper, numpy_helper

draw = np.random.default_rng(0)
held = [numpy_helper.from_array(value, name) for name, value in (
    ("sounds", draw.standard_normal((200, 256)).astype(np.float32)), ("wide", np.array([1, 1, 600])),
    ("flat", np.array([-1])), ("axes", np.array([0, 1])), ("last", np.array([2])), ("least", np.float32(1)))]
nodes = [helper.make_node("Gather", ["sounds", "tokens"], ["each"]),
         helper.make_node("Unsqueeze", ["style", "first"], ["styled"]),
         helper.make_node("Add", ["each", "styled"], ["voiced"]),
         helper.make_node("Tanh", ["voiced"], ["bent"]),
         helper.make_node("ReduceMean", ["bent", "last"], ["loud"], keepdims=1),
         helper.make_node("Tile", ["loud", "wide"], ["long"]),
         helper.make_node("Mul", ["long", "speed"], ["sped"]),
         helper.make_node("Reshape", ["sped", "flat"], ["audio"]),
         helper.make_node("IsNaN", ["loud"], ["is"]),
         helper.make_node("Not", ["is"], ["are"]),
         helper.make_node("Cast", ["are"], ["ones"], to=TensorProto.INT64),
         helper.make_node("Reshape", ["ones", "flat"], ["duration"])]
held.append(numpy_helper.from_array(np.array([1]), "first"))
inputs = [helper.make_tensor_value_info("tokens", TensorProto.INT64, [1, "tokens"]),
          helper.make_tensor_value_info("style", TensorProto.FLOAT, [1, 256]),
          helper.make_tensor_value_info("speed", TensorProto.FLOAT, [1])]
outputs = [helper.make_tensor_value_info("audio", TensorProto.FLOAT, ["time"]),
           helper.make_tensor_value_info("duration", TensorProto.INT64, ["tokens"])]
onnx.save(helper.make_model(helper.make_graph(nodes, "voice", inputs, outputs, held),
                            opset_imports=[helper.make_opsetid("", 18)], ir_version=9), "voice.onnx")
with open("voices.bin", "wb") as file:
    np.savez(file, drawn=draw.standard_normal((510, 1, 256)).astype(np.float32))
kokoro = Kokoro("voice.onnx", "voices.bin")
results = {"phonemes": kokoro.create("həlˈoʊ wˈɜːld.", "drawn", is_phonemes=True, trim=False)[0]}
text = "Hello there. This is a longer text, with a pause."
sound, _, spoken = kokoro.create_timed(text, "drawn", speed=1.3)
results |= {"words": sound, "times": np.array([(each.start, each.end) for each in spoken])}
