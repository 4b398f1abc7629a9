"""What kernels for GPUs are written in: Triton text, put together by a function for given parameters.

In: a function decorated with `kernel`, and what has to be known while writing. Out: a `Spec`, hashable, which
is written for a target when that is known. A kernel runs on a grid of one dimension; sizes and strides are
arguments, structure is a parameter.

    @kernel
    def scaled(k: Writer, *, dtype: str, block: int) -> None:
        x, y, n = k.pointer("x", dtype), k.pointer("y", dtype), k.size("n")
        k.text(f'''
            i = tl.program_id(0).to(tl.int64) * {block} + tl.arange(0, {block})
            inside = i < {n}
        ''')
        k.store(y, "i", f"{k.load(x, 'i', 'inside')} * 2", "inside")

    scaled(dtype="float32", block=1024)     # a Spec
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from textwrap import dedent
from typing import Any

from ...records import dataclass
from ...shapes.symbolic import pinned, tracing
from ..write.expr import Expr
from ..write.spec import Parametrized
from ..write.template import has_float
from . import trees
from .targets import Target
from .trees import TYPES

POINTERS = {"float32": "*fp32", "float64": "*fp64", "float16": "*fp16", "bfloat16": "*bf16", "bool": "*u8",
            "int8": "*i8", "uint8": "*u8", "int16": "*i16", "uint16": "*u16", "int32": "*i32",
            "uint32": "*u32", "int64": "*i64", "uint64": "*u64"}
"""numpy's name of a type to how a pointer to such elements is declared; truth is a byte in memory."""

SIZE, COUNT, NUMBER = "size", "count", "number"
"""Arguments that are no pointers: integers, 32 bits wide unless their values need more, of which kernels may
be made for multiples of 16 or not; a float32."""

RARE = "rare"
"""The variable that holds whether numbers are such as hardly come: see `Writer.rarely`."""

_kernels: dict[str, Callable[..., None]] = {}


@dataclass(frozen=True)
class Written:
    """The text of a kernel: a Triton function `name` with `arguments`, each its name and how it is declared,
    SIZE, COUNT and NUMBER among them; the `warps` of a block, how many `stages` loads run ahead, what else
    the compiler is told, and the text of `functions` that it calls beside those of `trees.SUPPORT`."""

    name: str
    arguments: tuple[tuple[str, str], ...]
    body: str
    warps: int
    stages: int
    options: tuple[tuple[str, Any], ...] = ()
    functions: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """The function as Python text, without its decorator."""
        return f"def {self.name}({', '.join(name for name, _ in self.arguments)}):\n{self.body}"


class Spec(Parametrized):
    """One kernel for GPUs."""

    def written(self, target: Target) -> Written:
        """The kernel for a target."""
        return _written(self, target) if not has_float(self.params) else _write(self, target)


def kernel(write: Callable[..., None]) -> Callable[..., Spec]:
    """Declare a function that writes kernels; calling it with parameters names one of them."""
    name = write.__name__
    if name in _kernels:
        raise ValueError(f"two kernels are named {name}")
    _kernels[name] = write

    @functools.wraps(write)
    def make(**params: Any) -> Spec:
        return Spec(name, tuple(sorted((pinned(params) if tracing() else params).items())))
    return make


def _write(spec: Spec, target: Target) -> Written:
    k = Writer(target)
    _kernels[spec.template](k, **dict(spec.params))
    return Written(spec.template, tuple(k.arguments), "\n".join(k.lines) + "\n", k.warps, k.stages,
                   tuple(sorted(k.options.items())), tuple(k.functions))


_written = functools.lru_cache(1 << 12)(_write)


class Writer:
    """The text of a kernel while it is written. `warps`, `stages`, `options`: see `Written`."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.arguments: list[tuple[str, str]] = []
        self.lines: list[str] = []
        self.warps, self.stages = 4, 2
        self.options: dict[str, Any] = {}
        self.functions: list[str] = []
        self._dtypes: dict[str, str] = {}
        self._depth, self._count = 1, 0

    # arguments, in the order of a step's

    def pointer(self, name: str, dtype: str) -> str:
        """The address of a tensor's first element."""
        self._dtypes[name] = dtype
        return self.argument(name, POINTERS[dtype])

    def size(self, name: str) -> str:
        """An integer by which elements that lie next to each other are found, or masked: multiples of 16 have
        code of their own, which reads several at once."""
        return self.argument(name, SIZE)

    def count(self, name: str, near: bool = False) -> str:
        """Any other integer, with one code for all values: how many rows there are, or what a loop counts to.
        `near`: a `size` nevertheless."""
        return self.argument(name, SIZE if near else COUNT)

    def sizes(self, name: str, count: int) -> list[str]:
        """So many integers."""
        return [self.size(f"{name}{i}") for i in range(count)]

    def number(self, name: str) -> str:
        """A float32."""
        return self.argument(name, NUMBER)

    def argument(self, name: str, kind: str) -> str:
        """One declared as `Written` says."""
        assert name.isidentifier() and name not in dict(self.arguments), name
        self.arguments.append((name, kind))
        return name

    # text

    def text(self, lines: str) -> None:
        """Add lines, indented as the text around them is."""
        self.lines.extend("    " * self._depth + line if line.strip() else "" for line in dedent(
            lines).strip("\n").splitlines())

    @contextlib.contextmanager
    def block(self, head: str) -> Iterator[None]:
        """What is added inside is the body of `head`, such as `for i in range(0, n, 64):`."""
        self.text(head)
        self._depth += 1
        yield
        self._depth -= 1

    @contextlib.contextmanager
    def rarely(self, condition: str) -> Iterator[None]:
        """What is added inside is done where numbers are such as hardly come; estimates leave its loops
        out."""
        self.text(f"{RARE} = {condition}")
        with self.block(f"if {RARE}:"):
            yield

    def fresh(self, stem: str = "v") -> str:
        """A name nothing else has."""
        self._count += 1
        return f"{stem}_{self._count}"

    def let(self, value: str, stem: str = "v") -> str:
        """A new variable with a value."""
        name = self.fresh(stem)
        self.text(f"{name} = {value}")
        return name

    def dtype(self, pointer: str) -> str:
        """The type of what an argument points to."""
        return self._dtypes[pointer]

    def load(self, pointer: str, offset: str, mask: str | None = None, other: str = "0") -> str:
        """A new variable with elements of a tensor, `other` where not in `mask`."""
        inside = "" if mask is None else f", mask={mask}, other={other}"
        value = f"tl.load({pointer} + {offset}{inside})"
        return self.let(f"{value} != 0" if self._dtypes[pointer] == "bool" else value)

    def store(self, pointer: str, offset: str, value: str, mask: str | None = None) -> None:
        """Write elements of a tensor, where they are in `mask`."""
        inside = "" if mask is None else f", mask={mask}"
        if self._dtypes[pointer] == "bool":
            value = f"({value}).to(tl.uint8)"
        self.text(f"tl.store({pointer} + {offset}, {value}{inside})")

    def tree(self, tree: Expr, values: Sequence[str]) -> str:
        """A variable with the value of an expression, leaf i of which is the variable `values[i]`."""
        return trees.written(tree, values, self.let)

    def typed(self, dtype: str) -> str:
        """How Triton calls a type."""
        return TYPES[dtype]
