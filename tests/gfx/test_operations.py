"""Single operations on AMD machine code, held to numpy on every lane: what LLVM makes of each for vector and
for scalar registers, with numbers at the edges of every type."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

from gfx.code_object import CodeObject
from gfx.kernels import ATTRIBUTES, TARGETS, THREADS, compiled, elementwise
from gfx.machine import run

pytestmark = pytest.mark.needs("AMD tables")


class Operation(NamedTuple):
    """`body`: LLVM IR for %y. `close`: units in the last place a float may be off."""

    body: str
    takes: tuple[str, ...]
    gives: str
    numpy: Callable[..., Any]
    declare: str = ""
    close: float = 0


TYPES = {"i8": np.int8, "i16": np.int16, "i32": np.int32, "i64": np.int64, "half": np.float16,
         "float": np.float32, "double": np.float64}


def _binary(name: str, kind: str, function: Callable[..., Any], close: float = 0) -> Operation:
    return Operation(f"  %y = {name} {kind} %a, %b", (kind, kind), kind, function, close=close)


def _intrinsic(name: str, kind: str, count: int, function: Callable[..., Any], close: float = 0,
               more: str = "", full: str = "") -> Operation:
    full = full or f"llvm.{name}.{_SUFFIX[kind]}"
    types = ", ".join([kind] * count) + (", i1" if more else "")
    arguments = ", ".join(f"{kind} %{n}" for n in "abc"[:count]) + more
    return Operation(f"  %y = call {kind} @{full}({arguments})", (kind,) * count, kind, function,
                     f"declare {kind} @{full}({types})\n", close)


_SUFFIX = {"i16": "i16", "i32": "i32", "i64": "i64", "half": "f16", "float": "f32", "double": "f64"}


def _unsigned(function: Callable[..., Any]) -> Callable[..., Any]:
    def wrapped(*x: np.ndarray) -> np.ndarray:
        wide = [v.view(v.dtype.str.replace("i", "u")) for v in x]
        return function(*wide).view(x[0].dtype)
    return wrapped


def _shift(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda a, b: function(a, b & a.dtype.type(a.dtype.itemsize * 8 - 1))


def _shifted(name: str, kind: str, function: Callable[..., Any]) -> Operation:
    bits = int(kind[1:])
    body = f"  %s = and {kind} %b, {bits - 1}\n  %y = {name} {kind} %a, %s"
    return Operation(body, (kind, kind), kind, function)


def _divided(name: str, kind: str, function: Callable[..., Any]) -> Operation:
    body = f"  %o = or {kind} %b, 1\n  %e = and {kind} %o, 32767\n  %y = {name} {kind} %a, %e"
    return Operation(body, (kind, kind), kind, lambda a, b: function(a, (b | 1) & b.dtype.type(32767)))


def _compared(word: str, kind: str, function: Callable[..., Any]) -> Operation:
    what = "icmp" if kind.startswith("i") else "fcmp"
    body = f"  %t = {what} {word} {kind} %a, %b\n  %y = select i1 %t, i32 7, i32 -3"
    return Operation(body, (kind, kind), "i32", lambda a, b: np.where(function(a, b), 7, -3).astype(np.int32))


def _converted(word: str, source: str, target: str, function: Callable[..., Any]) -> Operation:
    return Operation(f"  %y = {word} {source} %a to {target}", (source,), target, function)


def _saturated(name: str, kind: str, ends: Any, wide: Callable[..., Any]) -> Operation:
    return _intrinsic(name, kind, 2, lambda a, b: np.clip(wide(a.astype(object), b.astype(object)), ends.min,
                                                          ends.max).astype(a.dtype))


def _truncated(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return (np.abs(a.astype(object)) // b.astype(object) * np.sign(a).astype(object)).astype(a.dtype)


def _rest(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return (a.astype(object) - _truncated(a, b).astype(object) * b.astype(object)).astype(a.dtype)


def _high(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return (a.astype(np.int64) * b.astype(np.int64) >> 32).astype(np.int32)


def _bits(a: np.ndarray, function: Callable[[str], int]) -> np.ndarray:
    width = a.dtype.itemsize * 8
    return np.array([function(f"{int(v) & (1 << width) - 1:0{width}b}") for v in a], object).astype(
        a.dtype.str.replace("i", "u")).view(a.dtype)


def _to_int(kind: Any) -> Callable[[np.ndarray], np.ndarray]:
    return lambda a: np.clip(np.trunc(np.nan_to_num(a.astype(np.float64), nan=0.0)), np.iinfo(kind).min,
                             np.iinfo(kind).max).astype(kind)


OPERATIONS: dict[str, Operation] = {
    **{f"{n}.{k}": _binary(n, k, f) for k in ("i16", "i32", "i64") for n, f in (
        ("add", np.add), ("sub", np.subtract), ("mul", np.multiply), ("and", np.bitwise_and),
        ("or", np.bitwise_or), ("xor", np.bitwise_xor))},
    **{f"{n}.{k}": _shifted(n, k, _shift(f)) for k in ("i16", "i32", "i64") for n, f in (
        ("shl", np.left_shift), ("ashr", np.right_shift))},
    **{f"lshr.{k}": _shifted("lshr", k, _shift(_unsigned(np.right_shift))) for k in ("i16", "i32", "i64")},
    **{f"{n}.{k}": _divided(n, k, f) for k in ("i32", "i64") for n, f in (
        ("sdiv", _truncated), ("srem", _rest))},
    **{f"{n}.{k}": _divided(n, k, _unsigned(f)) for k in ("i32", "i64") for n, f in (
        ("udiv", np.floor_divide), ("urem", np.remainder))},
    **{f"{w}.{k}": _compared(w, k, f) for k in ("i32", "i64") for w, f in (
        ("eq", np.equal), ("slt", np.less), ("sge", np.greater_equal))},
    **{f"ult.{k}": _compared("ult", k, lambda a, b: a.view(a.dtype.str.replace("i", "u")) < b.view(
        b.dtype.str.replace("i", "u"))) for k in ("i32", "i64")},
    **{f"{w}.{k}": _compared(w, k, f) for k in ("half", "float", "double") for w, f in (
        ("oeq", np.equal), ("olt", np.less), ("une", np.not_equal), ("uge", lambda a, b: ~(a < b)),
        ("ord", lambda a, b: ~(np.isnan(a) | np.isnan(b))))},
    **{f"{n}.{k}": _intrinsic(n, k, 2, f) for k in ("i16", "i32") for n, f in (
        ("smax", np.maximum), ("smin", np.minimum), ("umax", _unsigned(np.maximum)),
        ("umin", _unsigned(np.minimum)))},
    **{f"sadd.{k}": _saturated("sadd.sat", k, np.iinfo(t), lambda a, b: a + b)
       for k, t in (("i16", np.int16), ("i32", np.int32))},
    **{f"ssub.{k}": _saturated("ssub.sat", k, np.iinfo(t), lambda a, b: a - b)
       for k, t in (("i16", np.int16), ("i32", np.int32))},
    **{f"ctpop.{k}": _intrinsic("ctpop", k, 1, lambda a: _bits(a, lambda s: s.count("1")))
       for k in ("i32", "i64")},
    **{f"reverse.{k}": _intrinsic("bitreverse", k, 1, lambda a: _bits(a, lambda s: int(s[::-1], 2)))
       for k in ("i32", "i64")},
    **{f"ctlz.{k}": _intrinsic("ctlz", k, 1, lambda a: _bits(a, lambda s: len(s) - len(s.lstrip("0"))),
                               more=", i1 false") for k in ("i32", "i64")},
    **{f"cttz.{k}": _intrinsic("cttz", k, 1, lambda a: _bits(a, lambda s: len(s) - len(s.rstrip("0"))),
                               more=", i1 false") for k in ("i32", "i64")},
    "mulhi": Operation("  %x = sext i32 %a to i64\n  %z = sext i32 %b to i64\n  %m = mul i64 %x, %z\n"
                       "  %s = ashr i64 %m, 32\n  %y = trunc i64 %s to i32", ("i32", "i32"), "i32", _high),
    "alignbit": _intrinsic("fshr", "i32", 3, lambda a, b, c: np.array(
        [((int(x) & 0xFFFFFFFF) << 32 | int(y) & 0xFFFFFFFF) >> (int(z) & 31) & 0xFFFFFFFF
         for x, y, z in zip(a, b, c, strict=True)], np.uint32).view(np.int32)),
    **{f"{n}.{k}": _binary(n, k, f) for k in ("half", "float", "double") for n, f in (
        ("fadd", np.add), ("fsub", np.subtract), ("fmul", np.multiply))},
    "fdiv.half": _binary("fdiv", "half", np.divide, close=1),
    "fdiv.float": _binary("fdiv", "float", np.divide, close=1),
    "fdiv.double": _binary("fdiv", "double", np.divide, close=1),
    **{f"fma.{k}": _intrinsic("fma", k, 3, lambda a, b, c: (
        a.astype(np.longdouble) * b.astype(np.longdouble) + c.astype(np.longdouble)).astype(a.dtype), close=1)
       for k in ("half", "float", "double")},
    **{f"maxnum.{k}": _intrinsic("maxnum", k, 2, np.fmax) for k in ("half", "float", "double")},
    **{f"minnum.{k}": _intrinsic("minnum", k, 2, np.fmin) for k in ("half", "float", "double")},
    **{f"{n}.{k}": _intrinsic(n, k, 1, f) for k in ("half", "float", "double") for n, f in (
        ("floor", np.floor), ("ceil", np.ceil), ("trunc", np.trunc), ("rint", np.rint), ("fabs", np.abs))},
    **{f"sqrt.{k}": _intrinsic("sqrt", k, 1, np.sqrt, close=1) for k in ("half", "float", "double")},
    "exp2": _intrinsic("exp2", "float", 1, np.exp2, close=2),
    "log2": _intrinsic("log2", "float", 1, lambda a: np.log2(a, dtype=np.float64).astype(a.dtype), close=2),
    "copysign": _intrinsic("copysign", "float", 2, np.copysign),
    **{f"sitofp.{s}.{t}": _converted("sitofp", s, t, lambda a, t=t: a.astype(TYPES[t]))
       for s, t in (("i32", "float"), ("i32", "double"), ("i16", "half"), ("i8", "float"), ("i64", "float"))},
    **{f"uitofp.{s}.{t}": _converted("uitofp", s, t, lambda a, t=t: a.view(
        a.dtype.str.replace("i", "u")).astype(TYPES[t]))
       for s, t in (("i32", "float"), ("i32", "double"), ("i8", "float"), ("i64", "double"))},
    **{f"fptosi.{s}.{t}": _intrinsic("", s, 1, _to_int(TYPES[t]))._replace(
        body=f"  %y = call {t} @llvm.fptosi.sat.{t}.{_SUFFIX[s]}({s} %a)", gives=t,
        declare=f"declare {t} @llvm.fptosi.sat.{t}.{_SUFFIX[s]}({s})\n")
       for s, t in (("float", "i32"), ("double", "i32"), ("half", "i16"), ("float", "i8"))},
    **{f"{w}.{s}.{t}": _converted(w, s, t, lambda a, t=t: a.astype(TYPES[t])) for w, s, t in (
        ("fpext", "half", "float"), ("fpext", "float", "double"), ("fptrunc", "float", "half"),
        ("fptrunc", "double", "float"), ("sext", "i8", "i32"), ("sext", "i16", "i64"), ("trunc", "i32", "i8"),
        ("trunc", "i64", "i16"))},
}


def _numbers(kind: str, count: int, seed: int) -> np.ndarray:
    """Random numbers of all sizes, and the edges."""
    rng = np.random.default_rng(seed)
    dtype = np.dtype(TYPES[kind])
    if dtype.kind == "i":
        ends = np.iinfo(dtype)
        edges = np.array([0, 1, -1, 2, ends.min, ends.max, ends.min + 1, ends.max - 1], dtype)
        x = rng.integers(ends.min, ends.max, count, dtype, endpoint=True)
        x >>= rng.integers(0, dtype.itemsize * 8, count).astype(dtype)
    else:
        edges = np.array([0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 0.5, 2.5, -2.5, np.finfo(dtype).max,
                          np.finfo(dtype).tiny], dtype)
        with np.errstate(over="ignore"):
            x = (rng.standard_normal(count) * 2.0 ** rng.uniform(-8, 8, count)).astype(dtype)
    rng.shuffle(edges)
    x[:len(edges)] = edges
    rng.shuffle(x)
    return x


@functools.cache
def _code(target: str, uniform: bool) -> CodeObject:
    """One object with a kernel for every operation."""
    text = "".join(sorted({op.declare for op in OPERATIONS.values()})) + "".join(
        elementwise(f"k{i}", op.body, op.takes, op.gives, uniform)
        for i, op in enumerate(OPERATIONS.values()))
    return CodeObject(compiled(text + ATTRIBUTES, target))


@pytest.mark.parametrize("uniform", [False, True], ids=["vector", "scalar"])
@pytest.mark.parametrize("target", TARGETS)
def test_operations_are_those_of_numpy(target: str, uniform: bool) -> None:
    wrong = []
    for i, (name, op) in enumerate(OPERATIONS.items()):
        count = 40 if uniform else 3 * THREADS - 5
        x = [_numbers(kind, count, 10 * i + j) for j, kind in enumerate(op.takes)]
        y = np.zeros(count, TYPES[op.gives])
        groups = count if uniform else -(-count // THREADS)
        run(_code(target, uniform), f"k{i}", groups, [*x, y, count], seed=i)
        with np.errstate(all="ignore"):
            expected = op.numpy(*x)
        if not _equal(y, expected, op.close):
            at = [int(k) for k in np.flatnonzero(~_same(y, expected, op.close))[:3]]
            wrong.append((name, [(*(v[k] for v in x), y[k], expected[k]) for k in at]))
    assert not wrong


def _equal(found: np.ndarray, expected: np.ndarray, close: float) -> bool:
    return bool(_same(found, expected, close).all())


def _same(found: np.ndarray, expected: np.ndarray, close: float) -> np.ndarray:
    if found.dtype.kind == "i":
        return np.asarray(found == expected)
    with np.errstate(all="ignore"):
        off = np.abs(found.astype(np.longdouble) - expected.astype(np.longdouble))
        near = off <= close * np.spacing(np.abs(expected)).astype(np.longdouble)
    nans = np.isnan(found) & np.isnan(expected)
    return np.asarray((found == expected) | nans | (np.isfinite(expected) & near))
