"""Recurrent layers on GPUs: steps of RNN, GRU and LSTM whose inputs are already multiplied by W, biases
added.

In: those products, R as the operator has it, and the states. Out: hidden states, and the states behind the
last step. Small layers have one program for some rows of the batch, which keeps the states and does all
steps; others do a step per launch, a program for some rows and some of the hidden lanes. States are float32.
"""

from __future__ import annotations

from ....records import dataclass
from ...write.expr import Expr
from ..write import Writer, kernel

GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
WHOLE, FIRST, SECOND = "whole", "first", "second"
"""What of a step a launch does: all, or of a GRU that multiplies by R behind its reset gate the gates, and
the rest."""

_F = "float32"


@dataclass(frozen=True)
class CellForm:
    """What of a layer a kernel is written for. `activations`: trees over leaf 0; `clip`: 0 for none;
    `lengths`: whether sequences have lengths of their own; `coupled`: an LSTM whose input gate is 1 less its
    forget gate; `linear`: a GRU that multiplies by R before its reset gate; `dtype`: of R and the results;
    `precision`: how Triton multiplies float32."""

    kind: str
    activations: tuple[Expr, ...]
    dtype: str = _F
    clip: float = 0.0
    peephole: bool = False
    lengths: bool = False
    coupled: bool = False
    linear: bool = False
    precision: str = "ieee"

    @property
    def states(self) -> tuple[str, ...]:
        return ("h", "c") if self.kind == "LSTM" else ("h",)


class _Step:
    """One step while it is written: `row`, `column` and their masks are variables of the kernel."""

    def __init__(self, k: Writer, form: CellForm, phase: str = WHOLE) -> None:
        self.k, self.form, self.phase = k, form, phase

    def declare(self, states: tuple[str, ...]) -> None:
        """Arguments: inputs, R, what else there is, results, states; sizes and strides."""
        k, form = self.k, self.form
        k.pointer("x", _F)
        k.pointer("r", form.dtype)
        if form.peephole:
            k.pointer("peephole", form.dtype)
        if form.linear:
            k.pointer("shift", form.dtype)
        if form.lengths:
            k.pointer("lengths", "int32")
            k.pointer("status", "int64")
        k.pointer("y", form.dtype)
        for name in states:
            k.pointer(name, _F)
        for name in ("first", "backward", "steps", "batch"):
            k.count(name)
        for name in ("hidden", "x_d", "x_t", "x_b", "y_d", "y_t", "y_b"):
            k.size(name)

    def rows(self) -> None:
        """How long the rows' sequences are."""
        k = self.k
        k.text("""
            inside, there = row < batch, column < hidden
            both = inside[:, None] & there[None, :]
            state = (direction * batch + row)[:, None].to(tl.int64) * hidden + column[None, :]
        """)
        if self.form.lengths:
            k.text("""
                given = tl.load(lengths + row, mask=inside, other=0)
                wrong = tl.sum((inside & ((given < 0) | (given > steps))).to(tl.int32))
                tl.store(status + tl.arange(0, 1), tl.full((1,), 1, tl.int64), mask=wrong > 0)
                length = tl.maximum(tl.minimum(given, steps), 0)
            """)
        else:
            k.text("length = row * 0 + steps")

    def place(self, t: str) -> None:
        """Where step `t` of each row lies."""
        self.k.text(f"""
            live = {t} < length
            place = tl.where((direction >= backward) & live, length - 1 - {t}, {t})
        """)

    def gate(self, g: int) -> str:
        """The inputs' part of a gate."""
        return self.k.load("x", f"{self._at('x')} + {g} * hidden", "both")

    def _at(self, name: str) -> str:
        """Where the rows' step lies in inputs or results."""
        return (f"direction * {name}_d + place[:, None].to(tl.int64) * {name}_t + "
                f"row[:, None].to(tl.int64) * {name}_b + column[None, :]")

    def weights(self, g: int, start: str, deep: str) -> str:
        """R of a gate, (state, column), from state `start` on."""
        first = f"(direction * {GATES[self.form.kind]} + {g}) * hidden"
        lines = f"({first} + column[None, :]).to(tl.int64) * hidden"
        return self.k.load("r", f"{lines} + ({start} + {deep})[:, None]",
                           f"there[None, :] & (({start} + {deep}) < hidden)[:, None]")

    def dot(self, h: str, weights: str, total: str | None = None) -> str:
        form = self.form
        how = f', input_precision="{form.precision}"' if form.dtype == _F else ""
        added = f", {total}" if total else ""
        return f"tl.dot({h}.to({self.k.typed(form.dtype)}), {weights}{added}{how})"

    def vector(self, name: str, g: int, per: int) -> str:
        """A number per column."""
        value = self.k.load(name, f"(direction * {per} + {g}) * hidden + column", "there")
        return f"{value}.to(tl.float32)[None, :]"

    def act(self, which: int, x: str) -> str:
        """An activation; the third of an LSTM is not clipped."""
        k, clip = self.k, self.form.clip
        if clip and which != 2:
            x = k.let(f"tl.where({x} < {-clip!r}, {-clip!r}, tl.where({x} > {clip!r}, {clip!r}, {x}))")
        return k.tree(self.form.activations[which], [k.let(x)])

    def lstm(self, sums: list[str], c: str) -> tuple[str, str]:
        k = self.k

        def peeped(g: int, which: int, state: str) -> str:
            if not self.form.peephole:
                return sums[g]
            return f"{sums[g]} + {self.vector('peephole', which, 3)} * {state}"
        i = self.act(0, peeped(0, 0, c))
        forget = k.let(f"1 - {i}") if self.form.coupled else self.act(0, peeped(2, 2, c))
        cell = k.let(f"{forget} * {c} + {i} * {self.act(1, sums[3])}")
        return k.let(f"{self.act(0, peeped(1, 1, cell))} * {self.act(2, cell)}"), cell

    def mixed(self, z: str, candidate: str, h: str) -> str:
        return self.k.let(f"(1 - {z}) * {candidate} + {z} * {h}")

    def give(self, h: str) -> None:
        """A step's row of the result; zeros behind the end of a sequence."""
        self.k.store("y", self._at("y"), f"tl.where(live[:, None], {h}, 0.0)", "both")


@kernel
def recurrence(k: Writer, *, form: CellForm, rows: int, columns: int) -> None:
    """All steps of `rows` rows of the batch, all hidden lanes being one tile; states are read, and replaced
    by those behind the last step."""
    it = _Step(k, form)
    it.declare(form.states)
    k.text(f"""
        tiles = tl.cdiv(batch, {rows})
        direction = first + tl.program_id(0) // tiles
        row = tl.program_id(0) % tiles * {rows} + tl.arange(0, {rows})
        column = tl.arange(0, {columns})
    """)
    it.rows()
    for name in form.states:
        k.text(f"{name}_now = tl.load({name} + state, mask=both, other=0.0)")
    with k.block("for t in range(0, steps):"):
        it.place("t")
        turn = [k.let(it.dot("h_now", it.weights(g, "0", "column")))
                for g in range(GATES[form.kind] if form.kind != "GRU" or form.linear else 2)]
        x = [it.gate(g) for g in range(GATES[form.kind])]
        if form.kind == "LSTM":
            h, c = it.lstm([k.let(f"{a} + {b}") for a, b in zip(x, turn, strict=True)], "c_now")
            k.text(f"c_now = tl.where(live[:, None], {c}, c_now)")
        elif form.kind == "RNN":
            h = it.act(0, f"{x[0]} + {turn[0]}")
        else:
            z, reset = (it.act(0, f"{x[g]} + {turn[g]}") for g in (0, 1))
            if form.linear:
                held = f"{reset} * ({turn[2]} + {it.vector('shift', 0, 1)})"
            else:
                held = it.dot(k.let(f"{reset} * h_now"), it.weights(2, "0", "column"))
            h = it.mixed(z, it.act(1, f"{x[2]} + {held}"), "h_now")
        it.give(h)
        k.text(f"h_now = tl.where(live[:, None], {h}, h_now)")
    for name in form.states:
        k.text(f"tl.store({name} + state, {name}_now, mask=both)")
    k.warps, k.stages = 4, 1


@kernel
def recurrence_step(k: Writer, *, form: CellForm, phase: str, rows: int, columns: int, deep: int) -> None:
    """Step `t`: `rows` rows of the batch by `columns` hidden lanes. States `h` go to `h_next`, and those of
    cells are replaced. `phase`: FIRST leaves the update gate in `z` and the reset state in `h_next`, SECOND
    goes on from there."""
    it = _Step(k, form, phase)
    it.declare(form.states)
    if phase != FIRST:
        k.pointer("h_next", _F)
    if phase != WHOLE:
        k.pointer("z", _F)
        k.pointer("h_reset", _F)
    k.size("t")
    k.text(f"""
        down, across = tl.cdiv(batch, {rows}), tl.cdiv(hidden, {columns})
        direction = first + tl.program_id(0) // across // down
        row = tl.program_id(0) // across % down * {rows} + tl.arange(0, {rows})
        column = tl.program_id(0) % across * {columns} + tl.arange(0, {columns})
        lane = tl.arange(0, {deep})
    """)
    it.rows()
    it.place("t")
    wanted = {WHOLE: range(GATES[form.kind]), FIRST: range(2), SECOND: range(2, 3)}[phase]
    for g in wanted:
        k.text(f"sum{g} = tl.zeros(({rows}, {columns}), tl.float32)")
    source = "h_reset" if phase == SECOND else "h"
    with k.block(f"for start in range(0, hidden, {deep}):"):
        k.text("before = (direction * batch + row)[:, None].to(tl.int64) * hidden + (start + lane)[None, :]")
        h = k.load(source, "before", "inside[:, None] & ((start + lane) < hidden)[None, :]")
        for g in wanted:
            k.text(f"sum{g} = {it.dot(h, it.weights(g, 'start', 'lane'), f'sum{g}')}")
    k.text("h_now = tl.load(h + state, mask=both, other=0.0)")
    sums = [f"sum{g}" for g in range(4)]
    added = [k.let(f"{it.gate(g)} + {sums[g]}") if g in wanted and (g < 2 or not form.linear) else ""
             for g in range(GATES[form.kind])]
    if phase == FIRST:
        z, reset = it.act(0, added[0]), it.act(0, added[1])
        k.text(f"tl.store(z + state, {z}, mask=both)")
        k.text(f"tl.store(h_reset + state, {reset} * h_now, mask=both)")
        k.warps, k.stages = 4, 2
        return
    if form.kind == "LSTM":
        k.text("c_now = tl.load(c + state, mask=both, other=0.0)")
        new, cell = it.lstm(added, "c_now")
        k.text(f"tl.store(c + state, tl.where(live[:, None], {cell}, c_now), mask=both)")
    elif form.kind == "RNN":
        new = it.act(0, added[0])
    elif phase == SECOND:
        new = it.mixed(k.load("z", "state", "both"), it.act(1, added[2]), "h_now")
    else:
        z, reset = it.act(0, added[0]), it.act(0, added[1])
        held = f"{it.gate(2)} + {reset} * (sum2 + {it.vector('shift', 0, 1)})"
        new = it.mixed(z, it.act(1, held), "h_now")
    it.give(new)
    k.text(f"tl.store(h_next + state, tl.where(live[:, None], {new}, h_now), mask=both)")
    k.warps, k.stages = 4, 2
