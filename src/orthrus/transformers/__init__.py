"""onnxruntime.transformers' names on this runtime, as modules: a float model in, one of half floats out."""
