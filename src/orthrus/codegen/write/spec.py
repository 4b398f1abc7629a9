"""Kernels by name: what writes one, and with which parameters.

Nothing that writes code is imported before code has to be written: whoever reads compiled kernels from disk
names them, and writes none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from ...records import dataclass

if TYPE_CHECKING:
    from ..machines.machine import Machine
    from .template import Template

ENTRY = "kernel"
"""The function that a kernel's code defines."""

templates: dict[str, Template] = {}
"""Those that were declared, by name."""


@dataclass(frozen=True)
class Parametrized:
    """One kernel: the name of what writes it, with its parameters."""

    sizeless: ClassVar[bool] = True

    template: str
    params: tuple[tuple[str, Any], ...]

    def __str__(self) -> str:
        return f"{self.template}({', '.join(f'{k}={v}' for k, v in self.params)})"

    @property
    def operands(self) -> int:
        """How many tensors its closing tree reads besides the kernel's own value."""
        return next((len(given) for name, given in self.params if name == "operands"), 0)


class Spec(Parametrized):
    """One kernel of a template. A pickle names the template by its module, which whoever reads it imports."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _of, (templates[self.template], self.params)

    @property
    def origin(self) -> str:
        """The file that holds the template."""
        return templates[self.template].origin

    def text(self, machine: Machine) -> str:
        """The kernel as LLVM assembly."""
        return templates[self.template].text(machine, dict(self.params))


def _of(template: Template, params: tuple[tuple[str, Any], ...]) -> Spec:
    return Spec(template.name, params)
