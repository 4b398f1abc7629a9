"""What a session says of its model: inputs and outputs, metadata, which provider got which node, and the data
of compiled parts on their way to and from files, as a user's functions see it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .arguments import mismatch


class NodeArg:
    """One input or output of a model."""

    _name: str
    _type: str
    _shape: list[int | str | None]
    __slots__ = ("_name", "_type", "_shape")

    def __init__(self) -> None:
        raise TypeError("NodeArg: No constructor defined!")

    @classmethod
    def _of(cls, value: Any) -> NodeArg:
        """From an `ir.Value`."""
        from ..ir import OptionalType, SparseTensorType, TensorType

        made = object.__new__(cls)
        made._name, made._type = value.name, "" if value.type is None else str(value.type)
        kind = value.type.elem if isinstance(value.type, OptionalType) else value.type
        made._shape = list(kind.shape or ()) if isinstance(kind, TensorType | SparseTensorType) else []
        return made

    @property
    def name(self) -> str:
        return self._name

    @property
    def type(self) -> str:
        """Such as `tensor(float)` or `seq(map(string,tensor(float)))`."""
        return self._type

    @property
    def shape(self) -> list[int | str | None]:
        """A number, a name or None per dimension, of an optional tensor as of a tensor; empty for a scalar,
        for an unknown rank, and for what is no tensor."""
        return list(self._shape)

    def __str__(self) -> str:
        return f"NodeArg(name='{self._name}', type='{self._type}', shape={self._shape})"

    def __repr__(self) -> str:
        return f"<{self}>"

    def __reduce__(self) -> Any:
        return _node_arg, (self._name, self._type, self._shape)


def _node_arg(name: str, kind: str, shape: list[int | str | None]) -> NodeArg:
    made = object.__new__(NodeArg)
    made._name, made._type, made._shape = name, kind, shape
    return made


class ModelMetadata:
    """What a model says of itself."""

    _graph_name: str
    _info: Any
    __slots__ = ("_graph_name", "_info")

    def __init__(self) -> None:
        raise TypeError("ModelMetadata: No constructor defined!")

    @classmethod
    def _of(cls, graph_name: str, info: Any) -> ModelMetadata:
        """From a graph's name and its `ir.ModelInfo`."""
        made = object.__new__(cls)
        made._graph_name, made._info = graph_name, info
        return made

    @property
    def producer_name(self) -> str:
        return self._info.producer_name

    @property
    def graph_name(self) -> str:
        return self._graph_name

    @property
    def domain(self) -> str:
        return self._info.domain

    @property
    def description(self) -> str:
        return self._info.doc_string

    @property
    def graph_description(self) -> str:
        return self._info.graph_doc

    @property
    def version(self) -> int:
        """2**63 - 1 where the model names none."""
        return self._info.model_version

    @property
    def custom_metadata_map(self) -> dict[str, str]:
        return dict(self._info.metadata)

    def __repr__(self) -> str:
        return f"<ModelMetadata of graph {self._graph_name!r} by {self.producer_name!r}>"

    def __reduce__(self) -> Any:
        return ModelMetadata._of, (self._graph_name, self._info)


class OrtEpAssignedNode:
    """A node that a provider got."""

    _domain: str
    _op_type: str
    _name: str
    __slots__ = ("_domain", "_op_type", "_name")

    def __init__(self) -> None:
        raise TypeError("OrtEpAssignedNode: No constructor defined!")

    @property
    def domain(self) -> str:
        return self._domain

    @property
    def op_type(self) -> str:
        return self._op_type

    @property
    def name(self) -> str:
        return self._name

    def __repr__(self) -> str:
        return f"<OrtEpAssignedNode {self._domain}:{self._op_type} {self._name!r}>"


class OrtEpAssignedSubgraph:
    """The nodes of one provider."""

    _ep_name: str
    _nodes: list[OrtEpAssignedNode]
    __slots__ = ("_ep_name", "_nodes")

    def __init__(self) -> None:
        raise TypeError("OrtEpAssignedSubgraph: No constructor defined!")

    @classmethod
    def _of(cls, ep_name: str, nodes: Sequence[tuple[str, str, str]]) -> OrtEpAssignedSubgraph:
        """From a provider's name and (domain, operator, node name) of each node."""
        made = object.__new__(cls)
        made._ep_name, made._nodes = ep_name, []
        for domain, op_type, name in nodes:
            node = object.__new__(OrtEpAssignedNode)
            node._domain, node._op_type, node._name = domain, op_type, name
            made._nodes.append(node)
        return made

    @property
    def ep_name(self) -> str:
        return self._ep_name

    def get_nodes(self) -> list[OrtEpAssignedNode]:
        return list(self._nodes)

    def __repr__(self) -> str:
        return f"<OrtEpAssignedSubgraph {self._ep_name} {len(self._nodes)} nodes>"


class OrtExternalInitializerInfo:
    """Where an initializer's data lies: a file, an offset and a size in bytes."""

    __slots__ = ("_filepath", "_file_offset", "_byte_size")

    def __init__(self, filepath: str, file_offset: int, byte_size: int) -> None:
        if not (isinstance(filepath, str) and isinstance(file_offset, int) and isinstance(byte_size, int)):
            raise mismatch("__init__", "OrtExternalInitializerInfo(arg0: str, arg1: int, arg2: int)",
                           filepath, file_offset, byte_size)
        self._filepath, self._file_offset, self._byte_size = filepath, file_offset, byte_size

    @property
    def filepath(self) -> str:
        return self._filepath

    @property
    def file_offset(self) -> int:
        return self._file_offset

    @property
    def byte_size(self) -> int:
        return self._byte_size


class OrtEpContextDataBuffer:
    """Where a read function puts the data of a compiled part."""

    def __init__(self) -> None:
        raise TypeError("OrtEpContextDataBuffer: No constructor defined!")

    @classmethod
    def _make(cls, max_size: int) -> OrtEpContextDataBuffer:
        made = object.__new__(cls)
        made._data, made._most = None, max_size
        return made

    _data: bytearray | None
    _most: int

    def allocate(self, size: int) -> None:
        """Make room for `size` bytes. Raises RuntimeError for more than `max_size`, or a second time."""
        if self._data is not None:
            raise RuntimeError("the buffer is allocated already")
        if not 0 <= size <= self._most:
            raise RuntimeError(f"{size} bytes are more than the {self._most} allowed")
        self._data = bytearray(size)

    def write(self, data: Any, offset: int = 0) -> None:
        """Write bytes at `offset`. Raises RuntimeError outside the room."""
        content = memoryview(data).cast("B")
        if self._data is None or not 0 <= offset <= len(self._data) - len(content):
            raise RuntimeError(f"{len(content)} bytes at {offset} lie outside the buffer of {self.size}")
        self._data[offset:offset + len(content)] = content

    @property
    def is_allocated(self) -> bool:
        return self._data is not None

    @property
    def size(self) -> int:
        return len(self._data or b"")

    @property
    def max_size(self) -> int:
        return self._most


class OrtEpContextData:
    """The data of a compiled part, as a write function gets it."""

    def __init__(self) -> None:
        raise TypeError("OrtEpContextData: No constructor defined!")

    @classmethod
    def _make(cls, data: bytes) -> OrtEpContextData:
        made = object.__new__(cls)
        made._data = data
        return made

    _data: bytes

    @property
    def size(self) -> int:
        return len(self._data)

    def read(self, offset: int = 0, length: int | None = None) -> bytes:
        """`length` bytes from `offset`, or all to the end. Raises RuntimeError outside the data."""
        end = len(self._data) if length is None else offset + length
        if not 0 <= offset <= end <= len(self._data):
            raise RuntimeError(f"bytes {offset} to {end} lie outside the data of {len(self._data)}")
        return self._data[offset:end]
