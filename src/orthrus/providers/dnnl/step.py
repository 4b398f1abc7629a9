"""What a walk writes: steps, and the nodes that become post-ops; and the two registers of rules for that."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field
from typing import TYPE_CHECKING, Any, TypeVar

from ...ir import Node, Value
from ...records import dataclass
from .generated import GeneratedCode
from .objects import PostOp, Primitive
from .tensor import Argument, Tensor

if TYPE_CHECKING:
    from .lower import Lowering

R = TypeVar("R", bound=Callable[..., Any])


@dataclass(eq=False)
class DnnlStep:
    """One primitive's execution; with `code` a generated kernel's; or with `host` a call of a definition on
    numpy arrays. The latter two read `reads`. `nodes`: all whose work it does, `node` among them; `reason`:
    why it is a definition."""

    node: Node
    nodes: tuple[Node, ...]
    kernel: str
    args: list[Argument]
    outs: list[Tensor]
    primitive: Primitive | None = None
    host: Callable[..., Any] | None = None
    reads: list[Tensor | None] = field(default_factory=list)
    reason: str = ""
    scratch: Tensor | None = None
    code: GeneratedCode | None = None

    def tensors(self) -> list[Tensor]:
        """Every tensor it touches."""
        found = [t for _, t in self.args] + self.outs + [t for t in self.reads if t is not None]
        return found if self.scratch is None else [*found, self.scratch]


@dataclass(frozen=True, slots=True)
class Link:
    """A node that becomes a post-op: `post`, with `operand` where it has a second input; or the
    QuantizeLinear that ends a chain, with its scale, zero point and type."""

    node: Node
    post: PostOp | None = None
    operand: Tensor | None = None
    dtype: str = ""
    scale: float = 1.0
    zero: int = 0


class Chain(list[Link]):
    """Links in their order."""

    @property
    def dtype(self) -> str:
        """The type the last link that changes it gives, "" where none does."""
        return next((link.dtype for link in reversed(self) if link.dtype), "")

    @property
    def quantizes(self) -> Link | None:
        """The QuantizeLinear at its end."""
        return self[-1] if self and self[-1].node.op_type == "QuantizeLinear" else None


RULES: dict[tuple[str, str], Callable[[Lowering, Node], Any]] = {}
"""How an operator becomes steps: a rule gives a result for each output, or has bound them by `finish`, or
`No` where it leaves the node to its definition."""

LINKS: dict[tuple[str, str], Callable[[Lowering, Node, Value, tuple[int, ...]], Link | None]] = {}
"""How a node that reads `value` becomes a post-op of the primitive that makes it, None where it cannot."""


def lowers(*kinds: str) -> Callable[[R], R]:
    """Register a rule for operators, named `Softmax` or `com.microsoft::Gelu`."""
    return _into(RULES, kinds)


def links(*kinds: str) -> Callable[[R], R]:
    """Register how operators become post-ops."""
    return _into(LINKS, kinds)


def _into(table: dict[tuple[str, str], Any], kinds: tuple[str, ...]) -> Callable[[R], R]:
    def register(rule: R) -> R:
        for kind in kinds:
            domain, _, op_type = kind.rpartition("::")
            table[domain, op_type] = rule
        return rule
    return register
