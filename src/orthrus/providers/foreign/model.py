"""A part as the ONNX model that a foreign engine is given: the same bytes for the same part each time.

Every value carries the type that this package's own inference found, symbolic dimensions included, so that
nothing is left to the importer's.
"""

from __future__ import annotations

from ...errors import Fail
from ...ir import No
from ...kernels import Part
from ...load import to_model_proto

FUNCTION = "main"


def model_bytes(part: Part) -> bytes | No:
    """The model of `part`, its graph called `main`; `No` where ONNX cannot say it in one file."""
    try:
        model = to_model_proto(part.graph())
        for text in ("producer_name", "producer_version", "doc_string", "domain"):
            model.ClearField(text)
        del model.metadata_props[:]
        if model.functions:
            return No("nodes of operator versions that no one opset has together")
        model.graph.name = FUNCTION
        raw: bytes = model.SerializeToString(deterministic=True)
        return raw
    except (Fail, ValueError) as error:
        return No(f"the part is more than one ONNX file can hold, 2 GB: {error}")
