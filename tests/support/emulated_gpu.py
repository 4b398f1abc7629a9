"""Sessions on an emulated GPU: the provider's kernels as AMD machine code, on the CPU; or, on the target
`interpreted`, as Triton's interpreter runs their text.

    session = on_gpu(model, "gfx942")           # what has no kernel is the CPU provider's
    compare(model, {"x": x})                    # against the CPU provider
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from unittest import mock

import numpy as np
from interpreted_gpu import InterpretedProvider

import orthrus as ort
from gfx.driver import EmulatedDriver
from orthrus.kernels import DeviceArray
from orthrus.lowering.gpu.part import GpuPart
from orthrus.lowering.gpu.plan import GpuPlan, Launch
from orthrus.lowering.gpu.sized import Sized
from orthrus.lowering.step import KernelStep
from orthrus.lowering.tensor import Tensor
from orthrus.providers.gpu.device import GpuDevice
from orthrus.providers.gpu.provider import GpuProvider


class EmulatedProvider(GpuProvider):
    """A provider on a GPU of its own."""

    name = "EmulatedExecutionProvider"
    listed = False
    target_name = "gfx1100"

    def __init__(self, options: dict[str, Any] | None = None) -> None:
        super().__init__(options)
        self.driver = EmulatedDriver(self.target_name)
        self.device = GpuDevice(self.driver)

    @classmethod
    def probe(cls) -> None:
        """It is always there."""

    @classmethod
    def devices(cls) -> Sequence[GpuDevice]:
        """None that others share."""
        return []


PROVIDERS = {target: type(f"Emulated{target}", (EmulatedProvider,), {
    "name": f"Emulated{target}ExecutionProvider", "target_name": target}) for target in (
        "gfx1100", "gfx942", "gfx1201")}
PROVIDERS["interpreted"] = InterpretedProvider
for _kind in PROVIDERS.values():
    ort.register_execution_provider(_kind)


def on_gpu(model: Any, target: str = "gfx1100", alone: bool = False, options: Any = None
           ) -> ort.InferenceSession:
    """A session with the GPU's provider in front, which nobody stands in for where it fails; `alone`: every
    node has to be its own."""
    data = model if isinstance(model, bytes | str) else model.SerializeToString()
    made = ort.InferenceSession(data, options, [PROVIDERS[target].name, "CPUExecutionProvider"],
                                enable_fallback=0)
    if alone:
        left = [node for node in nodes(made) if node[1] == "CPUExecutionProvider"]
        assert not left, f"the CPU computes {left}"
    return made


def nodes(session: ort.InferenceSession) -> list[tuple[str, str]]:
    """Each node's operator and provider, without copies."""
    return [(entry.op_type, entry.provider) for entry in session.explain().nodes
            if not entry.op_type.startswith("Memcpy")]


def driver(session: ort.InferenceSession) -> EmulatedDriver:
    """The driver under a session's GPU."""
    found: EmulatedDriver = next(p.driver for p in session._sess._engine.providers if hasattr(p, "driver"))
    return found


def compare(model: Any, feeds: Mapping[str, np.ndarray], targets: Sequence[str] = ("gfx1100", "gfx942"),
            rtol: float = 1e-5, atol: float = 1e-5, alone: bool = True) -> None:
    """Run on emulated GPUs and on the CPU: results of the same types and shapes, close to each other.
    Integers and truth are equal."""
    data = model if isinstance(model, bytes) else model.SerializeToString()
    expected = ort.InferenceSession(data, providers=["CPUExecutionProvider"]).run(None, dict(feeds))
    for target in targets:
        with fenced():
            session = on_gpu(data, target, alone)
            found = session.run(None, dict(feeds))
        assert not alone or not session.explain().numpy, session.explain()
        for a, b in zip(found, expected, strict=True):
            assert (a.dtype, a.shape) == (b.dtype, b.shape), (target, a.dtype, a.shape, b.dtype, b.shape)
            if a.dtype.kind in "iub":
                np.testing.assert_array_equal(a, b, err_msg=target)
            else:
                np.testing.assert_allclose(a.astype(np.float64), b.astype(np.float64), rtol, atol,
                                           err_msg=target)


@contextlib.contextmanager
def fenced() -> Iterator[None]:
    """In the block, kernels of parts that are compiled there may touch nothing but the tensors that they are
    given, whatever else lies in the same piece of memory."""
    spans = dict[tuple[int, int], list[tuple[int, int, int]]]()

    def arguments(plan: GpuPlan, step: KernelStep, code: Any, packing: Any, address: Any) -> None:
        begin, (offsets, _) = len(packing.data), code.layout
        _arguments(plan, step, code, packing, address)
        spans[id(plan), begin] = [(begin + offset, a.byte_offset, a.buffer.size)
                                  for offset, a in zip(offsets, step.args, strict=False)
                                  if isinstance(a, Tensor)]

    def launch(part: GpuPart, it: Launch, packed: bytes) -> None:
        plan = next(p for p in part.plans.values() if p and any(each is it for each in p.launches))
        found = {}
        for at, offset, size in spans.get((id(plan), it.begin), ()):
            pointer = int.from_bytes(packed[at:at + 8], "little")
            found[pointer] = pointer - offset, size
        part.device.driver.spans = found  # type: ignore[attr-defined]
        _launch(part, it, packed)

    def ask(node: Sized, spec: Any, given: Sequence[Any], blocks: int) -> None:
        node.device.driver.spans = {  # type: ignore[attr-defined]
            a.handle: (a.handle, a.nbytes) for a in given if isinstance(a, DeviceArray)}
        _ask(node, spec, given, blocks)
    with (mock.patch.object(GpuPlan, "_arguments", arguments), mock.patch.object(GpuPart, "_launch", launch),
          mock.patch.object(Sized, "ask", ask)):
        yield


_arguments, _launch, _ask = GpuPlan._arguments, GpuPart._launch, Sized.ask
