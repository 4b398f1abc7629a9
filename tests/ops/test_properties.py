"""Random valid applications of every family of operators against numpy and onnxruntime, in every form of
feed; random graphs and exporters' patterns at every optimization level."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import fusion_variants
import hypothesis
import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from oracle import Case, check, session

import orthrus
from fuzz import graphs as random_graphs
from fuzz.cases import FAMILIES, Draw, cases
from orthrus import knobs
from orthrus.ops.tensor.selection import as_met, distinct

ALWAYS = settings(deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
LONGER = [pytest.param(50, marks=pytest.mark.slow), pytest.param(200, marks=pytest.mark.thorough)]
"""How many more examples there are, none of them those of the short suite."""


@pytest.fixture(scope="module")
def peer() -> Any:
    it = pytest.importorskip("onnxruntime")
    it.set_default_logger_severity(4)
    return it


def agrees(family: str, peer: Any, examples: int, start: int) -> None:
    @hypothesis.seed(start)
    @settings(ALWAYS, max_examples=examples)
    @given(cases(FAMILIES[family]))
    def run(case: Case) -> None:
        assert (found := check(case, peer)) is None, found

    run()


@pytest.mark.parametrize("family", FAMILIES)
def test_operators(family: str, peer: Any) -> None:
    agrees(family, peer, 12, 0)


@pytest.mark.parametrize("examples", LONGER)
@pytest.mark.parametrize("family", FAMILIES)
def test_operators_at_length(family: str, examples: int, peer: Any) -> None:
    agrees(family, peer, examples, examples)


# feeds: whatever numpy can hold


def strided(a: np.ndarray) -> np.ndarray:
    wide = np.empty((*a.shape[:-1], 2 * a.shape[-1]), a.dtype) if a.ndim else np.empty(2, a.dtype)
    view = wide[..., ::2] if a.ndim else wide[0:1].reshape(())
    view[...] = a
    return view


def backwards(a: np.ndarray) -> np.ndarray:
    at = (slice(None, None, -1),) * a.ndim
    return np.ascontiguousarray(a[at])[at] if a.ndim else a


def misaligned(a: np.ndarray) -> np.ndarray:
    if a.dtype == object:
        return a
    room = np.empty(a.nbytes + 1, np.uint8)
    room[1:] = np.frombuffer(a.tobytes(), np.uint8)
    return room[1:].view(a.dtype).reshape(a.shape)


def read_only(a: np.ndarray) -> np.ndarray:
    a = a.copy()
    a.flags.writeable = False
    return a


def swapped(a: np.ndarray) -> np.ndarray:
    return a.astype(a.dtype.newbyteorder(">")) if a.dtype.kind in "iufc" and a.dtype.itemsize > 1 else a


class Marked(np.ndarray):
    """A subclass, as other libraries feed."""


FORMS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "strided": strided,
    "backwards": backwards,
    "misaligned": misaligned,
    "read-only": read_only,
    "byte-swapped": swapped,
    "Fortran": lambda a: a.copy(order="F"),
    "subclass": lambda a: a.view(Marked),
    "transposed": lambda a: np.ascontiguousarray(a.transpose()).transpose() if a.ndim else a,
}


def same(a: Any, b: Any) -> bool:
    a, b = np.asarray(a), np.asarray(b)
    return (
        a.dtype == b.dtype
        and a.shape == b.shape
        and (a.tobytes() == b.tobytes() if a.dtype != object else bool(np.all(a == b)))
    )


def close(a: np.ndarray, b: np.ndarray) -> bool:
    """Equal up to the order of summation, which a layout may change."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    if a.dtype.kind not in "fc":
        return same(a, b)
    with np.errstate(all="ignore"):
        return bool(
            np.all(
                (np.abs(a - b) <= 1e-5 * np.maximum(1, np.abs(b))) | (a == b) | (np.isnan(a) & np.isnan(b))
            )
        )


def any_form(form: str, examples: int, start: int) -> None:
    families = st.sampled_from(sorted(FAMILIES))

    @st.composite
    def any_case(draw: Callable[[Any], Any]) -> Case:
        return FAMILIES[draw(families)](Draw(draw))

    @hypothesis.seed(start)
    @settings(ALWAYS, max_examples=examples)
    @given(any_case())
    def run(case: Case) -> None:
        try:  # whether a refusal is right is for test_operators to say
            it = session(orthrus, case.model())
            expected = it.run(None, case.feeds)
        except Exception:
            return
        fed = {k: FORMS[form](v) for k, v in case.feeds.items()}
        before = {k: np.array(v) for k, v in fed.items()}
        got = it.run(None, fed)
        for a, b in zip(got, expected, strict=True):
            assert close(a, b), f"{case}, {form}"
            if isinstance(a, np.ndarray) and a.dtype.kind == "f":
                a[...] = 7
        assert all(same(fed[k], before[k]) for k in fed), f"{case}, {form}: a feed was written to"

    run()


@pytest.mark.parametrize("form", FORMS)
def test_feeds(form: str) -> None:
    any_form(form, 20, 0)


@pytest.mark.parametrize("examples", LONGER)
@pytest.mark.parametrize("form", FORMS)
def test_feeds_at_length(form: str, examples: int) -> None:
    any_form(form, examples, examples)


@pytest.mark.parametrize(
    "dtype", [ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.int4, np.complex128, np.float16]
)
def test_feeds_of_rare_types(dtype: Any) -> None:
    x = np.arange(6).reshape(2, 3).astype(dtype)
    case = Case("Transpose", [x], opset=23)
    it = session(orthrus, case.model())
    for form, change in FORMS.items():
        if form != "byte-swapped" or x.dtype.kind in "fc":
            (got,) = it.run(None, {"i0": change(x)})
            assert got.dtype == x.dtype and np.array_equal(got.astype(complex), x.T.astype(complex)), form


# graphs


def graphs(start: int, count: int, peer: Any, folder: str | None = None) -> None:
    for seed in range(start, start + count):
        model, feeds = random_graphs.build(seed)
        found = random_graphs.findings(model, feeds, peer, folder)
        assert not found, f"seed {seed}: " + "\n".join(found)


@pytest.mark.parametrize("start, count", [
    (0, 6), pytest.param(6, 24, marks=pytest.mark.slow), pytest.param(30, 90, marks=pytest.mark.thorough)])
def test_random_graphs(start: int, count: int, peer: Any) -> None:
    graphs(start, count, peer)


@pytest.mark.slow
def test_random_graphs_saved(peer: Any, tmp_path: Path) -> None:
    graphs(5000, 25, peer, str(tmp_path))


@pytest.mark.thorough
def test_random_graphs_at_length(peer: Any, tmp_path: Path) -> None:
    graphs(10_000, 300, peer, str(tmp_path))


def variants(kind: str, start: int, count: int, path: str | None = None) -> None:
    for seed in range(start, start + count):
        with knobs.setting(CHECK=1):
            found, _ = fusion_variants.difference(kind, seed, path=path)
        assert found is None, f"seed {seed}: {found}"


@pytest.mark.parametrize("kind", fusion_variants.VARIANTS)
def test_patterns(kind: str, tmp_path: Path) -> None:
    variants(kind, 0, 6)
    variants(kind, 500, 1, str(tmp_path / "saved.onnx"))


@pytest.mark.slow
@pytest.mark.parametrize("kind", fusion_variants.VARIANTS)
def test_more_patterns(kind: str, tmp_path: Path) -> None:
    variants(kind, 6, 144)
    variants(kind, 501, 19, str(tmp_path / "saved.onnx"))


@pytest.mark.thorough
@pytest.mark.parametrize("kind", fusion_variants.VARIANTS)
def test_patterns_at_length(kind: str, tmp_path: Path) -> None:
    variants(kind, 1000, 300)
    variants(kind, 5000, 50, str(tmp_path / "saved.onnx"))


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 300), st.sampled_from((
    "float16", "float32", "float64", "int8", "int64", "uint8", "uint64", "bool", "object")),
    st.sampled_from((6, 120, 1 << 62)), st.integers(0, 999))
def test_distinct_elements(count: int, dtype: str, spread: int, seed: int) -> None:
    """As numpy has them: in rising order, the first of equal ones, -0 and 0 and all NaN being one; or in the
    order in which they come."""
    rng = np.random.default_rng(seed)
    drawn = rng.integers(0, spread, count)
    if dtype in ("int8", "int64"):
        drawn -= spread // 2
    if dtype == "uint64":
        drawn = drawn.astype(np.uint64) + np.uint64((1 << 64) - spread)
    with np.errstate(over="ignore"):
        x = drawn.astype("U" if dtype == "object" else dtype).astype(dtype)
    if dtype.startswith("float"):
        x[rng.random(count) < 0.3] = rng.choice([np.nan, -0.0, np.inf])
    _, *wanted = np.unique(x, True, True, True)
    for made, want in zip(distinct(x), wanted, strict=True):
        assert made.dtype == np.int64
        np.testing.assert_array_equal(made, want.reshape(-1))
    first, inverse, counts = wanted
    order = np.argsort(first)
    for made, want in zip(as_met(*distinct(x)), (first[order], np.argsort(order)[inverse], counts[order]),
                          strict=True):
        np.testing.assert_array_equal(made, want.reshape(-1))
