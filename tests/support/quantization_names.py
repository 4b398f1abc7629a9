"""The public names of onnxruntime.quantization, and the table of docs/quantization.md that lists them.

In: `ort_quantization_names.json`, module by module: a function's parameters, a class's members with theirs,
None for a constant; for a package the module from which it has a name. Out: the table, between
`<!-- names -->` and `<!-- end -->`; `python tests/support/quantization_names.py docs/quantization.md`
rewrites the page.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from names_page import listed, rewrite, with_table

_RECORD = Path(__file__).parents[1] / "quantization" / "data" / "ort_quantization_names.json"

MODULES: dict[str, dict[str, Any]] = json.loads(_RECORD.read_text(encoding="utf-8"))["modules"]

_STEPS = "steps of the calculation, which is another here"
_INTEL = "of Intel's tool, which is not part of onnxruntime"
_LEFT_OUT: dict[tuple[str, str, str], str] = {
    ("matmul_nbits_quantizer", "DefaultWeightOnlyQuantizer", _STEPS):
        "quant_slice_symmetric quant_slice_asymmetric pack_int8_to_int4",
    ("matmul_nbits_quantizer", "HQQWeightOnlyQuantizer", _STEPS):
        "optimize_weights pack_on_row_fast_248bit quantize_internal",
    ("matmul_nbits_quantizer", "NVAWQWeightOnlyQuantConfig", "ModelOpt needs a GPU and the network"):
        "make_model_input get_calib_inputs",
    ("onnx_quantizer", "ONNXQuantizer", _STEPS): "adjust_single_weight_scale_if_needed",
    ("neural_compressor.onnx_model", "ONNXModel", _INTEL):
        "check_is_large_model q_config hf_config update graph_info get_scale_zero "
        "find_split_node_for_layer_wise_quantization find_qkv_in_attention find_ffn_matmul export "
        "is_smoothquant_model find_split_nodes split_model_with_node "
        "load_model_initializer_by_tensor write_external_data_to_new_location merge_split_models "
        "re_org_output",
    ("neural_compressor.onnx_model", "", "stands in `neural_compressor.util`"): "logger",
    ("neural_compressor.weight_only", "", "stands in `neural_compressor.util`"): "logger",
}
NOT_HERE = {f"{module}.{kind}.{name}".replace("..", "."): why
            for (module, kind, why), names in _LEFT_OUT.items() for name in names.split()}
"""Names, and members of classes, that are left out, with the reason."""


def path(module: str) -> str:
    """The module's path here."""
    return f"orthrus.quantization.{module}".rstrip(".")


def table() -> str:
    """A row per module: its names, and those that are left out with the reason."""
    rows = ["| module | here | not here |", "|---|---|---|"]
    for module, names in MODULES.items():
        here = listed(name for name in names if f"{module}.{name}" not in NOT_HERE)
        lacking = "; ".join(f"{f'of `{kind}` ' if kind else ''}{listed(left.split())}: {why}"
                            for (home, kind, why), left in _LEFT_OUT.items() if home == module)
        rows.append(f"| `{path(module)}` | {here} | {lacking} |")
    return "\n".join(rows) + "\n"


def renewed(page: str) -> str:
    """`page` with the table as the record has it."""
    return with_table(page, table())


if __name__ == "__main__":
    rewrite(renewed)
