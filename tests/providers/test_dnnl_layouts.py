"""The oneDNN provider's layouts: functions of two tensors and reductions run as they lie in memory, by code
and not by reference loops, and give what the definitions give."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from draws import draws
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper
from skips import needs
from test_dnnl import NAME, defined, model, real, session, works

import orthrus as ort
from orthrus.errors import InvalidArgument
from orthrus.providers.dnnl import binding
from orthrus.providers.dnnl.objects import regrouped


def kernels(made: Any) -> list[str]:
    """What the provider's steps run."""
    return [s.kernel for p in made.explain().parts if p.provider == NAME for s in p.plan.steps]


def agree(data: bytes, feeds: dict[str, np.ndarray], rtol: float = 1e-5) -> list[str]:
    """The steps' kernels, once their results are known to be the definitions'."""
    made = session(data)
    for got, want in zip(made.run(None, feeds), defined(data).run(None, feeds), strict=True):
        assert got.shape == want.shape and got.dtype == want.dtype
        np.testing.assert_allclose(got, want, rtol=rtol, atol=rtol)
    return kernels(made)


@works
@pytest.mark.parametrize("thin", [(16, 1), (30,), (4, 1, 1), (2, 1, 1, 30), (1, 4, 16, 1), (2, 1, 16, 1),
                                  (1,)])
@pytest.mark.parametrize("turn", [None, (0, 1, 3, 2), (0, 2, 3, 1), (3, 1, 0, 2)])
@pytest.mark.parametrize("op", ["Mul", "Sub"])
def test_a_tensor_that_broadcasts(thin: tuple[int, ...], turn: tuple[int, ...] | None, op: str) -> None:
    """Against one whose dimensions lie in another order, behind a Transpose, or in C order."""
    shape, nodes = (2, 4, 16, 30), []
    given = shape
    if turn is not None:
        given = tuple(shape[turn.index(i)] for i in range(4))
        nodes = [helper.make_node("Transpose", ["x"], ["t"], perm=turn)]
    whole = "x" if turn is None else "t"
    nodes += [helper.make_node(op, [whole, "b"], ["m"]), helper.make_node("Relu", ["m"], ["r"]),
              helper.make_node(op, ["b", "r"], ["y"])]
    data = model(nodes, {"x": given, "b": thin}, {})
    found = agree(data, {"x": real(*given), "b": real(*thin)})
    if sum(d != 1 for d in thin) < 2:
        assert not any("ref" in kernel for kernel in found), found


@works
@pytest.mark.parametrize("axes", [(0,), (1,), (2,), (3,), (1, 2), (0, 2), (1, 3), (2, 3), (0, 1, 2, 3)])
@pytest.mark.parametrize("op", ["ReduceSum", "ReduceMean", "ReduceProd", "ReduceL1", "ReduceL2",
                                "ReduceSumSquare"])
def test_a_reduction_is_no_reference_loop(op: str, axes: tuple[int, ...]) -> None:
    for keep in (0, 1):
        nodes = [helper.make_node("Transpose", ["x"], ["t"], perm=[0, 3, 1, 2]),
                 helper.make_node(op, ["t", "axes"], ["y"], keepdims=keep),
                 helper.make_node(op, ["x", "axes"], ["z"], keepdims=keep)]
        data = model(nodes, {"x": (2, 3, 4, 5)}, {"axes": np.array(axes)}, ["y", "z"])
        found = agree(data, {"x": real(2, 3, 4, 5)}, rtol=1e-4)
        assert not any("ref" in kernel for kernel in found), found


@works
@pytest.mark.parametrize("shape", [(3, 5000), (5000, 3), (2, 5000, 3)])
def test_long_rows_are_summed_in_lanes(shape: tuple[int, ...]) -> None:
    axis = shape.index(5000)
    data = model([helper.make_node("ReduceMean", ["x", "axes"], ["y"])], {"x": shape},
                 {"axes": np.array([axis])})
    assert any(kernel.startswith("reduction jit") for kernel in agree(data, {"x": real(*shape) + 1}))


@works
def test_a_batch_of_one_has_the_strides_of_c_order() -> None:
    """A Transpose leaves odd strides for dimensions of one, which a recurrent layer took for row lengths."""
    rng = np.random.default_rng(1)
    weights = {"w": rng.standard_normal((1, 32, 4)).astype(np.float32),
               "r": rng.standard_normal((1, 32, 8)).astype(np.float32)}
    data = model([helper.make_node("Transpose", ["x"], ["t"], perm=[1, 0, 2]),
                  helper.make_node("LSTM", ["t", "w", "r"], ["y"], hidden_size=8, name="layer")],
                 {"x": (1, 6, 4)}, weights)
    made = session(data)
    x = real(1, 6, 4)
    np.testing.assert_allclose(made.run(None, {"x": x})[0], defined(data).run(None, {"x": x})[0], atol=1e-5)
    plan = next(iter(made._sess._engine.program.calls[0].kernel.run.plans.values()))
    [source] = [t for step in plan.steps if step.kernel.startswith("lstm") for arg, t in step.args
                if arg == binding.SRC]
    assert source.desc.strides == (4, 4, 1)


@works
def test_a_concat_between_convolutions_keeps_channels_last() -> None:
    rng = np.random.default_rng(2)
    weights = {k: rng.standard_normal(s).astype(np.float32) / 10
               for k, s in (("w", (16, 16, 3, 3)), ("v", (8, 32, 1, 1)))}
    data = model([helper.make_node("Conv", ["x", "w"], ["a"], pads=[1] * 4),
                  helper.make_node("Relu", ["a"], ["b"]),
                  helper.make_node("Conv", ["b", "w"], ["c"], pads=[1] * 4),
                  helper.make_node("Concat", ["b", "c"], ["d"], axis=1, name="joined"),
                  helper.make_node("Conv", ["d", "v"], ["y"])], {"x": (1, 16, 9, 9)}, weights)
    found = agree(data, {"x": real(1, 16, 9, 9)}, rtol=1e-4)
    at = next(i for i, kernel in enumerate(found) if kernel.startswith("concat"))
    assert found[at + 1].startswith("convolution"), found


@works
def test_factors_are_rounded_where_an_option_lets_them() -> None:
    data = model([helper.make_node("MatMul", ["x", "w"], ["y"])], {"x": (64, 256)}, {"w": real(256, 128)})
    x = real(64, 256)
    want = session(data).run(None, {"x": x})[0]
    found = session(data, {"fpmath_mode": "bf16"}).run(None, {"x": x})[0]
    np.testing.assert_allclose(found, want, atol=0.5)
    matrix_unit = binding.ISA["avx512_core_amx"]
    if binding.library().isa & matrix_unit == matrix_unit:
        assert np.abs(found - want).max() > 1e-4
    np.testing.assert_array_equal(session(data).run(None, {"x": x})[0], want)
    with pytest.raises(InvalidArgument, match="fpmath_mode"):
        ort.InferenceSession(data, providers=[(NAME, {"fpmath_mode": "half"})])


@given(st.data())
@draws(200)
def test_strides_of_another_shape_are_numpy_s(data: Any) -> None:
    whole = data.draw(st.lists(st.integers(1, 4), max_size=4))
    order = data.draw(st.permutations(range(len(whole))))
    box = tuple(slice(0, data.draw(st.integers(1, d))) for d in whole)
    array = np.zeros(whole, np.int8)[box].transpose(order)
    left, new = array.size, []
    while left > 1:
        new.append(data.draw(st.sampled_from([d for d in range(1, left + 1) if left % d == 0])))
        left //= new[-1]
        if len(new) > 4:
            new.append(left)
            left = 1
    found = regrouped(array.shape, array.strides, new)
    try:
        want = np.reshape(array, new, copy=False)
    except ValueError:
        assert found is None
        return
    assert found is not None
    assert all(d == 1 or a == b for d, a, b in zip(new, found, want.strides, strict=True))




@works
@needs("VNNI")
@pytest.mark.parametrize("shape", [(3, 16), (2, 5, 16), (40, 1024)])
def test_a_product_of_what_is_quantized_by_its_own_range(shape: tuple[int, ...]) -> None:
    """One part, and the definition's codes."""
    rows = shape[-1]
    weights = {"w": np.random.default_rng(1).integers(-90, 90, (rows, 24)).astype(np.int8),
               "ws": np.float32(0.01), "wz": np.int8(3), "b": real(24)}
    nodes = [helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"], name="range"),
             helper.make_node("MatMulInteger", ["q", "w", "z", "wz"], ["i"], name="product"),
             helper.make_node("Cast", ["i"], ["f"], to=1, name="cast"),
             helper.make_node("Mul", ["s", "ws"], ["by"], name="scales"),
             helper.make_node("Mul", ["f", "by"], ["m"], name="scaled"),
             helper.make_node("Add", ["m", "b"], ["y"], name="bias")]
    data = model(nodes, {"x": ("N", *shape[1:])}, weights, ("y", "q", "s", "z"))
    made, reference = session(data), defined(data)
    assert [p.provider for p in made.explain().parts] == [NAME]
    for x in (real(*shape), np.zeros(shape, np.float32), 1e-3 * real(*shape) + 7):
        got, want = made.run(None, {"x": x}), reference.run(None, {"x": x})
        for a, b in zip(got[1:], want[1:], strict=True):
            np.testing.assert_array_equal(a, b)
        np.testing.assert_allclose(got[0], want[0], rtol=1e-5, atol=1e-5 * np.abs(want[0]).max())


@works
def test_a_computed_shape_chooses_the_plan() -> None:
    nodes = [helper.make_node("MatMul", ["x", "w"], ["a"], name="product"),
             helper.make_node("Reshape", ["a", "shape"], ["b"], name="reshape"),
             helper.make_node("Softmax", ["b"], ["y"], name="softmax")]
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", 1, ("N", 8)),
                     helper.make_tensor_value_info("shape", 7, (2,))],
        [helper.make_tensor_value_info("y", 1, None)],
        [helper.make_tensor("w", 1, (8, 12), real(8, 12).ravel())])
    data = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)],
                             ir_version=11).SerializeToString()
    made, reference = session(data), defined(data)
    assert [p.provider for p in made.explain().parts] == [NAME]
    for rows, shape in ((4, (4, 12)), (4, (12, 4)), (2, (-1, 3)), (4, (4, 12)), (6, (0, -1))):
        feed = {"x": real(rows, 8), "shape": np.array(shape, np.int64)}
        got, want = made.run(None, feed)[0], reference.run(None, feed)[0]
        assert got.shape == want.shape
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
    [part] = made.explain().parts
    assert len(part.plans) == 4
    assert not part.numpy


@works
@pytest.mark.parametrize("turned", [0, 1])
def test_a_row_times_a_matrix_reads_it_as_it_is(turned: int) -> None:
    weights = {"w": real(*((40, 48) if turned else (48, 40))), "b": real(40)}
    nodes = [helper.make_node("Gemm", ["x", "w", "b"], ["a"], name="product", transB=turned),
             helper.make_node("Tanh", ["a"], ["y"], name="tanh")]
    data = model(nodes, {"x": ("N", 48)}, weights)
    made, reference = session(data), defined(data)
    for rows, begins in ((1, "matmul gemm"), (5, "matmul")):
        x = real(rows, 48)
        np.testing.assert_allclose(made.run(None, {"x": x})[0], reference.run(None, {"x": x})[0], rtol=1e-4,
                                   atol=1e-5)
        [part] = made.explain().parts
        assert part.plans[-1].steps[-1].kernel.startswith(begins)
    assert part.plans[-1].steps[-1].nodes == ("product", "tanh")
