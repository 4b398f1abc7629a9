"""Steps of random graphs that add many nodes: what exporters take apart, at times with a constant that is not
quite right; branches, loops and sequences."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from onnx import helper, numpy_helper

import fuzz.steps as plain
from fuzz import contractions
from fuzz.steps import Maker, Var, broadcasts, fits, info


def several(g: Maker) -> None:
    """Operators with more than one output, shapes only known at run time, sequences and loops."""
    x = g.floats(1)
    if x is None or 0 in x.shape:
        return
    axis = g.r.randrange(-x.array.ndim, x.array.ndim)
    kind = g.r.randrange(9)
    if kind == 0:
        g.emit(
            "TopK", x, g.ints(g.r.randint(1, x.shape[axis])), axis=axis, largest=g.r.randrange(2), outputs=2
        )
    elif kind == 1:
        g.emit(g.r.choice(["ArgMax", "ArgMin"]), x, axis=axis, keepdims=g.r.randrange(2))
    elif kind == 2:
        test = g.emit("Greater", x, g.number(0.0123))
        found = g.emit("NonZero", test, keep=False) if test is not None else None
        g.emit("Gather", x, g.emit("Gather", found, g.const(np.array(0)), axis=0, keep=False), axis=0) if (
            found is not None and found.shape[1]
        ) else None
    elif kind == 3:
        g.emit("Dropout", x, outputs=g.r.randint(1, 2 if g.opset >= 12 else 1))
    elif kind == 4:
        g.emit("Tile", x, g.ints(*(g.r.randint(1, 2) for _ in x.shape)))
    elif kind == 5 and x.array.ndim == 2:
        g.emit(
            "Einsum",
            x,
            g.random((x.shape[1], 3)),
            equation=g.r.choice(["ij,jk->ik", "ij,jk->ki", "ij,jk->j"]),
        )
    elif kind == 6 and x.array.ndim >= 2:
        g.emit("Trilu", x, upper=g.r.randrange(2))
    elif kind == 7:
        parts = [g.emit("Identity", x), g.emit("Neg", x), x]
        g.raw("SequenceConstruct", [p.name for p in parts if p is not None], [s := g.name()])
        y = Var(g.name(), np.concatenate([p.array for p in parts if p is not None], axis))
        g.raw("ConcatFromSequence", [s], [y.name], axis=axis)
        g.vars.append(y)
    elif g.outer is None and x.array.size < 200:
        turns = g.r.randint(0, 3)
        names = {key: g.name() for key in ("i", "go", "in", "out", "kept", "still")}
        step = g.random(x.shape[-1:], 0.1)
        nodes = [
            helper.make_node("Add", [names["in"], step.name], [names["out"]]),
            helper.make_node("Mul", [names["out"], names["out"]], [names["kept"]]),
            helper.make_node("Identity", [names["go"]], [names["still"]]),
        ]
        body = helper.make_graph(
            nodes,
            "body",
            [info(names["i"], np.int64, []), info(names["go"], bool, []), info(names["in"], g.dtype, None)],
            [
                info(names["still"], bool, []),
                info(names["out"], g.dtype, None),
                info(names["kept"], g.dtype, None),
            ],
        )
        values = [x.array]
        for _ in range(turns):
            values.append(values[-1] + step.array)
        end = Var(g.name(), values[-1])
        every = np.stack([a * a for a in values[1:]]) if turns else None
        scan = g.name()
        g.raw(
            "Loop",
            [g.ints(turns).name if g.r.random() < 0.5 else g.const(np.array(turns)).name, "", x.name],
            [end.name, scan],
            body=body,
        )
        g.vars.append(end)
        if every is not None and fits(every):
            g.vars.append(Var(scan, every))


# what exporters take apart, at times with a constant that is not quite right


def _near(g: Maker, value: float) -> float:
    return value if g.r.random() < 0.8 else value * g.r.choice([1.01, 0.9, -1.0, 2.0])


def activation(g: Maker) -> None:
    x = g.floats()
    if x is None:
        return

    def n(value: float) -> Var:
        return g.number(_near(g, value))

    kind = g.r.randrange(7)
    if kind == 0:
        e = g.emit("Add", g.emit("Erf", g.emit("Div", x, n(math.sqrt(2)))), n(1))
        g.emit("Mul", g.emit("Mul", x, e) if e is not None else None, n(0.5))
    elif kind == 1:
        cube = g.emit("Mul", g.emit("Pow", x, n(3)), n(0.044715))
        inner = g.emit("Mul", g.emit("Add", x, cube) if cube is not None else None, n(math.sqrt(2 / math.pi)))
        e = g.emit("Add", g.emit("Tanh", inner), n(1))
        g.emit("Mul", g.emit("Mul", x, e) if e is not None else None, n(0.5))
    elif kind == 2:
        s = g.emit("Sigmoid", g.emit("Mul", x, n(1.702)) if g.r.random() < 0.5 else x)
        g.emit("Mul", x, s) if s is not None else None
    elif kind == 3:
        c = g.emit(
            "Clip",
            g.emit("Add", x, n(3)),
            g.const(np.array(0, g.dtype)),
            g.const(np.array(_near(g, 6), g.dtype)),
        )
        if g.r.random() < 0.5:
            c = g.emit("Mul", x, c) if c is not None else None
        g.emit(*(("Div", c, n(6)) if g.r.random() < 0.5 else ("Mul", c, n(1 / 6))))
    elif kind == 4:
        g.emit("Log", g.emit("Add", g.emit("Exp", x), n(1)))
    elif kind == 5:
        s = g.emit("Softplus", x)
        g.emit("Mul", x, g.emit("Tanh", s)) if s is not None else None
    elif x.array.ndim:
        axis = g.ints(g.r.randrange(-x.array.ndim, x.array.ndim))
        d = g.emit("Sub", x, g.emit("ReduceMax", x, axis, keepdims=1))
        e = g.emit("Exp", d)
        g.emit("Div", e, g.emit("ReduceSum", e, axis, keepdims=1)) if e is not None else None


def norm(g: Maker) -> None:
    x = g.floats(1)
    if x is None or 0 in x.shape:
        return
    first = g.r.randrange(x.array.ndim) if g.r.random() < 0.3 else x.array.ndim - 1
    axes = list(range(first, x.array.ndim)) if g.r.random() < 0.8 else [g.r.randrange(x.array.ndim)]
    if g.r.random() < 0.3 and broadcasts(x.shape, x.shape):
        other = g.pick(lambda v: v.array.dtype == g.dtype and v.shape == x.shape)
        x = g.emit("Add", x, other) or x
    a = g.ints(*axes)
    mean = g.emit("ReduceMean", x, a, keepdims=1)
    d = g.emit("Sub", x, mean) if g.r.random() < 0.7 and mean is not None else x
    if d is None:
        return
    square = g.emit("Pow", d, g.number(2)) if g.r.random() < 0.5 else g.emit("Mul", d, d)
    var = g.emit("ReduceMean", square, a if g.r.random() < 0.9 else g.ints(-1), keepdims=1)
    s = g.emit("Sqrt", g.emit("Add", var, g.number(g.r.choice([1e-5, 1e-2]))))
    y = g.emit("Div", d, s) if s is not None else None
    shape = x.shape[first:] if g.r.random() < 0.8 else x.shape[-1:]
    if y is not None and g.r.random() < 0.7:
        y = g.emit("Mul", *g.r.sample([y, g.random(shape)], 2))
        if y is not None and g.r.random() < 0.7:
            g.emit("Add", y, g.random(shape))


def attention(g: Maker) -> None:
    """Queries, keys and values from one value of rank 3, and masks of several shapes."""
    x = g.floats(3, 3)
    if x is None or 0 in x.shape:
        return
    batch, length, width = x.shape
    heads = g.r.choice([1, 2])
    size = 2

    def part() -> Var | None:
        y = g.emit("MatMul", x, g.random((width, heads * size), 0.5))
        y = g.emit(
            "Reshape", y, g.ints(0, 0, heads, size) if g.r.random() < 0.5 else g.ints(batch, -1, heads, size)
        )
        return g.emit("Transpose", y, perm=[0, 2, 1, 3])

    q, k, v = part(), part(), part()
    if q is None or k is None or v is None:
        return
    if g.r.random() < 0.3:
        q = g.emit("Mul", q, g.number(_near(g, 0.7)))
    scores = g.emit("MatMul", q, g.emit("Transpose", k, perm=[0, 1, 3, 2]))
    if scores is not None and g.r.random() < 0.7:
        scores = g.emit(g.r.choice(["Mul", "Div"]), scores, g.number(_near(g, 1.4)))
    if scores is None:
        return
    shape = g.r.choice(
        [
            (1, 1, 1, length),
            (batch, 1, 1, length),
            (batch, 1, length, length),
            (length, length),
            (length, 1),
            (1,),
            (length,),
            (batch, heads, length, length),
            (batch, 1, length, 1),
        ]
    )
    kind = g.r.randrange(4)
    if kind == 1:
        mask = (
            g.random(shape)
            if g.r.random() < 0.5
            else g.pick(
                lambda v: (
                    v.array.dtype == g.dtype
                    and broadcasts(v.shape, scores.shape)
                    and np.broadcast_shapes(v.shape, scores.shape) == scores.shape
                )
            )
        )
        scores = g.emit("Add", *g.r.sample([scores, mask], 2)) if mask is not None else scores
    elif kind == 2:
        open_ = g.const(g.rng.random(shape) > 0.4)
        least = g.number(g.r.choice([-1e3, -9e3]))
        scores = g.emit("Where", open_, *g.r.sample([scores, least], 2))
    p = g.emit("Softmax", scores, axis=g.r.choice([-1, 3, -1, -2]))
    y = g.emit("MatMul", p, v)
    y = g.emit("Transpose", y, perm=[0, 2, 1, 3])
    g.emit("Reshape", y, g.ints(0, 0, heads * size) if g.r.random() < 0.5 else g.ints(batch, length, -1))


def branch(g: Maker) -> None:
    """An If whose branches read values around them."""
    if g.outer is not None:
        return
    x = g.floats()
    if x is None or not x.array.size:
        return
    total = g.emit("ReduceSum", x, keepdims=0)
    test = g.emit("Greater", total, g.const(np.array(0.123, g.dtype))) if total is not None else None
    if test is None:
        return
    if g.r.random() < 0.3:
        test = g.const(np.asarray(g.r.random() < 0.5))
    bodies, results = {}, []
    for key in ("then_branch", "else_branch"):
        inner = Maker(g.r, g.dtype, g)
        y = inner.emit(g.r.choice(["Relu", "Neg", "Identity", "Exp", "Transpose"]), x)
        for _ in range(g.r.randint(0, 4)):
            g.r.choice(STEPS)(inner)
        same = [v for v in inner.vars if v.shape == x.shape and v.array.dtype == g.dtype]
        y = inner.r.choice(same) if same else y
        if y is None or y not in inner.vars or y.shape != x.shape:
            return
        graph = helper.make_graph(
            inner.nodes,
            key,
            [],
            [info(y.name, y.array.dtype, None)],
            [numpy_helper.from_array(v.array, v.name) for v in inner.inits],
        )
        bodies[key] = graph
        results.append(y.array)
    made = Var(g.name(), results[0] if bool(test.array) else results[1])
    g.nodes.append(helper.make_node("If", [test.name], [made.name], **bodies))
    g.vars.append(made)


STEPS: tuple[Callable[[Maker], None], ...] = (
    plain.unary,
    plain.unary,
    plain.binary,
    plain.binary,
    plain.binary,
    plain.clip,
    plain.transpose,
    plain.transpose,
    plain.transposed_pair,
    plain.reshape,
    plain.reshape,
    plain.slice_,
    plain.joined,
    plain.split,
    plain.gather,
    plain.pad,
    plain.reduce,
    plain.along,
    contractions.product,
    contractions.product,
    contractions.gemm,
    contractions.convolution,
    contractions.convolution,
    plain.logic,
    plain.casts,
    plain.integers,
    plain.repeat,
    activation,
    activation,
    norm,
    norm,
    attention,
    branch,
    several,
    several,
)
