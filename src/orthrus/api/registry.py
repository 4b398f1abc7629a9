"""What operators and kernels there are, in the form of the capi layer."""

from __future__ import annotations

from typing import Any

from ..records import dataclass


@dataclass(frozen=True)
class KernelDef:
    """A kernel: operator, domain, the schema versions it serves, its provider and element types by input."""

    op_name: str
    domain: str
    version_range: tuple[int, int]
    provider: str
    type_constraints: dict[str, list[str]]


def get_all_opkernel_def() -> list[KernelDef]:
    """Every operator that the CPU provider has, with the versions each definition serves."""
    from ..ops import defined

    newest = (1 << 31) - 1
    families: dict[tuple[str, str], list[Any]] = {}
    for op in defined():
        families.setdefault((op.domain, op.name), []).append(op)
    found = []
    for (domain, name), family in families.items():
        ends = [following.since - 1 for following in family[1:]] + [newest]
        for op, end in zip(family, ends, strict=True):
            types = {k: [f"tensor({t})" for t in v] for k, v in op.types.items()}
            found.append(KernelDef(name, domain, (op.since, end), "CPUExecutionProvider", types))
    return found


def get_registered_ep_kernel_defs(ep_name: str) -> list[KernelDef]:
    """The kernels a provider has registered. Raises Fail for a provider that is not there."""
    from ..errors import Fail
    from ..providers import known

    if ep_name not in known():
        raise Fail(f"No execution provider factory registered for {ep_name}.", expected=", ".join(known()))
    if ep_name == "CPUExecutionProvider":
        return get_all_opkernel_def()
    found = [entry.definition for entry in known()[ep_name].kernels]
    return [KernelDef(d.op_type, d.domain, (d.since_version, d.end_version), d.provider,
                      {k: sorted(v) for k, v in d.type_constraints.items()}) for d in found]


def get_all_operator_schema() -> list[Any]:
    """Every schema of the ONNX standard, all versions."""
    from onnx import defs

    return list(defs.get_all_schemas_with_history())
