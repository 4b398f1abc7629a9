"""`orthrus serve`: a folder of models behind HTTP and gRPC, until a signal comes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ..asked import import_modules
from .arguments import ImportOption, option_of, say

FolderArgument = Annotated[Path, typer.Argument(
    metavar="MODELS", help="A folder with NAME/VERSION/model.onnx or NAME.onnx.", show_default=False)]
HostOption = Annotated[str, option_of(
    "--host", metavar="ADDRESS", help="Where to listen; 127.0.0.1 by default: this machine's clients only.")]
PortOption = Annotated[int, option_of("--port", help="HTTP's port, 8000 by default; 0: any, -1: no HTTP.")]
GrpcPortOption = Annotated[int, option_of(
    "--grpc-port", help="gRPC's port, 8001 by default; 0: any, -1: no gRPC.")]
SlotsOption = Annotated[int, option_of(
    "--slots", min=1, help="Batches that run at once, 1 by default; each has its part of the processors.")]
ControlOption = Annotated[bool, option_of(
    "--control/--no-control", help="Whether requests may load and unload models; they may by default.")]
BodyOption = Annotated[int, option_of(
    "--max-body", min=1, metavar="BYTES", help="Bytes of one request at most, 256 MiB by default.")]
PendingOption = Annotated[int, option_of(
    "--max-pending", min=1, metavar="BYTES", help="Bytes of all requests at once, 1 GiB by default.")]
ConnectionsOption = Annotated[int, option_of(
    "--max-connections", min=1, help="Requests at once of each protocol, 1000 by default.")]
DrainOption = Annotated[float, option_of(
    "--drain", min=0.0, metavar="SECONDS", help="What requests have to end in, 30 by default.")]
PollOption = Annotated[float, option_of(
    "--poll", min=0.0, max=1.0, metavar="SECONDS",
    help="What the server looks for the next request before it sleeps, 0.0001 by default; 0: nothing.")]
TraceOption = Annotated[Path | None, option_of(
    "--trace", metavar="FILE", help="Write a trace of requests and runs that Perfetto opens.")]
VerboseOption = Annotated[bool, option_of("--verbose", "-v", help="Tell of each model that is loaded.")]


def command(
    models: FolderArgument, host: HostOption = "127.0.0.1", port: PortOption = 8000,
    grpc_port: GrpcPortOption = 8001, slots: SlotsOption = 1, control: ControlOption = True,
    max_body: BodyOption = 256 << 20, max_pending: PendingOption = 1 << 30,
    max_connections: ConnectionsOption = 1000, drain: DrainOption = 30.0, poll: PollOption = 100e-6,
    trace: TraceOption = None, verbose: VerboseOption = False, modules: ImportOption = None,
) -> None:
    """Serve the models of a folder by the Open Inference Protocol, as KServe's and Triton's clients speak it,
    until SIGINT or SIGTERM comes; requests that are in are answered then."""
    import logging

    from ...serving.server import Server, ServerOptions
    from ...shown import Shown

    import_modules(modules)
    handler = logging.StreamHandler()
    handler.setFormatter(Shown("%(levelname)s %(message)s"))
    log = logging.getLogger("orthrus.serving")
    log.addHandler(handler)
    log.setLevel(logging.INFO if verbose else logging.WARNING)

    def started(server: Any) -> None:
        where = [place for place in (server.url, server.grpc_address and f"grpc://{server.grpc_address}")
                 if place]
        say(f"serving {models} on {' and '.join(where)}")
    Server(ServerOptions(
        models, host, port if port >= 0 else None, grpc_port if grpc_port >= 0 else None, slots, control,
        max_body, pending=max_pending, connections=max_connections, drain=drain, poll=poll,
        trace=trace)).run(started)
