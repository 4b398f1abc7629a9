"""Random networks: products, convolutions and attention with what stands before and behind them in models, in
every type that kernels have, over sizes from 0 to more than a tile.

In: a seed. Out: a `Subject` with feeds of two batches and lengths, at times once with numbers that are not
finite. Every step takes any batch and length, so that no refusal is in order. Half precision goes into no
step that a rounding turns over: definitions round between nodes, kernels do not.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np
from onnx import helper

from fuzz.applications import fitted, imports
from fuzz.small import Setting, Subject, stored
from fuzz.steps import Maker, Var, info

MS = "com.microsoft"
TYPES = (np.float32, np.float32, np.float32, np.float16, np.float16, ml_dtypes.bfloat16)
SIZES = (1, 2, 3, 5, 8, 16, 17, 31, 33, 48, 65)
WIDE = (1, 2, 3, 5, 16, 24, 33, 48, 64, 70, 130)
_MOST = 1 << 13
_OPSET = 23


class Net:
    """A network in the making: `x` is its latest value, whose first axis is the batch, and its second one the
    length where it is no image."""

    def __init__(self, seed: int) -> None:
        self.r = r = random.Random(seed)
        self.g = Maker(r, np.dtype(r.choice(TYPES)), opset=_OPSET, wild=True, most=_MOST)
        self.feeds: dict[str, np.ndarray] = {}
        self.open: dict[str, list[Any]] = {}
        first, second = (self._sizes(SIZES) for _ in range(2))
        self.sizes = {"b": (r.choice((1, 1, 2, 3)), r.choice((1, 2, 3, 5, 0))), "l": (first, second)}
        self.image = r.random() < 0.4
        if self.image:
            rank, channels = r.choice((1, 2, 2, 2, 3)), r.choice((1, 2, 3, 5, 8, 16))
            spatial = [self._sizes((5, 7, 9, 12) if rank > 1 else (9, 16, 33)) for _ in range(rank)]
            self.x = self.fed(["b", channels, *spatial])
        else:
            self.x = self.fed(["b", "l", self._sizes(WIDE)])

    def _sizes(self, known: Sequence[int]) -> int:
        return self.r.choice(known)

    @property
    def half(self) -> bool:
        return self.g.dtype != np.float32

    def fed(self, dims: Sequence[str | int], dtype: Any = None, values: Any = None) -> Var:
        """An input, whose axes of a name have its first size."""
        shape = [self.sizes[d][0] if isinstance(d, str) else d for d in dims]
        made = self.numbers(shape) if values is None else values(shape)
        name = f"x{len(self.feeds)}"
        self.feeds[name], self.open[name] = made.astype(dtype or self.g.dtype), list(dims)
        return Var(name, self.feeds[name])

    def numbers(self, shape: Sequence[int], scale: float = 1.0) -> np.ndarray:
        return np.asarray((self.g.rng.normal(size=tuple(shape)) * scale).round(2))

    def held(self, *shape: int, scale: float = 1.0) -> Var:
        return self.g.const(self.numbers(shape, scale).astype(self.g.dtype))

    def dims(self, v: Var | None = None) -> list[str | int]:
        """The shape of a value, with names where a batch or a length is."""
        shape = (v or self.x).shape
        return ["b", *shape[1:]] if self.image else ["b", "l", *shape[2:]]

    def take(self, made: Any) -> bool:
        """Go on from a result, if there is one that later steps can take."""
        v = made[0] if isinstance(made, list) else made
        if v is None or v.array.dtype != self.g.dtype or v.array.ndim != self.x.array.ndim or (
                v.shape[0] != self.x.shape[0] or 0 in v.shape[1 if self.image else 2:]):
            return False
        if not self.image and v.shape[1] != self.x.shape[1]:
            return False
        self.x = v
        return True

    def beside(self) -> Var:
        """An operand that broadcasts against the latest value: fed or held."""
        r, dims = self.r, self.dims()
        own: list[str | int] = [1 if r.random() < 0.4 else d for d in dims]
        own = own[r.randrange(len(own)):] if r.random() < 0.5 else own
        if all(isinstance(d, int) for d in own) and r.random() < 0.7:
            return self.held(*(int(d) for d in own))
        return self.fed(own)

    def subject(self, seed: int) -> Subject:
        g, r = self.g, self.r
        read = {n for node in g.nodes for n in node.input}
        ends = [v for v in g.vars if v.name not in read or (r.random() < 0.1 and v.name not in self.feeds)]
        inputs = [info(n, a.dtype, self.open[n] if r.random() < 0.9 else [None] * a.ndim)
                  for n, a in self.feeds.items()]
        graph = helper.make_graph(g.nodes, "net", inputs, [info(v.name, v.array.dtype, None) for v in ends],
                                  [stored(v) for v in g.inits])
        model = helper.make_model(graph, opset_imports=imports(_OPSET, {n.domain for n in g.nodes}))
        model.ir_version = 10
        other = {k: fitted(a, tuple(self.sizes[d][1] if isinstance(d, str) else d for d in self.open[k]))
                 for k, a in self.feeds.items()}
        feeds, kinds = [self.feeds, other], ["first", "again"]
        if r.random() < 0.35:
            feeds.append({k: self._spoiled(a) for k, a in self.feeds.items()})
            kinds.append("special")
        feeds.append(self.feeds)
        kinds.append("again")
        return Subject(f"chain {seed}", model, feeds, Setting("ORT_ENABLE_ALL", 1, r.choice((0, 1, 2))),
                       kinds=kinds)

    def _spoiled(self, a: np.ndarray) -> np.ndarray:
        """`a` with one number that is not finite, at times."""
        if a.dtype != self.g.dtype or not a.size or self.r.random() < 0.4:
            return a
        made = a.copy()
        made.reshape(-1)[self.r.randrange(a.size)] = self.r.choice((np.nan, np.inf, -np.inf))
        return made


# what stands anywhere


def curve(n: Net) -> None:
    op = n.r.choice(("Relu", "Sigmoid", "Tanh", "Gelu", "Elu", "HardSwish", "LeakyRelu", "Softplus", "Erf",
                     "Abs", "Neg", "Swish", "QuickGelu", "Clip", "FastGelu"))
    g = n.g
    if op == "Swish":
        n.take(g.emit("Mul", n.x, g.emit("Sigmoid", n.x)))
    elif op == "Clip":
        n.take(g.emit(op, n.x, g.number(-0.5), g.number(0.75)) if n.r.random() < 0.5 else
               g.emit(op, n.x, g.const(np.array(-0.5, g.dtype)), g.const(np.array(0.75, g.dtype))))
    else:
        n.take(g.emit(op, n.x, domain=MS if op in ("QuickGelu", "FastGelu") else ""))


def added(n: Net) -> None:
    """An operand that broadcasts, or an earlier value."""
    known = [v for v in n.g.vars if v.shape == n.x.shape and v.array.dtype == n.x.array.dtype]
    other = n.r.choice(known) if known and n.r.random() < 0.5 else n.beside()
    pair = (n.x, other) if n.r.random() < 0.7 else (other, n.x)
    n.take(n.g.emit(n.r.choice(("Add", "Add", "Mul", "Sub", "Max", "Min")), *pair))


def chosen(n: Net) -> None:
    """Where by a truth that is fed, compared or an integer's."""
    g, r = n.g, n.r
    kind = r.choice((0, 2) if n.half else (0, 1, 2))
    if kind == 0:
        test = n.fed([1 if r.random() < 0.4 else d for d in n.dims()], bool, lambda s: g.rng.random(s) < 0.5)
    elif kind == 1:
        test = g.emit(r.choice(("Greater", "LessOrEqual")), n.x, g.number(0.25))
    else:
        whole = n.fed(n.dims(), r.choice((np.int32, np.int64, np.int8)), lambda s: g.rng.integers(-3, 4, s))
        test = g.emit("Cast", g.emit("Abs", whole), to=9)
    n.take(g.emit("Where", test, n.x, n.beside()))


def cast(n: Net) -> None:
    """There and back."""
    made = n.g.emit("Cast", n.x, to=n.r.choice((1, 10, 16, 6, 7, 3)))
    n.take(n.g.emit("Cast", made, to=int(helper.np_dtype_to_tensor_dtype(n.g.dtype))))


def rows(n: Net) -> None:
    """Softmax and its kind, over any axis."""
    axis = n.r.randrange(1, n.x.array.ndim)
    axis = axis if n.r.random() < 0.5 else -1
    op = n.r.choice(("Softmax", "Softmax", "LogSoftmax", *(() if n.half else ("Hardmax",))))
    n.take(n.g.emit(op, n.x, axis=axis))


def reduced(n: Net) -> None:
    """A reduction, and what it was of beside it."""
    rank = n.x.array.ndim
    axes = n.r.sample(range(1, rank), n.r.randint(1, rank - 1))
    op = n.r.choice(("Mean", "Max", "Sum", "L2", "Min", "SumSquare", "LogSumExp"))
    made = n.g.emit(f"Reduce{op}", n.x, n.g.ints(*axes), keepdims=1)
    if made is not None:
        n.take(n.g.emit(n.r.choice(("Sub", "Add", "Mul")), n.x, made))


def summed(n: Net) -> None:
    """Running totals."""
    if n.half:
        return
    axis = n.g.const(np.array(n.r.randrange(1, n.x.array.ndim)))
    n.take(n.g.emit("CumSum", n.x, axis, exclusive=n.r.randrange(2), reverse=n.r.randrange(2)))


def moved(n: Net) -> None:
    """Slices, pads, parts in another order, all along axes of known size."""
    g, r = n.g, n.r
    rank = n.x.array.ndim
    axis = r.randrange(1 if n.image else 2, rank)
    size, kind = n.x.shape[axis], r.randrange(6)
    if kind == 0:
        first = r.randrange(size)
        n.take(g.emit("Slice", n.x, g.ints(first), g.ints(size), g.ints(axis)))
    elif kind == 1:
        n.take(g.emit("Slice", n.x, g.ints(-1), g.ints(-(1 << 40)), g.ints(axis), g.ints(-r.choice((1, 2)))))
    elif kind == 2:
        pads = [r.randrange(3) if i % rank == axis else 0 for i in range(2 * rank)]
        mode = r.choice(("constant", "edge", "reflect", "wrap"))
        if mode != "reflect" or max(pads) < size:
            n.take(g.emit("Pad", n.x, g.ints(*pads), mode=mode))
    elif kind == 3 and size > 1:
        cut = r.randrange(1, size)
        parts = g.emit("Split", n.x, g.ints(cut, size - cut), axis=axis, outputs=2)
        if parts:
            n.take(g.emit("Concat", *parts[::-1], axis=axis))
    elif kind == 4:
        where = g.rng.integers(-size, size, r.choice((1, 2, 3, 5, 17)))
        n.take(g.emit("Gather", n.x, g.const(where.astype(r.choice((np.int32, np.int64)))), axis=axis))
    else:
        n.take(g.emit("Concat", n.x, n.x if r.random() < 0.5 else g.emit("Neg", n.x), axis=axis))


def scattered(n: Net) -> None:
    g, r = n.g, n.r
    axis = r.randrange(1 if n.image else 2, n.x.array.ndim)
    size, kind = n.x.shape[axis], r.choice((0, 3) if n.half else (0, 1, 2, 3))
    if kind == 0:
        where = np.array(r.sample(range(size), r.randint(1, size)))
        parts = g.emit("Gather", n.x, g.const(where), axis=axis)
        form = [-1 if i == axis else 1 for i in range(n.x.array.ndim)]
        spread = g.emit("Expand", g.const(where.reshape(form)), g.emit("Shape", parts))
        n.take(g.emit("ScatterElements", n.x, spread, g.emit("Neg", parts), axis=axis,
                      reduction=r.choice(("none", "add", "max"))))
    elif kind == 1:
        count = r.randint(1, size)
        found = g.emit("TopK", n.x, g.ints(count), axis=axis, largest=r.randrange(2), outputs=2)
        if found:
            n.take(found)
            g.emit("GatherElements", n.x, found[1], axis=axis) if n.x is found[0] else None
    elif kind == 2:
        best = g.emit(r.choice(("ArgMax", "ArgMin")), n.x, axis=axis, keepdims=1,
                      select_last_index=r.randrange(2))
        n.take(g.emit("Add", n.x, g.emit("GatherElements", n.x, best, axis=axis)))
    else:
        n.take(g.emit("Trilu", n.x, g.const(np.array(r.choice((-1, 0, 2)))), upper=r.randrange(2)))


def quantized(n: Net) -> None:
    """Through a byte and back."""
    g, r = n.g, n.r
    if n.half:
        return
    kind = r.choice((np.int8, np.uint8))
    zero = g.const(np.array(r.choice((0, 3)), kind))
    scale = g.const(np.array(0.05, g.dtype))
    made = g.emit("QuantizeLinear", n.x, scale, zero)
    if made is not None:
        n.take(g.emit("DequantizeLinear", made, scale, zero))


# rows


def product(n: Net) -> None:
    """By weights, with a bias and what follows."""
    g, r = n.g, n.r
    k, wide = n.x.shape[-1], r.choice(WIDE)
    kind, made = r.randrange(7), None
    if kind <= 1:
        made = g.emit("MatMul", n.x, n.held(k, wide, scale=k ** -0.5))
    elif kind == 2:
        made = g.emit("MatMul", n.x, n.fed([k, wide] if r.random() < 0.6 else ["b", k, wide]))
    elif kind == 3:
        made = g.emit("FusedMatMul", n.x, n.held(wide, k, scale=k ** -0.5), domain=MS, transB=1, alpha=0.5)
    elif kind == 4:
        flat = g.emit("Reshape", n.x, g.ints(-1, k))
        flat = g.emit("Gemm", flat, n.held(wide, k, scale=k ** -0.5), n.held(wide), transB=1)
        sizes = g.emit("Concat", g.emit("Shape", n.x, start=0, end=2), g.ints(wide), axis=0)
        made = g.emit("Reshape", flat, sizes)
    elif kind == 5 and n.g.dtype != ml_dtypes.bfloat16:
        block, bits = r.choice((16, 32)), r.choice((4, 4, 8, 2))
        blocks = -(-k // block)
        b = g.const(g.rng.integers(0, 256, (wide, blocks, block * bits // 8)).astype(np.uint8))
        scales = g.const((g.rng.random((wide, blocks)) / (2 << bits)).astype(g.dtype))
        made = g.emit("MatMulNBits", n.x, b, scales, domain=MS, K=k, N=wide, bits=bits, block_size=block)
    elif kind == 6:
        other = n.fed(["b", wide, k])
        made = g.emit("MatMul", n.x, g.emit("Transpose", other, perm=[0, 2, 1]))
    before = n.x
    if not n.take(made):
        return
    if r.random() < 0.6:
        n.take(g.emit("Add", n.x, n.held(wide)))
    if r.random() < 0.5:
        curve(n)
    if r.random() < 0.4 and before.shape == n.x.shape:
        n.take(g.emit("Add", n.x, before))
    if r.random() < 0.4:
        norm(n)


def gated(n: Net) -> None:
    """Two products of one value that meet."""
    g, r = n.g, n.r
    k, wide = n.x.shape[-1], r.choice(WIDE)
    one, two = (g.emit("MatMul", n.x, n.held(k, wide, scale=k ** -0.5)) for _ in range(2))
    if r.random() < 0.5:
        one, two = (g.emit("Add", v, n.held(wide)) for v in (one, two))
    act = r.choice(("Sigmoid", "Swish", "Gelu", "Relu"))
    made = g.emit("Sigmoid", one) if act == "Swish" else g.emit(act, one)
    n.take(g.emit("Mul", g.emit("Mul", one, made) if act == "Swish" else made, two))


def norm(n: Net) -> None:
    """Along rows, with what is added first, whole or taken apart."""
    g, r = n.g, n.r
    axis, size = (1 if n.image else -1), n.x.shape[1 if n.image else -1]
    if n.image:
        image_norm(n)
        return
    kind, eps = r.randrange(7), r.choice((1e-5, 1e-3))
    if kind == 0:
        n.take(g.emit("LayerNormalization", n.x, n.held(size), n.held(size), epsilon=eps, axis=-1))
    elif kind == 1:
        n.take(g.emit("LayerNormalization", n.x, n.held(size), epsilon=eps, axis=-1))
    elif kind == 2:
        n.take(g.emit("SimplifiedLayerNormalization", n.x, n.held(size), epsilon=eps, axis=-1))
    elif kind == 3:
        known = [v for v in n.g.vars if v.shape == n.x.shape and v.array.dtype == n.x.array.dtype]
        other = r.choice(known) if known else n.fed(n.dims())
        made = g.emit("SkipLayerNormalization", n.x, other, n.held(size), n.held(size),
                      *((n.held(size),) if r.random() < 0.5 else ()), domain=MS, epsilon=eps, outputs=4)
        if made and n.take(made) and r.random() < 0.5:
            g.emit("Add", made[3], n.x)
    elif kind == 4:
        n.take(g.emit("RMSNormalization", n.x, n.held(size), epsilon=eps, axis=-1))
    else:
        mean = g.emit("ReduceMean", n.x, g.ints(axis), keepdims=1)
        apart = g.emit("Sub", n.x, mean) if kind == 5 and mean is not None else n.x
        square = g.emit("Pow", apart, g.number(2.0)) if r.random() < 0.5 else g.emit("Mul", apart, apart)
        spread = g.emit("ReduceMean", square, g.ints(axis), keepdims=1)
        root = g.emit("Sqrt", g.emit("Add", spread, g.const(np.array(eps, g.dtype))))
        if root is not None and n.take(g.emit("Div", apart, root)):
            n.take(g.emit("Mul", n.x, n.held(size)))


def attention(n: Net) -> None:
    """Taken apart, or an operator's, with masks, shared keys and caches."""
    g, r = n.g, n.r
    heads, size = r.choice((1, 2, 3)), r.choice((3, 8, 16, 20))
    k, kind = n.x.shape[-1], r.randrange(4)
    shared = 1 if r.random() < 0.4 and kind == 2 else heads
    parts = [g.emit("MatMul", n.x, n.held(k, h * size, scale=k ** -0.5)) for h in (heads, shared, shared)]
    if any(p is None for p in parts):
        return
    if kind <= 1:
        turned = [g.emit("Transpose", g.emit("Reshape", p, g.ints(0, 0, heads, size)), perm=perm)
                  for p, perm in zip(parts, ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3]), strict=True)]
        scores = g.emit("MatMul", turned[0], turned[1])
        scores = g.emit("Mul", scores, g.const(np.array(size ** -0.5, g.dtype)))
        how = r.randrange(4)
        if how == 0:
            scores = g.emit("Add", scores, n.fed([r.choice((1, "b")), r.choice((1, heads)), "l", "l"]))
        elif how == 1:
            test = n.fed(["b", 1, 1, "l"], bool, lambda s: g.rng.random(s) < 0.8)
            scores = g.emit("Where", test, scores, g.const(np.array(-1e4, g.dtype)))
        elif how == 2:
            scores = g.emit("Where", n.fed([1, 1, "l", "l"], bool, lambda s: np.tri(*s[2:]).reshape(s) > 0),
                            scores, g.const(np.array(-np.inf, g.dtype)))
        mixed = g.emit("MatMul", g.emit("Softmax", scores, axis=-1), turned[2])
        mixed = g.emit("Reshape", g.emit("Transpose", mixed, perm=[0, 2, 1, 3]), g.ints(0, 0, heads * size))
    elif kind == 2:
        past = [n.fed(["b", shared, 5, size]) for _ in range(2)] if r.random() < 0.5 else [None, None]
        keys: list[Any] = ["l"]
        mask = None
        if past[0] is None and r.random() < 0.5:
            mask = n.fed([1 if r.random() < 0.5 else "l", *keys]) if r.random() < 0.5 else n.fed(
                ["b", 1, 1, *keys], bool, lambda s: np.arange(s[-1]) % 3 != 2)
        mixed = g.emit("Attention", *parts, mask, *past, q_num_heads=heads, kv_num_heads=shared,
                       is_causal=r.randrange(2), outputs=3 if past[0] is not None else 1)
        mixed = mixed[0] if isinstance(mixed, list) else mixed
    else:
        mask = n.fed(["b", "l"], np.int32, lambda s: np.arange(s[-1]) % 4 != 3) if r.random() < 0.4 else None
        mixed = g.emit("MultiHeadAttention", *parts, None, mask, domain=MS, num_heads=heads,
                       unidirectional=r.randrange(2))
    before = n.x
    if n.take(mixed) and n.take(g.emit("MatMul", n.x, n.held(heads * size, k, scale=0.2))):
        n.take(g.emit("Add", n.x, before))


# images


def _window(n: Net, least: int = 1) -> dict[str, Any]:
    r, rank = n.r, n.x.array.ndim - 2
    taps = [r.randint(1, min(3, d)) for d in n.x.shape[2:]]
    attrs: dict[str, Any] = {"kernel_shape": taps}
    if r.random() < 0.4:
        attrs["strides"] = [r.randint(1, 2) for _ in range(rank)]
    if r.random() < 0.6:
        attrs["pads"] = [r.randrange(taps[i % rank]) for i in range(2 * rank)]
    if r.random() < 0.3:
        attrs["dilations"] = [r.choice((1, 2)) if (taps[i] - 1) * 2 < n.x.shape[2 + i] else 1
                              for i in range(rank)]
    return attrs


def conv(n: Net) -> None:
    g, r = n.g, n.r
    channels, attrs = n.x.shape[1], _window(n)
    taps = attrs["kernel_shape"]
    if r.random() < 0.3:
        taps = attrs["kernel_shape"] = [1] * len(taps)
        attrs = {"kernel_shape": taps}
    group = r.choice([d for d in (1, 1, 2, 3, channels) if channels % d == 0])
    out = group * r.choice((1, 2, 3, 5) if group > 1 else (1, 2, 3, 5, 8, 16, 20))
    turned = r.random() < 0.2
    shape = (channels, out // group) if turned else (out, channels // group)
    w = n.held(*shape, *taps, scale=(channels // group * np.prod(taps)) ** -0.5)
    before = n.x
    bias = (n.held(out),) if r.random() < 0.6 else ()
    if not n.take(g.emit("ConvTranspose" if turned else "Conv", n.x, w, *bias, group=group, **attrs)):
        return
    if r.random() < 0.3:
        image_norm(n)
    if r.random() < 0.5:
        curve(n)
    if before.shape == n.x.shape and r.random() < 0.5:
        n.take(g.emit("Add", n.x, before))
        n.take(g.emit("Relu", n.x))


def image_norm(n: Net) -> None:
    g, r = n.g, n.r
    c, kind = n.x.shape[1], r.randrange(4)
    scale, shift = n.held(c), n.held(c)
    if kind == 0:
        var = g.const((g.rng.random(c) + 0.5).astype(g.dtype))
        n.take(g.emit("BatchNormalization", n.x, scale, shift, n.held(c), var))
    elif kind == 1:
        n.take(g.emit("InstanceNormalization", n.x, scale, shift))
    elif kind == 2:
        groups = r.choice([d for d in (1, 2, 3, c) if c % d == 0])
        n.take(g.emit("GroupNormalization", n.x, scale, shift, num_groups=groups))
    else:
        n.take(g.emit("LRN", n.x, size=3))


def pool(n: Net) -> None:
    g, r = n.g, n.r
    op = r.choice(("MaxPool", "AveragePool", "LpPool", "GlobalAveragePool", "GlobalMaxPool"))
    if op.startswith("Global"):
        made = g.emit(op, n.x)
        n.take(g.emit(r.choice(("Mul", "Sub")), n.x, made))
        return
    attrs = _window(n)
    if op == "AveragePool":
        attrs["count_include_pad"] = r.randrange(2)
    if r.random() < 0.3:
        attrs["ceil_mode"] = 1
    n.take(g.emit(op, n.x, **attrs))


def resized(n: Net) -> None:
    g, r = n.g, n.r
    rank = n.x.array.ndim - 2
    mode = r.choice(("nearest", "nearest", "linear", "cubic") if rank < 3 else ("nearest", "linear"))
    scales = np.array([1, 1, *(r.choice((1, 2, 0.5, 1.5)) for _ in range(rank))], np.float32)
    n.take(g.emit("Resize", n.x, None, g.const(scales), mode=mode, coordinate_transformation_mode=r.choice(
        ("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel"))))


ANYWHERE = (curve, curve, added, added, chosen, cast, rows, reduced, summed, moved, moved, scattered,
            quantized)
ROWS: Sequence[Callable[[Net], None]] = (product, product, product, gated, norm, norm, attention, attention,
                                         *ANYWHERE)
IMAGES: Sequence[Callable[[Net], None]] = (conv, conv, conv, conv, pool, resized, image_norm, *ANYWHERE)


def chain(seed: int, data: bool = True) -> Subject:
    """A network of a few steps."""
    for turn in range(99):
        n = Net(seed + turn * 1_000_003)
        for _ in range(n.r.choice((1, 2, 3, 4, 5))):
            n.r.choice(IMAGES if n.image else ROWS)(n)
        if n.g.vars:
            return n.subject(seed)
    raise AssertionError(f"nothing comes of seed {seed}")
