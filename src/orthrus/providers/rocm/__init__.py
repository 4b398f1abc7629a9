"""AMD's GPUs: HIP's runtime by ctypes, kernels by Triton.

Importing this loads nothing; `probe` is the first to look for the runtime.
"""

from __future__ import annotations

from typing import ClassVar

from ...codegen.triton import targets
from ..base import Option
from ..gpu import options
from ..gpu.hip import HIP
from ..gpu.provider import GpuProvider


class ROCMExecutionProvider(GpuProvider):
    """One of AMD's GPUs."""

    name = "ROCMExecutionProvider"
    api = targets.HIP
    extra = "rocm"
    options: ClassVar[dict[str, Option]] = options.ROCM
    finding = HIP
    graphs = "enable_hip_graph"
