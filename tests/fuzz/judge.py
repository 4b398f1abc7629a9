"""What is wrong with the results of a subject: they are compared with onnxruntime's and, where these differ
or are missing, with those of the operators' definitions, run by numpy without any optimization.

Rounding is told from error by the subject itself: the definitions run again on feeds and constants that are
changed by a rounding each, and what that moves is not held against a result.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import onnx
from guards import guarded
from onnx import numpy_helper
from oracle import difference

import orthrus
from fuzz.small import Feeds, Subject
from orthrus import errors, knobs
from orthrus.ir import HALF

NUMPY = [("CPUExecutionProvider", {"use_codegen": "0"})]
_EPSILON = 2.0**-22


@dataclasses.dataclass(frozen=True)
class Finding:
    """`kind`: "wrong" and "refused" say that generated code or a rewrite differs from the definitions,
    "edge" that they do for infinities and NaN; "untyped" that an error is of no documented class, "crash" and
    "hang" how a process ended; "differs" that only onnxruntime gives something else."""

    kind: str
    text: str


def asks(elsewhere: bool) -> None:
    """Called before and after onnxruntime runs: should the process end, this tells whose fault it is."""


class Oracle:
    """What a model gives elsewhere; each engine is asked once at most."""

    def __init__(self, model: onnx.ModelProto, peer: Any) -> None:
        self.model, self.raw, self.peer = model, model.SerializeToString(), peer

    @functools.cached_property
    def _plain(self) -> Any:
        return session(orthrus, self.raw, "ORT_DISABLE_ALL", 1, NUMPY)

    @functools.cached_property
    def _theirs(self) -> Any:
        return session(self.peer, self.raw, "ORT_DISABLE_ALL", 1)

    def definitions(self, feeds: Feeds) -> list[Any] | Exception:
        return _tried(lambda: self._plain.run(None, feeds))

    def onnxruntime(self, feeds: Feeds) -> list[Any] | Exception:
        if self.peer is None:
            return RuntimeError("onnxruntime is not installed")
        copies = {k: a.copy() for k, a in feeds.items()}  # in training, onnxruntime writes to some
        asks(True)
        found = _tried(lambda: self._theirs.run(None, copies))
        asks(False)
        return found

    def reference(self, feeds: Feeds) -> list[Any] | Exception:
        from onnx.reference import ReferenceEvaluator

        return _tried(lambda: ReferenceEvaluator(self.model).run(None, feeds))

    def spread(self, feeds: Feeds, expected: Sequence[Any]) -> list[Any] | None:
        """How far the definitions' results move where feeds and constants are off by a rounding; None where
        they cannot be asked so."""
        far: list[Any] = [0.0] * len(expected)
        for seed in (1, 2, 3):
            rng = np.random.default_rng(seed)
            moved = onnx.ModelProto()
            moved.CopyFrom(self.model)
            for i, t in enumerate(moved.graph.initializer):
                moved.graph.initializer[i].CopyFrom(
                    numpy_helper.from_array(_nudged(numpy_helper.to_array(t), rng), t.name)
                )
            fed = {k: _nudged(a, rng) for k, a in feeds.items()}
            got = _tried(
                lambda m=moved, f=fed: session(  # type: ignore[misc]
                    orthrus, m.SerializeToString(), "ORT_DISABLE_ALL", 1, NUMPY
                ).run(None, f)
            )
            if isinstance(got, Exception):
                return None
            for k, (a, b) in enumerate(zip(got, expected, strict=True)):
                if getattr(a, "shape", 0) != getattr(b, "shape", 1) or a.dtype == object:
                    return None
                with np.errstate(all="ignore"):
                    step = np.abs(a.astype(np.float64) - b.astype(np.float64))
                same = (a == b) | ((a != a) & (b != b))
                far[k] = np.maximum(far[k], np.where(same, 0.0, np.where(np.isnan(step), np.inf, step)))
        return far


def _nudged(a: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    if a.dtype.kind != "f" and a.dtype not in HALF:
        return a
    unit = max(_EPSILON if a.dtype != np.float64 else 1e-12, 0.0 if a.dtype not in HALF else 2.0**-9)
    with np.errstate(all="ignore"):
        return np.asarray(a * (1 + unit * rng.choice([-1.0, 1.0], a.shape))).astype(a.dtype)


def _tried(run: Any) -> Any:
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            return run()
    except Exception as error:
        return error


def session(engine: Any, raw: bytes, level: str, threads: int, providers: Any = None) -> Any:
    options = engine.SessionOptions()
    options.graph_optimization_level = getattr(engine.GraphOptimizationLevel, level)
    options.log_severity_level = 4
    options.intra_op_num_threads = threads
    strict = {"fallback": "error"} if engine is orthrus and providers is None else {}
    return engine.InferenceSession(raw, options, providers=providers or ["CPUExecutionProvider"], **strict)


def examine(subject: Subject, peer: Any, on: str = "") -> Finding | None:
    """What is wrong with a subject, on the CPU or an emulated GPU; None where all is well."""
    oracle = Oracle(subject.model, peer)
    with surroundings(subject, on) as guard:
        opened = _tried(lambda: _opened(subject, oracle.raw, on))
        if isinstance(opened, Exception):
            return _refusal(opened, oracle, subject.feeds[0], "first")
        kept: list[tuple[list[Any], list[Any]]] = []
        results = []
        for feeds in subject.feeds:
            before = {k: a.copy() for k, a in feeds.items()}
            got = _tried(lambda f=feeds: opened.run(None, f))  # type: ignore[misc]
            results.append(got)
            if found := _bits(list(feeds.values()), list(before.values())):
                return Finding("wrong", f"a feed was written to: {found}")
            if isinstance(got, list):
                kept.append((got, [_copied(a) for a in got]))
        if guard is not None:
            guard.byte ^= 0x80
            again = _tried(lambda: opened.run(None, subject.feeds[-1]))
            if (
                isinstance(again, list)
                and isinstance(results[-1], list)
                and (found := _bits(again, results[-1]))
            ):
                return Finding("wrong", f"depends on what memory held before: {found}")
    for got, copies in kept:
        if found := _bits(got, copies):
            return Finding("wrong", f"a later run overwrites earlier results: {found}")
    for feeds, got, kind in zip(subject.feeds, results, subject.kinds, strict=True):
        found = _judged(subject, oracle, feeds, got, kind)
        if found is not None:
            return found
    return None


def _opened(subject: Subject, raw: bytes, on: str) -> Any:
    """A session under test."""
    setting = subject.setting
    if not on:
        return session(orthrus, raw, setting.level, setting.threads)
    from emulated_gpu import on_gpu

    options = orthrus.SessionOptions()
    options.graph_optimization_level = getattr(orthrus.GraphOptimizationLevel, setting.level)
    options.log_severity_level = 4
    return on_gpu(raw, on, options=options)


@contextlib.contextmanager
def surroundings(subject: Subject, on: str = "") -> Iterator[Any]:
    """What a subject's setting asks for, for the length of a block; the guard where memory is filled. A GPU's
    kernels may touch their tensors only, and its memory is always filled."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(knobs.setting(SHAPES=subject.setting.shapes, CACHE_SESSIONS=0))
        guard = None
        if on:
            from emulated_gpu import fenced

            stack.enter_context(fenced())
        elif subject.setting.byte is not None:
            guard = stack.enter_context(guarded(subject.setting.byte, subject.setting.threads))
        yield guard


def _copied(a: Any) -> Any:
    return a.copy() if isinstance(a, np.ndarray) else a


def _bits(got: Sequence[Any], kept: Sequence[Any]) -> str | None:
    """The first output that is not the same in every bit."""
    for k, (a, b) in enumerate(zip(got, kept, strict=True)):
        if (
            isinstance(a, np.ndarray)
            and a.dtype != object
            and (a.shape != b.shape or a.tobytes() != b.tobytes())
        ):
            return f"output {k}: {difference(a, b, 0, 0) or 'in the bits of NaN or 0'}"
    return None


def _refusal(error: Exception, oracle: Oracle, feeds: Feeds, kind: str) -> Finding | None:
    """Whether an error is one that the definitions would have given too."""
    text = f"{kind} feed: {type(error).__name__}: {' '.join(str(error).split())[:400]}"
    if not documented(error):
        return Finding("untyped", text)
    plain = oracle.definitions(feeds)
    if isinstance(plain, list) and kind == "sizes" and isinstance(oracle.onnxruntime(feeds), Exception):
        return None  # other sizes need not be sizes the graph is for
    if isinstance(plain, list):
        return Finding("refused", text)
    if not documented(plain):
        return Finding("untyped", f"{kind} feed, definitions: {type(plain).__name__}: {plain}"[:500])
    if kind != "sizes" and isinstance(oracle.onnxruntime(feeds), list):
        return Finding("differs", f"onnxruntime runs it; {text}")
    return None


def documented(error: Exception) -> bool:
    """Whether an error is of a class that users are told of."""
    return isinstance(error, errors.ALL) or type(error) in (ValueError, TypeError)


def _judged(subject: Subject, oracle: Oracle, feeds: Feeds, got: Any, kind: str) -> Finding | None:
    if isinstance(got, Exception):
        return _refusal(got, oracle, feeds, kind)
    theirs = oracle.onnxruntime(feeds) if kind != "special" else RuntimeError("not asked")
    if isinstance(theirs, list) and apart(got, theirs, subject) is None:
        return None
    plain = oracle.definitions(feeds)
    if isinstance(plain, Exception):
        return None if documented(plain) else Finding("untyped", f"{kind} feed, definitions: {plain!r}"[:500])
    wrong = apart(got, plain, subject)
    if wrong is not None and (spread := oracle.spread(feeds, plain)) is not None:
        wrong = apart(got, plain, subject, spread)
    if wrong is not None:
        theirs = oracle.onnxruntime(feeds)
        arrays = [*feeds.values(), *map(numpy_helper.to_array, subject.model.graph.initializer), *got, *plain]
        name = "wrong" if _finite(arrays) else _edge(got, plain, theirs, subject)
        backed = isinstance(theirs, list) and apart(plain, theirs, subject) is None
        beside = "onnxruntime as expected" if backed else "onnxruntime is not asked or differs too"
        return Finding(name, f"{kind} feed: {wrong}; {beside}") if name else None
    if not isinstance(theirs, list):
        return None
    spread = oracle.spread(feeds, plain)
    if (wrong := apart(got, theirs, subject, spread)) is None:
        return None
    voted = oracle.reference(feeds)
    vote = (
        "the reference does not run it"
        if isinstance(voted, Exception)
        else "the reference is with Orthrus"
        if apart(got, voted, subject, spread) is None
        else "the reference is with onnxruntime"
        if apart(voted, theirs, subject, spread) is None
        else "the reference differs from both"
    )
    return Finding("differs", f"{kind} feed, onnxruntime: {wrong}; {vote}")


def _edge(got: Sequence[Any], plain: Sequence[Any], theirs: Any, subject: Subject) -> str | None:
    """The kind of finding where infinities and NaN were fed or came out: none where the two oracles do not
    agree on what becomes of them, "edge" where they do."""
    for k, (a, b) in enumerate(zip(got, plain, strict=True)):
        if difference(a, b, 0, 0) is None:
            continue
        if (
            not isinstance(a, np.ndarray)
            or a.dtype.kind not in "fV"
            or (a.shape, a.dtype) != (b.shape, b.dtype)
        ):
            return "edge"
        fine = _close(a, b, subject)
        odd = ~(np.isfinite(a.astype(np.float64)) & np.isfinite(b.astype(np.float64)))
        asked = isinstance(theirs, list) and (theirs[k].shape, theirs[k].dtype) == (a.shape, a.dtype)
        fine |= _close(a, theirs[k], subject) | (odd & ~_close(b, theirs[k], subject)) if asked else odd
        if not np.all(fine):
            return "edge"
    return None


def _close(a: np.ndarray, b: np.ndarray, subject: Subject) -> np.ndarray:
    far, bound = _distance(a, b, subject)
    return np.asarray((far <= bound) | (a == b) | ((a != a) & (b != b)))


def _finite(arrays: Sequence[Any]) -> bool:
    plain = (a for a in arrays if isinstance(a, np.ndarray) and (a.dtype.kind == "f" or a.dtype in HALF))
    return all(np.all(np.isfinite(a.astype(np.float64))) for a in plain)


def apart(got: Sequence[Any], expected: Sequence[Any], subject: Subject, spread: Any = None) -> str | None:
    """Where two results differ by more than rounding, and more than `spread` allows."""
    for k, (a, b) in enumerate(zip(got, expected, strict=True)):
        if not isinstance(a, np.ndarray) or not isinstance(b, np.ndarray):
            found = difference(a, b, subject.rtol, subject.atol)
        else:
            found = _apart(a, b, subject, None if spread is None else spread[k])
        if found is not None:
            return f"output {k}: {found}"
    return None


def _apart(a: np.ndarray, b: np.ndarray, subject: Subject, spread: Any) -> str | None:
    if a.dtype != b.dtype or a.shape != b.shape:
        return f"{a.dtype}{list(a.shape)}, expected {b.dtype}{list(b.shape)}"
    if a.dtype == object or a.dtype == bool:
        wrong = np.asarray(a != b)
        far = None
    else:
        far, _ = _distance(a, b, subject)
        wrong = ~_close(a, b, subject)
    if spread is not None and np.any(wrong):
        moved = np.asarray(spread)
        wrong = wrong & ~(moved > 0) if far is None else wrong & ~((far <= 32 * moved) | (moved == np.inf))
    if not np.any(wrong):
        return None
    at = tuple(int(i) for i in np.argwhere(wrong)[0])
    return f"{int(np.sum(wrong))} of {wrong.size}, first at {list(at)}: {a[at]!r}, expected {b[at]!r}"


def _distance(a: np.ndarray, b: np.ndarray, subject: Subject) -> tuple[np.ndarray, np.ndarray]:
    """How far apart two numbers are, and how far they may be: in parts of the expected one and,
    a tenth of that, in parts of the largest finite one of all."""
    exact = a.dtype.kind in "iu" or a.dtype.name in ("int4", "uint4", "int2", "uint2")
    wide = np.complex128 if a.dtype.kind == "c" else np.float64
    x, y = a.astype(wide), b.astype(wide)
    with np.errstate(all="ignore"):
        far = np.abs(x - y)
        if exact:
            return far, np.zeros(far.shape)
        rtol, atol = subject.rtol, subject.atol
        cast = a.dtype == np.float64 and np.all((y == y.astype(np.float32)) | (y != y))  # from float32
        if (a.dtype == np.float64 and not cast) or a.dtype == np.complex128:
            rtol, atol = rtol * 1e-4, atol * 1e-4
        elif a.dtype != np.float32 and not cast:
            eps = float(_finfo(a.dtype).eps) if a.dtype.kind != "c" else 1e-6
            rtol, atol = max(8 * eps, rtol), max(2 * eps, atol)
        size = np.abs(y)
        top = float(np.max(size, initial=0.0, where=np.isfinite(size)))
        part = 1.0 if a.dtype in HALF else 0.1  # definitions may round what lies between, kernels do not
        return far, atol + rtol * size + part * rtol * min(top, 1e30)


def _finfo(dtype: Any) -> Any:
    import ml_dtypes

    return ml_dtypes.finfo(dtype)
