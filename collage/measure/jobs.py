"""The jobs of a measurer: the race of a region's candidates, and layout transforms."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from collage.check.gate import Checked
from collage.graph.storage import Storage
from collage.kernel.options import BuildOptions
from collage.kernel.transform import LayoutTransform
from collage.measure.crew import Worker
from collage.measure.timing.cache_state import MOST_BYTES
from collage.measure.timing.calls import PRECISE, Enough
from collage.measure.timing.race import CLOSE, EXACT, RUNS, LaneTime, rivals_of
from collage.measure.worker.protocol import (
    Ask,
    CandidateRequest,
    CheckKernel,
    KernelFailed,
    RaceKernels,
    RaceRun,
    Tried,
    TryKernel,
)
from collage.measure_db.results import Measurement, Outcome, RejectionKind, Slower

_ENDED = (RejectionKind.CRASHED, RejectionKind.MEMORY)
"""What a process is told that ends in the reference by itself."""
_CHECKED = 3
"""So many of a region's fastest exact candidates are compared on all inputs."""
_HEAT = 3
"""So many of the fastest of a heat take part in the next one."""
_RACE_S = 20.0
"""A race may take so many times the time that it plans to take, and as long as one candidate on top."""

Part: TypeAlias = "tuple[CandidateRequest, Outcome]"


@dataclass(frozen=True)
class Racer:
    """A candidate in a race.

    ``limit_s`` is the time limit for building and running it. ``charge_us`` is what its calls cost in the network on
    top of its own time, in microseconds.
    """

    request: CandidateRequest
    options: BuildOptions
    limit_s: float
    charge_us: float = 0.0


@dataclass(frozen=True)
class Pace:
    """How long a race takes: ``candidate_s`` seconds for each candidate on average, and no longer than is ``enough``.

    Engines that let their threads spin begin their turns after a pause of ``settle_s`` seconds.
    """

    candidate_s: float = 0.01
    enough: Enough = PRECISE
    settle_s: float = 0.0


@dataclass(frozen=True)
class RegionJob:
    """The race of the candidates of one region, by one worker; the parts are requests with their outcomes.

    Each candidate is tried alone. Then all race by turns, with the kernels of the ``incumbent`` for the same nodes
    among them, which together take ``known_us`` microseconds alone. The best are compared on all inputs: they are
    measured. All others are ``Slower``, unless the race goes ``to_the_end``. Those that take more than ``most_us``
    microseconds are slower, too. A candidate that ends the worker costs only itself: the others are raced again.
    """

    racers: tuple[Racer, ...]
    threads: int
    incumbent: tuple[Racer, ...] = ()
    known_us: float = 0.0
    pace: Pace = field(default_factory=Pace)
    most_us: float = float("inf")
    to_the_end: bool = False

    @property
    def size(self) -> int:
        """The number of candidates."""
        return len(self.racers)

    def run(self, worker: Worker) -> Iterator[Part]:
        """Race the candidates."""
        yield from _Region(self, worker).run()


class _Region:
    """A race that is going on. Racers go by their numbers, those of the incumbent after those of the candidates."""

    def __init__(self, job: RegionJob, worker: Worker) -> None:
        self._job = job
        self._worker = worker
        self._racers = [*job.racers, *job.incumbent]
        self._incumbent = list(range(len(job.racers), len(self._racers)))
        self._known_us = job.known_us
        self._left = set(range(len(job.racers)))
        """The candidates without an outcome."""
        self._tried: dict[int, Tried] = {}
        """What the worker holds."""
        self._errors: dict[int, Tried] = {}
        self._raced: dict[int, tuple[LaneTime, RaceRun]] = {}
        self._passed: dict[int, float] = {}
        """The times of the candidates that are right on all inputs."""

    def run(self) -> Iterator[Part]:
        waiting = list(range(len(self._job.racers)))
        best: list[int] = []
        while waiting:
            heat = list(best)
            if self._incumbent:
                yield from self._hold(self._incumbent, keep=self._tried)
            while waiting and (
                len(heat) <= _HEAT or sum(each.held_bytes for each in self._tried.values()) < MOST_BYTES
            ):
                number = waiting.pop(0)
                yield from self._hold([*heat, number], keep=[*heat, *self._incumbent])
                heat.append(number)
            yield from self._race([number for number in heat if number in self._left])
            best = sorted(self._left & self._raced.keys(), key=self._rank)[:_HEAT] if waiting else []
        yield from self._check()
        for number in sorted(self._left):
            yield self._out(number, self._slower(number))

    def _hold(self, numbers: Sequence[int], keep: Collection[int]) -> Iterator[Part]:
        """Have the worker hold these kernels, and none but those it shall keep."""
        kept = [number for number in self._tried if number in {*keep, *numbers}]
        self._tried = {number: self._tried[number] for number in kept}
        while missing := [n for n in numbers if n not in self._tried and n in {*self._left, *self._incumbent}]:
            number, racer = missing[0], self._racers[missing[0]]
            options = racer.options
            if number in self._errors:  # it was held before, so it is not tuned again
                options = replace(options, tuning=self._errors[number].tuning)
            message = TryKernel(
                *(number, racer.request, options, racer.limit_s, tuple(self._tried)),
                known=number >= len(self._job.racers),
            )
            reply = self._ask(message, number)
            if isinstance(reply, KernelFailed):
                yield from self._failed(reply)
            elif reply is not None:
                self._tried[number] = self._errors[number] = reply

    def _race(self, numbers: list[int]) -> Iterator[Part]:
        """Race kernels that are held until none of them fails."""
        while numbers := [number for number in numbers if number in self._left]:
            yield from self._hold([*self._incumbent, *numbers], keep=())
            numbers = [number for number in numbers if number in self._left]
            if not numbers:
                return
            taking_part, pace = [*numbers, *self._incumbent], self._job.pace
            limit_s = max(self._racers[number].limit_s for number in taking_part)
            message = RaceKernels(
                numbers=tuple(taking_part),
                incumbent=tuple(self._incumbent),
                known_us=self._known_us,
                charges_us={number: self._racers[number].charge_us for number in taking_part},
                candidate_s=pace.candidate_s,
                limit_s=limit_s + _RACE_S * pace.candidate_s * len(numbers) + RUNS * pace.settle_s,
                enough=pace.enough,
                settle_s=pace.settle_s if len(taking_part) > 1 else 0.0,
            )
            reply = self._ask(message, numbers[0])
            if isinstance(reply, RaceRun):
                for number in numbers:
                    self._raced[number] = reply.raced[number], reply
                return
            yield from self._failed(reply)

    def _check(self) -> Iterator[Part]:
        """Compare the best on all inputs; where one fails, the next takes its place."""
        while (number := self._next()) is not None:
            yield from self._hold([number], keep=self._tried)
            if number not in self._left:
                continue
            reply = self._ask(CheckKernel(number, self._racers[number].limit_s), number)
            if isinstance(reply, KernelFailed):
                yield from self._failed(reply)
            elif reply is not None:
                self._passed[number] = self._raced[number][0].us
                yield self._out(number, self._measurement(number, reply))

    def _next(self) -> int | None:
        """The next candidate to compare on all inputs; None at the end."""
        passed = self._passed
        ranked = sorted(self._left & self._raced.keys(), key=self._rank)
        if self._job.to_the_end:
            return next(iter(ranked), None)
        exact = sum(self._precision(number) == EXACT for number in passed)
        served = {self._interface(number) for number in passed}
        for number in ranked:
            raced = self._raced[number][0]
            if raced.us + self._racers[number].charge_us > self._job.most_us:
                continue
            close = raced.relative <= CLOSE
            wanted = exact < _CHECKED and self._precision(number) == EXACT
            only = not passed and not self._incumbent  # all that were faster have failed
            if only or (close and (wanted or self._interface(number) not in served)):
                return number
        return None

    def _rank(self, number: int) -> tuple[float, float, int]:
        raced = self._raced[number][0]
        return max(1.0, raced.relative), raced.us + self._racers[number].charge_us, number

    def _precision(self, number: int) -> str:
        return self._racers[number].request.variant.precision

    def _interface(self, number: int) -> tuple[str, tuple[Storage, ...], tuple[Storage, ...]]:
        variant = self._racers[number].request.variant
        return variant.precision, variant.inputs, variant.outputs

    def _measurement(self, number: int, checked: Checked) -> Measurement:
        raced, run = self._raced[number]
        return Measurement(
            *(raced.us, raced.noise_us, raced.min_us, raced.repeats, checked.error),
            tuning=self._errors[number].tuning,
            finite_only=checked.finite_only,
            busy=run.busy,
            clocks=run.clocks,
        )

    def _slower(self, number: int) -> Slower:
        raced, run = self._raced[number]
        allowed = rivals_of(self._precision(number))
        best = [us for other, us in self._passed.items() if self._precision(other) in allowed]
        rival_us = min([*best, *([self._known_us] if self._incumbent else [])], default=raced.us)
        tuning = self._errors[number].tuning
        return Slower(raced.least_us, rival_us, raced.repeats, run.busy, run.clocks, tuning)

    def _failed(self, failed: KernelFailed) -> Iterator[Part]:
        """A kernel cannot be used. Without the incumbent the others race among themselves."""
        if failed.number in self._incumbent:
            self._incumbent = []
            self._known_us = 0.0
            yield self._racers[failed.number].request, failed.rejection
        elif failed.number in self._left:
            yield self._out(failed.number, failed.rejection)

    def _out(self, number: int, outcome: Outcome) -> Part:
        self._left.discard(number)
        return self._racers[number].request, outcome

    def _ask(self, message: Any, number: int) -> Any:
        """The reply, or None if the reference has ended the process, not the kernel.

        The next process leaves out the inputs that the reference did not survive. That the time was over while the
        reference computed says nothing of them.
        """
        request = self._racers[number].request
        known = self._worker.fatal_samples()
        reply = self._worker.ask(message, f"{request.backend} on {request.nodes}", self._job.threads)
        new = self._worker.fatal_samples() - known
        if isinstance(reply, KernelFailed) and reply.ended:
            self._tried.clear()
            if new and reply.rejection.kind in _ENDED:
                return None
        for note in new:
            note.unlink(missing_ok=True)
        return reply


@dataclass(frozen=True)
class TransformJob:
    """Measures one layout transform that ``maker`` makes. The only part is the transform with its outcome."""

    transform: LayoutTransform
    maker: str
    options: BuildOptions
    limit_s: float
    sample_s: float
    size: int = 1

    def run(self, worker: Worker) -> Iterator[tuple[LayoutTransform, Outcome]]:
        """Measure the transform."""
        ask = Ask("transform", (self.transform, self.maker, self.options, self.sample_s), self.limit_s)
        yield self.transform, worker.ask(ask, str(self.transform), self.options.threads)
