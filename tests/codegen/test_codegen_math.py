"""Generated functions of vectors against numpy: errors over all exponents, conversions, traced operators."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

pytest.importorskip("llvmlite")

from skips import needs

import native
from orthrus.codegen.machines import machine
from orthrus.codegen.machines.detect import host
from orthrus.codegen.machines.machine import Machine
from orthrus.codegen.object.build import assemble
from orthrus.codegen.write import arithmetic, trig, vmath
from orthrus.codegen.write.body import Body
from orthrus.codegen.write.emit import BYTES, F32, F64, I32, PTR, V, vec
from orthrus.codegen.write.expr import LLVM, OPS, Expr, emit
from orthrus.codegen.write.template import template
from orthrus.codegen.write.trace import cast, trace
from orthrus.ir import No, element_of, parse_type
from orthrus.ops import defined, find
from orthrus.ops.schema import lookup, newest_opset
from orthrus.ops.tensor.cast import converted

DTYPES = {name: np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name) for name in LLVM}
SPECIAL = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, -1.5, 2.5, math.inf, -math.inf, math.nan, 1e-45, -1e-40,
           1e-6, 88.7, -88.7, 104.0, -104.0, 3e38, -3e38, 3.2, -3.2, 127.0, 128.0, -129.0, 255.5, 256.0,
           32768.0, 65504.0, 65520.0, 2.0 ** 31, -2.0 ** 31, 2.0 ** 32, 2.0 ** 63, -2.0 ** 63, 2.0 ** 64]
_host = host()
RUNNABLE = [] if _host is None or _host.arch != "x86_64" else [
    m for m in (machine.AVX512, machine.AVX2) if set(m.features) <= set(_host.features)] + [machine.SSE2]
IDS = [{16: "sse2", 32: "avx2", 64: "avx512"}[m.vector] for m in RUNNABLE]
every_machine = pytest.mark.parametrize("target", RUNNABLE, ids=IDS)


@template("y:ptr")
def mapped(f: Body, y: V, *, tree: Expr, leaves: tuple[tuple[int, str], ...]) -> None:
    """A tree over arrays; an item is one vector of every input."""
    lanes = f.machine.lanes(4)
    pointers = [f.arg(1 + j, PTR) for j in range(len(leaves))]

    def block(i: V) -> None:
        at = i * lanes
        read: list[V] = [f.const(vec(I32, lanes), 0)] * (1 + max((i for i, _ in leaves), default=0))
        for pointer, (index, dtype) in zip(pointers, leaves, strict=True):
            read[index] = f.load(vec(LLVM[dtype], lanes), pointer, at)
        f.store(emit(f, tree, read), y, at)
    f.loop(f.lo, f.hi, 1, [], block)


def computed(tree: Expr, arrays: list[np.ndarray], target: Machine | None = None) -> np.ndarray:
    """What the tree makes of arrays of one size."""
    lanes = (target or _host or machine.SSE2).lanes(4)
    size = arrays[0].size
    padded = [np.concatenate([a, np.ones(-size % lanes, a.dtype)]) for a in arrays]
    y = np.zeros(padded[0].size, DTYPES[tree.dtype])
    leaves = tuple((i, a.dtype.name) for i, a in enumerate(arrays))
    native.run(mapped(tree=tree, leaves=leaves), y, *padded, items=y.size // lanes, machine=target)
    return y[:size]


def call(name: str, *dtypes: str) -> Expr:
    return Expr(name, tuple(Expr.leaf(i, d) for i, d in enumerate(dtypes)), dtypes[0])


def ulps(got: np.ndarray, exact: np.ndarray) -> np.ndarray:
    """Errors in units of the last place of what is exact; inf where NaN or an infinity is wrong."""
    with np.errstate(all="ignore"):
        rounded = exact.astype(got.dtype)
        unit = np.spacing(np.minimum(np.abs(rounded), np.finfo(got.dtype).max)).astype(exact.dtype)
        error = np.abs(got.astype(exact.dtype) - exact) / unit
        error[(got == rounded) & np.isinf(rounded)] = 0
        error[np.isnan(got) & np.isnan(rounded)] = 0
    return np.where(np.isnan(error), np.inf, error)


def patterns(rng: np.random.Generator, dtype: Any, count: int) -> np.ndarray:
    """Numbers of every exponent, and as many of ordinary size."""
    unsigned = np.dtype(f"u{np.dtype(dtype).itemsize}")
    bits = rng.integers(0, np.iinfo(unsigned).max, count // 2, unsigned).view(dtype)
    scale = 1 if dtype == np.float32 else 7
    ordinary = np.concatenate([rng.normal(size=count // 4) * np.exp2(rng.integers(-12, 5, count // 4)),
                               rng.uniform(-110 * scale, 110 * scale, count // 8),
                               1 + 1e-3 * rng.normal(size=count // 8)])
    with np.errstate(over="ignore"):
        return np.concatenate([bits, ordinary.astype(dtype), np.array(SPECIAL, dtype)])


def _sigmoid(x: np.ndarray) -> np.ndarray:
    e = np.exp(-np.abs(x))
    return np.where(x < 0, e, 1) / (1 + e)


EXACT: dict[str, tuple[Callable[[np.ndarray], np.ndarray], float]] = {
    "exp": (np.exp, 1.2), "exp2": (np.exp2, 1.2), "expm1": (np.expm1, 2), "log": (np.log, 1),
    "log2": (np.log2, 2), "log1p": (np.log1p, 1.5), "tanh": (np.tanh, 1.5), "sigmoid": (_sigmoid, 2),
    "sinh": (np.sinh, 2.5), "cosh": (np.cosh, 2), "asinh": (np.arcsinh, 3), "acosh": (np.arccosh, 3),
    "atanh": (np.arctanh, 3), "asin": (np.arcsin, 2.5), "acos": (np.arccos, 2), "atan": (np.arctan, 2),
    "sin": (np.sin, 1.6), "cos": (np.cos, 1.6), "tan": (np.tan, 3.5), "sqrt": (np.sqrt, 0.5001),
    "rsqrt": (lambda x: 1 / np.sqrt(x), 1.5001), "reciprocal": (lambda x: 1 / x, 0.5001),
    "floor": (np.floor, 0), "ceil": (np.ceil, 0), "trunc": (np.trunc, 0), "rint": (np.rint, 0),
    "sign": (np.sign, 0),
    "round": (lambda x: np.copysign(np.floor(np.abs(x) + (np.abs(x) % 1 >= 0.5)), x), 0)}
"""float64 functions, and the bound on the error of the float32 ones."""
SLOPPY = {"erf": 2.3, "log2": 2.5}
"""Bounds without fused multiply-add, where they are wider."""


@every_machine
@pytest.mark.parametrize("name", EXACT)
def test_float32_error(name: str, target: Machine) -> None:
    x = patterns(np.random.default_rng(0), np.float32, 2_000_000 if target is RUNNABLE[0] else 400_000)
    exact, bound = EXACT[name]
    if target is machine.SSE2:
        bound = SLOPPY.get(name, bound)
    with np.errstate(all="ignore"):
        expected = exact(x.astype(np.float64))
    got = computed(call(name, "float32"), [x], target)
    error = ulps(got, expected)
    worst = int(np.argmax(error))
    assert error[worst] <= bound, f"{error[worst]} at {x[worst]!r}: {got[worst]!r} for {expected[worst]!r}"
    zero = (x == 0) & np.isfinite(expected)
    assert name == "sign" or np.array_equal(np.signbit(got[zero]), np.signbit(expected[zero]))


@every_machine
def test_erf_error(target: Machine) -> None:
    x = patterns(np.random.default_rng(1), np.float32, 400_000)
    x = np.concatenate([x, np.random.default_rng(2).uniform(-4.2, 4.2, 200_000).astype(np.float32)])
    expected = np.array([math.erf(v) for v in x.tolist()])
    got = computed(call("erf", "float32"), [x], target)
    assert ulps(got, expected).max() <= (SLOPPY["erf"] if target is machine.SSE2 else 2)
    assert np.all(np.abs(got[np.abs(x) > 4]) == 1)


@every_machine
@needs("long double")
@pytest.mark.parametrize("name", sorted({*EXACT, "erf"}))
def test_float64_error(name: str, target: Machine) -> None:
    x = patterns(np.random.default_rng(3), np.float64, 30_000)
    with np.errstate(all="ignore"):
        expected = (np.array([math.erf(v) for v in x.tolist()], np.longdouble) if name == "erf" else
                    EXACT[name][0](x.astype(np.longdouble)))
    error = ulps(computed(call(name, "float64"), [x], target), expected)
    assert error.max() <= 4, f"{error.max()} at {x[np.argmax(error)]!r}"


@every_machine
@pytest.mark.parametrize("dtype", ("float32", "float64"))
def test_exp_nonpositive(dtype: str, target: Machine) -> None:
    x = -np.abs(patterns(np.random.default_rng(4), DTYPES[dtype].type, 200_000))
    got = computed(call("exp_nonpositive", dtype), [x], target)
    with np.errstate(all="ignore"):
        expected = np.exp(x.astype(np.longdouble if dtype == "float64" else np.float64))
    least = -87.0 if dtype == "float32" else -708.0
    assert np.all(got[x < least] == 0) and np.all(got[x >= least] >= np.finfo(got.dtype).tiny)
    assert ulps(got, np.where(x < least, 0, expected)).max() <= 1.2


def pairs(count: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(5)
    bits = rng.integers(0, 1 << 32, (2, count), np.uint64).astype(np.uint32).view(np.float32)
    bits[np.isnan(bits)] = 1
    a = np.concatenate([bits[0], np.exp2(rng.uniform(-5, 5, count)), -np.exp2(rng.uniform(-5, 5, count)),
                        1 + 1e-3 * rng.normal(size=count)])
    b = np.concatenate([bits[1], rng.uniform(-25, 25, count), rng.integers(-20, 20, count),
                        rng.uniform(-80000, 80000, count)])
    special = np.meshgrid(SPECIAL, SPECIAL)
    with np.errstate(over="ignore"):
        return (np.concatenate([a, special[0].ravel()]).astype(np.float32),
                np.concatenate([b, special[1].ravel()]).astype(np.float32))


@every_machine
@pytest.mark.parametrize("wide", (False, True))
def test_pow(wide: bool, target: Machine) -> None:
    x, y = pairs(200_000)
    with np.errstate(all="ignore"):
        expected = np.power(x.astype(np.float64), y.astype(np.float64))
    exponent = y.astype(np.float64) if wide else y
    got = computed(call("pow", "float32", exponent.dtype.name), [x, exponent], target)
    assert ulps(got, expected).max() <= 0.6
    assert np.array_equal(np.signbit(got)[expected == 0], np.signbit(expected)[expected == 0])


def far_apart(rng: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray]:
    """float64 of all magnitudes and close ones, whole multiples and what lies next to them."""
    x, y = rng.integers(0, 1 << 63, (2, count), np.uint64).view(np.float64)
    x[np.isnan(x)] = y[np.isnan(y)] = 1.5
    near = rng.normal(size=(2, count)) * np.exp2(rng.integers(-60, 60, (2, count)))
    special = np.array([*SPECIAL, 5e-324, 2.2e-308, 1.7e308, -1.7e308, 1e300, 3.0], np.float64)
    grid = np.meshgrid(special, special)
    whole = near[1] * rng.integers(1, 1 << 53, count)
    first = np.concatenate([x, near[0], whole, np.nextafter(whole, 0), np.nextafter(near[1], 0),
                            grid[0].ravel()])
    second = np.concatenate([y, near[1], near[1], near[1], near[1], grid[1].ravel()])
    return first * rng.choice([1.0, -1.0], first.size), second * rng.choice([1.0, -1.0], first.size)


@every_machine
@pytest.mark.parametrize("dtype", ("float32", "float64"))
@pytest.mark.parametrize("name", ("fmod", "remainder"))
def test_float_remainders_are_exact(name: str, dtype: str, target: Machine) -> None:
    x, y = pairs(100_000) if dtype == "float32" else far_apart(np.random.default_rng(7), 20_000)
    with np.errstate(all="ignore"):
        expected = getattr(np, name)(x, y)
    got = computed(call(name, dtype, dtype), [x, y], target)
    np.testing.assert_array_equal(got, expected)
    number = ~np.isnan(expected)
    assert np.array_equal(np.signbit(got)[number], np.signbit(expected)[number])


@every_machine
@pytest.mark.parametrize("dtype", ("int64", "uint64"))
@pytest.mark.parametrize("name", ("quotient", "fmod", "remainder"))
def test_quotients_of_64_bits(name: str, dtype: str, target: Machine) -> None:
    """Of numbers that float64 has all of, whole multiples and what is one less, at the bound and beyond."""
    rng = np.random.default_rng(8)
    b = rng.integers(1, np.exp2(rng.uniform(1, 52, 40_000)).astype(np.int64))
    a = b * rng.integers(1, np.maximum(1, (1 << 52) // b) + 1) - rng.integers(0, 2, b.size)
    a[:8], b[:4] = (1 << 52) - 1, (1, 2, 3, (1 << 52) - 1)
    far = slice(30_000, None)
    a[far] += rng.integers(0, 1 << 10, a[far].size) << rng.integers(0, 52, a[far].size)
    if dtype == "int64":
        a, b = a * rng.choice([1, -1], a.size), b * rng.choice([1, -1], b.size)
    a, b = a.astype(dtype), b.astype(dtype)
    rest = np.fmod(a, b)
    expected = {"quotient": (a - rest) // b, "fmod": rest, "remainder": np.remainder(a, b)}[name]
    np.testing.assert_array_equal(computed(call(name, dtype, dtype), [a, b], target), expected)


def sample(rng: np.random.Generator, name: str, count: int) -> np.ndarray:
    dtype = DTYPES[name]
    if name == "bool":
        return rng.integers(0, 2, count).astype(bool)
    if dtype.kind in "iu":
        x = rng.integers(0, 256, count * dtype.itemsize, np.uint8).view(dtype)
        x[:count // 2] = rng.integers(-9 if dtype.kind == "i" else 0, 10, count // 2).astype(dtype)
        x[:2] = np.iinfo(dtype).min, np.iinfo(dtype).max
    else:
        with np.errstate(over="ignore"):
            scaled = rng.normal(size=count // 4) * np.exp2(rng.integers(-9, 9, count // 4))
            x = np.concatenate([rng.choice(SPECIAL, count // 4), rng.normal(size=count // 2), scaled])
            x = x.astype(dtype)
    rng.shuffle(x)
    return x


@pytest.mark.parametrize("source", LLVM)
def test_cast(source: str) -> None:
    """Between all types, bit by bit, as the operator; with instructions for half precision and without."""
    rng = np.random.default_rng(6)
    x = sample(rng, source, 2048)
    if DTYPES[source].itemsize == 2:
        x = np.concatenate([x, np.arange(1 << 16, dtype=np.uint16).view(DTYPES[source])])
    elif DTYPES[source].kind == "f":
        near = np.ldexp(1 + rng.integers(0, 1 << 12, 4096) / 4096, rng.integers(-26, 17, 4096))
        x = np.concatenate([x, near.astype(x.dtype), (near * (1 + 2.0 ** -40)).astype(x.dtype)])
    for to in LLVM:
        tree = cast(source, to)
        assert isinstance(tree, Expr)
        with np.errstate(all="ignore"):
            expected = converted(x, element_of(DTYPES[to]))
        for target in {*RUNNABLE[:1], *RUNNABLE[-1:]}:
            got = computed(tree, [x], target)
            with np.errstate(invalid="ignore"):
                wrong = (got != expected) & ~((got != got) & (expected != expected))
            assert not wrong.any(), f"{x[wrong][:3]} to {to}: {got[wrong][:3]}, not {expected[wrong][:3]}"


VARIANTS: dict[str, list[dict[str, Any]]] = {
    "BitShift": [{"direction": "LEFT"}, {"direction": "RIGHT"}], "Gelu": [{}, {"approximate": "tanh"}],
    "Mod": [{"fmod": 0}, {"fmod": 1}], "Shrink": [{}, {"bias": 0.5}],
    "IsInf": [{}, {"detect_negative": 0}, {"detect_positive": 0}],
    "ParametricSoftplus": [{"alpha": 0.5, "beta": 2.0}]}
REFUSED = {("Div", "integer"), ("Mod", "integer"), ("Pow", "float64")}
"""What is not traced: divisors that may be zero, and a function that there is not of float64."""


def types_of(op: Any) -> list[str]:
    schema = lookup(op.domain, op.name, op.since if op.domain else max(newest_opset("") or 1, op.since))
    if not schema or not schema.inputs:
        return ["float32", "float64", "float16", "bfloat16"]
    kinds = [parse_type(text) for text in schema.inputs[-1 if op.name == "Where" else 0].types]
    names = {k.elem.numpy.name for k in kinds if hasattr(k, "shape")} & set(LLVM)
    return sorted(n for n in names if (op.name, op.since) != ("Clip", 6) or DTYPES[n].kind not in "iu")


def operators() -> list[Any]:
    return [pytest.param(op, name, attrs, id=f"{op.domain}{op.name}{op.since}-{name}-{len(str(attrs))}")
            for op in defined() if op.broadcasts for name in types_of(op)
            for attrs in (VARIANTS.get(op.name, [{}]) if not op.domain else [{}])]


@pytest.mark.parametrize("op, dtype, attrs", operators())
def test_traced_operator(op: Any, dtype: str, attrs: dict[str, Any]) -> None:
    if not RUNNABLE:
        pytest.skip("the processor here has no x86 instructions")
    dtypes = [dtype] * (3 if op.variadic else len(op.inputs))
    if op.name == "Where":
        dtypes[0] = "bool"
    tree = trace(op, attrs, dtypes)
    if {(op.name, dtype), (op.name, "integer" if DTYPES[dtype].kind in "iu" else "")} & REFUSED:
        assert isinstance(tree, No)
        return
    assert isinstance(tree, Expr), tree
    rng = np.random.default_rng(7)
    arrays = [sample(rng, d, 2048) for d in dtypes]
    if op.name == "BitShift":
        arrays[1] = rng.integers(0, 70, 2048).astype(arrays[1].dtype)
    given = arrays
    if op.name == "Clip":
        arrays[1:] = [np.full_like(a, v) for a, v in zip(arrays[1:], (1, 5), strict=False)]
        given = [arrays[0], *(a[:1].reshape(()) for a in arrays[1:])]
    with np.errstate(all="ignore"):
        expected = op.bind(attrs)(*given)
    got = computed(tree, arrays)
    assert got.dtype == expected.dtype
    close(got, expected, op.tol)


def close(got: np.ndarray, expected: np.ndarray, tolerance: float) -> None:
    """Equal, or for floats near: cancellation inside a body leaves an absolute error of its terms."""
    if got.dtype.kind in "iub":
        np.testing.assert_array_equal(got, expected)
        return
    unit = float(ml_dtypes.finfo(got.dtype).eps)
    step = max(tolerance * (1e-6 if got.dtype == np.float64 else 1), 4 * unit)
    np.testing.assert_allclose(got.astype(np.float64), expected.astype(np.float64), rtol=step, atol=step)


@pytest.mark.parametrize("name, dtype, divisor", [
    (name, dtype, divisor) for name in ("Div", "Mod")
    for dtype in ("int8", "uint8", "int32", "int64", "uint64")
    for divisor in (1, 3, 7, -1, -4) if divisor > 0 or dtype[0] != "u"])
def test_integer_division_by_a_constant(name: str, dtype: str, divisor: int) -> None:
    op, x = find("", name, 20), sample(np.random.default_rng(8), dtype, 512)
    assert op
    by = np.array([divisor], dtype)
    for attrs in ({}, {"fmod": 1}) if name == "Mod" else ({},):
        tree = trace(op, attrs, [dtype, dtype], {1: by})
        assert isinstance(tree, Expr)
        np.testing.assert_array_equal(computed(tree, [x]), op.bind(attrs)(x, by))
    assert isinstance(trace(op, {}, [dtype, dtype], {1: np.array(0, dtype)}), No)


@pytest.mark.parametrize("dtype", ("float32", "float64", "float16", "int32", "uint8"))
@pytest.mark.parametrize("exponent", (0, 0.5, 1, 2, 3, -1, 5))
def test_constant_powers(dtype: str, exponent: float) -> None:
    op = find("", "Pow", 15)
    assert op
    for other in (dtype, "float32", "int64"):
        if exponent < 0 and other[0] == "u":
            continue
        y = np.array(exponent, other)
        tree = trace(op, {}, [dtype, other], {1: y})
        integral = DTYPES[dtype].kind in "iu"
        if isinstance(tree, No):
            assert (integral and other == "float32") or dtype == "float64"
            continue
        x = sample(np.random.default_rng(9), dtype, 512)
        with np.errstate(all="ignore"):
            close(computed(tree, [x]), op.bind({})(x, y), 2e-6)


def test_what_is_refused() -> None:
    for name, dtypes in (("Equal", ["object", "object"]), ("Add", ["complex64", "complex64"]),
                         ("Relu", ["float8_e4m3fn"]), ("Softmax", ["float32"]), ("Dropout", ["float32"])):
        op = find("", name, 20)
        assert op and isinstance(trace(op, {}, dtypes), No)
    gelu = find("", "Gelu", 20)
    assert gelu and "approximate" in getattr(trace(gelu, {"approximate": "other"}, ["float32"]), "reason", "")
    clip = find("", "Clip", 13)
    assert clip
    tree = trace(clip, {}, ["float32", None, "float32"], {2: np.float32(6)})
    assert str(tree) == "minimum:float32($0, 6.0)"


@template("x:ptr y:ptr")
def every_function(f: Body, x: V, y: V, *, elem: str) -> None:
    """All functions of one type, on one vector."""
    value = f.load(vec(elem, f.machine.lanes(BYTES[elem])), x)
    names = [*vmath.FUNCTIONS, *trig.FUNCTIONS, "fmod", "remainder"]
    for i, name in enumerate(names):
        if elem == F64 and name == "pow":
            continue
        write = next(getattr(m, name) for m in (vmath, trig, arithmetic) if hasattr(m, name))
        two = name in ("copysign", "pow", "fmod", "remainder")
        f.store(write(f, value, value) if two else write(f, value), y, i * 64)


def outside(made: bytes) -> list[bytes]:
    """The symbols that an ELF object refers to and does not define."""
    start, count = struct.unpack_from("<Q", made, 0x28)[0], struct.unpack_from("<H", made, 0x3C)[0]
    sections = [struct.unpack_from("<IIQQQQIIQQ", made, start + 64 * i) for i in range(count)]
    found = []
    for _, kind, _, _, offset, size, text, *_ in sections:
        for at in range(offset + 24, offset + size, 24) if kind == 2 else ():
            name, _, _, section = struct.unpack_from("<IBBH", made, at)
            if section == 0 and name:
                found.append(made[sections[text][4] + name:].split(b"\0", 1)[0])
    return found


@pytest.mark.parametrize("elem", (F32, F64))
@pytest.mark.parametrize("target", (machine.NEON, machine.RVV256), ids=("neon", "rvv"))
def test_other_machines_assemble(target: Machine, elem: str) -> None:
    """No function calls out: the objects name no symbol but their own."""
    made = assemble(every_function(elem=elem).text(target), target)
    assert isinstance(made, bytes) and not outside(made)


def test_every_operation_is_named_once() -> None:
    assert set(vmath.FUNCTIONS) | set(trig.FUNCTIONS) <= set(OPS)
