"""Two models of one network, such as a float one and its quantized sibling: which of their values are the
same thing, and how far they are apart.

In: two models, a side for each, feeds of the first. Out: a `Comparison` whose values say how they were
matched. Values are matched by name; a quantized one is turned back into numbers, by its own DequantizeLinear
or by scale and zero point.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ...errors import Fail
from ...ir import HALF
from ...records import dataclass
from .comparison import BUDGET, Comparison, Notify, ValueReport, batches, feeds_of
from .divergence import Tolerance, measure
from .extract import Model
from .sides import Kept, side

DEQUANTIZED, QUANTIZED = "_DequantizeLinear_Output", "_quantized"
LOOSE = Tolerance(scaled=0.1)
"""What a quantized sibling is allowed, as a share of a value's largest magnitude."""
_QUANTIZERS = ("QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "MatMulInteger", "ConvInteger",
               "MatMulNBits")


@dataclass(frozen=True)
class Match:
    """A value of the first model and what it is in the second: `how` in words; `scale` and `zero` where the
    second's (or, with `first`, the first's) holds whole numbers."""

    a: str
    b: str
    how: str
    scale: str = ""
    zero: str = ""
    first: bool = False


def compare_models(
    model: str | os.PathLike[str] | bytes | Any, against: str | os.PathLike[str] | bytes | Any,
    a: Any = "cpu", b: Any = "cpu", feeds: Mapping[str, Any] | None = None, *, level: str = "all",
    tolerance: Tolerance | None = None, seed: int = 0, budget: int = BUDGET,
    notify: Notify = lambda _: None, b_level: str | None = None,
) -> Comparison:
    """Run `model` on side `a` and its sibling `against` on side `b`, and compare the values that both have.

    Where one of them quantizes, `tolerance` is a tenth of a value's largest magnitude unless given. A node of
    one model cannot be fed the other's inputs, so `first` is the first value beyond tolerance, and there is
    no case. Raises Fail where the models have no value in common or a side cannot run its model.
    """
    ours = model if isinstance(model, Model) else Model(model)
    theirs = against if isinstance(against, Model) else Model(against)
    left, right = side(a, level=level, seed=seed), side(b, level=b_level or level, seed=seed)
    fed = dict(feeds) if feeds is not None else feeds_of(ours, seed=seed)
    fed_b = _fed(theirs, fed)
    if tolerance is None:
        tolerance = LOOSE if _quantizes(ours) or _quantizes(theirs) else Tolerance()
    it = Comparison(f"{_title(ours, 'a')} on {left.title}", f"{_title(theirs, 'b')} on {right.title}")
    pairs = list(matches(ours, theirs))
    if not pairs:
        raise Fail("the models have no value in common", found=f"{len(ours.values)} and {len(theirs.values)} "
                   "values of other names", cure="compare models whose values keep their names")
    by_name: dict[str, list[Match]] = {}
    for pair in pairs:
        by_name.setdefault(pair.a, []).append(pair)
    ordered = [name for name in ours.values if name in by_name]
    for batch in batches(ours, fed, budget // 2, ordered):
        notify(f"comparing {len(batch)} values from {batch[0]} on")
        chosen = [m for name in batch for m in by_name[name]]
        it.values += _reports(Kept(left, ours, fed), Kept(right, theirs, fed_b), chosen, tolerance)
    outputs = {v.value: v for v in it.values}
    it.outputs = [outputs[name] for name in ours.outputs if name in outputs]
    it.unmatched = [name for name in ours.values if name not in by_name and name not in ours.derived]
    it.first = next((v for v in it.values if v.error.beyond), None)
    it.verdict = "agree" if it.first is None else "diverge"
    return it


def matches(a: Model, b: Model) -> Iterator[Match]:
    """The values of both models that are the same thing, in the order of `a`. A value that is quantized is
    taken as its readers get it: a quantizer's tool lets rounding to its grid replace a Relu before it.
    Outputs of the models are matched by position where their names differ and their numbers do not."""
    mine = {**dict.fromkeys(a.values), **dict.fromkeys(a.inputs)}
    other = {**dict.fromkeys(b.values), **dict.fromkeys(b.inputs)}
    paired = dict(zip(a.outputs, b.outputs, strict=True)) if len(a.outputs) == len(b.outputs) else {}
    for name in a.values:
        plain = name.removesuffix(DEQUANTIZED)
        if name + DEQUANTIZED in other and name + DEQUANTIZED not in mine:
            yield Match(name, name + DEQUANTIZED, "dequantized")
        elif name in other and name + DEQUANTIZED not in mine:
            yield Match(name, name, "same name")
        elif plain in other and name not in other:
            yield Match(name, plain, "dequantized here")
        elif (found := _scaled(b, name)) is not None:
            clipped = _clipped(a, name)
            if clipped and clipped not in other and _scaled(b, clipped) is None:
                yield Match(clipped, name + QUANTIZED, "scaled, behind the Relu", *found)
            else:
                yield Match(name, name + QUANTIZED, "scaled", *found)
        elif name.endswith(QUANTIZED) and (found := _scaled(a, name.removesuffix(QUANTIZED))) is not None:
            plain = name.removesuffix(QUANTIZED)
            if plain in other and plain not in mine:
                clipped = _clipped(b, plain)
                behind = clipped and clipped not in mine and _scaled(a, clipped) is None
                yield Match(name, clipped if behind else plain, "scaled" + (
                    ", behind the Relu" if behind else ""), *found, True)
        elif name in paired and paired[name] not in mine:
            yield Match(name, paired[name], "same output")


def _clipped(model: Model, name: str) -> str:
    """What a Relu or Clip that alone reads `name` makes of it; empty where there is none."""
    readers = [i for i, reads in enumerate(model.reads) if name in reads]
    if len(readers) != 1 or name in model.outputs or model.nodes[readers[0]].op_type not in ("Relu", "Clip"):
        return ""
    return str(model.nodes[readers[0]].output[0])


def _scaled(model: Model, name: str) -> tuple[str, str] | None:
    """Scale and zero point of `name` as operators on whole numbers keep it."""
    scale, zero = name + "_scale", name + "_zero_point"
    there = name + QUANTIZED in model.maker and scale in model.initializers and zero in model.initializers
    return (scale, zero) if there else None


def _reports(left: Kept, right: Kept, pairs: Sequence[Match], tolerance: Tolerance) -> list[ValueReport]:
    ours, theirs = left.model, right.model
    got, expected = left.values(m.a for m in pairs), right.values(m.b for m in pairs)
    made = []
    for m in pairs:
        x, y = got[m.a], expected[m.b]
        if m.scale:
            x, y = (_numbers(ours, x, m), y) if m.first else (x, _numbers(theirs, y, m))
        x, y, allowed = _alike(x, y, tolerance)
        i = ours.maker[m.a]
        made.append(ValueReport(m.a, ours.labels[i], ours.nodes[i].op_type, i, measure(x, y, allowed),
                                match=m.how if m.a == m.b else f"{m.b}: {m.how}"))
    return made


def _numbers(model: Model, value: np.ndarray, m: Match) -> np.ndarray:
    """(value - zero point) * scale."""
    from onnx import numpy_helper

    scale, zero = (numpy_helper.to_array(model.initializers[name], model.folder or "").astype(np.float32)
                   for name in (m.scale, m.zero))
    numbers: np.ndarray = (value.astype(np.float32) - zero) * scale
    return numbers


def _alike(x: Any, y: Any, tolerance: Tolerance) -> tuple[Any, Any, Tolerance]:
    """Floats of two widths as the wider, with the tolerance of the narrower."""
    if not isinstance(x, np.ndarray) or not isinstance(y, np.ndarray) or x.dtype == y.dtype:
        return x, y, tolerance
    if not all(v.dtype.kind == "f" or v.dtype in HALF for v in (x, y)):
        return x, y, tolerance
    wide, narrow = sorted((x.dtype, y.dtype), key=lambda d: -d.itemsize)
    if tolerance == Tolerance():
        tolerance = replace(tolerance, scaled=tolerance.of(narrow, 1.0)[1])
    return x.astype(wide), y.astype(wide), tolerance


def _fed(model: Model, feeds: Mapping[str, Any]) -> dict[str, Any]:
    """`feeds` in the types that `model` declares. Raises Fail for an input that is not fed."""
    from ...ir import TensorType
    from ...ops.infer import from_type_proto

    fed: dict[str, Any] = {}
    for name, info in model.inputs.items():
        if name not in feeds:
            raise Fail(f"the other model reads an input {name!r} that this one does not have",
                       expected=", ".join(feeds))
        kind, value = from_type_proto(info.type), feeds[name]
        cast = (isinstance(kind, TensorType) and kind.elem is not None and kind.elem.floating
                and isinstance(value, np.ndarray) and (value.dtype.kind == "f" or value.dtype in HALF))
        fed[name] = value.astype(kind.elem.numpy) if cast else value  # type: ignore[union-attr]
    return fed


def _quantizes(model: Model) -> bool:
    return any(n.op_type in _QUANTIZERS or n.op_type.startswith("QLinear") for n in model.nodes)


def _title(model: Model, other: str) -> str:
    return os.path.basename(model.source) if isinstance(model.source, str) else f"model {other}"

