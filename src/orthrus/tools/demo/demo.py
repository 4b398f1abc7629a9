"""`orthrus demo`: the shipped digits classified."""

from __future__ import annotations

from ..asked import import_modules
from ..cli.arguments import (
    CountOption,
    ImportOption,
    JsonOption,
    ProviderOption,
    SettingOption,
    console,
    print_json,
    providers_of,
)


def command(
    provider: ProviderOption = None, option: SettingOption = None, modules: ImportOption = None,
    count: CountOption = 8, as_json: JsonOption = False,
) -> None:
    """Classify the handwritten digits that come with the package."""
    from ..cli.display import placement
    from .digits import classify, show

    import_modules(modules)
    outcome = classify(providers_of(provider, option))
    if as_json:
        print_json(outcome.plain())
        return
    out = console()
    show(outcome, out, count)
    out.print()
    out.print(placement(outcome.report, False))
