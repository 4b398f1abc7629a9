"""Random, trained and benchmark models as packages, run in C: what a session computes, bit for bit, or a
refusal that names a node."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from benchmarks import zoo
from native_packages import CContext, CModel
from skips import MODELS, needs

import orthrus as ort
from fuzz import graphs, small
from orthrus.errors import NotImplemented as NotImplementedFail
from orthrus.native.compile import machine_named, package

pytestmark = [needs("generated code"), needs("C compiler")]

Feeds = dict[str, np.ndarray]


def settled(given: onnx.ModelProto, feeds: Feeds) -> onnx.ModelProto:
    """The model for inputs of these shapes, without inputs that it has an array for."""
    model = onnx.ModelProto()
    model.CopyFrom(given)
    there = {each.name for each in model.graph.initializer}
    inputs = [each for each in model.graph.input if each.name not in there]
    for each in inputs:
        dims = each.type.tensor_type.shape
        del dims.dim[:]
        for size in feeds[each.name].shape:
            dims.dim.add().dim_value = size
    del model.graph.input[:]
    model.graph.input.extend(inputs)
    return model


def verdict(given: onnx.ModelProto, feeds: Feeds, threads: Sequence[int] = (2,)) -> str:
    """What became of a model: "same" on each number of threads, or why it says nothing."""
    if not all(isinstance(a, np.ndarray) and a.dtype != object for a in feeds.values()):
        return "no tensors"
    source = settled(given, feeds).SerializeToString()
    try:
        session = ort.InferenceSession(source)
        wanted = session.run(None, {each.name: feeds[each.name] for each in session.get_inputs()})
    except Exception as error:
        return f"no results: {type(error).__name__}"
    try:
        data = b"".join(map(bytes, package(source, [machine_named("host")]).whole()))
    except NotImplementedFail as error:
        named = [*(node.name or node.op_type for node in given.graph.node),
                 *(value.name for value in given.graph.output)]
        assert any(name in str(error) for name in named) or \
            re.search("no plan can be made|has no outputs", str(error)), error
        return "refused"
    opened = CModel(data)
    for count in threads:
        context = CContext(opened, count)
        made = context(*(feeds[each.name] for each in session.get_inputs()))
        assert [(a.dtype, a.shape, a.tobytes()) for a in made] == \
            [(np.asarray(a).dtype, np.asarray(a).shape, np.asarray(a).tobytes()) for a in wanted]
        context.destroy()
    opened.close()
    return "same"


def tried(make: Any, seeds: range) -> Counter[str]:
    counts: Counter[str] = Counter()
    for seed in seeds:
        subject = make(seed)
        try:
            counts[verdict(*subject)] += 1
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {onnx.printer.to_text(subject[0])[:2000]}") from error
    return counts


def operator(seed: int) -> tuple[onnx.ModelProto, Feeds]:
    subject = small.operator(seed, False)
    return subject.model, subject.feeds[-1]


def graph(seed: int) -> tuple[onnx.ModelProto, Feeds]:
    subject = small.graph(seed, False)
    return subject.model, subject.feeds[-1]


SEEDS = [(operator, range(25)), (graph, range(15)),
         pytest.param(operator, range(25, 200), marks=pytest.mark.slow),
         pytest.param(graph, range(15, 100), marks=pytest.mark.slow),
         pytest.param(graphs.build, range(10), marks=pytest.mark.slow),
         pytest.param(operator, range(1000, 4000), marks=pytest.mark.thorough),
         pytest.param(graph, range(1000, 4000), marks=pytest.mark.thorough),
         pytest.param(graphs.build, range(1000, 1300), marks=pytest.mark.thorough)]


@pytest.mark.parametrize("make,seeds", SEEDS)
def test_what_a_session_computes_or_a_refusal(make: Any, seeds: range) -> None:
    counts = tried(make, seeds)
    assert counts["same"] > len(seeds) // 3, counts


LARGE = {"minilm_int8", "ppocrv4_det", "ppocrv4_rec", "lac_gru"}
"""Those that take long."""


@needs("models")
@pytest.mark.parametrize("name", [
    pytest.param(name, marks=pytest.mark.thorough if name in LARGE else pytest.mark.slow)
    for name in sorted(path.parent.name for path in MODELS.glob("*/meta.json"))])
def test_trained_models(name: str) -> None:
    given = onnx.load(MODELS / name / "model.onnx")
    for case in json.loads((MODELS / name / "meta.json").read_text())["cases"]:
        with np.load(MODELS / name / case["file"]) as arrays:
            feeds = {key[3:]: arrays[key] for key in arrays.files if key.startswith("in:")}
        assert verdict(given, feeds, (1, 2, 3, 4)) == "same"


@pytest.mark.thorough
@pytest.mark.parametrize("name", zoo.cases())
def test_benchmark_models(name: str) -> None:
    assert verdict(zoo.build(name), zoo.feeds(name), (1, 2, 3, 4)) == "same"
