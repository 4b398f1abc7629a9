"""Tools that feed, time, compare and profile transformer networks, under onnxruntime's names."""
