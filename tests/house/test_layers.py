"""The house rules that a program can check: who imports whom, how long files are, what an import does."""

from __future__ import annotations

import ast
import functools
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest
from sources import FILES, SOURCE, named
from sources import parsed as read

from orthrus.codegen.object import cache

ORDER = (
    ("locks",), ("records",), ("later",), ("index",), ("errors",), ("limits",), ("knobs",), ("seeds",),
    ("shown",), ("recent",), ("memory",), ("modelfile",), ("processors",), ("ir",), ("shapes",), ("ops",),
    ("load",),
    ("optimize",),
    ("kernels",), ("codegen",), ("lowering",), ("providers",), ("partition",), ("plan",), ("run",),
    ("profiling",), ("api", "capi"), ("native",), ("testing",), ("demo",), ("tools",),
)
"""Stages in the order the data meets them; names in one tuple may import each other."""
PACKAGES = frozenset({"quantization", "transformers", "generation", "torch", "backend", "datasets",
                      "distributed", "serving"})
"""Packages beside the stages: they stand on the public API, so nothing imports them."""
COMMANDS = frozenset({"tools/cli/quantize.py", "tools/cli/serve.py", "tools/cli/plan_capacity.py",
                      "native/pack/quantized.py"})
"""Verbs of the command line, and models of a build, that are a tool package's."""
GUARDED = frozenset({"profiling/table.py", "quantization/calibration/activations.py"})
"""Files outside of `tools` that use rich where it is, or where a command asks for it."""
ROOMS = {"codegen": ("machines", "write", "object", "emulate", "runtime", "kernels", "triton")}
"""The rooms of a stage, in the order in which they may import each other."""
RANK = {name: rank for rank, names in enumerate(ORDER) for name in names}
BASES = frozenset({"foreign", "gpu"})
"""Folders of providers/ that hold what several providers share."""
NETWORK = frozenset({"socket", "urllib", "http", "requests", "ftplib", "smtplib", "ssl", "aiohttp", "httpx"})
CONVERSES = frozenset({"native/dropin/service.py", "distributed/messages.py", "distributed/places.py",
                       "distributed/process.py", "distributed/worker.py"})
"""Files that speak over a pair of sockets with the process that started them."""
LISTENS = "serving"
"""The package of the server, the one that speaks with others: on loopback unless it is told."""
VAGUE = frozenset({"utils", "helpers", "common", "util", "misc"})
FOREIGN = frozenset({"quantization/neural_compressor/util.py"})
"""Files whose vague names are onnxruntime's."""
LONGEST = 600


BUILTIN = frozenset({"eval", "exec", "compile", "__import__"})
MAKES_CODE = frozenset({"import_module", "run_path", "run_module", "load_module", "exec_module", "CDLL",
                        "PyDLL", "LoadLibrary", "loads", "Unpickler"})
"""Names of functions that make code of text, bytes or a file; `loads` but of json."""
CODE = {
    "__init__.py": "import_module: this package's modules, when a name of theirs is first used",
    "api/alias.py": "import_module: this package's modules, under another name",
    "distributed/worker.py": "import_module: the modules that the program names",
    "index.py": "import_module: this package's modules, when an operator of theirs is first asked for",
    "later.py": "import_module: this package's modules, when a name of theirs is first used",
    "records.py": "exec: constructors, of the classes' own fields",
    "providers/__init__.py": "import_module: this package's providers",
    "lowering/gpu/rules/__init__.py": "import_module: the modules with rules",
    "load/messages.py": "exec_module: the installed onnx package's module of messages",
    "native/ahead/in_wheel.py": "CDLL: the library of the wheel that it is copied into",
    "native/dropin/service.py": "import_module: the modules that the program's environment names",
    "quantization/__init__.py": "import_module: this package's modules, when a name of theirs is first used",
    "codegen/triton/compile.py": "compile, exec: the text of kernels that this package wrote",
    "codegen/kernels/amx.py": "CDLL: the C library", "codegen/machines/executable.py": "CDLL: the C library",
    "codegen/runtime/threads.py": "CDLL: the C library",
    "optimize/pattern.py": "import_module: this package's rules, when a node may match one",
    "providers/dnnl/binding.py": "CDLL: the installed package's library",
    "providers/dnnl/openmp.py": "CDLL: the OpenMP library",
    "providers/gpu/library.py": "CDLL: the driver's library",
    "providers/migraphx/module.py": "import_module: the library's Python module",
    "providers/library/loader.py": "CDLL: a library of providers that the program names",
    "testing/concurrency.py": "CDLL: the C library",
    "testing/failures.py": "loads: a session it pickled itself",
    "tools/asked.py": "import_module: --import",
    "tools/cli/check_provider.py": "import_module: the module that the command line names",
    "tools/cli/execute.py": "run_module, run_path: the program that the command line names",
    "tools/cli/quantize.py": "import_module: --score",
    "tools/index.py": "import_module: this package's modules",
    "tools/perf/run.py": "import_module: the runtime to measure, this one or onnxruntime",
    "tools/pytorch_export_helpers.py": "import_module: torch",
    "transformers/__init__.py": "import_module: this package's modules, under onnxruntime's paths",
}
"""Files that do such a thing, and what with: nothing that was read from a model or from data."""


@pytest.fixture(scope="module", autouse=True)
def forgotten() -> Iterator[None]:
    """What was read of the sources goes when the last test has ended: it is a million objects."""
    yield
    parsed.cache_clear()
    imports.cache_clear()


parsed = functools.cache(read)


def module_of(path: Path) -> str:
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@functools.cache
def imports(path: Path) -> tuple[tuple[str, int], ...]:
    return tuple(_imports(path))


def _imports(path: Path) -> Iterator[tuple[str, int]]:
    """Every module that a file imports, in full, with the line; imports inside functions too, those for types
    not."""
    tree = parsed(path)
    package = ["orthrus", *path.relative_to(SOURCE).parent.parts]
    typing_only = {inner for node in ast.walk(tree) if isinstance(node, ast.If)
                   and "TYPE_CHECKING" in ast.unparse(node.test)
                   for branch in node.body for inner in ast.walk(branch)}
    for node in ast.walk(tree):
        if node in typing_only:
            continue
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[:len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            yield module, node.lineno
            yield from ((f"{module}.{alias.name}", node.lineno) for alias in node.names)


def stage(module: str) -> str | None:
    """The stage a module of this package belongs to; None for the package itself and for other packages."""
    parts = module.split(".")
    if parts[0] != "orthrus" or len(parts) == 1:
        return None
    return parts[1] if parts[1] in RANK or parts[1] in PACKAGES else None


def importing(files: Iterable[Path], wrong: Callable[[Path, str], bool]) -> list[str]:
    """Where these files import a module that is wrong for them."""
    return [f"{named(path)}:{line} imports {module}" for path in files for module, line in imports(path)
            if wrong(path, module)]


def test_a_stage_imports_only_earlier_stages() -> None:
    def later(path: Path, module: str) -> bool:
        own, other = path.relative_to(SOURCE).with_suffix("").parts[0], stage(module)
        return own in RANK and other is not None and RANK.get(other, len(ORDER)) > RANK[own]
    assert importing((path for path in FILES if named(path) not in COMMANDS), later) == []


def test_a_room_imports_only_earlier_rooms() -> None:
    def later(path: Path, module: str) -> bool:
        own, room = path.relative_to(SOURCE).with_suffix("").parts[:2]
        rooms = ROOMS[own]
        return (room != "__init__" and module.startswith(f"orthrus.{own}.")
                and rooms.index(module.split(".")[2]) > rooms.index(room))
    assert importing((path for path in FILES if path.relative_to(SOURCE).parts[0] in ROOMS), later) == []


def test_no_provider_imports_another() -> None:
    folders = {p.name for p in (SOURCE / "providers").iterdir() if p.is_dir()} - BASES

    def another(path: Path, module: str) -> bool:
        own = path.relative_to(SOURCE / "providers").parts[0]
        return module.startswith("orthrus.providers.") and module.split(".")[2] in folders - {own}
    assert importing(sorted((SOURCE / "providers").rglob("*/*.py")), another) == []


def test_no_imports_go_in_circles() -> None:
    """No module needs itself, not even by an import inside a function."""
    modules = {module_of(path): path for path in FILES}
    needs = dict[str, set[str]]()
    for module, path in modules.items():
        found = [(name, line) for name, line in imports(path) if name in modules]
        below = {(name.rpartition(".")[0], line) for name, line in found}
        needs[module] = {name for name, line in found if (name, line) not in below}
    order: list[str] = []
    while free := [module for module, other in needs.items() if not other & needs.keys()]:
        order += free
        for module in free:
            del needs[module]
    while ends := [m for m in needs if not any(m in other for other in needs.values())]:
        for module in ends:
            del needs[module]
    circles = "; ".join(f"{m} -> {', '.join(sorted(other & needs.keys()))}" for m, other in needs.items())
    assert not needs, f"in circles, or between them: {circles}"


def test_what_stands_above_a_run_is_known_to_the_cache() -> None:
    """Whatever else is edited, no session and no kernel that was kept is taken for the same."""
    behind = {name for names in ORDER[RANK["run"] + 1:] for name in names}
    assert behind | PACKAGES == cache.ABOVE


def test_every_module_has_its_place() -> None:
    names = {path.relative_to(SOURCE).with_suffix("").parts[0] for path in FILES}
    assert names - set(RANK) - PACKAGES == {"__init__", "__main__"}


def test_files_are_named_and_short() -> None:
    assert {named(path) for path in FILES if path.stem in VAGUE} <= FOREIGN
    assert [named(path) for path in FILES if len(path.read_text("utf-8").splitlines()) > LONGEST] == []


def test_nothing_reaches_the_network() -> None:
    silent = (path for path in FILES
              if named(path) not in CONVERSES and path.relative_to(SOURCE).parts[0] != LISTENS)
    assert importing(silent, lambda _, module: module.split(".")[0] in NETWORK) == []


def calls(path: Path) -> Iterator[tuple[str, str, ast.Call]]:
    """The calls of functions that have a name in a file: what stands before the name's last dot, what behind
    it."""
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute):
            where, _, name = ast.unparse(node.func).rpartition(".")
            yield where, name, node


def test_nothing_that_is_read_becomes_code() -> None:
    doing = {named(path) for path in FILES for where, name, _ in calls(path)
             if (name in MAKES_CODE and where not in ("json", "orjson")) or (name in BUILTIN and not where)}
    assert doing == set(CODE), f"not in the table: {doing - set(CODE)}; gone: {set(CODE) - doing}"


def test_arrays_are_read_without_pickles() -> None:
    assert [f"{named(path)}:{call.lineno}" for path in FILES for where, name, call in calls(path)
            if name == "load" and where in ("np", "numpy") and not any(
                k.arg == "allow_pickle" and ast.unparse(k.value) == "False" for k in call.keywords)] == []


def test_modules_have_docstrings() -> None:
    assert [named(path) for path in FILES
            if not ast.get_docstring(tree := parsed(path)) and tree.body] == []


PROGRAM = """
import socket, sys
def refused(*_, **__): raise AssertionError("a socket was opened")
socket.socket.__init__ = refused
before = set(sys.modules)
import orthrus
heavy = {"onnx", "llvmlite", "torch", "typer", "rich", "onnxruntime", "scipy", "PIL"} & set(sys.modules)
assert not heavy, heavy
import threading
assert threading.active_count() == 1, threading.enumerate()
"""


def test_importing_is_quiet_and_light() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_the_command_line_starts_without_onnx() -> None:
    program = "import sys, orthrus.tools.cli.main; assert not {'onnx', 'llvmlite'} & set(sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def first_of(module: str) -> str:
    return module.partition(".")[0]


def test_nothing_but_commands_needs_what_the_command_line_is_made_of() -> None:
    """A file outside of `tools` imports no module, inside functions neither, that imports typer or rich as
    it is imported itself."""
    modules = {module_of(path): path for path in FILES}
    outer = {path: {each.lineno for each in parsed(path).body
                    if isinstance(each, ast.Import | ast.ImportFrom)} for path in FILES}
    at_once = {module: {name for name, line in imports(path) if line in outer[path]}
               for module, path in modules.items()}
    needing = {module for module, names in at_once.items() if {"typer", "rich"} & set(map(first_of, names))}
    while more := {module for module, names in at_once.items() if names & needing} - needing:
        needing |= more
    assert "orthrus.tools.cli.main" in needing
    wrong = [f"{named(path)}:{line}: {name}" for path in FILES for name, line in imports(path)
             if path.relative_to(SOURCE).parts[0] not in ("tools", "__main__.py")
             and (name in needing or (first_of(name) in ("typer", "rich") and named(path) not in GUARDED))]
    assert not wrong, wrong


BARE = """
import sys
class Without:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("typer", "rich"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Without())
"""

SESSIONS = BARE + """
import orthrus
from orthrus.demo import MODEL, samples
from orthrus.tools.compare.bisection import bisect
from orthrus.tools.compare.comparison import compare
from orthrus.tools.view.page import page
session = orthrus.InferenceSession(MODEL)
image = samples()[0][:2]
label, _ = session.run(None, {"image": image})
with session.profile() as profile:
    session.run(None, {"image": image})
for each in (session, session.explain(), profile):
    assert str(each) and repr(each) and each._repr_html_()
assert "of peak" in str(profile)
assert compare(str(MODEL), "CPUExecutionProvider", "reference", {"image": image}).outputs
print(*label)
"""


def test_sessions_work_without_typer_and_rich() -> None:
    done = subprocess.run([sys.executable, "-c", SESSIONS], capture_output=True, text=True)
    assert done.returncode == 0 and len(done.stdout.split()) == 2, done.stderr


def test_the_command_says_what_it_lacks() -> None:
    program = BARE + "from orthrus.__main__ import main; main()"
    done = subprocess.run([sys.executable, "-c", program, "--help"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (1, "") and "pip install typer rich" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def _asks(tree: ast.AST) -> set[str]:
    """Functions of a module that answer None or a `No`, and those that give such a function."""
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)
            and node.returns is not None
            and ast.unparse(node.returns).strip("'\"") in ("No | None", "Check")}


def _called(node: ast.expr) -> str:
    while isinstance(node, ast.Call):
        node = node.func
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


@pytest.mark.parametrize("path", FILES, ids=named)
def test_no_refusal_is_passed_over(path: Path) -> None:
    """A `No` is false: `first(node) or second(node)` is what the second says, whatever the first said."""
    tree = read(path)
    asks = _asks(tree)
    found = [node.lineno for node in ast.walk(tree)
             if isinstance(node, ast.BoolOp) and isinstance(node.op, ast.Or)
             and any(isinstance(value, ast.Call) and _called(value) in asks for value in node.values[:-1])]
    assert not found, f"lines {found}: compare with None"
