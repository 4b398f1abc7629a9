"""LLVM assembly, written by Python operators: the one place that knows how the text looks.

A `Function` is written top to bottom. Its values (`V`) are SSA values with a type; Python's operators on them
write instructions, and a Python number or a scalar next to a vector is spread over its lanes. Loops and
branches are functions of their bodies and carry values explicitly, so that the text is in final form and no
optimization pass has to run over it:

    def body(i, total):
        return f.fma(f.load(F32, x, i), f.load(F32, y, i), total)
    (total,) = f.loop(0, n, 1, [f.const(F32, 0.0)], body)

Arithmetic is exact IEEE: nothing is reassociated or contracted unless `fma` says so.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable, Sequence
from typing import Any

from .origin import Origin, joint

I1, I8, I16, I32, I64 = "i1", "i8", "i16", "i32", "i64"
F16, BF16, F32, F64 = "half", "bfloat", "float", "double"
PTR, VOID = "ptr", "void"
FLOATS = (F16, BF16, F32, F64)
HALVES = (F16, BF16)
BYTES = {I1: 1, I8: 1, I16: 2, I32: 4, I64: 8, F16: 2, BF16: 2, F32: 4, F64: 8, PTR: 8}


def vec(elem: str, lanes: int) -> str:
    """The type of a vector; the element itself for one lane."""
    return f"<{lanes} x {elem}>" if lanes > 1 else elem


@functools.cache
def elem_of(ty: str) -> str:
    return ty[1:-1].split(" x ")[1] if ty[0] == "<" else ty


@functools.cache
def lanes_of(ty: str) -> int:
    return int(ty[1:ty.index(" ")]) if ty[0] == "<" else 1


def size_of(ty: str) -> int:
    return BYTES[elem_of(ty)] * lanes_of(ty)


def _literal(elem: str, x: Any) -> str:
    if elem not in FLOATS:
        if elem == I1:
            return "true" if x else "false"
        return str(int(x))
    if elem == F16:
        return f"0xH{struct.unpack('<H', struct.pack('<e', x))[0]:04X}"
    if elem == BF16:
        return f"0xR{struct.unpack('<I', struct.pack('<f', x))[0] >> 16:04X}"
    if elem == F32:
        x = struct.unpack("<f", struct.pack("<f", x))[0]
    return f"0x{struct.unpack('<Q', struct.pack('<d', x))[0]:016X}"


class V:
    """One SSA value: `ty` its type, `ref` how the text names it, `origin` what it leads into where it is an
    address."""

    __slots__ = ("f", "ty", "ref", "origin")

    def __init__(self, f: Function, ty: str, ref: str, origin: Origin | None = None) -> None:
        self.f, self.ty, self.ref, self.origin = f, ty, ref, origin

    def __repr__(self) -> str:
        return f"{self.ty} {self.ref}"

    @property
    def elem(self) -> str:
        return elem_of(self.ty)

    @property
    def lanes(self) -> int:
        return lanes_of(self.ty)

    @property
    def is_float(self) -> bool:
        return elem_of(self.ty) in FLOATS

    def __add__(self, o: Any) -> V:
        return self.f.binary("fadd" if self.is_float else "add", self, o)

    def __sub__(self, o: Any) -> V:
        return self.f.binary("fsub" if self.is_float else "sub", self, o)

    def __mul__(self, o: Any) -> V:
        return self.f.binary("fmul" if self.is_float else "mul", self, o)

    def __truediv__(self, o: Any) -> V:
        return self.f.binary("fdiv", self, o)

    def __floordiv__(self, o: Any) -> V:
        """Integers: rounds to zero, as the machine does."""
        return self.f.binary("sdiv", self, o)

    def __mod__(self, o: Any) -> V:
        return self.f.binary("frem" if self.is_float else "srem", self, o)

    def __radd__(self, o: Any) -> V:
        return self + o

    def __rsub__(self, o: Any) -> V:
        return self.f.like(o, self) - self

    def __rmul__(self, o: Any) -> V:
        return self * o

    def __rtruediv__(self, o: Any) -> V:
        return self.f.like(o, self) / self

    def __neg__(self) -> V:
        return self.f.emit(self.ty, f"fneg {self}") if self.is_float else self.f.like(0, self) - self

    def __and__(self, o: Any) -> V:
        return self.f.binary("and", self, o)

    def __or__(self, o: Any) -> V:
        return self.f.binary("or", self, o)

    def __xor__(self, o: Any) -> V:
        return self.f.binary("xor", self, o)

    def __invert__(self) -> V:
        return self ^ (1 if self.elem == I1 else -1)

    def __lshift__(self, o: Any) -> V:
        return self.f.binary("shl", self, o)

    def __rshift__(self, o: Any) -> V:
        """Arithmetic; see `lshr` for the logical one."""
        return self.f.binary("ashr", self, o)

    def lshr(self, o: Any) -> V:
        return self.f.binary("lshr", self, o)

    def __lt__(self, o: Any) -> V:
        return self.f.compare("lt", self, o)

    def __le__(self, o: Any) -> V:
        return self.f.compare("le", self, o)

    def __gt__(self, o: Any) -> V:
        return self.f.compare("gt", self, o)

    def __ge__(self, o: Any) -> V:
        return self.f.compare("ge", self, o)

    def eq(self, o: Any) -> V:
        return self.f.compare("eq", self, o)

    def ne(self, o: Any) -> V:
        return self.f.compare("ne", self, o)


ARRANGED = "; addresses are arranged"
"""The first line of a module whose loops carry their addresses, arranged as the processor takes them, so that
reducing the strength of their computation would only take time."""


class Module:
    """Functions, the intrinsics they declare and the tables they read, and whether it is `ARRANGED`."""

    def __init__(self, triple: str = "") -> None:
        self.triple, self.arranged = triple, False
        self.functions: list[Function] = []
        self.declared: dict[str, str] = {}
        self.tables: dict[str, str] = {}

    def function(self, name: str, params: Sequence[tuple[str, str]], returns: str = VOID,
                 internal: bool = False) -> Function:
        made = Function(self, name, params, returns, internal)
        self.functions.append(made)
        return made

    def __str__(self) -> str:
        head = [ARRANGED] if self.arranged else []
        if self.triple:
            head.append(f'target triple = "{self.triple}"')
        return "\n".join([*head, *self.tables.values(), *map(str, self.functions), *self.declared.values(),
                          ""])


class Function:
    """One function being written. Every method that gives a value writes an instruction at the end."""

    def __init__(self, module: Module, name: str, params: Sequence[tuple[str, str]], returns: str,
                 internal: bool) -> None:
        self.module, self.name, self.returns, self.internal = module, name, returns, internal
        self.params = [V(self, ty, f"%{label}") for ty, label in params]
        self.lines: list[str] = []
        self.entry: list[str] = []
        self._before: dict[str, V] = {}
        self._count = 0
        self._block = "entry"

    def __str__(self) -> str:
        args = ", ".join(f"ptr noalias {p.ref}" if p.ty == PTR and not self.internal else str(p)
                         for p in self.params)
        head = f"define {'internal ' if self.internal else ''}{self.returns} @{self.name}({args}) nounwind {{"
        return "\n".join([head, "entry:", *self.entry, *self.lines, "}"])

    def as_integers(self, ty: str) -> bool:
        """Whether values of a type are moved as integers, as the machine would call a function for it."""
        return False

    # values

    def fresh(self) -> str:
        self._count += 1
        return f"%v{self._count}"

    def emit(self, ty: str, text: str, *made_of: V) -> V:
        """Write `text` as an instruction with a result of type `ty`. `made_of`: addresses that it follows
        from."""
        ref = self.fresh()
        self.lines.append(f"  {ref} = {text}")
        known = [x.origin for x in made_of if x.origin is not None]
        return V(self, ty, ref, joint(known) if known else None)

    def line(self, text: str) -> None:
        """Write an instruction without a result."""
        self.lines.append("  " + text)

    def const(self, ty: str, x: Any) -> V:
        elem, lanes = elem_of(ty), lanes_of(ty)
        if isinstance(x, list | tuple):
            return V(self, ty, "<" + ", ".join(f"{elem} {_literal(elem, i)}" for i in x) + ">")
        text = _literal(elem, x)
        return V(self, ty, text if lanes == 1 else f"splat ({elem} {text})")

    def i64(self, x: int | V) -> V:
        return x if isinstance(x, V) else self.const(I64, x)

    def undef(self, ty: str) -> V:
        return V(self, ty, "poison")

    def zero(self, ty: str) -> V:
        return V(self, ty, "zeroinitializer" if ty[0] == "<" else "null" if ty == PTR else _literal(ty, 0))

    def like(self, x: Any, other: V) -> V:
        """`x` with the type of `other`: a number becomes a constant, a scalar is spread."""
        if not isinstance(x, V):
            return self.const(other.ty, x)
        return self.splat(x, other.lanes) if x.lanes == 1 and other.lanes > 1 else x

    def splat(self, x: V, lanes: int) -> V:
        if lanes == 1 or x.lanes > 1:
            return x
        if self.as_integers(x.ty):
            return self.bitcast(self.splat(self.bitcast(x, I16), lanes), vec(x.ty, lanes))
        ty = vec(x.ty, lanes)
        first = self.emit(ty, f"insertelement {ty} poison, {x}, i64 0", x)
        return self.emit(ty, f"shufflevector {first}, {ty} poison, <{lanes} x i32> zeroinitializer", first)

    def binary(self, op: str, a: V, b: Any) -> V:
        b = self.like(b, a)
        a = self.like(a, b)
        return self.emit(a.ty, f"{op} {a}, {b.ref}", a, b)

    def compare(self, how: str, a: V, b: Any, unsigned: bool = False) -> V:
        """An i1 per lane. Floats compare ordered, but `ne` is true for NaN."""
        b = self.like(b, a)
        a = self.like(a, b)
        if a.is_float:
            op = "fcmp " + ("une" if how == "ne" else "o" + how)
        else:
            op = "icmp " + (how if how in ("eq", "ne") else ("u" if unsigned or a.ty == PTR else "s") + how)
        return self.emit(vec(I1, a.lanes), f"{op} {a}, {b.ref}")

    def select(self, c: V, a: Any, b: Any) -> V:
        """`a` where `c`, else `b`; at least one of the two is a value."""
        pattern = a if isinstance(a, V) else b
        if c.lanes > 1 and pattern.lanes == 1:
            pattern = V(self, vec(pattern.ty, c.lanes), "")
        a, b = self.like(a, pattern), self.like(b, pattern)
        a, b = self.like(a, b), self.like(b, a)
        if self.as_integers(a.elem):
            bits = vec(I16, a.lanes)
            return self.bitcast(self.select(c, self.bitcast(a, bits), self.bitcast(b, bits)), a.ty)
        return self.emit(a.ty, f"select {c}, {a}, {b}", a, b)

    def cast(self, x: V, elem: str, unsigned: bool = False) -> V:
        """`x` converted to `elem`, lane by lane; floats to integers round to zero and must be in range."""
        old, ty = x.elem, vec(elem, x.lanes)
        if old == elem:
            return x
        if old in FLOATS and elem in FLOATS:
            if BYTES[old] == BYTES[elem]:
                return self.cast(self.cast(x, F32), elem)
            op = "fpext" if BYTES[old] < BYTES[elem] else "fptrunc"
        elif old in FLOATS:
            op = "fptoui" if unsigned else "fptosi"
        elif elem in FLOATS:
            op = "uitofp" if unsigned or old == I1 else "sitofp"
        elif elem == PTR:
            op = "inttoptr"
        elif old == PTR:
            op = "ptrtoint"
        elif BYTES[old] > BYTES[elem] or elem == I1:
            op = "trunc"
        else:
            op = "zext" if unsigned or old == I1 else "sext"
        return self.emit(ty, f"{op} {x} to {ty}", x)

    def bitcast(self, x: V, ty: str) -> V:
        """The same bits as a `ty`; what they were before, where that is what is asked for."""
        x = self._before.get(x.ref, x)
        if x.ty == ty:
            return x
        made = self.emit(ty, f"bitcast {x} to {ty}")
        self._before[made.ref] = x
        return made

    def shuffle(self, a: V, b: V | None, lanes: Sequence[int]) -> V:
        """The lanes of `a` and `b` (numbered on) that `lanes` lists; -1 for any."""
        if self.as_integers(a.elem):
            whole = [None if x is None else self.bitcast(x, vec(I16, x.lanes)) for x in (a, b)]
            assert whole[0] is not None
            return self.bitcast(self.shuffle(whole[0], whole[1], lanes), vec(a.elem, len(lanes)))
        mask = ", ".join(f"i32 {i if i >= 0 else 'poison'}" for i in lanes)
        other = b.ref if b is not None else "poison"
        return self.emit(vec(a.elem, len(lanes)),
                         f"shufflevector {a}, {a.ty} {other}, <{len(lanes)} x i32> <{mask}>")

    def extract(self, x: V, lane: int | V) -> V:
        if self.as_integers(x.elem):
            return self.bitcast(self.extract(self.bitcast(x, vec(I16, x.lanes)), lane), x.elem)
        return self.emit(x.elem, f"extractelement {x}, {self.i64(lane)}", x)

    def insert(self, x: V, value: V, lane: int | V) -> V:
        if x.elem in HALVES:
            bits = self.insert(self.bitcast(x, vec(I16, x.lanes)), self.bitcast(value, I16), lane)
            return self.bitcast(bits, x.ty)
        return self.emit(x.ty, f"insertelement {x}, {value}, {self.i64(lane)}", x, value)

    def intrinsic(self, name: str, returns: str, *args: V) -> V:
        """Call `llvm.<name>`, declaring it; the full name has its type suffix."""
        self.module.declared[name] = f"declare {returns} @llvm.{name}({', '.join(a.ty for a in args)})"
        text = f"call {returns} @llvm.{name}({', '.join(map(str, args))})"
        if returns == VOID:
            self.line(text)
            return V(self, VOID, "")
        return self.emit(returns, text)

    def _typed(self, name: str, x: V, *more: Any) -> V:
        suffix = {F16: "f16", BF16: "bf16", F32: "f32", F64: "f64"}.get(x.elem, x.elem)
        full = f"{name}.{f'v{x.lanes}' if x.lanes > 1 else ''}{suffix}"
        return self.intrinsic(full, x.ty, x, *(self.like(m, x) for m in more))

    def fma(self, a: V, b: Any, c: Any) -> V:
        """a·b + c, rounded once where the machine can do that in one instruction."""
        b = self.like(b, a)
        a = self.like(a, b)
        if not a.is_float:
            return a * b + c
        return self._typed("fmuladd", a, b, c)

    def minimum(self, a: V, b: Any) -> V:
        """The smaller; NaN where either is NaN."""
        if a.is_float:
            b = self.like(b, a)
            a = self.like(a, b)
            least = self.select(self.compare("lt", a, b), a, b)
            return self.select(self.compare("ne", a, a), a, least)
        return self._typed("smin", a, b)

    def maximum(self, a: V, b: Any) -> V:
        """The larger; NaN where either is NaN."""
        if a.is_float:
            b = self.like(b, a)
            a = self.like(a, b)
            most = self.select(self.compare("gt", a, b), a, b)
            return self.select(self.compare("ne", a, a), a, most)
        return self._typed("smax", a, b)

    def fast_max(self, a: V, b: Any) -> V:
        """The larger, one instruction: `b` where either is NaN."""
        b = self.like(b, a)
        return self.select(self.compare("gt", a, b), a, b)

    def fast_min(self, a: V, b: Any) -> V:
        """The smaller, one instruction: `b` where either is NaN."""
        b = self.like(b, a)
        return self.select(self.compare("lt", a, b), a, b)

    def unary(self, name: str, x: V) -> V:
        """`fabs`, `sqrt`, `floor`, `ceil`, `trunc`, `rint`, `roundeven`, `ctpop`, ... of LLVM."""
        return self._typed(name, x)

    def reduce(self, x: V, combine: Callable[[V, V], V]) -> V:
        """One scalar out of a vector's lanes, halves first: the same order on every machine."""
        lanes = x.lanes
        while lanes > 1:
            lanes //= 2
            low = self.shuffle(x, None, range(lanes))
            high = self.shuffle(x, None, range(lanes, 2 * lanes))
            if lanes == 1:
                return combine(self.extract(x, 0), self.extract(x, 1))
            x = combine(low, high)
        return x

    # memory

    def gep(self, base: V, index: int | V, elem: str) -> V:
        """The address `index` elements of type `elem` behind `base`."""
        if isinstance(index, int) and index == 0:
            return base
        return self.emit(PTR, f"getelementptr {elem}, {base}, {self.i64(index)}", base)

    def load(self, ty: str, base: V, index: int | V = 0, align: int = 0) -> V:
        """A `ty` from `index` elements behind `base`; aligned as one element unless told otherwise."""
        elem = elem_of(ty)
        at = self.gep(base, index, I8 if elem == I1 else elem)
        if elem == I1:
            bytes_ = self.emit(vec(I8, lanes_of(ty)), f"load {vec(I8, lanes_of(ty))}, {at}, align 1")
            return bytes_.ne(0)
        if self.as_integers(elem) and lanes_of(ty) > 1:
            return self.bitcast(self.load(vec(I16, lanes_of(ty)), base, index, align), ty)
        return self.emit(ty, f"load {ty}, {at}, align {align or BYTES[elem]}")

    def store(self, x: V, base: V, index: int | V = 0, align: int = 0) -> None:
        if x.elem == I1:
            x = self.cast(x, I8)
        if self.as_integers(x.elem) and x.lanes > 1:
            x = self.bitcast(x, vec(I16, x.lanes))
        at = self.gep(base, index, x.elem)
        self.line(f"store {x}, {at}, align {align or BYTES[x.elem]}")

    def mask(self, lanes: int, count: V) -> V:
        """The first `count` lanes (an i64) true."""
        if count.ref.isdigit():
            return self.const(vec(I1, lanes), [i < int(count.ref) for i in range(lanes)])
        steps = self.const(vec(I32, lanes), list(range(lanes)))
        return self.compare("lt", steps, self.splat(self.cast(count, I32), lanes))

    def alloca(self, ty: str, count: int = 1, align: int = 64) -> V:
        """Stack memory for `count` of `ty`."""
        ref = self.fresh()
        self.entry.append(f"  {ref} = alloca {ty}, i64 {count}, align {align}")
        return V(self, PTR, ref)

    def prefetch(self, base: V, index: int | V = 0, elem: str = I8, level: int = 3,
                 write: bool = False) -> None:
        """`level` 3 fetches into the nearest cache, 2 into the next."""
        at = self.gep(base, index, elem)
        self.module.declared["prefetch.p0"] = "declare void @llvm.prefetch.p0(ptr, i32, i32, i32)"
        self.line(f"call void @llvm.prefetch.p0({at}, i32 {int(write)}, i32 {level}, i32 1)")

    def table(self, ty: str, values: Sequence[Any]) -> V:
        """A constant array in the module."""
        body = ", ".join(f"{ty} {_literal(ty, x)}" for x in values)
        name = f"@t{len(self.module.tables)}"
        text = f"[{len(values)} x {ty}] [{body}]"
        for known, line in self.module.tables.items():
            if line.endswith(f"constant {text}, align 64"):
                return V(self, PTR, known)
        self.module.tables[name] = f"{name} = internal unnamed_addr constant {text}, align 64"
        return V(self, PTR, name)

    # control

    def fence(self) -> None:
        """What stands before is not moved behind, nor the other way (an empty asm)."""
        self.line('call void asm sideeffect "", "~{memory}"()')

    def opaque(self, x: V) -> V:
        """An integer that nothing is known of: addresses are computed from it as they are written, instead of
        each being carried through a loop (an empty asm)."""
        return self.emit(x.ty, f'call {x.ty} asm "", "=r,0"({x})', x)

    def block(self) -> str:
        self._count += 1
        return f"b{self._count}"

    def open(self, label: str) -> None:
        self.lines.append(f"{label}:")
        self._block = label

    def jump(self, label: str) -> None:
        self.line(f"br label %{label}")

    def branch(self, cond: V, yes: str, no: str) -> None:
        self.line(f"br {cond}, label %{yes}, label %{no}")

    def _carried(self, x: V) -> V:
        """What a loop that begins with `x` carries."""
        return V(self, x.ty, self.fresh(), Origin(others=[x.origin]) if x.ty in (PTR, I64) else None)

    def loop(self, begin: int | V, end: int | V, step: int | V, carried: Sequence[V],
             body: Callable[..., Any]) -> list[V]:
        """`for i in range(begin, end, step): carried = body(i, *carried)`; gives what is carried at the end.

        `body` gets `i` as an i64 and answers with the new carried values: a value, a sequence, or None for
        none.
        """
        first, last, by = self.i64(begin), self.i64(end), self.i64(step)
        head, inside, after = self.block(), self.block(), self.block()
        before = self._block
        self.jump(head)
        self.open(head)
        at = len(self.lines)
        i = V(self, I64, self.fresh())
        phis = [self._carried(c) for c in carried]
        self.branch(self.compare("lt", i, last), inside, after)
        self.open(inside)
        following = body(i, *phis)
        given = [] if following is None else [following] if isinstance(following, V) else list(following)
        if len(given) != len(phis):
            raise ValueError(f"the body carries {len(given)} values, the loop {len(phis)}")
        _followed(phis, given)
        advanced = i + by
        tail = self._block
        self.jump(head)
        self.lines[at:at] = [
            f"  {p.ref} = phi {p.ty} [ {a.ref}, %{before} ], [ {b.ref}, %{tail} ]"
            for p, a, b in zip([i, *phis], [first, *carried], [advanced, *given], strict=True)]
        self.open(after)
        return phis

    def repeat(self, carried: Sequence[V], body: Callable[..., tuple[V, Sequence[V]]]) -> list[V]:
        """`while True: go_on, carried = body(*carried)` until `go_on` is false; gives what is then carried.
        """
        head, after = self.block(), self.block()
        before = self._block
        self.jump(head)
        self.open(head)
        at = len(self.lines)
        phis = [self._carried(c) for c in carried]
        go_on, given = body(*phis)
        _followed(phis, given)
        tail = self._block
        self.branch(go_on, head, after)
        self.lines[at:at] = [f"  {p.ref} = phi {p.ty} [ {a.ref}, %{before} ], [ {b.ref}, %{tail} ]"
                             for p, a, b in zip(phis, carried, given, strict=True)]
        self.open(after)
        return list(given)

    def when(self, cond: V, then: Callable[[], Any], other: Callable[[], Any] | None = None) -> list[V]:
        """`then() if cond else other()`; both give the same number of values, or None."""
        yes, no, after = self.block(), self.block(), self.block()
        self.branch(cond, yes, no)
        ends: list[tuple[str, list[V]]] = []
        for label, side in ((yes, then), (no, other)):
            self.open(label)
            result = side() if side is not None else None
            ends.append((self._block, [] if result is None else
                         [result] if isinstance(result, V) else list(result)))
            self.jump(after)
        self.open(after)
        (b0, r0), (b1, r1) = ends
        return [self.emit(x.ty, f"phi {x.ty} [ {x.ref}, %{b0} ], [ {y.ref}, %{b1} ]", x, y)
                for x, y in zip(r0, r1, strict=True)]

    def call(self, callee: Function | V, args: Sequence[V], returns: str = VOID) -> V:
        """Call a function of the module, or one at an address."""
        if isinstance(callee, Function):
            returns, target = callee.returns, f"@{callee.name}"
        else:
            target = callee.ref
        text = f"call {returns} {target}({', '.join(map(str, args))})"
        if returns == VOID:
            self.line(text)
            return V(self, VOID, "")
        return self.emit(returns, text)

    def ret(self, value: V | None = None) -> None:
        self.line("ret void" if value is None else f"ret {value}")


def _followed(phis: Sequence[V], given: Sequence[V]) -> None:
    """What a loop carries may come of its body."""
    for phi, x in zip(phis, given, strict=True):
        if phi.origin is not None and x.origin is not phi.origin:
            phi.origin.others.append(x.origin)


def suffix(elem: str) -> str:
    return {F16: "f16", BF16: "bf16", F32: "f32", F64: "f64"}.get(elem, elem)
