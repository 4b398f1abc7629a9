"""A process that compiles: a crash of the compiler ends it, and not the session's process.

In: a module that serves jobs, a line of JSON each, from standard input, and flags for it. Out: its replies,
and what it wrote to standard error. The process starts with the first job, and again where it ended, where
the next job has other flags or another environment, and in a forked process.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import subprocess
import sys
import tempfile
import time
import weakref
from pathlib import Path
from typing import Any

from ...locks import lock

_all: weakref.WeakSet[Process] = weakref.WeakSet()


class Process:
    """The process of one serving module. A reply whose `last` is true is its last one."""

    def __init__(self, module: str) -> None:
        self.module, self.lock = module, lock()
        self.started: tuple[list[str], dict[str, str]] = [], {}
        self.process: subprocess.Popen[bytes] | None = None
        self.log: Any = None
        _all.add(self)

    def compile(self, job: dict[str, Any], flags: list[str], timeout: float,
                environment: dict[str, str] | None = None) -> tuple[dict[str, Any], str]:
        """The reply to a job, and what the compiler wrote. Where no reply came within `timeout` seconds it
        has a `stage` and a `message` alone. `environment`: variables beside this process's own."""
        with self.lock:
            try:
                process = self._running(flags, environment or {})
                self.log.seek(0)
                self.log.truncate()
                assert process.stdin is not None
                process.stdin.write(json.dumps(job).encode() + b"\n")
                process.stdin.flush()
                line = self._line(process, timeout)
            except (OSError, ValueError) as error:
                self._end()
                return {"stage": "start", "message": f"the compiler does not start: {error}"}, self._said()
            if line:
                reply: dict[str, Any] = json.loads(line)
                if reply.get("last"):
                    self._end()
                return reply, self._said()
            late = f"the compiler did not end within {timeout:g} s; the option compile_timeout allows more"
            message = late if line is None else self._ended(process)
            self._end()
            return {"stage": "compile", "message": message}, self._said()

    def _running(self, flags: list[str], environment: dict[str, str]) -> subprocess.Popen[bytes]:
        if self.process is None or self.process.poll() is not None or self.started != (flags, environment):
            self._end()
            self.started = flags, environment
            self.log = self.log or tempfile.TemporaryFile()  # noqa: SIM115
            self.process = subprocess.Popen(
                [sys.executable, "-m", self.module, *flags], stdin=subprocess.PIPE,
                stdout=subprocess.PIPE, stderr=self.log, env={**_environment(), **environment})
        return self.process

    @staticmethod
    def _line(process: subprocess.Popen[bytes], timeout: float) -> bytes | None:
        """What the process writes, to a line's end: empty where it ends before that, None where late."""
        assert process.stdout is not None
        end, found = time.monotonic() + timeout, b""
        while not found.endswith(b"\n"):
            ready, _, _ = select.select([process.stdout], [], [], max(end - time.monotonic(), 0))
            if not ready:
                return None
            if not (piece := os.read(process.stdout.fileno(), 1 << 16)):
                return b""
            found += piece
        return found

    @staticmethod
    def _ended(process: subprocess.Popen[bytes]) -> str:
        """How a process ended that has closed its output."""
        try:
            code = process.wait(1.0)
        except subprocess.TimeoutExpired:
            return "the compiler's process closed its output and went on"
        return (f"the compiler's process was ended by signal {-code}" if code < 0 else
                f"the compiler's process ended with status {code}")

    def _said(self) -> str:
        if self.log is None:
            return ""
        self.log.seek(0)
        text: str = self.log.read().decode("utf-8", "replace")
        return text

    def _end(self) -> None:
        process, self.process = self.process, None
        if process is not None:
            process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    stream.close()

    def stop(self) -> None:
        """End the process; the next job starts another."""
        with self.lock:
            self._end()


def _environment() -> dict[str, str]:
    """This process's, with this package where it was imported from."""
    root = str(Path(__file__).resolve().parents[3])
    path = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH", ""))))
    return {**os.environ, "PYTHONPATH": path}


@atexit.register
def _stop() -> None:
    for each in list(_all):
        each.stop()


def _in_child() -> None:
    """A forked process has none of these yet: those of its parent are not its own to end."""
    for each in _all:
        each.process = each.log = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
