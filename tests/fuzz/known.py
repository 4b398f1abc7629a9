"""Differences that are known, each with its reason: a finding whose graph holds such an operator is no
failure.

`DIFFERS`: from onnxruntime, where the definitions and generated code agree. `EDGES`: of generated code from
the definitions, in what becomes of infinities and NaN.
"""

from __future__ import annotations

import onnx

from fuzz.judge import Finding

DIFFERS: dict[str, str] = {
    "Clip": "onnxruntime clamps infinities to the type's range where a bound is absent",
    "Mod": "onnxruntime computes 64-bit fmod through double",
    "Shrink": "onnxruntime computes integers through float",
    "ReduceProd": "onnxruntime loses the high bits of integer products",
    "ReduceLogSumExp": "integers: onnxruntime truncates between the steps",
    "ReduceLogSum": "integers: onnxruntime truncates between the steps",
    "ReduceL2": "integers: onnxruntime truncates between the steps",
    "ReduceMax": "onnxruntime does not pass NaN on",
    "ReduceMin": "onnxruntime does not pass NaN on",
    "Pow": "onnxruntime computes integer powers through double",
    "Round": "onnxruntime rounds float16 through another type",
    "MatMulInteger": "onnxruntime leaves the result of an inner dimension of 0 uninitialized",
    "Hardmax": "onnxruntime takes NaN for no largest element",
    "ArgMax": "onnxruntime takes NaN for no largest element",
    "ArgMin": "onnxruntime takes NaN for no smallest element",
    "TopK": "onnxruntime orders NaN otherwise",
}
EDGES: dict[str, str] = {
    "Attention": "keys that a mask shuts out are not looked at; a row whose every score is -inf is 0",
    "MultiHeadAttention": "as Attention",
    "Conv": "small groups are one product with zeros between them: what is not finite reaches its neighbours",
    "FusedConv": "as Conv",
    "ConvTranspose": "as Conv",
    "ReduceProd": "whether a product underflows before it meets an infinity hangs on its order",
}


def excused(found: Finding, model: onnx.ModelProto) -> str | None:
    """The reason why a finding is no failure, if there is one."""
    table = {"differs": DIFFERS, "edge": EDGES}.get(found.kind, {})
    return next((table[node.op_type] for node in model.graph.node if node.op_type in table), None)
