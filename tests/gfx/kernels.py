"""Kernels for AMD's GPUs made of LLVM IR by llvmlite alone: text goes in, a code object comes out."""

from __future__ import annotations

import functools

import llvmlite.binding as llvm

TARGETS = ("gfx1100", "gfx1201", "gfx942")
_HEAD = """target triple = "amdgcn-amd-amdhsa"
declare i32 @llvm.amdgcn.workitem.id.x()
declare i32 @llvm.amdgcn.workgroup.id.x()
declare void @llvm.amdgcn.s.barrier()
"""
THREADS = 256


@functools.cache
def _target(name: str) -> llvm.TargetMachine:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    return llvm.Target.from_triple("amdgcn-amd-amdhsa").create_target_machine(cpu=name, opt=2, reloc="pic")


def compiled(text: str, target: str) -> bytes:
    """A code object of a module's kernels; `text` is LLVM IR without triple and common declarations."""
    module = llvm.parse_assembly(_HEAD + text)
    module.verify()
    machine = _target(target)
    builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=2))
    builder.getModulePassManager().run(module, builder)
    return bytes(machine.emit_object(module))


def elementwise(name: str, body: str, takes: tuple[str, ...], gives: str, uniform: bool = False) -> str:
    """A kernel y[i] = f(a[i], ...): `body` computes %y of %a, %b, %c. With `uniform`, a workgroup has one
    element, which every lane reads: the compiler uses scalar instructions."""
    space = 4 if uniform else 1
    names = "abc"[:len(takes)]
    pointers = ", ".join(f"ptr addrspace({space}) noalias readonly %p{n}" for n in names)
    loads = "".join(f"  %q{n} = getelementptr {t}, ptr addrspace({space}) %p{n}, i32 %i\n"
                    f"  %{n} = load {t}, ptr addrspace({space}) %q{n}\n"
                    for n, t in zip(names, takes, strict=True))
    threads = 64 if uniform else THREADS
    index = "  %i = add i32 %g, 0\n" if uniform else f"  %h = mul i32 %g, {threads}\n  %i = add i32 %h, %l\n"
    return f"""
define amdgpu_kernel void @{name}({pointers}, ptr addrspace(1) noalias %py, i32 %n) #{int(uniform)} {{
  %l = call i32 @llvm.amdgcn.workitem.id.x()
  %g = call i32 @llvm.amdgcn.workgroup.id.x()
{index}  %in = icmp slt i32 %i, %n
  br i1 %in, label %work, label %out
work:
{loads}{body}
  %qy = getelementptr {gives}, ptr addrspace(1) %py, i32 %i
  store {gives} %y, ptr addrspace(1) %qy
  br label %out
out:
  ret void
}}
"""


ATTRIBUTES = f"""
attributes #0 = {{ "amdgpu-flat-work-group-size"="{THREADS},{THREADS}" }}
attributes #1 = {{ "amdgpu-flat-work-group-size"="64,64" }}
"""
