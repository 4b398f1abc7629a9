"""How a model is served: the settings in the file beside it.

In: TOML or JSON. Out: `ModelConfig`, whose every field is checked. A setting that is not known, or can't be
meant, raises InvalidArgument with the file, the value and what is expected.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from dataclasses import field, fields
from pathlib import Path
from typing import Any

from ..errors import InvalidArgument
from ..limits import Limits
from ..records import dataclass
from ..shown import meant

LONGEST = 1 << 20
"""Bytes of a settings file at most."""


@dataclass(frozen=True)
class ModelConfig:
    """Times are in seconds, sizes in bytes.

    `versions`: "latest", "latest:N", "all" or a list of numbers. `max_batch_size`: rows that requests are
    joined to, along the first dimension of every input and output; 1: each runs alone. `max_delay`: how long
    a request waits for others to join. `max_queue`: requests that wait at most. `weight`: the share of the
    slots beside other models. `goal`: within what time a request is to be answered that says nothing itself;
    one that can't be is refused. `timeout`: after which a request fails. `threads`: of a run; 0: the
    processors by the server's slots. `providers` by priority and `provider_options` by provider's name,
    `level` of graph optimization. `limits`: of the session, `orthrus.Limits`. `warm_up`: shapes by input to
    run once with zeros before the model is ready.
    """

    versions: Any = "latest"
    max_batch_size: int = 1
    max_delay: float = 0.0
    max_queue: int = 1000
    weight: float = 1.0
    goal: float | None = None
    timeout: float | None = None
    threads: int = 0
    providers: tuple[str, ...] = ("CPUExecutionProvider",)
    provider_options: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    level: str = "all"
    limits: Mapping[str, Any] = field(default_factory=dict)
    warm_up: tuple[Mapping[str, tuple[int, ...]], ...] = ()

    def chosen(self, there: list[int]) -> list[int]:
        """Of the versions there are those to serve, the highest last."""
        there = sorted(there)
        if isinstance(self.versions, list):
            return [version for version in there if version in self.versions]
        policy, _, count = str(self.versions).partition(":")
        return there if policy == "all" else there[-int(count or 1):]

    def session_limits(self) -> Limits:
        return Limits(**self.limits)


def read(path: Path | None) -> ModelConfig:
    """The settings of a file; those by default where there is none."""
    if path is None:
        return ModelConfig()
    if path.stat().st_size > LONGEST:
        raise InvalidArgument(f"{path.name}: more than {LONGEST} bytes of settings",
                              found=f"{path.stat().st_size} bytes")
    try:
        with path.open("rb") as file:
            given = tomllib.load(file) if path.suffix == ".toml" else json.load(file)
    except (ValueError, RecursionError) as error:
        raise InvalidArgument(f"{path.name} can't be read: {error}",
                              cure=f"write it in {path.suffix[1:].upper()}, in UTF-8") from None
    if not isinstance(given, dict):
        raise InvalidArgument(f"{path.name} holds no settings", found=type(given).__name__,
                              expected="names with values")
    return parsed(given, path.name)


def parsed(given: Mapping[str, Any], where: str) -> ModelConfig:
    """Settings by name."""
    known = [each.name for each in fields(ModelConfig)]
    for name, value in given.items():
        if name not in known:
            raise InvalidArgument(f"{where}: no setting is called {name!r}", found=name,
                                  expected=", ".join(known), cure=meant(name, known) or None)
        if expected := _wrong(name, value):
            raise InvalidArgument(f"{where}: {name}", found=repr(value)[:200], expected=expected)
    made: dict[str, Any] = {name: tuple(value) if isinstance(value, list) and name != "versions" else value
            for name, value in given.items()}
    return ModelConfig(**made)


def _number(value: Any, least: float, above: bool = False) -> bool:
    good = isinstance(value, int | float) and not isinstance(value, bool) and value < float("inf")
    return good and (value > least if above else value >= least)


def _whole(value: Any, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _wrong(name: str, value: Any) -> str:
    """What a setting expects, where the value is not so."""
    from ..tools.asked import LEVELS

    limits = {each.name for each in fields(Limits)}
    checks = {
        "versions": ("'latest', 'latest:N', 'all' or a list of numbers", lambda v: _policy(v)),
        "max_batch_size": ("a whole number from 1 on", lambda v: _whole(v, 1)),
        "max_queue": ("a whole number from 1 on", lambda v: _whole(v, 1)),
        "threads": ("a whole number from 0 on", lambda v: _whole(v, 0)),
        "max_delay": ("seconds, from 0 on", lambda v: _number(v, 0)),
        "weight": ("a number above 0", lambda v: _number(v, 0, True)),
        "goal": ("seconds, above 0", lambda v: _number(v, 0, True)),
        "timeout": ("seconds, above 0", lambda v: _number(v, 0, True)),
        "providers": ("a list of names", lambda v: isinstance(v, list) and v and all(
            isinstance(each, str) for each in v)),
        "provider_options": ("options by provider's name", lambda v: isinstance(v, dict) and all(
            isinstance(options, dict) for options in v.values())),
        "level": (f"one of {', '.join(LEVELS)}", lambda v: isinstance(v, str) and v in LEVELS),
        "limits": (f"numbers above 0 by name: {', '.join(sorted(limits))}", lambda v: isinstance(
            v, dict) and set(v) <= limits and all(
            _number(n, 0, True) if each == "run_timeout" else _whole(n, 1) for each, n in v.items())),
        "warm_up": ("a list of shapes by input's name", lambda v: isinstance(v, list) and all(
            isinstance(each, dict) and all(isinstance(shape, list) and all(_whole(n, 0) for n in shape)
                                           for shape in each.values()) for each in v)),
    }
    expected, good = checks[name]
    return "" if good(value) else expected


def _policy(value: Any) -> bool:
    if isinstance(value, list):
        return bool(value) and all(_whole(each, 1) for each in value)
    if not isinstance(value, str):
        return False
    policy, colon, count = value.partition(":")
    return value == "all" or policy == "latest" and (not colon or count.isdecimal() and int(count) > 0)
