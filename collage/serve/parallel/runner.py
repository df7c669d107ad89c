"""The runner of a decoder on several processes: what the engine sees of them."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from collage.backends.registry import Registry
from collage.core.library_text import library_text
from collage.errors import CollageError
from collage.serve.attention import BLOCK_TOKENS
from collage.serve.decoder.costs import bucket_for, streams_ms
from collage.serve.decoder.file import load_decoder
from collage.serve.decoder.iteration import wanted_rows
from collage.serve.decoder.memory import block_bytes, chosen_blocks, free_bytes
from collage.serve.decoder.runner import checked_tokens
from collage.serve.parallel.crew import Crew
from collage.serve.parallel.options import CACHE, Parallelism
from collage.serve.parallel.pipeline_rank import PipelineRank
from collage.serve.parallel.ranks import blocks_each, check_divisible, fill_caches, held_by, make_rank
from collage.serve.parallel.tensors import PeerLostError, exchange
from collage.serve.parallel.worker import CountBytes, Fill, IterationStep, RankSetup
from collage.serve.runner import RunnerLostError, Slice

logger = logging.getLogger(__name__)

_SAMPLES = 2


class ParallelRunner:
    """A decoder on N processes, of which this is the first; see ``collage.serve.runner.Runner``.

    One thread at a time may use it. With Cache Parallelism, an iteration may have N times the tokens. With pipeline
    parallelism, N threads may: as many iterations are in flight. ``close`` ends the other processes. They end by
    themselves when this one does. When one of them is gone, ``step`` raises RunnerLostError, and ``when_lost`` is
    called. ``step`` raises it for a failure in this process, too: the others are inside the iteration then.
    """

    def __init__(
        self,
        model: Path,
        registry: Registry,
        parallelism: Parallelism,
        blocks: int | None = None,
        cache: str = "float32",
    ) -> None:
        """``blocks`` are those of all processes together, rounded up to the same number for each.

        Raises CollageError if the decoder cannot be loaded or divided, or if memory does not suffice.
        """
        compiled = load_decoder(model, registry)
        check_divisible(compiled, parallelism)
        size = parallelism.processes
        self._compiled = compiled
        self.parallelism = parallelism
        self.block_tokens = BLOCK_TOKENS
        # All processes share this machine's memory.
        bytes_each = block_bytes(compiled.heads, len(compiled.decoder.layers), cache, parallelism.parts)
        each = blocks_each(parallelism, chosen_blocks(blocks, bytes_each, compiled.max_length, free_bytes()))
        self.shares = size if parallelism.kind == CACHE else 1
        self.block_count = each * self.shares
        self.workers = parallelism.workers
        self.buckets = tuple(bucket * self.shares for bucket in compiled.buckets)
        """The numbers of tokens that it was compiled for; an iteration of others is padded."""
        self.max_tokens = self.buckets[-1]
        self.max_length = compiled.max_length
        self.vocabulary = compiled.decoder.vocabulary
        self.end_tokens = compiled.end_tokens
        self._costs: dict[int, float] = {}
        self._setup = RankSetup(parallelism, 0, model, each, cache, Path(), ())
        self._crew: Crew | None = None
        self._lock = threading.Lock()
        self._turns = threading.Condition()
        self._begun = self._returned = 0
        self._gone = False
        crew = Crew(self._setup, compiled.threads)
        try:
            self._tensors = crew.meet()
            self._rank = make_rank(parallelism, compiled, registry, self._tensors, each, cache)
            crew.begin()
        except BaseException:
            crew.close()
            raise
        self._crew = crew

    @property
    def when_lost(self) -> Callable[[], None]:
        """What is called when a process is gone."""
        return self._open.when_lost

    @when_lost.setter
    def when_lost(self, call: Callable[[], None]) -> None:
        self._open.when_lost = call

    @property
    def pids(self) -> list[int]:
        return self._open.pids

    def sent_bytes(self) -> list[int]:
        """The bytes of tensors that each process has sent so far; only while nothing runs."""
        with self._lock, self._all_or_lost():
            self._open.tell(CountBytes())
            counts = {peer: np.zeros(1) for peer in range(1, self.parallelism.processes)}
            exchange(self._tensors, {}, counts)
        return [self._tensors.sent_bytes, *(int(each[0]) for each in counts.values())]

    @property
    def _open(self) -> Crew:
        if self._crew is None:
            raise CollageError("the runner is closed.")
        return self._crew

    def step(self, slices: Sequence[Slice]) -> NDArray[np.float32]:
        """One row of logits [wanted, vocabulary] for each slice that wants them, in order.

        Raises InputError for slices that do not fit the decoder; nothing is computed then. Raises RunnerLostError.
        """
        checked_tokens(self, slices)
        if isinstance(self._rank, PipelineRank):
            return self._piped(self._rank, slices)
        with self._lock, self._all_or_lost():
            self._open.tell(IterationStep(tuple(slices)))
            found = self._rank.step(slices)
            assert found is not None
            return found

    def _piped(self, rank: PipelineRank, slices: Sequence[Slice]) -> NDArray[np.float32]:
        """Run the first layers, and wait for the logits in turn."""
        with self._lock, self._all_or_lost():
            self._open.tell(IterationStep(tuple(slices)))
            turn, self._begun = self._begun, self._begun + 1
            rank.step(slices)
        with self._all_or_lost():
            with self._turns:
                self._turns.wait_for(lambda: self._gone or self._returned >= turn)
                if self._gone:
                    raise PeerLostError("an iteration before was lost")
            found = rank.logits(len(wanted_rows(slices)))
            with self._turns:
                self._returned = turn + 1
                self._turns.notify_all()
            return found

    @contextmanager
    def _all_or_lost(self) -> Iterator[None]:
        """End the other processes when anything fails here: they are not where this one is any more.

        What one sends next would be taken for something else. Raises RunnerLostError.
        """
        crew = self._open
        try:
            yield
        except BaseException as error:
            with self._turns:
                self._gone = True
                self._turns.notify_all()
            if isinstance(error, (PeerLostError, RunnerLostError)):
                raise crew.lost() from error
            what = f"{type(error).__name__}: {library_text(error)}".removesuffix(": ")
            lost = crew.lost(f"process 0 of the decoder has failed: {what}")
            if not isinstance(error, Exception):  # Ctrl-C, which is for the caller
                raise
            logger.exception("process 0 of the decoder has failed")
            raise lost from error

    def fill_cache(self, seed: int) -> None:
        """Fill the cache with numbers that follow from the seed: for measurements with many cached tokens."""
        with self._lock, self._all_or_lost():
            self._open.tell(Fill(seed))
            layers = len(self._compiled.decoder.layers)
            fill_caches(self._rank.caches, seed, held_by(self.parallelism, 0, layers))

    def cost_ms(self, tokens: int) -> float:
        """The time of an iteration with that many tokens, in milliseconds, measured when it is first asked for."""
        bucket = bucket_for(self.buckets, tokens)
        if bucket not in self._costs:
            self._costs[bucket] = streams_ms(self, bucket, _SAMPLES)
        return self._costs[bucket]

    def close(self) -> None:
        """End the other processes, and free the cache. The runner must not be used afterwards."""
        if self._crew is not None:
            self._crew.close()
            self._crew = None
            self._tensors.close()
            self._rank.close()
