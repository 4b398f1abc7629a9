"""LLVM assembly to object code: the only module that loads llvmlite, and that not before something has to be
compiled."""

from __future__ import annotations

import functools
from typing import Any

from ..machines.machine import Machine


@functools.cache
def _llvm() -> Any:
    import llvmlite.binding as llvm

    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    llvm.initialize_native_asmparser()
    # the scheduler spills accumulators of large register tiles
    llvm.set_option("orthrus", "-enable-misched=false")
    return llvm


def llvm_version() -> str:
    """The version of LLVM that llvmlite holds."""
    return ".".join(map(str, _llvm().llvm_version_info))


@functools.lru_cache(8)
def _target_machine(machine: Machine) -> Any:
    target = _llvm().Target.from_triple(machine.triple)
    return target.create_target_machine(cpu=machine.cpu, features=machine.feature_text, opt=2, reloc="pic",
                                        codemodel="small")


def assemble(text: str, machine: Machine, listing: bool = False) -> bytes | str:
    """The ELF object of a module's `text`, or its assembly where `listing`. Every module is verified;
    RuntimeError, with LLVM's words, where it does not hold."""
    module = _llvm().parse_assembly(text)
    module.verify()
    made = _target_machine(machine)
    result: bytes | str = made.emit_assembly(module) if listing else made.emit_object(module)
    return result
