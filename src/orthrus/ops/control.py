"""Control flow: bodies arrive as callables, outputs leave as a tuple.

A body takes its inputs by position and returns a list. It carries `input_types` and `output_types` (a Type or
None for each), `n_inputs` and `n_outputs`; it checks cancellation and the deadline itself. How often it is
called is bounded by `Limits.max_loop_trips`, what its scan outputs gather by `Limits.max_tensor_bytes`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from ..errors import Fail, InvalidArgument
from ..ir import TensorType
from ..limits import bounded, charge, current, held
from .define import op
from .infer import lone
from .tensor.movement import axis_of, scalar, zero_of

Body: TypeAlias = Callable[..., list[Any]]

_RUN = 1024
_PATIENCE = 4
"""Turns that are made one by one before a body is no longer asked for several."""


class _Scanned:
    """One scan output: equal arrays, stacked along a new first axis; every `_RUN` of them become one
    array."""

    def __init__(self, kind: Any) -> None:
        self.kind, self.count, self.size = kind, 0, 0
        self.items: list[np.ndarray] = []
        self.runs: list[np.ndarray] = []
        self.room = 0

    def add(self, value: Any) -> None:
        if isinstance(value, np.generic):
            value = np.asarray(value)
        if not isinstance(value, np.ndarray):
            raise TypeError(f"a scan output must be a tensor, found {type(value).__name__}")
        self.count += self._fitting(value, 1)
        self.items.append(value)
        if len(self.items) == _RUN:
            self.pack()

    def _fitting(self, value: np.ndarray, count: int) -> int:
        """`count`, where so many more like `value` fit. Raises what they would raise."""
        if self.count == 0:
            self.shape, self.dtype, self.size = value.shape, value.dtype, value.nbytes
            self.room = current().max_tensor_bytes // max(value.nbytes, 1)
        elif value.shape != self.shape or value.dtype != self.dtype:
            raise ValueError("Mismatch in shapes or types of a scan output: "
                             f"{self.dtype}{list(self.shape)}, then {value.dtype}{list(value.shape)}")
        if self.count + count > self.room:
            bounded((self.count + count, *self.shape), self.dtype, "scan output")
        return count

    def extend(self, values: np.ndarray) -> None:
        """Add each of `values`, one or more."""
        self.count += self._fitting(values[:1].reshape(values.shape[1:]), len(values))
        self.pack()
        self.runs.append(values)

    def pack(self) -> None:
        if self.items:
            self.runs.append(np.stack(self.items))
            self.items = []

    @property
    def bytes(self) -> int:
        """What it holds by now."""
        return self.count * self.size

    def done(self, length: int | None = None) -> np.ndarray:
        """All of it; with `length`, zeros follow up to that many."""
        if not self.count:
            elem = self.kind.elem if isinstance(self.kind, TensorType) else None
            dims = (self.kind.shape or ()) if isinstance(self.kind, TensorType) else ()
            return _zeros((length or 0, *(d if isinstance(d, int) else 0 for d in dims)),
                          np.dtype(np.float32) if elem is None else elem.numpy)
        self.pack()
        if length is not None and length > self.count:
            self.runs.append(_zeros((length - self.count, *self.shape), self.dtype))
        return self.runs[0] if len(self.runs) == 1 else np.concatenate(self.runs)


def _zeros(dims: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
    return np.full(bounded(dims, dtype, "scan output"), zero_of(dtype), dtype)


def _scan_outputs(body: Body, before: int, count: int) -> list[_Scanned]:
    kinds = list(getattr(body, "output_types", None) or ())[before:]
    return [_Scanned(kinds[i] if i < len(kinds) else None) for i in range(count)]


class _Account:
    """What a loop holds between two turns, which no step of its body counts."""

    def __init__(self) -> None:
        self.bytes = 0

    def holds(self, carried: Sequence[Any], outputs: Sequence[_Scanned]) -> None:
        """These values and scan outputs from now on, and nothing else. Raises Fail where that is more than
        the run may hold."""
        size = sum(map(held, carried)) + sum(out.bytes for out in outputs)
        charge(size - self.bytes)
        self.bytes = size


class _Several:
    """`body.turns` of a body with `count` outputs, as long as it makes any."""

    def __init__(self, body: Body, count: int) -> None:
        self.turns = getattr(body, "turns", None) if getattr(body, "n_outputs", None) == count else None
        self.patience = _PATIENCE

    def __call__(self, *given: Any) -> Any:
        if self.turns is None:
            return None
        made = self.turns(*given)
        self.patience = self.patience - 1 if made is None else _PATIENCE
        if not self.patience:
            self.turns = None
        return made


def _results(values: Sequence[Any], count: int) -> Sequence[Any]:
    if len(values) != count:
        raise ValueError(f"the body returned {len(values)} outputs, expected {count}")
    return values


def _too_many(trips: int) -> Fail:
    return Fail(f"the loop was stopped after {trips} trips", found=f"more than {trips} trips",
                expected=f"at most Limits.max_loop_trips = {current().max_loop_trips}",
                cure="raise Limits.max_loop_trips if so many are meant")


@op(outputs=None)
def If(cond, *, then_branch: Body, else_branch: Body):
    """The outputs of `then_branch` where `cond` is true, else those of `else_branch`"""
    return tuple((then_branch if _truth(cond, "If nodes condition input") else else_branch)())


def _truth(cond: Any, what: str = "the loop condition") -> bool:
    given = np.asarray(cond)
    if given.size != 1:
        raise InvalidArgument(f"{what} must have exactly one element. Got:{given.size}")
    return bool(given.item())


@op(outputs=None)
def Loop(M=None, cond=None, *v_initial, body: Body, n_outputs: int):
    """`body` called with the trip's number, the condition and the carried values until M trips are made or
    the condition it returns is false; the last carried values come out, and after them what each trip adds to
    the scan outputs"""
    end = None if M is None else scalar(M, "M")
    going = cond is None or _truth(cond)
    # The standard ignores the body's condition where a count and no condition is given; onnxruntime and the
    # standard's own evaluator end by it.
    carried, n = list(v_initial), len(v_initial)
    # A node may leave its last outputs unnamed; the body still makes them.
    n_outputs = max(n_outputs, getattr(body, "n_outputs", 0) - 1)
    if n_outputs < n:
        raise ValueError(f"Loop has {n_outputs} outputs for {n} carried values")
    scanned = _scan_outputs(body, 1 + n, n_outputs - n)
    number_shape, cond_shape = map(lone, (*(getattr(body, "input_types", None) or ()), None, None)[:2])
    zero, true = np.zeros(number_shape, np.int64), np.ones(cond_shape, np.bool_)
    trip, most, account, several = 0, current().max_loop_trips, _Account(), _Several(body, 1 + n_outputs)
    while going and (end is None or trip < end):
        if trip >= most:
            raise _too_many(trip)
        left = most - trip if end is None else min(end, most) - trip
        if (made := several((zero, true), carried, (), trip, left, True)) is not None:
            carried, going = made.states, made.going
            trip += made.done
            for out, rows in zip(scanned, made.rows, strict=True):
                out.extend(rows)
            account.holds(carried, scanned)
            continue
        results = _results(body(np.full(number_shape, trip, np.int64), true.copy(), *carried),
                           1 + n_outputs)
        carried = list(results[1:1 + n])
        for out, value in zip(scanned, results[1 + n:], strict=True):
            out.add(value)
        account.holds(carried, scanned)
        going = _truth(results[0])
        trip += 1
    account.holds((), ())
    return (*carried, *(s.done() for s in scanned))


def _flags(values: Sequence[int] | None, count: int, what: str) -> list[int]:
    flags = list(values) if values else [0] * count
    if len(flags) != count or not set(flags) <= {0, 1}:
        raise ValueError(f"Number of entries in '{what}' was {len(flags)} ({flags}), "
                         f"expected {count} of 0 or 1")
    return flags


def _axes(values: Sequence[int] | None, count: int, what: str) -> list[int]:
    axes = list(values) if values else [0] * count
    if len(axes) != count:
        raise ValueError(f"Number of entries in '{what}' was {len(axes)} but expected {count}")
    return axes


def _first(x: np.ndarray, axis: int) -> np.ndarray:
    """`x` with `axis` in front."""
    axis = axis_of(axis, x.ndim)
    return np.moveaxis(x, axis, 0) if axis else x


def _element(x: np.ndarray, i: int) -> np.ndarray:
    """The i-th slice, an array even where it is a scalar."""
    return x[i] if x.ndim > 1 else x[i:i + 1].reshape(())


def _scan(states: list[Any], inputs: list[np.ndarray], body: Body, outputs: list[_Scanned], trips: int
          ) -> list[Any]:
    """Call `body` with the states and the t-th slice of each input, for each t; returns the last states."""
    n, account, most, t = len(states), _Account(), current().max_loop_trips, 0
    several = _Several(body, n + len(outputs))
    while t < trips:
        if t >= most:
            raise _too_many(t)
        made = several((), states, [x[t:] for x in inputs], t, min(trips, most) - t, False)
        if made is not None:
            states, t = made.states, t + made.done
            for out, rows in zip(outputs, made.rows, strict=True):
                out.extend(rows)
            account.holds(states, outputs)
            continue
        results = _results(body(*states, *(_element(x, t) for x in inputs)), n + len(outputs))
        states = list(results[:n])
        for out, value in zip(outputs, results[n:], strict=True):
            out.add(value)
        account.holds(states, outputs)
        t += 1
    account.holds((), ())
    return states


def _shares(values: Sequence[Any], num_scan_inputs: int, body: Body, n_outputs: int) -> tuple[int, int]:
    """How many states and how many scan outputs there are."""
    n = len(values) - num_scan_inputs
    n_outputs = max(n_outputs, getattr(body, "n_outputs", 0))
    if num_scan_inputs < 1 or n < 0 or n_outputs < n:
        raise ValueError(f"num_scan_inputs is {num_scan_inputs}, but the node has {len(values)} inputs and "
                         f"{n_outputs} outputs")
    return n, n_outputs - n


def _one_length(lengths: list[int]) -> int:
    if len(set(lengths)) != 1:
        raise ValueError(f"Scan inputs have inconsistent sequence lengths: {lengths}")
    return lengths[0]


@op(since=9, outputs=None)
def Scan(*initial_state_and_scan_inputs, body: Body, num_scan_inputs: int,
         scan_input_axes: list[int] | None = None, scan_input_directions: list[int] | None = None,
         scan_output_axes: list[int] | None = None, scan_output_directions: list[int] | None = None,
         n_outputs: int):
    """`body` called along the scanned axes with the states and a slice of each scan input; the last states
    come out, and after them the scan outputs, stacked"""
    given, m = initial_state_and_scan_inputs, num_scan_inputs
    n, k = _shares(given, m, body, n_outputs)
    inputs = []
    for x, axis, back in zip(given[n:], _axes(scan_input_axes, m, "scan_input_axes"),
                             _flags(scan_input_directions, m, "scan_input_directions"), strict=True):
        x = _first(x, axis)
        inputs.append(x[::-1] if back else x)
    trips = _one_length([len(x) for x in inputs])
    axes = _axes(scan_output_axes, k, "scan_output_axes")
    backs = _flags(scan_output_directions, k, "scan_output_directions")
    outputs = _scan_outputs(body, n, k)
    states = _scan(list(given[:n]), inputs, body, outputs, trips)
    stacked = []
    for out, axis, back in zip(outputs, axes, backs, strict=True):
        y = out.done()
        stacked.append(np.moveaxis(y[::-1] if back else y, 0, axis_of(axis, y.ndim)) if axis or back else y)
    return (*states, *stacked)


@op(outputs=None)
def Scan_8(sequence_lens=None, *initial_state_and_scan_inputs, body: Body, num_scan_inputs: int,
           directions: list[int] | None = None, n_outputs: int):
    """Scan of a batch: axis 0 of every input is the batch, axis 1 of a scan input the sequence,
    `sequence_lens` long; zeros follow the end of a shorter one"""
    given, m = initial_state_and_scan_inputs, num_scan_inputs
    n, k = _shares(given, m, body, n_outputs)
    backs = _flags(directions, m, "directions")
    for i, x in enumerate(given):
        if x.ndim < 1 + (i >= n):
            raise ValueError("Scan needs a batch axis, and a sequence axis in scan inputs, "
                             f"found {list(x.shape)}")
    batch = _one_length([len(x) for x in given])
    length = _one_length([x.shape[1] for x in given[n:]])
    lens = np.full(batch, length) if sequence_lens is None else np.asarray(sequence_lens)
    if lens.shape != (batch,) or (lens < 0).any() or (lens > length).any():
        raise InvalidArgument("Invalid entries in sequence_lens.", found=lens.tolist(),
                              expected=f"{batch} lengths from 0 to {length}")
    final: list[list[Any]] = [[] for _ in range(n)]
    parts: list[list[_Scanned]] = [[] for _ in range(k)]
    for b in range(batch):
        size = int(lens[b])
        inputs = [x[b, :size][::-1] if back else x[b, :size]
                  for x, back in zip(given[n:], backs, strict=True)]
        outputs = _scan_outputs(body, n, k)
        states = _scan([_element(x, b) for x in given[:n]], inputs, body, outputs, size)
        for kept, value in zip(final, states, strict=True):
            kept.append(value)
        for found, out in zip(parts, outputs, strict=True):
            found.append(out)
    return (*(np.stack(f) if f else x for f, x in zip(final, given, strict=False)),
            *(_batched(found, blank, length)
              for found, blank in zip(parts, _scan_outputs(body, n, k), strict=True)))


def _batched(parts: list[_Scanned], blank: _Scanned, length: int) -> np.ndarray:
    """The scan output of each sample, filled up to `length`, stacked; one without a trip takes another's
    shape."""
    full = next((p for p in parts if p.count), None)
    if full is None:
        element = blank.done(length)
        return _zeros((len(parts), *element.shape), element.dtype)
    bounded((len(parts), length, *full.shape), full.dtype, "scan output")
    return np.stack([p.done(length) if p.count else _zeros((length, *full.shape), full.dtype) for p in parts])
