"""The oneDNN provider: convolutions, products, normalizations and what is between them, by its primitives.

Importing this loads nothing; `probe` is the first to look for the library.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from ...ir import No, Node
from ...kernels import Kernel, Part
from ...processors import usable
from ..base import ExecutionProvider, Option, flag


def _count(text: str) -> int:
    number = int(text)
    if number < 0:
        raise ValueError(f"{text} is negative")
    return number


def _at_most(most: int) -> Any:
    def read(text: str) -> int:
        number = int(text)
        if not -1 <= number <= most:
            raise ValueError(f"{text} is not between 0 and {most}")
        return number
    return read


def _named(table: str) -> Any:
    def read(text: str) -> str:
        from . import binding

        names = getattr(binding, table)
        if text.lower() not in names:
            raise ValueError(f"{text!r} is not among {', '.join(names)}")
        return text.lower()
    return read


class DnnlExecutionProvider(ExecutionProvider):
    """oneDNN on the host's processor."""

    name = "DnnlExecutionProvider"
    fuses = True
    options: ClassVar[dict[str, Option]] = {
        "use_arena": Option(flag, True, "1 keeps the memory of a run for the next one of the same shapes, "
                                        "0 gives it back"),
        "num_of_threads": Option(_count, 0, "threads of a run, at most one for each processor; 0: what the "
                                            "session says, else as many as there are"),
        "primitive_cache_capacity": Option(
            _at_most(1 << 20), -1, "primitives oneDNN remembers, in the whole process; -1 leaves it as it "
            "is, at first 1024"),
        "max_cpu_isa": Option(
            _named("ISA"), "default", "the largest instruction set oneDNN may use, in the whole process: "
            "avx2, avx512_core, avx512_core_vnni, avx512_core_bf16, avx512_core_amx and others; the first "
            "session settles it"),
        "fpmath_mode": Option(
            _named("FPMATH"), "strict", "strict: products of float32 are float32's; bf16, tf32, any: their "
            "factors may be rounded to that type, or to any that is faster, where oneDNN has code for it"),
        "winograd": Option(
            flag, True, "1 computes 3x3 convolutions by Winograd's transform where that is estimated faster, "
                        "with errors up to 5e-6 of the largest result, 0 computes all of them directly"),
        "verbose": Option(_at_most(2), -1, "1: oneDNN prints each primitive it runs, 2: each it makes as "
                                           "well, in the whole process; -1 leaves it as it is, at first 0"),
        "deterministic": Option(flag, False, "1 computes on one thread, so that sums have one order on every "
                                             "machine with the same instruction set"),
    }

    def __init__(self, options: dict[str, Any] | None = None) -> None:
        super().__init__(options)
        self._library: Any = None

    @classmethod
    def probe(cls) -> No | None:
        """Whether oneDNN and its OpenMP runtime are there."""
        from .binding import missing

        return missing()

    @property
    def library(self) -> Any:
        """The library, with this session's wishes settled. Raises EPFail where another session's stand
        against them."""
        if self._library is None:
            from .binding import library

            found = library()
            found.settle(self.settings["max_cpu_isa"], self.settings["primitive_cache_capacity"],
                         self.settings["verbose"])
            self._library = found
        return self._library

    def claim(self, node: Node) -> No | None:
        """What the table of `claims` has, in types that this processor computes with."""
        if node.has_bodies:
            return No("control flow stays with the runtime; its bodies are partitioned themselves")
        from .binding import BF16, VNNI
        from .claims import claim

        isa = self.library.isa
        return claim(node, any(isa & bit for bit in BF16), any(isa & bit for bit in VNNI))

    def compile(self, part: Part) -> Sequence[Kernel]:
        """One kernel for the part, made ready for the shapes its inputs are declared with. Where OpenMP's
        threads work, those of generated code leave the processors to them."""
        from ...codegen.runtime.threads import pool
        from ...kernels import reference
        from .generated import missing
        from .part import Fused

        generates = missing() is None
        if self._threads() > 1 and generates:
            pool().share()
        mode = self.settings["fpmath_mode"]
        fused = Fused(part, self.library, lambda node: reference(node).run, self._threads(),
                      self.settings["use_arena"], mode,
                      generates and self.settings["winograd"] and mode == "strict", self.strict)
        fused.prepare()
        return [Kernel(fused, f"oneDNN for {len(part.nodes)} nodes")]

    def _threads(self) -> int:
        """At most as many as there are processors: OpenMP's runtime ends the process where the system does
        not give it the threads it was asked for."""
        if self.settings["deterministic"]:
            return 1
        there = len(usable())
        return min(self.settings["num_of_threads"] or self.threads or there, there)
