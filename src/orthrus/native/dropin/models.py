"""A model in the compile service: opened as the library was asked to, described, compiled, and run.

In: what told.c and session.c wrote. Out: a session, packages of its native plans in the cache, results. What
is put into the cache is named by the library, which has looked at the model's content: nothing is kept unless
the content is the same after loading. A package holds all plans that this service made for the model; a note
for each tuple of input sizes says which package that is.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from ... import knobs
from ...api.core import CoreSession
from ...api.enums import ExecutionMode, GraphOptimizationLevel
from ...api.logs import logger, severity
from ...api.options import RunOptions, SessionOptions
from ...api.ortvalue import OrtValue
from ...api.session import InferenceSession
from ...api.values import CoreValue
from ...codegen.object import cache
from ...errors import Fail, InvalidArgument, InvalidProtobuf, NoSuchFile
from ...ir import No, TensorType, Value
from ...kernels import HOST
from ...locks import lock
from ...lowering.native import Native
from ...lowering.package.writer import Compiled, Described, write
from ...modelfile import ModelFile, content_of
from ...providers import CPUExecutionProvider
from ...records import dataclass
from .wire import Reader, Writer

FOLDER = "dropin"
MOST_PLANS = 256
"""Tuples of input sizes that have native plans; what comes later runs here."""
_MAGIC = b"orthrusD"

Shapes = Sequence[tuple[int, ...]]


@dataclass
class Made:
    """A package: its file's name, "" where there is none for the reason `why`; the name of the one whose
    place it takes; and its bytes where they could not be kept."""

    name: str
    older: str = ""
    why: str = ""
    unkept: np.ndarray | None = None


@dataclass(frozen=True)
class _Generated:
    """What runs a model without Python. `reads`, `writes`: which inputs and outputs of the model are its own,
    in its order."""

    native: Native
    reads: list[int]
    writes: list[int]


class Model:
    """A session. `name`: of what the cache keeps of it, "" for nothing."""

    def __init__(self, reader: Reader, attached: int | None) -> None:
        """Raises what making a session raises."""
        path, size = reader.text(), reader.number()
        self.name, content = reader.text(), reader.text()
        options = options_of(reader)
        self._path = path if size < 0 else None
        if content and self._path is not None and _content(self._path) != content:
            raise Fail(f"The model's file {path} has been written to since it was loaded.",
                       cure="write a new model beside the old one and rename it")
        source, begin = path if attached is None else _bytes(attached, size), time.time_ns()
        self.session = InferenceSession(source, options, enable_fallback=0)
        self.core: CoreSession = self.session._sess
        self.engine = self.core._engine
        self._profiled = bool(options.enable_profiling)
        self._lock, self._package, self._kept = lock(), "", 0
        self._kinds = {v.name: v.type for v in self.engine.outputs}
        self._unread = {v.name: v.type for v in self.engine.graph.inputs
                        if isinstance(v.type, TensorType) and not v.uses and not v.graph_outputs}
        if content and self._path is not None and _content(self._path) != content:
            self.name = ""
        self._files = self._told_files(begin) if self.name else {}
        self.notes = _named(self.name, *self._files.values()) if self.name else ""
        self._code = self._generated()
        if isinstance(self._code, str):
            with severity(options.log_severity_level, options.logid):
                logger.info("runs in the compile service: %s", self._code)
        if self.name and not isinstance(self._code, str):
            self._keep_description()

    def describe(self, writer: Writer) -> None:
        """What C asks sessions for, and whether packages may be asked for."""
        engine, info = self.engine, self.engine.info
        for values in (engine.inputs, engine.outputs, engine.overridable):
            writer.number(len(values))
            for each in values:
                writer.text(each.name)
                writer.kind(each.type)
        meta = self.core.model_meta
        for text in (meta.producer_name, meta.graph_name, meta.domain, meta.description,
                     meta.graph_description):
            writer.text(text)
        writer.number(meta.version)
        for told in (info.metadata, info.opsets):
            writer.number(len(told))
            for key, value in told.items():
                writer.text(key)
                writer.text(str(value))
        writer.text(self.notes)
        writer.number(self.core.get_profiling_start_time_ns)
        writer.number(not isinstance(self._code, str))

    def run(self, options: RunOptions, reader: Reader, writer: Writer) -> None:
        """Raises what `InferenceSession.run` does."""
        names = [reader.text() for _ in range(reader.count())]
        feeds = {reader.text(): reader.value() for _ in range(reader.count())}
        feeds |= self._standing_in(feeds)
        results = self.core._execute(names, feeds, options)
        for name, result in zip(names, results, strict=True):
            writer.value(result, self._kinds.get(name))

    def _standing_in(self, feeds: dict[str, Any]) -> dict[str, np.ndarray]:
        """Something for the inputs without a feed that nothing reads: programs in C may leave them out."""
        if not self._unread or all(name in feeds for name in self._unread):
            return {}
        arrays = [(v.type, given) for v in self.engine.inputs
                  if isinstance(given := feeds.get(v.name), np.ndarray)]
        sizes = {size: found for kind, given in arrays
                 for size, found in zip(getattr(kind, "shape", None) or (), given.shape, strict=False)}
        made = {}
        for name, kind in self._unread.items():
            if name not in feeds and kind.elem is not None:
                shape = [size if isinstance(size, int) else sizes.get(size, 1) for size in kind.shape or ()]
                nothing = "" if kind.elem.numpy.hasobject else 0
                made[name] = np.broadcast_to(np.array(nothing, kind.elem.numpy), shape)
        return made

    def package(self, shapes: Shapes) -> Made:
        """The package with a plan for inputs of these shapes. Raises what lowering them raises."""
        if isinstance(self._code, str):
            return Made("", why=self._code)
        native = self._code.native
        key = tuple(shapes[i] for i in self._code.reads)
        with self._lock:
            if key not in native.plans and len(native.plans) >= MOST_PLANS:
                return Made("", why=f"there are plans for {MOST_PLANS} tuples of shapes already")
            plan = native.exact(key)
            if plan is None:
                return Made("", why=native.refused.get(key, "there is no plan for these shapes"))
            for step in plan.steps:
                if step.spec is None:
                    return Made("", why=f"{step.node.label} is computed by numpy")
            return self._packed(self._code)

    def close(self) -> None:
        self.session.close()

    def _generated(self) -> _Generated | str:
        """The model as generated code; or why it runs in this process."""
        engine, program = self.engine, self.engine.program
        calls = program.calls
        if self._profiled:
            return "its runs are profiled"
        if any(device is not HOST for device in program.devices):
            return "it does not run on the host alone"
        if engine.overridable:
            return "its inputs and outputs are not those of the generated code"
        if not all(_plain(v) for v in (*engine.inputs, *engine.outputs)):
            return "it has inputs or outputs that are no plain tensors"
        if len(calls) == 1 and isinstance(calls[0].kernel.run, Native):
            (call,) = calls
            if (sorted(call.reads) == sorted(program.inputs)
                    and sorted(call.writes) == sorted(program.outputs)):
                return _Generated(call.kernel.run, [program.inputs.index(slot) for slot in call.reads],
                                  [program.outputs.index(slot) for slot in call.writes])
        return self._whole()

    def _whole(self) -> _Generated | str:
        """The model as one part, of which the session makes several, or enters bodies itself."""
        graph, providers = self.engine.graph, self.engine.providers
        cpu = next(p for p in providers if isinstance(p, CPUExecutionProvider))
        if any(part.provider != cpu.name for part in self.engine.placement.parts):
            return "another provider has a part of it"
        if len({*graph.outputs}) < len(graph.outputs) or any(v.node is None for v in graph.outputs):
            return "an output of it is none of its results, or twice one"
        machine = cpu._machine()
        if isinstance(machine, No):
            return machine.reason
        native = cpu.entire(graph, cpu._device(machine))
        if isinstance(native, No):
            return native.reason
        return _Generated(native, list(range(len(graph.inputs))), list(range(len(graph.outputs))))

    def _packed(self, code: _Generated) -> Made:
        """All native plans as a package, kept where that can be."""
        engine, native, reads = self.engine, code.native, code.reads
        order = [reads.index(i) for i in range(len(reads))]
        plans = {tuple(key[i] for i in order): plan for key in list(native.plans)
                 if (plan := native.exact(key)) is not None
                 and all(step.spec is not None for step in plan.steps)}
        pieces = write([Compiled(native.machine, plans)], [_described(v) for v in engine.inputs],
                       [_described(v) for v in engine.outputs], reads=reads, writes=code.writes).whole()
        whole = np.frombuffer(b"".join(pieces), np.uint8)
        older, self._kept = self._package, self._kept + 1
        self._package = hashlib.sha256(f"{self.name} {os.getpid()} {os.urandom(8).hex()} {self._kept}"
                                       .encode()).hexdigest()
        if not self._keep(self._package, whole, plans):
            return Made(self._package, older, unkept=whole)
        if older:
            cache.remove(older, FOLDER)
        return Made(self._package, older)

    def _keep(self, name: str, whole: np.ndarray, plans: Any) -> bool:
        """Put a package into the cache, and the notes that lead to it."""
        secret, limit = cache.secret(), knobs.CACHE_SESSIONS.default << 20
        if not self.name or secret is None or len(whole) > limit // 2:
            return False
        told = told_of(name, bytes.fromhex(content_of(whole, secret)))
        try:
            cache.write_whole(name, [whole, told], FOLDER, limit)
            for key in plans:
                note = _note_name(self.notes, [d for shape in key for d in shape])
                cache.write_whole(note, [_entry(note, lambda writer: writer.text(name))], FOLDER, limit)
        except OSError:
            cache.remove(name, FOLDER)
            return False
        return True

    def _keep_description(self) -> None:
        """Let the next process that opens the model know what this one does."""
        def entry(writer: Writer) -> None:
            self.describe(writer)
            writer.number(len(self._files))
            for each, content in self._files.items():
                writer.text(each)
                writer.text(content)
        try:
            cache.write_whole(self.name, [_entry(self.name, entry)], FOLDER,
                              knobs.CACHE_SESSIONS.default << 20)
        except OSError:
            self.name = ""

    def _told_files(self, begin: int) -> dict[str, str]:
        """What tells the content of each file beside the model. Nothing is kept where one cannot be read, or
        was written to since `begin`, when the model was not loaded yet."""
        folder, found = os.path.dirname(self._path or ""), {}
        try:
            for each in self.engine.info.external:
                path = os.path.join(folder, each)
                found[each] = _content(path)
                if self._path is None or os.stat(path).st_ctime_ns >= begin:
                    self.name = ""
        except (OSError, Fail, NoSuchFile, InvalidProtobuf):
            self.name = ""
        return found


def _plain(value: Value) -> bool:
    kind = value.type
    return (isinstance(kind, TensorType) and kind.elem is not None and kind.elem.bits >= 8
            and not kind.elem.numpy.hasobject and kind.shape is not None)


def _described(value: Value) -> Described:
    assert isinstance(value.type, TensorType) and value.type.elem is not None
    return Described(value.name, value.type.elem, value.type.shape or ())


def _content(path: str) -> str:
    """What tells the content of a file. Raises Fail, and as opening it does."""
    return ModelFile(path, cache.secret()).digest()


def _bytes(handle: int, size: int) -> bytes:
    with open(handle, "rb", closefd=False) as file:
        file.seek(0)
        data = file.read(size)
    if len(data) < size:
        raise InvalidArgument("the model's bytes are not all there", found=len(data), expected=size)
    return data


def _entry(name: str, fill: Any) -> bytes:
    """A file of the cache that C reads: its digest and length in front."""
    writer = Writer(None)
    fill(writer)
    data = writer.whole()
    return _MAGIC + told_of(name, data) + len(data).to_bytes(8, "little") + data


def told_of(name: str, data: bytes) -> bytes:
    """A digest by which C takes neither other bytes nor another file's for what is kept as `name`."""
    return hashlib.shake_256(name.encode() + b"\0" + data).digest(32)


def _named(*texts: str) -> str:
    return texts[0] if len(texts) == 1 else hashlib.shake_256("\0".join(texts).encode()).hexdigest(32)


def _note_name(model: str, sizes: Sequence[int]) -> str:
    told = model.encode() + b"\0" + np.array(sizes, np.int64).tobytes()
    return hashlib.shake_256(told).hexdigest(32)


def pairs(reader: Reader) -> dict[str, str]:
    return {reader.text(): reader.text() for _ in range(reader.count())}


def options_of(reader: Reader) -> SessionOptions:
    """The session options that told.c wrote."""
    options = SessionOptions()
    options.graph_optimization_level = GraphOptimizationLevel(reader.number())
    options.execution_mode = ExecutionMode(reader.number())
    options.enable_mem_pattern = bool(reader.number())
    options.use_deterministic_compute = bool(reader.number())
    for key, value in pairs(reader).items():
        options.add_session_config_entry(key, value)
    for _ in range(reader.count()):
        options.add_provider(reader.text(), pairs(reader))
    for _ in range(reader.count()):
        name, size, by_name = reader.text(), reader.number(), reader.number()
        fix = (options.add_free_dimension_override_by_name if by_name
               else options.add_free_dimension_override_by_denotation)
        fix(name, size)
    options.intra_op_num_threads, options.inter_op_num_threads = reader.number(), reader.number()
    options.enable_cpu_mem_arena = bool(reader.number())
    options.log_severity_level, options.log_verbosity_level = reader.number(), reader.number()
    options.logid, options.optimized_model_filepath = reader.text(), reader.text()
    options.enable_profiling = bool(reader.number())
    options.profile_file_prefix = reader.text() or options.profile_file_prefix
    options.set_load_cancellation_flag(bool(reader.number()))
    _initializers(reader, options)
    return options


def _initializers(reader: Reader, options: SessionOptions) -> None:
    count, external = reader.count(), reader.count()
    given = [(reader.text(), OrtValue(CoreValue._got(np.array(reader.value())))) for _ in range(count)]
    for name, value in given[:count - external]:
        options.add_initializer(name, value)
    if external:
        outside = given[count - external:]
        options.add_external_initializers([name for name, _ in outside], [value for _, value in outside])
    files = [(reader.text(), reader.raw()) for _ in range(reader.count())]
    options.add_external_initializers_from_files_in_memory(
        [name for name, _ in files], [data for _, data in files], [len(data) for _, data in files])
