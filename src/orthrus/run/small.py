"""A session that was kept, run the ordinary way: feeds of any kind, chosen outputs, results on devices.

In: its package. Out: an engine of one kernel.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..ir import Graph, No, Node
from ..kernels import Part
from ..plan.build import whole
from ..providers import CPUExecutionProvider
from ..providers.ep_node import DOMAIN, OP_TYPE
from .engine import Engine

if TYPE_CHECKING:
    from ..lowering.package.loaded import Package
    from .kept import Kept


class Small(Engine):
    """An engine of one kernel that came from disk; its graph has a node that stands for all others. What the
    kernel was not made for is computed `otherwise`."""

    def __init__(self, package: Package, of: Kept, source: Any, otherwise: Callable[..., Any]) -> None:
        self.package, self.of, self.otherwise = package, of, otherwise
        config = replace(of.config, names_apart=True) if package.about["apart"] else of.config
        super().__init__(source, config)
        del self.package, self.of, self.otherwise

    def _make(self, source: Any) -> None:
        start = time.perf_counter()
        about, of = self.package.about, self.of
        graph = Graph(of.name, info=of.info)
        graph.inputs = list(of.inputs)
        reads = [graph.inputs[i] for i in about["reads"]]
        node = Node(OP_TYPE, DOMAIN, 1, None, reads, {"source": CPUExecutionProvider.name}, "kept")
        graph.set_outputs(of.outputs)
        for value in graph.outputs:
            value.node = node
        writes = [graph.outputs[i] for i in about["writes"]]
        node.outputs, graph.nodes = list(writes), [node]
        self._take(graph)
        self._source = source
        self._appoint()
        provider = next(p for p in self.providers if isinstance(p, CPUExecutionProvider))
        part = Part(provider.name, [node], reads, writes, "kept", of.info)
        kernel = provider.kernel_of(part, self.package, "kept", self.otherwise)
        if isinstance(kernel, No):
            raise ValueError(kernel.reason)
        self.program = whole(graph, part, kernel)
        self.timings["load"] = time.perf_counter() - start
        self._finish()

    def retire(self) -> None:
        """Serve no further runs; those under way come to their end."""
        if self.fast is not None:
            self.fast.close()
