"""Masked stores touch what their masks say and nothing else, whatever the elements were before."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

native = pytest.importorskip("native")

from orthrus.codegen.machines.detect import host  # noqa: E402
from orthrus.codegen.machines.machine import AVX2, SSE2, Machine  # noqa: E402
from orthrus.codegen.write.body import Body  # noqa: E402
from orthrus.codegen.write.convert import convert  # noqa: E402
from orthrus.codegen.write.emit import V, vec  # noqa: E402
from orthrus.codegen.write.expr import BYTES, LLVM  # noqa: E402
from orthrus.codegen.write.template import template, templates  # noqa: E402

CONVERSIONS = [(wide, narrow) for wide, several in {
    "float32": ("float16", "bfloat16", "int32", "int16", "int8", "uint8", "bool"),
    "int64": ("int32", "int16", "uint8"), "int32": ("int16", "uint16", "int8"), "int16": ("int8",),
    "uint8": ("int32", "float32"), "bfloat16": ("float32", "uint8"),
    "float64": ("float32", "int8")}.items() for narrow in several]


def masked_store(f: Body, x: V, y: V, count: V, *, wide: str, narrow: str, lanes: int, true: tuple[int, ...],
                 known: bool) -> None:
    """y[i] = x[i] converted, for the lanes `true`, or with `known` False for the first `count`."""
    mask = f.const(vec("i1", lanes), [i in true for i in range(lanes)]) if known else f.mask(lanes, count)
    value = convert(f, f.load_masked(vec(LLVM[wide], lanes), x, 0, mask), wide, narrow)
    f.store_masked(value, y, 0, mask)


@pytest.fixture
def stored() -> Iterator[Any]:
    yield template("x:ptr y:ptr count:i64")(masked_store)
    del templates["masked_store"]


@pytest.mark.parametrize("machine", (host(), AVX2, SSE2), ids=("host", "avx2", "sse2"))
@pytest.mark.parametrize("wide,narrow", CONVERSIONS)
def test_only_what_the_mask_says_is_written(stored: Any, machine: Machine, wide: str, narrow: str) -> None:
    """One lane, several, all and none; masks that the compiler knows and such that it does not. LLVM 22
    writes one known lane as wide as it was before its conversion."""
    lanes, size = 16, BYTES[narrow]
    x = np.zeros(lanes * BYTES[wide], np.uint8)  # of every type, these are zeros
    for known, true in [(True, (i,)) for i in (0, 1, 7, 15)] + [
            (True, tuple(range(n))) for n in (0, 2, 3, 15, 16)] + [(True, (3, 9))] + [
            (False, tuple(range(n))) for n in range(lanes + 1)]:
        y = np.full(lanes * size + 16, 0xA5, np.uint8)
        spec = stored(wide=wide, narrow=narrow, lanes=lanes, true=true if known else (), known=known)
        native.run(spec, native.guarded(x), y, len(true), items=1, machine=machine)
        wanted = np.full_like(y, 0xA5)
        for i in true:
            wanted[i * size:(i + 1) * size] = 0
        np.testing.assert_array_equal(y, wanted, f"{true} {known}")
