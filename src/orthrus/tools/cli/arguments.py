"""What commands share: the types of their options, and what turns a command line into a session.

In: texts from a command line. Out: sessions, providers with their options, a console. A text that cannot be
meant raises ValueError with what is known.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
import typer.core

from ...shown import shown_in_json, tell
from ..asked import LEVELS, full_name, import_modules

Item = TypeVar("Item")


def option_of(*flags: str, **more: Any) -> Any:
    """An option whose help says what its default is."""
    return typer.Option(*flags, show_default=False, **more)


Texts = list[str] | None
ModelArgument = Annotated[Path, typer.Argument(metavar="MODEL", help="An .onnx file.", show_default=False)]
ProviderOption = Annotated[Texts, option_of(
    "--provider", "-p", metavar="NAME",
    help="Execution provider, by full or short name (cpu); repeat for several, the first has priority.")]
SettingOption = Annotated[Texts, option_of(
    "--option", "-o", metavar="[NAME:]KEY=VALUE",
    help="Provider option; without a name it is the first provider's.")]
ImportOption = Annotated[Texts, option_of(
    "--import", metavar="MODULE|LIBRARY",
    help="Import a Python module first, one that registers operators or providers, or load a shared library "
         "of providers.")]
TrustOption = Annotated[str, option_of(
    "--trust", metavar="1|KEY",
    help="Run compiled parts that the model holds, which are machine code: 1 for any, a public key for those "
         "it has signed. None by default.")]
LevelOption = Annotated[str, option_of(
    "--level", metavar="LEVEL",
    help="Graph optimization: disable, basic, extended, layout, all (the default).")]
JsonOption = Annotated[bool, option_of("--json", help="Print JSON instead of tables.")]
InputOption = Annotated[Texts, option_of(
    "--input", "-i", metavar="[NAME=]FILE",
    help="An input from a .npy, .npz or .pb file; what is left out is generated from its type and shape.")]
ShapeOption = Annotated[Texts, option_of(
    "--shape", metavar="NAME=1,3,224,224",
    help="Shape of a generated input; names of dimensions it settles hold for all. What stays open gets a "
         "likely size, or where the model refuses that, one found by trying.")]
SeedOption = Annotated[int, option_of(
    "--seed", help="Seed of generated inputs and of random operators, 0 by default.")]
SaveOption = Annotated[Path | None, option_of(
    "--save", metavar="OUT.npz", help="Write all outputs into one file.")]
FolderOption = Annotated[Path | None, option_of(
    "--output-dir", metavar="FOLDER", help="Write a .npy file per output.")]
OutputOption = Annotated[Texts, option_of(
    "--output", metavar="NAME", help="Only this output; repeat for more.")]
RepeatOption = Annotated[int, option_of("--repeat", "-n", min=0, help="Run so many times more and time it.")]
NodesOption = Annotated[bool, option_of("--nodes", help="List every node instead of counting kernels.")]
CountOption = Annotated[int, option_of(
    "--count", "-n", min=0, max=360, help="How many digits to draw, 8 by default.")]


class Told(typer.core.TyperGroup):
    """Ends a command that fails with its error's text, or where that is a mistake of this package its
    traceback, and exit code 1. What a stream's encoding does not have is written as Python escapes it."""

    def main(self, *args: Any, **named: Any) -> Any:
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="backslashreplace")
        return super().main(*args, **named)

    def invoke(self, ctx: Any) -> Any:
        from ...errors import ALL

        kinds = (*ALL, ValueError, TypeError, KeyError, OSError, ImportError, RuntimeError, MemoryError)
        try:
            return super().invoke(ctx)
        except Exception as error:
            if isinstance(error, BrokenPipeError):
                raise typer.Exit(0) from None
            if type(error).__module__.startswith(("click", "typer")):
                raise
            from .display import error_text

            if isinstance(error, kinds):
                console(stderr=True).print(error_text(error))
            else:
                tell(traceback.format_exc(), err=True)
            raise typer.Exit(1) from None


def alone(command: Callable[..., None], name: str) -> None:
    """Run one command as a program of its own: `python -m orthrus.tools.<module>`."""
    app = typer.Typer(cls=Told, add_completion=False, pretty_exceptions_enable=False)
    app.callback(invoke_without_command=True)(lambda: None)
    app.command(name)(command)
    app([name, *sys.argv[1:]], prog_name="orthrus")


def session_of(model: Path, provider: Sequence[str] | None, option: Sequence[str] | None,
               modules: Sequence[str] | None, level: str, seed: int, threads: int = 0, trust: str = ""
               ) -> Any:
    """A session for a model's file, as the options of a command say; `threads` of a run, 0 for all cores."""
    import_modules(modules)
    import orthrus as ort

    if level not in LEVELS:
        raise ValueError(f"--level {level}: expected one of {', '.join(LEVELS)}")
    ort.set_seed(seed)
    options = ort.SessionOptions()
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, LEVELS[level])
    options.intra_op_num_threads = threads
    with waiting(f"loading {model}"), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Specified provider '.*' is not in available")
        return ort.InferenceSession(model, options, providers=providers_of(provider, option),
                                    trust=trust or None)


def providers_of(given: Sequence[str] | None, options: Sequence[str] | None) -> list[Any]:
    """Names in full, with their options. Raises ValueError for an unknown name or an option without a
    provider."""
    from ...providers import known

    names = [full_name(name, list(known())) for name in given or ["CPUExecutionProvider"]]
    settings: dict[str, dict[str, str]] = {name: {} for name in names}
    for text in options or ():
        key, equals, value = text.partition("=")
        owner, colon, rest = key.rpartition(":")
        name = full_name(owner, list(known())) if colon else names[0]
        if name == "CPUExecutionProvider" and name not in settings:
            names.append(name)
            settings[name] = {}
        if not equals or name not in settings:
            raise ValueError(f"--option {text}: expected KEY=VALUE, or NAME:KEY=VALUE with one of the "
                             "providers asked for")
        settings[name][rest if colon else key] = value
    return [(name, settings[name]) if settings[name] else name for name in names]


def timed(session: Any, names: Sequence[str], feed: dict[str, Any], repeat: int) -> list[float]:
    """Seconds of each of `repeat` runs."""
    times: list[float] = []
    for _ in progress(range(repeat), "running"):
        before = time.perf_counter()
        session.run(names, feed)
        times.append(time.perf_counter() - before)
    return times


def progress(items: Sequence[Item], text: str) -> Iterator[Item]:
    """The items, with a progress bar on stderr once they have taken over a second, where someone watches."""
    from rich.progress import Progress

    from .display import PATIENCE

    out, start = console(stderr=True), time.perf_counter()
    with contextlib.ExitStack() as stack:
        bar: Progress | None = None
        for i, item in enumerate(items):
            yield item
            if bar is None and out.is_terminal and time.perf_counter() - start > PATIENCE:
                bar = stack.enter_context(Progress(console=out, transient=True))
                task = bar.add_task(text, total=len(items), completed=i)
            if bar is not None:
                bar.update(task, completed=i + 1)


def shape_of(value: Any) -> list[int] | None:
    """The shape as JSON takes it; None for what is no tensor."""
    return list(value.shape) if hasattr(value, "shape") else None


@contextlib.contextmanager
def waiting(text: str) -> Iterator[None]:
    """A spinner with `text` on stderr once the block has taken over a second, where someone watches."""
    from .display import patience

    with patience(console(stderr=True), text):
        yield


def console(stderr: bool = False) -> Any:
    """Where tables are printed."""
    from .display import Harmless

    return Harmless(stderr=stderr, soft_wrap=stderr)


def say(note: str) -> None:
    """A remark on stderr; nothing where it is empty."""
    if note:
        tell(note, err=True)


def print_json(data: Any) -> None:
    """Plain data on stdout, in escapes where its encoding lacks a character."""
    text = shown_in_json(json.dumps(data, indent=1, ensure_ascii=False, default=str))
    try:
        text.encode(getattr(sys.stdout, "encoding", None) or "utf-8")
    except UnicodeEncodeError:
        text = json.dumps(data, indent=1, default=str)
    tell(text)
