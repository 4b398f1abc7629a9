"""torch's older exporter, by the parameters it had in all its versions."""

from __future__ import annotations

from typing import Any

import torch
from torch._C._onnx import OperatorExportTypes

TrainingMode = torch.onnx.TrainingMode


def torch_onnx_export(model: Any, args: Any, f: Any, export_params: bool = True, verbose: bool = False,
                      training: Any = TrainingMode.EVAL, input_names: Any = None, output_names: Any = None,
                      operator_export_type: Any = OperatorExportTypes.ONNX, opset_version: int | None = None,
                      _retain_param_name: Any = None, do_constant_folding: bool = True,
                      example_outputs: Any = None, strip_doc_string: Any = None, dynamic_axes: Any = None,
                      keep_initializers_as_inputs: bool | None = None, custom_opsets: Any = None,
                      enable_onnx_checker: Any = None, use_external_data_format: Any = None,
                      export_modules_as_functions: Any = False) -> None:
    """Trace a network and write it to `f`. Parameters that today's torch does not know change nothing."""
    torch.onnx.export(model, args, f, dynamo=False, export_params=export_params, verbose=verbose,
                      training=training, input_names=input_names, output_names=output_names,
                      operator_export_type=operator_export_type, opset_version=opset_version,
                      do_constant_folding=do_constant_folding, dynamic_axes=dynamic_axes,
                      keep_initializers_as_inputs=keep_initializers_as_inputs, custom_opsets=custom_opsets,
                      export_modules_as_functions=export_modules_as_functions)
