"""`torch.compile(backend="orthrus")`: the same results as in eager mode, whatever is cut, shared, written or
changed, and a reason for whatever runs in eager mode."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from skips import lacking, needs

from orthrus import errors

pytestmark = needs("torch")
if lacking("torch") is None:
    import torch
    from torch import nn
    from torch_modules import MODULES, TRANSFORMERS, module

    import orthrus.torch as it
else:
    MODULES = {}


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """No graphs compiled before, no gradients."""
    torch._dynamo.reset()
    it.reset()
    with torch._dynamo.config.patch(allow_rnn=True), torch.no_grad():
        yield


def compiled(net: Any, **rest: Any) -> Any:
    return torch.compile(net, backend="orthrus", **rest)


def close(found: Any, expected: Any) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def reasons() -> str:
    return "\n".join(map(str, it.report().fallbacks))


@pytest.mark.parametrize("name", [pytest.param(name, marks=[needs("transformers")] * (name in TRANSFORMERS))
                                  for name in MODULES])
def test_modules_give_what_they_give_in_torch(name: str) -> None:
    net, args, kwargs = module(name)
    fast = compiled(net)
    for _ in range(2):
        found, expected = fast(*args, **kwargs), net(*args, **kwargs)
        assert type(found) is type(expected)
        close(found, expected)
    assert len(it.report()) == (3 if name == "branching" else 1) and not reasons()
    assert all(len(graph.sessions) == 1 for graph in it.report())


def test_sizes_may_change() -> None:
    net = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Flatten(0)).eval()
    fast = compiled(net)
    for rows in (4, 6, 9, 1, 0, 6):
        x = torch.randn(rows, 8)
        close(fast(x), net(x))
    assert not reasons() and len(it.report()) <= 4
    torch._dynamo.reset()
    fast = compiled(lambda x, k: (x.view(x.shape[0] * 2, -1) * k, x.shape[0] + 1), dynamic=True)
    for rows, k in ((4, 3), (6, 5), (7, 0.5), (7, 0.25)):
        found, size = fast(x := torch.randn(rows, 8), k)
        close(found, x.view(rows * 2, -1) * k)
        assert size == rows + 1
    assert not reasons()


def test_results_share_memory_as_in_torch() -> None:
    def shared(x: Any, y: Any) -> Any:
        z = x @ y
        left, right = z.chunk(2, -1)
        return z, z.view(-1), left, right.transpose(0, 1), x.view(-1), y, y[1:], (x + y).T, x.shape[0]

    x, y = torch.randn(4, 4), torch.randn(4, 4)
    found, expected = compiled(shared)(x, y), shared(x, y)
    close(found, expected)
    for row in (found, expected):
        for i in (0, 3, 4, 6):
            row[i].mul_(i + 2)
            x.add_(1)
    x.sub_(8)
    kept = shared(x, y)
    close(compiled(shared)(x, y), kept)
    assert found[5] is y and found[4].data_ptr() == x.data_ptr()
    assert found[1].data_ptr() == found[0].data_ptr() == found[2].data_ptr() != found[7].data_ptr()
    assert not reasons()


CHANGES: dict[str, Callable[[Any], Any]] = {
    "in place": lambda net: net.weight.mul_(2),
    "through .data": lambda net: net.weight.data.mul_(2),
    "other memory": lambda net: setattr(net.weight, "data", net.weight.data * 3),
    "another parameter": lambda net: setattr(net, "weight", nn.Parameter(net.weight * 3)),
    "loaded": lambda net: net.load_state_dict({name: value + 1 for name, value in net.state_dict().items()}),
    "by numpy": lambda net: net.bias.numpy(force=True).fill(5),
    "through the optimizer": lambda net: stepped(net),
}


def stepped(net: Any) -> None:
    with torch.enable_grad():
        net(torch.ones(1, 8)).sum().backward()
    torch.optim.SGD(net.parameters(), 0.1).step()


@pytest.mark.parametrize("change", CHANGES)
def test_changed_parameters_are_seen(change: str) -> None:
    net, x = nn.Linear(8, 8), torch.randn(2, 8)
    fast = compiled(net)
    for _ in range(3):
        close(fast(x), net(x))
        close(fast(x), net(x))
        CHANGES[change](net)
    close(fast(x), net(x))
    assert not reasons()


def test_parameters_that_always_change_are_left_to_torch() -> None:
    net, x = nn.Linear(8, 8), torch.randn(2, 8)
    fast = compiled(net)
    for _ in range(8):
        close(fast(x), net(x))
        net.weight.add_(1)
    assert "change between calls" in reasons()


def test_modules_of_one_class_share_a_graph() -> None:
    layers = [nn.Linear(8, 8) for _ in range(3)]
    for layer in layers:
        layer.compile(backend="orthrus")
    x = torch.randn(2, 8)
    for _ in range(2):
        for layer in layers:
            close(layer(x), x @ layer.weight.T + layer.bias)
    assert not reasons()


def test_parameters_that_are_gone_are_let_go() -> None:
    fast, x = compiled(nn.Linear.forward), torch.ones(2, 8)
    for _ in range(2):
        net = nn.Linear(8, 8)
        before = weakref.ref(net.weight)
        close(fast(net, x), net(x))
        assert sum(len(graph.sessions) for graph in it.report()) == 1
        del net
        gc.collect()
        assert before() is None and not reasons()
        assert not any(graph.sessions for graph in it.report())


def test_memory_that_is_not_contiguous_is_not_shared() -> None:
    def skewed(x: Any) -> Any:
        y = torch.relu(x.to(memory_format=torch.channels_last))
        return y, y.permute(0, 2, 3, 1).view(-1)

    x = torch.randn(2, 3, 4, 5)
    found, expected = compiled(skewed)(x), skewed(x)
    close(found, expected)
    found[0].zero_()
    assert not found[1].any() and "contiguous" in reasons()


def test_what_is_left_to_torch_has_a_reason() -> None:
    x = torch.randn(4, 4)
    written = x.clone()

    def writes(x: Any) -> Any:
        x.mul_(2)
        return x + 1

    close(compiled(writes)(written), x * 2 + 1)
    close(written, x * 2)
    assert "writes to its input" in reasons()
    it.reset()
    torch.manual_seed(1)
    found = compiled(lambda x: x + torch.rand(4))(x)
    torch.manual_seed(1)
    close(found, x + torch.rand(4))
    assert "random" in reasons()
    it.reset()
    compiled(nn.Dropout().train())(x)
    assert "Dropout" in reasons() or "random" in reasons()
    it.reset()
    close(compiled(lambda x: torch.linalg.eigvalsh(x @ x.T))(x), torch.linalg.eigvalsh(x @ x.T))
    (fallback,) = it.report().fallbacks
    assert fallback.operator and "eigvalsh" in fallback.operator.replace("linalg_eigh", "eigvalsh")
    it.reset()
    close(compiled(lambda x: torch.complex(x, x))(x), torch.complex(x, x))
    assert "complex" in reasons()
    it.reset()
    net = nn.Linear(4, 4)
    with torch.enable_grad():
        compiled(net)(x).sum().backward()
    assert net.weight.grad is not None and "gradients" in reasons()
    it.reset()
    with torch.inference_mode():
        inner = nn.Linear(4, 4)
        close(compiled(inner)(x), inner(x))
    assert "inference mode" in reasons()
    assert "eager" in str(it.report()) and not it.report().graphs[0].sessions
    with pytest.raises(errors.Fail, match="no session"):
        it.report().graphs[0].explain()


def test_options_reach_the_session() -> None:
    options = __import__("orthrus").SessionOptions()
    options.logid = "mine"
    fast = compiled(nn.Linear(4, 4), options={"sess_options": options, "providers": ["CPUExecutionProvider"]})
    fast(torch.ones(1, 4))
    (graph,) = it.report()
    assert graph.sessions[0].get_session_options().logid == "mine"
    assert "CPUExecutionProvider" in str(graph.explain())
    with pytest.raises(Exception, match="does not know"):
        compiled(nn.Linear(3, 3), options={"thread": 3})(torch.ones(1, 3))


def test_modes_and_types_of_inputs() -> None:
    net = nn.Linear(8, 8)
    fast, x = compiled(net), torch.randn(8, 6)
    with torch.inference_mode():
        close(fast(x.T), net(x.T))
    close(fast(x.T[::2]), net(x.T[::2]))
    half = nn.Linear(8, 8).bfloat16()
    torch.testing.assert_close(compiled(half)(x.T.bfloat16()), half(x.T.bfloat16()), rtol=2e-2, atol=2e-2)
    fast = compiled(lambda flags, index, table: (table[index] * flags, flags.logical_not()))
    flags, index, table = torch.tensor([True, False]), torch.tensor([2, 0]), torch.randn(3, 2)
    close(fast(flags, index, table), (table[index] * flags, ~flags))
    assert not reasons()
