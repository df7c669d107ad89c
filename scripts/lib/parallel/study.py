"""Measuring decode iterations on one and two processes, and telling what more of them would take."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from collage.api import default_registry
from collage.core.child_process import ChildProcess
from collage.serve.decoder.compiled import CompiledDecoder
from collage.serve.decoder.file import load_decoder
from collage.serve.decoder.runner import DecoderRunner
from collage.serve.parallel.options import Parallelism
from collage.serve.parallel.ranks import Held, fill_caches
from collage.serve.parallel.runner import ParallelRunner
from scripts.lib.parallel.costs import MODELLED, Costs, crossover, modelled_ms
from scripts.lib.parallel.iterations import blocks_for, decode, median_ms, times_ms
from scripts.lib.parallel.replica import Load, Run
from scripts.lib.parallel.traffic import cache_bytes, tensor_bytes
from scripts.lib.parallel.wire import Wire, loopback_bytes

_ANSWER_S = 600.0
_FEW = 32
"""The cached tokens of what is called dense."""
_MEASURED = 2
"""The processes that are measured; more of them would share the machine's cores and memory."""

Say = Callable[[str], None]


@dataclass(frozen=True)
class Study:
    """A decoder's files, whole and divided in two, the sequences of an iteration, the cached tokens of each, and the
    rounds of a measurement.
    """

    path: Path
    divided: Path
    batch: int
    cached: Sequence[int]
    rounds: int
    processes: Sequence[int]


def run(study: Study, wire: Wire, say: Say) -> dict[str, Any]:
    """Everything about one decoder, as an object for JSON."""
    compiled = load_decoder(study.path, default_registry())
    rows = []
    for cached in study.cached:
        rows.append(_row(study, compiled, cached))
        say(f"{study.path.stem} with {cached} cached tokens: done")
    costs = _costs(study, compiled, rows, wire)
    longest = max(study.cached)
    return {
        "model": study.path.stem,
        "batch": study.batch,
        "layers": len(compiled.decoder.layers),
        "heads": asdict(compiled.heads),
        "rows": rows,
        "dense_ms": dict(costs.dense_ms),
        "token_us": costs.token_us,
        "modelled": [
            {"kind": kind, "processes": n, "cached": cached}
            | {"ms": modelled_ms(costs, kind, n, study.batch, cached)}
            for n in study.processes
            for kind in MODELLED
            for cached in study.cached
        ],
        "crossovers": [
            {"processes": n, "against": kind, "cached": crossover(costs, kind, n, study.batch, longest)}
            for n in study.processes
            for kind in MODELLED[:-1]
        ],
    }


def _row(study: Study, compiled: CompiledDecoder, cached: int) -> dict[str, Any]:
    """One number of cached tokens: the milliseconds of an iteration of all sequences, measured."""
    batch, rounds = study.batch, study.rounds
    logits, one_ms = _alone(compiled, batch, cached, rounds)
    found: dict[str, Any] = {"cached": cached, "one_ms": one_ms}
    found["data_ms"] = _replicas(study, cached)
    for processes in (_MEASURED, *(n for n in study.processes if n > _MEASURED)):
        found |= _cache(study, compiled, cached, processes, logits)
    found |= _tensor(study, compiled, cached, logits)
    found["pipeline_ms"] = _pipeline(study, compiled, cached)
    return found


def _alone(
    compiled: CompiledDecoder, batch: int, cached: int, rounds: int
) -> tuple[NDArray[np.float32], float]:
    runner = DecoderRunner(compiled, default_registry(), blocks_for(batch, cached))
    with closing(runner):
        fill_caches(runner.caches, 0, Held())
        slices = decode(batch, cached)
        times = times_ms(runner, [slices], rounds)
        logits = runner.step(slices).copy()
    runner.caches.clear()
    return logits, median_ms(times)


def _replicas(study: Study, cached: int) -> float:
    """Two processes with half of the sequences each, at the same time: the slower one counts."""
    shares = [study.batch // _MEASURED + (n < study.batch % _MEASURED) for n in range(_MEASURED)]
    children = [ChildProcess("scripts.lib.parallel.replica", stderr=2) for share in shares if share]
    try:
        with ThreadPoolExecutor(len(children)) as pool:
            loads = [Load(study.path, share, cached) for share in shares if share]
            for each in [
                pool.submit(child.ask, load, _ANSWER_S) for child, load in zip(children, loads, strict=True)
            ]:
                each.result()
            asked = [pool.submit(child.ask, Run(study.rounds), _ANSWER_S) for child in children]
            return max(median_ms(each.result()) for each in asked)
    finally:
        for child in children:
            child.kill()


def _cache(
    study: Study, compiled: CompiledDecoder, cached: int, processes: int, logits: NDArray[np.float32]
) -> dict[str, Any]:
    """Cache Parallelism: its error, its bytes, and where it is measured its time."""
    batch = study.batch
    blocks, slices = blocks_for(batch, cached), decode(batch, cached)
    parallelism = Parallelism("cache", processes, _ANSWER_S)
    with closing(ParallelRunner(study.path, default_registry(), parallelism, blocks)) as runner:
        runner.fill_cache(0)
        error = _error(runner.step(slices), logits)
        before, wire = sum(runner.sent_bytes()), loopback_bytes()
        runner.step(slices)
        carried = loopback_bytes()
        sent = sum(runner.sent_bytes()) - before
        found = {
            f"cache_{processes}_error": error,
            f"cache_{processes}_bytes": sent,
            f"cache_{processes}_derived_bytes": cache_bytes(
                slices, compiled.heads, len(compiled.decoder.layers), processes, runner.vocabulary
            ),
            f"cache_{processes}_loopback_bytes": None if wire is None or carried is None else carried - wire,
        }
        if processes == _MEASURED:
            found["cache_ms"] = median_ms(times_ms(runner, [slices], study.rounds))
    return found


def _tensor(
    study: Study, compiled: CompiledDecoder, cached: int, logits: NDArray[np.float32]
) -> dict[str, Any]:
    """Tensor parallelism: its error, its bytes and its time."""
    batch = study.batch
    blocks, slices = blocks_for(batch, cached), decode(batch, cached)
    parallelism = Parallelism("tensor", _MEASURED, _ANSWER_S)
    with closing(ParallelRunner(study.divided, default_registry(), parallelism, blocks)) as runner:
        runner.fill_cache(0)
        error = _error(runner.step(slices), logits)
        before = sum(runner.sent_bytes())
        runner.step(slices)
        heads = compiled.heads
        return {
            "tensor_2_error": error,
            "tensor_2_bytes": sum(runner.sent_bytes()) - before,
            "tensor_2_derived_bytes": len(compiled.decoder.layers)
            * tensor_bytes(batch, heads.heads * heads.dim, _MEASURED),
            "tensor_ms": median_ms(times_ms(runner, [slices], study.rounds)),
        }


def _error(found: NDArray[np.float32], expected: NDArray[np.float32]) -> float:
    """The largest error of a logit, as a share of the largest one, or of 1 where that is more."""
    return float(np.abs(found - expected).max()) / max(1.0, float(np.abs(expected).max()))


def _pipeline(study: Study, compiled: CompiledDecoder, cached: int) -> float | None:
    """Two stages, with half of the sequences in each: the time in which all sequences get a token."""
    batch = study.batch
    if len(compiled.decoder.layers) < _MEASURED or batch < _MEASURED:
        return None
    parallelism = Parallelism("pipeline", _MEASURED, _ANSWER_S)
    blocks = blocks_for(batch, cached)
    with closing(ParallelRunner(study.path, default_registry(), parallelism, blocks)) as runner:
        runner.fill_cache(0)
        half = batch // _MEASURED
        flights = [decode(half, cached), decode(batch - half, cached, half)]
        return _MEASURED * median_ms(times_ms(runner, flights, _MEASURED * study.rounds))


def _costs(study: Study, compiled: CompiledDecoder, rows: Sequence[dict[str, Any]], wire: Wire) -> Costs:
    dense = {}
    for batch in (each for each in compiled.buckets if each <= study.batch):
        dense[batch] = _alone(compiled, batch, _FEW, study.rounds)[1]
    first, last = rows[0], rows[-1]
    apart = last["cached"] - first["cached"] or last["cached"]
    below = first["one_ms"] if len(rows) > 1 else dense[max(dense)]
    token_us = 1e3 * (last["one_ms"] - below) / apart / study.batch
    heads = compiled.heads
    layers = len(compiled.decoder.layers)
    return Costs(dense, max(token_us, 0.0), wire, heads, layers, heads.heads * heads.dim)
