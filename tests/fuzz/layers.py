"""Random valid applications of contractions, windows, normalizations, recurrent and quantized operators."""

from __future__ import annotations

from typing import Any

import numpy as np
from oracle import Case

from fuzz.draw import (
    F32,
    F64,
    Draw,
    ints,
    positive,
)

# contractions


def matmul(d: Draw) -> Case:
    dtype = d.one((F32, F32, F64, np.int32, np.int64, np.uint32))
    batch = d.shape(0, 3, most=3)
    m, k, n = (d.one([1, 2, 3, 5, 7, 0]) for _ in range(3))
    a, b = (*d.broadcastable(batch), m, k), (*d.broadcastable(batch), k, n)
    if d.int(0, 4) == 0:
        a = (k,)
    if d.int(0, 4) == 0:
        b = (k,)
    x, y = d.array(a, dtype), d.array(b, dtype)
    return Case(
        "MatMul", [x, y], opset=13, expected=[np.asarray(np.matmul(x, y))], rtol=1e-4, open_shapes=d.yes()
    )


def gemm(d: Draw) -> Case:
    m, k, n = (d.one([1, 2, 3, 5, 8]) for _ in range(3))
    attrs: dict[str, Any] = {"transA": d.int(0, 1), "transB": d.int(0, 1)}
    if d.yes():
        attrs |= {"alpha": d.one([0.5, 2.0]), "beta": d.one([0.0, 0.25])}
    a, b = (k, m) if attrs["transA"] else (m, k), (n, k) if attrs["transB"] else (k, n)
    dtype = d.one((F32, F64))
    c = [d.array(d.broadcastable((m, n)), dtype)] if d.yes() else []
    return Case(
        "Gemm", [d.array(a, dtype), d.array(b, dtype), *c], attrs, opset=d.one([11, 13]), rtol=1e-4, atol=1e-5
    )


def einsum(d: Draw) -> Case:
    letters = "abcde"
    sizes = {c: d.int(1, 4) for c in letters}
    terms = []
    for _ in range(d.int(1, 3)):
        terms.append("".join(d.rng.permutation(list(letters))[: d.int(1, 3)]))
    met = sorted(set("".join(terms)))
    out = "".join(d.rng.permutation([c for c in met if d.yes()]).tolist())
    equation = ",".join(terms) + ("->" + out if d.yes() else "")
    arrays = [d.array(tuple(sizes[c] for c in t), F32, -2, 3) for t in terms]
    y = np.einsum(equation, *(a.astype(F64) for a in arrays)).astype(F32)
    return Case(
        "Einsum", arrays, {"equation": equation}, opset=12, rtol=1e-4, atol=1e-4, expected=[np.asarray(y)]
    )


def _window(d: Draw, n: int, least: int = 1) -> tuple[dict[str, Any], list[int], list[int]]:
    """Strides, dilations, pads or auto_pad, the kernel, and sizes it fits in."""
    kernel = [d.int(1, 3) for _ in range(n)]
    attrs: dict[str, Any] = {}
    if d.yes():
        attrs["strides"] = [d.int(1, 3) for _ in range(n)]
    if d.yes():
        attrs["dilations"] = [d.int(1, 2) for _ in range(n)]
    reach = [(k - 1) * e + 1 for k, e in zip(kernel, attrs.get("dilations", [1] * n), strict=True)]
    how = d.one(["pads", "NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"])
    if how == "pads":
        attrs["pads"] = [d.int(0, k - 1) for k in (*kernel, *kernel)]
    elif how != "NOTSET" or d.yes():
        attrs["auto_pad"] = how
    sizes = [d.int(r, r + 4) for r in reach]
    return attrs, kernel, sizes


def conv(d: Draw) -> Case:
    n, group = d.one([1, 2, 2, 3]), d.one([1, 1, 2, 3])
    attrs, kernel, sizes = _window(d, n)
    if attrs.get("auto_pad", "").startswith("SAME") and "dilations" in attrs:
        del attrs["dilations"]
    c, m = d.int(1, 3), d.int(1, 3)
    x = d.array((d.int(1, 2), c * group, *sizes), F32)
    w = d.array((m * group, c, *kernel), F32)
    b = [d.array((m * group,), F32)] if d.yes() else []
    if d.yes():
        attrs["kernel_shape"] = kernel
    return Case(
        "Conv",
        [x, w, *b],
        {**attrs, "group": group},
        opset=d.one([11, 22]),
        rtol=1e-4,
        atol=1e-4,
        open_shapes=d.int(0, 3) == 0,
    )


def conv_transpose(d: Draw) -> Case:
    n, group = d.one([1, 2, 2, 3]), d.one([1, 1, 2])
    attrs, kernel, sizes = _window(d, n)
    strides = attrs.get("strides", [1] * n)
    if d.yes():
        attrs["output_padding"] = [d.int(0, s - 1) for s in strides]
    c, m = d.int(1, 3), d.int(1, 3)
    x = d.array((d.int(1, 2), c * group, *sizes), F32)
    w = d.array((c * group, m, *kernel), F32)
    b = [d.array((m * group,), F32)] if d.yes() else []
    return Case(
        "ConvTranspose", [x, w, *b], {**attrs, "group": group}, opset=d.one([11, 22]), rtol=1e-4, atol=1e-4
    )


def pool(d: Draw) -> Case:
    op = d.one(["MaxPool", "AveragePool", "LpPool", "GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool"])
    n = d.one([1, 2, 2, 3])
    attrs, kernel, sizes = _window(d, n)
    x = d.array((d.int(1, 3), d.one([1, 2, 3, 5]), *sizes), F32)
    if op.startswith("Global"):
        return Case(op, [x], opset=1 if op != "GlobalLpPool" else 2, rtol=1e-4)
    if d.yes() and op != "LpPool":
        attrs["ceil_mode"] = d.int(0, 1)
    outputs = 1
    if op == "AveragePool":
        attrs["count_include_pad"] = d.int(0, 1)
    elif op == "LpPool":
        attrs["p"] = d.int(1, 3)
    elif d.yes():
        outputs, attrs["storage_order"] = 2, d.int(0, 1)
    if attrs.get("auto_pad", "").startswith("SAME"):
        attrs.pop("dilations", None)
        attrs["strides"] = [min(s, k + 1) for s, k in zip(attrs.get("strides", [1] * n), kernel, strict=True)]
    return Case(
        op,
        [x],
        {**attrs, "kernel_shape": kernel},
        opset=22 if op != "LpPool" else 18,
        outputs=outputs,
        rtol=1e-4,
        atol=1e-5,
    )


def resize(d: Draw) -> Case:
    n = d.one([1, 2, 2, 3])
    mode = d.one(["nearest", "linear", "cubic"])
    if mode == "cubic":
        n = 2
    x = d.array((d.int(1, 3), d.one([1, 2, 3, 5]), *(d.int(1, 6) for _ in range(n))), F32)
    attrs: dict[str, Any] = {
        "mode": mode,
        "coordinate_transformation_mode": d.one(
            ["half_pixel", "asymmetric", "pytorch_half_pixel", "align_corners"]
            if mode == "nearest"
            else ["half_pixel", "asymmetric", "pytorch_half_pixel", "align_corners", "half_pixel_symmetric"]
        ),
    }
    if mode == "nearest":
        attrs["nearest_mode"] = d.one(["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"])
    if mode == "cubic":
        attrs |= {"cubic_coeff_a": d.one([-0.75, -0.5]), "exclude_outside": d.int(0, 1)}
    if mode != "nearest" and d.int(0, 3) == 0:
        attrs["antialias"] = 1
    if d.yes():
        whole = attrs["coordinate_transformation_mode"] == "align_corners"
        return Case(
            "Resize",
            [
                x,
                None,
                np.array(
                    [1, 1, *(d.one([1, 2, 3] if whole else [0.5, 0.6, 1, 1.5, 2, 3]) for _ in range(n))], F32
                ),
            ],
            attrs,
            opset=18,
            rtol=1e-4,
            atol=1e-4,
        )
    return Case(
        "Resize",
        [x, None, None, ints(*x.shape[:2], *(d.int(1, 8) for _ in range(n)))],
        attrs,
        opset=18,
        rtol=1e-4,
        atol=1e-4,
    )


def normalization(d: Draw) -> Case:
    kind = d.one(
        [
            "LayerNormalization",
            "BatchNormalization",
            "InstanceNormalization",
            "GroupNormalization",
            "LRN",
            "MeanVarianceNormalization",
            "RMSNormalization",
        ]
    )
    x = d.array((d.int(1, 3), d.one([2, 4]), *d.shape(1, 2, least=1)), F32)
    c = x.shape[1]
    eps = {"epsilon": d.one([1e-5, 1e-3])} if d.yes() else {}
    if kind in ("LayerNormalization", "RMSNormalization"):
        axis = d.axis(x.ndim)
        shape = x.shape[axis:] if axis < 0 else x.shape[positive(axis, x.ndim) :]
        dtype = d.one((F32, F64)) if kind == "LayerNormalization" else F32
        bias = [d.array(shape, dtype)] if d.yes() and kind == "LayerNormalization" else []
        return Case(
            kind,
            [x.astype(dtype), d.array(shape, dtype), *bias],
            {"axis": axis, **eps},
            opset=17 if bias or kind == "LayerNormalization" else 23,
            rtol=1e-4,
            atol=1e-4,
        )
    if kind == "BatchNormalization":
        return Case(
            kind,
            [x, d.array((c,)), d.array((c,)), d.array((c,)), d.array((c,), F32, 1, 3)],
            eps,
            opset=15,
            rtol=1e-4,
            atol=1e-5,
        )
    if kind == "InstanceNormalization":
        return Case(kind, [x, d.array((c,)), d.array((c,))], eps, opset=6, rtol=1e-3, atol=1e-3)
    if kind == "GroupNormalization":
        return Case(
            kind,
            [x, d.array((c,)), d.array((c,))],
            {**eps, "num_groups": d.one([1, 2])},
            opset=21,
            rtol=1e-3,
            atol=1e-3,
        )
    if kind == "LRN":
        x = d.array((2, 4, 3, 3), F32)
        return Case(kind, [x], {"size": d.one([1, 3, 5]), "alpha": 0.01, "bias": 1.5}, opset=13, rtol=1e-4)
    x = d.array((2, 3, 2, 3), F32)
    return Case(kind, [x], {"axes": [0, 2, 3]} if d.yes() else {}, opset=13, rtol=1e-4, atol=1e-4)


def recurrent(d: Draw) -> Case:
    op, gates = d.one([("LSTM", 4), ("GRU", 3), ("RNN", 1)])
    direction = d.one(["forward", "reverse", "bidirectional"])
    ways = 2 if direction == "bidirectional" else 1
    steps, batch, size, hidden = d.int(1, 4), d.int(1, 3), d.int(1, 3), d.int(1, 3)
    inputs: list[Any] = [
        d.array((steps, batch, size), F32, -1, 1),
        d.array((ways, gates * hidden, size), F32, -1, 1),
        d.array((ways, gates * hidden, hidden), F32, -1, 1),
    ]
    inputs.append(d.array((ways, 2 * gates * hidden), F32, -1, 1) if d.yes() else None)
    inputs.append(d.array((batch,), np.int32, 1, steps + 1) if d.yes() else None)
    inputs.append(d.array((ways, batch, hidden), F32, -1, 1) if d.yes() else None)
    attrs: dict[str, Any] = {"hidden_size": hidden, "direction": direction}
    if op == "LSTM":
        inputs.append(d.array((ways, batch, hidden), F32, -1, 1) if d.yes() else None)
        inputs.append(d.array((ways, 3 * hidden), F32, -1, 1) if d.yes() else None)
        if d.int(0, 3) == 0:
            attrs["input_forget"] = 1
        if d.int(0, 3) == 0:
            attrs["activations"] = ["HardSigmoid", "Relu", "Tanh"] * ways
    elif op == "GRU":
        attrs["linear_before_reset"] = d.int(0, 1)
        if d.int(0, 3) == 0:
            attrs["activations"] = ["HardSigmoid", "Softsign"] * ways
    elif d.int(0, 3) == 0:
        attrs["activations"] = ["Relu"] * ways
    if d.int(0, 3) == 0:
        attrs["clip"] = 0.5
    return Case(op, inputs, attrs, opset=14, outputs=3 if op == "LSTM" else 2, rtol=1e-4, atol=1e-5)


# quantization


def quantized(d: Draw) -> Case:
    kind = d.one(
        [
            "QuantizeLinear",
            "DequantizeLinear",
            "MatMulInteger",
            "QLinearMatMul",
            "DynamicQuantizeLinear",
            "ConvInteger",
            "QLinearConv",
            "QuantizeLinear",
            "DequantizeLinear",
        ]
    )
    dtype = d.one((np.uint8, np.int8))
    if kind in ("QuantizeLinear", "DequantizeLinear"):
        quant = d.one((np.uint8, np.int8, np.int16, np.uint16))
        shape = d.shape(1, 4, least=1)
        how = d.one(["tensor", "axis", "block"])
        axis = d.axis(len(shape))
        n = shape[axis]
        block = d.int(1, n)
        scales: tuple[int, ...] = (
            ()
            if how == "tensor"
            else (n,)
            if how == "axis"
            else tuple(-(-s // block) if i == positive(axis, len(shape)) else s for i, s in enumerate(shape))
        )
        attrs = {"axis": axis, **({"block_size": block} if how == "block" else {})}
        scale = d.array(scales, F32, 0.1, 2)
        zero = [d.array(scales, quant, 0, 9)] if d.yes() or kind == "QuantizeLinear" else []
        x = d.array(shape, F32, -300, 300) if kind == "QuantizeLinear" else d.wild(shape, quant)
        return Case(kind, [x, scale, *zero], attrs, opset=21)
    if kind == "DynamicQuantizeLinear":
        return Case(kind, [d.array(d.shape(1, 3, least=1), F32)], opset=11, outputs=3)
    if kind == "MatMulInteger":
        m, k, n = (d.int(1, 5) for _ in range(3))
        other = d.one((np.uint8, np.int8))
        zeros: list[Any] = [
            d.array((), dtype, 0, 9) if d.yes() else None,
            d.array(d.one([(), (n,)]), other, 0, 9) if d.yes() else None,
        ]
        return Case(
            kind, [d.wild((*d.shape(0, 1, least=1), m, k), dtype), d.wild((k, n), other), *zeros], opset=10
        )
    scales = [d.array((), F32, 0.1, 1) for _ in range(3)]
    if kind == "QLinearMatMul":
        m, k, n = (d.int(1, 5) for _ in range(3))
        other = d.one((np.uint8, np.int8)) if dtype == np.uint8 else np.int8
        return Case(
            kind,
            [
                d.array((m, k), dtype, 0, 100),
                scales[0],
                d.array((), dtype, 0, 9),
                d.array((k, n), other, 0, 100),
                scales[1],
                d.array((), other, 0, 9),
                d.array((), F32, 50, 100),
                d.array((), dtype, 0, 9),
            ],
            opset=10,
        )
    attrs, kernel, sizes = _window(d, 2)
    if attrs.get("auto_pad", "").startswith("SAME"):
        attrs.pop("dilations", None)
    c, m = d.int(1, 3), d.int(1, 3)
    x, w = d.array((1, c, *sizes), np.uint8, 0, 200), d.array((m, c, *kernel), np.uint8, 0, 200)
    if kind == "ConvInteger":
        return Case(kind, [x, w, d.array((), np.uint8, 0, 9), d.array((), np.uint8, 0, 9)], attrs, opset=10)
    bias = [d.array((m,), np.int32, -100, 100)] if d.yes() else []
    return Case(
        kind,
        [
            x,
            scales[0],
            d.array((), np.uint8, 0, 9),
            w,
            scales[1],
            d.array((), np.uint8, 0, 9),
            d.array((), F32, 20, 50),
            d.array((), np.uint8, 0, 9),
            *bias,
        ],
        attrs,
        opset=10,
    )


def sampled(d: Draw) -> Case:
    if d.yes():
        n = d.one([2, 2, 3])
        x = d.array((d.int(1, 2), d.int(1, 2), *(d.int(1, 5) for _ in range(n))), F32)
        grid = d.array((x.shape[0], *(d.int(1, 3) for _ in range(n)), n), F32, -1.3, 1.3)
        mode = d.one(["linear", "nearest", "cubic"]) if n == 2 else d.one(["linear", "nearest"])
        return Case(
            "GridSample",
            [x, grid],
            {
                "mode": mode,
                "align_corners": d.int(0, 1),
                "padding_mode": d.one(["zeros", "border", "reflection"]),
            },
            opset=20,
            rtol=1e-3,
            atol=1e-3,
        )
    x = d.array((2, 2, d.int(3, 6), d.int(3, 6)), F32)
    rois = np.sort(d.array((3, 2, 2), F32, 0, 5), 1).reshape(3, 4)
    return Case(
        "RoiAlign",
        [x, rois, d.array((3,), np.int64, 0, 2)],
        {
            "output_height": d.int(1, 3),
            "output_width": d.int(1, 3),
            "sampling_ratio": d.int(0, 2),
            "mode": d.one(["avg", "max"]),
            "coordinate_transformation_mode": d.one(["half_pixel", "output_half_pixel"]),
            "spatial_scale": d.one([1.0, 0.5]),
        },
        opset=16,
        rtol=1e-3,
        atol=1e-3,
    )


def attention(d: Draw) -> Case:
    batch, heads, size, queries, keys = d.int(1, 2), d.one([2, 4]), d.one([2, 4]), d.int(1, 4), d.int(1, 4)
    shared = d.one([1, 2])
    past = d.int(0, 2)
    causal = d.int(0, 1)
    if causal and past:
        keys = queries
    inputs: list[Any] = [
        d.array((batch, heads, queries, size)),
        d.array((batch, heads // shared, keys, size)),
        d.array((batch, heads // shared, keys, size)),
    ]
    total = keys + past
    mask = d.one([None, (queries, total), (batch, 1, queries, total), (1, 1, queries, total)])
    inputs.append(None if mask is None else d.array(mask, d.one((bool, F32))))
    if mask is not None and inputs[3].dtype == bool:
        inputs[3][..., 0] = True
    if past:
        inputs += [d.array((batch, heads // shared, past, size)) for _ in range(2)]
    attrs: dict[str, Any] = {"is_causal": causal}
    if d.yes():
        attrs["scale"] = d.one([0.3, 1.0])
    if d.int(0, 3) == 0:
        attrs["softcap"] = 2.0
    return Case("Attention", inputs, attrs, opset=23, outputs=3 if past else 1, rtol=1e-3, atol=1e-4)
