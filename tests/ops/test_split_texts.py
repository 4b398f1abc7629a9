"""Texts split many at once, against each split alone."""

from __future__ import annotations

import numpy as np
import pytest

from orthrus.ops.define import find


def parts(text: str, delimiter: str, most: int) -> list[str]:
    """Of a text of ASCII letters."""
    if delimiter:
        return text.split(delimiter, most) if text else []
    return text.split(None, most) if most < 0 else text.strip().split(None, most)


LETTERS = {"words": ["ab ", "c ", "def "], "double": ["a", " ", "  b"], "tabs": ["a", "\t", " ", "\n"],
           "empty": ["", ""], "blank": [" ", "  "], "far": ["a", "\x1f", " "], "other": ["é", " ", "\u2003"]}


@pytest.mark.parametrize("which", LETTERS)
@pytest.mark.parametrize(("delimiter", "most"), [(None, None), (None, 1), ("a", None), (" ", None), (" ", 2)])
@pytest.mark.parametrize("ends", (False, True))
def test_many_and_few(which: str, delimiter: str | None, most: int | None, ends: bool) -> None:
    rng = np.random.default_rng(5)
    attrs = {k: v for k, v in (("delimiter", delimiter), ("maxsplit", most)) if v is not None}
    op = find("", "StringSplit", 20)
    assert op is not None
    run = op.bind(attrs, 2)
    for shape in ((), (0,), (1,), (3, 5), (16,), (40, 2), (900,)):
        given = ["".join(rng.choice(LETTERS[which], rng.integers(0, 9))) for _ in range(int(np.prod(shape)))]
        x = np.empty(len(given), object)
        x[:] = [text + "." if ends else text for text in given]
        x = x.reshape(shape)
        y, counts = run(x)
        assert counts.dtype == np.int64 and counts.shape == shape and y.dtype == object
        assert y.shape == (*shape, int(counts.max(initial=0)))
        rows = y.reshape(x.size, y.shape[-1]).tolist()
        for text, row, count in zip(x.ravel().tolist(), rows, counts.ravel().tolist(), strict=True):
            alone, (n,) = run(np.array([text], object))
            assert row == alone[0].tolist() + [""] * (len(row) - n) and count == n
            if text.isascii() and "\x1f" not in text:
                assert row[:count] == parts(text, delimiter or "", -1 if most is None else most)
