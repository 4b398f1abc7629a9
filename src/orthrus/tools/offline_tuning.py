"""`python -m orthrus.tools.offline_tuning`: tuning results in a model's metadata.

In: models and JSON files with tuning results: which kernel a provider found fastest for an operator's
parameters, and the conditions under which that holds. Out: the same, taken out of a model, put into one,
merged or printed. Subcommands and the metadata key are those of onnxruntime's tool.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import sys
from collections.abc import Sequence
from pprint import pformat
from typing import Any, TypeAlias

from ..shown import tell

TuningResults: TypeAlias = "dict[str, Any]"
_KEY = "tuning_results"


def extract(model: Any) -> list[TuningResults] | None:
    """The tuning results in a ModelProto, None where it has none."""
    found = next((p.value for p in model.metadata_props if p.key == _KEY), None)
    results: list[TuningResults] | None = None if found is None else json.loads(found)
    return results


def embed(model: Any, tuning_results: list[TuningResults], overwrite: bool = False) -> Any:
    """The ModelProto with tuning results in its metadata. Raises ValueError where it has some already and
    `overwrite` is not set."""
    found = next((p for p in model.metadata_props if p.key == _KEY), None)
    if found is not None and not overwrite:
        raise ValueError("the model has tuning results already; overwrite (--force) replaces them")
    entry = found if found is not None else model.metadata_props.add(key=_KEY)
    entry.value = json.dumps(tuning_results)
    return model


class Merger:
    """Tuning results of several files; what was known first stays."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str], tuple[TuningResults, dict[str, dict[str, int]]]] = {}

    def merge(self, tuning_results: Sequence[TuningResults]) -> None:
        """Add the results of one file. Raises KeyError where one has no ep, validators or results."""
        for given in tuning_results:
            key = given["ep"], json.dumps(given["validators"], sort_keys=True)
            _, operators = self._found.setdefault(key, (given, {}))
            for operator, kernels in given["results"].items():
                known = operators.setdefault(operator, {})
                for parameters, kernel in kernels.items():
                    known.setdefault(parameters, kernel)

    def get_merged(self) -> list[TuningResults]:
        """One entry per provider and validators, in order of first appearance."""
        return [{"ep": first["ep"], "validators": first["validators"], "results": results}
                for first, results in self._found.values()]


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m orthrus.tools.offline_tuning",
                                     description="Move tuning results between models and JSON files.")
    commands = parser.add_subparsers(dest="cmd", required=True, help="what to do")
    out = commands.add_parser("extract", help="write a model's tuning results into a JSON file")
    out.add_argument("input_onnx")
    out.add_argument("output_json")
    into = commands.add_parser("embed", help="put tuning results into a model")
    into.add_argument("--force", "-f", action="store_true", help="replace those it has")
    into.add_argument("output_onnx", help="where to write the model")
    into.add_argument("input_onnx", help="the model to read")
    into.add_argument("input_json", nargs="+", help="JSON files with tuning results")
    merged = commands.add_parser("merge", help="merge JSON files with tuning results")
    merged.add_argument("output_json")
    merged.add_argument("input_json", nargs="+")
    shown = commands.add_parser("pprint", help="print the tuning results of a JSON file or a model")
    shown.add_argument("json_or_onnx")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """The command line. Returns the exit code: 1 where a file is at fault or has no tuning results."""
    given = arguments().parse_args(argv)
    try:
        _do(given)
    except (OSError, ValueError, KeyError, TypeError) as error:
        tell(error if not isinstance(error, KeyError) else f"a tuning result has no {error}", err=True)
        return 1
    return 0


def _do(given: argparse.Namespace) -> None:
    import onnx

    if given.cmd == "extract":
        pathlib.Path(given.output_json).write_text(json.dumps(_of_model(given.input_onnx)), "utf-8")
    elif given.cmd == "pprint":
        tell(pformat(_of_any(given.json_or_onnx)))
    else:
        merger = Merger()
        for file in given.input_json:
            merger.merge(json.loads(pathlib.Path(file).read_text("utf-8")))
        if given.cmd == "merge":
            pathlib.Path(given.output_json).write_text(json.dumps(merger.get_merged()), "utf-8")
        else:
            model = embed(onnx.load_model(given.input_onnx), merger.get_merged(), given.force)
            onnx.save_model(model, given.output_onnx)


def _of_model(path: str) -> list[TuningResults]:
    import onnx
    from google.protobuf.message import DecodeError

    try:
        found = extract(onnx.load_model(path))
    except DecodeError:
        raise ValueError(f"{path} is neither a model nor a JSON file") from None
    if found is None:
        raise ValueError(f"{path} does not have tuning results embedded")
    return found


def _of_any(path: str) -> Any:
    try:
        return json.loads(pathlib.Path(path).read_text("utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError):
        return _of_model(path)


if __name__ == "__main__":
    sys.exit(main())
