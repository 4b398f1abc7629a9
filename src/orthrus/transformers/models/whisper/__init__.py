"""Whisper as ONNX: an encoder that also gives the decoder's part of the cache, and a decoder."""
