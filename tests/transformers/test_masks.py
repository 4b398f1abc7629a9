"""What masks are found to say, and that nothing is said of masks that mean something else."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from graphs import info, model
from onnx import TensorProto, helper

from orthrus.load import load
from orthrus.optimize import optimize
from orthrus.transformers.forms.masks import Flag, meaning

INT, BOOL, FLOAT = TensorProto.INT64, TensorProto.BOOL, TensorProto.FLOAT


def graph(*steps: tuple[Any, ...], kind: int = INT, shape: tuple[Any, ...] = ("b", "s"), **weights: Any
          ) -> Any:
    """The output of a chain: (operator, inputs, attributes); "_" is the value before."""
    nodes, last = [], "m"
    for i, (op, inputs, attrs) in enumerate(steps):
        nodes.append(helper.make_node(op, [last if x == "_" else x for x in inputs], [f"v{i}"], **attrs))
        last = f"v{i}"
    made = load(model(nodes, [info("m", kind, shape)], [info(last, FLOAT, None)],
                      {k: np.asarray(v) for k, v in weights.items()}, opset=17))
    optimize(made, 1)
    return made.outputs[0]


def cast(to: int) -> tuple[Any, ...]:
    return "Cast", ["_"], {"to": to}


WIDEN = ("Unsqueeze", ["_", "axes"], {})
AXES = np.array([1, 2])
LOW = np.float32(-10000)


def test_the_usual_arithmetic() -> None:
    said = meaning(graph(WIDEN, cast(FLOAT), ("Sub", ["one", "_"], {}), ("Mul", ["_", "low"], {}), axes=AXES,
                         one=np.float32(1), low=LOW))
    assert isinstance(said, Flag)
    assert (said.source.name, said.row, said.column, said.zero, said.one) == ("m", -4, -1, -10000.0, 0.0)


def test_a_choice_by_what_is_no_padding() -> None:
    said = meaning(graph(cast(BOOL), ("Not", ["_"], {}), WIDEN, ("Where", ["_", "low", "zero"], {}),
                         axes=AXES, low=LOW, zero=np.float32(0)))
    assert isinstance(said, Flag)
    assert (said.zero, said.one) == (-10000.0, 0.0)


def test_ids_compared_with_a_word_are_flags_of_their_own() -> None:
    """An id may be anything but 0 and 1: only the comparison says what is padding."""
    said = meaning(graph(("Equal", ["_", "pad"], {}), ("Not", ["_"], {}), WIDEN,
                         ("Where", ["_", "zero", "low"], {}), axes=AXES, pad=np.int64(1), zero=np.float32(0),
                         low=LOW))
    assert isinstance(said, Flag)
    assert said.source.name != "m"
    assert (said.zero, said.one) == (0.0, -10000.0), "the comparison says what is padding"


@pytest.mark.parametrize("axes", [[0, 1], [1, 3], [2, 3]])
def test_axes_go_where_the_mask_puts_them(axes: list[int]) -> None:
    said = meaning(graph(cast(FLOAT), ("Unsqueeze", ["_", "axes"], {}), axes=np.array(axes)))
    assert isinstance(said, Flag)
    kept = [a - 4 for a in range(4) if a not in axes]
    assert [said.row, said.column] == kept


def test_other_masks_say_nothing() -> None:
    two = np.array([[0.0, 1.0]], np.float32)
    assert meaning(graph(cast(FLOAT), ("Add", ["_", "two"], {}), two=two, shape=("b", 2))) is None
    assert meaning(graph(cast(FLOAT), ("CumSum", ["_", "axis"], {}), ("Mul", ["_", "_"], {}),
                         axis=np.int64(1))) is None
    assert meaning(graph(cast(FLOAT), ("Transpose", ["_"], {"perm": [1, 0]}), ("Neg", ["_"], {}))) is None
