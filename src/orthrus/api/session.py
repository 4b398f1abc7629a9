"""`InferenceSession`: a model, ready to run.

`run` hands its arguments to the engine and adds nothing where they are the usual ones; everything else it
does, and every other form of run, goes through the capi layer's session in `_sess`.
"""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import DeviceReset, EPFail
from ..locks import lock
from ..shown import html_table, meant
from .binding import IOBinding
from .core import CoreSession, path_of
from .devices import OrtDevice, OrtEpDevice, OrtMemoryInfo
from .enums import OrtDeviceVendorId
from .metadata import ModelMetadata, NodeArg, OrtEpAssignedSubgraph
from .options import RunOptions, SessionOptions
from .ortvalue import OrtValue
from .sparse import SparseTensor
from .values import OrtValueVector

if TYPE_CHECKING:
    from ..profiling import Profile
    from .collecting import Collecting

_CPU = "CPUExecutionProvider"
_BOTH = ("Specified 'providers'/'provider_options' when creating InferenceSession but SessionOptions has "
         "already been configured with providers. InferenceSession will only use the providers passed to "
         "InferenceSession().")

_OWN = frozenset({"_sess", "_engine_run", "_quick", "_direct", "_enable_fallback", "_fallback_providers",
                  "_model_path", "_model_bytes", "_read_config_from_model", "_sess_options_initial",
                  "_sess_options", "_disabled", "_limits", "_fallback", "_kernels", "_trust",
                  "_inputs_meta", "_outputs_meta", "_overridable_initializers", "_input_meminfos",
                  "_output_meminfos", "_input_epdevices", "_model_meta", "_providers",
                  "_provider_options", "_profiling_start_time_ns", "_collecting", "_watching", "_doors",
                  "_plain"})
"""Attributes a session makes itself; a pickle carries every other."""


def _options_by_name(requested: Sequence[Any], provider_options: Any) -> dict[str, dict[Any, Any]]:
    """The options that are given with providers' names, as far as they have the right form."""
    pairs = [p for p in requested if isinstance(p, tuple) and len(p) == 2]
    if isinstance(provider_options, Sequence):
        pairs += zip(requested, provider_options, strict=False)
    return {name: dict(options) for name, options in pairs
            if isinstance(name, str) and isinstance(options, Mapping)}


def check_and_normalize_provider_args(
    providers: Sequence[str | tuple[str, dict[Any, Any]]] | None,
    provider_options: Sequence[dict[Any, Any]] | None,
    available_provider_names: Sequence[str],
) -> tuple[list[str], list[dict[str, str]]]:
    """Names and options of the providers asked for: each name once, options as texts.

    A name that is not available is kept, with a warning. Raises ValueError for arguments of the wrong form.
    """
    if providers is None:
        return [], []
    chosen: dict[str, dict[str, str]] = {}

    def choose(name: str, options: Mapping[Any, Any]) -> None:
        if name not in available_provider_names:
            warnings.warn(f"Specified provider '{name}' is not in available provider names.Available "
                          f"providers: '{', '.join(available_provider_names)}'", stacklevel=5)
        if name in chosen:
            warnings.warn(f"Duplicate provider '{name}' encountered, ignoring.", stacklevel=5)
            return
        chosen[name] = {str(key): str(value) for key, value in options.items()}

    if not isinstance(providers, Sequence):
        raise ValueError("'providers' should be a sequence.")
    if provider_options is not None:
        if not isinstance(provider_options, Sequence):
            raise ValueError("'provider_options' should be a sequence.")
        if len(providers) != len(provider_options):
            raise ValueError("'providers' and 'provider_options' should be the same length if both are "
                             "given.")
        if not all(isinstance(name, str) for name in providers):
            raise ValueError("Only string values for 'providers' are supported if 'provider_options' is "
                             "given.")
        if not all(isinstance(options, dict) for options in provider_options):
            raise ValueError("'provider_options' values must be dicts.")
        for name, options in zip(providers, provider_options, strict=True):
            choose(str(name), options)
    else:
        for given in providers:
            if isinstance(given, str):
                choose(given, {})
            elif (isinstance(given, tuple) and len(given) == 2 and isinstance(given[0], str)
                  and isinstance(given[1], dict)):
                choose(*given)
            else:
                raise ValueError("'providers' values must be either strings or (string, dict) tuples.")
    return list(chosen), list(chosen.values())


class Session:
    """What every kind of session can do; `InferenceSession` makes it."""

    _sess: CoreSession
    _engine_run: Callable[..., list[Any]]
    _quick: Callable[[Any, Any], list[Any] | None] | None
    _direct: bool
    _plain: bool
    _disabled: tuple[str, ...]
    _sess_options: SessionOptions
    _inputs_meta: list[NodeArg]
    _outputs_meta: list[NodeArg]
    _overridable_initializers: list[NodeArg]
    _input_meminfos: list[OrtMemoryInfo]
    _output_meminfos: list[OrtMemoryInfo]
    _input_epdevices: list[OrtEpDevice]
    _model_meta: ModelMetadata
    _providers: list[str]
    _provider_options: dict[str, dict[str, str]]

    def __init__(self, enable_fallback: bool = True) -> None:
        self._enable_fallback = enable_fallback
        self._fallback_providers = [_CPU]
        self._collecting: tuple[Collecting, ...] = ()
        self._watching = False
        self._doors = lock()

    def _create_inference_session(self, providers: Any, provider_options: Any,
                                  disabled_optimizers: Any = None) -> None:
        raise NotImplementedError

    def __repr__(self) -> str:
        def listed(values: Sequence[NodeArg]) -> str:
            return ", ".join(f"{v.name} {v.type}{v.shape}" for v in values)
        inputs, outputs = listed(self._inputs_meta), listed(self._outputs_meta)
        return f"<{type(self).__name__} ({inputs}) -> ({outputs}) on {', '.join(self._providers)}>"

    def _repr_html_(self) -> str:
        rows = [(kind, v.name, v.type, v.shape) for kind, values in (
            ("input", self._inputs_meta), ("output", self._outputs_meta)) for v in values]
        return html_table(("", "name", "type", "shape"), rows) + f"<p>{', '.join(self._providers)}</p>"

    def get_session_options(self) -> SessionOptions:
        """The options in force: a copy of those given, with what the session made of them."""
        return self._sess_options

    def get_inputs(self) -> Sequence[NodeArg]:
        """The inputs that have to be fed."""
        return self._inputs_meta

    def get_outputs(self) -> Sequence[NodeArg]:
        return self._outputs_meta

    def get_overridable_initializers(self) -> Sequence[NodeArg]:
        """The inputs that may be fed, and have a value where they are not."""
        return self._overridable_initializers

    def get_modelmeta(self) -> ModelMetadata:
        return self._model_meta

    def get_input_memory_infos(self) -> Sequence[OrtMemoryInfo]:
        return self._input_meminfos

    def get_output_memory_infos(self) -> Sequence[OrtMemoryInfo]:
        return self._output_meminfos

    def get_input_epdevices(self) -> Sequence[OrtEpDevice]:
        return self._input_epdevices

    def get_providers(self) -> Sequence[str]:
        """The session's providers in order of priority, the CPU provider last."""
        return self._providers

    def get_provider_options(self) -> dict[str, dict[str, str]]:
        """The options each provider was given."""
        return self._provider_options

    def get_provider_graph_assignment_info(self) -> Sequence[OrtEpAssignedSubgraph]:
        """Which provider got which nodes. Raises Fail unless `session.record_ep_graph_assignment_info` is
        "1"."""
        return self._sess.get_provider_graph_assignment_info()

    def explain(self) -> Any:
        """Which provider and kernel runs each node, who declined it and why; what compiled parts and memory
        hold, what passes did or declined: a `run.explain.Explanation`; printable, iterable, by node name."""
        from dataclasses import replace

        return replace(self._sess._engine.explain(), absent=dict(self._sess._absent))

    @contextlib.contextmanager
    def profile(self, compare: bool = True) -> Iterator[Profile]:
        """Take every run of this session apart while the block lasts, on whatever thread:

            with session.profile() as p:
                session.run(None, feeds)
            print(p.table())

        Runs go step by step meanwhile, and take longer for it. `compare`: run the last feeds of each shape
        again when the block ends, not taken apart, for `p.native_seconds`; False where custom operators have
        effects that must not come twice. Runs that fail are not counted.
        """
        from ..errors import Fail
        from ..profiling import Profile
        from .collecting import Collecting

        engine, source = self._sess._engine, self._sess._source
        title = os.path.basename(source) if self._sess._is_path else engine.graph.name
        made = Collecting(Profile(engine.config.intra_op_threads, title))
        with self._doors:
            self._collecting = (*self._collecting, made)
            self._open_doors()
        try:
            yield made.profile
        finally:
            with self._doors:
                self._collecting = tuple(each for each in self._collecting if each is not made)
                self._open_doors()
        if compare:
            with contextlib.suppress(Fail):
                made.time_plainly(self._sess._engine)

    @contextlib.contextmanager
    def watch(self, see: Callable[[str, np.ndarray], None]) -> Iterator[None]:
        """Look on while runs of this session compute, on whatever thread, as long as the block lasts:

            options.add_session_config_entry("orthrus.watch", json.dumps(names))
            session = orthrus.InferenceSession(model, options)
            with session.watch(lambda name, array: print(name, array.min(), array.max())):
                session.run(None, feeds)

        `see(name, array)` gets each value that the entry names, inputs too, in the order in which they come
        to be: a view that holds until it returns, of memory that later steps use again. Names of values that
        the optimizer or a provider does not compute are not shown; the former are kept with
        `ORT_DISABLE_ALL`. What `see` raises ends the run. Raises InvalidArgument where the entry is missing.
        """
        from ..errors import InvalidArgument

        if "orthrus.watch" not in self._sess._options._entries:
            raise InvalidArgument("this session was not made to be watched", expected="orthrus.watch",
                                  cure="name the values in the session's configuration")
        engine = self._sess._engine
        with self._doors:
            before, engine.see, self._watching = engine.see, see, True
            self._open_doors()
        try:
            yield
        finally:
            with self._doors:
                engine.see, self._watching = before, before is not None
                self._open_doors()

    def _open_doors(self) -> None:
        """Let `run` take the shortest way there is: past all that observes runs, where nothing does."""
        core = self._sess
        core._collecting = self._collecting
        self._direct = self._plain and not self._collecting
        self._quick = core._shortest.quick = (
            core._engine.quick if self._direct and not self._watching else None)

    def set_providers(self, providers: Sequence[str | tuple[str, dict[Any, Any]]] | None = None,
                      provider_options: Sequence[dict[Any, Any]] | None = None) -> None:
        """Make the session anew with other providers. Where that fails the session stays as it was.

        Raises ValueError for arguments of the wrong form, RuntimeError for a name nobody knows, and what
        creating a session raises.
        """
        self._create_inference_session(providers, provider_options, self._disabled)

    def disable_fallback(self) -> None:
        """Let errors of a provider come through instead of changing to the CPU provider."""
        self._enable_fallback = False

    def enable_fallback(self) -> None:
        """Where a provider fails, change to the CPU provider and run again."""
        self._enable_fallback = True

    def run(self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any], run_options: RunOptions
            | None = None) -> Sequence[np.ndarray | SparseTensor | list[Any] | dict[Any, Any] | None]:
        """Compute outputs.

        `output_names`: which, None or empty for all. `input_feed`: a value per input name: an array, or an
        OrtValue or list that is made one; a list for a sequence, a dict for a map, a SparseTensor. Answers
        one value per output: arrays that belong to the caller, lists, dicts, SparseTensors, None for an empty
        optional. bfloat16, float8 and four-bit results are `ml_dtypes` arrays. May be called on many threads
        at once.

        Raises ValueError for a missing input, InvalidArgument for a value or name that does not fit, Fail
        where a step fails or the run is terminated.
        """
        quick = self._quick
        if quick is not None:
            made = quick(output_names, input_feed) if run_options is None else None
            if made is None and (run_options is not None or output_names is not None):
                made = self._sess.shortly(output_names, input_feed, run_options)
            if made is not None:
                return made
        if (run_options is not None or not self._direct or output_names.__class__ is str
                or input_feed.__class__ is not dict):
            return self._run_whole(lambda: self._sess._run(output_names or None, input_feed, run_options))
        try:
            return self._engine_run(output_names, input_feed)
        except (EPFail, DeviceReset) as error:
            return self._fallen_back(error, lambda: self._engine_run(output_names, input_feed))

    def _run_whole(self, run: Callable[[], Any]) -> Any:
        try:
            return run()
        except (EPFail, DeviceReset) as error:
            return self._fallen_back(error, run)

    def _fallen_back(self, error: Exception, run: Callable[[], Any]) -> Any:
        """Change to the fallback providers and run again, once. Raises the error where falling back is
        off."""
        if not self._enable_fallback:
            raise error
        print(f"EP Error: {error} using {self._providers}")
        print(f"Falling back to {self._fallback_providers} and retrying.")
        self.set_providers(self._fallback_providers)
        self.disable_fallback()
        return run()

    def run_async(self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any],
                  callback: Callable[[Sequence[Any], Any, str], None], user_data: Any,
                  run_options: RunOptions | None = None) -> None:
        """Run on another thread, then call `callback(results, user_data, error)` there.

        `error` is "" where all went well, else what went wrong, and results are []. Raises ValueError for a
        missing input.
        """
        self._require(input_feed)
        self._sess.run_async(output_names or None, input_feed, callback, user_data, run_options)

    def run_with_ort_values(self, output_names: Sequence[str] | None,
                            input_dict_ort_values: Mapping[str, OrtValue],
                            run_options: RunOptions | None = None) -> Sequence[OrtValue]:
        """As `run`, with OrtValues in and out."""
        self._require(input_dict_ort_values)
        feeds = {name: value._get_c_value() for name, value in input_dict_ort_values.items()}
        names = list(output_names) if output_names else [o.name for o in self._outputs_meta]
        results = self._run_whole(lambda: self._sess.run_with_ort_values(feeds, names, run_options))
        return [OrtValue(value) for value in results]

    def _require(self, feeds: Mapping[str, Any]) -> None:
        missing = [i.name for i in self._inputs_meta
                   if i.name not in feeds.keys() and not i.type.startswith("optional")]  # noqa: SIM118
        if missing:
            from ..run.feeds import lacking

            raise lacking(missing, feeds)

    def run_with_iobinding(self, iobinding: IOBinding, run_options: RunOptions | None = None) -> None:
        """Run on what is bound. Raises ValueError for another session's binding, RuntimeError where the run
        fails."""
        if iobinding._session is not self:
            raise ValueError("IOBinding must be used with the session that created it.")
        if iobinding._iobinding._session is not self._sess:
            iobinding._iobinding._session = self._sess
        self._sess.run_with_iobinding(iobinding._iobinding, run_options)

    def run_with_ortvaluevector(self, run_options: RunOptions, feed_names: Sequence[str],
                                feeds: OrtValueVector, fetch_names: Sequence[str], fetches: OrtValueVector,
                                fetch_devices: Sequence[Any]) -> None:
        """Run with vectors of the capi module; results are put into `fetches`."""
        self._run_whole(lambda: self._sess.run_with_ortvaluevector(run_options, feed_names, feeds,
                                                                   fetch_names, fetches, fetch_devices))

    def io_binding(self) -> IOBinding:
        return IOBinding(self)

    def create_ortvalue_from_shape_and_type(self, shape: Sequence[int], element_type: Any, device_type: str,
                                            device_id: int = 0, vendor_id: int
                                            | OrtDeviceVendorId = -1) -> OrtValue:
        """A tensor of zeros in memory this session can use. Raises RuntimeError for another device."""
        device = OrtDevice.make(device_type, device_id, vendor_id)._get_c_device()
        return OrtValue(self._sess.create_ortvalue_from_shape_and_type(shape, element_type, device))

    def end_profiling(self) -> str:
        """Write the profile and answer its file's name; "" where profiling is off, or the file was written
        before."""
        return self._sess.end_profiling()

    def get_profiling_start_time_ns(self) -> int:
        """When profiling began, in nanoseconds of a clock that only goes forward; 0 where it is off."""
        return self._sess.get_profiling_start_time_ns

    def get_tuning_results(self) -> list[Any]:
        """What providers found to be fastest: a map with `ep`, `validators` and `results` for each that is
        tuned; see docs/gpu.md. Empty where none is."""
        return self._sess.get_tuning_results()

    def set_tuning_results(self, results: list[Any], *, error_on_invalid: bool = False) -> None:
        """Hand providers what `get_tuning_results` gave, of another session too. What cannot be used is
        skipped with a warning. Raises RuntimeError for it if `error_on_invalid`, KeyError for what is
        incomplete, TypeError for what is no list."""
        self._sess.set_tuning_results(results, error_on_invalid)

    def set_ep_dynamic_options(self, options: dict[str, str]) -> None:
        """Hand options to the session's providers while it lives."""
        self._sess.set_ep_dynamic_options(options)

    def release_captured_graph(self, graph_annotation_id: int = 0) -> None:
        """Nothing: no provider here captures graphs."""
        self._sess.release_captured_graph(graph_annotation_id)

    def close(self) -> None:
        """Let go of threads and memory, and write the profile if there is one. A later run raises Fail."""
        self._sess._close()
        self._plain = False
        self._open_doors()

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _stays(model: bytearray | memoryview) -> bool:
    """Whether nobody writes to these bytes, so that they need no copy."""
    if not isinstance(model, memoryview) or not (
            model.readonly and model.format == "B" and model.ndim == 1 and model.contiguous):
        return False
    owner = model.obj
    return isinstance(owner, bytes) or (isinstance(owner, np.ndarray) and not owner.flags.writeable)


def _trusting(options: SessionOptions, trust: bool | str | None) -> SessionOptions:
    """`options` with what the keyword `trust` says. Raises TypeError for what it cannot be."""
    if trust is None or not isinstance(options, SessionOptions):
        return options
    if not isinstance(trust, bool | str):
        raise TypeError(f"trust is {trust!r}; expected True, False or a public key as text")
    given = options.__copy__()
    given.add_session_config_entry("ep.context_trust", trust if isinstance(trust, str) else str(int(trust)))
    return given


_KEYWORDS = frozenset({"disabled_optimizers", "enable_fallback", "read_config_from_model", "limits",
                       "fallback", "kernels", "trust"})


class InferenceSession(Session):
    """A model, ready to run.

        session = orthrus.InferenceSession("model.onnx")
        outputs = session.run(None, {"input": array})

    It may be used from several threads at once. `explain()` says which provider runs each node and why,
    `profile()` where the time goes; `close()`, or the end of a `with` block, gives back what it holds.
    """

    def __init__(self, path_or_bytes: str | bytes | os.PathLike[str], sess_options: SessionOptions
                 | None = None, providers: Sequence[str | tuple[str, dict[Any, Any]]] | None = None,
                 provider_options: Sequence[dict[Any, Any]] | None = None, **kwargs: Any) -> None:
        """Load a model and make it ready.

        `path_or_bytes`: a file's path, or the model itself as bytes, a bytearray, a memoryview or an onnx
        ModelProto. A memoryview of bytes or of a numpy array that cannot be written to is read where it lies,
        any other is copied. `providers`: names, or (name, options), by priority; the CPU provider comes last
        by itself. `provider_options`: a dict per name, instead of the tuples. Keywords:
        `disabled_optimizers`, names of passes to leave out; `enable_fallback`, whether to change to the CPU
        provider where others fail; `read_config_from_model`, whether the model's `ort_config` entry acts;
        `limits`, the `orthrus.Limits` of this session; `fallback`, what it is when nodes another provider was
        asked for fall to the CPU provider: "allow", "warn" or "error"; `kernels`, KernelRegistry objects
        whose kernels come before the providers' own; `trust`, whether compiled parts of the model may run,
        which are machine code: True, or the public key of who has to have signed them.

        Raises TypeError for anything that is no model, NoSuchFile, InvalidProtobuf, InvalidGraph,
        NotImplemented and the other errors of `orthrus.errors` for one that cannot be used.
        """
        super().__init__(bool(int(kwargs.get("enable_fallback", 1))))
        for name in kwargs.keys() - _KEYWORDS:
            question = meant(name, (*_KEYWORDS, "sess_options", "providers", "provider_options"))
            warnings.warn(f"InferenceSession knows no keyword {name!r}, it does nothing; {question or 'see '}"
                          f"{'' if question else 'its documentation'}", stacklevel=2)
        self._model_path = path_of(path_or_bytes)
        self._model_bytes: Any = None
        if self._model_path is None:
            self._model_bytes = (bytes(path_or_bytes) if isinstance(path_or_bytes, bytearray | memoryview)
                                 and not _stays(path_or_bytes) else path_or_bytes)
        self._read_config_from_model = int(
            kwargs.get("read_config_from_model", os.environ.get("ORT_LOAD_CONFIG_FROM_MODEL") or 0)) == 1
        self._sess_options_initial = sess_options
        self._sess_options = sess_options or SessionOptions()
        disabled = kwargs.get("disabled_optimizers") or ()
        self._disabled = (disabled,) if isinstance(disabled, str) else tuple(disabled)
        self._limits, self._fallback = kwargs.get("limits"), kwargs.get("fallback", "allow")
        self._kernels = kwargs.get("kernels") or ()
        self._trust = kwargs.get("trust")
        try:
            self._create_inference_session(providers, provider_options, self._disabled)
        except (ValueError, RuntimeError) as error:
            if not self._enable_fallback:
                raise
            print("*************** EP Error ***************")
            print(f"EP Error {error} when using {providers}")
            print(f"Falling back to {self._fallback_providers} and retrying.")
            print("****************************************")
            try:
                self._create_inference_session(self._fallback_providers, None, self._disabled)
            except Exception as second:
                raise second from error
            self.disable_fallback()

    def _create_inference_session(self, providers: Any, provider_options: Any,
                                  disabled_optimizers: Any = None) -> None:
        from ..providers import known

        if isinstance(providers, str):
            warnings.warn(f"providers is a text, taken for [{providers!r}]; give a list", stacklevel=3)
            providers = [providers]
        requested = list(providers) if providers else []
        flat = {p[0] if isinstance(p, tuple) and p else p for p in requested if isinstance(p, str | tuple)}
        asked = _options_by_name(requested, provider_options)
        available = [name for name, provider in known(map(str, flat)).items()
                     if provider.probe_with(asked.get(name, {})) is None]
        if {"TensorrtExecutionProvider", "NvTensorRTRTXExecutionProvider"} <= flat:
            raise ValueError("Cannot enable both 'TensorrtExecutionProvider' and "
                             "'NvTensorRTRTXExecutionProvider' in the same session.")
        self._fallback_providers = [_CPU]
        if "CUDAExecutionProvider" in available and any("Tensor" in str(p) for p in flat):
            self._fallback_providers = ["CUDAExecutionProvider", _CPU]
        names, options = check_and_normalize_provider_args(providers, provider_options, available)
        given = _trusting(self._sess_options_initial or SessionOptions(), self._trust)
        if names and isinstance(given, SessionOptions) and given.has_providers():
            warnings.warn(_BOTH, stacklevel=3)
        source = self._model_path if self._model_path is not None else self._model_bytes
        core = CoreSession(given, source, self._model_path is not None, self._read_config_from_model)
        core.initialize_session(names, options, disabled_optimizers or (), self._limits, self._fallback,
                                self._kernels)
        self._take(core)

    def _take(self, core: CoreSession) -> None:
        from ..ir import SequenceType, TensorType

        engine = core._engine
        self._inputs_meta = core.inputs_meta
        self._outputs_meta = core.outputs_meta
        self._overridable_initializers = core.overridable_initializers
        self._input_meminfos, self._output_meminfos = core.input_meminfos, core.output_meminfos
        self._input_epdevices = core.input_epdevices
        self._model_meta = core.model_meta
        self._providers, self._provider_options = core.get_providers(), core.get_provider_options()
        self._profiling_start_time_ns = core.get_profiling_start_time_ns
        self._sess_options = core.session_options
        plain = all(isinstance(v.type, TensorType) for v in (*engine.inputs, *engine.overridable)) and all(
            isinstance(v.type, TensorType | SequenceType) for v in engine.outputs)
        self._plain = plain and core._profile is None
        self._sess, self._engine_run = core, engine.run
        self._open_doors()

    def __getstate__(self) -> dict[str, Any]:
        """What makes this session anew: its arguments, and the attributes a subclass added."""
        model = self._model_bytes
        return {"model": self._model_path if model is None
                else bytes(model) if isinstance(model, bytes | memoryview) else model.SerializeToString(),
                "options": self._sess_options_initial,
                "providers": [(name, self._provider_options[name]) for name in self._providers],
                "keywords": {"disabled_optimizers": self._disabled,
                             "enable_fallback": int(self._enable_fallback),
                             "read_config_from_model": int(self._read_config_from_model),
                             "limits": self._limits, "fallback": self._fallback,
                             "kernels": self._kernels, "trust": self._trust},
                "attributes": {k: v for k, v in self.__dict__.items() if k not in _OWN}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        options = state["options"]
        chosen = None if options and options.has_providers() else state["providers"]
        InferenceSession.__init__(self, state["model"], options, chosen, **state["keywords"])
        self.__dict__.update(state["attributes"])
