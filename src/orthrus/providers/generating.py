"""Providers whose kernels this package generates: parts go through `lowering`, and run where a device says.

In: parts. Out: kernels, and parts compiled ahead as packages. A subclass says for which machine, on which
device, and which nodes. Neither `lowering` nor LLVM is imported before there is a part.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..ir import Graph, No, Node
from .base import INTERPRETED, Capability, ExecutionProvider, GraphView, interpreted

if TYPE_CHECKING:
    from ..codegen.machines.machine import Machine
    from ..codegen.object import library
    from ..kernels import Kernel, Part, Stored
    from ..lowering.device import PartDevice
    from ..lowering.native import Native
    from ..lowering.package.loaded import Package


class GeneratingProvider(ExecutionProvider):
    """A provider of generated kernels, one for each fused part."""

    def _machine(self) -> Machine | No:
        """The machine to generate kernels for, or why none are."""
        raise NotImplementedError

    def opening(self, package: Package) -> Machine | No:
        """The machine that runs what is in a package, its code for which is chosen, or why none does."""
        raise NotImplementedError

    def _device(self, machine: Machine) -> PartDevice:
        """Where parts for a machine run."""
        from ..lowering.device import PartDevice

        return PartDevice(machine)

    def _storing(self, machine: Machine) -> PartDevice:
        """The device of parts that are stored."""
        return self._device(machine)

    def _beside(self, machine: Machine) -> list[tuple[Machine, library.Unit]]:
        """The code beside a part's own that runs it."""
        from ..lowering.package.loaded import beside

        return [(machine, unit) for unit in beside()]

    def _label(self, machine: Machine) -> str:
        """What people call a machine."""
        return machine.label

    def _threads(self) -> int:
        """Threads of a part at most, 0 for as many as its device has."""
        return self.threads

    def _matrix_unit(self, machine: Machine) -> bool | None:
        """Whether products of float32 may use a matrix unit; None where that is to be tried."""
        return False

    def _native(self, part: Part, device: PartDevice) -> Native:
        """What runs a part, nothing of it lowered yet."""
        from ..kernels import reference
        from ..lowering.native import Native

        return Native(part, device, lambda node: reference(node).run, self._threads(),
                      self._matrix_unit(device.machine), self.strict)

    def _prepared(self, part: Part, device: PartDevice) -> Native:
        """What runs a part, lowered as far as its inputs are known."""
        native = self._native(part, device)
        native.prepare()
        return native

    def entire(self, graph: Graph, device: PartDevice) -> Native | No:
        """What runs all of a graph, whose outputs nodes make, for inputs of known sizes: what depends
        on those is found when a plan is made. Why nothing does, where no sizes help."""
        from ..kernels import Part
        from ..lowering import claims

        by_name = interpreted()
        found = claims.whole(graph, lambda node: by_name(node) or not isinstance(self.lookup(node), No))
        if found:
            return No("; ".join(f"{node.label}: {reason}" for node, reason in [*found.items()][:8]))
        return self._native(Part(self.name, list(graph.nodes), list(graph.inputs), list(graph.outputs),
                                 graph.name or "graph", graph.info, weakref.ref(graph)), device)

    def compile(self, part: Part) -> Sequence[Kernel | No]:
        """One kernel for the part."""
        machine = self._machine()
        if isinstance(machine, No):
            return [machine]
        from ..kernels import Kernel

        own = all(node.op is not None and node.op.own for node in part.nodes)
        return [Kernel(self._prepared(part, self._device(machine)), f"generated for {len(part.nodes)} nodes",
                       own=own)]

    def store(self, part: Part) -> Stored | No:
        """A part whose inputs have known sizes, for the machine that kernels are generated for."""
        from ..kernels import Stored
        from ..lowering.package.layout import FORMAT
        from ..lowering.package.store import pack

        machine = self._machine()
        if isinstance(machine, No):
            return machine
        packed = pack(self._prepared(part, self._storing(machine)), self._beside(machine))
        return packed if isinstance(packed, No) else Stored(
            packed, f"package {FORMAT}", self._label(machine), f"{len(part.nodes)} nodes")

    def load(self, part: Part, stored: Stored) -> Kernel | No:
        from ..lowering.package.loaded import Package

        try:
            return self.kernel_of(part, Package(stored.data), stored.notes)
        except ValueError as error:
            return No(str(error))

    def kernel_of(self, part: Part, package: Package, notes: str = "",
                  otherwise: Callable[..., Any] | None = None) -> Kernel | No:
        """The kernel of an opened package; see `package.ahead`. Raises ValueError for a damaged one."""
        machine = self.opening(package)
        if isinstance(machine, No):
            return machine
        units = self._beside(machine)
        if not package.kept:
            package.lend(units)
        from ..kernels import Kernel

        device = self._device(machine)
        package.load(device, units)
        from ..lowering.package.ahead import kernel

        native = kernel(package, part, device, self._threads(), otherwise)
        return Kernel(native, f"compiled ahead for {self._label(package.code.machine)}, {notes}")


class CompleteProvider(GeneratingProvider):
    """One that takes every node: what no kernel is generated for runs by a registered one, or by the
    operator's definition."""

    def claim(self, node: Node) -> No | None:
        """Everything that has a meaning."""
        found = self.lookup(node)
        if not isinstance(found, No) or node.op is not None:
            return None
        return No(f"no definition, no function body and no kernel for {node.kind} at version {node.version}")

    def get_capability(self, view: GraphView) -> list[Capability]:
        """Everything; what kernels can be generated for, joined into parts."""
        single = super().get_capability(view)
        nodes = [node for capability in single for node in capability.nodes]
        if not nodes:
            return []
        machine = self._machine()
        if isinstance(machine, No):
            for node in nodes:
                view.remark(node, machine.reason, node.has_bodies)
            return single
        from ..codegen.object import override
        from ..lowering import claims

        override.check_folder(machine)

        by_name = interpreted()
        joined, left_out = claims.groups(view.graph, [n for n in nodes if not by_name(n)],
                                         lambda n: not isinstance(self.lookup(n), No))
        left_out.update((n, INTERPRETED) for n in nodes if by_name(n))
        for node, reason in left_out.items():
            view.remark(node, reason, reason in claims.HARMLESS)
        inside = {node for group in joined for node in group}
        return [*(Capability(group, "CPU") for group in joined),
                *(c for c in single if c.nodes[0] not in inside)]

    def compile(self, part: Part) -> Sequence[Kernel | No]:
        """One kernel for a fused part. Else per node a registered kernel where one matches and does not
        decline, or the definition's reference."""
        if part.fused:
            return super().compile(part)
        from ..kernels import OpKernelInfo, create_kernel, reference

        kernels: list[Kernel | No] = []
        for node in part.nodes:
            entry = self.lookup(node)
            made: Kernel | No = (
                entry if isinstance(entry, No) else create_kernel(entry, OpKernelInfo(node, self)))
            kernels.append(self._defined(node, reference(node)) if isinstance(made, No) else made)
        return kernels

    def _defined(self, node: Node, kernel: Kernel) -> Kernel:
        """The kernel of a node that is its definition, or code for what a run brings most often."""
        if node.kind != "com.microsoft::GroupQueryAttention" or interpreted()(node):
            return kernel
        machine = self._machine()
        if isinstance(machine, No):
            return kernel
        from ..lowering.grouped import grouped

        made = grouped(node, lambda part: self._native(part, self._device(machine)), kernel.run)
        return kernel if made is None else replace(kernel, run=made, name=f"generated {node.op_type}")
