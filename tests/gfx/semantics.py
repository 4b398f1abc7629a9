"""Pseudo-code as LLVM IR: one lane's part of an instruction.

A `Lane` holds the variables of a text: the instruction's operands, put there by the caller, and what the text
makes itself. Every variable is a run of bits in memory, which LLVM turns into registers; `Value` is what an
expression gives.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from llvmlite import ir

from . import pseudocode as p

_FLOATS = {16: ir.HalfType(), 32: ir.FloatType(), 64: ir.DoubleType()}
I1, I16, I32, I64 = (ir.IntType(n) for n in (1, 16, 32, 64))
F32, F64 = ir.FloatType(), ir.DoubleType()
PI = 3.141592653589793


class Unsupported(Exception):
    """A text uses what cannot be translated."""


@dataclass(frozen=True)
class Value:
    """`kind`: u or i for integers, f for floats, bf for bfloat16 kept as its bits. `loose` marks a number
    without a width of its own."""

    ir: Any
    kind: str
    bits: int
    loose: bool = False


@dataclass
class Variable:
    """Bits in memory, and the type they were given."""

    at: Any
    kind: str
    bits: int
    count: int = 0


class Lane:
    """`special` are names that are no plain bits, each a pair of functions: (lane, view) -> Value and
    (lane, value); `memory(address, bits, store)` gives the pointer that may be read or written."""

    def __init__(self, builder: ir.IRBuilder, module: ir.Module, *,
                 memory: Callable[[Any, int, bool], Any] | None = None,
                 look: Callable[[str], str | None] | None = None) -> None:
        self.b, self.module, self.memory, self.look = builder, module, memory, look
        self.variables: dict[str, Variable] = {}
        self.constants: dict[str, Value] = {}
        self.masks: dict[str, Mask] = {}
        self.lambdas: dict[str, p.Lambda] = {}
        self.breaks: list[Any] = []

    # values

    def integer(self, value: int, bits: int = 32, kind: str = "u", loose: bool = False) -> Value:
        return Value(ir.Constant(ir.IntType(bits), value & (1 << bits) - 1), kind, bits, loose)

    def number(self, value: float, bits: int = 32, loose: bool = False) -> Value:
        if bits == 16:
            return self.convert(self.number(value, 32), "f", 16)
        return Value(ir.Constant(_FLOATS[bits], value), "f", bits, loose)

    def raw(self, x: Value) -> Any:
        """The bits of a value as an integer."""
        return self.b.bitcast(x.ir, ir.IntType(x.bits)) if x.kind == "f" else x.ir

    def resized(self, x: Any, bits: int, signed: bool = False) -> Any:
        have = x.type.width
        if have == bits:
            return x
        if have > bits:
            return self.b.trunc(x, ir.IntType(bits))
        return (self.b.sext if signed else self.b.zext)(x, ir.IntType(bits))

    def viewed(self, x: Value, kind: str, bits: int) -> Value:
        """The low bits of `x` as another type."""
        raw = self.resized(self.raw(x), bits)
        return Value(self.b.bitcast(raw, _FLOATS[bits]) if kind == "f" else raw, kind, bits)

    def convert(self, x: Value, kind: str, bits: int) -> Value:
        """The value of `x` in another type."""
        b = self.b
        if x.kind == "bf":
            x = self.viewed(Value(b.shl(self.resized(x.ir, 32), ir.Constant(I32, 16)), "u", 32), "f", 32)
        if kind == "bf":
            return self._to_bfloat(self.convert(x, "f", 32))
        if kind == "f":
            if x.kind != "f":
                wide = _FLOATS[32 if bits == 16 else bits]
                made = Value((b.sitofp if x.kind == "i" else b.uitofp)(x.ir, wide), "f", max(bits, 32))
                return self.convert(made, "f", bits)
            if x.bits == bits:
                return Value(x.ir, "f", bits)
            if (x.bits, bits) == (64, 16):
                return self.convert(self._to_odd(x), "f", 16)
            if (x.bits, bits) == (16, 64):
                return self.convert(self.convert(x, "f", 32), "f", 64)
            return Value((b.fpext if x.bits < bits else b.fptrunc)(x.ir, _FLOATS[bits]), "f", bits)
        if x.kind == "f":
            return self.saturated(x, kind, bits)
        return Value(self.resized(x.ir, bits, x.kind == "i"), kind, bits)

    def saturated(self, x: Value, kind: str, bits: int) -> Value:
        """A float as the nearest integer there is towards zero; 0 for NaN."""
        x = self.convert(x, "f", 32) if x.bits == 16 else x
        name = f"llvm.fpto{'s' if kind == 'i' else 'u'}i.sat.i{bits}.f{x.bits}"
        return Value(self.intrinsic(name, ir.IntType(bits), x.ir), kind, bits)

    def _to_odd(self, x: Value) -> Value:
        """A double as a float from which rounding once more gives what rounding the double would have given:
        cut off, with its last bit set where anything was cut."""
        b = self.b
        near = b.fptrunc(x.ir, F32)
        back, raw = b.fpext(near, F64), b.bitcast(near, I32)
        far = b.fcmp_ordered(">", self._magnitude(back), self._magnitude(x.ir))
        cut = b.select(far, b.sub(raw, ir.Constant(I32, 1)), raw)
        exact = b.fcmp_unordered("==", back, x.ir)
        return self.viewed(Value(b.select(exact, raw, b.or_(cut, ir.Constant(I32, 1))), "u", 32), "f", 32)

    def _magnitude(self, x: Any) -> Any:
        return self.intrinsic("llvm.fabs.f64", F64, x)

    def _to_bfloat(self, x: Value) -> Value:
        b, raw = self.b, self.raw(x)
        odd = b.and_(b.lshr(raw, ir.Constant(I32, 16)), ir.Constant(I32, 1))
        rounded = b.lshr(b.add(raw, b.add(odd, ir.Constant(I32, 0x7FFF))), ir.Constant(I32, 16))
        quiet = b.or_(b.lshr(raw, ir.Constant(I32, 16)), ir.Constant(I32, 0x40))
        nan = b.fcmp_unordered("uno", x.ir, x.ir)
        return Value(b.trunc(b.select(nan, quiet, rounded), I16), "bf", 16)

    def intrinsic(self, name: str, returns: Any, *arguments: Any) -> Any:
        function = self.module.globals.get(name)
        if function is None:
            function = ir.Function(self.module, ir.FunctionType(returns, [a.type for a in arguments]), name)
        return self.b.call(function, arguments)

    def truth(self, x: Value) -> Any:
        if x.kind == "f":
            return self.b.fcmp_unordered("!=", x.ir, ir.Constant(x.ir.type, 0.0))
        if x.bits == 1:
            return x.ir
        return self.b.icmp_unsigned("!=", x.ir, ir.Constant(x.ir.type, 0))

    # variables

    def define(self, name: str, x: Value) -> Variable:
        """A variable that holds the bits of `x`."""
        found = self.space(name, x.kind, x.bits)
        self.b.store(self.raw(x), found.at)
        return found

    def space(self, name: str, kind: str, bits: int, count: int = 0) -> Variable:
        with self.b.goto_entry_block():
            at = self.b.alloca(ir.IntType(bits), size=count or None)
        self.variables[name] = found = Variable(at, kind, bits, count)
        return found

    def held(self, found: Variable) -> Value:
        raw = Value(self.b.load(found.at), "u", found.bits)
        return self.viewed(raw, found.kind, found.bits) if found.kind == "f" else Value(
            raw.ir, found.kind, found.bits)

    # statements

    def run(self, statements: tuple[Any, ...]) -> None:
        for each in statements:
            if self.b.block.is_terminated:
                return
            self.statement(each)

    def statement(self, it: Any) -> None:
        if isinstance(it, p.Assign):
            self.assign(it)
        elif isinstance(it, p.If):
            self.branch(list(it.cases), it.otherwise)
        elif isinstance(it, p.For):
            self.loop(it)
        elif isinstance(it, p.Break):
            self.b.branch(self.breaks[-1])
        elif isinstance(it, p.Declare):
            self.space(it.name, it.kind, it.bits, it.count)
        else:
            self.value(it)

    def branch(self, cases: list[Any], otherwise: tuple[Any, ...]) -> None:
        if not cases:
            return self.run(otherwise)
        test, body = cases[0]
        with self.b.if_else(self.truth(self.value(test))) as (then, other):
            with then:
                self.run(body)
            with other:
                self.branch(cases[1:], otherwise)
        if self.b.block.is_terminated:
            self.b.position_at_end(self.b.append_basic_block("dead"))

    def loop(self, it: p.For) -> None:
        b = self.b
        first = self.convert(self.value(it.first), "i", 32)
        last = self.convert(self.value(it.last), "i", 32)
        at = self.define(it.name, first)
        head, body, after = (b.append_basic_block(n) for n in ("head", "body", "after"))
        b.branch(head)
        b.position_at_end(head)
        b.cbranch(b.icmp_signed("<=", b.load(at.at), last.ir), body, after)
        b.position_at_end(body)
        self.breaks.append(after)
        self.run(it.body)
        self.breaks.pop()
        if not b.block.is_terminated:
            b.store(b.add(b.load(at.at), ir.Constant(I32, 1)), at.at)
            b.branch(head)
        b.position_at_end(after)

    def assign(self, it: p.Assign) -> None:
        if isinstance(it.value, p.Lambda):
            self.lambdas[it.targets[0].name] = it.value
            return
        x = self.value(it.value)
        for target in it.targets:
            self.store(target, x)

    def store(self, target: Any, x: Value) -> None:
        if isinstance(target, p.Concat):
            raw = self.raw(x)
            for part in reversed(target.parts):
                bits = part.bits
                self.store(part, Value(self.resized(raw, bits), "u", bits))
                raw = self.b.lshr(raw, ir.Constant(raw.type, bits))
            return
        name = _root(target)
        if name == "MEM":
            self._write(target, x)
        elif name in self.masks:
            self.masks[name].set(self, target, x)
        elif isinstance(target, p.Name):
            self._store_whole(target.name, x)
        else:
            self._store_part(target, x)

    def _store_whole(self, name: str, x: Value) -> None:
        found = self.variables.get(name)
        if found is None:
            if x.loose and x.kind != "f":
                x = self.convert(x, x.kind, 32)
            self.define(name, x)
            return
        if found.kind != "u" and not (x.kind == "f" and found.kind == "f"):
            x = self.convert(x, found.kind, found.bits)
        elif x.kind == "f" and found.kind == "f" and x.bits != found.bits:
            x = self.convert(x, "f", found.bits)
        raw = self.resized(self.raw(x), found.bits, x.kind == "i")
        self.b.store(raw, found.at)

    def _store_part(self, target: Any, x: Value) -> None:
        """Into some bits of a variable: the views and slices around its name say which."""
        b, steps = self.b, []
        while not isinstance(target, p.Name):
            steps.append(target)
            target = target.of
        name = target.name
        if name not in self.variables:
            bits = steps[-1].bits if isinstance(steps[-1], p.View) else 32
            self.space(name, steps[-1].kind if isinstance(steps[-1], p.View) else "u", bits)
        found = self.variables[name]
        at, low, width, kind = found.at, ir.Constant(I32, 0), found.bits, found.kind
        for step in reversed(steps):
            if isinstance(step, p.View):
                width, kind = min(step.bits, width) if found.count else step.bits, step.kind
            elif isinstance(step, p.Slice):
                start = self.convert(self.value(step.low), "u", 32).ir
                low, kind = b.add(low, start), "u"
                width = _width(step, self)
            elif found.count:
                at = b.gep(at, [self.convert(self.value(step.at), "u", 32).ir])
            else:
                low, width, kind = b.add(low, self.convert(self.value(step.at), "u", 32).ir), 1, "u"
        if kind in ("f", "bf"):
            x = self.convert(x, kind, width)
        whole = ir.IntType(found.bits)
        new = self.resized(self.resized(self.raw(x), min(width, found.bits), x.kind == "i"), found.bits)
        if width >= found.bits:
            b.store(new, at)
            return
        shift = self.resized(low, found.bits)
        mask = b.shl(ir.Constant(whole, (1 << width) - 1), shift)
        b.store(b.or_(b.and_(b.load(at), b.not_(mask)), b.shl(new, shift)), at)

    # memory

    def _place(self, target: Any, store: bool) -> tuple[Any, p.View]:
        view = target
        if not isinstance(view, p.View) or not isinstance(view.of, p.Index) or self.memory is None:
            raise Unsupported(f"memory read as {target}")
        address = self.resized(self.raw(self.value(view.of.at)), 64)
        at = self.memory(address, view.bits, store)
        return self.b.bitcast(at, ir.IntType(view.bits).as_pointer()), view

    def _write(self, target: Any, x: Value) -> None:
        at, view = self._place(target, True)
        x = self.convert(x, view.kind, view.bits) if x.kind == "f" or view.kind == "f" else x
        self.b.store(self.resized(self.raw(x), view.bits), at).align = 1

    # expressions

    def value(self, it: Any) -> Value:
        if isinstance(it, p.Number):
            return self._literal(it)
        if isinstance(it, p.Name):
            return self._named(it.name)
        if isinstance(it, p.View):
            return self._view(it)
        if isinstance(it, p.Slice):
            return self._slice(it)
        if isinstance(it, p.Index):
            return self._index(it)
        if isinstance(it, p.Cast):
            return self._cast(it)
        if isinstance(it, p.Concat):
            return self._concat([self.value(x) for x in it.parts])
        if isinstance(it, p.Call):
            return self._call(it)
        if isinstance(it, p.Apply):
            return self._apply(it)
        raise Unsupported(str(it))

    def _literal(self, it: p.Number) -> Value:
        if it.kind == "f":
            return self.number(float(it.value), it.bits or 64, loose=not it.bits)
        bits = it.bits or (32 if -1 << 31 <= it.value < 1 << 32 else 64)
        return self.integer(int(it.value), bits, it.kind, loose=not it.bits)

    def _named(self, name: str) -> Value:
        if name in self.masks:
            return self.masks[name].get(self)
        if name in self.variables:
            return self.held(self.variables[name])
        if name in self.constants:
            return self.constants[name]
        if name in ("INF", "NAN", "PI"):
            value = {"INF": float("inf"), "NAN": float("nan"), "PI": PI}[name]
            return self.number(value, 64, loose=True)
        for start, value in (("OVERFLOW_F", float("inf")), ("UNDERFLOW_F", 0.0)):
            if name.startswith(start):
                return self.number(value, int(name[len(start):]))
        if name == "WAVE_MODE.IEEE":
            return self.integer(0, 1)
        raise Unsupported(f"the name {name}")

    def _view(self, it: p.View) -> Value:
        if isinstance(it.of, p.Index) and _root(it.of) == "MEM":
            at, view = self._place(it, False)
            load = self.b.load(at)
            load.align = 1
            return self.viewed(Value(load, "u", view.bits), view.kind, view.bits)
        x = self.value(it.of)
        if x.kind == "f" and x.loose and it.kind == "f":
            return self.convert(x, "f", it.bits)
        return self.viewed(x, it.kind, it.bits)

    def _slice(self, it: p.Slice) -> Value:
        x = self.value(it.of)
        raw = self.raw(x)
        low = self.resized(self.convert(self.value(it.low), "u", 32).ir, raw.type.width)
        return Value(self.resized(self.b.lshr(raw, low), _width(it, self)), "u", _width(it, self))

    def _index(self, it: p.Index) -> Value:
        if isinstance(it.of, p.Name) and (found := self.variables.get(it.of.name)) and found.count:
            at = self.b.gep(found.at, [self.convert(self.value(it.at), "u", 32).ir])
            return self.viewed(Value(self.b.load(at), "u", found.bits), found.kind, found.bits)
        name = _root(it)
        if name in self.masks:
            return self.masks[name].bit(self)
        raw = self.raw(self.value(it.of))
        at = self.resized(self.convert(self.value(it.at), "u", 32).ir, raw.type.width)
        return Value(self.resized(self.b.lshr(raw, at), 1), "u", 1)

    def _cast(self, it: p.Cast) -> Value:
        if it.kind == "f" and isinstance(it.of, p.Number) and it.of.pattern:
            return self.viewed(self.integer(int(it.of.value), it.bits), "f", it.bits)
        x = self.value(it.of)
        if it.kind == "u" and x.kind in ("f", "bf") and x.bits == it.bits:
            return Value(self.raw(x), "u", it.bits)
        return self.convert(x, it.kind, it.bits)

    def _concat(self, parts: list[Value]) -> Value:
        total = sum(x.bits for x in parts)
        found: Any = ir.Constant(ir.IntType(total), 0)
        at = total
        for x in parts:
            at -= x.bits
            wide = self.resized(self.raw(x), total)
            found = self.b.or_(found, self.b.shl(wide, ir.Constant(wide.type, at)))
        return Value(found, "u", total)

    def _alike(self, x: Value, y: Value) -> tuple[Value, Value]:
        """Two operands in one type."""
        if "bf" in (x.kind, y.kind):
            x, y = (self.convert(v, "f", 32) if v.kind == "bf" else v for v in (x, y))
        if "f" in (x.kind, y.kind):
            fixed = [v.bits for v in (x, y) if v.kind == "f" and not v.loose]
            bits = max(fixed) if fixed else 64
            return self.convert(x, "f", bits), self.convert(y, "f", bits)
        if x.loose != y.loose and not (x.bits > y.bits if x.loose else y.bits > x.bits):
            kind, bits = (y.kind, y.bits) if x.loose else (x.kind, x.bits)
        else:
            bits = max(x.bits, y.bits)
            kind = "i" if x.kind == y.kind == "i" else "u"
        return self.convert(x, kind, bits), self.convert(y, kind, bits)

    def _apply(self, it: p.Apply) -> Value:
        sign, b = it.operator, self.b
        if sign == "**":
            return self._power(it)
        if sign == "?":
            test = self.truth(self.value(it.arguments[0]))
            x, y = self._alike(self.value(it.arguments[1]), self.value(it.arguments[2]))
            return Value(b.select(test, x.ir, y.ir), x.kind, x.bits)
        x = self.value(it.arguments[0])
        if sign == "neg":
            if x.kind == "f":
                return Value(b.fneg(x.ir), "f", x.bits, x.loose)
            return Value(b.neg(x.ir), "i" if x.loose else x.kind, x.bits, x.loose)
        if sign == "~":
            return Value(b.not_(self.raw(x)), "u" if x.kind == "f" else x.kind, x.bits)
        if sign == "!":
            return Value(b.not_(self.truth(x)), "u", 1)
        if sign in ("&&", "||"):
            left, right = self.truth(x), self.truth(self.value(it.arguments[1]))
            return Value((b.and_ if sign == "&&" else b.or_)(left, right), "u", 1)
        return self._arithmetic(sign, x, self.value(it.arguments[1]))

    def _arithmetic(self, sign: str, x: Value, y: Value) -> Value:
        b = self.b
        if sign in ("<<", ">>"):
            return self._shifted(sign, x, y)
        x, y = self._alike(x, y)
        if sign in ("==", "!=", "<>", "<", ">", "<=", ">="):
            sign, ordered = "!=" if sign == "<>" else sign, sign != "!="
            if x.kind == "f":
                made = (b.fcmp_ordered if ordered else b.fcmp_unordered)(sign, x.ir, y.ir)
            else:
                made = (b.icmp_signed if x.kind == "i" else b.icmp_unsigned)(sign, x.ir, y.ir)
            return Value(made, "u", 1)
        if x.kind == "f":
            return self._float(sign, x, y)
        signed = x.kind == "i"
        with_zero = {"/": b.sdiv if signed else b.udiv, "%": b.srem if signed else b.urem}
        plain = {"+": b.add, "-": b.sub, "*": b.mul, "&": b.and_, "|": b.or_, "^": b.xor}
        return Value((plain.get(sign) or with_zero[sign])(x.ir, y.ir), x.kind, x.bits)

    def _float(self, sign: str, x: Value, y: Value) -> Value:
        b = self.b
        if x.bits == 16:
            wide = self._float(sign, self.convert(x, "f", 32), self.convert(y, "f", 32))
            return self.convert(wide, "f", 16)
        plain = {"+": b.fadd, "-": b.fsub, "*": b.fmul, "/": b.fdiv, "%": b.frem}
        if sign not in plain:
            raise Unsupported(f"{sign} of floats")
        return Value(plain[sign](x.ir, y.ir), "f", x.bits)

    def _shifted(self, sign: str, x: Value, y: Value) -> Value:
        b = self.b
        amount = self.resized(self.raw(self.convert(y, "u", 32)), max(x.bits, 32))
        wide = self.resized(self.raw(x), max(x.bits, 32), x.kind == "i")
        inside = b.icmp_unsigned("<", amount, ir.Constant(amount.type, wide.type.width))
        amount = b.select(inside, amount, ir.Constant(amount.type, wide.type.width - 1))
        if sign == "<<":
            made = b.select(inside, b.shl(wide, amount), ir.Constant(wide.type, 0))
        elif x.kind == "i":
            made = b.ashr(wide, amount)
        else:
            made = b.select(inside, b.lshr(wide, amount), ir.Constant(wide.type, 0))
        return Value(self.resized(made, x.bits), x.kind, x.bits)

    def _power(self, it: p.Apply) -> Value:
        """2.0 ** n, n an integer or a float."""
        base = it.arguments[0]
        if not isinstance(base, p.Number) or base.value != 2:
            raise Unsupported("a power of something else than 2")
        return self.exp2(self.convert(self.value(it.arguments[1]), "f", base.bits or 32))

    def exp2(self, x: Value) -> Value:
        wide = self.convert(x, "f", 64)
        return self.convert(Value(self.intrinsic("llvm.exp2.f64", F64, wide.ir), "f", 64), "f", x.bits)

    def _call(self, it: p.Call) -> Value:
        from .functions import FUNCTIONS

        arguments = [self.value(x) for x in it.arguments]
        if it.name in self.lambdas:
            return self._inlined(self.lambdas[it.name], arguments)
        made = FUNCTIONS.get(it.name)
        if made is not None:
            return made(self, *arguments)
        return self._instruction(it.name, arguments)

    def _inlined(self, it: p.Lambda, arguments: list[Value]) -> Value:
        kept = dict(self.variables)
        for name, x in zip(it.parameters, arguments, strict=True):
            self.define(name, x)
        found = self.value(it.body)
        self.variables = kept
        return found

    def _instruction(self, name: str, arguments: list[Value]) -> Value:
        """The result of another instruction, named as a function."""
        text = self.look(name.upper()) if self.look is not None else None
        if text is None:
            raise Unsupported(f"the function {name}")
        kind, bits = _result(name)
        kept, self.variables = self.variables, {}
        for i, x in enumerate(arguments):
            self.define(f"S{i}", x)
        self.space("D0", kind, bits)
        self.run(p.read(text))
        found = self.held(self.variables["D0"])
        self.variables = kept
        return found


@dataclass
class Mask:
    """A bit per lane in a scalar register pair: `old` is what it was, `new` collects what lanes write."""

    old: Any
    new: Any
    lane: Any

    def get(self, lane: Lane) -> Value:
        return Value(self.old, "u", 64)

    def bit(self, lane: Lane) -> Value:
        return Value(lane.resized(lane.b.lshr(self.old, self.lane), 1), "u", 1)

    def set(self, lane: Lane, target: Any, x: Value) -> None:
        """This lane's bit, whether the text indexes by the lane or names the whole mask for it."""
        b = lane.b
        bit = lane.resized(lane.truth(lane.viewed(x, "u", 1)) if x.bits > 1 else lane.truth(x), 64)
        if x.bits > 1:
            bit = lane.resized(b.and_(lane.resized(lane.raw(x), 64), ir.Constant(I64, 1)), 64)
        cleared = b.and_(b.load(self.new), b.not_(b.shl(ir.Constant(I64, 1), self.lane)))
        b.store(b.or_(cleared, b.shl(bit, self.lane)), self.new)


def _root(target: Any) -> str:
    while not isinstance(target, p.Name):
        if not hasattr(target, "of"):
            return ""
        target = target.of
    return target.name


def _width(it: p.Slice, lane: Lane) -> int:
    """How many bits a slice names: its ends are numbers, or differ by one."""
    if isinstance(it.high, p.Number) and isinstance(it.low, p.Number):
        return int(it.high.value) - int(it.low.value) + 1
    if isinstance(it.high, p.Apply) and it.high.operator == "+":
        left, right = it.high.arguments
        if left == it.low and isinstance(right, p.Number):
            return int(right.value) + 1
    raise Unsupported(f"a slice of unknown width: {it}")


def _result(name: str) -> tuple[str, int]:
    """The type an instruction's name says its result has."""
    last = name.rpartition("_")[2]
    if name.startswith(("v_cvt_", "s_cvt_")):
        last = name.split("_")[2]
    if name.startswith(("s_ff1_i32", "v_sad", "v_msad")):
        last = "i32" if "ff1" in name else "u32"
    kind = {"b": "u"}.get(last[0], last[0])
    if kind not in "uif" or not last[1:].isdigit():
        raise Unsupported(f"the function {name}")
    return kind, int(last[1:])
