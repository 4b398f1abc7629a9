"""`orthrus compile --emit`: a model in, files for programs without Python out.

In: a model, a form of `FORMS`, a name, the machines and sizes it is for. Out: files in a folder, each there
as a whole or not at all. An object file and its sources are written by this package alone; what has to be
linked takes a C compiler.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ...codegen.machines.machine import Machine
from ...errors import Fail, InvalidArgument
from ...ir import ElementType
from ...lowering.package.layout import DIGEST, DIM, Head, Row
from ...lowering.package.writer import Pieces
from ...records import dataclass
from ..compile import Sizes, machine_named, package
from . import build_files, wheel
from .elf import Blob, relocatable
from .interface import SHIPPED, SOURCES, Interface, Value, header, name_for, named, source
from .toolchain import FLAGS, Toolchain, find

WEIGHTS = ("inside", "beside")
_MAGIC, _AT, _PAGE = b"orthrusW", 64, 4096
"""What a file of weights begins with, where in it the weights begin: `c/model.c` has the same."""



@dataclass(frozen=True)
class _Model:
    """A compiled model: what it looks like in C, and its package."""

    interface: Interface
    pieces: Pieces
    arch: str

    @property
    def name(self) -> str:
        return self.interface.name

    def object(self, folder: Path) -> Path:
        """Write the object file, and where they lie beside it the weights."""
        blobs = [Blob(f"{self.name}_package", [self.pieces.head], align=_PAGE)]
        blobs += [Blob(f"{self.name}_code_{i}", [image], code=True, align=_PAGE)
                  for i, image in enumerate(self.pieces.images)]
        if not self.interface.beside:
            blobs.append(Blob(f"{self.name}_weights", self.pieces.constants or [bytes(_AT)], align=_PAGE))
        return _written(folder / f"{self.name}.o", relocatable(self.arch, blobs))

    def weights(self, folder: Path) -> list[Path]:
        """Write the file of weights, where there is one."""
        if not self.interface.beside:
            return []
        front = _MAGIC + _words(self.pieces)[Head.CONSTANTS_DIGEST:Head.CONSTANTS_DIGEST + DIGEST].tobytes()
        pieces = [front, bytes(_AT - len(front)), *self.pieces.constants]
        return [_written(folder / f"{self.name}.weights", pieces)]

    def headers(self, folder: Path) -> list[Path]:
        """Write the model's header, and copy those it includes."""
        made = [_written(folder / f"{self.name}.h", [header(self.interface).encode()])]
        return made + [_written(folder / file.name, [file.read_bytes()]) for file in SHIPPED]

    def source(self, folder: Path) -> Path:
        """Write what is compiled beside the object file."""
        text = source(self.interface, len(self.pieces.head), len(self.pieces.images))
        return _written(folder / f"{self.name}.c", [text.encode()])


def emit(model: Any, form: str = "library", name: str = "", folder: str | os.PathLike[str] = "",
         sizes: Sizes | None = None, targets: Sequence[str] = (), weights: str = "inside", *,
         level: int = 99, options: Mapping[str, str] | None = None, force: bool = False) -> list[Path]:
    """Compile a model ahead of time; answers the files that were written.

    `model`: a path, bytes, or what else a session takes. `form`: one of `FORMS`. `name`: what all its
    symbols begin with, the model's file's by default. `folder`: where to write, `name` by default. `sizes`:
    by name of a dimension, or `input:axis` of one, the sizes it may have, or the name of another that it
    always equals. `targets`: names
    of machines, all of one architecture, the best first: the first of them that the processor supports is
    chosen when the model is opened; this machine by default. `weights`: "inside", or "beside" for a file of
    their own. `level`: the highest optimization level; `options`: the CPU provider's. `force`: write over
    files that are there.

    Raises InvalidArgument for a name, a form, a target or a size that cannot be; NotImplemented for a model
    with nodes that no code is generated for, with their names; Fail where files are there, or a C compiler is
    needed and missing or fails; what loading a model raises.
    """
    if form not in FORMS:
        raise InvalidArgument("no such form", found=form, expected=f"one of {', '.join(FORMS)}")
    if weights not in WEIGHTS:
        raise InvalidArgument("weights lie elsewhere", found=weights, expected=f"one of {', '.join(WEIGHTS)}")
    if not name:
        name = name_for(Path(model).stem) if isinstance(model, (str, os.PathLike)) else "model"
    named(name)
    if form == "python-free-wheel":
        wheel.named(name)
    target = Path(folder or name).absolute()
    machines = _machines(targets)
    tools = _tools(form, machines[0].arch)
    pieces = package(model, machines, sizes, level, options)
    made = _Model(_interface(name, pieces, sizes or {}, machines, weights == "beside"), pieces,
                  machines[0].arch)
    target.mkdir(parents=True, exist_ok=True)
    try:
        with tempfile.TemporaryDirectory(dir=target, prefix=".orthrus-") as work:
            out = Path(work) / "out"
            out.mkdir()
            files = FORMS[form](made, Path(work), out, tools)
            return _moved(files, out, target, force)
    finally:
        with contextlib.suppress(OSError):
            target.rmdir()


def _machines(targets: Sequence[str]) -> list[Machine]:
    machines = [machine_named(name) for name in targets or ("host",)]
    if len({m.arch for m in machines}) > 1:
        raise InvalidArgument("an object file is for one architecture", found=", ".join(targets),
                              cure="compile once for each")
    if len(set(machines)) < len(machines):
        raise InvalidArgument("a target is named twice", found=", ".join(targets))
    if "linux" not in machines[0].triple:
        raise InvalidArgument("object files are made for Linux", found=machines[0].triple,
                              cure="name a target: --target neon")
    return machines


def _tools(form: str, arch: str) -> Toolchain | None:
    """Asked for before the work of compiling, as it may be missing."""
    return None if form in ("object", "header") else find(arch, static=form == "executable")


def _words(pieces: Pieces) -> np.ndarray:
    return np.frombuffer(pieces.head, np.int64, len(pieces.head) // 8)


def _interface(name: str, pieces: Pieces, sizes: Sizes, machines: Sequence[Machine], beside: bool
               ) -> Interface:
    """What a program sees of the model in a package."""
    words = _words(pieces)
    size = int(words[Head.CONSTANTS_SIZE])
    inputs = [_value(pieces, int(at), True) for at in _rows(words, Head.INPUTS, Head.INPUTS_COUNT)]
    outputs = [_value(pieces, int(at), False) for at in _rows(words, Head.OUTPUTS, Head.OUTPUTS_COUNT)]
    open_sizes = {d for v in inputs for d in v.shape}
    told = {key: _told([*map(int, given)]) for key, given in sizes.items() if key in open_sizes}
    return Interface(name, inputs, outputs, told, [m.label for m in machines], size if beside else 0)


def _rows(words: np.ndarray, at: int, count: int) -> range:
    begin = int(words[at])
    return range(begin, begin + Row.WORDS * int(words[count]), Row.WORDS)


def _value(pieces: Pieces, at: int, given: bool) -> Value:
    """The input or output whose row begins with word `at`; a size of an input without a name has that which
    `sizes` knows it by."""
    words = _words(pieces)

    def text(begin: int) -> str:
        begin += int(words[Head.TEXT])
        return pieces.head[begin:pieces.head.index(0, begin)].decode("utf-8", "replace")
    name = text(int(words[at + Row.NAME]))
    dims = words[int(words[at + Row.DIMS]):][:DIM * int(words[at + Row.RANK])].reshape(-1, DIM)
    shape = [int(size) if size >= 0 else text(int(n)) or (f"{name}:{axis}" if given else None)
             for axis, (size, n) in enumerate(dims)]
    return Value(name, ElementType(int(words[at + Row.TYPE])), tuple(shape))


def _told(sizes: list[int]) -> str:
    """Sizes in words."""
    if len(sizes) > 2 and sizes == list(range(sizes[0], sizes[-1] + 1)):
        return f"{sizes[0]} to {sizes[-1]}"
    return ", ".join(map(str, sizes[:20])) + (", ..." if len(sizes) > 20 else "")


def _written(path: Path, pieces: Iterable[Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "wb") as file:
        for piece in pieces:
            file.write(piece)
    return path


def _moved(files: Sequence[Path], source_folder: Path, target: Path, force: bool) -> list[Path]:
    """Files to their places below `target`, once all of them are made."""
    places = [target / file.relative_to(source_folder) for file in files]
    for place in places:
        if place.exists() and not force:
            raise Fail(f"{place} exists already", cure="--force writes over it, --out names another folder")
    for file, place in zip(files, places, strict=True):
        place.parent.mkdir(parents=True, exist_ok=True)
        os.replace(file, place)
    return places


def _header(made: _Model, work: Path, out: Path, tools: Toolchain | None) -> list[Path]:
    return made.headers(out)


def _object(made: _Model, work: Path, out: Path, tools: Toolchain | None) -> list[Path]:
    return [made.object(out), made.source(out), *made.headers(out), *made.weights(out)]


def _compiled(made: _Model, work: Path, tools: Toolchain) -> list[Path]:
    """The object files of which a library is made: the model's, and the runtime's."""
    made.headers(work)
    runtime = work / f"{made.name}_runtime.o"
    tools.run([*tools.cc, *FLAGS, "-fPIC", "-fvisibility=hidden", "-ffunction-sections", "-c",
               made.source(work), "-o", runtime], work)
    return [made.object(work), runtime]


def _shared(made: _Model, objects: Sequence[Path], folder: Path, work: Path, tools: Toolchain) -> Path:
    """A shared library. It stays once it is loaded, as threads of the pool may sit in its code."""
    folder.mkdir(parents=True, exist_ok=True)
    library = folder / f"lib{made.name}.so"
    tools.run([*tools.cc, "-shared", *objects, "-o", library, f"-Wl,-soname,{library.name}",
               "-Wl,-z,nodelete", "-Wl,-z,noexecstack", "-Wl,--gc-sections", "-pthread"], work)
    return library


def _library(made: _Model, work: Path, out: Path, tools: Toolchain | None) -> list[Path]:
    assert tools is not None
    objects, folder = _compiled(made, work, tools), out / "lib"
    files = [_shared(made, objects, folder, work, tools), folder / f"lib{made.name}.a"]
    tools.run([*tools.ar, "rcs", files[1], *objects], work)
    for file, text in build_files.texts(made.name).items():
        files.append(_written(folder / file, [text.encode()]))
    return [*files, *made.weights(folder), *made.headers(out / "include")]


def _executable(made: _Model, work: Path, out: Path, tools: Toolchain | None) -> list[Path]:
    assert tools is not None
    objects, program = _compiled(made, work, tools), out / made.name
    tools.run([*tools.cc, *FLAGS, f'-DMODEL_HEADER="{made.name}.h"', f"-DMODEL_LIBRARY={made.name}_library",
               "-I", work, "-static", SOURCES / "main.c", *objects, "-o", program, "-pthread"], work)
    return [program, *made.weights(out)]


def _wheel(made: _Model, work: Path, out: Path, tools: Toolchain | None) -> list[Path]:
    assert tools is not None
    folder = work / made.name
    library = _shared(made, _compiled(made, work, tools), folder, work, tools)
    shutil.copy(Path(__file__).with_name("in_wheel.py"), folder / "__init__.py")
    return [wheel.write(made.name, [folder / "__init__.py", library, *made.weights(folder)], made.arch, out)]


FORMS: dict[str, Callable[[_Model, Path, Path, Toolchain | None], list[Path]]] = {
    "object": _object, "header": _header, "library": _library, "executable": _executable,
    "python-free-wheel": _wheel}
"""What is made: an object file with the sources to compile with it; the headers alone; a shared and a static
library; a program that needs nothing else; a Python package that needs numpy and not this one."""
