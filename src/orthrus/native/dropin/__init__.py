"""A libonnxruntime for programs to load in place of onnxruntime's: C, and the service that it asks."""
