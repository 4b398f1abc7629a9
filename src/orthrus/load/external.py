"""Tensor data outside the model file: found, checked and mapped without ever leaving the model's folder, as
`folder` says.

Large data is mapped privately and read-only: as with any mapping, whoever truncates the file while a session
lives makes the operating system end the process. Where that has to be ruled out, data is read into memory
instead (`mapped`, ORTHRUS_MAP). Pages of the mapping are in the process's memory while somebody holds what he
looked at.
"""

from __future__ import annotations

import mmap
import os
import weakref
from functools import partial
from typing import Any

import numpy as np

from .. import knobs
from ..errors import Fail
from ..ir import ElementType
from ..limits import DEFAULT
from ..memory import discarded, passing
from ..modelfile import read_into
from .folder import Folder
from .source import Payload, open_source
from .tensors import element_type, packed_bytes, to_array

_KEYS = frozenset({"location", "offset", "length", "checksum", "basepath"})
_MAP_ABOVE = 1 << 16
_ALIGNED = 16
_INT64_MAX = (1 << 63) - 1


class ExternalData:
    """The data files of one model. `root`, `path`: see `Folder`. `mapped`: whether large files are mapped
    rather than read."""

    def __init__(self, root: str | None, path: str | None = None, mapped: bool = True) -> None:
        self.folder, self.mapped = Folder(root, path), mapped and bool(knobs.MAP)
        self._files: dict[str, tuple[int, Any]] = {}

    @property
    def used(self) -> tuple[str, ...]:
        """The files that something was read from, as the model names them."""
        return tuple(self._files)

    def read(self, tensor: Any, element: ElementType, shape: tuple[int, ...]) -> Any:
        """The bytes of `tensor`. Raises Fail if they cannot be had safely."""
        name = tensor.name
        entries: dict[str, str] = {}
        for entry in tensor.external_data:
            if entry.key not in _KEYS:
                raise self._refusal(
                    name, f"unknown key {entry.key!r} in external_data", expected=sorted(_KEYS)
                )
            if entry.key in entries:
                raise self._refusal(name, f"the key {entry.key!r} appears twice in external_data")
            entries[entry.key] = entry.value
        location = entries.get("location", "")
        count = 1
        for d in shape:
            count *= d
        needed = packed_bytes(count, element)
        offset = self._number(name, entries, "offset", 0)
        length = self._number(name, entries, "length", needed)
        if length != needed:
            raise self._refusal(
                name,
                "the length in external_data does not match the tensor",
                found=f"{length} bytes",
                expected=f"{needed} bytes for shape {list(shape)} of {element.text}",
            )
        size, data = self._open(name, location)
        if offset > size or length > size - offset:
            raise self._refusal(name, f"External data ends before offset {offset} + length {length}",
                                found=f"{size} bytes in {location!r}",
                                cure="download or copy the data file again, and compare its size")
        try:
            return data[offset:offset + length] if length else b""
        except OSError as error:
            raise self._refusal(name, f"External data {location!r} cannot be read", found=error) from None

    def _number(self, name: str, entries: dict[str, str], key: str, default: int) -> int:
        text = entries.get(key)
        if text is None:
            return default
        if not (text.isascii() and text.isdigit() and len(text) < 20) or int(text) > _INT64_MAX:
            raise self._refusal(name, f"the {key} in external_data is not valid", found=repr(text)[:60],
                                expected="a decimal number that is not negative")
        return int(text)

    def _open(self, name: str, location: str) -> tuple[int, Any]:
        if location in self._files:
            return self._files[location]
        handle = self.folder.open(location, partial(self._refusal, name))
        try:
            size = os.fstat(handle).st_size
            data: Any
            if not self.mapped:
                data = _Unmapped(handle, size)
            elif size > _MAP_ABOVE:
                data = _Mapped(handle, size)
            else:
                with os.fdopen(os.dup(handle), "rb") as file:
                    data = memoryview(file.read(_MAP_ABOVE + 1))
            self._files[location] = found = (len(data), data)
        except (OSError, ValueError) as error:
            raise self._refusal(name, f"External data {location!r} cannot be read", found=error) from None
        finally:
            os.close(handle)
        return found

    def _refusal(self, name: str, text: str, **rows: Any) -> Fail:
        return Fail(f"External data path validation failed for initializer: {name}. Error: {text}", **rows)


def places(source: Any) -> dict[str, tuple[str, int, int, np.ndarray]]:
    """Where the initializers of a model lie that lie outside it: file, offset, bytes, and the array. Raises
    what loading raises."""
    opened = open_source(source, DEFAULT, None)
    data, found = ExternalData(opened.root, opened.path), {}
    for tensor in opened.model.graph.initializer:
        if tensor.data_location == tensor.EXTERNAL:
            array = to_array(tensor, opened.payload, data.read)
            entries = {entry.key: entry.value for entry in tensor.external_data}
            size = packed_bytes(array.size, element_type(tensor.data_type, f"initializer '{tensor.name}'"))
            found[tensor.name] = entries["location"], int(entries.get("offset", 0)), size, array
    return found


class _Unmapped:
    """A file whose pieces are in memory of their own."""

    def __init__(self, handle: int, size: int) -> None:
        self._handle, self._size = os.dup(handle), size
        weakref.finalize(self, os.close, self._handle).atexit = False

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, piece: slice) -> np.ndarray:
        out, done = passing(piece.stop - piece.start), 0
        while done < len(out):
            count = read_into(self._handle, out.data[done:], piece.start + done)
            if not count:
                raise OSError("the file ends early")
            done += count
        out.flags.writeable = False
        return out


class _Mapped:
    """A file whose pieces are payloads, looked at where they lie."""

    def __init__(self, handle: int, size: int) -> None:
        if hasattr(mmap, "MAP_PRIVATE"):
            self.pages = mmap.mmap(handle, size, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ)
        else:
            self.pages = mmap.mmap(handle, size, access=mmap.ACCESS_READ)

    def __len__(self) -> int:
        return len(self.pages)

    def __getitem__(self, piece: slice) -> Payload:
        return Payload(self, piece.start, piece.stop)

    def read(self, start: int, end: int) -> np.ndarray:
        """The bytes from `start` to `end`, of the mapping where elements of every type may begin at `start`,
        otherwise in memory of their own."""
        piece = discarded(self.pages, start, end - start)
        if not start % _ALIGNED:
            return piece
        out = passing(end - start)
        out[:] = piece
        return out
