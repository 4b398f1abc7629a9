"""The kit for authors of execution providers: is this class a provider that sessions can rely on?

    from orthrus.testing import check_provider
    report = check_provider(MyExecutionProvider)
    assert report.ok, report

or, as a test of its own per check, in a file that pytest collects:

    from orthrus.testing import provider_tests
    test_my_provider = provider_tests(MyExecutionProvider)

In: a provider class. Out: a `Report`. Operators are tried on samples with known results, graphs whole against
node by node, and the class as sessions, threads and other processes use it. Nothing stays registered.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

from ..errors import Fail
from ..providers.base import ExecutionProvider
from . import concurrency, failures, interface, operators, options, partitions
from .bench import Bench, Skip
from .check import CHECKS, Check, check, fault
from .report import Coverage, Finding, Outcome, Report

FAMILIES = (interface.FAMILY, options.FAMILY, operators.FAMILY, partitions.FAMILY, concurrency.FAMILY,
            failures.FAMILY)


def checks(only: Collection[str] | None = None) -> list[Check]:
    """The checks in the order in which they run; `only`: names of checks or families. Raises ValueError
    for a name that is neither."""
    every = sorted(CHECKS.values(), key=lambda c: FAMILIES.index(c.family) if c.family in FAMILIES else 99)
    if only is None:
        return every
    if unknown := set(only) - {c.name for c in every} - {c.family for c in every}:
        raise ValueError(f"no check {', '.join(sorted(unknown))}; there are the families "
                         f"{', '.join(FAMILIES)} and the checks {', '.join(c.name for c in every)}")
    return [c for c in every if c.name in only or c.family in only]


def check_provider(
    provider: type[ExecutionProvider], *, options: dict[str, Any] | None = None,
    operators: Sequence[str] | None = None, types: Sequence[str] | None = None, report: Report | None = None,
    only: Sequence[str] | None = None, slack: float = 1.0, strict: bool = False,
    seen: Callable[[Outcome], None] | None = None,
) -> Report:
    """Run the checks on a provider class and answer what they found.

    `options`: provider options to make it with. `operators`: names or patterns (`Conv`, `Reduce*`,
    `com.microsoft::Gelu`), `types`: element types (`float`, `int8`) of the samples; all by default. `report`:
    one to add to. `only`: names of checks or families. `slack`: a factor on every bound of closeness, 2e-5
    relative for float32. `seen`: told of each outcome as it comes. `strict`: raise Fail where a check failed;
    otherwise nothing is raised that the provider does.

    Raises TypeError for what is no provider class, ValueError for an unknown check, operator or type.
    """
    bench = bench_of(provider, options, operators, types, slack)
    wanted = checks(only)
    report = run_checks(bench, wanted, ended=seen, report=report)
    if strict and not report.ok:
        raise Fail(f"{report.summary}\n" + "\n".join(map(str, report.failed)), node=bench.name,
                   cure="report.table() has every check")
    return report


def run_checks(bench: Bench, wanted: Sequence[Check], begun: Callable[[Check], None] | None = None,
               ended: Callable[[Outcome], None] | None = None, report: Report | None = None) -> Report:
    """Run some checks on a bench; `begun` and `ended` are told of each."""
    report = Report() if report is None else report
    report.provider = ", ".join(dict.fromkeys([*filter(None, [report.provider]), bench.name]))
    for each in wanted:
        if begun is not None:
            begun(each)
        report.outcomes.append(outcome := each.run(bench))
        if ended is not None:
            ended(outcome)
    report.machine = report.machine or bench.machine
    report.coverage += bench.coverage()
    return report


def bench_of(provider: type[ExecutionProvider], options: dict[str, Any] | None = None,
             operators: Sequence[str] | None = None, types: Sequence[str] | None = None,
             slack: float = 1.0) -> Bench:
    """The bench for a provider class. Raises TypeError for what is none, ValueError as `check_provider`."""
    if not isinstance(provider, type) or not issubclass(provider, ExecutionProvider):
        raise TypeError(f"{provider!r} is no provider; expected a subclass of orthrus.ExecutionProvider")
    return Bench(provider, options, operators, types, slack)


def provider_tests(provider: type[ExecutionProvider], *, options: dict[str, Any] | None = None,
                   operators: Sequence[str] | None = None, types: Sequence[str] | None = None,
                   only: Sequence[str] | None = None, slack: float = 1.0) -> Callable[..., None]:
    """A pytest test with a case per check; assign it to a name that begins with `test`. Takes what
    `check_provider` takes. A check that had nothing to look at is a skip with its reason."""
    import pytest

    bench: list[Bench] = []

    @pytest.mark.parametrize("check", [pytest.param(c, id=c.name) for c in checks(only)])
    def test(check: Check) -> None:
        if not bench:
            bench.append(bench_of(provider, options, operators, types, slack))
        outcome = check.run(bench[0])
        if outcome.findings:
            pytest.fail(f"{outcome.about}\n\n{outcome}", pytrace=False)
        if outcome.reason:
            pytest.skip(f"nothing to look at: {outcome.reason}")

    return test


__all__ = ["CHECKS", "FAMILIES", "Bench", "Check", "Coverage", "Finding", "Outcome", "Report", "Skip",
           "bench_of", "check", "check_provider", "checks", "fault", "provider_tests", "run_checks"]
