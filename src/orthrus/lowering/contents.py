"""Which values have to be known before anything is computed, because their elements decide shapes.

In: nodes that a provider would compile, in order. Out: which of those values follow from shapes, from
constants and from small values that come to the host from outside (`hosted`), and which are only known once a
part has run (`late`): what needs those comes in another part.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import field

from ..ir import No, Node, TensorType, Value
from ..records import dataclass

CONTENT: dict[str, tuple[int, ...]] = {
    "CenterCropPad": (1,), "Col2Im": (1, 2), "ConstantOfShape": (0,), "CumProd": (1,), "CumSum": (1,),
    "Expand": (1,), "GroupQueryAttention": (6,), "MaxUnpool": (2,), "OneHot": (1, 2), "Pad": (1, 2, 3),
    "Range": (0, 1, 2), "Reshape": (1,), "Resize": (1, 2, 3), "Slice": (1, 2, 3, 4), "Split": (1,),
    "Squeeze": (1,), "Tile": (1,), "TopK": (1,), "Unsqueeze": (1,), "Upsample": (1,), "AffineGrid": (1,),
    "Trilu": (1,),
    "ReduceSum": (1,), "ReduceMean": (1,), "ReduceMax": (1,), "ReduceMin": (1,), "ReduceProd": (1,),
    "ReduceL1": (1,), "ReduceL2": (1,), "ReduceLogSum": (1,), "ReduceLogSumExp": (1,),
    "ReduceSumSquare": (1,), "Dropout": (1, 2),
}
"""Inputs whose elements decide shapes, or what is computed: they must be known while lowering."""

FEW = 64
"""Elements of a value from outside that may be one of several from which such elements follow."""


def contents(node: Node) -> list[Value]:
    """The inputs of `node` whose elements have to be known, but constants."""
    found = (node.inputs[i] for i in CONTENT.get(node.op_type, ()) if i < len(node.inputs))
    return [v for v in found if v is not None and v.const is None]


def undecided(node: Node, known: Callable[[Value], bool]) -> No | None:
    """Why `node` has no result yet, where elements that have to be known are not."""
    value = next((v for v in contents(node) if not known(v)), None)
    return None if value is None else No(
        f"its result depends on the elements of %{value.name}, known only at run time")


def derives(node: Node, derived: Collection[Value]) -> bool:
    """Whether `node`'s results follow from shapes, from constants and from what is `derived`."""
    if node.op_type in ("Shape", "Size") and not node.domain:
        return True
    return all(v is None or v.const is not None or v in derived for v in node.inputs)


@dataclass
class Contents:
    """What is found out of some nodes. `hosted`: the values from outside of them, and those of `late`, that
    have to be in the host's memory; `late`: values that only a run of the nodes gives."""

    hosted: set[Value] = field(default_factory=set)
    late: set[Value] = field(default_factory=set)

    @staticmethod
    def of(nodes: Iterable[Node]) -> Contents:
        """The contents of `nodes`, of which nothing else is said."""
        inside = dict.fromkeys(nodes)
        found, known = Contents(), dict[Value, bool]()
        for node in inside:
            for value in contents(node):
                if value.node not in inside:
                    found.hosted.add(value)
                elif _follows(value, inside, known):
                    found.hosted |= _sources(value, inside)
                else:
                    found.late.add(value)
                    found.hosted.add(value)
        return found

    def apart(self, value: Value, reader: Node) -> bool:
        """Whether `reader` has to wait for the end of the part that makes `value`."""
        return value in self.late and value in contents(reader)


def inputs_of(nodes: Sequence[Node], inputs: Sequence[Value]) -> list[int]:
    """Which of a part's inputs have to be in the host's memory, as what follows from them decides shapes."""
    hosted = Contents.of(nodes).hosted
    return [i for i, v in enumerate(inputs) if v in hosted]


def _follows(value: Value, inside: Collection[Node], known: dict[Value, bool]) -> bool:
    """Whether `value` follows from shapes, constants and small values from outside."""
    stack = [value]
    while stack:
        v = stack[-1]
        if v in known:
            stack.pop()
            continue
        node = v.node
        if v.const is not None or node is None or node not in inside:
            known[v] = v.const is not None or _small(v)
        elif node.op_type in ("Shape", "Size") and not node.domain:
            known[v] = True
        elif node.op is None or node.has_bodies or node.op.runtime - {"n_outputs"}:
            known[v] = False
        else:
            given = [i for i in node.inputs if i is not None]
            waiting = [i for i in given if i not in known]
            if waiting:
                stack += waiting
                continue
            known[v] = all(known[i] for i in given)
        stack.pop()
    return known[value]


def _sources(value: Value, inside: Collection[Node]) -> set[Value]:
    """The values from outside that `value` follows from."""
    found, met, stack = set[Value](), set[Value](), [value]
    while stack:
        v = stack.pop()
        if v in met or v.const is not None:
            continue
        met.add(v)
        node = v.node
        if node is None or node not in inside:
            found.add(v)
        elif node.op_type not in ("Shape", "Size") or node.domain:
            stack += [i for i in node.inputs if i is not None]
    return found


def _small(value: Value) -> bool:
    """Whether a value from outside has few elements, as far as its type says."""
    kind = value.type
    if not isinstance(kind, TensorType) or kind.shape is None or len(kind.shape) > 1:
        return False
    return all(not isinstance(d, int) or d <= FEW for d in kind.shape)
