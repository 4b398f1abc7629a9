"""A part of a graph, for concrete shapes, to a list of steps: oneDNN's primitives with their arguments.

Nodes are walked once. A rule asks for its inputs, which may lie in any layout, and makes a primitive; as many
of the nodes behind it as oneDNN takes become its post-ops (`Lowering.chain`). Reorders are written where a
primitive wants another layout than a value has; those of constants run right away, once for the part. A node
oneDNN has no code for at these shapes becomes a step of its definition, and `why` says so.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ... import memory
from ...errors import EPFail
from ...ir import ElementType, No, Node, TensorType, Value, in_memory
from ...limits import bounded
from ...ops.infer import infer_node
from ..cpu.tensor import Buffer
from .binding import DST, POST_OP, SCALES, SRC, SRC_1, ZERO_POINTS, Library, Refused
from .objects import (
    Attr,
    Binary,
    Desc,
    Eltwise,
    Memory,
    PostOp,
    Primitive,
    Scaling,
    Sum,
    c_strides,
    last_strides,
    open_layout,
    strided,
)

Reference = Callable[[Node], Callable[..., Any]]
Rule = Callable[["Lowering", Node], Any]
Argument = tuple[int, "Tensor"]
RULES: dict[tuple[str, str], Rule] = {}


def lowers(*kinds: str) -> Callable[[Rule], Rule]:
    """Register a rule for operators, named `Softmax` or `com.microsoft::Gelu`. It gives a result for each
    output, or has written them with `Lowering.finish`, or `No` where it leaves the node to its definition."""
    def register(rule: Rule) -> Rule:
        for kind in kinds:
            domain, _, op_type = kind.rpartition("::")
            RULES[domain, op_type] = rule
        return rule
    return register


class Unfit(Exception):
    """What a run found in its data that its primitives do not compute as ONNX says: the definitions do."""


@dataclass(frozen=True, eq=False, slots=True)
class Tensor:
    """A value in memory: `shape` as ONNX has it, `desc` how it lies, from `offset` bytes on in `buffer`."""

    shape: tuple[int, ...]
    desc: Desc
    buffer: Buffer
    offset: int = 0

    @property
    def dtype(self) -> str:
        return self.desc.dtype

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def plain(self) -> bool:
        """Whether it is dense in C order."""
        return self.desc.strides is not None and all(
            d == 1 or s == c for d, s, c in zip(self.desc.shape, self.desc.strides,
                                                c_strides(self.desc.shape), strict=True))


@dataclass(frozen=True, eq=False, slots=True)
class Quantized:
    """A real value that is kept as integers: (tensor - zero) * scale, with one scale and zero point in all or
    one for each index of `axis`. Nothing has been computed for it yet."""

    tensor: Tensor
    scale: np.ndarray
    zero: np.ndarray
    axis: int
    node: Node

    @property
    def whole(self) -> bool:
        """Whether one scale and one zero point hold for all of it."""
        return self.scale.size == 1 and self.zero.size == 1

    def like(self, other: object) -> bool:
        """Whether `other` has the same type, scale and zero point, for all of it."""
        return isinstance(other, Quantized) and self.whole and other.whole and \
            self.tensor.dtype == other.tensor.dtype and \
            self.scale.item() == other.scale.item() and self.zero.item() == other.zero.item()


@dataclass(eq=False)
class Step:
    """One primitive's execution, or with `host` a call of a definition on numpy arrays, which reads `reads`.
    `nodes`: all whose work it does, `node` among them; `reason`: why it is a definition."""

    node: Node
    nodes: tuple[Node, ...]
    kernel: str
    args: list[Argument]
    outs: list[Tensor]
    primitive: Primitive | None = None
    host: Callable[..., Any] | None = None
    reads: list[Tensor | None] = field(default_factory=list)
    reason: str = ""
    scratch: Tensor | None = None

    def tensors(self) -> list[Tensor]:
        """Every tensor it touches."""
        found = [t for _, t in self.args] + self.outs + [t for t in self.reads if t is not None]
        return found if self.scratch is None else [*found, self.scratch]


@dataclass(frozen=True, slots=True)
class Link:
    """A node that becomes a post-op: `post`, with `operand` where it has a second input; or the
    QuantizeLinear that ends a chain, with its scale, zero point and type."""

    node: Node
    post: PostOp | None = None
    operand: Tensor | None = None
    dtype: str = ""
    scale: float = 1.0
    zero: int = 0


class Chain(list[Link]):
    """Links in their order."""

    @property
    def dtype(self) -> str:
        """The type the last link that changes it gives, "" where none does."""
        return next((link.dtype for link in reversed(self) if link.dtype), "")

    @property
    def quantizes(self) -> Link | None:
        """The QuantizeLinear at its end."""
        return self[-1] if self and self[-1].node.op_type == "QuantizeLinear" else None


LINKS: dict[tuple[str, str], Callable[[Lowering, Node, Value, tuple[int, ...]], Link | None]] = {}
"""How a node that reads `value` becomes a post-op of the primitive that makes it, None where it cannot."""


def links(*kinds: str) -> Callable[[Any], Any]:
    """Register how operators become post-ops."""
    def register(rule: Any) -> Any:
        for kind in kinds:
            domain, _, op_type = kind.rpartition("::")
            LINKS[domain, op_type] = rule
        return rule
    return register


Packing = dict[int, list[tuple[Desc, int, Desc, Tensor]]]


@dataclass
class Constants:
    """What outlives a walk: tensors by key, and per constant buffer the forms it was reordered to."""

    tensors: dict[Any, Tensor] = field(default_factory=dict)
    packed: Packing = field(default_factory=dict)
    names: dict[int, str] = field(default_factory=dict)


class Lowering:
    """One walk over a part's nodes. `inputs`: the arrays' shapes and numpy type names, by input value.
    `outputs`: where the part's outputs are at the end. `why`: per node left to its definition, why."""

    def __init__(self, lib: Library, nodes: Sequence[Node],
                 inputs: Sequence[tuple[Value, tuple[int, ...], str]], outputs: Sequence[Value],
                 constants: Constants, reference: Reference) -> None:
        self.lib, self.constants, self.reference = lib, constants, reference
        self.steps: list[Step] = []
        self.env: dict[Value, Tensor | Quantized] = {}
        self.outputs: dict[Value, Tensor] = {}
        self.why: dict[Node, str] = {}
        self.finals = {v: i for i, v in enumerate(outputs)}
        self.nodes = frozenset(nodes)
        self.done: set[Node] = set()
        self.left: dict[Value, int] = dict.fromkeys(outputs, 1)
        self.sharing: dict[int, list[Value]] = {}
        self.copies: dict[int, list[tuple[Tensor, Tensor]]] = {}
        self.looked_at: list[tuple[Tensor, Tensor]] = []
        self.node: Node = nodes[0]
        for i, (value, shape, dtype) in enumerate(inputs):
            self.bind(value, Tensor(shape, strided(lib, shape, dtype), Buffer("input", 0, i)))
        for node in nodes:
            for v in node.inputs:
                if v is not None:
                    self.left[v] = self.left.get(v, 0) + 1
        for node in nodes:
            if node not in self.done:
                self.node = node
                self._lower(node)
        for v in outputs:
            if v not in self.outputs:
                self.node = v.node or nodes[-1]
                found = self.tensor(v)
                self.outputs[v] = target = self._output(v, found.shape, found.dtype)
                self.reorder(found, target)
        self._prune()

    # what a rule asks

    def shape(self, value: Value | None) -> tuple[int, ...]:
        """The shape of a value that is there."""
        assert value is not None
        found = self.env.get(value)
        if found is None:
            return tuple(value.const.shape)
        return found.tensor.shape if isinstance(found, Quantized) else found.shape

    def known(self, value: Value | None) -> np.ndarray | None:
        """The elements of a constant, None for what is none."""
        if value is None or value in self.env or value.const is None:
            return None
        return np.asarray(in_memory(value.const))

    def there(self, value: Value | None) -> bool:
        """Whether a value has been computed, or is constant."""
        return value is not None and (value in self.env or value.const is not None)

    def quantized(self, value: Value | None) -> Quantized | None:
        """A value that is kept as integers, as that."""
        found = self.env.get(value) if value is not None else None
        return found if isinstance(found, Quantized) else None

    def tensor(self, value: Value | None) -> Tensor:
        """A value in memory, in whatever layout it has."""
        assert value is not None
        found = self.env.get(value)
        if isinstance(found, Quantized):
            found = self._dequantized(value, found)
        return self.of_constant(value) if found is None else found

    def of_constant(self, value: Value) -> Tensor:
        """A constant as it is stored."""
        key = "value", id(value)
        if key not in self.constants.tensors:
            made = self._constant(value.const)
            self.constants.tensors[key] = made
            self.constants.names[id(made.buffer)] = value.name
        return self.constants.tensors[key]

    def constant(self, key: Any, make: Callable[[], np.ndarray]) -> Tensor:
        """A constant that is computed once for the part."""
        if key not in self.constants.tensors:
            self.constants.tensors[key] = self._constant(np.ascontiguousarray(make()))
        return self.constants.tensors[key]

    def number(self, value: float, dtype: str = "float32") -> Tensor:
        """A constant of one element, as scales and zero points are given."""
        return self.constant(("number", value, dtype), lambda: np.array([value], dtype))

    def plain(self, t: Tensor) -> Tensor:
        """`t`, or a copy of it, dense in C order."""
        return t if t.plain else self.laid(t, strided(self.lib, t.shape, t.dtype))

    def strided(self, t: Tensor) -> Tensor:
        """`t`, or a copy of it, in a layout that strides describe."""
        return t if t.desc.strides is not None else self.plain(t)

    def dense(self, t: Tensor) -> Tensor:
        """`t`, or a copy of it, without gaps: in C order, with its channels last, or blocked."""
        lying = t.desc.strides
        if lying is None or t.plain or lying == last_strides(t.desc.shape):
            return t
        return self.plain(t)

    def laid(self, t: Tensor, desc: Desc) -> Tensor:
        """`t`, or a copy of it, that lies as `desc` says; a constant is copied once for the part."""
        if t.desc == desc:
            return t
        if t.buffer.kind == "const":
            return self._packed(t, desc)
        for source, copy in self.copies.setdefault(id(t.buffer), []):
            if source.offset == t.offset and source.desc == t.desc and copy.desc == desc:
                return copy
        made = self.new(t.shape, desc)
        self.reorder(t, made)
        self.copies[id(t.buffer)].append((t, made))
        return made

    def view(self, t: Tensor, shape: Sequence[int], strides: Sequence[int] | None = None,
             offset: int = 0) -> Tensor:
        """Another shape over the same memory; `offset` in elements. Without strides `t` has to be plain."""
        desc = strided(self.lib, shape, t.dtype, strides)
        return Tensor(tuple(shape), desc, t.buffer, t.offset + offset * np.dtype(_numpy(t.dtype)).itemsize)

    def reshaped(self, t: Tensor, shape: Sequence[int]) -> Tensor:
        """`t` in another shape, copied to C order where it does not lie so."""
        return self.view(self.plain(t), shape)

    def permuted(self, t: Tensor, order: Sequence[int]) -> Tensor:
        """`t` with its dimensions in another order, in the same memory where strides can say so."""
        t = self.strided(t)
        assert t.desc.strides is not None
        lying = t.desc.strides
        return self.view(t, [t.shape[i] for i in order], [lying[i] for i in order])

    def new(self, shape: Sequence[int], desc: Desc) -> Tensor:
        """Memory of the arena. Raises where it passes the limits."""
        bounded((desc.size,), np.uint8)
        return Tensor(tuple(shape), desc, Buffer("arena", desc.size))

    def bind(self, value: Value | None, found: Tensor | Quantized) -> None:
        """Let `value` be `found`."""
        if value is None:
            return
        self.env[value] = found
        t = found.tensor if isinstance(found, Quantized) else found
        self.sharing.setdefault(id(t.buffer), []).append(value)

    # steps

    def step(self, primitive: Primitive, args: Sequence[Argument], outs: Sequence[Tensor],
             nodes: Sequence[Node] = ()) -> None:
        """Append a primitive's execution, on behalf of `nodes`, the one at hand where none are given."""
        pad = primitive.scratchpad
        self.steps.append(Step(self.node, tuple(nodes) or (self.node,), primitive.kernel, list(args),
                               list(outs), primitive,
                               scratch=None if pad is None else self.new((pad.size,), pad)))

    def reorder(self, source: Tensor, target: Tensor, scalings: Sequence[Scaling] = (),
                args: Sequence[Argument] = (), post_ops: Sequence[PostOp] = ()) -> None:
        """Append a copy from one layout or type to another."""
        if source.size == 0:
            return
        engine = self.lib.engine
        made = Primitive(self.lib, "reorder", source.desc, engine, target.desc, engine,
                         Attr(self.lib, post_ops, scalings))
        self.step(made, [(SRC, source), (DST, target), *args], [target])

    def finish(self, node: Node, shape: Sequence[int], dtype: str,
               make: Callable[[Desc, Attr], Primitive], reads: Callable[[Primitive], Sequence[Argument]], *,
               inner: Sequence[int] | None = None, layout: Desc | None = None, fuse: bool = True,
               first: Sequence[tuple[PostOp, Tensor | None]] = (), scalings: Sequence[Scaling] = (),
               integer: bool = False, linear_end: bool = False) -> None:
        """Make the primitive of `node` with as many of the nodes behind it as post-ops as oneDNN takes, write
        its step, and bind the last value.

        `make(desc, attr)`: the primitive for a destination that lies as `desc` says, `reads(primitive)`: its
        arguments but the destination. `inner`: the destination's shape as the primitive has it, where ONNX
        has another. `layout`: how the destination is to lie; oneDNN chooses where it is None. `first`:
        post-ops that come before those of other nodes. `integer`: a QuantizeLinear may end the chain;
        `linear_end`: as a linear post-op, for a primitive that has no destination scale. Raises Refused.
        """
        shape, inside = tuple(shape), tuple(shape if inner is None else inner)
        chain = self.chain(node, shape, inside, dtype, integer, layout) if fuse else Chain()
        for links_taken in [chain, Chain()] if chain else [chain]:
            try:
                self._finish(node, links_taken, shape, inside, dtype, make, reads, layout, first, scalings,
                             linear_end)
                return
            except Refused:
                if not links_taken:
                    raise

    def _finish(self, node: Node, chain: Chain, shape: tuple[int, ...], inner: tuple[int, ...], dtype: str,
                make: Callable[[Desc, Attr], Primitive], reads: Callable[[Primitive], Sequence[Argument]],
                layout: Desc | None, first: Sequence[tuple[PostOp, Tensor | None]],
                scalings: Sequence[Scaling], linear_end: bool) -> None:
        lib, end = self.lib, chain.quantizes
        dtype = chain.dtype or dtype
        operands: list[tuple[PostOp, Tensor | None]] = [
            *first, *((link.post, link.operand) for link in chain if link.post is not None)]
        scalings, args = list(scalings), list[Argument]()
        if end is not None and linear_end:
            operands.append((Eltwise("linear", 1 / end.scale, float(end.zero)), None))
        elif end is not None:
            scalings.append(Scaling(DST, "scales"))
            args.append((SCALES | DST, self.number(end.scale)))
            if end.zero:
                scalings.append(Scaling(DST, "zero_points"))
                args.append((ZERO_POINTS | DST, self.number(end.zero, "int32")))
        if layout is None:
            target = open_layout(lib, inner, dtype)
        else:
            target = layout if layout.dtype == dtype else strided(lib, inner, dtype, layout.strides)
        primitive = make(target, Attr(lib, [post for post, _ in operands], scalings))
        desc = primitive.desc(DST, inner, dtype)
        args[:0] = reads(primitive)
        last = chain[-1].node.output if chain else node.output
        sum_of = next((t for post, t in operands if isinstance(post, Sum)), None)
        out: Tensor
        if sum_of is not None:
            out = self._summed(sum_of, inner, desc)
        elif last in self.finals and Tensor(inner, desc, Buffer("output", 0)).plain:
            out = self._output(last, inner, dtype)
        else:
            out = self.new(inner, desc)
        for i, (post, operand) in enumerate(operands):
            if isinstance(post, Binary):
                assert operand is not None
                arg = POST_OP * (i + 1) | SRC_1
                if post.desc.strides is None:
                    operand = self.laid(operand, primitive.desc(arg, operand.shape, operand.dtype))
                args.append((arg, operand))
        nodes = (node, *(link.node for link in chain))
        self.step(primitive, [*args, (DST, out)], [out], nodes)
        for link in chain:
            self._read(link.node)
        result = out if inner == shape else self.view(out, shape)
        if out.buffer.kind == "output":
            self.outputs[last] = result
        self.bind(last, result)

    def _summed(self, operand: Tensor, shape: tuple[int, ...], desc: Desc) -> Tensor:
        """Where a result that is added to `operand` goes: onto it, where nobody else needs it."""
        values = self.sharing.get(id(operand.buffer), [])
        alone = sum(self.left.get(v, 0) for v in values) == 1 and not any(v in self.outputs for v in values)
        if alone and operand.buffer.kind == "arena" and operand.desc == desc and not operand.offset:
            self.copies.pop(id(operand.buffer), None)
            return Tensor(shape, desc, operand.buffer)
        out = self.new(shape, desc)
        self.reorder(operand, out)
        return out

    def chain(self, node: Node, shape: tuple[int, ...], inner: tuple[int, ...], dtype: str,
              integer: bool, layout: Desc | None) -> Chain:
        """The nodes behind `node`, one after another, that can be post-ops of its primitive, whose result is
        of `shape` and has `inner` inside the primitive."""
        found, value, added = Chain(), node.output, False
        while True:
            reader = self._only_reader(value)
            rule = None if reader is None else LINKS.get((reader.domain, reader.op_type))
            if reader is None or rule is None:
                return found
            if (dtype == "int32") != (reader.op_type == "Cast" and not found):
                return found
            if reader.op_type == "QuantizeLinear" and not integer:
                return found
            if dtype == "int32":
                dtype = "float32"
            link = rule(self, reader, value, shape)
            if link is None:
                return found
            if link.operand is not None and link.post is not None:
                fitted = self._fitted(link.operand, shape, inner)
                full = isinstance(link.post, Binary) and fitted is not None and fitted.shape == inner
                if fitted is None or (full and added):
                    return found
                post: PostOp = link.post
                assert isinstance(post, Binary)
                if full and post.name == "add":
                    post, added = Sum(), True
                elif full:
                    open_ = open_layout if layout is None else strided
                    post = Binary(post.name, open_(self.lib, inner, fitted.dtype))
                    fitted = fitted if layout is None else self.plain(fitted)
                else:
                    fitted = self.plain(fitted)
                    post = Binary(post.name, fitted.desc)
                link = Link(link.node, post, fitted)
            found.append(link)
            if link.node.op_type == "QuantizeLinear":
                return found
            value = reader.output

    def _fitted(self, t: Tensor, shape: tuple[int, ...], inner: tuple[int, ...]) -> Tensor | None:
        """`t`, which broadcasts to `shape`, as it broadcasts to `inner`; None where it does not."""
        if t.shape == inner:
            return t
        if t.size == math.prod(shape):
            return self.reshaped(t, inner)
        if inner == shape:
            return self.reshaped(t, (1,) * (len(inner) - len(t.shape)) + t.shape)
        if t.size == 1 or (inner and t.size == inner[-1] == t.shape[-1]):
            return self.reshaped(t, (1,) * (len(inner) - 1) + (t.size,))
        return None

    def _only_reader(self, value: Value) -> Node | None:
        """The one node of this part that reads `value`, once, where nobody else does."""
        if value in self.finals or len(value.uses) != 1:
            return None
        reader, count = next(iter(value.uses.items()))
        return reader if count == 1 and reader in self.nodes and reader not in self.done else None

    def _prune(self) -> None:
        """Drop steps whose results nobody reads: what a rule had written before it gave up."""
        needed = {id(t.buffer) for t in self.outputs.values()}
        kept = []
        for step in reversed(self.steps):
            if any(id(t.buffer) in needed for t in step.outs):
                kept.append(step)
                needed.update(id(t.buffer) for t in step.tensors())
        self.steps = kept[::-1]

    def _output(self, value: Value, shape: Sequence[int], dtype: str) -> Tensor:
        """The caller's memory for one of the part's outputs."""
        return Tensor(tuple(shape), strided(self.lib, shape, dtype), Buffer("output", 0, self.finals[value]))

    # constants

    def _constant(self, array: np.ndarray) -> Tensor:
        shape = tuple(array.shape)
        return Tensor(shape, strided(self.lib, shape, array.dtype.name), Buffer("const", array.nbytes, -1,
                                                                               array))

    def _packed(self, t: Tensor, desc: Desc) -> Tensor:
        known = self.constants.packed.setdefault(id(t.buffer), [])
        for source, offset, target, made in known:
            if offset == t.offset and source == t.desc and target == desc:
                return made
        room = memory.take(max(desc.size, 1))
        made = Tensor(t.shape, desc, Buffer("const", desc.size, -1, room))
        self.constants.names[id(made.buffer)] = self.constants.names.get(id(t.buffer), "")
        engine = self.lib.engine
        primitive = Primitive(self.lib, "reorder", t.desc, engine, desc, engine, Attr(self.lib))
        pad = primitive.scratchpad
        array = np.ascontiguousarray(in_memory(t.buffer.array))
        held = [(SRC, Memory(t.desc, array.ctypes.data + t.offset)), (DST, Memory(desc, room.ctypes.data))]
        if pad is not None:
            scratch = memory.passing(pad.size)
            held.append((80, Memory(pad, scratch.ctypes.data)))
        run_now(self.lib, primitive, held)
        known.append((t.desc, t.offset, desc, made))
        return made

    def _dequantized(self, value: Value, found: Quantized) -> Tensor:
        """The real value of what is kept as integers."""
        source = found.tensor
        if source.buffer.kind == "const":
            arrays = [self.known(v) for v in found.node.inputs]
            made = self.constant(("real", id(value)), lambda: self.reference(found.node)(*arrays))
        else:
            made = self.new(source.shape, self._like(source.desc, "float32"))
            self.reorder(source, made, *self.scaled(found, SRC))
        self.env[value] = made
        self.sharing.setdefault(id(made.buffer), []).append(value)
        return made

    def scaled(self, found: Quantized, arg: int) -> tuple[list[Scaling], list[Argument]]:
        """The scale and zero point of a whole tensor as attributes of argument `arg`, and as arguments."""
        scalings, args = [Scaling(arg, "scales")], [(SCALES | arg, self.number(float(found.scale.item())))]
        if zero := int(found.zero.item()):
            scalings.append(Scaling(arg, "zero_points"))
            args.append((ZERO_POINTS | arg, self.number(zero, "int32")))
        return scalings, args

    def _like(self, desc: Desc, dtype: str) -> Desc:
        """A layout as `desc`'s for another type; C order where it is blocked."""
        return strided(self.lib, desc.shape, dtype, desc.strides)

    # nodes

    def _read(self, node: Node) -> None:
        """`node` has been written: it needs its inputs no more."""
        self.done.add(node)
        for v in node.inputs:
            if v is not None:
                self.left[v] -= 1

    def _lower(self, node: Node) -> None:
        try:
            made = self._apply(node)
        except Refused as error:
            made = No(f"oneDNN {'.'.join(map(str, self.lib.version))} makes no primitive of it here: {error}")
        except EPFail as error:
            raise EPFail(error.text, node=node, found=", ".join(
                f"{v.name}: {v.elem.text if v.elem else '?'}{list(self.shape(v))}"
                for v in node.inputs if v is not None and self.there(v))) from error
        if isinstance(made, No):
            self.why[node] = made.reason
            self._by_reference(node, made.reason)
        elif made is not None:
            results = made if isinstance(made, tuple) else (made,)
            for value, result in zip(node.outputs, results, strict=False):
                if result is not None:
                    self.bind(value, result)
        self._read(node)

    def _apply(self, node: Node) -> Any:
        rule = RULES.get((node.domain, node.op_type))
        if rule is None:
            return No(f"no rule for {node.kind}")
        if any(v is not None and 0 in self.shape(v) for v in node.inputs):
            return No("a tensor without elements")
        return rule(self, node)

    def _by_reference(self, node: Node, reason: str) -> None:
        """A step of the node's definition between plain tensors."""
        shadows: list[Value | None] = []
        reads: list[Tensor | None] = []
        for v in node.inputs:
            if v is None:
                shadows.append(None)
                reads.append(None)
                continue
            t = self.plain(self.tensor(v))
            reads.append(t)
            shadows.append(Value(v.name, TensorType(v.elem, t.shape), None, self.known(v)))
        kinds = infer_node(node, shadows, {node.domain: node.version})
        outs: list[Tensor] = []
        for value, kind in zip(node.outputs, kinds, strict=False):
            if value is None:
                continue
            if not isinstance(kind, TensorType) or kind.shape is None or kind.elem is None or not all(
                    isinstance(d, int) for d in kind.shape):
                raise LookupError(f"the type of {value.name} does not follow from shapes")
            shape = tuple(int(d) for d in kind.shape if isinstance(d, int))
            made = self.new(shape, strided(self.lib, shape, kind.elem.numpy.name))
            outs.append(made)
            self.bind(value, made)
        self.steps.append(Step(node, (node,), f"reference {node.op_type}", [], outs, None,
                               self.reference(node), reads, reason))


def run_now(lib: Library, primitive: Primitive, held: Sequence[tuple[int, Memory]]) -> None:
    """Execute a primitive, here and now. Raises EPFail."""
    from .binding import Argument as Cell
    from .binding import failure

    cells = (Cell * len(held))(*[Cell(arg, memory.handle) for arg, memory in held])
    if status := lib.execute(primitive.handle, lib.stream, len(held), cells):
        raise failure(primitive.kernel, status)


def _numpy(dtype: str) -> Any:
    return ElementType.BFLOAT16.numpy if dtype == "bfloat16" else dtype
