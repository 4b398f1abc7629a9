"""The public names of onnxruntime.transformers, and the table of docs/transformers.md that lists them.

In: `ort_transformers_names.json`, module by module: a function's parameters, a class's members with theirs
(an enum's values in brackets), None for a constant. Out: the table, between `<!-- names -->` and
`<!-- end -->`; `python tests/support/transformers_names.py docs/transformers.md` rewrites the page.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from transformers_patterns import PATTERNS

_RECORD = Path(__file__).parents[1] / "transformers" / "data" / "ort_transformers_names.json"
_PLACE = re.compile(r"(<!-- names -->\n).*?(<!-- end -->)", re.S)

MODULES: dict[str, dict[str, Any]] = json.loads(_RECORD.read_text(encoding="utf-8"))["modules"]

PENDING = frozenset({"convert_generation", "float16"})
"""Modules that are not looked at yet."""

_LEFT_OUT = {
    "reads TensorFlow's checkpoints, which today's transformers does not":
        "convert_tf_models_to_pytorch",
    "watches a GPU's memory": "benchmark_helper.CudaMemoryMonitor benchmark_helper.RocmMemoryMonitor",
}
NOT_HERE = {name: why for why, names in _LEFT_OUT.items() for name in names.split()} | {
    name: why for why, names in PATTERNS.items() for name in names}
"""Modules, names of modules and members of classes that are left out, with the reason."""
TORCH = ("export.", "models.")
"""Beginnings of modules here that cannot be imported without torch."""


def path(module: str) -> str:
    """The module's path here."""
    return f"orthrus.transformers.{module}"


def here() -> list[str]:
    """The modules that are to be here."""
    return [module for module in MODULES if module not in NOT_HERE and module not in PENDING]


def table() -> str:
    """A row per module: its names, and those that are left out with the reason."""
    rows = ["| module | here | not here |", "|---|---|---|"]
    for module in here():
        names = _listed(name for name in MODULES[module] if f"{module}.{name}" not in NOT_HERE)
        lacking: dict[str, list[str]] = {}
        for name, why in NOT_HERE.items():
            if name.startswith(f"{module}.") and name.removeprefix(f"{module}.").split(".")[0] in MODULES[module]:
                lacking.setdefault(why, []).append(name.removeprefix(f"{module}."))
        rows.append(f"| `{path(module)}` | {names} | "
                    f"{'; '.join(f'{_listed(left)}: {why}' for why, left in lacking.items())} |")
    rows += [f"| `{path(module)}` | | all: {NOT_HERE[module]} |" for module in MODULES if module in NOT_HERE]
    return "\n".join(rows) + "\n"


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def renewed(page: str) -> str:
    """`page` with the table as the record has it."""
    return _PLACE.sub(lambda found: f"{found[1]}{table()}{found[2]}", page)


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        page = Path(argument)
        page.write_text(renewed(page.read_text(encoding="utf-8")), encoding="utf-8")
