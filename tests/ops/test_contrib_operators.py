"""Operators that onnxruntime's CPU build runs and the standard does not have mean here what they mean there,
and what the definition says is what generated code gives."""

from __future__ import annotations

import dataclasses
import zlib
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from contrib_cases import CASES, SHARED, Draw
from onnx import helper, numpy_helper
from oracle import Case, differences, session
from packed_cases import NEWER, SINCE, SPECIFIED

import orthrus
from orthrus.ops import find

EACH = 6


def fixed(case: Case) -> onnx.ModelProto:
    """The model with all but its first input constant."""
    model = case.model()
    for info in list(model.graph.input)[1:]:
        model.graph.initializer.append(numpy_helper.from_array(case.feeds[info.name], info.name))
        model.graph.input.remove(info)
    return model


def in_words(case: Case) -> onnx.ModelProto:
    """The model with bfloat16, which onnxruntime takes from no array, constant, and results in float32."""
    model, graph = case.model(), case.model().graph
    for info in [i for i in model.graph.input if case.feeds[i.name].dtype == ml_dtypes.bfloat16]:
        model.graph.initializer.append(numpy_helper.from_array(case.feeds[info.name], info.name))
        model.graph.input.remove(info)
    del model.graph.output[:]
    for value in graph.output:
        model.graph.node.append(helper.make_node("Cast", [value.name], [f"{value.name}_wide"], to=1))
        model.graph.output.append(helper.make_tensor_value_info(f"{value.name}_wide", 1, None))
    return model


def by_peer(peer: Any, case: Case) -> list[Any]:
    case = dataclasses.replace(case, open_shapes=False)
    if any(a.dtype == ml_dtypes.bfloat16 for a in case.feeds.values()):
        it = session(peer, in_words(case), "ORT_DISABLE_ALL")
        made = it.run(None, {i.name: case.feeds[i.name] for i in it.get_inputs()})
        told = session(peer, case.model(), "ORT_DISABLE_ALL").get_outputs()
        narrow = {"tensor(bfloat16)": ml_dtypes.bfloat16, "tensor(float16)": np.float16}
        return [a.astype(narrow.get(o.type, a.dtype)) for a, o in zip(made, told, strict=True)]
    it = session(peer, case.model(), "ORT_DISABLE_ALL")
    shared = SHARED.get(case.op)
    if shared is None:
        try:
            return it.run(None, case.feeds)
        except Exception as error:
            if "not yet supported on this hardware platform" in str(error):
                pytest.skip("onnxruntime does not run it")
            raise
    binding = it.io_binding()
    values = {name: peer.OrtValue.ortvalue_from_numpy(a.copy()) for name, a in case.feeds.items()}
    for name, value in values.items():
        binding.bind_ortvalue_input(name, value)
    for i in range(case.outputs):
        if i in shared:
            binding.bind_ortvalue_output(f"o{i}", values[f"i{shared[i]}"])
        else:
            binding.bind_output(f"o{i}")
    it.run_with_iobinding(binding)
    return binding.copy_outputs_to_cpu()


def ran(model: onnx.ModelProto, case: Case, generated: bool) -> list[Any]:
    """What is computed by kernels, where there are some, or by definitions alone."""
    it = orthrus.InferenceSession(model.SerializeToString(), providers=[
        ("CPUExecutionProvider", {"use_codegen": str(int(generated))})])
    return it.run(None, {i.name: case.feeds[i.name] for i in it.get_inputs()})


@pytest.mark.parametrize("name", CASES)
def test_as_onnxruntime(name: str) -> None:
    peer = pytest.importorskip("onnxruntime")
    if name in NEWER and tuple(map(int, peer.__version__.split(".")[:2])) < SINCE:
        pytest.skip(f"onnxruntime does not run it: {peer.__version__} has no kernel")
    specified = SPECIFIED.get(name, lambda case, made: made)
    for seed in range(EACH):
        d = Draw(zlib.crc32(f"{name} {seed}".encode()))
        case = CASES[name](d)
        case.open_shapes = d.yes()
        with np.errstate(all="ignore"):
            expected = by_peer(peer, case)
        ways = {"by definition": ran(case.model(), case, False), "generated": ran(case.model(), case, True),
                "with constants": ran(fixed(case), case, True)}
        for way, got in ways.items():
            found = differences(specified(case, got), specified(case, expected), case.rtol, case.atol,
                                case.slack)
            assert found is None, f"{case} {way}: {found}"


@pytest.mark.parametrize("kind", ["float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz",
                                  "float4_e2m1fn"])
def test_gathered_floats_of_few_bits(kind: str) -> None:
    peer = pytest.importorskip("onnxruntime")
    d = Draw(3)
    fixed = {"data": d.floats(5, 64, dtype=getattr(ml_dtypes, kind)), "scales": d.floats(5, 4)}
    graph = helper.make_graph(
        [helper.make_node("GatherBlockQuantized", ["data", "i", "scales"], ["y"], domain="com.microsoft",
                          block_size=16)], "g", [helper.make_tensor_value_info("i", 7, (2, 3))],
        [helper.make_tensor_value_info("y", 1, None)],
        [numpy_helper.from_array(a, n) for n, a in fixed.items()])
    opsets = [helper.make_opsetid("", 23), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=11)
    given = {"i": d.ints(0, 5, 2, 3)}
    for level in ("ORT_DISABLE_ALL", "ORT_ENABLE_ALL"):
        made, wanted = (session(engine, model, level).run(None, given) for engine in (orthrus, peer))
        assert differences(made, wanted, 1e-6, 1e-6) is None


@pytest.mark.parametrize("start", [0, 0.1, 0.2, 1 / 3, 0.7])
def test_a_box_that_ends_with_the_image_has_no_sample_outside(start: float) -> None:
    crop = find("com.microsoft", "CropAndResize", 1)
    assert crop is not None
    box, first = np.array([[start, start, 1, 1]], np.float32), np.zeros(1, np.int32)
    for size in range(2, 24):
        image = np.ones((1, 1, size, 2 * size), np.float32)
        for count in range(2, 24):
            counts = np.array([count, count + 1], np.int32)
            y = crop.bind({"extrapolation_value": 7.0})(image, box, first, counts)
            np.testing.assert_allclose(y, 1, rtol=1e-6, err_msg=f"{count} of {size}")


REFUSED: dict[str, tuple[list[Any], dict[str, Any], int, str]] = {
    "CausalConvWithState": ([np.ones((1, 3, 4), np.float32), np.ones((3, 1, 2), np.float32)],
                            {"state_length": 5}, 2, "state_length"),
    "GatedAdd": ([np.ones((2, 3), np.float32), np.ones((2, 3), np.float32), np.ones((2, 1), np.float32),
                  np.ones((1, 1), np.float32)], {}, 1, "input size 4 not in range"),
    "MoE": ([np.ones((1, 4), np.float32), np.ones((1, 2), np.float32), np.ones((2, 6, 4), np.float32), None,
             np.ones((2, 4, 3), np.float32)], {"activation_type": "swiglu", "swiglu_fusion": 1,
                                               "swiglu_limit_after_activation": 1}, 1, "limit_after"),
    "VarlenCausalConvWithState": ([
        np.ones((2, 3), np.float32), np.ones((3, 1, 2), np.float32), np.array([0, 1], np.int32), None,
        np.ones((1, 3, 1), np.float32)], {}, 2, "do not rise from 0 to 2"),
    "GatedDeltaNet": ([np.ones((2, 1, 4), np.float32)] * 3 + [np.array([0, 2], np.int32)], {}, 2,
                      "decay is for gated rules"),
    "MoEGroupRouter": ([np.ones((2, 4), np.float32), np.ones(4, np.float32)], {"top_k": 1, "n_group": 3}, 1,
                       "in 1 of 3 groups"),
    "GatherPacked": ([np.ones((2, 66), np.uint8), np.zeros(1, np.int64)],
                     {"K": 256, "packed_type": 16, "output_dtype": 1}, 1, "packed_type 16")}


@pytest.mark.parametrize("generated", [False, True])
@pytest.mark.parametrize("name", REFUSED)
def test_what_is_for_other_providers_is_refused(name: str, generated: bool) -> None:
    inputs, attrs, outputs, said = REFUSED[name]
    case = Case(name, inputs, attrs, outputs=outputs, domain="com.microsoft")
    with pytest.raises(Exception, match=said):
        ran(case.model(), case, generated)
