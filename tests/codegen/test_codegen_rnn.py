"""Recurrent layers: generated kernels against the numpy definitions, and sessions against them with generated
kernels and without."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

native = pytest.importorskip("native")

from draws import draws  # noqa: E402
from hypothesis import given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from onnx import TensorProto, helper, numpy_helper  # noqa: E402

import orthrus  # noqa: E402
from orthrus.codegen.kernels import rnn  # noqa: E402
from orthrus.codegen.machines.detect import host  # noqa: E402
from orthrus.codegen.machines.machine import AVX2, NEON, RVV256, SSE2, Machine  # noqa: E402
from orthrus.codegen.object import build  # noqa: E402
from orthrus.codegen.write.trace import traced  # noqa: E402
from orthrus.ops import define  # noqa: E402
from orthrus.ops.nn.rnn import DEFAULTS, activations_of  # noqa: E402

OTHERS = ("Relu", "Tanh", "Sigmoid", "Softsign", "Softplus", "LeakyRelu", "ThresholdedRelu", "Elu", "Affine",
          "ScaledTanh", "HardSigmoid")
BOUNDED = ("Tanh", "Sigmoid", "Softsign", "ScaledTanh", "HardSigmoid")
"""Those that do not grow from step to step, and rounding with them."""


def trees(kind: str, *names: str) -> tuple:
    """The activations of one direction, as the kernel takes them."""
    (one,) = activations_of(kind, names, 1, None, None)
    return tuple(traced(op, attrs, ["float32"]) for op, attrs in one)


def layer(rng: np.random.Generator, kind: str, steps: int, batch: int, inputs: int, hidden: int,
          directions: int, layout: int, parts: frozenset[str]) -> list[np.ndarray | None]:
    """The inputs of a layer: those named in `parts`, besides X, W and R."""
    gates = rnn.GATES[kind]

    def drawn(*shape: int) -> np.ndarray:
        return (rng.normal(size=shape) * .5).astype(np.float32)
    state = (batch, directions, hidden) if layout else (directions, batch, hidden)
    return [drawn(batch, steps, inputs) if layout else drawn(steps, batch, inputs),
            drawn(directions, gates * hidden, inputs), drawn(directions, gates * hidden, hidden),
            drawn(directions, 2 * gates * hidden) if "B" in parts else None,
            rng.integers(0, steps + 1, batch).astype(np.int32) if "lens" in parts else None,
            drawn(*state) if "h" in parts else None,
            drawn(*state) if "c" in parts and kind == "LSTM" else None,
            drawn(directions, 3 * hidden) if "P" in parts and kind == "LSTM" else None]


def expected(kind: str, values: list[np.ndarray | None], attrs: dict[str, Any]) -> tuple[np.ndarray, ...]:
    """What the definition gives, computed in float64."""
    wide = [v if v is None or v.dtype == np.int32 else v.astype(np.float64) for v in values]
    wide = wide[:8 if kind == "LSTM" else 6]
    found = define.find("", kind, 14).bind(attrs, 3 if kind == "LSTM" else 2)(*wide)
    return tuple(np.asarray(v) for v in found)


def run(kind: str, values: list[np.ndarray | None], direction: str, lbr: bool, activations: tuple,
        clip: float, coupled: bool, machine: Machine, splits: tuple[int, ...] = ()) -> tuple[np.ndarray, ...]:
    """The kernel by itself, layout 0; numpy projects X, and has sequences without a step begin with zeros."""
    x, w, r, b, lens, h0, c0, peephole = values
    assert x is not None and w is not None and r is not None
    (steps, batch, _), directions, hidden, gates = x.shape, len(w), r.shape[2], rnn.GATES[kind]
    plan = rnn.plan(machine, kind, hidden, batch, lbr)
    bias = np.zeros((directions, 2, gates * hidden), np.float32)
    if b is not None:
        bias = b.reshape(bias.shape)
    total, extra = bias.sum(1), np.zeros(1, np.float32)
    if lbr:
        total[:, 2 * hidden:] = bias[:, 0, 2 * hidden:]
        extra = plan.lined(bias[:, 1, 2 * hidden:])
    if peephole is not None:
        extra = plan.lined(peephole.reshape(directions, 3, hidden))
    projected = np.einsum("tni,dci->tndc", x, plan.spread(w)) + plan.spread(total)
    projected, packed = (native.guarded(v.astype(np.float32)) for v in (projected, plan.pack(r)))
    y = native.guarded(np.full((steps, directions, batch, hidden), np.nan, np.float32))
    state = np.zeros((directions, batch, hidden), np.float32)
    last = [native.guarded(state * np.nan) for _ in range(2)]
    some = np.ones((batch, 1), np.float32) if lens is None else (lens[:, None] > 0).astype(np.float32)
    starts = [native.guarded(state if s is None else s * some) for s in (h0, c0)]
    step = (directions * plan.columns, batch * directions * plan.columns)
    cells: list[Any] = [projected, step[1], step[0], plan.columns, packed, packed[0].size, y,
                        directions * batch * hidden, hidden, batch * hidden]
    for start, end in zip(starts, last, strict=True):
        cells += [start, hidden, batch * hidden, end, hidden, batch * hidden]
    status = np.zeros(1, np.int64)
    extra = native.guarded(extra)
    cells += [extra, extra[0].size, native.guarded(np.zeros(1, np.int32) if lens is None else lens), status,
              steps, batch, hidden, plan.blocks, plan.tiles, plan.per_item, plan.items, 0,
              0 if direction == "reverse" else 1]
    spec = plan.spec(activations, clip, peephole is not None, lens is not None, coupled)
    native.run(spec, *cells, items=directions * plan.items, scratch=plan.scratch, machine=machine,
               splits=splits)
    assert not status[0]
    return (y, *last) if kind == "LSTM" else (y, last[0])


@st.composite
def cases(draw: st.DrawFn) -> tuple:
    kind = draw(st.sampled_from(("RNN", "GRU", "LSTM")))
    return (kind, draw(st.integers(1, 5)), draw(st.sampled_from((1, 1, 2, 7, 13))),
            draw(st.sampled_from((1, 3, 16, 31, 40))),
            draw(st.sampled_from(("forward", "reverse", "bidirectional"))),
            frozenset(draw(st.sets(st.sampled_from(("B", "lens", "h", "c", "P"))))),
            draw(st.booleans()) and kind == "GRU", draw(st.booleans()) and kind == "LSTM",
            draw(st.sampled_from((0.0, 0.0, 0.7))), draw(st.integers(0, 1 << 30)))


@draws(40)
@given(cases(), st.sampled_from((host(), AVX2, SSE2)))
def test_layers(case: tuple, machine: Machine) -> None:
    kind, steps, batch, hidden, direction, parts, lbr, coupled, clip, seed = case
    directions = 1 + (direction == "bidirectional")
    values = layer(np.random.default_rng(seed), kind, steps, batch, 5, hidden, directions, 0, parts)
    attrs: dict[str, Any] = {"direction": direction, **({"clip": clip} if clip else {})}
    if kind == "GRU":
        attrs["linear_before_reset"] = int(lbr)
    if kind == "LSTM":
        attrs["input_forget"] = int(coupled)
    got = run(kind, values, direction, lbr, trees(kind), clip, coupled, machine, (1,))
    for a, b in zip(got, expected(kind, values, attrs), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("name", OTHERS)
def test_activations(name: str) -> None:
    values = layer(np.random.default_rng(1), "RNN", 3, 2, 6, 20, 1, 0, frozenset("B"))
    got = run("RNN", values, "forward", False, trees("RNN", name), 0.0, False, AVX2)
    for a, b in zip(got, expected("RNN", values, {"activations": [name]}), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-6)


def model(kind: str, values: list[np.ndarray | None], attrs: dict[str, Any]) -> bytes:
    """A layer as a model: X, sequence_lens and the initial states are fed, weights are constant."""
    names = ["X", "W", "R", "B", "sequence_lens", "initial_h", "initial_c", "P"]
    used = [name if v is not None else "" for name, v in zip(names, values, strict=True)]
    used = used[:8 if kind == "LSTM" else 6]
    outputs = ["Y", "Y_h", "Y_c"][:3 if kind == "LSTM" else 2]
    constant = [numpy_helper.from_array(v, n) for n, v in zip(names, values, strict=True)
                if n in "WRBP" and v is not None]
    fed = [helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape)
           for n, v in zip(names, values, strict=True) if n not in "WRBP" and v is not None]
    graph = helper.make_graph(
        [helper.make_node(kind, used, outputs, hidden_size=values[2].shape[2], **attrs)], "layer", fed,
        [helper.make_tensor_value_info(o, TensorProto.FLOAT, [None] * (3 + (o == "Y"))) for o in outputs],
        constant)
    made = helper.make_model(graph, ir_version=9, opset_imports=[helper.make_opsetid("", 17)])
    onnx.checker.check_model(made)
    return bytes(made.SerializeToString())


@draws(12)
@given(cases(), st.integers(0, 1), st.booleans())
def test_sessions(case: tuple, layout: int, odd: bool) -> None:
    kind, steps, batch, hidden, direction, parts, lbr, _, clip, seed = case
    rng, directions = np.random.default_rng(seed), 1 + (direction == "bidirectional")
    values = layer(rng, kind, steps, batch, 5, hidden, directions, layout, parts)
    attrs: dict[str, Any] = {"direction": direction, "layout": layout, **({"clip": clip} if clip else {})}
    if kind == "GRU":
        attrs["linear_before_reset"] = int(lbr)
    if odd:
        chosen = BOUNDED if steps > 2 else OTHERS
        attrs["activations"] = [str(n) for n in rng.choice(chosen, len(DEFAULTS[kind]) * directions)]
        attrs["activation_alpha"], attrs["activation_beta"] = [.3, .4], [.1]
    session = orthrus.InferenceSession(model(kind, values, attrs))
    names = {i.name for i in session.get_inputs()}
    inputs = ("X", "W", "R", "B", "sequence_lens", "initial_h", "initial_c")
    feeds = {n: v for n, v in zip(inputs, values, strict=False) if n in names}
    for a, b in zip(session.run(None, feeds), expected(kind, values, attrs), strict=True):
        np.testing.assert_allclose(a, b, rtol=5e-5, atol=5e-6)


def test_lengths_out_of_range_are_refused() -> None:
    values = layer(np.random.default_rng(0), "LSTM", 3, 2, 4, 8, 1, 0, frozenset(("lens",)))
    session = orthrus.InferenceSession(model("LSTM", values, {}))
    for wrong in (-1, 4):
        with pytest.raises(Exception, match="sequence_lens"):
            session.run(None, {"X": values[0], "sequence_lens": np.array([1, wrong], np.int32)})


@pytest.mark.parametrize("machine", [NEON, RVV256], ids=lambda m: m.arch)
def test_assembles_elsewhere(machine: Machine) -> None:
    for kind in DEFAULTS:
        plan = rnn.plan(machine, kind, 40, 3)
        assert build.assemble(plan.spec(trees(kind), 0.0, False, True, False).text(machine), machine)
