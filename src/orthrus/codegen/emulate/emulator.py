"""Kernels run in a worker under qemu's user emulation, on a machine of another architecture.

A list of calls costs one exchange over a pipe, however long it is. A worker that crashes or takes too long is
ended, which the caller gets as a Fail that names the kernel, and the next run starts another one: memory,
kernels and lists are not the worker's and stay. It ends with this process: its pipe is then closed.

One thread runs calls of a worker at a time, others wait; several workers may share one memory.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib.util
import itertools
import mmap
import os
import select
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from typing import NamedTuple, NoReturn

from ...errors import Fail
from ...ir import No
from .shared import CODE, Shared
from .worker import CELLS, ROW, build

CURE = ("install qemu's user emulation, 7.0 or later: apt-get install qemu-user (Debian, Ubuntu), or, for "
        "riscv64, pip install xuantie-qemu")
_PACKAGE = "qemu"
"""What xuantie-qemu installs; it puts no emulator on PATH."""
_MODELS = {"riscv64": ("rv64,v=true,vlen={0},vext_spec=v1.0,Zfh=true", "max,vlen={0}",
                       "rv64,v=true,vlen={0},vext_spec=v1.0",
                       "c908v,vlen={0},vext_spec=v1.0,x-zba=true,x-zbb=true,x-zbs=true"),
           "aarch64": ("max",)}
"""How versions of qemu name a processor with vectors of so many bits. For RISC-V: 7, from 9 on, 8, the one on
PyPI."""
_START = 20.0
_MMAP, _MPROTECT = 222, 226


class Call(NamedTuple):
    """One call of a kernel: its address and that of its arguments, the items it does, the address of its
    scratch memory, and a name for messages."""

    kernel: int
    args: int
    begin: int
    end: int
    scratch: int
    name: str


class Calls:
    """A list of calls, laid into shared memory once and run any number of times."""

    def __init__(self, shared: Shared, calls: Sequence[Call]) -> None:
        self.shared, self.names = shared, [c.name for c in calls]
        self.address = shared.take(8 * (1 + ROW * len(calls)))
        cells = [0, *(cell for c in calls for cell in c[:ROW])]
        ctypes.memmove(self.address, struct.pack(f"<{len(cells)}q", *cells), 8 * len(cells))

    def begun(self) -> int:
        """How many calls the worker has begun."""
        return ctypes.c_int64.from_address(self.address).value

    def release(self) -> None:
        self.shared.release(self.address)


def find(arch: str) -> str | No:
    """The path of qemu's user emulation for `arch`, or what to install."""
    if sys.platform != "linux":
        return No("qemu's user emulation is for Linux alone")
    name = f"qemu-{arch}"
    package = importlib.util.find_spec(_PACKAGE)
    folders = list(package.submodule_search_locations or ()) if package else []
    found = [shutil.which(name), shutil.which(f"{name}-static"),
             *(shutil.which(name, path=folder) for folder in folders)]
    return next((path for path in found if path), None) or No(f"there is no {name} on PATH; {CURE}")


@functools.cache
def probe(arch: str, vlen: int, qemu: str | None = None, model: str | None = None) -> tuple[str, str] | No:
    """The program and the processor's name with which a worker of `vlen` bits per vector register runs here,
    or why none does. It is tried once."""
    program = qemu or find(arch)
    if isinstance(program, No):
        return program
    said = ""
    with tempfile.TemporaryDirectory(prefix="orthrus-") as folder:
        path = _file(folder, arch)
        for each in [model] if model else _MODELS[arch]:
            command = [program, "-cpu", each.format(vlen), path]
            try:
                done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_START,
                                      cwd=folder, process_group=0, check=False)
            except (OSError, subprocess.TimeoutExpired) as error:
                said = said or str(error)
                continue
            if done.stdout == struct.pack("<q", vlen // 8):
                return program, command[2]
            said = said or done.stderr.decode(errors="replace").strip()
    return No(f"{program} runs no program with vectors of {vlen} bits ({said}); {CURE}")


def _file(folder: str, arch: str) -> str:
    path = os.path.join(folder, "worker")
    with open(path, "wb") as file:
        file.write(build(arch))
    os.chmod(path, 0o700)
    return path


class _Process:
    """A started worker, how far it has mapped the shared memory, and the processor it is to stay on."""

    core: int | None = None

    def __init__(self, shared: Shared, program: str, model: str) -> None:
        with tempfile.TemporaryDirectory(prefix="orthrus-") as folder:
            import resource

            self.popen = subprocess.Popen(
                [program, "-cpu", model, _file(folder, shared.arch)], stdin=subprocess.PIPE,
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0,
                pass_fds=(shared.fd,), cwd="/", process_group=0)
            assert self.popen.stdin is not None and self.popen.stdout is not None
            self.send, self.answers = self.popen.stdin.fileno(), self.popen.stdout.fileno()
            self.end = weakref.finalize(self, _end, self.popen)
            try:
                resource.prlimit(self.popen.pid, resource.RLIMIT_CORE, (0, 0))
                self.answer(time.monotonic() + _START)
                self.mapped = 0
                self.map(shared, CODE, mmap.PROT_READ | mmap.PROT_EXEC)
                self.map(shared, shared.size, mmap.PROT_READ | mmap.PROT_WRITE)
            except BaseException:
                self.end()
                raise

    def leave(self) -> None:
        """Know nothing of it any more, in a process that did not start it."""
        self.end.detach()
        for stream in (self.popen.stdin, self.popen.stdout, self.popen.stderr):
            if stream is not None:
                stream.close()
        self.popen.returncode = 0

    def map(self, shared: Shared, size: int, allowed: int) -> None:
        """Map the shared memory up to `size`."""
        if size > self.mapped:
            at = shared.address + self.mapped
            if self.system(_MMAP, at, size - self.mapped, allowed, mmap.MAP_SHARED | 0x10, shared.fd,
                           self.mapped) != at:
                raise OSError("the worker cannot map the shared memory")
            self.mapped = size

    def system(self, number: int, *args: int) -> int:
        """The result of a system call of the worker."""
        self.ask(0, number, *args)
        return self.answer(time.monotonic() + _START)

    def ask(self, *cells: int) -> None:
        os.write(self.send, struct.pack(f"<{CELLS}q", *cells, *[0] * (CELLS - len(cells))))

    def answer(self, until: float | None) -> int:
        """The next answer. Raises TimeoutError, or EOFError where the worker has ended."""
        poll, got = select.poll(), b""
        poll.register(self.answers, select.POLLIN)
        while len(got) < 8:
            left = None if until is None else max(0, int(1000 * (until - time.monotonic())))
            if not poll.poll(left):
                raise TimeoutError
            part = os.read(self.answers, 8 - len(got))
            if not part:
                raise EOFError
            got += part
        return int(struct.unpack("<q", got)[0])


def _end(popen: subprocess.Popen[bytes]) -> None:
    for stream in (popen.stdin, popen.stdout):
        if stream is not None:
            stream.close()
    popen.kill()
    popen.wait()
    if popen.stderr is not None:
        popen.stderr.close()


def run(workers: Sequence[Worker], lists: Sequence[Calls], cores: Sequence[int] = ()) -> None:
    """Let each of `workers` do its own list, all at the same time, on its own one of `cores` where there are
    some. Raises Fail as `Worker.run` does, once all of them have stopped."""
    with contextlib.ExitStack() as held:
        for worker in workers:
            held.enter_context(worker.held())
        work = list(zip(workers, lists, strict=True))
        begun: dict[int, tuple[Worker, Calls]] = {}
        times = [worker.seconds for worker in workers if worker.seconds is not None]
        until = time.monotonic() + min(times) if times else None
        worker, calls = work[0]
        try:
            for (worker, calls), core in itertools.zip_longest(work, cores[:len(work)]):
                if core is not None:
                    worker.stay(core)
                begun[worker.begin(calls)] = worker, calls
            poll = select.poll()
            for answers in begun:
                poll.register(answers, select.POLLIN)
            while begun:
                worker, calls = next(iter(begun.values()))
                left = None if until is None else max(0, int(1000 * (until - time.monotonic())))
                ready = [answers for answers, _ in poll.poll(left)]
                if not ready:
                    raise TimeoutError
                for answers in ready:
                    worker, calls = begun[answers]
                    worker.finish()
                    poll.unregister(answers)
                    del begun[answers]
        except (EOFError, OSError) as error:
            for other, _ in work:
                if other is not worker:
                    other.stop()
            worker.failed(calls, error)
        except BaseException:
            for other, _ in work:
                other.stop()
            raise


class Worker:
    """Runs calls under emulation. `vlen`: bits of a vector register; `qemu`: another program than the one on
    PATH; `seconds`: the time one list may take, None for any; `model`: qemu's name of a processor, where not
    just any will do. Raises Fail where no worker can run here."""

    def __init__(self, shared: Shared, vlen: int, qemu: str | None = None, seconds: float | None = None,
                 model: str | None = None) -> None:
        self.shared, self.vlen, self.seconds = shared, vlen, seconds
        found = probe(shared.arch, vlen, qemu, model)
        if isinstance(found, No):
            raise Fail(f"{shared.arch} kernels cannot run on this machine", found=found.reason, cure=CURE)
        self._program, self._model = found
        self._process: _Process | None = None
        self._owner, self._lock = os.getpid(), threading.Lock()

    @property
    def pid(self) -> int | None:
        """The worker's process, None while there is none."""
        return None if self._process is None else self._process.popen.pid

    def run(self, calls: Calls) -> None:
        """Do all the calls, one after the other. Raises Fail that names the call that crashed or was running
        when the time was up."""
        run([self], [calls])

    def protect(self, at: int, size: int, allowed: int) -> None:
        """Let the worker use pages of the shared memory as `allowed` (mmap's PROT_ numbers) from now on."""
        with self._lock:
            if self._ready().system(_MPROTECT, at, size, allowed):
                raise OSError("the worker cannot protect its memory")

    def close(self) -> None:
        """End the worker; a further run starts another."""
        with self._lock:
            self.stop()

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """No other thread uses the worker. Raises Fail in a process that did not make it."""
        if os.getpid() != self._owner:
            raise Fail("a worker belongs to the process that started it",
                       cure="make the session in the process that runs it, behind the fork")
        with self._lock:
            yield

    def part(self) -> None:
        """In a child process: leave the worker to the parent; the next run starts another."""
        if self._process is not None:
            self._process.leave()
        self._process, self._owner, self._lock = None, os.getpid(), threading.Lock()

    def stay(self, core: int) -> None:
        """Let the worker, which is held, run on that processor only. Raises OSError."""
        process = self._ready()
        if process.core != core:
            os.sched_setaffinity(process.popen.pid, {core})
            process.core = core

    def begin(self, calls: Calls) -> int:
        """Have the worker, which is held, begin the calls; where its answer will come."""
        ctypes.c_int64.from_address(calls.address).value = 0
        process = self._ready()
        process.ask(calls.address, len(calls.names))
        return process.answers

    def finish(self) -> None:
        """Take the answer. Raises EOFError where the worker has ended."""
        assert self._process is not None
        self._process.answer(None)

    def _ready(self) -> _Process:
        if self._process is not None and self._process.popen.poll() is not None:
            self.stop()
        if self._process is None:
            self._process = _Process(self.shared, self._program, self._model)
        self._process.map(self.shared, self.shared.size, mmap.PROT_READ | mmap.PROT_WRITE)
        return self._process

    def stop(self) -> None:
        """End the worker, which is held."""
        if self._process is not None:
            self._process.end()
            self._process = None

    def failed(self, calls: Calls, error: Exception) -> NoReturn:
        """Say what became of the calls, with the worker at its end."""
        begun = calls.begun()
        name = calls.names[begun - 1] if begun else None
        said, status = "", 0
        if self._process is not None:
            if isinstance(error, TimeoutError):
                self._process.popen.kill()
            status = self._process.popen.wait()
            if self._process.popen.stderr is not None:
                said = self._process.popen.stderr.read().decode(errors="replace").strip()
        self.stop()
        if isinstance(error, TimeoutError):
            raise Fail(f"kernel {name} did not end in {self.seconds:g} seconds", node=name,
                       cure="allow more time, or a smaller input: emulation does some hundred million "
                            "operations a second") from None
        if name is None:
            raise Fail(f"the worker for {self.shared.arch} kernels does not start",
                       found=said or str(error), cure=CURE) from None
        raise Fail(f"kernel {name} crashed in the worker", node=name, found=_status(status, said),
                   cure=_cure(status, said)) from None


def _status(status: int, said: str) -> str:
    what = f"signal {signal.Signals(-status).name}" if status < 0 else f"status {status}"
    return f"{what}: {said}" if said else what


def _cure(status: int, said: str) -> str:
    if "Assertion" in said:
        return "this qemu has a fault: install another version of it, or pip install xuantie-qemu"
    if status == -signal.SIGILL:
        return "qemu does not know an instruction of the kernel: install a later qemu"
    return "run this model with providers=['CPUExecutionProvider'], and report the kernel's name"
