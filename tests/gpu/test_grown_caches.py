"""Attention that takes up its cache's new rows while it reads it, as AMD machine code: whatever rows begin
where, capacities, positions, windows and shares, in memory of its own and in that of the old cache."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from emulated_gpu import compare, driver, on_gpu
from gpu_lowered import hinted, lowered
from gpu_models import by_turns, defined, numpy_type, of_arrays

import orthrus as ort
from orthrus.codegen.triton import compile as compiling

pytestmark = pytest.mark.needs("AMD tables", "Triton")
MS = "com.microsoft::"
BOUNDS = {"float32": 1e-4, "float16": 1e-2, "bfloat16": 5e-2}


def drawn(seed: int) -> tuple[bytes, dict[str, np.ndarray], str]:
    """A random GroupQueryAttention over a cache, its feeds and the type of its numbers."""
    rng = np.random.default_rng(seed)
    dtype = ("float32", "float16", "float32", "bfloat16")[seed % 4]

    def one(*given: Any) -> Any:
        return given[rng.integers(len(given))]
    batch, shared, group, size = one(1, 2, 3), one(1, 2), one(1, 2, 4), one(8, 16, 24, 40)
    length, room = one(1, 1, 2, 5), one(0, 3, 40)
    ends = [int(rng.integers(length, 60)) for _ in range(batch)]
    total = max(ends)
    capacity = one(total + room, total - length) if length < total and len(set(ends)) == 1 else total + room
    attrs: dict[str, Any] = {"num_heads": shared * group, "kv_num_heads": shared}
    attrs |= one({}, {"local_window_size": 7}, {"softcap": 4.0}, {"smooth_softmax": 1})
    turns = None
    if size % 2 == 0 and one(True, True, False):
        attrs |= {"do_rotary": 1, "rotary_interleaved": one(0, 1)}
        turns = one(size // 2, size // 4)

    def made(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape).astype(numpy_type(dtype))
    packed = one(True, False)
    widths = [shared * group * size, shared * size, shared * size]
    rows = [made(batch, length, n) for n in widths]
    if packed:
        rows = [np.concatenate(rows, 2), None, None]  # type: ignore[list-item]
    angles = [None if turns is None else made(total + 2, turns) for _ in range(2)]
    data, feeds = of_arrays(MS + "GroupQueryAttention", dict(zip(
        ("q", "k", "v", "pk", "pv", "ends", "total", "cos", "sin"),
        (*rows, *(made(batch, shared, capacity, size) for _ in range(2)), np.array(ends, np.int32) - 1,
         np.array(total, np.int32), *angles), strict=True)), 3, ("total", "cos", "sin"), **attrs)
    return data, feeds, dtype


@pytest.mark.parametrize("seed", [
    seed if seed in (1, 6) else pytest.param(seed, marks=pytest.mark.slow) for seed in range(24)])
def test_caches_that_grow(seed: int) -> None:
    data, feeds, dtype = drawn(seed)
    compare(data, feeds, by_turns(seed), BOUNDS[dtype], BOUNDS[dtype])
    kernels = [step.spec.template for step in lowered(
        onnx.load_from_string(data), feeds, "gfx942").steps if step.spec is not None]
    assert "append_rows" not in kernels and "turn" not in kernels, kernels


def test_shares_of_a_long_cache() -> None:
    """Several programs read it; each moves its part, and the last one writes the new row."""
    rng = np.random.default_rng(3)

    def made(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape).astype(np.float32)
    for shared, (target,) in ((1, by_turns("one")), (2, by_turns("two"))):
        data, feeds = of_arrays(MS + "GroupQueryAttention", {
            "q": made(1, 1, 64), "k": made(1, 1, shared * 32), "v": made(1, 1, shared * 32),
            "pk": made(1, shared, 700, 32), "pv": made(1, shared, 700, 32), "ends": np.array([650], np.int32),
            "total": np.array(700, np.int32), "cos": made(700, 16), "sin": made(700, 16)}, 3,
            ("total", "cos", "sin"), num_heads=2, kv_num_heads=shared, do_rotary=1)
        steps: list[Any] = [s.spec for s in lowered(onnx.load_from_string(data), feeds, target).steps]
        assert any(dict(spec.params).get("most", 1) > 1 for spec in steps if spec.template == "attend")
        compare(data, feeds, (target,), 1e-4, 1e-4)


def test_rows_for_which_there_is_no_room_are_refused() -> None:
    """As the definition refuses them, and no cache is written beyond its end."""
    data, feeds, _ = drawn(0)
    feeds["ends"] = feeds["ends"] + 10_000
    messages = []
    for session in (on_gpu(data, "gfx942"), ort.InferenceSession(data, providers=["CPUExecutionProvider"])):
        with pytest.raises(Exception, match="seqlens_k") as raised:
            session.run(None, feeds)
        messages.append(type(raised.value))
    assert messages[0] is messages[1]


@pytest.mark.slow
@pytest.mark.parametrize("target", ["sm_75", "sm_86", "sm_90", "gfx942", "gfx1100"])
def test_tiles_fit_into_what_a_block_shares(target: str) -> None:
    for size, group in ((64, 8), (128, 4), (256, 2), (128, 1)):
        feeds = {"q": np.zeros((1, 1, group * size), np.float16)}
        feeds |= dict.fromkeys("kv", np.zeros((1, 1, size), np.float16))
        feeds |= dict.fromkeys(("pk", "pv"), np.zeros((1, 1, 300, size), np.float16))
        feeds |= {"ends": np.zeros(1, np.int32), "total": np.array(300, np.int32)}
        feeds |= dict.fromkeys(("cos", "sin"), np.zeros((300, size // 2), np.float16))
        data, feeds = of_arrays(MS + "GroupQueryAttention", feeds, 3, ("total", "cos", "sin"),
                                num_heads=group, kv_num_heads=1, do_rotary=1)
        lo = lowered(onnx.load_from_string(data), feeds, target)
        (step,) = [step for step in lo.steps if step.spec.template == "attend"]
        code = compiling.code(step.spec, lo.target, hinted(step, lo))
        assert code.shared <= lo.target.shared, (size, group)


def test_a_layer_behind_a_cache_is_one_kernel() -> None:
    data, feeds, _ = drawn(4)
    session = on_gpu(data, "gfx942")
    session.run(None, feeds)
    before = driver(session).counts["launch"]
    got = session.run(None, feeds)
    assert driver(session).counts["launch"] - before == 1
    for y, wanted in zip(got, defined(onnx.load_from_string(data), feeds), strict=True):
        np.testing.assert_allclose(y, wanted, 1e-4, 1e-4)
