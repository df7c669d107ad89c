"""What ``/metrics`` shows."""

from __future__ import annotations

import time
from dataclasses import dataclass

from collage.serve.http.messages import Batch
from collage.serve.request import Stats

_LATENCIES_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_TOKENS = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 512)
_TOTALS = {
    "iterations": "Iterations that the engine has run.",
    "prompt_tokens": "Tokens of prompts that were admitted.",
    "cached_tokens": "Tokens of prompts that were found in the cache.",
    "generated_tokens": "Tokens of answers.",
    "preemptions": "Sequences that were driven out and computed again.",
    "evictions": "Kept blocks of the cache that were handed out again.",
}


@dataclass
class _Times:
    arrival_s: float
    token_s: float | None = None


class Metrics:
    """The counters and histograms of a server, in a registry of their own."""

    def __init__(self) -> None:
        from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

        self.registry = CollectorRegistry()

        def gauge(name: str, text: str) -> Gauge:
            return Gauge(f"collage_{name}", text, registry=self.registry)

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"collage_{name}", text, labels, registry=self.registry)

        def histogram(name: str, text: str, buckets: tuple[float, ...] = _LATENCIES_S) -> Histogram:
            return Histogram(f"collage_{name}", text, buckets=buckets, registry=self.registry)

        self._running = gauge("requests_running", "Sequences that have blocks of the cache.")
        self._waiting = gauge("requests_waiting", "Sequences that wait for their first iteration.")
        self._used = gauge("cache_blocks_used", "Blocks of the cache that sequences use.")
        self._blocks = gauge("cache_blocks", "Blocks of the cache.")
        self._usage = gauge("cache_usage_ratio", "The share of the cache's blocks that sequences use.")
        self._up = gauge("engine_up", "1 while the engine's process takes requests.")
        self._totals = {name: counter(name, text) for name, text in _TOTALS.items()}
        self._scheduler = counter("scheduler_seconds", "Time spent between iterations.")
        self._busy = counter("model_seconds", "Time spent in iterations.")
        self._restarts = counter("engine_restarts", "Times that the engine's process was started again.")
        self._ended = counter("requests", "Sequences that have ended.", "finish")
        self._refused = counter("http_errors", "Answers other than 200, and streams that failed.", "status")
        self._first = histogram("time_to_first_token_seconds", "From a request to its first token.")
        self._between = histogram("time_between_tokens_seconds", "From a token to the next one.")
        self._whole = histogram("request_seconds", "From a request to the end of its answer.")
        self._iteration = histogram("iteration_seconds", "The time of an iteration.")
        self._tokens = histogram("iteration_tokens", "The tokens of an iteration.", _TOKENS)
        self._last = Stats()
        self._times: dict[int, _Times] = {}

    def sizes(self, block_count: int) -> None:
        self._state(self._last._replace(block_count=block_count))

    def arrived(self, id: int, time_s: float) -> None:
        self._times[id] = _Times(time_s)

    def refused(self, status: int) -> None:
        self._refused.labels(status=str(status)).inc()

    def batch(self, batch: Batch) -> None:
        now = time.monotonic()
        for event in batch.events:
            times = self._times.get(event.id)
            if times is None:
                continue
            if event.token is not None:
                if times.token_s is None:
                    self._first.observe(now - times.arrival_s)
                else:
                    self._between.observe(now - times.token_s)
                times.token_s = now
            if event.finish is not None:
                self._ended.labels(finish=event.finish.value).inc()
                self._whole.observe(now - times.arrival_s)
                del self._times[event.id]
        if batch.iteration is not None:
            self._iteration.observe(batch.iteration.seconds)
            self._tokens.observe(batch.iteration.tokens)
        self._state(batch.stats)

    def died(self) -> None:
        for _ in self._times:
            self._ended.labels(finish="failed").inc()
        self._times.clear()
        self._state(Stats(block_count=self._last.block_count))
        self._restarts.inc()

    def text(self, up: bool) -> bytes:
        from prometheus_client import generate_latest

        self._up.set(up)
        found: bytes = generate_latest(self.registry)
        return found

    def _state(self, stats: Stats) -> None:
        self._running.set(stats.running)
        self._waiting.set(stats.waiting)
        self._used.set(stats.blocks_used)
        self._blocks.set(stats.block_count)
        self._usage.set(stats.blocks_used / max(stats.block_count, 1))
        for name, counter in self._totals.items():
            counter.inc(max(0, getattr(stats, name) - getattr(self._last, name)))
        self._scheduler.inc(max(0.0, stats.scheduler_s - self._last.scheduler_s))
        self._busy.inc(max(0.0, stats.busy_s - self._last.busy_s))
        self._last = stats
