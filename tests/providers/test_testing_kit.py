"""The kit for providers' authors: right providers pass, every broken one is found out by the check meant
for it."""

from __future__ import annotations

import json
import re
import tracemalloc
from pathlib import Path
from typing import Any, ClassVar
from xml.etree import ElementTree

import numpy as np
import pytest
from broken_heavy import HeavyProvider
from broken_providers import FAILING, OPERATORS, Good, Raises, WrongForOneType
from typer.testing import CliRunner

import orthrus as ort
from orthrus import providers, testing
from orthrus.errors import Fail
from orthrus.ir import No
from orthrus.providers import CPUExecutionProvider, NullExecutionProvider, Option
from orthrus.testing import Report, check_provider, checks, concurrency, provider_tests
from orthrus.testing.closeness import apart
from orthrus.testing.samples import samples

TYPES = ("float", "int32")
TRIED = (*OPERATORS, "Sqrt")
APART = ("leaks", "bare_machine", "heavy_imports_wait")
"""Checks that take longer than all others together; tried on the providers that are broken there."""
ANY_TIME = ("ShutsEverythingDown", "ProbeRaises", "ProbeSaysNothing")
"""Broken in what the garbage collector does, or already when asked whether they work: other checks may meet
that as well."""
DOCS = Path(__file__).resolve().parents[2] / "docs" / "write-a-provider.md"


def report_of(cls: Any, **more: Any) -> Report:
    only = [c.name for c in checks() if c.name not in APART]
    return check_provider(cls, **{"operators": TRIED, "types": TYPES, "only": only, **more})


def failed(report: Report) -> set[str]:
    return {o.check for o in report.failed}


def documented() -> type[ort.ExecutionProvider]:
    """The provider of the documentation."""
    found = re.search(r"^```python\n(.*?)^```", DOCS.read_text(encoding="utf-8"), re.M | re.S)
    assert found is not None
    names: dict[str, Any] = {"__name__": "documented"}
    exec(found[1].replace("ort.register_execution_provider", "id"), names)
    cls: type[ort.ExecutionProvider] = names["NumpyExecutionProvider"]
    return cls


@pytest.mark.slow
def test_a_good_provider_passes() -> None:
    report = check_provider(Good, operators=TRIED, types=TYPES)
    assert report.ok, report
    assert {o.check for o in report.skipped} == {
        "options_are_declared", "option_defaults", "options_arrive_as_strings", "wrong_values",
        "options_are_each_instance_s_own", "operators_are_defined"}
    assert all(o.cases for o in report.passed) and all(o.reason for o in report.skipped)
    assert {c.operator for c in report.coverage if c.ran} == set(OPERATORS)
    assert Good.name not in providers.known()


def test_the_documented_provider_passes() -> None:
    report = check_provider(documented(), types=("float",),
                            only=[c.name for c in checks() if c.name not in APART])
    assert report.ok, report
    assert len(report.passed) > 35


@pytest.mark.parametrize("name", [
    pytest.param(name, marks=pytest.mark.slow) if i % 4 or name.startswith("Keeps") else name
    for i, name in enumerate(FAILING)])
def test_a_broken_provider_is_found_out(name: str) -> None:
    """By the check meant for it, and by no other of its families."""
    expected = FAILING[name][1]
    found_out(name, [c.name for c in checks({c.family for c in checks(list(expected))})
                     if c.name not in APART or c.name in expected])


@pytest.mark.thorough
@pytest.mark.parametrize("name", FAILING)
def test_a_broken_provider_is_found_out_by_no_other_check(name: str) -> None:
    found_out(name, [c.name for c in checks()])


def found_out(name: str, only: list[str]) -> None:
    cls, expected = FAILING[name]
    types = TYPES if name == "WrongForOneType" else TYPES[:1]
    report = check_provider(cls, operators=TRIED, types=types, only=only)
    more = failed(report) - expected
    assert expected <= failed(report) and (not more or name in ANY_TIME), report
    for finding in report.findings:
        assert finding.where and finding.found and finding.expected and finding.cure


def test_what_measures_growth_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(concurrency, "_made", lambda *_: None)
    grown, _ = concurrency._growth(None, None, np.zeros(1))  # type: ignore[arg-type]
    assert grown < concurrency.BYTES / 8


@pytest.mark.slow
@pytest.mark.parametrize("name", ["KeepsNativeMemory", "KeepsBytes"])
@pytest.mark.parametrize("turn", [1, 2, 3])
def test_a_leak_is_seen_though_others_give_memory_back(
        name: str, turn: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole process is measured: at one time a hundred megabytes of it go that are nobody's here."""
    asked = iter(range(1000))

    def given_back(measured: int) -> int:
        return measured - (next(asked) >= turn) * 100_000_000

    resident, traced = concurrency._resident, tracemalloc.get_traced_memory
    monkeypatch.setattr(concurrency, "_resident", lambda: given_back(resident()))
    if name == "KeepsBytes":
        monkeypatch.setattr(tracemalloc, "get_traced_memory", lambda: (given_back(traced()[0]), 0))
    assert failed(check_provider(FAILING[name][0], operators=TRIED, only=["leaks"])) == {"leaks"}


def test_every_check_can_fail() -> None:
    tried = set().union(*(expected for _, expected in FAILING.values()))
    elsewhere = {"heavy_imports_wait", "signatures", "sessions_by_name"}
    assert {c.name for c in checks()} - tried == elsewhere


def test_imports_of_the_module_are_seen() -> None:
    [outcome] = check_provider(HeavyProvider, operators=("Neg",), only=["heavy_imports_wait"]).failed
    assert "onnx" in outcome.findings[0].found and "HeavyProvider" not in str(outcome)
    assert check_provider(Good, operators=("Neg",), only=["heavy_imports_wait"]).ok


def test_signatures_are_compared() -> None:
    class Other(Good):
        name = "OtherFormExecutionProvider"

        def compile(self, part: Any, graph: Any) -> Any:
            return super().compile(part)

        def probe(self) -> Any:
            return None

    [outcome] = check_provider(Other, operators=("Neg",), only=["signatures"]).failed
    assert [f.where for f in outcome.findings] == ["probe", "compile"]


@pytest.mark.filterwarnings("ignore:Specified provider:UserWarning")
def test_a_session_by_name_has_the_provider() -> None:
    class Shy(Good):
        name = "ShyExecutionProvider"

        def __init__(self, options: Any = None) -> None:
            super().__init__(options)
            self.name = "AnotherExecutionProvider"  # type: ignore[misc]

    assert "sessions_by_name" in failed(report_of(Shy))


def test_a_machine_without_the_device() -> None:
    class Absent(Good):
        name = "AbsentExecutionProvider"

        @classmethod
        def probe(cls) -> No | None:
            return No("no such device")

    report = report_of(Absent)
    assert report.ok and report.machine == "no such device"
    assert "no such device" in report["chain"].reason and report["name"].status == "passed"
    assert not report.coverage


def test_nothing_claimed_is_nothing_passed() -> None:
    class Idle(Good):
        name = "IdleExecutionProvider"

        def claim(self, node: Any) -> No | None:
            return No("on holiday")

    report = report_of(Idle)
    assert report.ok and report["results"].status == "skipped" and "on holiday" in report["results"].reason
    assert report["random_graphs"].status == "skipped"


def test_wrong_numbers_of_the_null_provider_are_told_as_such() -> None:
    report = check_provider(NullExecutionProvider, operators=("Neg", "Add", "Conv", "TopK", "Concat",
                                                              "ReduceSum"),
                            types=("float",), only=[c.name for c in checks() if c.name not in APART])
    assert failed(report) == {"results", "shapes_left_open", "contradictions_are_refused"}, report
    assert {f.where.split("-")[0] for f in report["results"].findings} == {
        "Neg", "Add", "Conv", "TopK", "Concat", "ReduceSum"}


@pytest.mark.slow
def test_the_cpu_provider() -> None:
    report = check_provider(CPUExecutionProvider, types=("float", "uint8", "bool"), operators=(
        "Add", "Tanh", "Softmax", "MatMul", "Conv", "ReduceSum", "Concat", "LSTM", "Where", "QLinearConv",
        "Gather",
        "com.microsoft::*"))
    assert report.ok, report
    assert report["results"].cases > 30 and report["leaks"].status == "passed"


@pytest.mark.thorough
@pytest.mark.parametrize("types", [("float", "string"), ("double", "bool", "bfloat16"),
                                   ("float16", "int64", "int32", "uint8", "uint32", "uint64")],
                         ids=lambda t: "-".join(t))
def test_the_cpu_provider_at_length(types: Any) -> None:
    report = check_provider(CPUExecutionProvider, types=types)
    assert report.ok, report


@pytest.mark.slow
def test_options_are_used() -> None:
    class Scaled(Good):
        name = "ScaledSubExecutionProvider"
        options: ClassVar = {"scale": Option(float, 1.0, "a factor on every difference")}

        def function(self, node: Any) -> Any:
            scale = np.float32(self.settings["scale"])
            right = super().function(node)
            return right if node.op_type != "Add" else lambda a, b: (right(a, b) * scale).astype(a.dtype)

    assert report_of(Scaled).ok
    report = report_of(Scaled, options={"scale": 2})
    assert failed(report) == {"results"}
    assert {o.check for o in report.passed} >= {"option_defaults", "wrong_values", "options_round_trip"}


def test_reports(tmp_path: Path) -> None:
    report = report_of(Raises, operators=("Floor", "Neg", "Tanh"))
    assert not report.ok and report.summary.startswith("RaisesExecutionProvider: ")
    assert "claimed_nodes_run" in report.table() and "Floor-13(float[3, 5])" in report.table()
    data = json.loads(json.dumps(report.plain()))
    assert not data["ok"] and data["failed"] == 1 and len(data["outcomes"]) == len(report)
    page = report.html(tmp_path / "r.html")
    assert (tmp_path / "r.html").read_text(encoding="utf-8") == page
    assert "Floor-13(float[3, 5])" in page and "<script" not in page
    report.junit(tmp_path / "r.xml")
    root = ElementTree.parse(tmp_path / "r.xml").getroot()
    assert root.get("failures") == "1" and len(root.findall(".//testcase")) == len(report)
    [failure] = root.findall(".//failure")
    assert "not written yet" in (failure.text or "")
    assert {s.get("name") for s in root} == {f"RaisesExecutionProvider.{f}" for f in testing.FAMILIES}
    with pytest.raises(KeyError, match="no check 'nothing'"):
        report["nothing"]


def test_reports_add_up_and_strictness_raises() -> None:
    seen: list[Any] = []
    report = check_provider(Good, operators=("Neg",), only=["name"], seen=seen.append)
    check_provider(WrongForOneType, operators=("Add",), types=("int32",), only=["results"], report=report)
    assert [o.check for o in report] == ["name", "results"] and seen == report.outcomes[:1]
    assert report.provider == "GoodExecutionProvider, WrongForOneTypeExecutionProvider"
    with pytest.raises(Fail, match="Add-14"):
        check_provider(WrongForOneType, operators=("Add",), types=("int32",), only=["results"], strict=True)


def test_arguments_are_checked() -> None:
    with pytest.raises(TypeError, match="is no provider"):
        check_provider(int)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="no check speed"):
        check_provider(Good, only=["speed"])
    with pytest.raises(ValueError, match="no samples of operator 'Flor'"):
        check_provider(Good, operators=["Flor"])
    with pytest.raises(ValueError, match="no element type"):
        check_provider(Good, types=["float33"])
    assert [c.family for c in checks(["options"])] == ["options"] * 7


test_as_tests = provider_tests(Good, operators=OPERATORS, types=TYPES, only=["interface", "partitions"])


def test_provider_tests_fail_as_the_checks_do() -> None:
    test = provider_tests(WrongForOneType, operators=("Add",), types=TYPES)
    [mark] = test.pytestmark  # type: ignore[attr-defined]
    cases = {p.id: p.values[0] for p in mark.args[1]}
    assert list(cases) == [c.name for c in checks()]
    with pytest.raises(pytest.fail.Exception, match="Add-14"):
        test(cases["results"])
    with pytest.raises(pytest.skip.Exception, match="declares no options"):
        test(cases["option_defaults"])
    test(cases["name"])


def test_samples_are_right_and_the_same_each_time() -> None:
    every = samples()
    assert len({s.kind for s in every}) > 220
    assert [str(s) for s in every if s.domain == "com.microsoft" and not s.loads] == []
    again = samples()
    for a, b in zip(every, again, strict=True):
        assert str(a) == str(b)
        for made in a.reference():
            assert made is None or isinstance(made, np.ndarray)


def test_closeness() -> None:
    x = np.array([1, 2, np.nan, np.inf], np.float32)
    assert apart(x.copy(), x) is None and apart(x * np.float32(1 + 1e-6), x) is None
    assert apart(x * np.float32(1.001), x) == "2 of 4 elements differ, the first at [0]: 1.001, expected 1.0"
    assert apart(x.astype(np.float64), x) == "double[4], expected float[4]"
    assert apart(x[:2], x) == "float[2], expected float[4]"
    assert apart(np.array(["a"], object), np.array(["b"], object)) is not None
    assert apart([x], [x, x]) == "a sequence of 1 where there are 2"
    assert apart(x, x + np.float32(1), 1e6) is None


def run(*args: str) -> Any:
    from orthrus.tools.cli.main import app

    return CliRunner().invoke(app, ["check-provider", *args])


def test_the_command(tmp_path: Path) -> None:
    few = ("--operator", "Neg", "--operator", "Sub", "--operator", "Tanh", "--type", "float", "--check",
           "partitions")
    found = run("broken_providers:Good", *few, "--junit", str(tmp_path / "r.xml"), "--html",
                str(tmp_path / "r.html"))
    assert found.exit_code == 0, found.output
    assert "random_graphs" in found.output and "0 failed" in found.output
    assert (tmp_path / "r.xml").is_file() and (tmp_path / "r.html").is_file()
    found = run("broken_providers:Greedy", *few, "--json")
    assert found.exit_code == 1
    outcomes = json.loads(found.stdout)["outcomes"]
    assert [o["check"] for o in outcomes if o["status"] == "failed"] == ["no_cycles"]
    assert run("null", "--check", "name").exit_code == 0
    for wrong in ("broken_providers:Nothing", "no_such_module:A", "broken_providers:OPERATORS", "nothing"):
        found = run(wrong)
        assert found.exit_code == 1 and wrong.rpartition(":")[2] in found.output.replace("\n", " ")
    assert run("--list").output.count("no_cycles") == 1
