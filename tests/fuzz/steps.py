"""What random graphs are grown from: values that hold arrays, and steps that each add a node or a few.

A node whose result is not finite, too large or too close to a step of a discontinuous operator is not taken,
so that rounding alone cannot make two engines differ.
"""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper

from orthrus.ir import element_of
from orthrus.ops import find
from orthrus.ops.schema import lookup

OPSETS = (11, 13, 15, 17, 18, 21, 23, 23, 23)
_AS_ATTRIBUTE = {
    "Squeeze": ("axes", 13),
    "Unsqueeze": ("axes", 13),
    "ReduceSum": ("axes", 13),
    "Split": ("split", 13),
}
_MOST = 2048


@dataclasses.dataclass
class Var:
    """A value of the graph and what it holds for the feeds."""

    name: str
    array: np.ndarray
    constant: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        return self.array.shape

    @property
    def floating(self) -> bool:
        return self.array.dtype.kind == "f"


class Maker:
    """A graph in the making; `outer` is the graph around a branch. A `wild` one takes results that are not
    finite, or so near a step of a discontinuous operator that rounding turns them over."""

    def __init__(
        self,
        r: random.Random,
        dtype: Any,
        outer: Maker | None = None,
        opset: int | None = None,
        wild: bool = False,
        most: int = _MOST,
    ) -> None:
        self.r, self.dtype, self.outer, self.wild, self.most = r, dtype, outer, wild, most
        self.opset: int = outer.opset if outer else opset or r.choice(OPSETS)
        self.rng = np.random.default_rng(r.randrange(1 << 30))
        self.nodes: list[onnx.NodeProto] = []
        self.inits: list[Var] = []
        self.vars: list[Var] = []
        self.count: list[int] = outer.count if outer else [0]

    def name(self) -> str:
        self.count[0] += 1
        return f"v{self.count[0]}"

    def const(self, array: Any) -> Var:
        array = np.asarray(array)
        for it in self.inits:
            if it.array is array:
                return it
        made = Var(self.name(), array, True)
        self.inits.append(made)
        return made

    def number(self, x: float, like: Var | None = None) -> Var:
        """A constant of one element, of rank 0 or more."""
        shape = self.r.choice([(), (), (1,), (1, 1)])
        return self.const(np.full(shape, x, like.array.dtype if like is not None else self.dtype))

    def ints(self, *values: int) -> Var:
        return self.const(np.array(values, np.int64))

    def random(self, shape: Sequence[int], scale: float = 1.0) -> Var:
        return self.const((self.rng.normal(size=tuple(shape)) * scale).round(2).astype(self.dtype))

    def pick(self, test: Callable[[Var], bool] = lambda v: True) -> Var | None:
        """A value that passes, rather a late one."""
        known = [*(self.outer.vars if self.outer else []), *self.vars]
        fit = [v for v in known if test(v)]
        return self.r.choice(fit[-6:] if self.r.random() < 0.6 else fit) if fit else None

    def floats(self, low: int = 0, high: int = 4) -> Var | None:
        return self.pick(lambda v: v.array.dtype == self.dtype and low <= v.array.ndim <= high)

    def raw(self, op: str, inputs: list[str], outputs: list[str], **attrs: Any) -> None:
        """A node whose results the caller knows."""
        self.nodes.append(helper.make_node(op, inputs, outputs, **attrs))

    def emit(
        self,
        op: str,
        *inputs: Var | None,
        outputs: int = 1,
        keep: bool = True,
        domain: str = "",
        **attrs: Any,
    ) -> Any:
        """A node, unless its result is unfit; its first output or all of them, else None."""
        if any(v is None for v in inputs[:1]) or (op == "Dropout" and self.opset < 7):
            return None
        attrs = {k: v for k, v in attrs.items() if v is not None and not (isinstance(v, list) and not v)}
        usual = ("axes", 18) if op.startswith("Reduce") else ("", 0)
        attribute, since = _AS_ATTRIBUTE.get(op, usual)
        given = inputs[1].array if len(inputs) > 1 and inputs[1] is not None else None
        if self.opset < since and given is not None:
            inputs, attrs = inputs[:1], {**attrs, attribute: given.tolist()}
        schema = lookup(domain, op, 1 if domain else self.opset)
        if not schema or (schema.native is None and not domain) or not set(attrs) <= set(schema.attributes):
            return None
        if any(v is not None and not _takes(schema.input_at(i), v) for i, v in enumerate(inputs)):
            return None
        if any(v is None for v in inputs[: schema.min_input]):
            return None
        definition = find(domain, op, schema.version)
        try:
            with np.errstate(all="ignore"):
                made = definition.bind(attrs, outputs, self.rng)(
                    *(None if v is None else v.array for v in inputs)
                )
        except Exception:
            return None
        arrays = [np.asarray(a) for a in (made if isinstance(made, tuple | list) else (made,))][:outputs]
        steady = self.wild or _steady(op, [v.array for v in inputs if v is not None])
        if not all(fits(a, self.wild, self.most) for a in arrays) or not steady:
            return None
        made_vars = [Var(self.name(), a) for a in arrays]
        names = [v.name if v is not None else "" for v in inputs]
        self.nodes.append(
            helper.make_node(
                op,
                names,
                [v.name for v in made_vars],
                name=f"n{len(self.nodes)}" if self.r.random() < 0.5 else "",
                domain=domain,
                **attrs,
            )
        )
        if keep:
            self.vars += made_vars
        return made_vars[0] if outputs == 1 else made_vars


def _takes(formal: Any, value: Var) -> bool:
    return formal is not None and f"tensor({element_of(value.array.dtype).text})" in formal.types


def fits(a: np.ndarray, wild: bool = False, most: int = _MOST) -> bool:
    if a.size > most or a.ndim > 5:
        return False
    return wild or a.dtype.kind != "f" or bool(np.all(np.isfinite(a)) and np.all(np.abs(a) < 1e4))


def _steady(op: str, arrays: list[np.ndarray]) -> bool:
    """Whether a rounding of the inputs cannot turn the result over."""
    x = arrays[0]
    if x.dtype.kind != "f":
        return True
    if op in ("Floor", "Ceil"):
        return bool(np.all(np.abs(x - np.round(x)) > 1e-3) if x.size else True)
    if op == "Round":
        return bool(np.all(np.abs(np.abs(x - np.floor(x)) - 0.5) > 1e-3))
    if op in ("Sign", "Reciprocal", "Log", "Sqrt"):
        return bool(np.all(np.abs(x) > (1e-2 if op != "Reciprocal" else 0.1)))
    if op == "Div":
        return bool(np.all(np.abs(arrays[1]) > 0.1))
    if op in ("Greater", "Less", "GreaterOrEqual", "LessOrEqual", "Equal"):
        return bool(np.all(np.abs(x - arrays[1]) > 1e-3))
    if op in ("TopK", "ArgMax", "ArgMin"):
        flat = np.sort(x.ravel())
        return bool(np.all(np.diff(flat) > 1e-3))
    return not (op == "Cast" and np.any(np.abs(x - np.round(x)) < 1e-3))


# steps: each adds a node or a few


def unary(g: Maker) -> None:
    x = g.floats()
    op = g.r.choice(
        [
            "Relu",
            "Relu",
            "Sigmoid",
            "Tanh",
            "Abs",
            "Neg",
            "Neg",
            "Exp",
            "Erf",
            "Identity",
            "Identity",
            "Softplus",
            "LeakyRelu",
            "HardSigmoid",
            "Floor",
            "Sign",
            "Sqrt",
            "Dropout",
            "Elu",
            "Gelu",
            "HardSwish",
            "Sin",
            "Round",
            "Reciprocal",
            "Softsign",
            "Log",
        ]
    )
    g.emit(op, x, alpha=0.25 if op in ("LeakyRelu", "HardSigmoid") and g.r.random() < 0.5 else None)
    if g.r.random() < 0.3 and op in ("Relu", "Abs", "Neg", "Floor", "Round", "Sign"):
        g.emit(op, g.vars[-1] if g.vars else None)


def binary(g: Maker) -> None:
    x = g.floats()
    if x is None:
        return
    op = g.r.choice(["Add", "Add", "Sub", "Mul", "Mul", "Div", "Max", "Min", "Pow"])
    y = operand(g, x, op)
    if op == "Pow":
        y = g.number(g.r.choice([0.5, 1, 2, 3, -0.5]))
        x = x if np.all(x.array > 0.05) or y.array.flat[0] in (1, 2, 3) else None
    pair = [x, y]
    if g.r.random() < 0.3 and op != "Pow":
        pair.reverse()
    g.emit(op, *pair)


def operand(g: Maker, x: Var, op: str = "") -> Var | None:
    """Something to combine `x` with: another value, a neutral or usual number, a constant by channel."""
    kind = g.r.random()
    if kind < 0.35:
        return g.pick(lambda v: v.array.dtype == x.array.dtype and broadcasts(v.shape, x.shape))
    if kind < 0.6:
        return g.number(g.r.choice([0, 1, 1, 2, 3, 6, 0.5, -1, 1 / 6, math.sqrt(2), 1.702]), x)
    shape = list(x.shape)
    for i in range(len(shape)):
        if g.r.random() < 0.5:
            shape[i] = 1
    if kind < 0.7:
        return g.const(np.full(shape, 0 if op in ("Add", "Sub") else 1, x.array.dtype))
    return g.random(shape[g.r.randrange(len(shape) + 1) :])


def broadcasts(a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    try:
        return math.prod(np.broadcast_shapes(a, b)) <= _MOST
    except ValueError:
        return False


def clip(g: Maker) -> None:
    x = g.floats()
    low, high = g.r.choice([(0, 6), (-1, 1), (None, 2), (-0.5, None), (0, None), (1, 0.5)])
    bounds = [None if b is None else g.const(np.array(b, g.dtype)) for b in (low, high)]
    y = g.emit("Clip", x, *bounds)
    if y is not None and g.r.random() < 0.4:
        g.emit(g.r.choice(["Relu", "Clip"]), y)


def transpose(g: Maker) -> None:
    x = g.floats(1)
    if x is not None:
        perm = list(range(x.array.ndim))
        if g.r.random() < 0.85:
            g.r.shuffle(perm)
        y = g.emit("Transpose", x, perm=perm if g.r.random() < 0.85 else None)
        if y is not None and g.r.random() < 0.4:
            y = g.emit(g.r.choice(["Relu", "Sigmoid", "Neg", "Identity"]), y)
            back = [perm.index(i) for i in range(len(perm))]
            g.emit("Transpose", y, perm=back if g.r.random() < 0.7 else perm)


def transposed_pair(g: Maker) -> None:
    x = g.floats(2)
    y = g.pick(
        lambda v: (
            x is not None
            and v.array.dtype == g.dtype
            and v.array.ndim == x.array.ndim
            and broadcasts(v.shape, x.shape)
        )
    )
    if x is None or y is None:
        return
    perm = list(range(x.array.ndim))
    g.r.shuffle(perm)
    a, b = g.emit("Transpose", x, perm=perm), g.emit("Transpose", y, perm=perm)
    op = g.r.choice(["Add", "Mul", "Sub", "Max", "Concat", "Softmax", "ReduceSum", "Pad", "Constant"])
    if op == "Concat":
        g.emit(op, a, b, axis=g.r.randrange(-len(perm), len(perm)))
    elif op == "Softmax":
        g.emit(op, a, axis=g.r.randrange(-len(perm), len(perm)))
    elif op == "ReduceSum":
        g.emit(op, a, g.ints(g.r.randrange(-len(perm), len(perm))), keepdims=1)
    elif op == "Pad":
        g.emit(op, a, g.ints(*(g.r.randrange(2) for _ in range(2 * len(perm)))))
    elif op == "Constant" and a is not None:
        g.emit(g.r.choice(["Add", "Sub", "Mul"]), *g.r.sample([a, operand(g, a)], 2))
    elif a is not None and b is not None:
        g.emit(op, a, b)


def reshape(g: Maker) -> None:
    x = g.floats()
    if x is None:
        return
    kind = g.r.randrange(6)
    shape = list(x.shape)
    if kind == 0:
        target = [0] * len(shape)
        if shape:
            target[g.r.randrange(len(shape))] = -1
        g.emit("Reshape", x, g.ints(*target))
    elif kind == 1:
        y = g.emit("Reshape", x, g.ints(*_divided(g, x.array.size)))
        if g.r.random() < 0.5:
            g.emit("Reshape", y, g.ints(*_divided(g, x.array.size)))
    elif kind == 2:
        y = g.emit("Flatten", x, axis=g.r.randrange(-len(shape), len(shape) + 1))
        if y is not None and g.r.random() < 0.6:
            g.emit("Reshape", y, _shape_of(g, x))
    elif kind == 3:
        axes = sorted(g.r.sample(range(len(shape) + 2), 2 if g.r.random() < 0.5 else 1))
        y = g.emit("Unsqueeze", x, g.ints(*[a for a in axes if a < len(shape) + len(axes)] or [0]))
        if y is not None and g.r.random() < 0.6:
            ones = [i for i, d in enumerate(y.shape) if d == 1]
            g.emit("Squeeze", y, g.ints(*g.r.sample(ones, g.r.randint(1, len(ones)))) if ones else None)
    elif kind == 4 and shape:
        parts = [_dim(g, x, i) for i in range(len(shape))]
        if len(parts) > 1 and g.r.random() < 0.7:
            tail = g.emit("Mul", parts.pop(), parts.pop(), keep=False)
            parts.append(g.ints(-1) if g.r.random() < 0.3 else tail)
        y = g.emit("Reshape", x, g.emit("Concat", *parts, axis=0, keep=False))
        if g.r.random() < 0.5:
            g.emit("Reshape", y, _shape_of(g, x))
    else:
        g.emit(
            "Expand",
            x,
            g.ints(*([2] if g.r.random() < 0.3 else []), *(1 if g.r.random() < 0.6 else d for d in shape)),
        )


def _divided(g: Maker, size: int) -> list[int]:
    out = []
    while size > 1 and g.r.random() < 0.8:
        d = g.r.choice([k for k in range(1, size + 1) if size % k == 0])
        out.append(d)
        size //= d
    out.append(size)
    g.r.shuffle(out)
    if g.r.random() < 0.4 and size:
        out[g.r.randrange(len(out))] = -1
    return out


def _shape_of(g: Maker, x: Var) -> Var | None:
    return g.emit("Shape", x, keep=False)


def _dim(g: Maker, x: Var, axis: int) -> Var | None:
    """One dimension of `x`, the way exporters ask for it."""
    if g.r.random() < 0.3:
        return g.ints(x.shape[axis])
    if g.r.random() < 0.5:
        return g.emit("Shape", x, start=axis, end=axis + 1, keep=False)
    one = g.emit("Gather", _shape_of(g, x), g.const(np.array(axis)), axis=0, keep=False)
    return g.emit("Unsqueeze", one, g.ints(0), keep=False)


def slice_(g: Maker) -> None:
    x = g.floats(1)
    if x is None:
        return
    axis = g.r.randrange(x.array.ndim)
    n = x.shape[axis]
    start, end, step = g.r.choice(
        [(0, 1 << 62, 1), (0, n, 1), (1, n, 1), (0, -1, 1), (0, n, 2), (-1, -(1 << 62), -1), (0, 1, 1)]
    )
    g.emit(
        "Slice",
        x,
        g.ints(start),
        g.ints(end),
        g.ints(axis if g.r.random() < 0.5 else axis - x.array.ndim),
        *([g.ints(step)] if step != 1 or g.r.random() < 0.5 else []),
    )


def joined(g: Maker) -> None:
    x = g.floats(1)
    if x is None:
        return
    axis = g.r.randrange(x.array.ndim)
    others = [
        g.pick(
            lambda v: (
                v.array.dtype == g.dtype
                and v.array.ndim == x.array.ndim
                and all(a == b for i, (a, b) in enumerate(zip(v.shape, x.shape, strict=True)) if i != axis)
            )
        )
        for _ in range(g.r.randrange(3))
    ]
    y = g.emit(
        "Concat", x, *(o for o in others if o is not None), axis=g.r.choice([axis, axis - x.array.ndim])
    )
    if y is not None and g.r.random() < 0.3:
        g.emit("Concat", y, x, axis=axis)


def split(g: Maker) -> None:
    x = g.floats(1)
    axis = g.r.randrange(x.array.ndim) if x is not None else 0
    if x is not None and x.shape[axis] > 1:
        a = g.r.randint(1, x.shape[axis] - 1)
        parts = g.emit("Split", x, g.ints(a, x.shape[axis] - a), axis=axis, outputs=2)
        if parts and g.r.random() < 0.5:
            g.emit("Concat", *g.r.sample(parts, 2), axis=axis)


def gather(g: Maker) -> None:
    x = g.floats(1)
    if x is not None and 0 not in x.shape:
        axis = g.r.randrange(x.array.ndim)
        index = np.array(
            [g.r.randrange(-x.shape[axis], x.shape[axis]) for _ in range(g.r.randint(1, 3))], np.int64
        )
        g.emit("Gather", x, g.const(index[0] if g.r.random() < 0.3 else index), axis=axis)


def pad(g: Maker) -> None:
    x = g.floats(1)
    if x is not None:
        pads = [g.r.choice([0, 0, 1]) if g.r.random() < 0.8 else 0 for _ in range(2 * x.array.ndim)]
        g.emit(
            "Pad",
            x,
            g.ints(*pads),
            *([g.const(np.array(g.r.choice([0, 1.5]), g.dtype))] if g.r.random() < 0.5 else []),
            mode=g.r.choice(["constant", "constant", "edge"]),
        )


def reduce(g: Maker) -> None:
    x = g.floats(1)
    if x is not None and x.array.size:
        axes = sorted(g.r.sample(range(x.array.ndim), g.r.randint(1, x.array.ndim)))
        axes = [a - x.array.ndim if g.r.random() < 0.5 else a for a in axes]
        g.emit(
            g.r.choice(["ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceL2", "ReduceSumSquare"]),
            x,
            g.ints(*axes),
            keepdims=g.r.choice([0, 1, 1]),
        )


def along(g: Maker) -> None:
    x = g.floats(1)
    if x is not None:
        op = g.r.choice(["Softmax", "LogSoftmax", "CumSum", "LayerNormalization"])
        axis = g.r.randrange(-x.array.ndim, x.array.ndim)
        if op == "CumSum":
            g.emit(op, x, g.const(np.array(axis)))
        elif op == "LayerNormalization":
            scale = np.ones(x.shape[axis:], g.dtype) if g.r.random() < 0.5 else None
            scale_var = g.const(scale) if scale is not None else g.random(x.shape[axis:])
            y = g.emit(
                op, x, scale_var, *([g.random(x.shape[axis:])] if g.r.random() < 0.4 else []), axis=axis
            )
            if y is not None and g.r.random() < 0.6:
                g.emit(g.r.choice(["Mul", "Add"]), y, g.random(x.shape[axis:]))
        else:
            g.emit(op, x, axis=axis)


def logic(g: Maker) -> None:
    x = g.floats()
    if x is None:
        return
    test = g.emit(g.r.choice(["Greater", "Less", "GreaterOrEqual"]), x, operand(g, x))
    if test is None:
        return
    if g.r.random() < 0.5:
        test = g.emit("Not", test) or test
    if g.r.random() < 0.3:
        test = g.emit("Not", test) or test
    y = operand(g, x)
    if y is not None:
        g.emit("Where", test, *g.r.sample([x, y], 2))
    if g.r.random() < 0.3:
        g.emit("Cast", test, to=g.r.choice([6, 7, helper.np_dtype_to_tensor_dtype(np.dtype(g.dtype))]))


def casts(g: Maker) -> None:
    x = g.pick(lambda v: v.array.dtype.kind in "fiub")
    to = g.r.choice([11, 6, 7, 9, 2] + ([1] if g.dtype == np.float32 else []))
    if x is not None and np.all(x.array >= 0):
        y = g.emit("Cast", x, to=to)
        if y is not None and g.r.random() < 0.6:
            g.emit("Cast", y, to=helper.np_dtype_to_tensor_dtype(np.dtype(g.dtype)))


def integers(g: Maker) -> None:
    x = g.pick(lambda v: v.array.dtype.kind == "i" and v.array.dtype.itemsize >= 4)
    if x is not None:
        op = g.r.choice(["Add", "Mul", "Sub", "Div", "Max", "Abs", "Neg", "ReduceSum", "Sign"])
        if op in ("Abs", "Neg", "Sign"):
            g.emit(op, x)
        elif op == "ReduceSum":
            g.emit(op, x, keepdims=g.r.randrange(2))
        else:
            y = g.number(g.r.choice([1, 2, 3, 6] + ([0] if op != "Div" else [])), x)
            if op == "Div" and g.r.random() < 0.3 and np.all(x.array != 0):
                part = g.emit("Div", g.number(1, x), x)
                g.emit("Mul", part, y) if part is not None else None
            else:
                g.emit(op, x, y)


def repeat(g: Maker) -> None:
    """A node once more, for the pass that merges equal ones."""
    plain = [
        n
        for n in g.nodes
        if len(n.output) == 1
        and "Sequence" not in n.op_type
        and not any(a.HasField("g") for a in n.attribute)
    ]
    if plain:
        node = g.r.choice(plain)
        known = {v.name: v for m in (g, g.outer) if m for v in (*m.vars, *m.inits)}
        if all(n in known or not n for n in node.input):
            attrs = {a.name: helper.get_attribute_value(a) for a in node.attribute}
            attrs = {k: v.decode() if isinstance(v, bytes) else v for k, v in attrs.items()}
            g.emit(node.op_type, *(known.get(n) for n in node.input), **attrs)


def info(name: str, dtype: Any, shape: Any) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, int(element_of(np.dtype(dtype))), shape)
