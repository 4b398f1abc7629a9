"""Checks of single operators: every claimed sample against the operator's definition.

A fault is reported once: what is wrong in plain samples is `results`'; what is wrong only with empty
tensors, with constants or in an older version is those checks', which compare with what the provider gives
otherwise.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ..providers.base import ExecutionProvider
from .bench import Bench, Skip, Trial, brief
from .check import by_operator, check, fault
from .closeness import difference
from .report import Finding
from .samples import Sample, earlier

FAMILY = "operators"
MEND = "mend the kernel, or decline the node with a reason"


@check(FAMILY)
def claimed_nodes_run(bench: Bench) -> Iterator[Finding]:
    """What a provider claims, it runs: a claim is asked once and binds, and nobody else takes the node
    when its kernel cannot be made or raises. A claim whose kernel is never called is a claim in name only."""
    trials = bench.trials()
    bench.saw(len(trials))
    yield from by_operator(((t.sample, brief(t.error)) for t in trials if t.error is not None),
                           "the claimed node compiles and runs", MEND)
    idle = [(t.sample, f"its kernel was not called; the node ran on {t.placed}")
            for t in trials if t.error is None and not t.ran]
    yield from by_operator(idle, f"the node runs on {bench.name}",
                           "return each node once, in one capability, and only nodes of view.nodes")


@check(FAMILY)
def claims_and_capability_agree(bench: Bench) -> Iterator[Finding]:
    """`claim` says yes to exactly the nodes that `get_capability` takes, where a provider has both: tools
    ask the first and sessions the second."""
    bench.usable()
    if bench.provider.claim is ExecutionProvider.claim:
        raise Skip("it does not override claim")
    rows: list[tuple[Sample, str]] = []
    for sample in bench.samples:
        graph, taken, _ = bench.ask(sample.model())
        asked = bench.make()
        for node in graph.nodes:
            bench.saw()
            yes = asked.claim(node) is None
            if yes != (node in taken):
                rows.append((sample, "claim takes it, get_capability does not" if yes else
                             "get_capability takes it, claim does not"))
    yield from by_operator(rows, "the same answer from both", "let get_capability ask self.claim(node)")


@check(FAMILY)
def operators_are_defined(bench: Bench) -> Iterator[Finding]:
    """Every operator for which a provider registers a kernel is known to Orthrus by a definition: without
    one, no other provider can run the node, and nothing can say whether the kernel is right."""
    from ..ops import defined

    kinds = {f"{e.definition.domain}::{e.definition.op_type}" if e.definition.domain else e.definition.op_type
             for e in bench.provider.kernels}
    known = {f"{op.domain}::{op.name}" if op.domain else op.name for op in defined()}
    bench.saw(len(kinds))
    for kind in sorted(kinds - known):
        yield fault(kind, "a kernel is registered for it, and no operator of this name is defined",
                    "a definition that says what the kernel has to give",
                    f"define it with @orthrus.op({kind!r}), or mend the spelling")


def _compared(bench: Bench, feature: str) -> Iterator[Finding]:
    """Samples with `feature` against the definition. Whoever is wrong in plain samples is not blamed
    again."""
    trials = [t for t in bench.working() if t.sample.feature == feature]
    plain: set[tuple[str, str]] = set()
    if feature:
        plain = {(t.sample.kind, t.sample.type) for t in bench.working()
                 if not t.sample.feature and t.differs(bench.slack)}
    rows = []
    for t in trials:
        if (t.sample.kind, t.sample.type) in plain:
            continue
        bench.saw()
        if (found := t.differs(bench.slack)) is not None:
            rows.append((t.sample, found))
    yield from by_operator(rows, "the result of the operator's definition", MEND)


@check(FAMILY)
def results(bench: Bench) -> Iterator[Finding]:
    """A kernel gives what the operator's definition gives, in type, shape and every element, up to
    rounding, in every type that the provider claims."""
    yield from _compared(bench, "")


@check(FAMILY)
def broadcasting(bench: Bench) -> Iterator[Finding]:
    """Inputs of different shapes are broadcast as in numpy: a dimension of 1 and a missing one stand for
    any."""
    yield from _compared(bench, "broadcast")


@check(FAMILY)
def empty_tensors(bench: Bench) -> Iterator[Finding]:
    """A tensor without elements is a tensor: models meet it where nothing is detected, or a cache is
    empty."""
    yield from _compared(bench, "empty")


@check(FAMILY)
def scalars(bench: Bench) -> Iterator[Finding]:
    """A tensor without dimensions is a tensor: the result keeps the rank of 0."""
    yield from _compared(bench, "scalar")


def right(bench: Bench) -> list[Trial]:
    """Trials that ran and gave what the definition gives. Raises Skip where there is none."""
    if not (found := [t for t in bench.working() if t.differs(bench.slack) is None]):
        raise Skip("no claimed sample gives the right result; see results")
    return found


def _unlike(trial: Trial, right: Trial, bench: Bench) -> str | None:
    """What tells `trial` from a trial that is right: its error, or how its outputs differ."""
    return brief(trial.error) if trial.error is not None else difference(
        trial.outputs, right.outputs, bench.slack)


def _again(bench: Bench, changed: Callable[[Sample], Sample | None], cure: str) -> Iterator[Finding]:
    """Samples that are right, said otherwise, give what they gave before."""
    rows = []
    for t in right(bench):
        other = changed(t.sample)
        if other is None or not other.loads:
            continue
        trial = bench.attempt(other)
        if not trial.claimed:
            continue
        bench.saw()
        if (found := _unlike(trial, t, bench)) is not None:
            rows.append((other, found))
    yield from by_operator(rows, "what the same node gives with plain inputs", cure)


@check(FAMILY)
def shapes_left_open(bench: Bench) -> Iterator[Finding]:
    """A model may name its dimensions instead of giving their sizes. A provider that claims such a node
    takes the sizes from the arrays of each run."""
    yield from _again(bench, lambda s: s.changed(open_shapes=True) if any(
        a is not None and a.ndim for a in s.inputs) else None,
        "read sizes in run, not in compile; or decline nodes whose shapes are not numbers")


@check(FAMILY)
def constant_inputs(bench: Bench) -> Iterator[Finding]:
    """Inputs that are initializers arrive in `Value.const`, and never among a fused part's inputs: weights
    are packed once, when the session is made."""
    yield from _again(bench, Sample.with_constants,
                      "take constants from value.const, in the order of node.inputs")


@check(FAMILY)
def older_versions(bench: Bench) -> Iterator[Finding]:
    """A kernel serves every schema version that is claimed: a model of an older opset asks for the
    operator as it was then."""
    rows, seen = [], set[tuple[str, int, str]]()
    for t in right(bench):
        for older in earlier(t.sample):
            key = (older.kind, older.version, str(older.index))
            if key in seen:
                continue
            seen.add(key)
            trial = bench.trial(older)
            if not trial.claimed:
                continue
            bench.saw()
            if (found := _unlike(trial, t, bench)) is not None:
                rows.append((older, found))
    yield from by_operator(rows, "the result of the newest version, whose meaning is the same",
                           "look at node.version in claim, or narrow since and until of the kernel")


@check(FAMILY)
def strided_inputs(bench: Bench) -> Iterator[Finding]:
    """Arrays reach a kernel as the nodes before it left them: transposed, with gaps, backwards, read-only. A
    kernel that needs one dense block makes it one."""
    rows = []
    for t in right(bench):
        watched = bench.engine(t.sample.model())
        for form, change in FORMS.items():
            watched.around = functools.partial(_given_as, change)
            bench.saw()
            try:
                found = difference(watched.run(t.sample.feeds), t.outputs, bench.slack)
            except Exception as error:
                found = brief(error)
            if found is not None:
                rows.append((t.sample, f"given {form}: {found}"))
                break
    yield from by_operator(rows, "what the same node gives with dense inputs",
                           "np.ascontiguousarray(x) where the kernel needs dense memory")


def _given_as(change: Callable[[Any], Any], run: Callable[..., Any], *given: Any, **more: Any) -> Any:
    return run(*[change(a) if isinstance(a, np.ndarray) else a for a in given], **more)


@check(FAMILY)
def inputs_untouched(bench: Bench) -> Iterator[Finding]:
    """A kernel reads its inputs and never writes on them: they belong to the caller, to other nodes that
    read them too, or are weights. A kernel may write into an input only where it is handed that as `out`
    (`in_place`)."""
    rows = []
    for t in bench.working():
        constants = frozenset(k for k, a in enumerate(t.sample.inputs) if a is not None and k)
        for sample in (t.sample, *([t.sample.changed(constants=constants)] if constants else ())):
            model = sample.model()
            if not bench.ask(model)[1]:
                continue
            watched = bench.engine(model)
            weights = {v.name: (v.const, v.const.copy()) for v in watched.engine.graph.initializers.values()
                       if isinstance(v.const, np.ndarray)}
            feeds = sample.feeds
            try:
                watched.run(feeds)
            except Exception:
                continue
            bench.saw()
            changed = [name for name, a in sample.feeds.items() if not same(a, feeds[name])]
            changed += [name for name, (now, before) in weights.items() if not same(now, before)]
            if changed:
                rows.append((sample, f"input {', '.join(changed)} was written on"))
                break
    yield from by_operator(rows, "inputs as they were", "write into a new array")


@check(FAMILY)
def fresh_results(bench: Bench) -> Iterator[Finding]:
    """A result belongs to the caller: what a later run computes does not change it, and it shares no
    memory with an earlier one. A kernel returns a new array, a view of an input, or what it was handed as
    `out`."""
    rows = []
    for t in bench.working():
        if not any(isinstance(v, np.ndarray) and v.size for v in t.outputs):
            continue
        watched = bench.engine(t.sample.model())
        first = watched.run(t.sample.feeds)
        kept = [v.copy() if isinstance(v, np.ndarray) else v for v in first]
        feeds = t.sample.feeds
        try:
            second = watched.run({k: turned(a) if k == "i0" else a for k, a in feeds.items()})
        except Exception:
            second = watched.run(feeds)
        bench.saw()
        if any(isinstance(v, np.ndarray) and not same(v, k) for v, k in zip(first, kept, strict=True)):
            rows.append((t.sample, "a later run overwrote the result of an earlier one"))
        elif any(isinstance(a, np.ndarray) and isinstance(b, np.ndarray) and np.may_share_memory(a, b)
                 for a in first for b in second):
            rows.append((t.sample, "results of two runs share memory"))
    yield from by_operator(rows, "a new array in each run",
                           "copy out of a buffer that is used again, or make the array read-only, and "
                           "the runtime copies it")


def same(a: np.ndarray, b: np.ndarray) -> bool:
    """Equal to the bit; strings equal."""
    return bool(np.all(a == b)) if a.dtype == object else a.tobytes() == b.tobytes()


def turned(a: np.ndarray) -> np.ndarray:
    """The elements of a float array in another order; anything else as it is."""
    return a[::-1].copy() if a.dtype.kind == "f" and a.ndim else a.copy()


def _gaps(a: np.ndarray) -> np.ndarray:
    if not a.ndim:
        return a
    wide = np.zeros((*a.shape[:-1], 2 * a.shape[-1]), a.dtype)
    wide[..., ::2] = a
    return wide[..., ::2]


def _backwards(a: np.ndarray) -> np.ndarray:
    at = (slice(None, None, -1),) * a.ndim
    return np.ascontiguousarray(a[at])[at] if a.ndim else a


def _read_only(a: np.ndarray) -> np.ndarray:
    a = a.copy()
    a.flags.writeable = False
    return a


FORMS: dict[str, Callable[[np.ndarray], Any]] = {
    "with gaps": _gaps, "backwards": _backwards, "read-only": _read_only,
    "transposed": lambda a: np.ascontiguousarray(a.transpose()).transpose() if a.ndim > 1 else a,
}
