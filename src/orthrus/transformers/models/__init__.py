"""Conversion of networks of transformers to ONNX, and checks of what came out, a folder each."""
