"""Profiles: what nodes cost, where a run's time goes, tables, pages and traces."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from html.parser import HTMLParser
from math import prod
from pathlib import Path
from typing import Any

import api_models
import graphs
import numpy as np
import onnx
import pytest
from benchmarks.zoo import build
from onnx import TensorProto, helper
from skips import needs
from typer.testing import CliRunner

import orthrus as ort
from orthrus.demo import MODEL
from orthrus.limits import Deadline
from orthrus.load import load
from orthrus.ops.infer import infer_graph
from orthrus.profiling import Peak, cost, cost_of_nodes, peak_of
from orthrus.profiling import peak as peaks
from orthrus.profiling.table import brief
from orthrus.run.config import Config
from orthrus.run.engine import Engine
from orthrus.tools.cli.main import app

MS = "com.microsoft"
F, I64, I8, U8 = TensorProto.FLOAT, TensorProto.INT64, TensorProto.INT8, TensorProto.UINT8


def node_of(op: str, inputs: list[Any], outputs: int = 1, constants: dict[int, np.ndarray] | None = None,
            domain: str = "", opset: int = 21, of: int = F, **attrs: Any) -> Any:
    """A node of one operator with outputs of type `of`; an input is a shape, (shape, type) or None."""
    names, infos = [], []
    for i, given in enumerate(inputs):
        names.append("" if given is None else f"x{i}")
        if given is None or i in (constants or {}):
            continue
        shape, elem = given if isinstance(given, tuple) and isinstance(given[0], tuple) else (given, F)
        infos.append(graphs.info(f"x{i}", elem, shape))
    made = [f"y{i}" for i in range(outputs)]
    model = graphs.model([helper.make_node(op, names, made, name="n", domain=domain, **attrs)], infos,
                         [helper.make_tensor_value_info(name, of, None) for name in made],
                         {f"x{i}": a for i, a in (constants or {}).items()},
                         opset=opset, domains={domain: 1} if domain else None)
    graph = load(model)
    for out in graph.outputs:
        out.type = None
    infer_graph(graph)
    return graph.nodes[0]


COSTS: list[tuple[str, list[Any], dict[str, Any], int, int]] = [
    ("MatMul", [(2, 3, 4), (4, 5)], {}, 2 * 2 * 3 * 4 * 5, 4 * (24 + 20 + 30)),
    ("MatMul", [(4,), (4,)], {}, 8, 4 * (4 + 4 + 1)),
    ("MatMul", [(7, 1, 3, 4), (5, 4, 2)], {}, 2 * 7 * 5 * 3 * 4 * 2, 4 * (84 + 40 + 210)),
    ("Gemm", [(4, 3), (5, 4), (5,)], {"transA": 1, "transB": 1}, 2 * 3 * 4 * 5 + 15, 4 * (12 + 20 + 5 + 15)),
    ("Gemm", [(3, 4), (4, 5), (5,)], {"alpha": 0.5, "beta": 2.0}, 2 * 60 + 15 + 30, 4 * (12 + 20 + 5 + 15)),
    ("Conv", [(1, 4, 8, 8), (6, 4, 3, 3), (6,)], {"pads": [1, 1, 1, 1]},
     (2 * 4 * 9 + 1) * 6 * 64, 4 * (256 + 216 + 6 + 384)),
    ("Conv", [(2, 4, 8, 8), (8, 2, 3, 3)], {"group": 2}, 2 * 2 * 9 * 2 * 8 * 36, 4 * (512 + 144 + 576)),
    ("Conv", [(1, 4, 8, 8), (6, 4, 1, 1)], {"strides": [2, 2]}, 2 * 4 * 6 * 16, 4 * (64 + 24 + 96)),
    ("ConvTranspose", [(1, 4, 5, 5), (4, 3, 3, 3), (3,)], {}, 2 * 100 * 27 + 3 * 49,
     4 * (100 + 108 + 3 + 147)),
    ("Einsum", [(2, 3, 4), (2, 4, 5)], {"equation": "bij,bjk->bik"}, 2 * 2 * 3 * 4 * 5, 4 * (24 + 40 + 30)),
    ("Einsum", [(3,), (5,)], {"equation": "i,j->ij"}, 15, 4 * (3 + 5 + 15)),
    ("Einsum", [(2, 7, 3, 4), (4, 5)], {"equation": "...ij,jk->...ik"}, 2 * 14 * 60, 4 * (168 + 20 + 210)),
    ("Softmax", [(2, 5)], {}, 50, 80), ("Relu", [(2, 5)], {}, 10, 80),
    ("Add", [(2, 5), (5,)], {}, 10, 4 * (10 + 5 + 10)),
    ("Sqrt", [(2, 5)], {}, 10, 80), ("Sigmoid", [(2, 5)], {}, 10, 80),
    ("HardSigmoid", [(2, 5)], {}, 40, 80),
    ("LayerNormalization", [(2, 5), (5,), (5,)], {}, 70, 4 * 30),
    ("LayerNormalization", [(2, 5), (5,)], {}, 60, 4 * 25),
    ("BatchNormalization", [(1, 3, 2, 2), (3,), (3,), (3,), (3,)], {}, 24, 4 * 36),
    ("ReduceSum", [(4, 6)], {}, 24, 100), ("GlobalAveragePool", [(1, 3, 4, 4)], {}, 48 + 3, 4 * 51),
    ("MaxPool", [(1, 2, 4, 4)], {"kernel_shape": [2, 2], "strides": [2, 2]}, 4 * 8, 4 * (32 + 8)),
    ("AveragePool", [(1, 2, 4, 4)], {"kernel_shape": [2, 2], "strides": [2, 2]}, 5 * 8, 4 * 40),
    ("Transpose", [(3, 4)], {}, 0, 96), ("Identity", [(3, 4)], {}, 0, 0), ("Flatten", [(3, 4)], {}, 0, 0),
    ("Gather", [(1000, 8), ((3,), I64)], {}, 0, 4 * 24 + 8 * 3 + 4 * 24),
    ("Concat", [(2, 3), (2, 3)], {"axis": 0}, 0, 4 * 24),
]


@pytest.mark.parametrize(("op", "inputs", "attrs", "flop", "size"), COSTS,
                         ids=[f"{i}-{c[0]}" for i, c in enumerate(COSTS)])
def test_costs_by_hand(op: str, inputs: list[Any], attrs: dict[str, Any], flop: int, size: int) -> None:
    found = cost(node_of(op, inputs, **attrs), {})
    assert (found.flop, found.bytes, found.known) == (flop, size, True)


def test_costs_of_recurrent_layers() -> None:
    steps, batch, wide, hidden = 5, 2, 3, 4
    x, per = (steps, batch, wide), steps * batch * hidden
    lstm = node_of("LSTM", [x, (1, 4 * hidden, wide), (1, 4 * hidden, hidden), (1, 8 * hidden)], 3,
                   hidden_size=hidden)
    products = 2 * 4 * (wide + hidden)
    assert cost(lstm, {}).flop == per * (products + 4 * 3 + 9)
    gru = node_of("GRU", [x, (2, 3 * hidden, wide), (2, 3 * hidden, hidden)], 2, hidden_size=hidden,
                  direction="bidirectional")
    assert cost(gru, {}).flop == 2 * per * (2 * 3 * (wide + hidden) + 3 + 7)
    rnn = node_of("RNN", [x, (1, hidden, wide), (1, hidden, hidden)], 2, hidden_size=hidden)
    assert cost(rnn, {}).flop == per * (2 * (wide + hidden) + 1 + 1)


def test_costs_of_attention() -> None:
    scores = 1 * 2 * 3 * 5
    flat = node_of("Attention", [(1, 3, 16), (1, 5, 16), (1, 5, 12)], opset=23, q_num_heads=2, kv_num_heads=2)
    deep = node_of("Attention", [(1, 2, 3, 8), (1, 2, 5, 8), (1, 2, 5, 6)], opset=23)
    for node in (flat, deep):
        assert cost(node, {}).flop == scores * (2 * 8 + 1 + 5 + 2 * 6)
    several = node_of("MultiHeadAttention", [(1, 3, 16), (1, 5, 16), (1, 5, 16)], domain=MS, num_heads=2)
    assert cost(several, {}).flop == scores * (2 * 8 + 1 + 5 + 2 * 8)


def test_costs_of_quantized_products() -> None:
    node = node_of("MatMulInteger", [((2, 3), U8), ((3, 4), I8)], of=TensorProto.INT32)
    assert (cost(node, {}).flop, cost(node, {}).bytes) == (2 * 24, 6 + 12 + 4 * 8)


def test_an_unknown_shape_is_told() -> None:
    found = cost(node_of("Relu", [("N", 4)]), {})
    assert not found.known and found.flop == 0


def test_operators_of_others_are_not_guessed() -> None:
    @ort.op("my.domain::MatMul", types={"x": ("float",)})
    def MatMul(x: Any) -> Any:
        return x

    node = node_of("MatMul", [(2, 3)], domain="my.domain")
    assert cost(node, {}).flop == 0


def _convnet() -> onnx.ModelProto:
    rng = np.random.default_rng(0)
    weights = {"w1": rng.standard_normal((8, 3, 3, 3)), "b1": np.zeros(8),
               "w2": rng.standard_normal((8, 1, 3, 3)),
               "w3": rng.standard_normal((16, 8, 1, 1)), "w4": rng.standard_normal((16, 10))}
    nodes = [helper.make_node("Conv", ["x", "w1", "b1"], ["c1"], name="first", pads=[1, 1, 1, 1]),
             helper.make_node("Relu", ["c1"], ["r1"], name="relu"),
             helper.make_node("Conv", ["r1", "w2"], ["c2"], name="deep", group=8, strides=[2, 2]),
             helper.make_node("Conv", ["c2", "w3"], ["c3"], name="point"),
             helper.make_node("GlobalAveragePool", ["c3"], ["p"], name="pool"),
             helper.make_node("Flatten", ["p"], ["f"], name="flat"),
             helper.make_node("MatMul", ["f", "w4"], ["y"], name="classify")]
    return graphs.model(nodes, [graphs.info("x", F, (1, 3, 32, 32))], [graphs.info("y", F, (1, 10))],
                        {k: v.astype(np.float32) for k, v in weights.items()})


def products(model: onnx.ModelProto) -> int:
    """Multiplications of a model's convolutions and matrix products, one output element after the other."""
    total = 0
    typed = onnx.shape_inference.infer_shapes(model).graph
    shapes = {v.name: tuple(d.dim_value for d in v.type.tensor_type.shape.dim)
              for v in (*typed.value_info, *typed.input, *typed.output)}
    shapes.update({t.name: tuple(t.dims) for t in model.graph.initializer})
    for node in model.graph.node:
        out = shapes[node.output[0]]
        if node.op_type == "Conv":
            group = next((a.i for a in node.attribute if a.name == "group"), 1)
            taps = shapes[node.input[1]][2:]
            for _ in np.ndindex(*out):
                total += shapes[node.input[0]][1] // group * prod(taps)
        elif node.op_type in ("MatMul", "Gemm"):
            for _ in np.ndindex(*out):
                total += shapes[node.input[0]][-1]
    return total


def test_a_model_is_counted_as_an_independent_count_does() -> None:
    model = _convnet()
    session = ort.InferenceSession(model)
    with session.profile(compare=False) as p:
        session.run(None, {"x": np.ones((1, 3, 32, 32), np.float32)})
    graph = load(model)
    infer_graph(graph)
    contractions = [n for n in graph.nodes if n.op_type in ("Conv", "MatMul")]
    bias = 8 * 32 * 32
    assert cost_of_nodes(contractions, {}).flop == 2 * products(model) + bias
    rest = 8 * 32 * 32 + (16 * 15 * 15 + 16)
    assert sum(n.flop for n in p.nodes) == 2 * products(model) + bias + rest


def test_a_step_names_all_nodes_it_serves() -> None:
    session = ort.InferenceSession(_convnet())
    with session.profile(compare=False) as p:
        session.run(None, {"x": np.ones((1, 3, 32, 32), np.float32)})
    rows = {n.node: n for n in p.nodes}
    first = rows["first"]
    assert first.fused == ("first", "relu") and first.fused_ops == ("Conv", "Relu")
    assert first.op_type == "Conv" and first.part and first.provider == "CPUExecutionProvider"
    assert first.flop == (2 * 27 + 1) * 8 * 1024 + 8 * 1024
    assert first.bytes == 4 * (3 * 1024 + 216 + 8 + 8 * 1024)
    assert first.inputs[0] == "float[1, 3, 32, 32]" and first.outputs == ("float[1, 8, 32, 32]",)
    served = [name for n in p.nodes for name in n.fused]
    assert sorted(served) == sorted(n.name for n in _convnet().graph.node)


def test_pieces_of_a_concatenation_are_not_copied() -> None:
    nodes = [helper.make_node("Exp", ["a"], ["x"], name="exp"),
             helper.make_node("Abs", ["a"], ["z"], name="abs"),
             helper.make_node("Concat", ["x", "z"], ["c"], name="join", axis=0),
             helper.make_node("ReduceMax", ["c"], ["y"], name="most", keepdims=0)]
    session = ort.InferenceSession(graphs.model(nodes, [graphs.info("a", F, (64, 64))],
                                                [graphs.info("y", F, ())]))
    with session.profile(compare=False) as p:
        session.run(None, {"a": np.ones((64, 64), np.float32)})
    served = [name for n in p.nodes for name in n.fused]
    assert sorted(served) == ["abs", "exp", "join", "most"]
    assert sum(n.flop for n in p.nodes) == 64 * 64 * (1 + 1 + 2)
    assert sum(n.bytes for n in p.nodes) == 2 * 2 * 4 * 64 * 64 + 4 * (2 * 64 * 64 + 1)


def _wide() -> ort.InferenceSession:
    rng = np.random.default_rng(0)
    weights = {f"w{i}": (rng.standard_normal((768, 768)) / 28).astype(np.float32) for i in range(3)}
    nodes = [helper.make_node("MatMul", [f"v{i}", f"w{i}"], [f"v{i + 1}"], name=f"product{i}")
             for i in range(3)]
    return ort.InferenceSession(graphs.model(nodes, [graphs.info("v0", F, (768, 768))],
                                             [graphs.info("v3", F, (768, 768))], weights))


def test_nodes_and_what_lies_between_are_the_run() -> None:
    session = _wide()
    feeds = {"v0": np.ones((768, 768), np.float32)}
    session.run(None, feeds)
    for _ in range(40):
        # again where something else had the processor between two nodes
        with session.profile() as p:
            for _ in range(3):
                session.run(None, feeds)
        within = sum(n.seconds for n in p.nodes)
        assert p.runs == 3 and p.between_seconds >= 0
        assert within + p.between_seconds == pytest.approx(p.seconds, rel=1e-9)
        events = json.loads(p.to_trace())
        runs = [e["dur"] for e in events if e["name"] == "model_run"]
        inside = sum(e["dur"] for e in events if e["cat"] == "Node" or e["name"].endswith("_preparation"))
        assert len(runs) == 3
        if within >= 0.95 * p.seconds and inside >= 0.95 * sum(runs):
            break
    assert within >= 0.95 * p.seconds and inside >= 0.95 * sum(runs)
    assert 0 < p.fastest_seconds <= p.seconds
    assert p.native_seconds is not None and p.native_seconds > 0
    assert [n.calls for n in p.nodes] == [3, 3, 3] and all(n.start >= 0 for n in p.nodes)


def test_preparing_is_no_part_of_a_run() -> None:
    nodes = [helper.make_node("Relu", ["x"], ["y"], name="relu")]
    session = ort.InferenceSession(graphs.model(nodes, [graphs.info("x", F, ("A", "B", "C", "D", "E"))],
                                                [graphs.info("y", F, None)]))
    with session.profile(compare=False) as p:
        session.run(None, {"x": np.ones((2, 3, 4, 5, 6), np.float32)})
    assert p.preparing_seconds > 0
    assert p.seconds == pytest.approx(sum(n.seconds for n in p.nodes) + p.between_seconds, rel=1e-9)


@needs("door")
def test_profiling_goes_past_the_door_and_opens_it_again(monkeypatch: pytest.MonkeyPatch) -> None:
    entered: list[bool] = []
    real: Callable[..., Any] = Engine.run

    def run(self: Engine, names: Any, feeds: Any, deadline: Any = None, record: Any = None,
            *rest: Any) -> Any:
        entered.append(record is not None)
        return real(self, names, feeds, deadline, record, *rest)
    monkeypatch.setattr(Engine, "run", run)
    session = ort.InferenceSession(api_models.add())
    feeds = {"a": np.ones((2, 3), np.float32), "b": np.ones((1, 3), np.float32)}
    for _ in range(3):
        session.run(None, feeds)
    entered.clear()
    session.run(None, feeds)
    assert entered == []
    with session.profile(compare=False) as p:
        for _ in range(4):
            np.testing.assert_array_equal(session.run(None, feeds)[0], np.full((2, 3), 2, np.float32))
        assert p.runs == 4 and entered == [True] * 4
    entered.clear()
    for _ in range(3):
        session.run(None, feeds)
    assert entered == [] and p.runs == 4
    assert session._sess._collecting == () and session._quick is session._sess._engine.quick


def test_every_way_to_run_is_taken() -> None:
    session = ort.InferenceSession(MODEL)
    name = session.get_inputs()[0].name
    image = np.zeros((1, 1, 8, 8), np.float32)
    done = threading.Event()
    with session.profile(compare=False) as p:
        session.run(None, {name: image})
        session.run(["label"], {name: image}, ort.RunOptions())
        session.run_with_ort_values(None, {name: ort.OrtValue.ortvalue_from_numpy(image)})
        binding = session.io_binding()
        binding.bind_cpu_input(name, image)
        binding.bind_output("label")
        session.run_with_iobinding(binding)
        other = threading.Thread(target=session.run, args=(None, {name: image}))
        other.start()
        other.join()
        session.run_async(None, {name: image}, lambda *_: done.set(), None)
        assert done.wait(60)
    assert p.runs == 6
    tids = {e["tid"] for e in json.loads(p.to_trace())}
    assert len(tids) == 3


def test_profiles_may_overlap_and_failures_do_not_count() -> None:
    session = ort.InferenceSession(api_models.add())
    feeds = {"a": np.ones((2, 3), np.float32), "b": np.ones((1, 3), np.float32)}
    with session.profile(compare=False) as outer:
        session.run(None, feeds)
        with pytest.raises(ZeroDivisionError), session.profile() as inner:
            session.run(None, feeds)
            with pytest.raises(Exception, match="Unexpected input"):
                session.run(None, {"a": np.ones((2, 3), np.float32), "b": np.ones(3, np.int64)})
            raise ZeroDivisionError
        session.run(None, feeds)
    assert (outer.runs, inner.runs, inner.native_seconds) == (3, 1, None)
    assert session._sess._collecting == ()


def test_a_session_may_change_or_close_while_profiled() -> None:
    session = ort.InferenceSession(MODEL)
    feeds = {session.get_inputs()[0].name: np.zeros((1, 1, 8, 8), np.float32)}
    with session.profile() as p:
        session.run(None, feeds)
        session.set_providers([("CPUExecutionProvider", {"use_codegen": "0"})])
        session.run(None, feeds)
        session.close()
    assert p.runs == 2 and p.native_seconds is None
    with pytest.raises(Exception, match="closed"):
        session.run(None, feeds)


def test_bodies_of_control_flow_have_rows_of_their_own() -> None:
    session = ort.InferenceSession(api_models.loop())
    with session.profile(compare=False) as p:
        session.run(None, {"trips": np.array(7), "x": np.ones(2, np.float32)})
    loop = next(n for n in p.nodes if n.op_type == "Loop")
    inner = [n for n in p.nodes if n.depth == 1]
    assert loop.depth == 0 and loop.calls == 1 and loop.flop == 0 and loop.share is None and loop.bound == ""
    assert inner and all(n.calls == 7 for n in inner)
    assert sum(n.flop for n in inner) >= 7 * 2
    assert loop.seconds > 0 and sum(n.seconds for n in p.nodes) <= p.seconds


def test_runs_of_several_shapes_are_averaged() -> None:
    session = ort.InferenceSession(graphs.model(
        [helper.make_node("Exp", ["x"], ["y"], name="exp")], [graphs.info("x", F, ("N",))],
        [graphs.info("y", F, ("N",))]))
    with session.profile() as p:
        for n in (10, 30):
            session.run(None, {"x": np.ones(n, np.float32)})
    (row,) = p.nodes
    assert (row.flop, row.bytes, row.calls, p.runs) == (20, 160, 2, 2)
    assert p.native_seconds is not None


def test_numpy_alone_is_profiled_too() -> None:
    session = ort.InferenceSession(_convnet(), providers=[("CPUExecutionProvider", {"use_codegen": "0"})])
    with session.profile(compare=False) as p:
        session.run(None, {"x": np.ones((1, 3, 32, 32), np.float32)})
    rows = {n.node: n for n in p.nodes}
    assert rows["first"].fused == ("first",) and rows["first"].kernel.startswith("reference")
    assert rows["first"].flop == (2 * 27 + 1) * 8 * 1024 and rows["flat"].bytes == 0


def test_random_operators_are_not_run_again() -> None:
    node = helper.make_node("RandomNormalLike", ["x"], ["y"], name="noise")
    feeds = {"x": np.zeros((2, 3), np.float32)}

    def drawn(profiled: bool) -> np.ndarray:
        ort.set_seed(3)
        session = ort.InferenceSession(graphs.model([node], ["x"], ["y"]))
        if profiled:
            with session.profile() as p:
                session.run(None, feeds)
            assert p.native_seconds is None
        else:
            session.run(None, feeds)
        return np.asarray(session.run(None, feeds)[0])
    np.testing.assert_array_equal(drawn(True), drawn(False))


def test_a_failing_step_leaves_a_trace(tmp_path: Path) -> None:
    nodes = [helper.make_node("Relu", ["x"], ["r"], name="fine"),
             helper.make_node("Gather", ["r", "i"], ["y"], name="beyond")]
    options = ort.SessionOptions()
    options.enable_profiling, options.profile_file_prefix = True, str(tmp_path / "p")
    session = ort.InferenceSession(graphs.model(nodes, ["x", graphs.info("i", I64, (1,))],
                                                [graphs.info("y", F, (1, 3))]), options)
    with pytest.raises(Exception, match="beyond"):
        session.run(None, {"x": np.ones((2, 3), np.float32), "i": np.array([9])})
    events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
    assert "model_run" in {e["name"] for e in events}


def _nested(events: list[dict[str, Any]]) -> bool:
    """Whether each event lies within those that are open when it starts."""
    for tid in {e["tid"] for e in events}:
        ends: list[int] = []
        for e in sorted((e for e in events if e["tid"] == tid), key=lambda e: (e["ts"], -e["dur"])):
            while ends and ends[-1] <= e["ts"]:
                ends.pop()
            if ends and e["ts"] + e["dur"] > ends[-1]:
                return False
            ends.append(e["ts"] + e["dur"])
    return True


def test_a_trace_has_onnxruntimes_fields_and_nests(tmp_path: Path) -> None:
    options = ort.SessionOptions()
    options.enable_profiling, options.profile_file_prefix = True, str(tmp_path / "p")
    session = ort.InferenceSession(MODEL, options)
    for _ in range(3):
        session.run(None, {session.get_inputs()[0].name: np.zeros((1, 1, 8, 8), np.float32)})
    text = Path(session.end_profiling()).read_text(encoding="utf-8")
    events = json.loads(text)
    assert len(text.splitlines()) == len(events) + 2 and _nested(events)
    fields = {"cat", "pid", "tid", "dur", "ts", "ph", "name", "args"}
    assert all(set(e) == fields and e["ph"] == "X" for e in events)
    assert all(isinstance(e[k], int) for e in events for k in ("pid", "tid", "dur", "ts"))
    nodes = [e for e in events if e["cat"] == "Node"]
    texts = {"op_name", "provider", "node_index", "parameter_size", "activation_size", "output_size",
             "thread_scheduling_stats"}
    for e in nodes:
        assert e["name"].endswith("_kernel_time") and all(isinstance(e["args"][k], str) for k in texts)
        kinds = e["args"]["input_type_shape"] + e["args"]["output_type_shape"]
        assert kinds and all(isinstance(kind, dict) for kind in kinds)
    conv = next(e for e in nodes if e["name"] == "conv2_kernel_time")
    assert conv["args"]["op_name"] == "Conv" and conv["args"]["fused_nodes"] == ["conv2", "relu2"]
    assert conv["args"]["parameter_size"] == str(4 * (32 * 16 * 9 + 32))
    assert conv["args"]["activation_size"] == str(4 * 16 * 16)
    steps = [e["args"]["step"] for e in nodes if e["name"] == "conv1_kernel_time" and "step" in e["args"]]
    assert steps == [f"{i + 1}/{len(steps) // 3}" for i in range(len(steps) // 3)] * 3
    index = {e["name"]: e["args"]["node_index"] for e in nodes}
    assert len(set(index.values())) == len(index)


def test_a_trace_of_the_same_model_by_onnxruntime(tmp_path: Path) -> None:
    theirs = pytest.importorskip("onnxruntime")
    found = []
    for engine in (ort, theirs):
        options = engine.SessionOptions()
        options.enable_profiling, options.profile_file_prefix = True, str(tmp_path / engine.__name__)
        options.intra_op_num_threads = 1
        session = engine.InferenceSession(str(MODEL), options, providers=["CPUExecutionProvider"])
        session.run(None, {session.get_inputs()[0].name: np.zeros((1, 1, 8, 8), np.float32)})
        found.append(json.loads(Path(session.end_profiling()).read_text(encoding="utf-8")))
    own, other = found
    assert {frozenset(e) for e in own} == {frozenset(e) for e in other}
    for name in ("model_loading_uri", "session_initialization", "SequentialExecutor::Execute", "model_run"):
        assert [e["cat"] for e in own if e["name"] == name] == ["Session"]
        assert [e["cat"] for e in other if e["name"] == name] == ["Session"]

    def of(events: list[dict[str, Any]], op: str) -> dict[str, Any]:
        return dict(next(e["args"] for e in events if e["args"].get("op_name") == op))
    for op in ("Mul", "Softmax", "ArgMax", "Conv"):
        a, b = of(own, op), of(other, op)
        for key in ("input_type_shape", "output_type_shape", "output_size", "activation_size",
                    "parameter_size", "provider", "thread_scheduling_stats"):
            assert a[key] == b[key], (op, key)


class _Page(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def test_a_page_is_whole_and_harmless(tmp_path: Path) -> None:
    name = '<script>alert("x")</script>&'
    model = graphs.model([helper.make_node("Add", ["a", "b"], ["c"], name=name)], ["a", "b"], ["c"])
    session = ort.InferenceSession(model)
    with session.profile(compare=False) as p:
        session.run(None, {k: np.ones((2, 3), np.float32) for k in "ab"})
    text = p.to_html(tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text(encoding="utf-8") == text
    found = _Page(text)
    assert [tag for tag, _ in found.tags].count("script") == 1 and name in found.texts
    assert "://" not in text and not any("src" in attrs or "href" in attrs for _, attrs in found.tags)
    assert [tag for tag, _ in found.tags].count("tr") == 2 + 2 + 1


def test_a_table_tells_the_slowest_first() -> None:
    session = _wide()
    feeds = {"v0": np.ones((768, 768), np.float32)}
    with session.profile() as p:
        session.run(None, feeds)
    lines = p.table().splitlines()
    assert lines[0].split()[:4] == ["node", "operator", "kernel", "ms"]
    rows = [line for line in lines if line.startswith("product")]
    slowest = [n.node for n in sorted(p.nodes, key=lambda n: -n.seconds)]
    assert [row.split()[0] for row in rows] == slowest and all("compute" in row for row in rows)
    assert any(line.startswith("between nodes ") for line in lines)
    assert any("1 run," in line and "where steps are not timed" in line for line in lines)
    assert any("GFLOP/s of float32 multiply-adds" in line for line in lines)
    short = p.table(most=1)
    assert "2 more nodes" in short and str(p) == p.table()
    data = json.loads(json.dumps(p.plain()))
    assert [n["node"] for n in data["nodes"]] == ["product0", "product1", "product2"]
    assert data["nodes"][0]["flop"] == 2 * 768 ** 3 and data["peak"]["flops"] == p.peak.flops


def test_shares_and_what_binds() -> None:
    machine = Peak(100.0, 10.0, 1)
    assert machine.share(50, 10, 1.0) == 1.0 and machine.bound(50, 10) == "memory"
    assert machine.share(200, 10, 4.0) == 0.5 and machine.bound(200, 10) == "compute"
    assert machine.share(0, 0, 1.0) is None and machine.share(10, 10, 0.0) is None


def test_the_peak_is_measured_once() -> None:
    found = peak_of(1)
    assert found is peak_of(1) and found.threads == 1
    assert found.flops > 1e8 and found.bandwidth > 1e7
    assert found.matrix is None or found.matrix > 0


def test_a_machine_without_generated_code_has_a_peak(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peaks, "host", lambda: None)
    found = peak_of.__wrapped__(1)
    assert found.flops > 1e7 and found.bandwidth > 1e6 and found.threads == 1 and found.matrix is None


def test_a_peak_that_is_kept_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    import struct

    monkeypatch.setattr(peaks.time, "time", lambda: 1000.0)
    good = struct.pack("<4d", 990.0, 2.0, 3.0, 0.0)
    assert peaks._kept(good) == (2.0, 3.0, 0.0)
    assert peaks._kept(None) is None and peaks._kept(good[:-1]) is None
    assert peaks._kept(struct.pack("<4d", 1001.0, 2.0, 3.0, 0.0)) is None
    assert peaks._kept(struct.pack("<4d", 1000.0 - 2 * 86400, 2.0, 3.0, 0.0)) is None
    assert peaks._kept(struct.pack("<4d", 990.0, 0.0, 3.0, 0.0)) is None


def test_the_command(tmp_path: Path) -> None:
    runner = CliRunner()
    page, trace = tmp_path / "p.html", tmp_path / "t.json"
    done = runner.invoke(app, ["profile", str(MODEL), "-n", "2", "--html", str(page), "--trace", str(trace)])
    assert done.exit_code == 0, done.output
    assert "conv2" in done.output and "between nodes" in done.output and "2 runs," in done.output
    assert page.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    assert _nested(json.loads(trace.read_text(encoding="utf-8")))
    done = runner.invoke(app, ["profile", str(MODEL), "-n", "2", "--threads", "1", "--shape",
                               "image=3,1,8,8", "--json"])
    data = json.loads(done.output)
    assert data["runs"] == 2 and data["peak"]["threads"] == 1
    assert data["nodes"][0]["inputs"][0] == "float[3, 1, 8, 8]"
    missing = runner.invoke(app, ["profile", str(tmp_path / "none.onnx")])
    assert missing.exit_code == 1


GIGA = {"resnet18": 3.63, "resnet50": 8.2, "mobilenetv2": 0.60}
"""Published multiply-adds of image networks at 224 x 224, twice, in 1e9."""


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(GIGA))
def test_networks_are_counted_as_published(name: str) -> None:
    session = ort.InferenceSession(build(name).SerializeToString())
    (image,) = session.get_inputs()
    with session.profile(compare=False) as p:
        session.run(None, {image.name: np.zeros((1, 3, 224, 224), np.float32)})
    assert sum(n.flop for n in p.nodes) / 1e9 == pytest.approx(GIGA[name], rel=0.05)
    served = [label for n in p.nodes for label in n.fused]
    assert len(served) == len(set(served)) == len(session._sess._engine.graph.nodes)


def test_names_are_shown_without_what_tells_nothing() -> None:
    assert brief([("/m/body/layer.1/Conv", "Conv"), ("/m/body/layer.2/Conv", "Conv"),
                  ("/m/body/head", "Gemm")]) == ["layer.1", "layer.2", "head"]
    assert brief([("/m/a/Conv", "Conv"), ("/m/a", "Relu"), ("b", "Add")]) == ["/m/a/Conv", "/m/a", "b"]
    assert brief([("/m/only/Conv", "Conv")]) == ["/m/only"] and brief([]) == []
    assert brief([(f"m/{i}/{part}/act/Relu", "Relu") for i in "12" for part in "ab"]) == [
        "1/a", "1/b", "2/a", "2/b"]
    assert brief([("a", "A"), ("a", "A"), ("", "B")]) == ["a", "a", ""]


@needs("door")
def test_a_run_with_a_deadline_is_recorded_as_any_other() -> None:
    engine = Engine(MODEL, Config())
    feeds = {v.name: np.zeros((1, 1, 8, 8), np.float32) for v in engine.inputs}
    plain: list[Any] = []
    hurried: list[Any] = []
    engine.run(None, feeds, record=plain)
    engine.run(None, feeds, Deadline(60.0), record=hurried)
    assert [e.work and e.work.label for e in hurried] == [e.work and e.work.label for e in plain]
    assert any(e.work for e in plain)
