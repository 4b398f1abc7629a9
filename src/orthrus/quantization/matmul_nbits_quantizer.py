"""MatMul and Gather on constant weights of 2, 4 or 8 bits, in onnxruntime's names and on its command line.

In: a model. Out: the same model with MatMulNBits and GatherBlockQuantized, or with MatMul behind
DequantizeLinear. The invariant: a node that is left out, or has no constant weight, is as it was, and a model
that cannot be quantized is not touched.
"""

from __future__ import annotations

import argparse
import copy
import logging
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from onnx import GraphProto, ModelProto, NodeProto

from .onnx_model import ONNXModel, all_graphs
from .quant_utils import (
    QuantFormat,
    QuantType,
    get_opset_version,
    ms_domain,
    onnx_domain,
    update_opset_version,
)
from .refused import InvalidValue, Unsupported
from .weights.arrays import quantize_matmul_2bits as quantize_matmul_2bits
from .weights.arrays import quantize_matmul_4bits as quantize_matmul_4bits
from .weights.arrays import quantize_matmul_8bits as quantize_matmul_8bits
from .weights.arrays import quantize_qdq_matmul_4bits as quantize_qdq_matmul_4bits
from .weights.blockwise import (
    BITS,
    Blockwise,
    check_layout,
    pack,
    quantized,
    quantized_by_division,
)
from .weights.command import written
from .weights.half_quadratic import half_quadratic
from .weights.nodes import (
    QUANTIZED,
    as_dequantized,
    as_gather,
    as_matmul_nbits,
    each_node,
    get_initializer,
    matrix,
    rewrite,
    table,
)

if TYPE_CHECKING:
    from .calibrate import CalibrationDataReader

__all__ = ["DefaultWeightOnlyQuantConfig", "DefaultWeightOnlyQuantizer", "GPTQWeightOnlyQuantConfig",
           "HQQWeightOnlyQuantConfig", "HQQWeightOnlyQuantizer", "KQuantWeightOnlyQuantConfig",
           "MatMulNBitsQuantizer", "NVAWQWeightOnlyQuantConfig", "NVAWQWeightOnlyQuantizer",
           "RTNWeightOnlyQuantConfig", "WeightOnlyQuantConfig", "get_initializer", "is_divisible", "main",
           "ort_convert_str_to_bool", "parse_args", "parse_key_value_pair", "transpose_packed_int4_matrix"]

logger = logging.getLogger(__name__)
_INT4_IR, _INT2_OPSET = 10, 25
"""The first versions of ONNX with integers of 4 and 2 bits."""


class WeightOnlyQuantConfig:
    """What the algorithms share. `op_types_to_quantize`: MatMul alone by default; `quant_axes`: pairs of
    operator and the axis its blocks lie along; `customized_weight_config`: by node name, what of "bits",
    "group_size" and "scheme" differs there."""

    def __init__(self, algorithm: str, quant_format: QuantFormat,
                 op_types_to_quantize: tuple[str, ...] | None = None,
                 quant_axes: tuple[tuple[str, int], ...] | None = None,
                 customized_weight_config: dict[str, Any] | None = None) -> None:
        self.algorithm = algorithm
        self.quant_format = quant_format
        self.op_types_to_quantize = set(op_types_to_quantize or ("MatMul",))
        self.quant_axes = dict(quant_axes or (("MatMul", 0), ("Gather", 1)))
        self.customized_weight_config = customized_weight_config


class RTNWeightOnlyQuantConfig(WeightOnlyQuantConfig):
    """Rounding to the nearest code. `ratios`: by weight name, how much of its range is kept."""

    def __init__(self, ratios: dict[str, float] | None = None,
                 quant_format: QuantFormat = QuantFormat.QOperator,
                 op_types_to_quantize: tuple[str, ...] | None = None,
                 customized_weight_config: dict[str, Any] | None = None) -> None:
        super().__init__("RTN", quant_format, op_types_to_quantize, None, customized_weight_config)
        self.ratios = ratios or {}


class KQuantWeightOnlyQuantConfig(WeightOnlyQuantConfig):
    """k-quant, which searches each block's range. `ratios` is not used."""

    def __init__(self, ratios: dict[str, float] | None = None,
                 quant_format: QuantFormat = QuantFormat.QOperator,
                 op_types_to_quantize: tuple[str, ...] | None = None,
                 customized_weight_config: dict[str, Any] | None = None) -> None:
        super().__init__("k_quant", quant_format, op_types_to_quantize, None, customized_weight_config)
        self.ratios = ratios or {}


class GPTQWeightOnlyQuantConfig(WeightOnlyQuantConfig):
    """GPTQ on calibration data; see `neural_compressor.optimal.Settings`. `block_size`: its `blocksize`."""

    def __init__(self, calibration_data_reader: CalibrationDataReader | None = None, percdamp: float = 0.01,
                 block_size: int = 128, actorder: bool = False, mse: bool = False, perchannel: bool = True,
                 quant_format: QuantFormat = QuantFormat.QOperator,
                 op_types_to_quantize: tuple[str, ...] | None = None) -> None:
        super().__init__("GPTQ", quant_format, op_types_to_quantize)
        self.calibration_data_reader = calibration_data_reader
        self.percdamp = percdamp
        self.block_size = block_size
        self.actorder = actorder
        self.mse = mse
        self.perchannel = perchannel


class HQQWeightOnlyQuantConfig(WeightOnlyQuantConfig):
    """Half-quadratic quantization with float zero points. `axis`: only 1, blocks along the input channels."""

    def __init__(self, block_size: int = 128, bits: int = 4, axis: int = 1,
                 quant_format: QuantFormat = QuantFormat.QOperator,
                 op_types_to_quantize: tuple[str, ...] | None = None,
                 quant_axes: tuple[tuple[str, int], ...] | None = None) -> None:
        super().__init__("HQQ", quant_format, op_types_to_quantize, quant_axes)
        self.block_size = block_size
        self.bits = bits
        self.axis = axis


class DefaultWeightOnlyQuantConfig(WeightOnlyQuantConfig):
    """Rounding by blocks. `accuracy_level`: MatMulNBits' attribute; `channel_wised_quantize`: one block per
    output channel, with QuantFormat.QDQ."""

    def __init__(self, block_size: int = 128, is_symmetric: bool = False, accuracy_level: int | None = None,
                 quant_format: QuantFormat = QuantFormat.QOperator,
                 op_types_to_quantize: tuple[str, ...] | None = None,
                 quant_axes: tuple[tuple[str, int], ...] | None = None, bits: int = 4,
                 channel_wised_quantize: bool = False) -> None:
        super().__init__("DEFAULT", quant_format, op_types_to_quantize, quant_axes)
        self.block_size = block_size
        self.is_symmetric = is_symmetric
        self.bits = bits
        self.accuracy_level = accuracy_level
        self.channel_wised_quantize = channel_wised_quantize


class NVAWQWeightOnlyQuantConfig(WeightOnlyQuantConfig):
    """AWQ as NVIDIA's ModelOpt does it, with a tokenizer and a data set that it downloads."""

    def __init__(self, tokenizer_dir: str, dataset_name: str = "cnn", cache_dir: str = "./cache",
                 calibration_method: str = "awq_lite") -> None:
        super().__init__("nvidia_awq", QuantFormat.QDQ)
        self.tokenizer_dir = tokenizer_dir
        self.dataset_name = dataset_name
        self.cache_dir = cache_dir
        self.calibration_method = calibration_method


class NVAWQWeightOnlyQuantizer:
    """The name of the quantizer that runs NVIDIA's ModelOpt."""

    def __init__(self, config: NVAWQWeightOnlyQuantConfig) -> None:
        self.config = config

    def quantize_awq(self, model: ModelProto | str) -> ModelProto:
        """Raises: Unsupported, always: ModelOpt needs a GPU and data from the network."""
        raise Unsupported("nvidia_awq cannot run here: it is NVIDIA's ModelOpt on a GPU, with data from the "
                          "network", cure="use GPTQWeightOnlyQuantConfig with a CalibrationDataReader")


def is_divisible(val1: int, val2: int) -> bool:
    return int(val2 * np.ceil(val1 / val2)) == val1


def transpose_packed_int4_matrix(packed: np.ndarray, rows: int, cols: int) -> np.ndarray:
    """The transpose of a matrix of 4-bit numbers, two in a byte and the first one lowest, packed as it was;
    flat. `rows`, `cols`: of the matrix that is given."""
    flat = np.stack([packed.reshape(-1) & 15, packed.reshape(-1) >> 4], 1).reshape(-1)
    turned = flat[:rows * cols].reshape(rows, cols).T.reshape(-1)
    return pack(np.pad(turned, (0, turned.size % 2)), 4)


class HQQWeightOnlyQuantizer:
    """MatMul nodes by half-quadratic quantization."""

    def __init__(self, config: HQQWeightOnlyQuantConfig) -> None:
        check_layout(config.bits, config.block_size)
        if config.axis != 1 or config.quant_format != QuantFormat.QOperator:
            raise Unsupported("half-quadratic quantization has blocks along axis 1 and float zero points",
                              found=f"axis {config.axis}, {config.quant_format}",
                              expected="axis 1, QuantFormat.QOperator")
        if "Gather" in config.op_types_to_quantize:
            raise Unsupported("half-quadratic quantization has float zero points, which GatherBlockQuantized "
                              "does not take", cure="quantize Gather with DefaultWeightOnlyQuantConfig")
        self.config = config

    def quantize(self, node: NodeProto, graph_stack: list[GraphProto]) -> list[NodeProto]:
        """A MatMul with a constant weight as MatMulNBits; the node itself otherwise."""
        weight = matrix(node, graph_stack) if node.op_type == "MatMul" else None
        if weight is None:
            return [node]
        made = half_quadratic(weight.values, self.config.bits, self.config.block_size)
        return as_matmul_nbits(node, weight, made, None)


class DefaultWeightOnlyQuantizer:
    """MatMul and Gather nodes by rounding."""

    def __init__(self, config: DefaultWeightOnlyQuantConfig) -> None:
        check_layout(config.bits, config.block_size)
        if config.channel_wised_quantize and config.quant_format != QuantFormat.QDQ:
            raise Unsupported("QuantFormat.QOperator is not supported channel_wised_quantize yet",
                              cure="use QuantFormat.QDQ, or blocks")
        self.config = config

    def check_gather(self, node: NodeProto) -> None:
        """Raises: Unsupported where a Gather from a constant has no codes of the configured kind."""
        name = node.name or node.op_type
        if self.config.quant_format == QuantFormat.QDQ:
            raise Unsupported("Gather only supports QOperator format currently.", node=name,
                              cure="use QuantFormat.QOperator, or quantize MatMul alone")
        if self.config.bits == 2:
            raise Unsupported("GatherBlockQuantized has no codes of 2 bits", node=name,
                              expected="4 or 8 bits", cure="quantize MatMul alone, or with more bits")

    def qbits_block_quant(self, fp32weight: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(codes, scales, zero points) of a weight (K, N), packed as MatMulNBits has them; zero points of 0
        where the configuration is symmetric."""
        made = self._made(np.asarray(fp32weight))
        zeros = made.packed_zero_points()
        if zeros is None:
            zeros = np.zeros((made.scales.shape[1], -(-len(made.scales) * made.bits // 8)), np.uint8)
        return made.packed(), np.ascontiguousarray(made.scales.T), zeros

    def _made(self, values: np.ndarray) -> Blockwise:
        config = self.config
        size = len(values) if config.channel_wised_quantize else config.block_size
        return quantized(values, config.bits, size, config.is_symmetric)

    def quantize_matmul(self, node: NodeProto, graph_stack: list[GraphProto]) -> list[NodeProto]:
        """A MatMul with a constant weight on codes; the node itself otherwise."""
        weight = matrix(node, graph_stack)
        if weight is None:
            return [node]
        config, made = self.config, self._made(weight.values)
        if config.quant_format == QuantFormat.QDQ:
            turned = config.channel_wised_quantize and config.is_symmetric
            return as_dequantized(node, weight, made, turned)
        return as_matmul_nbits(node, weight, made, config.accuracy_level)

    def quantize_gather(self, node: NodeProto, graph_stack: list[GraphProto]) -> list[NodeProto]:
        """A Gather from a constant of two dimensions and more on codes; the node itself otherwise. Raises:
        InvalidValue for an axis that the constant has not, or that is gathered from, Unsupported as
        `check_gather` does."""
        found = table(node, graph_stack, self.config.quant_axes.get("Gather", 1), self.config.bits)
        if found is None:
            return [node]
        self.check_gather(node)
        weight, axis, gathered = found
        config, first = self.config, np.moveaxis(weight.values, axis, 0)
        made = quantized_by_division(first.reshape(len(first), -1), config.bits, config.block_size,
                                     config.is_symmetric)
        return as_gather(node, weight, made, axis, gathered)

    @staticmethod
    def quantize_ndarray(data: np.ndarray, quantize_axis: int, block_size: int, is_symmetric: bool
                         ) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        """(codes, scales, zero points or None) of an array in 4 bits, in blocks along an axis; codes and zero
        points are flat, two in a byte, counted from the middle where they are symmetric."""
        first = np.moveaxis(data, quantize_axis, 0)
        made = quantized_by_division(first.reshape(len(first), -1), 4, block_size, is_symmetric)

        def restored(flat: np.ndarray) -> np.ndarray:
            return np.moveaxis(flat.reshape(len(flat), *first.shape[1:]), 0, quantize_axis)

        def packed(flat: np.ndarray) -> np.ndarray:
            whole = restored(flat).reshape(-1)
            return pack(np.pad(whole, (0, whole.size % 2)), 4)

        zeros = None if made.zero_points is None else packed(made.zero_points)
        codes = made.codes[:made.rows] ^ np.uint8(8 if is_symmetric else 0)
        return packed(codes), np.ascontiguousarray(restored(made.scales)), zeros

    def quantize(self, node: NodeProto, graph_stack: list[GraphProto]) -> list[NodeProto]:
        """A MatMul or Gather of the configured types on codes; the node itself otherwise."""
        kinds = {"MatMul": self.quantize_matmul, "Gather": self.quantize_gather}
        if node.op_type in kinds and node.op_type in self.config.op_types_to_quantize:
            return kinds[node.op_type](node, graph_stack)
        return [node]


class MatMulNBitsQuantizer:
    """MatMul (and Gather) nodes on weights of few bits; `process` does it, and the result is in `model`.

    `model`: a ModelProto, which `process` changes, or a path. `nodes_to_include`: None for all.
    `algo_config`: the algorithm, rounding by default; its own bits and blocks override those given here, if
    it has any. Raises: InvalidValue and Unsupported for a layout that there is no operator for.
    """

    def __init__(self, model: ModelProto | str | Path, bits: int = 4, block_size: int = 128,
                 is_symmetric: bool = False, accuracy_level: int | None = None,
                 nodes_to_exclude: Iterable[str] | None = None, nodes_to_include: list[str] | None = None,
                 quant_format: QuantFormat = QuantFormat.QOperator,
                 op_types_to_quantize: tuple[str, ...] | None = None,
                 quant_axes: tuple[tuple[str, int], ...] | None = None, channel_wised_quantize: bool = False,
                 algo_config: WeightOnlyQuantConfig | None = None) -> None:
        check_layout(bits, block_size)
        self.model_path = os.fspath(model) if isinstance(model, str | Path) else None
        self.model = ONNXModel(onnx.load(self.model_path) if isinstance(model, str | Path) else model)
        self.bits = bits
        self.block_size = block_size
        self.is_symmetric = is_symmetric
        self.accuracy_level = accuracy_level
        self.nodes_to_exclude = set(nodes_to_exclude or ())
        self.nodes_to_include = set(nodes_to_include) if nodes_to_include else None
        self.algo_config = algo_config or DefaultWeightOnlyQuantConfig(
            block_size, is_symmetric, accuracy_level, quant_format, op_types_to_quantize, quant_axes, bits,
            channel_wised_quantize)
        kinds = {"HQQ": HQQWeightOnlyQuantizer, "DEFAULT": DefaultWeightOnlyQuantizer,
                 "nvidia_awq": NVAWQWeightOnlyQuantizer}
        made = kinds.get(self.algo_config.algorithm)
        self.node_quantizer: Any = None if made is None else made(self.algo_config)

    def process(self) -> None:
        """Quantize `model` in place. Raises: InvalidValue for weights that cannot be quantized, and for a
        model that has none but was quantized before; it is as it was then."""
        if isinstance(self.node_quantizer, NVAWQWeightOnlyQuantizer):
            self.node_quantizer.quantize_awq(self.model_path or self.model.model)
        if not self._weights():
            self._refuse_quantized()
            logger.warning("no node of %s has a constant weight that can be quantized",
                           ", ".join(sorted(self.algo_config.op_types_to_quantize)))
            return
        self.model = ONNXModel(self._with_types(self.model.model))
        if self.node_quantizer is None:
            self.int4_quant_algo()
        else:
            rewrite(self.model.graph(), self._visit)
            self.model.clean_initializers()
            if self.algo_config.quant_format == QuantFormat.QOperator:
                self.model.set_opset_import(ms_domain, 1)

    def int4_quant_algo(self) -> None:
        """Quantize by RTN, k-quant or GPTQ, as `algo_config` says. Raises: InvalidValue as `process` does,
        and for GPTQ without calibration data."""
        from .neural_compressor.weight_only import gptq_quantize, rtn_quantize

        config: Any = self.algo_config
        shared: dict[str, Any] = {
            "model": self.model, "weight_config": self._node_config(), "num_bits": self.bits,
            "group_size": self.block_size, "scheme": "sym" if self.is_symmetric else "asym",
            "accuracy_level": self.accuracy_level or 0}
        if config.quant_format == QuantFormat.QDQ:
            shared["emit"] = as_dequantized
        if config.algorithm != "GPTQ":
            self.model = rtn_quantize(ratios=config.ratios, algorithm=config.algorithm, **shared)
            return
        if config.calibration_data_reader is None:
            raise InvalidValue("GPTQ has no calibration data", expected="a CalibrationDataReader",
                               cure="pass calibration_data_reader, or use RTN or k-quant")
        self.model = gptq_quantize(
            dataloader=_unread(config.calibration_data_reader), n_samples=-1, percdamp=config.percdamp,
            blocksize=config.block_size, actorder=config.actorder, mse=config.mse,
            perchannel=config.perchannel, **shared)

    def _node_config(self) -> dict[str, Any]:
        """What is told of nodes by name: layouts of their own, or that they stay as they are."""
        given: dict[str, Any] = dict(self.algo_config.customized_weight_config or {})
        names = {node.name for graph in all_graphs(self.model.graph()) for node in graph.node}
        included = names if self.nodes_to_include is None else self.nodes_to_include
        return given | dict.fromkeys((names - included) | self.nodes_to_exclude, "fp32")

    def _visit(self, node: NodeProto, path: list[GraphProto]) -> list[NodeProto]:
        if not self._chosen(node):
            return [node]
        nodes: list[NodeProto] = self.node_quantizer.quantize(node, path)
        return nodes

    def _chosen(self, node: NodeProto) -> bool:
        named = self.nodes_to_include is None or node.name in self.nodes_to_include
        return (named and node.name not in self.nodes_to_exclude and node.domain in ("", onnx_domain)
                and node.op_type in self.algo_config.op_types_to_quantize)

    def _weights(self) -> int:
        """How many nodes will be quantized. Raises: InvalidValue and Unsupported where one cannot be."""
        count, axis = 0, self.algo_config.quant_axes.get("Gather", 1)
        bits = getattr(self.algo_config, "bits", self.bits)
        for node, path in each_node(self.model.graph()):
            if self._chosen(node):
                found = matrix(node, path) if node.op_type == "MatMul" else table(node, path, axis, bits)
                count += found is not None
                if (found is not None and node.op_type == "Gather"
                        and isinstance(self.node_quantizer, DefaultWeightOnlyQuantizer)):
                    self.node_quantizer.check_gather(node)
        return count

    def _refuse_quantized(self) -> None:
        for node, _ in each_node(self.model.graph()):
            if node.op_type in QUANTIZED:
                raise InvalidValue("the model is quantized already", node=node.name or node.op_type,
                                   found=node.op_type, expected="MatMul with a constant float weight",
                                   cure="quantize the float model")

    def _with_types(self, model: ModelProto) -> ModelProto:
        """The model, or a copy with newer operators, that may hold the types of the codes."""
        config, bits = self.algo_config, getattr(self.algo_config, "bits", self.bits)
        if config.quant_format == QuantFormat.QDQ:
            if bits == 2 and get_opset_version(model) < _INT2_OPSET:
                raise Unsupported("DequantizeLinear has no codes of 2 bits in the model's operators",
                                  found=f"opset {get_opset_version(model)}",
                                  expected=f"{_INT2_OPSET} or later",
                                  cure="use QuantFormat.QOperator, or convert the model")
            model = update_opset_version(model, QuantType.QInt8, block_size=self.block_size)
            model.ir_version = max(model.ir_version, onnx.helper.find_min_ir_version_for(
                list(model.opset_import), ignore_unknown=True))
        elif "Gather" in config.op_types_to_quantize and bits == 4:
            model.ir_version = max(model.ir_version, _INT4_IR)
        return model


def _unread(reader: Any) -> Any:
    """A copy, so that the reader can be read again; the reader itself where it holds what cannot be copied,
    such as a generator."""
    try:
        return copy.deepcopy(reader)
    except TypeError:
        return reader


def ort_convert_str_to_bool(value: str) -> bool:
    """Whether the text is "true" in any case, or "1"."""
    return value.lower() in ("true", "1")


def parse_key_value_pair(s: str) -> tuple[str, int]:
    """("MatMul", 0) of "MatMul:0"."""
    key, value = s.split(":")
    return key, int(value)


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line's values."""
    parser = argparse.ArgumentParser(
        prog="python -m orthrus.quantization.matmul_nbits_quantizer",
        description="Quantize the constant weights of MatMul and Gather to few bits, in blocks.")
    add = parser.add_argument
    add("--input_model", required=True, help="the model to read")
    add("--output_model", required=True, help="where to write it; weights go to a file beside it")
    add("--block_size", default=32, type=int, help="rows of a column that share a scale (default: 32)")
    add("--quant_method", default="default", help="the algorithm (default: default)",
        choices=["default", "hqq", "rtn", "k_quant", "gptq", "nvidia_awq"])
    add("--bits", default=4, type=int, choices=BITS, help="bits of a code (default: 4)")
    add("--symmetric", default=True, const=True, nargs="?", type=ort_convert_str_to_bool,
        metavar="{True,False}", help="zero in the middle of the codes (default: True); not for hqq")
    add("--accuracy_level", type=int, help="MatMulNBits' attribute: 1 float, 2 float16, 3 bfloat16, 4 int8")
    add("-v", "--verbose", action="store_true", help="log each node")
    add("--nodes_to_exclude", nargs="+", default=[], metavar="NODE", help="nodes that stay as they are")
    add("--nodes_to_include", nargs="+", metavar="NODE", help="the only nodes to quantize")
    add("--quant_format", default="QOperator", choices=["QOperator", "QDQ"],
        help="MatMulNBits, or MatMul behind DequantizeLinear (default: QOperator)")
    add("--op_types_to_quantize", nargs="+", choices=["MatMul", "Gather"], help="default: MatMul")
    add("--quant_axes", nargs="+", type=parse_key_value_pair, metavar="OP:AXIS",
        help="the axis that blocks lie along (default: MatMul:0 Gather:1)")
    add("--calib_dataset_name", default="cnn", help="for nvidia_awq")
    add("--tokenizer_dir", help="for nvidia_awq")
    add("--calibration_method", choices=["awq", "awq_clip"], help="for nvidia_awq")
    add("--cache_dir", default="./cache", help="for nvidia_awq")
    return parser.parse_args(argv)


def _configured(args: argparse.Namespace) -> WeightOnlyQuantConfig:
    """The algorithm that the command line asks for."""
    kind = QuantFormat[args.quant_format]
    types = tuple(args.op_types_to_quantize) if args.op_types_to_quantize else None
    axes = tuple(args.quant_axes) if args.quant_axes else None
    if args.quant_method == "hqq":
        return HQQWeightOnlyQuantConfig(args.block_size, args.bits, 1, kind, types, axes)
    if args.quant_method == "rtn":
        return RTNWeightOnlyQuantConfig(quant_format=kind, op_types_to_quantize=types)
    if args.quant_method == "k_quant":
        return KQuantWeightOnlyQuantConfig(quant_format=kind, op_types_to_quantize=types)
    if args.quant_method == "gptq":
        return GPTQWeightOnlyQuantConfig(quant_format=kind, op_types_to_quantize=types)
    if args.quant_method == "nvidia_awq":
        return NVAWQWeightOnlyQuantConfig(args.tokenizer_dir or "", args.calib_dataset_name, args.cache_dir)
    return DefaultWeightOnlyQuantConfig(args.block_size, args.symmetric, args.accuracy_level, kind, types,
                                        axes, args.bits)


def main(argv: Sequence[str] | None = None) -> int:
    """The command line. Returns the exit code: 1 where the model, an option or a file is at fault."""
    args = parse_args(argv)
    return written(args, logger, lambda: MatMulNBitsQuantizer(
        args.input_model, args.bits, args.block_size, args.symmetric, args.accuracy_level,
        args.nodes_to_exclude, args.nodes_to_include, algo_config=_configured(args)))


if __name__ == "__main__":
    sys.exit(main())
