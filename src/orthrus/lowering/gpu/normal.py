"""Factors that are normalized as products of a few rows read them.

In: a value that is multiplied. Out: the rows before their normalization with what it does to them, where
nobody but such products reads what it gives; the value's tensor elsewhere.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ...codegen.triton.kernels.normal import LAYER, RMS, Normal
from ...ir import Node, Value
from ...records import dataclass
from ..pending import Lazy, Source
from ..rules.rows import Norm, RowWork, affine
from ..tensor import Tensor
from .elements import power

if TYPE_CHECKING:
    from ...codegen.write.expr import Expr
    from .lower import GpuLowering

FEW = 4
"""Rows up to which a product is a matter of reading B."""

_HELD = 1 << 13
"""Elements of a row that are held at once, at most."""

MS = "com.microsoft"
_PRODUCTS = {("", "MatMul"), ("", "Gemm"), (MS, "MatMulNBits"), (MS, "MatMulBnb4"), (MS, "MatMulFpQ4"),
             (MS, "FusedMatMul"), (MS, "FusedGemm"), (MS, "Attention")}
"""Operators whose first input may enter a product of few rows normalized."""


@dataclass(frozen=True)
class Normed:
    """Rows of `x`, normalized: centred where `kind` says so, over their root mean square, times `gain`, plus
    `shift`, both a row."""

    x: Tensor
    kind: str
    gain: Tensor
    shift: Tensor | None
    epsilon: float

    @property
    def shape(self) -> tuple[int, ...]:
        return self.x.shape

    @property
    def form(self) -> Normal:
        """What kernels are told of it."""
        size = power(self.shape[-1]) if self.kind == LAYER else 0
        return Normal(self.kind, self.gain.dtype, "" if self.shift is None else self.shift.dtype,
                      size if size <= _HELD else 0)

    @property
    def rows(self) -> list[Tensor]:
        """The gain, and what is added if anything is."""
        return [self.gain] if self.shift is None else [self.gain, self.shift]


def same(a: Tensor | Normed | None, b: Tensor | Normed | None) -> bool:
    """Whether both are the same elements."""
    if isinstance(a, Normed) and isinstance(b, Normed):
        return (a.kind, a.epsilon) == (b.kind, b.epsilon) and all(
            same(x, y) for x, y in ((a.x, b.x), (a.gain, b.gain), (a.shift, b.shift)))
    if a is None or b is None:
        return a is b
    return isinstance(a, Tensor) and isinstance(b, Tensor) and a.buffer is b.buffer and (
        (a.dtype, a.offset, a.shape, a.strides) == (b.dtype, b.offset, b.shape, b.strides))


def factor(lo: GpuLowering, value: Value) -> Tensor | Normed:
    """`value` as a factor: the normalization that gives a few rows, where it is not written yet and will be
    for nobody else."""
    return entering(lo, value) or lo.tensor(value)


def entering(lo: GpuLowering, value: Value) -> Normed | None:
    """The normalization that gives `value`, where products of a few rows make it; see `factor`."""
    found = lo.env.get(value)
    if not isinstance(found, Lazy) or found.tree.op != "leaf" or math.prod(found.shape[:-1]) > FEW:
        return None
    source = found.operands[found.tree.value]
    work = source.pending.what if isinstance(source, Source) and source.tensor is None else None
    if not isinstance(work, RowWork) or not multiplied_alone(lo, value):
        return None
    kernel, reads, last = work.kernel, work.reads, len(found.shape) - 1
    if not isinstance(kernel, Norm) or kernel.kind not in (RMS, LAYER) or (
            kernel.keeps or kernel.inverse or kernel.mean or list(work.reduced) != [last]):
        return None
    rows = list(work.operands)
    if not 1 <= len(rows) <= 1 + (kernel.kind == LAYER) or not all(map(_is_row, rows)) or not (
            _plain(work, rows, found.tree.dtype)):
        return None
    return Normed(reads.tensors[0], kernel.kind, rows[0], rows[1] if len(rows) > 1 else None, kernel.epsilon)


def multiplied_alone(lo: GpuLowering, value: Value) -> bool:
    """Whether nobody but products of its rows reads `value`."""
    return all(_multiplies(node, value) for node in lo.readers(value))


def _multiplies(node: Node | None, value: Value) -> bool:
    """Whether `node` multiplies rows of `value`, and does nothing else with it."""
    return node is not None and (node.domain, node.op_type) in _PRODUCTS and value not in node.inputs[1:]


def _is_row(t: Tensor) -> bool:
    """Whether all rows are the same, and their elements lie together."""
    return t.strides[-1] == 1 and all(
        s == 0 or d == 1 for d, s in zip(t.shape[:-1], t.strides[:-1], strict=True))


def _plain(work: RowWork, rows: list[Tensor], dtype: str) -> bool:
    """Whether rows of one tensor are read as they are, and no more is made of them than `rows` say."""
    reads = work.reads
    leaf: Expr = reads.tree.leaf(0, reads.tensors[0].dtype)
    return len(reads.tensors) == 1 and reads.tree == leaf.cast("float32") and (
        work.closing == affine(rows, dtype))
