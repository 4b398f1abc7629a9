"""A model with the searches and edits of weight-only quantization, under the names of Intel's tool."""

from __future__ import annotations

import os
from pathlib import Path

import onnx
from onnx import ModelProto

from ..onnx_model import ONNXModel as _Model


class ONNXModel(_Model):
    """A ModelProto, held in `model`, with the path it was read from in `model_path`, None without one."""

    def __init__(self, model: str | Path | ModelProto | _Model) -> None:
        """`model`: a path, whose external data are read too, or a model, which is not copied."""
        self.model_path: str | None = None
        if isinstance(model, str | Path):
            self.model_path, found = os.fspath(model), onnx.load(os.fspath(model))
        else:
            found = model.model if isinstance(model, _Model) else model
            self.model_path = getattr(model, "model_path", None)
        super().__init__(found)
