"""Write the tables that say which module has what: definitions by operator, and rules of lowering.

    python -m orthrus.tools.index

In: the package's own modules, imported. Out: the files of the tables. What nobody imports, no table names.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages
from typing import Any

from ..lowering import rule_sets
from ..ops import define
from ..optimize.pattern import Rule, listed

SOURCE = Path(__file__).resolve().parents[1]
WIDTH = 106


def tables() -> dict[Path, str]:
    """The files and their texts."""
    return {SOURCE / "ops" / "index.py": _definitions(), SOURCE / "lowering" / "rules" / "index.py": _rules(),
            SOURCE / "optimize" / "rules" / "index.py": _rewrites()}


def _modules(package: str) -> Iterator[str]:
    """The names of all modules in a package, as seen from there, but of the table."""
    found = import_module(package)
    for module in walk_packages(found.__path__, f"{package}."):
        name = module.name[len(package) + 1:]
        if name != "index":
            import_module(module.name)
            yield name


def _definitions() -> str:
    package = "orthrus.ops"
    table: dict[str, set[str]] = {name: set() for name in _modules(package)}
    for op in define.defined():
        if op.own:
            for module in (op.body.__module__, *_attached(op)):
                table[module[len(package) + 1:]].add(f"{op.domain}::{op.name}".removeprefix("::"))
    alone = {count: sorted({op.name for op in define.defined() if op.own and op.broadcasts and not op.domain
                            and (2 if op.variadic else len(op.inputs)) == count}) for count in (1, 2)}
    return "\n".join((
        '"""Which module defines which operators; see `define.find`. `python -m orthrus.tools.index`',
        'writes it."""', "",
        *_table("DEFINITIONS", {name: sorted(names) for name, names in table.items() if names}), "",
        *_table("ELEMENTWISE", alone),
        '"""The operators of ONNX that compute so many tensors element by element; those of any number do',
        'two, too."""', ""))


def _attached(op: define.Op) -> Iterator[str]:
    """The modules that import a definition and give it rules."""
    for module in op.modules - {op.body.__module__}:
        if any(value is op for value in vars(import_module(module)).values()):
            yield module


def _rules() -> str:
    package = "orthrus.lowering.rules"
    table: dict[str, set[str]] = {name: set() for name in _modules(package)}
    for each in rule_sets.BOTH:
        own = {f"{domain}::{name}".removeprefix("::"): rule for (domain, name), rule in each.items()}
        for kind, named in ((rule_sets.STEPS, each.steps), (rule_sets.ON_BYTES, each.on_bytes)):
            own |= {f"{kind}::{name}": rule for name, rule in named.items()}
        for name, rule in own.items():
            module = rule.__module__.removeprefix(f"{package}.")
            if module in table:
                table[module].add(name)
    return "\n".join((
        '"""Which module has the rules of which operators; see `rule_sets`. `python -m orthrus.tools.index`',
        'writes it."""', "",
        *_table("RULES_BY_MODULE", {name: sorted(names) for name, names in table.items() if names}), ""))


def _rewrites() -> str:
    package, rows = "orthrus.optimize.rules", list[str]()
    for module in _modules(package):
        for name, rules in vars(import_module(f"{package}.{module}")).items():
            if name.isupper() and isinstance(rules, tuple) and rules and isinstance(rules[0], Rule):
                rows.append(f'    "{module}.{name}": (')
                for each in rules:
                    lines = textwrap.wrap(listed(each).replace("|", "| "), WIDTH - 20, break_long_words=False)
                    rows += [f'        ("{each.name}",', *(f'         "{line}"' for line in _closed(lines))]
                    rows[-1] += "),"
                rows.append("    ),")
    return "\n".join((
        '"""The rules of each list: their names, and what may be their roots, as `pattern.listed` says it.',
        '`python -m orthrus.tools.index` writes it."""', "", "LISTS = {", *rows, "}", ""))


def _closed(lines: list[str]) -> Iterator[str]:
    """Lines of operators as pieces of one text, without blanks behind `|`."""
    for line in lines:
        text = line.replace("| ", "|")
        yield text if text.endswith("|") or line is lines[-1] else text + " "


def _table(name: str, rows: dict[Any, list[str]]) -> Iterator[str]:
    yield f"{name} = {{"
    for key, words in rows.items():
        yield f'    {str(key) if isinstance(key, int) else chr(34) + key + chr(34)}: """'
        yield from textwrap.wrap(" ".join(words), WIDTH, initial_indent=" " * 8, subsequent_indent=" " * 8)
        yield '    """,'
    yield "}"


def main() -> None:
    for path, text in tables().items():
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
