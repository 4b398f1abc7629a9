"""The GPU that a test runs on: a real one under `-m gpu`, else one that AMD's machine code is emulated on.

    python -m pytest -m gpu -n 8 tests/gpu/on_device        # where there is a GPU
    python -m pytest -m slow tests/gpu/on_device            # the same tests, anywhere
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

import orthrus as ort
from orthrus.providers import known
from orthrus.providers.gpu import device as devices
from orthrus.providers.gpu.device import GpuDevice

REAL = ("CUDAExecutionProvider", "ROCMExecutionProvider")


@dataclass(frozen=True)
class Gpu:
    """`provider` by name, `device` as OrtValues call it; `real`: whether it is one; `large`: a size for
    arrays that fill it, or that an emulator can stand."""

    provider: str
    device: str
    real: bool
    large: int

    @property
    def graphs(self) -> str:
        """The option that records runs."""
        return "enable_cuda_graph" if self.provider.startswith("CUDA") else "enable_hip_graph"

    @property
    def exact(self) -> dict[str, Any]:
        """Options with which products of float32 are float32's."""
        return {"use_tf32": 0} if self.provider.startswith("CUDA") else {}

    def session(self, model: Any, alone: bool = True, **options: Any) -> ort.InferenceSession:
        """A session on the GPU, with nothing left to the CPU where `alone`."""
        data = model if isinstance(model, bytes | str) else model.SerializeToString()
        made = ort.InferenceSession(data, providers=[(self.provider, {**self.exact, **options}),
                                                     "CPUExecutionProvider"])
        assert made.get_providers()[0] == self.provider, made.explain().absent
        left = [e for e in made.explain().nodes
                if e.provider != self.provider and not e.op_type.startswith("Memcpy")]
        assert not (alone and left), left
        return made

    def value(self, array: Any) -> ort.OrtValue:
        """An array on the device."""
        return ort.OrtValue.ortvalue_from_numpy(array, self.device, 0)

    @property
    def own(self) -> GpuDevice:
        """The device as the runtime knows it."""
        kind: Any = known((self.provider,))[self.provider]
        found: GpuDevice = kind.devices()[0]
        return found


class Found:
    """In the place of a `Finding`: this driver."""

    def __init__(self, driver: Any) -> None:
        self.driver = self.made = lambda: driver


def _found() -> Gpu | None:
    """The GPU that is here."""
    for name in REAL:
        if name in ort.get_available_providers():
            return Gpu(name, "cuda" if name.startswith("CUDA") else "gpu", True, 1 << 22)
    return None


@pytest.fixture(scope="session", params=[
    pytest.param("real", marks=[pytest.mark.gpu, pytest.mark.needs("GPU")]),
    pytest.param("emulated", marks=[pytest.mark.slow, pytest.mark.needs("AMD tables", "Triton")])])
def gpu(request: pytest.FixtureRequest) -> Iterator[Gpu]:
    if request.param == "real":
        found = _found()
        assert found is not None
        yield found
        return
    from gfx.driver import EmulatedDriver
    from orthrus.providers.rocm import ROCMExecutionProvider

    driver = EmulatedDriver("gfx942", devices=1, most=1 << 28)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ROCMExecutionProvider, "finding", Found(driver))
        patch.setattr(devices, "_shared", {})
        yield Gpu("ROCMExecutionProvider", "gpu", False, 1 << 10)
