"""`from_torch`: a torch module, exported, optimized and ready to be called with tensors.

In: a module and the arguments of one call. Out: a `CompiledModule`, which takes and gives what the module
does, over the same memory as torch's tensors. Its weights are the module's of the time it was made.
"""

from __future__ import annotations

import contextlib
import inspect
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.export.graph_signature import (
    ConstantArgument,
    OutputKind,
    SymBoolArgument,
    SymFloatArgument,
    SymIntArgument,
)
from torch.utils import _pytree as pytree

from ..api.options import SessionOptions
from ..api.session import InferenceSession
from ..errors import Fail, InvalidArgument
from ..errors import NotImplemented as NotSupported
from ..records import dataclass
from .export import Exported, by_dynamo, by_script, complex_among, written_by
from .report import Fallback
from .tensors import array_of, tensor_of

log = logging.getLogger("orthrus")


def from_torch(module: Any, example_inputs: Any = (), example_kwargs: Mapping[str, Any] | None = None, *,
               dynamic_shapes: Any = None, exporter: str | None = None, opset_version: int | None = None,
               sess_options: SessionOptions | None = None, providers: Sequence[Any] | None = None,
               **keywords: Any) -> CompiledModule:
    """Make a function of tensors out of `module`, as it computes in evaluation mode:

        fast = orthrus.from_torch(model, (image,), dynamic_shapes=({0: "batch"},))
        scores = fast(image)

    `example_inputs`: a tensor, a tuple of positional arguments, or a dict of keyword arguments;
    `example_kwargs`: keyword arguments beside positional ones. Values in them that are no tensors are part of
    what is compiled. `dynamic_shapes`: which dimensions may change, as for `torch.export.export`; no other
    may. `exporter`: "dynamo" or "script"; by default the first that succeeds, in this order; the latter only
    where no branch depends on data, which it would settle by the example. `sess_options`, `providers` and
    further keywords: as for `InferenceSession`, with as many threads as torch by default.

    The weights are shared with the module: what is written into them later has no defined effect. Raises
    InvalidArgument for arguments that are none, Fail where no exporter can export the module, with the
    reasons of each, and what `InferenceSession` raises.
    """
    args, kwargs = _arguments(example_inputs, example_kwargs)
    if not isinstance(module, torch.nn.Module):
        raise InvalidArgument("from_torch takes a torch.nn.Module", found=type(module).__name__,
                              cure="wrap a function in a module's forward")
    if exporter is not None and exporter not in _EXPORTERS:
        raise InvalidArgument("no such exporter", found=repr(exporter), expected=", ".join(_EXPORTERS))
    fallbacks: list[Fallback] = []
    with _evaluating(module), torch.no_grad():
        for name in [exporter] if exporter else list(_EXPORTERS):
            try:
                exported, results = _EXPORTERS[name](module, args, kwargs, dynamic_shapes, opset_version,
                                                     exporter is not None)
                session = exported.session(sess_options, providers=providers, **keywords)
            except _Unfaithful as error:
                raise error.args[0] from None
            except Exception as error:
                fallbacks.append(Fallback.of(f"the {name} exporter", error))
                log.warning("from_torch: %s", fallbacks[-1])
            else:
                return CompiledModule(exported, session, _Call(module, args, kwargs), results, fallbacks)
    raise Fail(f"{type(module).__name__} cannot be exported", found="; ".join(map(str, fallbacks)),
               expected="a module that torch.onnx.export takes",
               cure="change what the reasons name, or use torch.compile(backend='orthrus'), which leaves to "
               "torch what cannot be exported")


class _Unfaithful(Exception):
    """The model would do something else than the module, by any exporter; holds the error to raise."""


def _arguments(inputs: Any, kwargs: Mapping[str, Any] | None) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(inputs, torch.Tensor):
        inputs = (inputs,)
    if isinstance(inputs, Mapping):
        return (), {**inputs, **(kwargs or {})}
    if not isinstance(inputs, tuple | list):
        raise InvalidArgument("example_inputs are no arguments of a call", found=type(inputs).__name__,
                              expected="a tensor, a tuple, or a dict of keyword arguments")
    return tuple(inputs), dict(kwargs or {})


@contextlib.contextmanager
def _evaluating(module: Any) -> Iterator[None]:
    """Every part of `module` in evaluation mode for as long as the block lasts."""
    training = [part for part in module.modules() if part.training]
    try:
        module.eval()
        yield
    finally:
        for part in training:
            part.training = True


@dataclass(frozen=True)
class _Output:
    """A leaf of a module's result that is an output of the model; `number`: as a Python number."""

    name: str
    number: bool = False


class _Results:
    """How a module's result is put together from a session's outputs. `leaves`: for each leaf an `_Output`,
    or a value that is always the same."""

    def __init__(self, structure: Any, leaves: Sequence[Any], outputs: Sequence[str]) -> None:
        self.structure, self.leaves = structure, list(leaves)
        self.place = {name: i for i, name in enumerate(outputs)}
        self.plain = self.leaves == [_Output(name) for name in outputs]
        self.single = self.plain and structure.is_leaf()

    def of(self, arrays: Sequence[Any]) -> Any:
        """The result, over the arrays' memory."""
        if self.single:
            return tensor_of(arrays[0])
        tensors = [tensor_of(array) for array in arrays]
        if not self.plain:
            tensors = [self._leaf(leaf, tensors) for leaf in self.leaves]
        return pytree.tree_unflatten(tensors, self.structure)

    def _leaf(self, leaf: Any, tensors: Sequence[Any]) -> Any:
        if not isinstance(leaf, _Output):
            return leaf
        found = tensors[self.place[leaf.name]]
        return found.item() if leaf.number else found


def _by_dynamo(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], dynamic_shapes: Any,
               opset: int | None, _: bool) -> tuple[Exported, _Results]:
    with _numbers_left_out(module) as numbers:
        exported, outputs, program = by_dynamo(module, args, kwargs, dynamic_shapes, opset)
    if written := written_by(program):
        raise _Unfaithful(InvalidArgument(
            f"{type(module).__name__} writes to {', '.join(written)} when it is called, and its ONNX model "
            "cannot", expected="a module whose only effect are its results",
            cure="give what is written as a result, or use torch.compile(backend='orthrus')"))
    if complex_among(program):
        raise _Unfaithful(InvalidArgument(
            f"{type(module).__name__} takes or gives complex tensors, which ONNX models have as pairs of "
            "numbers",
            cure="take and give torch.view_as_real of them"))
    rest, leaves = iter(outputs), list[Any]()
    specs = [spec.arg for spec in program.graph_signature.output_specs if spec.kind is OutputKind.USER_OUTPUT]
    for i, spec in enumerate(specs):
        number = isinstance(spec, SymIntArgument | SymFloatArgument | SymBoolArgument)
        leaves.append(numbers.get(i) if isinstance(spec, ConstantArgument) else _Output(next(rest), number))
    return exported, _Results(program.call_spec.out_spec, leaves, exported.outputs)


@contextlib.contextmanager
def _numbers_left_out(module: Any) -> Iterator[dict[int, Any]]:
    """The module with None for every result that is neither tensor nor symbol, which torch's exporter chokes
    on, and what they are by the leaf's number."""
    numbers = dict[int, Any]()

    def drop(_module: Any, _args: Any, result: Any) -> Any:
        leaves, structure = pytree.tree_flatten(result)
        kept = torch.Tensor | torch.SymInt | torch.SymFloat | torch.SymBool
        numbers.update((i, leaf) for i, leaf in enumerate(leaves) if not isinstance(leaf, kept))
        return pytree.tree_unflatten([None if i in numbers else leaf for i, leaf in enumerate(leaves)],
                                     structure)

    hook = module.register_forward_hook(drop)
    try:
        yield numbers
    finally:
        hook.remove()


def _by_script(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], dynamic_shapes: Any,
               opset: int | None, chosen: bool) -> tuple[Exported, _Results]:
    exported, outputs, structure, leaves = by_script(module, args, kwargs, dynamic_shapes, opset, warn=chosen)
    leaves = [_Output(outputs[i], not isinstance(leaf, torch.Tensor)) if i in outputs else leaf
              for i, leaf in enumerate(leaves)]
    return exported, _Results(structure, leaves, exported.outputs)


_EXPORTERS: dict[str, Callable[..., tuple[Exported, _Results]]] = {"dynamo": _by_dynamo, "script": _by_script}


class _Call:
    """The arguments of the example call, and how those of another one match them."""

    def __init__(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.signature = inspect.signature(module.forward)
        self.count, self.keys = len(args), list(kwargs)
        leaves, self.structure = pytree.tree_flatten((args, kwargs))
        self.constants = {i: leaf for i, leaf in enumerate(leaves) if not isinstance(leaf, torch.Tensor)}
        self.flat = not self.constants and len(leaves) == self.count + len(self.keys)

    def tensors(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Sequence[Any]:
        """The tensors among the arguments, in the order of the example's. Raises InvalidArgument where the
        others are not the example's, TypeError where the module takes no such arguments."""
        if len(args) != self.count or len(kwargs) != len(self.keys):
            args, kwargs = self._arranged(args, kwargs)
        try:
            kwargs = {key: kwargs[key] for key in self.keys} if kwargs else kwargs
        except KeyError:
            args, kwargs = self._arranged(args, kwargs)
        if self.flat:
            return (*args, *kwargs.values())
        leaves, structure = pytree.tree_flatten((args, kwargs))
        if structure != self.structure:
            raise InvalidArgument("the arguments have another structure than the example inputs",
                                  found=structure, expected=self.structure,
                                  cure="make another function, by from_torch, for them")
        for i, value in self.constants.items():
            if type(leaves[i]) is not type(value) or leaves[i] != value:
                raise InvalidArgument("an argument that is no tensor was compiled in, and is another one now",
                                      found=repr(leaves[i]), expected=repr(value),
                                      cure="make another function, by from_torch, for this value")
        return [leaf for i, leaf in enumerate(leaves) if i not in self.constants]

    def _arranged(self, args: tuple[Any, ...], kwargs: dict[str, Any]
                  ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Arguments that are given in another way than the example's, as it has them."""
        given = dict(self.signature.bind(*args, **kwargs).arguments)
        parameters = self.signature.parameters
        for name, parameter in parameters.items():
            if parameter.kind is parameter.VAR_KEYWORD:
                given.update(given.pop(name, {}))
        if any(parameters[name].kind is inspect.Parameter.VAR_POSITIONAL for name in given
               if name in parameters):
            return args, kwargs
        names = [*list(parameters)[:self.count], *self.keys]
        for name in [name for name in given if name not in names]:
            if name in parameters and given[name] is parameters[name].default:
                del given[name]
        missing, more = [n for n in names if n not in given], [n for n in given if n not in names]
        if missing or more:
            raise InvalidArgument("these are not the arguments of the example inputs",
                                  found=", ".join(given), expected=", ".join(names),
                                  cure="make another function, by from_torch, for them")
        return tuple(given[n] for n in names[:self.count]), {n: given[n] for n in self.keys}


class CompiledModule:
    """A torch module as Orthrus runs it; made by `from_torch`. May be called on many threads at once.

    `session`: the InferenceSession. `fallbacks`: which exporters failed before one succeeded, and why.
    """

    def __init__(self, exported: Exported, session: InferenceSession, call: _Call, results: _Results,
                 fallbacks: Sequence[Fallback]) -> None:
        self.session, self.fallbacks = session, list(fallbacks)
        self._exported, self._call, self._results = exported, call, results
        taken = {value.name for value in session.get_inputs()}
        self._inputs = [(i, name) for i, name in enumerate(exported.inputs) if name in taken]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """What the module gives for these tensors, in its structure: tensors of their own, contiguous, and
        without gradients.

        Tensors are read where they lie; those that are not contiguous are copied. Raises InvalidArgument for
        what does not fit the example inputs, and for a tensor that requires a gradient while gradients are
        recorded.
        """
        tensors = self._call.tensors(args, kwargs)
        feeds = {name: array_of(tensors[i], name) for i, name in self._inputs}
        return self._results.of(self.session.run(None, feeds))

    def explain(self) -> Any:
        """Which provider and kernel runs each node, and why; see `InferenceSession.explain`."""
        return self.session.explain()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the module as an ONNX model, not optimized; weights of 1 GB and more into `<path>.data`
        beside it. Raises OSError where that cannot be done."""
        self._exported.save(os.fspath(path))

    def __reduce__(self) -> Any:
        raise NotSupported("a compiled module cannot be pickled",
                           cure="save(path), and make an InferenceSession of the file where it is wanted")

    def __repr__(self) -> str:
        inputs = ", ".join(f"{value.name}: {value.type}{value.shape}" for value in self.session.get_inputs())
        return f"<CompiledModule of {inputs}>"
