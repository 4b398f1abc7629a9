"""Products, convolutions, pooling, recurrent layers, attention."""

from __future__ import annotations

import numpy as np

from .arrays import I8, I32, I64, U8, D, F, H, case, floats, mixed, whole
from .elementwise import Cases, _name
from .measuring import MS


def products() -> Cases:
    sizes = {
        "small": (8, 16, 16),
        "large": (128, 512, 512),
        "row small": (1, 64, 64),
        "row large": (1, 2048, 2048),
        "few rows": (4, 1024, 1024),
        "eight rows": (8, 1024, 1024),
        "wide large": (512, 64, 4096),
        "deep large": (64, 4096, 64),
        "column large": (2048, 2048, 1),
    }
    for size, (m, k, n) in sizes.items():
        for dtype in (F, D, H, I32, I64):
            a, b = mixed(m, k, dtype=dtype), mixed(k, n, dtype=dtype)
            yield f"MatMul {_name(dtype)} computed {size}", case("MatMul", {"a": a, "b": b})
            if dtype in (F, D, H):
                yield f"MatMul {_name(dtype)} {size}", case("MatMul", {"a": a}, {"b": b})
                yield (
                    f"Gemm {_name(dtype)} {size}",
                    case("Gemm", {"a": a}, {"b": b.T.copy(), "c": floats(n, dtype=dtype)}, transB=1),
                )
        yield f"Gemm transA {size}", case("Gemm", {"a": floats(k, m), "b": floats(k, n)}, transA=1)
        yield (
            f"FusedMatMul {size}",
            case("FusedMatMul", {"a": floats(m, k), "b": floats(n, k)}, domain=MS, transB=1, alpha=0.5),
        )
        for kind in (U8, I8):
            fed = {"a": mixed(m, k, dtype=U8), "b": mixed(k, n, dtype=kind)}
            yield f"MatMulInteger {_name(kind)} computed {size}", case("MatMulInteger", fed)
    for size, (heads, rows, width) in {"small": (2, 8, 8), "large": (12, 128, 64)}.items():
        a, b = floats(heads, rows, width), floats(heads, width, rows)
        yield f"MatMul batch {size}", case("MatMul", {"a": a, "b": b})
        yield f"MatMul batch by one {size}", case("MatMul", {"a": a, "b": floats(width, rows)})
        yield f"MatMul vector {size}", case("MatMul", {"a": floats(width), "b": b})
        q = floats(2, rows, heads, width)
        for how, fed in {
            "bid,bjd->bij": (a, floats(heads, rows, width)),
            "ij,jk->ik": (a[0], b[0]),
            "bihd,bjhd->bhij": (q, q),
            "bhij,bjhd->bihd": (floats(2, heads, rows, rows), q),
            "ij,ik->ijk": (a[0], floats(rows, width)),
            "ii->i": (floats(rows, rows),),
            "ij->ji": (a[0],),
            "bij->b": (a,),
            "ij,jk,kl->il": (a[0], b[0], a[0]),
        }.items():
            yield f"Einsum {how} {size}", case("Einsum", dict(zip("abc", fed, strict=False)), equation=how)


def convolutions() -> Cases:
    forms = {
        "k1 64": (64, 64, (1, 1), 1, {}),
        "k3 64": (64, 64, (3, 3), 1, {"pads": [1] * 4}),
        "k3 s2 64": (64, 128, (3, 3), 1, {"pads": [1] * 4, "strides": [2, 2]}),
        "k7 s2 3": (3, 64, (7, 7), 1, {"strides": [2, 2]}),
        "k3 dilated": (32, 32, (3, 3), 1, {"dilations": [2, 2]}),
        "k3 groups": (64, 64, (3, 3), 4, {}),
        "k3 depthwise": (96, 96, (3, 3), 96, {"pads": [1] * 4}),
        "k5 depthwise s2": (96, 96, (5, 5), 96, {"strides": [2, 2]}),
        "k31 depthwise": (32, 32, (31, 31), 32, {"pads": [15] * 4}),
        "k3 depthwise twice": (32, 64, (3, 3), 32, {}),
        "k9 to 3": (32, 3, (9, 9), 1, {"pads": [4] * 4}),
        "k1x7": (64, 64, (1, 7), 1, {"pads": [0, 3, 0, 3]}),
        "k5 1 channel": (1, 16, (5, 5), 1, {}),
    }
    for side, batch, size in ((14, 1, "small"), (56, 1, "large"), (28, 8, "batch 8")):
        for form, (c, m, window, group, attrs) in forms.items():
            if max(window) == 31 and side < 56:
                continue
            held = {"w": floats(m, c // group, *window), "b": floats(m)}
            yield (
                f"Conv {form} {size}",
                case("Conv", {"x": floats(batch, c, side, side)}, held, group=group, **attrs),
            )
        for form, (c, m, k, s) in {
            "k2 s2": (64, 32, 2, 2),
            "k4 s2": (64, 32, 4, 2),
            "k3": (32, 32, 3, 1),
            "to 1": (64, 1, 4, 2),
        }.items():
            yield (
                f"ConvTranspose {form} {size}",
                case(
                    "ConvTranspose",
                    {"x": floats(batch, c, side, side)},
                    {"w": floats(c, m, k, k)},
                    strides=[s, s],
                ),
            )
        yield (
            f"Conv float16 {size}",
            case("Conv", {"x": floats(batch, 32, side, side, dtype=H)}, {"w": floats(32, 32, 3, 3, dtype=H)}),
        )
        yield (
            f"Conv float64 {size}",
            case("Conv", {"x": floats(batch, 32, side, side, dtype=D)}, {"w": floats(32, 32, 3, 3, dtype=D)}),
        )
        yield (
            f"FusedConv {size}",
            case(
                "FusedConv",
                {"x": floats(batch, 32, side, side)},
                {"w": floats(32, 32, 3, 3)},
                domain=MS,
                activation="Relu",
            ),
        )
    for size, length in (("small", 64), ("large", 16000)):
        for form, (c, m, k, group) in {
            "k3": (64, 64, 3, 1),
            "k9": (32, 64, 9, 1),
            "k16 1": (1, 32, 16, 1),
            "k5 depthwise": (64, 64, 5, 64),
        }.items():
            yield (
                f"Conv1d {form} {size}",
                case("Conv", {"x": floats(1, c, length)}, {"w": floats(m, c // group, k)}, group=group),
            )
        yield (
            f"ConvTranspose1d {size}",
            case(
                "ConvTranspose", {"x": floats(1, 128, length // 16)}, {"w": floats(128, 1, 16)}, strides=[8]
            ),
        )
    for size, side in (("small", 8), ("large", 24)):
        for k in (1, 3):
            yield (
                f"Conv3d k{k} {size}",
                case("Conv", {"x": floats(1, 16, side, side, side)}, {"w": floats(32, 16, k, k, k)}),
            )
        yield (
            f"MaxPool3d {size}",
            case("MaxPool", {"x": floats(1, 16, side, side, side)}, kernel_shape=[2] * 3, strides=[2] * 3),
        )
        yield (
            f"DeformConv {size}",
            case(
                "DeformConv",
                {
                    "x": floats(1, 16, side, side),
                    "w": floats(16, 16, 3, 3),
                    "o": floats(1, 18, side - 2, side - 2),
                },
            ),
        )
    for size, (c, side) in {"small": (8, 14), "large": (64, 112)}.items():
        x = floats(1, c, side, side)
        for kind in ("MaxPool", "AveragePool", "LpPool"):
            for k, s, p in ((2, 2, 0), (3, 2, 1), (3, 1, 1), (5, 1, 2)):
                yield (
                    f"{kind} k{k} s{s} {size}",
                    case(kind, {"x": x}, kernel_shape=[k, k], strides=[s, s], pads=[p] * 4),
                )
        yield (
            f"MaxPool indices {size}",
            case("MaxPool", {"x": x}, outputs=2, kernel_shape=[2, 2], strides=[2, 2]),
        )
        yield (
            f"MaxPool uint8 {size}",
            case("MaxPool", {"x": mixed(1, c, side, side, dtype=U8)}, kernel_shape=[2, 2], strides=[2, 2]),
        )
        yield (
            f"MaxUnpool {size}",
            case(
                "MaxUnpool",
                {"x": x, "i": whole(4, *x.shape) + 4 * np.arange(x.size).reshape(x.shape)},
                kernel_shape=[2, 2],
                strides=[2, 2],
            ),
        )
        for kind in ("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool"):
            yield f"{kind} {size}", case(kind, {"x": x})


def recurrent() -> Cases:
    for kind, gates in (("RNN", 1), ("GRU", 3), ("LSTM", 4)):
        for size, (steps, batch, hidden) in {
            "small": (8, 1, 16),
            "step": (1, 1, 512),
            "large": (64, 1, 256),
            "batch": (32, 16, 128),
        }.items():
            for ways in (1, 2):
                held = {
                    "w": floats(ways, gates * hidden, hidden) * F(0.1),
                    "r": floats(ways, gates * hidden, hidden) * F(0.1),
                    "b": floats(ways, 2 * gates * hidden),
                }
                fed = {"x": floats(steps, batch, hidden)}
                direction = ("forward", "bidirectional")[ways - 1]
                for how, given in {"": (fed, held), " computed": (fed | held, {})}.items():
                    yield (
                        f"{kind} {ways}{how} {size}",
                        case(kind, *given, outputs=2, hidden_size=hidden, direction=direction),
                    )


def attention() -> Cases:
    for size, (rows, width, heads) in {"small": (8, 64, 4), "large": (256, 512, 8)}.items():
        x = floats(1, rows, width)
        yield (
            f"Attention {size}",
            case(
                "Attention",
                {"x": x},
                {"w": floats(width, 3 * width), "b": floats(3 * width)},
                domain=MS,
                num_heads=heads,
            ),
        )
        yield (
            f"MultiHeadAttention {size}",
            case("MultiHeadAttention", {"q": x, "k": x, "v": x}, domain=MS, num_heads=heads),
        )
        cache = floats(1, heads // 2, rows, width // heads)
        kv = floats(1, 1, width // 2)
        fed = {
            "q": floats(1, 1, width),
            "k": kv,
            "v": kv,
            "pk": cache,
            "pv": cache,
            "n": np.array([rows], I32),
            "t": np.array(rows + 1, I32),
        }
        yield (
            f"GroupQueryAttention {size}",
            case("GroupQueryAttention", fed, domain=MS, outputs=3, num_heads=heads, kv_num_heads=heads // 2),
        )
        angles = {"c": floats(rows, width // heads // 2), "s": floats(rows, width // heads // 2)}
        yield (
            f"RotaryEmbedding {size}",
            case("RotaryEmbedding", {"x": x, "p": np.arange(rows)[None]}, angles, domain=MS, num_heads=heads),
        )
        yield (
            f"EmbedLayerNormalization {size}",
            case(
                "EmbedLayerNormalization",
                {"i": whole(900, 1, rows, dtype=I32), "s": whole(2, 1, rows, dtype=I32)},
                {
                    "w": floats(1000, width),
                    "p": floats(512, width),
                    "e": floats(2, width),
                    "g": floats(width),
                    "b": floats(width),
                },
                domain=MS,
                outputs=2,
            ),
        )
        for bits, level in ((4, 0), (4, 4), (8, 0), (8, 4)):
            k = n = width * 2
            held = {
                "w": whole(256, n, k // 32, 4 * bits, dtype=U8),
                "s": np.abs(floats(n * k // 32)) * F(0.01),
            }
            for m in (1, rows):
                yield (
                    f"MatMulNBits {bits} bits level {level} {m} rows {size}",
                    case(
                        "MatMulNBits",
                        {"x": floats(m, k)},
                        held,
                        domain=MS,
                        K=k,
                        N=n,
                        bits=bits,
                        block_size=32,
                        accuracy_level=level,
                    ),
                )
