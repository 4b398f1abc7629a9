"""Functions for the shapes of instructions: a `Shape` goes in, an LLVM module with one function comes out.

The function reads its operands' places from the record, works through the lanes that EXEC enables, and leaves
what it found in the registers. A lane reads all of its operands before it writes.
"""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import Any

from llvmlite import ir

from . import instructions as ins
from . import pseudocode as p
from . import texts
from .instructions import Lanes, Memory, Operand, Part, Shape
from .semantics import I1, I32, I64, Lane, Mask, Unsupported, Value

_POINTER = I64.as_pointer()
_REACH = ir.FunctionType(I64, [I64, I64, I64, I64])


def module_for(shape: Shape, name: str) -> ir.Module:
    """The module whose function `name` carries out instructions of this shape. Raises Unsupported."""
    module = ir.Module(name)
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [_POINTER, _POINTER]), name)
    _Frame(module, function, shape).build()
    return module


def _i64(value: int) -> ir.Constant:
    return ir.Constant(I64, value)


class _Frame:
    def __init__(self, module: ir.Module, function: ir.Function, shape: Shape) -> None:
        self.module, self.shape = module, shape
        self.context, self.record = function.args
        self.b = ir.IRBuilder(function.append_basic_block("entry"))
        self.width = shape.width
        self.words: dict[int, Any] = {}

    # words and registers

    def state(self, which: int) -> Any:
        return self.b.load(self.b.gep(self.context, [_i64(which)]))

    def set_state(self, which: int, value: Any) -> None:
        self.b.store(value, self.b.gep(self.context, [_i64(which)]))

    def word(self, at: int) -> Any:
        """A word of the record; loaded once, in the function's first block."""
        if at not in self.words:
            with self.b.goto_entry_block():
                self.words[at] = self.b.load(self.b.gep(self.record, [_i64(at)]))
        return self.words[at]

    def base(self, which: int) -> Any:
        if -which - 1 not in self.words:
            with self.b.goto_entry_block():
                self.words[-which - 1] = self.b.inttoptr(self.state(which), I32.as_pointer())
        return self.words[-which - 1]

    def scalar(self, index: Any, more: int = 0) -> Any:
        return self.b.gep(self.base(ins.SGPRS), [self.b.add(index, _i64(more)) if more else index])

    def vector(self, index: Any, lane: Any, more: int = 0, accumulator: bool = False) -> Any:
        row = self.b.mul(self.b.add(index, _i64(more)), _i64(self.width))
        return self.b.gep(self.base(ins.ACCS if accumulator else ins.VGPRS), [self.b.add(row, lane)])

    def mask(self, index: Any) -> Any:
        """A mask of lanes from a scalar register, or a pair of them."""
        low = self.b.zext(self.b.load(self.scalar(index)), I64)
        if self.width == 32:
            return low
        high = self.b.zext(self.b.load(self.scalar(index, 1)), I64)
        return self.b.or_(low, self.b.shl(high, _i64(32)))

    def set_mask(self, index: Any, value: Any) -> None:
        self.b.store(self.b.trunc(value, I32), self.scalar(index))
        if self.width == 64:
            self.b.store(self.b.trunc(self.b.lshr(value, _i64(32)), I32), self.scalar(index, 1))

    def gathered(self, parts: list[Any], bits: int) -> Value:
        """Registers, the lowest first, as one run of bits."""
        whole = ir.IntType(max(bits, 32 * len(parts)))
        found: Any = ir.Constant(whole, 0)
        for i, each in enumerate(parts):
            wide = self.b.zext(each, whole) if whole.width > 32 else each
            found = self.b.or_(found, self.b.shl(wide, ir.Constant(whole, 32 * i)))
        return Value(self.b.trunc(found, ir.IntType(bits)) if bits < whole.width else found, "u", bits)

    def scattered(self, value: Any, places: list[Any]) -> None:
        wide = value.type.width
        for i, at in enumerate(places):
            part = self.b.lshr(value, ir.Constant(value.type, 32 * i)) if i else value
            if wide > 32:
                part = self.b.trunc(part, I32)
            self.b.store(part, at)

    # a lane's operands

    def read(self, lane: Lane, it: Operand, number: Any, staged: Any = None) -> Value:
        b, count = self.b, max(1, it.bits // 32)
        index = self.word(it.word)
        if it.kind == "c":
            x = Value(lane.resized(index, max(it.bits, 32)), "u", max(it.bits, 32))
        elif it.kind == "s":
            x = self.gathered([b.load(self.scalar(index, i)) for i in range(count)], 32 * count)
        elif staged is not None:
            x = self.gathered([b.load(b.gep(staged, [b.add(number, _i64(i * self.width))]))
                               for i in range(count)], 32 * count)
        else:
            x = self.gathered([b.load(self.vector(index, number, i)) for i in range(count)], 32 * count)
        return self.modified(lane, it, x)

    def modified(self, lane: Lane, it: Operand, x: Value) -> Value:
        b = self.b
        if it.select is not None:
            x = _selected(lane, x, *it.select)
        if it.mixed is not None:
            return self._mixed(lane, it, x)
        if it.pick is not None:
            return _picked(lane, x, it.pick)
        if it.bits == 16:
            raw = b.lshr(x.ir, ir.Constant(I32, 16)) if it.half else x.ir
            x = Value(lane.resized(raw, 16), "u", 16)
        return _signs(lane, it, x)

    def _mixed(self, lane: Lane, it: Operand, x: Value) -> Value:
        assert it.mixed is not None
        if not it.mixed & 2:
            return _signs(lane, it, x)
        raw = self.b.lshr(x.ir, ir.Constant(I32, 16)) if it.mixed & 1 else x.ir
        wide = lane.convert(lane.viewed(Value(raw, "u", 32), "f", 16), "f", 32)
        return _signs(lane, it, Value(lane.raw(wide), "u", 32))

    # functions

    def build(self) -> None:
        what = self.shape.what
        if what == "scalar":
            self._scalar()
        elif what == "lanes":
            self._lanes()
        elif what == "access":
            self._access()
        else:
            self._program(what)
        self.b.ret_void()

    def _program(self, name: str) -> None:
        b = self.b
        if name == "S_NOP":
            return
        if name in ("S_ENDPGM", "S_BARRIER", "S_BARRIER_WAIT"):
            self.set_state(ins.STOP, _i64(ins.DONE if name == "S_ENDPGM" else ins.BARRIER))
            return
        flag = b.icmp_unsigned("!=", b.load(self.scalar(_i64(ins.SCC))), ir.Constant(I32, 0))
        tests = {"S_BRANCH": lambda: ir.Constant(I1, 1), "S_CBRANCH_SCC1": lambda: flag,
                 "S_CBRANCH_SCC0": lambda: b.not_(flag),
                 **{f"S_CBRANCH_{n}{z}": lambda m=m, z=z: b.icmp_unsigned(
                     "==" if z == "Z" else "!=", self.mask(_i64(m)), _i64(0))
                    for n, m in (("EXEC", ins.EXEC), ("VCC", ins.VCC)) for z in ("Z", "NZ")}}
        if name not in tests:
            raise Unsupported(name)
        with b.if_then(tests[name]()):
            self.set_state(ins.PC, self.word(2))

    def _scalar(self) -> None:
        part, b = self.shape.parts[0], self.b
        lane = self._lane()
        flag = b.load(self.scalar(_i64(ins.SCC)))
        lane.define("SCC", Value(b.trunc(flag, I1), "u", 1))
        lane.define("EXEC", Value(self.mask(_i64(ins.EXEC)), "u", 64))
        lane.define("VCC", Value(self.mask(_i64(ins.VCC)), "u", 64))
        here = b.add(self.state(ins.CODE), b.mul(self.state(ins.PC), _i64(4)))
        lane.define("PC", Value(b.sub(here, _i64(4)), "u", 64))
        for name, it in part.sources:
            lane.define(name, self.read(lane, it, _i64(0)))
        if part.target:
            index = self.word(part.word)
            count = max(1, part.bits // 32)
            places = [self.scalar(index, i) for i in range(count)]
            lane.define("D0", self.gathered([b.load(at) for at in places], max(part.bits, 32)))
        tree = p.read(part.text)
        lane.run(tree)
        written = _written(tree)
        if "SCC" in written:
            self.b.store(self.b.zext(self.b.load(lane.variables["SCC"].at), I32), self.scalar(_i64(ins.SCC)))
        for name, index in (("EXEC", ins.EXEC), ("VCC", ins.VCC)):
            if name in written:
                self.set_mask(_i64(index), self.b.load(lane.variables[name].at))
        if "PC" in written:
            at = self.b.sub(self.b.load(lane.variables["PC"].at), self.state(ins.CODE))
            self.set_state(ins.PC, self.b.lshr(at, _i64(2)))
        if part.target:
            self.scattered(self.b.load(lane.variables["D0"].at), places)

    def _lane(self, memory: Any = None) -> Lane:
        family = self.shape.family
        return Lane(self.b, self.module, memory=memory, look=lambda name: texts.text(family, name))

    @contextmanager
    def each_lane(self, enabled: Any) -> Any:
        """The blocks of a loop over the lanes of a mask; gives the lane's number as i64."""
        b = self.b
        with b.goto_entry_block():
            counter = b.alloca(I64)
        b.store(_i64(0), counter)
        head, body, after, end = (b.append_basic_block(n) for n in ("lane", "active", "next", "done"))
        b.branch(head)
        b.position_at_end(head)
        number = b.load(counter)
        on = b.icmp_unsigned("!=", b.and_(b.lshr(enabled, number), _i64(1)), _i64(0))
        b.cbranch(on, body, after)
        b.position_at_end(body)
        yield number
        b.branch(after)
        b.position_at_end(after)
        b.store(b.add(b.load(counter), _i64(1)), counter)
        b.cbranch(b.icmp_unsigned("<", b.load(counter), _i64(self.width)), head, end)
        b.position_at_end(end)

    def _lanes(self) -> None:
        b, shape = self.b, self.shape
        trees = [p.read(part.text) for part in shape.parts]
        enabled = self.mask(_i64(ins.EXEC))
        masks = [self._masks(part, tree) for part, tree in zip(shape.parts, trees, strict=True)]
        staged = self._staged(shape.parts[0]) if shape.lanes is not None else None
        active = enabled
        if shape.lanes is not None:
            active = b.and_(enabled, _i64(shape.lanes.enabled))
        with self.each_lane(active) as number:
            if shape.lanes is not None:
                self._permuted(shape.parts[0], trees[0], masks[0], shape.lanes, staged, enabled, number)
            else:
                made = [self._prepared(part, found, number)
                        for part, found in zip(shape.parts, masks, strict=True)]
                for lane, tree in zip(made, trees, strict=True):
                    lane.run(tree)
                for lane, part in zip(made, shape.parts, strict=True):
                    self._finish(lane, part, number)
        for found in masks:
            for index, mask in found.values():
                if index is not None:
                    self.set_mask(index, b.load(mask.new))

    def _masks(self, part: Part, tree: Any) -> dict[str, tuple[Any, Mask]]:
        """The masks a text names: where each goes (None where it is only read), and what collects it."""
        written = _written(tree)
        found: dict[str, tuple[Any, Mask]] = {}
        named = {"VCC": (self.word(part.carry_in) if part.carry_in else _i64(ins.VCC),
                         self.word(part.carry_out) if part.carry_out else _i64(ins.VCC)),
                 "EXEC": (_i64(ins.EXEC), _i64(ins.EXEC))}
        if part.target == "m":
            named["D0"] = (self.word(part.word),) * 2
        for name, (source, target) in named.items():
            with self.b.goto_entry_block():
                new = self.b.alloca(I64)
            self.b.store(_i64(0), new)
            found[name] = (target if name in written else None, Mask(self.mask(source), new, None))
        return found

    def _prepared(self, part: Part, masks: dict[str, tuple[Any, Mask]], number: Any,
                  staged: Any = None, place: Any = None) -> Lane:
        """A lane with its operands read; `staged` and `place`: where its first one comes from."""
        lane = self._lane()
        for name, (_, mask) in masks.items():
            lane.masks[name] = Mask(mask.old, mask.new, number)
        lane.constants["laneId"] = Value(self.b.trunc(number, I32), "u", 32)
        for name, it in part.sources:
            first = staged is not None and name == "S0"
            lane.define(name, self.read(lane, it, place if first else number, staged if first else None))
        if part.carry_out:
            lane.define("D1", lane.integer(0, 1))
        if part.target == "v":
            lane.define("D0", self._before(part, number))
        return lane

    def _before(self, part: Part, number: Any) -> Value:
        """What the target held: an operation may read it, or write a part of it."""
        index, count = self.word(part.word), max(1, part.bits // 32)
        x = self.gathered([self.b.load(self.vector(index, number, i)) for i in range(count)], 32 * count)
        if part.bits == 16 and part.half:
            return Value(self.b.lshr(x.ir, ir.Constant(I32, 16)), "u", 32)
        return x

    def _finish(self, lane: Lane, part: Part, number: Any) -> None:
        b = self.b
        if part.target != "v":
            return
        index, count = self.word(part.word), max(1, part.bits // 32)
        places = [self.vector(index, number, i) for i in range(count)]
        found = b.load(lane.variables["D0"].at)
        if part.clamp or part.scale:
            found = self._scaled(lane, part, found)
        if part.place is not None:
            found = _placed(lane, found, b.load(places[0]), *part.place)
        elif part.bits == 16:
            found = self._half(part, found, b.load(places[0]))
        self.scattered(found, places)

    def _half(self, part: Part, found: Any, old: Any) -> Any:
        """A result of 16 bits in its register: the other half is kept, or cleared where the family does
        so."""
        b = self.b
        if "31 : 16" in part.text:
            return found
        low = b.and_(found, ir.Constant(I32, 0xFFFF))
        if part.half:
            return b.or_(b.and_(old, ir.Constant(I32, 0xFFFF)), b.shl(low, ir.Constant(I32, 16)))
        if not part.keep:
            return low
        return b.or_(b.and_(old, ir.Constant(I32, 0xFFFF0000)), low)

    def _scaled(self, lane: Lane, part: Part, found: Any) -> Any:
        b, bits = self.b, part.bits
        x = lane.convert(lane.viewed(Value(found, "u", found.type.width), "f", bits), "f", max(bits, 32))
        if part.scale:
            x = lane._float("*", x, lane.number({1: 2.0, 2: 4.0, 3: 0.5}[part.scale], x.bits))
        if part.clamp:
            zero, one = (lane.number(v, x.bits).ir for v in (0.0, 1.0))
            above = b.select(b.fcmp_ordered(">", x.ir, zero), x.ir, zero)
            x = Value(b.select(b.fcmp_ordered("<", above, one), above, one), "f", x.bits)
        raw = lane.raw(lane.convert(x, "f", bits))
        return lane.resized(raw, found.type.width)

    # lanes that read each other

    def _staged(self, part: Part) -> Any:
        """A copy of the first operand's registers, so that no lane reads what another has written."""
        it = dict(part.sources)["S0"]
        count = max(1, it.bits // 32)
        with self.b.goto_entry_block():
            space = self.b.alloca(I32, size=_i64(count * self.width))
        with self.each_lane(_i64((1 << self.width) - 1)) as number:
            for i in range(count):
                at = self.b.gep(space, [self.b.add(number, _i64(i * self.width))])
                self.b.store(self.b.load(self.vector(self.word(it.word), number, i)), at)
        return space

    def _permuted(self, part: Part, tree: Any, masks: dict[str, tuple[Any, Mask]], lanes: Lanes, staged: Any,
                  enabled: Any, number: Any) -> None:
        b = self.b
        table = ir.GlobalVariable(self.module, ir.ArrayType(I64, self.width), "sources")
        table.global_constant, table.linkage = True, "internal"
        table.initializer = ir.Constant(table.value_type, [_i64(s) for s in lanes.sources])
        source = b.load(b.gep(table, [_i64(0), number]))
        valid = b.icmp_signed(">=", source, _i64(0))
        place = b.select(valid, source, _i64(0))
        if not lanes.inactive:
            valid = b.and_(valid, b.trunc(b.lshr(enabled, place), I1))
        zeros = b.append_basic_block("zeros")
        work, skip = b.append_basic_block("work"), b.append_basic_block("skip")
        first = self.shape.parts[0]
        with b.goto_entry_block():
            nothing = b.alloca(I32, size=_i64(4 * self.width))
            for i in range(4):
                b.store(ir.Constant(I32, 0), b.gep(nothing, [_i64(i * self.width)]))
            where, which = b.alloca(I32.as_pointer()), b.alloca(I64)
        b.store(staged, where)
        b.store(place, which)
        b.cbranch(valid, work, zeros if lanes.zero else skip)
        b.position_at_end(zeros)
        b.store(nothing, where)
        b.store(_i64(0), which)
        b.branch(work)
        b.position_at_end(work)
        lane = self._prepared(first, masks, number, b.load(where), b.load(which))
        lane.run(tree)
        self._finish(lane, first, number)
        b.branch(skip)
        b.position_at_end(skip)

    # memory

    def _access(self) -> None:
        shape, it = self.shape, self.shape.memory
        assert it is not None
        part = shape.parts[0]
        tree = p.read(part.text)
        if it.space == "scalar":
            lane = self._lane(self._reacher(it))
            lane.define("ADDR", Value(self._scalar_address(it), "u", 64))
            self._unnamed(lane)
            places = [self.scalar(self.word(it.result), i) for i in range(max(1, part.bits // 32))]
            lane.define("SDATA", lane.integer(0, max(part.bits, 32)))
            lane.run(tree)
            self.scattered(self.b.load(lane.variables["SDATA"].at), places)
            return
        with self.each_lane(self.mask(_i64(ins.EXEC))) as number:
            self._lane_access(it, part, tree, number)

    def _scalar_address(self, it: Memory) -> Any:
        b = self.b
        address = b.add(self.mask_pair(self.word(it.scalar)), self.word(it.offset))
        if it.extra:
            address = b.add(address, b.zext(b.load(self.scalar(self.word(it.extra))), I64))
        return b.and_(address, _i64(~3)) if ".b32" in self.shape.parts[0].text else address

    def _unnamed(self, lane: Lane) -> None:
        """The names by which texts ask for an address that is in ADDR already."""
        for name in ("VADDR", "SADDR", "SBASE", "SRSRC", "SOFFSET", "OFFSET", "vgpr_a", "sgpr_o", "sgpr_base",
                     "offset", "v_addr", "s_saddr", "v_addr_off", "s_saddr_off", "flat_scratch"):
            lane.constants.setdefault(name, lane.integer(0, 64))

    def mask_pair(self, index: Any) -> Any:
        low = self.b.zext(self.b.load(self.scalar(index)), I64)
        return self.b.or_(low, self.b.shl(self.b.zext(self.b.load(self.scalar(index, 1)), I64), _i64(32)))

    def _lane_access(self, it: Memory, part: Part, tree: Any, number: Any) -> None:
        b = self.b
        address, limit = self._address(it, part, number)
        lane = self._lane(self._reacher(it, limit))
        for name in ("ADDR", "ADDR_BASE"):
            lane.define(name, Value(address, "u", 64))
        if it.space == "lds":
            for name, at in (("OFFSET", it.offset), ("OFFSET0", it.offsets[0]), ("OFFSET1", it.offsets[1])):
                lane.define(name, Value(self.word(at), "u", 64))
        self._unnamed(lane)
        size = _touched(part.text)
        for name, at in (("DATA", it.data), ("DATA2", it.data2)):
            if at:
                found = [b.load(self.vector(self.word(at), number, i, it.accumulator)) for i in range(size)]
                lane.define(name, self.gathered(found, 32 * size))
        result = self.word(it.result) if it.result else None
        old = [] if not it.result else [b.load(self.vector(result, number, i, it.accumulator))
                                        for i in range(size)]
        target = "VDATA" if "VDATA" in part.text else "RETURN_DATA"
        store = target == "VDATA" and not it.result
        if store:
            lane.variables["VDATA"] = lane.variables["DATA"]
        elif old:
            lane.define(target, self.gathered(old, 32 * size))
        else:
            lane.define(target, lane.integer(0, 32 * size))
        lane.run(tree)
        if it.result:
            places = [self.vector(result, number, i, it.accumulator) for i in range(size)]
            self.scattered(b.load(lane.variables[target].at), places)

    def _address(self, it: Memory, part: Part, number: Any) -> tuple[Any, Any]:
        """Where a lane's access begins; for buffers also where they begin and end."""
        b = self.b
        if it.space == "buffer":
            return self._buffer_address(it, number)
        if it.space == "lds":
            at = b.zext(b.load(self.vector(self.word(it.vector), number)), I64)
            return (at if "OFFSET" in part.text else b.add(at, self.word(it.offset))), None
        address: Any = self.word(it.offset)
        if it.vector and it.vector_bits == 64:
            low = b.zext(b.load(self.vector(self.word(it.vector), number)), I64)
            high = b.zext(b.load(self.vector(self.word(it.vector), number, 1)), I64)
            address = b.add(address, b.or_(low, b.shl(high, _i64(32))))
        elif it.vector:
            address = b.add(address, b.zext(b.load(self.vector(self.word(it.vector), number)), I64))
        if it.scalar and it.scalar_bits == 64:
            address = b.add(address, self.mask_pair(self.word(it.scalar)))
        elif it.scalar:
            address = b.add(address, b.zext(b.load(self.scalar(self.word(it.scalar))), I64))
        if it.space == "scratch":
            limit = b.mul(number, self.state(ins.SCRATCH_BYTES))
            return address, limit
        return address, None

    def _buffer_address(self, it: Memory, number: Any) -> tuple[Any, Any]:
        b = self.b
        index = self.word(it.resource)
        words = [b.zext(b.load(self.scalar(index, i)), I64) for i in range(3)]
        base = b.or_(words[0], b.shl(b.and_(words[1], _i64(0xFFFF)), _i64(32)))
        offset: Any = self.word(it.offset)
        if it.vector:
            offset = b.add(offset, b.zext(b.load(self.vector(self.word(it.vector), number)), I64))
        if it.extra > 0:
            offset = b.add(offset, b.zext(b.load(self.scalar(self.word(it.extra))), I64))
        elif it.extra:
            offset = b.add(offset, self.word(-it.extra))
        if it.index:
            stride = b.and_(b.lshr(words[1], _i64(16)), _i64(0x3FFF))
            element = b.zext(b.load(self.vector(self.word(it.index), number)), I64)
            offset = b.add(offset, b.mul(element, stride))
        return b.add(base, offset), (base, words[2])

    def _reacher(self, it: Memory, limit: Any = None) -> Any:
        """The function that says where an access may go: its own bytes, or a place that harms nobody, whose
        upper half alone is written, so that what is read past the end of a buffer is 0."""
        def reach(address: Any, bits: int, store: bool) -> Any:
            b, size = self.b, _i64(bits // 8)
            if it.space == "lds":
                within = b.icmp_unsigned("<=", b.add(b.and_(address, _i64(0xFFFFFFFF)), size),
                                         self.state(ins.LDS_BYTES))
                at = b.add(b.and_(address, _i64(0xFFFFFFFF)), self.state(ins.LDS))
                return self._checked(within, at, address, bits)
            if it.space == "scratch":
                within = b.icmp_unsigned("<=", b.add(address, size), self.state(ins.SCRATCH_BYTES))
                at = b.add(b.add(address, limit), self.state(ins.SCRATCH))
                return self._checked(within, at, address, bits)
            sink = self.state(ins.SINK)
            if it.space == "buffer":
                base, count = limit
                inside = b.icmp_unsigned("<=", b.add(b.sub(address, base), size), count)
                address = b.select(inside, address, b.add(sink, _i64(ins.SINK_BYTES // 2 * store)))
            call = b.inttoptr(self.state(ins.REACH), _REACH.as_pointer())
            context = b.ptrtoint(self.context, I64)
            at = b.call(call, [context, address, size, _i64(int(store))])
            return b.inttoptr(at, ir.IntType(8).as_pointer())
        return reach

    def _checked(self, within: Any, at: Any, address: Any, bits: int) -> Any:
        b = self.b
        with b.if_then(b.not_(within)):
            self.set_state(ins.STOP, _i64(ins.FAULTED))
            self.set_state(ins.FAULT, address)
            self.set_state(ins.FAULT_BYTES, _i64(bits // 8))
        return b.inttoptr(b.select(within, at, self.state(ins.SINK)), ir.IntType(8).as_pointer())


def _written(tree: Any) -> set[str]:
    """The names a text assigns to."""
    found: set[str] = set()

    def walk(it: Any) -> None:
        if isinstance(it, p.Assign):
            for target in it.targets:
                for each in target.parts if isinstance(target, p.Concat) else (target,):
                    while hasattr(each, "of"):
                        each = each.of
                    found.add(each.name)
        elif isinstance(it, p.If):
            for _, body in it.cases:
                walk(body)
            walk(it.otherwise)
        elif isinstance(it, p.For):
            walk(it.body)
        elif isinstance(it, tuple):
            for each in it:
                walk(each)

    walk(tree)
    return found


def _touched(text: str) -> int:
    """How many registers a text's data has."""
    ends = [int(n) for n in re.findall(r"DATA2?\[(\d+) :", text)]
    wide = [int(n) for n in re.findall(r"DATA2?\.[a-z]+(\d+)", text)]
    return max([1, *((n + 1 + 31) // 32 for n in ends), *(n // 32 for n in wide)])


def _signs(lane: Lane, it: Operand, x: Value) -> Value:
    b, top = lane.b, 1 << x.bits - 1
    raw = x.ir
    if it.absolute:
        raw = b.and_(raw, ir.Constant(raw.type, top - 1))
    if it.negative:
        raw = b.xor(raw, ir.Constant(raw.type, top))
    return Value(raw, "u", x.bits)


def _picked(lane: Lane, x: Value, pick: tuple[int, int, int, int]) -> Value:
    """A packed operand: each of its halves from either half of its registers, with its sign."""
    b, half = lane.b, x.bits // 2
    parts = []
    for high, negative in ((pick[0], pick[2]), (pick[1], pick[3])):
        raw = lane.resized(b.lshr(x.ir, ir.Constant(x.ir.type, half)) if high else x.ir, half)
        if negative:
            raw = b.xor(raw, ir.Constant(raw.type, 1 << half - 1))
        parts.append(lane.resized(raw, x.bits))
    return Value(b.or_(parts[0], b.shl(parts[1], ir.Constant(x.ir.type, half))), "u", x.bits)


def _selected(lane: Lane, x: Value, select: int, signed: int) -> Value:
    """A byte (0 to 3) or a word (4, 5) of a register; 6 is all of it."""
    if select == 6:
        return x
    bits, at = (8, 8 * select) if select < 4 else (16, 16 * (select - 4))
    raw = lane.resized(lane.b.lshr(x.ir, ir.Constant(I32, at)), bits)
    return Value(lane.resized(raw, 32, bool(signed)), "u", 32)


def _placed(lane: Lane, found: Any, old: Any, select: int, unused: int) -> Any:
    """A result in the byte or word of its register that `select` names. `unused`: what becomes of the rest: 0
    cleared, 1 the result's sign, 2 kept."""
    b = lane.b
    if select == 6:
        return found
    bits, at = (8, 8 * select) if select < 4 else (16, 16 * (select - 4))
    mask = (1 << bits) - 1 << at
    part = b.and_(b.shl(found, ir.Constant(I32, at)), ir.Constant(I32, mask))
    if unused == 2:
        return b.or_(b.and_(old, ir.Constant(I32, ~mask & 0xFFFFFFFF)), part)
    if unused == 1:
        raise Unsupported("a sign extended into the rest of a register")
    return part
