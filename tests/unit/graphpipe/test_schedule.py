"""In-flight samples, schedules, the simulation, and the independent check."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collage.errors import CollageError, UsageError
from collage.graphpipe.check import PlanError, check
from collage.graphpipe.cluster import Cluster, Link
from collage.graphpipe.costs import Costs, degrees
from collage.graphpipe.graph import Block, BlockGraph, Edge
from collage.graphpipe.inflight import Config, compute_in_flight, in_flight, schedule_stage
from collage.graphpipe.plan import Choice, Plan, assemble, scheduled, stage_edges, topological
from collage.graphpipe.schedule import Action, Pass, kfkb, peak, static_actions
from collage.graphpipe.simulate import greedy_actions, simulated
from scripts.lib.graphpipe.random_graphs import random_costs


def chain(mini_batch: int, *stages: tuple[int, int], nbytes: float = 0.0, memory: float = 1e9) -> tuple[Plan, Costs]:
    """A chain of blocks, each a stage of (b, k) with one second a sample forward and two backward."""
    sizes = [float(1 << at) for at in range(mini_batch.bit_length())]
    blocks = tuple(
        Block(str(at), tuple(sizes), tuple(2 * each for each in sizes), 0.5, 1.0, 1.0) for at in range(len(stages))
    )
    edges = tuple(Edge(at, at + 1, nbytes) for at in range(len(stages) - 1))
    link = Link(0.0, 1.0)
    costs = Costs(BlockGraph("chain", blocks, edges), Cluster(len(stages), memory, link, link, 8), mini_batch)
    choices = [Choice(frozenset({at}), b, 1, k) for at, (b, k) in enumerate(stages)]
    return assemble(costs, choices, "test"), costs


def test_figure_3_5() -> None:
    """With 2F2B in the middle the first stage has 3 micro-batches in flight instead of 4."""
    one, _ = chain(8, (2, 1), (1, 1), (2, 1))
    two, _ = chain(8, (2, 1), (1, 2), (2, 1))
    assert one.stages[0].in_flight // 2 == 4
    assert two.stages[0].in_flight // 2 == 3
    chosen = scheduled(one, ks=(1, 2, 4))
    assert [stage.k for stage in chosen.stages] == [1, 2, 1]


@pytest.mark.parametrize(
    ("b", "k", "after", "expected"),
    [
        (1, 2, Config(1, 4, 4), 4 + 2),
        (2, 1, Config(1, 4, 4), 4 + 2),
        (1, 8, Config(2, 2, 4), 4 + 8 - 4 + 4),
        (1, 4, Config(2, 1, 4), 4 + 4),
        (2, 4, Config(1, 4, 4), 4 + 8 - 4 + 4),
        (2, 2, Config(1, 2, 4), 4 + 4),
        (2, 1, Config(2, 1, 4), 4 + 2),
        (1, 4, Config(2, 2, 4), 4 + 4),
        (1, 1, Config(2, 1, 4), 4 + 2),
        (4, 1, Config(1, 1, 4), 12),
    ],
)
def test_each_row_of_table_3_2(b: int, k: int, after: Config, expected: int) -> None:
    assert compute_in_flight(b, k, after) == expected


def test_in_flight_is_a_multiple_of_the_micro_batch_and_at_most_a_mini_batch() -> None:
    assert compute_in_flight(4, 1, Config(1, 1, 1)) == 8  # the table says 7
    assert in_flight(4, 1, [Config(4, 1, 16)], 16) == 16
    assert in_flight(2, 4, [], 64) == 8
    assert schedule_stage(2, [Config(2, 1, 2), Config(2, 1, 6)], 64) == Config(2, 1, 8)


def test_kfkb() -> None:
    plan, _ = chain(6, (1, 2), (1, 2))
    assert " ".join(map(str, kfkb(plan.stages[1], 6))) == "F0 F1 B0 B1 F2 F3 B2 B3 F4 F5 B4 B5"
    assert " ".join(map(str, kfkb(plan.stages[0], 6))) == "F0 F1 F2 F3 B0 B1 F4 F5 B2 B3 B4 B5"
    assert peak(kfkb(plan.stages[0], 6)) == 4


def test_a_chain_takes_the_micro_batches_and_the_ways_to_fill_and_drain_it() -> None:
    plan, costs = chain(8, (1, 1), (1, 1), (1, 1), (1, 1))
    found = simulated(plan, costs)
    assert found.iteration_s == pytest.approx((8 + 4 - 1) * 3 + 0.5)
    assert found.in_flight == (4, 3, 2, 1)
    assert found.ends_s[3] == pytest.approx(3 + 8 * 3 + 0.5)


def test_messages_take_time_and_leave_one_after_another() -> None:
    plan, costs = chain(1, (1, 1), (1, 1), nbytes=5.0)
    assert simulated(plan, costs).iteration_s == pytest.approx(1 + 5 + 3 + 5 + 2 + 0.5)
    slow, costs = chain(2, (1, 1), (1, 1), nbytes=5.0)
    assert simulated(slow, costs).spans[1][0].start_s == pytest.approx(6)
    assert simulated(slow, costs).spans[1][-2].start_s == pytest.approx(11)  # its input left at 6, not at 2


def plan_of(costs: Costs, rng: random.Random) -> Plan | None:
    """A random plan of a problem, of any memory."""
    count = len(costs.graph.blocks)
    parts: list[set[int]] = []
    for at in range(count):
        if parts and (len(parts) == costs.cluster.devices or rng.random() < 0.5):
            rng.choice(parts).add(at)
        else:
            parts.append({at})
    if topological(len(parts), stage_edges(costs, parts)) is None:
        return None
    left = costs.cluster.devices - len(parts)
    choices = []
    for part in parts:
        b = rng.choice(costs.micro_batches)
        degree = rng.choice([each for each in degrees(costs.cluster.devices) if each <= b and each - 1 <= left])
        left -= degree - 1
        choices.append(Choice(frozenset(part), b, degree, rng.choice([k for k in (1, 2, 4) if k * b <= 16])))
    return assemble(costs, choices, "random")


@given(st.integers(0, 10**9))
@settings(deadline=None)
def test_schedules_end_and_have_no_more_in_flight_than_the_plan_says(seed: int) -> None:
    rng = random.Random(seed)
    costs = random_costs(rng, most_devices=6, mini_batch=16)
    plan = plan_of(costs, rng)
    if plan is None:
        return
    roomy = replace(costs.cluster, memory_bytes=1e9)
    check(plan, costs.graph, roomy, static_actions(plan))
    found = simulated(plan, costs)
    assert all(count <= stage.in_flight for count, stage in zip(found.in_flight, plan.stages, strict=True))
    busy = max(sum(each.end_s - each.start_s for each in spans) for spans in found.spans)
    assert found.iteration_s >= busy
    assert Plan.from_json(plan.to_json()) == plan


@given(st.integers(0, 10**9))
@settings(deadline=None, max_examples=25)
def test_the_greedy_schedule_is_not_slower_in_its_last_stages_and_is_valid(seed: int) -> None:
    rng = random.Random(seed)
    costs = random_costs(rng, most_blocks=5, most_devices=3)
    plan = plan_of(costs, rng)
    if plan is None:
        return
    actions = greedy_actions(plan, costs)
    stages = tuple(
        replace(stage, in_flight=peak(mine) * stage.b) for stage, mine in zip(plan.stages, actions, strict=True)
    )
    check(replace(plan, stages=stages), costs.graph, replace(costs.cluster, memory_bytes=1e9), actions)
    gpipe = [tuple(sorted(mine, key=lambda each: (each.kind is Pass.BACKWARD, each.index))) for mine in actions]
    if len(plan.stages) == 1:
        assert simulated(plan, costs, actions).iteration_s == pytest.approx(simulated(plan, costs, gpipe).iteration_s)
    assert peak(actions[-1]) == 1  # a last stage loses nothing by the earliest backward pass


def broken(plan: Plan, **changes: object) -> Plan:
    first, *others = plan.stages
    return replace(plan, stages=(replace(first, **changes), *others))


def test_the_check_finds_each_broken_condition() -> None:
    plan, costs = chain(4, (1, 1), (1, 1), (1, 1))
    graph, cluster, good = costs.graph, costs.cluster, static_actions(plan)
    check(plan, graph, cluster, good)
    skip = replace(plan, stages=(replace(plan.stages[0], blocks=(0, 2)), replace(plan.stages[1]),
                                 replace(plan.stages[2], blocks=())))  # fmt: skip
    late = (tuple(reversed(good[0])), *good[1:])
    few = (good[0][:2] + good[0][4:] + good[0][2:4], *good[1:])
    no_warm_up = (good[2], *good[1:])
    cases = [
        (broken(plan, blocks=()), good, "C1: no stage has block 0"),
        (broken(plan, blocks=(0, 1)), good, "C1: block 1"),
        (skip, good, "C1: stage 0 is not convex"),
        (replace(plan, edges=((0, 1),)), good, "C2"),
        (broken(plan, devices=(1,)), good, "C3: a device is in two stages"),
        (broken(plan, devices=(7,)), good, "C3: a device is in two stages, or not"),
        (broken(plan, devices=()), good, "C3: stage 0 has no device"),
        (broken(plan, b=3), good, "divide no mini-batch"),
        (plan, late, "C4"),
        (plan, few, "C4"),
        (plan, no_warm_up, "C5"),
        (broken(plan, in_flight=2), good, "3 samples in flight"),
    ]
    for wrong, actions, message in cases:
        with pytest.raises(PlanError, match=message):
            check(wrong, graph, cluster, actions)
    with pytest.raises(PlanError, match="memory: stage 0 needs"):
        check(plan, graph, replace(cluster, memory_bytes=5.9), good)
    with pytest.raises(CollageError, match=r"waits for ever before (F|B)\d"):
        simulated(plan, costs, no_warm_up)


def test_a_circle_of_stages_is_refused() -> None:
    _, costs = chain(4, (1, 1), (1, 1), (1, 1))
    with pytest.raises(UsageError, match="circle"):
        assemble(costs, [Choice(frozenset({0, 2}), 1, 1), Choice(frozenset({1}), 1, 1)], "test")


def test_malformed_plans_are_refused() -> None:
    plan, _ = chain(4, (1, 1), (1, 1))
    with pytest.raises(UsageError, match="no plan"):
        Plan.from_json({})
    with pytest.raises(UsageError, match="malformed"):
        Plan.from_json({**plan.to_json(), "stages": [{}]})


def test_actions_are_texts() -> None:
    assert str(Action(Pass.BACKWARD, 3)) == "B3"
