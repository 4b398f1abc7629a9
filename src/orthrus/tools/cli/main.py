"""The `orthrus` command, one module beside this one per verb.

In: a command line. Out: text or JSON on stdout, messages on stderr, and an exit code: 0 done, 1 the model, a
file or a value is at fault (said on one screen, without a traceback), 2 the command line is.
"""

from __future__ import annotations

from typing import Annotated

import typer

from ...shown import tell
from ..compare import bisect, compare
from ..demo import demo
from ..perf import perf_test
from ..testrunner import test_runner
from ..view import view
from . import (
    cache,
    capi,
    check_provider,
    compile,
    doctor,
    estimate,
    execute,
    explain,
    info,
    key,
    plan_capacity,
    profile,
    providers,
    quantize,
    run,
    serve,
)
from .arguments import Told, option_of

VersionOption = Annotated[bool, option_of("--version", help="Print the version and leave.")]


app = typer.Typer(cls=Told, no_args_is_help=True, pretty_exceptions_enable=False,
                  context_settings={"help_option_names": ["-h", "--help"]},
                  help="Run ONNX models, look into them, and see why each node runs where it does.")


def main() -> None:
    """The entry point of the console script."""
    app(prog_name="orthrus")


@app.callback(invoke_without_command=True)
def _root(version: VersionOption = False) -> None:
    if version:
        import orthrus

        tell(f"orthrus {orthrus.orthrus_version}")
        raise typer.Exit()


def _flowing(text: str) -> str:
    """A docstring whose paragraphs are a line each, so that a terminal of any width breaks them itself."""
    return "\n\n".join(" ".join(part.split()) for part in text.split("\n\n"))


for _module in (run, info, explain, providers, profile, estimate, compare, compile, quantize, key, bisect,
                serve, plan_capacity, perf_test, test_runner, execute, doctor, cache, check_provider, capi,
                demo, view):
    _name = getattr(_module, "NAME", _module.__name__.rpartition(".")[2].replace("_", "-"))
    _help = _flowing(_module.command.__doc__ or "")
    app.command(_name, cls=getattr(_module, "PARSER", None), help=_help,
                context_settings=getattr(_module, "SETTINGS", None),
                short_help=_help.partition(". ")[0].partition("\n")[0].rstrip("."))(_module.command)
