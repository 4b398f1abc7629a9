"""`python -m orthrus.transformers.profile_result_processor`: tables from a profile of this runtime's or of
onnxruntime's.

In: the events of a trace file. Out: lines of text: the nodes in their order, the expensive ones, sums by
operator and by provider. Times are whole microseconds; a node that the runtime fused others into stands for
all of them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ...records import dataclass
from ...shown import tell
from .arguments import parser

_RULE = "-" * 64
_KERNEL = "_kernel_time"
_FENCES = ("_fence_before", "_fence_after")


@dataclass
class _Sum:
    """Microseconds of calls: in the kernel and waiting around it."""

    provider: str = ""
    operator: str = ""
    calls: int = 0
    kernel: int = 0
    fence: int = 0
    records: int = 0

    @property
    def total(self) -> int:
        return self.kernel + self.fence

    def add(self, event: Mapping[str, Any], kernel: bool) -> None:
        self.records += 1
        if kernel:
            self.calls += 1
            self.kernel += int(event["dur"])
        else:
            self.fence += int(event["dur"])


def parse_arguments(argv: Sequence[str] | None = None) -> Any:
    """The command's flags."""
    return parser("Tables from a profile.", "input", "threshold", "provider", "kernel_time_only", "verbose",
                  input={"required": True}).parse_args(argv)


def load_profile_json(profile_file: str) -> list[dict[str, Any]]:
    """The events of a trace file. Raises ValueError for a file that is none."""
    tell(f"loading profile output {profile_file} ...")
    with open(profile_file, encoding="utf-8") as file:
        events = json.load(file)
    if not isinstance(events, list) or not all(isinstance(event, dict) for event in events):
        raise ValueError(f"{profile_file} is no profile: a list of events is expected")
    return events


def _nodes(events: Iterable[Mapping[str, Any]], kernel_only: bool = False
           ) -> Iterable[tuple[str, Mapping[str, Any], bool]]:
    """The nodes' events: the node's name, the event, whether it is the kernel's."""
    for event in events:
        if event.get("cat") != "Node" or "dur" not in event:
            continue
        name = str(event["name"])
        if name.endswith(_KERNEL):
            yield name.removesuffix(_KERNEL), event, True
        elif not kernel_only and name.endswith(_FENCES):
            yield name[:name.rindex("_fence_")], event, False


def _provider(event: Mapping[str, Any]) -> str:
    return str(event.get("args", {}).get("provider", "")).removesuffix("ExecutionProvider")


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole if whole else 0:5.2f}"


def _largest(sums: Mapping[Any, _Sum]) -> list[tuple[Any, _Sum]]:
    return sorted(sums.items(), key=lambda item: -item[1].total)


def parse_kernel_results(sess_time: Iterable[Mapping[str, Any]], threshold: float = 0) -> list[str]:
    """The kernels that a device reported: those that take at least `threshold` of the time of all."""
    sums: dict[tuple[str, str], _Sum] = {}
    for event in sess_time:
        if event.get("cat") == "Kernel" and "dur" in event:
            key = (str(event["name"]), str(event.get("args", {}).get("op_name", "")))
            sums.setdefault(key, _Sum()).add(event, kernel=True)
    if not sums:
        return ["No kernel record found!"]
    whole = sum(each.total for each in sums.values())
    rows = [f"{each.total:10d}\t{_share(each.total, whole)}\t{each.calls:5d}\t"
            f"{each.kernel / each.calls:8.1f}\t{operator}\t{name}"
            for (name, operator), each in _largest(sums) if each.total >= threshold * whole]
    return [f"\nTop expensive kernels with Time% >= {100 * threshold:.2f}:", _RULE,
            "Total(μs)\tTime%\tCalls\tAvg(μs)\tOperator\tKernel", *rows]


def parse_node_results(sess_time: Iterable[Mapping[str, Any]], kernel_time_only: bool = False,
                       threshold: float = 0) -> list[str]:
    """The nodes in the order of their first run, then those that take at least `threshold` of the time."""
    sums: dict[str, _Sum] = {}
    for name, event, kernel in _nodes(sess_time, kernel_time_only):
        each = sums.setdefault(name, _Sum())
        each.add(event, kernel)
        each.provider = _provider(event) or each.provider
    whole = sum(each.total for each in sums.values())
    lines = ["\nNodes in the original order:", _RULE,
             "Total(μs)\tTime%\tAcc %\tAvg(μs)\tCalls\tProvider\tNode"]
    before = 0
    for name, each in sums.items():
        before += each.total
        lines.append(f"{each.total:10d}\t{_share(each.total, whole)}\t{_share(before, whole)}\t"
                     f"{_measured(each)}\t{each.provider:8s}\t{name}")
    lines += [f"\nTop expensive nodes with Time% >= {100 * threshold:.2f}:", _RULE,
              "Total(μs)\tTime%\tAvg(μs)\tCalls\tProvider\tNode"]
    return lines + [f"{each.total:10d}\t{_share(each.total, whole)}\t{_measured(each)}\t{each.provider:8s}"
                    f"\t{name}" for name, each in _largest(sums) if each.total >= threshold * whole]


def _measured(each: _Sum) -> str:
    return f"{each.total / max(each.records, 1):8.1f}\t{each.records:5d}"


def group_node_results(sess_time: Iterable[Mapping[str, Any]]) -> list[str]:
    """Sums by operator, then by provider and operator, the largest first."""
    operators: dict[str, _Sum] = {}
    places: dict[tuple[str, str], _Sum] = {}
    for _, event, kernel in _nodes(sess_time):
        operator = str(event.get("args", {}).get("op_name", ""))
        if operator:
            operators.setdefault(operator, _Sum()).add(event, kernel)
        if operator and kernel:
            places.setdefault((_provider(event), operator), _Sum()).add(event, kernel)
    whole = sum(each.total for each in operators.values())
    kernels = sum(each.kernel for each in operators.values())
    lines = ["", "Grouped by operator", _RULE,
             "Total(μs)\tTime%\tKernel(μs)\tKernel%\tCalls\tAvgKernel(μs)\tFence(μs)\tOperator"]
    for operator, each in _largest(operators):
        lines.append(f"{each.total:10d}\t{_share(each.total, whole)}\t{each.kernel:11d}\t"
                     f"{_share(each.kernel, kernels)}\t{each.calls:5d}\t"
                     f"{each.kernel / max(each.calls, 1):14.1f}\t{each.fence:10d}\t{operator}")
    on: dict[str, int] = {}
    for (provider, _), each in places.items():
        on[provider] = on.get(provider, 0) + each.kernel
    lines += ["", "Grouped by provider + operator", _RULE,
              "Kernel(μs)\tProvider%\tCalls\tAvgKernel(μs)\tProvider\tOperator"]
    return lines + [f"{each.kernel:10d}\t{_share(each.kernel, on[provider]):>9s}\t{each.calls:5d}\t"
                    f"{each.kernel / each.calls:14.1f}\t{provider:8s}\t{operator}"
                    for (provider, operator), each in _largest(places)]


def process_results(profile_file: str, args: Any) -> list[str]:
    """All tables of a file; `args` has `threshold` and `kernel_time_only`."""
    events = load_profile_json(profile_file)
    return [*parse_kernel_results(events, args.threshold),
            *parse_node_results(events, args.kernel_time_only, args.threshold), *group_node_results(events)]


if __name__ == "__main__":
    given = parse_arguments()
    tell("\n".join(process_results(given.input, given)))
