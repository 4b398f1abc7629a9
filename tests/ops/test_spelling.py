"""Numbers as text and texts as numbers: what many at once give is what Python says of each alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from orthrus.ir import ElementType
from orthrus.ops.tensor.cast import converted

E = ElementType


def spelled(value: Any, most: int) -> str:
    """A float in `most` digits, or in one less where these tell it apart."""
    kind, number = type(value), float(value)
    if not np.isfinite(value):
        return "NaN" if number != number else "INF" if number > 0 else "-INF"
    text = f"{number:.{most - 1}g}"
    return text if kind(float(text)) == value else f"{number:.{most}g}"


def floats(dtype: Any) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(7)
    bits = np.dtype(dtype).itemsize * 8
    one = np.array([2.0 ** i for i in range(-149, 128)] + [float(f"1e{i}") for i in range(-45, 39)], dtype)
    near = np.concatenate([one, np.nextafter(one, dtype(0)), np.nextafter(one, dtype(np.inf))])
    drawn = rng.integers(0, 1 << bits, 30000, np.uint64, endpoint=False) if bits < 64 else rng.integers(
        0, 1 << 63, 3000, np.uint64)
    made = {"any": drawn.astype(f"u{bits // 8}").view(dtype), "near": np.concatenate([near, -near]),
            "normal": rng.standard_normal(30000).astype(dtype), "rounded": rng.standard_normal(300).round(3),
            "whole": rng.integers(-10**9, 10**9, 3000), "zeros": np.array([0.0, -0.0] * 50)}
    ordinary = {name: values[np.isfinite(values)].astype(dtype) for name, values in made.items()}
    odd = np.array([np.inf, -np.inf, np.nan, -0.0, 1.5, 1e-7], dtype)
    return ordinary | {"odd": odd, "odd among many": np.concatenate([odd, ordinary["normal"][:200]])}


@pytest.mark.parametrize("dtype", (np.float32, np.float64))
@pytest.mark.parametrize("which", floats(np.float32))
def test_floats_as_text(dtype: Any, which: str) -> None:
    values = floats(dtype)[which]
    most = 9 if dtype is np.float32 else 17
    with np.errstate(all="ignore"):
        wanted = [spelled(value, most) for value in values]
        for some in (len(values), 63, 64, 5, 1, 0):
            made = converted(values[:some].reshape(1, -1), E.STRING)
            assert made.shape == (1, len(values[:some])) and made[0].tolist() == wanted[:some]


TEXTS = {
    "decimals": lambda rng: f"{rng.standard_normal():.{rng.integers(0, 18)}f}",
    "shortest": lambda rng: repr(float(np.float32(rng.standard_normal() * 10.0 ** rng.integers(-7, 8)))),
    "points": lambda rng: rng.choice(["1.", ".5", "-.5", "-1.", "0.", "-0.0", "-0", "0", "00.10", "-.0"]),
    "long": lambda rng: "".join(rng.choice(list("0123456789"), 30)) + ".5",
    "digits behind": lambda rng: "0." + "".join(rng.choice(list("0123456789"), rng.integers(1, 30))),
    "exponents": lambda rng: rng.choice(["1e5", "1e-5", "-2.5e3", "1E5", "1e400", "1e-400", "-1.5", "2"]),
    "a few exponents": lambda rng: "-1e-3" if rng.random() < 0.1 else f"{rng.standard_normal():.5f}",
    "others": lambda rng: rng.choice([" 1.5", "+2", "inf", "-nan", "Infinity", "1.25\n", "٣.٥", "3"]),
    "whole": lambda rng: str(rng.integers(-10**6, 10**6)),
    "large": lambda rng: str(int(rng.integers(-9, 10)) * 10**int(rng.integers(14, 22)) + 1),
}


@pytest.mark.parametrize("which", TEXTS)
def test_texts_as_floats(which: str) -> None:
    rng = np.random.default_rng(3)
    for count in (1, 63, 192, 700, 1024, 8192 + 64):
        given = [str(TEXTS[which](rng)) for _ in range(count)]
        x = np.array(given, object)
        for elem in (E.DOUBLE, E.FLOAT, E.FLOAT16):
            with np.errstate(all="ignore"):
                made = converted(x, elem)
                wanted = np.array(list(map(float, given))).astype(elem.numpy)
            assert made.dtype == wanted.dtype and made.tobytes() == wanted.tobytes()


WHOLE = {
    "whole": TEXTS["whole"], "large": TEXTS["large"],
    "limits": lambda rng: str(rng.choice([-(1 << 63), (1 << 63) - 1, 1 << 62, -(1 << 62), 0])),
    "signs": lambda rng: rng.choice(["-0", "+7", "-12", "007"]),
    "fractions": lambda rng: rng.choice(["1.9", "-1.9", "3.", "4"]),
    "spaces": lambda rng: rng.choice([" 1", "2 ", "3\n", "4"]),
}


@pytest.mark.parametrize("which", WHOLE)
def test_texts_as_integers(which: str) -> None:
    rng = np.random.default_rng(3)
    for count in (1, 63, 192, 700, 1024, 8192 + 64):
        given = [str(WHOLE[which](rng)) for _ in range(count)]
        wanted = [int(text.strip().split(".")[0]) for text in given]
        for elem, bits in ((E.INT64, 64), (E.INT32, 32), (E.UINT8, 8)):
            made = converted(np.array(given, object), elem)
            assert [v & ((1 << bits) - 1) for v in made.tolist()] == [v & ((1 << bits) - 1) for v in wanted]
        assert converted(np.array(given, object), E.BOOL).tolist() == [bool(v) for v in wanted]


@pytest.mark.parametrize("bad", ("", "-", "1,2", ",", "1-2", "--1", "1.2.3", ".", "e", "1e", "a", "1_0"))
@pytest.mark.parametrize("at", (0, 40, 1099))
@pytest.mark.parametrize("elem", (E.FLOAT, E.INT64))
def test_what_spells_no_number(bad: str, at: int, elem: ElementType) -> None:
    given = ["1", "-2"] * 550
    given[at] = bad
    with pytest.raises(ValueError, match="spells no number") as caught:
        converted(np.array(given, object), elem)
    assert repr(bad) in str(caught.value)
    with pytest.raises(ValueError, match="spells no number"):
        converted(np.array(given[at:at + 1], object), elem)
