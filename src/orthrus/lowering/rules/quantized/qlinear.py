"""Operators between quantized tensors: sums, activations, pools, softmax and concatenations of bytes.

In: bytes with their scales and zero points, one number each. Out: bytes, quantized once at the end. What
gives each byte a byte is looked up in a table that the operator's definition makes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from ....codegen.kernels.int8 import table
from ....codegen.write.expr import Expr
from ....codegen.write.trace import traced
from ....ir import No, Node, Value
from ....ops.contrib.quant import coded as coded_array
from ....ops.contrib.quant import number as number_of
from ....ops.contrib.quant import product_factor, sum_factors
from ....ops.contrib.quant import real as real_array
from ....ops.define import normalized_axis
from ....ops.nn.activation import LeakyRelu, Sigmoid
from ....records import dataclass
from ...lower import RULES, Lazy, Lowering, Out, Pending, Rule, Source, lowers
from ...rule_sets import BOTH
from ...tensor import Tensor, c_strides
from ...walk import merged, order_like
from .. import reduce
from ..pool import pooled
from ..rows import of_one, reading, softmax_rows_of
from . import int8
from .int8 import coded, number
from .quantize import dequantized, one, quantized

MS = "com.microsoft::"
F, INT = "float32", "int32"
_MOST = 1 << 22
"""Bytes whose sum an int32 holds."""


def _number(lo: Lowering, value: Value | None) -> bool:
    """Whether a parameter is one number, or absent."""
    return value is None or np.prod(lo.shape(value)) == 1


def _floats(lo: Lowering, x: Value, scale: Value | None, zero: Value | None) -> Value | No:
    """A value of what bytes stand for."""
    real = None
    if scale is not None and _number(lo, scale) and _number(lo, zero):
        real = dequantized(lo, lo.lazy(x), scale, zero)
    if real is None:
        return No("its scales are not one number each")
    value = Value(f"{x.name} as floats")
    lo.bind(value, real)
    lo.left[value] = 1
    return value


def _finished(lo: Lowering, made: Lazy | Pending | No, scale: Value | None, zero: Value | None, dtype: str
              ) -> Lazy | No:
    """float32 numbers, quantized."""
    if isinstance(made, No) or scale is None:
        return made if isinstance(made, No) else No("its scale is missing")
    if isinstance(made, Pending):
        made = Lazy(made.shape, Expr.leaf(0, made.dtype), [Source(made)])
    return quantized(lo, made, scale, zero, dtype) or No("its scale is more than one number")


def _of_pair(lo: Lowering, node: Node, tree: Callable[..., Expr], numbers: Callable[..., Any],
             computed: Callable[..., list[Expr]]) -> Lazy | No:
    """A tree over two tensors of bytes and numbers that follow from the parameters, quantized. `numbers`:
    these from constant parameters; `computed`: a tree for each over parameters computed while running."""
    a, a_scale, a_zero, b, b_scale, b_zero, scale, zero = (*node.inputs, None, None)[:8]
    assert a is not None and b is not None
    given = (a_scale, a_zero, b_scale, b_zero, scale, zero)
    if scale is None or not all(_number(lo, v) for v in given):
        return No("its scales are not one number each")
    if all(v is None or lo.knows(v) for v in given):
        found = [np.asarray(each, F) for each in numbers(*map(lo.known, given))]
        made = [lo.constant((F, each.tobytes()), partial(np.copy, each)) for each in found]
    else:
        operands = [lo.table(np.zeros, (), F) if v is None else lo.tensor(v).view((), ()) for v in given]
        trees = computed(*(Expr.leaf(i, t.dtype).cast(F) for i, t in enumerate(operands)))
        made = [lo.new((), F) for _ in trees]
        for out, each in zip(made, trees, strict=True):
            lo.store(out, each, operands)
    values = [a, b]
    for t in made:
        values.append(Value("a number of a quantized pair"))
        lo.bind(values[-1], t)
        lo.left[values[-1]] = 1
    done = lo.elementwise(values, lambda kinds: tree(*map(_float_leaf, range(len(kinds)), kinds)))
    if isinstance(done, No):
        return done
    return quantized(lo, done, None, None, lo.dtype(a)) or No("its bytes are of no type that is quantized to")


def _float_leaf(i: int, kind: str) -> Expr:
    return Expr.leaf(i, kind).cast(F)


def _fused(x: Expr, y: Expr, z: Expr) -> Expr:
    return Expr("fma", (x, y, z), F)


@lowers(MS + "QLinearAdd", types=int8.BYTES, sets=BOTH)
def quantized_sum(lo: Lowering, node: Node) -> Lazy | No:
    """Both codes times a factor, plus a constant."""
    def computed(a_scale: Expr, a_zero: Expr, b_scale: Expr, b_zero: Expr, scale: Expr, zero: Expr
                 ) -> list[Expr]:
        left, right = (Expr("div", (each, scale), F) for each in (a_scale, b_scale))
        shift = _fused(a_zero, left, Expr("mul", (right, b_zero), F))
        return [left, right, Expr("sub", (zero, shift), F)]
    return _of_pair(lo, node, lambda a, b, left, right, constant: _fused(a, left, _fused(b, right, constant)),
                    sum_factors, computed)


@lowers(MS + "QLinearMul", types=int8.BYTES, sets=BOTH)
def quantized_product(lo: Lowering, node: Node) -> Lazy | No:
    """The product of both codes less their zero points, times a factor, plus the zero point."""
    def numbers(a_scale: Any, a_zero: Any, b_scale: Any, b_zero: Any, scale: Any, zero: Any) -> list[Any]:
        zeros = [number_of(each) for each in (a_zero, b_zero, zero)]
        return [*zeros[:2], product_factor(a_scale, b_scale, scale), zeros[2]]

    def computed(a_scale: Expr, a_zero: Expr, b_scale: Expr, b_zero: Expr, scale: Expr, zero: Expr
                 ) -> list[Expr]:
        return [a_zero, b_zero, Expr("div", (Expr("mul", (a_scale, b_scale), F), scale), F), zero]

    def tree(a: Expr, b: Expr, a_zero: Expr, b_zero: Expr, factor: Expr, zero: Expr) -> Expr:
        codes = [Expr("sub", pair, F) for pair in ((a, a_zero), (b, b_zero))]
        return Expr("add", (Expr("mul", (Expr("mul", (codes[0], codes[1]), F), factor), F), zero), F)
    return _of_pair(lo, node, tree, numbers, computed)


def by_table(lo: Lowering, x: Tensor, out: Tensor, key: Any, how: Callable[[np.ndarray], np.ndarray]) -> None:
    """Append the step that writes `how` of bytes; `key` tells it from others for bytes of that type."""
    def make() -> np.ndarray:
        every = np.arange(256, dtype=np.uint8)
        return how(every.view(x.dtype)).view(np.uint8)
    dims = merged(x.shape, [x.strides, out.strides])
    if not dims or dims[-1][1] != [1, 1] or len(dims) > 2:
        x, dims = lo.contiguous(x), [(x.size, [1, 1])]
        if not out.contiguous:
            whole = lo.new(out.shape, out.dtype)
            by_table(lo, x, whole, key, how)
            lo.copy(whole, out)
            return
    *outer, (n, _) = dims
    rows, (x_row, out_row) = outer[0] if outer else (1, [0, 0])
    blocks = -(-n // table.BLOCK)
    lo.step(table.bytes_by_table(),
            [x, Out(out), lo.constant(("table", x.dtype, key), make), n, x_row, out_row, blocks],
            rows * blocks, max(1, table.BLOCK // n))


_PLAIN = 12
"""Operations of a tree up to which it costs no more than looking up in several steps."""
_LONG = frozenset({"sigmoid", "tanh", "exp", "erf", "log", "pow"})


def _looked_up(rule: Rule) -> Rule:
    """A QuantizeLinear of elementwise operators over one dequantized tensor of bytes, by a table."""
    def by_codes(lo: Lowering, node: Node) -> Any:
        x, scale, zero = (*node.inputs, None)[:3]
        target = node.output.elem.numpy.name
        found = lo.env.get(x) if x is not None else None
        if x is None or not isinstance(found, Lazy) or found.source is not None or (
                target not in int8.BYTES or node.attrs.get("block_size")) or not all(
                v is None or number(lo, v) is not None for v in (scale, zero)):
            return rule(lo, node)
        pays = lo.machine.has("avx512vbmi") or found.tree.size() > _PLAIN or _long(found.tree)
        chain = _chain(lo, x) if pays else None
        if chain is None or not chain.nodes or lo.shape(x) != lo.shape(chain.source.value):
            return rule(lo, node)
        t = lo.tensor(chain.source.value)
        out = lo.new(t.shape, target, order_like(t, t))
        if t.size:
            by_table(lo, t, out, id(node), lambda every: chain.of(lo, every, node))
        return out
    return by_codes


def _long(tree: Expr) -> bool:
    """Whether a tree has a function that takes many instructions."""
    return tree.op in _LONG or any(map(_long, tree.args))


@dataclass(eq=False)
class _Chain:
    """Elementwise nodes, in order, over what `source` is dequantized to, which `floats` are; or over none."""

    source: int8.Coded
    floats: dict[Value, None]
    nodes: dict[Node, None]

    def of(self, lo: Lowering, every: np.ndarray, last: Node) -> np.ndarray:
        """What the nodes and `last` make of bytes."""
        scale, zero = lo.known(self.source.scale), lo.known(self.source.zero)
        assert scale is not None
        made: dict[Any, Any] = dict.fromkeys(self.floats, real_array(every, scale, zero))
        with np.errstate(all="ignore"):
            for node in (*self.nodes, last):
                given = [None if v is None else made[v] if v in made else lo.known(v) for v in node.inputs]
                made[node.output] = lo.reference(node)(*given)
        result: np.ndarray = made[last.output]
        return result


def _chain(lo: Lowering, value: Value) -> _Chain | None:
    """The elementwise nodes between `value` and the one tensor of bytes it comes of; None where there are
    others."""
    found = coded(lo, value)
    if found is not None:
        whole = (number(lo, found.scale) or 0) > 0 and number(lo, found.zero) is not None
        return _Chain(found, {value: None}, {}) if whole else None
    node = value.node
    if node is None or node.op is None or not node.op.broadcasts or len(node.outputs) != 1:
        return None
    made: _Chain | None = None
    for v in node.inputs:
        if v is None or (lo.knows(v) and number(lo, v) is not None):
            continue
        each = None if lo.knows(v) else _chain(lo, v)
        if each is None or (made is not None and each.source.value is not made.source.value):
            return None
        if made is not None:
            each = _Chain(made.source, made.floats | each.floats, made.nodes | each.nodes)
        made = each
    return None if made is None else _Chain(made.source, made.floats, made.nodes | {node: None})


RULES["", "QuantizeLinear"] = _looked_up(RULES.written(("", "QuantizeLinear")))


@lowers(MS + "QLinearSigmoid", MS + "QLinearLeakyRelu", types=int8.BYTES, sets=BOTH)
def qlinear_activation(lo: Lowering, node: Node) -> Lazy | Tensor | No:
    """An activation between quantized tensors."""
    x, *parameters = node.inputs
    assert x is not None
    dtype = lo.dtype(x)
    if lo.rules is RULES and all(v is None or lo.knows(v) for v in parameters):
        t = lo.tensor(x)
        out = lo.new(t.shape, dtype, order_like(t, t))
        if t.size:
            given = [lo.known(v) for v in parameters]
            by_table(lo, t, out, id(node), lambda every: lo.reference(node)(every, *given))
        return out
    scale, low, y_scale, y_zero = (*parameters, None, None)[:4]
    value = _floats(lo, x, scale, low)
    if isinstance(value, No):
        return value
    tree = traced(LeakyRelu if node.op_type == "QLinearLeakyRelu" else Sigmoid, node.attributes, [F])
    return _finished(lo, lo.elementwise([value], lambda _: tree), y_scale, y_zero, dtype)


@lowers(MS + "QLinearConcat", sets=BOTH)
def qlinear_concat(lo: Lowering, node: Node) -> Tensor | No:
    """Each input goes straight into its place, as the whole is quantized."""
    scale, zero, *rest = node.inputs
    parts = list(zip(rest[::3], rest[1::3], rest[2::3], strict=False))
    if not parts or len(rest) % 3 or scale is None or zero is None or any(
            v is None or (i > 0 and not lo.knows(v)) for part in parts for i, v in enumerate(part)) or not (
            lo.knows(scale) and lo.knows(zero)) or one(lo, scale) is None or one(lo, zero) is None:
        return No("its scales and zero points are not known numbers")
    shapes, dtype = [lo.shape(x) for x, *_ in parts], lo.dtype(zero)
    if any(lo.dtype(x) not in int8.BYTES for x, *_ in parts if x is not None) or not shapes[0]:
        return No("kernels join bytes")
    axis = normalized_axis(node.attributes["axis"], len(shapes[0]))
    if any(s[:axis] + s[axis + 1:] != shapes[0][:axis] + shapes[0][axis + 1:] for s in shapes):
        return No("its inputs do not fit")
    whole = (*shapes[0][:axis], sum(s[axis] for s in shapes), *shapes[0][axis + 1:])
    out, at = lo.new(whole, dtype), 0
    for i, ((x, by, low), shape) in enumerate(zip(parts, shapes, strict=True)):
        assert x is not None and by is not None
        there = out.slice(axis, at, shape[axis])
        at += shape[axis]
        if 0 in shape:
            continue
        if lo.dtype(x) == dtype and one(lo, by) == one(lo, scale) and number(lo, low) == number(lo, zero):
            lo.into(x, there)
        else:
            _recoded(lo, x, (by, low), (scale, zero), there, (id(node), i))
    return out


Scaled = tuple[Value, "Value | None"]
"""A scale and a zero point."""


def _recoded(lo: Lowering, x: Value, old: Scaled, new: Scaled, out: Tensor, key: Any) -> None:
    """Write bytes of one scale and zero point, known numbers, as those of another."""
    if lo.rules is RULES:
        by_table(lo, lo.tensor(x), out, key, partial(
            _requantized, (lo.known(old[0]), lo.known(old[1])), (lo.known(new[0]), lo.known(new[1]))))
        return
    real = _floats(lo, x, *old)
    assert not isinstance(real, No)
    made = _finished(lo, lo.lazy(real), *new, out.dtype)
    assert not isinstance(made, No)
    coded = Value(f"{x.name} as other bytes")
    lo.bind(coded, made)
    lo.left[coded] = 1
    lo.into(coded, out)


def _requantized(old: Any, new: Any, every: np.ndarray) -> np.ndarray:
    """Bytes of one scale and zero point as those of another, in the type of the new zero point."""
    return coded_array(real_array(every, *old), new[0], new[1], new[1].dtype)


@lowers(MS + "QLinearSoftmax", types=int8.BYTES, sets=BOTH)
def qlinear_softmax(lo: Lowering, node: Node) -> Lazy | No:
    """Along one axis, or in the older form over all from an axis on."""
    x, scale, zero, y_scale, y_zero = (*node.inputs, None, None)[:5]
    assert x is not None
    shape, attrs = lo.shape(x), node.attributes
    if not -len(shape) <= attrs["axis"] < len(shape):
        return No("its axis is out of range")
    axis = normalized_axis(attrs["axis"], len(shape))
    value = _floats(lo, x, scale, zero)
    if isinstance(value, No):
        return value
    axes = (axis,) if attrs["opset"] >= 13 else tuple(range(axis, len(shape)))
    made = of_one(lo, value) if math.prod(shape[a] for a in axes) == 1 else (
        softmax_rows_of(lo, reading(lo, value), axes, F))
    return _finished(lo, made, y_scale, y_zero, lo.dtype(x))


def _first(x: Tensor) -> Tensor:
    """An image (N, spatial..., C) as (N, C, spatial...)."""
    return x.permute((0, x.rank - 1, *range(1, x.rank - 1)))


def channels_behind(made: Pending) -> Pending:
    """A result (N, C, spatial...) as (N, spatial..., C)."""
    inner, accepts = made.emit, made.accepts
    n, c, *spatial = made.shape
    image, channel, *apart = made.strides or c_strides(made.shape)

    def emit(lo: Lowering, out: Tensor, tree: Expr | None, operands: list[Tensor]) -> None:
        inner(lo, _first(out), tree, [_first(t) for t in operands])
    return replace(made, shape=(n, *spatial, c), emit=emit, strides=(image, *apart, channel),
                   accepts=None if accepts is None else lambda t: accepts(_first(t)))


@lowers(MS + "NhwcMaxPool", types=int8.BYTES)
def nhwc_max_pool(lo: Lowering, node: Node, pool: Callable[..., Pending | No] = pooled) -> Pending | No:
    """The largest of each window, channels behind."""
    (x,) = node.inputs
    t = lo.tensor(x)
    if t.rank < 3:
        return No("kernels pool one to three spatial axes")
    made = pool(lo, _first(t), "max", node.attributes)
    return made if isinstance(made, No) else channels_behind(made)


@lowers(MS + "QLinearAveragePool", types=int8.BYTES)
def qlinear_average_pool(lo: Lowering, node: Node, pool: Callable[..., Pending | No] = pooled) -> Lazy | No:
    """The mean of each window's sum, which is exact."""
    x, scale, zero, y_scale, y_zero = (*node.inputs, None, None)[:5]
    t, behind = lo.tensor(x), node.attributes["channels_last"]
    if t.rank < 3:
        return No("kernels pool one to three spatial axes")
    low = _as_float(lo, zero)
    if isinstance(low, No):
        return low
    made = pool(lo, _first(t) if behind else t, "average", node.attributes, low)
    if isinstance(made, No):
        return made
    return _mean(lo, channels_behind(made) if behind else made, scale, y_scale, y_zero, t.dtype)


def _as_float(lo: Lowering, zero: Value | None) -> Tensor | No:
    """A zero point as a float32 number."""
    if not _number(lo, zero):
        return No("its zero point is more than one number")
    if zero is None or lo.knows(zero):
        known = 0 if zero is None else one(lo, zero)
        return lo.table(lambda n: np.array([n], np.float32), known)
    made = lo.new((1,), F)
    t = lo.tensor(zero)
    lo.store(made, Expr.leaf(0, t.dtype).cast(F), [t.view((1,), (1,))])
    return made


def _mean(lo: Lowering, made: Pending, scale: Value | None, y_scale: Value | None, y_zero: Value | None,
          dtype: str) -> Lazy | No:
    """A mean of codes less their zero point, scaled and quantized."""
    codes = Lazy(made.shape, Expr.leaf(0, F), [Source(made)])
    real = None if scale is None or not _number(lo, scale) else dequantized(lo, codes, scale, None)
    return _finished(lo, No("its scale is more than one number") if real is None else real, y_scale, y_zero,
                     dtype)


@lowers(MS + "QLinearGlobalAveragePool", types=int8.BYTES, sets=BOTH)
def qlinear_global_average_pool(lo: Lowering, node: Node) -> Lazy | No:
    """The mean over all spatial axes; its sum is exact."""
    x, scale, zero, y_scale, y_zero = node.inputs
    t = lo.tensor(x)
    axes = tuple(range(1, t.rank - 1) if node.attributes["channels_last"] else range(2, t.rank))
    count = int(np.prod([t.shape[a] for a in axes]))
    if not axes or not t.size or count > _MOST or not _number(lo, zero):
        return No("it has no spatial axes, no elements or too many")
    what = reduce.Folded("sum", Expr.leaf(0, t.dtype).cast(INT), [t], axes)
    total = Expr.leaf(0, INT)
    operands = [lo.numbers([count], INT)]
    if zero is not None and one(lo, zero) != 0:
        low = lo.tensor(zero)
        operands.append(low.view((), ()))
        times = Expr("mul", (Expr.leaf(1, INT), Expr.leaf(2, low.dtype).cast(INT)), INT)
        total = Expr("sub", (total, times), INT)
    mean = Expr("div", (total.cast(F), Expr.leaf(1, INT).cast(F)), F)
    return _mean(lo, reduce.pending(lo, what, True, F, mean, operands), scale, y_scale, y_zero, t.dtype)
