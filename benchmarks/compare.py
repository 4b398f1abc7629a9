"""Side-by-side latency of engines on the same models, in one run.

    python -m benchmarks.compare --engines onnxruntime,openvino,orthrus --models resnet50 --threads 1,2
    python -m benchmarks.compare --onnx model.onnx --engines onnxruntime,orthrus
    python -m benchmarks.compare --folder MODELS --engines onnxruntime,orthrus

Each engine lives in a process of its own and they take turns, round by round, so that a drifting machine and
a spinning thread pool cost every engine the same. Given per model and thread count: median and minimum of all
timed runs; the ratio of lower quartiles (above 1: faster than the first engine); session creation; the first
run; peak resident memory; and the largest difference of the outputs from the first engine's, relative to its
largest output. The last lines are geometric means of the ratios.

An engine is `onnxruntime`, `openvino`, or the name of any module with onnxruntime's Python API; a provider
list may follow after a colon: `orthrus:DnnlExecutionProvider+CPUExecutionProvider`, each with options:
`orthrus:CPUExecutionProvider?float32_precision=fast&use_arena=0`. `--orthrus-precision exact,fast` puts one
such engine for each value into the place of `orthrus`.
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import multiprocessing
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import numpy as np

_PROVIDER = "CPUExecutionProvider"
PAUSE = 0.05
"""Seconds between two engines' turns: the first one's threads stop spinning."""


@dataclass
class Figures:
    """One engine on one model: milliseconds and MiB; `error` where it does not run it."""

    error: str = ""
    create: float = math.nan
    first: float = math.nan
    median: float = math.nan
    minimum: float = math.nan
    quartile: float = math.nan
    ratio: float = math.nan
    peak: float = math.nan
    difference: float = math.nan
    runs: int = 0
    times: list[float] = field(default_factory=list, repr=False)
    outputs: list[np.ndarray] = field(default_factory=list, repr=False)

    def plain(self) -> dict[str, Any]:
        return {k: v for k, v in asdict(self).items() if k not in ("times", "outputs")}

    def __str__(self) -> str:
        if self.error:
            return self.error
        return (f"median {self.median:9.3f} ms  min {self.minimum:9.3f}  ratio {self.ratio:5.2f}  "
                f"create {self.create:8.1f}  first {self.first:8.1f}  peak {self.peak:6.0f} MiB  "
                f"diff {self.difference:.1e}")


def _open(engine: str, path: str, threads: int) -> Callable[[dict[str, Any]], list[Any]]:
    name, _, providers = engine.partition(":")
    if name == "openvino":
        import openvino

        hints = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_NUM_THREADS": threads,
                 "INFERENCE_PRECISION_HINT": "f32"}
        request = openvino.Core().compile_model(path, "CPU", hints).create_infer_request()
        shared = {"share_inputs": True, "share_outputs": True}
        return lambda feed: [np.array(v) for v in request.infer(feed, **shared).values()]
    runtime = importlib.import_module(name)
    options = runtime.SessionOptions()
    options.intra_op_num_threads = threads
    asked = providers.split("+") if providers else [_PROVIDER]
    session = runtime.InferenceSession(path, options, providers=[_with_options(each) for each in asked])
    return lambda feed: session.run(None, feed)


def _with_options(provider: str) -> tuple[str, dict[str, str]]:
    name, _, options = provider.partition("?")
    return name, dict(parse_qsl(options, strict_parsing=True)) if options else {}


def _by_precision(engines: Sequence[str], precisions: str | None) -> list[str]:
    """The engines, `orthrus` once for each of the `precisions`."""
    if precisions is None:
        return list(engines)
    return [made for engine in engines for made in (
        [f"orthrus:{_PROVIDER}?float32_precision={p}" for p in precisions.split(",")]
        if engine == "orthrus" else [engine])]


def _serve(pipe: Any, engine: str, path: str, threads: int, feed: dict[str, Any]) -> None:
    """One engine's process: says when it is ready, then times runs for as many seconds as it is sent."""
    try:
        start = time.perf_counter()
        run = _open(engine, path, threads)
        created = time.perf_counter()
        outputs = run(feed)
        first = time.perf_counter()
        run(feed)
        pipe.send(Figures(create=1e3 * (created - start), first=1e3 * (first - created),
                          outputs=[np.asarray(v) for v in outputs]))
    except Exception as error:
        pipe.send(Figures(error=f"{type(error).__name__}: {str(error).partition(chr(10))[0][:160]}"))
        return
    while (seconds := pipe.recv()) is not None:
        times, end = list[float](), time.perf_counter() + seconds
        while not times or time.perf_counter() < end:
            start = time.perf_counter()
            run(feed)
            times.append(1e3 * (time.perf_counter() - start))
        pipe.send(times)
    pipe.send(_peak())


def _peak() -> float:
    """The most resident memory this process has had, in MiB; nan where the system does not say."""
    try:
        text = Path("/proc/self/status").read_text()
        return int(text.partition("VmHWM:")[2].split()[0]) / 1024
    except (OSError, IndexError):
        return math.nan


def measure(engines: Sequence[str], path: str, feed: dict[str, Any], threads: int, rounds: int = 5,
            seconds: float = 0.6
            ) -> dict[str, Figures]:
    """Time every engine on one model, `seconds` each in each of `rounds` rounds."""
    context = multiprocessing.get_context("spawn")
    figures, live = dict[str, Figures](), dict[str, tuple[Any, Any]]()
    for engine in engines:
        pipe, far = context.Pipe()
        process = context.Process(target=_serve, args=(far, engine, path, threads, feed), daemon=True)
        process.start()
        far.close()
        try:
            figures[engine] = pipe.recv()
        except EOFError:
            process.join()
            figures[engine] = Figures(error=f"the process died with exit code {process.exitcode}")
        if not figures[engine].error:
            live[engine] = pipe, process
    for _ in range(rounds):
        for engine, (pipe, _process) in live.items():
            time.sleep(PAUSE)
            pipe.send(seconds)
            figures[engine].times += pipe.recv()
    for engine, (pipe, process) in live.items():
        pipe.send(None)
        figures[engine].peak = pipe.recv()
        process.join()
    _settle(figures, figures[engines[0]])
    return figures


def _settle(figures: dict[str, Figures], base: Figures) -> None:
    for each in figures.values():
        if each.times:
            times = np.array(each.times)
            each.median, each.minimum = float(np.median(times)), float(times.min())
            each.quartile, each.runs = float(np.quantile(times, 0.25)), len(times)
    for each in figures.values():
        if each.times and base.times:
            each.ratio = base.quartile / each.quartile
            each.difference = max(map(_difference, base.outputs, each.outputs), default=0.0)


def _difference(wanted: np.ndarray, got: np.ndarray) -> float:
    if wanted.shape != got.shape or wanted.dtype.kind != "f":
        return 0.0 if wanted.shape == got.shape and bool((wanted == got).all()) else math.inf
    if not wanted.size:
        return 0.0
    return float(np.abs(wanted.astype(float) - got.astype(float)).max() / (np.abs(wanted).max() or 1.0))


def means(report: dict[str, dict[str, Figures]], engines: Sequence[str], threads: Sequence[int]) -> list[str]:
    """A line per engine and thread count: the geometric mean of its ratios against the first engine."""
    lines = []
    for count in threads:
        rows = [row for key, row in report.items() if key.endswith(f"@{count}")]
        for engine in engines[1:]:
            ratios = [row[engine].ratio for row in rows if not math.isnan(row[engine].ratio)]
            if ratios:
                mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
                lines.append(f"{count} thread(s): {engine} against {engines[0]}: geometric mean {mean:.3f}, "
                             f"worst {min(ratios):.2f}, "
                             f"best {max(ratios):.2f}, {len(ratios)} of {len(rows)} models")
    return lines


def main() -> None:
    import onnx

    from . import stored, zoo

    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engines", default="onnxruntime,openvino,orthrus")
    parser.add_argument("--orthrus-precision", help="exact, fast or auto, or several, comma separated")
    parser.add_argument("--models", help="names in the zoo, comma separated; all of them if left out")
    parser.add_argument("--onnx", type=Path, action="append",
                        help="a model of your own; its inputs are generated")
    parser.add_argument("--folder", type=Path,
                        help="models of your own with inputs, as `stored` takes them; --models chooses")
    parser.add_argument("--models-dir", type=Path, help="where the zoo's models are written and kept")
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.6, help="of runs per engine and round")
    parser.add_argument("--json", type=Path, help="write all figures here")
    args = parser.parse_args()
    engines = _by_precision(args.engines.split(","), args.orthrus_precision)
    threads = [int(t) for t in args.threads.split(",")]
    folder = args.models_dir or Path(tempfile.mkdtemp())
    folder.mkdir(parents=True, exist_ok=True)
    work: list[tuple[str, Path, dict[str, Any]]] = []
    for path in args.onnx or ():
        work.append((path.stem, path, _generated(path)))
    chosen = args.models.split(",") if args.models else None
    for name, path in stored.models(args.folder).items() if args.folder else ():
        if chosen is None or name in chosen:
            work.append((name, path, stored.feeds(path)))
    if not args.folder and (chosen or not args.onnx):
        for name in chosen or zoo.cases():
            path = folder / f"{name}.onnx"
            if not path.exists():
                onnx.save(zoo.build(name), path)
            work.append((name, path, zoo.feeds(name)))
    report: dict[str, dict[str, Figures]] = {}
    for name, path, feed in work:
        for count in threads:
            found = measure(engines, str(path), feed, count, args.rounds, args.seconds)
            report[f"{name}@{count}"] = found
            for engine, figures in found.items():
                print(f"{name:24}{count}t  {engine:14} {figures}", flush=True)
            if args.json:
                plain = {key: {e: f.plain() for e, f in row.items()} for key, row in report.items()}
                args.json.write_text(json.dumps(plain, indent=1))
    print("\n".join(means(report, engines, threads)))


def _generated(path: Path) -> dict[str, Any]:
    from orthrus.tools.cli.describe import describe
    from orthrus.tools.cli.feeds import generated

    class Input:
        def __init__(self, name: str, type: str, shape: list[Any] | None) -> None:
            self.name, self.type, self.shape = name, type, shape

    return generated([Input(*found) for found in describe(str(path)).inputs], {}, 0)


if __name__ == "__main__":
    main()
