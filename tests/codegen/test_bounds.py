"""`ORTHRUS_CHECK=3`: kernels that look where they read and write. What goes outside of an argument, by
however little and by whatever kind of access, is noted with the kernel, the argument and the node; what does
not is computed as without it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from graphs import info, model
from guards import conformance, examine, graphs, guarded, samples
from onnx import helper

import native
import orthrus as ort
from orthrus import knobs
from orthrus.codegen.kernels.loops import elementwise, nest
from orthrus.codegen.machines.detect import host
from orthrus.codegen.write import notes
from orthrus.codegen.write.body import Body
from orthrus.codegen.write.emit import F32, I8, I32, I64, PTR, V, vec
from orthrus.codegen.write.expr import Expr
from orthrus.codegen.write.spec import templates
from orthrus.codegen.write.template import template
from orthrus.errors import EPFail
from orthrus.lowering import lower, rules  # noqa: F401
from orthrus.lowering.lower import Out

HOST = host()
pytestmark = pytest.mark.skipif(HOST is None or HOST.arch != "x86_64",
                                reason="the processor here has no x86 instructions")
AMX = pytest.mark.skipif(HOST is None or not HOST.has("amx-tile"), reason="the processor here has no amx")


@pytest.fixture(autouse=True)
def checked() -> Iterator[None]:
    with knobs.setting(CHECK=3):
        yield


def _plain(f: Body, x: V, out: V, at: V) -> None:
    f.store(f.load(F32, x, at), out, 0)


def _vector(f: Body, x: V, out: V, at: V) -> None:
    f.store(f.load(vec(F32, 4), x, at - 3), out, 0, 4)


def _masked(f: Body, x: V, out: V, at: V) -> None:
    mask = f.mask(4, f.i64(2))
    f.store_masked(f.load_masked(vec(F32, 4), x, at - 1, mask), out, 0, mask)


def _gathered(f: Body, x: V, out: V, at: V) -> None:
    index = f.const(vec(I32, 4), [0, 1, 2, 0]) * f.cast(at, I32)
    f.store(f.gather(F32, x, index, mask=f.const(vec("i1", 4), [True, True, False, True])), out, 0, 4)


def _stored(f: Body, x: V, out: V, at: V) -> None:
    f.store(f.load(F32, x, 0), out, at)


def _store_masked(f: Body, x: V, out: V, at: V) -> None:
    f.store_masked(f.load(vec(F32, 4), x, 0, 4), out, at - 1, f.mask(4, f.i64(2)))


def _scattered(f: Body, x: V, out: V, at: V) -> None:
    f.scatter(f.load(vec(F32, 4), x, 0, 4), out, f.const(vec(I32, 4), [0, 0, 1, 5]) * f.cast(at, I32),
              f.const(vec("i1", 4), [True, True, True, False]))


def _carried(f: Body, x: V, out: V, at: V) -> None:
    """An address that a loop carries."""
    def body(_: V, here: V, total: V) -> list[V]:
        return [f.gep(here, 1, F32), total + f.load(F32, here)]
    f.store(f.loop(0, at + 1, 1, [x, f.const(F32, 0.0)], body)[1], out, 0)


def _chosen(f: Body, x: V, out: V, at: V) -> None:
    """An address that is one of two."""
    f.store(f.load(F32, f.select(at > 2, f.gep(x, at, F32), f.gep(x, 1, F32))), out, 0)


def _kept(f: Body, x: V, out: V, at: V) -> None:
    """An address that was put into memory and read again."""
    room = f.alloca(I64, 4)
    f.store(f.cast(f.gep(x, at, F32), I64), room, 2)
    f.store(f.load(F32, f.load(PTR, room, 2, 8)), out, 0)


def _own(f: Body, x: V, out: V, at: V) -> None:
    """The kernel's own array."""
    room = f.alloca(F32, 8)
    f.store(f.load(F32, x, 0), room, at)
    f.store(f.load(F32, room, at), out, 0)


def _table(f: Body, x: V, out: V, at: V) -> None:
    f.store(f.load(F32, f.table(F32, range(8)), at) + f.load(F32, x, 0), out, 0)


def _scratch(f: Body, x: V, out: V, at: V) -> None:
    f.store(f.load(F32, x, 0), f.scratch, at)
    f.store(f.load(F32, f.scratch, at), out, 0)


WAYS = [_plain, _vector, _masked, _gathered, _stored, _store_masked, _scattered, _carried, _chosen, _kept,
        _own, _table, _scratch]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__.strip("_"))
def test_one_element_behind_an_argument_is_noted(way: Any) -> None:
    """Element 7 is the last one of each; element 8 belongs to somebody else."""
    name = f"planted{way.__name__}"

    def write(f: Body, x: V, out: V, at: V) -> None:
        way(f, x, out, at)
    write.__name__ = name
    spec = template("x:ptr out:ptr at:i64")(write)()
    try:
        x, inside = np.arange(8, dtype=np.float32), 3 if way is _gathered else 7
        for at in (inside, 8):
            room = np.zeros(24, np.float32)
            out = room[8:16]
            if at <= inside:
                native.run(spec, x, out, at, items=1, scratch=32)
            else:
                with pytest.raises(EPFail, match=name):
                    native.run(spec, x, out, at, items=1, scratch=32)
                assert not room[:8].any() and not room[16:].any(), "nothing is written there either"
    finally:
        del templates[name]


@pytest.mark.parametrize("way", ["load", "store"])
@AMX
def test_rows_of_the_matrix_unit(way: str) -> None:
    name = f"planted_tile_{way}"

    def write(f: Body, x: V, rows: V) -> None:
        for known, types in (("ldtilecfg", "ptr"), ("tilerelease", "")):
            f.module.declared["x86." + known] = f"declare void @llvm.x86.{known}({types})"
        config = f.table(I8, [1] + [0] * 15 + [64, 0] * 8 + [0] * 16 + [16] * 8 + [0] * 8)
        f.line(f"call void @llvm.x86.ldtilecfg({config})")
        f.load_tile(0, f.scratch, f.i64(64))
        (f.load_tile if way == "load" else f.store_tile)(0, x, f.i64(64), rows)
        f.line("call void @llvm.x86.tilerelease()")
    write.__name__ = name
    from orthrus.codegen.kernels import amx

    assert HOST is not None and amx.usable(HOST)
    spec = template("x:ptr rows:i64")(write)()
    try:
        native.run(spec, np.zeros((16, 64), np.uint8), 16, items=1, scratch=1024)
        with pytest.raises(EPFail, match=name):
            native.run(spec, np.zeros((15, 64), np.uint8), 16, items=1, scratch=1024)
    finally:
        del templates[name]


def test_a_rule_that_passes_too_little_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy of half a tensor to the whole of another: the error names node, kernel and argument."""
    def rule(lo: Any, node: Any) -> Any:
        x = lo.tensor(node.inputs[0])
        half, out = lo.new((x.size // 2,), x.dtype), lo.new(x.shape, x.dtype)
        lo.copy(x.view((x.size // 2,), (1,)), half)
        tree = Expr("add", (Expr.leaf(0, "float32"), Expr.const(1.0, "float32")), "float32")
        spec, cells, items, grain = elementwise(nest((x.size,), [(1,), (1,)]), tree, ["float32"])
        lo.step(spec, [Out(out), half, *cells], items, grain)
        return out
    monkeypatch.setitem(lower.RULES, ("", "Softmax"), rule)
    proto = model([helper.make_node("Softmax", ["x"], ["y"], name="halved")], [info("x", shape=["n", 8])],
                  [info("y", shape=["n", 8])])
    session = ort.InferenceSession(proto.SerializeToString())
    with pytest.raises(EPFail, match="(?s)loop.*halved.*float32"):
        session.disable_fallback()
        session.run(None, {"x": np.ones((6, 8), np.float32)})


@pytest.mark.parametrize("shapes", [0, 2])
@pytest.mark.parametrize("name", ["recurrence", pytest.param("transformer", marks=pytest.mark.slow),
                                  pytest.param("network", marks=pytest.mark.slow)])
def test_models_stay_within(name: str, shapes: int) -> None:
    """Networks of every kind at several sizes, lowered and by formula."""
    from small_networks import SWEEPS

    make, feeds_of, sizes = SWEEPS[name]
    rng = np.random.default_rng(0)
    with knobs.setting(CHECK=3, SHAPES=shapes):
        session = ort.InferenceSession(make())
        session.disable_fallback()
        for size in sizes[::len(sizes) // 6]:
            session.run(None, feeds_of(rng, *size))


@pytest.mark.slow
@pytest.mark.parametrize("what", ["samples", "graphs", "conformance"])
def test_everything_stays_within(what: str) -> None:
    """Every eighth of what `guards.py` chooses; `guards.py` under `ORTHRUS_CHECK=3` runs all. A network is
    left out: its channels are equal, so that rounding decides what its softmax gives."""
    subjects = {"samples": samples, "graphs": graphs, "conformance": conformance}[what]()
    with guarded() as guard:
        faults = [fault for subject in itertools.islice(subjects, 0, None, 8)
                  if subject.name != "test_squeezenet" for fault in examine(subject, guard)]
        assert guard.parts
    assert not faults, "\n".join(faults)


def test_without_the_switch_nothing_is_looked_at() -> None:
    assert HOST is not None and notes.checking(HOST).checked
    with knobs.setting(CHECK=2):
        assert notes.checking(HOST) is HOST
