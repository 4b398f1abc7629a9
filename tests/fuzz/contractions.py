"""Steps of random graphs that multiply matrices or slide windows, with what tends to follow them."""

from __future__ import annotations

import numpy as np

from fuzz.steps import Maker, broadcasts, operand


def product(g: Maker) -> None:
    x = g.floats(2)
    if x is None:
        return
    if g.r.random() < 0.4:
        perm = list(range(x.array.ndim))
        perm[-2:] = perm[:-3:-1] if len(perm) == 2 else [perm[-1], perm[-2]]
        x = g.emit("Transpose", x, perm=perm) or x
    k = x.shape[-1]
    y = (
        g.pick(
            lambda v: (
                v.array.dtype == g.dtype
                and v.array.ndim >= 2
                and v.shape[-2] == k
                and broadcasts(v.shape[:-2], x.shape[:-2])
            )
        )
        if g.r.random() < 0.4
        else None
    )
    y = y or g.random((k, g.r.randint(1, 4)), 0.5)
    z = g.emit("MatMul", x, y)
    if z is not None and g.r.random() < 0.7:
        follow = g.r.choice(["Add", "Mul", "Div", "Add", "Same"])
        if follow == "Same":
            g.emit("Add", z, z)
        else:
            g.emit(follow, *g.r.sample([z, operand(g, z)], 2) if follow != "Div" else (z, operand(g, z)))


def gemm(g: Maker) -> None:
    x = g.floats(2, 2)
    if x is None:
        return
    ta, tb, n = g.r.randrange(2), g.r.randrange(2), g.r.randint(1, 4)
    k = x.shape[0 if ta else 1]
    c = [g.random(g.r.choice([(n,), (1, n), (1,), ()]))] if g.r.random() < 0.6 else []
    y = g.emit(
        "Gemm",
        x,
        g.random((n, k) if tb else (k, n), 0.5),
        *c,
        transA=ta,
        transB=tb,
        alpha=g.r.choice([1.0, 0.5]),
        beta=g.r.choice([1.0, 2.0]),
    )
    if y is not None and g.r.random() < 0.6:
        if g.r.random() < 0.5:
            stats = [
                g.random((n,)),
                g.random((n,)),
                g.random((n,)),
                g.const(g.rng.uniform(0.5, 2, n).astype(g.dtype)),
            ]
            g.emit("BatchNormalization", y, *stats)
        else:
            g.emit(g.r.choice(["Add", "Mul", "Transpose"]), y, *([operand(g, y)] if g.r.random() < 1 else []))


def convolution(g: Maker) -> None:
    x = g.floats(3, 5)
    if x is None or 0 in x.shape:
        return
    n, c = x.array.ndim - 2, x.shape[1]
    kernel = [g.r.randint(1, min(3, d)) for d in x.shape[2:]]
    group = c if g.r.random() < 0.3 else 1
    op = g.r.choice(["Conv", "Conv", "Conv", "ConvTranspose", "MaxPool", "AveragePool"])
    pads = [g.r.randrange(k) for k in (*kernel, *kernel)] if g.r.random() < 0.5 else None
    if g.r.random() < 0.4:
        amount = [0, 0, *(g.r.randrange(2) for _ in range(n))] * 2
        value = [g.const(np.array(g.r.choice([0, 0, 1]), g.dtype))] if g.r.random() < 0.5 else []
        x = g.emit("Pad", x, g.ints(*amount), *value) or x
    if op.endswith("Pool"):
        g.emit(op, x, kernel_shape=kernel, pads=pads, strides=[g.r.randint(1, 2)] * n)
        return
    m = g.r.randint(1, 3) * group
    weights = g.random((m, c // group, *kernel) if op == "Conv" else (c, m // group, *kernel), 0.5)
    y = g.emit(
        op,
        x,
        weights,
        *([g.random((m,))] if g.r.random() < 0.5 else []),
        pads=pads,
        group=group,
        strides=[g.r.randint(1, 2)] * n if g.r.random() < 0.4 else None,
    )
    for _ in range(g.r.randrange(3)):
        if y is None:
            return
        kind = g.r.randrange(4)
        if kind == 0:
            stats = [
                g.random((m,)),
                g.random((m,)),
                g.random((m,)),
                g.const(g.rng.uniform(0.5, 2, m).astype(g.dtype)),
            ]
            y = g.emit("BatchNormalization", y, *stats)
        elif kind == 1:
            factor = g.random((m, *[1] * n)) if g.r.random() < 0.7 else operand(g, y)
            y = g.emit(g.r.choice(["Add", "Mul", "Sub", "Div"]), y, factor)
        else:
            y = g.emit(g.r.choice(["Relu", "Sigmoid"]), y)
