"""Random convolutions, transposed convolutions and pools, of every combination of attributes, small and odd.

`python tests/support/window_cases.py 200 --start 1000` looks for models whose generated code differs from the
operators' definitions.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import numpy as np
from epilogue_cases import Branches, defined, faults

AUTO = ("SAME_UPPER", "SAME_LOWER", "VALID")
FOLLOWING = ("Relu", "Add", "Mul", "HardSwish", "PRelu", "none", "none")
KINDS = ("Conv", "ConvTranspose", "MaxPool", "AveragePool", "LpPool", "ConvInteger", "QLinearConv")
FLOATS = ("float32", "float32", "float16", "float64")


def _draw(rng: np.random.Generator, low: int, high: int, count: int) -> list[int]:
    return [int(n) for n in rng.integers(low, high + 1, count)]


def _window(rng: np.random.Generator, rank: int, pooled: bool) -> dict[str, Any]:
    """Attributes that all windows have."""
    kernel = _draw(rng, 1, 4 if rank < 3 else 2, rank)
    attrs: dict[str, Any] = {"kernel_shape": kernel}
    if rng.random() < 0.6:
        attrs["strides"] = _draw(rng, 1, 4, rank)
    if rng.random() < 0.4:
        attrs["dilations"] = _draw(rng, 1, 3, rank)
    padding = rng.random()
    if padding < 0.2:
        attrs["auto_pad"] = str(rng.choice(AUTO))
    elif padding < 0.7:
        most = [k - 1 if pooled else 3 for k in kernel]
        attrs["pads"] = [int(rng.integers(0, m + 1)) for m in (*most, *most)]
    return attrs


def _cropped(rng: np.random.Generator, rank: int) -> dict[str, Any]:
    """Attributes of a transposed window that is no longer than its steps, and crops rows to a multiple of
    those: phases are of one tap and lie evenly."""
    step = int(rng.integers(1, 4))
    taps, before = int(rng.integers(1, step + 1)), int(rng.integers(0, step + 1))
    rest = [1] * (rank - 1)
    pads = [*(0 for _ in rest), before, *(0 for _ in rest), (taps - before) % step]
    return {"kernel_shape": [*rest, taps], "strides": [*rest, step], "pads": pads}


def _size(rng: np.random.Generator, rank: int) -> tuple[int, ...]:
    return tuple(_draw(rng, 1, 9 if rank < 3 else 4, rank))


def _channels(rng: np.random.Generator) -> tuple[int, int, int]:
    """Groups, and channels of each on both sides."""
    if rng.random() < 0.2:
        return int(rng.choice((2, 3, 5, 8, 17))), 1, 1
    few = (1, 2, 3, 5, 16, 17)
    return int(rng.choice((1, 1, 1, 2, 3))), int(rng.choice(few)), int(rng.choice(few))


def _pool(b: Branches, kind: str, rank: int, n: int) -> tuple[str, Any]:
    rng = b.rng
    attrs = _window(rng, rank, True)
    if kind == "AveragePool":
        attrs["count_include_pad"] = int(rng.integers(0, 2))
    if kind == "LpPool":
        attrs["p"] = int(rng.integers(1, 3))
    attrs["ceil_mode"] = int(rng.integers(0, 2))
    dtype = rng.choice((np.uint8, np.int8)) if kind == "MaxPool" and rng.random() < 0.2 else b.dtype
    x = b.given(b.values((n, int(rng.choice((1, 2, 3, 5, 17))), *_size(rng, rank)), dtype))
    made = b.node(kind, x, **attrs)
    return b.node("Cast", made, to=1) if dtype != b.dtype else made, attrs


def _conv(b: Branches, kind: str, rank: int, n: int) -> tuple[str, Any]:
    rng = b.rng
    turned = kind == "ConvTranspose"
    attrs = _cropped(rng, rank) if turned and rng.random() < 0.4 else _window(rng, rank, False)
    group, cin, cout = _channels(rng)
    attrs["group"] = group
    size = _size(rng, rank)
    shape = (group * cin, cout) if turned else (group * cout, cin)
    if turned:
        strides, dilations = (attrs.get(name, [1] * rank) for name in ("strides", "dilations"))
        if rng.random() < 0.3:
            attrs["output_padding"] = [int(rng.integers(0, max(s, d))) for s, d in zip(
                strides, dilations, strict=True)]
        if rng.random() < 0.2:
            most = [(d - 1) * s + (k - 1) * e + 1 for d, s, k, e in zip(
                size, strides, attrs["kernel_shape"], dilations, strict=True)]
            attrs["output_shape"] = [int(rng.integers(max(1, m - 3), m + 1)) for m in most]
            attrs.pop("pads", None)
    bias = [b.held(b.values((group * cout,)))] if rng.random() < 0.5 else []
    x, w = b.given(b.values((n, group * cin, *size))), b.held(b.values((*shape, *attrs["kernel_shape"])))
    return b.node(kind, x, w, *bias, **attrs), attrs


def _bytes(b: Branches, kind: str, rank: int, n: int) -> tuple[str, Any]:
    rng = b.rng
    rank = min(rank, 2)
    attrs, (group, cin, cout) = _window(rng, rank, False), _channels(rng)
    attrs["group"] = group
    signs = rng.choice((np.uint8, np.int8)), np.int8
    x = b.given(b.values((n, group * cin, *_size(rng, rank)), signs[0]))
    w = b.held(b.values((group * cout, cin, *attrs["kernel_shape"]), signs[1]))
    zero = b.held(np.array(3, signs[0]))
    if kind == "ConvInteger":
        made = b.node(kind, x, w, zero, b.held(np.array(1, signs[1])), **attrs)
        return b.node("Cast", made, to=1), attrs
    scale = b.held(np.float32(0.1))
    each = b.held(np.abs(b.values((group * cout,), np.float32)) + np.float32(0.1))
    end = b.held(np.float32(0.5)), b.held(np.array(2, signs[0]))
    made = b.node(kind, x, scale, zero, w, each, b.held(np.zeros(group * cout, np.int8)), *end, **attrs)
    return b.node("Cast", made, to=1), attrs


_WRITE: dict[str, Callable[[Branches, str, int, int], tuple[str, Any]]] = {
    "Conv": _conv, "ConvTranspose": _conv, "ConvInteger": _bytes, "QLinearConv": _bytes}


def build(seed: int, kind: str, dtype: str = "float32") -> Branches:
    """A model of one window, and what may follow it."""
    b = Branches(seed, "float32" if kind in ("ConvInteger", "QLinearConv") else dtype)
    rank, n = int(b.rng.choice((1, 2, 2, 2, 3))), int(b.rng.choice((1, 2, 3)))
    value, attrs = _WRITE.get(kind, _pool)(b, kind, rank, n)
    then = str(b.rng.choice(FOLLOWING))
    if then in ("Relu", "HardSwish"):
        value = b.node(then, value)
    elif then != "none":
        own = [(1,), (1,) * rank, (n, *(1,) * (rank + 1))][b.rng.integers(0, 3)]
        value = b.node(then, value, b.held(b.values(own)))
    b.end(value, f"{kind} {attrs} {then}")
    return b


def defined_for(b: Branches) -> bool:
    """Whether the definitions take what was drawn."""
    try:
        defined(b.model(), b.feeds)
    except Exception as error:
        if type(error).__module__ != "orthrus.errors":
            raise
        return False
    return True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("count", type=int)
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--kind", default="")
    args = parser.parse_args()
    kinds = [k for k in KINDS if k.startswith(args.kind)]
    bad = invalid = 0
    for seed in range(args.start, args.start + args.count):
        kind, rng = kinds[seed % len(kinds)], np.random.default_rng(seed)
        dtype, level = str(rng.choice(FLOATS)), str(rng.choice(("ORT_DISABLE_ALL", "ORT_ENABLE_ALL")))
        b = build(seed, kind, dtype)
        if not defined_for(b):
            invalid += 1
            continue
        try:
            found = faults(b, level, int(rng.integers(1, 3)))
        except Exception as error:
            found = [f"{type(error).__name__}: {str(error)[:400]}"]
        if found:
            bad += 1
            shapes = {k: v.shape for k, v in (*b.feeds.items(), *b.weights.items())}
            print(f"seed {seed}, {b.dtype}, {level}, {shapes}:", *found[:4], sep="\n    ", flush=True)
    print(f"{bad} of {args.count} models, {invalid} refused")


if __name__ == "__main__":
    main()
