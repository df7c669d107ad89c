"""Placement under an error budget: the least cost of all covers whose errors add up to no more than the budget.

It is the dynamic program of ``dp`` with several ways into each state. A label says what a way costs and how much error
it adds, and a label is dropped when another one of its state costs no more and adds no more error. States with the same
nodes covered in other storages drop labels, too, where layout transforms make one the other (see ``storages``): these
add no error of their own, since each kernel's error is measured with its inputs and outputs as they are stored.

**Without the budget.** Where the cheapest cover keeps the budget it is the answer, and nothing else is searched.

**Prices.** Otherwise the error gets a price, and the plain dynamic program minimises the sum of both (Lagrangian
relaxation, with prices by secants as in the algorithm LARAC for constrained shortest paths). The best cover that keeps
the budget among these is within a kernel or so of the best one of all, and prices bound what can be gained beside it.
In large networks that is less than noise, and the search ends there (``Budget.gap``). Otherwise it bounds what labels
may cost. Where there are too many labels to follow, those that are cheapest at the last price are followed.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import NamedTuple

from collage.core.deadline import Check, endless
from collage.errors import NoPlacementError
from collage.graph.dataflow import Graph
from collage.graph.order import branch_order
from collage.search.candidate import Candidate
from collage.search.covers import (
    Bound,
    Choices,
    Loose,
    Option,
    State,
    advanced,
    choices_of,
    joined_by,
    options_of,
)
from collage.search.dp import cheapest_cover
from collage.search.placement import NO_TRANSFORMS, Placement, charge_us, contenders, finish
from collage.search.storages import Held, StorageRules, weight
from collage.search.transforms import ValueTransform

_UNITS = 1 << 40
"""The budget as an integer, so that errors add up to the same sum in any order."""
_SLACK = 1 << 10
"""Errors are rounded to units, and so many units more than the budget are still within it: a billionth of it."""
_MOST_LABELS = 64
"""The most labels at one node, over all of its states. On a ViT of 454 nodes with 10,600 kernels, 16 to 512 labels find
the same placement for most budgets, and 512 take ten times as long as all prices together."""
GAP = 3e-3
"""The share of the cost that a search need not find: less than the noise of what it adds up."""
_PRICES = 10
"""The most prices that are tried. Most problems need three to five, and one where the price is known."""
_STEP, _STEPS = 1.1, 4
"""The first factor from a known price to the next one, and the most prices that are tried so."""
_FEW_STATES = 64
"""The most states at one node for a bound. On a NASNet-A of 1,188 nodes the cost is 0.1 % more than with 128."""


@dataclass(frozen=True)
class Budget:
    """The most that errors of candidates may add up to, and how far the search goes.

    It follows at most so many ``labels`` at one node, and none where prices show that there is less than the share
    ``gap`` of the cost to gain. It begins with ``price_us``, what a unit of error was worth in a similar problem, if it
    is not 0.
    """

    error: float
    labels: int = _MOST_LABELS
    gap: float = GAP
    price_us: float = 0.0

    def keeps(self, error: float) -> bool:
        """Whether the error is within the budget, but for rounding."""
        return error <= self.error * (1 + _SLACK / _UNITS)


@dataclass(frozen=True, slots=True)
class _Label:
    """A way into a state: what it costs, the error that it adds, the last option taken and the label before it."""

    weight: int
    error: int
    last: Option | None = None
    before: _Label | None = None

    def candidates(self) -> list[Candidate]:
        """The candidates of the way, the last one first."""
        found: list[Candidate] = []
        label = self
        while label.last is not None and label.before is not None:
            found.append(label.last.candidate)
            label = label.before
        return found


@dataclass(frozen=True)
class _Limits:
    """What bounds the labels: ``most`` at one node, and the ``weight`` of a cover that is known (or None).

    ``price`` is the weight of a unit of error, by which labels are ranked where there are too many.
    """

    most: int
    weight: int | None
    price: float


class _Least(NamedTuple):
    """The least weight of any placement within the budget. It is an estimate where states were dropped (not exact)."""

    weight: float
    exact: bool

    def reached(self, weight: int, gap: float = 0.0) -> bool:
        """Whether a placement weighs no more, but for a share."""
        return weight <= self.weight * (1 + gap)


@dataclass(frozen=True)
class _Costs:
    """The parameters of ``place_within`` that say what things cost."""

    epsilon_us: float
    margin: float
    transforms_us: Mapping[ValueTransform, float]

    def charge_us(self, candidate: Candidate) -> float:
        """The candidate's term of what the search minimises."""
        return charge_us(candidate, self.epsilon_us, self.margin)


@dataclass(frozen=True)
class _Problem:
    """What is placed, with all that does not depend on the price of errors. Make it with ``of``."""

    graph: Graph
    order: Sequence[int]
    choices: Choices
    rules: StorageRules
    costs: _Costs
    check: Check

    @staticmethod
    def of(graph: Graph, candidates: Sequence[Candidate], costs: _Costs, check: Check) -> _Problem:
        """The problem of placing these candidates. Raises NoPlacementError where they do not cover some node."""
        order = branch_order(graph)
        usable = contenders(graph, candidates, costs.epsilon_us, costs.margin)
        rules = StorageRules(graph, order, usable, costs.transforms_us)
        return _Problem(graph, order, choices_of(graph, order, usable, rules), rules, costs, check)

    def at_price(self, price_us: float, max_states: int | None = None) -> Placement:
        """The cheapest placement where a unit of error costs ``price_us`` microseconds. Raises NoPlacementError."""
        costs = self.costs

        def charge(each: Candidate) -> float:
            return costs.charge_us(each) + price_us * each.error

        options = options_of(self.choices, charge, self.rules, errors=False)
        return replace(self._cheapest(options, max_states), price_us=price_us)

    def without_errors(self) -> Placement:
        """The cheapest placement without any error. Raises NoPlacementError."""
        exact = [
            [[choice for choice in alike if choice.candidate.error == 0] for alike in here] for here in self.choices
        ]
        return self._cheapest(options_of(exact, self.costs.charge_us, self.rules, errors=False))

    def options(self, budget: float) -> list[list[tuple[Option, int]]]:
        """The options with their errors in units of the budget."""
        scale = _UNITS / budget if budget > 0 else 0.0
        options = options_of(self.choices, self.costs.charge_us, self.rules, errors=True)
        return [[(option, round(option.candidate.error * scale)) for option in here] for here in options]

    def _cheapest(self, options: Sequence[Sequence[Option]], max_states: int | None = None) -> Placement:
        chosen, exact = cheapest_cover(self.graph, self.order, options, self.rules, max_states, self.check)
        return self.finished(chosen, exact=exact)

    def finished(self, chosen: Sequence[Candidate], *, exact: bool) -> Placement:
        """The placement of chosen candidates."""
        costs = self.costs
        return finish(self.graph, chosen, costs.epsilon_us, exact=exact, transforms_us=costs.transforms_us)

    def weight(self, placement: Placement) -> int:
        """What the search minimises, for a placement that is known."""
        kernels = sum(weight(self.costs.charge_us(c)) for c in placement.candidates)
        return kernels + sum(weight(each.cost_us) for each in placement.transforms)


def place_within(
    graph: Graph,
    candidates: Sequence[Candidate],
    epsilon_us: float,
    budget: Budget,
    *,
    margin: float = 0.0,
    transforms_us: Mapping[ValueTransform, float] = NO_TRANSFORMS,
    check: Check = endless,
) -> Placement:
    """The cheapest placement, as in ``dp.place``, of those whose candidates keep the budget.

    With more than ``budget.labels`` labels at one node only the most promising ones are followed, and the placement has
    ``exact=False``. Raises ``NoPlacementError`` when no placement keeps the budget, and what ``check`` raises.
    """
    possible = [c for c in candidates if budget.keeps(c.error)]
    problem = _Problem.of(graph, possible, _Costs(epsilon_us, margin, transforms_us), check)
    known, price, least = _by_prices(problem, budget)
    price_us = price / weight(1.0)
    limit = None if known is None else problem.weight(known)
    if known is not None and limit is not None and least.reached(limit, budget.gap):
        return replace(known, exact=least.exact and least.reached(limit), price_us=price_us)
    options = problem.options(budget.error)
    labels = budget.labels
    while True:
        limits = _Limits(labels, limit, price * budget.error / _UNITS)
        label, exact = _walk(options, limits, problem.rules, check)
        if label is not None or known is not None or exact:
            break
        labels *= 4  # every label that led to a cover was dropped
    if label is not None and (limit is None or label.weight < limit):
        return replace(problem.finished(label.candidates(), exact=exact), price_us=price_us)
    if known is None:
        raise NoPlacementError("no placement keeps the error within the budget")
    return replace(known, exact=exact, price_us=price_us)


def least_within(
    graph: Graph,
    candidates: Sequence[Candidate],
    epsilon_us: float,
    budget: Budget,
    *,
    margin: float = 0.0,
    transforms_us: Mapping[ValueTransform, float] = NO_TRANSFORMS,
    check: Check = endless,
) -> float:
    """A bound in microseconds at the price of the budget: no placement of ``place_within`` is charged less.

    At the right price it is within a kernel or so of the best placement. Without a price it is the cost of the cheapest
    placement, whatever its error. Raises ``NoPlacementError`` when there is no placement at all, and what ``check``
    raises.
    """
    possible = [c for c in candidates if budget.keeps(c.error)]
    problem = _Problem.of(graph, possible, _Costs(epsilon_us, margin, transforms_us), check)
    found = problem.at_price(budget.price_us, _FEW_STATES)
    return problem.weight(found) / weight(1.0) + budget.price_us * (found.error - budget.error)


def _by_prices(problem: _Problem, budget: Budget) -> tuple[Placement | None, float, _Least]:
    """A cheap placement within the budget, or None, the weight of a unit of error, and the least weight of any.

    The price at which the best placement within the budget that is known costs as much as the best one beyond it is
    tried, and the placement that comes of it replaces one of the two. Where none comes of it that is cheaper at that
    price, the price is the right one. Where states were dropped, the one within may cost no more to begin with.
    """
    within, beyond, price, least = _around(problem, budget)
    if within is not None and least.reached(problem.weight(within), budget.gap):
        return within, price, least
    if beyond is None:
        beyond = problem.at_price(0.0)
        if budget.keeps(beyond.error):
            return beyond, 0.0, _Least(problem.weight(beyond), beyond.exact)
        least = max(least, _Least(problem.weight(beyond), beyond.exact))
    if within is None:
        with suppress(NoPlacementError):
            within = problem.without_errors()
    if within is None:
        # No time is worth any error: there is no cover with less.
        within = problem.at_price((problem.weight(beyond) / weight(1.0) + 1) / budget.error * _UNITS)
        if not budget.keeps(within.error):
            return None, problem.weight(beyond) / beyond.error, least
    for _ in range(_PRICES):
        dearer = problem.weight(within) - problem.weight(beyond)
        if dearer <= 0:
            break
        price = dearer / (beyond.error - within.error)
        found = problem.at_price(price / weight(1.0))
        least = max(least, _left(problem, found, price, budget))
        if _priced(problem, found, price) >= _priced(problem, beyond, price) * (1 - 1e-9):
            break
        if budget.keeps(found.error):
            within = found
        else:
            beyond = found
        if least.reached(problem.weight(within), budget.gap):
            break
    return within, price, least


def _around(problem: _Problem, budget: Budget) -> tuple[Placement | None, Placement | None, float, _Least]:
    """A placement within the budget and one beyond it, or None, the last price tried, and the least weight of any.

    The prices are about that which was right for a similar problem, at growing distances from it.
    """
    within: Placement | None = None
    beyond: Placement | None = None
    price, step, least = budget.price_us * weight(1.0), _STEP, _Least(0.0, exact=True)
    for _ in range(_STEPS if price else 0):
        found = problem.at_price(price / weight(1.0))
        least = max(least, _left(problem, found, price, budget))
        if budget.keeps(found.error):
            within = found
        else:
            beyond = found
        done = within is not None and least.reached(problem.weight(within), budget.gap)
        if done or (within is not None and beyond is not None):
            break
        price = price / step if within is not None else price * step
        step *= step
    return within, beyond, price, least


def _priced(problem: _Problem, placement: Placement, price: float) -> float:
    """The weight of a placement with its error at a price."""
    return problem.weight(placement) + price * placement.error


def _left(problem: _Problem, cheapest: Placement, price: float, budget: Budget) -> _Least:
    """The least weight of a placement within the budget, where one is the cheapest at a price.

    No cover costs less at this price, so one within the budget costs at least what is left without its error.
    """
    return _Least(_priced(problem, cheapest, price) - price * budget.error, cheapest.exact)


def _walk(
    options: Sequence[Sequence[tuple[Option, int]]], limits: _Limits, rules: StorageRules, check: Check
) -> tuple[_Label | None, bool]:
    """The cheapest label of a cover of all positions (or None), and whether it is exact."""
    end = len(options)
    layers: list[dict[State, list[_Label]]] = [{} for _ in range(end + 1)]
    layers[0][(0, (), ())] = [_Label(0, 0)]
    bound = Bound([[option for option, _ in here] for here in options])
    whole = bound.covered(end, 0)
    exact = True
    for at in range(end):
        check()
        states, layers[at] = layers[at], {}
        labels = _undominated(states, rules)
        if limits.weight is not None:
            most = limits.weight - whole
            labels = [each for each in labels if each[1].weight - bound.covered(at, each[0][0]) <= most]
        if len(labels) > limits.most:
            exact = False
            labels = _promising(labels, limits, bound, at)
        for (covered, loose, held), label in labels:
            for option, error in options[at]:
                if covered & option.mask or label.error + error > _UNITS + _SLACK:
                    continue
                after = _after(rules, (covered, loose, held), option, at)
                if after is None:
                    continue
                step, state, extra = after
                found = _Label(label.weight + option.weight + extra, label.error + error, option, label)
                layers[at + step].setdefault(state, []).append(found)
    return min(layers[end].get((0, (), ()), ()), key=lambda label: label.weight, default=None), exact


def _promising(
    labels: list[tuple[State, _Label]], limits: _Limits, bound: Bound, at: int
) -> list[tuple[State, _Label]]:
    """The labels that are cheapest with their error at its price, and the one with the least error."""

    def rank(item: tuple[State, _Label]) -> float:
        state, label = item
        return label.weight - bound.covered(at, state[0]) + limits.price * label.error

    least = min(labels, key=lambda item: (item[1].error, rank(item)))
    kept = heapq.nsmallest(limits.most, labels, key=rank)
    return kept if any(each is least for each in kept) else [*kept, least]


def _after(rules: StorageRules, state: State, option: Option, at: int) -> tuple[int, State, int] | None:
    """How far the option leads, the state that it leads to, and the weight of layout transforms; None in a circle."""
    covered, loose, held = state
    ahead = covered | option.mask
    step = (~ahead & (ahead + 1)).bit_length() - 1
    if loose or option.reaches:
        joined = joined_by(loose, option)
        if joined is None:
            return None
        loose = advanced(joined, step)
    extra = 0
    if held or option.ports:
        after = rules.transition(held, option.ports, at, covered, at + step)
        if after is None:
            return None
        held, extra = after
    return step, (ahead >> step, loose, held), extra


def _undominated(states: Mapping[State, Sequence[_Label]], rules: StorageRules) -> list[tuple[State, _Label]]:
    """The labels without dominated ones, of the same state and of the cheapest one with the same nodes covered."""
    fronts = {state: _front(labels) for state, labels in states.items()}
    cheapest: dict[tuple[int, Loose], tuple[Held, list[_Label]]] = {}
    for (covered, loose, held), front in fronts.items():
        best = cheapest.get((covered, loose))
        if best is None or front[0].weight < best[1][0].weight:
            cheapest[covered, loose] = (held, front)
    kept: list[tuple[State, _Label]] = []
    for state, front in fronts.items():
        held, better = cheapest[state[:2]]
        if held == state[2]:
            kept += [(state, label) for label in front]
            continue
        extra = rules.becoming(held, state[2])
        kept += [
            (state, label)
            for label in front
            if all(each.weight + extra > label.weight or each.error > label.error for each in better)
        ]
    return kept


def _front(labels: Sequence[_Label]) -> list[_Label]:
    """The labels that no other one beats in cost and error, the cheapest first."""
    kept: list[_Label] = []
    for label in sorted(labels, key=lambda each: (each.weight, each.error)):
        if not kept or label.error < kept[-1].error:
            kept.append(label)
    return kept
