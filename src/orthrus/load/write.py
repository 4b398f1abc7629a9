"""Graph -> ModelProto, bytes or a file: what `load` reads comes back with the same meaning.

Large tensors may go to a data file beside the model; its name, like every name a model gives, cannot leave
the folder.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from ..errors import Fail, InvalidArgument
from ..ir import OWN, Graph, Node, SparseArray, TensorType, Value, element_of
from ..ops import find
from ..ops.infer import attribute_proto, type_proto
from ..ops.schema import Schema, lookup, newest_opset
from .parts import WRITERS
from .tensors import pack, packed_bytes

Pieces = list[tuple[int, Callable[[], bytes]]]
"""What a data file holds: offsets, and what makes the bytes that begin there."""

_ALIGNMENT = 64
_ASIDE = "orthrus.aside"
"""The domain of functions that hold one node of another opset than the model's, or the parts of one."""
_LEAST_OPSET = 13
"""The opset that the parts of the optimizer's own operators are written for."""
_BEFORE_ONNX = frozenset({"LayerNormalization", "SimplifiedLayerNormalization"})
"""What onnxruntime takes under every opset of ONNX's domain."""


def save(graph: Graph, path: str | os.PathLike[str] | None = None, *, external_file: str | None = None,
         external_threshold: int = 1024) -> bytes:
    """The model as bytes, also written to `path` if given.

    With `external_file`, a bare file name, tensors of `external_threshold` bytes and more are written to
    that file in the folder of `path`, if there are any. Raises InvalidArgument for a name that is no bare
    file name and for a path that no file can be put at, Fail if the model is over 2 GB without it.
    """
    data: Pieces | None = None
    if external_file is not None:
        if path is None:
            raise InvalidArgument("external data needs a path for the model beside it",
                                  cure="give the path that the model is written to")
        if not _bare(external_file):
            raise InvalidArgument(f"the data file must be a bare file name, not {external_file!r}",
                                  cure="name it without a folder: it lies beside the model")
        data = []
    model = to_model_proto(
        graph, External(external_file, external_threshold, data) if data is not None else None
    )
    try:
        raw: bytes = model.SerializeToString()
    except ValueError as error:
        raise Fail("the model is over 2 GB, the largest protobuf message", found=error,
                   cure="save it with external_file") from None
    if path is not None:
        put(path, raw, None if external_file is None else (external_file, data or []))
    return raw


def put(path: str | os.PathLike[str], raw: bytes,
        beside: tuple[str, Pieces] | None = None) -> None:
    """Write a model and, `beside` it, the pieces of its data file by offset, where there are any. Raises
    InvalidArgument for a path that no file can be put at."""
    folder = os.path.dirname(os.path.abspath(path))
    if not os.path.isdir(folder) or os.path.isdir(path):
        why = "Is a directory" if os.path.isdir(folder) else "No such file or directory"
        raise InvalidArgument(f'open file "{os.fspath(path)}" failed: {why}',
                              cure="give the path of a file in a folder that is there")
    if beside is not None and beside[1]:
        _write(os.path.join(folder, beside[0]), beside[1])
    _write(os.fspath(path), [(0, lambda: raw)])


def _bare(name: str) -> bool:
    return bool(name) and name not in (".", "..") and not set(name) & set("/\\:\0")


def _write(path: str, pieces: Pieces) -> None:
    """Write a new file and put it in the place of the old one, so that a link or a file in use is not
    written through."""
    import tempfile

    handle, temporary = tempfile.mkstemp(dir=os.path.dirname(os.path.abspath(path)), prefix=".orthrus-")
    try:
        with os.fdopen(handle, "wb") as file:
            for offset, piece in pieces:
                file.seek(offset)
                file.write(piece())
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(temporary, 0o666 & ~mask)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


class External:
    """Collects the tensors that go to the data file; what they take there is made when it is written."""

    def __init__(self, name: str | None, threshold: int, pieces: Pieces) -> None:
        self.name, self.threshold, self.pieces, self.end = name, threshold, pieces, 0

    def take(self, tensor: Any, size: int, make: Callable[[], bytes]) -> bool:
        """Whether `tensor`, of `size` bytes that `make` gives, is in the data file from now on."""
        if size < self.threshold:
            return False
        offset = -(-self.end // _ALIGNMENT) * _ALIGNMENT
        self.pieces.append((offset, make))
        self.end = offset + size
        tensor.data_location = 1
        for key, value in (("location", self.name), ("offset", str(offset)), ("length", str(size))):
            tensor.external_data.add(key=key, value=value)
        return True


def to_model_proto(graph: Graph, external: External | None = None, *, released: bool = True) -> Any:
    """`graph` as an onnx ModelProto. Without `released`, operators that onnxruntime had before ONNX, such as
    LayerNormalization, stand under opsets older than ONNX's own, too."""
    import onnx

    info = graph.info
    model = onnx.ModelProto(ir_version=info.ir_version or onnx.IR_VERSION)
    for name in ("producer_name", "producer_version", "domain", "doc_string"):
        if text := getattr(info, name):
            setattr(model, name, text)
    if info.model_version != (1 << 63) - 1:
        model.model_version = info.model_version
    for key, text in info.metadata.items():
        model.metadata_props.add(key=key, value=text)
    writer = _Writer(external, _opsets(graph, released), released)
    writer.graph(graph, model.graph)
    for domain, version in writer.opsets.items():
        model.opset_import.add(domain=domain, version=version)
    model.functions.extend(writer.functions.values())
    if writer.functions:
        model.ir_version = max(model.ir_version, 8)
    if info.graph_doc:
        model.graph.doc_string = info.graph_doc
    # constants outside the inputs exist from IR 4 on
    if model.ir_version < 4 and graph.initializers:
        model.ir_version = 4
    return model


def node_proto(node: Node) -> Any:
    """One node as a NodeProto, with its values' own names."""
    import onnx

    proto = onnx.NodeProto()
    _Writer(None, {}).node(node, proto)
    return proto


def _opsets(graph: Graph, released: bool) -> dict[str, int]:
    """An opset per domain: the model's own, a newer one where only that has all of its nodes, or the newest
    version among its nodes where the model imports none."""
    found = dict(graph.info.opsets)
    nodes: dict[str, list[Node]] = {}
    for node in graph.walk():
        if node.domain != OWN:
            nodes.setdefault(node.domain, []).append(node)
    found.pop(OWN, None)
    for domain, members in nodes.items():
        own = found.setdefault(domain, max(node.version for node in members))
        last = newest_opset(domain) or own
        found[domain] = next((opset for opset in range(own, last + 1)
                              if all(same_meaning(node, opset, released) for node in members)), own)
    return found


def same_meaning(node: Node, opset: int, released: bool = True) -> bool:
    """Whether `node` keeps its meaning under `opset`: the same schema version, or one that the same
    definition serves and that allows the node's attributes and types. One that `opset` has
    no more does not, nor, with `released`, an operator that ONNX itself has only later."""
    if not released and not node.domain and node.op_type in _BEFORE_ONNX:
        return True
    schema = lookup(node.domain, node.op_type, opset)
    if not isinstance(schema, Schema):
        return node.op is None
    if schema.deprecated or (released and not schema.standard and _is_later(node, opset)):
        return False
    if schema.version == node.version:
        return True
    if node.op is None or (node.op is not find(node.domain, node.op_type, schema.version)
                           and not (schema.version >= 11 and _resized_alike(node))):
        return False
    types = [(schema.input_at(i), v) for i, v in enumerate(node.inputs)] + [
        (schema.output_at(i), v) for i, v in enumerate(node.outputs)]
    return len(node.inputs) <= schema.max_input and set(node.attrs) <= set(schema.attributes) and all(
        formal is not None and (not formal.types or str(v.type) in formal.types)
        for formal, v in types if v is not None and v.type is not None)


def _resized_alike(node: Node) -> bool:
    """Whether it is a Resize of 11 to 18 that means the same from 19 on: between aligned corners, the scaled
    length counts from then on, and the whole number of elements before."""
    if node.kind != "Resize" or node.version < 11:
        return False
    mode = node.attribute("coordinate_transformation_mode")
    if mode != "align_corners":
        return mode != "tf_half_pixel_for_nn"
    scales = node.inputs[2] if len(node.inputs) > 2 else None
    known = None if scales is None else scales.const
    return scales is None or (isinstance(known, np.ndarray) and bool(np.all(known == np.rint(known))))


def _sizes(node: Node) -> tuple[Any, ...]:
    """What the parts of one of the optimizer's own operators depend on beside its attributes."""
    return tuple(v and str(v.type) for v in node.inputs) if node.domain == OWN else ()


def _is_later(node: Node, opset: int) -> bool:
    """Whether an opset after `opset` brings the operator into the standard."""
    later = lookup(node.domain, node.op_type, newest_opset(node.domain) or opset)
    return isinstance(later, Schema) and later.standard


def _free(name: str, taken: dict[str, int]) -> str:
    """`name`, with the next number where it is empty or `taken`, which then has what is given. How many of
    each name there are is the dictionary's value."""
    found = name
    while not found or found in taken:
        taken[name] = count = taken.get(name, 0) + 1
        found = f"{name}__{count}"
    taken.setdefault(found, 0)
    return found


class _Writer:
    """Writes graphs; values, and nodes, of equal names get names of their own."""

    def __init__(self, external: External | None, opsets: dict[str, int], released: bool = True) -> None:
        self.external, self.opsets, self.released = external, opsets, released
        self.names: dict[Value, str] = {}
        self.taken, self.labels = dict[str, int](), dict[str, int]()
        self.functions: dict[tuple[Any, ...], Any] = {}

    def name(self, value: Value | None) -> str:
        if value is None:
            return ""
        found = self.names.get(value)
        if found is None:
            found = self.names[value] = _free(value.name, self.taken)
        return found

    def label(self, node: Node) -> str:
        """The node's name, with a number where another has it already; branches that became part of the graph
        brought theirs."""
        return _free(node.name, self.labels) if node.name else ""

    def graph(self, graph: Graph, proto: Any) -> None:
        """Fill `proto` with `graph`; inputs and outputs keep their names before all other values."""
        proto.name = graph.name or "graph"
        for value in (*graph.inputs, *graph.outputs):
            self.name(value)
        for value in graph.inputs:
            self._value_info(value, proto.input.add())
        for value in graph.initializers.values():
            self.tensor(value.initial, proto.initializer.add(), self.name(value))
        for node in graph.nodes:
            written = proto.node.add()
            self.node(node, written)
            opset = self.opsets.get(node.domain, node.version)
            if node.domain == OWN or not same_meaning(node, opset, self.released):
                self.set_aside(node, written)
        for value in graph.outputs:
            self._value_info(value, proto.output.add())
        known = {*graph.inputs, *graph.outputs}
        for node in graph.nodes:
            for made in node.outputs:
                if made is not None and made not in known and made.type is not None \
                        and not (isinstance(made.type, TensorType) and made.type.elem is None):
                    self._value_info(made, proto.value_info.add())

    def _value_info(self, value: Value, proto: Any) -> None:
        proto.name = self.name(value)
        if value.type is not None:
            proto.type.CopyFrom(type_proto(value.type))

    def node(self, node: Node, proto: Any) -> None:
        proto.op_type, proto.domain, proto.name = node.op_type, node.domain, self.label(node)
        if node.doc:
            proto.doc_string = node.doc
        proto.input.extend(self.name(v) for v in node.inputs)
        proto.input.extend([""] * (node.arity - len(node.inputs)))
        proto.output.extend(self.name(v) for v in node.outputs)
        for key, text in node.metadata.items():
            proto.metadata_props.add(key=key, value=text)
        for key, value in node.attrs.items():
            self.attribute(key, value, proto.attribute.add(), node)

    def set_aside(self, node: Node, proto: Any) -> None:
        """Turn `proto` into the call of a function that imports the opset `node` needs, or holds its parts.
        """
        import onnx

        if any(node.bodies()):
            raise Fail(
                f"{node.kind}-{node.version} cannot be written under opset {self.opsets.get(node.domain)}",
                node=node.label,
                cure="set graph.info.opsets to an opset that has this version",
            )
        attributes = b"".join(a.SerializeToString() for a in proto.attribute)
        present = tuple(bool(n) for n in proto.input), tuple(bool(n) for n in proto.output)
        key = node.domain, node.op_type, node.version, *present, attributes, *_sizes(node)
        function = self.functions.get(key)
        if function is None:
            function = onnx.FunctionProto(
                domain=_ASIDE, name=f"{node.op_type}_{node.version}_{len(self.functions)}"
            )
            inputs, outputs = ([f"{letter}{n}" if flag else "" for n, flag in enumerate(flags)]
                               for letter, flags in zip("io", present, strict=True))
            function.input.extend(n for n in inputs if n)
            function.output.extend(n for n in outputs if n)
            if node.domain == OWN:
                opset = max(self.opsets.get("", _LEAST_OPSET), _LEAST_OPSET)
                function.opset_import.add(domain="", version=opset)
                WRITERS[node.op_type](function, node)
            else:
                function.opset_import.add(domain=node.domain, version=node.version)
                inner = function.node.add()
                inner.CopyFrom(proto)
                del inner.input[:], inner.output[:], inner.metadata_props[:]
                inner.name = ""
                inner.input.extend(inputs)
                inner.output.extend(outputs)
            self.functions[key] = function
            self.opsets.setdefault(_ASIDE, 1)
        names = [n for n in proto.input if n], [n for n in proto.output if n]
        del proto.attribute[:], proto.input[:], proto.output[:]
        proto.input.extend(names[0])
        proto.output.extend(names[1])
        proto.domain, proto.op_type = _ASIDE, function.name

    def attribute(self, key: str, value: Any, proto: Any, node: Node) -> None:
        import onnx

        kinds = onnx.AttributeProto
        proto.name = key
        if isinstance(value, Graph):
            proto.type = kinds.GRAPH
            self.graph(value, proto.g)
        elif isinstance(value, SparseArray):
            proto.type = kinds.SPARSE_TENSOR
            self.sparse(value, proto.sparse_tensor)
        elif isinstance(value, np.ndarray):
            proto.type = kinds.TENSOR
            self.tensor(value, proto.t, "")
        elif isinstance(value, list) and value and isinstance(value[0], Graph):
            proto.type = kinds.GRAPHS
            for item in value:
                self.graph(item, proto.graphs.add())
        elif isinstance(value, list) and value and isinstance(value[0], np.ndarray):
            proto.type = kinds.TENSORS
            for item in value:
                self.tensor(item, proto.tensors.add(), "")
        elif isinstance(value, list) and value and isinstance(value[0], SparseArray):
            proto.type = kinds.SPARSE_TENSORS
            for item in value:
                self.sparse(item, proto.sparse_tensors.add())
        elif isinstance(value, list) and not value:
            schema = lookup(node.domain, node.op_type, node.version)
            kind = schema.attributes.get(key, ("", False))[0] if isinstance(schema, Schema) else ""
            proto.type = getattr(kinds, kind or "INTS")
        else:
            proto.CopyFrom(attribute_proto(key, value))

    def tensor(self, array: Any, proto: Any, name: str) -> None:
        """Fill a TensorProto, or the data file."""
        if not isinstance(array, np.ndarray):
            array = np.asarray(array)
        element = element_of(array.dtype)
        proto.data_type = int(element)
        if name:
            proto.name = name
        proto.dims.extend(array.shape)
        if element.name == "STRING":
            proto.string_data.extend(v if isinstance(v, bytes) else str(v).encode("utf-8", "surrogateescape")
                                     for v in array.ravel())
            return
        size, make = packed_bytes(array.size, element), partial(pack, array, element)
        if self.external is None or not name or not self.external.take(proto, size, make):
            proto.raw_data = make()

    def sparse(self, value: SparseArray, proto: Any) -> None:
        self.tensor(value.values, proto.values, "")
        self.tensor(value.indices, proto.indices, "")
        proto.dims.extend(value.shape)
