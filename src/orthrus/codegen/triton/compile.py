"""Kernels as machine code of GPUs: the text of a kernel goes in, a code object comes out.

What was compiled lies in the cache of generated code, by its text, its arguments' kinds and its target, so
that where there is no Triton, what another process compiled still runs. Nothing else imports Triton.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import itertools
import json
import linecache
import struct
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from ... import processors
from ...errors import EPFail
from ...ir import No
from ...locks import lock
from ...records import dataclass
from ..object import cache
from .targets import CUDA, Target
from .trees import SUPPORT
from .write import COUNT, NUMBER, SIZE, Spec, Written

_lock = lock()

POINTER, INT32, INT64, FLOAT32 = "p", "i", "q", "f"
"""What an argument is when a kernel is launched, as `struct` calls it; POINTER is an address."""

_FORMATS = {POINTER: "Q", INT32: "i", INT64: "q", FLOAT32: "f"}
_HEAD = struct.Struct("<I")

Hints = tuple[str, ...]
"""Per argument what is known of its value: `16` of what it is a multiple of 16, `q` for an integer beyond 32
bits, `q16` for both."""


@dataclass(frozen=True)
class CodeObject:
    """Machine code: `data` holds the kernel `name`, whose blocks have `threads` and share `shared` bytes.
    `kinds`: what its arguments are, in order; `by`: the compiler that made it."""

    data: bytes
    name: str
    arch: str
    threads: int
    shared: int
    kinds: str
    by: str

    @property
    def layout(self) -> tuple[list[int], int]:
        """Where each argument lies in the packed arguments, and how many bytes these are."""
        offsets, at = [], 0
        for kind in self.kinds:
            size = struct.calcsize(_FORMATS[kind])
            at = -(-at // size) * size
            offsets.append(at)
            at += size
        return offsets, at

    def packed(self, values: Sequence[Any]) -> bytes:
        """Values of the arguments that the spec declared as they are handed over; what the compiler added
        behind them is 0."""
        offsets, size = self.layout
        buffer = bytearray(size)
        for kind, offset, value in zip(self.kinds, offsets, values, strict=False):
            struct.pack_into(f"<{_FORMATS[kind]}", buffer, offset, value)
        return bytes(buffer)

    def to_bytes(self) -> bytes:
        """As it is kept."""
        head = {key: value for key, value in asdict(self).items() if key != "data"}
        text = json.dumps(head).encode()
        return _HEAD.pack(len(text)) + text + self.data

    @staticmethod
    def from_bytes(data: bytes) -> CodeObject:
        """What `to_bytes` gave. Raises ValueError for anything else."""
        try:
            (size,) = _HEAD.unpack_from(data)
            head = json.loads(data[_HEAD.size:_HEAD.size + size])
            made = CodeObject(data=data[_HEAD.size + size:], **head)
        except (struct.error, UnicodeDecodeError, TypeError, ValueError) as error:
            raise ValueError(f"this is no code object: {error}") from None
        if set(made.kinds) - set(_FORMATS):
            raise ValueError(f"this is no code object: its arguments are {made.kinds!r}")
        return made


def available() -> No | None:
    """Why nothing can be compiled here."""
    return None if compiler() else No("Triton is not installed, which compiles kernels for GPUs")


@functools.cache
def compiler() -> str:
    """The compiler there is, with its version; empty where there is none."""
    for name in ("triton", "triton-windows", "pytorch-triton-rocm"):
        with contextlib.suppress(PackageNotFoundError):
            return f"{name} {version(name)}"
    return ""


Request = tuple[Spec, Target, Hints]


def code(spec: Spec, target: Target, hints: Hints) -> CodeObject:
    """The machine code of a kernel. Raises EPFail where Triton refuses it, or is not there."""
    return codes([(spec, target, hints)])[0]


def codes(requests: Sequence[Request]) -> list[CodeObject]:
    """The machine code of kernels, compiled side by side where it is not in the cache. Raises EPFail where
    Triton refuses one, or is not there."""
    texts = [(spec.written(target), target, hints) for spec, target, hints in requests]
    keys = [_name(*each) for each in texts]
    wanted = dict(zip(keys, texts, strict=True))
    missing = [key for key in wanted if key not in _known]
    for key, kept in cache.load(missing).items():
        with contextlib.suppress(ValueError):
            found = CodeObject.from_bytes(kept)
            if compiler() in ("", found.by):
                _known[key] = found
    missing = [key for key in missing if key not in _known]
    if len(missing) > 1 and compiler():
        with ThreadPoolExecutor(min(len(missing), len(processors.usable()))) as pool:
            made = dict(zip(missing, pool.map(lambda key: _compiled(*wanted[key]), missing), strict=True))
    else:
        made = {key: _compiled(*wanted[key]) for key in missing}
    cache.store({key: each.to_bytes() for key, each in made.items()})
    _known.update(made)
    return [_known[key] for key in keys]


_known: dict[str, CodeObject] = {}


def _name(it: Written, target: Target, hints: Hints) -> str:
    """The name that code is kept by: a digest of all it depends on but the compiler."""
    what = repr((it, target.arch, hints, SUPPORT, FORMAT))
    return hashlib.sha256(what.encode()).hexdigest()


FORMAT = 2
"""Counts changes in how kernels are compiled that their text does not show."""


def _compiled(it: Written, target: Target, hints: Hints) -> CodeObject:
    made = _built(it, target, hints)
    meta = made.metadata
    needs = {name: size for name in ("global_scratch_size", "profile_scratch_size")
             if (size := getattr(meta, name, 0))}
    if needs or meta.shared > target.shared:
        raise EPFail(f"the kernel {it.name} asks for more memory than a block of {target} has",
                     found=f"{meta.shared} bytes shared, {needs or 'none else'}",
                     expected=f"at most {target.shared} bytes")
    kinds = [_kind(kind, hint) for (_, kind), hint in zip(it.arguments, hints, strict=True)]
    return CodeObject(bytes(made.asm["cubin" if target.api == CUDA else "hsaco"]), meta.name, target.arch,
                      it.warps * target.warp, meta.shared, "".join([*kinds, POINTER, POINTER]), compiler())


def text_of(spec: Spec, target: Target, hints: Hints, stage: str) -> str:
    """What the compiler makes of a kernel on the way, compiled anew: `ttir`, `ttgir`, `llir`, and `ptx` or
    `amdgcn`. Raises EPFail."""
    return str(_built(spec.written(target), target, hints).asm[stage])


def _built(it: Written, target: Target, hints: Hints) -> Any:
    """A kernel as Triton gives it."""
    if not compiler():
        raise EPFail(f"the kernel {it.name} was not compiled for {target} yet", found="no Triton",
                     expected="Triton, or code that was compiled before",
                     cure="pip install triton, or compile the model ahead where Triton is")
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    signature = {name: _declared(kind, hint)
                 for (name, kind), hint in zip(it.arguments, hints, strict=True)}
    divisible = {(i,): [["tt.divisibility", 16]] for i, hint in enumerate(hints) if hint.endswith("16")}
    options = {"num_warps": it.warps, "num_stages": it.stages, "enable_fp_fusion": False, **dict(it.options)}
    if target.api == CUDA:
        options["enable_reflect_ftz"] = False
        for_whom = GPUTarget("cuda", int(target.arch.removeprefix("sm_")), 32)
    else:
        for_whom = GPUTarget("hip", target.arch, target.warp)
    turns = itertools.count(1)
    while True:
        try:
            with _nothing_kept(triton):
                source = ASTSource(fn=_function(it), signature=signature, constexprs={}, attrs=divisible)
                return triton.compile(source, target=for_whom, options=options)
        except Exception as error:
            if _ANOTHERS in _reasons(error) and next(turns) < _TURNS:
                continue
            raise EPFail(f"Triton refuses the kernel {it.name} for {target}: {_reasons(error)}",
                         found=it.text if len(it.text) < 4000 else it.text[:4000] + " ...",
                         expected="a kernel that compiles") from error


_TURNS = 5
_ANOTHERS = "recursion depth mismatch"
"""What CPython 3.11 says of a syntax tree while another thread makes one too: it counts the depth of both.
The same text is right the next time."""


def _reasons(error: BaseException) -> str:
    """An error and what it came of, in functions that the kernel calls."""
    cause = error.__cause__
    return str(error) if cause is None else f"{error}\n{_reasons(cause)}"


def _kind(kind: str, hint: str) -> str:
    if kind in (SIZE, COUNT):
        return INT64 if hint.startswith("q") else INT32
    return FLOAT32 if kind == NUMBER else POINTER


def _declared(kind: str, hint: str) -> str:
    return {INT64: "i64", INT32: "i32", FLOAT32: "fp32"}.get(_kind(kind, hint), kind)


def _function(it: Written) -> Any:
    """The kernel as Triton knows it: its text is what Triton reads, so it is where Python looks for text."""
    head = "import triton\nimport triton.language as tl\nfrom triton.language.extra import libdevice\n"
    functions = "".join(f"\n\n@triton.jit\n{function}" for function in it.functions)
    text = f"{head}{SUPPORT}{functions}\n\n@triton.jit\n{it.text}"
    place = f"<orthrus {it.name} {hashlib.sha256(text.encode()).hexdigest()[:16]}>"
    linecache.cache[place] = (len(text), None, text.splitlines(True), place)
    space: dict[str, Any] = {"__name__": "orthrus.codegen.triton.written"}
    exec(compile(text, place, "exec"), space)
    return space[it.name]


@contextlib.contextmanager
def _nothing_kept(triton: Any) -> Iterator[None]:
    """While somebody compiles, Triton's own cache is a folder that is gone afterwards, and what it compiles
    names no file of ours."""
    with _lock:
        if not _compiling:
            folder = tempfile.TemporaryDirectory(prefix="orthrus-")
            for each in (folder, triton.knobs.cache.scope(), triton.knobs.compilation.scope()):
                _settings.enter_context(each)
            triton.knobs.cache.dir = folder.name
            triton.knobs.compilation.disable_line_info = True
        _compiling.append(None)
    try:
        yield
    finally:
        with _lock:
            _compiling.pop()
            if not _compiling:
                _settings.close()


_compiling: list[None] = []
_settings = contextlib.ExitStack()
