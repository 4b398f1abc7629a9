"""Models of one node, every operator, small and large, in common types, beside onnxruntime."""
