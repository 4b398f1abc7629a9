"""MatMul weights of a model quantized by rounding, k-quant and GPTQ, with the names of Intel's tool.

In: a model. Out: an `ONNXModel` whose MatMuls with constant weights are MatMulNBits. The invariant: a node
that is left out, or has no constant weight, is as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np
from onnx import GraphProto, NodeProto, TensorProto

from ..blockwise import Blockwise, check_layout, in_blocks
from ..quant_utils import ms_domain
from ..refused import InvalidValue
from ..weight_nodes import Suffixes, Weight, as_matmul_nbits, constant, each_node, matrix, rewrite
from .groups import (
    get_weight_scale,
    k_quant,
    nearest,
    pad_tensor,
    qdq_tensor,
    quant_tensor,
    quant_tensor_k_quant_cpu,
)
from .onnx_model import ONNXModel
from .optimal import Moments, Settings, optimally_rounded, second_moments

__all__ = ["get_weight_scale", "gptq", "gptq_quantize", "make_matmul_weight_only_node", "pad_tensor",
           "prepare_inputs", "qdq_tensor", "quant_tensor", "quant_tensor_k_quant_cpu",
           "quant_tensor_k_quant_cuda", "rtn_quantize"]

SUFFIXES = Suffixes("_Q{bits}G{block_size}", "_scale", "_zp")
_NONE: Mapping[str, Any] = {}
quant_tensor_k_quant_cuda = quant_tensor_k_quant_cpu
Emit = Callable[[NodeProto, Weight, Blockwise], list[NodeProto]]
"""(node, weight, its codes) -> the nodes in the place of the node."""


def rounded(weight: np.ndarray, bits: int, block_size: int, symmetric: bool, ratio: float = 1.0) -> Blockwise:
    """The matrix (K, N) of finite floats as `quant_tensor` rounds its columns' groups."""
    made = in_blocks(weight, bits, block_size, lambda piece: nearest(piece, bits, symmetric, ratio))
    return replace(made, zero_points=None) if symmetric else made


def k_quantized(weight: np.ndarray, bits: int, block_size: int) -> Blockwise:
    """The matrix (K, N) of finite floats as `quant_tensor_k_quant_cpu` quantizes its columns' groups."""
    def choose(piece: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        blocks, size, columns = piece.shape
        turned = np.ascontiguousarray(piece.transpose(0, 2, 1)).reshape(-1, size)
        codes, scales, zeros = k_quant(turned, bits)
        back = codes.reshape(blocks, columns, size).transpose(0, 2, 1)
        return back, scales.reshape(blocks, columns), zeros.reshape(blocks, columns)

    return in_blocks(weight, bits, block_size, choose)


def make_matmul_weight_only_node(node: NodeProto, weight_shape: Sequence[int], num_bits: int, group_size: int,
                                 k_blocks: int, q_weight: np.ndarray, scale: np.ndarray,
                                 zero_point: np.ndarray | None, accuracy_level: int = 0
                                 ) -> tuple[NodeProto, list[TensorProto]]:
    """A MatMulNBits node and its tensors, of what `quant_tensor` makes of a weight (N, K)."""
    columns = weight_shape[-1]
    zeros = None if zero_point is None else zero_point.reshape(columns, k_blocks).T.astype(np.uint8)
    codes = q_weight.reshape(columns, k_blocks * group_size).T.astype(np.uint8)
    made = Blockwise(codes, scale.reshape(columns, k_blocks).T, zeros, weight_shape[0], num_bits, group_size)
    graph = GraphProto()
    weight = Weight(q_weight, node.input[1], graph)
    return as_matmul_nbits(node, weight, made, accuracy_level or None, SUFFIXES)[0], list(graph.initializer)


def _emitter(accuracy_level: int) -> Emit:
    return lambda node, weight, made: as_matmul_nbits(node, weight, made, accuracy_level or None, SUFFIXES)


def _layout(config: Any, num_bits: int, group_size: int, scheme: str, rows: int) -> tuple[int, int, bool]:
    """(bits, block size, symmetric) of a node whose own configuration overrides the model's. Raises:
    InvalidValue where MatMulNBits has no such layout."""
    given = config if isinstance(config, Mapping) else {}
    bits, size = given.get("bits", num_bits), given.get("group_size", group_size)
    kind = given.get("scheme", scheme)
    if kind not in ("sym", "asym"):
        raise InvalidValue("weights cannot be quantized so", found=f"scheme {kind!r}",
                           expected="'sym' or 'asym'")
    if size == -1:
        size = max(16, 1 << (rows - 1).bit_length())
    elif (bits, size) != (num_bits, group_size) or size != -1:
        check_layout(bits, size)
    return bits, size, kind == "sym"


def rtn_quantize(model: Any, weight_config: Mapping[str, Any] = _NONE, num_bits: int = 4,
                 group_size: int = 32, scheme: str = "asym", ratios: Mapping[str, float] = _NONE,
                 accuracy_level: int = 0, providers: Sequence[Any] = ("CPUExecutionProvider",),
                 algorithm: str = "k_quant", emit: Emit | None = None) -> ONNXModel:
    """The model with its MatMul weights rounded to the nearest codes or, where `algorithm` is
    "k_quant", to k-quant's.

    `model`: a path, a ModelProto or an ONNXModel. `weight_config`: by node name, "fp32" for one to leave as
    it is, else {"bits", "group_size", "scheme"} for it. `group_size` -1: one group per column. `ratios`: by
    weight name, how much of its range is kept. Rounding needs no `providers`. Raises: InvalidValue for bits,
    groups or weights that cannot be quantized.
    """
    held = ONNXModel(model)
    _check(held, weight_config)
    build = emit or _emitter(accuracy_level)

    def visit(node: NodeProto, path: list[GraphProto]) -> list[NodeProto]:
        weight = _wanted(node, path, weight_config)
        if weight is None:
            return [node]
        config = weight_config.get(node.name)
        bits, size, symmetric = _layout(config, num_bits, group_size, scheme, len(weight.values))
        if algorithm == "k_quant":
            made = k_quantized(weight.values, bits, size)
        else:
            made = rounded(weight.values, bits, size, symmetric, ratios.get(weight.name, 1))
        return build(node, weight, made)

    return _finished(held, visit)


def _check(held: ONNXModel, weight_config: Mapping[str, Any]) -> None:
    """Raises: InvalidValue where a weight cannot be quantized, before anything is changed."""
    for node, path in each_node(held.model.graph):
        _wanted(node, path, weight_config)


def _wanted(node: NodeProto, path: Sequence[GraphProto], weight_config: Mapping[str, Any]) -> Weight | None:
    if node.op_type != "MatMul" or node.domain or weight_config.get(node.name) == "fp32":
        return None
    return matrix(node, path)


def _finished(held: ONNXModel, visit: Callable[[NodeProto, list[GraphProto]], list[NodeProto]]) -> ONNXModel:
    rewrite(held.model.graph, visit)
    held.clean_initializers()
    held.set_opset_import(ms_domain, 1)
    return held


def prepare_inputs(model: Any, n_samples: int, dataloader: Iterable[Any], providers: Sequence[Any]
                   ) -> tuple[list[dict[str, np.ndarray]], list[str]]:
    """(feeds, names of the model's inputs) of at most `n_samples` batches, all of them where it is negative.

    `dataloader`: dicts of feeds, or pairs of one and a label. Raises: InvalidValue where there are none.
    """
    taken = islice(dataloader, n_samples) if n_samples >= 0 else iter(dataloader)
    feeds = [{name: np.asarray(value) for name, value in _feed(batch).items()} for batch in taken]
    if not feeds:
        raise InvalidValue("there is no calibration data", expected="at least one batch",
                           cure="pass a CalibrationDataReader whose get_next returns feeds")
    held = model if isinstance(model, ONNXModel) else ONNXModel(model)
    return feeds, sorted(held.get_non_initializer_inputs())


def _feed(batch: Any) -> Mapping[str, Any]:
    found = batch[0] if isinstance(batch, tuple | list) else batch
    if not isinstance(found, Mapping):
        raise InvalidValue("a batch of calibration data is no feed", found=type(found).__name__,
                           expected="a dict of arrays by input name")
    return found


def gptq(W: np.ndarray, H: np.ndarray, num_bits: int = 4, group_size: int = 32, scheme: str = "asym",
         blocksize: int = 128, percdamp: float = 0.01, actorder: bool = False, mse: bool = False,
         perchannel: bool = True) -> np.ndarray:
    """What remains of the weight (K, N) when GPTQ quantizes it, `H` (K, K) being the second moment of what it
    is multiplied with. `group_size` -1: one group per column; see `Settings` for the rest."""
    bits, size, symmetric = _layout(None, num_bits, group_size, scheme, len(W))
    settings = Settings(percdamp, blocksize, actorder, mse, perchannel)
    return optimally_rounded(W, H.astype(np.float64), bits, size, symmetric, settings).dequantized()


def gptq_quantize(model: Any, dataloader: Iterable[Any], weight_config: Mapping[str, Any] = _NONE,
                  num_bits: int = 4, group_size: int = 32, scheme: str = "asym", n_samples: int = 128,
                  percdamp: float = 0.01, blocksize: int = 128, actorder: bool = False, mse: bool = False,
                  perchannel: bool = True, accuracy_level: int = 0,
                  providers: Sequence[Any] = ("CPUExecutionProvider",),
                  emit: Emit | None = None) -> ONNXModel:
    """The model with its MatMul weights quantized by GPTQ on the data.

    `dataloader`: dicts of feeds, or pairs of one and a label; of these `n_samples` are used, all where it is
    negative. MatMuls in inner graphs, whose inputs cannot be watched, get the nearest codes. For the rest see
    `rtn_quantize` and `Settings`. Raises: InvalidValue for bits, groups, weights or data that cannot be used.
    """
    held = ONNXModel(model)
    _check(held, weight_config)
    feeds, _ = prepare_inputs(held, n_samples, dataloader, providers)
    settings = Settings(percdamp, blocksize, actorder, mse, perchannel)
    build = emit or _emitter(accuracy_level)
    original = held.model
    readers = dict[str, list[NodeProto]]()
    sizes = dict[str, int]()
    for node in original.graph.node:
        weight = _wanted(node, [original.graph], weight_config)
        if weight is not None and constant(node.input[0], [original.graph]) is None:
            readers.setdefault(node.input[0], []).append(node)
            sizes[node.input[0]] = len(weight.values)
    made = dict[str, Blockwise]()
    for moments in second_moments(original, sizes, feeds, providers):
        for name, moment in moments.items():
            for node in readers[name]:
                made[node.output[0]] = _optimal(node, original.graph, moment, weight_config.get(node.name),
                                                (num_bits, group_size, scheme), settings)

    def visit(node: NodeProto, path: list[GraphProto]) -> list[NodeProto]:
        weight = _wanted(node, path, weight_config)
        if weight is None:
            return [node]
        if len(path) == 1 and node.output[0] in made:
            return build(node, weight, made[node.output[0]])
        config = weight_config.get(node.name)
        layout = _layout(config, num_bits, group_size, scheme, len(weight.values))
        return build(node, weight, rounded(weight.values, *layout))

    return _finished(held, visit)


def _optimal(node: NodeProto, graph: GraphProto, moment: Moments, config: Any, layout: tuple[int, int, str],
             settings: Settings) -> Blockwise:
    weight = matrix(node, [graph])
    assert weight is not None
    bits, size, symmetric = _layout(config, *layout, len(weight.values))
    if not moment.count:
        return rounded(weight.values, bits, size, symmetric)
    return optimally_rounded(weight.values, moment.value, bits, size, symmetric, settings)
