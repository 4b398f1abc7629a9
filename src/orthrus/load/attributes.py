"""AttributeProto -> Python value: int, float, str, list, array, SparseArray, Type or nested Graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..errors import Fail
from ..ir import SparseArray
from ..ops.infer import from_type_proto
from . import tensors

_NAMES = {
    1: "FLOAT",
    2: "INT",
    3: "STRING",
    4: "TENSOR",
    5: "GRAPH",
    6: "FLOATS",
    7: "INTS",
    8: "STRINGS",
    9: "TENSORS",
    10: "GRAPHS",
    11: "SPARSE_TENSOR",
    12: "SPARSE_TENSORS",
    13: "TYPE_PROTO",
    14: "TYPE_PROTOS",
}
_SWITCHES = {
    "Reduce": ("keepdims", "noop_with_empty_axes"),
    "Arg": ("keepdims",),
    "Reshape": ("allowzero",),
    "TopK": ("largest", "sorted"),
    "Unique": ("sorted",),
    "RotaryEmbedding": ("interleaved", "is_packed_batching"),
    "MRotaryEmbedding": ("interleaved", "is_packed_batching"),
    "Attention": ("is_causal", "unidirectional", "do_rotary"),
    "QAttention": ("unidirectional", "do_rotary"),
    "MultiHeadAttention": ("unidirectional",),
    "GroupQueryAttention": ("do_rotary", "rotary_interleaved", "smooth_softmax", "sliding_window_cache"),
    "SparseAttention": ("do_rotary", "rotary_interleaved"),
    "MurmurHash3": ("positive",),
}
"""By how an operator begins: what is on where it is 1, and off where it is any other number; all other
switches are on where they are not 0."""
_FIELD = {
    "FLOAT": "f",
    "INT": "i",
    "STRING": "s",
    "TENSOR": "t",
    "GRAPH": "g",
    "FLOATS": "floats",
    "INTS": "ints",
    "STRINGS": "strings",
    "TENSORS": "tensors",
    "GRAPHS": "graphs",
    "SPARSE_TENSOR": "sparse_tensor",
    "SPARSE_TENSORS": "sparse_tensors",
    "TYPE_PROTO": "tp",
    "TYPE_PROTOS": "type_protos",
}
_SINGULAR = ("f", "i", "s", "t", "g", "sparse_tensor", "tp")


def kind_of(attribute: Any, expected: str = "") -> str:
    """The attribute's kind; where the type field is missing, as in old files, the one whose field is filled.
    """
    if attribute.type:
        return _NAMES.get(attribute.type, f"type {attribute.type}")
    if expected and expected in _FIELD:
        return expected
    for kind, name in _FIELD.items():
        if attribute.HasField(name) if name in _SINGULAR else len(getattr(attribute, name)):
            return kind
    return "INTS"


def settle(op_type: str, attrs: dict[str, Any]) -> None:
    """Make each switch of an operator of ai.onnx or com.microsoft 0 or 1."""
    for start, names in _SWITCHES.items():
        if op_type.startswith(start):
            attrs.update({name: int(attrs[name] == 1) for name in names if name in attrs})


class Reader:
    """Reads attributes of one model: `payload` and `external` resolve tensor data, `graph` builds a body."""

    def __init__(self, payload: tensors.Resolve, external: Callable[..., Any]) -> None:
        self.payload, self.external = payload, external

    def value(self, attribute: Any, kind: str, what: str, graph: Callable[[Any], Any]) -> Any:
        """The Python value. Raises Fail where tensor data or a type is invalid, or the kind is unknown."""
        if kind == "INT":
            return attribute.i
        if kind == "INTS":
            return list(attribute.ints)
        if kind == "FLOAT":
            return attribute.f
        if kind == "FLOATS":
            return list(attribute.floats)
        if kind == "STRING":
            return _text(attribute.s)
        if kind == "STRINGS":
            return [_text(s) for s in attribute.strings]
        if kind == "TENSOR":
            return self._tensor(attribute.t, what)
        if kind == "TENSORS":
            return [self._tensor(t, what) for t in attribute.tensors]
        if kind == "GRAPH":
            return graph(attribute.g)
        if kind == "GRAPHS":
            return [graph(g) for g in attribute.graphs]
        if kind == "SPARSE_TENSOR":
            return self._sparse(attribute.sparse_tensor, what)
        if kind == "SPARSE_TENSORS":
            return [self._sparse(s, what) for s in attribute.sparse_tensors]
        if kind == "TYPE_PROTO":
            return _type(attribute.tp, what)
        if kind == "TYPE_PROTOS":
            return [_type(t, what) for t in attribute.type_protos]
        raise Fail(f"This is an invalid model. {what} has an unknown {kind}.")

    def _tensor(self, tensor: Any, what: str) -> Any:
        return tensors.to_array(tensor, self.payload, self.external, what)

    def _sparse(self, sparse: Any, what: str) -> SparseArray:
        return tensors.to_sparse(sparse, self.payload, self.external, what)


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogateescape")


def _type(proto: Any, what: str) -> Any:
    try:
        return from_type_proto(proto)
    except ValueError as error:
        raise Fail(f"This is an invalid model. {what} holds an invalid type.", found=error) from None
