"""What a model's object file and header say, without a compiler: symbols, names, and what is refused."""

from __future__ import annotations

import re
import shutil
import struct
import subprocess
from pathlib import Path

import pytest
from skips import needs

from orthrus.demo import MODEL
from orthrus.errors import Fail, InvalidArgument
from orthrus.ir import ElementType
from orthrus.native.ahead import emit, toolchain
from orthrus.native.ahead.elf import LARGEST, MACHINES, Blob, relocatable
from orthrus.native.ahead.interface import (
    RUNTIME,
    SHIPPED,
    SOURCES,
    Interface,
    Value,
    header,
    name_for,
    named,
)

FLOAT, INT64 = ElementType.FLOAT, ElementType.INT64


def sections(data: bytes) -> dict[str, tuple[int, int, bytes]]:
    """Of an object file: by name, a section's flags, what it is aligned to, and its content."""
    (table,), (count, names) = struct.unpack_from("<Q", data, 40), struct.unpack_from("<HH", data, 60)
    rows = [struct.unpack_from("<IIQQQQIIQQ", data, table + 64 * i) for i in range(count)]
    texts = data[rows[names][4]:]
    return {texts[row[0]:texts.index(0, row[0])].decode(): (row[2], row[8], data[row[4]:row[4] + row[5]])
            for row in rows[1:]}


@pytest.mark.parametrize("arch", MACHINES)
def test_an_object_holds_its_blobs_where_its_symbols_say(arch: str) -> None:
    blobs = [Blob("m_weights", [b"abc", b"", b"defg"]),
             Blob("m_code_0", [b"\x90" * 5], code=True, align=4096), Blob("m_nothing", [])]
    data = b"".join(map(bytes, relocatable(arch, blobs)))
    (machine,) = struct.unpack_from("<H", data, 18)
    assert machine == MACHINES[arch][0]
    found = sections(data)
    assert found[".rodata.m_weights"] == (2, 64, b"abcdefg")
    assert found[".text.m_code_0"] == (6, 4096, b"\x90" * 5)
    assert ".note.GNU-stack" in found, "without it, a program's stack becomes executable"
    order, texts = list(found), found[".strtab"][2]
    symbols = {}
    for name, info, other, section, value, size in struct.iter_unpack("<IBBHQQ", found[".symtab"][2][24:]):
        symbols[texts[name:texts.index(0, name)].decode()] = (info, other, order[section - 1], value, size)
    hidden = 0x11, 2
    assert symbols == {"m_weights": (*hidden, ".rodata.m_weights", 0, 7),
                       "m_code_0": (*hidden, ".text.m_code_0", 0, 5),
                       "m_nothing": (*hidden, ".rodata.m_nothing", 0, 0)}


def test_objects_that_no_linker_could_use_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="sparc"):
        relocatable("sparc", [])

    class Large(Blob):
        size = LARGEST + 1
    with pytest.raises(InvalidArgument, match="beside"):
        relocatable("x86_64", [Large("w", [])])


@pytest.mark.parametrize("text,expected", [
    ("digits", "digits"), ("Mobile-Net v2.1", "mobile_net_v2_1"), ("1st", "model_1st"), ("int", "model_int"),
    ("Größe", "gr_e"), ("__", "model"), ("orthrus", "model_orthrus"), ("a" * 90, "a" * 60),
    ("string", "model_string"), ("m", "model_m"), ("Search", "model_search")])
def test_a_file_gives_its_model_a_name(text: str, expected: str) -> None:
    assert re.fullmatch("[a-z][a-z0-9_]*", name_for(text))
    assert re.sub("_+", "_", name_for(text)) == expected
    named(name_for(text))


@pytest.mark.parametrize("name", ["", "1st", "int", "main", "a-b", "a b", "é", "_x", "orthrus_x", "a" * 61,
                                  "x;", "co_await", "string", "Time", "pthread", "c"])
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(InvalidArgument, match="--name"):
        named(name)


@pytest.mark.parametrize("name", ["lambda", "json", "numpy"])
def test_names_that_no_python_package_can_have_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="--name"):
        emit(MODEL, "python-free-wheel", name, tmp_path)


@needs("Linux")
@needs("C compiler")
def test_no_header_of_the_system_is_hidden_by_a_models_own() -> None:
    """None of those that the runtime includes, or includes in turn."""
    included = set(re.findall(r"#include <(\w+)\.h>", "".join(
        file.read_text() for folder in (RUNTIME, SOURCES) for file in folder.iterdir())))
    included.discard("cpuid")  # of one processor only
    program = "".join(f"#include <{name}.h>\n" for name in included)
    listed = subprocess.run(["cc", "-M", "-x", "c", "-"], input=program, capture_output=True, text=True,
                            check=True).stdout
    top = {Path(file).stem for file in re.findall(r"\S+\.h", listed)
           if Path(file).parent.name == "include" and re.fullmatch("[a-z][a-z0-9_]*", Path(file).stem)}
    assert included and top >= included
    for name in included | top | {"cpuid"}:
        with pytest.raises(InvalidArgument, match="--name"):
            named(name)


@needs("C compiler")
@pytest.mark.parametrize("language", ["c", "c++"])
def test_names_that_mean_something_to_compilers_are_no_parameters(language: str, tmp_path: Path) -> None:
    words = ["thread_local", "decltype", "co_await", "requires", "typeof", "errno", "NULL", "EOF", "stdin",
             "linux", "unix", "int64_t", "uint8_t", "inferred", "INT64_MAX", "ORTHRUS_OK", "shape_0_",
             "inputs_", "double", "N", "X"]
    value = [Value(word, FLOAT, (word, 2)) for word in words]
    text = header(Interface("net", value, [Value(word, FLOAT, (3,)) for word in words], {}, ["any"]))
    (tmp_path / "net.h").write_text("#include <errno.h>\n#include <limits.h>\n#include <stdio.h>\n" + text)
    for file in SHIPPED:
        shutil.copy(file, tmp_path)
    for flag in {"c": ("c11", "gnu17", "gnu2x"), "c++": ("c++17", "gnu++20")}[language]:
        made = subprocess.run(["cc", f"-std={flag}", "-Wall", "-Wextra", "-Werror", "-pedantic",
                               "-fsyntax-only", "-x", language, tmp_path / "net.h"], capture_output=True,
                              text=True, check=False)
        assert made.returncode == 0, made.stderr


def interface(inputs: list[Value], outputs: list[Value]) -> str:
    """The parameters of the typed call."""
    text = header(Interface("net", inputs, outputs, {}, ["some machine"]))
    found = re.search(r"^int net_infer\(([^;]*)\);$", text, re.M)
    assert found
    return " ".join(found[1].split())


def test_the_typed_call_has_a_parameter_for_each_size_input_and_output() -> None:
    assert interface([Value("image", FLOAT, ("N", 1, 8, 8))], [Value("label", INT64, ("N",))]) == \
        "int64_t N, const float *image, int64_t *label"
    half = Value("z", ElementType.FLOAT16, (7,))
    assert interface([Value("x", FLOAT, (2, 3)), Value("y", FLOAT, ())], [half]) == \
        "const float x[2 * 3], const float *y, uint16_t z[7]"


def test_names_that_are_none_in_c_or_the_same_become_distinct() -> None:
    row = (3,)
    made = interface([Value("a/b:0", FLOAT, row), Value("a_b_0", FLOAT, row), Value("int", FLOAT, row),
                      Value("0", FLOAT, ("n m", "*/ x")), Value("shapes", FLOAT, ("int", None))],
                     [Value("a_b_0", FLOAT, row), Value("é", FLOAT, row)])
    names = re.findall(r"(\w+)(?:\[\d+\])?(?:,|$)", made)
    assert len(names) == len(set(names)) == 3 + 5 + 2
    assert all(re.fullmatch("[A-Za-z][A-Za-z0-9_]*[A-Za-z0-9]|[A-Za-z]", name) for name in names)
    assert "int" not in names


def test_a_text_from_the_model_does_not_end_a_comment() -> None:
    text = header(Interface("net", [Value("*/ int x; /*\n#error", FLOAT, ("*/",))], [], {"*/": "1"}, ["a"]))
    comment = text[:text.index("#ifndef")]
    assert comment.count("*/") == 1 and comment.rstrip().endswith("*/") and "\n#error" not in comment


@needs("generated code")
def test_what_cannot_be_is_refused_before_anything_is_compiled(tmp_path: Path) -> None:
    def refused(text: str, **given: object) -> None:
        with pytest.raises(InvalidArgument, match=text):
            emit(MODEL, **{"form": "object", "folder": tmp_path / "out", **given})  # type: ignore[arg-type]
    refused("library", form="dll")
    refused("beside", weights="elsewhere")
    refused("--name", name="9")
    refused("avx2", targets=["avx3"])
    refused("one architecture", targets=["avx2", "neon"])
    refused("twice", targets=["avx2", "avx2"])
    refused("--dim", sizes={})
    assert not (tmp_path / "out").exists()


@needs("generated code")
def test_object_and_header_need_no_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(toolchain, "zig_command", lambda: None)
    files = emit(MODEL, "object", folder=tmp_path, sizes={"N": [1]}, targets=["neon"], weights="beside")
    assert {f.name for f in files} == {"digits.o", "digits.c", "digits.h", "orthrus.h", "orthrus_library.h",
                                       "orthrus.hpp", "digits.weights"}
    assert sorted(tmp_path.iterdir()) == sorted(files)
    with pytest.raises(Fail, match="--force"):
        emit(MODEL, "header", folder=tmp_path, sizes={"N": [1]}, targets=["neon"])
    with pytest.raises(Fail, match="pip install ziglang"):
        emit(MODEL, "library", folder=tmp_path, sizes={"N": [1]}, targets=["neon"])
    with pytest.raises(Fail, match="static C library"):
        emit(MODEL, "executable", folder=tmp_path, sizes={"N": [1]}, targets=["neon"])
