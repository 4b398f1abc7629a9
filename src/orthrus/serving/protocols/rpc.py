"""The Open Inference Protocol over gRPC.

In: messages of the protocol. Out: its answers. A call's bytes are parsed here, so that what is no message is
an INVALID_ARGUMENT like every other mistake of a client; each Refusal becomes its kind's status. All of it is
on the server's event loop.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from .. import refusals, tensors
from ..budget import Budget
from ..inference import Inputs, delivered, timeout_of, wanted
from ..operations import LOG, Operations, Plain
from ..refusals import Refusal, invalid, large
from ..tensors import Datatype
from .messages import Messages, messages

AHEAD = 64
"""Requests of one stream that are under way at once."""


class Rpc:
    """`most`: bytes of a request."""

    def __init__(self, operations: Operations, budget: Budget, most: int) -> None:
        self.operations, self.budget, self.most = operations, budget, most
        self.messages: Messages = messages()
        self._infer = self.messages.types["ModelInferRequest"]
        self._inferred = self.messages.types["ModelInferResponse"]
        self._streamed = self.messages.types["ModelStreamInferResponse"]

    def handlers(self) -> dict[str, Any]:
        """What grpc calls by a method's name, from bytes to a message."""
        import grpc

        made = dict[str, Any]()
        for method in self.messages.methods:
            write = method.response.SerializeToString
            if method.streams:
                made[method.name] = grpc.stream_stream_rpc_method_handler(self.stream, None, write)
            else:
                call = self.infer if method.request is self._infer else self._operation(method)
                made[method.name] = grpc.unary_unary_rpc_method_handler(self._guarded(call), None, write)
        return made

    def _guarded(self, call: Callable[[bytes, Any], Any]) -> Any:
        import grpc

        async def guarded(data: bytes, context: Any) -> Any:
            try:
                self.budget.take(len(data))
                try:
                    return await call(data, context)
                finally:
                    self.budget.give(len(data))
            except Exception as error:
                if not isinstance(error, Refusal):
                    LOG.debug("a call failed", exc_info=error)
                refusal = refusals.of(error)
            if refusal.retry_after is not None:
                pushback = str(max(1, int(refusal.retry_after * 1000)))
                context.set_trailing_metadata((("grpc-retry-pushback-ms", pushback),))
            await context.abort(getattr(grpc.StatusCode, refusal.kind.grpc), refusal.text)
        return guarded

    def _operation(self, method: Any) -> Callable[[bytes, Any], Any]:
        name = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", method.name).lower()
        operate = getattr(self.operations, name)

        async def call(data: bytes, context: Any) -> Any:
            from google.protobuf.json_format import ParseDict

            given = _fields(self._parsed(method.request, data))
            if name.startswith("system_shared_memory"):
                given["local"] = _local(context)
            required = {"name": ""} if name in NAMED else {"model_name": ""} if name in MODEL_NAMED else {}
            answer: Plain = operate(**{**required, **given})
            if asyncio.iscoroutine(answer):
                answer = await answer
            return ParseDict(_shaped(name, answer), method.response())
        return call

    def _parsed(self, kind: Any, data: bytes) -> Any:
        from google.protobuf.message import DecodeError

        if len(data) > self.most:
            raise large("a message", len(data), self.most)
        try:
            return kind.FromString(data)
        except (DecodeError, ValueError) as error:
            raise invalid(f"the message is no {kind.DESCRIPTOR.name}: {error}") from None

    async def infer(self, data: bytes, context: Any) -> Any:
        """One inference."""
        operations, clock = self.operations, self.operations.executor.clock
        arrived, local = clock(), _local(context)
        request = self._parsed(self._infer, data)
        version = operations.repository.get(request.model_name, request.model_version)
        inputs = _inputs(Inputs(version, operations.regions, local), request)
        outputs = wanted(version, [(each.name, _values(each.parameters)) for each in request.outputs], local)
        limits = [limit for limit in (context.time_remaining(), timeout_of(_values(request.parameters)))
                  if limit is not None]
        read = clock()
        job = await operations.executor.run(version, inputs, [each.name for each in outputs], arrived,
                                            min(limits, default=None))
        assert job.result is not None
        response = self._inferred(model_name=version.name, model_version=str(version.version), id=request.id)
        for each in delivered(version, job.result, outputs, operations.regions):
            made = response.outputs.add(name=each.name, datatype=each.kind.name, shape=each.shape)
            for name, value in each.parameters.items():
                field = "string_param" if isinstance(value, str) else "int64_param"
                setattr(made.parameters[name], field, value)
            data = b"" if each.array is None else bytes(tensors.to_bytes(each.array))
            response.raw_output_contents.append(data)
        version.statistics.answered(read - arrived, job.started - job.arrived, job.ended - job.started,
                                    clock() - job.ended)
        return response

    async def stream(self, requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[Any]:
        """Inferences on one stream: they run side by side, and are answered in their order. One that fails
        is answered with its error, and the stream goes on."""
        waiting = asyncio.Queue[Any](AHEAD)

        async def read() -> None:
            async for data in requests:
                await waiting.put(asyncio.ensure_future(self._one(data, context)))
            await waiting.put(None)
        reader = asyncio.ensure_future(read())
        try:
            while (task := await self._next(waiting, reader)) is not None:
                yield await task
        finally:
            reader.cancel()
            while not waiting.empty():
                if (task := waiting.get_nowait()) is not None:
                    task.cancel()

    async def _next(self, waiting: asyncio.Queue[Any], reader: asyncio.Future[None]) -> Any:
        if not waiting.empty() or reader.done():
            return waiting.get_nowait() if not waiting.empty() else None
        taken = asyncio.ensure_future(waiting.get())
        await asyncio.wait((taken, reader), return_when=asyncio.FIRST_COMPLETED)
        if taken.done():
            return taken.result()
        taken.cancel()
        return None if waiting.empty() else waiting.get_nowait()

    async def _one(self, data: bytes, context: Any) -> Any:
        try:
            self.budget.take(len(data))
            try:
                response = await self.infer(data, context)
                asked = self._infer.FromString(data).parameters
            finally:
                self.budget.give(len(data))
        except Exception as error:
            return self._streamed(error_message=refusals.of(error).text)
        if "triton_enable_empty_final_response" in asked:
            response.parameters["triton_final_response"].bool_param = True
        return self._streamed(infer_response=response)


NAMED = frozenset({"model_ready", "model_metadata", "model_config", "system_shared_memory_register",
                   "cuda_shared_memory_register"})
MODEL_NAMED = frozenset({"repository_model_load", "repository_model_unload"})


def _inputs(inputs: Inputs, request: Any) -> dict[str, np.ndarray]:
    """The inputs of a request: from raw contents, one for each that is not in shared memory, or each from its
    own."""
    raw, used = request.raw_input_contents, 0
    for item in request.inputs:
        parameters = _values(item.parameters)
        shared = "shared_memory_region" in parameters
        if not shared and len(raw) and used >= len(raw):
            raise invalid(f"input {item.name!r:.100}: {len(raw)} raw contents, which is fewer than there are "
                          f"inputs")
        if len(raw) and item.HasField("contents"):
            raise invalid(f"input {item.name!r:.100} has contents of its own beside raw ones")
        data = raw[used] if len(raw) and not shared else None
        used += data is not None
        read = partial(_contents, item.contents) if data is None else partial(tensors.of_bytes, data)
        inputs.take(item.name, item.datatype, tuple(item.shape), parameters, read)
    if used != len(raw):
        raise invalid(f"{len(raw)} raw contents; the inputs take {used}")
    return inputs.done()


def _contents(contents: Any, kind: Datatype, shape: tuple[int, ...], what: str) -> np.ndarray:
    filled = [field.name for field, _ in contents.ListFields()]
    if not kind.contents:
        raise invalid(f"{what}: {kind.name} is taken from raw_input_contents only")
    if filled and filled != [kind.contents]:
        raise invalid(f"{what}: {kind.name} is in {kind.contents}, found {', '.join(filled)}")
    return tensors.of_list(list(getattr(contents, kind.contents)), kind, shape, what)


def _values(parameters: Any) -> dict[str, Any]:
    return {name: _value(each) for name, each in parameters.items()} if parameters else {}


def _value(message: Any) -> Any:
    """The one field of a oneof that is set, or the list of a setting."""
    oneofs = message.DESCRIPTOR.oneofs
    if not oneofs:
        return list(message.value)
    name = message.WhichOneof(oneofs[0].name)
    return None if name is None else getattr(message, name)


def _fields(message: Any) -> dict[str, Any]:
    return {field.name: _values(value) if field.message_type is not None else value
            for field, value in message.ListFields()}


def _shaped(name: str, answer: Plain) -> Mapping[str, Any]:
    """An answer in the form of its message, where that is another."""
    if name == "model_config":
        return {"config": answer}
    if name == "trace_setting":
        return {"settings": {key: {"value": value} for key, value in answer["settings"].items()}}
    if name == "log_settings":
        kinds = {bool: "bool_param", int: "uint32_param", str: "string_param"}
        return {"settings": {key: {kinds[type(value)]: value} for key, value in answer["settings"].items()}}
    return answer


def _local(context: Any) -> bool:
    peer: str = context.peer()
    return peer.startswith(("ipv4:127.0.0.1:", "ipv6:[::1]:", "ipv6:%5B::1%5D:", "unix:"))


class RpcFront:
    """grpc's server around the calls. `address`: where it listens."""

    def __init__(self, rpc: Rpc, host: str, port: int, calls: int, drain: float) -> None:
        """Raises InvalidArgument where the address can't be had."""
        import grpc.aio

        from ...errors import InvalidArgument

        self._drain = drain
        self._server = grpc.aio.server(
            maximum_concurrent_rpcs=calls,
            options=[("grpc.max_receive_message_length", rpc.most), ("grpc.so_reuseport", 0),
                     ("grpc.max_send_message_length", -1), ("grpc.max_metadata_size", 1 << 15)])
        service = rpc.messages.service
        calls_of = grpc.method_handlers_generic_handler(service, rpc.handlers())
        self._server.add_generic_rpc_handlers((calls_of,))
        name = f"[{host}]" if ":" in host else host
        try:
            chosen = self._server.add_insecure_port(f"{name}:{port}")
        except RuntimeError as error:
            raise InvalidArgument(f"the server can't listen on {name}:{port}: {error}",
                                  cure="choose another port, or 0 for any that is free") from None
        self.address = f"{name}:{chosen}"

    async def start(self) -> None:
        await self._server.start()

    async def stop(self) -> None:
        await self._server.stop(self._drain)
