"""GroupQueryAttention whose total length is fed: by generated code and by its definition."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import orthrus as ort
from orthrus.errors import InvalidArgument

HEADS, SHARED, SIZE = 4, 2, 8


def model(dtype: Any, packed: bool, past: bool, **attributes: Any) -> bytes:
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    names = ["q", *(("", "") if packed else ("k", "v")), *(("pk", "pv") if past else ("", ""))]
    names += ["ends", "total"]
    width = {"q": (HEADS + 2 * SHARED if packed else HEADS) * SIZE, "k": SHARED * SIZE, "v": SHARED * SIZE}
    made = [helper.make_tensor_value_info(name, kind, ["B", "S", wide]) for name, wide in width.items()
            if name in names]
    made += [helper.make_tensor_value_info(name, kind, ["B", SHARED, "P", SIZE]) for name in ("pk", "pv")
             if past]
    made += [helper.make_tensor_value_info("ends", TensorProto.INT32, ["B"]),
             helper.make_tensor_value_info("total", TensorProto.INT32, None)]
    held = []
    if attributes.get("do_rotary"):
        names += ["cos", "sin"]
        angles = np.arange(64)[:, None] * np.linspace(0.1, 1, SIZE // 2)
        held = [helper.make_tensor(name, kind, angles.shape, of(angles).astype(dtype))
                for name, of in (("cos", np.cos), ("sin", np.sin))]
    node = helper.make_node("GroupQueryAttention", names, ["y", "nk", "nv"], domain="com.microsoft",
                            num_heads=HEADS, kv_num_heads=SHARED, **attributes)
    graph = helper.make_graph([node], "g", made, [helper.make_tensor_value_info(name, kind, None)
                                                  for name in ("y", "nk", "nv")], held)
    return helper.make_model(graph, ir_version=10, opset_imports=[
        helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]).SerializeToString()


def feeds(rng: np.random.Generator, dtype: Any, packed: bool, held: int | None, length: int,
          ends: list[int], total: Any) -> dict[str, np.ndarray]:
    batch = len(ends)
    wide = HEADS + 2 * SHARED if packed else HEADS
    shapes: dict[str, tuple[int, ...]] = {"q": (batch, length, wide * SIZE)}
    if not packed:
        shapes |= dict.fromkeys("kv", (batch, length, SHARED * SIZE))
    if held is not None:
        shapes |= dict.fromkeys(("pk", "pv"), (batch, SHARED, held, SIZE))
    made = {name: rng.standard_normal(shape).astype(dtype) for name, shape in shapes.items()}
    return made | {"ends": np.array(ends, np.int32) - 1, "total": np.array(total, np.int32)}


def both(source: bytes, threads: int) -> list[ort.InferenceSession]:
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    return [ort.InferenceSession(source, options, providers=[("CPUExecutionProvider", {"use_codegen": how})])
            for how in "10"]


def results(session: ort.InferenceSession, given: dict[str, np.ndarray]) -> Any:
    try:
        return session.run(None, given)
    except Exception as error:
        return type(error), str(error)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize(("packed", "attributes"), [
    (False, {}), (True, {"do_rotary": 1}), (False, {"local_window_size": 3, "softcap": 4.0}),
    (False, {"causal": 0}), (True, {"smooth_softmax": 1, "scale": 0.3})])
def test_any_length(dtype: Any, packed: bool, attributes: dict[str, Any], threads: int) -> None:
    """Prompts, tokens within a cache and behind it, lengths that fit nothing, in any order."""
    rng = np.random.default_rng(len(attributes) + packed)
    atol = 2e-6 if dtype == np.float32 else 4e-3
    for past in (True, False):
        made, defined = both(model(dtype, packed, past, **attributes), threads)
        served = 0
        for _ in range(40):
            held = int(rng.choice([0, 5, 12])) if past else None
            length, batch = int(rng.choice([1, 1, 2, 6])), int(rng.integers(1, 4))
            there = held or 0
            total = int(rng.choice([length, there + length, max(there, length), there, length + 1, 0]))
            ends = [int(rng.choice([total, max(total - 1, 0), length, total + 1])) for _ in range(batch)]
            if rng.random() < 0.7:
                ends = [min(max(end, length), total) for end in ends]
            given = feeds(rng, dtype, packed, held, length, ends, [total] if rng.random() < 0.5 else total)
            if rng.random() < 0.2 and min(ends) >= length:
                given["q"][0, -1, :3] = rng.choice([np.nan, -0.0])
            found, wanted = results(made, given), results(defined, given)
            if isinstance(wanted, tuple):
                assert isinstance(found, tuple) and found == wanted, (wanted, ends, total, held, length)
                continue
            served += 1
            again = [results(made, given) for _ in range(3)]
            results(made, {name: array + array.dtype.type(name != "total") for name, array in given.items()})
            for a, *others in zip(found, *again, strict=True):
                assert all(a.tobytes() == other.tobytes() for other in others)
            for a, b in zip(found, wanted, strict=True):
                assert a.dtype == b.dtype and a.shape == b.shape
                np.testing.assert_allclose(a.astype(np.float32), b.astype(np.float32), atol=atol, rtol=1e-3)
        assert served > 5


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("heads", [1, HEADS])
def test_a_bias_as_long_as_the_sequence(heads: int, batch: int) -> None:
    """What is added to the scores has a column for each token so far, of which a cache may hold more."""
    whole = onnx.load_from_string(model(np.float32, False, True, local_window_size=5))
    node = whole.graph.node[0]
    node.input.extend(["", "", "", "bias"])
    whole.graph.input.append(helper.make_tensor_value_info("bias", TensorProto.FLOAT, [None] * 4))
    made, defined = both(whole.SerializeToString(), 1)
    rng = np.random.default_rng(heads)
    for held, length, total in ((12, 1, 7), (12, 1, 12), (12, 4, 9), (12, 6, 6), (5, 2, 7), (0, 4, 4)):
        given = feeds(rng, np.float32, False, held, length, [total] * batch, total)
        for columns in (total, total + 1, max(total, held), held + 3):
            given["bias"] = rng.standard_normal((1, heads, length, columns)).astype(np.float32)
            if columns < total:
                continue
            for found, wanted in zip(made.run(None, given), defined.run(None, given), strict=True):
                np.testing.assert_allclose(found, wanted, atol=2e-6)
        for shape in ((1, heads, length, total - 1), (1, heads, length + 1, total), (1, 3, length, total),
                      (batch + 1, heads, length, total)):
            given["bias"] = np.zeros(shape, np.float32)
            for session in (made, defined):
                with pytest.raises(InvalidArgument, match="attention_bias of shape"):
                    session.run(None, given)


def test_a_cache_that_is_bound_grows_in_place() -> None:
    source = model(np.float32, False, True)
    made, defined = both(source, 1)
    rng = np.random.default_rng(1)
    caches = {name: rng.standard_normal((1, SHARED, 16, SIZE)).astype(np.float32) for name in ("pk", "pv")}
    bound = {name: ort.OrtValue.ortvalue_from_numpy(array) for name, array in caches.items()}
    for length in range(4, 9):
        given = feeds(rng, np.float32, False, None, 1, [length], length)
        wanted = defined.run(None, given | caches)
        caches = dict(zip(("pk", "pv"), wanted[1:], strict=True))
        binding = made.io_binding()
        for name, array in given.items():
            binding.bind_cpu_input(name, array)
        for name, new in (("pk", "nk"), ("pv", "nv")):
            binding.bind_ortvalue_input(name, bound[name])
            binding.bind_ortvalue_output(new, bound[name])
        binding.bind_output("y")
        made.run_with_iobinding(binding)
        np.testing.assert_allclose(binding.get_outputs()[-1].numpy(), wanted[0], atol=2e-6)
        for name, array in caches.items():
            np.testing.assert_array_equal(bound[name].numpy(), array)


def test_what_computes_it_is_told() -> None:
    made, _ = both(model(np.float32, False, True), 1)
    assert "generated GroupQueryAttention" in str(made.explain())
