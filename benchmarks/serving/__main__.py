"""`orthrus serve` under load, in one command each:

    python -m benchmarks.serving                       # beside onnxruntime behind Starlette on uvicorn
    python -m benchmarks.serving --servers orthrus,mlserver --mlserver /PATH/TO/python     # tensors as JSON
    python -m benchmarks.serving --planned             # beside the simulator, at parts of the capacity
    python -m benchmarks.serving --overload            # three times the capacity for a minute

The servers and their clients share this machine's processors. Side by side, the servers take turns round by
round and stay up in between; the figures are each one's best round. `--json FILE` keeps all of them.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

import orthrus as ort
from orthrus.processors import usable
from orthrus.serving.measure import measure
from orthrus.serving.simulate import Service, Stream, poisson, simulate

from .load import Answers, drive, request_of, text_of
from .networks import Case, cases

GOAL = 0.1
"""Seconds that a request may take in the trial of overload."""
SETTINGS = {"batches": "max_batch_size = 32\n", "heavy": "max_batch_size = 4\n",
            "bounded": f"max_batch_size = 4\ngoal = {GOAL}\n"}
PARTS = (0.25, 0.5, 0.75, 0.9)
"""Of the capacity, at which the server is held beside the simulator."""
WARM = 0.7
"""Seconds of requests before a measure: batches of sizes that are new are prepared meanwhile."""
CONNECTIONS = 512
MLSERVER = "mlserver"
READY = b"GET /v2/health/ready HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
SHARES = (("p50", 0.5), ("p90", 0.9), ("p99", 0.99))


@dataclass
class Server:
    name: str
    port: int
    process: subprocess.Popen[bytes]

    def memory(self) -> float:
        """Resident MB."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.split("VmRSS:")[1].split()[0]) / 1024

    def busy(self) -> float:
        """Seconds of processors until now."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@contextlib.contextmanager
def started(name: str, folder: Path, mlserver: str = sys.executable) -> Iterator[Server]:
    """`orthrus`, `inline`, `pool` or `mlserver`, once it answers. `mlserver`: a Python that has it."""
    port = free_port()
    threads = str(1 if name == "pool" else len(usable()))
    python, *command = {
        "orthrus": [sys.executable, "orthrus", "serve", str(folder), "--port", str(port),
                    "--grpc-port", "-1"],
        MLSERVER: [mlserver, "benchmarks.serving.mlserver_peer", str(folder), str(port), threads]}.get(
        name, [sys.executable, "benchmarks.serving.peer", str(folder), str(port), name, threads])
    process = subprocess.Popen([python, "-m", *command], stdout=subprocess.DEVNULL)
    try:
        for _ in range(600):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1.0) as asked:
                asked.sendall(READY)
                if b" 200 " in asked.recv(64):
                    break
            if process.poll() is not None:
                raise SystemExit(f"{name} ended with exit code {process.returncode}")
            time.sleep(0.1)
        yield Server(name, port, process)
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def checked(answers: Answers, what: str) -> Answers:
    if set(answers.statuses()) - {200}:
        raise SystemExit(f"{what}: {answers.statuses()}: {answers.last[-300:]!r}")
    return answers


def beside(servers: Sequence[Server], chosen: dict[str, Case], clients: Sequence[int], seconds: float,
           rounds: int) -> list[dict[str, Any]]:
    """Requests a second, processor time of each and latencies, by server, case and number of clients."""
    best = dict[tuple[str, int, str], tuple[Answers, float]]()
    asked = text_of if any(server.name == MLSERVER for server in servers) else request_of
    for _ in range(rounds):
        for name, case in chosen.items():
            request = asked(name, case.feeds)
            for count in clients:
                for server in servers:
                    drive(server.port, request, count, WARM)
                    before = server.busy()
                    found = checked(drive(server.port, request, count, seconds), f"{server.name} {name}")
                    key = name, count, server.name
                    if key not in best or found.rate > best[key][0].rate:
                        best[key] = found, (server.busy() - before) / len(found.rows)
    rows = list[dict[str, Any]]()
    for (name, count, server), (found, busy) in best.items():
        rows.append({"case": name, "clients": count, "server": server, "rate": found.rate,
                     "cpu_us": 1e6 * busy, "p50_ms": 1e3 * found.latency(0.5),
                     "p99_ms": 1e3 * found.latency(0.99)})
        if server == servers[-1].name:
            theirs = max(row["rate"] for row in rows[-len(servers):] if row["server"] != "orthrus")
            for row in rows[-len(servers):]:
                row["ratio"] = row["rate"] / theirs
                print(f"{name:8} {count:3} clients  {row['server']:8} {row['rate']:8.0f} /s  p50 "
                      f"{row['p50_ms']:7.2f}  p99 {row['p99_ms']:7.2f} ms  cpu {row['cpu_us']:5.0f} us  "
                      f"{row['ratio']:5.2f} x", flush=True)
            rows += equal(servers, rows[-len(servers):], asked(name, chosen[name].feeds), seconds)
    return rows


def equal(servers: Sequence[Server], rows: Sequence[dict[str, Any]], request: bytes, seconds: float
          ) -> list[dict[str, Any]]:
    """Of a case, where the best of the others has the shorter p99: with how many clients fewer Orthrus has
    that too, and how many requests it answers then."""
    best = max((row for row in rows if row["server"] != "orthrus"), key=lambda row: row["rate"])
    for row, server in zip(rows, servers, strict=True):
        if row["server"] != "orthrus":
            continue
        count, found = row["clients"], dict[str, Any](row)
        while found["p99_ms"] > best["p99_ms"] and count > 1:
            count = count * 7 // 8
            drive(server.port, request, count, WARM)
            ran = checked(drive(server.port, request, count, seconds), "at equal p99")
            found |= {"clients": count, "rate": ran.rate, "p50_ms": 1e3 * ran.latency(0.5),
                      "p99_ms": 1e3 * ran.latency(0.99), "ratio": ran.rate / best["rate"]}
        if count < row["clients"]:
            print(f"  at p99 <= {best['p99_ms']:.2f} ms: {count} clients, {found['rate']:.0f} /s, "
                  f"{found['ratio']:.2f} x", flush=True)
            return [found | {"equal_p99": True}]
    return []


def capacity(server: Server, request: bytes, seconds: float) -> float:
    """Requests a second of 64 clients that never rest: as many as there are."""
    drive(server.port, request, 64, 1.0)
    found = drive(server.port, request, 64, seconds)
    return found.rate


def schedule(rate: float, seconds: float) -> list[float]:
    return list(takewhile(lambda time: time < seconds, poisson(rate)(random.Random(7))))


def batches(server: Server, model: str) -> Counter[tuple[int, str]]:
    """How many batches of each size have run, and their nanoseconds: by size and "count" or "ns"."""
    with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/v2/models/{model}/stats") as answer:
        [found] = json.load(answer)["model_stats"]
    return Counter({(row["batch_size"], what): row["compute_infer"][what] for row in found["batch_stats"]
                    for what in ("count", "ns")})


def planned(server: Server, known: dict[str, Case], folder: Path, seconds: float, slots: int
            ) -> list[dict[str, Any]]:
    """The server beside the simulator. What the simulator is told: the seconds of batches in a session of
    this process on as many threads as there are slots, and the processor time of the server, and of the
    clients beside it, for a small request. What one client waits beyond is added to each of its answers."""
    case, small = known["heavy"], known["digits"]
    options = ort.SessionOptions()
    options.intra_op_num_threads = max(len(usable()) // slots, 1)
    session = ort.InferenceSession(str(folder / case.name / "1" / "model.onnx"), options)
    [(name, row)] = case.feeds.items()
    feeds = {size: {name: row.repeat(size, 0)} for size in (1, 2, 4)}
    service = measure(lambda size: session.run(None, feeds[size]), list(feeds), slots, 0.5)
    request = request_of(case.name, case.feeds)
    alone = checked(drive(server.port, request, 1, 2.0), "alone")
    began, busy = time.process_time(), server.busy()
    asked = checked(drive(server.port, request_of(small.name, small.feeds), 32, 2.0), "small")
    overhead, clients = ((end - start) / len(asked.rows) for end, start in (
        (server.busy(), busy), (time.process_time(), began)))
    beyond = max(alone.latency(0.5) - service.seconds[1] - overhead, 0.0)
    most = capacity(server, request, 3.0)
    print("a batch, ms by rows:", {size: round(1e3 * each, 3) for size, each in service.seconds.items()},
          f"HTTP {1e3 * overhead:.3f} ms, clients {1e3 * clients:.3f} ms, beyond {1e3 * beyond:.3f} ms, "
          f"capacity {most:.0f} /s", flush=True)
    rows = list[dict[str, Any]]()
    for part in PARTS:
        rate = part * most
        before = batches(server, case.name)
        ran = drive(server.port, request, CONNECTIONS, times=schedule(rate, seconds))
        spent = batches(server, case.name)
        spent.subtract(before)
        sizes = {size for size, what in spent if what == "count" and spent[size, what]}
        its_own = Service({size: spent[size, "ns"] / 1e9 / spent[size, "count"] for size in sizes},
                          service.spread, service.stretch)
        said = [simulate([Stream(poisson(rate), each, case.name, max_batch=case.max_batch)], slots,
                         requests=20_000, overhead=overhead, shared=shared, beside=clients * shared).total
                for each, shared in ((service, True), (its_own, False))]
        found = {name: (1e3 * ran.latency(share), *(1e3 * (each.quantile(share) + beyond) for each in said))
                 for name, share in SHARES}
        rows.append({"part": part, "rate": rate, "statuses": ran.statuses(), "ms": found})
        told = "  ".join(f"{name} {' / '.join(f'{each:.2f}' for each in row)}" for name, row in found.items())
        print(f"{part:4.2f} of capacity, {rate:6.0f} /s, ms at the client / planned / planned with the times "
              f"that batches took meanwhile: {told}", flush=True)
    return rows


def overload(server: Server, case: Case, seconds: float, times: float) -> dict[str, Any]:
    """Statuses, latencies at the client, and memory, at `times` the capacity. Where it may, the client goes
    before all else on this machine: what it waits for a processor is not the server's."""
    with contextlib.suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, 0, -10)
    request = request_of("bounded", case.feeds, GOAL)
    most = capacity(server, request_of("heavy", case.feeds), 3.0)
    drive(server.port, request, CONNECTIONS, times=schedule(times * most, 2.0))
    before = server.memory()
    ran = drive(server.port, request, CONNECTIONS, times=schedule(times * most, seconds))
    accepted = sorted(end - start for start, end, status in ran.rows if status == 200)
    late, after = [each - GOAL for each in accepted if each > GOAL], server.memory()
    latest = late[-1] if late else 0.0
    row = {"capacity": most, "asked": times * most, "sent": len(ran.rows) / ran.seconds, "answered": ran.rate,
           "statuses": ran.statuses(), "p50_ms": 1e3 * ran.latency(0.5), "p99_ms": 1e3 * ran.latency(0.99),
           "late_at_client": len(late), "latest_ms": 1e3 * latest, "memory_before_mb": before,
           "memory_after_mb": after, "seconds": ran.seconds}
    print(f"capacity {most:.0f} /s; asked {row['asked']:.0f} /s, sent {row['sent']:.0f} /s for "
          f"{ran.seconds:.0f} s: {row['statuses']}\nanswered {ran.rate:.0f} /s, p50 {row['p50_ms']:.1f} ms, "
          f"p99 {row['p99_ms']:.1f} ms for a goal of {1e3 * GOAL:.0f}; {len(late)} of {len(accepted)} "
          f"later than that at the client, by {1e3 * latest:.1f} ms at most\n"
          f"memory {before:.0f} -> {after:.0f} MB", flush=True)
    return row


def main() -> None:
    shape = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=shape)
    parser.add_argument("--planned", action="store_true")
    parser.add_argument("--overload", action="store_true")
    parser.add_argument("--cases", default="digits,large,batches")
    parser.add_argument("--clients", default="1,32")
    parser.add_argument("--servers", default="orthrus,pool,inline")
    parser.add_argument("--mlserver", default=sys.executable,
                        help="a Python that has MLServer and onnxruntime")
    parser.add_argument("--seconds", type=float, default=3.0, help="of a measure, or of a round of it")
    parser.add_argument("--minute", type=float, default=60.0, help="seconds of overload")
    parser.add_argument("--times", type=float, default=3.0, help="the capacity, in overload")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--slots", type=int, default=1, help="of the server and the simulator")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    kept = dict[str, Any]()
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        known = cases(folder)
        for case, text in SETTINGS.items():
            (folder / case / "config.toml").write_text(text)
        if given.planned or given.overload:
            server = stack.enter_context(started("orthrus", folder))
            if given.planned:
                kept["planned"] = planned(server, known, folder, given.seconds * 3, given.slots)
            if given.overload:
                kept["overload"] = overload(server, known["heavy"], given.minute, given.times)
        else:
            servers = [stack.enter_context(started(each, folder, given.mlserver))
                       for each in given.servers.split(",")]
            chosen = {each: known[each] for each in given.cases.split(",")}
            kept["beside"] = beside(servers, chosen, [int(each) for each in given.clients.split(",")],
                                    given.seconds, given.rounds)
    if given.json:
        given.json.write_text(json.dumps(kept, indent=1))


if __name__ == "__main__":
    main()
