"""What onnxruntime's CPU build has a kernel for has a definition here: every operator from its first version
on, and for those of its own domains every input, type and attribute: `data/ort_cpu_kernels.json`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from orthrus.ir import No
from orthrus.ops.schema import BLOCKED, lookup

KERNELS: dict[str, dict[str, dict[str, Any]]] = json.loads(
    (Path(__file__).parent / "data" / "ort_cpu_kernels.json").read_text())
ABSENT: dict[str, str] = {}
"""Operators of com.microsoft without a definition, and why."""
NARROWER: dict[str, str] = {"GatedAdd.gate_weight": "onnxruntime has it in bfloat16 on CUDA alone"} | {
    f"QMoE.{name} {kind}": "weights of floats of four bits are not taken"
    for name in ("fc1_scales", "fc2_scales", "fc3_scales") for kind in ("float8e4m3fn", "float8e8m0")}
"""Inputs, types of one, `operator.input type`, and attributes, `operator.attribute`, that are not taken."""
OWN = ("com.microsoft", BLOCKED)


@pytest.mark.parametrize("domain", KERNELS)
def test_operators_are_defined(domain: str) -> None:
    missing = [f"{name}-{since}" for name, told in KERNELS[domain].items() for since in told["since"]
               if isinstance(lookup("" if domain == "ai.onnx" else domain, name, since), No)]
    excused = ABSENT if domain == "com.microsoft" else {}
    assert sorted({m.rpartition("-")[0] for m in missing}) == sorted(excused), missing


@pytest.mark.parametrize("domain", OWN)
def test_inputs_types_and_attributes_are_taken(domain: str) -> None:
    missing = []
    for name, told in KERNELS[domain].items():
        schema = lookup(domain, name, told["since"][0])
        if isinstance(schema, No) or "inputs" not in told:
            continue
        for i, (given, option, types) in enumerate(told["inputs"]):
            formal = schema.input_at(i)
            if formal is None:
                missing.append(f"{name}.{given}")
                continue
            if option == "O" and not formal.optional:
                missing.append(f"{name}.{given} may not be left out")
            missing += [f"{name}.{given} {t}" for t in types
                        if formal.types and f"tensor({t})" not in formal.types]
        missing += [f"{name}.{a}" for a in told["attributes"] if a not in schema.attributes]
    assert sorted(missing) == (sorted(NARROWER) if domain == "com.microsoft" else [])
