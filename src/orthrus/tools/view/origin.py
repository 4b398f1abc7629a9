"""What of a model's file each node that runs stands for.

In: the graph as the file has it, and after optimization. Out: for each node that runs the file's nodes
between its results and the values that other nodes still make; values are the same where their names are.
"""

from __future__ import annotations

from ...ir import Graph, Node


def origins(before: Graph, after: Graph) -> dict[Node, tuple[Node, ...]]:
    """The file's nodes by the node that runs in their place, its last one first; bodies are left out."""
    makers = {v.name: node for node in before.nodes for v in node.outputs if v is not None}
    made = {v.name for node in after.nodes for v in node.outputs if v is not None}
    found = {}
    for node in after.nodes:
        waiting, seen = [v.name for v in node.outputs if v is not None], dict[Node, None]()
        while waiting:
            maker = makers.get(waiting.pop())
            if maker is None or maker in seen:
                continue
            seen[maker] = None
            waiting += [v.name for v in maker.inputs if v is not None and v.name not in made]
        found[node] = tuple(seen)
    return found


def differs(node: Node, origin: tuple[Node, ...]) -> bool:
    """Whether a node is not simply one of the file."""
    return bool(origin) and [(each.op_type, each.label) for each in origin] != [(node.op_type, node.label)]
