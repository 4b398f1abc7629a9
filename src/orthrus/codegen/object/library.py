"""Kernels by what they are: from a `Spec` to the address of its machine code in this process.

What is in use in this process is known, and what was lately; else the object is read from disk; else it is
compiled, by a thread for each processor, and kept on disk. All that one call finds missing is linked into one
block, which is unmapped when nobody holds any of it. Safe under threads.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol
from weakref import WeakValueDictionary

from ... import knobs
from ...errors import Fail
from ...ir import No
from ...locks import rlock
from ...processors import usable
from ..machines.detect import host
from ..machines.machine import Machine
from ..write.spec import ENTRY, Spec
from . import cache

if TYPE_CHECKING:
    from ..machines.executable import Linked

_log = logging.getLogger("orthrus")
_known: dict[Machine, WeakValueDictionary[str, Linked]] = {}
_recent: deque[Linked] = deque(maxlen=256)
"""Code that was asked for last, whether or not somebody still has it: sessions come again."""
_forever: dict[int, Linked] = {}
_lent: dict[Machine, list[Prelinked]] = {}
"""Code for where none can be made."""
_lock = rlock()

_PATIENCE = 1.0
"""Seconds after which a terminal is told what is waited for."""


Functions = Mapping[str, Mapping[str, int]]
"""Per unit the functions of its code by name, as bytes from where the code of all begins."""


class Prelinked(NamedTuple):
    """Code that is the same wherever it lies."""

    image: Any
    functions: Functions


class Unit(Protocol):
    """Something that can be compiled, such as a Spec. Its `repr` says all there is to know of it and is what
    it goes by: units that are equal may still differ, as 0.0 equals -0.0."""

    def text(self, machine: Machine) -> str:
        """LLVM assembly."""

    @property
    def origin(self) -> str:
        """The file whose code writes it."""


def available() -> No | None:
    """Why no machine code can be generated here, None where it can. Says so once in the log."""
    why = runnable()
    return _refusal() if why is None else why


def runnable() -> No | None:
    """Why no machine code can be run here, wherever it was generated; None where it can."""
    if not knobs.CODEGEN:
        return No("ORTHRUS_CODEGEN=0")
    return _unable()


@functools.cache
def _refusal() -> No | None:
    if cache.compiler() is not None:
        return None
    _log.warning("llvmlite is not installed: everything runs on numpy, which is slow")
    return No("llvmlite is not installed")


@functools.cache
def _unable() -> No | None:
    if host() is None:
        reason = "no machine code can be generated for this machine"
    else:
        from ..machines.executable import CodePages

        try:
            CodePages(1).seal()
            return None
        except (Fail, OSError, MemoryError):
            reason = "memory cannot be made executable here"
    _log.warning("%s: everything runs on numpy, which is slow", reason)
    return No(reason)


class Kernels(list[int]):
    """Where kernels start. Their code is there for as long as this is."""

    def __init__(self, code: Sequence[Linked]) -> None:
        super().__init__([each[ENTRY] for each in code])
        self._code = code


def kernels(specs: Sequence[Spec], machine: Machine) -> Kernels:
    """The kernels of `specs`. Raises RuntimeError for one that LLVM refuses, Fail where no code can be
    generated."""
    return Kernels(_found(specs, machine))


def addresses(specs: Sequence[Spec], machine: Machine) -> list[int]:
    """Where the kernels of `specs` start, for the life of the process. Raises as `kernels` does."""
    return [found[ENTRY] for found in functions(specs, machine)]


def functions(units: Sequence[Unit], machine: Machine) -> Sequence[dict[str, int]]:
    """Per unit the addresses of its functions by name, for the life of the process. Raises as `kernels`
    does."""
    found = _found(units, machine)
    _forever.update((id(each), each) for each in found)
    return found


def _found(units: Sequence[Unit], machine: Machine) -> list[Linked]:
    """The code of `units`. A kernel that was edited is taken from its file."""
    edits = bool(knobs.OVERRIDE) or knobs.dump_folder("code") is not None
    if edits:
        from . import override

        override.dump(units, machine)
        units = override.replaced(units)
    keys = {id(unit): repr(unit) for unit in {id(unit): unit for unit in units}.values()}
    known = _known.setdefault(machine, WeakValueDictionary())
    found = _held(known, keys.values())
    if len(found) < len(set(keys.values())):
        with _lock:
            found |= _held(known, keys.values())
            missing = {keys[id(unit)]: unit for unit in units if keys[id(unit)] not in found}
            for key, unit in list(missing.items()) if edits else ():
                if isinstance(unit, override.Edited):
                    found[key] = override.checked(unit, machine)
                    del missing[key]
            if missing:
                found.update(zip(missing, _bring(list(missing.values()), machine), strict=True))
            known.update(found)
    _recent.extend(found.values())
    return [found[keys[id(unit)]] for unit in units]


def _held(known: WeakValueDictionary[str, Linked], keys: Iterable[str]) -> dict[str, Linked]:
    """What is known of `keys`, which then stays."""
    return {key: code for key in keys if (code := known.get(key)) is not None}


def _bring(units: list[Unit], machine: Machine) -> list[Linked]:
    """Read, compile or borrow, then link."""
    from ..machines.executable import Linked, placed
    from .link import link

    if (lent := _borrowed(units, machine)) is not None:
        block = placed(lent.image)
        return [Linked(_at(block.address, lent.functions[repr(unit)]), block) for unit in units]
    try:
        return link(objects(units, machine))
    except ValueError as error:
        _log.debug("code in the cache does not hold: %s", error)
    return link(objects(units, machine, anew=True))


def image(units: Sequence[Unit], machine: Machine, address: int) -> tuple[bytes, list[dict[str, int]]]:
    """The code of `units` as it has to lie at `address`, the begin of a page, and per unit, its functions by
    name. Raises as `kernels` does."""
    from .link import image

    if (lent := _borrowed(units, machine)) is not None:
        return bytes(lent.image), [_at(address, lent.functions[repr(unit)]) for unit in units]
    return image(objects(units, machine), address, machine.arch)


def _at(address: int, functions: Mapping[str, int]) -> dict[str, int]:
    return {name: address + offset for name, offset in functions.items()}


def objects(units: Sequence[Unit], machine: Machine, anew: bool = False) -> list[bytes]:
    """The object of each unit: ready-made or from disk unless it is to be compiled `anew`. Raises
    RuntimeError for one that LLVM refuses, Fail where no code can be generated."""
    from . import pack

    new = {} if anew else pack.find(units, machine)
    names = {i: cache.name(repr(unit), machine, unit.origin) for i, unit in enumerate(units) if i not in new}
    found = {} if anew else cache.load(name for name in names.values() if name)
    missing = [i for i, name in names.items() if name not in found]
    if missing and cache.compiler() is None:
        raise Fail("no machine code can be generated here", found="llvmlite is not installed",
                   cure="pip install llvmlite, or load a model that was compiled ahead (orthrus compile)")
    if missing:
        compiled = compile_all((units[i].text(machine) for i in missing), len(missing), machine)
        cache.store({name: data for i, data in zip(missing, compiled, strict=True) if (name := names[i])})
        new |= zip(missing, compiled, strict=True)
    return [new.get(i) or found[names[i] or ""] for i in range(len(units))]


def provide(functions: Functions, loaded: Any, machine: Machine) -> None:
    """Let functions that this package made earlier, and that are `loaded`, be their units' in this process,
    unless others are already."""
    from ..machines.executable import Linked

    with _lock:
        known = _known.setdefault(machine, WeakValueDictionary())
        for key in functions.keys() - known.keys():
            known[key] = made = Linked(_at(loaded.address, functions[key]), loaded)
            _forever[id(made)] = made


def lend(functions: Functions, image: Any, machine: Machine) -> None:
    """Let code that came with a compiled model be that of its units where none can be made: in a process
    without a compiler, and without files of it. Nothing of it gets to the disk."""
    there = _lent.setdefault(machine, [])
    if not any(functions.keys() <= each.functions.keys() for each in there):
        there.append(Prelinked(image, functions))


def _borrowed(units: Sequence[Unit], machine: Machine) -> Prelinked | None:
    """Code that was lent and has all `units`, where it is needed."""
    found = next((each for each in _lent.get(machine, ())
                  if all(repr(unit) in each.functions for unit in units)), None)
    if found is None or cache.compiler() is not None:
        return None
    names = [cache.name(repr(unit), machine, unit.origin) for unit in units]
    return found if len(cache.load(name for name in names if name)) < len(set(names)) else None


def compile_all(texts: Iterable[str], count: int, machine: Machine, threads: int | None = None
                ) -> list[bytes]:
    """The objects of so many `texts`, which are written while others are compiled: by so many threads, one
    for each processor where None."""
    from .build import assemble_all

    with _telling(count) as done:
        return assemble_all(texts, machine, threads or len(usable()), done)


@contextlib.contextmanager
def _telling(count: int) -> Iterator[Callable[[], None]]:
    """Whoever waits for more than a second learns what for, on a terminal's standard error, else in the log.
    The value is called after each of `count` kernels."""
    start, made, width = time.monotonic(), 0, 0
    out = sys.stderr if sys.stderr is sys.__stderr__ else None
    terminal = out is not None and not out.closed and out.isatty()

    def done() -> None:
        nonlocal made, width
        made += 1
        if time.monotonic() - start < _PATIENCE:
            return
        text = f"orthrus: compiling kernels for this processor, once: {made} of {count}"
        if terminal:
            print(f"\r{text}", end="", file=out, flush=True)
        elif not width:
            _log.info("%s", text)
        width = len(text)
    try:
        yield done
    finally:
        if terminal and width:
            print(f"\r{' ' * width}\r", end="", file=out, flush=True)
