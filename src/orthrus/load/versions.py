"""What a model asks for, before its graph is looked at: IR version, opsets, and what it says of itself."""

from __future__ import annotations

import functools
from typing import Any

from ..errors import Fail
from ..ir import ModelInfo
from ..ops import schema as schemas
from . import inline

_NEWEST_IR = 14


def describe(model: Any, path: str | None, released_only: bool) -> ModelInfo:
    """The model's information, its opsets by domain. Raises Fail for versions that are missing or not
    supported."""
    info = ModelInfo(path=path, opsets=_versions(model, released_only))
    info.ir_version, info.graph_doc = model.ir_version, model.graph.doc_string
    info.producer_name, info.producer_version = model.producer_name, model.producer_version
    info.domain, info.doc_string = model.domain, model.doc_string
    if model.HasField("model_version"):
        info.model_version = model.model_version
    info.metadata = {p.key: p.value for p in model.metadata_props}
    if model.training_info:
        info.warnings.append("the model's training information is ignored")
    return info


def _versions(model: Any, released_only: bool) -> dict[str, int]:
    if not model.HasField("ir_version"):
        raise Fail(
            "Missing model IR version.", cure="the file is no ONNX model, or its writer left ir_version out"
        )
    if model.ir_version > _NEWEST_IR:
        raise Fail(
            f"Unsupported model IR version: {model.ir_version}, max supported IR version: {_NEWEST_IR}",
            found=model.ir_version,
            expected=f"1 to {_NEWEST_IR}",
            cure="export the model for an older IR version, or update orthrus and onnx",
        )
    if not model.opset_import:
        raise Fail(
            "Missing opset in the model. All ModelProtos MUST have at least one entry that specifies which "
            "version of the ONNX OperatorSet is being imported."
        )
    opsets: dict[str, int] = {}
    for entry in model.opset_import:
        domain = inline.domain_of(entry.domain)
        if opsets.setdefault(domain, entry.version) != entry.version:
            raise Fail(
                f"This is an invalid model. The opset of domain '{domain or 'ai.onnx'}' is imported twice.",
                found=f"versions {opsets[domain]} and {entry.version}",
                expected="one version per domain",
            )
    check_opsets(opsets, released_only)
    return opsets


def check_opsets(opsets: dict[str, int], released_only: bool) -> None:
    """Raise Fail for an opset of ONNX's domains that is newer than what is known, or than released if only
    that counts."""
    for domain, version in opsets.items():
        newest = _released(domain) if released_only else schemas.newest_opset(domain)
        if newest is not None and version > newest and domain in schemas.ONNX_DOMAINS:
            raise Fail(
                "ONNX Runtime only *guarantees* support for models stamped with official released onnx opset "
                f"versions. Opset {version} is under development and support for this is limited. The "
                "operator "
                "schemas and or other functionality may change before next ONNX release and in this case "
                "ONNX "
                "Runtime will not guarantee backward compatibility. Current official support for domain "
                f"{domain or 'ai.onnx'} is till opset {newest}.",
                found=f"opset {version}",
                expected=f"at most {newest}",
                cure="convert the model to an older opset, or update orthrus and onnx",
            )


@functools.cache
def _released(domain: str) -> int | None:
    """The newest opset of `domain` in onnx's newest release that is no development stamp."""
    from onnx import helper

    column = {"": 2, "ai.onnx.ml": 3, "ai.onnx.preview.training": 4}.get(domain)
    if column is None:
        return schemas.newest_opset(domain)
    return max(int(row[column]) for row in helper.VERSION_TABLE if len(row) > column)
