"""Kernel registration and lookup: versions, types, conflicts, reasons."""

from typing import Any

import numpy as np
import pytest
from graphs import chain

import orthrus as ort
from orthrus.errors import Fail
from orthrus.ir import ElementType, No, Node, TensorType, Value
from orthrus.kernels import (
    KernelDef,
    KernelRegistry,
    KernelRegistryManager,
    OpKernel,
    OpKernelContext,
    OpKernelInfo,
    create_kernel,
)
from orthrus.ops import find
from orthrus.providers import CPUExecutionProvider
from orthrus.providers.base import schema_of

FLOAT, DOUBLE = ("float",), ("double",)


def node(version: int, elem: ElementType = ElementType.FLOAT, op: str = "Relu") -> Node:
    x = Value("x", TensorType(elem, (2,)))
    n = Node(op, "", version, find("", op, version), [x], {}, "r")
    n.outputs = [Value("y", TensorType(elem, (2,)), n)]
    return n


def found(registry: KernelRegistry, n: Node) -> Any:
    return registry.lookup("P", n, schema_of(n))


def made(registry: KernelRegistry, n: Node) -> Any:
    return create_kernel(found(registry, n), OpKernelInfo(n, CPUExecutionProvider()))


def registry_with(*where: dict[str, Any]) -> KernelRegistry:
    registry = KernelRegistry()
    for i, options in enumerate(where):
        @registry.kernel("Relu", provider="P", **options)
        def create(info: OpKernelInfo, i: int = i) -> Any:
            return lambda x: np.maximum(x, 0)
    return registry


def test_open_end_serves_what_means_the_same() -> None:
    registry = registry_with({"since": 6})
    assert found(registry, node(13)).definition.since_version == 6
    assert "Version mismatch. node_version: 1 kernel start version: 6" in found(registry, node(1)).reason


def test_open_end_stops_where_the_meaning_changes() -> None:
    registry = KernelRegistry()
    registry.kernel("Softmax", provider="P", since=1)(lambda info: None)
    assert isinstance(found(registry, node(13, op="Softmax")), No)


def test_types_select_the_kernel() -> None:
    registry = registry_with({"since": 13, "types": {"T": FLOAT}}, {"since": 13, "types": {"T": DOUBLE}})
    taken = found(registry, node(14, ElementType.DOUBLE))
    assert taken.definition.type_constraints["T"] == {"tensor(double)"}
    refusal = found(registry, node(14, ElementType.FLOAT16))
    assert refusal.reason.count("type tensor(float16) of X is not among") == 2


@pytest.mark.parametrize("second", [
    {"since": 13}, {"since": 1, "until": 13}, {"since": 14, "types": {"T": FLOAT}}])
def test_conflicts_are_refused(second: dict[str, Any]) -> None:
    text = r"Failed to add kernel for Relu ai.onnx P: Conflicting with a registered kernel"
    with pytest.raises(Fail, match=text):
        registry_with({"since": 13}, second)


def test_disjoint_ranges_and_types_do_not_conflict() -> None:
    assert len(registry_with({"since": 1, "until": 12}, {"since": 13, "types": {"T": FLOAT}},
                             {"since": 13, "types": {"T": DOUBLE}})) == 3


def test_custom_registries_come_first() -> None:
    own, general = registry_with({"since": 6}), registry_with({"since": 6})
    manager = KernelRegistryManager([own])
    manager.register("P", general)
    n = node(13)
    assert manager.lookup("P", n, schema_of(n)) is next(iter(own))
    refusal = KernelRegistryManager().lookup("P", n, None)
    assert isinstance(refusal, No) and "Kernel not found" in refusal.reason


def test_a_kernel_may_be_a_class_or_decline() -> None:
    registry = KernelRegistry()

    @registry.kernel("Relu", provider="P", since=13)
    class Clamp(OpKernel):
        def compute(self, context: OpKernelContext) -> None:
            x = context.input(0)
            np.maximum(x, 0, out=context.output(0, x.shape, x.dtype))

    np.testing.assert_array_equal(made(registry, node(13)).run(np.array([-1, 2], np.float32)), [0, 2])
    refusing = KernelRegistry()
    refusing.kernel("Relu", provider="P")(lambda info: No("not today"))
    assert made(refusing, node(13)).reason == "not today"


def test_definition_key() -> None:
    assert KernelDef("Add", "", 7, "CPUExecutionProvider").key == "Add ai.onnx CPUExecutionProvider"


def test_a_session_brings_kernels_of_its_own() -> None:
    registry = ort.KernelRegistry()

    @registry.kernel("Relu", provider="CPUExecutionProvider", since=6)
    def relu_tripled(info: OpKernelInfo) -> Any:
        return lambda x: np.maximum(x, 0) * 3

    x = np.array([[1, -1, 2], [0, 0, 1]], np.float32)
    ours = ort.InferenceSession(chain(1).SerializeToString(), kernels=[registry])
    plain = ort.InferenceSession(chain(1).SerializeToString())
    np.testing.assert_array_equal(ours.run(None, {"v0": x})[0], np.maximum(x, 0) * 3)
    np.testing.assert_array_equal(plain.run(None, {"v0": x})[0], np.maximum(x, 0))
    assert ours.explain()["Relu_0"].kernel == "relu_tripled"
