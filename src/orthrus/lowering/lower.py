"""A part of a graph, for concrete shapes, to a list of steps: kernels with their arguments, in order.

Nodes are walked once. An elementwise node computes nothing yet: it becomes a `Lazy`, a tree over tensors and
over the result of at most one kernel that has not run either (`Source`). Whoever needs the elements in memory
calls `tensor` or `into`; only then the steps are written, the tree going into the kernel that can apply it
before it stores. What follows from shapes alone is computed right here (`known`) and costs a run nothing.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from .. import knobs
from ..codegen.machines.machine import Machine
from ..codegen.write.expr import BYTES, Expr, ordered
from ..codegen.write.trace import trace
from ..ir import No, Node, Value, in_memory
from ..limits import bounded, current
from ..memory import settled
from ..ops.tensor.movement import VIEWS
from .contents import undecided
from .interpret import by_definition
from .numbers import with_numbers
from .pending import Emit, Lazy, Out, Pending, Source, joint, kept, place_of
from .pieces import in_pieces
from .rule_sets import BOTH, GPU_RULES, RULES, Rule, RuleSet, lowers, varied
from .step import KernelStep
from .tensor import (
    Buffer,
    Tensor,
    at_line,
    c_strides,
    counted,
    extent,
    joint_shape,
    last_strides,
    listed,
    of_constant,
)
from .walk import Walked, order_like, readable, unit, within

__all__ = ["BOTH", "GPU_RULES", "RULES", "Emit", "Lazy", "Lowering", "Out", "Pending", "Rule", "RuleSet",
           "Source", "counted", "listed", "lowers", "varied"]

SMALL = 1 << 16
"""Elements up to which a value that follows from shapes is computed while lowering."""

WEIGHTS = 1 << 28
"""The same for quantized weights, which are dequantized when, and only if, somebody asks for the floats."""

_DERIVED = 4
"""How many times `max_fold_bytes` all values that follow from shapes may take."""
_LARGE_CONSTANT = 1 << 16
"""Bytes from which on an initializer is read where it lies, wherever that starts."""


class Lowering:
    """One walk over a part's nodes, by `rules`. `inputs` are the arrays' shapes and numpy type names, by
    input value; `constants` outlives the walk: packed weights by key. `machine`: what kernels are written
    for, unset where a subclass has something else. `cheap`: operations up to which a tree is computed again
    for a second reader instead of stored; `large`: those from which on it is stored before more is put on it,
    what a kernel has registers and code for; `unfolded`: types of which updates replace elements, but are not
    added to them or the like. `matrix_unit`: whether products of float32 may be computed by one;
    `half_epilogue`: whether what sums of bytes stand for may be rounded to float16; `transforms`:
    whether convolutions may go by way of transforms of their images, or several groups as one;
    `accuracy_level`: of products with weights dequantized by blocks, as MatMulNBits has it; `given`: inputs
    whose elements are known, as they are in the host's memory. `finals` are the part's outputs; those that
    have got their memory are in `outputs`. `why`: per node left to numpy, why; `later`: weights not yet
    dequantized; `codes`: quantized tensors that values which no DequantizeLinear made stand for; `loops`: the
    first and last of steps that are done again and again; `lent`: known values that went into a body of
    control flow or came out of one, and what follows from them."""

    rules: ClassVar[RuleSet] = RULES
    cheap: ClassVar[int] = 6
    large: ClassVar[int] = 48
    unfolded: ClassVar[tuple[str, ...]] = ("float16", "bfloat16", "bool")

    def __init__(self, nodes: Sequence[Node], inputs: Sequence[tuple[Value, tuple[int, ...], str]],
                 outputs: Sequence[Value], machine: Machine | None, constants: dict[Hashable, Tensor],
                 reference: Callable[[Node], Callable[..., Any]], matrix_unit: bool = False,
                 half_epilogue: bool = False, transforms: bool = True, accuracy_level: int = 0,
                 given: Mapping[Value, np.ndarray] | None = None) -> None:
        if machine is not None:
            self.machine = machine
        self.constants, self.reference = constants, reference
        self.matrix_unit, self.half_epilogue = matrix_unit, half_epilogue
        self.transforms, self.accuracy_level = transforms, accuracy_level
        self.steps: list[KernelStep] = []
        self.loops: list[tuple[int, int]] = []
        self.env: dict[Value, Tensor | Lazy] = {}
        self.host: dict[Value, np.ndarray] = dict(given or {})
        self.laid: dict[Hashable, Tensor] = {}
        self.later: dict[Value, Node] = {}
        self.codes: dict[Value, Any] = {}
        self.lent: set[Value] = set()
        self.left: dict[Value, int] = {}
        self.reads(nodes, outputs)
        self.outputs: dict[Value, Tensor] = {}
        self.why: dict[Node, str] = {}
        self.finals = frozenset(outputs)
        self.most, self.derived = current().max_tensor_bytes, 0
        self.node: Node = nodes[0]
        self.status = Tensor("int64", (1,), (1,), Buffer("arena", 64))
        for i, (value, shape, dtype) in enumerate(inputs):
            size = math.prod(shape) * BYTES.get(dtype, 0)
            self.env[value] = Tensor(dtype, shape, c_strides(shape), Buffer("input", size, i))
        try:
            self._walk(nodes, outputs)
        except BaseException:
            self.let_go()
            raise

    def reads(self, nodes: Sequence[Node], outputs: Sequence[Value]) -> None:
        """Count what `nodes`, which are to be walked, and whoever takes `outputs` will read."""
        for v in (*(v for node in nodes for v in (*read_by(node), *node.watched)), *outputs):
            self.left[v] = self.left.get(v, 0) + 1

    def walk(self, nodes: Sequence[Node]) -> None:
        """Lower `nodes`, one after the other."""
        for node in nodes:
            self.node = node
            self._lower(node)
            for shown in node.watched:
                if shown in self.env:
                    self.tensor(shown)
            for v in read_by(node):
                self.left[v] -= 1

    def _walk(self, nodes: Sequence[Node], outputs: Sequence[Value]) -> None:
        self.walk(nodes)
        for i, v in enumerate(outputs):
            if v not in self.outputs and not self._handed_over(v):
                target = self.output(self.dtype(v), self.shape(v))
                self.into(v, target)
                self.outputs[v] = target
            self.outputs[v].buffer.index = i

    def _handed_over(self, value: Value) -> bool:
        """Whether memory of the arena that holds just `value`, in C order, has become the caller's."""
        found = None if self.known(value) is not None else self.env[value]
        if isinstance(found, Lazy) and found.tree.op == "leaf":
            only = self._resolved(found).operands[found.tree.value]
            found = only if isinstance(only, Tensor) and only.shape == found.shape else None
        if not isinstance(found, Tensor) or found.buffer.kind != "arena" or not found.contiguous or (
                found.offset != 0 or found.buffer.size != found.size * found.itemsize):
            return False
        found.buffer.kind = "output"
        self.outputs[value] = found
        return True

    def let_go(self) -> None:
        """Forget what values are, once their steps are known: kernels that were not written yet refer to this
        walk, and would keep it and its weights until the garbage collector comes by."""
        self.env.clear()

    # what a rule asks

    def shape(self, value: Value | None) -> tuple[int, ...]:
        assert value is not None
        if value in self.later:
            return self.shape(self.later[value].inputs[0])
        if (known := self.known(value)) is not None:
            return known.shape
        return self.env[value].shape

    def dtype(self, value: Value) -> str:
        if value in self.later:
            return str(value.elem.numpy.name)
        if (known := self.known(value)) is not None:
            return _name(known.dtype)
        found = self.env[value]
        return found.dtype if isinstance(found, Tensor) else found.tree.dtype

    def known(self, value: Value | None) -> np.ndarray | None:
        """The elements of `value` where they are known now: constant, or derived from shapes."""
        if value is None:
            return None
        if value in self.later:
            node = self.later.pop(value)
            self._compute(node, [self.known(v) for v in node.inputs])
        if value.const is not None and value not in self.env:
            return value.const if isinstance(value.const, np.ndarray) else None
        return self.host.get(value)

    def knows(self, value: Value | None) -> bool:
        """Whether `known` has the elements."""
        return value is not None and (value in self.host or value in self.later or (
            value.const is not None and value not in self.env and isinstance(value.const, np.ndarray)))

    def dequantized(self, *values: Value | None) -> bool:
        """Whether one of `values` may stand for a quantized tensor."""
        return any(v is not None and (v in self.codes or (
            v.node is not None and v.node.op_type == "DequantizeLinear")) for v in values)

    def number(self, value: Value) -> Any:
        """The only element of `value`, where kernels may be made for it."""
        known = self.known(value)
        return None if known is None or known.size != 1 else known.reshape(())[()]

    def tensor(self, value: Value | None) -> Tensor:
        """`value`, which has to be there, in memory, as a strided view."""
        assert value is not None
        if (known := self.known(value)) is not None:
            table, key = (self.laid, value) if value.const is None else (self.constants, ("value", id(value)))
            if key not in table:
                there = value.const is not None and known.nbytes > _LARGE_CONSTANT
                table[key] = of_constant(known if there else settled(at_line(known)))
            return table[key]
        found = self.env[value]
        if isinstance(found, Lazy):
            found = self.env[value] = self._store(value, found)
        return found

    def contiguous(self, t: Tensor) -> Tensor:
        """`t`, or a copy of it in C order."""
        return t if t.contiguous else self.copied(t, c_strides(t.shape))

    def copied(self, t: Tensor, strides: Sequence[int]) -> Tensor:
        """A copy of `t` that lies by `strides`."""
        made = self.new(t.shape, t.dtype, strides)
        self.copy(t, made)
        return made

    def channels_last(self, t: Tensor, pitch: int = 0) -> Tensor:
        """`t` (N, C, ...) with its channels next to each other; a copy where they are not."""
        if t.strides[1] == 1 or t.shape[1] == 1 or t.size == 0:
            return t if t.strides[1] == 1 else t.view(t.shape, (t.strides[0], 1, *t.strides[2:]))
        return self.copied(t, last_strides(t.shape, pitch or t.shape[1]))

    def new(self, shape: Sequence[int], dtype: str, strides: Sequence[int] | None = None) -> Tensor:
        """Memory of the arena. Raises where it passes the limits."""
        shape = tuple(shape)
        if strides is None:
            lying, size = c_strides(shape), math.prod(shape)
        else:
            lying = tuple(strides)
            size = extent(shape, lying)
        size *= BYTES[dtype]
        if not 0 <= size <= self.most:
            bounded((size,), np.uint8)
        return Tensor(dtype, shape, lying, Buffer("arena", size))

    def output(self, dtype: str, shape: Sequence[int]) -> Tensor:
        """Memory of the caller's, in C order: for one of `finals`, to be noted in `outputs` and written."""
        made = self.new(shape, dtype)
        made.buffer.kind = "output"
        return made

    def constant(self, key: Hashable, make: Callable[[], np.ndarray]) -> Tensor:
        """A constant made once per part: packed weights, tables. It starts at a cache line. `key` holds all
        that it depends on, shapes too: CHECK=2 makes it again and compares."""
        made = self.constants.get(key)
        if made is None:
            made = self.constants[key] = of_constant(settled(at_line(make())))
        elif knobs.CHECK >= 2:
            again = at_line(make())
            assert of_constant(again).shape == made.shape and (
                again.tobytes() == in_memory(made.buffer.array).tobytes()), (
                f"the key {key} stands for two constants")
        return made

    def table(self, make: Callable[..., np.ndarray], *given: Any) -> Tensor:
        """The constant that `make` makes of sizes and other hashable things."""
        return self.constant((make, given), lambda: make(*given))

    def numbers(self, given: Sequence[int], dtype: str = "int64") -> Tensor:
        """A table of these numbers."""
        return self.table(listed, tuple(given), dtype)

    def counted(self, start: int, count: int, step: int = 1, dtype: str = "int64") -> Tensor:
        """`count` numbers from `start` on: unlike a `table`, with a length that other operands may have."""
        return self.table(counted, start, count, step, dtype)

    def step(self, spec: Any, args: Sequence[Any], items: int, grain: int = 1, scratch: int = 0) -> None:
        """Append a kernel call over `items` work items, `grain` of them at least to a thread, with `scratch`
        bytes for each thread. `args`, in the kernel's order: Tensor (read), Out(tensor) (written), Walked (a
        tensor whose elements an epilogue meets one by one), int or float."""
        if items <= 0:
            return
        outs: list[Tensor] = []
        plain = list(args)
        walked = 0
        for i, a in enumerate(args):
            if type(a) is Out or type(a) is Walked:
                plain[i] = a.tensor
                walked += type(a) is Walked
                if a.written:
                    outs.append(a.tensor)
            if type(plain[i]) is Tensor:
                within(plain[i])
        assert not spec.operands or walked > spec.operands, f"{spec.template} is to get its operands Walked"
        self.steps.append(KernelStep(spec, plain, items, max(grain, 1), scratch, self.node, outs))

    def shape_by(self, node: Node, shape: Sequence[int], rest: Sequence[np.ndarray | None]
                 ) -> tuple[int, ...]:
        """What the definition of `node` makes of an array of `shape`, and of the other inputs' elements."""
        assert node.op is not None
        stand_in = np.lib.stride_tricks.as_strided(np.zeros(1, np.int8), shape, (0,) * len(shape))
        made: tuple[int, ...] = node.op.bind(node.attrs)(stand_in, *rest).shape
        return made

    def copy(self, source: Tensor, target: Tensor) -> None:
        """Append a strided copy."""
        if source.size:
            self.store(target, Expr.leaf(0, source.dtype), [source])

    def store(self, out: Tensor, tree: Expr, operands: list[Tensor]) -> None:
        """Append the steps that write `tree` over `operands`, broadcast to the result's shape, into `out`."""
        from .elements import store

        store(self, out, tree, operands)

    def accepts(self, pending: Pending, out: Tensor) -> Callable[[Tensor], bool]:
        """Which operands a pending kernel that writes `out` reads as they lie."""
        return pending.accepts or (lambda t: unit(t, out))

    def fits(self, pending: Pending, out: Tensor) -> bool:
        """Whether a pending kernel can write to `out` as it lies."""
        wanted, accepts = pending.strides or c_strides(out.shape), pending.accepts
        return (accepts is None or accepts(out)) and all(
            d == 1 or (a == 1) == (b == 1) for d, a, b in zip(out.shape, wanted, out.strides, strict=True))

    def into(self, value: Value, out: Tensor) -> None:
        """Put `value` where `out` says: straight from its kernel where nobody else needs it otherwise."""
        found = None if self.known(value) is not None else self.env[value]
        if isinstance(found, Lazy) and self.left[value] <= 1 and self._fits(found, out):
            self._emit(value, found, out)
            self.env[value] = out
        else:
            self.copy(self.tensor(value), out)

    def lazy(self, value: Value) -> Lazy:
        """`value` as a tree: over itself where it is in memory, a constant where it is one number."""
        if (known := self.known(value)) is not None:
            if known.size == 1 and (name := _name(known.dtype)) in _CONSTANTS:
                return Lazy(known.shape, Expr.const(known.reshape(()).item(), name), [])
            t = self.tensor(value)
            return Lazy(t.shape, Expr.leaf(0, t.dtype), [t])
        found = self.env[value]
        if isinstance(found, Tensor):
            return Lazy(found.shape, Expr.leaf(0, found.dtype), [found])
        return self._resolved(found)

    def unwritten(self, value: Value | None, shape: tuple[int, ...]) -> Lazy | None:
        """`value` under another shape, where its kernel is not written yet and can write it so."""
        return None

    # elementwise

    def elementwise(self, inputs: Sequence[Value], tree_of: Callable[[list[str]], Expr | No]) -> Lazy | No:
        """The lazy result of an elementwise operator on broadcast inputs: leaf i of the tree is input i."""
        lazies = [self.lazy(v) for v in inputs]
        tree = tree_of([lazy.tree.dtype for lazy in lazies])
        if isinstance(tree, No):
            return tree
        shape = joint_shape(*[lazy.shape for lazy in lazies])
        if len(inputs) > self.large:
            inputs, tree = in_pieces(self, inputs, tree, self.large // 2)
            lazies = [self.lazy(v) for v in inputs]
        if not 0 <= math.prod(shape) * BYTES[tree.dtype] <= self.most:
            bounded((*shape, BYTES[tree.dtype]), np.uint8)
        sources: list[tuple[Source, int]] = []
        for i, (v, lazy) in enumerate(zip(inputs, lazies, strict=True)):
            source = lazy.source
            spread = lazy.shape != shape and (source is not None or lazy.tree.op not in ("leaf", "const"))
            shared = source is None and self.left[v] > 1 and lazy.tree.size() > self.cheap
            if (spread and v not in self.host) or shared or lazy.tree.size() > self.large:
                lazies[i] = self._leaf(v)
            elif source is not None:
                sources += [(each, i) for each in lazy.sources]
        keep = kept(sources)
        for source, i in sources:
            if not any(source is each for each in keep):
                lazies[i] = self._leaf(inputs[i])
        operands: list[Tensor | Source] = []

        def joined(leaf: Expr) -> Expr:
            lazy = self._resolved(lazies[leaf.value])
            return lazy.tree.substitute(lambda inner: Expr.leaf(
                place_of(operands, lazy.operands[inner.value]), inner.dtype))
        return Lazy(shape, tree.substitute(joined), operands)

    def _leaf(self, value: Value) -> Lazy:
        t = self.tensor(value)
        return Lazy(t.shape, Expr.leaf(0, t.dtype), [t])

    def _resolved(self, lazy: Lazy) -> Lazy:
        """`lazy` with sources that have been stored meanwhile as plain tensors."""
        for i, o in enumerate(lazy.operands):
            if isinstance(o, Source) and o.tensor is not None:
                lazy.operands[i] = o.tensor
        return lazy

    def _store(self, value: Value, lazy: Lazy) -> Tensor:
        lazy = self._resolved(lazy)
        if lazy.tree.op == "leaf" and isinstance(lazy.operands[lazy.tree.value], Tensor):
            only = lazy.operands[lazy.tree.value]
            assert isinstance(only, Tensor)
            if only.shape == lazy.shape:
                return only
        strides = self._lying(lazy)
        if value in self.finals and strides == c_strides(lazy.shape) and value not in self.outputs:
            out = self.outputs[value] = self.output(lazy.tree.dtype, lazy.shape)
        else:
            out = self.new(lazy.shape, lazy.tree.dtype, strides)
        self._emit(value, lazy, out)
        return out

    def _lying(self, lazy: Lazy) -> tuple[int, ...]:
        """The strides a result takes when it is stored: its kernel's, else those of its largest operand."""
        source = lazy.source
        if source is not None and source.pending.shape == lazy.shape:
            return source.pending.strides or c_strides(lazy.shape)
        for operand in lazy.operands:
            if isinstance(operand, Tensor) and operand.shape == lazy.shape and 0 not in operand.strides:
                return order_like(operand, operand)
        return c_strides(lazy.shape)

    def _fits(self, lazy: Lazy, out: Tensor) -> bool:
        """Whether the kernel under `lazy` can write to `out` as it lies."""
        lazy = self._resolved(lazy)
        source = lazy.source
        return source is None or source.pending.shape != out.shape or self.fits(source.pending, out)

    def _emit(self, value: Value, lazy: Lazy, out: Tensor) -> None:
        asking, self.node = self.node, value.node or self.node
        try:
            self._write(value, lazy, out)
        finally:
            self.node = asking

    def _write(self, value: Value, lazy: Lazy, out: Tensor) -> None:
        lazy = self._resolved(lazy)
        for source in lazy.sources:
            others = source.derived != [value] and any(
                w is not value and self.left.get(w, 0) > 0 and isinstance(self.env.get(w), Lazy)
                for w in source.derived)
            if others or source.pending.shape != lazy.shape:
                self._store_source(source)
        waiting = self._resolved(lazy).sources
        if 0 in lazy.shape:
            return
        if not waiting:
            self.store(out, lazy.tree, [o for o in lazy.operands if isinstance(o, Tensor)])
            return
        source, count = waiting[0], len(waiting)
        place: dict[int, int] = {}
        operands: list[Tensor] = []
        accepts = self.accepts(source.pending, out)
        for i, operand in enumerate(lazy.operands):
            if isinstance(operand, Source):
                place[i] = waiting.index(operand)
                continue
            lying = readable(operand, out, accepts)
            if lying is not None:
                operand = self.copied(*lying)
            place[i] = count + len(operands)
            operands.append(operand.expand(lazy.shape))
        tree = None if lazy.tree.op == "leaf" else ordered(lazy.tree.substitute(
            lambda leaf: Expr.leaf(place[leaf.value], leaf.dtype)))
        if tree is not None and source.pending.numbers:
            tree = with_numbers(self, tree, lazy.shape, operands, count)
        emit = source.pending.emit if count == 1 else joint(source.pending, waiting[1].pending)
        assert emit is not None
        emit(self, out, tree, operands)
        if tree is None:
            source.tensor = out

    def _store_source(self, source: Source) -> None:
        pending = source.pending
        source.tensor = self.new(pending.shape, pending.dtype, pending.strides)
        if 0 not in pending.shape:
            pending.emit(self, source.tensor, None, [])

    # nodes

    def _lower(self, node: Node) -> None:
        if not node.has_bodies and self._on_host(node):
            return
        made = self._apply(node)
        if isinstance(made, No):
            self.why[node] = made.reason
            self._by_reference(node)
            return
        results = made if isinstance(made, tuple) else (made,)
        for value, result in zip(node.outputs, results, strict=False):
            if value is not None:
                self.bind(value, result)

    def bind(self, value: Value, result: Tensor | Lazy | Pending) -> None:
        """Let `value` be `result`."""
        if isinstance(result, Pending):
            result = Lazy(result.shape, Expr.leaf(0, result.dtype), [Source(result)])
        for source in result.sources if isinstance(result, Lazy) else ():
            source.derived.append(value)
        self.env[value] = result

    def _apply(self, node: Node) -> Any:
        rule: Rule | No | None = undecided(node, self.knows)
        if rule is None and not node.domain and self.dequantized(*node.inputs):
            rule = self.rules.on_bytes.get(node.op_type)
        if rule is None:
            rule = self.rules.of(node)
        if rule is not None:
            return rule if isinstance(rule, No) else rule(self, node)
        op = node.op
        if op is None or not op.broadcasts:
            return No(f"no rule for {node.kind}")
        inputs = [v for v in node.inputs if v is not None]
        if any(v is None for v in node.inputs[:len(inputs)]):
            return No("an input in the middle is absent")
        if op.alike and len({tuple(self.shape(v)) for v in inputs}) > 1:
            return No("its inputs have several shapes")
        numbers = {i: number for i, v in enumerate(inputs) if (number := self.number(v)) is not None}
        return self.elementwise(inputs, lambda dtypes: trace(op, node.attrs, dtypes, numbers))

    def _on_host(self, node: Node) -> bool:
        """Compute what follows from shapes and constants alone; whether that was possible."""
        if node.op_type in ("Shape", "Size") and not node.domain:
            shape = self.shape(node.inputs[0])
            stand_in = np.lib.stride_tricks.as_strided(np.zeros(1, np.int8), shape, (0,) * len(shape))
            arrays: list[Any] = [stand_in]
        else:
            size = 0
            for v in node.inputs:
                if v is not None:
                    if not self.knows(v):
                        return False
                    size += math.prod(self.shape(v))
            if node.op_type == "DequantizeLinear" and (size <= WEIGHTS or node.attrs.get("block_size")):
                self.later[node.output] = node
                return True
            if size > SMALL or (node.op and node.op.runtime - {"n_outputs"}):
                return False
            arrays = [self.known(v) for v in node.inputs]
        if node.op is None or (self.lent and not self._as_elsewhere(node)):
            return False
        self._compute(node, arrays)
        size = sum(self.host[v].nbytes for v in node.outputs if v is not None)
        if self.derived + size > _DERIVED * current().max_fold_bytes:
            self.host = {v: a for v, a in self.host.items() if v not in node.outputs}
            return False
        self.derived += size
        return True

    def _as_elsewhere(self, node: Node) -> bool:
        """Whether the definition of `node` makes the very elements that a kernel makes, where its inputs are
        known in this walk alone."""
        if not self.lent.isdisjoint(v for v in node.inputs if v is not None):
            results = [v for v in node.outputs if v is not None]
            if node.op_type not in _EXACT and any(
                    v.elem is None or v.elem.numpy.kind not in "biu" for v in results):
                return False
            self.lent.update(results)
        return True

    def _compute(self, node: Node, arrays: Sequence[Any]) -> None:
        """Let the results of `node` be known."""
        made = self.reference(node)(*arrays)
        results = made if isinstance(made, tuple) else (made,)
        for value, result in zip(node.outputs, results, strict=False):
            if value is not None:
                self.host[value] = np.asarray(result)

    def _by_reference(self, node: Node) -> None:
        """A step on the host: the definition's numpy body between tensors of the arena."""
        reads, made = by_definition(node, lambda v: self.contiguous(self.tensor(v)), self.known)
        outs = [self.new(shape, dtype) for _, shape, dtype in made]
        self.env.update(zip((value for value, _, _ in made), outs, strict=True))
        self.steps.append(KernelStep(None, reads, 1, 1, 0, node, outs, self.reference(node)))


_CONSTANTS = frozenset({"float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32",
                        "uint64", "bool"})


_EXACT = VIEWS | {"Abs", "Add", "Cast", "Ceil", "Concat", "Div", "Expand", "Floor", "Gather", "Max", "Min",
                  "Mul", "Neg", "Slice", "Split", "Sub", "Transpose", "Where"}
"""Operators whose floats are the same by any way of computing them."""


def read_by(node: Node) -> list[Value]:
    """What `node` reads, and bodies in it."""
    captured = (v for body in node.bodies() for v in body.captures())
    return [v for v in (*node.inputs, *captured) if v is not None]


@functools.cache
def _name(dtype: np.dtype[Any]) -> str:
    return dtype.name
