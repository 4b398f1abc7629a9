"""What a model asks for: IR version and opsets, what it says of itself, and which schema each node means."""

from __future__ import annotations

from typing import Any

from ..errors import Fail
from ..ir import ModelInfo, No, Value
from ..ops import find
from ..ops import schema as schemas
from ..shown import meant
from . import check, inline

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
        opsets[inline.domain_of(entry.domain)] = entry.version
    check_opsets(opsets, released_only)
    return opsets


def check_opsets(opsets: dict[str, int], released_only: bool) -> None:
    """Raise Fail for an opset of ONNX's domains that is newer than what is known, or than released if only
    that counts."""
    for domain, version in opsets.items():
        newest = schemas.newest_opset(domain, released_only)
        if newest is not None and version > newest and domain in schemas.ONNX_DOMAINS:
            raise Fail(
                "ONNX Runtime only *guarantees* support for models stamped with official released onnx "
                f"opset versions. Opset {version} is under development and support for this is limited. "
                "The operator schemas and or other functionality may change before next ONNX release and "
                "in this case ONNX Runtime will not guarantee backward compatibility. Current official "
                f"support for domain {domain or 'ai.onnx'} is till opset {newest}.",
                found=f"opset {version}",
                expected=f"at most {newest}",
                cure="convert the model to an older opset, or update orthrus and onnx",
            )


class Resolver:
    """Finds the schema version of every node of one model; equal questions are answered once."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str, int], tuple[schemas.Schema, Any]] = {}

    def resolve(
        self,
        opsets: dict[str, int],
        proto: Any,
        domain: str,
        what: str,
        inputs: list[Value | None],
        outputs: list[Value | None],
    ) -> tuple[schemas.Schema, Any]:
        """The schema `proto` means under `opsets` and the definition that serves it, None where there is
        none. Raises InvalidGraph or Fail where no schema is known."""
        opset = opsets.get(domain)
        if opset is None:
            opset = schemas.newest_opset(domain)
            if opset is None and domain.startswith("com.microsoft"):
                opset = 1
        if opset is None:
            # a user's own operator may be used without an import, as onnxruntime's own may
            if find(domain, proto.op_type, 1 << 30) is None:
                raise check.invalid(
                    proto,
                    inputs,
                    outputs,
                    f"No opset import for domain '{domain}'",
                    node=what,
                    cure=f"add an opset_import for {domain!r} and register the operator",
                )
            opset = 1 << 30
        key = domain, proto.op_type, opset
        known = self._known.get(key)
        if known is not None:
            return known
        if not proto.op_type:
            raise check.invalid(
                proto, inputs, outputs, "Field 'op_type' of 'node' is required to be non-empty."
            )
        found = _looked_up(domain, proto.op_type, opset)
        if not isinstance(found, schemas.Schema):
            if domain not in schemas.ONNX_DOMAINS:
                question = meant(proto.op_type, schemas.names(domain))
                raise Fail(
                    f"Fatal error: {domain}:{proto.op_type}(-1) is not a registered function/op",
                    node=what,
                    cure=f"{question} Else " * bool(question) + f"register it with "
                    f"orthrus.op('{domain}::{proto.op_type}') before making a session",
                )
            cure = _instead(domain, proto.op_type, opset)
            raise check.invalid(proto, inputs, outputs, found.reason, node=what,
                                **({"cure": cure} if cure else {}))
        op = find(domain, proto.op_type, found.version)
        own = op is not None and op.since == found.version
        if found.deprecated and not own:
            raise check.invalid(
                proto,
                inputs,
                outputs,
                f"Op registered for {proto.op_type} is deprecated in domain_version of {opset}",
                node=what,
            )
        self._known[key] = found, op
        return found, op


def _instead(domain: str, op_type: str, opset: int) -> str:
    """What to do about an operator that an opset lacks: the one that brings it, or what may be meant."""
    for later in range(max(opset, 0) + 1, (schemas.newest_opset(domain) or 0) + 1):
        if isinstance(_looked_up(domain, op_type, later), schemas.Schema):
            return f"import opset {later} of domain {domain or 'ai.onnx'!r}, which brings the operator"
    return meant(op_type, schemas.names(domain) - {op_type})


def _looked_up(domain: str, op_type: str, opset: int) -> schemas.Schema | No:
    """The schema of an operator, in ONNX's domains as ONNX has it."""
    found = schemas.lookup(domain, op_type, opset)
    if isinstance(found, schemas.Schema) and not found.standard and domain in schemas.ONNX_DOMAINS:
        return _standard(domain, op_type, opset, found)
    return found


def _standard(domain: str, op_type: str, opset: int, own: schemas.Schema) -> schemas.Schema | No:
    """An operator of ONNX's domains that `opset` does not have: none, unless onnx has it under no opset
    at all and the definition here is the only one, or the definition is of the first versions alone.
    onnxruntime writes LayerNormalization into models of any opset."""
    newest = schemas.lookup(domain, op_type, schemas.newest_opset(domain) or 1)
    if not isinstance(newest, schemas.Schema) or not newest.standard:
        return own
    if find(domain, op_type, opset) is not find(domain, op_type, newest.version):
        return own
    if op_type == "LayerNormalization" and opset > 0:
        return newest
    return No(f"No Op registered for {op_type} with domain_version of {opset}")
