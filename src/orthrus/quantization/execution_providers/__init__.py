"""Quantization for execution providers that ask for something of their own."""
