"""What moves elements: transposes, slices, gathers, resizes, sorting."""

from __future__ import annotations

import numpy as np

from .arrays import I8, I32, I64, U8, D, F, H, case, floats, mixed, whole, words
from .elementwise import Cases, _name
from .measuring import MS


def transposes() -> Cases:
    for size, shape in {"small": (4, 8, 6), "large": (64, 128, 192)}.items():
        for perm in ((0, 2, 1), (2, 0, 1), (1, 0, 2), (2, 1, 0), (1, 2, 0)):
            for dtype in (F, H, U8, I64):
                yield (
                    f"Transpose {perm} {_name(dtype)} {size}",
                    case("Transpose", {"x": mixed(*shape, dtype=dtype)}, perm=perm),
                )
    for size, (c, side) in {"small": (3, 8), "large": (64, 112)}.items():
        for dtype in (F, U8):
            x = mixed(2, c, side, side, dtype=dtype)
            yield f"Transpose to NHWC {_name(dtype)} {size}", case("Transpose", {"x": x}, perm=[0, 2, 3, 1])
            yield f"Transpose to NCHW {_name(dtype)} {size}", case("Transpose", {"x": x}, perm=[0, 3, 1, 2])
    for size, (rows, heads, width) in {"small": (8, 4, 8), "large": (512, 12, 64)}.items():
        yield (
            f"Transpose heads {size}",
            case("Transpose", {"x": floats(1, rows, heads, width)}, perm=[0, 2, 1, 3]),
        )
    for size, shape in {"small": (2, 3, 2, 3, 2, 3), "large": (8, 9, 10, 11, 12, 3)}.items():
        yield f"Transpose of six {size}", case("Transpose", {"x": floats(*shape)}, perm=[5, 0, 3, 1, 4, 2])


def views() -> Cases:
    for size, shape in {"small": (8, 16), "large": (512, 2048)}.items():
        x, n = floats(*shape), shape[0] * shape[1]
        yield f"Reshape {size}", case("Reshape", {"x": x}, {"s": np.array([-1])})
        yield f"Flatten {size}", case("Flatten", {"x": x}, axis=0)
        yield f"Squeeze {size}", case("Squeeze", {"x": x[None]}, {"a": np.array([0])})
        yield f"Unsqueeze {size}", case("Unsqueeze", {"x": x}, {"a": np.array([0])})
        yield f"Shape {size}", case("Shape", {"x": x})
        yield f"Size {size}", case("Size", {"x": x})
        yield f"Expand {size}", case("Expand", {"x": x[:1]}, {"s": np.array(shape)})
        yield f"Tile {size}", case("Tile", {"x": x}, {"r": np.array([2, 3])})
        yield f"ConstantOfShape {size}", case("ConstantOfShape", {"s": np.array(shape)})
        yield f"Range {size}", case("Range", {"a": np.array(0), "b": np.array(n), "c": np.array(1)})
        yield (
            f"Range float32 {size}",
            case(
                "Range",
                {"a": F(0), "b": F(n), "c": F(1)}
                | {"a": np.array(0, F), "b": np.array(n, F), "c": np.array(1, F)},
            ),
        )
        yield f"EyeLike {size}", case("EyeLike", {"x": x})
        yield f"Trilu {size}", case("Trilu", {"x": x})
        yield f"Dropout {size}", case("Dropout", {"x": x})
        yield (
            f"OneHot {size}",
            case("OneHot", {"i": whole(99, shape[0])}, {"d": np.array(100), "v": np.array([0, 1], F)}),
        )
        for dtype in (F, U8, I64):
            y = mixed(*shape, dtype=dtype)
            for axis in (0, 1):
                yield (
                    f"Concat {axis} {_name(dtype)} {size}",
                    case("Concat", {"a": y, "b": y, "c": y}, axis=axis),
                )
                yield (
                    f"Split {axis} {_name(dtype)} {size}",
                    case("Split", {"x": y}, outputs=4, axis=axis, num_outputs=4),
                )
            for how, part in {
                "first half": (0, shape[0] // 2, 0, 1),
                "columns": (1, shape[1] - 1, 1, 1),
                "every second": (0, shape[1], 1, 2),
                "reversed rows": (shape[0], -shape[0] - 1, 0, -1),
                "reversed": (shape[1], -shape[1] - 1, 1, -1),
            }.items():
                yield (
                    f"Slice {how} {_name(dtype)} {size}",
                    case("Slice", {"x": y}, {n: np.array([v]) for n, v in zip("seat", part, strict=True)}),
                )
            for mode in ("constant", "reflect", "edge", "wrap"):
                yield (
                    f"Pad {mode} {_name(dtype)} {size}",
                    case("Pad", {"x": y}, {"p": np.array([1, 2, 3, 1])}, mode=mode),
                )


def gathers() -> Cases:
    for size, (rows, width, n) in {"small": (8, 16, 4), "large": (2048, 512, 1024)}.items():
        for dtype in (F, I64, H, U8):
            x = mixed(rows, width, dtype=dtype)
            yield f"Gather rows {_name(dtype)} {size}", case("Gather", {"x": x, "i": whole(rows, n)})
            yield (
                f"Gather columns {_name(dtype)} {size}",
                case("Gather", {"x": x, "i": whole(width, n)}, axis=1),
            )
            yield (
                f"GatherElements {_name(dtype)} {size}",
                case("GatherElements", {"x": x, "i": whole(width, rows, n)}, axis=1),
            )
            yield (
                f"GatherND {_name(dtype)} {size}",
                case("GatherND", {"x": x, "i": np.stack([whole(rows, n), whole(width, n)], 1)}),
            )
            i = np.argsort(floats(rows, width), 1)[:, : min(n, width)]
            yield (
                f"ScatterElements {_name(dtype)} {size}",
                case("ScatterElements", {"x": x, "i": i, "u": mixed(*i.shape, dtype=dtype)}, axis=1),
            )
            i = np.random.default_rng(0).permutation(rows)[: min(n, rows), None]
            yield (
                f"ScatterND {_name(dtype)} {size}",
                case("ScatterND", {"x": x, "i": i, "u": mixed(len(i), width, dtype=dtype)}),
            )
            yield (
                f"Compress {_name(dtype)} {size}",
                case("Compress", {"x": x, "c": whole(2, rows).astype(bool)}, axis=0),
            )
            yield (
                f"Unique {_name(dtype)} {size}",
                case("Unique", {"x": whole(99, rows * 4).astype(dtype)}, outputs=4),
            )
            yield f"NonZero {_name(dtype)} {size}", case("NonZero", {"x": x})
        yield f"Gather scalar {size}", case("Gather", {"x": floats(rows, width)}, {"i": np.array(3)})
        yield (
            f"ScatterElements add {size}",
            case(
                "ScatterElements",
                {"x": floats(rows, width), "i": whole(width, rows, n // 2), "u": floats(rows, n // 2)},
                axis=1,
                reduction="add",
            ),
        )
        for dtype in (F, I64, D, I32):
            for k in (1, 5, min(100, width)):
                yield (
                    f"TopK {k} {_name(dtype)} {size}",
                    case("TopK", {"x": mixed(rows, width, dtype=dtype)}, {"k": np.array([k])}, outputs=2),
                )
        yield (
            f"TopK first axis {size}",
            case("TopK", {"x": floats(rows, width)}, {"k": np.array([4])}, outputs=2, axis=0),
        )
        yield (
            f"ReverseSequence {size}",
            case(
                "ReverseSequence",
                {"x": floats(rows, 8, width // 8), "n": whole(rows, 8) + 1},
                time_axis=0,
                batch_axis=1,
            ),
        )
        yield f"Gather text {size}", case("Gather", {"x": words(rows), "i": whole(rows, n)})
        yield f"Concat text {size}", case("Concat", {"a": words(rows), "b": words(rows)}, axis=0)
        boxes = np.abs(floats(1, n, 4)) + np.array([0, 0, 1, 1], F)
        yield (
            f"NonMaxSuppression {size}",
            case(
                "NonMaxSuppression",
                {"b": boxes, "s": floats(1, 1, n)},
                {"m": np.array([50]), "i": np.array([0.5], F), "t": np.array([0.0], F)},
            ),
        )
        yield (
            f"TensorScatter {size}",
            case("TensorScatter", {"x": floats(2, 4, n, 8), "u": floats(2, 4, 2, 8), "i": np.array([1, 0])}),
        )


def images() -> Cases:
    for size, (c, side) in {"small": (3, 8), "large": (32, 64)}.items():
        for dtype in (F, U8, I8, H):
            x = mixed(1, c, side, side, dtype=dtype)
            for mode, factors in (("nearest", (2, 1.5, 0.5)), ("linear", (2, 1.5, 0.5)), ("cubic", (2, 0.7))):
                for by in factors:
                    yield (
                        f"Resize {mode} {by} {_name(dtype)} {size}",
                        case("Resize", {"x": x}, {"s": np.array([1, 1, by, by], F)}, "x - s", mode=mode),
                    )
        x = floats(1, c, side, side)
        for mode in ("asymmetric", "align_corners", "pytorch_half_pixel"):
            for kind in ("nearest", "linear"):
                yield (
                    f"Resize {kind} {mode} {size}",
                    case(
                        "Resize",
                        {"x": x},
                        {"s": np.array([1, 1, 2, 2], F)},
                        "x - s",
                        mode=kind,
                        coordinate_transformation_mode=mode,
                    ),
                )
        yield (
            f"Resize linear NHWC {size}",
            case(
                "Resize",
                {"x": floats(1, side, side, c)},
                {"s": np.array([1, 2, 2, 1], F)},
                "x - s",
                mode="linear",
            ),
        )
        yield (
            f"Resize antialias {size}",
            case(
                "Resize", {"x": x}, {"s": np.array([1, 1, 0.5, 0.5], F)}, "x - s", mode="linear", antialias=1
            ),
        )
        for mode in ("linear", "nearest", "cubic"):
            for padding in ("zeros", "border", "reflection"):
                yield (
                    f"GridSample {mode} {padding} {size}",
                    case(
                        "GridSample",
                        {"x": x, "g": np.tanh(floats(1, side, side, 2))},
                        mode=mode,
                        padding_mode=padding,
                    ),
                )
        boxes = np.abs(floats(20, 4)) * F(2) + np.array([0, 0, side / 2, side / 2], F)
        for mode in ("avg", "max"):
            yield (
                f"RoiAlign {mode} {size}",
                case(
                    "RoiAlign",
                    {"x": x, "r": boxes, "i": np.zeros(20, I64)},
                    mode=mode,
                    output_height=7,
                    output_width=7,
                ),
            )
        yield (
            f"MaxRoiPool {size}",
            case(
                "MaxRoiPool",
                {"x": x, "r": np.concatenate([np.zeros((20, 1), F), boxes], 1)},
                pooled_shape=[7, 7],
            ),
        )
        yield (
            f"AffineGrid {size}",
            case("AffineGrid", {"t": floats(1, 2, 3)}, {"s": np.array([1, c, side, side])}),
        )
        yield (
            f"Col2Im {size}",
            case(
                "Col2Im",
                {"x": floats(1, c * 9, (side - 2) ** 2)},
                {"i": np.array([side, side]), "b": np.array([3, 3])},
            ),
        )
        yield (
            f"CenterCropPad {size}",
            case("CenterCropPad", {"x": x}, {"s": np.array([side - 2, side + 2])}, axes=[2, 3]),
        )
        for kind in ("DepthToSpace", "SpaceToDepth"):
            y = floats(1, 16, side, side)
            yield f"{kind} {size}", case(kind, {"x": y}, blocksize=2)
        yield (
            f"DepthToSpace CRD {size}",
            case("DepthToSpace", {"x": floats(1, 16, side, side)}, blocksize=2, mode="CRD"),
        )
        yield f"Det {size}", case("Det", {"x": floats(c, 8, 8)})
        yield f"Inverse {size}", case("Inverse", {"x": floats(c, 8, 8)}, domain=MS)
        yield (
            f"CDist {size}",
            case("CDist", {"a": floats(side * 8, 16), "b": floats(side * 8, 16)}, domain=MS),
        )
        n = side * side
        yield f"DFT {size}", case("DFT", {"x": floats(1, n, 1)}, {"a": np.array(1)}, "x - a")
        yield (
            f"DFT of 1000 {size}",
            case("DFT", {"x": floats(c, 1000, 1)}, {"a": np.array(1)}, "x - a", onesided=1),
        )
        yield (
            f"STFT {size}",
            case("STFT", {"x": floats(1, n * 8, 1)}, {"s": np.array(n // 8), "w": floats(n // 2)}),
        )
        for kind in ("HannWindow", "HammingWindow", "BlackmanWindow"):
            yield f"{kind} {size}", case(kind, {"n": np.array(n)})
        yield (
            f"MelWeightMatrix {size}",
            case(
                "MelWeightMatrix",
                {},
                {
                    "m": np.array(80),
                    "n": np.array(400),
                    "r": np.array(16000),
                    "a": np.array(0.0, F),
                    "b": np.array(8000.0, F),
                },
            ),
        )
        yield (
            f"com.microsoft Pad {size}",
            case(
                "Pad", {"x": x}, {"p": np.array([0, 0, 1, 1, 0, 0, 1, 1]), "v": np.array([0], F)}, domain=MS
            ),
        )
        yield (
            f"NGramRepeatBlock {size}",
            case("NGramRepeatBlock", {"i": whole(90, c, side), "s": floats(c, 100)}, domain=MS, ngram_size=2),
        )
        yield f"Bernoulli {size}", case("Bernoulli", {"x": np.abs(np.tanh(x))})
        yield f"RandomNormalLike {size}", case("RandomNormalLike", {"x": x})
        yield f"Multinomial {size}", case("Multinomial", {"x": floats(c, side)}, sample_size=side, dtype=7)
        for dtype in (I32,):
            yield (
                f"BitwiseNot {_name(dtype)} {size}",
                case("BitwiseNot", {"x": whole(99, side, side, dtype=dtype)}),
            )
