"""The families of operators; each is a function from `Draw` to a `Case`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st
from oracle import Case

from fuzz import contrib, elements, few_bits, layers, movement
from fuzz.draw import Draw

FAMILIES: dict[str, Callable[[Draw], Case]] = {
    f.__name__.rstrip("_"): f
    for f in (
        elements.binary,
        elements.unary,
        elements.variadic,
        elements.ternary,
        elements.cast,
        elements.reduction,
        elements.arg_reduction,
        elements.along_axis,
        movement.slice_,
        movement.gather,
        movement.gather_nd,
        movement.scatter,
        movement.pad,
        movement.joined,
        movement.split,
        movement.reshaped,
        movement.selected,
        layers.matmul,
        layers.gemm,
        layers.einsum,
        layers.conv,
        layers.conv_transpose,
        layers.pool,
        layers.resize,
        layers.normalization,
        layers.recurrent,
        layers.quantized,
        layers.sampled,
        layers.attention,
        contrib.fused,
        contrib.contrib_attention,
        contrib.contrib_quantized,
        contrib.contrib_data,
        few_bits.few_bits,
        few_bits.of_whole_numbers,
    )
}


def cases(family: Callable[[Draw], Case]) -> st.SearchStrategy[Case]:
    """The cases of a family, for hypothesis."""

    @st.composite
    def make(draw: Callable[[Any], Any]) -> Case:
        return family(Draw(draw))

    return make()
