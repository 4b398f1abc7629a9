"""The session of the capi layer: options and a model in, an engine behind; what `InferenceSession` stands on.

It is made in two steps, as in onnxruntime: the constructor takes options and model, `initialize_session` the
providers. Its names are positional, and its run takes every argument.
"""

from __future__ import annotations

import logging
import os
import time
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from .arguments import mismatch
from .devices import CoreDevice, OrtEpDevice, OrtMemoryInfo, ep_devices, memory_info, preferred_providers
from .metadata import ModelMetadata, NodeArg, OrtEpAssignedSubgraph
from .options import UNSYNCHRONIZED, RunOptions, SessionOptions
from .ortvalue import OrtValue
from .sparse import CoreSparse, SparseTensor
from .values import CoreValue, OrtValueVector

if TYPE_CHECKING:
    from ..ir import Value
    from .collecting import Collecting
    from .profile import ProfileFile

log = logging.getLogger("orthrus")

_CPU = "CPUExecutionProvider"
_RUN = ("(self: InferenceSession, arg0: collections.abc.Sequence[str], arg1: collections.abc.Mapping[str, "
        "object], arg2: RunOptions) -> list")
_RECORD = "session.record_ep_graph_assignment_info"
_GRAPH, _NO_GRAPH = "gpu_graph_id", "-1"
"""The entry of a run's options, and its value, that keep the run from being recorded as a graph of a GPU."""
_NO_FALLBACK = "session.disable_cpu_ep_fallback"


class CoreSession:
    """A model with its options; ready to run after `initialize_session`.

    `source` is a path where `is_path`, else bytes or a ModelProto. Raises RuntimeError or InvalidArgument for
    options that contradict each other; what is wrong with the model is raised by `initialize_session`.
    """

    def __init__(self, options: SessionOptions, source: Any, is_path: bool,
                 read_config_from_model: bool) -> None:
        if not isinstance(options, SessionOptions) or (is_path and not source):
            raise mismatch("__init__",
                           "InferenceSession(arg0: SessionOptions, arg1: str, arg2: bool, arg3: bool)",
                           options, source, is_path, read_config_from_model)
        from ..run.shortest import Shortest
        from .config import settled

        if read_config_from_model:
            from .peek import options_from_model

            options = options_from_model(source, options)
        self._options = settled(options)
        self._given = self._options.__copy__()
        self._source, self._is_path = source, is_path
        self._engine: Any = _Nothing()
        self._absent: dict[str, str] = {}
        self._profile: ProfileFile | None = None
        self._collecting: tuple[Collecting, ...] = ()
        self._shortest = Shortest((), (), False)

    def initialize_session(self, providers: Sequence[str], provider_options: Sequence[Mapping[str, str]],
                           disabled_optimizers: Iterable[str], limits: Any = None,
                           fallback: str = "allow", kernels: Sequence[Any] = ()) -> None:
        """Load, optimize, place and compile. Providers given here come before those of the options.

        Raises what `run.engine.Engine` raises, and RuntimeError for a provider nobody knows.
        """
        from ..memory import making
        from .logs import severity

        names = set(disabled_optimizers)
        if not all(isinstance(n, str) for n in names):
            raise mismatch("initialize_session",
                           "(self: InferenceSession, arg0: collections.abc.Sequence[str], arg1: "
                           "collections.abc.Sequence[collections.abc.Mapping[str, str]], arg2: "
                           "collections.abc.Set[str]) -> None", self, providers, provider_options, names)
        with severity(self._options.log_severity_level, self._options.logid), making():
            self._start(list(zip(providers, provider_options, strict=False)), names, limits, fallback,
                        kernels)

    def _start(self, asked: list[tuple[str, Mapping[str, str]]], disabled: set[str], limits: Any,
               fallback: str, kernels: Sequence[Any]) -> None:
        from ..run.session_cache import engine_for
        from ..run.shortest import Shortest
        from .config import config, report_keys

        options = self._options
        if options._cancelled:
            from ..errors import ModelLoadCanceled

            raise ModelLoadCanceled("Graph loading canceled due to user request.")
        report_keys(options._entries)
        if options.enable_profiling:
            from .profile import ProfileFile

            self._profile = ProfileFile(options.profile_file_prefix)
            weakref.finalize(self, self._profile.end)
        start = time.perf_counter_ns()
        created = self._create_providers(asked or self._providers_of_options())
        settings = config(options, created, disabled, limits, fallback, self._source)
        settings.kernels = tuple(kernels)
        external = options._entries.get("session.optimized_model_external_initializers_file_name")
        saved = settings.optimized_model_path
        if external:
            settings.optimized_model_path = ""
        engine = engine_for(self._source, settings)
        if saved and external:
            self._save(engine, saved, external)
        if "ep.context_enable" in options._entries:
            from ..run.ep_context import write_as_asked

            write_as_asked(engine.placement, engine.providers, options._entries,
                           self._source if self._is_path else None)
        if self._profile is not None:
            loaded = start + int(1e9 * getattr(engine, "timings", {}).get("load", 0.0))
            self._profile.event("model_loading_uri" if self._is_path else "model_loading_array", start,
                                end_ns=loaded)
            self._profile.event("session_initialization", loaded)
        self._check_fallback(engine)
        self._engine = engine
        self._shortest = Shortest([v.name for v in engine.outputs], engine.kinds, engine.one_step)
        self._names = [p.name for p in engine.providers]
        self._provider_options = {p.name: dict(p.given) for p in engine.providers}
        self._report(engine)

    def _save(self, engine: Any, path: str, external: str) -> None:
        """Write the optimized model with its tensors in a file beside it."""
        from ..load import save
        from .config import number

        key = "session.optimized_model_external_initializers_min_size_in_bytes"
        save(engine.graph, path, external_file=external,
             external_threshold=number(key, self._options._entries.get(key, "1024")))

    def _providers_of_options(self) -> list[tuple[str, Mapping[str, str]]]:
        options = self._options
        if options._providers:
            return list(options._providers)
        if options._policy is None:
            return []
        if not callable(options._policy):
            return [(name, {}) for name in preferred_providers(options._policy)]
        return [(name, {}) for name in _delegated(options._policy, self._source)]

    def _create_providers(self, asked: Iterable[tuple[str, Mapping[str, str]]]) -> list[Any]:
        """Instances of the providers asked for; one that is known and not available here is left out."""
        from .. import errors, providers

        asked = list(asked)
        if self._options._entries.get(_NO_FALLBACK) == "1" and any(name == _CPU for name, _ in asked):
            raise errors.InvalidArgument("Conflicting session configuration: explicitly added the CPU EP to "
                                         "the session, but also disabled "
                                         "fallback to the CPU EP via session configuration options.",
                                         cure=f"leave {_CPU} out, or {_NO_FALLBACK}")
        created = []
        for name, options in asked:
            known = providers.known((name,)).get(name)
            if known is None and name not in providers.ALL:
                raise RuntimeError(f"Unknown Provider Type: {name}")
            if known is not None and (why := known.probe_with(dict(options))) is not None:
                self._absent[name] = why.reason
                log.warning("%s is left out: %s", name, why.reason)
            elif known is not None:
                created.append(providers.create(name, dict(options)))
        return created

    def _check_fallback(self, engine: Any) -> None:
        from ..errors import Fail

        if self._options._entries.get(_NO_FALLBACK) != "1":
            return
        nodes = [node for name, taken in engine.assignments() if name == _CPU for node in taken]
        if nodes:
            raise Fail("This session contains graph nodes that are assigned to the default CPU EP, but "
                       "fallback to CPU EP has been explicitly disabled by the user.",
                       found=", ".join(f"{op} {name!r}" for _, op, name in nodes[:8]),
                       cure="session.explain() of a session without this setting gives the reasons")

    def _report(self, engine: Any) -> None:
        """What loading noticed, and at verbose level the placement in onnxruntime's words, into the log."""
        for warning in engine.warnings:
            log.warning("%s", warning)
        if not log.isEnabledFor(logging.DEBUG):
            return
        assigned: dict[str, list[tuple[str, str, str]]] = {}
        for provider, nodes in engine.assignments():
            assigned.setdefault(provider, []).extend(nodes)
        log.debug("Node placements")
        if len(assigned) == 1:
            [(provider, nodes)] = assigned.items()
            log.debug(" All nodes placed on [%s]. Number of nodes: %d", provider, len(nodes))
            return
        for provider, nodes in assigned.items():
            log.debug(" Node(s) placed on [%s]. Number of nodes: %d", provider, len(nodes))
            for _, op_type, name in nodes:
                log.debug("  %s (%s)", op_type, name)

    def _close(self) -> None:
        engine, self._engine = self._engine, _Closed()
        engine.close()
        self.end_profiling()

    @property
    def session_options(self) -> SessionOptions:
        return self._given

    @property
    def inputs_meta(self) -> list[NodeArg]:
        return [NodeArg._of(v) for v in self._engine.inputs]

    @property
    def outputs_meta(self) -> list[NodeArg]:
        return [NodeArg._of(v) for v in self._outputs()]

    def _outputs(self) -> list[Value]:
        """The outputs with the sizes that the model promises of them, which nothing else may settle."""
        return [_promised(v, self._engine.info.sizes.get(v.name, {})) for v in self._engine.outputs]

    @property
    def overridable_initializers(self) -> list[NodeArg]:
        return [NodeArg._of(v) for v in self._engine.overridable]

    @property
    def input_meminfos(self) -> list[OrtMemoryInfo]:
        arena = self._options.enable_cpu_mem_arena
        return [memory_info(device, arena) for device in self._engine.devices()[0]]

    @property
    def output_meminfos(self) -> list[OrtMemoryInfo]:
        arena = self._options.enable_cpu_mem_arena
        return [memory_info(device, arena) for device in self._engine.devices()[1]]

    @property
    def input_epdevices(self) -> list[OrtEpDevice]:
        engine = self._engine
        providers = {id(p.device): type(p) for p in reversed(engine.providers) if p.device.kind}
        host = next(type(p) for p in engine.providers if p.name == _CPU)
        return [ep_devices(providers.get(id(device), host))[0] for device in engine.devices()[0]]

    @property
    def model_meta(self) -> ModelMetadata:
        return ModelMetadata._of(self._engine.name, self._engine.info)

    def get_providers(self) -> list[str]:
        return list(self._names)

    def get_provider_options(self) -> dict[str, dict[str, str]]:
        return {name: dict(options) for name, options in self._provider_options.items()}

    def get_provider_graph_assignment_info(self) -> list[OrtEpAssignedSubgraph]:
        """Raises Fail unless the configuration key that asks for it was set."""
        from ..errors import Fail

        if self._options._entries.get(_RECORD) != "1":
            raise Fail(f"Session configuration entry '{_RECORD}' must be set to \"1\" to retrieve EP graph "
                       "assignment information.", cure="session.explain() needs no setting")
        return [OrtEpAssignedSubgraph._of(*entry) for entry in self._engine.assignments()]

    def run(self, output_names: Sequence[str] | None, feeds: Mapping[str, Any], run_options: RunOptions
            | None = None) -> list[Any]:
        """Run once. `output_names` None: all outputs; feeds and results as in `InferenceSession.run`."""
        from ..errors import InvalidArgument

        if output_names is not None and len(output_names) == 0:
            raise InvalidArgument("At least one output should be requested.")
        return self._run(output_names, feeds, run_options)

    def _run(self, output_names: Any, feeds: Any, run_options: RunOptions | None) -> list[Any]:
        """A run with everything: options, adapters, sparse and OrtValue feeds, profile."""
        names = _checked_names(self, output_names, feeds, run_options)
        if not isinstance(feeds, Mapping):
            raise AttributeError(f"'{type(feeds).__name__}' object has no attribute 'keys'")
        values = {name: _fed(value) for name, value in feeds.items()}
        made = self.shortly(names, values, run_options) or self._execute(names, values, run_options)
        return [_handed_out(v) for v in made]

    def _execute(self, names: list[str] | None, feeds: dict[str, Any], run_options: RunOptions
                 | None, targets: Sequence[Any] = ()) -> list[Any]:
        """A run on the engine's own values; `targets`: see `Engine.run`."""
        from ..limits import Deadline

        deadline = None
        if run_options is not None:
            start, given = time.perf_counter(), feeds
            for adapter in run_options._adapters:
                feeds = {**feeds, **{k: v._given() for k, v in adapter._parameters().items()}}
            seconds = run_options._timeout
            if seconds is None:
                seconds = self._engine.config.limits.run_timeout
            deadline = Deadline(seconds, run_options)
            deadline.check()
            if run_options._entries.get(_GRAPH) == _NO_GRAPH:
                from ..lowering.gpu.graphs import unrecorded

                with unrecorded():
                    return self._noted(names, feeds, run_options, deadline, targets)
        made = self._noted(names, feeds, run_options, deadline, targets)
        if run_options is not None:
            self._shortest.learn(given, time.perf_counter() - start)
        return made

    def shortly(self, names: Any, feeds: Any, run_options: Any) -> list[Any] | None:
        """Results by the shortest way; None where that is not to be gone, before anything was done."""
        if run_options is None:
            return self._shortest.run(names, feeds)
        if run_options.__class__ is not RunOptions or run_options._waits() is None:
            return None
        return self._shortest.run(names, feeds, stoppable=True)

    def _noted(self, names: list[str] | None, feeds: dict[str, Any], run_options: RunOptions | None,
               deadline: Any, targets: Sequence[Any]) -> list[Any]:
        """A run whose steps are noted where somebody wants to know."""
        own = None if run_options is None else run_options._profile
        profiles = [each for each in (self._profile, own) if each is not None]
        if profiles or self._collecting:
            return self._recorded(lambda record: self._tagged(
                names, feeds, run_options, deadline, record, targets), names, feeds, profiles)
        return self._tagged(names, feeds, run_options, deadline, None, targets)

    def _tagged(self, names: list[str] | None, feeds: dict[str, Any], run_options: RunOptions | None,
                deadline: Any, record: list[Any] | None, targets: Sequence[Any]) -> list[Any]:
        """A run under the log level and the tag that its options ask for. Raises Fail for a level that is
        none."""
        run = self._engine.run if run_options is None or not run_options._entries else self._configured(
            run_options._entries)
        if run_options is None or (run_options.log_severity_level == -1 and not run_options.logid):
            made: list[Any] = run(names, feeds, deadline, record, targets)
            return made
        from .logs import check_severity, severity

        check_severity(run_options.log_severity_level)
        with severity(run_options.log_severity_level, run_options.logid):
            if run_options.logid:
                log.info("Running with tag: %s", run_options.logid)
            made = run(names, feeds, deadline, record, targets)
            return made

    def _configured(self, entries: Mapping[str, str]) -> Callable[..., list[Any]]:
        """The engine's `run` as the keys of a run's options ask for it. Raises InvalidArgument for a value
        that cannot be read."""
        from .config import to_shrink

        engine = self._engine
        run: Callable[..., list[Any]] = engine.run
        if entries.get(UNSYNCHRONIZED) == "1":
            run = partial(run, synchronize=False)
        text = entries.get("memory.enable_memory_arena_shrinkage", "")
        if not text:
            return run
        devices = to_shrink(text, engine.arenas)

        def shrinking(*given: Any) -> list[Any]:
            try:
                return run(*given)
            finally:
                engine.shrink(devices)
        return shrinking

    def _recorded(self, run: Callable[[list[Any]], list[Any]], names: list[str] | None,
                  feeds: dict[str, Any], profiles: Sequence[ProfileFile]) -> list[Any]:
        """`run`, for the profile files, also where it fails, and for the profiles that are open."""
        record: list[Any] = []
        collecting, start = self._collecting, time.perf_counter_ns()
        try:
            made = run(record)
        finally:
            end = time.perf_counter_ns()
            for profile in profiles:
                profile.run(record, start, end)
        for each in collecting:
            each.add(record, start, end, names, feeds)
        return made

    def run_async(self, output_names: Sequence[str] | None, feeds: Mapping[str, Any],
                  callback: Callable[[Sequence[Any], Any, str], None], user_data: Any,
                  run_options: RunOptions | None = None) -> None:
        """Run on another thread, then call `callback(results, user_data, error)` there; `error` is "" where
        all went well. What is asked and fed is what it is now: later changes of names, of dicts and lists and
        of options do not reach the run, but those of an array's memory and `RunOptions.terminate` do. Where a
        provider can work on its own, the run begins here and only its end is awaited there, so that any
        number of runs may be under way."""
        from ..run.feeds import taken
        from .background import submit

        names = _checked_names(self, output_names, feeds, run_options)
        values = {name: taken(_fed(value)) for name, value in feeds.items()}
        options = None if run_options is None else run_options._taken()
        begun: Callable[[], list[Any]] | None = None
        if options is None and self._profile is None and not self._collecting:
            try:
                begun = self._engine.begin(names, values)
            except Exception as error:
                begun = partial(_failed, error)
        submit(begun or (lambda: [_handed_out(v) for v in self._execute(names, values, options)]), callback,
               user_data)

    def run_with_ort_values(self, feeds: Mapping[str, CoreValue], output_names: Sequence[str],
                            run_options: RunOptions | None = None) -> OrtValueVector:
        """As `run`, with values of this layer in and out."""
        names = _checked_names(self, output_names, feeds, run_options)
        given = {name: v._given() for name, v in feeds.items()}
        results = self.shortly(names, given, run_options) or self._execute(names, given, run_options)
        kinds = {v.name: v.type for v in self._engine.outputs}
        return OrtValueVector._of([CoreValue._got(v, kinds.get(n))
                                   for n, v in zip(names or list(kinds), results, strict=True)])

    def run_with_ortvaluevector(self, run_options: RunOptions, feed_names: Sequence[str],
                                feeds: OrtValueVector, fetch_names: Sequence[str], fetches: OrtValueVector,
                                fetch_devices: Sequence[CoreDevice]) -> None:
        """Run with vectors; results are put into `fetches`, written over tensors that it holds already.

        Raises InvalidArgument where names and values differ in number.
        """
        from ..errors import InvalidArgument

        if len(feed_names) != len(feeds):
            raise InvalidArgument(f"{len(feed_names)} feed names for {len(feeds)} feeds")
        results = self.run_with_ort_values(dict(zip(feed_names, feeds, strict=True)), list(fetch_names),
                                           run_options)
        if len(fetches) == 0:
            fetches._items.extend(results)
            return
        if len(fetches) != len(results):
            raise InvalidArgument(f"{len(fetch_names)} fetch names for {len(fetches)} fetches")
        for place, result in zip(fetches, results, strict=True):
            place.update_inplace(result)

    def run_with_iobinding(self, binding: Any, run_options: RunOptions | None = None) -> None:
        """Run on what is bound. Raises RuntimeError, whatever fails."""
        binding._run(self, run_options)

    def create_ortvalue_from_shape_and_type(self, shape: Sequence[int], element_type: Any,
                                            device: CoreDevice) -> CoreValue:
        """A tensor of zeros."""
        return CoreValue.ortvalue_from_shape_and_type(shape, element_type, device)

    create_ortvalue_from_shape_and_onnx_type = create_ortvalue_from_shape_and_type

    def end_profiling(self) -> str:
        """Write the profile and answer its file's name; "" where there is none, or it was written before."""
        return "" if self._profile is None else self._profile.end()

    @property
    def get_profiling_start_time_ns(self) -> int:
        return 0 if self._profile is None else self._profile.start_ns

    def get_tuning_results(self) -> list[Any]:
        """What providers found to be fastest, an entry for each that is tuned."""
        from ..run import tuning

        return tuning.found(self._engine.providers)

    def set_tuning_results(self, results: list[Any], error_on_invalid: bool = False) -> None:
        """Hand providers what was found before. Raises RuntimeError for what cannot be used, if
        `error_on_invalid`, KeyError for what is incomplete, TypeError for what is no list."""
        from ..run import tuning

        if not isinstance(results, list):
            raise TypeError(f"tuning results are a list, not {type(results).__name__}")
        tuning.hand_over(self._engine.providers, results, error_on_invalid)

    def set_ep_dynamic_options(self, options: Mapping[str, str]) -> None:
        """Hand options to providers while the session lives. Raises InvalidArgument for keys or values that
        are no text."""
        from ..errors import InvalidArgument

        if not all(isinstance(k, str) and isinstance(v, str) for k, v in options.items()):
            raise InvalidArgument("dynamic options are texts", found=repr(options))
        for provider in self._engine.providers:
            setter = getattr(provider, "set_dynamic_options", None)
            if setter is not None:
                setter(dict(options))

    def release_captured_graph(self, graph_annotation_id: int = 0) -> None:
        """Nothing: no provider here captures graphs."""

    def is_webgpu_graph_capture_enabled(self) -> bool:
        return False

    def webgpu_context_id(self) -> int:
        return 0


def _promised(value: Value, sizes: Mapping[int, int | str]) -> Value:
    from ..ir import TensorType, Value

    if not sizes or not isinstance(value.type, TensorType) or value.type.shape is None:
        return value
    shape = tuple(size if isinstance(size, int) and isinstance(promised, str) else promised
                  for axis, size in enumerate(value.type.shape) for promised in [sizes.get(axis, size)])
    return Value(value.name, TensorType(value.type.elem, shape))


def _failed(error: Exception) -> list[Any]:
    raise error


class _Nothing:
    """In place of the engine before `initialize_session`."""

    text = "This session has not been initialized."
    inputs: tuple[Any, ...] = ()
    outputs: tuple[Any, ...] = ()
    overridable: tuple[Any, ...] = ()
    providers: tuple[Any, ...] = ()

    def devices(self) -> tuple[list[Any], list[Any]]:
        return [], []

    def __getattr__(self, name: str) -> Any:
        from ..errors import Fail

        if name.startswith("__"):
            raise AttributeError(name)
        raise Fail(self.text)

    def close(self) -> None:
        """Nothing to let go of."""


class _Closed(_Nothing):
    """In place of the engine after `close`."""

    text = "This session has been closed."


def _checked_names(session: Any, names: Any, feeds: Any, run_options: Any) -> list[str] | None:
    if run_options is not None and not isinstance(run_options, RunOptions):
        raise mismatch("run", _RUN, session, names, feeds, run_options)
    if names is None:
        return None
    try:
        listed = list(names)
    except TypeError:
        listed = [None]
    if isinstance(names, str | bytes) or not all(isinstance(n, str) for n in listed):
        raise mismatch("run", _RUN, session, names, feeds, run_options)
    return listed


def _fed(value: Any) -> Any:
    """A feed as the engine takes it."""
    if isinstance(value, OrtValue):
        value = value._ortvalue
    elif isinstance(value, SparseTensor):
        value = value._tensor
    if isinstance(value, CoreValue):
        return value._given()
    return value.to_array() if isinstance(value, CoreSparse) else value


def _handed_out(value: Any) -> Any:
    """A result as a user gets it."""
    from ..ir import SparseArray

    return SparseTensor(CoreSparse.from_array(value)) if isinstance(value, SparseArray) else value


def _delegated(delegate: Any, source: Any) -> list[str]:
    """The providers that a user's function chooses. Raises Fail where it fails or chooses none."""
    from ..errors import Fail
    from .devices import get_ep_devices
    from .peek import metadata

    try:
        chosen = delegate(get_ep_devices(), metadata(source), {}, 8)
    except Exception as error:
        raise Fail(f"EP selection delegate failed: {type(error).__name__}: {error}") from error
    if not chosen:
        raise Fail("EP selection delegate did not select anything.")
    return list(dict.fromkeys(d.ep_name for d in chosen))


def path_of(source: Any) -> str | None:
    """The path that `source` is, or None for a model itself. Raises TypeError for anything that can be
    neither."""
    if isinstance(source, str | os.PathLike):
        return os.fsdecode(source)
    if isinstance(source, bytes | bytearray | memoryview) or (
            type(source).__name__ == "ModelProto" and hasattr(source, "SerializeToString")):
        return None
    raise TypeError(f"Unable to load from type '{type(source)}'")
