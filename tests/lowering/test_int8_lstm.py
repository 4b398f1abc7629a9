"""LSTMs whose weights are bytes, against their definition: signs, zero points, batches, lengths, ways."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper
from test_int8_models import MACHINES, codes, definition, model, on, run

MS = "com.microsoft"
ORDER = ("x", "w", "r", "b", "lengths", "h0", "c0", "p", "ws", "wz", "rs", "rz")
CASES: list[tuple[int, int, int, int, str, Any, bool, tuple[str, ...], dict[str, Any]]] = [
    (5, 1, 16, 32, "forward", np.int8, False, (), {}),
    (4, 3, 9, 21, "bidirectional", np.uint8, False, ("b", "h0", "c0"), {}),
    (6, 9, 5, 17, "reverse", np.uint8, True, ("b", "lengths", "p"), {}),
    (3, 14, 33, 40, "bidirectional", np.int8, True, ("lengths", "h0", "c0"), {"clip": 0.7}),
    (7, 2, 3, 1, "forward", np.uint8, True, ("b",), {"input_forget": 1}),
    (2, 4, 8, 70, "bidirectional", np.int8, True, ("b", "p"),
     {"activations": ["HardSigmoid", "Softsign", "Tanh", "Sigmoid", "Relu", "Softplus"]}),
]


@pytest.mark.parametrize("target", MACHINES, ids=lambda m: f"{8 * m.vector}-{len(m.features)}")
@pytest.mark.parametrize("case", range(len(CASES)))
def test_against_the_definition(target: Any, case: int) -> None:
    steps, batch, features, hidden, direction, dtype, by_column, given, attrs = CASES[case]
    rng = np.random.default_rng(case)
    ways = 2 if direction == "bidirectional" else 1
    of_columns = (ways, 4 * hidden) if by_column else (ways,)

    def floats(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape).astype(np.float32)
    feeds = {"x": floats(steps, batch, features), "h0": floats(ways, batch, hidden),
             "c0": floats(ways, batch, hidden), "lengths": rng.integers(0, steps + 1, batch).astype(np.int32)}
    held = {"w": codes(rng, dtype, ways, features, 4 * hidden),
            "r": codes(rng, dtype, ways, hidden, 4 * hidden),
            "b": floats(ways, 8 * hidden), "p": floats(ways, 3 * hidden),
            "ws": (rng.random(of_columns) * 0.01).astype(np.float32), "wz": codes(rng, dtype, *of_columns),
            "rs": (rng.random(of_columns) * 0.005).astype(np.float32), "rz": codes(rng, dtype, *of_columns)}
    names = [n if n in given or n not in ("b", "lengths", "h0", "c0", "p") else "" for n in ORDER]
    feeds, held = ({k: v for k, v in each.items() if k in names} for each in (feeds, held))
    attrs = {"direction": direction, "hidden_size": hidden, **attrs}
    node = helper.make_node("DynamicQuantizeLSTM", names, ["y", "h", "c"], domain=MS, **attrs)
    made = model([node], feeds, held, dict.fromkeys("yhc", np.float32))
    with on(target):
        got = run(made, feeds, "recurrence")
    inputs = [feeds.get(n, held.get(n)) for n in names]
    wanted = definition("DynamicQuantizeLSTM", *inputs, domain=MS, **attrs)
    for a, b in zip(got, wanted, strict=True):
        apart = np.abs(a - b)
        assert apart.max() < 0.1 and np.median(apart) < 1e-5
        assert (apart > 1e-4).mean() < 0.02


def test_a_state_that_is_no_number_stays_one() -> None:
    rng = np.random.default_rng(0)
    held = {"w": codes(rng, np.int8, 1, 4, 32), "r": codes(rng, np.int8, 1, 8, 32),
            "ws": np.full(1, 0.01, np.float32), "wz": np.zeros(1, np.int8)}
    feeds = {"x": np.ones((2, 1, 4), np.float32), "h0": np.full((1, 1, 8), np.nan, np.float32)}
    names = ["x", "w", "r", "", "", "h0", "", "", "ws", "wz", "ws", "wz"]
    node = helper.make_node("DynamicQuantizeLSTM", names, ["y"], domain=MS, hidden_size=8)
    assert np.isnan(run(model([node], feeds, held, {"y": np.float32}), feeds, "recurrence")[0]).all()
