"""Values on devices: the copies that a program needs and no other, memory given back, runs kept apart."""

import gc
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import pytest
from graphs import info, model
from onnx import TensorProto, helper
from simulated_device import SimulatedDevice, provider

import orthrus as ort
from orthrus import knobs
from orthrus.errors import EPFail, Fail, InvalidArgument
from orthrus.kernels import HOST, Kernel, copied
from orthrus.plan.program import COPY
from orthrus.run.config import Config
from orthrus.run.engine import Engine

pytestmark = pytest.mark.usefixtures("quick_collection")

X = np.linspace(-3, 3, 6, dtype=np.float32).reshape(2, 3)
W = np.arange(6, dtype=np.float32).reshape(2, 3)


@pytest.fixture
def device() -> Iterator[SimulatedDevice]:
    """A device on which nothing is left at the end."""
    made = SimulatedDevice()
    yield made
    gc.collect()
    assert made.empty, (made.counts, made.live.keys())


def node(op: str, inputs: list[str], outputs: list[str], **attrs: Any) -> onnx.NodeProto:
    return helper.make_node(op, inputs, outputs, **attrs)


def engine(proto: onnx.ModelProto, *providers: Any, **config: Any) -> Engine:
    return Engine(proto.SerializeToString(), Config(providers=list(providers), level=0, **config))


def host(proto: onnx.ModelProto) -> Engine:
    return engine(proto)


def agree(proto: onnx.ModelProto, e: Engine, feeds: dict[str, Any], times: int = 3) -> None:
    expected = host(proto).run(None, feeds)
    for _ in range(times):
        for got, want in zip(e.run(None, feeds), expected, strict=True):
            assert type(got) is np.ndarray and got.dtype == want.dtype
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def kernels(e: Engine) -> list[str]:
    return [call.kernel.name for call in e.program.calls]


CHAIN = [node("Relu", ["x"], ["a"]), node("Add", ["a", "w"], ["b"]), node("Sigmoid", ["b"], ["y"])]


@pytest.mark.parametrize(("there", "into", "out"), [
    (["Relu", "Add", "Sigmoid"], 1, 1), (["Relu"], 1, 1), (["Sigmoid"], 1, 1), (["Add"], 1, 1),
    (["Relu", "Sigmoid"], 2, 2), (["Relu", "Add"], 1, 1), ([], 0, 0)])
@pytest.mark.parametrize("fused", [False, True])
def test_exactly_the_copies_needed(device: SimulatedDevice, there: list[str], into: int, out: int,
                                   fused: bool) -> None:
    proto = model(CHAIN, ["x"], ["y"], {"w": W})
    e = engine(proto, provider(device, there, fused=fused))
    weights = int("Add" in there and not fused)
    assert device.copies == (weights, 0, 0)
    agree(proto, e, {"x": X})
    assert device.copies == (weights + 3 * into, 3 * out, 0)
    assert sum(step.kernel == COPY for step in e.program.steps) == into + out
    e.close()


def test_a_copy_is_shared_by_all_its_readers(device: SimulatedDevice) -> None:
    nodes = [node("Relu", ["x"], ["a"]), node("Sigmoid", ["x"], ["b"]), node("Sigmoid", ["a"], ["c"]),
             node("Add", ["a", "b"], ["d"]), node("Neg", ["d"], ["e"]), node("Abs", ["d"], ["f"]),
             node("Sum", ["d", "e", "f", "c"], ["y"])]
    proto = model(nodes, ["x"], ["y", "d"])
    e = engine(proto, provider(device, ["Relu", "Sigmoid", "Add"]))
    agree(proto, e, {"x": X}, times=1)
    assert device.copies == (1, 2, 0), str(e.program)
    e.close()


def test_an_initializer_is_copied_once(device: SimulatedDevice) -> None:
    """At creation, for all nodes, all choices of outputs and the bodies of control flow."""
    body = helper.make_graph([node("Add", ["a", "w"], ["p"])], "b", [], [info("p")])
    other = helper.make_graph([node("Sub", ["a", "w"], ["q"])], "c", [], [info("q")])
    nodes = [node("Add", ["x", "w"], ["a"]), node("Sub", ["a", "w"], ["s"]),
             node("If", ["c"], ["y"], then_branch=body, else_branch=other)]
    proto = model(nodes, ["x", info("c", TensorProto.BOOL, ())], ["y", "s", "w"], {"w": W})
    e = engine(proto, provider(device, ["Add", "Sub"]))
    assert device.copies == (1, 0, 0)
    for flag in (True, False):
        feeds = {"x": X, "c": np.array(flag)}
        before = device.counts["in"]
        agree(proto, e, feeds, times=1)
        e.run(["s"], feeds), e.run(["y"], feeds)
        assert device.counts["in"] - before == 3, str(e.program)
    assert e.run(["w"], feeds)[0].tolist() == W.tolist()
    e.close()


def test_a_fed_initializer_is_no_constant(device: SimulatedDevice) -> None:
    proto = model([node("Add", ["x", "w"], ["y"])], ["x", "w"], ["y"], {"w": W})
    e = engine(proto, provider(device, ["Add"]))
    agree(proto, e, {"x": X})
    agree(proto, e, {"x": X, "w": -W})
    agree(proto, e, {"x": X})
    e.close()


def test_what_a_body_captures_stays_where_it_is(device: SimulatedDevice) -> None:
    """Neither branch copies `a`, which is made on the device and read there and on the host."""
    then = helper.make_graph([node("Sigmoid", ["a"], ["p"])], "t", [], [info("p")])
    other = helper.make_graph([node("Neg", ["a"], ["q"])], "e", [], [info("q")])
    proto = model([node("Relu", ["x"], ["a"]), node("If", ["c"], ["y"], then_branch=then, else_branch=other)],
                  ["x", info("c", TensorProto.BOOL, ())], ["y"])
    e = engine(proto, provider(device, ["Relu", "Sigmoid"]))
    for flag in (True, False):
        agree(proto, e, {"x": X, "c": np.array(flag)}, times=1)
    assert device.copies == (2, 2, 0)
    e.close()


def test_loops_with_bodies_on_the_device(device: SimulatedDevice) -> None:
    body = helper.make_graph(
        [node("Add", ["s", "w"], ["t"]), node("Relu", ["t"], ["r"]), node("Mul", ["r", "x"], ["u"]),
         node("Identity", ["go"], ["on"])], "b",
        [info("i", TensorProto.INT64, ()), info("go", TensorProto.BOOL, ()), info("s")],
        [info("on", TensorProto.BOOL, ()), info("r"), info("u")])
    proto = model([node("Sigmoid", ["x"], ["s0"]), node("Loop", ["n", "", "s0"], ["last", "all"], body=body)],
                  ["x"], [info("last"), info("all", shape=None)],
                  {"w": W, "n": np.array(3)})
    for there in (["Add", "Relu"], ["Relu", "Sigmoid"], ["Add", "Mul"], ["Sigmoid", "Add", "Relu", "Mul"]):
        e = engine(proto, provider(device, there))
        agree(proto, e, {"x": X})
        e.close()


def test_strings_and_sequences_stay_on_the_host(device: SimulatedDevice) -> None:
    texts = np.array([["a", "b"]], object)
    nodes = [node("Identity", ["x"], ["z"]), node("SequenceConstruct", ["z", "x"], ["s"]),
             node("Concat", ["t", "t"], ["u"], axis=0)]
    proto = model(nodes, ["x", info("t", TensorProto.STRING, (1, 2))], [
        helper.make_tensor_sequence_value_info("s", TensorProto.FLOAT, None),
        info("u", TensorProto.STRING, None)])
    e = engine(proto, provider(device, ["Identity"]))
    made, text = e.run(None, {"x": X, "t": texts})
    assert all(np.array_equal(each, X) for each in made) and text.tolist() == [["a", "b"]] * 2
    e.close()


@pytest.mark.parametrize("across", [False, True])
def test_two_devices(across: bool) -> None:
    one, two = SimulatedDevice(0, across), SimulatedDevice(1, across)
    proto = model([*CHAIN, node("Neg", ["y"], ["z"])], ["x"], ["z", "b"], {"w": W})
    e = engine(proto, provider(one, ["Relu", "Neg"], "OneExecutionProvider"),
               provider(two, ["Add", "Sigmoid"], "TwoExecutionProvider"))
    agree(proto, e, {"x": X}, times=1)
    assert (one.copies, two.copies) == (((1, 1, 1), (1, 1, 1)) if across else ((2, 2, 0), (2, 2, 0)))
    e.close()
    gc.collect()
    assert one.empty and two.empty


def test_feeds_and_results_on_the_device_are_not_copied(device: SimulatedDevice) -> None:
    proto = model(CHAIN, ["x"], ["y", "b"], {"w": W})
    e = engine(proto, provider(device, ["Relu", "Add", "Sigmoid"]))
    want = host(proto).run(None, {"x": X})
    x, before = copied(X, device), device.copies[0]
    for _ in range(3):
        y, b = e.run(None, {"x": x}, targets=[device, HOST])
        assert y.device is device and np.allclose(device.read(y), want[0]) and np.allclose(b, want[1])
    assert device.copies == (before, 3, 0)
    (y,) = e.run(["y"], {"x": x}, targets=[device])
    assert device.copies == (before, 3, 0)
    np.testing.assert_allclose(e.run(["y"], {"x": y})[0], host(proto).run(["y"], {"x": want[0]})[0], 1e-6)
    del x, y
    e.close()


def test_a_result_on_the_device_is_the_callers_own(device: SimulatedDevice) -> None:
    """Not memory of a feed, of a constant, nor of another result."""
    nodes = [node("Identity", ["x"], ["same"]), node("Identity", ["w"], ["k"]), node("Relu", ["x"], ["r"]),
             node("Identity", ["r"], ["twin"])]
    e = engine(model(nodes, ["x"], ["same", "k", "r", "twin"], {"w": W}),
               provider(device, ["Identity", "Relu"]))
    x = copied(X, device)
    for _ in range(2):
        made = e.run(None, {"x": x}, targets=[device] * 4)
        assert len({id(each.memory) for each in (*made, x)}) == 5
        for each in made:
            device.copy_in(np.full((2, 3), 99, np.float32), each.handle)
    same, k, r, twin = e.run(None, {"x": x})
    assert (same == X).all() and (k == W).all() and (r == np.maximum(X, 0)).all() and (twin == r).all()
    (w,) = e.run(["k"], {"x": x}, targets=[device])
    assert (device.read(w) == W).all()
    del x, made, each, w
    e.close()


def test_a_feed_of_a_device_that_the_session_has_not_got(device: SimulatedDevice) -> None:
    proto = model(CHAIN, ["x"], ["y"], {"w": W})
    x = copied(X, device)
    (y,) = host(proto).run(None, {"x": x})
    np.testing.assert_array_equal(y, host(proto).run(None, {"x": X})[0])
    with pytest.raises(InvalidArgument, match="Unexpected input data type"):
        host(proto).run(None, {"x": copied(X.astype(np.float64), device)})
    with pytest.raises(InvalidArgument, match="Got invalid dimensions"):
        host(proto).run(None, {"x": copied(X.T, device)})
    del x


def test_memory_is_given_back_when_a_step_raises(device: SimulatedDevice) -> None:
    nodes = [node("Relu", ["x"], ["a"]), node("Sigmoid", ["a"], ["b"]),
             node("Reshape", ["b", "to"], ["y"], name="bad")]
    for there in (["Relu", "Sigmoid"], ["Relu", "Sigmoid", "Reshape"]):
        e = engine(model(nodes, ["x", info("to", TensorProto.INT64, (1,))], [info("y", shape=None)]),
                   provider(device, there))
        for _ in range(3):
            with pytest.raises(Fail, match="bad"):
                e.run(None, {"x": X, "to": np.array([7])})
            assert device.empty
            assert e.run(None, {"x": X, "to": np.array([6])})[0].shape == (6,)
        e.close()


def test_a_body_that_raises_gives_back_its_memory(device: SimulatedDevice) -> None:
    body = helper.make_graph([node("Relu", ["x"], ["a"]), node("Reshape", ["a", "to"], ["y"], name="bad")],
                             "b", [], [info("y", shape=None)])
    other = helper.make_graph([node("Neg", ["x"], ["q"])], "e", [], [info("q")])
    proto = model([node("If", ["c"], ["z"], then_branch=body, else_branch=other)],
                  ["x", info("c", TensorProto.BOOL, ()), info("to", TensorProto.INT64, (1,))],
                  [info("z", shape=None)])
    e = engine(proto, provider(device, ["Relu"]))
    with pytest.raises(Fail, match="bad"):
        e.run(None, {"x": X, "c": np.array(True), "to": np.array([7])})
    assert device.empty
    e.close()


def test_too_little_memory_names_the_copy() -> None:
    device = SimulatedDevice(most=100)
    big = np.zeros((64, 64), np.float32)
    shape = ["n", "m"]
    e = engine(model([node("Relu", ["x"], ["y"])], [info("x", shape=shape)], [info("y", shape=shape)]),
               provider(device, ["Relu"]))
    with pytest.raises(Fail, match=r"running MemcpyToDevice node. Name:'Memcpy of x .*Failed to allocate"):
        e.run(None, {"x": big})
    assert e.run(None, {"x": X})[0].shape == (2, 3)
    e.close()
    assert device.empty


def test_memory_is_let_go_of_behind_its_last_reader(device: SimulatedDevice) -> None:
    nodes = [node("Relu", [f"v{i}"], [f"v{i + 1}"]) for i in range(20)]
    e = engine(model(nodes, ["v0"], ["v20"]), provider(device, ["Relu"]))
    most, ordinary = [0], device.allocate

    def allocate(size: int) -> int:
        handle = ordinary(size)
        most[0] = max(most[0], len(device.live))
        return handle
    device.allocate = allocate  # type: ignore[method-assign]
    e.run(None, {"v0": X})
    assert most[0] == 2
    e.close()


@pytest.mark.parametrize("parallel", [False, True])
def test_threads_and_sessions_do_not_mix(device: SimulatedDevice, parallel: bool) -> None:
    proto = model([*CHAIN, node("Neg", ["b"], ["z"])], ["x"], ["y", "z"], {"w": W})
    engines = [engine(proto, provider(device, ["Relu", "Sigmoid"]), parallel=parallel),
               engine(proto, provider(device, ["Add", "Neg"]), parallel=parallel)]
    plain, wrong = host(proto), []

    def work(k: int) -> None:
        x = np.full((2, 3), k, np.float32)
        want = plain.run(None, {"x": x})
        for i in range(30):
            fed = copied(x, device) if i % 3 == 0 else x
            got = engines[i % 2].run(None, {"x": fed}, targets=[device, HOST] if i % 5 == 0 else ())
            y = device.read(got[0]) if i % 5 == 0 else got[0]
            if not (np.allclose(y, want[0]) and np.allclose(got[1], want[1])):
                wrong.append(k)
    threads = [threading.Thread(target=work, args=(k,)) for k in range(6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong
    for e in engines:
        e.close()
    del e
    engines.clear()


@pytest.mark.parametrize("check", [{"CHECK": 2}, {"DEBUG": 2}])
def test_watched_runs(device: SimulatedDevice, check: dict[str, int], tmp_path: Any) -> None:
    proto = model(CHAIN, ["x"], ["y"], {"w": W})
    e = engine(proto, provider(device, ["Relu", "Sigmoid"]))
    with knobs.setting(**check):
        agree(proto, e, {"x": X})
    record: list[Any] = []
    e.run(None, {"x": X}, record=record)
    copies = [event.work.node.op_type for event in record if event.work
              and event.work.kernel.startswith("copy to")]
    assert copies == ["MemcpyToDevice", "MemcpyToHost", "MemcpyToDevice", "MemcpyToHost"]
    e.close()
    with knobs.setting(DUMP=str(tmp_path), DUMP_WHAT="tensors"):
        e = engine(proto, provider(device, ["Relu", "Sigmoid"]))
        e.run(None, {"x": X})
        e.close()
    written = {path.name.partition("_")[2]: np.load(path) for path in tmp_path.rglob("*.npy")}
    np.testing.assert_array_equal(written["Relu_0.npy"], np.maximum(X, 0))


def test_results_elsewhere_than_said(device: SimulatedDevice) -> None:
    it = provider(device, ["Relu"])
    it.compile = lambda part: [Kernel(lambda x: X, "astray") for _ in part.nodes]  # type: ignore[method-assign]
    e = engine(model([node("Relu", ["x"], ["y"], name="lost")], ["x"], ["y"]), it)
    with pytest.raises(EPFail, match=r"lost.*another device"):
        e.run(None, {"x": X})
    e.close()


def test_numpy_cannot_read_a_devices_array(device: SimulatedDevice) -> None:
    x = copied(X, device)
    for read in (np.asarray, np.negative, lambda a: a + X, lambda a: X + a, np.sum):
        with pytest.raises(TypeError):
            read(x)
    assert x.shape == (2, 3) and x.nbytes == 24 and str(x) == "<float32[2, 3] on simulated:0>"
    del x


def test_the_program_is_numbers(device: SimulatedDevice) -> None:
    """Copies are steps; nothing in a step is more than a number."""
    e = engine(model(CHAIN, ["x"], ["y"], {"w": W}), provider(device, ["Add"]))
    rows = [(s.kernel, s.reads, s.writes, s.frees, s.device) for s in e.program.steps]
    assert kernels(e) == [kernels(e)[0], "copy to simulated:0", "simulated Add",
                          "copy to cpu:0", kernels(e)[4]]
    assert all(isinstance(n, int) for row in rows for cell in row
               for n in (cell if isinstance(cell, tuple) else (cell,)))
    assert [row[4] for row in rows] == [0, 1, 1, 0, 0]
    e.close()


def test_folding_and_every_level(device: SimulatedDevice) -> None:
    """Whole models, optimized as a session would, split between the host and the device."""
    rng = np.random.default_rng(0)
    weights = {"k": rng.standard_normal((4, 3, 3, 3)), "b": rng.standard_normal(4),
               "m": rng.standard_normal((4, 5))}
    nodes = [node("Conv", ["x", "k", "b"], ["c"], pads=[1] * 4), node("Relu", ["c"], ["r"]),
             node("GlobalAveragePool", ["r"], ["g"]), node("Flatten", ["g"], ["f"]),
             node("MatMul", ["f", "m"], ["p"]), node("Softmax", ["p"], ["y"])]
    proto = model(nodes, [info("x", shape=["n", 3, 8, 8])], [info("y", shape=["n", 5])],
                  {k: v.astype(np.float32) for k, v in weights.items()})
    feeds = {"x": rng.standard_normal((2, 3, 8, 8)).astype(np.float32)}
    (want,) = host(proto).run(None, feeds)
    for there in (["Conv"], ["Conv", "Relu"], ["MatMul", "Softmax"], ["Relu", "Flatten", "Softmax"],
                  ["Conv", "Relu", "GlobalAveragePool", "Flatten", "MatMul", "Softmax"]):
        for fused in (False, True):
            for level in (0, 99):
                e = Engine(proto.SerializeToString(), Config(
                    providers=[provider(device, there, fused=fused)], level=level))
                for _ in range(2):
                    np.testing.assert_allclose(e.run(None, feeds)[0], want, rtol=1e-4, atol=1e-5)
                e.close()


@pytest.fixture
def session(device: SimulatedDevice) -> Iterator[ort.InferenceSession]:
    """A session of `CHAIN` whose first and last nodes are on the device, `b` on the host."""
    kind = type(provider(device, ["Relu", "Sigmoid"]))
    ort.register_execution_provider(kind)
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    proto = model(CHAIN, ["x"], ["y", "b"], {"w": W})
    made = ort.InferenceSession(proto.SerializeToString(), options, providers=[kind.name])
    yield made
    made.close()
    ort.unregister_execution_provider_library(kind.name)


def expected() -> list[np.ndarray]:
    return host(model(CHAIN, ["x"], ["y", "b"], {"w": W})).run(None, {"x": X})


def test_bound_values_stay_on_the_device(device: SimulatedDevice, session: ort.InferenceSession) -> None:
    x = ort.OrtValue.ortvalue_from_numpy(X, "npu", 0)
    y = session.create_ortvalue_from_shape_and_type([2, 3], np.float32, "npu")
    assert x.device_name() == y.device_name() == "simulated" and x.data_type() == "tensor(float)"
    assert x.shape() == [2, 3] and x.is_tensor() and x.tensor_size_in_bytes() == 24
    binding, handle = session.io_binding(), y.data_ptr()
    binding.bind_ortvalue_input("x", x)
    binding.bind_ortvalue_output("y", y)
    binding.bind_output("b", "cpu")
    before = device.copies
    for _ in range(2):
        session.run_with_iobinding(binding)
    # `a` goes to the host, `b` to the device; `y` is written to the memory bound
    assert [n - m for n, m in zip(device.copies, before, strict=True)] == [2, 2, 2]
    assert y.data_ptr() == handle and device.copies == (before[0] + 2, before[1] + 2, before[2] + 2)
    for got, want in zip(binding.copy_outputs_to_cpu(), expected(), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-6)
    np.testing.assert_allclose(y.numpy(), expected()[0], rtol=1e-6)


def test_a_result_on_the_device_is_fed_again(device: SimulatedDevice, session: ort.InferenceSession) -> None:
    binding = session.io_binding()
    binding.bind_cpu_input("x", X)
    binding.bind_output("y", "npu")
    session.run_with_iobinding(binding)
    (y,) = binding.get_outputs()
    assert y.device_name() == "simulated"
    before = device.copies
    again = session.run(["y"], {"x": y})[0]
    assert device.copies == (before[0] + 1, before[1] + 2, before[2])
    np.testing.assert_allclose(again, host(model(CHAIN, ["x"], ["y"], {"w": W})).run(
        None, {"x": expected()[0]})[0], rtol=1e-6)
    y.update_inplace(X)
    np.testing.assert_array_equal(y.numpy(), X)
    other = ort.OrtValue.ortvalue_from_numpy(np.zeros((2, 3), np.float32))
    ort.copy_tensors([y], [other])
    np.testing.assert_array_equal(other.numpy(), X)
    with pytest.raises(RuntimeError, match="DLPack"):
        y.__dlpack__()


def test_every_way_to_run(device: SimulatedDevice, session: ort.InferenceSession) -> None:
    found: list[Any] = []
    done = threading.Event()

    def callback(results: Any, _: Any, error: str) -> None:
        found.append((results, error))
        done.set()
    session.run_async(None, {"x": X}, callback, None)
    assert done.wait(60) and not found[0][1]
    with session.profile(compare=False) as profile:
        watched = session.run(None, {"x": X})
    assert "MemcpyToDevice" in profile.table()
    fed = {"x": ort.OrtValue.ortvalue_from_numpy(X)}
    values = [v.numpy() for v in session.run_with_ort_values(None, fed)]
    for made in (found[0][0], watched, values, session.run(None, {"x": X}, ort.RunOptions())):
        for got, want in zip(made, expected(), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-6)
    binding = session.io_binding()
    binding.bind_ortvalue_input("x", fed["x"])
    with pytest.raises(RuntimeError):
        binding.bind_input("x", "cuda", 0, np.float32, [2, 3], 4096)
