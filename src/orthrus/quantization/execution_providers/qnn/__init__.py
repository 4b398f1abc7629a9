"""Quantization for Qualcomm's QNN execution provider: models made for it here run on a device with
onnxruntime."""
