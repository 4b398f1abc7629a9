"""Machines: what kernels are written for, which one this is, and memory that code runs from."""
