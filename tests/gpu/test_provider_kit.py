"""The kit for providers' authors on ROCm's provider, with an emulated GPU: a few operators here; all of them
by hand, in an hour: `python tests/gpu/test_provider_kit.py`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from orthrus.providers.gpu import device as devices
from orthrus.providers.rocm import ROCMExecutionProvider
from orthrus.testing import check_provider, provider_tests

pytestmark = [pytest.mark.needs("AMD tables", "Triton"), pytest.mark.slow]
OPERATORS = ("Add", "Softmax", "MatMul", "Gather")


class Emulated:
    """In the place of a `Finding`: a driver of one emulated GPU."""

    def __init__(self) -> None:
        from gfx.driver import EmulatedDriver

        driver = EmulatedDriver("gfx1100")
        self.driver = self.made = lambda: driver


@pytest.fixture(autouse=True, scope="module")
def emulated() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ROCMExecutionProvider, "finding", Emulated())
        patch.setattr(devices, "_shared", {})
        yield


test_the_kit = provider_tests(ROCMExecutionProvider, operators=OPERATORS, types=("float", "float16"))


def main(*operators: str) -> int:
    """All checks over all operators, or those that are named; what is seen as it comes."""
    ROCMExecutionProvider.finding = Emulated()  # type: ignore[assignment]

    def seen(outcome: Any) -> None:
        print(f"{outcome.seconds:7.1f} s {outcome}", flush=True)
    report = check_provider(ROCMExecutionProvider, operators=operators or None, seen=seen)
    print(report.summary)
    return not report.ok


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
