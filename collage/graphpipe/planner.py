"""Algorithm 2: binary search on the time per sample around a memoised dynamic program; plans ranked by the simulator.

For a bound on the time per sample the dynamic program finds a plan with the fewest in-flight samples at its source. The
bound does not see that a deep pipeline fills slowly, so the planner collects a Pareto set of (time per sample, memory,
depth): least times for each micro-batch alone and for all together, and plans that are a little slower but less deep.
The best chain is one of the plans, and the search leaves out micro-batches that are far slower per sample than it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from collage.errors import CollageError
from collage.graphpipe.costs import Costs, degrees
from collage.graphpipe.graph import decompose
from collage.graphpipe.plan import Choice, Plan, assemble
from collage.graphpipe.simulate import simulated, stage_times
from collage.graphpipe.spaces import SetSpace, Space, chain_space, closed_sets, set_space, tree_space
from collage.native.pipeline_walk import PipeCosts, TimeOver
from collage.native.pipeline_walk import plan as plan_compiled

_EPSILON = 1e-3  # of the time per sample, at which the binary search ends
_SLOWEST, _STEP = 2.5, 1.02  # times per sample over the least one, up to which less deep plans are looked for
_LEAST_SIMULATED, _PASSES_SIMULATED = 8, 12_000  # plans, and forward and backward passes of all of them
_MOST_MICRO_BATCHES = 256  # in a mini-batch, unless no plan fits the memory
_WINDOWS = (1, 2, 3)  # neighbouring micro-batches that plans may have, besides all of them
_FINE_SETS, _FINE_DEVICES, _FINE_S = 256, 4, 3.0
_MOST_SIMULATED = 1 << 16  # micro-batches of a plan
_ANY = float("inf")
_CHAIN_SHARE = 1 / 6  # of the seconds of a search, at most
_HOPELESS = 1.5  # times the seconds per sample of the best chain; messages that overlap may explain as much


@dataclass(frozen=True)
class Options:
    """How to search: ``ks`` of kFkB, the micro-batches (default: all that are possible), and the seconds at most.

    ``chain_s`` are the seconds for the best chain, which GraphPipe's planner begins with. Seconds of a search are
    processor time."""

    ks: tuple[int, ...] = (1,)
    micro_batches: tuple[int, ...] | None = None
    seconds: float = float("inf")
    chain_s: float = 5.0


DEFAULTS = Options()


@dataclass(frozen=True)
class Found:
    """Plans of a search, the fastest iteration first, with its seconds; and the plan of the least time per sample.

    ``late``: whether the time was over before the search had ended.
    """

    plans: tuple[tuple[Plan, float], ...]
    least_tps: Plan
    search_s: float
    states: int
    late: bool = False

    @property
    def best(self) -> Plan:
        """The plan with the fastest iteration."""
        return self.plans[0][0]

    @property
    def iteration_s(self) -> float:
        """The simulated seconds of the best plan's iteration."""
        return self.plans[0][1]


class NoPlanError(CollageError):
    """No plan fits in the memory, or none was found in time."""


Configs = Sequence[tuple[int, int]]


class Finder:
    """Asks the compiled search for plans of one space; counts the states of its memo tables."""

    def __init__(self, costs: Costs, space: Space, name: str, deadline: float = float("inf")) -> None:
        self.costs, self.space, self.name = costs, space, name
        self.deadline = deadline
        self.states = 0

    def plan(self, choices: Sequence[Choice]) -> Plan:
        """The plan of stages that ``find`` has found; stages that gain by it, the slowest first, get idle devices."""
        found = [*choices]
        idle = self.costs.cluster.devices - sum(each.degree for each in found)
        while wider := [
            (seconds, at, more)
            for at, each in enumerate(found)
            if each.degree <= idle
            and self.tps([more := replace(each, degree=2 * each.degree)]) < (seconds := self.tps([each]))
        ]:
            _, at, more = max(wider, key=lambda each: each[:2])
            idle -= found[at].degree
            found[at] = more
        return assemble(self.costs, found, self.name, chain=self.space.chain)

    def tps(self, choices: Sequence[Choice]) -> float:
        """The most seconds per sample of a stage."""
        return max(self.costs.tps(each.blocks, each.b, each.degree) for each in choices)

    def find(self, configs: Configs, t_max: float) -> Sequence[Choice] | None:
        """Stages of a plan of at most ``t_max`` seconds a sample, from pairs of micro-batch and k. Raises TimeOver."""
        costs, cluster = self.costs, self.costs.cluster
        links = [cluster.among(each) for each in degrees(cluster.devices)]
        numbers = PipeCosts(
            np.array([b for b, _ in configs], np.int32),
            np.array([k for _, k in configs], np.int32),
            np.array([each.latency_s for each in links]),
            np.array([each.bandwidth for each in links]),
            cluster.memory_bytes,
            costs.link.latency_s,
            costs.link.bandwidth,
            costs.mini_batch,
            cluster.devices,
            costs.tables,
        )
        left = self.deadline - time.process_time()
        if left <= 0:
            raise TimeOver("the search has taken longer than it may.")
        stages, states = plan_compiled(numbers, self.space.problem, t_max * (1 + 1e-12), left)
        self.states += states
        if not stages:
            return None
        order = reversed(stages) if self.space.chain else stages
        return [Choice(self.space.blocks(each), *self._schedule(configs, each)) for each in order]

    def _schedule(self, configs: Configs, stage: np.void) -> tuple[int, int, int]:
        b, k = configs[stage["config"]]
        return b, 1 << int(stage["degree"]), k

    def least(self, configs: Configs, most: float = _ANY) -> Sequence[Choice] | None:
        """The stages of the plan of the least time per sample, if it is at most ``most``. Raises TimeOver."""
        lowest = low = high = self._lowest()
        best = self.find(configs, most) if most < _ANY else None
        if best is None and most < _ANY:
            return None
        while best is None and low < float("inf"):
            high = high * 1.25 if high < 1e3 * lowest else float("inf")
            best = self.find(configs, high)
            if best is None:
                low = high
        if best is None:
            return None
        high = self.tps(best)
        while high - low > _EPSILON * high:
            middle = (low + high) / 2
            found = self.find(configs, middle)
            if found is None:
                low = middle
            else:
                best, high = found, self.tps(found)
        return best

    def _lowest(self) -> float:
        """A time per sample that no plan is below: all work, each at its best micro-batch, on all devices."""
        work = self.costs.rows[:, : self.costs.tables] / (1 << np.arange(self.costs.tables))
        return max(float(work.min(axis=1).sum()) / self.costs.cluster.devices, 1e-15)


def plan(costs: Costs, options: Options = DEFAULTS) -> Found:
    """GraphPipe's plan: Algorithm 2 on the series-parallel tree, and on all convex stages if the graph is small.

    It is at least as fast as the best chain that is found in ``chain_s``. Raises NoPlanError.
    """
    started = time.process_time()
    seconds = min(options.chain_s, options.seconds * _CHAIN_SHARE)
    chain = _plans(costs, [Finder(costs, chain_space(costs), "graphpipe", started + seconds)], options)[0]
    root = decompose(costs.graph).root
    tree = tree_space(costs, root)
    spaces: list[Space] = [tree]
    mixed = tree_space(costs, root, mixed=True)
    if mixed.sets != tree.sets:
        spaces.append(mixed)
    if costs.cluster.devices <= _FINE_DEVICES and (sets := closed_sets(costs.graph, _FINE_SETS)):
        spaces.append(set_space(costs, sets, chain=False))
    return search(costs, spaces, "graphpipe", options, started, chain)


def search(
    costs: Costs, spaces: Sequence[Space], name: str, options: Options, started: float, chain: Sequence[Plan] = ()
) -> Found:
    """The ranked plans of all spaces, and the best of those of a ``chain``. Raises NoPlanError."""
    best = rank(chain, costs)[:1]
    most = _ANY
    if best:
        most = max(_HOPELESS * best[0][1] / costs.mini_batch, min(each.tps(costs) for each in chain))
    finders = [Finder(costs, each, name, started + options.seconds) for each in spaces]
    found, late = _plans(costs, finders, options, most)
    if not found and not best:
        raise _no_plan(costs, spaces, name, options, late)
    ranked = sorted(dict.fromkeys((*rank(found, costs), *best)), key=lambda pair: pair[1])
    least = min((*found, *chain), key=lambda each: each.tps(costs))
    return Found(tuple(ranked), least, time.process_time() - started, sum(each.states for each in finders), late)


def _plans(costs: Costs, finders: Sequence[Finder], options: Options, most: float = _ANY) -> tuple[list[Plan], bool]:
    """Plans of at most ``most`` seconds a sample, and whether the time was over before the end. Raises NoPlanError."""
    found: list[Plan] = []
    all_of_them = options.micro_batches or costs.micro_batches
    if costs.mini_batch > _MOST_SIMULATED * max(all_of_them):
        raise NoPlanError(
            f"a mini-batch of {costs.mini_batch} samples can only be cut into micro-batches of {max(all_of_them)}: "
            "take one that a larger power of 2 divides."
        )
    large = tuple(b for b in all_of_them if costs.mini_batch // b <= _MOST_MICRO_BATCHES)
    late = False
    for micro_batches in dict.fromkeys((large, all_of_them)):
        for number, finder in enumerate(finders if not found else ()):
            further = number > 0 and isinstance(finder.space, SetSpace)
            if further:
                finder.deadline = min(finder.deadline, time.process_time() + _FINE_S)
            try:
                for plan in _candidates(finder, micro_batches, options.ks, most, number > 0):
                    found.append(plan)
            except TimeOver:
                late = late or not further
    return found, late


def _candidates(
    finder: Finder, micro_batches: tuple[int, ...], ks: Sequence[int], most: float, further: bool
) -> Iterator[Plan]:
    """Plans of a space; of a ``further`` one, fewer."""
    windows = [micro_batches[at : at + size] for size in _WINDOWS for at in range(len(micro_batches) + 1 - size)]
    if len(micro_batches) > max(_WINDOWS):
        windows.append(micro_batches)
    known = set()
    for chosen in windows:
        whole = isinstance(finder.space, SetSpace) and chosen == micro_batches
        if further and len(chosen) > 1 and not whole:
            continue  # further spaces are worth less time
        configs = [(b, k) for b in chosen for k in ks if b * k <= finder.costs.mini_batch]
        best = finder.least(configs, most)
        if best is None:
            continue
        for plan in _front(finder, configs, best, most):
            if (key := frozenset(plan.stages)) not in known:
                known.add(key)
                yield plan


def _front(finder: Finder, configs: Configs, best: Sequence[Choice], most: float) -> Iterator[Plan]:
    """The plan of the least time per sample, and for each smaller depth one that is as fast as can be, roughly."""
    start = finder.tps(best)
    first = finder.plan(best)
    yield first
    slowest = min(start * _SLOWEST, most)
    last = finder.find(configs, slowest)
    if last is None:
        return
    slow = finder.plan(last)
    yield slow
    todo = [(start, first, slowest, slow)]
    while todo:
        low, fast, high, slow = todo.pop()
        high = min(high, slow.tps(finder.costs))
        if fast.depth <= slow.depth or high < low * _STEP:
            continue
        middle = (low * high) ** 0.5
        found = finder.find(configs, middle)
        if found is not None:
            plan = finder.plan(found)
            yield plan
            todo += [(low, fast, middle, plan), (middle, plan, high, slow)]


def estimate_s(plan: Plan, costs: Costs) -> float:
    """The seconds of an iteration, roughly: the way of the first samples through the pipeline and back, then all others
    through the slowest stage.

    As many samples go together as the largest micro-batch from a stage on has.
    """
    sync = [each.sync_s for each in stage_times(plan, costs)]
    tps = [
        costs.tps(stage.blocks, stage.b, len(stage.devices)) - once / plan.mini_batch
        for stage, once in zip(plan.stages, sync, strict=True)
    ]
    widest = [stage.b for stage in plan.stages]
    longest = [0.0] * len(tps)
    for at in reversed(range(len(tps))):
        widest[at] = max([widest[at], *(widest[after] for after in plan.successors[at])])
        longest[at] = tps[at] * widest[at] + max((longest[after] for after in plan.successors[at]), default=0.0)
    others = (plan.mini_batch - wide for wide in widest)
    return max(longest) + max(rest * each + once for rest, each, once in zip(others, tps, sync, strict=True))


def rank(plans: Iterable[Plan], costs: Costs) -> tuple[tuple[Plan, float], ...]:
    """The most promising plans with simulated seconds of an iteration, the fastest first."""
    distinct = sorted(dict.fromkeys(plans), key=lambda plan: estimate_s(plan, costs))
    passes = np.cumsum([sum(2 * plan.mini_batch // stage.b for stage in plan.stages) for plan in distinct])
    enough = max(_LEAST_SIMULATED, int((passes < _PASSES_SIMULATED).sum()))
    simulations = [(each, simulated(each, costs).iteration_s) for each in distinct[:enough]]
    return tuple(sorted(simulations, key=lambda pair: pair[1]))


def pareto(plans: Iterable[tuple[Plan, float]], costs: Costs) -> list[tuple[Plan, float]]:
    """The plans that no other one is better than in time per sample, memory and depth together, in the given order."""
    values = {pair: (pair[0].tps(costs), pair[0].memory(costs), pair[0].depth) for pair in plans}
    points = np.array([*values.values()])
    return [
        pair for pair, mine in values.items() if not ((points <= mine).all(axis=1) & (points < mine).any(axis=1)).any()
    ]


def _no_plan(costs: Costs, spaces: Sequence[Space], name: str, options: Options, late: bool) -> NoPlanError:
    if late:
        return NoPlanError(f"{name} has found no plan in {options.seconds:.0f} seconds.")
    memory = costs.cluster.memory_bytes
    low, high = memory, 2 * memory
    micro_batches = options.micro_batches or costs.micro_batches
    fits: Callable[[float], bool] = lambda size: any(  # noqa: E731
        Finder(replace(costs, cluster=replace(costs.cluster, memory_bytes=size)), space, name).find(
            [(b, k) for b in micro_batches for k in options.ks if b * k <= costs.mini_batch], 1e30
        )
        for space in spaces
    )
    while not fits(high):
        if high > 1e6 * memory:
            return NoPlanError(
                f"no plan is possible at a mini-batch of {costs.mini_batch} on {costs.cluster.devices} devices: there "
                "are no times for micro-batches that divide it."
            )
        low, high = high, 2 * high
    while high - low > 0.01 * low:
        middle = (low + high) / 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    return NoPlanError(
        f"no plan fits: a device needs {high / 1e9:.3g} GB at least, and has {memory / 1e9:.3g} GB: "
        f"{(high - memory) / 1e9:.3g} GB are missing."
    )
