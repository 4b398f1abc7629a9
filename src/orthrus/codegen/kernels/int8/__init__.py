"""Kernels for products of bytes, with sums exact in int32."""
