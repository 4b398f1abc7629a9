"""RISC-V with vectors, as SpacemiT's processors have it: where its generated kernels run.

On such a processor no worker is needed: there kernels are code like any other, which `object.link` brings
into this process as it does on the CPU provider's machines. Elsewhere they run in workers under qemu's user
emulation (`codegen.emulate`), of which `team` divides a part's steps over several. `device` and `board` are
what the CPU provider's lowering then runs on; `claims` says which nodes, `options` what a user may say,
`targets` for which processors, and `provider` is what a session talks to.
"""

from .provider import SpaceMITExecutionProvider

__all__ = ["SpaceMITExecutionProvider"]
