"""What a lowering has not written yet: trees of elementwise nodes, and kernels that wait for one.

In: tensors. Out: what values are until somebody needs their elements in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field
from typing import Any, ClassVar

from ..codegen.write.expr import Expr
from ..ir import Value
from ..records import dataclass
from .tensor import Tensor

Emit = Callable[[Any, Tensor, Expr | None, list[Tensor]], None]


@dataclass(eq=False, slots=True)
class Out:
    """Marks an argument of a step as written."""

    tensor: Tensor
    written: ClassVar[bool] = True


@dataclass(eq=False, slots=True)
class Pending:
    """A kernel not yet written: `emit(lo, out, tree, operands)` writes it with an elementwise tree at its
    end.

    Leaf 0 of the tree is the kernel's own value, leaf i operand i - 1, each operand a view of the output's
    full shape. `strides`: how the output wants to lie, C order where None. `accepts`: which operands it can
    read; the default is those whose stride is 0 or 1 where the output's is 1. `numbers`: whether numbers of
    the tree may be operands, see there. `what`: what is computed, for kernels that compute it along with
    something else.
    """

    shape: tuple[int, ...]
    dtype: str
    emit: Emit
    strides: tuple[int, ...] | None = None
    accepts: Callable[[Tensor], bool] | None = None
    numbers: bool = False
    what: Any = None


class Joining:
    """What is computed by a kernel that may be one with another of its kind."""

    def joint(self, other: Any) -> Emit | None:
        """How both are written as one kernel, whose values are the first two leaves of the tree; None where
        they are not."""
        raise NotImplementedError


def joint(first: Pending, second: Pending) -> Emit | None:
    """How two kernels are written as one; see `Joining`."""
    one, two = first.what, second.what
    return one.joint(two) if isinstance(one, Joining) and type(one) is type(two) else None


@dataclass(eq=False, slots=True)
class Source:
    """A pending kernel's value as an operand of trees; `tensor` once it has been stored as it is."""

    pending: Pending
    tensor: Tensor | None = None
    derived: list[Value] = field(default_factory=list)


@dataclass(eq=False, slots=True)
class Lazy:
    """A tree over operands; leaf i is operand i, each broadcast to `shape`."""

    shape: tuple[int, ...]
    tree: Expr
    operands: list[Tensor | Source]

    @property
    def source(self) -> Source | None:
        for o in self.operands:
            if isinstance(o, Source):
                return o
        return None

    @property
    def sources(self) -> list[Source]:
        """All kernels under it that wait: one, or two that can be one."""
        return [o for o in self.operands if isinstance(o, Source)]


def place_of(operands: list[Tensor | Source], operand: Tensor | Source) -> int:
    """The index of `operand` in `operands`, put there where it is new."""
    for i, known in enumerate(operands):
        if known is operand or (isinstance(known, Tensor) and isinstance(operand, Tensor)
                                and known.buffer is operand.buffer and known.offset == operand.offset
                                and known.strides == operand.strides and known.shape == operand.shape
                                and known.dtype == operand.dtype):
            return i
    operands.append(operand)
    return len(operands) - 1


def kept(sources: Sequence[tuple[Source, int]]) -> list[Source]:
    """Which kernels may wait on, for a tree over all `sources`, each of the input of its number: the last
    one, and with it another that it can be one with."""
    if not sources:
        return []
    last, place = sources[-1]
    whole = [source for source, i in sources if i == place]
    numbers = [i for _, i in sources]
    for other, i in sources:
        if len(whole) == 1 and other is not last and numbers.count(i) == 1 and (
                joint(other.pending, last.pending) is not None):
            return [other, last]
    return whole
