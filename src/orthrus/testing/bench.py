"""What checks work with: the provider on trial, its samples tried once each, and engines that tell what ran.

In: a provider class and what to look at. Out: `Bench`, whose `trial` runs one sample with the provider
first and the CPU provider behind it. Kernels are watched by wrapping what `compile` of one instance
returns, so that the class stays as it is.
"""

from __future__ import annotations

import contextlib
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import field, replace
from typing import Any

import numpy as np

from .. import errors
from ..ir import Graph, Node
from ..kernels import Kernel, Part
from ..load import load
from ..providers import CPUExecutionProvider, known, register, unregister
from ..providers.base import ExecutionProvider, GraphView
from ..records import dataclass
from ..run.config import Config
from ..run.engine import Engine
from .closeness import difference
from .report import Coverage
from .samples import Sample, samples

CYCLE = "would wait for itself"


class Skip(Exception):
    """A check has nothing to look at; the text says why."""


@dataclass
class Trial:
    """What became of one sample. `claimed`: the provider took it; `reason`: why not; `placed`: where its
    node ran, by the engine's account; `ran`: its kernel was called and came back; `error`: what was
    raised; `outputs`."""

    sample: Sample
    claimed: bool
    reason: str = ""
    placed: str = ""
    ran: bool = False
    error: Exception | None = None
    outputs: list[Any] = field(default_factory=list)

    def differs(self, slack: float) -> str | None:
        """In words, how the outputs differ from the definition's."""
        return difference(self.outputs, self.sample.reference(), slack)


class OtherExecutionProvider(ExecutionProvider):
    """Takes the nodes whose name begins with `other` and runs their definitions: it stands for a provider of
    higher priority, so that parts are cut even where the provider on trial would take everything."""

    name = "OtherExecutionProvider"

    def claim(self, node: Node) -> Any:
        from ..ir import No

        return None if node.name.startswith("other") else No("its name does not begin with other")

    def compile(self, part: Part) -> Sequence[Kernel]:
        from ..kernels import reference

        return [reference(node) for node in part.nodes]


class Bench:
    """A provider on trial. `options`: its provider options; `operators`, `types`: what samples to try;
    `slack`: a factor on every bound of closeness."""

    def __init__(self, provider: type[ExecutionProvider], options: dict[str, Any] | None = None,
                 operators: Sequence[str] | None = None, types: Sequence[str] | None = None,
                 slack: float = 1.0) -> None:
        self.provider, self.options, self.slack = provider, dict(options or {}), slack
        self.samples = samples(operators, types)
        self.cases = 0
        self._trials: dict[Sample, Trial] = {}
        self._machine: str | None = None

    @property
    def name(self) -> str:
        return str(getattr(self.provider, "name", self.provider.__name__))

    def saw(self, count: int = 1) -> None:
        """Note that a check looked at `count` cases more."""
        self.cases += count

    @property
    def machine(self) -> str:
        """Why the provider cannot work here; empty where it can. Raises nothing: what a probe raises is a
        reason."""
        if self._machine is None:
            try:
                why = self.provider.probe_with(self.options)
                self._machine = "" if why is None else str(getattr(why, "reason", why)) or "no reason given"
                if not self._machine:
                    self.make()
            except Exception as error:
                self._machine = f"{type(error).__name__}: {error}"
        return self._machine

    def usable(self) -> None:
        """Raise Skip where the provider cannot be made on this machine."""
        if self.machine:
            raise Skip(f"{self.name} cannot work here: {self.machine}")

    def make(self, options: dict[str, Any] | None = None) -> ExecutionProvider:
        """A new instance, with the bench's options unless others are given."""
        return self.provider(dict(self.options if options is None else options))

    def ask(self, model: Any) -> tuple[Graph, set[Node], dict[Node, str]]:
        """The graph of `model`, the nodes the provider takes of it, and its reasons for the others."""
        graph = load(model)
        view = GraphView(graph, list(graph.nodes))
        taken = {n for capability in self.make().get_capability(view) for n in capability.nodes}
        return graph, taken, view.refusals

    def engine(self, model: Any, others: Sequence[ExecutionProvider] = (), level: int = 0,
               provider: ExecutionProvider | None = None) -> Watched:
        """`model` with `others` first, then the provider, then CPU."""
        return Watched(self, model, others, level, provider)

    def trial(self, sample: Sample) -> Trial:
        """The trial of one sample; run once and kept. A sample that is not claimed as it is, but with all
        inputs behind the first constant, is tried so."""
        if sample not in self._trials:
            trial = self.attempt(sample)
            if not trial.claimed and (fixed := sample.with_constants()) is not None and fixed.loads:
                other = self.attempt(fixed)
                trial = other if other.claimed else trial
            self._trials[sample] = trial
        return self._trials[sample]

    def trials(self) -> list[Trial]:
        """The trials of all samples that the provider claims. Raises Skip where it claims none."""
        self.usable()
        found = [t for t in map(self.trial, self.samples) if t.claimed]
        if not found:
            reasons = Counter(self.trial(s).reason for s in self.samples)
            most = f"; it mostly says: {reasons.most_common(1)[0][0]}" if reasons else ""
            raise Skip(f"it claims none of {len(self.samples)} samples{most}")
        return found

    def working(self) -> list[Trial]:
        """Trials that were claimed and ran to the end. Raises Skip where there is none."""
        if not (found := [t for t in self.trials() if t.error is None and t.ran]):
            raise Skip("no claimed sample runs to the end; see claimed_nodes_run")
        return found

    def attempt(self, sample: Sample) -> Trial:
        """Ask for one sample, and run it where it is claimed; nothing is kept."""
        model = sample.model()
        try:
            graph, taken, refusals = self.ask(model)
        except Exception as error:
            return Trial(sample, True, error=error)
        if not taken:
            why = next((refusals[n] for n in graph.nodes if n in refusals), "not among its capabilities")
            return Trial(sample, False, why)
        trial = Trial(sample, True)
        with quiet():
            try:
                watched = self.engine(model)
                trial.placed = watched.placed()
                trial.outputs = watched.run(sample.feeds)
                trial.ran = bool(watched.calls)
            except Exception as error:
                trial.error = error
        return trial

    def coverage(self) -> list[Coverage]:
        """What became of the samples that were tried, by operator; what was claimed comes first."""
        found = []
        for kind in dict.fromkeys(s.kind for s in self._trials):
            tried = [t for s, t in self._trials.items() if s.kind == kind]
            claimed = [t for t in tried if t.claimed]
            why = next((t.reason for t in tried if t.reason), "") if not claimed else ""
            found.append(Coverage(
                kind, tuple(dict.fromkeys(t.sample.type for t in claimed)),
                tuple(sorted({t.sample.schema.version for t in claimed})), len(tried), len(claimed),
                sum(t.ran for t in claimed), why))
        return sorted(found, key=lambda c: (not c.claimed, c.operator))

    @contextlib.contextmanager
    def registered(self) -> Iterator[str]:
        """The provider is known by its name, for sessions of the public API; gives the name."""
        before = known().get(self.name)
        if before is self.provider:
            yield self.name
            return
        if before is CPUExecutionProvider:
            raise Skip("it has the CPU provider's name; see name")
        if before is not None:
            unregister(self.name)
        register(self.provider)
        try:
            yield self.name
        finally:
            unregister(self.name)
            if before is not None:
                register(before)

    def session(self, model: Any, options: Any = None, **more: Any) -> Any:
        """An InferenceSession of the public API with the provider; inside `registered` only."""
        from ..api.session import InferenceSession

        chosen = (self.name, dict(self.options)) if self.options else self.name
        return InferenceSession(model.SerializeToString(), options, providers=[chosen], enable_fallback=0,
                                **more)


class Watched:
    """An engine whose kernels of the provider on trial are counted: `calls` by the label of their nodes.

    `around`: where it is set, it is called in place of each such kernel's `run`, with that and the
    arguments."""

    def __init__(self, bench: Bench, model: Any, others: Sequence[ExecutionProvider], level: int,
                 provider: ExecutionProvider | None) -> None:
        self.bench, self.calls = bench, Counter[str]()
        self.around: Callable[..., Any] | None = None
        self.instance = bench.make() if provider is None else provider
        original = self.instance.compile

        def compile_watched(part: Part) -> list[Any]:
            kernels = list(original(part))
            if part.fused or len(kernels) != len(part.nodes):
                return [self._watched(k, part.nodes) for k in kernels]
            return [self._watched(k, [n]) for k, n in zip(kernels, part.nodes, strict=True)]

        self.instance.compile = compile_watched  # type: ignore[method-assign]
        try:
            self.engine = Engine(model, Config(providers=[*others, self.instance], level=level))
        finally:
            del self.instance.compile

    def _watched(self, kernel: Any, nodes: Sequence[Node]) -> Any:
        if not isinstance(kernel, Kernel):
            return kernel
        labels = [node.label for node in nodes]

        def run(*given: Any, **more: Any) -> Any:
            made = (kernel.run(*given, **more) if self.around is None
                    else self.around(kernel.run, *given, **more))
            self.calls.update(labels)
            return made
        return replace(kernel, run=run)

    def run(self, feeds: dict[str, Any]) -> list[Any]:
        with quiet():
            return self.engine.run(None, feeds)

    def placed(self) -> str:
        """The providers that have the nodes."""
        return ", ".join(dict.fromkeys(part.provider for part in self.engine.placement.parts))

    def mine(self) -> list[str]:
        """Labels of the nodes that the provider on trial has, in bodies of control flow too."""
        return [r.node for r in self.engine.explain() if r.provider == self.bench.name]

    def parts(self) -> list[Part]:
        """The parts of the outermost graph that the provider on trial has."""
        return [p for p in self.engine.placement.parts if p.provider == self.bench.name]


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """numpy's warnings are no findings."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        yield


def brief(error: BaseException) -> str:
    """An exception in one line."""
    text = getattr(error, "text", None) or str(error)
    line = next((row.strip() for row in text.splitlines() if row.strip()), "")
    return f"{type(error).__name__}: {line[:300]}"


def ours(error: BaseException) -> bool:
    """Whether an exception is one of the documented ones."""
    return isinstance(error, (*errors.ALL, ValueError))
