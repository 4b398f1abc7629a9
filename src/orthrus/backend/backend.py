"""Sessions behind onnx's Backend interface, as onnx's own suite of tests and other tools drive them.

In: a model, as a protobuf, bytes or a path, and a device's name. Out: an `OnnxRuntimeBackendRep`, or results.
"""

from __future__ import annotations

import os
from typing import Any
from unittest import SkipTest

from onnx import ModelProto, helper
from onnx.backend.base import Backend
from onnx.checker import check_model

from .. import InferenceSession, OrtHardwareDeviceType, SessionOptions, get_device, get_ep_devices
from .backend_rep import OnnxRuntimeBackendRep

_GPU = ("GPU", "CUDA")


class OnnxRuntimeBackend(Backend):  # type: ignore[misc]
    """onnx's interface on sessions of this package. `allowReleasedOpsetsOnly`: models of versions that onnx
    has not released are skipped; the environment's ALLOW_RELEASED_ONNX_OPSET_ONLY=0 lets them be."""

    allowReleasedOpsetsOnly = os.environ.get("ALLOW_RELEASED_ONNX_OPSET_ONLY", "1") == "1"

    @classmethod
    def is_compatible(cls, model: Any, device: str | None = None, **kwargs: Any) -> bool:
        """Whether a model can be prepared for a device, CPU by default; the model is not looked at."""
        return device is None or cls.supports_device(device)

    @classmethod
    def is_opset_supported(cls, model: ModelProto) -> tuple[bool, str]:
        """Whether onnx has released the versions of the operator sets that a model imports, and if not, which
        it is."""
        for opset in model.opset_import if cls.allowReleasedOpsetsOnly else ():
            domain = opset.domain or "ai.onnx"
            if (domain, opset.version) not in helper.OP_SET_ID_VERSION_MAP:
                return False, ("Skipping this test as only released onnx opsets are supported.To run this "
                               "test set env variable ALLOW_RELEASED_ONNX_OPSET_ONLY to 0. Got Domain "
                               f"'{domain}' version '{opset.version}'.")
        return True, ""

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Whether sessions can run on `CPU`, or `GPU` and `CUDA`. Raises TypeError for no text."""
        if not isinstance(device, str):
            raise TypeError(f"a device is a name such as 'CPU', not {type(device).__name__}")
        return device == "CPU" or (device in _GPU and get_device() == "GPU")

    @classmethod
    def prepare(cls, model: Any, device: str | None = None, **kwargs: Any) -> OnnxRuntimeBackendRep:
        """A model, or a session, ready to be run. `kwargs`: attributes of SessionOptions, and `providers`;
        others are left alone.

        Raises RuntimeError for a device that is not here, SkipTest for an operator set that is not released,
        and what checking a protobuf and making a session raise.
        """
        if isinstance(model, OnnxRuntimeBackendRep):
            return model
        if isinstance(model, InferenceSession):
            return OnnxRuntimeBackendRep(model)
        if not isinstance(model, str | bytes | os.PathLike):
            check_model(model)
            supported, why = cls.is_opset_supported(model)
            if not supported:
                raise SkipTest(why)
        if device is not None and not cls.supports_device(device):
            raise RuntimeError(f"Incompatible device expected '{device}', got '{get_device()}'")
        options = SessionOptions()
        options.add_session_config_entry("session.allow_released_opsets_only",
                                         str(int(cls.allowReleasedOpsetsOnly)))
        for name, value in kwargs.items():
            if hasattr(options, name):
                setattr(options, name, value)
        gpus = [d.ep_name for d in get_ep_devices() if d.device.type is OrtHardwareDeviceType.GPU]
        providers = [*(gpus if device in _GPU else ()), "CPUExecutionProvider"]
        return OnnxRuntimeBackendRep(
            InferenceSession(model, options, providers=kwargs.get("providers", providers)))

    @classmethod
    def run_model(cls, model: Any, inputs: Any, device: str | None = None, **kwargs: Any) -> list[Any]:
        """The results of a model for inputs in their order. Raises as `prepare`, and what a run raises."""
        return cls.prepare(model, device, **kwargs).run(inputs, **kwargs)

    @classmethod
    def run_node(cls, node: Any, inputs: Any, device: str | None = None, outputs_info: Any = None,
                 **kwargs: Any) -> Any:
        """Raises NotImplementedError: a session runs models."""
        raise NotImplementedError("It is much more efficient to run a whole model than every node "
                                  "independently.")


is_compatible = OnnxRuntimeBackend.is_compatible
prepare = OnnxRuntimeBackend.prepare
run = OnnxRuntimeBackend.run_model
supports_device = OnnxRuntimeBackend.supports_device
