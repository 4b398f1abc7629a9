"""The families of operators; each is a function from `Draw` to a `Case`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

import property_contrib
import property_elements
import property_layers
import property_movement
from oracle import Case
from property_draw import Draw

FAMILIES: dict[str, Callable[[Draw], Case]] = {
    f.__name__.rstrip("_"): f
    for f in (
        property_elements.binary,
        property_elements.unary,
        property_elements.variadic,
        property_elements.ternary,
        property_elements.cast,
        property_elements.reduction,
        property_elements.arg_reduction,
        property_elements.along_axis,
        property_movement.slice_,
        property_movement.gather,
        property_movement.gather_nd,
        property_movement.scatter,
        property_movement.pad,
        property_movement.joined,
        property_movement.split,
        property_movement.reshaped,
        property_movement.selected,
        property_layers.matmul,
        property_layers.gemm,
        property_layers.einsum,
        property_layers.conv,
        property_layers.conv_transpose,
        property_layers.pool,
        property_layers.resize,
        property_layers.normalization,
        property_layers.recurrent,
        property_layers.quantized,
        property_layers.sampled,
        property_layers.attention,
        property_contrib.fused,
        property_contrib.contrib_attention,
        property_contrib.contrib_quantized,
        property_contrib.contrib_data,
    )
}


def cases(family: Callable[[Draw], Case]) -> st.SearchStrategy[Case]:
    """The cases of a family, for hypothesis."""

    @st.composite
    def make(draw: Callable[[Any], Any]) -> Case:
        return family(Draw(draw))

    return make()
