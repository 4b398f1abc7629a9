"""The Gradient operator names values of its graph: its nodes are replaced by the
derivative, written out as nodes.

What lies between `xs` and `y` is repeated with the node's inputs in the place of `xs` and
`zs`, and walked backwards; the derivative is that of the sum of y's elements. An operator
without a rule here is refused by name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..errors import InvalidGraph
from ..errors import NotImplemented as NotImplementedFail
from ..ir import Graph, Node, Value
from ..ops import find, infer
from ..ops.schema import Schema, lookup

_DOMAIN = "ai.onnx.preview.training"


def write_out_gradients(graph: Graph) -> None:
    """Replace every Gradient node of the main graph. Raises InvalidGraph where `xs` or `y` name nothing,
    NotImplemented for an operator on the way that has no rule."""
    if not any(node.op_type == "Gradient" and node.domain == _DOMAIN for node in graph.nodes):
        return
    named = {v.name: v for v in (*graph.inputs, *graph.initializers.values())}
    old, graph.nodes = graph.nodes, []
    for node in old:
        named.update((v.name, v) for v in node.outputs if v is not None)
        if node.op_type != "Gradient" or node.domain != _DOMAIN:
            graph.nodes.append(node)
            continue
        tape = _Tape(graph, node)
        for out, made in zip(node.outputs, tape.gradients(named), strict=False):
            if out is not None:
                out.node = None
                tape.keep("Identity", made, out)
        Graph.detach(node)


class _Tape:
    """Writes nodes at the end of a graph, and keeps what it wrote for the way back."""

    def __init__(self, graph: Graph, origin: Node) -> None:
        self.graph, self.origin = graph, origin

    def add(self, op_type: str, *inputs: Value, **attrs: Any) -> Value:
        """The output of a new node of the model's version of `op_type`."""
        out = Value(self.graph.fresh(f"{self.origin.label}_{op_type}"))
        return self._write(op_type, "", inputs, attrs, [out])[0]

    def keep(self, op_type: str, source: Value, out: Value) -> None:
        """A node that gives `source` the identity of `out`."""
        self._write(op_type, "", [source], {}, [out])

    def _write(self, op_type: str, domain: str, inputs: Sequence[Value | None], attrs: dict[str, Any],
               outputs: list[Any]) -> list[Any]:
        schema = lookup(domain, op_type, self.graph.info.opsets[domain])
        assert isinstance(schema, Schema)
        node = Node(op_type, domain, schema.version, find(domain, op_type, schema.version), inputs, attrs,
                    self.graph.fresh(f"{self.origin.label}/{op_type}"), self.origin.index)
        node.outputs = outputs
        for value in outputs:
            if value is not None:
                value.node = node
        self.graph.nodes.append(node)
        infer.annotate(node, self.graph.info.opsets)
        return outputs

    def constant(self, values: Any, dtype: Any = np.int64) -> Value:
        return self.graph.constant(np.array(values, dtype), f"{self.origin.label}_constant")

    def gradients(self, named: dict[str, Value]) -> list[Value]:
        """The derivatives with respect to each of `xs`, in order."""
        origin = self.origin
        xs, zs = list(origin.attrs["xs"]), list(origin.attrs.get("zs", []))
        for name in (*xs, *zs, origin.attrs["y"]):
            if name not in named:
                raise InvalidGraph(f"Gradient names a value that is not there: {name}", node=origin,
                                   found=name, expected="names of values made before it",
                                   cure="correct xs, zs or y")
        given = dict(zip((named[n] for n in (*xs, *zs)), origin.inputs, strict=False))
        target = named[origin.attrs["y"]]
        copies, order = self._repeat(target, given)
        seeds: dict[Value, Value] = {copies[target]: self._filled(copies[target], 1)}
        for node in reversed(order):
            incoming = seeds.get(node.output)
            if incoming is None:
                continue
            rule = _RULES.get(node.op_type) if not node.domain else None
            if rule is None:
                raise NotImplementedFail(f"the derivative of {node.kind} is not known", node=node,
                                         cure=f"differentiate along {', '.join(sorted(_RULES))} only")
            for value, part in zip(node.inputs, rule(self, node, incoming), strict=False):
                if value is None or part is None:
                    continue
                part = self._shrunk(part, value)
                seeds[value] = self.add("Add", seeds[value], part) if value in seeds else part
        roots = [copies.get(named[n], named[n]) for n in xs]
        return [seeds[r] if r in seeds else self._filled(r, 0) for r in roots]

    def _repeat(self, target: Value, given: dict[Value, Value | None]
                ) -> tuple[dict[Value, Value], list[Node]]:
        """Copies of the nodes that `target` needs, reading `given` where they read its keys."""
        needed: set[Node] = set()
        stack = [target]
        while stack:
            value = stack.pop()
            if value.node is not None and value not in given and value.node not in needed:
                needed.add(value.node)
                stack.extend(v for v in value.node.inputs if v is not None)
        copies: dict[Value, Value] = {k: v for k, v in given.items() if v is not None}
        order: list[Node] = []
        for node in [n for n in self.graph.nodes if n in needed]:
            outs = [None if v is None else Value(self.graph.fresh(v.name), v.type) for v in node.outputs]
            inputs = [None if v is None else copies.get(v, v) for v in node.inputs]
            self._write(node.op_type, node.domain, inputs, dict(node.attrs), outs)
            order.append(self.graph.nodes[-1])
            copies.update((v, c) for v, c in zip(node.outputs, outs, strict=True)
                          if v is not None and c is not None)
        copies.setdefault(target, target)
        return copies, order

    def _filled(self, like: Value, value: float) -> Value:
        dtype = like.elem.numpy if like.elem is not None else np.float32
        return self.add("Expand", self.constant(value, dtype), self.add("Shape", like))

    def _shrunk(self, gradient: Value, value: Value) -> Value:
        """`gradient` summed over the axes along which `value` was broadcast."""
        shape, wide = value.shape, gradient.shape
        if shape is None or wide is None:
            raise NotImplementedFail("the derivative needs shapes of known rank", node=self.origin,
                                     found=repr(value), cure="give the model's inputs shapes")
        if shape == wide:
            return gradient
        lead = len(wide) - len(shape)
        axes = [*range(lead), *(i + lead for i, d in enumerate(shape) if d == 1 and wide[i + lead] != 1)]
        if axes:
            gradient = self.add("ReduceSum", gradient, self.constant(axes), keepdims=1)
        return self.add("Reshape", gradient, self.add("Shape", value)) if lead else gradient


Rule = Callable[[_Tape, Node, Value], Sequence[Value | None]]


def _args(node: Node) -> list[Any]:
    return list(node.inputs)


def _div(t: _Tape, n: Node, g: Value) -> Sequence[Value]:
    a, b = _args(n)
    return t.add("Div", g, b), t.add("Neg", t.add("Div", t.add("Mul", g, a), t.add("Mul", b, b)))


def _matmul(t: _Tape, n: Node, g: Value) -> Sequence[Value]:
    a, b = _args(n)
    if len(a.shape or ()) < 2 or len(b.shape or ()) < 2:
        raise NotImplementedFail("the derivative of MatMul needs matrices", node=n, found=f"{a!r} and {b!r}")

    def flipped(v: Value) -> Value:
        rank = len(v.shape)
        return t.add("Transpose", v, perm=[*range(rank - 2), rank - 1, rank - 2])
    return t.add("MatMul", g, flipped(b)), t.add("MatMul", flipped(a), g)


def _pow(t: _Tape, n: Node, g: Value) -> Sequence[Value | None]:
    a, b = _args(n)
    one = t.constant(1, b.elem.numpy)
    raised = t.add("Pow", a, t.add("Sub", b, one))
    by_exponent = t.add("Mul", g, t.add("Mul", n.output, t.add("Log", a))) if b.elem == a.elem else None
    factor = b if b.elem == a.elem else t.add("Cast", b, to=int(a.elem))
    return t.add("Mul", g, t.add("Mul", factor, raised)), by_exponent


def _reduced(mean: bool) -> Rule:
    def rule(t: _Tape, n: Node, g: Value) -> Sequence[Value]:
        x = _args(n)[0]
        if x.shape is None or g.shape is None:
            raise NotImplementedFail(f"the derivative of {n.op_type} needs shapes of known rank", node=n)
        if not n.attribute("keepdims"):
            axes = n.inputs[1].const if len(n.inputs) > 1 and n.inputs[1] is not None else n.attrs.get("axes")
            kept = range(len(x.shape)) if axes is None else [int(a) % len(x.shape) for a in np.ravel(axes)]
            g = t.add("Unsqueeze", g, t.constant(sorted(set(kept))))
        wide = t.add("Expand", g, t.add("Shape", x))
        if not mean:
            return [wide]
        ratio = t.add("Div", t.add("Size", n.output), t.add("Size", x)) if x.elem is None else t.add(
            "Div", t.add("Cast", t.add("Size", n.output), to=int(x.elem)),
            t.add("Cast", t.add("Size", x), to=int(x.elem)))
        return [t.add("Mul", wide, ratio)]
    return rule


def _reshaped(t: _Tape, n: Node, g: Value) -> Sequence[Value]:
    return [t.add("Reshape", g, t.add("Shape", _args(n)[0]))]


def _transposed(t: _Tape, n: Node, g: Value) -> Sequence[Value]:
    perm = n.attrs.get("perm") or list(range(len(g.shape or ())))[::-1]
    return [t.add("Transpose", g, perm=[int(i) for i in np.argsort(perm)])]


def _relu(t: _Tape, n: Node, g: Value) -> Sequence[Value]:
    x = _args(n)[0]
    return [t.add("Where", t.add("Greater", x, t.constant(0, x.elem.numpy)), g, t.constant(0, x.elem.numpy))]


def _sigmoid(t: _Tape, n: Node, g: Value) -> Sequence[Value]:
    y = n.output
    return [t.add("Mul", g, t.add("Mul", y, t.add("Sub", t.constant(1, y.elem.numpy), y)))]


def _tanh(t: _Tape, n: Node, g: Value) -> Sequence[Value]:
    y = n.output
    return [t.add("Mul", g, t.add("Sub", t.constant(1, y.elem.numpy), t.add("Mul", y, y)))]


def _sqrt(t: _Tape, n: Node, g: Value) -> Sequence[Value]:
    return [t.add("Div", g, t.add("Add", n.output, n.output))]


_RULES: dict[str, Rule] = {
    "Identity": lambda t, n, g: [g],
    "Add": lambda t, n, g: [g, g],
    "Sum": lambda t, n, g: [g] * len(n.inputs),
    "Sub": lambda t, n, g: [g, t.add("Neg", g)],
    "Mul": lambda t, n, g: [t.add("Mul", g, _args(n)[1]), t.add("Mul", g, _args(n)[0])],
    "Div": _div,
    "Neg": lambda t, n, g: [t.add("Neg", g)],
    "MatMul": _matmul,
    "Pow": _pow,
    "Exp": lambda t, n, g: [t.add("Mul", g, n.output)],
    "Log": lambda t, n, g: [t.add("Div", g, _args(n)[0])],
    "Sqrt": _sqrt,
    "Sin": lambda t, n, g: [t.add("Mul", g, t.add("Cos", _args(n)[0]))],
    "Cos": lambda t, n, g: [t.add("Neg", t.add("Mul", g, t.add("Sin", _args(n)[0])))],
    "Relu": _relu,
    "Sigmoid": _sigmoid,
    "Tanh": _tanh,
    "ReduceSum": _reduced(mean=False),
    "ReduceMean": _reduced(mean=True),
    "Reshape": _reshaped, "Flatten": _reshaped, "Squeeze": _reshaped, "Unsqueeze": _reshaped,
    "Transpose": _transposed,
}
