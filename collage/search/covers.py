"""What a search over covers is made of: options at each position, circles among them, and a bound on what is left.

The dynamic programs (``dp``, and ``dp_budget`` under an error budget) visit the nodes in one order. An option is a
candidate as they see it: masks of positions and integers in place of ids and floats.

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
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from collage.graph.convexity import bits
from collage.graph.dataflow import Graph
from collage.search.candidate import Candidate
from collage.search.storages import Held, Ports, StorageRules, weight

MOST_STATES_PLAIN = 512
MOST_STATES = 128
"""The most states at one node where values have several storages. Then there are more states of about equal cost, and
each takes longer to follow. On a NASNet-A of 1,188 nodes with three layouts, 64 states give a placement that costs
0.02 % more than with 128, and 512 states give none that costs less."""

Loose: TypeAlias = "tuple[tuple[int, int], ...]"
"""Loose candidates with nodes ahead: (mask of these nodes, mask of the nodes it reaches), ascending."""

State: TypeAlias = tuple[int, Loose, Held]
"""The mask of covered nodes, the loose candidates, and the storages. Bit i is the position i after the state's own."""


@dataclass(frozen=True, slots=True)
class Choice:
    """A candidate with what the walk needs to know of it, whatever it costs. Bit 0 of a mask is its first node."""

    candidate: Candidate
    mask: int
    reaches: int
    """The mask of nodes that a loose candidate's nodes reach outside of it; 0 for a tight candidate."""
    ports: Ports


@dataclass(frozen=True, slots=True)
class Option:
    """A choice with its weight. Masks are as in ``Choice``."""

    candidate: Candidate
    mask: int
    weight: int
    reaches: int
    ports: Ports


Choices: TypeAlias = "list[list[list[Choice]]]"
"""For each position in the order, the sets of nodes that begin there, and for each of them its candidates."""


def choices_of(graph: Graph, order: Sequence[int], usable: Sequence[Candidate], rules: StorageRules) -> Choices:
    """The candidates by positions and nodes. They are the same at any price, so that several searches share them."""
    position = [0] * len(order)
    for at, node in enumerate(order):
        position[node] = at
    below = [0] * len(order)
    for at in reversed(range(len(order))):
        for user in graph.successors[order[at]]:
            below[at] |= 1 << position[user] | below[position[user]]

    choices: Choices = [[] for _ in order]
    for nodes, alike in _by_nodes(usable).items():
        positions = sorted(position[node] for node in nodes)
        first = positions[0]
        mask = sum(1 << (each - first) for each in positions)
        reaches = 0
        if is_loose(graph, nodes):
            for each in positions:
                reaches |= below[each] >> first
        choices[first].append([Choice(each, mask, reaches & ~mask, rules.ports(each)) for each in alike])
    return choices


def options_of(
    choices: Choices, charge_us: Callable[[Candidate], float], rules: StorageRules, *, errors: bool
) -> list[list[Option]]:
    """For each position in the order, the candidates that begin there, at what they are charged.

    A candidate is left out where another one for the same nodes costs no more, its own layout transforms included, and
    (with ``errors``) adds no more error.
    """
    options: list[list[Option]] = [[] for _ in choices]
    for here, sets in zip(options, choices, strict=True):
        for alike in sets:
            kept: list[Option] = []
            found = [(weight(charge_us(choice.candidate)), choice) for choice in alike]
            for charge, choice in sorted(found, key=lambda pair: pair[0]):
                if all(
                    (errors and each.candidate.error > choice.candidate.error)
                    or each.weight + rules.instead_of(each.ports, choice.ports) > charge
                    for each in kept
                ):
                    kept.append(Option(choice.candidate, choice.mask, charge, choice.reaches, choice.ports))
            here += kept
    return options


def _by_nodes(candidates: Sequence[Candidate]) -> dict[tuple[int, ...], list[Candidate]]:
    groups: dict[tuple[int, ...], list[Candidate]] = {}
    for candidate in candidates:
        groups.setdefault(candidate.nodes, []).append(candidate)
    return groups


def is_loose(graph: Graph, nodes: Collection[int]) -> bool:
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


def joined_by(loose: Loose, option: Option) -> Loose | None:
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


def advanced(loose: Loose, step: int) -> Loose:
    """The loose candidates ``step`` positions further on, without those whose nodes have all been passed."""
    return tuple(sorted((nodes >> step, reach >> step) for nodes, reach in loose if nodes >> step))


class Bound:
    """A lower bound on the cost of covering some nodes, to compare states that cover different nodes.

    Each node costs at least its equal share of that candidate which is cheapest per node. States are ranked by what
    they have paid beyond the bound of the nodes that they cover.
    """

    def __init__(self, options: Sequence[Sequence[Option]]) -> None:
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
