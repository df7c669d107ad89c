"""Op-level placement by dynamic programming: Algorithm 1, Eq. 2.2-2.4.

The nodes are visited in branch order. A state says which nodes are covered: all before the first uncovered one, and a
few after it (the mask). The first uncovered node has to be covered by some candidate that begins there, which gives the
next states. The cheapest way into each state is kept (Eq. 2.3). These states are the paper's S, the subgraphs that hold
all nodes before v_s.

Covers with circles are refused (see ``covers``). Errors of candidates do not count here (see ``dp_budget``).

**Storages.** A state also carries the storages of some values that cross its edge: those that some candidate reads or
writes in another storage than the plain one, while a node that uses them is uncovered. A copy to another device has a
price like a change of format, so the search also decides what is offloaded. See ``storages.py``.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from collage.core.deadline import Check, endless
from collage.graph.dataflow import Graph
from collage.graph.order import branch_order
from collage.search.candidate import Candidate
from collage.search.compiled_walk import can_be_walked, walked
from collage.search.covers import (
    MOST_STATES,
    MOST_STATES_PLAIN,
    Bound,
    Loose,
    Option,
    State,
    advanced,
    choices_of,
    joined_by,
    options_of,
)
from collage.search.placement import NO_TRANSFORMS, Placement, charge_us, contenders, finish, no_cover
from collage.search.storages import Held, StorageRules
from collage.search.transforms import ValueTransform


@dataclass(frozen=True, slots=True)
class _Way:
    """The cheapest known way into a state: the last option taken and the way before it."""

    weight: int
    last: Option | None = None
    before: _Way | None = None

    def options(self) -> list[Option]:
        """The options taken, the last one first."""
        found: list[Option] = []
        way = self
        while way.last is not None and way.before is not None:
            found.append(way.last)
            way = way.before
        return found


def place(
    graph: Graph,
    candidates: Sequence[Candidate],
    epsilon_us: float,
    *,
    margin: float = 0.0,
    max_states: int | None = None,
    transforms_us: Mapping[ValueTransform, float] = NO_TRANSFORMS,
    check: Check = endless,
) -> Placement:
    """The placement with the least sum of ``cost_us + epsilon_us + margin * noise_us`` and layout transforms.

    ``epsilon_us`` is the cost of a context switch (Eq. 2.2), and ``transforms_us`` has those of layout transforms; a
    transform without a cost cannot be made. Of placements with the same sum the one with fewer candidates wins. The
    result does not depend on the order of ``candidates``. Candidates that are not convex are ignored. With more than
    ``max_states`` states at one node (by default 512, or 128 where storages matter) only the most promising ones are
    followed, and the placement has ``exact=False``. Raises ``NoPlacementError`` when no placement exists, and what
    ``check`` raises, which is called at each node.
    """
    order = branch_order(graph)
    usable = contenders(graph, candidates, epsilon_us, margin)
    rules = StorageRules(graph, order, usable, transforms_us)
    choices = choices_of(graph, order, usable, rules)
    options = options_of(choices, lambda each: charge_us(each, epsilon_us, margin), rules, errors=True)
    chosen, exact = cheapest_cover(graph, order, options, rules, max_states, check)
    return finish(graph, chosen, epsilon_us, exact=exact, transforms_us=transforms_us)


def cheapest_cover(
    graph: Graph,
    order: Sequence[int],
    options: Sequence[Sequence[Option]],
    rules: StorageRules,
    max_states: int | None = None,
    check: Check = endless,
) -> tuple[list[Candidate], bool]:
    """The candidates of the cheapest cover, and whether the search was exact.

    Raises NoPlacementError, and what ``check`` raises.
    """
    if max_states is None:
        max_states = MOST_STATES if rules.matter else MOST_STATES_PLAIN
    walk = walked if can_be_walked(options, rules) else walked_in_python
    while True:
        chosen, reached, exact = walk(options, max_states, rules, check)
        if chosen is not None:
            return [option.candidate for option in chosen], exact
        if exact:
            raise no_cover(graph, order[reached])
        max_states *= 4  # every state that led to a cover was dropped


def walked_in_python(
    options: Sequence[Sequence[Option]], max_states: int, rules: StorageRules, check: Check
) -> tuple[list[Option] | None, int, bool]:
    """The options of the cheapest cover, the last one first, the last position reached, and whether it is exact.

    It is what ``compiled_walk`` does where that is built.
    """
    end = len(options)
    layers: list[dict[State, _Way]] = [{} for _ in range(end + 1)]
    layers[0][(0, (), ())] = _Way(0)
    bound = Bound(options)
    reached = 0
    exact = True
    for at in range(end):
        check()
        states, layers[at] = layers[at], {}
        if states:
            reached = at
        ways = _undominated(states, rules)
        if len(ways) > max_states:
            exact = False
            ways = heapq.nsmallest(max_states, ways, key=lambda item: item[1].weight - bound.covered(at, item[0][0]))
        here = options[at]
        for (covered, loose, held), way in ways:
            for option in here:
                if covered & option.mask:
                    continue
                ahead = covered | option.mask
                step = (~ahead & (ahead + 1)).bit_length() - 1  # trailing ones: on to the next uncovered node
                next_loose = loose
                if loose or option.reaches:
                    joined = joined_by(loose, option)
                    if joined is None:
                        continue
                    next_loose = advanced(joined, step)
                cost = way.weight + option.weight
                next_held = held
                if held or option.ports:
                    after = rules.transition(held, option.ports, at, covered, at + step)
                    if after is None:
                        continue
                    next_held, extra = after
                    cost += extra
                state = (ahead >> step, next_loose, next_held)
                layer = layers[at + step]
                known = layer.get(state)
                if known is None or cost < known.weight:
                    layer[state] = _Way(cost, option, way)
    last = layers[end].get((0, (), ()))
    return None if last is None else last.options(), reached, exact


def _undominated(states: Mapping[State, _Way], rules: StorageRules) -> list[tuple[State, _Way]]:
    """The states without dominated ones: those that a state with the same nodes covered can become at no more cost.

    Of each group of states with the same nodes covered, only the cheapest is tried as the better one.
    """
    if all(not held for _, _, held in states):
        return list(states.items())
    cheapest: dict[tuple[int, Loose], tuple[Held, int]] = {}
    for (covered, loose, held), way in states.items():
        best = cheapest.get((covered, loose))
        if best is None or way.weight < best[1]:
            cheapest[covered, loose] = (held, way.weight)
    kept = []
    for state, way in states.items():
        held, least = cheapest[state[:2]]
        if held == state[2] or least + rules.becoming(held, state[2]) > way.weight:
            kept.append((state, way))
    return kept
