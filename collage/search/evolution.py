"""The evolutionary search over strings of digits (section 2.4.3): mutation, tournament, two-point crossover.

The search is pure: a judge tells what a string costs, and random numbers come from a generator that is passed in.
Costs are noisy, and the best of many noisy costs is mostly the luckiest. So a string that looks better than the best
known one is run against it once more, and replaces it only when it wins that by more than the noise.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from types import FunctionType
from typing import Any, Protocol

from deap import base
from deap.tools import crossover, selection

from collage.core.deadline import BudgetOverError
from collage.search.offload import Gene, Genome

_TOURNAMENT = 2
_CROSSOVER = 0.6
_MUTATION = 0.8
_AGAIN = 0.3
"""Chance of one more mutation of the same child."""
_BRED = 8
"""Children of a generation that are made by tournament, crossover and mutation."""
_CLIMBING = 8
"""Children of a generation that differ in one digit from its best string. Crossover finds the hill, and these climb it:
on graphs of ten operators with 19,683 placements and a budget of 400, 8 and 8 find the best placement in 155 of 160
searches, 4 and 12 in 149, and only children of the first kind in 114."""
_IDLE = 4
"""Generations without a gain, after which a population is done and a fresh one begins."""
_MEETING = 3
"""After so many populations, the best strings of the last ones take part in the next one."""
_TRIES = 20
"""How often a child that is known already is mutated, before it is given up."""


@dataclass(frozen=True)
class Cost:
    """A placement's time as a multiple of the op-level placement's in the same run.

    ``noise`` is the half-width of its 95 % confidence interval.
    """

    times: float
    noise: float = 0.0


@dataclass(frozen=True)
class Trial:
    """What a string costs, and the seconds it took to find out; None, with the ``reason``, for one that cannot run."""

    cost: Cost | None
    seconds: float
    reason: str = ""


class Judge(Protocol):
    """The interface of what tells the costs of strings."""

    def run(self, genome: Genome) -> Trial:
        """Run one string by itself."""

    def compare(self, challenger: Genome, champion: Genome) -> tuple[Trial, Trial]:
        """Run two strings against each other for longer; the first trial has the seconds of both."""


@dataclass(frozen=True)
class SearchLimits:
    """The search ends after ``budget_s`` seconds of trials, or after ``patience`` populations without a gain.

    A population has ``population`` strings.
    """

    budget_s: float
    patience: int = 4
    population: int = 16


@dataclass(frozen=True)
class State:
    """How far the search is; ``history`` has, for each new best string, the seconds of trials so far and its cost."""

    champion: Genome
    cost: Cost
    seconds: float = 0.0
    trials: int = 0
    generation: int = 0
    history: tuple[tuple[float, float], ...] = ()


@dataclass(frozen=True)
class EvolutionResult:
    """The best string, and why the search ended.

    ``stopped`` is the exception that ended it from outside: Ctrl-C, or the end of the time for the whole compile.
    """

    state: State
    ended: str
    stopped: KeyboardInterrupt | BudgetOverError | None = None


def evolve(
    genes: Sequence[Gene],
    seeds: Sequence[Genome],
    judge: Judge,
    rng: random.Random,
    limits: SearchLimits,
    show: Callable[[State], None] = lambda _: None,
) -> EvolutionResult:
    """Search from the ``seeds``; the first one is the op level, which costs 1.0 and is the first champion.

    Ctrl-C and BudgetOverError end the search with the best string so far. With equal answers of the judge it repeats
    exactly.
    """
    search = _Search(genes, judge, rng, limits, show, State(seeds[0], Cost(1.0), history=((0.0, 1.0),)))
    try:
        ended = search.run(seeds)
    except KeyboardInterrupt as stop:
        return EvolutionResult(search.state, "interrupted", stop)
    except BudgetOverError as stop:
        return EvolutionResult(search.state, "the time for the compile was over", stop)
    return EvolutionResult(search.state, ended)


class _BudgetUsedUpError(Exception):
    """Ends the search when the trials have taken the seconds that they may."""


class _Fitness(base.Fitness):  # type: ignore[misc]
    weights = (-1.0,)


class _Individual(list[int]):
    """A string with its fitness, in the form that DEAP's operators need."""

    def __init__(self, digits: Sequence[int], cost: float | None = None) -> None:
        super().__init__(digits)
        self.fitness = _Fitness(() if cost is None else (cost,))


@dataclass
class _Search:
    genes: Sequence[Gene]
    judge: Judge
    rng: random.Random
    limits: SearchLimits
    show: Callable[[State], None]
    state: State
    known: dict[Genome, Cost | None] = field(default_factory=dict)

    def run(self, seeds: Sequence[Genome]) -> str:
        try:
            return self._generations(seeds)
        except _BudgetUsedUpError:
            return "the budget was used up"

    def _generations(self, seeds: Sequence[Genome]) -> str:
        people = self._grown(seeds)
        winners: list[Genome] = []
        best, champion, idle, failed = math.inf, self.state.champion, 0, 0
        while True:
            people = sorted(dict.fromkeys(people), key=self._cost)[: self.limits.population]
            if len(self.known) >= math.prod(len(gene.choices) for gene in self.genes):
                return "every placement was tried"
            self.state = replace(self.state, generation=self.state.generation + 1)
            idle = 0 if self._cost(people[0]) < best else idle + 1
            best = min(best, self._cost(people[0]))
            if idle <= _IDLE:
                people += self._climbing(people)
                people += self._bred(people)
                continue
            failed = failed + 1 if self.state.champion == champion else 0
            if failed > self.limits.patience:
                return f"no gain in {self.limits.patience} populations"
            winners.append(people[0])
            best, champion, idle = math.inf, self.state.champion, 0
            people = self._grown([self._anyone() for _ in range(_MEETING + 1)])
            if len(winners) % _MEETING == 0:
                people += winners[-_MEETING:]

    def _grown(self, some: Sequence[Genome]) -> list[Genome]:
        """A population made of some strings and mutations of them."""
        people = list(some)
        while len(people) < self.limits.population:
            people.append(self._mutated(self.rng.choice(people)))
        return people

    def _climbing(self, people: Sequence[Genome]) -> list[Genome]:
        """Untried strings that differ in one digit from the best, or from the next best where there are none left."""
        found: dict[Genome, None] = {}
        for each in people:
            near = [
                (*each[:at], digit, *each[at + 1 :])
                for at, gene in enumerate(self.genes)
                for digit in gene.choices
                if digit != each[at]
            ]
            new = [other for other in near if other not in self.known and other not in found]
            self.rng.shuffle(new)
            found.update(dict.fromkeys(new[: _CLIMBING - len(found)]))
            if len(found) >= _CLIMBING:
                break
        return list(found)

    def _bred(self, people: Sequence[Genome]) -> list[Genome]:
        """Untried strings that come from tournament, two-point crossover and mutation."""
        fit = [_Individual(each, self._cost(each)) for each in people if each in self.known]
        tournament, cross = _operators(self.rng)
        chosen = [_Individual(each) for each in tournament(fit, _BRED, _TOURNAMENT)]
        for one, other in zip(chosen[::2], chosen[1::2], strict=True):
            if len(self.genes) > 1 and self.rng.random() < _CROSSOVER:
                cross(one, other)
        found: dict[Genome, None] = {}
        for each in map(tuple, chosen):
            child = self._mutated(each) if self.rng.random() < _MUTATION else each
            for _ in range(_TRIES):
                if child not in self.known and child not in found:
                    found[child] = None
                    break
                child = self._mutated(child)
        return list(found)

    def _cost(self, genome: Genome) -> float:
        """The cost to rank the string by; it is infinite for one that cannot be run."""
        if genome not in self.known:
            self._try(genome)
        cost = self.known[genome]
        return math.inf if cost is None else cost.times

    def _try(self, genome: Genome) -> None:
        if self.state.seconds >= self.limits.budget_s:
            raise _BudgetUsedUpError
        trial = self.judge.run(genome)
        self.known[genome] = trial.cost
        self._count(trial)
        champion = self.state.champion
        if genome != champion and trial.cost is not None and trial.cost.times < self.state.cost.times:
            ours, theirs = self.judge.compare(genome, champion)
            self.known[genome], self.known[champion] = ours.cost, theirs.cost
            best = self.state.cost if theirs.cost is None else theirs.cost
            # With much noise, a string that is slower than the op level may beat another one.
            limit = min(1.0, best.times - best.noise)
            wins = ours.cost is not None and ours.cost.times + ours.cost.noise < limit
            if wins and ours.cost is not None:
                champion, best = genome, ours.cost
            seconds = self.state.seconds + ours.seconds
            history = (*self.state.history, (seconds, best.times)) if wins else self.state.history
            self.state = replace(self.state, champion=champion, cost=best, seconds=seconds, history=history)
        self.show(self.state)

    def _count(self, trial: Trial) -> None:
        self.state = replace(self.state, seconds=self.state.seconds + trial.seconds, trials=self.state.trials + 1)

    def _anyone(self) -> Genome:
        return tuple(self.rng.choice(gene.choices) for gene in self.genes)

    def _mutated(self, genome: Genome) -> Genome:
        """The string with another digit for one gene, for a run of neighbours, or for all genes of one kind.

        Sometimes this is done several times.
        """
        changed = list(genome)
        while True:
            at = self.rng.randrange(len(self.genes))
            digit = self.rng.choice([each for each in self.genes[at].choices if each != changed[at]])
            for index in self._together(at):
                if digit in self.genes[index].choices:
                    changed[index] = digit
            if self.rng.random() >= _AGAIN:
                return tuple(changed)

    def _together(self, at: int) -> Sequence[int]:
        """The genes that a mutation at one of them changes."""
        reach = self.rng.randrange(3)
        if reach == 0:
            return (at,)
        if reach == 1:
            return range(at, self.rng.randint(at + 1, len(self.genes)))
        return [index for index, gene in enumerate(self.genes) if gene.kind == self.genes[at].kind]


def _operators(rng: random.Random) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """DEAP's tournament selection and two-point crossover, which draw from ``rng``.

    DEAP's own functions draw from the module ``random``, whose state is shared by all threads of the process. These are
    copies of them, in which the name ``random`` means our generator.
    """
    names: dict[str, Any] = {**vars(selection), **vars(crossover), "random": rng}
    for each in (selection.selRandom, selection.selTournament, crossover.cxTwoPoint):
        names[each.__name__] = FunctionType(each.__code__, names, each.__name__, each.__defaults__)
    return names["selTournament"], names["cxTwoPoint"]
