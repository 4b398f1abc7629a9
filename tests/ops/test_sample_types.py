"""What is inferred of an operator's sample is what it computes: element types, ranks and lengths, at every
version of the operator, with its later inputs fed and with them constant."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import onnx
import pytest

from orthrus.ir import TensorType, element_of
from orthrus.load import load
from orthrus.testing.samples import Sample, earlier, samples

FIRST, OLD = "they follow from the values of the first input", "ONNX's schema infers nothing at this version"
OPEN = {
    **dict.fromkeys(("BlackmanWindow", "Compress", "ConstantOfShape", "HammingWindow", "HannWindow",
                     "MelWeightMatrix", "NonMaxSuppression", "NonZero", "Range", "Unique",
                     "com.microsoft::BifurcationDetector", "com.microsoft::DynamicTimeWarping",
                     "com.microsoft::Range"), FIRST),
    **dict.fromkeys(("Concat-4", "Compress-9", "GRU-1", "GRU-3", "GlobalLpPool-1", "InstanceNormalization-1",
                     "LSTM-1", "RNN-1"), OLD),
    **{f"com.microsoft::{name}": "its type rule gives the rank only" for name in (
        "ExpandDims", "GroupQueryAttention", "MultiHeadAttention", "NhwcConv", "NhwcMaxPool", "Pad",
        "QLinearAveragePool", "QLinearConv")},
    "DynamicSlice": "its type rule gives the rank only",
    "MaxUnpool": "ONNX's schema infers nothing where output_shape is given",
}
"""Operators, or one version of them, whose lengths may stay open, with the reason."""


@functools.cache
def everything() -> list[Sample]:
    return [sample for base in samples() for sample in (base, *earlier(base))]


def faults(sample: Sample) -> Iterator[str]:
    """What is inferred otherwise than computed, or not at all where all but the first input is known."""
    fixed = sample.with_constants() or sample
    open_ = sample.kind in OPEN or f"{sample.kind}-{sample.schema.version}" in OPEN
    for given in {sample, fixed}:
        graph = load(given.model())
        for value, made in zip(graph.outputs, sample.reference(), strict=True):
            kind = value.type
            if made is None or not isinstance(kind, TensorType | None):
                continue
            if kind is not None and kind.elem not in (None, element_of(made.dtype)):
                yield f"{sample}: inferred {kind}, computed {made.dtype}"
            shape = None if kind is None else kind.shape
            known = made.shape if shape is None else shape
            wrong = len(known) != made.ndim or any(
                isinstance(d, int) and d != n for d, n in zip(known, made.shape, strict=True))
            unknown = shape is None or not all(isinstance(d, int) for d in shape)
            if wrong or unknown and given is fixed and not open_:
                yield f"{sample}: inferred {shape}, computed {made.shape}"


def check(found: list[str]) -> None:
    assert not found, f"{len(found)}:\n" + "\n".join(found[:60])


def of_one_type() -> list[Sample]:
    first = {s.kind: s.type for s in reversed(everything())}
    return [s for s in everything() if s.type in ("float", first[s.kind])]


@pytest.mark.slow
def test_types_of_samples() -> None:
    check([line for sample in of_one_type() for line in faults(sample)])


UNTOLD = {"Binarizer", "BitCast", "Det", "Dropout", "EyeLike", "GridSample", "MaxRoiPool",
          "NegativeLogLikelihoodLoss", "RoiAlign", "Size", "SoftmaxCrossEntropyLoss"}
"""Operators whose shapes only the newest onnx infers."""


def test_an_older_onnx_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    def asked(*_: object, **__: object) -> None:
        raise AssertionError("the rules of an older release were asked")

    chosen = of_one_type()
    monkeypatch.setattr(onnx.defs, "onnx_opset_version", lambda: 21)
    monkeypatch.setattr(onnx.shape_inference, "infer_node_outputs", asked)
    check([line for sample in chosen for line in faults(sample)
           if "inferred None" not in line or sample.op not in UNTOLD])


@pytest.mark.slow
def test_types_of_samples_of_every_type() -> None:
    check([line for sample in everything() for line in faults(sample)])
