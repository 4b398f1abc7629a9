"""Convolutions as AMD machine code, against the operators' definitions, over geometries drawn at random."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from emulated_gpu import on_gpu
from gpu_lowered import AMD, defined, hinted, lowered, ran
from image_models import Images

import orthrus
from orthrus.codegen.triton import compile as compiling
from orthrus.lowering.gpu import slides, walks
from orthrus.lowering.gpu.part import GpuPart

pytestmark = pytest.mark.needs("AMD tables", "Triton")

CHANNELS = (1, 2, 3, 5, 8, 16, 17, 20, 32, 40)
NEAR = {"float32": 1e-6, "float16": 2e-3, "bfloat16": 1.6e-2, "float64": 1e-14}
"""How far a result may be from its definition, of its largest number."""


def followed(m: Images, y: str, shape: tuple[int, ...]) -> str:
    """What stands behind a convolution."""
    how = m.chosen("nothing", "Relu", "Add", "scale", "Clip", "pixels")
    if how == "Relu":
        return str(m.node("Relu", y))
    if how == "Add":
        return str(m.node("Relu", m.node("Add", y, m.given(m.numbers(shape)))))
    if how == "scale":
        return str(m.node("Mul", m.constant(m.numbers((shape[1], *(1,) * (len(shape) - 2)))), y))
    if how == "pixels":
        return str(m.node("Sub", y, m.given(m.numbers((1, *shape[2:])))))
    return str(m.node("Sigmoid", y)) if how == "Clip" else y


def shape_of(m: Images, y: str) -> tuple[int, ...]:
    return tuple(defined(m.model(y, opset=22), m.feeds)[0].shape)


def drawn(seed: int, dtype: str) -> tuple[Images, str]:
    """A convolution of one to three spatial axes."""
    m = Images(seed, dtype)
    rank = m.chosen(1, 2, 2, 2, 3)
    kernel = [m.chosen(1, 1, 2, 3, 3, 5) if rank < 3 else m.chosen(1, 2, 3) for _ in range(rank)]
    if m.chosen(0, 0, 1):
        kernel = [1] * rank
    attrs: dict[str, Any] = {"strides": [m.chosen(1, 1, 2, 3) for _ in range(rank)],
                             "dilations": [m.chosen(1, 1, 1, 2) for _ in range(rank)]}
    if m.chosen(0, 0, 1):
        attrs["auto_pad"] = m.chosen("SAME_UPPER", "SAME_LOWER", "VALID")
    else:
        attrs["pads"] = [m.chosen(0, 0, 1, 2) for _ in range(2 * rank)]
    size = [int(m.rng.integers((k - 1) * d + 1, (k - 1) * d + (9 if rank < 3 else 4)))
            for k, d in zip(kernel, attrs["dilations"], strict=True)]
    group = m.chosen(1, 1, 1, 2, 4, 6)
    cin, cout = m.chosen(*CHANNELS), m.chosen(*CHANNELS)
    if group > 1:
        cin, cout = m.chosen(1, 1, 2, 4, 5, 16), m.chosen(1, 1, 2, 3, 16)
    op = m.chosen("Conv", "Conv", "Conv", "ConvTranspose")
    weights = (group * cout, cin, *kernel) if op == "Conv" else (group * cin, cout, *kernel)
    if op != "Conv":
        attrs.pop("auto_pad", None)
        attrs["pads"] = [m.chosen(0, 0, 1) if k > 1 else 0 for k in kernel * 2]
        attrs["output_padding"] = [int(m.rng.integers(0, s)) for s in attrs["strides"]]
    x = m.given(m.numbers((m.chosen(1, 1, 2, 3), group * cin, *size)))
    w = m.numbers(weights)
    inputs = [x, m.given(w) if m.chosen(0, 0, 0, 1) else m.constant(w)]
    if m.chosen(0, 1):
        inputs.append(m.constant(m.numbers(group * cout)))
    y = m.node(op, *inputs, group=group, **attrs)
    return m, followed(m, y, shape_of(m, y))


def near(got: np.ndarray, expected: np.ndarray, dtype: str, said: str) -> None:
    assert got.shape == expected.shape and got.dtype == expected.dtype, said
    a, b = got.astype(np.float64), expected.astype(np.float64)
    worst = np.abs(a - b).max(initial=0)
    assert worst <= NEAR[dtype] * max(1, np.abs(b).max(initial=0)), f"{worst}: {said}"


def compared(m: Images, target: str, *outputs: str) -> None:
    """Execute the model with these results, and hold them against its definition."""
    model = m.model(*outputs, opset=22)
    got = ran(model, m.feeds, target, m.seed)
    said = f"{target} {m.dtype} {m.seed}: {m.said}"
    assert not got.why, (got.why, said)
    for a, b in zip(got.outputs, defined(model, m.feeds), strict=True):
        near(a, b, m.dtype, said)


def check(seed: int, dtype: str, target: str) -> None:
    m, y = drawn(seed, dtype)
    compared(m, target, y)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("target", AMD)
def test_geometries(seed: int, target: str) -> None:
    check(seed, ("float32", "float16", "bfloat16", "float64")[seed % 4], target)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_fused_forms(dtype: str) -> None:
    for activation, params in (("Relu", []), ("LeakyRelu", [0.25]), ("Clip", [-0.5, 1.5]), ("", [])):
        m = Images(len(activation), dtype)
        x, b = m.given(m.numbers((2, 8, 6, 5))), m.constant(m.numbers(6))
        w = m.constant(m.numbers((6, 4, 3, 3)))
        attrs: dict[str, Any] = {"group": 2, "pads": [1, 1, 0, 2], "strides": [2, 1]}
        attrs |= {"activation": activation} if activation else {}
        attrs |= {"activation_params": params} if params else {}
        y = m.node("FusedConv", x, w, b, domain="com.microsoft", **attrs)
        z = m.node("FusedConv", x, w, b, m.given(m.numbers((2, 6, 3, 6))), domain="com.microsoft", **attrs)
        compared(m, "gfx1100", y, z)


@pytest.mark.slow
@pytest.mark.parametrize("groups, kernel, known", [(1, (2, 3), True), (2, (2, 2), False), (1, (2,), True)])
def test_phases_of_one_tap_are_one_launch(groups: int, kernel: tuple[int, ...], known: bool) -> None:
    m = Images(groups)
    w = m.numbers((groups * 4, 3, *kernel))
    y = m.node("ConvTranspose", m.given(m.numbers((2, groups * 4, *(5, 4)[:len(kernel)]))),
               m.constant(w) if known else m.given(w), m.constant(m.numbers(groups * 3)), group=groups,
               strides=list(kernel))
    y = followed(m, y, shape_of(m, y))
    compared(m, AMD[groups % 2], y)
    steps = lowered(m.model(y, opset=22), m.feeds, AMD[0]).steps
    assert [getattr(step.spec, "template", "") for step in steps] == ["convolution"]


@pytest.mark.slow
def test_channels_last() -> None:
    for group, kernel in ((1, 3), (2, 1), (4, 2)):
        m = Images(group)
        x, w = m.given(m.numbers((2, 6, 5, 4))), m.constant(m.numbers((8, kernel, kernel, 4 // group)))
        y = m.node("NhwcConv", x, w, m.constant(m.numbers(8)), domain="com.microsoft", group=group,
                   pads=[0, 1, 1, 0])
        compared(m, "gfx942", m.node("Relu", y))


@pytest.mark.slow
def test_another_generation() -> None:
    for seed, dtype in ((1, "float16"), (6, "bfloat16"), (4, "float32")):
        check(seed, dtype, "gfx1201")


@pytest.mark.slow
@pytest.mark.parametrize("target", AMD)
def test_offsets_of_64_bits(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (slides, walks):
        monkeypatch.setattr(module, "LONG", 1)
    for seed in (5, 8, 13):
        check(seed, "float32", target)


def layer(dtype: str, channels: int, size: int, kernel: int) -> tuple[Any, dict[str, np.ndarray]]:
    """A convolution between two others, so that its channels lie last, with a bias and Relu."""
    m = Images(1, dtype)
    def weights(*shape: int) -> str:
        return m.constant(m.numbers(shape))
    x = m.node("Conv", m.given(m.numbers((1, channels, size, size))), weights(channels, channels, 1, 1))
    y = m.node("Conv", x, weights(channels, channels, kernel, kernel), weights(channels),
               pads=[kernel // 2] * 4)
    return m.model(m.node("Conv", m.node("Relu", y), weights(8, channels, 1, 1)), opset=22), m.feeds


@pytest.mark.slow
@pytest.mark.parametrize("target, dtype, opcode", [
    ("gfx1100", "float16", "v_wmma_f32_16x16x16_f16"), ("gfx1100", "bfloat16", "v_wmma_f32_16x16x16_bf16"),
    ("gfx942", "float16", "v_mfma_f32"), ("gfx942", "float32", "v_mfma_f32")])
def test_matrix_units_multiply(target: str, dtype: str, opcode: str) -> None:
    made = ran(*layer(dtype, 32, 6, 3), target)
    assert made.count(opcode) > 0
    wide = ("global_store_b64", "global_store_b128") if target == "gfx1100" else ("global_store_dwordx",)
    assert sum(map(made.count, wide)) > 0


@pytest.mark.slow
@pytest.mark.parametrize("target, dtype, wanted", [
    ("sm_80", "float16", "mma.sync"), ("sm_90", "float16", "wgmma.mma_async"), ("sm_80", "float32", "tf32"),
    ("sm_90", "bfloat16", "wgmma.mma_async")])
def test_nvidia_is_given_matrix_products_of_asynchronous_copies(target: str, dtype: str, wanted: str) -> None:
    lo = lowered(*layer(dtype, 128, 64, 3), target)
    step = next(step for step in lo.steps if step.spec.template == "convolution")
    spec: Any = step.spec
    text = compiling.text_of(spec, lo.target, hinted(step, lo), "ptx")
    assert wanted in text and "cp.async.cg.shared.global" in text and "st.global.v4.b32" in text


def test_float32_is_exact_where_asked_for() -> None:
    lo = lowered(*layer("float32", 128, 32, 3), "sm_80", use_tf32=False)
    specs: list[Any] = [step.spec for step in lo.steps]
    made = [dict(spec.params)["numbers"] for spec in specs if spec.template == "convolution"]
    assert {numbers.precision for numbers in made} == {"ieee"}


def resnet18(size: int, width: int) -> tuple[Any, dict[str, np.ndarray]]:
    """The network with random weights, a classifier of 1000 behind it."""
    m = Images(0)

    def scaled(x: str, cin: int, cout: int, kernel: int, stride: int) -> str:
        w = m.rng.standard_normal((cout, cin, kernel, kernel)) * np.sqrt(2 / (cin * kernel ** 2))
        y = m.node("Conv", x, m.constant(w.astype(np.float32)), strides=[stride] * 2, pads=[kernel // 2] * 4)
        ends = [m.rng.uniform(0.5, 1, cout) for _ in range(4)]
        return str(m.node("BatchNormalization", y, *[m.constant(e.astype(np.float32)) for e in ends]))
    x = m.given(m.rng.standard_normal((1, 3, size, size)).astype(np.float32))
    y = m.node("MaxPool", m.node("Relu", scaled(x, 3, width, 7, 2)), kernel_shape=[3, 3], strides=[2, 2],
               pads=[1] * 4)
    cin = width
    for cout in (width, 2 * width, 4 * width, 8 * width):
        for stride in (1 if cin == cout else 2, 1):
            z = scaled(m.node("Relu", scaled(y, cin, cout, 3, stride)), cout, cout, 3, 1)
            y = m.node("Relu", m.node("Add", z, y if cin == cout else scaled(y, cin, cout, 1, stride)))
            cin = cout
    weights = m.rng.standard_normal((1000, cin)).astype(np.float32) * 0.05
    y = m.node("Gemm", m.node("Flatten", m.node("GlobalAveragePool", y)), m.constant(weights), transB=1)
    return m.model(y, opset=17), m.feeds


@pytest.mark.slow
@pytest.mark.parametrize("target, size, width", [("gfx1100", 64, 64), ("gfx942", 32, 16)])
def test_a_resnet_is_one_part(target: str, size: int, width: int) -> None:
    model, feeds = resnet18(size, width)
    session = on_gpu(model, target, alone=True)
    (got,) = session.run(None, feeds)
    kernels = [call.kernel.run for call in session._sess._engine.program.calls]
    assert sum(isinstance(kernel, GpuPart) for kernel in kernels) == 1 and not session.explain().numpy
    expected = orthrus.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(got, expected.run(None, feeds)[0], 1e-3, 1e-3)
