"""Quantization by a tensor's own range, by generated code: oneDNN's scales come from elsewhere."""

from __future__ import annotations

from ....codegen.kernels import loops, quantize_range
from ....codegen.write.expr import Expr
from ....ir import Node
from ..generated import GeneratedCode, machine
from ..lower import Lowering
from ..objects import strided
from ..step import lowers
from ..tensor import Tensor

_F32 = "float32"


@lowers("DynamicQuantizeLinear")
def dynamic_quantization(lo: Lowering, node: Node) -> tuple[Tensor, Tensor, Tensor]:
    """The codes of X, uint8, its scale and its zero point."""
    x = lo.plain(lo.tensor(node.inputs[0]))
    count = max(1, -(-x.size // quantize_range.CHUNK))
    y, scale, zero, ends, divisor = (
        lo.new(shape, strided(lo.lib, shape, dtype)) for shape, dtype in (
            (x.shape, "uint8"), ((), _F32), ((), "uint8"), ((2 * count,), _F32), ((3,), _F32)))
    parts = GeneratedCode(quantize_range.range_parts(), (x, ends, x.size), count)
    lo.generate("range_parts", parts, [x], [ends])
    codes = GeneratedCode(quantize_range.range_codes(), (ends, count, scale, zero, divisor), 1)
    lo.generate("range_codes", codes, [ends], [scale, zero, divisor])
    tree, read = _codes(), [x, *(lo.view(divisor, (1,), None, i) for i in range(3)), zero]
    if machine().arch == "x86_64" and not machine().has("fma"):
        tree = _quantized(Expr("div", (Expr.leaf(0, _F32), Expr.leaf(1, _F32)), _F32), 2)
        read = [x, scale, zero]
    walk = loops.nest((x.size,), [(1,), (1,), *((0,) for _ in read[1:])])
    spec, cells, items, _ = loops.elementwise(walk, tree, [t.dtype for t in read])
    lo.generate("quantize", GeneratedCode(spec, (y, *read, *map(int, cells)), items), read, [y])
    return y, scale, zero


def _codes() -> Expr:
    """Leaf 0 divided by a scale, of which leaves 1 to 3 are what `range_codes` gives, on codes around leaf
    4."""
    scaled = Expr("mul", (Expr.leaf(0, _F32), Expr.leaf(1, _F32)), _F32)
    return _quantized(Expr("over", (scaled, Expr.leaf(2, _F32), Expr.leaf(3, _F32)), _F32), 4)


def _quantized(quotient: Expr, zero: int) -> Expr:
    """`quotient` rounded to codes around the zero point, leaf `zero`."""
    whole = Expr.leaf(zero, "uint8").cast("int32")
    ends = [Expr("sub", (Expr.const(end, _F32), whole.cast(_F32)), _F32) for end in (0.0, 255.0)]
    return Expr("quantize", (quotient, *ends, whole), "uint8")
