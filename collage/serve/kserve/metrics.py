"""The metrics of a module's server."""

from __future__ import annotations

_LATENCIES_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


class ModuleMetrics:
    """The counters and histograms of a server, in a registry of their own."""

    def __init__(self) -> None:
        from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

        self.registry = CollectorRegistry()
        self._open = Gauge("collage_requests_running", "Requests for inference that are open.", registry=self.registry)
        self._ended = Counter(
            "collage_requests", "Requests for inference that were answered.", ["status"], registry=self.registry
        )
        self._errors = Counter("collage_http_errors", "Answers other than 200.", ["status"], registry=self.registry)
        self._seconds = Histogram(
            "collage_request_seconds",
            "From a request for inference to its answer, if that is 200.",
            buckets=_LATENCIES_S,
            registry=self.registry,
        )

    def begun(self) -> None:
        self._open.inc()

    def ended(self, status: int, seconds: float) -> None:
        self._open.dec()
        self._ended.labels(status=str(status)).inc()
        if status == 200:
            self._seconds.observe(seconds)

    def refused(self, status: int) -> None:
        self._errors.labels(status=str(status)).inc()

    def text(self) -> bytes:
        from prometheus_client import generate_latest

        found: bytes = generate_latest(self.registry)
        return found
