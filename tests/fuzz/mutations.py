"""Models changed at random, in their bytes or in the fields of their messages, loaded and run.

In: a seed. A model is drawn from `corpus`, changed a few times, loaded under limits and run on feeds of its
declared inputs that end (or begin) at a page nobody may read. What may come out is a result or an error of a
documented class, in time and within the memory a session allows; a crash is for the process around this one
to see, which knows the seed.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import mmap
import random
import resource
import tempfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from google.protobuf.descriptor import FieldDescriptor
from onnx import TensorProto

import orthrus
from fuzz import small
from fuzz.applications import special
from fuzz.graphs import build
from fuzz.judge import Finding, documented
from orthrus import knobs, limits
from orthrus.errors import ALL
from orthrus.ir import TensorType, parse_type

_ROOM = 1 << 16
_MOST = 1 << 26
_GROWTH = 1 << 20
"""Kilobytes that the largest size of the process may grow by in one mutation."""
_COMPILED = 4
"""Compiled models, with EPContext nodes, in the corpus."""

# the models


def corpus() -> list[bytes]:
    """Models to change: small graphs, larger random ones, whole small networks, compiled models."""
    made = [small.graph(seed, False).model.SerializeToString() for seed in range(150)]
    made += [build(seed)[0].SerializeToString() for seed in range(30)]
    from small_networks import network, recurrence, transformer

    networks = [network(), recurrence(), transformer()]
    packed = (compiled(raw) for raw in (networks[1], *made))
    made += networks + list(itertools.islice(filter(None, packed), _COMPILED))
    return made


def compiled(raw: bytes) -> bytes | None:
    """The model with its compiled parts inside; None where it has none."""
    with tempfile.TemporaryDirectory() as folder:
        options = orthrus.SessionOptions()
        options.add_session_config_entry("ep.context_enable", "1")
        options.add_session_config_entry("ep.context_embed_mode", "1")
        options.add_session_config_entry("ep.context_file_path", f"{folder}/compiled.onnx")
        try:
            orthrus.InferenceSession(raw, options, providers=["CPUExecutionProvider"])
        except ALL:
            return None
        made = Path(folder, "compiled.onnx")
        return made.read_bytes() if made.exists() else None


# the changes


def changed(seed: int, models: list[bytes]) -> bytes:
    """A model of the corpus with one to four changes."""
    r = random.Random(seed)
    raw = r.choice(models)
    if r.random() < 0.75:
        try:
            model = onnx.ModelProto.FromString(raw)
            other = onnx.ModelProto.FromString(r.choice(models)) if r.random() < 0.2 else model
            for _ in range(r.choice((1, 1, 1, 2, 3, 4))):
                _field(r, model, other)
            raw = model.SerializeToString()
        except Exception:
            raw = _bytes(r, raw, r.choice(models))
        return raw if r.random() < 0.9 else _bytes(r, raw, r.choice(models))
    return _bytes(r, raw, r.choice(models))


def _bytes(r: random.Random, raw: bytes, other: bytes) -> bytes:
    """Bits turned, bytes put in, taken out, repeated, or taken from another model; the end cut off."""
    out = bytearray(raw)
    for _ in range(r.choice((1, 1, 2, 4))):
        if not out:
            break
        at, length = r.randrange(len(out)), r.choice((1, 1, 2, 4, 8, 32))
        kind = r.randrange(7)
        if kind == 0:
            out[at] ^= 1 << r.randrange(8)
        elif kind == 1:
            out[at] = r.choice((0, 1, 0x7F, 0x80, 0xFF, r.randrange(256)))
        elif kind == 2:
            out[at : at + length] = b""
        elif kind == 3:
            out[at:at] = r.randbytes(length)
        elif kind == 4:
            out[at:at] = out[at : at + length]
        elif kind == 5:
            start = r.randrange(len(other))
            out[at : at + length] = other[start : start + length]
        elif r.random() < 0.3:
            del out[at:]
    return bytes(out)


_INTS = (
    0,
    1,
    -1,
    2,
    3,
    4,
    5,
    7,
    8,
    16,
    64,
    127,
    128,
    255,
    256,
    1000,
    65536,
    1 << 20,
    1 << 31,
    (1 << 31) - 1,
    -(1 << 31),
    1 << 32,
    1 << 40,
    (1 << 62),
    (1 << 63) - 1,
    -(1 << 63),
)
_REALS = (0.0, -0.0, 1.0, -1.0, 0.5, 1e-45, 1e38, -1e38, float("inf"), float("-inf"), float("nan"), 3.0)
_TEXTS = (
    "",
    "x",
    "\0",
    "../w",
    "ü漢",
    "%s%n",
    "A" * 300,
    "NOTSET",
    "SAME_UPPER",
    "linear",
    "cubic",
    "mean",
    "add",
    "i,i->",
    "ai.onnx",
    "com.microsoft",
    "ai.onnx.ml",
    "offset",
    "location",
    "Shape",
    "Loop",
    "EPContext",
)


def _messages(message: Any, depth: int = 0) -> list[Any]:
    """A message and all within, those of large lists thinned out."""
    found = [message]
    if depth < 12:
        for field, value in message.ListFields():
            if field.type == FieldDescriptor.TYPE_MESSAGE:
                many = list(value) if _repeated(field) else [value]
                for inner in many[:64]:
                    found += _messages(inner, depth + 1)
    return found


def _repeated(field: Any) -> bool:
    return bool(field.is_repeated) if hasattr(field, "is_repeated") else field.label == field.LABEL_REPEATED


def _field(r: random.Random, model: onnx.ModelProto, other: onnx.ModelProto) -> None:
    """One field of one message within changed."""
    found = _messages(model)
    message = r.choice(found)
    if r.random() < 0.5:  # nodes, attributes and tensors are most of what there is to say
        chosen = [m for m in found if isinstance(m, onnx.NodeProto | onnx.AttributeProto | TensorProto)]
        message = r.choice(chosen or found)
    fields = list(message.DESCRIPTOR.fields)
    if r.random() < 0.7:
        fields = [f for f, _ in message.ListFields()] or fields
    field = r.choice(fields)
    if _repeated(field):
        _list(r, message, field, found, other)
    elif field.type == FieldDescriptor.TYPE_MESSAGE:
        _message(r, getattr(message, field.name), other)
    elif r.random() < 0.1:
        message.ClearField(field.name)
    else:
        setattr(message, field.name, _scalar(r, field, getattr(message, field.name), found))


def _message(r: random.Random, message: Any, other: onnx.ModelProto) -> None:
    """A message is emptied, or becomes another of its kind."""
    same = [m for m in _messages(other) if type(m) is type(message)]
    if r.random() < 0.3 or not same:
        message.Clear()
    else:
        message.CopyFrom(type(message).FromString(r.choice(same).SerializeToString()))


def _list(r: random.Random, message: Any, field: Any, found: list[Any], other: onnx.ModelProto) -> None:
    values = getattr(message, field.name)
    kind = r.randrange(5)
    if field.type == FieldDescriptor.TYPE_MESSAGE:
        same = [m for m in _messages(other) if m.DESCRIPTOR.full_name == field.message_type.full_name]
        if kind == 0 and values:
            del values[r.randrange(len(values))]
        elif kind == 1 and same:
            values.add().CopyFrom(type(r.choice(same)).FromString(r.choice(same).SerializeToString()))
        elif kind == 2 and values:
            values.add().CopyFrom(r.choice(values))
        elif kind == 3 and len(values) > 1:
            a, b = r.sample(range(len(values)), 2)
            copies = [type(v).FromString(v.SerializeToString()) for v in values]
            copies[a], copies[b] = copies[b], copies[a]
            del values[:]
            values.extend(copies)
        elif values:
            _message(r, r.choice(values), other)
    elif kind == 0 and values:
        del values[r.randrange(len(values))]
    elif kind == 1 or not values:
        values.insert(r.randint(0, len(values)), _scalar(r, field, None, found))
    elif kind == 2 and len(values) < 10_000:
        values.extend(list(values)[:64])
    else:
        i = r.randrange(len(values))
        values[i] = _scalar(r, field, values[i], found)


def _scalar(r: random.Random, field: Any, old: Any, found: list[Any]) -> Any:
    kind = field.cpp_type
    if kind == FieldDescriptor.CPPTYPE_ENUM:
        return r.choice([v.number for v in field.enum_type.values])
    if kind in (FieldDescriptor.CPPTYPE_FLOAT, FieldDescriptor.CPPTYPE_DOUBLE):
        return r.choice(_REALS)
    if kind in (FieldDescriptor.CPPTYPE_INT32, FieldDescriptor.CPPTYPE_INT64):
        if field.name in ("data_type", "elem_type"):
            return r.randrange(27)
        n = r.choice(_INTS) if old is None or r.random() < 0.6 else old + r.choice((1, -1, 2))
        bits = 31 if kind == FieldDescriptor.CPPTYPE_INT32 else 63
        return max(-(1 << bits), min(n, (1 << bits) - 1))
    if kind in (FieldDescriptor.CPPTYPE_UINT32, FieldDescriptor.CPPTYPE_UINT64):
        return r.choice([n for n in _INTS if 0 <= n < 1 << 32])
    if field.type == FieldDescriptor.TYPE_BYTES:
        return _bytes(r, old or b"\0" * 8, b"\xff\xfe\0\1\2abc")
    return _text(r, field, found)


def _text(r: random.Random, field: Any, found: list[Any]) -> str:
    if field.name == "op_type" and r.random() < 0.9:
        return r.choice(small.applications._NAMES)[1]
    if r.random() < 0.75:
        nodes = [m for m in found if isinstance(m, onnx.NodeProto)]
        names = [n for node in nodes for n in (*node.input, *node.output)]
        names += [
            v.name
            for m in found
            if isinstance(m, onnx.GraphProto)
            for v in (*m.input, *m.output, *m.initializer)
        ]
        if names:
            return r.choice(names)
    return r.choice(_TEXTS)


# running


def tried(raw: bytes, seed: int) -> Finding | None:
    """Load and run a model; what is wrong with how that went."""
    r = random.Random(seed)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found = _tried(raw, r)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    if found is None and grown > _GROWTH:
        return Finding("memory", f"the process grew by {grown >> 10} MB")
    return found


def _tried(raw: bytes, r: random.Random) -> Finding | None:
    options = orthrus.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = r.choice((1, 1, 2))
    options.graph_optimization_level = getattr(orthrus.GraphOptimizationLevel, r.choice(small.LEVELS))
    with (
        warnings.catch_warnings(),
        np.errstate(all="ignore"),
        knobs.setting(SHAPES=r.choice((0, 1, 2)), CACHE_SESSIONS=0, CODEGEN=int(r.random() < 0.9)),
    ):
        warnings.simplefilter("ignore")
        try:
            session = orthrus.InferenceSession(raw, options, providers=["CPUExecutionProvider"])
        except BaseException as error:
            return _said("loading", error)
        for turn in range(r.choice((1, 2, 3))):
            try:
                feeds = {v.name: _fed(r, v, turn) for v in session.get_inputs()}
                session.run(None, feeds)
            except BaseException as error:
                if (found := _said(f"run {turn}", error)) is not None:
                    return found
    return None


def _said(when: str, error: BaseException) -> Finding | None:
    if isinstance(error, KeyboardInterrupt):
        raise error
    if isinstance(error, Exception) and documented(error):
        return None
    kind = "memory" if isinstance(error, MemoryError) else "untyped"
    return Finding(kind, f"{when}: {type(error).__name__}: {str(error)[:300]} in {_place(error)}")


def _place(error: BaseException) -> str:
    at, tb = "?", error.__traceback__
    while tb is not None:
        name = tb.tb_frame.f_code.co_filename
        if "/orthrus/" in name:
            at = f"{name.rsplit('/orthrus/', 1)[1]}:{tb.tb_frame.f_code.co_name}"
        tb = tb.tb_next
    return at


def _fed(r: random.Random, declared: Any, turn: int) -> Any:
    """An array for an input: of its type and shape, but for some in the first runs."""
    try:
        kind = parse_type(declared.type)
    except KeyError:
        return np.zeros((), np.float32)
    if not isinstance(kind, TensorType):
        return []
    dtype = np.dtype(kind.elem.numpy) if kind.elem is not None else np.dtype(np.float32)
    shape = [
        d if isinstance(d, int) and 0 <= d <= 64 else r.choice((1, 2, 3, 5)) for d in declared.shape or ()
    ]
    if r.random() < 0.1:
        shape = [*shape[:-1], *[r.choice((0, 1, 2, 3, 5))] * r.randint(0, 2)]
    if r.random() < 0.03:
        dtype = np.dtype(r.choice((np.float32, np.int64, np.int8, np.bool_, object)))
    while np.prod(shape, dtype=np.float64) * max(1, dtype.itemsize) > _ROOM // 2:
        shape = [max(1, n // 2) for n in shape]
    rng = np.random.default_rng(r.getrandbits(32))
    if dtype.kind == "O":
        return np.asarray(rng.choice(np.array(["", "a", "bc"], object), shape), object)
    values = rng.integers(0, 5, shape) if dtype.kind in "iu" else rng.normal(size=shape) * 2
    with np.errstate(all="ignore"):
        array = np.asarray(values).astype(dtype)
    if r.random() < 0.15:
        array = special(array, rng)
    return beside_guard(array, r.random() < 0.8)


def beside_guard(array: np.ndarray, end: bool = True) -> np.ndarray:
    """A copy of `array` whose last byte, or first where not `end`, lies next to a page nobody may read."""
    region, guards = _region(id(array) % 8)
    size = array.nbytes
    if size > _ROOM or not size:
        return array
    start = guards + (_ROOM - size if end else 0)
    made = np.frombuffer(region, np.uint8, size, start).view(array.dtype).reshape(array.shape)
    made[...] = array
    return made


@functools.cache
def _region(which: int) -> tuple[mmap.mmap, int]:
    """Memory with a page before and one behind that nobody may touch, and where it begins."""
    page = mmap.PAGESIZE
    region = mmap.mmap(-1, _ROOM + 2 * page)
    base = ctypes.addressof(ctypes.c_char.from_buffer(region))
    for at in (0, page + _ROOM):
        if ctypes.CDLL(None, use_errno=True).mprotect(ctypes.c_void_p(base + at), page, 0):
            raise OSError(ctypes.get_errno(), "mprotect")
    return region, page


@functools.cache
def confine() -> None:
    """Limits for this process: sessions that may not hold much, an address space that ends."""
    for name, value in (
        ("max_tensor_bytes", _MOST),
        ("max_total_bytes", 4 * _MOST),
        ("run_timeout", 2.0),
        ("max_loop_trips", 10_000),
    ):
        object.__setattr__(limits.DEFAULT, name, value)
    size = int(Path("/proc/self/statm").read_text().split()[0]) * mmap.PAGESIZE
    resource.setrlimit(resource.RLIMIT_AS, (size + (6 << 30), size + (6 << 30)))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
