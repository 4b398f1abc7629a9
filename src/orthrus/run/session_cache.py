"""Sessions kept on disk: what was made of a model once is there again at once.

In: a model's file or bytes, and how its engine is to be made. Out: an engine. Where the whole model is one
part of generated code and is always run with the same shapes, that part's package is kept, and the next
engine is made of it alone: nothing is loaded, optimized, placed, or packed. What the package has no answer to
(other shapes, an explanation, a profile) comes from the whole engine, which is then made of the model.
Nothing is answered before all of the model has been found to be what the package was made of; where it is
not, the whole engine answers.

A session is kept at its first run where making it took long and writing it does not: a model of many nodes,
or the first of a process, and few bytes. Any other is kept when its model has come a second time and was run
with the shapes of the first. One that came with other shapes is not kept again.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import knobs
from ..codegen.object import cache
from ..errors import Fail
from ..ir import ElementType, Graph, ModelInfo, No, Node, TensorType, Value
from ..kernels import HOST, Device, Part
from ..locks import lock
from ..modelfile import ModelFile
from ..plan.build import whole
from ..providers import CPUExecutionProvider
from ..providers.ep_node import DOMAIN, OP_TYPE
from .engine import Config, Engine, Target
from .session_key import Proof, foreign, name_of

if TYPE_CHECKING:
    from ..limits import Deadline
    from ..lowering.package.ahead import Package
    from ..plan import Call
    from .fast_way import Shapes

log = logging.getLogger("orthrus")

FOLDER = "sessions"
_VARIED = b"varied"
_MANY, _LONG, _FEW = 16, 0.05, 1 << 26
"""Nodes or seconds from which on, and bytes up to which, a model's session is kept at its first run."""

_LATER = 0.02
"""Seconds that a run has for itself before its session is kept."""


def engine_for(source: Any, config: Config) -> Any:
    """The engine of a model, from what was kept of it where there is something. Raises what `Engine` does."""
    source, name = name_of(source, config)
    if name is None:
        return Engine(source, config)
    seen = cache.load([_marker(name)]).get(_marker(name))
    if seen is not None and seen != _VARIED:
        made = _restored(name, source, config)
        if made is not None:
            return made
    start = time.perf_counter()
    engine = Engine(source, config)
    if seen != _VARIED and engine.fast is not None and _keepable(engine):
        long = time.perf_counter() - start > _LONG
        engine.fast.when_served = _Watch(name, seen, engine, source, long)
    return engine


def _marker(name: str) -> str:
    return f"{name}-seen"


def _keepable(engine: Engine) -> bool:
    """Whether the engine is one part of generated code between its inputs and outputs, and nothing more."""
    return (not engine.overridable and not engine.info.external
            and foreign().isdisjoint(engine.kinds) and (DOMAIN, OP_TYPE) not in engine.kinds
            and all(_plain(v) for v in (*engine.inputs, *engine.outputs)))


def _plain(value: Value) -> bool:
    return isinstance(value.type, TensorType) and value.type.elem is not None


class _Watch:
    """Sees with which shapes an engine is run, and keeps its session when they come again."""

    def __init__(self, name: str, seen: bytes | None, engine: Engine, source: Any, long: bool) -> None:
        self.name, self.seen, self.source = name, seen, source
        size = source.size if isinstance(source, ModelFile) else len(source)
        self.early = (long or len(engine.graph.nodes) >= _MANY) and size <= _FEW
        program, (step,) = engine.program, engine.program.calls
        self.about = {"reads": [program.inputs.index(slot) for slot in step.reads],
                      "writes": [program.outputs.index(slot) for slot in step.writes],
                      "kinds": sorted(engine.kinds),
                      "graph": engine.name, "info": dataclasses.asdict(engine.info),
                      "inputs": [_described(v) for v in engine.inputs],
                      "outputs": [_described(v) for v in engine.outputs]}

    def __call__(self, step: Call, shapes: Shapes) -> bool:
        """Told of a run; answers whether to be told of the next one with other shapes."""
        now = json.dumps(shapes).encode()
        if self.seen is None:
            self.seen = now
            cache.store({_marker(self.name): now})
            if not self.early:
                return True
        if self.seen != now:
            _give_up(self.name)
            return False
        with contextlib.suppress(RuntimeError):
            keeping = threading.Timer(_LATER, self._keep, (step, shapes))
            keeping.name = "orthrus-keep"
            keeping.start()
        return True

    def _keep(self, step: Call, shapes: Shapes) -> None:
        from ..lowering.native import Native
        from ..lowering.package.ahead import beside
        from ..lowering.package.store import packed

        native = step.kernel.run
        if not isinstance(native, Native):
            return
        limit = knobs.CACHE_SESSIONS.value << 20
        try:
            further = [(native.machine, unit) for unit in beside()]
            pieces = packed(native, shapes, further, {**self.about, "content": self._content()})
            if not isinstance(pieces, No) and pieces.size <= limit // 2:
                cache.write_whole(self.name, pieces.whole(), FOLDER, limit)
        except (Fail, OSError, MemoryError, TypeError, ValueError, RuntimeError) as error:
            log.debug("the session of %s is not kept: %s", self.about["graph"], error)

    def _content(self) -> str:
        """What tells the model's content. Raises Fail where it is no longer what was read of it."""
        return self.source.digest() if isinstance(self.source, ModelFile) else ""


def _give_up(name: str) -> None:
    """Keep nothing of this session from now on."""
    cache.store({_marker(name): _VARIED})
    cache.remove(name, FOLDER)


def _described(value: Value) -> list[Any]:
    return [value.name, value.elem.name, None if value.shape is None else list(value.shape)]


def _value(name: str, elem: str, shape: Sequence[Any] | None) -> Value:
    return Value(name, TensorType(ElementType[elem], None if shape is None else tuple(shape)))


def _restored(name: str, source: Any, config: Config) -> Kept | None:
    from ..lowering.package.ahead import Package

    data = cache.read_whole(name, FOLDER)
    if data is None:
        return None
    try:
        package = Package(data, kept=True)
        if not foreign().isdisjoint(map(tuple, package.about["kinds"])):
            return None
        return Kept(name, package, source, config)
    except (ValueError, KeyError, TypeError, OSError, Fail) as error:
        log.debug("a session that was kept does not hold: %s", error)
        cache.remove(name, FOLDER)
        return None


class _Small(Engine):
    """An engine of one kernel that came from disk; its graph has a node that stands for all others."""

    def __init__(self, package: Package, source: Any, config: Config, otherwise: Callable[..., Any]) -> None:
        self.package, self.otherwise = package, otherwise
        super().__init__(source, config)
        del self.package, self.otherwise

    def _make(self, source: Any) -> None:
        start = time.perf_counter()
        about = self.package.about
        info = ModelInfo(**about["info"])
        info.denotations = {k: {int(axis): text for axis, text in v.items()}
                            for k, v in info.denotations.items()}
        info.sizes = {k: {int(axis): size for axis, size in v.items()} for k, v in info.sizes.items()}
        graph = Graph(about["graph"], info=info)
        graph.inputs = [_value(*each) for each in about["inputs"]]
        reads = [graph.inputs[i] for i in about["reads"]]
        node = Node(OP_TYPE, DOMAIN, 1, None, reads, {"source": CPUExecutionProvider.name}, "kept")
        graph.set_outputs(_value(*each) for each in about["outputs"])
        for value in graph.outputs:
            value.node = node
        writes = [graph.outputs[i] for i in about["writes"]]
        node.outputs, graph.nodes = list(writes), [node]
        self._take(graph)
        self._source = source
        self._appoint()
        provider = next(p for p in self.providers if isinstance(p, CPUExecutionProvider))
        part = Part(provider.name, [node], reads, writes, "kept", info)
        kernel = provider.kernel_of(part, self.package, "kept", self.otherwise)
        if isinstance(kernel, No):
            raise ValueError(kernel.reason)
        self.program = whole(graph, part, kernel)
        self.timings["load"] = time.perf_counter() - start
        self._finish()

    def retire(self) -> None:
        """Serve no further runs; those under way come to their end."""
        if self.fast is not None:
            self.fast.close()


class Kept:
    """The engine of a session that was kept. Runs like those it was kept for are computed as kept; anything
    else asks the whole engine, which is made then and answers everything from there on."""

    def __init__(self, name: str, package: Package, source: Any, config: Config) -> None:
        about = package.about
        self._name, self._source, self._config = name, source, config
        self._proof = Proof(source, about["content"]) if isinstance(source, ModelFile) else None
        self._lock = lock()
        self._whole: Engine | None = None
        me = weakref.ref(self)

        def otherwise(*arrays: np.ndarray) -> Any:
            kept = me()
            assert kept is not None
            return kept._otherwise(arrays)
        small = _Small(package, source, config, otherwise)
        self._small: _Small | None = small
        (self._shapes,) = package.code.plans
        self._reads, self._writes = about["reads"], about["writes"]
        self.config, self.providers, self.timings = config, small.providers, small.timings
        self.quick, self.warnings = small.quick, small.warnings

    def _sound(self) -> _Small | Engine:
        """What answers: what was kept where it is of this very model, else the whole engine."""
        small = self._small
        if small is None:
            return self.whole()
        proof = self._proof
        if proof is not None:
            if not proof.holds():
                log.info("the session of %s was kept of another content", small.name)
                cache.remove(self._name, FOLDER)
                return self.whole()
            self._proof = None
        return small

    @property
    def inputs(self) -> list[Value]:
        """See `Engine`."""
        return self._sound().inputs

    @property
    def outputs(self) -> list[Value]:
        """See `Engine`."""
        return self._sound().outputs

    @property
    def overridable(self) -> list[Value]:
        """See `Engine`."""
        return self._sound().overridable

    @property
    def name(self) -> str:
        """See `Engine`."""
        return self._sound().name

    @property
    def info(self) -> ModelInfo:
        """See `Engine`."""
        return self._sound().info

    def run(self, output_names: Sequence[str] | None, feeds: dict[str, Any], deadline: Deadline | None = None,
            record: list[Any] | None = None, targets: Sequence[Target] = (),
            synchronize: bool = True) -> list[Any]:
        """See `Engine.run`."""
        plain = record is None and not knobs.DEBUG and not knobs.CHECK
        if plain and isinstance(small := self._sound(), _Small):
            return small.run(output_names, feeds, deadline, None, targets)
        engine = self.whole()
        if plain and deadline is None and not targets and engine.quick is not None:
            made = engine.quick(output_names, feeds)
            if made is not None:
                return made
        return engine.run(output_names, feeds, deadline, record, targets)

    def devices(self) -> tuple[list[Device], list[Device]]:
        """See `Engine.devices`."""
        sound = self._sound()
        return [HOST] * len(sound.inputs), [HOST] * len(sound.outputs)

    def begin(self, output_names: Sequence[str] | None, feeds: dict[str, Any]
              ) -> Callable[[], list[Any]] | None:
        """See `Engine.begin`."""
        return self._sound().begin(output_names, feeds)

    def _otherwise(self, arrays: Sequence[np.ndarray]) -> Any:
        """What the kept kernel was not made for."""
        if tuple(a.shape for a in arrays) != self._shapes:
            _give_up(self._name)
        names = [self.inputs[i].name for i in self._reads]
        made = self.whole().run(None, dict(zip(names, arrays, strict=True)))
        return made[0] if len(made) == 1 else tuple(made[i] for i in self._writes)

    def whole(self) -> Engine:
        """The engine of the model itself. Raises Fail where the model's file is not what it was."""
        with self._lock:
            if self._whole is None:
                log.info("a session was kept; now its model is needed")
                self._whole = Engine(self._source, self._config)
                if self._small is not None:
                    self._small.retire()
                self._small = None
            return self._whole

    def close(self) -> None:
        """See `Engine.close`."""
        with self._lock:
            for engine in (self._small, self._whole):
                if engine is not None:
                    engine.close()

    def __getattr__(self, name: str) -> Any:
        """Whatever else an engine has."""
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.whole(), name)
