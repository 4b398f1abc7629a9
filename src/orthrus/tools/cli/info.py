"""`orthrus info`: what a model file holds, without making a session."""

from __future__ import annotations

from .arguments import JsonOption, ModelArgument, console, print_json


def command(model: ModelArgument, as_json: JsonOption = False) -> None:
    """Show a model's inputs, outputs, opsets, operators and size, without making a session."""
    from .describe import describe
    from .display import shape_text, size_text, table

    found = describe(str(model))
    if as_json:
        print_json(found.plain())
        return
    out = console()
    opsets = ", ".join(f"{domain} {version}" for domain, version in found.opsets.items())
    types = ", ".join(f"{count:,} {name}" for name, count in found.parameter_types.items())
    facts = [
        ("file", f"{found.path} ({size_text(found.file_bytes)})"),
        ("IR version", found.ir_version),
        ("opsets", opsets),
        ("producer", found.producer),
        ("domain", found.domain),
        ("model version", found.model_version or ""),
        ("description", " ".join(found.doc.split())[:500]),
        ("parameters", f"{found.parameters:,} ({size_text(found.parameter_bytes)})"),
        ("of them", types if len(found.parameter_types) > 1 else ""),
        ("nodes", f"{found.nodes:,}"),
        ("functions", ", ".join(found.functions)),
        ("external data", ", ".join(found.external_files)),
    ]
    out.print(table("", ("", ""), [fact for fact in facts if fact[1]]))
    for title, values in (("Inputs", found.inputs), ("Outputs", found.outputs)):
        out.print(table(f"\n{title}", ("name", "type", "shape"), [
            (name, kind, shape_text(shape)) for name, kind, shape in values]))
    out.print(table("\nOperators", ("operator", "nodes"), list(found.operators.items()), right=(1,)))
    if found.metadata:
        rows = [(k, v if len(v) <= 200 else f"{v[:197]}...") for k, v in found.metadata.items()]
        out.print(table("\nMetadata", ("key", "value"), rows))
