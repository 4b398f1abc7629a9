"""Make IREE's table of operators: models of one node each, through importer, compiler and runtime.

    python -m benchmarks.iree_operators LOG [SECONDS [PATTERN]]   run what LOG does not have yet
    python -m benchmarks.iree_operators LOG --table               write operators.json from LOG

All of it takes an hour; SECONDS ends it earlier, PATTERN is for names of cases.

In: the backend cases of the installed onnx package, and the samples that the kit for authors of providers
has of every operator and type; each as it is, with all inputs but the first as constants, and some with open
dimensions. Out: a line of JSON per trial in LOG, and the table. A trial that ends this process is found in
LOG as begun and not ended: it counts as a crash when the command is given again.
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from itertools import combinations, permutations
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper

import orthrus as ort
from orthrus.errors import ALL
from orthrus.ir import Graph, No, TensorType
from orthrus.kernels import Part
from orthrus.load import load
from orthrus.ops.infer import infer_graph
from orthrus.providers.iree import IREEExecutionProvider, claims
from orthrus.providers.iree.compiler import COMPILER
from orthrus.providers.iree.settings import OPTIONS
from orthrus.testing.closeness import difference
from orthrus.testing.samples import Sample, samples

from .cases import cases, compare

FORMS = ("as it is", "constants", "open")
ENOUGH = 3
"""Trials of an operator with open dimensions, and of samples with the same features."""
GIVE_UP = 12
"""Failures of an operator, and nothing but failures, after which its samples are left out."""
SECONDS = 60
"""How long one node may take to compile; one that takes longer is no better than one that does not."""
REFUSALS: tuple[type[Exception], ...] = (*ALL, ValueError, TypeError)


@dataclass(frozen=True)
class Source:
    """A model of one node. `data`: inputs and expected outputs of its runs; `wrong`: says in words how
    results differ, "" where they do not."""

    name: str
    model: onnx.ModelProto
    data: Sequence[tuple[Sequence[Any], Sequence[Any]]]
    wrong: Callable[[Sequence[Any], Sequence[np.ndarray]], str]


def backend_cases(pattern: str = "") -> Iterator[Source]:
    """onnx's cases of one node whose name matches. Making them takes ten seconds."""
    for case in cases(["node"], pattern):
        yield Source(case.name, case.model, case.data, _judge(case.rtol, case.atol))


def kit_samples(pattern: str = "") -> Iterator[Source]:
    """The kit's samples whose name matches, of every operator and type."""
    for sample in samples():
        name = f"{sample.kind}-{sample.schema.version} {sample.type} {sample.index}"
        if re.search(pattern, name) and (found := _sampled(name, sample)) is not None:
            yield found


def _sampled(name: str, sample: Sample) -> Source | None:
    """A sample of the kit, None where it is no model or its definition does not take it."""
    try:
        expected = [v for v in sample.reference() if v is not None]
        model = sample.model()
    except Exception:
        return None
    given = [a for a in sample.inputs if a is not None]
    return Source(name, model, [(given, expected)], lambda wanted, made: difference(made, wanted) or "")


def exports(pattern: str = "") -> Iterator[Source]:
    """Resize as PyTorch's exporter writes it, with attributes that no case of onnx's has together."""
    x = np.random.default_rng(0).random((1, 2, 5, 6), np.float32)
    modes = (("nearest", "asymmetric"), ("linear", "half_pixel"), ("linear", "align_corners"),
             ("linear", "pytorch_half_pixel"), ("cubic", "half_pixel"), ("cubic", "align_corners"))
    for mode, where in modes:
        for name, given in (("scales", np.array([1, 1, 2, 2], "f4")), ("sizes", np.array([1, 2, 8, 9]))):
            inputs = ["x", "", "s"] if name == "scales" else ["x", "", "", "s"]
            node = helper.make_node("Resize", inputs, ["y"], mode=mode, nearest_mode="floor",
                                    coordinate_transformation_mode=where, cubic_coeff_a=-0.75)
            infos = [helper.make_tensor_value_info(k, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape)
                     for k, v in (("x", x), ("s", given))]
            graph = helper.make_graph([node], "exported", infos, [helper.make_empty_tensor_value_info("y")])
            model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
            expected = ort.InferenceSession(model.SerializeToString()).run(None, {"x": x, "s": given})
            if re.search(pattern, title := f"Resize-13 exported {mode} {where} {name}"):
                yield Source(title, model, [((x, given), expected)],
                             lambda wanted, made: difference(made, wanted) or "")


def _judge(rtol: float, atol: float) -> Callable[[Sequence[Any], Sequence[np.ndarray]], str]:
    def wrong(wanted: Sequence[Any], made: Sequence[np.ndarray]) -> str:
        try:
            compare(wanted, made, rtol, atol)
        except AssertionError as error:
            return " ".join(str(error).split())[:90]
        return ""
    return wrong


def main() -> None:
    """Run the trials, or write the table."""
    log = Path(sys.argv[1])
    if "--table" in sys.argv:
        write_table(read(log))
        return
    seconds = float(sys.argv[2]) if len(sys.argv) > 2 else float("inf")
    left = run(log, time.monotonic() + seconds, sys.argv[3] if len(sys.argv) > 3 else "")
    print(f"{left} trials are left" if left else "all trials are in the log")


def read(log: Path) -> dict[str, dict[str, Any]]:
    """Trials by name; one that only began is a crash."""
    found: dict[str, dict[str, Any]] = {}
    for line in log.read_text(encoding="utf-8").splitlines() if log.exists() else ():
        row = json.loads(line)
        if row.get("begun"):
            row |= {"status": "crash", "reason": "the process ended"}
        found[row["name"]] = row
    return found


def run(log: Path, end: float, pattern: str = "") -> int:
    """Run the trials that are not in the log until `end`; answer how many are left."""
    done, total = read(log), 0
    tally = Counter[Any]()
    for row in done.values():
        if "key" in row:
            form = row["name"].rpartition(", ")[2]
            tally.update((_likeness(row, form), (row["key"], "tried"), (row["key"], row["status"])))
    with log.open("a", encoding="utf-8") as file:
        def note(row: dict[str, Any]) -> None:
            file.write(json.dumps(row) + "\n")
            file.flush()
            done[row["name"]] = row
        for title, found in (("all backend cases", backend_cases), ("all samples", kit_samples),
                             ("all exports", exports)):
            if title in done:
                continue
            left = 0
            for source in found(pattern):
                for form in FORMS:
                    if (name := f"{source.name}, {form}") in done:
                        continue
                    if time.monotonic() > end:
                        left += 1
                    else:
                        _one(source, form, name, done, tally, note)
            if not left and not pattern:
                note({"name": title, "status": "other", "reason": "they are in the log"})
            total += left
    return total


def _likeness(row: dict[str, Any], form: str) -> tuple[Any, ...]:
    """What a few trials are enough of: the same features of an operator, any features with open shapes."""
    return (row["key"],) if form == "open" else (row["key"], *map(tuple, row["features"]))


def _one(source: Source, form: str, name: str, done: dict[str, dict[str, Any]], tally: Counter[Any],
         note: Callable[[dict[str, Any]], None]) -> None:
    """One trial, noted in the log."""
    graph: Graph | str = ""
    reason = pointless(source, form, done) if form != "as it is" else ""
    if not reason:
        try:
            graph = _graph(source, form)
        except REFUSALS as error:
            reason = str(error)[:200] or type(error).__name__
    if reason or isinstance(graph, str):
        note({"name": name, "status": "other", "reason": reason or graph})
        return
    node = graph.nodes[0]
    about: dict[str, Any] = {"name": name, "key": claims.key(node), "features": list(claims.features(node))}
    tally[about["key"], "tried"] += 1
    if " " in source.name and tally[about["key"], "tried"] > GIVE_UP and not tally[about["key"], "pass"]:
        note({"name": name, "status": "other", "reason": "the operator was seen to fail often enough"})
        return
    like = _likeness(about, form)
    tally[like] += 1
    if tally[like] > ENOUGH and (form == "open" or " " in source.name):
        note({"name": name, "status": "other", "reason": "others like it were tried"})
        return
    note({**about, "begun": True})
    status, why = tried(graph, source)
    tally[about["key"], status] += 1
    note({**about, "status": status, "reason": why})


def pointless(source: Source, form: str, done: dict[str, dict[str, Any]]) -> str:
    """Why a form of a model would tell nothing that its other forms do not."""
    status = [done.get(f"{source.name}, {other}", {}).get("status") for other in FORMS]
    if form == "open":
        return "" if "pass" in status else "it fails with all dimensions known"
    if status[0] != "pass" or any(np.asarray(v).dtype.kind in "iub" for v in source.data[0][0][1:]):
        return ""
    return "it passes with computed inputs of floats"


def _graph(source: Source, form: str) -> Graph | str:
    """The graph in one of the forms, or why there is none."""
    model = onnx.ModelProto.FromString(source.model.SerializeToString())
    if len(model.graph.node) != 1:
        return "more than one node"
    given = list(source.data[0][0])
    if not all(isinstance(v, np.ndarray | np.generic) for v in given):
        return "an input is no tensor"
    inputs = list(model.graph.input)
    if form == "constants":
        if len(given) < 2:
            return "there is one input"
        for info, value in list(zip(inputs, given, strict=False))[1:]:
            model.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(value), info.name))
            model.graph.input.remove(info)
    graph = load(model)
    if form == "open":
        return _opened(graph) or "there is no dimension to open"
    if len(graph.nodes) != 1:
        return "its function was written out"
    return graph if not graph.nodes[0].has_bodies else "control flow"


def _opened(graph: Graph) -> Graph | None:
    """`graph` with a name for each dimension of what is fed, and types inferred anew."""
    if len(graph.nodes) != 1 or graph.nodes[0].has_bodies:
        return None
    named = 0
    sizes: dict[Any, str] = {}
    for value in graph.inputs:
        if isinstance(value.type, TensorType) and value.shape:
            value.type = TensorType(value.elem, tuple(sizes.setdefault(d, f"size{d}") for d in value.shape))
            named += 1
    for made in graph.nodes[0].outputs:
        if made is not None and isinstance(made.type, TensorType):
            made.type = TensorType(made.elem, None)
    infer_graph(graph)
    return graph if named else None


def tried(graph: Graph, source: Source) -> tuple[str, str]:
    """What becomes of one model: a status, and the reason where it is not "pass"."""
    provider = IREEExecutionProvider({"device": "local-sync", "data_tiling": "1", "convolutions": "plain",
                                      "compile_timeout": str(SECONDS)})
    fed = [v for v in graph.inputs if v.const is None]
    part = Part(provider.name, graph.nodes, fed, [v for v in graph.nodes[0].outputs if v is not None],
                "trial", graph.info)
    if any(v.elem is None or v.shape is None for v in (*part.inputs, *part.outputs)):
        return "other", "a value whose type or rank is not known"
    try:
        (kernel,) = provider.compile(part)
        if isinstance(kernel, No):
            status = "other" if "handed" in kernel.reason else "slow" if "did not end" in kernel.reason else (
                "compile")
            return status, _brief(kernel.reason)
        for given, wanted in source.data:
            made = kernel.run(*[np.asarray(v) for v in given][:len(fed)])
            if reason := source.wrong(wanted, made if isinstance(made, tuple) else (made,)):
                return "wrong", _plainly(reason)
    except ALL as error:
        return "run", _brief(str(error))
    return "pass", ""


def _plainly(reason: str) -> str:
    """How results differ, without their numbers."""
    return reason[:90] if "expected" in reason and "elements" not in reason else "other values"


def _brief(reason: str) -> str:
    """What the compiler said, without places and types."""
    lines = [line for line in reason.splitlines() if "error: " in line or "failed to" in line]
    text = re.sub(r"loc\([^)]*\):?\s*", "", (lines or reason.splitlines())[0])
    text = re.sub(r"\S*/(\S+)", r"\1", text.partition("error: ")[2] or text)
    operator = re.search(r'name = "onnx\.(\w+)"', text) or re.search(r"'(torch\.[\w.]+)'", text)
    if "explicitly marked illegal" in text or "failed to legalize" in text:
        return f"no lowering for {operator[1] if operator else 'an operation'}"
    return text[:120].strip() or "the compiler refuses it"


def write_table(rows: dict[str, dict[str, Any]]) -> None:
    """Write operators.json from trials by name."""
    by_key: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in rows.values():
        if row["status"] != "other":
            by_key[row["key"]].append({**row, "reason": row["reason"] or "the compiler refuses it"})
    operators = {key: entry(group) for key, group in sorted(by_key.items())}
    made = {"iree": version(COMPILER), "onnx": version("onnx"), "trials": sum(map(len, by_key.values())),
            "options": {k: o.default for k, o in OPTIONS.items() if k in ("opt_level", "data_tiling")},
            "operators": operators}
    claims.TABLE.write_text(json.dumps(made, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    refused = sum("refused" in each for each in operators.values())
    print(f"{len(operators)} operators, {refused} of them refused")


def entry(group: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What is to be known of one operator: features that work, features that only failed, pairs of features
    that failures are put down to, or a refusal.

    A failure is put down to the pair that fewest right results and most failures have in common. One to
    compile, which is seen and handed back, is so only where it is what mostly becomes of the pair."""
    passed = [{tuple(f) for f in row["features"]} for row in group if row["status"] == "pass"]
    counts = {"tried": len(group), "passed": len(passed)}
    if not passed:
        return {**counts, "refused": _commonest(row["reason"] for row in group)}
    works = set[tuple[str, str]]().union(*passed)
    plain = {row["name"]: row["status"] for row in group}
    failing: dict[tuple[str, str], str] = {}
    rest = list[tuple[dict[str, Any], list[Any]]]()
    for row in group:
        texts = {text for _, text in row["features"]}
        if row["status"] == "pass" or claims.seen(row["key"].rpartition("-")[0], texts):
            continue
        mine = [tuple(f) for f in row["features"]]
        if plain.get(f"{row['name'].rpartition(', ')[0]}, as it is") != "pass":
            mine = [f for f in mine if not f[1].endswith(" constant")]
        alone = [f for f in mine if f not in works]
        failing.update((f, row["reason"]) for f in alone)
        if not alone:
            rest.append((row, list(combinations(mine, 2))))
    right = Counter(pair for features in passed for pair in permutations(features, 2))
    wrong = Counter(pair for _, pairs in rest for pair in pairs)
    together: dict[tuple[str, str], str] = {}
    for row, pairs in rest:
        if not pairs:
            return {**counts, "refused": f"{row['name'].partition(',')[0]} gives {row['reason']}"}
        fewest = min(right[pair] for pair in pairs)
        rare = [pair for pair in pairs if right[pair] == fewest]
        most = max(wrong[pair] for pair in rare)
        blamed = [pair for pair in rare if wrong[pair] == most]
        telling = [pair for pair in blamed if all(kind != "rank" for kind, _ in pair)]
        if row["status"] != "compile" or most > fewest:
            together.update(((a[1], b[1]), row["reason"]) for a, b in telling or blamed)
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
    return max(sorted(set(found)), key=found.count)


if __name__ == "__main__":
    main()
