"""Encoders of numbers: what many at once get is what each gets alone, whatever the keys."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from orthrus.ops.define import find

INTEGERS = {"few": [3, 1, 2], "negative": [-5, 7, -1, 0], "far": [-(1 << 63), 5, (1 << 63) - 1], "one": [4],
            "wide": list(range(0, 1 << 20, 7919)), "next": [1 << 62, (1 << 62) + 1]}
FLOATS = {"few": [0.5, -1.5, 2.0], "odd": [float("nan"), float("inf"), -float("inf"), -0.0], "one": [1e-45],
          "nothing but NaN": [float("nan")], "near": [0.1, float(np.nextafter(np.float32(0.1), 1))]}


def each_alone(name: str, since: int, attrs: dict[str, Any], x: np.ndarray) -> None:
    run = find("ai.onnx.ml", name, since).bind(attrs)
    whole = run(x)
    rows = [run(x.reshape(-1)[i:i + 1]) for i in range(x.size)]
    alone = np.concatenate(rows).reshape(whole.shape)
    assert whole.dtype == alone.dtype
    np.testing.assert_array_equal(whole, alone)


@pytest.mark.parametrize("keys", INTEGERS)
@pytest.mark.parametrize("values", ("strings", "floats", "int64s"))
def test_integers(keys: str, values: str) -> None:
    known = np.array(INTEGERS[keys])
    x = np.random.default_rng(0).permutation(np.concatenate(
        [known, known - 1, known + 1, [0, 1, -1, 4], np.zeros(40, int)])).astype(np.int64)
    given = {"strings": [f"s{i}" for i in range(len(known))], "floats": [i / 4 for i in range(len(known))],
             "int64s": list(range(10, 10 + len(known)))}[values]
    attrs = {"keys_int64s": known.tolist(), f"values_{values}": given}
    each_alone("LabelEncoder", 2, attrs, x.reshape(-1, 1))
    each_alone("OneHotEncoder", 1, {"cats_int64s": known.tolist()}, x)
    each_alone("CategoryMapper", 1, {"cats_int64s": known.tolist(),
                                     "cats_strings": [str(k) for k in known]}, x)


@pytest.mark.parametrize("keys", FLOATS)
@pytest.mark.parametrize("values", ("strings", "floats", "int64s"))
def test_floats(keys: str, values: str) -> None:
    known = np.array(FLOATS[keys], np.float32)
    x = np.random.default_rng(0).permutation(np.concatenate(
        [known, -known, np.nextafter(known, 9), [0, -0.0, np.nan, np.inf], np.ones(40)])).astype(np.float32)
    given = {"strings": [f"s{i}" for i in range(len(known))], "floats": [i / 4 for i in range(len(known))],
             "int64s": list(range(10, 10 + len(known)))}[values]
    each_alone("LabelEncoder", 2, {"keys_floats": known.tolist(), f"values_{values}": given}, x)


def test_places_of_classes() -> None:
    x = np.random.default_rng(0).integers(-2, 6, (20, 3))
    each_alone("LabelEncoder", 1, {"classes_strings": ["a", "b", "c"]}, x)
    each_alone("LabelEncoder", 1, {"classes_strings": []}, x)


@pytest.mark.parametrize("count", (1, 2, 50, 254, 255, 256, 300))
@pytest.mark.parametrize("values", ("strings", "floats", "int64s"))
def test_texts(count: int, values: str) -> None:
    known = [f"é{i}" for i in range(count - 1)] + [""]
    x = np.random.default_rng(count).choice(np.array([*known, "none", "e0"], object), (80, 3))
    given = {"strings": known[::-1], "floats": [i / 4 - 1 for i in range(count)],
             "int64s": list(range(10, 10 + count))}[values]
    for default in ({}, {"default_string": "?", "default_float": float("inf"), "default_int64": -(1 << 63)}):
        each_alone("LabelEncoder", 2, {"keys_strings": known, f"values_{values}": given} | default, x)
    each_alone("OneHotEncoder", 1, {"cats_strings": [*known, *known[:2]]}, x)
    each_alone("CategoryMapper", 1, {"cats_int64s": list(range(count)), "cats_strings": known[::-1]}, x)
