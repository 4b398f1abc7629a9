"""Kernels for another architecture executed here, in workers under qemu's user emulation."""
