"""`orthrus exec`: a program that imports onnxruntime, run unchanged on this package.

In: a script or a module, and its arguments. Out: what the program does; its exit code.
"""

from __future__ import annotations

import os
import runpy
import sys
from types import TracebackType
from typing import Annotated

import typer

from ...api.alias import STAND_IN, install_as_onnxruntime
from ...shown import tell
from .arguments import option_of

NAME = "exec"
SETTINGS = {"allow_extra_args": True, "ignore_unknown_options": True, "allow_interspersed_args": False}
ProgramArgument = Annotated[str, typer.Argument(
    metavar="[SCRIPT] [ARGUMENT]...", help="A Python script and its arguments.", show_default=False)]
ModuleOption = Annotated[bool, option_of("-m", help="Run a module, as `python -m` does, not a script.")]
PathOption = Annotated[bool, option_of(
    "--path", help="Print the folder that does the same for a program with it in PYTHONPATH, and leave.")]


def command(context: typer.Context, program: ProgramArgument = "", module: ModuleOption = False,
            path: PathOption = False) -> None:
    """Run a program in which onnxruntime is this package. The processes it starts inherit that."""
    if path:
        tell(STAND_IN)
        return
    if not program:
        raise typer.BadParameter("name a script, or -m and a module")
    install_as_onnxruntime()
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [STAND_IN, os.environ.get("PYTHONPATH")]))
    sys.argv = [program, *context.args]
    try:
        if module:
            sys.path[0] = os.getcwd()
            runpy.run_module(program, run_name="__main__", alter_sys=True)
        else:
            if not os.path.exists(program):
                raise typer.BadParameter(f"there is no file {program}")
            sys.path[0] = os.path.dirname(os.path.abspath(program))
            runpy.run_path(program, run_name="__main__")
    except (SystemExit, KeyboardInterrupt, typer.BadParameter):
        raise
    except BaseException as error:
        sys.excepthook(type(error), error.with_traceback(_own_frames(error.__traceback__)), None)
        raise typer.Exit(1) from None


def _own_frames(trace: TracebackType | None) -> TracebackType | None:
    """A traceback from where the program begins; all of it where it did not come to that."""
    found = trace
    while found is not None and "runpy" not in found.tb_frame.f_code.co_filename:
        found = found.tb_next
    while found is not None and "runpy" in found.tb_frame.f_code.co_filename:
        found = found.tb_next
    return found or trace
