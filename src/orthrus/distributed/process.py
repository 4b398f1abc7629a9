"""A session in a process of its own, pinned to cores, as the process that started it sees it.

In: feeds. Out: results, over memory that both processes share. The invariant: whatever happens to the other
process, `run` gives the results, raises the session's own error, or raises `Lost`.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import weakref
from collections.abc import Sequence
from dataclasses import field
from pathlib import Path
from typing import Any

import numpy as np

from ..locks import rlock
from ..records import dataclass
from .blocks import Block, Pool
from .messages import Line, arrays_of, plain, raised, room, tree, value_of
from .rows import Port, Ports

START = 120.0
"""Seconds in which a process has to start and make its session."""


_all: weakref.WeakSet[Process] = weakref.WeakSet()


class Lost(Exception):
    """The process of a replica has ended, or was ended since it took too long. `hung`: it took too long."""

    def __init__(self, reason: str, hung: bool = False) -> None:
        super().__init__(reason)
        self.hung = hung


@dataclass(frozen=True)
class Spec:
    """How a replica makes its session. `model`: a path, or a block with so many bytes of it, which `held`
    keeps taken."""

    model: str | tuple[Block, int]
    options: dict[str, Any] = field(default_factory=dict)
    entries: dict[str, str] = field(default_factory=dict)
    imports: tuple[str, ...] = ()
    held: Any = None


@dataclass(frozen=True)
class Into:
    """Where results are wanted: arrays over `block`, which begin at `places`."""

    block: Block
    arrays: Sequence[np.ndarray]
    places: Sequence[int]


class Process:
    """One process. Not safe on several threads, but for `terminate` and `kill`."""

    def __init__(
        self,
        spec: Spec,
        pool: Pool,
        cores: Sequence[int],
        providers: Sequence[str],
        provider_options: Sequence[dict[str, str]],
    ) -> None:
        self.spec, self.pool, self.cores = spec, pool, list(cores)
        self.providers, self.provider_options = list(providers), list(provider_options)
        self.child: subprocess.Popen[bytes] | None = None
        self.line: Line | None = None
        self.known: set[int] = set()
        self.ports: Ports = ([], [])
        self.ready = self._closed = False
        self._changing = rlock()
        _all.add(self)

    def start(self) -> None:
        """Start the process and make its session. Raises what making a session raises, or Lost; no process is
        left then."""
        self.kill()
        ours, theirs = socket.socketpair()
        root = str(Path(__file__).resolve().parents[2])
        path = os.pathsep.join([root, *filter(None, sys.path)])
        files = [theirs.fileno(), self.pool.constants]
        with theirs, self._changing:
            if self._closed:
                ours.close()
                raise Lost("the process is not wanted any more")
            self.child = subprocess.Popen(
                [sys.executable, "-P", "-m", "orthrus.distributed.worker", *map(str, files)],
                pass_fds=files,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                env={**os.environ, "PYTHONPATH": path},
            )
        self.line, self.known = Line(ours), set()
        model = self.spec.model
        given: dict[str, Any] = (
            {"model": model} if isinstance(model, str) else {"model": model[0].number, "length": model[1]}
        )
        blocks = [] if isinstance(model, str) else [model[0]]
        options = dict(self.spec.options)
        options["intra_op_num_threads"] = options.get("intra_op_num_threads") or len(self.cores)
        try:
            reply = self._ask(
                {
                    "do": "open",
                    **given,
                    "options": options,
                    "entries": self.spec.entries,
                    "cores": self.cores,
                    "imports": self.spec.imports,
                    "providers": self.providers,
                    "provider_options": self.provider_options,
                },
                blocks,
                START,
            )
        except Exception:
            self.kill()
            raise
        inputs, outputs = ([Port(*each) for each in side] for side in reply["ports"])
        self.ports, self.ready = (inputs, outputs), True

    def run(
        self,
        names: Sequence[str] | None,
        feeds: dict[str, Any],
        entries: dict[str, str],
        into: Into | None,
        limit: float | None,
    ) -> list[Any] | None:
        """The results; None where they are those of the types and shapes of `into` and lie there. Raises the
        error of the session, or Lost."""
        feeds = plain(feeds)
        arrays = arrays_of(list(feeds.values()))
        size, places = room(arrays)
        block, owner = self.pool.take(size)
        for array, at in zip(arrays, places, strict=True):
            block.array(owner, array.dtype, array.shape, at)[...] = array
        rest = iter(places)
        wanted = (
            None
            if into is None
            else [
                {"t": a.dtype.name, "shape": a.shape, "block": into.block.number, "at": at}
                for a, at in zip(into.arrays, into.places, strict=True)
            ]
        )
        reply = self._ask(
            {
                "do": "run",
                "names": names,
                "run_entries": entries,
                "block": block.number,
                "feeds": {name: tree(value, lambda _: next(rest)) for name, value in feeds.items()},
                "into": wanted,
            },
            [block, *([into.block] if into else [])],
            limit,
        )
        del owner
        if "done" in reply:
            return None
        back, owner = self.pool.take(reply["size"])
        self._ask({"do": "put", "block": back.number}, [back], limit)
        made: list[Any] = value_of(
            reply["results"], lambda dtype, shape, at: back.array(owner, dtype, shape, at)
        )
        return made

    def _ask(self, message: dict[str, Any], blocks: Sequence[Block], limit: float | None) -> dict[str, Any]:
        """The answer to a message that names `blocks`."""
        line = self.line
        if line is None or self.child is None:
            raise Lost("the process is not there")
        try:
            if gone := self.known - self.pool.alive - {b.number for b in blocks}:
                self.known -= gone
                line.send({"do": "forget", "gone": sorted(gone), "blocks": []})
                line.receive(limit)
            new = {b.number: b for b in blocks if b.number not in self.known}
            line.send(
                {**message, "blocks": [(b.number, b.size) for b in new.values()]},
                [b.file for b in new.values()],
            )
            self.known.update(new)
            reply, _ = line.receive(limit)
        except TimeoutError:
            self.kill()
            raise Lost(f"the process gave no answer within {limit:g} s and was ended", hung=True) from None
        except (OSError, ValueError) as error:
            code = self._code()
            self.kill()
            raise Lost(
                f"the process was ended by signal {-code}"
                if code is not None and code < 0
                else f"the process ended: {error}"
            ) from None
        if "failed" in reply:
            raise raised(reply)
        return reply

    def _code(self) -> int | None:
        if self.child is None:
            return None
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.child.wait(1.0)
        return None

    def alive(self) -> bool:
        """Whether the process is there."""
        return self.child is not None and self.child.poll() is None

    def terminate(self) -> None:
        """Tell the run that is going on to end."""
        with contextlib.suppress(OSError):
            if self.line is not None:
                self.line.send({"do": "terminate", "blocks": []})

    def close(self) -> None:
        """End the process for good."""
        with self._changing:
            self._closed = True
        self.kill()

    def kill(self) -> None:
        """End the process, whatever it does."""
        self.ready = False
        with self._changing:
            child, self.child, line, self.line = self.child, None, self.line, None
        if line is not None:
            line.close()
        if child is not None:
            child.kill()
            child.wait()


def _in_child() -> None:
    """A forked process lets go of its parent's ends: the processes end with that."""
    for each in _all:
        line, each.line, each.child = each.line, None, None
        if line is not None:
            line.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
