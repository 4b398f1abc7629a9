"""`orthrus quantize`: ways to quantize a model are tried on this machine; the one worth it is written."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from ..asked import import_modules
from .arguments import (
    ImportOption,
    JsonOption,
    ModelArgument,
    ProviderOption,
    SettingOption,
    Texts,
    console,
    option_of,
    print_json,
    providers_of,
    say,
)

OutArgument = Annotated[Path | None, typer.Argument(
    metavar="[OUT]", help="Where to write the quantized model that is proposed.", show_default=False)]
DataOption = Annotated[Texts, option_of(
    "--data", "-d", metavar="FILE|FOLDER",
    help="Inputs to calibrate with and to measure accuracy on, as `orthrus run --input` takes them: an .npz "
         "file holds one item; a folder, one in each of its .npz, .npy and .pb files. Repeat for more.")]
TargetOption = Annotated[float | None, option_of(
    "--target-accuracy", metavar="NUMBER",
    help="Search for nodes to leave in float until the model is as accurate, by --measure.")]
MeasureOption = Annotated[str | None, option_of(
    "--measure", metavar="NAME",
    help="sqnr (dB), cosine, agreement (share of equal best classes) or score; the last of them that there "
         "is by default.")]
ScoreOption = Annotated[str, option_of(
    "--score", metavar="MODULE:FUNCTION",
    help="A function of all items' output lists that gives a number, higher for better.")]
RecipeOption = Annotated[Texts, option_of(
    "--recipe", "-r", metavar="NAME", help="Only recipes that begin so; repeat for more.")]
ItemsOption = Annotated[int, option_of(
    "--items", min=1, help="Calibrate with so many items at most, and measure accuracy on as many; 64 by "
                           "default.")]
FolderOption = Annotated[Path | None, option_of(
    "--folder", metavar="FOLDER", help="Keep what was calibrated and searched, and go on from there.")]
SecondsOption = Annotated[float, option_of(
    "--seconds", metavar="SECONDS", min=0.0, help="Time each recipe for so long, 1 by default.")]
HtmlOption = Annotated[Path | None, option_of(
    "--html", metavar="FILE", help="Write one page that shows the model with each node's error.")]


def command(
    model: ModelArgument, out: OutArgument = None, data: DataOption = None, target: TargetOption = None,
    measure: MeasureOption = None, score: ScoreOption = "", recipe: RecipeOption = None,
    items: ItemsOption = 64, folder: FolderOption = None, seconds: SecondsOption = 1.0,
    html: HtmlOption = None, provider: ProviderOption = None, option: SettingOption = None,
    modules: ImportOption = None, as_json: JsonOption = False,
) -> None:
    """Quantize a model in several ways and compare them with the float model: size, speed on this machine and
    accuracy. With OUT the one that is worth it is written; where none is, nothing is, and the exit code is
    1."""
    from ...quantization import advise

    import_modules(modules)
    err = console(stderr=True)
    advice = advise(
        model, out, list(_items(model, data)) if data else None, score=_function(score) if score else None,
        target_accuracy=target, measure=measure, recipes=recipe or (), items=items, folder=folder,
        providers=providers_of(provider, option), seconds=seconds,
        tell=(lambda text: err.print(text, markup=False, highlight=False)) if err.is_terminal else
        lambda text: None)
    if html is not None:
        advice.write_page(html)
    if as_json:
        print_json(advice.plain())
    else:
        _show(advice)
    if out is not None and advice.best is None:
        say(f"{out} was not written")
        raise typer.Exit(1)


def _show(advice: Any) -> None:
    from ...quantization.advising.advice import COLUMNS, row_of
    from .display import table

    rows = [row_of(each, advice.best) for each in (advice.float_model, *advice.outcomes)]
    out = console()
    if not out.is_terminal:
        out.width = 140
    out.print(table("", COLUMNS, rows, right=range(1, 7)))
    for line in (advice.verdict, *advice.notes):
        out.print(line, markup=False, highlight=False)


def _items(model: Path, given: Sequence[str]) -> Iterator[dict[str, Any]]:
    """What files and folders hold, an item each."""
    import orthrus as ort

    from . import feeds

    inputs = ort.InferenceSession(model).get_inputs()
    for text in given:
        place = Path(text)
        files = sorted(p for p in place.iterdir() if p.suffix in feeds.KINDS) if place.is_dir() else [place]
        if not files:
            raise ValueError(f"--data {text}: the folder has no {', '.join(feeds.KINDS)} file")
        for file in files:
            yield feeds.read_feeds([str(file)], inputs)


def _function(text: str) -> Any:
    """What MODULE:FUNCTION names."""
    module, colon, name = text.partition(":")
    if not colon:
        raise ValueError(f"--score {text}: expected MODULE:FUNCTION")
    import_modules([module])
    return getattr(importlib.import_module(module), name)
