"""Checks of provider options: declared, read from strings, refused when they are wrong.

Each declared option is tried with its default and with texts that no option means; the provider's own
values come from the bench.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import Any

from ..errors import InvalidArgument
from ..providers.base import Option
from .bench import Bench, Skip, brief
from .blocks import Sketch, blocks
from .check import check, fault
from .closeness import difference
from .report import Finding

FAMILY = "options"
NONSENSE = "no such value \u2047"
UNKNOWN = "no_such_option"


@contextlib.contextmanager
def _unsaid(word: str) -> Iterator[None]:
    """Nothing with `word` in it is logged meanwhile: the checks themselves gave cause for it."""
    log = logging.getLogger("orthrus")

    def said(record: logging.LogRecord) -> bool:
        return word not in record.getMessage()
    log.addFilter(said)
    try:
        yield
    finally:
        log.removeFilter(said)


@check(FAMILY)
def options_are_declared(bench: Bench) -> Iterator[Finding]:
    """Every option is an `Option` with a function that reads its text, a default and a meaning in words,
    which `orthrus providers` and error messages show."""
    declared = bench.provider.options
    if not isinstance(declared, dict):
        yield fault("options", type(declared).__name__, "a dict of name to Option",
                    "options = {\"key\": Option(...)}")
        return
    for key, option in declared.items():
        bench.saw()
        if not isinstance(key, str) or not key or key != key.strip():
            yield fault(f"option {key!r}", "its name is no word", "a non-empty string", "rename it")
        elif not isinstance(option, Option) or not callable(option.read):
            yield fault(f"option {key}", repr(option), "Option(read, default, meaning)",
                        "Option(int, 0, \"what it does\")")
        elif not option.doc.strip():
            yield fault(f"option {key}", "it has no meaning in words", "a sentence",
                        "say what the option does")
    if not declared:
        raise Skip("it declares no options")


@check(FAMILY)
def option_defaults(bench: Bench) -> Iterator[Finding]:
    """A default written out and given as an option means the same as leaving the option out: users copy it
    from the table of options."""
    bench.usable()
    for key, option in _declared(bench).items():
        if option.default is None:
            continue
        bench.saw()
        plain = bench.make({}).settings.get(key)
        if plain != option.default:
            yield fault(f"option {key}", f"{plain!r} where it is left out", f"its default {option.default!r}",
                        "take settings from ExecutionProvider.__init__")
        try:
            given = bench.make({key: str(option.default)}).settings.get(key)
        except Exception as error:
            yield fault(f"option {key}={option.default}", brief(error), "its own default is readable",
                        "a read function that takes str(default)")
            continue
        if given != plain:
            yield fault(f"option {key}={option.default}", repr(given), repr(plain),
                        "a read function that gives the default for str(default)")


@check(FAMILY)
def options_arrive_as_strings(bench: Bench) -> Iterator[Finding]:
    """Options are texts when they arrive, whatever the caller gave: `given` holds the texts, of options that
    were left out too where the provider says those, `settings` what was read from them, and nothing else
    reads the caller's objects."""
    bench.usable()
    for key, option in _readable(bench).items():
        bench.saw()
        try:
            provider = bench.make({key: option.default})
        except Exception as error:
            yield fault(f"option {key}", brief(error), "the default as an object is taken as its text",
                        "call super().__init__(options)")
            continue
        if not _says(bench, provider.given, {key: str(option.default)}):
            yield fault(f"option {key}", f"given is {provider.given!r}", repr({key: str(option.default)}),
                        "call super().__init__(options), and leave given alone")
        if key not in provider.settings:
            yield fault(f"option {key}", "it is not among the settings",
                        "settings holds every declared option",
                        "call super().__init__(options)")


@check(FAMILY)
def wrong_values(bench: Bench) -> Iterator[Finding]:
    """A value that cannot be read is an InvalidArgument that names the option: `read` raises ValueError
    for it, and nothing else."""
    bench.usable()
    for key, option in _declared(bench).items():
        if option.read is str:
            continue
        for text in (NONSENSE, ""):
            bench.saw()
            try:
                bench.make({key: text})
            except InvalidArgument as error:
                if key not in str(error):
                    yield fault(f"option {key}={text!r}", brief(error), f"a message that names {key}",
                                "let ExecutionProvider.__init__ read the options")
            except Exception as error:
                yield fault(f"option {key}={text!r}", brief(error), "InvalidArgument",
                            "raise ValueError in the option's read function")
                break
            else:
                if text == NONSENSE and isinstance(option.default, bool | int | float):
                    yield fault(f"option {key}={text!r}", "it was taken", f"an error: it is no "
                                f"{type(option.default).__name__}", "raise ValueError in the read function")


@check(FAMILY)
def unknown_options(bench: Bench) -> Iterator[Finding]:
    """An option that nobody declared is an InvalidArgument that lists the declared ones: a misspelt option
    that is swallowed is a wrong result later. A provider that is `lenient` warns instead."""
    bench.usable()
    bench.saw()
    try:
        with _unsaid(UNKNOWN):
            provider = bench.make({UNKNOWN: "1"})
    except InvalidArgument as error:
        missing = [key for key in bench.provider.options if key not in str(error)]
        if UNKNOWN not in str(error) or missing:
            yield fault(f"option {UNKNOWN}", brief(error),
                        f"a message that names it and lists {', '.join(bench.provider.options)}",
                        "let ExecutionProvider.__init__ read the options")
        return
    except Exception as error:
        yield fault(f"option {UNKNOWN}", brief(error), "InvalidArgument",
                    "let ExecutionProvider.__init__ read the options")
        return
    if not bench.provider.lenient:
        yield fault(f"option {UNKNOWN}", "it was taken without a word", "InvalidArgument that lists "
                    f"{', '.join(bench.provider.options) or 'no options'}",
                    "let ExecutionProvider.__init__ read the options, or set lenient = True")
    elif UNKNOWN in provider.settings:
        yield fault(f"option {UNKNOWN}", "it is among the settings", "it is left alone", "drop it")


@check(FAMILY)
def options_are_each_instance_s_own(bench: Bench) -> Iterator[Finding]:
    """The settings of one session are not another's: they live in the instance, and the class stays as it
    is."""
    bench.usable()
    declared = _readable(bench)
    before = {key: option.default for key, option in declared.items()}
    for key in declared:
        bench.saw()
        first, second = bench.make({}), bench.make({})
        if first.settings is second.settings or first.given is second.given:
            yield fault(f"option {key}", "two instances share their settings", "each has its own",
                        "make settings in __init__, not in the class")
            return
        first.settings[key] = object()
        if second.settings.get(key) is first.settings[key] or bench.make({}).settings.get(key) != before[key]:
            yield fault(f"option {key}", "setting it in one instance changed another", "each has its own",
                        "make settings in __init__, not in the class")


@check(FAMILY)
def options_round_trip(bench: Bench) -> Iterator[Finding]:
    """`session.get_provider_options()` gives the options that a session was made with, as texts, and a
    session made with those is the same one."""
    bench.usable()
    defaults = {key: o.default for key, o in _readable(bench).items()} if bench.provider.options else {}
    options = {**{key: str(value) for key, value in defaults.items()},
               **{key: str(value) for key, value in bench.options.items()}}
    found = blocks(bench)
    sketch = Sketch(found)
    model = sketch.model([sketch.unary("x")]).SerializeToString()
    from ..api.session import InferenceSession

    with bench.registered() as name:
        session = InferenceSession(model, providers=[(name, options)], enable_fallback=0)
        told = session.get_provider_options().get(name)
        bench.saw()
        if told is None or not _says(bench, told, options):
            yield fault("get_provider_options", repr(told), repr(options),
                        "call super().__init__(options), and leave given alone")
            return
        expected: Any = session.run(None, {"x": found.feed(1)})
        session.set_providers([(name, told)])
        again: Any = session.run(None, {"x": found.feed(1)})
        if difference(again, expected):
            yield fault("set_providers", "the session made of its own options gives another result",
                        "the same result", "keep nothing of an option outside of the instance")


def _says(bench: Bench, told: dict[str, Any], options: dict[str, str]) -> bool:
    """Whether these texts mean the given options, each by its name, and beside them nothing but defaults of
    declared ones."""
    declared = bench.provider.options
    whole = {**{key: str(option.default) for key, option in declared.items()}, **options}
    return set(options) <= set(told) <= set(whole) and all(
        isinstance(text, str) and (text == whole[key] or _alike(declared.get(key), text, whole[key]))
        for key, text in told.items())


def _alike(option: Option | None, one: str, other: str) -> bool:
    """Whether an option's value reads the same of two texts."""
    with contextlib.suppress(Exception):
        return option is not None and option.read(one) == option.read(other)
    return False


def _declared(bench: Bench) -> dict[str, Any]:
    if not bench.provider.options:
        raise Skip("it declares no options")
    return {k: o for k, o in bench.provider.options.items() if isinstance(o, Option) and callable(o.read)}


def _readable(bench: Bench) -> dict[str, Any]:
    """Declared options with a default that `read` takes; the others are for `option_defaults` to report."""
    found = {}
    for key, option in _declared(bench).items():
        with contextlib.suppress(Exception):
            if option.default is not None and option.read(str(option.default)) == option.default:
                found[key] = option
    return found
