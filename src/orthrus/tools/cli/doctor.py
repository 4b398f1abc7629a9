"""`orthrus doctor`: whether Orthrus works on this machine, as a block to paste into a report.

In: nothing. Out: Markdown or JSON, and exit code 1 where something is broken.
"""

from __future__ import annotations

import typer

from ...shown import tell
from ..asked import import_modules
from .arguments import ImportOption, JsonOption, alone, console, print_json, waiting


def command(modules: ImportOption = None, as_json: JsonOption = False) -> None:
    """Check this machine: versions, processor, code generation, providers, the cache of generated code and
    the switches that are set; compile and run a kernel and a model. Prints Markdown to paste into a report,
    without secrets. Ends with exit code 1 where something is broken, and says what to do."""
    from .checkup import examine

    import_modules(modules)
    with waiting("examining"):
        found = examine()
    if as_json:
        print_json(found.plain())
    else:
        tell(found.markdown(), end="")
    if found.broken:
        lines = [f"{check.name}: {check.found}. To cure it: {check.cure}" for check in found.broken]
        console(stderr=True).print("\n".join(lines), style="red", markup=False, highlight=False)
        raise typer.Exit(1)


if __name__ == "__main__":
    alone(command, "doctor")
