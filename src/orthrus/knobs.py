"""Every environment switch, declared once; nothing else reads `ORTHRUS_` variables.

A switch takes its value from the environment when this module is imported; a name nobody declared, or a value
that is not of the switch's type, is an error that says what is known. `python -m orthrus.knobs` lists them.
"""

from __future__ import annotations

import contextlib
import difflib
import hashlib
import os
import re
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from typing import Generic, TypeVar

PREFIX = "ORTHRUS_"

T = TypeVar("T", int, str)
_all: dict[str, Knob[int] | Knob[str]] = {}


class Knob(Generic[T]):
    """One switch: compares with a level, is true when set, and holds its value in `.value`."""

    def __init__(self, name: str, default: T, doc: str) -> None:
        self.name, self.doc = name, doc
        self.default: T = default
        self.value: T = default
        _all[name] = self

    def __ge__(self, level: T) -> bool:
        return self.value >= level

    def __bool__(self) -> bool:
        return bool(self.value)

    def __repr__(self) -> str:
        return f"{PREFIX}{self.name}={self.value}"

    def parse(self, text: str) -> T:
        """`text` as this switch's type. Raises ValueError."""
        try:
            return type(self.default)(text)
        except ValueError:
            raise ValueError(f"{PREFIX}{self.name}={text!r}: expected a whole number; {self.doc}") from None


DEBUG = Knob("DEBUG", 0, "1 what was placed where, 2 time of each step, 3 refusals, 5 graph after each pass")
CHECK = Knob("CHECK", 0, "1 verify the graph after each pass, 2 compare every step with its definition, "
                          "3 check where every kernel reads and writes")
SKIP = Knob("SKIP", "", "comma-separated names of passes to leave out")
STOP = Knob("STOP", -1, "apply only the first N rewrites; bisect a wrong result with it")
DUMP = Knob("DUMP", "", "folder that receives what DUMP_WHAT names")
DUMP_WHAT = Knob("DUMP_WHAT", "passes", "what goes there, comma-separated: passes (the graph after each), "
                                        "parts, tensors (of each run), code (of each kernel); or all")
INTERPRET = Knob("INTERPRET", "", "comma-separated nodes or operators that numpy runs; * is any text")
OVERRIDE = Knob("OVERRIDE", "", "folder of <kernel>.ll files that take the place of generated kernels")
SEED = Knob("SEED", -1, "seed of everything random; -1 draws one")
CODEGEN = Knob("CODEGEN", 1, "0 generates no machine code: everything runs on numpy")
MACHINE = Knob("MACHINE", "", "a lesser processor that code is generated for, such as avx2 or sse2; this one "
                             "where empty")
CACHE = Knob("CACHE", 1, "0 neither reads nor writes the cache of generated code")
CACHE_DIR = Knob("CACHE_DIR", "", "folder of that cache; orthrus in the user's cache folder where empty")
CACHE_SESSIONS = Knob("CACHE_SESSIONS", 2048, "megabytes of whole sessions kept in a folder of that cache, "
                                              "0 keeps none")
MAP = Knob("MAP", 1, "0 reads tensors outside the model file into memory instead of mapping them: who cuts "
                     "such a file short then ends no process")
SHAPES = Knob("SHAPES", 1, "plans for shapes that are new: 0 lowers a part for each, 1 computes them by a "
                             "formula learnt in the background, 2 by one learnt at once")
REPRODUCE = Knob("REPRODUCE", "", "folder that receives each part that a provider's compiler fails on")
PYTHON = Knob("PYTHON", "", "Python that the C library asks to compile; the one it was built with where "
                            "empty")
SERVICE_TIMEOUT = Knob("SERVICE_TIMEOUT", 120, "seconds without a sign of life after which the C library "
                                               "gives that Python up")
IMPORT = Knob("IMPORT", "", "comma-separated modules that the C library's Python imports first: operators "
                            "and providers of yours")
THREADS = Knob("THREADS", 0, "threads a run uses at most; 0 for one per core")


def names(knob: Knob[str]) -> frozenset[str]:
    """The comma-separated names a switch such as SKIP holds."""
    return frozenset(name.strip() for name in knob.value.split(",") if name.strip())


KINDS = ("passes", "parts", "tensors", "code")
"""What can be dumped."""

_dump: ContextVar[tuple[str, str, frozenset[str]] | None] = ContextVar("dump", default=None)


_LONGEST = 80


def file_name(name: str) -> str:
    """`name` as part of a file's name: letters, digits, `.`, `-` and `_`, 80 at most, the same each time.
    What had to be changed ends in a digest, lest two names become one."""
    safe = re.sub(r"[^A-Za-z0-9._-]+", "_", name).strip("._") or "unnamed"
    if safe == name and len(safe) <= _LONGEST:
        return safe
    digest = hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=4).hexdigest()
    return f"{safe[:_LONGEST - 9]}-{digest}"


def dump_kinds(text: str) -> frozenset[str]:
    """The kinds a text such as `parts,code` names. Raises ValueError for one there is not."""
    found = {word.strip() for word in text.split(",") if word.strip()}
    if not found <= {*KINDS, "all"}:
        raise ValueError(f"{text!r} names nothing that can be dumped; expected some of {', '.join(KINDS)}, "
                         "separated by commas, or all")
    return frozenset(KINDS) if "all" in found else frozenset(found)


def dump_folder(kind: str) -> str | None:
    """The folder for dumps of `kind`, None where nobody asked for them: that of `dumping` on this thread,
    else what the switches say."""
    given = _dump.get()
    if given is None and not DUMP:
        return None
    shared, own, kinds = given or (DUMP.value, DUMP.value, dump_kinds(DUMP_WHAT.value))
    return os.path.join(shared if kind == "code" else own, kind) if kind in kinds else None


@contextlib.contextmanager
def dumping(shared: str, own: str, kinds: frozenset[str]) -> Iterator[None]:
    """For the length of a `with` block and on this thread alone, dump `kinds` to folders below `own`, code
    below `shared`."""
    token = _dump.set((shared, own, kinds))
    try:
        yield
    finally:
        _dump.reset(token)


def switches() -> dict[str, tuple[int | str, bool, str]]:
    """Every switch by the name of its variable: its value, whether it differs from the default, its
    meaning."""
    return {PREFIX + name: (knob.value, knob.value != knob.default, knob.doc) for name, knob in _all.items()}


@contextlib.contextmanager
def setting(**values: int | str) -> Iterator[None]:
    """Set switches for the length of a `with` block: `setting(CHECK=1)`. Raises ValueError for an unknown
    one."""
    before = {name: _find(name).value for name in values}
    try:
        for name, value in values.items():
            _find(name).value = value
        yield
    finally:
        for name, old in before.items():
            _all[name].value = old


def read(environ: Mapping[str, str]) -> None:
    """Take the switches' values from `environ`. Raises ValueError for an unknown switch or a value of the
    wrong type."""
    for name, text in environ.items():
        if name.startswith(PREFIX):
            knob = _find(name.removeprefix(PREFIX))
            knob.value = knob.parse(text)


def _find(name: str) -> Knob[int] | Knob[str]:
    if name in _all:
        return _all[name]
    near = difflib.get_close_matches(name, _all, 1)
    raise ValueError(f"unknown switch {PREFIX}{name}" + (f"; did you mean {PREFIX}{near[0]}?" if near else
                                                        f"; known are {', '.join(_all)}"))


read(os.environ)

if __name__ == "__main__":
    for each in _all.values():
        print(f"{PREFIX}{each.name:<14} {each.value!r:<8} {each.doc}")
