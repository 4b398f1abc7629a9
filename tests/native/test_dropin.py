"""The library as programs meet it: a program in C, every kind of value, second starts without Python,
a service that is killed, threads, fork."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import dropin
import numpy as np
import onnx
import pytest
from skips import MODELS, needs

import orthrus as ort

pytestmark = [pytest.mark.slow, needs("generated code", "Linux", "C compiler")]
KINDS = dropin.models()


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return dropin.client(tmp_path_factory.mktemp("client"))


class Case:
    """A model in a file, feeds, and what a session makes of them."""

    def __init__(self, client: Path, folder: Path, path: Path, feeds: dict[str, Any]) -> None:
        options = ort.SessionOptions()
        options.intra_op_num_threads = 1
        self.client, self.folder, self.path = client, folder, path
        self.expected = list(ort.InferenceSession(str(path), options).run(None, feeds))
        self.feeds, self.out = dropin.written(feeds, folder / "feeds"), folder / "results"

    def words(self, words: Sequence[str]) -> list[str]:
        return [str(each) for each in (self.client, self.path, self.feeds, self.out, *words)]

    def run(self, *words: str, **changed: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(self.words(words), env=dropin.surroundings(**changed), capture_output=True,
                              text=True, timeout=300, check=False)

    def right(self, *words: str, **changed: str) -> str:
        done = self.run(*words, **changed)
        assert done.returncode == 0, done.stdout + done.stderr
        assert dropin.same(dropin.results(self.out, len(self.expected)), self.expected)
        return done.stdout


def _case(client: Path, folder: Path, name: str) -> Case:
    model, feeds = KINDS[name]
    onnx.save(model, folder / f"{name}.onnx")
    return Case(client, folder, folder / f"{name}.onnx", feeds)


@pytest.mark.parametrize("name", KINDS)
def test_results_are_the_session_s(name: str, client: Path, tmp_path: Path) -> None:
    case = _case(client, tmp_path, name)
    case.right("bytes", "fork")


def test_a_second_start_needs_no_python(client: Path, tmp_path: Path) -> None:
    fresh = {"ORTHRUS_CACHE_DIR": str(tmp_path / "cache")}
    for name in ("native", "shapes", "control", "turns", "apart"):
        case = _case(client, tmp_path, name)
        case.right(**fresh)
        case.right("fork", ORTHRUS_PYTHON="/nowhere", **fresh)
        case.right("threads", "64", "1", ORTHRUS_PYTHON="/nowhere", **fresh)
        assert "/nowhere" in case.run(ORTHRUS_PYTHON="/nowhere", ORTHRUS_SKIP="fuse", **fresh).stdout
    for path in (tmp_path / "cache" / "dropin").iterdir():
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
    done = case.run(ORTHRUS_PYTHON="/nowhere", **fresh)
    assert done.returncode == 3 and "ORTHRUS_PYTHON" in done.stdout, "damaged files count as missing"
    case.right(**fresh)


def test_files_of_the_cache_that_changed_places_count_as_missing(client: Path, tmp_path: Path) -> None:
    """Entries, notes and packages of two models alike, each under the name of its like: no wrong result."""
    fresh, folder = {"ORTHRUS_CACHE_DIR": str(tmp_path / "cache")}, tmp_path / "cache" / "dropin"
    cases, kept = [], list[list[Path]]()
    for factor in (2, 3):
        model = onnx.parser.parse_model(dropin.HEAD + "g (float[2, 8] x) => (float[2, 8] y) "
                                        f"<float f = {{{factor}}}> {{ y = Mul(x, f) }}")
        onnx.save(model, path := tmp_path / f"{factor}.onnx")
        (own := tmp_path / str(factor)).mkdir()
        cases.append(Case(client, own, path, KINDS["native"][1]))
        cases[-1].right(**fresh)
        cases[-1].right(ORTHRUS_PYTHON="/nowhere", **fresh)
        before = {path for each in kept for path in each}
        kept.append(sorted({*folder.iterdir()} - before, key=lambda path: path.stat().st_size))
    assert len(kept[0]) == len(kept[1]) == 3
    for swapped in ((0,), (1,), (2,), (0, 1, 2)):
        whole = {path: path.read_bytes() for path in folder.iterdir()}
        for i in swapped:
            for mine, other in (kept[0][i], kept[1][i]), (kept[1][i], kept[0][i]):
                mine.write_bytes(whole[other])
        for case in cases:
            assert case.run(ORTHRUS_PYTHON="/nowhere", **fresh).returncode == 3, swapped
        for path, data in whole.items():
            path.write_bytes(data)
    for case in cases:
        case.right(ORTHRUS_PYTHON="/nowhere", **fresh)


def test_a_model_that_changed_is_another(client: Path, tmp_path: Path) -> None:
    fresh = {"ORTHRUS_CACHE_DIR": str(tmp_path / "cache")}
    model, feeds = KINDS["native"]
    weights = onnx.numpy_helper.from_array(feeds["x"], "w")
    model = onnx.parser.parse_model(dropin.HEAD + "g (float[2, 8] x) => (float[2, 8] y) { y = Mul(x, w) }")
    model.graph.initializer.append(weights)
    path = tmp_path / "external.onnx"
    onnx.save(model, path, save_as_external_data=True, location="data", size_threshold=0)
    case = Case(client, tmp_path, path, feeds)
    case.right(**fresh)
    case.right(ORTHRUS_PYTHON="/nowhere", **fresh)
    data = bytearray((tmp_path / "data").read_bytes())
    data[:4] = np.float32(7).tobytes()
    (tmp_path / "data").write_bytes(data)
    assert case.run(ORTHRUS_PYTHON="/nowhere", **fresh).returncode == 3
    Case(client, tmp_path, path, feeds).right(**fresh)


@pytest.mark.parametrize("changed, said", [
    ({"ORTHRUS_PYTHON": "/nowhere"}, "No such file"), ({"ORTHRUS_PYTHON": "/bin/true"}, "cure: "),
    ({"ORTHRUS_PYTHON": "/bin/cat"}, "cure: "),
    ({"PYTHONPATH": "/nowhere", "PYTHONHOME": "/nowhere"}, "cure: "),
    ({"ORTHRUS_NONSENSE": "1"}, "ORTHRUS_NONSENSE")])
def test_without_a_service_there_is_a_status(changed: dict[str, str], said: str, client: Path,
                                             tmp_path: Path) -> None:
    done = _case(client, tmp_path, "native").run(ORTHRUS_CACHE_DIR=str(tmp_path / "cache"), **changed)
    assert done.returncode == 3 and said in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize("changed", [{"ORTHRUS_CACHE": "0"}, {"ORTHRUS_CACHE_DIR": "/dev/full"}], ids=repr)
def test_without_a_cache_packages_come_from_the_service(changed: dict[str, str], client: Path,
                                                        tmp_path: Path) -> None:
    _case(client, tmp_path, "native").right(**changed)


def test_operators_that_a_module_brings(client: Path, tmp_path: Path) -> None:
    """Whatever it says now: neither its results nor what is known of the model are an older module's."""
    text = "g (float[2, 8] x) => (y) { w = Tanh(x) v = my.domain.Odd<by = 3.0>(w) y = Neg(v) }"
    model = onnx.parser.parse_model('<ir_version: 9, opset_import: ["" : 20, "my.domain" : 1]>' + text)
    onnx.save(model, tmp_path / "odd.onnx")
    x = KINDS["native"][1]["x"]
    feeds, out = dropin.written({"x": x}, tmp_path / "feeds"), tmp_path / "results"
    path = os.pathsep.join([str(tmp_path), dropin.surroundings()["PYTHONPATH"]])

    def run(modules: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([client, tmp_path / "odd.onnx", feeds, out], capture_output=True, text=True,
                              env=dropin.surroundings(PYTHONPATH=path, ORTHRUS_IMPORT=modules), timeout=300,
                              check=False)
    written = ("import numpy as np, orthrus as ort\n@ort.op('my.domain::Odd', version=1)\n"
               "def Odd(x, *, by: float = 1.0):\n    return ")
    for body, expected in (("x * np.float32(by)", -np.tanh(x) * 3),
                           ("(x > by).astype(np.int64)", np.zeros(x.shape, int)),
                           ("np.nonzero(x > 0)[0]", -np.nonzero(x > 0)[0])):
        (tmp_path / "odd.py").write_text(written + body + "\n")
        for _ in range(2):
            done = run("json, odd")
            assert done.returncode == 0, done.stdout + done.stderr
            (made,) = dropin.results(out, 1)
            assert made.shape == expected.shape and made.dtype == expected.dtype
            np.testing.assert_allclose(made, expected, rtol=1e-6)
    for named, said in (("odd,nowhere", "ORTHRUS_IMPORT: nowhere cannot be imported"), ("", "my.domain")):
        done = run(named)
        assert done.returncode == 3 and said in done.stdout, done.stdout


def test_a_service_that_does_not_move_is_given_up(client: Path, tmp_path: Path) -> None:
    silent = tmp_path / "silent"
    silent.write_text("#!/bin/sh\nexec sleep 100\n")
    silent.chmod(0o755)
    done = _case(client, tmp_path, "native").run(
        ORTHRUS_PYTHON=str(silent), ORTHRUS_SERVICE_TIMEOUT="1", ORTHRUS_CACHE_DIR=str(tmp_path / "cache"))
    assert done.returncode == 3 and "SERVICE_TIMEOUT" in done.stdout


def _children(process: int) -> list[int]:
    found: list[int] = []
    for path in Path(f"/proc/{process}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found += map(int, path.read_text().split())
    return found


def _killed(case: Case, kills: int, seconds: float, words: Sequence[str], rng: random.Random,
            **changed: str) -> tuple[int, int, str]:
    """How often the service was killed at random times, the program's exit code, and what it said."""
    with subprocess.Popen(case.words(words), env=dropin.surroundings(**changed), stdout=subprocess.PIPE,
                          stderr=subprocess.DEVNULL, text=True) as process:
        done, end = 0, time.monotonic() + seconds
        while done < kills and process.poll() is None and time.monotonic() < end:
            time.sleep(rng.uniform(0.05, seconds / kills))
            for child in _children(process.pid):
                with contextlib.suppress(OSError):
                    os.kill(child, signal.SIGKILL)
                    done += 1
        said, _ = process.communicate(timeout=120)
    return done, process.returncode, said


def _endings(case: Case, times: int, seconds: float) -> None:
    rng = random.Random(times)
    for _ in range(times):
        cache = {"ORTHRUS_CACHE_DIR": str(case.folder / f"cache{rng.random()}")}
        _, code, said = _killed(case, 2, rng.uniform(0.1, seconds), (), rng, **cache)
        assert code in (0, 3), said
        if code == 0:
            assert dropin.same(dropin.results(case.out, len(case.expected)), case.expected)
        else:
            assert "the compile service" in said and "cure: " in said


def test_the_service_is_killed_at_random_times(client: Path, tmp_path: Path) -> None:
    for name in ("native", "two_in_service"):
        _endings(_case(client, tmp_path, name), 2, 4)
    case = _case(client, tmp_path, "two_in_service")
    kills, code, said = _killed(case, 2, 8, ("threads", "4", "12"), random.Random(1))
    assert code in (0, 3) and "wrong 0" in said or "cure: " in said, said


@pytest.mark.thorough
def test_the_service_is_killed_two_hundred_times(client: Path, tmp_path: Path) -> None:
    for name in ("native", "two_in_service"):
        _endings(_case(client, tmp_path, name), 100, 6)


@pytest.mark.thorough
def test_many_threads_share_a_session_for_a_minute(client: Path, tmp_path: Path) -> None:
    for name in ("shapes", "two_in_service"):
        assert "wrong 0 refused 0" in _case(client, tmp_path, name).right("threads", "64", "30")


@pytest.mark.thorough
@needs("models")
def test_trained_models_give_the_session_s_results(client: Path, tmp_path: Path) -> None:
    for path in sorted(MODELS.glob("*/model.onnx")):
        known = np.load(path.parent / "io.npz")
        names = [each.name for each in ort.InferenceSession(str(path)).get_inputs()]
        feeds = {name: known[key] for name in names for key in known.files if key.endswith(name)}
        if len(feeds) == len(names):
            Case(client, tmp_path, path, feeds).right()


def test_orthrus_capi_runs_a_program_with_the_library(client: Path, tmp_path: Path) -> None:
    case = _case(client, tmp_path, "native")
    command = [sys.executable, "-m", "orthrus", "capi", "run", "--", *case.words(())]
    done = subprocess.run(command, env=dropin.surroundings(), capture_output=True, text=True, timeout=300,
                          check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert dropin.same(dropin.results(case.out, len(case.expected)), case.expected)
