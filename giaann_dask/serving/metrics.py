"""Define the Prometheus metrics of a server."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, ProcessCollector, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.metrics_core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

CONTENT_TYPE = CONTENT_TYPE_LATEST
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


class _WorkerCounter(Collector):
    """Counter with the label ``worker``."""

    def __init__(self, name: str, meaning: str, values: Callable[[], Mapping[str, float]]) -> None:
        self._name, self._meaning, self._values = name, meaning, values

    def collect(self) -> Iterator[Metric]:
        """Yield the present values."""
        family = CounterMetricFamily(self._name, self._meaning, labels=["worker"])
        for worker, value in sorted(self._values().items()):
            family.add_metric([worker], value)
        yield family


class Metrics:
    """The metrics of one server, in a registry of their own."""

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        self._network = Info("giaann_network", "The network that answers", registry=registry)
        self.requests = Counter("giaann_requests", "Answers by path and status", ["path", "status"], registry=registry)
        seconds = partial(Histogram, buckets=_SECONDS, registry=registry)
        self.request_s = seconds("giaann_request_seconds", "Time of a request, streams to their end", ["path"])
        self.first_token_s = seconds("giaann_first_token_seconds", "Time from a request to its first token")
        self.prompt_s = seconds("giaann_prompt_seconds", "Time the engine worked on a prompt")
        self.open_s = seconds("giaann_open_seconds", "Time to open a network on demand")
        self.tokens = Counter("giaann_tokens", "Tokens generated", registry=registry)
        self.prompt_tokens = Counter("giaann_prompt_tokens", "Tokens of prompts that were read", registry=registry)
        self.gone = Counter("giaann_gone", "Requests whose client went away before the end", registry=registry)

    def describe(self, name: str, commit: str) -> None:
        """Set the labels of the network."""
        self._network.info({"model": name, "commit": commit})

    def watch(self, name: str, meaning: str, value: Callable[[], float]) -> None:
        """Add a gauge whose value is read at each scrape."""
        Gauge(name, meaning, registry=self._registry).set_function(value)

    def watch_by_worker(self, name: str, meaning: str, values: Callable[[], Mapping[str, float]]) -> None:
        """Add a counter for each worker, whose values are read at each scrape."""
        self._registry.register(_WorkerCounter(name, meaning, values))

    def text(self) -> bytes:
        """Return all of them in Prometheus's text format."""
        return generate_latest(self._registry)
