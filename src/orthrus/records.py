"""Data classes that cost nothing to declare, whose constructor is written when it is first called; and
attributes that are found when they are first asked for.

In: a class and `dataclasses.dataclass`'s options. Out: the same class with the same behaviour, for
`dataclasses.fields`, `replace`, `asdict` and type checkers too. A declaration writes and compiles no code,
which else takes half of the time of an import; comparing and hashing go by tuples of the fields' values.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from operator import attrgetter
from reprlib import recursive_repr
from typing import TYPE_CHECKING, Any

from .locks import rlock

_OWN = frozenset({"frozen", "eq", "slots", "weakref_slot"})
_FACTORY = object()
"""Stands for a value that the field's factory makes."""

_lock = rlock()


def _declare(cls: type, frozen: bool = False, eq: bool = True, **slots: bool) -> type:
    own, documented = frozenset(vars(cls)), cls.__doc__
    explicit = "__hash__" in own and not (cls.__hash__ is None and "__eq__" in own)
    if documented is None:
        cls.__doc__ = cls.__name__
    if any(slots.values()) or any(map(_shows, vars(cls).values())):
        cls = dataclasses.dataclass(init=False, repr=False, eq=False, **slots)(cls)
    else:
        for name in _SEEN:
            if name not in own:
                setattr(cls, name, _Looked(cls, name))
    methods: dict[str, Any] = {"__init__": _Constructor(cls, frozen), "__repr__": _shown(cls)}
    if eq:
        methods["__eq__"] = _equal(cls)
        if not explicit:
            cls.__hash__ = _hash(cls) if frozen else None  # type: ignore[assignment, method-assign]
    if frozen:
        methods |= {"__setattr__": _closed(cls, "assign to", object.__setattr__),
                    "__delattr__": _closed(cls, "delete", object.__delattr__)}
    if frozen and slots.get("slots"):
        methods |= {"__getstate__": _told, "__setstate__": _restored}
    for name, method in methods.items():
        if name not in own:
            setattr(cls, name, method)
    cls.__doc__ = documented
    return cls


_SEEN = ("__dataclass_fields__", "__dataclass_params__", "__match_args__")
"""What shows that a class is a data class, and which fields it has."""


def _shows(value: Any) -> bool:
    """Whether a field's default has to be the class's from the beginning: no constructor sets it."""
    return (isinstance(value, dataclasses.Field) and not value.init
            and value.default is not dataclasses.MISSING)


class _Looked:
    """Stands for one of these until somebody looks: the fields are found then, as `dataclasses` does it."""

    def __init__(self, cls: type, name: str) -> None:
        self.cls, self.name = cls, name

    def __get__(self, it: Any, kind: type | None = None) -> Any:
        cls: Any = self.cls
        with _lock:
            if isinstance(vars(cls)["__dataclass_fields__"], _Looked):
                _find_fields(cls)
            if isinstance(vars(cls)["__match_args__"], _Looked):
                given = [each.name for each in dataclasses.fields(cls) if each.init and not each.kw_only]
                setattr(cls, "__match_args__", tuple(given))  # noqa: B010
        return vars(cls)[self.name]


def _find_fields(cls: type) -> None:
    """Have `dataclasses` look at a class, which takes away what declares its fields. Where it is interrupted,
    they are as before."""
    declared = {name: value for name, value in vars(cls).items() if isinstance(value, dataclasses.Field)}
    try:
        dataclasses.dataclass(init=False, repr=False, eq=False, match_args=False)(cls)
    except BaseException:
        if isinstance(vars(cls)["__dataclass_fields__"], _Looked):
            for name, value in declared.items():
                setattr(cls, name, value)
        raise


def _told(self: Any) -> list[Any]:
    return [getattr(self, each.name) for each in dataclasses.fields(self)]


def _restored(self: Any, state: list[Any]) -> None:
    for each, value in zip(dataclasses.fields(self), state, strict=True):
        object.__setattr__(self, each.name, value)


class _Constructor:
    """Stands for a constructor until it is worth writing: when it was called a few times, or somebody wants
    to see what it takes."""

    FEW = 4

    def __init__(self, cls: type, frozen: bool) -> None:
        self.cls, self.frozen, self.calls = cls, frozen, 0
        self.fields: dict[str, Any] | None = None

    def __get__(self, it: Any, kind: type) -> Callable[..., None]:
        if it is not None and self.calls < self.FEW:
            self.calls += 1
            if self.fields is None:
                with _lock:
                    self.fields = _plain(self.cls)
            if self.fields:
                return partial(self.construct, it)
        made = self.written()
        return made if it is None else made.__get__(it, kind)

    def written(self) -> Any:
        made: Any = _written(self.cls, self.frozen)
        if vars(self.cls)["__init__"] is self:
            self.cls.__init__ = made
        return made

    def construct(self, it: Any, /, *given: Any, **named: Any) -> None:
        """What the constructor does; one that is called wrongly is written, to say so as ever."""
        fields = self.fields
        assert fields is not None
        values = dict(zip(fields, given, strict=False))
        missing = [name for name, default in fields.items()
                   if default is dataclasses.MISSING and name not in values and name not in named]
        if missing or len(given) > len(fields) or not values.keys().isdisjoint(named) or (
                not named.keys() <= fields.keys()):
            self.written()(it, *given, **named)
            return
        values.update(named)
        for name, default in fields.items():
            value = values[name] if name in values else default() if isinstance(default, _Made) else default
            object.__setattr__(it, name, value) if self.frozen else setattr(it, name, value)
        if hasattr(self.cls, "__post_init__"):
            it.__post_init__()


class _Made:
    """A default that is made anew for each object."""

    def __init__(self, how: Callable[[], Any]) -> None:
        self.how = how

    def __call__(self) -> Any:
        return self.how()


def _plain(cls: type) -> dict[str, Any]:
    """The fields of a class with their defaults, empty where they are not plain to see."""
    if any("__dataclass_fields__" in vars(base) for base in cls.__mro__[1:]) or not isinstance(
            vars(cls)["__dataclass_fields__"], _Looked):
        return {}
    found: dict[str, Any] = {}
    for name, kind in vars(cls).get("__annotations__", {}).items():
        if not isinstance(kind, str) or "InitVar" in kind or "KW_ONLY" in kind:
            return {}
        if "ClassVar" in kind:
            continue
        default = vars(cls).get(name, dataclasses.MISSING)
        if isinstance(default, dataclasses.Field):
            if not default.init or default.kw_only is True:
                return {}
            default = default.default if default.default_factory is dataclasses.MISSING else _Made(
                default.default_factory)
        found[name] = default
    return found


def _written(cls: type, frozen: bool) -> Callable[..., None]:
    known: dict[str, Any] = {"_factory": _FACTORY, "_set": object.__setattr__}
    given, body = ["self"], list[str]()
    for i, each in enumerate(dataclasses.fields(cls)):
        default = f"_{i}"
        value = each.name
        if each.default_factory is not dataclasses.MISSING:
            known[default] = each.default_factory
            value = f"{default}()"
            if each.init:
                given.append(f"{each.name}=_factory")
                value += f" if {each.name} is _factory else {each.name}"
        elif each.default is not dataclasses.MISSING:
            known[default] = each.default
            if each.init:
                given.append(f"{each.name}={default}")
            elif "__slots__" in vars(cls):
                value = default
            else:
                continue
        elif each.init:
            given.append(each.name)
        else:
            continue
        body.append(f" _set(self, {each.name!r}, {value})" if frozen else f" self.{each.name} = {value}")
    if hasattr(cls, "__post_init__"):
        body.append(" self.__post_init__()")
    text = f"def __init__({', '.join(given)}):\n" + ("\n".join(body) or " pass")
    exec(text, known)
    made: Callable[..., None] = known["__init__"]
    made.__qualname__, made.__module__ = f"{cls.__qualname__}.__init__", cls.__module__
    return made


def _values(names: list[str]) -> Callable[[Any], Any]:
    """What gives the values of these fields: the value itself where there is one, else a tuple."""
    return attrgetter(*names) if names else lambda self: ()


def _equal(cls: type) -> Callable[[Any, object], Any]:
    """What compares, and is it no more from the first comparison on."""
    def __eq__(self: Any, other: object) -> Any:
        names = [each.name for each in dataclasses.fields(cls) if each.compare]
        values, single = _values(names), len(names) == 1

        def __eq__(self: Any, other: object) -> Any:
            if other.__class__ is not self.__class__:
                return NotImplemented
            if single:
                return (values(self),) == (values(other),)
            return values(self) == values(other)
        if vars(cls)["__eq__"] is first:
            cls.__eq__ = __eq__  # type: ignore[assignment, method-assign]
        return __eq__(self, other)
    first = __eq__
    return first


def _hash(cls: type) -> Callable[[Any], int]:
    """What hashes, and is it no more from the first time on."""
    def __hash__(self: Any) -> int:
        names = [each.name for each in dataclasses.fields(cls)
                 if (each.compare if each.hash is None else each.hash)]
        values, single = _values(names), len(names) == 1

        def __hash__(self: Any) -> int:
            return hash((values(self),) if single else values(self))
        if vars(cls)["__hash__"] is first:
            cls.__hash__ = __hash__  # type: ignore[assignment, method-assign]
        return __hash__(self)
    first = __hash__
    return first


def _shown(cls: type) -> Callable[[Any], str]:
    """What writes the representation, and is it no more from then on."""
    def __repr__(self: Any) -> str:
        names = [each.name for each in dataclasses.fields(cls) if each.repr]
        shown = ", ".join(f"{name}={{self.{name}!r}}" for name in names)
        known: dict[str, Any] = {}
        exec(f"def __repr__(self):\n return f'{{self.__class__.__qualname__}}({shown})'", known)
        made = recursive_repr()(known["__repr__"])
        if vars(cls)["__repr__"] is __repr__:
            cls.__repr__ = made  # type: ignore[assignment, method-assign]
        return made(self)
    return __repr__


def _closed(cls: type, verb: str, plain: Callable[..., None]) -> Callable[..., None]:
    def refuse(self: Any, name: str, *value: Any) -> None:
        if type(self) is cls or name in [each.name for each in dataclasses.fields(cls)]:
            raise dataclasses.FrozenInstanceError(f"cannot {verb} field {name!r}")
        plain(self, name, *value)
    return refuse


if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
    from functools import cached_property as cached_property
else:
    def dataclass(cls=None, /, **options):
        """`dataclasses.dataclass`, by which rarer options go."""
        if options.keys() - _OWN:
            return dataclasses.dataclass(cls, **options)
        return (lambda cls: _declare(cls, **options)) if cls is None else _declare(cls, **options)

    class cached_property:
        """`functools.cached_property` without the lock that it has before Python 3.12: one for all objects of
        a class, which a process that was forked meanwhile could never take. Threads may find a value
        twice."""

        def __init__(self, find: Callable[[Any], Any]) -> None:
            self.find, self.__doc__ = find, find.__doc__

        def __set_name__(self, owner: type, name: str) -> None:
            self.name = name

        def __get__(self, it: Any, owner: type | None = None) -> Any:
            if it is None:
                return self
            found = it.__dict__[self.name] = self.find(it)
            return found
