"""The engine against a static batch on the same kernels: what scheduling costs where it wins nothing."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from scripts.lib.serving.static_batch import run_static_batch
from scripts.lib.serving.trace import Arrival

if TYPE_CHECKING:
    from collage.serve.decoder.runner import DecoderRunner
    from scripts.lib.serving.contenders.collage_engine import CollageEngine


def measure(engine: CollageEngine, arrivals: Sequence[Arrival]) -> Mapping[str, Any]:
    """Seconds of the static batch and of the engine, and what the engine's time went into.

    All requests have equal lengths and are there at once. The static batch computes all prompts in iterations that are
    as large as they can be, and then a token of each request in each iteration. Both choose the likeliest tokens. The
    engine has Orca's policy, which computes whole prompts as the static batch does, and then the default one
    (``chunked_s``), which cuts them for the sake of requests that have their first token.
    """
    static_s, expected = _static(engine.runner, arrivals)
    with engine.with_policy("orca"):
        found = _engine(engine, arrivals, expected)
    chunked = _engine(engine, arrivals, expected)
    same = min(found["same_tokens"], chunked["same_tokens"])
    return {**found, "static_s": static_s, "chunked_s": chunked["engine_s"], "same_tokens": same}


def _engine(
    engine: CollageEngine, arrivals: Sequence[Arrival], expected: Sequence[Sequence[int]]
) -> Mapping[str, Any]:
    """A run of the engine."""
    before = engine.loop.stats()
    tokens: list[list[int]] = [[] for _ in arrivals]
    start = time.monotonic()
    engine.serve(
        [Arrival(each.prompt, each.tokens) for each in arrivals],
        lambda number, token: tokens[number].append(token),
    )
    engine_s = time.monotonic() - start
    after = engine.loop.stats()
    iterations = after.iterations - before.iterations
    return {
        "engine_s": engine_s,
        "iterations": iterations,
        "model_s": after.busy_s - before.busy_s,
        "scheduler_us": 1e6 * (after.scheduler_s - before.scheduler_s) / iterations,
        "same_tokens": sum(a == b for a, b in zip(tokens, expected, strict=True)) / len(expected),
    }


def _static(runner: DecoderRunner, arrivals: Sequence[Arrival]) -> tuple[float, list[list[int]]]:
    """The seconds and the tokens of a static batch."""
    tokens: list[list[int]] = [[] for _ in arrivals]
    start = time.monotonic()
    run_static_batch(runner, arrivals, lambda place, token: tokens[place].append(token))
    return time.monotonic() - start, tokens
