"""A model on processes of one core each, against one such process.

    python -m benchmarks.replicas [--model resnet50] [--batch 64] [--processes 2] [--rounds 8]

Both take turns; given are the fastest and the middle run of each in milliseconds, their ratio, and the
processes' memory (Pss: pages that n processes share count as a part in n).
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import time
from pathlib import Path

import numpy as np

from orthrus.distributed import Replicas

from .zoo import build


def pss(pid: int | None) -> float:
    """Megabytes of a process."""
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return int(re.search(r"^Pss:\s+(\d+)", text, re.M)[1]) / 1024


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="resnet50")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=8)
    asked = parser.parse_args()
    path = build(asked.model).SerializeToString()
    rng = np.random.default_rng(0)
    with Replicas(path, devices=asked.processes) as several, Replicas(path, devices=["cpu"]) as one:
        os.sched_setaffinity(one.replicas[0].pid, {several.replicas[0].cores[0]})
        [name] = one.input_names
        feeds = {name: rng.standard_normal((asked.batch, 3, 224, 224), dtype=np.float32)}
        times: dict[str, list[float]] = {"one": [], "several": []}
        for turn in range(asked.rounds + 2):
            for label, replicas in (("one", one), ("several", several)):
                start = time.perf_counter()
                made = replicas.run(None, feeds)
                if turn > 1:
                    times[label].append(time.perf_counter() - start)
                if label == "one":
                    want = made
                else:
                    np.testing.assert_allclose(made[0], want[0], rtol=1e-3, atol=1e-4)
        for label, seconds in times.items():
            print(f"{label:8} fastest {1e3 * min(seconds):9.1f} ms, "
                  f"middle {1e3 * statistics.median(seconds):9.1f} ms")
        fastest, middle = (how(times["one"]) / how(times["several"]) for how in (min, statistics.median))
        print(f"ratio    fastest {fastest:.2f}, middle {middle:.2f}")
        print("Pss, MB:", *(f"{pss(r.pid):.0f}" for r in several.replicas), "; of one alone:",
              f"{pss(one.replicas[0].pid):.0f}")
        print(several.explain())


if __name__ == "__main__":
    main()
