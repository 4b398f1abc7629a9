"""What is copied for a token while a cache grows from run to run, kept on an emulated GPU: nothing but the
token, by nobody but the attention that reads the cache; and that caches are fed from there at all."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import pytest
from decoder_layers import MS, Layers, gpt2
from gpu_models import defined
from test_rocm import Found

import orthrus as ort
from gfx.driver import EmulatedDriver
from orthrus.providers.gpu import device as devices
from orthrus.providers.rocm import ROCMExecutionProvider

pytestmark = pytest.mark.needs("AMD tables", "Triton")
PAST = 7


class Counting(EmulatedDriver):
    """One that notes how many bytes are copied from where to where, and filled."""

    def __init__(self, target: str) -> None:
        super().__init__(target, most=1 << 27)
        self.moved: list[tuple[str, int]] = []

    def _copy(self, to: int, source: int, size: int) -> None:
        there = tuple(self.found(address) is not None for address in (source, to))
        self.moved.append(({(True, True): "within", (True, False): "out", (False, True): "in"}[there], size))
        super()._copy(to, source, size)


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counting]:
    made = Counting("gfx942")
    monkeypatch.setattr(ROCMExecutionProvider, "finding", Found(made))
    monkeypatch.setattr(devices, "_shared", {})
    yield made


def heads(kind: str) -> Layers:
    """Products for queries, keys and values, and attention of them over a cache."""
    m, size, count = Layers("float32", 3), 16, 2
    width = size * count
    x = m.input("x", 1, 1, width)
    q, k, v = (m.dense(x, width, width, name) for name in "qkv")
    past = [m.input(f"past_{name}", 1, count, PAST, size) for name in "kv"]
    m.results += ["new_k", "new_v"]
    if kind == "MultiHeadAttention":
        y = m.add(MS + kind, f"{q} {k} {v} - - - {' '.join(past)}", "y new_k new_v", num_heads=count)
    elif kind == "Attention":
        y = m.add(kind, f"{q} {k} {v} - {' '.join(past)}", "y new_k new_v", q_num_heads=count,
                  kv_num_heads=count)
    else:
        m.held |= {"apart": np.array([0, 0, count, size]), "whole": np.array([0, 0, width]),
                   "by": np.array(size ** -0.5, np.float32)}
        q, k, v = (m.add("Transpose", m.add("Reshape", f"{t} apart", f"{t}.r"), f"{t}.t", perm=[0, 2, 1, 3])
                   for t in (q, k, v))
        k = m.add("Concat", f"{past[0]} {k}", "new_k", axis=2)
        v = m.add("Concat", f"{past[1]} {v}", "new_v", axis=2)
        scores = m.add("MatMul", f"{q} {m.add('Transpose', k, 'turned', perm=[0, 1, 3, 2])}", "scores")
        weights = m.add("Softmax", m.add("Mul", f"{scores} by", "scaled"), "weights", axis=-1)
        y = m.add("Transpose", m.add("MatMul", f"{weights} {v}", "mixed"), "back", perm=[0, 2, 1, 3])
        y = m.add("Reshape", f"{y} whole", "y")
    m.results.append(y)
    return m


def growing(made: Layers) -> onnx.ModelProto:
    """The model, whose caches are of any length: one name for all."""
    model = made.model()
    del model.opset_import[:]
    model.opset_import.extend(onnx.helper.make_opsetid(*each) for each in (("", 23), ("com.microsoft", 1)))
    for given in model.graph.input:
        for dim in given.type.tensor_type.shape.dim:
            if "past" in given.name and dim.dim_value == PAST:
                dim.dim_param = "t"
    return model


CASES: dict[str, Any] = {
    "com.microsoft's Attention": lambda: gpt2(1, 32, 2, "float32", PAST),
    "MultiHeadAttention": lambda: heads("MultiHeadAttention"),
    "Attention": lambda: heads("Attention"), "taken apart": lambda: heads("")}


@pytest.mark.parametrize("case", CASES)
def test_a_cache_that_grows_is_copied_by_who_reads_it(case: str, driver: Counting) -> None:
    made = CASES[case]()
    model = growing(made)
    session = ort.InferenceSession(model.SerializeToString(), providers=["ROCMExecutionProvider"])
    feeds = made.feeds(0)
    grown = {"l0.past": "l0.present"} if "l0.past" in feeds else {"past_k": "new_k", "past_v": "new_v"}
    names = [v.name for v in session.get_outputs()]
    held = {name: ort.OrtValue.ortvalue_from_numpy(feeds[name], "gpu", 0) for name in grown}
    token, (result,) = feeds["x"].nbytes, (name for name in names if name not in grown.values())
    for turn in range(3):
        feeds |= {name: value.numpy() for name, value in held.items()}
        wanted = dict(zip(names, defined(model, feeds), strict=True))
        binding = session.io_binding()
        binding.bind_cpu_input("x", feeds["x"])
        for name, value in held.items():
            binding.bind_ortvalue_input(name, value)
        for name in names:
            binding.bind_output(name, "cpu" if name == result else "gpu")
        driver.moved.clear()
        before, launched = driver.counts["fill"], driver.counts["launch"]
        session.run_with_iobinding(binding)
        assert driver.moved == [("in", token), ("out", wanted[result].nbytes)], turn
        assert driver.counts["fill"] == before
        assert driver.counts["launch"] - launched <= (5 if case == "com.microsoft's Attention" else 2)
        found = dict(zip(names, binding.get_outputs(), strict=True))
        for name in names:
            np.testing.assert_allclose(found[name].numpy(), wanted[name], 1e-4, 1e-4)
        held = {old: found[new] for old, new in grown.items()}


def test_dimensions_of_one_name_are_fed_from_a_device(driver: Counting) -> None:
    """As OrtValues, bound and not, and as what only tells its shape; of two sizes too, as exporters write."""
    node = onnx.helper.make_node("Concat", ["a", "b"], ["y"], axis=0)
    infos = [onnx.helper.make_tensor_value_info(name, 1, ["n", 3]) for name in ("a", "b")]
    graph = onnx.helper.make_graph([node], "g", infos, [onnx.helper.make_tensor_value_info("y", 1, None)])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 21)], ir_version=10)
    session = ort.InferenceSession(model.SerializeToString(), providers=["ROCMExecutionProvider"])
    for other in (2, 4):
        a, b = np.ones((2, 3), np.float32), np.zeros((other, 3), np.float32)
        values = {name: ort.OrtValue.ortvalue_from_numpy(x, "gpu", 0) for name, x in (("a", a), ("b", b))}
        wanted = np.concatenate([a, b])
        (made,) = session.run_with_ort_values(["y"], values)
        np.testing.assert_array_equal(made.numpy(), wanted)
        binding = session.io_binding()
        for name, value in values.items():
            binding.bind_ortvalue_input(name, value)
        binding.bind_output("y", "gpu")
        session.run_with_iobinding(binding)
        np.testing.assert_array_equal(binding.get_outputs()[0].numpy(), wanted)
        np.testing.assert_array_equal(session.run(None, {"a": values["a"], "b": b})[0], wanted)
