"""The library that programs written for onnxruntime's C interface load in its place.

In: models and calls of onnxruntime's C interface. Out: the same answers, computed by this package's kernels.
"""
