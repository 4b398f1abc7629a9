"""Tensor data outside the model file: what is read, and every way out of the model's folder that is refused.
"""

from __future__ import annotations

import os
import pathlib
import tracemalloc
from collections.abc import Callable

import ml_dtypes
import numpy as np
import onnx
import pytest
from load_cases import model, node, tensor
from onnx import TensorProto, helper, numpy_helper
from skips import needs

import orthrus as ort
from orthrus import errors, knobs
from orthrus.ir import LazyArray
from orthrus.load import load, save

DATA = np.arange(6, dtype=np.float32).reshape(2, 3)
LEADING = "External data path validation failed for initializer: w. Error: "


def outside(location: str | None, **entries: str) -> TensorProto:
    made = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[2, 3], data_location=TensorProto.EXTERNAL)
    if location is not None:
        made.external_data.add(key="location", value=location)
    for key, value in entries.items():
        made.external_data.add(key=key, value=value)
    return made


def written(folder: pathlib.Path, weight: TensorProto) -> pathlib.Path:
    path = folder / "m.onnx"
    path.write_bytes(model([node("Add", ["a", "w"], ["c"])], initializers=[weight]).SerializeToString())
    return path


@pytest.fixture
def folder(tmp_path: pathlib.Path) -> pathlib.Path:
    """A model's folder with `w.bin`, beside it a secret."""
    inner = tmp_path / "models"
    (inner / "sub").mkdir(parents=True)
    for path in (inner / "w.bin", inner / "sub" / "w.bin", tmp_path / "secret.bin"):
        path.write_bytes(DATA.tobytes())
    return inner


def constant(folder: pathlib.Path, weight: TensorProto) -> np.ndarray:
    return load(written(folder, weight)).initializers["w"].const


@pytest.mark.parametrize("weight", [outside("w.bin"), outside("sub/w.bin"), outside("./w.bin"),
                                    outside("w.bin", offset="0", length="24", checksum="x", basepath="y")])
def test_data_in_the_folder_is_read(folder: pathlib.Path, weight: TensorProto) -> None:
    np.testing.assert_array_equal(constant(folder, weight), DATA)


@pytest.mark.parametrize("size", [6, 1 << 16])
@pytest.mark.parametrize("how", ["switch", "option"])
def test_data_that_is_read_outlives_its_file(how: str, size: int, tmp_path: pathlib.Path) -> None:
    """Cut short while mapped, it would end the process; so would this test."""
    data = np.arange(size, dtype=np.float32)
    given = helper.make_graph([node("Gather", ["w", "i"], ["y"])], "g",
                              [helper.make_tensor_value_info("i", TensorProto.INT64, ["k"])],
                              [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
                              [numpy_helper.from_array(data, "w")])
    path = tmp_path / "m.onnx"
    onnx.save(helper.make_model(given, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path,
              save_as_external_data=True, location="w.bin", size_threshold=0)
    options = ort.SessionOptions()
    if how == "option":
        options.add_session_config_entry("orthrus.map_external_data", "0")
    with knobs.setting(MAP=int(how == "option")):
        session = ort.InferenceSession(path, options)
    for _ in range(2):
        np.testing.assert_array_equal(session.run(None, {"i": np.array([size - 1, 0])})[0], [size - 1, 0])
        os.truncate(tmp_path / "w.bin", 0)
    with pytest.raises(errors.Fail, match="External data ends before"):
        ort.InferenceSession(path, options)


def test_offsets_overlap_and_odd_alignment(folder: pathlib.Path) -> None:
    (folder / "w.bin").write_bytes(b"\1\2\3" + DATA.tobytes() + b"rest")
    np.testing.assert_array_equal(constant(folder, outside("w.bin", offset="3", length="24")), DATA)
    np.testing.assert_array_equal(constant(folder, outside("w.bin", offset="3")), DATA)


def test_large_data_is_mapped_read_only(folder: pathlib.Path) -> None:
    big = np.arange(1 << 16, dtype=np.float32)
    (folder / "w.bin").write_bytes(big.tobytes())
    weight = outside("w.bin")
    weight.dims[:] = [1 << 16]
    path = folder / "m.onnx"
    made = model([node("Add", ["a", "w"], ["c"])], [tensor("a", (1 << 16,))], initializers=[weight])
    path.write_bytes(made.SerializeToString())
    array = load(path).initializers["w"].const
    np.testing.assert_array_equal(array, big)
    assert not array.flags.writeable and not array.flags.owndata


WEIGHTS = np.random.default_rng(0).standard_normal((768, 768), np.float32)


def heavy(kind: str) -> tuple[list[onnx.NodeProto], list[np.ndarray], list[int | str]]:
    """Nodes from x to y by weights w0 and on that become something else, and the shape of x."""
    quantized = np.random.default_rng(1).integers(0, 255, (768, 24, 16), np.uint8)
    return {
        "product": ([node("MatMul", ["x", "w0"], ["y"])], [WEIGHTS], ["n", 768]),
        "half": ([node("MatMul", ["x", "w0"], ["y"])], [WEIGHTS.astype(np.float16)], ["n", 768]),
        "transposed": ([node("Transpose", ["w0"], ["t"]), node("MatMul", ["x", "t"], ["y"])], [WEIGHTS],
                       ["n", 768]),
        "scaled": ([node("Conv", ["x", "w0"], ["c"]),
                    node("BatchNormalization", ["c", "w1", "w1", "w1", "w1"], ["y"])],
                   [WEIGHTS[:, :, None], np.ones(768, np.float32)], ["n", 768, 8]),
        "cast": ([node("Cast", ["w0"], ["f"], to=TensorProto.FLOAT), node("MatMul", ["x", "f"], ["y"])],
                 [WEIGHTS.astype(np.float16)], ["n", 768]),
        "codes": ([node("DequantizeLinear", ["w0", "w1"], ["f"]), node("MatMul", ["x", "f"], ["y"])],
                  [(WEIGHTS * 50).astype(np.int8), np.array(0.02, np.float32)], ["n", 768]),
        "few bits": ([node("MatMulNBits", ["x", "w0", "w1"], ["y"], domain="com.microsoft", K=768, N=768,
                           bits=4, block_size=32)],
                     [quantized, np.full(768 * 24, 0.01, np.float32)], ["n", 768]),
    }[kind]


@needs("Linux")
@pytest.mark.parametrize("offset", [0, 3, 64])
@pytest.mark.parametrize("kind", ["product", "half", "transposed", "scaled", "cast", "codes", "few bits"])
def test_packed_data_leaves_memory(kind: str, offset: int, tmp_path: pathlib.Path) -> None:
    """Neither the file's pages nor a copy stay beside packed weights."""
    nodes, arrays, shape = heavy(kind)
    element = TensorProto.FLOAT16 if kind == "half" else TensorProto.FLOAT
    proto = model(nodes, [tensor("x", shape, element)], [tensor("y", [None] * len(shape), element)],
                  [numpy_helper.from_array(a, f"w{i}") for i, a in enumerate(arrays)],
                  {"": 17, "com.microsoft": 1})
    inside = proto.SerializeToString()
    with (tmp_path / "w.bin").open("wb") as file:
        file.write(bytes(offset) + arrays[0].tobytes() + bytes(offset))
    weight = proto.graph.initializer[0]
    weight.ClearField("raw_data")
    weight.data_location = TensorProto.EXTERNAL
    for key, value in (("location", "w.bin"), ("offset", str(offset))):
        weight.external_data.add(key=key, value=value)
    (tmp_path / "m.onnx").write_bytes(proto.SerializeToString())
    session = ort.InferenceSession(tmp_path / "m.onnx")
    x = np.random.default_rng(2).standard_normal([3 if d == "n" else d for d in shape]).astype(
        np.float16 if kind == "half" else np.float32)
    for rows in (x, x[:1], x):
        [y] = session.run(None, {"x": rows})
    np.testing.assert_array_equal(y, ort.InferenceSession(inside).run(None, {"x": x})[0])
    for value in session._sess._engine.graph.initializers.values():
        assert value.const.nbytes < arrays[0].nbytes // 2 or type(value.const) is LazyArray
    maps = pathlib.Path("/proc/self/smaps").read_text().split("w.bin\n")
    assert len(maps) > 1, "it is mapped"
    resident = sum(int(rows.split("Rss:")[1].split()[0]) << 10 for rows in maps[1:])
    assert resident < arrays[0].nbytes // 4


@pytest.mark.parametrize("kind", ["float32", "bool", "int64", "float16", "bfloat16", "float8_e4m3fn", "int4",
                                  "uint4"])
@pytest.mark.parametrize("offset", [0, 1, 6])
def test_files_in_memory_may_hold_every_type(kind: str, offset: int) -> None:
    dtype = np.dtype(kind) if kind in ("float32", "bool", "int64", "float16") else np.dtype(
        getattr(ml_dtypes, kind))
    given = np.arange(15).reshape(3, 5).astype(np.int8).astype(dtype)
    weight = helper.make_tensor("w", helper.np_dtype_to_tensor_dtype(dtype), [3, 5],
                                numpy_helper.from_array(given).raw_data, raw=True)
    content = bytes(offset) + weight.raw_data
    weight.ClearField("raw_data")
    weight.data_location = TensorProto.EXTERNAL
    for key, value in (("location", "w.bin"), ("offset", str(offset))):
        weight.external_data.add(key=key, value=value)
    proto = model([node("Cast", ["w"], ["f"], to=TensorProto.FLOAT), node("Add", ["a", "f"], ["c"])],
                  [tensor("a", ())], initializers=[weight], opsets={"": 21}, ir=10)
    options = ort.SessionOptions()
    options.add_external_initializers_from_files_in_memory(["w.bin"], [content], [len(content)])
    [c] = ort.InferenceSession(proto.SerializeToString(), options).run(None, {"a": np.float32(1)})
    np.testing.assert_array_equal(c, given.astype(np.float32) + 1)


def test_a_file_in_memory_is_not_copied() -> None:
    content, options = bytes(1 << 22), ort.SessionOptions()
    tracemalloc.start()
    try:
        options.add_external_initializers_from_files_in_memory(["w.bin"], [content], [len(content)])
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert most < len(content) // 2


ATTACKS: dict[str, Callable[[pathlib.Path], TensorProto]] = {
    "parent": lambda f: outside("../secret.bin"),
    "parent in the middle": lambda f: outside("sub/../../secret.bin"),
    "absolute": lambda f: outside(str(f.parent / "secret.bin")),
    "drive": lambda f: outside("C:/secret.bin"),
    "share": lambda f: outside("//server/share/secret.bin"),
    "backslashes": lambda f: outside("..\\secret.bin"),
    "address": lambda f: outside("file:///secret.bin"),
    "NUL": lambda f: outside("w.bin\0.txt"),
    "no location": lambda f: outside(None),
    "empty location": lambda f: outside(""),
    "the folder": lambda f: outside("."),
    "a folder": lambda f: outside("sub"),
    "missing": lambda f: outside("gone.bin"),
    "process memory": lambda f: outside("*/_ORT_MEM_ADDR_/*", offset="140000000", length="24"),
    "/proc/self/mem": lambda f: outside("/proc/self/mem"),
    "device": lambda f: outside("/dev/zero"),
    "linked file": lambda f: (os.symlink(f.parent / "secret.bin", f / "link.bin"), outside("link.bin"))[1],
    "linked parent": lambda f: (os.symlink(f.parent, f / "up"), outside("up/secret.bin"))[1],
    "link to a link": lambda f: (
        os.symlink(f / "l2", f / "l1"),
        os.symlink(f.parent / "secret.bin", f / "l2"),
        outside("l1"),
    )[2],
    "link in a circle": lambda f: (
        os.symlink(f / "l2", f / "l1"),
        os.symlink(f / "l1", f / "l2"),
        outside("l1"),
    )[2],
    "hard link": lambda f: (os.link(f.parent / "secret.bin", f / "hard.bin"), outside("hard.bin"))[1],
    "pipe": lambda f: (os.mkfifo(f / "pipe"), outside("pipe"))[1],
    "negative offset": lambda f: outside("w.bin", offset="-4"),
    "negative length": lambda f: outside("w.bin", length="-24"),
    "offset no number": lambda f: outside("w.bin", offset="0x0"),
    "offset with spaces": lambda f: outside("w.bin", offset=" 0"),
    "offset in other digits": lambda f: outside("w.bin", offset="٣"),
    "huge offset": lambda f: outside("w.bin", offset=str(1 << 62)),
    "overflowing offset": lambda f: outside("w.bin", offset="9" * 40),
    "offset past the end": lambda f: outside("w.bin", offset="4"),
    "length past the end": lambda f: outside("w.bin", length="28"),
    "length of another size": lambda f: outside("w.bin", length="20"),
    "unknown key": lambda f: outside("w.bin", __class__="x"),
    "key twice": lambda f: (w := outside("w.bin"), w.external_data.add(key="location", value="sub/w.bin"))[0],
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_attacks_are_refused(folder: pathlib.Path, attack: str) -> None:
    with pytest.raises(errors.Fail) as caught:
        constant(folder, ATTACKS[attack](folder))
    assert caught.value.text.startswith(LEADING)


@pytest.mark.parametrize("place", ["Constant", "sparse initializer", "sparse Constant", "function", "body"])
def test_attacks_elsewhere_in_a_model(folder: pathlib.Path, place: str) -> None:
    weight = outside("../secret.bin")
    constant = node("Constant", [], ["w"], value=weight)
    use = node("Add", ["a", "w"], ["c"])
    imports = [helper.make_opsetid("", 17)]
    if place == "Constant":
        made = model([constant, use])
    elif place == "function":
        made = model([node("F", ["a"], ["c"], domain="f")], opsets={"": 17, "f": 1},
                     functions=[helper.make_function("f", "F", ["a"], ["c"], [constant, use], imports)])
    elif place == "body":
        branch = helper.make_graph([constant, use], "b", [], [tensor("c", None)])
        made = model([node("If", ["k"], ["c"], then_branch=branch, else_branch=branch)],
                     [tensor("a"), tensor("k", (), TensorProto.BOOL)])
    else:
        values = outside("../secret.bin")
        values.dims[:] = [6]
        sparse = onnx.SparseTensorProto(values=values, dims=[2, 3],
                                        indices=helper.make_tensor("i", TensorProto.INT64, [6], range(6)))
        if place == "sparse Constant":
            made = model([node("Constant", [], ["w"], sparse_value=sparse), use])
        else:
            made = model([use])
            made.graph.sparse_initializer.append(sparse)
    path = folder / "m.onnx"
    path.write_bytes(made.SerializeToString())
    with pytest.raises(errors.Fail, match="External data path validation failed"):
        load(path)


def test_bytes_need_a_folder(folder: pathlib.Path) -> None:
    raw = written(folder, outside("w.bin")).read_bytes()
    with pytest.raises(errors.Fail, match="external_root"):
        load(raw)
    np.testing.assert_array_equal(load(raw, external_root=str(folder)).initializers["w"].const, DATA)
    given = {"w": DATA + 1}
    np.testing.assert_array_equal(load(raw, initializers=given).initializers["w"].const, DATA + 1)


def test_a_cache_of_links_as_hugging_face_keeps_it(tmp_path: pathlib.Path) -> None:
    """`snapshots/x/model.onnx` and its data are links into `blobs`; nothing else outside the folder may be
    linked to."""
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "x"
    blobs.mkdir()
    snapshot.mkdir(parents=True)
    (blobs / "1").write_bytes(written(blobs, outside("w.bin")).read_bytes())
    (blobs / "2").write_bytes(DATA.tobytes())
    os.symlink("../../blobs/1", snapshot / "model.onnx")
    os.symlink("../../blobs/2", snapshot / "w.bin")
    np.testing.assert_array_equal(load(snapshot / "model.onnx").initializers["w"].const, DATA)
    (tmp_path / "secret").write_bytes(DATA.tobytes())
    os.unlink(snapshot / "w.bin")
    os.symlink(tmp_path / "secret", snapshot / "w.bin")
    with pytest.raises(errors.Fail, match="escapes the model's folder"):
        load(snapshot / "model.onnx")


def test_a_link_inside_the_folder_is_followed(folder: pathlib.Path) -> None:
    os.symlink("sub/w.bin", folder / "near.bin")
    np.testing.assert_array_equal(constant(folder, outside("near.bin")), DATA)


def test_saving_with_a_data_file(folder: pathlib.Path) -> None:
    graph = load(written(folder, outside("w.bin")))
    save(graph, folder / "out.onnx", external_file="out.bin", external_threshold=1)
    assert (folder / "out.bin").stat().st_size == 24
    np.testing.assert_array_equal(load(folder / "out.onnx").initializers["w"].const, DATA)


@pytest.mark.parametrize("name", ["../x.bin", "/tmp/x.bin", "sub/x.bin", "a\\b", "..", "", "C:x", "x\0"])
def test_the_data_file_stays_in_the_folder(folder: pathlib.Path, name: str) -> None:
    graph = load(written(folder, outside("w.bin")))
    with pytest.raises(errors.InvalidArgument):
        save(graph, folder / "out.onnx", external_file=name)


def test_saving_replaces_a_link_instead_of_writing_through_it(folder: pathlib.Path) -> None:
    graph = load(written(folder, outside("w.bin")))
    secret = folder.parent / "secret.bin"
    os.symlink(secret, folder / "out.bin")
    save(graph, folder / "out.onnx", external_file="out.bin", external_threshold=1)
    assert secret.read_bytes() == DATA.tobytes() and not (folder / "out.bin").is_symlink()
