"""Pooling: the largest or the mean of each window, and of everything."""

from __future__ import annotations

from collections.abc import Sequence

from ....ir import No, Node
from ....ops.nn.geometry import window
from ..binding import DST, INFERENCE, POOLING, SRC, dims
from ..lower import Lowering
from ..objects import Attr, Primitive, open_layout
from ..step import lowers
from ..tensor import Quantized, Tensor


@lowers("MaxPool", "AveragePool")
def pooling(lo: Lowering, node: Node) -> Tensor | Quantized | No:
    """A window's largest or mean element; quantized integers are compared as they are."""
    attrs, shape = node.attributes, lo.shape(node.inputs[0])
    if len(shape) < 3 or len(shape) > 5:
        return No(f"rank {len(shape)}")
    win = window(shape[2:], attrs["kernel_shape"], attrs["strides"], attrs["dilations"], attrs["pads"],
                 attrs["auto_pad"], attrs["ceil_mode"])
    end = [max((o - 1) * s + (k - 1) * d + 1 - n - b, e)
           for o, s, k, d, n, b, e in zip(win.out, win.strides, win.kernel, win.dilations, win.size,
                                          win.begin, win.end, strict=True)]
    if any(b >= k or e >= k for b, e, k in zip(win.begin, end, win.kernel, strict=True)):
        return No("a window lies in the padding as a whole")
    kind = "max" if node.op_type == "MaxPool" else "average"
    if attrs.get("count_include_pad"):
        if any(e > given for e, given in zip(end, win.end, strict=True)):
            return No("its last window goes beyond the padding that counts")
        kind = "average_all"
    found = lo.quantized(node.inputs[0])
    if kind == "max" and found is not None and found.whole and found.scale.item() > 0:
        t = _pool(lo, kind, found.tensor, win.out, win.strides, win.kernel, win.dilations, win.begin, end)
        return Quantized(t, found.scale, found.zero, found.axis, found.node)
    return _pool(lo, kind, lo.tensor(node.inputs[0]), win.out, win.strides, win.kernel, win.dilations,
                 win.begin, end)


@lowers("GlobalMaxPool", "GlobalAveragePool")
def global_pooling(lo: Lowering, node: Node) -> Tensor | No:
    """One window over everything."""
    x = lo.tensor(node.inputs[0])
    rank = len(x.shape) - 2
    if not 1 <= rank <= 3:
        return No(f"rank {len(x.shape)}")
    kind = "max" if node.op_type == "GlobalMaxPool" else "average_all"
    return _pool(lo, kind, x, (1,) * rank, (1,) * rank, x.shape[2:], (1,) * rank, (0,) * rank, (0,) * rank)


def _pool(lo: Lowering, kind: str, x: Tensor, out: Sequence[int], strides: Sequence[int],
          kernel: Sequence[int], dilations: Sequence[int], begin: Sequence[int], end: Sequence[int]
          ) -> Tensor:
    shape = (*x.shape[:2], *out)
    x = lo.dense(x)
    made = Primitive(lo.lib, "pooling_forward", lo.lib.engine, INFERENCE, POOLING[kind], x.desc,
                     open_layout(lo.lib, shape, x.dtype), dims(strides), dims(kernel),
                     dims([d - 1 for d in dilations]), dims(begin), dims(end), Attr(lo.lib))
    result = lo.new(shape, made.desc(DST, shape, x.dtype))
    lo.step(made, [(SRC, x), (DST, result)], [result])
    return result
