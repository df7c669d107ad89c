"""Recall with made-up costs: a second compile measures nothing, and after one that was stopped it goes on."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from collage.check.metrics import Metric
from collage.compiler.bench import Bench
from collage.compiler.build_report import report_of
from collage.compiler.plan import Placed, Whole
from collage.compiler.record import Finished, finished_key, found_before, plan_of
from collage.core.typed import typed
from collage.errors import ModelError
from collage.measure_db.database import Database
from collage.measure_db.results import Rejection, RejectionKind
from collage.schedule.schedule import TEAM
from tests.helpers.compiler.null import (
    CRASHED,
    WRONG,
    Costs,
    Made,
    NullBackend,
    NullEngine,
    NullMeasurer,
    each_node,
    fork,
)

ENGINE = "engine, as written"
COSTS: Costs = {**each_node("lib", 10.0), **each_node("other", 12.0)}


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    with Database(tmp_path / "db.sqlite") as database:
        yield database


def made(database: Database | None, before: Made | None = None, engine_us: float = 70.0, **options: Any) -> Made:
    """A compile that knows the kernels that one ``before`` has measured."""
    libraries = NullBackend("lib", team=True), NullBackend("other", team=True)
    engines = {ENGINE: engine_us, f"{ENGINE}, turbo": engine_us - 5}
    found = Made(COSTS, *libraries, NullEngine("engine", ["", "turbo"]), engines=engines, database=database, **options)
    if before is not None:
        found.measurer.asked = [*before.measurer.asked]
    return found


def measuring(each: Made) -> list[str]:
    """The steps of a compile that take measurements. Errors and times of launches are remembered below these steps."""
    return [step for step in each.step.taken if step.split()[0] in ("trial", "measure", "turn")]


@pytest.mark.parametrize(
    ("engine_us", "options"),
    [(70.0, {}), (20.0, {}), (70.0, {"tolerance": 0.05}), (70.0, {"strict": True}), (70.0, {"family": True})],
    ids=["mix", "engine", "tolerance", "strict", "family"],
)
def test_a_second_compile_measures_nothing(database: Database, engine_us: float, options: dict[str, Any]) -> None:
    first = made(database, engine_us=engine_us, **options)
    before = first.compiled()
    second = made(database, first, engine_us, **options)
    after = second.compiled()
    assert measuring(second) == []
    assert after.plan.label == before.plan.label
    assert (after.timings, after.measured_us) == (before.timings, before.measured_us)
    assert (after.max_abs_error, after.error) == (before.max_abs_error, before.error)
    reports = [report_of(each.bench, each.best, found, 0.0) for each, found in ((first, before), (second, after))]
    assert reports[1].measurements_made == 0 and reports[0].measurements_made > 0
    assert reports[1].notes == reports[0].notes
    assert reports[1].best_so_far[-1].label == after.plan.label
    verdicts = [{c.candidate: (c.verdict, c.loss_us) for c in each.candidates} for each in reports]
    if isinstance(after.plan, Placed):  # of the mixes that an engine beat, only the times are recorded
        assert verdicts[1] == {each: verdicts[0][each] for each in verdicts[1]}


def test_a_model_without_a_graph_is_recalled_as_well(database: Database) -> None:
    engine = Whole("engine", profile="turbo")
    compiles = made(database), made(database)
    for each in compiles:
        each.bench.why_no_graph = ModelError("TVM cannot import Pow.")
        assert each.compiled().plan == engine
    assert [bool(measuring(each)) for each in compiles] == [True, False]


def test_after_a_stop_the_next_compile_begins_with_that_plan(database: Database) -> None:
    first = made(database, budget_s=60.0)
    first.step.at, first.step.error = steps_until(made(None), "trial", 2), KeyboardInterrupt()
    stopped = first.compiled()
    assert stopped.plan.label == "mix" and first.clock.ended == "interrupt"
    second = made(database, first)
    found = look_up(second.bench)
    assert found is not None and not found.complete
    second.compiled()
    assert [best.label for best in second.best.trace] == [ENGINE, "mix"]
    assert measuring(second)[0] == "trial"  # it goes on with the engine's other settings
    third = made(database, second)
    third.compiled()
    assert measuring(third) == []


def steps_until(each: Made, step: str, count: int = 1) -> int:
    """The number of steps before that one comes for the so-manyth time."""
    each.compiled()
    return [n for n, taken in enumerate(each.step.taken) if taken.startswith(step)][count - 1]


def test_what_a_failure_has_ended_is_not_recorded(database: Database) -> None:
    each = made(database)
    each.step.at, each.step.error = steps_until(made(None), "measure other"), OSError("the disk is full")
    each.compiled()
    assert look_up(made(database).bench) is None


def test_what_too_little_memory_has_decided_is_not_settled(database: Database) -> None:
    each = made(database)
    each.measurer.rejected["other", (1,)] = Rejection(RejectionKind.MEMORY, "out of memory", 10 << 30)
    each.compiled()
    found = look_up(made(database).bench)
    assert found is not None and not found.complete


@pytest.mark.parametrize("changed", ["rejected", "wrong", "fails here"])
def test_what_it_rests_on_has_changed_so_that_the_model_is_searched_again(database: Database, changed: str) -> None:
    first = made(database)
    first.compiled()
    again = made(database, first)
    if changed == "rejected":
        again.measurer.rejected["lib", (2,)] = CRASHED
    elif changed == "wrong":
        again.runs.finding_of = lambda executable: WRONG
    else:
        again.runs.worn_out = {("lib", (2,)): "load"}
    found = again.compiled()
    assert again.best.settled is None
    if changed == "wrong":
        assert found.plan == Whole("engine", profile="turbo")
    else:
        assert found.plan.label == "mix"


def look_up(bench: Bench) -> Finished | None:
    """What is recorded for this compile."""
    bench.known.key = finished_key(bench)
    return found_before(bench)


def key(each: Made, **changes: Any) -> str | None:
    if changes:
        each.bench.task = replace(each.task, **changes)
    return finished_key(each.bench)


def test_the_key_covers_all_that_decides() -> None:
    usual = key(made(None))
    assert usual is not None and usual == key(made(None)) == key(made(None, budget_s=5.0))
    source, target = made(None).task.source, made(None).task.target
    other_weights = made(None)
    other_weights.measurer.as_loaded_digest = "of another"
    fewer = made(None)
    fewer.bench.costs = each_node("lib", 10.0)
    ones = {"x": np.ones((4, 64), np.float32)}
    differ = [
        key(made(None, seed=1)),
        key(made(None, graph_level_s=1.0)),
        key(made(None, streams=False)),
        key(made(None, exact=True)),
        key(made(None, strict=True)),
        key(made(None, tune_trials=8)),
        key(made(None, tolerance=0.1)),
        key(made(None, tolerance=0.2)),
        key(made(None, tolerance=0.1, metric=Metric("cosine"))),
        key(made(None, tolerance=0.1, samples=(ones,))),
        key(made(None), source=replace(source, example_inputs=ones)),
        key(made(None), versions={**made(None).task.versions, "lib": "2"}),
        key(made(None), target=replace(target, threads=3)),
        key(fewer),
        key(other_weights),
    ]
    assert len({usual, *differ}) == 1 + len(differ) and None not in differ
    large = made(None)
    large.measurer.as_loaded_digest = None
    own = Metric("own", lambda expected, actual: 0.0)
    assert key(large) is None and key(made(None, tolerance=0.1, metric=own)) is None


def recorded(each: Made) -> Finished:
    found = look_up(each.bench)
    assert found is not None
    return typed(Finished, json.loads(json.dumps(asdict(found))))


def streamed() -> tuple[Made, Placed]:
    """Relu and tanh of the fork on a stream each, on kernels for one thread."""
    costs = {("lib", (0,)): 100.0, ("lib", (1,)): 100.0, ("lib", (2,)): 10.0}
    each = Made(costs, NullBackend("lib", team=True), model=fork)
    each.measurer.single = NullMeasurer(each.bench.model, {k: us + 10 for k, us in costs.items()}, each.step)
    each.compiled()
    plan = each.best.plan
    assert isinstance(plan, Placed) and plan.streams is not None
    return each, plan


def test_streams_are_recalled_or_refused() -> None:
    each, plan = streamed()
    finished = recorded(each)
    found = plan_of(each.bench, each.referee, finished)
    assert isinstance(found, Placed) and found.streams is not None
    assert found.streams.schedule == plan.streams.schedule  # type: ignore[union-attr]

    def changed(order: tuple[int, ...], streams: tuple[int, ...]) -> Finished:
        return replace(finished, streams=("list", order, streams))

    broken: Mapping[str, Finished] = {
        "unknown kernel": replace(finished, kernels=(((9,), "lib", ""), *finished.kernels[1:])),
        "too few kernels": replace(finished, kernels=finished.kernels[1:]),
        "an order against the graph": changed((2, 0, 1), (0, 1, TEAM)),
        "too few launches": changed((0, 1), (0, 1)),
        "a stream below all": changed((0, 1, 2), (-2, 1, TEAM)),
    }
    for what, other in broken.items():
        assert plan_of(each.bench, each.referee, other) is None, what
    each.measurer.single.costs = {}
    each.measurer.single.asked = []
    assert plan_of(each.bench, each.referee, finished) is None
