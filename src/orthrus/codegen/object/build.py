"""LLVM assembly to object code: the only module that loads llvmlite, and that not before something has to be
compiled."""

from __future__ import annotations

import ctypes
import functools
import mmap
import threading
from collections.abc import Callable, Iterable, Iterator
from queue import SimpleQueue
from typing import Any

from ...locks import awaited, freed, lock
from ..machines.machine import Machine
from ..write.emit import ARRANGED

_lock = lock()
"""Held while modules are compiled, as LLVM has its options for the whole process."""
_UNROLLED = 3.5
"""Addresses for each value that a loop carries, from which on a module is unrolled code such as Winograd's
transforms."""
_ROOM = 1 << 26
"""Bytes of addresses that a module takes at most to be compiled; a thread of its own takes thrice as many,
most of them for the C library's heap of that thread."""
_compiling: list[None] = []
"""An entry for each module that is being compiled."""


@functools.cache
def _llvm() -> Any:
    import llvmlite.binding as llvm

    freed(getattr(getattr(llvm.ffi.lib, "_lock", None), "_lock", None))
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    llvm.initialize_native_asmparser()
    # the scheduler spills accumulators of large register tiles
    llvm.set_option("orthrus", "-enable-misched=false")
    return llvm


def llvm_version() -> str:
    """The version of LLVM that llvmlite holds."""
    return ".".join(map(str, _llvm().llvm_version_info))


def _target_machine(machine: Machine) -> Any:
    target = _llvm().Target.from_triple(machine.triple)
    return target.create_target_machine(cpu=machine.cpu, features=machine.feature_text, opt=2, reloc="pic",
                                        codemodel="small")


def assemble(text: str, machine: Machine, listing: bool = False) -> bytes | str:
    """The ELF object of a module's `text`, or its assembly where `listing`. Every module is verified;
    RuntimeError, with LLVM's words, where it does not hold."""
    with _lock:
        _choose(_plain(text, machine))
        made = _emitted(text, _target_machine(machine), listing)
    return made.decode() if listing else made


def assemble_all(texts: Iterable[str], machine: Machine, threads: int,
                 done: Callable[[], None] = lambda: None) -> list[bytes]:
    """The ELF object of each module, by so many threads, the caller's among them: they compile while further
    texts are taken. `done` is called after each, by whichever thread. Raises as `assemble` does."""
    made: dict[int, bytes] = {}
    kinds: dict[bool, list[tuple[int, str]]] = {}

    def alike() -> Iterator[tuple[int, str]]:
        """Those that are compiled as the first one is; the others are put aside."""
        for i, text in enumerate(texts):
            plain = _plain(text, machine)
            if not kinds:
                _choose(plain)
            others = kinds.setdefault(plain, [])
            if plain == next(iter(kinds)):
                yield i, text
            else:
                others.append((i, text))

    with _lock:
        _share(alike(), machine, threads, made, done)
        for plain, others in list(kinds.items())[1:]:
            _choose(plain)
            _share(others, machine, threads, made, done)
    return [made[i] for i in sorted(made)]


def _share(work: Iterable[tuple[int, str]], machine: Machine, threads: int, made: dict[int, bytes],
           done: Callable[[], None]) -> None:
    """Compile each numbered text into `made`."""
    queue: SimpleQueue[tuple[int, str] | None] = SimpleQueue()
    failed: list[BaseException] = []
    counting = lock()

    def take() -> None:
        target = _target_machine(machine)
        for i, text in iter(queue.get, None):
            try:
                if not failed:
                    made[i] = _emitted(text, target)
            except Exception as error:
                failed.append(error)
            with counting:
                done()
    crew: list[threading.Thread] = []
    try:
        for each in work:
            queue.put(each)
            if len(crew) < threads - 1 and _is_room(3 + len(crew)):
                thread = awaited(threading.Thread(target=take, daemon=True))
                try:
                    thread.start()
                    crew.append(thread)
                except RuntimeError:  # there may be no more of them
                    threads = 0
        for _ in (None, *crew):
            queue.put(None)
        take()
    except BaseException as error:
        failed.append(error)
        raise
    finally:
        for _ in crew:
            queue.put(None)
        for thread in crew:
            thread.join()
    if failed:
        raise failed[0]


def _plain(text: str, machine: Machine) -> bool:
    """Whether loop strength reduction is of no use, which takes up to four fifths of the time: on x86 for
    unrolled code, with AVX-512 for loops that carry their addresses too (with AVX2 these lose 1 to 3 %)."""
    unrolled = text.count("getelementptr") > _UNROLLED * text.count(" phi ")
    return machine.arch == "x86_64" and (unrolled or machine.vector == 64 and text.startswith(ARRANGED))


def _choose(plain: bool) -> None:
    """What LLVM asks for whenever it begins with a module."""
    _llvm().set_option("orthrus", f"-disable-lsr={str(plain).lower()}")


def _emitted(text: str, target: Any, listing: bool = False) -> bytes:
    """A module compiled, in a context of its own. LLVM needs no lock for that; llvmlite's `emit_object` holds
    one meanwhile, for all threads. Raises MemoryError before LLVM is asked."""
    _compiling.append(None)
    try:
        if not _is_room(len(_compiling)):
            raise MemoryError("there is not enough memory to compile a kernel")
        return _compiled(text, target, listing)
    finally:
        _compiling.pop()


def _is_room(count: int) -> bool:
    """Whether the system has addresses for so many compilations: LLVM ends the process where it gets none."""
    try:
        mmap.mmap(-1, count * _ROOM).close()
    except (OSError, ValueError, OverflowError):
        return False
    return True


def _compiled(text: str, target: Any, listing: bool) -> bytes:
    from llvmlite.binding import ffi

    module = _llvm().parse_assembly(text, _llvm().create_context())
    try:
        module.verify()
        emit = ffi.lib.LLVMPY_TargetMachineEmitToMemory
        with ffi.OutputString() as error:
            held = getattr(emit, "_cfn", emit)(target, module, int(not listing), error)
            if not held:
                raise RuntimeError(str(error))
    finally:
        module.close()
    try:
        return ctypes.string_at(ffi.lib.LLVMPY_GetBufferStart(held), ffi.lib.LLVMPY_GetBufferSize(held))
    finally:
        ffi.lib.LLVMPY_DisposeMemoryBuffer(held)
