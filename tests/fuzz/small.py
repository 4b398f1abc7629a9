"""Small graphs around one application of any operator: operands that are fed, constant, constants that may be
fed, or computed; behind it a few steps with operands of every shape that broadcasts.

In: a seed. Out: a `Subject`: a model, feeds of several sizes and values, how to run it. Sizes are small and
odd on purpose, and a seed always gives the same subject.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper
from oracle import Case

from fuzz import applications
from fuzz.applications import fitted, imports, special
from fuzz.patterns import STEPS
from fuzz.steps import Maker, Var, info

LEVELS = ("ORT_DISABLE_ALL", "ORT_ENABLE_BASIC", "ORT_ENABLE_EXTENDED", "ORT_ENABLE_ALL")
Feeds = dict[str, np.ndarray]


@dataclass(frozen=True)
class Setting:
    """How a subject is run. `byte`: what unused memory is filled with, None to leave it; the runs then divide
    each step over `threads` as far as they can."""

    level: str = "ORT_ENABLE_ALL"
    threads: int = 1
    shapes: int = 1
    byte: int | None = None


@dataclass
class Subject:
    """A model, the feeds of its runs, in order, and how to run it; `rtol` and `atol` are for float32."""

    name: str
    model: onnx.ModelProto
    feeds: list[Feeds]
    setting: Setting = Setting()
    rtol: float = 1e-4
    atol: float = 1e-5
    kinds: list[str] = field(default_factory=list)
    """What each feed is: "first", "again", "sizes" or "special"."""


def setting(r: random.Random) -> Setting:
    return Setting(
        r.choice(LEVELS + LEVELS[-1:] * 3),
        r.choice((1, 1, 2)),
        r.choice((0, 1, 2, 2)),
        r.choice((None, None, None, 0xFF, 0x7F)),
    )


def operator(seed: int, data: bool = True) -> Subject:
    """One operator alone."""
    r = random.Random(seed)
    while True:
        case = applications.drawn(r, 0.6, data)
        g = Grown(r, case)
        if g.whole():
            return g.subject(f"operator {seed}", wild=True)


def graph(seed: int, data: bool = True) -> Subject:
    """An operator with steps behind it."""
    r = random.Random(seed)
    while True:
        g = Grown(r, applications.drawn(r, 0.2, data, 0.4))
        if g.head():
            for _ in range(r.choice((0, 1, 1, 1, 2, 2, 3, 4))):
                g.tail()
            return g.subject(f"graph {seed}")


class Grown:
    """A graph in the making, from an application on."""

    def __init__(self, r: random.Random, case: Case) -> None:
        first = next((a for a in case.inputs if a is not None), None)
        dtype = first.dtype if first is not None and first.dtype.kind == "f" else np.dtype(np.float32)
        self.r, self.case = r, case
        self.maker = Maker(r, dtype, opset=case.opset, wild=True)
        self.feeds: Feeds = {}
        self.open: set[str] = set()
        """Inputs that are initializers too."""
        self.drawn: list[Var] = []
        """Results, in the order made."""

    def fed(self, a: np.ndarray, constant: float = 0.4) -> Var:
        """`a` as a feed, a constant, or a constant that may be fed."""
        how = self.r.random()
        if how < constant:
            return self.maker.const(a)
        if how < constant + 0.1:
            made = self.maker.const(a)
            self.open.add(made.name)
            return made
        made = Var(f"x{len(self.feeds)}", a)
        self.feeds[made.name] = a
        return made

    def computed(self, a: np.ndarray) -> Var | None:
        """`a` as the result of a node or two."""
        kind, g = self.r.randrange(6), self.maker
        if kind == 0 and a.ndim > 1:
            perm = self.r.sample(range(a.ndim), a.ndim)
            back = [perm.index(i) for i in range(a.ndim)]
            return g.emit("Transpose", self.fed(np.ascontiguousarray(a.transpose(perm)), 0), perm=back)
        if kind == 1 and 0 not in a.shape:
            return g.emit("Reshape", self.fed(a.reshape(-1), 0), g.ints(*a.shape))
        if kind == 2:
            y = g.emit("Neg", self.fed(a, 0), keep=False)
            return g.emit("Neg", y) if y is not None else None
        if kind == 3 and a.ndim:
            axis = self.r.randrange(a.ndim)
            wide = np.concatenate([a, a], axis)
            return g.emit("Slice", self.fed(wide, 0), g.ints(0), g.ints(a.shape[axis]), g.ints(axis))
        if kind == 4 and a.dtype.kind == "f":
            return g.emit("Mul", self.fed(a, 0), g.number(1.0, Var("", a)))
        if kind == 5 and a.ndim and a.shape[0] > 1:
            parts = [self.fed(part, 0) for part in np.split(a, [self.r.randint(1, a.shape[0] - 1)])]
            return g.emit("Concat", *parts, axis=0)
        return None

    def operand(self, a: np.ndarray) -> Var:
        made = self.computed(a) if self.r.random() < 0.2 else None
        if made is not None and made.array.dtype == a.dtype and made.shape == a.shape:
            return made
        return self.fed(a)

    def whole(self) -> bool:
        """The application as it is, whether its definition takes it or not."""
        g, case = self.maker, self.case
        given = [None if a is None else self.fed(np.asarray(a), 0.25) for a in case.inputs]
        names = [g.name() for _ in range(case.outputs)]
        try:
            g.nodes.append(
                helper.make_node(
                    case.op,
                    ["" if v is None else v.name for v in given],
                    names,
                    domain=case.domain,
                    **case.attrs,
                )
            )
        except (TypeError, ValueError):
            return False
        self.outputs = [helper.make_empty_tensor_value_info(name) for name in names]
        return all(_storable(a) for a in self.feeds.values())

    def head(self) -> bool:
        """The application, where its definition takes it; what is fit to go on with is `drawn`."""
        case = self.case
        given = [None if a is None else self.operand(np.asarray(a)) for a in case.inputs]
        made = self.maker.emit(case.op, *given, outputs=case.outputs, domain=case.domain, **case.attrs)
        if made is None or not all(_storable(v.array) for v in (*self.maker.inits, *self.maker.vars)):
            return False
        self.drawn = made if isinstance(made, list) else [made]
        return True

    def tail(self) -> None:
        """A step behind the last result, or one of the steps of larger graphs."""
        before = len(self.maker.vars)
        x = self.drawn[0] if len(self.drawn) == 1 or self.r.random() < 0.5 else self.r.choice(self.drawn)
        if self.r.random() < 0.2 and x.array.dtype.kind == "f":
            self.maker.dtype = np.dtype(x.array.dtype)
            self.r.choice(STEPS)(self.maker)
        else:
            self.r.choice(_TAILS)(self, x)
        made = self.maker.vars[before:]
        if made:
            self.drawn = made[-1:]

    def beside(self, shape: tuple[int, ...], dtype: Any, widen: bool = True) -> Var:
        """An operand that broadcasts against `shape`: some axes 1, some in front left out, at times one wider
        than `shape`."""
        r = self.r
        own = [1 if r.random() < 0.5 else n for n in shape]
        if len(shape) > 1 and r.random() < 0.4:
            axis = r.choice((1, 1, 0, -1))
            own = [n if i == axis % len(shape) else 1 for i, n in enumerate(shape)]
        if widen and r.random() < 0.15:
            own = [r.choice((2, 3, 5)) if n == 1 and r.random() < 0.5 else n for n in own]
        own = own[r.randrange(len(own) + 1) if r.random() < 0.5 else 0 :]
        if widen and r.random() < 0.1 and len(own) == len(shape) < 5:
            own = [r.choice((1, 2, 3)), *own]
        if r.random() < 0.1:
            known = self.maker.pick(lambda v: v.array.dtype == dtype and v.shape == tuple(own))
            if known is not None:
                return known
        return self.operand(self.values(tuple(own), dtype))

    def values(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        rng, dtype = self.maker.rng, np.dtype(dtype)
        if dtype.kind == "b":
            return np.asarray(rng.random(shape) < 0.5)
        if dtype.kind in "iu":
            return np.asarray(rng.integers(1 if dtype.kind == "u" else -3, 7, shape)).astype(dtype)
        if dtype.kind == "O":
            return np.asarray(rng.choice(np.array(["", "a", "bc"], object), shape), object)
        return np.asarray(np.asarray(rng.normal(size=shape) * 2).round(2)).astype(dtype)

    def subject(self, name: str, wild: bool = False) -> Subject:
        g, r = self.maker, self.r
        named = r.random() < 0.6
        sizes = sorted({n for a in self.feeds.values() for n in a.shape})
        letters = {n: f"n{n}" for n in sizes if r.random() < 0.8} if named else {}
        inputs = [
            info(
                n,
                a.dtype,
                [letters.get(d, d) for d in a.shape] if r.random() < 0.9 or not a.ndim else [None] * a.ndim,
            )
            for n, a in self.feeds.items()
        ]
        inputs += [info(v.name, v.array.dtype, v.shape) for v in g.inits if v.name in self.open]
        graph = helper.make_graph(g.nodes, "fuzz", inputs, self._ends(), [stored(v) for v in g.inits])
        domains = {n.domain for n in g.nodes}
        model = helper.make_model(graph, opset_imports=imports(g.opset, domains))
        model.ir_version = 10 if g.opset < 24 else 13
        feeds, kinds = self._runs(letters, wild)
        return Subject(
            name, model, feeds, setting(r), max(1e-4, self.case.rtol), max(1e-5, self.case.atol), kinds
        )

    def _ends(self) -> list[onnx.ValueInfoProto]:
        if not self.maker.vars:
            return self.outputs
        read = {n for node in self.maker.nodes for n in node.input}
        ends = [v for v in self.maker.vars if v.name not in read or self.r.random() < 0.15]
        return [info(v.name, v.array.dtype, None) for v in ends]

    def _runs(self, letters: dict[int, str], wild: bool) -> tuple[list[Feeds], list[str]]:
        feeds, kinds = [self.feeds], ["first"]
        r = self.r
        if self.open and r.random() < 0.7:
            given = {
                v.name: self.values(v.shape, v.array.dtype)
                for v in self.maker.inits
                if v.name in self.open and v.array.dtype.kind == "f"
            }
            feeds.append({**self.feeds, **given})
            kinds.append("fed")
        if letters:
            other = {n: r.choice([s for s in (1, 2, 3, 4, 5, 7) if s != n]) for n in letters}
            feeds.append(
                {k: fitted(a, tuple(other.get(d, d) for d in a.shape)) for k, a in self.feeds.items()}
            )
            kinds.append("sizes")
        if r.random() < 0.15:
            rng = np.random.default_rng(r.getrandbits(32))
            feeds.append({k: special(a, rng) if a.dtype.kind != "i" else a for k, a in self.feeds.items()})
            kinds.append("special")
        if len(feeds) > 1 and r.random() < 0.5:
            feeds.append(self.feeds)
            kinds.append("again")
        return feeds, kinds


def stored(v: Var) -> onnx.TensorProto:
    return numpy_helper.from_array(np.asarray(v.array), v.name)


def _storable(a: np.ndarray) -> bool:
    return a.dtype.kind != "S" and a.size <= 8192


# steps behind a result

_ARITHMETIC = (
    "Add",
    "Sub",
    "Mul",
    "Div",
    "Max",
    "Min",
    "Add",
    "Mul",
    "Pow",
    "Mod",
    "PRelu",
    "Equal",
    "Greater",
    "Less",
    "LessOrEqual",
    "And",
    "Or",
    "Xor",
    "BitwiseAnd",
    "BitShift",
    "Sum",
    "Mean",
)
_UNARY = (
    "Relu",
    "Sigmoid",
    "Tanh",
    "Abs",
    "Neg",
    "Exp",
    "Erf",
    "Softplus",
    "LeakyRelu",
    "HardSigmoid",
    "Floor",
    "Ceil",
    "Sign",
    "Sqrt",
    "Elu",
    "Gelu",
    "HardSwish",
    "Sin",
    "Cos",
    "Round",
    "Reciprocal",
    "Softsign",
    "Log",
    "Identity",
    "Not",
    "Mish",
    "Selu",
    "Celu",
    "ThresholdedRelu",
    "IsNaN",
    "IsInf",
    "BitwiseNot",
)
_FOLDS = (
    "ReduceMean",
    "ReduceSum",
    "ReduceMax",
    "ReduceMin",
    "ReduceL2",
    "ReduceL1",
    "ReduceProd",
    "ReduceSumSquare",
    "ReduceLogSumExp",
)
_TYPES = (1, 2, 3, 6, 7, 9, 10, 11, 16)


def _arithmetic(g: Grown, x: Var) -> None:
    op = g.r.choice(_ARITHMETIC)
    y = g.beside(x.shape, x.array.dtype, widen=op != "PRelu")
    pair = [x, y] if op == "PRelu" or g.r.random() < 0.75 else [y, x]
    attrs = {"fmod": 1} if op == "Mod" and x.array.dtype.kind not in "iu" else {}
    if op == "BitShift":
        attrs["direction"] = "LEFT"
    if op in ("Div", "Mod") and x.array.dtype.kind in "iu" and not np.all(pair[1].array):
        return
    g.maker.emit(op, *pair, **attrs)


def _unary(g: Grown, x: Var) -> None:
    g.maker.emit(g.r.choice(_UNARY), x)


def _where(g: Grown, x: Var) -> None:
    test = g.beside(x.shape, np.dtype(bool))
    pair = [x, g.beside(x.shape, x.array.dtype)]
    g.maker.emit("Where", test, *(pair if g.r.random() < 0.5 else pair[::-1]))


def _clip(g: Grown, x: Var) -> None:
    low, high = (
        g.operand(np.asarray(n).astype(x.array.dtype))
        if g.r.random() < 0.7 and x.array.dtype.kind in "fiu"
        else None
        for n in (0, 4)
    )
    g.maker.emit("Clip", x, low, high)


def _channels(g: Grown, x: Var) -> None:
    """BatchNormalization, InstanceNormalization, or quantizing by channel."""
    if x.array.ndim < 2 or x.array.dtype.kind != "f":
        return
    c = x.shape[1]
    scale, bias, mean = (g.operand(g.values((c,), x.array.dtype)) for _ in range(3))
    variance = g.operand((np.abs(g.values((c,), x.array.dtype)) + 0.5).astype(x.array.dtype))
    kind = g.r.randrange(4)
    if kind < 2:
        g.maker.emit("BatchNormalization", x, scale, bias, mean, variance)
    elif kind == 2:
        g.maker.emit("InstanceNormalization", x, scale, bias)
    else:
        to = g.r.choice((np.uint8, np.int8))
        zero = g.operand(np.asarray(g.maker.rng.integers(0, 9, c)).astype(to))
        y = g.maker.emit("QuantizeLinear", x, variance, zero, axis=1)
        if y is not None and g.r.random() < 0.6:
            g.maker.emit("DequantizeLinear", y, variance, zero, axis=1)


def _cast(g: Grown, x: Var) -> None:
    to = g.r.choice(_TYPES)
    if to in (2, 3, 6, 7) and x.array.dtype.kind == "f":
        with np.errstate(all="ignore"):
            if not np.all(np.abs(x.array) < (1e9 if to > 3 else 100)) or (to == 2 and np.any(x.array < 0)):
                return
    g.maker.emit("Cast", x, to=to)


def _fold(g: Grown, x: Var) -> None:
    rank = x.array.ndim
    if rank and x.array.size:
        axes = sorted(g.r.sample(range(rank), g.r.randint(1, rank)))
        g.maker.emit(g.r.choice(_FOLDS), x, g.maker.ints(*axes), keepdims=g.r.randrange(2))


def _along(g: Grown, x: Var) -> None:
    if x.array.ndim:
        op = g.r.choice(("Softmax", "LogSoftmax", "CumSum", "ArgMax", "Hardmax", "LpNormalization", "TopK"))
        axis = g.r.randrange(-x.array.ndim, x.array.ndim)
        if op == "CumSum":
            g.maker.emit(op, x, g.maker.const(np.array(axis)), exclusive=g.r.randrange(2))
        elif op == "TopK":
            g.maker.emit(op, x, g.maker.ints(g.r.randint(1, max(1, x.shape[axis]))), axis=axis, outputs=2)
        else:
            g.maker.emit(op, x, axis=axis)


def _moved(g: Grown, x: Var) -> None:
    rank, r, m = x.array.ndim, g.r, g.maker
    op = r.choice(
        ("Transpose", "Reshape", "Concat", "Slice", "Pad", "Unsqueeze", "Expand", "Flatten", "Tile", "Gather")
    )
    if op == "Transpose":
        m.emit(op, x, perm=r.sample(range(rank), rank))
    elif op == "Reshape":
        m.emit(op, x, m.ints(-1, *x.shape[:1]) if x.array.size and rank else m.ints(-1))
    elif op == "Flatten":
        m.emit(op, x, axis=r.randint(-rank, rank))
    elif op == "Unsqueeze":
        m.emit(op, x, m.ints(r.randint(0, rank)))
    elif op == "Expand":
        m.emit(op, x, m.ints(*([2] if r.random() < 0.5 else []), *x.shape))
    elif rank:
        axis = r.randrange(rank)
        if op == "Concat":
            own = list(x.shape)
            own[axis] = r.choice((1, 2, 3))
            pair = [x, g.operand(g.values(tuple(own), x.array.dtype))]
            m.emit(op, *(pair if r.random() < 0.5 else pair[::-1]), axis=axis)
        elif op == "Slice":
            start, step = r.choice(((0, 1), (1, 1), (-1, -1), (0, 2)))
            m.emit(
                op, x, m.ints(start), m.ints(1 << 40 if step > 0 else -(1 << 40)), m.ints(axis), m.ints(step)
            )
        elif op == "Pad":
            m.emit(
                op,
                x,
                m.ints(*(r.choice((0, 0, 1, 2)) for _ in range(2 * rank))),
                mode=r.choice(("constant", "edge", "reflect")),
            )
        elif op == "Tile":
            m.emit(op, x, m.ints(*(r.choice((1, 1, 2)) for _ in range(rank))))
        elif x.shape[axis]:
            index = np.asarray(
                m.rng.integers(-x.shape[axis], x.shape[axis], r.choice(((), (1,), (3,), (2, 2))))
            )
            m.emit(op, x, g.operand(index.astype(np.int64)), axis=axis)


_TAILS: tuple[Any, ...] = (
    *(_arithmetic,) * 8,
    *(_unary,) * 3,
    *(_channels,) * 3,
    _where,
    _clip,
    _cast,
    _fold,
    _along,
    _moved,
    _moved,
)
