"""Reductions on emulated GPUs, against the CPU provider: axes, types, long rows in pieces, trees before and
behind."""

from __future__ import annotations

import numpy as np
import pytest
from emulated_gpu import compare, driver, on_gpu
from gpu_models import by_turns, model, node, numpy_type

pytestmark = [pytest.mark.needs("AMD tables", "Triton"), pytest.mark.slow]

RNG = np.random.default_rng(1)
FLOATS = {"float32": 1e-5, "float64": 1e-12, "float16": 2e-3, "bfloat16": 2e-2}
KINDS = ("Sum", "Mean", "Max", "Min", "Prod", "L1", "L2", "LogSum", "LogSumExp", "SumSquare")


def axes(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int64)


@pytest.mark.parametrize("along", ((-1,), (0,), (1,), (0, 2), (0, 1, 2)))
@pytest.mark.parametrize("keepdims", (0, 1))
def test_every_kind(along: tuple[int, ...], keepdims: int) -> None:
    """With a tree before and behind."""
    nodes = [node("Mul", "x x", "m"), node("Mul", "x two", "n")]
    for kind in KINDS:
        nodes += [node(f"Reduce{kind}", f"{'m' if 'Log' in kind else 'n'} axes", f"r{kind}",
                       keepdims=keepdims), node("Mul", f"r{kind} r{kind}", f"y{kind}")]
    made = model(nodes, {"x": (5, 37, 3)}, [f"y{kind}" for kind in KINDS], axes=axes(*along),
                 two=np.array(1.1, np.float32))
    compare(made, {"x": RNG.uniform(0.5, 1.2, (5, 37, 3)).astype(np.float32)}, by_turns(along, keepdims),
            rtol=3e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", (*FLOATS, "int8", "uint8", "int32", "uint32", "int64", "uint64"))
def test_types(dtype: str) -> None:
    """Largest and least, sums that wrap, of rows and of columns."""
    small = dtype in ("int8", "uint8")
    kinds = ("Max", "Min") if small else ("Sum", "Max", "Min", "Prod", "SumSquare", "Mean")
    nodes = [node(f"Reduce{kind}", f"x {name}", f"{kind}{name}") for kind in kinds for name in "ab"]
    nodes += [node(f"Arg{kind}", "x", f"{kind}{axis}{last}", axis=axis, select_last_index=last)
              for kind in ("Max", "Min") for axis in (0, 1) for last in (0, 1)]
    made = model(nodes, {"x": (9, 70)}, [n.output[0] for n in nodes], dtype, a=axes(0), b=axes(1))
    if dtype in FLOATS:
        x = RNG.uniform(0.8, 1.2, (9, 70)).astype(numpy_type(dtype))
    else:
        info = np.iinfo(dtype)
        x = RNG.integers(info.min, info.max, (9, 70), dtype, endpoint=True)
        x[:, 5:40] = x[:, :1]
    tolerance = FLOATS.get(dtype, 0)
    compare(made, {"x": x}, by_turns(dtype), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("shape, along", (((20000,), (0,)), ((2, 9000), (1,)), ((9000, 5), (0,)),
                                          ((3, 50, 7, 40), (1, 3))))
def test_long_rows(shape: tuple[int, ...], along: tuple[int, ...]) -> None:
    """In pieces; the same twice."""
    made = model([node("ReduceSum", "x axes", "s"), node("ReduceMax", "x axes", "m"),
                  node("ReduceL2", "x axes", "l"), node("ReduceLogSumExp", "x axes", "e"),
                  node("ArgMax", "x", "a", axis=along[-1])], {"x": shape}, ["s", "m", "l", "e", "a"],
                 axes=axes(*along))
    x = RNG.normal(size=shape).astype(np.float32)
    compare(made, {"x": x}, rtol=1e-5, atol=1e-4)
    session = on_gpu(made)
    first, second = (session.run(None, {"x": x}) for _ in range(2))
    assert all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))


def test_special_values() -> None:
    """NaN is the largest and the least there is."""
    x = np.array([[1, np.nan, 3], [np.inf, -np.inf, 0], [-0.0, 0.0, -0.0], [-np.inf, -np.inf, -np.inf]],
                 np.float32)
    kinds = ("Sum", "Max", "Min", "Prod", "LogSumExp")
    nodes = [node(f"Reduce{kind}", "x axes", kind) for kind in kinds]
    nodes += [node("ArgMax", "x", "am", axis=1), node("ArgMin", "x", "an", axis=1)]
    made = model(nodes, {"x": x.shape}, [n.output[0] for n in nodes], axes=axes(1))
    with np.errstate(all="ignore"):
        compare(made, {"x": x})


def test_one_kernel_with_its_neighbours() -> None:
    """What comes before and behind belongs to the reduction's kernel."""
    made = model([node("Mul", "x x", "m"), node("ReduceSum", "m axes", "s", keepdims=0),
                  node("Sqrt", "s", "r"), node("Add", "r b", "y")], {"x": (4, 60), "b": (4,)}, ["y"],
                 axes=axes(1))
    session = on_gpu(made, alone=True)
    feeds = {"x": np.ones((4, 60), np.float32), "b": np.ones(4, np.float32)}
    session.run(None, feeds)
    before = driver(session).counts["launch"]
    session.run(None, feeds)
    assert driver(session).counts["launch"] - before == 1
