"""What the standard says of an operator: its versions, formal inputs and
outputs, element types, function body.

The facts come from the standard's list for ONNX's domains, and from our definitions for every other; nothing
is repeated here. A schema is looked up by domain, name and the opset version a model imports.
"""

from __future__ import annotations

import functools
from typing import Any

from ..ir import No
from ..records import dataclass
from . import standard
from .define import REQUIRED, Op, defined, find

ONNX_DOMAINS = ("", "ai.onnx.ml", "ai.onnx.preview", "ai.onnx.preview.training")


@dataclass(frozen=True, slots=True)
class Formal:
    """One formal input or output. `types`: allowed ONNX type strings, empty where any is; `variable`: the
    name of its type variable, or the one type it has."""

    name: str
    types: frozenset[str]
    variable: str
    optional: bool = False
    variadic: bool = False
    homogeneous: bool = True


@dataclass(frozen=True, eq=False)
class Schema:
    """An operator at one version. `attributes`: name -> (kind as in AttributeProto, required); `standard`:
    whether it is ONNX's."""

    name: str
    domain: str
    version: int
    inputs: tuple[Formal, ...]
    outputs: tuple[Formal, ...]
    attributes: dict[str, tuple[str, bool]]
    min_input: int
    max_input: int
    min_output: int
    max_output: int
    deterministic: bool = True
    standard: bool = False
    deprecated: bool = False

    @property
    def native(self) -> Any:
        """The installed onnx's own OpSchema; None where that onnx has no such version."""
        return _native(self.domain, self.name, self.version) if self.standard else None

    def input_at(self, index: int) -> Formal | None:
        """The formal input for position `index`; the last one repeats where it is variadic."""
        return _at(self.inputs, index)

    def output_at(self, index: int) -> Formal | None:
        return _at(self.outputs, index)


def _at(formals: tuple[Formal, ...], index: int) -> Formal | None:
    if index < len(formals):
        return formals[index]
    return formals[-1] if formals and formals[-1].variadic else None


def newest_opset(domain: str, released: bool = False) -> int | None:
    """The newest opset version known for `domain`, None for a domain nobody defines. `released`: the newest
    that is no development stamp."""
    known = standard.release()
    return known.released.get(domain, known.opsets.get(domain)) if released else known.opsets.get(domain)


def names(domain: str) -> set[str]:
    """The operators known in a domain, of whatever version."""
    return {name for known, name in standard.operators() if known == domain} | {
        op.name for op in defined() if op.domain == domain}


def lookup(domain: str, name: str, opset: int) -> Schema | No:
    """The schema of `domain::name` that a model importing `opset` of that
    domain means, or why there is none."""
    if domain in ONNX_DOMAINS:
        found = _standard(domain, name, opset)
        if found is not None:
            return found
    definition = find(domain, name, opset)
    if definition is not None:
        return _own(definition)
    if (domain, name) == (EP_CONTEXT.domain, EP_CONTEXT.name):
        return EP_CONTEXT
    if domain == BLOCKED and name in _BLOCKED:
        return _BLOCKED[name]
    return No(f"No Op registered for {name} with domain_version of {opset}")


@functools.lru_cache(maxsize=4096)
def _standard(domain: str, name: str, opset: int) -> Schema | None:
    found = standard.listed(domain, name, opset)
    return None if found is None else _standard_version(domain, name, found.version)


@functools.lru_cache(maxsize=4096)
def _standard_version(domain: str, name: str, version: int) -> Schema:
    found = standard.listed(domain, name, version)
    assert found is not None and found.version == version

    def formal(p: standard.Parameter) -> Formal:
        return Formal(p.name, p.types, p.variable, p.option == "Optional", p.option == "Variadic",
                      p.homogeneous)

    return Schema(name, domain, version, tuple(map(formal, found.inputs)), tuple(map(formal, found.outputs)),
                  found.attributes, found.least[0], found.most[0], found.least[1], found.most[1],
                  found.deterministic, True, found.deprecated)


@functools.lru_cache(maxsize=4096)
def _native(domain: str, name: str, version: int) -> Any:
    from onnx import defs

    try:
        found = defs.get_schema(name, version, domain)
    except defs.SchemaError:
        return None
    return found if found.since_version == version else None


EP_CONTEXT = Schema(
    "EPContext", "com.microsoft", 1, (Formal("inputs", frozenset(), "inputs", False, True, False),),
    (Formal("outputs", frozenset(), "outputs", False, True, False),),
    {"main_context": ("INT", False), "embed_mode": ("INT", False), "max_size": ("INT", False),
     **dict.fromkeys(("ep_cache_context", "ep_sdk_version", "onnx_model_filename", "hardware_architecture",
                      "partition_name", "source", "notes", "signature"), ("STRING", False))},
    0, 1 << 30, 0, 1 << 30)
"""A part that a provider compiled earlier: only that provider knows what it computes."""

BLOCKED = "com.microsoft.nchwc"
"""The domain of operators on blocks of channels. They are replaced while a model is loaded."""

_FLOAT = frozenset({"tensor(float)"})


def _blocked(name: str, attributes: dict[str, str], inputs: tuple[str, ...] = ("X",), least: int = 1
             ) -> Schema:
    return Schema(name, BLOCKED, 1, tuple(Formal(n, _FLOAT, "T", i >= least) for i, n in enumerate(inputs)),
                  (Formal("Y", _FLOAT, "T"),), {k: (kind, False) for k, kind in attributes.items()}, least,
                  len(inputs), 1, 1)


_WINDOW = {**dict.fromkeys(("pads", "strides", "dilations", "kernel_shape"), "INTS"), "auto_pad": "STRING"}
_BLOCKED = {schema.name: schema for schema in (
    _blocked("Conv", {**_WINDOW, "activation": "STRING", "activation_params": "FLOATS", "group": "INT"},
             ("X", "W", "B", "Sum"), 2),
    _blocked("MaxPool", {**_WINDOW, "ceil_mode": "INT", "storage_order": "INT"}),
    _blocked("AveragePool", {**_WINDOW, "ceil_mode": "INT", "count_include_pad": "INT"}),
    _blocked("GlobalMaxPool", {}), _blocked("GlobalAveragePool", {}),
    _blocked("Upsample", {"coordinate_transformation_mode": "STRING", "mode": "STRING", "scales": "INTS"}),
    _blocked("ReorderInput", {"channels_last": "INT"}),
    _blocked("ReorderOutput", {"channels": "INT", "channels_last": "INT"}))}

_own_schemas: dict[Op, Schema] = {}


def _own(definition: Op) -> Schema:
    if definition in _own_schemas:
        return _own_schemas[definition]
    types = definition.types
    inputs = tuple(
        Formal(name, frozenset(f"tensor({t})" for t in types.get(name, ())), name,
               name in definition.optional, definition.variadic and i == len(definition.inputs) - 1, False)
        for i, name in enumerate(definition.inputs))
    attributes = {name: (_attribute_kind(definition.annotations[name], default), default is REQUIRED)
                  for name, default in definition.attributes.items()}
    fewest = sum(not f.optional and not f.variadic for f in inputs)
    most = 1 << 30 if definition.variadic else len(inputs)
    schema = Schema(definition.name, definition.domain, definition.since, inputs, (), attributes,
                    fewest, most, 0, 1 << 30, "rng" not in definition.runtime)
    _own_schemas[definition] = schema
    return schema


def _attribute_kind(annotation: Any, default: Any) -> str:
    """The AttributeProto kind an annotation such as `float` or `list[int]` stands
    for; "" where it says nothing."""
    text = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", str(annotation))
    if "list" in str(annotation):
        text = str(annotation)
    for spelling, kind in (("list[int", "INTS"), ("list[float", "FLOATS"), ("list[str", "STRINGS")):
        if spelling in text:
            return kind
    base = text.split("|")[0].strip()
    return {"int": "INT", "float": "FLOAT", "str": "STRING"}.get(base, "")
