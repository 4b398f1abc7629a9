"""A graph's nodes as nested boxes that a person can open and close.

In: a graph. Out: its nodes in order, stretches of them gathered into `Scope`s: by the scopes that names such
as `/encoder/layer.0/attention/MatMul` or an exporter's metadata spell out, and where there are more children
than `LIMIT`, by blocks cut where few values cross. No scope has more than `LIMIT` children.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import field

from ...ir import Graph, Node
from ...records import dataclass

LIMIT = 100
"""Children of a box: what the layout in the page does in about a tenth of a second."""

_SMALL = 24
"""Nodes up to which a graph is shown flat."""

_FEWEST = 4
"""Nodes below which a scope is not worth a box."""

_BLOCK = 40
"""Children of a block, about."""

_DEEPEST = 16
"""Scopes inside each other that are told apart."""

_NEARLY = 0.9
"""Share of a graph's nodes above which a scope says nothing about them."""

_METADATA = "pkg.torch.onnx.name_scopes"


@dataclass(eq=False)
class Scope:
    """A box: `kind` is scope or block, `children` scopes and nodes in the graph's order."""

    title: str
    kind: str
    children: list[Scope | Node] = field(default_factory=list)

    def nodes(self) -> Iterator[Node]:
        """Every node inside."""
        stack: list[Scope | Node] = [self]
        while stack:
            it = stack.pop()
            if isinstance(it, Node):
                yield it
            else:
                stack.extend(reversed(it.children))


def grouped(graph: Graph) -> list[Scope | Node]:
    """The children of the graph's own box."""
    root = Scope("", "scope")
    if len(graph.nodes) <= _SMALL:
        return list(graph.nodes)
    scopes: dict[tuple[str, ...], Scope] = {(): root}
    paths = dict(zip(graph.nodes, _paths(graph.nodes), strict=True))
    _follow_readers(graph.nodes, paths)
    for node, path in paths.items():
        for depth in range(1, len(path) + 1):
            key = path[:depth]
            if key not in scopes:
                scopes[key] = Scope(path[depth - 1], "scope")
                scopes[key[:-1]].children.append(scopes[key])
        scopes[path].children.append(node)
    children = _tidied(root)
    return _blocked(_opened(children, len(graph.nodes)))


def _opened(children: list[Scope | Node], count: int) -> list[Scope | Node]:
    """`children` without a scope that holds nearly everything: what it holds stands in its place."""
    while True:
        whole = next((c for c in children if isinstance(c, Scope)
                      and sum(1 for _ in c.nodes()) > _NEARLY * count), None)
        if whole is None:
            return children
        at = children.index(whole)
        children = [*children[:at], *whole.children, *children[at + 1:]]


def _paths(nodes: Sequence[Node]) -> list[tuple[str, ...]]:
    """The scopes of each node, outermost first. A node that an optimization made has no metadata: it stands
    in what its neighbours have in common."""
    told = [_from_metadata(node) for node in nodes]
    if not any(told):
        return [_from_name(node.label) for node in nodes]
    after: list[tuple[str, ...]] = []
    following: tuple[str, ...] = ()
    for path in reversed(told):
        following = following if path is None else path
        after.append(following)
    paths: list[tuple[str, ...]] = []
    before: tuple[str, ...] = ()
    for path, following in zip(told, reversed(after), strict=True):
        before = _common(before, following) if path is None else path
        paths.append(before)
    return paths


def _follow_readers(nodes: Sequence[Node], paths: dict[Node, tuple[str, ...]]) -> None:
    """What is computed from constants alone, as weights that are dequantized, stands with its first reader,
    whatever its own name says."""
    prepared = set[Node]()
    for node in nodes:
        if not node.has_bodies and all(v is None or v.const is not None or v.node in prepared
                                       for v in node.inputs):
            prepared.add(node)
    place = {node: i for i, node in enumerate(nodes)}
    for node in reversed(nodes):
        readers = [reader for value in node.outputs if value is not None and node in prepared
                   for reader in value.uses if reader in place]
        if readers:
            paths[node] = paths[min(readers, key=place.__getitem__)]


def _from_name(label: str) -> tuple[str, ...]:
    parts = label.split(";")[0].split("/", _DEEPEST)[:-1]
    return tuple(part for part in parts if part)


def _from_metadata(node: Node) -> tuple[str, ...] | None:
    text = node.metadata.get(_METADATA)
    if not text:
        return None
    try:
        found = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None
    if not isinstance(found, list):
        return None
    path, outer = list[str](), ""
    for name in map(str, found[:-1]):
        path += [name.removeprefix(outer + ".")] if name else []
        outer = name
    return tuple(path[:_DEEPEST])


def _common(a: tuple[str, ...], b: tuple[str, ...]) -> tuple[str, ...]:
    count = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    return a[:count]


def _tidied(scope: Scope) -> list[Scope | Node]:
    """The children of `scope`: small scopes dissolved, chains of scopes joined, long ones cut into blocks."""
    made: list[Scope | Node] = []
    for child in scope.children:
        if isinstance(child, Node):
            made.append(child)
            continue
        inner = _tidied(child)
        if sum(1 for _ in child.nodes()) < _FEWEST:
            made.extend(inner)
        elif len(inner) == 1 and isinstance(only := inner[0], Scope) and only.kind == "scope":
            made.append(Scope(f"{child.title}/{only.title}", "scope", only.children))
        else:
            made.append(Scope(child.title, child.kind, _blocked(inner)))
    return made


def _blocked(children: list[Scope | Node]) -> list[Scope | Node]:
    """At most `LIMIT` children, in order, made of the given ones."""
    while len(children) > LIMIT:
        size = max(8, min(_BLOCK, round(len(children) ** 0.5)))
        ends = _cuts(_crossings(children), size)
        starts = [0, *ends[:-1]]
        children = [Scope(f"block {i + 1}", "block", children[a:b])
                    for i, (a, b) in enumerate(zip(starts, ends, strict=True))]
    return children


def _crossings(children: Sequence[Scope | Node]) -> list[int]:
    """How many values are made before child i + 1 and read from there on, for every i."""
    place: dict[Node, int] = {}
    for i, child in enumerate(children):
        place.update((node, i) for node in ([child] if isinstance(child, Node) else child.nodes()))
    change = [0] * (len(children) + 1)
    for node, i in place.items():
        for value in node.outputs:
            last = max((place.get(reader, i) for reader in value.uses), default=i) if value else i
            change[i] += last > i
            change[last] -= last > i
    total, crossing = 0, list[int]()
    for step in change[:-1]:
        total += step
        crossing.append(total)
    return crossing


def _cuts(crossing: Sequence[int], size: int) -> list[int]:
    """Where blocks of about `size` end: there where the fewest values cross."""
    ends, start, count = list[int](), 0, len(crossing)
    while count - start > size + size // 2:
        window = range(start + max(2, size // 2), start + size + size // 2 + 1)
        start = min(window, key=lambda end: (crossing[end - 1], abs(end - start - size)))
        ends.append(start)
    return [*ends, count]

