"""Checks of the class itself: its name, the shape of its methods, what a claim may do, what an import may
cost.

Nothing runs here but claims; the two checks that import the provider afresh do so in a process of their
own.
"""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

from ..ir import Graph, No
from ..load import load
from ..providers.base import ExecutionProvider, GraphView
from .bench import Bench, Skip, brief
from .check import by_operator, check, fault
from .report import Finding
from .samples import Sample

FAMILY = "interface"
METHODS = ("probe", "claim", "get_capability", "compile", "on_run_start", "on_run_end")
ASKED = 200
"""Samples whose claims are asked again and again."""
SECONDS = 120


@check(FAMILY)
def name(bench: Bench) -> Iterator[Finding]:
    """The class attribute `name` is how sessions ask for the provider; it ends in ExecutionProvider, as
    everywhere in this API, and short names are made of what is before."""
    bench.saw()
    given = getattr(bench.provider, "name", None)
    if not isinstance(given, str):
        yield fault(bench.provider.__name__, f"name is {given!r}", "a string",
                    "name = \"MyExecutionProvider\"")
    elif not given.isidentifier() or not given.endswith("ExecutionProvider") or given == "ExecutionProvider":
        yield fault(bench.provider.__name__, f"name is {given!r}", "a word that ends in ExecutionProvider",
                    "name = \"MyExecutionProvider\"")


@check(FAMILY)
def signatures(bench: Bench) -> Iterator[Finding]:
    """Methods take what `ExecutionProvider`'s take, by the same names; `probe` is a class method, for it
    is called before there is an instance; the class is made with one argument, the options."""
    for method in METHODS:
        bench.saw()
        own = getattr(bench.provider, method)
        if method == "probe" and not inspect.ismethod(own):
            yield fault("probe", "it is no class method", "@classmethod def probe(cls)",
                        "put @classmethod above it")
            continue
        base = getattr(ExecutionProvider, method)
        names = [p.name for p in inspect.signature(base).parameters.values()]
        try:
            inspect.signature(own).bind(*names)
        except TypeError as error:
            yield fault(method, f"{method}{inspect.signature(own)}: {error}",
                        f"{method}{inspect.signature(base)}",
                        "take the arguments of ExecutionProvider's method")
    bench.saw()
    try:
        inspect.signature(bench.provider).bind({})
    except TypeError as error:
        yield fault("__init__", str(error), "__init__(self, options=None)",
                    "take the options and hand them to super().__init__")


@check(FAMILY)
def construction(bench: Bench) -> Iterator[Finding]:
    """An instance can be made with no options, as often as sessions are; what a session changes is in the
    instance."""
    try:
        why = bench.provider.probe_with(bench.options)
    except Exception:
        raise Skip("probe raises; see probe") from None
    if why is not None:
        raise Skip(f"{bench.name} cannot work here: {getattr(why, 'reason', why)}")
    bench.saw()
    try:
        first, second = bench.make(), bench.make()
    except Exception as error:
        yield fault("__init__", brief(error), "an instance", "give every option a default")
        return
    if not isinstance(first, ExecutionProvider):
        yield fault(bench.provider.__name__, "it is no ExecutionProvider", "a subclass", "derive it")
    elif first is second:
        yield fault("__init__", "two calls gave one instance", "an instance per session",
                    "drop the singleton")
    elif not hasattr(first, "settings") or not hasattr(first, "given"):
        yield fault("__init__", "settings and given are missing", "what ExecutionProvider.__init__ makes",
                    "call super().__init__(options)")


@check(FAMILY)
def probe(bench: Bench) -> Iterator[Finding]:
    """`probe` answers None or `No(reason)`, the same at each call, and raises nothing: a machine without the
    provider's device is no error."""
    bench.saw()
    try:
        answers = [bench.provider.probe() for _ in range(2)]
    except Exception as error:
        yield fault("probe", f"it raised {brief(error)}", "None or No(reason)", "return No(str(error))")
        return
    for answer in answers:
        if answer is not None and not isinstance(answer, No):
            yield fault("probe", repr(answer), "None or No(reason)", "return No(\"what is missing\")")
        elif answer is not None and not answer.reason.strip():
            yield fault("probe", "a refusal without a reason", "No(reason)",
                        "say what is missing on this machine")
    if (answers[0] is None) != (answers[1] is None):
        yield fault("probe", f"{answers[0]!r}, then {answers[1]!r}", "the same answer each time",
                    "keep no state")


def _asked(bench: Bench) -> list[Sample]:
    """Samples to ask claims for: of every operator some, and those that are claimed first."""
    bench.usable()
    step = max(1, len(bench.samples) // ASKED)
    few = bench.samples[::step][:ASKED]
    claimed = [s for s in bench.samples if bench.ask(s.model())[1]][:ASKED // 2]
    return list(dict.fromkeys([*claimed, *few]))


def _answer(provider: ExecutionProvider, graph: Graph) -> tuple[bool, ...]:
    view = GraphView(graph, list(graph.nodes))
    taken = {n for capability in provider.get_capability(view) for n in capability.nodes}
    return tuple(n in taken for n in graph.nodes)


@check(FAMILY)
def claims_do_not_depend_on_order(bench: Bench) -> Iterator[Finding]:
    """The same node gets the same answer, whatever was asked before and how often: sessions are made in
    any order, and tools ask again."""
    asked = _asked(bench)
    graphs = [load(s.model()) for s in asked]
    fresh = [_answer(bench.make(), g) for g in graphs]
    one = bench.make()
    rows = []
    for turn, order in (("first to last", range(len(asked))),
                        ("last to first", range(len(asked) - 1, -1, -1)),
                        ("a second time", range(len(asked)))):
        for i in order:
            bench.saw()
            if _answer(one, graphs[i]) != fresh[i]:
                rows.append((asked[i], f"asked {turn}: {'claimed' if not all(fresh[i]) else 'declined'}, "
                             f"where a new instance {'claims' if all(fresh[i]) else 'declines'}"))
    yield from by_operator(rows, "the answer of a new instance",
                           "let claim look at the node and the options only")


@check(FAMILY)
def claims_change_nothing(bench: Bench) -> Iterator[Finding]:
    """A claim looks at a graph and leaves it as it is: the next provider is asked about the same one, and
    rewriting waits until `compile`, where the part is the provider's own."""
    rows = []
    for sample in _asked(bench):
        graph = load(sample.model())
        before = _state(graph)
        _answer(bench.make(), graph)
        bench.saw()
        if _state(graph) != before:
            rows.append((sample, "the graph is another one after it was asked about"))
    yield from by_operator(rows, "the graph as it was", "change nodes and values in compile, if at all")


def _state(graph: Graph) -> tuple[Any, ...]:
    return (graph.text(), tuple((n.name, n.version, n.op, repr(n.attrs)) for n in graph.nodes),
            tuple((v.name, str(v.type), v.shape, id(v.const)) for n in graph.nodes for v in (*n.inputs,
                                                                                             *n.outputs)
                  if v is not None))


@check(FAMILY)
def claims_answer_none_or_no(bench: Bench) -> Iterator[Finding]:
    """`claim` answers None for mine, or `No(reason)`; anything else, such as False, reads as something
    else."""
    asked = _asked(bench)
    provider = bench.make()
    rows = []
    for sample in asked:
        for node in load(sample.model()).nodes:
            bench.saw()
            answer: object = provider.claim(node)
            if answer is not None and not isinstance(answer, No):
                rows.append((sample, f"claim answered {answer!r}"))
    yield from by_operator(rows, "None or No(reason)",
                           "return None to take the node, No(\"why not\") to leave it")


@check(FAMILY)
def refusals_have_reasons(bench: Bench) -> Iterator[Finding]:
    """A refusal says why in words: the reason is all that a user sees in `explain()` when a node runs
    elsewhere."""
    asked = _asked(bench)
    rows = []
    for sample in asked:
        graph = load(sample.model())
        view = GraphView(graph, list(graph.nodes))
        taken = {n for capability in bench.make().get_capability(view) for n in capability.nodes}
        for node in graph.nodes:
            if node in taken or node not in view.refusals:
                continue
            bench.saw()
            reason: object = view.refusals[node]
            if not isinstance(reason, str) or not reason.strip():
                rows.append((sample, f"declined with {reason!r}"))
    yield from by_operator(rows, "a reason in words", "No(\"axis is not the last one\")")


FRESH = """
import importlib, json, sys
data = json.loads(sys.argv[1])
sys.path[:] = data["path"]
if data["block"]:
    class Bare:
        def find_spec(self, name, path=None, target=None):
            if name.partition(".")[0] in data["block"]:
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)
    sys.meta_path.insert(0, Bare())
import orthrus, numpy, ml_dtypes
import orthrus.providers, orthrus.kernels, orthrus.ir, orthrus.errors, orthrus.ops.schema
before = set(sys.modules)
found = importlib.import_module(data["module"])
for part in data["name"].split("."):
    found = getattr(found, part)
imported = sorted({m.partition(".")[0] for m in set(sys.modules) - before})
why = found.probe()
print("ANSWER" + json.dumps({"imported": imported, "none": why is None, "no": type(why).__name__,
                             "reason": getattr(why, "reason", "") if why is not None else ""}))
"""


def _afresh(bench: Bench, block: list[str]) -> dict[str, Any]:
    """Import the provider in a new process, without the packages of `block`. Raises Skip where it cannot be
    imported by name, RuntimeError with what went wrong."""
    cls = bench.provider
    module = cls.__module__
    if "<" in cls.__qualname__ or module in ("__main__", "builtins"):
        raise Skip(f"{cls.__qualname__} of {module} cannot be imported by name")
    given = {"path": sys.path, "block": block, "module": module, "name": cls.__qualname__}
    done = subprocess.run([sys.executable, "-c", FRESH, json.dumps(given)], capture_output=True, text=True,
                          timeout=SECONDS)
    line = next((row for row in done.stdout.splitlines() if row.startswith("ANSWER")), None)
    if line is None:
        if f"No module named '{module}'" in done.stderr:
            raise Skip(f"{module} cannot be imported in another process")
        last = [row for row in done.stderr.splitlines() if row.strip()]
        raise RuntimeError(last[-1] if last else f"exit code {done.returncode}")
    answer: dict[str, Any] = json.loads(line.removeprefix("ANSWER"))
    return answer


def _foreign(bench: Bench, names: list[str]) -> list[str]:
    """Those of `names` that are neither the standard library's, nor ours, nor the provider's own package."""
    own = {"orthrus", "numpy", "ml_dtypes", bench.provider.__module__.partition(".")[0]}
    return [n for n in names if n not in own and n not in sys.stdlib_module_names and not n.startswith("_")]


@check(FAMILY)
def heavy_imports_wait(bench: Bench) -> Iterator[Finding]:
    """Importing a provider's module imports no engine: entry points are imported wherever Orthrus looks
    for providers, also where nobody uses this one. Packages wait until `probe`, or better until a session
    is made."""
    try:
        answer = _afresh(bench, [])
    except RuntimeError as error:
        yield fault(bench.provider.__module__, f"importing it failed: {error}",
                    "a module that can be imported",
                    "import what may be missing inside functions")
        return
    bench.saw()
    if heavy := _foreign(bench, answer["imported"]):
        yield fault(bench.provider.__module__, f"importing it imports {', '.join(heavy)}",
                    "nothing but the standard library, numpy and orthrus",
                    "move these imports into probe, __init__ or compile")


@check(FAMILY)
def bare_machine(bench: Bench) -> Iterator[Finding]:
    """Where its packages are missing, a provider is not an error but says so: its module can be imported, and
    `probe` answers `No(what is missing)`."""
    installed = _foreign(bench, sorted({m.partition(".")[0] for m in sys.modules} | _distributed()))
    needed = [n for n in installed if n not in ("onnx", "google", "typing_extensions", "protobuf",
                                                "llvmlite")]
    try:
        answer = _afresh(bench, needed)
    except RuntimeError as error:
        yield fault("probe", f"without other packages it raises {error}", "No(what is missing)",
                    "try: import engine; except ImportError as error: return No(str(error))")
        return
    bench.saw()
    if not answer["none"] and (answer["no"] != "No" or not str(answer["reason"]).strip()):
        yield fault("probe", f"without other packages it answers {answer['no']}({answer['reason']!r})",
                    "No(what is missing)", "return No(\"package engine is not installed\")")


def _distributed() -> set[str]:
    """The top-level modules of installed packages."""
    from importlib.metadata import packages_distributions

    return set(packages_distributions())
