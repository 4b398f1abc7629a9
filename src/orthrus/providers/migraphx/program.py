"""A compiled program as a function of arrays.

In: a program's file and what its part takes and gives. Out: `Program.run`. Arguments go in by pointer and
results are the library's own memory, both without copies, but for bfloat16, which numpy's buffers do not
have: it comes in as float32 and is copied out. A result that looks at an argument, or may look at a constant
of the program, is copied; one run at a time goes through a program."""

from __future__ import annotations

import ctypes
import re
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import EPFail
from ...ir import ElementType
from ...kernels import Part
from ...kernels.gate import readable
from ...locks import lock
from . import module as library
from .claims import from_shapes
from .compiler import trace

FAILURES = (RuntimeError, IndexError, MemoryError, TypeError, ValueError)
"""What the library raises."""
_INSTRUCTION = re.compile(r"@\d+ = ([\w:]+)")
_TIME = re.compile(r"([\d.]+(?:e-?\d+)?) ?ms")


class Program:
    """The program in `file` for `part`; `reads`: the places of the part's inputs that it takes as i0, i1 …
    Raises EPFail for a file that does not load, and where the part takes more than `mem_limit` bytes."""

    def __init__(self, module: Any, file: Path, part: Part, reads: Sequence[int], settings: Mapping[str, Any]
                 ) -> None:
        self.module, self.file, self.settings = module, file, settings
        self.inputs = [(i, f"i{i}", part.inputs[i].elem is ElementType.BFLOAT16) for i in reads]
        self.outputs = [(v.elem.numpy, len(v.shape or ()), from_shapes(v)) for v in part.outputs]
        self.part, self.lock = part, lock()
        self._fits(settings["mem_limit"])
        try:
            if settings["device_id"] and settings["target"] == "gpu":
                library.select_device(settings["device_id"])
            self.program = module.load(str(file))
        except (*FAILURES, OSError) as error:
            raise EPFail(f"MIGraphX does not load a compiled part: {error}", node=part,
                         cure="compile it for this machine and this version of MIGraphX") from error

    def _fits(self, limit: int) -> None:
        sizes = [v.elem.numpy.itemsize * int(np.prod(v.shape)) for v in (*self.part.inputs,
                                                                         *self.part.outputs)
                 if v.shape is not None and all(isinstance(d, int) for d in v.shape)]
        needed = self.file.stat().st_size + sum(sizes)
        if needed > limit:
            raise EPFail("a part needs more memory than the option mem_limit allows", node=self.part,
                         found=f"{needed} bytes", expected=f"{limit} bytes at most",
                         cure="a larger mem_limit")

    def run(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        """The results. Raises EPFail with the library's words."""
        held = self._given(arrays)
        try:
            with self.lock:
                made = self.program.run(held)
        except FAILURES as error:
            raise EPFail(f"MIGraphX failed while running: {error}", node=self.part) from error
        if len(made) != len(self.outputs):
            raise EPFail("MIGraphX gave another number of results", node=self.part, found=len(made),
                         expected=len(self.outputs))
        return [self._taken(argument, *kind, held) for argument, kind in zip(made, self.outputs, strict=True)]

    def _given(self, arrays: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
        """What a program is handed: memory in C order, which has to be there until the run has ended."""
        read = readable([arrays[i].astype(np.float32) if half else arrays[i] for i, _, half in self.inputs])
        return {name: array for (_, name, _), array in zip(self.inputs, read, strict=True)}

    @staticmethod
    def _taken(argument: Any, dtype: np.dtype[Any], rank: int, constant: bool, held: Mapping[str, np.ndarray]
               ) -> np.ndarray:
        if dtype.kind not in "biuf" or dtype.name == "bfloat16":
            shape = argument.get_shape()
            raw = ctypes.string_at(argument.data_ptr(), shape.bytes()) if shape.bytes() else b""
            array = np.frombuffer(bytearray(raw), dtype).reshape(shape.lens())
        else:
            array = np.asarray(argument)
        if rank == 0:
            array = array.reshape(())
        shared = constant or any(np.may_share_memory(array, one) for one in held.values())
        return array.copy() if shared else array

    def traced(self, arrays: Sequence[np.ndarray]) -> tuple[list[np.ndarray], list[tuple[str, float]]]:
        """The results, computed in another process, and what the library says of its instructions: names and
        seconds. Raises EPFail."""
        with tempfile.TemporaryDirectory(prefix="orthrus-migraphx-") as folder:
            files = {name: Path(folder) / f"{name}.npy" for _, name, _ in self.inputs}
            for name, array in self._given(arrays).items():
                np.save(files[name], array, allow_pickle=False)
            results = [Path(folder) / f"o{i}" for i in range(len(self.outputs))]
            reply, said = trace(self.file, files, results, self.settings)
            if not reply.get("ok"):
                raise EPFail(f"MIGraphX failed while its instructions were timed: {reply['message']}",
                             node=self.part)
            made = [np.frombuffer(bytearray(path.read_bytes()), dtype).reshape(sizes if rank else ())
                    for path, sizes, (dtype, rank, _) in zip(results, reply["sizes"], self.outputs,
                                                             strict=True)]
        return made, times(said)


def times(said: str) -> list[tuple[str, float]]:
    """Instructions and their seconds in what the library prints of a run: a line that names one, and behind
    it one with its milliseconds, of which the last count."""
    found: list[tuple[str, float]] = []
    name = ""
    for line in said.splitlines():
        if instruction := _INSTRUCTION.search(line):
            name = instruction[1]
        elif name and (spent := _TIME.findall(line)):
            found.append((name, float(spent[-1]) / 1e3))
            name = ""
    return found
