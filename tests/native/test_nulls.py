"""Nulls in the C interface: every function of every table is called with a null in each of its pointers in
turn, the others good, and with nulls alone, each time in a process of its own. None may end it, and where no
null may be, the status names function and argument."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import dropin
import onnx
import pytest
from skips import needs

from orthrus.native.dropin import build, table
from orthrus.native.dropin.table import Function, Parameter

pytestmark = [pytest.mark.slow, needs("generated code", "Linux", "C compiler")]
HERE = Path(__file__).parent
NOT_IMPLEMENTED, INVALID_ARGUMENT = 9, 2
REACHED = {"OrtApi": "api->", "OrtModelEditorApi": "api->GetModelEditorApi()->",
           "OrtCompileApi": "api->GetCompileApi()->", "OrtInteropApi": "api->GetInteropApi()->", "": ""}
"""What stands before a function of each table, and before those that stand in none."""
OBJECTS = re.findall(r"X\((\w+)", HERE.joinpath("null_calls.h").read_text())
"""Classes that null_calls.h makes an object of."""
GOOD = {"const char*": '"text"', "const ORTCHAR_T*": '"text"', "const char* const*": "texts",
        "const ORTCHAR_T* const*": "texts", "const char**": "texts", "const size_t*": "sizes",
        "const int64_t*": "numbers", "int64_t*": "numbers", "const int*": "versions",
        "const OrtValue* const*": "values", "OrtValue* const*": "values", "OrtAllocator*": "allocator",
        "const OrtAllocator*": "allocator", "const OrtEpDevice* const*": "devices",
        "const OrtEnvCreationOptions*": "&creation"}
"""Good arguments of a type, where it is not an object's or a callback's."""


def _good(parameter: Parameter, callbacks: set[str], enums: set[str]) -> str:
    kind = parameter.kind
    if kind in GOOD:
        return GOOD[kind]
    if kind in callbacks:
        return f"({kind})nothing"
    if "*" in kind:
        several = re.fullmatch(r"Ort(\w+)\*\*", kind)
        if several and "*" in parameter.null and several[1] in OBJECTS:
            return f"({kind})(void *[]){{objects.{several[1]}}}"
        single = re.fullmatch(r"(?:const )?Ort(\w+)\*", kind)
        return f"objects.{single[1]}" if single and single[1] in OBJECTS else f"({kind})(void*)room"
    return f"({kind})1" if kind in enums else "1" if kind != "bool" else "true"


def _call(prefix: str, function: Function, position: int | None, callbacks: set[str], enums: set[str]) -> str:
    words = [f"({each.kind})0" if _pointer(each, callbacks) and position in (None, i)
             else _good(each, callbacks, enums) for i, each in enumerate(function.parameters)]
    call = f"{prefix}{function.name}({', '.join(words)})"
    name = "all" if position is None else function.parameters[position].name
    answer = f"status = {call};" if function.returns.startswith("OrtStatus") else f"(void){call};"
    return f'BEGIN("{function.name}", "{name}") {answer} END'


def _functions(interface: table.Interface) -> dict[str, list[Function]]:
    return {**interface.tables, "": interface.exported}


def _pointer(parameter: Parameter, callbacks: set[str]) -> bool:
    return "*" in parameter.kind or parameter.kind in callbacks


def _source(interface: table.Interface) -> str:
    callbacks, enums = {each.name for each in interface.callbacks}, set(interface.enums)
    lines = ['#include "null_calls.h"', "int main(int count, char **words) {", "    prepare(count, words);"]
    for name, functions in _functions(interface).items():
        for each in functions:
            places = [i for i, p in enumerate(each.parameters) if _pointer(p, callbacks)]
            for place in (*places, None) if places else ():
                lines.append("    " + _call(REACHED[name], each, place, callbacks, enums))
    return "\n".join([*lines, "    return 0;", "}", ""])


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], str]:
    """What each call answered."""
    folder = tmp_path_factory.mktemp("nulls")
    built = build.build(folder / "capi")
    (folder / "calls.c").write_text(_source(table.read()))
    subprocess.run(["cc", "-std=c11", "-O0", "-w", f"-I{built / 'include'}", f"-I{HERE}", folder / "calls.c",
                    f"-L{built / 'lib'}", f"-Wl,-rpath,{built / 'lib'}", "-lonnxruntime", "-o",
                    folder / "calls"], check=True)
    onnx.save(dropin.models()["native"][0], folder / "m.onnx")
    done = subprocess.run([folder / "calls", folder / "m.onnx"], env=dropin.surroundings(), text=True,
                          capture_output=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout[-500:] + done.stderr[-2000:]
    found = {}
    for line in done.stdout.splitlines():
        name, argument, answer = line.split(" ", 2)
        found[name, argument] = answer
    return found


def test_no_null_ends_the_process(answers: dict[tuple[str, str], str]) -> None:
    ended = {key: answer for key, answer in answers.items() if answer.startswith("ended")}
    assert not ended
    assert len(answers) > 1500


def test_a_null_that_may_not_be_is_named(answers: dict[tuple[str, str], str]) -> None:
    interface, absent = table.read(), table.absent()
    for name, functions in _functions(interface).items():
        for each in functions:
            for parameter in each.parameters:
                answer = answers.get((each.name, parameter.name))
                if answer is None or each.returns != table.STATUS or parameter.null == "?":
                    continue
                if each.name in absent.get(name, ()):
                    assert answer.startswith(f"{NOT_IMPLEMENTED} {each.name} "), answer
                else:
                    assert answer == f"{INVALID_ARGUMENT} {each.name}: {parameter.name} must not be null"
