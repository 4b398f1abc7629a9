"""Whole transformers on emulated GPUs: parts, and results, against the CPU provider."""

from __future__ import annotations

from typing import Any

import encoders
import exported
import numpy as np
import onnx
import pytest
from emulated_gpu import compare, nodes, on_gpu

from orthrus.lowering.gpu.part import GpuPart

pytestmark = [pytest.mark.needs("AMD tables", "Triton"), pytest.mark.slow]

PARTS = 2
"""Of a network, at most."""


def _encoder() -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """As torch exports BERT: 2 layers, 16 tokens, padding."""
    model = encoders.Encoder("sdpa", 17).model()
    return model, encoders.feeds(model, 1, 16)


NETWORKS: dict[str, Any] = {
    "BERT": lambda: (exported.model("bert.script"), exported.feeds("bert.script")),
    "BERT, 16 tokens": _encoder,
    "GPT-2 with its cache": lambda: (exported.model("gpt2_past.script"), exported.feeds("gpt2_past.script")),
    "Llama with its cache": lambda: (exported.model("llama_gqa_past.script"),
                                     exported.feeds("llama_gqa_past.script")),
}


@pytest.mark.parametrize("target", ("gfx1100", "gfx942"))
@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_is_a_part_or_two(name: str, target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[GpuPart] = []
    begin = GpuPart.__init__

    def noted(self: GpuPart, *args: Any, **named: Any) -> None:
        begin(self, *args, **named)
        made.append(self)

    def left(self: GpuPart, *args: Any, **named: Any) -> Any:
        raise AssertionError("a step of the host's")
    monkeypatch.setattr(GpuPart, "__init__", noted)
    monkeypatch.setattr(GpuPart, "_on_host", left)
    monkeypatch.setattr(GpuPart, "interpret", left)
    model, feeds = NETWORKS[name]()
    session = on_gpu(model, target)
    assert 1 <= len(made) <= PARTS
    assert all("GPU" in provider or "Emulated" in provider for _, provider in nodes(session))
    compare(model, feeds, (target,), 1e-3, 1e-4)
