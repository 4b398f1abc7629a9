"""`orthrus profile`: a model and inputs in, where each run's time goes out: a table, a page, a trace."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from .arguments import (
    ImportOption,
    InputOption,
    JsonOption,
    LevelOption,
    ModelArgument,
    OutputOption,
    ProviderOption,
    SeedOption,
    SettingOption,
    ShapeOption,
    TrustOption,
    console,
    option_of,
    print_json,
    say,
    session_of,
    timed,
    waiting,
)

RunsOption = Annotated[int, option_of(
    "--repeat", "-n", min=1, help="How many runs are timed and averaged, 10 by default; two more come "
                                  "before them.")]
ThreadsOption = Annotated[int, option_of(
    "--threads", min=0, help="Threads of a run, 0 (the default) for as many as there are cores.")]
MostOption = Annotated[int, option_of(
    "--most", min=0, help="So many nodes at most in the table, the slowest; 30 by default, 0 for all.")]
HtmlOption = Annotated[Path | None, option_of(
    "--html", metavar="FILE", help="Write one page with a table that can be sorted.")]
TraceOption = Annotated[Path | None, option_of(
    "--trace", metavar="FILE", help="Write a trace for ui.perfetto.dev or chrome://tracing.")]


def command(
    model: ModelArgument, input: InputOption = None, shape: ShapeOption = None, seed: SeedOption = 0,
    output: OutputOption = None, repeat: RunsOption = 10, threads: ThreadsOption = 0, most: MostOption = 30,
    html: HtmlOption = None, trace: TraceOption = None, provider: ProviderOption = None,
    option: SettingOption = None, modules: ImportOption = None, level: LevelOption = "all",
    trust: TrustOption = "",
    as_json: JsonOption = False,
) -> None:
    """Run a model node by node and show where its time goes, and what share of the machine's peak each node
    reaches."""
    from ...profiling.table import WIDTH, rendered
    from . import feeds

    session = session_of(model, provider, option, modules, level, seed, threads, trust)
    names = output or [arg.name for arg in session.get_outputs()]
    with waiting("preparing"):
        fed, _ = feeds.fed(model, session.get_inputs(), input or [], shape or [], seed,
                           lambda feed: session.run(names, feed))
        feed = fed.values
        with session.profile(compare=False):
            session.run(names, feed)
    say(fed.note)
    with session.profile() as found:
        timed(session, names, feed, repeat)
    with waiting("measuring the machine's peak"):
        found.peak  # noqa: B018
    files = []
    if html is not None:
        found.to_html(html)
        files.append(html)
    if trace is not None:
        found.to_trace(trace)
        files.append(trace)
    if as_json:
        print_json({**found.plain(), "files": [str(file) for file in files]})
        return
    out = console()
    if not out.is_terminal:
        out.width = WIDTH
    out.print(rendered(found, most or None, out.width))
    for file in files:
        out.print(f"wrote {file}", markup=False, highlight=False)
