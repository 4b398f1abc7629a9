"""GPT-2 as ONNX: with its cache as inputs `past_0`, ..., a tensor for each layer's keys and values."""
