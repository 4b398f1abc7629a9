"""`from_torch`: what it gives is what the module gives, over the same memory, for every kind of argument and
result; and what it cannot do, it says."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from skips import lacking, needs

import orthrus
from orthrus import errors

pytestmark = needs("torch")
if lacking("torch") is None:
    import torch
    from torch import nn
    from torch_modules import MODULES, TRANSFORMERS, module

    from orthrus.torch.tensors import array_of, tensor_of

    class Many(nn.Module):
        """Results of every kind: tensors, one twice, an argument, numbers, None, a constant, a size."""

        def __init__(self) -> None:
            super().__init__()
            self.linear, self.norm = nn.Linear(8, 8), nn.BatchNorm1d(8)
            self.register_buffer("kept", torch.arange(3))
            self.register_buffer("passing", torch.full((8,), 0.5), persistent=False)

        def forward(self, x: Any, y: Any = None, *, scale: float = 2.0) -> dict[str, Any]:
            z = self.norm(self.linear(x)) + self.passing
            z = z if y is None else z * y
            return {"z": z * scale, "twice": (z, z), "x": x, "none": None, "k": 3, "text": "a",
                    "kept": self.kept, "size": x.shape[0], "positive": z > 0, "half": z.half(),
                    "sum": z.sum(), "list": [z.T]}
else:
    MODULES = {}

EXPORTERS = ("dynamo", "script")


def made(net: Any, *inputs: Any, **rest: Any) -> Any:
    return orthrus.from_torch(net, inputs, **rest)


def equal(found: Any, expected: Any, **tolerance: float) -> None:
    """The same structure, types, shapes and values."""
    from torch.utils import _pytree as pytree

    (leaves, structure), (wanted, other) = pytree.tree_flatten(found), pytree.tree_flatten(expected)
    assert structure == other and type(found) is type(expected)
    for leaf, want in zip(leaves, wanted, strict=True):
        if isinstance(want, torch.Tensor):
            torch.testing.assert_close(leaf, want, equal_nan=True, **tolerance)
        else:
            assert type(leaf) is type(want) and leaf == want


@pytest.mark.parametrize("name", [pytest.param(name, marks=[needs("transformers")] * (name in TRANSFORMERS))
                                  for name in MODULES if name != "branching"])
def test_modules_give_what_they_give_in_torch(name: str) -> None:
    net, args, kwargs = module(name)
    fast = orthrus.from_torch(net, args, kwargs)
    assert not fast.fallbacks
    with torch.no_grad():
        for _ in range(2):
            equal(fast(*args, **kwargs), net(*args, **kwargs), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("exporter", EXPORTERS)
def test_results_have_the_modules_structure_at_every_size(exporter: str) -> None:
    net, y = Many(), torch.rand(8)
    net.norm.running_mean.fill_(0.25)
    fast = made(net, torch.randn(4, 8), example_kwargs={"y": y}, exporter=exporter,
                dynamic_shapes={"x": {0: "rows"}, "y": None})
    assert net.training and net.norm.training
    net.eval()
    for x in (torch.randn(4, 8), torch.randn(6, 8), torch.randn(8, 5).T, torch.randn(3, 16)[:, ::2],
              torch.empty(0, 8)):
        with torch.no_grad():
            expected = net(x, y=y)
        for found in (fast(x, y=y), fast(x, y), fast(y=y, x=x)):
            equal(found, expected, rtol=1e-5, atol=1e-6)
    with torch.inference_mode():
        equal(fast(x, y), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("exporter", EXPORTERS)
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16", "int8", "int16", "int32",
                                   "int64", "uint8", "bool"])
def test_types_pass_over_the_same_memory(dtype: str, exporter: str) -> None:
    class Turned(nn.Module):
        def forward(self, x: Any) -> Any:
            return x.flip(0), x[0, 0], x

    kind = getattr(torch, dtype)
    x = torch.tensor([[0, 1, 1], [1, 0, 1]]).to(kind)
    fast = made(Turned(), x, exporter=exporter, dynamic_shapes=({0: "n"},))
    equal(fast(x), Turned()(x))
    results = fast(x)
    before = [result.clone() for result in results]
    for result in (x, *results):
        result.zero_()
    equal(fast(torch.stack([before[2][1], before[2][0]])), (before[2], before[2][1, 0], before[0]))


def test_tensors_and_arrays_share_memory() -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.float8_e5m2, torch.bool, torch.complex64):
        tensor = torch.zeros(3, 4).to(dtype)
        array = array_of(tensor)
        back = tensor_of(array)
        assert array.ctypes.data == tensor.data_ptr() == back.data_ptr() and back.dtype == dtype
    assert array_of(torch.zeros(2, 6)[:, ::2]).flags.c_contiguous
    assert array_of(torch.tensor(1 + 2j).conj()) == np.complex64(1 - 2j)


def test_results_are_the_callers_own() -> None:
    class Constant(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3, 3))

        def forward(self, x: Any) -> Any:
            return x, self.weight, x.view(-1)

    net, x = Constant(), torch.randn(2, 2)
    fast, kept = made(net, x), x.clone()
    for _ in range(3):
        results = fast(x)
        for result in results:
            assert not result.requires_grad
            result.fill_(7)
    assert torch.equal(x, kept) and torch.equal(net.weight, torch.ones(3, 3))
    equal(fast(x), (kept, torch.ones(3, 3), kept.view(-1)))


def test_weights_are_torchs_memory(tmp_path: Path) -> None:
    net = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64))
    for exporter in EXPORTERS:
        fast = made(net, torch.randn(1, 64), exporter=exporter)
        exported = fast._exported
        assert {array.ctypes.data for array in exported.weights.values()} >= {net[0].weight.data_ptr(),
                                                                              net[2].weight.data_ptr()}
        assert len(exported.model.SerializeToString()) < 1 << 14
        fast.save(tmp_path / "saved.onnx")
        x = torch.randn(1, 64)
        read = orthrus.InferenceSession(tmp_path / "saved.onnx")
        (found,) = read.run(None, {exported.inputs[0]: x.numpy()})
        np.testing.assert_allclose(found, fast(x).numpy(), rtol=1e-5, atol=1e-6)


REFUSED = {
    "another structure": lambda fast, x, y: fast(x),
    "more": lambda fast, x, y: fast(x, y, scale=3.0),
    "a gradient": lambda fast, x, y: fast(x.requires_grad_(), y),
    "another size": lambda fast, x, y: fast(x[:, :4], y),
    "another type": lambda fast, x, y: fast(x.double(), y),
    "no tensor": lambda fast, x, y: fast(x.numpy(), y),
    "sparse": lambda fast, x, y: fast(x, y.to_sparse()),
    "elsewhere": lambda fast, x, y: fast(x.to("meta"), y),
}


def test_what_does_not_fit_is_refused() -> None:
    x, y = torch.randn(4, 8), torch.rand(8)
    fast = made(Many(), x, y)
    for name, call in REFUSED.items():
        with pytest.raises(errors.InvalidArgument) as caught:
            call(fast, x, y)
        assert caught.value.cure and (caught.value.found or name == "more"), name
        x = x.detach()
    with torch.no_grad():
        fast(x.requires_grad_(), y)
    with pytest.raises(errors.InvalidArgument, match="compiled in"):
        made(Many(), x.detach(), y, example_kwargs={"scale": 2.0})(x.detach(), y, scale=3.0)
    with pytest.raises(errors.NotImplemented):
        pickle.dumps(fast)
    with pytest.raises(errors.InvalidArgument, match="torch.nn.Module"):
        orthrus.from_torch(lambda x: x, x)
    with pytest.raises(errors.InvalidArgument, match="exporter"):
        made(Many(), x, exporter="other")
    with pytest.raises(errors.InvalidArgument, match="example_inputs"):
        orthrus.from_torch(Many(), 3)


def test_what_an_exporter_cannot_do_is_kept() -> None:
    class Scripted(nn.Module):
        """Three dimensions of attention are more than torch's new exporter takes."""

        def forward(self, x: Any) -> Any:
            return nn.functional.scaled_dot_product_attention(x, x, x)

    x = torch.randn(2, 4, 8)
    fast = made(Scripted(), x)
    assert [fallback.what for fallback in fast.fallbacks] == ["the dynamo exporter"]
    assert "4D" in fast.fallbacks[0].why
    equal(fast(x), Scripted()(x), rtol=1e-5, atol=1e-6)
    net, args, kwargs = module("branching")
    with pytest.raises(errors.Fail, match="cannot be exported") as caught:
        orthrus.from_torch(net, args, kwargs)
    assert "dynamo exporter" in caught.value.found and "TracerWarning" in caught.value.found


def test_a_module_that_writes_is_refused() -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros(1))

        def forward(self, x: Any) -> Any:
            self.count += 1
            return x * self.count

    with pytest.raises(errors.InvalidArgument, match="writes to count"):
        made(Counting(), torch.ones(2))


def test_complex_tensors_stay_inside() -> None:
    class Spectrum(nn.Module):
        def __init__(self, inside: bool) -> None:
            super().__init__()
            self.inside = inside

        def forward(self, x: Any) -> Any:
            spectrum = torch.fft.fft(x)
            return spectrum.abs() if self.inside else spectrum

    x = torch.randn(2, 8)
    equal(made(Spectrum(True), x)(x), Spectrum(True)(x), rtol=1e-4, atol=1e-5)
    with pytest.raises(errors.InvalidArgument, match="complex"):
        made(Spectrum(False), x)


def test_options_reach_the_session() -> None:
    options = orthrus.SessionOptions()
    options.intra_op_num_threads, options.logid = 1, "mine"
    net = nn.Linear(4, 4)
    fast = made(net, torch.ones(1, 4), sess_options=options, providers=["CPUExecutionProvider"])
    assert fast.session.get_session_options().logid == "mine" and not options._initializers
    assert "MatMul" in str(fast.explain()) or "Gemm" in str(fast.explain())
    threads = made(net, torch.ones(1, 4)).session.get_session_options().intra_op_num_threads
    assert threads == torch.get_num_threads()


@pytest.mark.parametrize("dynamo", [True, False], ids=EXPORTERS)
def test_the_models_of_guides_run(tmp_path: Path, dynamo: bool) -> None:
    class SimpleModel(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 64, kernel_size=3, padding=1)
            self.relu, self.pool = nn.ReLU(), nn.MaxPool2d(2)

        def forward(self, x: Any) -> Any:
            return self.pool(self.relu(self.conv(x)))

    net, example = SimpleModel().eval(), torch.randn(1, 3, 224, 224)
    path = str(tmp_path / "simple_model.onnx")
    torch.onnx.export(net, example, path, export_params=True, opset_version=13, do_constant_folding=True,
                      input_names=["input"], output_names=["output"], dynamo=dynamo,
                      dynamic_axes={"input": {0: "batch_size"}, "output": {0: "batch_size"}})
    with pytest.warns(UserWarning, match="ROCMExecutionProvider"):
        session = orthrus.InferenceSession(path, providers=["ROCMExecutionProvider", "CPUExecutionProvider"])
    x = torch.randn(2, 3, 224, 224)
    (found,) = session.run(["output"], {session.get_inputs()[0].name: x.numpy()})
    np.testing.assert_allclose(found, net(x).detach().numpy(), rtol=1e-4, atol=1e-5)
