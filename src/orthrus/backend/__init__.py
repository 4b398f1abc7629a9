"""onnx's Backend interface, with onnxruntime's names: `prepare` a model, `run` it, ask what is supported."""

from .backend import is_compatible, prepare, run, supports_device

__all__ = ["is_compatible", "prepare", "run", "supports_device"]
