"""What of an operator in the table MIGraphX gets wrong, dies of or refuses: a function per operator.

In: a node whose operator, types and constants the table allows. Out: None, or why it is refused all the same,
with the case or trial that shows it. Sizes that are open are taken for harmless; a part is judged again when
they are known."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ...ir import ElementType, Node, Value, in_memory

Condition = Callable[[Node], str | None]
_found: dict[str, Condition] = {}


def why_not(node: Node) -> str | None:
    """Why a node is refused for what its attributes, constants and sizes say; None where it is not."""
    condition = _found.get(node.op_type)
    return condition(node) if condition is not None else None


def _of(*operators: str) -> Callable[[Condition], Condition]:
    def registered(condition: Condition) -> Condition:
        _found.update(dict.fromkeys(operators, condition))
        return condition
    return registered


def _input(node: Node, index: int) -> Value | None:
    return node.inputs[index] if index < len(node.inputs) else None


def _constant(node: Node, index: int) -> np.ndarray | None:
    value = _input(node, index)
    return None if value is None or value.const is None else in_memory(value.const)


def _shape(value: Value | None) -> tuple[Any, ...] | None:
    return None if value is None else value.shape


def _rank(node: Node, index: int = 0) -> int | None:
    shape = _shape(_input(node, index))
    return None if shape is None else len(shape)


def _floating(node: Node) -> bool:
    first = _input(node, 0)
    return first is not None and first.elem is not None and first.elem.floating


def _given(node: Node, index: int) -> bool:
    return _input(node, index) is not None


def _made(node: Node) -> int:
    """How many outputs are wanted."""
    return sum(v is not None and not v.dead for v in node.outputs)


_ROWS = "a row of infinities is not found (test_attention_23_boolmask_fullymasked_row_nan_robustness)"
_COPIES = ("Cast", "CastLike", "Identity")


def _read_by(value: Value | None, readers: Callable[[Node], bool]) -> bool:
    """Whether one of these nodes reads a value, or its copy of another type."""
    return value is not None and any(readers(use) or (use.op_type in _COPIES and _read_by(use.outputs[0],
                                                                                          readers))
                                     for use in value.uses)


def _told_by_equal(node: Node) -> bool:
    chosen = node.inputs[0] if node.op_type == "Where" else None
    return chosen is not None and chosen.node is not None and chosen.node.op_type == "Equal"


@_of("Softmax", "LogSoftmax")
def _softmax(node: Node) -> str | None:
    if _read_by(node.output, _told_by_equal):
        return _ROWS
    rank, old = _rank(node), node.op is not None and node.op.since < 13
    if not old or rank is None:
        return None if not old else "the axis may not be the last, and opset 13 is taken for granted"
    axis = node.attribute("axis")
    last = axis in (rank - 1, -1)
    return None if last else f"axis {axis} of {rank} has the meaning of opset 13, which does not flatten"


@_of("Div")
def _division(node: Node) -> str | None:
    divisor = _constant(node, 1)
    if _floating(node) or (divisor is not None and divisor.size and divisor.all()):
        return None
    return "a division of integers by zero ends the process, and the divisor is not known"


@_of("Mod")
def _modulo(node: Node) -> str | None:
    if _floating(node):
        return None if node.attribute("fmod") else ("infinities and zeros have other remainders with fmod=0"
                                                    " (test_mod_float_edge_cases_fmod_0_float32)")
    divisor = _constant(node, 1)
    known = divisor is not None and divisor.size and divisor.all()
    return None if known else "an integer modulo zero is garbage, and the divisor is not known"


@_of("Max", "Min")
def _extreme(node: Node) -> str | None:
    if not _floating(node) or len(node.inputs) < 2:
        return None
    others = [_constant(node, i) for i in range(1, len(node.inputs))]
    if all(c is not None and not np.isnan(c.astype(np.float32)).any() for c in others):
        return None
    return f"a NaN behind the first input is lost, {node.op_type}(1, NaN) = 1"


@_of("Cast", "CastLike")
def _cast(node: Node) -> str | None:
    made = node.outputs[0]
    to = made.elem if made is not None else None
    if not _floating(node) or to is None or to.floating:
        return None
    if to is ElementType.BOOL:
        return "fractions below 1 and NaN become False"
    return f"floats out of range, NaN and infinity become other {to.text} than here"


def _sizes(node: Node) -> tuple[list[int], list[int]] | None:
    """The spatial sizes that come in and go out, where they are known."""
    sides = [_shape(_input(node, 0)), _shape(node.outputs[0])]
    if any(s is None or not all(isinstance(d, int) for d in s[2:]) for s in sides):
        return None
    return list(sides[0][2:]), list(sides[1][2:])  # type: ignore[index]


@_of("MaxPool", "AveragePool")
def _pool(node: Node) -> str | None:
    if node.op_type == "MaxPool" and _made(node) > 1:
        return "indices are left out (test_maxpool_with_argmax_2d_precomputed_pads)"
    kernel = node.attribute("kernel_shape") or ()
    if len(kernel) > 3:
        return "pooling of more than 3 dimensions was not tried"
    if not node.attribute("ceil_mode"):
        return None
    case = "(test_averagepool_2d_ceil_last_window_starts_on_pad)"
    if (sizes := _sizes(node)) is None:
        return f"with ceil_mode a window that begins in the padding counts, and sizes are open {case}"
    n = len(kernel)
    strides, pads = node.attribute("strides") or [1] * n, node.attribute("pads") or [0] * 2 * n
    dilations = node.attribute("dilations") or [1] * n
    for i, (size, made) in enumerate(zip(*sizes, strict=True)):
        reach = size + pads[i] + pads[n + i] - dilations[i] * (kernel[i] - 1) - 1
        if -(-reach // strides[i]) + 1 != made:
            return f"with ceil_mode a window that begins in the padding counts {case}"
    return None


@_of("ConvTranspose")
def _transposed(node: Node) -> str | None:
    if any(node.attribute("output_padding") or ()) and (
            any(node.attribute("pads") or ()) or node.attribute("auto_pad") not in (None, "NOTSET")):
        return "output_padding together with pads leaves zeros (test_ConvTranspose2d)"
    if _rank(node) == 3 and not {"strides", "pads", "dilations"} <= set(node.attrs):
        return "of one dimension it needs strides, pads and dilations (test_convtranspose_1d)"
    return None


@_of("ConvInteger", "MatMulInteger")
def _integers(node: Node) -> str | None:
    second = _input(node, 1)
    if second is None or second.elem is not ElementType.INT8 or _given(node, 2) or _given(node, 3):
        return ("uint8 wraps and zero points fail, only int8 by int8 is right"
                " (test_convinteger_without_padding)")
    return None


@_of("QLinearMatMul", "QLinearConv")
def _quantized(node: Node) -> str | None:
    scale = _input(node, 1)
    if scale is not None and scale.elem is not ElementType.FLOAT:
        return "scales in half precision round otherwise (test_qlinearmatmul_2D_uint8_float16)"
    return None


@_of("QuantizeLinear", "DequantizeLinear")
def _scaled(node: Node) -> str | None:
    scale, first, made = _input(node, 1), _input(node, 0), node.outputs[0]
    if any(v is not None and v.elem is ElementType.FLOAT16 for v in (first, scale, made)):
        return "scales in half precision were not tried"
    if made is not None and made.elem in (ElementType.INT4, ElementType.UINT4):
        return "results of 4 bits come as bytes (test_quantizelinear_int4)"
    small = [v for v in (first, _input(node, 2)) if v is not None
             and v.elem in (ElementType.INT4, ElementType.UINT4)]
    for value in small:
        shape = _shape(value)
        if value.const is None or shape is None or np.prod(shape, dtype=np.int64) % 2:
            return "4 bits are read from constants of an even size only (test_dequantizelinear_int4)"
    return None


@_of("LSTM", "GRU", "RNN")
def _recurrent(node: Node) -> str | None:
    plain = {"LSTM": ["Sigmoid", "Tanh", "Tanh"], "GRU": ["Sigmoid", "Tanh"], "RNN": ["Tanh"]}[node.op_type]
    given = node.attrs.get("activations")
    if given and [a.title() for a in given] != plain * (len(given) // len(plain)):
        return "activations other than the standard's own were not tried"
    if node.attribute("clip") or node.attribute("input_forget"):
        return "clip and input_forget are ignored"
    lengths = _constant(node, 4)
    if _given(node, 4) and (lengths is None or (lengths < 1).any()):
        return "a sequence of length 0 has garbage for its last state"
    return None


@_of("BatchNormalization")
def _batch(node: Node) -> str | None:
    if node.attribute("training_mode") or _made(node) > 1:
        return "training_mode is ignored (test_batchnorm_example_training_mode)"
    return None


@_of("Dropout")
def _dropout(node: Node) -> str | None:
    training, ratio = _constant(node, 2), _constant(node, 1)
    if training is None and not _given(node, 2) and node.attribute("is_test") in (None, 1):
        return None
    still = (training is not None and not training.any()) or (ratio is not None and not ratio.any())
    return None if still else "in training it passes everything through (test_training_dropout)"


def _in_range(node: Node, index: int, low: int, sizes: Any) -> bool:
    found = _constant(node, index)
    return found is not None and bool((found >= low * np.asarray(sizes)).all()
                                      and (found < np.asarray(sizes)).all())


@_of("ScatterND")
def _scatter_nd(node: Node) -> str | None:
    shape, indices = _shape(_input(node, 0)), _constant(node, 1)
    if indices is None or shape is None or not all(isinstance(d, int) for d in shape):
        return "a negative index ends the process, and indices or sizes are not known"
    if indices.ndim and not _in_range(node, 1, 0, shape[:indices.shape[-1]]):
        return "a negative index, or one out of range, ends the process"
    return None


@_of("ScatterElements", "Scatter")
def _scatter(node: Node) -> str | None:
    shape, axis = _shape(_input(node, 0)), node.attribute("axis") or 0
    if shape is None or not shape or not isinstance(shape[axis], int) or _constant(node, 1) is None:
        return "an index out of range ends the process, and indices or sizes are not known"
    return None if _in_range(node, 1, -1, shape[axis]) else "an index out of range ends the process"


@_of("Slice")
def _slice(node: Node) -> str | None:
    starts, rank = _constant(node, 1), _rank(node)
    if starts is not None and not _given(node, 3) and starts.size != rank:
        return "without axes, dimensions behind the starts become 0"
    made = _shape(node.outputs[0])
    if made is not None and 0 in made:
        return "a start behind the end gives a size of 2**64 - 1"
    return None


@_of("Pad")
def _pad(node: Node) -> str | None:
    if node.attribute("mode") == "wrap":
        return "the mode wrap does not parse (test_wrap_pad)"
    pads = _constant(node, 1) if _given(node, 1) else np.asarray(node.attribute("pads") or 0)
    return "pads that cut were not tried" if pads is not None and (pads < 0).any() else None


@_of("Reshape")
def _reshape(node: Node) -> str | None:
    shape = _constant(node, 1)
    zero = node.attribute("allowzero") and (shape is None or 0 in shape)
    return "allowzero is ignored (test_reshape_allowzero_reordered as a constant)" if zero else None


@_of("Shape")
def _shape_of(node: Node) -> str | None:
    made = _shape(node.outputs[0])
    return "no dimension at all does not parse (test_shape_start_greater_than_end)" if made == (0,) else None


@_of("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin",
     "ReduceProd", "ReduceSum", "ReduceSumSquare")
def _reduction(node: Node) -> str | None:
    axes = _constant(node, 1)
    if axes is not None and not axes.size:
        return "an empty list of axes does not parse (test_reduce_l1_empty_set_expanded as a constant)"
    shape = _shape(_input(node, 0))
    if shape is not None and 0 in shape and node.op_type != "ReduceSum":
        return "without elements it was not tried, but for ReduceSum"
    if node.op_type in ("ReduceMax", "ReduceMin") and _floating(node) and _read_by(
            node.output, lambda use: use.op_type == "Equal"):
        return _ROWS
    return None


@_of("Resize")
def _resize(node: Node) -> str | None:
    if _rank(node) != 4:
        return "of other than 4 dimensions it was not tried"
    if node.attribute("antialias"):
        return "antialias is ignored (test_resize_downsample_scales_linear_antialias)"
    if node.attribute("axes") or node.attribute("exclude_outside"):
        return "axes and exclude_outside do not parse (test_resize_upsample_scales_nearest_axes_2_3)"
    if node.attribute("keep_aspect_ratio_policy") not in (None, "stretch"):
        return "only the policy stretch parses (test_resize_upsample_sizes_nearest_not_larger)"
    mode = node.attribute("coordinate_transformation_mode")
    if mode not in ("half_pixel", "align_corners", "asymmetric", "pytorch_half_pixel"):
        return f"{mode} does not parse or run (test_resize_tf_crop_and_resize)"
    return _shrinking(node) if mode == "align_corners" and node.attribute("mode") != "nearest" else None


def _shrinking(node: Node) -> str | None:
    sizes = _sizes(node)
    if sizes is not None and all(made >= size for size, made in zip(*sizes, strict=True)):
        return None
    return "align_corners to fewer elements differs (test_resize_downsample_scales_linear_align_corners)"


@_of("SpaceToDepth")
def _space(node: Node) -> str | None:
    crd = node.attribute("mode") not in (None, "DCR")
    return "the mode CRD is ignored (test_spacetodepth_crd_mode_example)" if crd else None


@_of("SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss")
def _loss(node: Node) -> str | None:
    if _made(node) > 1:
        return "log_prob has a wrong shape (test_sce_mean_log_prob)"
    if _rank(node) != 2:
        return "of 3 and more dimensions it does not parse (test_nllloss_NCd1)"
    if node.attribute("ignore_index") is not None:
        return "ignore_index has a wrong mean (test_sce_mean_no_weight_ii)"
    return None


@_of("Einsum")
def _einsum(node: Node) -> str | None:
    scalar = any(v is not None and v.shape == () for v in node.inputs)
    return "scalars do not parse (test_einsum_scalar)" if scalar else None


@_of("GridSample")
def _grid(node: Node) -> str | None:
    flat = _rank(node) == 4
    return None if flat else "it takes 4 dimensions (test_gridsample_volumetric_nearest_align_corners_0)"


@_of("Add", "Sub", "Mul", "And", "Or", "Xor", "Equal", "Less", "Greater", "Pow")
def _broadcast(node: Node) -> str | None:
    old = node.attrs.get("broadcast") and "axis" in node.attrs
    return "the axis of opset 6 fails (test_operator_add_size1_broadcast)" if old else None


@_of("PRelu")
def _slope(node: Node) -> str | None:
    first, slope = _shape(_input(node, 0)), _shape(_input(node, 1))
    if first is None or slope is None or len(slope) > len(first):
        return "the ranks of input and slope are not known"
    return None


@_of("QuickGelu")
def _quick(node: Node) -> str | None:
    return None if "alpha" in node.attrs else "without alpha it does not parse"


@_of("SkipLayerNormalization", "SkipSimplifiedLayerNormalization")
def _skip(node: Node) -> str | None:
    if "epsilon" not in node.attrs:
        return "without epsilon another one is taken"
    return "mean and deviation were not tried" if any(
        v is not None and not v.dead for v in node.outputs[1:3]) else None


@_of("MatMulNBits")
def _few_bits(node: Node) -> str | None:
    if node.attribute("bits") != 4 or _given(node, 4) or _given(node, 5):
        return "other than 4 bits, g_idx and bias were not tried"
    return None


@_of("MultiHeadAttention")
def _heads(node: Node) -> str | None:
    further = any(_given(node, i) for i in range(3, len(node.inputs)))
    if further or not _given(node, 1) or not _given(node, 2) or _made(node) > 1 or _rank(node) != 3 \
            or set(node.attrs) - {"num_heads", "scale"}:
        return "more than query, key and value was not tried"
    return None
