"""Programs in C and C++ against the headers that onnxruntime ships, on this library and on theirs: they write
the same; and our header says the same of every function, structure and number of theirs."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dropin
import onnx
import pytest
from skips import ORT_HEADERS, needs
from test_odd_values import answers, write_models

from orthrus.native.dropin import build

pytestmark = [pytest.mark.slow, needs("generated code", "Linux", "C compiler", "C++ compiler")]
HERE = Path(__file__).parent
BETTER = {"an input too few: 2": "an input too few: 1"}
"""Lines of ours, and theirs: an argument that is not valid is called so before anything runs."""
OF_PROVIDERS = {"OrtDataTransferImpl", "OrtSyncNotificationImpl", "OrtSyncStreamImpl", "OrtNodeFusionOptions",
                "OrtNodeComputeInfo", "OrtEpApi", "OrtEp", "OrtEpFactory", "OrtEpDataLayout"}
"""What only providers in libraries of their own are written with; our header does not have it. Later versions
have it in a header of its own."""
GROWN = {"OrtAllocator", "OrtMIGraphXProviderOptions"}
"""Structures that later headers made longer: programs tell their version, or have the wrong one there too."""


def every_version(test: Any) -> Any:
    """With each of the folders that `$ORT_HEADERS` names, a colon between them."""
    of_each = pytest.mark.parametrize("headers", ORT_HEADERS or [Path("absent")], ids=lambda path: path.name)
    return needs("onnxruntime's headers")(of_each(test))


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("models")
    for name in ("sequence", "map"):
        onnx.save(dropin.models()[name][0], made / f"{name}.onnx")
    write_models(made)
    onnx.save(onnx.parser.parse_model(
        dropin.HEAD + "g (float16[N] x) => (float16[N] y, float[N] z) { y = Exp(x) z = Cast<to = 1>(y) }"),
        made / "halves.onnx")
    weights = onnx.parser.parse_model(
        dropin.HEAD + "g (float[3] x, float[3] w) => (float[3] y) <float[3] w = {1, 2, 3}> { y = Add(x, w) }")
    weights.producer_name, weights.domain, weights.model_version = "maker", "of.here", 7
    weights.doc_string, weights.graph.doc_string = "what it does", "of the graph"
    onnx.helper.set_model_props(weights, {"one": "1", "zwei": "ü"})
    onnx.save(weights, made / "weights.onnx")
    return made


def _theirs(folder: Path) -> Path:
    """A folder with their library by the name that programs ask for."""
    folder.mkdir(exist_ok=True)
    (folder / build.SONAME).symlink_to(dropin.their_library())
    return folder


def _written(program: Path, libraries: Path, models: Path) -> list[str]:
    done = subprocess.run([program, models], env=dropin.surroundings(LD_LIBRARY_PATH=str(libraries)),
                          capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout[-500:] + done.stderr[-2000:]
    return done.stdout.splitlines()


@every_version
def test_programs_in_cpp(headers: Path, models: Path, tmp_path: Path) -> None:
    library, program = build.built() / "lib", tmp_path / "wrapped"
    subprocess.run(["c++", "-std=c++17", "-Wall", "-Wextra", "-g", f"-isystem{headers}",
                    HERE / "wrapped.cc", "-o", program, f"-L{library}", "-lonnxruntime", "-pthread"],
                   check=True)
    ours = _written(program, library, models)
    assert ours[-1] == "right" and len(ours) > 120
    theirs = _written(program, _theirs(tmp_path / "theirs"), models)
    assert [BETTER.get(line, line) for line in ours] == theirs


@every_version
def test_programs_in_c(headers: Path, models: Path, tmp_path: Path) -> None:
    program, theirs = tmp_path / "odd_values", _theirs(tmp_path / "theirs") / build.SONAME
    subprocess.run(["cc", "-std=c11", "-Wall", "-Wextra", "-g", f"-isystem{headers}", HERE / "odd_values.c",
                    "-o", program, "-ldl"], check=True)
    for subject in ("creations", "two", "strings", "rank"):
        ours = answers(build.built() / "lib" / build.SONAME, program, models, subject)
        assert len(ours) > 10 and ours == answers(theirs, program, models, subject)


def _source(headers: Path) -> str:
    """The header with all that it includes, without comments and macros."""
    included = '#include "onnxruntime_c_api.h"\n'
    return subprocess.run(["c++", "-std=c++17", "-E", "-P", "-xc++", f"-I{headers}", "-"], input=included,
                          capture_output=True, text=True, check=True).stdout


def _of_providers(headers: Path) -> set[str]:
    apart = headers / "onnxruntime_ep_c_api.h"
    text = apart.read_text(encoding="utf-8") if apart.is_file() else ""
    return OF_PROVIDERS.union(re.findall(r"^(?:typedef )?(?:struct|enum) (Ort\w+) \{", text, re.M))


def _structures(source: str) -> Iterator[tuple[str, list[str]]]:
    """Each structure and the names of its members."""
    for found in re.finditer(r"\bstruct (Ort\w+) \{", source):
        depth, at = 1, found.end()
        while depth:
            depth += {"{": 1, "}": -1}.get(source[at], 0)
            at += 1
        parts = [part.strip() for part in source[found.end():at - 1].split(";")]
        members = [re.search(r"\(\s*\*\s*(\w+)\s*\)\s*\(", part) or re.search(r"(\w+)(?:\[\d+\])?$", part)
                   for part in parts if not part.startswith("}")]
        yield found[1], [each[1] for each in members if each is not None]


def _enumerators(source: str) -> Iterator[tuple[str, list[str]]]:
    for name, body in re.findall(r"enum (\w+)\s*\{(.*?)\}", source, re.S):
        yield name, re.findall(r"(?:^|,)\s*(\w+)\s*(?=[=,]|$)", body.strip())


def _facts(headers: Path, program: str, folder: Path) -> list[str]:
    """What the program says of the header. A function that cannot throw may stand for one that can."""
    (folder / "facts.cc").write_text(program)
    subprocess.run(["c++", "-std=c++17", "-Wno-invalid-offsetof", f"-I{headers}", folder / "facts.cc", "-o",
                    folder / "facts"], check=True)
    done = subprocess.run([folder / "facts"], capture_output=True, text=True, check=True)
    return done.stdout.replace("PDoF", "PF").splitlines()


@every_version
def test_our_header_says_what_theirs_says(headers: Path, tmp_path: Path) -> None:
    source, lines, left = _source(headers), list[str](), _of_providers(headers)
    for name, members in _structures(source):
        if name not in left:
            lines += [f'SIZE({name})', *(f"SHOW({name}, {each})" for each in members)]
    for name, values in _enumerators(source):
        if name not in left:
            lines += [f"VALUE({each})" for each in values]
    assert len(lines) > 400
    program = "\n".join([
        "#include <cstddef>", "#include <cstdio>", "#include <typeinfo>", '#include "onnxruntime_c_api.h"',
        r'#define SIZE(s) std::printf("%s %zu\n", #s, sizeof(s));',
        "static void show(const char *s, const char *m, std::size_t at, const std::type_info &type)",
        r'{ std::printf("%s.%s %zu %s\n", s, m, at, type.name()); }',
        "#define SHOW(s, m) show(#s, #m, offsetof(s, m), typeid(decltype(s::m)));",
        r'#define VALUE(v) std::printf("%s = %lld\n", #v, static_cast<long long>(v));',
        "int main() {", *lines, "}", ""])
    theirs, ours = (_facts(each, program, tmp_path) for each in (headers, build.built() / "include"))
    grown = {line.split(".")[0].split(" ")[0] for line in set(theirs) ^ set(ours)}
    assert {each for each in grown if not each.endswith("Api")} <= GROWN
    assert [line for line in theirs if "." in line and line.split(".")[0] not in GROWN
            and line not in ours] == []


def test_structures_that_programs_fill_take_any_function(tmp_path: Path) -> None:
    """Ours, as theirs: an allocator of functions that may throw."""
    (tmp_path / "fill.cc").write_text(
        '#include "onnxruntime_c_api.h"\n'
        "static void *take(OrtAllocator *, size_t) { return nullptr; }\n"
        "static void *create(const OrtCustomOp *, const OrtApi *, const OrtKernelInfo *)\n"
        "{ return nullptr; }\n"
        "int main() { OrtAllocator own{}; own.Alloc = take; OrtCustomOp op{}; op.CreateKernel = create;\n"
        "             return own.Alloc == nullptr || op.CreateKernel == nullptr; }\n")
    subprocess.run(["c++", "-std=c++17", "-Wall", "-Werror", f"-I{build.built() / 'include'}",
                    tmp_path / "fill.cc", "-o", tmp_path / "fill"], check=True)
