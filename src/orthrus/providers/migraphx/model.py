"""A part of known shapes as what MIGraphX's parser is given: ONNX bytes, and a file of weights beside them.

In: a part. Out: `Written`, the same for the same part each time. Whatever follows from shapes is a constant
by then; weights are written one after the other and never held together. The invariant: inputs are called
i0, i1 …, outputs o0, o1 …, in the part's order."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

from ...errors import Fail
from ...ir import ElementType, Graph, No
from ...kernels import Part
from ...load.write import External, to_model_proto
from ...optimize import PASSES, run_passes
from ...records import dataclass
from ..foreign.fixed import fixed
from .calibration import Ranges, of_constants, quantize

WEIGHTS = "weights.bin"
_ASIDE = 1024
"""Bytes from which on a constant is written beside the model; the parser needs shapes inside of it."""
_FOLDS = frozenset({"drop_dead_nodes", "fold_shapes", "fold_constants", "drop_unused_initializers"})


@dataclass(frozen=True)
class Written:
    """A model's bytes, which inputs of the part it still reads, a digest of it and of its weights."""

    model: bytes
    reads: tuple[int, ...]
    digest: str


class _Aside(External):
    """Writes weights as they come, with a digest of them."""

    def __init__(self, file: BinaryIO) -> None:
        super().__init__(WEIGHTS, _ASIDE, [])
        self.file, self.seen = file, hashlib.blake2b(digest_size=20)

    def take(self, tensor: Any, size: int, make: Callable[[], bytes]) -> bool:
        if not super().take(tensor, size, make):
            return False
        ((offset, _),), raw = self.pieces, make()
        self.pieces.clear()
        self.file.seek(offset)
        self.file.write(raw)
        self.seen.update(raw)
        return True


def written(part: Part, folder: Path, ranges: Ranges | None, widen: bool = True) -> Written | No:
    """The model of `part`; its weights go to a file in `folder`. `ranges`: what is quantized to int8, where
    that is asked for; `widen`: bfloat16 comes in as float32. `No` where ONNX cannot say it."""
    part = fixed(part, [v.shape for v in part.inputs])
    graph = _folded(part)
    try:
        with open(folder / WEIGHTS, "wb") as file:
            aside = _Aside(file)
            model = to_model_proto(graph, aside)
        for text in ("producer_name", "producer_version", "doc_string", "domain"):
            model.ClearField(text)
        del model.metadata_props[:]
        if model.functions:
            return No("nodes of operator versions that no one opset has together")
        if ranges is not None:
            quantize(model, {**ranges, **of_constants(graph)})
        _computed(model.graph)
        reads = _named(model, part, widen)
        raw = model.SerializeToString(deterministic=True)
    except (Fail, ValueError) as error:
        return No(f"the part cannot be written as ONNX: {error}")
    aside.seen.update(raw)
    return Written(raw, reads, aside.seen.hexdigest())


def _folded(part: Part) -> Graph:
    """A part's nodes, which nobody else has, as a graph with constants for what follows from shapes."""
    graph = Graph("part", info=part.info)
    graph.inputs, graph.nodes = list(part.inputs), list(part.nodes)
    for node in graph.nodes:
        for value in node.inputs:
            if value is not None and value.const is not None and value.node is None:
                key = value.name if graph.initializers.get(value.name,
                                                           value) is value else graph.fresh(value.name)
                graph.initializers[key] = value
    graph.outputs = list(part.outputs)
    run_passes(graph, [each for each in PASSES if each.name in _FOLDS])
    return graph


def _computed(graph: Any) -> None:
    """Let a node make each output: one that follows from shapes is a constant by now."""
    import onnx

    constants = {each.name for each in graph.initializer}
    for info in graph.output:
        if info.name in constants:
            graph.node.append(onnx.helper.make_node("Identity", [info.name], [f"{info.name}.copy"]))
            info.name = f"{info.name}.copy"


def _named(model: Any, part: Part, widen: bool) -> tuple[int, ...]:
    """Give inputs and outputs their names; with `widen`, bfloat16 comes in as float32. The places of inputs
    that are read."""
    graph = model.graph
    read = {name for node in graph.node for name in node.input} | {o.name for o in graph.output}
    places = [i for i, info in enumerate(graph.input) if info.name in read]
    kept = [graph.input[i] for i in places]
    new = {info.name: f"i{i}" for i, info in zip(places, kept, strict=True)}
    new.update((info.name, f"o{i}") for i, info in enumerate(graph.output))
    clash = {n: f"v.{n}" for node in graph.node for n in (*node.input, *node.output)
             if n not in new and n in set(new.values())}
    new.update(clash)
    for each in graph.initializer:
        each.name = new.get(each.name, each.name)
    for node in graph.node:
        node.input[:] = [new.get(n, n) for n in node.input]
        node.output[:] = [new.get(n, n) for n in node.output]
    del graph.value_info[:]
    halves = []
    for i, info in zip(places, kept, strict=True):
        info.name = f"i{i}"
        if widen and part.inputs[i].elem is ElementType.BFLOAT16:
            info.type.tensor_type.elem_type = int(ElementType.FLOAT)
            halves.append(info.name)
    for i, info in enumerate(graph.output):
        info.name = f"o{i}"
    copies = [type(i).FromString(i.SerializeToString()) for i in kept]
    del graph.input[:]
    graph.input.extend(copies)
    _widened(graph, halves)
    return tuple(places)


def _widened(graph: Any, names: list[str]) -> None:
    """Let what read these bfloat16 inputs read a Cast of the float32 that comes in instead."""
    import onnx

    nodes = list(graph.node)
    for node in nodes:
        node.input[:] = [f"{n}.bfloat16" if n in names else n for n in node.input]
    casts = [onnx.helper.make_node("Cast", [n], [f"{n}.bfloat16"],
                                   to=int(ElementType.BFLOAT16)) for n in names]
    del graph.node[:]
    graph.node.extend([*casts, *nodes])
