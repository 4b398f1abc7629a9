"""The fuzzers of `tests/fuzz`: a few seeds of each kind, that they see planted defects and make them small,
and by night some minutes from new seeds.

`python -m tests.fuzz --minutes 60` is the long form.
"""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper
from skips import needs

from fuzz import chains, graphs, judge, known, mutations, scopes, search, shrink, small
from fuzz.steps import info
from orthrus.errors import Fail

LINUX = needs("Linux")


@pytest.fixture(scope="module")
def peer() -> Any:
    pytest.importorskip("onnxruntime")
    return search.peer()


def findings(make: Any, seeds: range, peer: Any) -> list[str]:
    found = []
    for seed in seeds:
        subject = make(seed, False)
        said = judge.examine(subject, peer)
        if said is not None and said.kind != "differs" and not known.excused(said, subject):
            found.append(f"{subject.name}: {said.kind}: {said.text}")
    return found


def test_graphs(peer: Any) -> None:
    assert not (found := findings(small.graph, range(90), peer)), "\n".join(found)


def test_operators(peer: Any) -> None:
    assert not (found := findings(small.operator, range(150), peer)), "\n".join(found)


def test_chains(peer: Any) -> None:
    assert not (found := findings(chains.chain, range(30), peer)), "\n".join(found)


def scoped(seeds: range, peer: Any) -> list[str]:
    return [f"seed {seed}: {text}" for seed in seeds for text in scopes.findings(*scopes.build(seed), peer)]


@pytest.mark.slow
def test_nested_scopes(peer: Any) -> None:
    assert not (found := scoped(range(2000, 2060), peer)), "\n".join(found)


@pytest.mark.thorough
@pytest.mark.parametrize("first", range(3000, 3800, 200))
def test_many_nested_scopes(first: int, peer: Any) -> None:
    """onnxruntime ends this process with some of them: it divides by a size of 0."""
    assert not (found := scoped(range(first, first + 200), peer)), "\n".join(found)


@LINUX
@pytest.mark.slow
def test_mutations(tmp_path: Path) -> None:
    """In a process of their own, since it takes limits that it cannot give back."""
    plan = search.Plan("mutations", str(tmp_path), time.time() + 60, 1, quick=False, most=450)
    tally = search.search(plan, 0, 1, lambda line: None)
    assert not tally.failed, "\n".join(tally.lines)
    assert tally.tried["mutations"] == 451


@LINUX
@pytest.mark.nightly
@pytest.mark.parametrize("what", search.WHAT)
def test_at_night(what: str, tmp_path: Path) -> None:
    """Ten minutes of each kind; seeds are the day's."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.fuzz", "--what", what, "--minutes", "10", "--folder", str(tmp_path)],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]


def test_a_seed_gives_one_subject() -> None:
    for make in (small.graph, small.operator, chains.chain):
        one, other = make(7, False), make(7, False)
        assert one.model.SerializeToString() == other.model.SerializeToString()
        assert one.setting == other.setting and one.kinds == other.kinds


def test_subjects_are_of_every_kind() -> None:
    """What a few thousand seeds come to: most operators, odd sizes, and each way to run them."""
    made = [small.graph(seed, False) for seed in range(900)]
    ops = {node.op_type for s in made for node in s.model.graph.node}
    assert len(ops) > 140
    assert {kind for s in made for kind in s.kinds} == {"first", "again", "fed", "sizes", "special"}
    assert {s.setting.level for s in made} == set(small.LEVELS)
    assert {s.setting.threads for s in made} == {1, 2} and {s.setting.shapes for s in made} == {0, 1, 2}
    batches = {a.shape[:2] for s in made for a in s.feeds[0].values() if a.ndim == 4}
    assert {(n, c) for n in (1, 2, 3) for c in (1, 2, 3, 5)} <= batches
    cases = {(case.domain, case.op) for case in (*known.DIFFERS, *known.EDGES)}
    assert not cases - {*small.applications._NAMES}


# that it sees what is wrong


def chain() -> small.Subject:
    """Five nodes, of which one is going to be wrong."""
    nodes = [
        helper.make_node(op, [a], [b])
        for op, a, b in (
            ("Abs", "x", "a"),
            ("Sqrt", "a", "b"),
            ("Neg", "b", "c"),
            ("Tanh", "c", "d"),
            ("Exp", "d", "e"),
        )
    ]
    graph = helper.make_graph(
        nodes, "g", [info("x", np.float32, ["n", 3, 5])], [info(n, np.float32, None) for n in ("c", "e")]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)])
    model.ir_version = 10
    rng = np.random.default_rng(0)
    feeds = [{"x": rng.normal(size=(n, 3, 5)).astype(np.float32)} for n in (2, 3)]
    return small.Subject("chain", model, feeds, small.Setting(threads=2, shapes=2), kinds=["first", "sizes"])


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Sessions under test whose Sqrt is a little off for what is below a half."""
    make = judge.session

    def session(engine: Any, raw: bytes, level: str, threads: int, providers: Any = None) -> Any:
        if providers is not None or engine.__name__ != "orthrus":
            return make(engine, raw, level, threads, providers)
        return _Off(raw, make)

    monkeypatch.setattr(judge, "session", session)
    yield


class _Off:
    """A session that asks the definitions and adds 0.1 to what comes of a Sqrt."""

    def __init__(self, raw: bytes, make: Any) -> None:
        import orthrus

        model = onnx.ModelProto.FromString(raw)
        for node in list(model.graph.node):
            if node.op_type == "Sqrt":
                end = node.output[0]
                node.output[0] = end + "_"
                model.graph.initializer.append(onnx.numpy_helper.from_array(np.float32(0.1), end + "off"))
                at = list(model.graph.node).index(node) + 1
                model.graph.node.insert(at, helper.make_node("Add", [end + "_", end + "off"], [end]))
        self.inner = make(orthrus, model.SerializeToString(), "ORT_DISABLE_ALL", 1, judge.NUMPY)

    def run(self, names: Any, feeds: Any) -> Any:
        return self.inner.run(names, feeds)


def test_a_planted_defect_is_seen_and_made_small(planted: None, peer: Any, tmp_path: Path) -> None:
    subject = chain()
    found = judge.examine(subject, peer)
    assert found is not None and found.kind == "wrong"

    def test(s: small.Subject) -> str | None:
        said = judge.examine(s, peer)
        return said and said.kind

    least = shrink.shrunk(subject, "wrong", test)
    assert [node.op_type for node in least.model.graph.node] == ["Sqrt"]
    assert len(least.feeds) == 1 and [a.size for a in least.feeds[0].values()] == [1]
    assert least.setting == small.Setting("ORT_DISABLE_ALL", 1, 0)
    shrink.stored(least, tmp_path / "it", "wrong: so")
    again = shrink.loaded(tmp_path / "it")
    assert again.model == least.model and test(again) == "wrong"
    assert "--replay" in (tmp_path / "it" / "README").read_text()


def test_rounding_is_not_held_against_a_result() -> None:
    subject = chain()
    got = judge.Oracle(subject.model, None).definitions(subject.feeds[0])
    assert isinstance(got, list)
    near = [a * np.float32(1 + 1e-6) for a in got]
    assert judge.apart(near, got, subject) is None
    assert judge.apart([a + np.float32(1e-2) for a in got], got, subject) is not None


@LINUX
def test_crashes_and_hangs_are_told_apart() -> None:
    assert shrink.forked(lambda: "wrong") == "wrong" and shrink.forked(lambda: None) is None
    assert shrink.forked(lambda: os.kill(os.getpid(), 11)) == "crash"  # type: ignore[func-returns-value]
    assert shrink.forked(lambda: time.sleep(60), 0.3) == "hang"  # type: ignore[func-returns-value]


@LINUX
def test_feeds_end_at_a_page_nobody_reads() -> None:
    a = mutations.beside_guard(np.arange(5, dtype=np.float32))
    assert a.tolist() == [0, 1, 2, 3, 4]

    def past() -> str:
        return str(np.lib.stride_tricks.as_strided(a, (6,), (4,)).sum())

    assert shrink.forked(past) == "crash"


def test_an_error_of_no_documented_class_is_seen() -> None:
    assert mutations._said("loading", Fail("so")) is None
    assert mutations._said("loading", AssertionError("so")).kind == "untyped"  # type: ignore[union-attr]
    assert mutations._said("loading", RecursionError("so")).kind == "untyped"  # type: ignore[union-attr]


def test_mutated_models_differ_and_many_load() -> None:
    models = [small.graph(seed, False).model.SerializeToString() for seed in range(10)]
    made = [mutations.changed(seed, models) for seed in range(300)]
    assert len(set(made)) > 280 and made == [mutations.changed(seed, models) for seed in range(300)]
    readable = 0
    for raw in made:
        try:
            onnx.ModelProto.FromString(raw)
            readable += 1
        except Exception:
            pass
    assert readable > 150


def test_a_larger_graph_is_a_subject_too(peer: Any) -> None:
    model, feeds = graphs.build(3)
    subject = dataclasses.replace(chain(), model=model, feeds=[feeds], kinds=["first"])
    assert judge.examine(subject, peer) is None
