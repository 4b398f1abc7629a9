"""A session that was kept, as an engine: what generated code serves is served by the package alone.

In: an opened package, and what it was made of. Out: what an engine has. A run like those it was kept for is
one call of generated code; one in another form, of the same shapes, goes through an engine of the package's
one kernel (`small`); anything else asks the whole engine, which is made then and answers everything from
there on. Neither of these is imported before it is needed.
"""

from __future__ import annotations

import logging
import time
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from .. import knobs
from ..codegen.object import cache
from ..codegen.runtime import fastcall
from ..errors import Fail
from ..ir import ElementType, ModelInfo, No, TensorType, Value
from ..kernels import HOST
from ..locks import lock
from ..lowering.device import PartDevice
from ..lowering.instance import entered
from ..lowering.package.loaded import Package, beside
from ..memory import settled
from ..modelfile import ModelFile
from ..providers import CPUExecutionProvider
from .session_key import FOLDER, Proof, foreign, give_up
from .unread import anything, past

if TYPE_CHECKING:
    import numpy as np

    from ..kernels import Device
    from ..limits import Deadline
    from .config import Config
    from .engine import Engine, Target
    from .small import Small

log = logging.getLogger("orthrus")


def restored(name: str, source: Any, config: Config) -> Kept | None:
    """The engine of what was kept under `name`; None where there is nothing, or not for this model."""
    data = cache.read_whole(name, FOLDER, quick=True)
    if data is None:
        return None
    try:
        package = Package(settled(data), kept=True)
        if not foreign().isdisjoint(map(tuple, package.about["kinds"])):
            return None
        made = Kept(name, package, source, config)
    except (ValueError, KeyError, TypeError, OSError, Fail) as error:
        log.debug("a session that was kept does not hold: %s", error)
        cache.remove(name, FOLDER)
        return None
    return made if made.sound() else None


class Kept:
    """The engine of a session that was kept. Raises ValueError where this machine cannot run its package."""

    def __init__(self, name: str, package: Package, source: Any, config: Config) -> None:
        start, about = time.perf_counter(), package.about
        self._proof = Proof(source, about["content"]) if isinstance(source, ModelFile) else None
        self._name, self._source, self.config = name, source, config
        self._lock = lock()
        self._package: Package | None = package
        self._small: Small | None = None
        self._whole: Engine | None = None
        provider = config.providers[0] if config.providers else CPUExecutionProvider()
        assert isinstance(provider, CPUExecutionProvider)
        provider.threads = config.intra_op_threads
        provider.settle(config.entries)
        self.providers: list[Any] = [provider]
        machine = provider.opening(package)
        if isinstance(machine, No):
            raise ValueError(machine.reason)
        device = PartDevice(machine)
        package.load(device, [(machine, unit) for unit in beside()])
        (self._shapes,) = package.code.plans
        self.name, self.info = str(about["graph"]), _info(about["info"])
        self.inputs = [_value(*each) for each in about["inputs"]]
        self.outputs = [_value(*each) for each in about["outputs"]]
        self.overridable: list[Value] = []
        self.one_step, self.kinds = True, set(map(tuple, about["kinds"]))
        self._reads, self._writes = about["reads"], about["writes"]
        self._unread = [v for i, v in enumerate(self.inputs) if i not in self._reads]
        self._door = self._opened(package, device) if fastcall.available() else None
        self._quick = None if self._door is None else past(
            self._door.run, self._unread, config.limits.max_tensor_bytes)
        self.timings, self.warnings = {"load": time.perf_counter() - start}, self.info.warnings

    def _opened(self, package: Package, device: PartDevice) -> fastcall.Door | None:
        """What serves runs like those that the session was kept for."""
        threads = self.config.intra_op_threads
        plan = package.plan(self._shapes, device.constant(package.constants), device,
                            1 if threads == 1 else min(threads or device.capacity, device.capacity))
        program = entered(plan, [(shape, elem.numpy) for shape, (elem, _) in zip(
            self._shapes, package.inputs, strict=True)])
        if program is None:
            return None
        door = fastcall.Door([self.inputs[i].name for i in self._reads], [v.name for v in self.outputs],
                             self._writes)
        door.open(program)
        return door

    def sound(self) -> bool:
        """Whether this was kept of that very model, all of whose content has been compared; what was kept of
        another is forgotten."""
        if self._proof is None or self._proof.holds():
            return True
        log.info("the session of %s was kept of another content", self.name)
        cache.remove(self._name, FOLDER)
        self._let_go()
        return False

    @property
    def quick(self) -> Callable[[Any, Any], list[Any] | None] | None:
        """See `Engine`."""
        return self._quick if self._whole is None else self._whole.quick

    def run(self, output_names: Sequence[str] | None, feeds: dict[str, Any], deadline: Deadline | None = None,
            record: list[Any] | None = None, targets: Sequence[Target] = (),
            synchronize: bool = True) -> list[Any]:
        """See `Engine.run`."""
        plain = record is None and not knobs.DEBUG and not knobs.CHECK
        if plain and (small := self._ordinary()) is not None:
            return small.run(output_names, feeds, deadline, None, targets)
        engine = self.whole()
        if plain and deadline is None and not targets and engine.quick is not None:
            made = engine.quick(output_names, feeds)
            if made is not None:
                return made
        return engine.run(output_names, feeds, deadline, record, targets)

    def _ordinary(self) -> Small | None:
        """What runs the package in other ways; None once the whole engine answers."""
        if self._small is None:
            with self._lock:
                if self._small is None and self._package is not None:
                    from .small import Small

                    me = weakref.ref(self)

                    def otherwise(*arrays: np.ndarray) -> Any:
                        kept = me()
                        assert kept is not None
                        return kept._otherwise(arrays)
                    self._small = Small(self._package, self, self._source, otherwise)
        return self._small

    def devices(self) -> tuple[list[Device], list[Device]]:
        """See `Engine.devices`."""
        return [HOST] * len(self.inputs), [HOST] * len(self.outputs)

    def begin(self, output_names: Sequence[str] | None, feeds: dict[str, Any]
              ) -> Callable[[], list[Any]] | None:
        """See `Engine.begin`."""
        return (self._ordinary() or self.whole()).begin(output_names, feeds)

    def _otherwise(self, arrays: Sequence[np.ndarray]) -> Any:
        """What the kept kernel was not made for."""
        if tuple(a.shape for a in arrays) != self._shapes:
            give_up(self._name)
        names = [self.inputs[i].name for i in self._reads]
        feeds = {**dict(zip(names, arrays, strict=True)), **anything(self._unread)}
        made = self.whole().run(None, feeds)
        return made[0] if len(made) == 1 else tuple(made[i] for i in self._writes)

    def whole(self) -> Engine:
        """The engine of the model itself. Raises Fail where the model's file is not what it was."""
        with self._lock:
            if self._whole is None:
                from .engine import Engine

                log.info("a session was kept; now its model is needed")
                self._whole = Engine(self._source, self.config)
                self._let_go()
            return self._whole

    def _let_go(self) -> None:
        """Serve no further runs of the package; those under way come to their end."""
        small, door = self._small, self._door
        self._small = self._package = self._door = None
        if small is not None:
            small.retire()
        if door is not None:
            door.close()

    def close(self) -> None:
        """See `Engine.close`."""
        with self._lock:
            for engine in (self._small, self._whole):
                if engine is not None:
                    engine.close()
            if self._door is not None:
                self._door.close()

    def __getattr__(self, name: str) -> Any:
        """Whatever else an engine has."""
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.whole(), name)


def _info(plain: dict[str, Any]) -> ModelInfo:
    """What a model says of itself, from its fields as JSON, whose keys are texts."""
    info = ModelInfo(**plain)
    info.denotations = {k: {int(axis): text for axis, text in v.items()} for k, v in info.denotations.items()}
    info.sizes = {k: {int(axis): size for axis, size in v.items()} for k, v in info.sizes.items()}
    return info


def _value(name: str, elem: str, shape: Sequence[Any] | None) -> Value:
    return Value(name, TensorType(ElementType[elem], None if shape is None else tuple(shape)))
