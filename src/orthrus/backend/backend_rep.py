"""A model that onnx's Backend interface has prepared.

In: a session, and inputs in their order. Out: its results, as a list.
"""

from __future__ import annotations

from typing import Any

from onnx.backend.base import BackendRep

from .. import InferenceSession, RunOptions


class OnnxRuntimeBackendRep(BackendRep):  # type: ignore[misc]
    """A session that takes inputs by their order instead of by their names."""

    def __init__(self, session: InferenceSession) -> None:
        self._session = session

    def run(self, inputs: Any, **kwargs: Any) -> list[Any]:
        """The results for a list of inputs, or for the one of a model that has one. `kwargs`: attributes of
        RunOptions; others are left alone.

        Raises RuntimeError for too few inputs, and what a run raises.
        """
        options = RunOptions()
        for name, value in kwargs.items():
            if hasattr(options, name):
                setattr(options, name, value)
        names = [each.name for each in self._session.get_inputs()]
        given = inputs if isinstance(inputs, list) else [inputs]
        if len(given) < len(names):
            raise RuntimeError(f"Model expect {len(names)} inputs, and {len(given)} were given as a list")
        return list(self._session.run(None, dict(zip(names, given, strict=False)), options))
