"""What a benchmark found, as records: a record in, JSON or a row of a CSV file out."""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterator
from typing import Any

from .results import write_rows, write_text


class BaseObject:
    """Attributes as a dict; `customized` holds more of them."""

    def __init__(self) -> None:
        self.customized: dict[str, Any] = {}

    def to_dict(self) -> dict[str, Any]:
        """The attributes by name, those of parts too, with what `customized` adds."""
        plain = {name: value.to_dict() if isinstance(value, BaseObject) else value
                 for name, value in vars(self).items() if name != "customized"}
        return plain | self.customized


class ModelInfo(BaseObject):
    """Which network."""

    def __init__(self, full_name: str | None = None, is_huggingface: bool | None = False,
                 is_text_generation: bool | None = False, short_name: str | None = None) -> None:
        super().__init__()
        self.full_name = full_name
        self.is_huggingface = is_huggingface
        self.is_text_generation = is_text_generation
        self.short_name = short_name
        self.input_shape: list[Any] = []


class BackendOptions(BaseObject):
    """How it was run."""

    def __init__(self, enable_profiling: bool | None = False, execution_provider: str | None = None,
                 use_io_binding: bool | None = False) -> None:
        super().__init__()
        self.enable_profiling = enable_profiling
        self.execution_provider = execution_provider
        self.use_io_binding = use_io_binding


class Config(BaseObject):
    """What was measured."""

    def __init__(self, backend: str | None = "onnxruntime", batch_size: int | None = 1,
                 seq_length: int | None = 0, precision: str | None = "fp32", warmup_runs: int | None = 1,
                 measured_runs: int | None = 10) -> None:
        super().__init__()
        self.backend = backend
        self.batch_size = batch_size
        self.seq_length = seq_length
        self.precision = precision
        self.warmup_runs = warmup_runs
        self.measured_runs = measured_runs
        self.model_info = ModelInfo()
        self.backend_options = BackendOptions()


class Metadata(BaseObject):
    """Where it was measured."""

    def __init__(self, device: str | None = None, package_name: str | None = None,
                 package_version: str | None = None, platform: str | None = None,
                 python_version: str | None = None) -> None:
        super().__init__()
        self.device = device
        self.package_name = package_name
        self.package_version = package_version
        self.platform = platform
        self.python_version = python_version


class Metrics(BaseObject):
    """What came out: milliseconds a run, queries a second, gigabytes at most."""

    def __init__(self, latency_ms_mean: float | None = 0.0, throughput_qps: float | None = 0.0,
                 max_memory_usage_GB: float | None = 0.0) -> None:
        super().__init__()
        self.latency_ms_mean = latency_ms_mean
        self.throughput_qps = throughput_qps
        self.max_memory_usage_GB = max_memory_usage_GB


class BenchmarkRecord:
    """One measurement: `config`, `metadata` and `metrics`, to be filled in."""

    def __init__(self, model_name: str, precision: str, backend: str, device: str, package_name: str,
                 package_version: str, batch_size: int | None = 1, warmup_runs: int | None = 1,
                 measured_runs: int | None = 10, trigger_date: str | None = None) -> None:
        self.config = Config(backend, batch_size, precision=precision, warmup_runs=warmup_runs,
                             measured_runs=measured_runs)
        self.config.model_info.full_name = model_name
        self.metadata = Metadata(device, package_name, package_version)
        self.metrics = Metrics()
        self.trigger_date = trigger_date or datetime.datetime.now().strftime("%Y-%m-%d %H:%M:%S")

    def to_dict(self) -> dict[str, Any]:
        """The record as dicts of plain values."""
        return {"config": self.config.to_dict(), "metadata": self.metadata.to_dict(),
                "metrics": self.metrics.to_dict(), "trigger_date": self.trigger_date}

    def to_json(self) -> str:
        """The record as JSON."""
        return json.dumps(self.to_dict(), default=str)

    @classmethod
    def save_as_csv(cls, file_name: str, records: list[BenchmarkRecord] | None) -> None:
        """Write a row per record; a column is called by the way to its value, `config.model_info.full_name`.
        No records, no file."""
        if not records:
            return
        rows = [dict(_flat(record.to_dict())) for record in records]
        write_rows(file_name, list(dict.fromkeys(name for row in rows for name in row)), rows)

    @classmethod
    def save_as_json(cls, file_name: str, records: list[BenchmarkRecord] | None) -> None:
        """Write the records as a JSON list. No records, no file."""
        if not records:
            return
        write_text(file_name, json.dumps([record.to_dict() for record in records], indent=4, default=str))


def _flat(values: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, dict) and value:
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
