"""A time line of iterations and requests, in the format of Chrome's trace viewer and Perfetto."""

from __future__ import annotations

from collections import deque
from typing import Any

from collage.serve.request import IterationRecord

_ITERATIONS, _SCHEDULER = 1, 2


class Trace:
    """The latest iterations and the latest requests that have ended."""

    def __init__(self, most: int) -> None:
        """Keep this many iterations and as many requests; 0 keeps none."""
        self._iterations: deque[IterationRecord] = deque(maxlen=most)
        self._requests: deque[tuple[int, float, float, float, str]] = deque(maxlen=most)

    def add(self, iteration: IterationRecord) -> None:
        """Note an iteration."""
        self._iterations.append(iteration)

    def add_request(self, id: int, arrival_s: float, started_s: float, end_s: float, finish: str) -> None:
        """Note a request that has ended."""
        self._requests.append((id, arrival_s, started_s, end_s, finish))

    def events(self) -> dict[str, Any]:
        """The trace as an object for JSON. Times are microseconds from the first one on.

        It may be called while another thread notes more: deques are copied in one step, and what is new is left out.
        """
        iterations, requests = self._iterations.copy(), self._requests.copy()
        rows = ((_ITERATIONS, "iterations"), (_SCHEDULER, "scheduler"))
        events: list[dict[str, Any]] = [
            {"ph": "M", "pid": 0, "tid": tid, "name": "thread_name", "args": {"name": name}}
            for tid, name in rows
        ]
        starts = [each.start_s for each in iterations] + [each[1] for each in requests]
        zero = min(starts, default=0.0)
        for each in iterations:
            events += _of_iteration(each, zero)
        for id, arrival_s, started_s, end_s, finish in requests:
            common = {"cat": "request", "pid": 0, "id": id}
            spans = (("waiting", arrival_s, started_s), (f"running ({finish})", started_s, end_s))
            for name, start_s, stop_s in spans:
                events.append({**common, "ph": "b", "name": name, "ts": _us(start_s, zero)})
                events.append({**common, "ph": "e", "name": name, "ts": _us(stop_s, zero)})
        return {"traceEvents": events, "displayTimeUnit": "ms"}


def _of_iteration(each: IterationRecord, zero: float) -> list[dict[str, Any]]:
    prompts = each.tokens - each.streams
    return [
        {
            "ph": "X",
            "pid": 0,
            "tid": _SCHEDULER,
            "name": "plan",
            "ts": _us(each.start_s, zero),
            "dur": _us(each.planned_s, each.start_s),
        },
        {
            "ph": "X",
            "pid": 0,
            "tid": _ITERATIONS,
            "name": f"{each.streams} streams + {prompts} prompt tokens",
            "ts": _us(each.planned_s, zero),
            "dur": _us(each.end_s, each.planned_s),
            "args": {
                "tokens": each.tokens,
                "streams": each.streams,
                "prompt_tokens": prompts,
                "preempted": each.preempted,
            },
        },
        {
            "ph": "C",
            "pid": 0,
            "name": "requests",
            "ts": _us(each.start_s, zero),
            "args": {"running": each.running, "waiting": each.waiting},
        },
        {
            "ph": "C",
            "pid": 0,
            "name": "blocks used",
            "ts": _us(each.start_s, zero),
            "args": {"blocks": each.blocks_used},
        },
    ]


def _us(time_s: float, zero_s: float) -> float:
    return round((time_s - zero_s) * 1e6, 1)
