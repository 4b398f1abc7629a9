"""orthrus by onnxruntime's name: what `import onnxruntime` gives is the module `orthrus` itself.

Raises ImportError where another onnxruntime is on the path as well.
"""

import sys
from importlib import import_module

from ._other import refusal

if reason := refusal(sys.path):
    raise ImportError(reason, name=__name__)
sys.modules[__name__] = import_module("orthrus")
