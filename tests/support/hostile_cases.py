"""The hostile cases by name: each is a function that ends silently, or raises AssertionError for a wrong
answer.

`refused` and `either` let typed errors pass only: those of `orthrus.errors`, ValueError, TypeError and
RuntimeError.
"""

from __future__ import annotations

import os
import pathlib
import random
import tempfile
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
from hostile_operators import OPERATORS
from load_cases import model, nested_functions, node, relu, tensor, weight
from onnx import TensorProto, helper, numpy_helper
from test_load_errors import MORE, ROWS
from test_load_external import ATTACKS, written
from test_load_graph import BAD_TENSORS

Case = Callable[[], None]
CASES: dict[str, Case] = {}
F32 = np.float32
A = np.arange(-3, 3, dtype=F32).reshape(2, 3)
I64 = np.int64
LOW = np.iinfo(np.int64).min


def case(name: str) -> Callable[[Case], Case]:
    def register(run: Case) -> Case:
        assert name not in CASES
        CASES[name] = run
        return run
    return register


def session(source: Any) -> Any:
    import orthrus

    if isinstance(source, onnx.ModelProto):
        source = source.SerializeToString()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return orthrus.InferenceSession(source, providers=["CPUExecutionProvider"])


def ran(source: Any, feeds: dict[str, Any] | None = None) -> list[Any]:
    """The outputs of a new session; by default `a` is fed."""
    return session(source).run(None, {"a": A} if feeds is None else feeds)


def typed(error: BaseException) -> bool:
    from orthrus.errors import ALL

    return isinstance(error, (*ALL, ValueError, TypeError, RuntimeError)) and not isinstance(
        error, RecursionError
    )


def either(source: Any, feeds: dict[str, Any] | None = None) -> Any:
    """The outputs, or the typed error."""
    try:
        return ran(source, feeds)
    except Exception as error:
        if typed(error):
            return error
        raise


def refused(source: Any, feeds: dict[str, Any] | None = None) -> None:
    said = either(source, feeds)
    assert isinstance(said, Exception), f"accepted, giving {str(said)[:200]}"


def gives(source: Any, expected: Any, feeds: dict[str, Any] | None = None) -> None:
    found = ran(source, feeds)[0]
    np.testing.assert_array_equal(found, expected)
    assert np.asarray(found).dtype == np.asarray(expected).dtype, (
        f"{found.dtype}, not {np.asarray(expected).dtype}"
    )


# files and containers

@case("1 empty")
def _() -> None:
    refused(b"")


@case("2 random bytes")
def _() -> None:
    for seed in range(200):
        refused(random.Random(seed).randbytes(seed * 7 + 1))


@case("3 truncated anywhere")
def _() -> None:
    big = model(
        [node("Add", ["a", "w"], ["c"], name="n")],
        [tensor("a", (64, 64))],
        initializers=[weight("w", (64, 64))],
    )
    for raw, step in ((relu().SerializeToString(), 1), (big.SerializeToString(), 997)):
        for end in range(0, len(raw) - 1, step):
            either(raw[:end], {})


@case("3 flipped bits")
def _() -> None:
    raw = bytearray(model([node("Conv", ["a", "w"], ["c"], pads=[1, 1, 1, 1])], [tensor("a", (1, 1, 4, 4))],
                          initializers=[weight("w", (1, 1, 3, 3))]).SerializeToString())
    for seed in range(300):
        rng, mutated = random.Random(seed), bytearray(raw)
        for _ in range(rng.randint(1, 4)):
            mutated[rng.randrange(len(raw))] = rng.randrange(256)
        either(bytes(mutated), {"a": np.ones((1, 1, 4, 4), F32)})


@case("4 other messages")
def _() -> None:
    graph = relu().graph
    for message in (weight(), graph, graph.node[0], tensor("a"), helper.make_opsetid("", 1),
                    nested_functions(1).functions[0]):
        refused(message.SerializeToString())


@case("5 lengths and varints")
def _() -> None:
    for raw in (
        b"\x3a\xff\xff\xff\xff\x0f",
        b"\xff" * 20,
        b"\x38\x01",
        b"\x3a\xff\xff\xff\xff\xff\xff\xff\xff\x7f",
        b"\x3a",
        b"\x00",
        b"\x3f",
        b"\x3a\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01",
    ):
        refused(raw)
        refused(raw + b"\0" * 8192)
        either(relu().SerializeToString() + raw)


@case("6 unknown fields")
def _() -> None:
    raw = relu().SerializeToString()
    gives(raw + b"\xc0\x3e\x01", np.maximum(A, 0))
    gives(raw + b"\xc2\x3e\x03abc", np.maximum(A, 0))
    either(raw + b"\xc3\x3e\x08\x01\xc4\x3e")
    refused(raw + b"\xc4\x3e")


@case("7 fields twice")
def _() -> None:
    raw = relu().SerializeToString()
    other = relu()
    other.ClearField("graph"), other.ClearField("opset_import")
    other.ir_version = 8
    gives(raw + other.SerializeToString(), np.maximum(A, 0))
    refused(raw + raw)
    refused(raw + b"\x3a\x00" + relu().SerializeToString())


def wrapped(content: bytes, field: int) -> bytes:
    length, size = bytearray(), len(content)
    while size > 127:
        length.append(size & 127 | 128)
        size >>= 7
    length.append(size)
    tag = bytes([field << 3 & 127 | 2 | 128, field >> 4]) if field > 15 else bytes([field << 3 | 2])
    return tag + bytes(length) + content


@case("8 deep nesting")
def _() -> None:
    for depth in (30, 90, 200, 20_000):
        inner = b""
        for _ in range(depth):
            inner = wrapped(inner, 4) if depth > 90 else wrapped(wrapped(inner, 1), 4)
        made = relu()
        raw = made.SerializeToString() + wrapped(wrapped(b"\x0a\x01z" + wrapped(inner, 2), 11), 7)
        either(raw)
    body = b""
    for _ in range(3000):
        body = wrapped(wrapped(wrapped(body, 6), 5), 1)
    refused(relu().SerializeToString() + wrapped(body, 7))


@case("9 odd names")
def _() -> None:
    raw = model([node("Relu", ["a"], ["XXXX"]), node("Neg", ["XXXX"], ["c"])]).SerializeToString()
    for name in (b"\xff\xfe\xfd\xfc", b"a\0b\0", b"\n\r\t ", b"%s%n", "ü漢".encode()[:4]):
        either(raw.replace(b"XXXX", name))
    long = "n" * (1 << 20)
    gives(model([node("Relu", ["a"], [long], name=long), node("Neg", [long], ["c"])]), -np.maximum(A, 0))


@case("10 paths that are no model files")
def _() -> None:
    with tempfile.TemporaryDirectory() as folder:
        pipe = os.path.join(folder, "pipe")
        os.mkfifo(pipe)
        for path in (
            folder,
            pipe,
            "/dev/zero",
            "/dev/null",
            "/dev/tty",
            "/proc/self/mem",
            folder + "/gone",
            "a\0b",
            "x" * 5000,
            "/etc/hostname/x",
        ):
            refused(path)


@case("11 a file changed after loading")
def _() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "m.onnx")
        made = model(
            [node("Add", ["a", "w"], ["c"])], [tensor("a", (99, 99))], initializers=[weight("w", (99, 99))]
        )
        with open(path, "wb") as file:
            file.write(made.SerializeToString())
        opened = session(path)
        os.truncate(path, 0)
        np.testing.assert_array_equal(
            opened.run(None, {"a": np.zeros((99, 99), F32)})[0], np.ones((99, 99), F32)
        )


def attack(name: str) -> Case:
    def run() -> None:
        with tempfile.TemporaryDirectory() as folder:
            inner = pathlib.Path(folder, "models")
            (inner / "sub").mkdir(parents=True)
            for path in (inner / "w.bin", inner / "sub" / "w.bin", pathlib.Path(folder, "secret.bin")):
                path.write_bytes(A.tobytes())
            refused(str(written(inner, ATTACKS[name](inner))))
    return run


CASES.update({f"12-19 external data: {name}": attack(name) for name in ATTACKS})


@case("17 external data of a model in memory")
def _() -> None:
    made = weight()
    made.ClearField("raw_data")
    made.data_location = TensorProto.EXTERNAL
    for location in ("w.bin", "*/_ORT_MEM_ADDR_/*", "/etc/passwd", "../w.bin"):
        del made.external_data[:]
        made.external_data.add(key="location", value=location)
        made.external_data.add(key="offset", value="4096")
        refused(model([node("Add", ["a", "w"], ["c"])], initializers=[made]))


def bad_tensor(name: str) -> Case:
    def run() -> None:
        proto = TensorProto(**{"name": "w", "data_type": 1, "dims": [2, 3], **BAD_TENSORS[name]})
        refused(model([node("Add", ["a", "w"], ["c"])], initializers=[proto]))
        refused(model([node("Constant", [], ["w"], value=proto), node("Add", ["a", "w"], ["c"])]))
    return run


CASES.update({f"20-22 tensor: {name}": bad_tensor(name) for name in BAD_TENSORS})


@case("24 bytes that are no booleans")
def _() -> None:
    proto = TensorProto(name="w", data_type=TensorProto.BOOL, dims=[4], raw_data=b"\0\1\2\xff")
    gives(
        model([node("Not", ["w"], ["c"])], [], [tensor("c", None, 9)], [proto]),
        np.array([1, 0, 0, 0], bool),
        {},
    )


@case("26 strings that are no UTF-8")
def _() -> None:
    proto = TensorProto(name="w", data_type=TensorProto.STRING, dims=[2], string_data=[b"\xff\xfe", b"a\0b"])
    either(model([node("Identity", ["w"], ["c"])], [], [tensor("c", None, 8)], [proto]), {})
    either(
        model(
            [node("StringNormalizer", ["w"], ["c"], case_change_action="UPPER")],
            [],
            [tensor("c", None, 8)],
            [proto],
        ),
        {},
    )


# graphs

def broken(make: Callable[[], onnx.ModelProto]) -> Case:
    def run() -> None:
        refused(make(), {})
    return run


CASES.update({f"29-38 row {row}": broken(make) for row, (_, _, make) in ROWS.items()})
CASES.update({f"29-38 {name}": broken(make) for name, (_, _, make) in MORE.items()})


@case("30 a body's name hides an outer one")
def _() -> None:
    then = helper.make_graph([node("Neg", ["a"], ["h"])], "t", [], [tensor("h", None)])
    other = helper.make_graph([node("Abs", ["a"], ["h"])], "e", [], [tensor("h", None)])
    made = model([node("Relu", ["a"], ["h"]), node("If", ["k"], ["i"], then_branch=then, else_branch=other),
                  node("Add", ["h", "i"], ["c"])], [tensor("a"), tensor("k", (), TensorProto.BOOL)])
    said = either(made, {"a": A, "k": np.array(True)})
    if not isinstance(said, Exception):
        np.testing.assert_array_equal(said[0], np.maximum(A, 0) - A)


@case("32 inputs as outputs and outputs twice")
def _() -> None:
    made = model([node("Relu", ["a"], ["c"])], initializers=[weight()],
                 outputs=[tensor("c", None), tensor("a"), tensor("w"), tensor("c", None)])
    found = ran(made)
    for value, expected in zip(
        found, (np.maximum(A, 0), A, np.ones((2, 3), F32), np.maximum(A, 0)), strict=True
    ):
        np.testing.assert_array_equal(value, expected)
    found[1][...] = 9
    found[2][...] = 9
    assert A[0, 0] == -3, "an output shares a feed's memory"
    np.testing.assert_array_equal(ran(made)[2], np.ones((2, 3), F32))


@case("33 no outputs, no nodes")
def _() -> None:
    made = relu()
    del made.graph.output[:]
    either(made)
    gives(model([], outputs=[tensor("a")]), A)
    either(model([], [], []), {})


@case("33 a chain of 20000 nodes")
def _() -> None:
    made = relu()
    del made.graph.node[:]
    for i in range(20_000):
        made.graph.node.add(
            op_type="Neg", input=["a" if not i else f"v{i}"], output=["c" if i == 19_999 else f"v{i + 1}"]
        )
    gives(made, A)


@case("33 one value read 20000 times")
def _() -> None:
    gives(model([node("Sum", ["a"] * 20_000, ["c"])]), A * 20_000)


@case("34 value_info that lies")
def _() -> None:
    for shape, element in (
        ((5, 7), 1),
        ((2, 3, 4), 1),
        (("N", "M"), 1),
        ((-1, -5), 1),
        ((1 << 62, 1 << 62), 1),
        ((2, 3), 7),
    ):
        made = model(
            [node("Relu", ["a"], ["b"]), node("Neg", ["b"], ["c"])], value_info=[tensor("b", shape, element)]
        )
        said = either(made)
        if not isinstance(said, Exception):
            np.testing.assert_array_equal(said[0], -np.maximum(A, 0))


@case("34 an output declared with another shape")
def _() -> None:
    for shape in ((1,), (7, 7), (1 << 40, 1 << 40), (), ("N",), (0,)):
        said = either(
            model([node("Relu", ["a"], ["b"]), node("Add", ["b", "b"], ["c"])], outputs=[tensor("c", shape)])
        )
        if not isinstance(said, Exception):
            np.testing.assert_array_equal(said[0], 2 * np.maximum(A, 0))


@case("35 versions")
def _() -> None:
    for ir in (0, -1, 1, 2, 99, 1 << 40):
        made = relu()
        made.ir_version = ir
        either(made)
    for opset in (0, -1, 99, 1 << 40, -(1 << 60)):
        refused(model([node("Relu", ["a"], ["c"])], opsets={"": opset}))
    made = relu()
    made.opset_import.add(domain="", version=11)
    either(made)


@case("21 sizes that inference would count out")
def _() -> None:
    for length in (1 << 27, 1 << 40, (1 << 63) - 1):
        either(
            model([node("Expand", ["a", "s"], ["c"])], [tensor("a"), tensor("s", (length,), 7)]),
            {"a": A, "s": np.array([2, 3])},
        )
        either(
            model([node("Concat", ["a", "b"], ["c"], axis=0)], [tensor("a", (length,)), tensor("b", (2,))]),
            {},
        )
        refused(model([node("Split", ["a"], ["c"], num_outputs=length)], opsets={"": 18}))


@case("45 numbers that double in length with every node")
def _() -> None:
    nodes = [node("Shape", ["a"], ["y0"])]
    nodes += [node("Mul", [f"y{i}", f"y{i}"], [f"y{i + 1}"]) for i in range(70)]
    gives(
        model(nodes, outputs=[tensor("y70", None, 7)]),
        np.array([0, pow(3, 1 << 70, 1 << 64)], np.uint64).astype(np.int64),
    )


@case("21 an input without an element type")
def _() -> None:
    refused(model([node("Relu", ["a"], ["c"])], [tensor("a", (2, 3), 0)]))


@case("36 operators newer than the opset")
def _() -> None:
    for op_type in ("Trilu", "CastLike", "BitShift", "Einsum", "RMSNormalization", "Col2Im"):
        refused(model([node(op_type, ["a"], ["c"])], opsets={"": 9}))
    made = model(
        [node("LayerNormalization", ["a", "w"], ["c"])], initializers=[weight("w", (3,))], opsets={"": 11}
    )
    assert abs(ran(made)[0].sum()) < 1e-5


@case("37 attributes of every wrong kind")
def _() -> None:
    for value in (
        1.5,
        "x",
        [1.0],
        ["a"],
        [],
        helper.make_graph([], "g", [], []),
        weight(),
        float("nan"),
        1 << 62,
        -(1 << 63),
    ):
        for op_type, name in (("Softmax", "axis"), ("Transpose", "perm"), ("Cast", "to"), ("Concat", "axis"),
                              ("LeakyRelu", "alpha"), ("Flatten", "axis"), ("If", "then_branch")):
            try:
                attribute = helper.make_attribute(name, value)
            except (ValueError, TypeError):
                continue
            made = node(op_type, ["a"], ["c"])
            made.attribute.append(attribute)
            either(model([made]))


@case("38 functions")
def _() -> None:
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("f", 1)]

    def function(
        name: str, nodes: Sequence[Any], inputs: Sequence[str] = ("x",), outputs: Sequence[str] = ("y",)
    ) -> Any:
        return helper.make_function("f", name, list(inputs), list(outputs), list(nodes), imports)

    call = [node("F", ["a"], ["c"], domain="f")]
    opsets = {"": 17, "f": 1}
    for functions in (
        [function("F", [node("F", ["x"], ["y"], domain="f")])],
        [
            function("F", [node("G", ["x"], ["y"], domain="f")]),
            function("G", [node("F", ["x"], ["y"], domain="f")]),
        ],
        [function("F", [node("Relu", ["x"], ["z"])])],
        [function("F", [node("Relu", ["outer"], ["y"])])],
        [function("F", [node("Relu", ["a"], ["y"])])],
        [function("F", [node("Relu", ["y"], ["y"])])],
        [function("F", [node("Relu", ["x"], ["y"])], inputs=())],
        [function("F", [node("Add", ["x", "z"], ["y"])], inputs=("x", "z"))],
        [function("F", [node("Relu", ["x"], ["y"]), node("Neg", ["x"], ["y"])])],
        [function("F", [node("Relu", ["x"], ["y"])])] * 2,
        [function("F", [node("Gone", ["x"], ["y"], domain="f")])],
        [function("F", [node("Relu", ["x"], ["x"])], outputs=("x",))],
    ):
        refused(model(call, opsets=opsets, functions=functions))
    for levels in (20, 25, 60, 2000):
        refused(nested_functions(levels))
    gives(nested_functions(6), np.maximum(A, 0))


def chosen(then: Any, other: Any, outputs: int = 1) -> onnx.ModelProto:
    names = [f"c{i}" if i else "c" for i in range(outputs)]
    return model(
        [node("If", ["k"], names, then_branch=then, else_branch=other)],
        [tensor("a"), tensor("k", (), 9)],
        [tensor(n, None) for n in names],
    )


@case("39 branches that differ")
def _() -> None:
    def branch(nodes: Sequence[Any], outputs: Sequence[str] = ("t",), element: int = 1) -> Any:
        return helper.make_graph(list(nodes), "b", [], [tensor(n, None, element) for n in outputs])

    plain = branch([node("Relu", ["a"], ["t"])])
    feeds = {"a": A, "k": np.array(False)}
    found = ran(chosen(plain, branch([node("ReduceSum", ["a"], ["t"])])), feeds)[0]
    np.testing.assert_array_equal(found, A.sum(keepdims=True))
    refused(chosen(plain, branch([node("Cast", ["a"], ["t"], to=7)], element=7)), feeds)
    refused(chosen(plain, branch([], [])), feeds)
    refused(chosen(plain, plain, 2), feeds)
    either(chosen(branch([node("Relu", ["a"], ["t"]), node("Neg", ["a"], ["u"])], ["t", "u"]), plain), feeds)
    refused(chosen(plain, branch([node("Relu", ["nowhere"], ["t"])])), feeds)
    either(chosen(plain, plain), {"a": A, "k": np.array([True, False])})
    either(chosen(plain, plain), {"a": A, "k": np.zeros((0,), bool)})


def loop(body_nodes: Sequence[Any], outputs: Sequence[Any], trips: int | None, state: bool = True,
         condition: bool | None = None) -> onnx.ModelProto:
    inputs = [tensor("i", (), 7), tensor("go", (), 9), *([tensor("s", None)] if state else [])]
    body = helper.make_graph(list(body_nodes), "body", inputs, list(outputs))
    made = [helper.make_tensor("n", 7, [], [trips])] if trips is not None else []
    made += [helper.make_tensor("k", 9, [], [condition])] if condition is not None else []
    return model([node("Loop", ["n" if trips is not None else "", "k" if condition is not None else "",
                                *(["a"] if state else [])], ["c"], body=body)], initializers=made)


GO = node("Identity", ["go"], ["go2"])
TURN = [GO, node("Neg", ["s"], ["s2"])]
CARRIED = [tensor("go2", (), 9), tensor("s2", None)]


@case("40 loops without an end")
def _() -> None:
    refused(loop(TURN, CARRIED, 1 << 62))


@case("40 loops without a trip count")
def _() -> None:
    refused(loop(TURN, CARRIED, None, condition=True))


@case("40 a loop whose output grows without bound")
def _() -> None:
    refused(
        loop(
            [GO, node("Identity", ["w"], ["o"])],
            [tensor("go2", (), 9), tensor("o", None)],
            (1 << 63) - 1,
            state=False,
        )
    )
    double = [GO, node("Concat", ["s", "s"], ["s2"], axis=0)]
    refused(loop(double, CARRIED, 1 << 40))


@case("40 odd loops")
def _() -> None:
    for trips in (0, -1, -(1 << 63)):
        gives(loop(TURN, CARRIED, trips), A)
    gives(loop(TURN, CARRIED, 1 << 62, condition=False), A)
    refused(loop(TURN[:1], CARRIED[:1], 3))
    refused(loop(TURN, CARRIED[::-1], 3))
    refused(loop([node("Identity", ["i"], ["go2"]), TURN[1]], [tensor("go2", (), 7), CARRIED[1]], 3))


def scanned(axis: int, count: int, length: Any = 3, outputs: int = 1) -> onnx.ModelProto:
    body = helper.make_graph([node("Neg", ["x"], ["y"])], "b", [tensor("x", None)], [tensor("y", None)])
    return model([node("Scan", ["a"], ["c"], body=body, num_scan_inputs=count, scan_input_axes=[axis],
                       scan_output_axes=[axis])])


@case("41 scans")
def _() -> None:
    gives(scanned(1, 1), -A)
    for axis, count in ((5, 1), (-9, 1), (0, 0), (0, 2), (0, -1), (0, 1 << 40)):
        refused(scanned(axis, count))
    either(scanned(0, 1), {"a": np.zeros((0, 3), F32)})


@case("42 sequences, optionals and maps")
def _() -> None:
    index = helper.make_tensor("i", 7, [], [5])
    made = [node("SequenceConstruct", ["a", "a"], ["s"]), node("SequenceAt", ["s", "i"], ["c"])]
    refused(model(made, initializers=[index]))
    for value in (-3, 2, 1 << 40, LOW):
        index = helper.make_tensor("i", 7, [], [value])
        refused(model(made, initializers=[index]))
        refused(
            model(
                [
                    node("SequenceEmpty", [], ["e"]),
                    node("SequenceErase", ["e", "i"], ["s"]),
                    node("SequenceLength", ["s"], ["c"]),
                ],
                outputs=[tensor("c", None, 7)],
                initializers=[index],
            ),
            {"a": A},
        )
        refused(
            model(
                [
                    node("SequenceConstruct", ["a", "a"], ["s"]),
                    node("SequenceInsert", ["s", "a", "i"], ["t"]),
                    node("ConcatFromSequence", ["t"], ["c"], axis=0),
                ],
                initializers=[helper.make_tensor("i", 7, [], [value + 7 if value > 0 else value])],
            )
        )
    refused(model([node("SequenceAt", ["a", "i"], ["c"])], initializers=[index]))
    refused(model([node("SequenceEmpty", [], ["e"]), node("ConcatFromSequence", ["e"], ["c"], axis=0)]))
    refused(model([node("Optional", [], ["o"]), node("OptionalGetElement", ["o"], ["c"])]))
    refused(model([node("SequenceConstruct", ["a"], ["s"]), node("Relu", ["s"], ["c"])]))


def operator(entry: tuple[Any, ...], constant: bool) -> Case:
    op_type, arrays, attributes, expected, options = entry

    def run() -> None:
        names = ["" if x is None else f"i{i}" for i, x in enumerate(arrays)]
        given = {n: np.asarray(x) for n, x in zip(names, arrays, strict=True) if x is not None}
        protos = {n: numpy_helper.from_array(x, n) for n, x in given.items()}
        outputs = [f"o{i}" for i in range(options.get("outputs", 1))]
        call = node(op_type, names, outputs, domain=options.get("domain", ""))
        for key, value in attributes.items():
            kind = onnx.AttributeProto.INTS if value == [] else None
            call.attribute.append(helper.make_attribute(key, value, attr_type=kind))
        made = model([call],
                     [] if constant else [tensor(n, None, p.data_type) for n, p in protos.items()],
                     [onnx.ValueInfoProto(name=n) for n in outputs], protos.values() if constant else (),
                     opsets={"": options.get("opset", 21), "ai.onnx.ml": 3}, ir=10)
        feeds = {} if constant else given
        if expected is refused:
            refused(made, feeds)
        elif expected is None:
            either(made, feeds)
        else:
            found = ran(made, feeds)[0]
            np.testing.assert_array_equal(found, expected)
    return run


def _operators() -> None:
    for number, entries in OPERATORS.items():
        for i, entry in enumerate(entries):
            expected = refused if isinstance(entry[3], str) else entry[3]
            for constant in (False, True):
                way = "constant" if constant else "fed"
                CASES[f"{number} {entry[0]} {i} {way}"] = operator((*entry[:3], expected, entry[4]), constant)


_operators()


# the caller's side

@case("55 feeds")
def _() -> None:
    opened = session(relu())
    expected = np.maximum(A, 0)
    for fed in (A.astype(">f4"), np.asfortranarray(A), np.repeat(A, 2, 0)[::2], A[:, ::-1][:, ::-1], A.copy(),
                np.matrix(A)):
        found = opened.run(None, {"a": fed})[0]
        np.testing.assert_array_equal(np.asarray(found), expected)
        assert found.dtype == F32
    misaligned = np.ndarray((2, 3), F32, b"\0" + A.tobytes(), 1)
    np.testing.assert_array_equal(opened.run(None, {"a": misaligned})[0], expected)
    read_only = A.copy()
    read_only.flags.writeable = False
    np.testing.assert_array_equal(opened.run(None, {"a": read_only})[0], expected)
    for feeds in (
        {},
        {"a": A, "b": A},
        {"b": A},
        {"a": A.astype(np.float64)},
        {"a": A.astype(object)},
        {"a": A[0]},
        {"a": A[:1]},
        {"a": None},
        {"a": "x"},
        {"a": 1.5},
        {"a": np.datetime64("now")},
        {"a": A.astype(complex)},
        {"a": [A, A]},
        {"a": {}},
        {1: A},
        {"a": A.astype("M8[s]")},
    ):
        try:
            opened.run(None, feeds)
        except Exception as error:
            assert typed(error) or isinstance(error, AttributeError), repr(error)
        else:
            raise AssertionError(f"accepted {feeds}")


@case("55 big-endian feeds of every width")
def _() -> None:
    for dtype, element in (
        ("f4", 1),
        ("f8", 11),
        ("f2", 10),
        ("i8", 7),
        ("i4", 6),
        ("i2", 5),
        ("u2", 4),
        ("u8", 13),
    ):
        fed = np.arange(6).reshape(2, 3).astype(">" + dtype)
        made = model(
            [node("Identity", ["a"], ["c"])], [tensor("a", None, element)], [tensor("c", None, element)]
        )
        found = ran(made, {"a": fed})[0]
        np.testing.assert_array_equal(found, np.arange(6).reshape(2, 3))
        assert found.dtype == np.dtype(dtype)

