"""Seeds tried in worker processes: a worker that dies or stands still is named by its seed and replaced.

In: what to try and for how long. Out: a `Tally`, and a folder for each finding, made small where it can be.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import itertools
import json
import mmap
import os
import pickle
import selectors
import signal
import struct
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx

WHAT = ("graphs", "mutations", "operators", "chains")
STILL = 60.0
"""Seconds after which a worker that does not go on is stopped."""
_EMULATED = 10
"""How many times as long what an emulator carries out may take."""
_EACH = 3
"""Findings of one signature that are written; the others are counted."""
_RESIDENT = 3 << 20
"""Kilobytes of a worker at which another takes its place: generated code is never unmapped."""
_BOARD = struct.Struct("<QQQ")
"""The seed, how many were tried, and whether onnxruntime is running."""


@dataclasses.dataclass
class Tally:
    """What was tried: how many seeds, findings by kind, and each finding's line."""

    tried: Counter[str] = dataclasses.field(default_factory=Counter)
    kinds: Counter[str] = dataclasses.field(default_factory=Counter)
    lines: list[str] = dataclasses.field(default_factory=list)
    seconds: float = 0.0

    @property
    def failed(self) -> bool:
        return any(n for kind, n in self.kinds.items() if kind != "differs")


@dataclasses.dataclass(frozen=True)
class Plan:
    """What workers do; passed to them as JSON."""

    what: str
    folder: str
    until: float
    step: int
    data: str = ""
    """A file that `prepared` wrote; without it ONNX's test data has no part in what is tried."""
    quick: bool = True
    most: int = 1 << 62
    """The last seed."""
    on: str = ""
    """The emulated GPU that is tried, one of AMD's targets or Triton's interpreter; the CPU without."""


# in a worker


def main(argument: str) -> None:
    """Try seeds until the time is over; one line of JSON per finding, and one at the end."""
    say = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    given = json.loads(argument)
    plan, first, board = Plan(**given["plan"]), given["first"], given["board"]
    if plan.quick:
        quickly()
    with open(board, "r+b") as file:
        shared = mmap.mmap(file.fileno(), _BOARD.size)
    run = trier(plan)
    judge = importlib.import_module("fuzz.judge")
    judge.asks = lambda elsewhere: shared.__setitem__(slice(16, 17), bytes([elsewhere]))
    count = 0
    for seed in itertools.count(first, plan.step):
        if time.time() > plan.until or seed > plan.most or (count % 64 == 63 and _large()):
            break
        shared[:] = _BOARD.pack(seed, count, 0)
        try:
            found = run(seed)
        except Exception:  # of the search itself
            text = traceback.format_exc()[-800:]
            found = {"kind": "search", "signature": "search", "text": text, "folder": ""}
        count += 1
        if found is not None:
            print(json.dumps({"seed": seed, **found}), file=say)
    over = time.time() > plan.until or seed > plan.most
    print(json.dumps({"next": None if over else seed, "count": count}), file=say)
    os._exit(0)


def quickly() -> None:
    """Have LLVM select instructions in its fastest way: the code means the same and takes a quarter of the
    time to make. The cache of code is another then."""
    from orthrus.codegen.object import build

    @functools.lru_cache(8)
    def target(machine: Any) -> Any:
        found = build._llvm().Target.from_triple(machine.triple)
        return found.create_target_machine(
            cpu=machine.cpu, features=machine.feature_text, opt=0, reloc="pic", codemodel="small"
        )

    build._target_machine = target


def _large() -> bool:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * mmap.PAGESIZE >> 10 > _RESIDENT


def peer() -> Any:
    try:
        import onnxruntime
    except ImportError:
        return None
    onnxruntime.set_default_logger_severity(4)
    return onnxruntime


def trier(plan: Plan) -> Callable[[int], dict[str, Any] | None]:
    """The function of a seed that says what was found, if anything."""
    if plan.what == "mutations":
        return functools.partial(_mutated, plan)
    return functools.partial(_compared, plan)


def subject(plan: Plan, seed: int) -> Any:
    from fuzz import applications, chains, small

    if plan.data and applications.Stored.known is None:
        applications.Stored.known = pickle.loads(Path(plan.data).read_bytes())[0]
    made = {"graphs": small.graph, "operators": small.operator, "chains": chains.chain}[plan.what]
    return made(seed, bool(plan.data))


def _compared(plan: Plan, seed: int) -> dict[str, Any] | None:
    from fuzz import judge, known

    made = subject(plan, seed)
    found = judge.examine(made, peer(), plan.on)
    if found is None or known.excused(found, made):
        return None
    return _smallest(plan, made, found, seed)


_seen: Counter[str] = Counter()


def _smallest(plan: Plan, made: Any, found: Any, seed: int, fork: bool = False) -> dict[str, Any]:
    from fuzz import judge, shrink

    engine = peer()

    def test(s: Any) -> str | None:
        it = judge.examine(s, engine, plan.on)
        return it and it.kind

    signature = signed(made, found)
    if _seen[signature] < 3 * _EACH and found.kind != "differs" or _seen[signature] < 1:
        _seen[signature] += 1
        chosen = (lambda s: shrink.forked(lambda: test(s))) if fork else test
        made = shrink.shrunk(made, found.kind, chosen, 25 if found.kind != "differs" else 8)
        found = found if fork else judge.examine(made, engine, plan.on) or found
    name = signed(made, found)
    folder = Path(plan.folder, f"{plan.what}-{seed}")
    _seen[name] += 1
    if _seen[name] <= _EACH:
        shrink.stored(made, folder, f"{found.kind}: {found.text}", f"seed {seed} of {plan.what}")
    return {"kind": found.kind, "signature": name, "text": found.text, "folder": str(folder)}


def signed(made: Any, found: Any) -> str:
    """What tells one defect from another, roughly: the kind and the operators."""
    ops = "+".join(node.op_type for node in made.model.graph.node)
    return f"{found.kind} {ops}"


def _mutated(plan: Plan, seed: int) -> dict[str, Any] | None:
    from fuzz import mutations

    mutations.confine()
    raw = mutations.changed(seed, models(plan))
    found = mutations.tried(raw, seed)
    if found is None:
        return None
    return mutated(plan, seed, raw, found.kind, found.text)


@functools.cache
def models(plan: Plan) -> list[bytes]:
    """What mutations start from."""
    from fuzz import mutations

    made = mutations.corpus()
    return made + pickle.loads(Path(plan.data).read_bytes())[1] if plan.data else made


def mutated(plan: Plan, seed: int, raw: bytes, kind: str, text: str) -> dict[str, Any]:
    """The record of a mutated model, written to a folder."""
    folder = Path(plan.folder, f"mutations-{seed}")
    where = text.rsplit(" in ", 1)[-1]
    signature = f"{kind} {where}" if kind == "untyped" else kind
    _seen[signature] += 1
    if _seen[signature] <= _EACH:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "model.onnx").write_bytes(raw)
        (folder / "README").write_text(
            f"{kind}: {text}\n\npython -m tests.fuzz --replay {folder}\nseed {seed} of mutations\n"
        )
        (folder / "seed").write_text(str(seed))
    return {"kind": kind, "signature": signature, "text": text, "folder": str(folder)}


# around the workers


class Worker:
    """A process that tries seeds from `first` on, and the board on which it writes where it is."""

    def __init__(self, plan: Plan, first: int) -> None:
        self.plan, self.errors = plan, tempfile.TemporaryFile()  # noqa: SIM115
        handle, self.path = tempfile.mkstemp()
        os.write(handle, _BOARD.pack(first, 0, 0))
        os.close(handle)
        given = json.dumps({"plan": dataclasses.asdict(plan), "first": first, "board": self.path})
        self.process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", "tests.fuzz", "--worker", given],
            stdout=subprocess.PIPE,
            stderr=self.errors,
            cwd=Path(__file__).parents[2],
            env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        )
        self.state, self.since = (first, 0, 0), time.monotonic() + STILL
        self.ended: dict[str, Any] | None = None

    def at(self) -> tuple[int, ...]:
        return _BOARD.unpack(Path(self.path).read_bytes())

    def still(self) -> bool:
        """Whether it has not gone on for too long."""
        now = self.at()
        if now != self.state:
            self.state, self.since = now, time.monotonic()
        return time.monotonic() - self.since > STILL * (_EMULATED if self.plan.on else 1)

    def close(self) -> str:
        """Wait for the process, and what it wrote to its error stream last."""
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()
        os.unlink(self.path)
        self.errors.seek(0)
        said = self.errors.read()[-1500:].decode("utf-8", "replace")
        self.errors.close()
        return said


def search(plan: Plan, seed: int, jobs: int, say: Callable[[str], None]) -> Tally:
    """Try seeds from `seed` on in `jobs` processes until the plan's time is over."""
    tally, start = Tally(), time.monotonic()
    plan = dataclasses.replace(plan, step=jobs)
    with selectors.DefaultSelector() as ready:
        for job in range(jobs):
            _start(ready, Worker(plan, seed + job))
        while ready.get_map():
            for key, _ in ready.select(1.0):
                _read(ready, key.data, tally, say)
            for key in list(ready.get_map().values()):
                if key.data.still():
                    key.data.process.send_signal(signal.SIGKILL)
                    key.data.ended = {"hang": True}
    tally.seconds = time.monotonic() - start
    return tally


def _start(ready: Any, worker: Worker) -> None:
    ready.register(worker.process.stdout, selectors.EVENT_READ, worker)


def _read(ready: Any, worker: Worker, tally: Tally, say: Callable[[str], None]) -> None:
    assert worker.process.stdout is not None
    line = worker.process.stdout.readline()
    if line:
        said = json.loads(line)
        if "count" in said:
            worker.ended = said
        else:
            _note(worker.plan, said, tally, say)
        return
    ready.unregister(worker.process.stdout)
    code = worker.process.wait()
    at, count, elsewhere = worker.at()
    errors = worker.close()
    plan, ended = worker.plan, worker.ended
    if ended is not None and "count" in ended:
        tally.tried[plan.what] += ended["count"]
        if ended["next"] is not None:
            _start(ready, Worker(plan, ended["next"]))
        return
    tally.tried[plan.what] += count + 1
    kind = "hang" if ended is not None else "crash"
    if elsewhere:
        found = {
            "kind": "differs",
            "signature": "differs onnxruntime",
            "text": f"a {kind} of its own",
            "folder": "",
        }
    else:
        found = _lost(plan, at, kind, f"exit status {code}; {errors}")
    _note(plan, {"seed": at, **found}, tally, say)
    if time.time() < plan.until and at + plan.step <= plan.most:
        _start(ready, Worker(plan, at + plan.step))


def _lost(plan: Plan, seed: int, kind: str, text: str) -> dict[str, Any]:
    """The record of a seed on which a worker ended."""
    from fuzz import judge, mutations

    if plan.what == "mutations":
        return mutated(plan, seed, mutations.changed(seed, models(plan)), kind, text)
    return _smallest(plan, subject(plan, seed), judge.Finding(kind, text), seed, fork=True)


def _note(plan: Plan, said: dict[str, Any], tally: Tally, say: Callable[[str], None]) -> None:
    tally.kinds[said["kind"]] += 1
    line = f"{said['signature']}  [{plan.what} {said['seed']}] {said['text']}  {said['folder']}"
    tally.lines.append(line)
    say(line)


def replay(folder: Path, on: str = "") -> str | None:
    """What a stored finding gives now; None where all is well."""
    if (folder / "seed").exists():
        mutations = importlib.import_module("fuzz.mutations")
        mutations.confine()
        found = mutations.tried((folder / "model.onnx").read_bytes(), int((folder / "seed").read_text()))
    else:
        judge, shrink = importlib.import_module("fuzz.judge"), importlib.import_module("fuzz.shrink")
        found = judge.examine(shrink.loaded(folder), peer(), on)
    return None if found is None else f"{found.kind}: {found.text}"


def prepared(folder: Path) -> str:
    """ONNX's test data, as applications of operators and as models, in a file that workers share."""
    from benchmarks.cases import cases

    from fuzz import applications

    path = folder / f"onnx-{onnx.__version__}.pickle"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        raws = [case.model.SerializeToString() for case in cases(("node", "node_expanded", "simple"))]
        part = path.with_suffix(f".{os.getpid()}")
        part.write_bytes(pickle.dumps((applications.stored(), [raw for raw in raws if len(raw) < 1 << 15])))
        part.replace(path)
    return str(path)
