"""Models compiled ahead of time against Python sessions: a call, a run, creation, memory.

    python -m benchmarks.ahead [--models digits,mobilenetv2,...] [--rounds N] [--seconds S] [--peers]

Given are, in one process and taking turns, the median microseconds of a run in C and in a session, both on
one thread, and their ratio; for digits a call of `digits_infer`; and of a program that runs once, the
milliseconds to open the model and make a context, and its resident megabytes. `--peers`: onnxruntime as well,
where it is installed.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import re
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx

import orthrus as ort
from orthrus.demo import MODEL
from orthrus.native.ahead import emit

from . import zoo

PROBE = r"""
#include <stdio.h>
#include <string.h>
#include <time.h>
#include "NAME.h"
static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + 1e-6 * (double)t.tv_nsec;
}
static long resident(void) {
    char line[256];
    long kb = 0;
    FILE *file = fopen("/proc/self/status", "r");
    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "VmRSS: %ld", &kb) == 1) break;
    if (file) fclose(file);
    return kb;
}
int main(void) {
    static const void *inputs[] = {INPUTS};
    static void *outputs[] = {OUTPUTS};
    orthrus_options options = ORTHRUS_OPTIONS;
    orthrus_model *model;
    orthrus_context *context;
    options.threads = 1;
    double begin = now();
    if (NAME_open(NULL, &options, &model) || NAME_create(model, &options, &context)) return 1;
    double made = now() - begin;
    if (NAME_run(context, inputs, outputs)) return 2;
    printf("%.3f %ld\n", made, resident());
    return 0;
}
"""
"""Opens a model, runs it once on zeros, and says how long opening took and what is resident then."""


class _Options(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("threads", ctypes.c_int), ("huge_pages", ctypes.c_int),
                ("more", ctypes.c_void_p * 3)]


@contextlib.contextmanager
def runner(library: Path, name: str, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]
           ) -> Iterator[Callable[[int], float]]:
    """What runs the model in C so many times, and says how many seconds one took."""
    loaded = ctypes.CDLL(str(library))
    timed = loaded.timed_runs
    timed.restype = ctypes.c_double
    model, context = ctypes.c_void_p(), ctypes.c_void_p()
    options = _Options(ctypes.sizeof(_Options), 1)
    for function, *given in ((f"{name}_open", None, ctypes.byref(options), ctypes.byref(model)),
                             (f"{name}_create", model, ctypes.byref(options), ctypes.byref(context))):
        if getattr(loaded, function)(*given):
            raise RuntimeError(f"{function} failed")
    addresses = [(ctypes.c_void_p * len(arrays))(*(a.ctypes.data for a in arrays))
                 for arrays in (inputs, outputs)]
    yield lambda count: timed(context, *addresses, count)


TIMED = r"""
#include <time.h>
#include "NAME.h"
__attribute__((visibility("default"))) double timed_runs(orthrus_context *context, const void *const *inputs,
                                                         void *const *outputs, int count) {
    struct timespec a, b;
    clock_gettime(CLOCK_MONOTONIC, &a);
    for (int i = 0; i < count; i++) CALL;
    clock_gettime(CLOCK_MONOTONIC, &b);
    return ((double)(b.tv_sec - a.tv_sec) + 1e-9 * (double)(b.tv_nsec - a.tv_nsec)) / count;
}
"""


def built(folder: Path, name: str, call: str = "") -> Path:
    """A shared library with the model and a function that times runs of it."""
    text = TIMED.replace("CALL", call or "NAME_run(context, inputs, outputs)").replace("NAME", name)
    (folder / "timed.c").write_text(text)
    library = folder / f"timed{'_call' if call else ''}.so"
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", "timed.c", "-Iinclude", "-Wl,--whole-archive",
                    f"lib/lib{name}.a", "-Wl,--no-whole-archive", "-pthread", "-o", library.name], cwd=folder,
                   check=True)
    return library


def probe(folder: Path, name: str, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]
          ) -> tuple[float, float]:
    """Milliseconds to open, resident megabytes after a run: the medians of several processes."""
    rooms = [f"static char {kind}{i}[{max(a.nbytes, 1)}] __attribute__((aligned(64)));" for kind, arrays in
             (("in", inputs), ("out", outputs)) for i, a in enumerate(arrays)]
    text = PROBE.replace("INPUTS", ", ".join(f"in{i}" for i in range(len(inputs))))
    text = text.replace("OUTPUTS", ", ".join(f"out{i}" for i in range(len(outputs)))).replace("NAME", name)
    (folder / "probe.c").write_text(text.replace("int main", "\n".join(rooms) + "\nint main"))
    subprocess.run(["cc", "-O2", "probe.c", "-Iinclude", f"lib/lib{name}.a", "-pthread", "-o", "probe"],
                   cwd=folder, check=True)
    rows = [subprocess.run(["./probe"], cwd=folder, capture_output=True, text=True, check=True).stdout.split()
            for _ in range(7)]
    return statistics.median(float(r[0]) for r in rows), statistics.median(int(r[1]) for r in rows) / 1e3


def session_of(module: Any, model: str) -> Any:
    options = module.SessionOptions()
    options.intra_op_num_threads = 1
    return module.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def timed(session: Any, feeds: Mapping[str, np.ndarray], count: int) -> float:
    begin = time.perf_counter()
    for _ in range(count):
        session.run(None, feeds)
    return (time.perf_counter() - begin) / count


def measure(name: str, model: str, feeds: Mapping[str, np.ndarray], args: argparse.Namespace, folder: Path
            ) -> None:
    session = session_of(ort, model)
    sizes = {d: [n] for i in session.get_inputs() for d, n in zip(i.shape, feeds[i.name].shape, strict=True)
             if isinstance(d, str)}
    emit(model, "library", name, folder, sizes, force=True)
    wanted = session.run(None, dict(feeds))
    inputs = [np.ascontiguousarray(feeds[i.name]) for i in session.get_inputs()]
    outputs = [np.empty_like(w) for w in wanted]
    engines: dict[str, Callable[[int], float]] = {"session": lambda n: timed(session, feeds, n)}
    if args.peers:
        import onnxruntime

        peer = session_of(onnxruntime, model)
        engines["onnxruntime"] = lambda n: timed(peer, feeds, n)
    with runner(built(folder, name), name, inputs, outputs) as run:
        engines["C"] = run
        run(3)
        assert all(a.tobytes() == np.asarray(b).tobytes() for a, b in zip(outputs, wanted, strict=True)), name
        if name == "digits":
            call = "digits_infer(inputs[0], outputs[0], outputs[1])"
            with runner(built(folder, name, call), name, inputs, outputs) as one:
                engines["one call"] = one
                report(name, engines, args)
        else:
            report(name, engines, args)
    made, resident = probe(folder, name, inputs, outputs)
    print(f"{'':16} created in {made:.2f} ms, {resident:.1f} MB resident", flush=True)


def report(name: str, engines: Mapping[str, Callable[[int], float]], args: argparse.Namespace) -> None:
    """Engines take turns; of each the median of its rounds."""
    count = {key: max(1, int(args.seconds / each(200 if each(2) < 1e-3 else 1)))
             for key, each in engines.items()}
    rows: dict[str, list[float]] = {key: [] for key in engines}
    for _ in range(args.rounds):
        for key, each in engines.items():
            rows[key].append(each(count[key]))
    found = {key: statistics.median(row) for key, row in rows.items()}
    best = {key: min(row) for key, row in rows.items()}
    cells = "  ".join(f"{key} {1e6 * value:10.2f} µs (best {1e6 * best[key]:.2f})"
                      for key, value in found.items())
    print(f"{re.sub('_', ' ', name):16} {cells}  C/session {found['C'] / found['session']:.3f} "
          f"(best {best['C'] / best['session']:.3f})", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(["digits", *zoo.cases()]))
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--seconds", type=float, default=0.05, help="of one round of one engine")
    parser.add_argument("--peers", action="store_true", help="measure onnxruntime as well")
    args = parser.parse_args()
    for name in args.models.split(","):
        with tempfile.TemporaryDirectory() as work:
            folder = Path(work)
            if name == "digits":
                measure(name, str(MODEL), {"image": np.ones((1, 1, 8, 8), np.float32)}, args, folder)
                continue
            path = folder / f"{name}.onnx"
            onnx.save(zoo.build(name), path)
            measure(name, str(path), zoo.feeds(name), args, folder)


if __name__ == "__main__":
    main()
