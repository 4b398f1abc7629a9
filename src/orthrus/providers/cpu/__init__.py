"""The CPU provider: always last, and complete. What no kernel of its own computes,
the operator's definition does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from ...codegen.kernels import amx
from ...codegen.machines import detect
from ...codegen.machines.machine import Machine
from ...codegen.object import library, override
from ...codegen.write import notes
from ...ir import No, Node
from ...kernels import Kernel, OpKernelInfo, Part, Stored, create_kernel, reference
from ..base import INTERPRETED, Capability, ExecutionProvider, GraphView, Option, flag, interpreted

if TYPE_CHECKING:
    from ...lowering.native import Native
    from ...lowering.package import Package


def _precision(text: str) -> str:
    if text not in ("auto", "fast", "exact"):
        raise ValueError(f"{text!r} is not auto, fast or exact")
    return text


class CPUExecutionProvider(ExecutionProvider):
    """Every operator on the host's processor."""

    name = "CPUExecutionProvider"
    lenient = True
    options: ClassVar[dict[str, Option]] = {
        "use_arena": Option(flag, True, "1 plans intermediate results into one arena per shape, "
                                        "0 allocates each"),
        "float32_precision": Option(
            _precision, "exact",
            "exact: products of float32 are summed by float32 multiply-adds; fast: from bfloat16 halves "
            "where the processor has a matrix unit, with an error of about 5e-6 of the largest result, and "
            "without float32's range; auto: fast for shapes for which trials show that outputs stay within "
            "2e-5 and decisions the same"),
        "use_codegen": Option(flag, True, "1 runs generated kernels where there are some, 0 numpy alone"),
    }

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
        override.check_folder(machine)
        from ...lowering import claims

        by_name = interpreted()
        joined, left_out = claims.groups(view.graph, [n for n in nodes if not by_name(n)],
                                         lambda n: not isinstance(self.lookup(n), No))
        left_out.update((n, INTERPRETED) for n in nodes if by_name(n))
        for node, reason in left_out.items():
            view.remark(node, reason, reason in claims.HARMLESS)
        inside = {node for group in joined for node in group}
        return [*(Capability(group, "CPU") for group in joined),
                *(c for c in single if c.nodes[0] not in inside)]

    def _machine(self) -> Machine | No:
        """The machine to generate kernels for, or why none are."""
        return self._host(library.available())

    def _host(self, why_not: No | None) -> Machine | No:
        """The machine that generated code runs on, or why none does."""
        if not self.settings["use_codegen"]:
            return No("use_codegen=0: no code is generated")
        if why_not is not None:
            return No(f"no code is generated: {why_not.reason}")
        here = detect.host()
        return notes.checking(here) if here else No("no code is generated for this machine")

    def _matrix_unit(self, target: Machine) -> bool | None:
        """Whether products of float32 may use a matrix unit; None where that is to be tried. The system is
        asked in any case: products of bytes, which are exact there, may be compiled for it already."""
        usable, asked = amx.usable(target), self.settings["float32_precision"]
        return False if asked == "exact" or not usable else True if asked == "fast" else None

    def compile(self, part: Part) -> Sequence[Kernel | No]:
        """One kernel for a fused part. Else per node a registered kernel where one matches and does not
        decline, or the definition's reference."""
        if part.fused:
            return [Kernel(self._native(part), f"generated for {len(part.nodes)} nodes")]
        kernels: list[Kernel | No] = []
        for node in part.nodes:
            entry = self.lookup(node)
            made: Kernel | No = (
                entry if isinstance(entry, No) else create_kernel(entry, OpKernelInfo(node, self)))
            kernels.append(reference(node) if isinstance(made, No) else made)
        return kernels

    def _native(self, part: Part) -> Native:
        """The compiled part."""
        from ...lowering.device import Device
        from ...lowering.native import Native

        target = self._machine()
        assert not isinstance(target, No)
        native = Native(part, Device(target), lambda node: reference(node).run, self.threads,
                        self._matrix_unit(target), self.strict)
        native.prepare()
        return native

    def store(self, part: Part) -> Stored | No:
        """A part whose inputs have known sizes, for this machine."""
        from ...lowering.package import FORMAT, beside, pack

        native = self._native(part)
        packed = pack(native, [(native.machine, unit) for unit in beside()])
        return packed if isinstance(packed, No) else Stored(
            packed, f"package {FORMAT}", native.machine.label, f"{len(part.nodes)} nodes")

    def load(self, part: Part, stored: Stored) -> Kernel | No:
        from ...lowering.package import Package

        try:
            return self.kernel_of(part, Package(stored.data), stored.notes)
        except ValueError as error:
            return No(str(error))

    def kernel_of(self, part: Part, package: Package, notes: str = "",
                  otherwise: Callable[..., Any] | None = None) -> Kernel | No:
        """The kernel of an opened package; see `Package.kernel`. Raises ValueError for a damaged one."""
        from ...lowering.device import Device
        from ...lowering.package import beside

        target = self._host(library.runnable())
        if isinstance(target, No):
            return target
        if not target.runs(package.machine) or (package.machine.has("amx-tile") and not amx.permitted()):
            return No(f"it is made for {package.machine.label} and {', '.join(package.machine.features)}, "
                      f"some of which {target.label} here lacks")
        package.provide([(target, unit) for unit in beside()])
        native = package.kernel(part, Device(target), self.threads, otherwise)
        return Kernel(native, f"compiled ahead, {notes}")


@CPUExecutionProvider.kernel("NonMaxSuppression", since=10)
def generated_suppression(info: OpKernelInfo) -> Callable[..., Any] | No:
    """The definition, with generated code where it compares boxes."""
    from .nms import kernel

    assert isinstance(info.provider, CPUExecutionProvider)
    target = info.provider._machine()
    if isinstance(target, No) or interpreted()(info.node):
        return target if isinstance(target, No) else No(INTERPRETED)
    return kernel(info, target)
