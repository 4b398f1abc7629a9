"""A provider of a library, as sessions see it: its claims and kernels, checked where they come out of it.

In: graphs and parts. Out: capabilities and kernels. The invariant: nothing that a library answers is used
before it was looked at, and what is wrong is an error that names the provider, or the node.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from ...errors import EPFail
from ...ir import No, Node, TensorType, Value, shape_text
from ...kernels import Kernel, Part, convex_groups
from ...kernels.dlpack import crosses
from ...locks import rlock
from ...records import dataclass
from .. import base
from . import abi
from .calls import Owned, blamed, blank, text_of
from .computed import Computed
from .shown import ShownGraph, encoded

_NAMED = 4
"""Nodes of a part whose operators are its kernel's name, where the library gives none."""


@dataclass(frozen=True)
class Native:
    """What a library says of a provider. `library`: stays open while this is there. `options`: defaults and
    meanings."""

    library: object
    table: abi.Provider
    maker: tuple[str, str]
    hardware: Sequence[base.Hardware]
    options: Mapping[str, tuple[str, str]]


class LibraryProvider(base.ExecutionProvider):
    """A provider of a library; `of` makes a class for each."""

    native: ClassVar[Native]
    fuses = True

    @classmethod
    def of(cls, name: str, native: Native) -> type[LibraryProvider]:
        """The class of a provider."""
        options = {key: base.Option(str, default, meaning)
                   for key, (default, meaning) in native.options.items()}
        return type(name, (cls,), {
            "name": name, "native": native, "options": options, "maker": native.maker,
            "hardware": native.hardware, "__module__": __name__,
            "__qualname__": f"<{getattr(native.library, 'path', '')}>.{name}",
            "__doc__": f"{name} {native.maker[1]}, of a library".replace("  ", " ")})

    def __init__(self, options: dict[str, Any] | None = None) -> None:
        super().__init__(options)
        table, handle, error = self.native.table, ctypes.c_void_p(), blank()
        self._lock = rlock()
        if not table.create:
            self._self = Owned(None, lambda handle: None, self.native)
            return
        settings = abi.table(abi.Setting, [abi.Setting(encoded(key), encoded(value))
                                           for key, value in self.settings.items()])
        code = table.create(settings, len(self.settings), ctypes.byref(handle), ctypes.byref(error))
        if code != abi.OK:
            raise blamed(error, code, (), f"{self.name}: create")
        self._self = Owned(handle.value, table.destroy, self.native)

    @classmethod
    def probe(cls) -> No | None:
        if not cls.native.table.probe:
            return None
        error = blank()
        code = cls.native.table.probe(ctypes.byref(error))
        if code == abi.OK:
            return None
        return No(text_of(error, f"its library answered {code}, and gave no text"))

    def get_capability(self, view: base.GraphView) -> list[base.Capability]:
        free = dict.fromkeys(view.nodes)
        for node in view.nodes:
            if (why := _held_back(node)) is not None:
                view.refuse(node, why)
                del free[node]
        graph = view.graph
        shown = ShownGraph(graph.nodes, graph.inputs, graph.outputs, free, abi.CLAIM_BYTES)
        answers = _Answers(self.name, shown.nodes, free)
        self._ask(lambda error: self.native.table.claim(
            self._self.handle, ctypes.byref(shown.struct), ctypes.byref(answers.struct), error),
            shown.nodes, "claim")
        answers.check()
        for node in free:
            if node not in answers.groups:
                view.refuse(node, No(answers.reasons.get(node, f"{self.name} said nothing about it")))
        stem = self.name.removesuffix("ExecutionProvider")
        return [base.Capability(group, stem) for group in answers.parts(view)]

    def compile(self, part: Part) -> Sequence[Kernel | No]:
        if not part.outputs:
            return [Kernel(lambda *_: (), "nothing, as nobody reads it")]
        shown = ShownGraph(part.nodes, part.inputs, part.outputs, ())
        session = abi.Session(ctypes.sizeof(abi.Session), self.threads)
        kernel = abi.Kernel(ctypes.sizeof(abi.Kernel))
        table = self.native.table
        why = self._ask(lambda error: table.compile(
            self._self.handle, ctypes.byref(shown.struct), ctypes.byref(session), ctypes.byref(kernel),
            error), part.nodes, "compile")
        if why is not None:
            return [why]
        if not kernel.handle:
            raise EPFail(f"{self.name} compiled a part, and gave no kernel", node=part, found="a null handle",
                         expected="a handle, or another answer than ORTHRUS_OK")
        owned = Owned(kernel.handle, table.release, self._self, shown.constants)
        name = kernel.name.decode("utf-8", "replace") or _name(part)
        return [Kernel(Computed(owned, table.run, part, shown.constants, self.name), name)]

    def _ask(self, call: Callable[[Any], int], nodes: Sequence[Node], what: str) -> No | None:
        """None where a call went well, `No` where it says that it will not do. Raises what else it says."""
        error = blank()
        with self._lock:
            code = call(ctypes.byref(error))
        if code == abi.NOT_IMPLEMENTED and what == "compile":
            return No(text_of(error, f"{self.name} does not compile it"))
        if code != abi.OK:
            raise blamed(error, code, nodes, f"{self.name}: {what}")
        return None


class _Answers:
    """What `claim` says of nodes. `groups`: of those that are taken; `reasons`: of the others."""

    def __init__(self, who: str, nodes: Sequence[Node], free: Mapping[Node, None]) -> None:
        self.who, self.nodes, self.free = who, nodes, free
        self.groups: dict[Node, int] = {}
        self.reasons: dict[Node, str] = {}
        self.wrong: EPFail | None = None
        self.struct = abi.Claims(ctypes.sizeof(abi.Claims), abi.Take(self._take), abi.Refuse(self._refuse))

    def _take(self, claims: int, number: int, group: int) -> None:
        if number >= len(self.nodes):
            self._note(f"{self.who} takes node {number}", None, f"a number below {len(self.nodes)}")
        elif group < abi.JOIN:
            self._note(f"{self.who} takes a node for group {group}", self.nodes[number],
                       "a number, or ORTHRUS_JOIN")
        elif (node := self.nodes[number]) not in self.free:
            self._note(f"{self.who} takes a node that is not free", node, "only nodes whose `free` is 1")
        elif self.groups.setdefault(node, group) != group or node in self.reasons:
            self._note(f"{self.who} gave two answers about one node", node, "one")

    def _refuse(self, claims: int, number: int, reason: int | None) -> None:
        text = ctypes.string_at(reason).decode("utf-8", "replace").strip() if reason else ""
        if number >= len(self.nodes):
            self._note(f"{self.who} refuses node {number}", None, f"a number below {len(self.nodes)}")
        elif not text:
            self._note(f"{self.who} refuses a node without a reason", self.nodes[number], "a text")
        elif self.nodes[number] in self.groups:
            self._note(f"{self.who} gave two answers about one node", self.nodes[number], "one")
        else:
            self.reasons.setdefault(self.nodes[number], text)

    def _note(self, text: str, node: Node | None, expected: str) -> None:
        self.wrong = self.wrong or EPFail(text, node=node, expected=expected, cure="mend the library's claim")

    def check(self) -> None:
        """Raises EPFail for the first answer that cannot be."""
        if self.wrong is not None:
            raise self.wrong

    def parts(self, view: base.GraphView) -> list[list[Node]]:
        """The nodes that become a part together."""
        joined = [node for node, group in self.groups.items() if group == abi.JOIN]
        named: dict[int, list[Node]] = {}
        for node, group in self.groups.items():
            if group != abi.JOIN:
                named.setdefault(group, []).append(node)
        return [*convex_groups(view.graph, joined), *named.values()]


def _held_back(node: Node) -> No | None:
    """Why a node is not offered to libraries."""
    if node.has_bodies:
        return No("control flow stays with the runtime; its bodies are partitioned themselves")
    for value in (*node.inputs, *node.outputs):
        if value is not None and value.const is None and not _crosses(value):
            return No(f"{value.name} is of type {shape_text(value.type)}, and libraries take tensors of "
                      "numbers whose type is known")
    return None


def _crosses(value: Value) -> bool:
    return isinstance(value.type, TensorType) and value.elem is not None and crosses(value.elem.numpy)


def _name(part: Part) -> str:
    kinds = [node.op_type for node in part.nodes]
    return " + ".join(kinds) if len(kinds) <= _NAMED else f"{len(kinds)} nodes"
