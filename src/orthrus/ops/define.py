"""How an operator is defined: one function whose signature is the interface and whose body is the meaning.

Positional parameters are inputs, in ONNX's order; one that may be absent defaults to None; `*xs` takes any
number. Keyword-only parameters are attributes with their ONNX defaults; one without a default is required.
Two keyword-only names are not attributes but are filled in by the runtime: `n_outputs` (how many outputs the
node names) and `rng` (a numpy Generator that follows the node's seed and `set_seed`). Names listed in
`prepared=` are not attributes either: `@Name.prepare_with` attaches a function of attributes that makes them,
once per node. A body takes numpy arrays, returns one array or a tuple of them, and has no side effects. A
graph attribute arrives as a callable: `body(*inputs) -> list of outputs`.

Versions: a definition serves the operator's schema versions from `since` up to the next definition of the
same name. An older form stands beside the newest under its name and first version, `Softmax_1`.

    @elementwise()
    def LeakyRelu(x, *, alpha: float = 0.01):
        return xp.where(x < 0, alpha * x, x)
"""

from __future__ import annotations

import inspect
import math
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias, TypeVar

import numpy as np

from ..index import Index
from ..ir import HALF, ElementType, TensorType, Type, Value, element_of
from ..limits import HARMLESS, bounded
from ..records import cached_property
from ..shapes.axes import normalized as normalized
from ..shapes.axes import normalized_axis as normalized_axis
from . import functions
from .index import DEFINITIONS

FLOATS = ("float", "double", "float16", "bfloat16")
SIGNED = ("int8", "int16", "int32", "int64")
UNSIGNED = ("uint8", "uint16", "uint32", "uint64")
INTS = SIGNED + UNSIGNED
NUMBERS = FLOATS + INTS

_PIECE = 1 << 23
"""Bytes of a result from which on an elementwise body computes it piece by piece."""

REQUIRED = object()
_RUNTIME = ("n_outputs", "rng")
_registry: dict[tuple[str, str], list[Op]] = {}
INDEX = Index(__name__.rpartition(".")[0], DEFINITIONS)

Rule = TypeVar("Rule", bound=Callable[..., Any])
Samples: TypeAlias = "Iterator[tuple[list[Any], dict[str, Any]]]"


class _Namespace:
    """`xp.f`: numpy's `f`, or the function of that name in `functions` where numpy has none."""

    def __getattr__(self, name: str) -> Any:
        found = getattr(functions, name, None) or getattr(np, name)
        setattr(self, name, found)
        return found


xp = _Namespace()


_INPUT, _SEVERAL = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.VAR_POSITIONAL
_KEYWORD, _NONE = inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.empty


class _Parameter(NamedTuple):
    """As `inspect.Parameter`, which takes longer to make than all else of a definition."""

    name: str
    kind: Any
    default: Any
    annotation: Any


def _parameters(body: Callable[..., Any]) -> list[_Parameter]:
    """The parameters of a function."""
    plain = type(body) is types.FunctionType and not body.__dict__.keys() & {"__wrapped__", "__signature__"}
    if not plain or body.__code__.co_posonlyargcount or body.__code__.co_flags & inspect.CO_VARKEYWORDS:
        return [_Parameter(p.name, p.kind, p.default, p.annotation)
                for p in inspect.signature(body).parameters.values()]
    code, said = body.__code__, body.__annotations__
    count, names = code.co_argcount, code.co_varnames
    given = body.__defaults__ or ()
    defaults = dict(zip(names[count - len(given):count], given, strict=True)) | (body.__kwdefaults__ or {})
    behind = count + code.co_kwonlyargcount
    kinds = [*((name, _INPUT) for name in names[:count]),
             *((name, _SEVERAL) for name in names[behind:behind + 1] if code.co_flags & inspect.CO_VARARGS),
             *((name, _KEYWORD) for name in names[count:behind])]
    return [_Parameter(name, kind, defaults.get(name, _NONE), said.get(name, _NONE)) for name, kind in kinds]


class Op:
    """One definition. `widen`: float16, bfloat16 and float8 inputs reach the body as float32, and a float32
    result goes back to the type of the first of them. `result`: the element type of every output: "same" as
    the first input, an ONNX type name, or None where `infer` says it. `alike`: an elementwise operator whose
    inputs have one shape, so that nothing is broadcast."""

    def __init__(self, body: Callable[..., Any], *, domain: str = "", since: int | None = None,
                 name: str | None = None, types: dict[str, Sequence[str]] | None = None, widen: bool = False,
                 result: str | None = None, outputs: int | None = 1, tol: float = 2e-6, ufunc: Any = None,
                 prepared: Sequence[str] = (), optional: Sequence[str] = (), alike: bool = False) -> None:
        stem, _, suffix = body.__name__.rpartition("_")
        older = bool(stem) and suffix.isdigit()
        self.name = name or (stem if older else body.__name__)
        self.since = since if since is not None else int(suffix) if older else 1
        self.domain, self.body = domain, body
        self.module = sys.modules.get(body.__module__)
        self.types, self.widen, self.result, self.tol, self.ufunc = types or {}, widen, result, tol, ufunc
        self.n_outputs = outputs
        self.inputs: list[str] = []
        self.optional = set(optional)
        self.variadic = False
        self.attributes: dict[str, Any] = {}
        self.defaults: dict[str, Any] = {}
        self.annotations: dict[str, Any] = {}
        self.runtime: set[str] = set()
        self.prepared = frozenset(prepared)
        self._prepare: Callable[..., dict[str, Any]] | None = None
        self._prepare_takes: frozenset[str] = frozenset()
        self.broadcasts, self.alike = False, alike
        self._infer: Callable[..., Any] | None = None
        self._samples: Callable[..., Any] | None = None
        for p in _parameters(body):
            if p.kind is _KEYWORD:
                if p.name in _RUNTIME:
                    self.runtime.add(p.name)
                elif p.name not in self.prepared:
                    self._add_attribute(p)
            elif p.kind is _SEVERAL:
                self.inputs.append(p.name)
                self.variadic = True
            elif p.kind is _INPUT:
                self.inputs.append(p.name)
                if p.default is not _NONE:
                    self.optional.add(p.name)
        self._body_takes = frozenset(self.attributes)

    def __call__(self, *inputs: Any, **attrs: Any) -> Any:
        """The body of inputs with the attributes completed: how one definition stands on another."""
        return self.body(*inputs, **self.with_defaults(attrs))

    def body_over(self, namespace: Any) -> Callable[..., Any]:
        """The body with `namespace` for `xp`, also in the operators it calls, to be called with arrays of
        another kind than numpy's."""
        body: Any = self.body
        names = {k: namespace if v is xp else v for k, v in body.__globals__.items()}
        names |= {k: names[k].body_over(namespace) for k in body.__code__.co_names
                  if isinstance(names.get(k), Op)}
        made = types.FunctionType(body.__code__, names, body.__name__, body.__defaults__, body.__closure__)
        made.__kwdefaults__ = (body.__kwdefaults__ or {}) | self.defaults
        return made

    def _add_attribute(self, p: _Parameter) -> None:
        default = float(np.float32(p.default)) if isinstance(p.default, float) else p.default
        self.attributes[p.name] = REQUIRED if default is _NONE else default
        if default is not _NONE:
            self.defaults[p.name] = default
        self.annotations[p.name] = p.annotation

    @cached_property
    def doc(self) -> str:
        """What the definition says of itself."""
        return inspect.getdoc(self.body) or ""

    def __repr__(self) -> str:
        return f"<operator {self.domain}::{self.name} since {self.since}>"

    def infer_with(self, rule: Rule) -> Rule:
        """Attach the type rule: called with the node's input Values (None where absent) and its
        attributes by keyword, it returns a Type per output. A Value has `.type`, `.elem`,
        `.shape` and, where known, `.const`."""
        self._infer = rule
        return rule

    def prepare_with(self, rule: Rule) -> Rule:
        """Attach the preparation: called once in `bind` with the attributes its keyword-only parameters
        name, it returns a value for each name in `prepared`. Parameters the body does not have are
        attributes of the operator too.

        What depends on attributes alone, such as a forest laid out as arrays, is so made once and not at each
        call. The rule raises ValueError where the attributes contradict each other.
        """
        parameters = _parameters(rule)
        for p in parameters:
            if p.name not in self.attributes:
                self._add_attribute(p)
        self._prepare, self._prepare_takes = rule, frozenset(p.name for p in parameters)
        return rule

    def sample_with(self, samples: Rule) -> Rule:
        """Attach the test samples: `samples(rng, dtype)` yields pairs of input list and attributes."""
        self._samples = samples
        return samples

    @property
    def own(self) -> bool:
        """Whether this package defines it, and not its user."""
        return self.body.__module__.startswith(__name__.rpartition(".")[0])

    @property
    def modules(self) -> set[str]:
        """The modules that say it: its body, and its rules."""
        parts = (self.body, self._infer, self._prepare, self._samples)
        return {part.__module__ for part in parts if part is not None}

    @property
    def inferable(self) -> bool:
        """Whether the definition has its own type rule; else ONNX's schema gives it."""
        return self._infer is not None

    def infer(self, inputs: Sequence[Value | None], attrs: dict[str, Any]) -> list[Type | None]:
        """The types of the outputs, as far as they follow from the inputs' types and constants."""
        assert self._infer is not None
        known = {k: v for k, v in self.with_defaults(attrs).items() if k in self.attributes}
        return list(self._infer(*inputs, **known))

    def samples(self, rng: np.random.Generator, dtype: np.dtype[Any]) -> Samples:
        """Test samples for one element type; none where the definition gives none."""
        return iter(()) if self._samples is None else self._samples(rng, dtype)

    @property
    def required(self) -> list[str]:
        """The attributes that have no default."""
        return [name for name in self.attributes if name not in self.defaults]

    def with_defaults(self, given: dict[str, Any]) -> dict[str, Any]:
        """`given` over the defaults. A required attribute left out raises TypeError."""
        merged = self.defaults | given
        if missing := [name for name in self.required if name not in given]:
            raise TypeError(f"Required attribute '{missing[0]}' is missing.")
        return merged

    def prepare(self, attrs: dict[str, Any]) -> dict[str, Any]:
        """What the body takes in place of attributes and is made of them once; nothing where the definition
        prepares nothing."""
        if self._prepare is None:
            return {}
        merged = self.with_defaults(attrs)
        return self._prepare(**{k: merged[k] for k in self._prepare_takes})

    def bind(self, attrs: dict[str, Any], n_outputs: int = 1, rng: Any = None,
             dtypes: Sequence[Any] | None = None) -> Callable[..., Any]:
        """The reference kernel: a function of arrays with the attributes fixed.

        `dtypes` are the inputs' numpy types where known; they spare the look at each call. Unknown attributes
        are left out, so that a newer spelling of an attribute this body does not read cannot break it.
        """
        kept = {k: v for k, v in self.with_defaults(attrs).items() if k in self._body_takes}
        kept.update(self.prepare(attrs))
        for extra, value in (("n_outputs", n_outputs), ("rng", rng)):
            if extra in self.runtime:
                kept[extra] = value
        body = self.body
        call = (lambda *arrays: body(*arrays, **kept)) if kept else body
        if self.broadcasts:
            call = _bounded(call)
        if self.alike:
            call = _alike(call, self.name)
        narrow = dtypes is None or any(d is None or d in HALF for d in dtypes)
        if self.result == "same":
            return _same(call, self.widen and narrow)
        return _widened(call) if self.widen and narrow else call


def _bounded(call: Callable[..., Any]) -> Callable[..., Any]:
    """What broadcasting makes of the inputs is within limits before it is computed."""
    def run(*arrays: Any) -> Any:
        most, widest = 1, arrays[0]
        for a in arrays:
            if a is not None:
                most *= a.size
                widest = a if a.itemsize > widest.itemsize else widest
        if most * widest.itemsize <= HARMLESS:
            return call(*arrays)
        shape = bounded(np.broadcast_shapes(*(a.shape for a in arrays if a is not None)), widest.dtype)
        if math.prod(shape) * widest.itemsize <= _PIECE:
            return call(*arrays)
        return _in_pieces(call, arrays, shape)
    return run


def _alike(call: Callable[..., Any], name: str) -> Callable[..., Any]:
    """The inputs have one shape."""
    def run(*arrays: Any) -> Any:
        unalike(name, [a.shape for a in arrays if a is not None])
        return call(*arrays)
    return run


def unalike(name: str, shapes: Sequence[Sequence[Any] | None]) -> None:
    """Raises ValueError where shapes, as far as they are known, are not one."""
    known = [s for s in shapes if s is not None]
    if len({len(s) for s in known}) > 1 or any(
            len({d for d in sizes if isinstance(d, int)}) > 1 for sizes in zip(*known, strict=False)):
        found = " and ".join(str(tuple(s)) for s in known)
        raise ValueError(f"{name} takes inputs of one shape, found {found}")


def _in_pieces(call: Callable[..., Any], arrays: Sequence[Any], shape: tuple[int, ...]) -> Any:
    """An elementwise body on pieces of `shape` along its longest axis: what it makes on the way is small."""
    axis = max(range(len(shape)), key=shape.__getitem__)
    step = max(_PIECE * shape[axis] // (16 * math.prod(shape)), 1)
    wide = [a if a is None or a.size == 1 else np.broadcast_to(a, shape) for a in arrays]
    out: Any = None
    for start in range(0, shape[axis], step):
        at = (*(slice(None),) * axis, slice(start, start + step))
        made = call(*(a if a is None or a.size == 1 else a[at] for a in wide))
        if out is None:
            out = np.empty(bounded(shape, made.dtype), made.dtype)
        out[at] = made
    return out


def _same(call: Callable[..., Any], widen: bool) -> Callable[..., Any]:
    """The result has the first input's type."""
    def run(*arrays: Any) -> Any:
        dtype = arrays[0].dtype
        if widen and dtype in HALF:
            arrays = tuple(a.astype(np.float32) if a is not None and a.dtype in HALF else a for a in arrays)
        y = call(*arrays)
        return y if y.dtype is dtype else y.astype(dtype, copy=False)
    return run


def _widened(call: Callable[..., Any]) -> Callable[..., Any]:
    """Half-precision inputs arrive as float32; float32 results go back."""
    def run(*arrays: Any) -> Any:
        half = next((a.dtype for a in arrays if isinstance(a, np.ndarray) and a.dtype in HALF), None)
        if half is None:
            return call(*arrays)
        y = call(*(a.astype(np.float32) if isinstance(a, np.ndarray) and a.dtype in HALF else a
                   for a in arrays))
        if isinstance(y, tuple):
            return tuple(_narrow(v, half) for v in y)
        return _narrow(y, half)
    return run


def _narrow(value: Any, dtype: np.dtype[Any]) -> Any:
    return value.astype(dtype) if getattr(value, "dtype", None) == np.float32 else value


def families() -> None:
    """Read every module that defines operators."""
    INDEX.read_all()


def foreign() -> set[tuple[str, str]]:
    """The operators, by domain and name, that somebody else has defined."""
    return {key for key, family in _registry.items() if not all(op.own for op in family)}


def _register(op: Op) -> Op:
    if not op.own:
        INDEX.read((op.domain, op.name))
    family = _registry.setdefault((op.domain, op.name), [])
    same = next((o for o in family if o.since == op.since), None)
    if same is not None:
        again = same.body.__module__ == op.body.__module__ and same.module is not op.module
        if not again:  # an import that was interrupted leaves its definitions behind, and is made again
            raise ValueError(f"{op!r} is defined twice")
        family.remove(same)
    family.append(op)
    family.sort(key=lambda o: o.since)
    return op


def define(body: Callable[..., Any] | None = None, **options: Any) -> Any:
    """Define and register an operator, with or without options in parentheses."""
    if body is None:
        return lambda b: _register(Op(b, **options))
    return _register(Op(body, **options))


op = define
"""A primitive with a body in numpy. Its types follow ONNX's schema unless
`@Name.infer_with` says otherwise."""


def broadcast(*shapes: Any) -> Any:
    """numpy's broadcasting on shapes whose dimensions may be names or unknown; None where a rank is unknown.

    Raises ValueError where two known dimensions contradict.
    """
    if None in shapes:
        return None
    first = shapes[0] if shapes else ()
    if all(s == first for s in shapes):
        return tuple(first)
    out: list[Any] = []
    for i in range(1, max(map(len, shapes), default=0) + 1):
        dims = {s[-i] for s in shapes if len(s) >= i} - {1}
        fixed = {d for d in dims if isinstance(d, int)}
        if len(fixed) > 1:
            raise ValueError(f"Incompatible dimensions for broadcasting: {' and '.join(map(str, shapes))}")
        out.append(fixed.pop() if fixed else 1 if not dims else dims.pop() if len(dims) == 1 else None)
    return tuple(out[::-1])


def elementwise(*, result: str | None = "same", widen: bool = True, **options: Any
                ) -> Callable[[Callable[..., Any]], Op]:
    """Broadcasts its inputs; output element i depends on input elements i only. The body is written in `xp`
    functions and operators, and never branches on a tensor's value, so that a code generator can trace it.
    With `result` None the definition needs its own type rule."""
    def decorate(body: Callable[..., Any]) -> Op:
        it = Op(body, widen=widen, result=result, **options)

        def infer(*inputs: Value | None, **_: Any) -> list[Type]:
            present = [v for v in inputs if v is not None]
            elem = ElementType[result.upper()] if result and result != "same" else present[0].elem
            return [TensorType(elem, broadcast(*(v.shape for v in present)))]

        def samples(rng: np.random.Generator, dtype: np.dtype[Any]) -> Samples:
            count = 2 if it.variadic else len(it.inputs) - len(it.optional)
            for shapes in ([(3, 5)] * count, [(4, 1) if i else (4, 7) for i in range(count)],
                           [() if i else (0, 3) for i in range(count)], [()] * count):
                yield [random_array(rng, shape, dtype) for shape in shapes], {}

        it._infer, it._samples, it.broadcasts = infer, samples, True
        return _register(it)
    return decorate


def reduction(**options: Any) -> Callable[[Callable[..., Any]], Op]:
    """Folds the elements along `axes` into one: `body(x, axes, keepdims)`, where `axes`
    is a tuple of non-negative ints.

    Defines the form with `axes` as an input; `axes_input_since` names its first version, below which the same
    body serves the form with `axes` as an attribute.
    """
    axes_input_since = options.pop("axes_input_since", 18)

    def decorate(body: Callable[..., Any]) -> Op:
        def folded(x: np.ndarray, axes: tuple[int, ...], keepdims: bool) -> Any:
            if not x.size:
                bounded([d for i, d in enumerate(x.shape) if i not in axes], x.dtype)
            return body(x, axes, keepdims)

        def by_input(x, axes=None, *, keepdims: int = 1, noop_with_empty_axes: int = 0):
            if (axes is None or not axes.size) and noop_with_empty_axes:
                return body(x, (), True)
            return folded(x, normalized(axes, x.ndim), bool(keepdims))

        def by_attribute(x, *, axes: list[int] | None = None, keepdims: int = 1):
            return folded(x, normalized(axes, x.ndim), bool(keepdims))

        def samples(rng: np.random.Generator, dtype: np.dtype[Any]) -> Samples:
            for axes, shape in (((1,), (3, 5)), ((-2, 0), (2, 3, 4)), (None, (2, 3))):
                for keepdims in (0, 1):
                    given = [] if axes is None else [np.array(axes, np.int64)]
                    yield [random_array(rng, shape, dtype), *given], {"keepdims": keepdims}

        by_input.__module__ = by_attribute.__module__ = body.__module__
        newest = Op(by_input, name=body.__name__, since=axes_input_since, widen=True, result="same",
                    **options)
        older = Op(by_attribute, name=body.__name__, since=1, widen=True, result="same", **options)
        newest.doc = older.doc = inspect.getdoc(body) or ""
        newest._samples = samples
        _register(older)
        return _register(newest)
    return decorate


def random_array(rng: np.random.Generator, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """A sample: signed values with zeros and repeats, small enough for every element type."""
    dtype = np.dtype(dtype)
    if dtype.kind == "O":
        return rng.choice(np.array(["", "a", "bc", "B"], object), shape)
    if dtype.kind == "b":
        return rng.integers(0, 2, shape).astype(bool)
    if dtype.kind in "iu":
        return rng.integers(0 if dtype.kind == "u" else -5, 6, shape).astype(dtype)
    made = np.asarray(rng.normal(size=shape).round(1) * 2)
    return (made if element_of(dtype).floating else made.astype(np.int64)).astype(dtype)


def find(domain: str, name: str, version: int) -> Op | None:
    """The definition that serves schema version `version`, or None."""
    return next((o for o in reversed(versions(domain, name)) if o.since <= version), None)


def versions(domain: str, name: str) -> Sequence[Op]:
    """Every definition of an operator, the oldest form first."""
    INDEX.read((domain, name))
    return _registry.get((domain, name), ())


def defined() -> Iterable[Op]:
    """Every definition, older forms too."""
    families()
    return (o for family in _registry.values() for o in family)


def forget(domain: str, name: str) -> None:
    """Take every definition of an operator away; tests and unregistering users' operators use it."""
    INDEX.read((domain, name))
    _registry.pop((domain, name), None)
