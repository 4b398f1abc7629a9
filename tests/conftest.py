"""What holds for every test: sessions are made anew, kernels are cached in a folder of the suite's own, and
skips follow the table in `skips.py`."""

from __future__ import annotations

import gc
import os
from collections import Counter
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

from skips import NEEDS, known_reason, lacking

# The same examples in every run; `tests/fuzz` is for others.
hypothesis.settings.register_profile("same", derandomize=True, database=None, deadline=None)
hypothesis.settings.load_profile("same")

Reports = Generator[None, Any, Any]


@pytest.fixture(autouse=True)
def arithmetic(request: pytest.FixtureRequest) -> Iterator[None]:
    """Expected values of hostile numbers are computed without a word; of sessions `test_warnings` asks it."""
    with np.errstate(**({} if request.module.__name__ == "test_warnings" else {"all": "ignore"})):
        yield


@pytest.fixture(scope="module")
def quick_collection() -> Iterator[None]:
    """`gc.collect()` looks only at what a module's own tests have made: late in a run that is far less."""
    gc.freeze()
    yield
    gc.unfreeze()


def pytest_xdist_auto_num_workers() -> int:
    """Processes that share the files of tests; one that a test starts does all by itself."""
    from orthrus.processors import usable

    return 0 if "PYTEST_XDIST_WORKER" in os.environ else min(4, len(usable()))


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
