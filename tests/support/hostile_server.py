"""Runs hostile cases, each in a forked child under limits on memory, processor time and wall time.

Reads a case's name per line, answers a line of JSON: how the child ended and what it said. A child that
dies, hangs, runs out of memory or raises what is no typed error is told apart from one whose assertions
fail.
"""

from __future__ import annotations

import importlib
import json
import os
import resource
import select
import signal
import sys
import time
import traceback

MEMORY = 4 << 30
SECONDS = 20


def bounded_defaults() -> None:
    """Let sessions run under limits that fit the child's."""
    from orthrus import limits

    for name, value in (("max_tensor_bytes", 1 << 30), ("max_total_bytes", 2 << 30), ("run_timeout", 2.0)):
        object.__setattr__(limits.DEFAULT, name, value)


def confined(run: object, write: int) -> None:
    """In the child: run one case and say how it went."""
    with open("/proc/self/statm") as file:
        size = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + MEMORY, size + MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS + 1))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)
    os.dup2(silence, 2)
    try:
        run()  # type: ignore[operator]
        said = "ok"
    except BaseException as error:
        frames = traceback.extract_tb(error.__traceback__)
        if isinstance(error, AssertionError) and "orthrus" not in frames[-1].filename.split(os.sep):
            said = f"wrong: {error}"
        else:
            where = "".join(traceback.format_list(frames[-4:]))
            said = f"untyped: {type(error).__name__}: {error}\n{where}"
    os.write(write, said.encode("utf-8", "replace")[:8000])


def outcome(run: object) -> str:
    read, write = os.pipe()
    child = os.fork()
    if not child:
        os.close(read)
        try:
            confined(run, write)
        finally:
            os._exit(0)
    os.close(write)
    said, end = b"", time.monotonic() + SECONDS + 5
    while (left := end - time.monotonic()) > 0:
        ready, _, _ = select.select([read], [], [], left)
        piece = os.read(read, 1 << 16) if ready else b""
        if not piece:
            break
        said += piece
    os.close(read)
    if time.monotonic() >= end:
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        name = signal.Signals(os.WTERMSIG(status)).name
        return f"hung: {name}" if name in ("SIGXCPU", "SIGKILL") else f"crashed: {name}"
    return said.decode("utf-8", "replace") or "said nothing"


def main() -> None:
    bounded_defaults()
    loaded = importlib.import_module("hostile_cases")
    cases = loaded.CASES
    loaded.ran(loaded.relu())
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        print(json.dumps(outcome(cases[line.strip()])), flush=True)


if __name__ == "__main__":
    main()
