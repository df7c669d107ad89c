"""The engine without a thread: requests go in, an iteration is planned, run and finished, and events come out."""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from collage.serve.blocks import BlockPool, root_key
from collage.serve.options import POLICIES, EngineOptions
from collage.serve.plan import IterationPlan, Limits, RequestPool, Sequence, costs_of, rewarding_streams
from collage.serve.request import Event, Finish, Request, Stats
from collage.serve.runner import Runner, Slice, end_tokens_of, shares_of, threads_of, workers_of
from collage.serve.sampling import Chooser, Sampler, choose_all
from collage.serve.text import StopWatch
from collage.serve.tokenizer import DecimalTokenizer, Tokenizer

_order = attrgetter("order")
_new = tuple.__new__
"""Makes a named tuple of all its values in half the time. An iteration makes two for each stream."""

_FEW_DEADLINES = 64
"""So many deadlines of requests that have ended are kept, besides as many as there are requests."""

NOT_NUMBERS = "the model has returned logits that are not numbers"


@dataclass(slots=True)
class _Answer:
    sampler: Sampler
    ends: frozenset[int]
    watch: StopWatch | None


class Core:
    """The state of an engine: waiting and running sequences, blocks, samplers. It is used by one thread."""

    def __init__(self, runner: Runner, options: EngineOptions, tokenizer: Tokenizer | None = None) -> None:
        """Begin with nothing to do. Without a tokenizer, texts are ids in decimal, and there are no end tokens."""
        self._runner = runner
        self._policy = POLICIES[options.policy]
        self._costs = costs_of(runner)
        self._limits = Limits(
            min(options.max_running or rewarding_streams(self._costs), runner.max_tokens),
            runner.block_tokens,
            options.itl_target_ms,
            workers_of(runner),
        )
        self._tokenizer: Tokenizer = tokenizer or DecimalTokenizer()
        # The team of a runner with several iterations in flight is computing others meanwhile.
        self._chooser = Chooser(runner.vocabulary, threads_of(runner) if workers_of(runner) == 1 else 1)
        self._end_tokens = frozenset(self._tokenizer.end_tokens or end_tokens_of(runner))
        self.blocks = BlockPool(runner.block_count, keep=options.policy != "orca", shares=shares_of(runner))
        self._waiting: list[Sequence] = []
        self._running: list[Sequence] = []
        self._known: dict[int, Sequence] = {}
        self._answers: dict[int, _Answer] = {}
        self._deadlines: list[tuple[float, int]] = []
        self._arrivals = 0
        self._totals: dict[str, Any] = dict.fromkeys(
            "iterations prompt_tokens cached_tokens generated_tokens preemptions expired cancelled failed".split(),
            0,
        )

    @property
    def max_running(self) -> int:
        return self._limits.max_running

    def add(self, request: Request, now_s: float) -> None:
        sampling = request.sampling
        deadline = float("inf") if request.timeout_s is None else now_s + request.timeout_s
        sequence = Sequence(
            request.id,
            list(request.prompt),
            len(request.prompt),
            len(request.prompt) + sampling.max_tokens,
            self._arrivals,
            now_s,
            request.priority,
            deadline,
            self._known.get(request.leader) if request.leader is not None and self.blocks.keeps else None,
            root_key(request.cache_salt),
        )
        self._arrivals += 1
        ends = frozenset(sampling.stop_token_ids) | (frozenset() if sampling.ignore_eos else self._end_tokens)
        watch = StopWatch(self._tokenizer, sampling.stop, request.prompt) if sampling.stop else None
        self._answers[request.id] = _Answer(Sampler(sampling, request.prompt, ends), ends, watch)
        self._known[request.id] = sequence
        insort(self._waiting, sequence, key=_order)
        if request.timeout_s is not None:
            heapq.heappush(self._deadlines, (deadline, request.id))
            if len(self._deadlines) > 2 * len(self._known) + _FEW_DEADLINES:
                self._deadlines = [each for each in self._deadlines if each[1] in self._known]
                heapq.heapify(self._deadlines)

    def cancel(self, id: int) -> list[Event]:
        """Let a request go. One in flight leaves when its iteration returns."""
        sequence = self._known.get(id)
        if sequence is None or sequence.cancelled:
            return []
        sequence.cancelled = True
        if sequence.in_flight:
            return []
        return [self._end(sequence, Finish.CANCELLED)]

    @property
    def busy(self) -> bool:
        return bool(self._known)

    @property
    def next_deadline_s(self) -> float:
        """The earliest deadline of a request that is still here."""
        while self._deadlines and self._deadlines[0][1] not in self._known:
            heapq.heappop(self._deadlines)
        return self._deadlines[0][0] if self._deadlines else float("inf")

    def plan(self, now_s: float) -> IterationPlan:
        """What the policy decides now; nothing is changed."""
        pool = RequestPool(self._running, self._waiting, self.blocks, self.next_deadline_s)
        return self._policy(pool, now_s, self._costs, self._limits)

    def begin(self, plan: IterationPlan) -> tuple[list[list[Slice]], list[Event]]:
        """Carry a plan out up to the model: the steps to run, and the events of requests that have expired.

        A plan has one step, unless its tokens are more than the runner takes, as prompts are in Orca's policy.
        """
        events = [self._end(each, Finish.EXPIRED) for each in plan.expired]
        for each in plan.preempted:
            self._preempt(each)
        # All are acquired before any block is allocated, as that may evict kept ones.
        for admission in plan.admitted:
            self.blocks.acquire(admission.cached)
            admission.sequence.blocks += admission.cached
        for admission in plan.admitted:
            self._admit(admission.sequence)
        slices: list[Slice] = []
        block_tokens = self._limits.block_tokens
        for sequence, count in zip(plan.sequences, plan.counts, strict=True):
            sequence.in_flight = True
            start, tokens = sequence.computed, sequence.tokens
            end = start + count
            needed = -(-end // block_tokens)
            if needed > len(sequence.blocks):
                self._grow(sequence, needed)
            blocks = sequence.blocks
            if needed < len(blocks):
                blocks = blocks[:needed]
            new = (tokens[start],) if count == 1 else tuple(tokens[start:end])
            slices.append(_new(Slice, (new, start, blocks, end == len(tokens))))
        most = self._runner.max_tokens
        return [slices] if plan.tokens <= most else split_steps(slices, most), events

    def run(self, steps: list[list[Slice]], between: Callable[[], None] = lambda: None) -> NDArray[np.float32]:
        """Run the steps, and call ``between`` after each but the last one.

        It reads nothing of this state, so other threads may use it meanwhile.
        """
        return run_steps(self._runner, steps, between)

    def finish(self, plan: IterationPlan, logits: NDArray[np.float32]) -> list[Event]:
        """Take in what an iteration has computed: tokens are chosen, answers end, blocks are freed."""
        events: list[Event] = []
        wanted: list[Sequence] = []
        self._totals["iterations"] += 1
        keeps, block_tokens = self.blocks.keeps, self._limits.block_tokens
        for sequence, count in zip(plan.sequences, plan.counts, strict=True):
            sequence.in_flight = False
            computed = sequence.computed = sequence.computed + count
            if keeps and computed // block_tokens != sequence.registered:
                self._register(sequence)
            if computed == len(sequence.tokens):
                wanted.append(sequence)
            elif sequence.cancelled:
                events.append(self._end(sequence, Finish.CANCELLED))
        if len(logits) != len(wanted):
            raise ValueError(f"the runner returned {len(logits)} rows of logits; {len(wanted)} were asked for.")
        if not wanted:
            return events
        answers = [self._answers[each.id] for each in wanted]
        choices = choose_all(self._chooser, [each.sampler for each in answers], logits)
        generated = 0
        for sequence, answer, choice in zip(wanted, answers, choices, strict=True):
            if sequence.cancelled:
                events.append(self._end(sequence, Finish.CANCELLED))
                continue
            if choice is None:
                events.append(self._end(sequence, Finish.FAILED, NOT_NUMBERS))
                continue
            token, logprobs = choice
            generated += 1
            tokens = sequence.tokens
            tokens.append(token)
            finish, cut = None, False
            if token in answer.ends:
                finish = Finish.STOP
            elif answer.watch is not None and answer.watch.add(token)[1]:
                finish, cut = Finish.STOP, True
            elif len(tokens) >= sequence.max_length:
                finish = Finish.LENGTH
            events.append(_new(Event, (sequence.id, token, logprobs, finish, sequence.cached, "", cut)))
            if finish is not None:
                self._leave(sequence)
        self._totals["generated_tokens"] += generated
        return events

    def fail(self, plan: IterationPlan, message: str) -> list[Event]:
        """Give up the requests of an iteration that the runner could not run; the others go on."""
        for sequence in plan.sequences:
            sequence.in_flight = False
        return [self._end(sequence, Finish.FAILED, message) for sequence in plan.sequences]

    def end_all(self, finish: Finish, message: str = "") -> list[Event]:
        return [self._end(each, finish, message) for each in list(self._known.values()) if not each.in_flight]

    def stats(self) -> Stats:
        return Stats(
            len(self._running),
            len(self._waiting),
            self.blocks.used,
            self.blocks.count,
            evictions=self.blocks.evictions,
            **self._totals,
        )

    def check(self) -> None:
        """Assert that no block has leaked and that each sequence is in one list."""
        self.blocks.check(each.blocks for each in self._running)
        assert not any(each.blocks for each in self._waiting)
        ids = [each.id for each in (*self._running, *self._waiting)]
        assert sorted(ids) == sorted(self._known) == sorted(self._answers)

    def _admit(self, sequence: Sequence) -> None:
        del self._waiting[_position(self._waiting, sequence)]
        insort(self._running, sequence, key=_order)
        sequence.registered = len(sequence.blocks)
        sequence.computed = len(sequence.blocks) * self._limits.block_tokens
        if not sequence.started:
            sequence.started = True
            sequence.cached = sequence.computed
            self._totals["prompt_tokens"] += sequence.prompt_length
            self._totals["cached_tokens"] += sequence.computed
        self._grow(sequence, self._limits.blocks_for(len(sequence.tokens)))

    def _grow(self, sequence: Sequence, needed: int) -> None:
        missing = needed - len(sequence.blocks)
        if missing > 0:
            sequence.blocks += tuple(self.blocks.allocate(missing, sequence.blocks))

    def _register(self, sequence: Sequence) -> None:
        full = sequence.computed // self._limits.block_tokens
        sequence.extend_keys(self._limits.block_tokens, full)
        for at in range(sequence.registered, full):
            self.blocks.register(sequence.blocks[at], sequence.keys[at])
        sequence.registered = full

    def _preempt(self, sequence: Sequence) -> None:
        self.blocks.release(sequence.blocks)
        sequence.blocks = ()
        sequence.computed = sequence.registered = 0
        del self._running[_position(self._running, sequence)]
        insort(self._waiting, sequence, key=_order)
        self._totals["preemptions"] += 1

    def _end(self, sequence: Sequence, finish: Finish, error: str = "") -> Event:
        self._totals[finish.value] += 1
        self._leave(sequence)
        return Event(sequence.id, finish=finish, cached=sequence.cached, error=error)

    def _leave(self, sequence: Sequence) -> None:
        home = self._running if sequence.blocks else self._waiting
        del home[_position(home, sequence)]
        self.blocks.release(sequence.blocks)
        sequence.blocks = ()
        sequence.done = True
        sequence.leader = None
        del self._known[sequence.id], self._answers[sequence.id]


def split_steps(slices: list[Slice], most: int) -> list[list[Slice]]:
    """Cut slices into steps of at most ``most`` tokens; the order stays."""
    if sum(len(each.token_ids) for each in slices) <= most:
        return [slices]
    steps: list[list[Slice]] = [[]]
    room = most
    for each in slices:
        at = 0
        while at < len(each.token_ids):
            if not room:
                steps.append([])
                room = most
            tokens = each.token_ids[at : at + room]
            last = at + len(tokens) == len(each.token_ids)
            steps[-1].append(Slice(tokens, each.start + at, each.blocks, each.wants_logits and last))
            at += len(tokens)
            room -= len(tokens)
    return steps


def run_steps(
    runner: Runner, steps: list[list[Slice]], between: Callable[[], None] = lambda: None
) -> NDArray[np.float32]:
    """The logits of all steps [wanted, vocabulary]. Those of a single one are the runner's own."""
    if len(steps) == 1:
        return runner.step(steps[0])
    rows: list[NDArray[np.float32]] = []
    for each in steps:
        if rows:
            between()
        rows.append(runner.step(each).copy())
    return np.concatenate([each for each in rows if len(each)] or rows[:1])


def _position(sequences: list[Sequence], sequence: Sequence) -> int:
    at = bisect_left(sequences, sequence.order, key=_order)
    assert sequences[at] is sequence
    return at
