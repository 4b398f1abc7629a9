"""Kernels: what computes a node on a provider, how it is registered and how it is found."""

from .device import HOST, Device, DeviceArray, Memory, copied, fill
from .failure import failed
from .gate import Gate, plain, readable, vetted
from .kernel import Kernel, OpKernel, OpKernelContext, OpKernelInfo, Work, create_kernel
from .part import Part, Stored, convex_groups
from .reference import reference
from .registry import KernelDef, KernelEntry, KernelRegistry, KernelRegistryManager
from .report import Contents, KernelUse, Packed, PlanReport, Span, StepReport

__all__ = ["HOST", "Contents", "Device", "DeviceArray", "Gate", "Kernel", "KernelDef", "KernelEntry",
           "KernelRegistry", "KernelRegistryManager", "KernelUse", "Memory", "OpKernel", "OpKernelContext",
           "OpKernelInfo", "Packed", "Part", "PlanReport", "Span", "StepReport", "Stored", "Work",
           "convex_groups", "copied", "create_kernel", "failed", "fill", "plain", "readable", "reference",
           "vetted"]
