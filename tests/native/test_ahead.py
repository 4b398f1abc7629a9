"""Libraries, programs and wheels of models: what they need, and that they compute what a session does, bit
for bit."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import board
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from skips import needs

import orthrus as ort
from orthrus.codegen.machines import detect
from orthrus.codegen.machines.machine import FORCED
from orthrus.demo import MODEL, samples
from orthrus.native.ahead import emit
from orthrus.native.ahead.interface import SOURCES

pytestmark = [pytest.mark.slow, needs("generated code", "C compiler")]

STRICT = ["-std=c11", "-O1", "-Wall", "-Wextra", "-Werror", "-pedantic", "-Wno-unused-function"]
EXAMPLES = Path(__file__).parents[2] / "examples"
SIZES = {"N": [1, 2, 3]}
ALLOWED = re.compile(r"lib(c|m|pthread)\.so")


def sh(*words: str | Path, cwd: Path | None = None, **more: str) -> str:
    """What a command prints. Fails where it does."""
    made = subprocess.run([str(w) for w in words], cwd=cwd, capture_output=True, text=True,
                          env={**os.environ, **more}, timeout=600, check=False)
    assert made.returncode == 0, f"{words}: {made.stdout[-2000:]}\n{made.stderr[-4000:]}"
    return made.stdout


def images(count: int = 3) -> np.ndarray:
    return np.ascontiguousarray(samples()[0][40:40 + count])


def answers(machine: str = "") -> list[np.ndarray]:
    """The session's, where kernels are written for `machine`."""
    program = ("import sys, numpy as np, orthrus as ort\n"
               "s = ort.InferenceSession(sys.argv[1]); x = np.load(sys.argv[2])\n"
               "np.savez(sys.argv[3], *s.run(None, {'image': x}))")
    folder = Path(os.environ["ORTHRUS_CACHE_DIR"])
    folder.mkdir(exist_ok=True, parents=True)
    np.save(folder / "ahead-in.npy", images())
    sh(sys.executable, "-c", program, MODEL, folder / "ahead-in.npy", folder / "ahead-out.npz",
       **({"ORTHRUS_MACHINE": machine} if machine else {}))
    with np.load(folder / "ahead-out.npz") as made:
        return [made[key] for key in made.files]


@pytest.fixture(scope="module")
def here() -> str:
    """This machine's targets, the best first, apart by commas."""
    machine = detect.found()
    assert machine is not None
    return {"x86_64": "host,avx2,sse2" if machine.has("avx2") else "host"}.get(machine.arch, "host")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory, here: str) -> Path:
    folder = tmp_path_factory.mktemp("digits")
    emit(MODEL, "library", "digits", folder, SIZES, here.split(","))
    return folder


def expected(labels: np.ndarray, scores: np.ndarray) -> str:
    """What the examples print."""
    return "".join(f"{label} {float(row[label]):.9g}\n" for label, row in zip(labels, scores, strict=True))


@pytest.fixture(scope="module")
def printed() -> str:
    return expected(*ort.InferenceSession(str(MODEL)).run(None, {"image": images()}))


@pytest.fixture(scope="module")
def pixels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("in") / "images.bin"
    images().tofile(path)
    return path


def test_a_library_needs_the_c_library_and_exports_its_own_names(library: Path) -> None:
    dynamic = sh("readelf", "-dW", library / "lib" / "libdigits.so")
    needed = re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic)
    assert needed and all(map(ALLOWED.match, needed)), needed
    assert "NODELETE" in dynamic and "TEXTREL" not in dynamic
    names = sh("nm", "-D", "--defined-only", library / "lib" / "libdigits.so").split()[2::3]
    assert "digits_infer" in names
    assert all(n.startswith(("digits_", "orthrus_pool_")) for n in names), names
    archive = sh("nm", "-g", "--defined-only", library / "lib" / "libdigits.a")
    names = [line.split()[2] for line in archive.splitlines() if len(line.split()) == 3]
    assert all(n.startswith(("digits_", "orthrus_pool_")) for n in names), names
    for file in ("libdigits.so", "libdigits.a"):
        wanted = sh("nm", "-u", library / "lib" / file)
        assert not re.search("Py[A-Z]|LLVM|orthrus_(?!pool)", wanted), wanted
    segments = [line for line in sh("readelf", "-lW", library / "lib" / "libdigits.so").splitlines()
                if line.strip().startswith(("LOAD", "GNU_STACK"))]
    assert segments and not any("RWE" in line for line in segments), segments


def test_every_source_compiles_without_a_warning(library: Path, tmp_path: Path) -> None:
    for weights in ("inside", "beside"):
        emit(MODEL, "object", "digits", tmp_path, SIZES, weights=weights, force=True)
        sh("cc", *STRICT, "-c", "digits.c", "-o", "digits_c.o", cwd=tmp_path)
        sh("cc", *STRICT, '-DMODEL_HEADER="digits.h"', "-DMODEL_LIBRARY=digits_library", f"-I{tmp_path}",
           SOURCES / "main.c", "digits_c.o", "digits.o", "-pthread", "-o", "program", cwd=tmp_path)
    np.save(tmp_path / "image.npy", images())
    sh("./program", "image.npy", cwd=tmp_path)
    assert_outputs(tmp_path, ort.InferenceSession(str(MODEL)).run(None, {"image": images()}))


def assert_outputs(folder: Path, wanted: list[np.ndarray]) -> None:
    for name, array in zip(("label", "probability"), wanted, strict=True):
        made = np.load(folder / f"{name}.npy")
        assert made.dtype == array.dtype and made.shape == array.shape and made.tobytes() == array.tobytes()


def test_the_example_in_c(library: Path, pixels: Path, printed: str, tmp_path: Path) -> None:
    sh("cc", *STRICT, EXAMPLES / "c" / "classify.c", f"-I{library}/include", library / "lib" / "libdigits.a",
       "-pthread", "-o", tmp_path / "classify")
    assert sh(tmp_path / "classify", pixels) == printed * 2


def test_what_the_page_shows_in_c(library: Path, tmp_path: Path) -> None:
    page = (EXAMPLES.parent / "docs" / "c.md").read_text(encoding="utf-8")
    shown = re.findall(r"^```c\n(.*?)^```", page, re.M | re.S)
    assert len(shown) == 2
    bodies = ["\n".join(line for line in text.splitlines() if not line.startswith("#")) for text in shown]
    functions = [f"void shown_{i}(const void **inputs, void **outputs) {{ (void)inputs, (void)outputs;\n"
                 f"{body}\n(void)status; }}" for i, body in enumerate(bodies)]
    (tmp_path / "shown.c").write_text('#include <stdio.h>\n#include "digits.h"\n' + "\n".join(functions))
    sh("cc", *STRICT, "-Wno-uninitialized", f"-I{library}/include", "-c", tmp_path / "shown.c", "-o",
       tmp_path / "shown.o")


@needs("CMake")
def test_cmake_and_pkg_config_find_it(library: Path, pixels: Path, printed: str, tmp_path: Path) -> None:
    sh("cmake", "-S", EXAMPLES / "c", "-B", tmp_path, f"-DCMAKE_PREFIX_PATH={library}")
    sh("cmake", "--build", tmp_path)
    assert sh(tmp_path / "classify", pixels) == printed * 2
    flags = sh("pkg-config", "--cflags", "--libs", "digits",
               PKG_CONFIG_PATH=str(library / "lib" / "pkgconfig"))
    sh("cc", EXAMPLES / "c" / "classify.c", *flags.split(), "-o", tmp_path / "again")
    assert sh(tmp_path / "again", pixels, LD_LIBRARY_PATH=str(library / "lib")) == printed * 2


@needs("C++ compiler")
def test_the_example_in_cpp(library: Path, pixels: Path, printed: str, tmp_path: Path) -> None:
    sh("c++", "-std=c++17", "-Wall", "-Wextra", "-Werror", "-pedantic", EXAMPLES / "cpp" / "classify.cpp",
       f"-I{library}/include", f"-L{library}/lib", "-ldigits", f"-Wl,-rpath,{library}/lib", "-o",
       tmp_path / "classify")
    assert sh(tmp_path / "classify", pixels) == printed
    (tmp_path / "many.bin").write_bytes(images(9).tobytes())
    refused = subprocess.run([tmp_path / "classify", tmp_path / "many.bin"], capture_output=True, text=True,
                             check=False)
    assert refused.returncode == 1 and "image (9, 1, 8, 8)" in refused.stderr


@needs("Rust")
def test_the_example_in_rust(library: Path, pixels: Path, printed: str, tmp_path: Path) -> None:
    sh("rustc", "--edition", "2021", "-O", EXAMPLES / "rust" / "classify.rs", "-L", f"native={library}/lib",
       "-l", "static=digits", "-o", tmp_path / "classify")
    rows = [line.split() for line in sh(tmp_path / "classify", pixels).splitlines()]
    assert [(label, np.float32(score)) for label, score in rows] == [
        (label, np.float32(score)) for label, score in map(str.split, printed.splitlines())]


def test_the_example_with_ctypes(library: Path, pixels: Path, printed: str) -> None:
    assert sh(sys.executable, "-S", EXAMPLES / "ctypes" / "classify.py", library / "lib" / "libdigits.so",
              pixels) == printed


def test_a_wheel_runs_without_this_package(tmp_path: Path) -> None:
    (wheel,) = emit(MODEL, "python-free-wheel", "digits", tmp_path, SIZES)
    assert re.fullmatch(r"digits-1\.0-py3-none-manylinux_2_\d+_\w+\.whl", wheel.name)
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    np.save(tmp_path / "image.npy", images())
    program = ("import sys, threading, numpy as np\n"
               "import digits\n"
               "m, x = digits.Model(), np.load('image.npy')\n"
               "assert [v.name for v in m.inputs] == ['image'] and m.inputs[0].shape == ('N', 1, 8, 8)\n"
               "made = m.run({'image': x})\n"
               "def again(): assert all((a == b).all() for a, b in zip(m.run({'image': x}), made))\n"
               "threads = [threading.Thread(target=again) for _ in range(8)]\n"
               "for t in threads: t.start()\n"
               "for t in threads: t.join()\n"
               "for bad, kind in ((np.zeros((9, 1, 8, 8), 'f4'), digits.Error),\n"
               "                  (x.astype('f8'), TypeError), (x[0], digits.Error)):\n"
               "    try: m.run({'image': bad})\n"
               "    except kind: continue\n"
               "    sys.exit('took ' + str(bad.shape))\n"
               "np.save('label.npy', made[0]); np.save('probability.npy', made[1])\n"
               "assert not any(n.startswith(('orthrus', 'llvmlite', 'onnx')) for n in sys.modules)\n")
    site = Path(np.__file__).parents[1]
    sh(sys.executable, "-c", program, cwd=tmp_path, PYTHONPATH=f"{tmp_path / 'site'}{os.pathsep}{site}")
    assert_outputs(tmp_path, ort.InferenceSession(str(MODEL)).run(None, {"image": images()}))


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory, here: str) -> Path:
    """A static program for several processors."""
    folder = tmp_path_factory.mktemp("program")
    emit(MODEL, "executable", "digits", folder, SIZES, here.split(","))
    np.save(folder / "image.npy", images())
    return folder


@needs("root")
def test_a_program_runs_where_there_is_nothing_else(program: Path, tmp_path: Path) -> None:
    for file in ("digits", "image.npy"):
        shutil.copy(program / file, tmp_path)
    made = subprocess.run(["/digits", "image.npy"], preexec_fn=lambda: os.chroot(tmp_path), cwd=tmp_path,
                          capture_output=True, text=True, check=False, executable="/digits")
    assert made.returncode == 0, made
    assert_outputs(tmp_path, ort.InferenceSession(str(MODEL)).run(None, {"image": images()}))


@needs("x86-64 emulator")
@pytest.mark.parametrize("cpu,machine", [("Haswell", "avx2"), ("core2duo", "sse2")])
def test_the_first_target_that_the_processor_supports_is_chosen(program: Path, here: str, cpu: str,
                                                                machine: str) -> None:
    if machine not in here:
        pytest.skip("the processor here has no AVX2")
    told = sh("qemu-x86_64", "-cpu", cpu, program / "digits", "--info", cwd=program)
    assert f"{ {'avx2': 256, 'sse2': 128}[machine] } bits (chosen)" in told
    sh("qemu-x86_64", "-cpu", cpu, program / "digits", "image.npy", cwd=program)
    assert_outputs(program, answers(machine))


@needs("x86-64 emulator")
def test_a_processor_that_no_target_is_for_is_refused(tmp_path: Path) -> None:
    emit(MODEL, "executable", "digits", tmp_path, SIZES, ["avx512"])
    np.save(tmp_path / "image.npy", images())
    made = subprocess.run(["qemu-x86_64", "-cpu", "Haswell", tmp_path / "digits", "image.npy"], cwd=tmp_path,
                          capture_output=True, text=True, check=False)
    assert made.returncode == 1 and not (tmp_path / "label.npy").exists()
    assert "not compiled for this processor" in made.stderr and "lacks avx512f" in made.stderr


def test_files_and_options_that_no_program_could_use(tmp_path: Path) -> None:
    """A message and nothing else, for whatever a file says; outputs whose files would be one get two."""
    info, make = helper.make_tensor_value_info, helper.make_node
    graph = helper.make_graph([make("Neg", ["x"], ["a/b"]), make("Abs", ["x"], ["a_b"])], "twice",
                              [info("x", TensorProto.FLOAT, [3, 2])],
                              [info(name, TensorProto.FLOAT, [3, 2]) for name in ("a/b", "a_b")])
    source = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    emit(source.SerializeToString(), "object", "twice", tmp_path)
    sh("cc", *STRICT, "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-I.",
       '-DMODEL_HEADER="twice.h"', "-DMODEL_LIBRARY=twice_library", SOURCES / "main.c", "twice.c", "twice.o",
       "-pthread", "-o", "twice", cwd=tmp_path)

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([tmp_path / "twice", *words], cwd=tmp_path, capture_output=True, text=True,
                              stdin=subprocess.DEVNULL, check=False)
    x = np.array([[1, -2], [3, -4], [5, 6]], np.float32)
    np.save(tmp_path / "x.npy", x)
    assert run("x.npy").stdout.split() == ["./a_b.npy", "./a_b_1.npy"]
    np.testing.assert_array_equal(np.load(tmp_path / "a_b.npy"), -x)
    np.testing.assert_array_equal(np.load(tmp_path / "a_b_1.npy"), abs(x))
    for words in ((), ("x.npy", "x.npy"), ("--threads",), ("--threads", "two", "x.npy"), ("/",),
                  ("/dev/null",), ("--repeat", "-1", "x.npy"), ("--out", "/nowhere", "x.npy"),
                  ("--nope", "x"), ("x=",)):
        made = run(*words)
        assert made.returncode == 1 and made.stderr.startswith("twice: "), (words, made)
    whole, rng = (tmp_path / "x.npy").read_bytes(), np.random.default_rng(0)
    wrong = [b"()", b"(-3, 2)", b"(99999999999999999999, 1)", b"(3, 2", b"(" + b"1," * 90 + b")", b"",
             b"\0", b"(9223372036854775807, 2)", b"(0, 2)", b"(3, 2, )"]
    for seed in range(30):
        data = whole.replace(b"(3, 2)", wrong[seed % len(wrong)])
        if seed >= len(wrong):
            at = int(rng.integers(0, 128))
            data = whole[:at] + (b"" if seed % 3 else bytes([rng.integers(256)]) + whole[at + 1:])
        (tmp_path / "bad").write_bytes(data)
        made = run("bad")
        assert (made.returncode, made.stderr[:7]) in ((0, ""), (1, "twice: ")), (seed, made)


def test_weights_in_a_file_beside(library: Path, tmp_path: Path) -> None:
    emit(MODEL, "executable", "digits", tmp_path, SIZES, weights="beside")
    np.save(tmp_path / "image.npy", images())
    sh("/usr/bin/env", "-C", "/", tmp_path / "digits", "--out", tmp_path, tmp_path / "image.npy")
    assert_outputs(tmp_path, ort.InferenceSession(str(MODEL)).run(None, {"image": images()}))
    (tmp_path / "moved").mkdir()
    moved = (tmp_path / "digits.weights").rename(tmp_path / "moved" / "w")
    sh("./digits", "--weights", moved, "image.npy", cwd=tmp_path)

    def refused(text: str, *more: str | Path) -> None:
        made = subprocess.run([tmp_path / "digits", *more, "image.npy"], cwd=tmp_path, capture_output=True,
                              text=True, check=False)
        assert made.returncode == 1 and text in made.stderr, made
    refused("No such file")
    data = bytearray(moved.read_bytes())
    for damaged in (data[:-1], b"", data[:20] + b"!" + data[21:], data + b"\0"):
        (tmp_path / "other").write_bytes(damaged)
        refused("is not the file of weights", "--weights", "other")
    refused("No such file", "--weights", "nowhere")


def test_two_models_in_one_program(library: Path, pixels: Path, tmp_path: Path) -> None:
    info, make = helper.make_tensor_value_info, helper.make_node
    graph = helper.make_graph([make("Mul", ["x", "x"], ["y"])], "squares",
                              [info("x", TensorProto.FLOAT, [4])], [info("y", TensorProto.FLOAT, [4])])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8),
              tmp_path / "squares.onnx")
    emit(tmp_path / "squares.onnx", "library", folder=tmp_path)
    (tmp_path / "both.c").write_text("""
#include <stdio.h>
#include "digits.h"
#include "squares.h"
int main(void) {
    const float x[4] = {1, 2, 3, 4};
    float y[4], z[4], image[64] = {0}, scores[10];
    int64_t label[1];
    int status = squares_infer(x, y) || digits_infer(1, image, label, scores) || squares_infer(y, z);
    printf("%d %g %g %s %s\\n", status, z[0], z[3], digits_library()->name, squares_library()->name);
    digits_release();
    squares_release();
    return 0;
}
""")
    folders = [library, tmp_path]
    archives = [library / "lib" / "libdigits.a", tmp_path / "lib" / "libsquares.a"]
    shared = [f"-L{folder}/lib" for folder in folders] + ["-ldigits", "-lsquares"]
    for linked in (archives, shared):
        sh("cc", *STRICT, "both.c", *(f"-I{folder}/include" for folder in folders), *linked, "-pthread", "-o",
           "both", cwd=tmp_path)
        told = sh("./both", cwd=tmp_path, LD_LIBRARY_PATH=":".join(f"{folder}/lib" for folder in folders))
        assert told == "0 1 256 digits squares\n"


SANITIZERS = {"address": ["-fsanitize=address,undefined"], "thread": ["-fsanitize=thread"], "valgrind": [],
              "none": []}


@pytest.mark.parametrize("kind,weights", [("none", "inside"), ("address", "beside"), ("thread", "inside"),
                                          pytest.param("valgrind", "beside", marks=needs("valgrind"))])
def test_misuse_is_a_status(kind: str, weights: str, here: str, pixels: Path, tmp_path: Path) -> None:
    """Watched; for valgrind without AVX-512, which it does not know. What a thread held at a fork is lost to
    the child, so that valgrind says nothing of children, which end by a signal where they are right."""
    target = "avx2" if "avx2" in here else "host"
    emit(MODEL, "object", "digits", tmp_path, SIZES, [target], weights)
    sh("cc", *STRICT, "-g", *SANITIZERS[kind], Path(__file__).parent / "misuse.c", "digits.c", "digits.o",
       "-pthread", f"-I{tmp_path}", "-o", "misuse", cwd=tmp_path)
    watch = ["valgrind", "-q", "--error-exitcode=9", "--leak-check=full", "--show-leak-kinds=definite",
             "--errors-for-leak-kinds=definite", "--child-silent-after-fork=yes"]
    watch = watch if kind == "valgrind" else []
    labels = ort.InferenceSession(str(MODEL)).run(["label"], {"image": images()})[0]
    made = subprocess.run([*watch, tmp_path / "misuse", pixels, *map(str, labels)], capture_output=True,
                          text=True, timeout=400, check=False,
                          env={**os.environ, "TSAN_OPTIONS": "die_after_fork=0"})
    assert made.returncode == 0 and not made.stderr, made.stderr[-4000:]


@pytest.mark.thorough
@needs("zig")
@pytest.mark.parametrize("target,runner", [
    ("neon", ["qemu-aarch64", "-cpu", "cortex-a57"]),
    ("rvv256", ["qemu-riscv64", "-cpu", "rv64,v=true,vlen=256,vext_spec=v1.0"])])
def test_programs_for_other_processors(target: str, runner: list[str], tmp_path: Path) -> None:
    """Linked by zig, which compiles a C library for each at first; a session's kernels run in a worker."""
    if shutil.which(runner[0]) is None:
        pytest.skip("no qemu-riscv64 on PATH, and no xuantie-qemu: apt-get install qemu-user")
    emit(MODEL, "executable", "digits", tmp_path, SIZES, [target])
    np.save(tmp_path / "image.npy", images())
    sh(*runner, "./digits", "image.npy", cwd=tmp_path)
    with board.on(FORCED[target]):
        wanted = ort.InferenceSession(str(MODEL)).run(None, {"image": images()})
    assert_outputs(tmp_path, wanted)
