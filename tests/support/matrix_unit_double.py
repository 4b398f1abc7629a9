"""A matrix unit where there is none: its instructions as functions over memory.

In: the text of a module that uses the unit's tiles. Out: the same with a function for each instruction, on
tiles in the kernel's own frame; products of bfloat16 go by the vector instruction for these, which rounds and
takes denormal numbers for 0 as the unit does. So what the unit is right and wrong about shows on processors
without it.
"""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Iterable, Iterator
from dataclasses import replace

import pytest

from orthrus.codegen.kernels import amx
from orthrus.codegen.machines import detect
from orthrus.codegen.machines.detect import host
from orthrus.codegen.machines.machine import Machine
from orthrus.codegen.object import library

_STATE = "%tiles.of.the.double"
_CALL = re.compile(r"call void @llvm\.x86\.(tilezero|tileloadd64|tilestored64|tdpbf16ps)\(")
_SETTING = re.compile(r" *call void @llvm\.x86\.(ldtilecfg|tilerelease)\(.*\)\n")
_DECLARED = re.compile(r"declare void @llvm\.x86\.(ldtilecfg|tile\w+|tdpbf16ps)\(.*\)\n")


def _rows(name: str, params: str, body: str) -> str:
    """A function that does `body` for each `%i` of 16 rows; `%tile` is the address of tile `%t`."""
    return f"""
define internal void @double.{name}(ptr %tiles, i8 %t{params}) nounwind {{
entry:
  %number = zext i8 %t to i64
  %place = mul i64 %number, 1024
  %tile = getelementptr i8, ptr %tiles, i64 %place
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %loop ]
  %along = mul i64 %i, 64
  %row = getelementptr i8, ptr %tile, i64 %along
{body}
  %next = add i64 %i, 1
  %more = icmp ult i64 %next, 16
  br i1 %more, label %loop, label %done
done:
  ret void
}}
"""


def _product() -> str:
    lines = ["  %na = zext i8 %a to i64", "  %nb = zext i8 %b to i64", "  %pa = mul i64 %na, 1024",
             "  %pb = mul i64 %nb, 1024", "  %fa = getelementptr i8, ptr %tiles, i64 %pa",
             "  %ra = getelementptr i8, ptr %fa, i64 %along", "  %fb = getelementptr i8, ptr %tiles, i64 %pb",
             "  %s0 = load <16 x float>, ptr %row, align 1"]
    for k in range(16):
        lines += [f"  %a{k} = getelementptr i8, ptr %ra, i64 {4 * k}",
                  f"  %p{k} = load i32, ptr %a{k}, align 1",
                  f"  %q{k} = insertelement <16 x i32> poison, i32 %p{k}, i64 0",
                  f"  %r{k} = shufflevector <16 x i32> %q{k}, <16 x i32> poison, <16 x i32> zeroinitializer",
                  f"  %x{k} = bitcast <16 x i32> %r{k} to <32 x bfloat>",
                  f"  %b{k} = getelementptr i8, ptr %fb, i64 {64 * k}",
                  f"  %y{k} = load <32 x bfloat>, ptr %b{k}, align 1",
                  f"  %s{k + 1} = call <16 x float> @llvm.x86.avx512bf16.dpbf16ps.512(<16 x float> %s{k}, "
                  f"<32 x bfloat> %x{k}, <32 x bfloat> %y{k})"]
    return "\n".join([*lines, "  store <16 x float> %s16, ptr %row, align 1"])


def _moved(source: str, target: str) -> str:
    return f"""  %far = mul i64 %i, %stride
  %other = getelementptr i8, ptr %at, i64 %far
  %all = load [16 x i32], ptr {source}, align 1
  store [16 x i32] %all, ptr {target}, align 1"""


_FUNCTIONS = "".join([
    "declare <16 x float> @llvm.x86.avx512bf16.dpbf16ps.512(<16 x float>, <32 x bfloat>, <32 x bfloat>)\n",
    _rows("tilezero", "", "  store [16 x i32] zeroinitializer, ptr %row, align 1"),
    _rows("tileloadd64", ", ptr %at, i64 %stride", _moved("%other", "%row")),
    _rows("tilestored64", ", ptr %at, i64 %stride", _moved("%row", "%other")),
    _rows("tdpbf16ps", ", i8 %a, i8 %b", _product())])


def doubled(text: str) -> str:
    """The module without the unit's instructions."""
    if "llvm.x86.tdpbf16ps" not in text:
        return text
    text = _DECLARED.sub("", _SETTING.sub("", text))
    text = _CALL.sub(rf"call void @double.\1(ptr {_STATE}, ", text)
    return text.replace("entry:\n", f"entry:\n  {_STATE} = alloca [8192 x i8], align 64\n", 1) + _FUNCTIONS


def why_none() -> str:
    """Why there is neither a matrix unit nor a double; empty where there is one of them."""
    here = host()
    if here is None or library.available() is not None:
        return "no code is generated here"
    found = amx.usable(here) or here.has("avx512bf16")
    return "" if found else "neither a matrix unit nor products of bfloat16"


@functools.cache
def _with_unit(here: Machine) -> Machine:
    """The machine with the unit; its cache differs, so that nothing kept for one is taken for the other."""
    return replace(here, features=tuple(sorted({*here.features, "amx-bf16", "amx-tile"})), l1=here.l1 + 64)


@contextlib.contextmanager
def matrix_unit() -> Iterator[None]:
    """Let there be a matrix unit: this machine's, or the double."""
    here, compiled = host(), library.compile_all
    assert here is not None
    if amx.usable(here):
        yield
        return

    def compile_all(texts: Iterable[str], count: int, for_machine: Machine, threads: int | None = None
                    ) -> list[bytes]:
        return compiled(map(doubled, texts), count, for_machine, threads)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(detect, "host", lambda: _with_unit(here))
        patch.setattr(amx, "usable", lambda it: it.has("amx-bf16"))
        patch.setattr(amx, "permitted", lambda: True)
        patch.setattr(library, "compile_all", compile_all)
        yield
