"""Generated products of bytes against numpy, bit for bit: shapes, strides, signs, zero points, epilogues."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from draws import draws
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from onnx import TensorProto, helper
from skips import needs

native = pytest.importorskip("native")

import graphs  # noqa: E402

import orthrus  # noqa: E402
from orthrus.codegen.kernels import rnn  # noqa: E402
from orthrus.codegen.kernels.int8 import few, pack, products, table  # noqa: E402
from orthrus.codegen.kernels.int8.step import lanes_of  # noqa: E402
from orthrus.codegen.machines.detect import host  # noqa: E402
from orthrus.codegen.machines.machine import (  # noqa: E402
    AVX2,
    AVX512,
    NEON,
    RVV256,
    SPACEMIT,
    SSE2,
    Machine,
)
from orthrus.codegen.object.build import assemble  # noqa: E402
from orthrus.codegen.write.expr import Expr  # noqa: E402
from orthrus.codegen.write.tile import Operand  # noqa: E402
from orthrus.ops.define import find  # noqa: E402

HERE = host()
VNNI = replace(AVX512, features=tuple(sorted((*AVX512.features, "avx512vnni"))))
RUNNABLE: list[Any] = [m for m in (HERE, VNNI, AVX512, AVX2, SSE2)
                       if m is not None and HERE is not None and HERE.arch == m.arch
                       and set(m.features) <= {*HERE.features, "sse2"}]
QUICK = draws(15, suppress_health_check=list(HealthCheck))
SUM = Expr.leaf(0, "int32")


def bytes_of(rng: np.random.Generator, dtype: Any, *shape: int) -> np.ndarray:
    """Any bytes, the extremes often."""
    info = np.iinfo(dtype)
    made = rng.integers(info.min, info.max + 1, shape, dtype)
    return np.where(rng.random(shape) < 0.2, rng.choice([info.min, info.max], shape), made).astype(dtype)


def requantized(operands: int) -> Expr:
    """uint8 of sum * scale[column] + number, or what is added per element."""
    real = Expr("mul", (SUM.cast("float32"), Expr.leaf(1, "float32")), "float32")
    if operands > 1:
        real = Expr("add", (real, Expr.leaf(2, "int8").cast("float32")), "float32")
    low, high, zero = Expr.const(-3.0, "float32"), Expr.const(252.0, "float32"), Expr.const(3, "int32")
    return Expr("quantize", (real, low, high, zero), "uint8")


def expected(sums: np.ndarray, scale: np.ndarray, more: np.ndarray | None) -> np.ndarray:
    real = sums.astype(np.float32) * scale
    if more is not None:
        real = real + more.astype(np.float32)
    return (np.rint(np.clip(real, -3, 252)) + 3).astype(np.uint8)


@pytest.mark.parametrize("machine", RUNNABLE)
@QUICK
@given(seed=st.integers(0, 2**32), m=st.integers(1, 80), n=st.integers(1, 70), k=st.integers(1, 150),
       signs=st.tuples(st.booleans(), st.booleans()), zeros=st.booleans(), kind=st.integers(0, 2),
       gap=st.integers(0, 9), matrix=st.booleans(), split=st.integers(0, 3))
def test_products(machine: Machine, seed: int, m: int, n: int, k: int, signs: tuple[bool, bool], zeros: bool,
                  kind: int, gap: int, matrix: bool, split: int) -> None:
    """Rows of A at any distance, both signs, zero points of both, requantized and plain results."""
    rng = np.random.default_rng(seed)
    matrix = matrix and products.on_matrix_unit(machine, 64, 64, 64, False)
    how = products.packing(machine, n, k, matrix)
    run = how.run(k)
    a = bytes_of(rng, np.int8 if signs[0] else np.uint8, m, k)
    b = bytes_of(rng, np.int8 if signs[1] else np.uint8, k, n)
    za, zb = (int(rng.integers(0, 200)) - 100 * signs[0], bytes_of(rng, b.dtype, n)) if zeros else (0, None)
    wide = np.full((m, run + gap), 77, a.dtype)
    wide[:, :k] = a
    wide = wide.reshape(-1)[:(m - 1) * (run + gap) + run]
    wide = native.guarded(wide.astype(np.int16) if products.widened(machine, how) else wide)
    step = (run + gap) * wide.itemsize
    packed = products.pack(b[None], zb, how)
    parts = packed.shape[1]
    plan = products.plan(machine, how, 1, m, n, parts, run, step, signs[0], True)
    start = plan.start(products.sums(b[None], zb), np.arange(n), za)
    tree = [None, requantized(1), requantized(2)][kind]
    scale = (rng.random(n) / 500).astype(np.float32)
    more = bytes_of(rng, np.int8, m, n)
    operands = [Operand("float32", False, True), Operand("int8", True, True)][:kind]
    sides: list[Any] = [scale, 0, 0, 0, more, 0, 0, n][:4 * kind]
    out = native.guarded(np.full((m, n), 99, "int32" if tree is None else tree.dtype))
    items = plan.items
    cuts = tuple(sorted({int(rng.integers(0, items + 1)) for _ in range(split)}))
    native.run(plan.spec(tree, operands), wide, packed, start, out,
               np.zeros(parts, np.int64), parts, run, step, 0, m, n, m, m, 0, 0, n,
               *plan.cells(), *sides, items=items, scratch=plan.scratch, machine=machine, splits=cuts)
    low = 0 if zb is None else zb.astype(np.int64)
    sums = (a.astype(np.int64) - za) @ (b.astype(np.int64) - low) + np.arange(n)
    wanted = sums if tree is None else expected(sums, scale, more if kind > 1 else None)
    np.testing.assert_array_equal(out, wanted)


@pytest.mark.parametrize("machine", [m for m in RUNNABLE if not m.has("avx512vnni")])
@QUICK
@given(seed=st.integers(0, 2**32), m=st.integers(1, few.MOST), n=st.sampled_from((0, 1, 7, 30, 500, 1100)),
       k=st.integers(1, 70), signs=st.tuples(st.booleans(), st.booleans()), pointed=st.booleans(),
       gap=st.integers(0, 9))
def test_few_rows(machine: Machine, seed: int, m: int, n: int, k: int, signs: tuple[bool, bool],
                  pointed: bool, gap: int) -> None:
    """A matrix of bytes where it lies, at every number of columns that is worth it."""
    rng = np.random.default_rng(seed)
    n += 2 * machine.lanes()
    a = (bytes_of(rng, np.int8 if signs[0] else np.uint8, m, k).astype(np.int16)
         - int(rng.integers(-128, 256))).astype(np.int16)
    b = bytes_of(rng, np.int8 if signs[1] else np.uint8, k, n)
    zero = bytes_of(rng, b.dtype, 1)
    wide = np.full((k, n + gap), 77, b.dtype)
    wide[:, :n] = b
    wide = native.guarded(wide.reshape(-1)[:(k - 1) * (n + gap) + n])
    out = native.guarded(np.full((m, n), 99, np.int32))
    spec, items, _, scratch = few.plan(machine, m, n, k, not signs[1], pointed)
    native.run(spec, native.guarded(a), wide, zero, out, n, k, n + gap, n, items=items, scratch=scratch,
               machine=machine, splits=(items // 2,))
    low = zero.astype(np.int64) if pointed else 0
    np.testing.assert_array_equal(out, a.astype(np.int64) @ (b.astype(np.int64) - low))


@pytest.mark.parametrize("features", [(), ("dotprod",)])
def test_kernels_assemble_for_neon(features: tuple[str, ...]) -> None:
    target = replace(NEON, features=(*NEON.features, *features))
    how = products.packing(target, 40, 64, False)
    for signed in (False, True):
        plan = products.plan(target, how, 1, 30, 40, 1, 64, 64, signed, False)
        spec = plan.spec(requantized(1), [Operand("float32", False, True)])
        text = assemble(spec.text(target), target, True)
        assert isinstance(text, str) and ("sdot" if features else "mla") in text


@pytest.mark.parametrize("target", [NEON, replace(NEON, features=(*NEON.features, "dotprod")), RVV256])
def test_other_kernels_assemble_elsewhere(target: Machine) -> None:
    """Packing at run time, tables and an LSTM of bytes, for processors that are not here."""
    how = products.packing(target, 70, 40, False)
    packed = pack.int8_pack(cols=how.width // lanes_of(target), unsigned=True)
    squashed = tuple(Expr(name, (Expr.leaf(0, "float32"),), "float32")
                     for name in ("sigmoid", "tanh", "tanh"))
    layer = rnn.plan(target, "LSTM", 9, 2, coded=True).spec(squashed, 0.0, False, False, False, True)
    rows = few.plan(target, 5, 70, 40, True, True)[0]
    for spec, wanted in ((packed, ""), (rows, ""),
                         (table.bytes_by_table(), "tbl" if target.arch == "aarch64" else ""),
                         (layer, "sdot" if "dotprod" in target.features else "")):
        text = assemble(spec.text(target), target, True)
        assert isinstance(text, str) and wanted in text


MODELS: list[tuple[str, dict[str, Any], tuple[int, ...], tuple[int, ...]]] = [
    ("QLinearConv", {"pads": [1] * 4}, (2, 5, 9, 8), (7, 5, 3, 3)),
    ("QLinearConv", {"strides": [2, 2], "pads": [1] * 4}, (1, 3, 11, 9), (20, 3, 5, 5)),
    ("QLinearConv", {"pads": [1] * 4, "group": 19}, (1, 19, 7, 8), (19, 1, 3, 3)),
    ("QLinearConv", {"strides": [2]}, (1, 16, 13), (33, 16, 1)),
    ("QLinearMatMul", {}, (2, 9, 21), (21, 37)),
]


@pytest.mark.parametrize("case", range(len(MODELS)))
def test_sessions(case: int) -> None:
    """Layers as steps of a part, bit for bit."""
    kind, attrs, shape, weights = MODELS[case]
    rng = np.random.default_rng(case)
    x, w = bytes_of(rng, np.uint8, *shape), bytes_of(rng, np.int8, *weights)
    n = weights[1] if kind == "QLinearMatMul" else weights[0]
    scale = (rng.random(n) / 50).astype(np.float32)
    held = {"xs": np.float32(0.02), "xz": np.uint8(117), "w": w, "ws": scale,
            "wz": np.zeros(n, np.int8), "ys": np.float32(0.4), "yz": np.uint8(12)}
    held = {k: np.asarray(v) for k, v in held.items()}
    node = helper.make_node(kind, ["x", *held], ["y"], **attrs)
    made = graphs.model([node], [graphs.info("x", TensorProto.UINT8, shape)],
                        [graphs.info("y", TensorProto.UINT8, None)], held)
    session = orthrus.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])
    op = find("", kind, 21)
    assert op is not None
    np.testing.assert_array_equal(session.run(None, {"x": x})[0], op.body(x, *held.values(), **attrs))


def test_dynamic_sessions() -> None:
    """Quantized by its own range, multiplied, scaled: floats within 1e-5."""
    rng = np.random.default_rng(8)
    x, w = rng.standard_normal((3, 40)).astype(np.float32), bytes_of(rng, np.int8, 40, 23)
    nodes = [helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"]),
             helper.make_node("MatMulInteger", ["q", "w", "z"], ["i"]),
             helper.make_node("Cast", ["i"], ["f"], to=TensorProto.FLOAT),
             helper.make_node("Mul", ["f", "s"], ["y"])]
    made = graphs.model(nodes, [graphs.info("x", shape=x.shape)], [graphs.info("y", shape=None)], {"w": w})
    session = orthrus.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])
    op = find("", "DynamicQuantizeLinear", 21)
    assert op is not None
    codes, scale, zero = op.body(x)
    wanted = ((codes.astype(np.int64) - zero) @ w.astype(np.int64)).astype(np.float32) * scale
    np.testing.assert_allclose(session.run(None, {"x": x})[0], wanted, rtol=1e-6)


COMPUTED: list[tuple[str, str, dict[str, Any], dict[str, tuple[Any, tuple[int, ...]]], str]] = [
    ("MatMulInteger", "a b az bz", {}, {
        "a": (np.uint8, (5, 21)), "b": (np.int8, (21, 37)), "az": (np.uint8, ()), "bz": (np.int8, ())},
     "a b az bz"),
    ("ConvInteger", "x w xz wz", {"pads": [1, 2, 1, 0]}, {
        "x": (np.uint8, (1, 6, 9, 8)), "w": (np.int8, (7, 6, 3, 3)), "xz": (np.uint8, ()),
        "wz": (np.int8, (7,))}, "x xz"),
    ("ConvInteger", "x w xz", {"pads": [1] * 4, "group": 19}, {
        "x": (np.int8, (1, 19, 7, 8)), "w": (np.int8, (19, 1, 3, 3)), "xz": (np.int8, ())}, "x xz"),
    ("Div", "a b", {}, {"a": (np.int8, (9, 40)), "b": (np.int8, (9, 40))}, "a b"),
]


@pytest.mark.parametrize("case", range(len(COMPUTED)))
def test_computed_sessions(case: int) -> None:
    """Factors, zero points and divisors that are fed, bit for bit."""
    kind, names, attrs, kinds, fed = COMPUTED[case]
    rng = np.random.default_rng(case)
    every = {name: bytes_of(rng, *kinds[name][:1], *kinds[name][1]) for name in names.split()}
    if kind == "Div":
        every["b"] |= 1
    op = find("", kind, 21)
    assert op is not None
    wanted = op.body(*every.values(), **attrs)
    held = {name: array for name, array in every.items() if name not in fed.split()}
    elem = helper.np_dtype_to_tensor_dtype
    made = graphs.model(
        [helper.make_node(kind, names.split(), ["y"], **attrs)],
        [graphs.info(name, elem(every[name].dtype), every[name].shape) for name in fed.split()],
        [graphs.info("y", elem(wanted.dtype), None)], held)
    session = orthrus.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])
    np.testing.assert_array_equal(session.run(None, {n: every[n] for n in fed.split()})[0], wanted)


def test_functions_of_a_byte() -> None:
    """Read from a table of all 256."""
    x = bytes_of(np.random.default_rng(9), np.int8, 11, 70)
    numbers = (np.float32(0.05), np.int8(-3), np.float32(1 / 256), np.int8(-128))
    held = dict(zip(("xs", "xz", "ys", "yz"), map(np.asarray, numbers), strict=True))
    node = helper.make_node("QLinearSigmoid", ["x", *held], ["y"], domain="com.microsoft")
    made = graphs.model([node], [graphs.info("x", TensorProto.INT8, x.shape)],
                        [graphs.info("y", TensorProto.INT8, None)], held, domains={"com.microsoft": 1})
    session = orthrus.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])
    op = find("com.microsoft", "QLinearSigmoid", 1)
    assert op is not None
    np.testing.assert_array_equal(session.run(None, {"x": x})[0], op.body(x, *held.values()))


@pytest.mark.slow
@needs("emulator")
@pytest.mark.parametrize("name", ["spacemit_k1", "spacemit_k3"])
def test_on_matrix_instructions(name: str) -> None:
    """The same on emulated cores with SpacemiT's instruction."""
    board = pytest.importorskip("board")
    target, before = SPACEMIT[name], len(board.ran)
    products = test_products.hypothesis.inner_test  # type: ignore[attr-defined]
    with board.on(target):
        for seed, (m, n, k) in enumerate([(9, 20, 24), (1, 1, 1), (33, 70, 100), (16, 32, 64)]):
            for kind in (0, 2):
                products(target, seed, m, n, k, (seed % 2 == 0, seed < 2), True, kind, 3, False, 2)
        for case in range(len(MODELS)):
            test_sessions(case)
        test_dynamic_sessions()
    assert any(kernel.startswith("int8_ime") for kernel in board.ran[before:])
