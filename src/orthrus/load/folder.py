"""Files that a model names: opened inside the model's folder, or not at all.

In: the folder, and a location as the model spells it, a relative path with `/` between its parts. Out: a
handle of a regular file. A location is resolved once, the result must lie inside the folder, and it is then
opened component by component without following links, so that nothing can change in between. Devices, pipes
and files with a second name are refused before a byte is read. Nothing else opens what a model names.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from typing import Any

Refusal = Callable[..., Exception]
"""Makes the error of a file that is refused: from a text, and rows of `errors`."""


class Folder:
    """Where one model's files may lie: in `root` or below; None where the model came without a folder.
    `path` is the model's own file: where that is a link, as in Hugging Face's cache, files may be links to
    its target's folder too. `kind`: what the files are called in errors."""

    def __init__(self, root: str | None, path: str | None = None, kind: str = "External data") -> None:
        self.kind = kind
        self.roots: list[str] = []
        if root is not None:
            self.roots.append(os.path.realpath(root))
            if path is not None and os.path.islink(path):
                self.roots.append(os.path.dirname(os.path.realpath(path)))

    def open(self, location: str, refuse: Refusal) -> int:
        """A handle of the file at `location`. Raises what `refuse` makes."""
        if reason := _objection(location):
            raise refuse(f"{self.kind} path {location!r} {reason}",
                         expected="a relative path below the model's folder, with '/' between its parts")
        if not self.roots:
            raise refuse(
                "The model was given as bytes and no folder for its data is known",
                found=f"location {location!r}", expected="a model path, or a folder",
                cure="load the model by its path, name the folder as external_root "
                "(session.model_external_initializers_file_folder_path), or add the data as external "
                "initializers")
        lexical = os.path.join(self.roots[0], *location.split("/"))
        target = os.path.realpath(lexical)
        inside = next((r for r in self.roots if _contains(r, target)), None)
        if inside is None:
            raise refuse(f"{self.kind} path for {location!r} escapes the model's folder",
                         found=target, expected=f"a file inside {self.roots[0]}")
        if not os.path.lexists(lexical) or not os.path.exists(target):
            raise refuse(f'{self.kind} path does not exist: "{lexical}"',
                         cure="put the data file next to the model under the name the model gives")
        try:
            handle = _descend(inside, os.path.relpath(target, inside))
        except OSError as error:
            raise refuse(f"{self.kind} {location!r} cannot be opened", found=error.strerror) from None
        try:
            self._check(handle, location, refuse)
        except BaseException:
            os.close(handle)
            raise
        return handle

    def _check(self, handle: int, location: str, refuse: Refusal) -> None:
        info = os.fstat(handle)
        if not stat.S_ISREG(info.st_mode):
            raise refuse(f"{self.kind} {location!r} is no regular file")
        if info.st_nlink > 1:
            raise refuse(f"{self.kind} {location!r} has more than one hard link",
                         found=f"{info.st_nlink} links", expected="a file with one name",
                         cure="copy the file, so that it belongs to the model's folder alone")

    def read(self, location: str, most: int, refuse: Refusal) -> bytes:
        """All of the file at `location`, of at most `most` bytes. Raises what `refuse` makes."""
        handle = self.open(location, refuse)
        with os.fdopen(handle, "rb") as file:
            size = os.fstat(handle).st_size
            if size > most:
                raise refuse(f"{self.kind} {location!r} is larger than the limit", found=f"{size} bytes",
                             expected=f"at most {most} bytes", cure="raise Limits.max_tensor_bytes")
            try:
                return file.read(size)
            except (OSError, MemoryError) as error:
                raise refuse(f"{self.kind} {location!r} cannot be read", found=error) from None


def _descend(root: str, relative: str) -> int:
    flags: Any = os.O_RDONLY
    for name in ("O_CLOEXEC", "O_NONBLOCK", "O_NOCTTY", "O_BINARY"):
        flags |= getattr(os, name, 0)
    if os.open not in os.supports_dir_fd or not hasattr(os, "O_NOFOLLOW"):
        return os.open(os.path.join(root, relative), flags)
    handle = os.open(root, flags | os.O_DIRECTORY)
    parts = relative.split(os.sep)
    for i, part in enumerate(parts):
        folder = 0 if i == len(parts) - 1 else os.O_DIRECTORY
        try:
            below = os.open(part, flags | os.O_NOFOLLOW | folder, dir_fd=handle)
        finally:
            os.close(handle)
        handle = below
    return handle


def _objection(location: str) -> str | None:
    """What is wrong with a location as it is spelled."""
    if not location or not location.strip("/. "):
        return "is empty or no file name"
    if "\0" in location:
        return "contains a NUL"
    if "_ORT_MEM_ADDR_" in location:
        return "marks data in another process's memory"
    if "\\" in location:
        return "contains a backslash"
    if "://" in location:
        return "is a URL"
    if location.startswith("/") or os.path.isabs(location) or (len(location) > 1 and location[1] == ":"):
        return "is an absolute path"
    if ".." in location.split("/"):
        return "climbs out with '..'"
    return None


def _contains(root: str, target: str) -> bool:
    try:
        return os.path.commonpath([root, target]) == root and target != root
    except ValueError:
        return False
