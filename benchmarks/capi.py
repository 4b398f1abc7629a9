"""The drop-in libonnxruntime beside onnxruntime's own, by the same program in C.

    python -m benchmarks.capi [MODEL ...] [--runs 2000] [--size 1] [--repeat 5]

Each library runs in processes of its own, in turn, on one thread; of each figure the best is shown. The first
start, which compiles, is not among them.
"""

from __future__ import annotations

import argparse
import subprocess
import tempfile
from importlib.util import find_spec
from pathlib import Path

import orthrus
from orthrus.native.dropin import build

DIGITS = Path(str(orthrus.__file__)).parent / "demo" / "digits.onnx"
FIGURES = ("create ms", "first run ms", "run us", "resident MB")


def libraries() -> dict[str, Path]:
    """Those there are, by the name of whose they are."""
    found = {"orthrus": build.built() / "lib" / build.SONAME}
    spec = find_spec("onnxruntime")
    for path in Path(spec.origin or "").parent.glob("capi/libonnxruntime.so.1*") if spec else ():
        found["onnxruntime"] = path
    return found


def program(folder: Path) -> Path:
    made = folder / "capi"
    subprocess.run(["cc", "-std=c11", "-O2", f"-I{build.built() / 'include'}",
                    Path(__file__).with_suffix(".c"), "-o", made, "-ldl"], check=True)
    return made


def measured(command: list[str]) -> list[float]:
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return [float(word) for word in done.stdout.split()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", type=Path, default=[DIGITS])
    parser.add_argument("--runs", type=int, default=2000)
    parser.add_argument("--size", type=int, default=1, help="of dimensions that a model leaves open")
    parser.add_argument("--repeat", type=int, default=5)
    given = parser.parse_args()
    there = libraries()
    print(f"{'model':24} {'library':12}" + "".join(f"{name:>14}" for name in FIGURES))
    with tempfile.TemporaryDirectory() as folder:
        client = program(Path(folder))
        for model in given.models:
            commands = {name: [str(client), str(path), str(model), str(given.runs), str(given.size)]
                        for name, path in there.items()}
            measured(commands["orthrus"])
            rounds = [{name: measured(command) for name, command in commands.items()}
                      for _ in range(given.repeat)]
            for name in there:
                best = [min(row[name][i] for row in rounds) for i in range(len(FIGURES))]
                print(f"{model.stem:24} {name:12}" + "".join(f"{figure:14.3f}" for figure in best))


if __name__ == "__main__":
    main()
