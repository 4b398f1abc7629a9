"""Fusions one by one, as classes with onnxruntime.transformers' names."""
