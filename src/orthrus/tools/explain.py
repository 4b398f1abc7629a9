"""`orthrus explain`: where each node runs, and why."""

from __future__ import annotations

from .arguments import (
    ImportOption,
    JsonOption,
    LevelOption,
    ModelArgument,
    NodesOption,
    ProviderOption,
    SettingOption,
    console,
    print_json,
    session_of,
)


def command(
    model: ModelArgument, provider: ProviderOption = None, option: SettingOption = None,
    modules: ImportOption = None, level: LevelOption = "all", nodes: NodesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Show where each node of a model runs and why, which passes changed the graph, and what each stage
    took."""
    from .display import placement, placement_data

    report = session_of(model, provider, option, modules, level, 0).explain()
    if as_json:
        print_json(placement_data(report))
    else:
        console().print(placement(report, nodes))
