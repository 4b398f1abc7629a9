# /// script
# dependencies = ["chromadb", "onnx"]
# ///
"""Texts kept and found again by their vectors, which an encoder with drawn weights gives."""

from pathlib import Path

import chromadb
import numpy as np
from chromadb.utils.embedding_functions.onnx_mini_lm_l6_v2 import ONNXMiniLM_L6_V2
from encoder import make

ONNXMiniLM_L6_V2.DOWNLOAD_PATH = Path.cwd()
make(Path("onnx"))
texts = ["the cat sat on the mat", "a dog ran far away", "the dogs sat", "cats and dogs ran on and on"]
embed = ONNXMiniLM_L6_V2()
kept = chromadb.EphemeralClient(chromadb.Settings(anonymized_telemetry=False)).create_collection(
    "texts", embedding_function=embed)
kept.add(ids=[str(number) for number in range(len(texts))], documents=texts)
found = kept.query(query_texts=["the cat ran", "a mat"], n_results=3)
results = {"vectors": np.array(embed(texts)), "ids": np.array(found["ids"]),
           "distances": np.array(found["distances"], np.float32)}
