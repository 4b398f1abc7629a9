"""Capability to parts: priority, reasons, fused parts, control flow, fallback."""

import os
import pathlib
import subprocess
import sys
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import onnx
import pytest
from graphs import chain, info, model
from onnx import TensorProto, helper

import orthrus as ort
from orthrus import knobs, providers
from orthrus.errors import EPFail, Fail, InvalidArgument
from orthrus.errors import NotImplemented as NotImplementedFail
from orthrus.ir import No, Node
from orthrus.kernels import Kernel, OpKernelInfo
from orthrus.ops import define
from orthrus.providers import Capability, ExecutionProvider, GraphView, Option, Part, flag
from orthrus.run.config import Config
from orthrus.run.engine import Engine

X = np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3)


class Doubling(ExecutionProvider):
    """Claims Relu, by a kernel that also doubles, so that a test sees who ran."""

    name = "DoublingExecutionProvider"


@Doubling.kernel("Relu", since=6)
def relu_doubled(info: OpKernelInfo) -> Any:
    return lambda x: np.maximum(x, 0) * 2


class Fusing(ExecutionProvider):
    """Claims Relu and Neg and compiles each part into one function."""

    name = "FusingExecutionProvider"
    fuses = True
    options: ClassVar = {"scale": Option(float, 1.0, "factor on every result"),
                         "quiet": Option(flag, False, "nothing")}
    parts: ClassVar[list[Part]] = []

    def claim(self, node: Node) -> No | None:
        return None if node.op_type in ("Relu", "Neg") else No(f"{node.op_type} is not mine")

    def compile(self, part: Part) -> Sequence[Kernel | No]:
        self.parts.append(part)

        def run(*arrays: np.ndarray) -> Any:
            known: dict[Any, Any] = dict(zip(part.inputs, arrays, strict=True))
            for node in part.nodes:
                x = known[node.inputs[0]]
                known[node.outputs[0]] = np.maximum(x, 0) if node.op_type == "Relu" else -x
            results = tuple(known[v] * np.float32(self.settings["scale"]) for v in part.outputs)
            return results[0] if len(results) == 1 else results
        return [Kernel(run, "fused")]


@pytest.fixture(autouse=True)
def _fresh() -> None:
    Fusing.parts.clear()


def diamond() -> onnx.ModelProto:
    """y = relu(x) + sigmoid(relu(x)), z = -y: Sigmoid and Add stand between two claimed nodes."""
    return model([
        helper.make_node("Relu", ["x"], ["r"], name="relu"),
        helper.make_node("Sigmoid", ["r"], ["s"], name="sig"),
        helper.make_node("Neg", ["r"], ["m"], name="neg1"),
        helper.make_node("Add", ["m", "s"], ["y"], name="add"),
        helper.make_node("Neg", ["y"], ["z"], name="neg2")], ["x"], ["z", "m"])


def engine(proto: onnx.ModelProto, *given: ExecutionProvider, **config: Any) -> Engine:
    return Engine(proto.SerializeToString(), Config(providers=list(given), **{"level": 0, **config}))


def test_priority_and_reasons() -> None:
    e = engine(chain(1), Fusing(), Doubling())
    assert e.explain()["Relu_0"].provider == "FusingExecutionProvider"
    e = engine(chain(1, "Sigmoid"), Fusing(), Doubling())
    report = e.explain()["Sigmoid_0"]
    assert report.provider == "CPUExecutionProvider"
    assert [str(r) for r in report.refusals] == [
        "FusingExecutionProvider: Sigmoid is not mine", "DoublingExecutionProvider: Kernel not found"]
    assert "not FusingExecutionProvider: Sigmoid is not mine" in str(e.explain())


def test_a_registered_kernel_runs() -> None:
    np.testing.assert_array_equal(engine(chain(1), Doubling()).run(None, {"v0": X})[0], np.maximum(X, 0) * 2)


def test_fused_parts_are_convex_and_named() -> None:
    e = engine(diamond(), Fusing({"scale": "1"}))
    z, m = e.run(None, {"x": X})
    r = np.maximum(X, 0)
    np.testing.assert_allclose(m, -r)
    np.testing.assert_allclose(z, -(-r + 1 / (1 + np.exp(-r))), rtol=3e-6)
    assert [[n.name for n in part.nodes] for part in Fusing.parts] == [["relu", "neg1"], ["neg2"]]
    first = e.explain()["relu"].part
    prefix, digest, *counters = first.rsplit("_", 3)
    assert prefix == "FusingExecutionProvider_Fusing" and digest.isdigit() and counters == ["0", "0"]


def test_a_cyclic_capability_is_refused() -> None:
    class Greedy(Fusing):
        name = "GreedyExecutionProvider"

        def get_capability(self, view: GraphView) -> list[Capability]:
            return [Capability([n for n in view.nodes if n.op_type in ("Relu", "Neg")], "Greedy")]

    with pytest.raises(EPFail, match="would wait for itself"):
        engine(diamond(), Greedy())


class Drawn(ExecutionProvider):
    """Claims the nodes whose names begin with its letter, and compiles parts into functions of numpy's."""

    fuses = True

    def claim(self, node: Node) -> No | None:
        return None if node.name.startswith(self.name[0]) else No("another's")

    def compile(self, part: Part) -> Sequence[Kernel | No]:
        def run(*arrays: np.ndarray) -> Any:
            known: dict[Any, Any] = dict(zip(part.inputs, arrays, strict=True))
            for node in part.nodes:
                known[node.outputs[0]] = np.add(*(known[v] for v in node.inputs))
            results = tuple(known[v] for v in part.outputs)
            return results[0] if len(results) == 1 else results
        return [Kernel(run, "drawn")]


class First(Drawn):
    name = "FirstExecutionProvider"


class Second(Drawn):
    name = "SecondExecutionProvider"


@pytest.mark.parametrize("seed", [10, 24, 30, 50, 54, *range(10)])
def test_parts_of_several_providers_do_not_wait_for_each_other(seed: int) -> None:
    """Sums of earlier values, each claimed by one of two providers or left to the CPU's. Of the first five
    graphs, parts that are convex each would wait for each other."""
    rng = np.random.default_rng(seed)
    feeds = {f"x{i}": X * i for i in range(4)}
    known, nodes = dict(feeds), []
    for i in range(24):
        a, b = rng.choice(list(known)[-8:], 2)
        nodes.append(helper.make_node("Add", [a, b], [f"v{i}"], name=f"{rng.choice(list('FSC'))}{i}"))
        known[f"v{i}"] = known[a] + known[b]
    results = [f"v{i}" for i in range(12, 24)]
    for given in ((First(), Second()), (Second(), First())):
        made = engine(model(nodes, list(feeds), results), *given)
        for name, y in zip(results, made.run(None, feeds), strict=True):
            np.testing.assert_allclose(y, known[name], rtol=1e-6)
        for node in nodes:
            assert made.explain()[node.name].provider[0] == node.name[0]


def test_wrong_number_of_kernels() -> None:
    class Lazy(Fusing):
        name = "LazyExecutionProvider"

        def compile(self, part: Part) -> Sequence[Kernel | No]:
            return []

    with pytest.raises(EPFail, match="did not return correct number of compiled functions"):
        engine(chain(1), Lazy())


def test_bodies_are_partitioned() -> None:
    relu = helper.make_node("Relu", ["x"], ["t"], name="inner")
    sigmoid = helper.make_node("Sigmoid", ["x"], ["e"], name="outer")
    body = helper.make_graph([relu], "then", [], [info("t")])
    other = helper.make_graph([sigmoid], "else", [], [info("e")])
    proto = model([helper.make_node("If", ["c"], ["y"], name="if", then_branch=body, else_branch=other)],
                  [info("c", TensorProto.BOOL, ()), "x"], ["y"])
    e = engine(proto, Doubling())
    assert e.explain()["inner"].provider == "DoublingExecutionProvider"
    assert e.explain()["outer"].provider == "CPUExecutionProvider"
    assert e.explain()["if"].provider == "CPUExecutionProvider"
    np.testing.assert_array_equal(e.run(None, {"c": np.array(True), "x": X})[0], np.maximum(X, 0) * 2)
    (y,) = e.run(None, {"c": np.array(False), "x": X})
    np.testing.assert_allclose(y, 1 / (1 + np.exp(-X)), rtol=1e-6)


def test_fallback_as_an_error() -> None:
    with pytest.raises(Fail, match="2 of 5 nodes fell back") as caught:
        engine(diamond(), Fusing(), fallback="error")
    assert "FusingExecutionProvider: Sigmoid is not mine" in caught.value.found
    assert engine(chain(2), Fusing(), fallback="error").explain().providers == {"FusingExecutionProvider": 2}


def test_fallback_as_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    engine(diamond(), Fusing(), fallback="warn")
    assert "2 of 5 nodes fell back" in caplog.text


def test_options_are_declared() -> None:
    with pytest.raises(InvalidArgument, match="has no option 'sclae'") as caught:
        Fusing({"sclae": "2"})
    assert caught.value.expected == "scale, quiet"
    with pytest.raises(InvalidArgument, match="cannot be read"):
        Fusing({"quiet": "maybe"})
    assert Fusing({"scale": 3}).settings == {"scale": 3.0, "quiet": False}


TIMES = [(name, key) for name, cls in providers.known().items() for key, option in cls.options.items()
         if "seconds" in option.doc and isinstance(option.default, float)]


@pytest.mark.parametrize("name, key", TIMES)
@pytest.mark.parametrize("text", ["inf", "1e300", "1e10", "3e6"])
def test_any_time_is_one_that_the_system_can_wait(name: str, key: str, text: str) -> None:
    """Which takes milliseconds in 32 bits."""
    assert 0 < 1000 * providers.known()[name].options[key].read(text) < 1 << 31


def test_registration() -> None:
    providers.register(Fusing)
    try:
        assert "FusingExecutionProvider" in providers.available()
        assert providers.available()[-1] == "CPUExecutionProvider"
        assert isinstance(providers.create("FusingExecutionProvider", {"scale": "2"}), Fusing)
        with pytest.raises(Fail, match="has already been registered"):
            providers.register(type("Other", (ExecutionProvider,), {"name": Fusing.name}))
    finally:
        providers.unregister(Fusing.name)
    with pytest.raises(InvalidArgument, match="Unknown Provider Type"):
        providers.create(Fusing.name)
    with pytest.raises(InvalidArgument, match="a class with a name"):
        providers.register(int)  # type: ignore[arg-type]


def test_a_provider_that_cannot_work_here_is_not_available() -> None:
    class Absent(ExecutionProvider):
        name = "AbsentExecutionProvider"

        @classmethod
        def probe(cls) -> No | None:
            return No("no such device")

    providers.register(Absent)
    try:
        assert Absent.name not in providers.available()
        with pytest.raises(EPFail, match="no such device"):
            providers.create(Absent.name)
    finally:
        providers.unregister(Absent.name)


def test_run_hooks() -> None:
    seen: list[str] = []

    class Hooked(Doubling):
        name = "HookedExecutionProvider"

        def on_run_start(self) -> None:
            seen.append("start")

        def on_run_end(self) -> None:
            seen.append("end")

    engine(chain(1), Hooked()).run(None, {"v0": X})
    assert seen == ["start", "end"]


def test_null_provider_computes_nothing() -> None:
    e = engine(chain(3), providers.create("NullExecutionProvider"))
    np.testing.assert_array_equal(e.run(None, {"v0": X})[0], np.zeros_like(X))
    assert e.explain().providers == {"NullExecutionProvider": 3}


def test_nobody_takes_it() -> None:
    define.define(lambda x: x, name="Nothing", domain="test.partition")
    node = helper.make_node("Nothing", ["x"], ["y"], domain="test.partition", name="n")
    proto = model([node], ["x"], ["y"], domains={"test.partition": 1})
    e = engine(proto)
    try:
        np.testing.assert_array_equal(e.run(None, {"x": X})[0], X)
    finally:
        define.forget("test.partition", "Nothing")
    with pytest.raises((Fail, NotImplementedFail)):
        engine(proto)


def test_a_kernel_that_computes_otherwise_is_found() -> None:
    e = engine(chain(2, "Relu"), Doubling())
    e.run(None, {"v0": X})
    with knobs.setting(CHECK=2):
        with pytest.raises(EPFail, match="DoublingExecutionProvider computes %v1 otherwise") as caught:
            e.run(None, {"v0": X})
        assert "Relu_0" in str(caught.value.node)
        z, _ = engine(diamond(), Fusing()).run(None, {"x": X})
    assert z.shape == X.shape


def test_debug_reports_placement_and_steps(caplog: pytest.LogCaptureFixture) -> None:
    ort.set_default_logger_severity(1)
    try:
        with caplog.at_level("INFO", "orthrus"), knobs.setting(DEBUG=2):
            engine(chain(2, "Relu"), Doubling()).run(None, {"v0": X})
    finally:
        ort.set_default_logger_severity(2)
    assert "2 nodes: 2 on DoublingExecutionProvider" in caplog.text
    assert caplog.text.count(" us  ") == 2


def test_a_package_offers_a_provider_by_entry_point(tmp_path: pathlib.Path) -> None:
    """An installed package is a module with metadata beside it; what does not load is reported."""
    (tmp_path / "offered.py").write_text("import orthrus\n\n\nclass Offered(orthrus.ExecutionProvider):\n"
                                         "    name = 'OfferedExecutionProvider'\n")
    metadata = tmp_path / "offered-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: offered\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(
        "[orthrus.providers]\nOffered = offered:Offered\nBroken = offered:Nothing\n")
    script = ("import orthrus; from orthrus.providers import _OWN; "
              "print([p for p in orthrus.get_available_providers() if p not in _OWN]); "
              "print(orthrus.InferenceSession(__import__('graphs').add().SerializeToString(), "
              "providers=['OfferedExecutionProvider']).get_providers())")
    paths = os.pathsep.join([str(tmp_path), str(pathlib.Path(__file__).parents[1] / "support")])
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True,
                          env={**os.environ, "PYTHONPATH": paths})
    both = "['OfferedExecutionProvider', 'CPUExecutionProvider']"
    assert done.stdout.split("\n")[:2] == [both, both], done.stderr
    assert "provider Broken from offered:Nothing does not load" in done.stderr
