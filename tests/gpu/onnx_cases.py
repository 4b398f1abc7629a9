"""ONNX's backend test data on an emulated GPU, by hand: `python tests/gpu/onnx_cases.py gfx942 '^test_conv'`.

In: a target, and which cases by a regular expression. Out: the cases that are not right, what share of their
nodes the GPU's provider computes, and for what reasons it leaves the others; a step of the host's counts as
left. All 2,036 take half an hour of a processor the first time, as each kernel is compiled.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))

from benchmarks.cases import KINDS, Case, cases, compare
from emulated_gpu import fenced, on_gpu

CPU = "CPUExecutionProvider"


class Count:
    """What was seen: cases right and not, nodes by whether the GPU computes them, reasons for others."""

    def __init__(self) -> None:
        self.right, self.wrong = 0, dict[str, str]()
        self.nodes, self.why = Counter[bool](), Counter[tuple[str, str]]()

    def run(self, case: Case, target: str) -> None:
        """Run one case."""
        try:
            session = on_gpu(case.model, target)
            for feeds, (_, expected) in zip(case.feeds(), case.data, strict=True):
                compare(expected, session.run(None, feeds), case.rtol, case.atol, values=not case.random)
            self._count(session)
        except Exception as error:
            self.wrong[case.name] = f"{type(error).__name__}: {' '.join(str(error).split())[:400]}"
        else:
            self.right += 1

    def _count(self, session: Any) -> None:
        told = session.explain()
        hosted = {node: why for part in told.parts for node, why in part.numpy.items()}
        for node in told.nodes:
            if node.op_type.startswith("Memcpy"):
                continue
            mine = node.provider != CPU and node.node not in hosted
            self.nodes[mine] += 1
            if not mine:
                reason = node.refusals[0].reason if node.refusals else hosted.get(node.node, "not asked")
                self.why[node.kind, reason] += 1

    def __str__(self) -> str:
        total = self.right + len(self.wrong)
        share = self.nodes[True] / max(1, self.nodes.total())
        rows = [f"{count:5} {kind}: {reason[:90]}" for (kind, reason), count in self.why.most_common(40)]
        rows += [f"WRONG {name}: {reason}" for name, reason in self.wrong.items()]
        return "\n".join([*rows, f"{self.right} of {total} right; the GPU computes {share:.1%} of "
                                 f"{self.nodes.total()} nodes"])


def main(target: str = "gfx1100", pattern: str = "") -> int:
    """Run the cases; 1 where one is not right."""
    count, start = Count(), time.monotonic()
    with fenced():
        for i, case in enumerate(cases(KINDS, pattern), 1):
            count.run(case, target)
            if not i % 100:
                print(f"{i} cases, {time.monotonic() - start:.0f} s", flush=True)
    print(count)
    return bool(count.wrong)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
