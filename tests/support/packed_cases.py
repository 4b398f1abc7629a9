"""Random applications of what onnxruntime's CPU build has from 1.32 on: requests of different lengths behind
each other, and rows in the block formats of GGUF files."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
from contrib_cases import CASES, FLOATS, Draw, contrib, drawn
from oracle import Case

SINCE = (1, 32)


def starts(d: Draw) -> np.ndarray:
    """Where requests of 1 to 9 tokens begin, and their end."""
    return np.cumsum([0, *d.ints(1, 10, d.one(1, 2, 4))]).astype(np.int32)


def capture(d: Draw, requests: int) -> tuple[np.ndarray | None, dict[str, int]]:
    """Perhaps how many tokens of each request to capture, every one that there is room for."""
    if d.yes():
        return None, {}
    return np.full(requests, 9, np.int32), {"state_update_capacity": 1}


@drawn("VarlenCausalConvWithState")
def varlen_conv(d: Draw) -> Case:
    at, channels, taps, dilation = starts(d), d.one(1, 3, 17), d.one(1, 2, 4), d.one(1, 1, 2)
    dtype = d.one(*FLOATS)
    count, attrs = capture(d, len(at) - 1)
    return contrib("VarlenCausalConvWithState", [
        d.floats(at[-1], channels, dtype=dtype), d.floats(channels, 1, taps, dtype=dtype), at,
        d.maybe(channels, dtype=dtype), d.floats(len(at) - 1, channels, (taps - 1) * dilation, dtype=dtype),
        *([] if count is None else [count])],
        {"activation": d.one("none", "silu", "swish"), "dilation": dilation, **attrs}, 2 + len(attrs))


@drawn("GatedDeltaNet")
def gated_delta(d: Draw) -> Case:
    at, shared, size, deep = starts(d), d.one(1, 2), d.one(4, 8), d.one(3, 8)
    heads, dtype = shared * d.one(1, 3), d.one(*FLOATS)
    rule = d.one("linear", "gated", "delta", "gated_delta")
    form, total = d.one("ragged", "batch", "packed"), int(at[-1])
    kind = d.one("none", "softplus", "sigmoid")
    if form == "batch":
        at = np.arange(3, dtype=np.int32) * 5
        total = 10
    keys = d.floats(total, shared, size)
    keys = (keys / np.sqrt((keys * keys).sum(-1, keepdims=True))).astype(dtype)
    parts: list[Any] = [d.floats(total, shared, size, dtype=dtype), keys,
                        d.floats(total, heads, deep, dtype=dtype)]
    wide = d.one(1, size)
    other = d.one(np.float32, dtype)
    decay = -np.abs(d.floats(total, heads, *((wide,) if wide > 1 else ()))).astype(other)
    beta = np.abs(d.floats(total, heads)).astype(other)
    state = d.maybe(len(at) - 1, heads, deep, size)
    if form != "ragged" and state is None:
        state = d.floats(len(at) - 1, heads, deep, size)
    if form == "packed":
        parts = [np.concatenate([p.reshape(total, -1) for p in parts], 1), None, None]
    elif form == "batch":
        parts = [p.reshape(2, 5, *p.shape[1:]) for p in parts]
        decay, beta = (x.reshape(2, 5, *x.shape[1:]) for x in (decay, beta))
    gates = [d.floats(heads), d.floats(heads, *((wide,) if wide > 1 and d.yes() else ()))]
    if gates[1].ndim == 1 and wide > 1:
        gates[1] = d.floats(heads * wide)
    count, attrs = capture(d, len(at) - 1)
    gated, delta = "gated" in rule, "delta" in rule
    return contrib("GatedDeltaNet", [
        *parts, None if form == "batch" else at, decay if gated else None, beta if delta else None, state,
        *(gates if gated and kind != "none" else (None, None)), count],
        {"update_rule": rule, "qk_l2_norm": d.one(0, 1), "gate_activation": kind if gated else "none",
         "beta_activation": d.one("none", "sigmoid") if delta else "none",
         **({"scale": 0.7} if d.yes() else {}), **({"gate_lower_bound": -3.0} if kind == "sigmoid" else {}),
         **attrs}, 2 + len(attrs), rtol=5e-4, atol=1e-4)


@drawn("MoEGroupRouter")
def group_router(d: Draw) -> Case:
    groups, each = d.one(1, 2, 4), d.one(2, 5)
    picked = d.one(*range(1, groups + 1))
    lead, dtype = d.one((7,), (2, 3)), d.one(*FLOATS)
    logits = d.rng.permutation(np.linspace(-4, 4, int(np.prod(lead)) * groups * each))
    return contrib("MoEGroupRouter", [
        logits.reshape(*lead, -1).astype(dtype), 0.1 * d.floats(groups * each)],
        {"top_k": d.one(1, min(2, picked * each)), "n_group": groups, "topk_group": picked,
         "group_topk": d.one(1, 2, 9)})


@drawn("GatherPacked")
def packed_rows(d: Draw) -> Case:
    kind, size, block = d.one((0, 4, 1), (1, 2, 1), (2, 18, 32), (6, 22, 32), (8, 34, 32), (13, 176, 256),
                              (14, 210, 256), (20, 18, 32), (23, 136, 256), (30, 2, 1), (42, 18, 64))
    blocks, rows = d.one(1, 3), d.one(1, 5)
    data = d.ints(0, 256, rows, blocks * size, dtype=np.uint8)
    halves = {2: (0,), 6: (0,), 8: (0,), 13: (0, 2), 14: (208,), 20: (0,), 23: (0,), 42: (0,)}.get(kind, ())
    for at in halves:
        each = data.reshape(-1, size)
        each[:, at:at + 2] = d.floats(len(each), 1, dtype=np.float16).view(np.uint8)
    if not halves:
        data = d.floats(rows, blocks, dtype={4: np.float32, 2: np.float16}[size] if kind != 30
                        else ml_dtypes.bfloat16).view(np.uint8).reshape(rows, -1)
    return contrib("GatherPacked", [data, d.ints(-2, rows + 2, *d.one((3,), (2, 3), ()),
                                                 dtype=d.one(np.int32, np.int64))],
                   {"K": blocks * block, "packed_type": kind, "output_dtype": d.one(1, 10)}, rtol=1e-6)


@drawn("GroupQueryAttention/padded")
def padded_attention(d: Draw) -> Case:
    """Of each batch entry's tokens the last may be padding."""
    batch, length, shared, size = d.one(1, 3), d.one(1, 4), d.one(1, 2), 16
    heads, dtype = shared * d.one(1, 2), d.one(np.float32, np.float16)
    news = d.ints(0, length + 1, batch, dtype=np.int32)
    before = d.ints(0, 6, batch, dtype=np.int32)
    news = np.maximum(news, before == 0).astype(np.int32)
    held = int(before.max()) + d.one(0, length)
    total = max(held, int(before.max()) + length) + d.one(0, 2)
    attrs: dict[str, Any] = {"num_heads": heads, "kv_num_heads": shared}
    turned = d.yes()
    if turned:
        attrs |= {"do_rotary": 1, "rotary_interleaved": d.one(0, 1)}
    if d.yes():
        attrs["local_window_size"] = 3
    packed = d.yes()
    parts: list[Any] = [d.floats(batch, length, n * size, dtype=dtype) for n in (heads, shared, shared)]
    if packed:
        parts = [np.concatenate(parts, 2), None, None]
    places = d.ints(0, 12, batch, length) if turned and d.yes() else None
    return contrib("GroupQueryAttention", [
        *parts, *(d.floats(batch, shared, held, size, dtype=dtype) for _ in range(2)),
        (before + news - 1).astype(np.int32), np.array([total], np.int32),
        *([d.floats(16, size // 2, dtype=dtype) for _ in range(2)] if turned else (None, None)), places,
        d.floats(d.one(1, batch), d.one(1, heads), length, total, dtype=dtype) if d.yes() else None,
        d.maybe(heads, dtype=dtype), None, None, None, None, news], attrs, 3,
        **({} if dtype == np.float32 else {"rtol": 1e-3, "atol": 2e-3}))


@drawn("MatMulNBits/omitted")
def omitted_weights(d: Draw) -> Case:
    """A matrix of which a dimension is 0 stands for none."""
    n, blocks, dtype = d.one(1, 5), d.one(1, 2), d.one(np.float32, np.float16)
    shape = [n, blocks, 16]
    shape[d.one(0, 1, 2)] = 0
    bias = [None, None, d.floats(n, dtype=dtype)] if d.yes() else []
    return contrib("MatMulNBits", [d.floats(3, 32 * blocks, dtype=dtype), np.zeros(shape, np.uint8),
                                   np.zeros(0 if d.yes() else n * blocks, dtype), *bias],
                   {"N": n, "K": 32 * blocks, "bits": 4, "block_size": 32})


NEWER = tuple(name for name, make in CASES.items() if make.__module__ == __name__)
"""What onnxruntime before 1.32 does not run."""


def without_padding(case: Case, made: list[Any]) -> list[Any]:
    """Outputs of GroupQueryAttention with zeros where padding may leave anything."""
    ends, news = case.inputs[5], case.inputs[16]
    assert ends is not None and news is not None
    y, *caches = [np.array(a) for a in made]
    for b, (last, count) in enumerate(zip(ends, news, strict=True)):
        y[b, count:] = 0
        for cache in caches:
            cache[b, :, last + 1:] = 0
    return [y, *caches]


SPECIFIED = {"GroupQueryAttention/padded": without_padding}
"""What makes outputs comparable of which a part is not specified."""
