"""The server under load, beside onnxruntime behind the same framework and beside the simulator."""
