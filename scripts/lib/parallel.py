"""What ``scripts/bench parallel`` measures: decode iterations on one process, and on two."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from collage.api import default_registry
from collage.core.child_process import ChildProcess, read_message, take_over_pipes, write_message
from collage.serve.attention import BLOCK_TOKENS
from collage.serve.decoder.build import compile_decoder, compile_divided
from collage.serve.decoder.compile import DecoderOptions
from collage.serve.decoder.compiled import CompiledDecoder
from collage.serve.decoder.file import load_decoder, save_decoder
from collage.serve.decoder.runner import DecoderRunner
from collage.serve.parallel.options import Parallelism
from collage.serve.parallel.ranks import Held, fill_caches
from collage.serve.parallel.runner import ParallelRunner
from collage.serve.runner import Runner, Slice
from scripts.lib.decoders.build import decoder
from scripts.lib.decoders.shape import LLAMA, NAMED, DecoderShape, small
from scripts.lib.traffic import cache_bytes, tensor_bytes

LONGEST = 102_400
"""The most cached tokens of the study."""
_ROOM = 64
_ANSWER_S = 600.0

SHAPES = {
    "layer": DecoderShape(LLAMA, 1, 4096, 32, 32, 11008, 256, LONGEST + _ROOM),
    "gpt2": replace(NAMED["gpt2_124m"], positions=LONGEST + _ROOM),
    "tiny": replace(small(NAMED["qwen2_like"], 4), positions=1024),
}
"""One layer of Llama-7B, as in the thesis, with a vocabulary of 256; GPT-2 124M with a longer table of positions; and a
tiny one for tests of the study."""


def compiled_file(name: str, folder: Path, most_batch: int, db: Path | None, processes: int = 1) -> Path:
    """The file of a decoder for one thread and iterations of up to so many tokens, made when it is missing.

    With ``processes``, it is divided among them by heads and columns.
    """
    divided = f"-tensor-{processes}" if processes > 1 else ""
    path = folder / f"parallel-{name}-{most_batch}{divided}.collage"
    if path.exists():
        return path
    folder.mkdir(parents=True, exist_ok=True)
    shape, source, beside = SHAPES[name], folder / f"parallel-{name}.onnx", folder / f"parallel-{name}.bin"
    onnx.save_model(decoder(shape, beside=beside), str(source))
    buckets = sorted({1, *(batch for batch in (2, 4, 8, 16, 32) if batch < most_batch), most_batch})
    length = min(shape.positions, LONGEST + _ROOM)
    options = DecoderOptions(buckets, length, threads=1, db=db, quick=True, processes=processes)
    if processes > 1:
        first, *others = compile_divided(source, options, default_registry(), lambda _: None)
        save_decoder(first, path, others)
    else:
        save_decoder(compile_decoder(source, options, default_registry(), lambda _: None), path)
    source.unlink()
    beside.unlink()
    return path


@dataclass(frozen=True)
class Study:
    """A decoder's files, whole and divided in two, the sequences of an iteration, and the cached tokens of each."""

    whole: Path
    divided: Path
    batch: int
    cached: int
    rounds: int

    def run(self) -> dict[str, Any]:
        """Milliseconds of an iteration, errors and bytes, each by the kind of parallelism."""
        compiled = load_decoder(self.whole, default_registry())
        layers, heads = len(compiled.decoder.layers), compiled.heads
        found: dict[str, Any] = {}
        found["one_ms"], logits = alone(compiled, self.batch, self.cached, self.rounds)
        found["data_ms"] = self._replicas()
        slices = _slices(self.batch, self.cached)
        derived = {
            "cache": cache_bytes(slices, heads, layers, 2, len(logits[0])),
            "tensor": layers * tensor_bytes(self.batch, heads.heads * heads.dim, 2),
        }
        for kind, file in (("cache", self.whole), ("tensor", self.divided)):
            with closing(self._runner(kind, file)) as runner:
                error = np.abs(runner.step(slices) - logits).max() / max(1.0, np.abs(logits).max())
                before = sum(runner.sent_bytes())
                runner.step(slices)
                found |= {
                    f"{kind}_error": float(error),
                    f"{kind}_bytes": sum(runner.sent_bytes()) - before,
                    f"{kind}_derived_bytes": derived[kind],
                    f"{kind}_ms": _median_ms(runner, [slices], self.rounds),
                }
        return {**found, "pipeline_ms": self._pipeline() if layers > 1 and self.batch > 1 else None}

    def _runner(self, kind: str, file: Path) -> ParallelRunner:
        blocks = _blocks(self.batch, self.cached)
        runner = ParallelRunner(file, default_registry(), Parallelism(kind, 2, _ANSWER_S), blocks)
        runner.fill_cache(0)
        return runner

    def _replicas(self) -> float:
        """Two processes with half of the sequences each, at the same time: the slower one counts."""
        shares = filter(None, ((self.batch + 1) // 2, self.batch // 2))
        with ExitStack() as stack:
            asked = []
            for share in shares:
                child = ChildProcess(__name__, stderr=2)
                stack.callback(child.kill)
                child.ask((self.whole, share, self.cached, self.rounds), _ANSWER_S)
                asked.append(child)
            with ThreadPoolExecutor(len(asked)) as pool:
                return max(pool.map(lambda child: float(child.ask(None, _ANSWER_S)[0]), asked))

    def _pipeline(self) -> float:
        """Two stages, with half of the sequences in each: the time in which all sequences get a token."""
        with closing(self._runner("pipeline", self.whole)) as runner:
            half = self.batch // 2
            flights = [_slices(half, self.cached), _slices(self.batch - half, self.cached, half)]
            return 2 * _median_ms(runner, flights, 2 * self.rounds)


def alone(compiled: CompiledDecoder, batch: int, cached: int, rounds: int) -> tuple[float, NDArray[np.float32]]:
    """The milliseconds of an iteration on one process, and the logits."""
    with closing(DecoderRunner(compiled, default_registry(), _blocks(batch, cached))) as runner:
        fill_caches(runner.caches, 0, Held())
        slices = _slices(batch, cached)
        found = _median_ms(runner, [slices], rounds)
        logits = runner.step(slices).copy()
    runner.caches.clear()
    return found, logits


def main() -> None:
    """Be a replica of data parallelism: load a decoder, and measure it when all others are ready, too."""
    source, sink = take_over_pipes()
    file, *sizes = read_message(source)
    compiled = load_decoder(file, default_registry())
    write_message(sink, None)
    read_message(source)
    write_message(sink, alone(compiled, *sizes))


def _blocks(batch: int, cached: int) -> int:
    """The blocks of the cache for so many sequences with so many tokens and one more."""
    return batch * -(-(cached + 1) // BLOCK_TOKENS)


def _slices(batch: int, cached: int, first: int = 0) -> list[Slice]:
    """One new token of each sequence. Blocks of the sequences follow each other."""
    each = _blocks(1, cached)
    return [
        Slice((3 + at,), cached, tuple(range((first + at) * each, (first + at + 1) * each)), True)
        for at in range(batch)
    ]


def _median_ms(runner: Runner, batches: Sequence[Sequence[Slice]], rounds: int) -> float:
    """The median of the milliseconds between the ends of iterations, with as many in flight as there are batches.

    The first iterations are not counted.
    """
    flight = len(batches)
    with ThreadPoolExecutor(flight) as pool:
        waiting: list[Future[object]] = [pool.submit(runner.step, each) for each in batches]
        ends = []
        for turn in range(flight + rounds):
            waiting.pop(0).result()
            ends.append(time.perf_counter())
            waiting.append(pool.submit(runner.step, batches[turn % flight]))
        for each in waiting:
            each.result()
    return 1e3 * median(after - before for before, after in pairwise(ends[flight - 1 :]))
