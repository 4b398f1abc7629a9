"""Sizes and arrangements that networks seldom have: found slow by drawing cases."""

from __future__ import annotations

import numpy as np

from .arrays import I8, I64, U8, D, F, case, floats, mixed
from .elementwise import Cases, _name


def convolutions() -> Cases:
    """Of one tap: in groups, over some of the pixels, one channel a group, along one to three axes."""
    for cin, cout, group in ((26, 26, 26), (86, 9, 1), (14, 20, 2), (60, 60, 3), (64, 32, 16), (16, 44, 4)):
        for size, strides in (
            ((23, 23, 22), (1, 1, 1)),
            ((16, 15, 15), (3, 3, 1)),
            ((56, 56), (1, 1)),
            ((56, 56), (2, 2)),
            ((1027,), (3,)),
        ):
            sides, steps = ("x".join(map(str, each)) for each in (size, strides))
            yield (
                f"Conv k1 {cin} to {cout} in {group}, {sides} by {steps}",
                case(
                    "Conv",
                    {"x": floats(1, cin, *size)},
                    {"w": floats(cout, cin // group, *[1] * len(size))},
                    group=group,
                    strides=strides,
                ),
            )


def folds() -> Cases:
    """Along axes behind which a few elements lie, of places among bytes, of all of an image."""
    for shape, axis in (((10000, 2), 0), ((3, 5000, 4), 1), ((20, 1000, 3), 1), ((500, 16), 0)):
        size = "x".join(map(str, shape))
        for kind in ("Softmax", "LpNormalization", "Hardmax"):
            yield f"{kind} {size} along {axis}", case(kind, {"x": floats(*shape)}, axis=axis)
    for dtype in (U8, I8):
        for width in (6, 18, 29, 100):
            x = {"x": mixed(2000, width, dtype=dtype)}
            yield f"ArgMax {_name(dtype)} 2000x{width}", case("ArgMax", x, axis=1)
    for dtype in (F, D):
        for kind in ("ReduceMax", "ReduceSum"):
            x = {"x": mixed(8, 43, 666, 2, dtype=dtype)}
            yield f"{kind} {_name(dtype)} 8x43x666x2", case(kind, x, {"a": np.arange(4)})
    for size in ((2, 7, 11, 11), (1, 4, 80), (2, 8, 8, 8), (1, 64, 56, 56)):
        axes, sides = len(size) - 2, "x".join(map(str, size))
        for kind in ("MaxPool", "AveragePool"):
            x = {"x": floats(*size, dtype=D)}
            yield f"{kind} double {sides}", case(kind, x, kernel_shape=[3] * axes, strides=[2] * axes)


def single() -> Cases:
    """Over rows of one element, and of matrices that are no longer small."""
    for kind in ("Softmax", "LogSoftmax", "Hardmax"):
        yield f"{kind} 70000x1", case(kind, {"x": floats(70000, 1)}, axis=1)
    for rows in (40, 64):
        x = floats(5, rows, rows) * np.float32(0.15)
        yield f"Det {rows}", case("Det", {"x": x})


def movement() -> Cases:
    """Interleaved, taken apart, repeated and mirrored by few elements."""
    for dtype in (F, U8, I64):
        for count in (2, 3, 4):
            parts = {f"x{i}": mixed(50000, 1, dtype=dtype) for i in range(count)}
            yield f"Concat {_name(dtype)} {count} columns", case("Concat", parts, axis=1)
            x = {"x": mixed(50000, count, dtype=dtype)}
            yield (
                f"Split {_name(dtype)} {count} columns",
                case("Split", x, outputs=count, axis=1, num_outputs=count),
            )
        for shape, pads in (((6, 8, 30, 25), (3,) * 8), ((253, 53, 8), (3, 1, 2) * 2)):
            for mode in ("constant", "reflect", "edge", "wrap"):
                x = {"x": mixed(*shape, dtype=dtype)}
                yield (
                    f"Pad {mode} {_name(dtype)} {'x'.join(map(str, shape))}",
                    case("Pad", x, {"p": np.array(pads)}, mode=mode),
                )
        for shape, times in (
            ((11, 30, 1, 3, 2), (3, 1, 1, 2, 3)),
            ((20, 30, 4), (2,) * 3),
            ((3, 5), (100,) * 2),
        ):
            x = {"x": mixed(*shape, dtype=dtype)}
            yield (
                f"Tile {_name(dtype)} {'x'.join(map(str, shape))}",
                case("Tile", x, {"r": np.array(times)}),
            )


def best() -> Cases:
    """Of long rows, as vocabularies, anchors and scores are, and nearly all of short ones."""
    for dtype in (F, D, I64):
        for shape, k in (
            ((50257,), 50),
            ((16, 32000), 40),
            ((8400,), 300),
            ((120000,), 1000),
            ((485657,), 30),
        ):
            yield (
                f"TopK {k} {_name(dtype)} {'x'.join(map(str, shape))}",
                case("TopK", {"x": mixed(*shape, dtype=dtype)}, {"k": np.array([k])}, outputs=2),
            )
        for shape, axis, k in (
            ((16, 64), 1, 64),
            ((300,), 0, 300),
            ((4, 300, 7), 1, 50),
            ((500, 3), 0, 400),
            ((2, 2000, 5), 1, 100),
        ):
            x = {"x": mixed(*shape, dtype=dtype)}
            yield (
                f"TopK {k} {_name(dtype)} {'x'.join(map(str, shape))} along {axis}",
                case("TopK", x, {"k": np.array([k])}, outputs=2, axis=axis),
            )


def runs() -> Cases:
    """Copies of runs of a few bytes and of many, rows beside what is spread over them."""
    for dtype in (U8, F):
        for shape, order in (((8, 10000, 4), (1, 0, 2)), ((3, 24, 302, 2), (2, 0, 1, 3))):
            name = f"Transpose {_name(dtype)} {'x'.join(map(str, shape))}"
            yield name, case("Transpose", {"x": mixed(*shape, dtype=dtype)}, perm=order)
    for dtype in (U8, F, I64):
        for width in (5, 8, 13):
            x, size = {"x": mixed(3, 1, width, dtype=dtype)}, {"s": np.array([3, 2000, width])}
            yield f"Expand {_name(dtype)} 2000 rows of {width}", case("Expand", x, size)
            y = {"x": mixed(2000, width, dtype=dtype), "y": mixed(width, dtype=dtype) + dtype(7)}
            yield f"Add {_name(dtype)} 2000x{width} and {width}", case("Add", y)
    for rows, width in ((200, 8000), (2000, 5000)):
        x = {"x": floats(50, width), "i": np.arange(rows) % 50}
        yield f"Gather {rows} rows of {width}", case("Gather", x)
    for kind in ("Div", "Mod"):
        x = {"x": mixed(3000, 8, dtype=I64), "y": np.arange(1, 9)}
        yield f"{kind} int64 3000x8 and 8", case(kind, x)
    yield "Mod double", case("Mod", {"x": floats(30000, dtype=D), "y": floats(30000, dtype=D)}, fmod=1)


def windows() -> Cases:
    """Pools of three axes and few channels."""
    for channels, size, step in ((3, (20, 20, 20), 1), (1, (13, 20, 28), 2), (5, (28, 28, 28), 1)):
        for kind in ("MaxPool", "AveragePool"):
            x = {"x": floats(1, channels, *size)}
            name = f"{kind} k3 s{step} {channels}x{'x'.join(map(str, size))}"
            yield name, case(kind, x, kernel_shape=[3] * 3, strides=[step] * 3)


def transposed() -> Cases:
    """Convolutions to few channels, without steps and with them."""
    for cin, cout, kernel, step, size in (
        (64, 8, 4, 1, (28, 28)),
        (64, 8, 5, 2, (28, 28)),
        (64, 10, 4, 2, (28, 28)),
        (24, 2, 5, 2, (8, 5, 8)),
        (32, 1, 4, 1, (14, 14, 14)),
        (64, 3, 8, 4, (28, 28)),
    ):
        x, w = {"x": floats(1, cin, *size)}, {"w": floats(cin, cout, *[kernel] * len(size))}
        name = f"ConvTranspose k{kernel} s{step} {cin} to {cout}, {'x'.join(map(str, size))}"
        yield name, case("ConvTranspose", x, w, strides=[step] * len(size))
    for cin, cout, kernel, size in (
        (4, 1, 31, (400,)),
        (64, 1, 31, (1000,)),
        (64, 1, 7, (1000,)),
        (32, 2, 3, (1000,)),
        (64, 1, 3, (40, 40)),
        (8, 3, 3, (64, 64)),
        (16, 4, 5, (30, 30)),
        (3, 1, 3, (50, 50)),
        (8, 4, 9, (8, 8)),
    ):
        x, w = {"x": floats(1, cin, *size)}, {"w": floats(cin, cout, *[kernel] * len(size))}
        name = f"ConvTranspose k{kernel} {cin} to {cout}, {'x'.join(map(str, size))}"
        yield name, case("ConvTranspose", x, w)
