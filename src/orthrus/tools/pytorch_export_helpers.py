"""Input names for `torch.onnx.export`, from the arguments a module is called with.

In: a torch module and the arguments of one call. Out: a name for each tensor the exported graph will take, in
its order, and the arguments as the exporter wants them. Needs torch only where an argument is a bare number.
Names are those of `onnxruntime.tools.pytorch_export_helpers`.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator, Mapping, Sequence
from typing import Any


def infer_input_info(module: Any, *inputs: Any, **kwargs: Any) -> tuple[list[str], tuple[Any, ...]]:
    """Names and values to give `torch.onnx.export` as `input_names` and `args` for the call `module(*inputs,
    **kwargs)`: names follow the parameters of `module.forward`; what is None has no name; the elements of a
    list or mapping have one each, after the parameter and their index or key."""
    parameters = inspect.signature(module.forward).parameters.values()
    names = list(_names(parameters, inputs, kwargs))
    values = [_tensor(value) for value in inputs]
    values += [_tensor(kwargs[name]) for name in names if name in kwargs]
    return names, tuple(values if kwargs else [*values, {}])


def _names(parameters: Any, inputs: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[str]:
    taken, seen = 0, set[str]()
    for parameter in parameters:
        if parameter.kind is parameter.VAR_POSITIONAL:
            for count, value in enumerate(inputs[taken:]):
                yield from _parts(f"{parameter.name}_{count}", value)
            taken = len(inputs)
        elif parameter.kind is parameter.VAR_KEYWORD:
            for name, value in kwargs.items():
                if name not in seen:
                    yield from _parts(name, value)
        else:
            value = None
            if parameter.kind is not parameter.KEYWORD_ONLY and taken < len(inputs):
                value, taken = inputs[taken], taken + 1
            if value is None:
                value = kwargs.get(parameter.name)
            seen.add(parameter.name)
            yield from _parts(parameter.name, value)


def _parts(name: str, value: Any) -> Iterator[str]:
    if value is None:
        return
    if isinstance(value, Mapping):
        for key, part in value.items():
            yield from _parts(f"{name}_{key}", part)
    elif isinstance(value, Sequence):
        for index, part in enumerate(value):
            yield from _parts(f"{name}_{index}", part)
    else:
        yield name


def _tensor(value: Any) -> Any:
    if type(value) not in (int, bool, float):
        return value
    try:
        torch = importlib.import_module("torch")
    except ImportError as error:
        raise ImportError("a bare number among a module's arguments becomes a tensor: "
                          "install torch") from error
    return torch.tensor(value)
