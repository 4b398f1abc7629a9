"""Random valid applications of operators whose weights have few bits, constant or computed."""

from __future__ import annotations

from typing import Any

import numpy as np
from oracle import Case

from fuzz.draw import F16, F32, Draw

MS = "com.microsoft"


def held(d: Draw, case: Case, first: int = 1) -> Case:
    """The case with its inputs from `first` on held by the model: all, some, or none."""
    later = range(first, len(case.inputs))
    how = d.int(0, 3)
    case.held = frozenset(later if how > 1 else () if not how else [i for i in later if d.yes()])
    return case


def few_bits(d: Draw) -> Case:
    return d.one((_product, _product, _rows, _bnb4, _lstm))(d)


def _product(d: Draw) -> Case:
    """MatMulNBits; level 4 may round what it multiplies to eight bits."""
    bits, block, n = d.one((2, 4, 8)), d.one((16, 32, 64, 128)), d.one((1, 2, 3, 5, 17, 33))
    k, dtype, level = d.one((1, 16, 31, 40, 65, 130)), d.one((F32, F32, F16)), d.one((0, 0, 1, 4))
    blocks = -(-k // block)
    a = d.array((*d.shape(0, 2, least=0, most=3), d.one((1, 2, 3, 9)), k), dtype, -1, 1)
    inputs: list[Any] = [a, d.wild((n, blocks, block * bits // 8), np.uint8),
                         d.array((n * blocks,), dtype, 0.01, 0.2)]
    zero = d.int(0, 2)
    inputs.append(None if not zero else d.wild((n * -(-blocks * bits // 8),), np.uint8) if zero == 1
                  else d.array((n * blocks,), dtype, 0, 9))
    inputs += [None, d.array((n,), dtype)] if d.yes() else []
    room = 0.1 * k * max(2 ** bits, 10) / 16 * (0.02 if level == 4 else 1e-3 if dtype is F16 else 1e-6)
    attrs = {"K": k, "N": n, "bits": bits, "block_size": block, "accuracy_level": level}
    case = held(d, Case("MatMulNBits", inputs, attrs, domain=MS, rtol=1e-3, atol=1e-4 + room))
    if level == 4 and 2 not in case.held:
        case.held = frozenset()  # onnxruntime leaves constant zero points out where scales are computed
    return case


def _rows(d: Draw) -> Case:
    bits, block, k = d.one((4, 8)), d.one((16, 32)), d.one((16, 32, 40, 64))
    blocks, rows = -(-k // block), d.int(1, 5)
    inputs = [d.wild((rows, k * bits // 8), np.uint8),
              d.array(d.shape(0, 2), np.int64, 0, rows), d.array((rows, blocks), F32, 0.1, 1)]
    inputs += [d.wild((rows, -(-blocks * bits // 8)), np.uint8)] if d.yes() else []
    attrs = {"gather_axis": 0, "quantize_axis": 1, "block_size": block, "bits": bits}
    case = held(d, Case("GatherBlockQuantized", inputs, attrs, domain=MS), 2)
    case.held |= {0} if d.yes() else set()
    return case


def _bnb4(d: Draw) -> Case:
    block, n, k = d.one((16, 32, 64)), d.one((1, 2, 3, 5, 17)), d.one((16, 30, 32, 64))
    blocks = -(-n * k // block)
    inputs = [d.array((*d.shape(0, 1, least=1, most=3), d.one((1, 2, 5)), k), F32, -1, 1),
              d.wild((-(-n * k // 2),), np.uint8), d.array((blocks,), F32, 0.1, 1)]
    attrs = {"K": k, "N": n, "block_size": block, "quant_type": d.int(0, 1)}
    return held(d, Case("MatMulBnb4", inputs, attrs, domain=MS, rtol=1e-3, atol=1e-3))


def _lstm(d: Draw) -> Case:
    ways, size, hidden, dtype = d.int(1, 2), d.one((1, 3, 8)), d.one((1, 2, 5, 8)), d.one((np.int8, np.uint8))
    columns = (ways,) if d.yes() else (ways, 4 * hidden)
    zero = d.array(columns, dtype, 0, 1) if dtype is np.int8 else d.array(columns, dtype, 120, 130)
    scales = [d.array(columns, F32, 0.001, 0.01) for _ in "wr"]
    x = d.array((d.int(1, 4), d.int(1, 3), size), F32, -1, 1)
    inputs = [x, d.wild((ways, size, 4 * hidden), dtype), d.wild((ways, hidden, 4 * hidden), dtype),
              d.array((ways, 8 * hidden), F32, -1, 1) if d.yes() else None, None, None, None, None,
              scales[0], zero, scales[1], zero]
    attrs = {"hidden_size": hidden,
             "direction": d.one(("forward", "reverse")) if ways == 1 else "bidirectional"}
    return held(d, Case("DynamicQuantizeLSTM", inputs, attrs, outputs=3, domain=MS, rtol=1e-2, atol=2e-2))


def of_whole_numbers(d: Draw) -> Case:
    """Convolutions and products of bytes: odd numbers of channels, groups, sizes."""
    other = d.one((np.uint8, np.int8))
    group, inner, outer = d.one((1, 1, 2, 3)), d.one((1, 2, 3, 5)), d.one((1, 2, 3, 5))
    rank = d.int(1, 2)
    window = [d.int(1, 3) for _ in range(rank)]
    x = d.wild((d.int(1, 3), group * inner, *(d.int(3, 9) for _ in range(rank))), np.uint8)
    w = d.wild((group * outer, inner, *window), other)
    attrs = {"group": group, "pads": [d.int(0, k - 1) for k in window] * 2,
             "strides": [d.int(1, 2) for _ in window], "kernel_shape": window}
    zeros: list[Any] = [d.wild((), np.uint8) if d.yes() else None, d.wild((), other) if d.yes() else None]
    if d.yes():
        return held(d, Case("ConvInteger", [x, w, *zeros], attrs, opset=10))
    scales = [d.array((), F32, 0.01, 0.1), d.array(d.one([(), (group * outer,)]), F32, 0.01, 0.1),
              d.array((), F32, 0.5, 5)]
    middle = np.full(scales[1].shape, 128 if other is np.uint8 else 0, other)
    inputs = [x, scales[0], d.wild((), np.uint8), w, scales[1], middle, scales[2], d.wild((), np.uint8)]
    inputs += [d.array((group * outer,), np.int32, -999, 999)] if d.yes() else []
    return held(d, Case("QLinearConv", inputs, attrs, opset=10, slack=1))
