# /// script
# dependencies = ["sentence-transformers[onnx]", "torch==2.13.*"]
# ///
"""Sentences as vectors, by the backend for ONNX and a small BERT with drawn weights."""

import numpy as np
import torch
from sentence_transformers import SentenceTransformer

from transformers import BertConfig, BertModel, BertTokenizerFast

torch.manual_seed(0)
words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
words += ["the", "a", "cat", "dog", "sat", "ran", "on", "mat", "and", "far", "away"]
with open("vocab.txt", "w") as file:
    file.write("\n".join(words))
BertTokenizerFast("vocab.txt").save_pretrained("bert")
config = BertConfig(vocab_size=len(words), hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
                    intermediate_size=64, max_position_embeddings=64)
BertModel(config).eval().save_pretrained("bert")
model = SentenceTransformer("bert", backend="onnx", model_kwargs={"provider": "CPUExecutionProvider"})
results = {"vectors": np.array(model.encode(["the cat sat on the mat", "a dog ran far away", "the"]))}
