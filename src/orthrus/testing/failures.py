"""Checks of errors and of what tells about a session: refusals of inputs, pickles, profiles, explanations.

A user who sees an error has to learn which node it was, and one who looks into a session has to find the
provider there.
"""

from __future__ import annotations

import json
import pickle
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import ALL
from .bench import Bench, Skip, brief
from .blocks import Sketch, blocks
from .check import by_operator, check, fault
from .closeness import difference
from .report import Finding

FAMILY = "errors"


class Broken(Exception):
    """What the kit raises inside a kernel."""


@check(FAMILY)
def errors_name_the_node(bench: Bench) -> Iterator[Finding]:
    """What a kernel raises reaches the user as an error of this API that names the node, and the session
    is usable afterwards."""
    found = blocks(bench)
    sketch = Sketch(found)
    watched = bench.engine(sketch.model([sketch.unary(sketch.unary("x"), 1)]))
    feeds = {"x": found.feed(1)}
    expected = watched.run(feeds)

    def around(run: Any, *_: Any, **__: Any) -> Any:
        raise Broken("the engine is out of order")

    watched.around = around
    bench.saw()
    try:
        watched.run(feeds)
        yield fault("a kernel that raises", "the run ended as if nothing were", "an error",
                    "let exceptions out")
    except Exception as error:
        node = getattr(error, "node", None) or ""
        if not isinstance(error, ALL) or "out of order" not in str(error) or not any(
                n in str(error) for n in (*watched.mine(), *(str(p) for p in watched.parts()))):
            yield fault("a kernel that raises", f"{brief(error)}, node {node}",
                        "the exception's text and the node",
                        "let exceptions of a kernel out as they are")
    watched.around = None
    if wrong := difference(watched.run(feeds), expected, bench.slack):
        yield fault("the run after one that failed", wrong, "what it gave before",
                    "leave a kernel as it was where it raises")


@check(FAMILY)
def contradictions_are_refused(bench: Bench) -> Iterator[Finding]:
    """Inputs whose shapes contradict each other, which is seen in a run only where dimensions have names,
    end in an error that names the node, and never in numbers."""
    rows, seen = [], set[str]()
    for t in bench.working():
        s = t.sample
        if s.kind in seen or len(s.inputs) != 2 or any(a is None or a.ndim != 2 for a in s.inputs):
            continue
        a, b = s.inputs
        assert a is not None and b is not None
        if s.feature or a.shape != b.shape or s.reference()[0].shape != a.shape:
            continue
        trial = bench.trial(opened := s.changed(open_shapes=True))
        if not trial.claimed or trial.error is not None:
            continue
        wrong = {"i0": a, "i1": np.concatenate([b, b[:1]])}
        seen.add(s.kind)
        bench.saw()
        try:
            [got, *_] = bench.engine(opened.model()).run(wrong)
            rows.append((s, f"fed {list(a.shape)} and {list(wrong['i1'].shape)}, it gives {list(got.shape)}"))
        except Exception as error:
            if not isinstance(error, ALL):
                rows.append((s, f"it raises {brief(error)}"))
    if not seen:
        raise Skip("it claims no node with two inputs whose dimensions have names")
    yield from by_operator(rows, "an error that names the node",
                           "compare the shapes in run, and raise ValueError")


@check(FAMILY)
def pickled_sessions(bench: Bench) -> Iterator[Finding]:
    """A session goes through pickle, to another process or to disk: it is made anew of the model, the
    providers and their options."""
    found = blocks(bench)
    sketch = Sketch(found)
    model, x = sketch.model([sketch.unary("x")]), found.feed(1)
    with bench.registered() as name:
        session = bench.session(model)
        expected = session.run(None, {"x": x})
        bench.saw()
        try:
            again = pickle.loads(pickle.dumps(session))
        except Exception as error:
            yield fault("pickle", brief(error), "a session",
                        "keep nothing in a session that cannot be made anew")
            return
        if again.get_providers() != session.get_providers():
            yield fault("pickle", f"providers {again.get_providers()}", f"{session.get_providers()}",
                        f"register {name} where the pickle is read")
        elif wrong := difference(again.run(None, {"x": x}), expected, bench.slack):
            yield fault("pickle", wrong, "what the session gave",
                        "make everything of the model and the options")


@check(FAMILY)
def sessions_by_name(bench: Bench) -> Iterator[Finding]:
    """A session that asks for the provider by its name has it, before the CPU provider, and runs nodes on
    it."""
    found = blocks(bench)
    sketch = Sketch(found)
    model = sketch.model([sketch.unary("x")])
    with bench.registered() as name:
        session = bench.session(model)
        bench.saw()
        if session.get_providers()[0] != name or session.get_providers()[-1] != "CPUExecutionProvider":
            yield fault("get_providers", str(session.get_providers()),
                        f"{name} first, CPUExecutionProvider last",
                        "leave name as it is in the class")
        if name not in session.explain().providers:
            yield fault("explain", str(session.explain().providers), f"nodes on {name}",
                        "return the claimed nodes from get_capability")


@check(FAMILY)
def explains(bench: Bench) -> Iterator[Finding]:
    """`session.explain()` names the provider's kernels: a kernel has a name that says what it is."""
    found = blocks(bench)
    sketch = Sketch(found)
    model = sketch.model([sketch.unary(sketch.other(sketch.unary("x")), 1)])
    with bench.registered() as name:
        session = bench.session(model)
        for report in session.explain():
            if report.provider != name:
                continue
            bench.saw()
            kernel: object = report.kernel
            if not isinstance(kernel, str) or not kernel.strip():
                yield fault(str(report.node), f"its kernel is called {kernel!r}", "a name in words",
                            "Kernel(run, \"my_softmax\")")
        if not str(session.explain()).strip():
            yield fault("explain", "nothing", "a line per node", "give kernels a name")


@check(FAMILY)
def profiles(bench: Bench) -> Iterator[Finding]:
    """A profile has an event for each of the provider's nodes or parts, under its name; a run that is
    profiled gives what another gives. A kernel with `stepwise` computes the same in steps."""
    from ..api.options import SessionOptions

    found = blocks(bench)
    sketch = Sketch(found)
    model, x = sketch.model([sketch.unary(sketch.unary("x"), 1)]), found.feed(1)
    with bench.registered() as name, tempfile.TemporaryDirectory() as folder:
        expected = bench.session(model).run(None, {"x": x})
        options = SessionOptions()
        options.enable_profiling = True
        options.profile_file_prefix = str(Path(folder) / "profile")
        session = bench.session(model, options)
        got = session.run(None, {"x": x})
        events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
        mine = [e for e in events if e.get("cat") == "Node" and e["args"].get("provider") == name]
        bench.saw()
        if wrong := difference(got, expected, bench.slack):
            yield fault("a profiled run", wrong, "what a run gives otherwise",
                        "let stepwise compute what run does")
        elif not mine:
            yield fault("a profile", f"no event of {name} among {len(events)}", "an event per node or part",
                        "let stepwise call note(work, start, end) for each of its steps")
