"""A driver that is a library of the system's, called by ctypes: what CUDA's and HIP's have in common, which
is nearly all.

In: a table of functions by verb, each with its symbol, its arguments' types and the version that brought it.
Out: a `Driver`. Every function of the table is looked up when the library is loaded, and what it lacks is
named. A thread's current device is what it was before, after every call.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from ...errors import EPFail
from ...ir import No
from ...locks import lock
from ...records import dataclass
from .driver import DriverError, Properties

OUT_OF_MEMORY, NOT_READY = 2, 600
LOST = frozenset({4, 214, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 999})
"""Numbers that CUDA and HIP share: from these on every call fails, until the process ends."""
NON_BLOCKING, UNTIMED, THREAD_LOCAL, PORTABLE = 1, 2, 1, 1
_LOG = 8192

_TYPES: dict[str, Any] = {"p": ctypes.c_void_p, "*": ctypes.c_void_p, "i": ctypes.c_int, "u": ctypes.c_uint,
                          "n": ctypes.c_size_t, "q": ctypes.c_ulonglong, "b": ctypes.c_ubyte,
                          "s": ctypes.c_char_p}
_Pointers = ctypes.c_void_p * 5


@dataclass(frozen=True)
class Function:
    """A function of a library. `takes`: a letter for each argument: `p` a handle or an address, `*` where to
    write to, `i` an int, `u` an unsigned one, `n` a size, `q` an unsigned long long, `b` a byte, `s` text.
    `since`: the version that brought it; `gives`: what it returns, an error's number as a rule."""

    symbol: str
    takes: str
    since: str
    gives: Any = ctypes.c_int


def opened(names: Sequence[str]) -> Any:
    """The first library of these that loads. Raises OSError."""
    reasons = []
    for name in names:
        try:
            return ctypes.CDLL(name)
        except OSError as error:
            reasons.append(str(error))
    raise OSError(reasons[0] if reasons else "no name to look for")


def bound(library: Any, table: Mapping[str, Function], name: str) -> dict[str, Any] | No:
    """The table's functions, ready to be called; or which ones the library lacks."""
    found: dict[str, Any] = {}
    missing: list[str] = []
    for verb, it in table.items():
        try:
            function = getattr(library, it.symbol)
        except AttributeError:
            missing.append(f"{it.symbol} ({name} {it.since})")
            continue
        function.argtypes, function.restype = [_TYPES[letter] for letter in it.takes], it.gives
        found[verb] = function
    return No(f"{name}'s library lacks {', '.join(missing)}") if missing else found


class LibraryDriver:
    """A `Driver` whose verbs are functions of a library. A subclass says how a device is made current, what
    a device is, and what differs. Raises DriverError where the library does not start."""

    name: str
    end: ClassVar[int]
    """What ends the list that a launch takes its arguments by."""

    def __init__(self, functions: Mapping[str, Any]) -> None:
        self.functions, self.pid = functions, os.getpid()
        self._launch, self._lock = functions["launch"], lock()
        self._checked("init", self.functions["init"](0))

    def _enter(self, index: int) -> int | None:
        """Make a device this thread's current one; answers what `_leave` has to undo, None for nothing."""
        raise NotImplementedError

    def _leave(self, before: int) -> None:
        raise NotImplementedError

    def _error_name(self, code: int) -> str:
        raise NotImplementedError

    def properties(self, index: int) -> Properties:
        raise NotImplementedError

    def _checked(self, verb: str, code: int, detail: str = "") -> None:
        if code:
            symbol = getattr(self.functions[verb], "__name__", verb)
            name = self._error_name(code) + (f": {detail}" if detail else "")
            raise DriverError(symbol, code, name, code == OUT_OF_MEMORY, code in LOST)

    def _called(self, index: int, verb: str, *given: Any) -> int:
        """What a function gives that is called on a device."""
        before = self._enter(index)
        code: int = self.functions[verb](*given)
        if before is not None:
            self._leave(before)
        return code

    def _do(self, index: int, verb: str, *given: Any) -> None:
        """Call a function on a device."""
        before = self._enter(index)
        code = self.functions[verb](*given)
        if before is not None:
            self._leave(before)
        if code:
            self._checked(verb, code)

    def _made(self, index: int, verb: str, *given: Any) -> int:
        """What a function writes to where its first argument points: a handle or an address."""
        out = ctypes.c_void_p()
        self._do(index, verb, ctypes.byref(out), *given)
        return out.value or 0

    def _number(self, verb: str, *given: Any) -> int:
        """An int that a function writes to where its first argument points; no device is needed."""
        out = ctypes.c_int(-1)
        self._checked(verb, self.functions[verb](ctypes.byref(out), *given))
        return out.value

    def version(self) -> int:
        """The driver's version as the library counts it."""
        return self._number("version")

    def count(self) -> int:
        return self._number("count")

    def memory_info(self, index: int) -> tuple[int, int]:
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self._do(index, "memory_info", ctypes.byref(free), ctypes.byref(total))
        return free.value, total.value

    def allocate(self, index: int, size: int) -> int:
        return self._made(index, "allocate", size)

    def free(self, index: int, address: int) -> None:
        self._do(index, "free", address)

    def allocate_host(self, index: int, size: int) -> int:
        return self._made(index, "allocate_host", size, PORTABLE)

    def free_host(self, index: int, address: int) -> None:
        self._do(index, "free_host", address)

    def create_stream(self, index: int) -> int:
        return self._made(index, "create_stream", NON_BLOCKING)

    def destroy_stream(self, index: int, stream: int) -> None:
        self._do(index, "destroy_stream", stream)

    def synchronize(self, index: int, stream: int) -> None:
        self._do(index, "synchronize", stream)

    def create_event(self, index: int, timed: bool = False) -> int:
        return self._made(index, "create_event", 0 if timed else UNTIMED)

    def destroy_event(self, index: int, event: int) -> None:
        self._do(index, "destroy_event", event)

    def record(self, index: int, event: int, stream: int) -> None:
        self._do(index, "record", event, stream)

    def wait(self, index: int, stream: int, event: int) -> None:
        self._do(index, "wait", stream, event, 0)

    def wait_for(self, index: int, event: int) -> None:
        self._do(index, "wait_for", event)

    def reached(self, index: int, event: int) -> bool:
        code = self._called(index, "reached", event)
        if code == NOT_READY:
            return False
        self._checked("reached", code)
        return True

    def elapsed(self, index: int, start: int, end: int) -> float:
        out = ctypes.c_float()
        self._do(index, "elapsed", ctypes.byref(out), start, end)
        return out.value

    def copy(self, index: int, to: int, source: int, size: int, stream: int) -> None:
        self._do(index, "copy", to, source, size, stream)

    def fill(self, index: int, to: int, byte: int, size: int, stream: int) -> None:
        self._do(index, "fill", to, byte, size, stream)

    def load(self, index: int, code: bytes) -> int:
        out, log = ctypes.c_void_p(), ctypes.create_string_buffer(_LOG)
        wanted = (ctypes.c_int * 2)(5, 6)
        values = (ctypes.c_void_p * 2)(ctypes.addressof(log), _LOG)
        failed = self._called(index, "load", ctypes.byref(out), code, 2, wanted, values)
        self._checked("load", failed, log.value.decode(errors="replace").strip())
        return out.value or 0

    def unload(self, index: int, module: int) -> None:
        self._do(index, "unload", module)

    def function(self, index: int, module: int, name: str, shared: int) -> int:
        return self._made(index, "function", module, name.encode())

    def launch(self, index: int, function: int, blocks: int, threads: int, shared: int, stream: int,
               arguments: bytes) -> None:
        held, size = ctypes.create_string_buffer(arguments, len(arguments)), ctypes.c_size_t(len(arguments))
        extra = _Pointers(1, ctypes.addressof(held), 2, ctypes.addressof(size), self.end)
        before = self._enter(index)
        code = self._launch(function, blocks, 1, 1, threads, 1, 1, shared, stream, None, extra)
        if before is not None:
            self._leave(before)
        if code:
            self._checked("launch", code)

    def begin_capture(self, index: int, stream: int) -> None:
        self._do(index, "begin_capture", stream, THREAD_LOCAL)

    def end_capture(self, index: int, stream: int) -> int:
        out = ctypes.c_void_p()
        self._do(index, "end_capture", stream, ctypes.byref(out))
        try:
            return self._made(index, "instantiate", out, 0)
        finally:
            self._do(index, "destroy_recording", out)

    def launch_graph(self, index: int, graph: int, stream: int) -> None:
        self._do(index, "launch_graph", graph, stream)

    def destroy_graph(self, index: int, graph: int) -> None:
        self._do(index, "destroy_graph", graph)


class Finding:
    """The one driver of a library in this process, made when it is first asked for. `names`: what the library
    may be called; `kind`: the class of its driver; `least`: the oldest version that will do, as the library
    counts and as people say it; `install`: what to do where there is none."""

    def __init__(self, kind: type[LibraryDriver], table: Mapping[str, Function], names: Sequence[str],
                 least: tuple[int, str], install: str, open_library: Callable[[Sequence[str]], Any] = opened,
                 ) -> None:
        self.kind, self.table, self.names, self.least, self.install = kind, table, names, least, install
        self.open = open_library
        self._found: LibraryDriver | No | None = None
        self._lock = lock()

    def driver(self) -> LibraryDriver | No:
        """The driver, with at least one device; or why there is none."""
        with self._lock:
            if self._found is None:
                self._found = self._looked()
            found = self._found
        if isinstance(found, LibraryDriver) and found.pid != os.getpid():
            return No(f"{self.kind.name} was started in process {found.pid}, which this one is forked from; "
                      "start processes by multiprocessing's spawn or forkserver")
        return found

    def made(self) -> LibraryDriver:
        """The driver. Raises EPFail where there is none."""
        found = self.driver()
        if isinstance(found, No):
            raise EPFail(found.reason, cure=self.install)
        return found

    def _looked(self) -> LibraryDriver | No:
        name = self.kind.name
        try:
            library = self.open(self.names)
        except OSError as error:
            return No(f"there is no {name} driver here ({error}): {self.install}")
        functions = bound(library, self.table, name)
        if isinstance(functions, No):
            return No(f"{functions.reason}: {self.install}")
        try:
            driver = self.kind(functions)
            version, count = driver.version(), driver.count()
        except DriverError as error:
            return No(f"the {name} driver does not start: {error}: {self.install}")
        least, said = self.least
        if version < least:
            return No(f"the {name} driver is of version {version}, older than {said} ({least}): "
                      f"{self.install}")
        return driver if count else No(f"the {name} driver finds no device")


