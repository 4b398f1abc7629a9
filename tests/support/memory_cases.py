"""Models whose results, or what is needed on the way to them, are larger than what they read: for each
operator that can do so, a model with feeds, by the bytes of its largest result.

`python tests/support/memory_cases.py` measures each in a child process, generated and interpreted, at sizes
below and far above the limits: the bytes by which resident memory rises, and how that is to
`LIMITS.max_total_bytes`.
"""

from __future__ import annotations

import itertools
import logging
import math
import os
import signal
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from onnx import helper, numpy_helper

import orthrus as ort
from orthrus import errors
from orthrus.ops.schema import newest_opset

F, U, L, S, B, D, INT = 1, 2, 7, 8, 9, 11, 6
MIB = 1 << 20
LIMITS = ort.Limits(max_tensor_bytes=24 * MIB, max_total_bytes=48 * MIB, max_fold_bytes=8 * MIB,
                    run_timeout=20.0)
SIZES = {"below": 20 * MIB, "over the tensor's": 30 * MIB, "far above": 160 * MIB}
_SMALL = 1 << 16
Made = tuple[Any, dict[str, Any]]
CASES: dict[str, Callable[[int], Made]] = {}
info, node = helper.make_tensor_value_info, helper.make_node


def case(make: Callable[[int], Made]) -> Callable[[int], Made]:
    """`make(size)`: a model and feeds, with a result or a value on the way to it of about `size` bytes."""
    CASES[make.__name__.strip("_")] = make
    return make


def ints(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int64)


def model(nodes: Sequence[Any], feeds: dict[str, Any], constants: dict[str, Any] | None = None,
          opset: int | None = None, outputs: Sequence[str] = ("y",)) -> Made:
    """Nodes between the feeds, whose dimensions are open, and outputs of any type."""
    feeds = {name: np.asarray(a) for name, a in feeds.items()}
    ins = [info(name, helper.np_dtype_to_tensor_dtype(a.dtype), [f"{name}{i}" for i in range(a.ndim)])
           for name, a in feeds.items()]
    graph = helper.make_graph(
        list(nodes), "memory", ins, [helper.make_empty_tensor_value_info(name) for name in outputs],
        [numpy_helper.from_array(np.asarray(a), name) for name, a in (constants or {}).items()])
    return helper.make_model(graph, ir_version=10, opset_imports=[
        helper.make_opsetid("", opset or min(newest_opset(""), 21)),
        helper.make_opsetid("ai.onnx.ml", 3), helper.make_opsetid("com.microsoft", 1)]), feeds


def op(op_type: str, feeds: Sequence[Any], constants: Sequence[Any] = (), count: int = 1,
       opset: int | None = None, domain: str = "", **attrs: Any) -> Made:
    """One node: its inputs are the feeds and then the constants; None is an absent one."""
    fed = {f"x{i}": a for i, a in enumerate(feeds) if a is not None}
    known = {f"c{i}": a for i, a in enumerate(constants) if a is not None}
    names = [f"x{i}" if a is not None else "" for i, a in enumerate(feeds)]
    names += [f"c{i}" if a is not None else "" for i, a in enumerate(constants)]
    outputs = ["y", *(f"y{i}" for i in range(1, count))]
    return model([node(op_type, names, outputs, domain=domain, **attrs)], fed, known, opset, outputs)


def ones(*shape: int) -> np.ndarray:
    return np.ones(shape, np.float32)


def side(size: int, width: int = 4) -> int:
    """The side of a square of `size` bytes."""
    return max(math.isqrt(size // width), 1)


def wide_windows(width: int) -> Made:
    return op("Conv", [np.ones((1, 1, 2 * width, 2 * width))], [np.ones((1, 1, width, width))])


ONE = ones(1)
GROWING: dict[str, Callable[[int], Made]] = {
    "Expand": lambda n: op("Expand", [ONE, ints(n // 4)]),
    "Expand to a constant": lambda n: op("Expand", [ONE], [ints(n // 4)]),
    "Tile": lambda n: op("Tile", [ONE, ints(n // 4)]),
    "Tile by a constant": lambda n: op("Tile", [ONE], [ints(n // 4)]),
    "Range": lambda n: op("Range", [np.array(0), np.array(n // 8), np.array(1)]),
    "Range of floats": lambda n: op("Range", [np.float64(0), np.float64(n // 8), np.float64(1)]),
    "ConstantOfShape": lambda n: op("ConstantOfShape", [ints(n // 4)]),
    "ConstantOfShape of ones": lambda n: op("ConstantOfShape", [ints(n // 4)],
                                            value=numpy_helper.from_array(ones(1))),
    "Resize": lambda n: op("Resize", [ones(1, 1, 8, 8), None, None, ints(1, 1, side(n), side(n))],
                           mode="linear"),
    "Resize cubic": lambda n: op("Resize", [ones(1, 1, 8, 8), None], [np.array(
        [1, 1, side(n) / 8, side(n) / 8], np.float32)], mode="cubic"),
    "Resize nearest double": lambda n: op("Resize", [np.ones((1, 1, 8, 8)), None], [np.array(
        [1, 1, side(n, 8) / 8, side(n, 8) / 8], np.float32)]),
    "Upsample": lambda n: op("Upsample", [ones(1, 1, 8, 8)], [np.array(
        [1, 1, side(n) / 8, side(n) / 8], np.float32)], opset=9),
    "Pad": lambda n: op("Pad", [ones(1, 1), ints(0, 0, side(n), side(n))]),
    "Pad by a constant": lambda n: op("Pad", [np.ones((1, 1))], [ints(0, 0, side(n, 8), side(n, 8))]),
    "Pad edge": lambda n: op("Pad", [ones(1, 1), ints(0, 0, side(n), side(n))], mode="edge"),
    "OneHot": lambda n: op("OneHot", [np.zeros(64, np.int64), ints(n // 256)],
                           [np.array([0, 1], np.float32)]),
    "OneHot double": lambda n: op("OneHot", [np.zeros(64, np.int64)], [ints(n // 512), np.array([0.0, 1])]),
    "NonZero": lambda n: op("NonZero", [np.ones((n // 64, 1, 1, 1, 1, 1, 1, 1), bool)]),
    "EyeLike": lambda n: op("EyeLike", [np.zeros((side(n, 8), side(n, 8)), bool)], dtype=D),
    "Concat": lambda n: model([node("Concat", ["x"] * 256, ["y"], axis=0)], {"x": ones(n // 1024)}),
    "Gather": lambda n: op("Gather", [ones(1, n // 1024), np.zeros(256, np.int64)]),
    "GatherND": lambda n: op("GatherND", [ones(1, n // 1024), np.zeros((256, 1), np.int64)]),
    "GatherElements": lambda n: op("GatherElements", [np.ones((1, n // 8)), np.zeros((1, n // 8), np.int32)]),
    "Einsum": lambda n: op("Einsum", [ones(side(n)), ones(side(n))], equation="i,j->ij"),
    "Einsum of four": lambda n: op("Einsum", [ones(math.isqrt(side(n)))] * 4, equation="i,j,k,l->ijkl"),
    "Einsum on the way": lambda n: op("Einsum", [ones(side(n), 1), ones(1, side(n)), ones(1)],
                                      equation="ik,kj,l->l"),
    "MatMul": lambda n: op("MatMul", [ones(side(n), 1), ones(1, side(n))]),
    "MatMul double": lambda n: op("MatMul", [np.ones((side(n, 8), 1)), np.ones((1, side(n, 8)))]),
    "MatMulInteger": lambda n: op("MatMulInteger", [np.ones((side(n), 1), np.uint8),
                                                    np.ones((1, side(n)), np.uint8)]),
    "Gemm": lambda n: op("Gemm", [np.ones((side(n, 8), 1)), np.ones((1, side(n, 8)))]),
    "Conv": lambda n: op("Conv", [ones(1, 1, 2, 2)], [ones(1, 1, 1, 1)], pads=[side(n) // 2] * 4),
    "Conv double": lambda n: op("Conv", [np.ones((1, 1, 2, 2))], [np.ones((1, 1, 1, 1))],
                                pads=[side(n, 8) // 2] * 4),
    "Conv of wide windows": lambda n: wide_windows(side(min(n, 40 * MIB) // 1024)),
    "ConvTranspose": lambda n: op("ConvTranspose", [ones(1, 1, 2, 2)], [ones(1, 1, 1, 1)],
                                  strides=[side(n)] * 2),
    "ConvTranspose, many channels": lambda n: op("ConvTranspose", [ones(1, 1, 16, 16)],
                                                 [ones(1, n // 1024, 1, 1)]),
    "Col2Im": lambda n: op("Col2Im", [ones(1, 1, 1), ints(side(n), side(n)), ints(side(n), side(n))]),
    "MaxUnpool": lambda n: op("MaxUnpool", [ones(1, 1, 1, 1), np.zeros((1, 1, 1, 1), np.int64),
                                            ints(1, 1, side(n), side(n))], kernel_shape=[2, 2]),
    "MaxPool double with indices": lambda n: op("MaxPool", [np.ones((1, 1, side(n, 8), side(n, 8)))], count=2,
                                                kernel_shape=[1, 1]),
    "Cast to double": lambda n: op("Cast", [np.ones(n // 8, bool)], to=D),
    "Cast to text": lambda n: op("Cast", [np.arange(n // 72, dtype=np.int32)], to=S),
    "Cast floats to text": lambda n: op("Cast", [np.ones(n // 72, np.float32)], to=S),
    "CastLike": lambda n: op("CastLike", [np.ones(n // 8, bool), np.ones(1)]),
    "StringConcat": lambda n: op("StringConcat", [np.array([["a" * 64]] * side(n, 192), object), np.array(
        [["b" * 64] * side(n, 192)], object)]),
    "StringSplit": lambda n: op("StringSplit", [np.array(["a " * (n // 64)], object)], count=2),
    "StringSplit, one long": lambda n: op(
        "StringSplit", [np.array(["a," * (n // 4096)] + ["b"] * 511, object)], count=2, delimiter=","),
    "StringNormalizer": lambda n: op("StringNormalizer", [np.array(["abcdefgh" * 16] * (n // 192), object)],
                                     case_change_action="UPPER"),
    "RegexFullMatch": lambda n: op("RegexFullMatch", [np.array(["ab"] * (n // 1024), object)],
                                   pattern="(a|b)*", opset=20),
    "RandomNormal": lambda n: op("RandomNormal", [], shape=[n // 4]),
    "RandomNormal double": lambda n: op("RandomNormal", [], shape=[n // 8], dtype=D),
    "RandomUniformLike": lambda n: op("RandomUniformLike", [np.ones(n // 8, np.float32)], dtype=D),
    "Bernoulli": lambda n: op("Bernoulli", [np.full(n // 8, 0.5, np.float32)], dtype=D),
    "Multinomial": lambda n: op("Multinomial", [ones(1, 4)], sample_size=n // 4),
    "Unique": lambda n: op("Unique", [np.zeros(n // 8, np.int8)], count=4),
    "Unique along an axis": lambda n: op("Unique", [np.zeros((n // 8, 1), np.int8)], count=4, axis=0),
    "TfIdfVectorizer": lambda n: op(
        "TfIdfVectorizer", [ints(1, 2)], mode="TF", min_gram_length=1, max_gram_length=1, max_skip_count=0,
        ngram_counts=[0], ngram_indexes=[max(n // 4 - 1, 0)], pool_int64s=[1]),
    "TopK": lambda n: op("TopK", [np.ones(n // 8, np.uint8), ints(n // 8)], count=2),
    "CumSum": lambda n: op("CumSum", [np.ones(n // 8)], [np.array(0)]),
    "NonMaxSuppression": lambda n: op(
        "NonMaxSuppression", [np.zeros((1, max(n // (24 * 1024), 1), 4), np.float32),
                              ones(1, 1024, max(n // (24 * 1024), 1))],
        [ints(1 << 30), np.array([2], np.float32)]) if n < 64 * MIB else op(
        "NonMaxSuppression", [np.zeros((1, 4, 4), np.float32), ones(1, 8, 4)], [ints(1 << 60)]),
    "DequantizeLinear": lambda n: op("DequantizeLinear", [np.ones(n // 4, np.uint8)], [np.float32(1)]),
    "DequantizeLinear of constants": lambda n: op(
        "DequantizeLinear", [], [np.ones(min(n, 64 * MIB) // 4, np.uint8), np.float32(1)]),
    "QuantizeLinear": lambda n: op("QuantizeLinear", [ones(n // 4)], [np.float32(1)]),
    "DynamicQuantizeLinear": lambda n: op("DynamicQuantizeLinear", [ones(n // 4)], count=3),
    "Add": lambda n: op("Add", [np.ones((side(n, 8), 1)), np.ones((1, side(n, 8)))]),
    "Sum": lambda n: op("Sum", [np.ones((side(n, 8), 1)), np.ones((1, side(n, 8)))]),
    "Max": lambda n: op("Max", [np.ones((side(n, 8), 1)), np.ones((1, side(n, 8))), np.ones((1, 1))]),
    "Where": lambda n: op("Where", [np.ones((side(n, 8), 1), bool), np.ones((1, side(n, 8))),
                                     np.ones((1, 1))]),
    "Mod": lambda n: op("Mod", [np.ones((side(n, 8), 1), np.int64), np.ones((1, side(n, 8)), np.int64)]),
    "Pow": lambda n: op("Pow", [np.ones((side(n, 8), 1)), np.ones((1, side(n, 8)))]),
    "Equal, then Cast": lambda n: model(
        [node("Equal", ["a", "b"], ["e"]), node("Cast", ["e"], ["y"], to=D)],
        {"a": np.ones((side(n, 8), 1), np.int64), "b": np.ones((1, side(n, 8)), np.int64)}),
    "MatMul, then ReduceMax": lambda n: model(
        [node("MatMul", ["a", "b"], ["h"]), node("ReduceMax", ["h"], ["y"], keepdims=0)],
        {"a": ones(side(n), 1), "b": ones(1, side(n))}),
    "Gelu": lambda n: op("Gelu", [np.ones(n // 8)], opset=20),
    "Softmax": lambda n: op("Softmax", [ones(64, n // 256)]),
    "LayerNormalization": lambda n: op("LayerNormalization", [ones(64, n // 256), ones(n // 256)]),
    "GatherBlock": lambda n: op("ArrayFeatureExtractor", [ones(n // 1024, 1), np.zeros(256, np.int64)],
                                domain="ai.onnx.ml"),
    "OneHotEncoder": lambda n: op("OneHotEncoder", [np.zeros(n // 4096, np.int64)], domain="ai.onnx.ml",
                                  cats_int64s=list(range(1024))),
    "FeatureVectorizer": lambda n: op("FeatureVectorizer", [ones(1, 1)], domain="ai.onnx.ml",
                                      inputdimensions=[n // 4]),
    "TreeEnsembleRegressor": lambda n: op(
        "TreeEnsembleRegressor", [ones(1, 1)], domain="ai.onnx.ml", n_targets=n // 4, nodes_treeids=[0],
        nodes_nodeids=[0], nodes_featureids=[0], nodes_modes=["LEAF"], nodes_values=[0.0],
        nodes_truenodeids=[0], nodes_falsenodeids=[0], target_treeids=[0], target_nodeids=[0],
        target_ids=[0], target_weights=[1.0]),
    "AffineGrid": lambda n: op("AffineGrid", [ones(1, 2, 3), ints(1, 1, side(n, 8), side(n, 8))], opset=20),
    "GridSample": lambda n: op("GridSample", [ones(1, 64, 2, 2), np.zeros(
        (1, side(n // 64), side(n // 64), 2), np.float32)]),
    "RoiAlign": lambda n: op("RoiAlign", [ones(1, 1, 4, 4), np.array([[0, 0, 3, 3]], np.float32), ints(0)],
                             sampling_ratio=1, output_height=side(n), output_width=side(n)),
    "MaxRoiPool": lambda n: op("MaxRoiPool", [ones(1, 256, 4, 4), np.array([[0, 0, 0, 3, 3]], np.float32)],
                               pooled_shape=[side(n // 256), side(n // 256)]),
    "HannWindow": lambda n: op("HannWindow", [np.array(n // 8)], output_datatype=D),
    "MelWeightMatrix": lambda n: op(
        "MelWeightMatrix", [np.array(side(n)), np.array(2 * side(n)), np.array(16000), np.float32(0),
                            np.float32(8000)]),
    "DFT": lambda n: op("DFT", [ones(1, 4, 1), np.array(n // 8)], axis=1, opset=19),
    "STFT": lambda n: op("STFT", [ones(1, n // 2048, 1)], [np.array(1), ones(256)]),
    "ReduceSum over nothing": lambda n: op("ReduceSum", [ones(n // 4, 0)], [ints(1)]),
    "Compress": lambda n: op("Compress", [np.ones(n // 8), np.ones(n // 8, bool)]),
    "ScatterND": lambda n: op("ScatterND", [np.zeros(n // 8), ints(0).reshape(1, 1), np.ones(1)]),
    "Trilu": lambda n: op("Trilu", [np.ones((side(n, 8), side(n, 8)))]),
    "LSTM": lambda n: op("LSTM", [ones(max(n // 4096, 1), 1, 1)], [ones(1, 1024, 1), ones(1, 1024, 256)],
                         hidden_size=256),
    "Attention scores": lambda n: model(
        [node("MatMul", ["q", "k"], ["s"]), node("Softmax", ["s"], ["p"]), node("MatMul", ["p", "v"], ["y"])],
        {"q": ones(side(n), 1), "k": ones(1, side(n)), "v": ones(side(n), 1)}),
    "many results": lambda n: model(
        [node("Add", ["a", "b"], ["q"])] + [node("Mul", ["q", f"c{i}"], [f"y{i}"]) for i in range(32)],
        {"a": ones(side(n // 8), 1), "b": ones(1, side(n // 8))},
        {f"c{i}": np.full(1, i, np.float32) for i in range(32)}, outputs=[f"y{i}" for i in range(32)]),
    "many interpreted results": lambda n: model(
        [node("Expand", ["x", "s"], [f"y{i}"]) for i in range(32)], {"x": ONE, "s": ints(n // 8)},
        outputs=[f"y{i}" for i in range(32)]),
    "many random results": lambda n: model(
        [node("RandomNormal", [], [f"y{i}"], shape=[n // 64]) for i in range(64)], {"x": ONE},
        outputs=[f"y{i}" for i in range(64)]),
}
CASES.update(GROWING)


def folded(nodes: Sequence[Any], **constants: Any) -> Made:
    """Nodes of constants, to %e, that are computed when the session is made, if at all."""
    return model([*nodes, node("Add", ["e", "x"], ["y"])], {"x": np.ones(1, np.float32)}, constants)


CASES.update({
    "folded Expand": lambda n: folded([node("Expand", ["c", "s"], ["e"])], c=ONE, s=ints(n // 4)),
    "folded ConstantOfShape": lambda n: folded([node("ConstantOfShape", ["s"], ["e"])], s=ints(n // 4)),
    "folded chain": lambda n: folded([
        node("Expand", ["c", "s"], ["h0"]), *(node("Exp", [f"h{i}"], [f"h{i + 1}"]) for i in range(8)),
        node("Identity", ["h8"], ["e"])], c=ONE, s=ints(n // 4)),
    "folded Cast": lambda n: folded([
        node("ConstantOfShape", ["s"], ["b"]), node("Cast", ["b"], ["t"], to=S),
        node("Cast", ["t"], ["e"], to=F)], s=ints(n // 72)),
    "folded NonZero": lambda n: folded([
        node("ConstantOfShape", ["s"], ["b"], value=numpy_helper.from_array(np.array([True]))),
        node("NonZero", ["b"], ["z"]), node("Cast", ["z"], ["e"], to=F)], s=ints(n // 64, *[1] * 7)),
    "folded EyeLike": lambda n: folded([
        node("ConstantOfShape", ["s"], ["b"]), node("EyeLike", ["b"], ["e"])], s=ints(side(n), side(n))),
    "folded MatMul": lambda n: folded([node("MatMul", ["a", "b"], ["e"])], a=ones(side(n), 1),
                                      b=ones(1, side(n))),
    "folded branches": lambda n: folded([
        *(node("Expand", ["c", "s"], [f"h{i}"]) for i in range(32)),
        node("Sum", [f"h{i}" for i in range(32)], ["e"])], c=ONE, s=ints(n // 64)),
})


def repeated(made: Sequence[Any], state: Any, scanned: Sequence[str] = (), kind: Any = None,
             constants: dict[str, Any] | None = None, trips: int = 1 << 20,
             before: Sequence[Any] = ()) -> Made:
    """A Loop over nodes from %s to %t; `scanned`: what its turns gather."""
    def stated(name: str) -> Any:
        if kind is None:
            return info(name, helper.np_dtype_to_tensor_dtype(np.asarray(state).dtype), None)
        return helper.make_tensor_sequence_value_info(name, kind, None)
    body = helper.make_graph(
        [node("Identity", ["c"], ["d"]), *made], "body", [info("i", L, []), info("c", B, []), stated("s")],
        [info("d", B, []), stated("t"), *(info(name, F, None) for name in scanned)])
    outputs = [f"y{i}" for i in range(len(scanned))]
    last = ["y"] if kind is None else ["q"]
    nodes = [*before, node("Loop", ["n", "", "x" if not before else "e"], last + outputs, body=body)]
    if kind is not None:
        nodes.append(node("SequenceLength", ["q"], ["y"]))
    return model(nodes, {"x": state}, {"n": np.array(trips), **(constants or {})}, outputs=["y", *outputs])


@case
def a_loop_gathers(n: int) -> Made:
    return repeated([node("Add", ["s", "s"], ["t"]), node("Mul", ["s", "s"], ["g"])], ones(n // 256), ["g"],
                    trips=64)


@case
def a_loop_gathers_several(n: int) -> Made:
    names = [f"g{i}" for i in range(8)]
    return repeated([node("Add", ["s", "s"], ["t"]), *(node("Mul", ["s", "s"], [g]) for g in names)],
                    ones(n // 1024), names, trips=64)


@case
def a_loop_doubles(n: int) -> Made:
    return repeated([node("Concat", ["s", "s"], ["t"], axis=0)], ones(1), trips=max(n // 4, 1).bit_length())


@case
def a_loop_doubles_text(n: int) -> Made:
    return repeated([node("StringConcat", ["s", "s"], ["t"])], np.array(["a"], object), trips=n.bit_length())


@case
def a_loop_fills_a_sequence(n: int) -> Made:
    return repeated([node("Mul", ["x", "x"], ["g"]), node("SequenceInsert", ["s", "g"], ["t"])],
                    ones(n // 512), kind=F, trips=64, before=[node("SequenceEmpty", [], ["e"], dtype=F)])


@case
def a_scan_gathers(n: int) -> Made:
    body = helper.make_graph([node("Expand", ["a", "s"], ["b"])], "body", [info("a", F, [1])],
                             [info("b", F, None)], [numpy_helper.from_array(ints(n // 256), "s")])
    return model([node("Scan", ["x"], ["y"], body=body, num_scan_inputs=1)], {"x": ones(64, 1)})


@case
def a_sequence_is_mapped(n: int) -> Made:
    body = helper.make_graph([node("Expand", ["a", "s"], ["e"]), node("Exp", ["e"], ["b"])], "body",
                             [info("a", F, None)], [info("b", F, None)],
                             [numpy_helper.from_array(ints(n // 256), "s")])
    return model([node("SplitToSequence", ["x"], ["q"]), node("SequenceMap", ["q"], ["r"], body=body),
                  node("SequenceLength", ["r"], ["y"])], {"x": ones(64)})


@case
def a_split_makes_many(n: int) -> Made:
    return model([node("SplitToSequence", ["x"], ["q"]), node("SequenceLength", ["q"], ["y"])],
                 {"x": ones(n // 128)})


@case
def a_sequence_is_stacked(n: int) -> Made:
    return model([node("SequenceConstruct", ["x"] * 64, ["q"]),
                  node("ConcatFromSequence", ["q"], ["y"], axis=0, new_axis=1)], {"x": ones(n // 256)})


def resident(word: str) -> int:
    """A line of this process's status, in bytes."""
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith(word))


def measured(name: str, size: int, codegen: bool) -> tuple[str, int]:
    """How it went, and by how much resident memory rose while the session was made and run, beyond what its
    model and feeds take, and the compiler for a small one of its kind."""
    if size > _SMALL:
        measured(name, _SMALL, codegen)
    made, feeds = CASES[name](size)
    data = made.SerializeToString()
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")
    before = resident("VmRSS")
    try:
        session = ort.InferenceSession(data, limits=LIMITS, providers=[
            ("CPUExecutionProvider", {"use_codegen": str(int(codegen))})])
        session.run(None, feeds)
        said = "ran"
    except errors.ALL as error:
        said = f"refused: {type(error).__name__}: " + str(error).splitlines()[0][-90:]
    except Exception as error:
        said = f"untyped: {type(error).__name__}: {error}"
    return said, resident("VmHWM") - before


def in_child(name: str, size: int, codegen: bool, seconds: float = 60.0) -> tuple[str, int]:
    """`measured` in a process of its own."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        signal.alarm(40)
        try:
            said, peak = measured(name, size, codegen)
        except BaseException as error:
            said, peak = f"broken: {type(error).__name__}: {error}", 0
        os.write(write, f"{peak} {said}".encode("utf-8", "replace")[:4000])
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as file:
        text = file.read()
    _, status = os.waitpid(child, 0)
    if status or not text:
        return f"crashed: {status}", 0
    peak, _, said = text.partition(" ")
    return said, int(peak)


def warm() -> None:
    """Have what every session needs in memory before children are measured."""
    warnings.simplefilter("ignore")
    logging.disable(50)
    for codegen in (False, True):
        for name in ("Add", "MatMul", "Softmax"):
            measured(name, 4096, codegen)


def main() -> None:
    warm()
    names = sys.argv[1:] or list(CASES)
    for name, (scale, size), codegen in itertools.product(names, SIZES.items(), (False, True)):
        start = time.monotonic()
        said, peak = in_child(name, size, codegen)
        seconds = f"{time.monotonic() - start:.1f} s"
        print(f"{peak}", f"{peak / LIMITS.max_total_bytes:.2f} of the limit", seconds, name, scale,
              "generated" if codegen else "interpreted", said[:160], sep="\t", flush=True)


if __name__ == "__main__":
    main()
