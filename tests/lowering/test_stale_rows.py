"""What lies in a cache behind a sequence's rows changes nothing of what attention gives: neither by the
definitions nor by the kernels of the CPU provider."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from gpu_models import defined
from stale_caches import CASES

import orthrus as ort


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("room", [np.nan, np.inf, -np.inf])
def test_what_lies_behind_a_sequence_is_nobodys(case: str, room: float) -> None:
    model, feeds = CASES[case](0.0)
    spoiled = CASES[case](room)[1]
    proto = onnx.load_from_string(model)
    np.testing.assert_array_equal(defined(proto, spoiled)[0], defined(proto, feeds)[0])
    session = ort.InferenceSession(model, providers=["CPUExecutionProvider"])
    assert not session.explain().numpy, session.explain()
    clean = session.run(None, feeds)[0]
    assert np.isfinite(clean).all()
    np.testing.assert_array_equal(session.run(None, spoiled)[0], clean)
