"""Every exception Orthrus raises for a model or a feed, with onnxruntime's name and number for each.

The classes carry onnxruntime's names and, like there, derive from `Exception` directly, with no class
between. A message opens with onnxruntime's text, so that code which greps it keeps working, and goes on with
what onnxruntime leaves out: the node, what was found, what was expected, and the cure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import CodeType


def _init(self: Any, text: str = "", *, node: object = None, found: object = None, expected: object = None,
          cure: str | None = None) -> None:
    """`text` is onnxruntime's message; the other four follow it, a line each, where they are given."""
    rows = {"node": node, "found": found, "expected": expected, "cure": cure}
    self.text = text
    self.node, self.found, self.expected, self.cure = (None if v is None else str(v) for v in rows.values())
    tail = "".join(f"\n  {name}: {value}" for name, value in rows.items() if value is not None)
    Exception.__init__(self, f"[ONNXRuntimeError] : {self.code} : {self.status} : {text}{tail}")


def _reduce(self: Any) -> tuple[Any, ...]:
    return _rebuild, (type(self), self.text, self.node, self.found, self.expected, self.cure)


def _rebuild(kind: Any, text: str, node: Any, found: Any, expected: Any, cure: Any) -> Exception:
    return kind(text, node=node, found=found, expected=expected, cure=cure)


class Fail(Exception):
    """A step failed, or the model breaks a rule of the format."""
    code, status = 1, "FAIL"
    __init__, __reduce__ = _init, _reduce


class InvalidArgument(Exception):
    """A feed, an option or a value does not fit what was declared."""
    code, status = 2, "INVALID_ARGUMENT"
    __init__, __reduce__ = _init, _reduce


class NoSuchFile(Exception):
    """The model file is not there."""
    code, status = 3, "NO_SUCHFILE"
    __init__, __reduce__ = _init, _reduce


class NoModel(Exception):
    """No model was loaded."""
    code, status = 4, "NO_MODEL"
    __init__, __reduce__ = _init, _reduce


class EngineError(Exception):
    """A provider's engine failed."""
    code, status = 5, "ENGINE_ERROR"
    __init__, __reduce__ = _init, _reduce


class RuntimeException(Exception):
    """Something failed while running, and not through the feed."""
    code, status = 6, "RUNTIME_EXCEPTION"
    __init__, __reduce__ = _init, _reduce


class InvalidProtobuf(Exception):
    """The bytes are no ONNX protobuf."""
    code, status = 7, "INVALID_PROTOBUF"
    __init__, __reduce__ = _init, _reduce


class ModelLoaded(Exception):
    """The session already holds a model."""
    code, status = 8, "MODEL_LOADED"
    __init__, __reduce__ = _init, _reduce


class NotImplemented(Exception):
    """No provider of the session has a kernel for a node."""
    code, status = 9, "NOT_IMPLEMENTED"
    __init__, __reduce__ = _init, _reduce


class InvalidGraph(Exception):
    """A node contradicts its operator's schema."""
    code, status = 10, "INVALID_GRAPH"
    __init__, __reduce__ = _init, _reduce


class EPFail(Exception):
    """An execution provider failed; a session may fall back and run again."""
    code, status = 11, "EP_FAIL"
    __init__, __reduce__ = _init, _reduce


class ModelLoadCanceled(Exception):
    """Loading was cancelled by the session options' flag."""
    code, status = 12, "MODEL_LOAD_CANCELED"
    __init__, __reduce__ = _init, _reduce


class ModelRequiresCompilation(Exception):
    """Compiling is switched off and a provider needs it."""
    code, status = 13, "MODEL_REQUIRES_COMPILATION"
    __init__, __reduce__ = _init, _reduce


class NotFound(Exception):
    """A named thing is not registered."""
    code, status = 14, "NOT_FOUND"
    __init__, __reduce__ = _init, _reduce


class DeviceReset(Exception):
    """The device was lost and has to be set up again."""
    code, status = 15, "DEVICE_RESET"
    __init__, __reduce__ = _init, _reduce


class Unfit(ValueError):
    """Inputs of a node whose shapes do not go together: InvalidArgument where the node runs, as onnxruntime
    has it; an attribute that no input could do with is a plain ValueError, and Fail."""


def pass_on(error: Exception) -> None:
    """Raise `error` once more where a signal's handler raised it, as a time limit by SIGALRM does: it is for
    whoever installed the handler, and no fault of what was at work."""
    import signal  # here, for few need it

    trace = error.__traceback__
    codes = {_code(signal.getsignal(number)) for number in signal.valid_signals()} - {None}
    while trace is not None and codes:
        if trace.tb_frame.f_code in codes:
            raise error
        trace = trace.tb_next


def _code(handler: Any) -> CodeType | None:
    """Of a function, a method, a partial or an object that can be called; None of others."""
    handler = getattr(handler, "func", handler)
    if callable(handler) and not hasattr(handler, "__code__"):
        handler = type(handler).__call__
    return getattr(handler, "__code__", None)


def unforeseen(error: Exception, stage: str) -> Exception:
    """What an exception that nobody meant becomes where it ends the making of a session: Fail. `stage`: which
    one it ended. The node is the one that was being looked at, where there was one. Raises a signal's."""
    pass_on(error)
    if isinstance(error, MemoryError):
        return Fail("there is not enough memory to make the session", node=_looked_at(error))
    text = str(error) or type(error).__name__
    return Fail(f"Exception during initialization: {text}", node=_looked_at(error),
                found=f"{type(error).__name__} in the stage {stage!r}",
                cure="correct what the message names; where nothing is wrong with it, report the model")


def _looked_at(error: Exception) -> object:
    """The node in the innermost frame of the error's traceback that has one."""
    found, trace = None, error.__traceback__
    while trace is not None:
        node = trace.tb_frame.f_locals.get("node")
        found = node if hasattr(node, "op_type") and hasattr(node, "label") else found
        trace = trace.tb_next
    return found


ALL: tuple[type[Exception], ...] = (
    Fail, InvalidArgument, NoSuchFile, NoModel, EngineError,
    RuntimeException, InvalidProtobuf, ModelLoaded, NotImplemented, InvalidGraph,
    EPFail, ModelLoadCanceled, ModelRequiresCompilation, NotFound, DeviceReset)
