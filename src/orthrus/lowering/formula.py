"""Plans for shapes that nobody lowered.

In: one lowering, with `SymInt`s in the place of the dimensions that the part's inputs leave open. Out: a
`Formula`, which computes the plan of any shapes that its lowering would have treated alike. It is the plan
that a lowering of those shapes makes, but for where in the arena things lie.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

import numpy as np

from ..codegen.write.expr import Expr
from ..ir import Node, Value
from ..limits import current
from ..records import dataclass
from ..shapes import elements
from ..shapes.elements import Elements
from ..shapes.symbolic import Key, Polynomials, Sizes, SymInt, filled, formed, has_size, pinned
from .instance import Cells, Code, Plan
from .lower import Lazy, Lowering, counted, listed
from .memory import ALIGN, Lives
from .plans import Arguments
from .tensor import Buffer, Tensor, c_strides, numpy_type

_ELEMENTS = 64
"""Elements up to which a table's are followed one by one."""

_UNBOUNDED = 1 << 40
"""Bytes of a table, which are not known before there is one."""

_SLACK = 8
"""Places in the arena are for buffers longer by up to one part in so many, so that shapes a little larger
need no others."""


@dataclass(frozen=True)
class Table:
    """An array that each plan makes anew: `make(*given)`."""

    make: Callable[..., np.ndarray]
    given: tuple[Any, ...]


class Open(Lowering):
    """A lowering some of whose dimensions are `SymInt`s; `followed`: small integer values that follow from
    them, element by element, as arrays of objects. Raises what a lowering raises, and LookupError for a node
    that only numpy computes, or once `ended` says so."""

    def __init__(self, ended: Callable[[], bool], *given: Any) -> None:
        self.ended = ended
        self.followed: dict[Value, np.ndarray] = {}
        self.tables: dict[Hashable, Buffer] = {}
        super().__init__(*given)

    def known(self, value: Value | None) -> np.ndarray | None:
        found = self.followed.get(value) if value is not None else None
        return super().known(value) if found is None else found

    def knows(self, value: Value | None) -> bool:
        return value in self.followed or super().knows(value)

    def dtype(self, value: Value) -> str:
        return str(value.elem.numpy.name) if value in self.followed else super().dtype(value)

    def tensor(self, value: Value | None) -> Tensor:
        found = self.followed.get(value) if value is not None else None
        if value is None or found is None:
            return super().tensor(value)
        dtype = value.elem.numpy.name
        return self._made(Table(listed, (tuple(found.reshape(-1).tolist()), dtype)), dtype, found.shape)

    def number(self, value: Value) -> Any:
        return None if value in self.followed else super().number(value)

    def lazy(self, value: Value) -> Lazy:
        if value not in self.followed:
            return super().lazy(value)
        t = self.tensor(value)
        return Lazy(t.shape, Expr.leaf(0, t.dtype), [t])

    def constant(self, key: Hashable, make: Callable[[], np.ndarray]) -> Tensor:
        return super().constant(pinned(key), make)

    def table(self, make: Callable[..., np.ndarray], *given: Any) -> Tensor:
        if not has_size(given):
            return super().table(make, *given)
        return self._made(Table(make, given), "int64", (_UNBOUNDED,))

    def _made(self, table: Table, dtype: str, shape: Sequence[Any]) -> Tensor:
        """A table as a tensor; the same one for the same table."""
        key = table.make, formed(table.given)
        buffer = self.tables.setdefault(key, Buffer("table", _UNBOUNDED, table=table))
        return Tensor(dtype, tuple(shape), c_strides(shape), buffer)

    def numbers(self, given: Sequence[int], dtype: str = "int64") -> Tensor:
        if not has_size(given):
            return super().numbers(given, dtype)
        return self._made(Table(listed, (tuple(given), dtype)), dtype, (len(given),))

    def counted(self, start: int, count: int, step: int = 1, dtype: str = "int64") -> Tensor:
        if not has_size((start, count, step)):
            return super().counted(start, count, step, dtype)
        return self._made(Table(counted, (start, count, step, dtype)), dtype, (count,))

    def shape_by(self, node: Node, shape: Sequence[int], rest: Sequence[np.ndarray | None]
                 ) -> tuple[int, ...]:
        """As elsewhere, with a number that is in no shape for each size."""
        if not has_size(tuple(shape)):
            return super().shape_by(node, shape, rest)
        if node.op_type == "Flatten":
            axis = node.attribute("axis")
            return math.prod(shape[:axis]), math.prod(shape[axis:])
        plain, sizes = [], dict[int, Any]()
        for d in shape:
            if isinstance(d, SymInt) and d != 1:
                sizes[_UNLIKELY + len(sizes)] = d
                d = _UNLIKELY + len(sizes) - 1
            plain.append(int(d))
        return tuple(sizes.get(d, d) for d in super().shape_by(node, plain, rest))

    def _lower(self, node: Node) -> None:
        if node.has_bodies:
            raise LookupError("control flow is lowered for each shape")
        super()._lower(node)

    def _on_host(self, node: Node) -> bool:
        if self.ended():
            raise LookupError("nobody needs it any more")
        if node.op_type in ("Shape", "Size") and not node.domain:
            shape = self.shape(node.inputs[0])
            if not has_size(shape):
                return super()._on_host(node)
            return self._followed(node, [None], [shape])
        inputs = [v for v in node.inputs if v is not None]
        if not any(v in self.followed for v in inputs):
            return super()._on_host(node)
        if not all(self.knows(v) for v in inputs):
            return False
        arrays = [self.known(v) for v in node.inputs]
        if node.op_type == "Range":
            return self._range(node.output, *(a.item() for a in arrays if a is not None))
        if node.op_type == "ConstantOfShape" and arrays[0] is not None:
            filled = node.attrs.get("value")
            fill = np.zeros(1, np.float32) if filled is None else np.asarray(filled)
            tree = Expr.const(fill.reshape(()).item(), fill.dtype.name)
            self.bind(node.output, Lazy(tuple(arrays[0].tolist()), tree, []))
            return True
        if any(a is not None and a.size > _ELEMENTS for a in arrays):
            return False
        given = [a if a is None or a.dtype == object else elements.of_constant(a) for a in arrays]
        return self._followed(node, given, [None if a is None else a.shape for a in arrays])

    def _followed(self, node: Node, given: Sequence[Elements | None], shapes: Sequence[Any]) -> bool:
        """Follow the elements of a node's results; whether they could be."""
        if any(v is not None and v.elem.floating for v in node.outputs):
            return False
        made = [elements.follow(node, given, shapes, i) for i in range(len(node.outputs))]
        if any(found is None or any(x is None for x in found.flat) for found in made):
            return False
        for value, found in zip(node.outputs, made, strict=True):
            if value is not None:
                self._follow(value, found)
        return True

    def _follow(self, value: Value | None, found: Any) -> None:
        assert value is not None
        array = np.asarray(found)
        if array.dtype == object and has_size(array.reshape(-1).tolist()):
            self.followed[value] = array
        else:
            self.host[value] = array.astype(value.elem.numpy)

    def _range(self, value: Value | None, start: Any, limit: Any, step: Any) -> bool:
        assert value is not None
        count: Any = max(0, -(-(limit - start) // step))
        if isinstance(count, SymInt):
            self.env[value] = self.counted(start, count, step, value.elem.numpy.name)  # type: ignore[arg-type]
        else:
            self._follow(value, np.array([start + i * step for i in range(count)], object))
        return True

    def _by_reference(self, node: Node) -> None:
        raise LookupError(f"{node.label} is computed by numpy")


_UNLIKELY = 1_000_003


class Numbers:
    """Integers some of which are `SymInt`s, in an array of `shape`."""

    def __init__(self, given: Iterable[Any], rows: dict[Key, int], shape: Sequence[int] = (-1,)) -> None:
        all_of = list(given)
        places = [i for i, x in enumerate(all_of) if isinstance(x, SymInt)]
        self.shape = tuple(shape)
        self.base = np.array([0 if isinstance(x, SymInt) else x for x in all_of], np.int64)
        self.at = np.array(places, np.int64)
        keys = [all_of[i].key for i in places]
        self.rows = np.array([rows.setdefault(key, len(rows)) for key in keys], np.int64)

    def of(self, found: np.ndarray) -> np.ndarray:
        """The integers, given the values of all polynomials."""
        made = self.base.copy()
        made[self.at] = found[self.rows]
        return made.reshape(self.shape)


class Formula:
    """What computes a part's plans. `dims`: per input, which numbers its dimensions have to be, or with a
    minus which of the dimensions of `sizes` they are; `served`: whether it has computed one."""

    def __init__(self, made: Open, sizes: Sizes, dims: Sequence[Sequence[int]], outputs: Sequence[Value],
                 code: Callable[[Sequence[Any]], Code]) -> None:
        self.sizes, self.dims = sizes, [tuple(each) for each in dims]
        steps = made.steps
        self.code = code(steps)
        self.lives = Lives.of(steps, [made.status.buffer])
        self.status = self.lives.buffers.index(made.status.buffer)
        buffers = {id(b): i for i, b in enumerate(self.lives.buffers)}
        given = Arguments(steps, self.code.inputs, self.code.device, made.status.buffer)
        self.kept = given.kept
        self.pointed = [array for _, array, _ in given.constants]
        arena = [x for cell, buffer, offset in given.arena for x in (cell, buffers[id(buffer)], offset)]
        tables: dict[int, tuple[Table, list[int], list[Any]]] = {}
        for cell, buffer, offset in given.tables:
            _, cells, offsets = tables.setdefault(id(buffer), (buffer.table, [], []))
            cells.append(cell)
            offsets.append(offset)
        rows: dict[Key, int] = {}
        self.begins = np.array(given.begins, np.int64)
        self.values = Numbers(given.values, rows)
        self.arena = Numbers(arena, rows, (-1, 3))
        self.constants = Numbers([x for cell, _, offset in given.constants for x in (cell, offset)],
                                  rows, (-1, 2))
        self.arrays = Numbers([x for row in given.arrays for x in row], rows, (-1, 3))
        self.work = Numbers([x for s in steps for x in (s.items, s.grain)], rows, (-1, 2))
        self.scratch = Numbers([s.scratch for s in steps], rows)
        self._finish(made, outputs, tables.values(), rows)

    def _finish(self, made: Open, outputs: Sequence[Value],
                tables: Iterable[tuple[Table, list[int], list[Any]]], rows: dict[Key, int]) -> None:
        """What is known when all steps were gone through: sizes of memory, results, tables with the cells
        that point to them and where, and the numbers there are in `rows`."""
        self.bytes = Numbers([b.size for b in self.lives.buffers], rows)
        made_of = [made.outputs[v] for v in outputs]
        self.types = [(len(t.shape), numpy_type(t.dtype)) for t in made_of]
        self.shapes = Numbers([d for t in made_of for d in t.shape], rows)
        self.tables = [(table.make, formed(table.given), cells, Numbers(offsets, rows))
                       for table, cells, offsets in tables]
        self.numbers = Polynomials(list(rows))
        self.served = False
        self.room: np.ndarray | None = None
        self.layout: tuple[np.ndarray, int] = np.zeros(0, np.int64), 0

    def plan(self, shapes: Sequence[Sequence[int]]) -> Plan | None:
        """The plan for inputs of these shapes; None where their lowering would go another way, or what it
        makes is over the limits."""
        dimensions = self._dimensions(shapes)
        atoms = self.sizes.at(dimensions) if dimensions is not None else None
        found = self.numbers.at(atoms) if atoms is not None else None
        if atoms is None or found is None:
            return None
        outputs, sizes = self._outputs(found), self.bytes.of(found)
        if self._largest(sizes, outputs) > current().max_tensor_bytes:
            return None
        values, work, kept = self.values.of(found), self.work.of(found), list[np.ndarray]()
        known = atoms.tolist() if self.tables else []
        for make, given, places, after in self.tables:
            array = self.code.device.constant(make(*filled(given, known)))
            kept.append(array)
            values[places] = array.ctypes.data + after.of(found)

        def constants() -> list[tuple[int, np.ndarray, int]]:
            pointed = [(c, array, offset) for (c, offset), array in zip(
                self.constants.of(found).tolist(), self.pointed, strict=True)]
            return pointed + [
                (c, array, offset) for (_, _, places, after), array in zip(self.tables, kept, strict=True)
                for c, offset in zip(places, after.of(found).tolist(), strict=True)]
        offsets, size = self._laid(sizes)
        cell, buffer, offset = self.arena.of(found).T
        arena = np.stack([cell, offsets[buffer] + offset], 1)
        cells = Cells(values, arena, self.arrays.of(found), self.begins, (self.kept, kept), constants)
        scratch = -(-int(self.scratch.of(found).max(initial=0)) // ALIGN) * ALIGN
        return Plan(self.code, cells, work, outputs, size, scratch, int(offsets[self.status]))

    def _outputs(self, found: np.ndarray) -> list[tuple[tuple[int, ...], np.dtype[Any]]]:
        """Shapes and types of the results."""
        left = iter(self.shapes.of(found).tolist())
        return [(tuple(next(left) for _ in range(rank)), dtype) for rank, dtype in self.types]

    def _largest(self, sizes: np.ndarray, outputs: Sequence[tuple[tuple[int, ...], np.dtype[Any]]]) -> int:
        """Bytes of the largest buffer or result."""
        return max([int(sizes.max(initial=0)),
                    *(math.prod(shape) * dtype.itemsize for shape, dtype in outputs)])

    def _dimensions(self, shapes: Sequence[Sequence[int]]) -> list[int] | None:
        made = [-1] * self.sizes.dimensions
        for shape, dims in zip(shapes, self.dims, strict=True):
            if len(shape) != len(dims):
                return None
            for d, known in zip(shape, dims, strict=True):
                if known < 0 and made[-known - 1] < 0:
                    made[-known - 1] = d
                elif d != (known if known >= 0 else made[-known - 1]):
                    return None
        return made

    def _laid(self, sizes: np.ndarray) -> tuple[np.ndarray, int]:
        """Where buffers of these bytes lie, and the arena's: where they lay before, if they fit there."""
        if self.room is None or (sizes > self.room).any() or (self.room > 2 * sizes + 4096).any():
            self.room = sizes + sizes // _SLACK
            offsets, size = self.lives.placed(self.room.tolist())
            self.layout = np.array(offsets, np.int64), size
        return self.layout


def opened(shapes: Sequence[tuple[Sequence[Any] | None, Sequence[int]]], sizes: Sizes
           ) -> tuple[list[tuple[Any, ...]], list[list[int]]]:
    """Shapes with `SymInt`s in the place of dimensions that are open, and the `dims` of a formula. In: per
    input its shape as the model says it, and one that it has had; the same name is the same dimension."""
    made: list[tuple[Any, ...]] = []
    dims: list[list[int]] = []
    named: dict[str, tuple[Any, int]] = {}
    for declared, actual in shapes:
        made.append(())
        dims.append([])
        for i, d in enumerate(actual):
            known = declared[i] if declared is not None else None
            if isinstance(known, int) or not d:
                size: Any = d
                number = d
            else:
                name = str(known) if known is not None else ""
                if name not in named:
                    size = sizes.dimension(d)
                    named[name or f" {sizes.dimensions}"] = size, -sizes.dimensions
                size, number = named[name or f" {sizes.dimensions}"]
            made[-1] += (size,)
            dims[-1].append(number)
    return made, dims
