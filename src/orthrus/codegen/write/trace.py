"""Operator definitions to expressions: an elementwise body is run on tracers, which record what is done.

An operator comes in with its attributes and its inputs' types, and the tree of one output element goes out,
or a `No` with the reason why there is none. The tree means what `Op.bind` computes: numpy decides every type.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ...ir import HALF, ElementType, No
from ...ops import functions
from ...ops.define import Op
from .expr import BYTES, Expr


class _Types(dict[str, np.dtype[Any]]):
    """numpy's types by name; that of bfloat16 is imported when it is met."""

    def __missing__(self, name: str) -> np.dtype[Any]:
        self[name] = ElementType[name.upper()].numpy
        return self[name]


_DTYPES = _Types({name: np.dtype(name) for name in BYTES if name != "bfloat16"})
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}


_PLAIN = (int, float, str, np.generic)
_MOST = 1 << 12
_known: dict[Any, Expr | No] = {}
"""Trees by all they depend on, where `repr` says all there is to an attribute and a constant."""


class _Untraceable(Exception):
    """The body does what no expression can say."""


def trace(op: Op, attrs: Mapping[str, Any], dtypes: Sequence[str | None],
          constants: Mapping[int, Any] | None = None) -> Expr | No:
    """The tree of an operator whose output elements depend on input elements at the same place only.

    `dtypes` are numpy's names of the inputs' types, None for an absent one; leaf i of the tree reads input i.
    `constants` gives inputs of one element that are known, by position: they become part of the tree. An
    integer division needs its divisor there, as the reference refuses zeros.
    """
    given = [*attrs.items(), *(constants or {}).items()]
    if not all(isinstance(v, _PLAIN) for _, v in given):
        return _recorded(op, attrs, dtypes, constants)
    key = op, tuple(dtypes), tuple([(name, type(v), repr(v)) for name, v in given])
    made = _known.get(key)
    if made is None:
        if len(_known) >= _MOST:
            _known.clear()
        made = _known[key] = _recorded(op, attrs, dtypes, constants)
    return made


def _recorded(op: Op, attrs: Mapping[str, Any], dtypes: Sequence[str | None],
            constants: Mapping[int, Any] | None) -> Expr | No:
    if op.runtime or op.prepared or op.n_outputs != 1:
        return No(f"{op.name} is more than a function of elements")
    known = constants or {}
    inputs: list[Any] = []
    for i, name in enumerate(dtypes):
        if name is None:
            inputs.append(None)
        elif name not in BYTES:
            return No(f"kernels do not compute with {name}")
        elif i in known:
            inputs.append(np.asarray(known[i], _DTYPES[name]).reshape(()))
        else:
            inputs.append(_Tracer(Expr.leaf(i, name)))
    halves = [x.dtype for x in inputs if x is not None and x.dtype in HALF]
    if op.widen and (halves if op.result != "same" else inputs[0].dtype in HALF):
        inputs = [x.astype(np.float32) if x is not None and x.dtype in HALF else x for x in inputs]
    else:
        halves = []
    try:
        kept = {k: v for k, v in op.with_defaults(dict(attrs)).items() if k in op.attributes}
        result = op.body_over(_TRACED)(*inputs, **kept)
        if not isinstance(result, _Tracer):
            result = _Tracer(_constant(result, np.asarray(result).dtype))
        if op.result == "same":
            result = result.astype(_DTYPES[str(dtypes[0])])
        elif halves and result.dtype == np.float32:
            result = result.astype(halves[0])
    except (_Untraceable, TypeError, ValueError, AttributeError, OverflowError) as error:
        return No(f"{op.name} is not traced: {error}")
    return result.expr


def traced(op: Op, attrs: Mapping[str, Any], dtypes: Sequence[str | None]) -> Expr:
    """The tree of an operator that is known to have one."""
    tree = trace(op, attrs, dtypes)
    assert isinstance(tree, Expr), tree.reason
    return tree


def cast(source: str, target: str) -> Expr | No:
    """The operator Cast between two types, as a tree over leaf 0."""
    for name in (source, target):
        if name not in BYTES:
            return No(f"kernels do not compute with {name}")
    return Expr.leaf(0, source).cast(target)


class _Tracer(np.lib.mixins.NDArrayOperatorsMixin):
    """An array of which only the expression of an element is known."""

    def __init__(self, expr: Expr) -> None:
        self.expr = expr

    @property
    def dtype(self) -> np.dtype[Any]:
        return _DTYPES[self.expr.dtype]

    def astype(self, dtype: Any, copy: bool = True) -> _Tracer:
        target = np.dtype(dtype)
        if _is_float(self.dtype) and target.kind in "iu":
            raise _Untraceable("numpy leaves floats outside an integer type's range undefined")
        return _Tracer(self.expr.cast(_name(target)))

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> _Tracer:
        if method != "__call__" or options:
            raise _Untraceable(f"{ufunc.__name__}.{method} with {', '.join(options) or 'no options'}")
        return _applied(ufunc, inputs)

    def __array_function__(self, function: Any, _: Any, args: Any, options: Any) -> _Tracer:
        if function is not np.where or len(args) != 3 or options:
            raise _Untraceable(f"numpy.{function.__name__} is not elementwise")
        condition, a, b = args
        kinds = [{int: 0, float: 0.0}.get(kind, kind) for kind in map(_kind, (a, b))]
        dtype = np.result_type(*kinds)
        return _computed(lambda c, x, y: Expr("where", (c, x, y), x.dtype),
                         (_bool(condition), _as(a, dtype), _as(b, dtype)), dtype)

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise _Untraceable("the body looks at a tensor's elements")

    def __bool__(self) -> bool:
        raise _Untraceable("the body branches on a tensor's value")


def _is_float(dtype: np.dtype[Any]) -> bool:
    return dtype.kind == "f" or dtype in HALF


def _name(dtype: np.dtype[Any]) -> str:
    if dtype.kind == "V" and dtype == _DTYPES["bfloat16"]:
        return "bfloat16"
    if dtype not in _NAMES:
        raise _Untraceable(f"kernels do not compute with {dtype}")
    return _NAMES[dtype]


def _kind(x: Any) -> Any:
    """What numpy's promotion looks at: a type, or `int` or `float` for Python's numbers, which adapt."""
    if isinstance(x, _Tracer) or (isinstance(x, np.generic | np.ndarray) and x.ndim == 0):
        return x.dtype
    if isinstance(x, bool):
        return np.dtype(bool)
    if isinstance(x, int | float):
        return type(x)
    raise _Untraceable(f"an operand is a {type(x).__name__}")


def _constant(x: Any, dtype: np.dtype[Any]) -> Expr:
    """Raises OverflowError where a Python integer is out of range."""
    if np.size(x) != 1:
        raise _Untraceable("a constant operand has more than one element")
    with np.errstate(all="ignore"):
        value = np.asarray(x).reshape(()) if isinstance(x, np.ndarray) else np.array(x, None if isinstance(
            x, np.generic) else dtype)
        item = value.astype(dtype).item()
    if dtype in HALF:
        return _constant(np.float32(item), np.dtype(np.float32)).cast(_name(dtype))
    if isinstance(item, float):
        if item != item:
            item = math.nan
        elif item == 0 and math.copysign(1, item) < 0:
            return Expr("neg", (Expr.const(0.0, _name(dtype)),), _name(dtype))
    return Expr.const(item, _name(dtype))


def _as(x: Any, dtype: np.dtype[Any]) -> Expr:
    return x.astype(dtype).expr if isinstance(x, _Tracer) else _constant(x, dtype)


def _bool(x: Any) -> Expr:
    return _as(x, np.dtype(bool))


def _computed(write: Callable[..., Expr], args: Sequence[Expr], dtype: np.dtype[Any]) -> _Tracer:
    """`write` of the operands, half precision by way of float32; the result has type `dtype`."""
    wide = [a.cast("float32") if _DTYPES[a.dtype] in HALF else a for a in args]
    return _Tracer(write(*wide).cast(_name(dtype)))


def _applied(ufunc: np.ufunc, inputs: Sequence[Any]) -> _Tracer:
    """A numpy function of operands, in the types numpy computes it in."""
    write = _UFUNCS.get(ufunc)
    if write is None or ufunc.nout != 1:
        raise _Untraceable(f"kernels have no {ufunc.__name__}")
    *given, dtype = ufunc.resolve_dtypes((*map(_kind, inputs), None))
    args = [_as(x, d) for x, d in zip(inputs, given, strict=True)]
    if len({a.dtype for a in args}) > 1:
        raise _Untraceable(f"{ufunc.__name__} of {' and '.join(a.dtype for a in args)}")
    return _computed(write, args, dtype)


def _call(name: str, *args: Expr) -> Expr:
    first = args[0].dtype
    if first == "float64" and name == "pow":
        raise _Untraceable("kernels have no pow of float64")
    return Expr(name, args, first)


def _plain(name: str, of_bools: str = "") -> Callable[..., Expr]:
    """`of_bools`: what the function is called where the operands are bools."""
    def write(*args: Expr) -> Expr:
        if args[0].dtype != "bool":
            return _call(name, *args)
        if not of_bools:
            raise _Untraceable(f"{name} of bools")
        return _call(of_bools, *args)
    return write


def _compared(name: str) -> Callable[..., Expr]:
    return lambda a, b: Expr(name, (a, b), "bool")


def _logical(name: str) -> Callable[..., Expr]:
    return lambda *args: Expr(name, tuple(a.cast("bool") for a in args), "bool")


def _tested(name: str, of_integers: bool) -> Callable[[Expr], Expr]:
    def write(x: Expr) -> Expr:
        if not x.dtype.startswith("float"):
            return Expr.const(of_integers, "bool")
        return Expr(name, (x,), "bool")
    return write


def _integral(name: str) -> Callable[[Expr], Expr]:
    return lambda x: _call(name, x) if x.dtype.startswith("float") else x


def _divides(name: str) -> Callable[..., Expr]:
    def write(a: Expr, b: Expr) -> Expr:
        if not a.dtype.startswith("float") and not (b.op == "const" and b.value):
            raise _Untraceable("the divisor of integers may be zero")
        return _call(name, a, b)
    return write


_UFUNCS: dict[Any, Callable[..., Expr]] = {
    np.add: _plain("add", "or"), np.subtract: _plain("sub"), np.multiply: _plain("mul", "and"),
    np.true_divide: _plain("div"), np.negative: _plain("neg"), np.positive: lambda x: x,
    np.square: lambda x: _call("mul", x, x), np.absolute: _plain("abs", "abs"), np.fabs: _plain("abs"),
    np.sign: _plain("sign"), np.reciprocal: lambda x: _call("div", _constant(1, _DTYPES[x.dtype]), x),
    np.minimum: _plain("minimum", "and"), np.maximum: _plain("maximum", "or"),
    np.fmod: _divides("fmod"), np.remainder: _divides("remainder"), np.power: _plain("pow"),
    np.floor: _integral("floor"), np.ceil: _integral("ceil"), np.trunc: _integral("trunc"),
    np.rint: _integral("rint"),
    **{getattr(np, name): _plain(name) for name in (
        "sqrt", "exp", "exp2", "expm1", "log", "log2", "log1p", "sin", "cos", "tan", "sinh", "cosh", "tanh",
        "copysign")},
    **{getattr(np, "arc" + name): _plain("a" + name)
       for name in ("sin", "cos", "tan", "sinh", "cosh", "tanh")},
    np.less: _compared("lt"), np.less_equal: _compared("le"), np.greater: _compared("gt"),
    np.greater_equal: _compared("ge"), np.equal: _compared("eq"), np.not_equal: _compared("ne"),
    np.logical_and: _logical("and"), np.logical_or: _logical("or"), np.logical_xor: _logical("xor"),
    np.logical_not: _logical("not"), np.bitwise_and: _plain("and", "and"), np.bitwise_or: _plain("or", "or"),
    np.bitwise_xor: _plain("xor", "xor"), np.invert: _plain("not", "not"),
    np.left_shift: _plain("shift_left"), np.right_shift: _plain("shift_right"),
    np.isnan: _tested("isnan", False), np.isinf: _tested("isinf", False),
    np.isfinite: _tested("isfinite", True),
}


class _Traced:
    """What bodies know as `xp`, for tracers: the functions of `functions`, and numpy for the rest."""

    def __getattr__(self, name: str) -> Any:
        own, reference = _FUNCTIONS.get(name), getattr(functions, name, None)
        if reference is None:
            return getattr(np, name)

        def call(*args: Any) -> Any:
            if not any(isinstance(a, _Tracer) for a in args):
                return reference(*args)
            if own is None:
                raise _Untraceable(f"kernels have no {name}")
            return own(*args)
        return call


_TRACED = _Traced()


def _erf(x: _Tracer) -> _Tracer:
    if not _is_float(x.dtype):
        raise _Untraceable("erf of integers")
    return _computed(lambda v: _call("erf", v), [x.expr], x.dtype)


def _sigmoid(x: _Tracer) -> Any:
    if x.dtype not in (np.float32, np.float64):
        return 1 / (1 + np.exp(-x))
    return _Tracer(_call("sigmoid", x.expr))


def _divide(a: Any, b: Any) -> Any:
    if a.dtype.kind not in "iu":
        return np.true_divide(a, b)
    if a.dtype != b.dtype:
        raise _Untraceable(f"division of {a.dtype} by {b.dtype}")
    return _Tracer(_divides("quotient")(_as(a, a.dtype), _as(b, a.dtype)))


def _to_integer(x: _Tracer, dtype: Any) -> _Tracer:
    wide = x.expr if _is_float(x.dtype) else x.expr.cast("float32")
    return _Tracer(wide.cast(_name(np.dtype(dtype))))


def _wrapped(x: _Tracer, dtype: Any) -> _Tracer:
    return x.astype(dtype)


def _power(x: Any, y: Any) -> Any:
    if x.dtype.kind in "iu":
        if y.dtype.kind not in "iu":
            raise _Untraceable("an integer to the power of a float")
        return _integer_power(x, y)
    if not _is_float(x.dtype):
        raise _Untraceable(f"a power of {x.dtype}")
    if not isinstance(y, _Tracer):
        match float(y):
            case 0.5:
                return np.sqrt(x)
            case -1.0:
                return 1 / x
            case 1.0:
                return x
            case 2.0:
                return x * x
            case 3.0:
                return x * x * x
    return _computed(lambda a, b: _call("pow", a, b), (_as(x, x.dtype), _as(y, y.dtype).cast(
        "float32" if y.dtype == x.dtype else "float64")), x.dtype)


def _integer_power(x: Any, y: Any) -> Any:
    dtype = np.dtype(f"u{max(x.dtype, y.dtype, key=lambda d: d.itemsize).itemsize}")
    exponent = y if y.dtype.kind == "u" else np.maximum(y, y.dtype.type(0))
    whole = _Tracer(Expr("power", (_as(x, dtype), _as(exponent, dtype)), _name(dtype))).astype(x.dtype)
    if y.dtype.kind == "u" or (not isinstance(y, _Tracer) and y >= 0):
        return whole
    one, zero = x.dtype.type(1), x.dtype.type(0)
    least = x.dtype.type(np.iinfo(x.dtype).min)
    odd = (y & y.dtype.type(1)) != 0
    sign = one if x.dtype.kind == "u" else np.where((x == -1) & odd, -one, one)
    fraction = np.where(x == 0, least, np.where(np.abs(x) == one, sign, zero))
    return np.where(y < 0, fraction, whole)


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "erf": _erf, "sigmoid": _sigmoid, "scalar": lambda x: x, "divide": _divide, "remainder": np.remainder,
    "fmod": np.fmod, "power": _power, "to_integer": _to_integer, "wrapped": _wrapped}
