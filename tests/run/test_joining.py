"""Parts that control flow divides, joined after runs of the same shapes: what they gave they give, whatever
is fed next, whoever runs, and however a session ends."""

from __future__ import annotations

import os
import threading
from typing import Any

import numpy as np
import onnx
import pytest
from control_models import branching, counting, drawn
from graphs import info, model
from onnx import TensorProto, helper, numpy_helper
from skips import needs

import orthrus as ort
from orthrus import knobs
from orthrus.run import joining

pytestmark = needs("generated code")

TOLERANCE = 1e-6
"""Of floats: constants are folded by numpy before parts are joined, by kernels afterwards."""
X = info("x", shape=("N", 4))


def session_of(made: onnx.ModelProto) -> ort.InferenceSession:
    with knobs.setting(CACHE_SESSIONS=0):
        return ort.InferenceSession(made.SerializeToString())


def settled() -> None:
    """Wait for what joins parts."""
    for thread in threading.enumerate():
        if thread.name == "orthrus-join":
            thread.join()


def door(session: ort.InferenceSession) -> Any:
    """What serves runs of joined parts, None where they are not."""
    way = session._sess._engine.short
    return way.joining.run if way is not None and way.joining is not None else None


def joined(session: ort.InferenceSession, feeds: dict[str, Any]) -> Any:
    """`door` after as many runs as it takes."""
    for _ in range(joining.RUNS):
        session.run(None, feeds)
    settled()
    return door(session)


def compare(got: list[Any], want: list[Any]) -> None:
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, TOLERANCE, TOLERANCE)
        assert (a.dtype, a.shape) == (b.dtype, b.shape)


def check(made: onnx.ModelProto, feeds: list[dict[str, Any]]) -> bool:
    """Compare; whether parts were joined."""
    session, plain = session_of(made), session_of(made)
    if plain._sess._engine.short is not None:
        plain._sess._engine.short.joining = None
    wanted = [plain.run(None, fed) for fed in feeds]
    run = joined(session, feeds[0])
    if run is not None and (served := run(None, feeds[0])) is not None:
        for a, b in zip(served, wanted[0], strict=True):
            assert a.tobytes() == b.tobytes()
    names = [v.name for v in session.get_outputs()]
    for fed, want in zip(feeds, wanted, strict=True):
        for got in (session.run(None, fed), session.run(None, fed, ort.RunOptions()),
                    session.run(names[::-1], fed)[::-1]):
            compare(got, want)
    return run is not None


@pytest.mark.parametrize("seed", range(12))
def test_conditions_that_are_fed(seed: int) -> None:
    assert check(*branching(seed))


def test_turns_that_are_fed() -> None:
    assert check(*counting())


def test_rows_of_turns_that_are_fed() -> None:
    """As many rows as a fed number says, or fewer where a fed condition ends the turns."""
    turn = helper.make_graph(
        [helper.make_node("Identity", ["c"], ["c2"]), helper.make_node("Exp", ["v"], ["w"]),
         helper.make_node("Neg", ["w"], ["s"])], "turn",
        [info("n", TensorProto.INT64, ()), info("c", TensorProto.BOOL, ()), info("v", shape=None)],
        [info("c2", TensorProto.BOOL, ()), info("w", shape=None), info("s", shape=None)])
    made = model([helper.make_node("Loop", ["m", "c", "x"], ["y", "z"], body=turn)],
                 [info("m", TensorProto.INT64, ("one",)), info("c", TensorProto.BOOL, ()), X], ["y", "z"])
    feeds = [{"m": np.array([m]), "c": np.array(c), "x": np.full((rows, 4), -0.5, "f")}
             for m in (3, 0, 1, -2, 40) for c in (True, False) for rows in (2, 0)]
    assert check(made, feeds)
    session, plain = session_of(made), session_of(made)
    three = joined(session, feeds[0])
    joined(session, feeds[-4])
    assert door(session) is not three and three(None, feeds[0]) is None
    session = session_of(made)
    for each in feeds:
        joined(session, each)
        for other in feeds:
            if other["m"] != 40 or each is feeds[0]:
                compare(session.run(None, other), plain.run(None, other))


@pytest.mark.parametrize("seeds", [range(8), pytest.param(range(60, 160), marks=pytest.mark.slow),
                                   pytest.param(range(160, 600), marks=pytest.mark.thorough)])
def test_any_control_flow(seeds: range) -> None:
    assert sum([check(*drawn(seed)) for seed in seeds]) >= 0.15 * len(seeds)


def either(nodes: list[onnx.NodeProto], weight: np.ndarray | None = None) -> onnx.ModelProto:
    """A model that gives what `nodes` make of x in the one branch, and its negative in the other."""
    weights = [] if weight is None else [numpy_helper.from_array(weight, "w")]
    then = helper.make_graph(nodes, "then", [], [info("t", shape=None)], weights)
    other = helper.make_graph([helper.make_node("Neg", ["x"], ["o"])], "other", [], [info("o", shape=None)])
    return model([helper.make_node("If", ["c"], ["y"], then_branch=then, else_branch=other)],
                 [info("c", TensorProto.BOOL, ()), X], ["y"])


def fed(rows: int, way: bool = True) -> dict[str, np.ndarray]:
    return {"c": np.array(way), "x": np.random.default_rng(rows).standard_normal((rows, 4)).astype("f")}


EXP = either([helper.make_node("Exp", ["x"], ["t"])])


def test_shapes_that_change() -> None:
    session, plain = session_of(EXP), session_of(EXP)
    for turn in range(2):
        for rows in (1, 7, 0, 3):
            for way in (True, False):
                run = joined(session, fed(rows, way))
                assert run is not None
                for other in (rows, 2):
                    compare(session.run(None, fed(other, way)), plain.run(None, fed(other, way)))
            assert turn or run(None, fed(rows)) is not None
    few = [fed(i % 5 + 1) for i in range(40)]
    for each in few:
        compare(session.run(None, each), plain.run(None, each))


def test_results_are_the_caller_s() -> None:
    session = session_of(EXP)
    joined(session, fed(3))
    first = session.run(None, fed(3))[0]
    before = first.copy()
    first[:] = 0
    assert session.run(None, fed(3))[0].tobytes() == before.tobytes()


@pytest.mark.parametrize("made", [
    either([helper.make_node("RandomNormalLike", ["x"], ["t"])]),
    either([helper.make_node("MatMul", ["x", "w"], ["v"]),
            helper.make_node("ReduceSum", ["v"], ["s"]), helper.make_node("Add", ["x", "s"], ["t"])],
           np.zeros((4, 1 << 19), np.float32))])
def test_what_stays_apart(made: onnx.ModelProto) -> None:
    """What gives other bits, and weights that would be in memory twice."""
    assert joined(session_of(made), fed(2)) is None


def test_threads_at_once() -> None:
    session = session_of(EXP)
    want, wrong = session.run(None, fed(5)), list[Any]()

    def many() -> None:
        for _ in range(200):
            made = session.run(None, fed(5))
            if made[0].tobytes() != want[0].tobytes():
                wrong.append(made)
    threads = [threading.Thread(target=many) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    settled()
    assert not wrong and door(session) is not None


@pytest.mark.parametrize("wait", [True, False])
def test_a_session_that_ends(wait: bool) -> None:
    session = session_of(EXP)
    for _ in range(joining.RUNS):
        session.run(None, fed(2))
    if wait:
        settled()
    engine = session._sess._engine
    run = engine.short.run
    engine.close()
    settled()
    assert door(session) is None and run(None, fed(2)) is None
    with pytest.raises(ort.errors.Fail, match="closed"):
        engine.run(None, fed(2))


@needs("POSIX")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_fork_meanwhile() -> None:
    session = session_of(EXP)
    want = session.run(None, fed(2))[0].tobytes()
    for _ in range(joining.RUNS):
        session.run(None, fed(2))
    child = os.fork()
    if not child:
        os._exit(0 if session.run(None, fed(2))[0].tobytes() == want else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
