"""Tensor data outside the model file: found, checked and mapped without ever leaving the model's folder.

A location is a relative path below the folder. It is resolved once, the result must lie inside the folder,
and it is then opened component by component without following links, so that nothing can change in between.
Only regular files with one name are read. Large data is mapped privately and read-only: as with any
mapping, whoever truncates the file while a session lives makes the operating system end the process. Where
that has to be ruled out, data is read into memory instead (`mapped`, ORTHRUS_MAP).
"""

from __future__ import annotations

import mmap
import os
import stat
import weakref
from typing import Any

import numpy as np

from .. import knobs
from ..errors import Fail
from ..ir import ElementType
from ..memory import passing
from ..modelfile import read_into
from .tensors import packed_bytes

_KEYS = frozenset({"location", "offset", "length", "checksum", "basepath"})
_MAP_ABOVE = 1 << 16
_INT64_MAX = (1 << 63) - 1


class ExternalData:
    """The data files of one model. `root` is the folder they may lie in, None where the model came without
    one; `path` is the model's own file: where that is a link, as in Hugging Face's cache, data files may be
    links to its target's folder too. `mapped`: whether large files are mapped rather than read."""

    def __init__(self, root: str | None, path: str | None = None, mapped: bool = True) -> None:
        self.root, self.mapped = root, mapped and bool(knobs.MAP)
        self.roots: list[str] = []
        if root is not None:
            self.roots.append(os.path.realpath(root))
            if path is not None and os.path.islink(path):
                self.roots.append(os.path.dirname(os.path.realpath(path)))
        self._files: dict[str, tuple[int, Any]] = {}

    @property
    def used(self) -> bool:
        """Whether anything has been read."""
        return bool(self._files)

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
                                found=f"{size} bytes in {location!r}")
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
        self._check_text(name, location)
        if self.root is None:
            raise self._refusal(
                name,
                "The model was given as bytes and no folder for its data is known",
                found=f"location {location!r}",
                expected="a model path, or a folder",
                cure="load the model by its path, name the folder as external_root "
                "(session.model_external_initializers_file_folder_path), or add the data as external "
                "initializers",
            )
        lexical = os.path.join(self.roots[0], *location.split("/"))
        target = os.path.realpath(lexical)
        inside = next((r for r in self.roots if _contains(r, target)), None)
        if inside is None:
            raise self._refusal(name, f"External data path for {location!r} escapes the model's folder",
                                found=target, expected=f"a file inside {self.roots[0]}")
        if not os.path.lexists(lexical) or not os.path.exists(target):
            raise self._refusal(name, f'External data path does not exist: "{lexical}"',
                                cure="put the data file next to the model under the name the model gives")
        handle = self._descend(name, inside, os.path.relpath(target, inside), location)
        try:
            info = os.fstat(handle)
            if not stat.S_ISREG(info.st_mode):
                raise self._refusal(name, f"External data {location!r} is no regular file")
            if info.st_nlink > 1:
                raise self._refusal(name, f"External data {location!r} has more than one hard link",
                                    found=f"{info.st_nlink} links", expected="a file with one name",
                                    cure="copy the file, so that it belongs to the model's folder alone")
            data: Any
            if not self.mapped:
                data = _Unmapped(handle, info.st_size)
            elif info.st_size > _MAP_ABOVE:
                data = memoryview(_mapped(handle, info.st_size))
            else:
                with os.fdopen(os.dup(handle), "rb") as file:
                    data = memoryview(file.read(_MAP_ABOVE + 1))
            self._files[location] = found = (len(data), data)
        except (OSError, ValueError) as error:
            raise self._refusal(name, f"External data {location!r} cannot be read", found=error) from None
        finally:
            os.close(handle)
        return found

    def _descend(self, name: str, root: str, relative: str, location: str) -> int:
        flags = (
            os.O_RDONLY
            | getattr(os, "O_CLOEXEC", 0)
            | getattr(os, "O_NONBLOCK", 0)
            | getattr(os, "O_NOCTTY", 0)
            | getattr(os, "O_BINARY", 0)
        )
        try:
            if os.open not in os.supports_dir_fd or not hasattr(os, "O_NOFOLLOW"):
                return os.open(os.path.join(root, relative), flags)
            parts = relative.split(os.sep)
            handle = os.open(root, flags | os.O_DIRECTORY)
            for i, part in enumerate(parts):
                last = i == len(parts) - 1
                try:
                    below = os.open(
                        part, flags | os.O_NOFOLLOW | (0 if last else os.O_DIRECTORY), dir_fd=handle
                    )
                finally:
                    os.close(handle)
                handle = below
            return handle
        except OSError as error:
            raise self._refusal(
                name, f"External data {location!r} cannot be opened", found=error.strerror
            ) from None

    def _check_text(self, name: str, location: str) -> None:
        reason = None
        parts = location.split("/")
        if not location or not location.strip("/. "):
            reason = "is empty or no file name"
        elif "\0" in location:
            reason = "contains a NUL"
        elif "_ORT_MEM_ADDR_" in location:
            reason = "marks data in another process's memory"
        elif "\\" in location:
            reason = "contains a backslash"
        elif "://" in location:
            reason = "is a URL"
        elif (
            location.startswith("/") or os.path.isabs(location) or (len(location) > 1 and location[1] == ":")
        ):
            reason = "is an absolute path"
        elif ".." in parts:
            reason = "climbs out with '..'"
        if reason:
            raise self._refusal(
                name,
                f"External data path {location!r} {reason}",
                expected="a relative path below the model's folder, with '/' between its parts",
            )

    def _refusal(self, name: str, text: str, **rows: Any) -> Fail:
        return Fail(f"External data path validation failed for initializer: {name}. Error: {text}", **rows)


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


def _mapped(handle: int, size: int) -> mmap.mmap:
    if hasattr(mmap, "MAP_PRIVATE"):
        return mmap.mmap(handle, size, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ)
    return mmap.mmap(handle, size, access=mmap.ACCESS_READ)


def _contains(root: str, target: str) -> bool:
    try:
        return os.path.commonpath([root, target]) == root and target != root
    except ValueError:
        return False
