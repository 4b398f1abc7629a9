"""A float model made ready for quantization: its tensors' shapes known, its graph as simple as it can be.

In: a model's file or a ModelProto. Out: a model file. The steps, each of which can be left out: shapes with
names for open dimensions, graph optimization of the basic level, and ONNX's own shape inference. The
invariant: the model computes what it did, and is valid ONNX; a file is written whole or not at all.
"""

from __future__ import annotations

import logging
import os
import tempfile
from pathlib import Path
from typing import Any

import onnx

from .opset import converted
from .quant_utils import add_pre_process_metadata, save_and_reload_model_with_shape_infer
from .refused import Failed, InvalidType, InvalidValue

logger = logging.getLogger(__name__)

_OLDEST = 11
"""The version of ai.onnx from which a model can be quantized."""
_UNBOUNDED = 2 ** 31 - 1


def quant_pre_process(
    input_model: str | Path | onnx.ModelProto | None = None,
    output_model_path: str | Path | None = None,
    skip_optimization: bool = False,
    skip_onnx_shape: bool = False,
    skip_symbolic_shape: bool = False,
    auto_merge: bool = False,
    int_max: int = _UNBOUNDED,
    guess_output_rank: bool = False,
    verbose: int = 0,
    save_as_external_data: bool = False,
    all_tensors_to_one_file: bool = False,
    external_data_location: str | None = None,
    external_data_size_threshold: int = 1024,
    **deprecated_kwargs: Any,
) -> None:
    """Write a model that is ready to be quantized.

    `auto_merge`, `int_max`, `guess_output_rank`, `verbose`: see `orthrus.tools.symbolic_shape_infer`.
    `save_as_external_data`: write weights of `external_data_size_threshold` bytes and more into files beside
    the model, into one, called `external_data_location`, where `all_tensors_to_one_file`. A model above 2 GB
    needs it. `input_model_path` is an old name of `input_model`.

    Raises ValueError without a model or a file to write, and for a model above 2 GB that is to be one file;
    `Incomplete` where shapes of a node's results cannot be told; and what loading the model raises. Where it
    cannot be optimized that is logged, and the model goes on as it was.
    """
    source = deprecated_kwargs.pop("input_model_path", None) if input_model is None else input_model
    if deprecated_kwargs:
        raise InvalidType("quant_pre_process has no such parameter", found=", ".join(deprecated_kwargs))
    if source is None or output_model_path is None:
        raise InvalidValue("a model and a file to write are needed", expected="input_model and "
                           "output_model_path", found=f"{source!r} and {output_model_path!r}")
    model = source if isinstance(source, onnx.ModelProto) else _loaded(source)
    model = _upgraded(model)
    if not skip_symbolic_shape:
        from ..tools.symbolic_shape_infer import SymbolicShapeInference

        logger.info("Performing symbolic shape inference...")
        model = SymbolicShapeInference.infer_shapes(model, int_max, auto_merge, guess_output_rank, verbose)
    if not skip_optimization:
        model = _optimized(model)
    if not skip_onnx_shape:
        model = _shaped(model)
    if model is source:
        model = _copied(model)
    add_pre_process_metadata(model)
    layout = {"save_as_external_data": True, "all_tensors_to_one_file": all_tensors_to_one_file,
              "location": external_data_location, "size_threshold": external_data_size_threshold,
              "convert_attribute": False} if save_as_external_data else {}
    _save(model, Path(output_model_path), layout)


def _loaded(path: str | Path) -> onnx.ModelProto:
    try:
        return onnx.load(os.fspath(path))
    except OSError as error:
        from ..errors import NoSuchFile

        raise NoSuchFile(f"{os.fspath(path)} cannot be read: {error}") from None


def _copied(model: onnx.ModelProto) -> onnx.ModelProto:
    made = onnx.ModelProto()
    made.CopyFrom(model)
    return made


def _upgraded(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model in a version of ONNX that can be quantized."""
    versions = [each.version for each in model.opset_import if each.domain in ("", "ai.onnx")]
    if len(versions) != 1 or versions[0] >= _OLDEST:
        return model
    return save_and_reload_model_with_shape_infer(converted(model, _OLDEST))


def _optimized(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model after the basic level of optimization, its operators of the versions they had; as it was,
    with a word in the log, where that fails."""
    from .. import GraphOptimizationLevel, InferenceSession, SessionOptions
    from ..errors import ALL

    with tempfile.TemporaryDirectory(prefix="orthrus.prepared.") as folder:
        options = SessionOptions()
        options.graph_optimization_level = GraphOptimizationLevel.ORT_ENABLE_BASIC
        options.optimized_model_filepath = os.path.join(folder, "optimized.onnx")
        options.add_session_config_entry(
            "session.optimized_model_external_initializers_file_name", "optimized.onnx.data")
        faults: tuple[type[Exception], ...] = (*ALL, OSError)
        try:
            InferenceSession(model, options, [("CPUExecutionProvider", {"use_codegen": "0"})],
                             disabled_optimizers=("upgrade_old_forms",)).close()
            return onnx.load(options.optimized_model_filepath)
        except faults as error:
            logger.error("the model is not optimized, pass skip_optimization to leave that out: %s", error)
            return model


def _shaped(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with what ONNX knows of its tensors' shapes."""
    if any(tensor.data_location == onnx.TensorProto.EXTERNAL for tensor in model.graph.initializer):
        raise Failed("weights of the model are not in memory", expected="a model with its weights",
                     cure="give the file's path, or load it with its external data")
    return save_and_reload_model_with_shape_infer(model)


def _save(model: onnx.ModelProto, target: Path, layout: dict[str, Any]) -> None:
    """Write the model beside its place, and move it there when it is whole."""
    if not layout and model.ByteSize() > onnx.checker.MAXIMUM_PROTOBUF:
        raise InvalidValue("the model is above 2 GB, the largest a file of its own can be",
                           found=f"{model.ByteSize()} bytes", cure="pass save_as_external_data=True")
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".orthrus.", dir=target.parent) as folder:
        written = Path(folder, target.name)
        onnx.save_model(model, os.fspath(written), **layout)
        for each in sorted(Path(folder).iterdir(), key=lambda path: path == written):
            os.replace(each, target.parent / each.name)
