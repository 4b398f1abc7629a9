"""Mixtures of experts by kernels: every form is what its definition says, each expert meets only the tokens
that are routed to it, and which these are is decided as the definition does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from contrib_cases import MS, coded_experts, experts
from contrib_cases import Draw as Drawn
from onnx import numpy_helper
from oracle import Case, differences

import orthrus


def both(case: Case) -> tuple[list[Any], list[Any]]:
    """The results of definitions and of kernels, the matrices being constant."""
    made: list[list[Any]] = []
    for use in ("0", "1"):
        model = case.model()
        for info in list(model.graph.input)[2:]:
            if not (case.op == "QMoE" and info.name == "i14"):
                model.graph.initializer.append(numpy_helper.from_array(case.feeds[info.name], info.name))
                model.graph.input.remove(info)
        session = orthrus.InferenceSession(model.SerializeToString(), providers=[
            ("CPUExecutionProvider", {"use_codegen": use})])
        made.append(session.run(None, {i.name: case.feeds[i.name] for i in session.get_inputs()}))
        assert use == "0" or not session.explain().numpy
    return made[0], made[1]


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("form", ["MoE", "QMoE"])
def test_mixtures(form: str, seed: int) -> None:
    case = (experts if form == "MoE" else coded_experts)(Drawn(seed))
    found = differences(*both(case)[::-1], 1e-4, 1e-4)
    assert found is None, f"{case}: {found}"


@pytest.mark.parametrize("tokens", [1, 23])
def test_who_is_chosen(tokens: int) -> None:
    """Of equal scores the last, infinite ones, and one expert for all tokens: the others' matrices, which
    hold no numbers, change nothing."""
    rng = np.random.default_rng(tokens)
    for k in (1, 2, 4):
        scores = rng.integers(0, 2, (tokens, 5)).astype(np.float32)
        scores[:, 4], scores[-1, 0] = -np.inf, np.inf
        first, second = (rng.standard_normal((5, n, m)).astype(np.float32) for n, m in ((6, 9), (9, 6)))
        first[4] = np.nan
        x = rng.standard_normal((tokens, 9)).astype(np.float32)
        for router in (scores, np.tile(np.float32([0, 3, 0, 2, -9]), (tokens, 1))[:, :5]):
            if k == 4 and router is scores:
                continue
            got = both(Case("MoE", [x, router, first, None, second], {"k": k}, domain=MS))
            assert differences(*got, 1e-5, 1e-5) is None
