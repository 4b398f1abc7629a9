"""Range, ConstantOfShape and draws by their own words, over random ends, steps, types, fills and seeds."""

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


@pytest.mark.parametrize("dtype", [np.int16, np.int32, np.int64])
def test_long_ranges_of_whole_numbers(dtype: type) -> None:
    most = np.iinfo(dtype).max
    for count in (8191, 8192, 8193, 16_384, 16_385, 50_000):
        widest = 2 * most // count
        for step in (1, -1, widest, -widest):
            first = -(step * count // 2)
            ends = [np.array(v, dtype) for v in (first, first + step * (count - 1) + np.sign(step), step)]
            found = of("Range").bind({})(*ends)
            assert found.dtype == dtype and found.tolist() == [first + step * i for i in range(count)], ends


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_draws_are_those_of_the_seed(dtype: type) -> None:
    wide = np.float64 if dtype == np.float64 else np.float32
    for shape in ((), (3,), (2, 0), (40, 50)):
        for name, attributes, draw in (
                ("RandomNormalLike", {"mean": 1.5, "scale": 3.0}, np.random.Generator.standard_normal),
                ("RandomNormalLike", {}, np.random.Generator.standard_normal),
                ("RandomUniformLike", {"low": 1.5, "high": 4.5}, np.random.Generator.random)):
            found = of(name, 1).bind(attributes, rng=np.random.default_rng(7))(np.zeros(shape, dtype))
            drawn = np.asarray(draw(np.random.default_rng(7), shape, wide))
            wanted = np.asarray(drawn * (3.0 if attributes else 1.0) + (1.5 if attributes else 0.0))
            assert found.shape == shape and found.dtype == dtype
            assert found.tobytes() == wanted.astype(dtype).tobytes()


@pytest.mark.parametrize("odd", [0.0, np.nan, np.inf, -np.inf])
def test_classes_are_drawn_row_by_row(odd: float) -> None:
    for rows, classes, samples in ((1, 1, 3), (3, 8, 8), (40, 30, 20), (0, 4, 2)):
        x = np.random.default_rng(rows).standard_normal((rows, classes)).astype(np.float32)
        x[::2, -1:] = odd
        with np.errstate(all="ignore"):
            found = of("Multinomial", 1).bind({"sample_size": samples, "dtype": 7}, rng=np.random.default_rng(
                8))(x)
            rng, wanted = np.random.default_rng(8), []
            for row in x.astype(np.float64):
                scores = np.exp(row - row.max()).cumsum()
                drawn = rng.random(samples) * scores[-1]
                wanted.append(np.minimum(scores.searchsorted(drawn, "right"), classes - 1))
        assert found.dtype == np.int64 and found.tolist() == np.array(wanted, np.int64).tolist()
