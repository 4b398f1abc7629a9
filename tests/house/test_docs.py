"""The documentation is run: every Python block and every `orthrus` command, in order, in a folder of its
own."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from skips import needs

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
LINKING = [*PAGES, ROOT / "CHANGELOG.md", ROOT / "benchmarks" / "RESULTS.md"]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.M | re.S)
LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]+)(#[^)]*)?\)")
OTHERS = ("pip", "pytest", "ruff", "mypy")
"""Commands that are neither ours nor Python."""
SWITCH = re.compile(r"ORTHRUS_\w+=")
PROVIDER_LINES = 50
HEADERS = sorted((ROOT / "src").rglob("*.h"))
"""Whose constants look like switches."""
ABOUT = {"c.md": "C compiler", "dnnl.md": "oneDNN", "iree.md": "IREE", "ray.md": "Ray",
         "serving.md": "server libraries", "spacemit.md": "SpaceMIT", "spacemit_estimate.md": "SpaceMIT",
         "torch.md": "torch"}
"""Pages about what may be missing."""
FIRST = ("README.md", "quickstart.md", "migration.md")
"""Pages that the short suite runs."""

DRIVER = """
import linecache, sys
from typer.testing import CliRunner
import os, runpy, subprocess
blocks, names = __import__("json").load(sys.stdin), {"__name__": "page"}
PAGE, PROGRAM = sys.argv[1], "from orthrus.tools.cli.main import main; main()"
for line, kind, text in blocks:
    where = f"{PAGE}:{line}"
    if kind == "python":
        linecache.cache[where] = (len(text), None, text.splitlines(True), where)
        exec(compile(text, where, "exec"), names)
    elif kind == "module":
        sys.argv = text
        try:
            runpy.run_module(text[0], run_name="__main__", alter_sys=True)
        except SystemExit as end:
            assert not end.code, f"{where}: python -m {text}: {end.code}"
    elif kind == "switched":
        settings, arguments = text
        subprocess.run([sys.executable, "-c", PROGRAM, *arguments], check=True,
                       env={**os.environ, **settings})
    else:
        from orthrus.tools.cli.main import app
        found = CliRunner().invoke(app, text)
        assert found.exit_code == 0, f"{where}: orthrus {text}\\n{found.output}"
"""


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, its text, the line it starts on."""

    line: int
    language: str
    text: str


def named(path: Path) -> str:
    return path.name


def blocks(path: Path) -> Iterator[Block]:
    text = path.read_text(encoding="utf-8")
    for found in FENCE.finditer(text):
        yield Block(text.count("\n", 0, found.start()) + 2, found[1], found[2])


def commands(block: Block) -> Iterator[list[str]]:
    """The commands of a shell block, comments and `&&` taken apart; switches in front are words of their
    own."""
    for line in block.text.splitlines():
        for part in re.sub(r"\s#.*$", "", line).split("&&"):
            if words := shlex.split(part):
                yield words


def executed(line: int, words: list[str]) -> tuple[int, str, object] | None:
    """How the driver runs a command; None for what needs the repository or a network."""
    settings = dict(word.split("=", 1) for word in words if SWITCH.match(word))
    words = words[len(settings):]
    if words[0] == "orthrus":
        return (line, "switched", (settings, words[1:])) if settings else (line, "orthrus", words[1:])
    return (line, "module", words[2:]) if words[1:2] == ["-m"] and words[2].startswith("orthrus.") else None


def steps(page: Path) -> Iterator[tuple[int, str, object]]:
    """What the driver runs of a page."""
    for block in blocks(page):
        if block.language == "python":
            yield block.line, "python", block.text
        elif block.language == "sh":
            yield from (step for words in commands(block) if (step := executed(block.line, words)))


def marks(page: str) -> list[Any]:
    found = [needs(ABOUT[page])] if page in ABOUT else []
    return found if page in FIRST else [*found, pytest.mark.slow]


@pytest.mark.parametrize("page", [pytest.param(page, id=page.name, marks=marks(page.name))
                                  for page in PAGES if any(steps(page))])
def test_page_runs(page: Path, tmp_path: Path) -> None:
    work = json.dumps(list(steps(page)))
    done = subprocess.run([sys.executable, "-c", DRIVER, page.name], input=work, text=True,
                          capture_output=True, cwd=tmp_path, timeout=300,
                          env={**os.environ, "PYTHONIOENCODING": "utf-8"})
    assert done.returncode == 0, done.stderr[-4000:]


@pytest.mark.parametrize("page", LINKING, ids=named)
def test_commands_exist(page: Path) -> None:
    for block in blocks(page):
        for words in commands(block) if block.language == "sh" else ():
            files = [word.partition("::")[0] for word in words if word.startswith("tests/")]
            assert all((ROOT / file).exists() for file in files), words
            if words[0] in ("orthrus", *OTHERS) or SWITCH.match(words[0]):
                continue
            assert words[0] == "python", words
            where = [ROOT / words[1]]
            if words[1] == "-m":
                modules = [root / words[2].replace(".", "/") for root in (ROOT, ROOT / "src")]
                where = [path for m in modules for path in (m.with_suffix(".py"), m / "__main__.py")]
            assert any(path.is_file() for path in where), words


def test_the_first_commands_are_those_that_ci_runs_as_a_user() -> None:
    first = next(block for block in blocks(ROOT / "README.md") if block.language == "sh")
    promised = [line.split("#")[0].strip() for line in first.text.splitlines()]
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    run = [words[1] for words in map(shlex.split, re.findall(r"^as_a_user .*$", script, re.M))]
    assert promised == run and all(line.startswith("pip install") for line in run)


@pytest.mark.parametrize("page", LINKING, ids=named)
def test_links_lead_somewhere(page: Path) -> None:
    for target, _ in LINK.findall(page.read_text(encoding="utf-8")):
        if "://" not in target:
            assert (page.parent / target).exists(), target


@pytest.mark.parametrize("page", LINKING, ids=named)
def test_blocks_have_a_language_that_is_checked(page: Path) -> None:
    assert {block.language for block in blocks(page)} <= {"python", "c", "sh", "toml", ""}


def test_tables_of_flags_are_those_of_the_code() -> None:
    from orthrus.tools.cli.flags import renewed
    from orthrus.tools.cli.main import app

    page = (ROOT / "docs" / "tools.md").read_text(encoding="utf-8")
    assert renewed(page) == page, "run python -m orthrus.tools.cli.flags docs/tools.md"
    assert set(re.findall(r"<!-- flags: ([\w-]+) -->", page)) == {c.name for c in app.registered_commands}


def test_the_provider_is_short() -> None:
    first = next(block for block in blocks(ROOT / "docs" / "write-a-provider.md")
                 if block.language == "python")
    assert "def claim" in first.text and "def compile" in first.text
    assert sum(bool(line.strip()) for line in first.text.splitlines()) <= PROVIDER_LINES


def test_environment_switches_are_real() -> None:
    from orthrus import knobs

    known = {f"ORTHRUS_{knob.name}" for knob in vars(knobs).values() if isinstance(knob, knobs.Knob)}
    for header in (*HEADERS, ROOT / "hatch_build.py"):
        known |= set(re.findall(r"ORTHRUS_[A-Z]+(?:_[A-Z]+)*", header.read_text(encoding="utf-8")))
    for page in PAGES:
        assert set(re.findall(r"ORTHRUS_[A-Z]+(?:_[A-Z]+)*", page.read_text(encoding="utf-8"))) <= known
