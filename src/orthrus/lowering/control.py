"""Control flow inside a part: If, Loop and Scan as steps, and jumps between them.

In: nodes with bodies, whose values have sizes that are known while lowering. Out: steps of the bodies, once
each, in the same arena. A body sees what it captures, in memory by the time of the first jump, and nothing
else of what is around it: so no step that it writes is one that others rely on. What takes its shape from a
turn or from the branch that is taken is refused.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..codegen.kernels.turns import BLOCK, copy_row, count_turn, jump, no_branch
from ..codegen.runtime.cells import JUMP
from ..errors import InvalidArgument
from ..errors import NotImplemented as NotImplementedFail
from ..ir import Graph, Node, TensorType, Value
from ..ops.infer import lone
from ..ops.tensor.movement import axis_of
from .lower import Lowering, Out, listed, lowers
from .step import KernelStep
from .tensor import Tensor, numpy_type

_ENDLESS = np.iinfo(np.int64).max


def refused(node: Node, reason: str) -> NotImplementedFail:
    """The error for control flow that is not for generated code."""
    return NotImplementedFail(f"{node.label}: {reason}", node=node)


def _settle(lo: Lowering, node: Node) -> None:
    """Have all in memory that the bodies of `node` capture."""
    for body in node.bodies():
        for v in body.captures():
            if v in lo.env or v in lo.host or v in lo.later:
                lo.tensor(v)


def _body(lo: Lowering, node: Node, body: Graph, given: Mapping[Value, Any],
          use: Callable[[list[Value]], Any]) -> Any:
    """What `use` makes of the outputs of a body that is entered with tensors, or with known elements."""
    captured = [v for v in body.captures() if v in lo.env or v in lo.host]
    around = lo.env, lo.host, lo.later, lo.codes
    inside = {v: lo.env[v] for v in captured if v not in lo.host}
    known = {v: lo.host[v] for v in captured if v in lo.host}
    lo.env = {**inside, **{v: x for v, x in given.items() if isinstance(x, Tensor)}}
    lo.host = {**known, **{v: x for v, x in given.items() if not isinstance(x, Tensor)}}
    lo.later, lo.codes = {}, {}
    lo.lent |= lo.host.keys()
    try:
        lo.reads(body.nodes, body.outputs)
        lo.walk(body.nodes)
        lo.node = node
        made = use(body.outputs)
        for v in body.outputs:
            lo.left[v] -= 1
        return made
    finally:
        lo.env, lo.host, lo.later, lo.codes = around


def _jump(lo: Lowering, truth: Tensor, wanted: int, target: int = 0) -> KernelStep:
    """Append a jump to a row; where that is yet to come, `_land` says it."""
    made = KernelStep(jump(), [truth, target, wanted], JUMP, 1, 0, lo.node, [])
    lo.steps.append(made)
    return made


def _land(lo: Lowering, made: KernelStep) -> None:
    """Let a jump go to the step that is appended next."""
    made.args[1] = len(lo.steps)


def _truth(lo: Lowering, node: Node, value: Value | None) -> bool | Tensor:
    """What is true of a condition, or where that will be."""
    if math.prod(lo.shape(value)) != 1:
        raise refused(node, f"its condition has the shape {lo.shape(value)}")
    known = lo.known(value)
    return bool(known.item()) if known is not None else lo.tensor(value)


def _always(lo: Lowering) -> Tensor:
    return lo.table(listed, (1,), "bool")


@lowers("If")
def choose(lo: Lowering, node: Node) -> Any:
    then, other = node.attrs["then_branch"], node.attrs["else_branch"]
    truth = _truth(lo, node, node.inputs[0])
    _settle(lo, node)
    if isinstance(truth, bool):
        return _known(lo, node, then if truth else other)
    skip = _jump(lo, truth, 0)
    first = _branch(lo, node, then, [])
    over = _jump(lo, truth, 1)
    _land(lo, skip)
    second = _branch(lo, node, other, [] if isinstance(first, Exception) else first)
    _land(lo, over)
    made = second if isinstance(first, Exception) else first
    if isinstance(made, Exception):
        raise made
    return tuple(made)


def _branch(lo: Lowering, node: Node, body: Graph, known: list[Tensor]) -> list[Tensor] | Exception:
    """The results of a branch, put into those of the other where these are `known`. One that inputs of these
    shapes contradict, which are for the other, says so when it is taken; gives what is wrong."""
    begin, loops = len(lo.steps), len(lo.loops)

    def put(values: Sequence[Value]) -> list[Tensor]:
        if not known:
            return [_own(lo, v) for v in values]
        for value, out in zip(values, known, strict=True):
            if (lo.shape(value), lo.dtype(value)) != (out.shape, out.dtype):
                raise refused(node, f"a result is {out.dtype}{list(out.shape)} by one branch and "
                                    f"{lo.dtype(value)}{list(lo.shape(value))} by the other")
            lo.into(value, out)
        return known
    try:
        made: list[Tensor] = _body(lo, node, body, {}, put)
        return made
    except (InvalidArgument, ValueError) as error:
        del lo.steps[begin:], lo.loops[loops:]
        lo.node = node
        lo.step(no_branch(), [Out(lo.status)], 1)
        return error


def _known(lo: Lowering, node: Node, body: Graph) -> Any:
    """The results of the branch that is always taken."""
    def results(values: Sequence[Value]) -> list[tuple[np.ndarray | None, Tensor]]:
        return [(lo.known(v), lo.tensor(v)) for v in values]
    made = _body(lo, node, body, {}, results)
    for value, (elements, _) in zip(node.outputs, made, strict=False):
        if value is not None and elements is not None:
            lo.host[value] = elements
            lo.lent.add(value)
    return tuple(t for _, t in made)


def _own(lo: Lowering, value: Value) -> Tensor:
    """`value` in memory that nothing else lies in."""
    made = lo.new(lo.shape(value), lo.dtype(value))
    lo.into(value, made)
    return made


class _Scanned(NamedTuple):
    """What is read or written a row a turn. `first`: the row of turn 0; `step`: bytes from row to row."""

    first: Tensor
    step: int

    @staticmethod
    def of(rows: Tensor, back: bool) -> _Scanned:
        count, stride = rows.shape[0], rows.strides[0]
        first = rows.view(rows.shape[1:], rows.strides[1:], (count - 1) * stride if back else 0)
        return _Scanned(first, (-stride if back else stride) * rows.itemsize)


@lowers("Loop")
def loop(lo: Lowering, node: Node) -> Any:
    body, (count, cond, *initial) = node.attrs["body"], (*node.inputs, None, None)[:max(2, len(node.inputs))]
    truth = True if cond is None else _truth(lo, node, cond)
    end: int | Tensor = _ENDLESS
    if count is not None:
        if lo.dtype(count) != "int64" or math.prod(lo.shape(count)) != 1:
            raise refused(node, "its number of turns is no int64")
        known = lo.known(count)
        end = int(known.item()) if known is not None else lo.tensor(count)
    number, true = body.inputs[:2]
    made = _Turns(lo, node, body, _initial(node, initial), end if truth is not False else 0, truth)
    dims, cond_dims = (lone(v.type) for v in (number, true))
    given = {number: made.number.view(dims, (1,) * len(dims)), true: np.ones(cond_dims, np.bool_)}
    return made.made(given, [], [False] * len(made.gathered))[0]


@lowers("Scan")
def scan(lo: Lowering, node: Node) -> Any:
    if node.version < 9:
        raise refused(node, "it is the Scan of a batch, of operator set 8")
    body, m = node.attrs["body"], node.attrs["num_scan_inputs"]
    n, k = len(node.inputs) - m, len(body.outputs) - (len(node.inputs) - m)
    taken = []
    for v, axis, back in zip(node.inputs[n:], node.attrs.get("scan_input_axes") or [0] * m,
                             node.attrs.get("scan_input_directions") or [0] * m, strict=True):
        x = lo.tensor(v)
        axis = axis_of(axis, x.rank)
        rows = x.permute([axis, *(a for a in range(x.rank) if a != axis)])
        if not rows.view(rows.shape[1:], rows.strides[1:]).contiguous:
            rows = lo.copied(rows, lo.new(rows.shape, rows.dtype).strides)
        taken.append((rows, bool(back)))
    if len(lengths := {rows.shape[0] for rows, _ in taken}) != 1:
        raise refused(node, f"its scanned inputs have lengths {sorted(lengths)}")
    made = _Turns(lo, node, body, _initial(node, node.inputs[:n]), lengths.pop(), True)
    rows_in = [(_Scanned.of(rows, back), lo.new(rows.shape[1:], rows.dtype)) for rows, back in taken]
    backs = [bool(b) for b in node.attrs.get("scan_output_directions") or [0] * k]
    states, gathered = made.made(dict(zip(body.inputs[n:], [row for _, row in rows_in], strict=True)),
                                 rows_in, backs)
    moved = []
    for rows, axis in zip(gathered, node.attrs.get("scan_output_axes") or [0] * k, strict=True):
        order = list(range(1, rows.rank))
        order.insert(axis_of(axis, rows.rank), 0)
        moved.append(rows.permute(order))
    return (*states[:n], *moved)


def _initial(node: Node, values: Sequence[Value | None]) -> list[Value]:
    """The values that states begin with. Raises where one is absent."""
    found = [v for v in values if v is not None]
    if len(found) < len(values):
        raise refused(node, "a state begins with nothing")
    return found


class _Turns:
    """The turns of a body, up to number `end`, as long as `truth` and, in a Loop, the body's first output say
    so. `lead_in`, `lead_out`: how many of the body's inputs and outputs are before the
    states; `number`: of the turn; `going`: whether there is another."""

    def __init__(self, lo: Lowering, node: Node, body: Graph, initial: Sequence[Value], end: int | Tensor,
                 truth: bool | Tensor) -> None:
        self.lo, self.node, self.body, self.initial = lo, node, body, initial
        self.end, self.truth = end, truth
        is_loop = node.op_type == "Loop"
        self.lead_in, self.lead_out = (2, 1) if is_loop else (0, 0)
        self.gathered = body.outputs[self.lead_out + len(initial):]
        self.number = lo.new((), "int64")
        self.going = lo.new((), "bool")

    def made(self, given: Mapping[Value, Any], taken: Sequence[tuple[_Scanned, Tensor]], backs: Sequence[bool]
             ) -> tuple[tuple[Tensor, ...], list[Tensor]]:
        """The last states, with what is gathered behind them, and that alone. `given`: the body's other
        inputs; `taken`: rows, and where the body finds that of a turn."""
        lo, body = self.lo, self.body
        _settle(lo, self.node)
        if isinstance(self.end, int) and self.end <= 0:
            rows = [self._none(v) for v in self.gathered]
            return (*(lo.tensor(v) for v in self.initial), *rows), rows
        states = [_own(lo, v) for v in self.initial]
        entered = {**given, **dict(zip(body.inputs[self.lead_in:], states, strict=False))}
        for value, x in entered.items():
            self._agrees(value, x)
        limit = self.end if isinstance(self.end, Tensor) else lo.numbers((self.end,))
        truth = self.truth if isinstance(self.truth, Tensor) else _always(lo)
        lo.step(count_turn(first=True), [Out(self.number), Out(self.going), limit, truth, lo.status], 1)
        sure = isinstance(self.end, int) and self.truth is True
        over = None if sure else _jump(lo, self.going, 0)
        begin = len(lo.steps)
        for scanned, row in taken:
            self._copied(row, 0, *scanned)
        rows = _body(lo, self.node, body, entered,
                     lambda values: self._ended(values, states, limit, backs, sure))
        _jump(lo, self.going, 1, begin)
        lo.loops.append((begin, len(lo.steps) - 1))
        if over is not None:
            _land(lo, over)
        return (*states, *rows), rows

    def _ended(self, values: Sequence[Value], states: Sequence[Tensor], limit: Tensor, backs: Sequence[bool],
               sure: bool) -> list[Tensor]:
        """The steps at the end of a turn; gives what is gathered."""
        lo, n = self.lo, len(states)
        lead, after, gathered = values[:self.lead_out], values[self.lead_out:][:n], values[self.lead_out + n:]
        truth: bool | Tensor = True
        if lead:
            truth = _truth(lo, self.node, lead[0])
        found = [lo.tensor(v) for v in after]
        rows = []
        if gathered:
            if not sure or not isinstance(self.end, int) or isinstance(truth, Tensor):
                raise refused(self.node, "how many turns there are is known only at run time, and what it "
                                         "gathers has a row for each")
            trips = self.end if truth else 1
            for value, back in zip(gathered, backs, strict=True):
                t = lo.contiguous(lo.tensor(value))
                rows.append(lo.new((trips, *t.shape), t.dtype))
                self._copied(*_Scanned.of(rows[-1], back), t, 0)
        mine = {id(s.buffer) for s in states}
        if isinstance(truth, Tensor) and id(truth.buffer) in mine:
            truth = _apart(lo, truth)
        moves = []
        for value, t, state in zip(after, found, states, strict=True):
            if (t.shape, t.dtype) != (state.shape, state.dtype):
                raise refused(self.node, f"%{value.name} is {t.dtype}{list(t.shape)} after a turn, and "
                                         f"{state.dtype}{list(state.shape)} before")
            if t.buffer is not state.buffer or t.strides != state.strides or t.offset != state.offset:
                moves.append((_apart(lo, t) if id(t.buffer) in mine else t, state))
        for t, state in moves:
            lo.copy(t, state)
        if truth is False:
            limit = lo.numbers((0,))
        lo.step(count_turn(first=False), [Out(self.number), Out(self.going), limit,
                                    truth if isinstance(truth, Tensor) else _always(lo), lo.status], 1)
        return rows

    def _copied(self, to: Tensor, to_step: int, source: Tensor, source_step: int) -> None:
        """Copy a row of the turn's number, or what is not one of rows: then its step is 0."""
        size = to.size * to.itemsize
        self.lo.step(copy_row(), [Out(to), source, self.number, to_step, source_step, size],
                     -(-size // BLOCK))

    def _agrees(self, value: Value, x: Tensor | np.ndarray) -> None:
        """Raises where a body is entered with what it does not declare."""
        kind = value.type
        dtype = x.dtype if isinstance(x, Tensor) else x.dtype.name
        if isinstance(kind, TensorType) and (
                kind.elem is not None and kind.elem.numpy.name != dtype
                or kind.shape is not None and (len(kind.shape) != len(x.shape) or any(
                    isinstance(d, int) and d != own for d, own in zip(kind.shape, x.shape, strict=False)))):
            raise refused(self.node, f"its body takes {kind} as %{value.name}, and is given "
                                     f"{dtype}{list(x.shape)}")

    def _none(self, value: Value) -> Tensor:
        """What is gathered in no turn at all."""
        kind = value.type if isinstance(value.type, TensorType) else None
        dims = (kind.shape or ()) if kind is not None else ()
        dtype = "float32" if kind is None or kind.elem is None else kind.elem.numpy.name
        return self.lo.new((0, *(d if isinstance(d, int) else 0 for d in dims)), numpy_type(dtype).name)


def _apart(lo: Lowering, t: Tensor) -> Tensor:
    return lo.copied(t, lo.new(t.shape, t.dtype).strides)
