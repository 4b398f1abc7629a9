"""Recurrent layers on emulated GPUs, against the CPU provider: small ones in one kernel, larger ones a kernel
a step."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from emulated_gpu import compare, driver, on_gpu
from gpu_models import numpy_type, of_arrays

from orthrus.lowering.gpu.part import GpuPart

pytestmark = [pytest.mark.needs("AMD tables", "Triton"), pytest.mark.slow]
RNG = np.random.default_rng(0)
GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}


@pytest.fixture(autouse=True)
def _nothing_on_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step that kernels leave to the host, or a run that they give up, is an error."""
    def left(self: GpuPart, *args: Any, **named: Any) -> Any:
        raise AssertionError("a step of the host's")
    monkeypatch.setattr(GpuPart, "_on_host", left)
    monkeypatch.setattr(GpuPart, "interpret", left)


def layer(kind: str, hidden: int, more: str = "B", directions: int = 1, steps: int = 3, batch: int = 2,
          dtype: str = "float32", **attrs: Any) -> tuple[bytes, dict[str, np.ndarray]]:
    """A layer over 5 features; `more`: which optional inputs there are, of B L H C P: biases, lengths,
    states, peephole weights."""
    gates, layout = GATES[kind], attrs.get("layout", 0)

    def of(*shape: int) -> np.ndarray:
        return (RNG.standard_normal(shape) / 2).astype(numpy_type(dtype))
    state = (batch, directions, hidden) if layout else (directions, batch, hidden)
    optional = {"B": of(directions, 2 * gates * hidden),
                "L": np.concatenate([[0], RNG.integers(0, steps + 1, batch - 1)]).astype(np.int32),
                "H": of(*state), "C": of(*state), "P": of(directions, 3 * hidden)}
    inputs = {"X": of(batch, steps, 5) if layout else of(steps, batch, 5),
              "W": of(directions, gates * hidden, 5),
              "R": of(directions, gates * hidden, hidden),
              **{name: x if name in more else None for name, x in optional.items()
                 if kind == "LSTM" or name in "BLH"}}
    constants = tuple(name for name in "WRBP" if inputs.get(name) is not None)
    direction = attrs.pop("direction", "bidirectional" if directions == 2 else "forward")
    return of_arrays(kind, inputs, 3 if kind == "LSTM" else 2, constants, hidden_size=hidden,
                     direction=direction, **attrs)


OWN = ["Sigmoid", "Tanh", "Tanh", "HardSigmoid", "Relu", "Softsign"]
FORMS: dict[str, tuple[Any, ...]] = {
    "LSTM": ("LSTM", 7, "", {}),
    "LSTM, all inputs, both ways, clipped": ("LSTM", 7, "BLHCP", {
        "directions": 2, "steps": 5, "batch": 3, "clip": 0.5}),
    "large LSTM, backwards, batch first": ("LSTM", 70, "BLH", {
        "layout": 1, "direction": "reverse", "batch": 3}),
    "large LSTM, coupled, activations by direction": ("LSTM", 70, "BHC", {
        "directions": 2, "input_forget": 1, "activations": OWN}),
    "GRU": ("GRU", 7, "B", {}),
    "GRU, linear, both ways": ("GRU", 7, "BL", {"directions": 2, "linear_before_reset": 1}),
    "large GRU, linear": ("GRU", 70, "", {"linear_before_reset": 1}),
    "large GRU, both ways": ("GRU", 70, "BLH", {"directions": 2}),
    "RNN": ("RNN", 7, "B", {"activations": ["Affine"], "activation_alpha": [0.5], "activation_beta": [0.1]}),
    "large RNN, many rows": ("RNN", 66, "BH", {"batch": 17}),
}


@pytest.mark.parametrize("form", FORMS)
def test_layers(form: str) -> None:
    kind, hidden, more, attrs = FORMS[form]
    targets = ("gfx1100", "gfx942") if "large" in form or form == "GRU" else ("gfx942",)
    compare(*layer(kind, hidden, more, **attrs), targets, 2e-5, 2e-5)


@pytest.mark.parametrize("kind, hidden", (("LSTM", 70), ("GRU", 7)))
def test_half_precision(kind: str, hidden: int) -> None:
    compare(*layer(kind, hidden, dtype="float16"), ("gfx942",), 5e-3, 5e-3)


def test_a_small_layer_is_one_kernel_whatever_its_steps() -> None:
    def launches(steps: int) -> int:
        data, feeds = layer("LSTM", 7, steps=steps)
        session = on_gpu(data, alone=True)
        session.run(None, feeds)
        before = driver(session).counts["launch"]
        session.run(None, feeds)
        return driver(session).counts["launch"] - before
    assert launches(2) == launches(9)
