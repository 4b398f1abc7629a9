"""LLVM assembly to object code: the only module that loads llvmlite, and that not before something has to be
compiled."""

from __future__ import annotations

import functools
from typing import Any

from ...locks import lock
from ..machines.machine import Machine

_lock = lock()
"""Held while one module is compiled, as LLVM has its options for the whole process."""
_UNROLLED = 3.5
"""Addresses for each value that a loop carries, from which on a module is unrolled code such as Winograd's
transforms."""


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
    with _lock:
        # loop strength reduction takes four fifths of the time for unrolled code, and x86 needs it for none
        plain = machine.arch == "x86_64" and text.count("getelementptr") > _UNROLLED * text.count(" phi ")
        _llvm().set_option("orthrus", f"-disable-lsr={str(plain).lower()}")
        result: bytes | str = made.emit_assembly(module) if listing else made.emit_object(module)
    return result
