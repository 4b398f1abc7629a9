"""Generated code as files: kernels written where a person can read them, and read back once edited.

In: units of the library, of which those that are a `Spec` are kernels. Out: `<kernel>.ll` and `<kernel>.s` in
the dump's folder, and in the place of a kernel whose file lies in the folder of ORTHRUS_OVERRIDE, that file's
text. An edited kernel has a name of its own in the library and never gets into the cache. It is checked
before anything runs: it has to compile, to define the function `kernel`, and to call nothing outside itself.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeGuard

from ... import knobs
from ...errors import Fail
from ..machines.machine import Machine
from ..write.spec import ENTRY, Spec

if TYPE_CHECKING:
    from ..machines.executable import Linked
    from .library import Unit

_TYPES = ["ptr", "i64", "i64", "ptr"]

_used: dict[str, set[str]] = {}
"""Per folder of edited kernels those that have taken a kernel's place."""


def file_name(spec: Spec) -> str:
    """What a kernel is called among dumped ones: its template and a digest of its parameters, the same in
    every process."""
    return f"{spec.template}_{hashlib.blake2b(repr(spec).encode(), digest_size=5).hexdigest()}"


class Edited(NamedTuple):
    """A unit read from a file; `digest` tells it from the same file with another text."""

    path: str
    digest: str
    written: str

    @property
    def origin(self) -> str:
        return self.path

    def text(self, machine: Machine) -> str:
        """The file's text."""
        return self.written


def replaced(units: Sequence[Unit]) -> list[Unit]:
    """`units`, each with an edited file where there is one. Raises Fail for a file that is no text."""
    folder = knobs.OVERRIDE.value
    if not folder:
        return list(units)
    return [(_edit(os.path.join(folder, file_name(unit) + ".ll"), folder) if _is_kernel(unit) else None)
            or unit for unit in units]


def _is_kernel(unit: Unit) -> TypeGuard[Spec]:
    return isinstance(unit, Spec)


def edited(spec: Spec) -> bool:
    """Whether an edited file takes the place of a kernel."""
    folder = knobs.OVERRIDE.value
    return bool(folder) and _is_kernel(spec) and os.path.isfile(
        os.path.join(folder, file_name(spec) + ".ll"))


def _edit(path: str, folder: str) -> Edited | None:
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise Fail(f"the edited kernel {path} cannot be read", found=error) from None
    _used.setdefault(folder, set()).add(os.path.basename(path))
    return Edited(path, hashlib.sha256(text.encode()).hexdigest(), text)


@functools.cache
def checked(unit: Edited, machine: Machine) -> Linked:
    """An edited unit's functions. Raises Fail with the file's name and LLVM's words."""
    from .build import assemble
    from .link import link

    cure = "correct the file, or take it out of the folder of ORTHRUS_OVERRIDE"
    try:
        data = assemble(unit.written, machine)
        assert isinstance(data, bytes)
        found = link([data])[0]
    except (RuntimeError, ValueError) as error:
        raise Fail(f"the edited kernel {unit.path} does not compile", found=str(error).strip(), cure=cure
                   ) from None
    if ENTRY not in found:
        raise Fail(f"the edited kernel {unit.path} does not define @{ENTRY}",
                   found=", ".join("@" + name for name in found) or "no function", cure=cure)
    head = re.search(rf"^define\s([^@\n]*)@{ENTRY}\(([^)\n]*)\)", unit.written, re.M)
    if head is None or "void" not in head[1] or re.findall(r"(?:^|,)\s*(\w+)", head[2]) != _TYPES:
        raise Fail(f"the edited kernel {unit.path} takes or gives something else than a kernel does",
                   found=head[0] if head else f"no line that defines @{ENTRY}",
                   expected=f"define void @{ENTRY}(ptr %args, i64 %lo, i64 %hi, ptr %scratch)", cure=cure)
    return found


def check_folder(machine: Machine) -> None:
    """Compile every edited kernel there is, so that one that does not hold ends the making of a session and
    not its runs. Raises Fail as `checked` does, or where the folder of ORTHRUS_OVERRIDE is none."""
    folder = knobs.OVERRIDE.value
    if not folder:
        return
    try:
        names = sorted(name for name in os.listdir(folder) if name.endswith(".ll"))
    except OSError as error:
        raise Fail(f"the folder {folder} of ORTHRUS_OVERRIDE cannot be read", found=error,
                   cure="name a folder with edited kernels, or unset it") from None
    for name in names:
        unit = _edit(os.path.join(folder, name), folder)
        assert unit is not None
        _used[folder].discard(name)
        checked(unit, machine)


def unused() -> list[str]:
    """The files in the folder of ORTHRUS_OVERRIDE that took no kernel's place yet."""
    folder = knobs.OVERRIDE.value
    if not folder or not os.path.isdir(folder):
        return []
    return sorted(name for name in os.listdir(folder)
                  if name.endswith(".ll") and name not in _used.get(folder, ()))


def dump(units: Sequence[Unit], machine: Machine) -> None:
    """Write the kernels and their assembly to the dump's folder, if there is one. The folder of edited
    kernels keeps what it has."""
    folder = knobs.dump_folder("code")
    if folder is None:
        return
    from .build import assemble

    os.makedirs(folder, exist_ok=True)
    mine = bool(knobs.OVERRIDE) and os.path.realpath(folder) == os.path.realpath(knobs.OVERRIDE.value)
    for unit in units:
        if not _is_kernel(unit):
            continue
        path = os.path.join(folder, file_name(unit))
        if mine and os.path.exists(path + ".ll"):
            continue
        text = f"; {' '.join(str(unit).split())}\n{unit.text(machine)}"
        try:
            with open(path + ".ll", encoding="utf-8") as file:
                if file.read() == text and os.path.exists(path + ".s"):
                    continue
        except OSError:
            pass
        with open(path + ".ll", "w", encoding="utf-8") as file:
            file.write(text)
        with open(path + ".s", "w", encoding="utf-8") as file:
            file.write(str(assemble(text, machine, listing=True)))
