"""Memory handed out in chunks: no two overlap, all begins at a multiple of 256, limits hold, all comes
back."""

import gc
import random
import threading
from typing import Any

import pytest
from draws import draws
from hypothesis import given
from hypothesis import strategies as st
from streamed_device import StreamedDevice

from orthrus.errors import InvalidArgument
from orthrus.kernels import Allocator, Stream
from orthrus.kernels.allocator import ALIGN, UNLIMITED

pytestmark = pytest.mark.usefixtures("quick_collection")


class Raw:
    """Regions at random addresses, `most` bytes at once."""

    def __init__(self, most: int = 1 << 40) -> None:
        self.most, self.live, self.next = most, dict[int, int](), 1 << 30

    def allocate(self, size: int) -> int:
        if sum(self.live.values()) + size > self.most:
            raise MemoryError
        address, self.next = self.next, self.next + -(-size // ALIGN) * ALIGN
        self.live[address] = size
        return address

    def free(self, address: int) -> None:
        del self.live[address]

    def holds(self, address: int, size: int) -> bool:
        return any(start <= address and address + size <= start + length for start, length in
                   self.live.items())


def apart(used: dict[int, int]) -> bool:
    rows = sorted(used.items())
    return all(a + size <= b for (a, size), (b, _) in zip(rows, rows[1:], strict=False))


@draws(120)
@given(st.lists(st.tuples(st.integers(0, 3), st.one_of(st.integers(0, 2000), st.integers(0, 1 << 23)),
                          st.integers(0, 2), st.integers(0, 1 << 30)), max_size=60),
       st.sampled_from([UNLIMITED, 1 << 24, 5000]), st.sampled_from(["kNextPowerOfTwo", "kSameAsRequested"]))
def test_chunks(work: list[tuple[int, int, int, int]], limit: int, strategy: str) -> None:
    device = StreamedDevice()
    streams, raw = [None, Stream(device), Stream(device)], Raw(1 << 26)
    made = Allocator(raw.allocate, raw.free, "raw", limit, strategy)
    used = dict[int, int]()
    for verb, size, which, pick in work:
        if verb < 2:
            try:
                address = made.allocate(size, streams[which])
            except MemoryError as error:
                assert str(size // ALIGN * ALIGN)[:3] in str(error) or "asked of raw" in str(error)
                continue
            assert address % ALIGN == 0 and address not in used
            used[address] = max(1, size)
            assert raw.holds(address, size) and apart(used)
        elif verb == 2 and used:
            address = sorted(used)[pick % len(used)]
            del used[address]
            made.free(address, [s for s in streams[1:] if s is not None][:which])
        elif verb == 3:
            made.settled([s for s in streams if s is not None], 1 << 62) if pick % 2 else made.trim()
        stats = made.stats
        assert sum(used.values()) <= stats["InUse"] <= stats["TotalAllocated"] <= limit
        assert stats["TotalAllocated"] == sum(raw.live.values()) and stats["MaxInUse"] >= stats["InUse"]
    for address in used:
        made.free(address)
    made.trim()
    assert not raw.live and made.stats["InUse"] == 0


def test_freed_memory_is_used_again_without_a_new_region() -> None:
    device, raw = StreamedDevice(), Raw()
    made, stream, other = Allocator(raw.allocate, raw.free), Stream(device), Stream(device)
    for _ in range(1000):
        a, b = made.allocate(3000, stream), made.allocate(70_000, stream)
        made.free(a)
        made.free(b, [other])
    assert made.stats["NumArenaExtensions"] == 1 and made.stats["NumAllocs"] == 2000


def test_memory_of_another_stream_waits_for_it() -> None:
    """It is taken only where there is no room for more, and behind an event."""
    device, raw = StreamedDevice(), Raw()
    made = Allocator(raw.allocate, raw.free, limit=1 << 16, strategy="kSameAsRequested")
    one, two = Stream(device), Stream(device)
    first = made.allocate(1 << 15, one)
    made.free(first)
    assert made.allocate(1 << 15, two) != first and not device.counts["waits"]
    assert made.allocate(1 << 15, two) == first and device.counts["waits"] == 1


def test_what_a_copy_still_reads_is_written_behind_an_event() -> None:
    device, raw = StreamedDevice(), Raw()
    made, stream, copies = Allocator(raw.allocate, raw.free), Stream(device), Stream(device)
    first = made.allocate(100, stream)
    made.free(first, [copies])
    before = device.counts["waits"]
    assert made.allocate(100, stream) != first and device.counts["waits"] == before
    made.settled([stream, copies], 1 << 62)
    assert made.allocate(100, stream) == first and device.counts["waits"] == before
    made.free(first, [copies])
    rest = made.allocate((1 << 21) - 512, stream)
    assert device.counts["waits"] == before and made.allocate(100, stream) == first != rest
    assert device.counts["waits"] == before + 1


def test_an_error_says_what_is_short() -> None:
    raw = Raw()
    made = Allocator(raw.allocate, raw.free, "cuda:0", limit=10_000)
    held = made.allocate(5000)
    with pytest.raises(MemoryError) as caught:
        made.allocate(9000)
    for part in ("9216 bytes", "cuda:0", "5120 are in use", "gpu_mem_limit is 10000", "raise gpu_mem_limit"):
        assert part in str(caught.value), caught.value
    made.free(held)
    assert made.allocate(9000)
    with pytest.raises(InvalidArgument, match="kNextPowerOfTwo or kSameAsRequested"):
        Allocator(raw.allocate, raw.free, strategy="kHalf")


def test_growth_and_trimming() -> None:
    for strategy, sizes in (("kSameAsRequested", [256, 512, 1 << 22]),
                            ("kNextPowerOfTwo", [1 << 21, 1 << 22])):
        raw = Raw()
        made = Allocator(raw.allocate, raw.free, strategy=strategy)
        held = [made.allocate(size) for size in (100, 500, 1 << 22)]
        assert list(raw.live.values()) == sizes
        made.free(held.pop())
        assert made.trim() == 1 << 22 and len(raw.live) == len(sizes) - 1
        for address in held:
            made.free(address)
        passing = Allocator(raw.allocate, raw.free, passing=True)
        passing.free(passing.allocate(10))
        passing.settled([], 0)
        assert made.trim() and not raw.live and made.stats["NumArenaShrinkages"] == len(sizes)


def test_many_threads() -> None:
    raw, wrong = Raw(), list[Any]()
    made = Allocator(raw.allocate, raw.free)
    used, guard = dict[int, int](), threading.Lock()

    def work(seed: int) -> None:
        choose, mine = random.Random(seed), list[int]()
        for _ in range(300):
            if mine and choose.random() < 0.5:
                address = mine.pop(choose.randrange(len(mine)))
                with guard:
                    del used[address]
                made.free(address)
                continue
            size = choose.randrange(1, 100_000)
            address = made.allocate(size)
            with guard:
                if address in used:
                    wrong.append(address)
                used[address] = size
            mine.append(address)
    threads = [threading.Thread(target=work, args=(k,)) for k in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and apart(used)
    for address in used:
        made.free(address)
    made.trim()
    assert not raw.live


def test_only_events_before_the_wait_are_reached() -> None:
    device, raw = StreamedDevice(), Raw()
    made, stream, copies = Allocator(raw.allocate, raw.free, strategy="kSameAsRequested"), *(
        Stream(device) for _ in range(2))
    first, second = made.allocate(100, stream), made.allocate(100, stream)
    made.free(first, [copies])
    before = copies.event().number
    made.free(second, [copies])
    made.settled([copies], before)
    waits = device.counts["waits"]
    assert made.allocate(100, stream) == first and device.counts["waits"] == waits
    assert made.allocate(100, stream) == second and device.counts["waits"] == waits + 1


def test_regions_go_with_the_allocator() -> None:
    raw = Raw()
    made = Allocator(raw.allocate, raw.free)
    made.free(made.allocate(100))
    del made
    assert not raw.live


@pytest.mark.parametrize("late", [False, True])
def test_memory_of_the_host_goes_behind_what_reads_it(late: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether it came back before the allocator went or behind it."""
    device, raw, waited = StreamedDevice(), Raw(), list[int]()
    monkeypatch.setattr(device, "wait_for", waited.append)
    made, stream = Allocator(raw.allocate, raw.free), Stream(device)
    address, back = made.allocate(100), made.free
    if late:
        made.__del__()
        assert raw.live
    back(address, [stream])
    del made, back
    assert not raw.live and len(waited) == 1


class Owner:
    """Holds a chunk until the garbage collector comes, as a session that holds itself."""

    def __init__(self, raw: Raw, size: int = 100) -> None:
        self.allocator = Allocator(raw.allocate, raw.free, strategy="kSameAsRequested")
        self.address, self.me = self.allocator.allocate(size), self

    def __del__(self) -> None:
        self.allocator.free(self.address)


def test_regions_go_whichever_the_collector_comes_to_first() -> None:
    raw = Raw()
    owner = Owner(raw)
    late = Owner.__new__(Owner)
    late.allocator, late.me = owner.allocator, late
    late.address = owner.allocator.allocate(200)
    del owner, late
    gc.collect()
    assert not raw.live


def test_what_only_the_collector_holds_is_let_go_before_memory_is_short() -> None:
    raw = Raw(most=1 << 20)
    gc.disable()
    try:
        for _ in range(5):
            Owner(raw, 1 << 19)
        made = Allocator(raw.allocate, raw.free)
        made.free(made.allocate(1 << 20))
    finally:
        gc.enable()
