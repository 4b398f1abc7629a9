"""The kernels for GPUs, a file for each family."""
