"""Which inputs and outputs of a model have a row for each item of a batch, and how a batch is cut.

In: a model's inputs and outputs, feeds, speeds. Out: slices of rows, in order, that together are the batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..errors import InvalidArgument
from ..ir import No
from ..records import dataclass


class Port(NamedTuple):
    """An input or output: its name, its type as ONNX spells it, and its shape, None where that is unknown."""

    name: str
    type: str
    shape: Sequence[int | str | None] | None


Ports = tuple[list[Port], list[Port]]


def ports(session: Any) -> Ports:
    """The inputs and outputs of a session."""
    return [Port(a.name, a.type, a.shape) for a in session.get_inputs()], [
        Port(a.name, a.type, a.shape) for a in session.get_outputs()
    ]


@dataclass(frozen=True)
class Rows:
    """`inputs`: names of the inputs that are cut along their first axis; `size`: its name in the model."""

    inputs: tuple[str, ...]
    size: str | None


def rows_of(inputs: Sequence[Port], outputs: Sequence[Port]) -> Rows | No:
    """What is cut where nobody says it: the inputs whose first dimension has the name of the first input's;
    or why batches are not cut."""
    named = {i.name: i.shape[0] for i in inputs if i.shape and not isinstance(i.shape[0], int)}
    if not named:
        return No("no input has a first dimension that is open")
    size = next(iter(named.values()))
    fixed = [
        o.name
        for o in outputs
        if not o.type.startswith("tensor")
        or (
            o.shape is not None
            and (
                not len(o.shape)
                or isinstance(o.shape[0], int)
                or (size is not None and o.shape[0] is not None and o.shape[0] != size)
            )
        )
    ]
    if fixed:
        return No(f"the output {fixed[0]} has no row for each item of the batch")
    return Rows(tuple(n for n, first in named.items() if first == size), size)


def batch_of(rows: Rows, feeds: Mapping[str, Any]) -> int:
    """The rows that are fed. Raises InvalidArgument where inputs have different ones."""
    sizes = {name: np.shape(feeds[name])[0] for name in rows.inputs if name in feeds and np.ndim(feeds[name])}
    if len(set(sizes.values())) > 1:
        raise InvalidArgument(
            "the inputs that are cut into parts have different numbers of rows",
            found=", ".join(f"{n}: {k}" for n, k in sizes.items()),
            cure="name those that have a row for each item: Replicas(..., batch_inputs=[...])",
        )
    return next(iter(sizes.values()), 0)


def cut(count: int, speeds: Sequence[float]) -> list[slice]:
    """Rows in proportion to speeds, in order; parts that would be empty are left out of the batch's rows but
    not of the list."""
    total = sum(speeds)
    exact = [count * s / total for s in speeds]
    sizes = [int(e) for e in exact]
    for i in sorted(range(len(exact)), key=lambda i: sizes[i] - exact[i])[: count - sum(sizes)]:
        sizes[i] += 1
    ends = np.cumsum(sizes).tolist()
    return [slice(end - size, end) for end, size in zip(ends, sizes, strict=True)]
