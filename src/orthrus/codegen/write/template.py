"""Kernel templates: functions that write one kernel for given parameters, and the names those kernels go by.

Every kernel has one signature, `void kernel(i64* args, i64 lo, i64 hi, i8* scratch)`: it does the work items
from `lo` to `hi`, which do not depend on each other, so that any division among threads gives the same bits.
`args` is a row of 8-byte cells: addresses, sizes, and floats in their low bytes. Sizes are arguments wherever
that costs nothing, so that one kernel serves many shapes; what has to be known while writing is a parameter.

    @template("x:ptr y:ptr n:i64 alpha:float")
    def scaled(f, x, y, n, alpha, *, lanes): ...

    scaled(lanes=16)     # a Spec: hashable, compiled once, found on disk the next time
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from types import SimpleNamespace
from typing import Any

from ...shapes.symbolic import pinned, tracing
from ..machines.machine import Machine
from .body import Body
from .bounds import Checked
from .emit import Module
from .expr import Expr
from .spec import Spec, templates

GAVE_UP, OUTSIDE, NO_BRANCH = 1, 2, 3
"""What a kernel leaves in a part's status: that it gave up, that numbers are outside the range it is for,
that a branch was taken which cannot be computed from inputs of these shapes."""

class Template:
    """A function that writes kernels; calling it with parameters names one of them."""

    def __init__(self, cells: str, write: Callable[..., None], together: bool) -> None:
        self.cells = [(name, ty) for name, _, ty in (cell.partition(":") for cell in cells.split())]
        self.write, self.name, self.__doc__ = write, write.__name__, write.__doc__
        self.__module__ = write.__module__
        self.together = together
        if self.name in templates:
            raise ValueError(f"two templates are named {self.name}")
        templates[self.name] = self

    def __reduce__(self) -> str:
        return self.name

    @property
    def origin(self) -> str:
        """The file that writes its kernels."""
        return self.write.__code__.co_filename

    def text(self, machine: Machine, params: dict[str, Any]) -> str:
        """The kernel of these parameters as LLVM assembly."""
        module = Module(machine.triple)
        body = (Checked if machine.checked else Body)(module, machine)
        given = {name: body.arg(i, ty) for i, (name, ty) in enumerate(self.cells)}
        if self.together:
            self.write(body, SimpleNamespace(**given), **params)
        else:
            self.write(body, **given, **params)
        body.ret()
        return str(module)

    def __call__(self, **params: Any) -> Spec:
        if tracing():
            params = pinned(params)
        given = tuple(sorted(params.items()))
        made, shared = _spec(self.name, given, tuple([type(value) for _, value in given]))
        return made if shared else Spec(self.name, given)


@functools.lru_cache(1 << 12)
def _spec(name: str, params: tuple[tuple[str, Any], ...], types: tuple[type, ...]) -> tuple[Spec, bool]:
    """The kernel, and whether it is that of all equal parameters of these types."""
    return Spec(name, params), not has_float(params)


def has_float(value: Any) -> bool:
    """Whether there is a float in `value`: it may equal what it differs from, 0.0, -0.0 and 0. Expressions
    tell these apart."""
    if isinstance(value, tuple):
        return any(map(has_float, value))
    if is_dataclass(value) and not isinstance(value, Expr):
        return any(has_float(getattr(value, each.name)) for each in fields(value))
    return isinstance(value, float)


def template(cells: str, together: bool = False) -> Callable[[Callable[..., None]], Template]:
    """Declare a template. `cells`: the arguments every kernel of it takes, as `name:type`, each an argument
    of the function by its name, or all `together` attributes of its second one. Further ones, whose number
    depends on the parameters, are read with `f.arg(i, type)` behind them."""
    return lambda write: Template(cells, write, together)
