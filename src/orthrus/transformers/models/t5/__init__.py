"""T5 and mT5 as ONNX: an encoder and a decoder with its cache."""
