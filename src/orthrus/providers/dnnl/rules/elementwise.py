"""Functions of one number, of two broadcast tensors, and both as post-ops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ....ir import No, Node, Value
from ....ops.define import broadcast
from ....ops.math.arithmetic import Clip_6
from ..binding import BINARY, DST, ELTWISE, INFERENCE, SCALES, SRC, SRC_1, WEIGHTS
from ..fuse import finish
from ..lower import Lowering
from ..objects import Attr, Binary, Desc, Eltwise, PostOp, Primitive, Scaling, last_strides, strided
from ..step import Link, links, lowers
from ..tensor import Argument, Tensor

Read = Callable[[Node], Eltwise | No]

_PLAIN = {"Relu": Eltwise("relu"), "Sigmoid": Eltwise("logistic"), "Tanh": Eltwise("tanh"),
          "Exp": Eltwise("exp"), "Sqrt": Eltwise("sqrt"), "Abs": Eltwise("abs"),
          "Neg": Eltwise("linear", -1.0), "Mish": Eltwise("mish"),
          "HardSwish": Eltwise("hardswish", 1 / 6, 0.5), "Round": Eltwise("round"),
          "com.microsoft::Gelu": Eltwise("gelu_erf")}
_FROM_ATTRIBUTES: dict[str, Callable[[dict[str, Any]], Eltwise]] = {
    "LeakyRelu": lambda a: Eltwise("relu", a["alpha"]),
    "Elu": lambda a: Eltwise("elu", a["alpha"]),
    "HardSigmoid": lambda a: Eltwise("hardsigmoid", a["alpha"], a["beta"]),
    "Swish": lambda a: Eltwise("swish", a["alpha"]),
    "com.microsoft::QuickGelu": lambda a: Eltwise("swish", a["alpha"]),
    "Gelu": lambda a: Eltwise("gelu_tanh" if a["approximate"] == "tanh" else "gelu_erf"),
}

UNARY = (*_PLAIN, *_FROM_ATTRIBUTES, "Clip", "Pow", "Reciprocal")
ARITHMETIC = {"Add": "add", "Sub": "sub", "Mul": "mul", "Div": "div", "Max": "max", "Min": "min",
              "Sum": "add"}
COMPARISONS = {"Greater": "gt", "GreaterOrEqual": "ge", "Less": "lt", "LessOrEqual": "le", "Equal": "eq"}
_COMMUTE = frozenset({"add", "mul", "max", "min"})


def function(node: Node) -> Eltwise | No:
    """The function of one number that `node` applies to its first input."""
    if node.kind in _PLAIN:
        return _PLAIN[node.kind]
    if node.kind in _FROM_ATTRIBUTES:
        return _FROM_ATTRIBUTES[node.kind](node.attributes)
    if node.kind == "Reciprocal":
        return Eltwise("pow", 1.0, -1.0)
    if node.kind == "Clip":
        return _clip(node)
    if node.kind == "Pow":
        exponent = _one(node.inputs[1])
        return No("its exponent is no constant number") if exponent is None else Eltwise("pow", 1.0, exponent)
    return No(f"{node.kind} is no function of one number")


def _one(value: Value | None) -> float | None:
    if value is None or not isinstance(value.const, np.ndarray) or value.const.size != 1:
        return None
    return float(np.asarray(value.const).reshape(()))


def _clip(node: Node) -> Eltwise | No:
    bounds = []
    for i, (name, default) in enumerate(Clip_6.defaults.items()):
        value = node.inputs[i + 1] if i + 1 < len(node.inputs) else None
        if value is None:
            given = node.attribute(name)
            bounds.append(default if given is None else float(given))
        elif (bound := _one(value)) is None:
            return No(f"its {name} is no constant number")
        else:
            bounds.append(bound)
    if bounds[0] > bounds[1]:
        return No("its min is above its max")
    return Eltwise("clip", *bounds)


@lowers(*UNARY)
def unary(lo: Lowering, node: Node) -> Tensor | No:
    """A function of one number, in whatever layout its input has."""
    of = function(node)
    if isinstance(of, No):
        return of
    return applied(lo, of, lo.tensor(node.inputs[0]))


def applied(lo: Lowering, of: Eltwise, x: Tensor) -> Tensor:
    """`of` on each element of `x`."""
    x = lo.dense(x)
    made = Primitive(lo.lib, "eltwise_forward", lo.lib.engine, INFERENCE, ELTWISE[of.name], x.desc, x.desc,
                     of.alpha, of.beta, Attr(lo.lib))
    out = lo.new(x.shape, x.desc)
    lo.step(made, [(SRC, x), (DST, out)], [out])
    return out


@links(*UNARY)
def unary_link(lo: Lowering, node: Node, value: Value, shape: tuple[int, ...]) -> Link | None:
    of = function(node) if node.inputs[0] is value else No("it reads something else")
    return None if isinstance(of, No) else Link(node, of)


@links("Add", "Sub", "Mul", "Div", "Max", "Min")
def binary_link(lo: Lowering, node: Node, value: Value, shape: tuple[int, ...]) -> Link | None:
    """The other input has to be there already, and the result to have the shape that is there."""
    name = ARITHMETIC[node.op_type]
    if len(node.inputs) != 2 or (node.inputs[0] is not value and name not in _COMMUTE):
        return None
    other = node.inputs[1] if node.inputs[0] is value else node.inputs[0]
    if other is None or not lo.there(other) or tuple(broadcast(shape, lo.shape(other))) != shape:
        return None
    number = _one(other) if lo.known(other) is not None else None
    if number is not None and name in ("add", "mul"):
        return Link(node, Eltwise("linear", 1.0, number) if name == "add" else Eltwise("linear", number, 0.0))
    t = lo.tensor(other)
    return Link(node, Binary(name, t.desc), t)


@lowers(*ARITHMETIC)
def arithmetic(lo: Lowering, node: Node) -> Any:
    """Two operands or more, from left to right; the last step takes the nodes behind it as post-ops."""
    name = ARITHMETIC[node.op_type]
    if len(node.inputs) == 1:
        return lo.tensor(node.inputs[0])
    qa, qb = lo.quantized(node.inputs[0]), lo.quantized(node.inputs[1])
    whole = qa is not None and qb is not None and qa.whole and qb.whole
    if whole and name == "add" and len(node.inputs) == 2 and lo.shape(node.inputs[0]) == lo.shape(
            node.inputs[1]):
        assert qa is not None and qb is not None
        a, b = float(qa.scale.item()), float(qb.scale.item())
        shift = a * int(qa.zero.item()) + b * int(qb.zero.item())
        both(lo, node, name, qa.tensor, qb.tensor, (a, b),
             [(Eltwise("linear", 1.0, -shift), None)] if shift else [])
        return None
    x = lo.tensor(node.inputs[0])
    for value in node.inputs[1:-1]:
        x = between(lo, name, x, lo.tensor(value))
    both(lo, node, name, x, lo.tensor(node.inputs[-1]))
    return None


@lowers(*COMPARISONS)
def comparison(lo: Lowering, node: Node) -> None:
    """Two operands, and a truth value as a byte."""
    both(lo, node, COMPARISONS[node.op_type], lo.tensor(node.inputs[0]), lo.tensor(node.inputs[1]),
         dtype="bool", fuse=False)


def both(lo: Lowering, node: Node, name: str, a: Tensor, b: Tensor, scales: tuple[float, float] | None = None,
         first: list[tuple[PostOp, Tensor | None]] | None = None, dtype: str = "float32", fuse: bool = True
         ) -> None:
    """The step of a function of two tensors; `scales`: what integers are multiplied by."""
    shape = tuple(broadcast(a.shape, b.shape))
    if name == "sub" and scales is None and a.shape != shape == b.shape:
        a, b, first = b, a, [(Eltwise("linear", -1.0), None), *(first or [])]
    if scales is None and not first and dtype != "bool":
        made = _as_they_lie(lo, name, a, b, shape)
        if made is not None:
            lo.bind(node.output, made)
            return
    a, b = matched(lo, name, a, b, shape)
    inner = shape or (1,)
    if a.plain and a.shape == inner != b.shape and _awkward(b.shape):
        inner, thin = merged(a.shape, b.shape)
        a, b = lo.reshaped(a, inner), lo.reshaped(b, thin)
    scalings: list[Scaling] = []
    more: list[Argument] = []
    if scales is not None:
        for arg, scale in zip((SRC, SRC_1), scales, strict=True):
            scalings.append(Scaling(arg, "scales"))
            more.append((SCALES | arg, lo.number(scale)))
    elif a.dtype == "bfloat16" and dtype != "bool":
        dtype = a.dtype
    full = a.shape == inner
    lying = a.desc.strides if full else None
    layout = None if full and dtype != "bool" else strided(lo.lib, inner, dtype, lying)

    def make(desc: Desc, attr: Attr) -> Primitive:
        return Primitive(lo.lib, "binary", lo.lib.engine, BINARY[name], a.desc, b.desc, desc, attr)
    finish(lo, node, shape, dtype, make, lambda p: [(SRC, a), (SRC_1, b), *more], inner=inner,
           layout=layout, scalings=scalings, first=first or [], fuse=fuse, integer=scales is not None,
           linear_end=True)


def _as_they_lie(lo: Lowering, name: str, a: Tensor, b: Tensor, shape: tuple[int, ...]) -> Tensor | None:
    """The function of two tensors, computed in the order of dimensions that the one of full shape has in
    memory; None where that is an order which primitives know by themselves."""
    whole = a if a.shape == shape else b
    lying = whole.desc.strides
    if whole.shape != shape or lying is None or whole.plain or lying == last_strides(shape):
        return None
    turned, order = lo.as_it_lies(whole)
    if order == list(range(len(shape))):
        return None
    a, b = (turned if t is whole else lo.permuted(ranked(lo, lo.strided(t), len(shape)), order)
            for t in (a, b))
    return lo.permuted(between(lo, name, a, b), [order.index(i) for i in range(len(shape))])


def _awkward(thin: tuple[int, ...]) -> bool:
    """Whether a tensor of this shape broadcasts otherwise than as a scalar or along the channels."""
    return len(thin) > 2 and any(d != 1 and i != 1 for i, d in enumerate(thin))


def merged(shape: tuple[int, ...], thin: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Two shapes, of which the second broadcasts to the first, with neighbouring dimensions that do alike
    made one."""
    made: list[tuple[int, int]] = []
    for d, t in zip(shape, thin, strict=True):
        if d == 1:
            continue
        if made and (made[-1][0] == made[-1][1]) == (d == t):
            made[-1] = made[-1][0] * d, made[-1][1] * t
        else:
            made.append((d, t))
    made = made or [(1, 1)]
    return tuple(d for d, _ in made), tuple(t for _, t in made)


def matched(lo: Lowering, name: str, a: Tensor, b: Tensor, shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Both of one rank; those of the full shape in one layout, the full one first where that may be."""
    given = shape or (1,)
    a, b = ranked(lo, a, len(given)), ranked(lo, b, len(given))
    if a.shape != given and b.shape == given and name in _COMMUTE:
        a, b = b, a
    if a.shape == b.shape == given:
        if a.desc.strides is None:
            return a, lo.laid(b, a.desc) if a.dtype == b.dtype else lo.plain(b)
        if b.desc.strides is None and a.dtype == b.dtype:
            return lo.laid(a, b.desc), b
    a = lo.dense(a) if a.shape == given else lo.plain(a)
    if a.desc.strides is not None and not a.plain and b.shape == given and b.desc.strides != a.desc.strides:
        a = lo.plain(a)
    same = b.desc.strides is not None and a.shape == b.shape and b.desc.strides == a.desc.strides
    return a, b if same else lo.plain(b)


def ranked(lo: Lowering, t: Tensor, rank: int) -> Tensor:
    """`t` with leading dimensions of one, up to `rank`."""
    if len(t.shape) == rank:
        return t
    return lo.reshaped(t, (1,) * (rank - len(t.shape)) + t.shape)


def between(lo: Lowering, name: str, a: Tensor, b: Tensor) -> Tensor:
    """A function of two tensors whose result stays between."""
    shape = tuple(broadcast(a.shape, b.shape))
    a, b = matched(lo, name, a, b, shape)
    inner = shape
    if a.plain and a.shape == shape != b.shape and _awkward(b.shape):
        inner, thin = merged(a.shape, b.shape)
        a, b = lo.reshaped(a, inner), lo.reshaped(b, thin)
    desc = strided(lo.lib, inner, a.dtype)
    made = Primitive(lo.lib, "binary", lo.lib.engine, BINARY[name], a.desc, b.desc, desc, Attr(lo.lib))
    out = lo.new(inner, desc)
    lo.step(made, [(SRC, a), (SRC_1, b), (DST, out)], [out])
    return out if inner == shape else lo.view(out, shape)


@lowers("PRelu")
def prelu(lo: Lowering, node: Node) -> Tensor:
    """x where it is positive, else x times a slope that broadcasts to it."""
    x, slope = lo.dense(lo.tensor(node.inputs[0])), lo.tensor(node.inputs[1])
    slope = lo.plain(ranked(lo, slope, len(x.shape)))
    made = Primitive(lo.lib, "prelu_forward", lo.lib.engine, INFERENCE, x.desc, slope.desc, x.desc,
                     Attr(lo.lib))
    out = lo.new(x.shape, x.desc)
    lo.step(made, [(SRC, x), (WEIGHTS, slope), (DST, out)], [out])
    return out
