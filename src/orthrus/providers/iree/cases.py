"""Make the table of operators: ONNX's backend cases of one node each, through importer, compiler and runtime.

    python -m orthrus.providers.iree.cases LOG [SECONDS [PATTERN]]   run what LOG does not have yet
    python -m orthrus.providers.iree.cases LOG --table               write operators.json from LOG

All of it takes half an hour; SECONDS ends it earlier, PATTERN is for names of cases.

In: the cases of the installed onnx package, each as it is, with all inputs but the first as constants, and
with open dimensions. Out: a line of JSON per trial in LOG, and the table. A trial that ends this process is
found in LOG as begun and not ended: it counts as a crash when the command is given again.
"""

from __future__ import annotations

import json
import re
import sys
import time
import warnings
from collections import defaultdict
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import ALL
from ...ir import Graph, No
from ...load import load
from ..base import Part
from . import IREEExecutionProvider, claims
from .compiler import COMPILER
from .settings import OPTIONS

_EXPANDED = re.compile(r"_expanded(_ver\d+)?$")
_FORMS = ("as it is", "constants", "open")
_OPEN_TRIALS = 3
"""Cases of an operator that are tried with open dimensions."""
REFUSALS: tuple[type[Exception], ...] = (*ALL, ValueError, TypeError)
_TRUSTED = ("pass", "compile")
"""Outcomes after which an operator may be claimed: a failure to compile is seen, and handed back."""


def main() -> None:
    """Run the trials, or write the table."""
    log = Path(sys.argv[1])
    if "--table" in sys.argv:
        _write_table(_read(log))
        return
    seconds = float(sys.argv[2]) if len(sys.argv) > 2 else float("inf")
    left = _run(log, time.monotonic() + seconds, sys.argv[3] if len(sys.argv) > 3 else "")
    print(f"{left} trials are left" if left else "all trials are in the log")


def _read(log: Path) -> dict[str, dict[str, Any]]:
    """Trials by name; one that only began is a crash."""
    found: dict[str, dict[str, Any]] = {}
    for line in log.read_text(encoding="utf-8").splitlines() if log.exists() else ():
        row = json.loads(line)
        if row.get("begun"):
            row |= {"status": "crash", "reason": "the process ended"}
        found[row["name"]] = row
    return found


def _run(log: Path, end: float, pattern: str) -> int:
    """Run the trials of cases whose name matches and that are not in the log until `end`; answer how many are
    left."""
    done, left = _read(log), 0
    opened: dict[str, int] = defaultdict(int)
    with log.open("a", encoding="utf-8") as file:
        def note(row: dict[str, Any]) -> None:
            file.write(json.dumps(row) + "\n")
            file.flush()
            done[row["name"]] = row
        for test in _cases(pattern):
            for form in _FORMS:
                name = f"{test.name}, {form}"
                if name in done:
                    opened[done[name].get("key", "")] += form == "open" and done[name]["status"] != "other"
                    continue
                if time.monotonic() > end:
                    left += 1
                    continue
                if form != "as it is" and (reason := _pointless(test, form, done)):
                    note({"name": name, "status": "other", "reason": reason})
                    continue
                try:
                    graph = _graph(test, form)
                except REFUSALS as error:
                    note({"name": name, "status": "other", "reason": str(error)[:200]})
                    continue
                if isinstance(graph, str):
                    note({"name": name, "status": "other", "reason": graph})
                    continue
                node = graph.nodes[0]
                about: dict[str, Any] = {"name": name, "key": claims.key(node),
                                         "features": list(claims.features(node))}
                if form == "open":
                    opened[about["key"]] += 1
                    if opened[about["key"]] > _OPEN_TRIALS:
                        note({"name": name, "status": "other", "reason": "open dimensions were tried"})
                        continue
                note({**about, "begun": True})
                status, reason = _tried(graph, test)
                note({**about, "status": status, "reason": reason})
    return left


def _pointless(test: Any, form: str, done: dict[str, dict[str, Any]]) -> str:
    """Why a form of a case would tell nothing that its other forms do not."""
    status = [done.get(f"{test.name}, {other}", {}).get("status") for other in _FORMS]
    if form == "open":
        return "" if "pass" in status else "it fails with all dimensions known"
    if status[0] != "pass" or any(_array(v).dtype.kind in "iub" for v in test.data_sets[0][0][1:]):
        return ""
    return "it passes with computed inputs of floats"


def _cases(pattern: str) -> Iterator[Any]:
    from onnx.backend.test.loader import load_node_model_tests

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for test in load_node_model_tests():
            if not _EXPANDED.search(test.name) and re.search(pattern, test.name):
                yield test


def _graph(test: Any, form: str) -> Graph | str:
    """The case's graph in one of the forms, or why there is none."""
    import onnx

    model = onnx.ModelProto.FromString(test.model.SerializeToString())
    if len(model.graph.node) != 1:
        return "more than one node"
    given = list(test.data_sets[0][0])
    if not all(isinstance(v, np.ndarray | np.generic | onnx.TensorProto) for v in given):
        return "an input is no tensor"
    inputs = list(model.graph.input)
    if form == "constants":
        if len(given) < 2:
            return "there is one input"
        for info, value in list(zip(inputs, given, strict=False))[1:]:
            tensor = value if isinstance(value, onnx.TensorProto) else onnx.numpy_helper.from_array(value)
            model.graph.initializer.add().CopyFrom(tensor)
            model.graph.initializer[-1].name = info.name
            model.graph.input.remove(info)
    graph = load(model)
    if form == "open":
        return _opened(graph) or "there is no dimension to open"
    if len(graph.nodes) != 1:
        return "its function was written out"
    return graph if not graph.nodes[0].has_bodies else "control flow"


def _opened(graph: Graph) -> Graph | None:
    """`graph` with a name for each dimension of what is fed, and types inferred anew."""
    from ...ir import TensorType
    from ...ops.infer import infer_graph

    if len(graph.nodes) != 1 or graph.nodes[0].has_bodies:
        return None
    named = 0
    sizes: dict[int, str] = {}
    for value in graph.inputs:
        if isinstance(value.type, TensorType) and value.shape:
            value.type = TensorType(value.elem, tuple(sizes.setdefault(d, f"size{d}") for d in value.shape))
            named += 1
    for made in graph.nodes[0].outputs:
        if made is not None and isinstance(made.type, TensorType):
            made.type = TensorType(made.elem, None)
    infer_graph(graph)
    return graph if named else None


def _tried(graph: Graph, test: Any) -> tuple[str, str]:
    """What becomes of one case: a status, and the reason where it is not "pass"."""
    provider = IREEExecutionProvider({"device": "local-sync", "data_tiling": "1", "im2col": "0"})
    fed = [v for v in graph.inputs if v.const is None]
    part = Part(provider.name, graph.nodes, fed, [v for v in graph.nodes[0].outputs if v is not None],
                "trial", graph.info)
    if any(v.elem is None or v.shape is None for v in (*part.inputs, *part.outputs)):
        return "other", "a value whose type or rank is not known"
    try:
        (kernel,) = provider.compile(part)
        if isinstance(kernel, No):
            return ("other" if "handed" in kernel.reason else "compile"), _brief(kernel.reason)
        for given, wanted in test.data_sets:
            made = kernel.run(*[_array(v) for v in given][:len(fed)])
            made = made if isinstance(made, tuple) else (made,)
            if reason := _wrong(wanted, made, test.rtol, test.atol):
                return "wrong", reason
    except ALL as error:
        return "run", _brief(str(error))
    return "pass", ""


def _array(value: Any) -> np.ndarray:
    from onnx import TensorProto, numpy_helper

    return numpy_helper.to_array(value) if isinstance(value, TensorProto) else np.asarray(value)


def _wrong(wanted: Sequence[Any], made: Sequence[np.ndarray], rtol: float, atol: float) -> str:
    for i, (right, got) in enumerate(zip(map(_array, wanted), made, strict=False)):
        if right.dtype != got.dtype or right.shape != got.shape:
            return f"output {i} is {got.dtype}{list(got.shape)}, not {right.dtype}{list(right.shape)}"
        wide = [a.astype(np.float32) if a.dtype.kind == "V" or a.dtype.itemsize < 4 else a
                for a in (right, got)]
        if not np.allclose(wide[1], wide[0], rtol, atol, equal_nan=True):
            return f"output {i} has other values"
    return ""


def _brief(reason: str) -> str:
    """What the compiler said, without places and types."""
    lines = [line for line in reason.splitlines() if "error: " in line or "failed to" in line]
    text = re.sub(r"loc\([^)]*\):?\s*", "", (lines or reason.splitlines())[0])
    text = re.sub(r"\S*/(\S+)", r"\1", text.partition("error: ")[2] or text)
    operator = re.search(r'name = "onnx\.(\w+)"', text) or re.search(r"'(torch\.[\w.]+)'", text)
    if "explicitly marked illegal" in text or "failed to legalize" in text:
        return f"no lowering for {operator[1] if operator else 'an operation'}"
    return text[:120].strip() or "the compiler refuses it"


def _write_table(rows: dict[str, dict[str, Any]]) -> None:
    by_key: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in rows.values():
        if row["status"] != "other":
            by_key[row["key"]].append({**row, "reason": row["reason"] or "the compiler refuses it"})
    operators = {key: _entry(group) for key, group in sorted(by_key.items())}
    made = {"iree": version(COMPILER), "onnx": version("onnx"), "cases": sum(map(len, by_key.values())),
            "options": {k: o.default for k, o in OPTIONS.items() if k in ("opt_level", "data_tiling")},
            "operators": operators}
    claims.TABLE.write_text(json.dumps(made, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    refused = sum("refused" in entry for entry in operators.values())
    print(f"{len(operators)} operators, {refused} of them refused")


def _entry(group: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What is to be known of one operator: features that work, features and pairs of features that only
    failed, or a refusal."""
    passed = [{tuple(f) for f in row["features"]} for row in group if row["status"] == "pass"]
    counts = {"tried": len(group), "passed": len(passed)}
    if not passed:
        return {**counts, "refused": _commonest(row["reason"] for row in group)}
    works = set[tuple[str, str]]().union(*passed)
    plain = {row["name"]: row["status"] for row in group}
    failing: dict[tuple[str, str], str] = {}
    together: dict[tuple[str, str], str] = {}
    for row in group:
        if row["status"] == "pass":
            continue
        mine = [tuple(f) for f in row["features"]]
        if plain.get(f"{row['name'].rpartition(', ')[0]}, as it is") != "pass":
            mine = [f for f in mine if not f[1].endswith(" constant")]
        alone = [f for f in mine if f not in works]
        failing.update((f, row["reason"]) for f in alone)
        if alone or row["status"] in _TRUSTED:
            continue
        pairs = [(a, b) for a, b in combinations(mine, 2) if not any(a in p and b in p for p in passed)]
        together.update(((a[1], b[1]), row["reason"]) for a, b in pairs)
        if not pairs:
            return {**counts, "refused": f"{row['name'].partition(',')[0]} gives {row['reason']}"}
    return {**counts, "works": _by_kind(dict.fromkeys(works, ""), list), "fails": _by_kind(failing, dict),
            "together": [[*pair, reason] for pair, reason in sorted(together.items())]}


def _by_kind(found: dict[tuple[str, str], str], kind: type) -> dict[str, Any]:
    grouped: dict[str, dict[str, str]] = defaultdict(dict)
    for (name, text), reason in sorted(found.items()):
        if kind is dict or name in ("type", "outputs"):
            grouped[name][text] = reason
    return {name: kind(texts) for name, texts in grouped.items()}


def _commonest(reasons: Iterator[str]) -> str:
    found = list(reasons)
    return max(set(found), key=found.count)


if __name__ == "__main__":
    main()
