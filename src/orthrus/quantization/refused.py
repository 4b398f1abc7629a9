"""The errors of quantization: orthrus.errors' classes that are also the built-in ones which onnxruntime's
tools raise, so that code which catches either goes on working."""

from __future__ import annotations

from ..errors import Fail, InvalidArgument


class InvalidValue(InvalidArgument, ValueError):
    """A parameter, an override or a tensor's value cannot be quantized."""


class InvalidType(InvalidArgument, TypeError):
    """A parameter has the wrong type."""


class Unsupported(InvalidArgument, NotImplementedError):
    """A combination of parameters that no operator computes."""


class Failed(Fail, RuntimeError):
    """Quantizing came to a state from which it cannot go on."""
