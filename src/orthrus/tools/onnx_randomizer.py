"""`python -m orthrus.tools.onnx_randomizer`: other weights for a model, to share its structure alone.

In: a model file. Out: a model file in which every weight of more than 10 elements holds random numbers
between the smallest and the largest it had. Options are those of onnxruntime's tool.
"""

from __future__ import annotations

import argparse
import pathlib
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..shown import tell

SIZE_THRESHOLD = 10


def graph_iterator(model: Any, func: Callable[[Any], Any]) -> None:
    """Call `func(graph)` for the model's graph and every graph in its nodes."""
    from .onnx_model_utils import iterate_graph_per_graph_func

    iterate_graph_per_graph_func(model.graph, func)


def randomize_graph_initializer(graph: Any, rng: np.random.Generator | None = None) -> None:
    """Replace the elements of a graph's larger initializers by random ones of the same range; smaller ones
    may be shapes and stay, and so do texts. `rng`: where they come from, unpredictable if left out."""
    from onnx import numpy_helper

    rng = rng or np.random.default_rng()
    for tensor in graph.initializer:
        array = numpy_helper.to_array(tensor)
        if array.size <= SIZE_THRESHOLD or array.dtype.kind not in "iufbV":
            continue
        wide = array.astype(np.float64)
        drawn = rng.uniform(wide.min(), wide.max(), array.shape)
        name = tensor.name
        tensor.CopyFrom(numpy_helper.from_array((drawn > 0.5 if array.dtype.kind == "b" else drawn)
                                                .astype(array.dtype), name))


def main(argv: Sequence[str] | None = None) -> int:
    """The command line. Returns the exit code: 1 where the model or a file is at fault."""
    import onnx

    parser = argparse.ArgumentParser(prog="python -m orthrus.tools.onnx_randomizer",
                                     description="Replace a model's weights by random ones.")
    parser.add_argument("-m", required=True, metavar="MODEL", help="the model to read")
    parser.add_argument("-o", required=True, metavar="MODEL", help="where to write it")
    parser.add_argument("--use_external_data_format", action="store_true",
                        help="read and write weights in files beside the model; -o is in another folder then")
    parser.add_argument("--all_tensors_to_one_file", action="store_true", help="one file for all weights")
    given = parser.parse_args(argv)
    source, target = pathlib.Path(given.m), pathlib.Path(given.o)
    beside = given.use_external_data_format
    if beside and source.resolve().parent == target.resolve().parent:
        parser.error("with --use_external_data_format, -o has to be in another folder than -m")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        model = onnx.load(str(source), load_external_data=beside)
        graph_iterator(model, randomize_graph_initializer)
        onnx.save_model(model, str(target), save_as_external_data=beside,
                        all_tensors_to_one_file=given.all_tensors_to_one_file,
                        location=f"{target.name}.data" if beside and given.all_tensors_to_one_file else None)
    except (OSError, ValueError) as error:
        tell(f"{source}: {error}", err=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
