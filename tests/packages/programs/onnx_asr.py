# /// script
# dependencies = ["onnx-asr", "onnx"]
# ///
"""Words heard in sounds of two rates: the preprocessors in the wheel, and an encoder with drawn weights."""

import json

import numpy as np
import onnx
import onnx_asr
from onnx import TensorProto, helper, numpy_helper

draw = np.random.default_rng(0)
letters = [*"abcdefghijklmnopqrstuvwxyz", "▁", "<blk>"]
with open("vocab.txt", "w", encoding="utf-8") as file:
    file.writelines(f"{letter} {place}\n" for place, letter in enumerate(letters))
with open("config.json", "w") as file:
    json.dump({"model_type": "nemo-conformer-ctc", "features_size": 80, "subsampling_factor": 8}, file)
held = [numpy_helper.from_array((0.3 * draw.standard_normal(shape)).astype(np.float32), name)
        for name, shape in (("w", (32, 80, 9)), ("v", (len(letters), 32, 1)))]
nodes = [helper.make_node("Conv", ["audio_signal", "w"], ["c"], strides=[8], pads=[4, 4]),
         helper.make_node("Tanh", ["c"], ["t"]), helper.make_node("Conv", ["t", "v"], ["l"]),
         helper.make_node("Transpose", ["l"], ["s"], perm=[0, 2, 1]),
         helper.make_node("LogSoftmax", ["s"], ["logprobs"])]
inputs = [helper.make_tensor_value_info("audio_signal", TensorProto.FLOAT, ["batch", 80, "frames"]),
          helper.make_tensor_value_info("length", TensorProto.INT64, ["batch"])]
output = helper.make_tensor_value_info("logprobs", TensorProto.FLOAT, ["batch", "steps", len(letters)])
onnx.save(helper.make_model(helper.make_graph(nodes, "encoder", inputs, [output], held),
                            opset_imports=[helper.make_opsetid("", 17)], ir_version=9), "model.onnx")
model = onnx_asr.load_model("nemo-conformer-ctc", ".").with_timestamps()
results = {}
for rate in (8000, 16000):
    time = np.arange(3 * rate) / rate
    voice = sum(np.sin(2 * np.pi * k * (120 * time + 8 * np.sin(3 * time))) / k for k in range(1, 20))
    sound = (0.2 * voice + 0.01 * draw.standard_normal(len(time))).astype(np.float32)
    heard = model.recognize([sound, sound[: 2 * rate]], sample_rate=rate)
    results |= {f"{rate} {place}": each.text for place, each in enumerate(heard)}
    results |= {f"logprobs {rate} {place}": np.array(each.logprobs) for place, each in enumerate(heard)}
