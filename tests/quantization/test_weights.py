"""Weights of few bits: the codes are onnxruntime's, the better algorithms are better, and the models run."""

from __future__ import annotations

import importlib
import itertools
import sys
from types import ModuleType
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import orthrus as ort
from orthrus import quantization
from orthrus.errors import InvalidArgument
from orthrus.quantization.matmul_4bits_quantizer import MatMul4BitsQuantizer
from orthrus.quantization.matmul_bnb4_quantizer import MatMulBnb4Quantizer
from orthrus.quantization.matmul_nbits_quantizer import (
    DefaultWeightOnlyQuantizer,
    GPTQWeightOnlyQuantConfig,
    HQQWeightOnlyQuantConfig,
    KQuantWeightOnlyQuantConfig,
    MatMulNBitsQuantizer,
    RTNWeightOnlyQuantConfig,
    main,
    transpose_packed_int4_matrix,
)
from orthrus.quantization.neural_compressor import optimal, weight_only
from orthrus.quantization.weights.blockwise import Blockwise, pack, quantized
from orthrus.quantization.weights.half_quadratic import half_quadratic

QDQ, QOPERATOR = quantization.QuantFormat.QDQ, quantization.QuantFormat.QOperator
RNG = np.random.default_rng
LAYOUTS = [(bits, symmetric, *shape) for bits, symmetric, shape in itertools.product(
    (2, 4, 8), (True, False), ((64, 5, 32), (70, 3, 16), (1, 1, 16), (256, 4, 256), (200, 9, 64)))]
KIND = {np.dtype(np.float32): TensorProto.FLOAT, np.dtype(np.float16): TensorProto.FLOAT16}


def drawn(rows: int, columns: int, seed: int = 0) -> np.ndarray:
    """A matrix with columns of one sign, of zeros, and of zeros in part."""
    made = RNG(seed).standard_normal((rows, columns)).astype(np.float32)
    made[:, -1] = np.abs(made[:, -1])
    if columns > 3:
        made[:, 0] = 0
        made[:rows // 2, 1] = 0
    return made


def model(weight: np.ndarray, nodes: list[onnx.NodeProto] | None = None, opset: int = 17, rank: int = 2,
          **more: np.ndarray) -> onnx.ModelProto:
    """y = x @ w, or other nodes from x to y, with w among the constants."""
    kind = KIND[weight.dtype]
    nodes = nodes or [helper.make_node("MatMul", ["x", "w"], ["y"], "product")]
    constants = [numpy_helper.from_array(v, k) for k, v in {"w": weight, **more}.items()]
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", kind, ["n", "k"])],
                              [helper.make_tensor_value_info("y", kind, [None] * rank)], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def processed(made: onnx.ModelProto, **given: Any) -> onnx.ModelProto:
    quantizer = MatMulNBitsQuantizer(made, **{"block_size": 32, **given})
    quantizer.process()
    onnx.checker.check_model(_plain(quantizer.model.model))
    return quantizer.model.model


def _plain(found: onnx.ModelProto) -> onnx.ModelProto:
    """The model without nodes that the checker has no schema for."""
    copy = onnx.ModelProto()
    copy.CopyFrom(found)
    outside = [node for node in copy.graph.node if node.domain]
    for node in outside:
        copy.graph.node.remove(node)
    return copy if not outside else onnx.helper.make_model(helper.make_graph([], "none", [], []))


def run(found: onnx.ModelProto, x: np.ndarray) -> np.ndarray:
    result: np.ndarray = ort.InferenceSession(found.SerializeToString()).run(None, {"x": x})[0]
    return result


def fields(packed: np.ndarray, bits: int) -> np.ndarray:
    """(rows, codes) of packed bytes (rows, ...)."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    parts = packed[..., None] >> shifts & np.uint8((1 << bits) - 1)
    return parts.reshape(len(packed), -1)


# the codes are onnxruntime's

@pytest.mark.parametrize("kind", [np.float32, np.float16])
@pytest.mark.parametrize(("bits", "symmetric", "rows", "columns", "size"), LAYOUTS)
def test_codes_scales_and_zero_points_are_onnxruntimes(bits: int, symmetric: bool, rows: int, columns: int,
                                                       size: int, kind: type) -> None:
    """Codes behind the last row in its byte mean nothing, and are whatever lay there in onnxruntime's."""
    pytest.importorskip("onnxruntime")
    native = importlib.import_module("onnxruntime.capi._pybind_state")
    for seed in range(4):
        weight = (drawn(rows, columns, seed) * 10.0 ** (seed - 2)).astype(kind)
        blocks = -(-rows // size)
        packed = np.zeros((columns, blocks, size * bits // 8), np.uint8)
        scales = np.zeros(columns * blocks, kind)
        zeros = np.zeros(columns * -(-blocks * bits // 8), np.uint8)
        getattr(native, f"quantize_matmul_{bits}bits")(packed, weight, scales, zeros, size, columns, rows,
                                                       symmetric)
        made = quantized(weight, bits, size, symmetric)
        np.testing.assert_array_equal(fields(made.packed(), bits)[:, :rows], fields(packed, bits)[:, :rows])
        np.testing.assert_array_equal(made.scales.T.reshape(-1), scales)
        if not symmetric:
            mine = made.packed_zero_points()
            assert mine is not None
            np.testing.assert_array_equal(fields(mine, bits)[:, :blocks],
                                          fields(zeros.reshape(columns, -1), bits)[:, :blocks])


BUFFERS = [("quantize_matmul_2bits", 2, (70, 3, 16)), ("quantize_matmul_4bits", 4, (70, 3, 16)),
           ("quantize_matmul_8bits", 8, (40, 4, 32)), ("quantize_qdq_matmul_4bits", 4, (70, 3, 16)),
           ("quantize_qdq_matmul_4bits", 4, (64, 8, 32))]


def buffers(name: str, bits: int, shape: tuple[int, int, int], kind: type) -> list[np.ndarray]:
    """Arrays for codes, scales and zero points, as the callers of onnxruntime's functions make them."""
    rows, columns, size = shape
    blocks = -(-rows // size)
    if "qdq" in name:
        return [np.zeros(-(-rows * columns * bits // 8), np.uint8), np.zeros((blocks, columns), kind),
                np.zeros(-(-blocks * columns * bits // 8), np.uint8)]
    return [np.zeros((columns, blocks, size * bits // 8), np.uint8), np.zeros(columns * blocks, kind),
            np.zeros(columns * -(-blocks * bits // 8), np.uint8)]


@pytest.mark.parametrize("kind", [np.float32, np.float16])
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize(("name", "bits", "shape"), BUFFERS)
def test_arrays_of_callers_are_filled_as_onnxruntimes(name: str, bits: int, shape: tuple[int, int, int],
                                                      symmetric: bool, kind: type) -> None:
    """Programs call the compiled module's functions themselves, with arrays of their own."""
    pytest.importorskip("onnxruntime")
    rows, columns, size = shape
    weight = RNG(3).standard_normal((rows, columns)).astype(kind)
    filled = []
    for package in ("onnxruntime", "orthrus"):
        call = getattr(importlib.import_module(f"{package}.capi._pybind_state"), name)
        packed, scales, zeros = buffers(name, bits, shape, kind)
        answer = call(packed, weight, scales, zeros, size, columns, rows, symmetric)
        assert answer == (symmetric if "qdq" in name else None)
        blocks = -(-rows // size)
        each = (1, rows * columns, blocks * columns) if "qdq" in name else (columns, rows, blocks)
        filled.append((fields(packed.reshape(each[0], -1), bits)[:, :each[1]], scales,
                       fields(zeros.reshape(each[0], -1), bits)[:, :each[2]]))
    for other, mine in zip(*filled, strict=True):
        np.testing.assert_array_equal(mine, other)


@pytest.mark.parametrize("kind", [np.float32, np.float16])
@pytest.mark.parametrize("quant_type", [0, 1])
def test_arrays_of_callers_take_floats_of_four_bits(quant_type: int, kind: type) -> None:
    pytest.importorskip("onnxruntime")
    transposed = RNG(3).standard_normal((3, 20)).astype(kind)
    filled = []
    for package in ("onnxruntime", "orthrus"):
        native = importlib.import_module(f"{package}.capi._pybind_state")
        filled.append((np.zeros(30, np.uint8), np.zeros(4, kind)))
        native.quantize_matmul_bnb4(filled[-1][0], transposed, filled[-1][1], 16, quant_type, 3, 20)
    for other, mine in zip(*filled, strict=True):
        np.testing.assert_array_equal(mine, other)


def test_codes_of_two_bits_for_dequantize_linear() -> None:
    """onnxruntime's own are those of 4 bits in half of the room, and write behind it."""
    native = importlib.import_module("orthrus.capi._pybind_state")
    weight = drawn(32, 5)
    for symmetric in (True, False):
        packed, scales, zeros = buffers("qdq", 2, (32, 5, 16), np.float32)
        signed = native.quantize_qdq_matmul_2bits(packed, weight, scales, zeros, 16, 5, 32, symmetric)
        assert signed is symmetric
        made = quantized(weight, 2, 16, symmetric)
        signs = 2 if symmetric else 0
        np.testing.assert_array_equal(fields(packed[None], 2)[0, :160] ^ signs, made.codes.reshape(-1))
        np.testing.assert_array_equal(scales, made.scales)


@pytest.mark.parametrize(("place", "given"), [
    (0, np.zeros((3, 2, 8), np.int8)), (0, np.zeros((3, 1, 8), np.uint8)), (0, [0] * 48),
    (0, np.zeros((6, 2, 8), np.uint8)[::2]), (1, np.ones((20, 4), np.float32)),
    (1, np.full((20, 3), np.nan, np.float32)), (2, np.zeros(5, np.float32)), (2, np.zeros(6)),
    (3, np.zeros(2, np.uint8)), (4, 17), (5, 0), (6, 21)])
def test_arrays_that_do_not_fit_are_refused(place: int, given: Any) -> None:
    """Whatever is wrong is named, and none of the arrays has been written to."""
    native = importlib.import_module("orthrus.capi._pybind_state")
    arguments: list[Any] = [np.zeros((3, 2, 8), np.uint8), np.ones((20, 3), np.float32),
                            np.zeros(6, np.float32), np.zeros(3, np.uint8), 16, 3, 20, False]
    arguments[place] = given
    with pytest.raises(InvalidArgument):
        native.quantize_matmul_4bits(*arguments)
    assert not any(np.any(arguments[at]) for at in (0, 2, 3))


@pytest.fixture(scope="module")
def theirs() -> Any:
    """onnxruntime's module; what it saves models with is not needed for its arithmetic."""
    pytest.importorskip("onnxruntime")
    with pytest.MonkeyPatch.context() as patch:
        if importlib.util.find_spec("onnx_ir") is None:
            patch.setitem(sys.modules, "onnx_ir", ModuleType("onnx_ir"))
        return importlib.import_module("onnxruntime.quantization.neural_compressor.weight_only")


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("size", [16, 32, 128])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_groups_are_onnxruntimes(theirs: Any, bits: int, size: int) -> None:
    """But for groups on one side of zero, which have no zero point among the codes there."""
    for seed, kind in itertools.product(range(3), (np.float32, np.float16)):
        data = drawn(12, 4 * size, seed).astype(kind)
        groups = data.reshape(-1, size)
        both = (groups.min(1) <= 0) & (groups.max(1) >= 0)
        for scheme, dtype, ratio in itertools.product(("sym", "asym"), ("int", "uint"), (1, 0.9)):
            pairs = zip(weight_only.quant_tensor(data, bits, size, scheme, dtype, ratio),
                        theirs.quant_tensor(data.copy(), bits, size, scheme, dtype, ratio), strict=True)
            for mine, other in pairs:
                assert mine.dtype == other.dtype
                np.testing.assert_array_equal(mine[both], other[both])
        for mine, other in zip(weight_only.quant_tensor_k_quant_cpu(data, bits, size),
                               theirs.quant_tensor_k_quant_cpu(data.copy(), bits, size), strict=True):
            assert mine.dtype == other.dtype
            np.testing.assert_array_equal(mine[both], other[both])


def test_a_group_on_one_side_of_zero_keeps_its_values() -> None:
    data = RNG(0).uniform(5, 6, (4, 32)).astype(np.float32)
    assert np.abs(weight_only.qdq_tensor(data, 4, 32) - data).max() < 0.25
    codes, scale, zero = weight_only.quant_tensor_k_quant_cpu(-data, 4, 32)
    assert np.abs(((codes - zero) * scale).reshape(data.shape) + data).max() < 0.25


@pytest.mark.parametrize("kind", [MatMulBnb4Quantizer.FP4, MatMulBnb4Quantizer.NF4])
def test_floats_of_four_bits_are_onnxruntimes(kind: int) -> None:
    pytest.importorskip("onnxruntime")
    peer = importlib.import_module("onnxruntime.quantization.matmul_bnb4_quantizer").MatMulBnb4Quantizer
    for seed, (rows, columns, size), dtype in itertools.product(
            range(3), ((64, 6, 16), (7, 3, 32), (90, 5, 64)), (np.float32, np.float16)):
        weight = np.round(drawn(rows, columns, seed) * 3, seed).astype(dtype)
        mine = MatMulBnb4Quantizer(onnx.ModelProto(), kind, size).bnb4_block_quant(weight)
        other = peer(onnx.ModelProto(), kind, size).bnb4_block_quant(weight)
        whole = rows * columns // 2
        np.testing.assert_array_equal(mine[0][:whole], other[0].reshape(-1)[:whole])
        np.testing.assert_array_equal(mine[1], other[1])


def test_a_float_of_four_bits_keeps_the_last_of_an_odd_number() -> None:
    weight = np.array([[2], [-2], [2]], np.float32)
    codes, scales = MatMulBnb4Quantizer(onnx.ModelProto(), 1, 16).bnb4_block_quant(weight)
    assert codes.tolist() == [0xF0, 0xF7] and scales.tolist() == [2]


# the better algorithms are better

def spread_activations(rows: int, size: int, seed: int) -> np.ndarray:
    """Inputs of which a few directions are large, as in networks."""
    mixed = RNG(7).standard_normal((size, size)) * RNG(8).random(size)[:, None] ** 4
    return (RNG(seed).standard_normal((rows, size)) @ mixed).astype(np.float32)


def error(made: Blockwise, weight: np.ndarray, x: np.ndarray) -> float:
    return float(np.mean((x @ made.dequantized() - x @ weight) ** 2))


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("given", [{}, {"actorder": True}, {"mse": True}], ids=str)
def test_gptq_errs_less_on_rows_it_has_not_seen(theirs: Any, bits: int, symmetric: bool, given: Any) -> None:
    seen, held_out = spread_activations(600, 128, 1), spread_activations(300, 128, 2)
    weight = RNG(3).standard_normal((128, 48)).astype(np.float32) / 20
    moments = optimal.Moments(128)
    for batch in np.split(seen, 6):
        moments.add(batch)
    np.testing.assert_allclose(moments.value, seen.T @ seen / 600, rtol=1e-4, atol=1e-4)
    mine = optimal.optimally_rounded(weight, moments.value, bits, 32, symmetric, optimal.Settings(**given))
    scheme = "sym" if symmetric else "asym"
    other = theirs.gptq(weight.copy(), moments.value.copy(), bits, 32, scheme, **given)
    their_error = float(np.mean((held_out @ other - held_out @ weight) ** 2))
    assert error(mine, weight, held_out) < their_error
    plain = quantized(weight, bits, 32, symmetric)
    assert error(mine, weight, held_out) < 0.6 * error(plain, weight, held_out)


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("size", [32, 128])
def test_hqq_errs_less_than_rounding(bits: int, size: int) -> None:
    x = RNG(4).standard_normal((64, 256)).astype(np.float32)
    for weight in (RNG(5).standard_normal((256, 24)), RNG(5).standard_t(3, (256, 24)) / 1e4,
                   RNG(5).uniform(0.2, 1, (256, 24))):
        weight = weight.astype(np.float32)
        made, plain = half_quadratic(weight, bits, size), quantized(weight, bits, size, False)
        assert error(made, weight, x) < 0.96 * error(plain, weight, x)


def test_hqq_keeps_blocks_of_one_value() -> None:
    weight = np.repeat(np.float32([[0.0, 0.3, -7, 1e-9]]), 50, 0)
    made = half_quadratic(weight, 4, 32).dequantized()
    np.testing.assert_allclose(made[:32], weight[:32], rtol=1e-5, atol=1e-8)


# models

ALGORITHMS = {
    "default": lambda _: {}, "rtn": lambda _: {"algo_config": RTNWeightOnlyQuantConfig()},
    "k_quant": lambda _: {"algo_config": KQuantWeightOnlyQuantConfig()},
    "hqq": lambda bits: {"algo_config": HQQWeightOnlyQuantConfig(32, bits)},
    "gptq": lambda _: {"algo_config": GPTQWeightOnlyQuantConfig(Reader())},
}


class Reader(quantization.CalibrationDataReader):
    """Three batches for `model` with 70 inputs."""

    def __init__(self) -> None:
        self.left = [{"x": RNG(seed).standard_normal((8, 70)).astype(np.float32)} for seed in range(3)]

    def get_next(self) -> dict[str, Any] | None:
        return self.left.pop() if self.left else None


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("bits", [2, 4, 8])
def test_a_quantized_model_computes_nearly_the_same_everywhere(algorithm: str, bits: int) -> None:
    weight, x = drawn(70, 9), RNG(1).standard_normal((3, 70)).astype(np.float32)
    made = processed(model(weight), bits=bits, **ALGORITHMS[algorithm](bits))
    assert [n.op_type for n in made.graph.node] == ["MatMulNBits"]
    assert "w" not in {t.name for t in made.graph.initializer}
    got, exact = run(made, x), x @ weight
    assert np.abs(got - exact).max() < np.abs(exact).max() * {2: 0.8, 4: 0.15, 8: 0.02}[bits]
    peer = pytest.importorskip("onnxruntime")
    if (algorithm, bits) == ("hqq", 8):
        pytest.skip("onnxruntime does not run it: 8 bits with float zero points")
    session = peer.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(got, session.run(None, {"x": x})[0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("bits", "opset"), [(4, 17), (8, 17), (2, 25)])
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("whole", [True, False])
def test_the_same_codes_behind_dequantize_linear(bits: int, opset: int, symmetric: bool, whole: bool) -> None:
    weight, x = drawn(70, 9), RNG(1).standard_normal((3, 70)).astype(np.float32)
    made = processed(model(weight, opset=opset), bits=bits, is_symmetric=symmetric, quant_format=QDQ,
                     channel_wised_quantize=whole)
    assert made.opset_import[0].version >= 21 and made.ir_version >= 10
    expected = x @ quantized(weight, bits, 70 if whole else 32, symmetric).dequantized()
    np.testing.assert_allclose(run(made, x), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("bits", "symmetric", "axis"), [
    (4, True, 1), (4, False, 1), (4, True, 2), (4, False, 2), (8, True, 2), (8, False, -1)])
def test_gather_reads_blocks(bits: int, symmetric: bool, axis: int) -> None:
    table = RNG(0).standard_normal((11, 16, 48)).astype(np.float32)
    nodes = [helper.make_node("Gather", ["w", "i"], ["y"], "rows")]
    made = processed(model(table, nodes, rank=4, i=np.array([[3, 10], [0, 3]])), bits=bits, block_size=16,
                     is_symmetric=symmetric, op_types_to_quantize=("Gather",), quant_axes=(("Gather", axis),))
    x = np.zeros((1, 1), np.float32)
    assert [n.op_type for n in made.graph.node] == ["GatherBlockQuantized"]
    got, exact = run(made, x), table[[[3, 10], [0, 3]]]
    assert got.shape == exact.shape and np.abs(got - exact).max() < {4: 0.3, 8: 0.02}[bits]
    peer = pytest.importorskip("onnxruntime").InferenceSession(made.SerializeToString(),
                                                               providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(got, peer.run(None, {"x": x})[0], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("bits", "form"), [(4, QDQ), (8, QDQ), (2, QOPERATOR)])
def test_a_gather_is_refused_only_where_there_is_one(bits: int, form: quantization.QuantFormat) -> None:
    """It has no codes of this kind: a model with none is quantized, one with it is as it was."""
    asked: dict[str, Any] = {"bits": bits, "block_size": 16, "quant_format": form,
                             "op_types_to_quantize": ("MatMul", "Gather")}
    weight = RNG(0).standard_normal((16, 16)).astype(np.float32)
    for nodes in ([helper.make_node("MatMul", ["x", "w"], ["y"], "product")],
                  [helper.make_node("MatMul", ["x", "w"], ["a"], "product"),
                   helper.make_node("Gather", ["a", "i"], ["y"], "of a result")]):
        made = processed(model(weight, nodes, i=np.array([0])), **asked)
        assert {"DequantizeLinear", "MatMulNBits"} & {node.op_type for node in made.graph.node}
    nodes[1] = helper.make_node("Gather", ["w", "i"], ["y"], "rows")
    given = model(weight, nodes, i=np.array([0]))
    before = given.SerializeToString()
    with pytest.raises(InvalidArgument, match=r"(?s)(2 bits|QOperator).*rows"):
        processed(given, **asked)
    assert given.SerializeToString() == before


def test_gathers_arithmetic_is_onnxruntimes(theirs: Any) -> None:
    with pytest.MonkeyPatch.context() as patch:
        if importlib.util.find_spec("onnx_ir") is None:
            patch.setitem(sys.modules, "onnx_ir", ModuleType("onnx_ir"))
        peer = importlib.import_module("onnxruntime.quantization.matmul_nbits_quantizer")
    for seed, symmetric, kind in itertools.product(range(3), (True, False), (np.float32, np.float16)):
        data = RNG(seed).standard_normal((7, 3, 40)).astype(kind)
        for axis in (0, 1, 2):
            pair = [q.DefaultWeightOnlyQuantizer.quantize_ndarray(data, axis, 16, symmetric)
                    for q in (peer, ort.quantization.matmul_nbits_quantizer)]
            for mine, other in zip(*pair, strict=True):
                np.testing.assert_array_equal(mine, other)


def shared_and_hidden() -> onnx.ModelProto:
    """One weight in two products, in a branch, behind Transpose and Cast, and a product that is left out."""
    node = helper.make_node
    branches = {k: helper.make_graph([node(op, ["x", "w"], [k], k)], k, [], [
        helper.make_tensor_value_info(k, 1, None)]) for k, op in (("then_branch", "MatMul"),
                                                                 ("else_branch", "MatMul"))}
    nodes = [node("MatMul", ["x", "w"], ["a"], "first"), node("MatMul", ["a", "w"], ["b"], "second"),
             node("Transpose", ["w"], ["t"], "turn"), node("MatMul", ["b", "t"], ["c"], "turned"),
             node("Cast", ["h"], ["v"], "widen", to=1), node("MatMul", ["c", "v"], ["d"], "widened"),
             node("MatMul", ["d", "o"], ["e"], "outside"), node("MatMul", ["e", "b"], ["f"], "computed"),
             node("If", ["yes"], ["g"], "if", **branches), node("Add", ["f", "g"], ["y"], "sum")]
    square = {k: RNG(i).standard_normal((32, 32)).astype(np.float32) / 6 for i, k in enumerate("who")}
    square["h"] = square["h"].astype(np.float16)
    return model(square.pop("w"), nodes, yes=np.array(True), **square)


@pytest.mark.parametrize("bnb4", [False, True])
def test_weights_are_found_wherever_they_are(bnb4: bool) -> None:
    made = shared_and_hidden()
    if bnb4:
        quantizer = MatMulBnb4Quantizer(made, MatMulBnb4Quantizer.NF4, 16, ["outside"])
        quantizer.process()
        found, kind = quantizer.model.model, "MatMulBnb4"
    else:
        found, kind = processed(made, bits=8, nodes_to_exclude=["outside"]), "MatMulNBits"
    types = [n.op_type for n in found.graph.node]
    assert types == [*[kind] * 4, "MatMul", "MatMul", "If", "Add"]
    assert {n.op_type for a in found.graph.node[6].attribute for n in a.g.node} == {kind}
    names = [t.name for t in found.graph.initializer]
    assert len(names) == len(set(names)) == 2 + 3 * (2 if bnb4 else 3)
    if not bnb4:
        x = RNG(9).standard_normal((32, 32)).astype(np.float32)
        expected = run(shared_and_hidden(), x)
        assert np.abs(run(found, x) - expected).max() < 0.03 * np.abs(expected).max()


def test_gptq_looks_at_each_product_and_rounds_in_branches() -> None:
    feeds = [{"x": spread_activations(32, 32, seed)} for seed in range(3)]
    made = weight_only.gptq_quantize(shared_and_hidden(), iter(feeds), num_bits=4, n_samples=2).model
    assert sum(n.op_type == "MatMulNBits" for n in made.graph.node) == 5
    x = spread_activations(32, 32, 9)
    plain = weight_only.rtn_quantize(shared_and_hidden(), algorithm="RTN").model
    exact = run(shared_and_hidden(), x)
    assert np.square(run(made, x) - exact).mean() < 0.5 * np.square(run(plain, x) - exact).mean()


def test_moments_come_in_parts_that_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    made, feeds = shared_and_hidden(), [{"x": spread_activations(32, 32, 1)}]
    sizes = dict.fromkeys(("x", "a", "b"), 32)
    whole = list(optimal.second_moments(made, sizes, feeds))
    monkeypatch.setattr(optimal, "_ROOM", 8 * 32 * 32)
    parts = list(optimal.second_moments(made, sizes, feeds))
    assert [set(p) for p in parts] == [{"x"}, {"a"}, {"b"}] and len(whole) == 1
    for part in parts:
        for name, moment in part.items():
            np.testing.assert_array_equal(moment.value, whole[0][name].value)


def test_float16_weights_stay_float16() -> None:
    weight, x = drawn(64, 5).astype(np.float16), RNG(1).standard_normal((3, 64)).astype(np.float16)
    made = processed(model(weight), accuracy_level=2)
    got = run(made, x)
    assert got.dtype == np.float16 and np.abs(got - x @ weight).max() < 2
    level = next(a.i for a in made.graph.node[0].attribute if a.name == "accuracy_level")
    assert level == 2


def test_included_and_customized_nodes() -> None:
    nodes = [helper.make_node("MatMul", ["x", "w"], ["a"], "one"),
             helper.make_node("MatMul", ["a", "w"], ["y"], "two")]
    weight = RNG(0).standard_normal((32, 32)).astype(np.float32)
    only = processed(model(weight, nodes), nodes_to_include=["two"])
    assert [n.op_type for n in only.graph.node] == ["MatMul", "MatMulNBits"]
    config = RTNWeightOnlyQuantConfig(customized_weight_config={"one": {"bits": 8, "group_size": 16}})
    mixed = processed(model(weight, nodes), algo_config=config, nodes_to_exclude=["two"])
    given = {a.name: a.i for a in mixed.graph.node[0].attribute}
    assert (given["bits"], given["block_size"]) == (8, 16) and mixed.graph.node[1].op_type == "MatMul"


# files and command lines

def test_the_command_line_writes_both_files_or_none(tmp_path: Any, capsys: Any) -> None:
    source, target = tmp_path / "m.onnx", tmp_path / "q.onnx"
    onnx.save_model(model(drawn(128, 128)), source, save_as_external_data=True, location="m.weights")
    given = ["--input_model", str(source), "--output_model", str(target), "--symmetric", "False"]
    assert main([*given, "--quant_method", "gptq"]) == 1 and not target.exists()
    assert "calibration" in capsys.readouterr().err
    assert main(given) == 0 and (tmp_path / "q.onnx.data").exists()
    x = RNG(1).standard_normal((3, 128)).astype(np.float32)
    got = ort.InferenceSession(target).run(None, {"x": x})[0]
    np.testing.assert_allclose(got, x @ quantized(drawn(128, 128), 4, 32, False).dequantized(), 1e-4, 1e-4)
    assert main(given) == 1 and "already exists" in capsys.readouterr().err


# what cannot be quantized

def spoiled(value: float) -> onnx.ModelProto:
    weight = drawn(64, 5)
    weight[3, 2] = value
    return model(weight)


REFUSED = {
    "NaN": (lambda: processed(spoiled(np.nan)), "the value nan"),
    "infinite": (lambda: processed(spoiled(np.inf)), "the value inf"),
    "3 bits": (lambda: MatMulNBitsQuantizer(model(drawn(8, 8)), 3), "2, 4 or 8"),
    "blocks of 24": (lambda: MatMulNBitsQuantizer(model(drawn(8, 8)), 4, 24), "one of 16, 32"),
    "quantized": (lambda: processed(processed(model(drawn(64, 5)))), "quantized already"),
    "no data": (lambda: processed(model(drawn(64, 5)), algo_config=GPTQWeightOnlyQuantConfig()), "Reader"),
    "empty data": (lambda: weight_only.gptq_quantize(model(drawn(64, 5)), []), "no calibration data"),
    "whole columns": (lambda: MatMulNBitsQuantizer(model(drawn(8, 8)), channel_wised_quantize=True), "QDQ"),
    "2 bits in old operators": (lambda: processed(model(drawn(64, 5)), bits=2, quant_format=QDQ), "opset 17"),
    "axis": (lambda: processed(model(drawn(64, 5), [helper.make_node("Gather", ["w", "i"], ["y"], "g")],
                                     i=np.array([1])), op_types_to_quantize=("Gather",),
                               quant_axes=(("Gather", 0),)), "gathered from"),
    "bytes across": (lambda: processed(
        model(RNG(0).random((4, 16, 16), np.float32), [helper.make_node("Gather", ["w", "i"], ["y"], "g")],
              i=np.array([1])), bits=8, op_types_to_quantize=("Gather",)), "the last"),
    "5-bit float": (lambda: MatMulBnb4Quantizer(model(drawn(8, 8)), 2, 64), "FP4"),
    "scheme": (lambda: weight_only.rtn_quantize(model(drawn(8, 8)), scheme="odd", group_size=16), "'odd'"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_quantized_is_refused(case: str) -> None:
    quantize, text = REFUSED[case]
    with pytest.raises(InvalidArgument, match=text):
        quantize()


def test_a_refused_model_is_as_it_was() -> None:
    good, bad = drawn(64, 5), drawn(5, 5)
    bad[2, 2] = np.nan
    nodes = [helper.make_node("MatMul", ["x", "w"], ["a"], "good"),
             helper.make_node("MatMul", ["a", "v"], ["y"], "bad")]
    for quantize in (lambda m: MatMulNBitsQuantizer(m).process(),
                     lambda m: MatMulBnb4Quantizer(m, 1, 64).process(),
                     lambda m: weight_only.rtn_quantize(m)):
        made = model(good, nodes, v=bad)
        before = made.SerializeToString(deterministic=True)
        with pytest.raises(InvalidArgument, match="the value nan"):
            quantize(made)
        assert made.SerializeToString(deterministic=True) == before


def test_the_older_names_are_there() -> None:
    weight = drawn(64, 5)
    quantizer = MatMul4BitsQuantizer(model(weight), 32, True)
    quantizer.process()
    packed, scales, zeros = DefaultWeightOnlyQuantizer(quantizer.algo_config).qbits_block_quant(weight)
    stored = {t.name: numpy_helper.to_array(t) for t in quantizer.model.model.graph.initializer}
    np.testing.assert_array_equal(packed, stored["w_Q4"])
    np.testing.assert_array_equal(scales, stored["w_scales"])
    assert zeros.shape == (5, 1) and not zeros.any()


def test_a_packed_matrix_is_turned() -> None:
    codes = RNG(0).integers(0, 16, (3, 5), np.uint8)
    packed = pack(np.append(codes.reshape(-1), np.uint8(0)), 4)
    turned = pack(np.append(codes.T.reshape(-1), np.uint8(0)), 4)
    np.testing.assert_array_equal(transpose_packed_int4_matrix(packed, 3, 5), turned)
