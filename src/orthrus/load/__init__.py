"""bytes -> Graph, and back: parse, check, bound, resolve external data, inline functions, give every node
its version.

A model that leaves here is whole: every value has one maker, every node fits its schema, every size is
within limits, and nothing outside the model's folder was read. Whatever breaks a rule ends in an error of
`orthrus.errors` that names the node, what was found, what was expected and the cure.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from ..errors import ALL, Fail, unforeseen
from ..ir import Graph
from ..limits import DEFAULT, Limits, using
from ..modelfile import ModelFile
from . import build, check, expand
from .blocked import plain_layouts
from .expand_gradient import write_out_gradients
from .source import open_source
from .write import save, to_model_proto

__all__ = ["load", "save", "to_model_proto"]


def load(
    source: str | os.PathLike[str] | ModelFile | bytes | Any,
    *,
    limits: Limits = DEFAULT,
    external_root: str | None = None,
    initializers: dict[str, np.ndarray] | None = None,
    strict: bool = False,
    released_only: bool = False,
    mapped: bool = True,
) -> Graph:
    """The graph of a model given as a path, as an open file, as bytes or as an onnx ModelProto.

    `external_root`: the folder of the tensor data outside the model; by default the model file's own.
    `initializers`: arrays that replace or define initializers by name. `strict`: what else is a warning
    (`graph.info.warnings`) is an error. `released_only`: refuse opsets newer than onnx's newest release.
    `mapped`: data outside the model may be mapped rather than read into memory.

    Raises the errors of `orthrus.errors` with onnxruntime's texts, and TypeError for a source of another
    kind.
    """
    with using(limits):
        try:
            opened = open_source(source, limits, external_root)
            builder = build.Builder(opened, limits, initializers or {}, released_only, mapped)
            try:
                graph = builder.build()
                plain_layouts(graph)
                check.types(graph, builder.declared, strict)
                write_out_gradients(graph)
                expand.functions(graph, builder)
                graph.info.external = builder.external.used
            except BaseException as error:
                if builder.graph is not None:
                    builder.graph.release()
                if isinstance(error, (*ALL, MemoryError, RecursionError)) or not isinstance(error, Exception):
                    raise
                raise unforeseen(error, "load") from error
        except MemoryError:
            raise Fail("there is not enough memory to load the model",
                       cure="allow the process more, or keep large tensors in files beside the model, which "
                            "are read where they lie") from None
        except RecursionError:
            raise Fail(
                "the model nests too deeply", cure="raise sys.setrecursionlimit if this depth is meant"
            ) from None
        return graph
