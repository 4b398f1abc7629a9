"""`orthrus run`: a model and inputs in, a summary of its outputs and their files out."""

from __future__ import annotations

import time
from typing import Any

from .arguments import (
    FolderOption,
    ImportOption,
    InputOption,
    JsonOption,
    LevelOption,
    ModelArgument,
    OutputOption,
    ProviderOption,
    RepeatOption,
    SaveOption,
    SeedOption,
    SettingOption,
    ShapeOption,
    TrustOption,
    console,
    print_json,
    say,
    session_of,
    shape_of,
    timed,
    waiting,
)
from .explain import GeneratedOption, StrictOption, check


def command(
    model: ModelArgument, input: InputOption = None, shape: ShapeOption = None, seed: SeedOption = 0,
    save: SaveOption = None, output_dir: FolderOption = None, output: OutputOption = None,
    repeat: RepeatOption = 0, provider: ProviderOption = None, option: SettingOption = None,
    modules: ImportOption = None, level: LevelOption = "all",
    trust: TrustOption = "", strict: StrictOption = False,
    strict_generated: GeneratedOption = False, as_json: JsonOption = False,
) -> None:
    """Run a model once and show its outputs."""
    from . import feeds, results
    from .display import shape_text, table

    session = session_of(model, provider, option, modules, level, seed, trust=trust)
    check(session, session.explain(), provider, strict, False)
    inputs = session.get_inputs()
    kinds = {arg.name: arg.type for arg in session.get_outputs()}
    names = output or list(kinds)

    def first(feed: dict[str, Any]) -> tuple[list[Any], float]:
        start = time.perf_counter()
        return session.run(names, feed), time.perf_counter() - start
    with waiting("running"):
        fed, (outputs, spent) = feeds.fed(model, inputs, input or [], shape or [], seed, first)
    say(fed.note)
    made = fed.made
    check(session, session.explain(), provider, False, strict_generated)
    times = timed(session, names, fed.values, repeat)
    files = [] if save is None else results.write_npz(save, names, outputs)
    files += [] if output_dir is None else results.write_folder(output_dir, names, outputs)
    rows = results.summarized(names, outputs, kinds)
    if as_json:
        print_json({"generated": {k: shape_of(v) for k, v in made.items()},
                     "outputs": [r.plain() for r in rows],
                     "first_run_seconds": spent, "run_seconds": times, "files": [str(f) for f in files]})
        return
    out = console()
    if made:
        out.print(table("", ("generated input", "type", "shape"), [
            (a.name, a.type, shape_text(shape_of(made[a.name]))) for a in inputs if a.name in made]))
        out.print()
    out.print(table("", ("output", "type", "shape", "values"), [
        (r.name, r.type, shape_text(r.shape) if r.shape is not None else "", r.values) for r in rows]))
    out.print(f"\nfirst run {1e3 * spent:.2f} ms", highlight=False)
    if times:
        ordered = sorted(times)
        out.print(f"{len(times)} more: median {1e3 * ordered[len(times) // 2]:.3f} ms, "
                      f"fastest {1e3 * ordered[0]:.3f} ms", highlight=False)
    for file in files:
        out.print(f"wrote {file}", markup=False, highlight=False)
