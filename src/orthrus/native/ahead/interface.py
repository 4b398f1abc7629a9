"""The C interface of one model: its header, and the source of what is compiled with its object file.

In: a name, the inputs and outputs, what it was compiled for, and the runtime's sources. Out: the texts of
`NAME.h` and `NAME.c`. Whatever a linker sees begins with the model's name, so that any number of models may
be in one program.
"""

from __future__ import annotations

import functools
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ...api.version import VERSION
from ...errors import InvalidArgument
from ...ir import ElementType
from ...records import dataclass

RUNTIME = Path(__file__).parents[1] / "runtime"
SOURCES = Path(__file__).parent / "c"
SHIPPED = (RUNTIME / "orthrus.h", SOURCES / "orthrus_library.h", SOURCES / "orthrus.hpp")
"""Headers that every model's header, or a program in C++, includes."""

C_TYPES = {"FLOAT": "float", "UINT8": "uint8_t", "INT8": "int8_t", "UINT16": "uint16_t", "INT16": "int16_t",
           "INT32": "int32_t", "INT64": "int64_t", "BOOL": "uint8_t", "FLOAT16": "uint16_t",
           "DOUBLE": "double", "UINT32": "uint32_t", "UINT64": "uint64_t", "BFLOAT16": "uint16_t"}
"""By ONNX's name of a type, how its elements lie in C. Halves are their bits; a bool is 0 or 1; those that
are not here are only memory."""

_KEYWORDS = frozenset(re.findall(r"\w+", """
alignas alignof and and_eq asm auto bitand bitor bool break case catch char char16_t char32_t char8_t class
co_await co_return co_yield compl concept const const_cast consteval constexpr constinit continue decltype
default delete do double dynamic_cast else enum explicit export extern false float for friend goto
if inline int long main mutable namespace new noexcept not not_eq nullptr operator or or_eq private protected
public register reinterpret_cast requires restrict return short signed sizeof static static_assert static_cast
struct switch template this thread_local throw true try typedef typeid typename typeof typeof_unqual union
unsigned using virtual void volatile wchar_t while xor xor_eq"""))
"""Words of C and C++."""
_TAKEN = re.compile("errno|inferred|linux|std(in|out|err)|unix|u?int(8|16|32|64)_t|[A-Z][A-Z0-9_]+")
"""What a parameter may not be called besides: macros are most often written in capitals."""
_HEADERS = frozenset(re.findall(r"\w+", """
aio alloca assert byteswap complex cpio cpuid ctype dirent dlfcn elf endian err errno error fcntl features
fenv fmtmsg fnmatch ftw glob grp iconv inttypes iso646 langinfo libgen limits link locale malloc math
memory monetary mqueue netdb nl_types paths poll pthread pwd regex regexp sched search semaphore setjmp
signal spawn stdalign stdarg stdatomic stdbit stdbool stdckdint stddef stdint stdio stdlib stdnoreturn
string strings syscall syslimits syslog tar termios tgmath threads time trace uchar ucontext ulimit unistd
utime utmpx values wait wchar wctype wordexp"""))
"""Headers of the system: a model's own of that name would be taken for it."""
_LIBRARIES = frozenset(re.findall(r"\w+", """
anl asan atomic bsd c crypt dl gcc gcc_s m pthread resolv rt tsan ubsan util z"""))
"""The system's libraries, which are looked for as `lib` and the name."""
_NO_MODELS = _KEYWORDS | _HEADERS | _LIBRARIES
_IDENTIFIER = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_LONGEST_NAME = 60
_INCLUDE = re.compile(r'^#include "(\w+\.[ch])"\n', re.M)
_DECLARED = re.compile(r"^ORTHRUS_API (?P<text>[^;]*?\borthrus_(?P<name>\w+)\([^;]*;)", re.M)
_WIDTH = 110


@dataclass(frozen=True)
class Value:
    """An input or output: `shape` has sizes, names of sizes that differ between runs, or None for a size
    that is known only when it was run."""

    name: str
    elem: ElementType
    shape: tuple[int | str | None, ...]

    @property
    def c_type(self) -> str:
        return C_TYPES.get(self.elem.name, "void")

    def __str__(self) -> str:
        sizes = ", ".join("?" if d is None else str(d) for d in self.shape)
        return f"{self.name}: {self.elem.name.lower()} [{sizes}]"


@dataclass(frozen=True)
class Interface:
    """What a program sees of a model. `sizes`: those that may differ between runs, in words, by name;
    `targets`: the processors it was compiled for, in words; `beside`: bytes of the weights, where they are in
    a file beside, else 0."""

    name: str
    inputs: Sequence[Value]
    outputs: Sequence[Value]
    sizes: Mapping[str, str]
    targets: Sequence[str]
    beside: int = 0

    def __post_init__(self) -> None:
        named(self.name)


def named(name: str) -> str:
    """`name`, which may stand in front of a C function's. Raises InvalidArgument."""
    if not _IDENTIFIER.fullmatch(name) or name in _KEYWORDS or len(name) > _LONGEST_NAME:
        raise InvalidArgument("this is no name for a model in C", found=name,
                              expected=f"at most {_LONGEST_NAME} letters, digits and underlines, a letter"
                                       " first, and no word of the language", cure="choose one with --name")
    if name.startswith("orthrus"):
        raise InvalidArgument("names that begin so are the runtime's own", found=name,
                              cure="choose another with --name")
    if name.lower() in _NO_MODELS:
        raise InvalidArgument("the system has a header or a library of that name", found=name,
                              cure="choose another with --name")
    return name


def name_for(text: str) -> str:
    """A name for a model whose file is called `text`."""
    plain = re.sub(r"\W|(?<![A-Za-z0-9])_", "_", text, flags=re.A).strip("_")[:_LONGEST_NAME].lower()
    if not plain[:1].isalpha() or plain in _NO_MODELS or plain.startswith("orthrus"):
        plain = f"model_{plain}"[:_LONGEST_NAME]
    return plain.rstrip("_")


@functools.cache
def _distinct(names: tuple[str, ...]) -> tuple[str, ...]:
    """An identifier for each name, no two alike."""
    made: list[str] = []
    for name in names:
        plain = re.sub(r"\W", "_", name, flags=re.A).strip("_") or "value"
        if not plain[0].isalpha() or plain in _KEYWORDS or _TAKEN.fullmatch(plain):
            plain = f"v_{plain}"
        again = 2
        found = plain
        while found in made:
            found, again = f"{plain}_{again}", again + 1
        made.append(found)
    return tuple(made)


class _Call:
    """The typed function that is one run: its parameters, and how they become the general ones."""

    def __init__(self, of: Interface) -> None:
        self.of = of
        values = (*of.inputs, *of.outputs)
        sizes = [d for v in of.inputs for d in v.shape if isinstance(d, str)]
        self.sizes = list(dict.fromkeys(sizes))
        names = _distinct((*self.sizes, *(v.name for v in values)))
        self.words = dict(zip(self.sizes, names, strict=False))
        self.names = names[len(self.sizes):]

    def parameters(self) -> Iterator[str]:
        for size in self.sizes:
            yield f"int64_t {self.words[size]}"
        for i, (value, name) in enumerate(zip((*self.of.inputs, *self.of.outputs), self.names, strict=True)):
            const = "const " if i < len(self.of.inputs) else ""
            fixed = all(isinstance(d, int) for d in value.shape) and value.shape and 0 not in value.shape
            if fixed and value.c_type != "void":
                yield f"{const}{value.c_type} {name}[{' * '.join(map(str, value.shape))}]"
            else:
                yield f"{const}{value.c_type} *{name}"

    def head(self) -> str:
        return _folded(f"int {self.of.name}_infer(", self.parameters(), ")")

    def body(self) -> str:
        lines, count = [], len(self.of.inputs)
        for i, value in enumerate(self.of.inputs):
            sizes = [str(d) if isinstance(d, int) else self.words[str(d)] for d in value.shape]
            lines.append(f"const int64_t shape_{i}_[] = {{{', '.join(sizes) or '0'}}};")
        shapes = [f"shape_{i}_" for i in range(count)]
        for declared, rows in (("const int64_t *const shapes_[]", shapes),
                               ("const void *const inputs_[]", self.names[:count]),
                               ("void *const outputs_[]", self.names[count:])):
            lines.append(_folded(f"{declared} = {{", rows or ["0"], "};"))
        lines.append("return inferred(shapes_, inputs_, outputs_);")
        return textwrap.indent("\n".join(lines), "    ")


def _folded(begin: str, items: Any, end: str) -> str:
    """`begin`, the items with commas, `end`: in as many lines as it takes."""
    rows, line = [], begin
    items = list(items)
    for i, item in enumerate(items):
        item += end if i == len(items) - 1 else ","
        if len(line) + len(item) >= _WIDTH - 8 and line != begin:
            rows.append(line.rstrip())
            line = "    "
        line += item + " "
    return "\n".join([*rows, line.rstrip() if items else begin + end])


def _comment(lines: Sequence[str]) -> str:
    """A comment in C; nothing in it ends it."""
    text = "\n".join(line.replace("*/", "* /").replace("/*", "/ *") for line in lines)
    return f"/* {textwrap.indent(text, '   ').strip()} */"


def _about(of: Interface) -> list[str]:
    rows = [f"{of.name}: a model compiled by Orthrus {VERSION} for {', '.join(of.targets)}.", ""]
    for title, values in (("in ", of.inputs), ("out", of.outputs)):
        rows += [f"{title} {_plain(str(v))}" for v in values]
    rows += [f"{_plain(name)}: {text}" for name, text in of.sizes.items()]
    return rows


def _plain(text: str) -> str:
    return "".join(c if c.isprintable() and c.isascii() else "?" for c in text).replace("\\", "/")


def _general() -> list[tuple[str, str]]:
    """The functions of `orthrus.h`: their names without prefix, their declarations."""
    text = (RUNTIME / "orthrus.h").read_text(encoding="utf-8")
    return [(found["name"], found["text"]) for found in _DECLARED.finditer(text)]


def header(of: Interface) -> str:
    """The text of `NAME.h`."""
    name, call = of.name, _Call(of)
    own = "\n".join(re.sub(r"\borthrus_(?=\w+\()", f"{name}_", text, count=1) for _, text in _general())
    where = ("`weights` is the path of NAME.weights; null for the one in the folder of the\n"
             "   library or program that this is in." if of.beside
             else "`weights` is null, as they are in the library.").replace("NAME", name)
    halves = any(v.elem.name in ("FLOAT16", "BFLOAT16") for v in (*of.inputs, *of.outputs))
    return f"""\
{_comment(_about(of))}
#ifndef {name.upper()}_H
#define {name.upper()}_H

#include "orthrus_library.h"

#ifdef __cplusplus
extern "C" {{
#endif

/* One run: inputs, then outputs, each in C order{', halves as their bits' if halves else ''}.
   Answers 0 or a status. May be called by any number of threads; it keeps what it needs. */
{call.head()};
/* Give back what {name}_infer() keeps. It must not be running. */
void {name}_release(void);

/* The model, for the functions below. {where} */
int {name}_open(const char *weights, const orthrus_options *options, orthrus_model **model);
/* Close it, once its last context is destroyed. */
void {name}_close(orthrus_model *model);
/* All functions in a table, for code that is written for any model. */
const orthrus_library *{name}_library(void);

/* As orthrus.h says of orthrus_... */
{own}

#ifdef __cplusplus
}}
#endif
#endif
"""


def _amalgamated() -> str:
    """The runtime as one text, without the header that models' headers include."""
    there: set[str] = {"orthrus.h"}

    def included(found: re.Match[str]) -> str:
        if found[1] in there:
            return ""
        there.add(found[1])
        return text_of(found[1])

    def text_of(file: str) -> str:
        return _INCLUDE.sub(included, (RUNTIME / file).read_text(encoding="utf-8"))
    return text_of("runtime.c")


def source(of: Interface, package: int, codes: int) -> str:
    """The text of `NAME.c`, which is compiled and linked with the object file of `package` bytes of tables
    and `codes` images: the runtime, the way to the model, and its typed function."""
    name, call = of.name, _Call(of)
    symbols = [f"{name}_code_{i}" for i in range(codes)]
    weights = f"{name}_weights" if not of.beside else "NULL"
    extern = "\n".join(f"extern const unsigned char {s}[];" for s in (
        f"{name}_package", *symbols, *([] if of.beside else [f"{name}_weights"])))
    return f"""\
/* Written by `orthrus compile`: what runs {name}.o. To be compiled with it:

       cc -O2 -c {name}.c

   All of it is Orthrus' runtime ({VERSION}), but the beginning and the end. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#define ORTHRUS_PREFIX {name}_
#define ORTHRUS_VERSION "{VERSION}"
#include "orthrus_library.h"
#pragma GCC visibility push(default)
#include "{name}.h"
#pragma GCC visibility pop
#include <errno.h>
#include <limits.h>

{_amalgamated()}
#define MODEL(function) {name}_##function
#define MODEL_NAME "{name}"
#define MODEL_WEIGHTS {of.beside}
#define MODEL_PACKAGE_SIZE {package}
#pragma GCC visibility push(hidden)
{extern}
#pragma GCC visibility pop
#define model_package {name}_package
static const unsigned char *const model_constants = {weights};
static const void *const model_code[] = {{{', '.join(symbols)}}};

{(SOURCES / 'model.c').read_text(encoding='utf-8')}
{call.head()} {{
{call.body()}
}}
"""
