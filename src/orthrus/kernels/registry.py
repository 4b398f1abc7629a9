"""Which kernel computes a node: versioned, typed definitions, looked up per
provider, with a reason for every miss."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any, TypeVar

from ..errors import Fail
from ..ir import No, Node
from ..records import dataclass

if TYPE_CHECKING:
    from ..ops.schema import Schema

OPEN = (1 << 31) - 1
Creator = TypeVar("Creator", bound=Callable[..., Any])


@dataclass(frozen=True, eq=False)
class KernelDef:
    """What a kernel serves: schema versions `since_version` to `end_version` of an operator, on one provider,
    with the types each type variable (or formal name) may have; a variable left out may have any.

    An open end reaches as far as the operator's meaning stays the same.
    """

    op_type: str
    domain: str
    since_version: int
    provider: str
    end_version: int = OPEN
    type_constraints: dict[str, frozenset[str]] = field(default_factory=dict)

    @property
    def key(self) -> str:
        return f"{self.op_type} {self.domain or 'ai.onnx'} {self.provider}"

    def serves(self, version: int) -> bool:
        """Whether schema version `version` is in range."""
        if self.end_version != OPEN:
            return self.since_version <= version <= self.end_version
        if version < self.since_version:
            return False
        from ..ops import find

        return version == self.since_version or (
            find(self.domain, self.op_type, version) is find(self.domain, self.op_type, self.since_version))

    def conflicts(self, other: KernelDef) -> bool:
        """Whether a node could match both."""
        if self.key != other.key:
            return False
        if self.since_version > other.end_version or other.since_version > self.end_version:
            return False
        shared = self.type_constraints.keys() & other.type_constraints.keys()
        return not any(self.type_constraints[k].isdisjoint(other.type_constraints[k]) for k in shared)


@dataclass(frozen=True)
class KernelEntry:
    """A definition and its creator: `create(info)` answers with a compute
    function, an OpKernel, or `No(reason)`."""

    definition: KernelDef
    create: Callable[..., Any]

    @property
    def name(self) -> str:
        return self.create.__name__

    @property
    def own(self) -> bool:
        """Whether this package registered it, and not its user."""
        return self.create.__module__.startswith(__name__.partition(".")[0] + ".")


class KernelRegistry:
    """Kernels by operator, domain and provider: those of one provider, or those a session brings along."""

    def __init__(self) -> None:
        self._entries: dict[tuple[str, str, str], list[KernelEntry]] = {}

    def register(self, definition: KernelDef, create: Callable[..., Any]) -> None:
        """Add a kernel. Raises Fail where it conflicts with one already here."""
        key = (definition.op_type, definition.domain, definition.provider)
        family = self._entries.setdefault(key, [])
        for other in family:
            if definition.conflicts(other.definition):
                raise Fail(
                    f"Failed to add kernel for {definition.key}: Conflicting with a registered kernel "
                    f"with op versions. the since version is: {other.definition.since_version}",
                    found=create.__name__, expected=f"versions or types apart from those of {other.name}",
                    cure="narrow since, until or types, or remove one of the two")
        family.append(KernelEntry(definition, create))

    def kernel(self, op_type: str, *, provider: str, since: int = 1, until: int = OPEN, domain: str = "",
               types: dict[str, Sequence[str]] | None = None) -> Callable[[Creator], Creator]:
        """Register the decorated creator or OpKernel class. `types` maps type variables to ONNX element types
        (`"float"`)."""
        constraints = {k: frozenset(t if "(" in t else f"tensor({t})" for t in v)
                       for k, v in (types or {}).items()}

        def decorate(create: Creator) -> Creator:
            self.register(KernelDef(op_type, domain, since, provider, until, constraints), create)
            return create
        return decorate

    def __len__(self) -> int:
        return sum(map(len, self._entries.values()))

    def __iter__(self) -> Any:
        return (entry for family in self._entries.values() for entry in family)

    def lookup(self, provider: str, node: Node, schema: Schema | None) -> KernelEntry | No:
        """The kernel of `provider` for `node`, or every candidate's reason against it."""
        family = self._entries.get((node.op_type, node.domain, provider), ())
        if not family:
            return No("Kernel not found")
        reasons = []
        for entry in family:
            d = entry.definition
            if not d.serves(node.version):
                reasons.append(f"{entry.name}: Version mismatch. node_version: {node.version} kernel start "
                               f"version: {d.since_version} kernel_end_version: {d.end_version}")
            elif wrong := _type_mismatch(node, schema, d.type_constraints):
                reasons.append(f"{entry.name}: {wrong}")
            else:
                return entry
        return No("; ".join(reasons))


def _type_mismatch(node: Node, schema: Schema | None, constraints: dict[str, frozenset[str]]) -> str | None:
    if not constraints:
        return None
    sides: tuple[tuple[Sequence[Any], Callable[[int], Any]], ...] = (
        (node.inputs, schema.input_at if schema else lambda i: None),
        (node.outputs, schema.output_at if schema else lambda i: None))
    for values, formal_at in sides:
        for i, value in enumerate(values):
            formal = formal_at(i)
            if value is None or formal is None or value.type is None:
                continue
            allowed = constraints.get(formal.variable, constraints.get(formal.name))
            if allowed is not None and str(value.type) not in allowed:
                return f"type {value.type} of {formal.name} is not among {', '.join(sorted(allowed))}"
    return None


class KernelRegistryManager:
    """The registries of one session: its own first, then one per provider."""

    def __init__(self, custom: Iterable[KernelRegistry] = ()) -> None:
        self._custom = list(custom)
        self._registries: dict[str, KernelRegistry] = {}

    def register(self, provider: str, registry: KernelRegistry) -> None:
        """Set the registry of a provider."""
        self._registries[provider] = registry

    def lookup(self, provider: str, node: Node, schema: Schema | None) -> KernelEntry | No:
        """The kernel of `provider` for `node`, or the reasons there is none."""
        reasons = []
        for registry in [*self._custom, self._registries.get(provider, KernelRegistry())]:
            found = registry.lookup(provider, node, schema)
            if not isinstance(found, No):
                return found
            reasons.append(found.reason)
        return No("; ".join(dict.fromkeys(reasons)))
