"""Constants of a part: as they are stored, as they were computed, and in the layouts they were reordered to.

They outlive the walks over the part: each is made once, whatever shapes come.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ... import memory
from ...ir import Value, in_memory
from ...lowering.tensor import Buffer
from .binding import DST, SCRATCHPAD, SRC, Argument, Library, failure
from .objects import Attr, Desc, Memory, Primitive, strided
from .tensor import Tensor


class Constants:
    """`tensors`: by what they are made from. `packed`: per buffer the layouts it was reordered to, each with
    the layout and offset it was read by. `names`: of buffers, for reports."""

    def __init__(self, lib: Library) -> None:
        self.lib = lib
        self.tensors: dict[Any, Tensor] = {}
        self.packed: dict[int, list[tuple[Desc, int, Desc, Tensor]]] = {}
        self.names: dict[int, str] = {}

    def stored(self, value: Value) -> Tensor:
        """A constant as the model has it."""
        key = "value", id(value)
        if key not in self.tensors:
            made = self.tensors[key] = self._held(value.const)
            self.names[id(made.buffer)] = value.name
        return self.tensors[key]

    def made(self, key: Any, make: Callable[[], np.ndarray]) -> Tensor:
        """What `make` gives, once."""
        if key not in self.tensors:
            self.tensors[key] = self._held(np.ascontiguousarray(make()))
        return self.tensors[key]

    def _held(self, array: np.ndarray) -> Tensor:
        shape = tuple(array.shape)
        return Tensor(shape, strided(self.lib, shape, array.dtype.name), Buffer("const", array.nbytes, -1,
                                                                               array))

    def near(self, t: Tensor) -> Tensor:
        """`t` as it lies, in memory that is read fastest, whatever file it came from."""
        key = "near", id(t.buffer)
        if key not in self.tensors:
            array = np.ascontiguousarray(in_memory(t.buffer.array))
            room = memory.take(array.nbytes)
            room[...] = array.reshape(-1).view(np.uint8)
            whole = strided(self.lib, array.shape, array.dtype.name)
            self.tensors[key] = Tensor(array.shape, whole, Buffer("const", room.nbytes, -1, room))
            self.names[id(self.tensors[key].buffer)] = self.names.get(id(t.buffer), "")
        return Tensor(t.shape, t.desc, self.tensors[key].buffer, t.offset)

    def laid(self, t: Tensor, desc: Desc) -> Tensor:
        """`t` as `desc` says, reordered here and now. Raises EPFail."""
        known = self.packed.setdefault(id(t.buffer), [])
        for source, offset, target, made in known:
            if offset == t.offset and source == t.desc and target == desc:
                return made
        room = memory.take(max(desc.size, 1))
        made = Tensor(t.shape, desc, Buffer("const", desc.size, -1, room))
        self.names[id(made.buffer)] = self.names.get(id(t.buffer), "")
        engine = self.lib.engine
        primitive = Primitive(self.lib, "reorder", t.desc, engine, desc, engine, Attr(self.lib))
        pad = primitive.scratchpad
        array = np.ascontiguousarray(in_memory(t.buffer.array))
        held = [(SRC, Memory(t.desc, array.ctypes.data + t.offset)), (DST, Memory(desc, room.ctypes.data))]
        if pad is not None:
            scratch = memory.passing(pad.size)
            held.append((SCRATCHPAD, Memory(pad, scratch.ctypes.data)))
        _run(self.lib, primitive, held)
        known.append((t.desc, t.offset, desc, made))
        return made


def _run(lib: Library, primitive: Primitive, held: Sequence[tuple[int, Memory]]) -> None:
    cells = (Argument * len(held))(*[Argument(arg, made.handle) for arg, made in held])
    if status := lib.execute(primitive.handle, lib.stream, len(held), cells):
        raise failure(primitive.kernel, status)
