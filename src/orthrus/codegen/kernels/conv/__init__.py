"""Convolutions over channels-last images: kernels, the trees that end them, and their planning."""
