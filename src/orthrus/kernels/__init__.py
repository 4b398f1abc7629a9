"""Kernels: what computes a node on a provider, how it is registered and how it is found."""

from typing import TYPE_CHECKING

from ..later import later

if TYPE_CHECKING:
    from .allocator import Allocator
    from .by_definition import reference
    from .device import HOST, Device, DeviceArray, Memory
    from .failure import failed
    from .gate import Gate, plain, readable, vetted
    from .kernel import Kernel, OpKernel, OpKernelContext, OpKernelInfo, Work, create_kernel
    from .lanes import Lane, Lanes, running, swap_lanes, thread_lanes, working
    from .part import Part, Stored, convex_groups, short_name
    from .registry import KernelDef, KernelEntry, KernelRegistry, KernelRegistryManager
    from .report import Contents, KernelUse, Packed, PlanReport, Span, StepReport
    from .streams import Stream, on, refused
    from .transfer import Landing, begun, copied, fill, finished, landed, ordered, pinned_zeros

__all__ = ["Allocator", "Contents", "Device", "DeviceArray", "Gate", "HOST", "Kernel", "KernelDef",
           "KernelEntry", "KernelRegistry", "KernelRegistryManager", "KernelUse", "Landing", "Lane", "Lanes",
           "Memory", "OpKernel", "OpKernelContext", "OpKernelInfo", "Packed", "Part", "PlanReport", "Span",
           "StepReport", "Stored", "Stream", "Work", "begun", "convex_groups", "copied", "create_kernel",
           "failed", "fill", "finished", "landed", "on", "ordered", "pinned_zeros", "plain", "readable",
           "reference", "refused", "running", "short_name", "swap_lanes", "thread_lanes", "vetted", "working"]

__getattr__ = later(__name__, {
    "allocator": ("Allocator",),
    "by_definition": ("reference",),
    "device": ("HOST", "Device", "DeviceArray", "Memory"),
    "failure": ("failed",),
    "gate": ("Gate", "plain", "readable", "vetted"),
    "kernel": ("Kernel", "OpKernel", "OpKernelContext", "OpKernelInfo", "Work", "create_kernel"),
    "lanes": ("Lane", "Lanes", "running", "swap_lanes", "thread_lanes", "working"),
    "part": ("Part", "Stored", "convex_groups", "short_name"),
    "registry": ("KernelDef", "KernelEntry", "KernelRegistry", "KernelRegistryManager"),
    "report": ("Contents", "KernelUse", "Packed", "PlanReport", "Span", "StepReport"),
    "streams": ("Stream", "on", "refused"),
    "transfer": ("Landing", "begun", "copied", "fill", "finished", "landed", "ordered", "pinned_zeros"),
})
