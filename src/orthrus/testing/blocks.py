"""Graphs out of what a provider claims: blocks of one claimed node, joined with nodes of another provider.

In: the trials of a bench. Out: models, and what they give when each node runs in a session of its own,
which is what they have to give whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import field
from typing import Any

import numpy as np

from ..errors import EPFail
from ..ir import element_of
from ..ops.schema import newest_opset
from ..records import dataclass
from .bench import CYCLE, Bench, OtherExecutionProvider, Skip, Trial, Watched
from .samples import Sample

PREFERRED = ("Tanh", "Sigmoid", "Neg", "Abs", "Relu", "Sqrt", "Exp", "Softmax")
"""Operators that show a mix-up of values best; others serve where a provider has none of these."""
JOINING = ("Sub", "Add", "Mul", "Max", "Min")


@dataclass(frozen=True)
class Block:
    """A claimed node that keeps the shape and type of its first input; its other inputs are constants."""

    sample: Sample

    @property
    def input(self) -> np.ndarray:
        first = self.sample.inputs[0]
        assert first is not None
        return first


@dataclass
class Blocks:
    """What graphs are built of: claimed nodes with one input, and where there is one a claimed node with two.

    All take and give arrays of `shape` and `dtype`."""

    unary: list[Block]
    binary: Sample | None
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    def feed(self, seed: int) -> np.ndarray:
        """An input that no other seed gives."""
        rng = np.random.default_rng(seed)
        made: np.ndarray
        if self.dtype.kind in "iub":
            made = rng.integers(0, 2 if self.dtype.kind == "b" else 6, self.shape).astype(self.dtype)
        else:
            made = np.asarray(rng.uniform(-1.0, 1.0, self.shape)).astype(self.dtype)
        return made


def blocks(bench: Bench) -> Blocks:
    """The blocks of a provider. Raises Skip where it claims no node that keeps type and shape."""
    keeping = [t for t in bench.working() if _keeps(t)]
    keeping.sort(key=lambda t: (t.sample.type != "float", -t.outputs[0].ndim,
                                PREFERRED.index(t.sample.op) if t.sample.op in PREFERRED else len(PREFERRED)))
    for t in keeping:
        first = t.sample.inputs[0]
        assert first is not None
        alike = [o for o in keeping
                 if o.outputs[0].shape == first.shape and o.outputs[0].dtype == first.dtype]
        pairs = {o.sample.op: o.sample for o in alike if _pair(o)}
        binary = next((pairs[op] for op in JOINING if op in pairs), None)
        unary = {o.sample.kind: Block(_fixed(o.sample)) for o in reversed(alike)
                 if _taken(bench, _fixed(o.sample))}
        if unary:
            # the preferred ones come first again
            return Blocks(list(reversed(unary.values()))[:4], binary, first.shape, first.dtype)
    raise Skip("it claims no node whose result has the type and shape of its first input")


def _keeps(t: Trial) -> bool:
    first = t.sample.inputs[0] if t.sample.inputs else None
    return (first is not None and first.size > 1 and len(t.outputs) == 1 and t.sample.outputs == 1
            and isinstance(t.outputs[0], np.ndarray) and t.outputs[0].shape == first.shape
            and t.outputs[0].dtype == first.dtype and first.dtype.kind != "O" and t.sample.kind != "Identity"
            and t.sample.reference()[0].dtype == first.dtype)


def _pair(t: Trial) -> bool:
    return len(t.sample.inputs) == 2 and all(
        a is not None and a.shape == t.outputs[0].shape and a.dtype == t.outputs[0].dtype
        for a in t.sample.inputs)


def _fixed(sample: Sample) -> Sample:
    """The sample with every input but the first constant."""
    return sample.changed(constants=frozenset(k for k in range(1, len(sample.inputs))
                                              if sample.inputs[k] is not None))


def _taken(bench: Bench, sample: Sample) -> bool:
    return sample.constants == frozenset() or (
        (trial := bench.trial(sample)).claimed and trial.ran and trial.error is None)


@dataclass
class Sketch:
    """A model in the making. Methods that add a node answer with its output's name; `other` nodes run on the
    provider that comes first, the rest is offered to the provider on trial."""

    blocks: Blocks
    nodes: list[Any] = field(default_factory=list)
    weights: dict[str, np.ndarray] = field(default_factory=dict)
    count: int = 0

    def _name(self) -> str:
        self.count += 1
        return f"v{self.count}"

    def unary(self, x: str, which: int = 0) -> str:
        """A claimed node on `x`."""
        from onnx import helper

        block = self.blocks.unary[which % len(self.blocks.unary)].sample
        y, names = self._name(), [x]
        for k, a in enumerate(block.inputs[1:], 1):
            names.append("" if a is None else f"{y}_c{k}")
            if a is not None:
                self.weights[names[-1]] = a
        self.nodes.append(helper.make_node(block.op, names, [y], f"mine_{y}", domain=block.domain,
                                           **block.attrs))
        return y

    def binary(self, a: str, b: str) -> str:
        """A claimed node on `a` and `b`, or another provider's where the provider claims none."""
        from onnx import helper

        if (sample := self.blocks.binary) is None:
            return self.join(a, b)
        y = self._name()
        self.nodes.append(helper.make_node(sample.op, [a, b], [y], f"mine_{y}", domain=sample.domain,
                                           **sample.attrs))
        return y

    def other(self, x: str) -> str:
        """Another provider's node on `x`."""
        from onnx import helper

        y = self._name()
        self.nodes.append(helper.make_node("Identity", [x], [y], f"other_{y}"))
        return y

    def join(self, a: str, b: str) -> str:
        """Another provider's node on `a` and `b`: chooses elements from both."""
        from onnx import helper

        y = self._name()
        pick = np.arange(int(np.prod(self.blocks.shape))).reshape(self.blocks.shape) % 2 == 0
        self.weights["pick"] = pick
        self.nodes.append(helper.make_node("Where", ["pick", a, b], [y], f"other_{y}"))
        return y

    def value(self, name: str, shape: Sequence[Any] | None = None) -> Any:
        """The declaration of a value of the blocks' type."""
        from onnx import helper

        return helper.make_tensor_value_info(name, int(element_of(self.blocks.dtype)),
                                             self.blocks.shape if shape is None else shape)

    def model(self, outputs: Sequence[str], inputs: Sequence[Any] = ("x",)) -> Any:
        """The model with these inputs (names, or declarations) and outputs."""
        from onnx import helper, numpy_helper

        given = [self.value(i) if isinstance(i, str) else i for i in inputs]
        graph = helper.make_graph(self.nodes, "mixed", given, [self.value(o) for o in outputs],
                                  [numpy_helper.from_array(a, n) for n, a in self.weights.items()])
        return modelled(graph)


def modelled(graph: Any) -> Any:
    """A model of `graph` in the newest opset of every domain."""
    from onnx import IR_VERSION, helper

    domains = {""} | {n.domain for n in graph.node}
    opsets = [helper.make_opsetid(d, newest_opset(d) or 1) for d in sorted(domains)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION)


def whole(bench: Bench, model: Any, level: int = 0, provider: Any = None) -> Watched:
    """The model on the provider, in an engine. Raises Skip where its parts make a cycle, which is for
    `no_cycles` to report, and where the provider takes none of its nodes."""
    try:
        watched = bench.engine(model, [OtherExecutionProvider()], level, provider)
    except EPFail as error:
        if CYCLE in str(error):
            raise Skip("its parts wait for themselves; see no_cycles") from None
        raise
    if not watched.mine():
        raise Skip("it claims none of the nodes of the graph")
    return watched


def node_by_node(bench: Bench, model: Any, feeds: dict[str, np.ndarray]) -> list[Any]:
    """What the model's nodes give, each in a model and an engine of its own."""
    from onnx import helper, numpy_helper

    graph = model.graph
    weights = {t.name: t for t in graph.initializer}
    known: dict[str, Any] = dict(feeds)
    for node in graph.node:
        read = [n for n in dict.fromkeys(node.input) if n]
        inputs = [helper.make_tensor_value_info(n, int(element_of(known[n].dtype)), known[n].shape)
                  for n in read if n in known]
        single = helper.make_graph([node], "single", inputs,
                                   [helper.make_empty_tensor_value_info(n) for n in node.output if n],
                                   [weights[n] for n in read if n in weights and n not in known])
        watched = bench.engine(modelled(single), [OtherExecutionProvider()])
        made = watched.run({n: known[n].copy() for n in read if n in known})
        known.update(zip([n for n in node.output if n], made, strict=True))
    known.update((n, numpy_helper.to_array(t)) for n, t in weights.items() if n not in known)
    return [known[o.name] for o in graph.output]


def random_sketches(bench: Bench, count: int, nodes: int) -> Iterator[tuple[Any, dict[str, np.ndarray]]]:
    """Random acyclic graphs of claimed nodes and others; the same ones every time."""
    found = blocks(bench)
    for seed in range(count):
        rng = np.random.default_rng(seed)
        sketch, ends = Sketch(found), ["x", "z"]
        for _ in range(nodes):
            a, b = (ends[-1 - int(i)] for i in rng.integers(0, min(len(ends), 5), 2))
            what = int(rng.integers(0, 8))
            ends.append(sketch.unary(a, what) if what < 4 else sketch.binary(a, b) if what < 6
                        else sketch.other(a) if what < 7 else sketch.join(a, b))
        made = ends[2:]
        outputs = sorted({made[-1], *(made[int(i)] for i in rng.integers(0, len(made), 2))}, key=made.index)
        yield sketch.model(outputs, ["x", "z"]), {"x": found.feed(seed), "z": found.feed(seed + 100)}
