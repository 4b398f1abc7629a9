"""`orthrus check-provider`: is this class a provider that sessions can rely on?

In: a class as `module:Class`, a shared library with one provider, or the name of a registered provider. Out:
a line per check and what failed in full; exit code 1 where a check failed. `python -m
orthrus.tools.cli.check_provider` is the same.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..asked import LIBRARIES, full_name, import_modules, load_library
from .arguments import ImportOption, JsonOption, Texts, console, option_of, print_json, say

if TYPE_CHECKING:
    from ...testing import Bench, Check, Report

ProviderArgument = Annotated[str | None, typer.Argument(
    metavar="MODULE:CLASS", show_default=False,
    help="The provider's class, a shared library of one, or a registered provider's full or short name.")]
OptionOption = Annotated[Texts, option_of(
    "--option", "-o", metavar="KEY=VALUE", help="Provider option to make it with; repeat for several.")]
OperatorOption = Annotated[Texts, option_of(
    "--operator", metavar="NAME",
    help="Only samples of this operator: Conv, 'Reduce*', com.microsoft::Gelu; repeat for several.")]
TypeOption = Annotated[Texts, option_of(
    "--type", metavar="TYPE", help="Only samples of this element type, such as float; repeat for several.")]
CheckOption = Annotated[Texts, option_of(
    "--check", metavar="NAME", help="Only this check, or family of checks; repeat for several.")]
SlackOption = Annotated[float, option_of(
    "--slack", min=0.0,
    help="Factor on the bounds of closeness; at 1, the default, 2e-5 relative for float.")]
HtmlOption = Annotated[Path | None, option_of("--html", metavar="FILE", help="Write the report as a page.")]
JunitOption = Annotated[Path | None, option_of("--junit", metavar="FILE", help="Write JUnit's XML.")]
ListOption = Annotated[bool, option_of("--list", help="List the checks and what they ask for.")]


def command(
    provider: ProviderArgument = None, option: OptionOption = None, operator: OperatorOption = None,
    type: TypeOption = None, check: CheckOption = None, slack: SlackOption = 1.0, html: HtmlOption = None,
    junit: JunitOption = None, listed: ListOption = False, modules: ImportOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check an execution provider: operators against their definitions, parts, options, threads, memory,
    errors."""
    from ...testing import bench_of, checks

    if listed:
        _list(checks(check), as_json)
        return
    if provider is None:
        raise typer.BadParameter("which provider? Give module:Class, or a registered name")
    import_modules(modules)
    bench = bench_of(_class_of(provider), _options_of(option), operator, type, slack)
    report = _watched(bench, checks(check))
    if html is not None:
        report.html(html)
    if junit is not None:
        report.junit(junit)
    if as_json:
        print_json(report.plain())
    else:
        _show(report)
    if not report.ok:
        raise typer.Exit(1)


def _watched(bench: Bench, wanted: list[Check]) -> Report:
    """Run the checks, with a bar on stderr where someone watches; elsewhere with a line for each check that
    begins when the one before has taken its time."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    from ...testing import run_checks

    out = console(stderr=True)
    if not out.is_terminal:
        return run_checks(bench, wanted, _Lines(len(wanted)))
    with Progress(TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), console=out,
                  transient=True, disable=not out.is_terminal) as bar:
        task = bar.add_task("checking", total=len(wanted))
        return run_checks(bench, wanted, lambda c: bar.update(task, description=c.name),
                          lambda _: bar.advance(task))


class _Lines:
    """Says on stderr which check begins, once checking has taken `PATIENCE` since the last word."""

    def __init__(self, count: int) -> None:
        self.count, self.begun, self.said = count, 0, time.monotonic()

    def __call__(self, check: Check) -> None:
        from .display import PATIENCE

        self.begun += 1
        if time.monotonic() - self.said > PATIENCE:
            say(f"check {self.begun} of {self.count}: {check.name}")
            self.said = time.monotonic()


def _class_of(text: str) -> Any:
    """The class that `text` names. Raises ValueError where there is none."""
    import importlib

    from ...providers import known

    if text.endswith(LIBRARIES):
        name, *others = load_library(text)
        if others:
            raise ValueError(f"{text} has several providers; --import it, and name one: {name}, "
                             f"{', '.join(others)}")
        return known()[name]
    module, colon, name = text.partition(":")
    if not colon:
        return known()[full_name(text, list(known()))]
    try:
        import_modules([module])
    except ModuleNotFoundError as error:
        raise ValueError(f"{text}: {error}; expected module:Class") from None
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        if not hasattr(found, part):
            raise ValueError(f"{text}: {module} has no {name}")
        found = getattr(found, part)
    if not isinstance(found, type):
        raise ValueError(f"{text}: {name} is no class")
    return found


def _options_of(given: list[str] | None) -> dict[str, str]:
    options = {}
    for text in given or ():
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise ValueError(f"--option {text}: expected KEY=VALUE")
        options[key] = value
    return options


def _list(wanted: list[Check], as_json: bool) -> None:
    from .display import table

    if as_json:
        print_json([{"check": c.name, "family": c.family, "about": c.about} for c in wanted])
        return
    console().print(table("", ("family", "check", "what a provider must do, and why"),
                          [(c.family, c.name, c.about) for c in wanted]))


def _show(report: Report) -> None:
    from rich.text import Text

    from ...testing.report import told
    from .display import table

    out = console()
    styles = {"passed": "green", "failed": "bold red", "skipped": "dim"}
    rows, family = [], ""
    for o in report.outcomes:
        rows.append((o.family if o.family != family else "", o.check, Text(o.status, style=styles[o.status]),
                     told(o) if len(told(o)) < 160 else f"{told(o)[:157]}..."))
        family = o.family
    out.print(table("", ("family", "check", "", ""), rows))
    if covered := [c for c in report.coverage if c.claimed]:
        out.print(table("\nOperators", ("operator", "versions", "claimed", "ran", "types"), [
            (c.operator, ", ".join(map(str, c.versions)), f"{c.claimed} of {c.samples}", c.ran,
             ", ".join(c.types))
            for c in covered], right=(3,)))
    for o in report.failed:
        out.print(f"\n{o.check}", style="bold red", markup=False, highlight=False)
        out.print(f"{o.about}\n", style="dim", markup=False, highlight=False)
        out.print(str(o), markup=False, highlight=False)
    out.print(f"\n{report.summary}", markup=False, highlight=False)


if __name__ == "__main__":
    from .arguments import Told

    app = typer.Typer(cls=Told, add_completion=False, pretty_exceptions_enable=False)
    app.command()(command)
    app()
