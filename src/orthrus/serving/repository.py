"""The folder of models: what lies there, which versions are served, and their sessions.

In: a folder with NAME/VERSION/model.onnx or NAME.onnx, and settings beside them. Out: `Version`s, each a
session with what the protocol says of it. A request names a model by a key of what was found here; no path
is ever made of a text that came with a request, and nothing outside the folder is opened.
"""

from __future__ import annotations

import os
import re
from dataclasses import field
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import ALL, InvalidArgument
from ..ops.schema import ONNX_DOMAINS
from ..records import dataclass
from . import config
from .config import ModelConfig
from .refusals import Refusal, invalid, unknown
from .statistics import Statistics
from .tensors import OF_ONNX, Datatype

NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]{0,199}")
NUMBER = re.compile(r"[1-9][0-9]{0,17}")
SETTINGS = (".toml", ".json")
DOMAINS = frozenset({*ONNX_DOMAINS, "com.microsoft"})
MOST_MODELS = 10_000
_serial = count(1)


@dataclass(frozen=True)
class Found:
    """A model in the folder: files by version, the settings' file, and why it can't be served, if so."""

    name: str
    versions: dict[int, Path]
    settings: Path | None = None
    problem: str = ""


@dataclass(frozen=True)
class Tensor:
    """An input or an output; `shape` has -1 where the model leaves a size open."""

    name: str
    kind: Datatype
    shape: tuple[int, ...]

    def plain(self) -> dict[str, Any]:
        return {"name": self.name, "datatype": self.kind.name, "shape": list(self.shape)}


@dataclass(eq=False)
class Version:
    """One version of a model, ready to run. `key`: its name in the schedule, never used twice."""

    name: str
    version: int
    config: ModelConfig
    session: Any
    inputs: dict[str, Tensor]
    outputs: dict[str, Tensor]
    statistics: Statistics
    needed: frozenset[str] = frozenset()
    retired: bool = False
    key: str = field(default_factory=lambda: f"#{next(_serial)}")
    foreign: bool = False
    """Whether it has operators that are none of this package's."""
    ran: dict[Any, float] = field(default_factory=dict)
    """Shapes that have run before, for which nothing has to be made ready any more, and the seconds that a
    request of them takes by itself."""

    def tensor(self, name: Any) -> Tensor:
        """An input by its name."""
        found = self.inputs.get(name) if isinstance(name, str) else None
        if found is None:
            raise invalid(f"{self} has no input {name!r:.100}; its inputs are {', '.join(self.inputs)}")
        return found

    def output(self, name: Any) -> Tensor:
        found = self.outputs.get(name) if isinstance(name, str) else None
        if found is None:
            raise invalid(f"{self} has no output {name!r:.100}; its outputs are {', '.join(self.outputs)}")
        return found

    def __str__(self) -> str:
        return f"model {self.name!r} version {self.version}"


@dataclass
class Entry:
    """A model that was asked for: its versions that are served, by number, or why there are none."""

    found: Found
    versions: dict[int, Version] = field(default_factory=dict)
    state: str = "UNAVAILABLE"
    reason: str = ""


class Repository:
    """The models of a folder. `threads`: of a session that says nothing itself."""

    def __init__(self, root: str | Path, threads: int = 0) -> None:
        """Raises InvalidArgument where there is no such folder."""
        self.root, self.threads = Path(root).resolve(), threads
        if not self.root.is_dir():
            raise InvalidArgument(f"{root} is no folder", expected="a folder with models",
                                  cure="name the folder that holds NAME/VERSION/model.onnx or NAME.onnx")
        self.entries = dict[str, Entry]()
        self._statistics = dict[tuple[str, int], Statistics]()

    def scan(self) -> dict[str, Found]:
        """What lies in the folder now, by name."""
        found = dict[str, Found]()
        for path in sorted(self.root.iterdir())[:MOST_MODELS]:
            name = path.name.removesuffix(".onnx")
            if path.is_dir():
                model = self._folder(path)
            elif path.suffix == ".onnx":
                model = Found(name, {1: path}, self._settings(path.parent, name), self._outside(path))
            else:
                continue
            if model is None:
                continue
            if not NAME.fullmatch(name):
                model = Found(name, {}, None, f"the name {name!r} has other characters than A-Z a-z 0-9 _ . "
                                               "-, or begins with . or -")
            elif name in found:
                model = Found(name, {}, None, f"there is a folder {name} and a file {name}.onnx")
            found[name] = model
        return found

    def _folder(self, path: Path) -> Found | None:
        if problem := self._outside(path):
            return Found(path.name, {}, None, problem)
        versions = dict[int, Path]()
        for inner in sorted(path.iterdir()):
            model = inner / "model.onnx"
            if NUMBER.fullmatch(inner.name) and inner.is_dir() and model.exists():
                if problem := self._outside(model):
                    return Found(path.name, {}, None, problem)
                versions[int(inner.name)] = model
        if not versions:
            return None if path.name.startswith(".") else Found(
                path.name, {}, None, f"{path.name} holds no VERSION/model.onnx, as 1/model.onnx")
        return Found(path.name, versions, self._settings(path, "config"))

    def _settings(self, folder: Path, stem: str) -> Path | None:
        return next((path for end in SETTINGS if (path := folder / f"{stem}{end}").is_file()
                     and not self._outside(path)), None)

    def _outside(self, path: Path) -> str:
        """Why a path is not to be opened, if so."""
        try:
            inside = path.resolve(strict=True).is_relative_to(self.root)
        except (OSError, RuntimeError) as error:
            return f"{path.name} can't be opened: {error.__class__.__name__}"
        return "" if inside else f"{path.name} is a link that leads out of the repository"

    def make(self, found: Found) -> list[Version]:
        """Sessions for the versions of a model that its settings choose. Takes seconds; may be called on any
        thread. Raises the errors of a session, InvalidArgument for settings and Refusal where nothing is to
        be served."""
        if found.problem:
            raise InvalidArgument(f"model {found.name!r}: {found.problem}")
        settings = config.read(found.settings)
        chosen = settings.chosen(list(found.versions))
        if not chosen:
            raise InvalidArgument(f"model {found.name!r}: none of its versions is to be served",
                                  found=sorted(found.versions), expected=settings.versions)
        made = list[Version]()
        try:
            for number in chosen:
                made.append(self._version(found.name, number, found.versions[number], settings))
        except BaseException:
            for version in made:
                version.session.close()
            raise
        return made

    def _version(self, name: str, number: int, path: Path, settings: ModelConfig) -> Version:
        session = self._session(path, settings)
        try:
            inputs = [Tensor(arg.name, kind, _sizes(arg.shape)) for arg in session.get_inputs()
                      if (kind := OF_ONNX.get(arg.type)) is not None]
            if len(inputs) != len(session.get_inputs()):
                wrong = next(arg for arg in session.get_inputs() if arg.type not in OF_ONNX)
                raise InvalidArgument(f"model {name!r}: input {wrong.name!r} can't be fed over the protocol",
                                      found=wrong.type, expected=", ".join(OF_ONNX))
            extra = [Tensor(arg.name, kind, _sizes(arg.shape))
                     for arg in session.get_overridable_initializers()
                     if (kind := OF_ONNX.get(arg.type)) is not None]
            outputs = [Tensor(arg.name, kind, _sizes(arg.shape)) for arg in session.get_outputs()
                       if (kind := OF_ONNX.get(arg.type)) is not None]
            if settings.max_batch_size > 1:
                _joinable(name, [*inputs, *outputs])
            statistics = self._statistics.setdefault((name, number), Statistics())
            version = Version(name, number, settings, session, {t.name: t for t in [*inputs, *extra]},
                              {t.name: t for t in outputs}, statistics,
                              frozenset(t.name for t in inputs), foreign=_foreign(session))
            for shapes in settings.warm_up:
                session.run(list(version.outputs), _zeros(version, shapes))
        except BaseException:
            session.close()
            raise
        return version

    def _session(self, path: Path, settings: ModelConfig) -> Any:
        from dataclasses import replace

        import orthrus as ort

        from ..tools.asked import LEVELS, full_name

        options = ort.SessionOptions()
        options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, LEVELS[settings.level])
        options.intra_op_num_threads = settings.threads or self.threads
        options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
        known = ort.get_all_providers()
        providers = [full_name(each, known) for each in settings.providers]
        given = {full_name(each, known): dict(values) for each, values in settings.provider_options.items()}
        limits = settings.session_limits()
        if settings.timeout is not None:
            limits = replace(limits, run_timeout=min(limits.run_timeout, settings.timeout))
        return ort.InferenceSession(path, options, [(each, given.get(each, {})) for each in providers],
                                    limits=limits)

    def get(self, name: str, version: str = "") -> Version:
        """The version that a request means: the highest where it names none. Raises Refusal."""
        entry = self.entries.get(name)
        if entry is None or not entry.versions:
            raise unknown(f"no model {name!r:.220} is served" + (
                f": {entry.reason}" if entry is not None and entry.reason else ""))
        if not version:
            return entry.versions[max(entry.versions)]
        found = entry.versions.get(int(version)) if NUMBER.fullmatch(version) else None
        if found is None:
            raise unknown(f"model {name!r} has no version {version!r:.40}; served are "
                          f"{', '.join(map(str, entry.versions))}")
        return found

    def all(self) -> list[Version]:
        return [version for entry in self.entries.values() for version in entry.versions.values()]

    def put(self, found: Found, versions: list[Version]) -> list[Version]:
        """Serve these versions of a model from now on; answers those it had."""
        before = self.entries.get(found.name)
        self.entries[found.name] = Entry(found, {v.version: v for v in versions}, "READY")
        return list(before.versions.values()) if before else []

    def reason(self, error: BaseException) -> str:
        """Why a model could not be loaded, in a client's words: with no paths but those within the folder."""
        if isinstance(error, Refusal):
            return error.text
        text = str(error) if isinstance(error, (*ALL, ValueError)) else f"{type(error).__name__}: {error}"
        return text.replace(f"{self.root}{os.sep}", "")

    def failed(self, found: Found, reason: str) -> None:
        """A model could not be loaded; what is served of it stays."""
        entry = self.entries.setdefault(found.name, Entry(found))
        entry.reason = reason

    def take(self, name: str) -> list[Version]:
        """Serve a model no longer; answers the versions it had. Raises Refusal for one that is not there."""
        entry = self.entries.get(name)
        if entry is None or not entry.versions:
            raise unknown(f"no model {name!r:.220} is served")
        gone, entry.versions = list(entry.versions.values()), {}
        entry.state, entry.reason = "UNAVAILABLE", "unloaded"
        return gone

    def index(self, ready: bool) -> list[dict[str, str]]:
        """What the repository holds, served or not."""
        rows = list[dict[str, str]]()
        for name, found in {**{n: e.found for n, e in self.entries.items()}, **self.scan()}.items():
            entry = self.entries.get(name)
            if entry is not None and entry.versions:
                rows += [{"name": name, "version": str(number), "state": "READY", "reason": ""}
                         for number in entry.versions]
            elif not ready:
                reason = entry.reason if entry is not None else found.problem
                rows.append({"name": name, "version": "", "state": "UNAVAILABLE", "reason": reason})
        return rows


def _foreign(session: Any) -> bool:
    return any(node.domain not in DOMAINS for part in session.get_provider_graph_assignment_info()
               for node in part.get_nodes())


def _sizes(shape: list[int | str | None]) -> tuple[int, ...]:
    return tuple(size if isinstance(size, int) else -1 for size in shape)


def _joinable(name: str, tensors: list[Tensor]) -> None:
    for tensor in tensors:
        if not tensor.shape or tensor.shape[0] != -1:
            raise InvalidArgument(f"model {name!r}: requests can't be joined, {tensor.name!r} has no open "
                                  f"first dimension", found=list(tensor.shape), expected="[-1, ...]",
                                  cure="set max_batch_size to 1, or export the model with a dynamic batch")


def _zeros(version: Version, shapes: Any) -> dict[str, np.ndarray]:
    if set(shapes) != set(version.needed):
        raise InvalidArgument(f"{version}: warm_up names other inputs than the model has",
                              found=sorted(shapes), expected=sorted(version.needed))
    return {name: np.full(shape, "", object) if version.inputs[name].kind.dtype == object
            else np.zeros(shape, version.inputs[name].kind.dtype) for name, shape in shapes.items()}
