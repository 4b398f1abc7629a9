"""Single applications of operators: from the families of `cases.py`, from the operators' own samples and from
ONNX's test data; then changed in type, size or attribute, so that most combinations a schema admits come up.

In: a seeded `random.Random`. Out: an `oracle.Case`, which need not be valid once it was changed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import random
from typing import Any

import numpy as np
import onnx
from benchmarks.cases import cases as test_data
from onnx import AttributeProto, helper
from oracle import Case

from fuzz.cases import FAMILIES
from fuzz.draw import Dice
from orthrus.ir import parse_type
from orthrus.ops import defined, find
from orthrus.ops.schema import lookup

OPSETS = {"com.microsoft": 1, "ai.onnx.ml": 5, "ai.onnx.preview.training": 1}
_NEWEST = 24
_SIZES = (1, 2, 3, 5)
_NAMES = sorted({(op.domain, op.name) for op in defined()})
_DRAWN = {
    "Bernoulli",
    "Multinomial",
    "RandomNormal",
    "RandomNormalLike",
    "RandomUniform",
    "RandomUniformLike",
    "Dropout",
}
"""Operators whose results no two engines share."""


def drawn(r: random.Random, changed: float = 0.0, data: bool = True, kernels: float = 0.0) -> Case:
    """An application from one of the sources, with the chance `kernels` of `KERNELS`; with the chance
    `changed` an altered one."""
    while True:
        kind = r.random()
        if r.random() < kernels:
            case = FAMILIES[r.choice(KERNELS)](Dice(r))
        elif kind < 0.55:
            case = FAMILIES[r.choice(_FAMILIES)](Dice(r))
        elif kind < 0.75 or not data:
            case = _sample(r)
        else:
            case = Stored.drawn(r)
        if case is not None and case.op not in _DRAWN:
            break
    if case.domain == "" and r.random() < 0.2:
        case.opset = r.choice([op for op in (13, 15, 17, 18, 19, 21, 22, 23, 24) if op >= case.opset] or [24])
    return altered(case, r) if r.random() < changed else case


_FAMILIES = list(FAMILIES)
KERNELS = (
    "conv",
    "conv_transpose",
    "pool",
    "pool",
    "resize",
    "matmul",
    "gemm",
    "normalization",
    "attention",
    "quantized",
    "along_axis",
    "reduction",
    "gather",
    "einsum",
    "recurrent",
    "sampled",
)
"""The families whose kernels compute what follows them too."""


@functools.cache
def _sampled() -> list[tuple[str, str, list[np.dtype[Any]]]]:
    """The operators that have samples, with the types of their first input."""
    found = []
    for domain, name in _NAMES:
        types = _types(domain, name)
        if types and find(domain, name, 1 << 20)._samples is not None:
            found.append((domain, name, types))
    return found


def _types(domain: str, name: str) -> list[np.dtype[Any]]:
    schema = lookup(domain, name, OPSETS.get(domain, _NEWEST))
    if not schema or not schema.inputs:
        return []
    kinds = [parse_type(text) for text in sorted(schema.inputs[0].types)]
    return [np.dtype(kind.elem.numpy) for kind in kinds if hasattr(kind, "shape")]


def _sample(r: random.Random) -> Case | None:
    domain, name, types = r.choice(_sampled())
    try:
        every = list(
            find(domain, name, 1 << 20).samples(np.random.default_rng(r.randrange(99)), r.choice(types))
        )
        arrays, attrs = r.choice(every)
    except (TypeError, ValueError, IndexError):
        return None
    return Case(
        name,
        [None if a is None else np.asarray(a) for a in arrays],
        dict(attrs),
        domain=domain,
        opset=_NEWEST,
    )


class Stored:
    """ONNX's test data of one node over arrays, by domain and operator: `known` once it was asked for, or
    given by a process that has it."""

    known: dict[tuple[str, str], list[Case]] | None = None

    @classmethod
    def drawn(cls, r: random.Random) -> Case:
        if cls.known is None:
            cls.known = stored()
        return dataclasses.replace(r.choice(cls.known[r.choice(sorted(cls.known))]))


def stored() -> dict[tuple[str, str], list[Case]]:
    """ONNX's test data of one node over arrays, by domain and operator."""
    found: dict[tuple[str, str], list[Case]] = {}
    for case in test_data(("node",)):
        graph = case.model.graph
        node = graph.node[0]
        version = next((o.version for o in case.model.opset_import if o.domain == ""), _NEWEST)
        values = case.data[0][0]
        plain = all(isinstance(v, np.ndarray) and v.size <= 4096 for v in values)
        bodies = any(a.type in (AttributeProto.GRAPH, AttributeProto.GRAPHS) for a in node.attribute)
        if len(graph.node) != 1 or graph.initializer or not plain or bodies or version > 26:
            continue
        given = dict(zip([v.name for v in graph.input], values, strict=True))
        made = Case(
            node.op_type,
            [given.get(name) for name in node.input],
            {a.name: value(a) for a in node.attribute},
            domain=node.domain,
            opset=version,
            outputs=len(node.output),
        )
        found.setdefault((node.domain, node.op_type), []).append(made)
    return found


def value(attribute: AttributeProto) -> Any:
    """An attribute's value as `make_node` takes it."""
    found = helper.get_attribute_value(attribute)
    if isinstance(found, bytes):
        return found.decode("utf-8", "surrogateescape")
    if attribute.type == AttributeProto.STRINGS:
        return [v.decode("utf-8", "surrogateescape") for v in found]
    return list(found) if attribute.type in (AttributeProto.INTS, AttributeProto.FLOATS) else found


def altered(case: Case, r: random.Random) -> Case:
    """The application with other sizes, another element type or another attribute, valid or not."""
    case = dataclasses.replace(case, inputs=list(case.inputs), attrs=dict(case.attrs), expected=None)
    for _ in range(r.randint(1, 2)):
        r.choice((_resize, _resize, _retype, _reattribute, _respecial, _drop))(case, r)
    return case


def fitted(a: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """An array of `shape` made of the values of `a`, over and over."""
    if not a.size:
        return np.zeros(shape, a.dtype) if a.dtype.kind != "O" else np.full(shape, "", object)
    return np.resize(a, shape) if a.dtype != object else np.asarray(np.resize(a, shape), object)


def _resize(case: Case, r: random.Random) -> None:
    """Every axis of one size has another, in all inputs at once."""
    sizes = sorted({n for a in case.inputs if a is not None for n in a.shape if a.ndim > 1 or len(a.shape)})
    if sizes:
        old, new = r.choice(sizes), r.choice(_SIZES)
        which = r.choice([None, None, None, *range(len(case.inputs))])
        for i, a in enumerate(case.inputs):
            if a is not None and old in a.shape and which in (None, i):
                shape = tuple(new if n == old else n for n in a.shape)
                if np.prod(shape) <= 4096:
                    case.inputs[i] = fitted(a, shape)  # type: ignore[index]


def _retype(case: Case, r: random.Random) -> None:
    """Inputs of one element type have another that the schema admits."""
    types = _types(case.domain, case.op)
    first = next((a for a in case.inputs if a is not None), None)
    if types and first is not None and first.dtype != object:
        new, old = r.choice(types), first.dtype
        if new.kind == "O":
            return
        for i, a in enumerate(case.inputs):
            if a is not None and a.dtype == old:
                with np.errstate(all="ignore"), contextlib.suppress(TypeError):
                    case.inputs[i] = a.astype(new)  # type: ignore[index]


def _reattribute(case: Case, r: random.Random) -> None:
    """An attribute that has another value, or is left out, or comes in."""
    opset = OPSETS.get(case.domain, case.opset)
    schema, op = lookup(case.domain, case.op, opset), find(case.domain, case.op, opset)
    if not schema or not schema.attributes:
        return
    name = r.choice(sorted(schema.attributes))
    old = case.attrs.get(name, op.attributes.get(name) if op else None)
    if name in case.attrs and r.random() < 0.2:
        del case.attrs[name]
    elif isinstance(old, bool | int) and name not in ("to", "dtype", "saturate", "output_dtype"):
        case.attrs[name] = r.choice([0, 1, 2, 3, -1, -2, old + 1, old - 1])
    elif isinstance(old, float):
        case.attrs[name] = r.choice([0.0, 1.0, 0.5, -0.25, 2.0, 1e-3])
    elif isinstance(old, list | tuple) and old and all(isinstance(v, int) for v in old):
        case.attrs[name] = [r.choice([v, v, 1, 0, 2, 3, -1]) for v in old]
    elif isinstance(old, str) and old in _WORDS:
        case.attrs[name] = r.choice(_WORDS[old])


_ALTERNATIVES: tuple[tuple[str, ...], ...] = (
    ("nearest", "linear", "cubic", "bilinear", "bicubic"),
    (
        "half_pixel",
        "asymmetric",
        "align_corners",
        "pytorch_half_pixel",
        "tf_crop_and_resize",
        "half_pixel_symmetric",
        "output_half_pixel",
    ),
    ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil"),
    ("constant", "edge", "reflect", "wrap"),
    ("zeros", "border", "reflection"),
    ("NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"),
    ("none", "add", "mul", "max", "min"),
    ("none", "mean", "sum"),
    ("forward", "reverse", "bidirectional"),
    ("DCR", "CRD"),
    ("LEFT", "RIGHT"),
    ("avg", "max"),
    ("none", "tanh"),
    ("MAX", "L1", "L2"),
    ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT"),
)
_WORDS = {word: words for words in _ALTERNATIVES for word in words}


def _respecial(case: Case, r: random.Random) -> None:
    """Some elements at the ends of their type."""
    floats = [i for i, a in enumerate(case.inputs) if a is not None and a.size and a.dtype.kind in "fiuV"]
    if floats:
        i = r.choice(floats)
        case.inputs[i] = special(case.inputs[i], np.random.default_rng(r.getrandbits(32)))  # type: ignore


def special(a: np.ndarray, rng: np.random.Generator, share: float = 0.3) -> np.ndarray:
    """`a` with a share of its elements replaced: NaN, infinities, both zeros, denormals; for integers the
    limits. Not the largest floats: whether a sum of them overflows hangs on its order."""
    if a.dtype.kind in "iu":
        bounds = np.iinfo(a.dtype)
        odd = np.array([bounds.min, bounds.max, bounds.max - 1, bounds.min + 1], a.dtype)
    elif a.dtype.kind == "f" or a.dtype.name == "bfloat16":
        import ml_dtypes

        bounds = ml_dtypes.finfo(a.dtype)
        odd = np.array(
            [np.nan, np.inf, -np.inf, 0.0, -0.0, bounds.smallest_subnormal, bounds.tiny / 2, 1.0], a.dtype
        )
    else:
        return a
    return np.asarray(np.where(rng.random(a.shape) < share, rng.choice(odd, a.shape), a)).astype(a.dtype)


def _drop(case: Case, r: random.Random) -> None:
    """The last input is left out, or an optional one in between."""
    schema = lookup(case.domain, case.op, OPSETS.get(case.domain, case.opset))
    if schema and len(case.inputs) > schema.min_input:
        i = r.randrange(schema.min_input, len(case.inputs))
        case.inputs[i] = None  # type: ignore[index]
        while case.inputs and case.inputs[-1] is None:
            case.inputs.pop()  # type: ignore[attr-defined]


def imports(opset: int, domains: set[str]) -> list[onnx.OperatorSetIdProto]:
    made = [helper.make_opsetid("", opset)]
    return made + [helper.make_opsetid(d, OPSETS[d]) for d in sorted(domains) if d in OPSETS]
