"""`orthrus plan-capacity`: machines for a load, by the server's own scheduler in simulated time."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...processors import usable
from .arguments import (
    ImportOption,
    InputOption,
    JsonOption,
    ProviderOption,
    SeedOption,
    SettingOption,
    ShapeOption,
    console,
    option_of,
    print_json,
    session_of,
)
from .display import table
from .feeds import generated, known_to, parse_shapes, read_feeds

if TYPE_CHECKING:
    from ...serving.plan import Parted
    from ...serving.simulate import Service

RateOption = Annotated[float, option_of(
    "--rate", metavar="REQUESTS", help="Requests a second, from all clients together.")]
P99Option = Annotated[str, option_of(
    "--p99", metavar="TIME", help="What 99 of 100 answers have to keep: 50ms, 0.05s, or seconds.")]
MeasuredArgument = Annotated[Path | None, typer.Argument(
    metavar="MODEL", show_default=False, help="Measure this model here, in batches of 1, 2, 4 ... rows.")]
ModelOption = Annotated[Path | None, option_of("--model", metavar="MODEL", help="The same as MODEL.")]
ServiceOption = Annotated[str, option_of(
    "--service", metavar="ROWS=TIME,...|FILE",
    help="Service times instead, as 1=4ms,8=12ms; or a JSON file with such an object.")]
BatchOption = Annotated[int, option_of(
    "--max-batch", min=1, help="Rows of a batch at most, 32 by default; smaller ones are tried too.")]
RowsOption = Annotated[int, option_of("--rows", min=1, help="Rows of a request, 1 by default.")]
CoresOption = Annotated[int, option_of(
    "--cores", min=0, help="Cores of a machine; by default as many as there are here.")]
ThreadsOption = Annotated[int, option_of(
    "--threads", min=1, help="Cores that run one batch together, 1 by default: a machine has cores / threads "
                             "slots.")]
ArrivalsOption = Annotated[str, option_of(
    "--arrivals", metavar="poisson|constant|bursts:N",
    help="How requests come: independent of each other (the default), evenly, or N on average at once.")]
OverheadOption = Annotated[str, option_of(
    "--overhead", metavar="TIME", help="Time of the server's one thread for a request, 0.1ms by default.")]
SecondsOption = Annotated[float, option_of(
    "--seconds", metavar="SECONDS", min=0.0, help="Measure each size of batch for so long, 0.5 by default.")]

APART = ("cuda", "tensorrt", "rocm", "migraphx")
"""Providers whose batches don't need the cores that the server's own thread is on."""
_TIME = re.compile(r"([0-9.eE+-]+)\s*(us|ms|s|)")
UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "": 1.0}


def command(
    rate: RateOption, p99: P99Option, measured: MeasuredArgument = None, model: ModelOption = None,
    service: ServiceOption = "", max_batch: BatchOption = 32, rows: RowsOption = 1, cores: CoresOption = 0,
    threads: ThreadsOption = 1,
    arrivals: ArrivalsOption = "poisson", overhead: OverheadOption = "0.1ms", seconds: SecondsOption = 0.5,
    files: InputOption = None, shape: ShapeOption = None, provider: ProviderOption = None,
    option: SettingOption = None, modules: ImportOption = None, seed: SeedOption = 0,
    as_json: JsonOption = False,
) -> None:
    """Say how many machines answer so many requests a second within a time, with which batches and delay. The
    server's scheduler decides in simulated time; how long batches take is measured here, or given.

    Exit code 1 where no number of machines is enough."""
    from ...serving.plan import plan

    slots = (cores or len(usable())) // threads
    if slots < 1:
        raise ValueError(f"--threads {threads} are more than the {cores or len(usable())} cores of a machine")
    if sum((measured is not None, model is not None, bool(service))) != 1:
        raise ValueError("give either MODEL, to measure it, or --service with its times")
    model = measured or model
    if model is not None:
        known, max_batch = _measured(model, max_batch, slots, threads, seconds, files, shape, provider,
                                     option, modules, seed)
    else:
        known = _given(service)
    found = plan(known, rate, seconds_of(p99, "--p99"), max_batch, slots, rows,
                 seconds_of(overhead, "--overhead"), _arrivals(arrivals), seed,
                 not any(name in text.lower() for text in provider or () for name in APART))
    if as_json:
        print_json({**found.plain(), "service": {str(size): known.seconds[size] for size in known.sizes}})
        return
    chosen, out = found.chosen, console()
    times = ", ".join(f"{size}: {1e3 * known.seconds[size]:.4g}" for size in known.sizes)
    out.print(f"Milliseconds of a batch by its rows: {times}", markup=False, highlight=False)
    cells = [(c.machines, c.max_batch, f"{1e3 * c.max_delay:.4g}", f"{c.simulated.batch:.1f}",
              *(f"{1e3 * c.simulated.total.quantile(q):.4g}" for q in (0.5, 0.9, 0.99)),
              f"{100 * c.simulated.utilization:.0f} %") for c in found.choices]
    heads = ("machines", "max batch", "delay, ms", "rows a batch", "p50, ms", "p90, ms", "p99, ms", "busy")
    out.print(table("\nSimulated, the best first", heads, cells, right=range(len(heads))))
    lost = found.admission.total
    down = ("then the others fall behind" if found.one_down is None else
            f"then p99 is {1e3 * found.one_down.total.quantile(0.99):.4g} ms")
    for line in (
        f"\n{chosen.machines} machine{'s' * (chosen.machines > 1)} of {slots} slot{'s' * (slots > 1)}: "
        f"--max-batch {chosen.max_batch}, delay {1e3 * chosen.max_delay:.4g} ms.",
        f"Why: {found.reason}.",
        f"With {1e3 * found.p99:.4g} ms as the goal, {lost.refused} of {lost.arrived} requests are refused "
        f"and {lost.late} late. Should one machine fail: "
        + ("nobody answers" if chosen.machines == 1 else down) + "."):
        out.print(line, markup=False, highlight=False)


def seconds_of(text: str, flag: str) -> float:
    """`50ms`, `3us`, `0.05s` or `0.05` in seconds. Raises ValueError for another form."""
    found = _TIME.fullmatch(text.strip())
    try:
        if found is None:
            raise ValueError
        return float(found[1]) * UNITS[found[2]]
    except ValueError:
        raise ValueError(f"{flag} {text}: expected a time, as 50ms, 0.05s or 0.05") from None


def _given(text: str) -> Service:
    from ...serving.simulate import Service

    try:
        if "=" in text:
            pairs = [part.partition("=")[::2] for part in text.split(",")]
        else:
            pairs = list(json.loads(Path(text).read_text(encoding="utf-8")).items())
        return Service({int(size): time if isinstance(time, float | int) else seconds_of(time, "--service")
                        for size, time in pairs})
    except (ValueError, AttributeError, TypeError) as error:
        raise ValueError(f"--service {text}: expected ROWS=TIME,..., as 1=4ms,8=12ms, or a JSON file of such "
                         f"an object: {error}") from None


def _arrivals(text: str) -> Parted:
    from ...serving.plan import bunched, even, independent

    kind, _, size = text.partition(":")
    try:
        if kind == "bursts":
            return bunched(float(size or 10))
        return {"poisson": independent, "constant": even}[text]
    except (KeyError, ValueError):
        raise ValueError(f"--arrivals {text}: expected poisson, constant or bursts:N, N from 1 on") from None


def _measured(model: Path, max_batch: int, slots: int, threads: int, seconds: float,
              files: Sequence[str] | None, shape: Sequence[str] | None, provider: Sequence[str] | None,
              option: Sequence[str] | None, modules: Sequence[str] | None, seed: int) -> tuple[Service, int]:
    """A model's service times, and the rows of a batch that it takes at most: one where a first dimension is
    of fixed size, which then counts as one row."""
    from ...serving.measure import measure

    session = session_of(model, provider, option, modules, "all", seed, threads)
    inputs = session.get_inputs()
    given = read_feeds(files or (), inputs)
    shapes = parse_shapes(shape or (), [arg.name for arg in inputs])
    open_ones = [arg for arg in inputs if arg.name not in given]
    first = {arg.shape[0] if arg.shape else 1 for arg in inputs}
    grows = not given and len(first) == 1 and not isinstance(next(iter(first)), int)
    sizes = [1]
    while grows and sizes[-1] < max_batch:
        sizes.append(min(2 * sizes[-1], max_batch))
    known = known_to(model, open_ones)
    base = generated(open_ones, shapes, seed, known)

    def feed(size: int) -> dict[str, Any]:
        if not grows:
            return {**given, **base}
        shapes = {name: (size, *value.shape[1:]) for name, value in base.items()}
        return generated(inputs, shapes, seed, known)

    feeds = {size: feed(size) for size in sizes}
    return measure(lambda size: session.run(None, feeds[size]), sizes, slots, seconds), sizes[-1]

