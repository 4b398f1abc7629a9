"""Types by the rules of shapes against ONNX's own inference: whatever a rule says, ONNX says too, or says
nothing."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from draws import draws
from first_samples import FIRST
from hypothesis import given
from hypothesis import strategies as st

from orthrus.ir import ElementType, No, Node, TensorType, Value, element_of
from orthrus.ops import find, infer
from orthrus.ops.shape_types import ELEMENTS, UNASKED, _Names, by_shape
from orthrus.optimize.dimensions import Dimensions
from orthrus.shapes.by_operator import rule_of
from orthrus.shapes.expression import named
from orthrus.shapes.facts import Facts
from orthrus.testing.samples import Sample, samples

DIMS = st.one_of(st.integers(0, 6), st.sampled_from(["N", "M", None]), st.sampled_from([1, 2, 4]))
SHAPES = st.lists(DIMS, max_size=4).map(tuple)
FEW = st.lists(st.integers(-5, 6), max_size=4)
AXIS = st.integers(-5, 4)


SAMPLES: dict[tuple[str, str], list[Sample]] = {}
for _sample in samples():
    SAMPLES.setdefault((_sample.domain, _sample.op), []).append(_sample)
NAMES = sorted(name for domain, name in ELEMENTS if not domain and name not in UNASKED)


def tensor(shape: Any, elem: ElementType = ElementType.FLOAT) -> Value:
    return Value("x", TensorType(elem, shape))


def ints(values: list[int]) -> Value:
    array = np.array(values, np.int64)
    return Value("i", TensorType(ElementType.INT64, array.shape), None, array)


def conv(draw: Any, attrs: dict[str, Any]) -> list[Value | None]:
    rank = draw(st.integers(0, 4))
    few = st.lists(st.integers(0, 3), min_size=1, max_size=3)
    for name in draw(st.lists(st.sampled_from(["strides", "dilations", "kernel_shape", "pads"]), max_size=2)):
        count = draw(st.sampled_from([max(rank - 2, 0), 1]))
        attrs[name] = draw(st.lists(st.integers(0, 3), min_size=count, max_size=count)) * (
            2 if name == "pads" else 1) if draw(st.booleans()) else draw(few)
    if "pads" not in attrs and draw(st.booleans()):
        attrs["auto_pad"] = draw(st.sampled_from(["NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"]))
    shape = st.lists(DIMS, min_size=rank, max_size=rank).map(tuple)
    other = shape if draw(st.booleans()) else SHAPES
    return [tensor(draw(shape)), tensor(draw(other))]


def quantizing(draw: Any, name: str, version: int, shape: Any, attrs: dict[str, Any]) -> list[Value | None]:
    if draw(st.booleans()) and version >= 13:
        attrs["axis"] = draw(AXIS)
    half = version >= 19 and name == "DequantizeLinear" and draw(st.booleans())
    scale = tensor(draw(SHAPES), ElementType.FLOAT16 if half else ElementType.FLOAT)
    zero = tensor((), ElementType.INT8)
    x = tensor(shape, ElementType.FLOAT if name == "QuantizeLinear" else ElementType.INT8)
    return [x, scale, *[zero] * draw(st.booleans())]


def padding(draw: Any, version: int, rank: int, attrs: dict[str, Any]) -> list[Value | None]:
    axes = draw(st.lists(AXIS, max_size=3)) if version >= 18 and draw(st.booleans()) else None
    count = 2 * (rank if axes is None else len(axes)) + draw(st.sampled_from([0, 0, 0, 1, 2]))
    pads = draw(st.lists(st.integers(-2, 3), min_size=count, max_size=count))
    if version < 11:
        attrs["pads" if version > 1 else "paddings"] = pads
        return []
    given = ints(pads) if draw(st.booleans()) else Value("i", TensorType(ElementType.INT64, (count,)))
    return [given, *([] if axes is None else [None, ints(axes)])]


RECURRENT = {"GRU": 3, "LSTM": 4, "RNN": 1}


def recurrent(draw: Any, gates: int, version: int, attrs: dict[str, Any]) -> list[Value | None]:
    if draw(st.booleans()):
        attrs["hidden_size"] = draw(st.integers(1, 3))
    if draw(st.booleans()):
        attrs["direction"] = draw(st.sampled_from(["forward", "reverse", "bidirectional", "odd"]))
    if version >= 14 and draw(st.booleans()):
        attrs["layout"] = draw(st.integers(0, 1))
    three, hidden = st.lists(DIMS, min_size=3, max_size=3).map(tuple), draw(st.integers(1, 3))
    usual = [draw(three), (1, gates * hidden, draw(DIMS)), (1, gates * hidden, hidden)]
    return [tensor(shape if draw(st.integers(0, 3)) else draw(SHAPES)) for shape in usual]


@st.composite
def cases(draw: Any) -> tuple[str, int, list[Value | None], dict[str, Any]]:
    name = draw(st.sampled_from(NAMES))
    version = draw(st.sampled_from([1, 11, 13, 18, 23]))
    shape = draw(SHAPES)
    x, attrs = tensor(shape), dict[str, Any]()
    inputs: list[Value | None] = [x]
    if name == "Transpose" and draw(st.booleans()):
        attrs["perm"] = draw(st.permutations(range(len(shape))) if draw(st.booleans()) else FEW)
    elif name in ("Softmax", "LogSoftmax", "Gather", "Concat", "Flatten"):
        attrs["axis"] = draw(AXIS)
    if name == "Cast":
        attrs["to"] = draw(st.sampled_from([1, 7, 10, 9, 99]))
    if name == "Shape" and version >= 15 and draw(st.booleans()):
        attrs.update(start=draw(st.integers(-5, 5)), end=draw(st.integers(-5, 5)))
    if name in ("Gemm", "MatMul", "MatMulInteger"):
        elem = ElementType.INT8 if name == "MatMulInteger" else ElementType.FLOAT
        version = max(version, 10 if name == "MatMulInteger" else 1)
        inputs = [tensor(shape, elem), tensor(draw(SHAPES), elem)]
    if name == "Gemm":
        attrs.update(transA=draw(st.integers(0, 1)), transB=draw(st.integers(0, 1)))
    if name == "Gather":
        inputs.append(tensor(draw(SHAPES), ElementType.INT64))
    if name == "Concat":
        other = list(shape)
        for i in draw(st.lists(st.integers(0, 3), max_size=1)):
            if i < len(other):
                other[i] = draw(DIMS)
        inputs.append(tensor(tuple(other)))
    if name in ("Squeeze", "Unsqueeze"):
        if version >= 13:
            inputs.append(ints(draw(FEW)))
        else:
            attrs["axes"] = draw(FEW)
    if name.startswith("Reduce"):
        attrs["keepdims"] = draw(st.integers(0, 1))
        by_input = version >= (13 if name == "ReduceSum" else 18)
        if by_input and draw(st.booleans()):
            attrs["noop_with_empty_axes"] = 1
        if by_input:
            inputs += [ints(draw(FEW))] * draw(st.integers(0, 1))
        elif draw(st.booleans()):
            attrs["axes"] = draw(FEW)
    if name == "Reshape":
        inputs.append(ints(draw(st.lists(st.integers(-2, 6), max_size=4))))
        version = max(version, 5)
    if name == "ConstantOfShape":
        inputs = [ints(draw(st.lists(st.integers(-1, 6), max_size=4)))]
        version = max(version, 9)
    if name == "Slice":
        n = draw(st.integers(1, 2))
        version = max(version, 10)
        inputs += [ints(draw(st.lists(st.integers(-8, 8), min_size=n, max_size=n))) for _ in range(2)]
        inputs.append(ints(draw(st.lists(st.integers(-4, 3), min_size=n, max_size=n))))
        inputs.append(ints(draw(st.lists(st.integers(-2, 3), min_size=n, max_size=n))))
    if name == "Conv":
        inputs = conv(draw, attrs)
    if name in ("QuantizeLinear", "DequantizeLinear"):
        version = max(version, 10)
        inputs = quantizing(draw, name, version, shape, attrs)
    if name == "DynamicQuantizeLinear":
        version = max(version, 11)
    if name in ("ArgMax", "ArgMin"):
        attrs.update(axis=draw(AXIS), keepdims=draw(st.integers(0, 1)))
    if name == "BatchNormalization":
        each = st.one_of(DIMS.map(lambda d: (d,)), st.just(shape[1:2]), SHAPES)
        inputs += [tensor(draw(each)) for _ in range(draw(st.sampled_from([4, 4, 3])))]
    if name == "Pad":
        inputs += padding(draw, version, len(shape), attrs)
    if name in RECURRENT:
        inputs = recurrent(draw, RECURRENT[name], version, attrs)
    if name in ("GatherElements", "Hardmax", "LpNormalization", "OneHot", "RMSNormalization",
                "ScatterElements", "Split", "TopK") and draw(st.booleans()):
        attrs["axis"] = draw(AXIS)
    if name == "Split":
        version = max(version, 2)
        parts = draw(st.lists(st.integers(-1, 4), max_size=3))
        if version >= 18 and draw(st.booleans()):
            attrs["num_outputs"] = draw(st.integers(0, 3))
        elif draw(st.booleans()) and version < 13:
            attrs["split"] = parts
        elif draw(st.booleans()) and version >= 13:
            inputs.append(draw(sizes_told(parts)))
    if name in ("Tile", "TopK", "OneHot"):
        count = draw(st.integers(0, 7)) if draw(st.booleans()) else len(shape)
        told = draw(st.lists(st.integers(-1, 5), min_size=1, max_size=1) if name != "Tile" else st.lists(
            st.integers(-1, 5), min_size=count, max_size=count))
        inputs.append(draw(sizes_told(told)))
        version = max(version, {"Tile": 6, "TopK": 10, "OneHot": 9}[name])
    if name == "OneHot":
        inputs[0] = tensor(shape, ElementType.INT64)
        inputs.append(tensor(draw(st.sampled_from([(2,), (2,), (3,), ("N",), ()]))))
    if name == "Range":
        version = max(version, 11)
        one = st.integers(-4, 6).map(lambda n: Value("i", TensorType(ElementType.INT64, ()), None,
                                                     np.array(n, np.int64)))
        unknown = st.sampled_from([(), (1,)]).map(lambda shape: tensor(shape, ElementType.INT64))
        inputs = [draw(st.one_of(one, unknown)) for _ in range(3)]
    if name in ("DepthToSpace", "SpaceToDepth"):
        attrs["blocksize"] = draw(st.integers(0, 3))
        inputs = [tensor(draw(st.one_of(SHAPES, st.lists(DIMS, min_size=4, max_size=4).map(tuple))))]
    if name in ("GatherElements", "ScatterElements", "ScatterND", "CumSum"):
        version = max(version, 11)
        inputs.append(tensor(draw(SHAPES), ElementType.INT64))
        if name.startswith("Scatter"):
            inputs.append(tensor(draw(SHAPES)))
    if name == "InstanceNormalization":
        inputs += [tensor(draw(SHAPES)) for _ in range(2)]
    if name == "NonMaxSuppression":
        version = max(version, 10)
        inputs.append(tensor(draw(SHAPES)))
    if name == "NonZero":
        version = max(version, 9)
    if name == "Trilu":
        version = max(version, 14)
    if name == "LRN":
        attrs["size"] = 3
    if name == "RMSNormalization":
        version = 23
        inputs.append(tensor(draw(SHAPES)))
    return name, version, inputs, attrs


@st.composite
def sizes_told(draw: Any, numbers: list[int]) -> Value:
    """A vector of them, known, known in part, or not."""
    how = draw(st.sampled_from(["known", "known", "unknown", "in part"]))
    if how == "known":
        return ints(numbers)
    value = Value("i", TensorType(ElementType.INT64, (len(numbers),)))
    if how == "in part":
        value.content = tuple(n if draw(st.booleans()) else "N" for n in numbers)
    return value


def agree(ours: TensorType, theirs: Any) -> bool:
    """Whether a type says what another does where that one says anything. ONNX has a name for the length of
    any slice of it."""
    if theirs is None or theirs.shape is None:
        return theirs is None or ours.elem == theirs.elem
    return ours.elem == theirs.elem and len(ours.shape or ()) == len(theirs.shape) and all(
        b is None or a == b or (isinstance(b, str) and not isinstance(a, str))
        for a, b in zip(ours.shape or (), theirs.shape, strict=True))


def shape_of(inputs: list[Value | None]) -> tuple[Any, ...]:
    return inputs[0].type.shape  # type: ignore[union-attr,return-value]


@draws(1000)
@given(cases(), st.sampled_from([False, False, True]))
def test_a_rule_says_what_onnx_says(case: Any, blind: bool) -> None:
    name, opset, inputs, attrs = case
    schema = infer.schemas.lookup("", name, opset)
    if isinstance(schema, No):
        return
    node = Node(name, "", schema.version, find("", name, schema.version), inputs, attrs)
    count = {"DynamicQuantizeLinear": 3, "TopK": 2, "Split": len(shape_of(inputs)) % 3 + 1}.get(name, 1)
    node.outputs = [Value(f"y{i}", None, node) for i in range(count)]
    first = inputs[0]
    if blind and first is not None:
        inputs[0] = Value("x", TensorType(first.elem, None))
    ruled = by_shape(node, inputs)
    if ruled is not None:
        said = infer._by_schema(node, inputs, {"": opset})
        assert all(map(agree, ruled, said)), (node, ruled, said)


@pytest.mark.parametrize("name", NAMES)
def test_every_operator_is_typed_by_its_rule(name: str) -> None:
    x, attrs = tensor((2, "N", 1)), {}
    quantization = [tensor(()), tensor((), ElementType.INT8)]
    more: dict[str, list[Value]] = {
        "MatMul": [tensor((1, 4))], "MatMulInteger": [tensor((1, 4))],
        "Gather": [tensor((), ElementType.INT64)], "Concat": [tensor((3, "N", 1))],
        "Reshape": [ints([2, -1, 1])], "Squeeze": [ints([2])], "Unsqueeze": [ints([0])],
        "Slice": [ints([0]), ints([1]), ints([0])], "Conv": [tensor((4, "N", 1))],
        "QuantizeLinear": quantization, "DequantizeLinear": quantization,
        "BatchNormalization": [tensor(("N",))] * 4, "Pad": [ints([1] * 6)], "Tile": [ints([1, 2, 3])],
        "GatherElements": [tensor((1, 1, 1), ElementType.INT64)], "TopK": [ints([1])],
        "OneHot": [ints([4]), tensor((2,))],
        **{each: [tensor((1, 2 * gates, 1)), tensor((1, 2 * gates, 2))] for each, gates in RECURRENT.items()}}
    if name == "ConstantOfShape":
        x = ints([2, 3])
    if name == "Gemm":
        x, more = tensor((2, "N")), {"Gemm": [tensor(("N", 3))]}
    if name == "Range":
        x = tensor((), ElementType.INT64)
        more["Range"] = [x, x]
    if name in ("DepthToSpace", "SpaceToDepth"):
        x, attrs = tensor((1, 4, "N", 2)), {"blocksize": 2}
    if name in ("Concat", "Cast"):
        attrs = {"axis": 0} if name == "Concat" else {"to": 7}
    inputs = [x, *more.get(name, [])]
    node = Node(name, "", 13, find("", name, 13), inputs, attrs)
    node.outputs = [Value("y", None, node)] * (1 + (name == "Split"))
    assert by_shape(node, inputs)


@pytest.mark.parametrize("kind", sorted(ELEMENTS), ids="::".join)
def test_results_are_of_the_types_that_are_told(kind: tuple[str, str]) -> None:
    """With every shape and every index known, with shapes alone, and with neither."""
    for sample in SAMPLES.get(kind, []):
        made = sample.reference()
        for shapes, constants in ((True, True), (True, False), (False, False)):
            inputs = [None if a is None else Value(
                f"i{k}", TensorType(element_of(a.dtype), a.shape if shapes else None), None,
                a if constants and a.dtype.kind == "i" else None) for k, a in enumerate(sample.inputs)]
            node = Node(sample.op, sample.domain, sample.schema.version,
                        find(sample.domain, sample.op, sample.version), inputs, dict(sample.attrs))
            node.outputs = [Value(f"o{k}") for k in range(len(made))]
            for told, array in zip(infer.infer_node(node, inputs, {"": 23}), made, strict=False):
                assert isinstance(told, TensorType) and told.elem == element_of(array.dtype), sample
                dims = told.shape if told.shape is not None else (None,) * array.ndim
                assert len(dims) == array.ndim, sample
                assert all(d is None or d == n for d, n in zip(dims, array.shape, strict=True)), sample
                assert not constants or told.shape is not None, sample


def named_apart(sample: Sample) -> Iterator[list[Any]]:
    """The shapes of a sample's inputs, with a name for every dimension, for those of each input, and for each
    one."""
    places = [(k, i) for k, a in enumerate(sample.inputs) if a is not None for i in range(a.ndim)]
    for chosen in ({*places}, *({p for p in places if p[0] == k} for k in range(len(sample.inputs))),
                   *({p} for p in places)):
        yield [a if a is None else tuple(f"{k} {i}" if (k, i) in chosen else n
                                         for i, n in enumerate(a.shape)) for k, a in enumerate(sample.inputs)]


@pytest.mark.parametrize("kind", FIRST)
def test_sizes_that_are_told_come_out(kind: str) -> None:
    """Whichever of those of the inputs have names instead."""
    for sample in FIRST[kind].values():
        sizes = {f"{k} {i}": n for k, a in enumerate(sample.inputs) if a is not None
                 for i, n in enumerate(a.shape)}
        for shapes in named_apart(sample):
            inputs = [None if a is None else Value(f"i{k}", TensorType(element_of(a.dtype), shape))
                      for k, (a, shape) in enumerate(zip(sample.inputs, shapes, strict=True))]
            node = Node(sample.op, sample.domain, sample.schema.version,
                        find(sample.domain, sample.op, sample.version), inputs, dict(sample.attrs))
            node.outputs = [Value(f"o{k}") for k in range(sample.outputs)]
            try:
                told = infer.infer_node(node, inputs, {"": sample.version})
            except infer.InferenceError:
                continue
            for type_, array in zip(told, sample.reference(), strict=False):
                if isinstance(type_, TensorType) and type_.shape is not None:
                    assert len(type_.shape) == array.ndim, (str(sample), shapes, type_)
                    assert all(sizes.get(d, n) == n if isinstance(d, str) else d in (None, n)
                               for d, n in zip(type_.shape, array.shape, strict=True)), (
                                   str(sample), shapes, type_)


@pytest.mark.parametrize("dtype", ["int32", "int64", "float32", "float64"])
def test_elements_that_are_followed_have_their_type(dtype: str) -> None:
    """What is known of a size that was cast is told in the type it was cast to."""
    zero, one = (Value(name, TensorType(element_of(dtype), ()), const=np.array(n, dtype))
                 for name, n in (("zero", 0), ("one", 1)))
    size = Value("size", TensorType(element_of(dtype), ()))
    size.content = (8,)
    node = Node("Range", "", 11, find("", "Range", 11), [zero, size, one], {})
    node.outputs = [Value("y")]
    for types in (infer.infer_node, infer._by_schema):
        assert types(node, node.inputs, {"": 13}) == [TensorType(element_of(dtype), (8,))]


def test_a_dimension_that_may_be_1_is_not_taken_for_another() -> None:
    x = tensor((1, "N", 1))
    node = Node("Squeeze", "", 13, find("", "Squeeze", 13), [x], {})
    node.outputs = [Value("y")]
    assert infer.infer_node(node, [x], {"": 13}) in ([None], [TensorType(ElementType.FLOAT, None)])
    rule = rule_of(node)
    assert rule is not None
    for context in (Dimensions({"": 13}, []), _Names([x])):
        with pytest.raises(LookupError):
            rule(Facts(node, [[1, named("N"), 1]], [None], context))
