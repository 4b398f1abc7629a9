"""Which files of tests take longest, in either half: they are the first that workers take; how many cases of
one test each half takes."""

LONGEST = (
    "iree_models", "properties", "docs", "scale", "guards", "from_torch", "migraphx_record", "rows",
    "products", "reductions", "spacemit_operators", "search", "memory", "compare", "library_kit",
    "attention_parts", "testing_kit", "hostile_inputs", "ops", "plan_capacity", "quantized_models",
    "epilogues", "dnnl", "typed_errors", "dropin_sessions", "networks", "zoo", "merging", "gather",
    "test_runner", "symbolic_shapes", "gpu_parts", "conformance", "systems", "layers", "convolutions",
    "selection", "turns", "spacemit", "sizes", "tuning", "attention", "dropin")
"""Their names without `test_` and `.py`, the longest first."""

COMPILED = ("codegen", "lowering", "machines")
"""Folders whose tests compile: of each the short suite takes `SHORT` cases, the longer half the others."""
WHOLE = ("api", "load", "ops")
"""Folders of which the longer half takes every case, and of others `LONG` of each of its tests."""
SHORT, LONG = 8, 24
EMULATED = 2
"""Cases of one test on an emulated GPU that the longer half takes."""


def spread(count: int, most: int) -> set[int]:
    """Which of `count` cases to take, `most` of them: the first, the last and what lies evenly between."""
    return {round(i * (count - 1) / (most - 1)) for i in range(most)}
