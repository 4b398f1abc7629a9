"""Operators in Python: a function becomes an operator that models can name."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

_ours: set[tuple[str, str, int]] = set()


def _parsed(name: str) -> tuple[str, str]:
    domain, found, op_type = name.rpartition("::")
    if not op_type or (found and not domain):
        raise ValueError(f"{name!r} is no operator name; expected 'domain::Name'")
    return ("" if domain == "ai.onnx" else domain), op_type


def op(name: str, *, version: int = 1, types: Mapping[str, Sequence[str]] | None = None,
       infer: Callable[..., Sequence[Any]] | None = None, outputs: int | None = 1, widen: bool = False,
       result: str | None = None, replace: bool = False, triton: Callable[..., Any] | str | None = None,
       rows: bool = False) -> Callable[[Callable[..., Any]], Any]:
    """Define an operator from Python: `@orthrus.op("my.domain::Foo")` before a function of arrays.

    Positional parameters are the operator's inputs, None by default where one may be absent; keyword-only
    parameters are its attributes, annotated `int`, `float`, `str` or a list of one, required where they have
    no default. The function gets numpy arrays and returns one, or a tuple of them; it must not change its
    inputs.

    `version`: the first version of the domain's opset that this serves. `types`: element types per input,
    such as {"x": ("float", "double")}. `infer(*inputs, **attributes)` answers a type per output, from values
    with `.elem` and `.shape`; `result`: "same" or an element type, where shapes need not be known. `widen`:
    half-precision inputs arrive as float32. `replace`: take the place of an operator that is not yours.
    Defining the same again replaces it.

    `triton`: what providers for GPUs run instead of the function: a function in Triton's language, or its
    text. Its parameters are named as inputs and attributes are; inputs are blocks of elements, broadcast, and
    it returns a block, or a tuple of them, of the inputs' common shape. With `rows` a block is a row, the
    last axis, with zeros behind its end up to a power of two; a parameter `size` gets the row's length.

    Raises ValueError for a name that is none, or that of an operator which is there already, and for a
    Triton function whose parameters are others.
    """
    domain, op_type = _parsed(name)

    def decorate(body: Callable[..., Any]) -> Any:
        from ..ops import define

        key = (domain, op_type, version)
        known = [o for o in define.versions(domain, op_type) if o.since == version]
        if known and not (replace or key in _ours):
            raise ValueError(f"{name} version {version} is defined already; pass replace=True to take its "
                             "place")
        if known:
            _forget(key)
        made = define.define(body, domain=domain, name=op_type, since=version, types=dict(types or {}),
                             widen=widen, result=result, outputs=outputs)
        if infer is not None:
            made.infer_with(infer)
        if triton is not None:
            from ..lowering.gpu.rules import custom

            try:
                custom.register(made, triton, rows)
            except ValueError:
                _forget(key)
                raise
        _ours.add(key)
        return made
    return decorate


def unregister_op(name: str) -> None:
    """Forget what `op` defined under a name. Raises ValueError where it defined nothing."""
    domain, op_type = _parsed(name)
    mine = [key for key in _ours if key[:2] == (domain, op_type)]
    if not mine:
        raise ValueError(f"{name} was not defined by orthrus.op")
    for key in mine:
        _forget(key)
        _ours.discard(key)
    if "orthrus.lowering.gpu.rules.custom" in sys.modules:
        sys.modules["orthrus.lowering.gpu.rules.custom"].forget(domain, op_type)


def _forget(key: tuple[str, str, int]) -> None:
    """Take one definition out of its operator's row, and put the others back."""
    from ..ops import define

    domain, op_type, version = key
    others = [o for o in define.versions(domain, op_type) if o.since != version]
    define.forget(domain, op_type)
    for other in others:
        define._register(other)
