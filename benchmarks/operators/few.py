"""Few of something: rows of few elements, images of few channels, matrices of few rows; 4,000 to 200,000
elements in all."""

from __future__ import annotations

import numpy as np

from .arrays import I32, D, F, case, floats, mixed
from .elementwise import Cases, _name


def rows() -> Cases:
    """Folded, sorted and normalized along rows of few elements."""
    for total in (4000, 200000):
        for width in (2, 3, 7, 10, 16, 33, 100):
            shape = (total // width, width)
            size = f"{shape[0]}x{width}"
            for dtype in (F, D, I32):
                x = {"x": mixed(*shape, dtype=dtype)}
                named = f"{_name(dtype)} {size}"
                for kind in ("ReduceSum", "ReduceMax", "ReduceMean"):
                    yield f"{kind} {named}", case(kind, x, {"a": np.array([1])})
                yield f"ArgMax {named}", case("ArgMax", x, axis=1)
                yield f"TopK 2 {named}", case("TopK", x, {"k": np.array([2])}, outputs=2)
                if dtype == I32:
                    continue
                yield f"Softmax {named}", case("Softmax", x, axis=1)
                yield (
                    f"LayerNormalization {named}",
                    case("LayerNormalization", x, {"g": np.ones(width, dtype), "b": np.ones(width, dtype)}),
                )


def channels() -> Cases:
    """Convolutions and resizes of images of few channels."""
    for side in (16, 64, 200):
        for cin, cout, group in (
            (1, 1, 1),
            (3, 3, 1),
            (3, 3, 3),
            (1, 4, 1),
            (32, 3, 1),
            (32, 1, 1),
            (5, 7, 1),
        ):
            for k, spread in ((1, 1), (3, 1), (3, 2), (7, 1)):
                margin = spread * (k // 2)
                yield (
                    f"Conv {cin} to {cout} in {group}, k{k} d{spread}, {side}",
                    case(
                        "Conv",
                        {"x": floats(1, cin, side, side)},
                        {"w": floats(cout, cin // group, k, k)},
                        group=group,
                        dilations=[spread] * 2,
                        pads=[margin] * 4,
                    ),
                )
        for c in (1, 3, 20):
            x = {"x": floats(1, c, side, side)}
            for mode in ("nearest", "linear"):
                for by in (2.0, 1.7, 0.4):
                    yield (
                        f"Resize {mode} {by} of {c}, {side}",
                        case("Resize", x, {"s": np.array([1, 1, by, by], F)}, "x - s", mode=mode),
                    )
            for k in (2, 4):
                yield (
                    f"ConvTranspose {c} to 1, k{k} s2, {side}",
                    case("ConvTranspose", x, {"w": floats(c, 1, k, k)}, strides=[2, 2]),
                )
    for cin, cout in ((1, 1), (4, 1), (1, 8), (16, 2)):
        for k in (3, 9, 31):
            x = {"x": floats(2, cin, 1000)}
            pads = [k // 2] * 2
            yield f"Conv {cin} to {cout}, 1-D k{k}", case("Conv", x, {"w": floats(cout, cin, k)}, pads=pads)
            yield (
                f"ConvTranspose {cin} to {cout}, 1-D k{k}",
                case("ConvTranspose", x, {"w": floats(cin, cout, k)}),
            )


def matrices() -> Cases:
    """Many small products."""
    for count in (1, 100, 5000):
        for m, k, n in ((2, 2, 2), (3, 3, 1), (4, 4, 4), (1, 8, 8), (5, 7, 9), (16, 16, 16), (32, 4, 32)):
            a, b = floats(count, m, k), floats(count, k, n)
            named = f"{count} of {m}x{k}x{n}"
            yield f"MatMul {named}", case("MatMul", {"a": a, "b": b})
            yield f"MatMul by one, {named}", case("MatMul", {"a": a}, {"b": b[0]})
