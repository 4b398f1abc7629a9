"""Kernels: what computes a node on a provider, how it is registered and how it is found."""

from .failure import failed
from .kernel import Kernel, OpKernel, OpKernelContext, OpKernelInfo, create_kernel
from .registry import KernelDef, KernelEntry, KernelRegistry, KernelRegistryManager

__all__ = ["Kernel", "KernelDef", "KernelEntry", "KernelRegistry", "KernelRegistryManager", "OpKernel",
           "OpKernelContext", "OpKernelInfo", "create_kernel", "failed"]
