"""float16 where a RISC-V core computes with it: the same bits as float32 gives that is rounded at the end."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from skips import needs

board = pytest.importorskip("board")

import onnx  # noqa: E402
from onnx import TensorProto, helper, numpy_helper  # noqa: E402

import orthrus as ort  # noqa: E402
from orthrus.codegen.kernels import gemm, loops  # noqa: E402
from orthrus.codegen.kernels.conv import depthwise, direct  # noqa: E402
from orthrus.codegen.kernels.conv.geometry import Geometry  # noqa: E402
from orthrus.codegen.machines.machine import RVV256, SPACEMIT_K1, SPACEMIT_K3, Machine  # noqa: E402
from orthrus.codegen.object import riscv_cost  # noqa: E402
from orthrus.codegen.write import tile  # noqa: E402
from orthrus.codegen.write.expr import Expr, in_halves  # noqa: E402
from orthrus.codegen.write.spec import Spec  # noqa: E402

emulated = needs("emulator")
MACHINES = (SPACEMIT_K1, SPACEMIT_K3)
F16, F32 = "float16", "float32"
A, B = (Expr.leaf(i, F16) for i in (0, 1))


def op(name: str, *args: Expr) -> Expr:
    """An operator of halves as its definition says it: in float32, rounded once."""
    return Expr(name, tuple(a.cast(F32) if a.dtype == F16 else a for a in args), F32).cast(F16)


def number(x: float) -> Expr:
    return Expr.const(x, F32)


def compared(a: Expr, how: str, b: Expr) -> Expr:
    return Expr(how, (a.cast(F32), b.cast(F32)), "bool")


TREES: dict[str, tuple[Expr, Callable[[Any, Any], Any]]] = {
    "add": (op("add", A, B), lambda a, b: a + b), "sub": (op("sub", A, B), lambda a, b: a - b),
    "mul": (op("mul", A, B), lambda a, b: a * b), "div": (op("div", A, B), lambda a, b: a / b),
    "sqrt": (op("sqrt", A), lambda a, b: np.sqrt(a)), "neg": (op("neg", A), lambda a, b: -a),
    "abs": (op("abs", A), lambda a, b: np.abs(a)),
    "relu": (op("maximum", A, number(0)), lambda a, b: np.where(a < 0, np.float32(0), a)),
    "minimum": (op("minimum", A, B), lambda a, b: np.minimum(a, b)),
    "where": (Expr("where", (compared(A, "lt", B), A, op("add", B, number(1))),
                   F16), lambda a, b: np.where(a < b, a, (b + np.float32(1)).astype(F16))),
    "chain": (op("mul", op("add", A, B), op("sub", A, number(0.5))),
              lambda a, b: (a + b).astype(F16).astype(F32) * (a - np.float32(0.5)).astype(F16).astype(F32)),
    "scaled": (op("div", op("mul", A, number(0.1)), B),
               lambda a, b: (a * np.float32(0.1)).astype(F16).astype(F32) / b)}
"""Trees of halves, and the same in numpy with float32."""
IN_FLOATS = ("scaled",)
"""Trees with a number that float16 does not hold."""


def values(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Pairs of halves: of all bit patterns, near each other, small ones, and everything rare with itself."""
    rng = np.random.default_rng(seed)
    bits = rng.integers(0, 1 << 16, (2, 3000), np.uint16).view(F16)
    near = (rng.standard_normal((2, 2000)) * 2.0 ** rng.integers(-24, 16, (2, 2000))).astype(F16)
    rare = np.array([0, -0.0, np.inf, -np.inf, np.nan, 65504, -65504, 2 ** -24, -2 ** -24, 2 ** -14, 1,
                     1 + 2 ** -10, 1 - 2 ** -11, 0.5], F16)
    pairs = np.array(list(itertools.product(rare, rare)), F16).T
    return tuple(np.concatenate([bits, near, pairs], 1))  # type: ignore[return-value]


def elementwise(tree: Expr, n: int) -> tuple[Spec, list[int], int]:
    used = [leaf.dtype for leaf in tree.leaves()]
    spec, cells, items, _ = loops.elementwise(loops.nest((n,), [(1,)] * (1 + len(used))), tree, used)
    return spec, cells, items


@emulated
@pytest.mark.parametrize("name", TREES)
@pytest.mark.parametrize("machine", MACHINES, ids=("k1", "k3"))
@np.errstate(all="ignore")
def test_every_bit(name: str, machine: Machine) -> None:
    tree, expected = TREES[name]
    a, b = values(len(name))
    given = [a, b][:len(list(tree.leaves()))]
    out = np.zeros_like(a)
    spec, cells, items = elementwise(tree, len(a))
    row = np.array([out.ctypes.data, *(x.ctypes.data for x in given), *cells], np.int64)
    board.run(spec, [out, *given], row, [0, items], 0, machine)
    want = np.asarray(expected(a.astype(F32), b.astype(F32))).astype(F16)
    both_nan = np.isnan(out) & np.isnan(want)
    np.testing.assert_array_equal(out.view(np.uint16)[~both_nan], want.view(np.uint16)[~both_nan])


@pytest.mark.parametrize("name", TREES)
def test_no_conversion_is_left(name: str) -> None:
    tree = TREES[name][0]
    loops = riscv_cost.loops(elementwise(tree, 999)[0].text(SPACEMIT_K1), SPACEMIT_K1)
    text = "\n".join(str(i) for b in loops for i in b.instructions)
    assert ("vfncvt" in text) == ("vfw" in text) == (name in IN_FLOATS), text


def test_what_rounds_otherwise_stays() -> None:
    """Functions with errors of their own, sums of products, numbers that float16 does not hold, float32 that
    is no widened half, results that stay float32."""
    wide = A.cast(F32)
    for tree in (op("exp", A), op("fma", A, B, A), Expr("add", (wide, Expr.leaf(1, F32)), F32).cast(F16),
                 Expr("add", (Expr("mul", (wide, wide), F32), wide), F32).cast(F16),
                 op("add", A, number(0.1)), op("add", A, number(1e30)), Expr("mul", (wide, wide), F32)):
        assert in_halves(tree) == tree
    assert in_halves(op("add", A, op("exp", B))) == Expr("add", (A, op("exp", B)), F16)
    assert in_halves(compared(A, "lt", B)) == Expr("lt", (A, B), "bool")


def instructions(spec: Spec, machine: Machine) -> list[str]:
    """The operations of the loop that does most multiply-adds."""
    found = riscv_cost.innermost(riscv_cost.loops(spec.text(machine), machine))
    most = max(found, key=lambda loop: riscv_cost.count(loop.instructions).multiply_adds)
    return [i.op for i in most.instructions]


PLAIN = Geometry(1, 1, 64, 128, (1, 20, 20), (1, 3, 3), (1, 1, 1), (1, 1, 1), (0, 1, 1), (1, 20, 20))
APART = Geometry(1, 128, 1, 1, (1, 20, 20), (1, 3, 3), (1, 1, 1), (1, 1, 1), (0, 1, 1), (1, 20, 20))


@pytest.mark.parametrize("machine", MACHINES, ids=("k1", "k3"))
def test_products_widen_on_the_way(machine: Machine) -> None:
    """float16 comes in, float32 is summed, and nothing is converted on its own."""
    made = gemm.plan(machine, 100, 256, 256, 1, "panels", 256, a_type=F16, b_type=F16)
    assert not made.pitch, "A is not copied"
    for spec in (made.spec(None, []), direct.plan(PLAIN, machine, dtype=F16).spec(None, []),
                 depthwise.spec(APART, machine, None, [], dtype=F16)):
        ops = instructions(spec, machine)
        assert any(o.startswith("vfwmacc") for o in ops) and not any("cvt" in o for o in ops), ops
        assert not any(o.startswith(("vfmacc", "vfmadd")) for o in ops), ops


def test_without_instructions_for_it() -> None:
    assert not tile.widens(RVV256, F16, F16) and not tile.widens(SPACEMIT_K1, F16, F32)
    made = gemm.plan(RVV256, 100, 256, 256, 1, "panels", 256, a_type=F16, b_type=F16)
    assert made.pitch, "A is copied, and widened"
    assert not any(o.startswith("vfw") for o in instructions(made.spec(None, []), RVV256))


def convolution(cin: int, cout: int, kernel: int, stride: int, pad: int, groups: int, size: int
                ) -> tuple[bytes, np.ndarray, np.ndarray]:
    """A float16 model with its input, and what it gives as float64."""
    rng = np.random.default_rng(cin + cout)
    w = (rng.standard_normal((cout, cin // groups, kernel, kernel)) / kernel).astype(F16)
    b, x = rng.standard_normal(cout).astype(F16), rng.standard_normal((1, cin, size, size)).astype(F16)
    nodes = [helper.make_node("Conv", ["x", "w", "b"], ["c"], name="conv", group=groups, strides=[stride] * 2,
                              pads=[pad] * 4), helper.make_node("Relu", ["c"], ["y"], name="relu")]
    kind = TensorProto.FLOAT16
    graph = helper.make_graph(nodes, "half", [helper.make_tensor_value_info("x", kind, x.shape)],
                              [helper.make_tensor_value_info("y", kind, None)],
                              [numpy_helper.from_array(w, "w"), numpy_helper.from_array(b, "b")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    wide = np.pad(x.astype(float), ((0, 0), (0, 0), (pad, pad), (pad, pad)))
    seen = np.lib.stride_tricks.sliding_window_view(wide, (kernel, kernel), (2, 3))[:, :, ::stride, ::stride]
    parts = [np.einsum("nchwij,ocij->nohw", *pair) for pair in zip(
        np.split(seen, groups, 1), np.split(w.astype(float), groups), strict=True)]
    return onnx.ModelProto.SerializeToString(model), x, np.maximum(
        np.concatenate(parts, 1) + b.astype(float)[:, None, None], 0)


CONVOLUTIONS = {"stem": (3, 16, 3, 2, 1, 1, 15), "pointwise": (32, 40, 1, 1, 0, 1, 9),
                "strided": (24, 20, 3, 2, 1, 1, 11), "winograd": (32, 32, 3, 1, 1, 1, 12),
                "grouped": (16, 16, 3, 2, 1, 4, 9), "depthwise": (40, 40, 3, 1, 1, 40, 10),
                "depthwise 7": (12, 12, 7, 1, 3, 12, 9)}


@emulated
@pytest.mark.parametrize("name", CONVOLUTIONS)
@pytest.mark.parametrize("machine", (*MACHINES, RVV256), ids=("k1", "k3", "rvv256"))
def test_convolutions(name: str, machine: Machine) -> None:
    model, x, want = convolution(*CONVOLUTIONS[name])
    before = len(board.ran)
    with board.on(machine):
        session = ort.InferenceSession(model, providers=["CPUExecutionProvider"])
        (got,) = session.run(None, {"x": x})
    assert len(board.ran) > before, "nothing ran in a worker"
    assert got.dtype == F16 and str(session.explain()["conv"].kernel).startswith("generated")
    np.testing.assert_allclose(got.astype(float), want, 2 ** -10, 2e-3 if name == "winograd" else 2e-4)


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions_on_this_machine(name: str) -> None:
    model, x, want = convolution(*CONVOLUTIONS[name])
    session = ort.InferenceSession(model, providers=["CPUExecutionProvider"])
    (got,) = session.run(None, {"x": x})
    assert str(session.explain()["conv"].kernel).startswith("generated")
    np.testing.assert_allclose(got.astype(float), want, 2 ** -10, 2e-3 if name == "winograd" else 2e-4)
