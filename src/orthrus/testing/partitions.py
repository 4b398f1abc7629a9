"""Checks of parts: graphs that mix nodes of the provider with others, whole against node by node.

Every graph has nodes that a provider of higher priority takes, so that parts are cut in the same places
whoever is on trial. Right is what the same nodes give one by one on the same provider.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ..errors import EPFail
from ..ir import Graph
from ..load import load
from ..providers.base import Capability, ExecutionProvider, GraphView
from .bench import CYCLE, Bench, OtherExecutionProvider
from .blocks import Sketch, blocks, node_by_node, random_sketches, whole
from .check import check, fault
from .closeness import difference
from .report import Finding

FAMILY = "partitions"
CURE = ("compile(part) takes part.inputs and gives part.outputs, in their order; convex_groups(graph, nodes) "
        "makes parts")
EXPECTED = "what its nodes give one by one"


def _graph(bench: Bench, name: str, build: Callable[[Sketch], list[str]]) -> Iterator[Finding]:
    """One graph: built, run whole at two optimization levels, and compared."""
    found = blocks(bench)
    sketch = Sketch(found)
    model = sketch.model(build(sketch))
    feeds = {"x": found.feed(1)}
    expected = node_by_node(bench, model, feeds)
    for level in (0, 99):
        watched = whole(bench, model, level)
        for turn in range(2):
            bench.saw()
            wrong = difference(watched.run({k: v.copy() for k, v in feeds.items()}), expected, bench.slack)
            if wrong is not None:
                nodes = ", ".join(watched.mine())
                again = " in the second run" if turn else ""
                yield fault(f"{name} at optimization level {level}: {nodes}", wrong + again, EXPECTED, CURE)
                return
        if idle := [n for n in watched.mine() if n.startswith("mine") and not watched.calls[n]]:
            yield fault(f"{name}: {', '.join(idle)}", "the part's kernel was not called", "it runs", CURE)


@check(FAMILY)
def chain(bench: Bench) -> Iterator[Finding]:
    """Claimed nodes in a row: only the last result leaves the part."""
    def build(s: Sketch) -> list[str]:
        x = "x"
        for i in range(4):
            x = s.unary(x, i)
        return [x]
    yield from _graph(bench, "a chain of claimed nodes", build)


@check(FAMILY)
def chain_cut_by_another(bench: Bench) -> Iterator[Finding]:
    """A node that another provider takes cuts a chain into two parts, which run before and after it."""
    yield from _graph(bench, "a chain cut in the middle",
                      lambda s: [s.unary(s.unary(s.other(s.unary(s.unary("x"), 1)), 2), 1)])


@check(FAMILY)
def diamond(bench: Bench) -> Iterator[Finding]:
    """Two ways from one value to a node that joins them, one of them through another provider."""
    def build(s: Sketch) -> list[str]:
        top = s.unary("x")
        return [s.binary(s.unary(top, 1), s.other(top)), s.binary(s.unary(top, 2), s.unary(top, 1))]
    yield from _graph(bench, "a diamond", build)


@check(FAMILY)
def fan_out(bench: Bench) -> Iterator[Finding]:
    """One value that many nodes read, claimed ones and others."""
    def build(s: Sketch) -> list[str]:
        top = s.unary("x")
        return [s.unary(top, 1), s.other(top), s.unary(top, 2), s.binary(top, top)]
    yield from _graph(bench, "one value with many readers", build)


@check(FAMILY)
def value_inside_and_outside(bench: Bench) -> Iterator[Finding]:
    """A value that is read inside its part and outside of it is among `part.outputs`, beside the part's
    end."""
    def build(s: Sketch) -> list[str]:
        a = s.unary("x")
        b = s.unary(a, 1)
        return [s.join(s.unary(b, 2), a), s.other(b)]
    yield from _graph(bench, "a value read inside and outside of its part", build)


@check(FAMILY)
def part_output_is_graph_output(bench: Bench) -> Iterator[Finding]:
    """A value in the middle of a part may be an output of the model, and an output may be there twice."""
    def build(s: Sketch) -> list[str]:
        a = s.unary("x")
        b = s.unary(a, 1)
        return [b, a, s.unary(b, 2)]
    yield from _graph(bench, "outputs in the middle of a part", build)


@check(FAMILY)
def constants_in_parts(bench: Bench) -> Iterator[Finding]:
    """Constants stand in `value.const` and are not among `part.inputs`; one may be read by two nodes, and
    by other providers too."""
    def build(s: Sketch) -> list[str]:
        s.weights["w"] = s.blocks.feed(5)
        top = s.unary("x")
        return [s.binary(s.binary(top, "w"), "w"), s.join("w", top), s.binary("w", s.unary(top, 1))]
    yield from _graph(bench, "a constant with several readers", build)


@check(FAMILY)
def random_graphs(bench: Bench) -> Iterator[Finding]:
    """Random graphs of claimed nodes and others, which meet what the drawn ones forget."""
    for seed, (model, feeds) in enumerate(random_sketches(bench, 8, 14)):
        expected = node_by_node(bench, model, feeds)
        watched = whole(bench, model)
        bench.saw()
        if (wrong := difference(watched.run(dict(feeds)), expected, bench.slack)) is not None:
            yield fault(f"random graph {seed} of {len(model.graph.node)} nodes", wrong, EXPECTED, CURE)


def _body(s: Sketch, name: str, outputs: list[str], inputs: list[Any], extra: list[Any]) -> Any:
    from onnx import helper, numpy_helper

    return helper.make_graph(s.nodes, name, inputs, [*extra, *(s.value(o) for o in outputs)],
                             [numpy_helper.from_array(a, n) for n, a in s.weights.items()])


@check(FAMILY)
def branches(bench: Bench) -> Iterator[Finding]:
    """The bodies of If are graphs of their own, whose nodes are offered like any other; they read values
    of the graph around them."""
    from onnx import TensorProto, helper

    found = blocks(bench)
    outer = Sketch(found)
    top = outer.unary("x")
    bodies, plain = [], []
    for turn in range(2):
        s = Sketch(found, count=100 * (turn + 1))
        y = s.unary(s.unary(s.other(s.unary(top, turn)), 1 + turn), 2)
        flat = Sketch(found, [*outer.nodes, *s.nodes], {**outer.weights, **s.weights})
        plain.append(flat.model([y]))
        bodies.append(_body(s, f"branch{turn}", [y], [], []))
    node = helper.make_node("If", ["c"], ["y"], "choose", then_branch=bodies[0], else_branch=bodies[1])
    outer.nodes.append(node)
    model = outer.model(["y"], ["x", helper.make_tensor_value_info("c", TensorProto.BOOL, [])])
    watched = whole(bench, model)
    x = found.feed(2)
    for turn, flat_model in enumerate(plain):
        bench.saw()
        got = watched.run({"x": x, "c": np.array(not turn)})
        expected = node_by_node(bench, flat_model, {"x": x})
        if (wrong := difference(got, expected, bench.slack)) is not None:
            yield fault(f"the {'else' if turn else 'then'} branch of If", wrong, EXPECTED, CURE)


@check(FAMILY)
def loops(bench: Bench) -> Iterator[Finding]:
    """The body of Loop runs many times: a kernel keeps nothing from one turn for the next."""
    from onnx import TensorProto, helper

    found = blocks(bench)
    s = Sketch(found)
    y = s.binary(s.unary("a"), s.other(s.unary("x", 1)))
    s.weights["on"] = np.array(True)
    flat = Sketch(found, list(s.nodes), {k: v for k, v in s.weights.items() if k != "on"})
    step = flat.model([y], ["x", "a"])
    info = helper.make_tensor_value_info
    body = _body(s, "turn", [y], [info("i", TensorProto.INT64, []), info("c", TensorProto.BOOL, []),
                                  s.value("a")], [info("on", TensorProto.BOOL, [])])
    outer = Sketch(found)
    outer.nodes.append(helper.make_node("Loop", ["turns", "", "x"], ["y"], "repeat", body=body))
    outer.weights["turns"] = np.array(3)
    watched = whole(bench, outer.model(["y"]))
    x = found.feed(3)
    now = x
    for _ in range(3):
        [now] = node_by_node(bench, step, {"x": x, "a": now})
    bench.saw()
    if (wrong := difference(watched.run({"x": x}), [now], bench.slack)) is not None:
        yield fault("three turns of Loop", wrong, EXPECTED, CURE)


@check(FAMILY)
def no_cycles(bench: Bench) -> Iterator[Finding]:
    """No node outside of a part stands between nodes in it: the part would wait for itself. Whoever overrides
    `get_capability` sees to it; `convex_groups` does it."""
    found = blocks(bench)
    for name, build in (("a node between two claimed ones", lambda s: [s.unary(s.other(s.unary("x")), 1)]),
                        ("two ways, one through another provider",
                         lambda s: [s.binary(top := s.unary("x"), s.other(s.unary(top, 1)))])):
        sketch = Sketch(found)
        model = sketch.model(build(sketch))
        bench.saw()
        try:
            bench.engine(model, [OtherExecutionProvider()])
        except EPFail as error:
            if CYCLE not in str(error):
                raise
            yield fault(name, f"the part {error.node} waits for itself",
                        "parts without another node between theirs",
                        "return convex_groups(view.graph, nodes), a capability for each group")


@check(FAMILY)
def capabilities_are_whole(bench: Bench) -> Iterator[Finding]:
    """A capability holds nodes of `view.nodes`, each in one capability only. What else it holds is dropped
    without a word, and its nodes go to a later provider."""
    for model, _ in random_sketches(bench, 4, 12):
        graph = load(model)
        free = [n for n in graph.nodes if not n.name.startswith("other")]
        view = GraphView(graph, list(free))
        seen: set[Any] = set()
        bench.saw()
        for capability in bench.make().get_capability(view):
            where = capability.name or "a capability"
            if not isinstance(capability, Capability) or not capability.nodes:
                yield fault(where, repr(capability), "a Capability with nodes", "leave empty groups out")
                continue
            for node in capability.nodes:
                if node not in free:
                    yield fault(str(node), "a capability holds a node that another provider has taken",
                                "nodes of view.nodes", "walk view.nodes, not view.graph.nodes")
                elif node in seen:
                    yield fault(str(node), "it is in two capabilities", "it is in one",
                                "return each node once")
                seen.add(node)


@check(FAMILY)
def asked_once(bench: Bench) -> Iterator[Finding]:
    """A session asks `get_capability` once for each graph, and the answer binds: `compile` then gives a
    Kernel for every part, and no refusal."""
    found = blocks(bench)
    sketch = Sketch(found)
    model = sketch.model([sketch.unary(sketch.other(sketch.unary("x")), 1)])
    provider = bench.make()
    asked: list[Graph] = []
    original = provider.get_capability

    def get_capability(view: GraphView) -> list[Capability]:
        asked.append(view.graph)
        return original(view)

    provider.get_capability = get_capability  # type: ignore[method-assign]
    whole(bench, model, provider=provider)
    bench.saw()
    if len(asked) != 1:
        yield fault("get_capability", f"it was asked {len(asked)} times for one graph", "once",
                    "do not call get_capability yourself; remember what was claimed")
    if bench.provider.claim is ExecutionProvider.claim:
        return
    for label, count in _claims(bench.make(), model).items():
        bench.saw()
        if count > 1:
            yield fault(label, f"claim was called {count} times for one node", "once",
                        "keep the answers in get_capability")
            break


def _claims(provider: ExecutionProvider, model: Any) -> dict[str, int]:
    """How often `get_capability` asks `claim` for each node."""
    count: dict[str, int] = {}
    original = provider.claim

    def claim(node: Any) -> Any:
        count[node.label] = count.get(node.label, 0) + 1
        return original(node)

    provider.claim = claim  # type: ignore[method-assign]
    graph = load(model)
    provider.get_capability(GraphView(graph, list(graph.nodes)))
    return count
