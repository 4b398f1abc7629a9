"""Which nodes IREE is known to handle: from a table of what its importer and compiler did with ONNX's own
backend cases and with this package's samples of operators, and from nothing else.

In: a node. Out: None, or `No` with the reason. A node is described by *features*: the types of its inputs,
which of them are constant, what its attributes say. The table (`operators.json`, made by
`python -m benchmarks.iree_operators`) has for each operator the features that occurred in models IREE
computed right, and those, alone or in pairs, to which a failure is put down.
"""

from __future__ import annotations

import json
from collections.abc import Container, Iterator
from functools import cache
from pathlib import Path
from typing import Any

from ...ir import No, Node, TensorType, Value, in_memory

TABLE = Path(__file__).with_name("operators.json")
_SEEN = {("Mod", ""): "a remainder of zero loses its sign",
         ("QLinearMatMul", ""): "products of more than two dimensions have other values",
         ("Expand", "input 1 computed"): "a shape of fewer dimensions than the input has does not compile",
         ("Pad", "input 1 computed"): "computed pads that cut end the process",
         ("ReduceLogSum", "input 1 computed"): "computed axes do not compile",
         ("ReduceLogSumExp", "input 1 computed"): "computed axes do not compile",
         ("ReverseSequence", ""): "it does not compile with its attributes left out",
         ("Softmax", "0 float16"): "attention in halves is a unit in the last place off"}
"""What was seen of an operator, or of one with a feature, and the table does not say."""

SLOW = ("LSTM", "GRU", "RNN")
"""Operators that become a loop of small kernels: on this package's own processors, its own are many times as
fast."""

_FAMILIES = (("float", "float16", "bfloat16", "double"), ("int8", "int16", "int32", "int64"),
             ("uint8", "uint16", "uint32", "uint64"))
"""Types that the compiler treats alike: what works for one works for all, where nothing says otherwise."""


@cache
def table() -> dict[str, Any]:
    """The table: `operators` by name and version, and the versions of iree and onnx it was made with."""
    made: dict[str, Any] = json.loads(TABLE.read_text(encoding="utf-8"))
    return made


def key(node: Node) -> str:
    """The name under which the table has an operator: `Relu-6`, by the version its definition begins with."""
    return f"{node.kind}-{node.op.since if node.op is not None else node.version}"


def features(node: Node) -> Iterator[tuple[str, str]]:
    """What may matter to a compiler about `node`: (kind, text) pairs, `("type", "0 float")`."""
    last = max(len(node.op.inputs) - 1, 0) if node.op is not None else len(node.inputs)
    for i, value in enumerate(node.inputs):
        place = min(i, last)
        if value is None:
            continue
        yield "type", f"{place} {_element(value)}"
        if place:
            yield "given", f"input {place} {'constant' if value.const is not None else 'computed'}"
        if value.shape is None or not all(isinstance(d, int) for d in value.shape):
            yield "shape", f"input {place} of open shape"
        elif 0 in value.shape:
            yield "shape", f"input {place} without elements"
    first = node.inputs[0] if node.inputs else None
    if first is not None and first.shape is not None:
        yield "rank", f"rank {len(first.shape)}"
    yield "outputs", "".join("_" if v is None or v.dead else "o" for v in node.outputs)
    for name, value in node.attrs.items():
        if _idle(node, name):
            continue
        if isinstance(value, str | int):
            yield "attribute", f"{name}={value}"
        elif isinstance(value, list | tuple):
            several = len(set(map(str, value))) > 1
            yield "attribute", f"{name} of {'several values' if several else 'one value'}"
        else:
            yield "attribute", f"{name} given"


def _covers(tried: str, wanted: str) -> bool:
    """Whether a node with the outputs `tried` made all that are `wanted`."""
    return all(made == "o" or want != "o"
               for made, want in zip(tried.ljust(len(wanted), "_"), wanted, strict=False))


_ASKED_BY = {"cubic_coeff_a": ("mode", "cubic"), "nearest_mode": ("mode", "nearest"),
             "extrapolation_value": ("coordinate_transformation_mode", "tf_crop_and_resize")}
"""Attributes of Resize that mean something only where another one has this value."""


def _idle(node: Node, name: str) -> bool:
    """Whether an attribute means nothing here: Resize's of other modes; Reshape's `allowzero` where the shape
    holds no zero and cannot."""
    if node.op_type == "Resize" and name in _ASKED_BY:
        other, value = _ASKED_BY[name]
        return node.attrs.get(other) != value
    if name != "allowzero" or node.inputs[1] is None:
        return False
    shape = in_memory(node.inputs[1].const)
    return shape is not None and 0 not in shape


def _akin(text: str, works: dict[str, list[str]]) -> list[str]:
    """A feature, and for a type those of its family in the same place; of the first input where no case has
    this optional one at all."""
    place, _, element = text.partition(" ")
    if not any(each.startswith(f"{place} ") for each in works["type"]):
        place = "0"
    return [text, *(f"{place} {each}" for family in _FAMILIES if element in family for each in family)]


def _element(value: Value) -> str:
    return value.elem.text if isinstance(value.type, TensorType) and value.elem is not None else "?"


def judged(node: Node, sized: bool = False) -> No | None:
    """None where the table speaks for `node`, else why it does not. `sized`: every shape will be known when
    the node is compiled."""
    known = table()
    entry = known["operators"].get(key(node))
    if entry is None:
        return No(f"{node.kind} at this version is not among what was tried with IREE {known['iree']}")
    if "refused" in entry:
        return No(f"IREE {known['iree']}: {entry['refused']}")
    if not sized and (place := _ambiguous(node)):
        return No(f"{place} could be 1 or not, and IREE does not ask when it runs; fix the dimension")
    works, fails = entry["works"], entry["fails"]
    if not sized and node.kind == "Reshape" and node.inputs[1] is not None and node.inputs[1].const is None:
        return No(f"IREE {known['iree']} cannot run with every computed shape; fix the dimensions")
    found = [each for each in features(node) if not (sized and each[0] == "shape")]
    texts = {text for _, text in found}
    if why := seen(node.kind, texts) or _by_content(node):
        return No(f"IREE {known['iree']}: {why}")
    for first, second, reason in entry["together"]:
        if first in texts and second in texts:
            return No(f"IREE {known['iree']} fails with {first} and {second}: {reason}")
    for kind, text in found:
        if text in fails.get(kind, {}):
            return No(f"IREE {known['iree']} fails with {text}: {fails[kind][text]}")
        if kind == "type" and not any(each in works[kind] for each in _akin(text, works)):
            return No(f"{node.kind} with type {text} was not tried with IREE {known['iree']}")
        if kind == "outputs" and not any(_covers(each, text) for each in works[kind]):
            return No(f"{node.kind} with these outputs was not tried with IREE {known['iree']}")
    return None


def seen(operator: str, texts: Container[str]) -> str:
    """What was seen of an operator with these features, "" where nothing was."""
    return next((reason for (kind, feature), reason in _SEEN.items()
                 if operator == kind and (not feature or feature in texts)), "")


def _by_content(node: Node) -> str:
    """Why a node does not compile where features do not tell: by its constants' values, by two ranks."""
    if node.op_type == "MatMul":
        ranks = sorted(len(v.shape) for v in node.inputs if v is not None and v.shape is not None)
        batch = ranks[0] == 1 and ranks[-1] > 2
        return "a vector times matrices of a batch does not compile" if batch else ""
    place = {"Pad": 1, "Slice": 4}.get(node.op_type, len(node.inputs))
    value = node.inputs[place] if place < len(node.inputs) else None
    known = in_memory(value.const) if value is not None and value.const is not None else None
    if known is None or not (known < 0).any():
        return ""
    return "constant pads that cut do not compile" if place == 1 else "constant steps back do not compile"


_BATCHED = ("MatMul", "MatMulInteger", "PRelu", "Gemm", "Expand")
"""Operators that stretch dimensions of 1 and are no elementwise definitions."""


def _ambiguous(node: Node) -> str:
    """The first open dimension of an input that may or may not have to be stretched, "" where there is none.
    A compiled module takes open dimensions of two inputs for equal."""
    if node.op is None or not (node.op.broadcasts or node.op_type in _BATCHED):
        return ""
    shapes = [v.shape for v in node.inputs if v is not None and v.shape]
    if node.op_type == "Gemm":
        shapes = shapes[2:] + [v.shape for v in node.outputs if v is not None and v.shape]
    contracted = 2 if node.op_type.startswith("MatMul") else 0
    for i in range(contracted + 1, max(map(len, shapes), default=0) + 1):
        dims = {shape[-i] for shape in shapes if len(shape) >= i} - {1}
        several = sum(len(shape) >= i and shape[-i] != 1 for shape in shapes) > 1
        if several and (None in dims or len(dims) > 1 and not all(isinstance(d, int) for d in dims)):
            return f"dimension {-i} of the inputs, {' and '.join(sorted(map(str, dims)))},"
    return ""
