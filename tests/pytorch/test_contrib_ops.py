"""`pytorch_export_contrib_ops`: the old exporter writes operators of com.microsoft, which give torch's
results, and afterwards writes again what it wrote before."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import pytest
from skips import lacking, needs

import orthrus

pytestmark = needs("torch")
if lacking("torch") is None:
    import torch
    from torch.nn import functional as F

    from orthrus.tools import pytorch_export_contrib_ops as contrib

    class Function(torch.nn.Module):
        def __init__(self, function: Any) -> None:
            super().__init__()
            self.function = function

        def forward(self, *arguments: torch.Tensor) -> torch.Tensor:
            return self.function(*arguments)

MODES = [(mode, padding, corners) for mode in ("bilinear", "nearest", "bicubic")
         for padding in ("zeros", "border", "reflection") for corners in (False, True)]


@pytest.fixture
def registered() -> Iterator[None]:
    torch.manual_seed(0)
    contrib.register()
    yield
    contrib.unregister()


def exported(function: Any, *arguments: Any, opset: int) -> onnx.ModelProto:
    written = io.BytesIO()
    torch.onnx.export(Function(function), arguments, written, opset_version=opset, dynamo=False)
    return onnx.load_from_string(written.getvalue())


def operators(model: onnx.ModelProto) -> set[tuple[str, str]]:
    return {(node.domain, node.op_type) for node in model.graph.node}


def check(operator: str, function: Any, *arguments: Any, opset: int) -> onnx.ModelProto:
    """Export, and compare with torch; `operator` of com.microsoft has to be in it."""
    model = exported(function, *arguments, opset=opset)
    assert ("com.microsoft", operator) in operators(model)
    session = orthrus.InferenceSession(model)
    names = [arg.name for arg in session.get_inputs()]
    [found] = session.run(None, {name: x.numpy() for name, x in zip(names, arguments, strict=True)})
    expected = function(*arguments).numpy()
    assert found.dtype == expected.dtype
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    return model


@pytest.mark.parametrize("opset", [9, 17, 20])
def test_gelu_and_inverse_at_every_opset(registered: None, opset: int) -> None:
    x = torch.randn(4, 4) + 3 * torch.eye(4)
    shaped = [check("Gelu", F.gelu, x, opset=opset), check("Inverse", torch.inverse, x, opset=opset),
              check("Inverse", torch.linalg.inv, x, opset=opset)]
    for model in shaped:
        assert [d.dim_value for d in model.graph.output[0].type.tensor_type.shape.dim] == [4, 4]
    smooth = exported(lambda x: F.gelu(x, approximate="tanh"), x, opset=opset)
    assert {domain for domain, _ in operators(smooth)} == {""}


@pytest.mark.parametrize("diagonal", [-1, 0, 2])
def test_triangles_before_the_standard_has_them(registered: None, diagonal: int) -> None:
    x = torch.randn(3, 5)
    for function in (torch.tril, torch.triu):
        check("Trilu", lambda x, f=function: f(x, diagonal), x, opset=9)
        model = exported(lambda x, f=function: f(x, diagonal), x, opset=14)
        assert ("", "Trilu") in operators(model)


@pytest.mark.parametrize("mode, padding, corners", MODES)
def test_grids_before_the_standard_has_them(registered: None, mode: str, padding: str, corners: bool) -> None:
    x, grid = torch.randn(2, 3, 5, 4), torch.rand(2, 3, 6, 2) * 2.4 - 1.2
    check("GridSample", lambda x, g: F.grid_sample(x, g, mode, padding, corners), x, grid, opset=15)


@pytest.fixture(scope="module")
def functions() -> Iterator[Any]:
    """The functions of onnxruntime's domain as its users make them known to torch."""
    library = torch.library.Library("onnxruntime", "DEF")
    library.define("UnfoldTensor(Tensor self, int dim, int size, int step) -> Tensor")
    library.define("DynamicTimeWarping(Tensor self) -> Tensor")
    library.impl("UnfoldTensor", lambda x, dim, size, step: x.unfold(dim, size, step).clone(),
                 "CompositeExplicitAutograd")
    diagonal = torch.arange(3, dtype=torch.int32).repeat(2, 1)
    library.impl("DynamicTimeWarping", lambda x: diagonal.clone(), "CompositeExplicitAutograd")
    yield torch.ops.onnxruntime
    library._destroy()


@pytest.mark.parametrize("dim, size, step", [(1, 2, 1), (-1, 3, 2), (0, 1, 4)])
def test_unfolded(registered: None, functions: Any, dim: int, size: int, step: int) -> None:
    x = torch.randn(5, 7)
    model = check("UnfoldTensor", lambda x: functions.UnfoldTensor(x, dim, size, step), x, opset=17)
    shape = [d.dim_value for d in model.graph.output[0].type.tensor_type.shape.dim]
    assert shape == list(x.unfold(dim, size, step).shape)


def test_time_is_warped(registered: None, functions: Any) -> None:
    check("DynamicTimeWarping", functions.DynamicTimeWarping, 1 - torch.eye(3), opset=17)


def test_afterwards_the_exporter_is_as_before(recwarn: pytest.WarningsRecorder) -> None:
    x = torch.randn(3, 3)
    before = exported(F.gelu, x, opset=20)
    contrib.register()
    contrib.register()
    assert operators(exported(F.gelu, x, opset=20)) != operators(before)
    contrib.unregister()
    contrib.unregister()
    assert operators(exported(F.gelu, x, opset=20)) == operators(before)
    assert not [w for w in recwarn if "No custom function registered" in str(w.message)]
