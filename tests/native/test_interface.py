"""The table of onnxruntime's C interface, its header, and what the functions that need no model answer: the
same as onnxruntime's own library where that is installed."""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
from difflib import unified_diff
from itertools import chain
from pathlib import Path

import dropin
import onnx
import pytest
from onnx import TensorProto, helper
from skips import ORDER, needs

from orthrus.native.dropin import build, table

pytestmark = [pytest.mark.slow, needs("generated code", "Linux")]
HERE = Path(__file__).parent
SOURCES = (HERE / "interface_calls.c", HERE / "interface_values.c")
STRICT = ("-std=c11", "-Wall", "-Wextra", "-Werror", "-pedantic")
OURS_ARE_MORE = ("ROCM", "MIGraphX", "CUDA", "Dnnl", "CUDAExecutionProvider")
"""Providers that this package has and a wheel of onnxruntime for the CPU has not."""
BETTER_TEXT = ("/onnxruntime_src/", "Unsupported type proto", "Unknown provider name", "Expected:768",
               "expected 768", "/nowhere", "is no longer built into ONNX Runtime")
"""In texts of theirs that name their source or their kinds of string: there the code alone has to be the
same."""
NEEDS_NO_MODEL = ("status", "lock", "memory", "pairs", "types", "value", "strings", "sparse", "env",
                  "sharing", "options", "run_options", "providers", "devices", "base", "attributes",
                  "protobuf")
"""The library's sources that the calls reach, which can be built without the others."""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build.build(tmp_path_factory.mktemp("capi"))


def _program(built: Path, out: Path, *flags: str) -> Path:
    """The calls as a program."""
    subprocess.run(["cc", *flags, f"-I{built / 'include'}", *SOURCES, "-o", out, "-ldl"], check=True)
    return out


def _calls(program: Path, library: Path) -> dict[str, list[str]]:
    """What every group of calls writes."""
    done = subprocess.run([program, library], capture_output=True, text=True, timeout=300,
                          env={**os.environ, "ASAN_OPTIONS": "allocator_may_return_null=1"})
    assert done.returncode == 0, done.stderr[-2000:]
    groups: dict[str, list[str]] = {}
    for line in done.stdout.splitlines():
        if line.startswith("== "):
            lines = groups.setdefault(line[3:], [])
        elif groups and line:
            lines.append(line)
    return groups


def _comparable(theirs: list[str], ours: list[str]) -> tuple[list[str], list[str]]:
    """Both without the texts that may differ."""
    codes = [_code(line) if any(text in line for text in BETTER_TEXT) else line for line in theirs]
    cut = {line for line, whole in zip(codes, theirs, strict=True) if line != whole}
    shorter = [_code(line) if _code(line) in cut else line for line in ours]
    return ([line for line in codes if not _more(line)],
            [line for line in shorter if not _more(line) and not line.startswith("  cure: ")])


def _code(line: str) -> str:
    return re.sub(r"(: \d+) .*", r"\1", line)


def _more(line: str) -> bool:
    """Whether a line is about a provider that we have and they have not."""
    return line.split(" ")[0] in OURS_ARE_MORE or re.match(
        r"(SessionOptionsAppendExecutionProvider_|Create)(CUDA|ROCM|MIGraphX|Dnnl)", line) is not None


def test_calls_answer_as_onnxruntime_does(built: Path, tmp_path: Path) -> None:
    library = dropin.their_library()
    program = _program(built, tmp_path / "calls", *STRICT)
    theirs, ours = _calls(program, library), _calls(program, built / "lib" / build.SONAME)
    differences = []
    for name, lines in theirs.items():
        assert not any(line.startswith("crashed") for line in ours[name]), (name, ours[name][-3:])
        differences += list(unified_diff(*_comparable(lines, ours[name]), name, name, lineterm="", n=2))
    assert not differences, "\n".join(differences)
    assert sum(map(len, theirs.values())) > 2000


def test_calls_keep_to_their_memory(built: Path, tmp_path: Path) -> None:
    sanitized = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-g"]
    here = Path(table.__file__).parent
    sources = [here / f"{name}.c" for name in NEEDS_NO_MODEL]
    (tmp_path / "table.h").write_text(table.declarations())
    (tmp_path / "table.c").write_text(table.definitions())
    subprocess.run(["cc", *STRICT, "-fPIC", "-shared", *sanitized, f"-I{built / 'include'}", f"-I{tmp_path}",
                    f"-I{here}", *sources, tmp_path / "table.c", "-o", tmp_path / "lib.so", "-pthread"],
                   check=True)
    program = _program(built, tmp_path / "calls", "-std=c11", *sanitized)
    for name, lines in _calls(program, tmp_path / "lib.so").items():
        assert lines and not any(line.startswith("crashed") for line in lines), name


def test_no_slot_is_null_and_every_version_gets_the_table(built: Path) -> None:
    library = ctypes.CDLL(str(built / "lib" / build.SONAME))
    library.OrtGetApiBase.restype = ctypes.POINTER(ctypes.c_void_p)
    base = library.OrtGetApiBase()
    get_api = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_uint32)(base[0])
    given = {get_api(version) for version in range(1, table.LEVEL + 1)}
    assert len(given) == 1 and get_api(0) is None and get_api(table.LEVEL + 1) is None
    functions = table.read().tables["OrtApi"]
    slots = ctypes.cast(next(iter(given)) or 0, ctypes.POINTER(ctypes.c_void_p))
    assert len(functions) == 429 and all(slots[i] for i in range(len(functions)))
    assert ctypes.CFUNCTYPE(ctypes.c_char_p)(base[1])() == table.API_LEVEL.encode()
    what = ctypes.CFUNCTYPE(ctypes.c_char_p, ctypes.c_void_p)(slots[2])
    absent = set(table.absent()["OrtApi"])
    for place, each in enumerate(functions):
        if each.name in absent and each.returns == table.STATUS:
            count = len(each.parameters)
            called = ctypes.CFUNCTYPE(ctypes.c_void_p, *[ctypes.c_void_p] * count)(slots[place])
            said = what(called(*[None] * count)).decode()
            assert f"{each.name} is not implemented" in said
            assert "CustomOp" not in each.name or "cure: write the operator in Python" in said


NAMES_AT = {0: "CreateStatus", 9: "Run", 92: "ReleaseEnv", 100: "ReleaseSessionOptions", 424:
            "SessionOptionsSetWeightlessSourceModelBuffer", 425: "KernelContext_GetPreallocatedOutput",
            427: "GetModelPackageApi", 428: "EpDevice_GetMemoryCapacity"}
"""Slots whose places are known from elsewhere."""


def test_the_functions_lie_in_their_slots() -> None:
    interface = table.read()
    names = [each.name for each in interface.tables["OrtApi"]]
    assert {slot: names[slot] for slot in NAMES_AT} == NAMES_AT
    whole = list(chain.from_iterable(interface.tables.values()))
    assert len({each.name for each in whole}) == len(whole)


def test_the_page_names_all_that_is_not_there() -> None:
    page = (Path(__file__).parents[2] / "docs" / "drop_in.md").read_text(encoding="utf-8")
    assert table.written(page) == page, "python -m orthrus.native.dropin.table docs/drop_in.md"
    absent = {each for names in table.absent().values() for each in names}
    said = set(re.findall(r"`(\w+)`", page.partition("<!-- not there -->")[2]))
    assert {each for each in absent if not each.startswith("Release")} == said


@needs("header")
def test_the_header_has_the_functions_in_onnxruntime_s_order() -> None:
    known = ORDER.read_text(encoding="utf-8").split()
    functions = table.read().tables["OrtApi"]
    names = [each.name for each in functions]
    assert [each for each in names if each in known] == known
    before = functions[:names.index(known[-1])]
    assert all(each.returns != table.STATUS for each in before if each.name not in known), "it lacks others"
    declared = re.search(r"^struct OrtApi \{(.*?)^\};", table.header(), re.M | re.S)
    assert declared and re.findall(r"ORT_API_CALL\* (\w+)\)", declared[1]) == names


SIZES = {"OrtAllocator": 64, "OrtCUDAProviderOptions": 64, "OrtROCMProviderOptions": 64,
         "OrtTensorRTProviderOptions": 104, "OrtMIGraphXProviderOptions": 88,
         "OrtOpenVINOProviderOptions": 56, "OrtEnvCreationOptions": 48,
         "OrtCustomOp": 208, "OrtThreadPoolCallbacksConfig": 48, "OrtApi": 429 * 8, "OrtApiBase": 16}


@pytest.mark.parametrize("compiler, flags", [("cc", STRICT), ("cc", ("-std=c99", "-Werror", "-Wall")),
                                             ("c++", ("-std=c++11", "-Werror", "-Wall", "-Wextra")),
                                             ("c++", ("-std=c++20", "-Werror", "-Wall", "-Wextra"))])
def test_the_headers_compile_and_their_structs_have_their_sizes(built: Path, tmp_path: Path, compiler: str,
                                                              flags: tuple[str, ...]) -> None:
    source = tmp_path / ("sizes.c" if compiler == "cc" else "sizes.cc")
    checks = "".join(f"typedef char size_of_{name}[sizeof({name}) == {size} ? 1 : -1];\n"
                     for name, size in SIZES.items())
    headers = sorted(each.name for each in (built / "include").glob("*.h") if "first" not in each.name)
    assert len(headers) >= 4
    included = "".join(f'#include "{name}"\n' for name in headers)
    source.write_text(f"{included}{checks}int main(void) {{ return 0; }}\n")
    subprocess.run([compiler, *flags, f"-I{built / 'include'}", source, "-o", tmp_path / "sizes"], check=True)


@pytest.mark.parametrize("compiler, flags", [
    ("cc", STRICT), ("c++", ("-x", "c++", "-std=c++11", "-Wall", "-Wextra", "-Werror"))])
def test_the_introductions_example_compiles_and_runs(built: Path, tmp_path: Path, compiler: str,
                                                     flags: tuple[str, ...]) -> None:
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n"]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Add", ["x", "x"], ["y"])], "g", [x], [y])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8),
              tmp_path / "m.onnx")
    library = built / "lib"
    program = tmp_path / "introduction"
    subprocess.run([compiler, *flags, HERE / "introduction.c", f"-I{built / 'include'}", f"-L{library}", "-x",
                    "none", f"-Wl,-rpath,{library}", "-lonnxruntime", "-o", program], check=True)
    done = subprocess.run([program, tmp_path / "m.onnx"], capture_output=True, text=True, timeout=120)
    assert done.stdout == "2 4 6\n", done.stderr
