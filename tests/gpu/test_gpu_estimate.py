"""Estimates of GPUs that are not here: what is counted in compiled kernels, against what the emulator carries
out of them, and what times come of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper
from skips import needs

from orthrus.codegen.triton.counts import Tally, tally, trips
from orthrus.codegen.triton.targets import TARGETS
from orthrus.codegen.triton.tiles import chip
from orthrus.demo import MODEL
from orthrus.errors import InvalidArgument
from orthrus.providers.gpu.estimate import CHIPS, cost
from orthrus.tools.cli.estimate import estimate

GCN = """
kernel:
; %bb.0:
	v_mov_b32_e32 v0, 0
	s_mov_b32 s0, 4
	v_exp_f32_e32 v1, v0
.LBB0_1:                                ; =>This Loop Header: Depth=1
                                        ;     Child Loop BB0_2 Depth 2
	global_load_dwordx4 v[0:3], v[4:5], off
	v_add_f64 v[0:1], v[2:3], v[4:5]
.LBB0_2:                                ;   Parent Loop BB0_1 Depth=1
                                        ; =>  This Inner Loop Header: Depth=2
	ds_read2_b64 v[0:3], v0
	v_mfma_f32_16x16x16_f16 a[0:3], v[0:1], v[2:3], a[0:3]
	s_cbranch_scc1 .LBB0_2
; %bb.3:                                ;   in Loop: Header=BB0_1 Depth=1
	global_store_short v[0:1], v2, off
	s_cbranch_scc1 .LBB0_1
; %bb.4:
	s_endpgm
	.section .AMDGPU.info
"""
PTX = """
	ld.param.b32 	%r1, [kernel_param_0];
	mov.b32 	%r2, 0;
$L__BB0_1:                              // =>This Inner Loop Header: Depth=1
	cp.async.cg.shared.global [ %r1 + 0 ], [ %rd1 + 0 ], 0x10, %r2;
	ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r1, %r2, %r3, %r4}, [%r5];
	wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {%f1}, %rd1, %rd2, 1;
	@%p1 ld.global.v4.b32 {%r1, %r2, %r3, %r4}, [%rd1];
	@%p2 bra 	$L__BB0_1;
// %bb.2:
	ex2.approx.f32 	%f1, %f2;
	ret;
"""
TEXT = """
def kernel(x, n, m, step):
    first, end = tl.program_id(0) * step, tl.minimum(n, tl.cdiv(m, 2))
    for i in range(first, end, step):
        for j in range(tl.num_programs(0)):
            x += j
"""


def test_what_instructions_are_worth() -> None:
    gcn = tally(GCN, TEXT, {"n": 12, "m": 9, "step": 2}, 4, TARGETS["gfx942"])
    turns, inner = 3, 3 * 4
    assert gcn == Tally(vector=1 + 4 + turns * 3 + inner * 2, scalar=1 + turns + inner, doubles=turns,
                        dots=inner, matrix=inner * 16 ** 3 / 1024, shared=inner * 2 * 8 * 64,
                        near=turns * (16 + 2) * 64, rounds=turns)
    ptx = tally(PTX, TEXT, {"n": 12, "m": 9, "step": 2}, 4, TARGETS["sm_90"])
    assert ptx == Tally(vector=turns * 4 + 4, dots=turns, matrix=turns * 64 * 128 * 16 / 4 / 2048,
                        shared=turns * (16 * 32 + 4 * 128), near=turns * 2 * 16 * 32, rounds=turns)


@pytest.mark.parametrize(("given", "turns"), [
    ({"n": 12, "m": 100, "step": 5}, 3), ({"n": 0, "m": 100, "step": 5}, 0), ({"m": 3, "step": 1}, 1),
    ({"n": 12, "m": 3, "step": 0}, 1)])
def test_how_often_loops_turn(given: dict[str, int], turns: int) -> None:
    assert list(trips(TEXT, {**given, "number of programs": 7})) == [(1, turns), (2, 7)]


def test_loops_over_numbers_that_hardly_come_do_not_turn() -> None:
    text = "def kernel(n):\n    if n:\n        for i in range(n):\n            n\n" + (
        "    if rare:\n        for i in range(n):\n            for j in range(3):\n                n\n")
    assert list(trips(text, {"n": 5})) == [(1, 5), (1, 0), (2, 0)]


@pytest.mark.parametrize("target", CHIPS)
def test_more_work_takes_no_less(target: str) -> None:
    work = Tally(vector=100, scalar=10, matrix=30, shared=1000, near=1000, rounds=2)
    at = TARGETS[target]
    least, _ = cost(work, 4, 100, 1e6, at)
    for more in (work.plus(Tally(vector=1e4), 1), work.plus(Tally(matrix=1e4), 1),
                 work.plus(Tally(near=1e6), 1), work.plus(Tally(vector=1e4, doubles=1e4), 1)):
        assert cost(more, 4, 100, 1e6, at)[0] > least
    assert cost(work, 4, 100_000, 1e6, at)[0] > least and cost(work, 4, 100, 1e12, at)[1] == "memory"
    assert cost(work, 4, 1, 1e12, at)[0] == pytest.approx(1e12 / chip(at).memory)


def test_a_target_without_an_estimate() -> None:
    with pytest.raises(InvalidArgument, match="no estimates for that target"):
        estimate(MODEL, "gfx906")


def single(op_type: str, shape: tuple[int, ...], *weights: np.ndarray, **attributes: Any) -> ModelProto:
    names = [f"w{i}" for i in range(len(weights))]
    graph = helper.make_graph(
        [helper.make_node(op_type, ["x", *names], ["y"], **attributes)], "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(w.astype(np.float32), name) for w, name in zip(weights, names, strict=True)])
    return helper.make_model(graph, ir_version=9, opset_imports=[helper.make_opsetid("", 17)])


CASES = {
    "product": single("MatMul", (70, 260), np.ones((260, 90))),
    "convolution": single("Conv", (1, 32, 12, 12), np.ones((48, 32, 3, 3)), pads=[1] * 4),
    "groups": single("Conv", (1, 32, 12, 12), np.ones((32, 4, 3, 3)), pads=[1] * 4, group=8),
    "rows": single("Softmax", (30, 500)),
    "long rows": single("Softmax", (3, 9000)),
    "sum": single("ReduceSum", (40_000,), keepdims=0),
    "elements": single("Tanh", (5000,)),
    "norm": single("LayerNormalization", (20, 768), np.ones(768)),
}


@pytest.mark.slow
@needs("AMD tables", "Triton")
@pytest.mark.parametrize("name", CASES)
def test_counts_are_near_those_of_what_is_executed(name: str) -> None:
    from gpu_lowered import hinted, lowered, ran

    from orthrus.codegen.triton.compile import text_of

    arch = ("gfx1100", "gfx942")[len(name) % 2]
    model, target = CASES[name], TARGETS[arch]
    shape = [d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim]
    feeds = {"x": np.random.default_rng(0).standard_normal(shape).astype(np.float32)}
    executed = sum(count for code, count in ran(model, feeds, arch).opcodes.items()
                   if not code.lower().startswith(("s_waitcnt", "s_nop", "s_endpgm")))
    counted = 0.0
    for step in lowered(model, feeds, arch).steps:
        spec: Any = step.spec
        written = spec.written(target)
        given = {name: value for (name, _), value in zip(written.arguments, step.args, strict=True)
                 if isinstance(value, int)}
        listing = text_of(spec, target, hinted(step, lowered(model, feeds, arch)), "amdgcn")
        counted += tally(listing, written.text, given, step.items, target).instructions * (
            written.warps * step.items)
    assert 0.9 < counted / executed < 1.3


@pytest.mark.slow
@needs("Triton")
@pytest.mark.parametrize("target", ["gfx942", "gfx1100", "sm_90"])
def test_a_whole_model(target: str) -> None:
    one, many = (estimate(MODEL, target, dimensions={"N": n}) for n in (1, 4096))
    assert one.chip == CHIPS[target][0] and one.host == 0
    assert 0 < one.milliseconds < many.milliseconds < 50
    assert {"Conv", "Relu", "Gemm"} & {node.op_type for node in one.nodes}
    with pytest.raises(InvalidArgument, match="the model leaves sizes open"):
        estimate(MODEL, target)
