"""Phi-2 as ONNX, for the CPU."""
