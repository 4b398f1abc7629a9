"""Applications of single operators with known results: what a claimed operator is tried on.

In: operator and type names to look at. Out: `Sample`s, each of which makes its own model and knows its
result by the operator's definition. Samples come from the definitions; `layers`, `movement`, `images`,
`contrib` and `decoders` add those of operators whose definitions give none. The same arguments always give
the same arrays.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator, Sequence
from dataclasses import field, replace
from typing import Any

import numpy as np

from ..ir import ElementType, TensorType, element_of, parse_type
from ..load import load
from ..ops import defined, find, standard
from ..ops.define import Op
from ..ops.schema import Schema, lookup, newest_opset
from ..records import dataclass
from . import contrib, decoders, images, layers, movement
from .draw import MAKERS, Draw, Made

assert contrib and decoders and images and layers and movement, "importing them registers their samples"

@dataclass(frozen=True, eq=False)
class Sample:
    """One application of an operator. `version`: the opset of its domain; `type`: the element type it was
    made for; `open_shapes`: its inputs are declared with a name for each dimension; `constants`: positions
    of the inputs that are initializers."""

    domain: str
    op: str
    version: int
    type: str
    index: int
    inputs: tuple[np.ndarray | None, ...]
    attrs: dict[str, Any]
    outputs: int = 1
    open_shapes: bool = False
    constants: frozenset[int] = frozenset()
    _known: list[Any] = field(default_factory=list, repr=False)

    @property
    def kind(self) -> str:
        return f"{self.domain}::{self.op}" if self.domain else self.op

    @property
    def schema(self) -> Schema:
        found = lookup(self.domain, self.op, self.version)
        assert isinstance(found, Schema)
        return found

    def __str__(self) -> str:
        given = ", ".join("_" if a is None else f"{element_of(a.dtype).text}{list(a.shape)}"
                          for a in self.inputs)
        attrs = "".join(f", {k}={v}" for k, v in self.attrs.items())
        return f"{self.kind}-{self.schema.version}({given}{attrs})"

    @property
    def feature(self) -> str:
        """What is special about its shapes: "empty", "scalar", "broadcast" or nothing."""
        tensors = [a for a in self.inputs if a is not None]
        if any(not a.size for a in tensors):
            return "empty"
        if tensors and all(not a.ndim for a in tensors):
            return "scalar"
        op = find(self.domain, self.op, self.version)
        if op is not None and op.broadcasts and len({a.shape for a in tensors}) > 1:
            return "broadcast"
        return ""

    @property
    def feeds(self) -> dict[str, np.ndarray]:
        """Copies of the inputs that are fed, by name."""
        return {f"i{k}": a.copy() for k, a in enumerate(self.inputs)
                if a is not None and k not in self.constants}

    def model(self) -> Any:
        """A model of this one node, called `sample`."""
        from onnx import IR_VERSION, helper, numpy_helper

        names = ["" if a is None else f"i{k}" for k, a in enumerate(self.inputs)]
        infos, weights = [], []
        for k, (name, a) in enumerate(zip(names, self.inputs, strict=True)):
            if a is None:
                continue
            if k in self.constants:
                weights.append(numpy_helper.from_array(a, name))
                continue
            shape = [f"{name}_{axis}" for axis in range(a.ndim)] if self.open_shapes else a.shape
            infos.append(helper.make_tensor_value_info(name, int(element_of(a.dtype)), shape))
        made = [f"o{k}" for k in range(self.outputs)]
        node = helper.make_node(self.op, names, made, "sample", domain=self.domain, **self.attrs)
        graph = helper.make_graph([node], "sample", infos,
                                  [helper.make_empty_tensor_value_info(n) for n in made], weights)
        opsets = [helper.make_opsetid("", self.version if not self.domain else newest_opset("") or 1)]
        if self.domain:
            opsets.append(helper.make_opsetid(self.domain, self.version))
        return helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION)

    def reference(self) -> list[Any]:
        """What the definition gives, computed once; attributes are float32 in a model."""
        if not self._known:
            op = find(self.domain, self.op, self.version)
            assert op is not None
            attrs = {k: float(np.float32(v)) if isinstance(v, float) else v for k, v in self.attrs.items()}
            with np.errstate(all="ignore"):
                made = op.bind(attrs, self.outputs)(*self.inputs)
            made = list(made) if isinstance(made, tuple) else [made]
            self._known.extend(v if v is None else np.asarray(v) for v in made[:self.outputs])
        return self._known

    @property
    def loads(self) -> bool:
        """Whether it is a model at all: an older schema may have other rules, and onnx cannot infer every
        shape that is left open."""
        try:
            load(self.model())
        except Exception:
            return False
        return True

    def changed(self, **what: Any) -> Sample:
        """The same application, said otherwise: with open shapes, or with constants."""
        return replace(self, **what)

    def with_constants(self) -> Sample | None:
        """The same with all inputs behind the first constant; None where there are none."""
        later = frozenset(k for k, a in enumerate(self.inputs) if a is not None and k)
        return self.changed(constants=later) if later else None


def samples(operators: Sequence[str] | None = None, types: Sequence[str] | None = None) -> list[Sample]:
    """Samples of every operator at its newest version, in every type its first input may have. `operators`:
    names or patterns such as `Conv`, `Reduce*`, `com.microsoft::Gelu`; `types`: element types such as
    `float`.

    Raises ValueError for an operator that has no samples or a type that is none."""
    if wrong := set(types or ()) - {e.text for e in ElementType}:
        raise ValueError(f"{', '.join(sorted(wrong))}: no element type; there are "
                         f"{', '.join(e.text for e in ElementType)}")
    names = sorted({(op.domain, op.name) for op in defined()})
    kinds = {(d, n): f"{d}::{n}" if d else n for d, n in names}
    wanted = names if operators is None else [
        key for key in names if any(fnmatch.fnmatchcase(kinds[key], pattern) for pattern in operators)]
    found = [s for domain, name in wanted for s in _of(domain, name, types)]
    have = {s.kind for s in found}
    for pattern in operators or ():
        if not any(fnmatch.fnmatchcase(kind, pattern) for kind in have):
            among = f" in {', '.join(types)}" if types else ""
            raise ValueError(f"no samples of operator {pattern!r}{among}"
                             "; an operator of your own gets them by @Name.sample_with")
    return found


def earlier(sample: Sample) -> Iterator[Sample]:
    """The same application at each older version of the schema that has the same definition and allows it."""
    if sample.domain not in ("", "ai.onnx.ml"):
        return
    op = find(sample.domain, sample.op, sample.version)
    newest = sample.schema.version
    for version in standard.operators().get((sample.domain, sample.op), ()):
        if version >= newest or find(sample.domain, sample.op, version) is not op:
            continue
        older = replace(sample, version=version, _known=list(sample.reference()))
        schema = older.schema
        if _allowed(schema, older) and set(sample.attrs) <= set(schema.attributes) and older.loads:
            yield older


def _allowed(schema: Schema, sample: Sample) -> bool:
    """Whether the schema's types and counts allow the inputs and outputs."""
    if not schema.min_input <= len(sample.inputs) <= schema.max_input or sample.outputs > schema.max_output:
        return False
    for k, a in enumerate(sample.inputs):
        formal = schema.input_at(k)
        if a is not None and (formal is None or (
                formal.types and f"tensor({element_of(a.dtype).text})" not in formal.types)):
            return False
    return True


def _of(domain: str, name: str, types: Sequence[str] | None) -> Iterator[Sample]:
    op = find(domain, name, 1 << 20)
    assert op is not None
    version = newest_opset(domain) or op.since
    schema = lookup(domain, name, version)
    if not isinstance(schema, Schema):
        return
    for elem in _elements(op, schema):
        if types is not None and elem.text not in types:
            continue
        for index, (inputs, attrs, *rest) in enumerate(_made(op, elem)):
            arrays = tuple(None if a is None else np.asarray(a) for a in inputs)
            sample = Sample(domain, name, version, elem.text, index, arrays, dict(attrs), *rest)
            if _allowed(schema, sample):
                yield sample


def _made(op: Op, elem: ElementType) -> Iterator[Made]:
    rng = np.random.default_rng(0)
    if (op.domain, op.name) in MAKERS:
        make, narrowed = MAKERS[op.domain, op.name]
        if not narrowed or elem.text in narrowed:
            yield from make(Draw(rng, elem.numpy))
        return
    try:
        yield from op.samples(rng, elem.numpy)
    except (TypeError, ValueError):
        return


def _elements(op: Op, schema: Schema) -> list[ElementType]:
    """The element types of the first input, float first."""
    if not schema.inputs:
        texts: Sequence[str] = ["tensor(float)"]
    else:
        texts = sorted(schema.inputs[0].types) or ["tensor(float)"]
    kinds = [parse_type(text) for text in texts]
    found = {k.elem for k in kinds if isinstance(k, TensorType) and k.elem is not None}
    return sorted(found)
