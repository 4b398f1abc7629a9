"""onnxruntime's C interface as data, and what is generated from it.

In: `types.api` and `functions.api`. Out: the header that programs include (`header`), the declarations of the
functions that fill the table (`declarations`), and the table with a weak definition of every one of them
(`definitions`), which answers ORT_NOT_IMPLEMENTED with its name; a null where none may be is refused before a
function is called. Invariant: a function's slot is its place in the file.

    python -m orthrus.native.dropin.table docs/drop_in.md

writes the names of the functions that nothing here defines between the marks of the page.

The files: `#` begins a comment; a line that begins with four blanks more than the line before continues that.

* `opaque A B`: handles OrtA and OrtB; `enum NAME PREFIX` and its members, counted from 0 or with values;
* `callback NAME(parameters) -> type`;
* `struct NAME` and its members: `type name [= default in C++]` or functions;
* `table NAME`: OrtNAME, its functions in order; `release A B` stands for two that free an OrtA and an OrtB;
* `exported`: functions that the library exports by name. A function without `->` gives a status.

A pointer that a function is given may be null where `?` stands behind its name; `name[count]` may be where
`count` is 0, and none of the elements of `name[count*]`.
"""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import field
from functools import partial
from importlib.resources import files
from pathlib import Path

from ...api.version import API_LEVEL
from ...records import dataclass

LEVEL = int(API_LEVEL.split(".")[1])
STATUS = "OrtStatusPtr"
_FUNCTION = re.compile(r"(\w+)\((.*)\)(?: -> (.+))?$")
_PARAMETER = re.compile(r"(.*\b(\w+))(\?|\[\w+\*?\])?$")
_BEGIN, _END = "<!-- not there -->", "<!-- the end -->"


@dataclass(frozen=True)
class Parameter:
    """`null`: "" where it may not be null, "?" where it may, or "[count]" and "[count*]" as above."""

    declared: str
    name: str
    null: str = ""

    @property
    def kind(self) -> str:
        return self.declared.removesuffix(self.name).strip()


@dataclass(frozen=True)
class Function:
    name: str
    parameters: tuple[Parameter, ...]
    returns: str = STATUS

    @property
    def arguments(self) -> str:
        return ", ".join(each.declared for each in self.parameters) or "void"

    def prototype(self, name: str) -> str:
        return f"{self.returns} {name}({self.arguments})"


@dataclass(frozen=True)
class Member:
    """A field of a struct; `default` is what C++ begins with."""

    declared: str
    default: str | None = None


@dataclass
class Interface:
    opaque: list[str] = field(default_factory=list)
    enums: dict[str, list[tuple[str, str | None]]] = field(default_factory=dict)
    callbacks: list[Function] = field(default_factory=list)
    structs: dict[str, list[Member | Function]] = field(default_factory=dict)
    tables: dict[str, list[Function]] = field(default_factory=dict)
    exported: list[Function] = field(default_factory=list)


def read() -> Interface:
    """The interface as the two files have it."""
    interface = Interface()
    functions: list[Function] = []
    inside: Callable[[str], None] = interface.opaque.append
    for line in [*_lines("types.api"), *_lines("functions.api")]:
        word, _, rest = line.strip().partition(" ")
        match word:
            case _ if line.startswith(" "):
                inside(line.strip())
            case "opaque":
                interface.opaque += rest.split()
            case "enum":
                name, prefix = rest.split()
                inside = partial(_take_members, interface.enums.setdefault(name, []), prefix)
            case "callback":
                interface.callbacks.append(_function(rest))
            case "struct":
                inside = partial(_take_field, interface.structs.setdefault(rest, []))
            case "table":
                functions = interface.tables.setdefault(f"Ort{rest}", [])
            case "exported":
                functions = interface.exported
            case "release":
                functions += map(_release, rest.split())
            case _:
                functions.append(_function(line))
    return interface


def _release(kind: str) -> Function:
    return _function(f"Release{kind}(Ort{kind}* object?) -> void")


def _take_members(members: list[tuple[str, str | None]], prefix: str, text: str) -> None:
    for each in text.split():
        name, _, value = each.partition("=")
        members.append((prefix + name, value or None))


def _take_field(struct: list[Member | Function], text: str) -> None:
    declared, _, default = text.partition(" = ")
    struct.append(_function(text) if "(" in text else Member(declared, default or None))


def _lines(name: str) -> Iterator[str]:
    """The lines of a file without comments, each with those that continue it."""
    whole = ""
    for line in files(__package__).joinpath(name).read_text(encoding="utf-8").splitlines():
        if line.startswith("#") or not line.strip():
            continue
        depth = len(line) - len(line.lstrip())
        if whole and depth >= len(whole) - len(whole.lstrip()) + 4:
            whole += " " + line.strip()
        else:
            if whole:
                yield whole
            whole = line
    if whole:
        yield whole


def _function(text: str) -> Function:
    match = _FUNCTION.match(text)
    assert match, text
    name, parameters, returns = match.groups()
    split = parameters.split(", ") if parameters != "void" else []
    return Function(name, tuple(map(_parameter, split)), returns or STATUS)


def _parameter(text: str) -> Parameter:
    match = _PARAMETER.match(text)
    assert match, text
    return Parameter(match[1], match[2], match[3] or "")


def header() -> str:
    """`onnxruntime_c_api.h`: source and binary compatible with onnxruntime's."""
    interface = read()
    return "\n".join([
        _template("header_begin.h").replace("@LEVEL@", str(LEVEL)),
        *(f"typedef struct Ort{name} Ort{name};" for name in interface.opaque),
        "typedef OrtStatus* OrtStatusPtr;", "",
        *(_enum(name, members) for name, members in interface.enums.items()),
        *(f"typedef {each.returns} (ORT_API_CALL* {each.name})({each.arguments});"
          for each in interface.callbacks), "",
        *(_struct(name, members, name[3:] in interface.opaque)
          for name, members in interface.structs.items()),
        *(_struct(name, functions, True) for name, functions in interface.tables.items()),
        "ORT_EXPORT const OrtApiBase* ORT_API_CALL OrtGetApiBase(void) NO_EXCEPTION;",
        *(f"ORT_EXPORT {each.prototype('ORT_API_CALL ' + each.name)} NO_EXCEPTION;"
          for each in interface.exported),
        _template("header_end.h")])


def declarations() -> str:
    """`table.h`: every function of a table as `api_NAME`, with the table's own signature."""
    functions = [each for table in read().tables.values() for each in table]
    return "\n".join(["#pragma once", '#include "onnxruntime_c_api.h"',
                      f'#define ORTHRUS_API_LEVEL "{API_LEVEL}"',
                      *(f"{each.prototype('api_' + each.name)};" for each in functions),
                      *(f"extern const {name} {_variable(name)};" for name in read().tables), ""])


def definitions() -> str:
    """`table.c`: the tables, and for each of their functions what answers where no other file defines it."""
    interface = read()
    callbacks, stubs = {each.name for each in interface.callbacks}, absent()
    lines = ['#include "internal.h"', ""]
    for name, functions in interface.tables.items():
        filled = []
        for each in functions:
            stub = each.name in stubs[name]
            lines.append(_weak(each) + ("" if stub else _guarded(each, callbacks)))
            filled.append(f"    {'api' if stub else 'guarded'}_{each.name},")
        lines += [f"const {name} {_variable(name)} = {{", *filled, "};", ""]
    return "\n".join(lines)


def _variable(table: str) -> str:
    return "table_of_" + table


def _weak(function: Function) -> str:
    body = "".join(f" (void){each.name};" for each in function.parameters)
    if function.returns == STATUS:
        cure = _CURES.get(_group(function.name), "")
        body += f' return status_not_implemented("{function.name}", "{cure}");'
    elif function.returns != "void":
        body += " return 0;"
    return f"__attribute__((weak)) {function.prototype('api_' + function.name)} {{{body} }}"


def _guarded(function: Function, callbacks: Set[str]) -> str:
    """What stands in the slot: refuses nulls, and calls the function."""
    checks = "".join(_check(function, each) for each in function.parameters
                     if each.null != "?" and ("*" in each.kind or each.kind in callbacks))
    call = f"api_{function.name}({', '.join(each.name for each in function.parameters)});"
    if function.returns != "void":
        call = "return " + call
    return f"\nstatic {function.prototype('guarded_' + function.name)} {{{checks} {call} }}\n"


def _check(function: Function, parameter: Parameter) -> str:
    name, count = parameter.name, parameter.null.strip("[]*")
    answer = f'return status_null("{function.name}", "{name}");'
    if function.returns != STATUS:
        answer = "return;" if function.returns == "void" else "return 0;"
    text = f" if ({name} == NULL{f' && {count} != 0' if count else ''}) {answer}"
    if "*" in parameter.null:
        text += f" for (size_t i = 0; i < (size_t){count}; i++) if ({name}[i] == NULL) {answer}"
    return text


def absent() -> dict[str, list[str]]:
    """The functions of each table that no file defines."""
    sources = [each for each in files(__package__).iterdir() if each.name.endswith(".c")]
    whole = "\n".join(each.read_text(encoding="utf-8") for each in sources)
    there = set(re.findall(r"\bapi_(\w+)\(", whole))
    return {table: [each.name for each in functions if each.name not in there]
            for table, functions in read().tables.items()}


_CUSTOM = "Custom operators compiled for onnxruntime"
_GROUPS = {_CUSTOM: r".*(Kernel|ShapeInfer|CustomOp)|\w+Op$",
           "Nodes and values of a graph, as providers read them": r"Graph_|Node_|ValueInfo_|OpAttr_Get",
           "Editing a model that is loaded": r".*ModelEditorSession",
           "Settings of a compiled model": r"ModelCompilationOptions_",
           "Settings of providers that are not there": r".*(TensorRT|CANN|ROCM|CUDA)",
           "Memory and semaphores of graphics interfaces": r".*(External|Semaphore|Memory$|Graphics)",
           "Others": r""}
"""What functions that nothing defines are for, by how their names begin."""
_CURES = {_CUSTOM: "write the operator in Python and name its module by ORTHRUS_IMPORT"}


def _group(name: str) -> str:
    return next(title for title, pattern in _GROUPS.items() if re.match(pattern, name))


def page() -> str:
    """What `docs/drop_in.md` says of functions that nothing defines, but for those that free something."""
    names = [each for found in absent().values() for each in found if not each.startswith("Release")]
    lines = []
    for title in _GROUPS:
        own = [each for each in names if _group(each) == title]
        if own:
            listed = " ".join([f"{title}:", *(f"`{each}`," for each in own)]).removesuffix(",") + "."
            lines += textwrap.wrap(f"* {listed}", 118, subsequent_indent="  ", break_on_hyphens=False)
    return "\n".join(lines)


def _enum(name: str, members: list[tuple[str, str | None]]) -> str:
    inside = "".join(f"  {each}{f' = {value}' if value else ''},\n" for each, value in members)
    return f"typedef enum {name} {{\n{inside}}} {name};\n"


def _struct(name: str, members: Sequence[Member | Function], named_before: bool) -> str:
    defaults = [each for each in members if isinstance(each, Member) and each.default is not None]
    constructor = ""
    if defaults:
        begun = ", ".join(f"{each.declared.split()[-1]}({each.default})" for each in defaults)
        constructor = f"#ifdef __cplusplus\n  {name}() : {begun} {{}}\n#endif\n"
    marks = " NO_EXCEPTION" if "Api" in name else ""
    inside = "".join(_declared(each, marks) for each in members)
    if named_before:
        return f"struct {name} {{\n{constructor}{inside}}};\n"
    return f"typedef struct {name} {{\n{constructor}{inside}}} {name};\n"


def _declared(member: Member | Function, marks: str) -> str:
    """`marks`: of functions; into structs that programs fill, they may put some that throw."""
    if isinstance(member, Member):
        return f"  {member.declared};\n"
    marks += " ORT_MUST_USE_RESULT" if member.returns == STATUS else ""
    return f"  {member.returns} (ORT_API_CALL* {member.name})({member.arguments}){marks};\n"


def _template(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


def written(text: str) -> str:
    """A page whose list between the marks is that of today."""
    before, _, rest = text.partition(_BEGIN)
    return f"{before}{_BEGIN}\n{page()}\n{_END}{rest.partition(_END)[2]}"


if __name__ == "__main__":
    for each in sys.argv[1:]:
        target = Path(each)
        target.write_text(written(target.read_text(encoding="utf-8")), encoding="utf-8")
