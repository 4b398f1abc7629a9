"""All stages in a row: a model goes in, and an object comes out that runs it.

`Engine` is what every public surface stands on. It holds the optimized graph, where each node was placed and
why, and a program with a plan per tuple of input shapes. It may run on many threads at once.
"""

from __future__ import annotations

import copy
import logging
import sys
import time
import weakref
from collections.abc import Callable, Collection, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import knobs
from ..errors import ALL, Fail, InvalidArgument, unforeseen
from ..ir import Graph, OptionalType, Value
from ..kernels import HOST, Device, DeviceArray, KernelRegistryManager, Lanes, copied, running
from ..limits import Deadline, swap, using
from ..locks import lock
from ..memory import release
from ..modelfile import ModelFile
from ..partition import Placement, partition
from ..plan import Call, Program, build
from ..providers import CPUExecutionProvider, ExecutionProvider
from ..providers.trust import Trust
from ..records import dataclass
from . import tuning
from .config import Config
from .dimensions import agree, fix_dimensions, name_apart, shared_names
from .executor import LONG, Context, ParallelExecutor, Watcher, execute, failure, watched
from .fast_way import FastWay
from .feeds import entry, lacking
from .fetch import Fetch
from .results import constants_of, results
from .short_way import ShortWay
from .watch import See, Showing, mark

if TYPE_CHECKING:
    from .dump import Dump
    from .explain import Explanation

log = logging.getLogger("orthrus")
_KINDS = {0: "cpu", 1: "gpu", 3: "npu"}
FETCHES = 64
"""Choices of outputs an engine keeps the steps and plans of."""
Target = Device | DeviceArray | np.ndarray | None
"""Where a result is to be had; None: anywhere on the host."""


@dataclass(eq=False)
class Repeat:
    """A run of one step with the very arrays of an earlier one. `work`: the step, what it reads, and what
    `Kernel.again` gave for that; None once the engine is closed."""

    engine: Engine
    work: tuple[Call, list[Any], Callable[[], bool]] | None


class Engine:
    """A model, ready to run. Raises what loading, placing and compiling raise; see `errors`.

    Making it and running it, numpy says nothing of infinities, NaN and overflows: they are results."""

    @np.errstate(all="ignore")
    def __init__(self, source: Any, config: Config) -> None:
        self.config = config
        self._lanes: list[Lanes] = []
        self.timings: dict[str, float] = {}
        self._dump = _dump_asked(config.entries)
        try:
            with using(config.limits), self._dump.scope() if self._dump is not None else nullcontext():
                self._make(source)
        except BaseException:
            if "graph" in self.__dict__:
                self.graph.release()
            raise

    def _make(self, source: Any) -> None:
        from .. import load as loading
        from ..codegen.object import override
        from ..optimize import optimize

        config = self.config
        if isinstance(source, str):
            source = ModelFile(source)
        graph = self._timed("load", lambda: loading.load(
            source, limits=config.limits, external_root=config.external_root,
            initializers={**config.initializers, **config.external_initializers},
            strict=config.entries.get("session.strict_shape_type_inference") == "1",
            released_only=config.entries.get("session.allow_released_opsets_only") == "1",
            mapped=config.entries.get("orthrus.map_external_data") != "0"))
        if config.free_dims or config.free_denotations:
            fix_dimensions(graph, config.free_dims, config.free_denotations)
        if config.names_apart:
            name_apart(graph)
        self.kinds = {(node.domain, node.op_type) for node in graph.walk()}
        self._take(graph)
        self.level = min([config.level, *(p.level for p in config.providers)])
        self.journal = self._stage("optimize", lambda: optimize(graph, self.level, config.skip,
                                                                limits=config.limits))
        self.kinds.update((node.domain, node.op_type) for node in graph.walk())
        mark(graph, config.entries)
        self._appoint()
        tuning.take_from(graph.info.metadata, self.providers)
        self.placement = self._stage("partition", lambda: partition(graph, self.providers))
        if self._dump is not None:
            self._dump.parts(self.placement)
        if config.optimized_model_path:
            loading.save(graph, config.optimized_model_path)
        self.program: Program = self._stage("compile", self._built)
        self._check_fallback([p.name for p in config.providers])
        if edits := override.unused():
            log.warning("ORTHRUS_OVERRIDE: no kernel of this process is called %s", ", ".join(edits))
        self._source = source
        self._finish()

    def _built(self) -> Program:
        """The program; constants are on their devices."""
        self._lanes = list({id(p.device): p.lanes() for p in reversed(self.providers)
                            if p.device.streams}.values())
        with running(self._lanes) if self._lanes else nullcontext():
            return build(self.placement, self.providers, Trust.asked(self.config.entries,
                                                                           self.config.context_reader))

    @property
    def warnings(self) -> list[str]:
        """What loading noticed."""
        return self.info.warnings

    def _take(self, graph: Graph) -> None:
        """Let `graph` be what runs; its inputs and outputs are described as they are now."""
        self.graph: Graph = graph
        self.name, self.info = graph.name, graph.info
        self.overridable: list[Value] = [v for v in graph.inputs if v.default is not None]
        self.inputs: list[Value] = [_described(v) for v in graph.inputs if v.default is None]
        self.outputs: list[Value] = [_described(v) for v in graph.outputs]

    def _appoint(self) -> None:
        """Tell the providers of this session about each other; the CPU provider is one of them."""
        config = self.config
        self.providers = list(config.providers)
        if all(p.name != CPUExecutionProvider.name for p in self.providers):
            self.providers.append(CPUExecutionProvider())
        registries = KernelRegistryManager(config.kernels)
        for provider in self.providers:
            registries.register(provider.name, provider.kernels)
            provider.registries = registries
            provider.threads = config.intra_op_threads
            provider.strict = config.fallback == "error"
            provider.settle(config.entries)

    def _finish(self) -> None:
        """What runs need beside the program."""
        config, graph = self.config, self.graph
        self._names = [v.name for v in self.outputs]
        self._slot_of = dict(zip(self._names, self.program.outputs, strict=True))
        self._defaulted = {v.name for v in self.overridable}
        self._required = [v.name for v in self.inputs if not isinstance(v.type, OptionalType)]
        self._entries = {v.name: (slot, entry(v, config.limits.max_tensor_bytes))
                         for v, slot in zip(graph.inputs, self.program.inputs, strict=True)}
        self._shared = [] if config.names_apart else shared_names(self.inputs)
        self._source = self._source if self._shared else None
        self._literal: Engine | None = None
        self.when_literal: Callable[[Engine, Engine], None] | None = None
        self._dumps = self._dump is not None and self._dump.watches_runs
        self._plain = not (self._dumps or config.parallel or len(self.program.devices) > 1
                           or config.limits.run_timeout < LONG)
        self._hooks = [p for p in self.providers if type(p).on_run_start is not ExecutionProvider.on_run_start
                       or type(p).on_run_end is not ExecutionProvider.on_run_end]
        plain = self._plain and not self._hooks
        self.fast = FastWay.of(
            self.program, self.inputs, self._names, config.limits.max_tensor_bytes) if plain else None
        if self.fast is None and len(self.program.steps) > 1:
            self.program.shorten()
        self._fetches: dict[tuple[Any, ...] | None, Fetch] = {
            None: Fetch(self.program, self.program.outputs, config.limits)}
        self._lock = lock()
        self._repeats = weakref.WeakSet[Repeat]()
        self._parallel = ParallelExecutor(config.inter_op_threads, config.limits) if config.parallel else None
        self._walk = execute if self._parallel is None else self._parallel.execute
        self.see: See | None = None
        self._constants = constants_of(self.program)
        if knobs.DEBUG >= 1:
            told = str(self.explain())
            log.info("%s", told if knobs.DEBUG >= 3 else "\n".join(told.splitlines()[:3]))
        self.short = ShortWay.of(
            self.program, self._entries, self._shared, self._names, self._constants, config.limits,
            self.fast) if plain else None
        if self.short is not None and any(node.has_bodies for node in graph.nodes):
            from .joining import Joining

            self.short.joining = Joining.of(self)
        self.one_step = self.fast is not None
        self.quick = self.fast.run if self.fast is not None else None
        if self.short is not None and self.quick is None and all(c.kernel.own for c in self.program.calls):
            self.quick = self.short.run
        self._pooled = config.memory_arena and all(p.settings.get("use_arena", True) for p in self.providers)
        self._arena = (self._pooled and config.memory_pattern and config.memory_reuse
                       and not config.parallel)

    def _stage(self, name: str, stage: Callable[[], Any]) -> Any:
        """`_timed`, with a typed error where nobody foresaw one."""
        try:
            return self._timed(name, stage)
        except ALL:
            raise
        except Exception as error:
            raise unforeseen(error, name) from error

    def _timed(self, name: str, stage: Any) -> Any:
        start = time.perf_counter()
        made = stage()
        self.timings[name] = time.perf_counter() - start
        return made

    def _check_fallback(self, asked: Sequence[str]) -> None:
        """Warn or fail where a node that another provider was asked for runs on the CPU provider."""
        preferred = [name for name in asked if name != CPUExecutionProvider.name]
        if not preferred or self.config.fallback == "allow":
            return
        fallen = [node for part in self.placement.parts if part.provider == CPUExecutionProvider.name
                  for node in part.nodes if not node.has_bodies]
        if not fallen:
            return
        reasons = "; ".join(f"{node}: " + ", ".join(map(str, self.placement.refusals[node]))
                            for node in fallen[:8])
        text = (f"{len(fallen)} of {len(self.graph.nodes)} nodes fell back to the CPU provider although "
                f"{', '.join(preferred)} was asked for")
        if self.config.fallback == "error":
            raise Fail(text, node=fallen[0], found=reasons,
                       cure="fallback='allow', or change what the reasons name")
        log.warning("%s: %s", text, reasons)

    def run(self, output_names: Sequence[str] | None, feeds: dict[str, Any], deadline: Deadline | None = None,
            record: list[Any] | None = None, targets: Sequence[Target] = (),
            synchronize: bool = True) -> list[Any]:
        """Run once. `output_names` None or empty: all outputs. `targets`: for each of them an array, which is
        the result, filled, where that can be; or the device on which it is to be had, as is that of an array,
        where the session has that one. What is fed may lie on any device. `synchronize`: whether devices have
        done all of their work when this returns; results in the host's memory are whole in any case.

        Raises ValueError for a missing feed, InvalidArgument for a feed or an output name that does not fit,
        and the error of a step that fails. `record` receives what `Recording` notes.
        """
        if not self._lanes:
            return self._run(output_names, feeds, deadline, record, targets)
        with running(self._lanes, synchronize):
            return self._run(output_names, feeds, deadline, record, targets)

    def _run(self, output_names: Sequence[str] | None, feeds: dict[str, Any], deadline: Deadline | None,
             record: list[Any] | None, targets: Sequence[Target]) -> list[Any]:
        plain = deadline is None and record is None and not targets and self.see is None
        if self.short is not None and plain:
            made = self.short.run(output_names, feeds)
            if made is not None:
                return made
        names = tuple(output_names) if output_names else None
        fetch = self._fetches.get(names) or self._new_fetch(names)
        fed = self._fed(feeds)
        if len(self.program.devices) > 1:
            fetch = self._placed_fetch(names, fed, targets) or fetch
        shapes = [getattr(value, "shape", None) for value in fed.values()]
        if self._shared and not agree(self._shared, feeds):
            return self._unassuming().run(names, feeds, deadline, record, targets)
        limits = self.config.limits
        if self.overridable:
            shapes.extend(feeds)
        plan = fetch.plan(tuple(shapes), feeds) if self._arena else None
        if plan is None:
            slots, block, steps = fetch.program.template.copy(), None, fetch.code
        else:
            instance = plan.take()
            slots, block, steps = instance[0].copy(), instance[1], plan.arena.code
        for slot, value in fed.items():
            slots[slot] = value
        watcher = self._watcher(record, fed) if self._loud(record) else None
        room = limits.max_total_bytes if block is None else limits.max_total_bytes - block.nbytes
        context = Context(room, limits.run_timeout, deadline, watcher)
        if targets and watcher is None:
            steps = fetch.filling(steps, targets, context.urgent)
        before = swap(limits, context)
        try:
            for provider in self._hooks:
                provider.on_run_start()
            with np.errstate(all="ignore"):
                if watcher is not None:
                    with watcher:
                        watched(steps, slots, context, watcher)
                else:
                    self._walk(steps, slots, context)
            made = results(fetch.take(slots), fed.values(), self._constants, block, targets)
        finally:
            swap(*before)
            for provider in self._hooks:
                provider.on_run_end()
        if plan is not None:
            plan.give(instance)
        if self.fast is not None:
            step = fetch.code[0][4]
            self.fast.learn(step, [fed[slot] for slot in step.reads])
        return made

    def repeating(self, output_names: Sequence[str], feeds: dict[str, Any], targets: Sequence[Target]
                  ) -> Repeat | None:
        """What `again` takes to repeat a run that was just done with these arrays; None where that is no
        gain: they do not all lie on the device of the one step there is, or its kernel knows no short way."""
        if self._dumps or self._parallel is not None or self.config.limits.run_timeout < LONG or (
                not self._lanes or self._shared and not agree(self._shared, feeds)):
            return None
        fed = self._fed(feeds)
        fetch = self._placed_fetch(tuple(output_names), fed, targets)
        step = fetch.calls[0] if fetch is not None and len(fetch.code) == 1 else None
        if fetch is None or step is None or step.kernel.again is None or (
                sorted(step.writes) != sorted(fetch.outputs)):
            return None
        given = [fed.get(slot, self.program.template[slot]) for slot in step.reads]
        wanted = dict(zip(fetch.outputs, targets, strict=True))
        with running(self._lanes, synchronize=False):
            redo = step.kernel.again(given, [wanted[slot] for slot in step.writes])
        if redo is None:
            return None
        made = Repeat(self, (step, given, redo))
        self._repeats.add(made)
        return made

    def again(self, repeat: Repeat, synchronize: bool = True) -> bool:
        """Run as `run` would, where nothing but `repeat` is needed for that; False where it is `run` that has
        to. Raises as that does."""
        if repeat.work is None or self._loud(None):
            return False
        step, given, redo = repeat.work
        with running(self._lanes, synchronize):
            for provider in self._hooks:
                provider.on_run_start()
            try:
                return redo()
            except Exception as error:
                raise failure(step, error, given) from error
            finally:
                for provider in self._hooks:
                    provider.on_run_end()

    def _loud(self, record: list[Any] | None) -> bool:
        """Whether anything might look on."""
        return bool(record is not None or self._dumps or self.see is not None or knobs.DEBUG.value
                    or knobs.CHECK.value)

    def _watcher(self, record: list[Any] | None, fed: dict[int, Any]) -> Watcher | None:
        """What looks on, by the configuration, the switches and `record`; None where nothing does."""
        if self._dumps or self.see is not None:
            inputs = {v: fed.get(i, self.program.template[i]) for v, i in zip(
                self.program.graph.inputs, self.program.inputs, strict=True)}
            if self.see is not None:
                constants = self.program.graph.initializers.values()
                return Showing(self.see, inputs | {v: v.const for v in constants if v.watched})
            assert self._dump is not None
            return self._dump.watcher({v.name: given for v, given in inputs.items()})
        if knobs.CHECK >= 2:
            from .check import Checking

            return Checking()
        if record is None and not knobs.DEBUG >= 2:
            return None
        from .record import Recording

        return Recording([] if record is None else record)

    def _fed(self, feeds: dict[str, Any]) -> dict[int, Any]:
        """The values fed, checked, by slot."""
        for name in self._required:
            if name not in feeds:
                missing = [n for n in self._required if n not in feeds]
                raise lacking(missing, feeds)
        fed, entries = {}, self._entries
        for name, given in feeds.items():
            known = entries.get(name)
            if known is None:
                if given is None:
                    continue
                raise InvalidArgument(f"Invalid input name: {name}", expected=", ".join(entries),
                                      cure="feed only what session.get_inputs() lists")
            if given is None and name in self._defaulted:
                continue
            fed[known[0]] = value = known[1](given)
            if isinstance(value, DeviceArray) and value.device not in self.program.devices:
                fed[known[0]] = copied(value, HOST)
        return fed

    def begin(self, output_names: Sequence[str] | None, feeds: dict[str, Any]
              ) -> Callable[[], list[Any]] | None:
        """Begin a run without waiting for it, where the program is one step whose provider works on its own:
        a function that waits and gives the results. None where a run has to be done by `run`. Raises as
        `run` does, and so does the function."""
        fetch = self._alone(output_names, feeds)
        if fetch is None or (step := fetch.calls[0]).kernel.start is None:
            return None
        fed, slots, given = self._given(fetch, step, feeds)
        try:
            with np.errstate(all="ignore"):
                wait = step.kernel.start(*given)
        except Exception as error:
            raise failure(step, error, given) from error

        def finish() -> list[Any]:
            code = [(lambda *_: wait(), *fetch.code[0][1:])]
            execute(code, slots, Context(self.config.limits.max_total_bytes, LONG))
            return results(fetch.take(slots), fed.values(), self._constants, None)
        return finish

    def _alone(self, output_names: Sequence[str] | None, feeds: dict[str, Any]) -> Fetch | None:
        """What computes these outputs, where that is one step, nothing watches it, and `feeds` agree about
        dimensions."""
        names = tuple(output_names) if output_names else None
        fetch = self._fetches.get(names) or self._new_fetch(names)
        quiet = self._plain and not self._hooks and not self._loud(None)
        return fetch if quiet and len(fetch.code) == 1 and (
            not self._shared or agree(self._shared, feeds)) else None

    def _given(self, fetch: Fetch, step: Call, feeds: dict[str, Any]
               ) -> tuple[dict[int, Any], list[Any], list[Any]]:
        """The values fed, by slot; all slots with these in them; what `step` reads of them."""
        fed, slots = self._fed(feeds), fetch.program.template.copy()
        for slot, value in fed.items():
            slots[slot] = value
        return fed, slots, [slots[slot] for slot in step.reads]

    def _unassuming(self) -> Engine:
        """An engine for the same model in which no two dimensions share a name: feeds contradict them."""
        with self._lock:
            if self._literal is None:
                log.info("dimensions of one name were fed with several sizes; their names are told apart")
                self._literal = Engine(
                    self._source, replace(self.config, names_apart=True, optimized_model_path=""))
                if self.when_literal is not None:
                    self.when_literal(self, self._literal)
            return self._literal

    def _new_fetch(self, names: tuple[str, ...] | None) -> Fetch:
        program, whole = self.program, self._fetches.get(None)
        if whole is None or not names:
            raise Fail("This session has been closed.", cure="make a new one")
        for name in names:
            if name not in self._slot_of:
                raise InvalidArgument(f"Invalid output name:{name}", expected=", ".join(self._names),
                                      cure="ask only for what session.get_outputs() lists")
        return self._kept_fetch(names, Fetch(program, [self._slot_of[n] for n in names], self.config.limits))

    def _placed_fetch(self, names: tuple[str, ...] | None, fed: dict[int, Any],
                      targets: Sequence[Target]) -> Fetch | None:
        """The steps where something comes from another device than the host, or has to go there; None where
        all is the host's."""
        number = {id(device): i for i, device in enumerate(self.program.devices)}
        come = {slot: number[id(v.device)] for slot, v in fed.items() if isinstance(v, DeviceArray)}
        go = [number.get(id(t.device if isinstance(t, DeviceArray) else t), 0) for t in targets]
        if not come and not any(go):
            return None
        key = (names, tuple(sorted(come.items())), tuple(go))
        return self._fetches.get(key) or self._kept_fetch(key, Fetch(
            self.program, [self._slot_of[n] for n in names or self._names], self.config.limits, come, go))

    def _kept_fetch(self, key: tuple[Any, ...], fetch: Fetch) -> Fetch:
        if len(self.program.devices) > 1:
            self._constants = constants_of(self.program)
        with self._lock:
            if (whole := self._fetches.get(None)) is not None:
                self._fetches = {None: whole} if len(self._fetches) > FETCHES else self._fetches
                self._fetches[key] = fetch
        return fetch

    def explain(self) -> Explanation:
        """Per node: which provider and kernel took it, and why each provider before it did not; what compiled
        parts hold, memory, and passes."""
        from ..optimize import unused
        from .explain import explain

        whole = self._fetches.get(None)
        arenas = [plan.arena for plan in whole.plans.values() if plan is not None] if whole else []
        return explain(self.placement, self.program, self.journal, self.timings,
                       unused(self.level, self.config.skip), arenas[-1] if arenas else None)

    def devices(self) -> tuple[list[Device], list[Device]]:
        """Where inputs are best fed from, and where outputs are made."""
        program = self.program
        if len(program.devices) == 1:
            return [HOST] * len(self.inputs), [HOST] * len(self.outputs)
        slots = [self._entries[v.name][0] for v in self.inputs]
        return ([program.devices[program.read_on(slot)] for slot in slots],
                [program.devices[program.places.get(slot, 0)] for slot in program.outputs])

    @property
    def arenas(self) -> list[tuple[str, int]]:
        """The devices that runs keep memory of, as `shrink` takes them."""
        return ([("cpu", 0)] if self._pooled else []) + [
            (_KINDS.get(lanes.device.kind, "npu"), lanes.device.index) for lanes in self._lanes]

    def shrink(self, devices: Collection[tuple[str, int]]) -> None:
        """Let go of the memory that is kept for further runs on these of `arenas`."""
        if ("cpu", 0) in devices:
            for fetch in list(self._fetches.values()):
                fetch.shrink()
            release()
        for lanes, name in zip(reversed(self._lanes), reversed(self.arenas), strict=False):
            if name in devices:
                lanes.allocator.trim()

    def assignments(self) -> list[tuple[str, list[tuple[str, str, str]]]]:
        """(provider, [(domain, operator, node name), ...]) for each part, and for each node that its provider
        took by itself."""
        made: list[tuple[str, list[tuple[str, str, str]]]] = []
        for part in self.placement.parts:
            nodes = [(n.domain, n.op_type, n.name) for n in part.nodes]
            alone = part.provider == CPUExecutionProvider.name
            made.extend((part.provider, each) for each in ([[n] for n in nodes] if alone else [nodes]))
        return made

    def close(self) -> None:
        """Let go of threads and memory; a later run raises Fail, one on another thread ends as if nothing
        were."""
        with self._lock:
            self._fetches = {}
        for repeat in list(self._repeats):
            repeat.work = None
        if self.fast is not None:
            self.fast.close()
        if self._parallel is not None:
            self._parallel.close()
        if self._literal is not None:
            self._literal.close()
        self._source = self._literal = None
        self._release()

    def __del__(self, ending: Callable[[], bool] = sys.is_finalizing) -> None:
        if "program" in self.__dict__ and not ending():
            self._release()

    def _release(self) -> None:
        """Give up graph and program, and let the weights go with them.

        Values and the nodes that read them refer to each other; without this, weights would stay until the
        garbage collector comes by. Whoever else holds the graph keeps it whole.
        """
        if (short := self.__dict__.get("short")) is not None:
            short.close()
        self.program.close()
        graph, held = copy.copy(self.graph), weakref.ref(self.graph)
        bodies = [body for node in graph.nodes for body in node.bodies() if body.outer is self.graph]
        for body in bodies:
            body.outer = graph
        self.graph = empty = Graph(info=graph.info)
        self.placement = Placement(empty, [])
        self.program = Program(empty, [], {})
        self._fetches = {}
        if (whole := held()) is None:
            graph.release()
        for body in bodies:
            body.outer = whole


def _dump_asked(entries: dict[str, str]) -> Dump | None:
    """What is to be dumped of a session, if anything. Raises InvalidArgument for what cannot be."""
    if not knobs.DUMP and not any(key.startswith("orthrus.dump") for key in entries):
        return None
    from .dump import Dump

    return Dump.asked(entries)


def _described(value: Value) -> Value:
    """A copy of name and type that optimization does not touch."""
    return Value(value.name, value.type)

