"""`orthrus perf-test`: onnxruntime_perf_test for this runtime.

In: its flags. Out: its lines on stdout and its rows in a result file, or one JSON object; what a flag does
not do here, on stderr. Exit code 0, or 255 with the reason on stderr.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from ...shown import tell
from .flags import Flags, Parser, takes_flags
from .settings import ORDINARY

if TYPE_CHECKING:
    from .report import Result
    from .settings import Settings

INTERRUPTED = 130
PARSER = Parser
"""How the command line is read, for whoever registers `command`."""


@takes_flags
def command(flags: Flags) -> None:
    """Time a model: what onnxruntime_perf_test does, with its flags, its output and its exit codes.

    Flags are taken as -x 4, -x=4, --x 4 or --x=4; a switch is -s, --s=true or --nos. Beyond that tool: --vs
    compares two providers or engines, --plot draws the times, --json prints everything."""
    from ..asked import import_modules

    import_modules(flags.modules)
    if flags.list_devices:
        _list_devices(flags.as_json)
        return
    from .settings import notes, settings_of

    settings = settings_of(flags)
    for note in notes(flags):
        tell(note, err=True)
    if flags.plot:
        from .plot import check

        check(Path(flags.plot))
    if flags.context or flags.context_only:
        settings = _compiled(flags, settings)
        if flags.context_only:
            return
    say: Callable[[str], None] = (lambda text: None) if flags.as_json else tell
    result = _compared(flags, settings, say) if flags.versus else _measured(flags, settings, say)
    if result is not None:
        _tell(flags, result, say)
        if result.block.interrupted:
            tell(f"interrupted after {len(result.block.times)} runs", err=True)
            raise typer.Exit(INTERRUPTED)


def _measured(flags: Flags, settings: Settings, say: Callable[[str], None]) -> Result | None:
    """One engine, in this process. None where there was nothing to run."""
    from ..cli.arguments import print_json, waiting
    from . import report
    from .memory import peak_bytes
    from .run import Bench

    for line in report.opening(settings):
        say(line)
    with waiting(f"loading {settings.model}"):
        bench = Bench(settings)
    say(report.created(bench.creation))
    placement = bench.session.explain().providers
    _place(settings, placement)
    if flags.exit_early:
        if flags.as_json:
            print_json({"model": settings.model, "session_creation_seconds": bench.creation})
        if flags.hold_ms:
            say("SESSION_READY")
            time.sleep(flags.hold_ms / 1e3)
        return None
    with waiting("first run"):
        bench.feed()
        try:
            first, _ = bench.first()
        except Exception:
            _remark([hint] if (hint := bench.hint()) else [])
            raise
    _remark(bench.remarks)
    if settings.runs is None and settings.seconds == ORDINARY.seconds:
        _remark([f"running for {settings.seconds:g} s: -t SECONDS or -r RUNS makes it shorter"])
    with _bar("running") as show:
        def tick(runs: int, spent: float) -> None:
            show(runs / settings.runs if settings.runs else spent / (settings.seconds or 1))

        told = (lambda i, s: say(f"iteration:{i},time_cost:{s:g}")) if settings.verbose else None
        block = bench.block(settings.runs, settings.seconds, tick, told)
    if not block.times:
        raise KeyboardInterrupt
    profile = bench.session.end_profiling() if settings.profile else ""
    if profile:
        tell(f"profile written to {profile}", err=True)
    return report.Result(settings, bench.creation, first, block, peak_bytes(), bench.labels, placement,
                              profile=profile)


def _compared(flags: Flags, settings: Settings, say: Callable[[str], None]) -> Result:
    """Two engines in turns, in processes of their own; the first one's figures are the result's."""
    from . import report
    from .settings import opponent
    from .versus import compare

    for line in report.opening(settings):
        say(line)
    with _bar("comparing") as show:
        found = compare(settings, opponent(flags.versus, settings), flags.launches, show)
    opened = found.first.launches[0]
    say(report.created(found.first.creation))
    _place(settings, opened.placement)
    _remark(opened.remarks)
    if settings.verbose:
        for i, seconds in enumerate(found.first.whole.times, 1):
            say(f"iteration:{i},time_cost:{seconds:g}")
    return report.Result(settings, found.first.creation, found.first.first, found.first.whole,
                              found.first.peak, opened.labels, opened.placement, found)


def _tell(flags: Flags, result: Result, say: Callable[[str], None]) -> None:
    from ..cli.arguments import console, print_json
    from . import report

    for line in report.summary(result):
        say(line)
    file = Path(flags.result_file) if flags.result_file else None
    written = file is not None and report.append(file, result, flags.statistics)
    if not written:
        for line in report.usage(result):
            say(line)
    if not written or flags.statistics:
        for line in report.statistics(result):
            say(line)
    times: dict[str, Any] = {result.settings.engine: result.block.times}
    if result.comparison is not None:
        first, second = report.names(result.comparison)
        times = {first: result.block.times, second: result.comparison.second.whole.times}
        if not flags.as_json:
            say("")
            console().print(report.comparison_table(result.comparison))
            for line in report.verdict(result.comparison):
                say(line)
    if flags.plot:
        from .plot import plot

        plot(Path(flags.plot), times, Path(result.settings.model).name)
        tell(f"plot written to {flags.plot}", err=True)
    if flags.as_json:
        print_json(report.plain(result))


def _place(settings: Settings, placement: dict[str, int]) -> None:
    """Say where nodes run, where a provider other than the CPU's was asked for."""
    if any(name != "CPUExecutionProvider" for name, _ in settings.providers) and placement:
        tell("nodes: " + ", ".join(f"{count} on {name}" for name, count in placement.items()), err=True)


def _remark(remarks: list[str]) -> None:
    for remark in remarks:
        tell(remark, err=True)


def _list_devices(as_json: bool) -> None:
    """Every provider with the device it can use, numbered as --select_ep_devices counts."""
    import orthrus as ort

    from ..cli.arguments import print_json

    found: list[dict[str, Any]] = [
        {"index": i, "name": d.ep_name, "vendor": d.ep_vendor, "device": d.device.type.name,
         "device_vendor": d.device.vendor, "metadata": d.ep_metadata}
        for i, d in enumerate(ort.get_ep_devices())]
    if as_json:
        print_json(found)
        return
    for each in found:
        tell(f"===== device id {each['index']} ======")
        tell(f"name: {each['name']}\nvendor: {each['vendor']}")
        tell("device: " + ", ".join(filter(None, (each["device"], each["device_vendor"]))))
        tell("metadata:" + "".join(f"\n  {k}: {v}" for k, v in each["metadata"].items()) + "\n")


def _compiled(flags: Flags, settings: Settings) -> Settings:
    """Compile the model to a file, and measure that one. Raises what compiling raises."""
    import orthrus as ort

    options = ort.SessionOptions()
    for key, value in settings.entries.items():
        options.add_session_config_entry(key, value)
    for name, given in settings.providers:
        options.add_provider(name, given)
    compiler = ort.ModelCompiler(options, settings.model, flags.context_embed,
                                 graph_optimization_level=ort.GraphOptimizationLevel(settings.level))
    start = time.perf_counter()
    compiler.compile_to_file(flags.context_path)
    tell(f"compiled to {flags.context_path} in {time.perf_counter() - start:g} s", err=True)
    return replace(settings, model=flags.context_path, entries=_trusting(settings))


def _trusting(settings: Settings) -> dict[str, str]:
    """The entries of a session that runs what was compiled here just now, and nothing that the model had come
    with."""
    from ...load import load
    from ...providers.ep_node import is_context
    from ...providers.trust import KEY

    came = any(is_context(node) for node in load(settings.model).walk())
    return settings.entries if came else {KEY: "1", **settings.entries}


@contextlib.contextmanager
def _bar(text: str) -> Iterator[Callable[[float], None]]:
    """A function to call with the share that is done; a bar on stderr shows it once that has taken over a
    second, where someone watches."""
    from rich.progress import Progress

    from ..cli.arguments import console
    from ..cli.display import PATIENCE

    out, start = console(stderr=True), time.perf_counter()
    bar: Progress | None = None
    with contextlib.ExitStack() as stack:
        def show(share: float) -> None:
            nonlocal bar
            if bar is None:
                if not out.is_terminal or time.perf_counter() - start < PATIENCE:
                    return
                bar = stack.enter_context(Progress(console=out, transient=True))
                bar.add_task(text, total=1.0)
            bar.update(bar.task_ids[0], completed=min(1.0, share))
        yield show


def main() -> None:
    """The tool as a program of its own."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command(cls=Parser)(command)
    app(prog_name="python -m orthrus.tools.perf.perf_test")


if __name__ == "__main__":
    main()
