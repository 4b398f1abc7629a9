"""Elements by index on emulated GPUs, against the CPU provider: gathered, and folded in their order."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from emulated_gpu import compare, driver, on_gpu
from gpu_lowered import lowered
from gpu_models import by_turns, model, node, of_arrays

from orthrus.lowering.gpu.part import GpuPart

pytestmark = [pytest.mark.needs("AMD tables", "Triton")]
RNG = np.random.default_rng(0)


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step that kernels leave to the host, or a run that they give up, is an error."""
    def left(self: GpuPart, *args: Any, **named: Any) -> Any:
        raise AssertionError("a step of the host's")
    monkeypatch.setattr(GpuPart, "_on_host", left)
    monkeypatch.setattr(GpuPart, "interpret", left)


def of_type(dtype: str, *shape: int) -> np.ndarray:
    return (RNG.standard_normal(shape) * 9).astype(dtype)


def within(size: int, *shape: int, dtype: str = "int64") -> np.ndarray:
    """Indices of an axis, from the front and from the back."""
    return RNG.integers(-size, size, shape).astype(dtype)


GATHERED = {
    "rows": ("Gather", [of_type("float32", 30, 20), within(30, 2, 7)], {}),
    "rows of another axis": ("Gather", [of_type("float16", 5, 30, 3), within(30, 4, dtype="int32")],
                             {"axis": 1}),
    "one of one": ("Gather", [of_type("float32", 5), within(5, 1)], {}),
    "long rows": ("Gather", [of_type("int8", 4, 1500), within(4, 3)], {}),
    "truth": ("Gather", [of_type("float32", 9, 4) > 0, within(9, 6)], {}),
    "elements": ("GatherElements", [of_type("float64", 5, 6, 7), within(6, 5, 3, 7)], {"axis": 1}),
    "elements of a line": ("GatherElements", [of_type("int64", 50), within(50, 20)], {"axis": 0}),
    "tuples": ("GatherND", [of_type("float32", 5, 6, 7), within(5, 4, 2)], {}),
    "tuples within batches": ("GatherND", [of_type("float32", 4, 6, 7, 3), within(6, 4, 5, 2)],
                              {"batch_dims": 1}),
    "whole tuples": ("GatherND", [of_type("uint8", 4, 6), within(4, 5, 2)], {}),
}


@pytest.mark.slow
@pytest.mark.parametrize("form", GATHERED)
def test_gathered(form: str, alone: None) -> None:
    op, inputs, attrs = GATHERED[form]
    compare(*of_arrays(op, inputs, **attrs), rtol=0, atol=0)


FOLDED = {
    "lines": ("ScatterElements", [of_type("float32", 5, 40, 3), within(40, 5, 35, 2),
                                  of_type("float32", 5, 35, 2)], {"axis": 1}),
    "one long line": ("ScatterElements", [of_type("float32", 60), within(60, 200), of_type("float32", 200)],
                      {"axis": 0}),
    "two long lines": ("ScatterElements", [of_type("int32", 2, 300), within(300, 2, 100),
                                           of_type("int32", 2, 100)], {"axis": 1}),
    "rows": ("ScatterND", [of_type("float32", 20, 3, 5), within(3, 600, 2), of_type("float32", 600, 5)], {}),
}


@pytest.mark.slow
@pytest.mark.parametrize("how", ("none", "add", "mul", "max", "min"))
@pytest.mark.parametrize("form", FOLDED)
def test_folded_in_their_order(form: str, how: str, alone: None) -> None:
    """Most places are met several times; sums of float32 come out to the bit."""
    op, inputs, attrs = FOLDED[form]
    targets = ("gfx1100", "gfx942") if how in ("none", "add") else ("gfx1100",)
    compare(*of_arrays(op, inputs, reduction=how, **attrs), targets, rtol=0, atol=0)


OUTSIDE = {
    "Gather": [of_type("float32", 7, 4), np.array([0, 7, 1])],
    "GatherElements": [of_type("float32", 7, 4), np.array([[0, -8, 1, 1]])],
    "GatherND": [of_type("float32", 7, 4), np.array([[6, 4]])],
    "ScatterElements": [of_type("float32", 7, 4), np.array([[0, 9, 1, 1]]), of_type("float32", 1, 4)],
    "ScatterND": [of_type("float32", 7, 4), np.array([[-9]]), of_type("float32", 1, 4)],
}


@pytest.mark.slow
@pytest.mark.parametrize("op", OUTSIDE)
def test_an_index_that_is_not_there(op: str) -> None:
    """The same error as on the CPU, which says where; the session works on."""
    data, feeds = of_arrays(op, OUTSIDE[op])
    session = on_gpu(data, alone=True)
    with pytest.raises(Exception, match="out of|range|bounds") as error:
        session.run(None, feeds)
    feeds = {name: np.zeros_like(x) if x.dtype == np.int64 else x for name, x in feeds.items()}
    assert np.isfinite(session.run(None, feeds)[0]).all()
    assert type(error.value).__module__.startswith("orthrus")


@pytest.mark.slow
def test_rows_of_an_embedding_are_one_kernel(alone: None) -> None:
    data, feeds = of_arrays("Gather", [of_type("float16", 64, 48), within(64, 2, 5)])
    session = on_gpu(data, alone=True)
    session.run(None, feeds)
    before = driver(session).counts["launch"]
    session.run(None, feeds)
    assert driver(session).counts["launch"] == before + 1


@pytest.mark.slow
def test_normalized_sums_of_embeddings(alone: None) -> None:
    ids, kinds = within(20, 2, 5, dtype="int32") % 20, within(2, 2, 5, dtype="int32") % 2
    tables = [of_type("float32", rows, 24) for rows in (20, 8, 2)]
    compare(*of_arrays("com.microsoft::EmbedLayerNormalization", [
        ids, kinds, *tables, of_type("float32", 24), of_type("float32", 24)], 2))


@pytest.mark.parametrize("seed", [
    seed if seed in (0, 3) else pytest.param(seed, marks=pytest.mark.slow) for seed in range(24)])
def test_rows_are_put_into_what_was_turned(seed: int) -> None:
    """ScatterND between a Transpose and its inverse, as an index along another axis is exported."""
    draw = np.random.default_rng(seed)
    rank = int(draw.integers(2, 5))
    shape = [int(draw.choice([1, 2, 3, 5, 17])) for _ in range(rank)]
    perm = [int(a) for a in draw.permutation(rank)]
    turned, parts = [shape[a] for a in perm], int(draw.integers(1, rank + 1))
    count = int(draw.choice([1, 2, 4]))
    indices = np.stack([draw.integers(-d, d, count) for d in turned[:parts]], -1)
    how = ("none", "add", "max")[seed % 3]
    if how == "none":
        indices = np.unique(indices % np.array(turned[:parts]), axis=0)
        count = len(indices)
    nodes = [node("Transpose", "x", "t", perm=perm), node("ScatterND", "t i u", "s", reduction=how),
             node("Transpose", "s", "y", perm=[perm.index(a) for a in range(rank)])]
    update = (count, *turned[parts:])
    made = model(nodes, {"x": shape, "u": update}, ["y"], i=indices)
    feeds = {"x": draw.normal(size=shape).astype(np.float32),
             "u": draw.normal(size=update).astype(np.float32)}
    compare(made, feeds, by_turns(seed))


def test_rows_of_a_cache_are_put_where_it_lies() -> None:
    """A copy, whose rows are replaced, and that is all."""
    nodes = [node("Transpose", "x", "t", perm=[2, 0, 1, 3]), node("ScatterND", "t i u", "s"),
             node("Transpose", "s", "y", perm=[1, 2, 0, 3])]
    made = model(nodes, {"x": (2, 3, 20, 16), "u": (1, 2, 3, 16)}, ["y"], i=np.array([[7]]))
    feeds = {"x": np.ones((2, 3, 20, 16), np.float32), "u": np.zeros((1, 2, 3, 16), np.float32)}
    steps: list[Any] = list(lowered(onnx.load_from_string(made), feeds, "gfx942").steps)
    assert [step.spec.template for step in steps] == ["elementwise", "fold_rows"]
    compare(made, feeds)
