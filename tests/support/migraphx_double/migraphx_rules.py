"""What MIGraphX 2.16 was recorded to refuse, to get wrong and to die of: rules of the double, node by node.

In: nodes as the parser sees them, by `op_type` alone; nodes with their arguments when they run. Out: a
refusal with the library's words; whether a result is wrong; the process's death."""

from __future__ import annotations

import os
import signal

import numpy as np
import onnx

_KNOWN = """
Abs Acos Acosh Add And ArgMax ArgMin Asin Asinh Atan Atanh BitwiseAnd Ceil Clip Concat Constant
ConstantOfShape Conv Cos Cosh DepthToSpace Div Elu Erf Exp Expand EyeLike Flatten Floor GRU Gather
GatherElements GatherND Gelu Gemm GlobalAveragePool GlobalMaxPool Greater GreaterOrEqual GroupNormalization
HardSigmoid HardSwish Hardmax InstanceNormalization IsInf IsNaN LRN LSTM LayerNormalization LeakyRelu Less
LessOrEqual Log LogSoftmax LpNormalization LpPool MatMul MatMulInteger Max Mean MeanVarianceNormalization Min
Mul Neg Not Or PRelu Pow QLinearConv RNN Reciprocal Relu RoiAlign Round Scatter ScatterElements ScatterND
Selu Shrink Sigmoid Sign Sin Sinh Size Softmax Softplus Softsign Sqrt Sub Sum Tan Tanh ThresholdedRelu
Transpose Upsample Where Xor CumSum OneHot Range ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax
ReduceMean ReduceMin ReduceProd ReduceSum ReduceSumSquare Reshape Slice Split Squeeze Tile TopK Trilu
Unsqueeze AveragePool BatchNormalization Cast CastLike Celu ConvInteger ConvTranspose DequantizeLinear
Dropout DynamicQuantizeLinear Einsum Equal GridSample Identity MaxPool Mod NegativeLogLikelihoodLoss
NonMaxSuppression Pad QLinearMatMul QuantizeLinear Resize ReverseSequence Shape SoftmaxCrossEntropyLoss
SpaceToDepth Unique NonZero Attention RotaryEmbedding ATen BiasAdd BiasGelu BiasSplitGelu ConstantFill
DynamicScale FastGelu GlobalLpPool GroupNorm GroupQueryAttention If ImageScaler Loop MXFixNeuron
MXQuantizeDequantize MatMulBnb4 MatMulIntegerToFloat MatMulNBits MultiHeadAttention Multinomial NhwcConv
QLinearAdd QLinearAveragePool QLinearConcat QLinearGlobalAveragePool QLinearLeakyRelu QLinearMul
QLinearSigmoid QuickGelu RandomNormal RandomNormalLike RandomUniform RandomUniformLike Scan
SimplifiedLayerNormalization SkipLayerNormalization SkipSimplifiedLayerNormalization"""
_CONSTANTS = {
    "CumSum": (1, "PARSE_CUMSUM: axis must be constant"), "Pad": (1,
                                                                  "PARSE_PAD: `pads` input must be constant"),
    "Split": (1, "PARSE_SPLIT: non-constant split"), "TopK": (1, "PARSE_TopK: k input must be constant"),
    "Squeeze": (1, "Parse SQUEEZE: axes input must be constant"), "Tile": (1, "PARSE_TILE: dynamic repeats"),
    "Unsqueeze": (1, "Parse UNSQUEEZE: axes input must be constant"),
    "Trilu": (1, "PARSE_TRILU: dynamic k not supported"),
    "Slice": (4, "PARSE_SLICE: steps must be constant"),
    "ReverseSequence": (1, "REVERSESEQUENCE: cannot handle variable sequence_lens")}
_REDUCTIONS = ("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean",
               "ReduceMin",
               "ReduceProd", "ReduceSum", "ReduceSumSquare")


def known_operators():
    return _KNOWN.split()


def die(number):
    """End this process as the library does."""
    os.kill(os.getpid(), number)


def check_nodes(model, fail):
    """Refuse what the parser refuses; `fail(place, text)` raises."""
    constant = {each.name: each for each in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type == "Constant":
            constant[node.output[0]] = next((a.t for a in node.attribute if a.name == "value"), None)
    for node in model.graph.node:
        name, attrs = node.op_type, {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
        if name not in known_operators():
            fail("onnx/onnx_parser.cpp:625", f"parse_graph: Unknown operator: {name}")
        if name in ("Attention", "RotaryEmbedding"):
            fail(f"onnx/parse_{name.lower()}.cpp:436", "handle_attributes: num_heads attribute required")
        place, text = _CONSTANTS.get(name, (0, ""))
        if place and place < len(node.input) and node.input[place] and node.input[place] not in constant:
            fail("onnx/checks.cpp:35", f"check_arg_empty: {text}")
        computed = len(node.input) > 1 and node.input[1] not in constant
        if name in _REDUCTIONS and computed and not attrs.get("keepdims", 1):
            fail("onnx/parse_reduce_op.cpp:72", "Keepdims not supported with runtime provided axes")
        known = all(n in constant for n in node.input)
        if name == "Div" and known and _integer_zero(constant[node.input[1]]):
            die(signal.SIGFPE)
        if name == "Pad" and attrs.get("mode") == b"wrap":
            fail("onnx/parse_pad.cpp:55", "parse_mode: PARSE_PAD: mode wrap is not supported")
        if name == "Resize" and ("axes" in attrs or attrs.get("exclude_outside") or attrs.get(
                "coordinate_transformation_mode") == b"tf_crop_and_resize"):
            fail("onnx/parse_resize.cpp:202", "set_coord_trans_mode: PARSE_RESIZE: not supported")
        if name == "Celu" and not _is_float(model, node.input[0]):
            fail("op/builder/celu.cpp:58", "insert: celu op_builder: input tensor not float type")
        if name == "QuickGelu" and "alpha" not in attrs:
            raise IndexError("unordered_map::at")


def _integer_zero(tensor):
    found = onnx.numpy_helper.to_array(tensor) if tensor is not None else np.ones(1)
    return found.dtype.kind in "iu" and not found.all()


def _is_float(model, name):
    kinds = {i.name: i.type.tensor_type.elem_type for i in (*model.graph.input, *model.graph.value_info)}
    return kinds.get(name, 1) == 1


def mistaken(node, given, made=()):
    """Whether the library gets this node wrong for these arguments; it dies here of what it dies of. `made`:
    the right results, once they are there."""
    name, get = node.op_type, node.attribute
    first = given[0] if given else None
    floating = first is not None and first.dtype.kind == "f"
    if name == "Div" and not floating and not np.asarray(given[1]).all():
        die(signal.SIGFPE)
    if name == "ScatterND" and ((given[1] < 0).any() or (given[1] >= max(first.shape)).any()):
        die(signal.SIGABRT)
    if name in ("ScatterElements", "Scatter") and (np.abs(given[1]) > max(first.shape)).any():
        die(signal.SIGSEGV)
    if name in _REDUCTIONS and len(given) > 1 and given[1] is not None and node.inputs[1].const is None and (
            given[1] < 0).any():
        die(signal.SIGSEGV)
    if name == "Loop" and node.inputs[0] is not None and node.inputs[0].const is None:
        die(signal.SIGABRT)
    if not made:
        return False
    if name in ("Softmax", "LogSoftmax"):
        axis = get("axis")
        return bool(node.op.since < 13 and axis not in (first.ndim - 1, -1) and first.ndim > 2) or (
            floating and not np.isfinite(first).any(-1).all())
    if name in ("Max", "Min"):
        return floating and any(np.isnan(x).any() for x in given[1:])
    if name == "Mod":
        return bool((floating and not get("fmod") and not np.isfinite(first / given[1]).all())
                    or (not floating and not np.asarray(given[1]).all()))
    if name in ("MatMulInteger", "ConvInteger"):
        return any(x is not None and x.dtype == np.uint8 for x in given) or len(given) > 2
    if name == "ConvTranspose":
        return any(get("output_padding") or ()) and any(get("pads") or ())
    if name in ("Cast", "CastLike"):
        to = made[0].dtype
        if not floating or to.kind == "f":
            return False
        whole = first.astype(np.float64)
        return bool((to.kind == "b" and (np.isnan(whole) | ((whole != 0) & (np.abs(whole) < 1))).any())
                    or (to.kind in "iu" and (~np.isfinite(whole) | (np.abs(whole) > np.iinfo(to).max)).any()))
    if name in ("LSTM", "GRU", "RNN"):
        lengths = given[4] if len(given) > 4 else None
        return bool(get("clip") or get("input_forget")) or (lengths is not None and (lengths == 0).any())
    if name == "SpaceToDepth":
        return get("mode") == "CRD"
    if name == "Resize":
        return bool(get("antialias")) or first.ndim != 4 or get(
            "coordinate_transformation_mode") == "half_pixel_symmetric"
    if name == "Dropout":
        return len(given) > 2 and given[2] is not None and bool(np.any(given[2])) and bool(np.any(given[1]))
    if name == "BatchNormalization":
        return bool(get("training_mode"))
    if name in ("NonZero", "NonMaxSuppression", "DynamicQuantizeLinear"):
        return True
    if name == "Slice":
        return 0 in made[0].shape
    if name in ("SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss"):
        return first.ndim > 2 or get("ignore_index") is not None
    if name == "QLinearMatMul":
        return given[1].dtype == np.float16 and first.dtype == np.uint8
    halves = floating and first.dtype.itemsize == 2
    return halves and name in ("MatMul", "Gemm", "Conv", "Softmax", "Sigmoid", "ReduceMean")
