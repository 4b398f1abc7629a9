"""Fewer kernels on GPUs: steps that are asked for as one keep the meaning of their order, and sums that
programs share are added up by the last of them, as AMD machine code and as NVIDIA's compiler has it."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from emulated_gpu import compare, driver, on_gpu
from gpu_kernels import AMD
from gpu_steps import Steps
from onnx import TensorProto, helper, numpy_helper

from orthrus.codegen.triton import compile as compiling
from orthrus.codegen.triton.kernels.attention import AttentionForm, plan
from orthrus.codegen.triton.kernels.elementwise import elementwise
from orthrus.codegen.triton.kernels.together import together
from orthrus.codegen.triton.targets import TARGETS
from orthrus.codegen.triton.write import COUNT, NUMBER, SIZE
from orthrus.codegen.write.expr import Expr
from orthrus.lowering.gpu import merging
from orthrus.lowering.gpu.products import write
from orthrus.lowering.gpu.walks import closed
from orthrus.lowering.step import KernelStep
from orthrus.lowering.tensor import Buffer, Tensor

pytestmark = pytest.mark.needs("AMD tables", "Triton")


_NODE: Any = None
"""Whom a step is for."""


def _tensor() -> Tensor:
    return Tensor("float32", (8,), (1,), Buffer("arena", 32))


def _step(reads: list[Tensor], writes: list[Tensor], block: int) -> KernelStep:
    closing, _ = closed(writes[0], Expr.leaf(0, "float32"), [], "float32", [range(1)])
    return KernelStep(elementwise(closing=closing, block=block), [*reads, *writes], 1, 1, 0, _NODE,
                      writes)


def _meaning(steps: list[KernelStep]) -> dict[Buffer, int]:
    """What is in each buffer at the end: of those of a launch, all read before any writes."""
    held: dict[Buffer, int] = {}
    for step in steps:
        members = merging.single([step])
        made = [(t.buffer, hash((id(each), i, *(held.get(a.buffer, 0) for a in each.args))))
                for each in members for i, t in enumerate(each.outs)]
        assert len({buffer for buffer, _ in made}) == len(made)
        held.update(made)
    return held


@pytest.mark.parametrize("seed", range(200))
def test_the_order_of_what_meets_is_kept(seed: int) -> None:
    draw = random.Random(seed)
    pool, status = [_tensor() for _ in range(draw.randint(2, 12))], _tensor()
    steps = []
    for _ in range(draw.randint(2, 25)):
        outs = draw.sample(pool, draw.randint(1, 2))
        steps.append(_step(draw.choices(pool, k=draw.randint(0, 3)), outs, draw.choice([64, 128])))
    made = merging.merged(steps, TARGETS["sm_90"], status.buffer)
    assert sorted(map(id, merging.single(made))) == sorted(map(id, steps))
    assert _meaning(made) == _meaning(steps)


def test_what_is_independent_is_one_launch() -> None:
    a, b, c, status = (_tensor() for _ in range(4))
    made = merging.merged([_step([a], [b], 64), _step([a], [c], 64)], TARGETS["sm_90"], status.buffer)
    assert len(made) == 1 and made[0].items == 2
    made = merging.merged([_step([a], [b], 64), _step([b], [c], 64)], TARGETS["sm_90"], status.buffer)
    assert len(made) == 2


def _random_model(seed: int) -> tuple[Any, dict[str, np.ndarray]]:
    """Small nodes of random operators over values that are there already; all ends are outputs."""
    draw, numbers = random.Random(seed), np.random.default_rng(seed)
    rows, width = draw.choice([1, 2, 5]), draw.choice([16, 33])
    nodes, fixed, values, read = [], [], ["x0", "x1"], set[str]()
    for i in range(draw.randint(6, 12)):
        op, name = draw.choice(["MatMul", "MatMul", "Add", "Mul", "Sigmoid", "Softmax", "ReduceMax", "CumSum",
                                "Gather", "Concat"]), f"v{i}"
        given = [draw.choice(values) for _ in range(2 if op in ("Add", "Mul") else 1)]
        read.update(given)
        attrs: dict[str, Any] = {}
        if op == "MatMul":
            given.append(f"w{i}")
            weights = numbers.standard_normal((width, width)) / width ** 0.5
            fixed.append(numpy_helper.from_array(weights.astype(np.float32), f"w{i}"))
        elif op in ("CumSum", "Gather"):
            given.append(f"w{i}")
            order = np.array(1) if op == "CumSum" else numbers.permutation(width)
            fixed.append(numpy_helper.from_array(order.astype(np.int64), f"w{i}"))
            attrs = {"axis": 1} if op == "Gather" else {}
        elif op == "ReduceMax":
            attrs = {"axes": [1]}
        elif op == "Concat":
            half = f"h{i}"
            nodes.append(helper.make_node("Split", given, [f"{half}a", f"{half}b"], axis=1))
            given, attrs = [f"{half}b", f"{half}a"], {"axis": 1}
        if op == "ReduceMax":
            nodes.append(helper.make_node(op, given, [f"r{i}"], **attrs))
            op, given, attrs = "Sub", [given[0], f"r{i}"], {}
        nodes.append(helper.make_node(op, given, [name], **attrs))
        values.append(name)
    ends = [name for name in values[2:] if name not in read]
    if width % 2:
        nodes = [n if n.op_type != "Split" else helper.make_node(
            "Split", [*n.input, "sizes"], n.output, axis=1) for n in nodes]
        fixed.append(numpy_helper.from_array(np.array([width // 2, width - width // 2]), "sizes"))
    graph = helper.make_graph(
        nodes, "g",
        [helper.make_tensor_value_info(x, TensorProto.FLOAT, (rows, width)) for x in ("x0", "x1")],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ends], fixed)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    return made, {x: numbers.standard_normal((rows, width)).astype(np.float32) for x in ("x0", "x1")}


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
def test_random_models(seed: int) -> None:
    model, feeds = _random_model(seed)
    compare(model, feeds, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("target", AMD)
def test_products_of_one_input_are_one_launch(target: str) -> None:
    numbers = np.random.default_rng(0)
    sizes = {"q": 48, "k": 16, "v": 17}
    fixed = [numpy_helper.from_array(numbers.standard_normal((40, n)).astype(np.float32), f"w{name}")
             for name, n in sizes.items()]
    graph = helper.make_graph(
        [helper.make_node("Softmax", ["x"], ["s"]),
         *(helper.make_node("MatMul", ["s", f"w{name}"], [name]) for name in sizes)], "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (1, 40))],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in sizes], fixed)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    feeds = {"x": numbers.standard_normal((1, 40)).astype(np.float32)}
    compare(model, feeds, (target,), rtol=1e-4, atol=1e-4)
    session = on_gpu(model, target)
    before = driver(session).counts["launch"]
    session.run(None, feeds)
    assert driver(session).counts["launch"] - before == 2


@pytest.mark.parametrize("target", AMD)
def test_an_attention_whose_keys_are_shared_out_is_one_launch(target: str) -> None:
    numbers, heads, size = np.random.default_rng(1), 3, 24
    for length, total in ((1, 700), (5, 300)):
        shapes = {"q": (2, length, heads * size), **dict.fromkeys("kv", (2, total, heads * size))}
        graph = helper.make_graph(
            [helper.make_node("MultiHeadAttention", list("qkv"), ["y"], domain="com.microsoft",
                              num_heads=heads)], "g",
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items()],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)])
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid(
            "com.microsoft", 1)], ir_version=8)
        feeds = {name: numbers.standard_normal(s).astype(np.float32) for name, s in shapes.items()}
        compare(model, feeds, (target,), rtol=1e-4, atol=1e-5)
        session = on_gpu(model, target)
        found = {session.run(None, feeds)[0].tobytes() for _ in range(3)}
        assert len(found) == 1 and driver(session).counts["launch"] == 3 * 2, "it, and what sets counts to 0"


@pytest.mark.slow
@pytest.mark.parametrize("target", ["sm_80", "sm_90", "sm_100"])
def test_nvidias_kernels_wait_for_what_others_wrote_and_spill_nothing(target: str) -> None:
    steps = Steps(target)
    for m, n in ((1, 256), (1, 64), (64, 64)):
        arrays = (np.zeros(shape, np.float16) for shape in ((m, 8192), (8192, n), (m, n)))
        a, b, out = map(steps.over, arrays)
        write(steps, a, b, out, None, [])
    specs = [spec for spec, _, _ in steps.steps]
    attention = plan(TARGETS[target], AttentionForm("float16", 64, 64), 1, 8, 8, 1, 4096)
    assert attention.splits > 1
    for spec, waits in (*((each, 1) for each in specs), (together(specs=tuple(specs[:2])), 2),
                        (attention.spec, 1)):
        written = spec.written(TARGETS[target])
        about = tuple("" if kind in (SIZE, COUNT, NUMBER) else "16" for _, kind in written.arguments)
        text = compiling.text_of(spec, TARGETS[target], about, "ptx")
        assert text.count("atom.global.gpu.acq_rel.add") == waits and ".local" not in text
