"""AMD machine code carried out on the CPU, for tests: see `machine`. AMD's tables of instructions make it;
what imports it is skipped where they are not."""

import sys

import pytest
from skips import NEEDS

_DEPTH = sys.getrecursionlimit()
for _module in ("tinygrad", "msgpack"):
    pytest.importorskip(_module, reason=NEEDS["AMD tables"].reason)
# the package raises it for the whole process
sys.setrecursionlimit(_DEPTH)
