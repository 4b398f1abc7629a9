"""`python -m tests.fuzz --minutes 10`: random graphs, mutated models, single operators and networks, by
turns; with `--on gfx942` as an emulated GPU computes them.

Each finding is a line and a folder with the model, the feeds and the command that runs it again. A switch
such as `ORTHRUS_CHECK` holds for the workers as it is set in the environment.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).parent
TESTS = HERE.parent
FOLDERS = sorted(folder for folder in TESTS.iterdir() if folder.is_dir() and folder != HERE)
sys.path[:0] = map(str, (TESTS, *FOLDERS, TESTS.parent))


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzz", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=10.0, help="how long, in all")
    parser.add_argument("--seed", type=int, help="the first seed; by default the time's")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="processes")
    what = ("graphs", "mutations", "operators", "chains", "all")
    parser.add_argument("--what", choices=what, default="all")
    parser.add_argument("--on", choices=("gfx942", "gfx1100", "gfx1201", "interpreted"), default="",
                        help="the emulated GPU that is tried, where it is not the CPU")
    parser.add_argument("--folder", type=Path, help="for findings; a new one by default")
    parser.add_argument(
        "--llvm",
        type=int,
        choices=(0, 2),
        default=0,
        help="2: machine code as users get it, at a third of the pace",
    )
    parser.add_argument("--differs", action="store_true", help="show where only onnxruntime differs")
    parser.add_argument("--replay", type=Path, metavar="FOLDER", help="run a finding again")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    args = parser.parse_args()
    os.environ.setdefault(
        "ORTHRUS_CACHE_DIR", str(Path(tempfile.gettempdir(), f"orthrus-fuzz-{os.getuid()}"))
    )
    from fuzz import search

    if args.worker:
        search.main(args.worker)
    if args.replay:
        found = search.replay(args.replay, args.on)
        print(found or "all is well")
        return found is not None
    folder = args.folder or Path(tempfile.mkdtemp(prefix="orthrus-fuzz-"))
    folder.mkdir(parents=True, exist_ok=True)
    seed = args.seed if args.seed is not None else int(time.time()) * 1000
    kinds = search.WHAT if args.what == "all" else (args.what,)
    kinds = tuple(kind for kind in kinds if not args.on or kind != "mutations")
    print(f"seeds from {seed}, {args.jobs} processes, findings in {folder}", flush=True)
    failed, data = False, search.prepared(Path(os.environ["ORTHRUS_CACHE_DIR"]))
    for kind in kinds:
        until = time.time() + 60 * args.minutes / len(kinds)
        plan = search.Plan(kind, str(folder), until, args.jobs, data, quick=not args.llvm, on=args.on)
        tally = search.search(
            plan,
            seed,
            args.jobs,
            lambda line: print(line, flush=True) if args.differs or not line.startswith("differs") else None,
        )
        failed |= tally.failed
        pace = tally.tried[kind] / max(tally.seconds, 1e-9)
        print(
            f"{kind}: {tally.tried[kind]:,} in {tally.seconds:.0f} s, {pace:.1f} a second; "
            f"{dict(tally.kinds) or 'nothing found'}",
            flush=True,
        )
    return failed


if __name__ == "__main__":
    sys.exit(main())
