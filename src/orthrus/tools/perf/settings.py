"""What a perf-test measures, in full: a model, an engine with its options, inputs and a budget.

In: `Flags`. Out: `Settings`, plain data that another process can be given; and, per flag that changes nothing
here, a sentence that says so. A command line that cannot be meant raises UsageFault.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path

from ...records import dataclass
from ..shapes.open_dimensions import Shapes
from .flags import Flags, UsageFault

VERSUS_SECONDS = 10.0
"""How long each side runs in a comparison for which no budget is given."""
SHORT_NAMES = frozenset((
    "cpu", "cuda", "dnnl", "tensorrt", "nvtensorrtrtx", "openvino", "dml", "acl", "nnapi", "coreml", "qnn",
    "snpe", "migraphx", "xnnpack", "vitisai", "webgpu", "vsinpu", "rocm", "armnn", "spacemit", "iree"))
"""What onnxruntime_perf_test and its forks take after -e."""
ORDINARY = Flags()
_SHAPES = re.compile(r"(.+?):((?:\[[0-9,]*\])+)")

Providers = tuple[tuple[str, dict[str, str]], ...]


@dataclass(frozen=True)
class Settings:
    """A measurement. `module` is the engine's Python module; `runs` or `seconds` is its budget, the other
    None; `shapes` holds the inputs' shapes per group, `free` and `denoted` free dimensions."""

    model: str
    module: str
    providers: Providers
    runs: int | None
    seconds: float | None
    concurrent: int
    binding: bool
    generate: bool
    seed: int
    shapes: tuple[Shapes, ...]
    free: dict[str, int]
    denoted: dict[str, int]
    level: int
    optimized: str
    in_memory: bool
    arena: bool
    pattern: bool
    intra: int
    inter: int
    parallel: bool
    entries: dict[str, str]
    custom_ops: str
    profile: str
    verbose: bool
    modules: tuple[str, ...]

    @property
    def model_name(self) -> str:
        """The name of the folder the model is in, without a leading `test_`."""
        return Path(os.path.abspath(self.model)).parent.name.removeprefix("test_")

    @property
    def engine(self) -> str:
        """Module and first provider, for people: `orthrus cpu`."""
        name = self.providers[0][0].removesuffix("ExecutionProvider").lower() if self.providers else "cpu"
        return f"{self.module} {name}"


def settings_of(flags: Flags) -> Settings:
    """Check `flags` and put them together. Raises UsageFault for what cannot be meant, ValueError for a
    provider that is not here."""
    if not flags.model:
        raise UsageFault("no model is given")
    if flags.extensions:
        raise ValueError("-X: onnxruntime-extensions is compiled for onnxruntime and cannot be loaded; "
                         "define its operators in Python with @orthrus.op, in a module given to --import")
    if flags.versus and (flags.profile or flags.exit_early):
        raise UsageFault("--vs goes neither with -p, which slows one side down, nor with -n")
    runs, seconds = _budget(flags)
    entries = {**{key: value for _, key, value in _entries(flags)}, **pairs(flags.config, "-C")}
    return Settings(
        model=flags.model, module="orthrus", providers=_providers(flags), runs=runs, seconds=seconds,
        concurrent=flags.concurrent, binding=flags.binding, generate=flags.generate or bool(flags.data_shape),
        seed=flags.seed, shapes=shape_groups(flags.data_shape), free=dimensions(flags.by_name, "-f"),
        denoted=dimensions(flags.by_denotation, "-F"), level=flags.level if flags.level <= 3 else 99,
        optimized=flags.optimized, in_memory=flags.in_memory, arena=not flags.no_arena,
        pattern=not flags.no_pattern, intra=flags.intra, inter=flags.inter, parallel=flags.parallel,
        entries=entries, custom_ops=flags.custom_ops, profile=flags.profile, verbose=flags.verbose,
        modules=tuple(flags.modules))


def _budget(flags: Flags) -> tuple[int | None, float | None]:
    if flags.mode not in ("duration", "times"):
        raise UsageFault(f"-m {flags.mode}: expected duration or times")
    if flags.seconds <= 0:
        raise UsageFault(f"-t {flags.seconds:g}: expected more than no time")
    timed = flags.seconds != ORDINARY.seconds
    if (flags.mode == "times" or flags.repeat != ORDINARY.repeat) and not timed:
        return flags.repeat, None
    return None, VERSUS_SECONDS if flags.versus and not timed else flags.seconds


def pairs(text: str, flag: str) -> dict[str, str]:
    """`k|v k|v` as a mapping. Raises UsageFault for another form."""
    found: dict[str, str] = {}
    for word in text.split():
        key, bar, value = word.partition("|")
        if not key or not bar:
            raise UsageFault(f"{flag} {text!r}: {word!r} is not KEY|VALUE")
        found[key] = value
    return found


def dimensions(given: Sequence[str], flag: str) -> dict[str, int]:
    """`name:3` texts, several in one text too, as a mapping. Raises UsageFault for another form, or a value
    below 1."""
    found: dict[str, int] = {}
    for word in " ".join(given).split():
        name, _, value = word.strip("'\"").rpartition(":")
        if not name or not value.isdecimal() or int(value) < 1:
            raise UsageFault(f"{flag} {word}: expected NAME:VALUE with a value above 0")
        found[name] = int(value)
    return found


def shape_groups(text: str) -> tuple[Shapes, ...]:
    """`x:[1,3][2,3] y:[1][2]` as a mapping per group. Raises UsageFault for another form, or inputs with
    different numbers of shapes."""
    shapes: dict[str, list[tuple[int, ...]]] = {}
    for word in text.split():
        match = _SHAPES.fullmatch(word)
        if match is None:
            raise UsageFault(f"--data_shape {word}: expected NAME:[1,3,224,224], with a [...] per group")
        shapes[match[1]] = [tuple(int(d) for d in dims.split(",") if d)
                            for dims in match[2][1:-1].split("][")]
    counts = {name: len(each) for name, each in shapes.items()}
    if len(set(counts.values())) > 1:
        raise UsageFault("--data_shape: every input needs the same number of shapes, not " +
                         ", ".join(f"{count} for {name}" for name, count in counts.items()))
    return tuple({name: shapes[name][i] for name in shapes} for i in range(max(counts.values(), default=0)))


def _entries(flags: Flags) -> Iterator[tuple[str, str, str]]:
    """(flag, configuration key, value) for every flag that stands for a key."""
    if flags.no_spin:
        yield "-D", "session.intra_op.allow_spinning", "0"
    if flags.stop_spin:
        yield "-Z", "session.force_spinning_stop", "1"
    if flags.spin_us != ORDINARY.spin_us:
        yield "--spin_duration_us", "session.intra_op.spin_duration_us", str(flags.spin_us)
    if flags.spin_backoff != ORDINARY.spin_backoff:
        yield "--spin_backoff_max", "session.intra_op.spin_backoff_max", str(min(flags.spin_backoff, 64))
    if flags.denormals:
        yield "-z", "session.set_denormal_as_zero", "1"
    if flags.prepacked:
        yield "--opt_save_prepacks", "session.save_external_prepacked_constant_initializers", "1"
    if flags.affinity:
        yield "-T", "session.intra_op_thread_affinities", flags.affinity
    if flags.opt_data:
        yield "--opt_data", "session.optimized_model_external_initializers_file_name", flags.opt_data
    if flags.opt_minimum >= 0:
        yield ("--opt_weight_min_size", "session.optimized_model_external_initializers_min_size_in_bytes",
               str(flags.opt_minimum))


def _providers(flags: Flags) -> Providers:
    """The providers by full name, in order of priority, with their options."""
    import orthrus as ort

    from ...providers import known

    for word, library in pairs(flags.plugin_libs, "--plugin_ep_libs").items():
        ort.register_execution_provider_library(word, library)
    if not (flags.plugin_eps or flags.select_devices or flags.filter_devices):
        return ((full_provider(flags.provider, list(known())), pairs(flags.options, "-i")),)
    wanted = [name for name in flags.plugin_eps.split(";") if name]
    texts = flags.plugin_options.split(";") if flags.plugin_options else []
    if len(texts) > max(1, len(wanted)):
        raise UsageFault(f"--plugin_ep_options has {len(texts)} parts for {len(wanted)} providers")
    options = {name: pairs(text, "--plugin_ep_options") for name, text in zip(wanted, texts, strict=False)}
    devices = ort.get_ep_devices()
    if flags.select_devices:
        chosen = [d for d in flags.select_devices.split(";") if d]
        if not all(d.isdecimal() and int(d) < len(devices) for d in chosen):
            raise UsageFault(f"--select_ep_devices {flags.select_devices}: expected indices below "
                             f"{len(devices)}, as --list_ep_devices prints them")
        names = [devices[int(d)].ep_name for d in chosen]
    else:
        metadata = pairs(flags.filter_devices, "--filter_ep_devices")
        names = [d.ep_name for d in devices
                 if not metadata or any(d.ep_metadata.get(k) == v for k, v in metadata.items())]
    found = [name for name in dict.fromkeys(names) if not wanted or name in wanted]
    if not found or (wanted and not set(wanted) & set(found)):
        raise ValueError(f"no device of {flags.plugin_eps or 'any provider'} fits; there are "
                         f"{', '.join(d.ep_name for d in devices)}")
    found.sort(key=lambda name: name == "CPUExecutionProvider")
    return tuple((name, options.get(name, {})) for name in found)


def full_provider(name: str, there: Sequence[str]) -> str:
    """The full name of a provider. Raises UsageFault for a name nobody knows, ValueError for one that is not
    registered here."""
    from ...providers import ALL
    from ..asked import full_name

    try:
        return full_name(name, there)
    except ValueError:
        short = name.removesuffix("ExecutionProvider").lower()
        listed = ", ".join(n.removesuffix("ExecutionProvider").lower() for n in there)
        if short in SHORT_NAMES or any(short == n.removesuffix("ExecutionProvider").lower() for n in ALL):
            raise ValueError(f"provider {name} is not registered here; there are {listed}") from None
        raise UsageFault(f"-e {name}: no such provider; there are {listed}") from None


def notes(flags: Flags) -> Iterator[str]:
    """A sentence per given flag that changes nothing here."""
    from ...api.config import INERT
    from ...codegen.runtime.threads import SPIN

    spins = f"threads look for work for {1e3 * SPIN:g} ms after a job and then sleep"
    why: Mapping[str, str] = {
        "-D": spins, "-Z": spins, "--spin_duration_us": spins, "--spin_backoff_max": spins,
        "-z": "denormal numbers are computed as they are",
        "--opt_save_prepacks": "packed weights are made anew for each machine"}
    for flag, key, _ in _entries(flags):
        if key in INERT:
            yield f"{flag} has no effect: {why[flag]}"
    if flags.affinity and not hasattr(os, "sched_setaffinity"):
        yield "-T has no effect: this system does not pin threads"
    if (flags.opt_data or flags.opt_minimum >= 0) and not flags.optimized:
        yield "--opt_data and --opt_weight_min_size have no effect without -u"
    if flags.spin_backoff > 64:
        yield "--spin_backoff_max is at most 64"
    others = {
        "algorithm": "-d has no effect: no provider here uses cuDNN",
        "copy_stream": "-q has no effect: tensors are handed over in host memory",
        "mempool": "--enable_cuda_mempool has no effect: no provider here has CUDA's memory pool",
        "shrink": "--shrink_arena_between_runs has no effect: an arena does not grow beyond its plan",
        "plugin_allocator": "--plugin_ep_force_cpu_allocator has no effect: tensors are in host memory",
        "telemetry": "--enable_telemetry has no effect: Orthrus sends nothing",
        "telemetry_sessions": "--telemetry_smoke_sessions has no effect: Orthrus sends nothing"}
    for each in fields(Flags):
        if each.name in others and getattr(flags, each.name) != getattr(ORDINARY, each.name):
            yield others[each.name]


def opponent(text: str, settings: Settings) -> Settings:
    """The same measurement with what --vs names: a provider, or a module with its providers. Raises
    ValueError for what is neither."""
    from importlib.util import find_spec

    from ...providers import known
    from ..asked import full_name

    module, _, names = text.partition(":")
    rest = replace(settings, optimized="")
    if not names:
        try:
            return replace(rest, module="orthrus", providers=((full_name(text, list(known())), {}),))
        except ValueError:
            pass
    try:
        there = find_spec(module) is not None
    except (ImportError, ValueError):
        there = False
    if not there:
        raise ValueError(f"--vs {text}: neither a provider nor a module that is installed; perhaps: pip "
                         f"install {module}; providers are {', '.join(known())}")
    asked = names.split("+") if names else ["CPUExecutionProvider"]
    if module == "orthrus":
        asked = [full_name(name, list(known())) for name in asked]
    return replace(rest, module=module, providers=tuple((name, {}) for name in asked))
