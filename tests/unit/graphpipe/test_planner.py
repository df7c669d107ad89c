"""The planners against the enumeration of all plans, and what is shown of plans."""

from __future__ import annotations

import random
import xml.etree.ElementTree as ET
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collage.graphpipe import planner
from collage.graphpipe.baselines import pipedream, piper
from collage.graphpipe.check import check
from collage.graphpipe.cluster import Cluster, Link
from collage.graphpipe.costs import Costs
from collage.graphpipe.exhaustive import best_plan, chain_layouts, graph_layouts, interval_layouts
from collage.graphpipe.graph import Atom, Block, BlockGraph, Edge, Series, decompose
from collage.graphpipe.planner import Finder, Found, NoPlanError, Options, pareto, rank
from collage.graphpipe.schedule import static_actions
from collage.graphpipe.show import TITLES, stage_rows, stages_svg, timeline_svg
from collage.graphpipe.simulate import simulated
from collage.graphpipe.spaces import closed_sets, set_space, tree_space
from collage.native.pipeline_walk import TimeOver
from scripts.lib.graphpipe.networks import Device, case_study, mmt, problem
from scripts.lib.graphpipe.random_graphs import random_costs

Search = Callable[[Costs, Options], Found]


@pytest.mark.parametrize(
    ("search", "layouts", "chain"),
    [(planner.plan, graph_layouts, False), (pipedream, interval_layouts, True), (piper, chain_layouts, True)],
)
@given(seed=st.integers(0, 10**9), ks=st.sampled_from([(1,), (1, 2)]))
@settings(deadline=None, max_examples=15)
def test_planners_find_the_least_time_per_sample(
    search: Search, layouts: Callable, chain: bool, seed: int, ks: tuple[int, ...]
) -> None:
    costs = random_costs(random.Random(seed), most_blocks=6, most_devices=3)
    expected = best_plan(costs, layouts, chain=chain, ks=ks)
    if expected is None:
        with pytest.raises(NoPlanError, match="GB are missing"):
            search(costs, Options(ks))
        return
    found = search(costs, Options(ks))
    least = expected.tps(costs)
    assert least * (1 - 1e-9) <= found.least_tps.tps(costs) <= least * 1.01
    for plan, seconds in found.plans:
        check(plan, costs.graph, costs.cluster, static_actions(plan))
        assert seconds == simulated(plan, costs).iteration_s >= found.iteration_s


@given(st.integers(0, 10**9))
@settings(deadline=None, max_examples=25)
def test_the_tree_search_gives_valid_plans_that_are_not_better_than_the_best(seed: int) -> None:
    costs = random_costs(random.Random(seed))
    finder = Finder(costs, tree_space(costs, decompose(costs.graph).root), "tree")
    configs = [(b, 1) for b in costs.micro_batches]
    choices = finder.least(configs)
    expected = best_plan(costs)
    if choices is None:
        return
    assert expected is not None
    plan = finder.plan(choices)
    check(plan, costs.graph, costs.cluster, static_actions(plan))
    assert plan.tps(costs) == finder.tps(choices) >= expected.tps(costs) * (1 - 1e-9)


def crossed(devices: int) -> Costs:
    """Layers of two blocks, each of which reads both of the layer before, so that no part is series-parallel."""
    blocks = tuple(Block(f"b{at}", (1e-3, 2e-3), (2e-3, 4e-3), 1e-4, 4e7, 1e4) for at in range(8))
    edges = tuple(Edge(at, to, 1e3) for at in range(6) for to in (at // 2 * 2 + 2, at // 2 * 2 + 3))
    link = Link(1e-5, 1e9)
    return Costs(BlockGraph("crossed", blocks, edges), Cluster(devices, 1e10, link, link, devices), 32)


@pytest.mark.parametrize("devices", [2, 8])
def test_a_plan_is_never_slower_than_the_best_chain(devices: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also for a part that is not series-parallel, without the time for the search of all convex stages."""
    monkeypatch.setattr(planner, "_FINE_S", 0.0)
    costs = crossed(devices)
    found, chain = planner.plan(costs), pipedream(costs)
    assert not found.late
    assert found.iteration_s <= chain.iteration_s
    assert planner.plan(costs, Options(chain_s=0.0)).iteration_s > 1.2 * chain.iteration_s


@given(seed=st.integers(0, 10**9))
@settings(deadline=None, max_examples=25)
def test_a_bound_by_the_best_chain_loses_no_plan(seed: int) -> None:
    costs = random_costs(random.Random(seed), most_blocks=6, most_devices=3)
    try:
        alone = planner.plan(costs, Options(chain_s=0.0))
    except NoPlanError:
        return
    assert planner.plan(costs).iteration_s <= alone.iteration_s * (1 + 1e-9)


@given(st.integers(0, 10**9))
@settings(deadline=None, max_examples=25)
def test_both_searches_agree_on_chains(seed: int) -> None:
    """A series of all blocks, and the sets of its first blocks, are the same space."""
    costs = random_costs(random.Random(seed), most_devices=6)
    count = len(costs.graph.blocks)
    series = tree_space(costs, Series(tuple(Atom((at,)) for at in range(count))), chain=True)
    first = set_space(costs, [(1 << at) - 1 for at in range(count + 1)], chain=True)
    configs = [(b, k) for b in costs.micro_batches for k in (1, 2) if b * k <= costs.mini_batch]
    results = [Finder(costs, each, "chain") for each in (series, first)]
    one, other = (None if (choices := each.least(configs)) is None else each.tps(choices) for each in results)
    assert one == (None if other is None else pytest.approx(other, rel=2e-3))


def branches(count: int, length: int, join: bool = True) -> BlockGraph:
    """Equal branches, and perhaps a block that reads from all of them."""
    times = (1.0, 2.0, 4.0, 8.0)
    blocks = [Block(f"{n}.{at}", times, times, 0.0, 1.0, 1.0) for n in range(count) for at in range(length)]
    edges = [Edge(n * length + at, n * length + at + 1, 0.0) for n in range(count) for at in range(length - 1)]
    if join:
        edges += [Edge(n * length + length - 1, len(blocks), 0.0) for n in range(count)]
        blocks.append(Block("join", (0.0,) * 4, (0.0,) * 4))
    return BlockGraph("branches", tuple(blocks), tuple(edges))


def test_branches_run_side_by_side_and_a_chain_is_deeper() -> None:
    link = Link(0.0, 1e9)
    costs = Costs(branches(4, 2), Cluster(8, 1e9, link, link, 8), 8)
    graph = planner.plan(costs, Options(micro_batches=(1,)))
    chain = pipedream(costs, Options(micro_batches=(1,)))
    assert graph.best.tps(costs) == chain.best.tps(costs) == 2
    assert (graph.best.depth, chain.best.depth) == (3, 8)  # the join is in the last stage of one branch
    assert graph.iteration_s == 8 * 2 + 2 * 2
    assert chain.iteration_s == 8 * 2 + 7 * 2


def test_equal_branches_share_their_states() -> None:
    link = Link(0.0, 1e9)
    states = []
    for graph in (branches(4, 3, join=False), branches(8, 3, join=False)):
        costs = Costs(graph, Cluster(4, 1e9, link, link, 8), 8)
        finder = Finder(costs, tree_space(costs, decompose(graph).root), "tree")
        assert finder.find([(1, 1)], 1e9) is not None
        states.append(finder.states)
    assert states[1] - states[0] == 4  # a place for each further branch


def test_too_little_memory_says_how_much_is_missing() -> None:
    link = Link(0.0, 1e9)
    costs = Costs(branches(1, 2), Cluster(1, 5e9, link, link, 1), 8)
    blocks = tuple(replace(each, weight_bytes=1e9) for each in costs.graph.blocks)
    tight = replace(costs, graph=replace(costs.graph, blocks=blocks))
    with pytest.raises(NoPlanError, match=r"a device needs 9\.\d+ GB at least, and has 5 GB: 4\.\d+ GB are missing"):
        planner.plan(tight)
    with pytest.raises(NoPlanError, match="no plan is possible at a mini-batch of 8"):
        planner.plan(costs, Options(micro_batches=(64,)))


def test_a_search_ends_in_time_with_what_it_has() -> None:
    costs = Costs(mmt(Device(), 128, branches=2), Device().cluster(8), 128)
    found = piper(costs, Options(seconds=0.7))
    assert found.late
    assert found.search_s < 3
    with pytest.raises(NoPlanError, match="no plan in 0 seconds"):
        planner.plan(costs, Options(seconds=0.0))
    with pytest.raises(TimeOver):
        Finder(costs, tree_space(costs, decompose(costs.graph).root), "tree", 0.0).find([(1, 1)], 1.0)


def test_piper_is_not_begun_on_wide_graphs() -> None:
    with pytest.raises(NoPlanError, match="more than 10,000 sets"):
        piper(problem("candle", 4))
    assert closed_sets(branches(2, 2, join=False), 9) is not None
    assert closed_sets(branches(2, 2, join=False), 8) is None


def test_the_rank_is_by_simulation_and_the_pareto_set_has_the_best_of_each() -> None:
    costs = case_study(32)
    found = planner.plan(costs, Options(micro_batches=(1, 2)))
    seconds = [each for _, each in found.plans]
    assert seconds == sorted(seconds)
    best = pareto(found.plans, costs)
    for value in (lambda plan: plan.tps(costs), lambda plan: plan.memory(costs), lambda plan: plan.depth):
        assert min(value(plan) for plan, _ in best) == min(value(plan) for plan, _ in found.plans)
    assert rank([plan for plan, _ in found.plans], costs) == found.plans


def test_a_transformer_layer_is_10_percent_faster_at_4_samples_than_at_2() -> None:
    block = mmt(Device(), 4).blocks[0]
    assert block.forward_s[1] * 2 / block.forward_s[2] == pytest.approx(1.1, abs=0.03)


def test_a_plan_is_shown_as_a_table_and_pictures() -> None:
    costs = case_study(16)
    plan = planner.plan(costs, Options(micro_batches=(2,))).best
    rows = [*stage_rows(plan, costs)]
    assert {len(row) for row in rows} == {len(TITLES)}
    assert len(rows) == len(plan.stages)
    boxes = ET.fromstring(stages_svg(plan, costs))
    space = "{http://www.w3.org/2000/svg}"
    assert len(boxes.findall(f"{space}rect")) == len(plan.stages) + 1
    assert len(boxes.findall(f"{space}path")) == len(plan.edges)
    lines = ET.fromstring(timeline_svg(plan, costs, simulated(plan, costs)))
    passes = sum(2 * plan.mini_batch // stage.b for stage in plan.stages)
    legend = 4
    assert len(lines.findall(f"{space}rect")) == 1 + legend + passes + len(plan.stages)
    assert len(lines.findall(f"{space}polygon")) == len(plan.stages)
