"""Libraries of providers: opened, checked, and closed when nothing of theirs is left.

In: a path. Out: a `Library` whose providers are classes that sessions use like any other. The invariant: a
library stays open for as long as a provider, a kernel or a tensor of its own is there.
"""

from __future__ import annotations

import ctypes
import os
import weakref
from _ctypes import dlclose
from collections.abc import Sequence

from ...errors import Fail, InvalidArgument
from ...locks import lock
from .. import known, register, unregister
from ..base import Hardware
from . import abi
from .provider import LibraryProvider, Native

_PROVIDERS = 64
"""More than any library has, and less than a size that was never set."""
_REQUIRED = ("claim", "compile", "run", "release")
_FOREIGN = "CreateEpFactories"
"""What onnxruntime's plugins export."""
_CURE = ("build it against orthrus_provider.h of this version, in " + str(abi.HEADER.parent)
         + "; or derive a class from orthrus.ExecutionProvider and register it with "
           "orthrus.register_execution_provider")


class Library:
    """A library that is open, for as long as it is referred to. `providers`: a class for each."""

    def __init__(self, path: str) -> None:
        """Raises Fail for what is no library of providers, or one of another version."""
        self.path = path
        try:
            self._opened = ctypes.CDLL(path)
        except OSError as error:
            raise self._fault(str(error)) from error
        weakref.finalize(self, dlclose, self._opened._handle).atexit = False
        self.providers: Sequence[type[LibraryProvider]] = [
            self._provider(native) for native in self._natives()]

    def _natives(self) -> list[abi.Provider]:
        """What the library says its providers are."""
        address = getattr(self._opened, abi.ENTRY, None)
        if address is None and hasattr(self._opened, _FOREIGN):
            raise self._fault("providers compiled for onnxruntime cannot be loaded")
        if address is None:
            raise self._fault(f"it exports no {abi.ENTRY}")
        found = abi.Entry((abi.ENTRY, self._opened))(abi.VERSION)
        if not found:
            raise self._fault(f"it has no providers for version {abi.VERSION} of orthrus_provider.h")
        library = found.contents
        if library.abi != abi.VERSION:
            raise self._fault(f"it was built for version {library.abi} of orthrus_provider.h",
                              f"version {abi.VERSION}")
        if not library.providers or not 0 < library.provider_count <= _PROVIDERS:
            raise self._fault(f"it has {library.provider_count} providers", f"1 to {_PROVIDERS}")
        pointers = library.providers[:library.provider_count]
        if not all(pointers):
            raise self._fault("one of its providers is a null pointer")
        return [pointer.contents for pointer in pointers]

    def _provider(self, native: abi.Provider) -> type[LibraryProvider]:
        """A provider's class. Raises Fail for one that lacks what every provider has."""
        if native.size < ctypes.sizeof(abi.Provider):
            raise self._fault(f"its orthrus_provider has {native.size} bytes",
                              f"{ctypes.sizeof(abi.Provider)}, in the field size")
        name = self._text(native.name, "name")
        if not name.isidentifier() or not name.endswith("ExecutionProvider"):
            raise self._fault(f"it calls a provider {name!r}", "a word that ends in ExecutionProvider")
        missing = [field for field in _REQUIRED if not getattr(native, field)]
        if native.create and not native.destroy:
            missing.append("destroy")
        if missing:
            raise self._fault(f"{name} has no {', '.join(missing)}", "a function")
        for field, count in (("devices", native.device_count), ("options", native.option_count)):
            if count and not getattr(native, field) or count > 1 << 16:
                raise self._fault(f"{name} has {count} {field}, and no table of them")
        if len({option.name for option in native.options[:native.option_count]}) < native.option_count:
            raise self._fault(f"{name} has two options of one name")
        devices, options = native.devices[:native.device_count], native.options[:native.option_count]
        for device in devices:
            if device.kind not in (0, 1, 2):
                raise self._fault(f"a device of {name} is of kind {device.kind}", "0 CPU, 1 GPU or 2 NPU")
        return LibraryProvider.of(name, Native(
            self, native,
            (self._text(native.vendor, "vendor", ""), self._text(native.version, "version", "")),
            [Hardware(d.kind, self._text(d.vendor, "vendor", ""), d.vendor_id, d.device_id) for d in devices],
            {self._text(o.name, "option"): (self._text(o.default_value, "default_value", ""),
                                            self._text(o.meaning, "meaning", "")) for o in options}))

    def _text(self, given: bytes | None, what: str, default: str | None = None) -> str:
        if given is None and default is not None:
            return default
        try:
            if given:
                return given.decode("utf-8")
        except UnicodeDecodeError:
            pass
        if given == b"" and default is not None:
            return ""
        raise self._fault(f"a {what} is {given!r}", "a text in UTF-8")

    def _fault(self, why: str, expected: str | None = None) -> Exception:
        return Fail(f"Failed to load library {self.path} with error: {why}", expected=expected, cure=_CURE)


_registered: dict[str, Library] = {}
_lock = lock()


def register_library(name: str, path: str) -> None:
    """Open the library at `path` under a name of the program's, and make its providers known, all or none.
    Raises Fail for a name that is taken, of the library's or a provider's, and for what is no library of
    providers."""
    with _lock:
        if name in _registered:
            raise Fail(f"Execution provider library: {name} has already been registered.",
                       found=_registered[name].path, cure="unregister it first, or give another name")
        if not os.path.exists(path):
            raise Fail(f"Failed to load library {path} with error: {path}: cannot open shared object file: "
                       "No such file or directory")
        library, made = Library(os.path.abspath(path)), list[str]()
        try:
            for cls in library.providers:
                register(cls)
                made.append(cls.name)
        except (Fail, InvalidArgument):
            for each in made:
                unregister(each)
            raise
        _registered[name] = library


def libraries() -> dict[str, list[str]]:
    """The names of the libraries that are registered, and those of their providers."""
    return {name: [cls.name for cls in library.providers] for name, library in list(_registered.items())}


def unregister_library(name: str) -> bool:
    """Forget the providers of a library; sessions that have them go on. False where there is none of this
    name."""
    with _lock:
        library = _registered.pop(name, None)
        if library is None:
            return False
        for cls in library.providers:
            if known((cls.name,)).get(cls.name) is cls:
                unregister(cls.name)
    return True
