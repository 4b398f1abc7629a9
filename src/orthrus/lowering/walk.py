"""How kernels walk tensors, and the check that they walk nothing else.

In: tensors as rules hand them to a step. A tensor lies within its buffer, and the loops that `Walked` states
meet exactly its elements. AssertionError says that a rule is wrong, never that a model is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from ..records import dataclass
from ..shapes.symbolic import SymInt
from .tensor import Tensor


@dataclass(eq=False, slots=True)
class Walked:
    """An argument of a step, read or `written`: a tensor whose elements a kernel meets by loops of `sizes`
    with `strides`. AssertionError where these loops meet others, or not as often as the tensor's shape says.
    """

    tensor: Tensor
    sizes: Sequence[int]
    strides: Sequence[int]
    written: bool = False

    def __post_init__(self) -> None:
        t = self.tensor
        own, theirs = _met(t.shape, t.strides), _met(self.sizes, self.strides)
        assert own == theirs and not (self.written and own[0] > 1), (
            f"a kernel walks {tuple(self.sizes)} by {tuple(self.strides)}, "
            f"but the tensor lies as {t.shape} by {t.strides}")


def _value(number: int | SymInt) -> int:
    """What a size is now, which the check relies on for itself alone."""
    return number.value if isinstance(number, SymInt) else int(number)


def _plain(numbers: Iterable[int]) -> list[int]:
    return [_value(n) for n in numbers]


def _met(sizes: Sequence[int], strides: Sequence[int]) -> tuple[int, list[list[int]]]:
    """Which elements loops meet: how often each, and as few (step, count) as say where."""
    times, steps = 1, list[list[int]]()
    dims = [(s, d) for d, s in zip(_plain(sizes), _plain(strides), strict=True) if d != 1]
    if any(d == 0 for _, d in dims):
        return 0, []
    for s, d in sorted(dims, key=lambda dim: (abs(dim[0]), dim[1])):
        if not s:
            times *= d
        elif steps and steps[-1][0] * steps[-1][1] == s:
            steps[-1][1] *= d
        else:
            steps.append([s, d])
    return times, steps


def within(t: Tensor) -> None:
    """AssertionError where elements of `t` lie outside its buffer, unless that is empty: no loop comes there.
    """
    shape, strides = _plain(t.shape), _plain(t.strides)
    if 0 in shape or t.buffer.kind == "table" or not _value(t.buffer.size):
        return
    first = last = _value(t.offset)
    for d, s in zip(shape, strides, strict=True):
        if s > 0:
            last += (d - 1) * s
        else:
            first += (d - 1) * s
    assert first >= 0 and (last + 1) * t.itemsize <= _value(t.buffer.size), (
        f"elements {first} to {last} of a buffer of {t.buffer.size} bytes")


def order_like(t: Tensor, out: Tensor) -> tuple[int, ...]:
    """Dense strides for `t`'s shape in the order of `out`'s strides."""
    strides = out.strides[out.rank - t.rank:]
    dense, at = [0] * t.rank, 1
    for a in sorted(range(t.rank), key=lambda a: (strides[a], -a)):
        dense[a] = at
        at *= t.shape[a]
    return tuple(dense)


def unit(t: Tensor, out: Tensor) -> bool:
    """Whether `t` has stride 0 or 1 where `out` has stride 1."""
    return all(d == 1 or o != 1 or s in (0, 1)
               for d, s, o in zip(out.shape, t.strides, out.strides, strict=True))


def readable(t: Tensor, out: Tensor, accepts: Callable[[Tensor], bool]
             ) -> tuple[Tensor, Sequence[int]] | None:
    """What to copy, and by which strides it lies then, for a kernel that writes `out` to read `t` broadcast
    to its shape: as few of the leading axes spread as it takes. None where the kernel reads `t` as it is."""
    if accepts(t.expand(out.shape)):
        return None
    own = (*(1,) * (out.rank - t.rank), *t.shape)
    for spread in range(out.rank + 1):
        wide = t.expand((*out.shape[:spread], *own[spread:]))
        strides = order_like(wide, out)
        if accepts(Tensor(t.dtype, wide.shape, strides, t.buffer).expand(out.shape)):
            return wide, strides
    raise AssertionError(f"a kernel reads no operand that lies as its result does: {out}")


def merged(dims: Sequence[int], strides: Sequence[Sequence[int]]) -> list[tuple[int, list[int]]]:
    """`dims` without those of 1, and as one where they lie behind each other in every tensor."""
    found: list[tuple[int, list[int]]] = []
    for i, d in enumerate(dims):
        if d == 1:
            continue
        at = [s[i] for s in strides]
        if found and found[-1][1] == [d * s for s in at]:
            found[-1] = found[-1][0] * d, at
        else:
            found.append((d, at))
    return found
