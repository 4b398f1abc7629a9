"""A model with the searches and edits of weight-only quantization, under the names of Intel's tool."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import onnx
from onnx import ModelProto, NodeProto

from ..onnx_model import ONNXModel as _Model


class ONNXModel(_Model):
    """A ModelProto, held in `model`, with the path it was read from in `model_path`, None without one."""

    model: ModelProto
    model_path: str | None

    def __init__(self, model: str | Path | ModelProto | _Model, **kwargs: Any) -> None:
        """`model`: a path, whose external data are read too unless `load_external_data=False`, or a model,
        which is not copied."""
        self.model_path = None
        if isinstance(model, str | Path):
            self.model_path = os.fspath(model)
            found = onnx.load(self.model_path, load_external_data=kwargs.get("load_external_data", True))
        else:
            found = model.model if isinstance(model, _Model) else model
            self.model_path = getattr(model, "model_path", None)
        super().__init__(found)

    def replace_input_of_all_nodes(self, old_input_name: str, new_input_name: str,
                                   white_optype: Sequence[str] | None = None,
                                   black_optype: Sequence[str] | None = None) -> None:
        """Let nodes read another value: those of the operators `white_optype` or, where it is empty, all but
        those of `black_optype`."""
        for node in self._of(white_optype, black_optype):
            self.replace_node_input(node, old_input_name, new_input_name)

    def replace_output_of_all_nodes(self, old_output_name: str, new_output_name: str,
                                    white_optype: Sequence[str] | None = None,
                                    black_optype: Sequence[str] | None = None) -> None:
        """Give a value another name where it is made; the operators as above."""
        for node in self._of(white_optype, black_optype):
            self.replace_node_output(node, old_output_name, new_output_name)

    def topological_sort(self, enable_subgraph: bool = False) -> None:
        """Order the nodes; what inner graphs read counts in any case."""
        super().topological_sort()

    def _of(self, wanted: Sequence[str] | None, others: Sequence[str] | None) -> list[NodeProto]:
        return [node for node in self.model.graph.node
                if (node.op_type in wanted if wanted else node.op_type not in (others or ()))]
