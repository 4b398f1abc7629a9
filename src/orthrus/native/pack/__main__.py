"""Write a pack: see the package."""

from __future__ import annotations

import argparse
import math
import time
from pathlib import Path

from .build import whole


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("machines", nargs="*", help="this machine by default, all for the common ones")
    parser.add_argument("--seconds", type=float, default=math.inf, help="how long it may take, about")
    args = parser.parse_args()
    start = time.monotonic()
    made, count = whole(args.machines, args.seconds)
    args.file.write_bytes(made)
    print(f"{len(made) >> 10} KiB of ready-made kernels, up to {count}, in {time.monotonic() - start:.0f} s")


if __name__ == "__main__":
    main()
