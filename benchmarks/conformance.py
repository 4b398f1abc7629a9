"""Run an engine over the ONNX package's own backend test data and count what passes.

    python -m benchmarks.conformance                           all 2,036 cases through Orthrus
    python -m benchmarks.conformance --engine onnxruntime      the same through another engine
    python -m benchmarks.conformance --providers DnnlExecutionProvider,CPUExecutionProvider
    python -m benchmarks.conformance --filter attention -v     with every failure's reason

An engine is `orthrus`, `onnxruntime`, `openvino`, `reference`, or any module with onnxruntime's Python API.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from .cases import KINDS, Case, cases, compare
from .engines import Worker

STATUSES = ("pass", "wrong", "error", "crash", "timeout")


@dataclass(frozen=True)
class Result:
    """One case's outcome: a status, and the reason where it is not "pass". `computed`: the providers that
    computed a node, where the engine says so."""

    name: str
    kind: str
    status: str
    reason: str
    load: float
    run: float
    computed: tuple[str, ...] = ()


def check(case: Case, worker: Worker, draws: bool = True) -> Result:
    """Run one case. Without `draws`, cases of random values are held to types and shapes only."""
    reply = worker.run(case.model.SerializeToString(), case.feeds())
    status, reason = reply.status, reply.reason
    if status == "ok":
        try:
            for (_, wanted), got in zip(case.data, reply.outputs, strict=True):
                compare(wanted, got, case.rtol, case.atol, values=draws or not case.random)
            status = "pass"
        except AssertionError as error:
            status, reason = "wrong", str(error)
    return Result(case.name, case.kind, status, reason, reply.load, reply.run, reply.computed)


def sweep(found: Sequence[Case], worker: Worker,
          seen: Callable[[Result], None] = lambda _: None) -> list[Result]:
    """Every case's result, `seen` told of each as it comes."""
    results = []
    for case in found:
        results.append(check(case, worker))
        seen(results[-1])
    return results


def table(results: Sequence[Result]) -> str:
    """Counts by kind, in Markdown."""
    lines = ["| kind | cases | " + " | ".join(STATUSES) + " | passed |", "|---" * (len(STATUSES) + 3) + "|"]
    for kind in (*KINDS, "all"):
        counts = Counter(r.status for r in results if kind in (r.kind, "all"))
        if total := sum(counts.values()):
            cells = " | ".join(str(counts[s]) for s in STATUSES)
            lines.append(f"| {kind} | {total} | {cells} | {counts['pass'] / total:.1%} |")
    return "\n".join(lines)


def share(results: Sequence[Result], provider: str) -> str:
    """In how many cases `provider` computed a node, and in how many of those the case passed."""
    ran = [r for r in results if provider in r.computed]
    passed = sum(r.status == "pass" for r in ran)
    return (f"{provider} computed a node in {len(ran)} of {len(results)} cases "
            f"({len(ran) / max(len(results), 1):.1%}); {passed} of these pass")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", default="orthrus")
    parser.add_argument("--providers", default="CPUExecutionProvider", help="comma separated")
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--filter", default="", help="regular expression on case names")
    parser.add_argument("--timeout", type=float, default=30.0, help="seconds per case")
    parser.add_argument("--json", type=Path, help="write every result here")
    parser.add_argument("-v", "--verbose", action="store_true",
                        help="print what does not pass, with its reason")
    args = parser.parse_args()

    def seen(result: Result) -> None:
        if args.verbose and result.status != "pass":
            print(f"{result.status:8}{result.name}: {result.reason}", flush=True)

    found = cases(args.kinds.split(","), args.filter)
    start = time.perf_counter()
    with Worker(args.engine, args.providers.split(","), args.timeout) as worker:
        results = sweep(found, worker, seen)
        version = worker.version
    print(f"{args.engine} {version}, {time.perf_counter() - start:.0f} s\n\n{table(results)}")
    for provider in args.providers.split(","):
        if any(r.computed for r in results) and provider != "CPUExecutionProvider":
            print("\n" + share(results, provider))
    if args.json:
        report = {"engine": args.engine, "version": version, "results": [asdict(r) for r in results]}
        args.json.write_text(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
