"""`SessionOptions` and `RunOptions`: what a session or a run is asked to be, checked when it is set.

Both can be copied and pickled, and take no attribute that is not theirs.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .arguments import Setting, as_bool, as_int, as_str, member, mismatch
from .devices import OrtEpDevice
from .enums import ExecutionMode, ExecutionOrder, GraphOptimizationLevel, OrtExecutionProviderDevicePolicy
from .metadata import OrtEpContextDataBuffer
from .values import CoreValue

if TYPE_CHECKING:
    from .profile import ProfileFile

_LONGEST_KEY = 1024
_INT = "typing.SupportsInt | typing.SupportsIndex"


class _Options:
    """Typed settings and text entries by key."""

    __slots__ = ("_values", "_entries")

    def __init__(self) -> None:
        self._values: dict[str, Any] = {}
        self._entries: dict[str, str] = {}

    def _set_entry(self, function: str, key: str, value: str) -> None:
        if not isinstance(key, str) or not isinstance(value, str):
            raise mismatch(function, f"(self: {type(self).__name__}, arg0: str, arg1: str) -> None", self,
                           key, value)
        if not 0 < len(key) <= _LONGEST_KEY:
            raise RuntimeError(f"Config key is empty or longer than maximum length {_LONGEST_KEY}")
        self._entries[key] = value

    def _get_entry(self, function: str, key: str) -> str:
        if not isinstance(key, str):
            raise mismatch(function, f"(self: {type(self).__name__}, arg0: str) -> str", self, key)
        if key not in self._entries:
            raise RuntimeError(f"{type(self).__name__} does not have configuration with key: {key}")
        return self._entries[key]


class SessionOptions(_Options):
    """How a session is created. A session works on a copy, which `get_session_options` shows."""

    __slots__ = ("_providers", "_policy", "_initializers", "_external", "_files", "_dims_by_name",
                 "_dims_by_denotation", "_cancelled", "_context_reader")

    enable_cpu_mem_arena = Setting("bool", as_bool, True,
                                   "Plan intermediate results into one arena per input shape.")
    enable_mem_pattern = Setting("bool", as_bool, True, "Keep a memory plan per input shape.")
    enable_mem_reuse = Setting("bool", as_bool, True,
                               "Let results share memory where their lifetimes do not overlap.")
    enable_profiling = Setting("bool", as_bool, False, "Write a profile; see `profile_file_prefix`.")
    execution_mode = Setting("ExecutionMode", member(ExecutionMode), ExecutionMode.ORT_SEQUENTIAL,
                             "Whether independent nodes may run at the same time.")
    execution_order = Setting("ExecutionOrder", member(ExecutionOrder), ExecutionOrder.DEFAULT,
                              "The order of nodes; every order gives the same results.")
    graph_optimization_level = Setting("GraphOptimizationLevel", member(GraphOptimizationLevel),
                                       GraphOptimizationLevel.ORT_ENABLE_ALL,
                                       "How far the graph is optimized.")
    inter_op_num_threads = Setting(_INT, as_int, 0,
                                   "Threads across nodes, in parallel mode; 0: as many as there are cores.")
    intra_op_num_threads = Setting(_INT, as_int, 0, "Threads within a node; 0: as many as there are cores.")
    log_severity_level = Setting(_INT, as_int, -1,
                                 "0 verbose, 1 info, 2 warning, 3 error, 4 fatal; -1: the default's.")
    log_verbosity_level = Setting(_INT, as_int, 0, "Kept for the API's sake.")
    logid = Setting("str", as_str, "", "The name of this session in the log.")
    optimized_model_filepath = Setting("str", as_str, "", "Where the optimized model is written, as ONNX.")
    profile_file_prefix = Setting("str", as_str, "onnxruntime_profile_",
                                  "How the profile's file name begins; the time follows.")
    use_deterministic_compute = Setting("bool", as_bool, False,
                                        "Results never depend on timing; kept for the API's sake.")
    use_per_session_threads = Setting("bool", as_bool, True,
                                      "Off: as many threads as `set_global_thread_pool_sizes` was told.")

    def __init__(self) -> None:
        super().__init__()
        self._providers: list[tuple[str, dict[str, str]]] = []
        self._policy: Any = None
        self._initializers: dict[str, CoreValue] = {}
        self._external: dict[str, CoreValue] = {}
        self._files: dict[str, bytes] = {}
        self._dims_by_name: dict[str, int] = {}
        self._dims_by_denotation: dict[str, int] = {}
        self._cancelled = False
        self._context_reader: Any = None

    def add_session_config_entry(self, key: str, value: str) -> None:
        """Set a configuration key; `orthrus.api.config.KEYS` says which ones act.

        Raises RuntimeError for an empty key or one longer than 1024 characters.
        """
        self._set_entry("add_session_config_entry", key, value)

    def get_session_config_entry(self, key: str) -> str:
        """The value of a key. Raises RuntimeError for a key that was not set."""
        return self._get_entry("get_session_config_entry", key)

    def add_free_dimension_override_by_name(self, name: str, value: int) -> None:
        """Fix the dimension that the model's inputs call `name`; of two sizes for it the first counts, as in
        onnxruntime."""
        size = self._dimension("add_free_dimension_override_by_name", name, value)
        self._dims_by_name.setdefault(name, size)

    def add_free_dimension_override_by_denotation(self, denotation: str, value: int) -> None:
        """Fix the dimensions that the model's inputs mark with `denotation`, such as DATA_BATCH, in small
        letters or capitals; of two sizes for it the first counts, as in onnxruntime."""
        size = self._dimension("add_free_dimension_override_by_denotation", denotation, value)
        self._dims_by_denotation.setdefault(denotation, size)

    def _dimension(self, function: str, name: str, value: int) -> int:
        try:
            as_str(name)
            return as_int(value)
        except TypeError:
            raise mismatch(function, f"(self: SessionOptions, arg0: str, arg1: {_INT}) -> None", self, name,
                           value) from None

    def add_initializer(self, name: str, ortvalue: Any) -> None:
        """Let the initializer `name` be an OrtValue's tensor, whose memory is shared and has to stay as it
        is.

        Raises RuntimeError for no OrtValue, and for a name that was added before.
        """
        from .ortvalue import OrtValue

        if not isinstance(name, str):
            raise mismatch("add_initializer", "(self: SessionOptions, arg0: str, arg1: object) -> None", self,
                           name, ortvalue)
        if not isinstance(ortvalue, OrtValue):
            raise RuntimeError("The provided Python object must be an OrtValue")
        if name in self._initializers:
            raise RuntimeError("[ONNXRuntimeError] : 2 : INVALID_ARGUMENT : An OrtValue for this name has "
                               f"already been added: {name}")
        ortvalue._get_c_value()._array()
        self._initializers[name] = ortvalue._get_c_value()

    def add_external_initializers(self, names: list[str], ortvalues: list[Any]) -> None:
        """Give the data of initializers that the model keeps in external files.

        Raises RuntimeError where the lists differ in length or a name was added before.
        """
        if len(names) != len(ortvalues):
            raise RuntimeError("Expecting names and ort_values lists to have equal length")
        for name, value in zip(names, ortvalues, strict=True):
            core: CoreValue = value._ortvalue
            core._array()
            if name in self._external:
                raise RuntimeError("[ONNXRuntimeError] : 2 : INVALID_ARGUMENT : An OrtValue for this name "
                                   f"has already been added: {name}")
            self._external[name] = core

    def add_external_initializers_from_files_in_memory(self, names: Sequence[str], buffers: Sequence[Any],
                                                       lengths: Sequence[int]) -> None:
        """Give the content of the external files that the model names, in memory.

        Raises RuntimeError where the lists differ in length, a length is more than its buffer, or a file was
        given before.
        """
        if not len(names) == len(buffers) == len(lengths):
            raise RuntimeError("Expecting names, buffers and lengths to have equal length")
        for name, buffer, length in zip(names, buffers, lengths, strict=True):
            try:
                content = memoryview(buffer).cast("B")
            except TypeError:
                raise mismatch("add_external_initializers_from_files_in_memory",
                               "(self: SessionOptions, arg0: collections.abc.Sequence[str], arg1: "
                               "collections.abc.Sequence[Buffer], arg2: collections.abc.Sequence[int]) -> "
                               "None", self, names, buffers, lengths) from None
            if name in self._files:
                raise RuntimeError("[ONNXRuntimeError] : 2 : INVALID_ARGUMENT : An entry for this name has "
                                   f"already been added: {name}")
            if not 0 <= length <= len(content):
                raise RuntimeError(f"the buffer of {name!r} holds {len(content)} bytes, not {length}")
            whole = isinstance(buffer, bytes) and length == len(buffer)
            self._files[name] = buffer if whole else bytes(content[:length])

    def add_provider(self, name: str, options: Mapping[str, str]) -> None:
        """Add a provider, after those added before.

        Raises RuntimeError for a name nobody knows, InvalidArgument for a provider that is not available
        here.
        """
        from .. import errors, providers

        if not isinstance(name, str) or not _texts(options):
            raise mismatch("add_provider",
                           "(self: SessionOptions, arg0: str, arg1: collections.abc.Mapping[str, str]) "
                           "-> None", self, name, options)
        if name not in providers.known():
            if name in providers.ALL:
                raise errors.InvalidArgument(f"Failed to add provider of type '{name}' to SessionOptions. "
                                             "Provider configuration is not supported.",
                                             expected=", ".join(providers.available()))
            raise RuntimeError(f"Unknown Provider Type: {name}")
        self._providers.append((name, dict(options)))

    def add_provider_for_devices(self, ep_devices: Sequence[OrtEpDevice],
                                 provider_options: Mapping[str, str]) -> None:
        """Add the provider that the devices, from `get_ep_devices`, belong to.

        Raises InvalidArgument for no device, or devices of more than one provider.
        """
        from .. import errors

        if not _texts(provider_options) or not all(isinstance(d, OrtEpDevice) for d in ep_devices):
            raise mismatch("add_provider_for_devices",
                           "(self: SessionOptions, arg0: collections.abc.Sequence[OrtEpDevice], arg1: "
                           "collections.abc.Mapping[str, str]) -> None", self, ep_devices, provider_options)
        names = {d.ep_name for d in ep_devices}
        if not names:
            raise errors.InvalidArgument("Must provide one or more OrtEpDevice instances.")
        if len(names) > 1:
            raise errors.InvalidArgument("All OrtEpDevice values in ep_devices must have the same execution "
                                         "provider.", found=", ".join(sorted(names)))
        self._providers.append((names.pop(), dict(provider_options)))

    def has_providers(self) -> bool:
        """Whether providers were added, or a policy to choose them."""
        return bool(self._providers) or self._policy is not None

    def set_provider_selection_policy(self, policy: OrtExecutionProviderDevicePolicy) -> None:
        """Let providers be chosen by a preference among those available."""
        if type(policy) is not OrtExecutionProviderDevicePolicy:
            raise mismatch("set_provider_selection_policy",
                           "(self: SessionOptions, arg0: OrtExecutionProviderDevicePolicy) -> None", self,
                           policy)
        self._policy = policy

    def set_provider_selection_policy_delegate(
        self, delegate: Callable[[Sequence[OrtEpDevice], Mapping[str, str], Mapping[str, str], int],
                                 list[OrtEpDevice]],
    ) -> None:
        """Let `delegate(devices, model metadata, run-time metadata, at most)` choose the devices, and with
        them the providers, when a session is created."""
        if not callable(delegate):
            raise mismatch("set_provider_selection_policy_delegate",
                           "(self: SessionOptions, arg0: collections.abc.Callable) -> None", self, delegate)
        self._policy = delegate

    def set_load_cancellation_flag(self, cancel: bool) -> None:
        """True: a session with these options is not created; ModelLoadCanceled is raised."""
        self._cancelled = bool(cancel)

    def set_ep_context_data_read_func(self, read_func: Callable[[str, OrtEpContextDataBuffer], None],
                                      max_data_size: int) -> None:
        """How the data of compiled parts that lie in files is read, in the place of the model's folder:
        `read_func(name, buffer)` allocates the buffer, `max_data_size` bytes at most, and writes the data
        into it. Only parts that the session trusts are read."""
        self._context_reader = (read_func, int(max_data_size))

    def clear_ep_context_data_read_func(self) -> None:
        self._context_reader = None

    def register_custom_ops_library(self, library_path: str) -> None:
        """Raises Fail: a compiled library of custom operators cannot be loaded; `orthrus.op` registers a
        Python one."""
        if not isinstance(library_path, str):
            raise mismatch("register_custom_ops_library", "(self: SessionOptions, arg0: str) -> None", self,
                           library_path)
        raise library_error(library_path, "custom operators compiled for onnxruntime cannot be loaded",
                            "define each operator in Python with @orthrus.op('domain::Name')")

    def __copy__(self) -> SessionOptions:
        """A copy that shares tensors and buffers, and nothing that can be set."""
        twin = SessionOptions()
        for cls in (_Options, SessionOptions):
            for name in cls.__slots__:
                value = getattr(self, name)
                setattr(twin, name, value.copy() if isinstance(value, dict | list) else value)
        return twin

    def __getstate__(self) -> dict[str, Any]:
        return {name: getattr(self, name) for cls in (_Options, SessionOptions) for name in cls.__slots__}

    def __setstate__(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            setattr(self, name, value)

    def __repr__(self) -> str:
        return f"<SessionOptions {_shown(self)}>"


log = logging.getLogger("orthrus")

UNSYNCHRONIZED = "disable_synchronize_execution_providers"


class RunOptions(_Options):
    """How one run is done, and the way to stop it from another thread."""

    __slots__ = ("_terminate", "_timeout", "_adapters", "_of", "_profile")

    log_severity_level = Setting(_INT, as_int, -1,
                                 "0 verbose, 1 info, 2 warning, 3 error, 4 fatal; -1: the session's.")
    log_verbosity_level = Setting(_INT, as_int, 0, "Kept for the API's sake.")
    logid = Setting("str", as_str, "", "The name of this run in the log.")
    only_execute_path_to_fetches = Setting("bool", as_bool, False,
                                           "Run only what the asked outputs need; a session always does.")

    def __init__(self) -> None:
        super().__init__()
        self._terminate = False
        self._timeout: float | None = None
        self._adapters: list[Any] = []
        self._of: RunOptions | None = None
        self._profile: ProfileFile | None = None

    @property
    def terminate(self) -> bool:
        """Set to True, every run with these options stops before its next step, with Fail."""
        return self._terminate or self._of is not None and self._of.terminate

    @terminate.setter
    def terminate(self, value: bool) -> None:
        try:
            self._terminate = as_bool(value)
        except TypeError:
            raise mismatch("", "(arg0: RunOptions, arg1: bool) -> None", self, value) from None

    @property
    def timeout(self) -> float | None:
        """Seconds after which a run stops with Fail; None: the session's `Limits.run_timeout`."""
        return self._timeout

    @timeout.setter
    def timeout(self, seconds: float | None) -> None:
        if seconds is not None and not (isinstance(seconds, int | float) and seconds >= 0):
            raise mismatch("", "(arg0: RunOptions, arg1: float | None) -> None", self, seconds)
        self._timeout = seconds

    def add_run_config_entry(self, key: str, value: str) -> None:
        """Set a configuration key of the run. `disable_synchronize_execution_providers` 1: devices may still
        work when it returns; `memory.enable_memory_arena_shrinkage`, such as "cpu:0;gpu:0": these let go of
        the memory that they keep for further runs. Raises RuntimeError for an empty or too long key."""
        self._set_entry("add_run_config_entry", key, value)

    def get_run_config_entry(self, key: str) -> str:
        """The value of a key. Raises RuntimeError for a key that was not set."""
        return self._get_entry("get_run_config_entry", key)

    def _waits(self) -> bool | None:
        """Whether a run waits for devices; None where they ask for anything else that a run without them does
        not do: it is to be stopped or timed, or to tell something in the log."""
        if self._adapters or self._timeout is not None or self._profile is not None or self.terminate:
            return None
        values = self._values
        if values and (values.get("log_severity_level", -1) not in (-1, 2, 3, 4)
                       or values.get("logid") and log.isEnabledFor(logging.INFO)):
            return None
        entries = {key: value for key, value in self._entries.items() if key != UNSYNCHRONIZED}
        return None if entries else self._entries.get(UNSYNCHRONIZED) != "1"

    def _taken(self) -> RunOptions:
        """What they are now, for a run that comes later; both are stopped by the `terminate` of these."""
        made = RunOptions()
        made._values, made._entries = dict(self._values), dict(self._entries)
        made._timeout, made._adapters, made._of = self._timeout, list(self._adapters), self
        made._profile = self._profile
        return made

    def add_active_adapter(self, adapter: Any) -> None:
        """Feed the parameters of a loaded LoraAdapter beside the run's own feeds."""
        from .adapter import LoraAdapter

        if not isinstance(adapter, LoraAdapter):
            raise mismatch("add_active_adapter", "(self: RunOptions, arg0: LoraAdapter) -> None", self,
                           adapter)
        self._adapters.append(adapter)

    def __repr__(self) -> str:
        return f"<RunOptions {_shown(self)}>"


def _shown(options: _Options) -> str:
    return ", ".join(f"{k}={v!r}" for k, v in {**options._values, **options._entries}.items())


def _texts(options: Any) -> bool:
    return isinstance(options, Mapping) and all(isinstance(k, str) and isinstance(v, str) for k,
                                                v in options.items())


def library_error(path: str, why: str, cure: str) -> Exception:
    """The error for a compiled library: that it is not there, or why it cannot be loaded and what to do
    instead."""
    from ..errors import Fail

    if not os.path.exists(path):
        return Fail(f"Failed to load library {path} with error: {path}: cannot open shared object file: No "
                    "such file or directory")
    return Fail(f"Failed to load library {path} with error: {why}", cure=cure)
