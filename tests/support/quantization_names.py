"""The public names of onnxruntime.quantization, and the table of docs/quantization.md that lists them.

In: `ort_quantization_names.json`, module by module: a function's parameters, a class's members with theirs,
None for a constant; for a package the module from which it has a name. Out: the table, between
`<!-- names -->` and `<!-- end -->`; `python tests/support/quantization_names.py docs/quantization.md`
rewrites the page.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

_RECORD = Path(__file__).parents[1] / "quantization" / "data" / "ort_quantization_names.json"
_PLACE = re.compile(r"(<!-- names -->\n).*?(<!-- end -->)", re.S)

MODULES: dict[str, dict[str, Any]] = json.loads(_RECORD.read_text(encoding="utf-8"))["modules"]

NOT_HERE: dict[str, str] = {}
"""Names, `module.name`, that are left out, with the reason."""


def path(module: str) -> str:
    """The module's path here."""
    return f"orthrus.quantization.{module}".rstrip(".")


def table() -> str:
    """A row per module: its names, and those that are left out with the reason."""
    rows = ["| module | here | not here |", "|---|---|---|"]
    for module, names in MODULES.items():
        missing = {name: NOT_HERE[f"{module}.{name}"] for name in names if f"{module}.{name}" in NOT_HERE}
        here = ", ".join(f"`{name}`" for name in names if name not in missing)
        lacking = "; ".join(f"`{name}`: {why}" for name, why in missing.items())
        rows.append(f"| `{path(module)}` | {here} | {lacking} |")
    return "\n".join(rows) + "\n"


def renewed(page: str) -> str:
    """`page` with the table as the record has it."""
    return _PLACE.sub(lambda found: f"{found[1]}{table()}{found[2]}", page)


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        page = Path(argument)
        page.write_text(renewed(page.read_text(encoding="utf-8")), encoding="utf-8")
