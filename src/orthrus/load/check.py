"""What a node must be to fit its operator: number of inputs and outputs, attributes, element types.

The texts open as onnxruntime's do. Structure is checked while the graph is built (`fits`), types once they
flow (`types`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from ..errors import Fail, InvalidGraph
from ..ir import (
    ElementType,
    Graph,
    MapType,
    Node,
    OptionalType,
    SequenceType,
    TensorType,
    Type,
    Value,
    shape_text,
    type_of,
)
from ..ops import infer
from ..ops.schema import Schema, lookup

_LOCATED = "This is an invalid model. In Node, "


def described(name: str, op_type: str, domain: str, inputs: Iterable[Any], outputs: Iterable[Any]) -> str:
    """A node as onnxruntime prints it: `("ad", Add, "", -1) : ("a": tensor(float),) -> ("c":
    tensor(float),)`."""
    def side(values: Iterable[Any]) -> str:
        return "".join(
            (f'"{v.name}": {v.type},' if _known(v.type) else f'"{v.name}",')
            if isinstance(v, Value)
            else f'"{v or ""}",'
            for v in values
        )
    return f'("{name}", {op_type}, "{domain}", -1) : ({side(inputs)}) -> ({side(outputs)}) '


def _known(kind: Type | None) -> bool:
    return kind is not None and "?" not in str(kind)


def invalid(
    proto: Any, inputs: Iterable[Any], outputs: Iterable[Any], error: str, **rows: Any
) -> InvalidGraph:
    """The error of a node that contradicts its schema."""
    where = described(proto.name, proto.op_type, proto.domain, inputs, outputs)
    return InvalidGraph(f"{_LOCATED}{where}, Error {error}", **rows)


_LENIENT = frozenset({"Constant", "LayerNormalization", "SimplifiedLayerNormalization"})
"""Operators of which onnxruntime takes attributes that it does not know."""


def fits(proto: Any, schema: Schema, label: str, inputs: list[Value | None], outputs: list[Value | None],
         attributes: dict[str, Any], kinds: dict[str, str], needed: Sequence[str], warn: Any) -> None:
    """Raise InvalidGraph if the node has too few or too many inputs or outputs, an unknown attribute, lacks
    a required one, or has one of another kind. `needed`: attributes without which the definition says
    nothing, whatever the schema calls them."""
    def bad(error: str, **rows: Any) -> InvalidGraph:
        return invalid(proto, inputs, outputs, error, node=label, **rows)

    own = not schema.standard
    spelled = f"Node({proto.name})" if proto.name else "Node"
    spelled += f" with schema({schema.domain}::{schema.name}:{schema.version})"
    # inputs left out at the end count where they are written, as an empty name
    written = max(len(inputs), min(len(proto.input), schema.min_input))
    if not schema.min_input <= written <= schema.max_input:
        raise bad(
            f"{spelled} has input size {written} not in range [min={schema.min_input}, "
            f"max={schema.max_input}].",
            expected=", ".join(f.name for f in schema.inputs),
        )
    if not schema.min_output <= len(outputs) <= schema.max_output:
        raise bad(f"{spelled} has output size {len(outputs)} not in range [min={schema.min_output}, "
                  f"max={schema.max_output}].")
    if schema.name == "Split" and attributes.get("num_outputs", len(outputs)) != len(outputs):
        raise bad(f"num_outputs is {attributes['num_outputs']}, but the node has {len(outputs)} outputs")
    for i in range(written):
        if (
            (i >= len(inputs) or inputs[i] is None)
            and (formal := schema.input_at(i)) is not None
            and not formal.optional
            and not formal.variadic
        ):
            raise bad(
                f"Node ({proto.name})'s input {i} is marked single but has an empty string in the graph",
                expected=f"a value for {formal.name}",
            )
    for name, kind in kinds.items():
        known = schema.attributes.get(name)
        if known is None:
            strict = not own or schema.domain == "com.microsoft"
            if not strict or name.startswith("_") or schema.name in _LENIENT:
                warn(
                    f"{label}: attribute {name!r} is not known to {schema.domain}::{schema.name} and is "
                    "ignored"
                )
                continue
            raise bad(f"Unrecognized attribute: {name} for operator {schema.name}",
                      expected=", ".join(sorted(schema.attributes)) or "no attributes")
        if known[0] and kind != known[0] and not (own and kind == "INT" and known[0] == "FLOAT"):
            raise bad(
                f"Mismatched attribute type in '{proto.name} : {name}'. Expected: '{known[0]}', actual: "
                f"'{kind}'"
            )
    for name in (*(name for name, (_, required) in schema.attributes.items() if required), *needed):
        if name not in attributes:
            raise bad(f"Required attribute '{name}' is missing.")


def types(graph: Graph, declared: dict[Value, Type], strict: bool = False) -> None:
    """Let types flow through `graph` and compare them with schemas and declarations.

    Raises InvalidGraph for an element type a schema does not allow, and Fail for one type variable bound to
    two types, for a contradiction found by inference and for a declared element type that is wrong. A wrong
    declared shape is a warning, an error if `strict`.
    """
    def report(node: Node, error: infer.InferenceError) -> None:
        _check_node(node)
        if "holds Graph" in str(error) and any(node.bodies()):
            return
        if node.op_type == "Reshape" and not strict:
            graph.info.warnings.append(f"{node.label}: {error}")
            return
        raise Fail(f"Node ({node.name}) Op ({node.op_type}) {_inference_text(str(error))}", node=node.label,
                   found=", ".join(repr(v) if v else "_" for v in node.inputs))

    infer.infer_graph(graph, report)
    for node in graph.walk():
        _check_node(node)
        if node.op_type in _CARRIED and not node.domain:
            _check_body(node)
    for value, kind in declared.items():
        _check_declared(graph, value, kind, strict)
    for value in graph.outputs:
        if sizes := _promised(value.type, declared.get(value)):
            graph.info.sizes[value.name] = sizes


def _promised(found: Type | None, kind: Type | None) -> dict[int, int | str]:
    """The sizes and names of `kind`, by axis, of which `found` knows no number."""
    if not isinstance(found, TensorType) or not isinstance(kind, TensorType):
        return {}
    if found.shape is None or kind.shape is None or len(found.shape) != len(kind.shape):
        return {}
    return {axis: b for axis, (a, b) in enumerate(zip(found.shape, kind.shape, strict=True))
            if isinstance(b, int | str) and not isinstance(a, int) and a != b}


_CARRIED: dict[str, Callable[[Node], int]] = {
    "Loop": lambda node: max(len(node.inputs) - 2, 0),
    "Scan": lambda node: len(node.inputs) - (node.version < 9) - int(node.attrs["num_scan_inputs"]),
    "SequenceMap": lambda node: 0,
}
"""How many values a body is given back by its turn before."""


def _check_body(node: Node) -> None:
    """A body that runs again and again takes and gives what its node does, in the same types; the condition
    of a Loop's is a bool, and what is carried from turn to turn keeps its type."""
    def bad(text: str, **rows: Any) -> Fail:
        return Fail(f"Node ({node.name}) Op ({node.op_type}) [TypeInferenceError] {text}", node=node.label,
                    **rows)

    body, given, carried = node.attrs["body"], infer.body_inputs(node), _CARRIED[node.op_type](node)
    first = 2 if node.op_type == "Loop" else 0
    conditions = first // 2
    if len(body.inputs) != len(given) or carried < 0:
        raise bad(f"The body does not take what the {node.op_type} carries",
                  found=f"{len(body.inputs)} inputs", expected=len(given))
    if len(body.outputs) - conditions < max(carried, len(node.outputs)):
        raise bad(f"The body does not give what the {node.op_type} carries and returns",
                  found=f"{len(body.outputs)} outputs",
                  expected=f"at least {conditions + max(carried, len(node.outputs))}")
    if conditions and body.outputs[0].elem not in (None, ElementType.BOOL):
        raise bad("The body's condition is no bool", found=body.outputs[0].type)
    for taken, kind in zip(body.inputs, given, strict=True):
        if not _holds(taken.type, kind):
            raise bad(f"The body's input {taken.name} is given another type than it declares", found=kind,
                      expected=taken.type, cure="declare what is given, or insert a Cast")
    for before, after in zip(body.inputs[first:first + carried], body.outputs[conditions:], strict=False):
        if not _holds(before.type, after.type):
            raise bad(f"A value that is carried changes its type: {before.name} to {after.name}",
                      found=after.type, expected=before.type)


def _holds(declared: Type | None, given: Type | None) -> bool:
    """Whether a value of type `given` may stand where `declared` says so, as far as both are known."""
    held = declared.elem if isinstance(declared, OptionalType) else declared
    return not (_known(declared) and _known(given)) or str(given) in (str(declared), str(held))


def _inference_text(text: str) -> str:
    """onnx's own `[ShapeInferenceError]` message without its node, or ours under that heading."""
    for heading in ("[ShapeInferenceError]", "[TypeInferenceError]"):
        if heading in text:
            rest = text.split(heading)[-1].strip()
            if rest.startswith("(op_type:") and "): " in rest:
                rest = rest.split("): ", 1)[1]
            return f"{heading} {rest}"
    return f"[ShapeInferenceError] {text}"


def _check_declared(graph: Graph, value: Value, kind: Type, strict: bool) -> None:
    found = value.type
    if found is None or found == kind:
        return
    node = value.node
    if node is not None and _known(found) and _known(kind) and str(found) != str(kind):
        raise Fail(
            f"Type Error: Type ({kind}) of output arg ({value.name}) of node ({node.name}) does not match "
            f"expected type ({found}).",
            node=node.label,
            found=f"declared {kind}",
            expected=found,
        )
    if (
        not isinstance(found, TensorType)
        or not isinstance(kind, TensorType)
        or found.shape is None
        or kind.shape is None
    ):
        return
    same = len(found.shape) == len(kind.shape) and all(
        a == b or not isinstance(a, int) or not isinstance(b, int)
        for a, b in zip(found.shape, kind.shape, strict=True)
    )
    if not same:
        text = f"{value.name} is declared as {shape_text(kind)} but is {shape_text(found)}"
        if strict:
            raise Fail(f"Node ({node.name if node else ''}) [ShapeInferenceError] {text}",
                       node=node.label if node else None)
        graph.info.warnings.append(text)


def _check_node(node: Node) -> None:
    schema = lookup(node.domain, node.op_type, node.version)
    if not isinstance(schema, Schema):
        return
    key = tuple(_spelled(v) for v in node.inputs)
    verdict = _verdict(schema, key, tuple(_spelled(v) for v in node.outputs))
    if verdict is None:
        return
    if verdict[0] == "invalid":
        _, side, index, allowed = verdict
        value = (node.inputs if side == "input" else node.outputs)[index]
        assert value is not None
        raise InvalidGraph(
            f"This is an invalid model. Type Error: Type '{value.type}' of {side} parameter "
            f"({value.name}) of operator "
            f"({node.op_type}) in node ({node.name}) is invalid.",
            node=node.label,
            found=value.type,
            expected=allowed,
        )
    _, variable, first, second = verdict
    raise Fail(
        f"Type Error: Type parameter ({variable}) of Optype ({node.op_type}) bound to different types "
        f"({first} and {second} in node ({node.name}).",
        node=node.label,
        found=f"{first} and {second}",
        expected=f"one type for {variable}",
        cure="insert a Cast",
    )


def _spelled(value: Value | None) -> str | None:
    """The type as ONNX spells it, None where it is absent or not wholly known."""
    if value is None or value.type is None:
        return None
    text = str(value.type)
    return None if "?" in text else text


@functools.lru_cache(maxsize=1 << 14)
def _verdict(schema: Schema, inputs: tuple[str | None, ...], outputs: tuple[str | None, ...]) -> Any:
    """None where the types fit; else what does not: the parameter and the allowed types, or the variable
    bound twice."""
    bound: dict[str, str] = {}
    for side, spelled, at in (("input", inputs, schema.input_at), ("output", outputs, schema.output_at)):
        for i, text in enumerate(spelled):
            formal = at(i)
            if text is None or formal is None or not formal.types:
                continue
            if text not in formal.types:
                if side == "output":
                    continue
                return "invalid", side, i, ", ".join(sorted(formal.types))
            if side == "output" or (formal.variadic and not formal.homogeneous) or "(" in formal.variable:
                continue
            before = bound.setdefault(formal.variable, text)
            if before != text:
                return "bound", formal.variable, before, text
    return None


def untyped(kind: Type | None) -> bool:
    """Whether nothing says what elements a value has, or what it holds."""
    if isinstance(kind, SequenceType | OptionalType):
        return untyped(kind.elem)
    if isinstance(kind, MapType):
        return untyped(kind.value)
    return kind is None or (isinstance(kind, TensorType) and kind.elem is None)


def initializer(name: str, declared: Type | None, array: Any) -> None:
    """Raise Fail where an initializer contradicts the type its name is declared with."""
    if not isinstance(declared, TensorType) or not isinstance(array, np.ndarray):
        return
    found = type_of(array)
    assert isinstance(found, TensorType)
    if declared.elem not in (None, found.elem):
        raise Fail(
            f"Type Error: Data in initializer '{name}' has element type {found} but usage of initializer "
            f"in graph expects {declared}"
        )
    if declared.shape is not None and (len(declared.shape) != array.ndim or any(
            isinstance(d, int) and d != n for d, n in zip(declared.shape, array.shape, strict=True))):
        def spelled(shape: Any) -> str:
            return "{" + ",".join(str(d) for d in shape) + "}"
        raise Fail(f"Type Error: Shape of initializer {name} does not match. {spelled(declared.shape)} != "
                   f"{spelled(array.shape)}")
