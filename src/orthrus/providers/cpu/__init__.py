"""The CPU provider: always last, and complete. What no kernel of its own computes,
the operator's definition does."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

from ...codegen.machines import detect
from ...codegen.object import library
from ...codegen.write import notes
from ...ir import No
from ..base import INTERPRETED, Option, flag, interpreted
from ..generating import CompleteProvider

if TYPE_CHECKING:
    from ...codegen.machines.machine import Machine
    from ...kernels import OpKernelInfo, Part
    from ...lowering.device import PartDevice
    from ...lowering.native import Native
    from ...lowering.package.loaded import Package


def _permitted() -> bool:
    """Whether the system lets this process use the matrix unit."""
    from ...codegen.kernels import amx

    return amx.permitted()


def _precision(text: str) -> str:
    if text not in ("auto", "fast", "exact"):
        raise ValueError(f"{text!r} is not auto, fast or exact")
    return text


def _level(text: str) -> int:
    if text not in ("0", "1", "2", "3", "4"):
        raise ValueError(f"{text!r} is no number from 0 to 4")
    return int(text)


class CPUExecutionProvider(CompleteProvider):
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
        "qdq_matmulnbits_accuracy_level": Option(
            _level, 0,
            "accuracy level of products with weights that DequantizeLinear gives by blocks, as MatMulNBits "
            "has it; 4, onnxruntime's default: rows of the first factor may be rounded to eight bits; less: "
            "they are not", of_session=True),
        "use_codegen": Option(flag, True, "1 runs generated kernels where there are some, 0 numpy alone"),
    }

    def _machine(self) -> Machine | No:
        return self._host(library.available())

    def _host(self, why_not: No | None) -> Machine | No:
        """The machine that generated code runs on, or why none does."""
        if not self.settings["use_codegen"]:
            return No("use_codegen=0: no code is generated")
        if why_not is not None:
            return No(f"no code is generated: {why_not.reason}")
        here = detect.host()
        return notes.checking(here) if here else No("no code is generated for this machine")

    def _matrix_unit(self, machine: Machine) -> bool | None:
        """As the option says. The system is asked in any case: products of bytes, which are exact there, may
        be compiled for it already."""
        from ...codegen.kernels import amx

        usable, asked = amx.usable(machine), self.settings["float32_precision"]
        return False if asked == "exact" or not usable else True if asked == "fast" else None

    def _native(self, part: Part, device: PartDevice) -> Native:
        native = super()._native(part, device)
        native.accuracy_level = self.settings["qdq_matmulnbits_accuracy_level"]
        return native

    def opening(self, package: Package) -> Machine | No:
        here = self._host(library.runnable())
        if isinstance(here, No) or package.fits(
                lambda machine: here.runs(machine) and (not machine.has("amx-tile") or _permitted())):
            return here
        made_for = " or ".join(f"{code.machine.label} and {', '.join(code.machine.features)}"
                               for code in package.codes if code.plans)
        return No(f"it is made for {made_for}, some of which {here.label} here lacks")


def _target(info: OpKernelInfo) -> Machine | No:
    """What code of a node's kernel is generated for. No where none can be, or is asked for."""
    assert isinstance(info.provider, CPUExecutionProvider)
    target = info.provider._machine()
    return No(INTERPRETED) if not isinstance(target, No) and interpreted()(info.node) else target


@CPUExecutionProvider.kernel("NonMaxSuppression", since=10)
def generated_suppression(info: OpKernelInfo) -> Callable[..., Any] | No:
    """Generated code that orders boxes and compares them."""
    from .nms import Suppression

    target = _target(info)
    return target if isinstance(target, No) else Suppression(info, target)


@CPUExecutionProvider.kernel("Unique", since=11)
@CPUExecutionProvider.kernel("Unique", domain="com.microsoft")
def generated_distinct(info: OpKernelInfo) -> Callable[..., Any] | No:
    """Generated code that finds elements by their hashes."""
    from ...kernels import reference
    from .unique import Distinct

    target = _target(info)
    return target if isinstance(target, No) else Distinct.of(info, target, reference(info.node).run)


@CPUExecutionProvider.kernel("Multinomial")
def generated_draws(info: OpKernelInfo) -> Callable[..., Any] | No:
    """Generated code that finds the classes of numpy's draws."""
    from .multinomial import Draws

    target = _target(info)
    return target if isinstance(target, No) else Draws.of(info, target)
