"""The configuration for QNN: onnxruntime's for the same models, overrides and options."""

from __future__ import annotations

import enum
import importlib
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from orthrus.errors import InvalidArgument

FLOAT = TensorProto.FLOAT
Q8, Q16, S8, S16, Q4 = "QUInt8", "QUInt16", "QInt8", "QInt16", "QInt4"


def model(opset: int = 17) -> onnx.ModelProto:
    """Two branches that meet: a -> b -> e, c -> d -> e, then f; products with weights, a Sigmoid, a Tanh and
    a LayerNormalization among them; one weight is read by two products."""
    nodes = [helper.make_node("MatMul", ["x", "w0"], ["a"], "A"),
             helper.make_node("Sigmoid", ["a"], ["b"], "B"),
             helper.make_node("MatMul", ["z", "w1"], ["c"], "C"), helper.make_node("Tanh", ["c"], ["d"], "D"),
             helper.make_node("Add", ["b", "d"], ["e"], "E"),
             helper.make_node("LayerNormalization", ["e", "scale", "bias"], ["f"], "F"),
             helper.make_node("MatMul", ["f", "w1"], ["g"], "G"),
             helper.make_node("MatMul", ["f", "c"], ["h"], "H"),
             helper.make_node("Cast", ["c"], ["i"], "I", to=TensorProto.INT32)]
    rng = np.random.default_rng(0)
    weights = {"w0": (4, 4), "w1": (4, 4), "scale": (4,), "bias": (4,)}
    tensors = [numpy_helper.from_array(rng.normal(size=s).astype(np.float32), n) for n, s in weights.items()]
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info(n, FLOAT, [4, 4]) for n in "xz"],
        [helper.make_tensor_value_info(n, FLOAT, [4, 4]) for n in "gh"]
        + [helper.make_tensor_value_info("i", TensorProto.INT32, [4, 4])], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def plain(value: Any) -> Any:
    """`value` of either package as what can be compared."""
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, dict):
        return {key: plain(v) for key, v in value.items()}
    if isinstance(value, set | frozenset):
        return sorted(map(plain, value))
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    if isinstance(value, np.ndarray):
        return str(value.dtype), value.tolist()
    return value


def typed(value: Any, package: str) -> Any:
    """`value` with the names of types as the package's QuantType."""
    kinds = importlib.import_module(f"{package}.quantization.quant_utils").QuantType
    if isinstance(value, str) and value in kinds.__members__:
        return kinds[value]
    if isinstance(value, dict):
        return {key: typed(v, package) for key, v in value.items()}
    return [typed(v, package) for v in value] if isinstance(value, list) else value


def configured(package: str, given: Any, options: dict[str, Any]) -> Any:
    """What the configuration holds, or the text of the error."""
    qnn = importlib.import_module(f"{package}.quantization.execution_providers.qnn")
    try:
        config = qnn.get_qnn_qdq_config(given, None, **typed(options, package))
    except ValueError as error:
        return error
    found = plain(vars(config))
    found["op_types_to_quantize"] = sorted(found["op_types_to_quantize"])
    return found


OVERRIDES: list[dict[str, Any]] = [
    {}, *({name: [{"quant_type": Q16}]} for name in "xabcdefgh"),
    {"b": [{"quant_type": Q16}], "e": [{"quant_type": Q16}]},
    {"c": [{"quant_type": Q16, "convert": {"quant_type": Q8, "recv_nodes": {"H"}}}]},
    {"e": [{"quant_type": Q16}], "d": [{"quant_type": Q8, "convert": {"quant_type": Q16}}]},
    {"w1": [{"quant_type": S8, "symmetric": True}], "f": [{"quant_type": Q16}]},
    {"w0": [{"axis": 1, "quant_type": S8}], "x": [{"quant_type": Q16}]},
    {"b": [{"scale": np.float32(0.5), "zero_point": np.uint8(3)}]},
    {"g": []},
]
OPTIONS: list[dict[str, Any]] = [
    {}, {"activation_type": Q16}, {"activation_type": S16, "weight_type": S8},
    {"activation_type": Q16, "per_channel": True, "weight_type": S8}, {"weight_type": Q4},
    {"add_qtype_converts": False, "weight_symmetric": True}, {"activation_symmetric": True, "stride": 2},
    {"op_types_to_quantize": ["MatMul", "Add"], "nodes_to_exclude": ["A"]},
    {"nodes_to_exclude": ["F", "G"], "keep_removable_activations": True, "calibration_providers": ["X"]},
]


def compare(options: dict[str, Any], overrides: dict[str, Any], opset: int = 17) -> None:
    """Onnxruntime checks the first override only, and looks at no other to see whether there are 16 bits."""
    turned = [dict(itertools.islice(itertools.cycle(overrides.items()), first, first + len(overrides)))
              for first in range(max(len(overrides), 1))]
    ours = configured("orthrus", model(opset), {**options, "init_overrides": overrides})
    theirs = [configured("onnxruntime", model(opset), {**options, "init_overrides": it}) for it in turned]
    if any(isinstance(found, ValueError) for found in theirs):
        assert isinstance(ours, InvalidArgument), (overrides, ours)
        return
    wide = [found["extra_options"].pop("UseQDQContribOps", False) for found in theirs]
    assert ours["extra_options"].pop("UseQDQContribOps", False) is any(wide), overrides
    assert ours == theirs[0], overrides


@pytest.mark.parametrize("opset", [17, 21])
@pytest.mark.parametrize("options", OPTIONS, ids=lambda o: "-".join(o) or "none")
def test_a_configuration_is_theirs(options: dict[str, Any], opset: int) -> None:
    pytest.importorskip("onnxruntime")
    for overrides in OVERRIDES:
        compare(options, overrides, opset)


def test_pairs_of_overrides_are_theirs() -> None:
    """Types asked for at two places, which may contradict each other."""
    pytest.importorskip("onnxruntime")
    rows = [{"quant_type": Q16}, {"quant_type": Q8}, {"quant_type": Q16, "convert": {"quant_type": Q8}}]
    for one, other in itertools.combinations("abcdef", 2):
        for first, second in itertools.product(rows, rows):
            compare({}, {one: [first], other: [second]})


def test_symmetry_alone_asks_for_no_conversion() -> None:
    """Nodes take integers of one type, wherever their zero is."""
    pytest.importorskip("onnxruntime")
    compare({}, {"a": [{"quant_type": Q16, "symmetric": True}]})
    for options in ({}, {"activation_type": S8}):
        overrides = {"a": [{"symmetric": True}], "e": [{"symmetric": True}]}
        found = configured("orthrus", model(), {**options, "init_overrides": overrides})
        assert found["extra_options"]["TensorQuantOverrides"] == overrides


def test_overrides_that_were_given_stay_as_they_are(tmp_path: Path) -> None:
    from orthrus.quantization import QuantType
    from orthrus.quantization.execution_providers.qnn import get_qnn_qdq_config

    onnx.save(model(), tmp_path / "m.onnx")
    given = {"e": [{"quant_type": QuantType.QUInt16}]}
    config = get_qnn_qdq_config(tmp_path / "m.onnx", None, init_overrides=given)
    assert given == {"e": [{"quant_type": QuantType.QUInt16}]}
    assert set(config.extra_options["TensorQuantOverrides"]) > set(given)


def test_a_node_without_a_name_cannot_receive_a_conversion() -> None:
    from orthrus.quantization import QuantType
    from orthrus.quantization.execution_providers.qnn import get_qnn_qdq_config

    nameless = model()
    nameless.graph.node[1].name = ""
    with pytest.raises(ValueError, match="does not have a name") as error:
        get_qnn_qdq_config(nameless, None, init_overrides={"a": [{"quant_type": QuantType.QUInt16}]})
    assert "qnn_preprocess_model" in str(error.value)
