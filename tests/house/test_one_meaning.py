"""A fact about an operator stands in its definition and nowhere else: defaults of attributes, and what an
activation is that another operator names."""

from __future__ import annotations

import ast
import functools
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from sources import FILES, SOURCE, named, parsed

import orthrus
from orthrus.ops.contrib import fused
from orthrus.ops.define import Op, defined
from orthrus.ops.nn import rnn

ALLOWED = {
    "tools/pytorch_export_contrib_ops.py: approximate": "PyTorch's, whose exporter leaves it out",
    "ops/nn/geometry.py: auto_pad": "windows of operators without the attribute, such as a global pool",
    "ops/tensor/cast.py: round_mode": "conversions that no node asked for",
    "providers/iree/claims.py: mode": "a value with which another attribute means something",
    "quantization/execution_providers/qnn/fusion_lpnorm.py: epsilon": "the least norm, a bound of a Clip",
    "quantization/matmul_nbits_quantizer.py: block_size": "onnxruntime's parameter, by chance as Gather's",
    "quantization/matmul_nbits_quantizer.py: bits": "onnxruntime's parameter, by chance as MatMulNBits'",
    "quantization/matmul_4bits_quantizer.py: block_size": "onnxruntime's parameter, by chance as Gather's",
}
"""`file: attribute` of what looks like a second default, and what it is instead."""
ASKS = frozenset({"get", "attribute", "pop", "setdefault"})

OPERATORS = [*(op for op in defined() if op.own), *rnn.OPERATORS]
DEFAULTS: dict[str, set[Any]] = {}
"""What an attribute of that name is by default, in any operator."""
BY_OPERATOR: dict[str, set[float]] = {}
"""The float defaults of an operator by its name in lower case."""
for _op in OPERATORS:
    for _name, _value in _op.defaults.items():
        if isinstance(_value, str | int | float):
            DEFAULTS.setdefault(_name, set()).add(_value)
        if isinstance(_value, float):
            BY_OPERATOR.setdefault(_op.name.lower(), set()).add(_value)


FLOATS = {v for values in BY_OPERATOR.values() for v in values if v not in (0.0, 1.0)}


def place(function: Any) -> tuple[str, int]:
    code = inspect.unwrap(function).__code__
    return code.co_filename, code.co_firstlineno


BODIES = {place(op.body): op for op in OPERATORS}
RULES = {place(rule): op for op in OPERATORS for rule in (op._infer, op._prepare) if rule is not None}
"""Rules for types, which are given every attribute, and preparations, which define some of their own."""


def literals(node: ast.AST) -> Iterator[Any]:
    """The numbers and strings in an expression, as an attribute holds them."""
    for each in ast.walk(node):
        value = each.value if isinstance(each, ast.Constant) else None
        if isinstance(value, bytes):
            yield value.decode()
        elif isinstance(value, str):
            yield value
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield from (float(np.float32(v)) if isinstance(v, float) else v for v in (value, -value))


def tells(value: Any) -> bool:
    """Whether a literal says something by itself; nought and one stand for many things."""
    return value not in (0, 1, "")


def says_again(name: str, node: ast.AST) -> bool:
    return any(type(v) is type(d) and v == d for v in literals(node) for d in DEFAULTS.get(name, ()))


def asked(node: ast.AST) -> str:
    """The attribute that an expression asks for: `attrs["alpha"]`, `node.attribute("alpha")`, `alpha`."""
    match node:
        case ast.Name(id=name) | ast.Subscript(slice=ast.Constant(value=str(name))):
            return name
        case ast.Call(func=ast.Attribute(attr=how), args=[ast.Constant(value=str(name)), *_]) if how in ASKS:
            return name
        case ast.Call(func=ast.Name(id="attribute"), args=[_, ast.Constant(value=str(name))]):
            return name
    return ""


def told_twice(tree: ast.AST, file: str) -> Iterator[tuple[ast.AST, str]]:
    """Where a default stands that a definition says: beside a question for the attribute, instead of what is
    None or false, as a parameter, in a pair with its name, in a table by operators."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(attr=how), args=[ast.Constant(value=str(name)), default, *_]):
                if how in ASKS and says_again(name, default):
                    yield node, name
            case ast.BoolOp(op=ast.Or(), values=[first, ast.Constant(value=value) as default]):
                if value and says_again(asked(first), default):
                    yield node, asked(first)
            case ast.IfExp(test=ast.Compare(left=left, comparators=[ast.Constant(value=None)]),
                           body=ast.Constant(value=value) as default):
                if (file.startswith("ops/") and isinstance(left, ast.Name)) or not tells(value):
                    continue
                if says_again(asked(left), default) or any(v in FLOATS for v in literals(default)):
                    yield node, asked(left)
            case ast.Tuple(elts=[ast.Constant(value=str(name)), ast.Constant() as default]):
                if says_again(name, default):
                    yield node, name
            case ast.Dict(keys=keys, values=values):
                for key, value in zip(keys, values, strict=True):
                    if isinstance(key, ast.Constant) and isinstance(key.value, str):
                        known = BY_OPERATOR.get(key.value.lower(), set())
                        if any(isinstance(v, float) and tells(v) and v in known for v in literals(value)):
                            yield value, key.value
            case ast.FunctionDef():
                yield from _parameters(node, file)


def _number(node: ast.AST | None) -> Any:
    """What a literal is; 0 for any other expression."""
    match node:
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=value)) | ast.Constant(value=value):
            return value
    return 0


def _parameters(node: ast.FunctionDef, file: str) -> Iterator[tuple[ast.AST, str]]:
    line = node.decorator_list[0].lineno if node.decorator_list else node.lineno
    at = str(SOURCE / file), line
    if at in BODIES:
        yield from _inherited(node, BODIES[at])
        return
    rule = RULES.get(at)
    own = set(rule.defaults) - rule._body_takes if rule is not None and rule._prepare is not None else ()
    args = node.args
    for parameter, default in (*zip(args.args[::-1], args.defaults[::-1], strict=False),
                               *zip(args.kwonlyargs, args.kw_defaults, strict=True)):
        if default is not None and parameter.arg not in own and says_again(parameter.arg, default) and (
                rule is not None or tells(_number(default))):
            yield default, parameter.arg


def _inherited(node: ast.FunctionDef, op: Op) -> Iterator[tuple[ast.AST, str]]:
    """What a `QLinearLeakyRelu` says of its own that is said of the `LeakyRelu` in it."""
    inner = [it for it in OPERATORS if op.name.endswith(it.name) and op.name != it.name]
    for parameter, default in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True):
        value = float(np.float32(_number(default))) if isinstance(_number(default), float) else 0.0
        if tells(value) and any(it.defaults.get(parameter.arg) == value for it in inner):
            assert default is not None
            yield default, parameter.arg


@functools.cache
def found(path: Path) -> dict[str, list[str]]:
    """By `file: attribute`, the places where a default stands that a definition says."""
    file = named(path)
    made: dict[str, list[str]] = {}
    for node, what in told_twice(parsed(path), file):
        made.setdefault(f"{file}: {what}", []).append(f"line {node.lineno}: {ast.unparse(node)}")  # type: ignore[attr-defined]
    return made


@pytest.mark.slow
def test_no_default_is_written_twice() -> None:
    assert not {key: places for path in FILES for key, places in found(path).items() if key not in ALLOWED}


@pytest.mark.slow
def test_the_exceptions_are_needed() -> None:
    assert ALLOWED.keys() <= {key for path in FILES for key in found(path)}


WRITTEN_TWICE = (
    'attrs.get("alpha", 0.01)', 'node.attribute("epsilon", 1e-5)', 'a.get("axis", 1 if old else -1)',
    'conv.attribute("group") or 1', '1e-5 if epsilon is None else epsilon',
    'mul(x, 0.01 if slope is None else slope)', '{"LeakyRelu": (("alpha", 0.01),)}',
    '{"hardsigmoid": (0.2, 0.5)}', '{"LeakyRelu": lambda x: where(x < 0, x * given(0, 0.01), x)}',
    'def quick(x, *, alpha=1.702): pass', 'if attrs.get(name) != ("softcap", 0.0)[1]: pass')


@pytest.mark.parametrize("code", WRITTEN_TWICE)
def test_a_second_default_is_seen(code: str) -> None:
    assert list(told_twice(ast.parse(code), "lowering/rules/some.py"))


def _single(kind: str, domain: str = "", constants: dict[str, np.ndarray] | None = None, **attrs: Any) -> Any:
    """What a node makes of VALUES, its first input; the others are constant."""
    node = helper.make_node(kind, ["x", *(constants or {})], ["y"], domain=domain, **attrs)
    shape = {"RNN": [-1, 1, 1], "FusedGemm": [-1, 1]}.get(kind, [1, 1, -1, 1])
    x = VALUES.reshape(shape)
    graph = helper.make_graph(
        [node], "one", [helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(v, k) for k, v in (constants or {}).items()])
    made = helper.make_model(graph, ir_version=10, opset_imports=[
        helper.make_opsetid("", 6 if kind == "Clip" else 20), helper.make_opsetid("com.microsoft", 1)])
    options = orthrus.SessionOptions()
    options.graph_optimization_level = orthrus.GraphOptimizationLevel.ORT_DISABLE_ALL
    return orthrus.InferenceSession(made.SerializeToString(), options).run(None, {"x": x})[0].ravel()


VALUES = np.array([-3.5, -1.0, -0.3, -0.0, 0.2, 0.5, 1.0, 2.75, 9.0], np.float32)
ONE = np.ones((1, 1), np.float32)


@pytest.mark.parametrize("name", sorted(fused.ACTIVATIONS))
def test_a_fused_activation_is_the_operator(name: str) -> None:
    expected = _single(name)
    conv = _single("FusedConv", "com.microsoft", {"w": ONE.reshape(1, 1, 1, 1)}, activation=name)
    gemm = _single("FusedGemm", "com.microsoft", {"w": ONE}, activation=name)
    np.testing.assert_array_equal(conv, expected)
    np.testing.assert_array_equal(gemm, expected)


@pytest.mark.parametrize("name", [op.name for op in rnn.OPERATORS if op in set(defined())])
def test_an_activation_in_a_layer_is_the_operator(name: str) -> None:
    weights = {"w": ONE[None], "r": np.zeros((1, 1, 1), np.float32)}
    layer = _single("RNN", "", weights, activations=[name], hidden_size=1)
    np.testing.assert_array_equal(layer, _single(name))


LISTS = {
    "lowering/lower.py": "exact, so that floats are the same by any way of computing them",
    "optimize/pattern.py": "commute, which no definition says",
    "optimize/rules/upgrade.py": "broadcast by an attribute before opset 7",
    "providers/spacemit/claims.py": "what SpacemiT lists for its provider",
    "transformers/model/convert_to_packing_mode.py": "what works word by word, products and norms too",
}
"""Files with a list of elementwise operators, and what else the list says."""


def _lists(path: Path) -> bool:
    """Whether a literal names eight elementwise operators or more."""
    names = {op.name for op in OPERATORS if op.broadcasts}
    return any(sum(isinstance(e, ast.Constant) and e.value in names for e in node.elts) >= 8
               for node in ast.walk(parsed(path))
               if isinstance(node, ast.Tuple | ast.List | ast.Set))


@pytest.mark.slow
def test_which_operators_are_elementwise_the_definitions_say() -> None:
    found = {named(path) for path in FILES if _lists(path)}
    assert found == LISTS.keys()
