"""The smallest part of a model that shows a difference between two sides.

In: a model, two sides, feeds, and what is known to differ. Out: a `Case`: a part with its inputs, what side b
gives for them, and what side a gives instead. A part is fed what side b has at its border, so that nothing
before it matters. Side a runs the part untouched: what it fuses, it fuses there too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any

from ...records import dataclass
from .divergence import Divergence, Tolerance, measure
from .extract import save_case
from .sides import Kept, Side, kernels_of

NOISE = 4.0
"""How much further than with every value kept outputs may be apart before that is a fault of its own."""

Tolerances = Callable[[str], Tolerance]


@dataclass(frozen=True)
class Case:
    """A part that shows a difference: its nodes' names in running order, what ran them on side a, the model,
    its inputs, the outputs that are expected (side b's) and how far side a is from them. `side`: side a, with
    what it had decided for the whole model."""

    nodes: tuple[str, ...]
    op_types: tuple[str, ...]
    kernels: tuple[str, ...]
    model: Any = field(repr=False)
    inputs: dict[str, Any] = field(repr=False)
    outputs: dict[str, Any] = field(repr=False)
    errors: dict[str, Divergence]
    side: Side = field(repr=False)

    @property
    def fused(self) -> bool:
        """Whether it takes more than one node."""
        return len(self.nodes) > 1

    def save(self, folder: Path, root: str | None = None) -> list[Path]:
        """Write model and data set into `folder`; answers the files. See `extract.save_case`."""
        return save_case(folder, self.model, root, self.inputs, self.outputs)

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        return {"nodes": list(self.nodes), "op_types": list(self.op_types), "kernels": list(self.kernels),
                "inputs": list(self.inputs), "errors": {k: d.plain() for k, d in self.errors.items()}}


def node_case(a: Side, b: Kept, node: int, tolerances: Tolerances) -> Case | None:
    """The case of one node; None where it does not show by itself after all."""
    return _Search(a, b, {}, tolerances).case([node], [n for n in b.model.nodes[node].output if n])


def fused_case(a: Side, b: Kept, outputs: Sequence[str], noise: Mapping[str, float], tolerances: Tolerances,
               notify: Callable[[str], None]) -> Case | None:
    """The smallest run of nodes in which `outputs` begin to differ. `noise`: per value, the excess that
    roundings explain. None where no part shows a difference: it needs the whole model."""
    model, search = b.model, _Search(a, b, noise, tolerances)
    for nodes in (model.above(outputs[:1]), [i for i in range(len(model.nodes)) if i not in model.static]):
        wanted = outputs[:1] if len(nodes) < len(model.nodes) else outputs
        if search.shows(nodes, wanted):
            break
    else:
        return None

    def ends(count: int) -> bool:
        notify(f"cutting after {count} of {len(nodes)} nodes")
        return search.shows(nodes[:count], model.frontier(nodes[:count]))

    def begins(count: int) -> bool:
        notify(f"the last {count} of {len(head)} nodes")
        return search.shows(head[-count:], wanted)

    head = nodes[:least(1, len(nodes), ends)]
    wanted = model.frontier(head)
    window = head[-least(1, len(head), begins):]
    odd = search.odd(window, [v for v in wanted if model.maker[v] in window])
    for value in odd:
        inner = [i for i in window if i in set(model.above([value]))]
        if len(inner) < len(window) and search.shows(inner, [value]):
            window, odd = inner, [value]
            break
    return search.case(window, odd)


def least(low: int, high: int, bad: Callable[[int], bool]) -> int:
    """A number that is bad while the one before it is not, or `low`; `high` is bad."""
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if bad(middle) else (middle + 1, high)
    return low


class _Search:
    def __init__(self, a: Side, b: Kept, noise: Mapping[str, float], tolerances: Tolerances) -> None:
        self.model, self.a, self.b, self.feeds = b.model, a, b, b.feeds
        self.noise, self.tolerances = noise, tolerances

    def shows(self, nodes: Sequence[int], outputs: Sequence[str]) -> bool:
        """Whether side a differs in one of `outputs` when it runs `nodes` on what side b has before them."""
        return bool(self.odd(nodes, outputs))

    def odd(self, nodes: Sequence[int], outputs: Sequence[str]) -> list[str]:
        """Those of `outputs` that `nodes` make in which the sides differ."""
        made = [v for v in outputs if self.model.maker[v] in set(nodes)]
        if not made:
            return []
        _, _, _, errors = self._run(nodes, made)
        return [v for v in made if errors[v].excess > max(1.0, self.noise.get(v, 0.0))]

    def _run(self, nodes: Sequence[int], outputs: Sequence[str]
             ) -> tuple[Any, dict[str, Any], dict[str, Any], dict[str, Divergence]]:
        model = self.model
        border = model.border(nodes)
        fed = [name for i in nodes for name in model.reads[i] if name in self.feeds]
        theirs = self.b.values([*border, *fed, *outputs])
        expected = {name: theirs[name] for name in outputs}
        given = {name: theirs[name] for name in (*border, *fed)}
        part = model.part(nodes, outputs, given, expected)
        ours = self.a.run(part, model.folder, given, outputs)
        errors = {v: measure(ours[v], expected[v], self.tolerances(v)) for v in outputs}
        return part, given, expected, errors

    def case(self, nodes: Sequence[int], outputs: Sequence[str]) -> Case | None:
        """The case of `nodes`; None where it shows nothing."""
        if not outputs:
            return None
        part, given, expected, errors = self._run(nodes, outputs)
        if not any(d.beyond for d in errors.values()):
            return None
        inputs = {v.name: given[v.name] for v in part.graph.input}
        for info in part.graph.input:
            _concrete(info, inputs[info.name])
        model = self.model
        return Case(tuple(model.labels[i] for i in nodes), tuple(model.nodes[i].op_type for i in nodes),
                    self._kernels(part, given), part, inputs, expected, errors, self.a)

    def _kernels(self, part: Any, given: Mapping[str, Any]) -> tuple[str, ...]:
        """What runs the part on side a."""
        found = kernels_of(self.a, part, self.model.folder, given)
        return tuple(dict.fromkeys(kernel for _, kernel in found)) or (self.a.title,)


def _concrete(info: Any, value: Any) -> None:
    """Leave the declared type as it is, but where it has none."""
    from ...ir import type_of
    from ...ops.infer import type_proto

    if not info.HasField("type"):
        info.type.CopyFrom(type_proto(type_of(value)))
