"""A torch network as an ONNX file, and the file held against the network.

In: a network whose inputs are tensors, an example of each by name, names of outputs and of open dimensions.
Out: one file, and one beside it with the weights where they are asked for apart. The network is traced in
the mode of evaluation; the file is whole or not there.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from ...errors import Fail

Axes = Mapping[str, Mapping[int, str]]
OPSET = 17
"""The newest version of ONNX's operators that the tracing exporter and every optimizer of this package
knows."""
LARGEST = 2**31 - 2**20
"""Bytes of weights from which on a protobuf message cannot hold them."""


def export(network: Any, inputs: Mapping[str, torch.Tensor], outputs: Sequence[str], path: str,
           axes: Axes | None = None, opset: int = OPSET, dynamo: bool = False, external: bool = False,
           verbose: bool = False) -> None:
    """Write `network(*inputs)` to `path`; `external`, or weights over 2 GB: these to `path` + ".data".
    `dynamo`: by torch.export, which follows no Python, instead of tracing."""
    network.eval()
    folder = os.path.dirname(os.path.abspath(path))
    os.makedirs(folder, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".export-") as beside:
        file = os.path.join(beside, "model.onnx")
        names = list(inputs)
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if dynamo:
                _by_export(network, inputs, outputs, file, axes or {}, opset)
            else:
                from .torch_onnx_export_helper import torch_onnx_export

                torch_onnx_export(network, tuple(inputs.values()), file, verbose=verbose, input_names=names,
                                  output_names=list(outputs), opset_version=opset,
                                  dynamic_axes={name: dict(each) for name, each in (axes or {}).items()})
        save(file, path, external)


def _by_export(network: Any, inputs: Mapping[str, torch.Tensor], outputs: Sequence[str], file: str,
               axes: Axes, opset: int) -> None:
    sizes: dict[str, Any] = {}
    shapes = []
    for name in inputs:
        shapes.append({axis: sizes.setdefault(dim, torch.export.Dim.DYNAMIC)
                       for axis, dim in axes.get(name, {}).items()})
    torch.onnx.export(network, tuple(inputs.values()), file, input_names=list(inputs),
                      output_names=list(outputs), opset_version=max(opset, 18), dynamo=True, verbose=False,
                      dynamic_shapes=_nested(network, shapes), external_data=True)


def _nested(network: Any, shapes: list[Any]) -> tuple[Any, ...]:
    """The shapes as torch.export takes them: those of `*past` in one tuple."""
    import inspect

    kinds = list(inspect.signature(network.forward).parameters.values())
    fixed = [it for it in kinds if it.kind is not inspect.Parameter.VAR_POSITIONAL]
    if len(fixed) == len(kinds):
        return tuple(shapes)
    return (*shapes[:len(fixed)], tuple(shapes[len(fixed):]))


def save(source: str, path: str, external: bool) -> None:
    """Put a model, whose weights may lie in files beside it, at `path`: `external`, or more than 2 GB, with
    the weights in `path` + ".data"."""
    import onnx

    model = onnx.load(source)
    name = f"{os.path.basename(path)}.data"
    folder = os.path.dirname(os.path.abspath(path))
    apart = external or sum(len(tensor.raw_data) for tensor in model.graph.initializer) > LARGEST
    with tempfile.TemporaryDirectory(dir=folder, prefix=".save-") as beside:
        onnx.save_model(model, os.path.join(beside, "model.onnx"), save_as_external_data=apart, location=name,
                        size_threshold=1024)
        if apart and os.path.exists(os.path.join(beside, name)):
            os.replace(os.path.join(beside, name), os.path.join(folder, name))
        os.replace(os.path.join(beside, "model.onnx"), path)


def session(path: str, use_gpu: bool = False, provider: str | None = None) -> Any:
    """A session of this runtime on an exported file."""
    from ..measure.benchmark_helper import create_onnxruntime_session

    return create_onnxruntime_session(path, use_gpu, provider)


def feed(inputs: Mapping[str, torch.Tensor]) -> dict[str, np.ndarray]:
    """Arrays of tensors, wherever these lie."""
    return {name: np.ascontiguousarray(tensor.detach().cpu().numpy()) for name, tensor in inputs.items()
            if tensor is not None}


def difference(expected: Iterable[Any], found: Iterable[Any]) -> float:
    """The largest absolute difference of outputs, inf for one that is no number on one side only. Raises Fail
    where shapes differ."""
    most = 0.0
    for i, (first, second) in enumerate(zip(expected, found, strict=True)):
        x, y = (np.asarray(each.detach().cpu().float() if isinstance(each, torch.Tensor) else each,
                           np.float64) for each in (first, second))
        if x.shape != y.shape:
            raise Fail("The exported model's output has another shape", node=f"output {i}", found=y.shape,
                       expected=x.shape, cure="export with other open dimensions")
        gap = np.abs(np.where(x == y, 0.0, x - y))
        most = max(most, float(np.max(np.where(np.isnan(gap), np.inf, gap), initial=0.0)))
    return most


def parity(network: Any, runner: Any, cases: Iterable[Mapping[str, torch.Tensor]]) -> float:
    """The largest difference of a session from the network over feeds; the network is put in the mode of
    evaluation. Inputs that the exporter dropped, as nothing reads them, are not fed."""
    network.eval()
    known = {each.name for each in runner.get_inputs()}
    most = 0.0
    for case in cases:
        with torch.no_grad():
            expected = flat(network(*case.values()))
        found = runner.run(None, {name: each for name, each in feed(case).items() if name in known})
        most = max(most, difference(expected, found))
    return most


def flat(outputs: Any) -> list[Any]:
    """The tensors in nested tuples, lists and dicts, in order; None is left out."""
    if isinstance(outputs, torch.Tensor):
        return [outputs]
    if outputs is None:
        return []
    parts = outputs.values() if isinstance(outputs, Mapping) else outputs
    return [each for part in parts for each in flat(part)]


def remove(path: str) -> None:
    """Delete a model and the file of its weights, where they are."""
    for each in (path, f"{path}.data"):
        if os.path.isdir(each):
            shutil.rmtree(each)
        elif os.path.exists(each):
            os.unlink(each)
