"""The process of a replica: a session that runs what it is told over a pair of sockets.

In: the number of the socket it inherited, then messages. Out: replies, and results in the other process's
blocks. It ends with the process that started it, also in the middle of a run.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import queue
import socket
import sys
import threading
from typing import Any

import numpy as np

from .. import memory
from ..api.options import RunOptions, SessionOptions
from ..api.session import InferenceSession
from .blocks import Block
from .constants import Constants
from .messages import Line, arrays_of, fits, plain, room, said, tree, value_of
from .rows import ports


class Worker:
    """The session, the blocks known so far, and the run that is going on."""

    def __init__(self, line: Line) -> None:
        self.line = line
        self.blocks: dict[int, tuple[Block, Any]] = {}
        self.session: InferenceSession | None = None
        self.results: list[Any] = []
        self.running: RunOptions | None = None
        self.jobs: queue.SimpleQueue[tuple[dict[str, Any], list[int]]] = queue.SimpleQueue()

    def listen(self) -> None:
        """Put messages where `work` finds them; end the process with the other."""
        while True:
            try:
                message, files = self.line.receive()
            except OSError:
                os._exit(0)
            if message["do"] == "terminate":
                if (options := self.running) is not None:
                    options.terminate = True
            else:
                self.jobs.put((message, files))

    def work(self) -> None:
        """Do what comes, in order."""
        while True:
            message, files = self.jobs.get()
            for (number, size), file in zip(message["blocks"], files, strict=True):
                block = Block(number, size, file)
                self.blocks[number] = block, block.whole()
            try:
                reply = getattr(self, f"_{message['do']}")(message)
            except Exception as error:
                reply = said(error)
            self.line.send(reply)

    def _open(self, message: dict[str, Any]) -> dict[str, Any]:
        for name in message["imports"]:
            importlib.import_module(name)
        if message["cores"] and hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, message["cores"])
        options = SessionOptions()
        for name, value in message["options"].items():
            setattr(options, name, value)
        for key, value in message["entries"].items():
            options.add_session_config_entry(key, value)
        model: Any = message["model"]
        if isinstance(model, int):
            block, owner = self.blocks[model]
            held = block.array(owner, np.dtype(np.uint8), (message["length"],), 0)
            held.flags.writeable = False
            model = held.data
        self.session = InferenceSession(
            model, options, providers=message["providers"], provider_options=message["provider_options"]
        )
        return {"ports": ports(self.session)}

    def _run(self, message: dict[str, Any]) -> dict[str, Any]:
        assert self.session is not None
        self.running = options = RunOptions()
        for key, value in message["run_entries"].items():
            options.add_run_config_entry(key, value)
        feeds = {
            name: value_of(made, self._array(message["block"])) for name, made in message["feeds"].items()
        }
        try:
            self.results = plain(self.session.run(message["names"], feeds, options))
        finally:
            self.running = None
        del feeds
        wanted = message.get("into")
        if wanted is not None and self._fill(wanted):
            return {"done": True}
        size, places = room(arrays_of(self.results))
        at = iter(places)
        return {"size": size, "results": tree(self.results, lambda _: next(at))}

    def _put(self, message: dict[str, Any]) -> dict[str, Any]:
        array = self._array(message["block"])
        arrays = arrays_of(self.results)
        for each, at in zip(arrays, room(arrays)[1], strict=True):
            array(each.dtype, each.shape, at)[...] = each
        self.results = []
        return {"done": True}

    def _fill(self, wanted: list[dict[str, Any]]) -> bool:
        """Whether all results were put where they were wanted, being of those types and shapes."""
        for value, place in zip(self.results, wanted, strict=True):
            if (
                not isinstance(value, np.ndarray)
                or value.dtype.name != place["t"]
                or (list(value.shape) != place["shape"])
            ):
                return False
        for value, place in zip(self.results, wanted, strict=True):
            self._array(place["block"])(value.dtype, value.shape, place["at"])[...] = value
        self.results = []
        return True

    def _forget(self, message: dict[str, Any]) -> dict[str, Any]:
        for number in message["gone"]:
            block, _ = self.blocks.pop(number)
            block.close()
        return {"done": True}

    def _array(self, number: int) -> Any:
        if number < 0:
            return lambda dtype, shape, at: np.empty(shape, dtype)
        block, owner = self.blocks[number]

        def made(dtype: np.dtype, shape: tuple[int, ...], at: int) -> np.ndarray:
            fits(dtype, shape, at, block.size)
            return block.array(owner, dtype, shape, at)

        return made


def main() -> None:
    """Serve the socket whose number is the first argument; the second is that of the constants' file."""
    memory.share(Constants(int(sys.argv[2])).common)
    line = Line(socket.socket(fileno=int(sys.argv[1])))
    worker = Worker(line)
    threading.Thread(target=worker.listen, daemon=True).start()
    with contextlib.suppress(OSError, KeyboardInterrupt):
        worker.work()


if __name__ == "__main__":
    main()
