"""The flags of `orthrus perf-test`: onnxruntime_perf_test's by their letters, and a few more.

In: a command line in any of the forms that program has taken (`-x 4`, `-x=4`, `--x 4`, `--x=4`, `-x4`;
`-s`, `--s=true`, `--nos`). Out: `Flags`, one field per flag. Each flag is written once, as a field: its name,
its type, its default and its meaning.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, field, fields
from typing import Annotated, Any, get_type_hints

import typer
import typer.core

from ...records import dataclass
from ...shown import tell

FAULT = 255
"""The exit code of everything that goes wrong, as onnxruntime_perf_test's."""
RUN, MODEL, INPUTS, REPORT = "What is run", "The session", "Inputs", "What is told"
THREADS, DEVICES, COMPILED = "Threads", "Providers and devices", "Compiled models"
INERT = "Taken for the sake of existing command lines; they change nothing here and say so"
KEY = "typer"


def _flag(panel: str, name: str, metavar: str, default: Any, help: str, **more: Any) -> Any:
    option = typer.Option(name, help=help, metavar=metavar, rich_help_panel=panel, show_default=False, **more)
    return field(default=default, metadata={KEY: option})


def _switch(panel: str, name: str, help: str) -> Any:
    option = typer.Option(name, help=help, rich_help_panel=panel, show_default=False)
    return field(default=False, metadata={KEY: option})


def _list(panel: str, name: str, metavar: str, help: str) -> Any:
    option = typer.Option(name, help=help, metavar=metavar, rich_help_panel=panel, show_default=False)
    return field(default_factory=list, metadata={KEY: option})


def _argument(metavar: str, help: str) -> Any:
    option = typer.Argument(metavar=metavar, help=help, show_default=False)
    return field(default="", metadata={KEY: option})


@dataclass(frozen=True)
class Flags:
    """A command line as it was meant; nothing is checked yet but types and bounds."""

    model: str = _argument("MODEL", "An .onnx file.")
    result_file: str = _argument("[RESULT_FILE]",
        "A text file that gets a row per run appended: model, seconds, peak working set in bytes, CPU "
        "usage in percent, number of the run. The model's name is its folder's, without a leading "
        "test_.")

    mode: str = _flag(RUN, "-m", "MODE", "duration", "duration (the default) or times.")
    repeat: int = _flag(RUN, "-r", "N", 1000,
        "Runs that are timed, 1000 by default; any other number means -m times.", min=1)
    seconds: float = _flag(RUN, "-t", "SECONDS", 600.0,
        "Run until the times of the runs sum up to so many seconds, 600 by default; any other number "
        "means -m duration. With -c above 1 it is the time that passes. With --vs the default is 10 "
        "for each side.")
    concurrent: int = _flag(RUN, "-c", "N", 1, "Runs at the same time, 1 by default.", min=1)
    binding: bool = _switch(RUN, "-g",
        "Bind inputs and outputs once, before the runs; the average time without waiting for outputs "
        "is told as well.")
    exit_early: bool = _switch(RUN, "-n", "Leave once the session is created.")
    hold_ms: int = _flag(RUN, "--hold_ms_after_session_creation", "N", 0,
        "With -n: print SESSION_READY and wait so many milliseconds before leaving.", min=0)

    generate: bool = _switch(INPUTS, "-I",
        "Generate the inputs, from their types and shapes; an open dimension is 1, or where the model "
        "refuses that, a size found by trying. Without it every run takes one of the folders "
        "test_data_set_* beside the model, at random; where there are none, inputs are generated all the "
        "same, and stderr says so.")
    seed: int = _flag(INPUTS, "-S", "N", -1,
        "Seed of generated inputs; -1, the default, makes them all zero. From 0 on, float inputs are "
        "uniform in [0, 5), int8 and uint8 uniform in [0, largest], others zero. The generator is "
        "numpy's default_rng, started anew for each input: the numbers are not those that "
        "onnxruntime_perf_test draws from std::default_random_engine.")
    by_name: list[str] = _list(INPUTS, "-f", "NAME:VALUE",
        "Fix a free dimension by its name; repeat, or separate several by spaces.")
    by_denotation: list[str] = _list(INPUTS, "-F", "DENOTATION:VALUE",
        "Fix free dimensions by denotation, such as DATA_BATCH.")
    data_shape: str = _flag(INPUTS, "--data_shape", "NAME:[1,3,224,224][1,3,448,448]", "",
        "Shapes of generated inputs, several inputs separated by spaces, each with the same number of "
        "shapes; the runs take them in turn. Implies -I.")

    level: int = _flag(MODEL, "-o", "N", 99,
        "Graph optimization: 0 none, 1 basic, 2 extended, 3 layout, 99 all (the default; so is "
        "anything above 3).", min=0)
    optimized: str = _flag(MODEL, "-u", "FILE", "", "Write the optimized model.")
    opt_data: str = _flag(MODEL, "--opt_data", "NAME", "",
        "A data file beside the model of -u, for its large tensors.")
    opt_minimum: int = _flag(MODEL, "--opt_weight_min_size", "N", -1,
        "Bytes from which a tensor goes into that data file; 1024 by default.")
    in_memory: bool = _switch(MODEL, "-l", "Read the file and make the session of its bytes.")
    no_arena: bool = _switch(MODEL, "-A", "Allocate each intermediate result, instead of one arena.")
    no_pattern: bool = _switch(MODEL, "-M", "Keep no memory plan per input shape.")
    config: str = _flag(MODEL, "-C", "'KEY|VALUE KEY|VALUE'", "", "Session configuration entries.")
    custom_ops: str = _flag(MODEL, "-R", "LIBRARY", "",
        "A library of custom operators. Compiled ones are refused: here an operator is a Python "
        "function, see --import.")
    extensions: bool = _switch(MODEL, "-X", "Refused: onnxruntime-extensions is compiled for onnxruntime.")
    modules: list[str] = _list(MODEL, "--import", "MODULE",
        "Import a Python module first: one that registers operators or providers.")

    provider: str = _flag(DEVICES, "-e", "NAME", "cpu",
        "The provider, by short or full name: cpu (the default), null, or any that is registered; "
        "nodes it does not take run on the CPU.")
    options: str = _flag(DEVICES, "-i", "'KEY|VALUE KEY|VALUE'", "", "Options of that provider.")
    list_devices: bool = _switch(DEVICES, "--list_ep_devices",
        "Print the devices of the providers and leave.")
    select_devices: str = _flag(DEVICES, "--select_ep_devices", "'0;2'", "",
        "Use these devices of that list.")
    filter_devices: str = _flag(DEVICES, "--filter_ep_devices", "'KEY|VALUE KEY|VALUE'", "",
        "Use the devices of which any of these metadata is true; --select_ep_devices wins.")
    plugin_libs: str = _flag(DEVICES, "--plugin_ep_libs", "'NAME|LIBRARY'", "",
        "Shared libraries of providers, built against orthrus_provider.h; those compiled for onnxruntime "
        "are refused.")
    plugin_eps: str = _flag(DEVICES, "--plugin_eps", "'NAME;NAME'", "",
        "Providers by full name, instead of -e.")
    plugin_options: str = _flag(DEVICES, "--plugin_ep_options", "'KEY|VALUE KEY|VALUE;KEY|VALUE'", "",
        "Their options, a part per provider of --plugin_eps.")

    intra: int = _flag(THREADS, "-x", "N", 0, "Threads within a node; 0, the default: one per core.", min=0)
    inter: int = _flag(THREADS, "-y", "N", 0,
        "Threads across nodes, with -P; 0, the default: one per core.", min=0)
    parallel: bool = _switch(THREADS, "-P", "Let independent nodes run at the same time.")
    affinity: str = _flag(THREADS, "-T", "'1,2;3,4'", "",
        "Processors per thread, for all threads but the first, counted from 1; 1-4 is a range.")

    context: bool = _switch(COMPILED, "--compile_ep_context",
        "Compile the model first, and run what comes of it. No provider here keeps compiled parts in "
        "a model: it is the model itself.")
    context_path: str = _flag(COMPILED, "--compile_model_path", "FILE", "model_ctx.onnx",
        "Where the compiled model goes, model_ctx.onnx by default.")
    context_embed: bool = _switch(COMPILED, "--compile_binary_embed",
        "Keep compiled parts within the model.")
    context_only: bool = _switch(COMPILED, "--compile_only", "Leave once it is compiled.")

    statistics: bool = _switch(REPORT, "-s",
        "Percentiles; always on where there is no result file. With one, they are appended to it too.")
    verbose: bool = _switch(REPORT, "-v", "A line per run, and the log.")
    profile: str = _flag(REPORT, "-p", "PREFIX", "", "Write a profile; its name begins with this.")
    versus: str = _flag(REPORT, "--vs", "PROVIDER|MODULE[:PROVIDER+...]", "",
        "Compare with another provider (null), or another engine with this API (onnxruntime), in turns, each "
        "in a process of its own: ratio of times with a 95 % interval. The lines above it are the first "
        "one's; sessions are created once per launch, and the median is told.")
    launches: int = _flag(REPORT, "--launches", "N", 6,
        "How often --vs starts both processes anew, 6 by default: the interval comes from how far launches "
        "are apart, with fewer than 3 from how far pairs of blocks are.", min=1)
    plot: str = _flag(REPORT, "--plot", "FILE.png", "",
        "Draw the distribution of times. Needs matplotlib, which comes with the extra `plot`.")
    as_json: bool = _switch(REPORT, "--json",
        "One JSON object instead of text: all figures and the time of every run.")

    no_spin: bool = _switch(INERT, "-D", "No spinning of threads.")
    stop_spin: bool = _switch(INERT, "-Z", "No spinning between runs.")
    spin_us: int = _flag(INERT, "--spin_duration_us", "N", -1, "Microseconds of spinning.", min=-1)
    spin_backoff: int = _flag(INERT, "--spin_backoff_max", "N", 1,
        "How far spinning slows down, 64 at most.", min=1)
    denormals: bool = _switch(INERT, "-z", "Denormal numbers as zero.")
    prepacked: bool = _switch(INERT, "--opt_save_prepacks", "Packed weights in the optimized model.")
    shrink: str = _flag(INERT, "--shrink_arena_between_runs", "'cpu:0;gpu:0'", "",
        "Give memory back between runs.")
    algorithm: int = _flag(INERT, "-d", "N", 0, "cuDNN's search for convolutions: 0, 1 or 2.", min=0, max=2)
    copy_stream: bool = _switch(INERT, "-q", "CUDA copies in a stream of their own.")
    mempool: str = _flag(INERT, "--enable_cuda_mempool", "'BYTES;BYTES'", "", "CUDA's memory pool.")
    plugin_allocator: bool = _switch(INERT, "--plugin_ep_force_cpu_allocator",
        "Tensors of plugin providers in host memory, where they are anyway.")
    telemetry: bool = _switch(INERT, "--enable_telemetry", "Nothing here sends anything.")
    telemetry_sessions: int = _flag(INERT, "--telemetry_smoke_sessions", "N", 1,
        "Sessions for a test of telemetry.", min=0)


class UsageFault(ValueError):
    """A command line that cannot be meant."""


def takes_flags(body: Callable[[Flags], None]) -> Callable[..., None]:
    """`body` as a function with a parameter per flag, for typer to read."""
    def command(**given: Any) -> None:
        body(Flags(**{name: value for name, value in given.items() if value is not None}))

    hints = get_type_hints(Flags)
    types = {f.name: Annotated[hints[f.name], f.metadata[KEY]] for f in fields(Flags)}
    defaults = {f.name: None if f.default is MISSING else f.default for f in fields(Flags)}
    command.__doc__, command.__name__, command.__module__ = body.__doc__, body.__name__, body.__module__
    command.__annotations__ = types
    signature = inspect.Signature([
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=kind, default=defaults[name])
        for name, kind in types.items()])
    command.__signature__ = signature  # type: ignore[attr-defined]
    return command


class Parser(typer.core.TyperCommand):
    """A command that reads onnxruntime_perf_test's command lines and ends with its exit code."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.context_settings.setdefault("help_option_names", ["-h", "--help"])

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        names = {name.lstrip("-"): (name, bool(getattr(option, "is_flag", False)))
                 for option in self.get_params(ctx) for name in option.opts if name.startswith("-")}
        try:
            return super().parse_args(ctx, list(rewritten(args, names)))
        except typer.Exit:
            raise
        except UsageFault as error:
            text = str(error)
        except Exception as error:
            if not hasattr(error, "format_message"):
                raise
            text = error.format_message()
        raise _refused(ctx, text)

    def invoke(self, ctx: Any) -> Any:
        from ...errors import ALL

        kinds = (*ALL, ValueError, TypeError, KeyError, OSError, ImportError, RuntimeError, MemoryError)
        try:
            return super().invoke(ctx)
        except UsageFault as error:
            raise _refused(ctx, str(error)) from None
        except Exception as error:
            tool = type(error).__module__.startswith(("click", "typer"))
            if tool or isinstance(error, BrokenPipeError) or not isinstance(error, kinds):
                raise
            from ..cli.display import error_text

            text = str(error) if isinstance(error, ALL) else error_text(error).plain
            tell(f"Run failed:{text}", err=True)
            raise typer.Exit(FAULT) from None


def _refused(ctx: Any, text: str) -> typer.Exit:
    tell(f"{text}\nSee '{ctx.command_path} --help'.", err=True)
    return typer.Exit(FAULT)


def rewritten(args: Sequence[str], names: Mapping[str, tuple[str, bool]]) -> Iterator[str]:
    """`args` in the one form that typer knows. `names`: a flag without dashes -> with them, and whether it is
    a switch. What is no known flag is left as it is, so that `-x4` works too. Raises UsageFault for a
    switch's value that is neither true nor false."""
    made: list[list[str]] = []
    rest = iter(args)
    for arg in rest:
        if arg == "--":
            made.append([arg, *rest])
            break
        name, equals, value = arg.lstrip("-").partition("=")
        if arg[:1] != "-" or len(arg) - len(arg.lstrip("-")) > 2 or not name:
            made.append([arg])
            continue
        on = True
        if name not in names and name[:2] == "no" and names.get(name[2:], ("", False))[1] and not equals:
            name, on = name[2:], False
        known, switch = names.get(name, names.get(name.replace("-", "_"), ("", False)))
        if not known:
            made.append([arg])
        elif switch:
            if equals:
                on = _truth(arg, value)
            made = [words for words in made if words != [known]] + ([[known]] if on else [])
        else:
            made.append([known, value] if equals else [known, *itertools.islice(rest, 1)])
    for words in made:
        yield from words


def _truth(flag: str, text: str) -> bool:
    if text.lower() in ("true", "t", "yes", "y", "1"):
        return True
    if text.lower() in ("false", "f", "no", "n", "0"):
        return False
    raise UsageFault(f"{flag}: {text!r} is neither true nor false")
