"""Convolution kernels against the operators' definitions: random shapes, attributes and pitches, between
pages nobody may touch."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import pytest

native = pytest.importorskip("native")

from draws import draws  # noqa: E402
from hypothesis import assume, given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from onnx import helper, numpy_helper  # noqa: E402

import orthrus  # noqa: E402
from orthrus.codegen.kernels.conv import depthwise, direct, planes, winograd  # noqa: E402
from orthrus.codegen.kernels.conv.copies import pad_rows  # noqa: E402
from orthrus.codegen.kernels.conv.geometry import CHUNK, Geometry, phases  # noqa: E402
from orthrus.codegen.machines.detect import host  # noqa: E402
from orthrus.codegen.machines.machine import AVX2, NEON, RVV256, SSE2, Machine  # noqa: E402
from orthrus.codegen.object import build  # noqa: E402
from orthrus.codegen.write.expr import Expr  # noqa: E402
from orthrus.codegen.write.tile import Operand  # noqa: E402
from orthrus.ops.define import find  # noqa: E402
from orthrus.ops.nn.geometry import window  # noqa: E402

F = "float32"
MACHINES = (host(), AVX2, SSE2)
CONV, TRANSPOSED = find("", "Conv", 20), find("", "ConvTranspose", 20)


def relu(x: Expr) -> Expr:
    zero = Expr.const(0.0, F)
    return Expr("where", (Expr("lt", (x, zero), "bool"), zero, x), F)


def add(x: Expr, y: Expr) -> Expr:
    return Expr("add", (x, y), F)


def three(values: Any, fill: int) -> tuple[int, int, int]:
    return (*(fill,) * (3 - len(values)), *values)  # type: ignore[return-value]


def image(rng: np.random.Generator | None, shape: tuple[int, ...], pad: int) -> np.ndarray:
    """(N, C, D, H, W), channels-last, pixels `pad` further apart than channels; NaN without `rng`."""
    block = np.full((shape[0], *shape[2:], shape[1] + pad), np.nan, np.float32)
    if rng is not None:
        block[..., :shape[1]] = rng.standard_normal(block[..., :shape[1]].shape, np.float32)
    return np.moveaxis(native.guarded(block), -1, 1)[:, :shape[1]]


def walk(a: np.ndarray) -> list[int]:
    return [a.strides[i] // a.itemsize for i in (0, 2, 3, 4)]


class Case:
    """A random convolution with a bias, a residual and a factor per image and channel."""

    def __init__(self, seed: int, batch: int, group: int, cin: int, cout: int, size: tuple[int, ...],
                 kernel: tuple[int, ...], strides: tuple[int, ...], dilations: tuple[int, ...],
                 pads: tuple[int, ...], pad: int = 0) -> None:
        rng = np.random.default_rng(seed)
        win = window(size, kernel, strides, dilations, pads)
        self.g = Geometry(batch, group, cin, cout, three(size, 1), three(kernel, 1), three(strides, 1),
                               three(dilations, 1), three(win.begin, 0), three(win.out, 1))
        channels = group * cout
        self.x = image(rng, (batch, group * cin, *self.g.size), pad)
        self.w = rng.standard_normal((channels, cin, *self.g.kernel), np.float32)
        self.b = native.guarded(rng.standard_normal(channels, np.float32))
        self.z = image(rng, (batch, channels, *self.g.out), pad)
        self.scale = native.guarded(rng.standard_normal((batch, channels), np.float32))
        self.y = image(None, (batch, channels, *self.g.out), pad)
        tree = relu(add(add(Expr.leaf(0, F), Expr.leaf(1, F)), Expr.leaf(2, F)))
        self.tree = Expr("mul", (tree, Expr.leaf(3, F)), F)
        self.operands = [Operand(F, False), Operand(F), Operand(F, False)]
        self.cells = [self.b, 0, 0, 0, 0, self.z, *walk(self.z), self.scale, channels, 0, 0, 0]
        begin, end = three(win.begin, 0), three(win.end, 0)
        self.total = CONV.body(self.x.astype(np.float64), self.w.astype(np.float64),
                               strides=list(self.g.strides),
                               dilations=list(self.g.dilations), pads=[*begin, *end], group=group)
        with_bias = self.total + self.b[:, None, None, None] + self.z
        self.want = np.maximum(with_bias, 0) * self.scale[:, :, None, None, None]

    def check(self, tolerance: float = 2e-6) -> None:
        bound = tolerance * (1 + np.abs(self.total).max()) * (1 + np.abs(self.scale).max())
        assert np.abs(self.y - self.want).max() <= bound

    def direct(self, machine: Machine | None, **how: Any) -> None:
        assert not self.tiled(machine, **how)
        self.check()

    def tiled(self, machine: Machine | None, **how: Any) -> int:
        """The status of the kernel, which puts its results into `y`."""
        plan, status = direct.plan(self.g, machine or host(), **how), np.zeros(1, np.int64)
        told = [status] if plan.merge > 1 else []
        native.run(plan.spec(self.tree, self.operands), self.x, plan.pack(self.w), self.y,
                   *plan.cells(walk(self.x), walk(self.y)), *told, *self.cells, items=plan.items,
                   scratch=plan.scratch,
                   machine=machine, splits=(plan.items // 3, plan.items // 2))
        return int(status[0])

    def each_channel(self, machine: Machine | None) -> None:
        target = machine or host()
        assert depthwise.fits(self.g)
        items = depthwise.items(self.g)
        native.run(depthwise.spec(self.g, target, self.tree, self.operands), self.x,
                   direct.pack(self.w, 1, 1, depthwise.lanes_of(self.g, target)), self.y,
                   *depthwise.cells(self.g, walk(self.x), walk(self.y)), *self.cells, items=items,
                   machine=machine,
                   splits=(items // 2,))
        self.check()

    def stem(self, machine: Machine | None) -> None:
        stem = direct.plan_stem(self.g, machine or host())
        x = native.guarded(np.ascontiguousarray(self.x))
        copy = native.guarded(np.full((stem.planes, stem.rows, stem.pitch), np.nan, np.float32))
        native.run(pad_rows(), x, copy, *stem.copy_cells(prod(self.g.size), self.g.size[2]),
                   items=stem.planes * stem.rows, machine=machine)
        native.run(stem.plan.spec(self.tree, self.operands), copy, stem.pack(self.w), self.y,
                   *stem.plan.cells(stem.strides, walk(self.y)), *self.cells, items=stem.plan.items,
                   scratch=stem.plan.scratch, machine=machine)
        self.check()

    def planes(self, machine: Machine | None) -> None:
        """Of an image with its margins, a bias for each channel and a factor for all."""
        g = self.g
        high, wide = ((n - 1) * s + (k - 1) * d + 1 for n, s, k, d in zip(
            g.out[1:], g.strides[1:], g.kernel[1:], g.dilations[1:], strict=True))
        beside = [(p, max(0, n - size - p)) for n, size, p in zip((high, wide), g.size[1:], g.pads[1:],
                                                                  strict=True)]
        x = np.pad(self.x[:, :, 0], [(0, 0), (0, 0), *beside])[:, :, :high, :wide]
        x = native.guarded(np.ascontiguousarray(x))
        y = native.guarded(np.full(self.y[:, :, 0].shape, np.nan, F))
        plan = planes.plan(g.within((1, high, wide)), machine or host())
        tree = Expr("mul", (relu(add(Expr.leaf(0, F), Expr.leaf(1, F))), Expr.leaf(2, F)), F)
        native.run(plan.spec(tree, (F, F)), x, plan.pack(self.w), y, *plan.cells(
            *([s // 4 for s in a.strides[:3]] for a in (x, y))), self.b, 1, self.scale, 0,
                   items=plan.items, machine=machine, splits=(plan.items // 3, plan.items // 2))
        want = np.maximum(self.total[:, :, 0] + self.b[:, None, None], 0) * self.scale.flat[0]
        assert np.abs(y - want).max() <= 2e-6 * (1 + np.abs(self.total).max()) * (1 + abs(self.scale.flat[0]))

    def winograd(self, machine: Machine | None, side: int, block: int | None) -> None:
        assert not self.transformed(machine, side, block)
        self.check(2e-6 if side == 2 else 6e-6)

    def transformed(self, machine: Machine | None, side: int, block: int | None) -> int:
        """The status of the kernels, which put their results into `y`."""
        plan = winograd.plan(self.g, machine or host(), side, block)
        v, m = (native.guarded(np.full(n if plan.whole else 1, np.nan, np.float32))
                for n in (plan.v_size, plan.m_size))
        status = np.zeros(1, np.int64)
        for spec, items, scratch in plan.steps(self.tree, self.operands):
            native.run(spec, self.x, plan.pack(self.w), self.y, v, m, status,
                       *plan.cells(walk(self.x), walk(self.y)),
                       *self.cells, items=items, scratch=scratch, machine=machine, splits=(items // 2,))
        return int(status[0])


def spatial(draw: st.DrawFn, rank: int, low: int, high: int) -> tuple[int, ...]:
    return tuple(draw(st.integers(low, high)) for _ in range(rank))


@st.composite
def cases(draw: st.DrawFn) -> Case:
    rank = draw(st.integers(1, 3))
    try:
        return Case(draw(st.integers(0, 1 << 30)), draw(st.integers(1, 2)),
                    draw(st.sampled_from((1, 1, 2, 6))),
                    draw(st.sampled_from((1, 2, 3, 4, 7, 16, 20))),
                    draw(st.sampled_from((1, 3, 8, 16, 33, 70))),
                    spatial(draw, rank, 1, 30 if rank < 3 else 7), spatial(draw, rank, 1, 4),
                    spatial(draw, rank, 1, 3),
                    spatial(draw, rank, 1, 2), spatial(draw, 2 * rank, 0, 4),
                    draw(st.sampled_from((0, 0, 3))))
    except ValueError:
        assume(False)
        raise


@draws(60)
@given(cases(), st.sampled_from(MACHINES), st.integers(0, 2), st.sampled_from((1, 600, None)))
def test_direct(case: Case, machine: Machine, share: int, block: int | None) -> None:
    case.direct(machine, share=share, block=block)


@draws(25)
@given(st.integers(1, 2), st.sampled_from((4, 16, 37, 64)), st.sampled_from((16, 40, 96)), st.integers(1, 12),
       st.integers(1, 12), st.integers(1, 2), st.sampled_from(MACHINES))
def test_pointwise(batch: int, cin: int, cout: int, high: int, wide: int, stride: int,
                   machine: Machine) -> None:
    case = Case(high * wide, batch, 1, cin, cout, (high, wide), (1, 1), (stride, stride), (1, 1),
                (0, 0, 0, 0))
    case.direct(machine, flat=stride == 1)


@draws(25)
@given(st.integers(0, 99), st.integers(10, 40), st.integers(1, 2), st.sampled_from(MACHINES),
       st.sampled_from((1, 2, 3)))
def test_rows_with_margins(seed: int, wide: int, stride: int, machine: Machine, k: int) -> None:
    case = Case(seed, 1, 1, 16, 32, (5, wide), (3, k), (1, stride), (1, 1), (1, k // 2, 1, k // 2))
    case.direct(machine)


@st.composite
def depthwise_cases(draw: st.DrawFn) -> Case:
    try:
        long = draw(st.booleans())
        kernel = (draw(st.integers(1, 3)), draw(st.integers(17, 33))) if long else spatial(draw, 2, 1, 7)
        return Case(draw(st.integers(0, 1 << 30)), draw(st.integers(1, 2)),
                    draw(st.sampled_from((1, 3, 16, 24, 70))), 1,
                    1, spatial(draw, 2, 1, 60 if long else 20), kernel, spatial(draw, 2, 1, 3),
                    spatial(draw, 2, 1, 3),
                    spatial(draw, 4, 0, 8), draw(st.sampled_from((0, 5))))
    except ValueError:
        assume(False)
        raise


@draws(50)
@given(depthwise_cases(), st.sampled_from(MACHINES))
def test_depthwise(case: Case, machine: Machine) -> None:
    case.each_channel(machine)


@draws(25)
@given(st.integers(1, 2), st.integers(1, 4), st.sampled_from((8, 32)), st.tuples(
    st.integers(1, 40), st.integers(1, 40)), st.tuples(st.integers(1, 7), st.integers(2, 7)),
       st.integers(1, 2),
       st.tuples(*[st.integers(0, 3)] * 4), st.sampled_from(MACHINES))
def test_stem(batch: int, cin: int, cout: int, size: tuple[int, int], kernel: tuple[int, int], stride: int,
              pads: tuple[int, ...], machine: Machine) -> None:
    try:
        case = Case(batch, batch, 1, cin, cout, size, kernel, (stride, stride), (1, 1), pads)
    except ValueError:
        return
    case.stem(machine)


@st.composite
def planes_cases(draw: st.DrawFn) -> Case:
    try:
        kernel = draw(st.sampled_from(((1, 3), (3, 1), (3, 3), (2, 5), (11, 12), (1, 200), (14, 14),
                                       (150, 1))))
        return Case(draw(st.integers(0, 1 << 30)), draw(st.integers(1, 3)),
                    draw(st.sampled_from((1, 1, 2, 3))), draw(st.sampled_from((1, 2, 3, 17, 40))),
                    draw(st.integers(1, 9)), spatial(draw, 2, 1, 140), kernel, (draw(st.integers(1, 3)), 1),
                    spatial(draw, 2, 1, 3),
                    tuple(draw(st.integers(0, k)) for k in kernel * 2))
    except ValueError:
        assume(False)
        raise


@draws(40)
@given(planes_cases(), st.sampled_from(MACHINES))
def test_planes(case: Case, machine: Machine) -> None:
    case.planes(machine)


@draws(30)
@given(st.integers(1, 2), st.sampled_from((16, 23, 48)), st.sampled_from((16, 33, 64)), st.tuples(
    st.integers(1, 18), st.integers(1, 18)), st.tuples(*[st.integers(0, 2)] * 4), st.sampled_from((2, 4)),
       st.sampled_from((3, 14, None)), st.sampled_from(MACHINES))
def test_winograd(batch: int, cin: int, cout: int, size: tuple[int, int], pads: tuple[int, ...], side: int,
                  block: int | None, machine: Machine) -> None:
    try:
        case = Case(batch, batch, 1, cin, cout, size, (3, 3), (1, 1), (1, 1), pads)
    except ValueError:
        return
    case.winograd(machine, side, block)


@pytest.mark.parametrize(("side", "tolerance"), [(2, 1e-6), (4, 5e-6)])
def test_winograd_error(side: int, tolerance: float) -> None:
    """Against float64, as a share of the largest output, for weights and inputs as networks have them."""
    case = Case(7, 1, 1, 128, 64, (28, 28), (3, 3), (1, 1), (1, 1), (1, 1, 1, 1))
    plan = winograd.plan(case.g, host(), side)
    v, m = (np.zeros(n if plan.whole else 1, np.float32) for n in (plan.v_size, plan.m_size))
    for spec, items, scratch in plan.steps(None, ()):
        native.run(spec, case.x, plan.pack(case.w), case.y, v, m, np.zeros(1, np.int64),
                   *plan.cells(walk(case.x), walk(case.y)), items=items, scratch=scratch)
    assert np.abs(case.y - case.total).max() < tolerance * np.abs(case.total).max()


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("block", [3, None])
@pytest.mark.parametrize("side", [2, 4])
@pytest.mark.parametrize(("value", "told"), [(1e9, False), (1e30, True), (-1e38, True), (np.inf, True),
                                             (np.nan, True)])
def test_winograd_tells_of_numbers_it_is_not_for(value: float, told: bool, side: int, block: int | None,
                                                 machine: Machine | None) -> None:
    case = Case(5, 2, 1, 20, 24, (9, 11), (3, 3), (1, 1), (1, 1), (1, 1, 1, 1))
    case.x[1, 19, 0, 8, 10] = value
    assert bool(case.transformed(machine, side, block)) == told


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize(("value", "told"), [(1e9, False), (np.inf, True), (np.nan, True)])
@pytest.mark.parametrize(("cin", "kernel"), [(5, (1, 1)), (3, (3, 3)), (70, (3, 3)), (130, (1, 1))])
def test_groups_tell_of_numbers_that_met_others(cin: int, kernel: tuple[int, int], value: float, told: bool,
                                                machine: Machine | None) -> None:
    """Groups that share a vector say so; each by itself spoils no other."""
    for apart in (False, True):
        case = Case(7, 2, 2, cin, 2, (5, 7), kernel, (1, 1), (1, 1), (kernel[0] // 2,) * 4)
        case.x[1, 0, 0, 4, 6] = value
        assert bool(case.tiled(machine, apart=apart)) == (told and not apart)
        assert np.isfinite(case.y[:, 2:]).all() == (apart or not told)


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("cin", [40, 67, 150, 300])
@pytest.mark.parametrize(("size", "k", "stride"), [((5, 17), 3, 1), ((7, 3), 3, 1), ((8, 30), 3, 2),
                                                   ((4, 5), 1, 1)])
def test_long_sums(machine: Machine | None, cin: int, size: tuple[int, int], k: int, stride: int) -> None:
    """Sums are made of parts: of equal products, whose rounding errors add up, the error stays small."""
    case = Case(cin, 1, 1, cin, 40, size, (k, k), (stride, stride), (1, 1), (k // 2,) * 4)
    case.direct(machine, flat=k == 1)
    plan, x, w = direct.plan(case.g, machine or host()), np.ones_like(case.x), np.full_like(case.w, 0.1)
    assert (plan.parts == "none") == (k * k * cin <= 192)
    x = np.moveaxis(np.ascontiguousarray(np.moveaxis(x, 1, -1)), -1, 1)
    native.run(plan.spec(None, ()), x, plan.pack(w), case.y, *plan.cells(walk(x), walk(case.y)),
               items=plan.items, scratch=plan.scratch, machine=machine)
    want = CONV.body(x.astype(np.float64), w.astype(np.float64), strides=list(case.g.strides),
                     pads=[*case.g.pads] * 2)
    np.testing.assert_allclose(case.y, want, rtol=(CHUNK * 1.5 + 40) * 2.0 ** -24)


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize(("side", "cin", "block"), [(2, 150, 5), (2, 130, None), (4, 80, 7), (4, 200, None)])
def test_long_sums_of_winograd(machine: Machine | None, side: int, cin: int, block: int | None) -> None:
    case = Case(cin, 1, 1, cin, 40, (13, 15), (3, 3), (1, 1), (1, 1), (1, 1, 1, 1))
    assert winograd.plan(case.g, machine or host(), side, block).chunk < cin
    case.winograd(machine, side, block)


@pytest.mark.parametrize("machine", MACHINES)
def test_sigmoids_without_denormals(machine: Machine | None) -> None:
    """A sigmoid that would be denormal is 0; any other number is what it is."""
    case = Case(1, 1, 1, 1, 16, (1, 8), (1, 1), (1, 1), (1, 1), (0, 0, 0, 0))
    x = np.array([np.nan, np.inf, -np.inf, -200, -95, -87.5, -86.5, -3, 0, 3, 86.5, 87.5, 95, 104, 200, 1],
                 np.float32)
    case.x[...], case.w[:, 0, 0, 0, 0] = 1, x
    plan = direct.plan(case.g, machine or host())
    native.run(plan.spec(Expr("sigmoid", (Expr.leaf(0, F),), F), ()), case.x, plan.pack(case.w), case.y,
               *plan.cells(walk(case.x), walk(case.y)), items=plan.items, scratch=plan.scratch,
               machine=machine)
    with np.errstate(over="ignore"):
        want = np.where(x < -87, 0, 1 / (1 + np.exp(-x.astype(np.float64))))
    for pixel in np.moveaxis(case.y, 1, -1).reshape(-1, 16):
        np.testing.assert_allclose(pixel, want, rtol=3e-7, atol=0)


def test_large_epilogue() -> None:
    """A tree that would be written out too often runs as a loop over pixels."""
    for method, tolerance in (("direct", 2e-6), ("winograd", 6e-6)):
        case = Case(3, 1, 1, 16, 40, (9, 17), (3, 3), (1, 1), (1, 1), (1, 1, 1, 1))
        for _ in range(12):
            case.tree = add(case.tree, Expr.leaf(1, F))
        case.want = case.want + 12.0 * case.b[:, None, None, None]
        if method == "direct":
            case.direct(None)
        else:
            case.winograd(None, 4, 7)
        case.check(10 * tolerance)


def test_other_machines() -> None:
    """Every kernel is written and assembled for machines that are not here."""
    for machine in (NEON, RVV256):
        for case in (Case(1, 1, 1, 8, 40, (9, 9), (3, 3), (1, 1), (1, 1), (1, 1, 1, 1)),
                     Case(1, 1, 1, 8, 40, (9, 30), (1, 1), (1, 1), (1, 1), (0, 0, 0, 0))):
            plan = direct.plan(case.g, machine)
            build.assemble(plan.spec(case.tree, case.operands).text(machine), machine)
        case = Case(1, 1, 20, 1, 1, (9, 9), (3, 3), (1, 1), (1, 1), (1, 1, 1, 1))
        build.assemble(depthwise.spec(case.g, machine, case.tree, case.operands).text(machine), machine)
        case = Case(1, 1, 1, 16, 16, (9, 9), (3, 3), (1, 1), (1, 1), (1, 1, 1, 1))
        for side in (2, 4):
            for spec, _, _ in winograd.plan(case.g, machine, side, 3).steps(case.tree, case.operands):
                build.assemble(spec.text(machine), machine)


def test_phases_cover_the_output() -> None:
    """A transposed convolution's phases are plain ones that write each output pixel once."""
    rng = np.random.default_rng(5)
    for size, kernel, stride, dilation, pads, extra in (
            ((5,), (3,), (2,), (1,), (1, 1), (1,)), ((4, 3), (2, 4), (3, 2), (2, 2), (0, 1, 2, 0), (0, 0)),
            ((3, 3), (1, 1), (2, 3), (1, 1), (0, 0, 0, 0), (1, 2)), ((6,), (5,), (4,), (3,), (2, 3), (0,))):
        x, w = rng.standard_normal((1, 2, *size)), rng.standard_normal((2, 3, *kernel))
        want = TRANSPOSED.body(x, w, strides=list(stride), dilations=list(dilation), pads=list(pads),
                               output_padding=list(extra))
        g = Geometry(1, 1, 2, 3, three(size, 1), three(kernel, 1), three(stride, 1), three(dilation, 1),
                          three(pads[:len(size)], 0), three(want.shape[2:], 1))
        y = np.full((1, 3, *g.out), np.nan)
        for part, picks, starts in phases(g):
            taps = w.swapaxes(0, 1).reshape(3, 2, *g.kernel)[(slice(None), slice(None), *picks)]
            place = tuple(slice(s, None, t) for s, t in zip(starts, g.strides, strict=True))
            y[(0, slice(None), *place)] = naive(x.reshape(2, *g.size), taps, part)
        np.testing.assert_allclose(y.reshape(want.shape), want, rtol=1e-12, atol=1e-12)


def naive(x: np.ndarray, w: np.ndarray, g: Geometry) -> np.ndarray:
    """One image, tap by tap."""
    y = np.zeros((w.shape[0], *g.out))
    for at in np.ndindex(*g.out):
        for tap in np.ndindex(*g.kernel):
            place = [o * s - p + t * d for o, s, p, t, d in zip(at, g.strides, g.pads, tap, g.dilations,
                                                                strict=True)]
            if all(0 <= i < n for i, n in zip(place, g.size, strict=True)):
                y[(slice(None), *at)] += w[(..., *tap)] @ x[(slice(None), *place)]
    return y


def session(nodes: list[Any], constants: dict[str, np.ndarray],
            x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A model's output, and what the operators' definitions say."""
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", 1, x.shape)],
                              [helper.make_tensor_value_info("y", 1, None)],
                              [numpy_helper.from_array(v, k) for k, v in constants.items()])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20),
                                                    helper.make_opsetid("com.microsoft", 1)])
    model.ir_version = 9
    (got,) = orthrus.InferenceSession(model.SerializeToString()).run(None, {"x": x})
    known = {"x": x.astype(np.float64), **{k: v.astype(np.float64) for k, v in constants.items()}}
    for node in nodes:
        op = find(node.domain, node.op_type, 1 if node.domain else 20)
        attrs = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        attrs = {k: v.decode() if isinstance(v, bytes) else v for k, v in attrs.items()}
        known[node.output[0]] = op.body(*(known[i] if i else None for i in node.input),
                                        **op.with_defaults(attrs))
    return got, known["y"]


MODELS: dict[str, tuple[list[tuple[str, str, dict[str, Any]]], tuple[int, ...], tuple[int, ...]]] = {
    "stem": ([("Conv", "x w b", {"strides": [2, 2], "pads": [3] * 4}), ("Relu", "", {})], (2, 3, 23, 22),
             (20, 3, 7, 7)),
    "same": ([("Conv", "x w b", {"auto_pad": "SAME_LOWER", "strides": [2, 1]})], (1, 20, 9, 12),
             (18, 20, 4, 2)),
    "residual": ([("Conv", "x w b", {}), ("Add", "x", {}), ("Relu", "", {})], (1, 24, 9, 12), (24, 24, 1, 1)),
    "winograd": ([("Conv", "x w b", {"pads": [1] * 4}), ("Relu", "", {})], (1, 32, 30, 31), (32, 32, 3, 3)),
    "line": ([("Conv", "x w b", {"pads": [1, 2]})], (2, 20, 33), (18, 20, 3)),
    "volume": ([("Conv", "x w b", {"pads": [1] * 6, "strides": [1, 2, 1]})], (1, 6, 5, 6, 7),
               (9, 6, 3, 3, 3)),
    "depthwise": ([("Conv", "x w b", {"pads": [2] * 4, "group": 20})], (2, 20, 9, 12), (20, 1, 5, 5)),
    "multiplied": ([("Conv", "x w b", {"pads": [1] * 4, "group": 5})], (2, 5, 9, 12), (10, 1, 3, 3)),
    "transposed": ([("ConvTranspose", "x w b",
                     {"strides": [2, 3], "pads": [1, 0, 0, 1], "output_padding": [1, 0]}), ("Relu", "", {})],
                   (2, 8, 5, 6), (8, 20, 3, 4)),
    "transposed groups": ([("ConvTranspose", "x w", {"strides": [2], "dilations": [2], "group": 2})],
                          (1, 8, 11), (8, 6, 3)),
    "fused": ([("com.microsoft::FusedConv", "x w b", {"activation": "LeakyRelu", "activation_params": [0.25],
                                                      "pads": [1] * 4})], (1, 12, 9, 8), (12, 12, 3, 3)),
    "fused sum": ([("com.microsoft::FusedConv", "x w b x", {"activation": "Relu", "pads": [1] * 4})],
                  (1, 12, 9, 8), (12, 12, 3, 3)),
    "last": ([("com.microsoft::NhwcConv", "x w b", {"pads": [1] * 4})], (2, 9, 8, 12), (18, 3, 3, 12)),
}


@pytest.mark.parametrize("name", MODELS)
def test_models(name: str) -> None:
    steps, shape, weights = MODELS[name]
    rng = np.random.default_rng(len(name))
    nodes, before = [], ""
    for i, (kind, inputs, attrs) in enumerate(steps):
        domain, _, op_type = kind.rpartition("::")
        made = "y" if i == len(steps) - 1 else f"v{i}"
        names = [v for v in (before, *inputs.split()) if v]
        nodes.append(helper.make_node(op_type, names, [made], domain=domain, **attrs))
        before = made
    first = steps[0][0]
    bias = weights[1] * steps[0][2].get("group", 1) if first == "ConvTranspose" else weights[0]
    constants = {"w": rng.standard_normal(weights, np.float32), "b": rng.standard_normal(bias, np.float32)}
    got, want = session(nodes, constants, rng.standard_normal(shape, np.float32))
    assert got.shape == want.shape
    assert np.abs(got - want).max() < 1e-5 * np.abs(want).max()
