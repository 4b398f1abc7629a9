"""The tests in a folder: models with their data sets and tolerances, as onnx_test_runner finds them.

In: folders, searched with all that is below them. Out: `Case`s in the order of their paths; one that will not
be run carries the reason.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from dataclasses import replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from ...records import dataclass
from .data import DataFolder, places
from .matching import Tolerance, Tolerances

_RANDOM = "its expected values are draws of a generator that ONNX does not specify"
BROKEN = {"bernoulli*": _RANDOM, "training_dropout": _RANDOM, "training_dropout_mask": _RANDOM,
          "training_dropout_default*": _RANDOM}
"""Tests of ONNX's own suite that no implementation has to pass, and why; they run where `-n` names them."""
OVERRIDES = Path("testdata/onnx_backend_test_series_overrides.jsonc")
OVERRIDDEN = Tolerance(absolute=1e-5, relative=1e-3)
"""The default where there is such a file that does not say."""
_SUFFIXES = (".onnx", ".ort")
_TEXTS = r'("(?:\\.|[^"\\])*")'


@dataclass(frozen=True)
class Case:
    """A model and its data sets. `name`: that of its folder without `test_` in front, followed by the file's
    where a folder holds several models. `skip`: why it is not run, "" where it is."""

    name: str
    model: Path
    places: tuple[DataFolder, ...] = ()
    skip: str = ""


def find_cases(roots: Sequence[Path], only: str = "") -> list[Case]:
    """Every test below `roots`; `only` the tests of one name. Raises OSError for a folder that is not there
    or cannot be read, ValueError where no test has that name."""
    found = [case for root in roots for case in _cases(root)]
    if not only:
        return [replace(case, skip=case.skip or _broken(case.name)) for case in found]
    chosen = [case for case in found if only in (case.name, f"test_{case.name}", case.model.parent.name,
                                                 case.name.partition("/")[0], case.name.partition("/")[2])]
    if not chosen:
        raise ValueError(f"-n {only}: no test has this name among the {len(found)} in "
                         f"{', '.join(map(str, roots))}")
    return chosen


def _cases(root: Path) -> list[Case]:
    def refuse(error: OSError) -> None:
        raise error

    if root.is_file():
        return [_case(root, alone=True)]
    if not root.is_dir():
        raise FileNotFoundError(f"{root}: no such folder; it is searched for models with test data")
    cases = []
    for folder, below, files in os.walk(root, onerror=refuse):
        below[:] = sorted(name for name in below if not name.startswith("."))
        models = sorted(f for f in files if f.endswith(_SUFFIXES) and not f.startswith("."))
        cases += [_case(Path(folder, name), len(models) == 1) for name in models]
    return cases


def _case(model: Path, alone: bool) -> Case:
    name = Path(os.path.abspath(model)).parent.name.removeprefix("test_")
    name = name if alone else f"{name}/{model.stem}"
    if model.suffix == ".ort":
        return Case(name, model, skip="the .ort format is onnxruntime's own; convert the .onnx model instead")
    found = tuple(places(model))
    none = (f"there is no test data in {model.parent}: no folder test_data_set_0 with input_0.pb and "
            "output_0.pb")
    return Case(name, model, found, "" if found else none)


def _broken(name: str) -> str:
    return next((why for pattern, why in BROKEN.items() if fnmatch(name, pattern)), "")


def overrides(folder: Path) -> Tolerances | None:
    """The tolerances of onnxruntime's overrides file, where `folder` has it. Raises ValueError for one that
    cannot be read."""
    path = folder / OVERRIDES
    if not path.is_file():
        return None
    text = re.sub(_TEXTS + r"|//[^\n]*|/\*.*?\*/", r"\1", path.read_text(encoding="utf-8"), flags=re.DOTALL)
    text = re.sub(_TEXTS + r"|,(?=\s*[}\]])", r"\1", text)
    try:
        data: dict[str, Any] = json.loads(text)
        default = Tolerance(float(data.get("atol_default", OVERRIDDEN.absolute)),
                            float(data.get("rtol_default", OVERRIDDEN.relative)))
        own = [{str(k): float(v) for k, v in data.get(key, {}).items()}
               for key in ("atol_overrides", "rtol_overrides")]
    except (ValueError, TypeError, AttributeError) as error:
        raise ValueError(f"{path}: no table of tolerances ({error})") from None
    return Tolerances(default, *own)


def configured(case: Case, given: Tolerance) -> Tolerance:
    """`given`, with what the model's `config.txt` says. Raises ValueError for a value that is no number."""
    path = case.model.parent / "config.txt"
    if not path.is_file():
        return given
    found: dict[str, str] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        key, _, value = line.partition(":")
        found[key.strip()] = value.strip()
    try:
        return Tolerance(float(found.get("per_sample_tolerance", given.absolute)),
                         float(found.get("relative_per_sample_tolerance", given.relative)),
                         found.get("post_processing", str(given.clamp)).lower() == "true")
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
