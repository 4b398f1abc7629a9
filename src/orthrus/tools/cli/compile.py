"""`orthrus compile`: a model in, the same model with its parts compiled by a provider out; or with `--emit`,
libraries and programs that need no Python.

In: a model and a provider that stores what it compiles. Out: an ONNX file in which each compiled part is an
EPContext node, with the compiled code inside it or in files beside the model; or the files of
`orthrus.native.ahead.emit`. Nothing runs, so that the target may be another machine; the ONNX file is run by
a session that trusts it and names the provider.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from ..asked import LEVELS, import_modules
from .arguments import (
    ImportOption,
    JsonOption,
    LevelOption,
    ModelArgument,
    ProviderOption,
    Texts,
    console,
    option_of,
    print_json,
    providers_of,
    waiting,
)

if TYPE_CHECKING:
    from ...partition import Placement
    from ...providers import ExecutionProvider
    from ...providers.trust import Signer
    from ...run.ep_context import Compiled

_RANGE = re.compile(r"(\d+)(?:\.\.(\d+))?")
_MOST = 100_000
"""Sizes of one range."""

SettingOption = Annotated[Texts, option_of(
    "--option", metavar="[NAME:]KEY=VALUE",
    help="Option of the first provider, or of the one named; repeat for several.")]
TargetOption = Annotated[Texts, option_of(
    "--target", metavar="NAME",
    help="Machine to compile for, as the first provider names it; this one by default. With --emit: host, "
         "avx512, avx2, sse2, neon, rvv256, ...; repeat for several, of which the first that a processor "
         "supports runs.")]
OutOption = Annotated[Path | None, option_of(
    "--out", "-o", metavar="FILE",
    help="The compiled model; MODEL_ctx.onnx beside it by default. With --emit: the folder; the name by "
         "default.")]
EmitOption = Annotated[str | None, option_of(
    "--emit", metavar="FORM",
    help="Make no model but what runs without Python: object, header, library, executable or "
         "python-free-wheel.")]
NameOption = Annotated[str | None, option_of(
    "--name", metavar="NAME",
    help="With --emit: what all names in C begin with; the model's file's by default.")]
WeightsOption = Annotated[str | None, option_of(
    "--weights", metavar="inside|beside",
    help="With --emit: weights in it, the default, or in a file beside.")]
EmbedOption = Annotated[bool, option_of(
    "--embed/--beside", help="Compiled code inside the model, the default, or in files beside it.")]
DimOption = Annotated[Texts, option_of(
    "--dim", metavar="NAME=SIZE",
    help="Fix a symbolic dimension before compiling; repeat for several. With --emit also N=1..32, N=1,2,4: "
         "all sizes it may have; N=M: always the same as M.")]
SignOption = Annotated[Path | None, option_of(
    "--sign", metavar="FILE",
    help="Sign compiled parts with the private key in FILE; orthrus key makes one.")]
ForceOption = Annotated[bool, option_of("--force", help="Write over a file that is there.")]


def command(
    model: ModelArgument, out: OutOption = None, provider: ProviderOption = None,
    option: SettingOption = None, target: TargetOption = None, dim: DimOption = None,
    emit: EmitOption = None, name: NameOption = None, weights: WeightsOption = None,
    embed: EmbedOption = True, modules: ImportOption = None, level: LevelOption = "all",
    sign: SignOption = None, force: ForceOption = False, as_json: JsonOption = False,
) -> None:
    """Compile a model ahead of time."""
    from ...errors import Fail
    from ...providers.trust import Signer
    from ...run.ep_context import SUFFIX, write

    import_modules(modules)
    if emit is not None:
        without = {"--provider": provider, "--sign": sign, "--beside (--weights beside)": not embed}
        if wrong := [flag for flag, value in without.items() if value]:
            raise ValueError(f"--emit {emit} goes without {', '.join(wrong)}")
        _emit(model, emit, name or "", out, _ranges(dim), target or (), weights or "inside", level,
              _settings(option), force, as_json)
        return
    if wrong := [flag for flag, value in {"--name": name, "--weights": weights}.items() if value]:
        raise ValueError(f"{', '.join(wrong)}: only with --emit")
    if target and len(target) > 1:
        raise ValueError("--target: several only with --emit")
    path = out if out is not None else model.with_name(model.stem + SUFFIX)
    if path.exists() and not force:
        raise Fail(f"{path} exists already", cure="--force writes over it, --out names another file")
    signer = None if sign is None else Signer(sign)
    start = time.perf_counter()
    with waiting(f"compiling {model}"):
        providers = _providers(provider, option, target[0] if target else None)
        placement, compiled = _compiled(model, providers, level, _sizes(dim), signer)
    seconds = time.perf_counter() - start
    if not compiled.stored:
        raise Fail("no part of the model was compiled", found=_why_none(placement, compiled),
                   cure=_cure(placement))
    files = write(placement, compiled, os.fspath(path), embed)
    rows = _rows(compiled, len(placement.graph.nodes))
    if signer is not None:
        rows["signed_by"] = signer.public
    if as_json:
        print_json({**rows, "seconds": seconds, "files": files})
        return
    _show(rows, seconds, files)


def _why_none(placement: Placement, compiled: Compiled) -> str:
    """The first reasons why nothing was compiled."""
    reasons = list(compiled.refused.values()) or [
        f"{node}: " + ("; ".join(map(str, placement.refusals[node])) or (
            "control flow stays in a model; what it holds is compiled when a session is made"
            if any(node.bodies()) else "runs as it is")) for node in placement.graph.nodes]
    return "\n".join([*dict.fromkeys(reasons)][:4]) or "a model without nodes"


def _cure(placement: Placement) -> str:
    """What to do for a model of which nothing was compiled."""
    from ...ir import TensorType

    names = dict.fromkeys(str(d) for value in placement.graph.inputs for d in value.shape or ()
                          if d is not None and not isinstance(d, int))
    if names:
        return (f"give sizes to {', '.join(names)}: {' '.join(f'--dim {name}=1' for name in names)}; or for "
                f"several sizes, --emit library {' '.join(f'--dim {name}=1..8' for name in names)}")
    for value in placement.graph.inputs:
        if isinstance(value.type, TensorType) and (value.shape is None or None in value.shape):
            sizes = ",".join("1" if d is None else str(d) for d in value.shape or (None, 3))
            return ("give sizes to the inputs' dimensions, which have no names: python -m "
                    f"orthrus.tools.make_dynamic_shape_fixed --input_name {value.name} --input_shape {sizes} "
                    "MODEL OUT")
    return ("run it as it is; or --emit library compiles a model with control flow as a whole, where all of "
            "it is generated; or another provider compiles it: orthrus providers lists them")


def _providers(given: Sequence[str] | None, options: Sequence[str] | None,
               target: str | None) -> list[ExecutionProvider]:
    """The providers asked for, the first told its target, the CPU provider last."""
    from ... import providers as registry

    chosen = [each if isinstance(each, tuple) else (each, {}) for each in providers_of(given, options)]
    name, first = chosen[0]
    if target is not None:
        key = registry.known((name,))[name].target_option
        if not key:
            raise ValueError(f"--target {target}: {name} compiles for this machine only")
        first[key] = target
    made = [registry.create(each, settings, (target or "") if each == name else "")
            for each, settings in chosen]
    if all(p.name != registry.CPUExecutionProvider.name for p in made):
        made.append(registry.CPUExecutionProvider())
    return made


def _sizes(given: Sequence[str] | None) -> dict[str, int]:
    sizes = {}
    for text in given or ():
        name, equals, size = text.rpartition("=")
        if not equals or not size.isdigit():
            raise ValueError(f"--dim {text}: expected NAME=SIZE")
        sizes[name] = int(size)
    return sizes


def _ranges(given: Sequence[str] | None) -> dict[str, list[int] | str]:
    """All sizes that each dimension may have, or which other it equals."""
    sizes: dict[str, list[int]] = {}
    same: dict[str, str] = {}
    for text in given or ():
        name, _, several = text.rpartition("=")
        if name and several and not several[0].isdigit():
            same[name] = several
            continue
        found = [_RANGE.fullmatch(each) for each in several.split(",")]
        if not name or not all(found):
            raise ValueError(f"--dim {text}: expected NAME=SIZE, NAME=FIRST..LAST, several with commas, or "
                             "NAME=OTHER")
        for each in found:
            assert each is not None
            first, last = int(each[1]), int(each[2] or each[1])
            if last - first > _MOST:
                raise ValueError(f"--dim {text}: more than {_MOST} sizes")
            sizes.setdefault(name, []).extend(range(first, last + 1))
        if not sizes[name]:
            raise ValueError(f"--dim {text}: there is no size from a larger one to a smaller one")
    if both := sorted({*sizes} & {*same}):
        raise ValueError(f"--dim {both[0]}: sizes of its own, or those of another")
    return {**sizes, **same}


def _settings(given: Sequence[str] | None) -> dict[str, str]:
    """The CPU provider's options."""
    settings = {}
    for text in given or ():
        name, equals, value = text.partition("=")
        if not equals:
            raise ValueError(f"--option {text}: expected KEY=VALUE")
        settings[name.removeprefix("cpu:")] = value
    return settings


def _emit(model: Path, form: str, name: str, out: Path | None, sizes: Mapping[str, Sequence[int] | str],
          targets: Sequence[str], weights: str, level: str, options: Mapping[str, str], force: bool,
          as_json: bool) -> None:
    from ...native.ahead import emit

    start = time.perf_counter()
    with waiting(f"compiling {model}"):
        files = emit(model, form, name, out or "", sizes, targets, weights, level=_level(level),
                     options=options, force=force)
    seconds = time.perf_counter() - start
    if as_json:
        rows = [{"file": str(file), "bytes": file.stat().st_size} for file in files]
        print_json({"seconds": seconds, "files": rows})
        return
    for file in files:
        console().print(f"wrote {file}, {file.stat().st_size / 1e3:,.0f} kB", markup=False, highlight=False)
    console().print(f"in {seconds:.1f} s", highlight=False)


def _compiled(model: Path, providers: list[ExecutionProvider], level: str,
              sizes: Mapping[str, int], signer: Signer | None) -> tuple[Placement, Compiled]:
    """The placed graph, and what became of its parts."""
    from ...run.ep_context import placed_and_compiled

    return placed_and_compiled(os.fspath(model), providers, _level(level), free_dims=sizes, signer=signer)


def _level(name: str) -> int:
    from ...api.enums import GraphOptimizationLevel

    if name not in LEVELS:
        raise ValueError(f"--level {name}: expected one of {', '.join(LEVELS)}")
    return int(getattr(GraphOptimizationLevel, LEVELS[name]))


def _rows(compiled: Compiled, nodes: int) -> dict[str, Any]:
    """What was made, as plain data."""
    parts = [{"part": part.name, "provider": part.provider, "nodes": len(part.nodes),
              "bytes": len(stored.data), "target": stored.target, "version": stored.version}
             for part, stored in compiled.stored.items()]
    left = [{"part": part.name, "provider": part.provider, "nodes": len(part.nodes), "reason": reason}
            for part, reason in compiled.refused.items() if part.provider != "CPUExecutionProvider"]
    return {"nodes": nodes, "compiled_nodes": sum(row["nodes"] for row in parts), "parts": parts,
            "left": left}


def _show(made: Mapping[str, Any], seconds: float, files: Sequence[str]) -> None:
    from .display import table

    out = console()
    out.print(table("", ("part", "nodes", "size", "target", "compiled by"), [
        (p["part"], str(p["nodes"]), f"{p['bytes'] / 1e6:.2f} MB", p["target"], p["version"])
        for p in made["parts"]], right=(1, 2)))
    for row in made["left"]:
        out.print(f"left as it is: {row['part']}, {row['nodes']} nodes: {row['reason']}", markup=False,
                  highlight=False)
    out.print(f"\n{made['compiled_nodes']} of {made['nodes']} nodes compiled in {seconds:.1f} s",
              highlight=False)
    if "signed_by" in made:
        out.print(f"signed by {made['signed_by']}", markup=False, highlight=False)
    for file in files:
        out.print(f"wrote {file}", markup=False, highlight=False)
