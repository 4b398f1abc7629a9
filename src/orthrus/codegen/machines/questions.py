"""What a text depends on of the machine it is written for: a machine that notes what it is asked.

Two machines that give the same answers get the same text, whatever else tells them apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from .machine import Machine

_FIELDS = frozenset(each.name for each in fields(Machine))
_HAS = "has "
"""Begins the question whether there is a feature; other questions are the fields' names."""


class Questioned(Machine):
    """A machine's double, for one text: equal to nothing else, so that nothing remembered about another
    spares it a question."""

    asked: dict[str, Any]
    """The questions so far and their answers, as JSON has them."""

    def __init__(self, machine: Machine) -> None:
        vars(self).update({name: getattr(machine, name) for name in _FIELDS}, asked={})

    def __getattribute__(self, name: str) -> Any:
        value = super().__getattribute__(name)
        if name in _FIELDS:
            super().__getattribute__("asked")[name] = _plain(value)
        return value

    def has(self, feature: str) -> bool:
        found = feature in vars(self)["features"]
        self.asked[_HAS + feature] = found
        return found

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def agrees(machine: Machine, asked: Mapping[str, Any]) -> bool:
    """Whether `machine` gives the same answers. Raises AttributeError for what is no question."""
    return all((machine.has(question.removeprefix(_HAS)) if question.startswith(_HAS)
                else _plain(getattr(machine, question))) == answer for question, answer in asked.items())
