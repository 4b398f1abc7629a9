"""The standard's operators, as ONNX's newest release lists them: every version's inputs, outputs, types and
attributes, whichever onnx is installed.

They are kept in `standard.jsonl`: a line that says which release they are of, then a line per operator and
version. `python -m orthrus.ops.standard` writes it anew from the onnx installed.
"""

from __future__ import annotations

import functools
import json
import os
from typing import Any, NamedTuple

FILE = os.path.join(os.path.dirname(__file__), "standard.jsonl")
_OPTIONS = ("Single", "Optional", "Variadic")


class Release(NamedTuple):
    """What the file begins with. `onnx`: the release; `opsets`: domain -> newest opset; `released`: domain ->
    newest opset that is no development stamp; `types`: the sets of ONNX type strings, by their number."""

    onnx: str
    opsets: dict[str, int]
    released: dict[str, int]
    types: tuple[frozenset[str], ...]


class Parameter(NamedTuple):
    """A formal input or output. `option`: "Single", "Optional" or "Variadic"."""

    name: str
    types: frozenset[str]
    variable: str
    option: str
    homogeneous: bool


class Listed(NamedTuple):
    """An operator at one version. `attributes`: name -> (kind as in AttributeProto, required); `least`,
    `most`: how many inputs and outputs a node has."""

    version: int
    inputs: tuple[Parameter, ...]
    outputs: tuple[Parameter, ...]
    attributes: dict[str, tuple[str, bool]]
    least: tuple[int, int]
    most: tuple[int, int]
    deterministic: bool
    deprecated: bool


@functools.cache
def _lines() -> tuple[Release, dict[tuple[str, str], list[tuple[int, str]]]]:
    with open(FILE, encoding="utf-8") as file:
        first, *rest = file.read().splitlines()
    onnx, opsets, released, types = json.loads(first)
    found: dict[tuple[str, str], list[tuple[int, str]]] = {}
    for line in rest:
        domain, name, version, text = line.split("\t", 3)
        found.setdefault((domain, name), []).append((int(version), text))
    return Release(onnx, opsets, released, tuple(map(frozenset, types))), found


def release() -> Release:
    """Which ONNX the file lists."""
    return _lines()[0]


def operators() -> dict[tuple[str, str], list[int]]:
    """(domain, name) -> the versions of every operator, the newest first."""
    return {key: [version for version, _ in reversed(rows)] for key, rows in _lines()[1].items()}


@functools.lru_cache(maxsize=4096)
def listed(domain: str, name: str, opset: int) -> Listed | None:
    """The newest version of an operator that `opset` has; None where it has none."""
    usable = [row for row in _lines()[1].get((domain, name), ()) if row[0] <= opset]
    if not usable:
        return None
    version, text = usable[-1]
    inputs, outputs, attributes, least, most, deterministic, deprecated = json.loads(text)
    return Listed(version, _parameters(inputs), _parameters(outputs),
                  {key: (kind, bool(required)) for key, (kind, required) in attributes.items()},
                  tuple(least), tuple(most), bool(deterministic), bool(deprecated))


def _parameters(rows: list[list[Any]]) -> tuple[Parameter, ...]:
    types = release().types
    return tuple(Parameter(name, types[kinds], variable, _OPTIONS[option], bool(homogeneous))
                 for name, kinds, variable, option, homogeneous in rows)


def written() -> str:
    """The file's text, made of the onnx installed."""
    import onnx
    from onnx import defs, helper

    numbers: dict[tuple[str, ...], int] = {}

    def parameters(formals: Any) -> list[list[Any]]:
        return [[p.name, numbers.setdefault(tuple(sorted(p.types)), len(numbers)), p.type_str,
                 _OPTIONS.index(p.option.name), int(p.is_homogeneous)] for p in formals]

    rows = []
    opsets = {"": defs.onnx_opset_version()}
    for s in sorted(defs.get_all_schemas_with_history(), key=lambda s: (s.domain, s.name, s.since_version)):
        if s.domain:
            opsets[s.domain] = max(opsets.get(s.domain, 1), s.since_version)
        facts = [parameters(s.inputs), parameters(s.outputs),
                 {name: [a.type.name, int(a.required)] for name, a in sorted(s.attributes.items())},
                 [s.min_input, s.min_output], [s.max_input, s.max_output],
                 int(s.node_determinism != defs.OpSchema.NodeDeterminism.NonDeterministic), int(s.deprecated)]
        rows.append("\t".join((s.domain, s.name, str(s.since_version), _text(facts))))
    columns = {"": 2, "ai.onnx.ml": 3, "ai.onnx.preview.training": 4}
    released = {domain: max(int(row[at]) for row in helper.VERSION_TABLE if len(row) > at)
                for domain, at in columns.items()}
    return "\n".join([_text([onnx.__version__, opsets, released, list(numbers)]), *rows, ""])


def _text(data: Any) -> str:
    return json.dumps(data, separators=(",", ":"), sort_keys=True)


if __name__ == "__main__":
    with open(FILE, "w", encoding="utf-8") as file:
        file.write(written())
