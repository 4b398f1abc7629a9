"""Random valid applications of com.microsoft's operators."""

from __future__ import annotations

from typing import Any

import numpy as np
from oracle import Case

from fuzz.draw import F32, Draw

MS = "com.microsoft"


def fused(d: Draw) -> Case:
    """Activations with a bias, products with a scale, sums before a normalization."""
    op = d.one(
        [
            "BiasGelu",
            "FastGelu",
            "Gelu",
            "QuickGelu",
            "BiasSoftmax",
            "FusedMatMul",
            "FusedGemm",
            "FusedConv",
            "SkipLayerNormalization",
            "SkipSimplifiedLayerNormalization",
            "TransposeMatMul",
            "BiasAdd",
        ]
    )
    n = d.one([2, 4, 5])
    x = d.array((d.int(1, 2), d.int(1, 3), n))
    bound: dict[str, Any] = {"domain": MS, "rtol": 1e-3, "atol": 1e-4}
    if op in ("BiasGelu", "FastGelu"):
        return Case(op, [x, *([d.array((n,))] if op == "BiasGelu" or d.yes() else [])], **bound)
    if op in ("Gelu", "QuickGelu"):
        return Case(op, [x], {"alpha": 1.5} if op == "QuickGelu" and d.yes() else {}, **bound)
    if op == "BiasSoftmax":
        x = d.array((2, 3, 2, 4))
        return Case(op, [x, d.array((2, 1, 1, 4))], {"axis": 3, "is_inner_broadcast": 0}, **bound)
    if op == "BiasAdd":
        x = d.array((2, 3, 4))
        return Case(op, [x, d.array((4,)), d.array((2, 3, 4))], **bound)
    if op in ("FusedMatMul", "TransposeMatMul"):
        attrs = {"transA": d.int(0, 1), "transB": d.int(0, 1), "alpha": d.one([1.0, 0.5])}
        m, k = d.int(1, 3), d.int(1, 4)
        batch = d.shape(0, 2, least=1, most=3)
        a, b = (
            (*batch, *((k, m) if attrs["transA"] else (m, k))),
            (*batch, *((n, k) if attrs["transB"] else (k, n))),
        )
        if op == "FusedMatMul" and len(batch) and d.yes():
            which = d.one(["transBatchA", "transBatchB"])
            shape = a if which[-1] == "A" else b
            attrs[which] = 1
            inner = (*shape[1:-1], shape[0], shape[-1])
            a, b = (inner, b) if which[-1] == "A" else (a, inner)
        return Case(op, [d.array(a), d.array(b)], attrs, **bound)
    if op == "FusedGemm":
        attrs = {
            "activation": d.one(["Relu", "Sigmoid", "Tanh"]),
            "alpha": d.one([1.0, 0.5]),
            "transB": d.int(0, 1),
        }
        w = d.array((3, n) if attrs["transB"] else (n, 3))
        return Case(op, [d.array((2, n)), w, d.array((3,))], attrs, **bound)
    if op == "FusedConv":
        attrs = {
            "activation": d.one(["Relu", "Sigmoid", "Tanh"]),
            "pads": [1, 1, 1, 1],
            "kernel_shape": [3, 3],
        }
        if d.yes():
            attrs |= {"activation": "LeakyRelu", "activation_params": [0.2]}
        inputs = [d.array((1, 2, 4, 5)), d.array((3, 2, 3, 3)), d.array((3,))]
        if d.yes():
            inputs.append(d.array((1, 3, 4, 5)))
        return Case(op, inputs, attrs, **bound)
    skip = d.array(x.shape if d.yes() else x.shape[1:] if d.yes() else (1, *x.shape[1:]))
    inputs = [x, skip, d.array((n,))]
    if op == "SkipLayerNormalization":
        inputs += [d.array((n,)) if d.yes() else None]
    inputs += [d.array((n,)) if d.yes() else None]
    return Case(op, inputs, {"epsilon": 1e-3}, **bound)


def contrib_attention(d: Draw) -> Case:
    op = d.one(["Attention", "MultiHeadAttention", "GroupQueryAttention", "RotaryEmbedding"])
    batch, length, heads, size = d.int(1, 2), d.int(1, 4), d.one([1, 2]), d.one([4, 8])
    if op == "GroupQueryAttention":
        size = 16
    width = heads * size
    bound: dict[str, Any] = {"domain": MS, "rtol": 1e-3, "atol": 1e-3}
    if op == "Attention":
        inputs: list[Any] = [
            d.array((batch, length, width), F32, -1, 1),
            d.array((width, 3 * width), F32, -1, 1),
            d.array((3 * width,), F32, -1, 1),
        ]
        kind = d.int(0, 3)
        if kind == 1:
            inputs.append(d.array((batch,), np.int32, 1, length + 1))
        elif kind == 2:
            mask = d.array((batch, length), np.int32, 0, 2)
            mask[:, 0] = 1
            inputs.append(mask)
        else:
            inputs.append(None)
        attrs: dict[str, Any] = {"num_heads": heads}
        if d.yes():
            attrs["unidirectional"] = 1
        if d.yes():
            inputs += [None, d.array((batch if d.yes() else 1, heads, length, length), F32, -1, 1)]
        return Case(op, inputs, attrs, **bound)
    if op == "MultiHeadAttention":
        source = length if d.yes() else d.int(1, 4)
        inputs = [
            d.array((batch, length, width)),
            d.array((batch, source, width)),
            d.array((batch, source, width)),
        ]
        inputs.append(d.array((3 * width,)) if d.yes() else None)
        if d.yes():
            mask = d.array((batch, source), np.int32, 0, 2)
            mask[:, 0] = 1
            inputs.append(mask)
        else:
            inputs.append(None)
        if d.yes():
            inputs.append(d.array((batch if d.yes() else 1, heads, length, source)))
        attrs = {"num_heads": heads}
        if d.yes():
            attrs["scale"] = 0.3
        if d.yes() and source == length:
            attrs["unidirectional"] = 1
        return Case(op, inputs, attrs, **bound)
    if op == "GroupQueryAttention":
        shared = d.one([1, 2])
        total = length
        past = None
        if d.yes():
            p = d.int(1, 3)
            past = [d.array((batch, heads, p, size)) for _ in "kv"]
            length, total = 1, p + 1
        q = d.array((batch, length, shared * width))
        k, v = d.array((batch, length, width)), d.array((batch, length, width))
        last = np.full((batch,), total - 1, np.int32)
        inputs = [q, k, v, *(past or [None, None]), last, np.array(total, np.int32)]
        attrs = {"num_heads": shared * heads, "kv_num_heads": heads}
        if d.yes():
            inputs += [d.array((8, size // 2), F32, -1, 1), d.array((8, size // 2), F32, -1, 1)]
            attrs |= {"do_rotary": 1, "rotary_interleaved": d.int(0, 1)}
        if d.yes():
            attrs["local_window_size"] = d.int(1, 3)
        if d.yes():
            attrs["softcap"] = 5.0
        return Case(op, inputs, attrs, outputs=3, **bound)
    shape = (batch, length, width) if d.yes() else (batch, heads, length, size)
    position = d.array((batch, length), np.int64, 0, 6) if d.yes() else np.array([d.int(0, 3)], np.int64)
    caches = [d.array((8, size // 2), F32, -1, 1) for _ in "cs"]
    attrs = {
        "interleaved": d.int(0, 1),
        **({"num_heads": heads, "rotary_embedding_dim": size} if len(shape) == 3 else {}),
    }
    if len(shape) == 3:
        attrs.pop("rotary_embedding_dim") if d.yes() else None
    return Case(op, [d.array(shape), position, *caches], attrs, **bound)


def contrib_quantized(d: Draw) -> Case:
    op = d.one(
        [
            "MatMulIntegerToFloat",
            "DynamicQuantizeMatMul",
            "QLinearAdd",
            "QLinearMul",
            "QLinearLeakyRelu",
            "QLinearSigmoid",
            "QLinearConcat",
            "QLinearAveragePool",
            "QLinearGlobalAveragePool",
            "QGemm",
            "QLinearSoftmax",
            "QLinearWhere",
            "MatMulNBits",
            "GatherBlockQuantized",
        ]
    )
    dtype = d.one((np.uint8, np.int8))
    bound: dict[str, Any] = {"domain": MS, "rtol": 1e-3, "atol": 1e-3, "slack": 1}
    m, k, n = d.int(1, 3), d.one([2, 4, 5]), d.one([1, 3, 4])

    def scale() -> np.ndarray:
        return d.array((), F32, 0.05, 0.5)

    def zero() -> np.ndarray:
        return d.array((), dtype, 0, 9)

    def wild(*shape: int) -> np.ndarray:
        return d.wild(shape, dtype)

    if op == "MatMulIntegerToFloat":
        columns = () if d.yes() else (n,)
        inputs: list[Any] = [d.wild((m, k), np.uint8), wild(k, n), scale(), d.array(columns, F32, 0.1, 1)]
        inputs += [d.array((), np.uint8, 0, 9), d.array(columns, dtype, 0, 9)] if d.yes() else [None, None]
        inputs += [d.array((n,))] if d.yes() else []
        return Case(op, inputs, **bound)
    if op == "DynamicQuantizeMatMul":
        columns = () if d.yes() else (n,)
        inputs = [d.array((m, k)), wild(k, n), d.array(columns, F32, 0.1, 1)]
        inputs += [d.array(columns, dtype, 0, 9) if d.yes() else None]
        inputs += [d.array((n,))] if d.yes() else []
        return Case(op, inputs, **bound)
    if op in ("QLinearAdd", "QLinearMul"):
        shape = d.shape(1, 3, least=1)
        other = d.broadcastable(shape)
        return Case(
            op, [wild(*shape), scale(), zero(), wild(*other), scale(), zero(), scale(), zero()], **bound
        )
    if op in ("QLinearLeakyRelu", "QLinearSigmoid"):
        attrs = {"alpha": 0.2} if op == "QLinearLeakyRelu" else {}
        return Case(op, [wild(*d.shape(1, 3, least=1)), scale(), zero(), scale(), zero()], attrs, **bound)
    if op == "QLinearConcat":
        parts = [[wild(m, d.int(1, 3)), scale(), zero()] for _ in range(d.int(1, 3))]
        return Case(op, [scale(), zero(), *(v for p in parts for v in p)], {"axis": d.one([1, -1])}, **bound)
    if op in ("QLinearAveragePool", "QLinearGlobalAveragePool"):
        last = d.int(0, 1)
        x = wild(1, 2, 4, 5) if not last else wild(1, 4, 5, 2)
        attrs = {"channels_last": last}
        if op == "QLinearAveragePool":
            attrs |= {"kernel_shape": [2, 2], "pads": [d.int(0, 1)] * 4, "count_include_pad": d.int(0, 1)}
        return Case(op, [x, scale(), zero(), scale(), zero()], attrs, **bound)
    if op == "QGemm":
        attrs = {"transA": d.int(0, 1), "transB": d.int(0, 1)}
        a, b = ((k, m) if attrs["transA"] else (m, k)), ((n, k) if attrs["transB"] else (k, n))
        columns = () if d.yes() else (n,)
        inputs = [
            d.array(a, np.uint8, 0, 200),
            scale(),
            d.array((), np.uint8, 0, 9),
            wild(*b),
            d.array(columns, F32, 0.1, 1),
            d.array(columns, dtype, 0, 9),
            d.array((n,), np.int32, -99, 99) if d.yes() else None,
        ]
        inputs += [d.array((), F32, 20, 50), d.array((), np.uint8, 0, 9)] if d.yes() else []
        return Case(op, inputs, attrs, **bound)
    if op == "QLinearSoftmax":
        x = wild(2, 3, 4)
        y_zero = np.array(0 if dtype == np.uint8 else -128, dtype)
        return Case(
            op,
            [x, scale(), zero(), np.array(1 / 256, F32), y_zero],
            {"axis": d.one([-1, 2, 1]), "opset": 13},
            **bound,
        )
    if op == "QLinearWhere":
        shape = d.shape(1, 3, least=1)
        return Case(
            op,
            [
                d.array(shape, bool),
                wild(*shape),
                scale(),
                zero(),
                wild(*d.broadcastable(shape)),
                scale(),
                zero(),
                scale(),
                zero(),
            ],
            **bound,
        )
    if op == "MatMulNBits":
        block, k = 16, d.one([16, 32, 40])
        blocks = -(-k // block)
        bits = d.one([4, 8]) if d.yes() else 4
        per = block * bits // 8
        inputs = [d.array((m, k)), d.wild((n, blocks, per), np.uint8), d.array((n * blocks,), F32, 0.05, 0.2)]
        if d.yes():
            inputs.append(d.wild((n * -(-blocks * bits // 8),), np.uint8))
        return Case(
            op,
            inputs,
            {"K": k, "N": n, "bits": bits, "block_size": block},
            **{**bound, "rtol": 1e-2, "atol": 1e-2},
        )
    data = d.wild((3, 16), np.uint8)
    index = d.array(d.shape(0, 2, least=1), np.int64, 0, 3)
    attrs = {"gather_axis": 0, "quantize_axis": 1, "block_size": 16, "bits": 8}
    return Case(
        op,
        [data, index, d.array((3, 1), F32, 0.1, 1), d.wild((3, 1), np.uint8)][: d.int(3, 4)],
        attrs,
        **bound,
    )


def contrib_data(d: Draw) -> Case:
    op = d.one(
        [
            "ExpandDims",
            "Inverse",
            "CDist",
            "NGramRepeatBlock",
            "Trilu",
            "Unique",
            "CropAndResize",
            "MurmurHash3",
            "EmbedLayerNormalization",
            "Pad",
            "GatherND",
            "Range",
            "BiasSoftmax",
        ]
    )
    bound: dict[str, Any] = {"domain": MS, "rtol": 1e-3, "atol": 1e-3}
    if op == "ExpandDims":
        x = d.array(d.shape(1, 3))
        return Case(op, [x, np.array(d.int(-x.ndim - 1, x.ndim), np.int32)], **bound)
    if op == "Inverse":
        x = d.array((2, 3, 3)) + 8 * np.eye(3, dtype=F32)
        return Case(op, [x.astype(F32)], **bound)
    if op == "CDist":
        k = d.int(1, 3)
        return Case(
            op,
            [d.array((d.int(1, 4), k)), d.array((d.int(1, 4), k))],
            {"metric": d.one(["sqeuclidean", "euclidean"])},
            **{**bound, "atol": 2e-2},
        )
    if op == "NGramRepeatBlock":
        batch, length = 2, d.int(2, 5)
        return Case(
            op,
            [d.array((batch, length), np.int64, 0, 3), d.array((batch, 4))],
            {"ngram_size": d.int(1, 3)},
            **bound,
        )
    if op == "Trilu":
        x = d.array(d.shape(2, 3, least=1))
        return Case(op, [x, np.array(d.int(-2, 2), np.int64)], {"upper": d.int(0, 1)}, **bound)
    if op == "Unique":
        return Case(op, [d.array((d.int(1, 6),), F32, 0, 3).round()], outputs=3, **bound)
    if op == "CropAndResize":
        rois = np.sort(d.array((3, 2, 2), F32, 0, 1), 1).reshape(3, 4)
        return Case(
            op,
            [d.array((2, 2, 5, 6)), rois, d.array((3,), np.int32, 0, 2), np.array([3, 2], np.int32)],
            {"extrapolation_value": 1.5},
            **bound,
        )
    if op == "MurmurHash3":
        x = d.array(d.shape(1, 2), d.one([np.int32, np.uint32, np.int64, F32, np.float64, object]))
        return Case(op, [x], {"seed": d.int(0, 3), "positive": d.int(0, 1)}, **bound)
    if op == "EmbedLayerNormalization":
        batch, length, n = 2, 3, 4
        ids = d.array((batch, length), np.int32, 0, 5)
        inputs: list[Any] = [
            ids,
            d.array((batch, length), np.int32, 0, 2),
            d.array((5, n)),
            d.array((4, n)),
            d.array((2, n)),
            d.array((n,)),
            d.array((n,)),
        ]
        if d.yes():
            inputs.append(d.array((batch, length), np.int32, 0, 2))
        return Case(op, inputs, outputs=2, **bound)
    if op == "Pad":
        x = d.array(d.shape(1, 3, least=1))
        pads = np.array([d.int(0, 2) for _ in range(2 * x.ndim)], np.int64)
        return Case(op, [x, pads, d.array((1,))], {"mode": d.one(["constant", "edge"])}, **bound)
    if op == "GatherND":
        return Case(op, [d.array((3, 4)), d.array((2, d.int(1, 2)), np.int64, 0, 3)], **bound)
    if op == "Range":
        return Case(op, [np.array(v, F32) for v in (0, d.int(1, 9), d.one([1, 2, 0.5]))], **bound)
    return Case(
        op, [d.array((2, 3, 2, 4)), d.array((1, 1, 2, 4))], {"axis": 3, "is_inner_broadcast": 1}, **bound
    )
