"""orthrus by onnxruntime's name, for processes that have the folder above this one on their path."""

import sys

import orthrus

sys.modules[__name__] = orthrus
