"""Range and ConstantOfShape by ONNX's own words, over random ends, steps, types and fills."""

import math

import numpy as np
import pytest

from orthrus.ops.define import find


def of(name: str, opset: int = 21):  # type: ignore[no-untyped-def]
    op = find("", name, opset)
    assert op is not None
    return op


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int16, np.int32, np.int64])
def test_a_range_is_its_start_and_steps(dtype: type) -> None:
    rng = np.random.default_rng(5)
    steps = [1, -1, 2, -3, 0.5 if dtype in (np.float32, np.float64) else 4]
    for turn in range(200):
        far = 30_000 if turn % 8 == 0 else 40
        ends = [dtype(v) for v in (rng.choice([0, -0.0, 1, 7]), rng.integers(-far, far), rng.choice(steps))]
        first, last, step = ends
        count = max(math.ceil((float(last) - float(first)) / float(step)), 0)
        wanted = np.array([np.arange(count, dtype=dtype) * step + first], dtype).reshape(-1)
        found = of("Range").bind({})(*map(np.asarray, ends))
        assert found.dtype == dtype and found.shape == (count,)
        assert found.tobytes() == wanted.tobytes(), ends


@pytest.mark.parametrize("fill", [np.float32(-0.0), np.float32(0), np.float64(np.nan), np.float16(3),
                                  np.int64(-7), np.uint8(0), np.bool_(True), np.float64(5e-324)])
def test_a_fill_keeps_its_bits(fill: np.generic) -> None:
    found = of("ConstantOfShape").bind({"value": np.array([fill])})(np.array([2, 3]))
    assert found.shape == (2, 3) and found.tobytes() == np.array([fill] * 6).tobytes()
