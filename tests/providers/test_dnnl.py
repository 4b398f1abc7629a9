"""The oneDNN provider: what it takes, what it fuses, that its results are the definitions', and what it says
where it cannot work."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from skips import needs

import orthrus as ort
from orthrus.errors import EPFail, InvalidArgument
from orthrus.processors import usable
from orthrus.providers.dnnl import DnnlExecutionProvider, binding, openmp
from orthrus.testing import check_provider

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

works = needs("oneDNN")
NAME = "DnnlExecutionProvider"
RNG = np.random.default_rng(7)


def real(*shape: int) -> np.ndarray:
    return np.asarray(RNG.standard_normal(shape), np.float32)


def model(nodes: Sequence[Any], inputs: dict[str, tuple[Any, ...]], weights: dict[str, np.ndarray],
          outputs: Sequence[str] = ("y",)) -> bytes:
    graph = helper.make_graph(
        nodes, "g",
        [helper.make_tensor_value_info(k, TensorProto.FLOAT, s) for k, s in inputs.items()],
        [helper.make_tensor_value_info(k, TensorProto.UNDEFINED, None) for k in outputs],
        [numpy_helper.from_array(v, k) for k, v in weights.items()])
    opsets = [helper.make_opsetid("", 23)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=11).SerializeToString()


def session(data: bytes, options: dict[str, Any] | None = None) -> Any:
    made = ort.InferenceSession(data, providers=[(NAME, options or {}), "CPUExecutionProvider"])
    made.disable_fallback()
    return made


def defined(data: bytes) -> Any:
    return ort.InferenceSession(data, providers=[("CPUExecutionProvider", {"use_codegen": "0"})])


def steps(made: Any) -> list[tuple[str, tuple[str, ...]]]:
    [part] = [p for p in made.explain().parts if p.provider == NAME]
    return [(s.kernel.split()[0], s.nodes) for s in part.plan.steps]


@works
@needs("generated code")
def test_the_other_pool_leaves_it_the_processors() -> None:
    from orthrus.codegen.runtime.cells import PoolCell
    from orthrus.codegen.runtime.threads import Pool, pool

    usual = Pool(2).cells[PoolCell.SPIN]
    session(residual_block(), {"num_of_threads": "2"})
    assert pool().cells[PoolCell.SPIN] < usual / 4


def residual_block() -> bytes:
    nodes = [helper.make_node("Conv", ["x", "w1"], ["a"], name="conv1", pads=[1] * 4),
             helper.make_node("Relu", ["a"], ["b"], name="relu1"),
             helper.make_node("Conv", ["b", "w2", "bias"], ["c"], name="conv2", pads=[1] * 4),
             helper.make_node("Add", ["c", "b"], ["d"], name="add"),
             helper.make_node("Relu", ["d"], ["y"], name="relu2")]
    rng = np.random.default_rng(3)
    weights = {name: rng.standard_normal(shape).astype(np.float32) / 10
               for name, shape in (("w1", (16, 16, 3, 3)), ("w2", (16, 16, 3, 3)), ("bias", (16,)))}
    return model(nodes, {"x": ("N", 16, 8, 8)}, weights)


@works
def test_a_block_is_two_convolutions_with_post_ops() -> None:
    made = session(residual_block())
    x = real(1, 16, 8, 8)
    np.testing.assert_allclose(made.run(None, {"x": x})[0], defined(residual_block()).run(None, {"x": x})[0],
                               rtol=1e-4, atol=1e-4)
    convolutions = [nodes for kernel, nodes in steps(made) if kernel == "convolution"]
    assert convolutions == [("conv1", "relu1"), ("conv2", "add", "relu2")]
    assert not made.explain().parts[0].numpy


@works
def test_shapes_have_plans_and_share_packed_weights() -> None:
    made = session(residual_block())
    reference = defined(residual_block())
    for batch in (1, 3, 1, 2):
        x = real(batch, 16, 8, 8)
        np.testing.assert_allclose(made.run(None, {"x": x})[0], reference.run(None, {"x": x})[0], rtol=1e-4,
                                   atol=1e-4)
    [part] = made.explain().parts
    assert len(part.plans) == 3
    names = [c.value for c in part.constants]
    assert sorted(names) == ["w1", "w2"], "each is reordered once"


@works
def test_what_onednn_does_not_make_runs_by_its_definition_and_says_so() -> None:
    nodes = [helper.make_node("Relu", ["x"], ["a"], name="relu"),
             helper.make_node("Reshape", ["a", "shape"], ["b"], name="flat"),
             helper.make_node("GlobalAveragePool", ["b"], ["y"], name="pool")]
    made = session(model(nodes, {"x": ("N", 2, 2, 2, 2, 2, 2)},
                         {"shape": np.array([0, 2, 2, 2, 2, 2, 2])}))
    x = real(1, 2, 2, 2, 2, 2, 2)
    np.testing.assert_allclose(made.run(None, {"x": x})[0].ravel(), np.maximum(x, 0).mean((2, 3, 4, 5, 6))[0],
                               rtol=1e-5)
    refusals = [r.reason for n in made.explain() for r in n.refusals if n.op_type == "GlobalAveragePool"]
    numpy = [why for p in made.explain().parts for why in p.numpy.values() if p.provider == NAME]
    assert any("rank 7" in text for text in [*refusals, *numpy])


@works
def test_an_unimplemented_primitive_is_a_definition_of_its_node(monkeypatch: pytest.MonkeyPatch) -> None:
    make = binding.Library.make

    def refusing(self: Any, name: str, *arguments: Any) -> int:
        if name.startswith("pooling"):
            raise binding.Refused(f"dnnl_{name} answered unimplemented")
        return make(self, name, *arguments)
    monkeypatch.setattr(binding.Library, "make", refusing)
    nodes = [helper.make_node("Conv", ["x", "w"], ["a"], name="conv"),
             helper.make_node("MaxPool", ["a"], ["b"], name="pool", kernel_shape=[2, 2]),
             helper.make_node("Relu", ["b"], ["y"], name="relu")]
    data = model(nodes, {"x": (1, 4, 6, 6)}, {"w": real(8, 4, 1, 1)})
    made, x = session(data), real(1, 4, 6, 6)
    np.testing.assert_allclose(made.run(None, {"x": x})[0], defined(data).run(None, {"x": x})[0], rtol=1e-5,
                               atol=1e-5)
    [part] = made.explain().parts
    assert list(part.numpy) == ["pool"] and "unimplemented" in part.numpy["pool"]


@works
def test_a_failing_primitive_names_its_node(monkeypatch: pytest.MonkeyPatch) -> None:
    made = session(residual_block())
    x = real(1, 16, 8, 8)
    made.run(None, {"x": x})
    monkeypatch.setattr(binding.library(), "execute", lambda *_: 5)
    with pytest.raises(EPFail, match="runtime error") as failure:
        made.run(None, {"x": x})
    assert "conv1" in str(failure.value.__cause__ or failure.value)


@works
@needs("VNNI")
def test_integers_stay_integers_between_quantize_and_dequantize() -> None:
    weights = {"w": RNG.integers(-100, 100, (8, 4, 3, 3)).astype(np.int8), "ws": np.full(8, 0.01, np.float32),
               "wz": np.zeros(8, np.int8), "s": np.float32(0.05), "z": np.uint8(120), "t": np.float32(0.1),
               "b": RNG.integers(-500, 500, 8).astype(np.int32), "bs": np.full(8, 0.0005, np.float32)}
    nodes = [helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"], name="q"),
             helper.make_node("DequantizeLinear", ["q", "s", "z"], ["r"], name="dq"),
             helper.make_node("DequantizeLinear", ["w", "ws", "wz"], ["wr"], name="dw", axis=0),
             helper.make_node("DequantizeLinear", ["b", "bs"], ["br"], name="db", axis=0),
             helper.make_node("Conv", ["r", "wr", "br"], ["c"], name="conv", pads=[1] * 4),
             helper.make_node("Relu", ["c"], ["d"], name="relu"),
             helper.make_node("QuantizeLinear", ["d", "t", "z"], ["y"], name="q2")]
    data = model(nodes, {"x": (1, 4, 9, 9)}, weights)
    made, x = session(data), 3 * real(1, 4, 9, 9)
    got, wanted = made.run(None, {"x": x})[0], defined(data).run(None, {"x": x})[0]
    assert got.dtype == np.uint8 and np.abs(got.astype(int) - wanted).max() <= 1
    assert (got != wanted).mean() < 0.01
    [convolution] = [nodes for kernel, nodes in steps(made) if kernel == "convolution"]
    assert convolution[0] == "conv" and convolution[-1] == "q2"


@works
def test_the_qlinear_operators() -> None:
    weights = {"xs": np.float32(0.05), "xz": np.uint8(128),
               "w": RNG.integers(-90, 90, (6, 4, 3, 3)).astype(np.int8),
               "ws": RNG.uniform(0.01, 0.02, 6).astype(np.float32), "wz": np.zeros(6, np.int8),
               "ys": np.float32(0.2), "yz": np.uint8(110), "b": RNG.integers(-900, 900, 6).astype(np.int32)}
    nodes = [helper.make_node("QuantizeLinear", ["x", "xs", "xz"], ["q"], name="q"),
             helper.make_node("QLinearConv", ["q", "xs", "xz", "w", "ws", "wz", "ys", "yz", "b"], ["y"],
                              name="c")]
    data = model(nodes, {"x": (2, 4, 7, 7)}, weights)
    made, x = session(data), 2 * real(2, 4, 7, 7)
    got, wanted = made.run(None, {"x": x})[0], defined(data).run(None, {"x": x})[0]
    assert got.dtype == np.uint8 and np.abs(got.astype(int) - wanted).max() <= 1
    assert not [why for p in made.explain().parts for why in p.numpy.values()]


@works
def test_a_mask_that_hides_everything_gives_zeros() -> None:
    nodes = [helper.make_node("Attention", ["q", "k", "v", "m"], ["y"], name="attention")]
    shapes = {"q": (1, 2, 3, 8), "k": (1, 2, 5, 8), "v": (1, 2, 5, 8), "m": (3, 5)}
    data = model(nodes, shapes, {})
    made, reference = session(data), defined(data)
    feed = {key: real(*shape) for key, shape in shapes.items()}
    for hidden in (False, True):
        if hidden:
            feed["m"][1] = -np.inf
        np.testing.assert_allclose(made.run(None, feed)[0], reference.run(None, feed)[0], rtol=1e-4,
                                   atol=1e-5)
    assert made.explain()["attention"].provider == NAME


@works
@pytest.mark.parametrize("level", ["ORT_ENABLE_BASIC", "ORT_ENABLE_EXTENDED", "ORT_ENABLE_ALL"])
def test_no_level_makes_products_that_are_left(level: str) -> None:
    """Scaled, transposed and between several dimensions."""
    nodes = [helper.make_node("Transpose", ["x"], ["t"], perm=[0, 1, 3, 2]),
             helper.make_node("MatMul", ["x", "t"], ["p"]), helper.make_node("Mul", ["p", "c"], ["s"]),
             helper.make_node("Add", ["s", "m"], ["a"]), helper.make_node("MatMul", ["a", "w"], ["q"]),
             helper.make_node("Transpose", ["q"], ["r"], perm=[0, 1, 3, 2]),
             helper.make_node("MatMul", ["r", "v"], ["y"])]
    data = model(nodes, {"x": (2, 3, 5, 4)}, {"c": np.array(0.3, np.float32), "m": real(2, 3, 5, 5),
                                              "w": real(5, 7), "v": real(5, 6)})
    options = ort.SessionOptions()
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, level)
    made = ort.InferenceSession(data, options, providers=[NAME, "CPUExecutionProvider"])
    assert {each.provider for each in made.explain()} == {NAME}
    plain = ort.InferenceSession(data, providers=[("CPUExecutionProvider", {"use_codegen": "0"})])
    x = {"x": real(2, 3, 5, 4)}
    np.testing.assert_allclose(made.run(None, x)[0], plain.run(None, x)[0], 1e-5, 1e-5)


REFUSED = {
    "computed sizes": ("Resize", ["x", "", "", "sizes"], {"mode": "nearest"}, "no constant"),
    "places of maxima": ("MaxPool", ["x"], {"kernel_shape": [2, 2]}, "another output"),
}


@works
@pytest.mark.parametrize("name", REFUSED)
def test_what_is_known_to_be_impossible_is_refused(name: str) -> None:
    """When the session is made, and not in its runs."""
    kind, inputs, attrs, why = REFUSED[name]
    results = ["y", "more"] if kind == "MaxPool" else ["y"]
    nodes = [helper.make_node("Shape", ["x"], ["sizes"]),
             helper.make_node(kind, inputs, results, name="it", **attrs)]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    outputs += [helper.make_tensor_value_info("more", TensorProto.INT64, None)] * (len(results) - 1)
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, list("abcd"))
    graph = helper.make_graph(nodes, "g", [x], outputs)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)
    found = ort.InferenceSession(made.SerializeToString(), providers=[NAME, "CPUExecutionProvider"]).explain()
    assert found["it"].provider == "CPUExecutionProvider"
    assert why in next(each.reason for each in found["it"].refusals if each.provider == NAME)


@works
def test_views_alone_are_left() -> None:
    data = model([helper.make_node("Transpose", ["x"], ["y"], name="turn")], {"x": (2, 3)}, {})
    [refusal] = session(data).explain()["turn"].refusals
    assert "only moves elements" in refusal.reason


@works
def test_profiles_and_dumps_see_the_steps() -> None:
    made, x = session(residual_block()), real(1, 16, 8, 8)
    made.run(None, {"x": x})
    [kernel] = [s.kernel for s in made._sess._engine.program.calls]
    notes: list[Any] = []
    seen: dict[str, np.ndarray] = {}
    kernel.stepwise([x], lambda *row: notes.append(row), lambda v, a: seen.update({v.name: a.copy()}), None)
    assert notes[0][0] is None and [w.label for w, *_ in notes[1:]][-1].endswith("relu2")
    np.testing.assert_array_equal(seen["y"], made.run(None, {"x": x})[0])


@works
def test_threads_are_the_session_s_and_put_back() -> None:
    before = binding.library().openmp._get()
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    made = ort.InferenceSession(residual_block(), options, providers=[NAME, "CPUExecutionProvider"])
    made.run(None, {"x": real(1, 16, 8, 8)})
    assert made.explain().parts[0].threads == 1 and binding.library().openmp._get() == before
    two = session(residual_block(), {"num_of_threads": "2"})
    two.run(None, {"x": real(1, 16, 8, 8)})
    assert two.explain().parts[0].threads == min(2, len(usable()))
    assert binding.library().openmp._get() == before
    assert session(residual_block(), {"deterministic": "1"}).explain().parts[0].threads == 1


@works
def test_no_more_threads_are_asked_for_than_there_are_processors() -> None:
    """OpenMP's runtime would end the process for want of them."""
    for number, given in ((600, {}), (1, {"num_of_threads": "600"})):
        options = ort.SessionOptions()
        options.intra_op_num_threads = number
        made = ort.InferenceSession(residual_block(), options, providers=[(NAME, given)])
        made.run(None, {"x": real(1, 16, 8, 8)})
        assert made.explain().parts[0].threads == len(usable())


EDGES = np.concatenate([[near + side * np.geomspace(1e-7, 0.5, 400) for near in (0, 1, -1, 2, -2, 8, -8)
                         for side in (1, -1)], [np.geomspace(1e-6, 60, 400)]]).ravel().astype(np.float32)


@works
@pytest.mark.parametrize("kind", ["Log", "Exp", "Sqrt", "Tanh", "Sigmoid", "Elu", "Mish", "HardSwish",
                                  "Reciprocal", "Softplus", "Gelu"])
def test_functions_of_one_number_are_as_exact_as_their_type(kind: str) -> None:
    """Near their zeros as well: a difference of some bits there becomes another whole number where buckets of
    distances are counted, as T5 does."""
    x = np.abs(EDGES) if kind in ("Log", "Sqrt") else EDGES[EDGES != 0]
    graph = helper.make_graph([helper.make_node(kind, ["x"], ["y"])], "g",
                              [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N"])],
                              [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N"])])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    found, wanted = (ort.InferenceSession(made.SerializeToString(), providers=[name]).run(None, {"x": x})[0]
                     for name in (NAME, "CPUExecutionProvider"))
    np.testing.assert_allclose(found, wanted, 2e-6, 1e-6)


@works
def test_runs_on_several_threads_agree() -> None:
    made, x = session(residual_block(), {"num_of_threads": "2"}), real(2, 16, 8, 8)
    wanted, wrong = made.run(None, {"x": x})[0], []

    def work() -> None:
        for _ in range(20):
            if not np.array_equal(made.run(None, {"x": x})[0], wanted):
                wrong.append(1)
    threads = [threading.Thread(target=work) for _ in range(3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


@works
@needs("POSIX")
def test_a_forked_child_runs_with_two_threads() -> None:
    made, x = session(residual_block(), {"num_of_threads": "2"}), real(1, 16, 8, 8)
    wanted = made.run(None, {"x": x})[0]
    child = os.fork()
    if not child:
        os._exit(0 if np.array_equal(made.run(None, {"x": x})[0], wanted) else 1)
    assert os.waitpid(child, 0)[1] == 0
    np.testing.assert_array_equal(made.run(None, {"x": x})[0], wanted)


ALONE = """
import sys
import orthrus as ort
from orthrus.providers.dnnl import DnnlExecutionProvider
assert "libdnnl" not in open("/proc/self/maps").read(), "loaded before anybody asked"
first = DnnlExecutionProvider({"max_cpu_isa": "avx2"})
assert first.library.isa == 0x7, first.library.isa
try:
    DnnlExecutionProvider({"max_cpu_isa": "avx512_core"}).library
except ort.capi.onnxruntime_pybind11_state.EPFail as error:
    print(error)
DnnlExecutionProvider().library
"""


@works
@needs("Linux")
def test_the_instruction_set_is_settled_once() -> None:
    done = subprocess.run([sys.executable, "-c", ALONE], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "max_cpu_isa=avx512_core" in done.stdout and "avx2" in done.stdout


@works
def test_options_that_cannot_be_read() -> None:
    for option in ({"max_cpu_isa": "mmx"}, {"verbose": "3"}, {"num_of_threads": "-1"}, {"threads": "2"}):
        with pytest.raises(InvalidArgument):
            DnnlExecutionProvider(option)
    assert DnnlExecutionProvider({"use_arena": "0"}).settings["use_arena"] is False


def test_a_missing_package_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(name: str) -> Any:
        raise binding.metadata.PackageNotFoundError(name)
    monkeypatch.setattr(binding.metadata, "files", nothing)
    why = DnnlExecutionProvider.probe()
    assert why is not None and "onednn-cpu-gomp is not installed" in why.reason


@works
def test_another_library_or_version_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(binding, "_version", lambda path: (2, 7, 1))
    why = DnnlExecutionProvider.probe()
    assert why is not None and "oneDNN 2.7.1 is installed" in why.reason
    monkeypatch.undo()
    monkeypatch.setattr(binding, "located", lambda: Path("libm.so.6"))
    why = DnnlExecutionProvider.probe()
    assert why is not None and "no oneDNN library" in why.reason
    text = tmp_path / binding.FILE
    text.write_text("nothing")
    monkeypatch.setattr(binding, "located", lambda: text)
    why = DnnlExecutionProvider.probe()
    assert why is not None and "cannot be loaded" in why.reason


@works
def test_a_missing_openmp_runtime_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openmp, "NAME", "libno_such_openmp.so.1")
    why = DnnlExecutionProvider.probe()
    assert why is not None and "libno_such_openmp.so.1" in why.reason and "libgomp1" in why.reason


@works
def test_constants_are_onednn_s_own() -> None:
    lib = binding.library()._lib
    name_of = lib.dnnl_alg_kind2str
    name_of.restype = binding.c_char_p
    for prefix, table in (("eltwise", binding.ELTWISE), ("binary", binding.BINARY),
                          ("resampling", binding.RESAMPLING), ("softmax", binding.SOFTMAX)):
        assert {n: name_of(i).decode() for n, i in table.items()} == {n: f"{prefix}_{n}" for n in table}
    type_of = lib.dnnl_dt2str
    type_of.restype = binding.c_char_p
    assert type_of(binding.TYPES["bfloat16"]) == b"bf16" and type_of(binding.TYPES["uint8"]) == b"u8"


@works
@pytest.mark.parametrize("operators", [("Conv", "ConvTranspose", "MaxPool", "AveragePool"),
                                       ("MatMul", "com.microsoft::FusedMatMul", "Gemm", "Softmax"),
                                       ("LSTM", "GRU"),
                                       ("Add", "Mul", "Clip", "Gelu", "Concat", "Slice")])
def test_operators_pass_the_kit(operators: tuple[str, ...]) -> None:
    report = check_provider(DnnlExecutionProvider, operators=operators, types=["float"],
                            only=["claimed_nodes_run", "claims_and_capability_agree", "results"])
    assert report.ok, report


@works
@pytest.mark.thorough
def test_it_passes_the_kit() -> None:
    report = check_provider(DnnlExecutionProvider)
    assert report.ok, report


@works
@pytest.mark.parametrize("step", [pytest.param(5, marks=pytest.mark.slow),
                                  pytest.param(1, marks=pytest.mark.thorough)])
def test_onnx_s_cases_pass_as_on_the_cpu(step: int) -> None:
    from benchmarks.cases import KINDS, cases
    from benchmarks.conformance import check, share
    from benchmarks.engines import Worker

    with Worker("orthrus", [NAME, "CPUExecutionProvider"], timeout=60.0) as worker:
        results = [check(case, worker, draws=False) for case in cases(KINDS, "")[::step]]
    failed = [f"{r.name}: {r.reason}" for r in results if r.status != "pass"]
    assert not failed, "\n".join(failed)
    print(share(results, NAME))
    assert sum(NAME in r.computed for r in results) > 600 // step


@works
@pytest.mark.parametrize("first", ["Conv", "depthwise", "GlobalAveragePool", "GlobalMaxPool", "ReduceMean"])
def test_operands_by_channel_behind_images_of_one_pixel(first: str) -> None:
    """Chains of operands of every shape behind a result (N, C, 1, 1)."""
    node = helper.make_node
    for n, c, pixels in itertools.product((1, 3), (2, 16), (1, 3)):
        weights = {"w": real(c, c if first == "Conv" else 1, pixels, pixels), "axes": np.array([2, 3])}
        attrs: dict[str, Any] = {"group": c} if first == "depthwise" else {}
        inputs = {"Conv": ["x", "w"], "depthwise": ["x", "w"], "ReduceMean": ["x", "axes"]}.get(first, ["x"])
        nodes = [node("Conv" if first == "depthwise" else first, inputs, ["t"], **attrs),
                 node("Add", ["t", "a"], ["u"]), node("Mul", ["u", "b"], ["v"]), node("Relu", ["v"], ["z"]),
                 node("Sub", ["z", "c"], ["y"])]
        for a, b in itertools.product(((), (1, c, 1, 1), (n, 1, 1, 1), (n, c, 1, 1)), repeat=2):
            x = real(n, c, pixels, pixels)
            data = model(nodes, {"x": x.shape}, {"a": real(*a), "b": real(*b), "c": real(1, c, 1, 1),
                                                 **{k: weights[k] for k in inputs[1:]}})
            got, expected = (made.run(None, {"x": x})[0] for made in (session(data), defined(data)))
            np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5, err_msg=str((n, c, pixels, a, b)))
