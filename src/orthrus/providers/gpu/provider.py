"""Providers whose kernels are generated for GPUs: what CUDA's and ROCm's have in common.

In: a graph. Out: parts, as large as they can be, that a GPU computes. What has no kernel for GPUs is refused
with its reason, and stays with the providers behind this one. Neither `lowering` nor a compiler is imported
before there is a part.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from ...codegen.triton import targets
from ...codegen.triton.targets import Target
from ...errors import EPFail
from ...ir import No, Node
from ...kernels import Kernel, Part, reference
from ..base import INTERPRETED, Capability, ExecutionProvider, GraphView, interpreted
from .device import GpuDevice


class GpuProvider(ExecutionProvider):
    """A provider of kernels for GPUs, one for each fused part. `device` is a GpuDevice."""

    fuses: ClassVar[bool] = True
    device: GpuDevice

    @property
    def target(self) -> Target:
        """What kernels are compiled for. Raises EPFail for a GPU there are none for."""
        found = targets.named(self.device.target)
        if found is None:
            raise EPFail(f"there are no kernels for {self.device!r}", found=self.device.target,
                         expected=", ".join(targets.TARGETS))
        return found

    def _settings(self) -> dict[str, Any]:
        """What the options say that rules go by."""
        return {}

    def claim(self, node: Node) -> No | None:
        """What there is a kernel for, as far as a node by itself says."""
        from ...lowering import claims
        from ...lowering.gpu import rules as _rules  # noqa: F401
        from ...lowering.rule_sets import GPU_RULES

        if interpreted()(node):
            return No(INTERPRETED)
        return claims.refusal(node, rules=GPU_RULES)

    def get_capability(self, view: GraphView) -> list[Capability]:
        """What there are kernels for, joined into parts; computations of shapes are the host's, inside of a
        part or outside."""
        from ...lowering import claims
        from ...lowering.gpu import rules as _rules  # noqa: F401
        from ...lowering.rule_sets import GPU_RULES

        by_name = interpreted()
        registered = [n for n in view.nodes if not isinstance(self.lookup(n), No)]
        own = set(registered)
        joined, left_out = claims.groups(view.graph, [n for n in view.nodes if not by_name(n)],
                                         lambda n: n in own, rules=GPU_RULES)
        left_out.update((n, INTERPRETED) for n in view.nodes if by_name(n))
        for node, reason in left_out.items():
            if node not in own:
                view.refuse(node, No(reason))
        name = self.name.removesuffix("ExecutionProvider")
        return [*(Capability(group, name) for group in joined), *(Capability([n]) for n in registered)]

    def compile(self, part: Part) -> Sequence[Kernel | No]:
        """One kernel for a fused part; else the registered one of each node."""
        if not part.fused:
            return super().compile(part)
        from ...lowering.gpu.part import GpuPart

        made = GpuPart(part, self.device, self.target, lambda node: reference(node).run, self._settings(),
                       self.strict)
        made.prepare()
        return [Kernel(made, f"GPU kernels for {len(part.nodes)} nodes")]
