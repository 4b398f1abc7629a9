"""A model with its compiled parts inside: onnxruntime's context cache.

In: a placed graph and its providers. Out: a graph in which each part that a provider could store is one
EPContext node, and every other node is as it was; and the files that belong beside the model, by name. A
session made from it needs no compiler, but the providers that its nodes name.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from typing import Any

from ..errors import Fail, InvalidArgument
from ..ir import Graph, No
from ..kernels import KernelRegistryManager, Part, Stored
from ..load import load, save
from ..optimize import optimize
from ..partition import Placement, partition
from ..providers import ExecutionProvider
from ..providers.ep_node import context_node, is_context
from ..providers.trust import Signer
from ..records import dataclass
from .dimensions import fix_dimensions

ENABLE, PATH, EMBED = "ep.context_enable", "ep.context_file_path", "ep.context_embed_mode"
PREFIX = "ep.context_node_name_prefix"
EXTERNAL = "ep.context_model_external_initializers_file_name"
SUFFIX = "_ctx.onnx"


@dataclass
class Compiled:
    """What became of each fused part: its bytes, or why it has none."""

    stored: dict[Part, Stored] = field(default_factory=dict)
    refused: dict[Part, str] = field(default_factory=dict)


def compile_parts(placement: Placement, providers: Sequence[ExecutionProvider], signer: Signer | None
                  ) -> Compiled:
    """Ask each fused part's provider to store it, and sign what it gives; bodies of control flow stay as they
    are."""
    by_name, made = {p.name: p for p in providers}, Compiled()
    for part in placement.parts:
        if not part.fused or is_context(part.nodes[0]):
            continue
        found = by_name[part.provider].store(part)
        if isinstance(found, No):
            made.refused[part] = found.reason
        else:
            made.stored[part] = found if signer is None else signer.signed(part.provider, found)
    return made


def placed_and_compiled(source: Any, providers: Sequence[ExecutionProvider], level: int,
                        skip: frozenset[str] = frozenset(), free_dims: Mapping[str, int] | None = None,
                        signer: Signer | None = None, denotations: Mapping[str, int] | None = None
                        ) -> tuple[Placement, Compiled]:
    """Load, optimize and place a model, and store its parts; the CPU provider is the last of `providers`.
    Nothing is made ready to run. Raises what loading and placing raise."""
    graph = load(source)
    if free_dims or denotations:
        fix_dimensions(graph, dict(free_dims or {}), dict(denotations or {}))
    optimize(graph, min([level, *(p.level for p in providers)]), skip)
    registries = KernelRegistryManager(())
    for provider in providers:
        registries.register(provider.name, provider.kernels)
        provider.registries = registries
    placement = partition(graph, providers)
    return placement, compile_parts(placement, providers, signer)


def with_contexts(placement: Placement, stored: Mapping[Part, Stored], file_stem: str | None,
                  prefix: str = "") -> tuple[Graph, dict[str, bytes]]:
    """The graph with a node in the place of each part in `stored`, good for being written, and the files that
    the nodes name: none where `file_stem` is None and the nodes hold the bytes."""
    graph, files = placement.graph, dict[str, bytes]()
    made = Graph(graph.name, info=replace(graph.info, opsets=dict(graph.info.opsets)))
    made.inputs, made.outputs = list(graph.inputs), list(graph.outputs)
    for part in placement.parts:
        if part not in stored:
            made.nodes.extend(part.nodes)
            continue
        name = None
        if file_stem is not None:
            name = f"{file_stem}_{prefix}{part.name}.bin"
            files[name] = stored[part].data
        made.nodes.append(context_node(part, stored[part], name, prefix))
    read = {v for node in made.nodes for v in node.inputs}
    read.update(v for node in made.nodes for body in node.bodies() for v in body.captures())
    read.update(made.outputs)
    for key, value in graph.initializers.items():
        if value in read or value in made.inputs:
            made.initializers[key] = value
    return made, files


def write(placement: Placement, compiled: Compiled, path: str, embed: bool, prefix: str = "",
          external: str | None = None) -> list[str]:
    """Write the model with its compiled parts to `path`, and what belongs beside it; answer the files' paths.
    `external`: a bare name of a file for the tensors that are left. Raises Fail for a model over 2 GB,
    OSError."""
    stem = None if embed else os.path.splitext(os.path.basename(path))[0]
    graph, files = with_contexts(placement, compiled.stored, stem, prefix)
    folder = os.path.dirname(os.path.abspath(path))
    for name, data in files.items():
        with open(os.path.join(folder, name), "wb") as file:
            file.write(data)
    save(graph, path, external_file=external)
    return [path, *(os.path.join(folder, name) for name in files)]


def write_as_asked(placement: Placement, providers: Sequence[ExecutionProvider], entries: Mapping[str, str],
                   model_path: str | None) -> None:
    """Do what a session's `ep.context_*` entries ask for: nothing where no part was compiled. Raises
    InvalidArgument where there is no path to write to, Fail where that file is there already."""
    if entries.get(ENABLE) != "1":
        return
    path = entries.get(PATH) or (None if model_path is None else os.path.splitext(model_path)[0] + SUFFIX)
    if path is None:
        raise InvalidArgument("there is no path for the model with compiled parts", found=f"{ENABLE}=1",
                              cure=f"set {PATH}, or create the session from a path")
    if os.path.isdir(path):
        raise InvalidArgument("context_file_path should not point to a folder.", found=path)
    if os.path.exists(path):
        raise Fail(f"Failed to generate EP context model since the file '{path}' exists already. Please "
                   "remove the EP context model if you want to re-generate it.")
    compiled = compile_parts(placement, providers, Signer.asked(entries))
    if compiled.stored:
        write(placement, compiled, path, entries.get(EMBED) == "1", entries.get(PREFIX, ""),
              entries.get(EXTERNAL))
