"""Kernels for GPUs, written in Triton: one text for every vendor's.

`targets` are the GPUs; `write` is what kernels are written in, `trees` how it says an expression; `kernels`
hold a file for each family; `compile` makes machine code of them, and is all that knows Triton.
"""
