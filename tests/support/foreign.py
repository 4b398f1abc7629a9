"""What tests of providers with engines of their own ask of a session."""

from __future__ import annotations

import numpy as np
import onnx

import orthrus as ort

CPU = "CPUExecutionProvider"


def taken(made: ort.InferenceSession, provider: str) -> list[str]:
    """The nodes that `provider` has."""
    return [node.node for node in made.explain() if node.provider == provider]


def whole(made: ort.InferenceSession, provider: str) -> bool:
    """Whether `provider` has every node."""
    return len(taken(made, provider)) == len(made.explain()) > 0


def reasons(made: ort.InferenceSession) -> str:
    """Why nodes were refused."""
    return "\n".join(str(refusal) for node in made.explain() for refusal in node.refusals)


def agrees(made: ort.InferenceSession, provider: str, proto: onnx.ModelProto, feeds: dict[str, np.ndarray],
           rtol: float) -> None:
    """`provider` has every node of a session for `proto`, which gives what the CPU provider gives."""
    assert whole(made, provider), reasons(made)
    wanted = ort.InferenceSession(proto.SerializeToString(), providers=[CPU]).run(None, feeds)
    for right, got in zip(wanted, made.run(None, feeds), strict=True):
        assert right.dtype == got.dtype and right.shape == got.shape
        np.testing.assert_allclose(got.astype(np.float64), right.astype(np.float64), rtol, 1e-6)
