"""Quantized models on integer kernels: the operators' definitions, bit for bit where sums are exact, and
onnxruntime."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import pytest
from draws import draws
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from onnx import helper, numpy_helper

import orthrus
from orthrus.codegen.machines import detect
from orthrus.codegen.machines.detect import host
from orthrus.codegen.machines.machine import AVX2, AVX512, SSE2, Machine
from orthrus.lowering.native import Native
from orthrus.ops.define import find

MS = "com.microsoft"
HERE = host()
if HERE is None or HERE.arch != "x86_64":
    pytest.skip("the processor here has no x86 instructions", allow_module_level=True)
MACHINES: list[Machine] = [HERE, *(m for m in (AVX512, AVX2, SSE2)
                                   if set(m.features) <= {*HERE.features, "sse2"})]
QUICK = draws(20, suppress_health_check=list(HealthCheck))


@pytest.fixture(autouse=True)
def compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """No part is run by definitions because it does not lower."""
    def interpret(self: Native, *_: Any) -> Any:
        raise AssertionError(f"{self.part} is interpreted: {list(self.refused.values())}")
    monkeypatch.setattr(Native, "interpret", interpret)


@contextlib.contextmanager
def on(target: Machine) -> Iterator[None]:
    """Sessions made inside have their kernels written for `target`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(detect, "host", lambda: target)
        yield


def model(nodes: list[onnx.NodeProto], feeds: dict[str, np.ndarray], held: dict[str, np.ndarray],
          outputs: dict[str, Any]) -> onnx.ModelProto:
    elems = {name: helper.np_dtype_to_tensor_dtype(np.dtype(d)) for name, d in outputs.items()}
    graph = helper.make_graph(
        nodes, "g",
        [helper.make_tensor_value_info(k, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape)
         for k, v in feeds.items()],
        [helper.make_tensor_value_info(k, e, None) for k, e in elems.items()],
        [numpy_helper.from_array(v, k) for k, v in held.items()])
    return helper.make_model(graph, ir_version=10,
                             opset_imports=[helper.make_opsetid("", 21), helper.make_opsetid(MS, 1)])


def parts_of(s: orthrus.InferenceSession) -> list[Native]:
    """The session's compiled parts."""
    return [step.kernel.run for step in s._sess._engine.program.calls if isinstance(step.kernel.run, Native)]


def run(made: onnx.ModelProto, feeds: dict[str, np.ndarray], wanted: str | tuple[str, ...] | None = "int8",
        level: str = "ORT_ENABLE_ALL") -> list[np.ndarray]:
    """The outputs; some kernel has to be named `wanted`..., and no node is left to numpy."""
    options = orthrus.SessionOptions()
    options.graph_optimization_level = getattr(orthrus.GraphOptimizationLevel, level)
    s = orthrus.InferenceSession(made.SerializeToString(), options, providers=["CPUExecutionProvider"])
    got = s.run(None, feeds)
    parts = parts_of(s)
    plans = [plan for part in parts for plan in part.plans.values() if plan is not None]
    steps = [step for plan in plans for step in plan.steps]
    assert steps, [part.refused for part in parts]
    specs = [step.spec for step in steps if step.spec is not None]
    assert len(specs) == len(steps), [step.node.kind for step in steps if step.spec is None]
    assert wanted is None or any(spec.template.startswith(wanted) for spec in specs)
    return got


def definition(kind: str, *inputs: Any, domain: str = "", **attrs: Any) -> Any:
    op = find(domain, kind, 21 if not domain else 1)
    assert op is not None
    return op.body(*inputs, **attrs)


def codes(rng: np.random.Generator, dtype: Any, *shape: int) -> np.ndarray:
    info = np.iinfo(dtype)
    return rng.integers(info.min, info.max + 1, shape, dtype)


def scales(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return (rng.random(shape) * 0.02 + 0.001).astype(np.float32)


CONVS = st.tuples(
    st.sampled_from([(1, 1), (3, 3), (1, 3), (5, 2), (7, 7)]), st.sampled_from([1, 2, 3]),
    st.sampled_from([1, 2]), st.integers(0, 2), st.sampled_from([1, 3, 4, 8, 16, 33, 64]),
    st.sampled_from([1, 5, 16, 31, 64]), st.integers(7, 17), st.integers(1, 2))


@pytest.mark.parametrize("target", MACHINES, ids=lambda m: f"{8 * m.vector}-{len(m.features)}")
@QUICK
@given(seed=st.integers(0, 2**32), form=CONVS, signs=st.tuples(st.booleans(), st.booleans()),
       per_channel=st.booleans(), bias=st.booleans(), flat=st.booleans(), group=st.sampled_from([1, 1, 2]))
def test_qlinear_conv(target: Machine, seed: int, form: Any, signs: tuple[bool, bool], per_channel: bool,
                      bias: bool, flat: bool, group: int) -> None:
    """Bit for bit: any window, stride, dilation, padding, signs and zero points, 1-D and 2-D."""
    (kh, kw), stride, dilation, pad, c, m, size, batch = form
    rng = np.random.default_rng(seed)
    x_type, w_type = (np.int8 if s else np.uint8 for s in signs)
    spatial = 1 if flat else 2
    kernel = [kh, kw][2 - spatial:]
    sizes = [size + 6, size + 9][2 - spatial:]
    if any((k - 1) * dilation + 1 > s + 2 * pad for k, s in zip(kernel, sizes, strict=True)) or (
            group > 1 and c * m < 64):
        return
    x = codes(rng, x_type, batch, c * group, *sizes)
    w = codes(rng, w_type, m * group, c, *kernel)
    many = (m * group,) if per_channel else ()
    held = {"xs": scales(rng), "xz": codes(rng, x_type), "w": w, "ws": scales(rng, *many),
            "wz": codes(rng, w_type, *many) if not signs[1] else np.zeros(many, w_type),
            "ys": np.float32(rng.random() * c * kh * kw / 20 + 0.01), "yz": codes(rng, np.uint8)}
    held = {k: np.asarray(v) for k, v in held.items()}
    names = ["x", "xs", "xz", "w", "ws", "wz", "ys", "yz"]
    if bias:
        held["b"] = rng.integers(-5000, 5000, m * group).astype(np.int32)
        names.append("b")
    attrs = {"strides": [stride] * spatial, "dilations": [dilation] * spatial, "pads": [pad] * (2 * spatial),
             "group": group}
    node = helper.make_node("QLinearConv", names, ["y"], **attrs)
    with on(target):
        (got,) = run(model([node], {"x": x}, held, {"y": np.uint8}), {"x": x})
    wanted = definition("QLinearConv", x, *(held[n] for n in names[1:]), **attrs)
    np.testing.assert_array_equal(got, wanted)


MATRICES = st.tuples(st.sampled_from([(), (1,), (5,), (40,), (3, 7), (2, 3, 17)]),
                     st.sampled_from([1, 3, 16, 33, 64, 130]), st.sampled_from([1, 7, 16, 40, 96]))


def matrices(seed: int, form: Any, signs: tuple[bool, bool]
             ) -> tuple[np.random.Generator, np.ndarray, np.ndarray]:
    lead, k, n = form
    rng = np.random.default_rng(seed)
    a_type, b_type = (np.int8 if s else np.uint8 for s in signs)
    return rng, codes(rng, a_type, *(lead or (1,)), k), codes(rng, b_type, k, n)


@pytest.mark.parametrize("target", MACHINES, ids=lambda m: f"{8 * m.vector}-{len(m.features)}")
@QUICK
@given(seed=st.integers(0, 2**32), form=MATRICES, signs=st.tuples(st.booleans(), st.booleans()),
       columns=st.booleans(), computed=st.booleans())
def test_matmul_integer(target: Machine, seed: int, form: Any, signs: tuple[bool, bool], columns: bool,
                        computed: bool) -> None:
    """Bit for bit, with zero points known and computed."""
    rng, a, b = matrices(seed, form, signs)
    az, bz = codes(rng, a.dtype), codes(rng, b.dtype, *((b.shape[1],) if columns else ()))
    feeds, held = {"a": a}, {"b": b, "bz": bz}
    (feeds if computed else held)["az"] = np.asarray(az)
    node = helper.make_node("MatMulInteger", ["a", "b", "az", "bz"], ["y"])
    with on(target):
        (got,) = run(model([node], feeds, held, {"y": np.int32}), feeds)
    np.testing.assert_array_equal(got, definition("MatMulInteger", a, b, np.asarray(az), bz))


@QUICK
@given(seed=st.integers(0, 2**32), form=MATRICES, signs=st.tuples(st.booleans(), st.booleans()),
       columns=st.booleans())
def test_qlinear_matmul(seed: int, form: Any, signs: tuple[bool, bool], columns: bool) -> None:
    """Bit for bit."""
    rng, a, b = matrices(seed, form, signs)
    many = (b.shape[1],) if columns else ()
    held = {"as": scales(rng), "az": codes(rng, a.dtype), "b": b, "bs": scales(rng, *many),
            "bz": codes(rng, b.dtype, *many), "ys": np.float32(rng.random() * len(b) + 0.01),
            "yz": codes(rng, a.dtype)}
    held = {k: np.asarray(v) for k, v in held.items()}
    node = helper.make_node("QLinearMatMul", ["a", *held], ["y"])
    (got,) = run(model([node], {"a": a}, held, {"y": a.dtype}), {"a": a})
    np.testing.assert_array_equal(got, definition("QLinearMatMul", a, *held.values()))


@pytest.mark.parametrize("target", MACHINES, ids=lambda m: f"{8 * m.vector}-{len(m.features)}")
@QUICK
@given(seed=st.integers(0, 2**32), kernel=st.sampled_from([(1, 1), (3, 3), (5, 5), (2, 4)]),
       stride=st.integers(1, 2), dilation=st.integers(1, 2), pad=st.integers(0, 2), c=st.integers(2, 70),
       signs=st.tuples(st.booleans(), st.booleans()), per_channel=st.booleans(), centred=st.booleans())
def test_depthwise(target: Machine, seed: int, kernel: tuple[int, int], stride: int, dilation: int, pad: int,
                   c: int, signs: tuple[bool, bool], per_channel: bool, centred: bool) -> None:
    """Bit for bit. `centred`: weights less their zero point are bytes."""
    rng = np.random.default_rng(seed)
    x_type, w_type = (np.int8 if s else np.uint8 for s in signs)
    many = (c,) if per_channel else ()
    x, w = codes(rng, x_type, 2, c, 11, 9), codes(rng, w_type, c, 1, *kernel)
    held = {"xs": scales(rng), "xz": codes(rng, x_type), "w": w, "ws": scales(rng, *many),
            "wz": codes(rng, w_type, *many), "ys": np.float32(0.3), "yz": codes(rng, np.int8),
            "b": rng.integers(-5000, 5000, c).astype(np.int32)}
    if centred:
        held["wz"] = np.full(many, 0 if signs[1] else 128, w_type)
    held = {k: np.asarray(v) for k, v in held.items()}
    attrs = {"strides": [stride] * 2, "dilations": [dilation] * 2, "pads": [pad] * 4, "group": c}
    node = helper.make_node("QLinearConv", ["x", *held], ["y"], **attrs)
    with on(target):
        (got,) = run(model([node], {"x": x}, held, {"y": np.int8}), {"x": x}, "int8_depthwise")
    np.testing.assert_array_equal(got, definition("QLinearConv", x, *held.values(), **attrs))


@QUICK
@given(seed=st.integers(0, 2**32), form=CONVS, signs=st.tuples(st.booleans(), st.booleans()))
def test_conv_integer(seed: int, form: Any, signs: tuple[bool, bool]) -> None:
    """Bit for bit; the definition's padding counts as the zero point."""
    (kh, kw), stride, dilation, pad, c, m, size, batch = form
    rng = np.random.default_rng(seed)
    x_type, w_type = (np.int8 if s else np.uint8 for s in signs)
    x, w = codes(rng, x_type, batch, c, size + 6, size + 9), codes(rng, w_type, m, c, kh, kw)
    held = {"w": w, "xz": codes(rng, x_type), "wz": codes(rng, w_type)}
    held = {k: np.asarray(v) for k, v in held.items()}
    attrs = {"strides": [stride] * 2, "dilations": [dilation] * 2, "pads": [pad] * 4}
    node = helper.make_node("ConvInteger", ["x", *held], ["y"], **attrs)
    (got,) = run(model([node], {"x": x}, held, {"y": np.int32}), {"x": x})
    np.testing.assert_array_equal(got, definition("ConvInteger", x, *held.values(), **attrs))


@pytest.mark.parametrize("special", [None, 0.0, 5.0, np.nan, np.inf, -np.inf, 1e-39, 1e-43, 1e37])
@pytest.mark.parametrize("shape", [(3,), (7, 33), (50, 4000)])
def test_dynamic_quantize_linear(shape: tuple[int, ...], special: float | None) -> None:
    """Codes, scale and zero point, bit for bit."""
    x = np.random.default_rng(3).standard_normal(shape).astype(np.float32)
    if special in (0.0, 5.0):
        x[...] = special
    elif special is not None and np.isfinite(special):
        x *= np.float32(special)
    elif special is not None:
        x.reshape(-1)[-1] = special
    outputs = {"y": np.uint8, "s": np.float32, "z": np.uint8}
    made = model([helper.make_node("DynamicQuantizeLinear", ["x"], list(outputs))], {"x": x}, {}, outputs)
    with np.errstate(all="ignore"):
        wanted = definition("DynamicQuantizeLinear", x)
    for ours, theirs in zip(run(made, {"x": x}, "range"), wanted, strict=True):
        np.testing.assert_array_equal(ours, theirs)


class Block:
    """A model being written node by node, and what its inputs are."""

    def __init__(self, seed: int, **feeds: np.ndarray) -> None:
        self.rng, self.feeds = np.random.default_rng(seed), feeds
        self.nodes: list[onnx.NodeProto] = []
        self.held: dict[str, np.ndarray] = {}

    def node(self, kind: str, *inputs: str, **attrs: Any) -> str:
        out = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [out], **attrs))
        return out

    def hold(self, value: Any) -> str:
        name = f"c{len(self.held)}"
        self.held[name] = np.asarray(value)
        return name

    def coded(self, x: str, scale: float, zero: Any) -> str:
        """x through QuantizeLinear and DequantizeLinear."""
        q = [self.hold(np.float32(scale)), self.hold(zero)]
        return self.node("DequantizeLinear", self.node("QuantizeLinear", x, *q), *q)

    def weights(self, *shape: int, axis: int | None = 0, dtype: Any = np.int8) -> tuple[str, np.ndarray]:
        """Dequantized weights, one scale for each index of `axis`, and the scales."""
        many = () if axis is None else (shape[axis],)
        scale = scales(self.rng, *many)
        zero = np.zeros(many, dtype) if dtype == np.int8 else codes(self.rng, dtype, *many)
        attrs = {} if axis is None else {"axis": axis}
        return self.node("DequantizeLinear", self.hold(codes(self.rng, dtype, *shape)), self.hold(scale),
                         self.hold(zero), **attrs), scale

    def run(self, out: str, wanted: str = "int8", **levels: str) -> np.ndarray:
        made = model(self.nodes, self.feeds, self.held, {out: np.float32})
        return run(made, self.feeds, wanted, **levels)[0]

    def reference(self, out: str) -> np.ndarray:
        """By the definitions, node by node."""
        env = {**self.feeds, **self.held}
        for node in self.nodes:
            attrs = {a.name: helper.get_attribute_value(a) for a in node.attribute}
            env[node.output[0]] = definition(node.op_type, *(env[i] for i in node.input), **attrs)
        return env[out]


def image(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("quantized_bias", [True, False])
@pytest.mark.parametrize("kernel,stride,channels", [(1, 1, (64, 96)), (3, 1, (16, 24)), (3, 2, (32, 16)),
                                                    (7, 2, (3, 64)), (1, 2, (40, 33))])
@pytest.mark.parametrize("zero", [np.uint8(0), np.uint8(131), np.int8(-7)])
def test_conv_of_dequantized(kernel: int, stride: int, channels: tuple[int, int], zero: Any,
                             quantized_bias: bool) -> None:
    """Floats within 1e-5 of the largest, codes within one."""
    c, m = channels
    block = Block(kernel + stride, x=image(1, 2, c, 19, 15))
    x = block.coded("x", 0.02, zero)
    w, scale = block.weights(m, c, kernel, kernel)
    if quantized_bias:
        by = [block.hold((np.float32(0.02) * scale).astype(np.float32)), block.hold(np.zeros(m, np.int32))]
        numbers = block.hold(block.rng.integers(-9999, 9999, m, np.int32))
        b = block.node("DequantizeLinear", numbers, *by, axis=0)
    else:
        b = block.hold(block.rng.standard_normal(m).astype(np.float32))
    y = block.node("Conv", x, w, b, strides=[stride] * 2, pads=[kernel // 2] * 4)
    wanted = block.reference(y)
    np.testing.assert_allclose(block.run(y), wanted, rtol=0, atol=1e-5 * np.abs(wanted).max())
    step = float(np.abs(wanted).max() / 200)
    z = block.coded(block.node("Relu", y), step, np.uint8(zero.clip(0)))
    np.testing.assert_allclose(block.run(z), block.reference(z), rtol=0, atol=1.001 * step)


@pytest.mark.parametrize("kind", ["MatMul", "Gemm", "Gemm transposed"])
@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
@pytest.mark.parametrize("m,k,n", [(1, 64, 10), (37, 96, 70), (5, 33, 17)])
def test_product_of_dequantized(kind: str, dtype: Any, m: int, k: int, n: int) -> None:
    block = Block(5, x=image(2, m, k))
    x = block.coded("x", 0.02, np.uint8(128))
    flip = kind.endswith("transposed")
    w, _ = block.weights(*((n, k) if flip else (k, n)), axis=0 if flip else 1, dtype=dtype)
    bias = block.hold(block.rng.standard_normal(n).astype(np.float32))
    y = (block.node("Add", block.node("MatMul", x, w), bias) if kind == "MatMul" else
         block.node("Gemm", x, w, bias, transB=int(flip)))
    wanted = block.reference(y)
    np.testing.assert_allclose(block.run(y), wanted, rtol=0, atol=1e-5 * np.abs(wanted).max())


def residual(seed: int, channels: int = 64) -> tuple[Block, str]:
    """Two convolutions, the second added to what the first one reads, then pooled and multiplied."""
    block = Block(seed, x=image(seed, 1, channels, 14, 14))
    x = block.coded("x", 0.02, np.uint8(120))
    for _ in range(2):
        w, _ = block.weights(channels, channels, 3, 3)
        y = block.node("Conv", x, w, pads=[1] * 4)
        y = block.coded(block.node("Relu", y), 0.4, np.uint8(0))
        v, _ = block.weights(channels, channels, 1, 1)
        y = block.coded(block.node("Conv", y, v), 0.9, np.uint8(101))
        x = block.coded(block.node("Add", y, x), 0.9, np.uint8(117))
    pooled = block.coded(block.node("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2]), 0.9, np.uint8(117))
    mean = block.coded(block.node("GlobalAveragePool", pooled), 0.7, np.uint8(117))
    w, _ = block.weights(channels, 10, axis=1)
    flat = block.coded(block.node("Flatten", mean), 0.7, np.uint8(117))
    return block, block.node("Gemm", flat, w)


@pytest.mark.parametrize("level", ["ORT_DISABLE_ALL", "ORT_ENABLE_ALL"])
def test_residual_block(level: str) -> None:
    """A flipped rounding moves what follows by a quantum: nearly all agree."""
    block, y = residual(4)
    wanted, got = block.reference(y), block.run(y, level=level)
    np.testing.assert_allclose(got, wanted, rtol=0, atol=0.02 * np.abs(wanted).max())


def test_weights_stay_bytes() -> None:
    """No constant of the part is a dequantized copy of weights."""
    block, y = residual(5)
    made = model(block.nodes, block.feeds, block.held, {y: np.float32})
    s = orthrus.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])
    s.run(None, block.feeds)
    held = [t.buffer.array for part in parts_of(s) for t in part.constants.values()]
    assert all(a is None or a.dtype != np.float32 or a.size <= 64 for a in held)


@QUICK
@given(seed=st.integers(0, 2**32), form=MATRICES, columns=st.booleans(), bias=st.booleans(),
       kind=st.sampled_from(["DynamicQuantizeMatMul", "MatMulIntegerToFloat", "QGemm", "QGemm floats"]))
def test_products_of_contrib(seed: int, form: Any, columns: bool, bias: bool, kind: str) -> None:
    """Floats within 1e-5 of the largest, codes within one."""
    rng, a, b = matrices(seed, form, (False, True))
    k, n = b.shape
    many = (n,) if columns else ()
    b_scale, b_zero = scales(rng, *many), codes(rng, np.int8, *many)
    added = rng.standard_normal(n).astype(np.float32)
    feeds: dict[str, Any] = {"a": a.reshape(-1, k) if kind.startswith("QGemm") else a}
    args: list[Any]
    attrs: dict[str, Any] = {}
    if kind == "DynamicQuantizeMatMul":
        feeds = {"a": rng.standard_normal(a.shape).astype(np.float32)}
        args = [b, b_scale, b_zero, *([added] if bias else [])]
    elif kind == "MatMulIntegerToFloat":
        args = [b, scales(rng), b_scale, codes(rng, np.uint8), b_zero, *([added] if bias else [])]
    else:
        args = [scales(rng), codes(rng, np.uint8), np.ascontiguousarray(b.T), b_scale, b_zero,
                *([rng.integers(-999, 999, n, np.int32)] if bias else [])]
        attrs = {"transB": 1, "alpha": 1.5}
        if kind == "QGemm":
            args = [*args, *([] if bias else [None]), np.float32(0.05 * k), np.uint8(99)]
    held = {f"c{i}": np.asarray(x) for i, x in enumerate(args) if x is not None}
    names = ["" if x is None else f"c{i}" for i, x in enumerate(args)]
    node = helper.make_node(kind.split()[0], ["a", *names], ["y"], domain=MS, **attrs)
    out = np.uint8 if kind == "QGemm" else np.float32
    (got,) = run(model([node], feeds, held, {"y": out}), feeds)
    given_ = [None if x is None else np.asarray(x) for x in args]
    wanted = definition(kind.split()[0], feeds["a"], *given_, domain=MS, **attrs)
    error = 1 if kind == "QGemm" else 1e-5 * float(np.abs(wanted).max())
    np.testing.assert_allclose(got.astype(np.float64), wanted, rtol=0, atol=error)


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
@pytest.mark.parametrize("kind", ["QLinearAdd", "QLinearMul", "QLinearSigmoid", "QLinearLeakyRelu"])
def test_elementwise_of_contrib(kind: str, dtype: Any) -> None:
    """Codes within one."""
    rng = np.random.default_rng(6)
    a, b = codes(rng, dtype, 2, 5, 70), codes(rng, dtype, 5, 1)
    pair = kind in ("QLinearAdd", "QLinearMul")
    args = [np.float32(0.03), dtype(3), *([b, np.float32(0.05), dtype(9)] if pair else []),
            np.float32(0.1 if pair else 0.01), dtype(50)]
    held = {f"c{i}": np.asarray(x) for i, x in enumerate(args)}
    node = helper.make_node(kind, ["a", *held], ["y"], domain=MS)
    (got,) = run(model([node], {"a": a}, held, {"y": dtype}), {"a": a}, None)
    wanted = definition(kind, a, *map(np.asarray, args), domain=MS)
    assert np.abs(got.astype(int) - wanted.astype(int)).max() <= 1


@pytest.mark.parametrize("same", [True, False])
def test_concat_and_movement_of_bytes(same: bool) -> None:
    """Joined, transposed, reshaped and pooled as bytes: only the last step gives floats."""
    block = Block(9, x=image(3, 1, 16, 12, 12), y=image(4, 1, 8, 12, 12))
    x, y = block.coded("x", 0.03, np.uint8(128)), block.coded("y", 0.03 if same else 0.02, np.uint8(128))
    joined = block.coded(block.node("Concat", x, y, axis=1), 0.03, np.uint8(128))
    pooled = block.node("MaxPool", joined, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    turned = block.node("Transpose", pooled, perm=[0, 2, 3, 1])
    flat = block.node("Reshape", turned, block.hold(np.array([36, 24])))
    w, _ = block.weights(24, 10, axis=1)
    out = block.node("MatMul", flat, w)
    wanted = block.reference(out)
    np.testing.assert_allclose(block.run(out), wanted, rtol=0, atol=1e-5 * np.abs(wanted).max())
    made = model(block.nodes, block.feeds, block.held, {out: np.float32})
    s = orthrus.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])
    s.run(None, block.feeds)
    written = [t.dtype for part in parts_of(s) for plan in part.plans.values() if plan is not None
               for step in plan.steps for t in step.outs]
    assert written.count("float32") == 1
