"""The oneDNN provider: 3x3 convolutions by Winograd's transform, and convolutions of several tensors."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from onnx import helper, numpy_helper
from skips import needs

import orthrus as ort
from orthrus.codegen.kernels.conv.geometry import Geometry
from orthrus.providers.dnnl.rules.winograd import chosen

pytestmark = needs("oneDNN", "generated code")
NAME = "DnnlExecutionProvider"
RNG = np.random.default_rng(11)


def real(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def model(nodes: Sequence[Any], shapes: dict[str, Sequence[Any]], weights: dict[str, np.ndarray]) -> bytes:
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info(k, 1, s) for k, s in shapes.items()],
        [helper.make_tensor_value_info("y", 1, None)],
        [numpy_helper.from_array(v, k) for k, v in weights.items()])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 24)],
                             ir_version=12).SerializeToString()


def session(data: bytes, **options: str) -> Any:
    made = ort.InferenceSession(data, providers=[(NAME, options), "CPUExecutionProvider"])
    made.disable_fallback()
    return made


def exact(data: bytes, feed: dict[str, np.ndarray]) -> np.ndarray:
    """By the definitions."""
    reference = ort.InferenceSession(data, providers=[("CPUExecutionProvider", {"use_codegen": "0"})])
    return np.asarray(reference.run(None, feed)[0])


def kernels(made: Any) -> list[str]:
    [part] = [p for p in made.explain().parts if p.provider == NAME]
    return [s.kernel for s in part.plans[-1].steps]


def agree(got: np.ndarray, wanted: np.ndarray) -> None:
    assert got.shape == wanted.shape
    assert np.abs(got - wanted).max() < 1e-5 * np.abs(wanted).max()


def conv(x: str, w: str, y: str, *bias: str, pads: Sequence[int] = (1, 1, 1, 1)) -> Any:
    return helper.make_node("Conv", [x, w, *bias], [y], name=f"conv_{y}", pads=list(pads))


@pytest.mark.parametrize(("channels", "size", "pads"), [
    ((64, 64), (40, 40), (1, 1, 1, 1)), ((64, 80), (37, 43), (0, 1, 1, 0)),
    ((70, 65), (41, 41), (1, 1, 1, 1)), ((128, 128), (28, 28), (0, 0, 0, 0)),
    ((256, 256), (14, 14), (1, 1, 1, 1)), ((60, 200), (30, 44), (1, 0, 1, 2))])
@pytest.mark.parametrize("threads", ["1", "2"])
def test_convolutions_by_transform(channels: tuple[int, int], size: tuple[int, int], pads: Sequence[int],
                                   threads: str) -> None:
    cin, cout = channels
    data = model([conv("x", "w", "a", "b", pads=pads), helper.make_node("Relu", ["a"], ["y"], name="relu")],
                 {"x": ("N", cin, *size)}, {"w": real(cout, cin, 3, 3) / 30, "b": real(cout)})
    made = session(data, num_of_threads=threads)
    for batch in (1, 2):
        x = real(batch, cin, *size)
        agree(made.run(None, {"x": x})[0], exact(data, {"x": x}))
        assert [k.split()[1].partition(":")[0] for k in kernels(made) if k.startswith("generated")] == [
            "winograd_take", "winograd_give"]


def test_what_follows_is_part_of_the_last_step() -> None:
    nodes = [conv("x", "w", "a", "b"), helper.make_node("Swish", ["a"], ["c"], name="swish"),
             conv("c", "w", "d"), helper.make_node("Add", ["c", "d"], ["e"], name="residual"),
             helper.make_node("Clip", ["e", "low", "high"], ["f"], name="clip"),
             helper.make_node("Mul", ["f", "scale"], ["g"], name="times"),
             helper.make_node("Sub", ["g", "row"], ["y"], name="minus")]
    data = model(nodes, {"x": (1, 64, 32, 32)}, {
        "w": real(64, 64, 3, 3) / 20, "b": real(64), "scale": real(1, 64, 1, 1), "row": real(32, 1),
        "low": np.float32(-1.5), "high": np.float32(2)})
    made, x = session(data), real(1, 64, 32, 32)
    agree(made.run(None, {"x": x})[0], exact(data, {"x": x}))
    [part] = made.explain().parts
    ends = [s.nodes for s in part.plan.steps if "winograd_give" in s.kernel]
    assert ends == [("conv_a", "swish"), ("conv_d", "residual", "clip", "times", "minus")]


def test_a_residual_that_is_needed_again_is_kept() -> None:
    nodes = [conv("x", "w", "a"), helper.make_node("Relu", ["a"], ["b"], name="relu"), conv("b", "w", "c"),
             helper.make_node("Add", ["c", "b"], ["d"], name="add"),
             helper.make_node("Mul", ["d", "b"], ["y"], name="again")]
    data = model(nodes, {"x": (1, 64, 24, 24)}, {"w": real(64, 64, 3, 3) / 20})
    made, x = session(data), real(1, 64, 24, 24)
    agree(made.run(None, {"x": x})[0], exact(data, {"x": x}))


@needs("POSIX")
def test_a_forked_child_runs_generated_code_on_two_threads() -> None:
    data = model([conv("x", "w", "y")], {"x": (1, 64, 28, 28)}, {"w": real(64, 64, 3, 3) / 20})
    made, x = session(data, num_of_threads="2"), real(1, 64, 28, 28)
    wanted = made.run(None, {"x": x})[0]
    child = os.fork()
    if not child:
        os._exit(0 if np.array_equal(made.run(None, {"x": x})[0], wanted) else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_an_option_and_a_mode_turn_it_off() -> None:
    data = model([conv("x", "w", "y")], {"x": (1, 64, 28, 28)}, {"w": real(64, 64, 3, 3) / 20})
    x = real(1, 64, 28, 28)
    direct = session(data, winograd="0")
    agree(direct.run(None, {"x": x})[0], exact(data, {"x": x}))
    assert not any("winograd" in k for k in kernels(direct))
    assert not any("winograd" in k for k in kernels(session(data, fpmath_mode="bf16")))
    assert any("winograd" in k for k in kernels(session(data)))


def geometry(cin: int, size: int, kernel: int = 3, stride: int = 1) -> Geometry:
    return Geometry(1, 1, cin, cin, (1, size, size), (1, kernel, kernel), (1, stride, stride), (1, 1, 1),
                    (0, 1, 1), (1, size // stride, size // stride))


def test_which_tiles_are_chosen() -> None:
    """As measured with oneDNN 3.2: large tiles for many pixels, small ones where the weights weigh more,
    none for few channels or pixels."""
    assert [chosen(geometry(c, s)) for c, s in ((64, 56), (128, 28), (256, 14), (512, 7))] == [4, 4, 2, 0]
    assert [chosen(geometry(c, s)) for c, s in ((16, 160), (32, 80), (80, 80), (64, 20))] == [0, 0, 4, 4]
    assert chosen(geometry(64, 56, kernel=5)) == chosen(geometry(64, 56, stride=2)) == 0


def test_parts_of_an_image_are_convolved_one_by_one() -> None:
    nodes = [conv("x", "w", "a"), helper.make_node("MaxPool", ["a"], ["b"], name="pool", kernel_shape=[3, 3],
                                                   pads=[1] * 4),
             helper.make_node("Concat", ["a", "b"], ["c"], name="join", axis=1),
             conv("c", "v", "d", "bias", pads=(0, 0, 0, 0)),
             helper.make_node("Relu", ["d"], ["e"], name="relu"),
             helper.make_node("Add", ["e", "a"], ["y"], name="add")]
    data = model(nodes, {"x": (2, 32, 20, 20)}, {
        "w": real(64, 32, 3, 3) / 10, "v": real(64, 128, 1, 1) / 10, "bias": real(64)})
    made, x = session(data), real(2, 32, 20, 20)
    agree(made.run(None, {"x": x})[0], exact(data, {"x": x}))
    assert not any(k.startswith("concat") for k in kernels(made))
    [part] = made.explain().parts
    done = [s.nodes for s in part.plan.steps if "conv_d" in s.nodes]
    assert done == [("conv_d",), ("conv_d", "relu")]


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e38])
def test_numbers_that_the_transform_is_not_for(value: float) -> None:
    """One pixel shows in the outputs that depend on it, and nothing of it stays for the next run."""
    data = model([conv("x", "w", "y")], {"x": (1, 64, 40, 40)}, {"w": real(64, 64, 3, 3) / 30})
    made, x = session(data), real(1, 64, 40, 40)
    before = made.run(None, {"x": x})[0]
    odd = x.copy()
    odd[0, 5, 9, 9] = value
    got, touched = made.run(None, {"x": odd})[0], np.zeros(before.shape, bool)
    touched[:, :, 8:11, 8:11] = True
    assert np.isfinite(got[~touched]).all() and not (np.abs(got[touched]) < 1e20).any()
    agree(got[~touched], before[~touched])
    np.testing.assert_array_equal(made.run(None, {"x": x})[0], before)
    assert any("winograd_give" in kernel for kernel in kernels(made))


def test_whole_numbers_are_summed_directly() -> None:
    w, x = RNG.integers(-9, 10, (64, 64, 3, 3)), RNG.integers(-9, 10, (1, 64, 40, 40)).astype(np.float32)
    data = model([conv("x", "w", "y")], {"x": (1, 64, 40, 40)}, {"w": w.astype(np.float32)})
    np.testing.assert_array_equal(session(data).run(None, {"x": x})[0], exact(data, {"x": x}))
