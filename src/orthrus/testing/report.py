"""What the checks found: an outcome per check, as a table, as data, as a page and as JUnit's XML.

In: outcomes, in the order in which the checks ran. Out: text and files. An outcome says how many cases it
looked at, so that a check that had nothing to look at is skipped and never counts as passed.
"""

from __future__ import annotations

import html
import os
from collections.abc import Iterator
from dataclasses import asdict, field
from pathlib import Path
from typing import Any

from ..records import dataclass

SHOWN = 8
"""Findings of one check that a table shows; data, page and XML hold all of them."""
PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"


@dataclass(frozen=True)
class Finding:
    """One fault. `where`: the operator, node or option; `cure`: what the provider's author can do."""

    check: str
    where: str
    found: str
    expected: str
    cure: str

    def __str__(self) -> str:
        return (f"{self.check}: {self.where}\n  found: {self.found}\n  expected: {self.expected}\n"
                f"  cure: {self.cure}")


@dataclass(frozen=True)
class Outcome:
    """How one check ended. `status`: passed, failed or skipped; `reason`: why it was skipped; `cases`: how
    many samples, graphs or options it looked at; `about`: what a provider must do, and why."""

    check: str
    family: str
    status: str
    about: str
    findings: tuple[Finding, ...] = ()
    reason: str = ""
    cases: int = 0
    seconds: float = 0.0

    def __str__(self) -> str:
        if self.status == SKIPPED:
            return f"{self.check} skipped: {self.reason}"
        if self.status == PASSED:
            return f"{self.check} passed: {told(self)}"
        shown = "\n".join(map(str, self.findings[:SHOWN]))
        more = len(self.findings) - SHOWN
        return f"{shown}\n... and {more} more" if more > 0 else shown


@dataclass(frozen=True)
class Coverage:
    """What was seen of one operator: the types and schema versions in which the provider claimed samples, how
    many it claimed and how many of those ran on it; with none claimed, its reason for the first."""

    operator: str
    types: tuple[str, ...]
    versions: tuple[int, ...]
    samples: int
    claimed: int
    ran: int
    reason: str = ""


@dataclass
class Report:
    """Outcomes of the checks of one provider. `provider`: its name; `machine`: why it cannot work here, empty
    where it can."""

    provider: str = ""
    machine: str = ""
    outcomes: list[Outcome] = field(default_factory=list)
    coverage: list[Coverage] = field(default_factory=list)

    def __iter__(self) -> Iterator[Outcome]:
        return iter(self.outcomes)

    def __len__(self) -> int:
        return len(self.outcomes)

    def __getitem__(self, name: str) -> Outcome:
        """The outcome of the check called `name`. Raises KeyError with the names there are."""
        for outcome in self.outcomes:
            if outcome.check == name:
                return outcome
        raise KeyError(f"no check {name!r}; there are {', '.join(o.check for o in self.outcomes)}")

    @property
    def ok(self) -> bool:
        """Whether no check failed."""
        return not self.failed

    @property
    def passed(self) -> list[Outcome]:
        return [o for o in self.outcomes if o.status == PASSED]

    @property
    def failed(self) -> list[Outcome]:
        return [o for o in self.outcomes if o.status == FAILED]

    @property
    def skipped(self) -> list[Outcome]:
        return [o for o in self.outcomes if o.status == SKIPPED]

    @property
    def findings(self) -> list[Finding]:
        """Every check's findings."""
        return [finding for outcome in self.outcomes for finding in outcome.findings]

    @property
    def summary(self) -> str:
        """One line: how many checks ended how."""
        return (f"{self.provider}: {len(self.passed)} passed, {len(self.failed)} failed, "
                f"{len(self.skipped)} skipped")

    def table(self) -> str:
        """A line per check, then what failed, in full."""
        wide = max((len(o.check) for o in self.outcomes), default=0)
        lines, family = [], ""
        for o in self.outcomes:
            if o.family != family:
                lines.append(f"{o.family}")
                family = o.family
            lines.append(f"  {o.check:<{wide}}  {o.status:<7}  {told(o)}".rstrip())
        if claimed := [c for c in self.coverage if c.claimed]:
            lines.append("operators claimed")
            lines += [f"  {c.operator:<{wide}}  {c.ran} of {c.claimed} samples ran  {', '.join(c.types)}"
                      for c in claimed]
        lines += ["", *(f"{o}\n" for o in self.failed), self.summary]
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.table()

    def plain(self) -> dict[str, Any]:
        """The same as data for JSON."""
        return {"provider": self.provider, "machine": self.machine, "ok": self.ok,
                "passed": len(self.passed), "failed": len(self.failed), "skipped": len(self.skipped),
                "outcomes": [asdict(o) for o in self.outcomes],
                "coverage": [asdict(c) for c in self.coverage]}

    def html(self, path: str | os.PathLike[str] | None = None) -> str:
        """One page without anything outside it; written to `path` where one is given."""
        text = page(self)
        if path is not None:
            Path(path).write_text(text, encoding="utf-8")
        return text

    def junit(self, path: str | os.PathLike[str]) -> None:
        """JUnit's XML, which test servers read: a suite per family, a case per check."""
        from xml.etree import ElementTree as tree

        root = tree.Element("testsuites", name=self.provider, tests=str(len(self.outcomes)),
                            failures=str(len(self.failed)), skipped=str(len(self.skipped)))
        for family in dict.fromkeys(o.family for o in self.outcomes):
            mine = [o for o in self.outcomes if o.family == family]
            suite = tree.SubElement(root, "testsuite", name=f"{self.provider}.{family}", tests=str(len(mine)),
                                    failures=str(sum(o.status == FAILED for o in mine)), errors="0",
                                    skipped=str(sum(o.status == SKIPPED for o in mine)),
                                    time=f"{sum(o.seconds for o in mine):.3f}")
            for o in mine:
                case = tree.SubElement(suite, "testcase", classname=f"{self.provider}.{family}", name=o.check,
                                       time=f"{o.seconds:.3f}")
                if o.status == SKIPPED:
                    tree.SubElement(case, "skipped", message=_xml(o.reason))
                elif o.status == FAILED:
                    failure = tree.SubElement(case, "failure", message=_xml(told(o)), type="Finding")
                    failure.text = _xml("\n".join(map(str, o.findings)))
        tree.ElementTree(root).write(path, encoding="utf-8", xml_declaration=True)


def told(outcome: Outcome) -> str:
    """An outcome in half a line."""
    if outcome.status == SKIPPED:
        return outcome.reason
    if outcome.status == FAILED:
        rest = f" and {len(outcome.findings) - 1} more" if len(outcome.findings) > 1 else ""
        return f"{outcome.findings[0].where}: {outcome.findings[0].found}{rest}".replace("\n", " ")
    return "1 case" if outcome.cases == 1 else f"{outcome.cases} cases"


def _xml(text: str) -> str:
    """`text` without the control characters that XML cannot hold."""
    return "".join(c if c >= " " or c in "\n\t" else "?" for c in text)


_STYLE = """body{font:15px/1.45 system-ui,sans-serif;margin:2em auto;max-width:72em;padding:0 1em}
table{border-collapse:collapse;width:100%}td,th{padding:.3em .6em;text-align:left;vertical-align:top;
border-bottom:1px solid #dde2e8}th{font-weight:600}.passed{color:#197a3d}
.failed{color:#b3261e;font-weight:600}
.skipped{color:#6b7480}pre{background:#f4f6f8;padding:.7em;white-space:pre-wrap;overflow-wrap:anywhere}
details summary{cursor:pointer}.about{color:#5a6470}
@media(prefers-color-scheme:dark){body{background:#14181d;color:#dde3ea}td,th{border-color:#2c343d}
pre{background:#1d232a}.passed{color:#5cc98a}.failed{color:#ff8a80}.skipped,.about{color:#95a0ac}}"""


def page(report: Report) -> str:
    """A report as HTML."""
    esc = html.escape
    rows = []
    family = ""
    for o in report.outcomes:
        if o.family != family:
            rows.append(f"<tr><th colspan=3>{esc(o.family)}</th></tr>")
            family = o.family
        body = f"<span class=about>{esc(o.about)}</span>"
        if o.status != PASSED:
            body = f"{esc(told(o))}<br>{body}"
        if o.findings:
            body += (f"<details><summary>{len(o.findings)} findings</summary>"
                     + "".join(f"<pre>{esc(str(f))}</pre>" for f in o.findings) + "</details>")
        rows.append(f"<tr id={esc(o.check)}><td>{esc(o.check)}</td><td class={o.status}>{o.status}"
                    f"{f' ({o.cases})' if o.cases else ''}</td><td>{body}</td></tr>")
    covered = "".join(
        f"<tr><td>{esc(c.operator)}</td><td>{c.claimed} of {c.samples}</td><td>{c.ran}</td>"
        f"<td>{esc(', '.join(c.types) or c.reason)}</td></tr>" for c in report.coverage)
    machine = (f"<p class=failed>cannot work on this machine: {esc(report.machine)}</p>"
               if report.machine else "")
    return (f"<!doctype html><html lang=en><meta charset=utf-8><title>{esc(report.summary)}</title>"
            f"<meta name=viewport content='width=device-width,initial-scale=1'><style>{_STYLE}</style>"
            f"<h1>{esc(report.provider)}</h1><p>{esc(report.summary)}</p>{machine}"
            f"<table>{''.join(rows)}</table><h2>Operators</h2><table><tr><th>operator<th>samples claimed"
            f"<th>ran<th>types, or why not</tr>{covered}</table></html>\n")
