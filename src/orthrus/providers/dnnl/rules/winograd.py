"""3x3 convolutions by Winograd's transform: the products are oneDNN's, the transforms generated code.

A node whose weights are constant becomes three steps, take (input to V), one product V @ U for each position
of a tile, and give (M to output), with the nodes behind it in the last. See `codegen.kernels.conv.winograd`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ....codegen.kernels.conv import winograd
from ....codegen.kernels.conv.geometry import Geometry
from ....codegen.runtime.call_kernel import aligned
from ....codegen.write.expr import Expr
from ....codegen.write.tile import Operand
from ....codegen.write.trace import trace
from ....ir import No, Node, Value
from ....ops.nn.geometry import window
from ..binding import DST, SRC, WEIGHTS, Refused
from ..fuse import alone, chained
from ..generated import GeneratedCode, machine
from ..lower import Lowering
from ..objects import Attr, Primitive, Sum, last_strides, strided
from ..step import Link
from ..tensor import Argument, Tensor

_F32 = "float32"
_MANY = 64
"""Input channels from which on tiles of 4 are used: below, errors grow more than time is saved."""

_MOST = 32 << 20
"""Bytes that V and M may take together."""

_GAIN = 0.85
"""Share of the direct convolution's time that the transform may take to be preferred."""


def transformed(lo: Lowering, node: Node, bias: Tensor | None) -> bool:
    """Write the steps of a convolution of float32; False where it is to be computed directly."""
    weights, attrs, given = lo.known(node.inputs[1]), node.attributes, lo.shape(node.inputs[0])
    if weights is None or weights.ndim != 4 or weights.dtype != np.float32 or attrs["group"] != 1:
        return False
    win = window(given[2:], attrs["kernel_shape"] or weights.shape[2:], attrs["strides"], attrs["dilations"],
                 attrs["pads"], attrs["auto_pad"])
    size, kernel, strides, dilations, out = (
        (1, high, wide) for high, wide in (win.size, win.kernel, win.strides, win.dilations, win.out))
    g = Geometry(given[0], 1, given[1], weights.shape[0], size, kernel, strides, dilations,
                 (0, win.begin[0], win.begin[1]), out)
    if not (side := chosen(g)) or winograd.few_bits(weights):
        return False
    shape = (g.batch, g.cout, *win.out)
    end, value, done = _End(lo, bias), node.output, [node]
    for link in chained(lo, node, shape, shape, _F32, False, None):
        if not end.add(link, value):
            break
        done.append(link.node)
        value = link.node.output
    plan = winograd.plan(g, machine(), side, g.batch * -(-g.out[1] // side) * -(-g.out[2] // side))
    (take, tiles, scratch), _, (give, _, more) = plan.steps(end.tree, end.operands)
    v, m = lo.workspace("V", plan.v_size), lo.workspace("M", plan.m_size)
    u = lo.constant(("winograd", id(node), side), lambda: _unpacked(plan, weights))
    try:
        made, factors = _product(lo, plan, v, u, m)
    except Refused:
        return False
    x, y = _last(lo, lo.tensor(node.inputs[0])), end.place(shape)
    rooms = (x, u, y, v, m, status := lo.status())
    cells: tuple[Tensor | int, ...] = (*rooms, *plan.cells(_walk(x), _walk(y)))
    lo.generate("winograd_take", GeneratedCode(take, cells, tiles, scratch), [x], [v])
    lo.step(made, factors, [m])
    lo.generate("winograd_give", GeneratedCode(give, (*cells, *end.cells), tiles, more),
                [m, status, *end.tensors], [y], done)
    for each in done[1:]:
        lo.read(each)
    lo.bind(value, y)
    return True


def chosen(g: Geometry) -> int:
    """The side of the tiles that is estimated fastest, 0 for the direct convolution. In units of a
    multiply-add of a large product: small products take 1.2, an element of V or M 23, one of weights, which
    come from memory, 20."""
    if (g.kernel != (1, 3, 3) or g.strides != (1, 1, 1) or g.dilations != (1, 1, 1) or min(g.pads) < 0
            or min(g.cin, g.cout) < 16):
        return 0
    each = g.cin * g.cout
    best, least = 0, _GAIN * (g.batch * g.out[1] * g.out[2] * 9 * each + 20 * 9 * each)
    for side in (2, 4) if g.cin >= _MANY else (2,):
        tiles, positions = g.batch * -(-g.out[1] // side) * -(-g.out[2] // side), (side + 2) ** 2
        moved = positions * tiles * (g.cin + g.cout)
        cost = 1.2 * positions * max(tiles, 24) * each + 23 * moved + 20 * positions * each
        if cost < least and moved * 4 <= _MOST:
            best, least = side, cost
    return best


class _End:
    """What is applied to the sums of a convolution before they are stored: a `tree` over them, leaf 0, and
    over `operands`, with the kernel's cells for these."""

    def __init__(self, lo: Lowering, bias: Tensor | None) -> None:
        self.lo = lo
        self.tree: Expr | None = None
        self.operands: list[Operand] = []
        self.tensors: list[Tensor] = []
        self.cells: list[Tensor | int] = []
        self.over: Tensor | None = None
        if bias is not None:
            leaf = self._leaf(lo.view(bias, (1, bias.size, 1, 1)))
            assert leaf is not None
            self.tree = Expr("add", (Expr.leaf(0, _F32), leaf), _F32)

    def add(self, link: Link, value: Value) -> bool:
        """Apply the node of `link` to `value` as well; whether that can be done."""
        node = link.node
        if node.op is None:
            return False
        known = {i: array for i, v in enumerate(node.inputs)
                 if v is not None and (array := self.lo.known(v)) is not None and array.size == 1}
        rest = [i for i, v in enumerate(node.inputs) if v is not None and v is not value and i not in known]
        tree = trace(node.op, node.attributes, [None if v is None else _F32 for v in node.inputs], known)
        if isinstance(tree, No) or tree.dtype != _F32 or len(rest) > 1:
            return False
        leaf = self._leaf(link.operand) if rest and link.operand is not None else None
        if rest and leaf is None:
            return False
        before = Expr.leaf(0, _F32) if self.tree is None else self.tree
        self.tree = tree.substitute(lambda it: leaf if leaf is not None and it.value == rest[0] else before)
        if isinstance(link.post, Sum):
            self.over = self.tensors[-1]
        return True

    def _leaf(self, t: Tensor) -> Expr | None:
        """`t`, which broadcasts to the result, as a leaf; None where kernels do not read it."""
        if t.dtype != _F32 or len(t.shape) != 4:
            return None
        if t.desc.strides is None or (t.shape[1] != 1 and t.shape[2:] != (1, 1)):
            t = _last(self.lo, t)
        assert t.desc.strides is not None
        image, channel, row, pixel = (0 if d == 1 else s
                                      for d, s in zip(t.shape, t.desc.strides, strict=True))
        if t.shape[1] != 1 and channel != 1:
            return None
        self.operands.append(Operand(_F32, bool(row or pixel), t.shape[1] != 1))
        self.tensors.append(t)
        self.cells += [t, image, 0, row, pixel]
        return Expr.leaf(len(self.operands), _F32)

    def place(self, shape: Sequence[int]) -> Tensor:
        """Where results go: over what is added to them, where nobody else needs it and it lies alike."""
        desc, over = strided(self.lo.lib, shape, _F32, last_strides(shape)), self.over
        if over is None or over.desc != desc or not alone(self.lo, over):
            return self.lo.new(shape, desc)
        self.lo.copies.pop(id(over.buffer), None)
        return Tensor(tuple(shape), desc, over.buffer)


def _product(lo: Lowering, plan: winograd.WinogradPlan, v: Tensor, u: Tensor, m: Tensor
             ) -> tuple[Primitive, list[Argument]]:
    """M = V @ U for each position of a tile, and its arguments. Raises Refused."""
    positions = u.shape[0]
    rows, columns = ((positions, plan.tiles, c) for c in u.shape[1:])
    v, m = (lo.view(t, shape, (t.size // positions, pitch, 1))
            for t, shape, pitch in ((v, rows, plan.v_row), (m, columns, plan.m_row)))
    made = Primitive(lo.lib, "matmul", lo.lib.engine, v.desc, u.desc, None, m.desc, Attr(lo.lib))
    return made, [(SRC, v), (WEIGHTS, u), (DST, m)]


def _unpacked(plan: winograd.WinogradPlan, weights: np.ndarray) -> np.ndarray:
    """U [positions, Cin, Cout] of weights [Cout, Cin, 3, 3]."""
    packed = plan.pack(weights[:, :, None])
    flat = packed.swapaxes(1, 2).reshape(len(packed), weights.shape[1], -1)
    made = aligned((*flat.shape[:2], weights.shape[0]))
    made[...] = flat[..., :weights.shape[0]]
    return made


def _last(lo: Lowering, t: Tensor) -> Tensor:
    """`t` with its channels last."""
    return lo.laid(t, strided(lo.lib, t.shape, t.dtype, last_strides(t.shape)))


def _walk(t: Tensor) -> tuple[int, int, int, int]:
    """Strides over images, depth, rows and pixels."""
    assert t.desc.strides is not None
    image, _, row, pixel = t.desc.strides
    return image, 0, row, pixel
