"""What holds for every test: sessions are made anew, kernels are cached in a folder of the suite's own, and
skips follow the table in `skips.py`."""

from __future__ import annotations

import gc
import os
import sys
from collections import Counter, defaultdict
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
import pytest

# Tests change what sessions are made of, which a kept one would not show: it is left to those that ask.
os.environ.setdefault("ORTHRUS_CACHE_SESSIONS", "0")
# One from run to run, as names in it tell of the sources; `pytest --cache-clear` empties it.
os.environ["ORTHRUS_CACHE_DIR"] = str(Path(__file__).parents[1] / ".pytest_cache" / "d" / "kernels")

from schedule import COMPILED, EMULATED, LONG, LONGEST, SHORT, WHOLE, spread
from skips import NEEDS, known_reason, lacking

# Workers, and the processes that tests start by the hundred, would compile the same sources again and again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# The same examples in every run; `tests/fuzz` is for others.
hypothesis.settings.register_profile("same", derandomize=True, database=None, deadline=None)
hypothesis.settings.load_profile("same")

Reports = Generator[None, Any, Any]


@pytest.fixture(autouse=True)
def arithmetic(request: pytest.FixtureRequest) -> Iterator[None]:
    """Expected values of hostile numbers are computed without a word; of sessions `test_warnings` asks it."""
    with np.errstate(**({} if request.module.__name__ == "test_warnings" else {"all": "ignore"})):
        yield


def _shared() -> dict[str, object]:
    """What the tests of one process have in common, and no module may leave otherwise than it was."""
    from orthrus import get_available_providers

    ours = ("ORTHRUS_", "ORT_", "MIGRAPHX_")
    return {"the folder": os.getcwd(), "the providers": get_available_providers(),
            "the environment": {k: v for k, v in os.environ.items() if k.startswith(ours)}}


@pytest.fixture(scope="module", autouse=True)
def leaving_no_trace() -> Iterator[None]:
    """Files of tests run in any order: whatever one changes for all, it puts back."""
    before = _shared()
    yield
    after = _shared()
    assert after == before, {what: (before[what], now) for what, now in after.items() if now != before[what]}


@pytest.fixture(scope="module")
def quick_collection() -> None:
    """`gc.collect()` looks only at what a module's own tests have made: late in a run that is far less."""
    gc.freeze()


def pytest_xdist_auto_num_workers() -> int:
    """Processes that share the files of tests; one that a test starts does all by itself."""
    from orthrus.processors import usable

    return 0 if "PYTEST_XDIST_WORKER" in os.environ else min(4, len(usable()))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Reports:
    """What is collected stays: there is no garbage among it to look for, now or later."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def _half(item: pytest.Item) -> tuple[int, str] | None:
    """How many cases of an item's test its suite takes, and the mark of the others; None for all."""
    root, marks = Path(__file__).parent, {mark.name for mark in item.iter_markers()}
    if root not in item.path.parents or marks & {"thorough", "gpu", "nightly", "packages"}:
        return None
    folder = item.path.relative_to(root).parts[0]
    if marks & {"slow", "extra"}:
        return None if folder in WHOLE else (EMULATED if folder == "gpu" else LONG, "thorough")
    return (SHORT, "slow") if folder in COMPILED else None


def _spread(items: list[pytest.Item]) -> None:
    """Of a test with many cases a suite takes some, and leaves the others to the next longer one."""
    cases = defaultdict[Any, list[pytest.Item]](list)
    for item in items:
        if (half := _half(item)) is not None:
            cases[item.path, item.name.partition("[")[0], half].append(item)
    for (_, _, (most, mark)), each in cases.items():
        taken = spread(len(each), most)
        for at, item in enumerate(each):
            if at not in taken:
                item.add_marker(mark)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files that take long come first, so that no worker is left with one at the end."""
    _spread(items)
    place = {f"test_{name}.py": place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: place.get(item.path.name, len(place)))


def pytest_itemcollected(item: pytest.Item) -> None:
    for name in [name for mark in item.iter_markers("needs") for name in mark.args]:
        if NEEDS[name].extra:
            item.add_marker("extra")
        if reason := lacking(name):
            item.add_marker(pytest.mark.skip(reason=reason), append=False)


def _reason(report: Any) -> str:
    """Why a test or a module was skipped."""
    return str(report.longrepr[2]).removeprefix("Skipped: ")


def _judged(report: Any) -> Any:
    """The report, failed where it is a skip for a reason that the table does not have."""
    if report.skipped and known_reason(_reason(report)) is None:
        report.longrepr = f"skipped for a reason that tests/support/skips.py does not have: {_reason(report)}"
        report.outcome = "failed"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Reports:
    return _judged((yield))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Reports:
    return _judged((yield))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    counts = Counter(known_reason(_reason(report)) for report in terminalreporter.stats.get("skipped", ()))
    if counts:
        terminalreporter.section("skipped, by reason")
    for reason, count in counts.most_common():
        terminalreporter.write_line(f"{count:5}  {reason}")
