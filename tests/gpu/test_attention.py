"""Attention on emulated GPUs, against the CPU provider: every operator's forms, types, sizes that fit no
tile, caches, and rows divided over programs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from attention_parts import attention
from emulated_gpu import compare, driver, on_gpu
from gpu_kernels import ptx
from gpu_lowered import lowered
from gpu_models import by_turns, model, node, numpy_type, of_arrays

from orthrus.codegen.triton import compile as compiling
from orthrus.codegen.triton.kernels.attention import AttentionForm, numbers, parts, plan
from orthrus.codegen.triton.targets import TARGETS
from orthrus.lowering.gpu.part import GpuPart

pytestmark = [pytest.mark.needs("AMD tables", "Triton")]
MS = "com.microsoft::"
TYPES = {"float32": 2e-5, "float16": 4e-3, "bfloat16": 4e-2}
Arrays = dict[str, np.ndarray]


@pytest.fixture(autouse=True)
def _nothing_on_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step that kernels leave to the host, or a run that they give up, is an error."""
    def left(self: GpuPart, *args: Any, **named: Any) -> Any:
        raise AssertionError("a step of the host's")
    monkeypatch.setattr(GpuPart, "_on_host", left)
    monkeypatch.setattr(GpuPart, "interpret", left)


class Draw:
    """Random arrays of a type."""

    def __init__(self, dtype: str) -> None:
        self.rng, self.dtype = np.random.default_rng(len(dtype)), dtype

    def __call__(self, *shape: int) -> np.ndarray:
        return self.rng.standard_normal(shape).astype(numpy_type(self.dtype))


def _grouped(g: Draw, length: int, lengths: list[int], total: int, held: int, packed: bool = False,
             **attrs: Any) -> tuple[bytes, Arrays]:
    """GroupQueryAttention of 4 heads over 2, 16 features each."""
    q = g(len(lengths), length, 128 if packed else 64)
    k, v = (None, None) if packed else (g(len(lengths), length, 32), g(len(lengths), length, 32))
    past = [g(len(lengths), 2, held, 16) for _ in range(2)]
    cos, sin = (g(64, 8), g(64, 8)) if attrs.get("do_rotary") else (None, None)
    return of_arrays(MS + "GroupQueryAttention", {
        "q": q, "k": k, "v": v, "pk": past[0], "pv": past[1], "ends": np.array(lengths, np.int32) - 1,
        "total": np.array(total, np.int32), "cos": cos, "sin": sin}, 3, ("total",),
        num_heads=4, kv_num_heads=2, **attrs)


FORMS: dict[str, Callable[[Draw], tuple[bytes, Arrays]]] = {
    "shared keys, odd sizes": lambda g: of_arrays("Attention", {
        "q": g(2, 4, 9, 20), "k": g(2, 2, 13, 20), "v": g(2, 2, 13, 24)}),
    "causal, a truth mask": lambda g: of_arrays("Attention", {
        "q": g(2, 9, 80), "k": g(2, 13, 40), "v": g(2, 13, 48), "m": g.rng.random((9, 13)) > 0.3},
        q_num_heads=4, kv_num_heads=2, is_causal=1),
    "capped, behind a past": lambda g: of_arrays("Attention", {
        "q": g(1, 4, 3, 16), "k": g(1, 2, 3, 16), "v": g(1, 2, 3, 16), "m": g(1, 1, 3, 10),
        "pk": g(1, 2, 7, 16), "pv": g(1, 2, 7, 16)}, 3, softcap=3.0, is_causal=1),
    "keys of several lengths": lambda g: of_arrays("Attention", {
        "q": g(2, 4, 3, 16), "k": g(2, 4, 30, 16), "v": g(2, 4, 30, 16), "m": None, "pk": None, "pv": None,
        "lengths": np.array([5, 30])}, is_causal=1),
    "rows that see no key": lambda g: of_arrays("Attention", {
        "q": g(2, 2, 5, 16), "k": g(2, 2, 40, 16), "v": g(2, 2, 40, 16),
        "m": np.arange(5)[:, None] > np.full(40, 2)}),
    "one row over many keys": lambda g: of_arrays("Attention", {
        "q": g(2, 3, 1, 24), "k": g(2, 3, 300, 24), "v": g(2, 3, 300, 24)}),
    "few rows of shared keys over many": lambda g: of_arrays("Attention", {
        "q": g(1, 6, 2, 16), "k": g(1, 2, 300, 16), "v": g(1, 2, 300, 40)}, is_causal=1),
    "packed": lambda g: of_arrays(MS + "MultiHeadAttention", {"q": g(2, 5, 4, 3, 8)}, num_heads=4),
    "padding and a bias": lambda g: of_arrays(MS + "MultiHeadAttention", {
        "q": g(2, 5, 32), "k": g(2, 5, 32), "v": g(2, 5, 32), "b": None,
        "m": np.array([[1, 1, 1, 0, 0], [1] * 5], np.int32), "a": g(1, 4, 5, 5)}, num_heads=4),
    "counts of keys": lambda g: of_arrays(MS + "MultiHeadAttention", {
        "q": g(2, 5, 32), "k": g(2, 5, 32), "v": g(2, 5, 32), "b": None, "m": np.array([3, 5], np.int32)},
        num_heads=4, unidirectional=1),
    "a growing cache": lambda g: of_arrays(MS + "MultiHeadAttention", {
        "q": g(2, 1, 32), "k": g(2, 1, 32), "v": g(2, 1, 32), "b": None, "m": None, "a": None,
        "pk": g(2, 4, 6, 8), "pv": g(2, 4, 6, 8)}, 3, num_heads=4),
    "projected": lambda g: of_arrays(MS + "Attention", {
        "x": g(2, 5, 12), "w": g(12, 96) / 8, "b": g(96),
        "m": np.array([[1, 1, 1, 0, 0], [1] * 5], np.int32)}, num_heads=4),
    "projected, causal, with a past": lambda g: of_arrays(MS + "Attention", {
        "x": g(2, 3, 12), "w": g(12, 96) / 8, "b": g(96), "m": None, "past": g(2, 2, 4, 6, 8)}, 2,
        num_heads=4, unidirectional=1),
    "grouped, one token": lambda g: _grouped(g, 1, [7, 5], 7, 12),
    "grouped, rotary, a window, sinks": lambda g: _grouped(
        g, 1, [7, 12], 12, 12, do_rotary=1, local_window_size=4, smooth_softmax=1),
    "grouped, a packed prompt": lambda g: _grouped(g, 6, [6, 6], 6, 8, True, do_rotary=1, softcap=5.0),
    "turned": lambda g: of_arrays("RotaryEmbedding", {
        "x": g(2, 4, 5, 20), "cos": g(64, 8), "sin": g(64, 8), "at": g.rng.integers(0, 64, (2, 5))},
        rotary_embedding_dim=16),
    "turned in pairs": lambda g: of_arrays(MS + "RotaryEmbedding", {
        "x": g(2, 5, 64), "at": g.rng.integers(0, 50, (1,)), "cos": g(64, 8), "sin": g(64, 8)},
        interleaved=1),
    "one token over its cache": lambda g: of_arrays(MS + "DecoderMaskedMultiHeadAttention", {
        "q": g(2, 1, 32), "k": g(2, 1, 32), "v": g(2, 1, 32), "m": None, "a": None, "pk": g(2, 4, 12, 8),
        "pv": g(2, 4, 12, 8), "length": np.array([7], np.int32)}, 3, num_heads=4,
        past_present_share_buffer=1),
}


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_every_form(form: str) -> None:
    made, feeds = FORMS[form](Draw("float32"))
    compare(made, feeds, rtol=TYPES["float32"], atol=TYPES["float32"])


@pytest.mark.slow
@pytest.mark.parametrize("dtype, target, form", [
    *(("float16", ("gfx942", "gfx1100")[i % 2], form) for i, form in enumerate(FORMS)),
    *(("bfloat16", "gfx1201", form) for form in list(FORMS)[:3]),
    ("float16", "gfx942", "causal, a truth mask"), ("float16", "gfx1100", "shared keys, odd sizes")])
def test_half_precision(form: str, dtype: str, target: str) -> None:
    made, feeds = FORMS[form](Draw(dtype))
    compare(made, feeds, (target,), TYPES[dtype], TYPES[dtype])


def test_views_of_packed_rows_are_read_as_they_lie() -> None:
    """Queries, keys and values split out of one tensor and turned: one kernel, no copies."""
    nodes = [node("Reshape", "x shape", "r"), node("Transpose", "r", "t", perm=[2, 0, 3, 1, 4]),
             node("Split", "t", "a b c", axis=0, num_outputs=3),
             *(node("Squeeze", f"{name} zero", f"{name}s") for name in "abc"),
             node("Attention", "as bs cs", "o", is_causal=1), node("Transpose", "o", "p", perm=[0, 2, 1, 3]),
             node("Reshape", "p flat", "y")]
    made = model(nodes, {"x": [2, 6, 96]}, ["y"], opset=23, shape=np.array([2, 6, 3, 2, 16]),
                 zero=np.array([0]), flat=np.array([2, 6, 32]))
    feeds = {"x": Draw("float32")(2, 6, 96)}
    compare(made, feeds, ("gfx1100",))
    session = on_gpu(made, alone=True)
    session.run(None, feeds)
    before = driver(session).counts["launch"]
    session.run(None, feeds)
    assert driver(session).counts["launch"] == before + 1


@pytest.mark.parametrize("size", (1, 16, 20, 40, 64, 80, 96, 112, 128, 192, 256, 500))
def test_heads_are_divided_into_powers_of_two(size: int) -> None:
    made = parts(size)
    at = 0
    for first, width in made:
        assert first == at and width >= 16 and width & (width - 1) == 0
        at += width
    assert len(made) <= 2 and size <= at <= 2 * max(size, 8)


@pytest.mark.parametrize("size", [40, pytest.param(80, marks=pytest.mark.slow), 96, pytest.param(
    112, marks=pytest.mark.slow)])
def test_one_query_of_features_that_are_no_power_of_two(size: int) -> None:
    """It meets as many keys at once as such heads leave room for, a power of two."""
    draw = Draw("float32")
    made, feeds = of_arrays("Attention", {"q": draw(1, 2, 1, size), "k": draw(1, 2, 70, size),
                                          "v": draw(1, 2, 70, size)})
    compare(made, feeds, by_turns(size), TYPES["float32"], TYPES["float32"])


@pytest.mark.slow
@pytest.mark.parametrize("target, dtype, size", [("sm_75", "float16", 128), ("gfx942", "float32", 256)])
def test_tiles_fit_into_what_a_block_shares(target: str, dtype: str, size: int) -> None:
    made = plan(TARGETS[target], AttentionForm(dtype, size, size), 1, 8, 8, 1024, 1024)
    hints = tuple("16" for _ in made.spec.written(TARGETS[target]).arguments)
    assert 0 < compiling.code(made.spec, TARGETS[target], hints).shared <= TARGETS[target].shared


@pytest.mark.slow
@pytest.mark.parametrize("target, dtype, wanted", [
    ("sm_80", "float16", "mma.sync"), ("sm_80", "float32", "mma.sync"),
    ("sm_90", "bfloat16", "wgmma.mma_async"), ("sm_90", "float16", "wgmma.mma_async"),
    ("sm_100", "float16", "tcgen05.mma")])
def test_matrix_units_multiply(target: str, dtype: str, wanted: str) -> None:
    form = AttentionForm(dtype, 64, 64, right=True, precision="tf32")
    made = plan(TARGETS[target], form, 1, 16, 16, 1024, 1024)
    given = numbers(made, 16, 16, 1024, 1024, (0, 1024, 0), 0, 0.125, 0.0)
    pointers = [np.zeros(16, numpy_type(dtype))] * 4
    text = ptx(made.spec, target, *pointers, *given, *[1024 * 64, 64, 1024] * 4)
    assert wanted in text and ".local" not in text


def test_float32_is_exact_where_asked_for() -> None:
    data, feeds = of_arrays("Attention", {name: np.zeros((1, 2, 40, 128), np.float32) for name in "qkv"})
    for target, tf32, wanted in (("sm_90", True, "tf32"), ("sm_90", False, "ieee"), ("gfx942", True, "ieee")):
        steps = lowered(onnx.load_from_string(data), feeds, target, use_tf32=tf32).steps
        specs: list[Any] = [step.spec for step in steps]
        [form] = [dict(spec.params)["form"] for spec in specs if spec.template == "attend"]
        assert form.precision == wanted


@pytest.mark.parametrize("target", ("gfx1100", pytest.param("gfx942", marks=pytest.mark.slow)))
def test_parts_that_are_fused(target: str) -> None:
    """Rows without a key, infinities and NaN: as the CPU provider has them."""
    for seed in (1, 2, 4, 7):
        made, feeds, dtype = attention(seed, (np.float32, np.float16), 5)
        compare(made, feeds, [target], *[4e-3 if dtype == np.float16 else 1e-4] * 2, alone=False)


@pytest.mark.parametrize("length", [1, 3])
def test_queries_that_share_keys_as_rows(length: int) -> None:
    """Heads of one key lie as rows of an attention, and are reshaped to heads again: of one token nothing is
    copied."""
    g = Draw("float32")
    feeds = {"q": g(1, 2, 4 * length, 16), "k": g(1, 2, 20, 16), "v": g(1, 2, 20, 16)}
    made = model([node("Attention", "q k v", "a"), node("Reshape", "a heads", "h"),
                  node("Transpose", "h", "t", perm=[0, 2, 1, 3]), node("Reshape", "t flat", "f"),
                  node("MatMul", "f w", "y")], {name: array.shape for name, array in feeds.items()}, ["y"],
                 opset=23, heads=np.array([1, 8, length, 16]), flat=np.array([1, length, 128]),
                 w=g(128, 32))
    names = [step.spec.template for step in lowered(onnx.load_from_string(made), feeds, "gfx942").steps]
    assert length > 1 or "elementwise_tiles" not in names, names
    compare(made, feeds, ["gfx1100"], 2e-5, 2e-5)
