"""com.microsoft's Attention as steps gives what its definition gives, whatever the mask, cache and sizes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from contrib_cases import Draw as Drawn
from contrib_cases import (
    causal_conv,
    coded_cache,
    gated_rms_norm,
    multimodal_rotary,
    one_token,
    post_mix,
    sparse_attention,
)
from draws import draws
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper, numpy_helper
from oracle import differences

import orthrus
from orthrus.lowering.lower import Lowering

NAMES = ("x", "w", "b", "mask", "past", "added")
MASKS = ("none", "counts", "counts and starts", "counts and sums", "by key", "by query", "square")


def model(inputs: dict[str, np.ndarray], attrs: dict[str, Any], outputs: int, constant: bool) -> bytes:
    """One node; weights and bias are initializers where `constant`."""
    fixed = {"w", "b"} & inputs.keys() if constant else set()
    dtype = helper.np_dtype_to_tensor_dtype(inputs["x"].dtype)
    names = ["y", "present"][:outputs]
    node = helper.make_node("Attention", [n if n in inputs else "" for n in NAMES], names,
                            domain="com.microsoft", **attrs)
    graph = helper.make_graph(
        [node], "g", [helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
                      for n, a in inputs.items() if n not in fixed],
        [helper.make_tensor_value_info(n, dtype, None) for n in names],
        [numpy_helper.from_array(inputs[n], n) for n in fixed])
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString()


def both(inputs: dict[str, np.ndarray], attrs: dict[str, Any], outputs: int, constant: bool = True,
         native: bool = True) -> list[list[Any]]:
    """The results by numpy and by kernels, where it has to be `native`."""
    found, generated = [], []
    for use in ("0", "1"):
        session = orthrus.InferenceSession(model(inputs, attrs, outputs, constant),
                                           providers=[("CPUExecutionProvider", {"use_codegen": use})])
        fed = {i.name for i in session.get_inputs()}
        found.append(session.run(None, {n: a for n, a in inputs.items() if n in fed}))
        generated.append(not session.explain().numpy)
    assert not generated[0] and generated[1] is native
    return found


def masked(rng: np.random.Generator, form: str, batch: int, length: int, total: int) -> np.ndarray | None:
    ends = rng.integers(0, total + 1, batch)
    made = {"counts": ends, "counts and starts": np.concatenate((ends, rng.integers(0, total + 2, batch))),
            "counts and sums": np.concatenate((ends, np.zeros(2 * batch + 2))),
            "by key": rng.random((batch, total)) > 0.4,
            "by query": rng.random((batch, length, total)) > 0.4,
            "square": rng.random((batch, 1, total + 3, total + 3)) > 0.4}
    return made[form].astype(np.int32) if form in made else None


@given(seed=st.integers(0, 999), form=st.sampled_from(MASKS), batch=st.integers(1, 3),
       length=st.sampled_from([1, 2, 5, 19, 33]), heads=st.sampled_from([1, 2, 3]),
       held=st.sampled_from([None, 0, 1, 14]), value_size=st.sampled_from([8, 12]), causal=st.booleans(),
       bias=st.booleans(), added=st.sampled_from([None, (1, 1), (1, 0), (0, 0)]),
       outputs=st.sampled_from([1, 2]), dtype=st.sampled_from(["float32", "float32", "float16"]),
       constant=st.booleans(), scale=st.sampled_from([None, 0.3]))
@draws(60)
def test_attention(seed: int, form: str, batch: int, length: int, heads: int, held: int | None,
                   value_size: int, causal: bool, bias: bool, added: tuple[int, int] | None, outputs: int,
                   dtype: str, constant: bool, scale: float | None) -> None:
    rng, size = np.random.default_rng(seed), 8
    if held is not None or outputs > 1:
        value_size = size
    width, total = heads * (2 * size + value_size), length + (held or 0)

    def normal(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape).astype(dtype)
    inputs = {"x": normal(batch, length, 24), "w": normal(24, width) / np.float16(4).astype(dtype)}
    if bias:
        inputs["b"] = normal(width)
    mask = masked(rng, form, batch, length, total)
    if mask is not None:
        inputs["mask"] = mask
    if held is not None:
        inputs["past"] = normal(2, batch, heads, held, size)
    if added is not None:
        inputs["added"] = normal(added[0] or batch, added[1] or heads, length, total)
    attrs: dict[str, Any] = {"num_heads": heads, "unidirectional": int(causal)}
    if scale is not None:
        attrs["scale"] = scale
    if value_size != size:
        attrs["qkv_hidden_sizes"] = [heads * size, heads * size, heads * value_size]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Lowering, "_by_reference", lambda *_: pytest.fail("a node was left to numpy"))
        wanted, found = both(inputs, attrs, outputs, constant)
    # the scores of a query without a key are rounded at -10,000
    close = {"rtol": 3e-5, "atol": 1e-5 if mask is None else 2e-4} if dtype == "float32" else {
        "rtol": 2e-3, "atol": 2e-3}
    for want, y in zip(wanted, found, strict=True):
        assert y.dtype == want.dtype
        np.testing.assert_allclose(y, want, **close)


def test_a_large_projection() -> None:
    """One that a matrix unit takes where there is one."""
    rng = np.random.default_rng(1)
    inputs = {"x": rng.standard_normal((2, 64, 256)), "w": rng.standard_normal((256, 768)) / 16,
              "b": rng.standard_normal(768), "past": rng.standard_normal((2, 2, 4, 30, 64))}
    wanted, found = both({n: a.astype(np.float32) for n, a in inputs.items()}, {"num_heads": 4}, 2)
    for want, y in zip(wanted, found, strict=True):
        np.testing.assert_allclose(y, want, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("outputs", [1, 2])
def test_what_is_left_to_numpy_is_right(outputs: int) -> None:
    """A mask that spreads along keys, a form no kernel takes, between nodes that kernels compute."""
    rng = np.random.default_rng(2)
    inputs = {"x": rng.standard_normal((1, 5, 12)), "w": rng.standard_normal((12, 24)),
              "added": rng.standard_normal((1, 2, 5, 1))}
    wanted, found = both({n: a.astype(np.float32) for n, a in inputs.items()}, {"num_heads": 2}, outputs,
                         native=False)
    for want, y in zip(wanted, found, strict=True):
        np.testing.assert_allclose(y, want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("form", [coded_cache, one_token, sparse_attention, multimodal_rotary, causal_conv,
                                  gated_rms_norm, post_mix])
def test_decoders(form: Any) -> None:
    """What decoders are made of, by kernels as by definitions; some forms of it have none."""
    generated = 0
    for seed in range(6):
        case, made = form(Drawn(seed)), []
        for use in ("0", "1"):
            it = case.model()
            for info in [i for i in it.graph.input if i.name in ("i5", "i6", "i7")]:
                it.graph.initializer.append(numpy_helper.from_array(case.feeds[info.name], info.name))
                it.graph.input.remove(info)
            session = orthrus.InferenceSession(it.SerializeToString(), providers=[
                ("CPUExecutionProvider", {"use_codegen": use})])
            made.append(session.run(None, {i.name: case.feeds[i.name] for i in session.get_inputs()}))
        generated += not session.explain().numpy
        found = differences(made[1], made[0], case.rtol, case.atol, case.slack)
        assert found is None, f"{case}: {found}"
    assert generated
