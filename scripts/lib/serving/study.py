"""The study of one model: right answers, and Orca's trace."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

from collage.errors import CollageError
from scripts.lib import say
from scripts.lib.serving.prepare import Model
from scripts.lib.serving.process import OURS, ContenderError, ContenderProcess, Setup
from scripts.lib.serving.trace import (
    ORCA,
    Arrival,
    Figures,
    Lengths,
    Served,
    agreement,
    poisson_trace,
    pooled,
    rate_at,
)

PARTS = ("right", "trace")
_OVERLOADED = 6.0
"""A contender whose latency is this many times the unloaded one is not run at higher rates."""

Runs = dict[str, dict[float, list[list[Served]]]]
"""The rounds of each contender at each rate."""


@dataclass(frozen=True)
class Course:
    """What is run: ``requests`` of a saturated run, ``seconds`` of a run at a rate, and ``rounds`` of everything.

    ``rates`` are shares of Collage's saturated rate.
    """

    rounds: int = 3
    requests: int = 96
    seconds: float = 12.0
    rates: tuple[float, ...] = (0.15, 0.3, 0.5, 0.7, 0.9, 1.1)
    running: int = 32
    parts: tuple[str, ...] = PARTS
    lengths: Lengths = ORCA

    @property
    def fewest(self) -> int:
        """The fewest requests of a run."""
        return max(4, self.requests // 4)


QUICK = Course(rounds=1, requests=12, seconds=2.0, rates=(0.5,), running=8, lengths=Lengths((8, 64), (2, 16)))
"""What is run of tiny models, to see that everything works."""


@dataclass
class Field:
    """The contenders that run, one at a time, and the reasons why others are ``missing`` or have ``failed``."""

    running: dict[str, ContenderProcess] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)

    def serve(self, name: str, arrivals: Sequence[Arrival]) -> list[Served] | None:
        """Have a contender serve a trace. None if it fails, after which it takes no further part."""
        if name not in self.running:
            return None
        try:
            return self.running[name].serve(arrivals)
        except ContenderError as error:
            say(str(error))
            self.failed[name] = str(error)
            self.running.pop(name).close()
            return None


@contextmanager
def opened(names: Sequence[str], setup: Setup) -> Iterator[Field]:
    """Open the contenders. Those that are not installed or do not take the model are left out."""
    found = Field()
    try:
        for name in names:
            try:
                found.running[name] = ContenderProcess(name, setup)
            except ContenderError as error:
                say(f"{name} is left out: {error}")
                found.missing[name] = str(error)
        yield found
    finally:
        for each in found.running.values():
            each.close()


@dataclass(frozen=True)
class Study:
    """The study of one model."""

    model: Model
    field: Field
    course: Course

    def run(self) -> dict[str, Any]:
        """All parts of the study that are asked for, as JSON. Raises CollageError if Collage itself takes no part."""
        if OURS not in self.field.running:
            raise CollageError(self.field.missing[OURS])
        found: dict[str, Any] = {
            "model": self.model.name,
            "contenders": {name: dict(each.facts) for name, each in self.field.running.items()},
        }
        found |= {part: getattr(self, part)() for part in self.course.parts}
        return {**found, "missing": self.field.missing, "failed": self.field.failed}

    def right(self) -> Mapping[str, Any]:
        """The engine's answers to some requests of Orca's trace against those of ONNX Runtime on the original decoder.

        All requests are there at once, so that prompts are computed in chunks beside tokens of other answers.
        """
        arrivals = self._arrivals(0, math.inf, seed=11)
        found: Mapping[str, Any] = self.field.running[OURS].ask(("right", (arrivals, self.model.onnx)))
        say(f"{self.model.name}: {found['same_tokens']:.2%} of {found['tokens']} tokens are the original's")
        return found

    def trace(self) -> dict[str, Any]:
        """Orca's trace by contender: unloaded, saturated, and at rates in between, by turns."""
        unloaded = self._unloaded()
        saturated = self._runs([math.inf])
        if OURS not in unloaded or OURS not in saturated:
            return {}
        top, ours_ms = pooled(saturated[OURS][math.inf]).requests_per_s, unloaded[OURS].latency_ms
        rates = [each * top for each in self.course.rates]
        base = min(each.latency_ms for each in unloaded.values())
        runs = self._runs(rates, most_ms=_OVERLOADED * base)
        found = {}
        for name in (each for each in saturated if each in unloaded):
            rounds = saturated[name][math.inf]
            each_s = [pooled([run]).requests_per_s for run in rounds]
            points = {rate: pooled(each) for rate, each in sorted(runs.get(name, {}).items())}
            same = [agreement(*pair) for pair in zip(rounds, saturated[OURS][math.inf], strict=False)]
            found[name] = {
                "unloaded": asdict(unloaded[name]),
                "saturated": asdict(pooled(rounds)),
                "saturated_spread": max(each_s) / min(each_s),
                "rates": [{"rate": rate, **asdict(each)} for rate, each in points.items()],
                "rate_at_twice_unloaded": rate_at(2 * ours_ms, [(r, p.latency_ms) for r, p in points.items()]),
                "same_tokens": statistics.mean(same),
            }
        return found

    def _unloaded(self) -> dict[str, Figures]:
        """The figures of requests that are served one at a time, each by all contenders in turn."""
        arrivals = self._arrivals(0, math.inf, seed=7)
        found: dict[str, list[list[Served]]] = {}
        for turn, each in enumerate((arrivals[0], *arrivals)):
            for name in _turned(list(self.field.running), turn):
                served = self.field.serve(name, [each])
                if served is not None and turn:  # the first request of all is slower
                    found.setdefault(name, []).append(served)
        whole = {name: pooled(runs) for name, runs in found.items() if len(runs) == len(arrivals)}
        for name, figures in whole.items():
            say(f"{self.model.name}: {name} alone: {_words(figures)}")
        return whole

    def _runs(self, rates: Sequence[float], *, most_ms: float = math.inf) -> Runs:
        """The rounds of all contenders at the rates, by turns; each round begins with another contender."""
        found: Runs = {}
        over: set[str] = set()
        chosen = list(self.field.running)
        for round_ in range(self.course.rounds):
            for turn, rate in enumerate(sorted(rates)):
                for name in _turned(chosen, round_ + turn):
                    if name in over and rate not in found.get(name, {}):
                        continue
                    served = self._run(name, rate, round_)
                    if served is None:
                        continue
                    found.setdefault(name, {}).setdefault(rate, []).append(served)
                    if pooled([served]).latency_ms > most_ms:
                        over.add(name)
        return found

    def _run(self, name: str, rate: float, seed: int) -> list[Served] | None:
        """A run of one contender at a rate. None if it fails."""
        count = self.course.requests if math.isinf(rate) else round(rate * self.course.seconds)
        served = self.field.serve(name, self._arrivals(count, rate, seed))
        if served is not None:
            say(f"{self.model.name}: {name} at {rate:.2f}/s: {_words(pooled([served]))}")
        return served

    def _arrivals(self, count: int, rate: float, seed: int) -> list[Arrival]:
        """So many requests, or the fewest of a run if that is more."""
        count = max(self.course.fewest, count)
        return poisson_trace(count, rate, self.model.shape.vocabulary, self.course.lengths, seed)


def _turned(names: Sequence[str], turn: int) -> list[str]:
    """The names in an order that begins with another one each turn: a machine's speed may change meanwhile."""
    start = turn % len(names) if names else 0
    return [*names[start:], *names[:start]]


def _words(each: Figures) -> str:
    return f"{each.requests_per_s:.2f} requests/s, {each.tokens_per_s:.0f} tokens/s, {each.latency_ms:.1f} ms a token"
