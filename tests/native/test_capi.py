"""`orthrus capi`: its options stand before or behind what is to be done, in any order, and those of a program
are the program's."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from orthrus.native.dropin import build
from orthrus.tools.cli import capi
from orthrus.tools.cli.main import app

INTO = (("--into", "there"), ("--into=there",))


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The programs that were started; nothing is built."""
    started: list[list[str]] = []
    monkeypatch.setattr(build, "place", lambda: Path("cached"))
    monkeypatch.setattr(build, "build", lambda folder: folder)
    monkeypatch.setattr(build, "built", lambda: Path("cached"))
    monkeypatch.setattr(capi, "_run", lambda folder, program: started.append([str(folder), *program]))
    return started


@pytest.mark.parametrize("action", ["build", "path"])
@pytest.mark.parametrize("into", [*INTO, ()])
@pytest.mark.parametrize("as_json", [("--json",), ()])
def test_any_order(action: str, into: tuple[str, ...], as_json: tuple[str, ...],
                   runs: list[list[str]]) -> None:
    for words in itertools.permutations([(action,), into, as_json]):
        done = CliRunner().invoke(app, ["capi", *itertools.chain(*words)])
        assert done.exit_code == 0, (words, done.output)
        library = Path("there" if into else "cached") / "lib" / build.SONAME
        said = json.loads(done.output)["library"] if as_json else done.output.split()[1]
        assert said == str(library), words


@pytest.mark.parametrize("before", [(), *INTO])
@pytest.mark.parametrize("behind", [(), *INTO])
@pytest.mark.parametrize("program", [["--", "prog", "--json"], ["prog", "--into", "x"], ["prog"],
                                     ["--", "prog", "build", "--"]])
def test_a_program_keeps_its_words(before: tuple[str, ...], behind: tuple[str, ...], program: list[str],
                                   runs: list[list[str]]) -> None:
    done = CliRunner().invoke(app, ["capi", *before, "run", *behind, *program])
    assert done.exit_code == 0, done.output
    folder = "there" if before or behind else "cached"
    assert runs == [[f"{folder}/lib", *(program[1:] if program[0] == "--" else program)]]


@pytest.mark.parametrize("words", [["run"], ["build", "prog"], ["path", "--nonsense"], ["build", "--into"],
                                   [], ["--into", "build"], ["dance"]])
def test_what_is_no_command_is_refused(words: list[str], runs: list[list[str]]) -> None:
    assert CliRunner().invoke(app, ["capi", *words]).exit_code == 2
    assert not runs
