"""Random models of nested scopes: If, Loop and Scan that capture what lies around them, functions in
functions, sequences and optionals, empty sizes, initializers and inputs that are results.

`PYTHONPATH=tests python -m fuzz.scopes 1000 --start 5000` looks for models on which the optimization levels,
runs of one session and onnxruntime do not agree.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

import orthrus
from fuzz.functions import DOMAIN, defined
from fuzz.graphs import LEVELS, apart, opened

F, INT, B = np.dtype(np.float32), np.dtype(np.int64), np.dtype(np.bool_)
_SIZES = {"N": (2, 0, 1, 3), "S": (3, 1, 2, 0)}
"""Named sizes: of the first feeds, and of those that follow."""

Shape = tuple[int | str, ...]
_SHAPES: tuple[Shape, ...] = (
    (),
    (3,),
    (2, 3),
    (1, 3),
    (2, 1, 3),
    ("N", 3),
    ("N", 1),
    ("S",),
    ("N", "S"),
    (0, 3),
)


@dataclass(frozen=True)
class Value:
    name: str
    dtype: np.dtype[Any]
    shape: Shape
    kind: str = "tensor"

    @property
    def tensor(self) -> bool:
        return self.kind == "tensor"


def _joined(a: Shape, b: Shape) -> Shape | None:
    """The shape of an element-wise result; None where named sizes could contradict."""
    rank = max(len(a), len(b))
    pairs = zip((1,) * (rank - len(a)) + a, (1,) * (rank - len(b)) + b, strict=True)
    out: list[int | str] = []
    for m, n in pairs:
        if m != n and 1 not in (m, n):
            return None
        out.append(n if m == 1 else m)
    return tuple(out)


def _typed(v: Value, name: str | None = None) -> onnx.ValueInfoProto:
    element = helper.np_dtype_to_tensor_dtype(v.dtype)
    tensor = helper.make_tensor_type_proto(element, v.shape if v.tensor else None)
    kinds = {
        "tensor": lambda: tensor,
        "sequence": lambda: helper.make_sequence_type_proto(tensor),
        "optional": lambda: helper.make_optional_type_proto(tensor),
    }
    return helper.make_value_info(name or v.name, kinds[v.kind]())


class Scope:
    """A graph in the making, the scopes around it, and the functions of its model."""

    def __init__(self, r: random.Random, outer: Scope | None = None) -> None:
        self.r, self.outer = r, outer
        self.depth: int = outer.depth + 1 if outer else 0
        self.nodes: list[onnx.NodeProto] = []
        self.inits: list[onnx.TensorProto] = []
        self.own: list[Value] = []
        self.count: list[int] = outer.count if outer else [0]
        self.functions: list[onnx.FunctionProto] = outer.functions if outer else []

    @property
    def seen(self) -> list[Value]:
        return [*(self.outer.seen if self.outer else []), *self.own]

    def name(self) -> str:
        self.count[0] += 1
        return self.r.choice(["v", "w.", "é", "a/b:", "0"]) + str(self.count[0])

    def pick(
        self, dtype: np.dtype[Any] | None = None, kind: str = "tensor", shape: Shape | None = None
    ) -> Value | None:
        fit = [
            v for v in self.seen if v.kind == kind and dtype in (None, v.dtype) and shape in (None, v.shape)
        ]
        return self.r.choice(fit[-5:] if self.r.random() < 0.5 else fit) if fit else None

    def node(self, op: str, inputs: Sequence[Value | str | None], result: Value, **attrs: Any) -> Value:
        names = [v.name if isinstance(v, Value) else v or "" for v in inputs]
        self.nodes.append(helper.make_node(op, names, [result.name], **attrs))
        self.own.append(result)
        return result

    def made(self, dtype: np.dtype[Any], shape: Shape, kind: str = "tensor") -> Value:
        return Value(self.name(), dtype, shape, kind)

    def const(self, array: Any) -> Value:
        """An initializer, or a Constant node."""
        array = np.asarray(array)
        v = self.made(array.dtype, array.shape)
        if self.r.random() < 0.6:
            self.inits.append(numpy_helper.from_array(array, v.name))
            self.own.append(v)
            return v
        return self.node("Constant", [], v, value=numpy_helper.from_array(array))

    def some(self, dtype: np.dtype[Any]) -> Value:
        """A value of the type, made where there is none."""
        v = self.pick(dtype)
        return v if v is not None and self.r.random() < 0.9 else self.fresh(dtype)

    def fresh(self, dtype: np.dtype[Any]) -> Value:
        shape = self.r.choice([s for s in _SHAPES if all(isinstance(d, int) for d in s)])
        rng = np.random.default_rng(self.r.randrange(1 << 30))
        if dtype == F:
            return self.const(rng.normal(size=shape).round(2).astype(F))
        return self.const(rng.integers(-4, 5, shape).astype(INT) if dtype == INT else rng.random(shape) < 0.5)

    def flag(self) -> Value:
        """A truth of one element."""
        v = self.some(self.r.choice([F, INT]))
        total = self.made(v.dtype, ())
        self.node("ReduceSum", [v], total, keepdims=0)
        bound = self.const(np.array(self.r.choice([-1, 0, 1]), v.dtype))
        return self.node(self.r.choice(["Greater", "Less"]), [total, bound], self.made(B, ()))

    def bounded(self, v: Value) -> Value:
        """The value as one that no loop lets grow."""
        if v.dtype == F:
            return self.node("Tanh", [v], self.made(F, v.shape))
        if v.dtype == INT:
            seven = self.const(np.array(7, INT))
            return self.node("Mod", [v, seven], self.made(INT, v.shape))
        return self.node("Not", [v], self.made(B, v.shape))

    def like(self, v: Value) -> Value:
        """Something of the type and shape of a value."""
        it = self.pick(v.dtype, v.kind, v.shape)
        it = it if it is not None and self.r.random() < 0.7 else v
        return self.bounded(it) if it.tensor and self.r.random() < 0.7 else it

    def grow(self, steps: int) -> None:
        for _ in range(steps):
            self.r.choice(_STEPS)(self)

    def ends(self, most: int = 3) -> list[Value]:
        """Some of its own values, perhaps one of outside through an Identity."""
        own = [v for v in self.own if v.kind != "optional"]
        out = [self.r.choice(own) for _ in range(self.r.randint(1, most))] if own else [self.fresh(F)]
        unique = list({v.name: v for v in out}.values())
        return unique


# steps


def _unary(s: Scope) -> None:
    v = s.some(s.r.choice([F, F, INT]))
    ops = ["Neg", "Abs", "Identity", "Sign"]
    if v.dtype == F:
        ops += ["Tanh", "Sin", "Relu", "Sigmoid", "Softplus"]
    s.node(s.r.choice(ops), [v], s.made(v.dtype, v.shape))


def _binary(s: Scope) -> None:
    a, op = s.some(s.r.choice([F, F, INT])), s.r.choice(["Add", "Sub", "Mul", "Max", "Min", "Less", "Equal"])
    b = s.some(a.dtype) if s.r.random() < 0.9 else a
    shape = _joined(a.shape, b.shape)
    if shape is None:
        return
    compares = op in ("Less", "Equal")
    v = s.node(op, [a, b], s.made(B if compares else a.dtype, shape))
    if op == "Mul":
        s.bounded(v)


def _select(s: Scope) -> None:
    c, a = s.some(B), s.some(s.r.choice([F, INT]))
    b = s.some(a.dtype)
    shape = _joined(a.shape, b.shape)
    shape = None if shape is None else _joined(c.shape, shape)
    if shape is not None:
        s.node("Where", [c, a, b], s.made(a.dtype, shape))


def _cast(s: Scope) -> None:
    v = s.some(s.r.choice([F, INT, B]))
    to = INT if v.dtype == B else s.r.choice([F, B]) if v.dtype == INT else B
    s.node("Cast", [v], s.made(to, v.shape), to=helper.np_dtype_to_tensor_dtype(to))


def _reduce(s: Scope) -> None:
    v = s.some(F)
    if v.shape and all(d not in (0, "N", "S") for d in v.shape):
        axis = s.r.randrange(-len(v.shape), len(v.shape))
        keep = s.r.randint(0, 1)
        at = axis % len(v.shape)
        shape = v.shape[:at] + ((1,) if keep else ()) + v.shape[at + 1 :]
        s.node(
            s.r.choice(["ReduceMax", "ReduceMean", "ReduceL1"]),
            [v, s.const(np.array([axis], INT))],
            s.made(F, shape),
            keepdims=keep,
        )


def _move(s: Scope) -> None:
    v = s.some(s.r.choice([F, INT, B]))
    kind = s.r.choice(["Transpose", "Unsqueeze", "Concat", "Shape", "Flatten"])
    if kind == "Transpose" and v.shape:
        perm = s.r.sample(range(len(v.shape)), len(v.shape))
        s.node(kind, [v], s.made(v.dtype, tuple(v.shape[i] for i in perm)), perm=perm)
    elif kind == "Unsqueeze" and len(v.shape) < 5:
        axis = s.r.randrange(-len(v.shape) - 1, len(v.shape) + 1)
        at = axis % (len(v.shape) + 1)
        s.node(kind, [v, s.const(np.array([axis], INT))], s.made(v.dtype, (*v.shape[:at], 1, *v.shape[at:])))
    elif kind == "Concat" and v.shape and all(isinstance(d, int) for d in v.shape):
        at = s.r.randrange(len(v.shape))
        dim = v.shape[at]
        assert isinstance(dim, int)
        if dim < 16:
            s.node(kind, [v, v], s.made(v.dtype, (*v.shape[:at], 2 * dim, *v.shape[at + 1 :])), axis=at)
    elif kind == "Shape":
        s.node(kind, [v], s.made(INT, (len(v.shape),)))


def _branch(s: Scope) -> None:
    """If: branches of their own depth whose results agree in type; shapes may not."""
    if s.depth > 2:
        return
    flag = s.flag() if s.r.random() < 0.8 else s.const(np.array(s.r.random() < 0.5))
    one, other = Scope(s.r, s), Scope(s.r, s)
    one.grow(s.r.randint(0, 5))
    other.grow(s.r.randint(0, 5))
    ends = one.ends()
    theirs = []
    for k, v in enumerate(ends):
        w = other.like(v) if v in s.seen else other.pick(v.dtype, v.kind, v.shape)
        if w is None:
            if not v.tensor or not all(isinstance(d, int) for d in v.shape):
                return
            w = other.const(np.full(v.shape, k, v.dtype))
        if w not in other.own or w in theirs:
            w = other.node("Identity", [w], replace(w, name=s.name()))
        theirs.append(w)
    names = [replace(v, name=s.name()) for v in ends]
    s.nodes.append(
        helper.make_node(
            "If",
            [flag.name],
            [v.name for v in names],
            then_branch=_graph(one, [], ends, "then"),
            else_branch=_graph(other, [], theirs, "else"),
        )
    )
    s.own += names


def _graph(s: Scope, inputs: Sequence[Value], outputs: Sequence[Value], name: str) -> onnx.GraphProto:
    ends = ([_typed(v) for v in side] for side in (inputs, outputs))
    return helper.make_graph(s.nodes, name, *ends, s.inits)


def _loop(s: Scope) -> None:
    """Loop: carried tensors and sequences, gathered results, a count or a condition or both."""
    if s.depth > 2:
        return
    inner = Scope(s.r, s)
    turn, going = Value(s.name(), INT, ()), Value(s.name(), B, ())
    kinds = s.r.choices(["tensor", "sequence"], [3, 1], k=s.r.randint(0, 3))
    carried = [v for kind in kinds if (v := s.pick(kind=kind)) is not None]
    inside = [replace(v, name=s.name()) for v in carried]
    inner.own = [turn, going, *inside]
    inner.grow(s.r.randint(1, 6))
    after = []
    for v in inside:
        w = inner.like(v)
        if w not in inner.own or w in after or w in (turn, going):
            w = inner.node("Identity", [w], replace(w, name=s.name()))
        after.append(w)
    gathered = [v for v in inner.ends() if v.tensor and v not in after and v not in (turn, going, *inside)][
        : s.r.randint(0, 2)
    ]
    trips = s.const(np.array(s.r.choice([0, 1, 2, 3, 5]), INT))
    first = s.flag() if s.r.random() < 0.4 else None
    again = inner.flag() if s.r.random() < 0.5 else inner.node("Identity", [going], inner.made(B, ()))
    names = [replace(v, name=s.name()) for v in carried]
    stacked = [Value(s.name(), v.dtype, ("?", *v.shape)) for v in gathered]
    s.nodes.append(
        helper.make_node(
            "Loop",
            [trips.name, first.name if first else "", *(v.name for v in carried)],
            [v.name for v in (*names, *stacked)],
            body=_graph(inner, [turn, going, *inside], [again, *after, *gathered], "body"),
        )
    )
    s.own += names
    for v in stacked:
        total = s.made(v.dtype if v.dtype != B else INT, v.shape[1:])
        source = v.name
        if v.dtype == B:
            source = s.name()
            s.nodes.append(helper.make_node("Cast", [v.name], [source], to=onnx.TensorProto.INT64))
        s.node("ReduceSum", [source, s.const(np.array([0], INT))], total, keepdims=0)
        s.bounded(total)


def _scan(s: Scope) -> None:
    """Scan over an axis of a known size, in either direction."""
    taken = [v for v in s.seen if v.tensor and v.shape and all(isinstance(d, int) and d > 0 for d in v.shape)]
    if s.depth > 2 or not taken:
        return
    x = s.r.choice(taken)
    axis = s.r.randrange(len(x.shape))
    inner = Scope(s.r, s)
    state = s.pick(s.r.choice([F, INT]))
    states = [state] if state is not None and s.r.random() < 0.8 else []
    inside = [replace(v, name=s.name()) for v in states]
    part = Value(s.name(), x.dtype, x.shape[:axis] + x.shape[axis + 1 :])
    inner.own = [*inside, part]
    inner.grow(s.r.randint(1, 5))
    after = [inner.node("Identity", [inner.like(v)], replace(v, name=s.name())) for v in inside]
    out = inner.bounded(part if s.r.random() < 0.5 else inner.some(F))
    if not all(isinstance(d, int) for d in out.shape):
        out = inner.bounded(part)
    place = s.r.randrange(len(out.shape) + 1)
    stacked = Value(s.name(), out.dtype, (*out.shape[:place], x.shape[axis], *out.shape[place:]))
    names = [replace(v, name=s.name()) for v in states]
    s.nodes.append(
        helper.make_node(
            "Scan",
            [*(v.name for v in states), x.name],
            [*(v.name for v in names), stacked.name],
            num_scan_inputs=1,
            scan_input_axes=[axis - s.r.choice([0, len(x.shape)])],
            scan_input_directions=[s.r.randint(0, 1)],
            scan_output_axes=[place],
            scan_output_directions=[s.r.randint(0, 1)],
            body=_graph(inner, [*inside, part], [*after, out], "scan"),
        )
    )
    s.own += [*names, stacked]


def _sequence(s: Scope) -> None:
    """A step of a sequence: made, extended, shortened, read by place, joined."""
    seq = s.pick(F, "sequence")
    kind = s.r.choice(["make", "insert", "at", "erase", "length", "map", "split", "joined"])
    if seq is None or kind == "make":
        s.node("SequenceConstruct", [s.some(F) for _ in range(s.r.randint(1, 3))], s.made(F, (), "sequence"))
    elif kind == "insert":
        place = [s.const(np.array(s.r.choice([0, 0, -1]), INT))] if s.r.random() < 0.5 else []
        s.node("SequenceInsert", [seq, s.some(F), *place], s.made(F, (), "sequence"))
    elif kind == "at":
        whole = s.node("SequenceConstruct", [v := s.some(F), v], s.made(F, (), "sequence"))
        s.node("SequenceAt", [whole, s.const(np.array(s.r.choice([0, 1, -1, -2]), INT))], s.made(F, v.shape))
    elif kind == "erase":
        more = s.node("SequenceInsert", [seq, s.some(F)], s.made(F, (), "sequence"))
        place = [s.const(np.array(0, INT))] if s.r.random() < 0.5 else []
        s.node("SequenceErase", [more, *place], s.made(F, (), "sequence"))
    elif kind == "length":
        s.node("SequenceLength", [seq], s.made(INT, ()))
    elif kind == "split" and s.pick(F, shape=(2, 3)):
        v = s.pick(F, shape=(2, 3))
        part = s.node("SplitToSequence", [v], s.made(F, (), "sequence"), axis=0, keepdims=s.r.randint(0, 1))
        s.node("SequenceLength", [part], s.made(INT, ()))
    elif kind == "joined":
        v = s.some(F)
        if v.shape and isinstance(v.shape[0], int):
            whole = s.node("SequenceConstruct", [v, v, v], s.made(F, (), "sequence"))
            s.node("ConcatFromSequence", [whole], s.made(F, (3, *v.shape)), axis=0, new_axis=1)
    elif kind == "map":
        x, y = s.name(), s.name()
        ends = ([helper.make_tensor_value_info(name, 1, None)] for name in (x, y))
        body = helper.make_graph([helper.make_node("Tanh", [x], [y])], "map", *ends)
        s.node("SequenceMap", [seq], s.made(F, (), "sequence"), body=body)


def _optional(s: Scope) -> None:
    v = s.some(s.r.choice([F, INT]))
    it = s.node("Optional", [v], s.made(v.dtype, v.shape, "optional"))
    if s.r.random() < 0.5:
        s.node("OptionalHasElement", [it], s.made(B, ()))
    else:
        s.node("OptionalGetElement", [it], s.made(v.dtype, v.shape))


def _function(s: Scope) -> None:
    """A call of a function, made now or before; some call earlier ones and hand their attributes on."""
    if not s.functions or (len(s.functions) < 5 and s.r.random() < 0.5):
        s.functions.append(defined(s.r, s.functions))
    v, f = s.some(F), s.r.choice(s.functions)
    attrs: dict[str, Any] = {} if s.r.random() < 0.4 else {"alpha": s.r.choice([0.25, 0.5, -1.0])}
    s.node(f.name, [v], s.made(F, v.shape), domain=DOMAIN, **attrs)


_STEPS = (
    _unary, _unary, _binary, _binary, _binary, _select, _cast, _reduce, _move, _move, _branch, _branch,
    _loop, _loop, _scan, _sequence, _sequence, _optional, _function,
)  # fmt: skip


def build(seed: int) -> tuple[onnx.ModelProto, list[dict[str, np.ndarray]]]:
    """A model, and feeds of several sizes for it."""
    r = random.Random(seed)
    s = Scope(r)
    inputs = [Value(f"x{i}", r.choice([F, F, INT]), r.choice(_SHAPES)) for i in range(r.randint(1, 3))]
    s.own = [*inputs]
    s.grow(r.randint(3, 14))
    whole = [v for v in s.own if v.kind != "optional"]
    made = [v for v in whole if v not in inputs]
    outputs = list({v.name: v for v in [*made[-3:], *r.sample(whole, min(len(whole), 3))]}.values())
    if not made:
        return build(seed + 1_000_003)
    infos = []
    for v in outputs:
        info = _typed(v)
        if v.tensor and r.random() < 0.5:
            info.type.tensor_type.ClearField("shape")
        infos.append(info)
    graph = helper.make_graph(s.nodes, "scopes", [_typed(v) for v in inputs], infos, s.inits)
    model = helper.make_model(
        graph,
        opset_imports=[helper.make_opsetid("", 18), helper.make_opsetid(DOMAIN, 1)],
        functions=s.functions,
    )
    model.ir_version = 9
    feeds = []
    for turn in range(4):
        rng = np.random.default_rng(seed + turn)
        feeds.append(
            {
                v.name: _drawn(rng, v.dtype, [_SIZES[d][turn] if isinstance(d, str) else d for d in v.shape])
                for v in inputs
            }
        )
    return model, feeds


def _drawn(rng: np.random.Generator, dtype: np.dtype[Any], shape: Sequence[int]) -> np.ndarray:
    if dtype == F:
        return (rng.normal(size=shape) * 2).round(2).astype(F)
    return rng.integers(-5, 6, shape).astype(dtype)


def _flat(results: Sequence[Any]) -> list[np.ndarray]:
    """Tensors, those of sequences with their count."""
    out: list[np.ndarray] = []
    for v in results:
        out += [np.array(len(v)), *map(np.asarray, v)] if isinstance(v, list) else [np.asarray(v)]
    return out


def _results(session: Any, feeds: dict[str, np.ndarray]) -> list[np.ndarray] | Exception:
    try:
        return _flat(session.run(None, feeds))
    except Exception as error:
        return error


def _differ(got: list[np.ndarray], expected: list[np.ndarray]) -> str | None:
    if len(got) != len(expected):
        return f"{len(got)} and {len(expected)} tensors"
    return apart(got, expected, 1e-4)


_PEERS_OWN = "Unable to handle object of type"
"""What onnxruntime says of a sequence with a tensor of rank 0."""


def findings(model: onnx.ModelProto, feeds: Sequence[dict[str, np.ndarray]], peer: Any = None) -> list[str]:
    """What differs: a level, a run after others, or onnxruntime's answer."""
    raw, found = model.SerializeToString(), []
    expected: list[list[np.ndarray] | Exception | None] = [None] * len(feeds)
    if peer is not None:
        try:
            theirs = opened(peer, raw, LEVELS[0])
            expected = [_results(theirs, f) for f in feeds]
        except Exception as error:
            expected = [error] * len(feeds)
    order = [0, 1, 0, 2, 3, 1, 2, 0]
    for level in (LEVELS[0], LEVELS[-1]):
        try:
            session = opened(orthrus, raw, level)
        except Exception as error:
            if not isinstance(expected[0], Exception):
                found.append(f"{level}: not loaded: {type(error).__name__}: {error}")
            continue
        for turn in order:
            got, wanted = _results(session, feeds[turn]), expected[turn]
            if wanted is None:
                expected[turn] = got
            elif isinstance(got, Exception) != isinstance(wanted, Exception):
                if _PEERS_OWN in str(wanted):
                    expected[turn] = got
                    continue
                found.append(f"{level}, feeds {turn}: {str(got)[:900]} / {str(wanted)[:300]}")
                break
            elif isinstance(got, list) and isinstance(wanted, list) and (wrong := _differ(got, wanted)):
                found.append(f"{level}, feeds {turn}: {wrong}")
                break
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("count", type=int)
    parser.add_argument("--start", type=int, default=0)
    args = parser.parse_args()
    try:
        import onnxruntime as peer
    except ImportError:
        peer = None
    else:
        peer.set_default_logger_severity(4)
    bad = 0
    for seed in range(args.start, args.start + args.count):
        model, feeds = build(seed)
        found = findings(model, feeds, peer)
        if found:
            bad += 1
            print(f"seed {seed}, {len(model.graph.node)} nodes:", *found[:4], sep="\n    ", flush=True)
    print(f"{bad} of {args.count} models")


if __name__ == "__main__":
    main()
