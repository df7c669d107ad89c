"""The table of stages, and the loop that runs its rows, with made-up proposers and costs."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Generator

import pytest

from collage.compiler.bench import Bench
from collage.compiler.best import Best
from collage.compiler.placing import place
from collage.compiler.plan import Beyond, Failed, Plan, Ran, Verdict, Whole
from collage.compiler.propose.engines import engines
from collage.compiler.propose.mixes import first_mix, other_variants, planned
from collage.compiler.referee import RaceFailedError
from collage.compiler.stages import QUICK_STAGES, USUAL, Stage, run_stages
from collage.core.deadline import BudgetOverError
from collage.errors import NoPlacementError
from tests.helpers.compiler.null import Made, NullBackend, NullEngine, each_node, regions

ENGINE = "engine, as written"
Proposer = Generator[Plan, Verdict, None]


def made(**options: object) -> Made:
    libraries = NullBackend("lib", team=True), NullBackend("other", team=True)
    costs = {**each_node("lib", 10.0), **each_node("other", 12.0), **each_node("lib bf16", 4.0)}
    return Made(costs, *libraries, NullEngine("engine"), engines={ENGINE: 70.0}, **options)  # type: ignore[arg-type]


def test_the_table_is_flat_and_its_order_is_what_users_wait_for() -> None:
    names = [stage.name for stage in USUAL]
    assert len(set(names)) == len(names)
    wanted = ["engines", "recall", "first mix", "promising", "streams", "everything", "profiles of engines"]
    assert [name for name in names if name in wanted] == wanted
    assert names[-1] == "graph level"
    assert [stage.name for stage in QUICK_STAGES][:2] == ["engines", "recall"]
    for stage in (*USUAL, *QUICK_STAGES):
        assert inspect.isgeneratorfunction(stage.propose), stage.name
        assert list(inspect.signature(stage.propose).parameters)[:2] == ["bench", "best"], stage.name


def test_proposers_are_sent_what_came_of_their_plans() -> None:
    each, verdicts = made(tolerance=0.01).measured(), []
    each.runs.error_of = lambda executable: 0.5 if executable.precisions else 1e-7

    def some(bench: Bench, best: Best) -> Proposer:
        verdicts.append((yield Whole("engine")))
        verdicts.append((yield planned(bench, place(bench))))
        verdicts.append((yield Whole("absent")))

    each.task.backends["absent"] = NullEngine("absent")  # type: ignore[index]
    each.task.versions["absent"] = "1"  # type: ignore[index]
    each.run(some)
    engine, mix, absent = verdicts
    assert isinstance(engine, Ran) and (engine.us, engine.ratio) == (70.0, 1.0)
    assert isinstance(mix, Ran) and mix.ratio == pytest.approx(40 / 70)
    assert mix.launches_us == (10.0,) * 4
    assert absent == Failed(Whole("absent"), "no Relu")
    assert [plan.label for plan in each.best.everything()] == ["mix", ENGINE]
    assert each.best.plan is not None and each.best.score(each.best.plan) == pytest.approx(40 / 70)
    assert [(b.label, b.latency_ms) for b in each.best.trace] == [(ENGINE, 0.07), ("mix", 0.04)]


def test_a_plan_beyond_the_tolerance_is_not_timed() -> None:
    each, verdicts = made(tolerance=0.01).run(engines), []
    each.runs.error_of = lambda executable: 0.5
    each.engines.us[f"{ENGINE}, bf16"] = 1.0

    def reduced(bench: Bench, best: Best) -> Proposer:
        verdicts.append((yield Whole("engine", precision="bf16")))

    each.run(reduced)
    (beyond,) = verdicts
    assert isinstance(beyond, Beyond) and beyond.error > 0.01
    assert "above the tolerance of 0.01" in beyond.reason
    assert set(each.engines.turns) == {ENGINE}
    assert each.best.plan == Whole("engine")


def test_if_the_best_plan_fails_the_next_one_takes_its_place() -> None:
    each = made().run(engines, first_mix)
    each.bench.race([offer.request for offer in each.bench.known.offers])
    each.runs.worn_out = {("lib", (1,)): "turn"}
    each.run(other_variants)
    assert [{name for name, _ in regions(plan)} for plan in each.placed] == [{"lib", "other"}, {"other"}]
    assert each.best.engine is not None and each.best.first is not None
    assert each.best.first.us == pytest.approx(42.0)


@pytest.mark.parametrize(
    "error", [BudgetOverError(), KeyboardInterrupt(), OSError("disk"), NoPlacementError("no"), None]
)
def test_proposers_are_closed_however_they_end(error: BaseException | None) -> None:
    closed = []

    def some(bench: Bench, best: Best) -> Proposer:
        try:
            yield Whole("engine")
            if error is not None:
                raise error
        finally:
            closed.append(True)

    def stopped(bench: Bench, best: Best) -> Proposer:
        try:
            yield Whole("engine", profile="turbo")
        finally:
            closed.append(True)

    each = made()
    if error is None or isinstance(error, NoPlacementError):
        each.run(some)
        assert each.bench.known.no_placement is error
    else:
        with pytest.raises(type(error)):
            each.run(some)
    each.step.at, each.step.error = len(each.step.taken) + 1, KeyboardInterrupt()
    each.engines.us[f"{ENGINE}, turbo"] = 10.0
    with pytest.raises(KeyboardInterrupt):  # while the plan runs
        each.run(stopped)
    assert closed == [True, True]


def test_a_failure_in_a_proposers_own_race_ends_its_row() -> None:
    each = made().run(engines, first_mix)
    (mix,) = each.placed

    def racing(bench: Bench, best: Best) -> Proposer:
        raise RaceFailedError(Failed(mix, "crashed"))
        yield mix

    each.run(racing)
    assert each.best.plan == Whole("engine")


def test_rows_say_what_they_gained(caplog: pytest.LogCaptureFixture) -> None:
    each = made()

    def never(bench: Bench, best: Best) -> Proposer:
        raise AssertionError
        yield

    rows = [
        Stage("engines", engines),
        Stage("never", never, (lambda _: False,)),
        Stage("first mix", first_mix),
    ]
    with caplog.at_level(logging.INFO):
        run_stages(rows, each.bench, each.referee, each.best)
    assert "engines: 1 plans in" in caplog.text
    assert "first mix: 1 plans in" in caplog.text and ", 1.750x" in caplog.text
    run_stages([Stage("never", never)], each.bench, each.referee, each.best, until_first=True)


def test_progress_has_the_best_so_far_and_what_is_hoped_for() -> None:
    each = made()
    each.compiled()
    told = [progress.best for progress in each.shown]
    assert told[0] == ""
    assert "best so far 0.07 ms (engine, as written)" in told
    assert told[-1] == "best so far 0.04 ms, 1.75x the best engine (engine, as written)"
