"""What a device refuses is a typed error, and nothing stays behind it: memory goes back at once, not when
somebody looks for garbage."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest

from orthrus.errors import Fail
from orthrus.kernels.streams import Stream, answered


class Broken:
    """A device that takes no call."""

    def synchronize(self, handle: Any) -> None:
        raise RuntimeError("no")


@pytest.mark.parametrize("way", (lambda device: answered(device, lambda: device.synchronize(0)),
                                 lambda device: Stream(device, 1, foreign=True).synchronize()))
def test_an_error_keeps_nothing(way: Any) -> None:
    device: Any = Broken()
    gone = weakref.ref(device)
    collecting = gc.isenabled()
    gc.disable()
    try:
        try:
            way(device)
        except Fail as error:
            assert "no" in str(error)
        else:
            raise AssertionError("it was taken")
        del device
        assert gone() is None
    finally:
        if collecting:
            gc.enable()
