"""What a signal's handler raises, as a time limit does, reaches whoever made or ran the session, as it is."""

import functools
import inspect
import signal
import sys

import numpy as np
import pytest
from onnx import helper, numpy_helper
from skips import needs

import orthrus as ort
from orthrus import errors

pytestmark = needs("POSIX")


class TimeIsOver(Exception):
    pass


def _model():
    rng = np.random.default_rng(0)
    weights = {"w": rng.standard_normal((4, 3, 3, 3)).astype("float32"),
               "m": rng.standard_normal((4, 5)).astype("float32"), "k": np.array([2])}
    nodes = [helper.make_node("Conv", ["x", "w"], ["c"]), helper.make_node("Relu", ["c"], ["r"]),
             helper.make_node("GlobalAveragePool", ["r"], ["g"]), helper.make_node("Flatten", ["g"], ["f"]),
             helper.make_node("MatMul", ["f", "m"], ["y"]), helper.make_node("TopK", ["y", "k"], ["v", "i"])]
    return helper.make_model(
        helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", 1, [1, 3, "h", "w"])],
                          [helper.make_tensor_value_info("v", 1, None)],
                          [numpy_helper.from_array(value, name) for name, value in weights.items()]),
        opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()


def _used(model, size):
    session = ort.InferenceSession(model)
    session.run(None, {"x": np.ones((1, 3, size, 9), "float32")})


class _Limit:
    """Sends the signal at the so manieth call of a function. Generators are left out: what is raised in one
    that is closed because nobody has it any more reaches nobody, by Python's own rule."""

    def __init__(self, at):
        self.at, self.seen = at, 0

    def __call__(self, frame, event, _):
        if event == "call" and not frame.f_code.co_flags & inspect.CO_GENERATOR and (
                "orthrus" in frame.f_code.co_filename and frame.f_code.co_name != "__del__"):
            self.seen += 1
            if self.seen == self.at:
                signal.raise_signal(signal.SIGUSR1)

    def __enter__(self):
        sys.setprofile(self)
        return self

    def __exit__(self, *_):
        sys.setprofile(None)


@pytest.fixture
def over(monkeypatch):
    def handler(*_):
        sys.setprofile(None)
        raise TimeIsOver("the time is over")
    before = signal.signal(signal.SIGUSR1, handler)
    yield
    signal.signal(signal.SIGUSR1, before)


def test_wherever_it_strikes(over):
    model = _model()
    for size in (6, 7, 8):
        with _Limit(0) as counted:
            _used(model, size)
    for point in range(1, 50):
        with pytest.raises(TimeIsOver), _Limit(point * counted.seen // 60):
            _used(model, 8 + point)
    _used(model, 8)


def _let_through(handler):
    before = signal.signal(signal.SIGUSR1, handler)
    try:
        signal.raise_signal(signal.SIGUSR1)
    except TimeIsOver as error:
        errors.pass_on(error)
    finally:
        signal.signal(signal.SIGUSR1, before)


class _Watch:
    def __call__(self, *_):
        self.strike()

    def strike(self, *_):
        raise TimeIsOver


@pytest.mark.parametrize("handler", [_Watch(), _Watch().strike, functools.partial(_Watch.strike, None)])
def test_handlers_of_each_kind(handler):
    with pytest.raises(TimeIsOver) as raised:
        _let_through(handler)
    assert errors.pass_on(raised.value) is None  # the handler is not installed any more
