"""What an execution provider is: it says once which nodes are its own, and turns them into kernels.

A provider that registers kernels needs nothing but a name. One that compiles sets `fuses = True` and
overrides `claim` and `compile`; one that looks at the whole graph overrides `get_capability`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any, ClassVar

from .. import knobs
from ..errors import EPFail, InvalidArgument
from ..ir import Graph, No, Node
from ..kernels import HOST, Device, KernelRegistry
from ..records import dataclass

if TYPE_CHECKING:
    from ..kernels import Kernel, KernelEntry, KernelRegistryManager, Lanes, Part, Stored
    from ..ops.schema import Schema

log = logging.getLogger("orthrus")


@dataclass(frozen=True)
class Option:
    """One provider option: how its string is read, what it is when left out, what it means, and whether the
    session's configuration key `session.<name>` sets it too, where it was left out."""

    read: Callable[[str], Any]
    default: Any
    doc: str
    of_session: bool = False


def flag(text: str) -> bool:
    """An option that is on or off: `1`, `true`, `on` or `0`, `false`, `off`.
    Raises ValueError for anything else."""
    if text.lower() in ("1", "true", "on"):
        return True
    if text.lower() in ("0", "false", "off", ""):
        return False
    raise ValueError(f"{text!r} is neither 1 nor 0")


def one_of(*names: str) -> Callable[[str], str]:
    """Reads an option that is one of these names. Raises ValueError for any other."""
    def read(text: str) -> str:
        if text not in names:
            raise ValueError(f"{text!r} is none of {', '.join(names)}")
        return text
    return read


LONGEST = 1e6
"""Seconds that every wait of the system's can be told; more is as good as no limit."""


def seconds(text: str) -> float:
    """An option that is a time, at most LONGEST. Raises ValueError for what is no number, or less than 0."""
    value = float(text)
    if not value >= 0:
        raise ValueError(f"{text} is less than 0")
    return min(value, LONGEST)


def compile_seconds(text: str) -> float:
    """An option that bounds how long something is compiled. Raises ValueError for what is no time above 0."""
    if not (found := seconds(text)):
        raise ValueError(f"{text} seconds are no time to compile in")
    return found


@dataclass(frozen=True)
class Hardware:
    """What a provider computes on, for `get_ep_devices`. `kind`: 0 CPU, 1 GPU, 2 NPU; the numbers are the
    vendor's on the PCI bus, and the vendor's own for the device."""

    kind: int
    vendor: str = ""
    vendor_id: int = 0
    device_id: int = 0


@dataclass(eq=False)
class Capability:
    """Nodes a provider takes together. With a `name` they become one fused part, else each stays a node."""

    nodes: list[Node]
    name: str | None = None


@dataclass(frozen=True, slots=True)
class Remark:
    """Why a provider takes a node without generating code for it; `harmless` where nothing is lost by it."""

    reason: str
    harmless: bool = False


@dataclass(eq=False)
class GraphView:
    """A graph as a provider sees it: the nodes still free, a place for refusals, and one for remarks."""

    graph: Graph
    nodes: list[Node]
    refusals: dict[Node, str] = field(default_factory=dict)
    remarks: dict[Node, Remark] = field(default_factory=dict)

    def refuse(self, node: Node, why: No) -> None:
        self.refusals[node] = why.reason

    def remark(self, node: Node, reason: str, harmless: bool = False) -> None:
        """Say why no code is generated for a node that is taken."""
        self.remarks[node] = Remark(reason, harmless)

    def schema(self, node: Node) -> Schema | None:
        return schema_of(node)


INTERPRETED = "named in ORTHRUS_INTERPRET"


def interpreted() -> Callable[[Node], bool]:
    """Whether the switch INTERPRET sends a node to its definition in numpy: by its label or its operator."""
    from fnmatch import fnmatchcase

    given = knobs.names(knobs.INTERPRET)
    patterns = [name for name in given if "*" in name or "?" in name]
    return lambda node: bool(given) and (
        node.label in given or node.kind in given
        or any(fnmatchcase(node.label, pattern) for pattern in patterns))


def schema_of(node: Node) -> Schema | None:
    """The schema of `node` at its version, None where only a provider knows the operator."""
    from ..ops.schema import lookup

    found = lookup(node.domain, node.op_type, node.version)
    return None if isinstance(found, No) else found


class ExecutionProvider:
    """The base of every provider; a subclass needs a `name`, and kernels or `claim` and `compile`.

    `options`: what it can be told. An option it does not know is an error; a warning where it is `lenient`.
    `fuses`: whether the nodes it claims are joined into parts that it compiles whole. `level`: passes above
    this level of optimization are left out of its sessions, as they make operators that it does not know.
    `target_option`: the option that names the machine to compile for, which `orthrus compile --target` sets.
    `listed`: whether it is named among the available providers; one that is not works where it is asked for.
    `hardware`: what it computes on, the processor where there is none; `maker`: its vendor and its version.
    `device`: where the arguments and results of its kernels lie; the session copies them there and back.
    `threads`: how many a run may use, 0 for as many as there are cores; `strict`: whether what runs by
    definitions for a fault of a rule is an error. The session sets both.
    """

    name: ClassVar[str]
    options: ClassVar[dict[str, Option]] = {}
    fuses: ClassVar[bool] = False
    lenient: ClassVar[bool] = False
    level: ClassVar[int] = 99
    target_option: ClassVar[str] = ""
    listed: ClassVar[bool] = True
    hardware: ClassVar[Sequence[Hardware]] = ()
    maker: ClassVar[tuple[str, str]] = ("", "")
    kernels: ClassVar[KernelRegistry]
    threads: int = 0
    strict: bool = False
    device: Device = HOST

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "kernels" not in cls.__dict__:
            cls.kernels = KernelRegistry()

    def __init__(self, options: dict[str, Any] | None = None) -> None:
        self.registries: KernelRegistryManager | None = None
        self.given = {str(k): str(v) for k, v in (options or {}).items()}
        self.settings = {key: option.default for key, option in self.options.items()}
        for key, text in self.given.items():
            if key not in self.options and self.lenient:
                log.warning("%s has no option %s; it is left alone", self.name, key)
                continue
            if key not in self.options:
                raise InvalidArgument(
                    f"{self.name} has no option {key!r}", found=f"{key}={text}",
                    expected=", ".join(self.options) or "no options",
                    cure="leave the option out, or spell it as listed")
            self._take(key, text, f"option {key!r} of {self.name}")

    def settle(self, entries: Mapping[str, str]) -> None:
        """Take what the session's configuration says of options that were not given. Raises InvalidArgument
        for a value that cannot be read."""
        for name, option in self.options.items():
            key = f"session.{name}"
            if option.of_session and key in entries and name not in self.given:
                self._take(name, entries[key], f"configuration key {key!r}")

    def _take(self, name: str, text: str, what: str) -> None:
        try:
            self.settings[name] = self.options[name].read(text)
        except ValueError as error:
            raise InvalidArgument(f"the value of {what} cannot be read: {error}", found=text,
                                  expected=self.options[name].doc) from error

    @classmethod
    def kernel(cls, op_type: str, **where: Any) -> Callable[[Any], Any]:
        """`@MyProvider.kernel("Softmax", since=13, types={"T": ("float",)})`
        registers a kernel of this provider."""
        return cls.kernels.kernel(op_type, provider=cls.name, **where)

    @classmethod
    def probe(cls) -> No | None:
        """None where this provider can work on this machine, else why not.
        Heavy imports wait until after it."""
        return None

    @classmethod
    def probe_with(cls, options: dict[str, Any]) -> No | None:
        """As `probe`, for an instance with these options, which may say where to look."""
        return cls.probe()

    @classmethod
    def probe_target(cls, target: str) -> No | None:
        """None where this provider can compile for a target on this machine, else why not."""
        return cls.probe()

    def claim(self, node: Node) -> No | None:
        """None to take `node`, `No(reason)` to leave it. The default takes what
        the registry has a kernel for."""
        if node.has_bodies:
            return No("control flow stays with the runtime; its bodies are partitioned themselves")
        found = self.lookup(node)
        return found if isinstance(found, No) else None

    def lookup(self, node: Node) -> KernelEntry | No:
        """The kernel for `node` among the session's and this provider's, or the reasons there is none."""
        if self.registries is None:
            return self.kernels.lookup(self.name, node, schema_of(node))
        return self.registries.lookup(self.name, node, schema_of(node))

    def claimed(self, view: GraphView) -> list[Node]:
        """The nodes of `view` that this provider claims; what it says of the others is noted there."""
        found = []
        for node in view.nodes:
            answer = self.claim(node)
            if answer is None:
                found.append(node)
            else:
                view.refuse(node, answer)
        return found

    def get_capability(self, view: GraphView) -> list[Capability]:
        """What this provider takes of a graph: each node it claims, joined into
        convex parts where it `fuses`."""
        claimed = self.claimed(view)
        if not self.fuses:
            return [Capability([node]) for node in claimed]
        from ..kernels import convex_groups

        return [Capability(group, self.name.removesuffix("ExecutionProvider"))
                for group in convex_groups(view.graph, claimed)]

    def compile(self, part: Part) -> Sequence[Kernel | No]:
        """One kernel per node of `part`, or one for all of it where the part is fused. `No(reason)` in its
        place hands the part back: its nodes are offered to the providers behind this one."""
        from ..kernels import OpKernelInfo, create_kernel

        kernels: list[Kernel | No] = []
        for node in part.nodes:
            entry = self.lookup(node)
            if isinstance(entry, No):
                raise EPFail(f"{self.name} claimed a node it has no kernel for: {entry.reason}", node=node,
                             cure="override compile(part) beside claim(node), or register a kernel")
            kernels.append(create_kernel(entry, OpKernelInfo(node, self)))
        return kernels

    def store(self, part: Part) -> Stored | No:
        """`part` compiled for the target that the options name, as bytes that `load` makes a kernel of, here
        or on another machine; nothing runs. `No(reason)` leaves the part's nodes in the model as they are."""
        return No(f"{self.name} keeps no compiled parts")

    def load(self, part: Part, stored: Stored) -> Kernel | No:
        """The kernel of a part that `store` compiled. `part` has one node, which stands for all it was made
        of; its inputs and outputs come in the order they had. `No(reason)` where these bytes are of no use
        here: made by another version, or for another machine."""
        return No(f"{self.name} loads no compiled parts")

    @classmethod
    def devices(cls) -> Sequence[Device]:
        """The devices of this machine that instances may work on, by their index; none where it cannot work
        here. Their memory is what OrtValues, bindings and DLPack name by kind and index."""
        return [cls.device] if isinstance(cls.device, Device) and cls.device is not HOST else []

    def lanes(self) -> Lanes:
        """What the runs of this provider's session use of its device, where that has streams."""
        from ..kernels import Lanes

        return Lanes(self.device)

    def tuning_results(self) -> dict[str, Any] | None:
        """What was found to be fastest, in onnxruntime's form; None for a provider that measures nothing."""
        return None

    def load_tuning_results(self, validators: Any, results: Any, enable: bool) -> No | None:
        """Take such results, made anywhere, or say why not. `enable`: go by them, whatever the options say.
        """
        return No(f"{self.name} does not support TunableOp.")

    def on_run_start(self) -> None:
        """Called before a run's first step."""

    def on_run_end(self) -> None:
        """Called after a run's last step, also when one failed."""
