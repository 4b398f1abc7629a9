"""Models as protobufs with the searches, edits and statistics of onnxruntime.transformers' model classes."""
