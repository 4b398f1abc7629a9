"""The list of the standard's operators is that of the newest onnx, and holds what older ones have."""

from __future__ import annotations

from pathlib import Path

import onnx

from orthrus.ops import standard


def test_the_list_is_the_newest_releases() -> None:
    if onnx.__version__ == standard.release().onnx:
        kept = Path(standard.FILE).read_text(encoding="utf-8")
        assert standard.written() == kept, "python -m orthrus.ops.standard"
    for schema in onnx.defs.get_all_schemas_with_history():
        found = standard.listed(schema.domain, schema.name, schema.since_version)
        assert found is not None and found.version == schema.since_version
        assert set(schema.attributes) <= set(found.attributes)
        assert found.most[0] >= schema.min_input and found.least[0] <= schema.max_input


def test_what_no_opset_has() -> None:
    assert standard.listed("", "LayerNormalization", 16) is None
    assert standard.listed("", "Nothing", 20) is None
    assert standard.listed("", "Relu", 10_000) == standard.listed("", "Relu", 14)
