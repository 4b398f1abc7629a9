"""Generated matrix products against numpy: shapes, strides, ways of giving B, epilogues, division of work."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from draws import draws
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from onnx import helper, numpy_helper

native = pytest.importorskip("native")

import orthrus  # noqa: E402
from orthrus.codegen.kernels import gemm  # noqa: E402
from orthrus.codegen.machines.detect import host  # noqa: E402
from orthrus.codegen.machines.machine import AVX2, AVX512, NEON, RVV256, SSE2, Machine  # noqa: E402
from orthrus.codegen.object.build import assemble  # noqa: E402
from orthrus.codegen.write import tile  # noqa: E402
from orthrus.codegen.write.expr import Expr  # noqa: E402
from orthrus.codegen.write.tile import Operand  # noqa: E402
from orthrus.lowering import lower  # noqa: E402
from orthrus.lowering.native import Native  # noqa: E402

F = "float32"
HERE = host()
MACHINES = [m for m in (AVX512, AVX2, SSE2) if HERE is not None and HERE.arch == "x86_64"
            and set(m.features) <= {*HERE.features, "sse2"}]
LEAF = Expr.leaf(0, "float32")
QUICK = draws(25, suppress_health_check=list(HealthCheck))


def tree_of(operands: list[Operand]) -> Expr | None:
    """relu(sum * 0.5 + operands)."""
    if not operands:
        return None
    made = Expr("mul", (LEAF, Expr.const(0.5, "float32")), "float32")
    for i, _ in enumerate(operands):
        made = Expr("add", (made, Expr.leaf(i + 1, "float32")), "float32")
    return Expr("maximum", (made, Expr.const(0.0, "float32")), "float32")


def matrix(rng: np.random.Generator, *shape: int, dtype: str = F) -> np.ndarray:
    """Standard normal numbers, or whole ones of all that a type can say."""
    if np.dtype(dtype).kind == "f":
        return rng.standard_normal(shape).astype(dtype)
    limits = np.iinfo(dtype)
    return rng.integers(limits.min, limits.max, shape, dtype, endpoint=True)


def product(machine: Machine, a: np.ndarray, b: np.ndarray, source: str = "panels", *, gap: int = 0,
            tree: Expr | None = None, operands: list[tuple[Operand, np.ndarray]] | None = None,
            change: dict[str, Any] | None = None, splits: int = 0) -> np.ndarray:
    """A (batch, m, k) times B (batch, k, n); rows of A and C lie `gap` floats further apart than need be."""
    batch, m, k = a.shape
    n = b.shape[2]
    wide_a = np.full((batch, m, k + gap), np.nan if a.dtype.kind == "f" else 7, a.dtype)
    wide_a[:, :, :k] = a
    wide_a = native.guarded(wide_a) if not gap else wide_a
    kinds = [o for o, _ in operands or []]
    if source == "panels":
        given_b = native.guarded(gemm.pack(machine, b))
        b_row, b_batch = 0, given_b[0].size if batch else 0
    else:
        given_b = native.guarded(np.ascontiguousarray(b.swapaxes(1, 2)) if source == "transposed" else b)
        b_row, b_batch = (k if source == "transposed" else n), k * n
    plan = gemm.plan(machine, m, n, k, batch, source, k + gap, b_row, a.dtype.name, b.dtype.name)
    if change:
        plan = replace(plan, **change)
        panels = -(-n // gemm.width(machine, n, a.itemsize))
        rows, cols = -(-plan.tiles // plan.per_rows), -(-panels // plan.per_cols)
        plan = replace(plan, row_blocks=rows, col_blocks=cols, items=batch * rows * cols,
                       scratch=plan.scratch + (1 << 20))
    out = np.full((batch, m, n + gap), 7, a.dtype)
    out = native.guarded(out) if not gap else out
    dtype = tree.dtype if tree is not None else a.dtype.name
    out = out.astype(dtype) if dtype != a.dtype.name else out
    sides: list[Any] = []
    for o, x in operands or []:
        sides += [x, x.shape[2] if o.row else 0, x[0].size if x.shape[0] > 1 else 0, 0]
    native.run(plan.spec(tree, kinds), wide_a, given_b, out, n, k, k + gap, b_row, n + gap, 1,
               m * (k + gap), 0, b_batch, 0, m * (n + gap), 0, *plan.cells(), *sides, items=plan.items,
               scratch=plan.scratch, machine=machine,
               splits=tuple(range(0, plan.items, splits))[1:] if splits else ())
    assert not gap or dtype != a.dtype.name or (out[:, :, n:] == 7).all()
    return out[:, :, :n]


def close(got: np.ndarray, a: np.ndarray, b: np.ndarray) -> None:
    if a.dtype.kind != "f":
        np.testing.assert_array_equal(got, np.matmul(a, b))
        return
    wanted = np.matmul(a.astype(np.float64), b)
    bound = (1e-6 if a.dtype == F else 2e-15) * np.matmul(np.abs(a).astype(np.float64), np.abs(b)) + 1e-30
    assert (np.abs(got - wanted) <= bound).all()


@pytest.mark.parametrize("machine", MACHINES, ids=lambda m: f"{8 * m.vector}")
@pytest.mark.parametrize("source", gemm.SOURCES)
@given(data=st.data())
@QUICK
def test_products(machine: Machine, source: str, data: Any) -> None:
    m, n = data.draw(st.integers(1, 33)), data.draw(st.integers(1, 70))
    k, batch = data.draw(st.integers(0, 40)), data.draw(st.integers(1, 3))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    dtype = data.draw(st.sampled_from([F, F, "float64", "int32", "int64", "uint32", "uint64"]))
    a, b = matrix(rng, batch, m, k, dtype=dtype), matrix(rng, batch, k, n, dtype=dtype)
    got = product(machine, a, b, source, gap=data.draw(st.sampled_from([0, 0, 5])),
                  splits=data.draw(st.sampled_from([0, 1])))
    close(got, a, b)


@pytest.mark.parametrize("source", gemm.SOURCES)
@pytest.mark.parametrize(("deep", "pitch"), [(16, 0), (16, 32), (100, 112), (100, 0)])
@pytest.mark.parametrize("dtype", [F, "float64", "int64"])
def test_k_in_parts_and_copies_of_a(source: str, deep: int, pitch: int, dtype: str) -> None:
    rng = np.random.default_rng(1)
    a, b = matrix(rng, 2, 45, 100, dtype=dtype), matrix(rng, 2, 100, 77, dtype=dtype)
    whole = product(HERE, a, b, source)
    for per_rows, per_cols, splits in ((2, 1, 0), (4, 2, 0), (1, 3, 1)):
        got = product(HERE, a, b, source, splits=splits, change={
            "deep": deep, "split": deep < 100, "pitch": pitch, "per_rows": per_rows, "per_cols": per_cols})
        close(got, a, b)
        assert deep < 100 or np.array_equal(got, whole)


@pytest.mark.parametrize("machine", MACHINES, ids=lambda m: f"{8 * m.vector}")
@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("long", [False, True])
def test_epilogues(machine: Machine, split: bool, long: bool) -> None:
    rng = np.random.default_rng(2)
    a, b = matrix(rng, 2, 17, 40), matrix(rng, 2, 40, 50)
    sides = [(Operand("float32", False, True), native.guarded(matrix(rng, 1, 1, 50))),
             (Operand("float32", True, False), native.guarded(matrix(rng, 1, 17, 1))),
             (Operand("float32", False, False), native.guarded(matrix(rng, 1, 1, 1))),
             (Operand("float32", True, True), native.guarded(matrix(rng, 2, 17, 50)))]
    tree = tree_of([o for o, _ in sides])
    wanted = np.maximum(np.matmul(a, b) * 0.5 + sum(x for _, x in sides), 0)
    assert tree is not None
    if long:
        for i in range(20):
            tree = Expr("add", (tree, Expr.const(float(i), "float32")), "float32")
        wanted += sum(range(20))
    change = {"deep": 16, "split": True} if split else None
    got = product(machine, a, b, tree=tree, operands=sides, change=change)
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-4)


def test_results_of_other_types() -> None:
    rng = np.random.default_rng(3)
    a, b = matrix(rng, 1, 20, 8), matrix(rng, 1, 8, 45)
    positive = Expr("gt", (LEAF, Expr.const(0.0, "float32")), "bool")
    np.testing.assert_array_equal(product(HERE, a, b, tree=positive), np.matmul(a, b) > 0)
    half = product(HERE, a, b, tree=LEAF.cast("float16"))
    np.testing.assert_allclose(half, np.matmul(a, b), rtol=2e-3, atol=1e-2)


def test_nothing_of_padding_reaches_results() -> None:
    rng = np.random.default_rng(4)
    a, b = matrix(rng, 1, 9, 21), matrix(rng, 1, 21, 33)
    a[0, 3, 5], b[0, 7, 4] = np.nan, np.inf
    wanted = np.matmul(a.astype(np.float64), b)
    for source in gemm.SOURCES:
        got = product(HERE, a, b, source)
        np.testing.assert_array_equal(np.isfinite(got), np.isfinite(wanted))


@pytest.mark.parametrize("machine", MACHINES, ids=lambda m: f"{8 * m.vector}")
@given(data=st.data())
@QUICK
def test_dots(machine: Machine, data: Any) -> None:
    """Of rows that are multiplied together the very bits of each by itself."""
    lanes = machine.lanes()
    m, n = data.draw(st.integers(1, 8)), data.draw(st.integers(lanes, 70))
    k, batch = data.draw(st.integers(0, 70)), data.draw(st.integers(1, 3))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    a, b, bias = matrix(rng, batch, m, k), matrix(rng, batch, k, n), matrix(rng, 1, 1, n)
    turned, blocks = native.guarded(np.ascontiguousarray(b.swapaxes(1, 2))), -(-n // lanes)
    tree = Expr("add", (LEAF, Expr.leaf(1, "float32")), "float32")
    made = list[np.ndarray]()
    for abreast in sorted({1, gemm.dots_abreast(machine, m, n, gemm.DEEP) or m}):
        made.append(native.guarded(np.zeros((batch, m, n), np.float32)))
        spec = gemm.dots(a_type=F, b_type=F, abreast=abreast, tree=tree,
                         operands=(Operand("float32", False, True),))
        native.run(spec, native.guarded(a), turned, made[-1], m, n, k, k, k, n, 1, m * k, 0, n * k, 0, m * n,
                   0, blocks, native.guarded(bias), 0, 0, 0, items=batch * blocks, machine=machine)
        np.testing.assert_allclose(made[-1], np.matmul(a, b) + bias, 1e-4, 1e-4)
    np.testing.assert_array_equal(made[0], made[-1])


@pytest.mark.parametrize("machine", MACHINES, ids=lambda m: f"{8 * m.vector}")
@given(data=st.data())
@QUICK
def test_streams(machine: Machine, data: Any) -> None:
    """Few rows of A, whatever is left of B's rows and columns; what lies behind a row is not touched."""
    dtype = data.draw(st.sampled_from([F, "float16", "float64", "int32"]))
    total = tile.total_of(dtype)
    lanes = machine.lanes(np.dtype(total).itemsize)
    m, n, k = (data.draw(st.integers(low, high)) for low, high in ((1, gemm.ABREAST), (1, 90), (0, 40)))
    batch, gap = data.draw(st.integers(1, 3)), data.draw(st.integers(0, 3))
    blocks = data.draw(st.integers(1, 3))
    wide = -(-n // (2 * lanes * blocks)) * 2 * lanes
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    a, b, bias = (matrix(rng, *shape, dtype=t) for shape, t in (
        ((batch, m, k), dtype), ((batch, k, n + gap), dtype), ((1, n), total)))
    out = native.guarded(np.zeros((batch, m, n), total))
    tree = Expr("add", (Expr.leaf(0, total), Expr.leaf(1, total)), total)
    spec = gemm.streams(rows=m, a_type=dtype, b_type=dtype, tree=tree,
                        operands=(Operand(total, False, True),))
    given = native.guarded(b.reshape(-1)[:max(b.size - gap, 0)])
    native.run(spec, native.guarded(a), given, out, n, k, k, n + gap, n, 1, m * k, 0, k * (n + gap), 0, m * n,
               0, wide, -(-n // wide), native.guarded(bias), 0, 0, 0, items=batch * -(-n // wide),
               machine=machine, scratch=2 * m * wide * np.dtype(total).itemsize)
    with np.errstate(over="ignore"):
        expected = np.matmul(a.astype(total), b[..., :n].astype(total)) + bias
    np.testing.assert_allclose(out, expected, *((0, 0) if total == "int32" else (1e-4, 1e-4)))


@pytest.mark.parametrize("dtype", (F, "float16", "float64", "int64"))
@pytest.mark.parametrize("m", (1, 2, 3, 5, 8, 9, 10, 11))
def test_few_rows_times_what_no_cache_holds(m: int, dtype: str) -> None:
    """Sessions stream such a B, in batches, with what follows, for a half or a third of the rows at a time as
    well; nothing that is not finite is lost, on one thread or two."""
    assert HERE is not None
    k = 70 if m <= gemm.ABREAST else gemm.DEEP + 3
    n = max(HERE.l2 // np.dtype(dtype).itemsize // (k - 6), 64) + 5
    together = gemm.rows_together(HERE, m, n, k, dtype, dtype)
    assert together == {9: 3, 10: 5}.get(m, m)
    assert (gemm.stream_plan(HERE, together, n, k, 2, dtype, dtype) is None) == (m == 11)
    shapes = {"a": (2, m, k), "b": (2, k, n), "bias": (m, n) if m > gemm.ABREAST else (n,)}
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["a", "b"], ["p"]), helper.make_node("Add", ["p", "bias"], ["y"])], "g",
        [helper.make_tensor_value_info(name, kind, shape) for name, shape in shapes.items()],
        [helper.make_tensor_value_info("y", kind, None)])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    rng = np.random.default_rng(m)
    feeds = {name: matrix(rng, *shape, dtype=dtype) for name, shape in shapes.items()}
    if dtype != "int64":
        feeds["a"][0, 0, 3], feeds["b"][1, 4, n - 1] = np.nan, np.inf
    wide = "float64" if np.dtype(dtype).kind == "f" else dtype
    wanted = np.matmul(feeds["a"].astype(wide), feeds["b"].astype(wide)) + feeds["bias"]
    found = []
    for threads in (1, 2):
        options = orthrus.SessionOptions()
        options.intra_op_num_threads = threads
        found += orthrus.InferenceSession(proto.SerializeToString(), options).run(None, feeds)
    np.testing.assert_array_equal(*found)
    tolerance = {F: 1e-4, "float16": 2e-2, "float64": 1e-12}.get(dtype, 0)
    np.testing.assert_allclose(found[0], wanted, tolerance, 10 * tolerance)


@pytest.mark.parametrize("machine", [AVX512, AVX2, SSE2, NEON, RVV256],
                         ids=lambda m: f"{m.arch}{8 * m.vector}")
def test_every_machine_assembles(machine: Machine) -> None:
    for source in gemm.SOURCES:
        made = gemm.plan(machine, 64, 100, 50, 1, source, 50, 100)
        assert assemble(made.spec(None, ()).text(machine), machine)
    for abreast in (1, 3):
        dots = gemm.dots(a_type=F, b_type=F, abreast=abreast, tree=None, operands=())
        assert assemble(dots.text(machine), machine)
    assert assemble(gemm.streams(rows=3, a_type=F, b_type=F, tree=None, operands=()).text(machine), machine)


def test_no_sums_are_spilled() -> None:
    for cols, rows in list(tile.shapes(AVX512).items())[:2]:
        spec = gemm.gemm(source="panels", a_type=F, b_type=F, cols=cols, heights=(rows,), split=False,
                         tail=False, copies=False, ahead=16, fetch=1, touch=True, tree=None, operands=())
        text = str(assemble(spec.text(AVX512), AVX512, listing=True))
        blocks = [block for block in re.split(r"\n\.L\w+:", text) if "vfmadd" in block]
        assert blocks and not [line for block in blocks for line in block.splitlines()
                               if "zmm" in line and "%rsp" in line]


@given(st.integers(1, 3000), st.integers(1, 3000), st.integers(0, 20000), st.integers(1, 20),
       st.sampled_from(gemm.SOURCES))
@draws(200)
def test_plans_cover_the_matrix(m: int, n: int, k: int, batch: int, source: str) -> None:
    for machine in (AVX512, AVX2, NEON):
        streamed = gemm.stream_plan(machine, m, n, k, batch)
        if streamed is not None:
            assert (streamed.blocks - 1) * streamed.wide < n <= streamed.blocks * streamed.wide
        assert m % gemm.rows_together(machine, m, n, k) == 0
        made = gemm.plan(machine, m, n, k, batch, source, k, n)
        low = made.heights[0] - 1
        assert made.tiles * low + made.tall == m and 0 < made.tall <= made.tiles
        assert (len(made.heights) == 1) == (made.tall == made.tiles)
        assert (made.heights[0] + 1) * made.cols < machine.registers
        assert (made.row_blocks - 1) * made.per_rows < made.tiles <= made.row_blocks * made.per_rows
        assert source == "rows" or made.cols == gemm.columns(machine, n)
        panels = -(-n // (made.cols * machine.lanes(4)))
        assert (made.col_blocks - 1) * made.per_cols < panels <= made.col_blocks * made.per_cols
        assert made.items == batch * made.row_blocks * made.col_blocks
        assert made.split == (made.deep < k)


MS = "com.microsoft"


def session_result(node: onnx.NodeProto, feeds: dict[str, np.ndarray], constants: dict[str, np.ndarray],
                   monkeypatch: pytest.MonkeyPatch, after: list[onnx.NodeProto] | None = None) -> np.ndarray:
    """What a compiled part gives for `node`, nothing of it computed by numpy."""
    def refuse(self: Any, node: Any) -> None:
        raise AssertionError("something is left to numpy")
    monkeypatch.setattr(lower.Lowering, "_by_reference", refuse)
    monkeypatch.setattr(Native, "interpret", refuse)
    kind = next(iter(feeds.values())).dtype
    elem = helper.np_dtype_to_tensor_dtype(kind)
    nodes = [node, *(after or [])]
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info(k, elem, v.shape) for k, v in feeds.items()],
        [helper.make_tensor_value_info(nodes[-1].output[0], elem, None)],
        [numpy_helper.from_array(v, k) for k, v in constants.items()])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid(MS, 1)],
                              ir_version=8)
    session = orthrus.InferenceSession(model.SerializeToString())
    return session.run(None, feeds)[0]


SHAPES = [((7, 33), (33, 50)), ((2, 3, 7, 33), (33, 50)), ((2, 3, 7, 33), (2, 3, 33, 50)), ((5,), (5, 40)),
          ((5,), (5,)), ((3, 4, 5), (5,)), ((5,), (3, 5, 20)), ((40, 5), (5,)), ((2, 1, 7, 9), (3, 9, 11)),
          ((3, 9, 11), (2, 1, 11, 1)), ((2, 3, 4, 2, 6), (4, 6, 17)), ((2, 1, 4, 2, 6), (2, 3, 1, 6, 17)),
          ((4, 0), (0, 5)), ((1, 64), (64, 100))]


@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize(("left", "right"), SHAPES)
def test_matmul_rule(left: tuple[int, ...], right: tuple[int, ...], constant: bool,
                     monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(5)
    a, b = matrix(rng, *left), matrix(rng, *right)
    wanted = np.matmul(a, b)
    bias = matrix(rng, *wanted.shape[-1:])
    after = [helper.make_node("Add", ["y", "bias"], ["z"]), helper.make_node("Relu", ["z"], ["out"])]
    given, held = ({"a": a}, {"b": b}) if constant else ({"a": a, "b": b}, {})
    got = session_result(helper.make_node("MatMul", ["a", "b"], ["y"]), given, {"bias": bias} | held,
                         monkeypatch, after)
    assert got.shape == wanted.shape
    np.testing.assert_allclose(got, np.maximum(wanted + bias, 0), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize("flips", [(0, 0), (0, 1), (1, 0), (1, 1)])
@pytest.mark.parametrize("c", [None, (), (1,), (50,), (7, 1), (1, 50), (7, 50)])
def test_gemm_rule(flips: tuple[int, int], c: tuple[int, ...] | None, constant: bool,
                   monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(6)
    a, b = matrix(rng, 7, 33), matrix(rng, 33, 50)
    extra = {} if c is None else {"c": matrix(rng, *c)}
    node = helper.make_node("Gemm", ["a", "b", *extra], ["y"], alpha=0.5, beta=2.0, transA=flips[0],
                            transB=flips[1])
    given = {"a": a.T.copy() if flips[0] else a}
    second = {"b": b.T.copy() if flips[1] else b}
    got = session_result(node, given if constant else given | second, extra | (second if constant else {}),
                         monkeypatch)
    wanted = 0.5 * (a @ b) + 2 * sum(extra.values(), np.float32(0))
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("activation", ["", "Relu", "Sigmoid", "Tanh", "LeakyRelu"])
def test_fused_gemm_rule(activation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(7)
    a, b, c = matrix(rng, 7, 33), matrix(rng, 33, 50), matrix(rng, 50)
    node = helper.make_node("FusedGemm", ["a", "b", "c"], ["y"], domain=MS, activation=activation)
    got = session_result(node, {"a": a}, {"b": b, "c": c}, monkeypatch)
    x = a @ b + c
    wanted = {"": x, "Relu": np.maximum(x, 0), "Sigmoid": 1 / (1 + np.exp(-x)), "Tanh": np.tanh(x),
              "LeakyRelu": np.where(x < 0, 0.01 * x, x)}[activation]
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("flips", list(itertools.product((0, 1), repeat=4)))
def test_fused_matmul_rule(flips: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(8)
    a, b = matrix(rng, 2, 3, 5, 18), matrix(rng, 2, 3, 18, 20)
    given = []
    for x, flip, batch in ((a, *flips[::2]), (b, *flips[1::2])):
        x = x.swapaxes(-1, -2) if flip else x
        given.append(np.ascontiguousarray(np.moveaxis(x, -2, 0) if batch else x))
    node = helper.make_node("FusedMatMul", ["a", "b"], ["y"], domain=MS, alpha=0.25, transA=flips[0],
                            transB=flips[1], transBatchA=flips[2], transBatchB=flips[3])
    got = session_result(node, dict(zip("ab", given, strict=True)), {}, monkeypatch)
    np.testing.assert_allclose(got, 0.25 * np.matmul(a, b), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize(("left", "right"), SHAPES[:4])
def test_half_precision(left: tuple[int, ...], right: tuple[int, ...], constant: bool,
                        monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(9)
    a, b = matrix(rng, *left).astype(np.float16), matrix(rng, *right).astype(np.float16)
    given, held = ({"a": a}, {"b": b}) if constant else ({"a": a, "b": b}, {})
    got = session_result(helper.make_node("MatMul", ["a", "b"], ["y"]), given, held, monkeypatch)
    assert got.dtype == np.float16
    wanted = np.matmul(a.astype(np.float32), b.astype(np.float32))
    np.testing.assert_allclose(got, wanted, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("machine", MACHINES, ids=lambda m: f"{8 * m.vector}")
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("source", gemm.SOURCES)
def test_half_precision_kernels(machine: Machine, dtype: str, source: str) -> None:
    rng = np.random.default_rng(10)
    kind = np.dtype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    a, b = matrix(rng, 1, 20, 21).astype(kind), matrix(rng, 1, 21, 35).astype(kind)
    packed = {"panels": lambda: gemm.pack(machine, b), "transposed": lambda: b.swapaxes(1, 2).copy()}
    given = native.guarded(packed.get(source, lambda: b)())
    b_row = {"panels": 0, "transposed": 21}.get(source, 35)
    plan = gemm.plan(machine, 20, 35, 21, 1, source, 21, b_row, dtype, dtype)
    out = native.guarded(np.zeros((1, 20, 35), kind))
    native.run(plan.spec(LEAF.cast(dtype), ()), native.guarded(a), given, out, 35, 21, 21, b_row, 35, 1,
               *[0] * 6, *plan.cells(), items=plan.items, scratch=plan.scratch, machine=machine)
    wanted = np.matmul(a.astype(np.float32), b.astype(np.float32))
    np.testing.assert_allclose(out.astype(np.float32), wanted, rtol=1e-2, atol=1e-2)
