"""`orthrus bisect`: which optimization pass, kernel or definition changes a result.

In: a model and the settings that are doubted. Out: the culprits, with the switches that leave them out, and a
folder with the smallest part that shows the first. Ends with exit code 1 where there is one. `bisect(...)` is
the same as a function.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..asked import import_modules
from ..cli.arguments import (
    ImportOption,
    InputOption,
    JsonOption,
    LevelOption,
    ModelArgument,
    SeedOption,
    ShapeOption,
    Texts,
    console,
    option_of,
    print_json,
)
from .compare import (
    AMPLIFIED,
    AtolOption,
    BudgetOption,
    CaseOption,
    RtolOption,
    errors_table,
    model_and_feeds,
    nodes_of,
    settings_of,
    telling,
    tolerance_of,
)

if TYPE_CHECKING:
    from .bisection import Bisection, Culprit

CandidateOption = Annotated[str, option_of(
    "--provider", "-p", metavar="NAME", help="The provider that is doubted, by full or short name: cpu.")]
CandidateOptions = Annotated[Texts, option_of(
    "--option", "-o", metavar="KEY=VALUE", help="Provider option of the doubted side.")]
TrustedOption = Annotated[str, option_of(
    "--against", metavar="SIDE", help="What is trusted: reference, the definitions in numpy without "
                                      "optimization (the default), or onnxruntime.")]


def bisect(*args: Any, **kwargs: Any) -> Bisection:
    """See `bisection.bisect`."""
    from .bisection import bisect as run

    return run(*args, **kwargs)


def command(
    model: ModelArgument, provider: CandidateOption = "cpu", option: CandidateOptions = None,
    against: TrustedOption = "reference", input: InputOption = None, shape: ShapeOption = None,
    seed: SeedOption = 0, level: LevelOption = "all", rtol: RtolOption = None, atol: AtolOption = None,
    save: CaseOption = None, memory: BudgetOption = 512, modules: ImportOption = None,
    as_json: JsonOption = False,
) -> None:
    """Name the optimization pass, the kernel or the definition that changes a model's result."""
    import_modules(modules)
    whole, feeds = model_and_feeds(model, input, shape, seed)
    with telling() as notify:
        found = bisect(whole, feeds, candidate=(provider, settings_of(option, "--option")), against=against,
                       level=level, tolerance=tolerance_of(rtol, atol), save=save, seed=seed,
                       budget=memory << 20, notify=notify)
    if as_json:
        print_json(found.plain())
    else:
        show(found)
    if found.verdict in ("found", "unknown"):
        raise typer.Exit(1)


def show(found: Bisection) -> None:
    """Print a bisection."""
    out = console()
    out.print(f"doubted: {found.candidate}\ntrusted: {found.reference}\n", markup=False, highlight=False)
    out.print(errors_table("", ("output",), [
        ((v.value,), v.error, None, "beyond tolerance" if v.error.beyond else v.error.note)
        for v in found.outputs], out.width))
    for culprit in found.culprits:
        out.print()
        out.print("\n".join(told(culprit)), markup=False, highlight=False)
    ends = {"agree": "Both agree; there is nothing to look for.",
            "amplified": AMPLIFIED,
            "unknown": "The sides differ, whatever is left out."}
    if found.verdict in ends:
        out.print("\n" + ends[found.verdict], markup=False, highlight=False)
    elif not found.culprits[-1].enough:
        out.print("\nThe outputs still differ without that.", markup=False, highlight=False)
    for file in found.files:
        out.print(f"wrote {file}", markup=False, highlight=False)


def told(it: Culprit) -> list[str]:
    """A culprit in lines."""
    lines = [{"pass": f"The pass {it.name} changes the result",
              "kernel": f"The kernel {it.name} changes the result",
              "definition": f"The definition of {it.name} gives another result"}[it.kind]]
    if it.kind == "pass" and it.rewrite:
        lines[0] += f", with rewrite {it.rewrite} of {it.rewrites} in the part that shows it"
    lines[0] += ":"
    lines += [f"  - {text}" for text in it.before] + [f"  + {text}" for text in it.after]
    if not it.before and not it.after:
        lines += [f"  {node}" for node in it.nodes]
    if it.others:
        lines.append(f"  and by themselves {len(it.others)} more: {', '.join(it.others[:3])}"
                     + (", ..." if len(it.others) > 3 else ""))
    if it.case is not None and it.case.fused:
        lines += ["the part that shows it:", *nodes_of(it.case)]
    if it.cure:
        lines.append(f"leave it out with {it.cure}" + (", and both agree" if it.enough else ""))
    return lines
