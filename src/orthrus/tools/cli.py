"""The `orthrus` command: run, info, explain, providers, demo.

In: a command line. Out: text or JSON on stdout, messages on stderr, and an exit code: 0 done, 1 the model, a
file or a value is at fault (said on one screen, without a traceback), 2 the command line is.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
import typer.core


def _option(*flags: str, **more: Any) -> Any:
    return typer.Option(*flags, show_default=False, **more)


Texts = list[str] | None
ModelArgument = Annotated[Path, typer.Argument(metavar="MODEL", help="An .onnx file.", show_default=False)]
ProviderOption = Annotated[Texts, _option(
    "--provider", "-p", metavar="NAME",
    help="Execution provider, by full or short name (cpu); repeat for several, the first has priority.")]
SettingOption = Annotated[Texts, _option(
    "--option", "-o", metavar="[NAME:]KEY=VALUE",
    help="Provider option; without a name it is the first provider's.")]
ImportOption = Annotated[Texts, _option(
    "--import", metavar="MODULE",
    help="Import a Python module first: one that registers operators or providers.")]
LevelOption = Annotated[str, _option(
    "--level", metavar="LEVEL",
    help="Graph optimization: disable, basic, extended, layout, all (the default).")]
JsonOption = Annotated[bool, _option("--json", help="Print JSON instead of tables.")]
InputOption = Annotated[Texts, _option(
    "--input", "-i", metavar="[NAME=]FILE",
    help="An input from a .npy, .npz or .pb file; what is left out is generated from its type and shape.")]
ShapeOption = Annotated[Texts, _option(
    "--shape", metavar="NAME=1,3,224,224",
    help="Shape of a generated input; open dimensions are 1 otherwise.")]
SeedOption = Annotated[int, _option(
    "--seed", help="Seed of generated inputs and of random operators, 0 by default.")]
SaveOption = Annotated[Path | None, _option(
    "--save", metavar="OUT.npz", help="Write all outputs into one file.")]
FolderOption = Annotated[Path | None, _option(
    "--output-dir", metavar="FOLDER", help="Write a .npy file per output.")]
OutputOption = Annotated[Texts, _option(
    "--output", metavar="NAME", help="Only this output; repeat for more.")]
RepeatOption = Annotated[int, _option("--repeat", "-n", min=0, help="Run so many times more and time it.")]
NodesOption = Annotated[bool, _option("--nodes", help="List every node instead of counting kernels.")]
CountOption = Annotated[int, _option(
    "--count", "-n", min=0, max=360, help="How many digits to draw, 8 by default.")]
VersionOption = Annotated[bool, _option("--version", help="Print the version and leave.")]

LEVELS = {"disable": "ORT_DISABLE_ALL", "basic": "ORT_ENABLE_BASIC", "extended": "ORT_ENABLE_EXTENDED",
          "layout": "ORT_ENABLE_LAYOUT", "all": "ORT_ENABLE_ALL"}


class _Told(typer.core.TyperGroup):
    """Ends a command that fails with its error's text and exit code 1."""

    def invoke(self, ctx: Any) -> Any:
        from ..errors import ALL

        kinds = (*ALL, ValueError, TypeError, KeyError, OSError, ImportError, RuntimeError, MemoryError)
        try:
            return super().invoke(ctx)
        except Exception as error:
            if isinstance(error, BrokenPipeError):
                raise typer.Exit(0) from None
            if not isinstance(error, kinds) or type(error).__module__.startswith(("click", "typer")):
                raise
            from .display import error_text

            _console(stderr=True).print(error_text(error))
            raise typer.Exit(1) from None


app = typer.Typer(cls=_Told, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False,
                  help="Run ONNX models, look into them, and see why each node runs where it does.")


def main() -> None:
    """The entry point of the console script."""
    app(prog_name="orthrus")


@app.callback(invoke_without_command=True)
def _root(version: VersionOption = False) -> None:
    if version:
        import orthrus

        typer.echo(f"orthrus {orthrus.orthrus_version}")
        raise typer.Exit()


@app.command()
def run(
    model: ModelArgument, input: InputOption = None, shape: ShapeOption = None, seed: SeedOption = 0,
    save: SaveOption = None, output_dir: FolderOption = None, output: OutputOption = None,
    repeat: RepeatOption = 0, provider: ProviderOption = None, option: SettingOption = None,
    modules: ImportOption = None, level: LevelOption = "all", as_json: JsonOption = False,
) -> None:
    """Run a model once and show its outputs."""
    from . import feeds, results
    from .display import shape_text, table

    session = _session(model, provider, option, modules, level, seed)
    inputs = session.get_inputs()
    feed = feeds.read_feeds(input or [], inputs)
    shapes = feeds.parse_shapes(shape or [], [arg.name for arg in inputs])
    made = feeds.generated([arg for arg in inputs if arg.name not in feed], shapes, seed)
    names = output or [arg.name for arg in session.get_outputs()]
    start = time.perf_counter()
    with _waiting("running"):
        outputs = session.run(names, {**feed, **made})
    spent = time.perf_counter() - start
    times = _timed(session, names, {**feed, **made}, repeat)
    files = [] if save is None else results.write_npz(save, names, outputs)
    files += [] if output_dir is None else results.write_folder(output_dir, names, outputs)
    rows = results.summarized(names, outputs)
    if as_json:
        _print_json({"generated": {k: _shape_of(v) for k, v in made.items()},
                     "outputs": [r.plain() for r in rows],
                     "first_run_seconds": spent, "run_seconds": times, "files": [str(f) for f in files]})
        return
    console = _console()
    if made:
        console.print(table("", ("generated input", "type", "shape"), [
            (a.name, a.type, shape_text(_shape_of(made[a.name]))) for a in inputs if a.name in made]))
        console.print()
    console.print(table("", ("output", "type", "shape", "values"), [
        (r.name, r.type, shape_text(r.shape) if r.shape is not None else "", r.values) for r in rows]))
    console.print(f"\nfirst run {1e3 * spent:.2f} ms", highlight=False)
    if times:
        ordered = sorted(times)
        console.print(f"{len(times)} more: median {1e3 * ordered[len(times) // 2]:.3f} ms, "
                      f"fastest {1e3 * ordered[0]:.3f} ms", highlight=False)
    for file in files:
        console.print(f"wrote {file}", markup=False, highlight=False)


@app.command()
def info(model: ModelArgument, as_json: JsonOption = False) -> None:
    """Show a model's inputs, outputs, opsets, operators and size, without making a session."""
    from .describe import describe
    from .display import shape_text, size_text, table

    found = describe(str(model))
    if as_json:
        _print_json(found.plain())
        return
    console = _console()
    opsets = ", ".join(f"{domain} {version}" for domain, version in found.opsets.items())
    types = ", ".join(f"{count:,} {name}" for name, count in found.parameter_types.items())
    facts = [
        ("file", f"{found.path} ({size_text(found.file_bytes)})"),
        ("IR version", found.ir_version),
        ("opsets", opsets),
        ("producer", found.producer),
        ("domain", found.domain),
        ("model version", found.model_version or ""),
        ("description", " ".join(found.doc.split())[:500]),
        ("parameters", f"{found.parameters:,} ({size_text(found.parameter_bytes)})"),
        ("of them", types if len(found.parameter_types) > 1 else ""),
        ("nodes", f"{found.nodes:,}"),
        ("functions", ", ".join(found.functions)),
        ("external data", ", ".join(found.external_files)),
    ]
    console.print(table("", ("", ""), [fact for fact in facts if fact[1]]))
    for title, values in (("Inputs", found.inputs), ("Outputs", found.outputs)):
        console.print(table(f"\n{title}", ("name", "type", "shape"), [
            (name, kind, shape_text(shape)) for name, kind, shape in values]))
    console.print(table("\nOperators", ("operator", "nodes"), list(found.operators.items()), right=(1,)))
    if found.metadata:
        rows = [(k, v if len(v) <= 200 else f"{v[:197]}...") for k, v in found.metadata.items()]
        console.print(table("\nMetadata", ("key", "value"), rows))


@app.command()
def explain(
    model: ModelArgument, provider: ProviderOption = None, option: SettingOption = None,
    modules: ImportOption = None, level: LevelOption = "all", nodes: NodesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Show where each node of a model runs and why, which passes changed the graph, and what each stage
    took."""
    from .display import placement, placement_data

    report = _session(model, provider, option, modules, level, 0).explain()
    if as_json:
        _print_json(placement_data(report))
    else:
        _console().print(placement(report, nodes))


@app.command()
def providers(modules: ImportOption = None, as_json: JsonOption = False) -> None:
    """List the execution providers, whether they work on this machine, and their options."""
    from ..providers import known
    from .display import table

    _import(modules)
    found: list[dict[str, Any]] = []
    for name, cls in known().items():
        why = cls.probe()
        options = {key: {"default": o.default, "meaning": o.doc} for key, o in cls.options.items()}
        found.append({"name": name, "works": why is None, "reason": why.reason if why is not None else "",
                      "options": options})
    if as_json:
        _print_json(found)
        return
    console = _console()
    console.print(table("", ("provider", "on this machine"),
                        [(f["name"], f["reason"] or "works") for f in found]))
    rows = [(f["name"], key, o["default"], o["meaning"]) for f in found for key, o in f["options"].items()]
    console.print(table("\nOptions", ("provider", "option", "default", "meaning"), rows))


@app.command()
def demo(
    provider: ProviderOption = None, option: SettingOption = None, modules: ImportOption = None,
    count: CountOption = 8, as_json: JsonOption = False,
) -> None:
    """Classify the handwritten digits that come with the package."""
    from .demo import classify, show
    from .display import placement

    _import(modules)
    outcome = classify(_providers(provider, option))
    if as_json:
        _print_json(outcome.plain())
        return
    console = _console()
    show(outcome, console, count)
    console.print()
    console.print(placement(outcome.report, False))


def _session(model: Path, provider: Sequence[str] | None, option: Sequence[str] | None,
             modules: Sequence[str] | None,
             level: str, seed: int) -> Any:
    _import(modules)
    import orthrus as ort

    if level not in LEVELS:
        raise ValueError(f"--level {level}: expected one of {', '.join(LEVELS)}")
    ort.set_seed(seed)
    options = ort.SessionOptions()
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, LEVELS[level])
    with _waiting(f"loading {model}"), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Specified provider '.*' is not in available")
        return ort.InferenceSession(model, options, providers=_providers(provider, option))


def _import(modules: Sequence[str] | None) -> None:
    """Import what registers operators or providers; modules in the working directory count."""
    if modules and "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    for name in modules or ():
        importlib.import_module(name)


def _providers(given: Sequence[str] | None, options: Sequence[str] | None) -> list[Any]:
    """Names in full, with their options. Raises ValueError for an unknown name or an option without a
    provider."""
    from ..providers import known

    names = [_full(name, list(known())) for name in given or ["CPUExecutionProvider"]]
    settings: dict[str, dict[str, str]] = {name: {} for name in names}
    for text in options or ():
        key, equals, value = text.partition("=")
        owner, colon, rest = key.rpartition(":")
        name = _full(owner, list(known())) if colon else names[0]
        if name == "CPUExecutionProvider" and name not in settings:
            names.append(name)
            settings[name] = {}
        if not equals or name not in settings:
            raise ValueError(f"--option {text}: expected KEY=VALUE, or NAME:KEY=VALUE with one of the "
                             "providers asked for")
        settings[name][rest if colon else key] = value
    return [(name, settings[name]) if settings[name] else name for name in names]


def _full(name: str, known: Sequence[str]) -> str:
    for full in known:
        if name.lower() in (full.lower(), full.removesuffix("ExecutionProvider").lower()):
            return full
    raise ValueError(f"no provider is called {name!r}; there are {', '.join(known)}")


def _timed(session: Any, names: Sequence[str], feed: dict[str, Any], repeat: int) -> list[float]:
    """Seconds of each of `repeat` runs, with a progress bar once they have taken over a second."""
    from rich.progress import Progress

    from .display import PATIENCE

    times: list[float] = []
    console, start = _console(stderr=True), time.perf_counter()
    with contextlib.ExitStack() as stack:
        bar: Progress | None = None
        for i in range(repeat):
            before = time.perf_counter()
            session.run(names, feed)
            times.append(time.perf_counter() - before)
            if bar is None and console.is_terminal and time.perf_counter() - start > PATIENCE:
                bar = stack.enter_context(Progress(console=console, transient=True))
                task = bar.add_task("running", total=repeat, completed=i)
            if bar is not None:
                bar.update(task, completed=i + 1)
    return times


def _shape_of(value: Any) -> list[int] | None:
    return list(value.shape) if hasattr(value, "shape") else None


@contextlib.contextmanager
def _waiting(text: str) -> Iterator[None]:
    from .display import patience

    with patience(_console(stderr=True), text):
        yield


def _console(stderr: bool = False) -> Any:
    from rich.console import Console

    return Console(stderr=stderr, soft_wrap=stderr)


def _print_json(data: Any) -> None:
    typer.echo(json.dumps(data, indent=1, ensure_ascii=False, default=str))
