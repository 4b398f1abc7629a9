"""Every environment switch, declared once; nothing else reads `ORTHRUS_` variables.

A switch takes its value from the environment when this module is imported; a name nobody declared, or a value
that is not of the switch's type, is an error that says what is known. `python -m orthrus.knobs` lists them.
"""

from __future__ import annotations

import contextlib
import difflib
import os
from collections.abc import Iterator, Mapping
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
CHECK = Knob("CHECK", 0, "1 verify the graph after each pass, 2 compare every step with its definition")
SKIP = Knob("SKIP", "", "comma-separated names of passes to leave out")
STOP = Knob("STOP", -1, "apply only the first N rewrites; bisect a wrong result with it")
DUMP = Knob("DUMP", "", "folder that receives the graph after each pass as numbered text files")
SEED = Knob("SEED", -1, "seed of everything random; -1 draws one")
CODEGEN = Knob("CODEGEN", 1, "0 generates no machine code: everything runs on numpy")
CACHE = Knob("CACHE", 1, "0 neither reads nor writes the cache of generated code")
CACHE_DIR = Knob("CACHE_DIR", "", "folder of that cache; orthrus in the user's cache folder where empty")
THREADS = Knob("THREADS", 0, "threads a run uses at most; 0 for one per core")


def names(knob: Knob[str]) -> frozenset[str]:
    """The comma-separated names a switch such as SKIP holds."""
    return frozenset(name.strip() for name in knob.value.split(",") if name.strip())


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
        print(f"{PREFIX}{each.name:<9} {each.value!r:<6} {each.doc}")
