"""Operators whose bodies are functions in Triton's language that a user wrote.

In: tensors of any strides, broadcast to one shape, and the text of a function of blocks. Out: what it
returns, elements of that shape.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable
from typing import Any

from ....records import dataclass
from ..epilogue import Walk
from ..write import Writer, kernel

SIZE = "size"
"""The parameter that is a row's length."""


@dataclass(frozen=True)
class Function:
    """`text` defines `name`, whose parameters are these."""

    name: str
    parameters: tuple[str, ...]
    text: str


def function(body: Callable[..., Any] | str) -> Function:
    """A function in Triton's language, or its text. Raises ValueError where there is not just one."""
    made = getattr(body, "fn", body)
    try:
        text = textwrap.dedent(made if isinstance(made, str) else inspect.getsource(made))
        found = [it for it in ast.parse(text).body if isinstance(it, ast.FunctionDef)]
    except (OSError, TypeError, SyntaxError) as error:
        raise ValueError(f"the text of the Triton function {body!r} cannot be read ({error}); "
                         "pass it as a str") from None
    if len(found) != 1 or found[0].args.vararg or found[0].args.kwarg:
        raise ValueError(f"triton takes one function with named parameters, found {len(found)} in {text!r}")
    it = found[0]
    lines = text.splitlines()[it.lineno - 1:it.end_lineno]
    return Function(it.name, tuple(a.arg for a in (*it.args.posonlyargs, *it.args.args, *it.args.kwonlyargs)),
                    "\n".join(lines))


@kernel
def custom(k: Writer, *, called: Function, results: tuple[str, ...], inputs: tuple[tuple[str, str], ...],
           attributes: tuple[tuple[str, Any], ...], walk: Walk, block: int, rows: bool) -> None:
    """`called` of `inputs`, each a parameter and its type; the tensors of `walk` are `results`, then those.
    Programs count blocks of elements, or rows."""
    k.functions.append(f"{called.text}\n\n\n_called = {called.name}")
    outs = [k.pointer(f"out{i}", dtype) for i, dtype in enumerate(results)]
    given = [k.pointer(f"x{i}", dtype) for i, (_, dtype) in enumerate(inputs)]
    size = k.size("size")
    walking = walk.declare(k)
    if rows:
        k.text(f"""
            i = tl.arange(0, {block})
            inside = i < {size}
        """)
        indices = [("tl.program_id(0)", None), ("i", "inside")]
    else:
        k.text(f"""
            i = tl.program_id(0) * {block} + tl.arange(0, {block})
            inside = i < {size}
        """)
        indices = [("i", "inside")]
    places = walking.offsets(range(len(outs) + len(given)), indices)
    values = {}
    for (name, _), pointer, (at, mask) in zip(inputs, given, places[len(outs):], strict=True):
        x = k.load(pointer, at, mask)
        values[name] = k.let(f"tl.broadcast_to({x}, ({block},))" if mask is None else x, "x")
    values |= {name: repr(value) for name, value in attributes}
    if SIZE in called.parameters and SIZE not in values:
        values[SIZE] = size
    wanted = [f"{name}={values.get(name)}" for name in called.parameters]
    names = [k.fresh("made") for _ in outs]
    k.text(f"{', '.join(names)} = _called({', '.join(wanted)})")
    for out, name, (at, _) in zip(outs, names, places, strict=False):
        k.store(out, at, name, "inside")
    k.warps = max(1, min(8, block // 256))
