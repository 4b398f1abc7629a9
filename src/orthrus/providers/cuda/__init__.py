"""NVIDIA's GPUs: CUDA's driver by ctypes, kernels by Triton.

Importing this loads nothing; `probe` is the first to look for the driver.
"""

from __future__ import annotations

from typing import ClassVar

from ...codegen.triton import targets
from ..base import Option
from ..gpu import options
from ..gpu.provider import GpuProvider
from .driver import CUDA


class CUDAExecutionProvider(GpuProvider):
    """One of NVIDIA's GPUs."""

    name = "CUDAExecutionProvider"
    api = targets.CUDA
    extra = "cuda"
    options: ClassVar[dict[str, Option]] = options.CUDA
    finding = CUDA
    graphs = "enable_cuda_graph"
