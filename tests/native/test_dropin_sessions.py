"""Bindings in random orders of calls, runs on other threads and from callbacks, sessions that come and go,
what logging functions of a program hear: natively and in the compile service, under sanitizers, and as
onnxruntime's own library."""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import dropin
import onnx
import pytest
from skips import needs

from orthrus.native.dropin import build, table

pytestmark = [pytest.mark.slow, needs("generated code", "Linux", "C compiler")]
HERE = Path(__file__).parent
SOURCES = tuple(HERE / f"sessions{each}.c" for each in ("", "_bound", "_async", "_lives"))
STRICT = ("-std=c11", "-Wall", "-Wextra", "-Werror", "-pedantic", "-g")
MODELS = ("two", "two_in_service")


class Built:
    """The library, the program and the models; once without and once for each way of watching memory."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.capi = build.build(folder / "capi")
        for name in MODELS:
            onnx.save(dropin.models()[name][0], folder / f"{name}.onnx")

    def program(self, *watched: str) -> Path:
        out = self.folder / f"sessions{''.join(watched)}"
        if not out.exists():
            subprocess.run(["cc", *STRICT, *watched, f"-I{self.capi / 'include'}", *SOURCES, "-o", out,
                            "-ldl", "-pthread"], check=True)
        return out

    def library(self, *watched: str) -> Path:
        if not watched:
            return self.capi / "lib" / build.SONAME
        out, passing = self.folder / f"lib{''.join(watched)}.so", self.folder / "table"
        if not out.exists():
            passing.mkdir(exist_ok=True)
            (passing / "table.h").write_text(table.declarations())
            (passing / "table.c").write_text(table.definitions())
            here = Path(table.__file__).parent
            subprocess.run(["cc", "-std=c11", "-g", "-O1", "-fPIC", "-shared", *watched,
                            *build.told(), f"-I{self.capi / 'include'}", f"-I{passing}", f"-I{here}",
                            *sorted(here.glob("*.c")), here.parent / "runtime" / "runtime.c",
                            passing / "table.c", "-o", out, "-pthread"], check=True)
        return out

    def run(self, library: Path, model: str, *words: str, watched: Sequence[str] = ()) -> str:
        command = [self.program(*watched), library, self.folder / f"{model}.onnx", *words]
        done = subprocess.run(command, env=dropin.surroundings(), capture_output=True, text=True, timeout=280,
                              check=False)
        said = done.stdout[-500:] + done.stderr[-3000:]
        assert done.returncode == 0 and done.stdout.endswith("right\n"), said
        return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    return Built(tmp_path_factory.mktemp("sessions"))


def _theirs() -> Path:
    return dropin.their_library()


@pytest.mark.parametrize("model", MODELS)
def test_answers_are_those_that_the_calls_so_far_give(model: str, built: Built) -> None:
    words = "binding", "1", "1500", "threads", "2", "300", "async", "3", "30"
    built.run(built.library(), model, *words)
    built.run(_theirs(), model, *words)


def test_sessions_that_come_and_go(built: Built) -> None:
    """On several threads, over forks, the library loaded again; thousands leave nothing behind."""
    built.run(built.library(), "two", "crowd", "1", "400", "forks", "2", "150", "busy", "3", "400",
              "many", "4", "3000", "again", "5", "30")
    built.run(built.library(), "two_in_service", "crowd", "6", "60", "forks", "7", "17", "busy", "8", "2",
              "many", "9", "60", "again", "10", "3")
    built.run(_theirs(), "two", "crowd", "1", "200", "many", "2", "300", "again", "3", "5")


@pytest.mark.parametrize("watched", [("-fsanitize=address,undefined", "-fno-sanitize-recover=all"),
                                     ("-fsanitize=thread",)], ids=("memory", "threads"))
def test_under_sanitizers(watched: tuple[str, ...], built: Built) -> None:
    library = built.library(*watched)
    for model, words in (("two", ("binding", "7", "1500", "threads", "8", "150", "async", "9", "20")),
                         ("two_in_service", ("threads", "5", "60", "async", "6", "6", "crowd", "2", "30")),
                         ("two", ("crowd", "1", "150")),
                         ("two", ("logging", "0", "tag", "user"))):
        built.run(library, model, *words, watched=watched)


Record = tuple[str, int, str, str, str]
"""Whose function heard it, severity, category, name, message."""


def _heard(library: Path, model: str, built: Built, *words: str) -> list[list[Record]]:
    """What is heard while a session is made, runs, and runs with an input too few."""
    phases: list[list[Record]] = [[]]
    for line in built.run(library, model, "logging", *words).splitlines():
        if line == "-":
            phases.append([])
        elif line.count("|") >= 5:
            who, severity, category, name, place, message = line.split("|", 5)
            assert place.count(":") == 1 and " " in place
            phases[-1].append((who, int(severity), category, name, message))
    return phases


@pytest.mark.parametrize("model, words", [
    ("two", ("2",)), ("two_in_service", ("1", "tag")), ("two", ("3", "session", "id", "tag")),
    ("two_in_service", ("2", "user", "session")), ("two", ("4", "run", "tag", "id")),
    ("two", ("0", "quiet", "tag"))], ids=repr)
def test_logging_functions_hear_what_is_logged(model: str, words: tuple[str, ...], built: Built) -> None:
    ours, theirs = _heard(built.library(), model, built, *words), _heard(_theirs(), model, built, *words)
    least = 4 if "quiet" in words else 0 if "session" in words else int(words[0])
    run_least = 0 if "run" in words else least
    who, name = "user" if "user" in words else "env", "sid" if "id" in words else ""
    made, _, failed = ours
    assert all(severity >= least and category == "onnxruntime" for _, severity, category, _, _ in made)
    assert {each[0] for phase in ours for each in phase} <= {who} and all(each[3] == name for each in made)
    assert ((who, 1, "onnxruntime", name, "Session successfully initialized.") in made) == (least <= 1)
    if "tag" in words:
        name = f"{name}:tag" if name else "tag"
    errors = [each for each in failed if each[1] == 3]
    assert len(errors) == (run_least <= 3) and all(each[3] == name for each in errors)
    for mine, other in zip(ours[1:], theirs[1:], strict=True):
        assert _severities(other)[3] == _severities(mine)[3]
    for text in ("Initializing session.", "Session successfully initialized."):
        assert [each for each in theirs[0] if each[4] == text] == [each for each in made if each[4] == text]


def _severities(phase: list[Record]) -> Counter[int]:
    return Counter(each[1] for each in phase)


def test_what_the_service_logs_is_heard(built: Built) -> None:
    made, ran, _ = _heard(built.library(), "two_in_service", built, "0", "tag", "id")
    assert any("runs in the compile service" in each[4] for each in made)
    assert ("env", 1, "onnxruntime", "sid:tag", "Running with tag: tag") in ran
