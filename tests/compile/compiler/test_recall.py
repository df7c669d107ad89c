"""Recall with made-up costs: the key of a finished compile, its plans in plain values, and how busy it was."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pytest

from collage.compiler.finished import NamedCandidate, NamedPlan, busy_during
from collage.compiler.finished_key import finished_key
from collage.compiler.finished_plan import Assembled, Naming, Reading, read_variants
from collage.compiler.metrics import Metric
from collage.compiler.passes.recall import Recall
from collage.compiler.plan import Plan, StreamPlan
from collage.compiler.single_threaded import Launch
from collage.compiler.state import Compilation, Context
from collage.core.typed import typed
from collage.graph.storage import BLOCKED, FORMATS, PLAIN
from collage.kernel.options import ALL_PLAIN, Variant
from collage.measure_db.results import Measurement, Rejection, RejectionKind, Slower, Timing
from collage.schedule.dag import Dag
from collage.schedule.schedule import TEAM, Schedule
from collage.search.candidate import Candidate
from collage.search.placement import finish
from collage.search.transforms import needed_transforms
from tests.helpers.compiler.null import Made, NullBackend, each_node, fork, imported


def made(**options: Any) -> Made:
    library = NullBackend("lib", team=True)
    found = Made({**each_node("lib", 10.0)}, library, **options)
    found.measurer.as_loaded_digest = "of the model as it was loaded"
    return found


def key(each: Made, **changes: Any) -> str | None:
    return finished_key(each.context, replace(each.measured(), **changes))


def test_the_key_covers_all_that_decides() -> None:
    usual = key(made())
    assert usual is not None and usual == key(made())
    source = made().start.source
    other_weights = made()
    other_weights.measurer.as_loaded_digest = "of another"
    ones = {"x": np.ones((4, 64), np.float32)}
    differ = [
        key(made(seed=1)),
        key(made(graph_level_s=1.0)),
        key(made(streams=False)),
        key(made(exact=True)),
        key(made(strict=True)),
        key(made(tune_trials=8)),
        key(made(tolerance=0.1)),
        key(made(tolerance=0.2)),
        key(made(tolerance=0.1, metric=Metric("cosine"))),
        key(made(tolerance=0.1), source=replace(source, samples=(ones,))),
        key(made(), source=replace(source, example_inputs=ones)),
        key(made(), offers=made().measured().offers[1:]),
        key(other_weights),
    ]
    assert len({usual, *differ}) == 1 + len(differ) and None not in differ
    assert key(made(budget_s=5.0)) == usual
    each = made()
    for changes in ({"versions": {"lib": "2"}}, {"target": replace(each.context.target, threads=3)}):
        context = replace(each.context, **changes)
        assert finished_key(context, each.measured()) not in (usual, None)


def test_where_a_compile_cannot_be_named_nothing_is_remembered() -> None:
    large = made()
    large.measurer.as_loaded_digest = None
    assert key(large) is None
    own = Metric("own", lambda expected, actual: 0.0)
    assert key(made(tolerance=0.1, metric=own)) is None

    def search(context: Context, compilation: Compilation) -> Compilation:
        return replace(compilation, epsilon_us=7.0)

    assert Recall((search,))(large.context, large.measured()).epsilon_us == 7.0  # it has no database


def timing(us: float, busy: float | None) -> Timing:
    return Timing(us, 0.0, us, us, 9, busy)


def test_a_compile_is_as_busy_as_all_but_a_few_of_its_measurements() -> None:
    def outcomes(*busy: float | None) -> list[Any]:
        return [Measurement(1.0, 0.0, 1.0, 9, 0.0, busy=each) for each in busy]

    rejected = Rejection(RejectionKind.CRASHED, "SIGSEGV")
    assert busy_during([], {}) is None
    assert busy_during([*outcomes(None), rejected], {"mix": timing(1.0, None)}) is None
    assert busy_during(outcomes(0.0, 0.3, 0.1), {}) == 0.3
    assert busy_during(outcomes(*[0.0] * 76, *[0.5] * 24), {}) == 0.0
    assert busy_during(outcomes(*[0.0] * 70, *[0.5] * 30), {}) == 0.5
    assert busy_during([Slower(1.0, 0.5, 3, 0.2), Slower(1.0, 0.5, 0, 0.9)], {}) == 0.2
    assert busy_during(outcomes(*[0.0] * 99), {"mix": timing(1.0, 0.0), "engine": timing(1.0, 0.4)}) == 0.4


def candidate(node: int, us: float, variant: Variant = ALL_PLAIN, **more: Any) -> Candidate:
    return Candidate((node,), "lib", us, 0.1, 0, variant, **more)


def blocked_plan() -> Plan:
    """Of the fork: relu writes a blocked value, so that a transform stands before the addition."""
    graph = imported(fork).graph
    value = graph.nodes[0].outputs[0]
    relu = candidate(0, 1.5, Variant((PLAIN,), (BLOCKED,)), writes=((value, BLOCKED),), finite_only=True)
    parts = [relu, candidate(1, 2.5), candidate(2, 3.5, error=1e-6)]
    costs = dict.fromkeys(needed_transforms(graph, parts), 0.25)
    return Plan("collage", finish(graph, parts, 0.5, transforms_us=costs), exclusive=False)


def streamed(plan: Plan) -> tuple[Plan, Dag, Sequence[Launch]]:
    """The same with relu and tanh on a stream each, its launches, and their graph."""
    launches: list[Launch] = [plan.placement.candidates[0], plan.placement.candidates[1]]
    launches += [*plan.placement.transforms, plan.placement.candidates[2]]
    dag = Dag.of_edges(4, [(0, 2), (1, 3), (2, 3)])
    alone = tuple(
        None if at == 3 else replace(each, cost_us=each.cost_us + 1) for at, each in enumerate(launches)
    )
    schedule = Schedule((1, 0, 2, 3), (0, 1, 0, TEAM))
    return replace(plan, streams=StreamPlan(schedule, alone, "list")), dag, launches


def reading(naming: Naming) -> Reading:
    return Reading(imported(fork), {"lib"}, {"lib"}, read_variants(naming.variants, FORMATS))


def through_json(named: NamedPlan) -> NamedPlan:
    return typed(NamedPlan, json.loads(json.dumps(asdict(named))))


def test_plans_come_back_from_plain_values() -> None:
    naming, plan = Naming(), blocked_plan()
    assert plan.placement.transforms
    plan_of_streams, dag, launches = streamed(plan)
    for each in (plan, plan_of_streams):
        named = through_json(naming.plan(each))
        assert (
            reading(naming).plan(named, lambda _: Assembled(dag, launches, [False] * len(launches))) == each
        )


def broken(named: NamedPlan, naming: Naming) -> Mapping[str, NamedPlan]:
    """Plans that do not fit the fork."""
    first, *rest = named.candidates
    assert named.streams is not None
    streams = named.streams

    def with_first(**changes: Any) -> NamedPlan:
        return replace(named, candidates=(replace(first, **changes), *rest))

    def with_streams(**changes: Any) -> NamedPlan:
        return replace(named, streams=replace(streams, **changes))

    other = next(each for each in streams.single_threaded[1:] if isinstance(each, NamedCandidate))
    return {
        "unknown node": with_first(nodes=(9,)),
        "negative node": with_first(nodes=(-1,)),
        "twice": with_first(nodes=(1,)),
        "nothing": replace(named, candidates=()),
        "unknown backend": with_first(backend="other"),
        "unknown variant": with_first(variant=7),
        "another variant": with_first(variant=1 - first.variant),
        "negative cost": with_first(cost_us=-1.0),
        "a transform without a cost": replace(named, transforms_us=()),
        "an order against the graph": with_streams(order=(2, 0, 1, 3)),
        "too few launches": with_streams(order=(0, 1), streams=(0, 1)),
        "no kernel for one thread": with_streams(single_threaded=(None,) * 4),
        "another kernel": with_streams(single_threaded=(other, *streams.single_threaded[1:])),
        "a stream below all": with_streams(streams=(-2, 1, 0, TEAM)),
    }


def test_plans_that_do_not_fit_the_model_are_refused() -> None:
    naming = Naming()
    plan, dag, launches = streamed(blocked_plan())
    for what, named in broken(naming.plan(plan), naming).items():
        with pytest.raises(ValueError, match=r"."):
            pytest.fail(
                f"{what}: {reading(naming).plan(named, lambda _: Assembled(dag, launches, [False] * len(launches)))}"
            )
