"""Every rule: a graph on which it fires, one on which it must not, and the same results after as before."""

from __future__ import annotations

import math

import numpy as np
import onnx
import pytest
from support_graphs import Net, evaluate, feeds, kinds

from orthrus import knobs
from orthrus.ir import verify
from orthrus.ops.define import defined
from orthrus.optimize import PASSES, optimize
from orthrus.optimize.pattern import Rule
from orthrus.optimize.rules import spelled

RNG = np.random.default_rng(7)
F = np.float32
BATCH = {"N": 2, "S": 3, "P": 4}


def f(*shape, scale=1.0):
    return (RNG.normal(size=shape) * scale).astype(F)


def ints(*values):
    return np.array(values, np.int64)


FIRES, SPARES = {}, {}


def fires(rule, opset=None, tol=2e-5):
    return lambda build: FIRES.setdefault(rule, []).append((build, opset, tol)) or build


def spares(rule, opset=None):
    return lambda build: SPARES.setdefault(rule, []).append((build, opset, 2e-5)) or build


def case(table, rule, build, opset=None, tol=2e-5):
    table.setdefault(rule, []).append((build, opset, tol))


def unary(rule, expression, *shape, table=FIRES, opset=None, tol=2e-5, dtype=F):
    """A graph of one input of `shape`."""
    case(table, rule, lambda n: [expression(n, n.input("x", *(shape or (2, 3, 4)), dtype=dtype))], opset, tol)


# movement
unary("merge_transposes", lambda n, x: n.Transpose(n.Transpose(x, perm=[2, 0, 1]), perm=[0, 2, 1]))
unary("merge_transposes", lambda n, x: n.Transpose(n.Transpose(x)))
unary("merge_transposes", lambda n, x: n.Transpose(n.Reshape(n.Transpose(x), ints(-1, 2))), table=SPARES)
unary("merge_casts", lambda n, x: n.Cast(n.Cast(x, to=1), to=6), 3, 4, dtype=np.uint8)
unary("merge_casts", lambda n, x: n.Cast(n.Cast(x, to=6), to=1), table=SPARES)
for _to in (1, 6, 7, 9, 10, 11):
    unary("merge_cast_fill", lambda n, x, to=_to: n.Cast(
        n.ConstantOfShape(n.Shape(x), value=np.float32([2.5])), to=to), "N", 3)
unary("merge_cast_fill", lambda n, x: n.Cast(n.ConstantOfShape(n.Shape(x)), to=7), "N", 3)
unary("merge_cast_fill", lambda n, x: n.Cast(n.ConstantOfShape(n.Shape(x), value=np.float32([np.nan])), to=1),
      "N", 3)
for _value in (3e9, -np.inf):
    unary("merge_cast_fill", lambda n, x, value=_value: n.Cast(
        n.ConstantOfShape(n.Shape(x), value=np.float32([value])), to=6), "N", 3, table=SPARES)
unary("merge_cast_fill", lambda n, x: n.Cast(n.ConstantOfShape(n.Shape(x), value=np.float32([1])), to=16),
      "N", 3, table=SPARES)
unary("drop_cast_before_shape", lambda n, x: n.Shape(n.Cast(x, to=10)), "N", 3)
unary("drop_cast_before_shape", lambda n, x: n.Shape(n.NonZero(x)), "N", 3, table=SPARES)
unary("merge_reshapes", lambda n, x: n.Reshape(n.Reshape(x, ints(4, 6)), ints(2, -1)))
unary("merge_reshapes", lambda n, x: n.Reshape(n.Flatten(x), ints(0, 4, 3)), "N", 3, 4)
unary("merge_reshapes", lambda n, x: n.Reshape(n.Unsqueeze(x, ints(1)), ints(-1)))
unary(
    "merge_reshapes", lambda n, x: n.Reshape(n.Transpose(n.Reshape(x, ints(4, 6))), ints(2, -1)), table=SPARES
)
unary(
    "merge_reshapes",
    lambda n, x: n.Reshape(n.Reshape(x, ints(-1, 6)), ints(0, 2, 3)),
    "N",
    3,
    4,
    table=SPARES,
)
unary("merge_squeeze", lambda n, x: n.Squeeze(n.Unsqueeze(n.Relu(x), ints(1)), ints(-3)))
unary("merge_squeeze", lambda n, x: n.Squeeze(n.Unsqueeze(x, ints(2)), ints(0)), 1, 3, table=SPARES)
unary("merge_unsqueeze", lambda n, x: n.Unsqueeze(n.Squeeze(n.Relu(x), ints(1)), ints(1)), 2, 1, 3)
unary("merge_unsqueeze", lambda n, x: n.Unsqueeze(n.Squeeze(x, ints(1)), ints(0)), 2, 1, 3, table=SPARES)
unary("merge_unsqueezes", lambda n, x: n.Unsqueeze(n.Unsqueeze(x, ints(1, 3)), ints(0, 2)), 2, 3)
unary(
    "merge_unsqueezes", lambda n, x: n.Unsqueeze(n.Relu(n.Unsqueeze(x, ints(1))), ints(0)), 2, 3, table=SPARES
)
unary("merge_squeezes", lambda n, x: n.Squeeze(n.Squeeze(x, ints(1)), ints(0)), 1, 1, 3)
unary("merge_squeezes", lambda n, x: n.Squeeze(n.Relu(n.Squeeze(x, ints(1))), ints(0)), 1, 1, 3, table=SPARES)
unary(
    "merge_batched_transpose",
    lambda n, x: n.Reshape(n.Transpose(n.Reshape(x, ints(-1, 4, 5)), perm=[0, 2, 1]), ints(2, 3, 5, 4)),
    2,
    3,
    4,
    5,
)
unary(
    "merge_batched_transpose",
    lambda n, x: n.Reshape(n.Transpose(n.Reshape(x, ints(-1, 4, 5)), perm=[0, 2, 1]), ints(3, 2, 5, 4)),
    2,
    3,
    4,
    5,
    table=SPARES,
)
unary("merge_concats", lambda n, x: n.Concat(x, n.Concat(n.Relu(x), x, axis=1), axis=-2))
unary("merge_concats", lambda n, x:
      n.Concat(n.Concat(x, x, axis=1), n.Concat(x, n.Relu(x), axis=1), axis=0), table=SPARES)
unary("merge_not_where", lambda n, x: n.Where(n.Not(n.Greater(x, F(0))), x, F(2)))
unary("merge_not_where", lambda n, x: n.Where(n.Greater(x, F(0)), x, F(2)), table=SPARES)

# transposes on their way
T = [0, 2, 1]
unary("push_transpose_unary", lambda n, x: n.Relu(n.Transpose(x, perm=T)))
unary("push_transpose_unary", lambda n, x: n.Relu(n.Reshape(n.Transpose(x, perm=T), ints(-1))), table=SPARES)
OTHER_TYPES = {**dict.fromkeys(("Not", "And", "Or", "Xor"), bool), "BitShift": np.uint8,
               **dict.fromkeys(("BitwiseNot", "BitwiseAnd", "BitwiseOr", "BitwiseXor"), np.int32)}
COUNTED = (np.arange(24) % 3).reshape(3, 4, 2)
ASKED = {"BitShift": {"direction": "LEFT"}, "Mod": {"fmod": 1}}


def elementwise(inputs):
    """The operators of the standard that compute so many tensors element by element, and an element type of
    theirs."""
    for it in {op.name: op for op in defined() if op.own and op.broadcasts and not op.domain}.values():
        if (2 if it.variadic else len(it.inputs)) == inputs and onnx.defs.has(it.name):
            yield it.name, OTHER_TYPES.get(it.name, F)


def apply(net, name, *inputs):
    return [net.node("", name, *inputs, **ASKED.get(name, {}))]


for _name, _dtype in elementwise(1):
    unary("push_transpose_unary", lambda n, x, name=_name: apply(n, name, n.Transpose(x, perm=T))[0],
          dtype=_dtype)
for _name, _dtype in elementwise(2):
    case(FIRES, "push_transposes_binary", lambda n, name=_name, dtype=_dtype: apply(
        n, name, *(n.Transpose(n.input(x, 2, 3, 4, dtype=dtype), perm=T) for x in "xy")))
    unary("push_transpose_constant", lambda n, x, name=_name, dtype=_dtype: apply(
        n, name, n.Transpose(x, perm=[1, 2, 0]), COUNTED.astype(dtype))[0],
          dtype=_dtype)
unary("push_transpose_clip", lambda n, x: n.Clip(n.Transpose(x, perm=T), F(-1), F(1)))
unary("push_transpose_clip", lambda n, x: n.Clip(n.Reshape(x, ints(-1)), F(-1), F(1)), table=SPARES)
unary(
    "push_transposes_binary",
    lambda n, x: n.Sub(n.Transpose(n.Relu(x), perm=T), n.Transpose(n.Neg(x), perm=T)),
)
unary(
    "push_transposes_binary",
    lambda n, x: n.Sub(n.Transpose(n.Relu(x), perm=[0, 2, 1]), n.Transpose(n.Neg(x), perm=[2, 1, 0])),
    3,
    3,
    3,
    table=SPARES,
)
unary("push_transpose_constant", lambda n, x: n.Mul(n.Transpose(x, perm=[1, 2, 0]), f(4, 1)))
unary("push_transpose_constant", lambda n, x: n.Sub(F(2), n.Transpose(x, perm=[1, 2, 0])))
unary(
    "push_transpose_constant", lambda n, x: n.Add(n.Transpose(x, perm=[1, 2, 0]), f(2, 3, 4, 2)), table=SPARES
)
unary(
    "push_transposes_concat",
    lambda n, x: n.Concat(n.Transpose(n.Relu(x), perm=T), n.Transpose(n.Neg(x), perm=T), axis=1),
)
unary(
    "push_transposes_concat",
    lambda n, x: n.Concat(n.Transpose(n.Relu(x), perm=T), n.Reshape(x, ints(2, 4, 3)), axis=1),
    table=SPARES,
)
unary("push_transpose_softmax", lambda n, x: n.Softmax(n.Transpose(x, perm=[1, 2, 0]), axis=1))
unary("push_transpose_softmax", lambda n, x: n.Softmax(n.Reshape(x, ints(6, 4)), axis=0), table=SPARES)
unary("push_transpose_pad", lambda n, x: n.Pad(n.Transpose(x, perm=[1, 2, 0]), ints(0, 1, 2, 3, 0, 1)))
unary("push_transpose_pad", lambda n, x: n.Pad(n.Reshape(x, ints(4, 6)), ints(1, 2, 3, 4)), table=SPARES)
unary("push_transpose_reduce", lambda n, x: n.ReduceMean(n.Transpose(x, perm=[1, 2, 0]), ints(0, 1)))
unary(
    "push_transpose_reduce",
    lambda n, x: n.ReduceMean(n.Transpose(x, perm=[1, 2, 0]), ints(0, 1), keepdims=0),
    table=SPARES,
)

# arithmetic
unary("drop_second_application", lambda n, x: n.Relu(n.Relu(x)))
unary("drop_second_application", lambda n, x: n.Relu(n.Abs(n.Neg(x))), table=SPARES)
unary("drop_double_negation", lambda n, x: n.Neg(n.Neg(n.Relu(x))))
unary("drop_double_negation", lambda n, x: n.Neg(n.Abs(n.Neg(x))), table=SPARES)
unary("fuse_div", lambda n, x: n.Mul(n.Div(F(1), n.Exp(x)), n.Relu(x)))
unary("fuse_div", lambda n, x: n.Mul(n.Div(F(2), n.Exp(x)), n.Relu(x)), table=SPARES)
unary("fuse_relu_clip", lambda n, x: n.Clip(n.Relu(x), F(-1), F(0.5)))
unary("fuse_relu_clip", lambda n, x: n.Clip(n.Relu(x), F(-2), F(-1)), table=SPARES)
unary("fuse_clip_relu", lambda n, x: n.Relu(n.Clip(x, F(-1), F(0.5))))
unary("fuse_clip_relu", lambda n, x: n.Relu(n.Clip(x, F(-2), F(-1))), table=SPARES)
unary("merge_clips", lambda n, x: n.Clip(n.Clip(x, F(-1), F(0.5)), F(-0.5), F(2)))
unary("merge_clips", lambda n, x: n.Clip(n.Clip(x, F(-1), F(0)), F(0.5), F(2)), table=SPARES)
for power in (2, 3):
    unary("expand_pow", lambda n, x, power=power: n.Pow(x, F(power)))
unary("expand_pow", lambda n, x: n.Pow(n.Abs(x), F(0.5)))
unary("expand_pow", lambda n, x: n.Pow(n.Abs(x), F(2.5)), table=SPARES)
unary("expand_pow", lambda n, x: n.Pow(x, np.array(2, np.int32)), dtype=np.int32, table=SPARES)

# convolutions
IMAGE = (2, 4, 7, 6)


def conv(n, x, bias=True, **attrs):
    return n.Conv(x, f(6, 4, 3, 3), *([f(6)] if bias else []), **attrs)


def transposed(n, x):
    return n.ConvTranspose(x, f(4, 3, 3, 3), group=2, strides=[2, 2])


def normalized(n, x, channels):
    return n.BatchNormalization(
        x, f(channels), f(channels), f(channels), np.abs(f(channels)) + F(0.1), epsilon=1e-3
    )


unary("fuse_conv_batch_normalization", lambda n, x: normalized(n, conv(n, x), 6), *IMAGE)
unary(
    "fuse_conv_batch_normalization", lambda n, x: normalized(n, conv(n, x, bias=False), 6), *IMAGE, opset=11
)
unary("fuse_conv_batch_normalization", lambda n, x: normalized(n, transposed(n, x), 6), *IMAGE, tol=1e-4)
unary(
    "fuse_conv_batch_normalization", lambda n, x: normalized(n, n.Relu(conv(n, x)), 6), *IMAGE, table=SPARES
)
unary("fuse_conv_mul", lambda n, x: n.Mul(f(1, 6, 1, 1), conv(n, x)), *IMAGE)
unary("fuse_conv_mul", lambda n, x: n.Mul(transposed(n, x), f(6, 1, 1)), *IMAGE)
unary("fuse_conv_mul", lambda n, x: n.Mul(conv(n, x, pads=[1, 1, 1, 1]), f(7, 6)), *IMAGE, table=SPARES)
unary("fuse_conv_add", lambda n, x: n.Add(conv(n, x, bias=False), f(6, 1, 1)), *IMAGE)
unary("fuse_conv_add", lambda n, x: n.Sub(conv(n, x), F(2)), *IMAGE)
unary("fuse_conv_add", lambda n, x: n.Add(conv(n, x), f(5, 1, 6, 1, 1)), *IMAGE, table=SPARES)
unary("fuse_conv_div", lambda n, x: n.Div(conv(n, x), F(3)), *IMAGE)
unary("fuse_conv_div", lambda n, x: n.Div(F(3), conv(n, x)), *IMAGE, table=SPARES)
unary(
    "fuse_pad",
    lambda n, x: conv(n, n.Pad(x, ints(0, 0, 1, 2, 0, 0, 3, 0)), strides=[2, 1], pads=[1, 0, 0, 1]),
    *IMAGE,
)
unary(
    "fuse_pad",
    lambda n, x: n.AveragePool(n.Pad(x, ints(0, 0, 1, 1, 0, 0, 1, 0)), kernel_shape=[3, 3]),
    *IMAGE,
)
unary(
    "fuse_pad",
    lambda n, x: n.MaxPool(n.Pad(x, ints(0, 0, 1, 1, 0, 0, 1, 0), F(-np.inf)), kernel_shape=[3, 3]),
    *IMAGE,
)
unary("fuse_pad", lambda n, x: conv(n, n.Pad(x, ints(0, 0, 1, 2, 0, 0, 3, 0), F(1))), *IMAGE, table=SPARES)
unary(
    "fuse_pad",
    lambda n, x: conv(n, n.Pad(x, ints(0, 0, 1, 2, 0, 0, 3, 0), mode="reflect")),
    *IMAGE,
    table=SPARES,
)
unary(
    "fuse_pad",
    lambda n, x: n.MaxPool(n.Pad(x, ints(0, 0, 1, 1, 0, 0, 1, 0)), kernel_shape=[3, 3]),
    *IMAGE,
    table=SPARES,
)

# matrix products
unary("fuse_matmul_add", lambda n, x: n.Add(f(5), n.MatMul(x, f(4, 5))), "N", 4)
unary("fuse_matmul_add", lambda n, x: n.Add(f(3, 5), n.MatMul(x, f(4, 5))), 1, 4, table=SPARES)
unary("fuse_matmul_add", lambda n, x: n.Add(f(5), n.MatMul(x, f(4, 5))), 2, 3, 4, table=SPARES)
unary(
    "fuse_gemm_transpose",
    lambda n, x: n.Gemm(n.Transpose(x), n.Transpose(n.Reshape(x, ints(4, 2))), transB=1),
    4,
    2,
)
unary("fuse_gemm_transpose", lambda n, x: n.Gemm(x, f(4, 3), f(3)), "N", 4, table=SPARES)
unary("fuse_gemm_add", lambda n, x: n.Add(n.Gemm(x, f(4, 3), alpha=2.0), f(3)), "N", 4)
unary("fuse_gemm_add", lambda n, x: n.Add(n.Gemm(x, f(4, 3), f(3)), f(3)), "N", 4, table=SPARES)
unary("fuse_matmul_mul", lambda n, x: n.Mul(n.MatMul(x, f(4, 3)), f(3)), 2, 3, 4)
unary("fuse_matmul_mul", lambda n, x: n.Mul(n.Gemm(x, f(3, 4), f(3), transB=1), f(1, 3)), "N", 4)
unary("fuse_matmul_mul", lambda n, x: n.Mul(n.MatMul(x, f(4, 3)), f(2, 1)), 2, 4, table=SPARES)
unary(
    "fuse_matmul_batch_normalization",
    lambda n, x: normalized(n, n.Gemm(x, f(3, 4), f(3), transB=1, beta=0.5), 3),
    "N",
    4,
)
unary("fuse_matmul_batch_normalization", lambda n, x: normalized(n, n.MatMul(x, f(4, 3)), 3), "N", 4)
unary(
    "fuse_matmul_batch_normalization",
    lambda n, x: normalized(n, n.MatMul(x, f(4, 3)), 5),
    2,
    5,
    4,
    table=SPARES,
)
unary("fuse_matmul_transpose", lambda n, x: n.MatMul(x, n.Transpose(n.Relu(x), perm=[0, 2, 1])))
unary(
    "fuse_matmul_transpose",
    lambda n, x: n.MatMul(x, n.Transpose(n.Relu(x), perm=[2, 1, 0])),
    4,
    4,
    4,
    table=SPARES,
)
unary(
    "fuse_second_transpose",
    lambda n, x: n.MatMul(n.Transpose(n.Relu(x), perm=[0, 2, 1]), n.Transpose(n.Neg(x), perm=[0, 2, 1])),
    3,
    4,
    4,
)
unary(
    "fuse_second_transpose",
    lambda n, x: n.MatMul(n.Relu(x), n.Transpose(n.Neg(x), perm=[0, 2, 1])),
    table=SPARES,
)
unary("fuse_matmul_scale", lambda n, x: n.Div(n.MatMul(x, n.Relu(x)), F(3)), 2, 4, 4)
unary("fuse_matmul_scale", lambda n, x: n.Mul(n.MatMul(x, n.Relu(x)), f(4)), 2, 4, 4, table=SPARES)

# activations
ROOT2 = F(math.sqrt(2))
ERF = [
    lambda n, x: n.Mul(n.Mul(x, n.Add(n.Erf(n.Div(x, ROOT2)), F(1))), F(0.5)),
    lambda n, x: n.Mul(x, n.Mul(F(0.5), n.Add(F(1), n.Erf(n.Mul(x, F(1 / math.sqrt(2))))))),
    lambda n, x: n.Mul(n.Mul(x, F(0.5)), n.Add(n.Erf(n.Div(x, ROOT2)), F(1))),
    lambda n, x: n.Div(n.Mul(x, n.Add(n.Erf(n.Div(x, ROOT2)), F(1))), F(2)),
    lambda n, x: n.Mul(n.Add(n.Mul(F(0.5), n.Erf(n.Div(x, ROOT2))), F(0.5)), x),
]
for form in ERF:
    unary("fuse_gelu", form, "N", 5)
for other in (F(1.5), F(1.41421)):
    unary("fuse_gelu", lambda n, x, by=other: n.Mul(n.Mul(x, n.Add(n.Erf(n.Div(x, by)), F(1))), F(0.5)),
          table=SPARES)
unary(
    "fuse_gelu",
    lambda n, x: n.Mul(n.Mul(x, n.Add(n.Erf(n.Div(n.Neg(x), ROOT2)), F(1))), F(0.5)),
    table=SPARES,
)


@spares("fuse_gelu")
def _(n):
    x = n.input("x", 2, 3)
    inner = n.Add(n.Erf(n.Div(x, ROOT2)), F(1))
    return [n.Mul(n.Mul(x, inner), F(0.5)), inner]


K = F(math.sqrt(2 / math.pi))
TANH = [
    lambda n, x: n.Mul(
        n.Mul(x, F(0.5)), n.Add(n.Tanh(n.Mul(n.Add(x, n.Mul(n.Pow(x, F(3)), F(0.044715))), K)), F(1))
    ),
    lambda n, x: n.Mul(
        n.Mul(x, F(0.5)), n.Add(n.Tanh(n.Mul(n.Add(x, n.Mul(n.Mul(n.Mul(x, x), x), F(0.044715))), K)), F(1))
    ),
    lambda n, x: n.Mul(
        x,
        n.Mul(F(0.5), n.Add(F(1), n.Tanh(n.Mul(n.Mul(x, K), n.Add(n.Mul(n.Mul(x, F(0.044715)), x), F(1)))))),
    ),
]
for form in TANH:
    unary("fuse_gelu_tanh", form, "N", 5)
unary("fuse_gelu_tanh", lambda n, x: n.Mul(n.Mul(x, F(0.5)), n.Add(n.Tanh(n.Mul(x, K)), F(1))), table=SPARES)
unary("fuse_swish", lambda n, x: n.Mul(n.Sigmoid(x), x))
unary("fuse_swish", lambda n, x: n.Mul(n.Sigmoid(n.Neg(x)), x), table=SPARES)
unary("fuse_quick_gelu", lambda n, x: n.Mul(x, n.Sigmoid(n.Mul(F(1.702), x))))
unary("fuse_quick_gelu", lambda n, x: n.Mul(x, n.Sigmoid(n.Mul(f(4), x))), table=SPARES)
unary("fuse_hard_sigmoid", lambda n, x: n.Div(n.Clip(n.Add(x, F(3)), F(0), F(6)), F(6)))
unary("fuse_hard_sigmoid", lambda n, x: n.Div(n.Clip(n.Add(x, F(3)), F(0), F(5)), F(6)), table=SPARES)
unary("fuse_hard_swish", lambda n, x: n.Mul(x, n.HardSigmoid(x, alpha=1 / 6, beta=0.5)))
unary("fuse_hard_swish", lambda n, x: n.Mul(x, n.HardSigmoid(x, alpha=0.2, beta=0.5)), table=SPARES)
unary("fuse_hard_swish_parts", lambda n, x: n.Div(n.Mul(x, n.Clip(n.Add(x, F(3)), F(0), F(6))), F(6)))
unary("fuse_hard_swish_parts", lambda n, x: n.Mul(n.Mul(x, n.Clip(n.Add(x, F(3)), F(0), F(6))), F(1 / 6)))
unary(
    "fuse_hard_swish_parts",
    lambda n, x: n.Div(n.Mul(x, n.Clip(n.Add(x, F(3)), F(0), F(6))), F(5)),
    table=SPARES,
)
unary("fuse_softplus", lambda n, x: n.Log(n.Add(n.Exp(x), F(1))))
unary("fuse_softplus", lambda n, x: n.Log(n.Add(n.Exp(x), F(2))), table=SPARES)
unary("fuse_mish", lambda n, x: n.Mul(x, n.Tanh(n.Softplus(x))))
unary("fuse_mish", lambda n, x: n.Mul(x, n.Tanh(n.Softplus(n.Neg(x)))), table=SPARES)


def softmax(n, x, axes=(-1,), top=(-1,)):
    e = n.Exp(n.Sub(x, n.ReduceMax(x, ints(*top))))
    return n.Div(e, n.ReduceSum(e, ints(*axes)))


unary("fuse_softmax", softmax)
unary("fuse_softmax", lambda n, x: softmax(n, x, (1,), (1,)), opset=18)
unary("fuse_softmax", lambda n, x: softmax(n, x, (1, 2), (1, 2)), table=SPARES)
unary("fuse_softmax", lambda n, x: softmax(n, x, (1,), (2,)), table=SPARES)


# normalizations
def centred(n, x, square="Pow", axes=(-1,), twice=False):
    d = n.Sub(x, n.ReduceMean(x, ints(*axes)))
    e = n.Sub(x, n.ReduceMean(x, ints(*axes))) if twice else d
    squared = n.Pow(e, F(2)) if square == "Pow" else n.Mul(e, e)
    return d, n.Add(n.ReduceMean(squared, ints(*axes)), F(1e-5))


def layer_norm(n, x, **how):
    d, s = centred(n, x, **how)
    return n.Div(d, n.Sqrt(s))


unary("fuse_layer_normalization", lambda n, x: n.Add(n.Mul(layer_norm(n, x), f(4)), f(4)))
unary("fuse_layer_normalization", lambda n, x: layer_norm(n, x, square="Mul", axes=(1, 2), twice=True))
unary(
    "fuse_layer_normalization",
    lambda n, x: (lambda d, s: n.Mul(d, n.Reciprocal(n.Sqrt(s))))(*centred(n, x)),
    "N",
    "S",
    4,
)
unary("fuse_layer_normalization", lambda n, x: layer_norm(n, x, axes=(1,)), table=SPARES)
unary("fuse_layer_normalization", lambda n, x: layer_norm(n, x), 2, "S", "N", table=SPARES)
unary("fuse_normalization_scale", lambda n, x: n.Mul(f(4), layer_norm(n, x)))
unary("fuse_normalization_scale", lambda n, x: n.Mul(layer_norm(n, x), f(3, 4)), table=SPARES)
unary("fuse_normalization_bias", lambda n, x: n.Add(f(4), n.Mul(layer_norm(n, x), f(4))))
unary("fuse_normalization_bias", lambda n, x: n.Add(f(3, 4), n.Mul(layer_norm(n, x), f(4))), table=SPARES)


def shifted(n, x, axes=(-1,)):
    mean = n.ReduceMean(x, ints(*axes))
    d = n.Sub(x, mean)
    s = n.Mul(n.Reciprocal(n.Sqrt(n.Add(n.ReduceMean(n.Mul(d, d), ints(*axes)), F(1e-3)))), f(4))
    return n.Add(n.Mul(x, s), n.Sub(f(4), n.Mul(mean, s)))


unary("fuse_layer_normalization_shifted", shifted)
unary("fuse_layer_normalization_shifted", lambda n, x: shifted(n, x, (1,)), table=SPARES)


def rms(n, x, axes=(-1,)):
    return n.Add(n.ReduceMean(n.Pow(x, F(2)), ints(*axes)), F(1e-6))


unary(
    "fuse_rms_normalization", lambda n, x: n.Mul(f(4), n.Mul(x, n.Reciprocal(n.Sqrt(rms(n, x))))), "N", "S", 4
)
unary("fuse_rms_normalization", lambda n, x: n.Mul(n.Div(x, n.Sqrt(rms(n, x))), f(4)))
unary("fuse_rms_normalization", lambda n, x: n.Mul(x, n.Div(F(1), n.Sqrt(rms(n, x)))))
unary("fuse_rms_normalization", lambda n, x: n.Div(x, n.Sqrt(rms(n, x, (0,)))), table=SPARES)
unary("fuse_rms_normalization", lambda n, x: n.Div(n.Neg(x), n.Sqrt(rms(n, x))), table=SPARES)
unary(
    "fuse_normalization_casts",
    lambda n, x: (
        lambda w: n.Mul(f(4).astype(np.float16), n.Cast(n.Mul(w, n.Reciprocal(n.Sqrt(rms(n, w)))), to=10))
    )(n.Cast(x, to=1)),
    dtype=np.float16,
    tol=2e-3,
)
unary(
    "fuse_normalization_casts",
    lambda n, x: n.Cast(n.LayerNormalization(x, np.ones(4, F)), to=10),
    table=SPARES,
)


@fires("fuse_skip_layer_normalization")
def _(n):
    x, y = n.input("x", "N", "S", 4), n.input("y", "N", "S", 4)
    return [n.LayerNormalization(n.Add(x, y), f(4), f(4))]


@fires("fuse_skip_layer_normalization")
def _(n):
    x, y = n.input("x", "N", "S", 4), n.input("y", "N", "S", 4)
    total = n.Add(x, y)
    early = n.Relu(total)
    return [n.LayerNormalization(total, f(4), epsilon=1e-3), early, total]


for rule in ("fuse_skip_layer_normalization", "fuse_skip_rms_normalization"):
    for table, one, other in (
        (FIRES, ("N", "S", 4), (1, "S", 4)), (FIRES, ("S", 4), ("N", "S", 4)),
        (FIRES, (2, 3, 4), (1, 3, 4)), (SPARES, ("N", "S", 4), (1, 4)),
        (SPARES, ("N", "S", 4), ("N", 1, 4)), (SPARES, ("N", 3, 4), (1, "S", 4)),
        (SPARES, ("N", 1, 4), (1, "S", 4)),
    ):

        def build(n, one=one, other=other, rms="rms" in rule):
            total = n.Add(n.input("x", *one), n.input("y", *other))
            made = n.RMSNormalization(total, f(4)) if rms else n.LayerNormalization(total, f(4), f(4))
            return [made, total]

        case(table, rule, build)


@spares("fuse_skip_layer_normalization")
def _(n):
    x, y = n.input("x", "N", "S", 4), n.input("y", "N", "S", 4)
    total = n.Add(x, y)
    return [n.LayerNormalization(total, n.Squeeze(n.ReduceSum(total, ints(0, 1)), ints(0, 1)))]


@fires("fuse_skip_rms_normalization")
def _(n):
    x, y = n.input("x", "N", "S", 4), n.input("y", "N", "S", 4)
    total = n.Add(x, y)
    return [n.RMSNormalization(total, f(4)), total]


@spares("fuse_skip_rms_normalization")
def _(n):
    return [n.RMSNormalization(n.Mul(n.input("x", "N", 4), n.input("y", "N", 4)), f(4))]


# attention
def qkv(n, heads=3, kv=None, size=4, source="S"):
    q = n.input("q", "N", heads, "S", size)
    k = n.input("k", "N", kv or heads, source, size)
    v = n.input("v", "N", kv or heads, source, size)
    return q, k, v


def attend(n, q, k, v, mask=None, scale=lambda n, x: n.Mul(x, F(0.5)), after=lambda n, x: x):
    scores = scale(n, n.MatMul(q, n.Transpose(k, perm=[0, 1, 3, 2])))
    if mask is not None:
        scores = mask(n, scores)
    return n.MatMul(after(n, n.Softmax(scores, axis=-1)), v)


def added(n, x):
    return n.Add(x, n.input("mask", "N", 1, "S", "S"))


def guarded(n, x):
    return n.Where(n.IsNaN(x), F(0), x)


for mask in (None, added, lambda n, x: n.Where(n.input("keep", "N", 1, "S", "S", dtype=bool), x, F(-1e30)),
             lambda n, x: added(n, n.Where(n.input("keep", 1, 1, "S", "S", dtype=bool), x, F(-1e30)))):
    case(FIRES, "fuse_attention", lambda n, mask=mask: [attend(n, *qkv(n), mask)])
case(
    FIRES,
    "fuse_attention",
    lambda n: [attend(n, *qkv(n, source="P"), after=guarded, scale=lambda n, x: n.Div(x, F(2)))],
)


@fires("fuse_attention")
def _(n):
    """Both factors are scaled, and the keys are transposed in one go with the heads."""
    x = n.input("x", "N", "S", 12)
    q = n.Mul(n.Transpose(n.Reshape(n.Relu(x), ints(0, 0, 3, 4)), perm=[0, 2, 1, 3]), F(0.7))
    k = n.Mul(n.Transpose(n.Reshape(n.Neg(x), ints(0, 0, 3, 4)), perm=[0, 2, 3, 1]), F(0.7))
    v = n.Transpose(n.Reshape(x, ints(0, 0, 3, 4)), perm=[0, 2, 1, 3])
    return [n.MatMul(n.Softmax(n.MatMul(q, k), axis=-1), v)]


@fires("fuse_attention")
def _(n):
    """Batch and heads are one axis."""
    q, k, v = (n.input(name, "N", "S", 4) for name in "qkv")
    scores = n.Add(n.MatMul(q, n.Transpose(k, perm=[0, 2, 1])), n.input("mask", "N", "S", "S"))
    return [n.MatMul(n.Softmax(scores, axis=-1), v)]


@fires("fuse_attention")
def _(n):
    """Each head of keys and values serves two heads of queries."""
    q, k, v = qkv(n, heads=4, kv=2)

    def repeated(x):
        wide = n.Expand(
            n.Unsqueeze(x, ints(2)), n.Concat(n.Shape(q, end=1), ints(2, 2), n.Shape(q, start=2), axis=0)
        )
        return n.Reshape(wide, n.Concat(n.Shape(q, end=1), ints(4, -1, 4), axis=0))
    return [attend(n, q, repeated(k), repeated(v))]


case(FIRES, "fuse_attention", lambda n: [(lambda q, k, v: n.MatMul(n.Cast(n.Softmax(n.Cast(n.MatMul(
    q, n.Transpose(k, perm=[0, 1, 3, 2])), to=1), axis=-1), to=10), v))(*(
        n.input(name, 2, 3, 5, 4, dtype=np.float16) for name in "qkv"))], tol=5e-3)
case(SPARES, "fuse_attention", lambda n: [attend(n, *qkv(n), after=lambda n, x: n.Mul(x, F(2)))])
case(SPARES, "fuse_attention", lambda n: [attend(n, *qkv(n), mask=lambda n, x: n.Mul(added(n, x), F(2)))])
case(FIRES, "fuse_attention", lambda n: [attend(n, *qkv(n), mask=lambda n, x: n.Where(
    n.input("keep", "N", 1, "S", "S", dtype=bool), x, F(-1)))])
case(SPARES, "fuse_attention", lambda n: [attend(n, *qkv(n), mask=lambda n, x: n.Where(
    n.input("keep", "N", 1, "S", "S", dtype=bool), x, n.input("other", "N", 1, "S", "S")))])
case(
    SPARES,
    "fuse_attention",
    lambda n: [attend(n, *qkv(n), mask=lambda n, x: n.Add(x, n.input("m", "N", 1, "S", 1)))],
)
case(SPARES, "fuse_attention", lambda n: [attend(n, *qkv(n), scale=lambda n, x: n.Neg(x))])


@spares("fuse_attention")
def _(n):
    q, k, v = qkv(n)
    weights = n.Softmax(n.MatMul(q, n.Transpose(k, perm=[0, 1, 3, 2])), axis=-1)
    return [n.MatMul(weights, v), weights]


def cached(n, computed=False):
    q, k, v = qkv(n)
    past = [n.input(name, "N", 3, "P", 4) for name in ("pk", "pv")]
    if computed:
        past = [n.Relu(p) for p in past]
    k, v = (n.Concat(p, x, axis=-2) for p, x in zip(past, (k, v), strict=True))
    return attend(n, q, k, v), k, v


case(FIRES, "fuse_attention_past", lambda n: cached(n))
case(FIRES, "fuse_attention_past", lambda n: cached(n)[:1])
case(SPARES, "fuse_attention_past", lambda n: cached(n, computed=True))


@spares("fuse_attention_past")
def _(n):
    """The mask is computed from the joined keys, so they have to be there before."""
    q, k, v = qkv(n)
    k, v = (n.Concat(n.input(name, "N", 3, "P", 4), x, axis=2) for name, x in (("pk", k), ("pv", v)))
    return [
        attend(
            n,
            q,
            k,
            v,
            mask=lambda n, x: n.Add(x, n.Unsqueeze(n.ReduceSum(k, ints(1, 3), keepdims=0), ints(1, 2))),
        )
    ]


def counted(n, of=lambda joined: joined[0], axis=2, **ends):
    """The mask is computed from how many keys there are."""
    q, k, v = qkv(n)
    joined = [n.Concat(n.input(name, "N", 3, "P", 4), x, axis=axis) for name, x in (("pk", k), ("pv", v))]
    at = range(4)[ends.get("start"):ends.get("end")].index(axis)
    count = n.Gather(n.Shape(of(joined), **ends), np.int64(at))
    places = n.Cast(n.Range(np.int64(0), count, np.int64(1)), to=1)
    return [attend(n, q, *joined, mask=lambda n, x: n.Add(x, places)), *joined]


case(FIRES, "push_shape_over_joined_keys", lambda n: counted(n))
case(FIRES, "push_shape_over_joined_keys", lambda n: counted(n, start=1, end=3))
case(FIRES, "fuse_attention_past", lambda n: counted(n, start=-2))
case(SPARES, "push_shape_over_joined_keys", lambda n: counted(n, lambda joined: n.Relu(joined[0])))


def stacked(n, *apart, mask=lambda n, x: x):
    """Two texts of three heads each, multiplied as six matrices."""
    q, k, v = (n.Reshape(n.input(name, 2, 3, 5, 4), ints(6, 5, 4)) for name in "qkv")
    scores = mask(n, n.Mul(n.MatMul(q, n.Transpose(k, perm=[0, 2, 1])), F(0.5)))
    return n.Reshape(n.MatMul(n.Softmax(scores, axis=-1), v), ints(*apart))


case(FIRES, "push_split_over_products", lambda n: [stacked(n, 2, 3, 5, 4)])
case(FIRES, "push_split_over_products", lambda n: [stacked(n, 2, 3, 5, 4, mask=lambda n, x: n.Reshape(
    n.Add(n.Reshape(x, ints(2, 3, 5, 5)), f(2, 1, 5, 5)), ints(6, 5, 5)))])
case(SPARES, "push_split_over_products", lambda n: [stacked(n, 3, 2, 5, 4)])
case(SPARES, "push_split_over_products", lambda n: [stacked(n, 2, 3, 4, 5)])
case(SPARES, "push_split_over_products", lambda n: [
    stacked(n, 2, 3, 5, 4, mask=lambda n, x: n.Add(x, f(6, 5, 5)))])


def heads(n, perm=(0, 2, 1, 3), last=None):
    q, k, v = (
        n.Transpose(n.Reshape(n.input(name, "N", "S", 12), ints(0, 0, 3, 4)), perm=list(perm))
        for name in "qkv"
    )
    y = n.Transpose(attend(n, q, k, v), perm=[0, 2, 1, 3])
    return n.Reshape(y, ints(0, 0, 12) if last is None else last)


case(FIRES, "fuse_attention_heads", lambda n: [heads(n)])
case(FIRES, "fuse_attention_heads", lambda n: [heads(n, last=ints(-1, 12))])
case(SPARES, "fuse_attention_heads", lambda n: [heads(n, last=ints(0, 0, 4, 3))])


def halves(n, x):
    far = ints(1 << 40)
    return n.Slice(x, ints(0), ints(2), ints(3), ints(1)), n.Slice(x, ints(2), far, ints(3), ints(1))


def split_halves(n, x, sizes=(2, 2)):
    return n.node("", "Split", x, ints(*sizes), axis=-1, outputs=2)


def neighbours(n, x):
    return tuple(n.Slice(x, ints(i), ints(1 << 40), ints(-1), ints(2)) for i in (0, 1))


def unbound(n, x):
    apart = n.Reshape(x, ints(0, 0, 0, 2, 2))
    first = n.Squeeze(n.Slice(apart, ints(0), ints(1), ints(4)), ints(4))
    return first, n.Gather(apart, np.int64(1), axis=-1)


def side_by_side(n, a, b):
    return n.Reshape(n.Concat(n.Unsqueeze(a, ints(-1)), n.Unsqueeze(b, ints(4)), axis=-1), ints(0, 0, 0, 4))


def one_after_another(n, a, b):
    return n.Concat(a, b, axis=-1)


def rotary(n, x, parts=halves, joined=one_after_another, twice=True, turned=True, batch="N", heads_at=1):
    angles = n.input("angles", batch, "S", 2)
    if joined is side_by_side:
        wide = n.Expand(n.Unsqueeze(angles, ints(3)), ints(1, 1, 1, 2))
        both = n.Reshape(wide, ints(0, 0, 4)) if twice else n.Concat(angles, angles, axis=-1)
    else:
        both = n.Concat(angles, angles if twice else n.Neg(angles), axis=-1)
    cos = n.Unsqueeze(n.Mul(n.Cos(both), F(1.5)), ints(heads_at))
    a, b = parts(n, x)
    moved = joined(n, n.Neg(b) if turned else b, a)
    return n.Add(n.Mul(x, cos), n.Mul(moved, n.Unsqueeze(n.Sin(both), ints(heads_at))))


def rotary_parts(n, x, parts=halves, joined=one_after_another, sign="Sub", length="S"):
    angles = n.Unsqueeze(n.input("angles", "N", length, 2), ints(1))
    a, b = parts(n, x)
    cos, sin = n.Cos(angles), n.Sin(angles)
    return joined(n, getattr(n, sign)(n.Mul(a, cos), n.Mul(sin, b)), n.Add(n.Mul(a, sin), n.Mul(b, cos)))


ROTARY = ("N", 3, "S", 4)
unary("fuse_rotary_embedding", rotary, *ROTARY)
unary("fuse_rotary_embedding", lambda n, x: rotary(n, x, batch=1), *ROTARY)
unary("fuse_rotary_embedding", lambda n, x: rotary(n, x, split_halves), *ROTARY)
unary("fuse_rotary_embedding", lambda n, x: rotary(n, x, heads_at=2), "N", "S", 3, 4)
unary("fuse_rotary_embedding", lambda n, x: rotary(n, x, turned=False), *ROTARY, table=SPARES)
unary("fuse_rotary_embedding", lambda n, x: rotary(n, x, twice=False), *ROTARY, table=SPARES)
unary("fuse_rotary_embedding", lambda n, x: rotary(n, x, lambda n, x: split_halves(n, x, (1, 3))), *ROTARY,
      table=SPARES)
unary("fuse_rotary_embedding_pairs", lambda n, x: rotary(n, x, neighbours, side_by_side), *ROTARY)
unary("fuse_rotary_embedding_pairs", lambda n, x: rotary(n, x, unbound, side_by_side, batch=1), *ROTARY)
unary("fuse_rotary_embedding_pairs", lambda n, x: rotary(n, x, neighbours, side_by_side, heads_at=2), "N",
      "S", 3, 4)
unary("fuse_rotary_embedding_pairs", lambda n, x: rotary(n, x, neighbours, side_by_side, False), *ROTARY,
      table=SPARES)
unary("fuse_rotary_embedding_pairs", lambda n, x: rotary(n, x, halves, side_by_side), *ROTARY, table=SPARES)
unary("fuse_rotary_embedding_parts", rotary_parts, *ROTARY)
unary("fuse_rotary_embedding_parts", lambda n, x: rotary_parts(n, x, sign="Add"), *ROTARY, table=SPARES)
unary("fuse_rotary_embedding_parts", lambda n, x: rotary_parts(n, x, length=1), *ROTARY, table=SPARES)
unary("fuse_rotary_embedding_parts_pairs", lambda n, x: rotary_parts(n, x, unbound, side_by_side), *ROTARY)
unary("fuse_rotary_embedding_parts_pairs", lambda n, x: rotary_parts(n, x, neighbours, one_after_another),
      *ROTARY, table=SPARES)


def partial_rotary(n, x, first=4, rest=4, heads_at=1):
    cut = [n.Slice(x, ints(0), ints(first), ints(3)), n.Slice(x, ints(rest), ints(1 << 40), ints(3))]
    return n.Concat(rotary(n, cut[0], heads_at=heads_at), cut[1], axis=-1)


unary("fuse_partial_rotary_embedding", partial_rotary, "N", 3, "S", 7)
unary("fuse_partial_rotary_embedding", lambda n, x: partial_rotary(n, x, heads_at=2), "N", "S", 3, 7)
unary("fuse_partial_rotary_embedding", lambda n, x: partial_rotary(n, x, rest=3), "N", 3, "S", 7,
      table=SPARES)
case(FIRES, "fuse_attention_heads", lambda n: [turned_heads(n)])


def turned_heads(n):
    q, k, v = (n.Transpose(n.Reshape(n.input(name, "N", "S", 12), ints(0, 0, 3, 4)), perm=[0, 2, 1, 3])
               for name in "qkv")
    y = attend(n, rotary(n, q), n.RotaryEmbedding(k, *(n.input(c, "N", "S", 2) for c in "cs")), v)
    return n.Reshape(n.Transpose(y, perm=[0, 2, 1, 3]), ints(0, 0, 12))


def grouped(n, x, groups=2, back=(0, 4, 3), after=lambda n, y: y):
    y = n.InstanceNormalization(n.Reshape(x, ints(0, groups, -1)), f(groups), f(groups), epsilon=1e-3)
    return after(n, n.Reshape(y, ints(*back)))


def by_channel(n, y):
    return n.Add(n.Mul(y, f(4, 1)), f(1, 4, 1))


unary("fuse_group_normalization", grouped, "N", 4, 3)
unary("fuse_group_normalization", lambda n, x: grouped(n, x, back=(0, 4, 6)), "N", 4, 2, 3)
unary("fuse_group_normalization", lambda n, x: grouped(n, x, back=(3, 4, 2)), 2, 4, 3, table=SPARES)
unary("fuse_group_normalization_scale", lambda n, x: grouped(n, x, after=by_channel), "N", 4, 3)
unary("fuse_group_normalization_bias", lambda n, x: grouped(n, x, after=by_channel), "N", 4, 3)
unary("fuse_group_normalization_scale", lambda n, x: grouped(n, x, after=lambda n, y: n.Mul(y, f(4, 3))),
      "N", 4, 3, table=SPARES)
unary("fuse_group_normalization_bias", lambda n, x: grouped(n, x, after=lambda n, y: n.Add(y, f(3))),
      "N", 4, 3, table=SPARES)


def flax_norm(n, x, fast=True, weights=(4,), axis=-1):
    """As Flax writes it: the variance from the squares' mean, the scale multiplied first."""
    mean = n.ReduceMean(x, ints(axis), keepdims=1)
    d = n.Sub(x, mean)
    variance = n.Max(F(0), n.Sub(n.ReduceMean(n.Mul(x, x), ints(axis), keepdims=1), n.Mul(mean, mean))) \
        if fast else n.ReduceMean(n.Mul(d, d), ints(axis), keepdims=1)
    root = n.Reciprocal(n.Sqrt(n.Add(variance, F(1e-3))))
    return n.Add(n.Mul(d, n.Mul(root, f(*weights))), f(4)) if weights else n.Mul(d, root)


def flax_rms(n, x, weights=(4,)):
    root = n.Reciprocal(n.Sqrt(n.Add(n.ReduceMean(n.Mul(x, x), ints(-1), keepdims=1), F(1e-3))))
    return n.Mul(x, n.Mul(root, f(*weights)))


unary("fuse_layer_normalization", lambda n, x: flax_norm(n, x, weights=()), "N", 3, 4)
unary("fuse_layer_normalization_weighted", flax_norm, "N", 3, 4)
unary("fuse_layer_normalization_weighted", lambda n, x: flax_norm(n, x, False, (1, 1, 4)), "N", 3, 4)
unary("fuse_layer_normalization_weighted", lambda n, x: flax_norm(n, x, weights=(3, 1)), "N", 3, 4,
      table=SPARES)
unary("fuse_layer_normalization_weighted", lambda n, x: flax_norm(n, x, axis=1), "N", 3, 4, table=SPARES)
unary("fuse_rms_normalization_weighted", flax_rms, "N", 3, 4)
unary("fuse_rms_normalization_weighted", lambda n, x: flax_rms(n, x, (3, 1)), "N", 3, 4, table=SPARES)


def normalized_first(n, x, shift=1.0, **attrs):
    """BatchNormalization before Conv."""
    y = n.BatchNormalization(x, f(4), f(4, scale=shift), f(4, scale=shift), np.abs(f(4)) + F(0.5))
    return n.Conv(y, f(6, 4 // attrs.get("group", 1), 2, 2), f(6), **attrs)


IMAGES = ("N", 4, 3, 5)
unary("fuse_batch_normalization_conv", normalized_first, *IMAGES)
unary("fuse_batch_normalization_conv", lambda n, x: normalized_first(n, x, group=2, strides=[2, 1]), *IMAGES)
unary("fuse_batch_normalization_conv", lambda n, x: normalized_first(n, x, 0.0, pads=[1, 1, 0, 0]), *IMAGES)
unary("fuse_batch_normalization_conv", lambda n, x: normalized_first(n, x, pads=[1, 1, 0, 0]), *IMAGES,
      table=SPARES)
unary("fuse_batch_normalization_conv", lambda n, x: normalized_first(n, x, auto_pad="SAME_UPPER"), *IMAGES,
      table=SPARES)

MS = "com.microsoft"


def diffuse(rule, name, inputs, table=FIRES, outputs=1, **attrs):
    """One operator of diffusion networks."""
    def build(n):
        given = n.input("x", *inputs[0]), *(f(*shape) for shape in inputs[1:])
        made = n.node(MS, name, *given, outputs=outputs, **attrs)
        return list(made) if outputs > 1 else [n.Relu(made)]
    case(table, rule, build)


IMAGE = ("N", 3, 2, 4)
diffuse("expand_group_norm", "GroupNorm", [IMAGE, (4,), (4,)], groups=2, activation=1)
diffuse("expand_group_norm", "GroupNorm", [("N", 4, 3), (4,), (4,)], groups=2, activation=0, channels_last=0)
diffuse("expand_group_norm", "GroupNorm", [("N", 4), (4,), (4,)], SPARES, groups=2, activation=0)
diffuse("expand_skip_group_norm", "SkipGroupNorm", [IMAGE, (4,), (4,), (2, 3, 2, 4), (4,)], outputs=2,
        groups=2, activation=0)
diffuse("expand_skip_group_norm", "SkipGroupNorm", [IMAGE, (4,), (4,), (2, 1, 1, 4)], groups=4, activation=1)
diffuse("expand_skip_group_norm", "SkipGroupNorm", [IMAGE, (4,), (4,), (2, 4)], SPARES, groups=2,
        activation=0)
diffuse("expand_bias_split_gelu", "BiasSplitGelu", [("N", 3, 8), (8,)])
diffuse("expand_bias_add", "BiasAdd", [("N", 3, 8), (8,), (2, 3, 8)])
diffuse("expand_nhwc_conv", "NhwcConv", [IMAGE, (6, 2, 2, 2), (6,)], group=2, strides=[1, 2])
for name in ("expand_bias_split_gelu", "expand_bias_add", "expand_nhwc_conv"):
    unary(name, lambda n, x: n.Relu(x), table=SPARES)


def _built(build, opset):
    global RNG
    RNG = np.random.default_rng(7)
    net = Net(opset)
    return net.outputs(*build(net))


def _cases(table):
    return [
        pytest.param(rule, *it, id=f"{rule}-{i}") for rule, its in table.items() for i, it in enumerate(its)
    ]


def _agree(build, opset, tol):
    before = _built(build, opset)
    given = feeds(before, **BATCH)
    expected = evaluate(before, given)
    after = _built(build, opset)
    names = [v.name for v in after.outputs]
    with knobs.setting(CHECK=1):
        journal = optimize(after)
    verify(after)
    assert [v.name for v in after.outputs] == names
    for a, b in zip(expected, evaluate(after, given), strict=True):
        assert a.dtype == b.dtype and a.shape == b.shape
        np.testing.assert_allclose(np.asarray(b, np.float64), np.asarray(a, np.float64), rtol=tol, atol=tol)
    return after, {entry.name: entry for entry in journal}


@pytest.mark.parametrize(("rule", "build", "opset", "tol"), _cases(FIRES))
def test_fires(rule, build, opset, tol):
    graph, journal = _agree(build, opset, tol)
    assert journal[rule].count, f"{rule} did not fire: {journal[rule].declined}\n{graph}"


@pytest.mark.parametrize(("rule", "build", "opset", "tol"), _cases(SPARES))
def test_spares(rule, build, opset, tol):
    graph, journal = _agree(build, opset, tol)
    assert not journal[rule].count, f"{rule} fired:\n{graph}"


@pytest.mark.parametrize("rule", [p.name for p in PASSES if isinstance(p.what, Rule)
                                  and p.what.rule not in spelled.EXTENDED])
def test_every_rule_has_both(rule):
    assert rule in FIRES and rule in SPARES


def test_whole_layer_norm_is_one_node():
    build, opset, tol = FIRES["fuse_layer_normalization"][0]
    graph, _ = _agree(build, opset, tol)
    assert kinds(graph) == ["LayerNormalization"]


def test_whole_attention_is_one_node():
    build, opset, tol = FIRES["fuse_attention_heads"][0]
    graph, _ = _agree(build, opset, tol)
    assert kinds(graph) == ["Attention"]


def classified(n, x, **attrs):
    """The scores of a linear classifier of three classes."""
    return n.node("ai.onnx.ml", "LinearClassifier", x, outputs=2, coefficients=f(12).tolist(),
                  intercepts=f(3).tolist(), **attrs)[1]


unary("pull_label_texts", lambda n, x: classified(n, x, classlabels_strings=["a", "b", "c"]), "N", 4)
unary("pull_label_texts", lambda n, x: classified(n, x, classlabels_ints=[1, 2, 3]), "N", 4, table=SPARES)
