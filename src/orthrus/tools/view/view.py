"""`orthrus view`: one HTML file that shows a model's optimized graph, its run and its memory.

In: a model, and inputs as `orthrus run` takes them. Out: a file that needs no network and no other file. What
comes from the model goes in as JSON and is shown as text; the page's policy admits the scripts written here,
by their hashes, and nothing else.
"""

from __future__ import annotations

import math
import os
import time
import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from ..cli.arguments import (
    ImportOption,
    InputOption,
    LevelOption,
    ModelArgument,
    ProviderOption,
    SeedOption,
    ShapeOption,
    Texts,
    TrustOption,
    alone,
    console,
    option_of,
    providers_of,
    say,
    session_of,
    waiting,
)

if TYPE_CHECKING:
    from .data import Distance

FileOption = Annotated[Path | None, option_of(
    "--output", "-o", metavar="FILE.html", help="Where to write; the model's name with .html otherwise.")]
SettingOption = Annotated[Texts, option_of(
    "--option", metavar="[NAME:]KEY=VALUE",
    help="Provider option; without a name it is the first provider's.")]
RunOption = Annotated[bool, option_of(
    "--run/--no-run", help="Whether to run the model: times, timeline and roofline need it. On by default.")]
RepeatOption = Annotated[int, option_of(
    "--repeat", "-n", min=1, help="Runs that are timed, after one that warms up; 5 by default.")]
CheckOption = Annotated[bool, option_of(
    "--check", help="Compare what each node computes with its definition, and show how far it is off.")]

OpenOption = Annotated[bool, option_of("--open", help="Show the page in the browser.")]

_DISTURBED = 0.3
"""Processors that others keep busy, from which on times are said to be disturbed."""


def command(
    model: ModelArgument, output: FileOption = None, input: InputOption = None, shape: ShapeOption = None,
    seed: SeedOption = 0, run: RunOption = True, repeat: RepeatOption = 5, check: CheckOption = False,
    provider: ProviderOption = None, option: SettingOption = None, modules: ImportOption = None,
    level: LevelOption = "all", trust: TrustOption = "", show: OpenOption = False,
) -> None:
    """Write one HTML file that shows the optimized graph: where each node runs and why, what it costs, and
    how the run uses time and memory."""
    from ...load import load
    from ..cli import feeds
    from .data import collect
    from .page import page

    if check and not run:
        raise ValueError("--check needs a run: leave --no-run out")
    session = session_of(model, provider, option, modules, level, seed, trust=trust)
    profile = found = None
    others = 0.0
    if run:
        with waiting("running"):
            fed, _ = feeds.fed(model, session.get_inputs(), input or [], shape or [], seed,
                               lambda feed: session.run(None, feed))
            others = busy_elsewhere()
            profile = profiled(session, fed.values, repeat)
            others = max(others, busy_elsewhere())
        say(fed.note)
        if others >= _DISTURBED:
            say(f"other programs kept {others:.1f} processors busy: the times are too long")
        if check:
            with waiting("comparing with the definitions"):
                found = distances(model, providers_of(provider, option)[0], fed.values, level, seed)
    path = output or Path(f"{model.stem}.html")
    data = collect(session, model.name, profile, found, load(str(model)), others)
    path.write_text(page(data), encoding="utf-8", errors="replace")
    console().print(f"wrote {path}", markup=False, highlight=False)
    if show and not webbrowser.open(path.resolve().as_uri()):
        say("no browser could be started; open the file in one")


def busy_elsewhere() -> float:
    """How many processors other programs keep busy, over a tenth of a second in which this one waits; 0 where
    the system does not tell."""
    before = _busy()
    time.sleep(0.1)
    after = _busy()
    if before is None or after is None or not hasattr(os, "sysconf"):
        return 0.0
    ticks = os.sysconf("SC_CLK_TCK")
    return max(0.0, (after - before) / ticks / 0.1)


def _busy() -> int | None:
    """Ticks that all processors have worked since the start of the system."""
    try:
        with open("/proc/stat", encoding="ascii") as file:
            worked = [int(field) for field in file.readline().split()[1:]]
    except (OSError, ValueError):
        return None
    return sum(worked[:3]) + sum(worked[5:8])


def profiled(session: Any, feed: dict[str, Any], repeat: int) -> Any:
    """The profile of `repeat` runs."""
    with session.profile() as found:
        for _ in range(repeat):
            session.run(None, feed)
    return found


def distances(model: Path, side: Any, feed: dict[str, Any], level: str, seed: int) -> dict[str, Distance]:
    """How far each value of the model is from what the definitions give, by name. `side`: a provider, or a
    provider and its options."""
    from ..compare.comparison import compare
    from .data import Distance

    def finite(number: float) -> float | None:
        return number if math.isfinite(number) else None

    compared = compare(str(model), side, "reference", feed, level=level, seed=seed)
    return {found.value: Distance(finite(found.error.max_abs), finite(found.error.excess),
                                  None if found.own is None else finite(found.own.excess))
            for found in (*compared.outputs, *compared.values)}


if __name__ == "__main__":
    alone(command, "view")
