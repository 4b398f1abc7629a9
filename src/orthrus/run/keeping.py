"""A session's package written, once its model has come again, or at its first run.

In: an engine that was made of a model, and the runs it served. Out: a package in the cache. A session is kept
at its first run where making it took long and writing it does not: a model of many nodes, or the first of a
process, and of few bytes for that. Any other is kept when its model has come a second time and was run with
the shapes of the first. One that came with other shapes is not kept again.

A model with control flow is several parts, as sizes may depend on the branch or on the turns. For the sizes
that it was run with it may be one part after all, which is then lowered for the package alone.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import logging
import threading
from typing import TYPE_CHECKING, Any

from .. import knobs
from ..codegen.object import cache
from ..errors import Fail
from ..ir import No, TensorType, Value
from ..modelfile import ModelFile
from ..providers.ep_node import DOMAIN, OP_TYPE
from .session_key import FOLDER, foreign, give_up, marker

if TYPE_CHECKING:
    from ..plan import Call
    from .engine import Engine
    from .fast_way import FastWay, Shapes
    from .short_way import ShortWay

log = logging.getLogger("orthrus")

_MANY, _LONG, _FEW, _PACE = 16, 0.05, 1 << 26, 1 << 28
"""Nodes or seconds from which on, and bytes up to which, a model's session is kept at its first run; so is
one of more bytes that took as long to make as writing so many a second takes."""

_LATER = 0.02
"""Seconds that a run has for itself before its session is kept."""


def watch(name: str, seen: bytes | None, engine: Engine, source: Any, seconds: float) -> None:
    """Keep the session of an engine that took so long to make, once its runs say that it is worth it.
    `seen`: what is told of it already. Where feeds contradict the names of dimensions, it is the engine that
    then answers."""
    watching = _watched(name, seen, engine, engine, source, seconds)
    engine.when_literal = functools.partial(_literal, name, seen, watching, source, seconds)


def _watched(name: str, seen: bytes | None, engine: Engine, told: Engine, source: Any, seconds: float
             ) -> _Watch | None:
    """Watch `engine`, which answers for a session that describes itself as `told` does."""
    way = _way(engine)
    if way is None or not _keepable(engine):
        return None
    made = way.when_served = _Watch(name, seen, engine, told, source, seconds)
    return made


def _way(engine: Engine) -> FastWay | ShortWay | None:
    """What tells of runs: of a program that is one part; or of one that is several, by its control flow."""
    if engine.fast is not None:
        return engine.fast if len(engine.program.steps) == 1 else None
    return engine.short if engine.short is not None and engine.short.joining is not None else None


def _literal(name: str, seen: bytes | None, before: _Watch | None, source: Any, seconds: float, told: Engine,
             answers: Engine) -> None:
    """Watch the engine that `answers` from now on for `told`, which `before` has watched."""
    if before is not None:
        way = _way(told)
        if way is None or way.when_served is not before:
            return
        way.when_served, seen = None, before.seen
    _watched(name, seen, answers, told, source, seconds)


def _keepable(engine: Engine) -> bool:
    """Whether the engine is generated code between its inputs and outputs, and nothing more."""
    return (not engine.overridable and not engine.info.external
            and foreign().isdisjoint(engine.kinds) and (DOMAIN, OP_TYPE) not in engine.kinds
            and all(_plain(v) for v in (*engine.inputs, *engine.outputs)))


def _plain(value: Value) -> bool:
    return isinstance(value.type, TensorType) and value.type.elem is not None


class _Watch:
    """Sees with which shapes an engine is run, and keeps its session when they come again."""

    def __init__(self, name: str, seen: bytes | None, engine: Engine, told: Engine, source: Any,
                 seconds: float) -> None:
        self.name, self.seen, self.source = name, seen, source
        size = source.size if isinstance(source, ModelFile) else len(source)
        self.early = (seconds > _LONG or len(engine.graph.nodes) >= _MANY) and (
            size <= max(_FEW, seconds * _PACE))
        program = engine.program
        step = program.calls[0] if engine.fast is not None else None
        reads, writes = (program.inputs, program.outputs) if step is None else (step.reads, step.writes)
        self.joining = engine.short.joining if step is None and engine.short is not None else None
        self.about = {"reads": [program.inputs.index(slot) for slot in reads],
                      "writes": [program.outputs.index(slot) for slot in writes],
                      "kinds": sorted(engine.kinds), "apart": engine.config.names_apart,
                      "graph": told.name, "info": dataclasses.asdict(told.info),
                      "inputs": [_described(v) for v in told.inputs],
                      "outputs": [_described(v) for v in told.outputs]}

    def __call__(self, step: Call | None, shapes: Shapes) -> bool:
        """Told of a run, by one step or by several; answers whether to be told of the next one with other
        shapes."""
        now = json.dumps(shapes).encode()
        if self.seen is None:
            self.seen = now
            cache.store({marker(self.name): now})
            if not self.early:
                return True
        if self.seen != now:
            give_up(self.name)
            return False
        with contextlib.suppress(RuntimeError):
            keeping = threading.Timer(_LATER, self._keep, (step, shapes))
            keeping.name = "orthrus-keep"
            keeping.start()
        return True

    def _keep(self, step: Call | None, shapes: Shapes) -> None:
        from ..lowering.native import Native
        from ..lowering.package.loaded import beside
        from ..lowering.package.store import packed

        limit = knobs.CACHE_SESSIONS.value << 20
        try:
            native: Any = step.kernel.run if step is not None else None
            if self.joining is not None:
                native = self.joining.native(shapes)
            if not isinstance(native, Native):
                return
            further = [(native.machine, unit) for unit in beside()]
            pieces = packed(native, shapes, further, {**self.about, "content": self._content()})
            if not isinstance(pieces, No) and pieces.size <= limit // 2:
                cache.write_whole(self.name, pieces.whole(), FOLDER, limit, quick=True)
        except (Fail, OSError, MemoryError, TypeError, ValueError, RuntimeError) as error:
            log.debug("the session of %s is not kept: %s", self.about["graph"], error)

    def _content(self) -> str:
        """What tells the model's content. Raises Fail where it is no longer what was read of it."""
        return self.source.digest() if isinstance(self.source, ModelFile) else ""


def _described(value: Value) -> list[Any]:
    return [value.name, value.elem.name, None if value.shape is None else list(value.shape)]
