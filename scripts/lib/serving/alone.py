"""The engine against a static batch on the same kernels: what scheduling costs where it wins nothing."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from scripts.lib.serving.static_batch import run_static_batch
from scripts.lib.serving.trace import Arrival

if TYPE_CHECKING:
    from scripts.lib.serving.contenders.collage_engine import CollageEngine

_TOP_P = 0.95


def measure(engine: CollageEngine, arrivals: Sequence[Arrival], reverse: bool) -> Mapping[str, Any]:
    """Seconds of the static batch and of the engine, and what the engine's time went into.

    All requests have equal lengths and are there at once. The static batch computes all prompts in iterations that are
    as large as they can be, and then a token of each request in each iteration. Both choose the likeliest tokens. The
    engine has Orca's policy, which computes whole prompts as the static batch does, and then the default one
    (``chunked_s``), which cuts them for the sake of requests that have their first token. Then Orca's policy draws
    tokens (``drawn_s``), at temperature 1 from those that top-p keeps. The static batch is the first of all, or the
    last one with ``reverse``.
    """
    runs = {"static": _static, "whole": _whole, "chunked": _engine, "drawn": _drawn}
    found = {name: runs[name](engine, arrivals) for name in (reversed(runs) if reverse else runs)}
    static, whole, chunked, drawn = (found[name] for name in runs)
    shares = [
        sum(a == b for a, b in zip(each.tokens, static.tokens, strict=True)) / len(arrivals)
        for each in (whole, chunked)
    ]
    return {
        **whole.facts,
        "engine_s": whole.seconds,
        "static_s": static.seconds,
        "chunked_s": chunked.seconds,
        "drawn_s": drawn.seconds,
        "same_tokens": min(shares),
    }


@dataclass(frozen=True)
class _Run:
    """The seconds and the tokens of a run, and what else is told of it."""

    seconds: float
    tokens: Sequence[Sequence[int]]
    facts: Mapping[str, Any] = field(default_factory=dict)


def _whole(engine: CollageEngine, arrivals: Sequence[Arrival]) -> _Run:
    """A run of the engine with Orca's policy."""
    with engine.with_policy("orca"):
        return _engine(engine, arrivals)


def _drawn(engine: CollageEngine, arrivals: Sequence[Arrival]) -> _Run:
    """A run of the engine with Orca's policy, whose tokens are drawn."""
    with engine.with_policy("orca", temperature=1.0, top_p=_TOP_P):
        return _engine(engine, arrivals)


def _engine(engine: CollageEngine, arrivals: Sequence[Arrival]) -> _Run:
    """A run of the engine."""
    before = engine.loop.stats()
    tokens: list[list[int]] = [[] for _ in arrivals]
    start = time.monotonic()
    engine.serve(
        [Arrival(each.prompt, each.tokens) for each in arrivals],
        lambda number, token: tokens[number].append(token),
    )
    seconds = time.monotonic() - start
    after = engine.loop.stats()
    iterations = after.iterations - before.iterations
    return _Run(
        seconds,
        tokens,
        {
            "iterations": iterations,
            "model_s": after.busy_s - before.busy_s,
            "scheduler_us": 1e6 * (after.scheduler_s - before.scheduler_s) / iterations,
        },
    )


def _static(engine: CollageEngine, arrivals: Sequence[Arrival]) -> _Run:
    """A run of the static batch."""
    tokens: list[list[int]] = [[] for _ in arrivals]
    start = time.monotonic()
    run_static_batch(engine.runner, arrivals, lambda place, token: tokens[place].append(token))
    return _Run(time.monotonic() - start, tokens)
