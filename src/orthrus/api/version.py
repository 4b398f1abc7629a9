"""The two versions: of the package, and of the onnxruntime API it answers to.

`__version__` is the level of the API, as programs written for onnxruntime compare it (`>= 1.23`) and take it
apart into ints; `orthrus_version` is the package's own.
"""

VERSION = "0.1.0"
API_LEVEL = "1.32.0"
