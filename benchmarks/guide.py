"""The tables of AMD's guide to ONNX Runtime on Radeon: ResNet-50 and BERT-base, for every provider here.

    python -m benchmarks.guide [--providers CPU,ROCM] [--models resnet50,bert_base] [--sizes 1,8]
                               [--threads 0] [--float16] [--rounds 5] [--json rows.json]

ResNet-50 at batches of 1 to 64 images of 224x224, BERT-base at 128 to 512 tokens times 1 and 8. Each provider
lives in a process of its own, and they take turns. Given per row: median milliseconds, the guide's beside
them (onnxruntime 1.16, ROCm 6.4, a Radeon RX 7900 XTX), and the most memory that the process and its device
took, in MiB. A provider that is not available here has no column; why is said first.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from rich.console import Console
from rich.table import Table

import orthrus as ort

from . import zoo
from .compare import measure

PROVIDERS = ("CPU", "Dnnl", "IREE", "CUDA", "ROCM", "MIGraphX")


@dataclass(frozen=True)
class Row:
    """One line of a table: the model, its size as the guide says it, the inputs' sizes, and the guide's
    milliseconds and MB by provider."""

    model: str
    size: str
    batch: int
    tokens: int
    milliseconds: dict[str, float]
    memory: dict[str, float]

    def feed(self) -> dict[str, np.ndarray]:
        """Seeded inputs."""
        rng = np.random.default_rng(0)
        if self.model == "resnet50":
            return {"input": rng.standard_normal((self.batch, 3, 224, 224)).astype(np.float32)}
        shape = self.batch, self.tokens
        return {"input_ids": rng.integers(0, 30000, shape), "attention_mask": np.ones(shape, np.int64)}


def _rows() -> list[Row]:
    images = {1: (42.3, 3.8, 3.2, 124, 876, 742), 8: (336.5, 12.4, 10.8, 356, 1248, 1054),
              16: (673.2, 23.7, 20.5, 612, 1624, 1368), 32: (1346.8, 46.2, 39.7, 1124, 2376, 1996),
              64: (2693.5, 91.8, 78.4, 2148, 3880, 3252)}
    texts = {(128, 1): (98.7, 12.4, 11.8), (128, 8): (789.6, 42.3, 38.7), (384, 1): (294.5, 28.7, 26.2),
             (384, 8): (2356.0, 124.6, 112.8), (512, 1): (392.8, 36.5, 33.1),
             (512, 8): (3142.4, 168.2, 151.7)}
    whom = ("CPU", "ROCM", "MIGraphX")
    return [*(Row("resnet50", str(batch), batch, 0, dict(zip(whom, given[:3], strict=True)),
                  dict(zip(whom, given[3:], strict=True))) for batch, given in images.items()),
            *(Row("bert_base", f"{tokens}x{batch}", batch, tokens, dict(zip(whom, given, strict=True)), {})
              for (tokens, batch), given in texts.items())]


ROWS = _rows()


def engine(provider: str, options: str = "") -> str:
    """How `compare` names a provider, with the CPU's behind it."""
    behind = "" if provider == "CPU" else "+CPUExecutionProvider"
    return f"orthrus:{provider}ExecutionProvider{options}{behind}"


def present(asked: Sequence[str]) -> tuple[list[str], list[str]]:
    """Those of the providers that work here, and a line for each that does not."""
    there = ort.get_available_providers()
    missing = [f"{name}ExecutionProvider is not available here; `orthrus doctor` says why"
               for name in asked if f"{name}ExecutionProvider" not in there]
    return [name for name in asked if f"{name}ExecutionProvider" in there], missing


def saved(model: str, folder: Path, float16: bool) -> Path:
    """The file of a model of the zoo, its weights filled in; in half precision where asked for."""
    path = folder / f"{model}{'_fp16' if float16 else ''}.onnx"
    if not path.exists():
        made = zoo.build(model)
        if float16:
            from orthrus.transformers.float16 import convert_float_to_float16

            made = convert_float_to_float16(made, keep_io_types=True)
        onnx.save(made, path)
    return path


def table(model: str, rows: Sequence[tuple[Row, dict[str, Any]]], providers: Sequence[str]) -> Table:
    """What was measured of one model, with the guide's figures beside."""
    made = Table(title=f"{model}: milliseconds (median), MiB; in brackets the guide's")
    made.add_column("size")
    for name in providers:
        made.add_column(name, justify="right")
    for row, found in rows:
        made.add_row(row.size, *(_cell(row, name, found[engine(name)]) for name in providers))
    return made


def _cell(row: Row, name: str, figures: Any) -> str:
    if figures.error:
        return str(figures.error)
    said = row.milliseconds.get(name)
    time = f"{figures.median:.2f}" + (f" ({said})" if said else "")
    memory = "" if math.isnan(figures.peak) else f", {figures.peak:.0f}"
    return time + memory + (f" ({row.memory[name]:.0f})" if name in row.memory and memory else "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--providers", default=",".join(PROVIDERS))
    parser.add_argument("--models", default="resnet50,bert_base")
    parser.add_argument("--sizes", help="of the guide's, such as 1,8,128x1; all of them if left out")
    parser.add_argument("--threads", type=int, default=0, help="of the CPU's providers; 0: all cores")
    parser.add_argument("--float16", action="store_true", help="models in half precision")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.5, help="of runs per provider and round")
    parser.add_argument("--json", help="file for all figures, written after each row")
    args = parser.parse_args()
    console, every = Console(), list[dict[str, Any]]()
    providers, missing = present(args.providers.split(","))
    for line in missing:
        console.print(line)
    with tempfile.TemporaryDirectory() as folder:
        for model in args.models.split(","):
            rows = [row for row in ROWS if row.model == model
                    and (not args.sizes or row.size in args.sizes.split(","))]
            path, made = saved(model, Path(folder), args.float16), list[tuple[Row, dict[str, Any]]]()
            for row in rows:
                found = measure([engine(name) for name in providers], str(path), row.feed(), args.threads,
                                args.rounds, args.seconds)
                made.append((row, found))
                every += [{"model": model, "size": row.size, "provider": name, **found[engine(name)].plain(),
                           "guide": row.milliseconds.get(name)} for name in providers]
                if args.json:
                    Path(f"{args.json}.part").write_text(json.dumps(every, indent=1))
                    os.replace(f"{args.json}.part", args.json)
            console.print(table(model, made, providers))


if __name__ == "__main__":
    main()
