"""How long the first session ever takes, and the later ones, engine against engine in fresh processes.

    python -m benchmarks.first_session [--folder MODELS] [--models NAME,...] [--threads 1] [--rounds 2]
                                       [--clock wall]

The models are the zoo's, and those under `--folder`, as `stored` takes them. Measured are a session and its
first run, without the imports: with an empty cache (`first`), then in another process with what that one left
behind (`second`), and once more (`third`). The engines take turns; the least of all rounds counts. `--clock
processor` counts the processor's time instead of the wall's, that of processes that were started too: it says
more beside other work. Given are milliseconds, the ratios to the other engine's time, their geometric mean
and the worst.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from . import stored, zoo

KINDS = ("first", "second", "third")
CLOCKS = ("wall", "processor")
PROGRAM = """
import importlib, json, resource, sys, time
import numpy as np
ort = importlib.import_module(sys.argv[1])
ort.set_default_logger_severity(4)
feeds = dict(np.load(sys.argv[3], allow_pickle=True))
options = ort.SessionOptions()
options.intra_op_num_threads = int(sys.argv[4])
def processor():
    return sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
now = processor if sys.argv[5] == "processor" else time.perf_counter
start = now()
session = ort.InferenceSession(sys.argv[2], options, providers=["CPUExecutionProvider"])
made = now()
session.run(None, feeds)
print(json.dumps([made - start, now() - made]))
"""


def once(engine: str, model: Path, feeds: Path, threads: int, cache: str, clock: str = "wall"
         ) -> tuple[float, float]:
    """Milliseconds of making the session and of its first run, in a fresh process. Raises CalledProcessError
    where the engine does not run the model."""
    surroundings = {**os.environ, "ORTHRUS_CACHE_DIR": cache}
    surroundings.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed package has its byte code
    done = subprocess.run([sys.executable, "-c", PROGRAM, engine, str(model), str(feeds), str(threads),
                           clock], check=True, capture_output=True, text=True, env=surroundings)
    made, ran = json.loads(done.stdout.splitlines()[-1])
    return 1e3 * made, 1e3 * ran


def measure(model: Path, feeds: Path, threads: int, rounds: int, clock: str = "wall"
            ) -> dict[str, tuple[float, float]]:
    """The least times of onnxruntime's first session, called "peer", and of this package's by `KINDS`."""
    found: dict[str, list[tuple[float, float]]] = {kind: [] for kind in ("peer", *KINDS)}
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as cache:
            for kind in KINDS:
                found["peer"].append(once("onnxruntime", model, feeds, threads, cache, clock))
                found[kind].append(once("orthrus", model, feeds, threads, cache, clock))
    return {kind: min(times, key=sum) for kind, times in found.items()}


def models(folder: str, work: Path) -> dict[str, Path]:
    """Name -> the model's file."""
    made = {name: work / f"{name}.onnx" for name in zoo.cases()}
    return made | (stored.models(folder) if folder else {})


def put(name: str, model: Path, work: Path) -> Path:
    """Make a model of the zoo, and inputs as a session is fed with them, whose file is returned."""
    if model.parent == work:
        model.write_bytes(zoo.build(name).SerializeToString())
        given = zoo.feeds(name)
    else:
        given = stored.feeds(model)
    feeds = work / f"{name}.npz"
    np.savez(feeds, **given)
    return feeds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", default=os.environ.get("TEST_MODELS", ""))
    parser.add_argument("--models", default="")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    args = parser.parse_args()
    ratios: dict[str, list[float]] = {kind: [] for kind in KINDS}
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        warmed = False
        for name, model in models(args.folder, work).items():
            if args.models and name not in args.models.split(","):
                continue
            feeds = put(name, model, work)
            if not warmed:
                warmed = bool(measure(model, feeds, args.threads, 1))
            times = measure(model, feeds, args.threads, args.rounds, args.clock)
            if model.parent == work:
                model.unlink()
            row = []
            for kind, (made, ran) in times.items():
                row.append(f"{made:7.0f} +{ran:6.0f} ms")
                if kind != "peer":
                    ratios[kind].append((made + ran) / sum(times["peer"]))
                    row[-1] += f" {ratios[kind][-1]:5.2f}"
            print(f"{name:24}", "  ".join(row), flush=True)
    for kind, each in ratios.items():
        print(f"{kind}: geometric mean {math.exp(np.mean(np.log(each))):.2f}, worst {max(each):.2f}")


if __name__ == "__main__":
    main()
