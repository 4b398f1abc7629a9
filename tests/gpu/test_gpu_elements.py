"""Trees over tensors of any strides, as GPU kernels: against numpy, over random shapes, orders and types."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from gpu_kernels import AMD, ptx, run
from numpy.random import Generator, default_rng

from orthrus.codegen.write.expr import Expr
from orthrus.lowering.gpu.elements import store
from orthrus.lowering.tensor import Buffer, Tensor, numpy_type

pytestmark = pytest.mark.needs("AMD tables", "Triton")
slow = pytest.mark.slow


class Recorder:
    """Takes a lowering's steps."""

    def __init__(self) -> None:
        self.steps: list[tuple[Any, list[Any], int]] = []

    def step(self, spec: Any, args: Sequence[Any], items: int) -> None:
        self.steps.append((spec, [getattr(a, "tensor", a) for a in args], items))


class Place:
    """A tensor that lies in an array of its own: `whole`, of which it is a view from `first` on."""

    def __init__(self, shape: Sequence[int], strides: Sequence[int], dtype: str) -> None:
        span = [(d - 1) * s for d, s in zip(shape, strides, strict=True)]
        self.first = -sum(s for s in span if s < 0)
        size = self.first + sum(s for s in span if s > 0) + 1
        self.whole = np.zeros(size, numpy_type(dtype))
        buffer = Buffer("input", self.whole.nbytes, array=self.whole)
        self.tensor = Tensor(dtype, tuple(shape), tuple(strides), buffer, self.first)

    @property
    def view(self) -> np.ndarray:
        return np.lib.stride_tricks.as_strided(
            self.whole[self.first:], self.tensor.shape, [s * self.tensor.itemsize for s in
            self.tensor.strides])


def lying(rng: Generator, shape: Sequence[int], spread: bool, forward: bool) -> list[int]:
    """Strides in some order, with gaps, over some axes backwards, and where `spread` 0 over some."""
    strides, at = [0] * len(shape), int(rng.choice([1, 1, 1, 2]))
    order = list(rng.permutation(len(shape))) if rng.random() < 0.5 else list(reversed(range(len(shape))))
    for axis in order:
        if spread and rng.random() < 0.3:
            continue
        strides[axis] = at if forward or rng.random() < 0.8 else -at
        at *= shape[axis]
        at += int(rng.choice([0, 0, 0, 3]))
    return strides


def execute(steps: Recorder, target: str, places: Sequence[Place], seed: int = 1) -> None:
    """Run what was recorded on the arrays. An address behind the first element is an array of its own here,
    so only tensors that go forward are taken."""
    arrays = {id(p.tensor.buffer): p.whole for p in places}
    for spec, args, items in steps.steps:
        given = [arrays[id(a.buffer)][a.offset:] if isinstance(a, Tensor) else a for a in args]
        run(spec, target, *given, items=items, seed=seed)


TREES = {"copy": lambda a: Expr.leaf(0, a),
         "add": lambda a: Expr("add", (Expr.leaf(0, a), Expr.leaf(1, a)), a),
         "less": lambda a: Expr("lt", (Expr.leaf(0, a), Expr.leaf(1, a)), "bool"),
         "halves": lambda a: Expr("mul", (Expr.leaf(0, a), Expr.leaf(1, a)), a).cast("float16")}


def elements(rng: Generator, view: np.ndarray) -> None:
    view[...] = rng.integers(-9, 9, view.shape).astype(view.dtype)


def one(rng: Generator, target: str) -> None:
    """A tree over random tensors."""
    name = str(rng.choice(list(TREES)))
    dtype = "float32" if name == "halves" else str(rng.choice(["float32", "int8", "int64", "float64"]))
    tree = TREES[name](dtype)
    shape = [int(rng.choice([1, 2, 3, 5, 17, 40])) for _ in range(int(rng.integers(0, 5)))]
    while math.prod(shape) > 9000:
        shape.pop()
    out = Place(shape, lying(rng, shape, False, True), tree.dtype)
    operands = [Place(shape, lying(rng, shape, True, True), dtype) for _ in tree.leaves()]
    for operand in operands:
        elements(rng, operand.whole)
    steps = Recorder()
    store(steps, out.tensor, tree, [p.tensor for p in operands])  # type: ignore[arg-type]
    execute(steps, target, [out, *operands])
    a, b = operands[0].view, operands[-1].view
    want = {"copy": a, "add": a + b, "less": a < b, "halves": (a * b).astype(np.float16)}[name]
    np.testing.assert_array_equal(out.view, want, err_msg=f"{name} {dtype} {shape} {steps.steps}")


def test_some_trees() -> None:
    rng = default_rng(0)
    for _ in range(3):
        one(rng, "gfx1100")


@slow
@pytest.mark.parametrize("target", AMD)
def test_trees(target: str) -> None:
    rng = default_rng(7)
    for _ in range(60):
        one(rng, target)


@slow
def test_long_rows_are_read_in_vectors() -> None:
    out, x = (Place((64, 1024), (1024, 1), "float32") for _ in range(2))
    for lie in ((1024, 1), (0, 1)):
        steps = Recorder()
        operand = x.tensor.view((64, 1024), lie)
        store(steps, out.tensor, TREES["add"]("float32"), [x.tensor, operand])  # type: ignore[arg-type]
        (spec, args, _), = steps.steps
        text = ptx(spec, "sm_80", *[np.zeros(1) if isinstance(a, Tensor) else a for a in args])
        assert "ld.global.v4.b32" in text and "st.global.v4.b32" in text, lie


@slow
def test_what_is_turned_goes_by_the_memory_of_the_block() -> None:
    out, x = (Place((256, 256), s, "float32") for s in ((256, 1), (1, 256)))
    steps = Recorder()
    store(steps, out.tensor, TREES["copy"]("float32"), [x.tensor])  # type: ignore[arg-type]
    (spec, args, _), = steps.steps
    text = ptx(spec, "sm_80", *[np.zeros(1) if isinstance(a, Tensor) else a for a in args])
    assert "st.shared" in text and "ld.global.v4.b32" in text and "st.global.v4.b32" in text
