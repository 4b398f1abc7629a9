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
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, ClassVar

from .emit import BYTES, F32, HALVES, I1, I32, I64, PTR, Function, Module, V, suffix, vec
from .expr import Expr
from .machine import Machine
from .sizes import pinned, tracing

ENTRY = "kernel"
OUTSIDE = 2
"""What a kernel leaves in a part's status where numbers are outside the range it is for; 1 is that it gave
up."""

_templates: dict[str, Template] = {}


class Body(Function):
    """The function a template writes. `lo`, `hi`: the work items; `scratch`: memory of this thread's own,
    64-byte aligned, of the size the step asks for; `machine`: what is written for."""

    def __init__(self, module: Module, machine: Machine) -> None:
        super().__init__(module, ENTRY, [("ptr", "args"), ("i64", "lo"), ("i64", "hi"), ("ptr", "scratch")],
                         "void", False)
        module.functions.append(self)
        self.machine = machine
        if machine.arch == "riscv64" and not machine.has("zvfh"):
            self.as_integers = HALVES
        self.args, self.lo, self.hi, self.scratch = self.params

    def arg(self, index: int, ty: str) -> V:
        """Cell `index` of the arguments, as `ptr`, `i64`, `i32`, `float` or `double`."""
        if ty not in (PTR, I64, F32, I32, "double"):
            raise ValueError(f"an argument is no {ty}")
        return self.load(ty, self.gep(self.args, index, I64), 0, 8)

    def gather(self, elem: str, base: V, index: V, step: str = "", mask: V | None = None) -> V:
        """The elements of type `elem` at `base` + index, counted in elements of type `step`; 0 where not in
        `mask`."""
        at = self.emit(vec(PTR, index.lanes), f"getelementptr {step or elem}, {base}, {index}", base)
        return self.gathered(elem, at, mask if mask is not None else self.const(vec(I1, index.lanes), True))

    def gathered(self, elem: str, at: V, mask: V) -> V:
        """The elements at the addresses `at`; 0 where not in `mask`."""
        ty, name = vec(elem, at.lanes), f"masked.gather.v{at.lanes}{suffix(elem)}.v{at.lanes}p0"
        self.module.declared[name] = f"declare {ty} @llvm.{name}({at.ty}, {mask.ty}, {ty})"
        return self.emit(ty, f"call {ty} @llvm.{name}({at.ty} align {BYTES[elem]} {at.ref}, {mask}, "
                             f"{self.zero(ty)})")

    def scatter(self, x: V, base: V, index: V, mask: V) -> None:
        """Store the lanes of `x` that are in `mask` at `base` + index, counted in its elements."""
        at = self.emit(vec(PTR, x.lanes), f"getelementptr {x.elem}, {base}, {index}", base)
        self.scattered(x, at, mask)

    def scattered(self, x: V, at: V, mask: V) -> None:
        name = f"masked.scatter.v{x.lanes}{suffix(x.elem)}.v{x.lanes}p0"
        self.module.declared[name] = f"declare void @llvm.{name}({x.ty}, {at.ty}, {mask.ty})"
        self.line(f"call void @llvm.{name}({x}, {at.ty} align {BYTES[x.elem]} {at.ref}, {mask})")

    def load_tile(self, tile: int, at: V, stride: V, rows: int | V = 16) -> None:
        """A register of the matrix unit: `rows` rows of 64 bytes, as many as it is configured for, `stride`
        bytes apart."""
        self.module.declared["x86.tileloadd64"] = "declare void @llvm.x86.tileloadd64(i8 immarg, ptr, i64)"
        self.line(f"call void @llvm.x86.tileloadd64(i8 {tile}, {at}, {stride})")

    def store_tile(self, tile: int, at: V, stride: V, rows: int | V = 16) -> None:
        self.module.declared["x86.tilestored64"] = "declare void @llvm.x86.tilestored64(i8 immarg, ptr, i64)"
        self.line(f"call void @llvm.x86.tilestored64(i8 {tile}, {at}, {stride})")

    def fence(self) -> None:
        """None on RISC-V: nothing is moved there anyway, and behind one LLVM sets the vector length anew."""
        if self.machine.arch != "riscv64":
            super().fence()


@dataclass(frozen=True)
class Spec:
    """One kernel: a template with its parameters."""

    sizeless: ClassVar[bool] = True

    template: str
    params: tuple[tuple[str, Any], ...]

    def __str__(self) -> str:
        return f"{self.template}({', '.join(f'{k}={v}' for k, v in self.params)})"

    @property
    def operands(self) -> int:
        """How many tensors its closing tree reads besides the kernel's own value."""
        return next((len(given) for name, given in self.params if name == "operands"), 0)

    @property
    def brought(self) -> bytes | None:
        """The object code of a kernel that came compiled, None for one that is written here."""
        return None

    @property
    def origin(self) -> str:
        """The file that holds the template."""
        return _templates[self.template].write.__code__.co_filename

    def text(self, machine: Machine) -> str:
        """The kernel as LLVM assembly."""
        made = _templates[self.template]
        module = Module(machine.triple)
        body = _body(machine)(module, machine)
        given = {name: body.arg(i, ty) for i, (name, ty) in enumerate(made.cells)}
        made.write(body, **given, **dict(self.params))
        body.ret()
        return str(module)


def _body(machine: Machine) -> type[Body]:
    if not machine.checked:
        return Body
    from .bounds import Checked

    return Checked


class Template:
    """A function that writes kernels; calling it with parameters names one of them."""

    def __init__(self, cells: str, write: Callable[..., None]) -> None:
        self.cells = [(name, ty) for name, _, ty in (cell.partition(":") for cell in cells.split())]
        self.write, self.name, self.__doc__ = write, write.__name__, write.__doc__
        if self.name in _templates:
            raise ValueError(f"two templates are named {self.name}")
        _templates[self.name] = self

    def __call__(self, **params: Any) -> Spec:
        if tracing():
            params = pinned(params)
        given = tuple(sorted(params.items()))
        made, shared = _spec(self.name, given, tuple([type(value) for _, value in given]))
        return made if shared else Spec(self.name, given)


@functools.lru_cache(1 << 12)
def _spec(name: str, params: tuple[tuple[str, Any], ...], types: tuple[type, ...]) -> tuple[Spec, bool]:
    """The kernel, and whether it is that of all equal parameters of these types."""
    return Spec(name, params), not _has_float(params)


def _has_float(value: Any) -> bool:
    """Whether there is a float in `value`: it may equal what it differs from, 0.0, -0.0 and 0. Expressions
    tell these apart."""
    if isinstance(value, tuple):
        return any(map(_has_float, value))
    if is_dataclass(value) and not isinstance(value, Expr):
        return any(_has_float(getattr(value, each.name)) for each in fields(value))
    return isinstance(value, float)


def template(cells: str) -> Callable[[Callable[..., None]], Template]:
    """Declare a template. `cells`: the arguments every kernel of it takes, as `name:type`; further ones,
    whose number depends on the parameters, are read with `f.arg(i, type)` behind them."""
    return lambda write: Template(cells, write)
