"""Data classes of `records` are those of `dataclasses` in all that a program can see of them."""

from __future__ import annotations

import copy
import dataclasses
import functools
import gc
import inspect
import itertools
import os
import pickle
import random
import sys
import threading
from abc import ABC, abstractmethod
from dataclasses import field
from typing import Any, ClassVar, Generic, TypeVar

import pytest

from orthrus import memory, records

T = TypeVar("T")
OPTIONS = [{"frozen": frozen, "eq": eq, "slots": slots}
           for frozen, eq, slots in itertools.product((False, True), repeat=3)]


def both(make: Any, **options: Any) -> list[type]:
    """A class made twice: by Python and by `records`."""
    return [declare(**options)(make()) for declare in (dataclasses.dataclass, records.dataclass)]


def random_fields(seed: int) -> dict[str, tuple[str, Any]]:
    rng = random.Random(seed)
    made, optional = {}, False
    for i in range(rng.randrange(6)):
        kind = rng.choice(["plain", "plain", "default", "factory", "hidden", "uncompared", "unhashed",
                           "unset"])
        optional |= kind in ("default", "factory")
        if kind in ("plain", "default") and optional:
            value: Any = rng.choice([0.0, -0.0, 1, "s", None, (1, 2)])
        else:
            value = {"plain": dataclasses.MISSING, "factory": field(default_factory=list),
                     "hidden": field(repr=False, default=3) if optional else field(repr=False),
                     "uncompared": field(compare=False, default=4) if optional else field(compare=False),
                     "unhashed": field(hash=False, default=5) if optional else field(hash=False),
                     "unset": field(init=False, default=6)}.get(kind, dataclasses.MISSING)
        made[f"f{i}"] = ("int", value)
    return made


def outcome(act: Any) -> Any:
    try:
        return act()
    except Exception as error:
        return type(error), str(error).replace("_declare.<locals>.", "")


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("seed", range(12))
def test_random_classes_behave_alike(seed: int, options: dict[str, bool]) -> None:
    declared = random_fields(seed)

    def make() -> type:
        own = {"__annotations__": {"kind": "ClassVar[int]", **{k: kind for k, (kind, _) in declared.items()}},
               "__module__": __name__, "kind": 7, "__qualname__": "Made",
               **{k: v if not isinstance(v, dataclasses.Field) else copy.copy(v)
                  for k, (_, v) in declared.items() if v is not dataclasses.MISSING}}
        return type("Made", (), own)
    classes = both(make, **options)
    rng = random.Random(seed)
    values = [1, 2.0, "x", (3,), None, True]
    for _ in range(12):
        given = [rng.choice(values) for _ in range(rng.randrange(7))]
        names = rng.sample(sorted(declared), rng.randint(0, len(declared)))
        named = {name: rng.choice(values) for name in names}
        found = []
        for cls in classes:
            made = outcome(functools.partial(cls, *given, **named))
            if isinstance(made, tuple):
                found.append(made[0])
                continue
            other = cls(*given, **named)
            found.append([
                repr(made), made == other, outcome(lambda m=made, o=other: hash(m) == hash(o))
                if options["eq"] else None, outcome(lambda m=made: dataclasses.asdict(m)), made == 3,
                [f.name for f in dataclasses.fields(made)], cls.__match_args__,
                outcome(lambda m=made: repr(dataclasses.replace(m))), repr(copy.copy(made)),
                hasattr(made, "__dict__"),
                *[outcome(lambda m=made, act=act: act(m)) for act in (
                    lambda m: setattr(m, "f0", 9), lambda m: m.f0, lambda m: delattr(m, "f1"),
                    lambda m: setattr(m, "new", 9)) if {"f0", "f1"} <= declared.keys() or not (
                        options["frozen"] and options["slots"])][:3 if options["frozen"] else 4]])
        assert found[0] == found[1]


@records.dataclass(frozen=True, slots=True)
class Kept:
    """A class that travels."""

    a: int
    b: list[int] = field(default_factory=list)


@records.dataclass(eq=False)
class Loose(Generic[T]):
    """With a base and what its constructor ends with."""

    kind: ClassVar[int] = 1
    a: T
    both: Any = field(init=False)

    def __post_init__(self) -> None:
        self.both = (self.a, self.a)


@records.dataclass(eq=False)
class Further(Loose[int]):
    b: int = 2


def test_classes_travel_and_inherit() -> None:
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        assert pickle.loads(pickle.dumps(Kept(1, [2]), protocol)) == Kept(1, [2])
    assert copy.deepcopy(Kept(1, [2])) == Kept(1, [2])
    with pytest.raises(dataclasses.FrozenInstanceError):
        Kept(1).a = 2  # type: ignore[misc]
    made = Further(1, b=3)
    assert (made.both, made.b, [f.name for f in dataclasses.fields(made)]) == ((1, 1), 3, ["a", "both", "b"])
    assert made != Further(1, b=3) and hash(made) is not None
    assert Loose("x").both == ("x", "x") and dataclasses.is_dataclass(Loose)
    match Kept(5):
        case Kept(a, []):
            assert a == 5
        case _:
            raise AssertionError


def test_abstract_classes_stay_abstract() -> None:
    class Base(ABC):
        @abstractmethod
        def work(self) -> int: ...

    @records.dataclass
    class Made(Base):
        a: int

    with pytest.raises(TypeError, match="abstract"):
        Made(1)


def test_who_refers_to_itself_and_many_threads_show_the_same() -> None:
    @records.dataclass
    class Ring:
        name: str
        next: Any = None

    ring = Ring("a")
    ring.next = ring
    want = "test_who_refers_to_itself_and_many_threads_show_the_same.<locals>.Ring(name='a', next=...)"
    found: list[str] = []
    threads = [threading.Thread(target=lambda: found.extend(repr(ring) for _ in range(200)))
               for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(found) == {want}


def test_the_collector_works_on_when_what_was_made_is_made() -> None:
    assert gc.isenabled()
    with memory.making():
        assert not gc.isenabled()
        with memory.making():
            pass
        assert not gc.isenabled()
        if hasattr(os, "fork"):
            child = os.fork()
            if not child:
                os._exit(0 if gc.isenabled() else 1)
            assert os.waitpid(child, 0)[1] == 0
    assert gc.isenabled()
    gc.disable()
    try:
        with memory.making():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_what_a_program_has_frozen_is_counted_a_few_times_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """To count it is to go through it."""
    counted: list[int] = []

    def count() -> int:
        counted.append(1)
        return 1
    monkeypatch.setattr(memory, "_aged", 0)
    monkeypatch.setattr(gc, "get_freeze_count", count)
    for _ in range(20):
        with memory.making():
            pass
    assert len(counted) <= memory._AGED


@pytest.mark.parametrize("ask", [inspect.signature, lambda cls: inspect.signature(cls.__init__)])
@pytest.mark.parametrize("called", [False, True])
def test_what_a_constructor_takes_is_seen(ask: Any, called: bool) -> None:
    def make() -> type:
        class Told:
            a: int
            b: float = 2.0
            c: list[int] = field(default_factory=list)
            d: int = field(init=False, default=4)
        return Told
    seen = []
    for cls in both(make):
        if called:
            cls(1)
        seen.append([(p.name, p.kind, p.default is p.empty) for p in ask(cls).parameters.values()])
    assert seen[0] == seen[1] and seen[0][-1][0] == "c"


def interrupted(act: Any, line: int) -> bool:
    """Whether Ctrl-C came at that line of what `act` goes through here and in `dataclasses`, seen from its
    beginning."""
    def trace(frame: Any, event: str, arg: Any) -> Any:
        nonlocal line
        if frame.f_code.co_filename in (records.__file__, dataclasses.__file__, __file__, "<string>"):
            line -= event == "line"
            if not line:
                raise KeyboardInterrupt
        return trace
    before = sys.gettrace()
    try:
        sys.settrace(trace)
        act()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False


@pytest.mark.parametrize("look", [
    dataclasses.fields, lambda cls: cls.__match_args__, lambda cls: cls(1),
    lambda cls: cls.__init__, lambda cls: repr(cls(1)), lambda cls: cls(1) == cls(1)])
def test_an_interrupt_leaves_a_class_whole(look: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def plain() -> type:
        class It:
            a: int
            b: list = field(default_factory=list)
            c: int = field(default=3, repr=False)
            d: int = 4
        return It
    for line in itertools.count(1):
        # here it also comes between a lock's last statement and letting go of it, where no signal does
        monkeypatch.setattr(records, "_lock", threading.RLock())
        theirs, ours = both(plain)
        hit = interrupted(lambda ours=ours: look(ours), line)
        for cls in (theirs, ours):
            it: Any = cls(1)
            assert (it.a, it.b, it.c, it.d) == (1, [], 3, 4) and it == cls(1) != cls(2)
            assert [each.name for each in dataclasses.fields(cls)] == list("abcd") == [*cls.__match_args__]
        assert repr(ours(1)).endswith("It(a=1, b=[], d=4)")
        if not hit:
            break
    assert line > 10
