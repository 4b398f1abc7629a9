"""Convolutions as AMD machine code, against the operators' definitions, over geometries drawn at random."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gpu_lowered import AMD, defined, ran
from image_models import Images

pytestmark = pytest.mark.needs("AMD tables", "Triton")

CHANNELS = (1, 2, 3, 5, 8, 16, 17, 20, 32, 40)
NEAR = {"float32": 1e-6, "float16": 2e-3, "bfloat16": 1.6e-2, "float64": 1e-14}
"""How far a result may be from its definition, of its largest number."""


def followed(m: Images, y: str, shape: tuple[int, ...]) -> str:
    """What stands behind a convolution."""
    how = m.chosen("nothing", "Relu", "Add", "scale", "Clip", "pixels")
    if how == "Relu":
        return str(m.node("Relu", y))
    if how == "Add":
        return str(m.node("Relu", m.node("Add", y, m.given(m.numbers(shape)))))
    if how == "scale":
        return str(m.node("Mul", m.constant(m.numbers((shape[1], *(1,) * (len(shape) - 2)))), y))
    if how == "pixels":
        return str(m.node("Sub", y, m.given(m.numbers((1, *shape[2:])))))
    return str(m.node("Sigmoid", y)) if how == "Clip" else y


def shape_of(m: Images, y: str) -> tuple[int, ...]:
    return tuple(defined(m.model(y, opset=22), m.feeds)[0].shape)


def drawn(seed: int, dtype: str) -> tuple[Images, str]:
    """A convolution of one to three spatial axes."""
    m = Images(seed, dtype)
    rank = m.chosen(1, 2, 2, 2, 3)
    kernel = [m.chosen(1, 1, 2, 3, 3, 5) if rank < 3 else m.chosen(1, 2, 3) for _ in range(rank)]
    if m.chosen(0, 0, 1):
        kernel = [1] * rank
    attrs: dict[str, Any] = {"strides": [m.chosen(1, 1, 2, 3) for _ in range(rank)],
                             "dilations": [m.chosen(1, 1, 1, 2) for _ in range(rank)]}
    if m.chosen(0, 0, 1):
        attrs["auto_pad"] = m.chosen("SAME_UPPER", "SAME_LOWER", "VALID")
    else:
        attrs["pads"] = [m.chosen(0, 0, 1, 2) for _ in range(2 * rank)]
    size = [int(m.rng.integers((k - 1) * d + 1, (k - 1) * d + (9 if rank < 3 else 4)))
            for k, d in zip(kernel, attrs["dilations"], strict=True)]
    group = m.chosen(1, 1, 1, 2, 4, 6)
    cin, cout = m.chosen(*CHANNELS), m.chosen(*CHANNELS)
    if group > 1:
        cin, cout = m.chosen(1, 1, 2, 4, 5, 16), m.chosen(1, 1, 2, 3, 16)
    op = m.chosen("Conv", "Conv", "Conv", "ConvTranspose")
    weights = (group * cout, cin, *kernel) if op == "Conv" else (group * cin, cout, *kernel)
    if op != "Conv":
        attrs.pop("auto_pad", None)
        attrs["pads"] = [m.chosen(0, 0, 1) if k > 1 else 0 for k in kernel * 2]
        attrs["output_padding"] = [int(m.rng.integers(0, s)) for s in attrs["strides"]]
    x = m.given(m.numbers((m.chosen(1, 1, 2, 3), group * cin, *size)))
    w = m.numbers(weights)
    inputs = [x, m.given(w) if op == "Conv" and m.chosen(0, 0, 0, 1) else m.constant(w)]
    if m.chosen(0, 1):
        inputs.append(m.constant(m.numbers(group * cout)))
    y = m.node(op, *inputs, group=group, **attrs)
    return m, followed(m, y, shape_of(m, y))


def near(got: np.ndarray, expected: np.ndarray, dtype: str, said: str) -> None:
    assert got.shape == expected.shape and got.dtype == expected.dtype, said
    a, b = got.astype(np.float64), expected.astype(np.float64)
    worst = np.abs(a - b).max(initial=0)
    assert worst <= NEAR[dtype] * max(1, np.abs(b).max(initial=0)), f"{worst}: {said}"


def check(seed: int, dtype: str, target: str) -> None:
    m, y = drawn(seed, dtype)
    model = m.model(y, opset=22)
    got = ran(model, m.feeds, target, seed)
    assert not got.why, (got.why, m.said)
    near(got.outputs[0], defined(model, m.feeds)[0], dtype, f"{target} {dtype} {seed}: {m.said}")


if __name__ == "__main__":
    import sys
    import time
    first, last = int(sys.argv[1]), int(sys.argv[2])
    for seed in range(first, last):
        dtype = ("float32", "float16", "float32", "bfloat16", "float64")[seed % 5]
        for target in AMD:
            start = time.time()
            try:
                check(seed, dtype, target)
            except Exception as error:
                print(seed, dtype, target, type(error).__name__, str(error)[:1500], flush=True)
            if time.time() - start > 8:
                print("slow", seed, dtype, target, round(time.time() - start, 1), drawn(seed, dtype)[0].said, flush=True)
    print("done")
