"""What a server counts, as Prometheus reads it. Labels are routes, statuses and model names, never anything sent."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from bertsmith.inference.engine import BatchStats

SECONDS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)
TOKENS = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16_384)
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Metrics:
    """The counters of one server; several servers in one process share none."""

    def __init__(self) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call] # when a counter was made is nobody's question, and would double the page
        self.registry = registry = CollectorRegistry()
        self.requests = _counter(registry, "requests", "Requests answered.", "route", "status")
        self.seconds = _histogram(registry, "request_seconds", "From request to answer.", SECONDS, "route")
        self.in_flight = Gauge("bertsmith_in_flight", "Requests under way.", registry=registry)
        self.rejections = _counter(registry, "rejections", "Requests refused for want of room.", "reason")
        self.truncations = _counter(registry, "truncations", "Texts that were cut because the caller allowed it.")
        self.tokens = _counter(registry, "tokens", "Tokens computed, special tokens included.", "route")
        self.batch_tokens = _histogram(registry, "batch_tokens", "Tokens computed together.", TOKENS, "model")
        self.batch_seconds = _histogram(registry, "batch_seconds", "Time of one batch.", SECONDS, "model")

    def watch_queue(self, queues: Callable[[], Iterable[tuple[str, int]]]) -> None:
        """Lets the number of waiting tokens be read, by model, when the metrics are."""
        self.registry.register(_Queue(queues))

    def batch(self, model: str, facts: BatchStats) -> None:
        """Counts one batch of a model."""
        self.batch_tokens.labels(model).observe(facts.tokens)
        self.batch_seconds.labels(model).observe(facts.seconds)

    def request(self, route: str, status: int, seconds: float, tokens: int) -> None:
        """Counts one answered request."""
        self.requests.labels(route, str(status)).inc()
        self.seconds.labels(route).observe(seconds)
        if tokens:
            self.tokens.labels(route).inc(tokens)

    def text(self) -> bytes:
        """All of it, in Prometheus' text form."""
        return generate_latest(self.registry)


class _Queue(Collector):
    def __init__(self, queues: Callable[[], Iterable[tuple[str, int]]]) -> None:
        self.queues = queues

    def collect(self) -> Iterable[Any]:
        found = GaugeMetricFamily("bertsmith_queue_tokens", "Tokens that wait to be computed.", labels=["model"])
        for model, tokens in self.queues():
            found.add_metric([model], tokens)
        yield found


def _counter(registry: CollectorRegistry, name: str, what: str, *labels: str) -> Counter:
    return Counter(f"bertsmith_{name}", what, labels, registry=registry)


def _histogram(
    registry: CollectorRegistry, name: str, what: str, buckets: tuple[float, ...], *labels: str
) -> Histogram:
    return Histogram(f"bertsmith_{name}", what, labels, registry=registry, buckets=buckets)
