"""A model cut into stages, each a model of its own, of about equal cost.

In: a model and example feeds. Out: stages in order, with what crosses between them and why the cuts are where
they are. The invariant: a stage reads the model's inputs and what earlier stages make, and all stages
together make the model's outputs.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..api.enums import GraphOptimizationLevel
from ..api.options import SessionOptions
from ..api.session import InferenceSession
from ..errors import InvalidArgument
from ..records import dataclass
from ..tools.compare.extract import Model

FOLDER = "session.model_external_initializers_file_folder_path"


@dataclass(frozen=True)
class Stage:
    """One stage: its `model` as bytes, the values it reads and makes by name, how many nodes it has, its
    `share` of the cost, and the `bytes` that reach it from earlier stages for the example."""

    model: bytes
    reads: tuple[str, ...]
    makes: tuple[str, ...]
    nodes: int
    share: float
    bytes: int
    first: str

    def __str__(self) -> str:
        came = f", {self.bytes} bytes of {', '.join(self.reads)} reach it" if self.bytes else ""
        return f"{self.nodes} nodes from {self.first} on, {100 * self.share:.0f} % of the cost{came}"


def entries_of(source: str | bytes) -> dict[str, str]:
    """What a session of a stage has to be told to find tensors that lie beside the model."""
    return {} if isinstance(source, bytes) else {FOLDER: os.path.dirname(os.path.abspath(source))}


def costs(model: Model, source: str | bytes, feeds: Mapping[str, Any]) -> list[float]:
    """Seconds that each node takes for `feeds` on one thread, the fastest of a few runs."""
    options = SessionOptions()
    options.graph_optimization_level = GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    session = InferenceSession(source, options)
    session.run(None, dict(feeds))
    with session.profile(compare=False) as profile:
        for _ in range(3):
            session.run(None, dict(feeds))
    taken: dict[str, float] = {}
    for each in profile.nodes:
        for name in each.fused or (each.node,):
            taken[name] = taken.get(name, 0.0) + each.seconds / max(len(each.fused), 1)
    return [taken.get(label, 0.0) for label in model.labels]


def balanced(weights: Sequence[float], count: int) -> list[int]:
    """Where each of `count` stages but the first begins, so that the dearest costs least; every stage has a
    node."""
    ends = np.concatenate([[0.0], np.cumsum(weights)])
    total = len(weights)
    best = ends[1:].copy()
    cuts = [[0] * total]
    for stage in range(1, count):
        row, now = [0] * total, best.copy()
        for last in range(stage, total):
            found = min(range(stage, last + 1), key=lambda at: max(best[at - 1], ends[last + 1] - ends[at]))
            row[last], now[last] = found, max(best[found - 1], ends[last + 1] - ends[found])
        cuts.append(row)
        best = now
    places, last = list[int](), total - 1
    for row in reversed(cuts[1:]):
        places.append(row[last])
        last = row[last] - 1
    return places[::-1]


def stages_of(source: str | bytes, feeds: Mapping[str, Any], count: int) -> list[Stage]:
    """The model in `count` stages. Raises InvalidArgument where it has fewer nodes that compute."""
    model = Model(source)
    model.derived.clear()
    order = [i for i in range(len(model.nodes)) if i not in model.static]
    if not 1 <= count <= len(order):
        raise InvalidArgument(
            f"a model of {len(order)} nodes cannot be cut into {count} stages", cure="ask for fewer stages"
        )
    seconds = costs(model, source, feeds)
    weights = [seconds[i] + 1e-9 for i in order]
    starts = [0, *balanced(weights, count), len(order)]
    groups = [order[a:b] for a, b in zip(starts, starts[1:], strict=False)]
    crossing = {name for group in groups for name in model.border(group)} - set(model.inputs)
    crossing -= set(model.overridable)
    values = _values(model, source, feeds, sorted(crossing))
    made = []
    for group, a, b in zip(groups, starts, starts[1:], strict=False):
        later = {name for other in groups for name in model.border(other) if other[0] > group[-1]}
        outputs = [n for n in model.frontier(group) if n in later or n in model.outputs]
        reads = [n for n in model.border(group) if n not in model.overridable]
        proto = model.part(group, outputs, {n: values[n] for n in reads}, values)
        for info in (*proto.graph.input, *proto.graph.output):
            if info.type.HasField("tensor_type") and info.name not in model.inputs:
                for dim in info.type.tensor_type.shape.dim:
                    dim.Clear()
        made.append(
            Stage(
                proto.SerializeToString(),
                tuple(reads),
                tuple(outputs),
                len(group),
                sum(weights[a:b]) / sum(weights),
                sum(getattr(values[n], "nbytes", 0) for n in reads if n in crossing),
                model.labels[group[0]],
            )
        )
    return made


def _values(
    model: Model, source: str | bytes, feeds: Mapping[str, Any], names: Sequence[str]
) -> dict[str, Any]:
    """What the named values and the outputs are for `feeds`, by which their types are known."""
    import onnx

    proto = onnx.ModelProto()
    proto.CopyFrom(model.proto)
    known = {output.name for output in proto.graph.output}
    proto.graph.output.extend(onnx.ValueInfoProto(name=n) for n in names if n not in known)
    options = SessionOptions()
    for key, value in entries_of(source).items():
        options.add_session_config_entry(key, value)
    wanted = [*model.outputs, *(n for n in names if n not in known)]
    made = InferenceSession(proto.SerializeToString(), options).run(wanted, dict(feeds))
    return {**feeds, **dict(zip(wanted, made, strict=True))}
