"""Models of control flow, most of them random: Loops, Scans and Ifs in each other, over values of a few
kinds."""

from __future__ import annotations

import itertools
import random
from typing import Any

import numpy as np
from graphs import info, model
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, checker, helper, numpy_helper

KINDS = (("float32", (3, 4)), ("float32", ()), ("float64", (5,)), ("int64", ()), ("int32", (2, 3)),
         ("bool", (2,)), ("float32", (0, 3)), ("float32", (4, 4)), ("uint8", (7,)), ("float32", (40, 33)))
Kind = tuple[str, tuple[int, ...]]
CONDITIONS = 3


class _Names:
    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> str:
        self.count += 1
        return f"v{self.count}"


def elem(dtype: str) -> int:
    return int(helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))


def array(rng: random.Random, kind: Kind) -> np.ndarray:
    """Elements of a kind."""
    dtype, shape = kind
    drawn = np.random.default_rng(rng.randrange(1 << 30))
    if dtype == "bool":
        return drawn.integers(0, 2, shape).astype(bool)
    if dtype.startswith("float"):
        return np.asarray(drawn.standard_normal(shape), dtype)
    return np.asarray(drawn.integers(0, 9, shape), dtype)


class Scope:
    """A graph in the making; `values`: what can be read there, by kind."""

    def __init__(self, rng: random.Random, names: _Names, outer: Scope | None = None) -> None:
        self.rng, self.names, self.outer = rng, names, outer
        self.nodes: list[Any] = []
        self.initializers: list[Any] = []
        self.inputs: list[Any] = []
        self.values: dict[Kind, list[str]] = {}

    def add(self, kind: Kind, name: str | None = None) -> str:
        name = name or self.names()
        self.values.setdefault(kind, []).append(name)
        return name

    def entered(self, kind: Kind) -> str:
        name = self.add(kind)
        self.inputs.append(helper.make_tensor_value_info(name, elem(kind[0]), list(kind[1])))
        return name

    def constant(self, value: np.ndarray) -> str:
        name = self.add((value.dtype.name, value.shape))
        self.initializers.append(numpy_helper.from_array(value, name))
        return name

    def any(self, kind: Kind, outside: float = 0.3) -> str:
        """A value of a kind, of this graph or one around it, or a new initializer."""
        here, scope = self.values.get(kind, []), self.outer
        while scope is not None and self.rng.random() < outside:
            if found := scope.values.get(kind):
                return self.rng.choice(found)
            scope = scope.outer
        if here and self.rng.random() < 0.93:
            return self.rng.choice(here)
        return self.constant(array(self.rng, kind))

    def node(self, op: str, inputs: list[str], kind: Kind, **attributes: Any) -> str:
        name = self.names()
        self.nodes.append(helper.make_node(op, inputs, [name], **attributes))
        return self.add(kind, name)

    def step(self, kind: Kind) -> str:
        """A value of a kind, by a node or some."""
        rng, (dtype, shape) = self.rng, kind
        if dtype == "bool":
            op = rng.choice(["And", "Or", "Not", "Identity"])
            return self.node(op, [self.any(kind) for _ in range(1 + (op in ("And", "Or")))], kind)
        if rng.random() < 0.1:
            return self.node("Identity", [self.any(kind)], kind)
        if dtype.startswith("float"):
            if len(shape) == 2 and shape[0] == shape[1] and rng.random() < 0.4:
                return self.node("Tanh", [self.node("MatMul", [self.any(kind), self.any(kind)], kind)], kind)
            if rng.random() < 0.15 and len(shape) == 2 and 0 not in shape:
                mean = self.node("ReduceMean", [self.any(kind)], (dtype, (shape[0], 1)), axes=[1])
                return self.node("Sub", [self.any(kind), mean], kind)
            if rng.random() < 0.3:
                op = rng.choice(["Tanh", "Neg", "Abs", "Neg" if dtype == "float64" else "Sigmoid"])
                return self.node(op, [self.any(kind)], kind)
            both = [self.any(kind), self.any(kind)]
            total = self.node(rng.choice(["Add", "Sub", "Mul", "Max"]), both, kind)
            return self.node("Tanh", [total], kind) if rng.random() < 0.7 else total
        if dtype in ("int64", "int32") and rng.random() < 0.7:
            return self.node(rng.choice(["Add", "Sub"]), [self.any(kind), self.any(kind)], kind)
        if dtype == "uint8":
            wide = [self.node("Cast", [self.any(kind)], ("int32", shape), to=elem("int32")) for _ in range(2)]
            added = self.node("Add", wide, ("int32", shape))
            return self.node("Cast", [added], kind, to=elem(dtype))
        return self.node("Identity", [self.any(kind)], kind)

    def truth(self) -> str:
        """A condition."""
        rng = self.rng
        if rng.random() < 0.5:
            return self.any(("bool", ()), 0.2)
        kind = rng.choice([("int64", ()), ("float32", ())])
        return self.node(rng.choice(["Less", "Greater"]), [self.any(kind), self.any(kind)], ("bool", ()))

    def graph(self, outputs: list[tuple[str, Kind]]) -> Any:
        """The body; a result that is not made here is passed on by an Identity, and so are some others."""
        made = {name for node in self.nodes for name in node.output}
        entered = {each.name for each in self.inputs}
        given, infos = set(), []
        for name, (dtype, shape) in outputs:
            if name not in made | entered or name in given or self.rng.random() < 0.1:
                name = self.node("Identity", [name], (dtype, shape))
            given.add(name)
            infos.append(helper.make_tensor_value_info(name, elem(dtype), list(shape)))
        return helper.make_graph(self.nodes, self.names(), self.inputs, infos, self.initializers)


def _body(outer: Scope, depth: int, entered: list[Kind], ends: list[Kind], ending: bool) -> Any:
    """A graph from values of some kinds to values of others; `ending`: the first of these is a condition."""
    rng = outer.rng
    scope = Scope(rng, outer.names, outer)
    for kind in entered:
        scope.entered(kind)
    kinds = list(dict.fromkeys((*entered, *ends)))
    for _ in range(rng.randrange(0, 7)):
        if depth and rng.random() < 0.15:
            control(scope, depth - 1)
        else:
            scope.step(rng.choice(kinds))
    results = []
    for i, kind in enumerate(ends):
        if i == 0 and ending:
            true = scope.inputs[1].name
            drawn = rng.random()
            results.append(true if drawn < 0.6 else scope.truth() if drawn < 0.8 else scope.node(
                "Less", [scope.inputs[0].name, scope.constant(np.array(rng.randrange(9)))], kind))
        else:
            results.append(scope.any(kind) if rng.random() < 0.4 else scope.step(kind))
    return scope.graph(list(zip(results, ends, strict=True)))


def control(scope: Scope, depth: int) -> None:
    """Append an If, a Loop or a Scan whose bodies may have more of them; `depth` of them in each other."""
    rng = scope.rng
    which = rng.choice(["If", "Loop", "Loop", "Scan", "Scan"])
    states = [rng.choice(KINDS) for _ in range(rng.randrange(0, 4))]
    gathered = [rng.choice(KINDS) for _ in range(rng.randrange(0, 3))]
    if not states and not gathered:
        states = [KINDS[0]]
    names = [scope.names() for _ in (*states, *gathered)]
    if which == "If":
        ends = [*states, *gathered]
        branches = [_body(scope, depth, [], ends, False) for _ in range(2)]
        scope.nodes.append(helper.make_node("If", [scope.truth()], names, then_branch=branches[0],
                                            else_branch=branches[1]))
        kinds: list[Kind] = ends
    elif which == "Loop":
        number, true = ("int64", ()), ("bool", ())
        trips = rng.choice([0, 1, 2, 3, 5, 9])
        body = _body(scope, depth, [number, true, *states], [true, *states, *gathered], True)
        count = scope.constant(np.array(trips))
        begin = rng.choice(["" if states else scope.truth(), scope.constant(np.array(True)), scope.truth()])
        scope.nodes.append(helper.make_node("Loop", [count, begin, *(scope.any(k) for k in states)], names,
                                            body=body))
        kinds = [*states, *((dtype, (-1, *shape)) for dtype, shape in gathered)]
    else:
        trips, slices = rng.choice([1, 2, 3, 6]), [rng.choice(KINDS) for _ in range(rng.randrange(1, 3))]
        body = _body(scope, depth, [*states, *slices], [*states, *gathered], False)
        given, axes = [], [rng.randrange(0, len(shape) + 1) for _, shape in slices]
        for axis, (dtype, shape) in zip(axes, slices, strict=True):
            given.append(scope.any((dtype, (*shape[:axis], trips, *shape[axis:]))))
        attributes: dict[str, Any] = {}
        if any(axes) or rng.random() < 0.5:
            attributes["scan_input_axes"] = [a if rng.random() < 0.5 else a - len(shape) - 1
                                             for a, (_, shape) in zip(axes, slices, strict=True)]
        if rng.random() < 0.5:
            attributes["scan_input_directions"] = [rng.randrange(2) for _ in slices]
        behind = [0 for _ in gathered]
        if gathered and rng.random() < 0.5:
            attributes["scan_output_directions"] = [rng.randrange(2) for _ in gathered]
            behind = [rng.randrange(0, len(shape) + 1) for _, shape in gathered]
            attributes["scan_output_axes"] = behind
        scope.nodes.append(helper.make_node(
            "Scan", [*(scope.any(k) for k in states), *given], names, body=body,
            num_scan_inputs=len(slices), **attributes))
        kinds = [*states, *((dtype, (*shape[:axis], trips, *shape[axis:]))
                            for axis, (dtype, shape) in zip(behind, gathered, strict=True))]
    for name, kind in zip(names, kinds, strict=True):
        scope.add(kind, name)


def drawn(seed: int) -> tuple[ModelProto, list[dict[str, np.ndarray]]]:
    """A model of control flow, and feeds for runs of it."""
    rng = random.Random(seed)
    scope = Scope(rng, _Names())
    fed = [rng.choice(KINDS) for _ in range(rng.randrange(1, 4))]
    fed += [(dtype, (rng.choice([1, 2, 3, 6]), *shape)) for dtype, shape in fed[:2]]
    for kind in fed:
        scope.entered(kind)
    for _ in range(rng.randrange(1, 4)):
        if rng.random() < 0.3:
            scope.step(rng.choice(fed[:1]))
        control(scope, rng.randrange(0, 3))
    made = {name: kind for kind, names in scope.values.items() for name in names}
    outputs = [name for node in scope.nodes for name in node.output if name in made]
    infos = [helper.make_tensor_value_info(name, elem(made[name][0]), [
        None if d < 0 else d for d in made[name][1]]) for name in outputs]
    graph = helper.make_graph(scope.nodes, "main", scope.inputs, infos, scope.initializers)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    checker.check_model(model)
    feeds = [{info.name: array(rng, kind) for info, kind in zip(scope.inputs, fed, strict=True)}
             for _ in range(3)]
    return model, feeds


def branching(seed: int) -> tuple[ModelProto, list[dict[str, np.ndarray]]]:
    """Ifs one after another and in each other, whose conditions are fed; feeds of all of them."""
    draw, names = random.Random(seed), itertools.count()

    def chain(nodes: list[NodeProto], value: str, deep: int) -> str:
        """A value that the nodes to which some are added make of `value`."""
        for _ in range(draw.randint(1, 3)):
            made = f"v{next(names)}"
            if deep and draw.random() < 0.6:
                bodies = dict[str, GraphProto]()
                for which in ("then_branch", "else_branch"):
                    inner = list[NodeProto]()
                    end = chain(inner, draw.choice([value, "x"]), deep - 1)
                    bodies[which] = helper.make_graph(inner, which, [], [info(end, shape=None)])
                nodes.append(helper.make_node("If", [f"c{draw.randrange(CONDITIONS)}"], [made], **bodies))
            else:
                op = draw.choice(["Neg", "Abs", "Add", "Softmax", "Relu"])
                nodes.append(helper.make_node(op, [value, "x"] if op == "Add" else [value], [made]))
            value = made
        return value
    nodes = list[NodeProto]()
    end = chain(nodes, "x", 2)
    if {node.op_type for node in nodes}.isdisjoint({"If"}):
        return branching(seed + 1000)
    conditions = [info(f"c{i}", TensorProto.BOOL, ()) for i in range(CONDITIONS)]
    made = model(nodes, [info("x", shape=(3, 5)), *conditions], [end])
    x = np.random.default_rng(seed).standard_normal((3, 5)).astype(np.float32)
    return made, [{"x": x, **{f"c{i}": np.array(c) for i, c in enumerate(fed)}}
                  for fed in itertools.product((True, False), repeat=CONDITIONS)]


def counting() -> tuple[ModelProto, list[dict[str, np.ndarray]]]:
    """A Loop whose turns end by a number and a condition that are fed; feeds of many of these."""
    turn = helper.make_graph(
        [helper.make_node("Less", ["v", "most"], ["c2"]), helper.make_node("Add", ["v", "v"], ["w"])], "turn",
        [info("n", TensorProto.INT64, ()), info("c", TensorProto.BOOL, ()), info("v", shape=None)],
        [info("c2", TensorProto.BOOL, ()), info("w", shape=None)])
    made = model([helper.make_node("Loop", ["m", "c", "x"], ["y"], body=turn)],
                 [info("m", TensorProto.INT64, ()), info("c", TensorProto.BOOL, ()), info("x", shape=(1,)),
                  info("most", shape=(1,))], ["y"])
    return made, [{"m": np.array(m), "c": np.array(c), "x": np.ones(1, "f"), "most": np.array([f], "f")}
                  for m in (10, 0, 1, -1, np.iinfo(np.int64).max) for c in (True, False)
                  for f in (0, 1, 100, 1e30)]
