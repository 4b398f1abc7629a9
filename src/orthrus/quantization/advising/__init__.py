"""Which quantization of a model is right, smaller and faster on this machine: tried and measured."""
