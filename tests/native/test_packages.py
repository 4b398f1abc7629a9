"""Packages run by the runtime in C: bit for bit what the session computes; and what is no package is
refused."""

import ctypes
import os
import re
import subprocess
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from evil_packages import sealed
from graphs import info, model
from native_packages import (
    BAD_INDEX,
    BUSY,
    DAMAGED,
    INVALID,
    OK,
    OUTSIDE,
    SHAPE,
    SOURCES,
    STOPPED,
    UNSUPPORTED_CPU,
    CContext,
    CModel,
    COptions,
    Refused,
    compiled,
    runtime,
)
from onnx import TensorProto, helper
from skips import needs
from small_networks import SWEEPS

import orthrus as ort
from orthrus.codegen.machines.machine import BEYOND, FORCED
from orthrus.codegen.runtime import cells as process_cells
from orthrus.errors import InvalidArgument
from orthrus.errors import NotImplemented as NotImplementedFail
from orthrus.ir import ElementType
from orthrus.lowering.package import layout
from orthrus.lowering.package.loaded import Package
from orthrus.native.compile import machine_named, package

pytestmark = [needs("generated code"), needs("C compiler")]

W = np.arange(20, dtype=np.float32).reshape(4, 5) / 7
BY = np.linspace(1, 2, 5, dtype=np.float32)


def network() -> bytes:
    """`sum` and `out` from two inputs of which the second comes first, of which `spare` is not read."""
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Relu", ["h"], ["r"]),
             helper.make_node("Mul", ["r", "by"], ["out"]), helper.make_node("Add", ["h", "h"], ["sum"])]
    made = model(nodes, [info("by", shape=[5]), info("x", shape=["N", 4])],
                 [info("sum", shape=["N", 5]), info("out", shape=["N", 5])], {"w": W})
    return bytes(made.SerializeToString())


def data_of(source: Any, sizes: Any = None, machines: Any = None, **given: Any) -> bytes:
    made = package(source, machines or [machine_named("host")], sizes, **given)
    return b"".join(map(bytes, made.whole()))


@pytest.fixture(scope="module")
def small() -> bytes:
    """The package of `network` for one to six rows."""
    return data_of(network(), {"N": range(1, 7)}, metadata={"producer": "tests"})


def feeds(rows: int, seed: int = 0) -> dict[str, np.ndarray]:
    return {"by": BY, "x": np.random.default_rng(seed).standard_normal((rows, 4)).astype(np.float32)}


def same(got: list[np.ndarray], want: list[np.ndarray]) -> bool:
    return all(a.shape == b.shape and a.dtype == b.dtype and a.tobytes() == b.tobytes()
               for a, b in zip(got, want, strict=True))


@pytest.mark.parametrize("name", [name if name == "recurrence" else pytest.param(name, marks=pytest.mark.slow)
                                  for name in SWEEPS])
def test_networks_of_every_shape_of_a_range(name: str) -> None:
    make, feed, sizes = SWEEPS[name]
    few = [sizes[0], sizes[len(sizes) // 3], sizes[2 * len(sizes) // 3]]
    source = make()
    session = ort.InferenceSession(source)
    rng = np.random.default_rng(1)
    given = [feed(rng, *each) for each in few]
    ranges: dict[str, set[int]] = {}
    for value in session.get_inputs():
        for axis, d in enumerate(value.shape):
            if not isinstance(d, int):
                ranges.setdefault(d, set()).update(each[value.name].shape[axis] for each in given)
    opened = CModel(data_of(source, ranges))
    for threads in (1, 4):
        context = CContext(opened, threads)
        for each in given:
            got = context(*(each[v.name] for v in session.get_inputs()))
            assert same(got, session.run(None, each))
        context.destroy()
    opened.close()


def test_every_shape_of_a_range_in_any_order(small: bytes) -> None:
    session, opened = ort.InferenceSession(network()), CModel(small)
    context = CContext(opened, 2)
    for rows in (3, 1, 6, 2, 2, 5, 4, 6):
        assert same(context(*feeds(rows, rows).values()), session.run(None, feeds(rows, rows)))
    for rows in (0, 7, -1, 1 << 40):
        with pytest.raises(Refused, match="not compiled for inputs of these shapes: by \\(5\\), x"):
            context.reshape([(5,), (rows, 4)])
    assert context.shape(0) == (6, 5)
    context.destroy()
    opened.close()


def test_one_name_of_several_sizes_and_an_input_that_nothing_reads() -> None:
    source = bytes(model([helper.make_node("Relu", ["x"], ["y"])], [info("length", shape=["?"]),
                         info("x", shape=["?", 3, "?"])], [info("y", shape=None)]).SerializeToString())
    sizes = {"length:0": [1], "x:0": [1, 2], "x:2": range(4, 6)}
    session, opened = ort.InferenceSession(source), CModel(data_of(source, sizes))
    context = CContext(opened)
    for rows, columns in ((2, 5), (1, 4), (2, 4)):
        x = -np.ones((rows, 3, columns), np.float32) * BY[:columns]
        given = {"length": np.ones(1, np.float32), "x": x}
        assert same(context(*given.values()), session.run(None, given))
    with pytest.raises(Refused, match="not compiled for inputs of these shapes"):
        context.reshape([(1,), (1, 3, 6)])
    context.destroy()
    opened.close()


def test_it_describes_itself(small: bytes) -> None:
    opened, lib = CModel(small), runtime()
    inputs, outputs = opened.values()
    assert [(v.name, v.type, v.shape[:v.rank]) for v in inputs] == [(b"by", 1, [5]), (b"x", 1, [-1, 4])]
    assert [(v.name, v.shape[:v.rank], v.names[0]) for v in outputs] == [
        (b"sum", [-1, 5], b"N"), (b"out", [-1, 5], b"N")]
    assert lib.orthrus_metadata(opened.address, b"producer") == b"tests"
    assert lib.orthrus_metadata(opened.address, b"nothing") is None
    here = machine_named("host")
    assert (lib.orthrus_targets(opened.address), lib.orthrus_chosen_target(opened.address)) == (1, 0)
    assert lib.orthrus_target(opened.address, 0) == here.label.encode()
    assert not lib.orthrus_target(opened.address, 1)
    assert all(lib.orthrus_status_text(i) for i in range(-1, 12))
    for elem in ElementType:
        if elem is not ElementType.STRING:
            assert lib.orthrus_type_size(int(elem)) == elem.numpy.itemsize, elem
    assert not lib.orthrus_type_size(8) and not lib.orthrus_type_size(-1) and not lib.orthrus_type_size(99)
    opened.close()


def test_the_same_package_in_python(small: bytes) -> None:
    opened = Package(small)
    (code,) = opened.codes
    assert len(code.plans) == 6 and ((5,), (3, 4)) in code.plans
    assert [opened.tables(code, at).outputs[0] for at in code.plans.values()] == [(i, 5) for i in range(1, 7)]


def test_plans_share_what_is_equal(small: bytes) -> None:
    one = data_of(network(), {"N": [6]})
    assert len(small) - len(one) < 6 * 2200, (len(small), len(one))
    assert np.frombuffer(small, np.int64, 32)[layout.Head.CONSTANTS_SIZE] == np.frombuffer(
        one, np.int64, 32)[layout.Head.CONSTANTS_SIZE]


def test_dimensions_that_are_always_the_same() -> None:
    """By their names, or their places; without that, no plan has both sizes."""
    nodes = [helper.make_node("Concat", ["a", "b"], ["c"], axis=1), helper.make_node("Relu", ["c"], ["y"])]
    source = model(nodes, [info("a", shape=["m", 2]), info("b", shape=[None, 3])],
                   [info("y", shape=[None, 5])]).SerializeToString()
    session = ort.InferenceSession(source)
    for sizes in ({"m": "N", "b:0": "N", "N": [1, 3]}, {"b:0": "m", "m": [3, 1]}):
        opened = CModel(data_of(source, sizes))
        context = CContext(opened)
        for rows in (1, 3):
            given = {"a": np.full((rows, 2), -1, np.float32), "b": np.ones((rows, 3), np.float32)}
            assert same(context(*given.values()), session.run(None, given))
        with pytest.raises(Refused, match="not compiled for inputs of these shapes"):
            context.reshape([(1, 2), (3, 3)])
        context.destroy()
        opened.close()
    with pytest.raises(NotImplementedFail, match="no plan can be made"):
        data_of(source, {"m": [1, 3], "b:0": [1, 3]})


@pytest.mark.parametrize("sizes,said", [
    ({"N": []}, "no sizes"), ({"N": [-1]}, "no sizes"), ({"N": [1.5]}, "no sizes"),
    ({"N": [2], "M": [1]}, "M"), ({"N": "M"}, "N=M"), ({"N": "N"}, "N=N"), ({"N": "M", "M": "N"}, "M=N"),
    ({"x:5": [1], "N": [1]}, "x:5"), ({"N": range(1 << 17)}, "too many")])
def test_sizes_that_cannot_be(sizes: Any, said: str) -> None:
    with pytest.raises(InvalidArgument, match=said):
        data_of(network(), sizes)


def test_no_rows_are_a_size() -> None:
    session, opened = ort.InferenceSession(network()), CModel(data_of(network(), {"N": [0, 2]}))
    context = CContext(opened)
    for rows in (0, 2, 0):
        assert same(context(*feeds(rows).values()), session.run(None, feeds(rows)))
    nothing = (ctypes.c_void_p * 2)(BY.ctypes.data, None)
    assert runtime().orthrus_run(context.address, nothing, (ctypes.c_void_p * 2)()) == OK
    context.destroy()
    opened.close()


def test_parts_outputs_that_nothing_computes_and_inputs_with_a_default() -> None:
    """Two graphs beside each other, a view, an input, a constant, and one value twice."""
    nodes = [helper.make_node("Relu", ["x"], ["r"]), helper.make_node("Neg", ["z"], ["n"]),
             helper.make_node("Transpose", ["z"], ["t"]), helper.make_node("Mul", ["r", "by"], ["m"])]
    some = np.arange(6, dtype=np.int64).reshape(2, 3)
    shapes = {"m": [4], "n": [2, 3], "t": [3, 2], "x": [4], "some": [2, 3], "r": [4]}
    kinds = {"some": TensorProto.INT64}
    source = model(nodes, [info("x", shape=[4]), info("z", shape=[2, 3]), info("by", shape=[4])],
                   [info(name, kinds.get(name, TensorProto.FLOAT), shape) for name, shape in shapes.items()],
                   {"some": some, "by": np.full(4, 3, np.float32)}).SerializeToString()
    x, z = np.array([-1, 2, -3, 4], np.float32), np.arange(6, dtype=np.float32).reshape(2, 3)
    opened = CModel(data_of(source))
    context = CContext(opened, 2)
    assert [v.name for v in opened.values()[0]] == [b"x", b"z"]
    made = context(x, z)
    assert same(made, ort.InferenceSession(source).run(None, {"x": x, "z": z}))
    context.destroy()
    opened.close()


def test_open_sizes_that_nothing_is_said_of() -> None:
    with pytest.raises(InvalidArgument, match="leaves sizes open"):
        data_of(network())


def test_what_numpy_computes_is_named() -> None:
    nodes = [helper.make_node("Relu", ["x"], ["y"]), helper.make_node("Unique", ["y"], ["z"], "lonely")]
    source = model(nodes, [info("x", shape=[4])], [info("z", shape=[None])]).SerializeToString()
    with pytest.raises(NotImplementedFail, match="lonely"):
        data_of(source)


def test_an_index_out_of_range_is_a_status() -> None:
    nodes = [helper.make_node("Gather", ["x", "i"], ["y"])]
    source = model(nodes, [info("x", shape=[4]), info("i", TensorProto.INT64, shape=[2])],
                   [info("y", shape=[2])]).SerializeToString()
    opened = CModel(data_of(source))
    context, x = CContext(opened), np.arange(4, dtype=np.float32)
    for _ in range(2):
        with pytest.raises(Refused) as found:
            context(x, np.array([1, 4]))
        assert found.value.status == BAD_INDEX
        np.testing.assert_array_equal(context(x, np.array([-1, 2]))[0], [3, 2])
    context.destroy()
    opened.close()


def test_numbers_that_transforms_are_not_for_are_a_status() -> None:
    rng = np.random.default_rng(0)
    w, x = (rng.standard_normal(shape).astype(np.float32) for shape in ((64, 64, 3, 3), (1, 64, 28, 28)))
    source = model([helper.make_node("Conv", ["x", "w"], ["y"], pads=[1] * 4)], [info("x", shape=x.shape)],
                   [info("y", shape=x.shape)], {"w": w}).SerializeToString()
    opened = CModel(data_of(source))
    context = CContext(opened)
    want = ort.InferenceSession(source).run(None, {"x": x})
    assert same(context(x), want)
    odd, made = x.copy(), [np.zeros_like(x)]
    odd[0, 3, 8, 8] = np.nan
    assert context.run([odd], made) == OUTSIDE and np.isnan(made[0]).any()
    assert same(context(x), want)
    context.destroy()
    opened.close()


def test_contexts_on_many_threads(small: bytes) -> None:
    """Each gives its own results; one that runs is busy for others; a stopped run says so."""
    session, opened = ort.InferenceSession(network()), CModel(small)
    wrong: list[Any] = []

    def work(seed: int) -> None:
        context = CContext(opened, 1 + seed % 4)
        for i in range(60):
            rows = 1 + (seed + i) % 6
            if not same(context(*feeds(rows, seed).values()), wanted[rows, seed]):
                wrong.append((seed, rows))
        context.destroy()
    wanted = {(rows, seed): session.run(None, feeds(rows, seed)) for rows in range(1, 7) for seed in range(8)}
    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    context = CContext(opened)
    stop = np.ones(1, np.int64)
    runtime().orthrus_stop_at(context.address, ctypes.c_void_p(stop.ctypes.data))
    with pytest.raises(Refused) as found:
        context(*feeds(2).values())
    assert found.value.status == STOPPED
    stop[:] = 0
    assert same(context(*feeds(2).values()), session.run(None, feeds(2)))
    context.destroy()
    opened.close()


def test_a_context_that_runs_is_busy() -> None:
    size = 500
    nodes = [helper.make_node("MatMul", ["x", "x"], ["h"]), helper.make_node("MatMul", ["h", "x"], ["y"])]
    square = [size, size]
    source = model(nodes, [info("x", shape=square)], [info("y", shape=square)]).SerializeToString()
    opened = CModel(data_of(source))
    context, x = CContext(opened), np.ones((size, size), np.float32)
    found: set[int] = set()

    def work() -> None:
        """Until the two have met."""
        made = [np.empty_like(x)]
        for _ in range(20_000):
            status = context.run([x], made)
            assert status == BUSY or (made[0] == size * size).all()
            found.add(status)
            if BUSY in found:
                break
    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {OK, BUSY}
    context.destroy()
    opened.close()


@needs("POSIX")
def test_a_forked_child_goes_on(small: bytes) -> None:
    """With contexts of before, and threads of its own."""
    session, opened = ort.InferenceSession(network()), CModel(small)
    context = CContext(opened, 4)
    want = session.run(None, feeds(5))
    assert same(context(*feeds(5).values()), want)
    child = os.fork()
    if not child:
        good = same(context(*feeds(5).values()), want) and same(CContext(opened, 2)(*feeds(5).values()), want)
        os._exit(0 if good else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert same(context(*feeds(5).values()), want)
    context.destroy()
    opened.close()


def test_memory_is_the_callers(small: bytes) -> None:
    """All of it, and given back with its size; where there is none, that is a status and nothing is left."""
    held: dict[int, tuple[Any, int]] = {}
    budget = [100]

    @ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t)
    def allocate(user: int, size: int, alignment: int) -> int:
        budget[0] -= 1
        if budget[0] < 0:
            return 0
        room = ctypes.create_string_buffer(size + alignment)
        at = ctypes.addressof(room) + -ctypes.addressof(room) % alignment
        held[at] = room, size
        return at

    @ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
    def release(user: int, at: int, size: int) -> None:
        assert held.pop(at)[1] == size
    functions = {"allocate": ctypes.cast(allocate, ctypes.c_void_p),
                 "release": ctypes.cast(release, ctypes.c_void_p)}
    options = COptions(ctypes.sizeof(COptions), 1, 0, *functions.values())
    want = ort.InferenceSession(network()).run(None, feeds(3))
    for least in range(12):
        budget[0] = least
        try:
            opened = CModel(small, options=options)
        except Refused:
            assert not held
            continue
        try:
            context = CContext(opened, **functions)
        except Refused:
            pass
        else:
            assert same(context(*feeds(3).values()), want)
            context.destroy()
        opened.close()
        assert not held
    assert budget[0] > 0


def test_a_processor_that_lacks_something() -> None:
    """The first target that fits is taken; where none does, what is missing is said."""
    here = machine_named("host")
    machines = [here, FORCED["avx2"], FORCED["sse2"]] if here.arch == "x86_64" else [here] * 3
    data = np.frombuffer(data_of(network(), {"N": [2]}, machines), np.uint8).copy()
    words = data[:len(data) // 8 * 8].view(np.int64)
    want = ort.InferenceSession(network()).run(None, feeds(2))
    for lacking in range(4):
        opened = None
        try:
            opened = CModel(data.tobytes())
        except Refused as refused:
            assert lacking == 3 and refused.status == UNSUPPORTED_CPU and "lacks" in refused.args[1]
            continue
        assert lacking < 3 and runtime().orthrus_chosen_target(opened.address) >= lacking
        context = CContext(opened, 2)
        for got, wanted in zip(context(*feeds(2).values()), want, strict=True):
            np.testing.assert_allclose(got, wanted, rtol=1e-5)
        context.destroy()
        opened.close()
        at = words[layout.Head.TARGETS] + lacking * layout.Target.WORDS
        words[at + layout.Target.ARCH if lacking == 2 else at + layout.Target.FEATURES] |= 1 << 40
        sealed(data)


def test_c_and_python_have_the_same_words() -> None:
    """Enums of `package.h`, features of `cpu.c`, cells of `pool.c` and `context.c`."""
    header = (SOURCES / "package.h").read_text()
    found = {name: int(value) for name, value in re.findall(r"\b([A-Z_]+) = (\d+)", header)}
    for prefix, words in (("HEAD", layout.Head), ("TARGET", layout.Target), ("PLAN", layout.Plan),
                          ("VALUE", layout.Row)):
        assert {f"{prefix}_{name}": at for name, at in vars(words).items() if name.isupper()} == {
            name: value for name, value in found.items() if name.startswith(f"{prefix}_")}
    cpu = (SOURCES / "cpu.c").read_text()
    for arch, text in zip(("x86_64", "aarch64", "riscv64"), cpu.split("struct feature {")[1:], strict=True):
        rows = re.findall(r'\{"([a-z0-9.-]+)"', text.split("#elif")[0])
        assert tuple(rows) == layout.FEATURES[arch]
    assert all(set(machine.features) - {f for f in machine.features if f.startswith("zvl")}
               <= set(layout.FEATURES[machine.arch]) for machine in FORCED.values())
    assert all(set(more) <= set(layout.FEATURES[FORCED[name].arch]) for name, more in BEYOND.items())
    cells = (SOURCES / "pool.c").read_text().split("enum pool_cell")[1].split("};")[0]
    pool = dict(re.findall(r"POOL_([A-Z]+)(?: = (\d+))?", cells))
    at = -1
    for name, value in pool.items():
        at = int(value) if value else at + 1
        assert getattr(process_cells.PoolCell, "END" if name == "CELLS" else name) == at or name == "CELLS"
    assert f" JUMP = {process_cells.JUMP} " in (SOURCES / "context.c").read_text()
    assert f"PLACES = {process_cells.PLACES}" in cells and "POOL_CELLS = 96 + 16 * PLACES" in cells


def mutated(data: bytes, seed: int) -> bytes:
    """A package with some words of its head changed, or cut short."""
    rng = np.random.default_rng(seed)
    made = np.frombuffer(data, np.uint8).copy()
    words = made[:int(made[:256].view(np.int64)[layout.Head.SIZE])].view(np.int64)
    for _ in range(int(rng.integers(1, 4))):
        at = int(rng.integers(1, layout.Head.WORDS if rng.random() < 0.4 else len(words)))
        some = (0, 1, -1, 8, 64, len(words), 8 * len(words), len(made), 1 << 20, 1 << 46, 1 << 62, -(1 << 63),
                int(words[at]) + int(rng.integers(-9, 9)), int(words[rng.integers(0, len(words))]))
        words[at] = some[int(rng.integers(0, len(some)))]
    if rng.random() < 0.1:
        made = made[:int(rng.integers(0, len(made)))]
    return made.tobytes()


def looks(data: bytes) -> tuple[bool, int]:
    """Whether Python opens a package and all its plans, and what C says of it."""
    try:
        opened = Package(data)
        for code in opened.codes:
            for at in code.plans.values():
                opened.tables(code, at)
        python = True
    except ValueError:
        python = False
    try:
        c_model = CModel(data, verify=False)
    except Refused as refused:
        return python, refused.status
    try:
        context = CContext(c_model)
        assert all(size >= 0 for shape in context.shapes() for size in shape)
        for rows in range(8):
            if runtime().orthrus_inputs(c_model.address) == 2 and [v.rank for v in context.inputs] == [1, 2]:
                try:
                    context.reshape([(5,), (rows, 4)])
                except Refused as refused:
                    assert refused.status in (SHAPE, DAMAGED)
        context.destroy()
        return python, OK
    except Refused as refused:
        return python, refused.status
    finally:
        c_model.close()


@pytest.mark.parametrize("seeds", [range(250), pytest.param(range(250, 20_000), marks=pytest.mark.slow)])
def test_hostile_packages_are_refused(small: bytes, seeds: range) -> None:
    """Whatever their heads say, and though their digests are in order."""
    assert looks(small) == (True, OK)
    statuses = set()
    for seed in seeds:
        made = mutated(small, seed)
        assert looks(made)[0] is False or made == small
        if len(made) >= 256:
            python, status = looks(sealed(np.frombuffer(made, np.uint8).copy()))
            statuses.add(status)
            assert status in (OK, DAMAGED, UNSUPPORTED_CPU, INVALID, 2)
    assert {OK, DAMAGED} <= statuses


def test_a_package_that_is_not_what_was_written(small: bytes) -> None:
    """Each byte of code, of constants and of the head counts, where it is asked for."""
    head = np.frombuffer(small, np.int64, layout.Head.WORDS)
    for at in (16, int(head[layout.Head.SIZE]) - 1, 8192, int(head[layout.Head.CONSTANTS]), 300):
        made = bytearray(small)
        made[at] ^= 1
        with pytest.raises(ValueError, match="damaged|no package"):
            Package(bytes(made))
        with pytest.raises(Refused) as found:
            CModel(bytes(made))
        assert found.value.status == DAMAGED


# sanitizers

SANITIZERS = {"address": "-fsanitize=address,undefined", "thread": "-fsanitize=thread", "valgrind": ""}


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a package of a convolutional network, and what it computes; valgrind knows no AVX-512."""
    folder = tmp_path_factory.mktemp("case")
    make, feed, _ = SWEEPS["network"]
    source, given = make(), feed(np.random.default_rng(3), 1, 32, 31)
    here = machine_named("host")
    data = data_of(source, {"batch": [1], "height": [32], "width": [31, 33]},
                   [FORCED["avx2"] if here.runs(FORCED["avx2"]) else here])
    (folder / "package").write_bytes(data)
    opened = CModel(data)
    context = CContext(opened)
    made = context(*given.values())
    context.destroy()
    opened.close()
    (folder / "data").write_bytes(b"".join(a.tobytes() for a in (*given.values(), *made)))
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("kind", [pytest.param(kind, marks=needs("valgrind")) if kind == "valgrind" else kind
                                  for kind in SANITIZERS])
def test_it_is_clean(case: Path, small: bytes, kind: str) -> None:
    """Threads, contexts, a fork and hostile packages, watched."""
    flags = [SANITIZERS[kind]] if SANITIZERS[kind] else []
    program = compiled(*flags, f"-I{SOURCES}", SOURCES / "runtime.c", Path(__file__).parent / "harness.c",
                       out=case / f"harness_{kind}")
    watch = ["valgrind", "-q", "--error-exitcode=9", "--leak-check=full",
             "--show-leak-kinds=definite", "--errors-for-leak-kinds=definite"] if kind == "valgrind" else []
    files = []
    for seed in range(120):
        files.append(case / f"hostile_{seed}")
        files[-1].write_bytes(sealed(np.frombuffer(mutated(small, seed), np.uint8).copy()))
    runs = [["run", case / "package", case / "data", threads, contexts, 6]
            for threads, contexts in ((1, 1), (4, 3))]
    for given in (*runs, ["open", *files]):
        done = subprocess.run([*watch, str(program), *map(str, given)], capture_output=True, text=True,
                              check=False, timeout=400,
                              env={**os.environ, "TSAN_OPTIONS": "die_after_fork=0"})
        assert not done.returncode and not done.stderr, done.stderr[-4000:]
