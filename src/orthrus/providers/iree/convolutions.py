"""Convolutions as IREE's compiler does them well: what it would compute element by element is spelled out in
operators that it turns into vectors.

In: a part's model. Out: another that computes the same. A kernel of one point becomes a product of matrices;
a kernel per channel a sum of shifted images; large steps over few channels become steps of one over more.
Left as they are: what has open sizes, and every other convolution. IREE's kernels add all terms up one by
one, and round each time: long sums are made of shorter ones, over some of the channels each. Results differ
by rounding only, but around elements that are not finite: where a step was made smaller, neighbours are
multiplied by zero.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from math import prod
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from ...ops.nn.conv import Conv
from ...ops.nn.geometry import Window, window
from ...records import dataclass

Dim = int | str
_CONVOLUTIONS = ("Conv", "ConvInteger", "QLinearConv", "ConvTranspose", "DeformConv")
_TYPES = (TensorProto.FLOAT, TensorProto.DOUBLE)
_OPSET = 11
"""The first in which Pad and Slice read what they are to do from inputs."""
_TAPS = 49
"""Points of a kernel per channel up to which their sum is written out."""
_BLOCK = 16
"""Channels that IREE's kernel for convolutions takes together."""
_TERMS, _SUMS = 150, 8
"""Terms that are added up one by one, where that makes no more than so many sums."""


@dataclass
class _Conv:
    """One convolution of known sizes. `weights` is None where they are computed."""

    node: NodeProto
    elem: int
    batch: Dim
    window: Window
    group: int
    weights_shape: tuple[int, ...]
    weights: np.ndarray | None

    @property
    def bias(self) -> str:
        return self.node.input[2] if len(self.node.input) > 2 else ""

    @property
    def in_blocks(self) -> bool:
        """Whether IREE computes it on blocks of channels, and few of a block are none."""
        return (self.group == 1 and len(self.window.out) == 2 and set(self.window.dilations) == {1}
                and self.weights_shape[1] >= _BLOCK // 2 and self.elem == TensorProto.FLOAT)


def spelled(raw: bytes, blocks: bool) -> bytes | None:
    """The model `raw` with what is better off spelled out. `blocks`: the compiler computes other convolutions
    on blocks of channels; None where one of them is not of the kind it can do that with."""
    model = ModelProto.FromString(raw)
    before = list(model.graph.node)
    opset = max((each.version for each in model.opset_import if each.domain in ("", "ai.onnx")), default=0)
    writer = _Writer(model)
    del model.graph.node[:]
    for node in before:
        conv = writer.conv(node) if node.op_type == "Conv" else None
        rule = None if conv is None or opset < _OPSET else _rule(conv, blocks)
        if conv is not None and rule is not None:
            rule(writer, conv)
        elif blocks and node.op_type in _CONVOLUTIONS and not (conv is not None and conv.in_blocks):
            return None
        else:
            model.graph.node.append(node)
    writer.drop_unread()
    return bytes(model.SerializeToString(deterministic=True))


def _rule(conv: _Conv, blocks: bool) -> Callable[[_Writer, _Conv], None] | None:
    """What to make of a convolution, None to leave it."""
    win, (outputs, channels, *_) = conv.window, conv.weights_shape
    padded = any((*win.begin, *win.end))
    if conv.group == 1:
        if prod(win.kernel) == 1 and not padded:
            return _product
        if blocks and _steps_pay(conv):
            return _smaller_steps
        return _partial_sums if blocks and conv.in_blocks and len(_divided(conv)) > 1 else None
    alone = channels == 1 and outputs == conv.group and prod(win.kernel) <= _TAPS
    return _shifted_sum if alone and conv.weights is not None else None


def _divided(conv: _Conv) -> list[slice]:
    """The channels of each sum."""
    _, channels, *kernel = conv.weights_shape
    sums = min(-(-channels * prod(kernel) // _TERMS), _SUMS) if conv.weights is not None else 1
    step = -(-channels // (sums * _BLOCK)) * _BLOCK
    return [slice(first, min(first + step, channels)) for first in range(0, channels, step)]


def _steps_pay(conv: _Conv) -> bool:
    """Whether fewer blocks of channels are multiplied where what a step goes over is channels."""
    win, channels = conv.window, conv.weights_shape[1]
    if conv.weights is None or set(win.dilations) != {1} or conv.elem != TensorProto.FLOAT:
        return False
    more, points = channels * prod(win.strides), prod(
        -(-k // s) for k, s in zip(win.kernel, win.strides, strict=True))
    if points > 1 and (len(win.out) != 2 or more < _BLOCK // 2):
        return False
    return -(-more // _BLOCK) * points < -(-channels // _BLOCK) * prod(win.kernel)


class _Writer:
    """Appends nodes to a model's graph, with the types of what they make."""

    def __init__(self, model: ModelProto) -> None:
        graph = self.graph = model.graph
        self.constants = {each.name: each for each in graph.initializer}
        self.types = {v.name: v.type.tensor_type for v in (*graph.input, *graph.output, *graph.value_info)}
        self.taken = {*self.constants, *self.types, *(name for node in graph.node for name in node.output)}
        self.elem = TensorProto.FLOAT

    def conv(self, node: NodeProto) -> _Conv | None:
        """What is known of a convolution; None where something has to be and is not."""
        x, w = (self._shape(name) for name in node.input[:2])
        if x is None or w is None or any(isinstance(d, str) for d in (*x[1:], *w)) or not all((*x[1:], *w)):
            return None
        given = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        attrs = Conv.with_defaults({k: v.decode() if isinstance(v, bytes) else v for k, v in given.items()})
        try:
            win = window(x[2:], w[2:], attrs["strides"], attrs["dilations"],  # type: ignore[arg-type]
                         attrs["pads"], attrs["auto_pad"])
        except ValueError:
            return None
        self.elem = self.types[node.output[0]].elem_type if node.output[0] in self.types else 0
        if self.elem not in _TYPES:
            return None
        constant = self.constants.get(node.input[1])
        return _Conv(node, self.elem, x[0], win, attrs["group"], w,  # type: ignore[arg-type]
                     None if constant is None else numpy_helper.to_array(constant))

    def _shape(self, name: str) -> tuple[Dim, ...] | None:
        if name in self.constants:
            return tuple(self.constants[name].dims)
        if name not in self.types or not self.types[name].HasField("shape"):
            return None
        return tuple(d.dim_value if d.HasField("dim_value") else d.dim_param or "?"
                     for d in self.types[name].shape.dim)

    def constant(self, array: Any) -> str:
        """The name of a new constant."""
        name = self._fresh("constant")
        self.graph.initializer.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def node(self, operator: str, inputs: Sequence[str], shape: Sequence[Dim], to: str = "",
             **attributes: Any) -> str:
        """The name of what a new node makes, `to` where that is not empty."""
        if not to:
            to = self._fresh(operator.lower())
            self.graph.value_info.append(helper.make_tensor_value_info(
                to, self.elem, [None if d == "?" else d for d in shape]))
        self.graph.node.append(helper.make_node(operator, inputs, [to], **attributes))
        return to

    def reshaped(self, x: str, shape: Sequence[Dim], to: str = "") -> str:
        """`x` in another shape; a first dimension that is open stays what it is."""
        asked = self.constant(np.array([0 if isinstance(d, str) else d for d in shape], np.int64))
        return self.node("Reshape", (x, asked), shape, to)

    def sliced(self, x: str, starts: Sequence[int], ends: Sequence[int], axes: Sequence[int],
               shape: Sequence[Dim], steps: Sequence[int] | None = None) -> str:
        """Part of `x`."""
        rows = (starts, ends, axes, *([steps] if steps else []))
        return self.node("Slice", (x, *(self.constant(np.array(row, np.int64)) for row in rows)), shape)

    def channels(self, x: str, some: slice, of: int, axis: int, shape: Sequence[Dim]) -> str:
        """Some of the channels of `x`, which lie along `axis`."""
        if some == slice(0, of):
            return x
        return self.sliced(x, [some.start], [some.stop], [axis], shape)

    def total(self, parts: list[str], shape: Sequence[Dim], to: str = "") -> str:
        """The sum of `parts`, added up in pairs."""
        while len(parts) > 1:
            pairs = zip(parts[::2], parts[1::2], strict=False)
            last = to if len(parts) == 2 else ""
            parts = [self.node("Add", pair, shape, last) for pair in pairs] + parts[len(parts) // 2 * 2:]
        return parts[0]

    def padded(self, x: str, begin: Sequence[int], end: Sequence[int], shape: Sequence[Dim]) -> str:
        """`x` with zeros around its images."""
        if not any((*begin, *end)):
            return x
        pads = self.constant(np.array([0, 0, *begin, 0, 0, *end], np.int64))
        return self.node("Pad", (x, pads), shape)

    def _fresh(self, stem: str) -> str:
        n = len(self.taken)
        while (name := f"{stem}_{n}") in self.taken:
            n += 1
        self.taken.add(name)
        return name

    def drop_unread(self) -> None:
        """Remove constants that no node reads any more."""
        read = {name for node in self.graph.node for name in node.input} | {v.name for v in self.graph.output}
        kept = [each for each in self.graph.initializer if each.name in read]
        if len(kept) < len(self.graph.initializer):
            del self.graph.initializer[:]
            self.graph.initializer.extend(kept)


def _partial_sums(w: _Writer, conv: _Conv) -> None:
    """Convolutions over some of the channels each, added up."""
    win, (outputs, channels, *_) = conv.window, conv.weights_shape
    assert conv.weights is not None
    shape, sums = (conv.batch, outputs, *win.out), list[str]()
    for some in _divided(conv):
        part = w.channels(conv.node.input[0], some, channels, 1,
                          (conv.batch, some.stop - some.start, *win.size))
        inputs = [part, w.constant(conv.weights[:, some]), *([conv.bias] if conv.bias and not sums else [])]
        sums.append(w.node("Conv", inputs, shape, pads=[*win.begin, *win.end], strides=win.strides))
    w.total(sums, shape, conv.node.output[0])


def _product(w: _Writer, conv: _Conv) -> None:
    """A kernel of one point: weights times pixels."""
    win, (outputs, channels, *_) = conv.window, conv.weights_shape
    x = conv.node.input[0]
    if prod(win.strides) > 1:
        axes = range(2, 2 + len(win.out))
        x = w.sliced(x, [0] * len(win.out), list(win.size), list(axes), (conv.batch, channels, *win.out),
                     win.strides)
    batch, pixels = () if conv.batch == 1 else (conv.batch,), prod(win.out)
    columns = w.reshaped(x, (*batch, channels, pixels))
    if conv.weights is None:
        weights = w.reshaped(conv.node.input[1], (outputs, channels))
        _finished(w, conv, w.node("MatMul", (weights, columns), (*batch, outputs, pixels)))
        return
    rows, sums = conv.weights.reshape(outputs, channels), list[str]()
    for some in _divided(conv):
        part = w.channels(columns, some, channels, len(batch), (*batch, some.stop - some.start, pixels))
        sums.append(w.node("MatMul", (w.constant(rows[:, some]), part), (*batch, outputs, pixels)))
    _finished(w, conv, w.total(sums, (*batch, outputs, pixels)))


def _finished(w: _Writer, conv: _Conv, made: str) -> None:
    """The convolution's result from a product of [batch, outputs, pixels]."""
    outputs, pixels = conv.weights_shape[0], prod(conv.window.out)
    batch = () if conv.batch == 1 else (conv.batch,)
    if conv.bias:
        made = w.node("Add", (made, w.reshaped(conv.bias, (outputs, 1))), (*batch, outputs, pixels))
    w.reshaped(made, (conv.batch, outputs, *conv.window.out), conv.node.output[0])


def _phases(w: _Writer, conv: _Conv) -> tuple[str, list[int]]:
    """The padded input, divided along each axis by its step: [batch, channels, size / step, step, ...], and
    the sizes over the steps."""
    win, channels = conv.window, conv.weights_shape[1] * conv.group
    whole = [sum(each) for each in zip(win.size, win.begin, win.end, strict=True)]
    sizes = [-(-n // s) for n, s in zip(whole, win.strides, strict=True)]
    end = [n * s - b - size for n, s, b, size in zip(sizes, win.strides, win.begin, win.size, strict=True)]
    shape = (conv.batch, channels, *(n * s for n, s in zip(sizes, win.strides, strict=True)))
    x = w.padded(conv.node.input[0], win.begin, end, shape)
    split = [d for pair in zip(sizes, win.strides, strict=True) for d in pair]
    return w.reshaped(x, (conv.batch, channels, *split)), sizes


def _shifted_sum(w: _Writer, conv: _Conv) -> None:
    """A kernel per channel: its points times the image, shifted. Steps are taken apart before: what is added
    lies one element after the other."""
    win, channels, n = conv.window, conv.group, len(conv.window.out)
    assert conv.weights is not None
    x, sizes = _phases(w, conv)
    order = [0, *(3 + 2 * i for i in range(n)), 1, *(2 + 2 * i for i in range(n))]
    x = w.node("Transpose", [x], (conv.batch, *win.strides, channels, *sizes), perm=order)
    axes = [*range(1, n + 1), *range(n + 2, 2 * n + 2)]
    ones, shape = (1,) * n, (conv.batch, *(1,) * n, channels, *win.out)
    spread = (*ones, channels, *ones)
    total = w.reshaped(conv.bias, spread) if conv.bias else ""
    points = conv.weights.reshape(channels, -1).T
    for point, weights in zip(product(*map(range, win.kernel)), points, strict=True):
        at = [i * d for i, d in zip(point, win.dilations, strict=True)]
        phase = [a % s for a, s in zip(at, win.strides, strict=True)]
        first = [a // s for a, s in zip(at, win.strides, strict=True)]
        part = w.sliced(x, [*phase, *first], [*(p + 1 for p in phase), *(
            f + o for f, o in zip(first, win.out, strict=True))], axes, shape)
        factor = w.constant(weights.reshape(spread))
        term = w.node("Mul", (part, factor), shape)
        total = w.node("Add", (total, term), shape) if total else term
    w.reshaped(total, (conv.batch, channels, *win.out), conv.node.output[0])


def _smaller_steps(w: _Writer, conv: _Conv) -> None:
    """Pixels that a step goes over as channels: the step is one then, and the kernel smaller."""
    win, (outputs, channels, *_), n = conv.window, conv.weights_shape, len(conv.window.out)
    assert conv.weights is not None
    x, sizes = _phases(w, conv)
    x = w.node("Transpose", [x], (conv.batch, channels, *win.strides, *sizes),
               perm=[0, 1, *(3 + 2 * i for i in range(n)), *(2 + 2 * i for i in range(n))])
    more = channels * prod(win.strides)
    x = w.reshaped(x, (conv.batch, more, *sizes))
    kernel = [-(-k // s) for k, s in zip(win.kernel, win.strides, strict=True)]
    full = np.pad(conv.weights, [(0, 0), (0, 0), *(
        (0, n * s - k) for n, s, k in zip(kernel, win.strides, win.kernel, strict=True))])
    split = [d for pair in zip(kernel, win.strides, strict=True) for d in pair]
    weights = full.reshape(outputs, channels, *split).transpose(
        0, 1, *(3 + 2 * i for i in range(n)), *(2 + 2 * i for i in range(n))).reshape(outputs, more, *kernel)
    extra = [s - k + 1 - o for s, k, o in zip(sizes, kernel, win.out, strict=True)]
    if any(extra):
        x = w.sliced(x, [0] * n, [s - e for s, e in zip(sizes, extra, strict=True)], list(range(2, n + 2)),
                     (conv.batch, more, *(s - e for s, e in zip(sizes, extra, strict=True))))
    if prod(kernel) == 1:
        batch, pixels = () if conv.batch == 1 else (conv.batch,), prod(win.out)
        columns = w.reshaped(x, (*batch, more, pixels))
        rows = w.constant(weights.reshape(outputs, more))
        _finished(w, conv, w.node("MatMul", (rows, columns), (*batch, outputs, pixels)))
    else:
        inputs = [x, w.constant(np.ascontiguousarray(weights)), *([conv.bias] if conv.bias else [])]
        w.node("Conv", inputs, (), conv.node.output[0], kernel_shape=kernel)
