"""What a provider that compiles may do: give a part back, keep compiled parts in a model, begin runs without
waiting. Shown with a provider of a few lines, so that no engine has to be installed."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from graphs import info, model
from onnx import helper

import orthrus as ort
from orthrus import providers
from orthrus.errors import EPFail, Fail
from orthrus.errors import NotImplemented as NotImplementedFail
from orthrus.ir import No, Node
from orthrus.kernels import Kernel, Part, Stored
from orthrus.providers.base import ExecutionProvider, Option

X = np.array([[-1, 2, -3], [4, -5, 6]], np.float32)


class Doubling(ExecutionProvider):
    """Relu and Neg, computed as they are told: `declines` gives every part back."""

    name = "DoublingExecutionProvider"
    fuses = True
    target_option = "machine"
    options = {"declines": Option(str, "", "why parts are given back"),
               "machine": Option(str, "here", "the machine to compile for")}

    def claim(self, node: Node) -> No | None:
        return None if node.op_type in ("Relu", "Neg") else No("only Relu and Neg")

    def compile(self, part: Part) -> Sequence[Kernel | No]:
        if why := self.settings["declines"]:
            return [No(why)]
        return [self._kernel([node.op_type for node in part.nodes])]

    def store(self, part: Part) -> Stored | No:
        if len(part.nodes) > 3:
            return No("too long")
        names = [node.op_type for node in part.nodes]
        return Stored(json.dumps(names).encode() + b"\xff\x00", "1.0", self.settings["machine"])

    def load(self, part: Part, stored: Stored) -> Kernel | No:
        if stored.target != "here":
            return No(f"it is for {stored.target}")
        return self._kernel(json.loads(stored.data.removesuffix(b"\xff\x00")))

    @staticmethod
    def _kernel(operators: Sequence[str]) -> Kernel:
        def run(x: np.ndarray) -> np.ndarray:
            for operator in operators:
                x = np.maximum(x, 0) if operator == "Relu" else -x
            return x

        def start(x: np.ndarray) -> Callable[[], np.ndarray]:
            made: list[np.ndarray] = []
            thread = threading.Thread(target=lambda: made.append(run(x)))
            thread.start()

            def wait() -> np.ndarray:
                thread.join()
                return made[0]
            return wait
        run.start = start  # type: ignore[attr-defined]
        return Kernel(run, f"toy for {len(operators)}")


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    providers.register(Doubling)
    yield
    providers.unregister(Doubling.name)


def chain(*operators: str, open_shape: bool = False) -> onnx.ModelProto:
    """The operators one after the other. The CPU provider keeps compiled parts of known shapes only."""
    nodes = [helper.make_node(op, [f"v{i}"], [f"v{i + 1}"], name=f"{op.lower()}{i}")
             for i, op in enumerate(operators)]
    ends = [info(name, shape=["N", "M"]) if open_shape else info(name) for name in ("v0", f"v{len(nodes)}")]
    return model(nodes, ends[:1], ends[1:])


def session(proto: onnx.ModelProto, fallback: str = "allow", **options: str) -> ort.InferenceSession:
    return ort.InferenceSession(proto.SerializeToString(), providers=[(Doubling.name, options)],
                                fallback=fallback)


def test_a_part_that_is_given_back_runs_elsewhere() -> None:
    proto = chain("Relu", "Neg", "Exp", "Neg")
    made = session(proto, declines="out of order")
    assert {node.provider for node in made.explain()} == {"CPUExecutionProvider"}
    refusals = [str(r) for r in made.explain()["relu0"].refusals]
    assert refusals == ["DoublingExecutionProvider: out of order"]
    np.testing.assert_allclose(made.run(None, {"v0": X})[0], -np.exp(-np.maximum(X, 0)), 1e-6)
    with pytest.raises(Fail, match="4 of 4 nodes fell back"):
        session(proto, "error", declines="out of order")


def test_a_part_that_is_given_back_may_go_to_a_third_provider() -> None:
    class Third(Doubling):
        name = "ThirdExecutionProvider"

    providers.register(Third)
    try:
        made = ort.InferenceSession(chain("Relu", "Neg").SerializeToString(), providers=[
            (Doubling.name, {"declines": "no"}), Third.name])
        assert {node.provider for node in made.explain()} == {Third.name}
        np.testing.assert_array_equal(made.run(None, {"v0": X})[0], -np.maximum(X, 0))
    finally:
        providers.unregister(Third.name)


def compiled(tmp_path: Path, proto: onnx.ModelProto, embed: bool = False, **options: str) -> Path:
    settings = ort.SessionOptions()
    settings.add_provider(Doubling.name, options)
    path = tmp_path / "compiled.onnx"
    ort.ModelCompiler(settings, proto.SerializeToString(), embed).compile_to_file(str(path))
    return path


@pytest.mark.parametrize("embed", [False, True])
def test_compiled_parts_are_kept_in_a_model(tmp_path: Path, embed: bool) -> None:
    proto = chain("Relu", "Neg", "Exp", "Neg", open_shape=True)
    path = compiled(tmp_path, proto, embed)
    nodes = onnx.load(path).graph.node
    assert [node.op_type for node in nodes] == ["EPContext", "Exp", "EPContext"]
    assert len(list(tmp_path.glob("*.bin"))) == (0 if embed else 2)
    made = ort.InferenceSession(path, providers=[Doubling.name], trust=True)
    np.testing.assert_allclose(made.run(None, {"v0": X})[0], -np.exp(-np.maximum(X, 0)), 1e-6)
    with pytest.raises(NotImplementedFail, match="compiled for DoublingExecutionProvider"):
        ort.InferenceSession(path)


def test_a_session_writes_what_it_compiled(tmp_path: Path) -> None:
    onnx.save(chain("Relu", "Exp"), tmp_path / "m.onnx")
    options = ort.SessionOptions()
    for key, value in {"enable": "1", "embed_mode": "1", "node_name_prefix": "pre_"}.items():
        options.add_session_config_entry(f"ep.context_{key}", value)
    whole = ort.InferenceSession(tmp_path / "m.onnx", options, providers=[Doubling.name])
    made = onnx.load(tmp_path / "m_ctx.onnx")
    assert made.graph.node[0].name.startswith("pre_DoublingExecutionProvider")
    again = ort.InferenceSession(tmp_path / "m_ctx.onnx", providers=[Doubling.name], trust=True)
    np.testing.assert_array_equal(again.run(None, {"v0": X})[0], whole.run(None, {"v0": X})[0])
    with pytest.raises(Fail, match="exists already"):
        ort.InferenceSession(tmp_path / "m.onnx", options, providers=[Doubling.name])


def test_parts_that_are_not_stored_stay_nodes(tmp_path: Path) -> None:
    path = compiled(tmp_path, chain("Relu", "Neg", "Relu", "Neg"))
    assert [node.op_type for node in onnx.load(path).graph.node] == ["Relu", "Neg", "Relu", "Neg"]


def test_a_write_function_takes_the_data(tmp_path: Path) -> None:
    settings, got = ort.SessionOptions(), dict[str, bytes]()
    settings.add_provider(Doubling.name, {})
    compiler = ort.ModelCompiler(settings, chain("Relu").SerializeToString())
    compiler.set_ep_context_data_write_func(lambda name, data: got.update({name: data.read()}))
    compiler.compile_to_file(str(tmp_path / "c.onnx"))
    assert [json.loads(data[:-2]) for data in got.values()] == [["Relu"]]
    assert not list(tmp_path.glob("*.bin"))
    for name, data in got.items():
        (tmp_path / name).write_bytes(data)
    made = ort.InferenceSession(tmp_path / "c.onnx", providers=[Doubling.name], trust=True)
    np.testing.assert_array_equal(made.run(None, {"v0": X})[0], np.maximum(X, 0))


def test_a_read_function_gives_the_data(tmp_path: Path) -> None:
    """In the place of a folder, which a model from bytes does not have; of what is trusted alone."""
    settings, got = ort.SessionOptions(), dict[str, bytes]()
    settings.add_provider(Doubling.name, {})
    compiler = ort.ModelCompiler(settings, chain("Relu").SerializeToString(),
                                 embed_compiled_data_into_model=False)
    compiler.set_ep_context_data_write_func(lambda name, data: got.update({name: data.read()}))
    model, asked, options = compiler.compile_to_bytes(), list[str](), ort.SessionOptions()

    def fill(name: str, buffer: ort.OrtEpContextDataBuffer) -> None:
        asked.append(name)
        buffer.allocate(len(got[name]))
        buffer.write(got[name])

    options.set_ep_context_data_read_func(fill, 1 << 20)
    made = ort.InferenceSession(model, options, providers=[Doubling.name], trust=True)
    np.testing.assert_array_equal(made.run(None, {"v0": X})[0], np.maximum(X, 0))
    assert asked == list(got)
    with pytest.raises(Fail, match="nobody said"):
        ort.InferenceSession(model, options, providers=[Doubling.name])
    assert asked == list(got)
    for reader, told in ((fill, "more than the 3 allowed"), (lambda *_: None, "allocated no buffer"),
                         (lambda name, _: {}[name], "KeyError")):
        options.set_ep_context_data_read_func(reader, 3)
        with pytest.raises(EPFail, match=told):
            ort.InferenceSession(model, options, providers=[Doubling.name], trust=True)
    options.clear_ep_context_data_read_func()
    with pytest.raises(EPFail, match="no folder"):
        ort.InferenceSession(model, options, providers=[Doubling.name], trust=True)


def test_parts_for_another_machine_are_refused(tmp_path: Path) -> None:
    path = compiled(tmp_path, chain("Relu"), machine="elsewhere")
    with pytest.raises(EPFail, match="it is for elsewhere"):
        ort.InferenceSession(path, providers=[Doubling.name], trust=True)


def test_a_file_outside_of_the_folder_is_not_read(tmp_path: Path) -> None:
    path = compiled(tmp_path, chain("Relu"))
    proto = onnx.load(path)
    (place,) = (a for a in proto.graph.node[0].attribute if a.name == "ep_cache_context")
    place.s = b"../" + place.s
    onnx.save(proto, path)
    with pytest.raises(EPFail, match="climbs out"):
        ort.InferenceSession(path, providers=[Doubling.name], trust=True)


def test_no_compiled_node_is_an_error_where_asked(tmp_path: Path) -> None:
    settings = ort.SessionOptions()
    settings.add_provider(Doubling.name, {})
    with pytest.raises(Fail, match="Unable to compile any nodes"):
        ort.ModelCompiler(settings, chain("Exp", open_shape=True).SerializeToString(),
                          flags=ort.OrtCompileApiFlags.ERROR_IF_NO_NODES_COMPILED).compile_to_bytes()


def test_runs_are_begun_without_waiting() -> None:
    made = session(chain("Relu", "Neg"))
    results: dict[int, Any] = {}
    done = threading.Semaphore(0)

    def callback(got: Any, number: int, error: str) -> None:
        results[number] = error or got[0]
        done.release()

    for i in range(10):
        made.run_async(None, {"v0": X * i}, callback, i)
    made.run_async(None, {"v0": X[0]}, callback, 10)
    for _ in range(11):
        assert done.acquire(timeout=30)
    for i in range(10):
        np.testing.assert_array_equal(results[i], -np.maximum(X * i, 0))
    assert "nvalid rank" in results[10]


def test_a_chosen_level_bounds_the_passes() -> None:
    class Plain(Doubling):
        name = "PlainExecutionProvider"
        level = 0

    providers.register(Plain)
    try:
        proto = model([helper.make_node("Identity", ["x"], ["t"], name="same"),
                       helper.make_node("Relu", ["t"], ["y"], name="relu")], ["x"], ["y"])
        raw = proto.SerializeToString()
        assert len(ort.InferenceSession(raw, providers=[Plain.name]).explain()) == 2
        assert len(ort.InferenceSession(raw, providers=[Doubling.name]).explain()) == 1
    finally:
        providers.unregister(Plain.name)
