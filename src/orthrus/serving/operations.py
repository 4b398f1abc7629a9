"""What a client may ask beside inferences: health, metadata, statistics, the repository, shared memory,
tracing and logging.

In: a request's fields as plain data. Out: the answer as plain data, in the form and with the names of the
protocol's messages, so that both protocols say the same. Each operation is a method; a Refusal says why not.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Mapping
from typing import Any

from ..api.version import VERSION
from .execution import Executor
from .inference import require_local
from .memory import Regions
from .refusals import Kind, Refusal, invalid, unknown, unsupported
from .repository import Found, Repository
from .tracing import Tracing

LOG = logging.getLogger("orthrus.serving")
EXTENSIONS = ("classification", "model_repository", "model_configuration", "system_shared_memory",
              "binary_tensor_data", "parameters", "statistics", "trace", "logging")
PLATFORM = "onnx_orthrus"
Plain = dict[str, Any]
LEVELS = {"log_error": logging.ERROR, "log_warning": logging.WARNING, "log_info": logging.INFO}


class Operations:
    """`control`: whether clients may load and unload models."""

    def __init__(self, repository: Repository, executor: Executor, regions: Regions, tracing: Tracing,
                 control: bool = True) -> None:
        self.repository, self.executor, self.regions = repository, executor, regions
        self.tracing, self.control, self.ready = tracing, control, False
        self._changing = asyncio.Lock()

    def server_live(self) -> Plain:
        return {"live": True}

    def server_ready(self) -> Plain:
        return {"ready": self.ready and not self.executor.closing}

    def model_ready(self, name: str, version: str = "") -> Plain:
        try:
            self.repository.get(name, version)
        except Refusal:
            return {"ready": False}
        return {"ready": not self.executor.closing}

    def server_metadata(self) -> Plain:
        return {"name": "orthrus", "version": VERSION, "extensions": list(EXTENSIONS)}

    def model_metadata(self, name: str, version: str = "") -> Plain:
        found = self.repository.get(name, version)
        return {"name": name, "platform": PLATFORM,
                "versions": [str(each) for each in self.repository.entries[name].versions],
                "inputs": [each.plain() for each in found.inputs.values()],
                "outputs": [each.plain() for each in found.outputs.values()]}

    def model_config(self, name: str, version: str = "") -> Plain:
        """As Triton's model configuration has it; its shapes leave out the dimension of batches."""
        found = self.repository.get(name, version)
        joined = found.config.max_batch_size > 1
        made: Plain = {"name": name, "platform": PLATFORM, "backend": "orthrus",
                       "max_batch_size": found.config.max_batch_size if joined else 0}
        for what, tensors in (("input", found.inputs), ("output", found.outputs)):
            made[what] = [{"name": each.name, "data_type": f"TYPE_{_config_name(each.kind.name)}",
                           "dims": list(each.shape[joined:])} for each in tensors.values()]
        if joined:
            made["dynamic_batching"] = {"max_queue_delay_microseconds": int(found.config.max_delay * 1e6)}
        return made

    def model_statistics(self, name: str = "", version: str = "") -> Plain:
        if version and not name:
            raise invalid("statistics of a version need the model's name")
        if not name:
            chosen = self.repository.all()
        elif version:
            chosen = [self.repository.get(name, version)]
        else:
            self.repository.get(name)
            chosen = list(self.repository.entries[name].versions.values())
        return {"model_stats": [{"name": each.name, "version": str(each.version),
                                 **each.statistics.plain()} for each in chosen]}

    async def repository_index(self, repository_name: str = "", ready: bool = False) -> Plain:
        _one_repository(repository_name)
        return {"models": await asyncio.to_thread(self.repository.index, bool(ready))}

    async def repository_model_load(self, model_name: str, repository_name: str = "",
                                    parameters: Mapping[str, Any] | None = None) -> Plain:
        """Load a model anew: what is served goes on until the new one is ready. Raises Refusal."""
        self._controlled(repository_name)
        if parameters:
            raise unsupported(f"parameter {next(iter(parameters))!r:.100}: a model's file and its settings "
                              f"are what lies in the repository")
        async with self._changing:
            found = (await asyncio.to_thread(self.repository.scan)).get(model_name)
            if found is None:
                raise unknown(f"the repository holds no model {model_name!r:.220}")
            await self._load(found)
        return {}

    async def repository_model_unload(self, model_name: str, repository_name: str = "",
                                      parameters: Mapping[str, Any] | None = None) -> Plain:
        self._controlled(repository_name)
        async with self._changing:
            for version in self.repository.take(model_name):
                self.executor.retire(version)
            LOG.info("unloaded %s", model_name)
        return {}

    async def load_all(self) -> None:
        """Load what the repository holds; a model that can't be is told of, and the others are served."""
        async with self._changing:
            for found in (await asyncio.to_thread(self.repository.scan)).values():
                with contextlib.suppress(Refusal):
                    await self._load(found)
        self.ready = True

    async def _load(self, found: Found) -> None:
        try:
            versions = await asyncio.to_thread(self.repository.make, found)
        except Exception as error:
            reason = self.repository.reason(error)
            self.repository.failed(found, reason)
            LOG.error("model %s can't be served: %s", found.name, reason)
            raise Refusal(Kind.INVALID, f"model {found.name!r} can't be loaded: {reason}") from error
        for version in versions:
            self.executor.serve(version)
        for old in self.repository.put(found, versions):
            self.executor.retire(old)
        LOG.info("loaded %s, versions %s", found.name, ", ".join(str(v.version) for v in versions))

    def _controlled(self, repository_name: str) -> None:
        _one_repository(repository_name)
        if not self.control:
            raise Refusal(Kind.FORBIDDEN, "this server was told that no request loads or unloads models")
        if self.executor.closing:
            raise Refusal(Kind.CLOSING, "the server is shutting down")

    def system_shared_memory_status(self, name: str = "", local: bool = False) -> Plain:
        require_local(local)
        return {"regions": self.regions.status(name)}

    def system_shared_memory_register(self, name: str, key: str = "", offset: int = 0, byte_size: int = 0,
                                      local: bool = False) -> Plain:
        require_local(local)
        self.regions.register(name, key, offset, byte_size)
        return {}

    def system_shared_memory_unregister(self, name: str = "", local: bool = False) -> Plain:
        require_local(local)
        self.regions.unregister(name)
        return {}

    def cuda_shared_memory_status(self, name: str = "") -> Plain:
        if name:
            raise unknown(f"no CUDA shared memory region {name!r:.260} is registered")
        return {"regions": {}}

    def cuda_shared_memory_register(self, name: str, **_: Any) -> Plain:
        raise unsupported("CUDA shared memory is not taken; register system shared memory instead")

    def cuda_shared_memory_unregister(self, name: str = "") -> Plain:
        return {}

    def trace_setting(self, settings: Mapping[str, Any] | None = None, model_name: str = "") -> Plain:
        if model_name:
            self.repository.get(model_name)
            if settings:
                raise unsupported("trace settings are the server's; leave the model's name out")
        self.tracing.change(dict(settings or {}))
        return {"settings": self.tracing.settings()}

    def log_settings(self, settings: Mapping[str, Any] | None = None) -> Plain:
        level = LOG.level
        for name, value in (settings or {}).items():
            if name in LEVELS and value.__class__ is bool:
                severity = LEVELS[name]
                level = min(level, severity) if value else max(level, severity + 10)
            elif name == "log_verbose_level" and value.__class__ is int and value >= 0:
                level = logging.DEBUG if value else max(level, logging.INFO)
            elif name not in self._log() or value != self._log()[name]:
                raise invalid(f"log setting {name!r:.100} can't be set to {value!r:.100} by a request")
        LOG.setLevel(level)
        return {"settings": self._log()}

    def _log(self) -> Plain:
        level = LOG.getEffectiveLevel()
        return {"log_file": "", **{name: level <= severity for name, severity in LEVELS.items()},
                "log_verbose_level": int(level <= logging.DEBUG), "log_format": "default"}


def _one_repository(name: str) -> None:
    if name:
        raise unknown(f"no repository is called {name!r:.100}; there is one, without a name")


def _config_name(datatype: str) -> str:
    return "STRING" if datatype == "BYTES" else datatype
