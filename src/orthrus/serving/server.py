"""The server: a folder of models behind HTTP and gRPC, from start to graceful end.

In: `ServerOptions`. Out: a `Server` that listens. Both protocols, the schedule and the repository live on one
event loop, on the thread that `run` is called on or one of the server's own; sessions run there or on the
executor's threads. It listens on loopback unless it is told otherwise.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import ipaddress
import logging
import signal
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import field
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ..errors import Fail, InvalidArgument
from ..processors import usable
from ..records import dataclass
from .budget import Budget
from .execution import Executor
from .memory import Regions
from .metrics import Metrics
from .operations import LOG, Operations
from .polling import Polling
from .protocols.body import Bounds
from .protocols.http import Http
from .protocols.rpc import Rpc, RpcFront
from .repository import Repository
from .tracing import Tracing

CONNECTIONS = 4
"""HTTP's connections by its requests at once: one over that is closed without the protocol's words."""


@dataclass(frozen=True)
class ServerOptions:
    """`models`: the repository's folder. A port of 0 is any free one, None for no such protocol. `slots`:
    batches that run at once; each has the processors by the slots. `control`: whether requests may load and
    unload models. `body`, `json`: bytes of a request, and of its JSON; `pending`: bytes of all requests at
    once; `connections`: HTTP's and gRPC's requests at once. `arrive`: seconds a request may take to arrive;
    `idle`: after so many a connection without a request is closed; `drain`: seconds that requests have to end
    when the server does. `poll`: seconds that the server looks for the next request before it sleeps, where
    requests come that fast; 0: none. `trace`: where a trace of requests is written."""

    models: Path
    host: str = "127.0.0.1"
    port: int | None = 8000
    grpc_port: int | None = 8001
    slots: int = 1
    control: bool = True
    body: int = 256 << 20
    json: int = 32 << 20
    pending: int = 1 << 30
    connections: int = 1000
    arrive: float = 30.0
    idle: float = 60.0
    drain: float = 30.0
    poll: float = 100e-6
    trace: Path | None = None

    def __post_init__(self) -> None:
        for name in ("port", "grpc_port"):
            port = getattr(self, name)
            if port is not None and not 0 <= port < 65536:
                raise InvalidArgument(f"{name} is {port}", expected="0 to 65535")
        if self.port is None and self.grpc_port is None:
            raise InvalidArgument("a server without a port", cure="give it a port for HTTP or for gRPC")
        for name in ("slots", "body", "json", "pending", "connections", "arrive", "idle"):
            if not getattr(self, name) > 0:
                raise InvalidArgument(f"{name} is {getattr(self, name)}", expected="above 0")
        if not 0 <= self.poll <= 1:
            raise InvalidArgument(f"poll is {self.poll}", expected="0 to 1 seconds")

    @property
    def local(self) -> bool:
        """Whether only this machine's clients reach it."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"


@dataclass
class _Running:
    """What is there while the server is: the event loop, and what ends it."""

    loop: asyncio.AbstractEventLoop
    end: asyncio.Event
    operations: Operations = field(repr=False)


class Server:
    """A server of its own thread:

        with Server(ServerOptions(Path("models"), port=0)) as server:
            print(server.url)

    or on this thread until a signal comes: `Server(options).run()`. `url` and `grpc_address` say where it
    listens; they are empty where it doesn't.
    """

    def __init__(self, options: ServerOptions) -> None:
        """Raises InvalidArgument where there is no such folder, and Fail where the libraries are not
        here."""
        _libraries(options)
        self.options = options
        self.url = self.grpc_address = ""
        self._repository = Repository(options.models, max(1, len(usable()) // options.slots))
        self._running: _Running | None = None
        self._thread: threading.Thread | None = None

    def run(self, started: Any = None) -> None:
        """Serve until SIGINT or SIGTERM. `started` is called once every model has been loaded; what is there
        by then is no longer looked through for garbage, which would stop all requests for milliseconds."""
        def ready(server: Server) -> None:
            gc.collect()
            gc.freeze()
            if started is not None:
                started(server)
        _loop_of()(self._main(ready, signals=True))

    def start(self) -> Server:
        """Serve on a thread; back once every model has been loaded. Raises what kept it from starting."""
        ready = Future[None]()

        def serve() -> None:
            try:
                _loop_of()(self._main(lambda _: ready.set_result(None)))
            except BaseException as error:
                if not ready.done():
                    ready.set_exception(error)
                else:
                    LOG.exception("the server ended")
        self._thread = threading.Thread(target=serve, name="orthrus-serve", daemon=True)
        self._thread.start()
        ready.result()
        return self

    def stop(self) -> None:
        """End: no more requests are let in, and those inside are answered."""
        running, thread = self._running, self._thread
        if running is not None:
            with contextlib.suppress(RuntimeError):
                running.loop.call_soon_threadsafe(running.end.set)
        if thread is not None:
            thread.join()
            self._thread = None

    def __enter__(self) -> Server:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    async def _main(self, started: Any, signals: bool = False) -> None:
        options, loop, end = self.options, asyncio.get_running_loop(), asyncio.Event()
        tracing = Tracing(options.trace)
        executor = Executor(options.slots, tracing)
        regions, budget = Regions(options.body), Budget(options.pending)
        operations = Operations(self._repository, executor, regions, tracing, options.control)
        self._running = _Running(loop, end, operations)
        if signals:
            for each in (signal.SIGINT, signal.SIGTERM):
                loop.add_signal_handler(each, end.set)
        fronts, stuck = list[Any](), False
        try:
            if options.port is not None:
                metrics = Metrics(self._repository, executor, budget)
                bounds = Bounds(options.body, options.json, options.arrive)
                polling = Polling(loop, executor.clock, options.poll)
                application = Http(operations, metrics, bounds, budget, polling, options.local,
                                   options.connections)
                fronts.append(_HttpFront(options, application))
                self.url = fronts[-1].address
            if options.grpc_port is not None:
                rpc = Rpc(operations, budget, options.body)
                fronts.append(RpcFront(rpc, options.host, options.grpc_port, options.connections,
                                       options.drain))
                self.grpc_address = fronts[-1].address
            for front in fronts:
                await front.start()
            await operations.load_all()
            if started is not None:
                started(self)
            await end.wait()
            LOG.info("shutting down: %d requests are inside", executor.inside)
            inside = executor.inside
            if not await executor.drain(options.drain):
                stuck = True
                LOG.warning("of %d requests not all were answered in %g s", inside, options.drain)
        finally:
            await asyncio.gather(*(front.stop() for front in fronts))
            executor.close()
            regions.unregister()
            if not stuck:
                for version in self._repository.all():
                    version.session.close()
            tracing.write()
            self._running, self.url, self.grpc_address = None, "", ""


class _HttpFront:
    """uvicorn around the application, with sockets and signals that are this module's."""

    def __init__(self, options: ServerOptions, application: Http) -> None:
        import uvicorn

        from .protocols.wire import Connection

        class Quiet(uvicorn.Server):  # type: ignore[misc]
            """Leaves the process' signals to this module."""

            @contextlib.contextmanager
            def capture_signals(self) -> Iterator[None]:
                yield
        logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
        self._socket = _bound(options.host, options.port or 0)
        host, port = self._socket.getsockname()[:2]
        self.address = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
        self._server = Quiet(uvicorn.Config(
            application, http=partial(Connection, {}), interface="asgi3", ws="none", lifespan="off",
            log_config=None, access_log=False, server_header=False, date_header=False, proxy_headers=False,
            backlog=options.connections, limit_concurrency=CONNECTIONS * options.connections,
            timeout_keep_alive=max(1, int(options.idle)),
            timeout_graceful_shutdown=max(1, int(options.drain))))
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._task = asyncio.create_task(self._server.serve(sockets=[self._socket]))
        while not self._server.started:
            if self._task.done():
                await self._task
                raise Fail("the HTTP server did not start")
            await asyncio.sleep(0.005)

    async def stop(self) -> None:
        self._server.should_exit = True
        if self._task is not None:
            await self._task
        self._socket.close()


def _bound(host: str, port: int) -> socket.socket:
    """A socket that listens. Raises InvalidArgument where the address can't be had."""
    try:
        family, kind, proto, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        made = socket.socket(family, kind, proto)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(address)
    except OSError as error:
        raise InvalidArgument(f"the server can't listen on {host}:{port}: {error.strerror or error}",
                              cure="choose another port, or 0 for any that is free") from None
    return made


def _loop_of() -> Any:
    """What runs a coroutine: uvloop where it is here, asyncio elsewhere."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run
    return uvloop.run


def _libraries(options: ServerOptions) -> None:
    wanted = [("uvicorn", options.port), ("httptools", options.port), ("orjson", options.port),
              ("prometheus_client", options.port), ("grpc", options.grpc_port)]
    for name, port in wanted:
        if port is not None and find_spec(name) is None:
            raise Fail(f"the server needs {name}, which is not here",
                       cure="pip install 'orthrus-runtime[serve]'")
