"""A module or an exported program becomes an ONNX model in memory, its weights left where torch has them.

In: a torch module with the arguments of one call, or a `torch.export.ExportedProgram`. Out: an `Exported`: a
ModelProto whose large weights are arrays over torch's memory, never copied, whatever their size.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import logging
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import torch
from torch.utils import _pytree as pytree

from ..api.options import SessionOptions
from ..api.ortvalue import OrtValue
from ..api.session import InferenceSession
from ..errors import InvalidArgument
from ..load import load, save
from ..records import dataclass
from .tensors import array_of

_APART = 1 << 12
"""Bytes from which on a weight is not copied into the model."""
_PROTOBUF = 1 << 30
"""Bytes of weights from which on a saved model has them in a file beside it."""


@dataclass
class Exported:
    """A model and the weights that are not in it, by name. `inputs`, `outputs`: names, in the order of the
    tensors among what the module takes and gives."""

    model: onnx.ModelProto
    weights: dict[str, np.ndarray]
    inputs: list[str]
    outputs: list[str]

    def session(self, options: SessionOptions | None, weights: Mapping[str, np.ndarray] | None = None,
                **keywords: Any) -> InferenceSession:
        """A session over the weights, which have to stay as they are. `weights`: for some of the inputs,
        which then are not fed. By default it has as many threads as torch. Raises as `InferenceSession`
        does."""
        given = {**self.weights, **(weights or {})}
        chosen = options.__copy__() if options is not None else SessionOptions()
        if options is None:
            chosen.intra_op_num_threads = torch.get_num_threads()
        for name, array in given.items():
            chosen.add_initializer(name, OrtValue.ortvalue_from_numpy(array))
        model = self.model
        if weights:
            model = onnx.ModelProto()
            model.CopyFrom(self.model)
            kept = [value for value in model.graph.input if value.name not in weights]
            del model.graph.input[:]
            model.graph.input.extend(kept)
        return InferenceSession(model, chosen, **keywords)

    def save(self, path: str) -> None:
        """Write the model as an ONNX file, with its weights in `<path>.data` beside it where they are many.
        Raises OSError where that cannot be done."""
        graph = load(self.model, initializers=self.weights)
        if sum(array.nbytes for array in self.weights.values()) < _PROTOBUF:
            save(graph, path)
        else:
            save(graph, path, external_file=f"{os.path.basename(path)}.data")


def by_dynamo(source: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None,
              dynamic_shapes: Any = None, opset: int | None = None) -> tuple[Exported, list[str], Any]:
    """The model of a module or an ExportedProgram, by torch's new exporter; the names of its outputs, where
    one that is given twice comes twice; and the ExportedProgram. Raises what the exporter does."""
    named = dict(kwargs or {})
    # without keywords the exporter takes a dict at the end of the arguments for them
    positional = tuple(args) if named else (*args, {})
    with _quiet():
        program = torch.onnx.export(source, positional, kwargs=named, dynamo=True, verbose=False,
                                    dynamic_shapes=dynamic_shapes, opset_version=opset, optimize=False)
    graph, weights = program.model.graph, dict[str, np.ndarray]()
    for name, value in list(graph.initializers.items()):
        tensor = value.const_value
        if tensor is not None and tensor.nbytes >= _APART:
            weights[name] = np.ascontiguousarray(tensor.numpy())
            del graph.initializers[name]
    inputs, outputs = ([value.name for value in row] for row in (graph.inputs, graph.outputs))
    model = program.model_proto
    distinct = {value.name: value for value in model.graph.output}
    del model.graph.output[:]
    model.graph.output.extend(distinct.values())
    return Exported(model, weights, inputs, list(distinct)), outputs, program.exported_program


def written_by(program: Any) -> list[str]:
    """The buffers and inputs that an ExportedProgram, as `by_dynamo` gives it, writes to."""
    signature = program.graph_signature
    return [*signature.buffers_to_mutate.values(), *signature.user_inputs_to_mutate.values()]


def complex_among(program: Any) -> bool:
    """Whether an input or a result of an ExportedProgram is complex; its model has pairs of numbers there."""
    graph = program.graph
    ends = (*graph.find_nodes(op="placeholder"), *graph.output_node().args[0])
    values = [node.meta.get("val") for node in ends if isinstance(node, torch.fx.Node)]
    return any(isinstance(value, torch.Tensor) and value.is_complex() for value in values)


def by_script(module: Any, args: Sequence[Any], kwargs: Mapping[str, Any], dynamic_shapes: Any,
              opset: int | None, warn: bool) -> tuple[Exported, dict[int, str], Any, list[Any]]:
    """The model of a module by torch's old exporter; the outputs' names, by the leaves of the module's result
    that they are; the structure of that result; and its leaves for the example. Raises what the exporter
    does. `warn`: where a branch or a number depends on data, and is settled by the example, warn instead of
    raising TracerWarning."""
    network, tensors = _flat(module, args, kwargs)
    inputs = [f"input_{i}" for i in range(len(tensors))]
    axes = dict(zip(inputs, _dynamic_dims(module, args, kwargs, dynamic_shapes), strict=True))
    file = io.BytesIO()
    leaves, structure = pytree.tree_flatten(module(*args, **kwargs))
    with _quiet():
        warnings.simplefilter("default" if warn else "error", torch.jit.TracerWarning)
        torch.onnx.export(network, tuple(tensors), file, dynamo=False, verbose=False, export_params=False,
                          input_names=inputs, dynamic_axes=axes, opset_version=opset)
    model = onnx.ModelProto.FromString(file.getvalue())
    stored = dict([*network.named_parameters(remove_duplicate=False),
                   *network.named_buffers(remove_duplicate=False)])
    weights = {value.name: array_of(stored[value.name].detach())
               for value in model.graph.input if value.name in stored}
    fed = [value for value in model.graph.input if value.name not in weights]
    del model.graph.input[:]
    model.graph.input.extend(fed)
    outputs = [value.name for value in model.graph.output]
    return (Exported(model, weights, inputs, outputs), dict(zip(network.traced, outputs, strict=True)),
            structure, leaves)


def _flat(module: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, list[Any]]:
    """`module` as one that takes the tensors among its arguments in a row and gives those among its results
    likewise, noting which leaves these are in `traced`; and the tensors."""
    leaves, structure = pytree.tree_flatten((tuple(args), dict(kwargs)))

    class Flat(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.module, self.traced = module, list[int]()

        def forward(self, *tensors: Any) -> Any:
            rest = iter(tensors)
            whole = [next(rest) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
            positional, named = pytree.tree_unflatten(whole, structure)
            results = pytree.tree_leaves(self.module(*positional, **named))
            self.traced = [i for i, result in enumerate(results) if isinstance(result, torch.Tensor)]
            return tuple(results[i] for i in self.traced)

    return Flat().train(module.training), [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]


def _dynamic_dims(module: Any, args: Sequence[Any], kwargs: Mapping[str, Any],
                  dynamic_shapes: Any) -> Iterator[dict[int, str]]:
    """For each tensor among the arguments: the names of its open dimensions."""
    given: Any = [*args, *kwargs.values()]
    if isinstance(dynamic_shapes, Mapping):
        given = inspect.signature(module.forward).bind(*args, **kwargs).arguments
    for count, (_, shape) in enumerate(_paired(given, dynamic_shapes)):
        dims = enumerate(shape) if isinstance(shape, list | tuple) else (shape or {}).items()
        yield {d: name if isinstance(name, str) else getattr(name, "__name__", f"dim_{count}_{d}")
               for d, name in dims if name is not None and not isinstance(name, int)
               and name is not torch.export.Dim.STATIC}


def _paired(given: Any, shapes: Any) -> Iterator[tuple[Any, Any]]:
    """Each tensor in `given` with what `shapes`, of the same structure, says of it. Raises InvalidArgument
    where the structures differ."""
    if isinstance(given, torch.Tensor):
        yield given, shapes
    elif isinstance(given, Mapping):
        for key, value in given.items():
            yield from _paired(value, None if shapes is None else shapes.get(key))
    elif isinstance(given, list | tuple):
        if shapes is not None and len(shapes) != len(given):
            raise InvalidArgument("dynamic_shapes has another structure than the example inputs",
                                  found=f"{len(shapes)} entries", expected=f"{len(given)} entries")
        for i, value in enumerate(given):
            yield from _paired(value, None if shapes is None else shapes[i])


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without what the exporters say to their own developers; errors come through."""
    logger = logging.getLogger("torch.onnx")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(before)
