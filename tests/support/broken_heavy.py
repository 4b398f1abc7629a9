"""A provider whose module imports a package that is not everybody's."""

import onnx
from broken_providers import Good


class HeavyProvider(Good):
    """Right in everything else."""

    name = "HeavyExecutionProvider"
    version = onnx.__version__
