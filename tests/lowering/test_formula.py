"""Plans by formula: for shapes that nobody lowered, what a lowering of them gives, bit for bit."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import onnx
import pytest
from draws import draws
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator
from skips import needs

import orthrus as ort
from fuzz import graphs as random_graphs
from orthrus import errors, knobs
from orthrus.lowering.native import Native
from orthrus.lowering.plans import Stepped

pytestmark = needs("generated code")

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64
Feeds = dict[str, np.ndarray]


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(knobs.SHAPES, "value", 2)


def natives(session: ort.InferenceSession) -> Iterator[Native]:
    """The session's compiled parts."""
    core: Any = session._sess
    for step in core._engine.program.calls:
        if isinstance(step.kernel.run, Native):
            yield step.kernel.run


def model_of(nodes: list[onnx.NodeProto], inputs: dict[str, tuple[int, list[Any]]], outputs: list[str],
             weights: dict[str, np.ndarray] | None = None, domain: str = "") -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes, "graph",
        [helper.make_tensor_value_info(name, kind, dims) for name, (kind, dims) in inputs.items()],
        [helper.make_empty_tensor_value_info(name) for name in outputs],
        [onnx.numpy_helper.from_array(array, name) for name, array in (weights or {}).items()])
    opsets = [helper.make_opsetid("", 23), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def drawn(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def transformer() -> tuple[onnx.ModelProto, Callable[..., Feeds]]:
    """Positions from a table, a mask of what came before, attention over a cache, a product, norms; shapes
    are computed as exporters write them."""
    width, heads, size = 32, 2, 16
    node = helper.make_node
    nodes = [
        node("Shape", ["ids"], ["shape"]), node("Gather", ["shape", "one"], ["length"], axis=0),
        node("Shape", ["past_k"], ["cached"]), node("Gather", ["cached", "two"], ["held"], axis=0),
        node("Add", ["held", "length"], ["total"]), node("Range", ["held", "total", "one"], ["positions"]),
        node("Gather", ["words", "ids"], ["w"]), node("Gather", ["places", "positions"], ["p"]),
        node("Add", ["w", "p"], ["x"]),
        node("Range", ["zero", "total", "one"], ["keys"]),
        node("Unsqueeze", ["positions", "ones"], ["queries"]),
        node("LessOrEqual", ["keys", "queries"], ["seen"]), node("Where", ["seen", "none", "far"], ["mask"]),
        node("LayerNormalization", ["x", "scale", "bias"], ["normal"], axis=-1),
        node("MatMul", ["normal", "mixed"], ["mix"]),
        node("Split", ["mix"], ["q", "k", "v"], axis=2, num_outputs=3),
        node("Unsqueeze", ["length", "axis0"], ["length1"]),
        node("Concat", ["minus", "length1", "heads", "size"], ["apart"], axis=0)]
    for name in "qkv":
        nodes += [node("Reshape", [name, "apart"], [f"{name}4"]),
                  node("Transpose", [f"{name}4"], [f"{name}h"], perm=[0, 2, 1, 3])]
    nodes += [
        node("Attention", ["qh", "kh", "vh", "mask", "past_k", "past_v"], ["a", "present_k", "present_v"]),
        node("Transpose", ["a"], ["at"], perm=[0, 2, 1, 3]),
        node("Concat", ["minus", "length1", "width"], ["joined"], axis=0),
        node("Reshape", ["at", "joined"], ["flat"]), node("MatMul", ["flat", "out"], ["o"]),
        node("Add", ["o", "x"], ["sum"]), node("Softmax", ["sum"], ["y"], axis=-1),
        node("ReduceMean", ["sum", "axis1"], ["mean"], keepdims=0)]
    weights = {
        "one": np.array(1), "two": np.array(2), "zero": np.array(0), "ones": np.array([1]),
        "axis0": np.array([0]), "axis1": np.array([1]), "minus": np.array([-1]), "heads": np.array([heads]),
        "size": np.array([size]), "width": np.array([width]), "none": np.array(0, np.float32),
        "far": np.array(-1e4, np.float32),
        "words": drawn(50, width), "places": drawn(130, width), "scale": drawn(width), "bias": drawn(width),
        "mixed": drawn(width, 3 * width), "out": drawn(width, width)}
    cache = (FLOAT, ["batch", heads, "past", size])
    model = model_of(nodes, {"ids": (INT64, ["batch", "length"]), "past_k": cache, "past_v": cache},
                     ["y", "mean", "present_k", "present_v"], weights)

    def feeds(batch: int, length: int, past: int) -> Feeds:
        held = batch, heads, past, size
        return {"ids": np.random.default_rng(length).integers(0, 50, (batch, length)),
                "past_k": drawn(*held), "past_v": drawn(*held)}
    return model, feeds


def images() -> tuple[onnx.ModelProto, Callable[..., Feeds]]:
    """Convolutions of every kind, pooling, resizing."""
    node = helper.make_node
    nodes = [
        node("Conv", ["x", "w0"], ["c0"], pads=[1, 1, 1, 1], strides=[2, 2]), node("Relu", ["c0"], ["r0"]),
        node("Conv", ["r0", "w1"], ["c1"], pads=[1, 1, 1, 1]), node("Add", ["c1", "r0"], ["s1"]),
        node("Conv", ["s1", "w2"], ["c2"], pads=[1, 1, 1, 1], group=32), node("Sigmoid", ["c2"], ["g2"]),
        node("Mul", ["c2", "g2"], ["m2"]),
        node("MaxPool", ["m2"], ["p2"], kernel_shape=[2, 2], strides=[2, 2]),
        node("AveragePool", ["p2"], ["q2"], kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        node("Resize", ["q2", "", "scales"], ["big"], mode="nearest"),
        node("Resize", ["q2", "", "scales"], ["q2up"], mode="linear"),
        node("Concat", ["big", "q2up"], ["both"], axis=1),
        node("Conv", ["both", "w3"], ["c3"]), node("GlobalAveragePool", ["c3"], ["pool"]),
        node("Flatten", ["pool"], ["y"])]
    weights = {"w0": drawn(32, 3, 3, 3), "w1": drawn(32, 32, 3, 3), "w2": drawn(32, 1, 3, 3),
               "w3": drawn(16, 64, 1, 1), "scales": np.array([1, 1, 2, 2], np.float32)}
    model = model_of(nodes, {"x": (FLOAT, ["batch", 3, "height", "width"])}, ["y", "both"], weights)
    return model, lambda batch, height, width: {"x": drawn(batch, 3, height, width)}


def rows() -> tuple[onnx.ModelProto, Callable[..., Feeds]]:
    """A recurrent layer over an open length, and what picks and sorts."""
    node = helper.make_node
    nodes = [
        node("LSTM", ["x", "w", "r"], ["h", "last"], hidden_size=8),
        node("Squeeze", ["h", "axis"], ["s"]), node("Transpose", ["s"], ["t"], perm=[1, 0, 2]),
        node("CumSum", ["t", "axis"], ["c"]), node("TopK", ["c", "k"], ["values", "places"], axis=2),
        node("ReduceMax", ["t", "axis"], ["m"], keepdims=0), node("Softmax", ["m"], ["y"], axis=0)]
    weights = {"w": drawn(1, 32, 6), "r": drawn(1, 32, 8), "axis": np.array([1]), "k": np.array([3])}
    results = ["y", "values", "places", "last"]
    model = model_of(nodes, {"x": (FLOAT, ["length", "batch", 6])}, results, weights)
    return model, lambda batch, length, _: {"x": drawn(length, batch, 6)}


MODELS = {"transformer": transformer, "images": images, "rows": rows}
MIXED = [(2, 16, 24), (3, 40, 33), (2, 17, 24), (5, 64, 50), (1, 9, 12), (4, 31, 60), (2, 50, 31)]
ALIKE = {"transformer": [(4, 50, 30), (5, 40, 61), (2, 100, 1), (4, 50, 7)],
         "images": [(28, 24, 31), (42, 24, 31), (70, 24, 31), (56, 24, 31)],
         "rows": [(2, 840, 0), (2, 1680, 0), (2, 2520, 0), (2, 420, 0)]}
"""Treated alike on every processor: the same rows in all, or multiples of all heights of tiles."""


def agree(session: ort.InferenceSession, feeds: Feeds) -> list[bool]:
    """Run once with the plans there are and once with those that a lowering makes; per part, whether the
    first was by formula."""
    found = session.run(None, feeds)
    by_formula = []
    for native in natives(session):
        if native.plans:
            key = next(reversed(native.plans))
            by_formula.append(not isinstance(native.plans[key], Stepped | None))
            native.exact(key)
    for one, other in zip(found, session.run(None, feeds), strict=True):
        assert one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()
    return by_formula


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("threads", [1, 2])
def test_models(name: str, threads: int) -> None:
    model, feeds = MODELS[name]()
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    session = ort.InferenceSession(model, options)
    for shape in MIXED:
        agree(session, feeds(*shape))
    used = [agree(session, feeds(*shape)) for shape in ALIKE[name]]
    assert any(map(all, used[1:])), [native.learner.unlearnt for native in natives(session)]


def test_a_decoder_is_lowered_twice() -> None:
    """Once for the guess at its creation, once for its first token."""
    model, feeds = transformer()
    session = ort.InferenceSession(model)
    used = [agree(session, feeds(1, 1, past)) for past in range(20, 60)]
    assert used[0] == [False] and all(used[1:])


def test_results_are_those_of_onnxruntime() -> None:
    peer = pytest.importorskip("onnxruntime")
    model, feeds = images()
    ours, theirs = (it.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
                    for it in (ort, peer))
    for shape in MIXED:
        for y, wanted in zip(ours.run(None, feeds(*shape)), theirs.run(None, feeds(*shape)), strict=True):
            np.testing.assert_allclose(y, wanted, rtol=1e-4, atol=1e-4 * np.abs(wanted).max())


def open_feeds(model: onnx.ModelProto, sizes: dict[str, int], rng: np.random.Generator) -> Feeds | None:
    """Arrays for a model's inputs; None where an input's rank is open."""
    made = {}
    for each in model.graph.input:
        kind = each.type.tensor_type
        dims = [d.dim_value if d.HasField("dim_value") else sizes.get(d.dim_param, 0) for d in kind.shape.dim]
        if 0 in dims:
            return None
        dtype = helper.tensor_dtype_to_np_dtype(kind.elem_type)
        array = rng.integers(-3, 4, dims) if dtype.kind in "iu" else rng.normal(size=dims)
        made[each.name] = array.astype(dtype)
    return made


def fuzzed(seeds: range) -> int:
    """Random graphs at several shapes; how many plans were computed by formula."""
    count = 0
    for seed in seeds:
        model, _ = random_graphs.build(seed)
        session, rng = ort.InferenceSession(model), np.random.default_rng(seed)
        for n, s in ((2, 3), (5, 6), (7, 4), (3, 9), (40, 33), (6, 5)):
            feeds = open_feeds(model, {"N": n, "S": s, "T": 1, "C": 4}, rng)
            if feeds is None:
                break
            try:
                session.run(None, feeds)
            except (errors.Fail, errors.InvalidArgument):
                continue
            count += sum(agree(session, feeds))
    return count


@pytest.mark.slow
def test_random_graphs() -> None:
    assert fuzzed(range(40)) > 5


@pytest.mark.slow
def test_random_graphs_at_length() -> None:
    assert fuzzed(range(1000, 1200)) > 25


@pytest.mark.parametrize("op", ["EyeLike", "Trilu", "OneHot", "Hardmax"])
@draws(15, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 2**32), fixed=st.sampled_from([(), (0,), (1,)]), k=st.sampled_from(
    [0, 0, 1, -1, 3, -4, 50, -50]))
def test_places_of_open_sizes(op: str, seed: int, fixed: tuple[int, ...], k: int) -> None:
    """Operators that compare places along an axis: one session, sizes that change from run to run."""
    rng = np.random.default_rng(seed)
    attrs = {"EyeLike": {"k": k, "dtype": FLOAT}, "Trilu": {"upper": int(rng.integers(2))},
             "OneHot": {"axis": int(rng.integers(-3, 3))}, "Hardmax": {"axis": int(rng.integers(-2, 2))}}[op]
    held = {"Trilu": {"k": np.array(k)}, "OneHot": {
        "depth": np.array(abs(k) + 1), "values": np.array([0, 1], np.float32)}}.get(op, {})
    node = helper.make_node(op, ["x", *held], ["y"], **attrs)
    kind = INT64 if op == "OneHot" else FLOAT
    dims: list[Any] = [int(rng.integers(1, 5)) if a in fixed else f"d{a}" for a in range(2)]
    model = model_of([node], {"x": (kind, dims)}, ["y"], held)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    for _ in range(6):
        sizes = [int(v) for v in rng.choice([1, 2, 3, 4, 5, 8, 17, 40], 2)]
        x = drawn(*(v if isinstance(d, str) else d for d, v in zip(dims, sizes, strict=True)))
        x = (8 * x).astype(np.int64) if kind == INT64 else x
        wanted = ReferenceEvaluator(model).run(None, {"x": x})[0]
        np.testing.assert_array_equal(session.run(None, {"x": x})[0], wanted)


def test_limits_of_a_session_hold() -> None:
    model, feeds = rows()
    session = ort.InferenceSession(model, limits=ort.Limits(max_tensor_bytes=4 << 20))
    for sizes in ALIKE["rows"]:
        session.run(None, feeds(*sizes))
    assert any(formula.served for native in natives(session) for formula in native.learner.formulas)
    with pytest.raises((errors.Fail, errors.InvalidArgument, MemoryError), match="bytes"):
        session.run(None, feeds(20_000, 40, 0))


def test_one_name_of_two_sizes_is_no_formulas() -> None:
    """A size of 0 says as much of its name as any other."""
    nodes = [helper.make_node("Concat", ["a", "b"], ["y"], axis=0)]
    model = model_of(nodes, {"a": (FLOAT, ["n", 4]), "b": (FLOAT, ["n", 4])}, ["y"])
    session = ort.InferenceSession(model)
    (native,) = natives(session)
    for count in (20, 30):
        native(drawn(count, 4), drawn(count, 4))
    formula = native.learner.formulas[0]
    assert formula.plan([(50, 4), (50, 4)]) is not None
    for first, second in ((50, 40), (0, 40), (40, 0)):
        assert formula.plan([(first, 4), (second, 4)]) is None
        (y,) = np.asarray(native(drawn(first, 4), drawn(second, 4)))[None]
        np.testing.assert_array_equal(y, np.concatenate([drawn(first, 4), drawn(second, 4)]))


def test_the_most_of_several_sizes() -> None:
    """What follows from shapes by functions of more than two things."""
    node = helper.make_node
    nodes = [node("Shape", ["x"], ["shape"]), node("Max", ["shape", "few", "least"], ["wide"]),
             node("Min", ["wide", "most", "more"], ["size"]), node("Expand", ["one", "size"], ["y"])]
    weights = {"few": np.array([3, 2]), "least": np.array([1, 5]), "most": np.array([900, 900]),
               "more": np.array([800, 1000]), "one": np.ones((1, 1), np.float32)}
    session = ort.InferenceSession(model_of(nodes, {"x": (FLOAT, ["n", "m"])}, ["y"], weights))
    for n, m in ((20, 7), (30, 8), (50, 9), (2, 2), (850, 3), (40, 950), (60, 30)):
        agree(session, {"x": drawn(n, m)})
        (y,) = session.run(None, {"x": drawn(n, m)})
        assert y.shape == (min(max(n, 3), 800), min(max(m, 5), 900))


def test_small_shapes_take_no_more_memory_for_large_ones() -> None:
    """A plan by formula has about as large an arena as one by lowering, whatever came before."""
    node = helper.make_node
    nodes = [node("Softmax", ["x"], ["a"], axis=1), node("Softmax", ["a"], ["b"], axis=0),
             node("Softmax", ["b"], ["y"], axis=1)]
    session = ort.InferenceSession(model_of(nodes, {"x": (FLOAT, ["n", 64])}, ["y"]))
    (native,) = natives(session)
    for count in (2000, 2100):
        session.run(None, {"x": drawn(count, 64)})
    (formula,) = native.learner.formulas
    for count in (60_000, 2400, 40_000, 3000, 70_000):
        key = ((count, 64),)
        plan, exact = formula.plan(key), native.lower(key, [(*key, "float32")])
        assert plan is not None and exact.size <= plan.size <= 2 * exact.size + (1 << 15)


def test_learning_in_the_background(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(knobs.SHAPES, "value", 1)
    model, feeds = transformer()
    session = ort.InferenceSession(model)
    session.run(None, feeds(1, 1, 20))
    for thread in threading.enumerate():
        if thread.name == "orthrus formula":
            thread.join()
    (native,) = natives(session)
    assert len(native.learner.formulas) == 1
    session.run(None, feeds(1, 1, 21))
    assert native.learner.formulas[0].served and not native.learner.learning


def test_without_a_thread_it_is_lowered(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")
    monkeypatch.setattr(knobs.SHAPES, "value", 1)
    monkeypatch.setattr(threading.Thread, "start", refuse)
    model, feeds = transformer()
    session = ort.InferenceSession(model)
    for past in (20, 21, 22):
        assert agree(session, feeds(1, 1, past)) == [False]
    (native,) = natives(session)
    assert set(native.learner.unlearnt) == {"can't start new thread"} and not native.learner.learning


def test_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(knobs.SHAPES, "value", 0)
    model, feeds = rows()
    session = ort.InferenceSession(model)
    assert not any(any(agree(session, feeds(*shape))) for shape in MIXED[:4])
    assert all(not native.learner.formulas for native in natives(session))
