"""What MIGraphX 2.16 was seen to compute right: the table that claims are made from.

Its source is a record of the real library, with the target `ref`: each of the 2,036 backend cases of onnx
1.23.2 as it is, again with every input but the first constant, again with a Cast before types that the
library cannot be fed; and trials by hand of what no case has. An operator stands here if all its cases of
the types below pass, but for those that `conditions` refuses."""

from __future__ import annotations

from ...ir import ElementType
from ...records import dataclass

VERSION = "2.16"
"""The version that was recorded."""

_FLOATS = ("float", "double", "float16")
_INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
_TYPES = {
    "float": _FLOATS, "number": (*_FLOATS, *_INTEGERS), "bool": ("bool",), "integer": _INTEGERS,
    "any": (*_FLOATS, *_INTEGERS, "bool", "bfloat16"), "float32": ("float",),
    "wide": ("float", "double", "int32", "int64"), "byte": ("float", "double", "float16", "int8", "uint8"),
    "signed": ("int8",), "quantized": ("int8", "uint8"), "stored": ("int8", "uint8", "int16", "uint16",
                                                                    "int32",
                                                                 "int4", "uint4")}

_ROWS = """
operator                   types      halves  constant    older
Abs                        number     exact   -           -
Acos                       float      -       -           -
Acosh                      float      -       -           -
Add                        number     exact   -           -
And                        bool       -       -           -
ArgMax                     float      exact   -           -
ArgMin                     float      exact   -           -
Asin                       float      -       -           -
Asinh                      float      -       -           -
Atan                       float      -       -           -
Atanh                      float      -       -           -
AveragePool                float      -       -           -
BatchNormalization         float      -       -           1
BitwiseAnd                 integer    -       -           -
Cast                       any        exact   -           -
CastLike                   any        exact   -           -
Ceil                       float      exact   -           -
Celu                       float32    -       -           -
Clip                       number     exact   -           6
Concat                     any        exact   -           -
Constant                   any        exact   -           -
ConstantOfShape            any        exact   0           -
Conv                       float      -       -           -
ConvInteger                signed     -       -           -
ConvTranspose              float      -       -           -
Cos                        float      -       -           -
Cosh                       float      -       -           -
CumSum                     wide       -       1           -
DepthToSpace               any        exact   -           -
DequantizeLinear           stored     -       -           -
Div                        number     exact   -           -
Dropout                    float      exact   1,2         7,10
Einsum                     float      -       -           -
Elu                        float      -       -           -
Equal                      integer    exact   -           -
Erf                        float      -       -           -
Exp                        float      -       -           -
Expand                     any        exact   1           -
EyeLike                    number     exact   -           -
Flatten                    any        exact   -           -
Floor                      float      exact   -           -
GRU                        float      -       -           -
Gather                     any        exact   -           -
GatherElements             any        exact   -           -
GatherND                   any        exact   -           -
Gelu                       float      -       -           -
Gemm                       float      -       -           -
GlobalAveragePool          float      -       -           -
GlobalMaxPool              float      exact   -           -
Greater                    number     exact   -           -
GreaterOrEqual             number     exact   -           -
GridSample                 float      -       -           -
GroupNormalization         float      -       -           -
HardSigmoid                float      -       -           -
HardSwish                  float      -       -           -
Hardmax                    float      exact   -           -
Identity                   any        exact   -           -
InstanceNormalization      float      -       -           -
IsInf                      float      exact   -           -
IsNaN                      float      exact   -           -
LRN                        float      -       -           -
LSTM                       float      -       -           -
LayerNormalization         float      -       -           -
LeakyRelu                  float      -       -           -
Less                       number     exact   -           -
LessOrEqual                number     exact   -           -
Log                        float      -       -           -
LogSoftmax                 float      -       -           1
LpNormalization            float      -       -           -
LpPool                     float      -       -           -
MatMul                     float      -       -           -
MatMulInteger              signed     -       -           -
Max                        number     exact   -           -
MaxPool                    byte       exact   -           -
Mean                       float      -       -           -
MeanVarianceNormalization  float      -       -           -
Min                        number     exact   -           -
Mod                        number     -       -           -
Mul                        number     exact   -           -
Neg                        number     exact   -           -
NegativeLogLikelihoodLoss  float      -       -           -
Not                        bool       -       -           -
OneHot                     number     exact   1           -
Or                         bool       -       -           -
PRelu                      float      exact   -           -
Pad                        any        exact   1,2,3       2
Pow                        number     -       -           -
QLinearConv                quantized  -       -           -
QLinearMatMul              quantized  -       -           -
QuantizeLinear             float      -       -           1
RNN                        float      -       -           -
Range                      number     exact   0,1,2       -
Reciprocal                 float      exact   -           -
ReduceL1                   float      -       1           1
ReduceL2                   float      -       1           1
ReduceLogSum               float      -       1           1
ReduceLogSumExp            float      -       1           1
ReduceMax                  number     exact   1           1
ReduceMean                 float      -       1           1
ReduceMin                  number     exact   1           1
ReduceProd                 float      -       1           1
ReduceSum                  wide       -       1           1
ReduceSumSquare            float      -       1           1
Relu                       float      exact   -           -
Reshape                    any        exact   1           1
Resize                     float32    -       1,2,3       11
ReverseSequence            any        exact   1           -
RoiAlign                   float      -       -           -
Round                      float      exact   -           -
Scatter                    number     exact   1           -
ScatterElements            number     exact   1           -
ScatterND                  number     exact   1           -
Selu                       float      -       -           -
Shape                      any        exact   -           -
Shrink                     number     exact   -           -
Sigmoid                    float      -       -           -
Sign                       number     exact   -           -
Sin                        float      -       -           -
Sinh                       float      -       -           -
Size                       any        exact   -           -
Slice                      any        exact   1,2,3,4     -
Softmax                    float      -       -           1
SoftmaxCrossEntropyLoss    float      -       -           -
Softplus                   float      -       -           -
Softsign                   float      -       -           -
SpaceToDepth               any        exact   -           -
Split                      any        exact   1           1,13
Sqrt                       float      exact   -           -
Squeeze                    any        exact   1           1
Sub                        number     exact   -           -
Sum                        float      exact   -           -
Tan                        float      -       -           -
Tanh                       float      -       -           -
ThresholdedRelu            float      exact   -           -
Tile                       any        exact   1           -
TopK                       number     exact   1           1
Transpose                  any        exact   -           -
Trilu                      number     exact   1           -
Unsqueeze                  any        exact   1           1
Upsample                   float      -       1           7
Where                      any        exact   -           -
Xor                        bool       -       -           -
com.microsoft::BiasGelu    float      -       -           -
com.microsoft::FastGelu    float      -       -           -
com.microsoft::Gelu        float      -       -           -
com.microsoft::MatMulNBits  float32    -       1,2,3,4,5   -
com.microsoft::MultiHeadAttention  float32    -       -           -
com.microsoft::QuickGelu   float      -       -           -
com.microsoft::SkipLayerNormalization  float      -       -           -
com.microsoft::SkipSimplifiedLayerNormalization  float      -       -           -
"""
"""`types`: of the first input. `halves`: "exact" where
sums or several roundings in half precision cannot make results differ, as they do on `ref` for the others
(test_attention_4d_fp16_expanded, test_causal_conv_with_state_silu_fp16_expanded). `constant`: inputs that
have to be initializers when the library parses the model, or whose values decide whether it is right.
`older`: definitions beside the newest, by the version they begin with, that the parser, which ignores
versions, computes too."""

REFUSED = {
    "Attention": "it is parsed as com.microsoft's operator of that name (test_attention_4d)",
    "RotaryEmbedding": "it is parsed as com.microsoft's operator of that name (test_rotary_embedding)",
    "NonZero": "its result is padded to the largest size (test_nonzero_example)",
    "NonMaxSuppression": "its result is padded to the largest size (test_nonmaxsuppression_two_classes)",
    "Unique": "its result's size follows from values (test_unique_sorted_with_axis_3d)",
    "DynamicQuantizeLinear": "scale and zero point come in the input's rank"
                             " (test_dynamicquantizelinear_min_adjusted)",
    "Bernoulli": "random numbers are other ones (test_bernoulli_expanded)",
    "RandomUniformLike": "random numbers are other ones (test_bernoulli_expanded)",
    "RandomNormalLike": "random numbers are other ones (test_bernoulli_expanded)",
    "RandomUniform": "random numbers are other ones (test_bernoulli_expanded)",
    "RandomNormal": "random numbers are other ones (test_bernoulli_expanded)",
    "Multinomial": "random numbers are other ones (test_bernoulli_expanded)",
}
"""Operators that the parser knows and that are refused whole, and why."""

VIEWS = frozenset({"Identity", "Shape", "Size", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Constant",
                   "ConstantOfShape", "Cast", "CastLike"})
"""Operators a part of which alone is not worth an engine."""

EMPTY = frozenset({"Add", "Sub", "Mul", "Relu", "Concat", "Tile", "ReduceSum", "Split", "Identity", "Shape",
                   "Size",
                   "Reshape", "Squeeze", "Unsqueeze", "Cast", "Expand"})
"""Operators that take tensors without elements."""

FEEDABLE = frozenset({
    ElementType.BOOL, ElementType.INT8, ElementType.INT16, ElementType.INT32, ElementType.INT64,
    ElementType.UINT8, ElementType.UINT16, ElementType.UINT32, ElementType.UINT64, ElementType.FLOAT16,
    ElementType.FLOAT, ElementType.DOUBLE})
"""Element types that a program's parameters may have; bfloat16 comes in by way of float32."""

CROSSING = FEEDABLE | {ElementType.BFLOAT16}
"""Element types of values that may cross a part's border."""


@dataclass(frozen=True)
class Row:
    """What was seen of one operator: the element `types` of its first input, whether it is `exact` in half
    precision, positions of inputs that have to be `constant`, and `older` definitions that are right too."""

    types: frozenset[str]
    exact: bool
    constant: frozenset[int]
    older: frozenset[int]


def _parsed() -> dict[str, Row]:
    rows = [line.split() for line in _ROWS.splitlines()[2:]]
    return {name: Row(frozenset(_TYPES[types]), halves == "exact", _numbers(constant), _numbers(older))
            for name, types, halves, constant, older in rows}


def _numbers(text: str) -> frozenset[int]:
    return frozenset(map(int, text.split(",") if text != "-" else ()))


OPERATORS = _parsed()
"""The rows by operator."""
