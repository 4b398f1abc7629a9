"""oneDNN's C API, as documented, through ctypes: where the library is, its functions, its constants.

In: the package onednn-cpu-gomp. Out: `Library`, whose functions answer with a handle or raise: `Refused`
for a primitive that oneDNN does not make, EPFail for every other status. Nothing is loaded before
`library()`, but by `missing()` to see that it can be.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
from collections.abc import Iterator, Sequence
from ctypes import POINTER, byref, c_char_p, c_float, c_int, c_int32, c_int64, c_size_t, c_uint, c_void_p
from importlib import metadata
from pathlib import Path
from typing import Any

from ...errors import EPFail
from ...ir import No
from . import openmp

PACKAGES = ("onednn-cpu-gomp",)
FILE = "libdnnl.so.3"
VERSION = (3, 2)
"""The oldest release of oneDNN 3 whose interface is used."""

STATUS = {1: "out of memory", 2: "invalid arguments", 3: "unimplemented", 4: "no further implementation",
          5: "runtime error", 6: "not required", 7: "invalid graph", 8: "invalid graph operation",
          9: "invalid shape", 10: "invalid data type"}
OUT_OF_MEMORY, REFUSED = 1, (2, 3)

TYPES = {"float16": 1, "bfloat16": 2, "float32": 3, "int32": 4, "int8": 5, "uint8": 6, "bool": 6}
"""numpy's names to dnnl_data_type_t."""

ISA = {"default": 0, "sse41": 0x1, "avx": 0x3, "avx2": 0x7, "avx2_vnni": 0xF, "avx2_vnni_2": 0x1F,
       "avx512_core": 0x27, "avx512_core_vnni": 0x67, "avx512_core_bf16": 0xE7, "avx512_core_fp16": 0x1EF,
       "avx512_core_amx": 0xFEF, "avx512_core_amx_fp16": 0x1FEF}
"""dnnl_cpu_isa_t; the bits of one are among those of every larger one of its kind."""

FPMATH = {"strict": 0, "bf16": 1, "tf32": 4, "any": 3}
"""dnnl_fpmath_mode_t: what float32 may be rounded to before it is multiplied."""

VNNI, BF16 = (0x08, 0x40), (0x80,)
"""Bits of `ISA` with which 8-bit products are exact, and with which bfloat16 is computed."""

INFERENCE = 96
ANY = 1

SRC, SRC_1, SRC_2, DST, DST_1, DST_2 = 1, 2, 3, 17, 18, 19
WEIGHTS, WEIGHTS_1, BIAS, MEAN, VARIANCE, SCALE, SHIFT = 33, 34, 41, 49, 50, 51, 52
SCRATCHPAD, MULTIPLE_SRC, SCALES, ZERO_POINTS, POST_OP = 80, 1024, 4096, 8192, 32768

MD_OF = {SRC: (129, 0), SRC_1: (129, 1), SRC_2: (129, 2), WEIGHTS: (131, 0), WEIGHTS_1: (131, 1),
         DST: (133, 0), DST_1: (133, 1), DST_2: (133, 2), SCRATCHPAD: (136, 0)}
"""Which query gives the layout of an argument; others are asked for by EXEC_ARG."""
EXEC_ARG, IMPLEMENTATION = 255, 8

CONVOLUTION, DECONVOLUTION = 1, 0xA
ELTWISE = {
    "relu": 0x20, "tanh": 0x21, "elu": 0x22, "square": 0x23, "abs": 0x24, "sqrt": 0x25, "linear": 0x26,
    "soft_relu": 0x27, "hardsigmoid": 0x28, "logistic": 0x29, "exp": 0x2A, "gelu_tanh": 0x2B, "swish": 0x2C,
    "log": 0x2D, "clip": 0x2E, "pow": 0x30, "gelu_erf": 0x31, "round": 0x32, "mish": 0x33, "hardswish": 0x34}
LRN_ACROSS = 0xAFF
POOLING = {"max": 0x1FF, "average_all": 0x2FF, "average": 0x3FF}
BINARY = {"add": 0x1FFF0, "mul": 0x1FFF1, "max": 0x1FFF2, "min": 0x1FFF3, "div": 0x1FFF4, "sub": 0x1FFF5,
          "ge": 0x1FFF6, "gt": 0x1FFF7, "le": 0x1FFF8, "lt": 0x1FFF9, "eq": 0x1FFFA}
RESAMPLING = {"nearest": 0x2FFF0, "linear": 0x2FFF1}
REDUCTION = {"max": 0x2FFF2, "min": 0x2FFF3, "sum": 0x2FFF4, "mul": 0x2FFF5, "mean": 0x2FFF6,
             "norm_sum": 0x2FFF8, "norm_power_sum": 0x2FFFA}
SOFTMAX = {"accurate": 0x30000, "log": 0x30001}
DIRECTION = {"forward": 1, "reverse": 2, "bidirectional": 3}
USE_STATISTICS, USE_SCALE, USE_SHIFT = 1, 2, 4

_D = POINTER(c_int64)
_V = c_void_p
_ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "engine_create": (c_int, c_size_t),
    "stream_create": (_V, c_uint),
    "memory_desc_create_with_strides": (c_int, _D, c_int, _D),
    "memory_desc_create_with_tag": (c_int, _D, c_int, c_int),
    "memory_desc_create_submemory": (_V, _D, _D),
    "memory_desc_clone": (_V,),
    "memory_create": (_V, _V, _V),
    "primitive_attr_create": (),
    "post_ops_create": (),
    "primitive_create": (_V,),
    "reorder_primitive_desc_create": (_V, _V, _V, _V, _V),
    "convolution_forward_primitive_desc_create": (_V, c_int, c_int, _V, _V, _V, _V, _D, _D, _D, _D, _V),
    "deconvolution_forward_primitive_desc_create": (_V, c_int, c_int, _V, _V, _V, _V, _D, _D, _D, _D, _V),
    "matmul_primitive_desc_create": (_V, _V, _V, _V, _V, _V),
    "pooling_forward_primitive_desc_create": (_V, c_int, c_int, _V, _V, _D, _D, _D, _D, _D, _V),
    "eltwise_forward_primitive_desc_create": (_V, c_int, c_int, _V, _V, c_float, c_float, _V),
    "binary_primitive_desc_create": (_V, c_int, _V, _V, _V, _V),
    "prelu_forward_primitive_desc_create": (_V, c_int, _V, _V, _V, _V),
    "softmax_forward_primitive_desc_create": (_V, c_int, c_int, _V, _V, c_int, _V),
    "batch_normalization_forward_primitive_desc_create": (_V, c_int, _V, _V, c_float, c_uint, _V),
    "layer_normalization_forward_primitive_desc_create": (_V, c_int, _V, _V, _V, c_float, c_uint, _V),
    "lrn_forward_primitive_desc_create": (_V, c_int, c_int, _V, _V, c_int64, c_float, c_float, c_float, _V),
    "reduction_primitive_desc_create": (_V, c_int, _V, _V, c_float, c_float, _V),
    "resampling_forward_primitive_desc_create": (_V, c_int, c_int, POINTER(c_float), _V, _V, _V),
    "concat_primitive_desc_create": (_V, _V, c_int, c_int, POINTER(_V), _V),
    "lstm_forward_primitive_desc_create": (_V, c_int, c_int, *(_V,) * 11, c_uint, _V),
    "gru_forward_primitive_desc_create": (_V, c_int, c_int, *(_V,) * 7, c_uint, _V),
    "lbr_gru_forward_primitive_desc_create": (_V, c_int, c_int, *(_V,) * 7, c_uint, _V),
    "vanilla_rnn_forward_primitive_desc_create": (_V, c_int, c_int, c_int, *(_V,) * 7, c_uint, c_float,
                                                  c_float, _V),
}
"""What each function takes behind the place for the handle it makes."""

_CALLS: dict[str, tuple[Any, ...]] = {
    "primitive_attr_set_scales_mask": (_V, c_int, c_int),
    "primitive_attr_set_zero_points_mask": (_V, c_int, c_int),
    "primitive_attr_set_scratchpad_mode": (_V, c_int),
    "primitive_attr_set_post_ops": (_V, _V),
    "post_ops_append_eltwise": (_V, c_int, c_float, c_float),
    "post_ops_append_sum": (_V, c_float, c_int32, c_int),
    "post_ops_append_binary": (_V, c_int, _V),
    "primitive_desc_query": (_V, c_int, c_int, _V),
    "primitive_execute": (_V, _V, c_int, _V),
    "stream_wait": (_V,),
    "primitive_desc_next_impl": (_V,),
    "memory_set_data_handle": (_V, _V),
    "set_max_cpu_isa": (c_int,),
    "set_verbose": (c_int,),
    "set_default_fpmath_mode": (c_int,),
    "set_primitive_cache_capacity": (c_int,),
}
"""What functions that make nothing take."""


class Refused(Exception):
    """oneDNN makes no primitive of what was asked: it has no code for it, or it cannot be."""


class Argument(ctypes.Structure):
    """dnnl_exec_arg_t"""

    _fields_ = [("arg", c_int), ("memory", c_void_p)]


class _Version(ctypes.Structure):
    _fields_ = [("major", c_int), ("minor", c_int), ("patch", c_int), ("hash", c_char_p),
                ("cpu_runtime", c_uint), ("gpu_runtime", c_uint)]


class Library:
    """The loaded library with its one engine and stream. `version`, and `isa`: the bits of what it uses."""

    def __init__(self, path: Path) -> None:
        self.path, self.version = path, _version(path)
        self.openmp = openmp.OpenMP()
        lib = self._lib = ctypes.CDLL(str(path))
        self._make = {name: _typed(lib, name, (_V, *takes)) for name, takes in _ARGUMENTS.items()}
        self._calls = {name: _typed(lib, name, takes) for name, takes in _CALLS.items()}
        self._query_md = _typed(lib, "primitive_desc_query_md", (_V, c_int, c_int), c_void_p)
        self._size = _typed(lib, "memory_desc_get_size", (_V,), c_size_t)
        self._equal = _typed(lib, "memory_desc_equal", (_V, _V))
        self.execute = self._calls["primitive_execute"]
        self.set_handle = self._calls["memory_set_data_handle"]
        self.free = {name: _typed(lib, f"{name}_destroy", (_V,))
                     for name in ("memory_desc", "memory", "primitive_desc", "primitive", "primitive_attr",
                                  "post_ops")}
        self._wishes: dict[str, Any] = {}
        self._engine = 0
        self._stream = 0

    @property
    def engine(self) -> int:
        """The processor. It is made at the first use, for the instruction set is settled by then."""
        if not self._engine:
            self._engine = self.make("engine_create", 1, 0)
            self._stream = self.make("stream_create", self._engine, 1)
        return self._engine

    @property
    def stream(self) -> int:
        """The one stream: primitives run in the calling thread, in order."""
        return self._stream if self.engine else 0

    @property
    def isa(self) -> int:
        """The bits of the instruction sets in use, see `ISA`."""
        return int(self._lib.dnnl_get_effective_cpu_isa())

    def make(self, name: str, *arguments: Any) -> int:
        """The handle that the function `dnnl_<name>` makes. Raises Refused or EPFail."""
        handle = c_void_p()
        status = self._make[name](byref(handle), *arguments)
        if status in REFUSED:
            raise Refused(f"dnnl_{name} answered {STATUS[status]}")
        if status:
            raise failure(f"dnnl_{name}", status)
        return handle.value or 0

    def call(self, name: str, *arguments: Any) -> None:
        """Call `dnnl_<name>`. Raises EPFail."""
        status = self._calls[name](*arguments)
        if status:
            raise failure(f"dnnl_{name}", status)

    def md(self, primitive_desc: int, what: int, index: int) -> int:
        """The memory descriptor of an argument; it belongs to the primitive descriptor. 0 where there is
        none."""
        return self._query_md(primitive_desc, what, index) or 0

    def size(self, md: int) -> int:
        """Bytes a memory descriptor covers."""
        return int(self._size(md))

    def equal(self, a: int, b: int) -> bool:
        """Whether two memory descriptors mean the same."""
        return bool(self._equal(a, b))

    def implementation(self, primitive_desc: int) -> str:
        """Which of its kernels oneDNN took: `brgconv:avx512_core`."""
        text = c_char_p()
        self.call("primitive_desc_query", primitive_desc, IMPLEMENTATION, 0, byref(text))
        return (text.value or b"").decode()

    def turn(self, primitive_desc: int, kind: str) -> bool:
        """Let a primitive descriptor stand for the next of oneDNN's implementations whose name begins with
        `kind`; whether there is one."""
        step = self._calls["primitive_desc_next_impl"]
        while not self.implementation(primitive_desc).startswith(kind):
            if step(primitive_desc):
                return False
        return True

    @contextlib.contextmanager
    def multiplying(self, mode: str) -> Iterator[None]:
        """Attributes made inside let float32 be multiplied as `mode` of `FPMATH` says. The setting belongs to
        the process: hold `openmp.lock`."""
        if mode == "strict":
            yield
            return
        self.call("set_default_fpmath_mode", FPMATH[mode])
        try:
            yield
        finally:
            self.call("set_default_fpmath_mode", FPMATH["strict"])

    def settle(self, isa: str, cache: int, verbose: int) -> None:
        """What holds for the whole process: the largest instruction set, the primitive cache's size, how much
        is printed. The first session decides on the first; later ones may change the others. Raises EPFail
        where another session has decided otherwise."""
        with self.openmp.lock:
            decided = self._wishes.get("isa")
            if decided is None:
                if isa != "default":
                    self.call("set_max_cpu_isa", ISA[isa])
                self._wishes["isa"] = isa
            elif isa not in ("default", decided):
                raise EPFail("which instruction set oneDNN may use, the first session of a process settles",
                             found=f"max_cpu_isa={isa}", expected=f"max_cpu_isa={decided}, as decided before",
                             cure="give every session the same max_cpu_isa, or use another process")
            for key, wish, function in (("cache", cache, "set_primitive_cache_capacity"),
                                        ("verbose", verbose, "set_verbose")):
                if wish >= 0 and self._wishes.get(key) != wish:
                    self.call(function, wish)
                    self._wishes[key] = wish


def failure(what: str, status: int) -> Exception:
    """What a status that is no success is raised as."""
    text = f"oneDNN: {what} answered {status} ({STATUS.get(status, 'a status it does not document')})"
    return MemoryError(text) if status == OUT_OF_MEMORY else EPFail(text)


def dims(values: Sequence[int]) -> Any:
    """dnnl_dims_t's first elements."""
    return (c_int64 * len(values))(*values)


def _typed(lib: ctypes.CDLL, name: str, takes: tuple[Any, ...], gives: Any = c_int) -> Any:
    function = getattr(lib, f"dnnl_{name}")
    function.argtypes, function.restype = list(takes), gives
    return function


def _version(path: Path) -> tuple[int, int, int]:
    function = ctypes.CDLL(str(path)).dnnl_version
    function.restype = POINTER(_Version)
    found = function().contents
    return found.major, found.minor, found.patch


def located() -> Path | No:
    """Where the package put the library."""
    for package in PACKAGES:
        try:
            files = metadata.files(package) or []
        except metadata.PackageNotFoundError:
            continue
        for file in files:
            if file.name == FILE:
                path = Path(os.path.normpath(str(file.locate())))
                return path if path.exists() else No(f"{package} is installed, but {path} is not there: "
                                                     f"pip install --force-reinstall {package}")
        return No(f"{package} is installed, but lists no {FILE}: version 2023.2.0 has it")
    return No(f"the package {PACKAGES[0]} is not installed: pip install orthrus-runtime[dnnl]")


def missing() -> No | None:
    """Why oneDNN cannot be used here, None where it can."""
    path = located()
    if isinstance(path, No):
        return path
    if (why := openmp.missing()) is not None:
        return why
    try:
        version = _version(path)
    except OSError as error:
        return No(f"{path} cannot be loaded: {error}")
    except AttributeError:
        return No(f"{path} is no oneDNN library: it has no dnnl_version")
    if version[0] != VERSION[0] or version < VERSION:
        return No(f"oneDNN {'.'.join(map(str, version))} is installed; {'.'.join(map(str, VERSION))} or a "
                  f"later {VERSION[0]} is needed: pip install onednn-cpu-gomp==2023.2.0")
    return None


@functools.cache
def library() -> Library:
    """The library, loaded once per process. Raises EPFail where `missing` says why not."""
    if (why := missing()) is not None:
        raise EPFail(f"oneDNN cannot be used: {why.reason}")
    path = located()
    assert isinstance(path, Path)
    return Library(path)
