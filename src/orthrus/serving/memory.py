"""Shared memory of a client on this machine: regions it has made, read and written in place of a body.

In: a region's name, the name of a POSIX shared memory object, an offset and a size. Out: bytes of it, and
bytes into it. Objects are read and written as files are, never mapped: a client that makes its object
shorter or changes it meanwhile gets a Refusal or another result, and can't end the server.
"""

from __future__ import annotations

import os
import re
import stat
import sys
from typing import Any

from ..records import dataclass
from .refusals import Kind, Refusal, invalid, unknown, unsupported

KEY = re.compile(r"/?[A-Za-z0-9_.\-]{1,250}")
FOLDER = "/dev/shm"
MOST_REGIONS = 1024


@dataclass(frozen=True)
class Region:
    """`offset` and `byte_size` are within the object `key`."""

    name: str
    key: str
    offset: int
    byte_size: int
    file: int


class Regions:
    """The regions that clients have registered. `most`: bytes of one read."""

    def __init__(self, most: int) -> None:
        self._regions, self.most = dict[str, Region](), most

    def register(self, name: str, key: str, offset: int, byte_size: int) -> None:
        """Open an object as a region. Raises Refusal."""
        if not sys.platform.startswith("linux"):
            raise unsupported("shared memory is taken on Linux only; send the tensors with the request")
        if not name or len(name) > 250:
            raise invalid(f"a region's name has 1 to 250 characters, this one {len(name)}")
        if name in self._regions:
            raise invalid(f"shared memory region {name!r} is registered already: unregister it first")
        if len(self._regions) >= MOST_REGIONS:
            raise Refusal(Kind.FULL, f"{MOST_REGIONS} regions are registered, which is as many as may be")
        if not KEY.fullmatch(key) or key.strip("/.") == "":
            raise invalid(f"shared memory key {key!r:.100}: expected a name such as '/input_data'")
        _size("offset", offset)
        _size("byte_size", byte_size)
        try:
            file = os.open(f"{FOLDER}/{key.removeprefix('/')}", os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
                           | os.O_NONBLOCK)
        except OSError as error:
            raise invalid(f"shared memory object {key!r} can't be opened: {error.strerror}") from None
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode) or offset + byte_size > status.st_size:
            os.close(file)
            raise invalid(f"shared memory object {key!r} has {status.st_size} bytes; offset {offset} and "
                          f"byte_size {byte_size} reach beyond" if stat.S_ISREG(status.st_mode)
                          else f"{key!r} is no shared memory object")
        self._regions[name] = Region(name, key, offset, byte_size, file)

    def unregister(self, name: str = "") -> None:
        """Close a region, or all. Raises nothing for one that is not there, as Triton does not."""
        for each in [name] if name else list(self._regions):
            if (region := self._regions.pop(each, None)) is not None:
                os.close(region.file)

    def status(self, name: str = "") -> dict[str, dict[str, Any]]:
        if name and name not in self._regions:
            raise unknown(f"no shared memory region {name!r:.260} is registered")
        return {each: {"name": each, "key": region.key, "offset": region.offset,
                       "byte_size": region.byte_size}
                for each, region in self._regions.items() if not name or each == name}

    def _place(self, name: Any, offset: Any, size: Any) -> tuple[Region, int]:
        region = self._regions.get(name) if isinstance(name, str) else None
        if region is None:
            raise invalid(f"no shared memory region {name!r:.260} is registered")
        _size("shared_memory_offset", offset)
        _size("shared_memory_byte_size", size)
        if offset + size > region.byte_size:
            raise invalid(f"shared memory region {region.name!r} has {region.byte_size} bytes; offset "
                          f"{offset} and {size} bytes reach beyond")
        if size > self.most:
            raise invalid(f"{size} bytes of shared memory; at most {self.most} are read or written at once")
        return region, region.offset + offset

    def read(self, name: Any, offset: Any, size: Any) -> bytearray:
        """Bytes of a region."""
        region, place = self._place(name, offset, size)
        data = bytearray(size)
        view, got = memoryview(data), 0
        while got < size:
            some = os.preadv(region.file, [view[got:]], place + got)
            if not some:
                raise invalid(f"shared memory object {region.key!r} has become shorter than its region")
            got += some
        return data

    def write(self, name: Any, offset: Any, size: Any, data: bytes | memoryview) -> None:
        """Bytes into a region."""
        region, place = self._place(name, offset, size)
        if len(data) > size:
            raise invalid(f"an output of {len(data)} bytes; the request gives it {size} in shared memory")
        if os.fstat(region.file).st_size < place + len(data):
            raise invalid(f"shared memory object {region.key!r} has become shorter than its region")
        view, put = memoryview(data), 0
        while put < len(data):
            put += os.pwrite(region.file, view[put:], place + put)


def _size(what: str, value: Any) -> None:
    if value.__class__ is not int or value < 0 or value >> 62:
        raise invalid(f"{what} is {value!r:.100}; expected a whole number from 0 on")
