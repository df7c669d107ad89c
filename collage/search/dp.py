"""Op-level placement by dynamic programming: Algorithm 1, Eq. 2.2-2.4.

The nodes are visited in branch order. A state says which nodes are covered: all before the first uncovered one, and a
few after it (the mask). The first uncovered node has to be covered by some candidate that begins there, which gives the
next states. The cheapest way into each state is kept (Eq. 2.3). These states are the paper's S, the subgraphs that hold
all nodes before v_s.

**Circles.** A cover may consist of convex candidates and still not be runnable: with a -> b and c -> d, {a, d} and
{b, c} wait for each other. Algorithm 1 does not exclude such covers. Here the state carries what is needed to refuse
exactly these. A candidate is called *tight* when each of its entries (nodes that read from outside) reaches each of its
exits (nodes that are read from outside), and *loose* otherwise. A candidate with one sink that all its nodes reach is
tight.

1. Tight candidates by themselves form no circle. Let P1 -> ... -> Pk -> P1 be one. Each edge goes from an exit of a
   part to an entry of the next, which reaches the exit that the next edge leaves from, within its part or
   not. Joined, these paths lead from a node back to itself, but the graph has no cycle.
2. By the same argument a circle that passes through tight parts between two loose ones, A and B, implies a
   path in the graph from A to B. Conversely such a path makes B wait for A, whichever parts cover it. So a
   cover has a circle exactly when its loose parts do under "some node of A reaches some node of B".
3. A state therefore carries, for each loose candidate with nodes after the first uncovered one, these nodes and all
   nodes that it reaches so far: its descendants, and what another loose candidate among them reaches. There is a
   circle when a candidate reaches itself. A candidate whose nodes have all been passed can be forgotten: candidates
   that are placed later begin later, so they cannot reach it, and those that reach it have its reach as well.

Most candidates are tight, and a candidate that is an interval of the order is passed as soon as it is placed, so nearly
all states carry no loose candidates.

**Storages.** A state also carries the storages of some values that cross its edge: those that some candidate reads or
writes in another storage than the plain one, while a node that uses them is uncovered. A copy to another device has a
price like a change of format, so the search also decides what is offloaded. See ``storages.py``.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from collage.graph.convexity import bits
from collage.graph.dataflow import Graph
from collage.graph.order import branch_order
from collage.search.candidate import Candidate
from collage.search.placement import NO_TRANSFORMS, Placement, charge_us, contenders, finish, no_cover
from collage.search.storages import Held, Ports, StorageRules, weight
from collage.search.transforms import ValueTransform

_MOST_STATES_PLAIN = 512
_MOST_STATES = 128
"""The most states at one node where values have several storages. Then there are more states of about equal cost, and
each takes longer to follow. On a NASNet-A of 1,188 nodes with three layouts, 64 states give a placement that costs
0.02 % more than with 128, and 512 states give none that costs less."""

_Loose: TypeAlias = "tuple[tuple[int, int], ...]"
"""Loose candidates with nodes ahead: (mask of these nodes, mask of the nodes it reaches), ascending."""

_State: TypeAlias = tuple[int, _Loose, Held]
"""The mask of covered nodes, the loose candidates, and the storages. Bit i is the position i after the state's own."""


@dataclass(frozen=True, slots=True)
class _Option:
    """A candidate with what the walk needs to know of it. Bit 0 of a mask is its first node in the order."""

    candidate: Candidate
    mask: int
    weight: int
    reaches: int
    """The mask of nodes that a loose candidate's nodes reach outside of it; 0 for a tight candidate."""
    ports: Ports


@dataclass(frozen=True, slots=True)
class _Way:
    """The cheapest known way into a state: the last option taken and the way before it."""

    weight: int
    last: _Option | None = None
    before: _Way | None = None


def place(
    graph: Graph,
    candidates: Sequence[Candidate],
    epsilon_us: float,
    *,
    margin: float = 0.0,
    max_states: int | None = None,
    transforms_us: Mapping[ValueTransform, float] = NO_TRANSFORMS,
) -> Placement:
    """The placement with the least sum of ``cost_us + epsilon_us + margin * noise_us`` and layout transforms.

    ``epsilon_us`` is the cost of a context switch (Eq. 2.2), and ``transforms_us`` has those of layout transforms; a
    transform without a cost cannot be made. Of placements with the same sum the one with fewer candidates wins. The
    result does not depend on the order of ``candidates``. Candidates that are not convex are ignored. With more than
    ``max_states`` states at one node (by default 512, or 128 where storages matter) only the most promising ones are
    followed, and the placement has ``exact=False``. Raises ``NoPlacementError`` when no placement exists.
    """
    order = branch_order(graph)
    usable = contenders(graph, candidates, epsilon_us, margin)
    rules = StorageRules(graph, order, usable, transforms_us)
    if max_states is None:
        max_states = _MOST_STATES if rules.matter else _MOST_STATES_PLAIN
    options = _options(graph, order, usable, epsilon_us, margin, rules)
    while True:
        way, reached, exact = _walk(options, max_states, rules)
        if way is not None:
            break
        if exact:
            raise no_cover(graph, order[reached])
        max_states *= 4  # every state that led to a cover was dropped
    chosen: list[Candidate] = []
    while way.last is not None and way.before is not None:
        chosen.append(way.last.candidate)
        way = way.before
    return finish(graph, chosen, epsilon_us, exact=exact, transforms_us=transforms_us)


def _options(
    graph: Graph,
    order: Sequence[int],
    usable: Sequence[Candidate],
    epsilon_us: float,
    margin: float,
    rules: StorageRules,
) -> list[list[_Option]]:
    """For each position in the order, the candidates that begin there.

    A candidate is left out where another one for the same nodes costs no more, its own layout transforms included.
    """
    position = [0] * len(order)
    for at, node in enumerate(order):
        position[node] = at
    below = [0] * len(order)
    for at in reversed(range(len(order))):
        for user in graph.successors[order[at]]:
            below[at] |= 1 << position[user] | below[position[user]]

    options: list[list[_Option]] = [[] for _ in order]
    for nodes, alike in _by_nodes(usable).items():
        positions = sorted(position[node] for node in nodes)
        first = positions[0]
        mask = sum(1 << (each - first) for each in positions)
        reaches = 0
        if _is_loose(graph, nodes):
            for each in positions:
                reaches |= below[each] >> first
        kept: list[_Option] = []
        found = [(weight(charge_us(candidate, epsilon_us, margin)), candidate) for candidate in alike]
        for charge, candidate in sorted(found, key=lambda pair: pair[0]):
            ports = rules.ports(candidate)
            if all(each.weight + rules.instead_of(each.ports, ports) > charge for each in kept):
                kept.append(_Option(candidate, mask, charge, reaches & ~mask, ports))
        options[first] += kept
    return options


def _by_nodes(candidates: Sequence[Candidate]) -> dict[tuple[int, ...], list[Candidate]]:
    groups: dict[tuple[int, ...], list[Candidate]] = {}
    for candidate in candidates:
        groups.setdefault(candidate.nodes, []).append(candidate)
    return groups


def _is_loose(graph: Graph, nodes: Collection[int]) -> bool:
    """Whether some entry of the convex set does not reach some exit (see the top of this file)."""
    if len(nodes) == 1:
        return False
    inside = set(nodes)
    entries: dict[int, int] = {}  # from each node of the set: mask of the entries that reach it
    every = 0
    exits: list[int] = []
    for node in nodes:  # ascending, so in topological order
        mask = 0
        for other in graph.predecessors[node]:
            if other in inside:
                mask |= entries[other]
            else:
                mask |= 1 << len(entries)
        entries[node] = mask
        every |= mask
        if any(user not in inside for user in graph.successors[node]):
            exits.append(node)
    return any(entries[node] != every for node in exits)


def _walk(
    options: Sequence[Sequence[_Option]], max_states: int, rules: StorageRules
) -> tuple[_Way | None, int, bool]:
    """The best way to cover all positions (or None), the last position reached, and whether it is exact."""
    end = len(options)
    layers: list[dict[_State, _Way]] = [{} for _ in range(end + 1)]
    layers[0][(0, (), ())] = _Way(0)
    bound = _Bound(options)
    reached = 0
    exact = True
    for at in range(end):
        states, layers[at] = layers[at], {}
        if states:
            reached = at
        ways = _undominated(states, rules)
        if len(ways) > max_states:
            exact = False
            ways = heapq.nsmallest(
                max_states, ways, key=lambda item: item[1].weight - bound.covered(at, item[0][0])
            )
        here = options[at]
        for (covered, loose, held), way in ways:
            for option in here:
                if covered & option.mask:
                    continue
                ahead = covered | option.mask
                step = (~ahead & (ahead + 1)).bit_length() - 1  # trailing ones: on to the next uncovered node
                next_loose = loose
                if loose or option.reaches:
                    joined = _join(loose, option)
                    if joined is None:
                        continue
                    next_loose = _advance(joined, step)
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
    return layers[end].get((0, (), ())), reached, exact


def _undominated(states: Mapping[_State, _Way], rules: StorageRules) -> list[tuple[_State, _Way]]:
    """The states without dominated ones: those that a state with the same nodes covered can become at no more cost.

    Of each group of states with the same nodes covered, only the cheapest is tried as the better one.
    """
    if all(not held for _, _, held in states):
        return list(states.items())
    cheapest: dict[tuple[int, _Loose], tuple[Held, int]] = {}
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


def _join(loose: _Loose, option: _Option) -> _Loose | None:
    """The loose candidates once ``option`` is placed, or None when that closes a circle (step 3 above)."""
    if not option.reaches:
        return loose
    # Each reach is already closed under going through the others, so one round keeps it so.
    reaches = option.reaches
    for nodes, reach in loose:
        if reaches & nodes:
            reaches |= reach
    if reaches & option.mask:
        return None
    joined = [(option.mask, reaches)]
    for nodes, reach in loose:
        # Had the option reached these nodes as well, it would have come to reach itself above.
        joined.append((nodes, reach | reaches if reach & option.mask else reach))
    return tuple(joined)


def _advance(loose: _Loose, step: int) -> _Loose:
    """The loose candidates ``step`` positions further on, without those whose nodes have all been passed."""
    return tuple(sorted((nodes >> step, reach >> step) for nodes, reach in loose if nodes >> step))


class _Bound:
    """A lower bound on the cost of covering some nodes, to compare states that cover different nodes.

    Each node costs at least its equal share of that candidate which is cheapest per node. States are ranked by what
    they have paid beyond the bound of the nodes that they cover.
    """

    def __init__(self, options: Sequence[Sequence[_Option]]) -> None:
        share: list[int | None] = [None] * len(options)
        for first, here in enumerate(options):
            for option in here:
                each = option.weight // option.mask.bit_count()
                for bit in bits(option.mask):
                    known = share[first + bit]
                    share[first + bit] = each if known is None else min(known, each)
        self._share = [each or 0 for each in share]
        self._before = [0]
        for each in self._share:
            self._before.append(self._before[-1] + each)

    def covered(self, at: int, mask: int) -> int:
        """The bound for all nodes before position ``at`` and those of the mask from there on."""
        return self._before[at] + sum(self._share[at + bit] for bit in bits(mask))
