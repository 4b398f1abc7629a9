"""Estimated speed on SpacemiT's K1 and K3 beside what SpacemiT publishes for its own runtime.

    python -m benchmarks.spacemit [--models resnet18,...] [--precisions float16,int8]
        [--targets spacemit-k1,...] [--keep FILE.json] [--document docs/spacemit_estimate.md]

No board takes part: the figures are `orthrus estimate`'s, from the code generated for each target. `--keep`
adds what is estimated to a file, and shows all that is in it; `--document` writes the tables into a document,
between its two marks.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from orthrus.tools.cli.estimate import Planned

from .spacemit_models import MODELS, build

CORES = {"spacemit-k1": (1, 2, 4), "spacemit-k3": (1, 2, 4, 8)}
TITLES = {"spacemit-k1": "K1", "spacemit-k3": "K3, its A100 cores"}
PUBLISHED: dict[tuple[str, str, str], tuple[float, ...]] = {
    ("resnet18", "int8", "spacemit-k1"): (40.68, 22.15, 12.99),
    ("resnet18", "int8", "spacemit-k3"): (8.00, 4.74, 2.90, 2.07),
    ("resnet50", "int8", "spacemit-k1"): (95.36, 52.89, 32.29),
    ("resnet50", "int8", "spacemit-k3"): (21.00, 12.21, 7.72, 5.47),
    ("resnet50", "float16", "spacemit-k1"): (674.48, 348.92, 213.96),
    ("resnet50", "float16", "spacemit-k3"): (37.64, 21.95, 14.89, 11.36),
    ("mobilenet_v2", "int8", "spacemit-k1"): (28.83, 17.86, 11.81),
    ("mobilenet_v2", "int8", "spacemit-k3"): (17.69, 9.92, 5.22, 3.26),
    ("vit_b_16", "int8", "spacemit-k1"): (506.60, 328.01, 167.38),
    ("vit_b_16", "int8", "spacemit-k3"): (100.90, 56.64, 35.19, 23.76),
    ("vit_b_16", "float16", "spacemit-k1"): (2478.26, 1398.33, 765.65),
    ("vit_b_16", "float16", "spacemit-k3"): (138.46, 86.37, 62.11, 48.75),
    ("yolov8n", "int8", "spacemit-k1"): (233.76, 123.09, 73.74),
    ("yolov8n", "int8", "spacemit-k3"): (41.41, 23.08, 13.85, 9.51)}
"""Milliseconds by number of cores in SpacemiT's ModelZoo (its documentation, runtime 2.0.6, 2026-07-27)."""
VARIED = ("clock", "serial", "dram")
BEGIN, END = "<!-- estimates -->", "<!-- end of estimates -->"


def measured(model: bytes, target: str) -> dict[str, Any]:
    """Milliseconds on each number of cores, and on all of them under other assumptions; what the time on one
    core goes to; and which kernels it is spent in."""
    begin = time.perf_counter()
    counts = CORES[target]
    planned = Planned(model, target, counts[-1])
    every = [planned.estimate(cores) for cores in counts]
    bounds: dict[str, float] = {}
    kernels: dict[str, float] = {}
    for node in every[0].nodes:
        bounds[node.bound] = bounds.get(node.bound, 0.0) + node.milliseconds
        kernels[node.kernel] = kernels.get(node.kernel, 0.0) + node.milliseconds
    most = sorted(kernels, key=lambda name: -kernels[name])[:4]
    return {"ms": [e.milliseconds for e in every], "host": every[0].host, "bounds": dict(bounds),
            "kernels": {name: kernels[name] for name in most},
            "varied": {v: planned.estimate(variation=v).milliseconds for v in VARIED},
            "seconds": time.perf_counter() - begin}


def tables(found: dict[str, dict[str, Any]]) -> str:
    """Markdown: a table for each target, and one of what the time goes to."""
    parts = []
    for target, counts in CORES.items():
        heads = [f"{n} core{'s' * (n > 1)}" for n in counts]
        rows = []
        for key, entry in found.items():
            name, precision, where = key.split("/")
            if where != target:
                continue
            known = PUBLISHED.get((name, precision, target))
            cells = [f"{ms:.1f}" + (f" / {known[i]:.1f} = {ms / known[i]:.1f}" if known else "")
                     for i, ms in enumerate(entry["ms"])]
            spread = [entry["ms"][-1], *entry["varied"].values()]
            rows.append((name, precision, *cells, f"{min(spread):.1f} to {max(spread):.1f}"))
        title = f"{TITLES[target]}: milliseconds at batch 1, estimate / published = ratio"
        parts.append(_table(title, ("model", "precision", *heads, f"range on {counts[-1]} cores"), rows))
    rows = []
    for key, entry in found.items():
        total = sum(entry["bounds"].values())
        shares = ", ".join(f"{bound} {100 * ms / total:.0f} %" for bound, ms in
                           sorted(entry["bounds"].items(), key=lambda kv: -kv[1]) if ms > 0.02 * total)
        kernels = ", ".join(f"{name} {100 * ms / total:.0f} %" for name, ms in entry["kernels"].items()
                            if ms > 0.05 * total)
        rows.append((*key.split("/"), shares, kernels))
    parts.append(_table("What the time on one core goes to",
                        ("model", "precision", "target", "waits for", "kernels"), rows))
    return "\n\n".join(parts)


def _table(title: str, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [f"**{title}**", "", "| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


def main(args: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--precisions", default="float16,int8")
    parser.add_argument("--targets", default=",".join(CORES))
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--document", type=Path)
    given = parser.parse_args(args)
    found: dict[str, dict[str, Any]] = {}
    if given.keep and given.keep.exists():
        found = json.loads(given.keep.read_text())
    for name in filter(None, given.models.split(",")):
        for precision in given.precisions.split(","):
            model = build(name, precision).SerializeToString()
            for target in given.targets.split(","):
                key = f"{name}/{precision}/{target}"
                entry = found[key] = measured(model, target)
                print(f"{key}: {entry['ms']} in {entry['seconds']:.0f} s", file=sys.stderr)
                if given.keep:
                    given.keep.write_text(json.dumps(found, indent=1))
    order = [f"{n}/{p}/{t}" for n in MODELS for p in ("float16", "int8") for t in CORES]
    found = {key: found[key] for key in order if key in found}
    text = tables(found)
    if given.document:
        before, rest = given.document.read_text().split(BEGIN)
        given.document.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{rest.split(END)[1]}")
    else:
        print(text)


if __name__ == "__main__":
    main()
