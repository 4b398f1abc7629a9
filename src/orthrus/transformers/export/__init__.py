"""From a torch network to an ONNX file, and what runs such a file on torch's tensors, under onnxruntime's
names."""
