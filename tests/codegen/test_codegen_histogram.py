"""Counts by bins: generated code counts what `numpy.histogram` counts."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("native")

from draws import draws
from hypothesis import given
from hypothesis import strategies as st

import native
from orthrus.codegen.kernels import histogram
from orthrus.codegen.machines import machine


def numbers(rng: np.random.Generator, n: int, kind: str) -> np.ndarray:
    """Numbers of which many lie on edges, many in one bin, or some outside of all."""
    made = rng.standard_normal(n)
    if kind == "edges":
        made = np.round(made * 4) / 4
    if kind == "positive":
        made = np.maximum(made, 0)
    made = made.astype(np.float32)
    if kind == "rare" and n:
        made[rng.integers(0, n, n // 4)] = rng.choice([np.nan, np.inf, -np.inf, 2.0, -2.0, -0.0], 1)
    return made


@draws(60)
@given(st.integers(1, 700), st.integers(1, 600), st.sampled_from(("plain", "edges", "positive", "rare")),
       st.sampled_from(((-4.0, 4.0), (-2.0, 2.0), (0.0, 3.0), (-0.5, 0.25))), st.booleans(),
       st.integers(1, 5), st.integers(0, 999), st.sampled_from((None, machine.AVX2, machine.SSE2)))
def test_counts(n: int, bins: int, kind: str, span: tuple[float, float], magnitudes: bool, items: int,
                seed: int, target: machine.Machine) -> None:
    x = native.guarded(numbers(np.random.default_rng(seed), n, kind))
    edges = native.guarded(np.histogram_bin_edges(np.empty(0, np.float32), bins, span))
    counts = native.guarded(np.zeros((items * histogram.ROWS, bins + 1), np.int32))
    native.run(histogram.histogram_parts(magnitudes=magnitudes), x, edges, counts, n, bins, -(-n // items),
               items=items, machine=target, splits=(items // 2,))
    expected, _ = np.histogram(np.abs(x) if magnitudes else x, bins, span)
    assert counts[:, :bins].sum(0).tolist() == expected.tolist()
    assert counts.sum() >= n
