"""Ready-made objects: kernels that were compiled when this package was built, in one file beside this one.

In: units and the machine they are for. Out: those objects that the file holds. The file is part of the
package and as trusted as its sources, which stay the truth: an object is taken only if the very sources that
are installed made the file, if this machine answers as that one did whatever the unit's text asked of it, so
that the text would be the same, if it has every feature the object was compiled with, and if the object's
digest holds. Whatever is wrong with the file, its objects count as missing.
"""

from __future__ import annotations

import functools
import hashlib
import json
import logging
import os
import struct
import zlib
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, NamedTuple, Protocol

from ...locks import lock
from ..machines.machine import Machine
from ..machines.questions import agrees
from .cache import generators, own

PLACE = os.path.join(os.path.dirname(__file__), "kernels.pack")
MAGIC = b"orthpack"
GROUP = 16
"""Objects that are compressed together."""

_HEAD = struct.Struct(f"<{len(MAGIC)}s32sQQ")
"""What every file begins with: the digest of the head and the table, and their lengths."""
_ROW = struct.Struct("<16s32sHHIII")
"""A row of the table: key, digest, which machine and which questions, which group, and where in that."""
_LARGEST = 64 << 20
"""Bytes of a part of the file at most."""
_log = logging.getLogger("orthrus")
_lock = lock()


class Unit(Protocol):
    """Something that can be compiled; see `library.Unit`."""

    @property
    def origin(self) -> str:
        """The file whose code writes it."""


class Ready(NamedTuple):
    """An object: the unit that it is of, as its `repr` says; the machine it was compiled for, and what was
    asked of that for its text."""

    unit: str
    machine: Machine
    asked: Mapping[str, Any]
    data: bytes


def key(unit: str) -> bytes:
    """What a unit goes by in the table."""
    return hashlib.sha256(unit.encode()).digest()[:16]


def packed(objects: Sequence[Ready], sources: str) -> bytes:
    """The file of `objects`, which generators of the digest `sources` made."""
    machines: dict[str, int] = {}
    questions: dict[str, int] = {}
    rows, groups, at = [], list[bytes](), 0
    ordered = sorted(objects, key=lambda each: (each.unit, _described(each.machine)))
    for start in range(0, len(ordered), GROUP):
        group, at = ordered[start:start + GROUP], 0
        for each in group:
            machine = machines.setdefault(_described(each.machine), len(machines))
            asked = questions.setdefault(json.dumps(dict(sorted(each.asked.items()))), len(questions))
            rows.append(_ROW.pack(key(each.unit), hashlib.sha256(each.data).digest(), machine, asked,
                                  len(groups), at, len(each.data)))
            at += len(each.data)
        groups.append(zlib.compress(b"".join(each.data for each in group), 9))
    about = {"sources": sources, "machines": list(map(json.loads, machines)),
             "questions": list(map(json.loads, questions)), "groups": list(map(len, groups))}
    head = json.dumps(about).encode()
    table = b"".join(sorted(rows))
    digest = hashlib.sha256(head + table).digest()
    return b"".join((_HEAD.pack(MAGIC, digest, len(head), len(table)), head, table, *groups))


def _described(machine: Machine) -> str:
    return json.dumps({each.name: getattr(machine, each.name) for each in fields(Machine)})


class Row(NamedTuple):
    """Where an object lies: the machine it was compiled for, its digest, its group and its place in that."""

    machine: Machine
    digest: bytes
    group: int
    start: int
    size: int


class Pack:
    """A file of ready-made objects. Raises OSError or ValueError for one that does not hold, or that other
    sources made."""

    def __init__(self, path: str) -> None:
        self.path = path
        with open(path, "rb") as file:
            magic, digest, head, table = _HEAD.unpack(_exactly(file, _HEAD.size))
            if magic != MAGIC:
                raise ValueError("it is no pack of kernels")
            content = _exactly(file, head + table)
        if hashlib.sha256(content).digest() != digest:
            raise ValueError("it is damaged")
        about = json.loads(content[:head])
        if not generators() or about["sources"] != generators():
            raise ValueError("other sources made it")
        self._table = content[head:]
        self._machines = [_machine(each) for each in about["machines"]]
        self._questions: list[dict[str, Any]] = about["questions"]
        begin, self._groups = _HEAD.size + len(content), list[tuple[int, int]]()
        for size in about["groups"]:
            self._groups.append((begin, size))
            begin += size
        self._fits: dict[tuple[Machine, int, int], bool] = {}

    def __len__(self) -> int:
        return len(self._table) // _ROW.size

    def row(self, unit: str, machine: Machine) -> Row | None:
        """What there is of a unit for `machine`."""
        wanted, each = key(unit), _ROW.size
        at = bisect_left(range(len(self)), wanted, key=lambda i: self._table[each * i:each * i + len(wanted)])
        for i in range(at, len(self)):
            found, digest, which, asked, group, start, size = _ROW.unpack_from(self._table, _ROW.size * i)
            if found != wanted:
                return None
            if self._fit(machine, which, asked):
                return Row(self._machines[which], digest, group, start, size)
        return None

    def _fit(self, machine: Machine, which: int, asked: int) -> bool:
        case = machine, which, asked
        if case not in self._fits:
            self._fits[case] = machine.runs(self._machines[which]) and agrees(machine, self._questions[asked])
        return self._fits[case]

    def find(self, units: Mapping[int, str], machine: Machine) -> dict[int, bytes]:
        """The objects of those of `units` that are there for `machine`. Raises OSError and zlib.error."""
        wanted: dict[int, list[tuple[int, Row]]] = {}
        for i, unit in units.items():
            row = self.row(unit, machine)
            if row is not None:
                wanted.setdefault(row.group, []).append((i, row))
        found: dict[int, bytes] = {}
        if wanted:
            with open(self.path, "rb") as file:
                for group, rows in wanted.items():
                    begin, size = self._groups[group]
                    file.seek(begin)
                    content = zlib.decompress(_exactly(file, size))
                    for i, row in rows:
                        data = content[row.start:row.start + row.size]
                        if hashlib.sha256(data).digest() == row.digest:
                            found[i] = data
                        else:
                            _log.debug("%s: an object is damaged", self.path)
        return found


def _exactly(file: Any, size: int) -> bytes:
    content: bytes = file.read(size) if size <= _LARGEST else b""
    if len(content) != size:
        raise ValueError("it breaks off")
    return content


def _machine(described: Mapping[str, Any]) -> Machine:
    given: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value
                             for name, value in described.items()}
    return Machine(**given)


@functools.cache
def opened(path: str) -> Pack | None:
    """The pack at `path`, None where there is none that holds."""
    try:
        return Pack(path)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError, struct.error) as error:
        _log.debug("the ready-made kernels in %s are not used: %s", path, error)
        return None


def find(units: Sequence[Unit], machine: Machine) -> dict[int, bytes]:
    """The ready-made objects of `units`, by their places there."""
    with _lock:
        there = opened(PLACE)
        if there is None:
            return {}
        try:
            mine = {i: repr(unit) for i, unit in enumerate(units) if own(unit.origin)}
            return there.find(mine, machine)
        except (OSError, ValueError, AttributeError, IndexError, zlib.error) as error:
            _log.debug("the ready-made kernels in %s are not used: %s", PLACE, error)
            return {}
