"""The end of a compile with made-up times: who wins, and what happens to a plan that fails or is wrong."""

from __future__ import annotations

from dataclasses import replace

import pytest

from collage.check.final_check import Finding
from collage.compiler.executable import Executable
from collage.compiler.finish import Finish, _ranked
from collage.compiler.plan import FOLDED, Placed, Plan, Ran, Selection, StreamPlan, Whole
from collage.compiler.propose.engines import engines
from collage.compiler.propose.mixes import first_mix, other_variants
from collage.errors import CollageError, ModelError, NoPlacementError
from collage.kernel.options import Variant
from collage.measure_db.results import Timing
from collage.schedule.schedule import Schedule
from collage.search.candidate import Candidate
from collage.search.placement import Placement
from tests.helpers.compiler.null import WRONG, Made, NullBackend, NullEngine, backends_of, each_node, regions

ENGINE = "engine, as written"
LIBRARIES = NullBackend("lib", team=True), NullBackend("other", team=True)
RIGHT = Finding(0.25, 0.125, "")


def made(engine_us: float = 70.0, other_us: float = 10.2, **options: object) -> Made:
    """An engine and two mixes have run, which are nearly as fast as each other."""
    costs = {**each_node("lib", 10.0), **each_node("other", other_us)}
    found = Made(costs, *LIBRARIES, NullEngine("engine"), engines={ENGINE: engine_us}, **options)  # type: ignore[arg-type]
    found.run(engines, first_mix)
    found.bench.race([offer.request for offer in found.bench.known.offers])
    return found.run(other_variants)


def finished(each: Made) -> Selection:
    return Finish(each.bench, each.referee, each.best).select()


def libraries(selected: Selection) -> set[str]:
    return {region.backend for region in selected.parts.program.launches}


def test_the_fastest_is_handed_over_with_its_figures() -> None:
    each = made()
    found = finished(each)
    assert (found.plan.label, found.measured_us, found.predicted_us) == ("mix", 40.0, 40.0)
    assert {label: t.median_us for label, t in found.timings.items()} == {
        "mix": 40.0,
        "mix 2": pytest.approx(40.8),
        ENGINE: 70.0,
    }
    assert (found.max_abs_error, found.relative_error) == (0.25, 0.125)
    assert [backends_of(e) for e in each.runs.loaded] == ["lib lib lib lib"]


def test_an_engine_within_the_noise_is_handed_over() -> None:
    assert finished(made(engine_us=40.5)).plan == Whole("engine")
    assert finished(made(engine_us=41.5)).plan.label == "mix"


def plan(launches: int, *, streams: bool = False, precision: str = "") -> Placed:
    parts = tuple(Candidate((n,), "lib", 1.0, variant=Variant(precision=precision)) for n in range(launches))
    beside = StreamPlan(Schedule((0,), (0,)), (None,), "list") if streams else None
    return Placed(Placement(parts, 1.0), beside)


def test_the_simplest_of_those_that_tie_wins() -> None:
    """Engines, then own dtypes, then few launches, then no streams, then usual settings."""
    order: list[Plan] = [
        Whole("engine"),
        Whole("engine", FOLDED, "turbo"),
        Whole("engine", precision="bf16"),
        plan(3),
        plan(4),
        plan(4, streams=True),
        plan(2, precision="bf16"),
    ]
    timings = {each: Timing(100.0 - 0.1 * at, 3.0, 1.0, 1.0, 20) for at, each in enumerate(order)}
    assert _ranked(timings) == order
    assert _ranked(dict(reversed(timings.items()))) == order


def test_noise_makes_no_tie_of_a_difference_that_one_would_notice() -> None:
    engine, mix = Whole("engine"), plan(4)
    noisy = {engine: Timing(103.0, 8.0, 1.0, 1.0, 20), mix: Timing(100.0, 8.0, 1.0, 1.0, 20)}
    assert _ranked(noisy)[0] == mix
    known = {plan(3): Timing(101.0, 0.1, 1.0, 1.0, 20), mix: Timing(100.0, 0.0, 1.0, 1.0, 20)}
    assert _ranked(known)[0] == mix


def test_a_runner_up_that_is_faster_in_the_last_race_wins() -> None:
    """A chain of duels crowns the luckiest."""
    each = made()
    assert [regions(plan)[0][0] for plan in each.placed] == ["lib", "other"]
    each.runs.network_us = {("lib", (0,)): 30.0}
    assert libraries(finished(each)) == {"other"}


def test_wrong_outputs_go_to_the_next_and_at_last_to_the_engine() -> None:
    each = made()
    each.runs.finding_of = lambda e: WRONG if "lib" in backends_of(e) else RIGHT
    assert libraries(finished(each)) == {"other"}
    assert each.notes == ["mix: outputs differ; not used"]
    each = made()
    each.runs.finding_of = lambda _: WRONG
    assert finished(each).plan == Whole("engine")
    assert each.runs.loaded == []


def test_a_plan_that_errs_on_unusual_inputs_only_scans_its_inputs() -> None:
    each = made()

    def finding(executable: Executable) -> Finding:
        return RIGHT if executable.guarded else replace(WRONG, ordinary=False)

    each.runs.finding_of = finding
    assert finished(each).parts.program.is_guarded
    assert each.notes == []


@pytest.mark.parametrize("step", ["open", "turn", "times", "check", "load"])
def test_a_kernel_that_fails_at_the_end_goes_to_the_next_without_it(step: str) -> None:
    each = made()
    each.runs.worn_out = {("lib", (2,)): step}
    found = finished(each)
    assert libraries(found) == {"other"}
    assert "lib" not in {backend for plan in each.placed for backend, _ in regions(plan)}
    assert each.notes[0].startswith("mix: crashed: in the network: SIGSEGV; not used")


def test_all_plans_with_a_kernel_that_fails_leave() -> None:
    """What differs in another kernel only is not tried any more."""
    each = made()
    half = Placed(replace(each.placed[0].placement, candidates=mixed(each)))
    each.best.take(Ran(half, 40.4, 1.01))
    each.runs.worn_out = {("lib", (0,)): "turn"}
    assert libraries(finished(each)) == {"other"}
    assert half not in each.best.everything()
    assert len(each.notes) == 1


def mixed(each: Made) -> tuple[Candidate, ...]:
    one, other = (plan.placement.candidates for plan in each.placed)
    return *one[:2], *other[2:]


def test_an_engine_that_fails_in_the_race_is_not_used() -> None:
    each = made(engine_us=30.0)
    each.engines.breaks[ENGINE] = "worn out"
    assert finished(each).plan.label == "mix"
    assert each.notes == [f"{ENGINE}: worn out; not used"]


def test_an_engine_that_is_wrong_on_hostile_inputs_goes_to_the_next() -> None:
    each = made(engine_us=30.0)
    each.engines.hostile[ENGINE] = ("it makes NaN of numbers", False)
    assert finished(each).plan == Whole("engine")  # there is no other engine
    second = "second, as written"
    costs = {**each_node("lib", 90.0)}
    both = NullEngine("engine"), NullEngine("second")
    each = Made(costs, *LIBRARIES, *both, engines={ENGINE: 30.0, second: 40.0})
    each.engines.hostile[ENGINE] = ("it makes NaN of numbers", False)
    each.engines.hostile[second] = ("", True)
    found = each.compiled()
    assert found.plan == Whole("second")
    assert each.notes[-1] == f"{ENGINE}: it makes NaN of numbers; not used"
    assert found.parts.program.suffix is not None and found.parts.program.suffix.region.finite_only


def test_with_strict_no_engine_is_handed_over() -> None:
    each = Made(each_node("lib", 10.0), *LIBRARIES, NullEngine("engine"), engines={ENGINE: 1.0}, strict=True)
    assert each.compiled().plan.label == "mix"
    assert each.engines.trials == []
    each = Made(each_node("lib", 10.0), *LIBRARIES, NullEngine("engine"), engines={ENGINE: 1.0}, strict=True)
    each.runs.finding_of = lambda _: WRONG
    with pytest.raises(NoPlacementError, match="mix: outputs differ"):
        each.compiled()


def test_a_model_that_nobody_can_make_inputs_for_is_handed_over_unmeasured() -> None:
    each = Made({}, *LIBRARIES, NullEngine("engine"))
    each.engines.loaded = (ENGINE,)
    found = each.compiled()
    assert found.plan == Whole("engine")
    assert found.unmeasured.startswith("no engine runs the model on made-up inputs")


def test_without_an_engine_each_says_why() -> None:
    each = Made({}, *LIBRARIES, NullEngine("engine"), NullEngine("second"))
    with pytest.raises(ModelError, match=r"And no engine can .*engine, as written: no Relu; second, as written"):
        each.compiled()


def of_tables(by_row: dict[str, float], **us: float) -> Selection:
    """What is handed over of engines with these times on a block of rows, and on single ones."""
    labels = {f"{name}, as written": each for name, each in us.items()}
    each = Made({}, *(NullEngine(name) for name in us), engines=labels, rows=1000)
    each.engines.by_row_us = {f"{name}, as written": us for name, us in by_row.items()}
    each.run(engines)
    return finished(each)


def test_of_a_table_the_engine_that_is_never_far_behind_is_handed_over() -> None:
    found = of_tables({"wide": 30.0, "even": 10.0}, wide=40.0, even=50.0)
    assert found.plan == Whole("even")
    assert (found.measured_us, found.by_row[found.plan.label].median_us) == (50.0, 10.0)
    assert of_tables({"wide": 12.0, "even": 10.0}, wide=40.0, even=50.0).plan == Whole("wide")
    assert of_tables({"wide": 30.0, "even": 10.0}, wide=40.0, even=4000.0).plan == Whole("wide")


def test_an_engine_that_fails_on_one_row_is_not_handed_over() -> None:
    each = Made({}, NullEngine("one"), NullEngine("two"), engines={}, rows=1000)
    each.engines.us = {"one, as written": 4.0, "two, as written": 5.0}
    each.engines.by_row_us = dict(each.engines.us)
    each.run(engines)

    def turn(name: str, settle_s: float, turn_s: float, *, by_row: bool = False) -> list[float]:
        if by_row and name.startswith("one"):
            raise CollageError("it needs two rows")
        return [1e3 * each.engines.us[name]]

    each.engines.turn = turn  # type: ignore[method-assign]
    assert finished(each).plan == Whole("two")
    assert "one, as written: it needs two rows; not used" in each.notes
