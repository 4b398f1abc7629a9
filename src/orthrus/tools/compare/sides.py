"""What computes one side of a comparison: providers of this package, the definitions in numpy, or
onnxruntime where it is installed.

In: a name with options. Out: a `Side`, which runs a model once and gives arrays. Both sides get the same
feeds; what a side raises says which side it was.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ...errors import ALL, Fail, InvalidArgument
from ...records import dataclass
from ..asked import LEVELS, full_name
from .extract import Model

REFERENCE, PEER = "reference", "onnxruntime"
_FOLDER = "session.model_external_initializers_file_folder_path"
_PROVIDER, _PRECISION = "CPUExecutionProvider", "float32_precision"


@dataclass(frozen=True)
class Side:
    """`title` names it to people; `peer`: onnxruntime in place of this package. `skip`: optimization passes
    to leave out."""

    title: str
    providers: tuple[tuple[str, tuple[tuple[str, str], ...]], ...]
    level: str = "all"
    peer: bool = False
    seed: int = 0
    skip: tuple[str, ...] = ()

    def session(self, model: Any, folder: str | None) -> Any:
        """A session of `model`: a path, bytes or a ModelProto, whose outside tensors lie in `folder`."""
        engine = _peer() if self.peer else _own()
        options = engine.SessionOptions()
        options.graph_optimization_level = getattr(engine.GraphOptimizationLevel, LEVELS[self.level])
        options.log_severity_level = 3
        if not isinstance(model, str | bytes):
            try:
                model = model.SerializeToString()
            except ValueError:
                raise Fail("the model is over 2 GB, the largest protobuf message",
                           cure="save its tensors as external data") from None
            if folder is not None:
                options.add_session_config_entry(_FOLDER, folder)
        providers = [(name, dict(settings)) for name, settings in self.providers]
        with self._named(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if self.peer:
                return engine.InferenceSession(model, options, providers=providers)
            engine.set_seed(self.seed)
            return engine.InferenceSession(model, options, providers=providers, enable_fallback=0,
                                           disabled_optimizers=self.skip)

    def run(self, model: Any, folder: str | None, feeds: Mapping[str, Any],
            names: Sequence[str] | None = None) -> dict[str, Any]:
        """Load, run once and let go: outputs by name. Feeds that the model does not have are left out."""
        session = self.session(model, folder)
        wanted = list(names) if names is not None else [v.name for v in session.get_outputs()]
        known = {v.name for v in (*session.get_inputs(), *session.get_overridable_initializers())}
        fed = {name: value for name, value in feeds.items() if name in known}
        try:
            with self._named():
                return dict(zip(wanted, session.run(wanted, fed), strict=True))
        finally:
            if not self.peer:
                session.close()

    @contextlib.contextmanager
    def _named(self) -> Any:
        """Raise what the engine raises as an error of this package that names the side."""
        try:
            yield
        except ALL as error:
            raise Fail(f"{self.title}: {error.text}", node=error.node, found=error.found,  # type: ignore[attr-defined]
                       expected=error.expected, cure=error.cure) from error  # type: ignore[attr-defined]
        except Exception as error:
            raise Fail(f"{self.title}: {type(error).__name__}: {error}") from error


class Kept:
    """What values of `model` are on a side, each one kept as an output of the graph. `known` holds those that
    need not be computed again; feeds are among them."""

    def __init__(self, it: Side, model: Model, feeds: Mapping[str, Any]) -> None:
        self.side, self.model, self.feeds = it, model, feeds
        self.known: dict[str, Any] = dict(feeds)

    def values(self, names: Iterable[str]) -> dict[str, Any]:
        """The values called `names`."""
        wanted = list(dict.fromkeys(names))
        found = {name: self.known[name] for name in wanted if name in self.known}
        missing = [name for name in wanted if name not in found]
        if missing:
            part = self.model.part(self.model.above(missing), missing, self.feeds)
            found.update(self.side.run(part, self.model.folder, self.feeds, missing))
        return found


def side(what: Any, options: Mapping[str, Any] | None = None, level: str = "all", seed: int = 0) -> Side:
    """The side that `what` names: a provider by full or short name, its class, `(name, options)`,
    "reference" for the definitions in numpy without optimization, "onnxruntime"; or a Side, as it is.

    Raises ValueError for an unknown name or level, InvalidArgument for an option that this side does not
    have.
    """
    from ...providers import ExecutionProvider, known

    if isinstance(what, Side):
        return what
    if isinstance(what, tuple):
        what, options = what[0], {**what[1], **(options or {})}
    if level not in LEVELS:
        raise ValueError(f"level {level}: expected one of {', '.join(LEVELS)}")
    if isinstance(what, type) and issubclass(what, ExecutionProvider):
        what = what.name
    given = tuple((str(k), str(v)) for k, v in (options or {}).items())
    if what in (REFERENCE, PEER):
        if given:
            raise InvalidArgument(f"{what} takes no options", found=", ".join("=".join(kv) for kv in given))
        if what == PEER:
            _peer()
            return Side(PEER, ((_PROVIDER, ()),), level, True, seed)
        return Side(REFERENCE, ((_PROVIDER, (("use_codegen", "0"),)),), "disable", False, seed)
    try:
        name = full_name(str(what), list(known()))
    except ValueError as error:
        raise ValueError(f"{error}; {REFERENCE} and {PEER} can be compared with too") from None
    return Side(name, ((name, given),), level, False, seed)


def kernels_of(it: Side, model: Any, folder: str | None, feeds: Mapping[str, Any]) -> list[tuple[str, str]]:
    """(nodes, kernel) of each step of a run on a side of this package, in order; nothing for a peer."""
    if it.peer:
        return []
    session = it.session(model, folder)
    try:
        known = {v.name for v in (*session.get_inputs(), *session.get_overridable_initializers())}
        with session.profile(compare=False) as found:
            session.run(None, {name: value for name, value in feeds.items() if name in known})
        return [(node.node, node.kernel) for node in found.nodes]
    finally:
        session.close()


def settled(it: Side, model: Model, feeds: Mapping[str, Any]) -> Side:
    """`it` with what it decides by a trial of the whole model decided: parts of the model would be tried
    anew. The CPU provider, told `auto`, tries whether products of float32 may be computed by a matrix unit.
    """
    name, given = it.providers[0]
    if it.peer or name != _PROVIDER or (_PRECISION, "auto") not in given:
        return it
    kernels = {kernel for _, kernel in kernels_of(it, model.source, model.folder, feeds)}
    found = "fast" if any("tiles" in kernel for kernel in kernels) else "exact"
    told = tuple((key, found if key == _PRECISION else value) for key, value in given)
    return replace(it, providers=((name, told), *it.providers[1:]))


def titled(a: Side, b: Side) -> tuple[Side, Side]:
    """Both, with titles that tell them apart."""
    if a.title != b.title:
        return a, b
    return tuple(replace(each, title=f"{letter}: {each.title}")  # type: ignore[return-value]
                 for letter, each in (("a", a), ("b", b)))


def _own() -> Any:
    import orthrus

    return orthrus


def _peer() -> Any:
    try:
        import onnxruntime
    except ImportError as error:
        raise Fail("onnxruntime is not installed here", found=error,
                   cure="pip install onnxruntime, or compare with another side: reference, cpu") from None
    if onnxruntime is _own():
        raise Fail("onnxruntime is this package by another name here, and would agree with itself",
                   cure="compare where onnxruntime itself is installed, or with another side: reference, cpu")
    return onnxruntime
