"""Sessions on a GPU that stands for NVIDIA's: what is compiled for CUDA is run as the text it is, by Triton's
interpreter on numpy arrays.

Memory is the emulated driver's; an access outside of it is an error. What Triton's interpreter does wrong or
slowly is done here: rounding to bfloat16 and products of it, reductions by functions of ours, the vendors'
functions.
"""

from __future__ import annotations

import contextlib
import functools
import json
import math
import struct
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any
from unittest import mock

import ml_dtypes
import numpy as np

from gfx.driver import EmulatedDriver
from orthrus.codegen.triton import compile as compiling
from orthrus.codegen.triton import tiles
from orthrus.codegen.triton.compile import CodeObject
from orthrus.codegen.triton.targets import CUDA, Target
from orthrus.codegen.triton.write import Written
from orthrus.lowering.gpu import merging
from orthrus.providers.gpu.device import GpuDevice
from orthrus.providers.gpu.driver import DriverError, Properties
from orthrus.providers.gpu.provider import GpuProvider

TARGET = Target(CUDA, "interpreted", 32, 227 << 10, "mma")
_FORMATS = {"p": "Q", "i": "i", "q": "q", "f": "f"}
_HALF = {"fp16": np.float16, "bf16": ml_dtypes.bfloat16}
_lock = threading.RLock()
_compile = compiling._compiled
_small = merging._Launch.small


def _as_text(it: Written, target: Target, hints: compiling.Hints) -> CodeObject:
    """A kernel as the text that the interpreter reads, where it is for that."""
    if target.arch != TARGET.arch:
        return _compile(it, target, hints)
    kinds = "".join(compiling._kind(kind, hint) for (_, kind), hint in zip(it.arguments, hints, strict=True))
    data = json.dumps([it.name, it.arguments, it.body, kinds]).encode()
    return CodeObject(data, it.name, target.arch, it.warps * 32, 0, kinds, compiling.compiler())


def _alone(launch: merging._Launch, target: Target) -> bool:
    """The interpreter knows no functions of a kernel's own, of which several in one launch are made."""
    return target.arch != TARGET.arch and _small(launch, target)


compiling._compiled = _as_text
merging._Launch.small = _alone  # type: ignore[method-assign]
tiles._CHIPS[TARGET.arch] = tiles._CHIPS["sm_80"]


class InterpretedDriver(EmulatedDriver):
    """One device, whose kernels Triton's interpreter runs, a block after the other."""

    name = "CUDA"

    def __init__(self) -> None:
        super().__init__("gfx1100")
        self.target = TARGET

    def properties(self, index: int) -> Properties:
        return Properties("interpreted", TARGET.arch, self.most, 4, TARGET.shared, TARGET.warp)

    def load(self, index: int, code: bytes) -> int:
        self._called("load")
        number = next(self._numbers)
        self.modules[number] = _kernel(code)
        return number

    def function(self, index: int, module: int, name: str, shared: int) -> int:
        self._called("function")
        return module

    def _launch(self, function: int, blocks: int, threads: int, shared: int, arguments: bytes) -> None:
        name, run, values = self.modules[function]
        with self._lock:
            self.launched[name] += 1
            try:
                run(self, blocks, values(arguments))
            except Exception as error:
                self.lost = f"{name}: {error}"
                raise DriverError("launch", 700, self.lost, lost=True) from error

    def check(self, addresses: np.ndarray, size: int) -> None:
        """Raise MemoryError where a kernel may not go."""
        if not addresses.size:
            return
        starts = np.array(self.starts, np.uint64)
        ends = np.array([s + self.memory[s].nbytes for s in self.starts], np.uint64)
        at = np.searchsorted(starts, addresses, "right") - 1
        wrong = (at < 0) | (addresses + np.uint64(size) > ends[np.maximum(at, 0)])
        if wrong.any():
            raise MemoryError(f"an access at {addresses[wrong][0]:#x}, which is nobody's")


@functools.lru_cache(1 << 12)
def _kernel(code: bytes) -> tuple[str, Callable[..., None], Callable[[bytes], list[Any]]]:
    """A kernel's name, how it runs, and its arguments out of bytes."""
    from triton import language as tl
    from triton.runtime import interpreter as own

    name, arguments, body, kinds = json.loads(code)
    it = Written(name, tuple(map(tuple, arguments)), body, 4, 1)
    function = compiling._function(it).fn
    function.__globals__.update(libdevice=_Library(), range=_steps)
    layout, _ = CodeObject(b"", name, "", 1, 0, kinds, "").layout

    def values(packed: bytes) -> list[Any]:
        made = []
        for (_, declared), kind, offset in zip(it.arguments, kinds, layout, strict=True):
            (value,) = struct.unpack_from(f"<{_FORMATS[kind]}", packed, offset)
            made.append(_argument(value, declared, kind))
        return made

    def run(driver: InterpretedDriver, blocks: int, given: list[Any]) -> None:
        with _lock, _mended(driver):
            text = own.InterpretedFunction(function).rewrite()
            own.interpreter_builder.set_grid_dim(blocks, 1, 1)
            for block in range(blocks):
                own.interpreter_builder.set_grid_idx(block, 0, 0)
                with np.errstate(all="ignore"):
                    text(*given)

    def _argument(value: Any, declared: str, kind: str) -> Any:
        if kind == "p":
            element = tl.str_to_ty(declared, None)
            return tl.tensor(own.TensorHandle(np.array([value], np.uint64), element), element)
        element, dtype = {"i": (tl.int32, np.int32), "q": (tl.int64, np.int64),
                          "f": (tl.float32, np.float32)}[kind]
        return tl.tensor(own.TensorHandle(np.array([value], dtype), element), element)
    return name, run, values


@contextlib.contextmanager
def _mended(driver: InterpretedDriver) -> Iterator[None]:
    """Triton's language as the interpreter's, mended, while a kernel runs."""
    from triton import language as tl
    from triton.runtime import interpreter as own
    from triton.runtime.jit import JITFunction

    builder = type(own.interpreter_builder)
    load, store, dot = builder.create_masked_load, builder.create_masked_store, builder.create_dot
    convert = own._convert_float

    def checked(ptrs: Any, mask: Any) -> Any:
        """The mask as truth."""
        inside = np.ascontiguousarray(np.broadcast_to(mask.data.astype(bool), ptrs.data.shape))
        driver.check(ptrs.data[inside], max(1, ptrs.get_element_ty().primitive_bitwidth // 8))
        return own.TensorHandle(inside, tl.int1)

    def loaded(self: Any, ptrs: Any, mask: Any, *rest: Any) -> Any:
        return load(self, ptrs, checked(ptrs, mask), *rest)

    def stored(self: Any, ptrs: Any, value: Any, mask: Any, *rest: Any) -> Any:
        return store(self, ptrs, value, checked(ptrs, mask), *rest)

    def called(self: Any, *args: Any, **more: Any) -> Any:
        return own.InterpretedFunction(self.fn).rewrite()(*args, **more)

    def rounded(x: np.ndarray, source: Any, target: Any, mode: Any) -> np.ndarray:
        if source == tl.float32 and target == tl.bfloat16:
            return np.asarray(x.view(np.float32).astype(ml_dtypes.bfloat16).view(np.uint16))
        return np.asarray(convert(x, source, target, mode))

    def product(self: Any, a: Any, b: Any, *rest: Any) -> Any:
        wide = [own.TensorHandle(x.data.view(ml_dtypes.bfloat16).astype(np.float32), tl.float32)
                if x.dtype.scalar == tl.bfloat16 else x for x in (a, b)]
        return dot(self, *wide, *rest)
    with contextlib.ExitStack() as stack:
        for place, name, mended in (
                (builder, "create_masked_load", loaded), (builder, "create_masked_store", stored),
                (builder, "create_dot", product), (own, "_convert_float", rounded),
                (own.ReduceOps, "generic_reduce", _reduced), (own.ScanOps, "generic_scan", _scanned),
                (JITFunction, "__call__", called)):
            stack.enter_context(mock.patch.object(place, name, mended))
        scope = own._patch_lang(SimpleNamespace(__globals__={"tl": tl, "core": tl.core}))
        stack.callback(scope.restore)
        yield


def _together(self: Any, a: list[np.ndarray], b: list[np.ndarray], kinds: list[Any]) -> list[np.ndarray]:
    """Two lists of arrays as one, by the function of a reduction."""
    given = [self.to_tensor(x, kind) for x, kind in zip((*a, *b), (*kinds, *kinds), strict=True)]
    made = self.combine_fn.fn(*given)
    return [t.handle.data for t in (made if isinstance(made, tuple) else (made,))]


def _reduced(self: Any, input: Any) -> list[Any]:
    """A reduction, half by half."""
    kinds = [x.dtype for x in input]
    parts = [np.moveaxis(x.handle.data, self.axis, 0) for x in input]
    while len(parts[0]) > 1:
        half = len(parts[0]) // 2
        parts = _together(self, [p[:half] for p in parts], [p[half:] for p in parts], kinds)
    if self.keep_dims:
        return [self.to_tensor(np.moveaxis(p, 0, self.axis), kind)
                for p, kind in zip(parts, kinds, strict=True)]
    return [self.to_tensor(p[0], kind) for p, kind in zip(parts, kinds, strict=True)]


def _scanned(self: Any, input: Any) -> list[Any]:
    """A scan, place by place."""
    kinds = [x.dtype for x in input]
    parts = [np.moveaxis(x.handle.data, self.axis, 0) for x in input]
    rows = [[p[:1] for p in parts]]
    for i in range(1, len(parts[0])):
        rows.append(_together(self, rows[-1], [p[i:i + 1] for p in parts], kinds))
    return [self.to_tensor(np.moveaxis(np.concatenate(each), 0, self.axis), kind)
            for each, kind in zip(zip(*rows, strict=True), kinds, strict=True)]


def _steps(*bounds: Any) -> Iterator[Any]:
    """`range`, whose numbers are scalars of the language."""
    from triton import language as tl
    from triton.runtime.interpreter import TensorHandle

    for number in range(*map(int, bounds)):
        yield tl.tensor(TensorHandle(np.array([number], np.int32), tl.int32), tl.int32)


class _Library:
    """The vendors' functions, computed in float64."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        function = _FUNCTIONS.get(name) or getattr(np, {"asin": "arcsin", "acos": "arccos", "atan": "arctan",
                                                        "asinh": "arcsinh", "acosh": "arccosh",
                                                        "atanh": "arctanh"}.get(name, name))

        def call(*given: Any) -> Any:
            from triton import language as tl
            from triton.runtime.interpreter import TensorHandle

            data = [x.handle.data for x in given]
            exact = name in ("fmod", "copysign")
            made = function(*(data if exact else [x.astype(np.float64) for x in data]))
            return tl.tensor(TensorHandle(np.asarray(made).astype(data[0].dtype), given[0].dtype),
                             given[0].type)
        return call


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "erf": np.vectorize(math.erf, otypes=[np.float64]), "pow": np.power,
    "round": lambda x: np.copysign(np.floor(np.abs(x) + (np.abs(x) % 1 >= 0.5)), x)}


class InterpretedProvider(GpuProvider):
    """A provider on such a device."""

    name = "InterpretedExecutionProvider"
    listed = False
    target = TARGET

    def __init__(self, options: dict[str, Any] | None = None) -> None:
        super().__init__(options)
        self.driver = InterpretedDriver()
        self.device = GpuDevice(self.driver)

    @classmethod
    def probe(cls) -> None:
        """It is always there."""
