"""Memory of a device, taken in large regions and handed out in chunks.

In: two functions, which allocate and free, and sizes. Out: addresses, multiples of 256. The invariant: chunks
in use never overlap, and memory that one stream may still touch is handed to another only behind an event.
"""

from __future__ import annotations

import contextlib
import gc
import os
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from ..errors import InvalidArgument
from ..locks import lock
from .streams import Event, Stream

if TYPE_CHECKING:
    from .device import Device

ALIGN = 256
UNLIMITED = (1 << 64) - 1
STRATEGIES = ("kNextPowerOfTwo", "kSameAsRequested")

_FIRST = 1 << 21
_LARGEST = 1 << 30


class _Chunk:
    """A piece of a region. `home`: the stream that it is handed out for; `events`: what else has to be
    reached before it may be written."""

    __slots__ = ("address", "size", "region", "previous", "next", "home", "events", "used")

    def __init__(self, address: int, size: int, region: int, home: Stream | None) -> None:
        self.address, self.size, self.region, self.home = address, size, region, home
        self.previous: _Chunk | None = None
        self.next: _Chunk | None = None
        self.events: list[Event] = []
        self.used = False

    @property
    def key(self) -> tuple[int, int]:
        return self.size, self.address


class Allocator:
    """Chunks of regions that `allocate(size)` gives and `free(address)` takes back, `limit` bytes of these at
    most. `strategy` kNextPowerOfTwo: regions grow as they become more; kSameAsRequested: they are as large as
    what was asked for. `passing`: regions without a chunk in use are given back after every run, to whom else
    they serve. Safe on many threads, and where memory is given back by the garbage collector."""

    def __init__(self, allocate: Callable[[int], int], free: Callable[[int], None], name: str = "the device",
                 limit: int = UNLIMITED, strategy: str = "kNextPowerOfTwo", passing: bool = False) -> None:
        """Raises InvalidArgument for a strategy that there is not."""
        if strategy not in STRATEGIES:
            raise InvalidArgument("there is no such arena_extend_strategy", found=strategy,
                                  expected=" or ".join(STRATEGIES))
        self._allocate, self._free, self.name = allocate, free, name
        self.limit, self.same, self.passing = limit, strategy == "kSameAsRequested", passing
        self._grown, self._pid, self._ended = _FIRST, os.getpid(), False
        self._regions: dict[int, int] = {}
        self._chunks: dict[int, _Chunk] = {}
        self._quiet: dict[Stream | None, list[tuple[int, int]]] = {}
        self._waiting: dict[Stream | None, list[tuple[int, int]]] = {}
        self._returned: deque[tuple[int, list[Event]]] = deque()
        self._lock = lock()
        self._counts = dict.fromkeys(("InUse", "MaxInUse", "MaxAllocSize", "NumAllocs", "NumArenaExtensions",
                                      "NumArenaShrinkages"), 0)

    @classmethod
    def of(cls, device: Device, **options: Any) -> Allocator:
        """One over a device's own memory."""
        return cls(device.allocate, device.free, repr(device), **options)

    def allocate(self, size: int, stream: Stream | None = None) -> int:
        """The address of `size` bytes for `stream`; None: for the host, which waits then for what has to be
        reached. Raises MemoryError."""
        wanted = max(ALIGN, -(-size // ALIGN) * ALIGN)
        with self._lock:
            chunk = self._found(wanted, stream)
            if chunk.home is not stream and chunk.home is not None:
                chunk.events.append(chunk.home.event())
            try:
                for event in chunk.events:
                    event.wait() if stream is None else stream.after(event)
            except BaseException:
                self._keep(chunk)
                raise
            chunk.home, chunk.events = stream, []
            self._split(chunk, wanted)
            chunk.used = True
            counts = self._counts
            counts["InUse"] += chunk.size
            counts["NumAllocs"] += 1
            counts["MaxInUse"] = max(counts["MaxInUse"], counts["InUse"])
            counts["MaxAllocSize"] = max(counts["MaxAllocSize"], wanted)
        return chunk.address

    def free(self, address: int, users: Iterable[Stream] = ()) -> None:
        """Give back what `allocate` gave. `users`: the streams, other than that it was allocated for, that
        were asked to touch it."""
        if self._pid == os.getpid():
            events = list[Event]()
            for stream in users:
                with contextlib.suppress(Exception):
                    event = stream.event()
                    if event.handle is not None:
                        events.append(event)
            self._returned.append((address, events))
            if self._ended:
                with contextlib.suppress(Exception):
                    self._let_go()

    def settled(self, streams: Sequence[Stream], before: int) -> None:
        """All is done that `streams` were asked for up to their events with numbers below `before`."""
        if not (self._returned or self._waiting or self.passing):
            return
        with self._lock:
            self._take_back()
            for address in [address for keys in self._waiting.values() for _, address in keys]:
                chunk = self._chunks.get(address)
                if chunk is None:
                    continue
                left = [event for event in chunk.events if event.stream not in streams
                        or event.number >= before]
                if len(left) < len(chunk.events):
                    self._forget(chunk)
                    chunk.events = left
                    self._joined(chunk)
        if self.passing:
            self.trim()

    def trim(self) -> int:
        """Give back the regions of which no chunk is in use; answers their bytes."""
        with self._lock:
            self._take_back()
            return self._trimmed()

    @property
    def extended(self) -> bool:
        """Whether there has been a region yet."""
        return self._counts["NumArenaExtensions"] > 0

    @property
    def stats(self) -> dict[str, int]:
        """Numbers by onnxruntime's names; bytes, and how many times."""
        with self._lock:
            self._take_back()
            return {"Limit": self.limit, "TotalAllocated": sum(self._regions.values()), "NumReserves": 0,
                    **self._counts}

    def __del__(self) -> None:
        """Every chunk's owner holds this: where there is none any more, what is in use is so only because the
        garbage collector comes to its owner later, and then goes at once."""
        if getattr(self, "_pid", 0) == os.getpid():
            self._ended = True
            with contextlib.suppress(Exception):
                self._let_go()

    def _let_go(self) -> None:
        """Give back all that is not in use; what comes back meanwhile, by whatever hand, too."""
        while self._lock.acquire(blocking=False):
            try:
                self._take_back()
                self._trimmed()
            finally:
                self._lock.release()
            if not self._returned:
                return

    def _take_back(self) -> None:
        while self._returned:
            address, events = self._returned.popleft()
            chunk = self._chunks[address]
            assert chunk.used, "memory was given back twice"
            self._counts["InUse"] -= chunk.size
            chunk.used, chunk.events = False, events
            self._joined(chunk)

    def _found(self, size: int, stream: Stream | None) -> _Chunk:
        """A chunk of at least `size` bytes, in no list: free for this stream at once, else behind events,
        else of a new region, else another stream's."""
        self._take_back()
        chunk = self._best(self._quiet.get(stream), size) or self._best(self._waiting.get(stream), size)
        if chunk is not None:
            return chunk
        held, room = sum(self._regions.values()), 0
        chunk = self._extended(size, stream)
        if chunk is None:
            others = (self._best(lists.get(home), size) for lists in (self._quiet, self._waiting)
                      for home in list(lists))
            chunk = next((each for each in others if each is not None), None)
        if chunk is None and self._trimmed():
            chunk = self._extended(size, stream)
        if chunk is None and gc.collect():
            self._take_back()
            self._trimmed()
            chunk = self._best(self._quiet.get(stream), size) or self._extended(size, stream)
        if chunk is None:
            room = max(0, self.limit - held)
            told = "no limit is set" if self.limit >= UNLIMITED else f"gpu_mem_limit is {self.limit} bytes"
            raise MemoryError(
                f"{size} bytes were asked of {self.name}, where {self._counts['InUse']} are in use and "
                f"{held} held; {told}, " + (f"{room} are left of it" if self.limit < UNLIMITED else
                                     "the device has no more") +
                "; raise gpu_mem_limit, feed less at once, or let go of results")
        return chunk

    def _best(self, keys: list[tuple[int, int]] | None, size: int) -> _Chunk | None:
        at = bisect_left(keys, (size, 0)) if keys else 0
        if not keys or at == len(keys):
            return None
        return self._chunks[keys.pop(at)[1]]

    def _extended(self, size: int, stream: Stream | None) -> _Chunk | None:
        """A chunk that is a new region; None where there is no room for one."""
        room = self.limit - sum(self._regions.values())
        if size > room:
            return None
        wanted = size
        if not self.same:
            while self._grown < size and self._grown < _LARGEST:
                self._grown *= 2
            wanted = max(size, min(self._grown, room // ALIGN * ALIGN))
        for each in dict.fromkeys((wanted, size)):
            try:
                address = self._allocate(each)
            except MemoryError:
                continue
            self._grown = min(self._grown * 2, _LARGEST) if not self.same else self._grown
            self._regions[address] = each
            self._counts["NumArenaExtensions"] += 1
            made = self._chunks[address] = _Chunk(address, each, address, stream)
            return made
        return None

    def _split(self, chunk: _Chunk, size: int) -> None:
        if chunk.size - size < ALIGN:
            return
        rest = _Chunk(chunk.address + size, chunk.size - size, chunk.region, chunk.home)
        rest.previous, rest.next = chunk, chunk.next
        if chunk.next is not None:
            chunk.next.previous = rest
        chunk.size, chunk.next = size, rest
        self._chunks[rest.address] = rest
        self._keep(rest)

    def _joined(self, chunk: _Chunk) -> None:
        """Keep `chunk`, made one with the free ones beside it that are as free for the same stream."""
        before, behind = chunk.previous, chunk.next
        if behind is not None and self._alike(chunk, behind):
            self._forget(behind)
            self._absorb(chunk, behind)
        if before is not None and self._alike(chunk, before):
            self._forget(before)
            self._absorb(before, chunk)
            chunk = before
        self._keep(chunk)

    @staticmethod
    def _alike(chunk: _Chunk, other: _Chunk) -> bool:
        return not other.used and other.home is chunk.home and bool(other.events) is bool(chunk.events)

    def _absorb(self, chunk: _Chunk, behind: _Chunk) -> None:
        chunk.size += behind.size
        chunk.events = _latest([*chunk.events, *behind.events])
        chunk.next = behind.next
        if behind.next is not None:
            behind.next.previous = chunk
        del self._chunks[behind.address]

    def _keep(self, chunk: _Chunk) -> None:
        lists = self._waiting if chunk.events else self._quiet
        insort(lists.setdefault(chunk.home, []), chunk.key)

    def _forget(self, chunk: _Chunk) -> None:
        lists = self._waiting if chunk.events else self._quiet
        keys = lists[chunk.home]
        del keys[bisect_left(keys, chunk.key)]
        if not keys:
            del lists[chunk.home]

    def _trimmed(self) -> int:
        """Give back the regions of which no chunk is in use. A device's free waits by itself for all that
        uses them; the host's does not."""
        given = 0
        for address, size in list(self._regions.items()):
            chunks, each = [], self._chunks[address]
            while each is not None:
                chunks.append(each)
                each = each.next  # type: ignore[assignment]
            if any(chunk.used for chunk in chunks):
                continue
            for chunk in chunks:
                for event in chunk.events if chunk.home is None else ():
                    event.wait()
                self._forget(chunk)
                del self._chunks[chunk.address]
            del self._regions[address]
            self._free(address)
            self._counts["NumArenaShrinkages"] += 1
            given += size
        self._grown = _FIRST if not self._regions else self._grown
        return given


def _latest(events: list[Event]) -> list[Event]:
    """Of each stream the last of its events, which is reached behind the others."""
    return list({event.stream: event for event in sorted(events, key=lambda it: it.number)}.values())
