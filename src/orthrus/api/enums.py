"""The enumerations of the public API, with onnxruntime's names and numbers.

A member prints as `<ExecutionMode.ORT_PARALLEL: 1>`, is made from its number, equals it and converts to it,
and is no `int`: a setter that wants an enumeration refuses a bare number.
"""

from __future__ import annotations

import enum
import operator
from typing import Any

_NAME, _VALUE = property(lambda member: member._name_), property(lambda member: member._value_)


class _Described(enum.EnumMeta):
    """A class of members also says what `name` and `value` are, as onnxruntime's do: properties."""

    @property
    def name(cls) -> property:
        return _NAME

    @property
    def value(cls) -> property:
        return _VALUE


class Enumeration(enum.Enum, metaclass=_Described):
    """The base: equality and conversion by number. Raises ValueError for an unknown number, TypeError for no
    number."""

    def __int__(self) -> int:
        return int(self.value)

    __index__ = __int__

    def __eq__(self, other: object) -> bool:
        if isinstance(other, type(self)):
            return bool(self.value == other.value)
        return isinstance(other, int) and self.value == other

    def __hash__(self) -> int:
        return hash(self.value)

    @classmethod
    def _missing_(cls, value: object) -> Any:
        try:
            number = operator.index(value)  # type: ignore[arg-type]
        except TypeError:
            raise TypeError("__init__(): incompatible constructor arguments. The following argument types "
                            f"are supported:\n    1. {cls.__name__}(value: typing.SupportsInt | "
                            f"typing.SupportsIndex)\n\nInvoked with: {value!r}") from None
        for member in cls:
            if member.value == number:
                return member
        known = ", ".join(f"{m.name}={m.value}" for m in cls)
        raise ValueError(f"{value!r} is no {cls.__name__}; there are {known}")


class Flags(Enumeration):
    """An enumeration whose members combine, as plain ints."""

    def __or__(self, other: Any) -> int:
        return int(self) | int(other)

    __ror__ = __or__

    def __and__(self, other: Any) -> int:
        return int(self) & int(other)

    __rand__ = __and__

    def __xor__(self, other: Any) -> int:
        return int(self) ^ int(other)

    __rxor__ = __xor__

    def __invert__(self) -> int:
        return ~int(self)


class ExecutionMode(Enumeration):
    """Whether nodes run one after the other or, where they do not depend on each other, at the same time."""

    ORT_SEQUENTIAL = 0
    ORT_PARALLEL = 1


class ExecutionOrder(Enumeration):
    """The order nodes are put in; any of them is a topological order."""

    DEFAULT = 0
    PRIORITY_BASED = 1
    MEMORY_EFFICIENT = 2


class GraphOptimizationLevel(Enumeration):
    """How far a graph is optimized; each level includes those before it."""

    ORT_DISABLE_ALL = 0
    ORT_ENABLE_BASIC = 1
    ORT_ENABLE_EXTENDED = 2
    ORT_ENABLE_LAYOUT = 3
    ORT_ENABLE_ALL = 99


class OrtAllocatorType(Enumeration):
    """How memory is handed out."""

    INVALID = -1
    ORT_DEVICE_ALLOCATOR = 0
    ORT_ARENA_ALLOCATOR = 1


class OrtMemType(Enumeration):
    """What memory is for, seen from its provider."""

    CPU_INPUT = -2
    CPU_OUTPUT = -1
    CPU = -1
    DEFAULT = 0


class OrtDeviceMemoryType(Enumeration):
    """Whether the host can reach a device's memory."""

    DEFAULT = 0
    HOST_ACCESSIBLE = 5


class OrtMemoryInfoDeviceType(Enumeration):
    """The kind of device memory belongs to."""

    CPU = 0
    GPU = 1
    NPU = 3
    FPGA = 2


class OrtHardwareDeviceType(Enumeration):
    """The kind of a hardware device."""

    CPU = 0
    GPU = 1
    NPU = 2


class OrtSparseFormat(Enumeration):
    """How a sparse tensor names the places of its values."""

    ORT_SPARSE_UNDEFINED = 0
    ORT_SPARSE_COO = 1
    ORT_SPARSE_CSRC = 2
    ORT_SPARSE_BLOCK_SPARSE = 4


class OrtExecutionProviderDevicePolicy(Enumeration):
    """By what preference providers are chosen for a session."""

    DEFAULT = 0
    PREFER_CPU = 1
    PREFER_NPU = 2
    PREFER_GPU = 3
    MAX_PERFORMANCE = 4
    MAX_EFFICIENCY = 5
    MIN_OVERALL_POWER = 6


class OrtCompileApiFlags(Flags):
    """What `ModelCompiler` treats as an error."""

    NONE = 0
    ERROR_IF_NO_NODES_COMPILED = 1
    ERROR_IF_OUTPUT_FILE_EXISTS = 2


class ArenaExtendStrategy(Enumeration):
    """How an arena grows."""

    kNextPowerOfTwo = 0
    kSameAsRequested = 1


class OrtCompiledModelCompatibility(Enumeration):
    """Whether a compiled model fits a provider."""

    EP_NOT_APPLICABLE = 0
    EP_SUPPORTED_OPTIMAL = 1
    EP_SUPPORTED_PREFER_RECOMPILATION = 2
    EP_UNSUPPORTED = 3


class OrtDeviceEpIncompatibilityReason(Flags):
    """Why a provider cannot use a device; reasons combine."""

    NONE = 0
    DRIVER_INCOMPATIBLE = 1
    DEVICE_INCOMPATIBLE = 2
    MISSING_DEPENDENCY = 4
    UNKNOWN = -2147483648


class OrtDeviceVendorId(enum.IntEnum):
    """PCI vendor numbers."""

    NONE = 0
    AMD = 0x1002
    NVIDIA = 0x10DE
    ARM = 0x13B5
    MICROSOFT = 0x1414
    HUAWEI = 0x19E5
    QUALCOMM = 0x5143
    INTEL = 0x8086
