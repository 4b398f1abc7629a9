"""Sizes for open dimensions."""

from __future__ import annotations

from typing import Any

import pytest

from orthrus.ir import likely_shapes


@pytest.mark.parametrize("shapes, cached, expected", [
    ([[1, 3, 224, 224]], False, [(1, 3, 224, 224)]),
    ([["N", 3, "H", "W"]], False, [(1, 3, 224, 224)]),
    ([[None, 3, None, None]], False, [(1, 3, 224, 224)]),
    ([[-1, 3, -1, 64]], False, [(1, 3, 224, 64)]),
    ([["batch", "seq"], ["batch", 1, "seq", "seq"]], False, [(1, 128), (1, 1, 128, 128)]),
    ([["batch", "seq", 768], ["seq", "batch", 4]], False, [(1, 1, 768), (1, 1, 4)]),
    ([[1, "new"], [1, "total"], [1, 12, "past", 64]], True, [(1, 1), (1, 32), (1, 12, 31, 64)]),
    ([[1, 1], [1, "past + 1"], [1, 12, "past", 64]], True, [(1, 1), (1, 32), (1, 12, 31, 64)]),
    ([[]], False, [()]), ([["n"]], False, [(1,)]),
    ([["a", "b", "c", "d", "e"]], False, [(1, 32, 32, 32, 32)]),
])
def test_sizes(shapes: Any, cached: bool, expected: Any) -> None:
    assert likely_shapes(shapes, cached) == expected
