"""`orthrus capi`: a libonnxruntime of this package for programs in C, C++, Rust, Go, C# and Node.

In: one of build, path and run, and for run a program with its arguments. Out: where the library and the
headers are; or what the program does, with this library in place of onnxruntime's.
"""

from __future__ import annotations

import enum
import os
import shutil
from pathlib import Path
from typing import Annotated, Any

import typer
import typer.core

from ...shown import tell
from .arguments import JsonOption, option_of, print_json

SETTINGS = {"allow_extra_args": True, "ignore_unknown_options": True, "allow_interspersed_args": False}


class PARSER(typer.core.TyperCommand):
    """Takes the options behind the action as those before it; what follows a program is the program's."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        begin = self._options(ctx, args, 0)
        end = self._options(ctx, args, begin + 1)
        action, behind = args[begin:begin + 1], args[begin + 1:end]
        return super().parse_args(ctx, [*args[:begin], *behind, *action, *args[end:]])

    def _options(self, ctx: Any, args: list[str], at: int) -> int:
        """Where the options of this command that stand from `at` on end."""
        flags = {name: getattr(each, "is_flag", False) for each in self.get_params(ctx) for name in each.opts
                 if each.param_type_name == "option"}
        while at < len(args) and (name := args[at].partition("=")[0]) in flags:
            at += 1 if flags[name] or "=" in args[at] else 2
        return min(at, len(args))


class Action(enum.StrEnum):
    """What may be done with the library."""

    BUILD, PATH, RUN = "build", "path", "run"


ActionArgument = Annotated[Action, typer.Argument(
    help="build: compile it anew; path: where it is, built if need be; run: a program with it in place of "
         "onnxruntime: orthrus capi run -- PROGRAM ARGUMENTS.", show_default=False)]
IntoOption = Annotated[Path | None, option_of(
    "--into", metavar="DIR", help="Build it there, with folders lib and include; in the cache by default.")]


def command(context: typer.Context, action: ActionArgument, into: IntoOption = None,
            as_json: JsonOption = False) -> None:
    """Build and use a libonnxruntime.so.1 that other languages' programs load. It needs a C compiler, or the
    package ziglang."""
    from ...native.dropin import build

    program = context.args[1:] if context.args[:1] == ["--"] else context.args
    if (action is Action.RUN) != bool(program):
        raise typer.BadParameter("a program is needed to run, and for nothing else")
    if action is Action.BUILD or into is not None:
        folder = build.build(build.place() if into is None else into)
    else:
        folder = build.built()
    if action is Action.RUN:
        _run(folder / "lib", program)
    library, include = folder / "lib" / build.SONAME, folder / "include"
    if as_json:
        print_json({"library": str(library), "include": str(include)})
    else:
        tell(f"library {library}\ninclude {include}")


def _run(folder: Path, program: list[str]) -> None:
    """Become the program, which finds the library however it looks for onnxruntime's: by name, by a path of
    its own, which what is loaded already goes before, or by a variable."""
    from ...native.dropin.build import SONAME

    found = shutil.which(program[0])
    if found is None:
        raise typer.BadParameter(f"there is no program {program[0]}")
    names = [SONAME, SONAME.removesuffix(".1")]
    preload = [*names, *filter(None, [os.environ.get("LD_PRELOAD")])]
    path = [str(folder), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
    os.environ.update(LD_LIBRARY_PATH=os.pathsep.join(path), LD_PRELOAD=" ".join(preload),
                      ORT_DYLIB_PATH=str(folder / SONAME))
    os.execv(found, program)
