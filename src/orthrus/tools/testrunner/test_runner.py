"""`orthrus test-runner`: models on the test data beside them, with onnx_test_runner's flags and lines.

In: folders. Out: a line per test found, onnx_test_runner's summary, and an exit code: 255 where a test
failed, 0 where none did; with `--strict`, 3 where none failed and one was skipped or not implemented.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from ...shown import tell
from ..asked import full_name, import_modules
from ..cli.arguments import ImportOption, JsonOption, alone, console, option_of, print_json

FAILED, INCOMPLETE = 255, 3
LEVELS = (0, 1, 2, 3, 99)


def _count(flag: str, text: str, least: int = 0) -> Any:
    return option_of(flag, metavar="N", min=least, help=text)


Folders = Annotated[list[Path] | None, typer.Argument(
    metavar="FOLDER...", help="Searched for models with test data beside them.", show_default=False)]
Models = Annotated[int, _count("-j", "Models at the same time; as many as there are cores.")]
Runs = Annotated[int, _count("-c", "Runs of one model at the same time; as many as there are cores.")]
AtOnce = Annotated[int, _count(
    "-X", "Runs of all models together at the same time, and -j and -c where these are not given.")]
Repeats = Annotated[int, _count("-r", "Runs of each data set, 1 by default.", 1)]
AtLeast = Annotated[int, _count("-m", "Fail where fewer tests than this are found.")]
Name = Annotated[str, option_of("-n", metavar="NAME", help="Run only this test.")]
Provider = Annotated[str, option_of(
    "-e", metavar="NAME", help="Execution provider, by full or short name; cpu by default.")]
Options = Annotated[str, option_of(
    "-i", metavar='"KEY|VALUE KEY|VALUE"', help="Options of the execution provider.")]
Entries = Annotated[str, option_of(
    "-C", metavar='"KEY|VALUE KEY|VALUE"', help="Session configuration entries.")]
Device = Annotated[int | None, _count("-d", "Device number, where the provider has an option device_id.")]
Level = Annotated[int, _count(
    "-o", "Graph optimization: 0 none, 1 basic, 2 extended, 3 layout, 99 all (the default).")]
Relative = Annotated[float | None, option_of(
    "-t", metavar="X", help="Relative tolerance, before any file's; -a is 1e-5 where only -t is given.")]
Absolute = Annotated[float | None, option_of(
    "-a", metavar="X", help="Absolute tolerance, before any file's; -t is 1e-5 where only -a is given.")]
NoArena = Annotated[bool, option_of("-A", help="Plan no arena for intermediate results.")]
NoPattern = Annotated[bool, option_of("-M", help="Keep no memory plan per input shape.")]
Parallel = Annotated[bool, option_of("-x", help="Run independent nodes at the same time.")]
Denormals = Annotated[bool, option_of("-z", help="Taken for onnxruntime's sake; denormals stay as they are.")]
Pause = Annotated[bool, option_of("-p", help="Wait for Enter first, so that a debugger can attach.")]
Verbose = Annotated[bool, option_of("-v", help="Log more, and print a line for each data set.")]
Inference = Annotated[bool, option_of(
    "-I", help="Compare nothing; write each data set's results into it, as actual_output_N.pb.")]
EpContext = Annotated[bool, option_of(
    "-f", help="Taken for onnxruntime's sake: no provider here keeps compiled models.")]
NoEmbed = Annotated[bool, option_of("-b", help="Taken for onnxruntime's sake, as -f is.")]
Usage = Annotated[bool, option_of("-h", help="Show this text and end with 255, as onnx_test_runner does.")]
Strict = Annotated[bool, option_of(
    "--strict", help="End with 3 where no test failed, but one was skipped or not implemented.")]
Junit = Annotated[Path | None, option_of("--junit", metavar="FILE", help="Write a report in JUnit's XML.")]


def command(
    context: typer.Context, folders: Folders = None, models: Models = 0, runs: Runs = 0, at_once: AtOnce = 0,
    repeats: Repeats = 1, at_least: AtLeast = 0, name: Name = "", provider: Provider = "cpu",
    options: Options = "", entries: Entries = "", device: Device = None, level: Level = 99,
    relative: Relative = None, absolute: Absolute = None, no_arena: NoArena = False,
    no_pattern: NoPattern = False, parallel: Parallel = False, denormals: Denormals = False,
    pause: Pause = False, verbose: Verbose = False, inference: Inference = False,
    ep_context: EpContext = False, no_embed: NoEmbed = False, usage: Usage = False, strict: Strict = False,
    junit: Junit = None, modules: ImportOption = None, as_json: JsonOption = False,
) -> None:
    """Run models on the test data beside them, as onnx_test_runner does: the same flags, layout, summary and
    exit codes. A model whose session cannot be made counts as not implemented and fails nothing."""
    from ...providers import known
    from .cases import find_cases, overrides
    from .matching import Tolerances, asked
    from .report import junit as junit_xml
    from .report import summary
    from .running import Settings, run_tests

    if usage:
        tell(context.get_help())
        raise typer.Exit(FAILED)
    if not folders:
        tell("please specify a test data dir", err=True)
        raise typer.Exit(FAILED)
    if level not in LEVELS:
        raise typer.BadParameter(f"{level} is none of {', '.join(map(str, LEVELS))}", param_hint="-o")
    import_modules(modules)
    for flag, given in (("-f", ep_context), ("-b", no_embed), ("-z", denormals)):
        if given:
            tell(f"{flag} is taken, and changes nothing here", err=True)
    full = full_name(provider, list(known()))
    tolerance = asked(full, absolute, relative)
    settings = Settings(
        full, _provider_options(known()[full], options, device),
        _session_options(entries, level, no_arena, no_pattern, parallel, denormals, verbose),
        overrides(Path.cwd()) or Tolerances(tolerance), tolerance if tolerance.exact else None,
        models or at_once, runs or at_once, repeats, at_once, inference)
    cases = find_cases(folders, name)
    for case in cases if not as_json else []:
        tell(f"Skip test case:: {case.name} {case.skip}" if case.skip
                   else f"Load Test Case: {case.name} in {case.model.parent}")
    loaded = sum(not case.skip for case in cases)
    if loaded < at_least:
        tell(f"{loaded} tests were found and -m asks for at least {at_least}", err=True)
        raise typer.Exit(FAILED)
    if pause:
        _pause()
    runs_in_all = repeats * sum(len(case.places) for case in cases if not case.skip)
    with _watching(runs_in_all, verbose) as (seen, ran):
        report = run_tests(cases, settings, seen, ran)
    if as_json:
        print_json(report.plain())
    else:
        tell(summary(report))
    if junit is not None:
        junit.write_bytes(junit_xml(report))
    for failed in report.failed_names():
        tell(f"test {failed} failed, please fix it", err=True)
    if not cases:
        tell(f"no model was found in {', '.join(map(str, folders))}", err=True)
    if report.failed:
        raise typer.Exit(FAILED)
    if strict and (report.skipped or report.not_implemented or not report.results):
        raise typer.Exit(INCOMPLETE)


def _provider_options(provider: Any, options: str, device: int | None) -> dict[str, str]:
    given = _pairs("-i", options)
    if device is not None and "device_id" in provider.options:
        given["device_id"] = str(device)
    elif device:
        tell(f"-d {device}: {provider.name} has no option device_id", err=True)
    return given


def _pairs(flag: str, text: str) -> dict[str, str]:
    """`key|value key|value` as a mapping."""
    found = {}
    for pair in text.split():
        key, bar, value = pair.partition("|")
        if not bar or not key:
            raise typer.BadParameter(f"{pair!r}: expected KEY|VALUE KEY|VALUE", param_hint=flag)
        found[key] = value
    return found


def _session_options(entries: str, level: int, no_arena: bool, no_pattern: bool, parallel: bool,
                     denormals: bool, verbose: bool) -> Any:
    import orthrus as ort

    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel(level)
    options.enable_cpu_mem_arena = not no_arena
    options.enable_mem_pattern = not no_pattern
    if parallel:
        options.execution_mode = ort.ExecutionMode.ORT_PARALLEL
    if verbose:
        options.log_severity_level = 0
    if denormals:
        options.add_session_config_entry("session.set_denormal_as_zero", "1")
    for key, value in _pairs("-C", entries).items():
        options.add_session_config_entry(key, value)
    return options


def _pause() -> None:
    tell(f"process {os.getpid()} waits; press Enter to go on", err=True)
    sys.stdin.readline()


@contextlib.contextmanager
def _watching(total: int, verbose: bool) -> Iterator[tuple[Callable[..., None], Callable[..., None]]]:
    """What is told of results, and of runs: failures on stderr, and a bar there once a second has gone by."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from ..cli.display import PATIENCE
    from .report import Outcome

    out = console(stderr=True)
    bar = Progress(TextColumn("testing"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
                   TextColumn("{task.fields[failed]}"), console=out, transient=True)
    task = bar.add_task("", total=total, failed="")
    failed = 0

    def say(text: str) -> None:
        out.print(text, markup=False, highlight=False)

    def seen(results: list[Any]) -> None:
        nonlocal failed
        for r in results:
            if r.outcome.failed:
                word = "result differs" if r.outcome in (
                    Outcome.RESULT_DIFFERS, Outcome.SHAPE_MISMATCH, Outcome.TYPE_MISMATCH) else "failed"
                say(f"{r.name}: {word}. Dataset:{r.data_set}\n    {r.text}")
            elif r.outcome is Outcome.NOT_SUPPORT:
                say(r.text)
            elif verbose:
                say(f"{r.name}: passed. Dataset:{r.data_set} {1e3 * r.seconds:.3f} ms")
        failed += any(r.outcome.failed for r in results)
        bar.update(task, failed=f"{failed} failed" if failed else "")

    start = threading.Timer(PATIENCE, bar.start)
    start.daemon = True
    if out.is_terminal:
        start.start()
    try:
        yield seen, lambda count: bar.update(task, advance=count)
    finally:
        start.cancel()
        if out.is_terminal:
            start.join()
        if bar.live.is_started:
            bar.stop()


if __name__ == "__main__":
    alone(command, "test-runner")
