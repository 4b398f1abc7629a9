"""What the fuzzers excuse is a case: beside each stands one of the same operator that is not excused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper

from fuzz import known
from fuzz.judge import Finding
from fuzz.small import Subject
from fuzz.steps import info

INF, NAN = np.inf, np.nan
MS = "com.microsoft"


def f(*values: Any) -> np.ndarray:
    return np.array(values, np.float32)


def heads(*rows: tuple[float, ...]) -> np.ndarray:
    """One batch entry, one head."""
    return f(*rows)[None, None]


def image(*channels: float) -> np.ndarray:
    """[1, channels, 2, 2], each of one number."""
    return np.broadcast_to(f(*channels)[:, None, None], (1, len(channels), 2, 2)).copy()


def subject(op: str, attrs: dict[str, Any], inputs: tuple[Any, ...], domain: str) -> Subject:
    feeds = {f"x{i}": a for i, a in enumerate(inputs) if a is not None}
    names = ["" if a is None else f"x{i}" for i, a in enumerate(inputs)]
    node = helper.make_node(op, names, ["y"], domain=domain, **attrs)
    graph = helper.make_graph(
        [node],
        "g",
        [info(n, a.dtype, a.shape) for n, a in feeds.items()],
        [helper.make_empty_tensor_value_info("y")],
    )
    opsets = [helper.make_opsetid("", 23), helper.make_opsetid(MS, 1)]
    return Subject(op, helper.make_model(graph, opset_imports=opsets, ir_version=11), [feeds])


TWO = heads((1.0, 2.0), (3.0, 1.0))
CASES: dict[str, tuple[str, dict[str, Any], tuple[Any, ...], tuple[Any, ...], str]] = {
    "a key to come": (
        "Attention",
        {"is_causal": 1},
        (TWO, heads((1, 1), (NAN, 1)), TWO),
        (TWO, heads((NAN, 1), (1, 1)), TWO),
        "",
    ),
    "a value to come": (
        "Attention",
        {"is_causal": 1},
        (TWO, TWO, heads((1, 1), (INF, 1))),
        (TWO, TWO, TWO),
        "",
    ),
    "a key past the mask": (
        "Attention",
        {},
        (TWO, heads((1, 1), (NAN, 1)), TWO, np.array([[True], [True]])),
        (TWO, heads((1, 1), (NAN, 1)), TWO, np.array([[True, False]] * 2)),
        "",
    ),
    "a closed row": (
        "Attention",
        {},
        (heads((NAN, 1), (1, 1)), TWO, TWO, np.array([[False, False], [True, True]])),
        (heads((1, 1), (NAN, 1)), TWO, TWO, np.array([[False, False], [True, True]])),
        "",
    ),
    "an open row of -inf": (
        "Attention",
        {},
        (heads((-INF, 1)), TWO, TWO, f((0, 0))),
        (heads((-INF, 1)), heads((1, 1), (-1, 1)), TWO, f((0, 0))),
        "",
    ),
    "a query that vanishes": (
        "Attention",
        {},
        (heads((1e-45, 1)), heads((INF, 1)), heads((1, 1))),
        (heads((1.0, 1)), heads((INF, 1)), heads((1, 1))),
        "",
    ),
    "a token to come": (
        "MultiHeadAttention",
        {"num_heads": 1, "unidirectional": 1},
        (TWO[0], TWO[0], heads((1, 1), (INF, 1))[0]),
        (TWO[0], TWO[0], TWO[0]),
        MS,
    ),
    "groups": (
        "Conv",
        {"group": 2},
        (image(1, INF), f(1, 1)[:, None, None, None]),
        (image(1, 2), f(1, 1)[:, None, None, None]),
        "",
    ),
    "weights": (
        "Conv",
        {"pads": [1] * 4},
        (image(1, 2), f(INF, 1)[None, :, None, None]),
        (image(INF, 2), f(1, 1)[None, :, None, None]),
        "",
    ),
    "weights transposed": (
        "ConvTranspose",
        {},
        (image(1, 2), f(INF, 1)[:, None, None, None]),
        (image(INF, 2), f(1, 1)[:, None, None, None]),
        "",
    ),
    "a product by its order": ("ReduceProd", {}, (f(1e-30, 1e-30, INF),), (f(1e30, 1e-3, INF),), ""),
    "a product that overflows": ("ReduceProd", {}, (f(1e30, 1e30, 1e-30),), (f(0, 1e-3, INF),), ""),
}


@pytest.mark.parametrize("name", CASES)
def test_cases(name: str) -> None:
    op, attrs, inside, outside, domain = CASES[name]
    edge = Finding("edge", "")
    assert known.excused(edge, subject(op, attrs, inside, domain))
    assert not known.excused(edge, subject(op, attrs, outside, domain))
    assert not known.excused(Finding("wrong", ""), subject(op, attrs, inside, domain))


def test_every_operator_has_a_case() -> None:
    """And where all numbers are finite and none vanishes or overflows, there is nothing to excuse."""
    seen = {(domain, op) for op, _, _, _, domain in CASES.values()}
    assert seen <= {(case.domain, case.op) for case in known.EDGES}
    for op, attrs, inside, _, domain in CASES.values():
        plain = tuple(a if a is None or a.dtype == bool else np.ones_like(a) for a in inside)
        assert not known.excused(Finding("edge", ""), subject(op, attrs, plain, domain))


def test_an_absent_bound_is_no_case() -> None:
    differs = Finding("differs", "")
    assert known.excused(differs, subject("Clip", {}, (f(1, 2), None, np.array(NAN, np.float32)), ""))
    assert not known.excused(differs, subject("Clip", {}, (f(1, 2), None, np.array(1, np.float32)), ""))
