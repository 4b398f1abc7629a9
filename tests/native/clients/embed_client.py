"""Embeds sentences with embed_anything, which is written in Rust, from a hub's folder; results to stdout, the
libraries in use to stderr."""

import json
import os
import sys

os.environ.update(HF_HOME=sys.argv[1], HF_HUB_OFFLINE="1")
from embed_anything import EmbeddingModel, WhichModel, embed_query

model = EmbeddingModel.from_pretrained_onnx(WhichModel.Bert, hf_model_id=sys.argv[2],
                                            path_in_repo="model.onnx")
found = embed_query(["hello world", "the dog has two heads", "hello"], embedder=model)
print(json.dumps([[[len(each.embedding)], list(map(float, each.embedding))] for each in found]))
with open("/proc/self/maps") as maps:
    print("\n".join({line.split()[-1] for line in maps if "libonnxruntime.so" in line}), file=sys.stderr)
