"""Providers that are shared libraries: what they are shown, what they may answer, and every wrong answer."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from graphs import info, model
from onnx import TensorProto, helper
from provider_libraries import STRICT, WRONG, C, Wrong, built
from skips import needs

import orthrus as ort
from orthrus import errors
from orthrus.kernels import dlpack
from orthrus.providers import create, known
from orthrus.providers.library import INCLUDE, abi

pytestmark = needs("C compiler", "Linux")

NAME = "WrongExecutionProvider"
X = np.arange(6, dtype=np.float32).reshape(2, 3)
SIZES = np.array([1, 1])


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Wrong:
    return Wrong(built(WRONG, tmp_path_factory.mktemp("wrong")))


@pytest.fixture
def wrong(library: Wrong) -> Iterator[Wrong]:
    """The library, which is right until it is told otherwise; nothing of it is left behind."""
    library.misbehave("")
    gc.collect()
    before = library.living()
    yield library
    for name in ("wrong", "other"):
        with contextlib.suppress(errors.Fail):
            ort.unregister_execution_provider_library(name)
    gc.collect()
    assert library.living() == before and not dlpack._keepers


def register(wrong: Wrong, how: str = "") -> None:
    wrong.misbehave(how)
    ort.register_execution_provider_library("wrong", wrong.path)


def negated(shape: Any = ("n", 3), op: str = "Neg", **more: Any) -> Any:
    return model([helper.make_node(op, ["x"], ["y"], name="negate", **more)], [info("x", shape=shape)],
                 [info("y", shape=shape)])


def open_shapes(outputs: int = 1) -> Any:
    """A node whose results' shapes nobody knows before it runs; the library takes it for a Neg."""
    names = ["y", "z"][:outputs]
    return model([helper.make_node(["Reshape", "Split"][outputs - 1], ["x", "s"], names, name="negate")],
                 [info("x", shape=["n", 3]), info("s", TensorProto.INT64, [2])],
                 [info(n, shape=[None, None]) for n in names])


def fed(made: ort.InferenceSession, x: np.ndarray = X) -> list[Any]:
    """What a session gives for `x`, and the sizes that nobody looks at."""
    return made.run(None, {"x": x, "s": SIZES} if len(made.get_inputs()) > 1 else {"x": x})


def session(proto: Any, options: dict[str, str] | None = None, **more: Any) -> ort.InferenceSession:
    settings = ort.SessionOptions()
    settings.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return ort.InferenceSession(proto.SerializeToString(), settings, providers=[(NAME, options or {})],
                                enable_fallback=0, **more)


REFUSED = {
    "null library": "no providers for version 1", "later abi": "built for version 2",
    "no table": "1 providers", "no providers": "0 providers", "many providers": "1099511627776 providers",
    "null provider": "null pointer", "size": "has 16 bytes", "no name": "a name is None",
    "odd name of a provider": "'My Provider'", "name in latin": "in UTF-8", "no claim": "has no claim",
    "no compile": "has no compile", "no run": "has no run", "no release": "has no release",
    "no destroy": "has no destroy", "no devices": "1 devices, and no table",
    "no options": "2 options, and no table", "many options": "options, and no table",
    "device kind": "of kind 77", "option without a name": "option is None",
    "options of one name": "two options of one name", "name of another": "already been registered",
}


def test_a_library_that_cannot_be_is_refused(wrong: Wrong) -> None:
    before = list(known())
    for how, why in REFUSED.items():
        with pytest.raises(errors.Fail, match=re.escape(why)) as found:
            register(wrong, how)
        assert found.value.cure is not None, how
    assert list(known()) == before
    register(wrong)
    assert NAME in ort.get_available_providers()


def test_what_is_no_library_of_ours(tmp_path: Path) -> None:
    """Other files and libraries say what they are, onnxruntime's plugins too."""
    source = tmp_path / "other.c"
    for text, why in (("int x;", "exports no orthrus_provider_library"),
                      ("int CreateEpFactories(void) { return 0; }", "compiled for onnxruntime")):
        source.write_text(text, encoding="ascii")
        path = str(built(source, tmp_path, "-O0"))
        with pytest.raises(errors.Fail, match=why):
            ort.register_execution_provider_library("other", path)
        os.unlink(path)
    text_file = tmp_path / "text.so"
    text_file.write_text("no library", encoding="ascii")
    with pytest.raises(errors.Fail, match="Failed to load library"):
        ort.register_execution_provider_library("other", str(text_file))
    for wrong in (1, None, b"x"):
        with pytest.raises(TypeError):
            ort.register_execution_provider_library("other", wrong)  # type: ignore[arg-type]


def test_names_are_given_once(wrong: Wrong) -> None:
    register(wrong)
    with pytest.raises(errors.Fail, match="wrong has already been registered"):
        register(wrong)
    with pytest.raises(errors.Fail, match=f"{NAME} has already been registered"):
        ort.register_execution_provider_library("other", wrong.path)
    ort.unregister_execution_provider_library("wrong")
    with pytest.raises(errors.Fail, match="was not registered"):
        ort.unregister_execution_provider_library("wrong")
    assert NAME not in known()


def test_what_it_says_of_itself(wrong: Wrong) -> None:
    register(wrong)
    [device] = [d for d in ort.get_ep_devices() if d.ep_name == NAME]
    assert (device.ep_vendor, device.ep_metadata["version"]) == ("Wrong", "0.1")
    found = device.device
    assert (found.type, found.vendor, found.vendor_id, found.device_id) == (
        ort.OrtHardwareDeviceType.NPU, "Wrong Chips", 0x1234, 0x56)
    options = ort.SessionOptions()
    options.add_provider_for_devices([device], {"speed": "slow"})
    made = ort.InferenceSession(negated().SerializeToString(), options)
    assert made.get_provider_options()[NAME] == {"speed": "slow"}
    with pytest.raises(errors.InvalidArgument, match="speed is fast or slow"):
        session(negated(), {"speed": "none"})
    with pytest.raises(errors.InvalidArgument, match="no option 'sped'"):
        session(negated(), {"sped": "fast"})


def test_what_a_claim_is_shown(wrong: Wrong) -> None:
    register(wrong)
    big = np.ones((200, 100), np.float32)
    nodes = [helper.make_node("Neg", ["x"], ["a"]),
             helper.make_node("LeakyRelu", ["a"], ["b"]),
             helper.make_node("Transpose", ["b"], ["c"], perm=[1, 0]),
             helper.make_node("Cast", ["c"], ["d"], to=TensorProto.STRING),
             helper.make_node("LabelEncoder", ["d"], ["e"], domain="ai.onnx.ml",
                              keys_strings=["a\0b", "ü"], values_floats=[1.5, 2]),
             helper.make_node("Clip", ["e", "", "most"], ["f"]),
             helper.make_node("MatMul", ["f", "w"], ["y"])]
    proto = model(nodes, [info("x", shape=[200, "n"])], [info("y", shape=["n", 100])],
                  {"w": big, "most": np.array(3, np.float32)}, domains={"ai.onnx.ml": 4})
    made = session(proto)
    told = wrong.shown()
    assert told[0] == ":Neg-13 free=1 in=1 out=1"
    assert told[1] == ":LeakyRelu-16 free=1 in=1 out=1 alpha(1,1) 0.01"
    assert told[2] == ":Transpose-21 free=1 in=1 out=1 perm(7,2) 1 0"
    assert told[3].startswith(":Cast-") and "free=0" in told[3] and "to(2,1) 8" in told[3]
    assert "free=0" in told[4] and "keys_strings(8,2) a/3 ü/2" in told[4]
    assert "values_floats(6,2) 1.5 2" in told[4]
    assert told[5].startswith(":Clip-13 free=1 in=3")
    values = {row.split()[0]: row for row in told[7:]}
    assert values["x"] == "x 1 rank=2 200/ -1/n 0" and values["c"] == "c 1 rank=2 -1/n 200/ 0"
    assert values["w"] == "w 1 rank=2 200/ 100/ constant 80000"
    assert values["most"] == "most 1 rank=0 constant 4 data"
    report = made.explain()
    assert "it is no Neg" in str(report) and "libraries take tensors of numbers" in str(report)


CLAIMS = {
    "claim": (errors.Fail, "the chip is confused", "negate"),
    "claim with no such code": (errors.EPFail, "4711", None),
    "claim blames no such node": (errors.Fail, "that one", None),
    "take beyond": (errors.EPFail, "takes node 1", None),
    "take far beyond": (errors.EPFail, "takes node 18446744073709551615", None),
    "refuse beyond": (errors.EPFail, "refuses node 1", None),
    "group": (errors.EPFail, "for group -2", "negate"),
    "refuse in silence": (errors.EPFail, "without a reason", "negate"),
    "refuse with nothing": (errors.EPFail, "without a reason", "negate"),
    "take twice": (errors.EPFail, "two answers", "negate"),
    "take and refuse": (errors.EPFail, "two answers", "negate"),
    "refuse and take": (errors.EPFail, "two answers", "negate"),
    "create": (errors.DeviceReset, "fell off", None),
    "compile": (errors.EngineError, "the compiler is full", "negate"),
    "no handle": (errors.EPFail, "gave no kernel", ""),
}


@pytest.mark.slow
@pytest.mark.parametrize("how", CLAIMS)
def test_wrong_answers_before_a_run(wrong: Wrong, how: str) -> None:
    kind, text, node = CLAIMS[how]
    register(wrong, how)
    with pytest.raises(kind, match=re.escape(text)) as found:
        session(negated(op="Neg"))
    told = getattr(found.value, "node", None)
    assert (node or "") in (told or "") and (told is None) == (node is None)
    del found
    wrong.misbehave("")
    np.testing.assert_array_equal(fed(session(negated()))[0], -X)


@pytest.mark.parametrize(("how", "why"), [("probe", "no such chip"), ("probe in silence", "gave no text")])
def test_one_that_cannot_work_here(wrong: Wrong, how: str, why: str) -> None:
    register(wrong, how)
    assert NAME not in ort.get_available_providers() and NAME in known()
    with pytest.raises(errors.EPFail, match=why):
        create(NAME)
    wrong.misbehave("")
    assert NAME in ort.get_available_providers()


@pytest.mark.slow
@pytest.mark.parametrize(("how", "reason"), [
    ("silent", "said nothing about it"), ("compile gives back", "not that one"),
    ("compile gives back in silence", "does not compile it"), ("refuse in latin", "no\ufffd")])
def test_nodes_that_are_left_go_to_others(wrong: Wrong, how: str, reason: str) -> None:
    register(wrong, how)
    made = session(negated())
    np.testing.assert_array_equal(fed(made)[0], -X)
    assert made.explain()["negate"].provider == "CPUExecutionProvider" and reason in str(made.explain())


def test_a_group_that_is_no_part(wrong: Wrong) -> None:
    """Another provider's node stands between two that are taken as one."""
    register(wrong, "one group")
    nodes = [helper.make_node("Neg", ["x"], ["a"]), helper.make_node("Exp", ["a"], ["b"]),
             helper.make_node("Neg", ["b"], ["y"])]
    with pytest.raises(errors.EPFail, match="would wait for itself"):
        session(model(nodes, ["x"], ["y"]))


def test_what_is_not_free_is_not_taken(wrong: Wrong) -> None:
    register(wrong, "take what is not free")
    nodes = [helper.make_node("Cast", ["x"], ["s"], to=TensorProto.STRING, name="text"),
             helper.make_node("Cast", ["s"], ["y"], to=TensorProto.FLOAT)]
    with pytest.raises(errors.EPFail, match="not free") as found:
        session(model(nodes, ["x"], ["y"]))
    assert "text" in found.value.node


@pytest.mark.slow
@pytest.mark.parametrize(("how", "name"), [
    ("", "negate on 3 threads"), ("long name", "x" * 248), ("odd name", "\ufffd")])
def test_kernels_have_names(wrong: Wrong, how: str, name: str) -> None:
    register(wrong, how)
    settings = ort.SessionOptions()
    settings.intra_op_num_threads = 3
    made = ort.InferenceSession(negated().SerializeToString(), settings, providers=[NAME])
    assert made.explain()["negate"].kernel == name


RUNS = {
    "run": (errors.RuntimeException, "the chip is hot"), "run with no such code": (errors.EPFail, "odd"),
    "fails with a tensor": (errors.RuntimeException, "the chip is hot"),
    "run in silence": (errors.Fail, "gave no text"), "long text": (errors.Fail, "y" * 1012),
    "odd text": (errors.Fail, "\ufffd"),
}
MADE = {
    "nothing made": "made no tensor", "type": "of another type", "no such type": "no element type here",
    "lanes": "4 lanes", "device": "host's memory", "rank": "-1 dimensions",
    "large rank": "1073741824 dimensions", "no shape": "no shape", "negative size": "[-3, 3]",
    "large size": "shape cannot be", "no data": "no memory", "later version": "version 2",
    "no version": "version 0",
}


@pytest.mark.slow
@pytest.mark.parametrize("how", RUNS)
@pytest.mark.parametrize("proto", [negated(), open_shapes()], ids=["known", "open"])
def test_wrong_answers_in_a_run(wrong: Wrong, how: str, proto: Any) -> None:
    kind, text = RUNS[how]
    register(wrong)
    made = session(proto)
    wrong.misbehave(how)
    with pytest.raises(kind, match=text) as found:
        fed(made)
    assert "negate" in str(found.value)
    del found
    wrong.misbehave("")
    np.testing.assert_array_equal(fed(made)[0], -X)


@pytest.mark.slow
@pytest.mark.parametrize("how", MADE)
def test_tensors_that_cannot_be(wrong: Wrong, how: str) -> None:
    register(wrong)
    made = session(open_shapes())
    wrong.misbehave(how)
    with pytest.raises(errors.EPFail, match=re.escape(MADE[how])) as found:
        fed(made)
    assert "negate" in found.value.node
    del found
    gc.collect()
    assert wrong.living()[2] == 0
    wrong.misbehave("")
    np.testing.assert_array_equal(fed(made)[0], -X)


def test_one_tensor_for_two_outputs(wrong: Wrong) -> None:
    register(wrong)
    made = session(open_shapes(2))
    wrong.misbehave("one for two")
    with pytest.raises(errors.EPFail, match="one tensor for two"):
        fed(made)
    wrong.misbehave("")
    for got in fed(made):
        np.testing.assert_array_equal(got, -X)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["", "own", "alias", "no deleter"])
@pytest.mark.parametrize("shape", [(2, 3), (0, 3), (1, 3), (1000, 3)], ids=str)
def test_tensors_of_the_librarys_own(wrong: Wrong, how: str, shape: tuple[int, ...]) -> None:
    """Results outlive the session, and share nothing with what was fed."""
    register(wrong)
    made = session(open_shapes())
    wrong.misbehave(how)
    x = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    given = x.copy()
    [got] = fed(made, given)
    assert not np.may_share_memory(got, given)
    kept = got.copy()
    given[...] = 7
    made.close()
    del made
    gc.collect()
    np.testing.assert_array_equal(got, kept)
    if how != "alias":
        np.testing.assert_array_equal(got, -x)


def test_shapes_that_are_known_have_room(wrong: Wrong) -> None:
    """Sizes of named dimensions are taken from the inputs; one known by neither is the library's to make."""
    register(wrong)
    made = session(negated(["n", "m"]))
    for shape in ((2, 3), (0, 5), (4, 0), (1, 1)):
        x = np.ones(shape, np.float32)
        np.testing.assert_array_equal(fed(made, x)[0], -x)
        assert wrong.living()[2] == 0
    wrong.misbehave("own")
    [got] = fed(made)
    assert wrong.living()[2] == 1
    np.testing.assert_array_equal(got, -X)
    np.testing.assert_array_equal(fed(made, np.asfortranarray(X))[0], -X)


def test_limits_hold_for_what_is_made_room_for(wrong: Wrong) -> None:
    register(wrong)
    nodes = [helper.make_node("Expand", ["x", "by"], ["e"]), helper.make_node("Neg", ["e"], ["y"])]
    proto = model(nodes, [info("x", shape=["n", 3])], [info("y", shape=["m", "n", 3])],
                  {"by": np.array([2, 1, 1])})
    made = session(proto, limits=ort.Limits(max_total_bytes=50000))
    with pytest.raises(errors.Fail, match="max_total_bytes|memory|budget"):
        fed(made, np.ones((1500, 3), np.float32))
    np.testing.assert_array_equal(fed(made)[0], [-X, -X])


def test_sessions_outlive_their_registration(wrong: Wrong) -> None:
    register(wrong)
    first, second = session(negated()), session(open_shapes())
    ort.unregister_execution_provider_library("wrong")
    register(wrong)
    third = session(negated())
    ort.unregister_execution_provider_library("wrong")
    for made in (third, first):
        np.testing.assert_array_equal(fed(made)[0], -X)
    del first, third, made
    gc.collect()
    [got] = fed(second)
    assert wrong.living()[1] == 1
    del second
    gc.collect()
    assert wrong.living() == (1, 1, 1)
    np.testing.assert_array_equal(got, -X)
    del got
    gc.collect()
    assert wrong.living() == (0, 0, 0)


def test_threads(wrong: Wrong) -> None:
    register(wrong)
    sessions = [session(open_shapes()), session(negated())]
    wrong_results: list[Any] = []

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for i in range(100):
            x = rng.normal(size=(seed + 1, 3)).astype(np.float32)
            [got] = fed(sessions[i % 2], x)
            if not np.array_equal(got, -x):
                wrong_results.append((seed, i))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong_results


def test_a_forked_process_runs_and_ends(wrong: Wrong) -> None:
    register(wrong)
    made = session(open_shapes())
    fed(made)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            again = session(negated())
            status = int(not (np.array_equal(fed(made)[0], -X)
                              and np.array_equal(fed(again)[0], -X)))
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    np.testing.assert_array_equal(fed(made)[0], -X)


CLOSING = """
import gc, sys
import numpy as np
import orthrus as ort
feeds = {"x": np.ones((2, 3), np.float32), "s": np.array([1, 1])}
model, path = open(sys.argv[1], "rb").read(), sys.argv[2]
def mapped(): return path in open("/proc/self/maps").read()
for _ in range(2):
    ort.register_execution_provider_library("x", path)
    session = ort.InferenceSession(model, providers=["WrongExecutionProvider"])
    [y] = session.run(None, feeds)
    ort.unregister_execution_provider_library("x")
    assert mapped()
    del session
    gc.collect()
    assert mapped() and (y == -1).all()
    del y
    gc.collect()
    assert not mapped()
ort.register_execution_provider_library("x", path)
session = ort.InferenceSession(model, providers=["WrongExecutionProvider"])
results = [session.run(None, feeds), session]
results.append(results)
del session
if sys.argv[3] == "collected":
    ort.unregister_execution_provider_library("x")
    del results
    gc.collect()  # what kernels keep alive until they are given back goes with the next turn
    gc.collect()
    assert not mapped()
"""


@pytest.mark.slow
@pytest.mark.parametrize("end", ["collected", "open"])
def test_a_library_is_closed_behind_its_last_tensor(wrong: Wrong, tmp_path: Path, end: str) -> None:
    """Also where the garbage collector takes all at once, and where the interpreter ends before."""
    (tmp_path / "m.onnx").write_bytes(open_shapes().SerializeToString())
    done = subprocess.run([sys.executable, "-c", CLOSING, str(tmp_path / "m.onnx"), wrong.path, end],
                          capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


LAYOUT = """
#include <orthrus_provider.h>
#include <stdio.h>
int main(void) {
%s
  return 0;
}
"""


def test_the_header_and_its_twin_agree(tmp_path: Path) -> None:
    """Sizes and offsets of every structure, by a C compiler; the header is C++ as well."""
    rows = []
    for name, twin in abi.STRUCTURES.items():
        rows.append(f'printf("%zu\\n", sizeof({name}));')
        rows += [f'printf("%zu\\n", offsetof({name}, {_in_c(name, field[0])}));' for field in twin._fields_]
    source = tmp_path / "layout.c"
    source.write_text(LAYOUT % "\n".join(rows), encoding="ascii")
    subprocess.run(["cc", *STRICT, "-I", INCLUDE, str(source), "-o", str(tmp_path / "layout")], check=True)
    told = subprocess.run([str(tmp_path / "layout")], capture_output=True, text=True, check=True).stdout
    ours: list[int] = []
    for twin in abi.STRUCTURES.values():
        ours.append(ctypes.sizeof(twin))
        ours += [getattr(twin, field[0]).offset for field in twin._fields_]
    assert [int(row) for row in told.split()] == ours
    header = abi.HEADER.read_text(encoding="utf-8")
    assert set(re.findall(r"^} (orthrus_\w+);", header, re.M)) <= set(abi.STRUCTURES)
    assert f"ORTHRUS_PROVIDER_ABI {abi.VERSION}\n" in header and f"ORTHRUS_JOIN ({abi.JOIN})" in header
    assert f"ORTHRUS_CLAIM_BYTES {abi.CLAIM_BYTES}\n" in header
    codes = dict(re.findall(r"ORTHRUS_(\w+) = (\d+)", header))
    assert codes.pop("OK") == "0"
    kinds = {kind.code: kind.status for kind in errors.ALL}
    assert {name: kinds[int(code)] for name, code in codes.items()} == {name: name for name in codes}


def _in_c(structure: str, field: str) -> str:
    """A field's name in the header, where DLPack's is another."""
    theirs = {"kind": "device.device_type", "index": "device.device_id", "code": "dtype.code",
              "bits": "dtype.bits", "lanes": "dtype.lanes", "offset": "byte_offset"}
    return theirs.get(field, field) if structure == "DLTensor" else field


def test_the_example_computes(tmp_path: Path) -> None:
    ort.register_execution_provider_library("example", str(built(C, tmp_path)))
    try:
        rng = np.random.default_rng(0)
        weights = {name: rng.normal(size=shape).astype(np.float32)
                   for name, shape in (("w", (3, 5)), ("b", (5,)))}
        nodes = [helper.make_node("MatMul", ["x", "w"], ["p"], name="product"),
                 helper.make_node("Add", ["p", "b"], ["s"], name="sum"),
                 helper.make_node("Relu", ["s"], ["r"], name="relu"),
                 helper.make_node("Exp", ["r"], ["e"], name="exp"),
                 helper.make_node("Mul", ["e", "s"], ["y"], name="scaled")]
        proto = model(nodes, [info("x", shape=["n", 3])], [info("y", shape=["n", 5])], weights)
        settings = ort.SessionOptions()
        settings.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        made = ort.InferenceSession(proto.SerializeToString(), settings,
                                    providers=["ExampleExecutionProvider"])
        for rows in (2, 0, 7):
            x = rng.normal(size=(rows, 3)).astype(np.float32)
            total = x @ weights["w"] + weights["b"]
            np.testing.assert_allclose(fed(made, x)[0], np.exp(np.maximum(total, 0)) * total, rtol=1e-5)
        report = made.explain()
        assert {r.node: r.provider for r in report}["exp"] == "CPUExecutionProvider"
        assert report["scaled"].provider == "ExampleExecutionProvider"
        assert "none of Add, Mul, Relu, MatMul" in str(report)
    finally:
        ort.unregister_execution_provider_library("example")
