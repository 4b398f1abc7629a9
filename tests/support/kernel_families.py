"""The kernels' own tests, run once more on a machine that is emulated: with every machine they know replaced
by it, and with fewer examples."""

from __future__ import annotations

import functools
import importlib.util
import itertools
import sys
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import board
import hypothesis
import pytest
import test_codegen_reduce

from orthrus.codegen.machines import detect
from orthrus.codegen.machines import machine as machines
from orthrus.codegen.write.spec import templates
from orthrus.errors import Fail

FAMILIES = {
    "loops": ("test_any_layout", "test_short_rows", "test_a_number_alone",
              "test_items_do_not_depend_on_each_other"),
    "gather": ("test_transposing_copies", "test_few_channels", "test_gather", "test_gather_elements",
               "test_gather_tuples", "test_scatter_elements", "test_scatter_rows", "test_pad", "test_tile",
               "test_trilu", "test_one_hot", "test_blocks", "test_running", "test_top_k"),
    "reduce": ("test_any_layout", "test_chains_of_any_layout", "test_long_sums_are_as_accurate_as_pairwise",
               "test_models"),
    "rows": ("test_rows_of_any_layout", "test_softmax_with_scale_mask_and_chain",
             "test_residual_norm_keeps_the_sum", "test_infinite_and_masked_rows",
             "test_large_mean_keeps_the_variance"),
    "gemm": ("test_products", "test_k_in_parts_and_copies_of_a", "test_epilogues",
             "test_results_of_other_types", "test_nothing_of_padding_reaches_results", "test_dots",
             "test_streams", "test_half_precision_kernels"),
    "conv": ("test_direct", "test_pointwise", "test_rows_with_margins", "test_depthwise", "test_stem",
             "test_planes", "test_winograd", "test_sigmoids_without_denormals"),
    "attention": ("test_random_forms", "test_lengths_of_keys", "test_growing_cache", "test_appended_rows",
                  "test_rows_without_keys_and_rare_numbers", "test_rotary"),
    "int8": ("test_products", "test_few_rows", "test_sessions", "test_dynamic_sessions",
             "test_computed_sessions", "test_functions_of_a_byte"),
    "few_bits": ("test_products", "test_hostile_numbers", "test_dequantized_by_blocks", "test_gathered_rows",
                 "test_floats_of_four_bits"),
    "experts": ("test_mixtures", "test_who_is_chosen"),
    "rnn": ("test_layers", "test_activations", "test_sessions"),
    "trees": ("test_forests", "test_deep_trees_continue_in_links", "test_division_into_blocks_changes_no_bit",
              "test_sessions"),
    "pool": ("test_pools", "test_pools_of_planes", "test_resizes", "test_resizes_one_axis",
             "test_nearest_rows", "test_local_response", "test_closing_tree"),
    "math": ("test_float32_error", "test_erf_error", "test_float64_error", "test_exp_nonpositive", "test_pow",
             "test_float_remainders_are_exact", "test_cast", "test_constant_powers",
             "test_integer_division_by_a_constant"),
    "move": ("test_every_type_and_layout",),
    "grid": ("test_sampling", "test_regions"),
    "suppress": ("test_lists",),
    "contrib": ("test_attention", "test_decoders"),
    "distinct": ("test_elements",),
    "draws": ("test_classes",),
    "elimination": ("test_matrices",),
    "histogram": ("test_counts",),
    "turns": ("test_rows", "test_numbers", "test_what_leaves_a_word"),
    "linear": ("test_scaled_and_normalized", "test_linear_models", "test_features_by_index"),
}
done: set[tuple[str, str, machines.Machine]] = set()
"""The tests that held in this process."""
EXAMPLES, CASES = 5, 4
"""Per test at most, of hypothesis's and of parameters."""


@functools.cache
def again(family: str, here: machines.Machine) -> ModuleType:
    """The module of tests for a family of kernels, written for `here` wherever it names a machine."""
    name = f"test_codegen_{family}"
    path = Path(__file__).parents[1] / "codegen" / f"{name}.py"
    for known in [k for k, t in templates.items() if t.write.__code__.co_filename == str(path)]:
        del templates[known]
    spec = importlib.util.spec_from_file_location(f"{name}_{abs(hash(here))}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)

    settings = hypothesis.settings

    def fewer(*given: Any, **options: Any) -> Any:
        return settings(*given, **options | {
            "max_examples": EXAMPLES, "deadline": None, "derandomize": True, "database": None,
            "phases": (hypothesis.Phase.explicit, hypothesis.Phase.generate),
            "suppress_health_check": list(hypothesis.HealthCheck)})

    names = dict.fromkeys(("AVX512", "AVX2", "SSE2", "NEON", "RVV256"), here)
    with (mock.patch.multiple(machines, **names), mock.patch.object(detect, "host", lambda: here),
          mock.patch.object(test_codegen_reduce, "MACHINES", (here,)),
          mock.patch.object(hypothesis, "settings", fewer)):
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
    if hasattr(module, "RUNNABLE"):
        module.RUNNABLE = [None, here]
    return module


def cases(test: Any, here: machines.Machine) -> list[dict[str, Any]]:
    """The arguments its `parametrize` marks give a test, each set once; some of many."""
    columns = []
    for mark in getattr(test, "pytestmark", []):
        if mark.name != "parametrize":
            continue
        names, values = mark.args
        names = names.replace(",", " ").split() if isinstance(names, str) else names
        values = [here] if names in (["machine"], ["target"]) else values
        columns.append([dict(zip(names, v if len(names) > 1 else (v,), strict=True)) for v in values])
    made: dict[str, dict[str, Any]] = {}
    for row in itertools.product(*columns):
        case = {k: v for part in row for k, v in part.items()}
        made.setdefault(repr(case), case)
    return list(made.values())[::-(-len(made) // CASES)]


def run(family: str, test: str, here: machines.Machine) -> None:
    """One test of a family, its kernels written for `here` and run in a worker."""
    found = getattr(again(family, here), test)
    before = len(board.ran)
    with board.on(here), mock.patch.object(test_codegen_reduce, "MACHINES", (here,)):
        for case in cases(found, here):
            try:
                found(**case)
            except Fail as error:
                if "decode_save_opc" not in str(error.found):
                    raise
                pytest.skip("qemu 7 ends itself where two conversions to integers round to zero")
            except Exception as error:
                error.add_note(f"case {case}")
                raise
    assert len(board.ran) > before, "nothing ran in a worker"
    done.add((family, test, here))
