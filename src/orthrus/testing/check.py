"""A check: one function that says in its docstring what a provider must do and why, and yields what is wrong.

In: a `Bench`. Out: an `Outcome`. A check that raises is itself reported as a fault of the provider, which
raised; one that saw no case is skipped.
"""

from __future__ import annotations

import inspect
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from ..records import dataclass
from .bench import Bench, Skip, brief
from .report import FAILED, PASSED, SKIPPED, Finding, Outcome
from .samples import Sample

Body = Callable[[Bench], Iterator[Finding]]
CHECKS: dict[str, Check] = {}
"""Every check by name, in the order in which they run."""


@dataclass(frozen=True)
class Check:
    """`name`, its `family`, `about`: what a provider must do and why, and the function."""

    name: str
    family: str
    about: str
    body: Body

    def run(self, bench: Bench) -> Outcome:
        """Look at the provider. Raises nothing that an Exception is."""
        start, findings, reason = time.perf_counter(), list[Finding](), ""
        bench.cases = 0
        try:
            for finding in self.body(bench):
                findings.append(replace(finding, check=self.name))
        except Skip as skip:
            reason = str(skip)
        except Exception as error:
            at = traceback.extract_tb(error.__traceback__)[-1]
            findings.append(Finding(self.name, bench.name, f"{brief(error)} ({at.filename}:{at.lineno})",
                                    "no exception", "mend what raises, or decline the nodes with a reason"))
        if not findings and not reason and not bench.cases:
            reason = "it saw no case"
        status = FAILED if findings else SKIPPED if reason else PASSED
        return Outcome(self.name, self.family, status, self.about, tuple(findings),
                       "" if findings else reason, bench.cases, time.perf_counter() - start)


def check(family: str) -> Callable[[Body], Body]:
    """Register a check of `family`; its name is the function's."""
    def decorate(body: Body) -> Body:
        name = body.__name__.rstrip("_")
        CHECKS[name] = Check(name, family, " ".join((inspect.getdoc(body) or "").split()), body)
        return body
    return decorate


def fault(where: str, found: str, expected: str, cure: str) -> Finding:
    """A finding; the check's name is filled in when it is reported."""
    return Finding("", where, found, expected, cure)


def by_operator(rows: Iterable[tuple[Sample, str]], expected: str, cure: str) -> Iterator[Finding]:
    """One finding per operator and type: the first sample's, and how many there are of its kind."""
    groups: dict[tuple[str, str], list[tuple[Sample, str]]] = {}
    for sample, found in rows:
        groups.setdefault((sample.kind, sample.type), []).append((sample, found))
    for group in groups.values():
        sample, found = group[0]
        more = f"; {len(group)} samples of {sample.type} in all" if len(group) > 1 else ""
        yield fault(str(sample), found + more, expected, cure)
