"""The evolutionary search against all placements, on made-up costs across kernels; noise, budget, Ctrl-C."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import product

import pytest

from collage.core.deadline import BudgetOverError
from collage.search.evolution import Cost, EvolutionResult, SearchLimits, State, Trial, evolve
from collage.search.offload import Encoding, Genome
from tests.helpers.strategies import graph_of
from tests.unit.search.test_offload import encoding_of, singles

LIMITS = SearchLimits(budget_s=600.0)


@dataclass
class MadeUp:
    """Costs that no sum over operators has: an engine's region costs the more per operator the smaller it is, some
    neighbours fuse, and what crosses from one launch to the next is paid for. A trial takes a second.
    """

    encoding: Encoding
    seed: int
    noise: float = 0.0
    trials: list[Genome] = field(default_factory=list)
    costs: dict[Genome, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        rng = random.Random(self.seed)
        graph, engines = self.encoding.graph, self.encoding.engines
        self.kernel = [rng.uniform(5, 15) for _ in graph.nodes]
        self.inside = {engine: [rng.uniform(3, 14) for _ in graph.nodes] for engine in engines}
        self.fused = {
            (engine, node.id, user): rng.choice([0, 0, 2, 5])
            for engine in engines
            for node in graph.nodes
            for user in graph.successors[node.id]
        }
        self.rng = random.Random(self.seed + 1)

    def cost(self, genome: Genome) -> float:
        if genome not in self.costs:
            self.costs[genome] = self.made_up(genome)
        return self.costs[genome]

    def made_up(self, genome: Genome) -> float:
        found = self.encoding.decode(genome)
        total = sum(self.kernel[n] for c in found.kept for n in c.nodes) + 1.0 * len(found.kept)
        for nodes, engine in found.regions:
            total += 6.0 + sum(self.inside[engine][n] for n in nodes)
            total -= sum(gain for (e, a, b), gain in self.fused.items() if e == engine and a in nodes and b in nodes)
        return total

    def run(self, genome: Genome) -> Trial:
        self.trials.append(genome)
        return Trial(self._noisy(genome), 1.0)

    def compare(self, challenger: Genome, champion: Genome) -> tuple[Trial, Trial]:
        return Trial(self._noisy(challenger), 1.0), Trial(self._noisy(champion), 0.0)

    def _noisy(self, genome: Genome) -> Cost:
        times = self.cost(genome) / self.cost(self.encoding.op_level)
        return Cost(times * self.rng.uniform(1 - self.noise, 1 + self.noise), times * self.noise)


def network(seed: int) -> Encoding:
    """Ten operators with branches."""
    rng = random.Random(seed)
    edges = {(max(0, b - rng.choice([1, 1, 2, 3])), b) for b in range(1, 10)}
    edges |= {(rng.randrange(b), b) for b in (3, 6, 9)}
    graph = graph_of(sorted(edges), 10)
    return encoding_of(graph, singles(graph, {4: "ort"}))


def search(
    judge: MadeUp, seed: int, limits: SearchLimits = LIMITS, show: Callable[[State], None] = lambda _: None
) -> EvolutionResult:
    encoding = judge.encoding
    seeds = [encoding.op_level, *(encoding.all_on(engine) for engine in encoding.engines)]
    return evolve(encoding.genes, seeds, judge, random.Random(seed), limits, show)


def best_of_all(judge: MadeUp) -> float:
    return min(judge.cost(genome) for genome in product(*(gene.choices for gene in judge.encoding.genes)))


@pytest.mark.parametrize("made_up", range(4))
def test_finds_the_best_of_all_placements_in_19_of_20_seeds(made_up: int) -> None:
    judge = MadeUp(network(made_up), made_up)
    best = best_of_all(judge)  # of 19,683
    assert best < 0.95 * judge.cost(judge.encoding.op_level)
    hits = 0
    for seed in range(20):
        judge.trials.clear()
        found = search(judge, seed)
        assert len(judge.trials) <= LIMITS.budget_s < 0.04 * 3 ** len(judge.encoding.genes)
        hits += judge.cost(found.state.champion) <= best + 1e-9
    assert hits >= 19


def test_the_same_seed_tries_the_same_placements() -> None:
    runs = []
    for _ in range(2):
        random.seed(len(runs))  # what others draw is their business
        judge = MadeUp(network(1), 1)
        found = search(judge, 7)
        runs.append((judge.trials, found))
    assert runs[0] == runs[1]
    other = MadeUp(network(1), 1)
    search(other, 8)
    assert other.trials != runs[0][0]


def test_the_generator_of_the_process_is_not_used_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread may draw from it at the same time."""

    def used(*_: object) -> None:
        raise AssertionError("the search used the generator of the process")

    for name in ("choice", "getstate", "randint", "random", "sample", "seed", "setstate", "shuffle"):
        monkeypatch.setattr(random, name, used)
    judge = MadeUp(network(1), 1)
    assert search(judge, 0).state.cost.times < 1.0


def test_noise_alone_dethrones_nobody() -> None:
    class Equal(MadeUp):
        def made_up(self, genome: Genome) -> float:
            return 1.0

    changes = 0
    for seed in range(20):
        judge = Equal(network(0), seed, noise=0.05)
        changes += search(judge, seed).state.champion != judge.encoding.op_level
    assert changes == 0


def test_the_budget_bounds_the_trials() -> None:
    judge = MadeUp(network(0), 0)
    found = search(judge, 0, SearchLimits(budget_s=10.0))
    assert found.ended == "the budget was used up"
    assert len(judge.trials) <= 10
    assert 10.0 <= found.state.seconds <= 12.0


@pytest.mark.parametrize("stop", [KeyboardInterrupt(), BudgetOverError()])
def test_what_stops_it_keeps_the_best(stop: KeyboardInterrupt | BudgetOverError) -> None:
    class Interrupted(MadeUp):
        def run(self, genome: Genome) -> Trial:
            if len(self.trials) == 60:
                raise stop
            return super().run(genome)

    judge = Interrupted(network(0), 0)
    found = search(judge, 0)
    assert found.stopped is stop
    tried = [judge.cost(genome) for genome in judge.trials]
    assert judge.cost(found.state.champion) == min(tried) < judge.cost(judge.encoding.op_level)


def test_what_cannot_be_run_is_never_the_champion() -> None:
    class Picky(MadeUp):
        def run(self, genome: Genome) -> Trial:
            if 1 in genome:
                self.trials.append(genome)
                return Trial(None, 1.0, "crashed")
            return super().run(genome)

    judge = Picky(network(0), 0)
    found = search(judge, 0)
    assert 1 not in found.state.champion
    assert any(1 in genome for genome in judge.trials)


def test_progress_only_gets_better() -> None:
    states: list[State] = []
    judge = MadeUp(network(3), 3)
    found = search(judge, 0, show=states.append)
    assert [s.trials for s in states] == sorted(s.trials for s in states)
    costs = [times for _, times in found.state.history]
    assert costs == sorted(costs, reverse=True)
    assert costs[0] == 1.0 and costs[-1] == found.state.cost.times
