# /// script
# dependencies = ["fastembed", "onnx"]
# ///
"""Vectors of texts, pooled in two ways, from an encoder with drawn weights."""

from pathlib import Path

import numpy as np
from encoder import SIZE, make
from fastembed import TextEmbedding
from fastembed.common.model_description import ModelSource, PoolingType

folder = make(Path("encoder"))
texts = ["the cat sat on the mat", "a dog", "the dogs sat.", "cats and dogs ran on and on", "unknown"] * 4
results = {}
for pooling in (PoolingType.MEAN, PoolingType.CLS):
    TextEmbedding.add_custom_model(model=f"small/{pooling.value}", pooling=pooling, normalization=True,
                                   sources=ModelSource(hf="small/none"), dim=SIZE, model_file="model.onnx")
    model = TextEmbedding(f"small/{pooling.value}", specific_model_path=str(folder), threads=2)
    results[pooling.value] = np.array(list(model.embed(texts, batch_size=7)))
