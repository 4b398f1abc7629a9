"""`orthrus providers`: what is registered, and whether it works here."""

from __future__ import annotations

from typing import Any

from ..asked import import_modules
from .arguments import ImportOption, JsonOption, console, print_json


def command(modules: ImportOption = None, as_json: JsonOption = False) -> None:
    """List the execution providers, whether they work on this machine, and their options."""
    from ...providers import known
    from .display import table

    import_modules(modules)
    found: list[dict[str, Any]] = []
    for name, cls in known().items():
        why = cls.probe()
        options = {key: {"default": o.default, "meaning": o.doc} for key, o in cls.options.items()}
        found.append({"name": name, "works": why is None, "reason": why.reason if why is not None else "",
                      "options": options})
    if as_json:
        print_json(found)
        return
    out = console()
    out.print(table("", ("provider", "on this machine"),
                        [(f["name"], f["reason"] or "works") for f in found]))
    for each in found:
        if each["options"]:
            rows = [(key, _text(o["default"]), o["meaning"]) for key, o in each["options"].items()]
            out.print(table(f"\nOptions of {each['name']}", ("option", "default", "meaning"), rows))


def _text(default: Any) -> str:
    """A default the way a user would write it; nothing where it is empty."""
    if isinstance(default, bool):
        return str(int(default))
    if isinstance(default, tuple | list | frozenset):
        return ";".join(map(str, default))
    return "" if default is None else str(default)
