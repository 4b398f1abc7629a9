"""Rules of quantized tensors: bytes with a scale and a zero point."""
