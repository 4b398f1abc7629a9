"""The parts of the server that need no server: settings, messages, tensors in the protocol's forms."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest
from skips import needs

from orthrus.errors import InvalidArgument
from orthrus.serving import tensors
from orthrus.serving.config import ModelConfig, parsed
from orthrus.serving.protocols.messages import messages
from orthrus.serving.refusals import Refusal


@pytest.mark.parametrize("given", [
    {"versions": "last"}, {"versions": "latest:0"}, {"versions": [0]}, {"versions": []},
    {"max_batch_size": 0}, {"max_batch_size": True}, {"max_delay": -1}, {"max_delay": float("nan")},
    {"weight": 0}, {"goal": 0}, {"timeout": "5"}, {"threads": -1},
    {"providers": []}, {"providers": "cpu"}, {"level": "most"},
    {"level": []}, {"limits": {"max_bytes": 1}}, {"limits": {"max_nodes": 0}}, {"warm_up": [{"x": [-1]}]},
    {"max_batchsize": 4}, {"provider_options": {"cpu": 1}}])
def test_settings_that_can_not_be_meant(given: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument, match=next(iter(given))):
        parsed(given, "config.toml")


@pytest.mark.parametrize("policy, served", [
    ("latest", [7]), ("latest:2", [3, 7]), ("latest:9", [1, 3, 7]), ("all", [1, 3, 7]), ([3, 1], [1, 3]),
    ([2], [])])
def test_versions_are_chosen(policy: Any, served: list[int]) -> None:
    assert ModelConfig(versions=policy).chosen([3, 7, 1]) == served


@needs("server libraries")
def test_messages_have_the_clients_names_and_numbers() -> None:
    from tritonclient.grpc import model_config_pb2, service_pb2

    def rows(descriptor: Any) -> dict[str, Any]:
        return {field.name: (field.number, field.type, field.is_repeated, field.message_type
                             and field.message_type.name, field.containing_oneof
                             and field.containing_oneof.name) for field in descriptor.fields}

    def same(ours: Any, theirs: Any) -> None:
        mine, other = rows(ours), rows(theirs)
        assert {name: other.get(name) for name in mine} == mine, ours.name
        if ours.name not in ("ModelConfig", "ModelInput", "ModelOutput", "ModelDynamicBatching"):
            assert mine.keys() == other.keys(), ours.name
        for inner in ours.nested_types:
            same(inner, theirs.nested_types_by_name[inner.name])
    found = messages()
    theirs = {**model_config_pb2.DESCRIPTOR.message_types_by_name,
              **service_pb2.DESCRIPTOR.message_types_by_name}
    for name, kind in found.types.items():
        same(kind.DESCRIPTOR, theirs[name])
    service = service_pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"]
    assert found.service == service.full_name
    assert {(m.name, m.request.DESCRIPTOR.name, m.response.DESCRIPTOR.name) for m in found.methods} == {
        (m.name, m.input_type.name, m.output_type.name) for m in service.methods}


INT32, FP32, BOOL = (tensors.DATATYPES[name] for name in ("INT32", "FP32", "BOOL"))
U64, I8 = tensors.DATATYPES["UINT64"], tensors.DATATYPES["INT8"]


@pytest.mark.parametrize("data, kind, shape", [
    ([1.5], INT32, (1,)), ([True], INT32, (1,)), (["1"], FP32, (1,)), ([None], FP32, (1,)),
    ([1, 2], FP32, (3,)), ([[1, 2], [3]], FP32, (3,)), ([[1, 2]], FP32, (2, 1)), ([2], BOOL, (1,)),
    ([1.0], BOOL, (1,)), ([128], I8, (1,)), ([-1], U64, (1,)),
    ([2**64], U64, (1,)), ([2**64 - 1, 1.0], U64, (2,)),
    ([10**400], FP32, (1,)), ("ab", FP32, (2,)), (None, FP32, (0,)), ({}, FP32, (0,)), ([{}], FP32, (1,)),
    ([1], tensors.BYTES, (1,)), ([["a"], "b"], tensors.BYTES, (3,))])
def test_lists_that_are_no_such_tensor(data: Any, kind: tensors.Datatype, shape: tuple[int, ...]) -> None:
    with pytest.raises(Refusal, match="^t: "):
        tensors.of_list(data, kind, shape, "t")


@pytest.mark.parametrize("data, kind, shape", [
    (b"\0" * 7, FP32, (2,)), (b"\0" * 9, FP32, (2,)), (b"\2", BOOL, (1,)), (b"", FP32, ()),
    (b"\1\0\0", tensors.BYTES, (1,)), (struct.pack("<I", 5) + b"abc", tensors.BYTES, (1,)),
    (struct.pack("<I", 1) + b"\xff", tensors.BYTES, (1,)), (b"\0" * 8, tensors.BYTES, (1,)),
    (struct.pack("<I", 2**32 - 1), tensors.BYTES, (1,))])
def test_bytes_that_are_no_such_tensor(data: bytes, kind: tensors.Datatype, shape: tuple[int, ...]) -> None:
    with pytest.raises(Refusal, match="^t: "):
        tensors.of_bytes(data, kind, shape, "t")


@pytest.mark.parametrize("shape", [None, 3, "12", [-1], [1.0], [True], [2**62], [None], [1] * 65, [[1]]])
def test_shapes_that_are_none(shape: Any) -> None:
    with pytest.raises(Refusal, match="^t: "):
        tensors.shape_of(shape, "t")


@pytest.mark.parametrize("kind", tensors.DATATYPES.values(), ids=lambda kind: kind.name)
def test_bytes_and_lists_go_there_and_back(kind: tensors.Datatype) -> None:
    rng = np.random.default_rng(5)
    for shape in ((), (0,), (3,), (2, 0, 3), (2, 3, 4)):
        if kind is tensors.BYTES:
            array = np.empty(shape, object)
            array[...] = "süß"
        else:
            array = rng.integers(0, 2, shape).astype(kind.dtype)
        for given in (array, array.T):
            back = tensors.of_bytes(tensors.to_bytes(given), kind, given.shape, "t")
            np.testing.assert_array_equal(back, given)
            assert back.dtype == kind.dtype
            back = tensors.of_list(list(tensors.for_json(given)), kind, given.shape, "t")
            np.testing.assert_array_equal(back, given)


@needs("server libraries")
@pytest.mark.parametrize("finite", [True, False])
@pytest.mark.parametrize("kind", tensors.DATATYPES.values(), ids=lambda kind: kind.name)
def test_json_is_exact(kind: tensors.Datatype, finite: bool) -> None:
    """Bits of every type, and what JSON's grammar has no numbers or texts for."""
    from orthrus.serving.protocols.asked import parsed, text_of

    rng = np.random.default_rng(6)
    if kind is tensors.BYTES:
        array = np.array(["süß", "\0\n\"\\", "", "\U0001f600", "a" if finite else "\ud800"], object)
    else:
        array = rng.integers(0, 256, 4096 * kind.dtype.itemsize, np.uint8).view(kind.dtype)
        if kind.name == "BOOL":
            array = rng.integers(0, 2, 4096).astype(bool)
        elif kind.dtype.kind in "fV" and finite:
            array = array[np.isfinite(array.astype(np.float64))]
    for given in (array, array[::-3], array[:0], array[:12 * (len(array) // 12)].reshape(3, -1).T):
        wide = tensors.for_json(given)
        told = text_of({"data": wide, "shape": given.shape}, finite)
        if finite:
            assert b"NaN" not in told and b"null" not in told
        back = parsed(told, 1 << 30)
        found = tensors.of_list(back["data"], kind, tuple(back["shape"]), "t")
        assert found.dtype == kind.dtype
        if kind.name == "BF16":
            found, given = found.astype(np.float32), given.astype(np.float32)
        np.testing.assert_array_equal(found, given)


@needs("server libraries")
def test_json_that_is_none() -> None:
    from orthrus.serving.protocols.asked import parsed

    for text in (b"", b"[1", b"{\"a\": 01}", b"\xff", b"[" * 100_000, b"{\"a\":" * 100_000, b"3", b"{}]"):
        with pytest.raises(Refusal):
            parsed(text, 1 << 30)
    assert parsed(b'{"a": [NaN, -Infinity, 1e999, "\\ud800"]}', 1 << 30)["a"][1:] == [
        -np.inf, np.inf, "\ud800"]
