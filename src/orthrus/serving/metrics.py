"""The server's counts as Prometheus reads them.

In: the statistics of every version. Out: text in Prometheus' form. Nothing is counted here: what is asked for
is collected when it is asked for.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .budget import Budget
from .execution import Executor
from .repository import Repository
from .statistics import BUCKETS


class Metrics:
    """A registry of its own, so that nothing of another library is told."""

    def __init__(self, repository: Repository, executor: Executor, budget: Budget) -> None:
        from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

        self.repository, self.executor, self.budget = repository, executor, budget
        self._registry, self._generate = CollectorRegistry(), generate_latest
        self._registry.register(self)
        self.content_type = CONTENT_TYPE_LATEST.encode()

    def text(self) -> bytes:
        return self._generate(self._registry)

    def collect(self) -> Iterator[Any]:
        """What prometheus_client asks a collector for."""
        from prometheus_client.core import (
            CounterMetricFamily,
            GaugeMetricFamily,
            HistogramMetricFamily,
        )

        by = ["model", "version"]
        answered = CounterMetricFamily("orthrus_requests_answered", "Requests with a result.", labels=by)
        failed = CounterMetricFamily("orthrus_requests_failed", "Requests without a result.", labels=by)
        refused = CounterMetricFamily("orthrus_requests_refused", "Requests that did not run, by reason.",
                                      labels=[*by, "reason"])
        rows = CounterMetricFamily("orthrus_rows", "Rows that were computed.", labels=by)
        batches = CounterMetricFamily("orthrus_batches", "Runs of a session.", labels=by)
        busy = CounterMetricFamily("orthrus_run_seconds", "Seconds of all runs.", labels=by)
        waiting = GaugeMetricFamily("orthrus_requests_waiting", "Requests that wait now.", labels=by)
        running = GaugeMetricFamily("orthrus_requests_running", "Requests that run now.", labels=by)
        latency = HistogramMetricFamily("orthrus_request_seconds", "Seconds from a request's arrival to its "
                                        "answer.", labels=by)
        for version in self.repository.all():
            labels, found = [version.name, str(version.version)], version.statistics
            answered.add_metric(labels, found.success.count)
            failed.add_metric(labels, found.fail.count)
            for reason, number in found.refused.items():
                refused.add_metric([*labels, reason], number)
            rows.add_metric(labels, found.rows)
            batches.add_metric(labels, found.executions)
            busy.add_metric(labels, sum(each.ns for each in found.batches.values()) / 1e9)
            for gauge, value in zip((waiting, running), self.executor.waiting(version), strict=True):
                gauge.add_metric(labels, value)
            total, buckets = 0, list[tuple[str, float]]()
            for end, number in zip((*map(str, BUCKETS), "+Inf"), found.latency, strict=True):
                total += number
                buckets.append((end, total))
            latency.add_metric(labels, buckets, found.seconds)
        yield from (answered, failed, refused, rows, batches, busy, waiting, running, latency)
        held = GaugeMetricFamily("orthrus_request_bytes", "Bytes of requests that are held now.")
        held.add_metric([], self.budget.held)
        yield held
