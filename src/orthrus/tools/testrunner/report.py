"""What came of a test run: outcomes by data set, and the forms in which they are told.

In: a result per data set, and the tests that were skipped. Out: onnx_test_runner's summary, plain data for
JSON, and the XML that CI systems read (JUnit).
"""

from __future__ import annotations

import enum
import re
from collections import Counter
from dataclasses import field
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from ...records import dataclass


class Outcome(enum.IntEnum):
    """What became of a data set, with onnxruntime's numbers."""

    SUCCESS = 1
    UNKNOWN_ERROR = -1
    WITH_EXCEPTION = -2
    RESULT_DIFFERS = -3
    SHAPE_MISMATCH = -4
    TYPE_MISMATCH = -5
    NOT_SUPPORT = -6
    LOAD_MODEL_FAILED = -7

    @property
    def failed(self) -> bool:
        return self not in (Outcome.SUCCESS, Outcome.NOT_SUPPORT)


REASONS = {
    "Got exception while loading model: ": (Outcome.LOAD_MODEL_FAILED,),
    "Got exception while running: ": (Outcome.WITH_EXCEPTION,),
    "Result differs: ": (Outcome.RESULT_DIFFERS, Outcome.SHAPE_MISMATCH, Outcome.TYPE_MISMATCH),
    "Other reason:": (Outcome.UNKNOWN_ERROR,),
}
"""What the summary calls failures, letter by letter as onnx_test_runner writes it."""


@dataclass(frozen=True)
class Result:
    """One data set's: `seconds` spent in runs, all repeats together; `text` says why where it is no success.
    `operator`: that of a model with a single node. `opset` 0: the model imports none of ONNX's."""

    name: str
    model: Path
    data_set: str
    folder: Path
    outcome: Outcome
    seconds: float = 0.0
    text: str = ""
    operator: str = ""
    opset: int = 0

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        return {"name": self.name, "model": str(self.model), "data_set": self.data_set,
                "folder": str(self.folder), "outcome": self.outcome.name, "code": int(self.outcome),
                "seconds": self.seconds, "text": self.text, "operator": self.operator, "opset": self.opset}


@dataclass
class Report:
    """All of it. `models`: how many were run; `skipped`: (name, model, reason); `seconds` on the clock."""

    results: list[Result] = field(default_factory=list)
    skipped: list[tuple[str, Path, str]] = field(default_factory=list)
    models: int = 0
    seconds: float = 0.0

    @property
    def failed(self) -> list[Result]:
        return [r for r in self.results if r.outcome.failed]

    @property
    def not_implemented(self) -> list[Result]:
        return [r for r in self.results if r.outcome is Outcome.NOT_SUPPORT]

    @property
    def succeeded(self) -> int:
        return len(self.results) - len(self.failed) - len(self.not_implemented)

    def reasons(self) -> dict[str, int]:
        """How often each reason of failure came up, the ones that did."""
        counts = Counter(r.outcome for r in self.failed)
        found = {text: sum(counts[o] for o in outcomes) for text, outcomes in REASONS.items()}
        return {text: count for text, count in found.items() if count}

    def failed_names(self) -> list[str]:
        """The tests that failed, each once."""
        return list(dict.fromkeys(r.name for r in self.failed))

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        return {"models": self.models, "test_cases": len(self.results), "succeeded": self.succeeded,
                "not_implemented": len(self.not_implemented), "failed": len(self.failed),
                "reasons": {reason.rstrip(": "): count for reason, count in self.reasons().items()},
                "failed_tests": self.failed_names(), "seconds": self.seconds,
                "skipped": [{"name": n, "model": str(m), "reason": why} for n, m, why in self.skipped],
                "results": [r.plain() for r in self.results]}


def summary(report: Report) -> str:
    """onnx_test_runner's closing lines."""
    lines = ["result: ", f"\tModels: {report.models}", f"\tTotal test cases: {len(report.results)}",
             f"\t\tSucceeded: {report.succeeded}", f"\t\tNot implemented: {len(report.not_implemented)}",
             f"\t\tFailed: {len(report.failed)}"]
    lines += [f"\t\t\t{reason}{count}" for reason, count in report.reasons().items()]
    missing, broken = (sorted({r.operator for r in found if r.operator})
                       for found in (report.not_implemented, report.failed))
    lines += ["\tStats by Operator type:", f"\t\tNot implemented({len(missing)}): {', '.join(missing)}",
              f"\t\tFailed:{', '.join(broken)}"]
    names = sorted({f"{r.name} of opset{r.opset}" if r.opset else r.name for r in report.failed})
    lines += [f"Failed Test Cases:{', '.join(names)}"]
    return "\n".join(lines)


def junit(report: Report) -> bytes:
    """The report as JUnit's XML: a suite per folder of models, a test case per data set."""
    root = ElementTree.Element("testsuites", name="orthrus test-runner", tests=str(len(report.results)
                               + len(report.skipped)), failures=str(len(report.failed)),
                               time=f"{report.seconds:.6f}")
    suites: dict[str, ElementTree.Element] = {}

    def suite(model: Path) -> ElementTree.Element:
        name = model.absolute().parent.parent.name
        if name not in suites:
            suites[name] = ElementTree.SubElement(root, "testsuite", name=_clean(name))
        return suites[name]

    for r in report.results:
        case = ElementTree.SubElement(suite(r.model), "testcase", name=_clean(r.data_set),
                                      classname=_clean(r.name), time=f"{r.seconds:.6f}")
        if r.outcome.failed:
            told = ElementTree.SubElement(case, "failure", type=r.outcome.name,
                                          message=_clean(r.text.partition("\n")[0]))
            told.text = _clean(f"{r.text}\n{r.model}\n{r.folder}")
        elif r.outcome is Outcome.NOT_SUPPORT:
            ElementTree.SubElement(case, "skipped", message=_clean(f"not implemented: {r.text}"))
    for name, model, why in report.skipped:
        case = ElementTree.SubElement(suite(model), "testcase", name=_clean(model.name), time="0",
                                      classname=_clean(name))
        ElementTree.SubElement(case, "skipped", message=_clean(why))
    for each in suites.values():
        cases = each.findall("testcase")
        each.set("tests", str(len(cases)))
        each.set("failures", str(len(each.findall("testcase/failure"))))
        each.set("errors", "0")
        each.set("skipped", str(len(each.findall("testcase/skipped"))))
        each.set("time", f"{sum(float(c.get('time', '0')) for c in cases):.6f}")
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)


def _clean(text: str) -> str:
    """`text` without the characters that XML has no way to write."""
    return re.sub("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "?", text)
